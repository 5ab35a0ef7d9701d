//! Damage: a small database with something in every place is written to files, some of the bytes in
//! use are changed, and what is left is opened, read every way, verified and used on.
//!
//! What must hold, whatever the damage: no call panics or hangs or takes memory without bound; no
//! key shows bytes that were never written for it; and a key shows another value than its last one
//! only where opening refuses, a call fails or `verify` finds a problem. A log may also end earlier:
//! damage at its end looks like a record that a crash interrupted, even after a close.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use terrace::{Db, Design, Error, ErrorKind, Iter, Options};
use terrace_media::Medium;

use crate::oracle::Outcome;
use crate::place::{Place, scratch};
use crate::script::Key;
use crate::value::{Value, shown};
use crate::{settings, shrink};

/// What changes bytes in units of lines.
const LINE: usize = 64;
/// A page of a medium.
const PAGE: usize = 4096;
/// Longer than any case takes unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// More than any case needs, in bytes of address space.
const MEMORY_MAX: u64 = 2 << 30;
/// Keys of a specimen.
const KEYS: u64 = 90;

/// A database as files, with what was written.
pub struct Specimen {
    seed: u64,
    medium: Medium,
    options: Options,
    closed: bool,
    files: BTreeMap<String, Vec<u8>>,
    /// For every file, the lines that are not empty.
    used: BTreeMap<String, Vec<usize>>,
    /// What was ever written for each key, in order.
    history: BTreeMap<Key, Vec<Option<Value>>>,
    /// For each key, how many of its writes have to show.
    settled: BTreeMap<Key, usize>,
}

/// One kind of damage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// One bit is another.
    Bit,
    /// One byte is another.
    Byte,
    /// A word of eight bytes is another.
    Word,
    /// A line of 64 bytes is empty.
    Line,
    /// A page is empty.
    Page,
    /// A page has the bytes of another one.
    Misdirected,
    /// The file ends early.
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

/// How a case ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Opening refuses.
    Refused,
    /// Opening succeeds and verify, or a read, finds the damage.
    Found,
    /// Nothing is wrong with what is read.
    Harmless,
    /// As harmless, but writing and draining found the damage later.
    FoundLater,
    /// The end of the log is gone, as after a crash that was a little earlier.
    Shorter,
}

/// How many cases ended how, by kind.
#[derive(Clone, Default, Debug)]
pub struct Tally(BTreeMap<(Kind, Class), u64>);

impl Tally {
    /// Counts a case.
    pub fn count(&mut self, kind: Kind, class: Class) {
        *self.0.entry((kind, class)).or_default() += 1;
    }

    /// Cases in all.
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
    /// The database of `seed`: its medium, its options, whether it was closed, and what it holds.
    pub fn make(seed: u64) -> Outcome<Specimen> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let medium = [Medium::Dax, Medium::Dax, Medium::Mapped, Medium::Dram][rng.usize(..4)];
        let closed = rng.bool();
        let design = match medium {
            Medium::Dram => Design::MioDb,
            _ => Design::ALL[seed as usize % Design::ALL.len()],
        };
        let mut options = settings::varied(&settings::small_of(design, medium), rng.u8(..));
        options.pool.size_bytes = 2 << 20;
        Specimen::with(seed, medium, options, closed)
    }

    /// A database of a design, closed, with all background work done.
    pub fn closed_of(design: Design, seed: u64) -> Outcome<Specimen> {
        let options = settings::small_of(design, Medium::Dax);
        Specimen::with(seed, Medium::Dax, options, true)
    }

    fn with(seed: u64, medium: Medium, options: Options, closed: bool) -> Outcome<Specimen> {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x6461_6d61_6765);
        let mut specimen = Specimen {
            seed,
            medium,
            options,
            closed,
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
            // Else a compaction that the close gives up may have removed a file, or not yet.
            while db.step(0).map_err(failed("a step"))? {}
            db.close().map_err(failed("closing"))?;
            specimen.take(folder.path())?;
        } else {
            // As a process crash leaves them.
            specimen.take(folder.path())?;
        }
        Ok(specimen)
    }

    /// Puts something in every place: the repository, merged and plain tables, the log.
    fn fill(&mut self, db: &Db, rng: &mut fastrand::Rng) -> terrace::Result<()> {
        let mut tag = 0;
        for round in 0..6 {
            for _ in 0..rng.u64(20..120) {
                tag += 1;
                let key = Key(format!("{:03}", rng.u64(0..KEYS)).into_bytes());
                let len = [0, 5, 40, 200, 1500][rng.usize(..5)];
                let value = (rng.u8(0..5) > 0).then_some(Value { tag, len });
                match value {
                    Some(value) => db.put(&key, value.bytes())?,
                    None => db.delete(&key)?,
                }
                self.history.entry(key).or_default().push(value);
            }
            match round {
                1 => db.drain()?,
                2..5 => {
                    db.flush()?;
                    for _ in 0..rng.u8(0..6) {
                        db.step(rng.usize(..))?;
                    }
                }
                _ => {}
            }
            // Without a pool, all that there is lies in logs.
            if round < 5 && self.medium != Medium::Dram {
                self.settle();
            }
        }
        Ok(())
    }

    fn settle(&mut self) {
        let each = |(key, writes): (&Key, &Vec<_>)| (key.clone(), writes.len());
        self.settled = self.history.iter().map(each).collect();
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

    /// Damages the specimen as `case` says; the kind, and where.
    fn damage(&self, case: u64) -> (BTreeMap<String, Vec<u8>>, Kind, String) {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ (case + 1) << 32);
        let mut files = self.files.clone();
        let names: Vec<&String> = self.used.keys().collect();
        // The pool has most bytes, and the other files have all of theirs in use; with tables in
        // files, it is one file of many.
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
        let Some(bytes) = files.get_mut(name) else {
            return (files, kind, String::new());
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
                let count = page.len().min(len - other);
                let from = other..other + count;
                bytes.copy_within(from, page.start);
            }
            Kind::Cut => bytes.truncate(at),
        }
        (files, kind, place)
    }

    /// Runs one case.
    pub fn run(&self, case: u64) -> Outcome<(Kind, Class)> {
        let (files, kind, place) = self.damage(case);
        let class = self.examine(&files, case.is_multiple_of(2));
        class.map(|class| (kind, class)).map_err(|failure| {
            let state = if self.closed { "closed" } else { "crashed" };
            format!(
                "{} on {} {state}, seed {:#x}, case {case}, {place}: {failure}",
                self.design(),
                self.medium,
                self.seed
            )
        })
    }

    /// The files that have bytes, and how many.
    pub fn files(&self) -> impl Iterator<Item = (&str, usize)> {
        let files = self.files.iter().filter(|(_, bytes)| !bytes.is_empty());
        files.map(|(name, bytes)| (name.as_str(), bytes.len()))
    }

    /// Where the lines of a file are that have something in them.
    pub fn used(&self, name: &str) -> &[usize] {
        self.used.get(name).map_or(&[], Vec::as_slice)
    }

    /// Changes one byte of one file, and looks whether somebody notices.
    pub fn flip(&self, name: &str, at: usize, mask: u8) -> Outcome<Class> {
        let mut files = self.files.clone();
        let byte = files.get_mut(name).and_then(|bytes| bytes.get_mut(at));
        *byte.ok_or("no such byte")? ^= mask;
        let class = self.examine(&files, false);
        class.map_err(|failure| {
            let design = self.design();
            format!("{design}, {mask:#x} in byte {at:#x} of {name}: {failure}")
        })
    }

    fn examine(&self, files: &BTreeMap<String, Vec<u8>>, uses: bool) -> Outcome<Class> {
        let folder = scratch()?;
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes)
                .map_err(|e| format!("writing {name}: {e}"))?;
        }
        let before = address_space();
        let (send, receive) = channel();
        let examination = Examination {
            options: self.options.clone(),
            history: self.history.clone(),
            settled: self.settled.clone(),
            place: Place::folder(folder.path()),
            uses,
        };
        std::thread::spawn(move || {
            // Nobody receives when the case was given up.
            let _ = send.send(shrink::guarded(|| examination.run()));
        });
        let outcome = match receive.recv_timeout(PATIENCE) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => Err("a call hangs".into()),
            Err(RecvTimeoutError::Disconnected) => Err("a case ends without a word".into()),
        };
        let grown = address_space().saturating_sub(before);
        match outcome {
            Ok(_) if grown > MEMORY_MAX => Err(format!("a call takes {grown} bytes")),
            other => other,
        }
    }
}

/// The most address space that the process ever had, in bytes.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmPeak:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|number| number.trim().parse::<u64>().ok());
    peak.unwrap_or(0) << 10
}

/// What one case looks at.
struct Examination {
    options: Options,
    history: BTreeMap<Key, Vec<Option<Value>>>,
    settled: BTreeMap<Key, usize>,
    place: Place,
    uses: bool,
}

/// What reading found.
#[derive(Default)]
struct Findings {
    /// A call failed.
    errors: u64,
    /// Keys whose value is not the last one, though it must be.
    wrong: Vec<String>,
    /// Keys that show an earlier value, as they may.
    earlier: BTreeSet<Key>,
}

impl Examination {
    fn run(mut self) -> Outcome<Class> {
        let db = match self.place.open(&self.options) {
            Ok(db) => db,
            Err(e) => return refused(&e),
        };
        let mut findings = Findings::default();
        self.read(&db, &mut findings)?;
        let report = db.verify(&mut |_| {}).map_err(failed("verify"))?;
        let flagged = findings.errors > 0 || !report.problems.is_empty();
        if flagged {
            return Ok(Class::Found);
        }
        if let Some(wrong) = findings.wrong.first() {
            return Err(format!("{wrong}, and verify finds nothing"));
        }
        let class = match findings.earlier.is_empty() {
            true => Class::Harmless,
            false => Class::Shorter,
        };
        if !self.uses {
            return Ok(class);
        }
        self.use_on(db, class)
    }

    /// Whether the value of a key is allowed. An error: it was never written.
    fn judge(&self, key: &Key, found: Option<&[u8]>, findings: &mut Findings) -> Outcome {
        let none = Vec::new();
        let writes = self.history.get(key).unwrap_or(&none);
        let same = |value: Option<Value>| match (value, found) {
            (Some(value), Some(found)) => value.is(found),
            (None, None) => true,
            _ => false,
        };
        let last = writes.last().copied().flatten();
        if same(last) {
            return Ok(());
        }
        let settled = self.settled.get(key).copied().unwrap_or(0);
        let mut allowed = writes[settled.saturating_sub(1)..].to_vec();
        if settled == 0 {
            allowed.push(None);
        }
        if allowed.iter().any(|value| same(*value)) {
            findings.earlier.insert(key.clone());
            return Ok(());
        }
        let known = found.is_none() || writes.iter().any(|value| same(*value));
        let text = format!("{key:?}: expected {last:?}, found {}", shown(found));
        if !known {
            return Err(format!("{text}, which nobody wrote"));
        }
        findings.wrong.push(text);
        Ok(())
    }

    fn read(&self, db: &Db, findings: &mut Findings) -> Outcome {
        for key in self.history.keys() {
            match db.get(key) {
                Ok(found) => self.judge(key, found.as_deref(), findings)?,
                Err(_) => findings.errors += 1,
            }
        }
        for backward in [false, true] {
            match db.iter() {
                Ok(iter) => self.scan(iter, backward, findings)?,
                Err(_) => findings.errors += 1,
            }
        }
        Ok(())
    }

    fn scan(&self, mut iter: Iter, backward: bool, findings: &mut Findings) -> Outcome {
        let mut seen: BTreeSet<Key> = BTreeSet::new();
        // BOUND: each key comes once.
        loop {
            let next = if backward {
                iter.next_back()
            } else {
                iter.next()
            };
            let pair = match next {
                None => break,
                Some(Ok(pair)) => pair,
                Some(Err(_)) => {
                    findings.errors += 1;
                    return Ok(());
                }
            };
            let key = Key(pair.key().to_vec());
            if !self.history.contains_key(&key) {
                return Err(format!("a scan gives {key:?}, which nobody wrote"));
            }
            self.judge(&key, Some(pair.value()), findings)?;
            if !seen.insert(key.clone()) {
                findings.wrong.push(format!("a scan gives {key:?} twice"));
                return Ok(());
            }
        }
        for key in self.history.keys().filter(|key| !seen.contains(*key)) {
            self.judge(key, None, findings)?;
        }
        Ok(())
    }

    /// Writes, drains, closes and opens again: what seemed harmless must stay so, or be found.
    fn use_on(&mut self, db: Db, class: Class) -> Outcome<Class> {
        let keys: Vec<Key> = self.history.keys().cloned().collect();
        for key in &keys {
            // What is there now is what has to stay.
            let found = db.get(key).map_err(failed("a get"))?;
            let writes = self.history.entry(key.clone()).or_default();
            let same = |value: &Option<Value>| match (value, &found) {
                (Some(value), Some(found)) => value.is(found),
                (None, None) => true,
                _ => false,
            };
            let value = writes.iter().rev().find(|value| same(value)).copied();
            writes.push(value.flatten());
        }
        let mut write = || -> terrace::Result<()> {
            for (tag, key) in (1 << 40..).zip(keys.iter().step_by(3)) {
                let value = Value { tag, len: 300 };
                // Whether it fails or not, the value may show from now on.
                self.history
                    .entry(key.clone())
                    .or_default()
                    .push(Some(value));
                db.put(key, value.bytes())?;
            }
            db.drain()
        };
        if let Err(e) = write() {
            return later(&e);
        }
        self.settle();
        if let Some(class) = self.look_again(&db)? {
            return Ok(class);
        }
        if let Err(e) = db.close() {
            return later(&e);
        }
        drop(db);
        let db = match self.place.open(&self.options) {
            Ok(db) => db,
            Err(e) => return later(&e),
        };
        if let Some(class) = self.look_again(&db)? {
            return Ok(class);
        }
        Ok(class)
    }

    /// The class of a store that was used on, if something is found now.
    fn look_again(&self, db: &Db) -> Outcome<Option<Class>> {
        let mut findings = Findings::default();
        self.read(db, &mut findings)?;
        let report = db.verify(&mut |_| {}).map_err(failed("verify"))?;
        if findings.errors > 0 || !report.problems.is_empty() {
            return Ok(Some(Class::FoundLater));
        }
        match findings.wrong.first() {
            Some(wrong) => Err(format!("used on, {wrong}, and verify finds nothing")),
            None => Ok(None),
        }
    }

    fn settle(&mut self) {
        let each = |(key, writes): (&Key, &Vec<_>)| (key.clone(), writes.len());
        self.settled = self.history.iter().map(each).collect();
    }
}

fn clear(e: &Error) -> Outcome {
    let kinds = [
        ErrorKind::Corruption,
        ErrorKind::Invalid,
        ErrorKind::Unsupported,
        ErrorKind::Io,
        ErrorKind::Full,
        ErrorKind::Stopped,
    ];
    if !kinds.contains(&e.kind()) || e.to_string().len() <= 20 {
        return Err(format!("an error that does not help: {e:?}"));
    }
    Ok(())
}

fn refused(e: &Error) -> Outcome<Class> {
    clear(e).map(|()| Class::Refused)
}

fn later(e: &Error) -> Outcome<Class> {
    clear(e).map(|()| Class::FoundLater)
}
