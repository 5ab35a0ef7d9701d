//! This file is what jobs wait for that were begun and cannot go on: space in the pool, room on a
//! disk, their turn to write.

use std::time::{Duration, Instant};

use terrace_media::PoolUsage;

use crate::error::Error;
use crate::metrics::RetryMetrics;
use crate::options::Workers;
use crate::stages::{Job, JobKind, Urgency};
use crate::types::SeqNo;

use super::Engine;
use super::jobs::{Jobs, State};
use super::workers::Class;

/// A job that was begun.
pub(super) struct Parked {
    pub(super) job: Box<dyn Job>,
    pub(super) waits: Waits,
    /// How often it has found no room on a disk.
    pub(super) refused: u32,
}

/// How full the pool was. It is two numbers, because one that is free would fall when the device turns out to be full,
/// and a job that waits for more would miss what is freed after that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolLevel {
    allocated: u64,
    limit: u64,
    /// The number up to which range deletes were durable. A job needs no space for entries that later ones cover.
    durable: SeqNo,
}

impl PoolLevel {
    fn of(usage: PoolUsage, durable: SeqNo) -> PoolLevel {
        PoolLevel {
            allocated: usage.allocated,
            limit: usage.limit,
            durable,
        }
    }

    /// Returns whether a job that found no space at this level may find enough now.
    fn has_eased(self, now: PoolLevel) -> bool {
        now.allocated < self.allocated || now.limit > self.limit || now.durable > self.durable
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
    fn room(&self) -> Option<&Error> {
        match self {
            Waits::Room { why, .. } => Some(why),
            Waits::Nothing | Waits::Pool(_) | Waits::Pace(_) => None,
        }
    }
}

impl Parked {
    /// A job that may take its first step.
    pub(super) fn ready(job: Box<dyn Job>) -> Parked {
        Parked::new(job, Waits::Nothing, 0)
    }

    /// A job that was refused room `refused` times before.
    pub(super) fn new(job: Box<dyn Job>, waits: Waits, refused: u32) -> Parked {
        let again = u32::from(matches!(waits, Waits::Room { .. }));
        Parked {
            job,
            waits,
            refused: refused + again,
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
const RETRY: Duration = Duration::from_millis(100);

/// The number of times that the wait doubles. Each try can fill the disk again, so tries become rare while no caller
/// waits.
const DOUBLINGS_MAX: u32 = 9;

/// Every so many refusals, a job is run whatever the disk reports: a quota can be raised and leave the free bytes
/// equal.
const BLIND_TRY: u32 = 4;

/// How often each job is refused room on a disk before callers who wait for it are refused too.
const TRIES: u32 = 2;

/// Returns the wait after the `refused`-th refusal of a job while no caller waits.
fn backoff(refused: u32) -> Duration {
    let doublings = refused.saturating_sub(TRIES).min(DOUBLINGS_MAX);
    RETRY * (1 << doublings)
}

/// Returns whether a disk reports no more free bytes than it did then.
fn has_no_more(then: Option<u64>, now: Option<u64>) -> bool {
    then.zip(now).is_some_and(|(then, now)| now <= then)
}

impl State {
    /// Why background work makes no progress, if that is since a disk is full: each job was refused room since
    /// the refusal number `since`, again and again, and none that merges, drains or compacts has completed an
    /// edit. Steps are counted and no time, since a compaction may work for long until it is refused.
    fn refusal(&self, since: u64) -> Option<Error> {
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
    fn refuse(&mut self, why: &Error, room: Option<u64>) {
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
    fn hurry_retries(&mut self) {
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

impl Jobs {
    /// How many edits jobs have completed, flushes aside.
    pub(super) fn edits(&self) -> u64 {
        self.state.lock().edits
    }

    /// What users are told of jobs that a disk has refused.
    pub(super) fn retries(&self) -> RetryMetrics {
        let state = self.state.lock();
        let waiting = state.queue.iter().filter(|p| p.waits.room().is_some());
        RetryMetrics {
            count: state.refusals,
            waiting_count: waiting.count() as u64,
            last: state.last_refusal.clone(),
        }
    }
}

impl Engine {
    /// When a job may take its next step, if it has written more than the limit on the rate allows.
    /// Flushes are charged and never wait.
    pub(super) fn pace(&self, kind: JobKind, class: Class) -> Option<Instant> {
        if class == Class::Flushes || !matches!(kind, JobKind::Drain | JobKind::Compact) {
            return None;
        }
        self.ground.pace.metrics().rate_max?;
        let now = Instant::now();
        let wait = self.ground.pace.wait(now, self.haste());
        wait.map(|wait| now + wait)
    }

    /// How near writers are to being slowed for what background work has not done.
    pub(super) fn haste(&self) -> f64 {
        match self.headroom().urgency() {
            Urgency::Rest | Urgency::None => self.pipeline.bottom.haste(),
            Urgency::Space | Urgency::Everything => 1.0,
        }
    }

    /// When a job that found a disk full, and had `refused` times before, may try again.
    pub(super) fn wait_for_room(&self, why: Error, refused: u32) -> Waits {
        // What it has to write may be covered by range deletes that only have to be synced.
        self.ground.ranges.look_again();
        let room = self.ground.reserve.room();
        let now = Instant::now();
        let mut state = self.jobs.state.lock();
        state.refuse(&why, room);
        Waits::Room {
            soon: now + RETRY,
            until: now + backoff(refused + 1),
            turn: state.turn,
            room,
            why,
        }
    }

    /// Returns the earlier refusal of a job if its next step would be refused again, since the disk has no more room.
    /// A compaction would fill the disk before it finds that out, and callers would wait for it.
    pub(super) fn is_in_vain(&self, parked: &Parked) -> Option<Error> {
        let Waits::Room { room, why, .. } = &parked.waits else {
            return None;
        };
        let is_blind = parked.refused.is_multiple_of(BLIND_TRY);
        let vain = !is_blind
            && parked.job.needs_as_much()
            && has_no_more(*room, self.ground.reserve.room());
        vain.then(|| why.clone())
    }

    /// Why a disk has no room for what background work has to write, if a job waits for that.
    pub(crate) fn disk_full(&self) -> Option<Error> {
        let state = self.jobs.state.lock();
        state.queue.iter().find_map(|p| p.waits.room()).cloned()
    }

    /// How often jobs were refused room on a disk.
    pub(super) fn refusals(&self) -> u64 {
        self.jobs.state.lock().refusals
    }

    /// Returns why jobs make no progress if a full disk has stopped them since the refusal number `since`. Otherwise it
    /// makes refused jobs try soon, because the caller waits for the outcome.
    pub(super) fn await_refusal(&self, since: u64) -> Option<Error> {
        let mut state = self.jobs.state.lock();
        let why = state.refusal(since);
        if why.is_none() {
            state.hurry_retries();
        }
        why
    }

    /// Lets jobs that wait for room try once more: a user has called, or range deletes have become durable.
    pub(crate) fn look_for_room(&self) {
        self.jobs.state.lock().look_for_room();
    }

    /// Returns how full the pool is.
    pub(super) fn pool_level(&self) -> PoolLevel {
        PoolLevel::of(self.ground.pool.usage(), self.ground.ranges.durable())
    }

    /// The places in the queue of the jobs that may take a step.
    pub(super) fn ready(&self, state: &State) -> Vec<usize> {
        if state.queue.is_empty() {
            return Vec::new();
        }
        let level = self.pool_level();
        let manual = self.jobs.workers() == Workers::Manual;
        // Whoever waits for its turn need not where writers would wait for it.
        let hurries = state.is_paced() && self.haste() >= 1.0;
        let now = Instant::now();
        let room = || self.ground.reserve.room().unwrap_or(0);
        let has_more = |soon: Instant| now >= soon && room() > state.room_max;
        let ready = |p: &Parked| match &p.waits {
            Waits::Nothing => true,
            Waits::Pool(found) => found.has_eased(level),
            Waits::Room { turn, .. } if manual => *turn != state.turn,
            Waits::Room { soon, until, .. } => now >= *until || has_more(*soon),
            Waits::Pace(until) => hurries || now >= *until,
        };
        (0..state.queue.len())
            .filter(|&at| ready(&state.queue[at]))
            .collect()
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

    /// A disk that does not report its free bytes never holds a job back.
    #[test]
    fn a_disk_has_no_more_room_where_that_is_known() {
        assert!(has_no_more(Some(100), Some(100)));
        assert!(has_no_more(Some(100), Some(99)));
        assert!(!has_no_more(Some(100), Some(101)));
        assert!(!has_no_more(None, Some(0)));
        assert!(!has_no_more(Some(100), None));
    }
}
