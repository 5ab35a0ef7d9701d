//! Table files in the manifest: the numbers, key range and contents of each.

use std::sync::Arc;

use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::key::Place;
use crate::parts::manifest::item::{
    self, Field, Item, Owner, number_fields, put_numbers, put_place,
};
use crate::types::SeqNo;

/// Table files as items of the manifest. The id is the file's number.
pub(crate) static TABLE_FILE: Owner = Owner {
    tag: 3,
    name: "file",
    in_pool: false,
    numbered: true,
    decode: |number, r| Ok(Arc::new(FileMeta::decode(number, r)?)),
    check: |_| Ok(()),
    #[cfg(feature = "decoders")]
    samples,
};

/// A table in a file named after its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileMeta {
    pub(crate) number: u64,
    /// 0 receives drains; deeper levels hold older data.
    pub(crate) level: u32,
    /// Tables of level 0 with the same run are disjoint and were written together; a larger run is
    /// newer. Each deeper level is one run, and the value is 0.
    pub(crate) run: u64,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    pub(crate) tombstones: u64,
    /// The number of entries that a newer one of the table supersedes: snapshots kept them.
    pub(crate) older: u64,
    pub(crate) seq_first: u64,
    pub(crate) seq_last: u64,
    /// The keyspace and key of the first entry.
    pub(crate) first: Place,
    /// The keyspace and key of the last entry.
    pub(crate) last: Place,
    /// The number of range delete fragments. A table may contain nothing else: `first` and `last`
    /// are then the start of the first fragment.
    pub(crate) range_deletes: u64,
    /// With range deletes: the bounds of entries and range deletes together, with an exclusive end.
    pub(crate) reach: Option<(Place, Place)>,
    /// The number of entries that expire, and the time when the last of them does.
    pub(crate) expiring: u64,
    pub(crate) expiry_last: u64,
    /// The value files that it points into, ascending, and the bytes of its records in each.
    pub(crate) values: Vec<(u64, u64)>,
}

impl Item for FileMeta {
    fn owner(&self) -> &'static Owner {
        &TABLE_FILE
    }

    fn id(&self) -> u64 {
        self.number
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let level = u64::from(self.level);
        put_numbers(out, &[level, self.run]);
        put_numbers(out, &[self.bytes, self.entries]);
        put_numbers(out, &[self.tombstones, self.older]);
        put_numbers(out, &[self.seq_first, self.seq_last]);
        put_place(out, &self.first);
        put_place(out, &self.last);
        put_numbers(out, &[self.expiring, self.expiry_last]);
        codec::put_varint(out, self.range_deletes);
        if let Some((first, end)) = &self.reach {
            put_place(out, first);
            put_place(out, end);
        }
        // Absent before there were value files, and if there are none.
        for &(file, bytes) in &self.values {
            put_numbers(out, &[file, bytes]);
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn seqs(&self) -> Option<(SeqNo, SeqNo)> {
        Some((self.seq_first, self.seq_last))
    }

    fn fields(&self) -> Vec<(&'static str, Field)> {
        let mut fields = number_fields(&[
            ("level", u64::from(self.level)),
            ("run", self.run),
            ("bytes", self.bytes),
            ("entries", self.entries),
            ("tombstones", self.tombstones),
            ("older", self.older),
            ("seq_first", self.seq_first),
            ("seq_last", self.seq_last),
        ]);
        fields.push(("first", Field::from(&self.first)));
        fields.push(("last", Field::from(&self.last)));
        let values = self.values.iter();
        fields.extend(values.map(|&(id, bytes)| ("value_file", Field::Part { id, bytes })));
        fields
    }
}

impl FileMeta {
    pub(super) fn decode(number: u64, r: &mut Reader<'_>) -> Result<FileMeta, DecodeError> {
        let (level, run) = (item::level(r)?, item::id(r)?);
        let (bytes, entries) = (item::amount(r)?, item::amount(r)?);
        let (tombstones, older) = (item::amount(r)?, item::amount(r)?);
        let (seq_first, seq_last) = (item::seq(r)?, item::seq(r)?);
        let at = r.clone();
        let first = item::place(r)?;
        let last = item::place(r)?;
        if first > last {
            return Err(at.refuse(
                "a first key that is not greater than the last",
                "the reverse",
            ));
        }
        let (expiring, expiry_last) = (item::amount(r)?, r.varint()?);
        let range_deletes = item::amount(r)?;
        let mut reach = None;
        if range_deletes > 0 {
            let at = r.clone();
            let (begin, end) = (item::place(r)?, item::place(r)?);
            if begin > first || end < last {
                return Err(at.refuse("a reach over the table's keys", "a smaller reach"));
            }
            reach = Some((begin, end));
        }
        let mut values: Vec<(u64, u64)> = Vec::new();
        // BOUND: each iteration reads two numbers.
        while r.remaining() > 0 {
            let at = r.clone();
            let file = item::id(r)?;
            if values.last().is_some_and(|(last, _)| *last >= file) {
                return Err(at.refuse("ascending value files", file.to_string()));
            }
            values.push((file, item::amount(r)?));
        }
        Ok(FileMeta {
            number,
            level,
            run,
            bytes,
            entries,
            tombstones,
            older,
            seq_first,
            seq_last,
            first,
            last,
            range_deletes,
            reach,
            expiring,
            expiry_last,
            values,
        })
    }
}

#[cfg(feature = "decoders")]
fn samples() -> Vec<Arc<dyn Item>> {
    let file = |number: u64, ranges: u64| -> Arc<dyn Item> {
        Arc::new(FileMeta {
            number,
            level: 0,
            run: 2,
            bytes: 5000,
            entries: 40,
            tombstones: 3,
            older: 2,
            seq_first: 1,
            seq_last: 60,
            first: (1, b"alpha".to_vec()),
            last: (2, b"".to_vec()),
            range_deletes: ranges,
            reach: (ranges > 0).then(|| ((1, b"a".to_vec()), (2, b"z".to_vec()))),
            expiring: 4,
            expiry_last: 1_700_000_000_000,
            values: (2..2 + ranges).map(|file| (file, 700)).collect(),
        })
    };
    vec![file(5, 0), file(6, 2)]
}
