//! Filter: tells most keys that a table does not have, at the cost of one cache line.
//!
//! A blocked Bloom filter, built in DRAM while a table is copied or merged, streamed into an extent
//! and used there in place. Hashes come from the nodes, so that nothing is read again to merge two
//! filters: the merged table's is built from the hashes that the merge passes anyway.
//!
//! Invariants
//!   F1  A filter never changes once `finish` has returned.
//!   F2  A key that was inserted is always found, unless the medium lost a bit: `verify` finds that.
//!
//! A table in a file has the same bytes in a block of its own, and in memory while they are used.
//!
//! Bytes: layout.rs. One builder; any number of readers.

mod block;
#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod layout;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_media::{Extent, Purpose, Region, Span};

pub(crate) use block::FilterBlock;

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

/// The block of a hash: its high half, scaled.
#[inline(always)]
fn block_of(hash: u64, block_count: u32) -> u64 {
    ((hash >> 32) * u64::from(block_count)) >> 32
}

/// The bits of a hash in its block.
#[inline(always)]
fn spread(hash: u64) -> u64 {
    (hash & u64::from(u32::MAX)).wrapping_mul(BIT_FACTOR)
}

/// The word and the bit in it of probe `i`.
#[inline(always)]
fn probe(spread: u64, i: u32) -> (u64, u32) {
    let word = ((spread >> WORD_SHIFT) + u64::from(i)) % BLOCK_WORDS as u64;
    (word, (spread >> (BIT_SHIFT + 6 * i)) as u32 & 63)
}

/// A filter that is being built in DRAM.
#[derive(Debug)]
pub(crate) struct FilterBuilder {
    /// Room for the header, then the blocks as they will be in the extent.
    bytes: Vec<u8>,
    block_count: u32,
    probes: u32,
    key_count: u64,
}

impl FilterBuilder {
    /// An empty filter sized for `keys_max` keys. More may be inserted; it then tells less.
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

    /// The filter's bytes, for a table in a file.
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

    /// Bytes that `finish` writes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Writes the filter to the start of `extent`; the caller fences before it publishes it.
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
    /// The extent's region, one step closer.
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

    /// Opens the filter in `extent` after a look at its header only.
    pub(crate) fn open(extent: Arc<Extent>) -> Result<Filter, DecodeError> {
        let (base, len) = (extent.off(), extent.len());
        let bytes = extent.region().bytes(base, BLOCK_BYTES).unwrap_or(&[]);
        let header = FilterHeader::decode(bytes, base, len)?;
        Ok(Filter::new(extent, header))
    }

    /// Whether a key with this hash may have been inserted; `false` is certain.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        let at = self.block_at(hash);
        let bits = spread(hash);
        // BOUND: at most PROBES_MAX, checked when the header was read.
        for i in 0..self.header.probes {
            let (word, bit) = probe(bits, i);
            // What cannot be read answers "maybe": the table itself then gives the error.
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

    /// Reads the whole filter and compares its checksums.
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

    /// Where the filter is, for the manifest.
    pub(crate) fn span(&self) -> Span {
        self.extent.span()
    }
}
