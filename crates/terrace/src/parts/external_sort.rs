//! External sort of entries that exceed memory, in runs that are table files without a
//! database.
//!
//! Entries are collected in memory, written as a sorted run when it is full, and merged at the end.
//! Runs are merged into one when there are too many to keep open. Entries with the same key and
//! number are equal, so one of them is kept. The files are removed when the value is dropped.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::FileSystem;

use crate::error::Result;
use crate::parts::expiry::Millis;
use crate::parts::iter::{Cursor, MergeCursor};
use crate::parts::key::Target;
use crate::parts::sstable::{
    NewEntry, ReadMode, SsTable, SstCache, SstCursor, SstOptions, SstWriter,
};
use crate::types::{DbId, EntryKind, SeqNo, draft_of};

/// BOUND: the maximum number of runs that are open at a time.
const RUNS_MAX: usize = 64;
/// The memory of an entry in addition to its key and value.
const ENTRY_BYTES: usize = size_of::<Kept>();

/// A put or a delete to be sorted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SortedEntry<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) seq: SeqNo,
    pub(crate) deletes: bool,
    /// 0 for never.
    pub(crate) expiry: Millis,
    pub(crate) value: &'a [u8],
}

/// An entry in memory, with the offsets of its key and of its value in the arena.
struct Kept {
    keyspace: u32,
    deletes: bool,
    key_at: usize,
    value_at: usize,
    end: usize,
    seq: SeqNo,
    expiry: Millis,
}

/// Entries being sorted.
pub(crate) struct ExternalSort {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    memory_bytes: usize,
    arena: Vec<u8>,
    kept: Vec<Kept>,
    /// The numbers of the runs written so far.
    runs: Vec<u64>,
    next_run: u64,
}

impl ExternalSort {
    /// Creates a sorter that writes a run into the directory `dir` whenever entries exceed
    /// `memory_bytes`; a single entry may exceed it.
    pub(crate) fn new(fs: &Arc<dyn FileSystem>, dir: &Path, memory_bytes: usize) -> ExternalSort {
        ExternalSort {
            fs: Arc::clone(fs),
            dir: dir.to_owned(),
            memory_bytes,
            arena: Vec::new(),
            kept: Vec::new(),
            runs: Vec::new(),
            next_run: 0,
        }
    }

    /// Adds an entry; the order of calls does not matter.
    pub(crate) fn push(&mut self, entry: &SortedEntry<'_>) -> Result<()> {
        let bytes = entry.key.len() + entry.value.len();
        let held = self.arena.len() + self.kept.len() * ENTRY_BYTES;
        if held + bytes + ENTRY_BYTES > self.memory_bytes && !self.kept.is_empty() {
            self.write_run()?;
        }
        let key_at = self.arena.len();
        self.arena.extend_from_slice(entry.key);
        let value_at = self.arena.len();
        self.arena.extend_from_slice(entry.value);
        self.kept.push(Kept {
            keyspace: entry.keyspace,
            deletes: entry.deletes,
            key_at,
            value_at,
            end: self.arena.len(),
            seq: entry.seq,
            expiry: entry.expiry,
        });
        Ok(())
    }

    /// Returns all entries sorted by keyspace and key, the newest version of a key first. The files
    /// are kept until the value is dropped.
    pub(crate) fn merged(&mut self) -> Result<MergeCursor> {
        if !self.kept.is_empty() {
            self.write_run()?;
        }
        self.arena = Vec::new();
        self.kept = Vec::new();
        self.merge_of(&self.runs)
    }

    fn path(&self, run: u64) -> PathBuf {
        self.dir.join(format!("sort-{run:06}"))
    }

    fn writer(&mut self) -> Result<(u64, SstWriter)> {
        let run = self.next_run;
        self.next_run += 1;
        let options = SstOptions {
            filter_bits_per_key: 0,
            ..SstOptions::default()
        };
        let writer = SstWriter::create(&self.fs, &self.path(run), run, options)?;
        self.runs.push(run);
        Ok((run, writer))
    }

    fn write_run(&mut self) -> Result<()> {
        if self.runs.len() >= RUNS_MAX {
            self.merge_runs()?;
        }
        let (_, mut writer) = self.writer()?;
        let arena = &self.arena;
        let key = |kept: &Kept| &arena[kept.key_at..kept.value_at];
        self.kept.sort_by(|a, b| {
            let order = a.keyspace.cmp(&b.keyspace);
            order
                .then_with(|| key(a).cmp(key(b)))
                .then_with(|| b.seq.cmp(&a.seq))
        });
        let mut last: Option<&Kept> = None;
        for kept in &self.kept {
            let same = |last: &Kept| {
                last.keyspace == kept.keyspace && last.seq == kept.seq && key(last) == key(kept)
            };
            if last.is_some_and(same) {
                continue;
            }
            writer.add(&NewEntry {
                keyspace: kept.keyspace,
                key: key(kept),
                seq: kept.seq,
                kind: raw_kind(kept.deletes),
                expiry: kept.expiry,
                value: &arena[kept.value_at..kept.end],
            })?;
            last = Some(kept);
        }
        writer.finish()?;
        self.kept.clear();
        self.arena.clear();
        // The memory of one large value is not kept for all entries that follow.
        self.arena.shrink_to(self.memory_bytes);
        Ok(())
    }

    /// Merges all runs into one.
    fn merge_runs(&mut self) -> Result<()> {
        let old = self.runs.clone();
        let mut merged = self.merge_of(&old)?;
        merged.seek(&Target::first_of(0, &[]))?;
        let (run, mut writer) = self.writer()?;
        let mut last: Option<(u32, Vec<u8>, SeqNo)> = None;
        while let Some(entry) = merged.entry()? {
            let same = last.as_ref().is_some_and(|(keyspace, key, seq)| {
                (*keyspace, *seq) == (entry.keyspace, entry.seq) && key == entry.key
            });
            if !same {
                let value = merged.value()?;
                writer.add(&NewEntry {
                    keyspace: entry.keyspace,
                    key: entry.key,
                    seq: entry.seq,
                    kind: entry.kind,
                    expiry: value.expiry,
                    value: value.bytes,
                })?;
                last = Some((entry.keyspace, entry.key.to_vec(), entry.seq));
            }
            merged.advance()?;
        }
        writer.finish()?;
        drop(merged);
        for old in old {
            self.remove(old);
        }
        self.runs = vec![run];
        Ok(())
    }

    fn merge_of(&self, runs: &[u64]) -> Result<MergeCursor> {
        // Each cursor holds its own block, and no block is read twice.
        let cache = Arc::new(SstCache::new(0));
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::with_capacity(runs.len());
        for &run in runs {
            let path = self.path(run);
            let table = SsTable::open(&*self.fs, &path, run, ReadMode::Buffered, &cache)?;
            cursors.push(Box::new(SstCursor::new(Arc::new(table), false)));
        }
        Ok(MergeCursor::new(cursors))
    }

    fn remove(&self, run: u64) {
        // A file that cannot be removed is in a directory that is not a database yet.
        let path = self.path(run);
        for path in [draft_of(&path, DbId::default()), path] {
            let _ = self.fs.remove(&path);
        }
    }
}

impl Drop for ExternalSort {
    fn drop(&mut self) {
        for &run in &self.runs {
            self.remove(run);
        }
    }
}

fn raw_kind(deletes: bool) -> u8 {
    match deletes {
        true => EntryKind::Delete as u8,
        false => EntryKind::Put as u8,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use std::collections::BTreeMap;

    use terrace_media::OsFs;

    use super::*;

    /// Entries are returned in order and duplicates once, for any input order and any number of
    /// runs; no file is left.
    #[test]
    fn entries_come_back_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let fs: Arc<dyn FileSystem> = Arc::new(OsFs);
        let mut rng = fastrand::Rng::with_seed(5);
        for memory_bytes in [1, 600, 1 << 20] {
            let mut sort = ExternalSort::new(&fs, folder.path(), memory_bytes);
            let mut wanted = BTreeMap::new();
            for seq in 0..500u64 {
                let (keyspace, key) = (rng.u32(0..3), rng.u16(0..200).to_be_bytes());
                let value = vec![key[1]; rng.usize(..40)];
                let (deletes, expiry) = (seq % 7 == 0, seq % 5);
                let place = (keyspace, key, u64::MAX - seq);
                let value = if deletes { Vec::new() } else { value };
                let entry = SortedEntry {
                    keyspace,
                    key: &key,
                    seq,
                    deletes,
                    expiry,
                    value: &value,
                };
                for _ in 0..=seq % 3 {
                    sort.push(&entry).unwrap();
                }
                wanted.insert(place, (deletes, expiry, value));
            }
            let mut merged = sort.merged().unwrap();
            merged.seek(&Target::first_of(0, &[])).unwrap();
            let mut found = BTreeMap::new();
            let mut last = None;
            while let Some(entry) = merged.entry().unwrap() {
                let key: [u8; 2] = entry.key.try_into().unwrap();
                let place = (entry.keyspace, key, u64::MAX - entry.seq);
                assert!(last <= Some(place), "in order");
                last = Some(place);
                let deletes = entry.kind == EntryKind::Delete as u8;
                let value = merged.value().unwrap();
                found.insert(place, (deletes, value.expiry, value.bytes.to_vec()));
                merged.advance().unwrap();
            }
            assert!(found == wanted, "with {memory_bytes} bytes of memory");
            drop(merged);
            drop(sort);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}
