//! Searches for several places of one list in turns, so that their cache misses overlap.
//!
//! Nearly every step of a search waits for memory, and names the node of the next step. Searches
//! for different places do not depend on one another: while the node of one is loading, the others
//! compare theirs. Each finds exactly what [`SkipList::seek`] finds for its place.
//!
//! Callers: reads of many keys (stages/source.rs).

use super::SkipList;
use super::search::{Found, SHORTCUT_STEPS, Search};
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;

/// The number of searches that take turns: about as many lines as a core loads at a time.
pub(crate) const GROUP_MAX: usize = 16;

/// A search between two of its turns.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// A search hint proposes to start from this node.
    Hinted(u64),
    /// A few steps along level 0 after a hint.
    Walking {
        from: u64,
        candidate: u64,
        steps: u32,
    },
    /// A search from the head.
    Descending(Search),
    Ended(Found),
}

impl SkipList {
    /// Finds the first node at or after each of at most [`GROUP_MAX`] targets. The results beyond
    /// the number of targets mean nothing.
    pub(crate) fn seek_group(
        &self,
        targets: &[Target<'_>],
    ) -> Result<[Found; GROUP_MAX], DecodeError> {
        assert!(targets.len() <= GROUP_MAX, "at most one search for a turn");
        let mut found = [Found::default(); GROUP_MAX];
        if let [target] = targets {
            // Alone, it is faster with the deeper prefetches of a single search.
            found[0] = self.seek(target)?;
            return Ok(found);
        }
        let mut turns = [Turn::Ended(Found::default()); GROUP_MAX];
        for (turn, target) in turns.iter_mut().zip(targets) {
            *turn = match self.hint(target, 0)? {
                Some(from) => Turn::Hinted(from),
                None => self.descend()?,
            };
        }
        let mut open = true;
        // BOUND: a round is a step of each open search, whose steps are bounded.
        while open {
            open = false;
            for (turn, target) in turns.iter_mut().zip(targets) {
                let next = match *turn {
                    Turn::Ended(_) => continue,
                    Turn::Hinted(from) if self.is_before(from, target)? => self.walk(from, 0)?,
                    Turn::Hinted(_) => self.descend()?,
                    Turn::Walking {
                        from,
                        candidate,
                        steps,
                    } => match self.is_before(candidate, target)? {
                        true if steps + 1 < SHORTCUT_STEPS => self.walk(candidate, steps + 1)?,
                        true => self.descend()?,
                        false => Turn::Ended(Found {
                            node: candidate,
                            first: from,
                        }),
                    },
                    Turn::Descending(mut search) => match self.step_search(&mut search, target)? {
                        None => Turn::Descending(search),
                        Some(node) => Turn::Ended(Found {
                            node,
                            first: search.first(),
                        }),
                    },
                };
                open |= !matches!(next, Turn::Ended(_));
                *turn = next;
            }
        }
        for (found, turn) in found.iter_mut().zip(turns) {
            if let Turn::Ended(end) = turn {
                *found = end;
            }
        }
        Ok(found)
    }

    /// Begins a search from the head.
    fn descend(&self) -> Result<Turn, DecodeError> {
        Ok(match self.begin_search()? {
            Some(search) => Turn::Descending(search),
            None => Turn::Ended(Found::default()),
        })
    }

    /// Steps to `from`, which is before the target, and prefetches the node after it.
    #[inline]
    fn walk(&self, from: u64, steps: u32) -> Result<Turn, DecodeError> {
        let candidate = self.expect_next(from)?;
        Ok(match candidate {
            0 => Turn::Ended(Found {
                node: 0,
                first: from,
            }),
            candidate => Turn::Walking {
                from,
                candidate,
                steps,
            },
        })
    }
}
