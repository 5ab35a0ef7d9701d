//! This file turns a sorted stream of entries into tables: what a drain and a compaction share.
//!
//! Versions that nobody can read are left out, and tombstones where nothing is left below that they
//! could hide. Tables are cut between keys, so that one table of a run has all versions of a key.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::version::{Table, Version};
use super::{Body, Shelf};
use crate::error::Result;
use crate::parts::iter::EntryView;
use crate::parts::manifest::{Change, FileMeta};
use crate::parts::snapshots::Stripes;
use crate::parts::sstable::{Finished, NewEntry, SstWriter};
use crate::types::{EntryKind, SeqNo};

/// Tables of the level below that one new table may overlap, in table sizes: what compacting it
/// later will cost at most.
const OVERLAP_MAX: u64 = 12;

/// Tables being written.
pub(super) struct Output {
    body: Arc<Body>,
    level: u32,
    run: u64,
    /// What was live when the job began. Nothing arrives below the tables that a job works on but
    /// by that job, so this stays right about what a tombstone may hide.
    version: Arc<Version>,
    stripes: Stripes,
    dropped: Arc<Vec<u32>>,
    writer: Option<SstWriter>,
    done: Vec<FileMeta>,
    /// The key of the last entry offered, and the sequence number of its last version kept.
    keyspace: u32,
    key: Vec<u8>,
    kept: Option<SeqNo>,
    any: bool,
    entries: u64,
    /// Bytes of the table being written that the pace knows of.
    charged: u64,
}

impl Output {
    /// Tables for `level`; for level 0, of the run `run`.
    pub(super) fn new(body: &Arc<Body>, version: Arc<Version>, level: u32, run: u64) -> Output {
        Output {
            level,
            run,
            version,
            stripes: body.ground.snapshots.stripes(),
            dropped: body.ground.dropped.all(),
            writer: None,
            done: Vec::new(),
            keyspace: 0,
            key: Vec::new(),
            kept: None,
            any: false,
            entries: 0,
            charged: 0,
            body: Arc::clone(body),
        }
    }

    fn shelf(&self) -> &Arc<Shelf> {
        &self.body.shelf
    }

    /// Whether the next entry is of the key of the last.
    pub(super) fn same_key(&self, entry: &EntryView<'_>) -> bool {
        self.any && entry.keyspace == self.keyspace && entry.key == self.key.as_slice()
    }

    /// Whether nobody can tell two versions of a key apart.
    pub(super) fn same_stripe(&self, newer: SeqNo, older: SeqNo) -> bool {
        self.stripes.same(newer, older)
    }

    /// Whether the table being written is as large as one should be.
    pub(super) fn is_full(&self) -> bool {
        let Some(writer) = &self.writer else {
            return false;
        };
        let wanted = self.shelf().options.table_bytes;
        writer.estimated_bytes() >= wanted || {
            // Looked at only when the table is worth a file of its own.
            writer.estimated_bytes() >= wanted / 4 && self.overlap_below() >= OVERLAP_MAX * wanted
        }
    }

    /// Bytes on the level below that the table being written overlaps so far.
    fn overlap_below(&self) -> u64 {
        let (Some(writer), below) = (&self.writer, self.level as usize + 1) else {
            return 0;
        };
        if self.level == 0 || below > self.version.levels.len() {
            return 0;
        }
        let Some(first) = writer.first_entry() else {
            return 0;
        };
        let last = (self.keyspace, self.key.as_slice());
        let tables = self.version.level(below).overlapping(first, last);
        tables.iter().map(|t| t.meta.bytes).sum()
    }

    /// Whether somebody may read the entry, which comes after all that were offered before.
    fn wants(&self, entry: &EntryView<'_>, same_key: bool) -> bool {
        if self.dropped.binary_search(&entry.keyspace).is_ok() {
            return false;
        }
        if same_key
            && self
                .kept
                .is_some_and(|newer| self.stripes.same(newer, entry.seq))
        {
            return false;
        }
        true
    }

    /// Whether a tombstone may have something to hide, here or below.
    fn hides(&self, entry: &EntryView<'_>) -> bool {
        self.stripes.any_before(entry.seq)
            || self
                .version
                .reaches_below(self.level as usize, entry.keyspace, entry.key)
    }

    /// Takes the next entry. Returns the bytes that it brought.
    pub(super) fn offer(&mut self, entry: &EntryView<'_>, value: &[u8]) -> Result<usize> {
        let same_key = self.same_key(entry);
        let wanted = self.wants(entry, same_key);
        if !same_key {
            self.keyspace = entry.keyspace;
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            self.kept = None;
            self.any = true;
        }
        if !wanted {
            return Ok(0);
        }
        self.kept = Some(entry.seq);
        let tombstone = EntryKind::from_raw(entry.kind) == Some(EntryKind::Delete);
        if tombstone && !self.hides(entry) {
            return Ok(0);
        }
        if self.writer.is_none() {
            let number = self.body.ground.next_id();
            let shelf = &self.body.shelf;
            let path = shelf.path(number);
            let options = shelf.table_options(self.level);
            self.writer = Some(SstWriter::create(&shelf.fs, &path, number, options)?);
        }
        if let Some(writer) = &mut self.writer {
            writer.add(&NewEntry {
                keyspace: entry.keyspace,
                key: entry.key,
                seq: entry.seq,
                kind: entry.kind,
                expiry: 0,
                value,
            })?;
            self.entries += 1;
            let bytes = writer.estimated_bytes();
            let more = bytes.saturating_sub(self.charged);
            self.body.ground.pace.charge(more);
            self.charged += more;
        }
        Ok(entry.key.len() + value.len())
    }

    /// Makes the table being written durable.
    pub(super) fn close_table(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else {
            return Ok(());
        };
        self.charged = 0;
        let number = writer.number();
        let finished = writer.finish();
        let finished = finished.inspect_err(|_| {
            let _ = self.shelf().fs.remove(&self.shelf().path(number));
        })?;
        let counted = crate::metrics::OpCounter::TableFileBytes;
        self.body.ground.counters.add(counted, finished.file_bytes);
        let of_level = &self.body.written[self.level as usize];
        of_level.fetch_add(finished.file_bytes, Ordering::Relaxed);
        self.done.push(self.meta(finished));
        Ok(())
    }

    fn meta(&self, finished: Finished) -> FileMeta {
        let Finished {
            number,
            file_bytes,
            properties,
        } = finished;
        let (first, last) = properties.entries.unwrap_or_default();
        let (seq_first, seq_last) = properties.seqs.unwrap_or_default();
        FileMeta {
            number,
            level: self.level,
            run: self.run,
            bytes: file_bytes,
            entries: properties.entry_count,
            tombstones: properties.tombstone_count,
            seq_first,
            seq_last,
            first: (first.keyspace, first.key),
            last: (last.keyspace, last.key),
        }
    }

    /// Entries written so far.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// The tables that were written, and the changes that name them. The last one is closed.
    pub(super) fn finish(&mut self) -> (Vec<Table>, Vec<Change>) {
        let shelf = Arc::clone(self.shelf());
        let done = std::mem::take(&mut self.done);
        let next = done.iter().map(|meta| meta.number + 1).max();
        let mut changes: Vec<Change> = done.iter().cloned().map(Change::FileAdded).collect();
        changes.extend(next.map(|id| Change::NextId { id }));
        let tables = done.into_iter().map(|meta| Table::new(&shelf, meta));
        (tables.collect(), changes)
    }

    /// Begins again from nothing: removes everything that was written; what cannot be removed is left for recovery.
    pub(super) fn abandon(&mut self) {
        if let Some(writer) = self.writer.take() {
            let _ = writer.abandon();
        }
        for meta in std::mem::take(&mut self.done) {
            let _ = self.shelf().fs.remove(&self.shelf().path(meta.number));
        }
        self.charged = 0;
        self.any = false;
        self.kept = None;
        self.entries = 0;
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // A job that was cancelled leaves no files. What `finish` gave away is not here any more.
        self.abandon();
    }
}
