//! This file finds places in a list: for reads, for reads backward, and for insertion.
//!
//! Every search goes down the levels and never compares a node twice in a row. The nodes that the levels below would
//! look at next are prefetched while the current one is compared, so that their misses overlap. Links come from
//! media: a search that takes more steps than any sound list needs ends in an error rather than in a loop.

use std::cmp::Ordering as Order;

use super::SkipList;
use super::layout::HEIGHT_MAX;
use super::node::{Node, next};
use crate::canary::failpoint;
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;

/// BOUND: a sound list of 2^40 nodes needs a few hundred steps; a cycle of links needs more.
const STEPS_MAX: u32 = 1 << 20;

/// Where most short keys end: the header, a link and 16 bytes of key.
const KEY_LINE: u64 = 55;

/// Steps from a shortcut after which it was not worth taking: of a thousand nodes one lies so far
/// behind the last one on level 1.
const SHORTCUT_STEPS: u32 = 16;

/// Where a search ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// The first node not before the target, 0 at the end.
    pub(crate) node: u64,
    /// The first node that the search stepped on after the head, 0 when it stepped on none.
    pub(crate) first: u64,
}

/// A search that is under way: see [`SkipList::begin_search`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    current: u64,
    /// The next node to be compared.
    candidate: u64,
    bounded_by: u64,
    level: usize,
    steps: u32,
}

/// For each level, the last node before a target (the head counts) and the one after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Splice {
    pub(crate) prev: [u64; HEIGHT_MAX],
    pub(crate) next: [u64; HEIGHT_MAX],
}

impl SkipList {
    /// Finds the first node not before `target`.
    #[inline]
    pub(crate) fn seek(&self, target: &Target<'_>) -> Result<Found, DecodeError> {
        if let Some((prev, node)) = self.near(target)? {
            return Ok(Found { node, first: prev });
        }
        let region = &self.region;
        let mut current = self.head;
        let mut first = 0;
        let mut bounded_by = 0;
        let mut steps = 0;
        let mut level = self.top_level()?;
        loop {
            let candidate = next(region, current, level)?;
            if candidate != 0 && candidate != bounded_by {
                self.expect_two(current, candidate, level)?;
                if Node::read(region, candidate)?.compare(target) == Order::Less {
                    if first == 0 {
                        first = candidate;
                        failpoint!(GarbageEarly => std::thread::yield_now());
                        // Some readers stand still for long enough that what they must not meet
                        // happens, on an idle machine too.
                        failpoint!(FrontierIgnored if (candidate >> 3).is_multiple_of(8)
                            => std::thread::sleep(std::time::Duration::from_micros(200)));
                    }
                    current = candidate;
                    steps += 1;
                    if steps > STEPS_MAX {
                        return Err(cycle(current));
                    }
                    continue;
                }
                bounded_by = candidate;
            }
            if level == 0 {
                return Ok(Found {
                    node: candidate,
                    first,
                });
            }
            level -= 1;
        }
    }

    /// Begins a search that compares one node a step and asks for the next one's memory: whoever searches several
    /// lists by turns waits for all of them at once. `None`: the list is empty.
    pub(crate) fn begin_search(&self) -> Result<Option<Search>, DecodeError> {
        let mut search = Search {
            current: self.head,
            candidate: 0,
            bounded_by: 0,
            level: self.top_level()?,
            steps: 0,
        };
        Ok(match self.find_candidate(&mut search)? {
            true => Some(search),
            false => None,
        })
    }

    /// Takes one step of a search; the first node not before `target`, 0 at the end, once that is found.
    #[inline]
    pub(crate) fn step_search(
        &self,
        search: &mut Search,
        target: &Target<'_>,
    ) -> Result<Option<u64>, DecodeError> {
        let candidate = search.candidate;
        if Node::read(&self.region, candidate)?.compare(target) == Order::Less {
            search.current = candidate;
            search.steps += 1;
            if search.steps > STEPS_MAX {
                return Err(cycle(candidate));
            }
        } else {
            search.bounded_by = candidate;
        }
        Ok(match self.find_candidate(search)? {
            true => None,
            false => Some(search.candidate),
        })
    }

    /// Goes down to a node that has to be compared, and asks for it. False: there is none, and the search has
    /// ended.
    #[inline]
    fn find_candidate(&self, search: &mut Search) -> Result<bool, DecodeError> {
        // BOUND: each turn goes down a level.
        loop {
            search.candidate = next(&self.region, search.current, search.level)?;
            if search.candidate != 0 && search.candidate != search.bounded_by {
                self.region.prefetch(search.candidate);
                self.region
                    .prefetch(search.candidate.wrapping_add(KEY_LINE));
                return Ok(true);
            }
            if search.level == 0 {
                return Ok(false);
            }
            search.level -= 1;
        }
    }

    /// The last node before `target` at `level`, 0 when that is the head. At level 0 this is the
    /// predecessor; higher levels give a place some nodes earlier.
    pub(crate) fn seek_before(&self, target: &Target<'_>, stop: usize) -> Result<u64, DecodeError> {
        let region = &self.region;
        let mut current = self.head;
        let mut bounded_by = 0;
        let mut steps = 0;
        let mut level = self.top_level()?.max(stop);
        loop {
            let candidate = next(region, current, level)?;
            if candidate != 0 && candidate != bounded_by {
                if Node::read(region, candidate)?.compare(target) == Order::Less {
                    current = candidate;
                    steps += 1;
                    if steps > STEPS_MAX {
                        return Err(cycle(current));
                    }
                    continue;
                }
                bounded_by = candidate;
            }
            if level == stop {
                return Ok(if current == self.head { 0 } else { current });
            }
            level -= 1;
        }
    }

    /// The neighbours of `target` on level 0, found from a shortcut; `None` when there is none that
    /// helps.
    #[inline]
    pub(super) fn near(&self, target: &Target<'_>) -> Result<Option<(u64, u64)>, DecodeError> {
        match self.hint(target)? {
            Some(from) if self.is_before(from, target)? => self.walk_from(from, 0, target),
            _ => Ok(None),
        }
    }

    /// A node on level 1 close before `target`, as far as shortcuts know; its memory is asked for, no more.
    #[inline]
    pub(super) fn hint(&self, target: &Target<'_>) -> Result<Option<u64>, DecodeError> {
        let Some(shortcuts) = &self.shortcuts else {
            return Ok(None);
        };
        let hint = shortcuts.before(&self.region, target)?;
        if let Some(from) = hint {
            self.region.prefetch(from);
            self.region.prefetch(from.wrapping_add(KEY_LINE));
        }
        Ok(hint)
    }

    /// Whether the node at `off` is before `target`.
    #[inline]
    pub(super) fn is_before(&self, off: u64, target: &Target<'_>) -> Result<bool, DecodeError> {
        Ok(Node::read(&self.region, off)?.compare(target) == Order::Less)
    }

    /// Asks for the memory of the node behind the one at `off` on level 0.
    #[inline]
    pub(super) fn expect_next(&self, off: u64) -> Result<(), DecodeError> {
        let next = next(&self.region, off, 0)?;
        self.region.prefetch(next);
        self.region.prefetch(next.wrapping_add(KEY_LINE));
        Ok(())
    }

    /// The neighbours of `target` on `level`, at most some steps behind `from`, which is before it.
    #[inline]
    pub(super) fn walk_from(
        &self,
        from: u64,
        level: usize,
        target: &Target<'_>,
    ) -> Result<Option<(u64, u64)>, DecodeError> {
        let mut current = from;
        for _ in 0..SHORTCUT_STEPS {
            let candidate = next(&self.region, current, level)?;
            if candidate == 0 {
                return Ok(Some((current, 0)));
            }
            self.region.prefetch(candidate.wrapping_add(KEY_LINE));
            if Node::read(&self.region, candidate)?.compare(target) != Order::Less {
                return Ok(Some((current, candidate)));
            }
            current = candidate;
        }
        Ok(None)
    }

    /// Finds the neighbours of `target` at every level.
    pub(crate) fn splice(&self, target: &Target<'_>) -> Result<Splice, DecodeError> {
        self.splice_above(0, target)
    }

    /// Finds the neighbours of `target` at the levels from `lowest` on.
    pub(super) fn splice_above(
        &self,
        lowest: usize,
        target: &Target<'_>,
    ) -> Result<Splice, DecodeError> {
        let mut splice = Splice {
            prev: [self.head; HEIGHT_MAX],
            next: [0; HEIGHT_MAX],
        };
        let region = &self.region;
        let mut current = self.head;
        let mut bounded_by = 0;
        let mut steps = 0;
        for level in (lowest..HEIGHT_MAX).rev() {
            loop {
                let candidate = next(region, current, level)?;
                if candidate == 0 || candidate == bounded_by {
                    splice.next[level] = candidate;
                    break;
                }
                self.expect(current, candidate, level)?;
                if Node::read(region, candidate)?.compare(target) != Order::Less {
                    bounded_by = candidate;
                    splice.next[level] = candidate;
                    break;
                }
                current = candidate;
                steps += 1;
                if steps > STEPS_MAX {
                    return Err(cycle(current));
                }
            }
            splice.prev[level] = current;
        }
        Ok(splice)
    }

    /// Prefetches what a search at `current` is about to look at: the second line of `candidate`, where its key may
    /// end, and the first line of the candidate one level down.
    #[inline(always)]
    fn expect(&self, current: u64, candidate: u64, level: usize) -> Result<(), DecodeError> {
        self.region.prefetch(candidate.wrapping_add(KEY_LINE));
        if level > 0 {
            self.region
                .prefetch(next(&self.region, current, level - 1)?);
        }
        Ok(())
    }

    /// As `expect`, and two levels down: a read goes there unless it steps forward, and `candidate` takes long enough
    /// for all to arrive with it. A third level gains nothing, and a writer's search loses by it what merges and
    /// flushes need of the memory.
    #[inline(always)]
    fn expect_two(&self, current: u64, candidate: u64, level: usize) -> Result<(), DecodeError> {
        self.expect(current, candidate, level)?;
        if level > 0 {
            let below = next(&self.region, current, level - 1)?;
            self.region.prefetch(below.wrapping_add(KEY_LINE));
        }
        if level > 1 {
            self.region
                .prefetch(next(&self.region, current, level - 2)?);
        }
        Ok(())
    }

    /// The highest level that has a node; 0 for an empty list.
    #[inline(always)]
    fn top_level(&self) -> Result<usize, DecodeError> {
        let mut level = HEIGHT_MAX - 1;
        while level > 0 && next(&self.region, self.head, level)? == 0 {
            level -= 1;
        }
        Ok(level)
    }
}

/// The error of links that form a circle.
#[cold]
pub(super) fn cycle(off: u64) -> DecodeError {
    DecodeError {
        what: "skip-list links",
        offset: off,
        expected: "nodes in ascending order".into(),
        found: "links that do not end".into(),
    }
}
