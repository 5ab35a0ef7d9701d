//! Recovery: replays logs into the front, several at a time, and moves data on where the pool cannot
//! hold all of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::options::Workers;
use crate::stages::{ReplayEnded, ReplayStart, ReplayTask};

use super::Engine;

/// What opening a database found and did.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The database did not exist and was created.
    pub created: bool,
    /// It had been closed in order.
    pub clean: bool,
    /// Logs that were replayed.
    pub logs_replayed: u64,
    /// Records in them.
    pub records_replayed: u64,
    /// Entries in those.
    pub entries_replayed: u64,
    /// Batches of link changes that were finished.
    pub redo_slots_applied: u64,
    /// Merges that go on where they were interrupted.
    pub merges_resumed: u64,
    /// Tables whose links were built anew from their nodes.
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
            (self.redo_slots_applied, "batches of links finished"),
            (self.merges_resumed, "merges resumed"),
            (self.tables_rebuilt, "tables rebuilt"),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {what}")?;
        }
        Ok(())
    }
}

/// BOUND: so many logs are replayed at one time.
const REPLAYS_MAX: usize = 8;
/// Bytes after which progress is told again.
const REPORT_BYTES: u64 = 4 << 20;

impl Engine {
    /// Replays every log that the front has found. `progress` gets bytes replayed, and bytes in all.
    pub(crate) fn replay_logs(
        self: &Arc<Self>,
        report: &mut RecoveryReport,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<()> {
        let (count, total) = self.pipeline.front.logs_found();
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let at_once = match self.jobs.workers() {
            // Whoever runs steps by hand wants the same order each time.
            Workers::Manual => 1,
            Workers::Auto | Workers::Threads(_) => {
                let replays_max = self.ground.memory.limits.replays.min(REPLAYS_MAX);
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
            // Oldest first: so they are admitted, whichever ends first.
            let mut running = VecDeque::new();
            // BOUND: every turn begins a log, ends one, or is the last.
            loop {
                while running.len() < at_once {
                    match self.begin_replay(running.is_empty())? {
                        Some(task) if at_once == 1 => {
                            let ended = task(&tell)?;
                            self.admit_replayed(ended, report)?;
                        }
                        Some(task) => running.push_back(scope.spawn(|| task(&tell))),
                        None => break,
                    }
                }
                let Some(oldest) = running.pop_front() else {
                    return Ok(());
                };
                let ended = match oldest.join() {
                    Ok(ended) => ended?,
                    Err(panic) => std::panic::resume_unwind(panic),
                };
                self.admit_replayed(ended, report)?;
            }
        });
        ended?;
        if count > 0 {
            progress(total, total);
        }
        self.install_view();
        Ok(())
    }

    /// What replays the next log; `None` when there is none, or when the pool has no room for it before
    /// one of those that are being replayed has been moved on. With `alone` there is none of these.
    fn begin_replay(self: &Arc<Self>, alone: bool) -> Result<Option<ReplayTask>> {
        let front = &self.pipeline.front;
        for last in [false, true] {
            match front.begin_replay()? {
                ReplayStart::Task(task) => return Ok(Some(task)),
                ReplayStart::Done => return Ok(None),
                ReplayStart::PoolFull if !alone => return Ok(None),
                ReplayStart::PoolFull if last => {}
                ReplayStart::PoolFull => self.make_room_for_replay()?,
            }
        }
        Err(self.disk_full().unwrap_or_else(|| {
            Error::new(
                ErrorKind::Full,
                "the pool has no room for what its logs have; reopen with a larger pool.size_bytes",
            )
        }))
    }

    /// Seals what was replayed, and moves data on when the pool is short of room.
    fn admit_replayed(
        self: &Arc<Self>,
        ended: ReplayEnded,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        let replayed = self.pipeline.front.end_replay(ended)?;
        if replayed.records > 0 {
            report.logs_replayed += 1;
        }
        report.records_replayed += replayed.records;
        report.entries_replayed += replayed.entries;
        // Where the pool outlives the process, all of them were in it when the database was last open.
        if !self.ground.pool_outlives() && self.headroom().pool_is_short() {
            self.make_room_for_replay()?;
        }
        Ok(())
    }

    /// Flushes the memtables replayed so far, and does the work that follows from it until the pool has
    /// room, before any worker runs.
    fn make_room_for_replay(self: &Arc<Self>) -> Result<()> {
        while let Some(sealed) = self.pipeline.front.next_sealed()? {
            let job = self.pipeline.admit(sealed)?;
            self.run_inline(job)?;
        }
        while self.headroom().pool_is_short()
            && let Some(job) = self.take_inline()?
        {
            self.run_inline(job)?;
        }
        Ok(())
    }
}
