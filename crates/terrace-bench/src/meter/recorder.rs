//! The record of latencies as they occur: counts in a plain array, each updated with a few
//! instructions.
//!
//! Its buckets are those of [`Latency`]'s histogram: every nanosecond below 2048 has its own, and
//! each power of two above has 1024. So a recorder holds exactly what a histogram would.

use crate::latency::{LONGEST_NS, Latency};

/// Buckets for each power of two, as a power of two.
const HALF_BITS: u32 = 10;
const HALF: usize = 1 << HALF_BITS;

/// The longest latency that the histogram distinguishes: the end of the power of two that contains
/// the requested maximum.
const LAST_NS: u64 = LONGEST_NS.next_power_of_two() - 1;

/// The number of buckets up to that.
const PLACES: usize = place_of(LAST_NS) + 1;

/// Returns the bucket of a latency of `ns` nanoseconds.
#[inline]
const fn place_of(ns: u64) -> usize {
    // The number of doublings of the first range, two halves, needed to reach `ns`.
    let doubled = u64::BITS - (ns | (2 * HALF as u64 - 1)).leading_zeros() - HALF_BITS - 1;
    ((doubled as usize) << HALF_BITS) + (ns >> doubled) as usize
}

/// Returns the latency that `ns` counts as: beyond the last one, the requested maximum.
#[inline]
fn told_apart(ns: u64) -> u64 {
    if ns > LAST_NS { LONGEST_NS } else { ns }
}

/// Returns the shortest latency that is counted at `place`.
fn shortest_of(place: usize) -> u64 {
    let doubled = (place >> HALF_BITS).saturating_sub(1);
    ((place - (doubled << HALF_BITS)) as u64) << doubled
}

/// Latencies of one thread that are not handed over yet.
#[derive(Debug)]
pub(super) struct Recorder {
    counts: Box<[u64]>,
    max_ns: u64,
}

impl Recorder {
    /// Returns an empty recorder.
    pub(super) fn new() -> Recorder {
        Recorder {
            counts: vec![0; PLACES].into(),
            max_ns: 0,
        }
    }

    /// Records one latency.
    #[inline]
    pub(super) fn record(&mut self, ns: u64) {
        self.max_ns = self.max_ns.max(ns);
        if let Some(count) = self.counts.get_mut(place_of(told_apart(ns))) {
            *count += 1;
        }
    }

    /// Moves all latencies to `to`, and adds them to `also` if given.
    pub(super) fn hand_over(&mut self, to: &mut Latency, mut also: Option<&mut Latency>) {
        let end = place_of(self.max_ns.min(LAST_NS)) + 1;
        for (place, count) in self.counts[..end].iter_mut().enumerate() {
            if *count > 0 {
                let ns = shortest_of(place);
                to.record_many(ns, *count);
                if let Some(also) = &mut also {
                    also.record_many(ns, *count);
                }
                *count = 0;
            }
        }
        to.raise_max(self.max_ns);
        if let Some(also) = also {
            also.raise_max(self.max_ns);
        }
        self.max_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The latencies handed over equal those recorded directly by a histogram: every count, every
    /// percentile, the mean and the maximum, for latencies of every length.
    #[test]
    fn nothing_is_lost_to_a_histogram() {
        let mut rng = fastrand::Rng::with_seed(11);
        let mut recorder = Recorder::new();
        let (mut direct, mut handed, mut also) = <(Latency, Latency, Latency)>::default();
        for round in 0..3 {
            for _ in 0..50_000 {
                // Equally many of each power of two, including some beyond the longest latency.
                let ns = rng.u64(..) >> rng.u32(16..64);
                direct.record(ns);
                recorder.record(ns);
            }
            for ns in [
                0,
                1,
                2047,
                2048,
                2049,
                LONGEST_NS - 1,
                LONGEST_NS,
                LAST_NS,
                u64::MAX,
            ] {
                direct.record(ns);
                recorder.record(ns);
            }
            let also = (round != 1).then_some(&mut also);
            recorder.hand_over(&mut handed, also);
            assert!(handed == direct, "after round {round}");
        }
        assert_eq!(handed.count(), 3 * 50_009);
        assert_eq!(also.count(), 2 * 50_009);
        for percent in [0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0] {
            assert_eq!(handed.percentile_us(percent), direct.percentile_us(percent));
        }
        assert_eq!(handed.mean_us(), direct.mean_us());
        assert_eq!(handed.max_us(), direct.max_us());
        assert_eq!(handed.histogram(), direct.histogram());
        assert_eq!(handed.chart(), direct.chart());
        let before = handed.clone();
        recorder.hand_over(&mut handed, None);
        assert!(handed == before, "a recorder that was emptied is empty");
    }

    /// Each bucket begins where the previous one ends.
    #[test]
    fn places_follow_each_other() {
        assert_eq!((place_of(0), shortest_of(0)), (0, 0));
        for place in 1..PLACES {
            let shortest = shortest_of(place);
            assert_eq!(place_of(shortest), place);
            assert_eq!(place_of(shortest - 1), place - 1);
        }
    }
}
