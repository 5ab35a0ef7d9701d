//! The properties of a table: counts, sizes, and the ranges of its keys and sequence numbers.

use super::layout::{Compression, property as id};
use super::ranges::RangeDelete;
use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::key::Target;
use crate::types::SeqNo;

/// The place of an entry in the order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) keyspace: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) seq: SeqNo,
}

impl Place {
    /// Returns the place as a target for reads.
    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            keyspace: self.keyspace,
            key: &self.key,
            seq: self.seq,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        codec::put_varint(&mut out, u64::from(self.keyspace));
        codec::put_varint(&mut out, self.seq);
        out.extend_from_slice(&self.key);
        out
    }

    fn decode(r: &mut Reader<'_>) -> Result<Place, DecodeError> {
        let keyspace = r.varint_u32()?;
        let seq = r.varint()?;
        let key = r.bytes(r.remaining())?.to_vec();
        Ok(Place { keyspace, key, seq })
    }
}

/// The properties of a table, collected while it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Properties {
    /// The number of entries of every kind except range deletes.
    pub(crate) entry_count: u64,
    /// The number of deletes among them.
    pub(crate) tombstone_count: u64,
    /// The number of entries with an expiry.
    pub(crate) expiring_count: u64,
    /// The number of entries whose value is stored elsewhere.
    pub(crate) value_pointer_count: u64,
    /// The number of fragments of range deletes.
    pub(crate) range_delete_count: u64,
    /// The number of distinct user keys.
    pub(crate) key_count: u64,
    /// The size of all user keys, counted once per version.
    pub(crate) key_bytes: u64,
    /// The size of all values.
    pub(crate) value_bytes: u64,
    pub(crate) data_block_count: u64,
    /// The size of the data blocks in the file, trailers included.
    pub(crate) data_bytes: u64,
    /// The size of the data blocks before compression.
    pub(crate) content_bytes: u64,
    pub(crate) index_bytes: u64,
    pub(crate) filter_bytes: u64,
    /// The range of sequence numbers, including those of range deletes; `None` if there are none.
    pub(crate) seqs: Option<(SeqNo, SeqNo)>,
    /// The range of expiries; `None` if there are none.
    pub(crate) expiries: Option<(u64, u64)>,
    /// The first and the last entry.
    pub(crate) entries: Option<(Place, Place)>,
    /// The start of the first range delete and the end of the last one. The end is exclusive, and
    /// an empty key in it is the end of its keyspace.
    pub(crate) ranges: Option<(Place, Place)>,
    /// The compression requested from the writer. Each block records its own.
    pub(crate) compression: Compression,
}

fn widen(range: &mut Option<(u64, u64)>, value: u64) {
    *range = Some(match *range {
        None => (value, value),
        Some((least, most)) => (least.min(value), most.max(value)),
    });
}

impl Properties {
    /// Counts a sequence number.
    pub(crate) fn count_seq(&mut self, seq: SeqNo) {
        widen(&mut self.seqs, seq);
    }

    /// Counts an expiry.
    pub(crate) fn count_expiry(&mut self, expiry: u64) {
        self.expiring_count += 1;
        widen(&mut self.expiries, expiry);
    }

    /// Counts the fragments of all range deletes.
    pub(crate) fn count_ranges(&mut self, fragments: &[RangeDelete]) {
        self.range_delete_count = fragments.len() as u64;
        for fragment in fragments {
            self.count_seq(fragment.seq);
        }
        if let (Some(first), Some(last)) = (fragments.first(), fragments.last()) {
            let place = |range: &RangeDelete, key: &Vec<u8>| Place {
                keyspace: range.keyspace,
                key: key.clone(),
                seq: range.seq,
            };
            self.ranges = Some((place(first, &first.begin), place(last, &last.end)));
        }
    }

    /// Encodes the content of the properties block.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut record = |id: u64, bytes: &[u8]| {
            codec::put_varint(&mut out, id);
            codec::put_varint(&mut out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        };
        let number = |value: u64| {
            let mut bytes = Vec::with_capacity(codec::VARINT_BYTES_MAX);
            codec::put_varint(&mut bytes, value);
            bytes
        };
        for (id, value) in [
            (id::ENTRY_COUNT, self.entry_count),
            (id::TOMBSTONE_COUNT, self.tombstone_count),
            (id::EXPIRING_COUNT, self.expiring_count),
            (id::RANGE_DELETE_COUNT, self.range_delete_count),
            (id::KEY_COUNT, self.key_count),
            (id::KEY_BYTES, self.key_bytes),
            (id::VALUE_BYTES, self.value_bytes),
            (id::DATA_BLOCK_COUNT, self.data_block_count),
            (id::DATA_BYTES, self.data_bytes),
            (id::CONTENT_BYTES, self.content_bytes),
            (id::INDEX_BYTES, self.index_bytes),
            (id::FILTER_BYTES, self.filter_bytes),
        ] {
            record(id, &number(value));
        }
        if let Some((least, most)) = self.seqs {
            record(id::SEQ_SMALLEST, &number(least));
            record(id::SEQ_LARGEST, &number(most));
        }
        if let Some((least, most)) = self.expiries {
            record(id::EXPIRY_SMALLEST, &number(least));
            record(id::EXPIRY_LARGEST, &number(most));
        }
        if let Some((first, last)) = &self.entries {
            record(id::SMALLEST, &first.encode());
            record(id::LARGEST, &last.encode());
        }
        if let Some((first, last)) = &self.ranges {
            record(id::RANGES_BEGIN, &first.encode());
            record(id::RANGES_END, &last.encode());
        }
        record(id::COMPRESSION, &number(self.compression as u64));
        record(id::VALUE_POINTER_COUNT, &number(self.value_pointer_count));
        out
    }

    /// Decodes the content of a properties block at `base`.
    pub(crate) fn decode(content: &[u8], base: u64) -> Result<Properties, DecodeError> {
        let what = "SSTable properties";
        let mut r = Reader::new(what, base, content);
        let mut properties = Properties::default();
        let (mut seqs, mut expiries) = ((None, None), (None, None));
        let (mut entries, mut ranges) = ((None, None), (None, None));
        let mut last_id = 0;
        // BOUND: every iteration reads a record.
        while r.remaining() > 0 {
            let before = r.clone();
            let id = r.varint()?;
            if id <= last_id {
                return Err(before.refuse(format!("an id above {last_id}"), id.to_string()));
            }
            last_id = id;
            let size = usize::try_from(r.varint()?).unwrap_or(usize::MAX);
            let at = r.offset();
            let mut value = Reader::new(what, at, r.bytes(size)?);
            let p = &mut properties;
            match id {
                id::ENTRY_COUNT => p.entry_count = value.varint()?,
                id::TOMBSTONE_COUNT => p.tombstone_count = value.varint()?,
                id::EXPIRING_COUNT => p.expiring_count = value.varint()?,
                id::RANGE_DELETE_COUNT => p.range_delete_count = value.varint()?,
                id::KEY_COUNT => p.key_count = value.varint()?,
                id::KEY_BYTES => p.key_bytes = value.varint()?,
                id::VALUE_BYTES => p.value_bytes = value.varint()?,
                id::DATA_BLOCK_COUNT => p.data_block_count = value.varint()?,
                id::DATA_BYTES => p.data_bytes = value.varint()?,
                id::CONTENT_BYTES => p.content_bytes = value.varint()?,
                id::INDEX_BYTES => p.index_bytes = value.varint()?,
                id::FILTER_BYTES => p.filter_bytes = value.varint()?,
                id::SEQ_SMALLEST => seqs.0 = Some(value.varint()?),
                id::SEQ_LARGEST => seqs.1 = Some(value.varint()?),
                id::EXPIRY_SMALLEST => expiries.0 = Some(value.varint()?),
                id::EXPIRY_LARGEST => expiries.1 = Some(value.varint()?),
                id::SMALLEST => entries.0 = Some(Place::decode(&mut value)?),
                id::LARGEST => entries.1 = Some(Place::decode(&mut value)?),
                id::RANGES_BEGIN => ranges.0 = Some(Place::decode(&mut value)?),
                id::RANGES_END => ranges.1 = Some(Place::decode(&mut value)?),
                id::VALUE_POINTER_COUNT => p.value_pointer_count = value.varint()?,
                id::COMPRESSION => {
                    let raw = u8::try_from(value.varint()?).unwrap_or(u8::MAX);
                    p.compression = Compression::from_raw(raw).ok_or_else(|| {
                        value.refuse("a known compression", format!("number {raw}"))
                    })?;
                }
                _ => continue,
            }
            value.end()?;
        }
        properties.seqs = seqs.0.zip(seqs.1);
        properties.expiries = expiries.0.zip(expiries.1);
        properties.entries = entries.0.zip(entries.1);
        properties.ranges = ranges.0.zip(ranges.1);
        Ok(properties)
    }
}
