//! The oracle: what a database must, may and must not hold, now and after a crash.
//!
//! Each key has a chain of the writes that touched it, oldest first. Each write records which
//! crashes it must survive. After a crash a key shows the newest write that had to survive, or any
//! later one; anything else is a loss or an invention. A write that shows in one key must show in
//! all of its keys, unless a later write covers it.
//!
//! Invariants
//!   O1  Reads show the last write of a chain while nothing has crashed.
//!   O2  At most one write is unanswered; it is the last of its chains.
//!   O3  A value identifies one write, except that several writes may explain a short value or a
//!       delete; then the oracle accepts any explanation that is allowed.

mod look;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use terrace::{Db, Design, Durability};
use terrace_media::Medium;

use crate::script::{Entry, Key, SPACES, space_name};
use crate::value::{Value, shown};

use self::look::Found;

/// The result of a check. The error is a sentence.
pub type Outcome<T = ()> = Result<T, String>;

/// How a machine or process ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Crash {
    /// The process was killed; the machine keeps running.
    Process,
    /// Power failed.
    Power,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    write: u64,
    value: Option<Value>,
    /// When the value expires.
    expiry: Option<Duration>,
}

impl Version {
    /// Returns the value that reads show at a time.
    fn shown(&self, now: Duration) -> Option<Value> {
        self.value
            .filter(|_| self.expiry.is_none_or(|expiry| expiry > now))
    }
}

#[derive(Clone, Debug)]
struct Write {
    process: bool,
    power: bool,
    /// Whether the write was logged, so that a close makes it durable on every medium.
    logged: bool,
    keys: Vec<(u8, Key)>,
}

#[derive(Clone, Debug, Default)]
struct Space {
    /// Distinguishes successive keyspaces of one name.
    birth: u64,
    keys: BTreeMap<Key, Vec<Version>>,
}

/// The live pairs of every keyspace, with its birth.
pub type Live = BTreeMap<u8, (u64, BTreeMap<Key, Value>)>;

/// A change of the catalog without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Catalog {
    Creating(u8),
    Dropping(u8),
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Oracle {
    medium: Medium,
    /// The design, which determines what a flush, a drain and a close make durable.
    design: Design,
    spaces: BTreeMap<u8, Space>,
    writes: BTreeMap<u64, Write>,
    next: u64,
    catalog: Option<Catalog>,
    /// The elapsed time.
    now: Duration,
}

/// For each key, the writes that explain its value, oldest first.
type Explained = BTreeMap<(u8, Key), Vec<u64>>;

impl Oracle {
    /// Returns the oracle of an empty database.
    pub fn new(medium: Medium) -> Oracle {
        Oracle {
            medium,
            design: Design::MioDb,
            spaces: BTreeMap::from([(0, Space::default())]),
            writes: BTreeMap::new(),
            next: 1,
            catalog: None,
            now: Duration::ZERO,
        }
    }

    /// Sets the design of the database.
    #[must_use]
    pub fn of(mut self, design: Design) -> Oracle {
        self.design = design;
        self
    }

    /// Returns whether everything is durable once it has been drained or the database closed.
    pub fn keeps_what_is_drained(&self) -> bool {
        self.medium != Medium::Dram || self.design.keeps_table_files()
    }

    /// Returns the elapsed time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Advances the time.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    /// Returns the medium, which determines durability.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// Returns whether a keyspace exists.
    pub fn has_space(&self, space: u8) -> bool {
        self.spaces.contains_key(&space)
    }

    /// Returns when a keyspace was created, if it exists.
    pub fn birth(&self, space: u8) -> Option<u64> {
        self.spaces.get(&space).map(|s| s.birth)
    }

    /// Returns the value of a key.
    pub fn get(&self, space: u8, key: &Key) -> Option<Value> {
        let chain = self.spaces.get(&space)?.keys.get(key)?;
        chain.last()?.shown(self.now)
    }

    /// Returns whether the value of a key has a time to live, expired or not.
    pub fn expires(&self, space: u8, key: &Key) -> bool {
        let last = |s: &Space| s.keys.get(key)?.last()?.expiry;
        self.spaces.get(&space).and_then(last).is_some()
    }

    /// Returns the pairs that a scan of the keyspace must return.
    pub fn live_in(&self, space: u8) -> BTreeMap<Key, Value> {
        let Some(space) = self.spaces.get(&space) else {
            return BTreeMap::new();
        };
        let live = |(key, chain): (&Key, &Vec<Version>)| {
            Some((key.clone(), chain.last()?.shown(self.now)?))
        };
        space.keys.iter().filter_map(live).collect()
    }

    /// Returns the number of pairs in all keyspaces.
    pub fn live_count(&self) -> u64 {
        self.live()
            .values()
            .map(|(_, live)| live.len() as u64)
            .sum()
    }

    /// Returns all live pairs.
    pub fn live(&self) -> Live {
        let each = |(&space, s): (&u8, &Space)| (space, (s.birth, self.live_in(space)));
        self.spaces.iter().map(each).collect()
    }

    /// Records a write that is about to be made.
    pub fn begin(&mut self, entries: &[Entry]) -> u64 {
        let write = self.next;
        self.next += 1;
        let mut keys = BTreeSet::new();
        for entry in entries {
            let Some(space) = self.spaces.get_mut(&entry.space) else {
                continue;
            };
            if entry.until.is_none() {
                space.keys.entry(entry.key.clone()).or_default();
            }
            // A time to live is at least one millisecond.
            let ttl = entry
                .ttl
                .map(|ttl| Duration::from_millis(u64::from(ttl.max(1))));
            let expiry = ttl.map(|ttl| self.now + ttl);
            // Keys that were never written cannot show, so a range delete need not record them.
            let touched = space.keys.range_mut(&entry.key..);
            for (key, chain) in touched.take_while(|(key, _)| entry.touches(key)) {
                match chain.last_mut() {
                    // Later entries of a batch win.
                    Some(last) if last.write == write => {
                        (last.value, last.expiry) = (entry.value, expiry);
                    }
                    _ => chain.push(Version {
                        write,
                        value: entry.value,
                        expiry,
                    }),
                }
                keys.insert((entry.space, key.clone()));
            }
        }
        let keys = keys.into_iter().collect();
        let made = Write {
            process: false,
            power: false,
            logged: false,
            keys,
        };
        self.writes.insert(write, made);
        write
    }

    /// Records that the write succeeded.
    pub fn acknowledged(&mut self, write: u64, durability: Durability) {
        let medium = self.medium;
        if let Some(write) = self.writes.get_mut(&write) {
            write.logged = durability != Durability::Volatile;
            write.process = write.logged;
            write.power = match durability {
                Durability::Sync => true,
                Durability::Buffered => medium == Medium::Dax,
                Durability::Volatile => false,
            };
        }
        self.prune(write);
    }

    /// Records that the write was refused and must never show.
    pub fn refused(&mut self, write: u64) {
        let Some(gone) = self.writes.remove(&write) else {
            return;
        };
        for (space, key) in gone.keys {
            if let Some(space) = self.spaces.get_mut(&space)
                && let Some(chain) = space.keys.get_mut(&key)
            {
                chain.retain(|version| version.write != write);
                if chain.is_empty() {
                    space.keys.remove(&key);
                }
            }
        }
    }

    /// Records that everything answered so far has been flushed.
    pub fn flushed(&mut self) {
        // Without a pool the buffer is in memory. A design without a buffer flushes to files.
        if self.medium != Medium::Dram || !self.design.keeps_data_in_pool() {
            self.settle(|_| true);
        }
    }

    /// Records that everything answered so far has been drained.
    pub fn drained(&mut self) {
        if self.keeps_what_is_drained() {
            self.settle(|_| true);
        }
    }

    /// Records that the database was closed cleanly.
    pub fn closed(&mut self) {
        if self.keeps_what_is_drained() {
            self.settle(|_| true);
        } else {
            self.settle(|write| write.logged);
        }
    }

    /// Records that the database was opened on a medium, after its content was compared.
    pub fn opened_on(&mut self, medium: Medium) {
        // Data that a process left in the page cache is synced before an open on `Dax` returns.
        if self.medium == Medium::Mapped && medium == Medium::Dax {
            self.settle(|_| true);
        }
        self.medium = medium;
    }

    fn settle(&mut self, which: impl Fn(&Write) -> bool) {
        let mut settled = Vec::new();
        for (&id, write) in self.writes.iter_mut().filter(|(_, write)| which(write)) {
            write.process = true;
            write.power = true;
            settled.push(id);
        }
        for write in settled {
            self.prune(write);
        }
    }

    /// Forgets the versions that the write covers permanently.
    fn prune(&mut self, write: u64) {
        if !self.writes.get(&write).is_some_and(|write| write.power) {
            return;
        }
        // A write that is not in the map must survive every crash.
        let keys = self.writes.remove(&write).map(|write| write.keys);
        for (space, key) in keys.unwrap_or_default() {
            if let Some(space) = self.spaces.get_mut(&space)
                && let Some(chain) = space.keys.get_mut(&key)
                && let Some(at) = chain.iter().position(|version| version.write == write)
            {
                chain.drain(..at);
            }
        }
    }

    /// Records that a keyspace is about to be created.
    pub fn creating(&mut self, space: u8) {
        self.catalog = Some(Catalog::Creating(space));
    }

    /// Records that a keyspace is about to be dropped.
    pub fn dropping(&mut self, space: u8) {
        self.catalog = Some(Catalog::Dropping(space));
    }

    /// Records the result of the change of the catalog.
    pub fn catalog_answered(&mut self, success: bool) {
        let Some(change) = self.catalog.take() else {
            return;
        };
        match change {
            Catalog::Creating(space) if success => self.birth_of(space),
            Catalog::Dropping(space) if success => {
                self.spaces.remove(&space);
            }
            _ => {}
        }
    }

    fn birth_of(&mut self, space: u8) {
        let birth = self.next;
        self.next += 1;
        self.spaces.insert(
            space,
            Space {
                birth,
                keys: BTreeMap::new(),
            },
        );
    }

    /// Compares a whole database with the oracle while nothing has crashed.
    pub fn check_live(&self, db: &Db) -> Outcome {
        let seen = self.look(db)?;
        for space in 0..SPACES {
            if seen.contains_key(&space) != self.has_space(space) {
                return Err(format!("keyspace {} is there or not", space_name(space)));
            }
            let live = self.live_in(space);
            let Some(seen) = seen.get(&space) else {
                continue;
            };
            for key in live.keys().chain(seen.keys()) {
                let (expected, found) = (live.get(key), seen.get(key));
                if !same(expected.copied(), found.map(Found::bytes)) {
                    return Err(format!(
                        "{} {key:?}: expected {expected:?}, found {}",
                        space_name(space),
                        shown(found.map(Found::bytes))
                    ));
                }
            }
        }
        Ok(())
    }

    /// Compares a database that was opened after a crash. Returns the oracle that applies from now
    /// on.
    pub fn check_after(&self, crash: Crash, db: &Db) -> Outcome<Oracle> {
        let seen = self.look(db)?;
        let mut after = self.clone();
        after.catalog = None;
        for space in 0..SPACES {
            let unsure = match self.catalog {
                Some(Catalog::Creating(s) | Catalog::Dropping(s)) => s == space,
                None => false,
            };
            match (self.has_space(space), seen.contains_key(&space)) {
                (true, true) | (false, false) => {}
                (true, false) if unsure => {
                    after.spaces.remove(&space);
                }
                (false, true) if unsure => after.birth_of(space),
                (expected, _) => {
                    let is = if expected { "lost" } else { "back" };
                    return Err(format!("keyspace {} is {is}", space_name(space)));
                }
            }
        }
        // The writes that explain what each key shows, oldest first.
        let mut explained = Explained::new();
        for (&space, seen) in &seen {
            let Some(known) = after.spaces.get(&space) else {
                continue;
            };
            let unknown = seen.iter().find(|(key, _)| !known.keys.contains_key(*key));
            if let Some((key, value)) = unknown {
                let value = shown(Some(value.bytes()));
                return Err(format!(
                    "{} {key:?} was never written: {value}",
                    space_name(space)
                ));
            }
            for (key, chain) in &known.keys {
                let found = seen.get(key);
                let fits = self.explain(crash, chain, found);
                if fits.is_empty() {
                    return Err(format!(
                        "{} {key:?}: found {}, which is none of the possible states: {}",
                        space_name(space),
                        shown(found.map(Found::bytes)),
                        self.chain(crash, chain)
                    ));
                }
                explained.insert((space, key.clone()), fits);
            }
        }
        self.check_whole(&mut explained)?;
        after.collapse(crash, &explained);
        Ok(after)
    }

    fn chain(&self, crash: Crash, chain: &[Version]) -> String {
        let one = |version: &Version| {
            let must = if self.must(crash, version.write) {
                "must"
            } else {
                "may"
            };
            format!("#{} {:?} {must}", version.write, version.value)
        };
        chain.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    fn must(&self, crash: Crash, write: u64) -> bool {
        self.writes.get(&write).is_none_or(|write| match crash {
            Crash::Process => write.process,
            Crash::Power => write.power,
        })
    }

    /// Returns the writes that may show and that explain `found`. 0 stands for never written.
    fn explain(&self, crash: Crash, chain: &[Version], found: Option<&Found>) -> Vec<u64> {
        let from = chain
            .iter()
            .rposition(|version| self.must(crash, version.write));
        let mut fits: Vec<u64> = Vec::new();
        if from.is_none() && found.is_none() {
            fits.push(0);
        }
        let allowed = &chain[from.unwrap_or(0)..];
        let shown = |version: &&Version| {
            same(version.shown(self.now), found.map(Found::bytes))
                && found.is_none_or(|found| found.expires == version.expiry.is_some())
        };
        let matching = allowed.iter().filter(shown);
        fits.extend(matching.map(|version| version.write));
        fits
    }

    /// Removes torn writes from the explanations: a write that does not show in one of its keys,
    /// and is not covered there, shows in none. Each key must keep an explanation.
    fn check_whole(&self, explained: &mut Explained) -> Outcome {
        // BOUND: every iteration removes at least one write.
        loop {
            let covered = |write: u64, key: &(u8, Key)| {
                let younger = self.birth(key.0).is_none_or(|birth| birth > write);
                let newest = explained.get(key).and_then(|fits| fits.last());
                younger || newest.is_none_or(|newest| *newest >= write)
            };
            let torn = self.writes.iter().find_map(|(&write, body)| {
                let key = body.keys.iter().find(|key| !covered(write, key))?;
                let claimed = body.keys.iter().any(|key| {
                    let fits = explained.get(key);
                    fits.is_some_and(|fits| fits.contains(&write))
                });
                claimed.then_some((write, key))
            });
            let Some((write, missing)) = torn else {
                return Ok(());
            };
            for (key, fits) in explained.iter_mut() {
                fits.retain(|fit| *fit != write);
                if fits.is_empty() {
                    return Err(format!(
                        "write #{write} shows in {} {:?} and not in {} {:?}",
                        space_name(key.0),
                        key.1,
                        space_name(missing.0),
                        missing.1
                    ));
                }
            }
        }
    }

    /// Adopts the content that was read.
    fn collapse(&mut self, crash: Crash, explained: &Explained) {
        for (&space, known) in &mut self.spaces {
            known.keys.retain(|key, chain| {
                let fits = explained.get(&(space, key.clone()));
                let newest = fits.and_then(|fits| fits.last()).copied().unwrap_or(0);
                chain.retain(|version| version.write <= newest);
                if crash == Crash::Power {
                    let behind = chain.len().saturating_sub(1);
                    chain.drain(..behind);
                }
                !chain.is_empty()
            });
        }
        let shown: BTreeSet<u64> = explained
            .values()
            .filter_map(|fits| fits.last().copied())
            .collect();
        if crash == Crash::Power {
            self.writes.clear();
        }
        for (_, write) in self.writes.iter_mut().filter(|(id, _)| shown.contains(id)) {
            write.process = true;
            write.logged = true;
        }
    }
}

fn same(value: Option<Value>, found: Option<&[u8]>) -> bool {
    match (value, found) {
        (None, None) => true,
        (Some(value), Some(found)) => value.is(found),
        _ => false,
    }
}
