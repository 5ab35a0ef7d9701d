//! Damage: a small database with data in every component is written to files, some of the bytes in
//! use are changed, and the result is opened, read in every way, verified and used.
//!
//! For any damage: no call panics, hangs or takes unbounded memory; no key shows bytes that were
//! never written for it; and a key shows another value than its last one only if opening fails, a
//! call fails or `verify` finds a problem. A log may also end earlier: damage at its end looks like
//! a record that a crash interrupted, even after a close.
//!
//! One case in four damages two places. If opening fails, and always in another case in four, the
//! database is repaired: the result opens, verifies, and shows values that were written. Each key
//! that does not show its last value is in a reported loss, and the report has no losses if it
//! states that everything was intact.
//!
//! One database in eight has values of one size, so that nodes start at the same offsets in many
//! pages, and half of its damage replaces a page with another one, so that each node in it can be
//! sound. After one crash in eight the machine has rebooted, so that lists may be rebuilt from
//! nodes.

mod examine;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{RwLock, RwLockWriteGuard};

use terrace::{Db, Design, Durability, Error, Options, Workers};
use terrace_media::Medium;

use self::examine::Examination;
use crate::oracle::Outcome;
use crate::place::{Place, scratch};
use crate::script::Key;
use crate::value::Value;
use crate::watchdog::{self, watched};
use crate::{settings, shrink};

/// The unit of changes: a cache line.
const LINE: usize = 64;
/// A page of a medium.
const PAGE: usize = 4096;
/// A limit of address space in bytes, more than any case needs.
const MEMORY_MAX: u64 = 2 << 30;
/// The number of keys in a specimen.
const KEYS: u64 = 90;

/// A database as files, with the history of its writes.
pub struct Specimen {
    seed: u64,
    medium: Medium,
    options: Options,
    closed: bool,
    /// Whether the machine has rebooted after the crash.
    restarted: bool,
    /// The size of all values, if it is the same.
    uniform: Option<u32>,
    /// Whether logs count like tables: damage to flushed records in them must be found.
    logs_count: bool,
    files: BTreeMap<String, Vec<u8>>,
    /// For every file, the offsets of the lines that are not zero.
    used: BTreeMap<String, Vec<usize>>,
    /// The values ever written for each key, in order.
    history: BTreeMap<Key, Vec<Option<Value>>>,
    /// For each key, how many of its writes must show.
    settled: BTreeMap<Key, usize>,
}

/// One kind of damage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// One bit is flipped.
    Bit,
    /// One byte is changed.
    Byte,
    /// A word of eight bytes is changed.
    Word,
    /// A line of 64 bytes is zeroed.
    Line,
    /// A page is zeroed.
    Page,
    /// A page is replaced with another one.
    Misdirected,
    /// The file is truncated.
    Cut,
}

const KINDS: [Kind; 7] = [
    Kind::Bit,
    Kind::Byte,
    Kind::Word,
    Kind::Line,
    Kind::Page,
    Kind::Misdirected,
    Kind::Cut,
];

/// The result of a case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Opening fails.
    Refused,
    /// Opening succeeds and verify, or a read, finds the damage.
    Found,
    /// Nothing that is read is wrong.
    Harmless,
    /// Harmless at first, but later writes and drains found the damage.
    FoundLater,
    /// The end of the log is lost, as after a slightly earlier crash.
    Shorter,
}

/// Counts of results by kind of damage.
#[derive(Clone, Default, Debug)]
pub struct Tally(BTreeMap<(Kind, Class), u64>);

impl Tally {
    /// Counts a case.
    pub fn count(&mut self, kind: Kind, class: Class) {
        *self.0.entry((kind, class)).or_default() += 1;
    }

    /// Returns the number of cases.
    pub fn cases(&self) -> u64 {
        self.0.values().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Class::{Found, FoundLater, Harmless, Refused, Shorter};
        let classes = [Refused, Found, FoundLater, Shorter, Harmless];
        write!(f, "{:<12}", "damage")?;
        for class in classes {
            write!(f, " {:>10}", format!("{class:?}").to_lowercase())?;
        }
        for kind in KINDS {
            write!(f, "\n{:<12}", format!("{kind:?}").to_lowercase())?;
            for class in classes {
                write!(f, " {:>10}", self.0.get(&(kind, class)).unwrap_or(&0))?;
            }
        }
        Ok(())
    }
}

fn failed(what: &str) -> impl Fn(Error) -> String {
    move |e| format!("{what}: {e:?}")
}

impl Specimen {
    /// Makes the database of `seed`, which determines its medium, its options, whether it was
    /// closed, and its content.
    pub fn make(seed: u64) -> Outcome<Specimen> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let medium = [Medium::Dax, Medium::Dax, Medium::Mapped, Medium::Dram][rng.usize(..4)];
        let closed = rng.bool();
        let design = match medium {
            Medium::Dram => Design::MioDb,
            // A later design has its own seeds: the others stand for cases that once failed.
            _ if seed % 10 == 5 => Design::FlatLsm,
            _ if seed.is_multiple_of(5) => Design::MatrixKv,
            _ => [Design::MioDb, Design::MioDbSsd, Design::Leveled][seed as usize % 3],
        };
        let mut options = settings::varied(&settings::small_of(design, medium), rng.u8(..));
        options.pool.size_bytes = 2 << 20;
        Specimen::with(seed, medium, options, (closed, false))
    }

    /// As [`Specimen::make`], of a design in a pool on a medium.
    pub fn of(design: Design, seed: u64) -> Outcome<Specimen> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let medium = [Medium::Dax, Medium::Mapped][rng.usize(..2)];
        let closed = rng.u8(..4) == 0;
        let mut options = settings::varied(&settings::small_of(design, medium), rng.u8(..));
        options.pool.size_bytes = 2 << 20;
        Specimen::with(seed, medium, options, (closed, false))
    }

    /// As [`Specimen::make`], but some seeds use threads or default options, both for writing and
    /// for opening the database. A crash then is that of an idle database.
    pub fn drawn(seed: u64) -> Outcome<Specimen> {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0074_6872_6561_6473);
        let workers = settings::workers(seed);
        let by_default = settings::is_by_default(seed);
        if workers == Workers::Manual && !by_default {
            return Specimen::make(seed);
        }
        let medium = [Medium::Dax, Medium::Mapped, Medium::Dram][rng.usize(..3)];
        let closed = rng.bool();
        let design = match medium {
            Medium::Dram => Design::MioDb,
            _ => Design::ALL[rng.usize(..Design::ALL.len())],
        };
        let mut options = match by_default {
            true => settings::default_of(design, medium),
            false => settings::varied(&settings::small_of(design, medium), rng.u8(..)),
        };
        if !by_default {
            options.background.workers = workers;
        }
        Specimen::with(seed, medium, options, (closed, false))
    }

    /// Returns whether the files take long to write.
    pub fn is_large(&self) -> bool {
        self.files.values().map(Vec::len).sum::<usize>() > 16 << 20
    }

    fn has_threads(&self) -> bool {
        self.options.background.workers != Workers::Manual
    }

    /// Makes a closed database of a design, with all background work done.
    pub fn closed_of(design: Design, seed: u64) -> Outcome<Specimen> {
        let options = settings::small_of(design, Medium::Dax);
        Specimen::with(seed, Medium::Dax, options, (true, false))
    }

    /// Makes a database of a design without a pool, as a process crash or a close leaves it.
    /// Changed bytes in its logs must be found, except in writes after the last flush if it was not
    /// closed.
    pub fn of_logs(design: Design, closed: bool, seed: u64) -> Outcome<Specimen> {
        let mut options = settings::small_of(design, Medium::Dram);
        // Keeps logs instead of draining them.
        options.front.log_bytes_max = 1 << 30;
        Specimen::with(seed, Medium::Dram, options, (closed, true))
    }

    fn with(
        seed: u64,
        medium: Medium,
        options: Options,
        (closed, logs_count): (bool, bool),
    ) -> Outcome<Specimen> {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x6461_6d61_6765);
        let mut specimen = Specimen {
            seed,
            medium,
            options,
            closed,
            restarted: false,
            uniform: (seed % 8 == 5 && !logs_count).then_some([13, 21, 29][seed as usize / 8 % 3]),
            logs_count,
            files: BTreeMap::new(),
            used: BTreeMap::new(),
            history: BTreeMap::new(),
            settled: BTreeMap::new(),
        };
        let folder = scratch()?;
        let db = Place::folder(folder.path())
            .open(&specimen.options)
            .map_err(failed("making a specimen"))?;
        specimen.fill(&db, &mut rng).map_err(failed("filling"))?;
        if closed {
            // Otherwise a file may or may not have been removed by a compaction that the close
            // cancels.
            match specimen.has_threads() {
                true => db.wait_idle().map_err(failed("coming to rest"))?,
                false => while db.step(0).map_err(failed("a step"))? {},
            }
            db.close().map_err(failed("closing"))?;
            if specimen.logs_count {
                specimen.settle();
            }
            specimen.take(folder.path())?;
        } else {
            // Takes the files as a process crash leaves them.
            specimen.take(folder.path())?;
            if specimen.has_threads() {
                specimen.take_at_rest(&db, folder.path())?;
            }
            if seed % 4 == 1 && seed / 8 % 2 == 1 {
                specimen.restarted = true;
                specimen
                    .files
                    .get_mut("pool")
                    .into_iter()
                    .for_each(|pool| restart(pool));
            }
        }
        Ok(specimen)
    }

    /// Puts data into every component: the repository, merged and plain tables, the log.
    fn fill(&mut self, db: &Db, rng: &mut fastrand::Rng) -> terrace::Result<()> {
        let mut tag = 0;
        for round in 0..6 {
            let more = if self.uniform.is_some() { 200 } else { 0 };
            for _ in 0..rng.u64(20..120) + more {
                tag += 1;
                let key = Key(format!("{:03}", rng.u64(0..KEYS + 4 * more)).into_bytes());
                let len: u32 = [0, 5, 40, 200, 1500][rng.usize(..5)];
                let len = self.uniform.unwrap_or(len);
                let value = (rng.u8(0..5) > 0).then_some(Value { tag, len });
                match value {
                    Some(value) => db.put(&key, value.bytes())?,
                    None => db.delete(&key)?,
                }
                self.history.entry(key).or_default().push(value);
            }
            match round {
                1 if !self.logs_count => db.drain()?,
                1..5 => {
                    db.flush()?;
                    for _ in 0..rng.u8(0..6) {
                        let pick = rng.usize(..);
                        match self.has_threads() {
                            true => std::thread::yield_now(),
                            false => drop(db.step(pick)?),
                        }
                    }
                }
                _ => {}
            }
            // Without a pool, all data is in logs, and damage may lose more than one byte of one.
            let kept = match self.medium {
                Medium::Dram => self.logs_count && round > 0,
                Medium::Dax | Medium::Mapped => true,
            };
            if round < 5 && kept {
                if self.medium == Medium::Dram {
                    // A log is sealed by the sync that covers it.
                    tag += 1;
                    let value = Value { tag, len: 5 };
                    db.put_with("000", value.bytes(), Durability::Sync)?;
                    let key = Key(b"000".to_vec());
                    self.history.entry(key).or_default().push(Some(value));
                }
                self.settle();
            }
        }
        Ok(())
    }

    fn settle(&mut self) {
        let each = |(key, writes): (&Key, &Vec<_>)| (key.clone(), writes.len());
        self.settled = self.history.iter().map(each).collect();
    }

    /// Reads the files of an open database whose threads are idle. Two identical reads in a row
    /// show that no thread wrote in between.
    fn take_at_rest(&mut self, db: &Db, folder: &Path) -> Outcome {
        // BOUND: there are no more writes.
        for _ in 0..20 {
            db.wait_idle().map_err(failed("coming to rest"))?;
            let before = std::mem::take(&mut self.files);
            self.used.clear();
            self.take(folder)?;
            if self.files == before {
                return Ok(());
            }
        }
        Err("a database at rest changes its files".into())
    }

    fn take(&mut self, folder: &Path) -> Outcome {
        let fail = |e: std::io::Error| format!("reading the specimen: {e}");
        for entry in std::fs::read_dir(folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let bytes = std::fs::read(entry.path()).map_err(fail)?;
            let used = |at: &usize| bytes[*at..].iter().take(LINE).any(|&byte| byte != 0);
            let lines: Vec<usize> = (0..bytes.len()).step_by(LINE).filter(used).collect();
            if !lines.is_empty() {
                self.used.insert(name.clone(), lines);
            }
            self.files.insert(name, bytes);
        }
        Ok(())
    }

    fn design(&self) -> Design {
        self.options.design_of_new()
    }

    /// Damages the specimen. `case` determines how. Returns the files, the kind of damage and its
    /// place.
    fn damage(&self, case: u64) -> (BTreeMap<String, Vec<u8>>, Kind, String) {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ (case + 1) << 32);
        let mut files = self.files.clone();
        let (kind, mut place) = self.damage_one(&mut files, &mut rng);
        if case % 4 == 3 {
            let (_, second) = self.damage_one(&mut files, &mut rng);
            place = format!("{place} and {second}");
        }
        (files, kind, place)
    }

    /// Damages one place of `files`.
    fn damage_one(
        &self,
        files: &mut BTreeMap<String, Vec<u8>>,
        rng: &mut fastrand::Rng,
    ) -> (Kind, String) {
        let names: Vec<&String> = self.used.keys().collect();
        // The pool has most bytes, and the other files are in use entirely. With tables in files,
        // the pool is one file of many.
        let pool = names.iter().position(|name| *name == "pool");
        let share = if self.design().keeps_table_files() {
            3
        } else {
            7
        };
        let name = match pool {
            Some(at) if rng.u8(0..8) < share => names[at],
            _ => names[rng.usize(..names.len())],
        };
        let lines = &self.used[name];
        // The superblock and the manifest are few lines and come first.
        let line = match rng.u8(0..4) {
            0 => lines[rng.usize(..lines.len().min(24))],
            _ => lines[rng.usize(..lines.len())],
        };
        let kind = match rng.u8(0..16) {
            0..6 => Kind::Bit,
            6..9 => Kind::Byte,
            9..11 => Kind::Word,
            11 => Kind::Line,
            12 | 13 => Kind::Page,
            14 => Kind::Misdirected,
            _ => Kind::Cut,
        };
        let kind = match self.uniform {
            Some(_) if rng.bool() => Kind::Misdirected,
            _ => kind,
        };
        // The first damage may have cut off this place.
        let bytes = files.get_mut(name).filter(|bytes| line < bytes.len());
        let Some(bytes) = bytes else {
            return (kind, format!("nothing of {name}"));
        };
        let len = bytes.len();
        let at = rng.usize(line..(line + LINE).min(len));
        let place = format!("{kind:?} of {name} at {at:#x}");
        let page = at / PAGE * PAGE..(at / PAGE * PAGE + PAGE).min(len);
        match kind {
            Kind::Bit => bytes[at] ^= 1 << rng.u8(0..8),
            Kind::Byte => bytes[at] = bytes[at].wrapping_add(rng.u8(1..=255)),
            Kind::Word => {
                let word = at / 8 * 8..(at / 8 * 8 + 8).min(len);
                let values = [0, u64::MAX, rng.u64(..), rng.u64(0..1 << 21) / 8 * 8];
                let value = values[rng.usize(..4)].to_le_bytes();
                let count = word.len();
                bytes[word].copy_from_slice(&value[..count]);
            }
            Kind::Line => bytes[line..(line + LINE).min(len)].fill(0),
            Kind::Page => bytes[page].fill(0),
            Kind::Misdirected => {
                let other = lines[rng.usize(..lines.len())] / PAGE * PAGE;
                let other = if other < len { other } else { 0 };
                let count = page.len().min(len - other);
                let from = other..other + count;
                bytes.copy_within(from, page.start);
            }
            Kind::Cut => bytes.truncate(at),
        }
        (kind, place)
    }

    /// Runs one case.
    pub fn run(&self, case: u64) -> Outcome<(Kind, Class)> {
        let (files, kind, place) = self.damage(case);
        let what = format!("damage, seed {:#x}, case {case}, {place}", self.seed);
        let _case = watchdog::case(what);
        let repairs = case % 4 == 1 || self.uniform.is_some();
        let class = self.examine(&files, case.is_multiple_of(2), repairs);
        class.map(|class| (kind, class)).map_err(|failure| {
            let state = match (self.closed, self.restarted) {
                (true, _) => "closed",
                (false, false) => "crashed",
                (false, true) => "crashed and restarted",
            };
            format!(
                "{} on {} {state}, seed {:#x}, case {case}, {place}: {failure}",
                self.design(),
                self.medium,
                self.seed
            )
        })
    }

    /// Repairs the undamaged database, which must lose nothing.
    pub fn repair_undamaged(&self) -> Outcome {
        let folder = scratch()?;
        let outcome = self.lay_out(&self.files, folder.path())?.repair(true);
        outcome.map_err(|failure| {
            let (design, medium, seed) = (self.design(), self.medium, self.seed);
            format!("{design} on {medium}, seed {seed:#x}, undamaged: {failure}")
        })
    }

    /// Returns the names of the files that are not empty, with their sizes.
    pub fn files(&self) -> impl Iterator<Item = (&str, usize)> {
        // Only the length of a reserve is read.
        let is_read = |name: &str, bytes: &[u8]| !bytes.is_empty() && !name.starts_with("RESERVE-");
        let files = self.files.iter();
        let files = files.filter(move |(name, bytes)| is_read(name, bytes));
        files.map(|(name, bytes)| (name.as_str(), bytes.len()))
    }

    /// Returns the offsets of the lines of a file that are not zero.
    pub fn used(&self, name: &str) -> &[usize] {
        self.used.get(name).map_or(&[], Vec::as_slice)
    }

    /// Changes one byte of one file and checks whether the change is detected.
    pub fn flip(&self, name: &str, at: usize, mask: u8) -> Outcome<Class> {
        let mut files = self.files.clone();
        let byte = files.get_mut(name).and_then(|bytes| bytes.get_mut(at));
        *byte.ok_or("no such byte")? ^= mask;
        let class = self.examine(&files, false, false);
        class.map_err(|failure| {
            let design = self.design();
            format!("{design}, {mask:#x} in byte {at:#x} of {name}: {failure}")
        })
    }

    /// Writes files into a directory for an examination.
    fn lay_out(&self, files: &BTreeMap<String, Vec<u8>>, folder: &Path) -> Outcome<Examination> {
        for (name, bytes) in files {
            std::fs::write(folder.join(name), bytes).map_err(|e| format!("writing {name}: {e}"))?;
        }
        Ok(Examination {
            options: self.options.clone(),
            history: self.history.clone(),
            settled: self.settled.clone(),
            place: Place::folder(folder),
            uses: false,
            repairs: false,
        })
    }

    fn examine(
        &self,
        files: &BTreeMap<String, Vec<u8>>,
        uses: bool,
        repairs: bool,
    ) -> Outcome<Class> {
        let folder = scratch()?;
        let examination = Examination {
            uses,
            repairs,
            ..self.lay_out(files, folder.path())?
        };
        let _measured = MAPS.read().unwrap_or_else(|e| e.into_inner());
        let before = address_space();
        let outcome =
            shrink::guarded(|| watched("looking at what is damaged", || examination.run()));
        let grown = address_space().saturating_sub(before);
        match outcome {
            Ok(_) if grown > MEMORY_MAX => Err(format!("a call takes {grown} bytes")),
            other => other,
        }
    }
}

/// Makes a pool that was not closed look as if the machine had rebooted since, with all writes
/// preserved.
pub fn restart(pool: &mut [u8]) {
    for slot in pool.chunks_mut(PAGE).take(2) {
        // In a slot of the superblock, whose layout the format fixes, this changes the boot and the
        // checksum at the end.
        if slot.starts_with(b"TERRPOOL") {
            slot[80] ^= 0xff;
            terrace_media::decoder::seal(slot, 252);
        }
    }
}

/// Held to read while a case is measured, and to write by tests of the same process that map more
/// than a case may take.
static MAPS: RwLock<()> = RwLock::new(());

/// Keeps cases from being measured while a test of the same process maps large pools.
pub fn maps_large_pools() -> RwLockWriteGuard<'static, ()> {
    MAPS.write().unwrap_or_else(|e| e.into_inner())
}

/// Returns the peak address space of the process in bytes.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmPeak:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|number| number.trim().parse::<u64>().ok());
    peak.unwrap_or(0) << 10
}
