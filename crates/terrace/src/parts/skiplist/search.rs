//! Searches in a list: for reads, for backward reads and for insertion.
//!
//! Every search descends the levels and never compares a node twice in a row. While a node is
//! compared, the candidates of the levels below are prefetched, so that their misses overlap. Links
//! come from media, so a search that takes more steps than any sound list needs returns an error
//! instead of looping.

use std::cmp::Ordering as Order;

use super::SkipList;
use super::layout::HEIGHT_MAX;
use super::node::{Node, next};
use crate::canary::failpoint;
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;

/// BOUND: a sound list of 2^40 nodes needs a few hundred steps; a cycle of links needs more.
const STEPS_MAX: u32 = 1 << 20;

/// The offset in a node at which most short keys end: the header, a link and 16 bytes of key.
const KEY_LINE: u64 = 55;

/// The number of steps after which a search hint is abandoned. One node in a thousand is so far
/// behind its predecessor on the level above.
pub(super) const SHORTCUT_STEPS: u32 = 16;

/// The result of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The first node at or after the target, or 0 at the end.
    pub(crate) node: u64,
    /// The first node that the search stepped to after the head, or 0 if there is none.
    pub(crate) first: u64,
}

/// A search in progress, see [`SkipList::begin_search`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    current: u64,
    /// The next node to compare.
    candidate: u64,
    bounded_by: u64,
    level: usize,
    steps: u32,
    /// The first node that the search stepped to after the head, or 0.
    first: u64,
}

impl Search {
    /// Returns the first node that the search stepped to after the head, or 0 if there is none.
    #[inline]
    pub(super) fn first(&self) -> u64 {
        self.first
    }
}

/// The last node before a target (possibly the head) and the one after it, on each level.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Splice {
    pub(crate) prev: [u64; HEIGHT_MAX],
    pub(crate) next: [u64; HEIGHT_MAX],
}

impl SkipList {
    /// Finds the first node at or after `target`.
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
                        // Delays some readers long enough, on an idle machine too, for the events
                        // that this canary must expose.
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

    /// Begins a search that compares one node per step and prefetches the next. Interleaving the
    /// searches of several lists overlaps their cache misses. Returns `None` if the list is empty.
    pub(crate) fn begin_search(&self) -> Result<Option<Search>, DecodeError> {
        let mut search = Search {
            current: self.head,
            candidate: 0,
            bounded_by: 0,
            level: self.top_level()?,
            steps: 0,
            first: 0,
        };
        Ok(match self.find_candidate(&mut search)? {
            true => Some(search),
            false => None,
        })
    }

    /// Takes one step of a search. Once the search ends, returns the first node at or after
    /// `target`, or 0 at the end.
    #[inline]
    pub(crate) fn step_search(
        &self,
        search: &mut Search,
        target: &Target<'_>,
    ) -> Result<Option<u64>, DecodeError> {
        let candidate = search.candidate;
        if Node::read(&self.region, candidate)?.compare(target) == Order::Less {
            if search.first == 0 {
                search.first = candidate;
            }
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

    /// Descends to the next node to compare and prefetches it. Returns false if there is none,
    /// which ends the search.
    #[inline]
    fn find_candidate(&self, search: &mut Search) -> Result<bool, DecodeError> {
        // BOUND: every iteration descends a level.
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

    /// Returns the last node before `target` at level `stop`, or 0 if that is the head. At level 0
    /// this is the predecessor; higher levels give a place some nodes earlier.
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

    /// Returns the neighbours of `target` on level 0, found from a search hint, or `None` if no
    /// search hint helps.
    #[inline]
    pub(super) fn near(&self, target: &Target<'_>) -> Result<Option<(u64, u64)>, DecodeError> {
        match self.hint(target, 0)? {
            Some(from) if self.is_before(from, target)? => self.walk_from(from, 0, target),
            _ => Ok(None),
        }
    }

    /// Returns a node on `level` that search hints propose as close before `target`, and prefetches
    /// it. The caller must compare it with `target`.
    #[inline]
    pub(super) fn hint(&self, target: &Target<'_>, level: u32) -> Result<Option<u64>, DecodeError> {
        let Some(search_hints) = &self.search_hints else {
            return Ok(None);
        };
        let hint = search_hints.before(&self.region, target, level)?;
        if let Some(from) = hint {
            self.region.prefetch(from);
            self.region.prefetch(from.wrapping_add(KEY_LINE));
        }
        Ok(hint)
    }

    /// Returns whether the node at `off` is before `target`.
    #[inline]
    pub(super) fn is_before(&self, off: u64, target: &Target<'_>) -> Result<bool, DecodeError> {
        Ok(Node::read(&self.region, off)?.compare(target) == Order::Less)
    }

    /// Prefetches and returns the node after the one at `off` on level 0, or returns 0 at the end.
    #[inline]
    pub(super) fn expect_next(&self, off: u64) -> Result<u64, DecodeError> {
        let next = next(&self.region, off, 0)?;
        self.region.prefetch(next);
        self.region.prefetch(next.wrapping_add(KEY_LINE));
        Ok(next)
    }

    /// Returns the neighbours of `target` on `level`, if they are within a few steps after `from`,
    /// which must precede it.
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

    /// Finds the neighbours of `target` on every level.
    pub(crate) fn splice(&self, target: &Target<'_>) -> Result<Splice, DecodeError> {
        self.splice_above(0, target)
    }

    /// Finds the neighbours of `target` on the levels from `lowest` up.
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

    /// Prefetches the lines that a search at `current` needs next: the second line of `candidate`,
    /// where its key may end, and the first line of the candidate one level down.
    #[inline(always)]
    fn expect(&self, current: u64, candidate: u64, level: usize) -> Result<(), DecodeError> {
        self.region.prefetch(candidate.wrapping_add(KEY_LINE));
        if level > 0 {
            self.region
                .prefetch(next(&self.region, current, level - 1)?);
        }
        Ok(())
    }

    /// As `expect`, but two levels down. A read descends there unless it steps forward, and loading
    /// `candidate` takes long enough to load all of them. A third level gains nothing, and in a
    /// writer's search it costs memory bandwidth that merges and flushes need.
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

    /// Returns the highest level that contains a node, or 0 for an empty list.
    #[inline(always)]
    fn top_level(&self) -> Result<usize, DecodeError> {
        let mut level = HEIGHT_MAX - 1;
        while level > 0 && next(&self.region, self.head, level)? == 0 {
            level -= 1;
        }
        Ok(level)
    }
}

/// Returns the error for links that form a cycle.
#[cold]
pub(super) fn cycle(off: u64) -> DecodeError {
    DecodeError {
        what: "skip-list links",
        offset: off,
        expected: "nodes in ascending order".into(),
        found: "links that do not end".into(),
    }
}
