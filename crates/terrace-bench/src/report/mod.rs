//! The results of a run as plain data, for programs; `print.rs` formats them for people.

mod conditions;
mod print;
mod workloads;
mod written;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::files::BlockReads;
use crate::latency::LatencyReport;
use crate::machine::Memory;
use crate::measure::{KindReport, RecoveryReport, SpaceReport, UsageReport};
use crate::space::Space;

pub use conditions::{Conditions, StoreFacts};
pub use print::HEADING;
pub use written::{CauseReport, PurposeReport, Written};

/// The results of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The conditions.
    pub conditions: Conditions,
    /// One entry for each step, in order.
    pub steps: Vec<StepReport>,
    /// The bytes of the last database at the end, by tier.
    pub space: Space,
    /// The memory of this process.
    pub memory: Memory,
}

/// A step of YCSB or a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadReport {
    /// The step's name.
    pub step: Cow<'static, str>,
    /// Its records, operations and distributions, in words.
    pub what: String,
    /// Properties that were given and have no effect here.
    pub ignored: Vec<String>,
}

/// The results of one step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// The step's name. A name that begins with two blanks is a part of the step before it:
    /// "(writer)" is the thread that writes while others read, "(read)" and the like are operations
    /// of one kind.
    pub name: String,
    /// The reason that it was skipped, if it was.
    pub skipped: Option<String>,
    /// The index among the run's steps.
    pub index: usize,
    /// Operations; each entry of a batch counts.
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
    /// Stalls of writers during the step, by reason.
    pub stalls: Vec<StallReport>,
    /// Flushes of memtables during the step; `None` if there were none, or the store does not count
    /// them.
    #[serde(default)]
    pub flushes: Option<FlushReport>,
    /// The limit of the medium alone.
    pub limit_ops_per_s: Option<f64>,
    /// The fraction of the limit that was reached.
    pub limit_fraction: Option<f64>,
    /// The target rate; `None` in a closed loop.
    #[serde(default)]
    pub target: Option<TargetReport>,
    /// Bytes written to the pool and to files during the step, by all threads.
    pub written: Written,
    /// Blocks of table files requested by point reads during the step.
    pub blocks: BlockReads,
    /// Seconds that opening the fresh database took before the step, pre-faulting included.
    pub open_s: Option<f64>,
    /// Processor time and memory.
    pub usage: UsageReport,
    /// The space that the database takes at the end of the step, against its live data.
    pub space: SpaceReport,
    /// The recovery of a killed store; for killreopen only.
    pub recovery: Option<RecoveryReport>,
    /// One entry for each `--report-interval`.
    pub intervals: Vec<IntervalReport>,
    /// The distribution as text, if requested.
    #[serde(skip)]
    pub chart: Option<String>,
}

/// The target rate of an open loop and how well it was kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetReport {
    /// The target in operations a second, all threads together.
    pub ops_per_s: f64,
    /// Seconds from the scheduled start of the last operation to its end, on the thread that was
    /// latest.
    pub behind_s: f64,
    /// Whether that delay is small: then the throughput is the target, and latencies are those at
    /// that rate. Otherwise latencies grew until the end, and depend on the length of the run.
    pub reached: bool,
}

impl TargetReport {
    /// A rate counts as reached if the end was late by no more than this fraction of the time, or
    /// by this many seconds.
    const LATE_MAX: (f64, f64) = (0.01, 0.01);

    /// Judges how well `ops_per_s` was kept over `elapsed_s`, with a thread `behind_s` late at the
    /// end.
    pub(crate) fn of(ops_per_s: f64, behind_s: f64, elapsed_s: f64) -> TargetReport {
        let (part, seconds) = TargetReport::LATE_MAX;
        TargetReport {
            ops_per_s,
            behind_s,
            reached: behind_s <= (part * elapsed_s).max(seconds),
        }
    }
}

/// Stalls of one reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StallReport {
    /// The reason.
    pub reason: Cow<'static, str>,
    /// The number of stalls.
    pub count: u64,
    /// The total time in seconds.
    pub seconds: f64,
}

/// Flushes of memtables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FlushReport {
    /// The number of completed jobs.
    pub count: u64,
    /// The entries that they moved.
    pub entries: u64,
    /// The time spent in them in seconds, over all threads.
    pub seconds: f64,
}

impl FlushReport {
    /// Returns the mean time of a flush in milliseconds; `None` if none has completed.
    pub fn mean_ms(&self) -> Option<f64> {
        (self.count > 0).then(|| self.seconds * 1e3 / self.count as f64)
    }
}

/// One interval of a workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IntervalReport {
    /// Its end, in seconds since the workload began.
    pub end_s: f64,
    /// Its length; the last interval ends with the workload.
    pub seconds: f64,
    /// Operations that ended in it.
    pub ops: u64,
    /// The 99th percentile in microseconds.
    pub p99_us: f64,
    /// The maximum in microseconds.
    pub max_us: f64,
    /// Stalls of writers in it, by reason.
    pub stalls: Vec<StallReport>,
}
