//! SIGKILL: a child process writes, is killed at a random moment, and the remaining database is
//! compared, life after life in one directory.
//!
//! The seed determines what each thread of a child does (see `writes`). The progress of a thread is
//! eight bytes in a file that only this thread writes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::Duration;

use terrace::{Db, Design, Options, Workers};
use terrace_media::Medium;

use crate::oracle::{Crash, Oracle, Outcome};
use crate::place::{Place, scratch};
use crate::settings;
use crate::watchdog::{self, watched};
use crate::world::{World, verify};
use crate::writes::{self, Course, Progress, THREADS};

/// The environment variable that turns a process into a child.
const VARIABLE: &str = "TERRACE_KILL_CHILD";
/// The number of lives in one directory. Without a pool or table files logs are replayed in every
/// life, so the directory is replaced sooner.
const LIVES_MAX: u64 = 200;
const LIVES_MAX_LOGS: u64 = 25;

/// The parameters of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Orders {
    folder: PathBuf,
    medium: Medium,
    design: Design,
    seed: u64,
    life: u64,
    variation: u8,
    /// Whether the options are the default ones.
    by_default: bool,
}

impl Orders {
    fn options(&self, variation: u8) -> Options {
        if self.by_default {
            return settings::default_of(self.design, self.medium);
        }
        let small = settings::small_of(self.design, self.medium);
        let mut options = settings::varied(&small, variation);
        options.pool.size_bytes = 8 << 20;
        options.background.workers = match variation % 4 {
            3 => Workers::Auto,
            _ => Workers::Threads(1 + usize::from(variation % 2)),
        };
        options.background.merge_threads = usize::from(variation % 3 == 2) * 2;
        options
    }

    fn oracle(&self) -> Oracle {
        Oracle::new(self.medium).of(self.design)
    }

    fn course(&self) -> Course {
        Course {
            seed: self.seed,
            life: self.life,
            ingests: self.oracle().keeps_what_is_drained(),
        }
    }

    fn to_text(&self) -> String {
        let Orders {
            folder,
            medium,
            design,
            seed,
            life,
            variation,
            by_default,
        } = self;
        let folder = folder.display();
        format!("{medium},{design},{seed},{life},{variation},{by_default},{folder}")
    }

    fn parse(text: &str) -> Option<Orders> {
        let mut parts = text.splitn(7, ',');
        let medium = settings::medium_of(parts.next()?)?;
        Some(Orders {
            medium,
            design: parts.next()?.parse().ok()?,
            seed: parts.next().and_then(|n| u64::from_str(n).ok())?,
            life: parts.next()?.parse().ok()?,
            variation: parts.next()?.parse().ok()?,
            by_default: parts.next()?.parse().ok()?,
            folder: parts.next()?.into(),
        })
    }

    fn store(&self) -> PathBuf {
        self.folder.join("db")
    }

    fn progress(&self, thread: u64) -> PathBuf {
        self.folder.join(format!("done-{}-{thread}", self.life))
    }

    fn refusals(&self, thread: u64) -> PathBuf {
        self.folder.join(format!("refused-{}-{thread}", self.life))
    }
}

/// Turns this process into a child if it was started as one. Returns `None` otherwise.
pub fn child_if_asked() -> Option<ExitCode> {
    let orders = std::env::var(VARIABLE).ok()?;
    #[cfg(feature = "canary")]
    crate::canaries::variable::choose_from_environment();
    let done = Orders::parse(&orders)
        .ok_or_else(|| format!("{VARIABLE}={orders} is invalid"))
        .and_then(|orders| live(&orders));
    if let Err(failure) = done {
        eprintln!("{failure}");
    }
    // A child is not expected to exit: the parent treats it as a failure.
    Some(ExitCode::FAILURE)
}

fn live(orders: &Orders) -> Outcome {
    let _case = watchdog::case(format!("{orders:?}"));
    let options = orders.options(orders.variation);
    let db = watched("opening", || Db::open(orders.store(), options))
        .map_err(|e| format!("opening: {e:?}"))?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let db = &db;
                scope.spawn(move || {
                    let failed = |e| format!("the child's own file: {e}");
                    let mut progress = Files::create(orders, thread).map_err(failed)?;
                    writes::write(&orders.course(), db, thread, &mut progress)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("a thread of the child panicked".into()))
        })
    })
}

/// The progress in two files that only the thread writes.
struct Files {
    done: File,
    refused: File,
    refusals: u64,
}

impl Files {
    fn create(orders: &Orders, thread: u64) -> io::Result<Files> {
        Ok(Files {
            done: File::create(orders.progress(thread))?,
            refused: File::create(orders.refusals(thread))?,
            refusals: 0,
        })
    }
}

impl Progress for Files {
    fn done(&mut self, writes: u64) -> io::Result<()> {
        self.done.write_all_at(&writes.to_le_bytes(), 0)
    }

    fn refused(&mut self, turn: u64) -> io::Result<()> {
        let at = self.refusals * 8;
        self.refusals += 1;
        self.refused.write_all_at(&turn.to_le_bytes(), at)
    }
}

/// Counts of a kill run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// The number of children killed.
    pub kills: u64,
    /// The number of answered writes.
    pub writes: u64,
    /// The number of writes refused by a full pool.
    pub refusals: u64,
    /// The number of kills that were followed by another one before the database was compared.
    pub unseen: u64,
    /// The number of directories created.
    pub folders: u64,
}

/// One database and its lives.
pub struct Victim<'a> {
    rng: fastrand::Rng,
    orders: Orders,
    oracle: Oracle,
    unlooked: bool,
    command: &'a dyn Fn() -> Command,
    /// The counts of all lives.
    pub tally: Tally,
    _folder: Option<tempfile::TempDir>,
}

impl<'a> Victim<'a> {
    /// Makes a victim whose children are started by `command`. A child must call [`child_if_asked`]
    /// early.
    pub fn new(
        (medium, design): (Medium, Design),
        seed: u64,
        command: &'a dyn Fn() -> Command,
    ) -> Victim<'a> {
        let orders = Orders {
            folder: PathBuf::new(),
            medium,
            design,
            seed,
            life: 0,
            variation: 0,
            by_default: false,
        };
        Victim {
            rng: fastrand::Rng::with_seed(seed),
            oracle: orders.oracle(),
            orders,
            unlooked: false,
            command,
            tally: Tally::default(),
            _folder: None,
        }
    }

    /// Starts a new directory, in memory if the system has such a file system.
    fn begin(&mut self) -> Outcome {
        let folder = scratch()?;
        self.orders.folder = folder.path().to_owned();
        // Not the first directory, which is the only one of a short test.
        self.orders.by_default = self.tally.folders % 8 == 3;
        self._folder = Some(folder);
        self.oracle = self.orders.oracle();
        self.tally.folders += 1;
        let place = Place::folder(self.orders.store());
        let oracle = self.oracle.clone();
        let options = self.orders.options(0);
        let mut world = World::open(place, options, 0, oracle)?;
        world.run(&crate::script::Op::CreateSpace(1))?;
        self.oracle = world.into_oracle();
        Ok(())
    }

    /// Runs one life: starts a child, kills it, and compares the remaining database.
    pub fn live_once(&mut self) -> Outcome {
        let lives = match self.oracle.keeps_what_is_drained() {
            true => LIVES_MAX,
            false => LIVES_MAX_LOGS,
        };
        if self.orders.life.is_multiple_of(lives) {
            self.begin()?;
        }
        self.orders.life += 1;
        self.orders.variation = self.rng.u8(..);
        self.kill_child()?;
        self.note()?;
        let last = (self.orders.life + 1).is_multiple_of(lives);
        if !last && self.rng.u8(0..4) == 0 {
            self.tally.unseen += 1;
            self.unlooked = true;
            return Ok(());
        }
        self.look()
    }

    fn kill_child(&mut self) -> Outcome {
        // This is a file, since a watchdog's report can fill a pipe that is not read.
        let path = self.orders.folder.join("said");
        let said = File::create(&path).map_err(|e| format!("cannot create a file: {e}"))?;
        let mut child = (self.command)()
            .env(VARIABLE, self.orders.to_text())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .map_err(|e| format!("cannot start the child: {e}"))?;
        let most = [3_000, 12_000, 40_000][self.rng.usize(..3)];
        std::thread::sleep(Duration::from_micros(self.rng.u64(0..most)));
        if self.rng.u8(0..20) == 0 {
            self.wait_for_writes(&mut child)?;
        }
        let ended = child
            .try_wait()
            .map_err(|e| format!("waiting for the child: {e}"))?;
        let killed = child.kill();
        child
            .wait()
            .map_err(|e| format!("waiting for the child: {e}"))?;
        let said = std::fs::read_to_string(&path).unwrap_or_default();
        if ended.is_some() || killed.is_err() || !said.is_empty() {
            return Err(format!("the child exited: {said}"));
        }
        self.tally.kills += 1;
        Ok(())
    }

    /// Waits until every thread of the child has written for a while. If one hangs, the child's
    /// watchdog ends the child; a kill would hide the hang.
    fn wait_for_writes(&self, child: &mut Child) -> Outcome {
        let _operation = watchdog::operation_within(3 * watchdog::PATIENCE, "a child's writes");
        let waited = self.rng.clone().u64(100..2000);
        let is_there = |thread| {
            let bytes = std::fs::read(self.orders.progress(thread)).unwrap_or_default();
            let done = bytes
                .first_chunk()
                .map_or(0, |word| u64::from_le_bytes(*word));
            done >= waited
        };
        // BOUND: the child's watchdog ends the child, or this process's watchdog ends the parent.
        while !(0..THREADS).all(is_there) {
            let ended = child.try_wait().map_err(|e| format!("the child: {e}"))?;
            if ended.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Passes the progress of the child to the oracle.
    fn note(&mut self) -> Outcome {
        for thread in 0..THREADS {
            let read = |path: PathBuf| -> Vec<u64> {
                let bytes = std::fs::read(path).unwrap_or_default();
                let words = bytes.chunks_exact(8);
                words
                    .map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()))
                    .collect()
            };
            let path = self.orders.progress(thread);
            if !path.exists() {
                continue;
            }
            let done = read(path).first().copied().unwrap_or(0);
            let refused = read(self.orders.refusals(thread));
            let course = self.orders.course();
            let answered = writes::note(&course, thread, done, &refused, &mut self.oracle);
            self.tally.writes += answered.writes;
            self.tally.refusals += answered.refusals;
            let _ = std::fs::remove_file(self.orders.progress(thread));
            let _ = std::fs::remove_file(self.orders.refusals(thread));
        }
        Ok(())
    }

    /// Opens the store and compares its content.
    fn look(&mut self) -> Outcome {
        self.unlooked = false;
        let mut options = self.orders.options(self.rng.u8(..));
        if self.rng.bool() {
            options.background.workers = Workers::Manual;
        }
        let place = Place::folder(self.orders.store());
        let db = place
            .open(&options)
            .map_err(|e| format!("opening after the kill: {e:?}"))?;
        let after = self.oracle.check_after(Crash::Process, &db)?;
        verify(&db, Some(after.live_count()))?;
        let mut world = World::over(place, options, db, after);
        if self.rng.u8(0..40) == 0 {
            world.check_space()?;
            world.run(&crate::script::Op::CreateSpace(1))?;
        }
        self.oracle = world.into_oracle();
        self.oracle.closed();
        Ok(())
    }

    /// Describes the victim for messages.
    pub fn describe(&self) -> String {
        format!(
            "{} on {}, seed {:#x}, life {}",
            self.orders.design, self.orders.medium, self.orders.seed, self.orders.life
        )
    }

    /// Keeps the directory for analysis.
    pub fn keep_folder(&mut self) -> PathBuf {
        match self._folder.take() {
            Some(folder) => folder.keep(),
            None => PathBuf::new(),
        }
    }
}
