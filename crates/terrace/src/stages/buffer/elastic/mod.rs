//! Elastic buffer: n levels of skip lists in the pool, any number in a level (MioDB, 4.1 to 4.3,
//! 4.5 and 4.6).
//!
//! A flush copies a memtable in one piece and the copy is a table; if the pool is memory, the
//! memtable is in its extent already, and nothing is copied. Whenever a level holds two tables that
//! no job owns, its two oldest are merged by relinking and the result moves down one level. Levels
//! merge concurrently and never wait for one another, so nothing ever blocks a flush. The oldest
//! tables of the last level drain to the bottom; when space is needed, the oldest tables of any
//! level do.
//!
//! Invariants
//!   B1  Tables are ordered by age: every sequence number in a newer table is above every one in an
//!       older table. A deeper level holds only older tables.
//!   B2  A table belongs to at most one job.
//!   B3  If the pool is memory, a table is the memory of its memtable. Its links change only when
//!       the memtable has no reader left, since such a reader uses neither latch nor frontier.
//!   B4  If the pool is memory, a log is needed until the one table that has its entries is
//!       drained. A memtable has one log, and a merge takes both tables whole, so no two tables
//!       share a log.
//!
//! As a memtable below that in DRAM ([`Drains::Grown`]; NoveLSM, 4.2), it has two levels: all
//! tables of level 0 are merged into its oldest. When that is full, it moves to level 1 and leaves.
//!
//! Two tables whose merge would make one larger than `table_bytes_max` are not merged: the older
//! moves down instead, so that the space that one drain needs stays bounded. If drains stay in the
//! pool and enough of it is free, tables grow on to the paper's sizes ([`Drains::Late`]).
//!
//! After a crash: recover.rs. Callers: jobs on any thread; readers through [`Source`].

mod build;
mod copy_in;
mod layout;
mod merge;
pub(crate) mod recover;
mod salvage;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::canary::{self, Canary};
use crate::error::{Error, Result};
use crate::metrics::{LevelMetrics, Metrics};
use crate::parts::batch::Batch;
use crate::parts::iter::MergeCursor;
use crate::parts::key::{KeyRange, Target};
use crate::parts::manifest::{Change, Edit};
use crate::stages::{
    Buffer, Columns, Completion, Drain, EntryCount, Form, Job, JobKind, NewerVersions, Sealed,
    Shared, Source, Sources, Step, Survival, Urgency,
};
use crate::types::{SEQ_MAX, SeqNo};

use copy_in::CopyIn;
use layout::TableMeta;
use table::Table;

pub(crate) use layout::TABLE;
pub(crate) use salvage::SALVAGE;

/// BOUND: the number of tables of a level that wait for a reader of the oldest two, before these
/// give way.
const WAITING_MAX: usize = 4;

/// The number of tables of the last level that wait for one another before any of them drains if
/// drains are late, unless space is needed or writers rest. Of a key that several of them have,
/// only the newest version is copied, and a table that stays hides more of what drains.
const DUE_MIN: usize = 3;

/// BOUND: the number of tables that drain together. Each step of a merge of many finds its place
/// among all of them.
const DRAINED_MAX: usize = 16;

/// BOUND: the number of tables, those next by age, that are searched for versions that hide a
/// draining entry. If writers outrun merges there may be hundreds, and searching all of them would
/// slow drains when there is most to drain.
const ASKED_MAX: usize = 32;

/// When tables leave for the bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drains {
    /// As soon as they are on the last level. No merge makes one larger than
    /// `Options::table_bytes_max`.
    Early,
    /// Late, to copy fewer values that are overwritten soon after: tables of the last level wait
    /// for [`DUE_MIN`], and in a pool with enough free space they are twice as large on each level,
    /// as in the paper, unless the options or a memory budget set a limit.
    Late,
    /// When no other table fits in: a merge leaves its result on level 0 until that is as large as
    /// `Options::table_bytes_max` allows.
    Grown,
}

/// The buffer of one database.
pub(crate) struct Elastic {
    shared: Arc<Shared>,
    tables: Arc<Tables>,
    drains: Drains,
}

/// All tables, newest first.
#[derive(Default)]
pub(super) struct Tables {
    all: Mutex<Vec<Arc<Table>>>,
    /// The bytes of the largest table, counting a table that is being merged with what it gets.
    largest: AtomicU64,
}

impl Tables {
    /// Adds a table at its place by age.
    fn insert(&self, table: Arc<Table>) {
        let mut tables = self.all.lock();
        let seq = table.inner.lock().seq_last;
        let at = tables.partition_point(|t| t.inner.lock().seq_last > seq);
        tables.insert(at, table);
        self.find_largest(&tables);
    }

    fn remove(&self, id: u64) {
        let mut tables = self.all.lock();
        tables.retain(|t| t.id != id);
        self.find_largest(&tables);
    }

    /// Finds the largest table again, after a change of `tables`, which the caller has locked.
    fn find_largest(&self, tables: &[Arc<Table>]) {
        let bytes = tables.iter().map(|table| {
            let inner = table.inner.lock();
            inner.bytes.max(inner.grows_to)
        });
        self.largest
            .store(bytes.max().unwrap_or(0), Ordering::Relaxed);
    }
}

impl Elastic {
    /// Creates a buffer over tables found at recovery.
    fn over(shared: Arc<Shared>, tables: Vec<Arc<Table>>, drains: Drains) -> Elastic {
        let all = Tables::default();
        for table in &tables {
            let newer = table.inner.lock();
            if let Some(into) = &newer.merging_into {
                let mut older = into.inner.lock();
                older.grows_to = older.bytes + newer.bytes;
            }
        }
        for table in tables {
            all.insert(table);
        }
        // Reopened with another number of levels, a table may be on a deeper one than an older
        // table.
        let mut deepest = u32::MAX;
        for table in all.all.lock().iter().rev() {
            let mut inner = table.inner.lock();
            inner.level = inner.level.min(deepest);
            deepest = inner.level;
        }
        Elastic {
            shared,
            tables: Arc::new(all),
            drains,
        }
    }

    /// Returns whether a merge may make a table of `bytes`.
    fn may_grow_to(&self, bytes: u64) -> bool {
        let options = &self.shared.options;
        // A drain takes at least a whole table, and a full disk may have no space for a larger one.
        if !self.shared.reserve.has_room_for_table(bytes + bytes / 4) {
            return false;
        }
        if bytes <= options.table_bytes_max() {
            return true;
        }
        // As in the paper: twice as much on each level.
        let of_last_level = options.front.memtable_bytes << self.last_level();
        let is_free_to_grow = self.drains == Drains::Late
            && options.buffer.table_bytes_max.is_none()
            && !self.shared.memory.is_limited();
        if !is_free_to_grow || bytes > of_last_level {
            return false;
        }
        // On a device that is or may become full, the copies of a large table would have no space.
        let usage = self.shared.pool.usage();
        let room = self.shared.pool.device_room().unwrap_or(u64::MAX);
        let limit = usage.limit.min(options.pool.size_bytes).min(room);
        let free = limit.saturating_sub(usage.allocated);
        // BOUND: a reserve with the copies of the table is to fit twice, and some more, so that
        // space does not count as short at once (engine/throttle.rs).
        let reserve = bytes + options.reserve_beside_table();
        !usage.is_device_full() && free >= 2 * reserve + bytes / 4
    }

    fn last_level(&self) -> u32 {
        self.shared.options.buffer.levels - 1
    }

    /// Returns the two oldest tables of `level`, newer first, if they are neighbours by age and no
    /// job owns either.
    fn oldest_pair(tables: &[Arc<Table>], level: u32) -> Option<(Arc<Table>, Arc<Table>)> {
        let at = tables.iter().rposition(|t| t.inner.lock().level == level)?;
        let (older, newer) = (&tables[at], tables.get(at.checked_sub(1)?)?);
        let fit = |t: &Table| {
            let mut inner = t.inner.lock();
            let free = !inner.busy && inner.merging_into.is_none();
            inner.level == level && free && !inner.is_read_as_memtable()
        };
        (fit(older) && fit(newer)).then(|| (Arc::clone(newer), Arc::clone(older)))
    }

    /// Returns the oldest table of `level`, if no job owns it and so many wait behind it that it
    /// should give way: a reader that does not move on keeps it from being merged (B3).
    fn held_up(tables: &[Arc<Table>], level: u32) -> Option<Arc<Table>> {
        let of_level = |t: &&Arc<Table>| t.inner.lock().level == level;
        if tables.iter().filter(of_level).count() < WAITING_MAX {
            return None;
        }
        let pair = tables.iter().rev().filter(of_level).take(2);
        let held = pair.clone().any(|t| t.inner.lock().is_read_as_memtable());
        let free = |t: &&Arc<Table>| {
            let inner = t.inner.lock();
            !inner.busy && inner.merging_into.is_none()
        };
        let oldest = pair.clone().next().filter(free)?;
        // Its neighbour may be the one with readers: then it moves before that one.
        held.then(|| Arc::clone(oldest))
    }

    /// Returns a merge that a crash or a close has interrupted.
    fn interrupted(tables: &[Arc<Table>]) -> Option<(Arc<Table>, Arc<Table>)> {
        tables.iter().find_map(|newer| {
            let inner = newer.inner.lock();
            let into = inner.merging_into.as_ref().filter(|_| !inner.busy)?;
            Some((Arc::clone(newer), Arc::clone(into)))
        })
    }

    /// Begins the merge of a pair that no job owns; `None` if no redo slot is free.
    fn begin_merge(&self, newer: &Arc<Table>, older: &Arc<Table>) -> Result<Option<Box<dyn Job>>> {
        let Some(slot) = self.shared.redo.slot(terrace_media::Purpose::Merge) else {
            return Ok(None);
        };
        let more = {
            let mut inner = newer.inner.lock();
            inner.busy = true;
            inner.bytes
        };
        {
            let mut inner = older.inner.lock();
            inner.busy = true;
            inner.grows_to = inner.bytes + more;
        }
        // Writers leave space for it from here on.
        self.tables.find_largest(&self.tables.all.lock());
        let merge = merge::Merge::begin(
            Arc::clone(&self.shared),
            Arc::clone(&self.tables),
            Arc::clone(newer),
            Arc::clone(older),
            (slot, self.drains == Drains::Grown),
        )?;
        Ok(Some(Box::new(merge)))
    }

    fn move_down(&self, table: Arc<Table>, level: u32) -> Box<dyn Job> {
        table.inner.lock().busy = true;
        let shared = Arc::clone(&self.shared);
        Box::new(MoveDown {
            shared,
            table,
            level,
        })
    }
}

impl Buffer for Elastic {
    fn flush_job(&self, mut sealed: Sealed) -> Result<Box<dyn Job>> {
        let Form::List(list) = std::mem::replace(&mut sealed.form, Form::Entries) else {
            return Err(Error::invalid(
                "this buffer takes over skip lists, but the front has none",
            ));
        };
        let shared = Arc::clone(&self.shared);
        let tables = Arc::clone(&self.tables);
        Ok(Box::new(CopyIn::begin(shared, tables, sealed, list)))
    }

    fn build(&self, batch: &Batch, seq: SeqNo) -> Result<Box<dyn Job>> {
        self.flush_job(build::list_of(&self.shared, batch, seq)?)
    }

    fn next_job(&self, _: Urgency) -> Result<Option<Box<dyn Job>>> {
        let tables = self.tables.all.lock().clone();
        if let Some((newer, older)) = Elastic::interrupted(&tables) {
            return self.begin_merge(&newer, &older);
        }
        for level in 0..self.last_level() {
            let Some((newer, older)) = Elastic::oldest_pair(&tables, level) else {
                if let Some(table) = Elastic::held_up(&tables, level) {
                    return Ok(Some(self.move_down(table, level + 1)));
                }
                continue;
            };
            let bytes = newer.inner.lock().bytes + older.inner.lock().bytes;
            if self.may_grow_to(bytes) {
                return self.begin_merge(&newer, &older);
            }
            return Ok(Some(self.move_down(older, level + 1)));
        }
        Ok(None)
    }

    fn next_drain(
        &self,
        urgency: Urgency,
        bytes_max: u64,
        _: Option<&dyn Columns>,
    ) -> Result<Option<Drain>> {
        let tables = self.tables.all.lock();
        let (mut bytes, mut held, mut entries) = (0, 0, 0);
        let mut taken: Vec<Arc<Table>> = Vec::new();
        let is_last = |table: &&Arc<Table>| table.inner.lock().level == self.last_level();
        let waiting = tables.iter().rev().take_while(is_last).count();
        let is_late = self.drains == Drains::Late && urgency == Urgency::None;
        let last_is_due = !is_late || waiting >= DUE_MIN;
        // Oldest first. Drained together, tables become one run, and only one version of a key is
        // written, without a merge that changes links only for that.
        for table in tables.iter().rev().take(DRAINED_MAX) {
            let mut inner = table.inner.lock();
            let is_last = inner.level == self.last_level();
            let due = is_last && last_is_due || urgency > Urgency::None;
            let fits = taken.is_empty() || bytes + inner.bytes <= bytes_max;
            if inner.busy || !due || inner.merging_into.is_some() || !fits {
                break;
            }
            inner.busy = true;
            bytes += inner.bytes;
            held += inner.extents.iter().map(|(e, _)| e.len()).sum::<u64>();
            entries += inner.entries;
            drop(inner);
            taken.push(Arc::clone(table));
        }
        let Some(newest) = taken.last() else {
            return Ok(None);
        };
        let seq_last = newest.inner.lock().seq_last;
        let newer = &tables[..tables.len() - taken.len()];
        let (newer, seq_max) = NewerTables::before(newer, self.shared.survival(), ASKED_MAX);
        let drained: Vec<_> = taken.iter().rev().cloned().collect();
        let (drained, _) = NewerTables::before(&drained, self.shared.survival(), usize::MAX);
        let newer = NewerTables {
            all: Arc::clone(&self.tables),
            shared: Arc::clone(&self.shared),
            tables: newer,
            seq_max,
            newest_drained: newest.id,
            drained,
        };
        let durable = seq_max.max(seq_last);
        let ids: Vec<u64> = taken.iter().map(|table| table.id).collect();
        let removed = ids.iter().map(|&id| Change::Removed { owner: &TABLE, id });
        let mut changes: Vec<Change> = removed.collect();
        if !self.shared.pool_outlives() {
            changes.push(Change::LastSeq { seq: seq_last });
        }
        // Only this drain has them now.
        let logs: Vec<Vec<u64>> = taken
            .iter()
            .map(|table| std::mem::take(&mut table.inner.lock().logs))
            .collect();
        let cursors = taken.iter().rev().map(|table| table.cursor());
        let all = Arc::clone(&self.tables);
        Ok(Some(Drain {
            prepare: None,
            cursor: MergeCursor::new(cursors.collect()),
            keys: KeyRange::default(),
            settles: true,
            newer: Some(Box::new(newer)),
            seq_last,
            durable,
            edit: Edit { changes },
            logs: logs.concat(),
            pending_free: self.shared.pending_frees.open(held, entries),
            count: EntryCount::of(entries),
            forget: Box::new(move || ids.iter().for_each(|&id| all.remove(id))),
            put_back: Some(Box::new(move || {
                for (table, logs) in taken.iter().zip(logs) {
                    let mut inner = table.inner.lock();
                    inner.logs = logs;
                    inner.busy = false;
                }
            })),
            parts: None,
        }))
    }

    fn sources(&self) -> Sources {
        self.tables
            .all
            .lock()
            .iter()
            .map(|t| Arc::clone(t) as Arc<dyn Source>)
            .collect()
    }

    fn newest(&self) -> SeqNo {
        let tables = self.tables.all.lock();
        tables
            .first()
            .map_or(0, |table| table.inner.lock().seq_last)
    }

    fn table_count(&self) -> usize {
        self.tables.all.lock().len()
    }

    fn table_bytes(&self) -> u64 {
        let tables = self.tables.all.lock();
        tables.iter().map(|table| table.inner.lock().bytes).sum()
    }

    fn table_bytes_largest(&self) -> u64 {
        self.tables.largest.load(Ordering::Relaxed)
    }

    fn measure(&self, metrics: &mut Metrics) {
        for table in self.tables.all.lock().iter() {
            let inner = table.inner.lock();
            let at = metrics.levels.partition_point(|l| l.level < inner.level);
            if metrics
                .levels
                .get(at)
                .is_none_or(|l| l.level != inner.level)
            {
                metrics.levels.insert(
                    at,
                    LevelMetrics {
                        name: "level",
                        level: inner.level,
                        ..Default::default()
                    },
                );
            }
            let level = &mut metrics.levels[at];
            level.table_count += 1;
            level.merging_count += u64::from(inner.merging_into.is_some());
            level.entry_count += inner.entries;
            level.bytes += inner.extents.iter().map(|(e, _)| e.len()).sum::<u64>();
        }
    }
}

/// The tables that are next newer than those that drain, newest first, as of the start of the drain
/// or its last look. They may merge meanwhile, with one another and with tables that are newer
/// still.
///
/// Entries that they hide are not drained, and the logs of those are not needed any more. So if the
/// pool is memory, the hiding entries must be in a log that was synced when its memtable became the
/// table.
struct NewerTables {
    all: Arc<Tables>,
    shared: Arc<Shared>,
    tables: Vec<Arc<Table>>,
    /// Versions above it came later: a snapshot unknown to the drain may not include them.
    seq_max: SeqNo,
    /// The draining tables that hide older versions, newest first.
    drained: Vec<Arc<Table>>,
    newest_drained: u64,
}

impl NewerTables {
    /// Returns those of the tables that hide older versions, the `asked_max` next by age, and their
    /// newest number. If all logs are kept, nothing is forgotten.
    fn before(
        newer: &[Arc<Table>],
        survival: Survival,
        asked_max: usize,
    ) -> (Vec<Arc<Table>>, SeqNo) {
        // A table with such entries may be merged into an older one: only tables older than all of
        // these hide anything, and only versions no newer than theirs count.
        let all_hide = !survival.frees_logs() || canary::breaks(Canary::HidesUnsynced);
        let forgets = |t: &Arc<Table>| !all_hide && t.inner.lock().unsynced;
        let from = newer.iter().rposition(forgets);
        let newer = &newer[from.map_or(0, |at| at + 1)..];
        let newer = &newer[newer.len().saturating_sub(asked_max)..];
        let seq_max = newer.first().map_or(0, |t| t.inner.lock().seq_last);
        (newer.to_vec(), seq_max)
    }

    fn newest_in(tables: &[Arc<Table>], target: &Target<'_>, hash: u64) -> Result<Option<SeqNo>> {
        for table in tables {
            if let Some(seq) = table.newest_version(target, hash)? {
                return Ok(Some(seq));
            }
        }
        Ok(None)
    }
}

impl NewerVersions for NewerTables {
    fn newest(&self, keyspace: u32, key: &[u8], hash: u64) -> Result<Option<SeqNo>> {
        let seq = self.seq_max;
        NewerTables::newest_in(&self.tables, &Target { keyspace, key, seq }, hash)
    }

    fn newest_of_all(&self, keyspace: u32, key: &[u8], hash: u64) -> Result<Option<SeqNo>> {
        let newer = self.newest(keyspace, key, hash)?;
        let seq = SEQ_MAX;
        match newer {
            Some(newer) => Ok(Some(newer)),
            None => NewerTables::newest_in(&self.drained, &Target { keyspace, key, seq }, hash),
        }
    }

    fn count_between(&self, from: &Target<'_>, to: &Target<'_>) -> Result<u64> {
        let tables = self.tables.iter().chain(&self.drained);
        let counts = tables.map(|table| Ok(table.approximate(from, to)?.0));
        counts.sum()
    }

    fn seq_max(&self) -> SeqNo {
        self.seq_max
    }

    fn look_again(&mut self) -> bool {
        let all = self.all.all.lock();
        let newest = self.newest_drained;
        let Some(at) = all.iter().position(|table| table.id == newest) else {
            return false;
        };
        // A table that is being ingested hides nothing before it is visible.
        let visible = self.shared.sequencer.visible();
        let from = all[..at].partition_point(|table| table.inner.lock().seq_last > visible);
        let survival = self.shared.survival();
        let (tables, seq_max) = NewerTables::before(&all[from..at], survival, usize::MAX);
        let is_new = (seq_max, tables.len()) != (self.seq_max, self.tables.len());
        (self.tables, self.seq_max) = (tables, seq_max);
        is_new
    }
}

/// Moves a table down that is not to be merged, by an edit alone.
struct MoveDown {
    shared: Arc<Shared>,
    table: Arc<Table>,
    level: u32,
}

impl Job for MoveDown {
    fn kind(&self) -> JobKind {
        JobKind::Merge
    }

    fn step(&mut self) -> Result<Step> {
        let (table, level) = (Arc::clone(&self.table), self.level);
        let moved = TableMeta {
            level,
            ..table.named(&self.shared)?
        };
        Ok(Step::Done(Completion {
            edit: Edit::of(Change::changed(moved)),
            apply: Box::new(move || {
                let mut inner = table.inner.lock();
                inner.level = level;
                inner.busy = false;
            }),
            garbage: Vec::new(),
            entries: 0,
        }))
    }
}
