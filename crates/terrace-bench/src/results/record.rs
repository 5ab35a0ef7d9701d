//! This file is the format of results: what stands in one line.
//!
//! A run writes a `phase` record as each of its phases ends, and then one `end` record. A run that
//! fails has no `end`; a comparison, which starts each run as a process of its own, writes a `failed`
//! record in its place. Every record names the run that it belongs to, so that lines of many runs
//! can stand in one file, in any order but that of phases in a run.
//!
//! Fields are only added. A reader takes a default for a field that is missing where that has one,
//! leaves out what it does not know, and refuses a higher [`VERSION`], which is raised when a field
//! changes its meaning or goes.

use serde::{Deserialize, Serialize};

use crate::machine::Memory;
use crate::report::{Conditions, StepReport};
use crate::space::Space;

/// The version of the format that this program writes.
pub const VERSION: u32 = 1;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// A phase that has ended.
    Phase(Box<Phase>),
    /// A run that has ended as it should.
    End(Box<End>),
    /// A run that has not.
    Failed(Box<Failure>),
}

impl Record {
    /// The run that the record belongs to.
    pub fn run(&self) -> &RunId {
        match self {
            Record::Phase(phase) => &phase.run,
            Record::End(end) => &end.run,
            Record::Failed(failure) => &failure.run,
        }
    }

    /// Says which run of a comparison the record belongs to.
    pub(crate) fn set_planned(&mut self, planned: &Planned) {
        let run = match self {
            Record::Phase(phase) => &mut phase.run,
            Record::End(end) => &mut end.run,
            Record::Failed(failure) => &mut failure.run,
        };
        run.planned = Some(planned.clone());
    }
}

/// Which run a record belongs to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunId {
    /// Different for each run: when it began and the number of its process.
    pub id: String,
    /// When it began, in milliseconds since 1970.
    #[serde(default)]
    pub began_ms: u64,
    /// Its place in a comparison; `None` for a run by itself.
    #[serde(default)]
    pub planned: Option<Planned>,
}

impl RunId {
    /// The run of this process, which begins now.
    pub fn begin() -> RunId {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let began_ms = now.map_or(0, |since| since.as_millis() as u64);
        RunId {
            id: format!("{began_ms:x}-{:x}", std::process::id()),
            began_ms,
            planned: None,
        }
    }
}

/// The place of a run in a comparison.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// What tells one configuration from another: the program, its arguments, the repeat.
    pub hash: String,
    /// The store's name in the comparison.
    pub store: String,
    /// The workload's name in the comparison.
    pub workload: String,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Bytes of keys and values that the workload is made for; `None` where it states a number.
    #[serde(default)]
    pub data_bytes: Option<u64>,
    /// Which repetition, from 0.
    pub repeat: u32,
    /// How many phases, the first ones, prepare and are not compared.
    #[serde(default)]
    pub prepare_count: usize,
    /// What the run was started with, for whoever wants to repeat it by hand.
    #[serde(default)]
    pub command: String,
}

impl Planned {
    /// Whether both have the same place in a comparison, whatever program they were measured with.
    pub(crate) fn is_of(&self, other: &Planned) -> bool {
        (&self.store, &self.workload) == (&other.store, &other.workload)
            && (self.value_bytes, self.data_bytes) == (other.value_bytes, other.data_bytes)
            && self.repeat == other.repeat
    }
}

/// A phase that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// The version of the format.
    pub terrace_bench: u32,
    /// Its run.
    pub run: RunId,
    /// What it was measured on and with.
    pub conditions: Conditions,
    /// What it did.
    pub phase: StepReport,
}

/// A run that has ended as it should.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// The version of the format.
    pub terrace_bench: u32,
    /// The run.
    pub run: RunId,
    /// What the last database holds, and where.
    pub space: Space,
    /// The memory of the process.
    pub memory: Memory,
}

/// A run that has failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The version of the format.
    pub terrace_bench: u32,
    /// The run.
    pub run: RunId,
    /// How its process ended: its code, its signal, or that it took too long.
    pub how: String,
    /// The last that it said on its standard error.
    pub evidence: String,
    /// How many of its phases had ended.
    pub phases_done: usize,
}
