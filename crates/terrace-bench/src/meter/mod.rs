//! Counting and timing of operations: by their own thread, watched by the caller.
//!
//! `pace.rs` times the operations of one worker, `recorder.rs` counts their latencies, and this
//! file has the state shared by the workers of one workload. A worker reads the clock once an
//! operation: an operation's latency is the time since the worker's previous one ended. Other
//! threads read one cache line of each worker, and, if intervals are reported, a histogram handed
//! over at the end of each.
//!
//! Invariants
//!   T1  `running` falls by one for each worker on every path, so the watcher always ends.
//!   T2  An interval is taken when no shown worker can add to it any more, so it is complete,
//!       including operations of a worker that returned from the store long after the interval's
//!       end.

mod pace;
mod recorder;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) use pace::{Pace, Tally};

use crate::latency::Latency;

/// The state of one worker that others see.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Progress {
    /// Operations done.
    ops: AtomicU64,
    /// The current interval, all earlier ones being handed over; the highest number after the
    /// worker has ended.
    interval: AtomicUsize,
}

/// The state shared by the threads of one workload.
#[derive(Debug)]
pub(crate) struct Meter {
    progress: Vec<Progress>,
    /// The number of workers, the first ones, whose progress is shown.
    shown: usize,
    stop: AtomicBool,
    running: Mutex<usize>,
    ended: Condvar,
    interval: Option<Duration>,
    intervals: Mutex<Intervals>,
}

/// The operations of one interval.
#[derive(Debug, Default)]
pub(crate) struct Interval {
    /// Operations that ended in it.
    pub(crate) ops: u64,
    /// Their latencies, one for a batch; `None` if no operation ended.
    pub(crate) latency: Option<Latency>,
}

/// Intervals that were handed over and not yet taken.
#[derive(Debug, Default)]
struct Intervals {
    taken: usize,
    /// Intervals in which operations ended, by number. Others take no memory: a stall may span a
    /// great many.
    left: BTreeMap<usize, Interval>,
}

impl Meter {
    /// Returns a meter of `shown` workers whose progress is shown and of `others`.
    pub(crate) fn new(shown: usize, others: usize, interval: Option<Duration>) -> Meter {
        let threads = shown + others;
        Meter {
            shown,
            progress: (0..threads).map(|_| Progress::default()).collect(),
            stop: AtomicBool::new(false),
            running: Mutex::new(threads),
            ended: Condvar::new(),
            interval,
            intervals: Mutex::default(),
        }
    }

    /// Asks every worker to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn shown(&self) -> impl Iterator<Item = &Progress> {
        self.progress.iter().take(self.shown)
    }

    /// Returns the operations done by the shown workers.
    pub(crate) fn done(&self) -> u64 {
        self.shown()
            .map(|progress| progress.ops.load(Ordering::Relaxed))
            .sum()
    }

    /// Waits until every worker has ended, at most for `timeout`; returns whether all have ended.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .ended
            .wait_timeout_while(running, timeout, |running| *running > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    /// Takes the next interval if it is complete; returns `None` if a worker may still add to it,
    /// and after the last one with operations.
    pub(crate) fn take_interval(&self) -> Option<Interval> {
        let reached = self.shown().map(|p| p.interval.load(Ordering::Acquire));
        let reached = reached.min().unwrap_or(ENDED);
        let mut intervals = self.intervals();
        let is_there = match reached {
            ENDED => !intervals.left.is_empty(),
            reached => intervals.taken < reached,
        };
        if !is_there {
            return None;
        }
        let index = intervals.taken;
        intervals.taken += 1;
        // An interval without an entry had no operation that ended in it.
        Some(intervals.left.remove(&index).unwrap_or_default())
    }

    fn intervals(&self) -> MutexGuard<'_, Intervals> {
        // LOCK: workers hold it once an interval, while they add a histogram.
        self.intervals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the operations of one worker to the interval number `index`.
    fn hand_over(&self, index: usize, ops: u64, latency: &Latency) {
        let mut intervals = self.intervals();
        let interval = intervals.left.entry(index).or_default();
        interval.ops += ops;
        interval
            .latency
            .get_or_insert_with(Latency::default)
            .merge(latency);
    }

    /// Records that worker number `thread` adds to no interval before number `index`.
    fn reach(&self, thread: usize, index: usize) {
        self.progress[thread]
            .interval
            .store(index, Ordering::Release);
    }

    fn leave(&self, thread: usize) {
        self.reach(thread, ENDED);
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running -= 1;
        if *running == 0 {
            self.ended.notify_all();
        }
    }
}

/// The interval of a worker that has ended.
const ENDED: usize = usize::MAX;
