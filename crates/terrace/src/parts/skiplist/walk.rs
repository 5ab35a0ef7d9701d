//! Walks over the nodes of an extent in storage order, without using links.
//!
//! Nodes are the primary data and links can be rebuilt: filters are built, extents emptied and
//! lists rebuilt from the nodes themselves.

use terrace_media::Region;

use super::layout::{HEIGHT_MAX, LINK_DEAD};
use super::node::{Node, link_word};
use crate::parts::codec::DecodeError;
use std::sync::atomic::Ordering;

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
