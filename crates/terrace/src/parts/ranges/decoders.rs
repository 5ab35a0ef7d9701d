//! The decoder of range deletes for fuzzing.

use terrace_media::decoder::{Decoder, Seen, same};

use super::layout::{decode, encode};
use crate::parts::codec::decoders::refused;

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![Decoder {
        name: "range-delete",
        seeds: || vec![encode(b"", b""), encode(b"a", b"b"), encode(b"key", b"")],
        mend: |_| {},
        run: |bytes| match decode(bytes, 0) {
            Ok((begin, end)) => {
                same("a range", &encode(begin, end).as_slice(), &bytes)?;
                if !end.is_empty() && begin >= end {
                    return Err(format!("a range from {begin:?} to {end:?}"));
                }
                Ok(Seen::Accepted(u64::from(end.is_empty())))
            }
            Err(e) => Ok(refused(&e)),
        },
    }]
}
