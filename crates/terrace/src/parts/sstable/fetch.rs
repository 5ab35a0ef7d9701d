//! This file is how blocks come from the file: read, checked, decompressed, cached.
//!
//! Here errors learn the name of the file; what decodes blocks knows offsets only.

use std::borrow::Cow;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{Advice, File};

use super::SstCache;
use super::block::Block;
use super::compress::decompress;
use super::layout::{self, BlockKind, Compression, FOOTER_BYTES, Handle};
use crate::error::{Error, ErrorKind, Result};
use crate::parts::cache::{BlockKey, Weigh};
use crate::parts::codec::DecodeError;
use crate::parts::filter::FilterBlock;

/// A block in the cache.
#[derive(Clone)]
pub(crate) enum CachedBlock {
    /// Entries: data or index.
    Entries(Arc<Block>),
    Filter(Arc<FilterBlock>),
}

impl Weigh for CachedBlock {
    fn weight(&self) -> usize {
        match self {
            CachedBlock::Entries(block) => block.weight(),
            CachedBlock::Filter(filter) => filter.weight(),
        }
    }
}

/// Memory of a longer block is not used again.
const SPARE_BYTES_MAX: usize = 64 << 10;

thread_local! {
    /// The memory of a block that the cache let go of, for the next one that this thread reads: seeks that read
    /// 4 KiB values from files are a tenth faster than with memory from the allocator.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Memory for the block at `handle`, if there is some.
pub(super) fn spare_memory(handle: Handle) -> Vec<u8> {
    let bytes = handle.stored_bytes();
    let spare = SPARE.take();
    // What is cached has memory of about its own size.
    match (bytes..=bytes + bytes / 16).contains(&spare.capacity()) {
        true => spare,
        false => Vec::new(),
    }
}

/// What reads did; the caller adds it to its counters.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadCounts {
    /// Reads that the filter answered.
    pub(crate) filter_saved: u64,
    pub(crate) cache_hits: u64,
    /// Blocks that came from the file.
    pub(crate) blocks_read: u64,
    /// Calls of the operating system, and bytes that they read.
    pub(crate) file_reads: u64,
    pub(crate) file_bytes: u64,
}

/// The file of a table.
pub(crate) struct TableFile {
    file: Box<dyn File>,
    path: PathBuf,
    number: u64,
    file_bytes: u64,
    cache: Arc<SstCache>,
}

impl TableFile {
    pub(crate) fn new(
        file: Box<dyn File>,
        path: &Path,
        number: u64,
        cache: Arc<SstCache>,
    ) -> Result<TableFile> {
        let file_bytes = file
            .len()
            .map_err(|e| Error::io("learn the length of", path, e))?;
        Ok(TableFile {
            file,
            path: path.to_owned(),
            number,
            file_bytes,
            cache,
        })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub(crate) fn cache(&self) -> &Arc<SstCache> {
        &self.cache
    }

    /// The error of bytes that were refused.
    #[cold]
    pub(crate) fn damaged(&self, e: DecodeError) -> Error {
        self.in_file(Error::from(e))
    }

    /// The same error, naming the file.
    #[cold]
    fn in_file(&self, e: Error) -> Error {
        Error::new(e.kind(), format!("{}: {e}", self.path.display())).because(e)
    }

    /// The error of a table that its writer or a later version made differently.
    #[cold]
    pub(crate) fn unsupported(&self, found: &str, known: &str) -> Error {
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has {found}, this version knows {known}: open it with what wrote it",
                self.path.display()
            ),
        )
    }

    /// Reads exactly these bytes.
    pub(crate) fn read(&self, off: u64, buf: &mut [u8], counts: &mut ReadCounts) -> Result<()> {
        counts.file_reads += 1;
        counts.file_bytes += buf.len() as u64;
        match self.file.read_exact_at(off, buf) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                let expected = format!("{} bytes", buf.len());
                let e = DecodeError::new("SSTable", off, expected, "the end of the file");
                Err(self.damaged(e))
            }
            Err(e) => {
                let what = format!("read {} bytes at offset {off} of", buf.len());
                Err(Error::io(&what, &self.path, e))
            }
        }
    }

    /// Tells the system what will be read.
    pub(crate) fn advise(&self, off: u64, len: u64, advice: Advice) {
        // Advice that is not taken costs time and nothing else.
        let _ = self.file.advise(off, len, advice);
    }

    /// Accepts only handles of blocks that lie before the footer, before anything is allocated.
    pub(crate) fn check_handle(&self, handle: Handle) -> Result<()> {
        if handle.end() > self.file_bytes.saturating_sub(FOOTER_BYTES as u64) {
            let expected = format!("a block inside {} bytes", self.file_bytes);
            let found = format!("{} bytes", handle.stored_bytes());
            let e = DecodeError::new("SSTable block", handle.offset, expected, found);
            return Err(self.damaged(e));
        }
        Ok(())
    }

    /// The content of the block at `handle`, whose bytes in the file are `stored`. Bytes that are not its
    /// own become so in `memory`.
    pub(crate) fn open_block(
        &self,
        handle: Handle,
        kind: BlockKind,
        stored: Cow<'_, [u8]>,
        mut memory: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let checked = layout::check_block(&stored, kind, self.number, handle.offset);
        let (payload, compression) = checked.map_err(|e| self.damaged(e))?;
        if compression != Compression::None {
            let content = decompress(payload, compression, handle.offset, memory);
            return content.map_err(|e| self.in_file(e));
        }
        let payload_bytes = payload.len();
        Ok(match stored {
            Cow::Owned(mut stored) => {
                stored.truncate(payload_bytes);
                stored
            }
            Cow::Borrowed(stored) => {
                memory.clear();
                memory.extend_from_slice(&stored[..payload_bytes]);
                memory
            }
        })
    }

    /// The stored bytes of the block at `handle`, which was checked, in memory of their own.
    pub(super) fn read_stored(&self, handle: Handle, counts: &mut ReadCounts) -> Result<Vec<u8>> {
        let mut stored = spare_memory(handle);
        stored.resize(handle.stored_bytes(), 0);
        self.read(handle.offset, &mut stored, counts)?;
        Ok(stored)
    }

    /// The content of the block at `handle`, from the file.
    pub(crate) fn read_content(
        &self,
        handle: Handle,
        kind: BlockKind,
        counts: &mut ReadCounts,
    ) -> Result<Vec<u8>> {
        self.check_handle(handle)?;
        let stored = self.read_stored(handle, counts)?;
        counts.blocks_read += 1;
        self.open_block(handle, kind, Cow::Owned(stored), Vec::new())
    }

    /// The block of entries at `handle`, whose content is known.
    pub(crate) fn parse(&self, handle: Handle, content: Vec<u8>) -> Result<Arc<Block>> {
        let block = Block::new(content, handle.offset).map_err(|e| self.damaged(e))?;
        Ok(Arc::new(block))
    }

    #[inline]
    fn key(&self, handle: Handle) -> BlockKey {
        BlockKey {
            number: self.number,
            offset: handle.offset,
        }
    }

    /// The block of entries at `handle`, if it is cached.
    #[inline]
    pub(crate) fn cached(&self, handle: Handle, counts: &mut ReadCounts) -> Option<Arc<Block>> {
        match self.cache.get(&self.key(handle)) {
            Some(CachedBlock::Entries(block)) => {
                counts.cache_hits += 1;
                Some(block)
            }
            _ => None,
        }
    }

    /// Caches a block of entries.
    pub(crate) fn keep(&self, handle: Handle, block: &Arc<Block>) {
        let block = CachedBlock::Entries(Arc::clone(block));
        let gone = self.cache.insert(self.key(handle), block);
        if let Some(CachedBlock::Entries(gone)) = gone
            && !self.cache.memory().is_limited()
            && let Some(gone) = Arc::into_inner(gone)
        {
            let memory = gone.into_memory();
            if memory.capacity() <= SPARE_BYTES_MAX {
                SPARE.set(memory);
            }
        }
    }

    /// The block of entries at `handle`, from the cache or the file; cached if `fill` says so.
    #[inline]
    pub(crate) fn block(
        &self,
        handle: Handle,
        kind: BlockKind,
        fill: bool,
        counts: &mut ReadCounts,
    ) -> Result<Arc<Block>> {
        if let Some(block) = self.cached(handle, counts) {
            return Ok(block);
        }
        self.check_handle(handle)?;
        // What comes from the file, and what it becomes.
        let (memory, bytes) = (self.cache.memory(), 2 * handle.stored_bytes() as u64);
        let _turn = match kind {
            BlockKind::Index => memory.read_index(bytes),
            _ => memory.read(bytes),
        };
        let block = self.parse(handle, self.read_content(handle, kind, counts)?)?;
        if fill {
            self.keep(handle, &block);
        }
        Ok(block)
    }

    /// The filter at `handle`, from the cache or the file; cached if `fill` says so.
    pub(crate) fn filter(
        &self,
        handle: Handle,
        fill: bool,
        counts: &mut ReadCounts,
    ) -> Result<Arc<FilterBlock>> {
        let key = self.key(handle);
        if let Some(CachedBlock::Filter(filter)) = self.cache.get(&key) {
            counts.cache_hits += 1;
            return Ok(filter);
        }
        self.check_handle(handle)?;
        let _turn = self.cache.memory().read_index(handle.stored_bytes() as u64);
        let content = self.read_content(handle, BlockKind::Filter, counts)?;
        let filter = FilterBlock::new(content, handle.offset).map_err(|e| self.damaged(e))?;
        let filter = Arc::new(filter);
        if fill {
            self.cache
                .insert(key, CachedBlock::Filter(Arc::clone(&filter)));
        }
        Ok(filter)
    }
}
