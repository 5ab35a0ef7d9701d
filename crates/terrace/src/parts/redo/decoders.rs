//! The decoder of redo slots for fuzzing.

use terrace_media::decoder::{Decoder, Seen, same};

use super::layout::{SLOT_HEADER_BYTES, STORE_BYTES, decode, encode};
use crate::parts::codec;

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![Decoder {
        name: "redo",
        seeds: || {
            let slot = |stores: &[(u64, u64)], generation| {
                let mut bytes = Vec::new();
                encode(stores, generation, &mut bytes);
                bytes
            };
            vec![
                slot(&[], 1),
                slot(&[(4096, 1), (8, u64::MAX)], 9),
                slot(&[(1 << 20, 7); 40], 2),
            ]
        },
        mend: |bytes| {
            let Some((header, rest)) = bytes.split_at_mut_checked(SLOT_HEADER_BYTES) else {
                return;
            };
            let mut count = [0; 4];
            count.copy_from_slice(&header[4..8]);
            let stores = (u32::from_le_bytes(count) as usize).saturating_mul(STORE_BYTES);
            if let Some(stores) = rest.get(..stores) {
                let crc = codec::checksum_append(codec::checksum(&header[..20]), stores);
                header[20..24].copy_from_slice(&crc.to_le_bytes());
            }
        },
        run: |bytes| {
            let Some((generation, stores)) = decode(bytes) else {
                return Ok(Seen::Refused(0));
            };
            let mut again = Vec::new();
            encode(&stores, generation, &mut again);
            // The zeros of the header are not checked.
            same("front", &&again[..24], &&bytes[..24])?;
            let end = again.len();
            same(
                "stores",
                &&again[SLOT_HEADER_BYTES..],
                &&bytes[SLOT_HEADER_BYTES..end],
            )?;
            Ok(Seen::Accepted(stores.len().min(50) as u64))
        },
    }]
}
