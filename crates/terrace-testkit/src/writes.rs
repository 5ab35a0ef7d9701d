//! Writes determined by a seed: those of each thread in a process that is ended at a random moment,
//! and their replay into an oracle afterwards.
//!
//! Only the progress of each thread must survive the process. The next write of each was in flight.
//! Each thread has its own keys, so the order between threads does not matter.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use terrace::{Db, Durability, ErrorKind, Keyspace, WriteBatch};

use crate::oracle::{Oracle, Outcome};
use crate::script::{Entry, Key, space_name};
use crate::value::{Value, shown};
use crate::watchdog;

/// The number of writing threads.
pub(crate) const THREADS: u64 = 3;
/// BOUND: a thread of a process that is never killed stops after this many writes.
const WRITES_MAX: u64 = 400_000;

/// The sizes of memtables in the options of these processes.
const MEMTABLES: [u32; 3] = [4 << 10, 8 << 10, 32 << 10];

/// Times to live in milliseconds: expired when the entry is written, and not expired in any life.
const PAST: u32 = 1;
pub(crate) const FUTURE: u32 = 24 * 3600 * 1000;

/// The parameters that determine the writes of one life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    pub(crate) seed: u64,
    pub(crate) life: u64,
    /// Whether the store supports ingest.
    pub(crate) ingests: bool,
}

/// The progress of a thread. Each recorded call must survive the end of the process.
pub(crate) trait Progress {
    /// Records how many writes were answered.
    fn done(&mut self, writes: u64) -> io::Result<()>;
    /// Records that the write with this number, about to be recorded as answered, was refused.
    fn refused(&mut self, turn: u64) -> io::Result<()>;
}

/// Counts of answered writes.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Answered {
    pub(crate) writes: u64,
    pub(crate) refusals: u64,
}

/// The writes of one thread in one life.
struct Writes {
    rng: fastrand::Rng,
    thread: u64,
    tag: u64,
    /// Whether the store supports ingest.
    ingests: bool,
}

impl Writes {
    fn new(course: &Course, thread: u64) -> Writes {
        let seed = course.seed ^ (course.life << 8) ^ (thread << 56);
        Writes {
            rng: fastrand::Rng::with_seed(seed),
            thread,
            tag: (course.life << 32) | (thread << 28),
            ingests: course.ingests,
        }
    }

    fn entry(&mut self) -> Entry {
        let key = Key(vec![b'a' + self.thread as u8, self.rng.u8(0..60)]);
        self.tag += 1;
        let len = match self.rng.u8(0..60) {
            0 | 1 => self.rng.u32(8..6000),
            // The size of a memtable or an eighth of one, or slightly less, by about the overhead
            // of an entry.
            2 => MEMTABLES[self.rng.usize(..3)] / [1, 8][self.rng.usize(..2)] - self.rng.u32(..150),
            _ => self.rng.u32(8..150),
        };
        let value = (self.rng.u8(0..4) > 0).then_some(Value { tag: self.tag, len });
        let mut entry = Entry {
            until: None,
            ttl: None,
            space: self.rng.u8(0..4) / 3,
            key,
            value,
        };
        match (self.rng.u8(0..40), entry.value) {
            (0, _) => {
                // Deletes a range of this thread's keys.
                let end = entry.key.0[1].saturating_add(self.rng.u8(1..25));
                entry.until = Some(Key(vec![entry.key.0[0], end]));
                entry.value = None;
            }
            (1..4, Some(_)) => entry.ttl = Some([PAST, FUTURE][self.rng.usize(..2)]),
            _ => {}
        }
        entry
    }

    /// Returns pairs of one keyspace for an ingest.
    fn pairs(&mut self) -> Vec<Entry> {
        let space = self.rng.u8(0..2);
        let mut pairs = BTreeMap::new();
        for _ in 0..self.rng.usize(3..30) {
            let mut entry = self.entry();
            self.tag += 1;
            (entry.space, entry.until) = (space, None);
            entry.value = Some(Value {
                tag: self.tag,
                len: self.rng.u32(8..150),
            });
            pairs.insert(entry.key.clone(), entry);
        }
        pairs.into_values().collect()
    }

    /// Returns the next write and its durability. `None` stands for an ingest.
    fn next(&mut self) -> (Vec<Entry>, Option<Durability>) {
        // A database allows one ingest at a time.
        if self.ingests && self.thread == 0 && self.rng.u8(0..100) == 0 {
            return (self.pairs(), None);
        }
        let durability = match self.rng.u8(0..100) {
            0..5 => Durability::Sync,
            5..8 => Durability::Volatile,
            _ => Durability::Buffered,
        };
        let count = if self.rng.u8(0..5) == 0 {
            self.rng.usize(2..8)
        } else {
            1
        };
        let entries = (0..count).map(|_| self.entry()).collect();
        (entries, Some(durability))
    }
}

fn moment(ttl: u32) -> SystemTime {
    match ttl {
        PAST => UNIX_EPOCH,
        ttl => SystemTime::now() + Duration::from_millis(u64::from(ttl)),
    }
}

fn batch_of(entries: &[Entry], spaces: &[Keyspace]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for entry in entries {
        let (space, key) = (&spaces[usize::from(entry.space)], &entry.key);
        match (entry.value, entry.ttl, &entry.until) {
            (Some(value), None, _) => batch.put_in(space, key, value.bytes()),
            (Some(value), Some(ttl), _) => {
                batch.put_with_expiry_in(space, key, value.bytes(), moment(ttl))
            }
            (None, _, None) => batch.delete_in(space, key),
            (None, _, Some(end)) => batch.delete_range_in(space, key.clone()..end.clone()),
        };
    }
    batch
}

fn ingest(pairs: &[Entry], spaces: &[Keyspace]) -> terrace::Result<()> {
    let space = usize::from(pairs.first().map_or(0, |pair| pair.space));
    let mut ingest = spaces[space].ingest()?;
    for pair in pairs {
        let value = pair.value.map(Value::bytes).unwrap_or_default();
        match pair.ttl {
            Some(ttl) => ingest.add_with_expiry(&pair.key, value, moment(ttl))?,
            None => ingest.add(&pair.key, value)?,
        }
    }
    ingest.finish().map(|_| ())
}

/// Applies an entry to the values that its thread reads from then on.
fn show(mine: &mut BTreeMap<(u8, Key), Option<Value>>, entry: &Entry) {
    if entry.until.is_some() {
        let touched = mine
            .iter_mut()
            .filter(|((space, key), _)| *space == entry.space && entry.touches(key));
        touched.for_each(|(_, value)| *value = None);
        return;
    }
    let value = entry.value.filter(|_| entry.ttl != Some(PAST));
    mine.insert((entry.space, entry.key.clone()), value);
}

/// Writes until the process is killed.
pub(crate) fn write(course: &Course, db: &Db, thread: u64, progress: &mut dyn Progress) -> Outcome {
    let failed = |e: io::Error| format!("cannot report progress: {e}");
    let mut writes = Writes::new(course, thread);
    let spaces = [
        db.default_keyspace(),
        db.create_keyspace(&space_name(1))
            .map_err(|e| format!("a keyspace: {e:?}"))?,
    ];
    let mut mine: BTreeMap<(u8, Key), Option<Value>> = BTreeMap::new();
    for turn in 0..WRITES_MAX {
        let _operation = watchdog::operation(("write", thread, turn));
        let (entries, durability) = writes.next();
        let written = match durability {
            Some(durability) => db.write(batch_of(&entries, &spaces), durability),
            None => ingest(&entries, &spaces),
        };
        match written {
            Ok(()) => entries.iter().for_each(|entry| show(&mut mine, entry)),
            Err(e) if e.kind() == ErrorKind::Full => progress.refused(turn).map_err(failed)?,
            Err(e) => return Err(format!("a write fails: {e:?}")),
        }
        progress.done(turn + 1).map_err(failed)?;
        if let Some(((space, key), value)) = mine.iter().nth(turn as usize % 97) {
            let found = spaces[usize::from(*space)].get(key);
            let found = found.map_err(|e| format!("a get fails: {e:?}"))?;
            if found
                .as_deref()
                .map(|bytes| value.is_some_and(|v| v.is(bytes)))
                != value.map(|_| true)
            {
                let found = shown(found.as_deref());
                return Err(format!("{key:?}: expected {value:?}, found {found}"));
            }
        }
    }
    Ok(())
}

/// Records the writes of a thread in the oracle: `done` were answered, and the next one was in
/// flight.
pub(crate) fn note(
    course: &Course,
    thread: u64,
    done: u64,
    refused: &[u64],
    oracle: &mut Oracle,
) -> Answered {
    let mut answered = Answered::default();
    let mut writes = Writes::new(course, thread);
    for turn in 0..=done {
        let (entries, durability) = writes.next();
        let write = oracle.begin(&entries);
        if refused.contains(&turn) {
            oracle.refused(write);
            answered.refusals += 1;
        } else if turn < done {
            // An ingest is durable when it returns.
            oracle.acknowledged(write, durability.unwrap_or(Durability::Sync));
            answered.writes += 1;
        }
    }
    // Entries that were expired when written are expired by now.
    oracle.wait(Duration::from_millis(u64::from(PAST)));
    answered
}
