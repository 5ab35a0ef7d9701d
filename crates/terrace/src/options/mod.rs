//! Every tunable of the store: meaning, unit, default, range, when it may change.
//!
//! Plain data with defaults; [`Options::validate`] reports all problems at once.

#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod design;
pub(crate) mod file;
pub(crate) mod kept;
mod leveled;
pub(crate) mod memory;

use std::path::PathBuf;

pub use design::Design;
pub use leveled::LeveledOptions;
pub use memory::{MemoryPart, Sizes};
pub use terrace_media::{Emulation, MediumChoice, Prefault};

use crate::error::{Error, Result};
use crate::types::Durability;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;

/// Memtables and extents that follow a pool's size are at most 1/`POOL_PIECES` of it.
const POOL_PIECES: u64 = 32;
/// A memtable in the pool has this many times the bytes of one in memory: with 64 MiB, an eighth of
/// the 4 GiB of NoveLSM. It leaves in one piece, so that of 4 GiB would stop writers.
const PM_MEMTABLE_FACTOR: u64 = 8;
/// It takes at most this part of the pool by default, and if it is stated.
const PM_MEMTABLE_PARTS_MIN: (u64, u64) = (16, 4);
/// The number of merges that can run at a time (parts/redo/layout.rs).
pub(crate) const MERGES_MAX: usize = 11;
/// A read has few sources to search at the same time.
const READ_WORKERS_MAX: usize = 64;
/// The minimum size of a memtable that follows the size of a pool or of a disk.
pub(crate) const MEMTABLE_BYTES_SMALL: u64 = 64 << 10;
pub(crate) const PAGE_BYTES: u64 = 4096;

/// All options of a database.
///
/// "Changes" says when an option may change. Options that shape the data on the media are kept with
/// the database ([`Options::kept`]); those of the process, the machine or one call are not.
///
/// ```
/// use terrace::Options;
/// let mut options = Options::default();
/// options.pool.size_bytes = 1 << 30;
/// options.front.memtable_bytes = 16 << 20;
/// options.validate().unwrap();
/// ```
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The composition of stages. `None`: that of the database, and for a new one `MioDb` with a
    /// pool and `MioDbSsd` without.
    /// Default: `None`. Changes: fixed at creation; naming another one later is an error.
    pub design: Option<Design>,
    /// The durability of writes that do not specify one.
    /// Default: `Buffered`. Changes: on reopen.
    pub durability: Durability,
    /// Whether an existing database is an error.
    /// Default: false. Changes: on reopen.
    pub error_if_exists: bool,
    /// Whether a missing database is an error instead of being created.
    /// Default: false. Changes: on reopen.
    pub error_if_missing: bool,
    /// Whether the database is opened without changing any of its files: it must exist, it cannot
    /// be open for writing at the same time, others may read it too, and calls that write get
    /// `ReadOnly`. Recovery works in memory, as much as the logs need; no background work runs.
    /// Default: false. Changes: on reopen.
    pub read_only: bool,
    /// A limit for the memory of the open database, in bytes, including the pool if it is in
    /// memory: no operation exceeds it. Sizes that could exceed it together are refused, so begin
    /// with [`Options::within`], which sets this and chooses them; [`Options::memory_plan`] shows
    /// the share of each part. Keys with their values are then at most a 512th of it (64 KiB to 16
    /// MiB), and iterators get `Full` when all of them hold more than a 16th, or than what one of
    /// them may need. Not counted: thread stacks, the program, results passed to the caller, and
    /// file pages, which belong to the system. See docs/memory.md for details.
    /// Larger: more and larger of everything. Default: `None`, sizes are set one by one and some
    /// parts have no limit. Range: at least 16 MiB. Changes: on reopen. Not kept: it depends on the
    /// process.
    pub memory_bytes: Option<u64>,
    /// The pool: the storage of the buffer and the bottom.
    pub pool: PoolOptions,
    /// The front: where writes become durable.
    pub front: FrontOptions,
    /// The buffer: sorted tables in the pool.
    pub buffer: BufferOptions,
    /// The bottom: the storage of cold data.
    pub bottom: BottomOptions,
    /// Background work.
    pub background: BackgroundOptions,
}

/// The pool that holds tables, and on persistent memory also logs and manifest.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// The pool's file or DAX device. Relative paths start at the database's directory. `None`: the
    /// buffer is anonymous memory (medium `Dram`), and everything that must survive is in files of
    /// the directory: logs, a manifest, and the tables of designs that have them.
    /// Default: `None`. Changes: fixed at creation (a moved file may be named again).
    pub path: Option<PathBuf>,
    /// The hard cap of the pool in bytes; the file grows up to it in steps. Larger: more data.
    /// Smaller: back-pressure sooner. Default: 8 GiB. Range: at least twice
    /// `front.sealed_count_max + 2` times `front.memtable_bytes` and 64 KiB, four of
    /// `bottom.extent_bytes`, and 512 KiB: 577 MiB with default options, and less with the sizes of
    /// [`Options::with_pool_bytes`]. Changes: may be raised on reopen; a pool in a file keeps its
    /// cap if this is smaller.
    pub size_bytes: u64,
    /// The medium that the pool is treated as. `ForceDax` runs the flush instructions of persistent
    /// memory on any mapping and says so in every report.
    /// Default: `Auto`. Changes: on reopen.
    pub medium: MediumChoice,
    /// When pages are faulted in: when extents and log files are allocated, all at creation, or on
    /// first touch.
    /// Default: `Ahead`. Changes: on reopen.
    pub prefault: Prefault,
    /// Slows stores down to the speed of a persistent memory; for measurement only.
    /// Default: `None`. Changes: on reopen.
    pub emulation: Option<Emulation>,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            path: None,
            size_bytes: 8 << 30,
            medium: MediumChoice::Auto,
            prefault: Prefault::Ahead,
            emulation: None,
        }
    }
}

/// Options of the front stage.
#[derive(Debug, Clone)]
pub struct FrontOptions {
    /// The size of a memtable, of its log and of the table that a flush makes of it, in bytes.
    /// Larger: fewer, longer merges and a longer replay. Smaller: less DRAM.
    /// Default: 64 MiB (MioDB, section 5). Range: 4 KiB to 4 GiB. Changes: on reopen.
    pub memtable_bytes: u64,
    /// The number of sealed memtables that may wait for their flush before writers wait.
    /// Default: 2. Range: 1 to 64. Changes: on reopen.
    pub sealed_count_max: usize,
    /// Without a pool: the maximum bytes of all log files. Data that is only in memory is in logs,
    /// so this bounds both the buffer and the replay after a crash; the oldest data is moved to
    /// table files early enough. The logs of memtables are always allowed; `MioDb` and
    /// `NoveLsmNoSst`, which keep only logs, have no limit.
    /// Larger: fewer, larger drains. Smaller: a shorter replay, less memory.
    /// Logs take at most a quarter of the disk, counting its free space and the database's own
    /// files when it is opened, and a memtable an eighth of that.
    /// Default: 1 GiB. Changes: on reopen.
    pub log_bytes_max: u64,
    /// The size of the memtable in the pool of `NoveLsm` and its modes, in bytes. The other designs
    /// do not have one.
    /// Larger: longer bursts of writes go on while table files are made, and more versions of a key
    /// never reach them. Smaller: its space comes back in smaller pieces.
    /// Default: `None`, 8 times `memtable_bytes`, at most a 16th of the pool; the paper's is 4 GiB
    /// (NoveLSM, section 5). Range: 4 KiB to a quarter of the pool. Changes: on reopen.
    pub pm_memtable_bytes: Option<u64>,
}

impl Default for FrontOptions {
    fn default() -> FrontOptions {
        FrontOptions {
            memtable_bytes: 64 * MIB,
            sealed_count_max: 2,
            log_bytes_max: 1 << 30,
            pm_memtable_bytes: None,
        }
    }
}

/// Options of the buffer stage.
#[derive(Debug, Clone)]
pub struct BufferOptions {
    /// The number of levels of tables in the elastic buffer.
    /// Larger: more merging before data is copied to the bottom. Smaller: earlier drains.
    /// Default: 8 (MioDB, section 5.3). Range: 1 to 32. Changes: on reopen.
    pub levels: u32,
    /// Filter bits for each key of a table. In `FlatLsm` filters are in memory, and with
    /// `memory_bytes` there are none.
    /// Default: 16 (MioDB, section 5). Range: 0 (no filter) to 64. Changes: on reopen.
    pub filter_bits_per_key: u32,
    /// The maximum result of a merge, in bytes. Tables whose merge would be larger move down
    /// instead. Bounds the space that one drain needs.
    /// Default: `None`, an eighth of the pool; in `MioDb` with a pool and without `memory_bytes`,
    /// more while over twice the result is free: up to the paper's sizes, which double with each
    /// level. Changes: on reopen.
    pub table_bytes_max: Option<u64>,
    /// The matrix container of `MatrixKv`.
    pub matrix: MatrixOptions,
    /// The tables of `FlatLsm`.
    pub tables: TablesOptions,
}

/// Options of the tables of `FlatLsm`: sealed memtables that stay in the buffer with their logs.
#[derive(Debug, Clone)]
pub struct TablesOptions {
    /// The bytes of a table: of its log in a pool, else of its memtable. In a log it has an index
    /// in memory too, of about 90 bytes and the key for each entry; where that would take over five
    /// eighths of the bytes, the table is smaller.
    /// Larger: fewer, larger drains, and less rewriting of level 1. Smaller: less to replay.
    /// Default: `None`, one of `count_max + 4` parts of the pool (without a pool: of the logs), up
    /// to the paper's 2 GiB; with `memory_bytes`, `front.memtable_bytes`. Range: 4 KiB to that
    /// part. Changes: on reopen.
    pub table_bytes: Option<u64>,
    /// The number of sealed tables from which on they drain, all together.
    /// Default: 4 (FlatLSM, section 4.3). Range: 1 to 64. Changes: on reopen.
    pub flush_count: usize,
    /// The maximum number of tables, including the active one. Writers are slowed above
    /// `flush_count` tables, and wait for a drain at this number.
    /// Default: 6 (FlatLSM, section 5.1). Range: above `flush_count`, up to 128. Changes: on
    /// reopen.
    pub count_max: usize,
}

impl Default for TablesOptions {
    fn default() -> TablesOptions {
        TablesOptions {
            table_bytes: None,
            flush_count: 4,
            count_max: 6,
        }
    }
}

impl TablesOptions {
    /// Returns the largest size of a table in a pool, or in logs, of these bytes.
    pub(crate) fn table_bytes_max(&self, bytes: u64) -> u64 {
        // Also the active one, the spare, those of ingests, and the rest of the pool.
        bytes / (self.count_max as u64 + 4) / PAGE_BYTES * PAGE_BYTES
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(1..=64).contains(&self.flush_count) {
            problems.push(format!(
                "buffer.tables.flush_count is {}, but must be 1 to 64",
                self.flush_count
            ));
        }
        if self.count_max <= self.flush_count || self.count_max > 128 {
            problems.push(format!(
                "buffer.tables.count_max is {}, but must be above buffer.tables.flush_count, {}, \
                 and at most 128",
                self.count_max, self.flush_count
            ));
        }
        problems
    }
}

/// Options of the matrix container. Each is a part of MatrixKV that can be left out, to measure it.
#[derive(Debug, Clone)]
pub struct MatrixOptions {
    /// Whether a search goes from row to row by forward pointers (section 3.4); otherwise all rows
    /// are searched in turns.
    /// Default: true. Changes: on reopen.
    pub hints: bool,
    /// Whether the container is drained in columns of keys (section 3.2); otherwise all of it is
    /// merged with level 1 at once.
    /// Default: true. Changes: on reopen.
    pub columns: bool,
    /// Whether level 1 is as large as the container (section 3.3), in place of
    /// `bottom.leveled.level1_bytes`.
    /// Default: true. Changes: on reopen.
    pub flattened: bool,
}

impl Default for MatrixOptions {
    fn default() -> MatrixOptions {
        MatrixOptions {
            hints: true,
            columns: true,
            flattened: true,
        }
    }
}

impl Default for BufferOptions {
    fn default() -> BufferOptions {
        BufferOptions {
            levels: 8,
            filter_bits_per_key: 16,
            table_bytes_max: None,
            matrix: MatrixOptions::default(),
            tables: TablesOptions::default(),
        }
    }
}

/// Options of the bottom stage.
#[derive(Debug, Clone)]
pub struct BottomOptions {
    /// The size of the extents that the repository takes from the pool, in bytes.
    /// Larger: fewer extents. Smaller: space is freed in smaller pieces.
    /// Default: 16 MiB. Range: 16 KiB to 1 GiB. Changes: on reopen.
    pub extent_bytes: u64,
    /// The percentage of dead bytes at which an extent is emptied and freed.
    /// Larger: less copying. Smaller: less garbage.
    /// Default: 50. Range: 10 to 95. Changes: on reopen.
    pub garbage_percent: u32,
    /// The levels of table files, for designs whose bottom consists of them.
    pub leveled: LeveledOptions,
}

impl Default for BottomOptions {
    fn default() -> BottomOptions {
        BottomOptions {
            extent_bytes: 16 * MIB,
            garbage_percent: 50,
            leveled: LeveledOptions::default(),
        }
    }
}

/// Options of the background work.
#[derive(Debug, Clone, Default)]
pub struct BackgroundOptions {
    /// The threads that run flushes, merges, drains and reclaims.
    /// Default: `Auto`. Changes: on reopen.
    pub workers: Workers,
    /// Threads that only merge tables of the elastic buffer, in addition to those of `workers`,
    /// which then merge only if they find nothing else to do. At most one for each level that
    /// merges runs, which is MioDB's arrangement (section 4.5). 0: merges share the threads of
    /// `workers` with drains and reclaims. Without effect with `Manual`, and in designs without an
    /// elastic buffer.
    /// Larger: fewer tables under writes, so faster reads, if there are idle cores. Smaller: more
    /// of the processor for clients. Default: 0. Range: 0 to 11: no more merges run at a time.
    /// Changes: on reopen.
    pub merge_threads: usize,
    /// Threads that take part in point reads whose key is probably not in a memtable or a table of
    /// the buffer: they search levels of the bottom at the same time (NoveLSM, section 4.5).
    /// Memtables then have filters in memory, a hundredth of their size, unless `memory_bytes` is
    /// set. 0: each read searches all sources itself. Without effect with `Manual`, and with
    /// `read_only`.
    /// Larger: shorter reads if a search of the bottom takes longer than to wake a thread (several
    /// microseconds), as with reads from a device, and cores are idle; otherwise longer ones.
    /// Default: 0. Range: 0 to 64. Changes: on reopen.
    pub read_workers: usize,
}

/// The threads that run background jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Workers {
    /// One thread for flushes and one for each two cores (at least one) for the rest. One more if a
    /// buffer drains to files, because drains wait for the device while merges and compactions run.
    #[default]
    Auto,
    /// One thread for flushes and this many for the rest.
    Threads(usize),
    /// No threads: steps run when [`Db::step`](crate::Db::step) is called, or inside a write that
    /// would have to wait. Deterministic; for tests.
    Manual,
}

/// Returns the largest memtable or extent, in bytes, that follows from the size of a pool.
fn piece_of_pool(bytes: u64) -> u64 {
    bytes / POOL_PIECES / PAGE_BYTES * PAGE_BYTES
}

impl Options {
    /// Returns the number of threads that drain, reclaim and compact, and merge unless other
    /// threads do; `None` without threads.
    pub(crate) fn worker_count(&self) -> Option<usize> {
        match self.background.workers {
            Workers::Manual => None,
            Workers::Threads(count) => Some(count),
            Workers::Auto => {
                let cores = std::thread::available_parallelism().map_or(2, usize::from);
                let design = self.design_of_new();
                let drains_to_files = design.keeps_data_in_pool() && design.keeps_table_files();
                Some((cores / 2).max(1) + usize::from(drains_to_files))
            }
        }
    }

    /// Returns the number of threads that take part in point reads.
    pub(crate) fn read_worker_count(&self) -> usize {
        match self.background.workers {
            Workers::Auto | Workers::Threads(_) => self.background.read_workers,
            Workers::Manual => 0,
        }
    }

    /// Returns the number of threads that only merge: at most one for each level that does.
    pub(crate) fn merge_thread_count(&self) -> usize {
        let merging_levels = (self.buffer.levels as usize).saturating_sub(1);
        let merges = self.design_of_new().keeps_data_in_pool();
        match self.background.workers {
            Workers::Auto | Workers::Threads(_) if merges => {
                self.background.merge_threads.min(merging_levels)
            }
            _ => 0,
        }
    }

    /// Returns whether writes of a new database are logged if they are of the option's durability:
    /// all but `Volatile`, and that too if the log is the table.
    pub fn logs_of_new(&self) -> bool {
        let log_is_table = self.design_of_new().keeps_tables_in_logs() && self.pool.path.is_some();
        self.durability != Durability::Volatile || log_is_table
    }

    /// Returns the design of a new database.
    pub fn design_of_new(&self) -> Design {
        let default = match self.pool.path {
            Some(_) => Design::MioDb,
            None => Design::MioDbSsd,
        };
        self.design.unwrap_or(default)
    }

    /// Checks every option and reports all problems in one `Invalid` error.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut check = |ok: bool, problem: String| {
            if !ok {
                problems.push(problem);
            }
        };
        let memtable = self.front.memtable_bytes;
        check(
            (4096..=4 << 30).contains(&memtable),
            format!("front.memtable_bytes is {memtable}, but must be 4 KiB to 4 GiB"),
        );
        check(
            (1..=64).contains(&self.front.sealed_count_max),
            format!(
                "front.sealed_count_max is {}, but must be 1 to 64",
                self.front.sealed_count_max
            ),
        );
        check(
            (1..=32).contains(&self.buffer.levels),
            format!(
                "buffer.levels is {}, but must be 1 to 32",
                self.buffer.levels
            ),
        );
        check(
            self.buffer.filter_bits_per_key <= 64,
            format!(
                "buffer.filter_bits_per_key is {}, but must be at most 64",
                self.buffer.filter_bits_per_key
            ),
        );
        let extent = self.bottom.extent_bytes;
        check(
            (16 << 10..=1 << 30).contains(&extent),
            format!("bottom.extent_bytes is {extent}, but must be 16 KiB to 1 GiB"),
        );
        check(
            (10..=95).contains(&self.bottom.garbage_percent),
            format!(
                "bottom.garbage_percent is {}, but must be 10 to 95",
                self.bottom.garbage_percent
            ),
        );
        self.bottom
            .leveled
            .problems()
            .into_iter()
            .for_each(|problem| check(false, problem));
        self.buffer
            .tables
            .problems()
            .into_iter()
            .for_each(|problem| check(false, problem));
        let most = self.buffer.tables.table_bytes_max(self.pool.size_bytes);
        if let (Some(table), Design::FlatLsm) =
            (self.buffer.tables.table_bytes, self.design_of_new())
        {
            check(
                (4096..=most.max(4096)).contains(&table),
                format!(
                    "buffer.tables.table_bytes (--memtable-size) is {table}, but in a pool of {} \
                     bytes it must be 4 KiB to {most}: lower it, or raise --pool-size \
                     (pool.size_bytes)",
                    self.pool.size_bytes
                ),
            );
        }
        let most = self.pool.size_bytes / PM_MEMTABLE_PARTS_MIN.1;
        if let (Some(bytes), true) = (
            self.front.pm_memtable_bytes,
            self.design_of_new().has_pm_memtable(),
        ) {
            check(
                (4096..=most.max(4096)).contains(&bytes),
                format!(
                    "front.pm_memtable_bytes (--pm-memtable-size) is {bytes}, but in a pool of {} \
                     bytes it must be 4 KiB to {most}: lower it, or raise --pool-size \
                     (pool.size_bytes)",
                    self.pool.size_bytes
                ),
            );
        }
        let (pool, least) = (self.pool.size_bytes, self.pool_bytes_min());
        let fits_small = pool >= self.clone().with_pool_bytes(pool).pool_bytes_min();
        let how = match fits_small {
            true => ", as Options::with_pool_bytes does",
            false => "",
        };
        let why = match self.design_of_new().keeps_tables_in_logs() {
            true => format!(
                "up to {} tables need at least {least}: raise it, or lower buffer.tables.count_max",
                self.buffer.tables.count_max
            ),
            false => format!(
                "memtables of {memtable} bytes and extents of {extent} bytes need at least \
                 {least}: raise it, or lower --memtable-size (front.memtable_bytes) and \
                 bottom.extent_bytes{how}"
            ),
        };
        check(
            pool >= least,
            format!("--pool-size (pool.size_bytes) is {pool}, but {why}"),
        );
        if let Some(problem) = self.memory_problem() {
            check(false, problem);
        }
        // OPTIONS stores it as a line of text.
        let path = self.pool.path.as_ref();
        check(
            path.and_then(|path| path.to_str().or(Some("\n")))
                .is_none_or(|text| !text.contains(['\n', '\r'])),
            "--pool (pool.path) has a line break or is not UTF-8, so OPTIONS cannot record it: \
             rename the pool"
                .to_owned(),
        );
        let merge_threads = self.background.merge_threads;
        check(
            merge_threads <= MERGES_MAX,
            format!(
                "background.merge_threads is {merge_threads}, but must be at most {MERGES_MAX}"
            ),
        );
        let read_workers = self.background.read_workers;
        check(
            read_workers <= READ_WORKERS_MAX,
            format!(
                "background.read_workers is {read_workers}, but must be at most {READ_WORKERS_MAX}"
            ),
        );
        if let Workers::Threads(n) = self.background.workers {
            check(
                (1..=256).contains(&n),
                format!("background threads are {n}, but must be 1 to 256"),
            );
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(problems.join("; ")))
    }

    /// Sets `pool.size_bytes`, and lowers the sizes of memtables and of extents to at most 1/32 of
    /// it: the default sizes are larger than a small pool.
    #[must_use]
    pub fn with_pool_bytes(mut self, bytes: u64) -> Options {
        let most = piece_of_pool(bytes).max(MEMTABLE_BYTES_SMALL);
        self.pool.size_bytes = bytes;
        self.front.memtable_bytes = self.front.memtable_bytes.min(most);
        self.bottom.extent_bytes = self.bottom.extent_bytes.min(most);
        self
    }

    /// Returns the smallest pool that these options can work in: logs and tables of every live
    /// memtable, and space for the repository to move.
    pub(crate) fn pool_bytes_min(&self) -> u64 {
        if self.design_of_new().keeps_tables_in_logs() {
            // Tables follow the size of the pool. If they are few, the reserve needs more.
            let tables = self.buffer.tables.count_max as u64 + 4;
            let least = 6 * (PAGE_BYTES + 64 * 1024);
            return (tables * 2 * PAGE_BYTES + 128 * 1024).max(least);
        }
        let memtables = self.front.sealed_count_max as u64 + 2;
        memtables * 2 * (self.front.memtable_bytes + 64 * 1024)
            + 4 * self.bottom.extent_bytes
            + 512 * 1024
    }

    /// Returns the bytes of the pool's reserve in addition to those of the largest table: two
    /// memtables with their logs, and two extents for the bottom to move into.
    pub(crate) fn reserve_beside_table(&self) -> u64 {
        4 * (self.front.memtable_bytes + 64 * 1024) + 2 * self.bottom.extent_bytes
    }

    /// Returns the bytes of a memtable in the pool.
    pub(crate) fn pm_memtable_bytes(&self) -> u64 {
        let (usual, stated) = PM_MEMTABLE_PARTS_MIN;
        let most = self.pool.size_bytes / stated;
        let most = match self.pool_is_memory() {
            // The logs of a table are needed until all of it is drained.
            true => most.min(self.table_bytes_max()),
            false => most,
        };
        let usual = (PM_MEMTABLE_FACTOR.saturating_mul(self.front.memtable_bytes))
            .min(self.pool.size_bytes / usual)
            // It becomes a table, whose filter has memory up to this size.
            .min(self.table_bytes_max());
        self.front.pm_memtable_bytes.unwrap_or(usual).min(most)
    }

    /// Returns the bytes up to which merges may always make a table.
    pub(crate) fn table_bytes_max(&self) -> u64 {
        let mut eighth = self.pool.size_bytes / 8;
        if self.pool.path.is_none() {
            // The logs of a table are needed until all of it is drained.
            eighth = eighth.min(self.front.log_bytes_max / 4);
        }
        self.buffer
            .table_bytes_max
            .unwrap_or(eighth)
            .max(self.front.memtable_bytes)
    }
}
