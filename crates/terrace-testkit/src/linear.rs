//! Writers and readers on real threads while merges and drains run; what they saw is checked as
//! histories (`history.rs`).
//!
//! | keys | written by | checked |
//! |---|---|---|
//! | shared | every writer, never deleted | as registers |
//! | owned | one writer, deleted too, singly and by range, put with expiry, loaded in bulk | as registers of one writer |
//! | groups | every writer, all keys of a group in one batch, over two keyspaces | as one register, and all equal |
//! | steady | nobody, after the start | in every scan exactly once |

mod keys;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use terrace::{Db, Design, Durability, ErrorKind, Iter, Keyspace, Options, Workers, WriteBatch};
use terrace_media::Medium;

use self::keys::{group_key, number, owned_key, shared_key, steady_key, value};
use crate::history::{Event, History};
use crate::oracle::Outcome;
use crate::place::Place;
use crate::settings;
use crate::watchdog;
use crate::world::verify;

const SHARED: u64 = 12;
const OWNED: u64 = 6;
const GROUPS: u64 = 4;
const GROUP_KEYS: u64 = 5;
const STEADY: u64 = 150;
/// Longer than any run: its clock stands still.
const LONG: Duration = Duration::from_secs(3600);

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Decides what the threads do; not in which order.
    pub seed: u64,
    /// The medium.
    pub medium: Medium,
    /// The design.
    pub design: Design,
    /// Threads that write.
    pub writers: u64,
    /// Threads that read.
    pub readers: u64,
    /// Operations of each writer.
    pub writes: u64,
    /// How many times the few keys of each kind there are. With few keys the same ones are written
    /// and read all the time; with many, a merge takes many batches, and reads meet it half done.
    pub spread: u64,
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
}

/// What a run did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Writes recorded.
    pub writes: u64,
    /// Reads recorded.
    pub reads: u64,
    /// Whole scans.
    pub scans: u64,
    /// Merges, drains and reclaims that ended meanwhile.
    pub jobs: u64,
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: &Tally) {
        self.writes += other.writes;
        self.reads += other.reads;
        self.scans += other.scans;
        self.jobs += other.jobs;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Register {
    Shared(u64),
    Owned(u64, u64),
    Group(u64),
}

/// What one thread saw.
#[derive(Default)]
struct Seen {
    histories: BTreeMap<Register, History>,
    scans: u64,
}

impl Seen {
    fn of(&mut self, register: Register) -> &mut History {
        self.histories.entry(register).or_default()
    }
}

struct Stage<'a> {
    run: &'a Run,
    db: &'a Db,
    side: Keyspace,
    clock: AtomicU64,
    writing: AtomicU64,
    failed: AtomicBool,
}

fn failed(what: &str) -> impl Fn(terrace::Error) -> String {
    move |e| format!("{what}: {e:?}")
}

impl Stage<'_> {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn write(&self, writer: u64) -> Outcome<Seen> {
        let mut rng = fastrand::Rng::with_seed(self.run.seed ^ (writer + 1) << 40);
        let mut seen = Seen::default();
        for turn in 0..self.run.writes {
            if self.failed.load(Ordering::Relaxed) {
                break;
            }
            let _operation = watchdog::operation(("turn of a writer", turn));
            let tag = ((writer + 1) << 48) | (turn + 1);
            let called;
            if writer == 0 && rng.u8(0..40) == 0 {
                self.ingest(&mut rng, &mut seen, tag)?;
                continue;
            }
            let (register, written) = match rng.u8(0..10) {
                0..4 => {
                    let n = rng.u64(0..self.run.shared());
                    called = self.tick();
                    self.db
                        .put(shared_key(n), value(tag))
                        .map_err(failed("a put"))?;
                    (Register::Shared(n), Some(tag))
                }
                4..7 => {
                    let n = rng.u64(0..self.run.owned());
                    let key = owned_key(writer, n);
                    called = self.tick();
                    let written = match rng.u8(0..12) {
                        0 => {
                            self.delete_range(writer, n, &mut rng, &mut seen)?;
                            continue;
                        }
                        1..4 => {
                            self.db.delete(key).map_err(failed("a delete"))?;
                            None
                        }
                        4 => {
                            // A moment that is past makes it a delete.
                            let put = self.db.put_with_expiry(key, value(tag), UNIX_EPOCH);
                            put.map_err(failed("a put that is past"))?;
                            None
                        }
                        5 => {
                            let put = self.db.put_with_ttl(key, value(tag), LONG);
                            put.map_err(failed("a put with a time to live"))?;
                            Some(tag)
                        }
                        _ => {
                            self.db.put(key, value(tag)).map_err(failed("a put"))?;
                            Some(tag)
                        }
                    };
                    (Register::Owned(writer, n), written)
                }
                _ => {
                    let group = rng.u64(0..self.run.groups());
                    let mut batch = WriteBatch::new();
                    for n in 0..GROUP_KEYS {
                        batch.put(group_key(group, n), value(tag));
                        batch.put_in(&self.side, group_key(group, n), value(tag));
                    }
                    called = self.tick();
                    let sync = if rng.u8(0..8) == 0 {
                        Durability::Sync
                    } else {
                        Durability::Buffered
                    };
                    self.db.write(batch, sync).map_err(failed("a batch"))?;
                    (Register::Group(group), Some(tag))
                }
            };
            let returned = self.tick();
            seen.of(register).writes.push(Event {
                called,
                returned,
                value: written,
                how: "write",
            });
            if rng.u8(0..4) == 0 {
                self.read_one(&mut rng, &mut seen)?;
            }
        }
        Ok(seen)
    }

    /// Deletes a writer's keys from the `n`-th on, some or all of them, by one call.
    fn delete_range(
        &self,
        writer: u64,
        n: u64,
        rng: &mut fastrand::Rng,
        seen: &mut Seen,
    ) -> Outcome {
        let end = n + 1 + rng.u64(0..self.run.owned() - n);
        let called = self.tick();
        let deleted = self
            .db
            .delete_range(owned_key(writer, n)..owned_key(writer, end));
        deleted.map_err(failed("a range delete"))?;
        let returned = self.tick();
        for n in n..end {
            seen.of(Register::Owned(writer, n)).writes.push(Event {
                called,
                returned,
                value: None,
                how: "range delete",
            });
        }
        Ok(())
    }

    /// Loads some of the first writer's keys in bulk.
    fn ingest(&self, rng: &mut fastrand::Rng, seen: &mut Seen, tag: u64) -> Outcome {
        let called = self.tick();
        let mut ingest = match self.db.ingest() {
            Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(()),
            begun => begun.map_err(failed("an ingest"))?,
        };
        let mut loaded = Vec::new();
        for n in 0..self.run.owned() {
            if rng.bool() {
                let added = ingest.add(owned_key(0, n), value(tag));
                added.map_err(failed("an entry of an ingest"))?;
                loaded.push(n);
            }
        }
        ingest.finish().map_err(failed("the end of an ingest"))?;
        let returned = self.tick();
        for n in loaded {
            seen.of(Register::Owned(0, n)).writes.push(Event {
                called,
                returned,
                value: Some(tag),
                how: "ingest",
            });
        }
        Ok(())
    }

    fn read_one(&self, rng: &mut fastrand::Rng, seen: &mut Seen) -> Outcome {
        if rng.u8(0..4) == 0 {
            // What nobody writes any more soon lies in the bottom.
            let n = rng.u64(0..STEADY);
            let found = self.db.get(steady_key(n)).map_err(failed("a get"))?;
            if number(found.as_deref())? != Some(n) {
                return Err(format!("a get misses steady key {n} or its value"));
            }
            return Ok(());
        }
        let (register, key) = if rng.bool() {
            let n = rng.u64(0..self.run.shared());
            (Register::Shared(n), shared_key(n))
        } else {
            let (writer, n) = (rng.u64(0..self.run.writers), rng.u64(0..self.run.owned()));
            (Register::Owned(writer, n), owned_key(writer, n))
        };
        let called = self.tick();
        let found = self.db.get(key).map_err(failed("a get"))?;
        let returned = self.tick();
        let value = number(found.as_deref())?;
        seen.of(register).reads.push(Event {
            called,
            returned,
            value,
            how: "get",
        });
        Ok(())
    }

    fn read(&self, reader: u64) -> Outcome<Seen> {
        let mut rng = fastrand::Rng::with_seed(self.run.seed ^ (reader + 1) << 50);
        let mut seen = Seen::default();
        while self.writing.load(Ordering::Relaxed) > 0 && !self.failed.load(Ordering::Relaxed) {
            let _operation = watchdog::operation("turn of a reader");
            match rng.u8(0..40) {
                0..28 => self.read_one(&mut rng, &mut seen)?,
                28..34 => self.read_group(&mut rng, &mut seen)?,
                34..37 => self.read_snapshot(&mut rng, &mut seen)?,
                _ => self.scan(&mut rng, &mut seen)?,
            }
        }
        Ok(seen)
    }

    fn read_group(&self, rng: &mut fastrand::Rng, seen: &mut Seen) -> Outcome {
        let group = rng.u64(0..self.run.groups());
        let keys: Vec<_> = (0..GROUP_KEYS).map(|n| group_key(group, n)).collect();
        let called = self.tick();
        let found = self.db.multi_get(&keys).map_err(failed("a multi-get"))?;
        let returned = self.tick();
        let values: Vec<_> = found
            .iter()
            .map(|found| number(found.as_deref()))
            .collect::<Result<_, _>>()?;
        let value = equal(&values, "a multi-get")?;
        seen.of(Register::Group(group)).reads.push(Event {
            called,
            returned,
            value,
            how: "multi-get",
        });
        Ok(())
    }

    fn read_snapshot(&self, rng: &mut fastrand::Rng, seen: &mut Seen) -> Outcome {
        let called = self.tick();
        let snapshot = self.db.snapshot().map_err(failed("a snapshot"))?;
        let returned = self.tick();
        for _ in 0..3 {
            let group = rng.u64(0..self.run.groups());
            let mut values = Vec::new();
            for n in 0..GROUP_KEYS {
                let key = group_key(group, n);
                let found = snapshot.get(&key).map_err(failed("a get in a snapshot"))?;
                values.push(number(found.as_deref())?);
                std::thread::yield_now();
                let found = snapshot
                    .get_in(&self.side, &key)
                    .map_err(failed("a get in a snapshot"))?;
                values.push(number(found.as_deref())?);
            }
            let value = equal(&values, "a snapshot")?;
            seen.of(Register::Group(group)).reads.push(Event {
                called,
                returned,
                value,
                how: "snapshot",
            });
        }
        if rng.bool() {
            let iter = snapshot.iter().map_err(failed("a scan of a snapshot"))?;
            self.check_scan(iter, rng.bool(), (called, returned), seen)?;
        }
        Ok(())
    }

    fn scan(&self, rng: &mut fastrand::Rng, seen: &mut Seen) -> Outcome {
        let called = self.tick();
        let iter = self.db.iter().map_err(failed("a scan"))?;
        let returned = self.tick();
        self.check_scan(iter, rng.bool(), (called, returned), seen)
    }

    /// Everything that a scan gives was there at one moment, between these two.
    fn check_scan(
        &self,
        mut iter: Iter,
        backward: bool,
        (called, returned): (u64, u64),
        seen: &mut Seen,
    ) -> Outcome {
        let how = if backward { "scan backward" } else { "scan" };
        let mut pairs: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut last: Option<Vec<u8>> = None;
        loop {
            let next = if backward {
                iter.next_back()
            } else {
                iter.next()
            };
            let Some(pair) = next else { break };
            let (key, value) = pair.map_err(failed("a scan"))?.into_pair();
            if last
                .as_ref()
                .is_some_and(|last| if backward { *last <= key } else { *last >= key })
            {
                return Err(format!(
                    "a scan gives {:?} after {last:?}",
                    key.escape_ascii().to_string()
                ));
            }
            if pairs.len().is_multiple_of(16) {
                std::thread::yield_now();
            }
            last = Some(key.clone());
            pairs.insert(key, value);
        }
        for n in 0..STEADY {
            let found = pairs.remove(&steady_key(n));
            if found.as_deref() != Some(&value(n)[..]) {
                return Err(format!(
                    "a scan (backward: {backward}) misses steady key {n} or its value"
                ));
            }
        }
        let mut at = |register, key: &[u8], seen: &mut Seen| -> Outcome<_> {
            let value = number(pairs.remove(key).as_deref())?;
            if !matches!(register, Register::Group(_)) {
                seen.of(register).reads.push(Event {
                    called,
                    returned,
                    value,
                    how,
                });
            }
            Ok(value)
        };
        for n in 0..self.run.shared() {
            at(Register::Shared(n), &shared_key(n), seen)?;
        }
        for writer in 0..self.run.writers {
            for n in 0..self.run.owned() {
                at(Register::Owned(writer, n), &owned_key(writer, n), seen)?;
            }
        }
        for group in 0..self.run.groups() {
            let mut values = Vec::new();
            for n in 0..GROUP_KEYS {
                values.push(at(Register::Group(group), &group_key(group, n), seen)?);
            }
            let value = equal(&values, "a scan")?;
            seen.of(Register::Group(group)).reads.push(Event {
                called,
                returned,
                value,
                how,
            });
        }
        seen.scans += 1;
        match pairs.keys().next() {
            Some(key) => Err(format!(
                "a scan gives {}, which nobody wrote",
                key.escape_ascii()
            )),
            None => Ok(()),
        }
    }
}

fn equal(values: &[Option<u64>], what: &str) -> Outcome<Option<u64>> {
    let first = values.first().copied().flatten();
    if values.iter().any(|value| *value != first) {
        return Err(format!("{what} shows a part of a batch: {values:x?}"));
    }
    Ok(first)
}

impl Run {
    fn options(&self) -> Options {
        let mut options = settings::varied(
            &settings::small_of(self.design, self.medium),
            self.seed as u8,
        );
        options.pool.size_bytes = 8 << 20;
        options.front.memtable_bytes = options.front.memtable_bytes.min(8 << 10);
        if self.seed % 3 == 1 {
            // Everything drains at once, and extents are emptied all the time.
            options.buffer.levels = 1;
            options.bottom.garbage_percent = 10;
        }
        if self.spread > 1 {
            options.pool.size_bytes = 32 << 20;
            options.front.memtable_bytes = 64 << 10;
        }
        options.background.workers = Workers::Threads(2);
        options
    }

    /// Runs the threads on a new store in `folder` and checks what they saw.
    pub fn run(&self, folder: &std::path::Path) -> Outcome<Tally> {
        let _case = watchdog::case(format!("{self:?}"));
        let db = Place::folder(folder)
            .open(&self.options())
            .map_err(failed("opening"))?;
        let mut batch = WriteBatch::new();
        for n in 0..STEADY {
            batch.put(steady_key(n), value(n));
        }
        db.write(batch, Durability::Buffered)
            .map_err(failed("the start"))?;
        let stage = Stage {
            run: self,
            side: db.create_keyspace("side").map_err(failed("a keyspace"))?,
            db: &db,
            clock: AtomicU64::new(1),
            writing: AtomicU64::new(self.writers),
            failed: AtomicBool::new(false),
        };
        let seen = stage.play()?;
        let mut tally = Tally::default();
        let mut histories: BTreeMap<Register, History> = BTreeMap::new();
        for seen in seen {
            tally.scans += seen.scans;
            for (register, history) in seen.histories {
                tally.writes += history.writes.len() as u64;
                tally.reads += history.reads.len() as u64;
                let all = histories.entry(register).or_default();
                all.writes.extend(history.writes);
                all.reads.extend(history.reads);
            }
        }
        for (register, history) in &histories {
            let checked = match register {
                Register::Owned(..) => history.check_one_writer(),
                _ => history.check_unique(),
            };
            checked.map_err(|e| format!("{register:?}: {e}"))?;
        }
        verify(&db, None)?;
        tally.jobs = db.metrics().jobs.iter().map(|job| job.count).sum();
        watchdog::watched("closing", || db.close()).map_err(failed("closing"))?;
        Ok(tally)
    }
}

impl Stage<'_> {
    fn play(&self) -> Outcome<Vec<Seen>> {
        let note = |outcome: Outcome<Seen>| {
            if outcome.is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
            outcome
        };
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for writer in 0..self.run.writers {
                threads.push(scope.spawn(move || {
                    let outcome = note(self.write(writer));
                    self.writing.fetch_sub(1, Ordering::Relaxed);
                    outcome
                }));
            }
            for reader in 0..self.run.readers {
                threads.push(scope.spawn(move || note(self.read(reader))));
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
