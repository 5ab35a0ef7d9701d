//! Reads with changes between their steps: whenever a read asks for the time, and in a point read
//! once it has its view, writes are made, the clock jumps, and background steps run. The result of
//! a read must be the state of the database at one instant of the call, for all keys together.
//!
//! All calls are made on one thread, so the sequence of states is known exactly. Background steps
//! run on this thread too, or on threads of the store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use terrace::{Db, Design, Durability, Workers, WriteBatch};
use terrace_media::{Clock, Medium};

use crate::oracle::Outcome;
use crate::place::scratch;
use crate::{settings, watchdog};

/// The number of keys, so few that every read meets recent writes.
const KEYS: u8 = 6;
/// The number of reads in one case.
const READS: u32 = 80;

type Hook = Box<dyn FnOnce() + Send>;
/// The thread whose looks count, the number of looks to skip, and the hook.
type Armed = (ThreadId, u32, Hook);

/// A clock that is stopped, and runs a hook of the test when it is read.
#[derive(Default)]
pub struct Hooked {
    millis: AtomicU64,
    before: Mutex<Option<Armed>>,
    after: Mutex<Option<Armed>>,
    /// Whether looks are ignored, since a hook makes them and not the read.
    held: AtomicBool,
}

impl Hooked {
    /// Returns a clock that shows a time in milliseconds.
    pub fn at(millis: u64) -> Arc<Hooked> {
        let clock = Hooked::default();
        clock.set(millis);
        Arc::new(clock)
    }

    /// Sets the time.
    pub fn set(&self, millis: u64) {
        self.millis.store(millis, Ordering::SeqCst);
    }

    /// Runs `hook` at a look of this thread, after skipping `looks`, before it has read the time.
    pub fn before(&self, looks: u32, hook: impl FnOnce() + Send + 'static) {
        *lock(&self.before) = Some((std::thread::current().id(), looks, Box::new(hook)));
    }

    /// Runs `hook` likewise, after the look has read the time.
    pub fn after(&self, looks: u32, hook: impl FnOnce() + Send + 'static) {
        *lock(&self.after) = Some((std::thread::current().id(), looks, Box::new(hook)));
    }

    /// Removes hooks that have not run.
    pub fn disarm(&self) {
        *lock(&self.before) = None;
        *lock(&self.after) = None;
    }
}

impl Hooked {
    /// Runs `f` without hooks.
    fn hold(&self, f: impl FnOnce()) {
        let was = self.held.swap(true, Ordering::SeqCst);
        f();
        self.held.store(was, Ordering::SeqCst);
    }

    /// Runs the hook if this is its look.
    fn look(&self, hook: &Mutex<Option<Armed>>) {
        if self.held.load(Ordering::SeqCst) {
            return;
        }
        let due = {
            let mut hook = lock(hook);
            match &mut *hook {
                Some((thread, ..)) if *thread != std::thread::current().id() => None,
                Some((_, 0, _)) => hook.take(),
                Some((_, looks, _)) => {
                    *looks -= 1;
                    None
                }
                None => None,
            }
        };
        if let Some((.., hook)) = due {
            self.hold(hook);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clock for Hooked {
    fn now(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::SeqCst))
    }

    fn sleep(&self, _: Duration) {}

    fn unix_millis(&self) -> u64 {
        self.look(&self.before);
        let now = self.millis.load(Ordering::SeqCst);
        self.look(&self.after);
        now
    }
}

/// A state that reads may return: the keys present, with the number of each value.
type State = BTreeMap<u8, u32>;

/// The expected content of the database.
struct Story {
    now: u64,
    /// The number of each key and its expiry, 0 for none.
    entries: BTreeMap<u8, (u32, u64)>,
    number: u32,
    /// The states since the list was last cleared, in order.
    states: Vec<State>,
    /// The first call that failed during a read.
    failed: Option<String>,
}

impl Story {
    /// Returns the current state.
    fn state(&self) -> State {
        let alive = |expiry: u64| expiry == 0 || expiry > self.now;
        let alive = self.entries.iter().filter(|(_, (_, e))| alive(*e));
        alive.map(|(key, (number, _))| (*key, *number)).collect()
    }

    fn note(&mut self) {
        let state = self.state();
        self.states.push(state);
    }

    /// Adds a random operation to a batch, and applies it here.
    fn write(&mut self, batch: &mut WriteBatch, rng: &mut fastrand::Rng, ranges: bool) {
        let key = rng.u8(..KEYS);
        self.number += 1;
        let value = self.number.to_be_bytes();
        match rng.u8(..if ranges { 10 } else { 8 }) {
            0..4 => {
                batch.put([key], value);
                self.entries.insert(key, (self.number, 0));
            }
            4..7 => {
                let ttl = rng.u64(1..12);
                batch.put_with_ttl([key], value, Duration::from_millis(ttl));
                self.entries.insert(key, (self.number, self.now + ttl));
            }
            7 => {
                batch.delete([key]);
                self.entries.remove(&key);
            }
            _ => {
                let end = rng.u8(key..=KEYS);
                batch.delete_range([key]..[end]);
                self.entries.retain(|k, _| !(key..end).contains(k));
            }
        }
    }
}

/// The database, its clock and its expected content.
#[derive(Clone)]
struct World {
    db: Db,
    clock: Arc<Hooked>,
    story: Arc<Mutex<Story>>,
}

impl World {
    /// Makes a random change. Without `steps` there are no background steps and no range deletes: a
    /// caller that asks for the time may hold the list of snapshots, which these wait for. With
    /// threads of the store, which wait for that list while others wait for them, only the clock
    /// jumps then.
    fn act(&self, rng: &mut fastrand::Rng, steps: bool) -> terrace::Result<()> {
        let is_manual = self.db.options().background.workers == Workers::Manual;
        let from = if steps || is_manual { 0 } else { 8 };
        match rng.u8(from..if steps { 16 } else { 12 }) {
            0..8 => {
                let mut batch = WriteBatch::new();
                let mut story = lock(&self.story);
                let count = rng.u8(1..4);
                (0..count).for_each(|_| story.write(&mut batch, rng, steps));
                let durability = match rng.u8(..4) {
                    0 => Durability::Volatile,
                    1 => Durability::Sync,
                    _ => Durability::Buffered,
                };
                self.db.write(batch, durability)?;
                story.note();
            }
            8..12 => {
                let mut story = lock(&self.story);
                story.now += rng.u64(1..12);
                self.clock.set(story.now);
                story.note();
            }
            12 => self.db.flush()?,
            13 if rng.bool() => self.db.drain()?,
            _ => {
                for _ in 0..rng.u8(1..12) {
                    let pick = rng.usize(..);
                    if is_manual {
                        self.db.step(pick)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns a hook that makes a few changes during a read.
    fn meanwhile(&self, rng: &mut fastrand::Rng, steps: bool) -> impl FnOnce() + Send + use<> {
        let (world, mut rng) = (self.clone(), rng.fork());
        move || {
            let clock = Arc::clone(&world.clock);
            clock.hold(|| {
                for _ in 0..rng.u8(1..4) {
                    if let Err(e) = world.act(&mut rng, steps) {
                        lock(&world.story).failed.get_or_insert(format!("{e:?}"));
                    }
                }
            });
        }
    }

    /// Draws the changes during the next read, and their moments.
    fn arm(&self, rng: &mut fastrand::Rng) -> terrace::Result<()> {
        // Empties the memtable, so that writes during the read need no new memtable and no
        // background step.
        self.db.flush()?;
        let mut story = lock(&self.story);
        story.states.clear();
        story.note();
        drop(story);
        if rng.u8(..3) > 0 {
            self.clock.before(rng.u32(..3), self.meanwhile(rng, false));
        }
        if rng.u8(..3) > 0 {
            self.clock.after(rng.u32(..3), self.meanwhile(rng, false));
        }
        #[cfg(feature = "canary")]
        if rng.bool() {
            terrace::testing::in_the_next_call(self.meanwhile(rng, true));
        }
        Ok(())
    }

    /// Returns the states since `arm`, or an error if a call failed.
    fn disarm(&self) -> Outcome<Vec<State>> {
        self.clock.disarm();
        #[cfg(feature = "canary")]
        terrace::testing::in_the_next_call(|| {});
        let mut story = lock(&self.story);
        match story.failed.take() {
            Some(failed) => Err(failed),
            None => Ok(std::mem::take(&mut story.states)),
        }
    }
}

/// Returns a pair as a key and the number of its value.
fn pair((key, value): (Vec<u8>, Vec<u8>)) -> Outcome<(u8, u32)> {
    let number = <[u8; 4]>::try_from(value).map(u32::from_be_bytes);
    match (key.as_slice(), number) {
        ([key], Ok(number)) => Ok((*key, number)),
        (key, number) => Err(format!("{key:?} with {number:?} is not one of these pairs")),
    }
}

fn pairs(pairs: impl Iterator<Item = terrace::Result<terrace::KeyValue>>) -> Outcome<State> {
    pairs
        .map(|found| pair(found.map_err(|e| format!("{e:?}"))?.into_pair()))
        .collect()
}

fn values(keys: &[[u8; 1]], found: Vec<Option<Vec<u8>>>) -> Outcome<State> {
    let found = keys.iter().zip(found);
    let found = found.filter_map(|(key, value)| Some((key.to_vec(), value?)));
    found.map(pair).collect()
}

/// Reads once, in a random way, and compares the result with the states during the read.
fn read(world: &World, rng: &mut fastrand::Rng) -> Outcome {
    let db = &world.db;
    let failed = |e: terrace::Error| format!("{e:?}");
    let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
    world.arm(rng).map_err(failed)?;
    let (name, found, of) = match rng.u8(..7) {
        way @ 0..3 => {
            let key = rng.u8(..KEYS);
            let value = match way {
                0 => db.get_with_expiry([key]).map_err(failed)?.map(|v| v.0),
                _ => db.get([key]).map_err(failed)?,
            };
            let found = values(&[[key]], vec![value])?;
            ("get", found, Some(key))
        }
        3 => {
            let found = db.multi_get(&keys).map_err(failed)?;
            ("multi_get", values(&keys, found)?, None)
        }
        4 => ("iter", pairs(db.iter().map_err(failed)?)?, None),
        5 => (
            "iter, backward",
            pairs(db.iter().map_err(failed)?.rev())?,
            None,
        ),
        _ => {
            let snapshot = db.snapshot().map_err(failed)?;
            let states = world.disarm()?;
            // The snapshot must show the same after any later change.
            world.arm(rng).map_err(failed)?;
            let first = values(&keys, snapshot.multi_get(&keys).map_err(failed)?)?;
            if !states.contains(&first) {
                return Err(format!("snapshot: {first:?} is not in {states:?}"));
            }
            for key in 0..KEYS {
                let value = snapshot.get([key]).map_err(failed)?;
                if values(&[[key]], vec![value])?.get(&key) != first.get(&key) {
                    return Err(format!("snapshot: key {key} is not as in {first:?}"));
                }
            }
            let again = pairs(snapshot.iter().map_err(failed)?)?;
            if again != first {
                return Err(format!("snapshot: {again:?} by an iterator, and {first:?}"));
            }
            world.disarm()?;
            return Ok(());
        }
    };
    let states = world.disarm()?;
    let explains = |state: &State| match of {
        Some(key) => state.get(&key) == found.get(&key),
        None => *state == found,
    };
    match states.iter().any(explains) {
        true => Ok(()),
        false => Err(format!("{name} of {of:?}: {found:?} is not in {states:?}")),
    }
}

/// Runs one case, drawn from `seed`.
pub fn once(seed: u64, medium: Medium) -> Outcome {
    let _case = watchdog::case(format!("moments on {medium}, seed {seed:#x}"));
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = scratch()?;
    let design = Design::ALL[rng.usize(..Design::ALL.len())];
    let mut options = settings::varied(&settings::small_of(design, medium), rng.u8(..));
    if rng.bool() {
        options.background = settings::background(seed);
    }
    if rng.u8(..32) == 0 {
        options = settings::default_of(design, medium);
    }
    let clock = Hooked::at(1000);
    let failed = |e: terrace::Error| format!("{e:?}");
    let db = Db::builder(folder.path())
        .options(options)
        .clock(Arc::clone(&clock) as Arc<dyn Clock>)
        .open()
        .map_err(failed)?;
    let world = World {
        db,
        clock,
        story: Arc::new(Mutex::new(Story {
            now: 1000,
            entries: BTreeMap::new(),
            number: 0,
            states: Vec::new(),
            failed: None,
        })),
    };
    for number in 0..READS {
        let _operation = watchdog::operation(("read", number));
        for _ in 0..rng.u8(..6) {
            world.act(&mut rng, true).map_err(failed)?;
        }
        read(&world, &mut rng).map_err(|e| format!("{design}, read {number}: {e}"))?;
    }
    Ok(())
}
