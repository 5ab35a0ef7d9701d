//! Heaps: their bytes in the pool, and their items in the manifest.
//!
//! A heap is one extent: a header, entries one after another without padding, and an array with the
//! offset of each entry, in order. Little-endian; nothing changes after the heap is named.
//!
//! |        at | size | field       |                                                           |
//! |-----------|------|-------------|-----------------------------------------------------------|
//! |         0 |    4 | magic       | "THEA"                                                    |
//! |         4 |    4 | version     | 1                                                         |
//! |         8 |    8 | heap id     | that of its memtable                                      |
//! |        16 |    8 | entries     | their number                                              |
//! |        24 |    8 | index       | the offset of the array from the start of the heap        |
//! |        32 |   24 | zero        |                                                           |
//! |        56 |    4 | index check | crc32c of the array                                       |
//! |        60 |    4 | checksum    | crc32c of bytes 0..60                                     |
//!
//! |   at | size | field      |                                                                 |
//! |------|------|------------|-----------------------------------------------------------------|
//! |    0 |    4 | checksum   | crc32c of bytes 4..32, the key and the value                    |
//! |    4 |    4 | keyspace   |                                                                 |
//! |    8 |    8 | seq, kind  | sequence number << 8, entry kind in the low byte                |
//! |   16 |    8 | expiry     | milliseconds since 1970, or 0; the kind of such a put is `Put`  |
//! |   24 |    4 | key size   |                                                                 |
//! |   28 |    4 | value size |                                                                 |
//! |   32 |    k | key        |                                                                 |
//! | 32+k |    v | value      |                                                                 |
//!
//! The bytes of an item, all varints: offset and length of the extent, entries, bytes, first and
//! last sequence number, and the keyspace and key up to which it is drained, exclusive; none of
//! both if it is not drained at all.

use std::cmp::Ordering;
use std::sync::Arc;

use terrace_media::{Region, Span};

use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::expiry::Value;
use crate::parts::iter::EntryView;
use crate::parts::key::{Place, Target, compare_keys};
use crate::parts::manifest::item::{self, Field, Item, Owner, put_numbers, put_place};
use crate::types::SeqNo;

/// The size of the header, and of the fixed part of an entry.
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const ENTRY_BYTES: usize = 32;
/// The size of an offset in the array.
pub(super) const SLOT_BYTES: usize = 8;
const MAGIC: [u8; 4] = *b"THEA";
const VERSION: u32 = 1;
const CRC_AT: usize = 60;
const INDEX_CRC_AT: usize = 56;
const _: () = assert!(CRC_AT + 4 == HEADER_BYTES, "the checksum ends the header");
const _: () = assert!(ENTRY_BYTES == 4 + 4 + 8 + 8 + 4 + 4, "six fields");
const _: () = assert!(SLOT_BYTES == size_of::<u64>(), "an offset is a word");
// A flush needs no more space than the extent that was reserved for its list.
const _: () = assert!(
    ENTRY_BYTES + SLOT_BYTES <= crate::parts::skiplist::layout::HEADER_BYTES + 8,
    "an entry is no larger than its node in the memtable"
);

/// The header of a heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: u64,
    pub(super) entries: u64,
    pub(super) index: u64,
    pub(super) index_crc: u32,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.entries.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.index.to_le_bytes());
        bytes[INDEX_CRC_AT..CRC_AT].copy_from_slice(&self.index_crc.to_le_bytes());
        let crc = codec::checksum(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns the length of the heap.
    pub(super) fn end(&self) -> u64 {
        self.index
            .saturating_add(self.entries.saturating_mul(SLOT_BYTES as u64))
    }

    /// Decodes the header of a heap at `off` whose extent has `len` bytes.
    pub(super) fn decode(bytes: &[u8], off: u64, len: u64) -> Result<Header, DecodeError> {
        let mut r = Reader::new("heap header", off, bytes);
        let all = r.clone().bytes(HEADER_BYTES)?;
        let start = r.clone();
        if r.bytes(4)? != MAGIC || r.u32()? != VERSION {
            return Err(start.refuse("a heap of version 1", "something else"));
        }
        let (id, entries, index) = (r.u64()?, r.u64()?, r.u64()?);
        r.bytes(INDEX_CRC_AT - 32)?;
        let index_crc = r.u32()?;
        let (found, computed) = (r.u32()?, codec::checksum(&all[..CRC_AT]));
        if found != computed {
            return Err(start.refuse(codec::hex(computed), codec::hex(found)));
        }
        let end = entries
            .checked_mul(SLOT_BYTES as u64)
            .and_then(|slots| slots.checked_add(index));
        if index < HEADER_BYTES as u64 || end.is_none_or(|end| end > len) {
            return Err(start.refuse(format!("an index within {len} bytes"), "another"));
        }
        Ok(Header {
            id,
            entries,
            index,
            index_crc,
        })
    }
}

/// Appends an entry to `out`.
pub(super) fn put_entry(out: &mut Vec<u8>, entry: &EntryView<'_>, value: Value<'_>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&entry.keyspace.to_le_bytes());
    out.extend_from_slice(&(entry.seq << 8 | u64::from(entry.kind)).to_le_bytes());
    out.extend_from_slice(&value.expiry.to_le_bytes());
    out.extend_from_slice(&(entry.key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(value.bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(entry.key);
    out.extend_from_slice(value.bytes);
    let crc = codec::checksum(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// An entry as read from its bytes, whose sizes are checked, and whose checksum is not.
pub(super) struct Entry<'a> {
    pub(super) view: EntryView<'a>,
    value: Value<'a>,
    off: u64,
    bytes: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Reads the entry at `off`, which ends before `end`.
    pub(super) fn read(region: &'a Region, off: u64, end: u64) -> Result<Entry<'a>, DecodeError> {
        let left = end.saturating_sub(off);
        let outside = || DecodeError::new("heap", off, "an entry in its heap", "none");
        let head = region.bytes(off, ENTRY_BYTES).ok_or_else(outside)?;
        let len = Entry::length(head, off)?;
        if len > left {
            return Err(outside());
        }
        let bytes = region.bytes(off, len as usize).ok_or_else(outside)?;
        Entry::decode(bytes, off)
    }

    /// Returns the length of the entry whose first bytes are given.
    pub(super) fn length(head: &[u8], off: u64) -> Result<u64, DecodeError> {
        let mut r = Reader::new("entry of a heap", off, head);
        r.bytes(ENTRY_BYTES - 8)?;
        let sizes = (r.u32()?, r.u32()?);
        Ok(ENTRY_BYTES as u64 + u64::from(sizes.0) + u64::from(sizes.1))
    }

    /// Decodes an entry from all of its bytes.
    pub(super) fn decode(bytes: &'a [u8], off: u64) -> Result<Entry<'a>, DecodeError> {
        let mut r = Reader::new("entry of a heap", off, bytes);
        let _checksum = r.u32()?;
        let (keyspace, seq_kind, expiry) = (r.u32()?, r.u64()?, r.u64()?);
        let (key_len, _) = (r.u32()? as usize, r.u32()?);
        let key = r.bytes(key_len)?;
        let value = r.bytes(r.remaining())?;
        let (seq, kind) = (seq_kind >> 8, seq_kind as u8);
        let view = EntryView {
            keyspace,
            key,
            seq,
            kind,
        };
        let value = Value {
            bytes: value,
            expiry,
        };
        Ok(Entry {
            view,
            value,
            off,
            bytes,
        })
    }

    /// Returns the value, after verifying the checksum.
    pub(super) fn checked_value(&self) -> Result<Value<'a>, DecodeError> {
        let mut r = Reader::new("checksum of an entry of a heap", self.off, self.bytes);
        let (found, computed) = (r.u32()?, codec::checksum(&self.bytes[4..]));
        match found == computed {
            true => Ok(self.value),
            false => Err(r.refuse(codec::hex(computed), codec::hex(found))),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn compare(&self, target: &Target<'_>) -> Ordering {
        let keys = || compare_keys(self.view.key, target.key);
        let keyspaces = self.view.keyspace.cmp(&target.keyspace);
        let seqs = || target.seq.cmp(&self.view.seq);
        keyspaces.then_with(keys).then_with(seqs)
    }
}

/// Heaps as items of the manifest.
pub(crate) static HEAP: Owner = Owner {
    tag: 100,
    name: "heap",
    in_pool: true,
    numbered: true,
    decode: |id, r| Ok(Arc::new(HeapMeta::decode(id, r)?)),
    check: |_| Ok(()),
    #[cfg(feature = "decoders")]
    samples: || {
        let span = Span {
            off: 1 << 20,
            len: 1 << 16,
        };
        let (entries, bytes, seqs) = (10, 900, (5, 14));
        vec![Arc::new(HeapMeta {
            id: 3,
            span,
            entries,
            bytes,
            seqs,
            drained: Some((1, b"key".to_vec())),
        })]
    },
};

/// A heap in the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeapMeta {
    pub(super) id: u64,
    pub(super) span: Span,
    pub(super) entries: u64,
    /// From the start of the extent to the end of the array.
    pub(super) bytes: u64,
    pub(super) seqs: (SeqNo, SeqNo),
    /// The place before which everything is in the bottom too.
    pub(super) drained: Option<Place>,
}

impl HeapMeta {
    /// Returns the bytes of the entries, from the start of the extent.
    pub(super) fn index(&self) -> u64 {
        self.bytes
            .saturating_sub(self.entries.saturating_mul(SLOT_BYTES as u64))
    }

    fn decode(id: u64, r: &mut Reader<'_>) -> Result<HeapMeta, DecodeError> {
        let span = item::span(r)?;
        let (entries, bytes) = (item::amount(r)?, item::amount(r)?);
        let seqs = (item::seq(r)?, item::seq(r)?);
        let drained = match r.remaining() == 0 {
            true => None,
            false => Some(item::place(r)?),
        };
        Ok(HeapMeta {
            id,
            span,
            entries,
            bytes,
            seqs,
            drained,
        })
    }
}

impl Item for HeapMeta {
    fn owner(&self) -> &'static Owner {
        &HEAP
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_numbers(out, &[self.span.off, self.span.len, self.entries]);
        put_numbers(out, &[self.bytes, self.seqs.0, self.seqs.1]);
        self.drained.iter().for_each(|place| put_place(out, place));
    }

    fn spans(&self) -> Vec<Span> {
        vec![self.span]
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn seqs(&self) -> Option<(SeqNo, SeqNo)> {
        Some(self.seqs)
    }

    fn fields(&self) -> Vec<(&'static str, Field)> {
        let mut fields = vec![
            ("entries", Field::Number(self.entries)),
            ("bytes", Field::Number(self.bytes)),
            ("seq_first", Field::Number(self.seqs.0)),
            ("seq_last", Field::Number(self.seqs.1)),
            ("extent", self.span.into()),
        ];
        fields.extend(self.drained.iter().map(|place| ("drained", place.into())));
        fields
    }
}
