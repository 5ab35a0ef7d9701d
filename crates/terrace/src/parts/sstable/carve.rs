//! This file finds blocks where nothing says any more where they are: by their checksums.
//!
//! The checksum of a block covers the number of its table and its offset, so bytes that are not the end of
//! the block look like it once in 2^32 times. From where a block begins, its end is found in one pass
//! over what follows. Behind damage nobody knows where the next one begins either, so every place is tried
//! at which a block of entries can.

use super::fetch::{ReadCounts, TableFile};
use super::layout::{self, BlockKind, Handle, TRAILER_BYTES};
use crate::error::Result;
use crate::parts::codec;

/// Bytes read at once.
const WINDOW: usize = 256 << 10;
/// BOUND: the longest block that is found behind damage. A longer one is, if it follows one that is whole.
const REACH: usize = 256 << 10;
/// BOUND: bytes that are summed for one table in search of what follows damage: less than a minute.
const SUMMED_MAX: u64 = 16 << 30;

/// A search for the blocks of one table.
pub(super) struct Carver {
    summed: u64,
}

impl Carver {
    pub(super) fn new() -> Carver {
        Carver { summed: 0 }
    }

    /// The block that begins at `at`, or else the first of entries that begins behind it, of those that lie before
    /// `end`.
    ///
    /// # Errors
    /// The file cannot be read.
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

    /// The first block of entries that begins at `at` or later.
    fn behind(
        &mut self,
        file: &TableFile,
        mut at: u64,
        end: u64,
        counts: &mut ReadCounts,
    ) -> Result<Option<(Handle, BlockKind)>> {
        let mut bytes = Vec::new();
        // BOUND: each turn goes on by a window.
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

/// The block that begins at `at` and ends before `end`.
pub(super) fn block_at(
    file: &TableFile,
    at: u64,
    end: u64,
    counts: &mut ReadCounts,
) -> Result<Option<(Handle, BlockKind)>> {
    let mut sum = Sum::default();
    let mut bytes = Vec::new();
    let mut from = at;
    // BOUND: each turn sums bytes of the file.
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

/// The sum of a payload, as far as it goes.
#[derive(Default)]
struct Sum {
    crc: u32,
    bytes: u64,
}

impl Sum {
    /// Adds bytes until the block at `offset` ends behind them; the size of its payload. All that could be its
    /// last ones are added otherwise, and what is left belongs to the next bytes.
    fn find_end(&mut self, bytes: &[u8], number: u64, offset: u64) -> Option<(u32, BlockKind)> {
        let ends = bytes.len().checked_sub(TRAILER_BYTES - 1)?;
        let mut summed = 0;
        for at in 0..ends {
            // Few bytes look like the first of a trailer, so the others are summed many at a time.
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

/// Whether a payload of entries can begin so, and lie within reach.
fn may_begin(bytes: &[u8]) -> bool {
    let Some(head) = bytes.first_chunk::<4>() else {
        return false;
    };
    // Plain: the first entry shares nothing, and its key has a keyspace in front.
    let plain = head[0] == 0 && usize::from(head[1]) >= layout::KEYSPACE_BYTES;
    // Compressed: the size of the content, of which so much fits within reach.
    let content = u32::from_le_bytes(*head) as usize;
    let compressed = content > layout::KEYSPACE_BYTES && content <= REACH * layout::LZ4_RATIO_MAX;
    plain || compressed
}
