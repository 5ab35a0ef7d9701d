//! Writers and readers on real threads during merges and drains. Their results are checked as
//! histories (`history.rs`), and every read against what must hold at each instant.
//!
//! | keys | written by | checked |
//! |---|---|---|
//! | shared | every writer, never deleted | as registers |
//! | owned | one writer: puts, deletes, ranges, mixed batches, expiry, bulk loads | as registers of one writer |
//! | groups | every writer, all keys of a group in one batch, over two keyspaces | as one register, and all equal |
//! | accounts | one writer moves balances | as registers, and the sum is constant |
//! | always | one writer, cleared and put in one batch, or put again just before it expires | it is never absent |
//! | brief | one writer, for a time that the clock jumps over | as registers that the clock writes too |
//! | facts and marks | one writer, one after the other | a mark implies its fact |
//! | steady | no thread after the start | always present |
//! | transient keyspaces | one writer | the whole content, or an error |

mod comers;
mod reader;
mod roster;
mod seen;
mod time;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace::{Db, Design, Durability, ErrorKind, Keyspace, Options, Workers, WriteBatch};
use terrace_media::{Clock, Medium};

use self::comers::Comers;
use self::roster::{Register, Roster, value};
use self::seen::{Seen, Span};
use self::time::{Expiry, Jumping, expire};
use self::writer::Writer;
use crate::history::History;
use crate::oracle::Outcome;
use crate::settings;
use crate::watchdog::{self, watched};
use crate::world::verify;

const SHARED: u64 = 12;
const OWNED: u64 = 6;
const GROUPS: u64 = 4;
/// BOUND: the number of attempts of a write on a full pool without threads, with steps and a pause
/// in between.
const TRIES: u32 = 10_000;

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Determines what the threads do, but not in which order.
    pub seed: u64,
    /// The medium.
    pub medium: Medium,
    /// The design.
    pub design: Design,
    /// The number of writing threads.
    pub writers: u64,
    /// The number of reading threads.
    pub readers: u64,
    /// The number of operations of each writer.
    pub writes: u64,
    /// A multiplier for the few keys of each kind. With few keys the same ones are written and read
    /// all the time; with many, a merge takes many batches, and reads meet it half done.
    pub spread: u64,
}

/// Counts of a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// The number of writes recorded.
    pub writes: u64,
    /// The number of reads recorded, counted per key.
    pub reads: u64,
    /// The number of scans.
    pub scans: u64,
    /// The number of keyspaces dropped.
    pub drops: u64,
    /// The number of jumps of the clock.
    pub jumps: u64,
    /// The number of merges, drains and reclaims that ended during the run.
    pub jobs: u64,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: &Tally) {
        self.writes += other.writes;
        self.reads += other.reads;
        self.scans += other.scans;
        self.drops += other.drops;
        self.jumps += other.jumps;
        self.jobs += other.jobs;
    }
}

/// The state shared by all threads of a run.
struct Stage<'a> {
    run: &'a Run,
    db: &'a Db,
    roster: Roster,
    spaces: [Keyspace; 2],
    clock: Arc<Jumping>,
    comers: Comers,
    ticks: AtomicU64,
    writing: AtomicU64,
    failed: AtomicBool,
}

fn failed(what: &str) -> impl Fn(terrace::Error) -> String {
    move |e| format!("{what}: {e:?}")
}

impl Stage<'_> {
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    fn goes_on(&self) -> bool {
        self.writing.load(Ordering::Relaxed) > 0 && !self.has_failed()
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn is_manual(&self) -> bool {
        self.db.options().background.workers == Workers::Manual
    }

    /// Makes a call that writes, and returns the times of its call and return.
    fn call(&self, what: &str, call: impl Fn() -> terrace::Result<()>) -> Outcome<Span> {
        let called = self.tick();
        self.retried(call).map_err(failed(what))?;
        Ok((called, self.tick()))
    }

    /// Makes a call that writes. Without threads it is refused while another caller runs the steps
    /// that it needs.
    fn retried<T>(&self, call: impl Fn() -> terrace::Result<T>) -> terrace::Result<T> {
        for _ in 0..TRIES {
            match call() {
                Err(e) if e.kind() == ErrorKind::Full && self.is_manual() => {
                    // BOUND: other callers run steps too, so this ends when nothing is left to do,
                    // or after the last attempt.
                    for pick in 0..1000 {
                        if !self.db.step(pick)? {
                            break;
                        }
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                answered => return answered,
            }
        }
        call()
    }

    /// Runs some background steps if there are no threads for them.
    fn step(&self, rng: &mut fastrand::Rng) -> Outcome {
        if self.is_manual() {
            for _ in 0..rng.u8(1..20) {
                self.db.step(rng.usize(..)).map_err(failed("a step"))?;
            }
        }
        Ok(())
    }

    /// Sometimes makes the next read of this thread pause in the middle, if the store is built for
    /// that.
    fn stand_still(&self, rng: &mut fastrand::Rng) {
        #[cfg(feature = "canary")]
        if rng.u8(..8) == 0 {
            let time = std::time::Duration::from_micros(rng.u64(..300));
            terrace::testing::in_the_next_call(move || std::thread::sleep(time));
        }
        let _ = rng;
    }

    fn play(&self) -> Outcome<Vec<Seen>> {
        let mut writers: Vec<(Writer<'_>, Seen)> = (0..self.run.writers)
            .map(|id| (Writer::new(self, id), Seen::default()))
            .collect();
        for (writer, seen) in &mut writers {
            writer.begin(seen)?;
        }
        let note = |outcome: Outcome<Seen>| {
            if outcome.is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
            outcome
        };
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (mut writer, mut seen) in writers {
                threads.push(scope.spawn(move || {
                    let outcome = note(writer.go_on(&mut seen).map(|()| seen));
                    self.writing.fetch_sub(1, Ordering::Relaxed);
                    outcome
                }));
            }
            for reader in 0..self.run.readers {
                threads.push(scope.spawn(move || note(self.read_on(reader))));
            }
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| Err("a thread panicked".into()))
                })
                .collect()
        })
    }
}

impl Run {
    fn shared(&self) -> u64 {
        SHARED * self.spread
    }

    fn owned(&self) -> u64 {
        OWNED * self.spread
    }

    fn groups(&self) -> u64 {
        GROUPS * self.spread
    }

    fn options(&self) -> Options {
        if settings::is_by_default(self.seed) {
            return settings::default_of(self.design, self.medium);
        }
        let mut options = settings::varied(
            &settings::small_of(self.design, self.medium),
            self.seed as u8,
        );
        options.pool.size_bytes = 8 << 20;
        options.front.memtable_bytes = options.front.memtable_bytes.min(8 << 10);
        if self.seed % 3 == 1 {
            // Everything drains at once, and extents are emptied continuously.
            options.buffer.levels = 1;
            options.bottom.garbage_percent = 10;
        }
        if self.spread > 1 {
            options.pool.size_bytes = 32 << 20;
            options.front.memtable_bytes = 64 << 10;
        }
        options.background = settings::background(self.seed);
        options
    }

    /// Runs the threads on a new store in `folder` and checks their results.
    pub fn run(&self, folder: &std::path::Path) -> Outcome<Tally> {
        let _case = watchdog::case(format!("{self:?}"));
        let clock = Arc::new(Jumping::new());
        let builder = Db::builder(folder)
            .options(self.options())
            .clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let db = watched("opening", || builder.open()).map_err(failed("opening"))?;
        let stage = Stage {
            run: self,
            roster: Roster::of(self),
            spaces: [
                db.default_keyspace(),
                db.create_keyspace("side").map_err(failed("a keyspace"))?,
            ],
            db: &db,
            clock,
            comers: Comers::default(),
            ticks: AtomicU64::new(1),
            writing: AtomicU64::new(self.writers),
            failed: AtomicBool::new(false),
        };
        let mut batch = WriteBatch::new();
        for ((space, key), n) in stage.roster.steady() {
            batch.put_in(&stage.spaces[*space], key, value(n));
        }
        db.write(batch, Durability::Buffered)
            .map_err(failed("the start"))?;
        let seen = stage.play()?;
        let mut tally = stage.check(seen)?;
        verify(&db, None)?;
        tally.jobs = db.metrics().jobs.iter().map(|job| job.count).sum();
        watched("closing", || db.close()).map_err(failed("closing"))?;
        Ok(tally)
    }
}

impl Stage<'_> {
    /// Checks the history of each register.
    fn check(&self, seen: Vec<Seen>) -> Outcome<Tally> {
        let jumps = self.clock.jumps();
        let mut tally = Tally {
            jumps: jumps.len() as u64,
            ..Tally::default()
        };
        let mut histories: BTreeMap<Register, History> = BTreeMap::new();
        let mut expiries: BTreeMap<Register, Vec<Expiry>> = BTreeMap::new();
        for seen in seen {
            tally.scans += seen.scans;
            tally.drops += seen.drops;
            expiries.extend(seen.expiries);
            for (register, history) in seen.histories {
                tally.writes += history.writes.len() as u64;
                tally.reads += history.reads.len() as u64;
                let all = histories.entry(register).or_default();
                all.writes.extend(history.writes);
                all.reads.extend(history.reads);
            }
        }
        for (register, history) in &mut histories {
            if let Some(expiries) = expiries.get(register) {
                expire(history, expiries, &jumps);
            }
            let checked = match register.has_one_writer() {
                true => history.check_one_writer(),
                false => history.check_unique(),
            };
            checked.map_err(|e| format!("{register:?}: {e}"))?;
        }
        Ok(tally)
    }
}
