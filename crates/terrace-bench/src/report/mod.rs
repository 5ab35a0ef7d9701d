//! This file is the results of a run as plain data, for programs; `print.rs` has the lines for people.

mod files;
mod print;
mod workloads;
mod written;

use serde::Serialize;
use terrace::Metrics;

use crate::latency::Latency;
use crate::machine::{Machine, Memory};
use crate::store::About;

pub use files::{BlockReads, CacheReport, FileLevelReport, FileSettings, cache_line, file_levels};
pub use print::HEADING;
pub use written::{CauseReport, PurposeReport, Written};

/// Everything that a run found out.
#[derive(Debug, Clone, Serialize)]
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

/// What a run was measured on and with.
#[derive(Debug, Clone, Serialize)]
pub struct Conditions {
    /// The machine.
    pub machine: Machine,
    /// The store: its name on the command line.
    pub store: &'static str,
    /// What it is and really does.
    pub about: About,
    /// The design of the store; `None` for a peer.
    pub design: Option<String>,
    /// Whether the instructions of persistent memory were forced onto another medium.
    pub forced_dax: bool,
    /// The emulated device, if any.
    pub emulation: Option<String>,
    /// The database's folder.
    pub db: String,
    /// The mount that holds the pool, or the files where there is none: type and options.
    pub file_system: String,
    /// How this program was built.
    pub build: &'static str,
    /// The durability that was asked for; what the store does is in `about`.
    pub durability: String,
    /// Keys, and writes of each thread.
    pub num: u64,
    /// Operations of each reading thread.
    pub reads: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a value, of mixed sizes the longest.
    pub value_bytes: usize,
    /// Bytes of the shortest value.
    pub value_bytes_min: usize,
    /// What the steps of YCSB and replays do.
    pub workloads: Vec<WorkloadReport>,
    /// Operations a second that arrive at all client threads together; `None` in a closed loop.
    pub rate: Option<f64>,
    /// How they follow each other: "constant" or "poisson"; `None` in a closed loop.
    pub arrivals: Option<&'static str>,
    /// Writes a second of the thread that writes beside readers; `None` where it writes all it can.
    pub writer_rate: Option<f64>,
    /// Client threads.
    pub threads: usize,
    /// Entries of a write.
    pub batch_count: usize,
    /// The seed of keys and values.
    pub seed: u64,
    /// The size of a memtable or write buffer in bytes.
    pub memtable_bytes: u64,
    /// The pool's cap in bytes; `None` where there is none.
    pub pool_bytes: Option<u64>,
    /// How table files are made, where the design has them.
    pub table_files: Option<FileSettings>,
    /// When the pool's pages are faulted in; `None` where there is none.
    pub prefault: Option<&'static str>,
    /// Seconds that opening the first database took: its pool's creation and pre-faulting. No
    /// figure of any workload contains it.
    pub open_s: f64,
    /// The pool of the limit line; `None` where no limit was measured.
    pub limit_pool: Option<String>,
    /// Seconds that its creation and pre-faulting took.
    pub limit_prepared_s: f64,
}

/// What a step of YCSB or a replay does.
#[derive(Debug, Clone, Serialize)]
pub struct WorkloadReport {
    /// The step's name.
    pub step: &'static str,
    /// Its records, operations and distributions, in words.
    pub what: String,
    /// Properties that were given and have no meaning here.
    pub ignored: Vec<String>,
}

/// What one step did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct StepReport {
    /// The step's name. One that begins with two blanks is a part of the step before it: "(writer)" is
    /// the thread that writes beside readers, "(read)" and its like are operations of one kind.
    pub name: String,
    /// Why it was not done, if it was not.
    pub skipped: Option<String>,
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
    /// Stalls of writers by reason, those that happened during the step.
    pub stalls: Vec<StallReport>,
    /// What the medium alone allows.
    pub limit_ops_per_s: Option<f64>,
    /// The fraction of it that was reached.
    pub limit_fraction: Option<f64>,
    /// What was written to the pool and to files during the step, by whomever.
    pub written: Written,
    /// Blocks of table files that point reads asked for during the step.
    pub blocks: BlockReads,
    /// Seconds that opening the fresh database took before the step, pre-faulting included.
    pub open_s: Option<f64>,
    /// One entry for each `--report-interval`.
    pub intervals: Vec<IntervalReport>,
    /// The distribution as text, where it was asked for.
    #[serde(skip)]
    pub chart: Option<String>,
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct LatencyReport {
    /// The median.
    pub p50_us: f64,
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
            p50_us: latency.percentile_us(50.0),
            p99_us: latency.percentile_us(99.0),
            p99_9_us: latency.percentile_us(99.9),
            p99_99_us: latency.percentile_us(99.99),
            max_us: latency.max_us(),
        })
    }
}

/// Stalls of one reason.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct StallReport {
    /// Why.
    pub reason: &'static str,
    /// How often.
    pub count: u64,
    /// For how long altogether, in seconds.
    pub seconds: f64,
}

/// One interval of a workload.
#[derive(Debug, Clone, Copy, Serialize)]
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
}

/// Bytes of a database by tier.
#[derive(Debug, Clone, Default, Serialize)]
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
