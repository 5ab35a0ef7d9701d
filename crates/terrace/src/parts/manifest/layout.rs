//! Manifest: a 64-byte header at the start of its extent or file, then records, 8-aligned.
//!
//! |  at | size | field      |                                                       |
//! |-----|------|------------|-------------------------------------------------------|
//! |   0 |    4 | magic      | "TMAN"                                                |
//! |   4 |    4 | version    | 5                                                     |
//! |   8 |    8 | generation | ascending; in a pool the superblock names the valid one |
//! |  16 |    8 | file bytes | the least length of the file; 0 in a pool             |
//! |  24 |   16 | database   | its id                                                |
//! |  40 |   20 | zero       |                                                       |
//! |  60 |    4 | checksum   | crc32c of bytes 0..60                                 |
//!
//! A record, one edit:
//!
//! |  at | size | field         |                                              |
//! |-----|------|---------------|----------------------------------------------|
//! |   0 |    4 | checksum      | crc32c of bytes 4..32 and the changes        |
//! |   4 |    4 | payload bytes | of the changes, without padding to 8         |
//! |   8 |    8 | generation    | as in the header                             |
//! |  16 |    8 | number        | 0, 1, 2, ...; record 0 is the state that the |
//! |     |      |               | compaction found, those after it are edits   |
//! |  24 |    4 | change count  |                                              |
//! |  28 |    4 | zero          |                                              |
//! |  32 |    n | changes       | a tag byte each, then varints: see edit.rs   |
//!
//! Root words of the superblock: 0 and 1 are offset and length of the manifest's extent, 2 is its
//! generation, 3 and 4 are offset and length of the spare extent that the next compaction fills.

use terrace_media::Span;

use crate::parts::codec::{self, DecodeError, Reader};
use crate::types::DbId;

/// The size of the header, and the offset of the first record.
pub(crate) const HEADER_BYTES: usize = 64;
/// The size of a record's header.
pub(crate) const RECORD_HEADER_BYTES: usize = 32;
/// The alignment of records.
pub(crate) const RECORD_ALIGN: usize = 8;

const ROOT_OFFSET: usize = 0;
const ROOT_LENGTH: usize = 1;
const ROOT_GENERATION: usize = 2;
const ROOT_SPARE_OFFSET: usize = 3;
const ROOT_SPARE_LENGTH: usize = 4;

const MAGIC: [u8; 4] = *b"TMAN";
/// The version that this program writes.
pub(crate) const VERSION: u32 = 6;
const AT_DATABASE: usize = 24;
const AT_ZERO: usize = AT_DATABASE + DbId::BYTES;

const _: () = assert!(
    RECORD_HEADER_BYTES == 4 + 4 + 8 + 8 + 4 + 4,
    "fields of a record"
);
const _: () = assert!(
    HEADER_BYTES.is_multiple_of(RECORD_ALIGN),
    "the first record is aligned"
);
const _: () = assert!(
    RECORD_HEADER_BYTES.is_multiple_of(RECORD_ALIGN),
    "all later records are aligned"
);

/// The superblock's root words for the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Roots {
    pub(crate) current: Span,
    pub(crate) generation: u64,
    pub(crate) spare: Span,
}

impl Roots {
    /// Decodes the words that `root` returns.
    pub(crate) fn read(root: impl Fn(usize) -> u64) -> Roots {
        Roots {
            current: Span {
                off: root(ROOT_OFFSET),
                len: root(ROOT_LENGTH),
            },
            generation: root(ROOT_GENERATION),
            spare: Span {
                off: root(ROOT_SPARE_OFFSET),
                len: root(ROOT_SPARE_LENGTH),
            },
        }
    }

    /// Returns the words to write.
    pub(crate) fn words(&self) -> [(usize, u64); 5] {
        [
            (ROOT_OFFSET, self.current.off),
            (ROOT_LENGTH, self.current.len),
            (ROOT_GENERATION, self.generation),
            (ROOT_SPARE_OFFSET, self.spare.off),
            (ROOT_SPARE_LENGTH, self.spare.len),
        ]
    }
}

/// The fields of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) generation: u64,
    /// The minimum length of the file; 0 in a pool.
    pub(crate) file_bytes: u64,
    /// The database that owns the manifest.
    pub(crate) db: DbId,
}

/// Encodes a header.
pub(crate) fn encode_header(header: Header) -> [u8; HEADER_BYTES] {
    let mut bytes = [0u8; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&header.generation.to_le_bytes());
    bytes[16..24].copy_from_slice(&header.file_bytes.to_le_bytes());
    bytes[AT_DATABASE..AT_ZERO].copy_from_slice(&header.db.0);
    let crc = codec::checksum(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Returns the database in a header, without verifying the checksum.
pub(crate) fn manifest_database(bytes: &[u8]) -> Option<DbId> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let rest = rest.strip_prefix(&VERSION.to_le_bytes())?;
    DbId::at(rest.get(AT_DATABASE - 8..)?)
}

/// Returns the version in the valid header of another version; magic and checksum keep their
/// places.
pub(crate) fn other_version(bytes: &[u8]) -> Option<u32> {
    let (checked, rest) = bytes.split_at_checked(60)?;
    let stored = u32::from_le_bytes(*rest.first_chunk()?);
    let version = u32::from_le_bytes(*checked[4..].first_chunk()?);
    let sound = checked[..4] == MAGIC && stored == codec::checksum(checked);
    (sound && version != VERSION).then_some(version)
}

/// Returns the sentence that refuses a manifest of another version.
pub(crate) fn version_text(version: u32) -> String {
    match version > VERSION {
        true => format!(
            "the manifest has version {version}, but this program knows versions up to {VERSION}; \
             use a later version"
        ),
        false => format!(
            "the manifest has version {version} of an earlier release, but this program reads only \
             version {VERSION}; dump the database with that release and load the dump into a new \
             one"
        ),
    }
}

/// Returns the generation in a header, if there is one, without validating the rest.
pub(crate) fn generation_of(bytes: &[u8]) -> Option<u64> {
    let rest = bytes.strip_prefix(&MAGIC)?.get(4..)?;
    rest.first_chunk().map(|word| u64::from_le_bytes(*word))
}

/// Decodes a header; `base` is its offset for errors.
pub(crate) fn decode_header(bytes: &[u8], base: u64) -> Result<Header, DecodeError> {
    let refuse = |at: u64, expected: String, found: String| {
        Err(DecodeError::new(
            "manifest header",
            base + at,
            expected,
            found,
        ))
    };
    let mut r = Reader::new("manifest header", base, bytes);
    let checked = r.bytes(60)?;
    let (stored, computed) = (r.u32()?, codec::checksum(checked));
    let mut r = Reader::new("manifest header", base, checked);
    let magic = r.bytes(4)?;
    if magic != MAGIC {
        return refuse(0, "magic \"TMAN\"".into(), format!("{magic:02x?}"));
    }
    if stored != computed {
        return refuse(60, codec::hex(computed), codec::hex(stored));
    }
    let version = r.u32()?;
    if version != VERSION {
        return refuse(4, format!("version {VERSION}"), version.to_string());
    }
    let header = Header {
        generation: r.u64()?,
        file_bytes: r.u64()?,
        db: DbId::at(&checked[AT_DATABASE..]).unwrap_or_default(),
    };
    if checked[AT_ZERO..].iter().any(|&b| b != 0) {
        return refuse(AT_ZERO as u64, "zeros".into(), "other bytes".into());
    }
    Ok(header)
}

/// Fails unless the bytes are the header of `generation`; `base` is their offset for errors.
pub(crate) fn check_header(
    bytes: &[u8],
    generation: u64,
    base: u64,
) -> Result<Header, DecodeError> {
    let header = decode_header(bytes, base)?;
    if header.generation == generation {
        return Ok(header);
    }
    let expected = format!("generation {generation}");
    let found = header.generation.to_string();
    Err(DecodeError::new(
        "manifest header",
        base + 8,
        expected,
        found,
    ))
}

/// The fixed part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) checksum: u32,
    pub(crate) payload_bytes: u32,
    pub(crate) generation: u64,
    pub(crate) number: u64,
    pub(crate) change_count: u32,
}

impl RecordHeader {
    /// Fills in the header at the start of `record`, which has space for it before the changes.
    pub(crate) fn finish(record: &mut [u8], generation: u64, number: u64, change_count: u32) {
        let Some((head, payload)) = record.split_first_chunk_mut::<RECORD_HEADER_BYTES>() else {
            return;
        };
        head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[8..16].copy_from_slice(&generation.to_le_bytes());
        head[16..24].copy_from_slice(&number.to_le_bytes());
        head[24..28].copy_from_slice(&change_count.to_le_bytes());
        head[28..32].copy_from_slice(&0u32.to_le_bytes());
        let crc = codec::checksum_append(codec::checksum(&head[4..]), payload);
        head[0..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Returns whether a header states this generation.
    pub(crate) fn is_of(head: &[u8; RECORD_HEADER_BYTES], generation: u64) -> bool {
        head[8..16] == generation.to_le_bytes()
    }

    /// Decodes a header; nothing in it is trusted until the checksum has been verified.
    pub(crate) fn decode(bytes: &[u8], base: u64) -> Result<RecordHeader, DecodeError> {
        let mut r = Reader::new("manifest record", base, bytes);
        let header = RecordHeader {
            checksum: r.u32()?,
            payload_bytes: r.u32()?,
            generation: r.u64()?,
            number: r.u64()?,
            change_count: r.u32()?,
        };
        let at = r.clone();
        match r.u32()? {
            0 => Ok(header),
            other => Err(at.refuse("zeros", other.to_string())),
        }
    }

    /// Returns the size of the record without padding.
    pub(crate) fn record_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + u64::from(self.payload_bytes)
    }
}

/// Computes the checksum of a whole record.
pub(crate) fn record_checksum(record: &[u8]) -> u32 {
    codec::checksum(&record[4..])
}
