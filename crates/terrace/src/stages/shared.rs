//! The common base of all stages: the pool, the manifest, numbers, time, counters.

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
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::ranges::{LiveRanges, Readable};
use crate::parts::rate_limiter::RateLimiter;
use crate::parts::redo::RedoArea;
use crate::parts::reserve::{DRAIN_BYTES, LOG_BYTES, Reserve, Rows};
use crate::parts::sequence::Sequencer;
use crate::parts::snapshots::SnapshotList;
use crate::parts::sstable::FileMeta;
use crate::parts::values::ValueMeta;
use crate::types::DbId;

use super::drain::PendingFrees;
use super::survival::Survival;

/// The bytes of a pool for the small memtables of an opening and of deletes, and for filters of
/// flushed tables.
const OPENING_BYTES: u64 = 16 * LOG_BYTES;

/// The common base of all stages.
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) manifest: Manifest,
    /// The id of the database.
    pub(crate) db: DbId,
    pub(crate) redo: Arc<RedoArea>,
    pub(crate) sequencer: Sequencer,
    pub(crate) snapshots: SnapshotList,
    pub(crate) dropped: DroppedKeyspaces,
    pub(crate) ranges: LiveRanges,
    pub(crate) time: Time,
    pub(crate) counters: Counters,
    /// The totals written before the database was opened.
    pub(crate) totals_before: Totals,
    /// The rate limit of background writes to table files.
    pub(crate) rate_limiter: RateLimiter,
    /// The bytes that drains in progress will return to the pool.
    pub(crate) pending_frees: PendingFrees,
    /// The bytes of memtables that flushes in progress have written, if these become table files.
    pub(crate) flush_credits: PendingFrees,
    /// Keeps the parts of the database within the memory budget.
    pub(crate) memory: Arc<Memory>,
    /// Disk space reserved for work that frees space.
    pub(crate) reserve: Arc<Reserve>,
    /// The options as stated, except for sizes that do not fit the disk.
    pub(crate) options: Options,
    pub(crate) stated: Options,
    /// The number of this opening of the database, unique in the process.
    pub(crate) opening: u64,
    /// The bytes of the pool that drains need to free others, as the throttle has last set them.
    for_drains: AtomicU64,
    ids: AtomicU64,
    /// The newest entry of this opening that is in no log, or 0. Written under `commit`.
    pub(crate) newest_unlogged: AtomicU64,
    /// Numbers in the names of files that are not this database's.
    taken: Mutex<BTreeSet<u64>>,
}

/// The database's directory: log files, if logs are files, and tables of a bottom on the disk.
#[derive(Clone)]
pub(crate) struct Folder {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) dir: PathBuf,
}

/// The number of the last opening.
static OPENINGS: AtomicU64 = AtomicU64::new(0);

impl Shared {
    /// Creates the shared of a database whose manifest is open.
    pub(crate) fn new(
        pool: Pool,
        manifest: Manifest,
        redo: Arc<RedoArea>,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Shared {
        let (ids, last_seq) = manifest.with_state(|state| (state.next_id.max(1), state.last_seq));
        let (totals_before, time) = manifest.with_state(|state| (state.totals, state.time));
        let sequencer = Sequencer::default();
        sequencer.start_after(last_seq);
        Shared {
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
            rate_limiter: RateLimiter::new(options.bottom.leveled.write_rate_max),
            pending_frees: PendingFrees::default(),
            flush_credits: PendingFrees::default(),
            memory: Memory::of(&options),
            reserve: Reserve::none(),
            stated: options.clone(),
            options,
            opening: OPENINGS.fetch_add(1, Ordering::Relaxed) + 1,
            for_drains: AtomicU64::new(0),
            ids: AtomicU64::new(ids),
            newest_unlogged: AtomicU64::new(0),
            taken: Mutex::default(),
        }
    }

    /// Adds a reserve on the disk.
    pub(crate) fn with_reserve(mut self, reserve: Arc<Reserve>) -> Shared {
        self.manifest.lend(&reserve);
        self.reserve = reserve;
        self
    }

    /// Resizes the reserve to its target, if there is space. The row of tables holds the largest
    /// table file, and half the largest value file, since its values move when half of them are
    /// garbage. More, up to a sixteenth of all of them, is kept for a flush of one memtable and,
    /// if the buffer is memory, for a drain of its largest table, since their logs go only when all
    /// of that is written.
    ///
    /// BOUND: the space of the manifest, 160 KiB, and five quarters of the largest table file and
    /// half the largest value file, or of a sixteenth of all files. If logs are in a pool that
    /// outlives the process and there is no buffer, an eighth of all table files more, or as many
    /// memtables as may be in memory, whichever is less.
    pub(crate) fn keep_reserve(&self) {
        let in_files = !self.pool_outlives();
        let memtable = self.options.front.memtable_bytes;
        let (tables, all) = self.manifest.with_state(|state| {
            let files = || state.items().map(|file: &FileMeta| file.bytes);
            let in_pool = state.all_items().filter(|item| item.owner().in_pool);
            let buffered = in_pool.map(|item| item.bytes());
            let moved = buffered.filter(|_| in_files).fold(memtable, u64::max);
            let (largest, all) = (files().max().unwrap_or(0), files().sum::<u64>());
            // Drains bring values too.
            let values = || state.items().map(|file: &ValueMeta| file.bytes);
            let all = all + values().sum::<u64>();
            // A value file goes once the values that are live, at most half of it, and the table
            // that points to them are written again.
            let largest = largest + values().max().unwrap_or(0) / 2;
            // Files differ in size, and a memtable's table is larger than its entries.
            let whole = largest.max(moved.min(all / 16));
            // With few tables, the reserve should not be as large as the tables.
            (whole.min(all / 5), all)
        });
        // Files differ in size. Deletes that come down from the pool retire no logs, so they may
        // not take the row of tables, which is needed to free their space.
        let (tables, drains) = match in_files {
            true => (tables + tables / 4, DRAIN_BYTES),
            false => (tables + tables / 8, DRAIN_BYTES + tables / 8),
        };
        // Without a buffer, deletes wait in memory behind as many memtables of puts as may be
        // sealed.
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

    /// Sets the bytes of the pool that drains need.
    pub(crate) fn keep_for_drains(&self, bytes: u64) {
        self.for_drains.store(bytes, Ordering::Relaxed);
    }

    /// Allocates an extent for what the database can do without, like a filter. Returns `None` if
    /// the pool would then lack what drains need: an opening may replay hundreds of memtables, and
    /// their filters together could take all of it. One that replaces others, of `replaced` bytes,
    /// takes no more in the end.
    pub(crate) fn alloc_optional(&self, bytes: u64, replaced: u64) -> Result<Option<Arc<Extent>>> {
        let usage = self.pool.usage();
        let free = usage.limit.saturating_sub(usage.allocated);
        let kept = self.for_drains.load(Ordering::Relaxed);
        let rounded = bytes.next_multiple_of(usage.granule);
        if rounded > replaced && free < kept.saturating_add(rounded) {
            return Ok(None);
        }
        match self.pool.alloc(bytes) {
            Ok(extent) => Ok(Some(extent)),
            Err(AllocError::Full { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns the numbers that may be read from now on.
    pub(crate) fn readable(&self) -> Readable {
        Readable::of(&self.snapshots, &self.sequencer)
    }

    /// Returns the totals written in the database's life.
    pub(crate) fn totals(&self) -> Totals {
        self.totals_before.plus(Totals {
            user: self.counters.sum(OpCounter::UserBytes),
            pool: self.pool.counts().total().bytes,
            log_files: self.counters.sum(OpCounter::LogFileBytes),
            table_files: self.counters.sum(OpCounter::TableFileBytes),
        })
    }

    /// Counts one wait of a writer, which has ended, and reports it if it was long.
    pub(crate) fn count_stall(&self, reason: StallReason, waited: Duration) {
        self.counters.stall(reason, waited);
        if waited >= events::STALL_MIN {
            event!(
                warn,
                "terrace::stall",
                self.db,
                "a writer waited {waited:.1?} for {}",
                reason.name()
            );
        }
    }

    /// Records the totals, the time that was handed out, and the ends of logs, if any of them has
    /// advanced.
    pub(crate) fn note_totals(&self) -> Result<()> {
        let totals = self.totals();
        let known = self
            .manifest
            .with_state(|state| (state.totals.user, state.time));
        if known == (totals.user, self.time.handed_out()) && !self.manifest.has_log_ends() {
            return Ok(());
        }
        let mut changes = vec![Change::Totals(totals)];
        changes.extend(self.time_told());
        Ok(self.manifest.commit(Edit { changes })?)
    }

    /// Returns the horizon: entries that expire up to this time are absent for all present and
    /// future readers.
    pub(crate) fn horizon(&self) -> Millis {
        self.snapshots.horizon(&self.time)
    }

    /// Returns the change that records the time, if there is any.
    pub(crate) fn time_told(&self) -> Option<Change> {
        let time = self.time.handed_out();
        (time > 0).then_some(Change::Time { time })
    }

    /// Returns an id for a log and the table that it becomes; never reused.
    pub(crate) fn next_id(&self) -> u64 {
        let taken = self.taken.lock();
        // BOUND: each iteration passes one of the names that were in the directory.
        loop {
            let id = self.ids.fetch_add(1, Ordering::Relaxed);
            if !taken.contains(&id) {
                return id;
            }
        }
    }

    /// Returns whether the contents of the pool outlive the process. Otherwise the pool is memory,
    /// and everything that must survive is in files.
    pub(crate) fn pool_outlives(&self) -> bool {
        self.pool.medium() != Medium::Dram
    }

    /// Returns which part of the database outlives the process.
    pub(crate) fn survival(&self) -> Survival {
        Survival::of(self.options.design_of_new(), self.pool.medium())
    }

    /// Allocates space for data that moves within the pool. On a full device this leaves the space
    /// that an opening and memtables of deletes need: a move that took it might not end, and
    /// nothing else would free it. `below`: only before this offset.
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

    /// Excludes `id`: it is in the name of a file that is not this database's.
    pub(crate) fn pass_over(&self, id: u64) {
        self.taken.lock().insert(id);
    }

    /// Excludes all ids below `least`.
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

/// Keyspaces that were dropped. A drop refuses calls, becomes durable, and lets jobs purge, in this
/// order: no call sees a part of the keyspace, and no crash brings a part of it back.
#[derive(Default)]
pub(crate) struct DroppedKeyspaces {
    refused: ArcSwap<Vec<u32>>,
    refusals: AtomicU64,
    /// The keyspaces that jobs purge, ascending.
    purged: ArcSwap<Vec<u32>>,
    /// The same keyspaces in the order of their drops, for callers that process each once.
    /// LOCK: held briefly, and while the other list is replaced.
    order: Mutex<Vec<u32>>,
}

impl DroppedKeyspaces {
    /// Returns whether calls for `keyspace` are refused.
    #[inline]
    pub(crate) fn contains(&self, keyspace: u32) -> bool {
        self.refused.load().binary_search(&keyspace).is_ok()
    }

    /// Returns how often a keyspace was refused. If the count is the same when a write takes its
    /// number as before its keyspaces were checked, the write is before every drop.
    #[inline]
    pub(crate) fn refusals(&self) -> u64 {
        // Acquire: a reader of the count sees the keyspaces.
        self.refusals.load(Ordering::Acquire)
    }

    /// Returns the keyspaces that jobs purge.
    pub(crate) fn all(&self) -> Arc<Vec<u32>> {
        self.purged.load_full()
    }

    /// Returns their number.
    pub(crate) fn count(&self) -> usize {
        self.order.lock().len()
    }

    /// Returns the next one after the first `heard`, which the caller has processed.
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

    /// Accepts calls again: nothing was dropped.
    pub(crate) fn readmit(&self, keyspace: u32) {
        self.refused.rcu(|ids| {
            let mut ids = Vec::clone(ids);
            ids.retain(|id| id & !RANGE_DELETE_BIT != keyspace);
            ids
        });
    }

    /// Lets jobs purge the keyspace, when the drop is durable.
    pub(crate) fn insert(&self, keyspace: u32) {
        self.refuse(keyspace);
        let mut order = self.order.lock();
        let mut ids = Vec::clone(&self.purged.load());
        order.extend(add(&mut ids, keyspace));
        // Before a job that counts sees it.
        self.purged.store(Arc::new(ids));
    }
}

/// Adds a keyspace and that of its range deletes, and returns those that were new.
fn add(ids: &mut Vec<u32>, keyspace: u32) -> Vec<u32> {
    let mut new = vec![keyspace, keyspace | RANGE_DELETE_BIT];
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

    /// A caller gets each dropped keyspace once, in as many calls as there are keyspaces, however
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
                [one, other] => assert_eq!((*one, *other), (id, id | RANGE_DELETE_BIT)),
                news => assert!(news.is_empty() && id == 4, "{id}: {news:?}"),
            }
        }
        let count = dropped.count();
        assert_eq!((count, heard), (2 * 903, count));
        assert_eq!(questions, count + 904);
        assert_eq!(dropped.all().len(), count);
        assert!(dropped.contains(4) && !dropped.contains(5));
    }

    /// However many filters are asked for, drains keep what they need.
    #[test]
    fn optional_space_leaves_that_of_drains() {
        let shared = crate::stages::fixture::shared(&[]);
        shared.keep_for_drains(100 << 10);
        let mut filters = Vec::new();
        while let Some(filter) = shared.alloc_optional(100, 0).unwrap() {
            filters.push(filter);
        }
        let usage = shared.pool.usage();
        let free = usage.limit - usage.allocated;
        assert!((100 << 10..108 << 10).contains(&free), "{free}");
        // A replacement of the same size succeeds, and so does a required allocation.
        assert!(shared.alloc_optional(100, 4096).unwrap().is_some());
        assert!(shared.pool.alloc(64 << 10).is_ok());
        shared.keep_for_drains(0);
        assert!(shared.alloc_optional(100, 0).unwrap().is_some());
    }
}
