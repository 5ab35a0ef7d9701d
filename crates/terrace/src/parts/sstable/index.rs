//! The index of a table: separator keys, in one or two levels of blocks.

use super::build::{BlockBuilder, RawEntry};
use super::layout::{Handle, KEYSPACE_BYTES};

/// Returns a short key that is at or after `last` and before `next`. Both are stored keys.
pub(crate) fn separator<'a>(last: &'a [u8], next: &'a [u8]) -> &'a [u8] {
    let common = super::entries::common_prefix(last, next);
    // The first `common + 1` bytes of `next` are after `last`, and before `next` if `next` is
    // longer.
    if common >= KEYSPACE_BYTES && common + 1 < next.len() && common + 1 < last.len() {
        return &next[..=common];
    }
    last
}

/// An index under construction.
pub(crate) struct IndexBuilder {
    lower: BlockBuilder,
    block_bytes: usize,
    /// The full blocks of the lower level: the last separator of each, its sequence number, and its
    /// content.
    full: Vec<(Vec<u8>, u64, Vec<u8>)>,
    full_bytes: usize,
    last_seq: u64,
    value: Vec<u8>,
}

impl IndexBuilder {
    /// Creates an empty index with blocks of about `block_bytes`.
    pub(crate) fn new(block_bytes: usize) -> IndexBuilder {
        IndexBuilder {
            lower: BlockBuilder::new(1),
            block_bytes,
            full: Vec::new(),
            full_bytes: 0,
            last_seq: 0,
            value: Vec::new(),
        }
    }

    /// Adds the block at `handle`, which the key `stored` at `seq` separates from the next.
    pub(crate) fn push(&mut self, stored: &[u8], seq: u64, handle: Handle) {
        if self.lower.entry_count() > 0 && self.lower.len_bytes() >= self.block_bytes {
            self.close_lower();
        }
        push_handle(&mut self.lower, stored, seq, handle, &mut self.value);
        self.last_seq = seq;
    }

    /// Returns the size so far in bytes, without the upper level.
    pub(crate) fn len_bytes(&self) -> usize {
        self.full_bytes + self.lower.len_bytes()
    }

    fn close_lower(&mut self) {
        let last = self.lower.last_stored().to_vec();
        let content = self.lower.finish().to_vec();
        self.full_bytes += content.len();
        self.full.push((last, self.last_seq, content));
        self.lower.reset(self.block_bytes);
    }

    /// Writes the blocks with `write`, the upper one last. Returns the handle of the last block,
    /// and whether there are two levels.
    pub(crate) fn finish<E>(
        mut self,
        mut write: impl FnMut(&[u8]) -> Result<Handle, E>,
    ) -> Result<(Handle, bool), E> {
        if self.full.is_empty() {
            return Ok((write(self.lower.finish())?, false));
        }
        self.close_lower();
        let mut upper = BlockBuilder::new(1);
        for (last, seq, content) in std::mem::take(&mut self.full) {
            let handle = write(&content)?;
            push_handle(&mut upper, &last, seq, handle, &mut self.value);
        }
        Ok((write(upper.finish())?, true))
    }
}

fn push_handle(
    block: &mut BlockBuilder,
    stored: &[u8],
    seq: u64,
    handle: Handle,
    value: &mut Vec<u8>,
) {
    value.clear();
    handle.put(value);
    block.push(&RawEntry {
        stored,
        seq,
        kind: 0,
        expiry: 0,
        value,
    });
}
