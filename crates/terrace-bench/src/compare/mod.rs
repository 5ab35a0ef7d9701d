//! The comparison of stores: a matrix of stores, workloads and sizes from one file; each run is a
//! separate process, and results are appended as they arrive.
//!
//! `spec.rs` reads the file into `model.rs`, `plan.rs` plans the runs, `child.rs` runs one,
//! `mount.rs` places their databases, `warm.rs` keeps memory ready for them, `shrink.rs` scales
//! everything down for a trial, `cells.rs` sorts and compares results, `paper.rs` has the figures
//! of a paper, `figure.rs` those measured for them.
//!
//! Invariants
//!   C1  Only runs of one program with one set of settings are compared: a result without the hash
//!       of a run of this plan is not used.
//!   C2  A result is on disk before the next run begins; an interrupted comparison resumes with the
//!       first run that has no result.

mod cells;
mod child;
mod figure;
mod model;
mod mount;
mod paper;
mod plan;
mod scale;
mod shrink;
mod size;
mod spec;
mod summary;
mod warm;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub use cells::{Cell, Cells, Key, Measure, Repeats, Sample, Verdict, judge, verdict};
pub use figure::Figure;
pub use model::{Comparison, StoreSpec, WorkloadSpec};
pub use paper::{Names, Pair, Paper, PaperValue, Than};
pub use plan::{Run, program_id, runs};
pub use scale::Scale;
pub use size::Size;
pub use spec::{Check, Checked};

pub(crate) use summary::{with_spread, words};

use crate::error::BenchError;
use crate::results::{Appender, Failure, Record, RunId, VERSION};
use crate::store::StoreKind;
use crate::units;
use child::Ended;
use mount::Mount;
use warm::WarmMemory;

/// The outcome of a comparison.
#[derive(Debug)]
pub struct Outcome {
    /// The results.
    pub cells: Cells,
    /// The number of runs with a result.
    pub done: usize,
    /// The number of planned runs.
    pub planned: usize,
    /// Stores without a result that this build does not contain: the name, and the feature to build
    /// with.
    pub absent: Vec<(String, String)>,
    /// The reason that it ended early, if it did.
    pub ended_early: Option<String>,
}

/// The task of a comparison.
pub struct Task<'a> {
    /// The comparison.
    pub comparison: &'a Comparison,
    /// The file to which results are appended, and from which earlier ones are read.
    pub results: PathBuf,
    /// The directory for databases, if given.
    pub mount: Option<PathBuf>,
    /// The directory for the pools of Terrace, and for levels 0 that have their own, if they are to
    /// be elsewhere.
    pub pool_mount: Option<PathBuf>,
    /// The program that does a run: this one.
    pub program: PathBuf,
    /// The identity of this build; see [`program_id`].
    pub program_id: String,
    /// The grammar of its command line.
    pub check: Check<'a>,
    /// Set to stop the comparison.
    pub stop: &'a AtomicBool,
}

/// Returns the stores of `comparison` that this build does not contain, each with the feature to
/// build with.
pub fn absent(comparison: &Comparison) -> Vec<(String, String)> {
    let stores = comparison.store.iter().map(|store| store.get_ref());
    let absent = stores.filter_map(|store| {
        let kind = store.kind().ok().filter(|kind| !kind.is_built())?;
        let brings = format!(
            "this build has no {kind}: build it with --features {kind} (docs/benchmarking.md says \
             what that needs)"
        );
        Some((store.name.clone(), brings))
    });
    absent.collect()
}

/// Returns the outcome of `runs` according to the results in `records`.
fn outcome(comparison: &Comparison, runs: &[Run], records: &[Record]) -> Outcome {
    let hashes: BTreeSet<&str> = runs.iter().map(|run| run.planned.hash.as_str()).collect();
    let of_plan = |record: &&Record| {
        let planned = record.run().planned.as_ref();
        planned.is_some_and(|planned| hashes.contains(planned.hash.as_str()))
    };
    let done = done(records);
    let cells = Cells::of(records.iter().filter(of_plan));
    // A store with results of another build counts as present.
    let mut absent = absent(comparison);
    absent.retain(|(store, _)| cells.all().iter().all(|cell| cell.key.store != *store));
    Outcome {
        done: runs
            .iter()
            .filter(|run| done.contains(run.planned.hash.as_str()))
            .count(),
        planned: runs.len(),
        cells,
        absent,
        ended_early: None,
    }
}

/// Returns the outcome of `comparison` according to the results in `records`, which may be of any
/// build of this program: the last results of each run count.
pub fn outcome_of_any(comparison: &Comparison, records: &[Record]) -> Outcome {
    let mut runs = runs(comparison, "");
    for run in &mut runs {
        let mut planned = records
            .iter()
            .rev()
            .filter_map(|r| r.run().planned.as_ref());
        if let Some(there) = planned.find(|there| there.is_of(&run.planned)) {
            run.planned.hash.clone_from(&there.hash);
        }
    }
    outcome(comparison, &runs, records)
}

/// Returns the hashes of all runs that ended normally.
fn done(records: &[Record]) -> BTreeSet<&str> {
    let ends = records.iter().filter_map(|record| match record {
        Record::End(end) => end.run.planned.as_ref(),
        _ => None,
    });
    ends.map(|planned| planned.hash.as_str()).collect()
}

/// Executes every run without a result and returns the results of all. Runs that fail are recorded,
/// and the comparison goes on; it ends if results cannot be recorded.
pub fn compare(task: &Task<'_>) -> Result<Outcome, BenchError> {
    let comparison = task.comparison;
    let is_built = |run: &Run| {
        let kind = comparison.store[run.store].get_ref().kind();
        kind.is_ok_and(StoreKind::is_built)
    };
    let mut runs = runs(comparison, &task.program_id);
    runs.retain(is_built);
    let (mut results, there) = Appender::open(&task.results)?;
    let mut records = there.records;
    let left: Vec<&Run> = {
        let done = done(&records);
        let left = runs
            .iter()
            .filter(|run| !done.contains(run.planned.hash.as_str()));
        left.collect()
    };
    let mut ended_early = None;
    if !left.is_empty() {
        let phases = left.iter().map(|run| phases_of(comparison, run));
        warm::check(comparison.warm_memory.0, phases.max().unwrap_or(0))?;
        let bytes = |run: &&Run| (task.check)(&run.args, Checked::Run).unwrap_or(0);
        let most = left.iter().map(bytes).max().unwrap_or(0);
        let pools = task.pool_mount.as_deref();
        let places = Places {
            mount: Mount::new(task.mount.as_deref().or(comparison.mount.as_deref()), most)?,
            pools: pools.map(|path| Mount::new(Some(path), 0)).transpose()?,
        };
        let bar = bar(runs.len(), runs.len() - left.len());
        for run in left {
            bar.set_message(title(run));
            ended_early = one(task, run, &places, &bar, &mut results, &mut records)?;
            if ended_early.is_some() {
                break;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
    }
    Ok(Outcome {
        ended_early,
        ..outcome(comparison, &runs, &records)
    })
}

/// The directories of databases, and of pools and levels 0 if they are elsewhere.
struct Places {
    mount: Mount,
    pools: Option<Mount>,
}

impl Places {
    /// Returns the arguments of a run that say where its database is.
    fn arguments(&self, run: &Run) -> Result<Vec<OsString>, BenchError> {
        let mut args: Vec<OsString> = run.args.iter().map(OsString::from).collect();
        args.extend(["--db".into(), self.mount.db().into_os_string()]);
        let level0 = run.args.iter().position(|arg| arg == "--level0");
        if let (Some(at), Some(pools)) = (level0, &self.pools)
            && at + 1 < args.len()
        {
            args[at + 1] = pools.make()?.join("level0").into_os_string();
        }
        let is_terrace = run.args.iter().any(|arg| arg == StoreKind::Terrace.name());
        let Some(pools) = self.pools.as_ref().filter(|_| is_terrace) else {
            return Ok(args);
        };
        let pool = pools.make()?.join("pool").into_os_string();
        match args.iter().position(|arg| arg == "--pool") {
            Some(at) if args.get(at + 1).is_some_and(|path| path == "none") => {}
            Some(at) if at + 1 < args.len() => args[at + 1] = pool,
            _ => args.extend(["--pool".into(), pool]),
        }
        Ok(args)
    }

    /// Fails if there is no space for a run that may take `bytes` on one mount.
    fn check_room(&self, run: &Run, bytes: u64) -> Result<(), String> {
        let Some(pools) = &self.pools else {
            return self.mount.check_room(bytes);
        };
        let (in_pools, in_mount) = room_of(&run.args, bytes);
        pools.check_room(in_pools)?;
        self.mount.check_room(in_mount)
    }

    fn clear(&self) -> Result<(), BenchError> {
        self.mount.clear()?;
        self.pools.iter().try_for_each(Mount::clear)
    }
}

/// Returns the bytes that a run may take of the mount for pools and of the other one. `bytes`: of
/// both together, without a level 0 of its own.
fn room_of(args: &[String], bytes: u64) -> (u64, u64) {
    let value = |option: &str| {
        let at = args.iter().position(|arg| arg == option)?;
        args.get(at + 1)
    };
    let size = |option: &str| value(option).and_then(|size| units::parse_bytes(size).ok());
    // A compaction of level 0 keeps its files until it ends, while flushes add others.
    let level0 = value("--level0").map_or(0, |_| size("--level0-size").unwrap_or(bytes));
    let level0 = level0.saturating_mul(2);
    let is_terrace = value("--store").is_none_or(|store| store == StoreKind::Terrace.name());
    if !is_terrace || value("--pool").is_some_and(|pool| pool == "none") {
        return (level0, bytes);
    }
    match size("--pool-size").map(|pool| pool.min(bytes)) {
        Some(pool) => (pool.saturating_add(level0), bytes - pool),
        // It follows from the data, and so is part of the bytes.
        None => (bytes.saturating_add(level0), bytes),
    }
}

/// Executes one run; returns the reason that the comparison must end, if any.
fn one(
    task: &Task<'_>,
    run: &Run,
    places: &Places,
    bar: &ProgressBar,
    results: &mut Appender,
    records: &mut Vec<Record>,
) -> Result<Option<String>, BenchError> {
    let mut args: Vec<OsString> = vec!["bench".into(), "--json".into()];
    args.extend(places.arguments(run)?);
    let mut id = RunId {
        planned: Some(run.planned.clone()),
        ..RunId::begin()
    };
    // A run that fails before its first phase has no number of its own.
    id.id.push_str(&format!("-{}", records.len()));
    let (mut phases_done, mut phases_ended) = (0, 0);
    let phases = phases_of(task.comparison, run);
    let warm_bytes = task.comparison.warm_memory.0;
    if warm_bytes > 0 {
        bar.set_message(format!("{} (touching memory)", title(run)));
    }
    let mut warm = WarmMemory::hold(warm_bytes, phases);
    let room =
        (task.check)(&run.args, Checked::Run).and_then(|bytes| places.check_room(run, bytes));
    let ended = match room {
        Err(what) => Ended::Failed("it was not started".to_string(), what),
        Ok(()) => {
            let timeout = Duration::from_secs(task.comparison.timeout_s.max(1));
            let see = &mut |record: Record| {
                // Some phases also have a record for each kind of operation.
                if let Record::Phase(phase) = &record
                    && phase.phase.index >= phases_ended
                {
                    phases_ended = phase.phase.index + 1;
                    warm.let_go();
                }
                results.append(&record)?;
                id = record.run().clone();
                phases_done += usize::from(matches!(record, Record::Phase(_)));
                bar.set_message(format!("{} ({phases_done} phases)", title(run)));
                records.push(record);
                Ok(())
            };
            child::run(&task.program, &args, &run.planned, timeout, task.stop, see)?
        }
    };
    places.clear()?;
    match ended {
        Ended::Done => {}
        Ended::Stopped => return Ok(Some("it was stopped".to_string())),
        Ended::Failed(how, evidence) => {
            bar.suspend(|| eprintln!("{}: {how}: {evidence}", title(run)));
            let failure = Record::Failed(Box::new(Failure {
                terrace_bench: VERSION,
                run: id,
                how,
                evidence,
                phases_done,
            }));
            results.append(&failure)?;
            records.push(failure);
        }
    }
    let stopped = task.stop.load(Ordering::Relaxed);
    Ok(stopped.then(|| "it was stopped".to_string()))
}

/// Returns the number of phases of a run.
fn phases_of(comparison: &Comparison, run: &Run) -> usize {
    let workloads = comparison
        .workload
        .iter()
        .map(|workload| workload.get_ref());
    let mut of_run = workloads.filter(|workload| workload.name == run.planned.workload);
    of_run
        .next()
        .map_or(0, |workload| workload.phases().count())
}

fn title(run: &Run) -> String {
    let planned = &run.planned;
    let value = crate::units::bytes(planned.value_bytes);
    let data = planned.data_bytes.map(crate::units::bytes);
    let data = data.map_or(String::new(), |data| format!(", {data}"));
    format!(
        "{} {}, values of {value}{data}, repeat {}",
        planned.store,
        planned.workload,
        planned.repeat + 1
    )
}

fn bar(all: usize, done: usize) -> ProgressBar {
    let bar = ProgressBar::new(all as u64).with_position(done as u64);
    let template = "[{bar:30}] run {pos} of {len} done, {elapsed} so far; {msg}";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Planned;

    /// The pools of Terrace go to their own directory, if there is one; stores without a pool stay
    /// as they are.
    #[test]
    fn pools_are_where_they_are_wanted() {
        let (disk, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |folder: &tempfile::TempDir| Mount::new(Some(folder.path()), 0).unwrap();
        let run = |args: &[&str]| Run {
            planned: Planned::default(),
            args: args.iter().map(|arg| arg.to_string()).collect(),
            store: 0,
        };
        let places = Places {
            mount: at(&disk),
            pools: Some(at(&memory)),
        };
        let pool_of = |args: &[&str]| {
            let args = places.arguments(&run(args)).unwrap();
            assert!(args.contains(&places.mount.db().into_os_string()));
            let at = args.iter().position(|arg| arg == "--pool")?;
            args.get(at + 1).map(PathBuf::from)
        };
        let wanted = memory
            .path()
            .join("terrace-compare")
            .join("db")
            .join("pool");
        assert_eq!(pool_of(&["--store", "terrace"]), Some(wanted.clone()));
        let named = ["--store", "terrace", "--pool", "pool"];
        assert_eq!(pool_of(&named), Some(wanted.clone()));
        let without = ["--store", "terrace", "--pool", "none"];
        assert_eq!(pool_of(&without), Some("none".into()));
        assert_eq!(pool_of(&["--store", "lmdb"]), None);
        std::fs::write(&wanted, "bytes").unwrap();
        places.clear().unwrap();
        assert!(!wanted.exists(), "its file is removed");
    }

    /// Only what a run keeps on the mount for pools counts there: nothing of a store on files.
    #[test]
    fn room_is_counted_where_it_is_taken() {
        let room = |args: &str| {
            let args: Vec<String> = args.split_whitespace().map(String::from).collect();
            room_of(&args, 1000)
        };
        assert_eq!(room("--store rocksdb"), (0, 1000));
        assert_eq!(
            room("--store rocksdb --level0 l0 --level0-size 100"),
            (200, 1000)
        );
        assert_eq!(room("--store terrace --pool none"), (0, 1000));
        assert_eq!(room("--store terrace --pool-size 300"), (300, 700));
        assert_eq!(room("--store terrace"), (1000, 1000));
        let leveled = "--store terrace --pool-size 300 --level0 l0 --level0-size 100";
        assert_eq!(room(leveled), (500, 700));
    }
}
