//! Decoders as those see them who feed them with anything: valid encodings, how to make checksums right
//! after a change, and a decoding that checks its own promises.
//!
//! Compiled with the feature `decoders`, for tests.

/// What a decoder made of bytes. The number tells kinds of refusals and of contents apart, so that
/// whoever feeds it knows whether an input did something that none did before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Seen {
    /// The bytes are refused.
    Refused(u64),
    /// The bytes are what the decoder reads.
    Accepted(u64),
}

/// See the module.
#[derive(Clone, Copy)]
pub struct Decoder {
    /// What it is called.
    pub name: &'static str,
    /// Encodings that the encoder made.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Makes every checksum right that the bytes have.
    pub mend: fn(&mut [u8]),
    /// Decodes; an error is a promise that was broken.
    pub run: fn(&[u8]) -> Result<Seen, String>,
}

/// A number for what a refusal says, the same for all places and values.
pub fn kind_of(what: &str, expected: &str) -> u64 {
    // What comes behind the first digit is about the value.
    let words = expected.bytes().take_while(|byte| !byte.is_ascii_digit());
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    what.bytes().chain(words).fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Stores the crc32c of `bytes[..at]` at `at`, if there is room.
pub fn seal(bytes: &mut [u8], at: usize) {
    if let Some((front, rest)) = bytes.split_at_mut_checked(at)
        && let Some(place) = rest.first_chunk_mut::<4>()
    {
        *place = crc_fast::crc32_iscsi(front).to_le_bytes();
    }
}

/// The error of a promise that two things are equal.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, a: &T, b: &T) -> Result<(), String> {
    match a == b {
        true => Ok(()),
        false => Err(format!("{what}: {a:?} is not {b:?}")),
    }
}
