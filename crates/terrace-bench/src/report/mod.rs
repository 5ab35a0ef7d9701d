//! This file is the results of a run as plain data, for programs; `print.rs` has the lines for people.

mod conditions;
mod files;
mod print;
mod workloads;
mod written;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use terrace::Metrics;

use crate::latency::Latency;
use crate::machine::Memory;
use crate::measure::{KindReport, RecoveryReport, SpaceReport, UsageReport};

pub use conditions::{Conditions, StoreFacts};

pub use files::{BlockReads, CacheReport, FileLevelReport, FileSettings, cache_line, file_levels};
pub use print::HEADING;
pub use written::{CauseReport, PurposeReport, Written};

/// Everything that a run found out.
#[derive(Debug, Clone)]
pub struct Report {
    /// Under which conditions.
    pub conditions: Conditions,
    /// One entry for each step, in order.
    pub steps: Vec<StepReport>,
    /// What the last database holds at the end, and where.
    pub space: Space,
    /// The memory of this process.
    pub memory: Memory,
}

/// What a step of YCSB or a replay does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadReport {
    /// The step's name.
    pub step: Cow<'static, str>,
    /// Its records, operations and distributions, in words.
    pub what: String,
    /// Properties that were given and have no meaning here.
    pub ignored: Vec<String>,
}

/// What one step did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// The step's name. One that begins with two blanks is a part of the step before it: "(writer)" is
    /// the thread that writes beside readers, "(read)" and its like are operations of one kind.
    pub name: String,
    /// Why it was not done, if it was not.
    pub skipped: Option<String>,
    /// Which one of the run's steps it is, from 0.
    pub index: usize,
    /// Operations, entries of batches counted one by one.
    pub ops: u64,
    /// Seconds from the first operation's start to the last one's end.
    pub elapsed_s: f64,
    /// Operations a second, all threads together.
    pub ops_per_s: f64,
    /// Megabytes (10^6) of keys and values a second.
    pub mb_per_s: f64,
    /// Reads that found a value; `None` for writes.
    pub found: Option<u64>,
    /// Values compared byte for byte with what was written.
    pub checked: u64,
    /// Percentiles and maximum of the latency; `None` for steps that only wait.
    pub latency: Option<LatencyReport>,
    /// Latencies and their distribution by kind of operation.
    pub kinds: Vec<KindReport>,
    /// Stalls of writers by reason, those that happened during the step.
    pub stalls: Vec<StallReport>,
    /// What the medium alone allows.
    pub limit_ops_per_s: Option<f64>,
    /// The fraction of it that was reached.
    pub limit_fraction: Option<f64>,
    /// The rate that was asked for; `None` in a closed loop.
    #[serde(default)]
    pub target: Option<TargetReport>,
    /// What was written to the pool and to files during the step, by whomever.
    pub written: Written,
    /// Blocks of table files that point reads asked for during the step.
    pub blocks: BlockReads,
    /// Seconds that opening the fresh database took before the step, pre-faulting included.
    pub open_s: Option<f64>,
    /// Processor time and memory.
    pub usage: UsageReport,
    /// What the database takes at the end of the step, against what lives in it.
    pub space: SpaceReport,
    /// How a killed store came back; of killreopen alone.
    pub recovery: Option<RecoveryReport>,
    /// One entry for each `--report-interval`.
    pub intervals: Vec<IntervalReport>,
    /// The distribution as text, where it was asked for.
    #[serde(skip)]
    pub chart: Option<String>,
}

/// How an open loop kept up with the rate that was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetReport {
    /// Operations a second that were asked for, all threads together.
    pub ops_per_s: f64,
    /// How long after its turn the last operation ended, in seconds, of the thread that was latest.
    pub behind_s: f64,
    /// Whether that is little: then the throughput is what was asked for, and latencies are those at
    /// that rate. Otherwise they grew until the end, and say how long the run was.
    pub reached: bool,
}

impl TargetReport {
    /// A rate counts as reached if the end was late by no more than this part of the time, or this long.
    const LATE_MAX: (f64, f64) = (0.01, 0.01);

    /// How well `ops_per_s` was kept for `elapsed_s`, at whose end a thread was `behind_s` late.
    pub(crate) fn of(ops_per_s: f64, behind_s: f64, elapsed_s: f64) -> TargetReport {
        let (part, seconds) = TargetReport::LATE_MAX;
        TargetReport {
            ops_per_s,
            behind_s,
            reached: behind_s <= (part * elapsed_s).max(seconds),
        }
    }
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// 90 percent are at most this.
    pub p90_us: f64,
    /// 99 percent are at most this.
    pub p99_us: f64,
    /// 99.9 percent are at most this.
    pub p99_9_us: f64,
    /// 99.99 percent are at most this.
    pub p99_99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl LatencyReport {
    /// The figures of `latency`; `None` where it is empty.
    pub fn of(latency: &Latency) -> Option<LatencyReport> {
        (latency.count() > 0).then(|| LatencyReport {
            mean_us: latency.mean_us(),
            p50_us: latency.percentile_us(50.0),
            p90_us: latency.percentile_us(90.0),
            p99_us: latency.percentile_us(99.0),
            p99_9_us: latency.percentile_us(99.9),
            p99_99_us: latency.percentile_us(99.99),
            max_us: latency.max_us(),
        })
    }
}

/// Stalls of one reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StallReport {
    /// Why.
    pub reason: Cow<'static, str>,
    /// How often.
    pub count: u64,
    /// For how long altogether, in seconds.
    pub seconds: f64,
}

/// One interval of a workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IntervalReport {
    /// When it ended, in seconds since the workload began.
    pub end_s: f64,
    /// How long it was: the last one ends with the workload.
    pub seconds: f64,
    /// Operations that ended in it.
    pub ops: u64,
    /// 99 percent took at most this many microseconds.
    pub p99_us: f64,
    /// The longest, in microseconds.
    pub max_us: f64,
    /// Stalls of writers in it, by reason.
    pub stalls: Vec<StallReport>,
}

/// Bytes of a database by tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Space {
    /// Memtables, active and sealed.
    pub memtable_bytes: u64,
    /// Logs that recovery would replay.
    pub log_bytes: u64,
    /// Extents of the buffer's tables, by level: level, tables, bytes.
    pub levels: Vec<(u32, u64, u64)>,
    /// Extents of the repository.
    pub bottom_bytes: u64,
    /// What of them is superseded or deleted.
    pub bottom_dead_bytes: u64,
    /// Extents of the pool, everything included.
    pub pool_allocated_bytes: u64,
    /// The pool's file.
    pub pool_committed_bytes: u64,
    /// The pool's cap.
    pub pool_cap_bytes: u64,
    /// Extents of the repository for each byte that lives in it; `None` where there is none.
    pub space_amp_repository: Option<f64>,
    /// The levels of table files.
    pub files: Vec<FileLevelReport>,
    /// All table files for each byte on the deepest level; `None` where there is none.
    pub space_amp_files: Option<f64>,
    /// The cache of their blocks.
    pub cache: CacheReport,
    /// What the files in the database's folder take of their file system, the pool's included.
    pub folder_bytes: u64,
}

impl Space {
    /// The tiers as `metrics` has them.
    pub fn of(metrics: &Metrics) -> Space {
        Space {
            memtable_bytes: metrics.memtable_bytes,
            log_bytes: metrics.log_bytes,
            levels: metrics
                .levels
                .iter()
                .map(|l| (l.level, l.table_count, l.bytes))
                .collect(),
            bottom_bytes: metrics.bottom.bytes,
            bottom_dead_bytes: metrics.bottom.dead_bytes,
            pool_allocated_bytes: metrics.pool.allocated_bytes,
            pool_committed_bytes: metrics.pool.committed_bytes,
            pool_cap_bytes: metrics.pool.cap_bytes,
            space_amp_repository: metrics.space_amp_pm(),
            files: metrics.files.iter().map(FileLevelReport::of).collect(),
            space_amp_files: metrics.space_amp_files(),
            cache: CacheReport::of(&metrics.cache),
            folder_bytes: 0,
        }
    }
}
