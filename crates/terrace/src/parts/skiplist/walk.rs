//! Walks over the nodes of an extent in storage order, without using links.
//!
//! Nodes are the primary data and links can be rebuilt: filters are built, extents emptied and
//! lists rebuilt from the nodes themselves.

use terrace_media::Region;

use super::layout::{HEIGHT_MAX, LINK_DEAD};
use super::node::{Node, link_word, next};
use crate::canary::{self, Canary};
use crate::parts::codec::DecodeError;
use crate::parts::key::key_front;
use std::cmp::Ordering as Order;
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
/// `lean`: without memory for the beginnings of keys, which save most cache misses.
pub(crate) fn sort(region: &Region, nodes: &mut [u64], lean: bool) -> Result<(), DecodeError> {
    let mut problem = None;
    let mut compare = |a: u64, b: u64| {
        let compared = Node::read(region, a)
            .and_then(|node| Ok(node.compare(&Node::read(region, b)?.target())));
        compared.unwrap_or_else(|e| {
            problem = Some(e);
            Order::Equal
        })
    };
    if lean {
        nodes.sort_by(|&a, &b| compare(a, b));
    } else {
        let front = |&off: &u64| {
            let node = Node::read(region, off)?;
            Ok((node.header.keyspace, key_front(node.key), off))
        };
        let fronts = nodes.iter().map(front);
        let mut fronts: Vec<(u32, u64, u64)> = fronts.collect::<Result<_, DecodeError>>()?;
        fronts.sort_by(|a, b| {
            let by_front = (a.0, a.1).cmp(&(b.0, b.1));
            by_front.then_with(|| compare(a.2, b.2))
        });
        for (node, (.., off)) in nodes.iter_mut().zip(fronts) {
            *node = off;
        }
    }
    if let Some(problem) = problem {
        return Err(problem);
    }
    for pair in nodes.windows(2) {
        let (node, next) = (Node::read(region, pair[0])?, Node::read(region, pair[1])?);
        if node.compare(&next.target()).is_eq() {
            let found = format!("another at {:#x}", next.off);
            let expected = "the only node of its version";
            return Err(DecodeError::new(
                "node of a table",
                node.off,
                expected,
                found,
            ));
        }
    }
    Ok(())
}

/// Takes all nodes but `kept`, which are in storage order before all others, out of the list with
/// the head node `head`. Returns false, with the links in any state, if it does not have each of
/// `kept` on each of its levels.
///
/// Each link of the head and of `kept` has a value that it had once: it leads to a node that comes
/// later. The others may be torn, or no nodes at all, and lead anywhere.
///
/// For lists whose links were made by a process that was killed. No other thread may use the list.
pub(crate) fn keep_only(region: &Region, head: u64, kept: &[u64]) -> Result<bool, DecodeError> {
    let mut expected = [0; HEIGHT_MAX];
    for &off in kept {
        let height = usize::from(Node::read(region, off)?.header.height);
        for count in expected.iter_mut().take(height) {
            *count += 1;
        }
    }
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
    for (level, expected) in expected.into_iter().enumerate() {
        let (mut last, mut count) = (head, 0);
        let mut at = next(region, head, level)?;
        // BOUND: links in a cycle exceed the count of those that are kept, or never lead to one.
        let mut others = 0;
        while at != 0 && count <= expected && others <= OTHERS_MAX {
            if is_kept(at) {
                if others > 0 && !comes_after(last, at, level)? {
                    return Ok(false);
                }
                link_word(region, last, level)?.store(at, Ordering::Release);
                (last, count, others) = (at, count + 1, 0);
            } else {
                others += 1;
            }
            at = next(region, at, level)?;
        }
        link_word(region, last, level)?.store(0, Ordering::Release);
        if (at != 0 || count != expected) && !canary::breaks(Canary::LinksKept) {
            return Ok(false);
        }
    }
    Ok(true)
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
