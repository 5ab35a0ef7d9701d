//! The filter format: a 64-byte header, then blocks of 64 bytes, each in one cache line.
//!
//! |  at | size | field        |                                                  |
//! |-----|------|--------------|--------------------------------------------------|
//! |   0 |    4 | magic        | "TFLT"                                           |
//! |   4 |    4 | version      | 1                                                |
//! |   8 |    4 | block count  | at least 1                                       |
//! |  12 |    4 | probes       | bits that a key sets, 1 to 8                     |
//! |  16 |    8 | key count    | hashes that were inserted                        |
//! |  24 |    4 | block crc    | crc32c of all blocks                             |
//! |  28 |   32 | zero         |                                                  |
//! |  60 |    4 | checksum     | crc32c of bytes 0..60                            |
//! |  64 | 64*n | blocks       | eight little-endian words each                   |
//!
//! A key with hash `h` belongs to block `(h >> 32) * blocks >> 32`. Its bits come from the product
//! of the low half of `h` and `BIT_FACTOR`: the top 3 bits select the first word, and bits 13+6i to
//! 18+6i select the bit in word i, counted from there and wrapping around in the block. Both this
//! rule and the hashes stored in nodes are part of the format.

use crate::parts::codec::{self, DecodeError, Reader};

/// The size of the header and of a block.
pub(crate) const BLOCK_BYTES: usize = 64;
/// The number of words in a block.
pub(crate) const BLOCK_WORDS: usize = 8;
/// The number of bits in a block.
pub(crate) const BLOCK_BITS: u64 = 512;
/// The maximum number of bits that a key sets, one in each word.
pub(crate) const PROBES_MAX: u32 = 8;
/// Spreads the low half of a hash over the bits of a block.
pub(crate) const BIT_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// The position in the product of the first word's number.
pub(crate) const WORD_SHIFT: u32 = 61;
/// The position in the product of the first bit's number.
pub(crate) const BIT_SHIFT: u32 = 13;

const MAGIC: [u8; 4] = *b"TFLT";
const VERSION: u32 = 1;

const _: () = assert!(BLOCK_WORDS * 8 == BLOCK_BYTES, "a block is one line");
const _: () = assert!(BLOCK_BITS == 8 * BLOCK_BYTES as u64, "all bits are used");
const _: () = assert!(
    BIT_SHIFT + 6 * PROBES_MAX == WORD_SHIFT,
    "bits are used once"
);

/// The header of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterHeader {
    pub(crate) block_count: u32,
    pub(crate) probes: u32,
    pub(crate) key_count: u64,
    pub(crate) block_crc: u32,
}

impl FilterHeader {
    pub(crate) fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0u8; BLOCK_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.block_count.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.probes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key_count.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.block_crc.to_le_bytes());
        let crc = codec::checksum(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Accepts only the header of a filter that fits into `extent_bytes`. `base` is its offset.
    pub(crate) fn decode(
        bytes: &[u8],
        base: u64,
        extent_bytes: u64,
    ) -> Result<FilterHeader, DecodeError> {
        let refuse = |at: u64, expected: String, found: String| {
            Err(DecodeError::new(
                "filter header",
                base + at,
                expected,
                found,
            ))
        };
        let mut r = Reader::new("filter header", base, bytes);
        let checked = r.bytes(60)?;
        let (stored, computed) = (r.u32()?, codec::checksum(checked));
        let mut r = Reader::new("filter header", base, checked);
        let magic = r.bytes(4)?;
        if magic != MAGIC {
            return refuse(0, "magic \"TFLT\"".into(), format!("{magic:02x?}"));
        }
        if stored != computed {
            return refuse(60, codec::hex(computed), codec::hex(stored));
        }
        let version = r.u32()?;
        if version != VERSION {
            return refuse(4, format!("version {VERSION}"), version.to_string());
        }
        let header = FilterHeader {
            block_count: r.u32()?,
            probes: r.u32()?,
            key_count: r.u64()?,
            block_crc: r.u32()?,
        };
        let bytes = (u64::from(header.block_count) + 1) * BLOCK_BYTES as u64;
        if header.block_count == 0 || bytes > extent_bytes {
            let expected = format!("1 to {} blocks", extent_bytes / BLOCK_BYTES as u64);
            return refuse(8, expected, header.block_count.to_string());
        }
        if !(1..=PROBES_MAX).contains(&header.probes) {
            return refuse(12, "1 to 8 probes".into(), header.probes.to_string());
        }
        if checked[28..].iter().any(|&b| b != 0) {
            return refuse(28, "zeros".into(), "other bytes".into());
        }
        Ok(header)
    }
}
