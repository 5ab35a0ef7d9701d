//! Patience: how long a caller waits without visible progress. Looks and runs of jobs are counted,
//! and no clock is read (A2).

use std::time::Instant;

use crate::metrics::StallReason;
use crate::parts::reserve::WantedDrains;

/// BOUND: how many looks in vain a caller makes before it gives up. More than one, since a lock
/// held for a moment may hide a job.
pub(super) const LOOKS: u32 = 4;
/// The same while readers hold back what could be free: half a second of looks. Bounded, since the
/// reader may be an unused iterator or snapshot of the very thread that writes. Looks are counted
/// and no clock is read, since on a machine that was suspended readers made no progress either.
/// Until a job has run, each caller looks half as often as the one before it, and at least
/// [`LOOKS`] times.
pub(super) const LOOKS_HELD: u32 = 100;
/// The same for callers that asked for the work: nothing that others need waits for them.
pub(super) const LOOKS_JOBS: u32 = 400;
/// The same without workers: the attempt after the last job may succeed, and no reader releases
/// anything meanwhile.
pub(super) const LOOKS_MANUAL: u32 = 1;
/// BOUND: after how many runs of jobs without more free space in the pool a caller gives up.
pub(super) const TURNOVER_MAX: u64 = 4096;
/// A run that freed space, which others took, counts as this many runs. Others, such as merges, may
/// be many before one can free space.
pub(in crate::engine) const RELEASE: u64 = 16;
/// BOUND: the same for waits without a measure of progress. More than the jobs that compact 64 TiB.
pub(super) const JOBS_MAX: u64 = 1 << 20;

/// BOUND: how often a put makes data move down for space on a disk. Each time may rewrite only one
/// table.
const MOVES_OF_PUT: u32 = 64;
/// The same for deletes, and for callers that asked for the work: as long as it makes progress,
/// space may become free.
const MOVES_MAX: u32 = 1 << 12;
/// BOUND: how many of these deletes may make without an edit in between. A refused compaction ends,
/// and a smaller one, or a rewrite of a table, begins in its place.
const MOVES_IN_VAIN_MAX: u32 = 8;

/// BOUND: for how many refusals and compactions a put waits on a full disk without progress there.
/// With little space, compactions of data that is live may continue for hours and free nothing.
pub(super) const TRIES_MAX: u64 = 32;
/// The growth of free space that counts as progress, as a part of it.
const GROWTH_ONE_IN: u64 = 16;

/// The attempts of jobs on a full disk, and their results.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Efforts {
    /// Refusals, and edits of compactions.
    pub(in crate::engine) tries: u64,
    /// Edits of flushes and drains.
    pub(in crate::engine) drains: u64,
    /// The free bytes of the disk.
    pub(in crate::engine) room: u64,
}

/// Counts the callers that have waited in vain for readers since the last job has run.
#[derive(Debug, Default)]
pub(in crate::engine) struct VainWaits {
    count: u32,
    /// The turnover of jobs at that time.
    turnover: u64,
}

impl VainWaits {
    /// Returns the number of looks of the next caller.
    pub(super) fn patience(&self, turnover: u64) -> u32 {
        let halvings = match self.turnover == turnover {
            true => self.count,
            false => 0,
        };
        LOOKS_HELD.checked_shr(halvings).unwrap_or(0).max(LOOKS)
    }

    pub(super) fn count(&mut self, turnover: u64) {
        if self.turnover != turnover {
            *self = VainWaits { count: 0, turnover };
        }
        self.count = self.count.saturating_add(1);
    }
}

/// The state of one caller's wait.
pub(super) struct Wait {
    /// The reason of the wait, if it counts as a stall of writers.
    pub(super) stalled: Option<StallReason>,
    pub(super) started: Instant,
    pub(super) is_first: bool,
    /// The caller is refused when each job was refused by a disk after this refusal.
    pub(super) refusals: u64,
    /// Looks in vain since something ran.
    pub(super) looks: u32,
    /// The least work that was left, and the turnover at that time.
    pub(super) least: Option<(u64, u64)>,
    /// Memtables that this caller has made.
    pub(super) spares: u32,
    /// Whether it has sealed the memtable because of its deletes.
    pub(super) has_flushed: bool,
    /// The edits that jobs had completed when it last moved data for space on a disk.
    moved_at: Option<u64>,
    /// How often it may still do so, and how often before jobs have completed another edit.
    moves: u32,
    moves_in_vain: u32,
    /// The attempts of jobs at their last progress on a full disk.
    pub(super) progress: Option<Efforts>,
    /// The most runs of jobs without progress that it waits for on a full disk.
    pub(super) turnover_max: u64,
    /// Whether the caller puts, and so has no right to the reserve.
    pub(super) is_of_put: bool,
    /// Lets drains of memory use the reserve until the caller has what it needs.
    pub(super) drains: Option<WantedDrains>,
}

/// The decision of a caller after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Waits for the work in progress.
    Work,
    /// Looks again: nothing runs, but readers may release views.
    Look,
    /// Gives up: nothing runs or can run.
    Stuck,
    /// Gives up: jobs run without progress.
    Starved,
}

impl Wait {
    /// Returns the wait of a put, which is refused as soon as a full disk is known to stop
    /// background work.
    pub(super) fn of_put() -> Wait {
        Wait::begin(0, true)
    }

    /// Returns the wait of deletes, and of callers that asked for background work: they wait until
    /// each job was refused once more after the refusal number `refusals`.
    pub(super) fn for_work(refusals: u64) -> Wait {
        Wait::begin(refusals, false)
    }

    fn begin(refusals: u64, is_of_put: bool) -> Wait {
        let (moves, turnover_max) = match is_of_put {
            true => (MOVES_OF_PUT, TURNOVER_MAX),
            false => (MOVES_MAX, JOBS_MAX),
        };
        Wait {
            stalled: None,
            started: Instant::now(),
            is_first: true,
            refusals,
            looks: 0,
            least: None,
            spares: 0,
            has_flushed: false,
            moved_at: None,
            moves,
            moves_in_vain: 0,
            progress: None,
            turnover_max,
            is_of_put,
            drains: None,
        }
    }

    /// Returns whether it may move data for space on a disk, and counts the move. `edits`: the
    /// number that jobs have completed.
    pub(super) fn may_move(&mut self, edits: u64) -> bool {
        if self.moved_at.replace(edits) != Some(edits) {
            self.moves_in_vain = match self.is_of_put {
                true => 1,
                false => MOVES_IN_VAIN_MAX,
            };
        }
        let may = self.moves > 0 && self.moves_in_vain > 0;
        if may {
            self.moves -= 1;
            self.moves_in_vain -= 1;
        }
        may
    }

    /// Returns whether a put gives up since jobs try in vain to make space on a full disk.
    pub(super) fn is_in_vain(&mut self, now: Efforts) -> bool {
        match self.progress {
            Some(then)
                if now.drains == then.drains
                    && now.room <= then.room.saturating_add(then.room / GROWTH_ONE_IN) =>
            {
                self.is_of_put && now.tries - then.tries > TRIES_MAX
            }
            _ => {
                self.progress = Some(now);
                false
            }
        }
    }

    /// Judges a look: whether nothing runs or can run, how much is left, and the turnover of jobs.
    pub(super) fn judge(
        &mut self,
        stuck: bool,
        (left, turnover): (u64, u64),
        patience: u32,
        turnover_max: u64,
    ) -> Verdict {
        match self.least {
            Some((least, since)) if left >= least => {
                if turnover.saturating_sub(since) > turnover_max {
                    return Verdict::Starved;
                }
            }
            _ => self.least = Some((left, turnover)),
        }
        if !stuck {
            self.looks = 0;
            return Verdict::Work;
        }
        self.looks += 1;
        match self.looks > patience {
            true => Verdict::Stuck,
            false => Verdict::Look,
        }
    }
}
