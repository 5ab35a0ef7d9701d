//! Waits of jobs: when a job stopped by the pool, a disk or the rate limiter takes its next step,
//! and what callers learn meanwhile.

use std::time::Instant;

use crate::error::Error;
use crate::events::{Count, event};
use crate::options::Workers;
use crate::parts::memory::is_held_by_readers;
use crate::stages::{Job, JobCounter, JobKind, Urgency};

use super::Engine;
use super::queue::{Parked, PoolLevel, RETRY, State, Waits, backoff};

/// The interval of refusals at which a job runs whatever the disk reports: a quota can be raised
/// without a change of the free bytes.
const BLIND_TRY: u32 = 4;

/// Returns whether a disk reports no more free bytes than it did then.
fn has_no_more(then: Option<u64>, now: Option<u64>) -> bool {
    then.zip(now).is_some_and(|(then, now)| now <= then)
}

impl Engine {
    /// Returns when a job may take its next step, if jobs have written more than the rate limit
    /// allows.
    pub(super) fn rate_limited_until(&self, job: &dyn Job) -> Option<Instant> {
        if !job.keeps_to_rate() {
            return None;
        }
        self.shared.rate_limiter.metrics().rate_max?;
        let now = Instant::now();
        let wait = self.shared.rate_limiter.wait(now, self.haste());
        wait.map(|wait| now + wait)
    }

    /// Returns how near writers are to being slowed by a backlog of background work.
    pub(super) fn haste(&self) -> f64 {
        match self.headroom().urgency() {
            Urgency::Rest | Urgency::None => self.stages.bottom.need().haste(),
            Urgency::Space | Urgency::Everything => 1.0,
        }
    }

    /// Returns the wait of a job that was refused memory, or space on a disk, as `refused` times
    /// before.
    pub(super) fn wait_for_room(&self, kind: JobKind, why: Error, refused: u32) -> Waits {
        if is_held_by_readers(&why) {
            let epoch = self.jobs.state.lock().epoch;
            let until = Instant::now() + RETRY;
            return Waits::Readers { until, epoch };
        }
        let room = self.shared.reserve.room();
        let now = Instant::now();
        let mut state = self.jobs.state.lock();
        state.refuse(&why, room);
        let epoch = state.epoch;
        drop(state);
        let wait = backoff(refused + 1);
        if (refused + 1).is_power_of_two() {
            event!(
                warn,
                "terrace::job",
                self.shared.db,
                "a full disk refused a {} job, {} so far; it retries within {wait:.1?}: {why}",
                JobCounter::from(kind).name(),
                Count(u64::from(refused) + 1, "time")
            );
        }
        Waits::Room {
            soon: now + RETRY,
            until: now + wait,
            epoch,
            room,
            why,
        }
    }

    /// Returns the earlier refusal of a job if its next step would be refused again, since the disk
    /// has no more free space. A compaction would fill the disk before it finds that out, and
    /// callers would wait for it.
    pub(super) fn is_in_vain(&self, parked: &Parked) -> Option<Error> {
        let Waits::Room { room, why, .. } = &parked.waits else {
            return None;
        };
        let is_blind = parked.refused.is_multiple_of(BLIND_TRY);
        let vain = !is_blind
            && parked.job.needs_as_much()
            && has_no_more(*room, self.shared.reserve.room());
        vain.then(|| why.clone())
    }

    /// Returns why a disk has no space for background work, if a job waits for that.
    pub(crate) fn disk_full(&self) -> Option<Error> {
        let state = self.jobs.state.lock();
        state.queue.iter().find_map(|p| p.waits.room()).cloned()
    }

    /// Returns how often jobs were refused space on a disk.
    pub(super) fn refusals(&self) -> u64 {
        self.jobs.state.lock().refusals
    }

    /// Returns why jobs make no progress if a full disk has stopped them since the refusal number
    /// `since`. Otherwise makes refused jobs try soon, because the caller waits for the outcome.
    pub(super) fn await_refusal(&self, since: u64) -> Option<Error> {
        let mut state = self.jobs.state.lock();
        let why = state.refusal(since);
        if why.is_none() {
            state.hurry_retries();
        }
        why
    }

    /// Lets jobs that wait for disk space try once more: a user has called, or range deletes have
    /// become durable.
    pub(crate) fn look_for_room(&self) {
        self.jobs.state.lock().look_for_room();
    }

    /// Returns how full the pool is.
    pub(super) fn pool_level(&self) -> PoolLevel {
        let buffer = self.stages.buffer.as_ref();
        let buffered = buffer.map_or(0, |buffer| buffer.newest());
        let durable = self.shared.ranges.durable();
        PoolLevel::of(self.shared.pool.usage(), durable, buffered)
    }

    /// Returns the indexes in the queue of the jobs that may take a step.
    pub(super) fn ready(&self, state: &State) -> Vec<usize> {
        if state.queue.is_empty() {
            return Vec::new();
        }
        let level = self.pool_level();
        let manual = self.jobs.workers() == Workers::Manual;
        // Paced jobs skip the wait if writers would otherwise wait for them.
        let hurries = state.is_paced() && self.haste() >= 1.0;
        let now = Instant::now();
        let room = || self.shared.reserve.room().unwrap_or(0);
        let has_more = |soon: Instant| now >= soon && room() > state.room_max;
        let ready = |p: &Parked| match &p.waits {
            Waits::Nothing => true,
            Waits::Pool(found) => found.has_eased(level),
            Waits::Room { epoch, .. } | Waits::Readers { epoch, .. } if manual => {
                *epoch != state.epoch
            }
            Waits::Room { soon, until, .. } => now >= *until || has_more(*soon),
            Waits::Readers { until, .. } => now >= *until,
            Waits::RateLimiter(until) => hurries || now >= *until,
        };
        (0..state.queue.len())
            .filter(|&at| ready(&state.queue[at]))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
