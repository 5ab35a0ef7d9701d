//! A client of a soak: a thread that writes keys of its own and checks all it reads.

mod held;

use std::collections::VecDeque;
use std::time::{Duration, Instant, UNIX_EPOCH};

use terrace::{Db, Durability, ErrorKind, Iter, Keyspace, WriteBatch};

use self::held::Held;
use super::Weather;
use super::book::{Book, Known, Moment, SPACES, calendar, compare, step};
use super::keys::{check_foreign, check_pair, key, owner, pair_key, space_name};
use super::watch::{Kind, Watch};
use crate::oracle::Outcome;
use crate::value::Value;

/// The number of keys of a client in each keyspace.
const KEYS: u32 = 250;
struct Moving {
    iter: Iter,
    left: VecDeque<(Vec<u8>, Known)>,
    moment: Moment,
}

/// See the module documentation.
pub(super) struct Client {
    id: u8,
    clients: u8,
    rng: fastrand::Rng,
    pub(super) book: Book,
    tag: u64,
    /// How often the client has created its own keyspace.
    births: u64,
    spaces: Vec<Option<Keyspace>>,
    held: Vec<Held>,
    moving: Option<Moving>,
}

impl Client {
    pub(super) fn new(id: u8, clients: u8, seed: u64) -> Client {
        Client {
            id,
            clients,
            rng: fastrand::Rng::with_seed(seed ^ (u64::from(id) << 56)),
            book: Book::default(),
            tag: u64::from(id) << 48,
            births: 0,
            spaces: Vec::new(),
            held: Vec::new(),
            moving: None,
        }
    }

    /// Gets the keyspaces after the database was opened.
    pub(super) fn enter(&mut self, db: &Db) -> Outcome {
        let failed = |e: terrace::Error| format!("a keyspace: {e:?}");
        let shared = db.create_keyspace("shared").map_err(failed)?;
        let own = db.keyspace(&space_name(2, self.id)).map_err(failed)?;
        if own.is_none() && self.book.pairs(2).next().is_some() {
            return Err(format!("the keyspace of client {} is gone", self.id));
        }
        self.spaces = vec![Some(db.default_keyspace()), Some(shared), own];
        Ok(())
    }

    /// Releases the keyspaces before the database is closed.
    pub(super) fn leave(&mut self) {
        self.spaces.clear();
    }

    /// Releases everything that pins versions.
    pub(super) fn let_go(&mut self, watch: &Watch) {
        self.held.clear();
        self.moving = None;
        self.tell(watch);
    }

    /// Works until the round is over.
    pub(super) fn work(&mut self, db: &Db, watch: &Watch, weather: Weather) -> Outcome {
        let mut turn = 0u32;
        while !watch.is_over() {
            self.turn(db, watch, weather)
                .map_err(|e| format!("client {}: {e}", self.id))?;
            watch.count();
            turn += 1;
            let now = Instant::now();
            let before = self.held.len();
            self.held.retain(|held| held.until > now);
            if turn.is_multiple_of(64) || self.held.len() < before {
                self.tell(watch);
            }
            if !weather.pause().is_zero() {
                std::thread::sleep(weather.pause());
            }
        }
        self.tell(watch);
        Ok(())
    }

    fn tell(&self, watch: &Watch) {
        let oldest = self.held.iter().map(|held| held.written).min();
        watch.tell(self.id, self.book.live_bytes(), oldest, self.held.len());
    }

    fn turn(&mut self, db: &Db, watch: &Watch, weather: Weather) -> Outcome {
        match self.rng.u32(0..1000) {
            0..300 => self.put(watch, weather, false),
            300..340 => self.put(watch, weather, true),
            340..420 => self.delete(watch),
            420..490 => self.batch(db, watch, weather),
            490..500 => self.delete_range(watch),
            500..503 => self.ingest(watch, weather),
            503..530 => self.write_pair(db, watch),
            530..560 => self.read_pair(db, watch),
            560..760 => self.get(watch),
            760..800 => self.multi_get(watch),
            800..850 => self.scan(watch),
            850..853 => self.scan_default(watch),
            853..870 => self.take_snapshot(db, watch, weather),
            870..950 => self.get_held(watch),
            950..965 => self.scan_held(watch),
            965..997 => self.move_iter(watch),
            _ => self.own_space(db, watch),
        }
    }

    /// Returns the result of a call, or `None` if something was full.
    fn answered<T>(
        &mut self,
        what: &str,
        watch: &Watch,
        said: terrace::Result<T>,
    ) -> Outcome<Option<T>> {
        match said {
            Ok(answer) => Ok(Some(answer)),
            Err(e) if e.kind() == ErrorKind::Full => {
                watch.refused();
                // Snapshots may hold the space, so one is sometimes released.
                if !self.held.is_empty() && self.rng.u8(0..4) == 0 {
                    self.held.remove(0);
                    self.tell(watch);
                }
                self.moving = self.moving.take().filter(|_| self.rng.u8(0..4) > 0);
                std::thread::sleep(Duration::from_millis(2));
                Ok(None)
            }
            Err(e) => Err(format!("{what} fails: {e:?}")),
        }
    }

    fn number(&mut self) -> u32 {
        match self.rng.bool() {
            true => self.rng.u32(0..KEYS / 10),
            false => self.rng.u32(0..KEYS),
        }
    }

    fn some_key(&mut self) -> (usize, Vec<u8>) {
        let space = self.rng.usize(..SPACES);
        (space, key(space, self.id, self.number()))
    }

    fn value(&mut self, largest: u32) -> Value {
        self.tag += 1;
        // All orders of magnitude are equally likely.
        let most = f64::from(largest) / 10.0;
        let len = 10.0 * most.powf(self.rng.f64());
        Value {
            tag: self.tag,
            len: (len as u32).clamp(10, largest),
        }
    }

    fn expiry(&mut self) -> u64 {
        calendar() + [0, 20, 500, 5_000, 60_000, 3_600_000][self.rng.usize(..6)]
    }

    fn durability(&mut self) -> Durability {
        match self.rng.u8(0..50) {
            0 => Durability::Sync,
            _ => Durability::Buffered,
        }
    }

    fn put(&mut self, watch: &Watch, weather: Weather, expires: bool) -> Outcome {
        let (space, key) = self.some_key();
        let Some(handle) = self.spaces[space].clone() else {
            return Ok(());
        };
        let value = self.value(weather.largest_value());
        let (bytes, durability) = (value.bytes(), self.durability());
        let expiry = expires.then(|| self.expiry());
        let said = watch.timed(Kind::Write, || match expiry {
            Some(at) => {
                handle.put_with_expiry(&key, &bytes, UNIX_EPOCH + Duration::from_millis(at))
            }
            None => handle.put_with(&key, &bytes, durability),
        })?;
        if self.answered("a put", watch, said)?.is_some() {
            watch.wrote(key.len() + bytes.len());
            let expiry = expiry.map(|at| (at, at));
            self.book.set(space, &key, Some(Known { value, expiry }));
        }
        Ok(())
    }

    fn delete(&mut self, watch: &Watch) -> Outcome {
        let (space, key) = self.some_key();
        let Some(handle) = self.spaces[space].clone() else {
            return Ok(());
        };
        let said = watch.timed(Kind::Write, || handle.delete(&key))?;
        if self.answered("a delete", watch, said)?.is_some() {
            self.book.set(space, &key, None);
        }
        Ok(())
    }

    fn delete_range(&mut self, watch: &Watch) -> Outcome {
        // The default keyspace has keys of other clients in every range.
        let space = self.rng.usize(1..SPACES);
        let Some(handle) = self.spaces[space].clone() else {
            return Ok(());
        };
        let from = self.number();
        let to = from + self.rng.u32(1..KEYS / 4);
        let (from, to) = (key(space, self.id, from), key(space, self.id, to));
        let said = watch.timed(Kind::Write, || {
            handle.delete_range(from.clone()..to.clone())
        })?;
        if self.answered("a range delete", watch, said)?.is_some() {
            self.book.delete_range(space, &from, &to);
        }
        Ok(())
    }

    fn batch(&mut self, db: &Db, watch: &Watch, weather: Weather) -> Outcome {
        let mut batch = WriteBatch::new();
        let mut made = Vec::new();
        for _ in 0..self.rng.usize(2..10) {
            let (space, key) = self.some_key();
            let Some(handle) = self.spaces[space].clone() else {
                continue;
            };
            let value = self.value(weather.largest_value().min(4 << 10));
            let expiry = (self.rng.u8(0..10) == 0).then(|| self.expiry());
            let known = match (self.rng.u8(0..5), expiry) {
                (0, _) => {
                    batch.delete_in(&handle, &key);
                    None
                }
                (_, Some(at)) => {
                    let end = UNIX_EPOCH + Duration::from_millis(at);
                    batch.put_with_expiry_in(&handle, &key, value.bytes(), end);
                    Some(value)
                }
                (_, None) => {
                    batch.put_in(&handle, &key, value.bytes());
                    Some(value)
                }
            };
            let expiry = expiry.map(|at| (at, at));
            made.push((space, key, known.map(|value| Known { value, expiry })));
        }
        let (bytes, durability) = (batch.size_bytes(), self.durability());
        let said = watch.timed(Kind::Write, || db.write(batch, durability))?;
        if self.answered("a batch", watch, said)?.is_some() {
            watch.wrote(bytes);
            for (space, key, known) in made {
                self.book.set(space, &key, known);
            }
        }
        Ok(())
    }

    fn ingest(&mut self, watch: &Watch, weather: Weather) -> Outcome {
        // A database allows one ingest at a time.
        let Some(_turn) = watch.ingest_turn() else {
            return Ok(());
        };
        let space = self.rng.usize(..SPACES);
        let Some(handle) = self.spaces[space].clone() else {
            return Ok(());
        };
        let from = self.number();
        let numbers = from..from + self.rng.u32(5..60);
        let pairs: Vec<(Vec<u8>, Value)> = numbers
            .map(|number| {
                let value = self.value(weather.largest_value().min(8 << 10));
                (key(space, self.id, number), value)
            })
            .collect();
        let said = watch.timed(Kind::Whole, || {
            let mut ingest = handle.ingest()?;
            for (key, value) in &pairs {
                ingest.add(key, value.bytes())?;
            }
            ingest.finish()
        })?;
        if matches!(&said, Err(e) if e.kind() == ErrorKind::Unsupported) {
            return Ok(());
        }
        if self.answered("an ingest", watch, said)?.is_some() {
            for (key, value) in pairs {
                watch.wrote(key.len() + value.len as usize);
                let known = Known {
                    value,
                    expiry: None,
                };
                self.book.set(space, &key, Some(known));
            }
        }
        Ok(())
    }

    fn write_pair(&mut self, db: &Db, watch: &Watch) -> Outcome {
        let (key, value) = (pair_key(self.id), self.value(1000));
        let mut batch = WriteBatch::new();
        for handle in self.spaces[..2].iter().flatten() {
            batch.put_in(handle, &key, value.bytes());
        }
        let said = watch.timed(Kind::Write, || db.write(batch, Durability::Buffered))?;
        if self.answered("a batch", watch, said)?.is_some() {
            watch.wrote(2 * (key.len() + value.len as usize));
            for space in 0..2 {
                let known = Known {
                    value,
                    expiry: None,
                };
                self.book.set(space, &key, Some(known));
            }
        }
        Ok(())
    }

    /// Checks that a batch of any client is visible as a whole.
    fn read_pair(&mut self, db: &Db, watch: &Watch) -> Outcome {
        let client = self.rng.u8(..self.clients);
        let spaces = self.spaces.clone();
        watch.timed(Kind::Read, || {
            let snapshot = db.snapshot().map_err(|e| format!("a snapshot: {e:?}"))?;
            check_pair(client, |space, key| match &spaces[space] {
                Some(handle) => snapshot.get_in(handle, key),
                None => Ok(None),
            })
        })?
    }

    fn get(&mut self, watch: &Watch) -> Outcome {
        let (space, key) = self.some_key();
        let Some(handle) = &self.spaces[space] else {
            return Ok(());
        };
        let (found, moment) = Moment::of(|| watch.timed(Kind::Read, || handle.get(&key)));
        let found = found?.map_err(|e| format!("a get fails: {e:?}"))?;
        self.book
            .check_get((space, &key), found.as_deref(), moment)
            .map_err(|e| format!("a get: {e}"))
    }

    fn multi_get(&mut self, watch: &Watch) -> Outcome {
        let (space, _) = self.some_key();
        let Some(handle) = self.spaces[space].clone() else {
            return Ok(());
        };
        let keys: Vec<Vec<u8>> = (0..self.rng.usize(1..12))
            .map(|_| key(space, self.id, self.number()))
            .collect();
        let (found, moment) = Moment::of(|| watch.timed(Kind::Read, || handle.multi_get(&keys)));
        let found = found?.map_err(|e| format!("a multi-get fails: {e:?}"))?;
        for (key, found) in keys.iter().zip(&found) {
            self.book
                .check_get((space, key), found.as_deref(), moment)
                .map_err(|e| format!("a multi-get: {e}"))?;
        }
        Ok(())
    }

    /// Scans own keys of the shared or the own keyspace, forward or backward.
    fn scan(&mut self, watch: &Watch) -> Outcome {
        let space = self.rng.usize(1..SPACES);
        let Some(handle) = self.spaces[space].clone() else {
            return Ok(());
        };
        let (first, back) = (self.number(), self.rng.bool());
        let last = first + self.rng.u32(1..KEYS);
        let (from, to) = (key(space, self.id, first), key(space, self.id, last));
        let pairs = self.book.pairs(space);
        let pairs = pairs.filter(|(key, _)| *key >= from.as_slice() && *key < to.as_slice());
        let whole = watch.timed(Kind::Scan, || {
            let (iter, moment) = Moment::of(|| handle.range(from.clone()..to.clone()));
            let Some(iter) = begun(iter)? else {
                return Ok(false);
            };
            match back {
                true => compare(pairs.rev(), iter.rev(), moment, &|_| true),
                false => compare(pairs, iter, moment, &|_| true),
            }
        })?;
        self.unless_refused(watch, whole)
    }

    /// Scans all of the default keyspace and compares own keys exactly, those of others for
    /// plausibility.
    fn scan_default(&mut self, watch: &Watch) -> Outcome {
        let Some(handle) = self.spaces[0].clone() else {
            return Ok(());
        };
        let (back, mut foreign) = (self.rng.bool(), Ok(()));
        let id = self.id;
        let whole = watch.timed(Kind::Scan, || {
            let (iter, moment) = Moment::of(|| handle.iter());
            let Some(iter) = begun(iter)? else {
                return Ok(false);
            };
            let looked = |pair: terrace::Result<terrace::KeyValue>| {
                if let Ok(pair) = &pair
                    && let Some(of) = owner(0, pair.key())
                    && of != id
                    && foreign.is_ok()
                {
                    foreign = check_foreign(of, pair.key(), pair.value());
                }
                pair
            };
            let mine = |key: &[u8]| owner(0, key) == Some(id);
            let pairs = self.book.pairs(0);
            match back {
                true => compare(pairs.rev(), iter.rev().map(looked), moment, &mine),
                false => compare(pairs, iter.map(looked), moment, &mine),
            }
        })?;
        self.unless_refused(watch, whole)?;
        foreign
    }

    fn unless_refused(&mut self, watch: &Watch, whole: Outcome<bool>) -> Outcome {
        if !whole? {
            watch.refused();
            self.moving = None;
        }
        Ok(())
    }

    /// Advances an iterator that stays open across other calls, or opens one.
    fn move_iter(&mut self, watch: &Watch) -> Outcome {
        let Some(moving) = &mut self.moving else {
            let Some(handle) = self.spaces[1].clone() else {
                return Ok(());
            };
            let (iter, moment) = Moment::of(|| handle.prefix([b'a' + self.id]));
            let pairs = self.book.pairs(1);
            let left = pairs
                .filter(|(key, _)| key.starts_with(&[b'a' + self.id]))
                .map(|(key, known)| (key.to_vec(), known));
            self.moving = begun(iter)?.map(|iter| Moving {
                iter,
                left: left.collect(),
                moment,
            });
            return Ok(());
        };
        let Moving { iter, left, moment } = moving;
        for _ in 0..self.rng.usize(1..30) {
            let back = self.rng.bool();
            let pair = watch.timed(Kind::Read, || match back {
                true => iter.next_back(),
                false => iter.next(),
            })?;
            let pair = match pair.transpose() {
                Ok(pair) => pair,
                Err(e) if e.kind() == ErrorKind::Full => {
                    watch.refused();
                    self.moving = None;
                    return Ok(());
                }
                Err(e) => return Err(format!("an iterator fails: {e:?}")),
            };
            let mut passed = 0;
            let count = |_: &(&[u8], Known)| passed += 1;
            let known = left.iter().map(|(key, known)| (key.as_slice(), *known));
            let stepped = match back {
                true => step(&mut known.rev().inspect(count), pair.as_ref(), *moment),
                false => step(&mut known.inspect(count), pair.as_ref(), *moment),
            };
            stepped.map_err(|e| format!("an iterator that was kept: {e}"))?;
            match back {
                true => left.truncate(left.len() - passed),
                false => drop(left.drain(..passed)),
            }
            if pair.is_none() {
                self.moving = None;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Creates or drops the client's own keyspace.
    fn own_space(&mut self, db: &Db, watch: &Watch) -> Outcome {
        let name = space_name(2, self.id);
        match self.spaces[2].clone() {
            None => {
                let made = watch.timed(Kind::Whole, || db.create_keyspace(&name))?;
                self.spaces[2] = self.answered("making a keyspace", watch, made)?;
                self.births += u64::from(self.spaces[2].is_some());
            }
            Some(handle) => {
                let dropped = watch.timed(Kind::Whole, || db.drop_keyspace(&name))?;
                match self.answered("dropping a keyspace", watch, dropped)? {
                    None => return Ok(()),
                    Some(true) => {}
                    Some(false) => return Err(format!("{name} was not there to be dropped")),
                }
                self.spaces[2] = None;
                self.book.clear(2);
                let key = key(2, self.id, 1);
                match handle.get(&key) {
                    Err(e) if e.kind() == ErrorKind::Invalid => {}
                    other => return Err(format!("a dropped keyspace says {other:?}")),
                }
            }
        }
        Ok(())
    }

    /// Records that everything was deleted and the own keyspace dropped.
    pub(super) fn forget_all(&mut self) {
        self.spaces.truncate(2);
        self.spaces.push(None);
        (0..SPACES).for_each(|space| self.book.clear(space));
    }
}

/// Returns a new iterator, or `None` if there was no memory for it.
fn begun(iter: terrace::Result<Iter>) -> Outcome<Option<Iter>> {
    match iter {
        Ok(iter) => Ok(Some(iter)),
        Err(e) if e.kind() == ErrorKind::Full => Ok(None),
        Err(e) => Err(format!("a scan fails: {e:?}")),
    }
}
