//! Insertion of nodes into a list that many threads read and insert into concurrently.
//!
//! A node is linked from level 0 upward, each level by one compare-and-swap. Until all levels are
//! linked, a reader that finds it on level 0 only walks a little longer. Nothing is ever removed
//! from a list under insertion (memtables only grow), so a failed compare-and-swap has to examine
//! only the nodes inserted in between.

use std::cmp::Ordering as Order;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::SkipList;
use super::layout::LINK_OFFSET;
use super::node::{Node, link_word, next};
use super::search::Splice;
use super::search_hints::LEVEL_MAX;
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;

/// A node that search hints propose for an entry to be inserted, not yet compared with it; 0 if
/// there is none.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Approach(u64);

impl SkipList {
    /// Finds where an entry at `target` will be inserted, and prefetches the memory there, which
    /// loads while the caller writes the node. This is a hint; the insertion reports errors.
    #[inline]
    pub(crate) fn approach(&self, target: &Target<'_>) -> Approach {
        Approach(self.hint(target, 0).ok().flatten().unwrap_or(0))
    }

    /// Continues an approach whose memory is loaded, and prefetches the next node. Returns the node
    /// from which `insert_from` may start, or `None` if the approach found no node before
    /// `target`.
    #[inline]
    pub(crate) fn look_ahead(
        &self,
        Approach(from): Approach,
        target: &Target<'_>,
    ) -> Result<Option<u64>, DecodeError> {
        if from == 0 || !self.is_before(from, target)? {
            return Ok(None);
        }
        self.expect_next(from)?;
        Ok(Some(from))
    }

    /// Links the node at `off`, already written, at the place of `target`.
    #[cfg(any(test, feature = "decoders"))]
    pub(crate) fn insert(
        &self,
        off: u64,
        height: u8,
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        let from = self.look_ahead(self.approach(target), target)?;
        self.insert_from(from, off, height, target)
    }

    /// Links the node at `off`, already written, at the place of `target`. The search starts at
    /// `from`, which `look_ahead` returned, or at the head. Nodes do not move in a list under
    /// insertion, so `from` is still before `target`.
    pub(crate) fn insert_from(
        &self,
        from: Option<u64>,
        off: u64,
        height: u8,
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        let lowest = match from {
            Some(from) => self.walk_from(from, 0, target)?,
            None => None,
        };
        match lowest {
            Some(between) if height == 1 => self.link(off, 0, between, target)?,
            Some(between) => self.link_above(off, height, between, target)?,
            None => {
                let splice = self.splice(target)?;
                self.link_levels(off, 0..usize::from(height), &splice, target)?;
            }
        }
        match &self.search_hints {
            Some(search_hints) => search_hints.add(&self.region, (off, height), target),
            None => Ok(()),
        }
    }

    /// Links a node of more than one level, whose neighbours on level 0 are known.
    fn link_above(
        &self,
        off: u64,
        height: u8,
        lowest: (u64, u64),
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        let height = usize::from(height);
        let mut near = [lowest; 1 + LEVEL_MAX as usize];
        let mut found = 1;
        while found < near.len().min(height)
            && let Some(from) = self.hint(target, found as u32)?
            && self.is_before(from, target)?
            && let Some(between) = self.walk_from(from, found, target)?
        {
            near[found] = between;
            found += 1;
        }
        let splice = match found < height {
            true => Some(self.splice_above(found, target)?),
            false => None,
        };
        for (level, between) in near.into_iter().enumerate().take(found) {
            self.link(off, level, between, target)?;
        }
        match splice {
            Some(splice) => self.link_levels(off, found..height, &splice, target),
            None => Ok(()),
        }
    }

    fn link_levels(
        &self,
        off: u64,
        levels: Range<usize>,
        splice: &Splice,
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        for level in levels {
            let between = (splice.prev[level], splice.next[level]);
            self.link(off, level, between, target)?;
        }
        Ok(())
    }

    /// Links the node at `off` on one level, between two nodes that were just neighbours.
    #[inline]
    fn link(
        &self,
        off: u64,
        level: usize,
        (mut prev, mut after): (u64, u64),
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        loop {
            // Relaxed: the node is not reachable at this level until the exchange below, whose
            // Release orders this store before it.
            link_word(&self.region, off, level)?.store(after, Ordering::Relaxed);
            let exchange = link_word(&self.region, prev, level)?.compare_exchange(
                after,
                off,
                Ordering::Release,
                Ordering::Acquire,
            );
            let Err(found) = exchange else { return Ok(()) };
            // BOUND: each failure means that another thread has linked a node here.
            after = found & LINK_OFFSET;
            while after != 0 && Node::read(&self.region, after)?.compare(target) == Order::Less {
                prev = after;
                after = next(&self.region, prev, level)?;
            }
        }
    }
}
