//! Watching a workload as it runs: the progress bar, the intervals, their stalls, the pool.

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::latency::Latency;
use crate::meter::Meter;
use crate::report::{FlushReport, IntervalReport, StallReport};
use crate::step::Step;
use crate::store::Counters;
use crate::units;

/// The update interval of the progress bar.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Moves the bar and passes intervals to `see` until every worker has ended. Calls `counters` once
/// an interval, for the stalls in it, and once a tick for `pool`.
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
    pool: &PoolPeak,
    see: &mut dyn FnMut(&ProgressBar, &IntervalReport),
) -> Vec<IntervalReport> {
    let bar = bar(step, total);
    let begun = Instant::now();
    let mut reports: Vec<IntervalReport> = Vec::new();
    let mut stalls = Stalls::begin(interval, counters);
    loop {
        let ended = meter.wait(TICK);
        bar.set_position(meter.done());
        pool.sample(&counters());
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

/// The most bytes that the live extents of a pool took in samples.
#[derive(Debug, Default)]
pub(crate) struct PoolPeak(Mutex<Option<u64>>);

impl PoolPeak {
    /// Adds a sample.
    pub(crate) fn sample(&self, counters: &Counters) {
        let mut peak = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *peak = (*peak).max(counters.pool_bytes);
    }

    /// Returns the peak; `None` if the store has no pool.
    pub(crate) fn bytes(&self) -> Option<u64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples `counters` once a tick, on a separate thread, until `work` has ended.
    pub(crate) fn while_doing<T>(
        &self,
        counters: &(dyn Fn() -> Counters + Sync),
        work: impl FnOnce() -> T,
    ) -> T {
        let (ended, is_running) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // BOUND: ends when the sender is dropped, even by a panic.
                while is_running.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    self.sample(&counters());
                }
            });
            let _ended = ended;
            work()
        })
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

/// Returns the flushes between two points in time of one store; `None` if there were none.
pub(crate) fn flushes_between(before: &Counters, after: &Counters) -> Option<FlushReport> {
    let (before, after) = (before.flushes?, after.flushes?);
    let flushes = FlushReport {
        count: after.count.saturating_sub(before.count),
        entries: after.entry_count.saturating_sub(before.entry_count),
        seconds: after.time.saturating_sub(before.time).as_secs_f64(),
    };
    (flushes.count > 0).then_some(flushes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Flushes;

    /// Only flushes in between count.
    #[test]
    fn flushes_are_those_in_between() {
        let counters = |count, entry_count, ms| Counters {
            flushes: Some(Flushes {
                count,
                entry_count,
                time: Duration::from_millis(ms),
            }),
            ..Counters::default()
        };
        let (before, after) = (counters(2, 100, 50), counters(6, 500, 90));
        let flushes = flushes_between(&before, &after).expect("four flushes");
        assert_eq!((flushes.count, flushes.entries), (4, 400));
        assert!((flushes.seconds - 0.04).abs() < 1e-9);
        assert!((flushes.mean_ms().expect("a mean") - 10.0).abs() < 1e-9);
        assert_eq!(flushes_between(&before, &before), None);
        assert_eq!(flushes_between(&Counters::default(), &after), None);
        assert_eq!(FlushReport::default().mean_ms(), None);
    }

    /// The peak of a pool is the highest sample, of ticks in between too, not the last one.
    #[test]
    fn the_peak_of_a_pool_is_the_highest_sample() {
        let counters = |pool_bytes| Counters {
            pool_bytes,
            ..Counters::default()
        };
        let peak = PoolPeak::default();
        peak.sample(&counters(None));
        assert_eq!(peak.bytes(), None);
        for bytes in [5, 9, 7] {
            peak.sample(&counters(Some(bytes)));
        }
        assert_eq!(peak.bytes(), Some(9));
        let done = peak.while_doing(&|| counters(Some(11)), || {
            std::thread::sleep(3 * TICK);
            "done"
        });
        assert_eq!((done, peak.bytes()), ("done", Some(11)));
    }

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
