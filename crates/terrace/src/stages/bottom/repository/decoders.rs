//! The decoders of repository extents, for fuzzing.

use terrace_media::decoder::{Decoder, Seen, same};

use super::layout::{
    HEADER_BYTES, check_extent, check_head, decode_expiring, encode_expiring, encode_extent,
    encode_head, extent_offset,
};
use crate::parts::codec::decoders::refused;

const LENGTH: u64 = 65536;
const OFFSET: u64 = 8192;

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![Decoder {
        name: "repository-header",
        seeds: || {
            let extents = [OFFSET, 0].map(|off| encode_extent(off, LENGTH, true).to_vec());
            [vec![encode_head().to_vec()], extents.to_vec()].concat()
        },
        mend: |bytes| {
            if let Some(checked) = bytes.get_mut(..20) {
                terrace_media::decoder::seal(checked, 16);
            }
        },
        run: |bytes| {
            if let Some(word) = bytes.last_chunk::<8>() {
                let (kib, last) = decode_expiring(u64::from_le_bytes(*word));
                let again = decode_expiring(encode_expiring(kib, last));
                same("the expiring entries", &again, &(kib, last))?;
            }
            let head = check_head(bytes, 0);
            match (&head, check_extent(bytes, OFFSET, LENGTH)) {
                (Ok(()), Ok(())) => Err("both a head and an extent".into()),
                (Ok(()), _) => {
                    same("a head", &&bytes[..20], &&encode_head()[..20]).map(|()| Seen::Accepted(1))
                }
                (_, Ok(())) if bytes.len() < HEADER_BYTES => Err("a short extent".into()),
                (_, Ok(())) if extent_offset(bytes).is_some_and(|said| said != OFFSET) => {
                    Err("another extent".into())
                }
                (_, Ok(())) => Ok(Seen::Accepted(2)),
                (Err(e), Err(_)) => Ok(refused(e)),
            }
        },
    }]
}
