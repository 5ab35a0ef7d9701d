//! The queue of the scheduler: begun jobs, what each waits for (space in the pool, space on a disk,
//! its turn to write), and the counts by which callers give up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use terrace_media::PoolUsage;

use super::rest::Rest;
use crate::error::Error;
use crate::events::Since;
use crate::stages::{Job, JobKind};
use crate::types::SeqNo;

/// A begun job.
pub(super) struct Parked {
    pub(super) job: Box<dyn Job>,
    pub(super) waits: Waits,
    /// The number of times that it found no space on a disk.
    pub(super) refused: u32,
    /// The time at which it was begun.
    pub(super) begun: Since,
}

/// How full the pool was. The bytes are two numbers, because a single number of free bytes would
/// fall when the device turns out to be full, and a job that waits for more would miss what is
/// freed after that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolLevel {
    allocated: u64,
    limit: u64,
    /// The longest free piece, which grows while free space is joined without more being free.
    largest_free: u64,
    /// The number up to which range deletes were durable. A job needs no space for entries that
    /// later ones cover.
    durable: SeqNo,
    /// The newest number in the buffer. A job needs no space for entries that later ones replace or
    /// delete.
    buffered: SeqNo,
}

impl PoolLevel {
    pub(super) fn of(usage: PoolUsage, durable: SeqNo, buffered: SeqNo) -> PoolLevel {
        PoolLevel {
            allocated: usage.allocated,
            limit: usage.limit,
            largest_free: usage.largest_free,
            durable,
            buffered,
        }
    }

    /// Returns whether a job that found no space at this level may find enough now.
    pub(super) fn has_eased(self, now: PoolLevel) -> bool {
        now.allocated < self.allocated
            || now.limit > self.limit
            || now.largest_free > self.largest_free
            || now.durable > self.durable
            || now.buffered > self.buffered
    }
}

/// What a begun job waits for.
pub(super) enum Waits {
    Nothing,
    /// Space in the pool, which was lacking at this level.
    Pool(PoolLevel),
    /// Space on a disk, which is never announced: a time, or, without threads, another call.
    Room {
        /// The time from which it may try again if the disk reports more free bytes than at any
        /// refusal.
        soon: Instant,
        /// The time from which it tries whatever the disk reports.
        until: Instant,
        epoch: u64,
        /// The free bytes of the disk at the refusal, or `None` if the file system does not report
        /// them.
        room: Option<u64>,
        why: Error,
    },
    /// Memory that readers hold and release silently: a time, or, without threads, another call.
    Readers {
        until: Instant,
        epoch: u64,
    },
    /// Its turn to write again.
    RateLimiter(Instant),
}

impl Waits {
    /// Returns the error of a full disk, if it waits for space there.
    pub(super) fn room(&self) -> Option<&Error> {
        match self {
            Waits::Room { why, .. } => Some(why),
            Waits::Nothing | Waits::Pool(_) | Waits::Readers { .. } | Waits::RateLimiter(_) => None,
        }
    }
}

impl Parked {
    /// Returns a job that may take its first step.
    pub(super) fn ready(job: Box<dyn Job>) -> Parked {
        Parked::new(job, Waits::Nothing, 0, Since::now())
    }

    /// Returns a job that was refused space `refused` times before.
    pub(super) fn new(job: Box<dyn Job>, waits: Waits, refused: u32, begun: Since) -> Parked {
        let again = u32::from(matches!(waits, Waits::Room { .. }));
        Parked {
            job,
            waits,
            refused: refused + again,
            begun,
        }
    }

    /// Returns whether it may free space in the pool, or come nearer to that: callers that wait for
    /// space count its runs. A job that makes a spare takes space, and a compaction of files, of
    /// which there may be thousands before the next drain, moves nothing out of the pool.
    pub(super) fn may_free(&self) -> bool {
        !self.job.makes_spare() && self.job.kind() != JobKind::Compact
    }

    /// Returns whether it has tried to get space on a disk as often as callers wait for.
    pub(super) fn has_tried(&self) -> bool {
        self.refused >= TRIES
    }

    /// Returns whether the pool had no space for its next step.
    pub(super) fn found_no_space(&self) -> bool {
        matches!(self.waits, Waits::Pool(_))
    }

    /// Returns whether the pool or a disk had no space for its next step.
    pub(super) fn waits_for_space(&self) -> bool {
        self.found_no_space() || self.waits.room().is_some()
    }

    /// Returns whether it keeps its memory while it waits. A job that waits for space has freed its
    /// memory, and other jobs may have to run first to make room for it.
    pub(super) fn has_memory(&self) -> bool {
        let waits = matches!(self.waits, Waits::Nothing | Waits::RateLimiter(_));
        waits && self.job.kind() != JobKind::Flush
    }
}

/// The wait of a refused job before its next try, at first and while a caller waits for background
/// work.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// The number of times that the wait doubles. Each try can fill the disk again, so tries become
/// rare while no caller waits.
const DOUBLINGS_MAX: u32 = 9;

/// The number of refusals of each job after which callers that wait for it are refused too.
const TRIES: u32 = 2;

/// Returns the wait after the `refused`-th refusal of a job while no caller waits.
pub(super) fn backoff(refused: u32) -> Duration {
    let doublings = refused.saturating_sub(TRIES).min(DOUBLINGS_MAX);
    RETRY * (1 << doublings)
}

#[derive(Default)]
pub(super) struct State {
    /// Begun jobs that no thread runs at this moment.
    pub(super) queue: Vec<Parked>,
    /// Parts of jobs that are not begun. Merges and drains come before those of compactions; those
    /// of a drain come where a new drain would.
    pub(super) parts: VecDeque<Box<dyn Job>>,
    pub(super) running: usize,
    /// The running jobs that merge, drain, reclaim or compact.
    pub(super) heavy: usize,
    /// The running jobs that may yet find space on a disk.
    pub(super) untried: usize,
    /// The number of times that jobs were refused space on a disk.
    pub(super) refusals: u64,
    /// Edits of jobs other than flushes, which writers cause.
    pub(super) edits: u64,
    /// Those of compactions.
    pub(super) compactions: u64,
    /// Edits of flushes and drains.
    pub(super) drains: u64,
    /// The last refusal.
    pub(super) last_refusal: Option<Error>,
    /// The number of refusals at the last of these edits.
    pub(super) refusals_at_edit: u64,
    /// The most free bytes that the disk reported at a refusal since then.
    pub(super) room_max: u64,
    /// Counts runs of jobs that ended or found no space, and runs that freed space `RELEASE` times.
    pub(super) turnover: u64,
    pub(super) stopping: bool,
    /// The number of callers that wait for an empty buffer.
    pub(super) everything: usize,
    /// The number of callers that wait until its current contents have been drained.
    pub(super) drained: usize,
    pub(super) rest: Rest,
    /// Whether the last choice put merges first, so that drains and merges take turns.
    pub(super) merges_first: bool,
    /// Counts calls of users after which a disk may have space again.
    pub(super) epoch: u64,
}

impl State {
    /// Returns why background work makes no progress, if a full disk is the reason: each job was
    /// refused space repeatedly since the refusal number `since`, and no merge, drain or compaction
    /// has completed an edit. Steps are counted and no time, since a compaction may work for long
    /// until it is refused.
    pub(super) fn refusal(&self, since: u64) -> Option<Error> {
        let mut waiting = self.queue.iter().filter_map(|p| p.waits.room());
        let why = waiting.next()?;
        let jobs = 1 + waiting.count() + self.running;
        let vain = self.refusals - since.max(self.refusals_at_edit);
        let waits = |p: &Parked| matches!(p.waits, Waits::Pool(_) | Waits::Readers { .. });
        let mut queue = self.queue.iter();
        let tried = self.untried == 0 && queue.all(|p| waits(p) || p.has_tried());
        (tried && vain >= u64::from(TRIES) * jobs as u64).then(|| why.clone())
    }

    /// Counts a refusal. `room`: the free bytes that the disk reports.
    pub(super) fn refuse(&mut self, why: &Error, room: Option<u64>) {
        self.refusals += 1;
        self.last_refusal = Some(why.clone());
        self.room_max = self.room_max.max(room.unwrap_or(0));
    }

    /// Notes an edit of a job. It may have freed disk space, unless a flush caused it: free bytes
    /// reported before it no longer count.
    pub(super) fn edited(&mut self, kind: JobKind) {
        self.drains += u64::from(matches!(kind, JobKind::Flush | JobKind::Drain));
        self.compactions += u64::from(kind == JobKind::Compact);
        if kind == JobKind::Flush {
            return;
        }
        self.edits += 1;
        self.refusals_at_edit = self.refusals;
        self.room_max = 0;
    }

    /// Lets jobs that wait for disk space try once more: soon with threads, else at once.
    pub(super) fn look_for_room(&mut self) {
        self.epoch += 1;
        self.hurry_retries();
    }

    /// Makes jobs that wait for disk space try within `RETRY`.
    pub(super) fn hurry_retries(&mut self) {
        let latest = Instant::now() + RETRY;
        for parked in &mut self.queue {
            if let Waits::Room { until, .. } = &mut parked.waits {
                *until = latest.min(*until);
            }
        }
    }

    /// Returns whether the queue contains no flush. A flush that waits for space does not count, so
    /// that it does not keep others from freeing space.
    pub(super) fn has_no_flush(&self) -> bool {
        let waits = |p: &Parked| !matches!(p.waits, Waits::Nothing | Waits::RateLimiter(_));
        let mut queue = self.queue.iter();
        queue.all(|p| p.job.kind() != JobKind::Flush || waits(p))
    }

    /// Returns whether a job waits for space in the pool or on a disk.
    pub(super) fn waits_for_space(&self) -> bool {
        self.queue.iter().any(Parked::waits_for_space)
    }

    /// Returns how many queued jobs keep their memory.
    pub(super) fn with_memory(&self) -> usize {
        self.queue.iter().filter(|p| p.has_memory()).count()
    }

    /// Returns whether a job waits for its turn to write: it resumes automatically.
    pub(super) fn is_paced(&self) -> bool {
        let mut queue = self.queue.iter();
        queue.any(|parked| matches!(parked.waits, Waits::RateLimiter(_)))
    }

    /// Returns the time until the next job that waits for a time may resume. Jobs that may already
    /// do not count, since the caller has found none.
    pub(super) fn next_turn(&self) -> Option<Duration> {
        let until = self.queue.iter().filter_map(|parked| match &parked.waits {
            Waits::Room { until, .. } | Waits::Readers { until, .. } => Some(*until),
            Waits::RateLimiter(until) => Some(*until),
            Waits::Nothing | Waits::Pool(_) => None,
        });
        let now = Instant::now();
        let until = until.filter(|until| *until > now);
        until.min().map(|until| until - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Callers learn of a full disk after `TRIES` short waits; later ones double, up to 51 s.
    #[test]
    fn retries_become_rare() {
        let waits = (1..=20).map(backoff).collect::<Vec<_>>();
        assert!(waits[..TRIES as usize].iter().all(|wait| *wait == RETRY));
        assert!(waits.is_sorted());
        assert_eq!(waits[19], RETRY * 512);
    }
}
