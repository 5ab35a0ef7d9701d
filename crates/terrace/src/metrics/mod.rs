//! The metrics of the store, and the one snapshot tree that shows them.
//!
//! Counters are always on: relaxed adds, on paths that already touch thread-local memory. Bytes to
//! the pool are counted in `terrace-media` as they are written, by purpose.

mod counters;
mod report;
pub use report::human_bytes;

use std::time::Duration;

use crate::named::named_enum;

pub use counters::Metrics;
pub(crate) use counters::{Counters, OpCounter};
pub use terrace_media::{Counts, Purpose};

named_enum! {
    /// Why a writer was slowed or stopped. [`Metrics::stalls`] lists them in the order of `ALL`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum StallReason {
        /// Every memtable is sealed and waits for its flush.
        MemtablesSealed => "memtables-sealed",
        /// The pool is nearly full; writers are slowed to the rate at which space is freed.
        PoolNearlyFull => "pool-nearly-full",
        /// The pool is full; background work is about to free some of it, or readers hold some.
        PoolFull => "pool-full",
        /// The levels of table files are behind; writers are slowed to the rate of compaction.
        CompactionBehind => "compaction-behind",
        /// Log files are near their cap; writers are slowed to the rate at which their data reaches
        /// table files, or wait for it.
        LogCap => "log-cap",
        /// Sealed tables of `FlatLsm` wait for their drain; writers are slowed to its rate, or wait
        /// for it.
        TablesUndrained => "tables-undrained",
    }
}

/// The kinds of background jobs, in the order in which they are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum JobKind {
    Flush,
    Merge,
    Drain,
    Reclaim,
    Compact,
}

named_enum! {
    /// The kinds as which jobs are counted. [`Metrics::jobs`] lists them in this order.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum JobCounter {
        Flush => "flush",
        Merge => "merge",
        Drain => "drain",
        Reclaim => "reclaim",
        Compact => "compact",
        Spare => "spare",
        Rewrite => "rewrite",
    }
}

impl From<JobKind> for JobCounter {
    fn from(kind: JobKind) -> JobCounter {
        match kind {
            JobKind::Flush => JobCounter::Flush,
            JobKind::Merge => JobCounter::Merge,
            JobKind::Drain => JobCounter::Drain,
            JobKind::Reclaim => JobCounter::Reclaim,
            JobKind::Compact => JobCounter::Compact,
        }
    }
}

/// Stalls of one reason since the database was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallMetrics {
    /// The reason.
    pub reason: StallReason,
    /// The number of times that a writer stopped or was slowed.
    pub count: u64,
    /// The total time.
    pub time: Duration,
    /// The longest single wait.
    pub longest: Duration,
}

/// One level of the buffer, or one part of MatrixKV's container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LevelMetrics {
    /// "level"; in MatrixKV "receiver", and "compactor" for the rows that leave in columns.
    pub name: &'static str,
    /// The level's number; 0 receives flushes.
    pub level: u32,
    /// Tables or rows on it, including those being merged.
    pub table_count: u64,
    /// Merges in progress.
    pub merging_count: u64,
    /// Nodes, including superseded ones, or entries of rows that have not left in columns.
    pub entry_count: u64,
    /// Bytes of extents that its tables or rows own.
    pub bytes: u64,
}

impl LevelMetrics {
    /// Returns whether it has rows, instead of tables.
    pub fn has_rows(&self) -> bool {
        matches!(self.name, "receiver" | "compactor")
    }

    /// Returns whether its tables are logs.
    pub(crate) fn is_of_logs(&self) -> bool {
        self.name == TABLES
    }

    /// Returns its name in reports, like "buffer level 0", "rows, receiver" or "tables, in logs".
    pub fn title(&self) -> String {
        match (self.has_rows(), self.name) {
            (true, name) => format!("rows, {name}"),
            (false, TABLES) => "tables, in logs".to_owned(),
            (false, _) => format!("buffer level {}", self.level),
        }
    }
}

/// The name of the only level of `FlatLsm`'s buffer.
pub(crate) const TABLES: &str = "tables";

/// The filters of one level of the elastic buffer, asked for random hashes that no key of their
/// tables has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FilterLevel {
    /// The level's number; 0 receives flushes.
    pub level: u32,
    /// Its tables with a filter.
    pub table_count: u64,
    /// Hashes for which a table's filter was asked.
    pub asked_count: u64,
    /// Those of them that a filter did not exclude: a read of such a key searches the table in
    /// vain.
    pub passed_count: u64,
}

impl FilterLevel {
    /// Returns the fraction of absent keys that the filters do not exclude.
    pub fn false_positives(&self) -> f64 {
        self.passed_count as f64 / self.asked_count.max(1) as f64
    }
}

/// One kind of background job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobMetrics {
    /// "flush", "merge", "drain", "reclaim", "compact", "spare" for the preparation of memory for
    /// memtables, or "rewrite" for logs of `FlatLsm` that are written again without garbage.
    pub kind: &'static str,
    /// Completed jobs.
    pub count: u64,
    /// Nodes moved or copied.
    pub entry_count: u64,
    /// Time spent in steps, over all threads.
    pub time: Duration,
}

/// The repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BottomMetrics {
    /// Extents it owns.
    pub extent_count: u64,
    /// Bytes of those extents.
    pub bytes: u64,
    /// Bytes written in them.
    pub used_bytes: u64,
    /// Bytes of superseded and deleted nodes that are not freed yet.
    pub dead_bytes: u64,
}

/// One level of table files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileLevelMetrics {
    /// The level's number; 0 receives drains.
    pub level: u32,
    /// Sets of disjoint tables; one, except on level 0.
    pub run_count: u64,
    /// Tables.
    pub file_count: u64,
    /// Entries in them, including superseded ones.
    pub entry_count: u64,
    /// Tombstones among those.
    pub tombstone_count: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// About how many bytes of other tables its entries supersede. Tables written before the
    /// database was opened count as superseding nothing.
    pub superseded_bytes: u64,
    /// The size from which the level is compacted; `None` for level 0.
    pub target_bytes: Option<u64>,
    /// Bytes of table files written for the level since the database was opened.
    pub written_bytes: u64,
}

/// The value files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ValueFileMetrics {
    /// Files.
    pub file_count: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Bytes of the values in them that tables point to; the others are garbage.
    pub live_bytes: u64,
}

/// The cache of blocks of table files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheMetrics {
    /// The budget.
    pub capacity_bytes: u64,
    /// Bytes of it in use: cached blocks, and the memory of open tables.
    pub used_bytes: u64,
    /// Open table files.
    pub open_file_count: u64,
    /// Blocks that point reads found in the cache.
    pub hit_count: u64,
    /// Blocks that point reads took from files.
    pub miss_count: u64,
}

/// The bytes written since the database was created, if known: a crash loses the count of those
/// after the last flush, merge, drain, reclaim or compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LifeMetrics {
    /// Key and value bytes of users.
    pub user_written_bytes: u64,
    /// Bytes to the pool.
    pub pool_bytes: u64,
    /// Bytes to log files.
    pub log_file_bytes: u64,
    /// Bytes to table files and value files.
    pub table_file_bytes: u64,
}

impl LifeMetrics {
    fn times(&self, bytes: u64) -> Option<f64> {
        (self.user_written_bytes > 0).then(|| bytes as f64 / self.user_written_bytes as f64)
    }

    /// Returns bytes to the pool for each byte that users wrote; `None` before the first.
    pub fn write_amp_pm(&self) -> Option<f64> {
        self.times(self.pool_bytes)
    }

    /// Returns bytes to files, logs and tables, for each byte that users wrote; `None` before the
    /// first.
    pub fn write_amp_files(&self) -> Option<f64> {
        self.times(self.log_file_bytes + self.table_file_bytes)
    }
}

/// The limit on the rate at which compactions and drains write table files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimiterMetrics {
    /// Bytes per second; `None` for no limit.
    pub rate_max: Option<u64>,
    /// The number of times that a job had to wait.
    pub wait_count: u64,
    /// The total time.
    pub wait_time: Duration,
}

/// Background jobs that a full disk has refused, and that try again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RetryMetrics {
    /// The number of refusals since the database was opened.
    pub count: u64,
    /// Jobs that currently wait for their next try.
    pub waiting_count: u64,
    /// The last refusal, as a sentence; `None` before the first.
    pub last: Option<String>,
}

/// The memory of one part of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// The part, as in [`MemoryPart`](crate::MemoryPart).
    pub name: &'static str,
    /// Bytes in use. Those of iterators, jobs and calls are counted only with a budget.
    pub used_bytes: u64,
    /// The maximum; `None` without a budget.
    pub limit_bytes: Option<u64>,
}

/// Memory in use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryMetrics {
    /// [`Options::memory_bytes`](crate::Options::memory_bytes).
    pub budget_bytes: Option<u64>,
    /// The parts that use it.
    pub parts: Vec<MemoryUse>,
}

impl MemoryMetrics {
    /// Returns the bytes in use by all parts.
    pub fn used_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.used_bytes).sum()
    }
}

/// The pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolMetrics {
    /// Medium, instructions and path, as a line for people.
    pub description: String,
    /// Hard cap in bytes.
    pub cap_bytes: u64,
    /// The current size of the file.
    pub committed_bytes: u64,
    /// Bytes of live extents.
    pub allocated_bytes: u64,
}

impl CacheMetrics {
    /// Returns the fraction of the blocks requested by point reads that were in the cache; `None`
    /// before the first.
    pub fn hit_ratio(&self) -> Option<f64> {
        let asked = self.hit_count + self.miss_count;
        (asked > 0).then(|| self.hit_count as f64 / asked as f64)
    }

    /// Returns whether there is a cache, which only designs with table files have.
    pub fn is_used(&self) -> bool {
        self.capacity_bytes > 0 || self.used_bytes > 0 || self.miss_count > 0
    }
}

impl Metrics {
    /// Returns bytes of the repository's extents for each byte of a node there that is neither
    /// superseded nor deleted; `None` if there is no such node.
    pub fn space_amp_pm(&self) -> Option<f64> {
        let live = self
            .bottom
            .used_bytes
            .saturating_sub(self.bottom.dead_bytes);
        (live > 0).then(|| self.bottom.bytes as f64 / live as f64)
    }

    /// Returns bytes of all table files and value files for each byte of live data, an estimate. If
    /// the deepest level has at least half of all bytes of tables, it counts as the live data: it
    /// contains each key once, and everything above it may be superseding or new. Otherwise the
    /// live data is everything except `superseded_bytes`. The same share of the values that tables
    /// point to counts as live. `None` if there is no level below level 0 yet.
    pub fn space_amp_files(&self) -> Option<f64> {
        let filled = |level: &&FileLevelMetrics| level.bytes > 0;
        let deepest = self.files.iter().rev().find(filled)?;
        let all: u64 = self.files.iter().map(|level| level.bytes).sum();
        let superseded: u64 = self.files.iter().map(|level| level.superseded_bytes).sum();
        let live = match 2 * deepest.bytes >= all {
            true => deepest.bytes,
            false => all.saturating_sub(superseded),
        };
        let values = live as f64 / all as f64 * self.values.live_bytes as f64;
        let total = (all + self.values.bytes) as f64;
        (deepest.run_count == 1 && live > 0).then(|| total / (live as f64 + values))
    }

    /// Returns bytes written to files, logs and tables, for each byte that users wrote; 0 before
    /// the first write.
    pub fn write_amp_files(&self) -> f64 {
        if self.user_written_bytes == 0 {
            return 0.0;
        }
        (self.log_file_bytes + self.table_file_bytes) as f64 / self.user_written_bytes as f64
    }

    /// Returns bytes written to the pool for each byte that users wrote; 0 before the first write.
    pub fn write_amp_pm(&self) -> f64 {
        if self.user_written_bytes == 0 {
            return 0.0;
        }
        self.pm.total().bytes as f64 / self.user_written_bytes as f64
    }
}
