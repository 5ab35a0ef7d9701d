//! Transient keyspaces, created, read and dropped during a run. The content of each is written by
//! one batch before any thread can read it, so a read returns all of it, or an error that the
//! keyspace is gone.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use terrace::{ErrorKind, Iter, Keyspace, WriteBatch};

use super::roster::{number, shared, value};
use super::seen::Seen;
use super::{Register, Stage, Writer, failed};
use crate::oracle::Outcome;

/// The number of keys in a transient keyspace.
const KEYS: u64 = 40;
/// The number of keyspaces kept, including dropped ones.
const KEPT: usize = 4;

const THERE: u8 = 0;
const GOING: u8 = 1;
const GONE: u8 = 2;

/// A transient keyspace.
pub(super) struct Comer {
    space: Keyspace,
    number: u64,
    state: AtomicU8,
}

/// The keyspaces that can be read, including dropped ones.
#[derive(Default)]
pub(super) struct Comers(Mutex<Vec<Arc<Comer>>>);

impl Comers {
    fn add(&self, comer: Arc<Comer>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(comer);
        if all.len() > KEPT {
            all.remove(0);
        }
    }

    fn draw(&self, rng: &mut fastrand::Rng) -> Option<Arc<Comer>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!all.is_empty()).then(|| Arc::clone(&all[rng.usize(..all.len())]))
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("{}{n:03}", (b'a' + (n % 3) as u8) as char).into_bytes()
}

impl Comer {
    /// Checks the result of a read. Returns `None` if the keyspace was being dropped.
    fn heard<T>(&self, how: &str, before: u8, said: terrace::Result<T>) -> Outcome<Option<T>> {
        match said {
            Ok(_) if before == GONE => Err(format!("{how} of a dropped keyspace succeeds")),
            Ok(found) => Ok(Some(found)),
            Err(e) if e.kind() != ErrorKind::Invalid => Err(format!("{how}: {e:?}")),
            Err(e) if self.state.load(Ordering::SeqCst) == THERE => {
                Err(format!("{how}: no thread drops the keyspace: {e:?}"))
            }
            Err(_) => Ok(None),
        }
    }

    fn check(&self, how: &str, key: &[u8], found: Option<&[u8]>) -> Outcome {
        match number(found)? {
            Some(number) if number == self.number => Ok(()),
            found => Err(format!(
                "{how} of {} in {}: {found:x?}, not {:x}",
                key.escape_ascii(),
                self.space.name(),
                self.number
            )),
        }
    }

    /// Reads in a random way.
    fn read(&self, stage: &Stage<'_>, rng: &mut fastrand::Rng) -> Outcome {
        let before = self.state.load(Ordering::SeqCst);
        let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
        let one = &keys[rng.usize(..keys.len())];
        stage.stand_still(rng);
        match rng.u8(..6) {
            0 => {
                if let Some(found) = self.heard("get", before, self.space.get(one))? {
                    self.check("get", one, found.as_deref())?;
                }
            }
            1 => {
                if let Some(found) = self.heard("multi-get", before, self.space.multi_get(&keys))? {
                    for (key, found) in keys.iter().zip(found) {
                        self.check("multi-get", key, found.as_deref())?;
                    }
                }
            }
            2 => {
                // A read that continues after a drop fails, or shows the previous content.
                let snapshot = stage.db.snapshot().map_err(failed("a snapshot"))?;
                let before = before.max(self.state.load(Ordering::SeqCst));
                for key in &keys {
                    let found = snapshot.get_in(&self.space, key);
                    let Some(found) = self.heard("get in a snapshot", before, found)? else {
                        return Ok(());
                    };
                    self.check("get in a snapshot", key, found.as_deref())?;
                }
                if let Some(iter) =
                    self.heard("scan of a snapshot", before, snapshot.iter_in(&self.space))?
                {
                    self.scan("scan of a snapshot", iter, rng.bool(), &keys)?;
                }
            }
            3 => {
                let letter = [b"abc"[rng.usize(..3)]];
                if let Some(iter) = self.heard("prefix", before, self.space.prefix(letter))? {
                    let keys: Vec<_> = keys.into_iter().filter(|k| k[0] == letter[0]).collect();
                    self.scan("prefix", iter, rng.bool(), &keys)?;
                }
            }
            _ => {
                if let Some(iter) = self.heard("scan", before, self.space.iter())? {
                    self.scan("scan", iter, rng.bool(), &keys)?;
                }
            }
        }
        Ok(())
    }

    /// Checks a scan. A scan that ends has returned everything; one that fails may have returned
    /// less.
    fn scan(&self, how: &str, mut iter: Iter, backward: bool, keys: &[Vec<u8>]) -> Outcome {
        let mut keys: Vec<&Vec<u8>> = keys.iter().collect();
        keys.sort();
        if backward {
            keys.reverse();
        }
        let mut keys = keys.into_iter();
        loop {
            let pair = if backward {
                iter.next_back()
            } else {
                iter.next()
            };
            let Some(pair) = pair else { break };
            // The scan was opened before the drop, so the keyspace may be gone by now.
            let Some(pair) = self.heard(how, THERE, pair)? else {
                return Ok(());
            };
            let expected = keys.next().map(Vec::as_slice);
            if expected != Some(pair.key()) {
                let found = pair.key().escape_ascii();
                return Err(format!("{how} gives {found}, not {expected:?}"));
            }
            self.check(how, pair.key(), Some(pair.value()))?;
            std::thread::yield_now();
        }
        match keys.next() {
            None => Ok(()),
            Some(key) => Err(format!(
                "{how} ends before {} without reporting a drop",
                key.escape_ascii()
            )),
        }
    }
}

impl Writer<'_> {
    /// Creates this writer's keyspace, or drops it.
    pub(super) fn come_or_go(&mut self, seen: &mut Seen) -> Outcome {
        let name = format!("comer-{}", self.id);
        if let Some(comer) = self.comer.take() {
            comer.state.store(GOING, Ordering::SeqCst);
            let dropped = self.stage.retried(|| self.stage.db.drop_keyspace(&name));
            if !dropped.map_err(failed("a drop"))? {
                return Err(format!("{name} is not there to be dropped"));
            }
            comer.state.store(GONE, Ordering::SeqCst);
            seen.drops += 1;
            return comer.read(self.stage, &mut self.rng);
        }
        let number = self.next(0);
        let made = self.stage.retried(|| self.stage.db.create_keyspace(&name));
        let space = made.map_err(failed("a keyspace"))?;
        let mut batch = WriteBatch::new();
        for n in 0..KEYS {
            batch.put_in(&space, key(n), value(number));
        }
        self.write(&batch)?;
        let comer = Arc::new(Comer {
            space,
            number,
            state: AtomicU8::new(THERE),
        });
        self.stage.comers.add(Arc::clone(&comer));
        self.comer = Some(comer);
        Ok(())
    }

    /// Writes to a transient keyspace and to a shared key in one batch: both writes take effect, or
    /// neither if the keyspace is gone.
    pub(super) fn write_beside(&mut self, seen: &mut Seen) -> Outcome {
        let Some(comer) = self.stage.comers.draw(&mut self.rng) else {
            return Ok(());
        };
        let n = self.rng.u64(..self.stage.run.shared());
        let (space, key) = shared(n);
        let number = self.next(0);
        let mut batch = WriteBatch::new();
        batch.put_in(&self.stage.spaces[space], key, value(number));
        // Writes a key that readers do not read.
        batch.put_in(&comer.space, b"\xff", value(number));
        batch.delete_in(&comer.space, b"\xff");
        let before = comer.state.load(Ordering::SeqCst);
        let called = self.stage.tick();
        let durability = self.durability();
        let written = self
            .stage
            .retried(|| self.stage.db.write(batch.clone(), durability));
        let returned = self.stage.tick();
        if comer.heard("a batch", before, written)?.is_some() {
            let span = (called, returned);
            seen.wrote(
                Register::Shared(n),
                span,
                Some(number),
                "batch during a drop",
            );
        }
        Ok(())
    }
}

impl Stage<'_> {
    /// Reads one of the transient keyspaces.
    pub(super) fn read_comer(&self, rng: &mut fastrand::Rng) -> Outcome {
        match self.comers.draw(rng) {
            Some(comer) => comer.read(self, rng),
            None => Ok(()),
        }
    }
}
