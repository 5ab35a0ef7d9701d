//! Calls that pause. A point read pauses between taking its view and searching, while its key
//! changes: range deletes, flushes, merges and drains happen. It may return the value of its start
//! or any later one, but no older one. An ingest pauses between handing its tables over and
//! publishing them, while jobs try to start: a snapshot of that moment must show all that the
//! ingest replaces.

use std::time::Duration;

use terrace::Db;
use terrace::testing::in_the_next_call;
use terrace_media::Medium;

use crate::oracle::Outcome;
use crate::place::{Place, scratch};
use crate::{settings, watchdog};

/// The number of keys, all of which a range delete may cover.
const KEYS: u8 = 8;
/// The number of calls in one case.
const CALLS: u32 = 60;
/// The time that jobs have to start during an ingest. If they cannot, all of it elapses.
const BESIDE_INGEST: Duration = Duration::from_millis(5);

fn failed(e: terrace::Error) -> String {
    format!("{e:?}")
}

fn number(value: Option<Vec<u8>>) -> Outcome<Option<u32>> {
    let number = |value: Vec<u8>| value.try_into().map(u32::from_be_bytes);
    let number = value.map(number).transpose();
    number.map_err(|value| format!("{value:?} is not a value"))
}

/// The state of one case.
struct Case {
    db: Db,
    rng: fastrand::Rng,
    /// The number of each key's value.
    last: Vec<Option<u32>>,
    number: u32,
}

/// Runs one case, drawn from `seed`.
pub fn once(seed: u64, medium: Medium) -> Outcome {
    let _case = watchdog::case(format!("stalled on {medium}, seed {seed:#x}"));
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = scratch()?;
    let options = settings::varied(&settings::small(medium), rng.u8(..));
    let db = Place::folder(folder.path())
        .open(&options)
        .map_err(failed)?;
    let mut case = Case {
        db,
        rng,
        last: vec![None; usize::from(KEYS)],
        number: 0,
    };
    for call in 0..CALLS {
        let _operation = watchdog::operation(("call", call));
        case.write().map_err(failed)?;
        let outcome = match case.rng.u8(..4) {
            // Tables in plain memory do not support ingest.
            0 if medium != Medium::Dram => case.ingest(),
            _ => case.read(),
        };
        outcome.map_err(|e| format!("call {call}: {e}"))?;
    }
    Ok(())
}

impl Case {
    fn write(&mut self) -> terrace::Result<()> {
        for _ in 0..self.rng.u8(1..12) {
            self.number += 1;
            let key = self.rng.u8(..KEYS);
            self.db.put([key], self.number.to_be_bytes())?;
            self.last[usize::from(key)] = Some(self.number);
            match self.rng.u8(..12) {
                0 => self.db.drain()?,
                1..4 => self.db.flush()?,
                _ => {}
            }
            for _ in 0..self.rng.u8(..4) {
                self.db.step(self.rng.usize(..))?;
            }
        }
        Ok(())
    }

    /// Reads while a range is deleted.
    fn read(&mut self) -> Outcome {
        let key = self.rng.u8(..KEYS);
        let (from, to) = (self.rng.u8(..KEYS), self.rng.u8(..=KEYS));
        let (writer, steps) = (self.db.clone(), self.rng.u32(..200));
        let mut picks = self.rng.fork();
        in_the_next_call(move || {
            // A failure here stops the store, so the call after the next one reports it.
            let _ = writer.delete_range([from]..[to]);
            let _ = writer.flush();
            for _ in 0..steps {
                let _ = writer.step(picks.usize(..));
            }
        });
        let found = number(self.db.get([key]).map_err(failed)?)?;
        let before = self.last[usize::from(key)];
        let deleted = (from..to).contains(&key);
        if found != before && !(deleted && found.is_none()) {
            return Err(format!(
                "key {key} had {before:?}, deleted {deleted}, and shows {found:?}"
            ));
        }
        (from..to).for_each(|key| self.last[usize::from(key)] = None);
        self.check(key)
    }

    fn check(&self, key: u8) -> Outcome {
        let (shown, last) = (self.db.get([key]), self.last[usize::from(key)]);
        match number(shown.map_err(failed)?)? {
            shown if shown == last => Ok(()),
            shown => Err(format!(
                "key {key} shows {shown:?} afterwards, not {last:?}"
            )),
        }
    }

    /// Ingests while jobs try to start and then a snapshot is taken.
    fn ingest(&mut self) -> Outcome {
        let always = self.rng.u8(..KEYS);
        let keys = (0..KEYS).filter(|key| *key == always || self.rng.bool());
        let keys: Vec<u8> = keys.collect();
        self.number += 1;
        let new = self.number;
        let (db, mut picks) = (self.db.clone(), self.rng.fork());
        let (jobs_in, jobs) = std::sync::mpsc::channel();
        let (snapshot_in, snapshot) = std::sync::mpsc::channel();
        let mut ingest = self.db.ingest().map_err(failed)?;
        for key in &keys {
            ingest.add([*key], new.to_be_bytes()).map_err(failed)?;
        }
        in_the_next_call(move || {
            let stepping = db.clone();
            let (done_in, done) = std::sync::mpsc::channel();
            let steps = move || -> terrace::Result<()> {
                for _ in 0..200 {
                    stepping.step(picks.usize(..))?;
                }
                let _ = done_in.send(());
                Ok(())
            };
            let _ = jobs_in.send(std::thread::spawn(steps));
            let _ = done.recv_timeout(BESIDE_INGEST);
            let _ = snapshot_in.send(db.snapshot());
        });
        let ended = ingest.finish();
        let missed = |_| "the ingest did not stand still";
        let jobs = jobs.try_recv().map_err(missed)?;
        let stepped = jobs.join().map_err(|_| "a step panics")?;
        stepped.map_err(failed)?;
        ended.map_err(failed)?;
        let snapshot = snapshot.try_recv().map_err(missed)?.map_err(failed)?;
        for key in 0..KEYS {
            let found = number(snapshot.get([key]).map_err(failed)?)?;
            let before = self.last[usize::from(key)];
            if found != before {
                return Err(format!(
                    "a snapshot during an ingest has {found:?} for key {key}, not {before:?}"
                ));
            }
        }
        for key in keys {
            self.last[usize::from(key)] = Some(new);
        }
        (0..KEYS).try_for_each(|key| self.check(key))
    }
}
