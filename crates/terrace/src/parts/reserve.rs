//! The reserve: space on the disk for the steps that free space on a full disk.
//!
//! It is a file with allocated space and no contents. An entitled step works through [`Lender`]: if
//! its file system is full, the file is cut by as much as the step needs, and the step is retried.
//! The reserve is refilled when there is space: when the database is opened, after edits of jobs,
//! and before any step without entitlement starts. So puts never use it, except those that deletes
//! wait behind in memory: the next log for puts is refused while the reserve is short
//! ([`Reserve::refill`]).
//!
//! | row | for | bytes |
//! |---|---|---|
//! | manifest | the next generation of the manifest, OPTIONS | the capacity of the current generation |
//! | ranges | the log of a range delete, of a flush or of an open | `LOG_BYTES` |
//! | log | logs of deletes | `LOG_BYTES` |
//! | drains | deletes on their way to tables, while a compaction uses the row of tables | `Shared::keep_reserve` |
//! | tables | output of compactions, and of drains that retire logs | the same |
//! | memtables | memtables of puts before deletes, if logs are in a pool and there is no buffer | the same |
//!
//! Free space fills the manifest's row first: without its edits nothing is freed, and it frees its
//! own space after each generation. Next come range deletes, which free the most, drains, and
//! tables, without which nothing is freed. Memtables and logs of single deletes come last: they are
//! freed only once their contents are in tables, so they would use up the row of tables bit by bit.
//!
//! Invariants
//!   R1  A row is given up only for its own steps and for the manifest.
//!   R2  Nothing depends on the file: without it, steps use the space that the disk has.
//!
//! CRASH: the file may be missing, have its old or new length, or lack its space; the next open
//! refills it if there is space. The file is never synced.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrace_media::{Advice, File, FileLock, FileSystem, OpenMode};

use crate::events::event;
use crate::types::DbId;

/// The size of the log for an open or a batch of deletes on a full disk.
pub(crate) const LOG_BYTES: u64 = 64 << 10;
/// The space of a drain during compactions.
pub(crate) const DRAIN_BYTES: u64 = 32 << 10;
/// The minimum step in which space is given up, and the unit of sizes: file systems allocate
/// blocks.
const BLOCK_BYTES: u64 = 4096;
/// The prefix of the file name.
const PREFIX: &str = "RESERVE-";

/// Returns the file name of the reserve of the database `db`.
fn name_of(db: DbId) -> String {
    format!("{PREFIX}{db}")
}

/// Returns the database whose reserve has this name.
pub(crate) fn reserve_owner(name: &str) -> Option<DbId> {
    DbId::parse(name.strip_prefix(PREFIX)?)
}

/// Returns whether an error means that the disk is full.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The entitlement of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Row {
    /// Its own row, then all others: without edits nothing is freed.
    Manifest,
    /// The row of logs, then its own.
    Ranges,
    Log,
    /// The rows of memtables and drains, for entries that free no space once they are in tables:
    /// deletes, and puts before them if the deletes wait.
    Deletes,
    /// The same rows, then that of compactions, for drains that retire logs.
    Drains,
    Tables,
}

/// The size of each row in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) manifest: u64,
    pub(crate) ranges: u64,
    pub(crate) log: u64,
    pub(crate) drains: u64,
    pub(crate) tables: u64,
    pub(crate) memtables: u64,
}

impl Rows {
    fn sum(&self) -> u64 {
        self.manifest + self.ranges + self.log + self.drains + self.tables + self.memtables
    }

    fn rounded(self) -> Rows {
        Rows {
            manifest: self.manifest.next_multiple_of(BLOCK_BYTES),
            ranges: self.ranges.next_multiple_of(BLOCK_BYTES),
            log: self.log.next_multiple_of(BLOCK_BYTES),
            drains: self.drains.next_multiple_of(BLOCK_BYTES),
            tables: self.tables.next_multiple_of(BLOCK_BYTES),
            memtables: self.memtables.next_multiple_of(BLOCK_BYTES),
        }
    }

    /// Returns the minimum of each row in `self` and `all`.
    fn within(self, all: Rows) -> Rows {
        Rows {
            manifest: self.manifest.min(all.manifest),
            ranges: self.ranges.min(all.ranges),
            log: self.log.min(all.log),
            drains: self.drains.min(all.drains),
            tables: self.tables.min(all.tables),
            memtables: self.memtables.min(all.memtables),
        }
    }

    /// Returns the rows after adding up to `more` bytes towards `all`, in the order of filling.
    fn filled_to(self, all: Rows, mut more: u64) -> Rows {
        let mut held = self;
        for (row, wanted) in held.with(&all) {
            let lacks = wanted.saturating_sub(*row).min(more);
            (*row, more) = (*row + lacks, more - lacks);
        }
        held
    }

    /// Returns each row with its wanted size, in the order of filling.
    fn with<'a>(&'a mut self, all: &Rows) -> [(&'a mut u64, u64); 6] {
        [
            (&mut self.manifest, all.manifest),
            (&mut self.ranges, all.ranges),
            (&mut self.drains, all.drains),
            (&mut self.tables, all.tables),
            (&mut self.memtables, all.memtables),
            (&mut self.log, all.log),
        ]
    }

    /// Returns the rows that steps of `row` take, in order.
    fn of(&mut self, row: Row) -> Vec<&mut u64> {
        match row {
            Row::Manifest => vec![
                &mut self.manifest,
                &mut self.memtables,
                &mut self.tables,
                &mut self.drains,
                &mut self.log,
                &mut self.ranges,
            ],
            Row::Deletes => vec![&mut self.memtables, &mut self.drains],
            Row::Drains => vec![&mut self.memtables, &mut self.drains, &mut self.tables],
            Row::Ranges => vec![&mut self.log, &mut self.ranges],
            Row::Log => vec![&mut self.log],
            Row::Tables => vec![&mut self.tables],
        }
    }
}

/// The reserve of one database.
pub(crate) struct Reserve {
    /// `None` if there is no reserve; then it is never short.
    place: Option<Place>,
    /// LOCK: held while the file is changed; no other lock is taken under it.
    inner: Mutex<Inner>,
    /// Whether the last step that checked found the disk full.
    tight: AtomicBool,
    /// The number of callers on a full disk that wait for entries in memory, some of them deletes,
    /// to be drained.
    drains_wanted: AtomicUsize,
}

/// A guard that lets drains of puts take the rows of deletes.
pub(crate) struct WantedDrains(Arc<Reserve>);

impl Drop for WantedDrains {
    fn drop(&mut self) {
        self.0.drains_wanted.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Place {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    db: DbId,
}

#[derive(Default)]
struct Inner {
    /// The allocated bytes of the file, by row.
    held: Rows,
    rows: Rows,
    /// The bytes that an earlier process left, until they are assigned to rows.
    found: u64,
}

impl Reserve {
    /// Creates an empty reserve for a database that is read-only or not open.
    pub(crate) fn none() -> Arc<Reserve> {
        Arc::new(Reserve {
            place: None,
            inner: Mutex::default(),
            tight: AtomicBool::new(false),
            drains_wanted: AtomicUsize::new(0),
        })
    }

    /// Opens the reserve of `db` in the directory `dir`, with the space that an earlier process
    /// left.
    pub(crate) fn open(fs: &Arc<dyn FileSystem>, dir: &Path, db: DbId) -> Arc<Reserve> {
        let place = Place {
            fs: Arc::clone(fs),
            path: dir.join(name_of(db)),
            db,
        };
        let found = place.found().unwrap_or(0);
        Arc::new(Reserve {
            place: Some(place),
            inner: Mutex::new(Inner {
                found,
                ..Inner::default()
            }),
            tight: AtomicBool::new(false),
            drains_wanted: AtomicUsize::new(0),
        })
    }

    /// Returns the bytes that the file takes.
    pub(crate) fn bytes(&self) -> u64 {
        let inner = self.inner.lock();
        inner.held.sum().max(inner.found)
    }

    /// Sets the wanted sizes, and allocates or frees space.
    pub(crate) fn keep(&self, rows: Rows) {
        let Some(place) = &self.place else {
            return;
        };
        {
            let inner = &mut *self.inner.lock();
            inner.rows = rows.rounded();
            let all = inner.held.sum().max(std::mem::take(&mut inner.found));
            let held = inner.held.within(inner.rows);
            let held = held.filled_to(inner.rows, all - held.sum());
            let excess = all - held.sum();
            inner.held = held;
            // Small excesses are kept, since sizes of tables vary.
            if excess <= inner.rows.sum() || place.cut(held.sum()).is_err() {
                inner.held.tables += excess;
            }
        }
        let is_whole = self.refill();
        // The log of a memtable tells whether the disk has space again, but not one in a pool. As
        // much again as the whole reserve is space for jobs of any size.
        let of_reserve = rows.sum();
        let has_room = || place.free_bytes().is_some_and(|free| free >= of_reserve);
        if rows.log == 0 && self.is_tight() && is_whole && has_room() {
            self.note(false);
        }
    }

    /// Returns whether the disk was found full and does not report free space for the whole reserve
    /// again.
    pub(crate) fn is_full(&self) -> bool {
        let all = || self.inner.lock().rows.sum();
        let free = || self.place.as_ref().and_then(Place::free_bytes);
        self.is_tight() && free().is_none_or(|free| free < all())
    }

    /// Takes back space that was given up, if the disk has it. Returns `false` if the reserve is
    /// still short: steps without entitlement must then be refused, or they would take the space
    /// that is freed.
    pub(crate) fn refill(&self) -> bool {
        let Some(place) = &self.place else {
            return true;
        };
        let inner = &mut *self.inner.lock();
        if !inner.is_short() {
            return true;
        }
        let mut total = inner.held.sum();
        // Some file systems fill the disk before they refuse an allocation that does not fit.
        let mut free = place.free_bytes().unwrap_or(u64::MAX) / BLOCK_BYTES * BLOCK_BYTES;
        // A row may lack less than a block: a power loss can leave the file with any length.
        // BOUND: six rows; each iteration adds a block or more to one, or the rest, or halves the
        // step.
        for (held, wanted) in inner.held.with(&inner.rows) {
            let mut step = wanted.saturating_sub(*held).min(free);
            while step > 0 {
                match place.allocate(total, total + step) {
                    Ok(()) => {
                        total += step;
                        *held += step;
                        free -= step;
                        step = step.min(wanted - *held).min(free);
                    }
                    Err(e) if is_full(&e) => step = (step / 2) / BLOCK_BYTES * BLOCK_BYTES,
                    // This affects only space; a later call retries.
                    Err(_) => break,
                }
            }
        }
        !inner.is_short()
    }

    /// Returns whether it has less space than wanted.
    pub(crate) fn is_short(&self) -> bool {
        self.place.is_some() && self.inner.lock().is_short()
    }

    /// Returns whether the disk was found full and had no space for a memtable's log since: jobs
    /// then take less at a time.
    pub(crate) fn is_tight(&self) -> bool {
        self.tight.load(Ordering::Relaxed)
    }

    /// Lets drains of puts take the rows of deletes, which are drained after them.
    pub(crate) fn want_drains(self: &Arc<Self>) -> WantedDrains {
        self.drains_wanted.fetch_add(1, Ordering::Relaxed);
        WantedDrains(Arc::clone(self))
    }

    /// Returns whether drains of puts may take the rows of deletes.
    pub(crate) fn are_drains_wanted(&self) -> bool {
        self.drains_wanted.load(Ordering::Relaxed) > 0
    }

    /// Notes whether a step without entitlement found the disk full.
    pub(crate) fn note(&self, full: bool) {
        let was_full = self.tight.swap(full, Ordering::Relaxed);
        match &self.place {
            Some(place) if full && !was_full => event!(
                warn,
                "terrace::job",
                place.db,
                "the disk is full; only steps that free space use the reserve"
            ),
            Some(place) if was_full && !full => event!(
                info,
                "terrace::job",
                place.db,
                "the disk has space for logs again"
            ),
            _ => {}
        }
    }

    /// Returns the free bytes of the disk and of the reserve together, or `None` if nothing reports
    /// them.
    pub(crate) fn room(&self) -> Option<u64> {
        // LOCK: held over both reads, so that bytes given up in between are counted once.
        let inner = self.inner.lock();
        let free = self.place.as_ref()?.free_bytes()?;
        Some(free.saturating_add(inner.held.sum()))
    }

    /// Returns the bytes that the row of tables has.
    pub(crate) fn held_for_tables(&self) -> u64 {
        self.inner.lock().held.tables
    }

    /// Returns whether the disk has space for a table file of `bytes`, including the row of tables.
    /// Always true while there are no table files.
    pub(crate) fn has_room_for_table(&self, bytes: u64) -> bool {
        let inner = self.inner.lock();
        if inner.rows.tables == 0 || bytes <= inner.held.tables {
            return true;
        }
        let free = self.place.as_ref().and_then(Place::free_bytes);
        free.is_none_or(|free| bytes - inner.held.tables <= free)
    }

    /// Returns the bytes that the reserve has.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        inner.held.sum().max(inner.found)
    }

    /// Gives up `bytes`, or the rest of the rows for `row`. Returns `false` if nothing is left.
    fn give_up(&self, row: Row, bytes: u64) -> bool {
        let Some(place) = &self.place else {
            return false;
        };
        let inner = &mut *self.inner.lock();
        if inner.found > 0 {
            // During an open no other step takes any of it.
            let found = std::mem::take(&mut inner.found);
            (inner.held.ranges, inner.held.manifest) = (found / 2, found - found / 2);
        }
        let mut left = inner.held;
        let mut more = bytes.next_multiple_of(BLOCK_BYTES);
        for held in left.of(row) {
            let less = more.min(*held);
            (*held, more) = (*held - less, more - less);
        }
        if left == inner.held || place.cut(left.sum()).is_err() {
            return false;
        }
        inner.held = left;
        true
    }

    /// Wraps `fs` for steps that are entitled to `row`.
    pub(crate) fn lender(self: &Arc<Self>, fs: &Arc<dyn FileSystem>, row: Row) -> Lender {
        Lender {
            fs: Arc::clone(fs),
            loan: Loan {
                reserve: Arc::clone(self),
                row,
                ended: Arc::default(),
            },
        }
    }
}

impl Inner {
    fn is_short(&self) -> bool {
        self.held.within(self.rows) != self.rows
    }
}

impl Place {
    /// Returns the length of the file if its space can be allocated.
    fn found(&self) -> io::Result<u64> {
        let file = self.fs.open(&self.path, OpenMode::Write)?;
        let len = file.len()?;
        // The space is allocated already, unless a crash has left only the length.
        file.allocate(len)?;
        Ok(len)
    }

    /// Allocates the file up to `more` bytes; after an error its length is `held`.
    fn allocate(&self, held: u64, more: u64) -> io::Result<()> {
        let file = self.fs.open(&self.path, OpenMode::Create)?;
        let taken = file.allocate(more);
        drop(file);
        // Some file systems keep a part of an allocation that did not fit.
        taken.inspect_err(|_| drop(self.cut(held)))
    }

    /// Returns the free bytes of the disk, or `None` if the file system does not report them.
    fn free_bytes(&self) -> Option<u64> {
        let dir = self.path.parent().unwrap_or(Path::new("."));
        self.fs.free_bytes(dir).ok().flatten()
    }

    /// Frees the space after `len`.
    fn cut(&self, len: u64) -> io::Result<()> {
        match len {
            0 => self.fs.remove(&self.path),
            len => self.fs.open(&self.path, OpenMode::Write)?.set_len(len),
        }
    }
}

/// The entitlement of a file system to a row of the reserve.
#[derive(Clone)]
struct Loan {
    reserve: Arc<Reserve>,
    row: Row,
    ended: Arc<AtomicBool>,
}

impl Loan {
    /// Runs `step`, which needs `bytes`, until it succeeds or nothing is left to give up.
    fn with_room<T>(&self, bytes: u64, step: impl Fn() -> io::Result<T>) -> io::Result<T> {
        // BOUND: each iteration but the last shrinks the reserve.
        loop {
            match step() {
                Err(e) if is_full(&e) => {
                    self.reserve.note(true);
                    let ended = self.ended.load(Ordering::Relaxed);
                    if ended || !self.reserve.give_up(self.row, bytes.max(1)) {
                        return Err(e);
                    }
                }
                done => return done,
            }
        }
    }
}

/// A file system for steps that are entitled to a part of the reserve.
pub(crate) struct Lender {
    fs: Arc<dyn FileSystem>,
    loan: Loan,
}

impl Lender {
    /// Returns a flag that ends the loan when set: space taken stays, and no more is given up.
    pub(crate) fn end(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.loan.ended)
    }
}

struct LentFile {
    file: Box<dyn File>,
    loan: Loan,
}

impl File for LentFile {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(off, buf)
    }

    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        // The write is retried from its start, since a part of it may have been written.
        let write = || self.file.write_at(off, buf);
        self.loan.with_room(buf.len() as u64, write)
    }

    fn write_durable_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        self.write_at(off, buf)?;
        self.file.write_durable_at(off, buf)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.loan.with_room(len, || self.file.allocate(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn begin_sync(&self, off: u64, len: u64) -> io::Result<()> {
        self.file.begin_sync(off, len)
    }

    fn advise(&self, off: u64, len: u64, advice: Advice) -> io::Result<()> {
        self.file.advise(off, len, advice)
    }

    fn prefault(&self, off: u64, len: u64) -> io::Result<()> {
        self.file.prefault(off, len)
    }
}

impl FileSystem for Lender {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.fs.create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        // A name may need a block of its directory.
        let file = self
            .loan
            .with_room(BLOCK_BYTES, || self.fs.open(path, mode))?;
        let loan = self.loan.clone();
        Ok(Box::new(LentFile { file, loan }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename_new(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fs.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.sync_dir(dir)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.fs.absolute(path)
    }

    fn identity(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        self.fs.identity(path)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        self.fs.free_bytes(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.fs.exists(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        self.fs.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.fs.lock_shared(path)
    }
}

#[cfg(test)]
mod tests;
