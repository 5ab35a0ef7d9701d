//! Filters: exclude most keys that a table does not contain, at the cost of one cache line.
//!
//! A filter is a blocked Bloom filter. It is built in DRAM while a table is copied or merged,
//! streamed into an extent and used there in place. Hashes come from the nodes: the filter of a
//! merged table is built from the hashes that the merge visits anyway, without reading the two old
//! filters.
//!
//! Invariants
//!   F1  A filter never changes once `finish` has returned.
//!   F2  A key that was inserted is always found, unless the medium lost a bit, which `verify`
//!       detects.
//!
//! A memtable has a filter that takes keys as long as it is written (growing.rs).
//!
//! A table in a file stores the same bytes in a filter block, which is held in memory while it is
//! used.
//!
//! layout.rs defines the bytes. A filter has one builder and any number of readers.

mod block;
#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod growing;
mod layout;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_media::{Extent, Purpose, Region, Span};

pub(crate) use block::FilterBlock;
pub(crate) use growing::GrowingFilter;

use crate::canary::failpoint;
use crate::parts::codec::{self, DecodeError};
use crate::parts::filter::layout::{
    BIT_FACTOR, BIT_SHIFT, BLOCK_BITS, BLOCK_BYTES, BLOCK_WORDS, FilterHeader, PROBES_MAX,
    WORD_SHIFT,
};

fn block_count(keys: u64, bits_per_key: u32) -> u32 {
    let bits = keys.saturating_mul(u64::from(bits_per_key));
    u32::try_from(bits.div_ceil(BLOCK_BITS))
        .unwrap_or(u32::MAX)
        .max(1)
}

/// Returns the block of a hash, by scaling its high half.
#[inline(always)]
fn block_of(hash: u64, block_count: u32) -> u64 {
    ((hash >> 32) * u64::from(block_count)) >> 32
}

/// Returns the bits of a hash in its block.
#[inline(always)]
fn spread(hash: u64) -> u64 {
    (hash & u64::from(u32::MAX)).wrapping_mul(BIT_FACTOR)
}

/// Returns the word of probe `i`, and the bit in it.
#[inline(always)]
fn probe(spread: u64, i: u32) -> (u64, u32) {
    let word = ((spread >> WORD_SHIFT) + u64::from(i)) % BLOCK_WORDS as u64;
    (word, (spread >> (BIT_SHIFT + 6 * i)) as u32 & 63)
}

/// A filter under construction in DRAM.
#[derive(Debug)]
pub(crate) struct FilterBuilder {
    /// Space for the header, then the blocks as they will be in the extent.
    bytes: Vec<u8>,
    block_count: u32,
    probes: u32,
    key_count: u64,
}

impl FilterBuilder {
    /// Creates an empty filter sized for `keys_max` keys. Further keys may be inserted, but make it
    /// less selective.
    pub(crate) fn new(keys_max: u64, bits_per_key: u32) -> FilterBuilder {
        let block_count = block_count(keys_max, bits_per_key);
        let bytes = (block_count as usize + 1) * BLOCK_BYTES;
        FilterBuilder {
            bytes: vec![0; bytes],
            block_count,
            // The best count for a Bloom filter is ln 2 times the bits per key.
            probes: (bits_per_key.saturating_mul(11) / 16).clamp(1, PROBES_MAX),
            key_count: 0,
        }
    }

    /// Adds a key by the hash in its node.
    #[inline]
    pub(crate) fn insert(&mut self, hash: u64) {
        failpoint!(FilterDenies if hash.is_multiple_of(8) => return);
        let block = (block_of(hash, self.block_count) as usize + 1) * BLOCK_BYTES;
        let bits = spread(hash);
        let block = &mut self.bytes[block..block + BLOCK_BYTES];
        for i in 0..self.probes {
            let (word, bit) = probe(bits, i);
            block[word as usize * 8 + bit as usize / 8] |= 1 << (bit % 8);
        }
        self.key_count += 1;
    }

    /// Returns the filter's bytes, for a table in a file.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.write_header();
        self.bytes
    }

    fn write_header(&mut self) -> FilterHeader {
        let header = FilterHeader {
            block_count: self.block_count,
            probes: self.probes,
            key_count: self.key_count,
            block_crc: codec::checksum(&self.bytes[BLOCK_BYTES..]),
        };
        self.bytes[..BLOCK_BYTES].copy_from_slice(&header.encode());
        header
    }

    /// Returns the number of bytes that `finish` writes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Writes the filter to the start of `extent`. The caller fences before publishing it.
    ///
    /// # Panics
    ///
    /// If the extent is smaller than `len_bytes`.
    pub(crate) fn finish(mut self, extent: &Arc<Extent>, purpose: Purpose) -> Filter {
        let header = self.write_header();
        let claim = extent.claim(0, self.bytes.len());
        assert!(
            claim.is_some(),
            "an extent of {} bytes for a filter",
            extent.len()
        );
        if let Some(mut claim) = claim {
            claim.write_streaming(0, &self.bytes, purpose);
        }
        Filter::new(Arc::clone(extent), header)
    }
}

/// A filter in its extent.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    /// The pool offset of the first block.
    blocks_at: u64,
    header: FilterHeader,
    /// The extent's region, kept here to save an indirection.
    region: Region,
    extent: Arc<Extent>,
}

impl Filter {
    fn new(extent: Arc<Extent>, header: FilterHeader) -> Filter {
        let region = extent.region().clone();
        Filter {
            blocks_at: extent.off() + BLOCK_BYTES as u64,
            header,
            region,
            extent,
        }
    }

    /// Opens the filter in `extent`, reading only its header.
    pub(crate) fn open(extent: Arc<Extent>) -> Result<Filter, DecodeError> {
        let (base, len) = (extent.off(), extent.len());
        let bytes = extent.region().bytes(base, BLOCK_BYTES).unwrap_or(&[]);
        let header = FilterHeader::decode(bytes, base, len)?;
        Ok(Filter::new(extent, header))
    }

    /// Returns whether a key with this hash may have been inserted; `false` is certain.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        let at = self.block_at(hash);
        let bits = spread(hash);
        // BOUND: at most PROBES_MAX, checked when the header was read.
        for i in 0..self.header.probes {
            let (word, bit) = probe(bits, i);
            // Unreadable words answer "maybe", and the table then reports the error.
            let Some(word) = self.region.word(at + 8 * word) else {
                return true;
            };
            if u64::from_le(word.load(Ordering::Relaxed)) >> bit & 1 == 0 {
                return false;
            }
        }
        true
    }

    #[inline(always)]
    fn block_at(&self, hash: u64) -> u64 {
        self.blocks_at + block_of(hash, self.header.block_count) * BLOCK_BYTES as u64
    }

    /// Reads the whole filter and verifies its checksums.
    pub(crate) fn verify(&self) -> Result<(), DecodeError> {
        let (base, len) = (self.extent.off(), self.extent.len());
        let head = self.region.bytes(base, BLOCK_BYTES).unwrap_or(&[]);
        let header = FilterHeader::decode(head, base, len)?;
        if header != self.header {
            let (expected, found) = (format!("{:?}", self.header), format!("{header:?}"));
            return Err(DecodeError::new("filter header", base, expected, found));
        }
        let bytes = header.block_count as usize * BLOCK_BYTES;
        let Some(blocks) = self.region.bytes(self.blocks_at, bytes) else {
            let expected = format!("{bytes} bytes");
            return Err(DecodeError::new(
                "filter",
                self.blocks_at,
                expected,
                "the end of the pool",
            ));
        };
        let computed = codec::checksum(blocks);
        if computed != header.block_crc {
            let expected = format!("blocks with checksum {}", codec::hex(header.block_crc));
            return Err(DecodeError::new(
                "filter",
                self.blocks_at,
                expected,
                codec::hex(computed),
            ));
        }
        Ok(())
    }

    /// Returns the span of the filter, for the manifest.
    pub(crate) fn span(&self) -> Span {
        self.extent.span()
    }
}
