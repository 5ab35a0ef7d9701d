//! The decoder of expiring values for fuzzing.

use terrace_media::decoder::{Decoder, Seen, same};

use super::layout::{decode, encode};
use crate::parts::codec::decoders::refused;

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![Decoder {
        name: "expiring-value",
        seeds: || vec![encode(1, b""), encode(u64::MAX, b"value")],
        mend: |_| {},
        run: |bytes| match decode(bytes, 0) {
            Ok((expiry, value)) => {
                same("a value", &encode(expiry, value).as_slice(), &bytes)?;
                Ok(Seen::Accepted(value.len().min(9) as u64))
            }
            Err(e) => Ok(refused(&e)),
        },
    }]
}
