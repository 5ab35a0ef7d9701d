//! The measurements of a running soak, and its bounds.
//!
//! The store is not to blame if the process is stopped for a while, or other load keeps the machine
//! busy: a ticker that sleeps and wakes up measures how long nothing ran, and that time is
//! subtracted from the time of calls.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use terrace::{Db, Options};

use crate::oracle::Outcome;
use crate::watchdog;

const RELAXED: Ordering = Ordering::Relaxed;
const MIB: u64 = 1 << 20;
/// The period of the ticker, and the delay from which on the process counts as stopped.
const TICK: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_millis(500);

/// The kinds of calls, by how long they may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Puts, deletes, batches. They wait for space, half a second at a time.
    Write,
    /// Point reads, and steps of iterators.
    Read,
    /// Scans of many pairs.
    Scan,
    /// Calls that process much of the database: flushes, checkpoints, opens, verifications.
    Whole,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Write, Kind::Read, Kind::Scan, Kind::Whole];

    /// Returns the maximum time of a call.
    fn longest(self) -> Duration {
        Duration::from_secs(match self {
            Kind::Write => 10,
            Kind::Read => 5,
            Kind::Scan => 30,
            Kind::Whole => 120,
        })
    }
}

#[derive(Default)]
struct Told {
    live: AtomicU64,
    oldest: AtomicU64,
    snapshots: AtomicU64,
}

/// The state shared by all threads of a soak.
pub(super) struct Watch {
    frozen: AtomicU64,
    over: AtomicBool,
    ended: AtomicBool,
    failure: Mutex<Option<String>>,
    ingests: Mutex<()>,
    calls: AtomicU64,
    refused: AtomicU64,
    written: AtomicU64,
    /// The longest call of each kind in microseconds, since the last line and overall.
    longest: [[AtomicU64; 2]; 4],
    clients: Vec<Told>,
}

impl Watch {
    pub(super) fn new(clients: u8) -> Watch {
        Watch {
            frozen: AtomicU64::new(0),
            over: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            failure: Mutex::new(None),
            ingests: Mutex::new(()),
            calls: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            written: AtomicU64::new(0),
            longest: Default::default(),
            clients: (0..clients).map(|_| Told::default()).collect(),
        }
    }

    /// Adds up the time in which this process did not run, until the soak ends.
    pub(super) fn tick(&self) {
        while !self.ended.load(RELAXED) {
            let begun = Instant::now();
            std::thread::sleep(TICK);
            let late = begun.elapsed().saturating_sub(TICK);
            if late > LATE {
                self.frozen.fetch_add(late.as_micros() as u64, RELAXED);
            }
        }
    }

    pub(super) fn end(&self) {
        self.ended.store(true, RELAXED);
    }

    /// Returns how long this process has not run so far.
    pub(super) fn frozen(&self) -> Duration {
        Duration::from_micros(self.frozen.load(RELAXED))
    }

    /// Runs a call and records how long it took.
    pub(super) fn timed<R>(&self, kind: Kind, call: impl FnOnce() -> R) -> Outcome<R> {
        let (begun, frozen) = (Instant::now(), self.frozen());
        let answer = {
            let _operation = watchdog::operation_within(2 * kind.longest(), kind);
            call()
        };
        let took = begun.elapsed();
        let mut own = took.saturating_sub(self.frozen() - frozen);
        if own > LATE {
            // The ticker may not have woken up yet.
            std::thread::sleep(2 * TICK);
            own = took.saturating_sub(self.frozen() - frozen);
        }
        for longest in &self.longest[kind as usize] {
            longest.fetch_max(own.as_micros() as u64, RELAXED);
        }
        match own > kind.longest() {
            true => Err(format!(
                "a call ({kind:?}) took {own:.1?}, more than {:.0?}",
                kind.longest()
            )),
            false => Ok(answer),
        }
    }

    /// Counts a call of a client.
    pub(super) fn count(&self) {
        self.calls.fetch_add(1, RELAXED);
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(RELAXED)
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, RELAXED);
    }

    pub(super) fn refusals(&self) -> u64 {
        self.refused.load(RELAXED)
    }

    pub(super) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, RELAXED);
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(RELAXED)
    }

    /// Returns a guard for the only ingest, or `None` if one is running.
    pub(super) fn ingest_turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.ingests.try_lock().ok()
    }

    /// Records the live data and snapshots of a client. `oldest` is the bytes written when its
    /// oldest snapshot was taken.
    pub(super) fn tell(&self, client: u8, live: u64, oldest: Option<u64>, snapshots: usize) {
        let told = &self.clients[usize::from(client)];
        told.live.store(live, RELAXED);
        told.oldest.store(oldest.unwrap_or(u64::MAX), RELAXED);
        told.snapshots.store(snapshots as u64, RELAXED);
    }

    /// Returns the live bytes of keys and values.
    pub(super) fn live(&self) -> u64 {
        self.clients
            .iter()
            .map(|told| told.live.load(RELAXED))
            .sum()
    }

    /// Returns the bytes written since the oldest snapshot was taken.
    fn pinned(&self) -> u64 {
        let oldest = self.clients.iter().map(|told| told.oldest.load(RELAXED));
        let oldest = oldest.min().unwrap_or(u64::MAX);
        self.written().saturating_sub(oldest)
    }

    fn snapshots(&self) -> u64 {
        let held = self.clients.iter().map(|told| told.snapshots.load(RELAXED));
        held.sum()
    }

    pub(super) fn fail(&self, why: String) {
        let mut failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        failure.get_or_insert(why);
        self.over.store(true, RELAXED);
    }

    pub(super) fn begin_round(&self) {
        self.over.store(false, RELAXED);
    }

    pub(super) fn end_round(&self) {
        self.over.store(true, RELAXED);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(RELAXED)
    }

    /// Returns the first failure of any thread.
    pub(super) fn outcome(&self) -> Outcome {
        let failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        failure.clone().map_or(Ok(()), Err)
    }

    /// Returns the longest calls in seconds, by kind: since the last query, or overall.
    fn longest(&self, ever: bool) -> [f64; 4] {
        Kind::ALL.map(|kind| {
            let [lately, all] = &self.longest[kind as usize];
            let micros = match ever {
                true => all.load(RELAXED),
                false => lately.swap(0, RELAXED),
            };
            micros as f64 / 1e6
        })
    }
}

/// System figures of this process.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Process {
    /// Bytes of anonymous memory.
    pub(super) anonymous: u64,
    pub(super) threads: u64,
    pub(super) descriptors: u64,
}

impl Process {
    pub(super) fn now() -> Process {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let digits = line.and_then(|line| line.split_whitespace().next());
            digits.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
        };
        Process {
            anonymous: number("RssAnon:") << 10,
            threads: number("Threads:"),
            descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, |names| names.count() as u64),
        }
    }
}

/// The sizes of the files of a database in bytes.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Folder {
    pub(crate) pool: u64,
    pub(crate) tables: u64,
    pub(crate) logs: u64,
    /// Manifest, OPTIONS and all other files.
    pub(crate) other: u64,
    pub(crate) table_count: u64,
    pub(crate) log_count: u64,
    pub(crate) other_count: u64,
}

impl Folder {
    pub(crate) fn of(path: &Path) -> Folder {
        use std::os::unix::fs::MetadataExt;
        let mut folder = Folder::default();
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            // Files may be removed while they are examined.
            let Ok(meta) = entry.metadata() else { continue };
            let bytes = meta.blocks() * 512;
            let name = entry.file_name().to_string_lossy().into_owned();
            let (sum, count) = match name.as_str() {
                "pool" => (&mut folder.pool, &mut 0),
                name if name.ends_with(".sst") => (&mut folder.tables, &mut folder.table_count),
                name if name.ends_with(".log") => (&mut folder.logs, &mut folder.log_count),
                _ => (&mut folder.other, &mut folder.other_count),
            };
            *sum += bytes;
            *count += 1;
        }
        folder
    }
}

/// The bounds that must hold continuously.
pub(super) struct Bounds {
    /// The figures before the database was opened.
    pub(super) before: Process,
    pub(super) options: Options,
    pub(super) clients: u64,
}

impl Bounds {
    /// The limit of the process's memory, including, besides the store's budget: the program,
    /// stacks, books and values of clients, memory kept by the allocator, and a copy of the
    /// database with its own budget.
    fn memory(&self) -> u64 {
        self.before.anonymous + 2 * self.options.memory_bytes.unwrap_or(0) * 11 / 10 + 64 * MIB
    }

    /// The limit of table files: two and a half times the data (docs/operations.md), data that
    /// snapshots pin, and runs and compactions in progress.
    fn tables(&self, live: u64, pinned: u64) -> u64 {
        let leveled = &self.options.bottom.leveled;
        let front = self.options.front.memtable_bytes + leveled.table_bytes;
        let runs = leveled.runs_stop as u64 * self.options.buffer.table_bytes_max.unwrap_or(0);
        live * 5 / 2 + 2 * pinned + runs + 16 * front + self.most_buffered()
    }

    /// The maximum size of the buffer if it drains as a whole.
    fn most_buffered(&self) -> u64 {
        match self.options.design_of_new().keeps_data_in_pool() {
            true => self.options.pool.size_bytes,
            false => 0,
        }
    }

    /// The limit of log files: the cap, those kept for reuse, and those of memtables.
    fn logs(&self) -> u64 {
        let memtable = self.options.front.memtable_bytes + MIB;
        self.options.front.log_bytes_max * 5 / 4 + 8 * memtable
    }

    fn descriptors(&self) -> u64 {
        let files = self.options.bottom.leveled.open_files_max as u64;
        self.before.descriptors + 2 * files + 128
    }

    fn threads(&self) -> u64 {
        self.before.threads + self.clients + 16
    }

    /// Samples everything once and checks the bounds.
    pub(super) fn look(&self, db: &Db, watch: &Watch) -> Outcome<Sample> {
        let (metrics, process) = (db.metrics(), Process::now());
        let folder = Folder::of(db.path());
        let sample = Sample {
            live: watch.live(),
            pinned: watch.pinned(),
            pool: metrics.pool.allocated_bytes,
            committed: metrics.pool.committed_bytes,
            accounted: metrics.memory.used_bytes(),
            snapshots: watch.snapshots(),
            process,
            folder,
        };
        for part in &metrics.memory.parts {
            if part
                .limit_bytes
                .is_some_and(|limit| part.used_bytes > limit)
            {
                return Err(format!("memory: {part:?}"));
            }
        }
        let cap = metrics.pool.cap_bytes;
        let budget = self.options.memory_bytes.unwrap_or(u64::MAX);
        let held = [
            ("bytes of the pool in use", sample.pool, cap),
            ("bytes of the pool", sample.committed, cap),
            ("bytes of the pool's file", folder.pool, cap + MIB),
            (
                "bytes of table files",
                folder.tables,
                self.tables(sample.live, sample.pinned),
            ),
            ("bytes of log files", folder.logs, self.logs()),
            // The reserve has at most a quarter of the tables, and shrinks when it is twice as
            // large.
            (
                "bytes of other files",
                folder.other,
                16 * MIB + self.tables(sample.live, sample.pinned) / 2,
            ),
            (
                "bytes of memory by the store's account",
                sample.accounted,
                budget,
            ),
            ("bytes of memory", process.anonymous, self.memory()),
            ("threads", process.threads, self.threads()),
            ("descriptors", process.descriptors, self.descriptors()),
        ];
        for (what, is, most) in held {
            if is > most {
                return Err(format!(
                    "{what}: {is}, more than {most}\n{sample:?}\n{metrics}"
                ));
            }
        }
        Ok(sample)
    }

    /// Samples five times a second until the round is over, and keeps the maxima in `most`.
    pub(super) fn guard(
        &self,
        db: &Db,
        watch: &Watch,
        until: Instant,
        most: &mut Sample,
    ) -> Outcome {
        while Instant::now() < until && !watch.is_over() {
            std::thread::sleep(Duration::from_millis(200).min(until - Instant::now()));
            most.raise(&self.look(db, watch)?);
        }
        Ok(())
    }
}

/// A sample, or the maxima of several.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sample {
    pub(super) live: u64,
    /// The bytes written since the oldest snapshot.
    pub(super) pinned: u64,
    pub(super) pool: u64,
    pub(super) committed: u64,
    pub(super) accounted: u64,
    pub(super) snapshots: u64,
    pub(super) process: Process,
    pub(super) folder: Folder,
}

impl Sample {
    pub(super) fn raise(&mut self, other: &Sample) {
        let raise = |mine: &mut u64, other: u64| *mine = (*mine).max(other);
        raise(&mut self.live, other.live);
        raise(&mut self.pinned, other.pinned);
        raise(&mut self.pool, other.pool);
        raise(&mut self.committed, other.committed);
        raise(&mut self.accounted, other.accounted);
        raise(&mut self.snapshots, other.snapshots);
        raise(&mut self.process.anonymous, other.process.anonymous);
        raise(&mut self.process.threads, other.process.threads);
        raise(&mut self.process.descriptors, other.process.descriptors);
        raise(&mut self.folder.pool, other.folder.pool);
        raise(&mut self.folder.tables, other.folder.tables);
        raise(&mut self.folder.logs, other.folder.logs);
        raise(&mut self.folder.other, other.folder.other);
    }

    /// The names of the columns of [`Sample::line`].
    pub(super) const HEAD: &str = "   time  what       calls  refused   live   pool  tables    logs \
         memory account  snaps thr  fds    write     read     scan    whole (longest)";

    /// Formats the maxima as a row, with bytes in MiB and times in seconds.
    pub(super) fn line(&self, time: Duration, what: &str, watch: &Watch, ever: bool) -> String {
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        let [write, read, scan, whole] = watch.longest(ever);
        format!(
            "{:>6.0}s  {what:<7} {:>8} {:>8} {:>6.1} {:>6.1} {:>7.1} {:>7.1} {:>6.1} {:>7.1} {:>6} {:>3} {:>4} \
             {write:>8.3} {read:>8.3} {scan:>8.3} {whole:>8.3}",
            time.as_secs_f64(),
            watch.calls(),
            watch.refusals(),
            mib(self.live),
            mib(self.pool),
            mib(self.folder.tables),
            mib(self.folder.logs),
            mib(self.process.anonymous),
            mib(self.accounted),
            self.snapshots,
            self.process.threads,
            self.process.descriptors,
        )
    }
}
