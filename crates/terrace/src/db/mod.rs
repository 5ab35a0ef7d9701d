//! The public API: [`Db`] and the types around it.

mod batch;
mod bounds;
mod check;
mod checkpoint;
mod copied;
mod create;
mod disk;
mod handle;
mod ingest;
pub mod inspect;
mod iter;
mod keyspace;
mod open;
mod pair;
mod repair;
mod snapshot;
mod trace;
mod unfinished;

use std::cell::RefCell;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use terrace_media::FileSystem;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::options::{Options, Workers};
use crate::parts::batch::Batch;
use crate::types::{DEFAULT_KEYSPACE, Durability, EntryKind, KEY_BYTES_MAX};

use bounds::Bounds;
use handle::Handle;
use iter::with_expiry;
use trace::ScanTrace;

pub use crate::engine::recover::RecoveryReport;
pub use batch::WriteBatch;
pub use check::{Progress, VerifyReport};
pub use checkpoint::CheckpointReport;
pub use ingest::{Ingest, IngestReport};
pub use iter::{ExpiringValue, Iter};
pub use keyspace::Keyspace;
pub use open::DbBuilder;
pub use pair::{KeyValue, PairRef};
pub use repair::{
    Loss, PartState, RepairOutcome, RepairPart, RepairReport, RepairSource, RepairedKeyspace,
};
pub use snapshot::Snapshot;

/// An open database. Clones are handles to the same database, usable from any thread. It stays
/// open, and locked, until the last `Db`, [`Keyspace`], [`Snapshot`] and [`Iter`] of it is dropped,
/// or until [`close`](Db::close).
#[derive(Clone)]
pub struct Db(Arc<Handle>);

thread_local! {
    /// The batch in which single writes of this thread are encoded.
    static SINGLE: RefCell<Batch> = RefCell::default();
}

impl Db {
    /// Opens the database in the directory `path`, creating it unless the options forbid that.
    ///
    /// The options are used as given, defaults included, and those that shape the data
    /// ([`Options::kept`]) are written to the database's OPTIONS file if they differ from it. To
    /// keep the options that the database was last opened with, begin with [`Options::load`], or
    /// use a builder without options.
    ///
    /// # Errors
    /// `Invalid` for options that cannot be used, `Locked` if the database is open elsewhere,
    /// `Unsupported` for another design or a newer format, `Corruption` for damaged files, `Io` and
    /// `Full` from the system.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Db::builder(path).options(options).open()
    }

    /// Returns a builder, for opening with other components than the system's.
    pub fn builder(path: impl AsRef<Path>) -> DbBuilder {
        DbBuilder::new(path.as_ref())
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// Returns the file system that contains the database's directory.
    pub(super) fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.0.fs
    }

    /// Returns the database's files as this opening sees them.
    pub(super) fn files(&self) -> &Arc<dyn FileSystem> {
        &self.0.files
    }

    /// Records reads of `keys`, if calls are traced.
    #[inline]
    pub(super) fn trace_gets<K: AsRef<[u8]>>(&self, keyspace: u32, keys: &[K]) {
        if let Some(trace) = &self.0.trace {
            keys.iter()
                .for_each(|key| trace.get(keyspace, key.as_ref()));
        }
    }

    pub(super) fn catalog(&self) -> &Mutex<()> {
        &self.0.catalog
    }

    /// Sets `key` to `value` with the durability [`Options::durability`].
    ///
    /// # Errors
    /// `Invalid` for a key over 64 KiB or a value that no memtable can hold, `Full` if the pool is
    /// full, `Stopped` after an earlier write failed, `Closed`, `Io`.
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, self.options().durability)
    }

    /// Sets `key` to `value` with the given durability.
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.write_one(EntryKind::Put, DEFAULT_KEYSPACE, key, value, durability)
    }

    /// Sets `key` to `value` for the duration `ttl`, at least a millisecond. The expiry is in whole
    /// milliseconds of the calendar, so it may be up to one millisecond early. After it the key is
    /// permanently absent: no older value comes back, and the space is freed in the background.
    /// Snapshots and iterators still see entries that had not expired when they were made.
    ///
    /// The time is the system's, and never goes back for a database: entries that an edit of the
    /// manifest (a flush, a drain, a compaction, a close) has recorded as expired stay expired
    /// after a crash, even if the clock was set back.
    ///
    /// # Errors
    /// As [`put`](Db::put).
    pub fn put_with_ttl(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        self.default_keyspace().put_with_ttl(key, value, ttl)
    }

    /// Sets `key` to `value` until the time `expiry`, which is stored in milliseconds, rounded up.
    /// After it the key is absent, as after [`put_with_ttl`](Db::put_with_ttl); if `expiry` is in
    /// the past, the key is absent at once.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let db = terrace::Db::open(folder.path(), terrace::testing::small_options())?;
    /// use std::time::{Duration, UNIX_EPOCH};
    /// let year_2100 = UNIX_EPOCH + Duration::from_secs(4_102_444_800);
    /// db.put_with_expiry("session", "7f3a", year_2100)?;
    /// let found = db.get_with_expiry("session")?;
    /// assert_eq!(found, Some((b"7f3a".to_vec(), Some(year_2100))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`put`](Db::put).
    pub fn put_with_expiry(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: SystemTime,
    ) -> Result<()> {
        self.default_keyspace().put_with_expiry(key, value, expiry)
    }

    /// Deletes `key`. It is no error if the key is absent.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, self.options().durability)
    }

    /// Deletes `key` with the given durability.
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.write_one(
            EntryKind::Delete,
            DEFAULT_KEYSPACE,
            key.as_ref(),
            &[],
            durability,
        )
    }

    /// Deletes all keys in `bounds` of the default keyspace, at the cost of one entry whatever
    /// their number; reads and scans skip deleted keys without looking at them. Empty bounds, such
    /// as a range whose end comes before its start, delete nothing. Snapshots still see what they
    /// saw before. The space is freed in the background.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let db = terrace::Db::open(folder.path(), terrace::testing::small_options())?;
    /// for day in ["2024-12-31", "2025-01-01", "2025-01-02"] {
    ///     db.put(day, "seen")?;
    /// }
    /// db.delete_range(.."2025-01-01")?;
    /// assert_eq!(db.iter()?.count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`put`](Db::put).
    pub fn delete_range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<()> {
        self.delete_range_with(bounds, self.options().durability)
    }

    /// Deletes all keys in `bounds` with the given durability.
    pub fn delete_range_with<K: AsRef<[u8]>>(
        &self,
        bounds: impl RangeBounds<K>,
        durability: Durability,
    ) -> Result<()> {
        self.default_keyspace()
            .delete_range_with(bounds, durability)
    }

    pub(super) fn write_one(
        &self,
        kind: EntryKind,
        keyspace: u32,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        if key.len() > KEY_BYTES_MAX {
            return Err(too_large(key.len()));
        }
        if value.len() > 1 << 30 {
            return Err(too_large(value.len()));
        }
        let memory = &self.engine().shared.memory;
        // The batch, and its previous allocation while it grows.
        let _turn = memory.batch(2 * (key.len() + value.len()) as u64);
        let written = SINGLE.with_borrow_mut(|batch| {
            batch.clear();
            batch.push(kind, keyspace, key, value);
            let result = self.engine().write(batch, durability);
            if batch.payload.capacity_bytes() > memory.limits.kept_batch_bytes {
                *batch = Batch::default();
            }
            result
        });
        if let (Some(trace), Ok(())) = (&self.0.trace, &written) {
            trace.write(kind, keyspace, key, value);
        }
        written
    }

    /// Writes `batch` atomically. Later entries of a key win over earlier ones.
    ///
    /// # Errors
    /// As [`put`](Db::put); `Invalid` also for a batch over an eighth of the pool or 1 GiB, and for
    /// one with entries for a keyspace that was dropped or that belongs to another database.
    pub fn write(&self, mut batch: WriteBatch, durability: Durability) -> Result<()> {
        self.write_ref(&mut batch, durability)
    }

    /// As [`write`](Db::write), with a batch that the caller can clear and reuse.
    pub fn write_ref(&self, batch: &mut WriteBatch, durability: Durability) -> Result<()> {
        if let Some(bytes) = batch.too_large {
            return Err(too_large(bytes));
        }
        if !batch.belongs_to(self.engine().shared.opening) {
            return Err(keyspace::foreign());
        }
        if batch.batch.expiring() > 0 {
            let now = self.engine().shared.time.begin();
            let bytes = 2 * batch.batch.payload.len_bytes() as u64;
            let _turn = self.engine().shared.memory.batch(bytes);
            let mut expiring = batch.batch.expiring_from(now)?;
            self.engine().write(&mut expiring, durability)?;
        } else {
            self.engine().write(&mut batch.batch, durability)?;
        }
        if let Some(trace) = &self.0.trace {
            trace.batch(&batch.batch);
        }
        Ok(())
    }

    /// Returns the value of `key`, or `None` if it is absent.
    ///
    /// # Errors
    /// `Corruption` if the value's checksum is wrong, `Closed`.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let found = self.engine().get(DEFAULT_KEYSPACE, key.as_ref(), None)?;
        self.trace_gets(DEFAULT_KEYSPACE, &[key]);
        Ok(found)
    }

    /// Returns the value of `key` and its expiry, if it has one; `None` if the key is absent. Costs
    /// the same as [`get`](Db::get).
    ///
    /// # Errors
    /// As [`get`](Db::get).
    pub fn get_with_expiry(&self, key: impl AsRef<[u8]>) -> Result<Option<ExpiringValue>> {
        let found = self
            .engine()
            .get_expiring(DEFAULT_KEYSPACE, key.as_ref(), None)?;
        self.trace_gets(DEFAULT_KEYSPACE, &[key]);
        Ok(found.map(with_expiry))
    }

    /// Returns the values of `keys` at one moment, in their order. Costs less than single gets if
    /// values are in table files: keys of one block share its read.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let found = self.engine().multi_get(DEFAULT_KEYSPACE, keys, None)?;
        self.trace_gets(DEFAULT_KEYSPACE, keys);
        Ok(found)
    }

    /// Creates a snapshot of the current moment, for reads until it is dropped.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.engine().check_open()?;
        Ok(Snapshot::new(&self.0))
    }

    /// Returns an iterator over all pairs in key order.
    pub fn iter(&self) -> Result<Iter> {
        self.scan(DEFAULT_KEYSPACE, Bounds::all())
    }

    /// Returns an iterator over the pairs whose keys are in `bounds`.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let db = terrace::Db::open(folder.path(), terrace::testing::small_options())?;
    /// db.put("a", "1")?;
    /// db.put("b", "2")?;
    /// let last = db.range("a".."c")?.next_back().transpose()?;
    /// assert_eq!(last.map(|pair| pair.key().to_vec()), Some(b"b".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<Iter> {
        self.scan(DEFAULT_KEYSPACE, Bounds::of(&bounds))
    }

    /// Returns an iterator over the pairs whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.scan(DEFAULT_KEYSPACE, Bounds::prefix(prefix.as_ref()))
    }

    pub(super) fn scan(&self, keyspace: u32, bounds: Bounds) -> Result<Iter> {
        self.engine().check_open()?;
        let point = self.engine().register_moment();
        let trace = self.0.trace.as_ref();
        let trace = trace.and_then(|trace| ScanTrace::of(trace, keyspace, &bounds));
        let iter = Iter::new(self.engine(), keyspace, bounds, point)?;
        let mut iter = iter.keep_open(&self.0);
        iter.record_to(trace);
        Ok(iter)
    }

    /// Moves every memtable into the buffer. Entries written with `Durability::Volatile` before are
    /// durable afterwards, except without a pool: the buffer is in memory then, and
    /// [`drain`](Db::drain) makes them durable.
    pub fn flush(&self) -> Result<()> {
        self.engine().flush()
    }

    /// Moves everything that was written before into the bottom, to its final level, and waits
    /// until background work rests. Afterwards the buffer is empty, and if the bottom is levels of
    /// files, so is level 0: a read searches at most one table per level. Concurrent writes may
    /// prolong it.
    ///
    /// # Errors
    /// `Full` if the pool or the disk has no space for the data that has to move; what has moved by
    /// then stays, and the rest resumes automatically once there is space.
    pub fn drain(&self) -> Result<()> {
        self.engine().drain()
    }

    /// Moves the current contents of `bounds` as deep into the bottom as they can go, and drops
    /// what no reader can see: superseded versions, and tombstones with all that they hide. Takes
    /// time and writes in proportion to the data in the range, and to all data in the buffer, whose
    /// tables leave it oldest first. If the bottom is the repository, this is a drain.
    ///
    /// Concurrent writes do not prolong it. A close on another handle ends it between two steps.
    ///
    /// # Errors
    /// `Full` if the pool or the disk has no space, `Closed`, and the errors of a write.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let db = terrace::Db::open(folder.path(), terrace::testing::small_options())?;
    /// db.put("a", "1")?;
    /// db.delete("a")?;
    /// db.compact_range("a".."b")?;
    /// db.compact_range::<&str>(..)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact_range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<()> {
        self.compact(DEFAULT_KEYSPACE, &Bounds::of(&bounds))
    }

    pub(super) fn compact(&self, keyspace: u32, bounds: &Bounds) -> Result<()> {
        let (from, to) = bounds.places(keyspace);
        let (first, last) = (from.key(), to.key());
        if first > last {
            return self.engine().check_open();
        }
        self.engine().check_keyspace(keyspace)?;
        self.engine().compact_range(first, last)
    }

    /// Waits until background work rests, including work that is worth doing only while nothing is
    /// written: garbage in table files is compacted away earlier, and a buffer in memory leaves two
    /// logs at most. Does not wait for work that waits for space on a full disk;
    /// [`Metrics::retries`] reports it.
    pub fn wait_idle(&self) -> Result<()> {
        self.engine().wait_idle()
    }

    /// Returns all metrics. Cheap.
    pub fn metrics(&self) -> Metrics {
        self.engine().metrics()
    }

    /// Returns the approximate bytes of the pairs in `bounds`, including superseded versions.
    pub fn approximate_size<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<u64> {
        self.approximate(DEFAULT_KEYSPACE, &Bounds::of(&bounds))
            .map(|(_, bytes)| bytes)
    }

    /// Returns the approximate number of pairs in the default keyspace, including superseded
    /// versions.
    pub fn approximate_len(&self) -> Result<u64> {
        self.approximate(DEFAULT_KEYSPACE, &Bounds::all())
            .map(|(entries, _)| entries)
    }

    pub(super) fn approximate(&self, keyspace: u32, bounds: &Bounds) -> Result<(u64, u64)> {
        self.engine().check_open()?;
        let (from, to) = bounds.places(keyspace);
        let mut sum = (0, 0);
        for source in &self.engine().views.hold().sources {
            let (entries, bytes) = source.approximate(&from.target(), &to.target())?;
            sum = (sum.0 + entries, sum.1 + bytes);
        }
        self.engine().check_still_open()?;
        self.engine().check_keyspace(keyspace)?;
        Ok(sum)
    }

    /// Returns what opening the database found and did.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.0.recovery
    }

    /// Returns the options in force: those of [`Db::options_stated`], with smaller sizes of
    /// memtables, logs, tables, extents and the pool if a disk has no space for these, and with
    /// those that the design sets, like the size of level 1 in `MatrixKv`.
    pub fn options(&self) -> &Options {
        &self.engine().shared.options
    }

    /// Returns the options as they were stated, which the database keeps for the next open.
    pub fn options_stated(&self) -> &Options {
        &self.engine().shared.stated
    }

    /// Returns the database's directory.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the number of background jobs that could run a step now, with [`Workers::Manual`].
    pub fn step_count(&self) -> usize {
        self.engine().step_count().unwrap_or(0)
    }

    /// Runs one bounded step of the `pick`-th (modulo their number) of the background jobs that
    /// could run, with [`Workers::Manual`]. Returns false if there is nothing to do.
    ///
    /// # Errors
    /// `Invalid` with other workers; the failure of the step, after which writes get `Stopped`.
    pub fn step(&self, pick: usize) -> Result<bool> {
        if self.options().background.workers != Workers::Manual {
            return Err(Error::invalid(
                "steps can be run by the caller only with Workers::Manual",
            ));
        }
        self.engine().step(pick)
    }

    /// Closes the database: flushes data from memory (a little that is in the log may stay; without
    /// a pool all of the buffer goes to table files, so that the next open finds no log), stops
    /// background work, and makes everything durable. Takes as long as these writes, and reports to
    /// [`DbBuilder::progress`]. Every later call on any handle gets `Closed`. Dropping the last
    /// handle does the same and ignores errors.
    ///
    /// # Errors
    /// `Full` if the pool or a disk has no space for entries that were written as
    /// [`Volatile`](crate::Durability::Volatile) and that are in no log. Then nothing is lost and
    /// the database stays open, and logs all further writes: free space and close again, or drop
    /// the last handle, which gives those entries up. A full pool or disk prevents no other close.
    /// After any other error the database is closed. Without a pool nothing keeps `Volatile`
    /// entries of `MioDb` and `NoveLsmNoSst`.
    pub fn close(&self) -> Result<()> {
        self.0.close(false)
    }
}

fn too_large(bytes: usize) -> Error {
    Error::invalid(format!(
        "a key or value has {bytes} bytes; keys can have at most {KEY_BYTES_MAX} bytes, and values \
         must fit an eighth of the pool and at most 1 GiB"
    ))
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Db({})", self.0.path.display())
    }
}
