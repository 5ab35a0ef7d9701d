//! Canaries: deliberate bugs built into the store. The suites named for a bug must catch it, and
//! the same cases must pass without it.
//!
//! A case is determined by its seed, so the table shows how many cases of a suite it takes to catch
//! a bug. The bug is set for the whole process, so trials run one after the other.

pub(crate) mod variable;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use terrace::Design;
use terrace::testing::{Canary, set_canary};
use terrace_media::Medium;

use self::variable::VARIABLE;
use crate::crash::Case;
use crate::damage::Specimen;
use crate::faults;
use crate::guest::{Machines, Patient};
use crate::kill::Victim;
use crate::linear;
use crate::lists;
use crate::metamorphic;
use crate::model;
use crate::moments;
use crate::oracle::Outcome;
use crate::place::scratch;
use crate::script::{Profile, overwrites, scans_beside_steps};
use crate::{settings, shrink, space, stalled, strangers};

/// The number of operations in a model script.
const MODEL_OPS: usize = 700;

/// A suite that runs against a bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Suite {
    /// Random calls compared with an ordered map.
    Model,
    /// Large puts while the memtable is nearly empty.
    Limits,
    /// Power losses and process crashes of a simulated machine.
    Power,
    /// Crashes at some points of long scripts, without persistent memory and without a buffer.
    Long,
    /// Children killed with SIGKILL.
    Kill,
    /// Writers and readers on threads.
    Linear,
    /// Writers and readers with table files only and several concurrent compactions.
    LinearFiles,
    /// Syncs that fail.
    Faults,
    /// Long overwriting in a small pool.
    Space,
    /// Changed bytes in databases with data in every component.
    Damage,
    /// Calls on a store whose logs are its tables.
    Tables,
    /// Power losses of such a store.
    TablesPower,
    /// Power losses of a store with memtables that are their own logs.
    ListsPower,
    /// Such memtables over bytes of an earlier use, and with links that a power loss took.
    Lists,
    /// The same, with small writes that may be lost among others.
    Gathered,
    /// Calls on a store whose level 0 leaves in columns.
    Columns,
    /// One history on every design.
    Metamorphic,
    /// Reads and ingests that pause while the store changes.
    Stalled,
    /// Reads with changes of the store between their steps.
    Moments,
    /// Foreign files in the directory of the database.
    Strangers,
    /// Tables that range deletes cover.
    Room,
    /// Power cuts of a virtual machine.
    Guest,
}

/// One bug and one suite that must catch it.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The bug.
    pub canary: Canary,
    /// The suite that must catch it.
    pub suite: Suite,
    /// The medium that the suite runs on.
    pub medium: Medium,
    /// The first seed. Not 0 if a long search has shown which seeds reveal the bug.
    pub first: u64,
    /// The number of cases after which the trial gives up.
    pub cases_max: u64,
}

/// The result of a trial that caught its bug.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The number of cases that ran, including the one that failed.
    pub cases: u64,
    /// The time that they took.
    pub elapsed: Duration,
    /// The message of the suite.
    pub failure: String,
}

/// Where bugs are tried: in children, which call [`crate::kill::child_if_asked`] early, and in
/// virtual machines if available.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// Starts a child.
    pub child: &'a dyn Fn() -> Command,
    /// Virtual machines that run a program with the bugs built in.
    pub machines: Option<&'a Machines>,
}

/// Returns every bug with the suites that must catch it.
pub fn trials() -> Vec<Trial> {
    use Canary as C;
    use Medium::{Dax, Dram, Mapped};
    use Suite::{
        Columns, Damage, Faults, Gathered, Guest, Kill, Limits, Linear, LinearFiles, Lists,
        ListsPower, Long, Metamorphic, Model, Moments, Power, Room, Space, Stalled, Strangers,
        Tables, TablesPower,
    };
    let table = [
        (C::ValueChecksum, Damage, Dax, 400),
        (C::RedoFence, Power, Dax, 40),
        (C::RedoClear, Power, Dax, 40),
        (C::LogFence, Power, Dax, 10),
        (C::GatheredUnflushed, Gathered, Dax, 20),
        (C::LogRecord, Power, Dax, 10),
        (C::LogRecord, Kill, Dax, 40),
        (C::LogRecord, Guest, Dax, 24),
        (C::TableSync, Power, Mapped, 40),
        (C::TableSync, Guest, Mapped, 24),
        (C::EditFence, Power, Dax, 10),
        (C::SyncError, Faults, Mapped, 60),
        (C::SyncForgotten, Faults, Dram, 4),
        (C::SourceOrder, Model, Dax, 10),
        (C::ViewSkipped, Model, Dax, 10),
        (C::GarbageEarly, Linear, Dax, 300),
        (C::ReclaimSkipped, Space, Dax, 5),
        (C::DrainTombstone, Model, Dax, 10),
        (C::HintTooFar, Columns, Dax, 10),
        (C::ColumnEarly, Columns, Dax, 10),
        (C::TablesEarly, Tables, Dax, 10),
        (C::RewriteDropsTombstones, Tables, Dax, 20),
        (C::ValuesForgotten, Tables, Dax, 20),
        (C::ListFence, ListsPower, Dax, 40),
        (C::LinksUnflushed, ListsPower, Dax, 40),
        (C::ListBatch, ListsPower, Dax, 40),
        (C::ListNumbers, Lists, Dax, 10),
        (C::RecoveredEarly, Lists, Dax, 10),
        (C::FileUnsynced, TablesPower, Dax, 20),
        (C::LogsByNumber, TablesPower, Dax, 40),
        (C::DrainTombstone, Metamorphic, Dax, 10),
        (C::BatchSplit, Power, Dax, 40),
        (C::BatchSplit, Kill, Dax, 400),
        (C::BatchSplit, Linear, Dax, 10),
        (C::FlushTwice, Model, Dax, 10),
        (C::LogRetired, Power, Dax, 20),
        (C::UnlinkFirst, Linear, Dax, 300),
        (C::FrontierIgnored, Linear, Dax, 300),
        (C::MergeFilters, Model, Dax, 20),
        (C::MergeFilters, Linear, Dax, 20),
        (C::MergeStripes, Model, Dax, 10),
        (C::FilterDenies, Model, Dax, 10),
        (C::CursorStale, Model, Dax, 60),
        (C::DeadFlag, Power, Mapped, 100),
        (C::RangeUnseen, Model, Dax, 10),
        (C::RangeDropped, Model, Dax, 10),
        (C::SweepSkipped, Model, Dax, 10),
        (C::ExpiredDropped, Model, Dax, 20),
        (C::RangeUnsettled, Stalled, Dax, 20),
        (C::LeftUnsynced, Power, Dram, 10),
        (C::PartUnsynced, Long, Dram, 4),
        (C::HidesUnsynced, Power, Dram, 10),
        (C::LossUnsaid, Damage, Dax, 400),
        (C::IngestUnheld, Stalled, Dax, 20),
        (C::VersionEarly, LinearFiles, Dax, 20),
        (C::MediumOfNow, Power, Mapped, 40),
        (C::SyncedStale, Power, Mapped, 200),
        (C::ForeignFile, Strangers, Dram, 24),
        (C::SpareUnmade, Limits, Dax, 4),
        (C::RoomKept, Room, Dram, 4),
        (C::TornGet, Moments, Dram, 20),
        (C::TornGet, Linear, Dram, 20),
        (C::TimeLast, Moments, Dram, 20),
        (C::TimeLast, Linear, Dram, 20),
        (C::TimeFirst, Moments, Dram, 20),
    ];
    let trial = |(canary, suite, medium, cases_max)| Trial {
        canary,
        suite,
        medium,
        first: match (canary, suite) {
            (Canary::RedoClear, Suite::Power) => 40,
            (Canary::DeadFlag, Suite::Power) => 4,
            (Canary::HidesUnsynced, Suite::Power) => 61,
            (Canary::LeftUnsynced, Suite::Power) => 30,
            (Canary::PartUnsynced, Suite::Long) => 332,
            (Canary::SyncedStale, Suite::Power) => 10,
            (Canary::VersionEarly, Suite::LinearFiles) => 20,
            _ => 0,
        },
        cases_max,
    };
    table.into_iter().map(trial).collect()
}

impl Suite {
    /// Returns the name shown in tables.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Model => "model",
            Suite::Limits => "limits",
            Suite::Power => "power",
            Suite::Long => "power, long",
            Suite::Kill => "kill",
            Suite::Linear => "linear",
            Suite::LinearFiles => "linear, files",
            Suite::Faults => "faults",
            Suite::Space => "space",
            Suite::Damage => "damage",
            Suite::Columns => "columns",
            Suite::Tables => "tables",
            Suite::TablesPower => "power, tables",
            Suite::ListsPower => "power, lists",
            Suite::Lists => "lists",
            Suite::Gathered => "power, gathered",
            Suite::Metamorphic => "metamorphic",
            Suite::Stalled => "stalled",
            Suite::Moments => "moments",
            Suite::Strangers => "strangers",
            Suite::Room => "room",
            Suite::Guest => "guest",
        }
    }

    fn case(self, medium: Medium, seed: u64) -> Outcome {
        match self {
            Suite::Model => {
                let options = settings::varied(&settings::small(medium), (seed / 2) as u8);
                let script = match seed % 4 {
                    3 => scans_beside_steps(seed),
                    _ => Profile::everything(MODEL_OPS).generate(seed),
                };
                model::run(&options, medium, &script)
            }
            Suite::Columns => {
                let mut options = settings::small_of(Design::MatrixKv, medium);
                options.buffer.matrix.hints = true;
                model::run(
                    &options,
                    medium,
                    &Profile::everything(MODEL_OPS).generate(seed),
                )
            }
            Suite::Tables => {
                let options = settings::small_of(Design::FlatLsm, medium);
                let script = match seed % 4 {
                    3 => overwrites(seed, MODEL_OPS / 20),
                    _ => Profile::everything(MODEL_OPS).generate(seed),
                };
                model::run(&options, medium, &script)
            }
            Suite::TablesPower => {
                let (case, script) = Case::every_point(seed, medium);
                let mut case = case.of(Design::FlatLsm);
                case.shrinks = false;
                case.run(&script).map(|_| ())
            }
            Suite::ListsPower => {
                let (case, script) = Case::every_point(seed, medium);
                let mut case = case.of(Design::NoveLsm);
                case.options.front.memtable_bytes = 4 << 10;
                case.shrinks = false;
                case.run(&script).map(|_| ())
            }
            Suite::Lists => {
                lists::reused()?;
                lists::interrupted(seed).map(|_| ())
            }
            Suite::Gathered => {
                let (case, script) = Case::gathering(seed, medium);
                let mut case = case.of(Design::FlatLsm);
                case.shrinks = false;
                case.run(&script).map(|_| ())
            }
            Suite::Limits => model::large_after_small(medium, seed),
            Suite::Power => {
                let (mut case, script) = Case::every_point(seed, medium);
                if medium == Medium::Dram {
                    // One design has table files below the buffer, the other never removes its
                    // logs.
                    let designs = [Design::MioDb, Design::MioDbSsd];
                    case = case.of(designs[seed as usize % 2]);
                }
                case.shrinks = false;
                case.run(&script).map(|_| ())
            }
            Suite::Long => {
                let (case, script) = Case::some_points(seed, medium);
                let mut case = case.of(Design::Leveled);
                case.shrinks = false;
                case.run(&script).map(|_| ())
            }
            Suite::Linear | Suite::LinearFiles => {
                let folder = scratch()?;
                let run = linear::Run {
                    design: match self {
                        Suite::Linear => Design::MioDb,
                        _ => Design::Leveled,
                    },
                    seed,
                    medium,
                    writers: 3,
                    readers: 4,
                    writes: 1000,
                    spread: if seed.is_multiple_of(2) { 1 } else { 40 },
                };
                run.run(folder.path()).map(|_| ())
            }
            Suite::Space => {
                let mut options = settings::small(medium);
                options.pool.size_bytes = 8 << 20;
                space::overwrite(&options, seed, 20_000)
            }
            Suite::Damage => Specimen::make(seed / 50)?.run(seed).map(|_| ()),
            Suite::Metamorphic => metamorphic::once(seed, 400),
            Suite::Stalled => stalled::once(seed, medium),
            Suite::Moments => moments::once(seed, medium),
            // Uses the seeds that put foreign files next to a database, which this bug concerns.
            Suite::Strangers => strangers::once(4 * seed, medium),
            Suite::Room => strangers::room(seed, medium),
            Suite::Faults if medium == Medium::Dram => faults::once::by_seed(seed),
            Suite::Faults => faults::fail_sync(seed + 1).map(|_| ()),
            Suite::Kill | Suite::Guest => Ok(()),
        }
    }
}

impl Trial {
    /// Returns whether the bug shows only while other programs take cores from the threads. Such a
    /// trial runs only if requested by name.
    fn needs_a_busy_machine(&self) -> bool {
        // A reader must pause from before a reclaim ends until its extent is reused.
        self.canary == Canary::GarbageEarly
    }

    /// Returns whether the trial takes many seconds: it needs a long script, many runs of threads,
    /// or many simulated syncs. `cargo test` leaves such trials to `.ci/run`.
    fn is_slow(&self) -> bool {
        matches!(
            (self.canary, self.suite),
            (Canary::PartUnsynced, Suite::Long)
                | (Canary::FrontierIgnored, Suite::Linear)
                | (
                    Canary::TableSync | Canary::MediumOfNow | Canary::SyncedStale,
                    _
                )
        )
    }

    /// Runs the suite on the broken store. Returns `None` if the bug was not caught.
    pub fn run(&self, places: Places<'_>) -> Option<Caught> {
        let started = Instant::now();
        let found = self.find(Some(self.canary), self.cases_max, places);
        found.map(|(cases, failure)| Caught {
            cases,
            elapsed: started.elapsed(),
            failure,
        })
    }

    /// Runs up to `cases_max` cases with `canary`. Returns the first failure and its number, from
    /// 1.
    fn find(
        &self,
        canary: Option<Canary>,
        cases_max: u64,
        places: Places<'_>,
    ) -> Option<(u64, String)> {
        let name = canary.map_or("", Canary::name);
        let broken_child = || {
            let mut command = (places.child)();
            command.env(VARIABLE, name);
            command
        };
        let mut victim = Victim::new((self.medium, Design::MioDb), self.first, &broken_child);
        let machines = places.machines.filter(|_| self.suite == Suite::Guest);
        let mut patient = machines.and_then(|m| m.broken(self.medium, self.first, name));
        // The parent of children examines their files with a correct store.
        let is_here = !matches!(self.suite, Suite::Kill | Suite::Guest);
        set_canary(canary.filter(|_| is_here));
        let failed = (0..cases_max).find_map(|case| {
            let outcome = shrink::guarded(|| match self.suite {
                Suite::Kill => victim.live_once(),
                Suite::Guest => patient.as_mut().map_or(Ok(()), Patient::live_once),
                suite => suite.case(self.medium, self.first + case),
            });
            outcome.err().map(|failure| (case + 1, failure))
        });
        set_canary(None);
        failed
    }
}

/// Reruns the cases that caught something on a correct store: all must pass.
pub fn check_whole(caught: &[(Trial, Caught)], places: Places<'_>) -> Outcome {
    let mut needed: BTreeMap<(Suite, String, u64), (Trial, u64)> = BTreeMap::new();
    for (trial, caught) in caught {
        let key = (trial.suite, trial.medium.to_string(), trial.first);
        let (_, cases) = needed.entry(key).or_insert((*trial, 0));
        *cases = caught.cases.max(*cases);
    }
    for ((suite, medium, first), (trial, cases)) in needed {
        let name = suite.name();
        let started = Instant::now();
        if let Some((case, failure)) = trial.find(None, cases, places) {
            return Err(format!(
                "{name} on {medium} from seed {first}: case {case} fails without a break: {failure}"
            ));
        }
        println!(
            "intact: {name} on {medium} from seed {first}: {cases} cases pass in {:.1} s",
            started.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// The trials to run, and how.
#[derive(Clone, Copy, Default, Debug)]
pub struct Choice<'a> {
    /// Selects the canaries whose name contains this.
    pub only: &'a str,
    /// Selects the slow trials, or the others. `None` stands for all trials.
    pub slow: Option<bool>,
    /// Selects one part of the suites, and the number of parts. Parts run in processes of their
    /// own, since a bug is set for a whole process. `None` stands for all suites.
    pub part: Option<(usize, usize)>,
    /// The first seed of each trial, instead of its own, to search for one that reveals the bug.
    pub first: Option<u64>,
    /// The number of cases that each trial may take, instead of its own number.
    pub cases_max: Option<u64>,
    /// Whether messages of the suites are printed.
    pub says: bool,
}

/// Runs the chosen trials, prints the table, and reruns the same cases on a correct store. An error
/// names the bugs that nothing caught.
pub fn campaign(choice: Choice<'_>, places: Places<'_>) -> Outcome {
    let only = choice.only;
    println!(
        "{:<17} {:<22} {:<21} {:>5} {:>8}",
        "canary", "place", "caught by", "cases", "seconds"
    );
    let hook = std::panic::take_hook();
    // A broken store may panic. A trial counts a panic as a failure.
    std::panic::set_hook(Box::new(|_| {}));
    let mut caught = Vec::new();
    let mut missed = Vec::new();
    for mut trial in trials() {
        let name = trial.canary.name();
        trial.first = choice.first.unwrap_or(trial.first);
        trial.cases_max = choice.cases_max.unwrap_or(trial.cases_max);
        if !name.contains(only) || (only.is_empty() && trial.needs_a_busy_machine()) {
            continue;
        }
        if choice.slow.is_some_and(|slow| slow != trial.is_slow()) {
            continue;
        }
        // By suite: the cases of a suite on a correct store are then run by one part only.
        let is_mine = |(part, parts)| trial.suite as usize % parts == part;
        if !choice.part.is_none_or(is_mine) {
            continue;
        }
        if trial.suite == Suite::Guest && places.machines.is_none() {
            println!(
                "{name:<17} not tried by {}: no virtual machine",
                trial.suite.name()
            );
            continue;
        }
        let mut suite = format!("{} on {}", trial.suite.name(), trial.medium);
        if trial.first > 0 {
            suite = format!("{suite}, from {}", trial.first);
        }
        let place = trial.canary.place();
        match trial.run(places) {
            Some(found) => {
                println!(
                    "{name:<17} {place:<22} {suite:<21} {:>5} {:>8.1}",
                    found.cases,
                    found.elapsed.as_secs_f64()
                );
                if choice.says {
                    println!("    {}", found.failure);
                }
                caught.push((trial, found));
            }
            None => {
                println!("{name:<17} {place:<22} NOT CAUGHT by {suite}");
                missed.push(format!("{name} by {suite}"));
            }
        }
    }
    std::panic::set_hook(hook);
    check_whole(&caught, places)?;
    if missed.is_empty() {
        return Ok(());
    }
    Err(format!("not caught: {}", missed.join(", ")))
}
