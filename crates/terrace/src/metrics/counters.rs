//! The counters behind the metrics: sharded if many threads add, plain elsewhere.
//!
//! A new counter is a line of the table `counters!` below, and the place that adds to it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use terrace_media::Counts;

use super::{
    BottomMetrics, CacheMetrics, FileLevelMetrics, JobCounter, JobMetrics, LevelMetrics,
    LifeMetrics, MemoryMetrics, PoolMetrics, RateLimiterMetrics, RetryMetrics, StallMetrics,
    StallReason, ValueFileMetrics,
};

/// Declares `Metrics` and the counters behind it. Each line of `sums` is a counter and the field of
/// `Metrics` with its sum, and, for a counter that reports list separately, its name there.
macro_rules! counters {
    (
        $(#[$of_struct:meta])*
        pub struct Metrics {
            $($(#[$of_field:meta])* pub $field:ident: $Type:ty,)*
        }
        sums {
            $($(#[$of_sum:meta])* $Counter:ident => $sum:ident $(, listed as $name:literal)?;)*
        }
        sums of parts {
            $($PartCounter:ident => $part:ident.$part_sum:ident;)*
        }
    ) => {
        /// A number that many threads add to.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum OpCounter {
            $($Counter,)*
            $($PartCounter,)*
        }

        const OP_COUNTERS: usize = [$(OpCounter::$Counter,)* $(OpCounter::$PartCounter,)*].len();

        $(#[$of_struct])*
        pub struct Metrics {
            $($(#[$of_sum])* pub $sum: u64,)*
            $($(#[$of_field])* pub $field: $Type,)*
        }

        impl Metrics {
            /// Returns the counters that reports list separately, with their names there.
            pub fn listed(&self) -> Vec<(&'static str, u64)> {
                vec![$($(($name, self.$sum),)?)*]
            }
        }

        impl Counters {
            /// Returns the metrics counted here; the rest is empty.
            pub(crate) fn metrics(&self) -> Metrics {
                let mut metrics = Metrics {
                    $($sum: self.sum(OpCounter::$Counter),)*
                    stalls: self.stalls(),
                    jobs: self.jobs(),
                    ..Metrics::default()
                };
                $(metrics.$part.$part_sum = self.sum(OpCounter::$PartCounter);)*
                metrics
            }
        }
    };
}

counters! {
    /// All metrics of the store, at one moment.
    #[derive(Debug, Clone, Default)]
    #[non_exhaustive]
    pub struct Metrics {
        /// Bytes of memtables, active and sealed.
        pub memtable_bytes: u64,
        /// Those of them in the pool, which are their own logs.
        pub pm_memtable_bytes: u64,
        /// Sealed memtables that wait for their flush.
        pub sealed_count: u64,
        /// Bytes of logs that recovery would replay.
        pub log_bytes: u64,
        /// The buffer, by level; only levels that contain tables.
        pub levels: Vec<LevelMetrics>,
        /// The repository, if the design has one.
        pub bottom: BottomMetrics,
        /// Levels of table files, if the design has them; only those that contain files.
        pub files: Vec<FileLevelMetrics>,
        /// Value files, if values are stored apart from their keys.
        pub values: ValueFileMetrics,
        /// Bytes of the reserve file: space for the steps that free space on a full disk.
        pub reserve_bytes: u64,
        /// The cache of their blocks.
        pub cache: CacheMetrics,
        /// The pool.
        pub pool: PoolMetrics,
        /// Memory in use, by part.
        pub memory: MemoryMetrics,
        /// Lines, flushes, fences and bytes written to the pool, by purpose.
        pub pm: Counts,
        /// Stalls by reason.
        pub stalls: Vec<StallMetrics>,
        /// Background jobs by kind.
        pub jobs: Vec<JobMetrics>,
        /// The bytes written in the database's life, up to the last edit of its manifest before it
        /// was opened.
        pub life: LifeMetrics,
        /// The limit on the rate of background writes to table files, and its effect.
        pub rate_limiter: RateLimiterMetrics,
        /// Background jobs that a full disk has refused.
        pub retries: RetryMetrics,
        /// Snapshots and iterators that pin old versions.
        pub snapshot_count: u64,
        /// Pieces of deleted ranges whose keys may still take space.
        pub range_delete_count: u64,
    }

    sums {
        /// Entries written by users, including tombstones.
        Puts => put_count;
        /// Tombstones among them.
        Deletes => delete_count;
        /// Key and value bytes of those entries.
        UserBytes => user_written_bytes;
        /// Point reads.
        Gets => get_count;
        /// Point reads that found a value.
        GetHits => get_hit_count;
        /// Sources searched by point reads, except those ruled out by filters.
        GetSources => get_source_count;
        /// Tables and memtables that a filter ruled out.
        FilterSaved => filter_saved_count;
        /// Point reads that read workers took part in.
        ParallelReads => parallel_read_count;
        /// Searches restarted because a merge moved a node under them.
        RelinkRetries => relink_retry_count;
        /// Bytes written to log files (medium `Dram`).
        LogFileBytes => log_file_bytes;
        /// Bytes written to table files and value files.
        TableFileBytes => table_file_bytes;
        /// Entries that scans looked at: pairs, tombstones, and steps past deleted ranges.
        ScanEntries => scan_entry_count;
        /// Ranges compacted at the request of users.
        RangesCompacted => range_compaction_count, listed as "range_compactions";
    }

    sums of parts {
        CacheHits => cache.hit_count;
        CacheMisses => cache.miss_count;
    }
}

const SHARDS: usize = 16;

/// The counters of one thread, aligned to separate cache lines to avoid false sharing.
#[repr(align(128))]
#[derive(Default)]
struct Shard([AtomicU64; OP_COUNTERS]);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

/// Returns the shard of the calling thread.
#[inline]
fn shard() -> usize {
    SHARD.with(|cell| {
        let mut index = cell.get();
        if index == usize::MAX {
            index = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
            cell.set(index);
        }
        index
    })
}

#[derive(Default)]
struct Stall {
    count: AtomicU64,
    nanos: AtomicU64,
    longest_nanos: AtomicU64,
}

#[derive(Default)]
struct Jobs {
    count: AtomicU64,
    entries: AtomicU64,
    nanos: AtomicU64,
}

/// All counters of one database.
#[derive(Default)]
pub(crate) struct Counters {
    shards: [Shard; SHARDS],
    stalls: [Stall; StallReason::ALL.len()],
    jobs: [Jobs; JobCounter::ALL.len()],
}

impl Counters {
    /// Adds to a counter of the calling thread.
    #[inline]
    pub(crate) fn add(&self, counter: OpCounter, amount: u64) {
        self.shards[shard()].0[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Returns the sum over all threads.
    pub(crate) fn sum(&self, counter: OpCounter) -> u64 {
        self.shards
            .iter()
            .map(|s| s.0[counter as usize].load(Ordering::Relaxed))
            .sum()
    }

    /// Records one wait of a writer.
    pub(crate) fn stall(&self, reason: StallReason, waited: Duration) {
        let stall = &self.stalls[reason as usize];
        let nanos = waited.as_nanos() as u64;
        stall.count.fetch_add(1, Ordering::Relaxed);
        stall.nanos.fetch_add(nanos, Ordering::Relaxed);
        stall.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    /// Returns all stalls so far.
    fn stalls(&self) -> Vec<StallMetrics> {
        StallReason::ALL
            .iter()
            .map(|&reason| {
                let stall = &self.stalls[reason as usize];
                StallMetrics {
                    reason,
                    count: stall.count.load(Ordering::Relaxed),
                    time: Duration::from_nanos(stall.nanos.load(Ordering::Relaxed)),
                    longest: Duration::from_nanos(stall.longest_nanos.load(Ordering::Relaxed)),
                }
            })
            .collect()
    }

    /// Records time spent in one step of a job.
    pub(crate) fn job_time(&self, kind: JobCounter, spent: Duration) {
        self.jobs[kind as usize]
            .nanos
            .fetch_add(spent.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Records the end of a job.
    pub(crate) fn job_done(&self, kind: JobCounter, entries: u64) {
        let jobs = &self.jobs[kind as usize];
        jobs.count.fetch_add(1, Ordering::Relaxed);
        jobs.entries.fetch_add(entries, Ordering::Relaxed);
    }

    /// Returns all jobs so far.
    fn jobs(&self) -> Vec<JobMetrics> {
        JobCounter::ALL
            .iter()
            .zip(&self.jobs)
            .map(|(kind, job)| JobMetrics {
                kind: kind.name(),
                count: job.count.load(Ordering::Relaxed),
                entry_count: job.entries.load(Ordering::Relaxed),
                time: Duration::from_nanos(job.nanos.load(Ordering::Relaxed)),
            })
            .collect()
    }
}
