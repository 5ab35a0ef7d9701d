//! The cursor over one block, in both directions, which builds the key of the current entry.

use std::sync::Arc;

use super::block::{Block, Sought};
use super::layout::{EntryHead, KEYSPACE_BYTES, Malformed, split_key};
use crate::parts::codec::DecodeError;

/// The maximum size of a block whose memory is reused.
const REUSED_BYTES_MAX: usize = 256 << 10;

/// A position in a block, with its key built.
#[derive(Debug, Default)]
pub(crate) struct BlockCursor {
    block: Option<Arc<Block>>,
    /// The offset of the current entry; meaningless unless `on` is set.
    at: usize,
    on: bool,
    head: Option<EntryHead>,
    key: Vec<u8>,
}

impl BlockCursor {
    /// Enters a block, unpositioned before its first entry.
    pub(crate) fn enter(&mut self, block: Arc<Block>) {
        self.block = Some(block);
        self.leave();
    }

    /// Makes the cursor unpositioned and drops the block.
    pub(crate) fn clear(&mut self) {
        self.block = None;
        self.leave();
    }

    /// Makes the cursor unpositioned and drops the block. Returns its memory if it is not shared.
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

    /// Returns the block.
    pub(crate) fn block(&self) -> Option<&Arc<Block>> {
        self.block.as_ref()
    }

    /// Returns the fixed part of the current entry, if there is one.
    #[inline(always)]
    pub(crate) fn head(&self) -> Option<&EntryHead> {
        self.head.as_ref()
    }

    /// Returns the stored key of the current entry, or an empty key if the cursor is unpositioned.
    #[inline(always)]
    pub(crate) fn stored_key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the value of the current entry, or an empty value if the cursor is unpositioned.
    #[inline(always)]
    pub(crate) fn value(&self) -> &[u8] {
        match (&self.block, &self.head) {
            (Some(block), Some(head)) => block.bytes(head.value_at, head.end),
            _ => &[],
        }
    }

    /// Moves to the next entry, or to the first one if unpositioned. Returns false at the end of
    /// the block.
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

    /// Moves to the previous entry, or to the last one if unpositioned. Returns false at the start.
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

    /// Moves to the last entry that begins before byte `before`.
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
        // BOUND: every iteration passes an entry of the block.
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

    /// Moves to the first entry at or after `sought`. Returns false at the end of the block.
    pub(crate) fn seek(&mut self, sought: &Sought<'_>) -> Result<bool, DecodeError> {
        self.leave();
        let Some(block) = &self.block else {
            return Ok(false);
        };
        let Some(spot) = block.find(sought)? else {
            return Ok(false);
        };
        // The bytes that the entry shares with the one before it are shared with `sought` too.
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

/// Returns the keyspace and the user key of a cursor's current entry.
#[inline(always)]
pub(crate) fn user_key(cursor: &BlockCursor) -> (u32, &[u8]) {
    split_key(cursor.stored_key()).unwrap_or((0, &[]))
}
