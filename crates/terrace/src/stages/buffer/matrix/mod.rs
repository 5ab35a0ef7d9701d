//! Matrix container (MatrixKV, section 3): level 0 as a matrix in the pool. Each flushed memtable
//! becomes a row; the oldest rows leave in columns, which are ranges of keys over all of them, and
//! each column gives its space back.
//!
//! The rows that leave together are the compactor, all newer ones the receiver (section 3.1). The
//! receiver becomes the compactor, without moving data, when the compactor is empty and the rows
//! take three fifths of the container or are many, or when space is short. Then columns follow one
//! another from the first key to the last, each as wide as the bottom chooses (section 3.2), while
//! the receiver takes more rows. The manifest records for each row how far it is drained. Without
//! columns the compactor leaves at once, and the bottom may divide that drain among threads.
//!
//! Invariants
//!   X1  Rows are ordered by age: every sequence number in a newer one is above every one in an
//!       older one.
//!   X2  A row belongs to at most one drain. The rows of the compactor are the oldest ones, and
//!       equally far drained.
//!   X3  If the pool is memory, a log is needed until the row that has its entries is drained. The
//!       compactor leaves in one drain then: after a crash between two of them the replayed entries
//!       would be above what is drained, and those of unsynced logs would be missing.
//!   X4  A row shows no key that is drained, since the bytes of its entry may be gone.
//!   X5  A group is freed when no view has a row with it: rows never change, and each column makes
//!       new ones with fewer groups.
//!
//! CRASH: a column whose edit is not durable is still in its rows, and the tables that it was
//! written to are removed. One whose edit is durable is in the bottom; groups that the row no
//! longer names are free.

mod flush;
mod layout;
mod newer;
mod row;
mod salvage;
mod source;
mod writer;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::canary::failpoint;
use crate::error::Result;
use crate::metrics::{LevelMetrics, Metrics};
use crate::parts::batch::Batch;
use crate::parts::iter::{Cursor, MergeCursor};
use crate::parts::key::{KeyRange, Place, Target};
use crate::parts::manifest::{Change, Edit, State as ManifestState};
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::ranges::{RangeDelete, Readable};
use crate::stages::{
    Buffer, Columns, Drain, DrainParts, EntryCount, Job, NewerVersions, Rows as Sized, Sealed,
    Shared, Source, Sources, Urgency,
};
use crate::types::SeqNo;

use flush::Flush;
use layout::RowMeta;
use newer::Newer;
use row::{Row, RowCursor, State};
use source::{RowsSource, Search};

pub(crate) use layout::ROW;
pub(crate) use salvage::SALVAGE;

/// The percentage of the container at which the receiver becomes the compactor (section 3.1).
const COMPACTOR_PERCENT: u64 = 60;

/// BOUND: the number of rows at which the receiver becomes the compactor, whatever their bytes:
/// each read searches all rows, and a flush of a few entries makes one too.
const ROWS_MAX: usize = 256;

/// All rows, newest first.
#[derive(Default)]
struct Rows(Mutex<Vec<Arc<Row>>>);

impl Rows {
    fn insert(&self, row: Arc<Row>) {
        let mut rows = self.0.lock();
        let at = rows.partition_point(|other| other.meta.seqs.1 > row.meta.seqs.1);
        rows.insert(at, row);
    }

    fn newest(&self) -> Option<Arc<Row>> {
        self.0.lock().first().cloned()
    }
}

/// The buffer of one database.
pub(crate) struct Matrix {
    shared: Arc<Shared>,
    rows: Arc<Rows>,
    container_bytes: u64,
    search: Search,
}

/// The bytes that rows may take: of the pool, or of logs where these limit what is in memory.
pub(crate) fn container_bytes(shared: &Shared) -> u64 {
    let options = &shared.options;
    match shared.pool_outlives() {
        true => options.pool.size_bytes,
        false => options.pool.size_bytes.min(options.front.log_bytes_max),
    }
}

/// The compactor: the rows that drain together, newest first.
#[derive(Clone)]
struct Compactor {
    rows: Vec<Arc<Row>>,
    /// The place up to which they are drained.
    drained: Option<Place>,
}

impl Compactor {
    /// Returns the rows whose columns have begun, or else those that are due now, up to `bytes_max`
    /// if it is not `None`.
    fn of(rows: &[Arc<Row>], is_due: bool, bytes_max: Option<u64>) -> Option<Compactor> {
        let drained = rows.last()?.meta.drained.clone();
        if drained.is_none() && !is_due {
            return None;
        }
        let (mut bytes, mut taken) = (0, Vec::new());
        for row in rows.iter().rev() {
            let fits = bytes_max.is_none_or(|most| bytes + row.live_bytes() <= most);
            if row.meta.drained != drained || !fits && !taken.is_empty() {
                break;
            }
            // The compactor may have begun a column.
            if row.state.lock().busy {
                return None;
            }
            bytes += row.live_bytes();
            taken.insert(0, Arc::clone(row));
        }
        Some(Compactor {
            rows: taken,
            drained,
        })
    }
}

impl Sized for Compactor {
    fn bytes(&self, keys: &KeyRange) -> Result<u64> {
        let bytes = self.rows.iter().map(|row| Ok(row.bytes(keys)?));
        bytes.sum()
    }

    fn key_after(&self, from: Option<&Place>, bytes: u64) -> Result<Option<Place>> {
        let mut keys = KeyRange {
            from: from.cloned(),
            to: None,
        };
        if self.bytes(&keys)? <= bytes {
            return Ok(None);
        }
        // BOUND: the range ends before the second key of the largest row after each iteration but
        // the last, so that each row is the largest at most once.
        loop {
            let (count, row) = self.largest_in(&keys)?;
            if count <= 2 {
                return self.among_few(keys, bytes);
            }
            // The largest row stands for all; where it does not, the column is made narrower.
            let all = self.bytes(&keys)?.max(1);
            let mut part = (u128::from(count) * u128::from(bytes) / u128::from(all)) as u64;
            // BOUND: the part halves.
            let narrow = loop {
                let place = row.key_after(&keys, part.max(1))?;
                let narrow = KeyRange {
                    from: keys.from.clone(),
                    to: place.or_else(|| keys.to.clone()),
                };
                if self.bytes(&narrow)? <= bytes {
                    return Ok(narrow.to);
                }
                if part <= 1 {
                    break narrow;
                }
                part /= 2;
            };
            // All that the row has there may be versions of one key.
            if narrow.to == keys.to {
                return Ok(narrow.to);
            }
            keys = narrow;
        }
    }
}

impl Compactor {
    /// Returns ascending keys inside a range, fewer than `count`, with about as many of its `bytes`
    /// between any two.
    fn cuts(&self, keys: &KeyRange, bytes: u64, count: usize) -> Result<Vec<Place>> {
        let part = (bytes / count.max(1) as u64).max(1);
        let mut cuts: Vec<Place> = Vec::new();
        while cuts.len() + 1 < count {
            let from = cuts.last().or(keys.from.as_ref());
            let next = self.key_after(from, part)?;
            match next.filter(|(keyspace, key)| !keys.ends_before(*keyspace, key)) {
                Some(next) if Some(&next) > from => cuts.push(next),
                _ => break,
            }
        }
        Ok(cuts)
    }

    /// Returns the row with most entries in a range, and their number.
    fn largest_in(&self, keys: &KeyRange) -> Result<(u64, &Row)> {
        let mut largest = (0, &*self.rows[0]);
        for row in &self.rows {
            let count = row.count(keys)?;
            if count > largest.0 {
                largest = (count, row);
            }
        }
        Ok(largest)
    }

    /// Returns the same for a range in which each row has two entries at most.
    fn among_few(&self, keys: KeyRange, bytes: u64) -> Result<Option<Place>> {
        let mut entries = Vec::new();
        for row in &self.rows {
            entries.extend(row.keys(&keys)?.into_iter().map(|key| (key, row.mean())));
        }
        entries.sort_unstable();
        let first = entries.first().map(|(first, _)| first.clone());
        let mut sum = 0;
        for (key, len) in entries {
            sum += len;
            if sum > bytes && Some(&key) > first.as_ref() {
                return Ok(Some(key));
            }
        }
        Ok(keys.to)
    }
}

/// Opens every row that the manifest names. A crash leaves nothing else.
pub(crate) fn recover(shared: &Arc<Shared>) -> Result<Matrix> {
    let items = |state: &ManifestState| state.items().cloned().collect();
    let metas: Vec<RowMeta> = shared.manifest.with_state(items);
    let rows = Rows::default();
    let mut ranges = Vec::new();
    for meta in metas {
        let groups = meta.groups.iter();
        let groups = groups.map(|group| shared.pool.adopt(group.span));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let own = meta.array.map(|span| shared.pool.adopt(span)).transpose()?;
        let row = Arc::new(Row::open(meta, groups, own, None, State::default())?);
        ranges.extend(range_deletes(&mut RowCursor::new(Arc::clone(&row)))?);
        rows.insert(row);
    }
    shared.ranges.add(ranges, &Readable::later(), true);
    Ok(Matrix {
        rows: Arc::new(rows),
        container_bytes: container_bytes(shared),
        search: match shared.options.buffer.matrix.hints {
            true => Search::Hints,
            false => Search::Interleaved,
        },
        shared: Arc::clone(shared),
    })
}

/// Returns a cursor over all entries of some rows, newest first.
fn cursor_of(rows: &[Arc<Row>]) -> MergeCursor {
    let cursors = rows
        .iter()
        .map(|row| -> Box<dyn Cursor> { Box::new(RowCursor::new(Arc::clone(row))) });
    MergeCursor::new(cursors.collect())
}

/// Returns the range deletes of a source, which follow all other entries.
fn range_deletes(cursor: &mut dyn Cursor) -> Result<Vec<RangeDelete>> {
    let mut ranges = Vec::new();
    cursor.seek(&Target::first_of(RANGE_DELETE_BIT, &[]))?;
    while let Some(entry) = cursor.entry()? {
        ranges.push(RangeDelete::from_entry(
            entry.keyspace,
            entry.key,
            entry.seq,
            0,
        )?);
        cursor.advance()?;
    }
    Ok(ranges)
}

impl Matrix {
    /// Returns the keys of the next column.
    fn keys_of(compactor: &Compactor, columns: Option<&dyn Columns>) -> Result<Option<KeyRange>> {
        let from = compactor.drained.as_ref();
        match columns {
            Some(columns) => columns.next(from, compactor),
            None => Ok(Some(KeyRange {
                from: from.cloned(),
                to: None,
            })),
        }
    }

    /// Returns the means to drain ranges of these keys at the same time, if the whole compactor
    /// leaves at once. Columns are small, and follow one another (section 3.2).
    fn parts(
        &self,
        compactor: &Compactor,
        all: &[Arc<Row>],
        keys: &KeyRange,
    ) -> Result<Option<DrainParts>> {
        if self.shared.options.buffer.matrix.columns {
            return Ok(None);
        }
        let draining = &compactor.rows;
        let above = all[..all.len() - draining.len()].to_vec();
        let bytes = compactor.bytes(keys)?;
        let (rows, shared) = (Arc::clone(&self.rows), Arc::clone(&self.shared));
        let (cut, opened, drained) = (compactor.clone(), draining.clone(), draining.clone());
        let keys = keys.clone();
        Ok(Some(DrainParts {
            bytes,
            cuts: Box::new(move |count| cut.cuts(&keys, bytes, count)),
            open: Box::new(move || cursor_of(&opened)),
            newer: Box::new(move || Box::new(Newer::new(&rows, &shared, &above, &drained))),
        }))
    }

    /// Returns the rows of a compactor without the keys up to the end of a column, and the manifest
    /// changes that record it.
    fn after(rows: &[Arc<Row>], keys: &KeyRange) -> Result<(Vec<Arc<Row>>, Vec<Change>)> {
        let Some(place) = &keys.to else {
            let removed = rows.iter().map(|row| row.removed());
            return Ok((Vec::new(), removed.collect()));
        };
        let left = rows.iter().map(|row| row.without(place).map(Arc::new));
        let left = left.collect::<Result<Vec<_>>>()?;
        let changes = left.iter().map(|row| Change::changed(row.meta.clone()));
        let changes = changes.collect();
        Ok((left, changes))
    }
}

impl Buffer for Matrix {
    fn flush_job(&self, sealed: Sealed) -> Result<Box<dyn Job>> {
        let (shared, rows) = (Arc::clone(&self.shared), Arc::clone(&self.rows));
        Ok(Box::new(Flush::begin(shared, rows, sealed)))
    }

    fn drains_ranges(&self) -> bool {
        true
    }

    fn flush_bytes(&self) -> u64 {
        // An entry with its slot takes up to a quarter more than the node of a small delete.
        let memtable = self.shared.options.front.memtable_bytes;
        memtable + memtable / 4
    }

    fn build(&self, batch: &Batch, seq: SeqNo) -> Result<Box<dyn Job>> {
        flush::build(&self.shared, &self.rows, batch, seq)
    }

    fn next_job(&self, _: Urgency) -> Result<Option<Box<dyn Job>>> {
        Ok(None)
    }

    fn next_drain(
        &self,
        urgency: Urgency,
        bytes_max: u64,
        columns: Option<&dyn Columns>,
    ) -> Result<Option<Drain>> {
        let mut rows = self.rows.0.lock();
        let taken: u64 = rows.iter().map(|row| row.extent_bytes()).sum();
        let share = self.container_bytes / 100 * COMPACTOR_PERCENT;
        let is_due = urgency > Urgency::None || taken >= share || rows.len() >= ROWS_MAX;
        // Space comes back with each column, but logs only with the last one.
        let bytes_max = (!self.shared.pool_outlives()).then_some(bytes_max);
        let Some(compactor) = Compactor::of(&rows, is_due, bytes_max) else {
            return Ok(None);
        };
        let Some(keys) = Matrix::keys_of(&compactor, columns)? else {
            return Ok(None);
        };
        let is_last = keys.to.is_none();
        let parts = self.parts(&compactor, &rows, &keys)?;
        let draining = compactor.rows;
        let seq_last = draining[0].meta.seqs.1;
        let above = &rows[..rows.len() - draining.len()];
        let newer = Newer::new(&self.rows, &self.shared, above, &draining);
        let (left, mut changes) = Matrix::after(&draining, &keys)?;
        failpoint!(ColumnEarly => {
            rows.retain(|row| !draining.iter().any(|old| old.meta.id == row.meta.id));
            rows.extend(left.iter().cloned());
        });
        if !self.shared.pool_outlives() {
            changes.push(Change::LastSeq { seq: seq_last });
        }
        let (mut entries, mut held) = (0, 0);
        for row in &draining {
            entries += row.count(&keys)? + row.range_deletes()?;
            held += row.extent_bytes();
        }
        held -= left.iter().map(|row| row.extent_bytes()).sum::<u64>();
        let cursor = cursor_of(&draining);
        let mut logs = Vec::new();
        for row in &draining {
            let mut state = row.state.lock();
            state.busy = true;
            // Only this drain has them now.
            logs.push(std::mem::take(&mut state.logs));
        }
        let all = Arc::clone(&self.rows);
        let putting_back = draining.clone();
        Ok(Some(Drain {
            prepare: None,
            cursor,
            keys,
            settles: is_last,
            durable: newer.seq_max().max(seq_last),
            newer: Some(Box::new(newer)),
            seq_last,
            edit: Edit { changes },
            logs: logs.concat(),
            pending_free: self.shared.pending_frees.open(held, entries),
            count: EntryCount::of(entries),
            forget: Box::new(move || {
                let mut rows = all.0.lock();
                rows.retain(|row| !draining.iter().any(|old| old.meta.id == row.meta.id));
                for row in left {
                    row.state.lock().busy = false;
                    rows.push(row);
                }
            }),
            put_back: Some(Box::new(move || {
                for (row, logs) in putting_back.iter().zip(logs) {
                    let mut state = row.state.lock();
                    (state.busy, state.logs) = (false, logs);
                }
            })),
            parts,
        }))
    }

    fn sources(&self) -> Sources {
        let rows: Arc<[Arc<Row>]> = self.rows.0.lock().as_slice().into();
        if rows.is_empty() {
            return Vec::new();
        }
        let search = self.search;
        vec![Arc::new(RowsSource { rows, search }) as Arc<dyn Source>]
    }

    fn newest(&self) -> SeqNo {
        self.rows.newest().map_or(0, |row| row.meta.seqs.1)
    }

    fn table_count(&self) -> usize {
        self.rows.0.lock().len()
    }

    fn table_bytes(&self) -> u64 {
        self.rows.0.lock().iter().map(|row| row.live_bytes()).sum()
    }

    fn measure(&self, metrics: &mut Metrics) {
        let rows = self.rows.0.lock();
        for (level, name) in ["receiver", "compactor"].into_iter().enumerate() {
            let compacted = level == 1;
            let of = rows.iter().filter(|row| {
                let busy = row.state.lock().busy;
                (busy || row.meta.drained.is_some()) == compacted
            });
            let of: Vec<_> = of.collect();
            if rows.is_empty() {
                continue;
            }
            metrics.levels.push(LevelMetrics {
                name,
                level: level as u32,
                table_count: of.len() as u64,
                entry_count: of.iter().map(|row| row.entries() - row.bounds().0).sum(),
                bytes: of.iter().map(|row| row.extent_bytes()).sum(),
                ..Default::default()
            });
        }
    }
}
