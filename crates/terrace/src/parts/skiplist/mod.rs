//! Skip list: one algorithm for a DRAM arena and for persistent memory.
//!
//! Nodes are named by their offsets in the pool even while they still lie in DRAM, so a memtable is
//! flushed by copying its bytes and no link is ever rewritten (MioDB swizzles them: section 4.2).
//! Only links change after a node was written; they are 8-byte words, stored with Release and read
//! with Acquire.
//!
//! Invariants
//!   S1  Along level 0 nodes ascend strictly by (keyspace, key, descending sequence number).
//!   S2  A node on level n is also on every level below n.
//!   S3  A node that readers may stand on keeps its memory and its forward links until no view
//!       that could reach it is left.
//!
//! Bytes: layout.rs. Who may change links: `insert` (memtables), and the jobs that relink lists in
//! the pool through `parts/redo`.

mod check;
#[cfg(feature = "decoders")]
pub(crate) mod decoders;
pub(crate) mod fingers;
pub(crate) mod insert;
pub(crate) mod layout;
pub(crate) mod node;
pub(crate) mod salvage;
pub(crate) mod search;
pub(crate) mod shortcuts;
pub(crate) mod walk;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use terrace_media::Region;

pub(crate) use insert::Approach;
pub(crate) use node::{NewNode, Node};
use shortcuts::Shortcuts;

/// A list: its head node in a region.
#[derive(Clone)]
pub(crate) struct SkipList {
    region: Region,
    head: u64,
    /// Where searches of a memtable start; lists in the pool have none.
    shortcuts: Option<Arc<Shortcuts>>,
}

impl SkipList {
    /// The list whose head node, already written, is at `head`.
    pub(crate) fn new(region: Region, head: u64) -> SkipList {
        SkipList {
            region,
            head,
            shortcuts: None,
        }
    }

    /// Lets searches start from `shortcuts`, which know no other list. The list must be empty.
    pub(crate) fn with_shortcuts(mut self, mut shortcuts: Shortcuts) -> SkipList {
        shortcuts.reset(self.region.origin());
        self.shortcuts = Some(Arc::new(shortcuts));
        self
    }

    /// Whether searches start from shortcuts.
    pub(crate) fn has_shortcuts(&self) -> bool {
        self.shortcuts.is_some()
    }

    /// Gives the shortcuts back, unless somebody still uses them.
    pub(crate) fn take_shortcuts(&mut self) -> Option<Shortcuts> {
        self.shortcuts.take().and_then(Arc::into_inner)
    }

    /// Offset of the head node.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// The memory that the list lies in.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Reads the node at `off`.
    #[inline(always)]
    pub(crate) fn node(&self, off: u64) -> Result<Node<'_>, crate::parts::codec::DecodeError> {
        Node::read(&self.region, off)
    }

    /// The node after `off` on `level`, 0 at the end.
    #[inline(always)]
    pub(crate) fn next(
        &self,
        off: u64,
        level: usize,
    ) -> Result<u64, crate::parts::codec::DecodeError> {
        node::next(&self.region, off, level)
    }
}
