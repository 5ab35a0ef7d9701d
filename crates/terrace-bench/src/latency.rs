//! Latency distributions: recorded in nanoseconds, reported in microseconds.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency in the histogram, in nanoseconds; longer ones count as this. Their true
/// maximum is kept separately.
pub(crate) const LONGEST_NS: u64 = 100_000_000_000;

/// Latencies of one kind of operation, exact to three digits.
#[derive(Debug, Clone, PartialEq)]
pub struct Latency {
    histogram: Histogram<u64>,
    max_ns: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        Latency {
            histogram: histogram.expect("the bounds are valid constants"),
            max_ns: 0,
        }
    }
}

impl Latency {
    /// Records one latency.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Records one latency `count` times.
    pub fn record_many(&mut self, ns: u64, count: u64) {
        self.histogram.saturating_record_n(ns, count);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Raises the maximum to at least `ns`, for a latency that was recorded as a shorter one.
    pub(crate) fn raise_max(&mut self, ns: u64) {
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all latencies of `other`.
    pub fn merge(&mut self, other: &Latency) {
        self.histogram
            .add(&other.histogram)
            .expect("both have the same bounds");
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Removes all latencies.
    pub fn clear(&mut self) {
        self.histogram.reset();
        self.max_ns = 0;
    }

    /// Returns the number of latencies recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the latency that `percent` of the operations do not exceed, in microseconds.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        let ns = self.histogram.value_at_percentile(percent).min(self.max_ns);
        ns as f64 / 1e3
    }

    /// Returns the mean latency, in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.histogram.mean() / 1e3
    }

    /// Returns pairs of a limit in microseconds and the number of latencies up to it and above the
    /// previous limit. Limits grow by a twentieth of a power of ten; empty ranges are omitted.
    pub fn histogram(&self) -> Vec<(f64, u64)> {
        let mut limits: Vec<(i32, u64)> = Vec::new();
        for value in self.histogram.iter_recorded() {
            let ns = value.value_iterated_to().max(1);
            let limit = ((ns as f64).log10() * 20.0).ceil() as i32;
            match limits.last_mut() {
                Some((last, count)) if *last == limit => *count += value.count_at_value(),
                _ => limits.push((limit, value.count_at_value())),
            }
        }
        let us = |limit: i32| {
            let ns = 10f64.powf(f64::from(limit) / 20.0);
            // Four digits are finer than the distance between limits.
            let unit = 10f64.powf(ns.log10().floor() - 3.0);
            ((ns / unit).round() * unit).round() / 1e3
        };
        limits
            .into_iter()
            .map(|(limit, n)| (us(limit), n))
            .collect()
    }

    /// Returns the longest latency, in microseconds.
    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }

    /// Returns one line for each occupied range of latencies, with its share and the cumulative
    /// share.
    ///
    /// Ranges grow by powers of two from a quarter of a microsecond.
    pub fn chart(&self) -> String {
        let mut text = String::new();
        let total = self.count();
        if total == 0 {
            return text;
        }
        let (mut low, mut sum) = (0, 0);
        let mut high = 250;
        while sum < total {
            let last = high > LONGEST_NS / 2;
            let top = if last { u64::MAX } else { high - 1 };
            let count = self.histogram.count_between(low, top.min(LONGEST_NS));
            // A bucket that spans the border counts on both sides, so limit the sum to the total.
            let count = count.min(total - sum);
            sum += count;
            if count > 0 {
                let share = count as f64 / total as f64 * 100.0;
                let bar = "#".repeat((share / 5.0).round() as usize);
                let (from, to) = (low as f64 / 1e3, high as f64 / 1e3);
                let up_to = sum as f64 / total as f64 * 100.0;
                let _ = writeln!(
                    text,
                    "    [{from:>12.2} us, {to:>12.2} us) {count:>12} {share:>8.4}% {up_to:>9.4}% \
                     {bar}"
                );
            }
            if last {
                break;
            }
            low = high;
            high *= 2;
        }
        text
    }
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p99_9_us: f64,
    /// The 99.99th percentile.
    pub p99_99_us: f64,
    /// The maximum.
    pub max_us: f64,
}

impl LatencyReport {
    /// Returns the figures of `latency`; `None` if it is empty.
    pub fn of(latency: &Latency) -> Option<LatencyReport> {
        (latency.count() > 0).then(|| LatencyReport {
            mean_us: latency.mean_us(),
            p50_us: latency.percentile_us(50.0),
            p90_us: latency.percentile_us(90.0),
            p99_us: latency.percentile_us(99.0),
            p99_9_us: latency.percentile_us(99.9),
            p99_99_us: latency.percentile_us(99.99),
            max_us: latency.max_us(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Percentiles are within a thousandth of the true value, and the maximum is exact.
    #[test]
    fn percentiles_are_close() {
        let mut latency = Latency::default();
        for us in 1..=10_000u64 {
            latency.record(us * 1000 + 7);
        }
        for (percent, us) in [(50.0, 5000.0), (99.0, 9900.0), (99.9, 9990.0)] {
            let got = latency.percentile_us(percent);
            assert!((got - us).abs() / us < 2e-3, "p{percent} is {got}");
        }
        assert_eq!(latency.max_us(), 10_000.007);
        assert_eq!(latency.count(), 10_000);
    }

    /// Merged histograms contain the latencies of both, and none above the range is lost.
    #[test]
    fn merging_keeps_everything() {
        let mut a = Latency::default();
        let mut b = Latency::default();
        a.record(100);
        b.record(u64::MAX);
        a.merge(&b);
        assert_eq!(a.count(), 2);
        assert_eq!(a.max_us(), u64::MAX as f64 / 1e3);
        assert!(a.percentile_us(50.0) < 0.2);
        a.clear();
        assert_eq!((a.count(), a.max_us()), (0, 0.0));
        assert_eq!(a.chart(), "");
    }

    /// The chart counts every latency once and ends at one hundred percent.
    #[test]
    fn the_chart_adds_up() {
        let mut latency = Latency::default();
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..5000 {
            latency.record(1 << rng.u32(0..36));
        }
        let chart = latency.chart();
        let counted = chart
            .lines()
            .filter_map(|line| {
                line.split(')')
                    .nth(1)?
                    .split_whitespace()
                    .next()?
                    .parse::<u64>()
                    .ok()
            })
            .sum::<u64>();
        assert_eq!(counted, 5000);
        assert!(
            chart
                .trim_end()
                .lines()
                .last()
                .is_some_and(|l| l.contains("100.0000%")),
            "{chart}"
        );
    }
}
