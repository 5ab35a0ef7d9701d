//! Admission: how callers wait for space in the pool, and when they give up.
//!
//! Invariants
//!   A1  Whoever waits looks for work in the workers' place, so a job that can free space is begun.
//!   A2  Every wait is bounded by steps of the work that it waits for, and by no clock: looks at a pool in
//!       which nothing can free space, and runs of jobs by which no more became free than at an earlier
//!       look, since others took it first.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::metrics::StallReason;
use crate::options::Workers;

use super::Engine;
use super::commit::WAIT;

/// How long a caller waits in a full pool that nothing can free space in, before it looks again.
const STUCK: Duration = Duration::from_millis(5);
/// BOUND: how often it looks in vain before it gives up. More than once, since whoever holds a lock for a
/// moment may hide a job.
const LOOKS: u32 = 4;
/// The same while readers hold back what could be free: for half a second. Bounded, since the reader may
/// be an iterator or a snapshot that is not used, of the very thread that writes. Looks are counted, and
/// no clock is read: a machine that stood still has not let readers go on either.
const LOOKS_HELD: u32 = 100;
/// BOUND: how many runs of jobs go by, while no more becomes free than before, until a caller gives up.
const TURNOVER_MAX: u64 = 4096;
/// For how many runs one counts that gave space back, which others took. The rest, as merges, may have to be
/// many before one can.
pub(super) const RELEASE: u64 = 16;

/// What a caller who waits for space has seen.
#[derive(Debug, Default)]
pub(super) struct SpaceWait {
    /// Looks in vain since something ran.
    looks: u32,
    /// The fewest bytes that were allocated, and the turnover by then.
    least: Option<(u64, u64)>,
}

/// What a caller who waits for space does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Wait for the work that goes on.
    Work,
    /// Look again: nothing runs, but readers may let go.
    Look,
    /// Give up: nothing can free space.
    Full,
    /// Give up: others take what is freed.
    Starved,
}

impl SpaceWait {
    /// Judges a look: whether nothing runs or can, how many bytes are allocated, and how far jobs have come.
    fn judge(&mut self, stuck: bool, allocated: u64, turnover: u64, patience: u32) -> Verdict {
        match self.least {
            Some((least, since)) if allocated >= least => {
                if turnover.saturating_sub(since) > TURNOVER_MAX {
                    return Verdict::Starved;
                }
            }
            _ => self.least = Some((allocated, turnover)),
        }
        if !stuck {
            self.looks = 0;
            return Verdict::Work;
        }
        self.looks += 1;
        match self.looks > patience {
            true => Verdict::Full,
            false => Verdict::Look,
        }
    }

    /// Counts a look at what readers hold, and says whether there may be another one.
    pub(super) fn goes_on_for_readers(&mut self) -> bool {
        self.looks += 1;
        // A wait for a change is four times as long as one in a pool that is stuck.
        self.looks < LOOKS_HELD / 4
    }
}

impl Engine {
    /// At how many looks in vain whoever needs space gives up. To be asked before the look at what is free, so
    /// that what readers let go of in between is not missed: they hold back extents with a view, and
    /// superseded entries with a snapshot.
    pub(super) fn patience(&self) -> u32 {
        let held = self.views.is_older_pinned() || self.ground.snapshots.count() > 0;
        if held { LOOKS_HELD } else { LOOKS }
    }

    /// Lets background work free space. `Full` when a disk is what that waits for, when none could free any at
    /// so many looks as the patience is, or when others take what is freed.
    pub(super) fn wait_for_space(
        self: &Arc<Self>,
        patience: u32,
        first: bool,
        wait: &mut SpaceWait,
    ) -> Result<StallReason> {
        if let Some(why) = self.disk_full()
            && !self.may_find_room(first)
        {
            return Err(why);
        }
        let reason = StallReason::PoolFull;
        if self.jobs.workers() == Workers::Manual {
            // Nobody else would let go meanwhile.
            return if self.step_for_space()? {
                Ok(reason)
            } else {
                Err(self.full_error())
            };
        }
        let stuck = self.is_stuck()?;
        let allocated = self.ground.pool.usage().allocated;
        match wait.judge(stuck, allocated, self.jobs.turnover(), patience) {
            Verdict::Work => self.jobs.wait_changed(WAIT),
            // Nobody would notify: nothing runs, and readers let go silently.
            Verdict::Look => std::thread::sleep(STUCK),
            Verdict::Full => return Err(self.full_error()),
            Verdict::Starved => return Err(self.starved_error()),
        }
        Ok(reason)
    }

    /// Why a call is refused when nothing can free space.
    pub(super) fn full_error(&self) -> Error {
        self.no_space("the rest is kept for moving data; delete data")
    }

    /// Why a call is refused when other writers take whatever is freed.
    fn starved_error(&self) -> Error {
        self.no_space("other writers take what is freed; try again when they write less")
    }

    fn no_space(&self, why: &str) -> Error {
        let usage = self.ground.pool.usage();
        Error::new(
            ErrorKind::Full,
            format!(
                "the pool is full: {} of {} bytes are in use and {why}, or reopen with a larger \
                 pool.size_bytes",
                usage.allocated, usage.cap
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a caller hears who sees these looks: stuck or not, bytes allocated, the turnover.
    fn verdicts(looks: impl IntoIterator<Item = (bool, u64, u64)>) -> Vec<Verdict> {
        let mut wait = SpaceWait::default();
        let looks = looks.into_iter();
        looks
            .map(|(stuck, allocated, turnover)| wait.judge(stuck, allocated, turnover, LOOKS))
            .collect()
    }

    /// A caller waits beside other writers for as long as more becomes free, however slowly, and ends
    /// when it does not.
    #[test]
    fn a_wait_ends_where_others_take_what_is_freed() {
        let slowly = (0..20_000u64).map(|n| (false, 1_000_000 - n / TURNOVER_MAX, n));
        assert!(verdicts(slowly).iter().all(|v| *v == Verdict::Work));
        let vain = (0..20_000u64).map(|n| (false, 1_000_000 + n % 7, n));
        let vain = verdicts(vain);
        let ended = vain.iter().position(|v| *v == Verdict::Starved);
        assert_eq!(ended, Some(TURNOVER_MAX as usize + 1));
    }

    /// Work that gives nothing back is waited for: a merge, a long flush.
    #[test]
    fn a_wait_does_not_end_while_one_job_works() {
        let works = (0..10_000).map(|_| (false, 5, 3));
        assert!(verdicts(works).iter().all(|v| *v == Verdict::Work));
    }

    /// Where nothing can free space the looks are counted, and any work begins the count anew.
    #[test]
    fn a_wait_ends_where_nothing_can_free_space() {
        let mut stuck = vec![(true, 5, 0); LOOKS as usize];
        assert!(verdicts(stuck.clone()).iter().all(|v| *v == Verdict::Look));
        stuck.push((false, 5, 0));
        stuck.extend(vec![(true, 5, 0); LOOKS as usize + 1]);
        let heard = verdicts(stuck);
        let full = heard.iter().position(|v| *v == Verdict::Full);
        assert_eq!(full, Some(heard.len() - 1));
    }
}
