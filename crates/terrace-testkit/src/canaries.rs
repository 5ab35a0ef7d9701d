//! Canaries: each break that the store has built in must be caught by the suites named for it, and
//! without a break the same cases must pass.
//!
//! A case follows from its seed, so the table says how much of a suite it takes to see the break.
//! One break is chosen for the whole process: trials run one after the other.

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
use crate::metamorphic;
use crate::model;
use crate::moments;
use crate::oracle::Outcome;
use crate::place::scratch;
use crate::script::{Profile, scans_beside_steps};
use crate::{settings, shrink, space, stalled, strangers};

/// Operations of a model script.
const MODEL_OPS: usize = 700;

/// What runs against a break.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Suite {
    /// Random calls against an ordered map.
    Model,
    /// Large puts while the memtable is hardly filled.
    Limits,
    /// Power losses and process crashes of a simulated machine.
    Power,
    /// The same at some points of long scripts, without persistent memory and without a buffer.
    Long,
    /// Children killed with SIGKILL.
    Kill,
    /// Writers and readers on threads.
    Linear,
    /// The same over table files alone, with several compactions at a time.
    LinearFiles,
    /// Syncs that fail.
    Faults,
    /// Overwriting for long in a small pool.
    Space,
    /// Changed bytes in databases with something in every place.
    Damage,
    /// One history through every design.
    Metamorphic,
    /// Reads and ingests that stand still while much happens.
    Stalled,
    /// Reads between whose steps the world goes on.
    Moments,
    /// Files of others in the folder.
    Strangers,
    /// Tables that range deletes cover.
    Room,
    /// Power cuts of a virtual machine.
    Guest,
}

/// One break and one suite that has to catch it.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The break.
    pub canary: Canary,
    /// What has to catch it.
    pub suite: Suite,
    /// The medium that the suite runs on.
    pub medium: Medium,
    /// The first seed; not 0 where a long search has shown which seeds come to the point.
    pub first: u64,
    /// After so many cases nothing is expected any more.
    pub cases_max: u64,
}

/// How a trial ended.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Cases that ran, the one that failed included.
    pub cases: u64,
    /// How long they took.
    pub elapsed: Duration,
    /// What the suite said.
    pub failure: String,
}

/// Where breaks are tried: children, which soon come to [`crate::kill::child_if_asked`], and virtual machines where
/// there can be any.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// Starts a child.
    pub child: &'a dyn Fn() -> Command,
    /// Machines that run a program with the breaks built in.
    pub machines: Option<&'a Machines>,
}

/// Every break with the suites that have to catch it.
pub fn trials() -> Vec<Trial> {
    use Canary as C;
    use Medium::{Dax, Dram, Mapped};
    use Suite::{
        Damage, Faults, Guest, Kill, Limits, Linear, LinearFiles, Long, Metamorphic, Model,
        Moments, Power, Room, Space, Stalled, Strangers,
    };
    let table = [
        (C::ValueChecksum, Damage, Dax, 400),
        (C::RedoFence, Power, Dax, 40),
        (C::RedoClear, Power, Dax, 40),
        (C::LogFence, Power, Dax, 10),
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
            (Canary::RedoClear, Suite::Power) => 30,
            (Canary::DeadFlag, Suite::Power) => 4,
            (Canary::HidesUnsynced, Suite::Power) => 61,
            (Canary::LeftUnsynced, Suite::Power) => 30,
            (Canary::PartUnsynced, Suite::Long) => 99,
            _ => 0,
        },
        cases_max,
    };
    table.into_iter().map(trial).collect()
}

impl Suite {
    /// The name in tables.
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
            Suite::Limits => model::large_after_small(medium, seed),
            Suite::Power => {
                let (mut case, script) = Case::every_point(seed, medium);
                if medium == Medium::Dram {
                    // With tables that versions hide from, and with logs that stay for ever.
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
            // What the break is about: files beside a database.
            Suite::Strangers => strangers::once(4 * seed, medium),
            Suite::Room => strangers::room(seed, medium),
            Suite::Faults if medium == Medium::Dram => faults::once::by_seed(seed),
            Suite::Faults => faults::fail_sync(seed + 1).map(|_| ()),
            Suite::Kill | Suite::Guest => Ok(()),
        }
    }
}

impl Trial {
    /// Whether the break shows only while threads lose their cores to other programs. Such a trial
    /// runs when it is asked for by name.
    fn needs_a_busy_machine(&self) -> bool {
        // A reader must stand still from before a reclaim ends until its extent is used again.
        self.canary == Canary::GarbageEarly
    }

    /// Runs the suite on the broken store. `None`: the break was not seen.
    pub fn run(&self, places: Places<'_>) -> Option<Caught> {
        let started = Instant::now();
        let found = self.find(Some(self.canary), self.cases_max, places);
        found.map(|(cases, failure)| Caught {
            cases,
            elapsed: started.elapsed(),
            failure,
        })
    }

    /// Runs up to `cases_max` cases with `canary`; the first failure and its number, from 1.
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
        // The parent of children looks at what they leave with a store that is whole.
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

/// Runs the cases that caught something again, on a store that is whole: all of them must pass.
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
                "{name} on {medium} from seed {first}: case {case} fails although nothing is \
                 broken: {failure}"
            ));
        }
        println!(
            "whole: {name} on {medium} from seed {first}: {cases} cases pass in {:.1} s",
            started.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Which trials run, and how.
#[derive(Clone, Copy, Default, Debug)]
pub struct Choice<'a> {
    /// Those of canaries whose name contains this.
    pub only: &'a str,
    /// The first seed of each, instead of its own: a search for one that comes to the point.
    pub first: Option<u64>,
    /// How many cases each may take, instead of its own number.
    pub cases_max: Option<u64>,
    /// What the suites say is printed.
    pub says: bool,
}

/// Runs the trials of a choice, prints the table, and runs the same cases
/// on a store that is whole. An error names the breaks that nothing caught.
pub fn campaign(choice: Choice<'_>, places: Places<'_>) -> Outcome {
    let only = choice.only;
    println!(
        "{:<17} {:<22} {:<21} {:>5} {:>8}",
        "canary", "place", "caught by", "cases", "seconds"
    );
    let hook = std::panic::take_hook();
    // A broken store may panic; a trial counts it as a failure like any other.
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
