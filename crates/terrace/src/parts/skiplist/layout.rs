//! Skip-list node and table header: the bytes that a flush copies and every later stage relinks.
//!
//! A node, 8-aligned, little-endian. Everything except the links is written once and never changes.
//!
//! |        at | size | field     |                                                          |
//! |-----------|------|-----------|----------------------------------------------------------|
//! |         0 |    4 | checksum  | crc32c of bytes 4..32, the key, and the value's own crc32c |
//! |         4 |    4 | keyspace  | first part of the sort key                               |
//! |         8 |    8 | seq, kind | sequence number << 8, entry kind in the low byte         |
//! |        16 |    8 | hash      | of keyspace and key, for filters; see `types::key_hash`  |
//! |        24 |    4 | key size  | bytes in the low 24 bits, tower height in the 7 above    |
//! |           |      |           | them; the highest bit: `more`                            |
//! |        28 |    4 | value size | bytes                                                   |
//! |        32 |  8*h | links     | pool offsets of the next node at each level, 0 at the end |
//! |    32+8*h |    k | key       |                                                          |
//! |  32+8*h+k |    v | value     | then zero to 7 bytes of padding, contents undefined      |
//!
//! `more` is set if the next node in storage order belongs to the same batch. It means something
//! only in a list that is its own log (`parts/log/list.rs`).
//!
//! Bit 0 of link 0 marks a node dead: superseded or deleted in the repository, to be skipped when a
//! list is rebuilt from its nodes. A list's head is a node of kind 0 and the maximum height,
//! without key and value.
//!
//! A table's first extent begins with this header of 64 bytes. The head node follows at offset 64.
//!
//! |  at | size | field    |                              |
//! |-----|------|----------|------------------------------|
//! |   0 |    4 | magic    | "TTBL"                       |
//! |   4 |    4 | version  | 1                            |
//! |   8 |    8 | table id | ascending, never reused      |
//! |  16 |    8 | left out | 1 + the number of entries that the merge that empties the |
//! |     |      |          | table left out of both tables; 0: not counted           |
//! |  24 |   36 | zero     |                              |
//! |  60 |    4 | checksum | crc32c of bytes 0..60, those of `left out` as zeros |

use crate::parts::codec::{self, DecodeError};
use crate::types::SeqNo;

/// The size of the fixed part of a node.
pub(crate) const HEADER_BYTES: usize = 32;
/// The maximum height of a tower: enough for 2^24 nodes before the highest level grows long.
pub(crate) const HEIGHT_MAX: usize = 16;
/// The bit of link 0 that marks its node dead.
pub(crate) const LINK_DEAD: u64 = 1;
/// The bits of a link word that are an offset.
pub(crate) const LINK_OFFSET: u64 = !7;
/// The size of a head node.
pub(crate) const HEAD_BYTES: usize = HEADER_BYTES + 8 * HEIGHT_MAX;
/// The size of the header in a table's first extent.
pub(crate) const TABLE_HEADER_BYTES: usize = 64;
/// The offset of the first node after the head, in a table's first extent.
pub(crate) const TABLE_NODES_AT: usize = TABLE_HEADER_BYTES + HEAD_BYTES;
/// The offset of `left out` in a table's header.
pub(crate) const LEFT_OUT_AT: usize = 16;
/// The mask of the key size, which is the longest key that the format can hold.
const KEY_SIZE_MASK: u32 = (1 << 24) - 1;
/// The bit of the key size that is `more`.
const MORE: u32 = 1 << 31;

const TABLE_MAGIC: [u8; 4] = *b"TTBL";
const TABLE_VERSION: u32 = 1;

const _: () = assert!(
    HEADER_BYTES == 32,
    "four words, one line with link 0 and a 16-byte key"
);
const _: () = assert!(HEIGHT_MAX < 1 << 7, "heights fit below `more`");
const _: () = assert!(TABLE_NODES_AT.is_multiple_of(8), "nodes are 8-aligned");
const _: () = assert!(
    crate::types::KEY_BYTES_MAX <= KEY_SIZE_MASK as usize,
    "keys fit 24 bits"
);

/// The fixed part of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) checksum: u32,
    pub(crate) keyspace: u32,
    pub(crate) seq: SeqNo,
    pub(crate) kind: u8,
    pub(crate) hash: u64,
    pub(crate) key_len: u32,
    pub(crate) height: u8,
    pub(crate) value_len: u32,
    pub(crate) more: bool,
}

impl Header {
    /// Encodes the header, with a checksum computed from `key` and the value's checksum.
    pub(crate) fn encode(&self, key: &[u8], value_crc: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0u8; HEADER_BYTES];
        bytes[4..8].copy_from_slice(&self.keyspace.to_le_bytes());
        bytes[8..16].copy_from_slice(&((self.seq << 8) | u64::from(self.kind)).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.hash.to_le_bytes());
        let more = if self.more { MORE } else { 0 };
        let sizes = (self.key_len & KEY_SIZE_MASK) | (u32::from(self.height) << 24) | more;
        bytes[24..28].copy_from_slice(&sizes.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.value_len.to_le_bytes());
        let checksum = checksum(&bytes, key, value_crc);
        bytes[0..4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a header. The caller must check sizes and height.
    #[inline(always)]
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Header {
        let word = |at: usize| {
            let mut w = [0u8; 8];
            w.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(w)
        };
        let (w0, w1, w2, w3) = (word(0), word(8), word(16), word(24));
        Header {
            checksum: w0 as u32,
            keyspace: (w0 >> 32) as u32,
            seq: w1 >> 8,
            kind: w1 as u8,
            hash: w2,
            key_len: (w3 as u32) & KEY_SIZE_MASK,
            height: ((w3 as u32 & !MORE) >> 24) as u8,
            value_len: (w3 >> 32) as u32,
            more: w3 as u32 & MORE != 0,
        }
    }

    /// Returns the size of the whole node, padding included.
    #[inline]
    pub(crate) fn node_bytes(&self) -> usize {
        node_bytes(self.height, self.key_len as usize, self.value_len as usize)
    }
}

/// Computes the checksum of a node with the header bytes `header`, whose checksum field is ignored.
pub(crate) fn checksum(header: &[u8; HEADER_BYTES], key: &[u8], value_crc: u32) -> u32 {
    let crc = codec::checksum(&header[4..]);
    let crc = codec::checksum_append(crc, key);
    codec::checksum_append(crc, &value_crc.to_le_bytes())
}

/// Returns the size of a node in bytes, padding included.
#[inline]
pub(crate) fn node_bytes(height: u8, key_len: usize, value_len: usize) -> usize {
    (HEADER_BYTES + 8 * usize::from(height) + key_len + value_len).next_multiple_of(8)
}

/// Encodes the header of table `id` with nothing counted.
pub(crate) fn encode_table_header(id: u64) -> [u8; TABLE_HEADER_BYTES] {
    let mut bytes = [0u8; TABLE_HEADER_BYTES];
    bytes[0..4].copy_from_slice(&TABLE_MAGIC);
    bytes[4..8].copy_from_slice(&TABLE_VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&id.to_le_bytes());
    let crc = codec::checksum(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Checks that `bytes`, found at offset `at`, are the header of a table and returns its id.
pub(crate) fn decode_table_header(bytes: &[u8], at: u64) -> Result<u64, DecodeError> {
    let error = |what, expected: String, found: String| DecodeError {
        what,
        offset: at,
        expected,
        found,
    };
    let Some(bytes) = bytes.first_chunk::<TABLE_HEADER_BYTES>() else {
        return Err(error(
            "table header",
            "64 bytes".into(),
            bytes.len().to_string(),
        ));
    };
    let mut id = [0u8; 8];
    id.copy_from_slice(&bytes[8..16]);
    let id = u64::from_le_bytes(id);
    let mut bytes = *bytes;
    bytes[LEFT_OUT_AT..LEFT_OUT_AT + 8].fill(0);
    // All bytes except the id have known values.
    if bytes != encode_table_header(id) {
        let stored = u32::from_le_bytes([bytes[60], bytes[61], bytes[62], bytes[63]]);
        let computed = codec::checksum(&bytes[..60]);
        return Err(error(
            "table header",
            format!("magic TTBL, version 1, zeros, checksum {computed:#010x}"),
            format!("{:02x?}, checksum {stored:#010x}", &bytes[..8]),
        ));
    }
    Ok(id)
}
