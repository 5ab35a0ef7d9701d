//! Turns: which of drains and compactions a thread works on, where it could do either.
//!
//! A compaction may take seconds. A pool or log files that fill meanwhile would stop writers if drains had to
//! wait for it; level 0, and readers with it, would suffer if compactions always had to wait for
//! drains. So a thread turns, between two steps, to whatever is nearer to slowing writers: drains while the
//! pool or the logs press more than the bottom does, compactions otherwise. What it leaves is parked and
//! goes on later, on any thread.

use std::sync::Arc;

use crate::error::Result;
use crate::stages::{Job, JobKind, Urgency};

use super::Engine;
use super::jobs::State;
use super::throttle::Headroom;

impl Engine {
    /// Which of drains and compactions comes first now; `None` where nothing presses, or where both
    /// work in the pool and the order of jobs says enough.
    fn preferred(&self, headroom: &Headroom) -> Option<JobKind> {
        self.pipeline.buffer.as_ref()?;
        let bottom = &self.pipeline.bottom;
        if !bottom.is_outside_pool() {
            return None;
        }
        preferred(headroom.urgency(), headroom.pressing(), bottom.haste())
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
    ) -> Result<Option<Box<dyn Job>>> {
        let Some(preferred) = self.preferred(headroom) else {
            return Ok(None);
        };
        if let Some(at) = self.first_ready(state, |kind| kind == preferred) {
            return Ok(Some(state.queue.remove(at).job));
        }
        match preferred {
            JobKind::Drain => self.begin_drain(headroom.urgency()),
            _ => self.begin_reclaim(&mut state.parts, headroom.urgency()),
        }
    }
}

/// Which comes first when space is needed so badly, the pool or the logs press so much, and the bottom is in
/// such haste.
fn preferred(urgency: Urgency, pressing: f64, haste: f64) -> Option<JobKind> {
    match urgency {
        Urgency::None => None,
        Urgency::Space | Urgency::Everything if pressing >= haste => Some(JobKind::Drain),
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
            assert_eq!(preferred(urgency, 1.0, 2.0), Some(JobKind::Compact));
        }
    }
}
