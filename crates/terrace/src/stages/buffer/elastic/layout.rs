//! Tables of the elastic buffer in the manifest. Their nodes are those of `parts/skiplist`.
//!
//! The bytes of an item, all varints: level, head, entries, bytes, first and last sequence number;
//! offset and length of the filter, or 0; the id of the table that it is being merged into plus 1,
//! or 0; the number of extents; offset, length and used bytes of each.

use std::sync::Arc;

use terrace_media::Span;

use crate::parts::codec::{DecodeError, Reader};
use crate::parts::manifest::item::{
    self, Field, Item, Owner, number_fields, optional_span, put_numbers, put_optional_span,
};
use crate::parts::manifest::{State, refuse};
use crate::types::SeqNo;

/// Tables as items of the manifest. The id is that of the memtable that became the table.
pub(crate) static TABLE: Owner = Owner {
    tag: 1,
    name: "table",
    in_pool: true,
    numbered: true,
    decode: |id, r| Ok(Arc::new(TableMeta::decode(id, r)?)),
    check: check_merges,
    #[cfg(feature = "decoders")]
    samples,
};

/// An extent of a table, and how much of it contains nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableExtent {
    pub(crate) span: Span,
    pub(crate) used: u64,
}

/// A table of the buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableMeta {
    pub(crate) id: u64,
    pub(crate) level: u32,
    /// The pool offset of the head node.
    pub(crate) head: u64,
    /// The extents with its nodes: its own first, then those of the tables merged into it.
    pub(crate) extents: Vec<TableExtent>,
    pub(crate) filter: Option<Span>,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) seq_first: u64,
    pub(crate) seq_last: u64,
    /// The older table into which an unfinished merge moves this table's nodes.
    pub(crate) merging_into: Option<u64>,
}

impl Item for TableMeta {
    fn owner(&self) -> &'static Owner {
        &TABLE
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let level = u64::from(self.level);
        put_numbers(out, &[level, self.head, self.entries, self.bytes]);
        put_numbers(out, &[self.seq_first, self.seq_last]);
        put_optional_span(out, self.filter);
        put_numbers(out, &[self.merging_into.map_or(0, |id| id + 1)]);
        put_numbers(out, &[self.extents.len() as u64]);
        for extent in &self.extents {
            put_numbers(out, &[extent.span.off, extent.span.len, extent.used]);
        }
    }

    fn spans(&self) -> Vec<Span> {
        let extents = self.extents.iter().map(|extent| extent.span);
        extents.chain(self.filter).collect()
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
            ("head", self.head),
            ("entries", self.entries),
            ("bytes", self.bytes),
            ("seq_first", self.seq_first),
            ("seq_last", self.seq_last),
        ]);
        if let Some(id) = self.merging_into {
            fields.push(("merging_into", Field::Number(id)));
        }
        let extents = self.extents.iter().map(|extent| ("extent", extent.span));
        let spans = extents.chain(self.filter.map(|span| ("filter", span)));
        fields.extend(spans.map(|(name, span)| (name, Field::from(span))));
        fields
    }
}

impl TableMeta {
    fn decode(id: u64, r: &mut Reader<'_>) -> Result<TableMeta, DecodeError> {
        let (level, head) = (item::level(r)?, r.varint()?);
        let (entries, bytes) = (item::amount(r)?, item::amount(r)?);
        let (seq_first, seq_last) = (item::seq(r)?, item::seq(r)?);
        let filter = optional_span(r)?;
        let merging_into = item::id(r)?.checked_sub(1);
        let at = r.clone();
        let count = r.varint()?;
        // An extent takes at least three bytes, so the count is checked before it sizes an
        // allocation.
        if count > r.remaining() as u64 / 3 {
            return Err(at.refuse("a count of extents", count.to_string()));
        }
        let mut extents = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let at = r.clone();
            let extent = TableExtent {
                span: item::span(r)?,
                used: r.varint()?,
            };
            if extent.used > extent.span.len {
                return Err(at.refuse(format!("a use of at most {}", extent.span.len), "more"));
            }
            extents.push(extent);
        }
        Ok(TableMeta {
            id,
            level,
            head,
            extents,
            filter,
            entries,
            bytes,
            seq_first,
            seq_last,
            merging_into,
        })
    }
}

/// Fails unless each merge is of two tables that are part of no other.
fn check_merges(state: &State) -> Result<(), DecodeError> {
    let merging = || {
        let tables = state.items::<TableMeta>();
        tables.filter_map(|table| Some((table.id, table.merging_into?)))
    };
    for (newer, older) in merging() {
        if !state.has_item(&TABLE, older) {
            return refuse("a table to merge into", format!("table {older}"));
        }
        // One of them is part of another merge, or both are the same table.
        let has_older = |&(a, b): &(u64, u64)| a == older || b == older;
        if merging().filter(has_older).count() > 1 || newer == older {
            return refuse("a table in at most one merge", format!("table {older}"));
        }
    }
    Ok(())
}

#[cfg(feature = "decoders")]
fn samples() -> Vec<Arc<dyn Item>> {
    let span = |off: u64| Span { off, len: 65536 };
    let table = |id: u64, merging_into: Option<u64>| -> Arc<dyn Item> {
        Arc::new(TableMeta {
            id,
            level: 1,
            head: id << 20,
            extents: vec![TableExtent {
                span: span(id << 20),
                used: 1000,
            }],
            filter: id.is_multiple_of(2).then(|| span(7 << 30)),
            entries: 10,
            bytes: 900,
            seq_first: 5 * id,
            seq_last: 5 * id + 4,
            merging_into,
        })
    };
    vec![table(3, None), table(4, Some(3))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(id: u64) -> TableMeta {
        let span = Span {
            off: id << 20,
            len: 1 << 16,
        };
        TableMeta {
            id,
            level: 2,
            head: (id << 20) + 64,
            extents: vec![TableExtent { span, used: 4000 }; 2],
            filter: id.is_multiple_of(2).then_some(span),
            entries: 7,
            bytes: 3900,
            seq_first: 3,
            seq_last: 1 << 50,
            merging_into: None,
        }
    }

    fn encoded(table: &TableMeta) -> Vec<u8> {
        let mut bytes = Vec::new();
        table.encode(&mut bytes);
        bytes
    }

    #[test]
    fn tables_round_trip() {
        for into in [None, Some(0), Some(u64::MAX / 2 - 1)] {
            for id in [1, 2] {
                let table = TableMeta {
                    merging_into: into,
                    ..table(id)
                };
                let bytes = encoded(&table);
                let mut r = Reader::new("table", 0, &bytes);
                assert_eq!(TableMeta::decode(id, &mut r), Ok(table));
                assert_eq!(r.remaining(), 0);
                for cut in 0..bytes.len() {
                    assert!(
                        TableMeta::decode(id, &mut Reader::new("table", 0, &bytes[..cut])).is_err()
                    );
                }
            }
        }
    }

    /// Arbitrary bytes decode to a table or to an error, and sizes in them alone allocate nothing.
    #[test]
    fn hostile_tables_are_refused() {
        let mut rng = fastrand::Rng::with_seed(73);
        let mut refused = 0;
        for _ in 0..30_000 {
            let mut bytes = encoded(&table(rng.u64(1..3)));
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            match TableMeta::decode(1, &mut Reader::new("table", 5, &bytes)) {
                Ok(table) => {
                    let ends = |s: &Span| s.off.checked_add(s.len).is_some();
                    assert!(table.spans().iter().all(ends));
                }
                Err(e) => {
                    assert!((5..=5 + bytes.len() as u64).contains(&e.offset));
                    refused += 1;
                }
            }
        }
        assert!(refused > 1000, "{refused}");
    }

    /// A merge of a table that is missing, of itself, or of one in another merge is refused.
    #[test]
    fn contradicting_merges_are_refused() {
        use crate::parts::manifest::Change;
        let state = |merges: &[(u64, u64)]| {
            let mut state = State::default();
            for id in [10, 11, 12, 13] {
                let merging_into = merges.iter().find(|m| m.0 == id).map(|m| m.1);
                let table = TableMeta {
                    merging_into,
                    ..table(id)
                };
                state.apply(&Change::added(table)).unwrap();
            }
            state
        };
        for merges in [&[][..], &[(11, 10)], &[(11, 10), (13, 12)], &[(10, 13)]] {
            assert_eq!(check_merges(&state(merges)), Ok(()), "{merges:?}");
        }
        for merges in [
            &[(11, 11)][..],
            &[(11, 14)],
            &[(11, 10), (12, 10)],
            &[(11, 10), (10, 12)],
            &[(11, 10), (12, 11)],
        ] {
            assert!(check_merges(&state(merges)).is_err(), "{merges:?}");
        }
    }
}
