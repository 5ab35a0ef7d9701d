//! This file is the counters behind the metrics: sharded where many threads add, plain elsewhere.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::{JobMetrics, StallMetrics, StallReason};

/// What is counted on every operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum OpCounter {
    Puts,
    Deletes,
    UserBytes,
    Gets,
    GetHits,
    GetSources,
    FilterSaved,
    RelinkRetries,
    LogFileBytes,
    TableFileBytes,
    CacheHits,
    CacheMisses,
    ScanEntries,
    RangesCompacted,
}

const OP_COUNTERS: usize = OpCounter::RangesCompacted as usize + 1;
const SHARDS: usize = 16;

/// One thread's counters, alone on their lines so that threads do not pull them from each other.
#[repr(align(128))]
#[derive(Default)]
struct Shard([AtomicU64; OP_COUNTERS]);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

/// The shard of the calling thread.
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

const JOB_KINDS: [&str; 5] = ["flush", "merge", "drain", "reclaim", "compact"];

/// All counters of one database.
#[derive(Default)]
pub(crate) struct Counters {
    shards: [Shard; SHARDS],
    stalls: [Stall; StallReason::ALL.len()],
    jobs: [Jobs; JOB_KINDS.len()],
}

impl Counters {
    /// Adds to a counter of the calling thread.
    #[inline]
    pub(crate) fn add(&self, counter: OpCounter, amount: u64) {
        self.shards[shard()].0[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// The sum over all threads.
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

    /// All stalls so far.
    pub(crate) fn stalls(&self) -> Vec<StallMetrics> {
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

    /// Records time spent in one step of a job of the `kind`-th kind.
    pub(crate) fn job_time(&self, kind: usize, spent: Duration) {
        self.jobs[kind]
            .nanos
            .fetch_add(spent.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Records the end of a job of the `kind`-th kind.
    pub(crate) fn job_done(&self, kind: usize, entries: u64) {
        self.jobs[kind].count.fetch_add(1, Ordering::Relaxed);
        self.jobs[kind]
            .entries
            .fetch_add(entries, Ordering::Relaxed);
    }

    /// All jobs so far.
    pub(crate) fn jobs(&self) -> Vec<JobMetrics> {
        JOB_KINDS
            .iter()
            .zip(&self.jobs)
            .map(|(kind, job)| JobMetrics {
                kind,
                count: job.count.load(Ordering::Relaxed),
                entry_count: job.entries.load(Ordering::Relaxed),
                time: Duration::from_nanos(job.nanos.load(Ordering::Relaxed)),
            })
            .collect()
    }
}
