//! Watching a workload as it runs: the progress bar, the intervals, their stalls.

use std::fmt;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::latency::Latency;
use crate::meter::Meter;
use crate::report::{IntervalReport, StallReport};
use crate::step::Step;
use crate::store::Counters;
use crate::units;

/// The update interval of the progress bar.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Moves the bar and passes intervals to `see` until every worker has ended. Calls `counters` once
/// an interval, for the stalls in it.
///
/// A worker hands an interval over at the end of the operation that crosses its border, so an
/// interval is shown when the last worker has done so: after a stall, all intervals that it spans
/// are shown at once. Stalls are read when the interval ends, at most one tick late.
pub(crate) fn watch(
    step: Step,
    meter: &Meter,
    total: u64,
    interval: Option<Duration>,
    counters: &dyn Fn() -> Counters,
    see: &mut dyn FnMut(&ProgressBar, &IntervalReport),
) -> Vec<IntervalReport> {
    let bar = bar(step, total);
    let begun = Instant::now();
    let mut reports: Vec<IntervalReport> = Vec::new();
    let mut stalls = Stalls::begin(interval, counters);
    loop {
        let ended = meter.wait(TICK);
        bar.set_position(meter.done());
        if let Some(span) = interval {
            let passed = begun.elapsed();
            stalls.read_until((passed.as_nanos() / span.as_nanos().max(1)) as usize);
            while let Some(taken) = meter.take_interval() {
                let start = span.saturating_mul(reports.len() as u32);
                let whole = passed.saturating_sub(start).min(span);
                // The last interval ends with its workload, and workers may leave one slightly
                // before its end.
                stalls.read_until(reports.len() + 1);
                let latency = taken.latency.as_ref();
                let report = IntervalReport {
                    end_s: (start + whole).as_secs_f64(),
                    seconds: whole.as_secs_f64(),
                    ops: taken.ops,
                    p99_us: latency.map_or(0.0, |latency| latency.percentile_us(99.0)),
                    max_us: latency.map_or(0.0, Latency::max_us),
                    stalls: std::mem::take(&mut stalls.of_intervals[reports.len()]),
                };
                see(&bar, &report);
                reports.push(report);
            }
        }
        if ended {
            bar.finish_and_clear();
            return reports;
        }
    }
}

/// The stalls of each interval that has ended.
struct Stalls<'a> {
    counters: &'a dyn Fn() -> Counters,
    before: Option<Counters>,
    of_intervals: Vec<Vec<StallReport>>,
}

impl<'a> Stalls<'a> {
    fn begin(interval: Option<Duration>, counters: &'a dyn Fn() -> Counters) -> Stalls<'a> {
        Stalls {
            counters,
            before: interval.map(|_| counters()),
            of_intervals: Vec::new(),
        }
    }

    /// Extends the list to `count` ended intervals: stalls since the last reading count for the
    /// first new one, and none for the others.
    fn read_until(&mut self, count: usize) {
        if self.of_intervals.len() >= count {
            return;
        }
        let now = (self.counters)();
        let before = self.before.replace(now.clone());
        let stalls = before.map_or(Vec::new(), |before| stalls_between(&before, &now));
        self.of_intervals.push(stalls);
        while self.of_intervals.len() < count {
            self.of_intervals.push(Vec::new());
        }
    }
}

fn bar(step: Step, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = "{msg:<17} [{bar:40}] {human_pos}/{human_len} {rate} {eta}";
    let style = ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
    bar.set_style(style.with_key(
        "rate",
        |state: &ProgressState, line: &mut dyn fmt::Write| {
            // A failure to draw the bar must not end a run.
            let _ = write!(line, "{} op/s", units::count(state.per_sec() as u64));
        },
    ));
    bar.set_message(step.name());
    bar
}

/// Returns a spinner for work of unknown duration.
pub(crate) fn spinner(name: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(name);
    bar.enable_steady_tick(TICK);
    bar
}

/// Returns the stalls between two points in time of one store.
pub(crate) fn stalls_between(before: &Counters, after: &Counters) -> Vec<StallReport> {
    let earlier = |reason| before.stalls.iter().find(|(name, ..)| *name == reason);
    let stalls = after.stalls.iter().map(|(reason, count, time)| {
        let (counted, timed) =
            earlier(*reason).map_or((0, Duration::ZERO), |(_, count, time)| (*count, *time));
        StallReport {
            reason: (*reason).into(),
            count: count.saturating_sub(counted),
            seconds: time.saturating_sub(timed).as_secs_f64(),
        }
    });
    stalls
        .filter(|stall| stall.count > 0 || stall.seconds > 0.0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only stalls in between count, and a new reason counts in full.
    #[test]
    fn stalls_are_those_in_between() {
        let counters = |stalls: &[(&'static str, u64, u64)]| Counters {
            stalls: stalls
                .iter()
                .map(|(name, count, ms)| (*name, *count, Duration::from_millis(*ms)))
                .collect(),
            ..Counters::default()
        };
        let before = counters(&[("a", 2, 500), ("b", 1, 100)]);
        let after = counters(&[("a", 2, 750), ("b", 1, 100), ("c", 3, 0)]);
        let stalls = stalls_between(&before, &after);
        let names: Vec<&str> = stalls.iter().map(|stall| &*stall.reason).collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!((stalls[0].count, stalls[0].seconds), (0, 0.25));
        assert_eq!(stalls[1].count, 3);
    }
}
