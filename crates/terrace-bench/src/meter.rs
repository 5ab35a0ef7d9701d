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
use crate::schedule::{Schedule, wait_until};

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
    /// Of all operations, those of `kinds` included.
    pub(crate) latency: Latency,
    /// Operations by kind, where a workload has several.
    pub(crate) kinds: Vec<KindTally>,
    pub(crate) elapsed: Duration,
}

/// What one worker did of one kind of operation.
#[derive(Debug)]
pub(crate) struct KindTally {
    pub(crate) name: &'static str,
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    pub(crate) latency: Latency,
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
    /// When operations are meant to begin; `None` in a closed loop.
    schedule: Option<Schedule>,
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
            schedule: None,
        }
    }

    /// When the measurement began.
    pub(crate) fn begun(&self) -> Instant {
        self.start
    }

    /// From now on operations begin when `schedule` says.
    pub(crate) fn follow(&mut self, schedule: Schedule) {
        self.schedule = Some(schedule);
    }

    /// Tells operations of these kinds apart.
    pub(crate) fn kinds(&mut self, names: &[&'static str]) {
        let kinds = names.iter().map(|name| KindTally {
            name,
            ops: 0,
            bytes: 0,
            latency: Latency::default(),
        });
        self.tally.kinds = kinds.collect();
    }

    /// Says that an operation of `ops` entries is about to begin. In an open loop this waits for its
    /// turn, and its latency counts from there.
    #[inline]
    pub(crate) fn begin(&mut self, ops: u64) {
        if self.schedule.is_some() {
            self.wait_for_turn(ops);
        }
    }

    fn wait_for_turn(&mut self, ops: u64) {
        if let Some(schedule) = &mut self.schedule {
            let turn = schedule.next(ops);
            wait_until(turn, || self.meter.is_stopped());
            self.last = turn;
        }
    }

    /// Says that an operation of `ops` entries and `bytes` bytes has ended.
    #[inline]
    pub(crate) fn finished(&mut self, ops: u64, bytes: u64) {
        let (now, ns) = self.clock();
        self.tally.latency.record(ns);
        self.count(now, ns, ops, bytes);
    }

    /// As [`Pace::finished`], of the kind at place `kind` of [`Pace::kinds`].
    #[inline]
    pub(crate) fn finished_as(&mut self, kind: usize, ops: u64, bytes: u64) {
        let (now, ns) = self.clock();
        let tally = &mut self.tally.kinds[kind];
        tally.ops += ops;
        tally.bytes += bytes;
        tally.latency.record(ns);
        self.count(now, ns, ops, bytes);
    }

    /// Now, and the nanoseconds since the last operation ended or since this one's turn.
    #[inline]
    fn clock(&mut self) -> (Instant, u64) {
        let now = Instant::now();
        let ns = now.saturating_duration_since(self.last).as_nanos() as u64;
        self.last = now;
        (now, ns)
    }

    #[inline]
    fn count(&mut self, now: Instant, ns: u64, ops: u64, bytes: u64) {
        self.tally.ops += ops;
        self.tally.bytes += bytes;
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
        for kind in &self.tally.kinds {
            self.tally.latency.merge(&kind.latency);
        }
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

    /// Operations of several kinds are counted in their kind and once in the whole.
    #[test]
    fn kinds_add_up() {
        let meter = Meter::new(1, 0, None);
        let mut pace = Pace::new(&meter, 0);
        pace.kinds(&["read", "write"]);
        for i in 0..30 {
            pace.finished_as(usize::from(i % 3 == 0), 1, 5);
        }
        let tally = pace.end();
        assert_eq!(
            (tally.ops, tally.bytes, tally.latency.count()),
            (30, 150, 30)
        );
        let kinds = tally.kinds.iter().map(|kind| {
            assert_eq!(kind.latency.count(), kind.ops);
            (kind.name, kind.ops, kind.bytes)
        });
        assert_eq!(
            kinds.collect::<Vec<_>>(),
            [("read", 20, 100), ("write", 10, 50)]
        );
    }

    /// In an open loop an operation that begins too late has the time of its waiting in its latency, and
    /// none that is on time has.
    #[test]
    fn latencies_count_from_the_turn() {
        use crate::schedule::Arrivals;
        let meter = Meter::new(1, 0, None);
        let mut pace = Pace::new(&meter, 0);
        let (rate, begun) = (1000.0, pace.begun());
        pace.follow(Schedule::new(rate, Arrivals::Constant, 0, 1, begun, 1));
        for i in 0..100 {
            pace.begin(1);
            if i == 0 {
                // The store stands still, as long as the turns of fifty operations.
                std::thread::sleep(Duration::from_millis(50));
            }
            pace.finished(1, 0);
        }
        let tally = pace.end();
        // Operation i had its turn after i ms and could not end before 50: however slow the machine is,
        // at least 26 of them took 25 ms or more. A closed loop would have seen one.
        assert!(
            tally.latency.percentile_us(75.5) >= 24_900.0,
            "{:?}",
            tally.latency.chart()
        );
        assert!(tally.latency.max_us() >= 50_000.0);
        assert!(
            tally.elapsed >= Duration::from_millis(99),
            "{:?}",
            tally.elapsed
        );
    }

    /// A worker that ends without a result does not leave the watcher waiting.
    #[test]
    fn a_lost_worker_ends_the_wait() {
        let meter = Meter::new(0, 1, None);
        drop(Pace::new(&meter, 0));
        assert!(meter.wait(Duration::ZERO));
    }
}
