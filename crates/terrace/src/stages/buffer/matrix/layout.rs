//! Rows: their bytes in the pool, and their items in the manifest.
//!
//! A row (RowTable, section 3.1) is one flushed memtable: its entries in key order, in groups of
//! pages, and a sorted array with a slot for each entry. Each group is an extent of its own, so
//! that it can be freed as soon as a column has drained its keys. The array is in another extent,
//! or behind the entries of the last group if it fits there. Little-endian; nothing changes after
//! the row is named.
//!
//! A group:
//!
//! | at | size | field    |                                                    |
//! |----|------|----------|----------------------------------------------------|
//! |  0 |    4 | magic    | "TMXG"                                             |
//! |  4 |    4 | version  | 1                                                  |
//! |  8 |    8 | row id   | that of its memtable                               |
//! | 16 |    4 | number   | 0 for the first group of the row                   |
//! | 20 |    4 | end      | of its entries, from the start of the group        |
//! | 24 |   36 | zero     |                                                    |
//! | 60 |    4 | checksum | crc32c of bytes 0..60                              |
//!
//! It is followed by its entries without padding:
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
//! The array: a header, and a slot for each entry in key order, range deletes last.
//!
//! | at | size | field       |                                                              |
//! |----|------|-------------|--------------------------------------------------------------|
//! |  0 |    4 | magic       | "TMXA"                                                       |
//! |  4 |    4 | version     | 1                                                            |
//! |  8 |    8 | row id      |                                                              |
//! | 16 |    8 | entries     | their number                                                 |
//! | 24 |    8 | older       | the id of the row that the forward pointers are for, or 0    |
//! | 32 |    4 | keyspace    | of the common start                                          |
//! | 36 |    1 | common size | at most 19                                                   |
//! | 37 |   19 | common      | the start of all keys of that keyspace, padded with zeros    |
//! | 56 |    4 | slots check | crc32c of the slots                                          |
//! | 60 |    4 | checksum    | crc32c of bytes 0..60                                        |
//!
//! | at | size | field    | of a slot                                                           |
//! |----|------|----------|---------------------------------------------------------------------|
//! |  0 |    8 | front    | the bytes of the key after the common start, the first eight, as a  |
//! |    |      |          | big-endian number, padded with zeros                                |
//! |  8 |    4 | keyspace |                                                                     |
//! | 12 |    4 | group    | the number of the group                                             |
//! | 16 |    4 | offset   | of the entry from the start of the group                            |
//! | 20 |    4 | forward  | the index of the first entry of the older row at or after the key   |
//!
//! The bytes of an item, all varints: entries; bytes of entries and slots; first and last sequence
//! number; the number of the first group that is left, and the offset of the first entry there that
//! is not drained; the number of groups, and of each the offset, the length and the end of its
//! entries; the offset and the length of the array's extent, or 0 if it is in the last group; the
//! offset of the array in its extent; and the keyspace and key up to which the row is drained,
//! exclusive, or nothing.

use std::cmp::Ordering;
use std::sync::Arc;

use terrace_media::{Region, Span};

use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::expiry::Value;
use crate::parts::iter::EntryView;
use crate::parts::key::{Place, Target, compare_keys, key_front};
use crate::parts::manifest::item::{self, Field, Item, Owner, put_numbers, put_place};
use crate::types::SeqNo;

/// The size of the headers, and of the fixed part of an entry.
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const ENTRY_BYTES: usize = 32;
/// The size of a slot in the array.
pub(super) const SLOT_BYTES: usize = 24;
const GROUP_MAGIC: [u8; 4] = *b"TMXG";
const ARRAY_MAGIC: [u8; 4] = *b"TMXA";
const VERSION: u32 = 1;
const CRC_AT: usize = 60;
const COMMON_AT: usize = 37;
const SLOTS_CRC_AT: usize = 56;
/// The longest common start that is recorded.
const COMMON_MAX: usize = SLOTS_CRC_AT - COMMON_AT;
/// More groups than any row has.
const GROUPS_MAX: u64 = 1 << 20;
const _: () = assert!(CRC_AT + 4 == HEADER_BYTES, "the checksum ends the headers");
const _: () = assert!(ENTRY_BYTES == 4 + 4 + 8 + 8 + 4 + 4, "six fields");
const _: () = assert!(SLOT_BYTES == 8 + 4 * 4, "five fields");

fn seal(mut bytes: [u8; HEADER_BYTES], magic: [u8; 4], id: u64) -> [u8; HEADER_BYTES] {
    bytes[0..4].copy_from_slice(&magic);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&id.to_le_bytes());
    let crc = codec::checksum(&bytes[..CRC_AT]);
    bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Checks magic, version and checksum of a header; returns the id and a reader of the rest.
fn unseal<'a>(
    what: &'static str,
    bytes: &'a [u8],
    off: u64,
    magic: [u8; 4],
) -> Result<(u64, Reader<'a>), DecodeError> {
    let mut r = Reader::new(what, off, bytes);
    let start = r.clone();
    let all = r.clone().bytes(HEADER_BYTES)?;
    let mut crc = r.clone();
    crc.bytes(CRC_AT)?;
    let (found, computed) = (crc.u32()?, codec::checksum(&all[..CRC_AT]));
    if r.bytes(4)? != magic {
        return Err(start.refuse("its magic number", "another"));
    }
    if found != computed {
        return Err(start.refuse(codec::hex(computed), codec::hex(found)));
    }
    let version = r.u32()?;
    if version != VERSION {
        return Err(start.refuse(format!("version {VERSION}"), version.to_string()));
    }
    Ok((r.u64()?, r))
}

/// The header of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupHeader {
    pub(super) id: u64,
    pub(super) number: u32,
    pub(super) end: u32,
}

impl GroupHeader {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[16..20].copy_from_slice(&self.number.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.end.to_le_bytes());
        seal(bytes, GROUP_MAGIC, self.id)
    }

    pub(super) fn decode(bytes: &[u8], off: u64) -> Result<GroupHeader, DecodeError> {
        let (id, mut r) = unseal("group header of a row", bytes, off, GROUP_MAGIC)?;
        let (number, end) = (r.u32()?, r.u32()?);
        Ok(GroupHeader { id, number, end })
    }
}

/// The start that all keys of one keyspace in a row have in common. Fronts are of the bytes after
/// it: otherwise a search among keys like "user:000001" would have to read an entry for each
/// comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Common {
    keyspace: u32,
    len: u8,
    bytes: [u8; COMMON_MAX],
}

impl Common {
    /// Returns the common start of all keys between two of a keyspace.
    pub(super) fn of(keyspace: u32, first: &[u8], last: &[u8]) -> Common {
        let both = first.iter().zip(last).take(COMMON_MAX);
        let len = both.take_while(|(a, b)| a == b).count();
        let mut bytes = [0; COMMON_MAX];
        bytes[..len].copy_from_slice(&first[..len]);
        Common {
            keyspace,
            len: len as u8,
            bytes,
        }
    }

    /// Returns the front of a key of the row; `None` if it lacks the common start.
    pub(super) fn front(&self, keyspace: u32, key: &[u8]) -> Option<u64> {
        let front = self.front_of_target(keyspace, key);
        front.others.is_eq().then_some(front.front)
    }

    /// Returns the front of a key that may be in the row.
    #[inline]
    pub(super) fn front_of_target(&self, keyspace: u32, key: &[u8]) -> Front {
        let start = match keyspace == self.keyspace {
            true => &self.bytes[..usize::from(self.len).min(COMMON_MAX)],
            false => &[],
        };
        match key.strip_prefix(start) {
            Some(rest) => Front {
                keyspace,
                others: Ordering::Equal,
                front: key_front(rest),
            },
            None => Front {
                keyspace,
                others: start.cmp(key),
                front: 0,
            },
        }
    }
}

/// The part of a key that slots are compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Front {
    keyspace: u32,
    /// How the keys of the row compare with the key, if it does not have their common start.
    others: Ordering,
    front: u64,
}

/// The header of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArrayHeader {
    pub(super) id: u64,
    pub(super) entries: u64,
    /// The id of the row that the forward pointers are for, or 0.
    pub(super) older: u64,
    pub(super) common: Common,
    pub(super) slots_crc: u32,
}

impl ArrayHeader {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[16..24].copy_from_slice(&self.entries.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.older.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.common.keyspace.to_le_bytes());
        bytes[36] = self.common.len;
        bytes[COMMON_AT..SLOTS_CRC_AT].copy_from_slice(&self.common.bytes);
        bytes[SLOTS_CRC_AT..CRC_AT].copy_from_slice(&self.slots_crc.to_le_bytes());
        seal(bytes, ARRAY_MAGIC, self.id)
    }

    pub(super) fn decode(bytes: &[u8], off: u64) -> Result<ArrayHeader, DecodeError> {
        let (id, mut r) = unseal("array header of a row", bytes, off, ARRAY_MAGIC)?;
        let (entries, older, keyspace) = (r.u64()?, r.u64()?, r.u32()?);
        let start = r.clone();
        let len = r.u8()?;
        if usize::from(len) > COMMON_MAX {
            return Err(start.refuse("a common start of at most 19 bytes", len.to_string()));
        }
        let bytes = r.bytes(COMMON_MAX)?.first_chunk();
        let common = Common {
            keyspace,
            len,
            bytes: *bytes.unwrap_or(&[0; COMMON_MAX]),
        };
        let slots_crc = r.u32()?;
        Ok(ArrayHeader {
            id,
            entries,
            older,
            common,
            slots_crc,
        })
    }
}

/// A slot of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) front: u64,
    pub(super) keyspace: u32,
    pub(super) group: u32,
    pub(super) offset: u32,
    pub(super) forward: u32,
}

impl Slot {
    pub(super) fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[0..8].copy_from_slice(&self.front.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.keyspace.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.group.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.offset.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.forward.to_le_bytes());
        bytes
    }

    #[inline]
    pub(super) fn decode(bytes: &[u8; SLOT_BYTES]) -> Slot {
        let word = |at: usize| {
            let word = bytes[at..].first_chunk();
            u32::from_le_bytes(*word.unwrap_or(&[0; 4]))
        };
        let front = u64::from(word(4)) << 32 | u64::from(word(0));
        Slot {
            front,
            keyspace: word(8),
            group: word(12),
            offset: word(16),
            forward: word(20),
        }
    }

    /// Compares the part of the sort key that is in the slot.
    #[inline]
    pub(super) fn compare(&self, front: Front) -> Ordering {
        let keyspaces = self.keyspace.cmp(&front.keyspace);
        keyspaces
            .then(front.others)
            .then_with(|| self.front.cmp(&front.front))
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
        let outside = || DecodeError::new("row", off, "an entry in its group", "none");
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
        let mut r = Reader::new("entry of a row", off, head);
        r.bytes(ENTRY_BYTES - 8)?;
        let sizes = (r.u32()?, r.u32()?);
        Ok(ENTRY_BYTES as u64 + u64::from(sizes.0) + u64::from(sizes.1))
    }

    /// Decodes an entry from all of its bytes.
    pub(super) fn decode(bytes: &'a [u8], off: u64) -> Result<Entry<'a>, DecodeError> {
        let mut r = Reader::new("entry of a row", off, bytes);
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
        let mut r = Reader::new("checksum of an entry of a row", self.off, self.bytes);
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

/// Rows as items of the manifest.
pub(crate) static ROW: Owner = Owner {
    tag: 4,
    name: "row",
    in_pool: true,
    numbered: true,
    decode: |id, r| Ok(Arc::new(RowMeta::decode(id, r)?)),
    check: |_| Ok(()),
    #[cfg(feature = "decoders")]
    samples: || {
        let group = |n: u64| GroupMeta {
            span: Span {
                off: n << 20,
                len: 1 << 16,
            },
            end: 900,
        };
        let row = |id: u64, array, drained| RowMeta {
            id,
            entries: 10,
            bytes: 900,
            seqs: (5 * id, 5 * id + 4),
            first: (1, 64),
            groups: vec![group(2 * id), group(2 * id + 1)],
            array,
            array_at: 960,
            drained,
        };
        let own = Span {
            off: 1 << 30,
            len: 1 << 16,
        };
        vec![
            Arc::new(row(3, None, None)),
            Arc::new(row(4, Some(own), Some((1, b"key".to_vec())))),
        ]
    },
};

/// A group of a row in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupMeta {
    pub(super) span: Span,
    /// The end of its entries, from the start of the group.
    pub(super) end: u64,
}

/// A row in the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowMeta {
    pub(super) id: u64,
    /// The number of entries, drained ones included.
    pub(super) entries: u64,
    /// The bytes of entries and slots, drained ones included.
    pub(super) bytes: u64,
    pub(super) seqs: (SeqNo, SeqNo),
    /// The number of the first group that is left, and the offset of the first entry there that is
    /// not drained.
    pub(super) first: (u32, u32),
    /// The groups that are left.
    pub(super) groups: Vec<GroupMeta>,
    /// The extent of the array, if it is not in the last group, and its offset there.
    pub(super) array: Option<Span>,
    pub(super) array_at: u64,
    /// The place before which everything is in the bottom.
    pub(super) drained: Option<Place>,
}

impl RowMeta {
    /// Returns the bytes of its extents.
    pub(super) fn spans_bytes(&self) -> u64 {
        self.spans().iter().map(|span| span.len).sum()
    }

    fn decode(id: u64, r: &mut Reader<'_>) -> Result<RowMeta, DecodeError> {
        let (entries, bytes) = (item::amount(r)?, item::amount(r)?);
        let seqs = (item::seq(r)?, item::seq(r)?);
        let at = r.clone();
        let first = (r.varint_u32()?, r.varint_u32()?);
        let count = item::at_most(r, GROUPS_MAX)?;
        if u64::from(first.0) + count > GROUPS_MAX {
            return Err(at.refuse("the number of a group", first.0.to_string()));
        }
        let mut groups = Vec::new();
        for _ in 0..count {
            let span = item::span(r)?;
            let end = item::at_most(r, span.len)?;
            groups.push(GroupMeta { span, end });
        }
        let end = groups.first().map_or(0, |group| group.end);
        if u64::from(first.1) < HEADER_BYTES as u64 || u64::from(first.1) > end {
            return Err(at.refuse("an offset in the first group", first.1.to_string()));
        }
        let array = item::optional_span(r)?;
        let at = r.clone();
        let array_at = r.varint()?;
        let place = array.or(groups.last().map(|group| group.span));
        let len = entries.checked_mul(SLOT_BYTES as u64);
        let end = len.and_then(|len| array_at.checked_add(len + HEADER_BYTES as u64));
        if place.is_none_or(|place| end.is_none_or(|end| end > place.len)) {
            return Err(at.refuse("an array within its extent", array_at.to_string()));
        }
        let drained = match r.remaining() == 0 {
            true => None,
            false => Some(item::place(r)?),
        };
        Ok(RowMeta {
            id,
            entries,
            bytes,
            seqs,
            first,
            groups,
            array,
            array_at,
            drained,
        })
    }
}

impl Item for RowMeta {
    fn owner(&self) -> &'static Owner {
        &ROW
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_numbers(out, &[self.entries, self.bytes, self.seqs.0, self.seqs.1]);
        let (group, offset) = self.first;
        let count = self.groups.len() as u64;
        put_numbers(out, &[u64::from(group), u64::from(offset), count]);
        for GroupMeta { span, end } in &self.groups {
            put_numbers(out, &[span.off, span.len, *end]);
        }
        item::put_optional_span(out, self.array);
        put_numbers(out, &[self.array_at]);
        self.drained.iter().for_each(|place| put_place(out, place));
    }

    fn spans(&self) -> Vec<Span> {
        let groups = self.groups.iter().map(|group| group.span);
        groups.chain(self.array).collect()
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
        ];
        fields.extend(self.spans().into_iter().map(|span| ("extent", span.into())));
        fields.extend(self.drained.iter().map(|place| ("drained", place.into())));
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fronts after a common start order keys as the keys themselves do, for keys in the row and
    /// for others, or leave them equal.
    #[test]
    fn fronts_order_as_keys_do() {
        let keys: [&[u8]; 9] = [
            b"",
            b"a",
            b"user",
            b"user:",
            b"user:0",
            b"user:00000001",
            b"user:00000002",
            b"user;",
            b"v",
        ];
        let rows: [&[&[u8]]; 4] = [&keys[3..7], &keys[5..7], &keys[..], &keys[4..5]];
        for row in rows {
            let common = Common::of(7, row[0], row[row.len() - 1]);
            for (keyspace, key) in row
                .iter()
                .map(|key| (7, *key))
                .chain([(6, row[0]), (8, row[0])])
            {
                let slot = Slot {
                    front: common.front(keyspace, key).unwrap(),
                    keyspace,
                    group: 0,
                    offset: 0,
                    forward: 0,
                };
                for target in keys {
                    let found = slot.compare(common.front_of_target(7, target));
                    let order = (keyspace, key).cmp(&(7, target));
                    assert!(
                        found == order || found.is_eq(),
                        "{key:?}, {target:?}: {found:?}"
                    );
                    assert!(
                        found.is_ne() || order.is_eq() || key.len() > 8,
                        "{key:?}, {target:?}"
                    );
                }
            }
        }
        let common = Common::of(7, b"user:1", b"user:2");
        assert_eq!(common.front(7, b"use"), None);
        assert_eq!(Common::of(0, &[7; 40], &[7; 40]).len, 19);
    }
}
