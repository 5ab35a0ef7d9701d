//! Timing the operations of one worker: one reading of the clock for each.

use std::time::Duration;

use terrace_media::Stopwatch;

use super::recorder::Recorder;
use super::{Meter, Progress};
use crate::latency::Latency;
use crate::schedule::{Schedule, wait_until};

/// The results of one worker.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Operations; each entry of a batch counts.
    pub(crate) ops: u64,
    /// Key and value bytes that they wrote or read.
    pub(crate) bytes: u64,
    /// Key and value bytes that they wrote.
    pub(crate) written_bytes: u64,
    /// Reads that found a value.
    pub(crate) found: u64,
    /// Values compared with what was written.
    pub(crate) checked: u64,
    /// Latencies of all operations, including those of `kinds`.
    pub(crate) latency: Latency,
    /// Operations by kind, if a workload has several.
    pub(crate) kinds: Vec<KindTally>,
    pub(crate) elapsed: Duration,
    /// The delay from the scheduled start of the last operation to its end; `None` in a closed
    /// loop.
    pub(crate) behind: Option<Duration>,
}

/// The results of one worker for one kind of operation.
#[derive(Debug)]
pub(crate) struct KindTally {
    pub(crate) name: &'static str,
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    pub(crate) latency: Latency,
}

/// Times the operations of one worker. Dropping it ends the worker.
#[derive(Debug)]
pub(crate) struct Pace<'a> {
    meter: &'a Meter,
    progress: &'a Progress,
    thread: usize,
    /// Zero is the start of the measurement; all times of a pace are in its nanoseconds.
    watch: Stopwatch,
    /// The end of the last operation, or the scheduled start of the current one.
    last: u64,
    ops: u64,
    /// Counts that are not by kind.
    tally: Tally,
    /// Operations by kind, as named by `tally.kinds`, or all in one.
    kinds: Vec<Kind>,
    /// The end of the worker's interval; never reached if none are reported.
    interval_end: u64,
    current: Option<Current>,
    /// The scheduled starts; `None` in a closed loop.
    schedule: Option<Schedule>,
}

/// Operations of one kind.
#[derive(Debug)]
struct Kind {
    ops: u64,
    bytes: u64,
    /// Their latencies since the last hand-over, and before it.
    recent: Recorder,
    latency: Latency,
}

impl Kind {
    fn new() -> Kind {
        Kind {
            ops: 0,
            bytes: 0,
            recent: Recorder::new(),
            latency: Latency::default(),
        }
    }
}

/// The interval of a worker.
#[derive(Debug)]
struct Current {
    index: usize,
    span_ns: u64,
    /// Operations that were done before it.
    ops_before: u64,
    /// Latencies of its operations, during the hand-over.
    latency: Latency,
}

impl<'a> Pace<'a> {
    /// Returns a pace that starts now, for worker number `thread`.
    pub(crate) fn new(meter: &'a Meter, thread: usize) -> Pace<'a> {
        let span = meter.interval.filter(|_| thread < meter.shown);
        let current = span.map(|span| Current {
            index: 0,
            span_ns: u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).max(1),
            ops_before: 0,
            latency: Latency::default(),
        });
        Pace {
            meter,
            progress: &meter.progress[thread],
            thread,
            last: 0,
            ops: 0,
            tally: Tally::default(),
            kinds: vec![Kind::new()],
            interval_end: current.as_ref().map_or(u64::MAX, |c| c.span_ns),
            current,
            schedule: None,
            watch: Stopwatch::start(),
        }
    }

    /// Starts operations by `schedule` from now on.
    pub(crate) fn follow(&mut self, schedule: Schedule) {
        self.schedule = Some(schedule);
    }

    /// Counts operations of these kinds separately.
    pub(crate) fn kinds(&mut self, names: &[&'static str]) {
        self.kinds = names.iter().map(|_| Kind::new()).collect();
        let kinds = names.iter().map(|name| KindTally {
            name,
            ops: 0,
            bytes: 0,
            latency: Latency::default(),
        });
        self.tally.kinds = kinds.collect();
    }

    /// Begins an operation of `ops` entries. In an open loop, waits for its scheduled start, from
    /// which its latency counts.
    #[inline]
    pub(crate) fn begin(&mut self, ops: u64) {
        if self.schedule.is_some() {
            self.wait_for_turn(ops);
        }
    }

    fn wait_for_turn(&mut self, ops: u64) {
        if let Some(schedule) = &mut self.schedule {
            let turn = schedule.next(ops);
            wait_until(turn, &self.watch, || self.meter.is_stopped());
            self.last = turn;
        }
    }

    /// Ends an operation of `ops` entries and `bytes` bytes.
    #[inline]
    pub(crate) fn finished(&mut self, ops: u64, bytes: u64) {
        self.finished_as(0, ops, bytes);
    }

    /// Ends an operation of the kind at index `kind` of [`Pace::kinds`]; otherwise as
    /// [`Pace::finished`].
    #[inline]
    pub(crate) fn finished_as(&mut self, kind: usize, ops: u64, bytes: u64) {
        let now = self.watch.now();
        let ns = now.saturating_sub(self.last);
        self.last = now;
        if now >= self.interval_end {
            self.next_interval(now);
        }
        let kind = &mut self.kinds[kind];
        kind.ops += ops;
        kind.bytes += bytes;
        kind.recent.record(ns);
        self.ops += ops;
        self.progress
            .ops
            .store(self.ops, std::sync::atomic::Ordering::Relaxed);
    }

    /// Ends the current interval and begins the one that contains `now`.
    #[cold]
    fn next_interval(&mut self, now: u64) {
        self.hand_over();
        if let Some(current) = &mut self.current {
            let spans = now / current.span_ns;
            current.index = spans as usize;
            current.ops_before = self.ops;
            self.interval_end = current.span_ns.saturating_mul(spans + 1);
            self.meter.reach(self.thread, current.index);
            // The hand-over is not part of the next operation.
            self.last = self.watch.now();
        }
    }

    /// Hands the operations since the last hand-over to the total and to the interval.
    fn hand_over(&mut self) {
        let mut interval = self.current.as_mut().map(|current| &mut current.latency);
        for kind in &mut self.kinds {
            kind.recent
                .hand_over(&mut kind.latency, interval.as_deref_mut());
        }
        if let Some(current) = &mut self.current {
            let ops = self.ops - current.ops_before;
            self.meter.hand_over(current.index, ops, &current.latency);
            current.latency.clear();
        }
    }

    /// Counts written key and value bytes.
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
        let now = self.watch.now();
        self.hand_over();
        let mut tally = std::mem::take(&mut self.tally);
        tally.elapsed = Duration::from_nanos(now);
        let turn = self.schedule.as_ref().map(Schedule::last);
        tally.behind = turn.map(|turn| Duration::from_nanos(now.saturating_sub(turn)));
        tally.ops = self.ops;
        for (at, kind) in self.kinds.drain(..).enumerate() {
            tally.bytes += kind.bytes;
            tally.latency.merge(&kind.latency);
            if let Some(named) = tally.kinds.get_mut(at) {
                (named.ops, named.bytes, named.latency) = (kind.ops, kind.bytes, kind.latency);
            }
        }
        tally
    }
}

impl Drop for Pace<'_> {
    fn drop(&mut self) {
        self.meter.leave(self.thread);
    }
}
