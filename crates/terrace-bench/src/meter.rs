//! This file is how operations are counted and timed: by their own thread, watched by the caller.
//!
//! A worker reads the clock once an operation, as db_bench does: an operation's latency is the time
//! since the worker's last one ended. What other threads read of it is one counter on a cache line
//! of its own, and, where intervals are reported, a histogram handed over at each boundary.
//!
//! Invariants
//!   T1  `running` falls by one for each worker, however it ends, so the watcher always ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::latency::Latency;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Done(AtomicU64);

/// What the threads of one workload share.
#[derive(Debug)]
pub(crate) struct Meter {
    done: Vec<Done>,
    /// How many workers, the first ones, are those whose work is shown while it goes on.
    shown: usize,
    stop: AtomicBool,
    running: Mutex<usize>,
    ended: Condvar,
    interval: Option<Duration>,
    intervals: Mutex<Vec<Latency>>,
}

impl Meter {
    /// A meter of `shown` workers whose progress is seen and of `others`.
    pub(crate) fn new(shown: usize, others: usize, interval: Option<Duration>) -> Meter {
        let threads = shown + others;
        Meter {
            shown,
            done: (0..threads).map(|_| Done::default()).collect(),
            stop: AtomicBool::new(false),
            running: Mutex::new(threads),
            ended: Condvar::new(),
            interval,
            intervals: Mutex::new(Vec::new()),
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

    /// Operations done by the workers that are shown.
    pub(crate) fn done(&self) -> u64 {
        self.done
            .iter()
            .take(self.shown)
            .map(|done| done.0.load(Ordering::Relaxed))
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

    /// The latencies of the operations that ended in interval number `index`.
    pub(crate) fn interval(&self, index: usize) -> Latency {
        let intervals = self
            .intervals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        intervals.get(index).cloned().unwrap_or_default()
    }

    /// How many intervals have had operations.
    pub(crate) fn interval_count(&self) -> usize {
        self.intervals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    fn hand_over(&self, index: usize, latency: &Latency) {
        let mut intervals = self
            .intervals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while intervals.len() <= index {
            intervals.push(Latency::default());
        }
        intervals[index].merge(latency);
    }

    fn leave(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running -= 1;
        if *running == 0 {
            self.ended.notify_all();
        }
    }
}

/// What one worker did.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Operations: entries of batches counted one by one.
    pub(crate) ops: u64,
    /// Key and value bytes that they wrote or read.
    pub(crate) bytes: u64,
    /// Key and value bytes that they wrote.
    pub(crate) written_bytes: u64,
    /// Reads that found a value.
    pub(crate) found: u64,
    /// Values compared with what was written.
    pub(crate) checked: u64,
    pub(crate) latency: Latency,
    pub(crate) elapsed: Duration,
}

/// Times the operations of one worker. Dropping it says that the worker has ended.
#[derive(Debug)]
pub(crate) struct Pace<'a> {
    meter: &'a Meter,
    thread: usize,
    start: Instant,
    last: Instant,
    tally: Tally,
    current: Option<Current>,
}

/// The interval that a worker is in.
#[derive(Debug)]
struct Current {
    index: usize,
    end: Instant,
    span: Duration,
    latency: Latency,
}

impl<'a> Pace<'a> {
    /// A pace that starts now, for worker number `thread`.
    pub(crate) fn new(meter: &'a Meter, thread: usize) -> Pace<'a> {
        let tally = Tally::default();
        let latency = Latency::default();
        let now = Instant::now();
        let shown = meter.interval.filter(|_| thread < meter.shown);
        let current = shown.map(|span| Current {
            index: 0,
            end: now + span,
            span,
            latency,
        });
        Pace {
            meter,
            thread,
            start: now,
            last: now,
            tally,
            current,
        }
    }

    /// Says that an operation of `ops` entries and `bytes` bytes has ended.
    #[inline]
    pub(crate) fn finished(&mut self, ops: u64, bytes: u64) {
        let now = Instant::now();
        let ns = (now - self.last).as_nanos() as u64;
        self.last = now;
        self.tally.ops += ops;
        self.tally.bytes += bytes;
        self.tally.latency.record(ns);
        self.meter.done[self.thread]
            .0
            .store(self.tally.ops, Ordering::Relaxed);
        if self.current.is_some() {
            self.finished_in_interval(now, ns, ops);
        }
    }

    fn finished_in_interval(&mut self, now: Instant, ns: u64, ops: u64) {
        let Some(current) = &mut self.current else {
            return;
        };
        if now >= current.end {
            self.meter.hand_over(current.index, &current.latency);
            current.latency.clear();
            let spans = (now - self.start).as_nanos() / current.span.as_nanos().max(1);
            current.index = spans as usize;
            current.end = self.start + current.span.saturating_mul(spans as u32 + 1);
            self.last = Instant::now();
        }
        // One latency stands for all entries of a batch, so that the interval counts entries.
        current.latency.record_many(ns, ops);
    }

    /// Says that key and value bytes were written.
    #[inline]
    pub(crate) fn wrote(&mut self, bytes: u64) {
        self.tally.written_bytes += bytes;
    }

    #[inline]
    pub(crate) fn found(&mut self) {
        self.tally.found += 1;
    }

    #[inline]
    pub(crate) fn checked(&mut self) {
        self.tally.checked += 1;
    }

    /// Ends the measurement.
    pub(crate) fn end(mut self) -> Tally {
        if let Some(current) = &self.current {
            self.meter.hand_over(current.index, &current.latency);
        }
        self.tally.elapsed = self.start.elapsed();
        std::mem::take(&mut self.tally)
    }
}

impl Drop for Pace<'_> {
    fn drop(&mut self) {
        self.meter.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation is counted once, in the whole and in its interval.
    #[test]
    fn operations_are_counted_once() {
        let meter = Meter::new(2, 0, Some(Duration::from_millis(1)));
        let tallies: Vec<Tally> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2)
                .map(|thread| {
                    let meter = &meter;
                    scope.spawn(move || {
                        let mut pace = Pace::new(meter, thread);
                        for _ in 0..10_000 {
                            pace.finished(3, 10);
                        }
                        pace.end()
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("no panic"))
                .collect()
        });
        assert!(meter.wait(Duration::ZERO));
        assert_eq!(meter.done(), 60_000);
        for tally in &tallies {
            assert_eq!((tally.ops, tally.bytes), (30_000, 100_000));
            assert_eq!(tally.latency.count(), 10_000);
        }
        let in_intervals: u64 = (0..meter.interval_count())
            .map(|i| meter.interval(i).count())
            .sum();
        assert_eq!(in_intervals, 60_000);
    }

    /// A worker that ends without a result does not leave the watcher waiting.
    #[test]
    fn a_lost_worker_ends_the_wait() {
        let meter = Meter::new(0, 1, None);
        drop(Pace::new(&meter, 0));
        assert!(meter.wait(Duration::ZERO));
    }
}
