//! Crashes of the simulated machine: a script runs, images are taken at its persist points, and
//! each image is booted, opened, compared with the oracle, used, and sometimes crashed again.
//!
//! Images are taken inside the hook and examined when the operation has ended, before it counts as
//! acknowledged, so the oracle knows which write was in flight.
//!
//! Invariants
//!   C1  The seed determines everything.

mod full;

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use terrace::{Design, Options};
use terrace_media::{Image, Machine, Medium, PersistPoint, Survive};

use crate::oracle::{Crash, Oracle, Outcome};
use crate::place::Place;
use crate::script::{Op, Profile};
use crate::settings;
use crate::shrink;
use crate::watchdog;
use crate::world::World;

/// Counts of a crash run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// The number of scripts.
    pub cases: u64,
    /// Persist points passed by the scripts themselves.
    pub points: u64,
    /// Images of power losses that were booted.
    pub power_losses: u64,
    /// Images of process crashes that were booted.
    pub process_crashes: u64,
    /// Booted images whose crash interrupted a recovery.
    pub in_recovery: u64,
    /// Booted images that were moved to another medium.
    pub moves: u64,
    /// Writes refused by a full pool.
    pub refusals: u64,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: &Tally) {
        self.cases += other.cases;
        self.points += other.points;
        self.power_losses += other.power_losses;
        self.process_crashes += other.process_crashes;
        self.in_recovery += other.in_recovery;
        self.moves += other.moves;
        self.refusals += other.refusals;
    }
}

/// One crash case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Determines everything that is random.
    pub seed: u64,
    /// The medium of the pool. On `Dram` the logs are files of the machine.
    pub medium: Medium,
    /// The percentage of persist points at which images are taken.
    pub percent: u32,
    /// The options.
    pub options: Options,
    /// The number of images per point, besides those that lose nothing and everything.
    pub random_images: u32,
    /// Whether the creation of the store is crashed as well.
    pub creation: bool,
    /// Whether the pool may be on another medium after a crash.
    pub moves: bool,
    /// Whether a failing script is shrunk.
    pub shrinks: bool,
    /// The size of the disk in bytes. `None` stands for no limit.
    disk_bytes: Option<u64>,
}

impl Case {
    /// Returns a case that crashes at every persist point of a short script.
    pub fn every_point(seed: u64, medium: Medium) -> (Case, Vec<Op>) {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x00c0_ffee);
        let len = rng.usize(10..60);
        let profile = Profile::crash(len, &mut rng);
        (
            Case::new(seed, medium, 100, &mut rng),
            profile.generate(seed),
        )
    }

    /// Returns a case that crashes at every persist point of a script of small writes, most of
    /// which a power loss may take.
    pub fn gathering(seed: u64, medium: Medium) -> (Case, Vec<Op>) {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0009_a7e2);
        let len = rng.usize(10..60);
        let profile = Profile {
            value_max: 150,
            sync_percent: 10,
            volatile_percent: 60,
            bulk: false,
            ..Profile::crash(len, &mut rng)
        };
        (
            Case::new(seed, medium, 100, &mut rng),
            profile.generate(seed),
        )
    }

    /// Returns a case that crashes at some persist points of a long script.
    pub fn some_points(seed: u64, medium: Medium) -> (Case, Vec<Op>) {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0bad_cafe);
        let len = rng.usize(300..1200);
        let profile = Profile::crash(len, &mut rng);
        (Case::new(seed, medium, 4, &mut rng), profile.generate(seed))
    }

    /// Returns this case with another design.
    #[must_use]
    pub fn of(mut self, design: Design) -> Case {
        self.options.design = Some(design);
        self
    }

    fn new(seed: u64, medium: Medium, percent: u32, rng: &mut fastrand::Rng) -> Case {
        let options = settings::varied(&settings::small(medium), rng.u8(..));
        Case {
            seed,
            medium,
            percent,
            options,
            random_images: 2,
            creation: seed % 8 == 7,
            moves: medium != Medium::Dram && seed % 4 == 2,
            shrinks: true,
            disk_bytes: None,
        }
    }

    fn oracle(&self) -> Oracle {
        Oracle::new(self.medium).of(self.options.design_of_new())
    }

    /// Runs the script. A failure is shrunk and reported with the command that repeats it.
    pub fn run(&self, script: &[Op]) -> Outcome<Tally> {
        let mut tally = Tally::default();
        if !self.shrinks {
            let _case = watchdog::case(format!("crash on {}, seed {:#x}", self.medium, self.seed));
            shrink::guarded(|| Explorer::new(self, &mut tally).run(script))?;
            return Ok(tally);
        }
        let mut run = |script: &[Op]| {
            tally = Tally::default();
            Explorer::new(self, &mut tally).run(script)
        };
        let name = format!("crash on {}", self.medium);
        shrink::check(&name, self.seed, script, &mut run)?;
        Ok(tally)
    }
}

/// An image and its origin.
struct Taken {
    image: Image,
    crash: Crash,
    what: String,
}

/// A queue that a hook fills and the driver empties.
#[derive(Clone, Default)]
struct Queue(Arc<Mutex<Vec<Taken>>>);

impl Queue {
    fn push(&self, taken: Taken) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(taken);
    }

    fn take(&self) -> Vec<Taken> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Explorer<'a> {
    case: &'a Case,
    rng: fastrand::Rng,
    tally: &'a mut Tally,
}

/// The maximum number of crashes nested in the run after a crash.
const DEPTH_MAX: u32 = 3;

impl<'a> Explorer<'a> {
    fn new(case: &'a Case, tally: &'a mut Tally) -> Explorer<'a> {
        tally.cases = 1;
        Explorer {
            case,
            rng: fastrand::Rng::with_seed(case.seed),
            tally,
        }
    }

    /// Returns the medium of the machine, which has one even if the store uses none.
    fn machine_medium(&self) -> Medium {
        match self.case.medium {
            Medium::Dram => Medium::Mapped,
            medium => medium,
        }
    }

    fn run(&mut self, script: &[Op]) -> Outcome {
        let mut machine = Machine::new(self.case.seed, self.machine_medium());
        let mut queue = Queue::default();
        let percent = self.case.percent;
        if self.case.creation {
            self.watch(&machine, &queue, percent);
        }
        let oracle = self.case.oracle();
        let opened = World::open(
            Place::machine(&machine),
            self.case.options.clone(),
            0,
            oracle,
        )?;
        let mut world = Some(opened);
        let empty = self.case.oracle();
        self.examine_all(queue.take(), &empty, 0)
            .map_err(|e| format!("while creating: {e}"))?;
        self.watch(&machine, &queue, percent);
        for (at, op) in script.iter().enumerate() {
            let Some(mut here) = world.take() else { break };
            // Seeds from the operation, so that removing other operations while shrinking changes
            // little here.
            let mut hasher = std::hash::DefaultHasher::new();
            format!("{op:?}").hash(&mut hasher);
            self.rng = fastrand::Rng::with_seed(self.case.seed ^ hasher.finish());
            // Sometimes the run itself continues from a crash.
            let dies = self.rng.u32(0..100) < 3;
            let mut heir = None;
            let outcome = here.run_hooked(op, &mut |oracle| {
                let mut taken = queue.take();
                if dies && !taken.is_empty() {
                    let last = taken.swap_remove(self.rng.usize(..taken.len()));
                    heir = Some((last, oracle.clone()));
                }
                self.examine_all(taken, oracle, 0)
            });
            outcome.map_err(|e| format!("operation {at} ({op:?}): {e}"))?;
            self.examine_all(queue.take(), &here.oracle, 0)
                .map_err(|e| format!("after operation {at} ({op:?}): {e}"))?;
            let Some((taken, oracle)) = heir else {
                world = Some(here);
                continue;
            };
            machine.on_persist(None);
            self.tally.points += machine.points();
            self.tally.refusals += here.refusals();
            drop(here.into_oracle());
            machine = self.boot(taken.image);
            queue = Queue::default();
            let what = taken.what;
            let next = self
                .recover(&machine, &oracle, taken.crash, 0)
                .map_err(|e| format!("operation {at} ({op:?}), going on from {what}: {e}"))?;
            self.watch(&machine, &queue, percent);
            world = Some(next);
        }
        machine.on_persist(None);
        self.tally.points += machine.points();
        if let Some(mut world) = world {
            world.check_all().map_err(|e| format!("at the end: {e}"))?;
            self.tally.refusals += world.refusals();
            if world.refusals() == 0 {
                world
                    .check_space()
                    .map_err(|e| format!("at the end: {e}"))?;
            }
        }
        Ok(())
    }

    /// Boots a machine, sometimes with the pool on another medium.
    fn boot(&mut self, image: Image) -> Machine {
        let (seed, medium) = (self.rng.u64(..), image.medium());
        if !self.case.moves || self.rng.bool() {
            return Machine::boot(image, seed);
        }
        self.tally.moves += 1;
        let other = match medium {
            Medium::Dax => Medium::Mapped,
            _ => Medium::Dax,
        };
        Machine::boot_on(image, seed, other)
    }

    /// Returns the place of the store on `machine`.
    fn place(&self, machine: &Machine) -> Place {
        match self.case.disk_bytes {
            Some(bytes) => full::on_a_disk_of(bytes, machine),
            None => Place::machine(machine),
        }
    }

    /// Returns the options for a machine.
    fn options_on(&self, machine: &Machine) -> Options {
        match self.case.moves {
            true => settings::on(machine.medium(), &self.case.options),
            false => self.case.options.clone(),
        }
    }

    /// Takes images at `percent` of the persist points of a machine.
    fn watch(&mut self, machine: &Machine, queue: &Queue, percent: u32) {
        let mut rng = fastrand::Rng::with_seed(self.rng.u64(..));
        let queue = queue.clone();
        let random_images = self.case.random_images;
        machine.on_persist(Some(Box::new(
            move |machine: &Machine, point: PersistPoint| {
                if rng.u32(0..100) >= percent {
                    return;
                }
                let mut survivals = vec![Survive::None, Survive::All];
                survivals.extend((0..random_images).map(|_| Survive::Random(rng.u64(..))));
                if percent < 100 {
                    survivals = vec![survivals[rng.usize(..survivals.len())]];
                }
                for survive in survivals {
                    queue.push(taken(machine, point, Crash::Power, survive));
                }
                if rng.u8(0..8) == 0 {
                    queue.push(taken(machine, point, Crash::Process, Survive::All));
                }
            },
        )));
    }

    fn examine_all(&mut self, taken: Vec<Taken>, oracle: &Oracle, depth: u32) -> Outcome {
        for taken in taken {
            let what = taken.what;
            self.examine(taken.image, taken.crash, oracle, depth)
                .map_err(|e| format!("after {what}: {e}"))?;
        }
        Ok(())
    }

    /// Boots an image, checks its content, and checks that the store remains usable.
    fn examine(&mut self, image: Image, crash: Crash, oracle: &Oracle, depth: u32) -> Outcome {
        match crash {
            Crash::Power => self.tally.power_losses += 1,
            Crash::Process => self.tally.process_crashes += 1,
        }
        let machine = self.boot(image);
        let mut world = self.recover(&machine, oracle, crash, depth)?;
        if self.case.disk_bytes.is_some() {
            return self.use_on_full_disk(&machine, world);
        }
        if self.rng.u8(0..4) > 0 || depth >= DEPTH_MAX {
            return Ok(());
        }
        // Uses the store for a while, possibly crashing it meanwhile.
        let len = self.rng.usize(1..25);
        let profile = Profile {
            reopen: false,
            ..Profile::crash(len, &mut self.rng)
        };
        let mut script = profile.generate(self.rng.u64(..));
        retag(&mut script, self.rng.u64(1..u64::MAX >> 20) << 20);
        let queue = Queue::default();
        if self.rng.bool() {
            self.watch(&machine, &queue, 3);
        }
        for op in &script {
            world
                .run_hooked(op, &mut |oracle| {
                    self.examine_all(queue.take(), oracle, depth + 1)
                })
                .map_err(|e| format!("then {op:?}: {e}"))?;
        }
        machine.on_persist(None);
        world
            .check_all()
            .map_err(|e| format!("then {script:?}, and at the end: {e}"))?;
        if self.rng.u8(0..4) == 0 && world.refusals() == 0 {
            world
                .check_space()
                .map_err(|e| format!("then {script:?}, then emptied: {e}"))?;
        }
        self.tally.refusals += world.refusals();
        Ok(())
    }

    /// Opens the store of a machine after a crash, sometimes crashing it while it recovers.
    fn recover(
        &mut self,
        machine: &Machine,
        oracle: &Oracle,
        crash: Crash,
        depth: u32,
    ) -> Outcome<World> {
        let queue = Queue::default();
        let again = depth < DEPTH_MAX && self.rng.u8(0..6) == 0;
        if again {
            self.watch(machine, &queue, 15);
        }
        let place = self.place(machine).at(oracle.now());
        let base = self.options_on(machine);
        let options = settings::varied(&base, self.rng.u8(..));
        let db = place
            .open(&options)
            .map_err(|e| format!("opening: {e:?}"))?;
        machine.on_persist(None);
        let mut after = oracle.check_after(crash, &db)?;
        crate::world::verify(&db, Some(after.live_count()))?;
        for taken in queue.take() {
            self.tally.in_recovery += 1;
            let what = taken.what;
            self.examine(taken.image, crash.max(taken.crash), oracle, depth + 1)
                .map_err(|e| format!("during recovery, {what}: {e}"))?;
        }
        if self.case.moves {
            after.opened_on(machine.medium());
        }
        Ok(World::over(place, base, db, after))
    }
}

fn taken(machine: &Machine, point: PersistPoint, crash: Crash, survive: Survive) -> Taken {
    let purpose = point.purpose.map_or("", |purpose| purpose.name());
    let place = format!("point {} ({} {purpose})", point.index, point.what);
    match crash {
        Crash::Power => Taken {
            image: machine.crash_image(survive),
            crash,
            what: format!("power loss at {place}, {survive:?}"),
        },
        Crash::Process => Taken {
            image: machine.process_image(),
            crash,
            what: format!("process crash at {place}"),
        },
    }
}

/// Gives the values of a script unique tags.
fn retag(script: &mut [Op], base: u64) {
    for op in script {
        if let Op::Write(entries, _) = op {
            for value in entries.iter_mut().filter_map(|entry| entry.value.as_mut()) {
                value.tag += base;
            }
        }
    }
}
