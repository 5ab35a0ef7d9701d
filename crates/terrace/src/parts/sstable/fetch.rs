//! Reads of blocks from the file: read, verify, decompress, cache.
//!
//! Errors get the name of the file here. The decoders of blocks know only offsets.

use std::borrow::Cow;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{Advice, File};

use super::SstCache;
use super::block::Block;
use super::layout::{self, BlockKind, CONTENT_BYTES_MAX, Compression, FOOTER_BYTES, Handle};
use crate::error::{Error, ErrorKind, Result};
use crate::parts::cache::{BlockKey, Weigh};
use crate::parts::codec::DecodeError;
use crate::parts::compress::decompress;
use crate::parts::filter::FilterBlock;

/// A block in the cache.
#[derive(Clone)]
pub(crate) enum CachedBlock {
    /// A block of entries: data or index.
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

/// The maximum size of a block whose memory is reused.
const SPARE_BYTES_MAX: usize = 64 << 10;

thread_local! {
    /// The memory of a block evicted from the cache, for the next block that this thread reads.
    /// Seeks that read 4 KiB values from files are a tenth faster than with memory from the
    /// allocator.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Returns memory for the block at `handle`: the spare memory if it fits, or an empty vector.
pub(super) fn spare_memory(handle: Handle) -> Vec<u8> {
    let bytes = handle.stored_bytes();
    let spare = SPARE.take();
    // A cached block has memory of about its own size.
    match (bytes..=bytes + bytes / 16).contains(&spare.capacity()) {
        true => spare,
        false => Vec::new(),
    }
}

/// The counts of reads, which the caller adds to its counters.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadCounts {
    /// The number of reads that the filter answered.
    pub(crate) filter_saved: u64,
    pub(crate) cache_hits: u64,
    /// The number of blocks read from the file.
    pub(crate) blocks_read: u64,
    /// The number of read system calls, and the bytes that they read.
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
            .map_err(|e| Error::io("get the length of", path, e))?;
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

    /// Returns the error for malformed bytes.
    #[cold]
    pub(crate) fn damaged(&self, e: DecodeError) -> Error {
        self.in_file(Error::from(e))
    }

    /// Returns the same error with the name of the file.
    #[cold]
    fn in_file(&self, e: Error) -> Error {
        Error::new(e.kind(), format!("{}: {e}", self.path.display())).because(e)
    }

    /// Returns the error for a table whose writer or version is not supported.
    #[cold]
    pub(crate) fn unsupported(&self, found: &str, known: &str) -> Error {
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has {found}, but this version knows {known}: open it with the version that \
                 wrote it",
                self.path.display()
            ),
        )
    }

    /// Reads exactly `buf.len()` bytes.
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

    /// Advises the system of future reads.
    pub(crate) fn advise(&self, off: u64, len: u64, advice: Advice) {
        // Ignored advice only costs time.
        let _ = self.file.advise(off, len, advice);
    }

    /// Accepts only handles of blocks before the footer. Called before anything is allocated.
    pub(crate) fn check_handle(&self, handle: Handle) -> Result<()> {
        if handle.end() > self.file_bytes.saturating_sub(FOOTER_BYTES as u64) {
            let expected = format!("a block inside {} bytes", self.file_bytes);
            let found = format!("{} bytes", handle.stored_bytes());
            let e = DecodeError::new("SSTable block", handle.offset, expected, found);
            return Err(self.damaged(e));
        }
        Ok(())
    }

    /// Returns the content of the block at `handle`, whose bytes in the file are `stored`. Borrowed
    /// bytes are copied to `memory`.
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
            let content = decompress(
                payload,
                compression,
                handle.offset,
                CONTENT_BYTES_MAX,
                memory,
            );
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

    /// Reads the stored bytes of the block at `handle`, which must have been checked, into their
    /// own memory.
    pub(super) fn read_stored(&self, handle: Handle, counts: &mut ReadCounts) -> Result<Vec<u8>> {
        let mut stored = spare_memory(handle);
        stored.resize(handle.stored_bytes(), 0);
        self.read(handle.offset, &mut stored, counts)?;
        Ok(stored)
    }

    /// Reads the content of the block at `handle` from the file.
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

    /// Parses the content of the block of entries at `handle`.
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

    /// Returns the block of entries at `handle` if it is cached.
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

    /// Returns the block of entries at `handle` from the cache or the file. Caches it if `fill`.
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
        // The stored bytes, and the content that they become.
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

    /// Returns the filter at `handle` from the cache or the file. Caches it if `fill`.
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
