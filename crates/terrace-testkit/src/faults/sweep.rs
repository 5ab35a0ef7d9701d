//! Makes the n-th call on files and on the pool fail, for every n, while a script runs, a database
//! recovers from a crash, or a database is only read.
//!
//! After the fault nothing panics; a result is right or an error that names the fault; after an
//! error of a write or a sync the store takes no more writes. Without faults the database then
//! opens again, holds what was acknowledged and nothing else, verifies, remains usable, and leaves
//! no unknown file.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind as Io;
use std::path::Path;
use std::sync::Arc;

use terrace::{Design, Durability, ErrorKind, Options, Workers};
use terrace_media::{Effect, FaultFs, Medium, OsFs, PoolFaults};

pub use super::fault::Only;
use super::fault::{Act, Target, WAYS};
use crate::oracle::{Crash, Oracle, Outcome};
use crate::place::{Place, scratch};
use crate::script::{Entry, Key, Op, Profile, Range};
use crate::settings;
use crate::shrink::guarded;
use crate::value::Value;
use crate::watchdog::{self, watched};
use crate::world::{World, verify};

/// One fault in one run.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Determines the script. With an odd seed, reads of files also return fewer bytes than
    /// requested.
    pub seed: u64,
    /// The design.
    pub design: Design,
    /// The medium.
    pub medium: Medium,
    /// The activity.
    pub act: Act,
    /// The calls that are counted.
    pub target: Target,
    /// The number of the call that fails, from 1. 0 stands for no fault.
    pub call: u64,
    /// The index of the way it fails.
    pub way: usize,
    /// Who runs background jobs. With threads the n-th call differs between runs, but the checks
    /// are the same.
    pub workers: Workers,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case {
            seed,
            design,
            medium,
            act,
            target,
            call,
            way,
            workers,
        } = self;
        let manual = match workers {
            Workers::Manual => ",manual",
            _ => "",
        };
        write!(
            f,
            "faults --seed {seed:#x} --design {design} --medium {medium} --only \
             {act:?},{target:?},{call},{way}{manual}"
        )
    }
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    /// No call failed.
    Nothing,
    /// A call failed, and the store still takes writes.
    Error,
    /// A call failed, and the store takes no more writes, or was not open.
    Stopped,
}

/// Counts of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Cases whose call was reached.
    pub cases: u64,
    /// By failed call: cases that reported no error, that reported one, and that stopped the store.
    rows: BTreeMap<String, [u64; 3]>,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: &Tally) {
        self.cases += other.cases;
        for (what, counts) in &other.rows {
            let mine = self.rows.entry(what.clone()).or_default();
            mine.iter_mut().zip(counts).for_each(|(m, o)| *m += o);
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<28} {:>8} {:>8} {:>8}",
            "failed", "unseen", "told", "stopped"
        )?;
        for (what, [unseen, told, stopped]) in &self.rows {
            writeln!(f, "{what:<28} {unseen:>8} {told:>8} {stopped:>8}")?;
        }
        write!(f, "{} cases", self.cases)
    }
}

/// A database left by a crash, and its required content.
struct Image {
    folder: tempfile::TempDir,
    oracle: Oracle,
}

/// Sweeps over one kind of database: for each act and target every `stride`-th call fails, either
/// in a way that changes from call to call or in every way.
pub fn sweep(
    (medium, design): (Medium, Design),
    seed: u64,
    stride: u64,
    every_way: bool,
) -> Outcome<Tally> {
    let mut tally = Tally::default();
    let stride = match settings::is_by_default(seed) {
        // A case takes a second with memtables of the default size.
        true => stride * 16,
        false => stride,
    };
    let image = Image::make(design, medium, seed)?;
    for act in Act::ALL {
        for target in Target::ALL {
            let mut case = Case {
                seed,
                design,
                medium,
                act,
                target,
                call: 0,
                way: 0,
                workers: workers(seed),
            };
            let calls = case.run(&image)?.1;
            for call in (1 + seed % stride..=calls).step_by(stride as usize) {
                case.call = call;
                let one = (call + seed) as usize % WAYS.len();
                let ways = if every_way {
                    0..WAYS.len()
                } else {
                    one..one + 1
                };
                for way in ways {
                    case.way = way;
                    let (row, _) = case.run(&image)?;
                    if let Some((what, said)) = row {
                        tally.cases += 1;
                        tally.rows.entry(what).or_default()[said as usize] += 1;
                    }
                }
            }
        }
    }
    Ok(tally)
}

/// Repeats one case.
pub fn repeat((medium, design): (Medium, Design), seed: u64, only: Only) -> Outcome<Tally> {
    let case = Case {
        seed,
        design,
        medium,
        act: only.act,
        target: only.target,
        call: only.call,
        way: only.way,
        workers: match only.manual {
            true => Workers::Manual,
            false => workers(seed),
        },
    };
    let (row, calls) = case.run(&Image::make(design, medium, seed)?)?;
    println!("{row:?}, {calls} calls");
    Ok(Tally {
        cases: 1,
        ..Tally::default()
    })
}

fn workers(seed: u64) -> Workers {
    match settings::is_by_default(seed) {
        true => Workers::Auto,
        false => settings::workers(seed),
    }
}

/// Returns small options, or the default ones.
fn options((medium, design): (Medium, Design), seed: u64, workers: Workers) -> Options {
    let mut options = match settings::is_by_default(seed) {
        true => settings::default_of(design, medium),
        false => settings::small_of(design, medium),
    };
    options.background.workers = workers;
    options
}

fn script(seed: u64, len: usize) -> Vec<Op> {
    let profile = Profile {
        value_max: 3000,
        sync_percent: 30,
        read_percent: 20,
        bulk: false,
        ..Profile::everything(len)
    };
    let mut script = profile.generate(seed);
    let pairs = |tag: u64| {
        let pair = |n: u8| {
            (
                Key(vec![b'i', n]),
                Value {
                    tag: tag + u64::from(n),
                    len: 300,
                },
            )
        };
        (0..9).map(pair).collect()
    };
    // Adds operations that the random script may lack.
    for (at, op) in [
        Op::Flush,
        Op::Ingest(0, pairs(1 << 40)),
        Op::Drain,
        Op::Checkpoint,
        Op::Compact(0, Range::All),
        Op::CreateSpace(1),
        Op::DropSpace(1),
        Op::Ingest(0, pairs(1 << 41)),
    ]
    .into_iter()
    .enumerate()
    {
        script.insert(((at + 1) * len / 9).min(script.len()), op);
    }
    script.extend([Op::Verify, Op::Reopen(true, 0)]);
    script
}

impl Image {
    fn make(design: Design, medium: Medium, seed: u64) -> Outcome<Image> {
        let (before, after) = (scratch()?, scratch()?);
        let mut world = World::open(
            Place::folder(before.path()),
            options((medium, design), seed, Workers::Manual),
            0,
            Oracle::new(medium).of(design),
        )?;
        for op in script(seed ^ 0x1437, 60)
            .iter()
            .filter(|op| **op != Op::Checkpoint)
        {
            world.run(op)?;
        }
        // Leaves unfinished work and an open log.
        for op in script(seed ^ 0x2537, 30).iter().take(20) {
            match op {
                Op::Reopen(..) | Op::Checkpoint | Op::Verify => {}
                op => world.run(op)?,
            }
        }
        // No thread runs steps and none is in progress, so this copy is what a killed process
        // leaves.
        copy_files(before.path(), after.path())?;
        Ok(Image {
            folder: after,
            oracle: world.into_oracle(),
        })
    }
}

fn copy_files(from: &Path, to: &Path) -> Outcome {
    let failed = |e: std::io::Error| format!("copying a directory: {e}");
    for entry in std::fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        std::fs::copy(entry.path(), to.join(entry.file_name())).map_err(failed)?;
    }
    Ok(())
}

impl Case {
    /// Runs the case. Returns the call that failed, if it was reached, and how the case ended; and
    /// the number of calls.
    fn run(&self, image: &Image) -> Outcome<(Option<(String, Said)>, u64)> {
        let _case = watchdog::case(self.to_string());
        guarded(|| self.run_unguarded(image)).map_err(|e| format!("{e}\nrepeat: {self}"))
    }

    fn run_unguarded(&self, image: &Image) -> Outcome<(Option<(String, Said)>, u64)> {
        let folder = scratch()?;
        let mut oracle = Oracle::new(self.medium).of(self.design);
        if self.act != Act::Life {
            copy_files(image.folder.path(), folder.path())?;
            oracle = image.oracle.clone();
        }
        let (fs, faults) = (FaultFs::new(Arc::new(OsFs)), PoolFaults::new());
        fs.short_transfers(self.seed % 2 == 1);
        let place = Place {
            fs: Some(Arc::new(fs.clone())),
            faults: Some(Arc::clone(&faults)),
            ..Place::folder(folder.path())
        };
        self.arm(&fs, &faults);
        let (said, oracle, told) = self.act(place.clone(), oracle, &fs, &faults)?;
        let calls = match self.target {
            Target::Files => fs.operations(),
            Target::Growth => faults.grows(),
            Target::Syncs => faults.syncs(),
            Target::PoolFile => faults.file_calls(),
        };
        let tripped = fs.tripped().or_else(|| faults.tripped());
        fs.reset();
        faults.reset();
        if let Some(tripped) = &tripped {
            self.judge(tripped, &said)?;
        }
        let after = |e| match &tripped {
            Some(tripped) => format!("after \"{tripped}\" failed ({said:?}, {told}): {e}"),
            None => e,
        };
        self.look(&place, oracle).map_err(after)?;
        Ok((tripped.map(|tripped| (class(&tripped), said)), calls))
    }

    fn options(&self) -> Options {
        options((self.medium, self.design), self.seed, self.workers)
    }

    fn arm(&self, fs: &FaultFs, faults: &PoolFaults) {
        fs.reset();
        faults.reset();
        let (kind, sticky, effect) = WAYS[self.way];
        if self.call == 0 {
            return;
        }
        fs.leave(effect);
        match self.target {
            Target::Files => fs.fail_at(self.call, kind, sticky),
            Target::Growth => faults.fail_grow(self.call, kind, sticky),
            Target::Syncs => faults.fail_sync(self.call, kind, sticky),
            Target::PoolFile => faults.fail_file(self.call, kind, sticky),
        }
    }

    /// Performs the act with the fault armed. Returns how it ended, the expected content, and the
    /// error.
    fn act(
        &self,
        place: Place,
        oracle: Oracle,
        fs: &FaultFs,
        faults: &PoolFaults,
    ) -> Outcome<(Said, Oracle, String)> {
        // An error is right if it names the fault or reports a full device. If a link was made
        // although its call reported an error, the copy that replaces the link fails with "File
        // exists".
        let made = WAYS[self.way].2 == Effect::All;
        let names = |e: &String| {
            let tripped = fs.tripped().is_some() || faults.tripped().is_some();
            let said = e.contains("injected fault") || e.contains("full error");
            tripped && (said || made && e.contains("File exists"))
        };
        let mut options = self.options();
        options.read_only = self.act == Act::ReadOnly;
        let place = place.at(oracle.now());
        let db = match place.open(&options) {
            Ok(db) => db,
            Err(e) => {
                let e = format!("opening: {e:?}");
                return match names(&e) {
                    true => Ok((Said::Stopped, oracle, e)),
                    false => Err(e),
                };
            }
        };
        let oracle = match oracle.check_after(Crash::Process, &db) {
            Ok(after) => after,
            Err(e) if names(&e) => return Ok((Said::Error, oracle, e)),
            Err(e) => return Err(e),
        };
        if self.act == Act::ReadOnly {
            return Ok((Said::Nothing, oracle, String::new()));
        }
        let mut world = World::over(place, options, db, oracle);
        for op in script(self.seed, 60) {
            let Err(e) = world.run(&op) else { continue };
            if !names(&e) {
                return Err(format!("{op:?}: {e}"));
            }
            let read = is_read(&e);
            // Reads are exempt, since only this test makes one report a full disk.
            if e.contains("stopped error") && !read && self.is_said_to_be_full(&e, &world.refused) {
                return Err(format!(
                    "{op:?}: the store stops, and has only said that something is full: {e}\nrefused: {:?}",
                    world.refused
                ));
            }
            let stopped = world.db().is_err() || probe(&mut world)?;
            // In an ingest, the failing file may not be named by anything yet.
            let unnamed = matches!(op, Op::Ingest(..)) && !e.contains("syncing the pool");
            let writes = !matches!(op, Op::Checkpoint | Op::Verify) && !unnamed;
            if writes && e.contains("io error") && !stopped && !read {
                return Err(format!("{op:?} failed, and writes go on: {e}"));
            }
            let said = if stopped { Said::Stopped } else { Said::Error };
            return Ok((said, world.into_oracle(), format!("{op:?}: {e}")));
        }
        // Dropping the last handle would do the same but report nothing.
        world.let_go();
        let closed = watched("closing", || world.db().map(terrace::Db::close))?;
        let said = match closed.map_err(|e| format!("closing: {e:?}")) {
            Ok(()) => (Said::Nothing, String::new()),
            Err(e) if names(&e) => (Said::Stopped, e),
            Err(e) => return Err(e),
        };
        Ok((said.0, world.into_oracle(), said.1))
    }

    /// Returns whether the failure that stopped the store was reported as a full disk before. If
    /// all calls fail from one on and threads make them, a writer may meet a full disk at one call,
    /// and a job stop the store at another.
    fn is_said_to_be_full(&self, stopped: &str, refused: &[String]) -> bool {
        let (_, sticky, _) = WAYS[self.way];
        let others = sticky && !matches!(self.workers, Workers::Manual);
        refused.iter().any(|told| {
            !others || fault_in(told).is_none_or(|call| Some(call) == fault_in(stopped))
        })
    }

    /// Checks that a permanent failure of a sync or a write was reported.
    fn judge(&self, tripped: &str, said: &Said) -> Outcome {
        let (kind, _, _) = WAYS[self.way];
        // A log that cannot be sealed is no worse than before. A failed write of a record is
        // reported by its own call.
        let durable = tripped.starts_with("sync")
            || tripped.starts_with("write") && !tripped.starts_with("write wal-");
        let silent = *said == Said::Nothing && kind == Io::Other;
        match durable && silent {
            true => Err(format!("\"{tripped}\" failed, but no call reported it")),
            false => Ok(()),
        }
    }

    /// Opens the store without faults and checks that it is complete and usable.
    fn look(&self, place: &Place, oracle: Oracle) -> Outcome {
        let options = self.options();
        let place = place.clone().at(oracle.now());
        let db = place
            .open(&options)
            .map_err(|e| format!("opening without faults: {e:?}"))?;
        let after = oracle.check_after(Crash::Process, &db)?;
        verify(&db, Some(after.live_count()))?;
        let mut world = World::over(place.clone(), options, db, after);
        let key = Key(b"after".to_vec());
        let value = Value { tag: 7, len: 2000 };
        let entry = entry(key, Some(value));
        for op in [
            Op::Write(vec![entry], Durability::Sync),
            Op::Flush,
            Op::Drain,
            Op::Reopen(true, 0),
            Op::Verify,
        ] {
            world.run(&op).map_err(|e| format!("{op:?}: {e}"))?;
        }
        let db = world.db()?;
        watched("coming to rest", || db.wait_idle())
            .map_err(|e| format!("coming to rest: {e:?}"))?;
        let metrics = db.metrics();
        let files = metrics.files.iter().map(|level| level.file_count).sum();
        let files = [files, metrics.values.file_count];
        leftovers(&place.folder, files).map_err(|e| format!("{e}\n{metrics}"))
    }
}

fn entry(key: Key, value: Option<Value>) -> Entry {
    Entry {
        space: 0,
        key,
        value,
        until: None,
        ttl: None,
    }
}

/// Returns whether the store takes no more writes.
fn probe(world: &mut World) -> Outcome<bool> {
    let key = Key(b"probe".to_vec());
    let value = Value { tag: 5, len: 10 };
    let write = world.oracle.begin(&[entry(key.clone(), Some(value))]);
    let said = world.db()?.put_with(&key, value.bytes(), Durability::Sync);
    match said.map_err(|e| e.kind()) {
        Ok(()) => {
            world.oracle.acknowledged(write, Durability::Sync);
            Ok(false)
        }
        Err(ErrorKind::Stopped | ErrorKind::Closed) => {
            world.oracle.refused(write);
            Ok(true)
        }
        Err(ErrorKind::Full) => {
            world.oracle.refused(write);
            Ok(false)
        }
        // This write itself failed, so it may be present.
        Err(ErrorKind::Io) => Ok(true),
        Err(other) => Err(format!("after a fault a put is {other:?}")),
    }
}

/// Returns whether the fault named in a message is in a call that changes nothing.
fn is_read(message: &str) -> bool {
    let reads = [
        "read", "length", "open", "look up", "list", "advise", "lock",
    ];
    fault_in(message).is_some_and(|what| reads.iter().any(|read| what.starts_with(read)))
}

/// Returns the failed call and its number from a message.
fn fault_in(message: &str) -> Option<&str> {
    let fault = message.split("injected fault: ").nth(1)?;
    fault.split([')', '"', ';']).next()
}

/// Returns the name of a failed call without file numbers.
fn class(what: &str) -> String {
    what.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Checks that a database that was closed cleanly and reopened contains no unneeded file.
fn leftovers(folder: &Path, [tables, values]: [u64; 2]) -> Outcome {
    let names = std::fs::read_dir(folder).map_err(|e| format!("listing: {e}"))?;
    let names: Vec<String> = names
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let known = ["OPTIONS", "LOCK", "MANIFEST", "pool"];
    let strange = names.iter().find(|name| {
        !known.contains(&name.as_str())
            && !name.ends_with(".sst")
            && !name.ends_with(".val")
            && !name.ends_with(".log")
            && !name.starts_with("RESERVE-")
    });
    if let Some(strange) = strange {
        return Err(format!("the file {strange} is left: {names:?}"));
    }
    let found = [".sst", ".val"].map(|end| {
        let with = names.iter().filter(|name| name.ends_with(end));
        with.count() as u64
    });
    match found == [tables, values] {
        true => Ok(()),
        false => Err(format!(
            "{found:?} table and value files for {tables} and {values}: {names:?}"
        )),
    }
}
