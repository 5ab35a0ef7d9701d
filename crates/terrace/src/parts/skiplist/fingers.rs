//! This file plans changes of links: a hand on every level of a list that only moves forward.
//!
//! Merging and draining visit keys in ascending order, so the search for each place begins where
//! the last one ended. Changes are *planned*: they go to a [`Plan`] and reach the list later, all
//! at once, through the redo area. Fingers therefore remember what the words that they have
//! changed will hold, and read from memory only links of nodes ahead of every planned change.

use std::cmp::Ordering as Order;

use super::SkipList;
use super::layout::{HEADER_BYTES, HEIGHT_MAX};
use super::node::{Target, link_at};
use super::search::cycle;
use crate::parts::codec::DecodeError;

/// Where planned stores go: word offset and new value, in the order in which readers may see them.
pub(crate) trait Plan {
    /// Plans one store of `value` to the word at `off`.
    fn store(&mut self, off: u64, value: u64);
}

/// For each level, the node before the current place and the one after it, planned changes
/// included.
#[derive(Debug, Clone)]
pub(crate) struct Fingers {
    prev: [u64; HEIGHT_MAX],
    next: [u64; HEIGHT_MAX],
    /// Levels at and above this one are empty and need no look.
    levels: usize,
    /// BOUND: nodes that the region has room for; links that go round lead to more.
    steps_left: u64,
}

impl Fingers {
    /// Fingers at the beginning of `list`.
    pub(crate) fn at_start(list: &SkipList) -> Result<Fingers, DecodeError> {
        let mut fingers = Fingers {
            prev: [list.head(); HEIGHT_MAX],
            next: [0; HEIGHT_MAX],
            levels: 1,
            steps_left: HEIGHT_MAX as u64
                * ((list.region().end() - list.region().origin()) / HEADER_BYTES as u64),
        };
        for level in 0..HEIGHT_MAX {
            fingers.next[level] = list.next(list.head(), level)?;
            if fingers.next[level] != 0 {
                fingers.levels = level + 1;
            }
        }
        Ok(fingers)
    }

    /// Fingers at `target`, found from the head.
    pub(crate) fn at(list: &SkipList, target: &Target<'_>) -> Result<Fingers, DecodeError> {
        let mut fingers = Fingers::at_start(list)?;
        fingers.advance(list, target)?;
        Ok(fingers)
    }

    /// The first node at or after the current place, 0 at the end.
    pub(crate) fn following(&self) -> u64 {
        self.next[0]
    }

    /// The node before the current place on `level`; the head counts.
    pub(crate) fn before(&self, level: usize) -> u64 {
        self.prev[level]
    }

    /// Moves forward until the next node of every level is not before `target`, which must not be
    /// before the current place.
    pub(crate) fn advance(
        &mut self,
        list: &SkipList,
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        let mut reached = 0;
        let mut bounded_by = 0;
        for level in (0..self.levels).rev() {
            if reached != 0 {
                self.prev[level] = reached;
                self.next[level] = list.next(reached, level)?;
            }
            loop {
                let candidate = self.next[level];
                if candidate == 0 || candidate == bounded_by {
                    break;
                }
                if list.node(candidate)?.compare(target) != Order::Less {
                    bounded_by = candidate;
                    break;
                }
                reached = candidate;
                self.prev[level] = candidate;
                self.next[level] = list.next(candidate, level)?;
                list.region().prefetch(self.next[level]);
                if self.steps_left == 0 {
                    return Err(cycle(candidate));
                }
                self.steps_left -= 1;
            }
        }
        Ok(())
    }

    /// Plans the insertion of the node at `off` at the current place, and steps on it.
    ///
    /// The node's own links come first and level 0 is linked before the levels above, so that at
    /// every moment a reader sees a list that satisfies S1 and S2.
    pub(crate) fn insert(&mut self, off: u64, height: u8, plan: &mut impl Plan) {
        let height = usize::from(height);
        for level in 0..height {
            plan.store(link_at(off, level), self.next[level]);
        }
        self.link(off, height, plan);
    }

    /// Like [`insert`](Fingers::insert) for a node whose links were written as
    /// [`links`](Fingers::links) gave them.
    pub(crate) fn insert_linked(&mut self, off: u64, height: u8, plan: &mut impl Plan) {
        self.link(off, usize::from(height), plan);
    }

    /// The links that a node inserted here must have.
    pub(crate) fn links(&self, height: u8) -> &[u64] {
        &self.next[..usize::from(height)]
    }

    fn link(&mut self, off: u64, height: usize, plan: &mut impl Plan) {
        for level in 0..height {
            plan.store(link_at(self.prev[level], level), off);
            self.prev[level] = off;
        }
        self.levels = self.levels.max(height);
    }

    /// Steps over the node at the current place.
    pub(crate) fn pass(&mut self, list: &SkipList) -> Result<(), DecodeError> {
        let off = self.next[0];
        let height = usize::from(list.node(off)?.header.height);
        for level in 0..height {
            if self.next[level] != off {
                return Err(torn_tower(off, height, level, self.next[level]));
            }
            self.prev[level] = off;
            self.next[level] = list.next(off, level)?;
        }
        list.region().prefetch(self.next[0]);
        list.region().prefetch(self.next[1]);
        if self.steps_left == 0 {
            return Err(cycle(off));
        }
        self.steps_left -= 1;
        Ok(())
    }

    /// Plans that the node at the current place leaves the list. Its own links stay, so a reader
    /// that stands on it goes on (S3).
    pub(crate) fn unlink(
        &mut self,
        list: &SkipList,
        plan: &mut impl Plan,
    ) -> Result<(), DecodeError> {
        let off = self.next[0];
        let height = usize::from(list.node(off)?.header.height);
        // From the top, so that no level leads to a node that the one below has left.
        for level in (0..height).rev() {
            if self.next[level] != off {
                return Err(torn_tower(off, height, level, self.next[level]));
            }
            let after = list.next(off, level)?;
            plan.store(link_at(self.prev[level], level), after);
            self.next[level] = after;
        }
        Ok(())
    }
}

/// The error of a node that is missing on a level of its tower (S2).
#[cold]
fn torn_tower(off: u64, height: usize, level: usize, found: u64) -> DecodeError {
    DecodeError {
        what: "skip-list links",
        offset: off,
        expected: format!("the node on each of its {height} levels"),
        found: format!("{found:#x} on level {level}"),
    }
}
