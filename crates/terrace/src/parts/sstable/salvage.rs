//! Salvage of the sound parts of a possibly damaged table, for inspection and repair.
//!
//! The footer leads to the index, and the index to all other blocks. Every block is checked
//! separately; a damaged one is reported with its offset, and the walk continues after it. If the
//! footer or an index block is damaged, blocks are found by their checksums (block_scan.rs), and
//! only data between the blocks found counts as lost.

use std::path::Path;
use std::sync::Arc;

use terrace_media::{File, FileSystem, OpenMode};

use super::SstCache;
use super::block::Block;
use super::block_scan::{BlockScan, block_at};
use super::fetch::{ReadCounts, TableFile};
use super::layout::{
    BlockKind, FOOTER_BYTES, Features, Footer, FooterError, Handle, MAGIC, split_key,
};
use super::properties::Properties;
use super::ranges::{RangeDelete, RangeDeletes};
use super::walk::BlockCursor;
use crate::error::{Error, Result};
use crate::parts::codec::DecodeError;
use crate::parts::filter::FilterBlock;
use crate::types::SeqNo;

/// A keyspace and a key.
pub(crate) type KeyPlace = (u32, Vec<u8>);

/// A piece of a table, in the order of the walk. A block follows its contents.
pub(crate) enum Piece<'a> {
    Entry(&'a SalvagedEntry<'a>),
    RangeDelete(&'a RangeDelete),
    /// An intact block.
    Block {
        kind: BlockKind,
        offset: u64,
        stored_bytes: u64,
        content_bytes: u64,
        entries: u64,
    },
    Problem(Problem),
}

/// An entry of a data block with a correct checksum.
#[derive(Clone, Copy)]
pub(crate) struct SalvagedEntry<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) seq: SeqNo,
    pub(crate) kind: u8,
    /// The expiry, or 0 if there is none.
    pub(crate) expiry: u64,
    pub(crate) value: &'a [u8],
}

/// A problem, its offset, and the entries that cannot be read because of it.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) offset: u64,
    pub(crate) text: String,
    pub(crate) lost: Option<LostKeys>,
}

/// A range of keys whose entries are lost, if there were any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostKeys {
    /// The exclusive start, of which older versions may be lost too; `None` is the first key.
    pub(crate) after: Option<KeyPlace>,
    /// The inclusive end; `None` is the last key.
    pub(crate) up_to: Option<KeyPlace>,
}

impl LostKeys {
    const ALL: LostKeys = LostKeys {
        after: None,
        up_to: None,
    };
}

/// The facts about the table as a whole.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    pub(crate) file_bytes: u64,
    /// The table number in the footer; `None` if the footer is damaged.
    pub(crate) number: Option<u64>,
    pub(crate) properties: Option<Properties>,
    pub(crate) blocks: u64,
    pub(crate) entries: u64,
    pub(crate) problems: u64,
}

/// A callback for pieces.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Piece<'_>) -> Result<()>;

/// Walks the table at `path`. `named` is the number in the name of the file, if there is one.
///
/// # Errors
/// Fails if the file cannot be opened, a later version wrote it, or `visit` failed. Damage is not
/// an error, but a file that is not a table by name, footer or first block is `Invalid`.
pub(crate) fn salvage(
    fs: &dyn FileSystem,
    path: &Path,
    named: Option<u64>,
    visit: Visit<'_>,
) -> Result<Salvaged> {
    let file = fs
        .open(path, OpenMode::Read)
        .map_err(|e| Error::io("open", path, e))?;
    let file_bytes = file
        .len()
        .map_err(|e| Error::io("get the length of", path, e))?;
    let mut found = Salvaged {
        file_bytes,
        ..Salvaged::default()
    };
    let base = file_bytes.saturating_sub(FOOTER_BYTES as u64);
    let mut bytes = vec![0; (file_bytes - base) as usize];
    if let Err(e) = file.read_exact_at(base, &mut bytes) {
        let e = Error::io("read the footer of", path, e);
        found.lose_all(base, e.to_string(), visit)?;
        return Ok(found);
    }
    // Tries the footer's own number first: a renamed table is intact under a wrong name.
    let stated = bytes.get(8..).and_then(|rest| rest.first_chunk::<8>());
    let number = stated.map_or(0, |number| u64::from_le_bytes(*number));
    let footer = match Footer::decode(&bytes, number, file_bytes) {
        Ok(footer) => footer,
        Err(FooterError::Newer { found, known }) => {
            return Err(Error::new(
                crate::error::ErrorKind::Unsupported,
                format!(
                    "{} has {found}, but this version knows {known}: use the version that wrote it",
                    path.display()
                ),
            ));
        }
        Err(FooterError::Damaged(e)) => {
            // The table number of the blocks comes from the name of the file or else from the
            // damaged footer.
            let number = named.unwrap_or(number);
            let mut walk = Walk::new(file, path, number, found, visit)?;
            if named.is_none() && !bytes.starts_with(&MAGIC) && walk.begins_without_block() {
                return Err(Error::invalid(format!(
                    "{} is not a table of Terrace: it has no table footer, and no intact block at \
                     its start",
                    path.display()
                )));
            }
            walk.problem(e.offset, e.to_string(), None)?;
            walk.scan_all()?;
            return Ok(walk.found);
        }
    };
    found.number = Some(number);
    let mut walk = Walk::new(file, path, number, found, visit)?;
    if let Some(named) = named.filter(|named| *named != number) {
        let text = format!("the file is named as table {named}, but its footer has table {number}");
        walk.problem(base, text, None)?;
    }
    walk.run(footer)?;
    Ok(walk.found)
}

impl Salvaged {
    fn lose_all(&mut self, offset: u64, text: String, visit: Visit<'_>) -> Result<()> {
        self.problems += 1;
        visit(Piece::Problem(Problem {
            offset,
            text,
            lost: Some(LostKeys::ALL),
        }))
    }
}

struct Walk<'a> {
    file: TableFile,
    found: Salvaged,
    counts: ReadCounts,
    scan: BlockScan,
    /// The separator of the data block walked last, or its last key, and the end of the block.
    last: Option<KeyPlace>,
    end: u64,
    visit: Visit<'a>,
}

/// The block found after data blocks found by scanning.
enum Behind {
    /// A block of another kind, and whether there is damage before it.
    Block(Handle, BlockKind, bool),
    /// Data blocks beyond the keys that were asked for.
    Keys,
    /// No intact block.
    Nothing,
}

impl<'a> Walk<'a> {
    fn new(
        file: Box<dyn File>,
        path: &Path,
        number: u64,
        found: Salvaged,
        visit: Visit<'a>,
    ) -> Result<Walk<'a>> {
        Ok(Walk {
            file: TableFile::new(file, path, number, Arc::new(SstCache::new(0)))?,
            found,
            counts: ReadCounts::default(),
            scan: BlockScan::new(),
            last: None,
            end: 0,
            visit,
        })
    }

    fn run(&mut self, footer: Footer) -> Result<()> {
        self.properties(footer.properties)?;
        let behind = [footer.range_deletes, footer.filter, Some(footer.index)];
        let data_end = behind.into_iter().flatten().map(|h| h.offset).min();
        let data_end = data_end.unwrap_or_default();
        match self.entries(footer.index, BlockKind::Index)? {
            Some(upper) => {
                let two_levels = footer.features.has(Features::TWO_LEVELS);
                for (separator, handle) in self.handles(&upper)? {
                    match two_levels {
                        false => self.data(handle, separator)?,
                        true => self.lower(handle, separator, data_end)?,
                    }
                }
            }
            None => self.scan_data(data_end, None).map(drop)?,
        }
        if let Some(handle) = footer.range_deletes {
            self.range_deletes(handle)?;
        }
        match footer.filter {
            Some(handle) => self.filter(handle),
            None => Ok(()),
        }
    }

    /// Walks the data blocks of a lower index block, carving them if the index block is damaged.
    fn lower(&mut self, handle: Handle, separator: KeyPlace, data_end: u64) -> Result<()> {
        match self.entries(handle, BlockKind::Index)? {
            Some(lower) => {
                for (separator, handle) in self.handles(&lower)? {
                    self.data(handle, separator)?;
                }
            }
            None => self.scan_data(data_end, Some(&separator)).map(drop)?,
        }
        self.last = Some(separator);
        Ok(())
    }

    /// Returns whether the file was read and does not begin with an intact block. Later blocks are
    /// not tried: in a large file, some bytes match a block by chance.
    fn begins_without_block(&mut self) -> bool {
        let first = block_at(&self.file, 0, self.file.file_bytes(), &mut self.counts);
        matches!(first, Ok(None))
    }

    /// Carves all intact blocks of a file without footer.
    fn scan_all(&mut self) -> Result<()> {
        let file_bytes = self.file.file_bytes();
        let mut behind = self.scan_data(file_bytes, None)?;
        // Range deletes come next. A damaged stretch there may have contained some, for any key.
        let mut may_lack_ranges = true;
        // BOUND: every iteration continues after a block.
        while let Behind::Block(handle, kind, gap) = behind {
            if gap && may_lack_ranges {
                let text = "range deletes before this block may be lost".to_string();
                self.problem(handle.offset, text, Some(LostKeys::ALL))?;
            }
            may_lack_ranges = false;
            match kind {
                BlockKind::RangeDeletes => self.range_deletes(handle)?,
                BlockKind::Filter => self.filter(handle)?,
                BlockKind::Index => self.entries(handle, kind).map(drop)?,
                // The last block.
                BlockKind::Properties => return self.properties(handle),
                BlockKind::Data => {
                    let text = "a data block follows blocks of other kinds".to_string();
                    self.problem(handle.offset, text, Some(LostKeys::ALL))?;
                }
            }
            let at = handle.end();
            let file = &self.file;
            let next = self.scan.next(file, at, file_bytes, &mut self.counts);
            behind = match self.readable(at, next)? {
                Some((handle, kind)) => Behind::Block(handle, kind, handle.offset > at),
                None => Behind::Nothing,
            };
        }
        if may_lack_ranges {
            let text = "range deletes from here on may be lost".to_string();
            self.problem(self.end, text, Some(LostKeys::ALL))?;
        }
        Ok(())
    }

    /// Carves the data blocks from the end of the last one up to `data_end`, or to the first key
    /// after `up_to`.
    fn scan_data(&mut self, data_end: u64, up_to: Option<&KeyPlace>) -> Result<Behind> {
        // BOUND: every iteration continues after a block.
        loop {
            let at = self.end;
            let file = &self.file;
            let next = self.scan.next(file, at, data_end, &mut self.counts);
            let next = self.readable(at, next)?;
            let gap = next.map_or(at < data_end, |(handle, _)| handle.offset > at);
            let Some((handle, BlockKind::Data)) = next else {
                if gap {
                    self.gap(at, next, up_to.cloned())?;
                }
                return Ok(match next {
                    Some((handle, kind)) => Behind::Block(handle, kind, gap),
                    None => Behind::Nothing,
                });
            };
            let lost = LostKeys {
                after: self.last.clone(),
                up_to: up_to.cloned(),
            };
            let block = self.data_block(handle, &lost)?;
            let keys = block.as_ref().and_then(|(block, _)| keys_of(block));
            let first = keys.as_ref().map(|(first, _)| first);
            let passed = first.zip(up_to).is_some_and(|(first, up_to)| first > up_to);
            if gap {
                let lost_up_to = if passed { up_to } else { first };
                self.gap(at, next, lost_up_to.cloned())?;
            }
            if passed {
                return Ok(Behind::Keys);
            }
            if let Some((block, bytes)) = block {
                self.data_entries(handle, &block, bytes, Some(lost))?;
            }
            if let Some((_, last)) = keys {
                self.last = Some(last);
            }
            self.end = handle.end();
        }
    }

    /// Returns the block found. Reports a problem and returns `None` if the file cannot be read.
    fn readable<T>(&mut self, at: u64, found: Result<Option<T>>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(found),
            Err(e) => {
                self.problem(at, e.to_string(), None)?;
                Ok(None)
            }
        }
    }

    /// Reports that there is no intact block from `at` up to the next block.
    fn gap(
        &mut self,
        at: u64,
        next: Option<(Handle, BlockKind)>,
        up_to: Option<KeyPlace>,
    ) -> Result<()> {
        let text = match next {
            Some((next, _)) => format!("there is no intact block before offset {}", next.offset),
            None => "there is no intact block from here on".to_string(),
        };
        let lost = LostKeys {
            after: self.last.clone(),
            up_to,
        };
        self.problem(at, text, Some(lost))
    }

    fn problem(&mut self, offset: u64, text: String, lost: Option<LostKeys>) -> Result<()> {
        self.found.problems += 1;
        (self.visit)(Piece::Problem(Problem { offset, text, lost }))
    }

    fn block(
        &mut self,
        kind: BlockKind,
        handle: Handle,
        content_bytes: usize,
        entries: u64,
    ) -> Result<()> {
        self.found.blocks += 1;
        (self.visit)(Piece::Block {
            kind,
            offset: handle.offset,
            stored_bytes: handle.stored_bytes() as u64,
            content_bytes: content_bytes as u64,
            entries,
        })
    }

    /// Reads the content of a block. Reports a problem and returns `None` if the block is damaged.
    fn content(
        &mut self,
        handle: Handle,
        kind: BlockKind,
        lost: Option<LostKeys>,
    ) -> Result<Option<Vec<u8>>> {
        match self.file.read_content(handle, kind, &mut self.counts) {
            Ok(content) => Ok(Some(content)),
            Err(e) => {
                self.problem(handle.offset, e.to_string(), lost)?;
                Ok(None)
            }
        }
    }

    fn decoded<T>(
        &mut self,
        handle: Handle,
        result: Result<T, DecodeError>,
        lost: Option<LostKeys>,
    ) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(e) => {
                let text = self.file.damaged(e).to_string();
                self.problem(handle.offset, text, lost)?;
                Ok(None)
            }
        }
    }

    fn properties(&mut self, handle: Handle) -> Result<()> {
        let Some(content) = self.content(handle, BlockKind::Properties, None)? else {
            return Ok(());
        };
        let properties = Properties::decode(&content, handle.offset);
        self.found.properties = self.decoded(handle, properties, None)?;
        self.block(BlockKind::Properties, handle, content.len(), 0)
    }

    /// Reads an index block.
    fn entries(&mut self, handle: Handle, kind: BlockKind) -> Result<Option<Arc<Block>>> {
        let Some(content) = self.content(handle, kind, None)? else {
            return Ok(None);
        };
        let bytes = content.len();
        let block = Block::new(content, handle.offset);
        let Some(block) = self.decoded(handle, block, None)? else {
            return Ok(None);
        };
        let mut count = 0;
        let checked = block.check(&mut |_, _, _| count += 1);
        if self.decoded(handle, checked, None)?.is_none() {
            return Ok(None);
        }
        self.block(kind, handle, bytes, count)?;
        Ok(Some(Arc::new(block)))
    }

    /// Returns the separators and handles of an index block.
    fn handles(&mut self, index: &Arc<Block>) -> Result<Vec<(KeyPlace, Handle)>> {
        let mut handles = Vec::new();
        let mut cursor = BlockCursor::default();
        cursor.enter(Arc::clone(index));
        while let Ok(true) = cursor.advance() {
            let (keyspace, key) = split_key(cursor.stored_key()).unwrap_or_default();
            let at = Handle {
                offset: index.offset(),
                size: 0,
            };
            let handle = Handle::decode(cursor.value(), index.offset());
            if let Some(handle) = self.decoded(at, handle, None)? {
                handles.push(((keyspace, key.to_vec()), handle));
            }
        }
        Ok(handles)
    }

    fn data(&mut self, handle: Handle, separator: KeyPlace) -> Result<()> {
        let separator = Some(separator);
        let lost = LostKeys {
            after: self.last.take(),
            up_to: separator.clone(),
        };
        if let Some((block, bytes)) = self.data_block(handle, &lost)? {
            self.data_entries(handle, &block, bytes, Some(lost))?;
        }
        (self.last, self.end) = (separator, handle.end());
        Ok(())
    }

    /// Reads a data block and the size of its content. Reports a problem and returns `None` if the
    /// block is damaged.
    fn data_block(
        &mut self,
        handle: Handle,
        lost: &LostKeys,
    ) -> Result<Option<(Arc<Block>, usize)>> {
        let lost = Some(lost.clone());
        let Some(content) = self.content(handle, BlockKind::Data, lost.clone())? else {
            return Ok(None);
        };
        let bytes = content.len();
        let block = Block::new(content, handle.offset);
        let block = self.decoded(handle, block, lost)?;
        Ok(block.map(|block| (Arc::new(block), bytes)))
    }

    fn data_entries(
        &mut self,
        handle: Handle,
        block: &Block,
        bytes: usize,
        lost: Option<LostKeys>,
    ) -> Result<()> {
        let (mut count, mut stopped) = (0, Ok(()));
        let visit = &mut self.visit;
        let checked = block.check(&mut |stored, head, value| {
            let Some((keyspace, key)) = split_key(stored).filter(|_| stopped.is_ok()) else {
                return;
            };
            count += 1;
            stopped = visit(Piece::Entry(&SalvagedEntry {
                keyspace,
                key,
                seq: head.tag.seq(),
                kind: head.tag.kind(),
                expiry: head.expiry,
                value,
            }));
        });
        stopped?;
        self.found.entries += count;
        self.decoded(handle, checked, lost)?;
        self.block(BlockKind::Data, handle, bytes, count)
    }

    fn range_deletes(&mut self, handle: Handle) -> Result<()> {
        // A lost range delete may have covered any key.
        let lost = Some(LostKeys::ALL);
        let content = self.content(handle, BlockKind::RangeDeletes, lost.clone())?;
        let Some(content) = content else {
            return Ok(());
        };
        let bytes = content.len();
        let ranges = Block::new(content, handle.offset)
            .and_then(|block| RangeDeletes::decode(Arc::new(block)));
        let Some(ranges) = self.decoded(handle, ranges, lost)? else {
            return Ok(());
        };
        for range in ranges.fragments() {
            (self.visit)(Piece::RangeDelete(range))?;
        }
        let count = ranges.fragments().len() as u64;
        self.block(BlockKind::RangeDeletes, handle, bytes, count)
    }

    fn filter(&mut self, handle: Handle) -> Result<()> {
        let Some(content) = self.content(handle, BlockKind::Filter, None)? else {
            return Ok(());
        };
        let bytes = content.len();
        let filter = FilterBlock::new(content, handle.offset);
        match self.decoded(handle, filter, None)? {
            Some(filter) => self.block(BlockKind::Filter, handle, bytes, filter.key_count()),
            None => Ok(()),
        }
    }
}

/// Returns the first and the last key of a block, if it is sound.
fn keys_of(block: &Arc<Block>) -> Option<(KeyPlace, KeyPlace)> {
    let mut cursor = BlockCursor::default();
    cursor.enter(Arc::clone(block));
    let key = |cursor: &BlockCursor| {
        split_key(cursor.stored_key()).map(|(keyspace, key)| (keyspace, key.to_vec()))
    };
    let first = match cursor.advance() {
        Ok(true) => key(&cursor)?,
        _ => return None,
    };
    // Makes the cursor unpositioned again, so that `retreat` moves to the last entry.
    cursor.enter(Arc::clone(block));
    match cursor.retreat() {
        Ok(true) => Some((first, key(&cursor)?)),
        _ => None,
    }
}
