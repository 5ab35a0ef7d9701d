//! The builder of the content of one block.

use super::entries::common_prefix;
use super::layout::{self, WORD_BYTES};
use crate::types::SeqNo;

/// An entry that the writer adds to a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawEntry<'a> {
    pub(crate) stored: &'a [u8],
    pub(crate) seq: SeqNo,
    pub(crate) kind: u8,
    pub(crate) expiry: u64,
    pub(crate) value: &'a [u8],
}

/// The content of a block under construction.
#[derive(Debug)]
pub(crate) struct BlockBuilder {
    content: Vec<u8>,
    restarts: Vec<u32>,
    since_restart: usize,
    restart_interval: usize,
    last: Vec<u8>,
    entry_count: usize,
}

impl BlockBuilder {
    /// Creates an empty block that restarts at every `restart_interval`-th entry.
    pub(crate) fn new(restart_interval: usize) -> BlockBuilder {
        BlockBuilder {
            content: Vec::new(),
            restarts: Vec::new(),
            since_restart: 0,
            restart_interval: restart_interval.max(1),
            last: Vec::new(),
            entry_count: 0,
        }
    }

    /// Adds an entry, which must follow those before it (K2).
    #[inline]
    pub(crate) fn push(&mut self, entry: &RawEntry<'_>) {
        let restarts = self.restarts.is_empty() || self.since_restart == self.restart_interval;
        let shared = if restarts {
            self.restarts.push(self.content.len() as u32);
            self.since_restart = 0;
            0
        } else {
            common_prefix(&self.last, entry.stored)
        };
        self.since_restart += 1;
        self.entry_count += 1;
        let unshared = &entry.stored[shared..];
        layout::put_entry_head(
            &mut self.content,
            (shared, unshared.len(), entry.value.len()),
            (entry.seq, entry.kind, entry.expiry),
        );
        self.content.extend_from_slice(unshared);
        self.content.extend_from_slice(entry.value);
        self.last.truncate(shared);
        self.last.extend_from_slice(unshared);
    }

    /// Returns the size of the content so far, in bytes.
    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        self.content.len() + (self.restarts.len() + 1) * WORD_BYTES
    }

    /// Returns the number of entries.
    pub(crate) fn entry_count(&self) -> usize {
        self.entry_count
    }

    /// Returns the stored key of the last entry, or an empty key before the first.
    pub(crate) fn last_stored(&self) -> &[u8] {
        &self.last
    }

    /// Returns the complete content. The builder must be reset before its next entry.
    pub(crate) fn finish(&mut self) -> &[u8] {
        if self.restarts.is_empty() {
            self.restarts.push(0);
        }
        for restart in &self.restarts {
            layout::put_word(&mut self.content, *restart);
        }
        layout::put_word(&mut self.content, self.restarts.len() as u32);
        &self.content
    }

    /// Clears the block and frees memory beyond `keep_bytes`.
    pub(crate) fn reset(&mut self, keep_bytes: usize) {
        self.content.clear();
        self.content.shrink_to(keep_bytes);
        self.restarts.clear();
        self.since_restart = 0;
        self.entry_count = 0;
        self.last.clear();
    }
}
