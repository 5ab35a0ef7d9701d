//! Versions: the tables that are live at one moment, by level, and the files behind them.
//!
//! A version never changes; a job that ends makes the next one. A file is removed when the last
//! version that holds it is gone and the manifest no longer names it. A table holds the value files
//! that it points into.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::parts::key::{KeyRange, Place};
use crate::parts::memory::Memory;
use crate::parts::ranges::{Fragments, Keep, Key, RangeDelete};
use crate::parts::segments::{Held, Space};
use crate::parts::sstable::FileMeta;
use crate::parts::sstable::SsTable;

use super::TableStore;
use super::value_file::{NAME_BYTES, ValueHandle, Values};

/// The file of a table.
pub(super) struct TableSpace {
    store: Arc<TableStore>,
    number: u64,
    /// The level for which it was written.
    level: u32,
}

impl Space for TableSpace {
    fn give_back(&mut self) {
        let store = &self.store;
        store.open.forget(self.number);
        store.blocks.forget(self.number);
        // CRASH: no edit names a file that stays; opening the database removes it.
        let _ = store.fs.remove(&store.path(self.number, self.level));
    }
}

/// The memory of a live table in addition to its keys: its metadata, its handle, its places in two
/// versions and in two states of the manifest.
const TABLE_BYTES: u64 =
    (size_of::<FileMeta>() + size_of::<Held<TableSpace>>() + 3 * size_of::<Table>()) as u64 + 256;

/// A live table.
#[derive(Clone)]
pub(super) struct Table {
    pub(super) meta: Arc<FileMeta>,
    /// Its range deletes.
    pub(super) ranges: Arc<Vec<RangeDelete>>,
    /// Keyspaces that had been dropped when it was written, so that it has no entries of them.
    /// Empty for a table that was found when the database was opened.
    without: Arc<Vec<u32>>,
    /// About how many bytes of older tables its entries supersede; 0 if unknown.
    superseded: u64,
    handle: Arc<Held<TableSpace>>,
    /// The value files that it points into, ascending.
    pub(super) values: Arc<[Arc<ValueHandle>]>,
}

impl Table {
    pub(super) fn new(
        store: &Arc<TableStore>,
        meta: FileMeta,
        ranges: Vec<RangeDelete>,
        values: Arc<[Arc<ValueHandle>]>,
    ) -> Table {
        let handle = Held::new(TableSpace {
            store: Arc::clone(store),
            number: meta.number,
            level: meta.level,
        });
        Table {
            meta: Arc::new(meta),
            ranges: Arc::new(ranges),
            without: Arc::default(),
            superseded: 0,
            handle,
            values,
        }
    }

    /// Sets the bytes of older tables that the table supersedes.
    pub(super) fn superseding(mut self, bytes: u64) -> Table {
        self.superseded = bytes;
        self
    }

    /// Returns about how many bytes of older tables its entries supersede.
    pub(super) fn superseded(&self) -> u64 {
        self.superseded
    }

    /// Marks the table as having no entries of these dropped keyspaces.
    pub(super) fn written_without(mut self, dropped: &Arc<Vec<u32>>) -> Table {
        self.without = Arc::clone(dropped);
        self
    }

    /// Returns those of `dropped`, ascending keyspaces, between the first and the last entry.
    fn dropped_inside<'a>(&self, dropped: &'a [u32]) -> &'a [u32] {
        let from = dropped.partition_point(|id| *id < self.meta.first.0);
        let to = dropped.partition_point(|id| *id <= self.meta.last.0);
        &dropped[from..to.max(from)]
    }

    /// Returns whether entries of dropped keyspaces may be in it.
    pub(super) fn may_have_dropped(&self, dropped: &Arc<Vec<u32>>) -> bool {
        if Arc::ptr_eq(&self.without, dropped) {
            return false;
        }
        let inside = self.dropped_inside(dropped).iter();
        inside
            .copied()
            .any(|id| self.without.binary_search(&id).is_err())
    }

    /// Returns whether the table holds nothing but dropped keyspaces.
    pub(super) fn is_dropped(&self, dropped: &[u32]) -> bool {
        let all = self.meta.last.0 - self.meta.first.0 + 1;
        self.dropped_inside(dropped).len() == all as usize
            && (self.ranges.iter()).all(|r| dropped.binary_search(&r.keyspace).is_ok())
    }

    pub(super) fn number(&self) -> u64 {
        self.meta.number
    }

    /// Returns the same file as a table of another level.
    pub(super) fn moved_to(&self, level: u32) -> Table {
        let meta = FileMeta {
            level,
            run: 0,
            ..FileMeta::clone(&self.meta)
        };
        Table {
            meta: Arc::new(meta),
            ranges: Arc::clone(&self.ranges),
            without: Arc::clone(&self.without),
            superseded: self.superseded,
            handle: Arc::clone(&self.handle),
            values: Arc::clone(&self.values),
        }
    }

    /// Returns whether it may have entries that no reader can see, if there is nothing below it.
    pub(super) fn may_have_unreadable(&self) -> bool {
        let meta = &self.meta;
        meta.tombstones > 0 || meta.range_deletes > 0 || meta.older > 0 || meta.expiring > 0
    }

    /// Returns the bytes of its records in value files.
    pub(super) fn values_bytes(&self) -> u64 {
        self.meta.values.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the open table.
    pub(super) fn open(&self) -> Result<Arc<SsTable>> {
        let store = &self.handle.store;
        let number = self.number();
        store.open.get_or_open(number, || {
            let path = self.path();
            let (fs, mode) = (&*store.fs, store.read_mode());
            let table = SsTable::open(fs, &path, number, mode, &store.blocks)?;
            if table.db() != store.db {
                return Err(Error::corruption(format!(
                    "{} is a table of another database, {}, and this one is {}: restore the file \
                     from a copy, or recover the readable data with \"terrace repair\"",
                    path.display(),
                    table.db(),
                    store.db
                )));
            }
            Ok(Arc::new(table))
        })
    }

    /// Returns the memory that reads of the table count towards.
    pub(super) fn memory(&self) -> &Memory {
        self.handle.store.blocks.memory()
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> PathBuf {
        self.handle.store.path(self.number(), self.handle.level)
    }

    /// Lets the file be removed once it has no readers.
    fn retire(&self) {
        self.handle.retire();
    }

    /// Returns whether the table may have entries or range deletes between two keys, both included.
    fn overlaps(&self, first: (u32, &[u8]), last: (u32, &[u8])) -> bool {
        let (begin, end) = self.reach();
        begin <= last && end >= first
    }

    /// Returns the bounds of the table's entries and range deletes. If a range delete ends at the
    /// second key, that key is not itself among them; including it costs only space.
    pub(super) fn reach(&self) -> (Key<'_>, Key<'_>) {
        match &self.meta.reach {
            Some((begin, end)) => ((begin.0, &begin.1), (end.0, &end.1)),
            None => (self.first(), self.last()),
        }
    }

    /// Returns whether all of the table, range deletes included, is before a key.
    pub(super) fn ends_before(&self, key: Key<'_>) -> bool {
        let end = self.reach().1;
        // A reach that ends after the last entry is the exclusive end of a range delete.
        end < key || end == key && end > self.last()
    }

    /// Returns whether all of the table is before a place.
    pub(super) fn is_before(&self, place: Option<&Place>) -> bool {
        place.is_some_and(|(keyspace, key)| self.ends_before((*keyspace, key)))
    }

    /// Returns whether some of the table may be in a range.
    pub(super) fn is_in(&self, keys: &KeyRange) -> bool {
        let (keyspace, key) = self.reach().0;
        !keys.ends_before(keyspace, key) && !self.is_before(keys.from.as_ref())
    }

    /// Returns whether the table reaches further than another.
    pub(super) fn ends_behind(&self, other: &Table) -> bool {
        let (end, its) = (self.reach().1, other.reach().1);
        end > its || end == its && end == self.last()
    }

    /// Returns whether the table has something on both sides of a key; the key itself is on the
    /// second.
    pub(super) fn reaches_over(&self, key: Key<'_>) -> bool {
        self.reach().0 < key && !self.ends_before(key)
    }

    /// Returns keyspace and key of the first entry.
    pub(super) fn first(&self) -> (u32, &[u8]) {
        (self.meta.first.0, &self.meta.first.1)
    }

    /// Returns keyspace and key of the last entry.
    pub(super) fn last(&self) -> (u32, &[u8]) {
        (self.meta.last.0, &self.meta.last.1)
    }
}

/// Disjoint tables in key order.
#[derive(Default)]
pub(super) struct Run {
    /// 0 for the run of a level below the first.
    pub(super) id: u64,
    pub(super) tables: Vec<Table>,
    /// The bytes of all tables: each query of the pressure reads them, and the run never changes.
    bytes: u64,
    /// Bytes of older tables that those of the run supersede.
    superseded: u64,
}

impl Run {
    /// Creates the run of some tables of a level below the first.
    pub(super) fn of(tables: Vec<Table>) -> Run {
        Run::with(0, tables)
    }

    fn with(id: u64, tables: Vec<Table>) -> Run {
        Run {
            id,
            bytes: tables.iter().map(|t| t.meta.bytes).sum(),
            superseded: tables.iter().map(Table::superseded).sum(),
            tables,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn superseded(&self) -> u64 {
        self.superseded
    }

    /// Returns two neighbours that are not disjoint (L2), if there are any.
    pub(super) fn overlap(&self) -> Option<(&Table, &Table)> {
        let mut pairs = self.tables.windows(2);
        let pair = pairs.find(|pair| pair[0].last() >= pair[1].first())?;
        Some((&pair[0], &pair[1]))
    }

    /// Returns the position of the first table that ends at or after a key.
    pub(super) fn position(&self, keyspace: u32, key: &[u8]) -> usize {
        self.tables.partition_point(|t| t.last() < (keyspace, key))
    }

    /// Returns the tables that may have entries or range deletes between two keys.
    pub(super) fn overlapping(&self, first: (u32, &[u8]), last: (u32, &[u8])) -> &[Table] {
        let from = self.tables.partition_point(|t| t.reach().1 < first);
        let count = self.tables[from..]
            .iter()
            .take_while(|t| t.overlaps(first, last))
            .count();
        &self.tables[from..from + count]
    }

    fn edited(&self, removed: &[u64], added: &[Table]) -> Run {
        let kept = self.tables.iter();
        let kept = kept.filter(|t| !removed.contains(&t.number()));
        let mut tables: Vec<Table> = kept.chain(added).cloned().collect();
        tables.sort_by(|a, b| a.first().cmp(&b.first()));
        Run::with(self.id, tables)
    }
}

/// All live tables.
#[derive(Default)]
pub(super) struct Version {
    /// Level 0, the newest run first.
    pub(super) runs: Vec<Arc<Run>>,
    /// Level 1 and those below it.
    pub(super) levels: Vec<Arc<Run>>,
    /// The range deletes of all tables, as readers query them.
    pub(super) ranges: Option<Arc<Fragments>>,
    /// All value files by number.
    pub(super) values: Arc<Values>,
}

impl Version {
    /// Creates the version of these tables, with `depth` levels below level 0.
    pub(super) fn of(depth: usize, tables: &[Table], values: &[Arc<ValueHandle>]) -> Version {
        let empty = Version {
            runs: Vec::new(),
            levels: (0..depth).map(|_| Arc::default()).collect(),
            ranges: None,
            values: Arc::default(),
        };
        empty.edited(&[], tables, values)
    }

    /// Returns the version without some tables, and with additional tables and value files. Value
    /// files without a live value stay.
    pub(super) fn edited(
        &self,
        removed: &[u64],
        added: &[Table],
        added_values: &[Arc<ValueHandle>],
    ) -> Version {
        let mut runs: Vec<Arc<Run>> = Vec::new();
        for run in &self.runs {
            if run.tables.iter().all(|t| !removed.contains(&t.number())) {
                runs.push(Arc::clone(run));
                continue;
            }
            let run = run.edited(removed, &[]);
            if !run.tables.is_empty() {
                runs.push(Arc::new(run));
            }
        }
        for table in added.iter().filter(|t| t.meta.level == 0) {
            let id = table.meta.run;
            let at = runs.partition_point(|run| run.id > id);
            let run = match runs.get(at) {
                Some(run) if run.id == id => runs.remove(at),
                _ => Arc::new(Run::with(id, Vec::new())),
            };
            let run = run.edited(&[], std::slice::from_ref(table));
            runs.insert(at, Arc::new(run));
        }
        let mut levels = self.levels.clone();
        for (at, level) in levels.iter_mut().enumerate() {
            let of_level = |t: &&Table| t.meta.level as usize == at + 1;
            let more: Vec<Table> = added.iter().filter(of_level).cloned().collect();
            let loses = level.tables.iter().any(|t| removed.contains(&t.number()));
            if loses || !more.is_empty() {
                *level = Arc::new(level.edited(removed, &more));
            }
        }
        let gone = self.tables().filter(|t| removed.contains(&t.number()));
        let gone = gone.map(|table| table.meta.values.as_slice());
        let new = added.iter().map(|table| table.meta.values.as_slice());
        let values = self.values.edited(gone, new, added_values);
        let mut version = Version {
            runs,
            levels,
            ranges: None,
            values,
        };
        let ranges: Vec<RangeDelete> = version
            .tables()
            .flat_map(|t| t.ranges.iter().cloned())
            .collect();
        version.ranges = (!ranges.is_empty()).then(|| Arc::new(Fragments::new(ranges, Keep::All)));
        version
    }

    /// Returns the memory of the tables' names, with those of the previous version and of the
    /// manifest; their range deletes are counted elsewhere.
    pub(super) fn names_bytes(&self) -> u64 {
        let key = |(_, key): &(u32, Vec<u8>)| key.capacity() as u64;
        let table = |table: &Table| {
            let meta = &table.meta;
            let reach = meta.reach.as_ref();
            let reach = reach.map_or(0, |(begin, end)| key(begin) + key(end));
            let values = 24 * meta.values.len() as u64;
            key(&meta.first) + key(&meta.last) + reach + values + TABLE_BYTES
        };
        self.tables().map(table).sum::<u64>() + self.values.totals().0 * NAME_BYTES
    }

    /// Returns the version without the runs of level 0 that are not older than `run` of `level`:
    /// the data that a writer of that run may find below its tables.
    pub(super) fn below(&self, (level, run): (u32, u64)) -> Version {
        let older = self
            .runs
            .iter()
            .filter(|other| level == 0 && other.id < run);
        Version {
            runs: older.cloned().collect(),
            levels: self.levels.clone(),
            ranges: self.ranges.clone(),
            values: Arc::default(),
        }
    }

    /// Returns the version without value files, which no table points into.
    pub(super) fn without_values(&self, forgotten: &[u64]) -> Version {
        Version {
            runs: self.runs.clone(),
            levels: self.levels.clone(),
            ranges: self.ranges.clone(),
            values: self.values.without(forgotten),
        }
    }

    /// Returns the runs above `run` of `level`.
    pub(super) fn above(&self, (level, run): (u32, u64)) -> impl Iterator<Item = &Arc<Run>> {
        let runs = self.runs.iter();
        let newer = runs.filter(move |other| level > 0 || other.id > run);
        newer.chain(&self.levels[..(level as usize).saturating_sub(1)])
    }

    /// Returns the run of a level below level 0.
    pub(super) fn level(&self, level: usize) -> &Arc<Run> {
        &self.levels[level - 1]
    }

    /// Returns all tables, newest data first.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table> {
        let runs = self.runs.iter().chain(&self.levels);
        runs.flat_map(|run| &run.tables)
    }

    /// Lets the files with these numbers be removed.
    pub(super) fn retire(&self, removed: &[u64]) {
        let tables = self.tables();
        tables
            .filter(|t| removed.contains(&t.number()))
            .for_each(Table::retire);
    }

    /// Returns whether a table older than those written to `level` may have keys between two.
    pub(super) fn reaches_below(
        &self,
        level: usize,
        first: (u32, &[u8]),
        last: (u32, &[u8]),
    ) -> bool {
        let older = match level {
            0 => self.runs.as_slice(),
            _ => &[],
        };
        let deeper = &self.levels[level.min(self.levels.len())..];
        older
            .iter()
            .chain(deeper)
            .any(|run| !run.overlapping(first, last).is_empty())
    }
}
