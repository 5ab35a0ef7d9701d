//! The filter of a table in a file: its bytes are verified once, then queried in memory.

use super::layout::{BLOCK_BYTES, FilterHeader};
use super::{block_of, probe, spread};
use crate::parts::codec::{self, DecodeError};

/// A filter in ordinary memory.
#[derive(Debug)]
pub(crate) struct FilterBlock {
    bytes: Vec<u8>,
    header: FilterHeader,
}

impl FilterBlock {
    /// Accepts only the complete bytes of one filter. `base` is the offset that errors report.
    pub(crate) fn new(bytes: Vec<u8>, base: u64) -> Result<FilterBlock, DecodeError> {
        let header = FilterHeader::decode(&bytes, base, bytes.len() as u64)?;
        let blocks = &bytes[BLOCK_BYTES..];
        if blocks.len() / BLOCK_BYTES != header.block_count as usize {
            let found = format!("{} bytes", blocks.len());
            let expected = format!("{} blocks", header.block_count);
            return Err(DecodeError::new("filter", base, expected, found));
        }
        let computed = codec::checksum(blocks);
        if computed != header.block_crc {
            let expected = format!("blocks with checksum {}", codec::hex(header.block_crc));
            return Err(DecodeError::new(
                "filter",
                base,
                expected,
                codec::hex(computed),
            ));
        }
        Ok(FilterBlock { bytes, header })
    }

    /// Returns whether a key with this hash may have been inserted; `false` is certain.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        let at = (block_of(hash, self.header.block_count) as usize + 1) * BLOCK_BYTES;
        let block = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        let Some(block): Option<&[u8; BLOCK_BYTES]> = block else {
            return true;
        };
        let bits = spread(hash);
        // BOUND: at most PROBES_MAX, checked when the header was read.
        (0..self.header.probes).all(|i| {
            let (word, bit) = probe(bits, i);
            let at = word as usize * 8 + bit as usize / 8;
            block[at % BLOCK_BYTES] >> (bit % 8) & 1 == 1
        })
    }

    /// Returns the number of hashes that were inserted.
    pub(crate) fn key_count(&self) -> u64 {
        self.header.key_count
    }

    /// Returns the bytes of memory that the filter takes.
    pub(crate) fn weight(&self) -> usize {
        self.bytes.capacity() + size_of::<FilterBlock>()
    }
}
