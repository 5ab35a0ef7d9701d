//! This file is one block in memory: how it is built, searched and walked.
//!
//! A point read builds no key: it compares what entries do not share with the bytes of the sought
//! key that are still undecided. A walk builds each key in one buffer, of which only the unshared
//! part changes.
//!
//! Invariants
//!   K1  The first entry of a block and every entry at a restart share nothing.
//!   K2  Entries ascend strictly by stored key and descending sequence number.
//!
//! Blocks come from media. Whoever made them keeps K1 and K2; readers count on neither for safety,
//! only for the right answer, and return an error where an entry leads outside the block.

use std::cmp::Ordering as Order;
use std::sync::Arc;

use super::layout::{
    self, EntryHead, KEYSPACE_BYTES, Malformed, Tag, WORD_BYTES, entry_head, keyspace_bytes,
    split_key,
};
use crate::parts::codec::DecodeError;
use crate::parts::skiplist::Target;
use crate::parts::skiplist::node::compare_keys;
use crate::types::SeqNo;

/// How many bytes `a` and `b` have in common at their fronts.
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

/// Short sought keys need no allocation.
const INLINE_BYTES: usize = 96;

/// A place in the order, as blocks store it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sought<'a> {
    /// The stored key.
    pub(crate) stored: &'a [u8],
    pub(crate) seq: SeqNo,
}

impl Sought<'_> {
    /// Calls `then` with `target` as blocks store it.
    #[inline]
    pub(crate) fn with<R>(target: &Target<'_>, then: impl FnOnce(Sought<'_>) -> R) -> R {
        let len = KEYSPACE_BYTES + target.key.len();
        let mut inline = [0u8; INLINE_BYTES];
        let mut heap;
        let stored = if len <= INLINE_BYTES {
            &mut inline[..len]
        } else {
            heap = vec![0; len];
            &mut heap[..]
        };
        stored[..KEYSPACE_BYTES].copy_from_slice(&keyspace_bytes(target.keyspace));
        stored[KEYSPACE_BYTES..].copy_from_slice(target.key);
        then(Sought {
            stored,
            seq: target.seq,
        })
    }

    /// How an entry compares with the sought place.
    #[inline(always)]
    fn order_of(&self, stored: &[u8], tag: Tag) -> Order {
        match compare_keys(stored, self.stored) {
            Order::Equal => self.seq.cmp(&tag.seq()),
            order => order,
        }
    }
}

/// The first entry not before a sought place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) at: usize,
    pub(crate) head: EntryHead,
    /// Whether it is a version of the sought key.
    pub(crate) same_key: bool,
}

/// The content of a block of entries, its checksum found right.
#[derive(Debug)]
pub(crate) struct Block {
    content: Vec<u8>,
    /// Where the entries end and the restarts begin.
    entries_end: usize,
    restart_count: usize,
    /// The offset of the block in its file.
    offset: u64,
}

impl Block {
    /// The block at `offset` with this content; looks at its end only.
    pub(crate) fn new(content: Vec<u8>, offset: u64) -> Result<Block, DecodeError> {
        let len = content.len();
        let count = len
            .checked_sub(WORD_BYTES)
            .and_then(|at| layout::word(&content, at));
        let entries_end = count.and_then(|count| {
            let restarts = (count as usize).checked_add(1)?.checked_mul(WORD_BYTES)?;
            len.checked_sub(restarts)
        });
        match (count, entries_end) {
            (Some(count @ 1..), Some(entries_end)) => Ok(Block {
                content,
                entries_end,
                restart_count: count as usize,
                offset,
            }),
            _ => Err(DecodeError::new(
                "SSTable block",
                offset,
                "one restart or more, inside the block",
                format!("{} restarts in {len} bytes", count.unwrap_or(0)),
            )),
        }
    }

    /// Where the block is in its file.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of memory.
    pub(crate) fn weight(&self) -> usize {
        self.content.capacity() + size_of::<Block>()
    }

    /// The bytes from `from` to `to`.
    #[inline(always)]
    pub(crate) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        self.content.get(from..to).unwrap_or(&[])
    }

    /// The error of an entry that is not one.
    #[cold]
    pub(crate) fn damaged(&self, malformed: Malformed) -> DecodeError {
        DecodeError::new(
            "SSTable entry",
            self.offset,
            malformed.expected,
            format!("something else at byte {} of the block", malformed.at),
        )
    }

    #[inline(always)]
    fn entries(&self) -> &[u8] {
        &self.content[..self.entries_end]
    }

    #[inline(always)]
    fn head(&self, at: usize) -> Result<EntryHead, Malformed> {
        entry_head(self.entries(), at)
    }

    #[inline(always)]
    fn restart(&self, index: usize) -> Result<usize, Malformed> {
        match layout::word(&self.content, self.entries_end + index * WORD_BYTES) {
            Some(at) if (at as usize) < self.entries_end => Ok(at as usize),
            _ => Err(Malformed::new(self.entries_end, "restarts at entries")),
        }
    }

    /// The entry at restart `index`; its key is whole (K1).
    #[inline(always)]
    fn restart_entry(&self, index: usize) -> Result<(usize, EntryHead, &[u8]), Malformed> {
        let at = self.restart(index)?;
        let head = self.head(at)?;
        if head.shared != 0 {
            return Err(Malformed::new(at, "an entry that shares nothing (K1)"));
        }
        Ok((at, head, self.bytes(head.key_at, head.value_at)))
    }

    /// The number of restarts whose entries are before `sought`.
    #[inline]
    fn restarts_before(&self, sought: &Sought<'_>) -> Result<usize, Malformed> {
        let (mut low, mut high) = (0, self.restart_count);
        // BOUND: the range halves.
        while low < high {
            let middle = low + (high - low) / 2;
            let (_, head, key) = self.restart_entry(middle)?;
            match sought.order_of(key, head.tag) {
                Order::Less => low = middle + 1,
                Order::Equal | Order::Greater => high = middle,
            }
        }
        Ok(low)
    }

    /// Visits every entry, in order, and compares what a search relies on: K1, K2, and that entries
    /// share as much as they can.
    pub(crate) fn check(&self, visit: &mut EntryVisitor<'_>) -> Result<(), DecodeError> {
        self.check_entries(visit).map_err(|e| self.damaged(e))
    }

    fn check_entries(&self, visit: &mut EntryVisitor<'_>) -> Result<(), Malformed> {
        let (mut at, mut restart) = (0, 0);
        let (mut key, mut last) = (Vec::new(), Vec::new());
        let mut last_tag = None;
        // BOUND: every turn passes an entry of the block.
        while at < self.entries_end {
            let head = step(self, at, &mut key)?;
            let restarts = restart < self.restart_count && self.restart(restart)? == at;
            restart += usize::from(restarts);
            let shared = if restarts {
                0
            } else {
                common_prefix(&last, &key)
            };
            if head.shared != shared || at == 0 && !restarts {
                return Err(Malformed::new(at, "an entry that shares what it can (K1)"));
            }
            let sought = Sought {
                stored: &key,
                seq: head.tag.seq(),
            };
            if last_tag.is_some_and(|tag| sought.order_of(&last, tag) != Order::Less) {
                return Err(Malformed::new(at, "a later entry (K2)"));
            }
            visit(&key, &head, self.bytes(head.value_at, head.end));
            last.clone_from(&key);
            last_tag = Some(head.tag);
            at = head.end;
        }
        if self.entries_end > 0 && restart != self.restart_count {
            return Err(Malformed::new(at, "as many restarts as are counted"));
        }
        Ok(())
    }

    /// The first entry not before `sought`, `None` when all are.
    #[inline]
    pub(crate) fn find(&self, sought: &Sought<'_>) -> Result<Option<Spot>, DecodeError> {
        self.search(sought).map_err(|e| self.damaged(e))
    }

    #[inline]
    fn search(&self, sought: &Sought<'_>) -> Result<Option<Spot>, Malformed> {
        if self.entries_end == 0 {
            return Ok(None);
        }
        let before = self.restarts_before(sought)?;
        let Some(index) = before.checked_sub(1) else {
            let (at, head, key) = self.restart_entry(0)?;
            return Ok(Some(Spot {
                at,
                head,
                same_key: key == sought.stored,
            }));
        };
        let (_, head, key) = self.restart_entry(index)?;
        // The last entry looked at is before `sought` and has `common` bytes in common with it.
        let mut common = common_prefix(key, sought.stored);
        let mut at = head.end;
        // BOUND: every turn passes an entry of the block.
        while at < self.entries_end {
            let head = self.head(at)?;
            // Sharing more than `common`, the entry differs from the sought key where the one
            // before it does, so it is before it too and nothing need be compared.
            if head.shared <= common {
                let spot = |same_key| Ok(Some(Spot { at, head, same_key }));
                let key = self.bytes(head.key_at, head.value_at);
                if head.shared < common {
                    // It exceeds the entry before it at a byte that is the sought key's too; or it
                    // is the next restart, which is not before `sought`, with its whole key.
                    return spot(head.shared == 0 && key == sought.stored);
                }
                let rest = sought.stored.get(common..).unwrap_or(&[]);
                let more = common_prefix(key, rest);
                match (key.get(more), rest.get(more)) {
                    (Some(a), Some(b)) if a > b => return spot(false),
                    (Some(_), None) => return spot(false),
                    (None, None) if head.tag.seq() <= sought.seq => return spot(true),
                    _ => common += more,
                }
            }
            at = head.end;
        }
        Ok(None)
    }
}

/// Sees the stored key, the fixed part and the value of an entry.
pub(crate) type EntryVisitor<'a> = dyn FnMut(&[u8], &EntryHead, &[u8]) + 'a;

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
        if at >= block.entries_end {
            self.leave();
            return Ok(false);
        }
        match step(block, at, &mut self.key) {
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
        let before = if self.on { self.at } else { block.entries_end };
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
        let (mut low, mut high) = (0, block.restart_count);
        // BOUND: the range halves.
        while low < high {
            let middle = low + (high - low) / 2;
            if block.restart(middle)? < before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut at = block.restart(low.saturating_sub(1))?;
        // BOUND: every turn passes an entry of the block.
        loop {
            let head = step(block, at, &mut self.key).inspect_err(|_| self.leave())?;
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
        let offset = self.block.as_ref().map_or(0, |block| block.offset);
        let found = format!("a shorter key at byte {at} of the block");
        DecodeError::new("SSTable entry", offset, "a key with a keyspace", found)
    }
}

/// Reads the entry at `at` and makes `key`, that of the entry before, its key.
#[inline(always)]
fn step(block: &Block, at: usize, key: &mut Vec<u8>) -> Result<EntryHead, Malformed> {
    let head = block.head(at)?;
    if head.shared > key.len() {
        return Err(Malformed::new(at, "fewer shared bytes"));
    }
    key.truncate(head.shared);
    key.extend_from_slice(block.bytes(head.key_at, head.value_at));
    if key.len() < KEYSPACE_BYTES {
        return Err(Malformed::new(at, "a key with a keyspace"));
    }
    Ok(head)
}

/// What the writer adds to a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawEntry<'a> {
    pub(crate) stored: &'a [u8],
    pub(crate) seq: SeqNo,
    pub(crate) kind: u8,
    pub(crate) expiry: u64,
    pub(crate) value: &'a [u8],
}

/// The content of a block that is being built.
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
    /// An empty block that restarts at every `restart_interval`-th entry.
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

    /// Adds an entry, which comes after those before it (K2).
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

    /// Bytes that the content has so far.
    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        self.content.len() + (self.restarts.len() + 1) * WORD_BYTES
    }

    /// How many entries there are.
    pub(crate) fn entry_count(&self) -> usize {
        self.entry_count
    }

    /// The stored key of the last entry; empty before the first.
    pub(crate) fn last_stored(&self) -> &[u8] {
        &self.last
    }

    /// The content, whole. The builder must be reset before its next entry.
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

    /// Makes the block empty; memory beyond `keep_bytes` is given back.
    pub(crate) fn reset(&mut self, keep_bytes: usize) {
        self.content.clear();
        self.content.shrink_to(keep_bytes);
        self.restarts.clear();
        self.since_restart = 0;
        self.entry_count = 0;
        self.last.clear();
    }
}

/// The user key and the keyspace of the entry under a cursor.
#[inline(always)]
pub(crate) fn user_key(cursor: &BlockCursor) -> (u32, &[u8]) {
    split_key(cursor.stored_key()).unwrap_or((0, &[]))
}
