//! The format of results: the contents of one line.
//!
//! A run writes a `phase` record at the end of each phase, and then one `end` record. A run that
//! fails has no `end`; a comparison, which starts each run as a separate process, writes a `failed`
//! record instead. Every record names its run, so that one file may contain lines of many runs, in
//! any order except that of phases in a run.
//!
//! Fields are only added. A reader uses a default for a missing field that has one, ignores unknown
//! fields, and refuses a higher [`VERSION`], which is raised when a field changes its meaning or is
//! removed.

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
    /// A run that has ended normally.
    End(Box<End>),
    /// A run that has failed.
    Failed(Box<Failure>),
}

impl Record {
    /// Returns the run that the record belongs to.
    pub fn run(&self) -> &RunId {
        match self {
            Record::Phase(phase) => &phase.run,
            Record::End(end) => &end.run,
            Record::Failed(failure) => &failure.run,
        }
    }

    /// Sets the place of the record's run in a comparison.
    pub(crate) fn set_planned(&mut self, planned: &Planned) {
        let run = match self {
            Record::Phase(phase) => &mut phase.run,
            Record::End(end) => &mut end.run,
            Record::Failed(failure) => &mut failure.run,
        };
        run.planned = Some(planned.clone());
    }
}

/// The run that a record belongs to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunId {
    /// An identifier unique to the run: its start time and the number of its process.
    pub id: String,
    /// The start time, in milliseconds since 1970.
    #[serde(default)]
    pub began_ms: u64,
    /// The place in a comparison; `None` for a standalone run.
    #[serde(default)]
    pub planned: Option<Planned>,
}

impl RunId {
    /// Returns the run of this process, which begins now.
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
    /// The identity of a configuration: the program, its arguments, the repeat.
    pub hash: String,
    /// The store's name in the comparison.
    pub store: String,
    /// The workload's name in the comparison.
    pub workload: String,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Bytes of keys and values that the workload is made for; `None` if it sets the number of
    /// keys.
    #[serde(default)]
    pub data_bytes: Option<u64>,
    /// The repetition, from 0.
    pub repeat: u32,
    /// The number of phases at the start that prepare and are not compared.
    #[serde(default)]
    pub prepare_count: usize,
    /// The command of the run, for repeating it by hand.
    #[serde(default)]
    pub command: String,
}

impl Planned {
    /// Returns whether both have the same place in a comparison, even if measured with different
    /// programs.
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
    /// The run.
    pub run: RunId,
    /// The conditions.
    pub conditions: Conditions,
    /// The results.
    pub phase: StepReport,
}

/// A run that has ended normally.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// The version of the format.
    pub terrace_bench: u32,
    /// The run.
    pub run: RunId,
    /// The bytes of the last database, by tier.
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
    /// How its process ended: its exit code, its signal, or a timeout.
    pub how: String,
    /// The end of its standard error.
    pub evidence: String,
    /// The number of phases that had ended.
    pub phases_done: usize,
}
