//! The scheduler's decision: where a thread looks for its next job, in which order.
//!
//! [`choose`] is a function of plain numbers, so its cases are a table (tests.rs). It returns
//! places to look at; the engine takes the first job that it finds there (picker.rs). Whether a
//! place has a job depends on locks and on work that is begun meanwhile, so the decision does not
//! guess it.
//!
//! A compaction may take seconds. If drains had to wait for it, a pool or log files that fill
//! meanwhile would stop writers; if compactions always had to wait for drains, level 0 would grow
//! and reads would slow down. So a thread turns, between two steps, to the work that is nearer to
//! slowing writers: drains while the pool or the logs press more than the bottom does, compactions
//! otherwise ([`preferred`]). The job that it leaves is parked and resumes later, on any thread. If
//! a dedicated thread compacts, the others drain until the bottom slows writers.

use super::workers::Lane;
use crate::stages::{JobKind, Urgency};

/// At this pressure and above, nothing is merged before something is drained.
const MERGES_BELOW: f64 = 0.75;

/// A place where a thread looks for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// A spare memtable has to be made.
    Spare,
    /// The oldest sealed memtable, to be flushed.
    Sealed,
    /// Work inside the front.
    Front,
    /// Range deletes whose logs have to be synced.
    Ranges,
    /// Jobs of one kind that were begun.
    Begun(JobKind),
    /// Jobs that were begun, except flushes.
    AnyBegun,
    /// A job of this kind that is not begun yet.
    New(JobKind, Urgency),
}

/// The state that callers wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nothing.
    Nothing,
    /// Nothing, while writers rest.
    Rest,
    /// The current contents of the buffer have been drained.
    Drained,
    /// An empty buffer.
    Everything,
}

/// The numbers that the choice between merges, drains, compactions and reclaims depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) wanted: Wanted,
    /// The urgency of the pool and of the logs.
    pub(super) urgency: Urgency,
    /// The pressure of these on writers, from 0 to 1.
    pub(super) pressing: f64,
    /// The nearness of the bottom; `None` if drains stay in the pool.
    pub(super) bottom: Option<Nearness>,
    /// Whether the last choice put merges first.
    pub(super) merged_first: bool,
    /// Whether another job may take memory, and whether two may.
    pub(super) has_memory: bool,
    pub(super) has_memory_for_two: bool,
}

/// The nearness of the bottom to the point at which it takes no more data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nearness {
    /// At 1 the bottom begins to slow writers, at 2 it takes no more data.
    pub(super) need: f64,
    /// Whether another thread compacts.
    pub(super) apart: bool,
}

impl Nearness {
    /// Returns the nearness as one number: a half when the bottom begins to slow writers, 1 when it
    /// takes no more data. Drains have to stop only at 1, so before that a full pool is always
    /// drained. If another thread compacts, the nearness is 0 until the bottom begins to slow
    /// writers.
    fn part(self) -> f64 {
        match self.apart {
            true => (self.need - 1.0).clamp(0.0, 1.0),
            false => (self.need / 2.0).clamp(0.0, 1.0),
        }
    }
}

/// Returns which of drains and compactions comes first; `None` if nothing presses, or if both work
/// in the pool and the order of jobs decides.
pub(super) fn preferred(
    urgency: Urgency,
    pressing: f64,
    bottom: Option<Nearness>,
) -> Option<JobKind> {
    let bottom = bottom?.part();
    match urgency {
        Urgency::Rest | Urgency::None => None,
        Urgency::Space | Urgency::Everything if pressing >= bottom => Some(JobKind::Drain),
        Urgency::Space | Urgency::Everything => Some(JobKind::Compact),
    }
}

/// Returns the places where the flush thread looks. `is_held_up`: the bottom takes no more data.
pub(super) fn choose_flush(spare_is_due: bool, is_held_up: bool) -> Vec<Look> {
    let mut looks = Vec::with_capacity(4);
    if spare_is_due {
        looks.push(Look::Spare);
    }
    looks.push(Look::Begun(JobKind::Flush));
    if !is_held_up {
        looks.push(Look::Sealed);
    }
    looks.push(Look::Front);
    looks
}

/// Returns the places where a thread of another lane looks, and whether merges come first.
pub(super) fn choose(lane: Lane, now: &Now) -> (Vec<Look>, bool) {
    let urgency = match (now.wanted, now.urgency) {
        (Wanted::Rest, Urgency::None) => Urgency::Rest,
        (Wanted::Nothing | Wanted::Rest, urgency) => urgency,
        (Wanted::Drained, _) => Urgency::Space,
        (Wanted::Everything, _) => Urgency::Everything,
    };
    let mut looks = vec![Look::Ranges];
    if lane == Lane::Compactions {
        looks.push(Look::Begun(JobKind::Compact));
        if now.has_memory {
            looks.push(Look::New(JobKind::Reclaim, urgency));
        }
        return (looks, now.merged_first);
    }
    if lane == Lane::Merges {
        looks.push(Look::Begun(JobKind::Merge));
        // Drains need the memory more, and all of it if writers have almost stopped.
        if now.has_memory_for_two && (urgency != Urgency::Space || now.pressing < MERGES_BELOW) {
            looks.push(Look::New(JobKind::Merge, urgency));
        }
        return (looks, now.merged_first);
    }
    // While space is short, merges come first every second time, because a buffer of many small
    // tables is slow to read and to drain; but not if writers have almost stopped.
    let merges_first = match urgency {
        Urgency::Space => !now.merged_first && now.pressing < MERGES_BELOW,
        Urgency::Rest | Urgency::None | Urgency::Everything => true,
    };
    if merges_first && urgency == Urgency::Space {
        looks.push(Look::New(JobKind::Merge, urgency));
    }
    if let Some(kind) = preferred(now.urgency, now.pressing, now.bottom) {
        let new = match kind {
            JobKind::Drain => JobKind::Drain,
            _ => JobKind::Reclaim,
        };
        looks.extend([Look::Begun(kind), Look::New(new, now.urgency)]);
    }
    looks.push(Look::AnyBegun);
    looks.extend(new_jobs(urgency).map(|kind| Look::New(kind, urgency)));
    if !now.has_memory {
        looks.retain(|look| !matches!(look, Look::New(..)));
    }
    if lane == Lane::Drains && now.has_memory {
        // Last: a merge that was interrupted keeps its tables from draining, and small tables slow
        // readers while the bottom accepts no drain.
        looks.retain(|look| !matches!(look, Look::New(JobKind::Merge, _)));
        looks.push(Look::New(JobKind::Merge, urgency));
        return (looks, now.merged_first);
    }
    (looks, merges_first)
}

/// Returns the kinds of jobs that can be begun at this urgency, the most wanted first.
pub(super) fn new_jobs(urgency: Urgency) -> [JobKind; 3] {
    use JobKind::{Drain, Merge, Reclaim};
    match urgency {
        Urgency::Space => [Drain, Reclaim, Merge],
        Urgency::Rest | Urgency::None | Urgency::Everything => [Merge, Drain, Reclaim],
    }
}

#[cfg(test)]
mod tests;
