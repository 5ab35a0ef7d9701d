//! Encoding of numbers on media: little-endian words, varints, checksums, and the error type of
//! every decoder.
//!
//! Bytes from media are untrusted input: a [`Reader`] never panics, never reads outside its slice,
//! and reports the offset of bytes that it refuses. Writers append to a `Vec<u8>` and cannot fail.

use std::error::Error;
use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

#[cfg(feature = "decoders")]
pub(crate) mod decoders;
#[cfg(test)]
mod tests;

/// The error of a decoder that refuses bytes on a medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DecodeError {
    /// The item being decoded: "log record", "manifest edit", "filter header".
    pub(crate) what: &'static str,
    /// The offset in the pool or in the file.
    pub(crate) offset: u64,
    /// The expected contents.
    pub(crate) expected: String,
    /// The contents found.
    pub(crate) found: String,
}

impl DecodeError {
    /// Creates an error for the bytes at `offset`.
    #[cold]
    pub(crate) fn new(
        what: &'static str,
        offset: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> DecodeError {
        DecodeError {
            what,
            offset,
            expected: expected.into(),
            found: found.into(),
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at offset {} is damaged: expected {}, found {}",
            self.what, self.offset, self.expected, self.found
        )
    }
}

impl Error for DecodeError {}

impl From<DecodeError> for crate::error::Error {
    fn from(e: DecodeError) -> crate::error::Error {
        let text = format!(
            "{e}; restore the database from a copy, or recover the readable data with \"terrace \
             repair\""
        );
        crate::error::Error::corruption(text).because(e)
    }
}

/// The length of the longest varint: ten groups of seven bits hold any `u64`.
pub(crate) const VARINT_BYTES_MAX: usize = 10;

/// Reads a slice from front to back with bounds checks.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    what: &'static str,
    base: u64,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes`, which start at offset `base`; errors call them `what`.
    pub(crate) fn new(what: &'static str, base: u64, bytes: &'a [u8]) -> Reader<'a> {
        Reader {
            what,
            base,
            bytes,
            at: 0,
        }
    }

    /// Returns the offset of the next byte on the medium.
    pub(crate) fn offset(&self) -> u64 {
        self.base.saturating_add(self.at as u64)
    }

    /// Returns the number of bytes left.
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns an error that refuses the next byte.
    #[cold]
    pub(crate) fn refuse(
        &self,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> DecodeError {
        DecodeError::new(self.what, self.offset(), expected, found)
    }

    /// Reads the next `len` bytes.
    #[inline]
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        if len > rest.len() {
            return Err(self.refuse(format!("{len} bytes"), format!("{} bytes", rest.len())));
        }
        self.at += len;
        Ok(&rest[..len])
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.bytes[self.at..].first_chunk::<N>() {
            Some(chunk) => {
                self.at += N;
                Ok(*chunk)
            }
            None => {
                let found = format!("{} bytes", self.remaining());
                Err(self.refuse(format!("{N} bytes"), found))
            }
        }
    }

    /// Reads the next byte.
    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads the next four bytes as a little-endian number.
    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads the next eight bytes as a little-endian number.
    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads the next varint: seven bits a byte, low group first, high bit set on all but the last.
    ///
    /// Only the shortest form of a number is accepted, so that equal values have equal bytes.
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        // BOUND: at most VARINT_BYTES_MAX groups.
        for (i, &byte) in self.bytes[self.at..]
            .iter()
            .take(VARINT_BYTES_MAX)
            .enumerate()
        {
            let group = u64::from(byte & 0x7f);
            if i == VARINT_BYTES_MAX - 1 && byte > 1 {
                return Err(self.refuse("a varint of at most 64 bits", "a longer varint"));
            }
            value |= group << (7 * i);
            if byte & 0x80 == 0 {
                if byte == 0 && i > 0 {
                    return Err(self.refuse("a varint in its shortest form", "a padded varint"));
                }
                self.at += i + 1;
                return Ok(value);
            }
        }
        Err(self.refuse(
            "a whole varint",
            format!("{} bytes without the last byte", self.remaining()),
        ))
    }

    /// Reads the next varint, which must fit in 32 bits.
    pub(crate) fn varint_u32(&mut self) -> Result<u32, DecodeError> {
        let before = self.clone();
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| before.refuse("a 32-bit number", value.to_string()))
    }

    /// Fails unless the slice is exhausted.
    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(self.refuse("the end", format!("{left} more bytes"))),
        }
    }
}

/// Appends one byte.
pub(crate) fn put_u8(out: &mut Vec<u8>, value: u8) {
    out.push(value);
}

/// Appends a varint in its shortest form.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    // BOUND: each iteration consumes seven bits.
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Computes the crc32c of `bytes`.
#[inline]
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Extends the crc32c `crc` by `bytes`.
#[inline]
pub(crate) fn checksum_append(crc: u32, bytes: &[u8]) -> u32 {
    // The state of a digest is the checksum before its final exclusive-or.
    let state = u64::from(!crc);
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
    digest.update(bytes);
    digest.finalize() as u32
}

/// Formats a checksum for errors.
pub(crate) fn hex(crc: u32) -> String {
    format!("{crc:#010x}")
}
