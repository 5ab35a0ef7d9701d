//! This file is what every stage stands on: the pool, the manifest, numbers, time, counters.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrace_media::{AllocError, Clock, Extent, FileSystem, Medium, Pool};

use crate::error::Result;
use crate::events::{self, event};
use crate::metrics::{Counters, LifeMetrics, OpCounter, StallReason};
use crate::options::Options;
use crate::parts::expiry::{Millis, Time};
use crate::parts::manifest::{Change, Edit, Manifest, Totals};
use crate::parts::memory::Memory;
use crate::parts::pace::Pace;
use crate::parts::ranges::layout::SHADOW;
use crate::parts::ranges::{LiveRanges, Readable};
use crate::parts::redo::RedoArea;
use crate::parts::reserve::{DRAIN_BYTES, LOG_BYTES, Reserve, Rows};
use crate::parts::sequence::Sequencer;
use crate::parts::snapshots::SnapshotList;
use crate::types::DbId;

use super::drain::Credits;
use super::survival::Survival;

/// Bytes of a pool for the small memtables of an opening and of deletes, and for filters of what is flushed.
const OPENING_BYTES: u64 = 16 * LOG_BYTES;

/// What every stage stands on.
pub(crate) struct Ground {
    pub(crate) pool: Pool,
    pub(crate) manifest: Manifest,
    /// The database that all of it is of.
    pub(crate) db: DbId,
    pub(crate) redo: Arc<RedoArea>,
    pub(crate) sequencer: Sequencer,
    pub(crate) snapshots: SnapshotList,
    pub(crate) dropped: DroppedKeyspaces,
    pub(crate) ranges: LiveRanges,
    pub(crate) time: Time,
    pub(crate) counters: Counters,
    /// What was written before the database was opened.
    pub(crate) totals_before: Totals,
    /// How fast background work may write table files.
    pub(crate) pace: Pace,
    /// What drains in progress will give back to the pool.
    pub(crate) credits: Credits,
    /// What flushes in progress have written of memtables, where these become table files.
    pub(crate) flush_credits: Credits,
    /// What holds the parts of the database within its budget.
    pub(crate) memory: Arc<Memory>,
    /// Room on the disk that is kept for getting room back.
    pub(crate) reserve: Arc<Reserve>,
    /// As stated, but for sizes that do not fit the disk.
    pub(crate) options: Options,
    pub(crate) stated: Options,
    /// Of this opening of the database, and of no other in the process.
    pub(crate) opening: u64,
    ids: AtomicU64,
    /// The newest entry of this opening that went into no log; 0: there was none. Written under `commit`.
    pub(crate) newest_unlogged: AtomicU64,
    /// Numbers in the names of files that are not this database's.
    taken: Mutex<BTreeSet<u64>>,
}

/// The database's folder: log files, when logs are files, and tables of a bottom on the disk.
#[derive(Clone)]
pub(crate) struct Folder {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) dir: PathBuf,
}

/// The last opening.
static OPENINGS: AtomicU64 = AtomicU64::new(0);

impl Ground {
    /// The ground of a database whose manifest is open.
    pub(crate) fn new(
        pool: Pool,
        manifest: Manifest,
        redo: Arc<RedoArea>,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Ground {
        let (ids, last_seq) = manifest.with_state(|state| (state.next_id.max(1), state.last_seq));
        let (totals_before, time) = manifest.with_state(|state| (state.totals, state.time));
        let sequencer = Sequencer::default();
        sequencer.start_after(last_seq);
        Ground {
            pool,
            db: manifest.db(),
            manifest,
            redo,
            sequencer,
            snapshots: SnapshotList::default(),
            dropped: DroppedKeyspaces::default(),
            ranges: LiveRanges::default(),
            time: Time::new(clock, time),
            counters: Counters::default(),
            totals_before,
            pace: Pace::new(options.bottom.leveled.write_rate_max),
            credits: Credits::default(),
            flush_credits: Credits::default(),
            memory: Memory::of(&options),
            reserve: Reserve::none(),
            stated: options.clone(),
            options,
            opening: OPENINGS.fetch_add(1, Ordering::Relaxed) + 1,
            ids: AtomicU64::new(ids),
            newest_unlogged: AtomicU64::new(0),
            taken: Mutex::default(),
        }
    }

    /// The same with a reserve on the disk.
    pub(crate) fn with_reserve(mut self, reserve: Arc<Reserve>) -> Ground {
        self.manifest.lend(&reserve);
        self.reserve = reserve;
        self
    }

    /// Makes the reserve as large as it should be now, if there is room. The row of tables has the largest table
    /// file. More, up to a sixteenth of all of them, is kept for a flush of one memtable and, where the buffer is
    /// memory, for a drain of its largest table, since their logs go only when all of that is written.
    ///
    /// BOUND: the room of the manifest, 160 KiB, and five quarters of the largest table file or of a sixteenth of
    /// them all. Where logs are in a pool that outlives the process and no buffer is, an eighth of all table files more,
    /// or as many memtables as may be in memory, whichever is less.
    pub(crate) fn keep_reserve(&self) {
        let in_files = !self.pool_outlives();
        let memtable = self.options.front.memtable_bytes;
        let (tables, all) = self.manifest.with_state(|state| {
            let files = || state.files.values().map(|file| file.bytes);
            let buffered = state.tables.values().map(|table| table.bytes);
            let moved = buffered.filter(|_| in_files).fold(memtable, u64::max);
            let (largest, all) = (files().max().unwrap_or(0), files().sum::<u64>());
            // Files differ in size, and a memtable's table is larger than its entries.
            let whole = largest.max(moved.min(all / 16));
            // A few tables are not worth as much again.
            (whole.min(all / 5), all)
        });
        // Files differ in size. Deletes that come down from the pool retire no logs, so they may not take the row of
        // tables, which is what gives their room back.
        let (tables, drains) = match in_files {
            true => (tables + tables / 4, DRAIN_BYTES),
            false => (tables + tables / 8, DRAIN_BYTES + tables / 8),
        };
        // Without a buffer, deletes wait in memory behind as many memtables of puts as may be sealed.
        let memtables = match in_files || self.options.design_of_new().keeps_data_in_pool() {
            true => 0,
            false => {
                let sealed = self.options.front.sealed_count_max as u64 + 2;
                (sealed * (memtable + memtable / 8)).min(all / 8)
            }
        };
        self.reserve.keep(Rows {
            manifest: if in_files { self.manifest.room() } else { 0 },
            ranges: if in_files { LOG_BYTES } else { 0 },
            log: if in_files { LOG_BYTES } else { 0 },
            drains: if tables > 0 { drains } else { 0 },
            tables,
            memtables,
        });
    }

    /// What may be read from now on.
    pub(crate) fn readable(&self) -> Readable {
        Readable::of(&self.snapshots, &self.sequencer)
    }

    /// What was written in the database's life.
    pub(crate) fn totals(&self) -> Totals {
        self.totals_before.plus(Totals {
            user: self.counters.sum(OpCounter::UserBytes),
            pool: self.pool.counts().total().bytes,
            log_files: self.counters.sum(OpCounter::LogFileBytes),
            table_files: self.counters.sum(OpCounter::TableFileBytes),
        })
    }

    /// Counts one wait of a writer, which has ended, and tells of it if it was long.
    pub(crate) fn count_stall(&self, reason: StallReason, waited: Duration) {
        self.counters.stall(reason, waited);
        if waited >= events::STALL_MIN {
            event!(
                warn,
                "terrace::stall",
                self.db,
                "a writer has waited {waited:.1?} for {}",
                reason.name()
            );
        }
    }

    /// Writes down what was written, the time that was told, and where logs have ended, if any of it is more
    /// than is written down.
    pub(crate) fn note_totals(&self) -> Result<()> {
        let totals = self.totals();
        let known = self
            .manifest
            .with_state(|state| (state.totals.user, state.time));
        if known == (totals.user, self.time.told()) && !self.manifest.has_log_ends() {
            return Ok(());
        }
        let mut changes = vec![Change::Totals(totals)];
        changes.extend(self.time_told());
        Ok(self.manifest.commit(Edit { changes })?)
    }

    /// Whatever expires up to this time is absent for every reader there is or will be.
    pub(crate) fn horizon(&self) -> Millis {
        self.snapshots.horizon(&self.time)
    }

    /// The change that keeps the time, if there is any.
    pub(crate) fn time_told(&self) -> Option<Change> {
        let time = self.time.told();
        (time > 0).then_some(Change::Time { time })
    }

    /// An id for a log and the table that it becomes; never given out twice.
    pub(crate) fn next_id(&self) -> u64 {
        let taken = self.taken.lock();
        // BOUND: every turn passes one of the names that were in the folder.
        loop {
            let id = self.ids.fetch_add(1, Ordering::Relaxed);
            if !taken.contains(&id) {
                return id;
            }
        }
    }

    /// Whether what is in the pool outlives the process. Else it is memory, and what must survive is in
    /// files.
    pub(crate) fn pool_outlives(&self) -> bool {
        self.pool.medium() != Medium::Dram
    }

    /// Returns what of the database outlives the process.
    pub(crate) fn survival(&self) -> Survival {
        Survival::of(self.options.design_of_new(), self.pool.medium())
    }

    /// Allocates space for data that moves within the pool. On a full device this leaves what an opening and memtables
    /// of deletes need: a move that took it might not end, and nothing else would give it back.
    /// `below`: only before this offset.
    pub(crate) fn alloc_to_move(
        &self,
        bytes: u64,
        below: Option<u64>,
    ) -> Result<Arc<Extent>, AllocError> {
        let usage = self.pool.usage();
        let memtables = 2 * self.options.front.memtable_bytes + OPENING_BYTES;
        let left = memtables.min(usage.limit / 16);
        if usage.is_device_full() && usage.free < bytes.saturating_add(left) {
            return Err(AllocError::Full {
                wanted: bytes,
                free: usage.free,
                cap: usage.limit,
            });
        }
        match below {
            Some(limit) => self.pool.alloc_below(bytes, limit),
            None => self.pool.alloc(bytes),
        }
    }

    /// Never gives out `id`: a file has it in its name that is not this database's.
    pub(crate) fn pass_over(&self, id: u64) {
        self.taken.lock().insert(id);
    }

    /// Gives out no id below `least` any more.
    pub(crate) fn skip_ids(&self, least: u64) {
        self.ids.fetch_max(least, Ordering::Relaxed);
    }
}

impl From<Totals> for LifeMetrics {
    fn from(totals: Totals) -> LifeMetrics {
        LifeMetrics {
            user_written_bytes: totals.user,
            pool_bytes: totals.pool,
            log_file_bytes: totals.log_files,
            table_file_bytes: totals.table_files,
        }
    }
}

/// Keyspaces that were dropped. A drop refuses calls, becomes durable, and lets jobs purge, in this order:
/// no call sees a part of the keyspace, and no crash brings a part of it back.
#[derive(Default)]
pub(crate) struct DroppedKeyspaces {
    refused: ArcSwap<Vec<u32>>,
    refusals: AtomicU64,
    /// Those that jobs purge, ascending.
    purged: ArcSwap<Vec<u32>>,
    /// The same in the order in which they were dropped, for those who want to hear of each once.
    /// LOCK: held for a look, and while the other list is replaced.
    order: Mutex<Vec<u32>>,
}

impl DroppedKeyspaces {
    /// Whether calls for `keyspace` are refused.
    #[inline]
    pub(crate) fn contains(&self, keyspace: u32) -> bool {
        self.refused.load().binary_search(&keyspace).is_ok()
    }

    /// How often a keyspace was refused. A write whose keyspaces were checked after this was read is before
    /// every drop if it is the same when the write takes its number.
    #[inline]
    pub(crate) fn refusals(&self) -> u64 {
        // Acquire: whoever has the count sees the keyspaces.
        self.refusals.load(Ordering::Acquire)
    }

    /// Those that jobs purge.
    pub(crate) fn all(&self) -> Arc<Vec<u32>> {
        self.purged.load_full()
    }

    /// How many of them there are.
    pub(crate) fn count(&self) -> usize {
        self.order.lock().len()
    }

    /// The next of them after the first `heard`, which are those that whoever asks has heard of.
    pub(crate) fn next(&self, heard: &mut usize) -> Option<u32> {
        let id = self.order.lock().get(*heard).copied()?;
        *heard += 1;
        Some(id)
    }

    /// Refuses calls from now on.
    pub(crate) fn refuse(&self, keyspace: u32) {
        self.refused.rcu(|ids| {
            let mut ids = Vec::clone(ids);
            add(&mut ids, keyspace);
            ids
        });
        self.refusals.fetch_add(1, Ordering::Release);
    }

    /// Takes calls again: nothing was dropped.
    pub(crate) fn readmit(&self, keyspace: u32) {
        self.refused.rcu(|ids| {
            let mut ids = Vec::clone(ids);
            ids.retain(|id| id & !SHADOW != keyspace);
            ids
        });
    }

    /// The drop is durable: jobs purge the keyspace.
    pub(crate) fn insert(&self, keyspace: u32) {
        self.refuse(keyspace);
        let mut order = self.order.lock();
        let mut ids = Vec::clone(&self.purged.load());
        order.extend(add(&mut ids, keyspace));
        // Before a job that counts hears of it.
        self.purged.store(Arc::new(ids));
    }
}

/// Adds a keyspace and that of its range deletes, and returns those that were new.
fn add(ids: &mut Vec<u32>, keyspace: u32) -> Vec<u32> {
    let mut new = vec![keyspace, keyspace | SHADOW];
    new.retain(|id| match ids.binary_search(id) {
        Ok(_) => false,
        Err(at) => {
            ids.insert(at, *id);
            true
        }
    });
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever asks hears of each dropped keyspace once, by as many questions as there are keyspaces, however
    /// many were dropped before.
    #[test]
    fn each_drop_is_heard_of_once() {
        let dropped = DroppedKeyspaces::default();
        let (mut heard, mut questions) = (0, 0);
        for id in [9, 4, 7, 4].into_iter().chain(100..1000) {
            dropped.insert(id);
            let mut news = Vec::new();
            questions += 1;
            while let Some(id) = dropped.next(&mut heard) {
                questions += 1;
                news.push(id);
            }
            match news.as_slice() {
                [one, other] => assert_eq!((*one, *other), (id, id | SHADOW)),
                news => assert!(news.is_empty() && id == 4, "{id}: {news:?}"),
            }
        }
        let count = dropped.count();
        assert_eq!((count, heard), (2 * 903, count));
        assert_eq!(questions, count + 904);
        assert_eq!(dropped.all().len(), count);
        assert!(dropped.contains(4) && !dropped.contains(5));
    }
}
