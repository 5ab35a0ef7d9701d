//! Finding the entries of rows in a damaged pool.

use std::borrow::Cow;

use super::layout::{ENTRY_BYTES, Entry, GroupHeader, HEADER_BYTES, ROW, RowMeta};
use crate::parts::expiry::layout as expiring;
use crate::parts::manifest::State;
use crate::stages::salvage::{
    Area, DamagedBytes, DamagedPool, EntryForm, Found, Record, Salvage, Unnamed,
};
use crate::types::EntryKind;

/// The name of the buffer in the report of a repair.
const NAME: &str = "buffer";

pub(crate) static SALVAGE: Salvage = Salvage {
    owner: &ROW,
    identify: |head, off| {
        let header = GroupHeader::decode(head, off).ok()?;
        Some((header.id, Some(u64::from(header.end))))
    },
    find,
};

fn find(state: &State, unnamed: &[Unnamed], pool: &mut dyn DamagedPool) -> Found {
    let mut found = Found::default();
    let mut header = |off: u64| {
        let head = pool.bytes(off, HEADER_BYTES as u64)?;
        GroupHeader::decode(head, off).ok()
    };
    for row in state.items::<RowMeta>() {
        for (at, group) in row.groups.iter().enumerate() {
            let own = header(group.span.off).is_some_and(|header| header.id == row.id);
            // Entries that a column has drained may be deleted in the bottom by now.
            let first = match at {
                0 => u64::from(row.first.1),
                _ => HEADER_BYTES as u64,
            };
            found.areas.push(Area {
                form: EntryForm::Records(read),
                seqs: Some(row.seqs),
                problem: (!own).then(|| "a header of its groups is damaged".to_owned()),
                ..Area::new(NAME, row.id, group.span).entries(first, group.end)
            });
        }
    }
    for extent in unnamed {
        let end = header(extent.span.off).map_or(0, |header| u64::from(header.end));
        found.areas.push(Area {
            form: EntryForm::Records(read),
            open_end: true,
            ..Area::new(NAME, extent.id, extent.span).entries(HEADER_BYTES as u64, end)
        });
    }
    found
}

fn read(pool: &mut dyn DamagedBytes, at: u64, end: u64) -> Option<Record<'_>> {
    let left = end.checked_sub(at)?;
    let head = pool.bytes(at, (ENTRY_BYTES as u64).min(left))?;
    let bytes = Entry::length(head, at).ok().filter(|len| *len <= left)?;
    let entry = Entry::decode(pool.bytes(at, bytes)?, at).ok()?;
    let value = entry.checked_value().ok()?;
    let (kind, value) = match value.expiry {
        0 => (entry.view.kind, Cow::Borrowed(value.bytes)),
        expiry => (
            EntryKind::PutExpiring as u8,
            Cow::Owned(expiring::encode(expiry, value.bytes)),
        ),
    };
    Some(Record {
        bytes,
        keyspace: entry.view.keyspace,
        seq: entry.view.seq,
        kind,
        key: entry.view.key,
        value,
    })
}
