//! SIGKILL: a child process writes, is killed at a random moment, and what it leaves is compared,
//! life after life in one folder.
//!
//! What each thread of a child does follows from the seed, so all that has to outlive the child is
//! how far each thread had come: eight bytes in a file that only the thread writes. The next write
//! of each thread was in flight. A thread has keys of its own, so no order between threads matters.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use terrace::{Db, Design, Durability, ErrorKind, Keyspace, Options, Workers, WriteBatch};
use terrace_media::Medium;

use crate::oracle::{Crash, Oracle, Outcome};
use crate::place::{Place, scratch};
use crate::script::{Entry, Key, space_name};
use crate::settings;
use crate::value::{Value, shown};
use crate::world::{World, verify};

/// The variable that turns a process into a child.
const VARIABLE: &str = "TERRACE_KILL_CHILD";
/// Threads of a child.
const THREADS: u64 = 3;
/// BOUND: a child whose parent has died ends by itself after so many writes of a thread.
const WRITES_MAX: u64 = 400_000;
/// Lives in one folder. Where logs are all there is they are replayed for ever, so it is changed sooner.
const LIVES_MAX: u64 = 200;
const LIVES_MAX_LOGS: u64 = 25;

/// Times to live, in milliseconds: over when the entry is written, and over in no life.
const PAST: u32 = 1;
const FUTURE: u32 = 24 * 3600 * 1000;

/// What a child has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Orders {
    folder: PathBuf,
    medium: Medium,
    design: Design,
    seed: u64,
    life: u64,
    variation: u8,
}

impl Orders {
    fn options(&self, variation: u8) -> Options {
        let small = settings::small_of(self.design, self.medium);
        let mut options = settings::varied(&small, variation);
        options.pool.size_bytes = 8 << 20;
        options.background.workers = Workers::Threads(1 + usize::from(variation % 2));
        options
    }

    fn oracle(&self) -> Oracle {
        Oracle::new(self.medium).of(self.design)
    }

    fn to_text(&self) -> String {
        let Orders {
            folder,
            medium,
            design,
            seed,
            life,
            variation,
        } = self;
        let folder = folder.display();
        format!("{medium},{design},{seed},{life},{variation},{folder}")
    }

    fn parse(text: &str) -> Option<Orders> {
        let mut parts = text.splitn(6, ',');
        let medium = match parts.next()? {
            "dax" => Medium::Dax,
            "mapped" => Medium::Mapped,
            _ => Medium::Dram,
        };
        Some(Orders {
            medium,
            design: parts.next()?.parse().ok()?,
            seed: parts.next().and_then(|n| u64::from_str(n).ok())?,
            life: parts.next()?.parse().ok()?,
            variation: parts.next()?.parse().ok()?,
            folder: parts.next()?.into(),
        })
    }

    fn store(&self) -> PathBuf {
        self.folder.join("db")
    }

    fn progress(&self, thread: u64) -> PathBuf {
        self.folder.join(format!("done-{}-{thread}", self.life))
    }

    fn refusals(&self, thread: u64) -> PathBuf {
        self.folder.join(format!("refused-{}-{thread}", self.life))
    }
}

/// The writes of one thread in one life.
struct Writes {
    rng: fastrand::Rng,
    thread: u64,
    tag: u64,
    /// Whether the store can load in bulk.
    ingests: bool,
}

impl Writes {
    fn new(orders: &Orders, thread: u64) -> Writes {
        let seed = orders.seed ^ (orders.life << 8) ^ (thread << 56);
        Writes {
            rng: fastrand::Rng::with_seed(seed),
            thread,
            tag: (orders.life << 32) | (thread << 28),
            ingests: orders.oracle().keeps_what_is_drained(),
        }
    }

    fn entry(&mut self) -> Entry {
        let key = Key(vec![b'a' + self.thread as u8, self.rng.u8(0..60)]);
        self.tag += 1;
        let len = match self.rng.u8(0..30) {
            0 => self.rng.u32(8..6000),
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
                // A range of this thread's keys.
                let end = entry.key.0[1].saturating_add(self.rng.u8(1..25));
                entry.until = Some(Key(vec![entry.key.0[0], end]));
                entry.value = None;
            }
            (1..4, Some(_)) => entry.ttl = Some([PAST, FUTURE][self.rng.usize(..2)]),
            _ => {}
        }
        entry
    }

    /// Pairs of one keyspace for a bulk load.
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

    /// What is written next, and how: `None` is a bulk load.
    fn next(&mut self) -> (Vec<Entry>, Option<Durability>) {
        // A database has one ingest at a time.
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

/// Turns this process into a child if it was started as one. `None`: it was not.
pub fn child_if_asked() -> Option<ExitCode> {
    let orders = std::env::var(VARIABLE).ok()?;
    #[cfg(feature = "canary")]
    crate::canaries::choose_from_environment();
    let done = Orders::parse(&orders)
        .ok_or_else(|| format!("{VARIABLE}={orders} makes no sense"))
        .and_then(|orders| live(&orders));
    if let Err(failure) = done {
        eprintln!("{failure}");
    }
    // A child is not expected to end: the parent takes it as a failure.
    Some(ExitCode::FAILURE)
}

fn live(orders: &Orders) -> Outcome {
    let db = Db::open(orders.store(), orders.options(orders.variation))
        .map_err(|e| format!("opening: {e:?}"))?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let db = &db;
                scope.spawn(move || write(orders, db, thread))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("a thread of the child panicked".into()))
        })
    })
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

/// What the thread that wrote an entry reads from then on.
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
fn write(orders: &Orders, db: &Db, thread: u64) -> Outcome {
    let failed = |e: std::io::Error| format!("the child's own file: {e}");
    let done = File::create(orders.progress(thread)).map_err(failed)?;
    let refused = File::create(orders.refusals(thread)).map_err(failed)?;
    let mut refusals = 0;
    let mut writes = Writes::new(orders, thread);
    let spaces = [
        db.default_keyspace(),
        db.create_keyspace(&space_name(1))
            .map_err(|e| format!("a keyspace: {e:?}"))?,
    ];
    let mut mine: BTreeMap<(u8, Key), Option<Value>> = BTreeMap::new();
    for turn in 0..WRITES_MAX {
        let (entries, durability) = writes.next();
        let written = match durability {
            Some(durability) => db.write(batch_of(&entries, &spaces), durability),
            None => ingest(&entries, &spaces),
        };
        match written {
            Ok(()) => entries.iter().for_each(|entry| show(&mut mine, entry)),
            Err(e) if e.kind() == ErrorKind::Full => {
                refused
                    .write_all_at(&turn.to_le_bytes(), refusals * 8)
                    .map_err(failed)?;
                refusals += 1;
            }
            Err(e) => return Err(format!("a write fails: {e:?}")),
        }
        done.write_all_at(&(turn + 1).to_le_bytes(), 0)
            .map_err(failed)?;
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

/// What a kill run did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Children killed.
    pub kills: u64,
    /// Writes that were answered.
    pub writes: u64,
    /// Writes refused by a full pool.
    pub refusals: u64,
    /// Kills that were followed by another one before anybody looked.
    pub unseen: u64,
    /// Folders begun.
    pub folders: u64,
}

/// One database and its lives.
pub struct Victim<'a> {
    rng: fastrand::Rng,
    orders: Orders,
    oracle: Oracle,
    unlooked: bool,
    command: &'a dyn Fn() -> Command,
    /// Counts of all lives.
    pub tally: Tally,
    _folder: Option<tempfile::TempDir>,
}

impl<'a> Victim<'a> {
    /// A victim whose children are started by `command`, which must come to
    /// [`child_if_asked`] soon.
    pub fn new(
        (medium, design): (Medium, Design),
        seed: u64,
        command: &'a dyn Fn() -> Command,
    ) -> Victim<'a> {
        let orders = Orders {
            folder: PathBuf::new(),
            medium,
            design,
            seed,
            life: 0,
            variation: 0,
        };
        Victim {
            rng: fastrand::Rng::with_seed(seed),
            oracle: orders.oracle(),
            orders,
            unlooked: false,
            command,
            tally: Tally::default(),
            _folder: None,
        }
    }

    /// Begins a new folder, in memory if the system has such a place.
    fn begin(&mut self) -> Outcome {
        let folder = scratch()?;
        self.orders.folder = folder.path().to_owned();
        self._folder = Some(folder);
        self.oracle = self.orders.oracle();
        self.tally.folders += 1;
        let place = Place::folder(self.orders.store());
        let oracle = self.oracle.clone();
        let options = self.orders.options(0);
        let mut world = World::open(place, options, 0, oracle)?;
        world.run(&crate::script::Op::CreateSpace(1))?;
        self.oracle = world.into_oracle();
        Ok(())
    }

    /// One life: a child begins, is killed, and what it leaves is looked at.
    pub fn live_once(&mut self) -> Outcome {
        let lives = match self.oracle.keeps_what_is_drained() {
            true => LIVES_MAX,
            false => LIVES_MAX_LOGS,
        };
        if self.orders.life.is_multiple_of(lives) {
            self.begin()?;
        }
        self.orders.life += 1;
        self.orders.variation = self.rng.u8(..);
        self.kill_child()?;
        self.note()?;
        let last = (self.orders.life + 1).is_multiple_of(lives);
        if !last && self.rng.u8(0..4) == 0 {
            self.tally.unseen += 1;
            self.unlooked = true;
            return Ok(());
        }
        self.look()
    }

    fn kill_child(&mut self) -> Outcome {
        let mut child = (self.command)()
            .env(VARIABLE, self.orders.to_text())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("no child: {e}"))?;
        let most = [3_000, 12_000, 40_000][self.rng.usize(..3)];
        std::thread::sleep(Duration::from_micros(self.rng.u64(0..most)));
        let ended = child
            .try_wait()
            .map_err(|e| format!("waiting for the child: {e}"))?;
        let killed = child.kill();
        let mut said = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        child
            .wait()
            .map_err(|e| format!("waiting for the child: {e}"))?;
        if ended.is_some() || killed.is_err() || !said.is_empty() {
            return Err(format!("the child ended by itself: {said}"));
        }
        self.tally.kills += 1;
        Ok(())
    }

    /// Tells the oracle what the child had done.
    fn note(&mut self) -> Outcome {
        for thread in 0..THREADS {
            let read = |path: PathBuf| -> Vec<u64> {
                let bytes = std::fs::read(path).unwrap_or_default();
                let words = bytes.chunks_exact(8);
                words
                    .map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()))
                    .collect()
            };
            let path = self.orders.progress(thread);
            if !path.exists() {
                continue;
            }
            let done = read(path).first().copied().unwrap_or(0);
            let refused = read(self.orders.refusals(thread));
            let mut writes = Writes::new(&self.orders, thread);
            for turn in 0..=done {
                let (entries, durability) = writes.next();
                let write = self.oracle.begin(&entries);
                if refused.contains(&turn) {
                    self.oracle.refused(write);
                    self.tally.refusals += 1;
                } else if turn < done {
                    // A bulk load is durable when it ends.
                    let durability = durability.unwrap_or(Durability::Sync);
                    self.oracle.acknowledged(write, durability);
                    self.tally.writes += 1;
                }
            }
            // By then what was past when it was written is.
            self.oracle.wait(Duration::from_millis(u64::from(PAST)));
            let _ = std::fs::remove_file(self.orders.progress(thread));
            let _ = std::fs::remove_file(self.orders.refusals(thread));
        }
        Ok(())
    }

    /// Opens the store and compares.
    fn look(&mut self) -> Outcome {
        self.unlooked = false;
        let mut options = self.orders.options(self.rng.u8(..));
        if self.rng.bool() {
            options.background.workers = Workers::Manual;
        }
        let place = Place::folder(self.orders.store());
        let db = place
            .open(&options)
            .map_err(|e| format!("opening after the kill: {e:?}"))?;
        let after = self.oracle.check_after(Crash::Process, &db)?;
        verify(&db, Some(after.live_in(0).len() as u64))?;
        let mut world = World::over(place, options, db, after);
        if self.rng.u8(0..40) == 0 {
            world.check_space()?;
            world.run(&crate::script::Op::CreateSpace(1))?;
        }
        self.oracle = world.into_oracle();
        self.oracle.closed();
        Ok(())
    }

    /// Where the victim stands, for messages.
    pub fn describe(&self) -> String {
        format!(
            "{} on {}, seed {:#x}, life {}",
            self.orders.design, self.orders.medium, self.orders.seed, self.orders.life
        )
    }

    /// Keeps the folder, for somebody to look into.
    pub fn keep_folder(&mut self) -> PathBuf {
        match self._folder.take() {
            Some(folder) => folder.keep(),
            None => PathBuf::new(),
        }
    }
}
