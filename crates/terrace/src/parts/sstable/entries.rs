//! The stored entries of a block, each with the key bytes that it does not share with the one
//! before, and the restarts, at which an entry shares nothing.
//!
//! Invariant
//!   K1  The first entry of a block and every entry at a restart share nothing.
//!
//! Blocks come from media. An entry that leads outside the block is an error.

use super::layout::{self, EntryHead, KEYSPACE_BYTES, Malformed, WORD_BYTES, entry_head};
use crate::parts::codec::DecodeError;

/// Returns the length of the common prefix of `a` and `b`.
#[inline(always)]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut done = 0;
    for (x, y) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let (Some(x), Some(y)) = (x.first_chunk::<8>(), y.first_chunk::<8>()) else {
            break;
        };
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return done + differ.trailing_zeros() as usize / 8;
        }
        done += 8;
    }
    let tail = a[done..].iter().zip(&b[done..]);
    done + tail.take_while(|(x, y)| x == y).count()
}

/// The content of a block.
#[derive(Debug)]
pub(crate) struct Entries {
    content: Vec<u8>,
    /// The offset at which the entries end and the restarts begin.
    end: usize,
    restart_count: usize,
}

impl Entries {
    /// Creates the entries of the block at `offset` with this content, of which only the end is
    /// checked.
    pub(super) fn new(content: Vec<u8>, offset: u64) -> Result<Entries, DecodeError> {
        let len = content.len();
        let count = len
            .checked_sub(WORD_BYTES)
            .and_then(|at| layout::word(&content, at));
        let entries_end = count.and_then(|count| {
            let restarts = (count as usize).checked_add(1)?.checked_mul(WORD_BYTES)?;
            len.checked_sub(restarts)
        });
        match (count, entries_end) {
            (Some(count @ 1..), Some(entries_end)) => Ok(Entries {
                content,
                end: entries_end,
                restart_count: count as usize,
            }),
            _ => Err(DecodeError::new(
                "SSTable block",
                offset,
                "at least one restart, inside the block",
                format!("{} restarts in {len} bytes", count.unwrap_or(0)),
            )),
        }
    }

    /// Returns the memory of the content.
    pub(super) fn into_memory(self) -> Vec<u8> {
        self.content
    }

    /// Returns the capacity of that memory in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.content.capacity()
    }

    /// Returns the bytes from `from` to `to`.
    #[inline(always)]
    pub(super) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        self.content.get(from..to).unwrap_or(&[])
    }

    /// Returns the offset at which the entries end.
    #[inline(always)]
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Returns the number of restarts.
    #[inline(always)]
    pub(super) fn restart_count(&self) -> usize {
        self.restart_count
    }

    /// Decodes the fixed part of the entry at `at`.
    #[inline(always)]
    pub(super) fn head(&self, at: usize) -> Result<EntryHead, Malformed> {
        entry_head(&self.content[..self.end], at)
    }

    /// Returns the offset of the entry at a restart.
    #[inline(always)]
    pub(super) fn restart(&self, index: usize) -> Result<usize, Malformed> {
        match layout::word(&self.content, self.end + index * WORD_BYTES) {
            Some(at) if (at as usize) < self.end => Ok(at as usize),
            _ => Err(Malformed::new(self.end, "restarts at entries")),
        }
    }

    /// Returns the entry at restart `index`, with its complete key (K1).
    #[inline(always)]
    pub(super) fn restart_entry(
        &self,
        index: usize,
    ) -> Result<(usize, EntryHead, &[u8]), Malformed> {
        let at = self.restart(index)?;
        let head = self.head(at)?;
        if head.shared != 0 {
            return Err(Malformed::new(at, "an entry that shares nothing (K1)"));
        }
        Ok((at, head, self.bytes(head.key_at, head.value_at)))
    }

    /// Reads the entry at `at` and turns `key`, the key of the entry before, into its key.
    #[inline(always)]
    pub(super) fn step(&self, at: usize, key: &mut Vec<u8>) -> Result<EntryHead, Malformed> {
        let head = self.head(at)?;
        if head.shared > key.len() {
            return Err(Malformed::new(at, "fewer shared bytes"));
        }
        key.truncate(head.shared);
        key.extend_from_slice(self.bytes(head.key_at, head.value_at));
        if key.len() < KEYSPACE_BYTES {
            return Err(Malformed::new(at, "a key with a keyspace"));
        }
        Ok(head)
    }
}
