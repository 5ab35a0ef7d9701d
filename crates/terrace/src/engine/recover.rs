//! Recovery: replays logs into the front, several at a time, and moves data down if the pool cannot
//! hold all of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use crate::error::Result;
use crate::options::Workers;
use crate::stages::{Replay, ReplaySealed, ReplaySize, ReplayStart, ReplayTask, ReplayedLog};

use super::Engine;

/// What opening a database found and did.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Whether the database did not exist and was created.
    pub created: bool,
    /// Whether the last close was clean.
    pub clean: bool,
    /// Logs that were replayed.
    pub logs_replayed: u64,
    /// Records in these logs.
    pub records_replayed: u64,
    /// Entries in these records.
    pub entries_replayed: u64,
    /// Whole records after a broken one at the end of a log, which are not replayed. After a crash
    /// these are at most the writes that were in flight, and after a power loss also writes that
    /// were not durable. Any others mean that the log is damaged: close the database, and let
    /// [`DbBuilder::repair_of`](crate::DbBuilder::repair_of) read a copy from before this opening.
    pub records_stranded: u64,
    /// Batches of link changes that were completed.
    pub redo_slots_applied: u64,
    /// Merges that resume where they were interrupted.
    pub merges_resumed: u64,
    /// Tables whose links were rebuilt from their nodes.
    pub tables_rebuilt: u64,
    /// How long opening took.
    pub elapsed: Duration,
}

impl std::fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.created {
            return write!(f, "created in {:.1?}", self.elapsed);
        }
        let how = if self.clean {
            "a clean close"
        } else {
            "a crash"
        };
        write!(f, "opened after {how} in {:.1?}", self.elapsed)?;
        let counts = [
            (self.logs_replayed, "logs replayed"),
            (self.entries_replayed, "entries recovered"),
            (self.records_stranded, "records after a broken one left out"),
            (self.redo_slots_applied, "batches of links completed"),
            (self.merges_resumed, "merges resumed"),
            (self.tables_rebuilt, "tables rebuilt"),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {what}")?;
        }
        Ok(())
    }
}

/// BOUND: the maximum number of logs replayed at a time.
const REPLAYS_MAX: usize = 8;
/// Bytes between two reports of progress.
const REPORT_BYTES: u64 = 4 << 20;

impl Engine {
    /// Replays every log that the front has found. `progress` gets the bytes replayed, and the
    /// total bytes.
    pub(crate) fn replay_logs(
        self: &Arc<Self>,
        report: &mut RecoveryReport,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<()> {
        if let Some(replay) = self.stages.front.replay() {
            self.replay_each(replay, report, progress)?;
        }
        self.install_view();
        Ok(())
    }

    fn replay_each(
        self: &Arc<Self>,
        replay: &dyn Replay,
        report: &mut RecoveryReport,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<()> {
        let (count, total) = replay.logs_left();
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let at_once = match self.jobs.workers() {
            // Callers that run steps by hand want the same order each time.
            Workers::Manual => 1,
            Workers::Auto | Workers::Threads(_) => {
                let replays_max = self.shared.memory.limits.replays.min(REPLAYS_MAX);
                cores.min(replays_max)
            }
        };
        let told = AtomicU64::new(0);
        let read = AtomicU64::new(0);
        let tell = |bytes: u64| {
            let done = read.fetch_add(bytes, Ordering::Relaxed) + bytes;
            let last = told.load(Ordering::Relaxed);
            let due = done >= last + REPORT_BYTES;
            let relaxed = Ordering::Relaxed;
            if due && told.compare_exchange(last, done, relaxed, relaxed).is_ok() {
                progress(done.min(total), total);
            }
        };
        let ended: Result<()> = std::thread::scope(|scope| {
            // Oldest first: logs are admitted in this order, whichever ends first.
            let mut running = VecDeque::new();
            // Whether the oldest log becomes several memtables. The next ones would be read once
            // for each of them, only to be undone.
            let mut in_parts = false;
            // BOUND: every turn begins a log, ends one, or is the last; a log is undone once, when
            // it is found to need a memtable of its own size, or along with one that does.
            loop {
                let most = if in_parts { 1 } else { at_once };
                while running.len() < most {
                    match self.begin_replay(replay, running.is_empty())? {
                        Some(task) if at_once == 1 => {
                            if let Some(small) = self.take_replayed(task(&tell)?, report)? {
                                small.undo()?;
                            }
                        }
                        Some(task) => running.push_back(scope.spawn(|| task(&tell))),
                        None => break,
                    }
                }
                let Some(oldest) = running.pop_front() else {
                    return Ok(());
                };
                let Some(small) = self.take_replayed(join(oldest)?, report)? else {
                    in_parts = false;
                    continue;
                };
                in_parts = true;
                // It needs room that later logs may hold: they are undone newest first, so that it
                // comes next again.
                while let Some(newest) = running.pop_back() {
                    join(newest)?.undo()?;
                }
                small.undo()?;
            }
        });
        ended?;
        if count > 0 {
            progress(total, total);
        }
        Ok(())
    }

    /// Returns the replay of the next log; `None` if there is none, or if there is no room for it
    /// before one of the running replays has been moved down. With `alone` no replay is running.
    ///
    /// A pool must have room for the logs of its contents, whatever the options. The contents of
    /// all logs up to any one of them were in the pool at one time, with the reserve on top. So
    /// once all of it is in the bottom, whose extents take about as much as memtables, there is
    /// room for it and for the next log, in memtables as large as its entries. Therefore replay
    /// gives up only after everything that can move has moved; a log that is alone takes no more
    /// than it needs if there is no more, piece by piece if free space is in pieces; and neither
    /// concurrent replays nor the filters of flushes take the reserve, so that data can still move.
    /// Not promised: that a pool full of live values so large that few fit an extent is packed as
    /// densely in the bottom as it was in memtables.
    fn begin_replay(
        self: &Arc<Self>,
        replay: &dyn Replay,
        alone: bool,
    ) -> Result<Option<ReplayTask>> {
        if !alone && !self.headroom().allows(self.stages.spare_bytes(None)) {
            return Ok(None);
        }
        let mut size = ReplaySize::Usual;
        // BOUND: each turn asks for less, ends a job or flushes a memtable, and nothing is added
        // meanwhile.
        loop {
            match (replay.begin(size)?, size) {
                (ReplayStart::Task(task), _) => return Ok(Some(task)),
                (ReplayStart::Done, _) => return Ok(None),
                (ReplayStart::Full(_), _) if !alone => return Ok(None),
                (ReplayStart::Full(_), ReplaySize::Usual) => size = ReplaySize::Exact,
                (ReplayStart::Full(_), ReplaySize::Exact) if self.make_room_for_replay()? => {}
                (ReplayStart::Full(_), ReplaySize::Exact) => size = ReplaySize::Part,
                (ReplayStart::Full(why), ReplaySize::Part) => {
                    return Err(self.disk_full().unwrap_or(why));
                }
            }
        }
    }

    /// Seals what was replayed, and moves data down if the pool is short of space. Returns a log
    /// that was too large for its memtable.
    fn take_replayed(
        self: &Arc<Self>,
        log: Box<dyn ReplayedLog>,
        report: &mut RecoveryReport,
    ) -> Result<Option<Box<dyn ReplayedLog>>> {
        let replayed = match log.seal()? {
            ReplaySealed::All(replayed) => replayed,
            ReplaySealed::Unfinished(rest) => return Ok(Some(rest)),
        };
        if replayed.records > 0 {
            report.logs_replayed += 1;
        }
        report.records_replayed += replayed.records;
        report.entries_replayed += replayed.entries;
        report.records_stranded += replayed.stranded;
        // If the pool outlives the process, all of them were in it when the database was last open.
        if !self.shared.pool_outlives() {
            // BOUND: each turn ends a job or flushes a memtable, and nothing is added meanwhile.
            while self.headroom().pool_is_short() && self.make_room_for_replay()? {}
        }
        Ok(None)
    }

    /// Takes one action that may free space, before any worker runs. Returns false if nothing is
    /// left to do.
    fn make_room_for_replay(self: &Arc<Self>) -> Result<bool> {
        // Each flush takes a filter. The filters of many flushes would take all the space that
        // drains need, so flushing without a reserve is the last resort.
        while self.headroom().has_reserve() && self.flush_replayed()? {}
        // The caller has found too little space, if only in one piece.
        self.jobs.want_drained(true);
        let job = self.take_inline();
        self.jobs.want_drained(false);
        match job? {
            Some(job) => self.run_inline(job).map(|()| true),
            None => self.flush_replayed(),
        }
    }

    /// Flushes the oldest replayed memtable. Returns false if there is none.
    fn flush_replayed(self: &Arc<Self>) -> Result<bool> {
        let Some(sealed) = self.stages.front.next_sealed()? else {
            return Ok(false);
        };
        let job = self.stages.flush_job(&self.shared, sealed)?;
        self.run_inline(job)?;
        Ok(true)
    }
}

/// Waits for a replay on another thread.
fn join(
    replay: ScopedJoinHandle<'_, Result<Box<dyn ReplayedLog>>>,
) -> Result<Box<dyn ReplayedLog>> {
    match replay.join() {
        Ok(ended) => ended,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
