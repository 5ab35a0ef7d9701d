//! Decoders for fuzzing: valid encodings, a function that corrects checksums after a change, and a
//! decoding that checks its own guarantees.
//!
//! Compiled with the feature `decoders`, for tests.

/// The result of decoding. The number distinguishes kinds of refusals and of contents, so that a
/// fuzzer can recognize new behaviour.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Seen {
    /// The bytes were refused.
    Refused(u64),
    /// The bytes were decoded.
    Accepted(u64),
}

/// A decoder for fuzzing; see the module.
#[derive(Clone, Copy)]
pub struct Decoder {
    /// The name.
    pub name: &'static str,
    /// Returns valid encodings.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Corrects all checksums in the bytes.
    pub mend: fn(&mut [u8]),
    /// Decodes the bytes; an error means that a guarantee was violated.
    pub run: fn(&[u8]) -> Result<Seen, String>,
}

/// Returns a number for the kind of a refusal, independent of offsets and values.
pub fn kind_of(what: &str, expected: &str) -> u64 {
    // The text from the first digit on depends on the value.
    let words = expected.bytes().take_while(|byte| !byte.is_ascii_digit());
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    what.bytes().chain(words).fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Stores the CRC-32C of `bytes[..at]` at `at`, if it fits.
pub fn seal(bytes: &mut [u8], at: usize) {
    if let Some((front, rest)) = bytes.split_at_mut_checked(at)
        && let Some(place) = rest.first_chunk_mut::<4>()
    {
        *place = crc_fast::crc32_iscsi(front).to_le_bytes();
    }
}

/// Returns an error if two values that must be equal differ.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, a: &T, b: &T) -> Result<(), String> {
    match a == b {
        true => Ok(()),
        false => Err(format!("{what}: {a:?} is not {b:?}")),
    }
}
