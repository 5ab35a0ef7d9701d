//! Nodes that a batch copies into the repository, gathered to be written in one piece.
//!
//! Nodes that are neighbours in the list are mostly copied one after the other. While their bytes
//! are in DRAM a link from one to the next costs nothing, and adjacent nodes share the cache line
//! at their border.

use terrace_media::Purpose;

use super::space::Space;
use crate::error::Result;
use crate::parts::redo::RedoSlot;
use crate::parts::skiplist::NewNode;
use crate::parts::skiplist::fingers::Plan;

/// Bytes that the buffer keeps for the next batch.
const KEPT_BYTES: usize = 1 << 20;

/// Nodes not yet written.
#[derive(Default)]
pub(super) struct Fresh {
    bytes: Vec<u8>,
    runs: Vec<Run>,
}

/// Adjacent nodes.
struct Run {
    /// Their offset in the pool.
    off: u64,
    /// The start of their bytes in the buffer; they end where the next run's begin.
    start: usize,
}

impl Fresh {
    /// Adds a node for the offset `off`.
    pub(super) fn push(&mut self, off: u64, node: &NewNode<'_>, links: &[u64]) {
        let start = self.bytes.len();
        let adjoins = |run: &Run| run.off + (start - run.start) as u64 == off;
        if !self.runs.last().is_some_and(adjoins) {
            self.runs.push(Run { off, start });
        }
        self.bytes.extend_from_slice(&node.header());
        for link in links {
            self.bytes.extend_from_slice(&link.to_le_bytes());
        }
        self.bytes.extend_from_slice(node.key);
        self.bytes.extend_from_slice(node.value);
        self.bytes.resize(start + node.bytes(), 0);
    }

    /// Changes a word of a node that is not yet written. Returns false if there is none at `off`.
    fn patch(&mut self, off: u64, value: u64) -> bool {
        let mut end = self.bytes.len();
        // BOUND: a step copies a limited number of nodes, most of them adjacent.
        for run in self.runs.iter().rev() {
            if off >= run.off && off < run.off + (end - run.start) as u64 {
                let at = run.start + (off - run.off) as usize;
                self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                return true;
            }
            end = run.start;
        }
        false
    }

    /// Streams all nodes to their places, to be fenced by the caller. Returns false if there are
    /// none.
    pub(super) fn write(&mut self, space: &Space, purpose: Purpose) -> Result<bool> {
        let mut end = self.bytes.len();
        let any = end > 0;
        while let Some(run) = self.runs.pop() {
            space.stream(run.off, &self.bytes[run.start..end], purpose)?;
            end = run.start;
        }
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        Ok(any)
    }
}

/// A plan that changes links of fresh nodes in their bytes and all others through the redo slot.
pub(super) struct FreshPlan<'a> {
    pub(super) fresh: &'a mut Fresh,
    pub(super) slot: &'a mut RedoSlot,
}

impl Plan for FreshPlan<'_> {
    fn prepare(&mut self, off: u64, value: u64) {
        if !self.fresh.patch(off, value) {
            self.slot.prepare(off, value);
        }
    }

    fn store(&mut self, off: u64, value: u64) {
        self.slot.store(off, value);
    }
}
