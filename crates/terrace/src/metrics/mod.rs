//! This file is what the store counts, and the one snapshot tree that shows it.
//!
//! Counters are always on: relaxed adds, on paths that already touch memory of their own. Bytes to
//! the pool are counted where they are written, in `terrace-media`, by purpose.

mod counters;
mod report;
pub use report::human_bytes;

use std::time::Duration;

use crate::named::named_enum;

pub use counters::Metrics;
pub(crate) use counters::{Counters, OpCounter};
pub use terrace_media::{Counts, Purpose};

named_enum! {
    /// Why a writer was slowed or stopped. [`Metrics::stalls`] has them in the order of `ALL`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum StallReason {
        /// Every memtable is sealed and waits for its flush.
        MemtablesSealed => "memtables-sealed",
        /// The pool is nearly full; writers are slowed to the pace at which space comes back.
        PoolNearlyFull => "pool-nearly-full",
        /// The pool is full; background work is about to free some of it, or readers hold some back.
        PoolFull => "pool-full",
        /// The levels of table files are behind; writers are slowed to the pace of compaction.
        CompactionBehind => "compaction-behind",
        /// Log files take nearly all that they may; writers are slowed to the pace at which what is in them
        /// reaches table files, or wait for it.
        LogCap => "log-cap",
    }
}

named_enum! {
    /// The kinds of background jobs, in the order in which they are preferred.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum JobKind {
        Flush => "flush",
        Merge => "merge",
        Drain => "drain",
        Reclaim => "reclaim",
        Compact => "compact",
    }
}

/// Stalls of one reason since the database was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallMetrics {
    /// Why.
    pub reason: StallReason,
    /// How many times a writer stopped or was slowed.
    pub count: u64,
    /// For how long altogether.
    pub time: Duration,
    /// The longest single wait.
    pub longest: Duration,
}

/// One level of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LevelMetrics {
    /// The level's number; 0 receives flushes.
    pub level: u32,
    /// Tables on it, those being merged included.
    pub table_count: u64,
    /// Merges in flight.
    pub merging_count: u64,
    /// Nodes, superseded ones included.
    pub entry_count: u64,
    /// Bytes of extents that its tables own.
    pub bytes: u64,
}

/// One kind of background job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobMetrics {
    /// "flush", "merge", "drain", "reclaim" or "compact".
    pub kind: &'static str,
    /// Jobs ended.
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
    /// Bytes of superseded and deleted nodes, not yet given back.
    pub dead_bytes: u64,
}

/// One level of table files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileLevelMetrics {
    /// The level's number; 0 receives drains.
    pub level: u32,
    /// Sets of disjoint tables; one but for level 0.
    pub run_count: u64,
    /// Tables.
    pub file_count: u64,
    /// Entries in them, superseded ones included.
    pub entry_count: u64,
    /// Tombstones among those.
    pub tombstone_count: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// The size from which the level is compacted; `None` for level 0.
    pub target_bytes: Option<u64>,
    /// Bytes of table files written for the level since the database was opened.
    pub written_bytes: u64,
}

/// The cache of blocks of table files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheMetrics {
    /// The budget.
    pub capacity_bytes: u64,
    /// Bytes of it in use: cached blocks, and what open tables hold.
    pub used_bytes: u64,
    /// Open table files.
    pub open_file_count: u64,
    /// Blocks that point reads found in the cache.
    pub hit_count: u64,
    /// Blocks that point reads took from files.
    pub miss_count: u64,
}

/// What was written since the database was created, as far as it is known: a crash loses the count
/// of what came after the last flush, merge, drain, reclaim or compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LifeMetrics {
    /// Key and value bytes of users.
    pub user_written_bytes: u64,
    /// Bytes to the pool.
    pub pool_bytes: u64,
    /// Bytes to log files.
    pub log_file_bytes: u64,
    /// Bytes to table files.
    pub table_file_bytes: u64,
}

impl LifeMetrics {
    fn times(&self, bytes: u64) -> Option<f64> {
        (self.user_written_bytes > 0).then(|| bytes as f64 / self.user_written_bytes as f64)
    }

    /// Bytes to the pool for each byte that users wrote; `None` before the first.
    pub fn write_amp_pm(&self) -> Option<f64> {
        self.times(self.pool_bytes)
    }

    /// Bytes to files, logs and tables, for each byte that users wrote; `None` before the first.
    pub fn write_amp_files(&self) -> Option<f64> {
        self.times(self.log_file_bytes + self.table_file_bytes)
    }
}

/// The limit on the rate at which compactions and drains write table files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PaceMetrics {
    /// Bytes a second; `None`: there is no limit.
    pub rate_max: Option<u64>,
    /// How many times a job was made to wait.
    pub wait_count: u64,
    /// For how long altogether.
    pub wait_time: Duration,
}

/// Background jobs that a full disk has refused, and that try again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RetryMetrics {
    /// How often jobs were refused since the database was opened.
    pub count: u64,
    /// Jobs that wait at this moment for the time of their next try.
    pub waiting_count: u64,
    /// The last refusal, as a sentence; `None` before the first.
    pub last: Option<String>,
}

/// What one part of the store takes of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// The part, as in [`MemoryPart`](crate::MemoryPart).
    pub name: &'static str,
    /// Bytes in use. Of iterators, jobs and calls only where there is a budget: they are not counted
    /// otherwise.
    pub used_bytes: u64,
    /// The most that it may take; `None` without a budget.
    pub limit_bytes: Option<u64>,
}

/// Memory in use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryMetrics {
    /// [`Options::memory_bytes`](crate::Options::memory_bytes).
    pub budget_bytes: Option<u64>,
    /// Who uses it.
    pub parts: Vec<MemoryUse>,
}

impl MemoryMetrics {
    /// Bytes in use by all parts.
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
    /// Size of the file now.
    pub committed_bytes: u64,
    /// Bytes of live extents.
    pub allocated_bytes: u64,
}

impl CacheMetrics {
    /// The part of all blocks asked for by point reads that the cache had; `None` before the first.
    pub fn hit_ratio(&self) -> Option<f64> {
        let asked = self.hit_count + self.miss_count;
        (asked > 0).then(|| self.hit_count as f64 / asked as f64)
    }

    /// Whether there is a cache, which only designs with table files have.
    pub fn is_used(&self) -> bool {
        self.capacity_bytes > 0 || self.used_bytes > 0 || self.miss_count > 0
    }
}

impl Metrics {
    /// Bytes of the repository's extents for each byte of a node there that is neither superseded
    /// nor deleted; `None` where there is none.
    pub fn space_amp_pm(&self) -> Option<f64> {
        let live = self
            .bottom
            .used_bytes
            .saturating_sub(self.bottom.dead_bytes);
        (live > 0).then(|| self.bottom.bytes as f64 / live as f64)
    }

    /// Bytes of all table files for each byte of those on the deepest level, which has most keys and
    /// each of them once: an estimate, as all above it may be superseding or new. `None` where there
    /// is no such level yet.
    pub fn space_amp_files(&self) -> Option<f64> {
        let deepest = self.files.last().filter(|level| level.run_count == 1)?;
        let all: u64 = self.files.iter().map(|level| level.bytes).sum();
        (deepest.bytes > 0).then(|| all as f64 / deepest.bytes as f64)
    }

    /// Bytes written to files, logs and tables, for each byte that users wrote; 0 before the first
    /// write.
    pub fn write_amp_files(&self) -> f64 {
        if self.user_written_bytes == 0 {
            return 0.0;
        }
        (self.log_file_bytes + self.table_file_bytes) as f64 / self.user_written_bytes as f64
    }

    /// Bytes written to the pool for each byte that users wrote; 0 before the first write.
    pub fn write_amp_pm(&self) -> f64 {
        if self.user_written_bytes == 0 {
            return 0.0;
        }
        self.pm.total().bytes as f64 / self.user_written_bytes as f64
    }
}
