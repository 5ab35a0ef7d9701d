//! This file walks one block in both directions, with the key of the entry under it built.

use std::sync::Arc;

use super::block::{Block, Sought};
use super::layout::{EntryHead, KEYSPACE_BYTES, Malformed, split_key};
use crate::parts::codec::DecodeError;

/// The memory of a longer block goes with it.
const REUSED_BYTES_MAX: usize = 256 << 10;

/// A position in a block, with its key built.
#[derive(Debug, Default)]
pub(crate) struct BlockCursor {
    block: Option<Arc<Block>>,
    /// Where the entry under the cursor begins; meaningless when `on` is not set.
    at: usize,
    on: bool,
    head: Option<EntryHead>,
    key: Vec<u8>,
}

impl BlockCursor {
    /// Goes to a block, before its first entry.
    pub(crate) fn enter(&mut self, block: Arc<Block>) {
        self.block = Some(block);
        self.leave();
    }

    /// Goes off the entries, and forgets the block.
    pub(crate) fn clear(&mut self) {
        self.block = None;
        self.leave();
    }

    /// Goes off the entries, forgets the block, and gives its memory if nobody else has it.
    pub(crate) fn give_memory(&mut self) -> Vec<u8> {
        let block = self.block.take();
        self.leave();
        block
            .and_then(Arc::into_inner)
            .map(Block::into_memory)
            .filter(|memory| memory.capacity() <= REUSED_BYTES_MAX)
            .unwrap_or_default()
    }

    fn leave(&mut self) {
        self.on = false;
        self.head = None;
        self.key.clear();
    }

    /// The block.
    pub(crate) fn block(&self) -> Option<&Arc<Block>> {
        self.block.as_ref()
    }

    /// The entry under the cursor, if there is one.
    #[inline(always)]
    pub(crate) fn head(&self) -> Option<&EntryHead> {
        self.head.as_ref()
    }

    /// The stored key of the entry under the cursor; empty off the entries.
    #[inline(always)]
    pub(crate) fn stored_key(&self) -> &[u8] {
        &self.key
    }

    /// The value of the entry under the cursor; empty off the entries.
    #[inline(always)]
    pub(crate) fn value(&self) -> &[u8] {
        match (&self.block, &self.head) {
            (Some(block), Some(head)) => block.bytes(head.value_at, head.end),
            _ => &[],
        }
    }

    /// Goes to the next entry, or the first; false at the end of the block.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<bool, DecodeError> {
        let Some(block) = &self.block else {
            return Ok(false);
        };
        let at = self.head.as_ref().map_or(0, |head| head.end);
        if at >= block.entries().end() {
            self.leave();
            return Ok(false);
        }
        match block.entries().step(at, &mut self.key) {
            Ok(head) => {
                (self.at, self.on, self.head) = (at, true, Some(head));
                Ok(true)
            }
            Err(e) => {
                let e = block.damaged(e);
                self.leave();
                Err(e)
            }
        }
    }

    /// Goes to the entry before, or to the last one from off the entries; false at the start.
    pub(crate) fn retreat(&mut self) -> Result<bool, DecodeError> {
        let Some(block) = self.block.clone() else {
            return Ok(false);
        };
        let before = if self.on {
            self.at
        } else {
            block.entries().end()
        };
        self.leave();
        if before == 0 {
            return Ok(false);
        }
        self.go_before(&block, before)
            .map_err(|e| block.damaged(e))?;
        Ok(true)
    }

    /// Goes to the last entry that begins before byte `before`.
    fn go_before(&mut self, block: &Block, before: usize) -> Result<(), Malformed> {
        let (mut low, mut high) = (0, block.entries().restart_count());
        // BOUND: the range halves.
        while low < high {
            let middle = low + (high - low) / 2;
            if block.entries().restart(middle)? < before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut at = block.entries().restart(low.saturating_sub(1))?;
        if at >= before {
            return Err(Malformed::new(at, "a first restart at the first entry"));
        }
        // BOUND: every turn passes an entry of the block.
        loop {
            let head = block
                .entries()
                .step(at, &mut self.key)
                .inspect_err(|_| self.leave())?;
            if head.end >= before {
                (self.at, self.on, self.head) = (at, true, Some(head));
                return Ok(());
            }
            at = head.end;
        }
    }

    /// Goes to the first entry not before `sought`; false at the end of the block.
    pub(crate) fn seek(&mut self, sought: &Sought<'_>) -> Result<bool, DecodeError> {
        self.leave();
        let Some(block) = &self.block else {
            return Ok(false);
        };
        let Some(spot) = block.find(sought)? else {
            return Ok(false);
        };
        // What the entry shares with the one before it, that one shares with `sought`.
        let Some(shared) = sought.stored.get(..spot.head.shared) else {
            return Err(block.damaged(Malformed::new(spot.at, "fewer shared bytes")));
        };
        self.key.extend_from_slice(shared);
        let key = block.bytes(spot.head.key_at, spot.head.value_at);
        self.key.extend_from_slice(key);
        if self.key.len() < KEYSPACE_BYTES {
            self.leave();
            return Err(self.short_key(spot.at));
        }
        (self.at, self.on, self.head) = (spot.at, true, Some(spot.head));
        Ok(true)
    }

    #[cold]
    fn short_key(&self, at: usize) -> DecodeError {
        let offset = self.block.as_ref().map_or(0, |block| block.offset());
        let found = format!("a shorter key at byte {at} of the block");
        DecodeError::new("SSTable entry", offset, "a key with a keyspace", found)
    }
}

/// The user key and the keyspace of the entry under a cursor.
#[inline(always)]
pub(crate) fn user_key(cursor: &BlockCursor) -> (u32, &[u8]) {
    split_key(cursor.stored_key()).unwrap_or((0, &[]))
}
