//! This folder is how operations are counted and timed: by their own thread, watched by the caller.
//!
//! `pace.rs` times the operations of one worker, `recorder.rs` counts their latencies, and this file is
//! what the workers of one workload share. A worker reads the clock once an operation: an operation's
//! latency is the time since the worker's last one ended. What other threads read of it is one cache line
//! of its own, and, where intervals are reported, a histogram handed over at the end of each.
//!
//! Invariants
//!   T1  `running` falls by one for each worker, however it ends, so the watcher always ends.
//!   T2  An interval is taken when no worker that is shown can add to it any more, so it has all its
//!       operations, those of a worker included that came out of the store long after its end.

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

/// What others see of one worker.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Progress {
    /// Operations that it has done.
    ops: AtomicU64,
    /// The interval that it is in, having handed over all before; when it has ended, the highest number.
    interval: AtomicUsize,
}

/// What the threads of one workload share.
#[derive(Debug)]
pub(crate) struct Meter {
    progress: Vec<Progress>,
    /// How many workers, the first ones, are those whose work is shown while it goes on.
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
    /// How many ended in it.
    pub(crate) ops: u64,
    /// Their latencies, of a batch one; `None` where there were none.
    pub(crate) latency: Option<Latency>,
}

/// Intervals that were handed over and not taken.
#[derive(Debug, Default)]
struct Intervals {
    taken: usize,
    /// By number. Only those in which operations ended: a store may stand still for very many of them.
    left: BTreeMap<usize, Interval>,
}

impl Meter {
    /// A meter of `shown` workers whose progress is seen and of `others`.
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

    /// Operations done by the workers that are shown.
    pub(crate) fn done(&self) -> u64 {
        self.shown()
            .map(|progress| progress.ops.load(Ordering::Relaxed))
            .sum()
    }

    /// Waits until every worker has ended, or for `timeout`; whether all have ended.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .ended
            .wait_timeout_while(running, timeout, |running| *running > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    /// The next interval, if no worker will add to it any more; `None` while one may, and after the last
    /// one in which there were operations.
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
        // Nobody has handed over what is not there: no operation ended in it.
        Some(intervals.left.remove(&index).unwrap_or_default())
    }

    fn intervals(&self) -> MutexGuard<'_, Intervals> {
        // LOCK: workers hold it once an interval, for the time that adding a histogram takes.
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

    /// Says that worker number `thread` adds to no interval before number `index`.
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
