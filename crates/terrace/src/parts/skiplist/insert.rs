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
use super::search_hints::Hint;
use super::walk::relink_sorted;
use crate::parts::codec::DecodeError;
use crate::parts::key::{Target, key_front};

/// The nodes that search hints propose for an entry to be inserted, not yet compared with it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Approach(Option<Hint>);

/// The number of nodes that are prefetched while sorted nodes are linked.
const LINKS_AHEAD: usize = 8;

/// Returns the first bytes of a place in the sort order, as a number. Places with equal numbers are
/// to be compared themselves.
pub(crate) fn sort_head(keyspace: u32, key: &[u8]) -> u128 {
    let (front, rest) = key.split_at(key.len().min(8));
    let key = u128::from(key_front(front)) << 32 | u128::from(key_front(rest) >> 32);
    u128::from(keyspace) << 96 | key
}

impl SkipList {
    /// Finds where an entry at `target` will be inserted, and prefetches the memory there, which
    /// loads while the caller writes the node. This is a hint; the insertion reports errors.
    #[inline]
    pub(crate) fn approach(&self, target: &Target<'_>) -> Approach {
        Approach(self.hint(target))
    }

    /// Continues an approach whose memory is loaded, and prefetches the next node. Returns the
    /// nodes from which `insert_from` may start, or `None` if the approach found no node before
    /// `target`.
    #[inline]
    pub(crate) fn look_ahead(
        &self,
        Approach(hint): Approach,
        target: &Target<'_>,
    ) -> Result<Option<Hint>, DecodeError> {
        let Some(hint) = hint else {
            return Ok(None);
        };
        if !self.is_before(hint.last, target)? {
            return Ok(None);
        }
        self.expect_next(hint.last)?;
        Ok(Some(hint))
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
    /// insertion, so the last of `from` is still before `target`.
    pub(crate) fn insert_from(
        &self,
        from: Option<Hint>,
        off: u64,
        height: u8,
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        if height == 1
            && let Some(Hint { last, .. }) = from
            && let Some(between) = self.walk_from(last, 0, target)?
        {
            self.link(off, 0, between, target)?;
        } else if height > 1
            && let Some(Hint { last, on_level1 }) = from
            && on_level1 != 0
            && self.node(on_level1)?.header.height > 1
            && (last == on_level1 || self.is_before(on_level1, target)?)
            && let Some(upper) = self.walk_from(on_level1, 1, target)?
            // In a dense list the last node is closer.
            && let Some(lower) =
                self.walk_from(if self.is_dense { last } else { upper.0 }, 0, target)?
        {
            let splice = match height {
                2 => None,
                _ => Some(self.splice_above(2, target)?),
            };
            self.link(off, 0, lower, target)?;
            self.link(off, 1, upper, target)?;
            if let Some(splice) = splice {
                self.link_levels(off, 2..usize::from(height), &splice, target)?;
            }
        } else {
            let splice = self.splice(target)?;
            self.link_levels(off, 0..usize::from(height), &splice, target)?;
        }
        match &self.search_hints {
            Some(search_hints) if height > 1 || self.is_dense => {
                search_hints.add(&self.region, off, height, target)
            }
            _ => Ok(()),
        }
    }

    /// Links nodes that are written into an empty list that no other thread uses yet. Each has its
    /// place from `sort_head`. Sorting them costs a fraction of as many insertions, of which each
    /// would miss the caches several times.
    pub(crate) fn link_all(&self, nodes: &mut [(u128, u64)]) -> Result<(), DecodeError> {
        let mut failed = None;
        nodes.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| {
                let nodes = [a.1, b.1].map(|off| self.node(off));
                match nodes {
                    [Ok(a), Ok(b)] => a.compare(&b.target()),
                    [Err(e), _] | [_, Err(e)] => {
                        failed = Some(e);
                        Order::Equal
                    }
                }
            })
        });
        if let Some(e) = failed {
            return Err(e);
        }
        let ahead = |at: usize| {
            if let Some((_, off)) = nodes.get(at + LINKS_AHEAD) {
                self.region.prefetch(*off);
            }
        };
        let offs = nodes.iter().enumerate().map(|(at, (_, off))| {
            ahead(at);
            *off
        });
        relink_sorted(&self.region, self.head, offs)?;
        let Some(search_hints) = &self.search_hints else {
            return Ok(());
        };
        for (at, (_, off)) in nodes.iter().enumerate() {
            ahead(at);
            let node = self.node(*off)?;
            let height = node.header.height;
            if height > 1 || self.is_dense {
                search_hints.add(&self.region, *off, height, &node.target())?;
            }
        }
        Ok(())
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
