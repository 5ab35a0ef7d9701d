//! This file inserts a node into a list that many threads read and insert into at once.
//!
//! A node is linked from level 0 upward, each level by one compare-and-swap. A reader that finds it
//! on level 0 only walks a little longer. Nothing is ever removed from a list while others insert
//! (memtables only grow), so a compare-and-swap that fails has only to look at the nodes that came
//! in between.

use std::sync::atomic::Ordering;

use super::SkipList;
use super::layout::LINK_OFFSET;
use super::node::{Node, Target, link_word, next};
use crate::parts::codec::DecodeError;
use std::cmp::Ordering as Order;

impl SkipList {
    /// Links the node at `off`, already written, at the place of `target`.
    pub(crate) fn insert(
        &self,
        off: u64,
        height: u8,
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        if height == 1
            && let Some((prev, after)) = self.near(target)?
        {
            return self.link(off, 0, (prev, after), target);
        }
        if height == 2
            && let Some(from) = self.shortcut(target)?
            && let Some(upper) = self.walk_from(from, 1, target)?
            && let Some(lower) = self.walk_from(upper.0, 0, target)?
        {
            self.link(off, 0, lower, target)?;
            self.link(off, 1, upper, target)?;
        } else {
            let splice = self.splice(target)?;
            for level in 0..usize::from(height) {
                let between = (splice.prev[level], splice.next[level]);
                self.link(off, level, between, target)?;
            }
        }
        match &self.shortcuts {
            Some(shortcuts) if height > 1 => shortcuts.add(&self.region, off, target),
            _ => Ok(()),
        }
    }

    /// Links the node at `off` on one level, between two nodes that were neighbours a moment ago.
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
