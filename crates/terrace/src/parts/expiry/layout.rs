//! The bytes of an expiring value in a log, a memtable or a table in the pool, whose entry has the
//! kind `PutExpiring`. In a table file the expiry is a field of the entry: parts/sstable.
//!
//! ```text
//! | offset | size | field                                                            |
//! |--------|------|------------------------------------------------------------------|
//! |      0 |    8 | milliseconds since 1970 from which on the key is absent; never 0 |
//! |      8 | rest | the value                                                        |
//! ```

use crate::parts::codec::DecodeError;

/// The size of the expiry before the value.
pub(crate) const EXPIRY_BYTES: usize = 8;
const _: () = assert!(EXPIRY_BYTES == size_of::<u64>(), "one word");

/// Encodes an expiry and a value.
pub(crate) fn encode(expiry: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(EXPIRY_BYTES + value.len());
    bytes.extend_from_slice(&expiry.to_le_bytes());
    bytes.extend_from_slice(value);
    bytes
}

/// Decodes the expiry and the value of an entry at `offset`.
pub(crate) fn decode(bytes: &[u8], offset: u64) -> Result<(u64, &[u8]), DecodeError> {
    match bytes.split_first_chunk::<EXPIRY_BYTES>() {
        Some((expiry, value)) if *expiry != [0; EXPIRY_BYTES] => {
            Ok((u64::from_le_bytes(*expiry), value))
        }
        _ => {
            let found = format!("{} bytes without it", bytes.len());
            Err(DecodeError::new(
                "expiring value",
                offset,
                "an expiry",
                found,
            ))
        }
    }
}
