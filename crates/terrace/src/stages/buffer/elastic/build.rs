//! Building of tables from sorted entries that bypass the front, as in an ingest.

use std::sync::Arc;

use terrace_media::Arena;

use crate::error::{Error, ErrorKind, Result};
use crate::parts::batch::Batch;
use crate::parts::iter::ListCursor;
use crate::parts::skiplist::layout::{
    HEIGHT_MAX, TABLE_HEADER_BYTES, TABLE_NODES_AT, encode_table_header,
};
use crate::parts::skiplist::node::{head_bytes, link_at};
use crate::parts::skiplist::{NewNode, SkipList};
use crate::stages::{Form, ListImage, Readers, Sealed, Shared};
use crate::types::SeqNo;

/// Returns a list of the entries of `batch`, whose keys ascend, all with the number `seq`. No log
/// has them.
pub(super) fn list_of(shared: &Shared, batch: &Batch, seq: SeqNo) -> Result<Sealed> {
    let nodes = || {
        let entries = batch.payload.iter().zip(batch.hashes());
        entries.map(|(entry, &hash)| entry.node(hash, seq))
    };
    let bytes = TABLE_NODES_AT + nodes().map(|node: NewNode<'_>| node.bytes()).sum::<usize>();
    let extent = shared.pool.alloc(bytes as u64)?;
    let id = shared.next_id();
    let mut arena = Arena::new(bytes as u64).map_err(|e| {
        Error::new(
            ErrorKind::Full,
            format!("cannot allocate {bytes} bytes for a table: {e}"),
        )
        .because(e)
    })?;
    let bump = arena.bump(extent.off());
    let Some(mut claim) = bump.lend(bytes, 64) else {
        return Err(Error::corruption("a table is larger than its entries"));
    };
    claim.write(0, &encode_table_header(id));
    claim.write(TABLE_HEADER_BYTES, &head_bytes());
    let base = extent.off();
    // The last node that is linked on each level.
    let mut last = [TABLE_HEADER_BYTES; HEIGHT_MAX];
    let mut at = TABLE_NODES_AT;
    for node in nodes() {
        node.write(&mut claim, at);
        for (level, before) in last.iter_mut().enumerate().take(node.height.into()) {
            claim.store(link_at(*before as u64, level) as usize, base + at as u64);
            *before = at;
        }
        at += node.bytes();
    }
    let region = bump.region().clone();
    let list = SkipList::new(region.clone(), base + TABLE_HEADER_BYTES as u64);
    let readers = Arc::new(Readers::default());
    readers.leave();
    Ok(Sealed {
        id,
        entries: batch.len() as u64,
        bytes: bytes as u64,
        seq_first: seq,
        seq_last: seq,
        late: None,
        logs: Vec::new(),
        open: Box::new(move || Box::new(ListCursor::new(list.clone(), None))),
        form: Form::List(ListImage {
            region,
            extent,
            in_place: false,
            readers,
        }),
        // It is in no log.
        finish: Box::new(|| Ok(false)),
        forget: Box::new(|| {}),
    })
}
