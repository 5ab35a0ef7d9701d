//! The SSTable format: blocks one after another, and a footer in the last 128 bytes of the file.
//!
//! ```text
//! data blocks | range-delete block | filter block | index blocks | properties block | footer
//! ```
//!
//! Every block is a payload and a trailer of 5 bytes:
//!
//! | at | size | field    |                                                                |
//! |----|------|----------|----------------------------------------------------------------|
//! |  0 |    1 | form     | low 4 bits: compression (0 none, 1 LZ4, 2 Zstandard);          |
//! |    |      |          | high 4 bits: kind of block (1 data, 2 index, 3 filter,         |
//! |    |      |          | 4 range deletes, 5 properties)                                 |
//! |  1 |    4 | checksum | crc32c of payload, form, table number (8), offset of block (8) |
//!
//! A compressed payload is the size of the content (4 bytes) and the compressed content. The number
//! and offset in the checksum exclude blocks of another table or from another offset.
//!
//! The content of data, index and range-delete blocks is entries, then the offset of each restart
//! (4 bytes), then the number of restarts (4 bytes). An entry:
//!
//! | field      | size   |                                                                      |
//! |------------|--------|----------------------------------------------------------------------|
//! | shared     | varint | bytes at the front of the stored key that the entry before has too;  |
//! |            |        | 0 at a restart, else as many as possible                             |
//! | unshared   | varint | bytes of the stored key that follow here                             |
//! | value size | varint |                                                                      |
//! | tag        | 8      | sequence number in the high 56 bits; bit 7: an expiry follows; low   |
//! |            |        | 6 bits: the kind (1 put, 2 delete, 3 range delete, 4 value pointer)  |
//! | expiry     | 8 or 0 | milliseconds since 1970, after which the entry counts as deleted     |
//! | key        | n      | the unshared bytes                                                   |
//! | value      | n      |                                                                      |
//!
//! A stored key is the keyspace, 4 bytes in big-endian order, and the user key. Entries ascend by
//! stored key, bytewise, then descend by sequence number.
//!
//! - Data block: the table's entries. An entry longer than a block gets its own block.
//! - Index block: one entry per block, each a restart. Its key is at or after the last entry of
//!   that block and before the first of the next; sequence number 0 sorts after all versions of its
//!   key. Its value is a handle: offset and payload size, both varints. With two levels, lower
//!   blocks contain the handles of data blocks, and the upper block contains theirs.
//! - Range-delete block: fragments. The stored key is the first key of a fragment, the value is its
//!   end, an exclusive user key in the same keyspace, and the tag's sequence number is the one
//!   below which it deletes. Fragments with the same start have the same end; others do not
//!   overlap.
//! - Filter block: the format of `parts/filter` over the hashes of all user keys.
//! - Properties block: records of id (varint), size (varint) and bytes, ascending by id. Readers
//!   skip unknown ids. The ids are in `property`. Numbers are varints; a place is a keyspace
//!   (varint), a sequence number (varint) and a user key.
//!
//! The footer:
//!
//! |  at | size | field         |                                                        |
//! |-----|------|---------------|--------------------------------------------------------|
//! |   0 |    4 | magic         | "TSST"                                                 |
//! |   4 |    4 | version       | 2; every version has a footer of this length           |
//! |   8 |    8 | table number  | of the file that the table was written to              |
//! |  16 |    8 | file bytes    | with the footer                                        |
//! |  24 |    4 | features      | bits that a reader must know: 1 range deletes,         |
//! |     |      |               | 2 index of two levels, 4 expiries, 8 value pointers    |
//! |  28 |    4 | zero          |                                                        |
//! |  32 |   12 | index         | handle of its only or upper block: offset (8), size (4) |
//! |  44 |   12 | filter        | handle, zero for none                                  |
//! |  56 |   12 | range deletes | handle, zero for none                                  |
//! |  68 |   12 | properties    | handle                                                 |
//! |  80 |   16 | database      | the id of the database that wrote the table            |
//! |  96 |   28 | zero          |                                                        |
//! | 124 |    4 | checksum      | crc32c of bytes 0..124                                 |

pub(crate) use crate::types::Compression;

use crate::parts::codec::{self, DecodeError, Reader};
use crate::types::DbId;

/// The size of the footer.
pub(crate) const FOOTER_BYTES: usize = 128;
/// The size of the trailer of a block.
pub(crate) const TRAILER_BYTES: usize = 5;
/// The size of the keyspace at the start of a stored key.
pub(crate) const KEYSPACE_BYTES: usize = 4;
/// The size of a restart's offset, of the restart count, and of the size before compressed content.
pub(crate) const WORD_BYTES: usize = 4;
/// The maximum size of a block's content. Sizes and offsets in it fit in 32 bits.
pub(crate) const CONTENT_BYTES_MAX: usize = u32::MAX as usize - (1 << 20);
/// The maximum size of a value. A block has space for it and for the longest key.
pub(crate) const VALUE_BYTES_MAX: usize = CONTENT_BYTES_MAX - (1 << 20);
/// The maximum number of bytes of an entry besides its key and value.
pub(crate) const ENTRY_OVERHEAD_MAX: usize = 3 * codec::VARINT_BYTES_MAX + 16;

/// Kinds of entries beyond those of `EntryKind`.
pub(crate) mod kind {
    /// A range delete, only in the range-delete block.
    pub(crate) const RANGE_DELETE: u8 = 3;
    /// A value in a value file. The entry's value is a pointer to it: `parts/values`.
    pub(crate) const VALUE_POINTER: u8 = 4;
}

/// Ids of the records in the properties block.
pub(crate) mod property {
    pub(crate) const ENTRY_COUNT: u64 = 1;
    pub(crate) const TOMBSTONE_COUNT: u64 = 2;
    pub(crate) const EXPIRING_COUNT: u64 = 3;
    pub(crate) const RANGE_DELETE_COUNT: u64 = 4;
    pub(crate) const KEY_COUNT: u64 = 5;
    pub(crate) const KEY_BYTES: u64 = 6;
    pub(crate) const VALUE_BYTES: u64 = 7;
    pub(crate) const DATA_BLOCK_COUNT: u64 = 8;
    pub(crate) const DATA_BYTES: u64 = 9;
    pub(crate) const CONTENT_BYTES: u64 = 10;
    pub(crate) const INDEX_BYTES: u64 = 11;
    pub(crate) const FILTER_BYTES: u64 = 12;
    pub(crate) const SEQ_SMALLEST: u64 = 13;
    pub(crate) const SEQ_LARGEST: u64 = 14;
    pub(crate) const EXPIRY_SMALLEST: u64 = 15;
    pub(crate) const EXPIRY_LARGEST: u64 = 16;
    pub(crate) const SMALLEST: u64 = 17;
    pub(crate) const LARGEST: u64 = 18;
    pub(crate) const RANGES_BEGIN: u64 = 19;
    pub(crate) const RANGES_END: u64 = 20;
    pub(crate) const COMPRESSION: u64 = 21;
    pub(crate) const VALUE_POINTER_COUNT: u64 = 22;
}

pub(crate) const MAGIC: [u8; 4] = *b"TSST";
const VERSION: u32 = 2;
const KIND_MASK: u64 = 0x3f;
const RESERVED_BIT: u64 = 0x40;
const EXPIRY_BIT: u64 = 0x80;
const FEATURES_KNOWN: u32 =
    Features::RANGE_DELETES | Features::TWO_LEVELS | Features::EXPIRIES | Features::VALUE_POINTERS;
const AT_DATABASE: usize = 80;
const ZERO_FROM: usize = AT_DATABASE + DbId::BYTES;
const CHECKSUM_AT: usize = 124;

const _: () = assert!(AT_DATABASE == 32 + 4 * Handle::FOOTER_BYTES, "four handles");
const _: () = assert!(CHECKSUM_AT + 4 == FOOTER_BYTES, "the checksum comes last");
const _: () = assert!(TRAILER_BYTES == 1 + 4, "form and checksum");
const _: () = assert!(
    crate::types::KEY_BYTES_MAX + KEYSPACE_BYTES + ENTRY_OVERHEAD_MAX + 2 * WORD_BYTES < 1 << 20,
    "the longest key and the longest value fit into a block"
);
const _: () = assert!(crate::types::SEQ_MAX <= u64::MAX >> 8, "tags hold any seq");
const _: () = assert!(
    CONTENT_BYTES_MAX + TRAILER_BYTES + WORD_BYTES <= u32::MAX as usize,
    "handles hold any block"
);

/// The purpose of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlockKind {
    Data = 1,
    Index = 2,
    Filter = 3,
    RangeDeletes = 4,
    Properties = 5,
}

impl BlockKind {
    fn from_raw(raw: u8) -> Option<BlockKind> {
        use BlockKind::{Data, Filter, Index, Properties, RangeDeletes};
        let all = [Data, Index, Filter, RangeDeletes, Properties];
        all.into_iter().find(|kind| *kind as u8 == raw)
    }
}

/// The location of a block: the offset and the size of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Handle {
    pub(crate) offset: u64,
    pub(crate) size: u32,
}

impl Handle {
    const FOOTER_BYTES: usize = 12;

    /// Returns the size of the block in the file.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.size as usize + TRAILER_BYTES
    }

    /// Returns the offset at which the next block begins.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.stored_bytes() as u64)
    }

    /// Appends the handle as the value of an index entry.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        codec::put_varint(out, self.offset);
        codec::put_varint(out, u64::from(self.size));
    }

    /// Decodes the value of an index entry at `base`.
    pub(crate) fn decode(value: &[u8], base: u64) -> Result<Handle, DecodeError> {
        let mut r = Reader::new("SSTable index entry", base, value);
        let handle = Handle {
            offset: r.varint()?,
            size: r.varint_u32()?,
        };
        r.end()?;
        Ok(handle)
    }
}

/// Encodes the trailer of a payload at `offset` of table `number`.
pub(crate) fn encode_trailer(
    payload: &[u8],
    compression: Compression,
    kind: BlockKind,
    number: u64,
    offset: u64,
) -> [u8; TRAILER_BYTES] {
    let form = compression as u8 | (kind as u8) << 4;
    let mut trailer = [form, 0, 0, 0, 0];
    let crc = block_checksum(codec::checksum(payload), form, number, offset);
    trailer[1..].copy_from_slice(&crc.to_le_bytes());
    trailer
}

fn block_checksum(payload_crc: u32, form: u8, number: u64, offset: u64) -> u32 {
    let mut place = [0u8; 17];
    place[0] = form;
    place[1..9].copy_from_slice(&number.to_le_bytes());
    place[9..17].copy_from_slice(&offset.to_le_bytes());
    codec::checksum_append(payload_crc, &place)
}

/// Decodes the kind of block and the compression of a form byte, if it is valid.
#[inline]
pub(crate) fn form_of(form: u8) -> Option<(BlockKind, Compression)> {
    Some((
        BlockKind::from_raw(form >> 4)?,
        Compression::from_raw(form & 0xf)?,
    ))
}

/// Returns the kind of a block if `trailer` matches its payload, table number and offset.
#[inline]
pub(crate) fn ends_block(
    payload_crc: u32,
    trailer: &[u8; TRAILER_BYTES],
    number: u64,
    offset: u64,
) -> Option<BlockKind> {
    let [form, checksum @ ..] = *trailer;
    let (kind, _) = form_of(form)?;
    let computed = block_checksum(payload_crc, form, number, offset);
    (computed == u32::from_le_bytes(checksum)).then_some(kind)
}

/// Accepts only a block of this kind at this place. Returns the payload and its compression.
pub(crate) fn check_block(
    stored: &[u8],
    kind: BlockKind,
    number: u64,
    offset: u64,
) -> Result<(&[u8], Compression), DecodeError> {
    let what = "SSTable block";
    let Some((payload, trailer)) = stored.split_last_chunk::<TRAILER_BYTES>() else {
        let expected = format!("{TRAILER_BYTES} bytes or more");
        return Err(DecodeError::new(what, offset, expected, "fewer"));
    };
    let [form, checksum @ ..] = *trailer;
    let found = u32::from_le_bytes(checksum);
    let computed = block_checksum(codec::checksum(payload), form, number, offset);
    if computed != found {
        let expected = format!("checksum {}", codec::hex(computed));
        return Err(DecodeError::new(what, offset, expected, codec::hex(found)));
    }
    if form >> 4 != kind as u8 {
        let found = format!("a block of kind {}", form >> 4);
        return Err(DecodeError::new(what, offset, format!("{kind:?}"), found));
    }
    match Compression::from_raw(form & 0xf) {
        Some(compression) => Ok((payload, compression)),
        None => {
            let found = format!("compression {}", form & 0xf);
            Err(DecodeError::new(what, offset, "a known compression", found))
        }
    }
}

/// A malformed entry: its offset in its block's content, and the expected value. Small, because
/// every step of a scan may return it; `Block` converts it into a `DecodeError`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) at: u32,
    pub(crate) expected: &'static str,
}

impl Malformed {
    #[cold]
    pub(crate) fn new(at: usize, expected: &'static str) -> Malformed {
        Malformed {
            at: at as u32,
            expected,
        }
    }
}

/// The sequence number, the kind and the expiry flag, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tag(u64);

impl Tag {
    /// Creates a tag. The writer has checked that kind (6 bits) and sequence number (56) fit.
    #[inline]
    pub(crate) fn new(seq: u64, kind: u8, expires: bool) -> Tag {
        Tag(seq << 8 | (u64::from(kind) & KIND_MASK) | if expires { EXPIRY_BIT } else { 0 })
    }

    /// The sequence number.
    #[inline(always)]
    pub(crate) fn seq(self) -> u64 {
        self.0 >> 8
    }

    /// The kind.
    #[inline(always)]
    pub(crate) fn kind(self) -> u8 {
        (self.0 & KIND_MASK) as u8
    }

    #[inline(always)]
    fn expires(self) -> bool {
        self.0 & EXPIRY_BIT != 0
    }
}

/// The fixed part of an entry, and the offsets of its key and value in the content of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryHead {
    pub(crate) shared: usize,
    pub(crate) tag: Tag,
    /// The expiry, or 0 if there is none.
    pub(crate) expiry: u64,
    pub(crate) key_at: usize,
    pub(crate) value_at: usize,
    pub(crate) end: usize,
}

/// Appends the fixed part of an entry. An expiry of 0 means none.
#[inline]
pub(crate) fn put_entry_head(
    out: &mut Vec<u8>,
    (shared, unshared, value_bytes): (usize, usize, usize),
    (seq, kind, expiry): (u64, u8, u64),
) {
    codec::put_varint(out, shared as u64);
    codec::put_varint(out, unshared as u64);
    codec::put_varint(out, value_bytes as u64);
    let tag = Tag::new(seq, kind, expiry != 0);
    out.extend_from_slice(&tag.0.to_le_bytes());
    if expiry != 0 {
        out.extend_from_slice(&expiry.to_le_bytes());
    }
}

/// Decodes a varint of at most 32 bits at `at`. Returns the value and its end.
#[inline]
fn varint(entries: &[u8], at: usize) -> Result<(usize, usize), Malformed> {
    let mut value = 0u64;
    // BOUND: at most five groups.
    for (i, &byte) in entries.get(at..).unwrap_or(&[]).iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 && value <= u64::from(u32::MAX) {
            return Ok((value as usize, at + i + 1));
        }
    }
    Err(Malformed::new(at, "a varint of at most 32 bits"))
}

/// Decodes the fixed part of the entry at `at`. `entries` ends where the last entry does.
#[inline(always)]
pub(crate) fn entry_head(entries: &[u8], at: usize) -> Result<EntryHead, Malformed> {
    let (shared, unshared, value_bytes, tag_at);
    match entries.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        Some(&[s, u, v, _]) if (s | u | v) < 0x80 => {
            (shared, unshared, value_bytes) = (usize::from(s), usize::from(u), usize::from(v));
            tag_at = at + 3;
        }
        Some(&[s, u, low, high]) if (s | u | high) < 0x80 => {
            (shared, unshared) = (usize::from(s), usize::from(u));
            value_bytes = usize::from(low & 0x7f) | usize::from(high) << 7;
            tag_at = at + 4;
        }
        _ => {
            let mut next = at;
            (shared, next) = varint(entries, next)?;
            (unshared, next) = varint(entries, next)?;
            (value_bytes, tag_at) = varint(entries, next)?;
        }
    }
    let word = |at: usize| {
        let rest = entries.get(at..).and_then(|rest| rest.first_chunk::<8>());
        rest.map(|bytes| u64::from_le_bytes(*bytes))
    };
    let Some(tag) = word(tag_at) else {
        return Err(Malformed::new(at, "a tag"));
    };
    let tag = Tag(tag);
    let (mut key_at, mut expiry) = (tag_at + 8, 0);
    if tag.0 & (EXPIRY_BIT | RESERVED_BIT) != 0 {
        expiry = match word(key_at) {
            Some(expiry) if tag.expires() && tag.0 & RESERVED_BIT == 0 => expiry,
            _ => return Err(Malformed::new(at, "a tag of known bits, and its expiry")),
        };
        key_at += 8;
    }
    let value_at = key_at + unshared;
    let end = value_at + value_bytes;
    if end > entries.len() {
        return Err(Malformed::new(at, "key and value inside the block"));
    }
    Ok(EntryHead {
        shared,
        tag,
        expiry,
        key_at,
        value_at,
        end,
    })
}

/// Splits a stored key into the keyspace and the user key.
#[inline(always)]
pub(crate) fn split_key(stored: &[u8]) -> Option<(u32, &[u8])> {
    let (keyspace, key) = stored.split_first_chunk::<KEYSPACE_BYTES>()?;
    Some((u32::from_be_bytes(*keyspace), key))
}

/// Returns the first bytes of every stored key of a keyspace.
#[inline(always)]
pub(crate) fn keyspace_bytes(keyspace: u32) -> [u8; KEYSPACE_BYTES] {
    keyspace.to_be_bytes()
}

/// Reads the 4-byte number at `at`.
#[inline(always)]
pub(crate) fn word(content: &[u8], at: usize) -> Option<u32> {
    let bytes = content.get(at..)?.first_chunk::<WORD_BYTES>()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Appends a 4-byte number.
pub(crate) fn put_word(out: &mut Vec<u8>, word: u32) {
    out.extend_from_slice(&word.to_le_bytes());
}

/// The feature bits of the footer, all of which a reader must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Features(pub(crate) u32);

impl Features {
    pub(crate) const RANGE_DELETES: u32 = 1;
    pub(crate) const TWO_LEVELS: u32 = 2;
    pub(crate) const EXPIRIES: u32 = 4;
    pub(crate) const VALUE_POINTERS: u32 = 8;

    /// Returns whether the bit is set.
    pub(crate) fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

/// The footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) db: DbId,
    pub(crate) number: u64,
    pub(crate) file_bytes: u64,
    pub(crate) features: Features,
    pub(crate) index: Handle,
    pub(crate) filter: Option<Handle>,
    pub(crate) range_deletes: Option<Handle>,
    pub(crate) properties: Handle,
}

/// The reason that a footer was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FooterError {
    /// The bytes are not those that were written.
    Damaged(DecodeError),
    /// A later version wrote the table: the version or features found, and those known here.
    Newer { found: String, known: String },
}

impl From<DecodeError> for FooterError {
    fn from(e: DecodeError) -> FooterError {
        FooterError::Damaged(e)
    }
}

/// Returns the database and the table number in a footer, checking only the magic and the version.
pub(crate) fn table_owner(bytes: &[u8]) -> Option<(DbId, u64)> {
    let rest = bytes
        .strip_prefix(&MAGIC)?
        .strip_prefix(&VERSION.to_le_bytes())?;
    let number = u64::from_le_bytes(*rest.first_chunk()?);
    Some((DbId::at(rest.get(AT_DATABASE - 8..)?)?, number))
}

impl Footer {
    pub(crate) fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut out = Vec::with_capacity(FOOTER_BYTES);
        out.extend_from_slice(&MAGIC);
        put_word(&mut out, VERSION);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.file_bytes.to_le_bytes());
        put_word(&mut out, self.features.0);
        put_word(&mut out, 0);
        let optional = [self.filter, self.range_deletes].map(Option::unwrap_or_default);
        for handle in [self.index, optional[0], optional[1], self.properties] {
            out.extend_from_slice(&handle.offset.to_le_bytes());
            put_word(&mut out, handle.size);
        }
        out.extend_from_slice(&self.db.0);
        let mut bytes = [0u8; FOOTER_BYTES];
        bytes[..out.len()].copy_from_slice(&out);
        let crc = codec::checksum(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Accepts only the footer of table `number` in a file of `file_bytes`.
    pub(crate) fn decode(
        bytes: &[u8],
        number: u64,
        file_bytes: u64,
    ) -> Result<Footer, FooterError> {
        let what = "SSTable footer";
        let base = file_bytes.saturating_sub(FOOTER_BYTES as u64);
        let mut r = Reader::new(what, base, bytes);
        let checked = r.bytes(CHECKSUM_AT)?;
        let (stored, computed) = (r.u32()?, codec::checksum(checked));
        let mut r = Reader::new(what, base, checked);
        let refuse = |at: u64, expected: String, found: String| {
            FooterError::Damaged(DecodeError::new(what, base + at, expected, found))
        };
        let magic = r.bytes(4)?;
        if magic != MAGIC {
            return Err(refuse(0, "magic \"TSST\"".into(), format!("{magic:02x?}")));
        }
        if stored != computed {
            return Err(refuse(124, codec::hex(computed), codec::hex(stored)));
        }
        let version = r.u32()?;
        if version != VERSION {
            let (found, known) = (format!("version {version}"), format!("version {VERSION}"));
            return Err(FooterError::Newer { found, known });
        }
        let found = r.u64()?;
        if found != number {
            let expected = format!("table {number}");
            return Err(refuse(8, expected, format!("table {found}")));
        }
        let found = r.u64()?;
        if found != file_bytes {
            return Err(refuse(16, format!("{found} bytes"), file_bytes.to_string()));
        }
        let features = Features(r.u32()?);
        if features.0 & !FEATURES_KNOWN != 0 {
            let known = format!("features {FEATURES_KNOWN:#x}");
            let found = format!("features {:#x}", features.0);
            return Err(FooterError::Newer { found, known });
        }
        if r.u32()? != 0 || checked[ZERO_FROM..].iter().any(|&b| b != 0) {
            return Err(refuse(28, "zeros".into(), "other bytes".into()));
        }
        let mut handle = || -> Result<Option<Handle>, FooterError> {
            let at = r.offset();
            let handle = Handle {
                offset: r.u64()?,
                size: r.u32()?,
            };
            if handle.end() > base {
                let found = format!("{handle:?}");
                return Err(DecodeError::new(what, at, "a block before the footer", found).into());
            }
            Ok((handle != Handle::default()).then_some(handle))
        };
        let (index, filter, range_deletes) = (handle()?, handle()?, handle()?);
        let (Some(index), Some(properties)) = (index, handle()?) else {
            return Err(refuse(32, "an index and properties".into(), "none".into()));
        };
        Ok(Footer {
            db: DbId::at(&checked[AT_DATABASE..]).unwrap_or_default(),
            number,
            file_bytes,
            features,
            index,
            filter,
            range_deletes,
            properties,
        })
    }
}
