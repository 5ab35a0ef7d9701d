//! Admission: the one loop in which callers wait, and the rule for giving up.
//!
//! A caller attempts an operation. If it lacks a resource, the loop provides the resource or waits
//! for the work that does, and the caller tries again:
//!
//! | caller | needs | made by | wakes the caller | gives up when |
//! |---|---|---|---|---|
//! | a put, a batch | a memtable with room | the caller, or the flush thread ahead of need | the maker, when done | see below |
//! | the same, if the maximum number of memtables is sealed | the end of a flush | the flush thread | the end of the job | a disk has no space for flushes |
//! | the same, if logs are at their cap | a drain, which retires logs | a worker | the end of the job | a disk has no space for drains |
//! | the same, if the buffer has its maximum number of tables | a drain | a worker | the end of the job | a disk has no space for drains |
//! | the same, if readers hold the memory for memtables | memory | readers that release views | nothing | `patience` looks in a row at which no job runs or can run |
//! | the same, an ingest's table | space in the pool | any job that frees some; readers that release views | the end of the job; nothing, for readers | no job runs or can run, `patience` looks in a row; other writers take all that is freed |
//! | a flush, an ingest, a close | a fresh memtable, from the reserves if need be | as for a put | as for a put | as for a put |
//! | the same, a drain, a compaction of a range | jobs that lead to a state | workers | the end of each job | no job runs or can run; a disk has no space for jobs |
//!
//! Invariants
//!   A1  A caller makes what it needs, or begins the jobs that lead to it in the workers' place
//!       (`rests`). So no wait depends on a worker that has yet to look, and without workers
//!       callers run the jobs themselves, by the same rule.
//!   A2  Every wait is bounded by steps of the work that it waits for, and by no clock: looks at
//!       which no job runs or can run, refusals by a disk, or jobs that end without progress.
//!   A3  Callers wake workers, never one another, except when they have taken or made a memtable.
//!
//! Waits are timed as well, so a lost wake-up costs milliseconds.

use std::sync::Arc;
use std::time::Duration;

use crate::canary::{self, Canary};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::StallReason;
use crate::options::Workers;
use crate::parts::batch::Batch;
use crate::parts::memory::is_held_by_readers;
use crate::stages::{Deletes, Spare, SpareBytes, SpareSize, Urgency};
use crate::types::SeqNo;

use super::Engine;
use super::throttle::{Headroom, Lack};
use patience::{JOBS_MAX, LOOKS, LOOKS_JOBS, LOOKS_MANUAL, TURNOVER_MAX, Verdict, Wait};

mod patience;

pub(super) use patience::{Efforts, RELEASE, VainWaits};

/// How long a stopped caller sleeps before it looks again if nothing wakes it.
const WAIT: Duration = Duration::from_millis(20);
/// How long it sleeps the first time: a spare is usually ready in a moment.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// How long a caller waits between looks while no job runs or can run.
const STUCK: Duration = Duration::from_millis(5);
/// BOUND: how often other writers may take the memtable that a caller made for itself.
const SPARES_MAX: u32 = 1000;

/// A resource that a caller needs in order to continue.
pub(super) enum Need<'a> {
    /// A memtable with room for a batch.
    Memtable(&'a Batch),
    /// A fresh memtable, so that the previous one is flushed.
    Flush,
    /// A fresh memtable, for an ingest that takes numbers.
    Numbers,
    /// Space in the pool above the reserve.
    Pool,
    /// A state that jobs lead to.
    Jobs,
}

/// The next action for a caller that needs a memtable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    MakeSpare,
    AwaitFlush,
    AwaitLogs,
    AwaitSpace,
    AwaitTables,
}

/// The resources kept from puts that a caller may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Rights {
    /// The reserve of the pool.
    pool: bool,
    /// More log files than the cap.
    logs: bool,
    /// The reserve on the disk.
    disk: bool,
    /// One more sealed memtable.
    sealed: bool,
}

impl Rights {
    /// Returns the rights of a caller. `is_full`: a disk has no space for what background work has
    /// to write.
    fn of(need: &Need<'_>, is_full: bool) -> Rights {
        match need {
            // Deletes free space.
            Need::Memtable(batch) if batch.only_deletes() => Rights {
                pool: true,
                logs: is_full,
                disk: true,
                sealed: is_full,
            },
            Need::Memtable(_) | Need::Pool | Need::Jobs => Rights::default(),
            // Without a fresh memtable, the data in memory cannot move down.
            Need::Flush => Rights {
                pool: true,
                logs: true,
                disk: true,
                sealed: false,
            },
            Need::Numbers => Rights {
                pool: true,
                logs: true,
                ..Rights::default()
            },
        }
    }

    fn spare_size(self) -> SpareSize {
        match self.disk {
            true => SpareSize::UsualOrSmall,
            false => SpareSize::Usual,
        }
    }
}

/// Returns the next action.
fn next(sealed: usize, sealed_max: usize, lack: Option<Lack>, rights: Rights) -> Next {
    match lack {
        _ if sealed >= sealed_max + usize::from(rights.sealed) => Next::AwaitFlush,
        Some(Lack::Logs) if !rights.logs => Next::AwaitLogs,
        Some(Lack::Pool) if !rights.pool => Next::AwaitSpace,
        Some(Lack::Tables) if !rights.pool => Next::AwaitTables,
        _ => Next::MakeSpare,
    }
}

/// The event that a caller waits for.
enum Awaits {
    /// A spare that another thread makes.
    Spare,
    Flush,
    Logs,
    Space,
    /// The drain of tables of the buffer.
    Tables,
    /// Space for the file of a log, which was refused with this error.
    Disk(Error),
    Jobs,
}

impl Awaits {
    fn reason(&self) -> StallReason {
        match self {
            Awaits::Spare | Awaits::Flush | Awaits::Disk(_) | Awaits::Jobs => {
                StallReason::MemtablesSealed
            }
            Awaits::Logs => StallReason::LogCap,
            Awaits::Space => StallReason::PoolFull,
            Awaits::Tables => StallReason::TablesUndrained,
        }
    }

    /// Returns the runs of jobs without progress after which the caller gives up.
    fn turnover_max(&self) -> u64 {
        match self {
            Awaits::Space | Awaits::Tables => TURNOVER_MAX,
            _ => JOBS_MAX,
        }
    }
}

impl Engine {
    /// Repeats `attempt` until it succeeds, and provides what it needs in between.
    ///
    /// # Errors
    /// The errors of `attempt`; `Full` by the rule of this module; any error that ends all writing.
    pub(super) fn admit<T>(
        self: &Arc<Self>,
        need: &Need<'_>,
        attempt: &mut dyn FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let _call = self.enter()?;
        // A put is refused as soon as a full disk is known to stop background work. Deletes, and
        // callers that ask for that work, wait until each job was refused once more.
        let mut wait = match need {
            Need::Memtable(batch) if !batch.only_deletes() => Wait::of_put(),
            Need::Pool => Wait::of_put(),
            Need::Memtable(_) | Need::Flush | Need::Numbers | Need::Jobs => {
                Wait::for_work(self.refusals())
            }
        };
        let larger = match need {
            Need::Memtable(batch) => self.stages.larger_spare(batch),
            _ => None,
        };
        self.larger_needed.lock().extend(larger);
        let result = loop {
            if let Err(e) = self.check_writable() {
                break Err(e);
            }
            // Read before the look at free space, so that a release by a reader in between is not
            // missed: readers hold back extents and files with a view, and superseded entries with
            // a snapshot.
            let held = self.views.is_older_pinned() || self.shared.snapshots.count() > 0;
            match attempt() {
                Ok(Some(done)) => break Ok(done),
                Ok(None) => {}
                Err(e) => break Err(e),
            }
            let provided = self.provide(need, held, &mut wait);
            wait.is_first = false;
            if let Err(e) = provided {
                break Err(e);
            }
        };
        if let Some(larger) = larger {
            let mut needed = self.larger_needed.lock();
            if let Some(at) = needed.iter().position(|it| *it == larger) {
                needed.swap_remove(at);
            }
        }
        if let (Need::Memtable(_) | Need::Pool, Some(reason)) = (need, wait.stalled) {
            self.shared.count_stall(reason, wait.started.elapsed());
        }
        if let Need::Memtable(_) | Need::Flush | Need::Numbers = need {
            // Others may wait for the same memtable, and the sealed one is to be flushed.
            self.jobs.wake_all();
        }
        result
    }

    /// Returns whether a caller needs a memtable of more than the usual size. Spares made ahead of
    /// need would be too small: the caller would free each, and the jobs that make them would count
    /// as progress.
    pub(super) fn is_larger_needed(&self) -> bool {
        !self.larger_needed.lock().is_empty()
    }

    /// Returns the bytes of the largest memtable that a caller needs, at least those of the usual
    /// size.
    pub(super) fn largest_needed(&self) -> SpareBytes {
        let usual = self.stages.spare_bytes(None);
        let needed = self.larger_needed.lock();
        needed.iter().copied().fold(usual, SpareBytes::max)
    }

    /// Provides what is needed, or waits for the work that does.
    fn provide(self: &Arc<Self>, need: &Need<'_>, held: bool, wait: &mut Wait) -> Result<()> {
        let batch = match need {
            Need::Memtable(batch) => Some(*batch),
            Need::Flush | Need::Numbers => None,
            Need::Pool => return self.wait(Awaits::Space, held, wait),
            Need::Jobs => return self.wait(Awaits::Jobs, held, wait),
        };
        let rights = Rights::of(need, self.disk_full().is_some());
        let sealed = self.stages.front.sealed_count();
        let sealed_max = self.shape.sealed_count_max;
        let lack = self.spare_lacks(&self.headroom(), self.stages.spare_bytes(batch));
        let awaits = match next(sealed, sealed_max, lack, rights) {
            Next::AwaitFlush => Awaits::Flush,
            Next::AwaitLogs => Awaits::Logs,
            Next::AwaitSpace => Awaits::Space,
            Next::AwaitTables => Awaits::Tables,
            Next::MakeSpare if canary::breaks(Canary::SpareUnmade) => Awaits::Space,
            // Workers make spares of the usual size ahead of need. A spare that is needed now is
            // made here.
            Next::MakeSpare => match self.prepare_spare(batch, rights.spare_size())? {
                Spare::Ready => {
                    wait.spares += 1;
                    return match wait.spares > SPARES_MAX {
                        true => Err(self.starved_error()),
                        false => Ok(()),
                    };
                }
                Spare::Underway => Awaits::Spare,
                Spare::PoolFull if rights.pool && sealed > 0 => Awaits::Flush,
                Spare::PoolFull => Awaits::Space,
                Spare::DiskFull(why) => Awaits::Disk(why),
            },
        };
        self.wait(awaits, held, wait)
    }

    /// Waits for background work, or decides that it cannot make progress.
    fn wait(self: &Arc<Self>, awaits: Awaits, held: bool, wait: &mut Wait) -> Result<()> {
        wait.stalled = Some(awaits.reason());
        if self.views.is_older_pinned() {
            self.held.take_back();
        }
        let is_tight = self.shared.reserve.is_tight();
        // Puts on the reserve have to give back as much as they take from it.
        if is_tight
            && self.stages.buffer.is_none()
            && wait.drains.is_none()
            && (!wait.is_of_put || self.stages.front.has_mostly_deletes())
        {
            wait.drains = Some(self.shared.reserve.want_drains());
        }
        let is_manual = self.jobs.workers() == Workers::Manual;
        if wait.is_first {
            // The device of a pool may have free space again.
            if matches!(awaits, Awaits::Space) && self.shared.pool.look_for_room() {
                return Ok(());
            }
            // Without threads, jobs stopped by a full disk try again once per call.
            self.look_for_room();
        }
        // Unflushed deletes may cover most of the pool or of the disk.
        let frees_by_deletes = match awaits {
            Awaits::Space | Awaits::Tables => true,
            // Instead of an empty memtable, each put would take another log from the reserve.
            Awaits::Disk(_) => self.stages.front.has_active_before(SeqNo::MAX),
            Awaits::Flush => is_tight && self.stages.bottom.is_outside_pool(),
            _ => false,
        };
        let is_held = matches!(&awaits, Awaits::Disk(why) if is_held_by_readers(why));
        // Without threads, jobs have tried when none can take a step. A thread that makes a spare
        // may be refused what this caller is entitled to, and ends in a moment.
        if !is_manual
            && !matches!(awaits, Awaits::Spare)
            && let Some(why) = self.await_refusal(wait.refusals)
        {
            if frees_by_deletes && self.flush_deletes(&awaits, wait)?
                || self.move_for_room(&awaits, wait)?
            {
                return Ok(());
            }
            return Err(why);
        }
        if is_tight && wait.is_of_put {
            let (efforts, why) = self.jobs.efforts(self.shared.reserve.room());
            if let Some(why) = why.filter(|_| wait.is_in_vain(efforts)) {
                match frees_by_deletes && self.flush_deletes(&awaits, wait)? {
                    true => return Ok(()),
                    false => return Err(why),
                }
            }
        }
        // The caller that makes the spare is working although no job runs.
        let stuck = !self.goes_on(matches!(awaits, Awaits::Space | Awaits::Tables))?
            && !matches!(awaits, Awaits::Spare);
        let turnover = self.jobs.turnover();
        let mut for_readers = false;
        let patience = match held || is_held {
            _ if is_manual => LOOKS_MANUAL,
            _ if matches!(awaits, Awaits::Jobs) => LOOKS_JOBS,
            true => {
                for_readers = true;
                self.vain_waits.lock().patience(turnover)
            }
            false => LOOKS,
        };
        let left = match awaits {
            Awaits::Space | Awaits::Tables => self.shared.pool.usage().allocated,
            _ => 0,
        };
        let seen = (left, turnover);
        let turnover_max = match is_tight {
            // On a full disk many jobs free disk space before one frees space in the pool.
            true => awaits.turnover_max().max(wait.turnover_max),
            false => awaits.turnover_max(),
        };
        let verdict = wait.judge(stuck, seen, patience, turnover_max);
        if verdict == Verdict::Stuck && for_readers {
            self.vain_waits.lock().count(turnover);
        }
        match verdict {
            Verdict::Work | Verdict::Look if is_manual => {}
            Verdict::Work => self.jobs.wait_changed(match wait.is_first {
                true => FIRST_WAIT,
                false => WAIT,
            }),
            // There is nothing to notify this thread: no job runs, and readers release views
            // silently.
            Verdict::Look => std::thread::sleep(STUCK),
            Verdict::Stuck if frees_by_deletes && self.flush_deletes(&awaits, wait)? => {}
            Verdict::Stuck if self.move_for_room(&awaits, wait)? => {}
            Verdict::Stuck => return Err(self.stuck_error(awaits)),
            Verdict::Starved => return Err(self.starved_error()),
        }
        Ok(())
    }

    /// Seals the active memtable if it contains deletes that free what the caller waits for. They
    /// free it once they are flushed or drained, and in a full pool or on a full disk no writer
    /// would fill the memtable. Returns false if it contains no such deletes, or if there is no
    /// memtable to replace it.
    fn flush_deletes(self: &Arc<Self>, awaits: &Awaits, wait: &mut Wait) -> Result<bool> {
        let front = &self.stages.front;
        let (least, size) = match awaits {
            // A put that finds no space must not fill the memtable of another caller, which is on
            // the reserve.
            Awaits::Space | Awaits::Flush | Awaits::Tables
                if !self.stages.bottom.is_outside_pool() || self.shared.reserve.is_tight() =>
            {
                (Deletes::Single, SpareSize::Small)
            }
            _ => (Deletes::Ranges, SpareSize::UsualOrSmall),
        };
        // BOUND: each memtable is sealed once, and a caller does this once.
        if std::mem::replace(&mut wait.has_flushed, true)
            || front.active_deletes() < least
            || !matches!(self.prepare_spare(None, size)?, Spare::Ready)
        {
            return Ok(false);
        }
        wait.looks = 0;
        // Jobs that a disk has refused may find space after these deletes.
        wait.refusals = self.refusals();
        wait.progress = None;
        let sealed = self.rotate(None)?;
        self.jobs.wake_all();
        Ok(sealed)
    }

    /// Moves data down if the disk has no space for another log, or for what would leave the pool,
    /// although nothing else asks for that. A drain retires logs, and logs of deletes are small,
    /// far below the cap of logs; a drain that is refused may rewrite a table without its deleted
    /// entries. Without a drain, level 0 is compacted even if it has few tables, since their
    /// deletes may cover most of the disk. Returns false if no job can begin, or if no job has
    /// completed an edit since the caller's last turn.
    fn move_for_room(self: &Arc<Self>, awaits: &Awaits, wait: &mut Wait) -> Result<bool> {
        let for_disk = match awaits {
            Awaits::Disk(_) => true,
            Awaits::Space | Awaits::Flush | Awaits::Tables => {
                self.stages.bottom.is_outside_pool() && self.shared.reserve.is_tight()
            }
            _ => false,
        };
        if !for_disk || !wait.may_move(self.jobs.edits()) {
            return Ok(false);
        }
        wait.looks = 0;
        Ok(self.begin_for(Urgency::Space)? || self.begin_for(Urgency::Everything)?)
    }

    /// Advances jobs: runs a step of one, or makes sure that workers have begun all that may run.
    /// Returns false if no job runs or can run. `for_space`: begins a job that frees space even if
    /// others are not short of it.
    pub(super) fn goes_on(self: &Arc<Self>, for_space: bool) -> Result<bool> {
        let is_manual = self.jobs.workers() == Workers::Manual;
        let rests = match is_manual {
            true => !self.step(0)?,
            false => self.rests()?,
        };
        if !rests {
            return Ok(true);
        }
        // Jobs that a disk has refused try again after their wait.
        let retries = !is_manual && self.disk_full().is_some();
        Ok(retries || for_space && self.begin_for(Urgency::Space)?)
    }

    /// Returns the error of a caller that gives up since nothing runs or can run.
    fn stuck_error(&self, awaits: Awaits) -> Error {
        match (self.disk_full(), awaits) {
            (_, Awaits::Disk(why)) | (Some(why), _) => why,
            (None, Awaits::Logs) => Error::new(
                ErrorKind::Full,
                "the logs have reached front.log_bytes_max, and no data can be drained; reopen \
                 with a larger front.log_bytes_max",
            ),
            (None, Awaits::Jobs) => Error::new(
                ErrorKind::Full,
                "background work cannot continue, because the pool is full; delete data, or reopen \
                 with a larger --pool-size (pool.size_bytes)",
            ),
            (None, Awaits::Tables) => Error::new(
                ErrorKind::Full,
                "there are as many tables as permitted, and none can be drained; reopen with a \
                 larger buffer.tables.count_max",
            ),
            (None, Awaits::Spare | Awaits::Flush | Awaits::Space) => self.full_error(),
        }
    }

    /// Returns the error of a call if nothing can free space.
    pub(super) fn full_error(&self) -> Error {
        self.no_space("the rest is reserved for background work; delete data")
    }

    /// Returns the error of a caller that gives up since other writers take what is freed.
    fn starved_error(&self) -> Error {
        self.no_space("other writers use the freed space; retry when they write less")
    }

    fn no_space(&self, why: &str) -> Error {
        let usage = self.shared.pool.usage();
        let (what, way) = match usage.is_device_full() {
            true => ("the pool's device", "free space on it"),
            false => (
                "the pool",
                "reopen with a larger --pool-size (pool.size_bytes)",
            ),
        };
        Error::new(
            ErrorKind::Full,
            format!(
                "{what} is full: {} of {} bytes are in use and {why}, or {way}",
                usage.allocated, usage.limit
            ),
        )
    }

    /// Makes a spare of this size.
    pub(crate) fn prepare_spare(&self, batch: Option<&Batch>, size: SpareSize) -> Result<Spare> {
        let Some(spares) = self.stages.front.spares() else {
            // `rotate` of such a front has found no space, or there would be no need.
            return Ok(Spare::PoolFull);
        };
        let spare = spares.prepare(batch, size);
        spare.inspect_err(|e| self.fail(e))
    }

    /// Returns what is lacking for a spare of these `bytes` that a put needs.
    pub(super) fn spare_lacks(&self, headroom: &Headroom, bytes: SpareBytes) -> Option<Lack> {
        // A log of the active memtable is retired only after the next memtable is installed. That
        // memtable is admitted, and its log may exceed the cap, if there is nothing else to drain.
        let buffer = self.stages.buffer.as_ref();
        let drainable = || {
            self.stages.front.sealed_count() > 0
                || buffer.is_some_and(|buffer| buffer.table_count() > 0)
        };
        if !headroom.allows(bytes) {
            Some(Lack::Pool)
        } else if headroom.is_at_tables_max() {
            Some(Lack::Tables)
        } else if !headroom.allows_log(bytes) && drainable() {
            Some(Lack::Logs)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests;
