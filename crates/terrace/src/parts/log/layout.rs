//! Log: a 64-byte header, then records at multiples of 64 bytes, the same in the pool and in a
//! file.
//!
//! The header, at 0, little-endian:
//!
//! |  at | size | field    |                                       |
//! |-----|------|----------|---------------------------------------|
//! |   0 |    4 | magic    | "TLOG"                                |
//! |   4 |    4 | version  | 2                                     |
//! |   8 |    8 | log id   | ascending, never reused               |
//! |  16 |   16 | database | its id; the same for all logs         |
//! |  32 |   28 | zero     |                                       |
//! |  60 |    4 | checksum | crc32c of bytes 0..60                 |
//!
//! A record, aligned to 64 bytes and padded with zeros to a multiple of 64:
//!
//! |  at | size | field         |                                                             |
//! |-----|------|---------------|-------------------------------------------------------------|
//! |   0 |    4 | checksum      | see below                                                   |
//! |   4 |    4 | payload bytes | of the entries, a multiple of 8                             |
//! |   8 |    8 | log id        | as in the header                                            |
//! |  16 |    8 | first seq     | sequence number of the first entry; the others count up     |
//! |  24 |    4 | entry count   | in the high bit: whether all entries have the first number  |
//! |  28 |    4 | unsettled     | units of 64 bytes right before this record that may be torn |
//! |  32 |    n | entries       |                                                             |
//!
//! An entry, aligned to 8 bytes:
//!
//! |  at | size | field      |                                            |
//! |-----|------|------------|--------------------------------------------|
//! |   0 |    4 | key size   | low 24 bits; the kind in the high 8        |
//! |   4 |    4 | value size |                                            |
//! |   8 |    4 | keyspace   |                                            |
//! |  12 |    4 | value crc  | crc32c of the value                        |
//! |  16 |    k | key        |                                            |
//! | 16+k |   v | value      | then 0 to 7 bytes of zeros, which are ignored |
//!
//! A record without entries is a seal: nothing follows it, and everything before it is settled.
//!
//! The checksum of a record is the crc32c of the header and the key of every entry in turn, then of
//! the record's bytes 4..32, exclusive-or the record's position / 64. Values are left out, since
//! each entry has a checksum of its value: a value is thus hashed once, when it is pushed. The
//! position invalidates the image of a record that a user stored as a value.
//!
//! A log that is a list (list.rs) is in an extent of its own, and begins as a table does: header,
//! head and nodes are those of `parts/skiplist`. The last two lines of the extent are marks, of
//! which the valid one with the larger second place counts:
//!
//! |  at | size | field    |                                                                |
//! |-----|------|----------|----------------------------------------------------------------|
//! |   0 |    8 | log id   | as in the table's header                                       |
//! |   8 |    8 | durable  | all nodes before this offset in the extent are durable         |
//! |  16 |    8 | written  | all nodes before this offset are written, and linked           |
//! |  24 |    8 | checksum | crc32c of bytes 0..24                                          |
//! |  32 |   32 | unused   |                                                                |

use crate::parts::codec::{self, DecodeError, Reader};
use crate::types::DbId;

/// The size of the log's header.
pub(crate) const LOG_HEADER_BYTES: usize = 64;
/// The size of a record's header.
pub(crate) const RECORD_HEADER_BYTES: usize = 32;
/// The size of the fixed part of an entry.
pub(crate) const ENTRY_HEADER_BYTES: usize = 16;
/// The alignment of records.
pub(crate) const RECORD_ALIGN: usize = 64;
/// The length of the longest key that an entry can hold.
pub(crate) const KEY_SIZE_MAX: usize = (1 << 24) - 1;
/// The bit of an entry count that says that all entries have the first number.
const ONE_NUMBER: u32 = 1 << 31;
/// The maximum number of entry bytes in a record.
pub(crate) const PAYLOAD_BYTES_MAX: usize = (u32::MAX as usize) & !7;
/// The end of the longest log: positions / 64 fit in 32 bits.
pub(crate) const LOG_BYTES_MAX: u64 = (u32::MAX as u64) * RECORD_ALIGN as u64;

/// The size of a mark of a list, and the number of them at the end of its extent.
pub(crate) const LIST_MARK_BYTES: u64 = 64;
pub(crate) const LIST_MARKS: u64 = 2;
/// The words of a mark that are used.
pub(crate) const LIST_MARK_WORDS: usize = 4;

const MAGIC: [u8; 4] = *b"TLOG";
const VERSION: u32 = 2;
const AT_DATABASE: usize = 16;
const AT_ZERO: usize = AT_DATABASE + DbId::BYTES;

const _: () = assert!(
    RECORD_HEADER_BYTES == 4 + 4 + 8 + 8 + 4 + 4,
    "fields of a record"
);
const _: () = assert!(ENTRY_HEADER_BYTES == 4 + 4 + 4 + 4, "fields of an entry");
const _: () = assert!(
    LOG_HEADER_BYTES.is_multiple_of(RECORD_ALIGN),
    "the first record is aligned"
);
const _: () = assert!(
    RECORD_HEADER_BYTES.is_multiple_of(8),
    "the first entry is aligned"
);
const _: () = assert!(crate::types::KEY_BYTES_MAX <= KEY_SIZE_MAX, "any key fits");

const _: () = assert!(
    8 * LIST_MARK_WORDS as u64 <= LIST_MARK_BYTES,
    "fields of a mark"
);
const _: () = assert!(LIST_MARKS == 2, "a bit tells the line of the last mark");

/// A mark of a list: how much of it is durable, and how much is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListMark {
    pub(crate) id: u64,
    pub(crate) durable: u64,
    pub(crate) written: u64,
}

impl ListMark {
    /// Returns the words of the mark.
    pub(crate) fn encode(&self) -> [u64; LIST_MARK_WORDS] {
        [self.id, self.durable, self.written, self.checksum()].map(u64::to_le)
    }

    /// Decodes a mark; `None` if it is not valid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ListMark> {
        let (words, _) = bytes.as_chunks::<8>();
        let [id, durable, written, checksum] = words.first_chunk()?.map(u64::from_le_bytes);
        let mark = ListMark {
            id,
            durable,
            written,
        };
        (mark.checksum() == checksum).then_some(mark)
    }

    fn checksum(&self) -> u64 {
        let fields = [self.id, self.durable, self.written].map(u64::to_le_bytes);
        u64::from(codec::checksum(fields.as_flattened()))
    }
}

/// Returns the header of log `id` of the database `db`.
pub(crate) fn encode_log_header(db: DbId, id: u64) -> [u8; LOG_HEADER_BYTES] {
    let mut bytes = [0u8; LOG_HEADER_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&id.to_le_bytes());
    bytes[AT_DATABASE..AT_ZERO].copy_from_slice(&db.0);
    let crc = codec::checksum(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Returns the id in the header of a log, if there is one, without validating the rest.
pub(crate) fn log_id(bytes: &[u8]) -> Option<u64> {
    let rest = bytes.strip_prefix(&MAGIC)?.get(4..)?;
    rest.first_chunk().map(|id| u64::from_le_bytes(*id))
}

/// Returns the database in the header of a log, without verifying the checksum: a crash can tear
/// the header of a recycled file, but its version and database are the same before and after.
pub(crate) fn log_database(bytes: &[u8]) -> Option<DbId> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let rest = rest.strip_prefix(&VERSION.to_le_bytes())?;
    DbId::at(rest.get(AT_DATABASE - 8..)?)
}

/// Fails unless the bytes are the header of log `id` and, if `db` is given, of that database.
/// `base` is their offset for errors.
pub(crate) fn check_log_header(
    bytes: &[u8],
    db: Option<DbId>,
    id: u64,
    base: u64,
) -> Result<(), DecodeError> {
    let mut r = Reader::new("log header", base, bytes);
    let checked = r.bytes(60)?;
    let (stored, computed) = (r.u32()?, codec::checksum(checked));
    let mut r = Reader::new("log header", base, checked);
    let magic = r.bytes(4)?;
    if magic != MAGIC {
        let found = format!("{magic:02x?}");
        return Err(DecodeError::new(
            "log header",
            base,
            "magic \"TLOG\"",
            found,
        ));
    }
    if stored != computed {
        let (expected, found) = (codec::hex(computed), codec::hex(stored));
        return Err(DecodeError::new("log header", base + 60, expected, found));
    }
    let version = r.u32()?;
    if version != VERSION {
        let expected = format!("version {VERSION}");
        return Err(DecodeError::new(
            "log header",
            base + 4,
            expected,
            version.to_string(),
        ));
    }
    let found = r.u64()?;
    if found != id {
        let (expected, found) = (format!("log {id}"), format!("log {found}"));
        return Err(DecodeError::new("log header", base + 8, expected, found));
    }
    let found = DbId::at(&checked[AT_DATABASE..]).unwrap_or_default();
    if let Some(db) = db.filter(|db| *db != found) {
        let (expected, found) = (format!("database {db}"), format!("database {found}"));
        let at = base + AT_DATABASE as u64;
        return Err(DecodeError::new("log header", at, expected, found));
    }
    if checked[AT_ZERO..].iter().any(|&b| b != 0) {
        return Err(DecodeError::new(
            "log header",
            base + AT_ZERO as u64,
            "zeros",
            "other bytes",
        ));
    }
    Ok(())
}

/// The fixed part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) checksum: u32,
    pub(crate) payload_bytes: u32,
    pub(crate) log_id: u64,
    pub(crate) first_seq: u64,
    pub(crate) entry_count: u32,
    /// Whether all entries have the first number, instead of counting up from it.
    pub(crate) one_number: bool,
    pub(crate) unsettled: u32,
}

impl RecordHeader {
    /// Encodes the header at `position`; `meta_crc` is the checksum of the entries' headers and
    /// keys.
    pub(crate) fn encode(&self, meta_crc: u32, position: u64) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0u8; RECORD_HEADER_BYTES];
        bytes[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.log_id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_seq.to_le_bytes());
        let count = self.entry_count | if self.one_number { ONE_NUMBER } else { 0 };
        bytes[24..28].copy_from_slice(&count.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.unsettled.to_le_bytes());
        let crc = record_checksum(&bytes, meta_crc, position);
        bytes[0..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns the number of different sequence numbers.
    pub(crate) fn numbers(&self) -> u64 {
        numbers(self.entry_count, self.one_number)
    }

    /// Decodes a header; nothing in it is trusted until the checksum has been verified.
    pub(crate) fn decode(bytes: &[u8; RECORD_HEADER_BYTES]) -> RecordHeader {
        let half = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let word = |at: usize| u64::from(half(at)) | (u64::from(half(at + 4)) << 32);
        RecordHeader {
            checksum: half(0),
            payload_bytes: half(4),
            log_id: word(8),
            first_seq: word(16),
            entry_count: half(24) & !ONE_NUMBER,
            one_number: half(24) & ONE_NUMBER != 0,
            unsettled: half(28),
        }
    }

    /// Returns the position up to which the log was durable when the record at `position` was
    /// reserved.
    pub(crate) fn settled(&self, position: u64) -> u64 {
        position.saturating_sub(u64::from(self.unsettled) * RECORD_ALIGN as u64)
    }
}

/// Returns the number of different sequence numbers of a record.
pub(crate) fn numbers(entry_count: u32, one_number: bool) -> u64 {
    u64::from(match one_number {
        true => entry_count.min(1),
        false => entry_count,
    })
}

/// Computes the checksum of the record with the header bytes `header`.
pub(crate) fn record_checksum(
    header: &[u8; RECORD_HEADER_BYTES],
    meta_crc: u32,
    position: u64,
) -> u32 {
    codec::checksum_append(meta_crc, &header[4..]) ^ (position / RECORD_ALIGN as u64) as u32
}

/// The fixed part of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryHeader {
    pub(crate) key_bytes: usize,
    pub(crate) kind: u8,
    pub(crate) value_bytes: usize,
    pub(crate) keyspace: u32,
    pub(crate) value_crc: u32,
}

impl EntryHeader {
    /// Encodes the header. Sizes must fit; `Payload::push` has checked them.
    #[inline]
    pub(crate) fn encode(&self) -> [u8; ENTRY_HEADER_BYTES] {
        let sizes = u64::from(self.key_bytes as u32 | (u32::from(self.kind) << 24))
            | ((self.value_bytes as u64) << 32);
        let rest = u64::from(self.keyspace) | (u64::from(self.value_crc) << 32);
        let mut bytes = [0u8; ENTRY_HEADER_BYTES];
        bytes[..8].copy_from_slice(&sizes.to_le_bytes());
        bytes[8..].copy_from_slice(&rest.to_le_bytes());
        bytes
    }

    /// Decodes a header from the next bytes of `r`.
    #[inline]
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<EntryHeader, DecodeError> {
        let sizes = r.u64()?;
        let rest = r.u64()?;
        Ok(EntryHeader {
            key_bytes: (sizes as u32 & KEY_SIZE_MAX as u32) as usize,
            kind: (sizes as u32 >> 24) as u8,
            value_bytes: (sizes >> 32) as usize,
            keyspace: rest as u32,
            value_crc: (rest >> 32) as u32,
        })
    }
}
