//! The search for blocks by their checksums, for files whose index is lost.
//!
//! The checksum of a block covers its table number and its offset, so bytes that are not the end of
//! a block match with a probability of 2^-32. If the start of a block is known, one pass over the
//! following bytes finds its end. After damage the start is unknown too, so every offset is tried
//! at which a block of entries can begin.

use super::fetch::{ReadCounts, TableFile};
use super::layout::{self, BlockKind, Handle, TRAILER_BYTES};
use crate::error::Result;
use crate::parts::codec;
use crate::parts::compress::LZ4_RATIO_MAX;

/// The number of bytes read at once.
const WINDOW: usize = 256 << 10;
/// BOUND: the maximum size of a block found after damage. A longer block is found only if it
/// follows an intact one.
const REACH: usize = 256 << 10;
/// BOUND: the number of bytes checksummed per table in search of blocks after damage, which takes
/// less than a minute.
const SUMMED_MAX: u64 = 16 << 30;

/// A search for the blocks of one table.
pub(super) struct BlockScan {
    summed: u64,
}

impl BlockScan {
    pub(super) fn new() -> BlockScan {
        BlockScan { summed: 0 }
    }

    /// Returns the block that begins at `at`, or else the first block of entries that begins after
    /// it. Only blocks before `end` are considered.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(super) fn next(
        &mut self,
        file: &TableFile,
        at: u64,
        end: u64,
        counts: &mut ReadCounts,
    ) -> Result<Option<(Handle, BlockKind)>> {
        match block_at(file, at, end, counts)? {
            Some(found) => Ok(Some(found)),
            None => self.behind(file, at + 1, end, counts),
        }
    }

    /// Returns the first block of entries that begins at or after `at`.
    fn behind(
        &mut self,
        file: &TableFile,
        mut at: u64,
        end: u64,
        counts: &mut ReadCounts,
    ) -> Result<Option<(Handle, BlockKind)>> {
        let mut bytes = Vec::new();
        // BOUND: every iteration advances by a window.
        while at < end {
            let len = (end - at).min((WINDOW + REACH) as u64) as usize;
            bytes.resize(len, 0);
            file.read(at, &mut bytes, counts)?;
            for start in 0..len.min(WINDOW) {
                let rest = &bytes[start..len.min(start + REACH)];
                if !may_begin(rest) {
                    continue;
                }
                self.summed += rest.len() as u64;
                if self.summed > SUMMED_MAX {
                    return Ok(None);
                }
                let offset = at + start as u64;
                let mut sum = Sum::default();
                if let Some((size, kind)) = sum.find_end(rest, file.number(), offset) {
                    return Ok(Some((Handle { offset, size }, kind)));
                }
            }
            at += WINDOW as u64;
        }
        Ok(None)
    }
}

/// Returns the block that begins at `at` and ends before `end`.
pub(super) fn block_at(
    file: &TableFile,
    at: u64,
    end: u64,
    counts: &mut ReadCounts,
) -> Result<Option<(Handle, BlockKind)>> {
    let mut sum = Sum::default();
    let mut bytes = Vec::new();
    let mut from = at;
    // BOUND: every iteration sums bytes of the file.
    while end.saturating_sub(from) >= TRAILER_BYTES as u64 {
        bytes.resize((end - from).min(WINDOW as u64) as usize, 0);
        file.read(from, &mut bytes, counts)?;
        if let Some((size, kind)) = sum.find_end(&bytes, file.number(), at) {
            return Ok(Some((Handle { offset: at, size }, kind)));
        }
        from = at + sum.bytes;
        if sum.bytes > layout::CONTENT_BYTES_MAX as u64 {
            break;
        }
    }
    Ok(None)
}

/// The checksum of the part of a payload processed so far.
#[derive(Default)]
struct Sum {
    crc: u32,
    bytes: u64,
}

impl Sum {
    /// Sums bytes up to the end of the block at `offset` and returns the size of its payload and
    /// its kind. If the block does not end here, sums all bytes except the last ones, which may
    /// begin a trailer and must be passed again.
    fn find_end(&mut self, bytes: &[u8], number: u64, offset: u64) -> Option<(u32, BlockKind)> {
        let ends = bytes.len().checked_sub(TRAILER_BYTES - 1)?;
        let mut summed = 0;
        for at in 0..ends {
            // Few bytes can begin a trailer, so the bytes between them are summed in bulk.
            if layout::form_of(bytes[at]).is_none() {
                continue;
            }
            self.add(&bytes[summed..at]);
            summed = at;
            let trailer = bytes[at..].first_chunk::<TRAILER_BYTES>()?;
            if let Some(kind) = layout::ends_block(self.crc, trailer, number, offset) {
                return Some((u32::try_from(self.bytes).ok()?, kind));
            }
        }
        self.add(&bytes[summed..ends]);
        None
    }

    fn add(&mut self, bytes: &[u8]) {
        self.crc = codec::checksum_append(self.crc, bytes);
        self.bytes += bytes.len() as u64;
    }
}

/// Returns whether a payload of entries can begin with these bytes and end within `REACH`.
fn may_begin(bytes: &[u8]) -> bool {
    let Some(head) = bytes.first_chunk::<4>() else {
        return false;
    };
    // Uncompressed: the first entry shares nothing, and its key begins with a keyspace.
    let plain = head[0] == 0 && usize::from(head[1]) >= layout::KEYSPACE_BYTES;
    // Compressed: the content size, which must be possible for a payload within reach.
    let content = u32::from_le_bytes(*head) as usize;
    let compressed = content > layout::KEYSPACE_BYTES && content <= REACH * LZ4_RATIO_MAX;
    plain || compressed
}
