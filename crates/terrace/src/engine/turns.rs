//! Turns: which job comes next, of those that were begun and those that could be.
//!
//! A compaction may take seconds. A pool or log files that fill meanwhile would stop writers if drains had to
//! wait for it; level 0, and readers with it, would suffer if compactions always had to wait for
//! drains. So a thread turns, between two steps, to whatever is nearer to slowing writers: drains while the
//! pool or the logs press more than the bottom does, compactions otherwise. What it leaves is parked and
//! goes on later, on any thread. Where a thread of its own compacts, the others drain until writers are slowed
//! for the bottom's sake.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::Result;
use crate::stages::{Job, JobKind, Urgency};

use super::Engine;
use super::queue::{Parked, State};
use super::throttle::Headroom;

/// The pressure from which on nothing is merged before something is drained.
const MERGES_BELOW: f64 = 0.75;

impl Engine {
    /// Which of drains and compactions comes first now; `None` where nothing presses, or where both
    /// work in the pool and the order of jobs says enough.
    fn preferred(&self, headroom: &Headroom) -> Option<JobKind> {
        self.pipeline.buffer.as_ref()?;
        let bottom = &self.pipeline.bottom;
        if !bottom.is_outside_pool() {
            return None;
        }
        let apart = self.compacts_apart();
        let bottom = nearness(bottom.haste(), bottom.pressure().part, apart);
        preferred(headroom.urgency(), headroom.pressing(), bottom)
    }

    /// Whether a job of this kind should let one of the other kind go before its next step.
    pub(super) fn should_give_way(&self, kind: JobKind) -> bool {
        if !matches!(kind, JobKind::Drain | JobKind::Compact) {
            return false;
        }
        let preferred = self.preferred(&self.headroom());
        preferred.is_some_and(|preferred| preferred != kind)
    }

    /// The job that comes before those that were begun: one of the preferred kind, begun already or not.
    pub(super) fn take_preferred(
        self: &Arc<Self>,
        state: &mut State,
        headroom: &Headroom,
    ) -> Result<Option<Parked>> {
        let Some(preferred) = self.preferred(headroom) else {
            return Ok(None);
        };
        if let Some(at) = self.first_ready(state, |kind| kind == preferred) {
            return Ok(Some(state.queue.remove(at)));
        }
        if !self.has_memory(state) {
            return Ok(None);
        }
        let job = match preferred {
            JobKind::Drain => self.begin_drain(headroom.urgency())?,
            _ => self.begin_reclaim(&mut state.parts, headroom.urgency())?,
        };
        Ok(job.map(Parked::ready))
    }

    /// Whether a merge comes before drains. While space is short, every second time: a buffer of many small
    /// tables is slow to read and to drain. Not where writers have all but stopped.
    pub(super) fn merges_are_due(
        &self,
        state: &State,
        urgency: Urgency,
        headroom: &Headroom,
    ) -> bool {
        match urgency {
            Urgency::Space => !state.merges_first && headroom.pressing() < MERGES_BELOW,
            Urgency::Rest | Urgency::None | Urgency::Everything => true,
        }
    }

    pub(super) fn begin_merge(&self) -> Result<Option<Box<dyn Job>>> {
        match &self.pipeline.buffer {
            Some(buffer) => buffer.next_job(),
            None => Ok(None),
        }
    }

    /// The most wanted job of those that merge, drain and reclaim, if space is needed so badly.
    pub(super) fn begin(
        &self,
        parts: &mut VecDeque<Box<dyn Job>>,
        urgency: Urgency,
    ) -> Result<Option<Box<dyn Job>>> {
        let merge = |_| self.begin_merge();
        let drain = |urgency| self.begin_drain(urgency);
        let mut reclaim = |urgency| self.begin_reclaim(parts, urgency);
        type Find<'a> = &'a mut dyn FnMut(Urgency) -> Result<Option<Box<dyn Job>>>;
        let order: [Find<'_>; 3] = match urgency {
            Urgency::Space => [&mut { drain }, &mut reclaim, &mut { merge }],
            Urgency::Rest | Urgency::None | Urgency::Everything => {
                [&mut { merge }, &mut { drain }, &mut reclaim]
            }
        };
        for find in order {
            if let Some(job) = find(urgency)? {
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    fn begin_drain(&self, urgency: Urgency) -> Result<Option<Box<dyn Job>>> {
        let (Some(buffer), bottom) = (&self.pipeline.buffer, &self.pipeline.bottom) else {
            return Ok(None);
        };
        if bottom.pressure().part >= 1.0 {
            return Ok(None);
        }
        // What rests in memory keeps its logs: more of them than writers need next are not worth it.
        let urgency = match urgency {
            Urgency::Rest if self.headroom().has_logs_to_free() => Urgency::Space,
            urgency => urgency,
        };
        // On a full disk less at a time, since logs go only when all of it is written.
        let bytes_max = match self.ground.reserve.is_tight() {
            true => 0,
            false => bottom.drain_bytes_now(),
        };
        let drain = buffer.next_drain(urgency, bytes_max, bottom.is_durable())?;
        drain.map(|drain| bottom.absorb(drain)).transpose()
    }

    pub(super) fn begin_reclaim(
        &self,
        parts: &mut VecDeque<Box<dyn Job>>,
        urgency: Urgency,
    ) -> Result<Option<Box<dyn Job>>> {
        match parts.pop_front() {
            Some(part) => Ok(Some(part)),
            None => self.pipeline.bottom.next_job(urgency),
        }
    }

    /// Whether another job may begin: each takes memory from its first step to its last, where it waits for
    /// its turn too.
    pub(super) fn has_memory(&self, state: &State) -> bool {
        state.with_memory() + state.heavy < self.ground.memory.limits.jobs
    }

    /// The place in the queue of the first job of such a kind that may take a step.
    pub(super) fn first_ready(
        &self,
        state: &State,
        wanted: impl Fn(JobKind) -> bool,
    ) -> Option<usize> {
        let has_memory = self.has_memory(state);
        let may_go_on = |parked: &Parked| {
            has_memory || parked.has_memory() || parked.job.kind() == JobKind::Flush
        };
        let ready = self.ready(state);
        ready.into_iter().find(|&at| {
            let parked = &state.queue[at];
            wanted(parked.job.kind()) && may_go_on(parked)
        })
    }
}

/// How near the bottom is to the point where nothing more may come down: a half where it begins to slow writers,
/// 1 there. So drains, which only then have to stop, are never kept from a pool that is full before. Where
/// another thread compacts (`apart`), it is not near at all before it begins to slow writers.
fn nearness(haste: f64, pressure: f64, apart: bool) -> f64 {
    let pressure = pressure.clamp(0.0, 1.0);
    match apart {
        true => pressure,
        false => (haste.clamp(0.0, 1.0) + pressure) / 2.0,
    }
}

/// Which comes first when space is needed so badly, the pool or the logs press so much, and the bottom is so
/// near.
fn preferred(urgency: Urgency, pressing: f64, bottom: f64) -> Option<JobKind> {
    match urgency {
        Urgency::Rest | Urgency::None => None,
        Urgency::Space | Urgency::Everything if pressing >= bottom => Some(JobKind::Drain),
        Urgency::Space | Urgency::Everything => Some(JobKind::Compact),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is nearer to slowing writers comes first; without need neither does.
    #[test]
    fn what_presses_more_comes_first() {
        assert_eq!(preferred(Urgency::None, 1.0, 0.0), None);
        assert_eq!(preferred(Urgency::None, 0.0, 1.0), None);
        for urgency in [Urgency::Space, Urgency::Everything] {
            assert_eq!(preferred(urgency, 0.0, 0.0), Some(JobKind::Drain));
            assert_eq!(preferred(urgency, 0.5, 0.4), Some(JobKind::Drain));
            assert_eq!(preferred(urgency, 0.4, 0.5), Some(JobKind::Compact));
        }
    }

    /// Writers do not stop for a full pool while drains could go on: those come first until the bottom takes
    /// nothing more.
    #[test]
    fn a_full_pool_is_drained_until_the_bottom_stops() {
        for (haste, pressure) in [(0.0, 0.0), (1.0, 0.0), (2.5, 0.5), (4.0, 0.99), (4.0, 1.0)] {
            for apart in [false, true] {
                let bottom = nearness(haste, pressure, apart);
                assert_eq!(preferred(Urgency::Space, 1.0, bottom), Some(JobKind::Drain));
            }
        }
        assert!(
            (nearness(1.0, 0.0, false) - 0.5).abs() < 1e-9,
            "where writers begin to be slowed"
        );
        assert_eq!(
            preferred(Urgency::Space, 0.4, nearness(1.5, 0.2, false)),
            Some(JobKind::Compact)
        );
        assert_eq!(
            preferred(Urgency::Space, 0.9, nearness(4.0, 1.0, false)),
            Some(JobKind::Compact)
        );
    }

    /// Beside a thread that compacts, drains go on while writers are slowed for their sake and not yet for that of
    /// the bottom; then both work on the bottom.
    #[test]
    fn drains_go_on_beside_compactions() {
        let comes_first = |bottom| preferred(Urgency::Space, 0.3, bottom);
        assert_eq!(
            comes_first(nearness(0.9, 0.0, false)),
            Some(JobKind::Compact)
        );
        assert_eq!(comes_first(nearness(0.9, 0.0, true)), Some(JobKind::Drain));
        assert_eq!(
            comes_first(nearness(2.0, 0.4, true)),
            Some(JobKind::Compact)
        );
    }
}
