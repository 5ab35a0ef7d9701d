//! Leveled bottom: levels of SSTables on a block device (LevelDB, RocksDB; the SSD tier of MioDB,
//! MatrixKV, NoveLSM).
//!
//! ```text
//!   drain --> run run run          level 0: whole drains, newest first
//!                 | compact
//!                 v
//!             [ base  ][ ... ]     each level one run, `growth` times the one above
//!             [ last level   ]
//! ```
//!
//! A drain becomes a run of level 0. When level 0 has enough runs, or a level is larger than its
//! target, tables are merged into the level below. Readers hold a version, which never changes.
//!
//! Invariants
//!   L1  For one key, every version in an older run or a deeper level is older than every version
//!       in a newer run or a level above.
//!   L2  Tables of one run are disjoint, and all versions of a key in a run are in one table.
//!   L3  A table belongs to at most one job; its number is then in `busy`.
//!   L4  A file and its name are durable before an edit names it; it is removed after an edit has
//!       forgotten it, when no version holds it any more.
//!
//! After a crash: recover.rs. Callers: jobs on any thread; readers through [`Source`].

mod above;
mod column;
mod compact;
mod compaction;
mod delete_only;
mod drain_job;
mod drain_parts;
mod garbage;
mod hidden;
mod ingest_writer;
mod join;
mod level0;
mod narrow;
mod output;
mod pick;
pub(crate) mod recover;
mod request;
mod source;
mod split;
mod value_file;
mod values;
mod version;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use terrace_media::FileSystem;

use crate::canary::{self, Canary};
use crate::error::Result;
use crate::metrics::{FileLevelMetrics, Metrics, ValueFileMetrics};
use crate::options::LeveledOptions;
use crate::parts::cache::{FileCache, Pin};
use crate::parts::key::Place;
use crate::parts::memory::Memory;
use crate::parts::ranges::{Applicable, Fragments, RangeSet};
use crate::parts::sstable::{CachedBlock, ReadMode, SsTable, SstCache, SstOptions};
use crate::parts::values::{ValueFile, ValueOptions};
use crate::stages::file_names::{table_file_name, value_file_name};
use crate::stages::{
    Bottom, Columns, Drain, Folder, FrontShape, IngestWriter, Job, Need, Pressure, RangeRequest,
    Shared, Source, Sources, Takes, Urgency,
};
use crate::types::{Compression, DbId, SeqNo};

use column::{Awaited, Taken};
pub(crate) use column::{ColumnBytes, Merging};
use drain_parts::{Division, DrainPart};
use source::RunSource;
use value_file::ValueHandle;
use version::{Table, Version};

/// The size at which a value file is closed, in table sizes. Larger ones are fewer, smaller ones
/// are won back sooner.
const VALUE_FILE_TABLES: u64 = 4;

/// The location of tables, and their state in memory.
pub(super) struct TableStore {
    db: DbId,
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    level0: PathBuf,
    blocks: Arc<SstCache>,
    open: FileCache<SsTable>,
    open_values: FileCache<ValueFile>,
    /// Whether jobs may write value files.
    writes_values: bool,
    options: LeveledOptions,
}

impl TableStore {
    fn new(folder: &Folder, db: DbId, options: &LeveledOptions, memory: Arc<Memory>) -> TableStore {
        let options = options.clone();
        let held_max = memory.limits.held_bytes;
        let held = match memory.is_limited() {
            true => SsTable::held_bytes,
            false => |_: &SsTable| 0,
        };
        TableStore {
            db,
            fs: Arc::clone(&folder.fs),
            level0: options
                .level0_dir
                .clone()
                .unwrap_or_else(|| folder.dir.clone()),
            dir: folder.dir.clone(),
            open: FileCache::within(options.open_files_max, held_max, held),
            open_values: FileCache::within(options.open_files_max, u64::MAX, |_| 0),
            blocks: Arc::new(SstCache::within(options.cache_bytes, memory)),
            writes_values: options.values_apart_from.is_some(),
            options,
        }
    }

    /// Returns the compression of blocks of `level`.
    fn compression(&self, level: u32) -> Compression {
        match level {
            0 | 1 => self.options.compression_upper,
            _ => self.options.compression,
        }
    }

    /// Returns the options of tables written to `level`.
    fn table_options(&self, level: u32) -> SstOptions {
        let options = &self.options;
        SstOptions {
            db: self.db,
            block_bytes: options.block_bytes,
            filter_bits_per_key: options.filter_bits_per_key,
            compression: self.compression(level),
            direct: options.direct_writes,
            write_bytes: self.write_bytes(),
            ..SstOptions::default()
        }
    }

    /// Returns the options of value files. Values stay in them on all levels.
    fn value_options(&self) -> ValueOptions {
        ValueOptions {
            db: self.db,
            compression: self.options.compression,
            direct: self.options.direct_writes,
            write_bytes: self.write_bytes(),
        }
    }

    /// Returns the size of write buffers. A job that writes a table may write a value file beside.
    fn write_bytes(&self) -> usize {
        let most = self.blocks.memory().limits.write_bytes;
        match self.writes_values {
            true => most / 2,
            false => most,
        }
    }

    /// Returns the size at which a value file is closed.
    fn value_file_bytes(&self) -> u64 {
        VALUE_FILE_TABLES * self.options.table_bytes
    }

    fn read_mode(&self) -> ReadMode {
        if self.options.direct_reads {
            ReadMode::Direct
        } else {
            ReadMode::Buffered
        }
    }

    /// Charges the block cache for the names of tables, if there is a memory budget.
    fn charge_names(&self, version: &Version) -> Option<Pin<CachedBlock>> {
        let limited = self.blocks.memory().is_limited();
        limited.then(|| self.blocks.charge(version.names_bytes() as usize))
    }

    /// Returns the directory of the tables of `level`.
    fn dir(&self, level: u32) -> &Path {
        match level {
            0 => &self.level0,
            _ => &self.dir,
        }
    }

    /// Returns the path of value file `number`.
    fn value_path(&self, number: u64) -> PathBuf {
        self.dir.join(value_file_name(number))
    }

    /// Returns the path of table `number`, which was written for `level`.
    fn path(&self, number: u64, level: u32) -> PathBuf {
        self.dir(level).join(table_file_name(number))
    }
}

/// Numbers of tables.
type Numbers = HashSet<u64>;

/// The tables that jobs work on.
#[derive(Default)]
struct Busy {
    numbers: Numbers,
    /// For each level, the key after which its next compaction looks for a table.
    next: Vec<Option<(u32, Vec<u8>)>>,
    /// The state at the last search for tables that range deletes cover.
    looked: delete_only::Looked,
    /// The state that makes compactions smaller on a full disk.
    narrow: narrow::Narrow,
    /// Tables that a drain rewrites on a full disk.
    hidden: hidden::Candidates,
    /// Whether a drain is being merged with the first level. It has keys between the tables there
    /// too, so nothing else may bring any down meanwhile.
    has_column: bool,
    /// The level whose small tables are being joined. Nothing is brought down to it meanwhile: the
    /// result lies in the gaps between them too (L2).
    joined: Option<usize>,
    /// The version in which the disk has refused a joining. The next one begins in another.
    join_refused: Weak<Version>,
    /// Whether the disk has refused the merge of a drain with the whole first level. The next ones
    /// become runs of level 0, until one has found space.
    merging_refused: bool,
    /// The place that the columns have reached; `None` if drains are not in columns.
    swept: Option<Place>,
    /// The rest of the keys, from the start of a drain that waits for a table of the first level.
    awaited: Option<Awaited>,
    /// Ranges that are to be moved down, while a caller waits for them.
    requests: Vec<Weak<RangeRequest>>,
}

/// The bottom of one database.
pub(crate) struct Leveled {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    front: FrontShape,
    store: Arc<TableStore>,
    /// How drains are merged with the first level, if they are.
    merging: Option<Merging>,
    version: ArcSwap<Version>,
    /// LOCK: held briefly; never while a file is read.
    busy: Mutex<Busy>,
    /// The charge of the version's names on the block cache, if there is a memory budget.
    /// LOCK: one version is made at a time.
    installing: Mutex<Option<Pin<CachedBlock>>>,
    /// Bytes of tables written for each level.
    written: Vec<AtomicU64>,
}

impl Inner {
    fn new(
        shared: Arc<Shared>,
        front: FrontShape,
        store: Arc<TableStore>,
        merging: Option<Merging>,
        version: Version,
    ) -> Arc<Inner> {
        let busy = Busy {
            next: vec![None; version.levels.len() + 1],
            ..Busy::default()
        };
        let names = store.charge_names(&version);
        Arc::new(Inner {
            written: (0..=version.levels.len())
                .map(|_| AtomicU64::new(0))
                .collect(),
            shared,
            front,
            store,
            merging,
            version: ArcSwap::from_pointee(version),
            busy: Mutex::new(busy),
            installing: Mutex::new(names),
        })
    }

    fn version(&self) -> Arc<Version> {
        self.version.load_full()
    }

    /// Returns the busy tables, locked, and the version, for choosing the tables of a job.
    fn choosing(&self) -> (MutexGuard<'_, Busy>, Arc<Version>) {
        let early = canary::breaks(Canary::VersionEarly).then(|| self.version());
        canary::linger(Canary::VersionEarly);
        let busy = self.busy.lock();
        // LOCK: the version is loaded after the lock: a job installs its result before it frees its
        // tables. The other way round, tables that are just gone would be found free, and removed
        // twice.
        (busy, early.unwrap_or_else(|| self.version()))
    }

    /// Returns the range deletes that jobs may apply to the tables of a version: those in its
    /// tables, and those in synced logs. A power loss could take any other one without restoring
    /// the entries that it had hidden.
    fn lasting_ranges(&self, version: &Version) -> Vec<Applicable> {
        let live = &self.shared.ranges;
        let of_tables = version.ranges.clone().map(Applicable::lasting);
        let above = live.applicable(live.durable(), None);
        of_tables.into_iter().chain(above).collect()
    }

    /// Returns the position of level 0 between two numbers of runs, or of the debt between two
    /// numbers of bytes, whichever is further.
    fn between(&self, runs: (usize, usize), debt: (u64, u64)) -> Pressure {
        let version = self.version();
        let memtable = self.front.memtable_bytes;
        let part =
            |value: f64, from: f64, to: f64| ((value - from) / (to - from).max(1.0)).max(0.0);
        let runs = Pressure {
            part: part(version.runs.len() as f64, runs.0 as f64, runs.1 as f64),
            range: (runs.1.saturating_sub(runs.0) as u64).saturating_mul(memtable),
        };
        let owed = pick::debt(&version, &self.store.options);
        let debt = Pressure {
            part: part(owed as f64, debt.0 as f64, debt.1 as f64),
            range: debt.1.saturating_sub(debt.0),
        };
        if runs.part >= debt.part { runs } else { debt }
    }

    /// Returns how far compactions are behind.
    fn need(&self) -> Need {
        let options = &self.store.options;
        let stop = options.debt_stop_bytes;
        let version = self.version();
        let garbage = self.garbage(&version).need();
        // On a full disk no job moves values, and drains bring deletes.
        let of_values = match self.shared.reserve.is_tight() {
            true => Need::default(),
            false => self.value_garbage(&version).need(),
        };
        let before = (options.runs_compact, options.runs_slow);
        let before = self.between(before, (stop / 8, stop / 2)).part;
        let after = (options.runs_slow, options.runs_stop);
        let order = Need::of(before, self.between(after, (stop / 2, stop)));
        let all = [order, garbage, of_values].into_iter();
        all.fold(order, |most, need| match need.part > most.part {
            true => need,
            false => most,
        })
    }

    fn drain_bytes_max(&self) -> u64 {
        // Larger runs are fewer: less is rewritten, and readers search fewer. But the pool and logs
        // get nothing back before all of a run is written.
        let options = &self.shared.options;
        let mut quarter = options.pool.size_bytes / 4;
        match self.merging {
            // Each column frees its space; about half of it is entries, the rest tables.
            Some(Merging::Columns(columns)) => return quarter.min(columns.most / 2),
            // The first level is rewritten for each drain, however little it brings.
            Some(Merging::Whole) => return options.pool.size_bytes.max(options.table_bytes_max()),
            None => {}
        }
        if options.pool.path.is_none() {
            quarter = quarter.min(self.front.log_bytes_max / 4);
        }
        quarter.max(options.table_bytes_max())
    }

    /// Installs the next version, with additional tables and value files. The files of `removed` go
    /// when they have no reader left, except those that are `added` as tables of another level.
    fn install(&self, removed: &[u64], added: &[Table], values: &[Arc<ValueHandle>]) {
        let stays = |number: &u64| added.iter().any(|table| table.number() == *number);
        let gone: Vec<u64> = removed.iter().copied().filter(|n| !stays(n)).collect();
        let mut names = self.installing.lock();
        let old = self.version.load_full();
        let new = Arc::new(old.edited(removed, added, values));
        *names = self.store.charge_names(&new);
        self.version.store(new);
        old.retire(&gone);
    }
}

impl Bottom for Leveled {
    fn drain_bytes_max(&self) -> u64 {
        self.inner.drain_bytes_max()
    }

    fn drain_bytes_now(&self) -> u64 {
        self.inner.drain_bytes_now()
    }

    fn takes(&self) -> Takes {
        Takes::Ranges
    }

    fn columns(&self) -> Option<&dyn Columns> {
        self.inner.merging.is_some().then_some(self)
    }

    fn drain_job(&self, mut drain: Drain) -> Result<Box<dyn Job>> {
        // What cannot be put back, like the entries of a copy, is written at once.
        let waits = drain.put_back.is_some() && self.need().stops();
        let lower = match column::Lower::take(&self.inner, &mut drain)? {
            Taken::Busy => return Ok(Box::new(drain_job::PutBack(Some(drain)))),
            Taken::Tables(lower) if !waits => {
                if let Some(division) = Division::of(&self.inner, &mut drain, &lower) {
                    let whole = DrainPart::begin(&self.inner, drain, lower, division);
                    return Ok(Box::new(whole));
                }
                Some(lower)
            }
            Taken::Tables(lower) => Some(lower),
            Taken::Not => None,
        };
        Ok(Box::new(drain_job::DrainJob::begin(
            &self.inner,
            drain,
            lower,
            waits,
        )))
    }

    fn makes_room_by(&self, newest: SeqNo) -> bool {
        self.inner.busy.lock().hidden.is_due(newest)
    }

    fn ingest_writer(&self, seq: SeqNo) -> Option<Box<dyn IngestWriter>> {
        Some(Box::new(ingest_writer::Run::begin(&self.inner, seq)))
    }

    fn next_job(&self, urgency: Urgency) -> Result<Option<Box<dyn Job>>> {
        if let Some(job) = delete_only::next(&self.inner) {
            return Ok(Some(job));
        }
        if let Some(job) = values::forget(&self.inner) {
            return Ok(Some(job));
        }
        let compaction = self.inner.pick(urgency);
        Ok(compaction.map(|compaction| {
            Box::new(compact::Compact::begin(&self.inner, compaction)) as Box<dyn Job>
        }))
    }

    fn compact_range(&self, request: &Arc<RangeRequest>) {
        self.inner
            .busy
            .lock()
            .requests
            .push(Arc::downgrade(request));
    }

    fn is_compacted(&self, request: &RangeRequest) -> bool {
        request::due(&self.inner.version(), request).is_none()
    }

    fn is_drained(&self) -> bool {
        self.inner.version().runs.is_empty()
    }

    fn is_outside_pool(&self) -> bool {
        true
    }

    fn need(&self) -> Need {
        self.inner.need()
    }

    fn is_covered(&self, ranges: &RangeSet) -> bool {
        let dropped = self.inner.shared.dropped.all();
        delete_only::covers_any(&self.inner.version(), ranges, &dropped)
    }

    fn ranges(&self) -> Option<Arc<Fragments>> {
        self.inner.version().ranges.clone()
    }

    fn sources(&self) -> Sources {
        let version = self.inner.version();
        let runs = version.runs.iter().chain(&version.levels);
        runs.filter(|run| !run.tables.is_empty())
            .map(|run| Arc::new(RunSource(Arc::clone(run))) as Arc<dyn Source>)
            .collect()
    }

    fn measure(&self, metrics: &mut Metrics) {
        let version = self.inner.version();
        let (_, targets) = pick::targets(&version, &self.inner.store.options);
        let level_of = |level: usize, runs: &[Arc<version::Run>], target: Option<u64>| {
            let tables = || runs.iter().flat_map(|run| &run.tables);
            FileLevelMetrics {
                level: level as u32,
                run_count: runs.iter().filter(|run| !run.tables.is_empty()).count() as u64,
                file_count: tables().count() as u64,
                entry_count: tables().map(|t| t.meta.entries).sum(),
                tombstone_count: tables().map(|t| t.meta.tombstones).sum(),
                bytes: tables().map(|t| t.meta.bytes).sum(),
                superseded_bytes: runs.iter().map(|run| run.superseded()).sum(),
                target_bytes: target,
                written_bytes: self.inner.written[level].load(Ordering::Relaxed),
            }
        };
        metrics.files = vec![level_of(0, &version.runs, None)];
        for (at, run) in version.levels.iter().enumerate() {
            let target = targets.get(at + 1).copied().filter(|&t| t < u64::MAX);
            let level = level_of(at + 1, std::slice::from_ref(run), target);
            metrics.files.push(level);
        }
        metrics.files.retain(|level| level.file_count > 0);
        let (file_count, bytes, live_bytes) = version.values.totals();
        metrics.values = ValueFileMetrics {
            file_count,
            bytes,
            live_bytes,
        };
        let (cached, pinned) = self.inner.store.blocks.used_bytes();
        metrics.cache.used_bytes = cached + pinned;
        metrics.cache.capacity_bytes = self.inner.store.blocks.capacity_bytes();
        let (tables, values) = (&self.inner.store.open, &self.inner.store.open_values);
        metrics.cache.open_file_count = (tables.open_count() + values.open_count()) as u64;
    }
}
