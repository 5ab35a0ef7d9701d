//! The steps of a run: workloads with the names and meanings of db_bench and YCSB, and waits.

use std::fmt;
use std::str::FromStr;

/// One step of a run: a workload that is measured, or a wait for background work.
///
/// Every workload runs on `threads` threads. As in db_bench, each thread of its workloads does the
/// whole number of operations; as in YCSB, the threads of its workloads share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A fresh database; `num` keys in ascending order.
    FillSeq,
    /// As `FillSeq`, in batches of 1000.
    FillBatch,
    /// A fresh database; `num` keys drawn from the range 0 to `num`, with repetition.
    FillRandom,
    /// A fresh database; the `num` keys from 0 to `num` in random order, each once.
    FillUniqueRandom,
    /// As `FillRandom`, into the existing database.
    Overwrite,
    /// `reads` gets of keys drawn from the range 0 to `num`; absent ones count as not found.
    ReadRandom,
    /// As `ReadRandom`, of the first hundredth of the keys.
    ReadHot,
    /// As `ReadRandom`, `batch_count` keys in one call; stores without such a call read one key
    /// after another.
    MultiReadRandom,
    /// `reads` gets of keys that no workload wrote.
    ReadMissing,
    /// One scan of up to `reads` entries from the first key upward.
    ReadSeq,
    /// One scan of up to `reads` entries from the last key downward.
    ReadReverse,
    /// `reads` times: an iterator from a random key, and `seek_nexts` entries read from it.
    SeekRandom,
    /// `reads` times: a get of a random key and a put of it.
    UpdateRandom,
    /// `reads` operations on random keys: `read_percent` gets, the rest puts.
    ReadRandomWriteRandom,
    /// `num` deletes of keys in ascending order.
    DeleteSeq,
    /// `num` deletes of keys drawn from the range 0 to `num`.
    DeleteRandom,
    /// As `ReadRandom` on `threads` threads, while one more thread overwrites until they end.
    ReadWhileWriting,
    /// As `SeekRandom` on `threads` threads, while one more thread overwrites until they end.
    SeekRandomWhileWriting,
    /// A fresh database; each thread has a queue in it: it puts `num` keys at the end, and finds
    /// and deletes the first one, `queue_depth` keys behind.
    Queue,
    /// A fresh database; YCSB's load phase.
    YcsbLoad,
    /// YCSB's workload A: reads and updates by halves.
    YcsbA,
    /// B: 95 % reads, 5 % updates.
    YcsbB,
    /// C: reads.
    YcsbC,
    /// D: 95 % reads of the latest records, 5 % inserts.
    YcsbD,
    /// E: 95 % short scans, 5 % inserts.
    YcsbE,
    /// F: reads and read-modify-writes by halves.
    YcsbF,
    /// The workload of the given property file.
    YcsbRun,
    /// On YCSB's records: skewed overwrites of varying sizes, and few reads. Makes garbage.
    Churn,
    /// The calls of a recorded trace; into a fresh database, unless an existing one is used.
    Replay,
    /// A fresh database that another process fills with `num` keys; it is killed with SIGKILL, and
    /// the database is opened, timed and verified.
    KillReopen,
    /// Drains everything to the bottom and waits for merges and reclaim.
    Drain,
    /// Flushes every memtable to the buffer.
    Flush,
    /// Waits until background work is idle.
    Wait,
}

/// The kind of keys that a workload reads and writes, which no other kind of workload uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// db_bench's numbers.
    Numbers,
    /// YCSB's records.
    Records,
    /// Queues.
    Queues,
    /// The keys of a trace.
    Trace,
}

impl Contents {
    /// Returns the name of the contents, and the steps that make them.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Contents::Numbers => "the numbered keys of fillseq and similar steps",
            Contents::Records => "the records of ycsb-load",
            Contents::Queues => "the queues of queue",
            Contents::Trace => "the keys of replay",
        }
    }
}

impl Step {
    /// All steps, in the order of the help.
    pub const ALL: [Step; 33] = [
        Step::FillSeq,
        Step::FillBatch,
        Step::FillRandom,
        Step::FillUniqueRandom,
        Step::Overwrite,
        Step::ReadRandom,
        Step::ReadHot,
        Step::MultiReadRandom,
        Step::ReadMissing,
        Step::ReadSeq,
        Step::ReadReverse,
        Step::SeekRandom,
        Step::UpdateRandom,
        Step::ReadRandomWriteRandom,
        Step::DeleteSeq,
        Step::DeleteRandom,
        Step::ReadWhileWriting,
        Step::SeekRandomWhileWriting,
        Step::Queue,
        Step::YcsbLoad,
        Step::YcsbA,
        Step::YcsbB,
        Step::YcsbC,
        Step::YcsbD,
        Step::YcsbE,
        Step::YcsbF,
        Step::YcsbRun,
        Step::Churn,
        Step::Replay,
        Step::KillReopen,
        Step::Drain,
        Step::Flush,
        Step::Wait,
    ];

    /// Returns the name on the command line: db_bench's, if it has the workload.
    pub fn name(self) -> &'static str {
        match self {
            Step::FillSeq => "fillseq",
            Step::FillBatch => "fillbatch",
            Step::FillRandom => "fillrandom",
            Step::FillUniqueRandom => "filluniquerandom",
            Step::Overwrite => "overwrite",
            Step::ReadRandom => "readrandom",
            Step::ReadHot => "readhot",
            Step::MultiReadRandom => "multireadrandom",
            Step::ReadMissing => "readmissing",
            Step::ReadSeq => "readseq",
            Step::ReadReverse => "readreverse",
            Step::SeekRandom => "seekrandom",
            Step::UpdateRandom => "updaterandom",
            Step::ReadRandomWriteRandom => "readrandomwriterandom",
            Step::DeleteSeq => "deleteseq",
            Step::DeleteRandom => "deleterandom",
            Step::ReadWhileWriting => "readwhilewriting",
            Step::SeekRandomWhileWriting => "seekrandomwhilewriting",
            Step::Queue => "queue",
            Step::YcsbLoad => "ycsb-load",
            Step::YcsbA => "ycsb-a",
            Step::YcsbB => "ycsb-b",
            Step::YcsbC => "ycsb-c",
            Step::YcsbD => "ycsb-d",
            Step::YcsbE => "ycsb-e",
            Step::YcsbF => "ycsb-f",
            Step::YcsbRun => "ycsb-run",
            Step::Churn => "churn",
            Step::Replay => "replay",
            Step::KillReopen => "killreopen",
            Step::Drain => "drain",
            Step::Flush => "flush",
            Step::Wait => "wait",
        }
    }

    /// Returns whether the step begins with an empty database.
    pub fn is_fresh(self) -> bool {
        matches!(
            self,
            Step::FillSeq
                | Step::FillBatch
                | Step::FillRandom
                | Step::FillUniqueRandom
                | Step::Queue
                | Step::YcsbLoad
                | Step::Replay
                | Step::KillReopen
        )
    }

    /// Returns whether the step may leave entries in the database.
    pub fn puts(self) -> bool {
        let only_reads = matches!(
            self,
            Step::ReadRandom
                | Step::ReadHot
                | Step::MultiReadRandom
                | Step::ReadMissing
                | Step::ReadSeq
                | Step::ReadReverse
                | Step::SeekRandom
                | Step::DeleteSeq
                | Step::DeleteRandom
                | Step::YcsbC
        );
        !only_reads && !self.settles()
    }

    /// Returns whether the step waits for background work instead of measuring operations.
    pub fn settles(self) -> bool {
        matches!(self, Step::Drain | Step::Flush | Step::Wait)
    }

    /// Returns whether one more thread writes while the others read.
    pub(crate) fn has_writer(self) -> bool {
        matches!(self, Step::ReadWhileWriting | Step::SeekRandomWhileWriting)
    }

    /// Returns the contents it works on; `None` for a step that waits.
    pub(crate) fn contents(self) -> Option<Contents> {
        match self {
            Step::Drain | Step::Flush | Step::Wait => None,
            Step::Queue => Some(Contents::Queues),
            Step::Replay => Some(Contents::Trace),
            Step::YcsbLoad | Step::YcsbRun | Step::Churn => Some(Contents::Records),
            _ if self.standard_workload().is_some() => Some(Contents::Records),
            _ => Some(Contents::Numbers),
        }
    }

    /// Returns the name of the standard workload that it runs.
    pub(crate) fn standard_workload(self) -> Option<&'static str> {
        match self {
            Step::YcsbA => Some("a"),
            Step::YcsbB => Some("b"),
            Step::YcsbC => Some("c"),
            Step::YcsbD => Some("d"),
            Step::YcsbE => Some("e"),
            Step::YcsbF => Some("f"),
            Step::Churn => Some("churn"),
            _ => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Step, String> {
        Step::ALL
            .into_iter()
            .find(|step| step.name() == text.trim())
            .ok_or_else(|| {
                let names: Vec<&str> = Step::ALL.iter().map(|step| step.name()).collect();
                format!(
                    "unknown benchmark {text:?}; use one of {}",
                    names.join(", ")
                )
            })
    }
}

/// The steps of a run that requests no others.
pub const DEFAULT_STEPS: [Step; 11] = [
    Step::FillSeq,
    Step::FillRandom,
    Step::ReadRandom,
    Step::Drain,
    Step::ReadRandom,
    Step::ReadSeq,
    Step::ReadReverse,
    Step::SeekRandom,
    Step::Overwrite,
    Step::ReadMissing,
    Step::DeleteRandom,
];

/// Checks that each step finds the contents it works on; the error names every step that does not.
pub(crate) fn check_order(steps: &[Step]) -> Result<(), String> {
    let mut there: Option<Contents> = None;
    for step in steps {
        let Some(wanted) = step.contents() else {
            continue;
        };
        let works = match there {
            _ if step.is_fresh() => true,
            // An empty database counts as one of numbered keys without any key yet.
            None => wanted == Contents::Numbers,
            Some(there) => there == wanted,
        };
        if !works {
            let found = there.map_or("nothing", Contents::describe);
            return Err(format!(
                "{step} needs {}, but finds {found}: put a step before it that creates them",
                wanted.describe()
            ));
        }
        there = Some(wanted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every step's name parses as that step, and other names are rejected.
    #[test]
    fn names_are_understood() {
        for step in Step::ALL {
            assert_eq!(step.name().parse(), Ok(step));
        }
        assert!(
            "fillsync"
                .parse::<Step>()
                .is_err_and(|e| e.contains("fillrandom"))
        );
    }

    /// A step that reads keys that no workload wrote, or that another kind of workload wrote, is
    /// refused.
    #[test]
    fn steps_find_what_they_work_on() {
        use Step::{FillSeq, Overwrite, Queue, ReadRandom, ReadSeq, Wait, YcsbA, YcsbE, YcsbLoad};
        for right in [
            &[FillSeq, ReadRandom, Wait, YcsbLoad, YcsbA, YcsbE][..],
            &[Overwrite, ReadRandom],
            &[Wait, YcsbLoad, Wait, YcsbA, FillSeq, ReadSeq, Queue, Wait],
        ] {
            assert_eq!(check_order(right), Ok(()), "{right:?}");
        }
        for (wrong, said) in [
            (
                &[YcsbA][..],
                "ycsb-a needs the records of ycsb-load, but finds nothing",
            ),
            (&[FillSeq, Wait, YcsbE], "finds the numbered keys"),
            (
                &[YcsbLoad, YcsbA, ReadSeq],
                "readseq needs the numbered keys",
            ),
            (&[Queue, ReadRandom], "finds the queues"),
        ] {
            let problem = check_order(wrong).expect_err("it does not work");
            assert!(problem.contains(said), "{problem}");
        }
    }
}
