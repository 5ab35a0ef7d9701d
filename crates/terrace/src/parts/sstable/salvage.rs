//! This file reads what is sound of a table that may be damaged, for those who show or rescue it.
//!
//! The footer leads to the index, the index to all other blocks; each is judged by itself, and what
//! is not sound is reported with its place while the walk goes on behind it. Where the footer or the
//! index is gone nothing says where blocks begin, and what they hold counts as lost.

use std::path::Path;
use std::sync::Arc;

use terrace_media::{FileSystem, OpenMode};

use super::SstCache;
use super::block::Block;
use super::fetch::{ReadCounts, TableFile};
use super::layout::{BlockKind, FOOTER_BYTES, Footer, FooterError, Handle, split_key};
use super::properties::Properties;
use super::ranges::{RangeDelete, RangeDeletes};
use super::walk::BlockCursor;
use crate::error::{Error, Result};
use crate::parts::codec::DecodeError;
use crate::parts::filter::FilterBlock;
use crate::types::SeqNo;

/// Keyspace and key.
pub(crate) type KeyPlace = (u32, Vec<u8>);

/// One piece of a table, in the order in which the walk comes to it: blocks, each behind what it
/// holds.
pub(crate) enum Piece<'a> {
    Entry(&'a SalvagedEntry<'a>),
    RangeDelete(&'a RangeDelete),
    /// A block that is whole.
    Block {
        kind: BlockKind,
        offset: u64,
        stored_bytes: u64,
        content_bytes: u64,
        entries: u64,
    },
    Problem(Problem),
}

/// An entry of a data block whose checksum is right.
pub(crate) struct SalvagedEntry<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) seq: SeqNo,
    pub(crate) kind: u8,
    /// 0 for none.
    pub(crate) expiry: u64,
    pub(crate) value: &'a [u8],
}

/// What is wrong, where, and which entries cannot be read for it.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) offset: u64,
    pub(crate) text: String,
    pub(crate) lost: Option<LostKeys>,
}

/// Entries of these keys are lost, if there were any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostKeys {
    /// Behind this key, or its newer versions; `None`: from the first.
    pub(crate) after: Option<KeyPlace>,
    /// Up to this key; `None`: to the last.
    pub(crate) up_to: Option<KeyPlace>,
}

/// What the walk has learned of the table as a whole.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    pub(crate) file_bytes: u64,
    /// As the footer has it; `None` when that is damaged.
    pub(crate) number: Option<u64>,
    pub(crate) properties: Option<Properties>,
    pub(crate) blocks: u64,
    pub(crate) entries: u64,
    pub(crate) problems: u64,
}

/// Takes the pieces.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Piece<'_>) -> Result<()>;

/// Walks the table at `path`; `named` is the number in the name of the file, if it has one.
///
/// # Errors
/// The file cannot be opened, a later version wrote it, or `visit` failed. Damage is no error.
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
        .map_err(|e| Error::io("learn the length of", path, e))?;
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
    // The footer's own number first: a renamed table is whole, under a wrong name.
    let stated = bytes.get(8..).and_then(|rest| rest.first_chunk::<8>());
    let number = stated.map_or(0, |number| u64::from_le_bytes(*number));
    let footer = match Footer::decode(&bytes, number, file_bytes) {
        Ok(footer) => footer,
        Err(FooterError::Newer { found, known }) => {
            return Err(Error::new(
                crate::ErrorKind::Unsupported,
                format!(
                    "{} has {found}, this version knows {known}: use what wrote it",
                    path.display()
                ),
            ));
        }
        Err(FooterError::Damaged(e)) => {
            found.lose_all(e.offset, e.to_string(), visit)?;
            return Ok(found);
        }
    };
    found.number = Some(number);
    let cache = Arc::new(SstCache::new(0));
    let mut walk = Walk {
        file: TableFile::new(file, path, number, cache)?,
        footer,
        found,
        counts: ReadCounts::default(),
        last: None,
        visit,
    };
    if let Some(named) = named.filter(|named| *named != number) {
        let text = format!("the file's name says table {named}, its footer table {number}");
        walk.problem(base, text, None)?;
    }
    walk.run()?;
    Ok(walk.found)
}

impl Salvaged {
    fn lose_all(&mut self, offset: u64, text: String, visit: Visit<'_>) -> Result<()> {
        self.problems += 1;
        let lost = LostKeys {
            after: None,
            up_to: None,
        };
        visit(Piece::Problem(Problem {
            offset,
            text,
            lost: Some(lost),
        }))
    }
}

struct Walk<'a> {
    file: TableFile,
    footer: Footer,
    found: Salvaged,
    counts: ReadCounts,
    /// The separator behind the data block walked last.
    last: Option<KeyPlace>,
    visit: Visit<'a>,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<()> {
        let footer = self.footer;
        self.properties(footer.properties)?;
        if let Some(upper) = self.entries(footer.index, BlockKind::Index, None)? {
            let two_levels = footer.features.has(super::layout::Features::TWO_LEVELS);
            for (separator, handle) in self.handles(&upper)? {
                let lower = match two_levels {
                    false => {
                        self.data(handle, separator)?;
                        continue;
                    }
                    true => self.entries(handle, BlockKind::Index, Some(&separator))?,
                };
                for (separator, handle) in match &lower {
                    Some(lower) => self.handles(lower)?,
                    None => Vec::new(),
                } {
                    self.data(handle, separator)?;
                }
                self.last = Some(separator);
            }
        }
        self.range_deletes()?;
        self.filter()
    }

    fn problem(&mut self, offset: u64, text: String, lost: Option<LostKeys>) -> Result<()> {
        self.found.problems += 1;
        (self.visit)(Piece::Problem(Problem { offset, text, lost }))
    }

    /// The keys that a block up to this separator has.
    fn keys_up_to(&self, separator: Option<&KeyPlace>) -> LostKeys {
        LostKeys {
            after: self.last.clone(),
            up_to: separator.cloned(),
        }
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

    /// The content of a block; `None`, and a problem, when it is not whole.
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

    /// An index block.
    fn entries(
        &mut self,
        handle: Handle,
        kind: BlockKind,
        separator: Option<&KeyPlace>,
    ) -> Result<Option<Arc<Block>>> {
        let lost = Some(self.keys_up_to(separator));
        let Some(content) = self.content(handle, kind, lost.clone())? else {
            return Ok(None);
        };
        let bytes = content.len();
        let block = Block::new(content, handle.offset);
        let Some(block) = self.decoded(handle, block, lost.clone())? else {
            return Ok(None);
        };
        let mut count = 0;
        let checked = block.check(&mut |_, _, _| count += 1);
        self.decoded(handle, checked, lost)?;
        self.block(kind, handle, bytes, count)?;
        Ok(Some(Arc::new(block)))
    }

    /// The separators and handles of an index block.
    fn handles(&mut self, index: &Arc<Block>) -> Result<Vec<(KeyPlace, Handle)>> {
        let mut handles = Vec::new();
        let mut cursor = BlockCursor::default();
        cursor.enter(Arc::clone(index));
        // A block that is malformed has been reported already: what comes before is used.
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
        let lost = Some(self.keys_up_to(Some(&separator)));
        if let Some(content) = self.content(handle, BlockKind::Data, lost.clone())? {
            let bytes = content.len();
            let block = Block::new(content, handle.offset);
            if let Some(block) = self.decoded(handle, block, lost.clone())? {
                self.data_entries(handle, &block, bytes, lost)?;
            }
        }
        self.last = Some(separator);
        Ok(())
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

    fn range_deletes(&mut self) -> Result<()> {
        let Some(handle) = self.footer.range_deletes else {
            return Ok(());
        };
        // Any key may have been deleted by what is lost here.
        let lost = Some(LostKeys {
            after: None,
            up_to: None,
        });
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

    fn filter(&mut self) -> Result<()> {
        let Some(handle) = self.footer.filter else {
            return Ok(());
        };
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
