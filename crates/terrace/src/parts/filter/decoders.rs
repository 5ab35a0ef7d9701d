//! The filter decoder, for fuzzers and other sources of arbitrary bytes.

use terrace_media::decoder::{Decoder, Seen, same, seal};

use super::layout::{BLOCK_BYTES, FilterHeader};
use super::{FilterBlock, FilterBuilder};
use crate::parts::codec;
use crate::parts::codec::decoders::refused;

fn hash(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![Decoder {
        name: "filter",
        seeds: || {
            let filter = |keys: u64, bits| {
                let mut builder = FilterBuilder::new(keys, bits);
                (0..keys).for_each(|key| builder.insert(hash(key)));
                builder.into_bytes()
            };
            vec![
                filter(0, 10),
                filter(5, 10),
                filter(200, 3),
                filter(100, 16),
            ]
        },
        mend: |bytes| {
            if let Some((header, blocks)) = bytes.split_at_mut_checked(BLOCK_BYTES) {
                header[24..28].copy_from_slice(&codec::checksum(blocks).to_le_bytes());
                seal(header, BLOCK_BYTES - 4);
            }
        },
        run: |bytes| match FilterBlock::new(bytes.to_vec(), 0) {
            Ok(filter) => {
                let header = FilterHeader::decode(bytes, 0, bytes.len() as u64);
                let header = header.map_err(|e| format!("its header: {e}"))?;
                same("a header", &&header.encode()[..], &&bytes[..BLOCK_BYTES])?;
                same("keys", &header.key_count, &filter.key_count())?;
                let yes = (0..16).filter(|&key| filter.may_contain(hash(key))).count();
                let empty = bytes[BLOCK_BYTES..].iter().all(|&byte| byte == 0);
                if empty && yes > 0 {
                    return Err("an empty filter has keys".into());
                }
                Ok(Seen::Accepted(yes as u64))
            }
            Err(e) => Ok(refused(&e)),
        },
    }]
}
