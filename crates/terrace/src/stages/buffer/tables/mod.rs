//! Queue of sealed memtables (FlatLSM, section 4.3): each stays as it is, with its log, until all
//! that are due leave together.
//!
//! A table is taken over without an edit and without a copy: it is the index that the front has
//! filled, over values in its log, or, if the pool is memory, a memtable. After a crash the front
//! makes it again from its log. So a log is needed until the drain of its table, whatever the
//! medium.
//!
//! A log that is mostly superseded bytes is written again without them (rewrite.rs), before the
//! tables are enough to drain: keys that are overwritten all the time stay in persistent memory.
//!
//! Invariants
//!   Q1  Tables are ordered by age: every number in a newer one is above every one in an older one.
//!   Q2  A table belongs to at most one drain or rewrite, and tables drain oldest first.
//!   Q3  The edit of a drain retires the logs of its tables, and records their last number; that of
//!       a rewrite names the new log as well.
//!   Q4  A rewritten table has the interval of numbers of the tables that it replaces.
//!
//! CRASH: the logs of tables whose drain has no durable edit are replayed; files that it has
//! written are removed.

mod filtered;
mod newer;
mod rewrite;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::canary::failpoint;
use crate::error::{Error, Result};
use crate::metrics::{LevelMetrics, Metrics, TABLES};
use crate::parts::batch::Batch;
use crate::parts::iter::{Cursor, MergeCursor};
use crate::parts::key::{KeyRange, Place, Target};
use crate::parts::manifest::{Change, Edit};
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::stages::{
    Buffer, Built, Columns, Completion, Drain, DrainParts, EntryCount, Form, Job, JobKind,
    NewerVersions as _, Rows, SealApart, Sealed, Shared, Source, Sources, Step, TablesMax, Urgency,
};
use crate::types::SeqNo;

use filtered::Filling;
use newer::Newer;
use rewrite::{Rewrite, UNKNOWN, garbage_count};

/// The number of keys that are looked at for each part.
const SAMPLES: usize = 16;

/// One table.
struct Table {
    id: u64,
    entries: u64,
    bytes: u64,
    seqs: (SeqNo, SeqNo),
    source: Arc<dyn Source>,
    logs: Vec<u64>,
    /// Whether it has range deletes, which may reach beyond its keys.
    has_ranges: bool,
    /// Whether a power loss could take entries of it, since its log was not synced when it came.
    unsynced: bool,
    /// Whether a drain or a rewrite has it. Changed under the lock of the queue.
    busy: AtomicBool,
    /// About how many bytes a new log of its live entries would take, once they were judged;
    /// [`UNKNOWN`] before. All bytes, if a rewrite was not worthwhile or found no space.
    live: AtomicU64,
}

impl Table {
    /// Returns ascending keys, fewer than `parts`, with about as many entries between any two.
    fn cuts(&self, parts: usize) -> Result<Vec<Place>> {
        let entries = self.source.spread(SAMPLES * parts)?.into_iter();
        let keys = entries.map(|(place, _)| place);
        // Range deletes, behind all keys, are no work.
        let keys: Vec<Place> = keys.filter(|key| key.0 < RANGE_DELETE_BIT).collect();
        let at = (1..parts).map(|part| part * keys.len() / parts);
        let mut cuts: Vec<Place> = at.filter_map(|at| keys.get(at).cloned()).collect();
        cuts.dedup();
        Ok(cuts)
    }
}

/// Returns a cursor over all entries of some tables, newest first.
fn cursor_of(tables: &[Arc<Table>]) -> MergeCursor {
    let cursors = tables.iter().map(|table| table.source.cursor());
    MergeCursor::new(cursors.collect())
}

/// Returns a range that has all keys of tables, so that the bottom need not rewrite what is before
/// and after them.
fn keys_of(tables: &[Arc<Table>]) -> Result<KeyRange> {
    if tables.iter().any(|table| table.has_ranges) {
        return Ok(KeyRange::default());
    }
    let mut ends: Option<(Place, Place)> = None;
    for table in tables {
        let mut cursor = table.source.cursor();
        cursor.hold();
        cursor.seek(&Target::first_of(0, &[]))?;
        let first = cursor.entry()?.map(|it| (it.keyspace, it.key.to_vec()));
        cursor.seek_before(&Target::first_of(RANGE_DELETE_BIT, &[]), 0)?;
        let last = cursor.entry()?.map(|it| (it.keyspace, it.key.to_vec()));
        let (Some(first), Some(last)) = (first, last) else {
            return Ok(KeyRange::default());
        };
        ends = Some(match ends {
            Some((from, to)) => (from.min(first), to.max(last)),
            None => (first, last),
        });
    }
    let (from, to) = ends.map_or((None, None), |(from, (keyspace, mut last))| {
        // The next key.
        last.push(0);
        (Some(from), Some((keyspace, last)))
    });
    Ok(KeyRange { from, to })
}

/// Inserts a table at the place of its age (Q1).
fn insert(tables: &mut Vec<Arc<Table>>, table: Table) {
    let at = tables.partition_point(|other| other.seqs.1 > table.seqs.1);
    tables.insert(at, Arc::new(table));
}

/// All tables, newest first.
#[derive(Default)]
struct Queue(Mutex<Vec<Arc<Table>>>);

impl Queue {
    fn insert(&self, table: Table) {
        insert(&mut self.0.lock(), table);
    }

    fn remove(&self, gone: &[Arc<Table>]) {
        self.replace(gone, None);
    }

    /// Shows a table in the place of others, if there is one.
    fn replace(&self, gone: &[Arc<Table>], new: Option<Table>) {
        let mut tables = self.0.lock();
        tables.retain(|table| !gone.iter().any(|it| it.id == table.id));
        if let Some(new) = new {
            insert(&mut tables, new);
        }
    }
}

/// The buffer of one database.
pub(crate) struct Tables {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    apart: Arc<dyn SealApart>,
    /// Whether a rewrite runs: one at a time. Changed under the lock of the queue.
    rewrites: Arc<AtomicBool>,
}

impl Tables {
    /// Creates an empty buffer; the front replays the logs of tables into sealed memtables.
    pub(crate) fn new(shared: &Arc<Shared>, apart: Arc<dyn SealApart>) -> Tables {
        Tables {
            shared: Arc::clone(shared),
            queue: Arc::default(),
            apart,
            rewrites: Arc::default(),
        }
    }

    /// Returns the tables of the next drain, newest first.
    fn due(&self, tables: &[Arc<Table>], urgency: Urgency, bytes_max: u64) -> Vec<Arc<Table>> {
        let options = &self.shared.options.buffer.tables;
        let is_busy = |table: &Arc<Table>| table.busy.load(Ordering::Relaxed);
        let all: u64 = tables.iter().map(|table| table.bytes).sum();
        // Tables of an earlier opening may have been larger: writers are slowed by their bytes.
        let full = options.flush_count as u64 * self.shared.options.front.memtable_bytes;
        let is_due = tables.len() >= options.flush_count || all >= full;
        if tables.last().is_none_or(is_busy) || urgency <= Urgency::None && !is_due {
            return Vec::new();
        }
        // A rewrite leaves fewer tables than are due, and writes less.
        if urgency <= Urgency::None && self.garbage_count(tables) > 0 {
            return Vec::new();
        }
        let mut bytes = 0;
        let from = tables.iter().rposition(|table| {
            bytes += table.bytes;
            bytes > bytes_max || is_busy(table)
        });
        // At least one.
        let from = from.map_or(0, |at| (at + 1).min(tables.len() - 1));
        tables[from..].to_vec()
    }

    /// Returns how many of the newest tables a rewrite may take.
    fn garbage_count(&self, tables: &[Arc<Table>]) -> usize {
        match self.apart.can_rewrite() {
            true => garbage_count(&self.shared, tables),
            false => 0,
        }
    }

    /// Returns the means by which several threads drain tables.
    fn parts(&self, above: &[Arc<Table>], draining: &[Arc<Table>], bytes: u64) -> DrainParts {
        let of_cuts = draining.to_vec();
        let of_cursors = draining.to_vec();
        let (queue, shared) = (Arc::clone(&self.queue), Arc::clone(&self.shared));
        let (above, draining) = (above.to_vec(), draining.to_vec());
        DrainParts {
            bytes,
            cuts: Box::new(move |parts| {
                let largest = of_cuts.iter().max_by_key(|table| table.entries);
                largest.map_or(Ok(Vec::new()), |table| table.cuts(parts))
            }),
            open: Box::new(move || cursor_of(&of_cursors)),
            newer: Box::new(move || Box::new(Newer::new(&queue, &shared, &above, &draining))),
        }
    }

    /// Returns the table of a sealed memtable.
    fn table(sealed: &Sealed, unsynced: bool) -> Result<Table> {
        let Form::Source(source) = &sealed.form else {
            return Err(Error::invalid("this buffer takes memtables as they are"));
        };
        Ok(Table {
            id: sealed.id,
            entries: sealed.entries,
            bytes: sealed.bytes,
            seqs: (sealed.seq_first, sealed.seq_last),
            source: Arc::clone(source),
            logs: sealed.logs.clone(),
            has_ranges: sealed.late.is_some(),
            unsynced,
            busy: AtomicBool::new(false),
            live: AtomicU64::new(UNKNOWN),
        })
    }
}

/// All tables of a drain, for the bottom's choice of a range of their keys, which is all of them.
struct Whole(u64);

impl Rows for Whole {
    fn bytes(&self, _: &KeyRange) -> Result<u64> {
        Ok(self.0)
    }

    fn key_after(&self, _: Option<&Place>, _: u64) -> Result<Option<Place>> {
        Ok(None)
    }
}

impl Buffer for Tables {
    fn flush_job(&self, sealed: Sealed) -> Result<Box<dyn Job>> {
        Ok(Box::new(Admit {
            queue: Arc::clone(&self.queue),
            shared: Arc::clone(&self.shared),
            sealed: Some(sealed),
            filling: None,
        }))
    }

    fn build(&self, batch: &Batch, seq: SeqNo) -> Result<Box<dyn Job>> {
        let (sealed, changes) = self.apart.seal_apart(batch, seq)?;
        let mut table = Tables::table(&sealed, false)?;
        let mut filling = Filling::new(&self.shared, table.entries);
        for entry in batch.payload.iter() {
            filling.insert(entry.keyspace, entry.key);
        }
        table.source = filling.finish(table.source)?;
        let done = admitted(&self.queue, table, changes, sealed.forget);
        Ok(Box::new(Built::new(done)))
    }

    fn next_job(&self, urgency: Urgency) -> Result<Option<Box<dyn Job>>> {
        let tables = self.queue.0.lock();
        // If space is short, or a caller waits for drains, a rewrite would only delay these.
        let waits = urgency > Urgency::None || self.rewrites.load(Ordering::Relaxed);
        let count = if waits {
            0
        } else {
            self.garbage_count(&tables)
        };
        Ok(match count {
            0 => None,
            count => Some(Box::new(Rewrite::begin(self, &tables[..count]))),
        })
    }

    fn next_drain(
        &self,
        urgency: Urgency,
        bytes_max: u64,
        columns: Option<&dyn Columns>,
    ) -> Result<Option<Drain>> {
        let tables = self.queue.0.lock();
        let draining = self.due(&tables, urgency, bytes_max);
        let Some(newest) = draining.first() else {
            return Ok(None);
        };
        let bytes = draining.iter().map(|table| table.bytes).sum();
        if let Some(columns) = columns
            && columns.next(None, &Whole(bytes))?.is_none()
        {
            return Ok(None);
        }
        let keys = keys_of(&draining)?;
        let seq_last = newest.seqs.1;
        let above = &tables[..tables.len() - draining.len()];
        let newer = Newer::new(&self.queue, &self.shared, above, &draining);
        failpoint!(TablesEarly => {
            drop(tables);
            self.queue.remove(&draining);
            return Ok(None);
        });
        let entries = draining.iter().map(|table| table.entries).sum();
        let cursor = cursor_of(&draining);
        let logs = draining.iter().flat_map(|table| table.logs.clone());
        let logs = logs.collect();
        let busy = |tables: &[Arc<Table>], is_busy: bool| {
            for table in tables {
                table.busy.store(is_busy, Ordering::Relaxed);
            }
        };
        busy(&draining, true);
        let (all, putting_back) = (Arc::clone(&self.queue), draining.clone());
        let parts = self.parts(above, &draining, bytes);
        Ok(Some(Drain {
            prepare: None,
            cursor,
            keys,
            settles: true,
            durable: newer.seq_max().max(seq_last),
            newer: Some(Box::new(newer)),
            seq_last,
            edit: Edit::of(Change::LastSeq { seq: seq_last }),
            logs,
            pending_free: self.shared.pending_frees.open(bytes, entries),
            count: EntryCount::of(entries),
            forget: Box::new(move || all.remove(&draining)),
            put_back: Some(Box::new(move || busy(&putting_back, false))),
            parts: Some(parts),
        }))
    }

    fn tables_max(&self) -> Option<TablesMax> {
        let (options, front) = (
            &self.shared.options.buffer.tables,
            &self.shared.options.front,
        );
        Some(TablesMax {
            slow_bytes: options.flush_count as u64 * front.memtable_bytes,
            stop_bytes: options.count_max as u64 * front.memtable_bytes,
            count: options.count_max,
        })
    }

    fn sources(&self) -> Sources {
        let tables = self.queue.0.lock();
        tables
            .iter()
            .map(|table| Arc::clone(&table.source))
            .collect()
    }

    fn newest(&self) -> SeqNo {
        self.queue.0.lock().first().map_or(0, |table| table.seqs.1)
    }

    fn table_count(&self) -> usize {
        self.queue.0.lock().len()
    }

    fn table_bytes(&self) -> u64 {
        self.queue.0.lock().iter().map(|table| table.bytes).sum()
    }

    fn measure(&self, metrics: &mut Metrics) {
        let tables = self.queue.0.lock();
        if tables.is_empty() {
            return;
        }
        let bytes = tables.iter().map(|table| table.bytes).sum();
        // Each table is a log.
        metrics.log_bytes += bytes;
        metrics.levels.push(LevelMetrics {
            name: TABLES,
            level: 0,
            table_count: tables.len() as u64,
            entry_count: tables.iter().map(|table| table.entries).sum(),
            bytes,
            ..Default::default()
        });
    }
}

/// Returns the completion that shows a table in the place of a memtable.
fn admitted(
    queue: &Arc<Queue>,
    table: Table,
    changes: Vec<Change>,
    forget: Box<dyn FnOnce() + Send>,
) -> Completion {
    let (queue, entries) = (Arc::clone(queue), table.entries);
    Completion {
        edit: Edit { changes },
        apply: Box::new(move || {
            queue.insert(table);
            forget();
        }),
        garbage: Vec::new(),
        entries,
    }
}

/// The entries whose keys one step adds to a filter.
const STEP_ENTRIES: usize = 16 << 10;

/// The flush of one memtable: nothing is copied. It gets a filter.
struct Admit {
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    /// Taken by the last step.
    sealed: Option<Sealed>,
    /// Whether its log was synced, once that is known, with its filter and a cursor over the keys
    /// that are not in this.
    filling: Option<(bool, Filling, Box<dyn Cursor>)>,
}

impl Admit {
    /// Waits for the writers of a memtable, and begins its filter.
    fn begin(&mut self) -> Result<()> {
        let Some(sealed) = &mut self.sealed else {
            return Ok(());
        };
        let finish = std::mem::replace(&mut sealed.finish, Box::new(|| Ok(false)));
        let synced = finish()?;
        let filling = Filling::new(&self.shared, sealed.entries);
        let mut cursor = (sealed.open)();
        if filling.wants_keys() {
            cursor.hold();
            cursor.seek(&Target::first_of(0, &[]))?;
        }
        self.filling = Some((synced, filling, cursor));
        Ok(())
    }
}

impl Job for Admit {
    fn kind(&self) -> JobKind {
        JobKind::Flush
    }

    fn step(&mut self) -> Result<Step> {
        if self.filling.is_none() {
            self.begin()?;
        }
        if let Some((_, filling, cursor)) = &mut self.filling
            && filling.wants_keys()
        {
            for _ in 0..STEP_ENTRIES {
                let Some(entry) = cursor.entry()? else {
                    break;
                };
                filling.insert(entry.keyspace, entry.key);
                cursor.advance()?;
            }
            if cursor.entry()?.is_some() {
                return Ok(Step::More);
            }
        }
        let (Some(sealed), Some((synced, filling, _))) = (self.sealed.take(), self.filling.take())
        else {
            return Ok(Step::More);
        };
        if sealed.entries == 0 {
            return Ok(Step::Done(sealed.into_nothing()));
        }
        let mut table = Tables::table(&sealed, !synced)?;
        table.source = filling.finish(table.source)?;
        let done = admitted(&self.queue, table, Vec::new(), sealed.forget);
        Ok(Step::Done(done))
    }
}
