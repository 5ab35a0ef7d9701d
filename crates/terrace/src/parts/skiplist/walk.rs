//! Walks over the nodes of an extent in storage order, without using links.
//!
//! Nodes are the primary data and links can be rebuilt: filters are built, extents emptied and
//! lists rebuilt from the nodes themselves.

use terrace_media::Region;

use super::layout::{HEIGHT_MAX, LINK_DEAD};
use super::node::{Node, link_word, next};
use crate::parts::codec::DecodeError;
use crate::parts::key::key_front;
use std::cmp::Ordering as Order;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// BOUND: more nodes than a list can have between two that are kept, in what is written behind a
/// mark and in flight; a batch has at most 1 GiB.
const OTHERS_MAX: u32 = 1 << 25;

/// The nodes of one byte range, in the order in which they were written.
pub(crate) struct Walk<'a> {
    region: &'a Region,
    at: u64,
    end: u64,
}

impl<'a> Walk<'a> {
    /// Walks the nodes between the offsets `start` and `end`.
    pub(crate) fn new(region: &'a Region, start: u64, end: u64) -> Walk<'a> {
        Walk {
            region,
            at: start,
            end,
        }
    }

    /// Returns the offset at which the next node begins.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// Returns the next node, or `None` at the end of the range.
    pub(crate) fn next_node(&mut self) -> Result<Option<Node<'a>>, DecodeError> {
        if self.at >= self.end {
            return Ok(None);
        }
        let node = Node::read(self.region, self.at)?;
        let bytes = node.header.node_bytes() as u64;
        if bytes > self.end - self.at {
            return Err(DecodeError {
                what: "skip-list node",
                offset: self.at,
                expected: format!(
                    "at most {} bytes to the end of the extent",
                    self.end - self.at
                ),
                found: format!("{bytes} bytes"),
            });
        }
        self.at += bytes;
        Ok(Some(node))
    }
}

/// Returns whether the node at `off` is marked dead.
pub(crate) fn is_dead(region: &Region, off: u64) -> Result<bool, DecodeError> {
    Ok(link_word(region, off, 0)?.load(Ordering::Acquire) & LINK_DEAD != 0)
}

/// Sorts nodes in the order of a list. Fails if two of them are the same version of a key.
///
/// `lean`: without memory for parts of keys, which save most cache misses.
pub(crate) fn sort(region: &Region, nodes: &mut [u64], lean: bool) -> Result<(), DecodeError> {
    let mut problem = None;
    let mut compare = |a: u64, b: u64| {
        let compared = Node::read(region, a).and_then(|node| {
            let next = Node::read(region, b)?;
            match node.compare(&next.target()) {
                Order::Equal if a != b => Err(DecodeError::new(
                    "node of a table",
                    a,
                    "the only node of its version",
                    format!("another at {b:#x}"),
                )),
                order => Ok(order),
            }
        });
        compared.unwrap_or_else(|e| {
            problem = Some(e);
            Order::Equal
        })
    };
    if lean {
        nodes.sort_by(|&a, &b| compare(a, b));
    } else {
        let mut fronts = fronts(region, nodes)?;
        fronts.sort_by(|a, b| {
            let by_front = (a.0, a.1).cmp(&(b.0, b.1));
            by_front.then_with(|| compare(a.2, b.2))
        });
        for (node, (.., off)) in nodes.iter_mut().zip(fronts) {
            *node = off;
        }
    }
    // A sort compares all neighbours of its result, so it meets two nodes of one version.
    problem.map_or(Ok(()), Err)
}

/// Returns keyspace, front and place of each node. A front has the first eight bytes of the key in
/// which not all keys of its keyspace agree.
fn fronts(region: &Region, nodes: &[u64]) -> Result<Vec<(u32, u64, u64)>, DecodeError> {
    let mut agreed: BTreeMap<u32, &[u8]> = BTreeMap::new();
    for &off in nodes {
        let node = Node::read(region, off)?;
        let agreed = agreed.entry(node.header.keyspace).or_insert(node.key);
        let both = agreed.iter().zip(node.key);
        *agreed = &agreed[..both.take_while(|(a, b)| a == b).count()];
    }
    let front = |&off: &u64| {
        let node = Node::read(region, off)?;
        let keyspace = node.header.keyspace;
        Ok((
            keyspace,
            key_front(&node.key[agreed[&keyspace].len()..]),
            off,
        ))
    };
    nodes.iter().map(front).collect()
}

/// Takes all nodes but `kept`, which are in storage order before all others, out of the list with
/// the head node `head`. Returns false, with the links in any state, if it does not have each of
/// `kept` on each of its levels.
///
/// Each link of the head and of `kept` has a value that it had once: it leads to a node that comes
/// later. The others may be torn, or no nodes at all, and lead anywhere. So if links of a level
/// lead to each of its nodes once, they form one chain, which has all of them.
///
/// For lists whose links were made by a process that was killed. No other thread may use the list.
/// Reads the nodes in storage order: in the order of keys each would be a cache miss.
pub(crate) fn keep_only(region: &Region, head: u64, kept: &[u64]) -> Result<bool, DecodeError> {
    let is_kept = |off: u64| kept.last().is_some_and(|last| off <= *last);
    let comes_after = |last: u64, at: u64, level: usize| -> Result<bool, DecodeError> {
        if kept.binary_search(&at).is_err() {
            return Ok(false);
        }
        let node = Node::read(region, at)?;
        let after_last = last == head || {
            let last = Node::read(region, last)?;
            node.compare(&last.target()) == Order::Greater
        };
        Ok(level < usize::from(node.header.height) && after_last)
    };
    // For each level, the sum of its nodes' hashes less that of the nodes to which links lead.
    let mut unlinked = [0u64; HEIGHT_MAX];
    for &off in std::iter::once(&head).chain(kept) {
        let height = usize::from(Node::read(region, off)?.header.height);
        for (level, unlinked) in unlinked.iter_mut().enumerate().take(height) {
            if off != head {
                *unlinked = unlinked.wrapping_add(place_hash(off));
            }
            let (mut at, mut others) = (next(region, off, level)?, 0);
            // BOUND: `OTHERS_MAX`, also for links in a cycle.
            while at != 0 && !is_kept(at) {
                others += 1;
                if others > OTHERS_MAX {
                    return Ok(false);
                }
                at = next(region, at, level)?;
            }
            if others > 0 {
                if at != 0 && !comes_after(off, at, level)? {
                    return Ok(false);
                }
                link_word(region, off, level)?.store(at, Ordering::Release);
            }
            if at != 0 {
                *unlinked = unlinked.wrapping_sub(place_hash(at));
            }
        }
    }
    Ok(unlinked == [0; HEIGHT_MAX])
}

/// A hash of a node's place, whose sums over different sets of nodes differ.
fn place_hash(off: u64) -> u64 {
    let product = u128::from(off ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    product as u64 ^ (product >> 64) as u64
}

/// Relinks the sorted `nodes` after `head` and clears all dead flags.
///
/// For lists whose links were lost in a power failure. No other thread may use the list.
pub(crate) fn relink_sorted(
    region: &Region,
    head: u64,
    nodes: impl Iterator<Item = u64>,
) -> Result<(), DecodeError> {
    let mut last = [head; HEIGHT_MAX];
    for off in nodes {
        let height = usize::from(Node::read(region, off)?.header.height);
        for (level, last) in last.iter_mut().enumerate().take(height) {
            link_word(region, *last, level)?.store(off, Ordering::Release);
            *last = off;
        }
    }
    for (level, last) in last.iter().enumerate() {
        link_word(region, *last, level)?.store(0, Ordering::Release);
    }
    Ok(())
}
