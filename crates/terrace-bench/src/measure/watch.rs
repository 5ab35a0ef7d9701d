//! This file is how a workload is followed while it goes on: the bar, the intervals, their stalls.

use std::fmt;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::meter::Meter;
use crate::report::{IntervalReport, StallReport};
use crate::step::Step;
use crate::store::Counters;
use crate::units;

/// How often the progress bar moves.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Moves the bar and hands intervals to `see` until every worker has ended. `counters` is asked once
/// an interval, for the stalls in it.
///
/// A worker hands an interval over at the end of the operation that crosses its border, so an
/// interval is read one tick after it has ended; what comes later is in the next one's place. Stalls
/// are read at the same time, so they are a tick late at most.
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
    let mut before = interval.map(|_| counters());
    loop {
        let ended = meter.wait(TICK);
        bar.set_position(meter.done());
        if let Some(span) = interval {
            let passed = begun.elapsed().saturating_sub(TICK).as_nanos() / span.as_nanos().max(1);
            let ready = if ended {
                meter.interval_count()
            } else {
                passed as usize
            };
            while reports.len() < ready {
                let latency = meter.interval(reports.len());
                let start = span.saturating_mul(reports.len() as u32);
                let whole = begun.elapsed().saturating_sub(start).min(span);
                let now = counters();
                let report = IntervalReport {
                    end_s: (start + whole).as_secs_f64(),
                    seconds: whole.as_secs_f64(),
                    ops: latency.count(),
                    p99_us: latency.percentile_us(99.0),
                    max_us: latency.max_us(),
                    stalls: before
                        .replace(now.clone())
                        .map_or(Vec::new(), |before| stalls_between(&before, &now)),
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

fn bar(step: Step, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = "{msg:<17} [{bar:40}] {human_pos}/{human_len} {rate} {eta}";
    let style = ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
    bar.set_style(style.with_key(
        "rate",
        |state: &ProgressState, line: &mut dyn fmt::Write| {
            // A bar that cannot be drawn is no reason to end a run.
            let _ = write!(line, "{} op/s", units::count(state.per_sec() as u64));
        },
    ));
    bar.set_message(step.name());
    bar
}

/// A sign that something goes on, of which nobody knows how long it takes.
pub(crate) fn spinner(name: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(name);
    bar.enable_steady_tick(TICK);
    bar
}

/// The stalls that happened between two moments of one store.
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

    /// Only what happened in between counts, and a reason that was not there before counts whole.
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
