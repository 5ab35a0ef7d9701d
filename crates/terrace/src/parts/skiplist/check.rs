//! Walks over whole lists, to check them and to estimate the number of nodes between two keys.

use std::cmp::Ordering as Order;

use super::SkipList;
use super::layout::HEIGHT_MAX;
use super::node::Node;
use super::search::cycle;
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;
use crate::parts::latch::Latch;
use crate::parts::ranges::layout::ENTRY_KEY_BYTES_MAX;
use crate::types::{EntryKind, KEY_BYTES_MAX, SEQ_MAX, key_hash};

/// The number of nodes checked per hold of the latch.
const CHUNK: usize = 256;
/// The number of nodes on a level that makes an estimate good enough.
const SAMPLE: u64 = 64;

/// The number of nodes for each node one level higher: three levels in two halvings.
const LEVEL_RATIO: f64 = 2.83;

/// A callback for each node, with the node and the result of checking it.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(&Node<'_>, Result<(), DecodeError>);

impl SkipList {
    /// Calls `visit` for every node in order and checks order (S1), towers (S2), sizes and hashes.
    /// A node that a concurrent merge moves in or out may be missed, but is never visited twice.
    /// Calls `between` between chunks, while the latch is not held.
    pub(crate) fn check(
        &self,
        latch: &Latch,
        visit: Visit<'_>,
        between: &mut dyn FnMut(),
    ) -> Result<(), DecodeError> {
        self.walk_list(latch, true, visit, between)
    }

    /// As [`check`](SkipList::check), for a list under concurrent insertion, whose towers may be
    /// partly linked.
    pub(crate) fn check_growing(&self, visit: Visit<'_>) -> Result<(), DecodeError> {
        self.walk_list(&Latch::default(), false, visit, &mut || {})
    }

    fn walk_list(
        &self,
        latch: &Latch,
        towers: bool,
        visit: Visit<'_>,
        between: &mut dyn FnMut(),
    ) -> Result<(), DecodeError> {
        let mut last: Option<(u32, Vec<u8>, u64)> = None;
        loop {
            between();
            let _held = latch.hold();
            let target = match &last {
                Some((keyspace, key, seq)) => Target {
                    keyspace: *keyspace,
                    key,
                    seq: *seq,
                },
                None => Target {
                    keyspace: 0,
                    key: &[],
                    seq: SEQ_MAX,
                },
            };
            let splice = self.splice(&target)?;
            // The next node on every level that the walk along level 0 must reach.
            let mut expected = splice.next;
            let mut at = expected[0];
            for turn in 0..CHUNK {
                if at == 0 {
                    if !towers {
                        return Ok(());
                    }
                    return match expected.iter().position(|&off| off != 0) {
                        Some(level) => Err(missing(expected[level], level)),
                        None => Ok(()),
                    };
                }
                let node = self.node(at)?;
                if towers {
                    self.check_tower(&node, &mut expected)?;
                }
                let place = (node.header.keyspace, node.key, node.header.seq);
                if let Some((keyspace, key, seq)) = &last {
                    let before = Target {
                        keyspace: *keyspace,
                        key,
                        seq: *seq,
                    };
                    match node.compare(&before) {
                        Order::Greater => {}
                        // The walk resumes at the node where it stopped.
                        Order::Equal if turn == 0 => {
                            at = self.next(at, 0)?;
                            continue;
                        }
                        Order::Equal | Order::Less => return Err(cycle(at)),
                    }
                }
                visit(&node, check_node(&node));
                last = Some((place.0, place.1.to_vec(), place.2));
                at = self.next(at, 0)?;
            }
        }
    }

    fn check_tower(
        &self,
        node: &Node<'_>,
        expected: &mut [u64; HEIGHT_MAX],
    ) -> Result<(), DecodeError> {
        for (level, expected) in expected.iter_mut().enumerate() {
            let on_level = level < usize::from(node.header.height);
            if on_level != (*expected == node.off) {
                return Err(missing(node.off, level));
            }
            if on_level {
                *expected = self.next(node.off, level)?;
            }
        }
        Ok(())
    }

    /// Returns ascending nodes, about `count`, with about as many others of all `nodes` between any
    /// two.
    pub(crate) fn spread(&self, nodes: u64, count: usize) -> Result<Vec<u64>, DecodeError> {
        let apart = (nodes / count as u64).max(1) as f64;
        let level = (apart.ln() / LEVEL_RATIO.ln()).round() as usize;
        let mut found: Vec<u64> = Vec::new();
        // BOUND: nodes descend, in steps that are seldom short.
        while found.len() < 64 * count {
            let before = match found.last() {
                Some(off) => self.node(*off)?.target(),
                None => Target::first_of(u32::MAX, &[]),
            };
            match self.seek_before(&before, level.min(HEIGHT_MAX - 1))? {
                0 => break,
                off => found.push(off),
            }
        }
        found.reverse();
        Ok(found)
    }

    /// Estimates the number of nodes between `from` and `to`.
    pub(crate) fn count_between(
        &self,
        from: &Target<'_>,
        to: &Target<'_>,
    ) -> Result<u64, DecodeError> {
        let splice = self.splice(from)?;
        for level in (0..HEIGHT_MAX).rev() {
            let mut at = splice.next[level];
            let mut count = 0;
            // BOUND: a level with many more nodes than the one above it is a sufficient sample.
            while at != 0 && self.node(at)?.compare(to) == Order::Less && count < 64 * SAMPLE {
                count += 1;
                at = self.next(at, level)?;
            }
            if count >= SAMPLE || level == 0 {
                // A node is on a level with a probability of 2^-1.5 to the power of the level,
                // rounded down to a power of two; see `height_for`.
                return Ok(count << (3 * level).div_ceil(2));
            }
        }
        Ok(0)
    }
}

/// Checks the checksum, the key's size and the hash of a node.
pub(crate) fn check_node(node: &Node<'_>) -> Result<(), DecodeError> {
    node.checked_value()?;
    let hash = key_hash(node.header.keyspace, node.key);
    let key_bytes_max = match node.header.kind == EntryKind::RangeDelete as u8 {
        true => ENTRY_KEY_BYTES_MAX,
        false => KEY_BYTES_MAX,
    };
    if node.header.hash != hash || node.key.len() > key_bytes_max {
        return Err(DecodeError {
            what: "hash in a skip-list node",
            offset: node.off,
            expected: format!("{hash:#x}"),
            found: format!("{:#x}", node.header.hash),
        });
    }
    Ok(())
}

#[cold]
fn missing(off: u64, level: usize) -> DecodeError {
    DecodeError {
        what: "skip-list links",
        offset: off,
        expected: format!("level {level} to agree with level 0"),
        found: "a node that the level skips or that only the level has".into(),
    }
}
