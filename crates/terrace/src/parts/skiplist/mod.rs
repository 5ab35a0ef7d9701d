//! Skip lists: one algorithm for a DRAM arena and for persistent memory.
//!
//! Nodes are addressed by their pool offsets even while they are still in DRAM, so a memtable is
//! flushed by copying its bytes and no link is ever rewritten (MioDB swizzles them: section 4.2).
//! After a node is written only its links change. They are 8-byte words, stored with Release and
//! read with Acquire.
//!
//! Invariants
//!   S1  Along level 0 nodes ascend strictly by (keyspace, key, descending sequence number).
//!   S2  A node on level n is also on every level below n.
//!   S3  A node that a reader may be positioned on keeps its memory and its forward links until no
//!       view that could reach it is left.
//!
//! layout.rs defines the bytes. Links are changed by `insert` (memtables) and by the jobs that
//! relink lists in the pool through `parts/redo`.

mod check;
#[cfg(feature = "decoders")]
pub(crate) mod decoders;
pub(crate) mod fingers;
mod group;
pub(crate) mod insert;
pub(crate) mod layout;
pub(crate) mod node;
pub(crate) mod salvage;
pub(crate) mod search;
pub(crate) mod search_hints;
pub(crate) mod walk;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use terrace_media::Region;

pub(crate) use check::{Visit, check_node};
pub(crate) use group::GROUP_MAX;
pub(crate) use insert::Approach;
pub(crate) use node::{NewNode, Node};
use search_hints::SearchHints;

/// A list, by its head node in a region.
#[derive(Clone)]
pub(crate) struct SkipList {
    region: Region,
    head: u64,
    /// The starting points of searches in a memtable. Lists in the pool do not use search hints.
    search_hints: Option<Arc<SearchHints>>,
}

impl SkipList {
    /// Opens the list whose head node, already written, is at `head`.
    pub(crate) fn new(region: Region, head: u64) -> SkipList {
        SkipList {
            region,
            head,
            search_hints: None,
        }
    }

    /// Lets searches start from `search hints`, which must serve no other list. The list must be
    /// empty.
    pub(crate) fn with_search_hints(mut self, mut search_hints: SearchHints) -> SkipList {
        search_hints.reset(self.head);
        self.search_hints = Some(Arc::new(search_hints));
        self
    }

    /// Returns whether searches start from search hints.
    pub(crate) fn has_search_hints(&self) -> bool {
        self.search_hints.is_some()
    }

    /// Takes the search hints out of the list. Returns `None` if they are still in use.
    pub(crate) fn take_search_hints(&mut self) -> Option<SearchHints> {
        self.search_hints.take().and_then(Arc::into_inner)
    }

    /// Returns the offset of the head node.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Returns the memory that contains the list.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Reads the node at `off`.
    #[inline(always)]
    pub(crate) fn node(&self, off: u64) -> Result<Node<'_>, crate::parts::codec::DecodeError> {
        Node::read(&self.region, off)
    }

    /// Returns the node after `off` on `level`, or 0 at the end.
    #[inline(always)]
    pub(crate) fn next(
        &self,
        off: u64,
        level: usize,
    ) -> Result<u64, crate::parts::codec::DecodeError> {
        node::next(&self.region, off, level)
    }
}
