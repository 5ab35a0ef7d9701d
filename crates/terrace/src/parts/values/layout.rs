//! The format of value files: a header of 64 bytes, then records one after another.
//!
//! The header, little-endian:
//!
//! |  at | size | field    |                                       |
//! |-----|------|----------|---------------------------------------|
//! |   0 |    4 | magic    | "TVAL"                                |
//! |   4 |    4 | version  | 1                                     |
//! |   8 |    8 | number   | of the file                           |
//! |  16 |   16 | database | the id of the database that wrote it  |
//! |  32 |   28 | zero     |                                       |
//! |  60 |    4 | checksum | crc32c of bytes 0..60                 |
//!
//! A record:
//!
//! |  at | size | field        |                                                              |
//! |-----|------|--------------|--------------------------------------------------------------|
//! |   0 |    4 | checksum     | crc32c of bytes 4..32, key, file number (8), offset (8)      |
//! |   4 |    4 | value crc    | crc32c of the stored value                                   |
//! |   8 |    8 | seq          | sequence number in the low 56 bits; compression in the high 8 |
//! |  16 |    8 | expiry       | milliseconds since 1970, or 0                                |
//! |  24 |    4 | keyspace     |                                                              |
//! |  28 |    4 | key size     |                                                              |
//! |  32 |    4 | value size   | of the stored value                                          |
//! |  36 |    k | key          |                                                              |
//! | 36+k |   v | stored value | the format of `parts/compress`                               |
//!
//! Number and offset in the checksum exclude records of another file or from another offset.
//!
//! A pointer is the value of an entry of kind 4 in a table, four varints: file number, offset of
//! the record, bytes of the record, bytes of the value.

use crate::parts::codec::{self, DecodeError, Reader};
use crate::types::{Compression, DbId, KEY_BYTES_MAX, SEQ_MAX, SeqNo};

/// The size of the file's header.
pub(crate) const HEADER_BYTES: usize = 64;
/// The size of a record's header.
pub(crate) const RECORD_HEADER_BYTES: usize = 36;
/// The maximum size of a value, as in a table.
pub(crate) const VALUE_BYTES_MAX: usize = u32::MAX as usize - (2 << 20);

const MAGIC: [u8; 4] = *b"TVAL";
const VERSION: u32 = 1;
const AT_DATABASE: usize = 16;
const AT_ZERO: usize = AT_DATABASE + DbId::BYTES;
const AT_CHECKSUM: usize = HEADER_BYTES - 4;

const _: () = assert!(
    RECORD_HEADER_BYTES == 4 + 4 + 8 + 8 + 4 + 4 + 4,
    "fields of a record"
);
const _: () = assert!(SEQ_MAX <= u64::MAX >> 8, "a compression fits above any seq");
const _: () = assert!(
    RECORD_HEADER_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX + (1 << 10) < u32::MAX as usize,
    "pointers hold the size of any record"
);

/// Encodes the header of file `number`.
pub(crate) fn encode_header(db: DbId, number: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&VERSION.to_le_bytes());
    header[8..16].copy_from_slice(&number.to_le_bytes());
    header[AT_DATABASE..AT_ZERO].copy_from_slice(&db.0);
    let crc = codec::checksum(&header[..AT_CHECKSUM]);
    header[AT_CHECKSUM..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The reason to refuse a header.
#[derive(Debug)]
pub(crate) enum HeaderError {
    Damaged(DecodeError),
    /// A later version wrote it.
    Newer(u32),
}

/// Decodes a header. Returns the database and the number of the file.
pub(crate) fn decode_header(bytes: &[u8]) -> Result<(DbId, u64), HeaderError> {
    let mut r = Reader::new("value file header", 0, bytes);
    let decode = |r: &mut Reader<'_>| -> Result<(u32, u64, DbId), DecodeError> {
        let at = r.clone();
        if r.bytes(4)? != MAGIC {
            return Err(at.refuse("\"TVAL\"", "other bytes"));
        }
        let version = r.u32()?;
        let number = r.u64()?;
        let db = DbId::at(r.bytes(DbId::BYTES)?).unwrap_or_default();
        r.bytes(AT_CHECKSUM - AT_ZERO)?;
        let at = r.clone();
        let (found, computed) = (r.u32()?, codec::checksum(&bytes[..AT_CHECKSUM]));
        if found != computed {
            let expected = format!("checksum {}", codec::hex(computed));
            return Err(at.refuse(expected, codec::hex(found)));
        }
        Ok((version, number, db))
    };
    let (version, number, db) = decode(&mut r).map_err(HeaderError::Damaged)?;
    match version {
        VERSION => Ok((db, number)),
        // The checksum is sound, so a program wrote this version.
        newer => Err(HeaderError::Newer(newer)),
    }
}

/// The version of this format, for errors.
pub(crate) const KNOWN: u32 = VERSION;

/// Returns the database and the number in a header, if it is sound.
pub(crate) fn value_owner(bytes: &[u8]) -> Option<(DbId, u64)> {
    decode_header(bytes).ok()
}

/// The fixed part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) value_crc: u32,
    pub(crate) seq: SeqNo,
    pub(crate) compression: Compression,
    /// The expiry; 0 means never.
    pub(crate) expiry: u64,
    pub(crate) keyspace: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
}

impl RecordHeader {
    /// Encodes it with the checksum of a record with this key at `offset` of file `number`.
    pub(crate) fn encode(&self, key: &[u8], number: u64, offset: u64) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        let seq = self.seq | u64::from(self.compression as u8) << 56;
        bytes[4..8].copy_from_slice(&self.value_crc.to_le_bytes());
        bytes[8..16].copy_from_slice(&seq.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.expiry.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.keyspace.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.key_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.value_bytes.to_le_bytes());
        let crc = checksum(&bytes[4..], key, number, offset);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns the bytes of the record.
    pub(crate) fn record_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + u64::from(self.key_bytes) + u64::from(self.value_bytes)
    }
}

fn checksum(header: &[u8], key: &[u8], number: u64, offset: u64) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&number.to_le_bytes());
    place[8..].copy_from_slice(&offset.to_le_bytes());
    let crc = codec::checksum_append(codec::checksum(header), key);
    codec::checksum_append(crc, &place)
}

/// A record whose checksums are right.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) header: RecordHeader,
    pub(crate) key: &'a [u8],
    /// The value as stored.
    pub(crate) stored: &'a [u8],
}

/// Decodes the record at the start of `bytes`, which are at `offset` of file `number`, and
/// compares its checksums.
pub(crate) fn decode_record(
    bytes: &[u8],
    number: u64,
    offset: u64,
) -> Result<Record<'_>, DecodeError> {
    let mut r = Reader::new("record of a value file", offset, bytes);
    let found = r.u32()?;
    let value_crc = r.u32()?;
    let seq = r.u64()?;
    let at = r.clone();
    let expiry = r.u64()?;
    let keyspace = r.u32()?;
    let (key_bytes, value_bytes) = (r.u32()?, r.u32()?);
    let key = r.bytes(key_bytes as usize)?;
    let computed = checksum(&bytes[4..RECORD_HEADER_BYTES], key, number, offset);
    if computed != found {
        let expected = format!("checksum {}", codec::hex(computed));
        let what = "record of a value file";
        return Err(DecodeError::new(what, offset, expected, codec::hex(found)));
    }
    let Some(compression) = Compression::from_raw((seq >> 56) as u8) else {
        return Err(at.refuse("a known compression", (seq >> 56).to_string()));
    };
    let at = r.clone();
    let stored = r.bytes(value_bytes as usize)?;
    let computed = codec::checksum(stored);
    if computed != value_crc {
        let expected = format!("a value with checksum {}", codec::hex(value_crc));
        return Err(at.refuse(expected, codec::hex(computed)));
    }
    Ok(Record {
        header: RecordHeader {
            value_crc,
            seq: seq & SEQ_MAX,
            compression,
            expiry,
            keyspace,
            key_bytes,
            value_bytes,
        },
        key,
        stored,
    })
}

/// Returns the bytes of the record whose header is at the start of `bytes`, which are at `offset`.
/// The header is not checked.
pub(crate) fn record_bytes(bytes: &[u8], offset: u64) -> Result<u64, DecodeError> {
    let mut r = Reader::new("record of a value file", offset, bytes);
    r.bytes(RECORD_HEADER_BYTES - 8)?;
    let (key, value) = (r.u32()?, r.u32()?);
    Ok(RECORD_HEADER_BYTES as u64 + u64::from(key) + u64::from(value))
}

/// The place of a value: the contents of an entry of kind `VALUE_POINTER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pointer {
    /// The number of the file.
    pub(crate) file: u64,
    /// The offset of the record.
    pub(crate) offset: u64,
    /// The bytes of the record.
    pub(crate) bytes: u32,
    /// The bytes of the value.
    pub(crate) value_bytes: u32,
}

impl Pointer {
    /// Encodes the pointer.
    pub(crate) fn encode(&self) -> EncodedPointer {
        let mut encoded = EncodedPointer {
            bytes: [0; EncodedPointer::BYTES_MAX],
            len: 0,
        };
        let numbers = [
            self.file,
            self.offset,
            self.bytes.into(),
            self.value_bytes.into(),
        ];
        for mut number in numbers {
            // BOUND: each iteration consumes seven bits.
            while number >= 0x80 {
                encoded.push(number as u8 & 0x7f | 0x80);
                number >>= 7;
            }
            encoded.push(number as u8);
        }
        encoded
    }

    /// Decodes a pointer that is at `base` of its medium.
    pub(crate) fn decode(bytes: &[u8], base: u64) -> Result<Pointer, DecodeError> {
        let mut r = Reader::new("pointer to a value", base, bytes);
        let (file, at) = (r.varint()?, r.clone());
        let pointer = Pointer {
            file,
            offset: r.varint()?,
            bytes: r.varint_u32()?,
            value_bytes: r.varint_u32()?,
        };
        r.end()?;
        let end = pointer.offset.checked_add(u64::from(pointer.bytes));
        let least = RECORD_HEADER_BYTES as u32;
        if pointer.offset < HEADER_BYTES as u64 || pointer.bytes < least || end.is_none() {
            let found = format!("{} bytes at {}", pointer.bytes, pointer.offset);
            return Err(at.refuse("the place of a record", found));
        }
        Ok(pointer)
    }
}

/// An encoded pointer.
pub(crate) struct EncodedPointer {
    bytes: [u8; EncodedPointer::BYTES_MAX],
    len: usize,
}

impl EncodedPointer {
    const BYTES_MAX: usize = 4 * codec::VARINT_BYTES_MAX;

    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    /// Returns its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
