//! Recovery of the elastic buffer after a close, a crash or a power loss.
//!
//! A crash can leave
//!   - a table whose flush was not committed: its extent is free, and its log is replayed;
//!   - an unfinished merge: the redo area has been applied, so both lists are sound and every live
//!     node is in one of them; the merge continues from their current state;
//!   - a filter that was written but is not in the manifest: its extent is free.
//!
//! After a power loss on `Mapped`, the nodes are intact, since they are synced before the manifest
//! names their table, but links may be invalid. Each list is rebuilt from the nodes in its extents.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_media::{Medium, Shutdown};

use super::layout::TableMeta;
use super::table::{Inner, Table};
use super::{Drains, Elastic};
use crate::canary::failpoint;
use crate::error::{Error, Result};
use crate::parts::codec::DecodeError;
use crate::parts::filter::Filter;
use crate::parts::manifest::{Change, Edit};
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::ranges::{Fragments, Keep, RangeDelete, RangeSet, Readable, in_list};
use crate::parts::skiplist::layout::{TABLE_HEADER_BYTES, decode_table_header};
use crate::parts::skiplist::{SkipList, walk};
use crate::stages::{Shared, Source};
use crate::types::SEQ_MAX;

/// The results of recovering the buffer.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Recovered {
    pub(crate) merges_resumed: u64,
    pub(crate) tables_rebuilt: u64,
}

/// Opens every table that the manifest names. If lists must be rebuilt from their nodes, `progress`
/// is called with the bytes done and the total.
pub(crate) fn recover(
    shared: &Arc<Shared>,
    drains: Drains,
    links_lost: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Elastic, Recovered)> {
    let metas: Vec<TableMeta> = shared
        .manifest
        .with_state(|state| state.items().cloned().collect());
    let mut recovered = Recovered::default();
    let total: u64 = metas.iter().map(|m| m.bytes).sum();
    let mut done = 0;
    let mut tables = Vec::with_capacity(metas.len());
    let mut headers = BTreeMap::new();
    let mut recounted = Vec::new();
    for meta in &metas {
        let table = open_table(shared, meta, &mut headers)?;
        if links_lost {
            rebuild_links(&table, &mut |bytes| progress(done + bytes, total))?;
            done += meta.bytes;
            recovered.tables_rebuilt += 1;
            recounted.extend(recount(&table, meta, &metas));
        }
        tables.push(Arc::new(table));
    }
    if !recounted.is_empty() {
        // CRASH: the pool is not yet marked as whole, so the next recovery rebuilds the links again
        // and gets the same counts.
        shared.manifest.commit(Edit { changes: recounted })?;
    }
    for meta in &metas {
        let Some(into) = meta.merging_into else {
            continue;
        };
        recovered.merges_resumed += 1;
        let newer = tables.iter().find(|t| t.id == meta.id);
        let older = tables.iter().find(|t| t.id == into);
        let (Some(newer), Some(older)) = (newer, older) else {
            return Err(Error::corruption(format!(
                "the manifest merges table {} into table {into}, which it does not name; restore \
                 the database from a copy, or recover the readable data with \"terrace repair\"",
                meta.id
            )));
        };
        // The older table answers for both (E3); without a filter it answers for every key.
        let both = [newer.filters.load_full(), older.filters.load_full()];
        let filters = if both.iter().any(|f| f.is_empty()) {
            Vec::new()
        } else {
            both.iter().flat_map(|f| f.iter().cloned()).collect()
        };
        older.filters.store(Arc::new(filters));
        newer.inner.lock().merging_into = Some(Arc::clone(older));
        older.seq_bound.raise(newer.seq_bound.newest());
        // No job but the resumed merge may take the older table.
        older.inner.lock().busy = true;
    }
    let mut ranges = Vec::new();
    for table in &tables {
        ranges.extend(in_list(&table.list)?);
    }
    shared.ranges.add(ranges, &Readable::later(), true);
    Ok((Elastic::over(Arc::clone(shared), tables, drains), recovered))
}

/// Returns the change that corrects the number of entries of a rebuilt table in the manifest, or
/// `None` if it is right. The tables of an unfinished merge are counted at its end.
fn recount(table: &Table, meta: &TableMeta, all: &[TableMeta]) -> Option<Change> {
    let entries = table.inner.lock().entries;
    let is_merge_target = |id| all.iter().any(|other| other.merging_into == Some(id));
    if entries == meta.entries || meta.merging_into.is_some() || is_merge_target(meta.id) {
        return None;
    }
    Some(Change::changed(TableMeta {
        entries,
        ..meta.clone()
    }))
}

/// Returns whether links in the pool may be invalid.
pub(crate) fn links_lost(shared: &Shared) -> bool {
    let pool = &shared.pool;
    failpoint!(MediumOfNow => return pool.shutdown() == Shutdown::PowerLost && pool.medium() == Medium::Mapped);
    pool.pages_lost()
}

/// Opens a table. `headers` maps the ids in the extent headers read so far to their offsets. Each
/// is the id of the memtable that was copied there, so a repeated id means a misdirected write.
fn open_table(
    shared: &Shared,
    meta: &TableMeta,
    headers: &mut BTreeMap<u64, u64>,
) -> Result<Table> {
    let region = shared.pool.region();
    let mut extents = Vec::with_capacity(meta.extents.len());
    for extent in &meta.extents {
        let off = extent.span.off;
        let bytes = region.bytes(off, TABLE_HEADER_BYTES).unwrap_or_default();
        let id = decode_table_header(bytes, off)?;
        // Only the first extent is the table's own. The others came from newer tables by merges,
        // but their ids need not be larger: an ingested table gets its id before its place in the
        // order of age.
        if extents.is_empty() && id != meta.id {
            return Err(Error::corruption(format!(
                "the extent of table {} at pool offset {off:#x} has the header of table {id}; \
                 restore the database from a copy, or recover the readable data with \"terrace \
                 repair\"",
                meta.id
            )));
        }
        if let Some(other) = headers.insert(id, off) {
            return Err(Error::corruption(format!(
                "the extents at pool offsets {other:#x} and {off:#x} both have the header of table \
                 {id}; restore the database from a copy, or recover the readable data with \
                 \"terrace repair\""
            )));
        }
        if extent.used > extent.span.len {
            return Err(Error::corruption(format!(
                "the manifest records {} used bytes for the {}-byte extent at pool offset \
                 {off:#x}; restore the database from a copy, or recover the readable data with \
                 \"terrace repair\"",
                extent.used, extent.span.len
            )));
        }
        extents.push((shared.pool.adopt(extent.span)?, extent.used));
    }
    let first = meta.extents.first().map(|extent| extent.span.off);
    if first.map(|off| off + TABLE_HEADER_BYTES as u64) != Some(meta.head) {
        return Err(Error::corruption(format!(
            "the manifest records the list of table {} at pool offset {:#x}, which is not in its \
             first extent; restore the database from a copy, or recover the readable data with \
             \"terrace repair\"",
            meta.id, meta.head
        )));
    }
    let filters = match meta.filter {
        Some(span) => vec![Arc::new(Filter::open(shared.pool.adopt(span)?)?)],
        None => Vec::new(),
    };
    let inner = Inner {
        // The option may have been lowered since.
        level: meta.level.min(shared.options.buffer.levels - 1),
        extents,
        entries: meta.entries,
        bytes: meta.bytes,
        grows_to: 0,
        seq_first: meta.seq_first,
        seq_last: meta.seq_last,
        logs: Vec::new(),
        unsynced: false,
        readers: None,
        busy: false,
        named_filter: filters.first().cloned(),
        merging_into: None,
    };
    Ok(Table::new(
        meta.id,
        SkipList::new(region.clone(), meta.head),
        filters,
        None,
        inner,
    ))
}

/// Rebuilds the list of a table from the nodes in its extents. Every node must have a valid
/// checksum and belong to the table: nodes on a misplaced page are valid too, but their sequence
/// numbers are out of range or they repeat a version. Nodes covered by a range delete of the table
/// are skipped: no reader sees them when a database is opened, and the filter may lack their keys,
/// as a merge may have left them out.
fn rebuild_links(table: &Table, progress: &mut dyn FnMut(u64)) -> Result<()> {
    let region = table.list.region().clone();
    let mut nodes = Vec::new();
    let mut ranges = Vec::new();
    let mut bytes = 0;
    let (first, last) = table.seqs();
    table.walk_extents(&mut |off| {
        let node = table.list.node(off)?;
        node.checked_value()?;
        let (keyspace, seq) = (node.header.keyspace, node.header.seq);
        if !(first..=last).contains(&seq) {
            let found = format!("a node with the number {seq}");
            let expected = format!("a node with a number from {first} to {last}");
            return Err(DecodeError::new("node of a table", off, expected, found).into());
        }
        if keyspace & RANGE_DELETE_BIT != 0 {
            ranges.push(RangeDelete::from_entry(keyspace, node.key, seq, off)?);
        }
        nodes.push(off);
        bytes += node.header.node_bytes() as u64;
        if nodes.len().is_multiple_of(4096) {
            progress(bytes);
        }
        Ok(())
    })?;
    if !ranges.is_empty() {
        let ranges = RangeSet::of(vec![Arc::new(Fragments::new(
            ranges,
            Keep::Readable(&Readable::later()),
        ))]);
        let mut kept = Vec::with_capacity(nodes.len());
        for off in nodes {
            let node = table.list.node(off)?;
            let deleted_at = ranges.newest(node.header.keyspace, node.key, SEQ_MAX);
            // `None`, no range delete, is less than any number.
            if deleted_at <= Some(node.header.seq) {
                kept.push(off);
            }
        }
        nodes = kept;
    }
    walk::sort(&region, &mut nodes, true)?;
    // The rebuilt list has superseded nodes that merges had unlinked, so its count may be larger
    // than the manifest's.
    table.inner.lock().entries = nodes.len() as u64;
    table.forget_left_out();
    walk::relink_sorted(&region, table.list.head(), nodes.into_iter())?;
    progress(bytes);
    Ok(())
}
