//! This file is the results of a run as plain data, for programs; `print.rs` has the lines for people.

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
