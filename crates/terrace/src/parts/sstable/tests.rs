//! Tests of SSTables: against a model, with damage, crashes and faults, and their speed.

mod blocks;
mod crash;
mod damage;
mod hostile;
mod meta;
mod model;
mod rates;
mod salvage;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrace_media::{FileSystem, Machine, Medium};

use super::{
    Answer, Compression, Finished, Found, NewEntry, RangeDelete, ReadCounts, ReadMode, SsTable,
    SstCache, SstCursor, SstOptions, SstWriter, kind,
};
use crate::parts::iter::Cursor;
use crate::parts::key::Target;
use crate::types::{EntryKind, SEQ_MAX, key_hash};

const NUMBER: u64 = 7;

fn file() -> &'static Path {
    Path::new("/db/7.sst")
}

/// The parts of an entry besides its place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    kind: u8,
    expiry: u64,
    value: Vec<u8>,
}

type Rows = BTreeMap<(u32, Vec<u8>, Reverse<u64>), Row>;

/// The expected contents of a table.
#[derive(Debug, Clone, Default)]
struct Model {
    rows: Rows,
    ranges: Vec<RangeDelete>,
}

impl Model {
    fn put(&mut self, keyspace: u32, key: &[u8], seq: u64, value: &[u8]) {
        let row = Row {
            kind: EntryKind::Put as u8,
            expiry: 0,
            value: value.to_vec(),
        };
        self.rows
            .insert((keyspace, key.to_vec(), Reverse(seq)), row);
    }

    /// Returns the newest entry that a read at `target` sees, and the newest range delete over its
    /// key.
    fn get(&self, target: &Target<'_>) -> (Option<(u64, &Row)>, Option<u64>) {
        let place = |seq| (target.keyspace, target.key.to_vec(), Reverse(seq));
        let row = self.rows.range(place(target.seq)..=place(0)).next();
        let covers = |r: &&RangeDelete| {
            r.keyspace == target.keyspace
                && r.begin.as_slice() <= target.key
                && (r.end.is_empty() || target.key < r.end.as_slice())
                && r.seq <= target.seq
        };
        let range = self.ranges.iter().filter(covers).map(|r| r.seq).max();
        (row.map(|((_, _, seq), row)| (seq.0, row)), range)
    }
}

fn machine() -> Arc<dyn FileSystem> {
    let fs = Machine::new(1, Medium::Dax).fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    fs
}

fn cache() -> Arc<SstCache> {
    Arc::new(SstCache::new(8 << 20))
}

fn write(
    fs: &Arc<dyn FileSystem>,
    path: &Path,
    options: SstOptions,
    model: &Model,
) -> crate::error::Result<Finished> {
    let mut writer = SstWriter::create(fs, path, NUMBER, options)?;
    for ((keyspace, key, Reverse(seq)), row) in &model.rows {
        writer.add(&NewEntry {
            keyspace: *keyspace,
            key,
            seq: *seq,
            kind: row.kind,
            expiry: row.expiry,
            value: &row.value,
        })?;
    }
    for range in &model.ranges {
        writer.add_range_delete(range.clone())?;
    }
    writer.finish()
}

fn open(
    fs: &dyn FileSystem,
    path: &Path,
    cache: &Arc<SstCache>,
) -> crate::error::Result<Arc<SsTable>> {
    SsTable::open(fs, path, NUMBER, ReadMode::Buffered, cache).map(Arc::new)
}

fn target(keyspace: u32, key: &[u8], seq: u64) -> Target<'_> {
    Target { keyspace, key, seq }
}

fn get(table: &SsTable, target: &Target<'_>) -> crate::error::Result<Option<Answer>> {
    let hash = key_hash(target.keyspace, target.key);
    table.get(target, hash, &mut ReadCounts::default())
}

/// Checks one answer against the model.
fn agrees(model: &Model, target: &Target<'_>, answer: Option<&Answer>) {
    let what = || {
        format!(
            "{}/{}@{}",
            target.keyspace,
            target.key.escape_ascii(),
            target.seq
        )
    };
    let value = answer.and_then(Answer::value);
    match (model.get(target), answer) {
        ((Some((seq, row)), range), Some(Answer::Entry(found))) => {
            assert!(range.is_none_or(|range| range <= seq), "{}", what());
            let deleted = row.kind == EntryKind::Delete as u8;
            assert_eq!(value.is_none(), deleted, "{}", what());
            let found: &Found = found;
            assert_eq!((found.seq, found.kind), (seq, row.kind), "{}", what());
            assert_eq!(found.expiry, row.expiry, "{}", what());
            assert!(found.value() == row.value, "{}", what());
        }
        ((row, Some(range)), Some(answer @ Answer::RangeDeleted(_))) => {
            assert_eq!((answer.seq(), value), (range, None), "{}", what());
            assert!(row.is_none_or(|(seq, _)| seq < range), "{}", what());
        }
        ((None, None), None) => {}
        (expected, found) => panic!("{}: {expected:?}, found {found:?}", what()),
    }
}

type Seen = ((u32, Vec<u8>, Reverse<u64>), Row);

/// Returns the current entry of a cursor.
fn seen(cursor: &SstCursor) -> Option<Seen> {
    let entry = cursor.entry().unwrap()?;
    let row = Row {
        kind: entry.kind,
        expiry: cursor.expiry(),
        value: cursor.value().unwrap().bytes.to_vec(),
    };
    let place = (entry.keyspace, entry.key.to_vec(), Reverse(entry.seq));
    Some((place, row))
}

/// Returns all entries, forward.
fn all(table: &Arc<SsTable>) -> crate::error::Result<Vec<Seen>> {
    let mut cursor = SstCursor::new(Arc::clone(table), false);
    let mut rows = Vec::new();
    cursor.seek_to_first()?;
    while let Some(row) = seen(&cursor) {
        rows.push(row);
        cursor.advance()?;
    }
    Ok(rows)
}

/// Returns small settings, with which few entries make many blocks and two levels of index.
fn tiny(compression: Compression) -> SstOptions {
    SstOptions {
        block_bytes: 200,
        restart_interval: 3,
        index_block_bytes: 100,
        compression,
        ..SstOptions::default()
    }
}

fn compressions() -> Vec<Compression> {
    let all = Compression::ALL.into_iter();
    all.filter(|way| way.is_built()).collect()
}
