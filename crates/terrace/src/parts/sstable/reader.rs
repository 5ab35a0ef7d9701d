//! This file opens a table and answers point reads.
//!
//! An open table holds its upper index block, its properties and its range deletes, and its filter
//! if the budget has room for it; everything else comes from the block cache.

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

/// The end of the file is read at once: footer, properties and a small index are in it.
const TAIL_BYTES: u64 = 16 << 10;

/// How a table's file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ReadMode {
    /// Through the operating system's cache.
    #[default]
    Buffered,
    /// Past it, where the file system can.
    Direct,
}

/// The newest entry that a read sees.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) seq: SeqNo,
    pub(crate) kind: u8,
    /// 0 for none.
    pub(crate) expiry: u64,
    block: Arc<Block>,
    value: (usize, usize),
}

impl Found {
    /// The value, in the block that the read used.
    #[inline]
    pub(crate) fn value(&self) -> &[u8] {
        self.block.bytes(self.value.0, self.value.1)
    }
}

/// What a table says of a key.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Entry(Found),
    /// A range delete covers the key, and no newer version of it is here.
    RangeDeleted(SeqNo),
}

impl Answer {
    /// The sequence number of the entry, or of the range delete.
    pub(crate) fn seq(&self) -> SeqNo {
        match self {
            Answer::Entry(found) => found.seq,
            Answer::RangeDeleted(seq) => *seq,
        }
    }

    /// The value, unless the key is deleted; whether it has expired is the caller's to say.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        match self {
            Answer::Entry(found) if found.kind != EntryKind::Delete as u8 => Some(found.value()),
            _ => None,
        }
    }
}

/// The filter of an open table.
enum TableFilter {
    /// Held for as long as the table is open.
    Held(
        Arc<FilterBlock>,
        #[expect(dead_code, reason = "held for its Drop")] Pin<CachedBlock>,
    ),
    /// In the block cache, or not: the budget had no room to hold it.
    Cached(Handle),
}

/// An open table. Any number of threads.
pub(crate) struct SsTable {
    pub(super) file: TableFile,
    footer: Footer,
    properties: Properties,
    range_deletes: RangeDeletes,
    /// The only block of the index, or its upper one.
    upper: Arc<Block>,
    two_levels: bool,
    filter: OnceLock<TableFilter>,
    /// What is held beside the filter is on the budget.
    held: Pin<CachedBlock>,
}

/// The end of a file, and where it begins.
struct Tail {
    at: u64,
    bytes: Vec<u8>,
}

impl SsTable {
    /// Opens table `number`, after a look at its footer, properties, range deletes and upper index.
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

    /// The database that wrote the table.
    pub(crate) fn db(&self) -> DbId {
        self.footer.db
    }

    /// The table's number.
    pub(crate) fn number(&self) -> u64 {
        self.file.number()
    }

    /// Where the table is.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file.file_bytes()
    }

    /// Bytes of memory that it holds, beside its filter.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// What the table says of itself.
    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The table's range deletes. Cursors do not apply them; `get` does.
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

    /// What the table knows of the key of `target`, whose hash is `hash`: the newest version that a
    /// read at `target.seq` sees, or that a range delete covers it. `None`: ask an older source.
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

    /// The newest of an entry and the range deletes over its key.
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

    /// The newest visible version of the sought key in the block that must have it (T3).
    #[inline]
    pub(super) fn find_in(&self, block: Arc<Block>, sought: &Sought<'_>) -> Result<Option<Found>> {
        match block.find(sought).map_err(|e| self.file.damaged(e))? {
            Some(Spot {
                head,
                same_key: true,
                ..
            }) => {
                // All of it will be copied.
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

    /// The data block in which the first entry not before `sought` is, or would be.
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

    /// Reads a handle from an entry of an index block.
    #[inline]
    pub(super) fn handle(&self, index: &Block, value: &[u8]) -> Result<Handle> {
        Handle::decode(value, index.offset()).map_err(|e| self.file.damaged(e))
    }

    /// Whether there is a filter to ask.
    pub(crate) fn has_filter(&self) -> bool {
        self.footer.filter.is_some()
    }

    /// Whether the table may have a key with this hash; `false` is certain, and counted.
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

    /// The filter, for a caller who asks it many times; `None` where the table has none.
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

    /// Reads the filter for the first time, and holds it if the budget has room.
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

    /// About how many entries, and bytes of the file, lie between two places.
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

    /// About where in the data blocks a place is.
    fn offset_of(&self, target: &Target<'_>, counts: &mut ReadCounts) -> Result<u64> {
        let handle = Sought::with(target, |sought| self.block_of(&sought, counts))?;
        Ok(handle.map_or(self.properties.data_bytes, |handle| handle.offset))
    }

    /// The block at `handle` and where it lies, for walks that do not use the cache.
    pub(super) fn load_uncached(
        &self,
        handle: Handle,
        kind: BlockKind,
        counts: &mut ReadCounts,
    ) -> Result<Arc<Block>> {
        let content = self.file.read_content(handle, kind, counts)?;
        self.file.parse(handle, content)
    }

    /// Keys that split the table into parts of about equal size, fewer than `parts`: the bounds of
    /// subcompactions. Stored keys of the index serve, so nothing but the index is read.
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
    /// The content of the block at `handle`, from the tail if it is there, else from the file.
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

/// The error of a block whose entries the index misplaces.
#[cold]
pub(super) fn misplaced(file: &TableFile, offset: u64, expected: &str, found: String) -> Error {
    file.damaged(DecodeError::new("SSTable", offset, expected, found))
}
