//! The queue of the scheduler: jobs that were begun, what each waits for (space in the pool, room on a disk, its turn to
//! write), and the counts by which callers give up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use terrace_media::PoolUsage;

use super::rest::Rest;
use crate::error::Error;
use crate::events::Since;
use crate::stages::{Job, JobKind};
use crate::types::SeqNo;

/// A job that was begun.
pub(super) struct Parked {
    pub(super) job: Box<dyn Job>,
    pub(super) waits: Waits,
    /// How often it has found no room on a disk.
    pub(super) refused: u32,
    /// The moment at which it was begun.
    pub(super) begun: Since,
}

/// How full the pool was. Its bytes are two numbers, because one that is free would fall when the device turns out to be full,
/// and a job that waits for more would miss what is freed after that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolLevel {
    allocated: u64,
    limit: u64,
    /// The longest free piece, which grows while free space comes together, though no more is free then.
    largest_free: u64,
    /// The number up to which range deletes were durable. A job needs no space for entries that later ones cover.
    durable: SeqNo,
    /// The newest number in the buffer. Nor does it for entries that later ones replace or delete.
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

/// What a job that was begun waits for.
pub(super) enum Waits {
    Nothing,
    /// Space in the pool, which it did not have in this state.
    Pool(PoolLevel),
    /// Room on a disk, which nobody announces: a time, or, without threads, another call.
    Room {
        /// When it may try again if the disk reports more free bytes than at any refusal.
        soon: Instant,
        /// When it tries whatever the disk reports.
        until: Instant,
        turn: u64,
        /// The free bytes of the disk by then, or `None` if the file system does not report them.
        room: Option<u64>,
        why: Error,
    },
    /// Its turn to write again.
    Pace(Instant),
}

impl Waits {
    /// Why a disk has no room, if it waits for that.
    pub(super) fn room(&self) -> Option<&Error> {
        match self {
            Waits::Room { why, .. } => Some(why),
            Waits::Nothing | Waits::Pool(_) | Waits::Pace(_) => None,
        }
    }
}

impl Parked {
    /// A job that may take its first step.
    pub(super) fn ready(job: Box<dyn Job>) -> Parked {
        Parked::new(job, Waits::Nothing, 0, Since::now())
    }

    /// A job that was refused room `refused` times before.
    pub(super) fn new(job: Box<dyn Job>, waits: Waits, refused: u32, begun: Since) -> Parked {
        let again = u32::from(matches!(waits, Waits::Room { .. }));
        Parked {
            job,
            waits,
            refused: refused + again,
            begun,
        }
    }

    /// Whether it may free space in the pool, or come nearer to that: callers who wait for some count its runs. A job
    /// that makes a spare takes space, and a compaction of files, of which there may be thousands before the next drain
    /// may begin, moves nothing out of the pool.
    pub(super) fn may_free(&self) -> bool {
        !self.job.makes_spare() && self.job.kind() != JobKind::Compact
    }

    /// Whether it has tried to get room on a disk as often as a caller waits for.
    pub(super) fn has_tried(&self) -> bool {
        self.refused >= TRIES
    }

    /// Whether the pool had no space for its next step.
    pub(super) fn found_no_space(&self) -> bool {
        matches!(self.waits, Waits::Pool(_))
    }

    /// Whether it is a job that keeps its memory while it waits. One that waits for space has given its
    /// memory back, and may be what another job has to make room for.
    pub(super) fn has_memory(&self) -> bool {
        let waits = matches!(self.waits, Waits::Nothing | Waits::Pace(_));
        waits && self.job.kind() != JobKind::Flush
    }
}

/// The wait of a refused job before its next try, at first and while a caller waits for background work.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// The number of times that the wait doubles. Each try can fill the disk again, so tries become rare while no caller
/// waits.
const DOUBLINGS_MAX: u32 = 9;

/// How often each job is refused room on a disk before callers who wait for it are refused too.
const TRIES: u32 = 2;

/// Returns the wait after the `refused`-th refusal of a job while no caller waits.
pub(super) fn backoff(refused: u32) -> Duration {
    let doublings = refused.saturating_sub(TRIES).min(DOUBLINGS_MAX);
    RETRY * (1 << doublings)
}

#[derive(Default)]
pub(super) struct State {
    /// Jobs that were begun and that nobody runs at this moment.
    pub(super) queue: Vec<Parked>,
    /// Parts of jobs that nobody has begun. Merges and drains come before them.
    pub(super) parts: VecDeque<Box<dyn Job>>,
    pub(super) running: usize,
    /// Of those, the ones that merge, drain, reclaim or compact.
    pub(super) heavy: usize,
    /// Of those that run, the ones that may yet find room on a disk.
    pub(super) untried: usize,
    /// How often jobs were refused room on a disk.
    pub(super) refusals: u64,
    /// Edits of jobs other than flushes, which writers cause.
    pub(super) edits: u64,
    /// The last refusal.
    pub(super) last_refusal: Option<String>,
    /// The number of refusals at the last of these edits.
    pub(super) refusals_at_edit: u64,
    /// The most free bytes that the disk reported at a refusal since then.
    pub(super) room_max: u64,
    /// Counts runs of jobs that ended or found no space, and those that gave space back `RELEASE` times.
    pub(super) turnover: u64,
    pub(super) stopping: bool,
    /// How many callers wait for an empty buffer.
    pub(super) everything: usize,
    /// How many wait until what is in it now has gone down.
    pub(super) drained: usize,
    pub(super) rest: Rest,
    /// For their sake drains and merges take turns.
    pub(super) merges_first: bool,
    /// Counts calls of users that may find room on a disk again.
    pub(super) turn: u64,
}

impl State {
    /// Why background work makes no progress, if that is since a disk is full: each job was refused room since
    /// the refusal number `since`, again and again, and none that merges, drains or compacts has completed an
    /// edit. Steps are counted and no time, since a compaction may work for long until it is refused.
    pub(super) fn refusal(&self, since: u64) -> Option<Error> {
        let mut waiting = self.queue.iter().filter_map(|p| p.waits.room());
        let why = waiting.next()?;
        let jobs = 1 + waiting.count() + self.running;
        let vain = self.refusals - since.max(self.refusals_at_edit);
        let mut queue = self.queue.iter();
        let tried =
            self.untried == 0 && queue.all(|p| matches!(p.waits, Waits::Pool(_)) || p.has_tried());
        (tried && vain >= u64::from(TRIES) * jobs as u64).then(|| why.clone())
    }

    /// Counts a refusal. `room`: the free bytes that the disk reports.
    pub(super) fn refuse(&mut self, why: &Error, room: Option<u64>) {
        self.refusals += 1;
        self.last_refusal = Some(why.to_string());
        self.room_max = self.room_max.max(room.unwrap_or(0));
    }

    /// Notes an edit that may have given room back. Free bytes reported before it no longer count.
    pub(super) fn edited(&mut self) {
        self.edits += 1;
        self.refusals_at_edit = self.refusals;
        self.room_max = 0;
    }

    /// Lets jobs that wait for room try once more: soon with threads, else at once.
    pub(super) fn look_for_room(&mut self) {
        self.turn += 1;
        self.hurry_retries();
    }

    /// Has jobs that wait for room try within `RETRY`.
    pub(super) fn hurry_retries(&mut self) {
        let latest = Instant::now() + RETRY;
        for parked in &mut self.queue {
            if let Waits::Room { until, .. } = &mut parked.waits {
                *until = latest.min(*until);
            }
        }
    }

    /// Whether no flush has been begun that nobody runs. One that waits for room on a disk must not keep others from
    /// giving room back.
    pub(super) fn has_no_flush(&self) -> bool {
        let waits = |p: &Parked| matches!(p.waits, Waits::Room { .. });
        let mut queue = self.queue.iter();
        queue.all(|p| p.job.kind() != JobKind::Flush || waits(p))
    }

    /// How many jobs that nobody runs keep their memory.
    pub(super) fn with_memory(&self) -> usize {
        self.queue.iter().filter(|p| p.has_memory()).count()
    }

    /// Whether a job waits for its turn to write: it will go on by itself.
    pub(super) fn is_paced(&self) -> bool {
        let mut queue = self.queue.iter();
        queue.any(|parked| matches!(parked.waits, Waits::Pace(_)))
    }

    /// How long until the next job that waits for a time may go on; those that may already do not
    /// count, since whoever asks has found none.
    pub(super) fn next_turn(&self) -> Option<Duration> {
        let until = self.queue.iter().filter_map(|parked| match &parked.waits {
            Waits::Room { until, .. } | Waits::Pace(until) => Some(*until),
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

    /// Callers are told of a full disk after `TRIES` short waits; later ones double, up to 51 s.
    #[test]
    fn retries_become_rare() {
        let waits = (1..=20).map(backoff).collect::<Vec<_>>();
        assert!(waits[..TRIES as usize].iter().all(|wait| *wait == RETRY));
        assert!(waits.is_sorted());
        assert_eq!(waits[19], RETRY * 512);
    }
}
