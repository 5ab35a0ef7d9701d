//! Picker: finds the job that a thread runs next, at the places that the scheduler's decision names
//! (choose.rs).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::Result;
use crate::stages::{Job, JobKind, Urgency};

use super::Engine;
use super::choose::{Look, Nearness, Now, Wanted, choose, choose_flush, new_jobs, preferred};
use super::own_jobs::{MakeSpare, SyncRanges};
use super::queue::{Parked, State};
use super::throttle::Headroom;
use super::workers::Lane;

impl Engine {
    /// Takes the most wanted job that may run now.
    pub(super) fn take(self: &Arc<Self>, state: &mut State, lane: Lane) -> Result<Option<Parked>> {
        let headroom = self.headroom();
        let looks = if lane == Lane::Flushes {
            let is_held_up = self.stages.buffer.is_none() && self.stages.bottom.need().stops();
            choose_flush(self.spare_is_due(state, &headroom), is_held_up)
        } else {
            let (looks, merges_first) = choose(lane, &self.now(state, &headroom));
            state.merges_first = merges_first;
            looks
        };
        for look in looks {
            if let Some(job) = self.look(state, look)? {
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    fn now(&self, state: &State, headroom: &Headroom) -> Now {
        let rests = || state.rest.is_reached(self.shared.sequencer.last_taken());
        Now {
            wanted: match (state.everything, state.drained) {
                (0, 0) if !rests() => Wanted::Nothing,
                (0, 0) => Wanted::Rest,
                (0, _) => Wanted::Drained,
                _ => Wanted::Everything,
            },
            urgency: headroom.urgency(),
            pressing: headroom.pressing(),
            bottom: self.nearness(),
            merged_first: state.merges_first,
            has_memory: self.has_memory(state),
            has_memory_for_two: self.has_memory_for(state, 2),
        }
    }

    /// Returns the nearness of the bottom, or `None` if drains stay in the pool.
    fn nearness(&self) -> Option<Nearness> {
        let bottom = &self.stages.bottom;
        let drains_leave = self.stages.buffer.is_some() && bottom.is_outside_pool();
        drains_leave.then(|| Nearness {
            need: bottom.need().part,
            apart: self.compacts_apart(),
        })
    }

    /// Takes the job at one place.
    fn look(self: &Arc<Self>, state: &mut State, look: Look) -> Result<Option<Parked>> {
        let job = match look {
            Look::Begun(kind) => return Ok(self.take_begun(state, |it| it == kind)),
            Look::AnyBegun => return Ok(self.take_begun(state, |it| it != JobKind::Flush)),
            Look::Spare => Some(Box::new(MakeSpare::begin(self)) as Box<dyn Job>),
            Look::Sealed => match self.stages.front.next_sealed()? {
                Some(sealed) => Some(self.stages.flush_job(&self.shared, sealed)?),
                None => None,
            },
            Look::Front => self.stages.front.next_job(),
            Look::Ranges => match self.shared.ranges.look() {
                true => Some(Box::new(SyncRanges::begin(self)) as Box<dyn Job>),
                false => None,
            },
            Look::New(kind, urgency) => self.begin(&mut state.parts, kind, urgency)?,
        };
        Ok(job.map(Parked::ready))
    }

    /// Returns whether a job of this kind should let one of the other kind run before its next
    /// step.
    pub(super) fn should_give_way(&self, kind: JobKind) -> bool {
        if !matches!(kind, JobKind::Drain | JobKind::Compact) {
            return false;
        }
        let headroom = self.headroom();
        let preferred = preferred(headroom.urgency(), headroom.pressing(), self.nearness());
        preferred.is_some_and(|preferred| preferred != kind)
    }

    /// Begins a job that frees space at this urgency, even if the state of the database alone is
    /// less urgent. Returns false if there is no such job.
    pub(super) fn begin_for(&self, urgency: Urgency) -> Result<bool> {
        let mut state = self.jobs.state.lock();
        let kinds = new_jobs(Urgency::Space).into_iter();
        let found = kinds.map(|kind| self.begin(&mut state.parts, kind, urgency));
        // The first that is found, or that has failed.
        let found = found.filter_map(Result::transpose).next().transpose();
        if let Ok(Some(_)) = &found {
            self.jobs.work.notify_all();
        }
        let found = found.map(|found| {
            let begun = found.is_some();
            state.queue.extend(found.map(Parked::ready));
            begun
        });
        drop(state);
        found.inspect_err(|e| self.fail(e))
    }

    /// Begins a job of a kind, if there is one at this urgency.
    fn begin(
        &self,
        parts: &mut VecDeque<Box<dyn Job>>,
        kind: JobKind,
        urgency: Urgency,
    ) -> Result<Option<Box<dyn Job>>> {
        match (kind, &self.stages.buffer) {
            (JobKind::Merge, Some(buffer)) => buffer.next_job(urgency),
            // While its parts run, the buffer has no other drain. They are drains themselves: where
            // those come first, no compaction that was interrupted comes before them.
            (JobKind::Drain, Some(_)) => {
                match parts.iter().position(|part| part.kind() == JobKind::Drain) {
                    Some(at) => Ok(parts.remove(at)),
                    None => self.begin_drain(urgency),
                }
            }
            (JobKind::Reclaim, _) => match parts.pop_front() {
                Some(part) => Ok(Some(part)),
                None => match self.stages.bottom.next_job(urgency)? {
                    // An emptied extent is free once the readers of older views are gone. Until
                    // then emptying more of them would only take space.
                    None if self.needs_joining() && !self.views.is_older_pinned() => {
                        self.stages.bottom.join_space()
                    }
                    found => Ok(found),
                },
            },
            _ => Ok(None),
        }
    }

    /// Returns whether free space of the pool has to be joined before puts or drains can continue.
    fn needs_joining(&self) -> bool {
        self.headroom().needs_joining() || self.stages.bottom.awaits_piece()
    }

    fn begin_drain(&self, urgency: Urgency) -> Result<Option<Box<dyn Job>>> {
        let (Some(buffer), bottom) = (&self.stages.buffer, &self.stages.bottom) else {
            return Ok(None);
        };
        let waits = bottom.need().stops();
        let is_tight = self.shared.reserve.is_tight();
        let makes_room = || is_tight && bottom.makes_room_by(buffer.newest());
        if !self.stages.drains() || waits && !makes_room() {
            return Ok(None);
        }
        // Data resting in memory keeps its logs, and more of them than writers need next are not
        // worth it.
        let urgency = match urgency {
            Urgency::Rest if self.headroom().has_logs_to_free() => Urgency::Space,
            urgency => urgency,
        };
        // On a full disk a drain takes less at a time, since logs are freed only when all of it is
        // written.
        let bytes_max = match self.shared.reserve.is_tight() {
            true => 0,
            false => bottom.drain_bytes_now(),
        };
        let drain = buffer.next_drain(urgency, bytes_max, bottom.columns())?;
        drain.map(|drain| bottom.drain_job(drain)).transpose()
    }

    /// Returns whether another job may begin: each takes memory from its first step to its last,
    /// even while it waits for its turn.
    pub(super) fn has_memory(&self, state: &State) -> bool {
        self.has_memory_for(state, 1)
    }

    fn has_memory_for(&self, state: &State, jobs: usize) -> bool {
        state.with_memory() + state.heavy + jobs <= self.shared.memory.limits.jobs
    }

    /// Takes the first job of such a kind that was begun and may take a step.
    fn take_begun(&self, state: &mut State, wanted: impl Fn(JobKind) -> bool) -> Option<Parked> {
        let has_memory = self.has_memory(state);
        let may_go_on = |parked: &Parked| {
            has_memory || parked.has_memory() || parked.job.kind() == JobKind::Flush
        };
        let at = self.ready(state).into_iter().find(|&at| {
            let parked = &state.queue[at];
            wanted(parked.job.kind()) && may_go_on(parked)
        })?;
        Some(state.queue.remove(at))
    }
}
