//! Soak: hours of mixed load on real files and threads with small limits. Space, memory, time,
//! threads and descriptors are checked continuously against bounds.
//!
//! Clients write keys of their own and check every result against their books, including reads
//! through snapshots and iterators held for minutes. They work in rounds: calm ones in which much
//! is held, and storms in which the limits are reached. Meanwhile another thread verifies, copies,
//! flushes and compacts. Between two rounds the load stops: the whole database is compared and, in
//! turns, copied, settled and measured, closed and reopened, or emptied, after which nothing may be
//! left.

mod book;
mod client;
mod keys;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use terrace::{Db, Design, Keyspace, MediumChoice, Options, Sizes, Workers};
use terrace_media::Medium;

use crate::calls::{check_report, verify};
use crate::oracle::Outcome;
use crate::watchdog;
use book::{Book, Known, Moment, compare};
use client::Client;
use keys::{check_foreign, check_pair, owner, space_name};
pub(crate) use watch::Folder;
use watch::{Bounds, Kind, Process, Sample, Watch};

const MIB: u64 = 1 << 20;
/// The number of clients, each with a thread.
const CLIENTS: u8 = 4;
/// The cap of the pool if it is a file.
const POOL: u64 = 64 * MIB;
/// The memory budget. A pool in memory counts against it.
const MEMORY: u64 = 48 * MIB;
const MEMORY_WITH_POOL: u64 = 128 * MIB;

/// The load of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Weather {
    /// Few and small writes, and snapshots held for at most this time.
    Calm(Duration),
    /// As many writes as the store accepts, up to 64 KiB each.
    Storm,
}

impl Weather {
    fn pause(self) -> Duration {
        match self {
            Weather::Calm(_) => Duration::from_millis(2),
            Weather::Storm => Duration::ZERO,
        }
    }

    fn largest_value(self) -> u32 {
        match self {
            Weather::Calm(_) => 2 << 10,
            Weather::Storm => 64 << 10,
        }
    }

    fn held_for(self) -> Duration {
        match self {
            Weather::Calm(most) => most,
            Weather::Storm => Duration::from_secs(2),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Weather::Calm(_) => "calm",
            Weather::Storm => "storm",
        }
    }
}

/// One soak of one database.
#[derive(Clone, Debug)]
pub struct Soak {
    /// The design.
    pub design: Design,
    /// The medium of the pool.
    pub medium: Medium,
    /// Determines what clients do, apart from the scheduling of threads.
    pub seed: u64,
    /// The total time.
    pub time: Duration,
    /// The length of a round.
    pub round: Duration,
    /// Whether to print a line per round.
    pub says: bool,
}

/// Counts of a soak.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// The number of calls by clients.
    pub calls: u64,
    /// The number of calls refused because something was full.
    pub refused: u64,
    /// The bytes of keys and values written.
    pub written: u64,
    /// The number of rounds.
    pub rounds: u64,
    /// The number of verifications, under load and at rest.
    pub verified: u64,
    /// The number of copies made, opened and compared.
    pub copies: u64,
    /// How often the database was closed and reopened.
    pub reopened: u64,
    /// How often everything was deleted.
    pub emptied: u64,
}

fn failed(what: &'static str) -> impl Fn(terrace::Error) -> String {
    move |e| format!("{what}: {e:?}")
}

/// A running soak.
struct Running<'a> {
    soak: &'a Soak,
    folder: PathBuf,
    db: Option<Db>,
    clients: Vec<Client>,
    watch: &'a Watch,
    bounds: Bounds,
    begun: Instant,
    most: Sample,
    tally: Tally,
}

impl Soak {
    /// Returns why this kind of database is not soaked, or `None` if it is.
    pub fn left_out(&self) -> Option<&'static str> {
        let keeps_logs = self.medium == Medium::Dram && !self.design.keeps_table_files();
        keeps_logs.then_some(
            "without a pool it keeps all logs, so its directory grows without \
                              limit",
        )
    }

    fn options(&self) -> Options {
        let mut options = Options {
            design: Some(self.design),
            ..Options::default()
        };
        options.pool.path = (self.medium != Medium::Dram).then(|| "pool".into());
        options.pool.size_bytes = POOL;
        options.pool.medium = match self.medium {
            Medium::Dax => MediumChoice::ForceDax,
            Medium::Mapped => MediumChoice::Mapped,
            Medium::Dram => MediumChoice::Auto,
        };
        options.background.workers = Workers::Threads(2);
        options.front.log_bytes_max = POOL;
        match self.medium {
            Medium::Dram => options.within(MEMORY_WITH_POOL, Sizes::default()),
            Medium::Dax | Medium::Mapped => options.within(MEMORY, Sizes::default()),
        }
    }

    /// Runs in an empty directory. The last printed line contains the maxima.
    pub fn run(&self, folder: &Path) -> Outcome<Tally> {
        // Starts the watchdog's thread before threads are counted.
        watchdog::start();
        let _case = watchdog::case(format!("{self:?}"));
        let watch = Watch::new(CLIENTS);
        let ticked = std::thread::scope(|scope| {
            scope.spawn(|| watch.tick());
            let outcome = self.run_watched(folder, &watch);
            watch.end();
            outcome
        });
        ticked.map_err(|e| {
            format!(
                "soak of {} on {}, seed {:#x}: {e}",
                self.design, self.medium, self.seed
            )
        })
    }

    fn run_watched(&self, folder: &Path, watch: &Watch) -> Outcome<Tally> {
        let clients = (0..CLIENTS).map(|id| Client::new(id, CLIENTS, self.seed));
        let mut running = Running {
            soak: self,
            folder: folder.to_owned(),
            db: None,
            clients: clients.collect(),
            watch,
            bounds: Bounds {
                before: Process::now(),
                options: self.options(),
                clients: u64::from(CLIENTS),
            },
            begun: Instant::now(),
            most: Sample::default(),
            tally: Tally::default(),
        };
        running.open()?;
        if self.says {
            println!("{}", Sample::HEAD);
        }
        while running.begun.elapsed() < self.time || running.tally.emptied == 0 {
            let rounds = running.tally.rounds;
            let weather = match rounds % 2 {
                0 => Weather::Calm(5 * self.round),
                _ => Weather::Storm,
            };
            running.round(weather)?;
            running.rest(rounds)?;
        }
        running.end()
    }
}

impl Running<'_> {
    fn db(&self) -> Outcome<&Db> {
        self.db.as_ref().ok_or_else(|| "no database is open".into())
    }

    fn store(&self) -> PathBuf {
        self.folder.join("db")
    }

    fn open(&mut self) -> Outcome {
        let options = self.bounds.options.clone();
        let opened = self
            .watch
            .timed(Kind::Whole, || Db::open(self.store(), options))?;
        let db = self.db.insert(opened.map_err(failed("opening"))?);
        self.clients
            .iter_mut()
            .try_for_each(|client| client.enter(db))
    }

    /// Runs clients with background calls, and checks the bounds continuously.
    fn round(&mut self, weather: Weather) -> Outcome {
        let (watch, folder) = (self.watch, self.folder.clone());
        let (db, bounds) = (self.db.as_ref().ok_or("no database is open")?, &self.bounds);
        let seed = self.soak.seed ^ self.tally.rounds;
        let until = Instant::now() + self.soak.round;
        let mut most = Sample::default();
        watch.begin_round();
        let done = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for client in &mut self.clients {
                threads.push(scope.spawn(move || {
                    if let Err(e) = client.work(db, watch, weather) {
                        watch.fail(e);
                    }
                    Tally::default()
                }));
            }
            threads.push(scope.spawn(move || {
                let mut tally = Tally::default();
                if let Err(e) = beside(db, watch, seed, &folder, &mut tally) {
                    watch.fail(e);
                }
                tally
            }));
            if let Err(e) = bounds.guard(db, watch, until, &mut most) {
                watch.fail(e);
            }
            watch.end_round();
            let mut done = Tally::default();
            for thread in threads {
                match thread.join() {
                    Ok(tally) => {
                        done.verified += tally.verified;
                        done.copies += tally.copies;
                    }
                    Err(_) => watch.fail("a thread panicked".into()),
                }
            }
            done
        });
        self.tally.rounds += 1;
        self.tally.verified += done.verified;
        self.tally.copies += done.copies;
        self.most.raise(&most);
        if self.soak.says {
            let time = self.begun.elapsed();
            println!("{}", most.line(time, weather.name(), watch, false));
        }
        watch.outcome()
    }

    /// Runs the checks between two rounds.
    fn rest(&mut self, round: u64) -> Outcome {
        self.compare_all(self.db()?)?;
        match round % 4 {
            // Snapshots and iterators stay open.
            0 => Ok(()),
            1 => self.measure().and_then(|()| self.copy()),
            2 => self.reopen(),
            _ => self.empty(),
        }
    }

    /// Compares the whole database with the books, in both directions, and verifies it.
    fn compare_all(&self, db: &Db) -> Outcome {
        let failed = |e: terrace::Error| format!("a keyspace: {e:?}");
        for space in 0..2 {
            let mut all: BTreeMap<Vec<u8>, Known> = BTreeMap::new();
            for client in &self.clients {
                all.extend(client.book.pairs(space).map(|(k, v)| (k.to_vec(), v)));
            }
            let handle = db.keyspace(&space_name(space, 0)).map_err(failed)?;
            let handle = handle.ok_or("a keyspace that all clients share is gone")?;
            compare_space(&handle, &all)?;
        }
        for (id, client) in (0..).zip(&self.clients) {
            if let Some(handle) = db.keyspace(&space_name(2, id)).map_err(failed)? {
                let own = client.book.pairs(2).map(|(k, v)| (k.to_vec(), v));
                compare_space(&handle, &own.collect())?;
            }
        }
        self.watch.timed(Kind::Whole, || verify(db, None))?
    }

    fn let_go(&mut self) {
        let watch = self.watch;
        self.clients
            .iter_mut()
            .for_each(|client| client.let_go(watch));
    }

    /// Releases all snapshots, moves all data down and drops what is dead: the remaining space must
    /// be in proportion to the live data.
    fn measure(&mut self) -> Outcome {
        self.let_go();
        let (db, live) = (self.db()?, self.watch.live());
        self.watch.timed(Kind::Whole, || bring_down(db))??;
        let (metrics, folder) = (db.metrics(), Folder::of(db.path()));
        let tables: u64 = metrics.files.iter().map(|level| level.bytes).sum();
        let fixed = held_by_empty(db.options());
        let beyond = match self.soak.design.keeps_table_files() {
            // Deleted files may still be open, but their names must be gone.
            true => [
                ("bytes of tables", tables, live * 5 / 4 + MIB),
                (
                    "bytes of table files",
                    folder.tables,
                    live * 5 / 4 + 2 * MIB,
                ),
                (
                    "bytes of the pool in use",
                    metrics.pool.allocated_bytes,
                    fixed,
                ),
            ],
            false => [
                ("bytes of tables", tables, 0),
                ("bytes of table files", folder.tables, 0),
                (
                    "bytes of the pool in use",
                    metrics.pool.allocated_bytes,
                    live * 5 / 2 + fixed,
                ),
            ],
        };
        for (what, is, most) in beyond {
            if is > most {
                return Err(format!(
                    "at rest, {what}: {is}, more than {most}, with {live} live\n{metrics}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that a copy has the same content.
    fn copy(&mut self) -> Outcome {
        let (db, copy) = (self.db()?, self.folder.join("copy"));
        let made = self.watch.timed(Kind::Whole, || db.checkpoint(&copy))?;
        made.map_err(failed("a copy"))?;
        let opened = Db::open(&copy, db.options().clone()).map_err(failed("opening a copy"))?;
        self.compare_all(&opened)?;
        opened.close().map_err(failed("closing a copy"))?;
        drop(opened);
        self.tally.copies += 1;
        std::fs::remove_dir_all(&copy).map_err(|e| format!("removing the copy: {e}"))
    }

    fn close(&mut self) -> Outcome {
        self.let_go();
        let db = self.db.take().ok_or("no database is open")?;
        // Handles of keyspaces keep the database open.
        self.clients.iter_mut().for_each(Client::leave);
        let closed = self.watch.timed(Kind::Whole, || db.close())?;
        closed.map_err(failed("closing"))?;
        drop(db);
        let now = Process::now();
        let before = &self.bounds.before;
        if (now.descriptors, now.threads) != (before.descriptors, before.threads) {
            return Err(format!(
                "a closed database leaves something open: {now:?}, before it was {before:?}"
            ));
        }
        Ok(())
    }

    fn reopen(&mut self) -> Outcome {
        self.close()?;
        self.open()?;
        self.tally.reopened += 1;
        self.compare_all(self.db()?)
    }

    /// Deletes everything: nothing may be left, before and after a restart.
    fn empty(&mut self) -> Outcome {
        self.let_go();
        let db = self.db()?;
        for name in db.list_keyspaces().map_err(failed("keyspaces"))? {
            if name.starts_with("own-") {
                db.drop_keyspace(&name).map_err(failed("dropping"))?;
            } else if let Some(space) = db.keyspace(&name).map_err(failed("a keyspace"))? {
                space
                    .delete_range::<&[u8]>(..)
                    .map_err(failed("deleting all"))?;
            }
        }
        self.clients.iter_mut().for_each(Client::forget_all);
        self.let_go();
        for _ in 0..2 {
            self.watch.timed(Kind::Whole, || bring_down(self.db()?))??;
            self.compare_all(self.db()?)?;
            self.reopen()?;
        }
        // The last open forgot the keyspaces without data. On `Mapped` it forgets none.
        self.watch.timed(Kind::Whole, || bring_down(self.db()?))??;
        let db = self.db()?;
        let (metrics, folder) = (db.metrics(), Folder::of(db.path()));
        let report = db.verify(&mut |_| {}).map_err(failed("verify"))?;
        let in_buffer: u64 = metrics.levels.iter().map(|level| level.entry_count).sum();
        let remembered = match metrics.pool.description.starts_with("mapped") {
            true => u64::MAX,
            false => 2,
        };
        let left = [
            // The entries of the catalog for the shared keyspace, and for the next keyspace.
            ("entries", report.entries, remembered),
            ("entries in the buffer", in_buffer, 0),
            ("table files", folder.table_count, 1),
            ("pieces of deleted ranges", metrics.range_delete_count, 0),
            (
                "bytes of the pool in use",
                metrics.pool.allocated_bytes,
                held_by_empty(db.options()),
            ),
            ("files other than tables and logs", folder.other_count, 4),
        ];
        for (what, is, most) in left {
            if is > most {
                return Err(format!(
                    "after all was deleted, {what}: {is}, more than {most}; {folder:?}\n{metrics}"
                ));
            }
        }
        self.tally.emptied += 1;
        Ok(())
    }

    fn end(mut self) -> Outcome<Tally> {
        self.close()?;
        if self.soak.says {
            let time = self.begun.elapsed();
            println!("{}", self.most.line(time, "at most", self.watch, true));
        }
        self.tally.calls = self.watch.calls();
        self.tally.refused = self.watch.refusals();
        self.tally.written = self.watch.written();
        Ok(self.tally)
    }
}

/// Returns what an empty database keeps of its pool: the manifest (twice during a rewrite), redo
/// area and head, memtables with their logs, and a repository with some open extents.
fn held_by_empty(options: &Options) -> u64 {
    let memtable = options.front.memtable_bytes + (64 << 10);
    MIB + 2 * 2 * memtable + 6 * options.bottom.extent_bytes
}

/// Moves all data down, and drops what no reader can see.
fn bring_down(db: &Db) -> Outcome {
    db.drain().map_err(failed("draining"))?;
    for name in db.list_keyspaces().map_err(failed("keyspaces"))? {
        if let Some(space) = db.keyspace(&name).map_err(failed("a keyspace"))? {
            space
                .compact_range::<&[u8]>(..)
                .map_err(failed("compacting"))?;
        }
    }
    db.wait_idle().map_err(failed("coming to rest"))
}

fn compare_space(space: &Keyspace, all: &BTreeMap<Vec<u8>, Known>) -> Outcome {
    let what = |e: String| format!("all of {}: {e}", space.name());
    for back in [false, true] {
        let (iter, moment) = Moment::of(|| space.iter());
        let iter = iter.map_err(failed("a scan"))?;
        let pairs = all.iter().map(|(key, known)| (key.as_slice(), *known));
        let whole = match back {
            false => compare(pairs, iter, moment, &|_| true),
            true => compare(pairs.rev(), iter.rev(), moment, &|_| true),
        };
        if !whole.map_err(what)? {
            return Err(what("no memory for the only scan".into()));
        }
    }
    let mut book = Book::default();
    for (key, known) in all {
        book.set(0, key, Some(*known));
        let (found, moment) = Moment::of(|| space.get(key));
        let found = found.map_err(failed("a get"))?;
        book.check_get((0, key), found.as_deref(), moment)
            .map_err(what)?;
    }
    Ok(())
}

/// Verifies, copies, flushes and compacts alongside the clients, until the round is over.
fn beside(db: &Db, watch: &Watch, seed: u64, folder: &Path, tally: &mut Tally) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(seed);
    while !watch.is_over() {
        std::thread::sleep(Duration::from_millis(rng.u64(20..1500)));
        let said = match rng.u8(0..10) {
            0 | 1 => {
                let report = watch.timed(Kind::Whole, || db.verify(&mut |_| {}))?;
                tally.verified += u64::from(report.is_ok());
                match report {
                    Ok(report) => Ok(check_report(&report)?),
                    Err(e) => Err(e),
                }
            }
            2 => copy_beside(db, watch, &folder.join("beside"), tally)?,
            3..6 => watch.timed(Kind::Whole, || db.flush())?,
            6 => watch.timed(Kind::Whole, || db.drain())?,
            _ => {
                let from = rng.u32(0..1000);
                let (from, to) = (format!("{from:06}"), format!("{:06}", from + 60));
                watch.timed(Kind::Whole, || db.compact_range(from..to))?
            }
        };
        match said {
            Err(e) if e.kind() == terrace::ErrorKind::Full => watch.refused(),
            other => other.map_err(failed("beside clients"))?,
        }
    }
    Ok(())
}

/// Checks a copy made under load: it is sound, its values are of the right clients, and no batch is
/// torn.
fn copy_beside(
    db: &Db,
    watch: &Watch,
    path: &Path,
    tally: &mut Tally,
) -> Outcome<terrace::Result<()>> {
    let made = watch.timed(Kind::Whole, || db.checkpoint(path))?;
    if let Err(e) = made {
        let _ = std::fs::remove_dir_all(path);
        return Ok(Err(e));
    }
    let copy = Db::open(path, db.options().clone()).map_err(failed("opening a copy"))?;
    verify(&copy, None)?;
    let shared = copy.keyspace("shared").map_err(failed("a keyspace"))?;
    let shared = shared.ok_or("a copy has not the keyspace that all share")?;
    for client in 0..CLIENTS {
        check_pair(client, |space, key| match space {
            0 => copy.get(key),
            _ => shared.get(key),
        })?;
    }
    for (space, handle) in [copy.default_keyspace(), shared].into_iter().enumerate() {
        for pair in handle.iter().map_err(failed("a scan"))? {
            let pair = pair.map_err(failed("a scan"))?;
            let of = owner(space, pair.key()).ok_or("a key without an owner")?;
            check_foreign(of, pair.key(), pair.value())?;
        }
    }
    copy.close().map_err(failed("closing a copy"))?;
    drop(copy);
    tally.copies += 1;
    let removed = std::fs::remove_dir_all(path);
    removed.map_err(|e| format!("removing the copy: {e}"))?;
    Ok(Ok(()))
}
