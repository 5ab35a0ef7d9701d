//! The bytes of a range delete as an entry of a log, a memtable or a table in the pool.
//!
//! It is an entry of the kind `RangeDelete` without a value. Its keyspace is that of the deleted
//! keys with the highest bit set, so that it is never among them. Its key contains both ends, so
//! that two range deletes from one key to different ends are different entries. Table files store
//! range deletes in a block of their own: parts/sstable.
//!
//! ```text
//! | offset | size | field                                                        |
//! |--------|------|--------------------------------------------------------------|
//! |      0 |    4 | length of the first key                                      |
//! |      4 |    n | the first key of the range                                   |
//! |  4 + n | rest | the key after the range; empty: to the end of the keyspace   |
//! ```

use crate::parts::codec::DecodeError;
use crate::types::KEY_BYTES_MAX;

/// The bit set in the keyspace of a range delete.
pub(crate) const RANGE_DELETE_BIT: u32 = 1 << 31;

const LEN_BYTES: usize = size_of::<u32>();
const _: () = assert!(
    LEN_BYTES == 4,
    "the length of the first key is a word of 32 bits"
);

/// The length of the longest entry key: two keys and the length of one.
pub(crate) const ENTRY_KEY_BYTES_MAX: usize = LEN_BYTES + 2 * KEY_BYTES_MAX;

/// Returns the entry key of the range from `begin` to before `end`.
pub(crate) fn encode(begin: &[u8], end: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(LEN_BYTES + begin.len() + end.len());
    key.extend_from_slice(&(begin.len() as u32).to_le_bytes());
    key.extend_from_slice(begin);
    key.extend_from_slice(end);
    key
}

/// Decodes the first key and the end of a range from its entry key; the entry is at `offset`.
pub(crate) fn decode(key: &[u8], offset: u64) -> Result<(&[u8], &[u8]), DecodeError> {
    let split = key
        .split_first_chunk::<LEN_BYTES>()
        .and_then(|(len, rest)| rest.split_at_checked(u32::from_le_bytes(*len) as usize))
        .filter(|(begin, end)| end.is_empty() || begin < end);
    split.ok_or_else(|| {
        let found = format!("a key of {} bytes that is not a range", key.len());
        DecodeError::new("range delete", offset, "two keys in order", found)
    })
}
