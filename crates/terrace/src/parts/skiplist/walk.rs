//! This file walks nodes where they lie, one after another in an extent, without using links.
//!
//! Data is truth and links are soft: filters are built, extents emptied and lists rebuilt from the
//! nodes themselves.

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

    /// Where the next node begins.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// The next node, or `None` at the end of the range.
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

/// Whether the node at `off` is marked dead.
pub(crate) fn is_dead(region: &Region, off: u64) -> Result<bool, DecodeError> {
    Ok(link_word(region, off, 0)?.load(Ordering::Acquire) & LINK_DEAD != 0)
}

/// Links `nodes`, sorted, behind `head` from nothing, keeping the dead flag of none.
///
/// For lists whose links a power loss has left without meaning; nobody else may see the list.
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
