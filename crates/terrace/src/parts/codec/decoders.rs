//! The decoder of varints for fuzzing, and helpers of all decoders.

use terrace_media::decoder::{Decoder, Seen, kind_of, same};

use super::{DecodeError, Reader, put_varint};

/// Reports a refused input.
pub(crate) fn refused(e: &DecodeError) -> Seen {
    Seen::Refused(kind_of(e.what, &e.expected))
}

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![Decoder {
        name: "varint",
        seeds: || {
            let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), 1 << 63, u64::MAX];
            let one = |&number: &u64| {
                let mut bytes = Vec::new();
                put_varint(&mut bytes, number);
                bytes
            };
            numbers.iter().map(one).collect()
        },
        mend: |_| {},
        run: |bytes| {
            let mut r = Reader::new("varint", 0, bytes);
            match r.varint() {
                Ok(number) => {
                    let mut again = Vec::new();
                    put_varint(&mut again, number);
                    let read = bytes.len() - r.remaining();
                    same("a varint", &again.as_slice(), &&bytes[..read])?;
                    let narrow = Reader::new("varint", 0, bytes).varint_u32().ok();
                    same("as 32 bits", &narrow, &u32::try_from(number).ok())?;
                    Ok(Seen::Accepted(read as u64))
                }
                Err(e) => Ok(refused(&e)),
            }
        },
    }]
}
