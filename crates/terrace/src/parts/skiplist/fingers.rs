//! Fingers: a position on every level of a list, which only moves forward and plans changes of
//! links.
//!
//! Merging and draining visit keys in ascending order, so each search starts where the last one
//! ended. Changes are *planned*: they go to a [`Plan`] and reach the list later, all at once,
//! through the redo area. Fingers therefore remember the future value of the words that they have
//! changed, and read from memory only the links of nodes ahead of every planned change.
//!
//! A link is planned when the fingers leave its node or are flushed, since its value is final only
//! then. So each word is planned at most once, and not at all if memory already has the value, as
//! for two nodes that were neighbours before and still are.

use std::cmp::Ordering as Order;

use super::SkipList;
use super::layout::{HEADER_BYTES, HEIGHT_MAX};
use super::node::link_at;
use super::search::cycle;
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;

/// Receives planned stores, each a word offset and a new value.
pub(crate) trait Plan {
    /// Plans a store to a link of a node inserted since the fingers last settled. It is made before
    /// every [`store`](Plan::store), because those make the node reachable for readers.
    fn prepare(&mut self, off: u64, value: u64);
    /// Plans a store to a word that readers may be reading.
    fn store(&mut self, off: u64, value: u64);
}

/// The nodes before and after the current place on each level, planned changes included.
#[derive(Debug, Clone)]
pub(crate) struct Fingers {
    prev: [u64; HEIGHT_MAX],
    next: [u64; HEIGHT_MAX],
    /// The stored or already planned value of the link of `prev`, which is to become `next`.
    held: [u64; HEIGHT_MAX],
    /// Whether `prev` was inserted since the fingers last settled.
    inserted: [bool; HEIGHT_MAX],
    /// Levels at and above this one are empty and are skipped.
    levels: usize,
    /// BOUND: the steps over as many nodes as fit into the region, on every level. Only cyclic
    /// links lead to more.
    steps_left: u64,
}

impl Fingers {
    /// Creates fingers at the start of `list`.
    pub(crate) fn at_start(list: &SkipList) -> Result<Fingers, DecodeError> {
        let mut fingers = Fingers {
            prev: [list.head(); HEIGHT_MAX],
            next: [0; HEIGHT_MAX],
            held: [0; HEIGHT_MAX],
            inserted: [false; HEIGHT_MAX],
            levels: 1,
            steps_left: HEIGHT_MAX as u64
                * ((list.region().end() - list.region().origin()) / HEADER_BYTES as u64),
        };
        for level in 0..HEIGHT_MAX {
            fingers.next[level] = list.next(list.head(), level)?;
            fingers.held[level] = fingers.next[level];
            if fingers.next[level] != 0 {
                fingers.levels = level + 1;
            }
        }
        Ok(fingers)
    }

    /// Creates fingers at `target`, found from the head.
    pub(crate) fn at(list: &SkipList, target: &Target<'_>) -> Result<Fingers, DecodeError> {
        let mut fingers = Fingers::at_start(list)?;
        fingers.advance(list, target, &mut Nothing)?;
        Ok(fingers)
    }

    /// Returns the first node at or after the current place, or 0 at the end.
    pub(crate) fn following(&self) -> u64 {
        self.next[0]
    }

    /// Returns the node before the current place on `level`, which may be the head.
    pub(crate) fn before(&self, level: usize) -> u64 {
        self.prev[level]
    }

    /// Returns whether all changes were planned.
    pub(crate) fn is_flushed(&self) -> bool {
        self.next == self.held
    }

    /// Plans all changes that are due. The list is complete once the plan is applied.
    pub(crate) fn flush(&mut self, plan: &mut impl Plan) {
        for level in 0..self.levels {
            self.finish(level, plan);
        }
        self.held = self.next;
        self.inserted = [false; HEIGHT_MAX];
    }

    /// Plans the final link of `prev` at `level`, unless memory has it already.
    #[inline]
    fn finish(&self, level: usize, plan: &mut impl Plan) {
        if self.held[level] != self.next[level] {
            self.plan(level, self.next[level], plan);
        }
    }

    fn plan(&self, level: usize, value: u64, plan: &mut impl Plan) {
        let off = link_at(self.prev[level], level);
        if self.inserted[level] {
            plan.prepare(off, value);
        } else {
            plan.store(off, value);
        }
    }

    /// Steps to `node` at `level`, which is ahead of every change.
    #[inline]
    fn step(
        &mut self,
        list: &SkipList,
        node: u64,
        level: usize,
        plan: &mut impl Plan,
    ) -> Result<(), DecodeError> {
        self.finish(level, plan);
        self.prev[level] = node;
        self.next[level] = list.next(node, level)?;
        self.held[level] = self.next[level];
        self.inserted[level] = false;
        Ok(())
    }

    /// Moves forward until the next node of every level is at or after `target`, which must not
    /// precede the current place.
    pub(crate) fn advance(
        &mut self,
        list: &SkipList,
        target: &Target<'_>,
        plan: &mut impl Plan,
    ) -> Result<(), DecodeError> {
        let mut reached = 0;
        let mut bounded_by = 0;
        for level in (0..self.levels).rev() {
            if reached != 0 {
                self.step(list, reached, level, plan)?;
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
                self.step(list, candidate, level, plan)?;
                list.region().prefetch(self.next[level]);
                if self.steps_left == 0 {
                    return Err(cycle(candidate));
                }
                self.steps_left -= 1;
            }
        }
        Ok(())
    }

    /// Inserts the node at `off` at the current place and steps to it. `held` contains the current
    /// values of its links, one for each level of its tower.
    pub(crate) fn insert(&mut self, off: u64, held: &[u64], plan: &mut impl Plan) {
        for (level, &held) in held.iter().enumerate() {
            self.next_is(off, level, plan);
            self.held[level] = held;
        }
        self.levels = self.levels.max(held.len());
    }

    /// As [`insert`](Fingers::insert), for a node whose links were written as returned by
    /// [`links`](Fingers::links).
    pub(crate) fn insert_linked(&mut self, off: u64, height: u8, plan: &mut impl Plan) {
        let height = usize::from(height);
        for level in 0..height {
            self.next_is(off, level, plan);
            self.held[level] = self.next[level];
        }
        self.levels = self.levels.max(height);
    }

    /// Returns the links that a node inserted here must have.
    pub(crate) fn links(&self, height: u8) -> &[u64] {
        &self.next[..usize::from(height)]
    }

    fn next_is(&mut self, off: u64, level: usize, plan: &mut impl Plan) {
        if self.held[level] != off {
            self.plan(level, off, plan);
        }
        self.prev[level] = off;
        self.inserted[level] = true;
    }

    /// Steps over the node at the current place.
    pub(crate) fn pass(
        &mut self,
        list: &SkipList,
        plan: &mut impl Plan,
    ) -> Result<(), DecodeError> {
        let off = self.next[0];
        let height = usize::from(list.node(off)?.header.height);
        for level in 0..height {
            if self.next[level] != off {
                return Err(torn_tower(off, height, level, self.next[level]));
            }
            self.step(list, off, level, plan)?;
        }
        list.region().prefetch(self.next[0]);
        list.region().prefetch(self.next[1]);
        if self.steps_left == 0 {
            return Err(cycle(off));
        }
        self.steps_left -= 1;
        Ok(())
    }

    /// Unlinks the node at the current place. Its own links stay, so a reader positioned on it can
    /// continue (S3).
    pub(crate) fn unlink(&mut self, list: &SkipList) -> Result<(), DecodeError> {
        let off = self.next[0];
        let height = usize::from(list.node(off)?.header.height);
        for level in 0..height {
            if self.next[level] != off {
                return Err(torn_tower(off, height, level, self.next[level]));
            }
            self.next[level] = list.next(off, level)?;
        }
        Ok(())
    }
}

/// A plan for fingers that have changed nothing.
struct Nothing;

impl Plan for Nothing {
    fn prepare(&mut self, _off: u64, _value: u64) {}
    fn store(&mut self, _off: u64, _value: u64) {}
}

/// Returns the error for a node that is missing on a level of its tower (S2).
#[cold]
fn torn_tower(off: u64, height: usize, level: usize, found: u64) -> DecodeError {
    DecodeError {
        what: "skip-list links",
        offset: off,
        expected: format!("the node on each of its {height} levels"),
        found: format!("{found:#x} on level {level}"),
    }
}
