//! Finding the entries of heaps in a damaged pool.

use std::borrow::Cow;

use super::layout::{ENTRY_BYTES, Entry, HEADER_BYTES, HEAP, Header, HeapMeta};
use crate::parts::expiry::layout as expiring;
use crate::parts::manifest::State;
use crate::stages::salvage::{
    Area, DamagedBytes, DamagedPool, EntryForm, Found, Record, Salvage, Unnamed,
};
use crate::types::EntryKind;

/// The name of the buffer in the report of a repair.
const NAME: &str = "buffer";

pub(crate) static SALVAGE: Salvage = Salvage {
    owner: &HEAP,
    identify: |head, off| {
        let header = Header::decode(head, off, u64::MAX).ok()?;
        Some((header.id, Some(header.end())))
    },
    find,
};

fn find(state: &State, unnamed: &[Unnamed], pool: &mut dyn DamagedPool) -> Found {
    let mut found = Found::default();
    let mut header = |span: terrace_media::Span| {
        let head = pool.bytes(span.off, HEADER_BYTES as u64)?;
        Header::decode(head, span.off, span.len).ok()
    };
    for heap in state.items::<HeapMeta>() {
        let own = header(heap.span).is_some_and(|header| header.id == heap.id);
        found.areas.push(Area {
            form: EntryForm::Records(read),
            seqs: Some(heap.seqs),
            problem: (!own).then(|| "its header is damaged".to_owned()),
            ..Area::new(NAME, heap.id, heap.span).entries(HEADER_BYTES as u64, heap.index())
        });
    }
    for extent in unnamed {
        let end = header(extent.span).map_or(0, |header| header.index);
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
