//! The cursor over a table, in both directions, with read-ahead in forward direction.
//!
//! A forward walk that has read two blocks from the file reads a span of blocks at the next cache
//! miss; the span size doubles up to a limit. A short scan ends before that and reads only the
//! blocks that it needs. The blocks of a span stay in the cursor's own memory until they are
//! reached. A full cache keeps few of them, since one long scan would otherwise evict data that is
//! read repeatedly.

use std::borrow::Cow;
use std::sync::Arc;

use terrace_media::{Advice, prefetch};

use super::block::{Block, Sought};
use super::fetch::{ReadCounts, spare_memory};
use super::layout::{BlockKind, Handle, kind};
use super::reader::SsTable;
use super::walk::{BlockCursor, user_key};
use crate::error::Result;
use crate::parts::expiry::Value;
use crate::parts::iter::{Cursor, EntryView};
use crate::parts::key::Target;
use crate::parts::memory::Lease;
use crate::parts::ranges::Newer;
use crate::types::SeqNo;

/// The size of the first span to read ahead.
const AHEAD_BYTES_MIN: usize = 16 << 10;
/// The number of blocks that a walk reads from the file one by one before the first span. A
/// compaction, which is certain to continue, reads one.
const BLOCKS_BEFORE: u32 = 2;
/// The minimum size of a span for read-ahead advice. Shorter spans are read before the system has
/// acted on the advice.
const ADVISED_BYTES_MIN: usize = 64 << 10;
/// The granularity at which the memory of a cursor is accounted.
const COUNTED_BYTES: u64 = 4 << 10;
/// The number of entries that `seek_before` goes back at breadth 0. Each step of breadth triples
/// it.
const BACK_ENTRIES: usize = 8;

/// Adjacent blocks, read at once.
#[derive(Default)]
struct Span {
    at: u64,
    /// The first `len` bytes are the span; the rest is memory for longer ones.
    bytes: Vec<u8>,
    len: usize,
    /// The size of the next span.
    next_bytes: usize,
    /// Whether the blocks of the span are cached.
    keeps: bool,
    /// The offset after the last block that was read, where the next one begins.
    expected: u64,
    /// The number of blocks of this walk that were read from the file one by one.
    single: u32,
}

/// A position in one table. Range deletes are not applied: see `SsTable::range_deletes`.
pub(crate) struct SstCursor {
    table: Arc<SsTable>,
    /// The position in the only or upper block of the index.
    upper: BlockCursor,
    /// The position in a block of the lower level of the index; without a block if there is only
    /// one level.
    lower: BlockCursor,
    data: BlockCursor,
    span: Span,
    ahead_bytes_max: usize,
    fill_cache: bool,
    counts: ReadCounts,
    /// The memory that the cursor holds, if there is a budget.
    lease: Option<Lease>,
}

impl SstCursor {
    /// Creates an unpositioned cursor. If `fill_cache`, blocks read from the file are cached.
    pub(crate) fn new(table: Arc<SsTable>, fill_cache: bool) -> SstCursor {
        let mut upper = BlockCursor::default();
        upper.enter(Arc::clone(table.upper()));
        let memory = table.file.cache().memory();
        let gauge = match fill_cache {
            true => &memory.iterators,
            false => &memory.jobs,
        };
        let lease = memory.is_limited().then(|| gauge.lease());
        let ahead_bytes_max = memory.limits.scan_ahead_bytes;
        SstCursor {
            table,
            lease,
            upper,
            lower: BlockCursor::default(),
            data: BlockCursor::default(),
            span: Span::default(),
            ahead_bytes_max,
            fill_cache,
            counts: ReadCounts::default(),
        }
    }

    /// Limits the read-ahead; 0 reads block by block. A compaction wants more than a scan.
    pub(crate) fn read_ahead(&mut self, bytes_max: usize) {
        self.ahead_bytes_max = bytes_max;
    }

    /// Returns the counts of the cursor's reads since the last call.
    pub(crate) fn take_counts(&mut self) -> ReadCounts {
        std::mem::take(&mut self.counts)
    }

    /// Returns the expiry of the current entry, or 0 if it has no expiry or the cursor is
    /// unpositioned.
    #[inline]
    pub(crate) fn expiry(&self) -> u64 {
        self.data.head().map_or(0, |head| head.expiry)
    }

    /// Returns whether the value of the current entry is a pointer to it.
    #[inline]
    pub(crate) fn is_apart(&self) -> bool {
        let head = self.data.head();
        head.is_some_and(|head| head.tag.kind() == kind::VALUE_POINTER)
    }

    /// Moves to the first entry.
    pub(crate) fn seek_to_first(&mut self) -> Result<()> {
        self.leave();
        self.next_block()
    }

    /// Moves to the last entry.
    pub(crate) fn seek_to_last(&mut self) -> Result<()> {
        self.leave();
        self.previous_block()
    }

    /// Moves to the last entry before `target`.
    pub(crate) fn seek_to_before(&mut self, target: &Target<'_>) -> Result<()> {
        self.seek(target)?;
        if self.data.head().is_some() {
            return self.retreat();
        }
        self.seek_to_last()
    }

    /// Moves to the previous entry. From the first entry, the cursor becomes unpositioned.
    pub(crate) fn retreat(&mut self) -> Result<()> {
        if self.data.head().is_none() {
            return Ok(());
        }
        match self.data.retreat() {
            Ok(true) => Ok(()),
            Ok(false) => self.previous_block(),
            Err(e) => {
                self.leave();
                Err(self.table.file.damaged(e))
            }
        }
    }

    /// Makes the cursor unpositioned: before the first block and after the last.
    fn leave(&mut self) {
        self.upper.enter(Arc::clone(self.table.upper()));
        self.lower.clear();
        self.data.clear();
    }

    /// Returns the cursor in the level of the index that refers to data blocks.
    fn index(&self) -> &BlockCursor {
        if self.table.has_two_levels() {
            &self.lower
        } else {
            &self.upper
        }
    }

    /// Moves to the first entry of the next data block that contains entries.
    #[cold]
    fn next_block(&mut self) -> Result<()> {
        let result = self.walk_blocks(true);
        if result.is_err() {
            self.leave();
        }
        result
    }

    #[cold]
    fn previous_block(&mut self) -> Result<()> {
        let result = self.walk_blocks(false);
        if result.is_err() {
            self.leave();
        }
        result
    }

    fn walk_blocks(&mut self, forward: bool) -> Result<()> {
        // BOUND: every iteration passes a data block.
        while self.walk_index(forward)? {
            self.enter_data(forward)?;
            if step(&mut self.data, forward).map_err(|e| self.table.file.damaged(e))? {
                return Ok(());
            }
        }
        self.leave();
        Ok(())
    }

    /// Moves to the index entry of the next data block. Returns false if there is none.
    fn walk_index(&mut self, forward: bool) -> Result<bool> {
        let file = &self.table.file;
        if !self.table.has_two_levels() {
            return step(&mut self.upper, forward).map_err(|e| file.damaged(e));
        }
        // BOUND: every iteration passes a block of the index.
        loop {
            if step(&mut self.lower, forward).map_err(|e| file.damaged(e))? {
                return Ok(true);
            }
            if !step(&mut self.upper, forward).map_err(|e| file.damaged(e))? {
                return Ok(false);
            }
            let handle = self.table.handle(self.table.upper(), self.upper.value())?;
            let kind = BlockKind::Index;
            let lower = file.block(handle, kind, true, &mut self.counts)?;
            self.lower.enter(lower);
        }
    }

    /// Enters the data block of the current index entry, unpositioned.
    fn enter_data(&mut self, forward: bool) -> Result<()> {
        let index = self.index();
        let Some(block) = index.block() else {
            return Ok(());
        };
        let handle = self.table.handle(block, index.value())?;
        let block = self.data_block(handle, forward)?;
        self.data.enter(block);
        self.count_held()
    }

    /// Accounts the memory that the cursor now holds, if there is a budget.
    #[inline]
    fn count_held(&mut self) -> Result<()> {
        let Some(lease) = &mut self.lease else {
            return Ok(());
        };
        let block = |cursor: &BlockCursor| cursor.block().map_or(0, |block| block.weight());
        let held = self.span.bytes.capacity() + block(&self.data) + block(&self.lower);
        let held = (held as u64).next_multiple_of(COUNTED_BYTES);
        if lease.bytes() == held || lease.set(held) {
            return Ok(());
        }
        self.leave();
        self.span = Span::default();
        self.lower = BlockCursor::default();
        if let Some(lease) = &mut self.lease {
            // Shrinking a lease cannot fail.
            let _ = lease.set(0);
        }
        Err(self.table.file.cache().memory().iterators_are_full())
    }

    /// Returns whether a span of this size may be held, and accounts it if so.
    fn may_hold_span(&mut self, bytes: usize) -> bool {
        let Some(lease) = &mut self.lease else {
            return true;
        };
        let more = bytes.saturating_sub(self.span.bytes.capacity()) as u64;
        let held = lease.bytes() + more;
        lease.set(held)
    }

    fn data_block(&mut self, handle: Handle, forward: bool) -> Result<Arc<Block>> {
        let table = Arc::clone(&self.table);
        let file = &table.file;
        let follows = forward && handle.offset == self.span.expected;
        self.span.expected = handle.end();
        if !follows {
            self.span.single = 0;
        }
        // Reading a block from the span is cheaper than a cache lookup.
        if self.span.bytes_of(handle).is_none()
            && let Some(block) = file.cached(handle, &mut self.counts)
        {
            // The block is not adjacent in memory to the last one. Without the prefetch, waiting
            // for it line by line would take most of the time of a scan.
            prefetch(block.bytes(0, block.entries().end()));
            return Ok(block);
        }
        file.check_handle(handle)?;
        let stored_bytes = 2 * handle.stored_bytes() as u64;
        let _turn = match self.fill_cache {
            true => file.cache().memory().read(stored_bytes),
            false => None,
        };
        if self.span.bytes_of(handle).is_none() {
            self.span.len = 0;
            let before = if self.fill_cache { BLOCKS_BEFORE } else { 1 };
            if self.span.single >= before && self.ahead_bytes_max > handle.stored_bytes() {
                self.read_span(handle)?;
            } else {
                self.span.next_bytes = AHEAD_BYTES_MIN;
                self.span.single += 1;
            }
        }
        let left = self.data.give_memory();
        let mut keeps = self.fill_cache;
        let (stored, memory) = match self.span.bytes_of(handle) {
            Some(stored) => {
                keeps &= self.span.keeps;
                // A cached block gets memory of its own size.
                let memory = match keeps {
                    true => spare_memory(handle),
                    false => left,
                };
                (Cow::Borrowed(stored), memory)
            }
            None => {
                let stored = file.read_stored(handle, &mut self.counts)?;
                (Cow::Owned(stored), Vec::new())
            }
        };
        self.counts.blocks_read += 1;
        let content = file.open_block(handle, BlockKind::Data, stored, memory)?;
        let block = file.parse(handle, content)?;
        if keeps {
            file.keep(handle, &block);
        }
        Ok(block)
    }

    /// Reads a span that begins with the block at `handle`.
    fn read_span(&mut self, handle: Handle) -> Result<()> {
        let wanted = self.span.next_bytes.max(AHEAD_BYTES_MIN);
        let wanted = wanted.min(self.ahead_bytes_max).max(handle.stored_bytes());
        let data_end = self.table.properties().data_bytes;
        let left = data_end
            .saturating_sub(handle.offset)
            .max(handle.stored_bytes() as u64);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(wanted);
        if !self.may_hold_span(len) {
            // Falls back to reading block by block.
            self.span = Span {
                expected: self.span.expected,
                single: self.span.single,
                ..Span::default()
            };
            return Ok(());
        }
        let file = &self.table.file;
        self.span.next_bytes = (wanted * 2).min(self.ahead_bytes_max);
        if self.span.bytes.len() < len {
            // Frees the old bytes first.
            self.span.bytes = Vec::new();
            self.span.bytes.resize(len, 0);
        }
        let bytes = &mut self.span.bytes[..len];
        file.read(handle.offset, bytes, &mut self.counts)?;
        (self.span.at, self.span.len) = (handle.offset, len);
        self.span.keeps = self.fill_cache && file.cache().keeps_scanned(len);
        if self.span.next_bytes < ADVISED_BYTES_MIN {
            return Ok(());
        }
        // The system reads the next span while this one is used.
        let next = handle.offset + len as u64;
        let ahead = data_end
            .saturating_sub(next)
            .min(self.span.next_bytes as u64);
        file.advise(next, ahead, Advice::WillNeed);
        Ok(())
    }

    /// Moves back by whole blocks, to the first entry of one. The cursor becomes unpositioned if
    /// there are not that many.
    fn skip_back(&mut self, blocks: usize) -> Result<()> {
        // BOUND: `blocks`, and the blocks of the table.
        for _ in 0..blocks {
            if !self.walk_index(false)? {
                self.leave();
                return Ok(());
            }
        }
        self.enter_data(true)?;
        match step(&mut self.data, true).map_err(|e| self.table.file.damaged(e))? {
            true => Ok(()),
            false => self.next_block(),
        }
    }

    fn seek_in(&mut self, sought: &Sought<'_>) -> Result<bool> {
        self.leave();
        let table = Arc::clone(&self.table);
        let file = &table.file;
        if !self.upper.seek(sought).map_err(|e| file.damaged(e))? {
            return Ok(true);
        }
        if table.has_two_levels() {
            let handle = table.handle(table.upper(), self.upper.value())?;
            let lower = file.block(handle, BlockKind::Index, true, &mut self.counts)?;
            self.lower.enter(lower);
            if !self.lower.seek(sought).map_err(|e| file.damaged(e))? {
                // An upper separator equals the last separator of its lower block.
                return Err(super::reader::misplaced(
                    file,
                    handle.offset,
                    "an index block that reaches its separator",
                    "a shorter separator".into(),
                ));
            }
        }
        self.enter_data(true)?;
        self.data.seek(sought).map_err(|e| file.damaged(e))
    }
}

/// Moves by one entry. From an unpositioned cursor, moves to the first or last entry of the block.
#[inline]
fn step(cursor: &mut BlockCursor, forward: bool) -> Result<bool, crate::parts::codec::DecodeError> {
    if forward {
        cursor.advance()
    } else {
        cursor.retreat()
    }
}

impl Span {
    /// Returns the stored bytes of a block if the span contains all of them.
    fn bytes_of(&self, handle: Handle) -> Option<&[u8]> {
        let from = usize::try_from(handle.offset.checked_sub(self.at)?).ok()?;
        let bytes = self.bytes.get(..self.len)?;
        bytes.get(from..from.checked_add(handle.stored_bytes())?)
    }
}

impl Cursor for SstCursor {
    fn newer(&self, _: &Target<'_>, _: &Target<'_>, than: SeqNo, _: bool) -> Newer {
        let newest = self.table.properties().seqs.map_or(0, |(_, newest)| newest);
        if newest <= than {
            Newer::No
        } else {
            Newer::Unknown
        }
    }

    fn hold(&mut self) -> bool {
        // A table never changes (T1).
        true
    }

    fn release(&mut self) {}

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        let found = Sought::with(target, |sought| self.seek_in(&sought));
        match found {
            // The block ends before its separator, and the next one begins after `target`.
            Ok(false) => self.next_block(),
            Ok(true) => Ok(()),
            Err(e) => {
                self.leave();
                Err(e)
            }
        }
    }

    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()> {
        self.seek_to_before(target)?;
        let back = BACK_ENTRIES.saturating_mul(3usize.saturating_pow(breadth as u32));
        let p = self.table.properties();
        let per_block = (p.entry_count / p.data_block_count.max(1)).max(1);
        let per_block = usize::try_from(per_block).unwrap_or(usize::MAX);
        if back >= 2 * per_block && self.data.head().is_some() {
            self.skip_back(back / per_block)?;
        }
        // BOUND: `per_block`, and the entries of the table.
        for _ in 0..back % per_block {
            if self.data.head().is_none() {
                break;
            }
            self.retreat()?;
        }
        Ok(())
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if self.data.head().is_none() {
            return Ok(());
        }
        match self.data.advance() {
            Ok(true) => Ok(()),
            Ok(false) => self.next_block(),
            Err(e) => {
                self.leave();
                Err(self.table.file.damaged(e))
            }
        }
    }

    #[inline]
    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        let Some(head) = self.data.head() else {
            return Ok(None);
        };
        let (keyspace, key) = user_key(&self.data);
        Ok(Some(EntryView {
            keyspace,
            key,
            seq: head.tag.seq(),
            kind: head.tag.kind(),
        }))
    }

    #[inline]
    fn value(&self) -> Result<Value<'_>> {
        Ok(Value {
            bytes: self.data.value(),
            expiry: self.data.head().map_or(0, |head| head.expiry),
        })
    }
}
