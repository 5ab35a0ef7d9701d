//! Redo slot: a batch of word stores that is applied atomically.
//!
//! | at | size | field      |                                                    |
//! |----|------|------------|----------------------------------------------------|
//! |  0 |    4 | magic      | "REDO"                                             |
//! |  4 |    4 | count      | stores in the batch; 0: nothing to do              |
//! |  8 |    8 | generation | ascending within the slot                          |
//! | 16 |    4 | version    | 1                                                  |
//! | 20 |    4 | checksum   | crc32c of bytes 0..20 and of the stores            |
//! | 24 |   40 | zero       |                                                    |
//! | 64 | 16*n | stores     | offset of a word, its new value; each 8 bytes      |

use crate::parts::codec;

/// The size of a slot's header.
pub(crate) const SLOT_HEADER_BYTES: usize = 64;
/// The size of a store.
pub(crate) const STORE_BYTES: usize = 16;
/// The size of a slot.
pub(crate) const SLOT_BYTES: usize = 16384;
/// The maximum number of stores in a batch.
pub(crate) const STORES_MAX: usize = (SLOT_BYTES - SLOT_HEADER_BYTES) / STORE_BYTES;
/// The number of slots in a redo area, which limits the jobs that relink concurrently.
pub(crate) const SLOT_COUNT: usize = 12;
// One is the repository's.
const _: () = assert!(crate::options::MERGES_MAX < SLOT_COUNT);

const MAGIC: [u8; 4] = *b"REDO";
const VERSION: u32 = 1;

const _: () = assert!(STORES_MAX == 1020, "a whole slot");
const _: () = assert!(
    STORES_MAX > 6 * crate::parts::skiplist::layout::HEIGHT_MAX,
    "the changes of the tallest node fit many times"
);

/// Encodes a batch into `bytes`.
pub(crate) fn encode(stores: &[(u64, u64)], generation: u64, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.resize(SLOT_HEADER_BYTES, 0);
    for (off, value) in stores {
        bytes.extend_from_slice(&off.to_le_bytes());
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&(stores.len() as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&generation.to_le_bytes());
    bytes[16..20].copy_from_slice(&VERSION.to_le_bytes());
    let crc = codec::checksum(&bytes[..20]);
    let crc = codec::checksum_append(crc, &bytes[SLOT_HEADER_BYTES..]);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the generation and stores of the batch in a slot. Returns `None` if the slot has no
/// complete batch, as after a crash while one was written.
pub(crate) fn decode(bytes: &[u8]) -> Option<(u64, Vec<(u64, u64)>)> {
    let (header, rest) = bytes.split_at_checked(SLOT_HEADER_BYTES)?;
    let word = |b: &[u8]| {
        let mut w = [0u8; 8];
        w.copy_from_slice(b);
        u64::from_le_bytes(w)
    };
    let counts = word(&header[0..8]);
    let count = (counts >> 32) as usize;
    let tail = word(&header[16..24]);
    if header[0..4] != MAGIC || tail as u32 != VERSION || count > STORES_MAX {
        return None;
    }
    let stores = rest.get(..count * STORE_BYTES)?;
    let crc = codec::checksum_append(codec::checksum(&header[..20]), stores);
    if (tail >> 32) as u32 != crc {
        return None;
    }
    let (stores, _) = stores.as_chunks::<STORE_BYTES>();
    let stores = stores
        .iter()
        .map(|s| (word(&s[..8]), word(&s[8..])))
        .collect();
    Some((word(&header[8..16]), stores))
}
