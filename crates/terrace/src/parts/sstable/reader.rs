//! Opening of tables, and point reads.
//!
//! An open table holds its upper index block, its properties, its range deletes and, if the budget
//! has space, its filter. Everything else comes from the block cache.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use terrace_media::{Advice, FileSystem, OpenMode, prefetch};

use super::SstCache;
use super::block::{Block, Sought, Spot};
use super::fetch::{CachedBlock, ReadCounts, TableFile};
use super::layout::{
    BlockKind, FOOTER_BYTES, Features, Footer, FooterError, Handle, TRAILER_BYTES,
};
use super::properties::Properties;
use super::ranges::RangeDeletes;
use super::walk::{BlockCursor, user_key};
use crate::error::{Error, Result};
use crate::parts::cache::Pin;
use crate::parts::codec::DecodeError;
use crate::parts::filter::FilterBlock;
use crate::parts::key::Target;
use crate::types::{DbId, EntryKind, SeqNo};

/// The number of bytes at the end of the file to read at once. They contain footer, properties and
/// a small index.
const TAIL_BYTES: u64 = 16 << 10;

/// The way to read a table's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ReadMode {
    /// Through the operating system's cache.
    #[default]
    Buffered,
    /// Bypasses the operating system's cache, if the file system supports it.
    Direct,
}

/// The newest entry that a read sees.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) seq: SeqNo,
    pub(crate) kind: u8,
    /// The expiry, or 0 if there is none.
    pub(crate) expiry: u64,
    block: Arc<Block>,
    value: (usize, usize),
}

impl Found {
    /// Returns the value, which is in the block that the read used.
    #[inline]
    pub(crate) fn value(&self) -> &[u8] {
        self.block.bytes(self.value.0, self.value.1)
    }
}

/// A table's answer about a key.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Entry(Found),
    /// A range delete covers the key, and the table contains no newer version of it.
    RangeDeleted(SeqNo),
}

impl Answer {
    /// Returns the sequence number of the entry or of the range delete.
    pub(crate) fn seq(&self) -> SeqNo {
        match self {
            Answer::Entry(found) => found.seq,
            Answer::RangeDeleted(seq) => *seq,
        }
    }

    /// Returns the value, or `None` if the key is deleted. The caller checks the expiry.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        match self {
            Answer::Entry(found) if found.kind != EntryKind::Delete as u8 => Some(found.value()),
            _ => None,
        }
    }
}

/// The filter of an open table.
enum TableFilter {
    /// Held while the table is open.
    Held(
        Arc<FilterBlock>,
        #[expect(dead_code, reason = "held for its Drop")] Pin<CachedBlock>,
    ),
    /// Read through the block cache, because the budget had no space to hold it.
    Cached(Handle),
}

/// An open table, shared by any number of threads.
pub(crate) struct SsTable {
    pub(super) file: TableFile,
    footer: Footer,
    properties: Properties,
    range_deletes: RangeDeletes,
    /// The only block of the index, or its upper one.
    upper: Arc<Block>,
    two_levels: bool,
    filter: OnceLock<TableFilter>,
    /// The pin of the held memory except the filter.
    held: Pin<CachedBlock>,
}

/// The end of a file, and its offset.
struct Tail {
    at: u64,
    bytes: Vec<u8>,
}

impl SsTable {
    /// Opens table `number`, reading its footer, properties, range deletes and upper index block.
    pub(crate) fn open(
        fs: &dyn FileSystem,
        path: &Path,
        number: u64,
        mode: ReadMode,
        cache: &Arc<SstCache>,
    ) -> Result<SsTable> {
        let open = match mode {
            ReadMode::Buffered => OpenMode::Read,
            ReadMode::Direct => OpenMode::ReadDirect,
        };
        let file = fs
            .open(path, open)
            .map_err(|e| Error::io("open", path, e))?;
        let file = TableFile::new(file, path, number, Arc::clone(cache))?;
        let mut counts = ReadCounts::default();
        let tail_bytes = file.file_bytes().min(TAIL_BYTES);
        let mut tail = Tail {
            at: file.file_bytes() - tail_bytes,
            bytes: vec![0; tail_bytes as usize],
        };
        file.read(tail.at, &mut tail.bytes, &mut counts)?;
        let footer_at = tail.bytes.len().saturating_sub(FOOTER_BYTES);
        let footer = Footer::decode(&tail.bytes[footer_at..], number, file.file_bytes());
        let footer = footer.map_err(|e| match e {
            FooterError::Damaged(e) => file.damaged(e),
            FooterError::Newer { found, known } => file.unsupported(&found, &known),
        })?;
        let mut content = |handle, kind| tail.content(&file, handle, kind, &mut counts);
        let properties = content(footer.properties, BlockKind::Properties)?;
        let properties = Properties::decode(&properties, footer.properties.offset)
            .map_err(|e| file.damaged(e))?;
        let upper = content(footer.index, BlockKind::Index)?;
        let upper = file.parse(footer.index, upper)?;
        let range_deletes = match footer.range_deletes {
            None => RangeDeletes::default(),
            Some(handle) => {
                let block = file.parse(handle, content(handle, BlockKind::RangeDeletes)?)?;
                RangeDeletes::decode(block).map_err(|e| file.damaged(e))?
            }
        };
        let held = size_of::<SsTable>() + upper.weight() + range_deletes.weight();
        let table = SsTable {
            two_levels: footer.features.has(Features::TWO_LEVELS),
            footer,
            properties,
            range_deletes,
            upper,
            filter: OnceLock::new(),
            held: cache.charge(held),
            file,
        };
        table
            .file
            .advise(0, table.file.file_bytes(), Advice::Random);
        Ok(table)
    }

    /// Returns the id of the database that wrote the table.
    pub(crate) fn db(&self) -> DbId {
        self.footer.db
    }

    /// Returns the table's number.
    pub(crate) fn number(&self) -> u64 {
        self.file.number()
    }

    /// Returns the path of the table.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file.file_bytes()
    }

    /// Returns the bytes of memory that the table holds, except its filter.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// Returns the table's properties.
    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Returns the table's range deletes. `get` applies them; cursors do not.
    pub(crate) fn range_deletes(&self) -> &RangeDeletes {
        &self.range_deletes
    }

    pub(super) fn footer(&self) -> &Footer {
        &self.footer
    }

    pub(super) fn upper(&self) -> &Arc<Block> {
        &self.upper
    }

    pub(super) fn has_two_levels(&self) -> bool {
        self.two_levels
    }

    /// Returns the newest version of the key of `target` that a read at `target.seq` sees, or the
    /// range delete that covers it. `hash` is the key's hash. Returns `None` if an older source
    /// must be searched.
    #[inline]
    pub(crate) fn get(
        &self,
        target: &Target<'_>,
        hash: u64,
        counts: &mut ReadCounts,
    ) -> Result<Option<Answer>> {
        let found = if self.may_contain(hash, counts)? {
            Sought::with(target, |sought| self.find(&sought, counts))?
        } else {
            None
        };
        Ok(self.answer(target, found))
    }

    /// Returns the newer of an entry and the range deletes that cover its key.
    #[inline]
    pub(super) fn answer(&self, target: &Target<'_>, found: Option<Found>) -> Option<Answer> {
        match (found, self.range_deletes.covering(target)) {
            (Some(found), Some(seq)) if found.seq < seq => Some(Answer::RangeDeleted(seq)),
            (Some(found), _) => Some(Answer::Entry(found)),
            (None, seq) => seq.map(Answer::RangeDeleted),
        }
    }

    fn find(&self, sought: &Sought<'_>, counts: &mut ReadCounts) -> Result<Option<Found>> {
        let Some(handle) = self.block_of(sought, counts)? else {
            return Ok(None);
        };
        let block = self.file.block(handle, BlockKind::Data, true, counts)?;
        self.find_in(block, sought)
    }

    /// Returns the newest visible version of the sought key in the block that must contain it (T3).
    #[inline]
    pub(super) fn find_in(&self, block: Arc<Block>, sought: &Sought<'_>) -> Result<Option<Found>> {
        match block.find(sought).map_err(|e| self.file.damaged(e))? {
            Some(Spot {
                head,
                same_key: true,
                ..
            }) => {
                // The caller will copy the whole value.
                prefetch(block.bytes(head.value_at, head.end));
                Ok(Some(Found {
                    seq: head.tag.seq(),
                    kind: head.tag.kind(),
                    expiry: head.expiry,
                    block,
                    value: (head.value_at, head.end),
                }))
            }
            _ => Ok(None),
        }
    }

    /// Returns the data block that contains, or would contain, the first entry at or after
    /// `sought`.
    #[inline]
    pub(super) fn block_of(
        &self,
        sought: &Sought<'_>,
        counts: &mut ReadCounts,
    ) -> Result<Option<Handle>> {
        let Some(handle) = self.handle_in(&self.upper, sought)? else {
            return Ok(None);
        };
        if !self.two_levels {
            return Ok(Some(handle));
        }
        let lower = self.file.block(handle, BlockKind::Index, true, counts)?;
        self.handle_in(&lower, sought)
    }

    #[inline]
    fn handle_in(&self, index: &Block, sought: &Sought<'_>) -> Result<Option<Handle>> {
        let spot = index.find(sought).map_err(|e| self.file.damaged(e))?;
        let Some(Spot { head, .. }) = spot else {
            return Ok(None);
        };
        self.handle(index, index.bytes(head.value_at, head.end))
            .map(Some)
    }

    /// Decodes a handle from an entry of an index block.
    #[inline]
    pub(super) fn handle(&self, index: &Block, value: &[u8]) -> Result<Handle> {
        Handle::decode(value, index.offset()).map_err(|e| self.file.damaged(e))
    }

    /// Returns whether the table has a filter.
    pub(crate) fn has_filter(&self) -> bool {
        self.footer.filter.is_some()
    }

    /// Returns whether the table may contain a key with this hash. `false` is certain, and counted.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64, counts: &mut ReadCounts) -> Result<bool> {
        let Some(handle) = self.footer.filter else {
            return Ok(true);
        };
        let may = match self.filter.get() {
            Some(TableFilter::Held(filter, _)) => filter.may_contain(hash),
            Some(TableFilter::Cached(handle)) => {
                let filter = self.file.filter(*handle, true, counts)?;
                filter.may_contain(hash)
            }
            None => self.load_filter(handle, counts)?.may_contain(hash),
        };
        counts.filter_saved += u64::from(!may);
        Ok(may)
    }

    /// Returns the filter, for a caller with many lookups, or `None` if the table has no filter.
    pub(super) fn filter(&self, counts: &mut ReadCounts) -> Result<Option<Arc<FilterBlock>>> {
        let Some(handle) = self.footer.filter else {
            return Ok(None);
        };
        let filter = match self.filter.get() {
            Some(TableFilter::Held(filter, _)) => Arc::clone(filter),
            Some(TableFilter::Cached(handle)) => self.file.filter(*handle, true, counts)?,
            None => self.load_filter(handle, counts)?,
        };
        Ok(Some(filter))
    }

    /// Reads the filter for the first time, and holds it if the budget has space.
    #[cold]
    fn load_filter(&self, handle: Handle, counts: &mut ReadCounts) -> Result<Arc<FilterBlock>> {
        let filter = self.file.filter(handle, false, counts)?;
        self.filter
            .get_or_init(|| match self.file.cache().try_pin(filter.weight()) {
                Some(pin) => TableFilter::Held(Arc::clone(&filter), pin),
                None => TableFilter::Cached(handle),
            });
        Ok(filter)
    }

    /// Estimates the number of entries and of bytes of the file between two places.
    pub(crate) fn approximate(
        &self,
        from: &Target<'_>,
        to: &Target<'_>,
        counts: &mut ReadCounts,
    ) -> Result<(u64, u64)> {
        let from = self.offset_of(from, counts)?;
        let bytes = self.offset_of(to, counts)?.saturating_sub(from);
        let all = u128::from(self.properties.data_bytes.max(1));
        let entries = u128::from(self.properties.entry_count) * u128::from(bytes) / all;
        Ok((u64::try_from(entries).unwrap_or(u64::MAX), bytes))
    }

    /// Estimates the offset of a place in the data blocks.
    fn offset_of(&self, target: &Target<'_>, counts: &mut ReadCounts) -> Result<u64> {
        let handle = Sought::with(target, |sought| self.block_of(&sought, counts))?;
        Ok(handle.map_or(self.properties.data_bytes, |handle| handle.offset))
    }

    /// Reads the block at `handle`, for walks that bypass the cache.
    pub(super) fn load_uncached(
        &self,
        handle: Handle,
        kind: BlockKind,
        counts: &mut ReadCounts,
    ) -> Result<Arc<Block>> {
        let content = self.file.read_content(handle, kind, counts)?;
        self.file.parse(handle, content)
    }

    /// Returns fewer than `parts` keys, which split the table into parts of about equal size: the
    /// bounds of subcompactions. They are taken from the index, so nothing else is read.
    pub(crate) fn split_keys(
        &self,
        parts: usize,
        counts: &mut ReadCounts,
    ) -> Result<Vec<(u32, Vec<u8>)>> {
        let mut keys = Vec::new();
        let step = (self.properties.data_bytes / parts.max(1) as u64).max(1);
        let mut next = step;
        let mut uppers = BlockCursor::default();
        let mut visit = |index: &Arc<Block>| -> Result<()> {
            let mut cursor = BlockCursor::default();
            cursor.enter(Arc::clone(index));
            while cursor.advance().map_err(|e| self.file.damaged(e))? {
                let end = self.handle(index, cursor.value())?.end();
                if end >= next && end < self.properties.data_bytes {
                    let (keyspace, key) = user_key(&cursor);
                    keys.push((keyspace, key.to_vec()));
                    next = end - end % step + step;
                }
            }
            Ok(())
        };
        if !self.two_levels {
            visit(&self.upper)?;
            return Ok(keys);
        }
        uppers.enter(Arc::clone(&self.upper));
        while uppers.advance().map_err(|e| self.file.damaged(e))? {
            let handle = self.handle(&self.upper, uppers.value())?;
            visit(&self.file.block(handle, BlockKind::Index, true, counts)?)?;
        }
        Ok(keys)
    }
}

impl Tail {
    /// Returns the content of the block at `handle`, from the tail if it contains the block, or
    /// else from the file.
    fn content(
        &self,
        file: &TableFile,
        handle: Handle,
        kind: BlockKind,
        counts: &mut ReadCounts,
    ) -> Result<Vec<u8>> {
        file.check_handle(handle)?;
        let from = handle.offset.checked_sub(self.at);
        let stored = from.and_then(|from| {
            let from = usize::try_from(from).ok()?;
            self.bytes
                .get(from..from.checked_add(handle.stored_bytes())?)
        });
        match stored {
            Some(stored) => file.open_block(handle, kind, Cow::Borrowed(stored), Vec::new()),
            None => file.read_content(handle, kind, counts),
        }
    }
}

const _: () = assert!(
    TAIL_BYTES as usize > FOOTER_BYTES + TRAILER_BYTES,
    "a footer"
);

/// Returns the error for a block that does not match its index entry.
#[cold]
pub(super) fn misplaced(file: &TableFile, offset: u64, expected: &str, found: String) -> Error {
    file.damaged(DecodeError::new("SSTable", offset, expected, found))
}
