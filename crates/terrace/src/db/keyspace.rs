//! Keyspaces: named sets of keys in one database, and the catalog that names them.
//!
//! The catalog consists of entries in the system keyspace, written through the log like any other:
//! a name maps to an id, ids are never reused, and a dropped id is remembered until an open finds
//! no data of it. Dropping writes one entry; the space is freed as tables drain.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use terrace_media::Medium;

use crate::db::Db;
use crate::db::WriteBatch;
use crate::db::bounds::Bounds;
use crate::db::iter::{ExpiringValue, Iter, with_expiry};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::parts::batch::Batch;
use crate::parts::key::Target;
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::stages::Source;
use crate::types::{DEFAULT_KEYSPACE, Durability, EntryKind, SYSTEM_KEYSPACE};

/// The name of the keyspace for calls without a keyspace.
pub(crate) const DEFAULT_NAME: &str = "default";
const NAME_BYTES_MAX: usize = 255;
const NAMES: &str = "name/";
const DROPPED: &str = "dropped/";
const NEXT_ID: &str = "next";

/// A named set of keys of one database. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Keyspace {
    db: Db,
    id: u32,
    name: Arc<str>,
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyspace({:?})", self.name)
    }
}

impl Keyspace {
    pub(super) fn new(db: &Db, id: u32, name: &str) -> Keyspace {
        Keyspace {
            db: db.clone(),
            id,
            name: name.into(),
        }
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        self.db.engine()
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Returns the id, for calls on `engine`, or an error if the keyspace belongs to another
    /// database.
    pub(super) fn id_in(&self, engine: &Arc<Engine>) -> Result<u32> {
        match Arc::ptr_eq(self.engine(), engine) {
            true => Ok(self.id),
            false => Err(foreign()),
        }
    }

    /// Returns the keyspace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets `key` to `value`. Errors as [`Db::put`], and `Invalid` if the keyspace was dropped.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, self.db.options().durability)
    }

    /// Sets `key` to `value` with the given durability.
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        self.db.write_one(
            EntryKind::Put,
            self.id,
            key.as_ref(),
            value.as_ref(),
            durability,
        )
    }

    /// Sets `key` to `value` for the duration `ttl`; see [`Db::put_with_ttl`].
    pub fn put_with_ttl(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put_with_ttl_in(self, key, value, ttl);
        self.db.write(batch, self.db.options().durability)
    }

    /// Sets `key` to `value` until the time `expiry`; see [`Db::put_with_expiry`].
    pub fn put_with_expiry(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: SystemTime,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put_with_expiry_in(self, key, value, expiry);
        self.db.write(batch, self.db.options().durability)
    }

    /// Deletes `key`. It is no error if the key is absent.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, self.db.options().durability)
    }

    /// Deletes `key` with the given durability.
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.db
            .write_one(EntryKind::Delete, self.id, key.as_ref(), &[], durability)
    }

    /// Deletes all keys in `bounds`, at the cost of one entry whatever their number. Empty bounds,
    /// such as a range whose end comes before its start, delete nothing. The space is freed in the
    /// background.
    pub fn delete_range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<()> {
        self.delete_range_with(bounds, self.db.options().durability)
    }

    /// Deletes all keys in `bounds` with the given durability.
    pub fn delete_range_with<K: AsRef<[u8]>>(
        &self,
        bounds: impl RangeBounds<K>,
        durability: Durability,
    ) -> Result<()> {
        self.db.engine().check_keyspace(self.id)?;
        let mut batch = WriteBatch::new();
        batch.push_range(self.id, &Bounds::of(&bounds));
        self.db.write(batch, durability)
    }

    /// Returns the value of `key`, or `None` if it is absent.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let found = self.db.engine().get(self.id, key.as_ref(), None)?;
        self.db.trace_gets(self.id, &[key]);
        Ok(found)
    }

    /// Returns the value of `key` and its expiry; see [`Db::get_with_expiry`].
    pub fn get_with_expiry(&self, key: impl AsRef<[u8]>) -> Result<Option<ExpiringValue>> {
        let found = self.db.engine().get_expiring(self.id, key.as_ref(), None)?;
        self.db.trace_gets(self.id, &[key]);
        Ok(found.map(with_expiry))
    }

    /// Returns the values of `keys` at one moment.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let found = self.db.engine().multi_get(self.id, keys, None)?;
        self.db.trace_gets(self.id, keys);
        Ok(found)
    }

    /// Returns an iterator over all pairs.
    pub fn iter(&self) -> Result<Iter> {
        self.db.scan(self.id, Bounds::all())
    }

    /// Returns an iterator over the pairs whose keys are in `bounds`.
    pub fn range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<Iter> {
        self.db.scan(self.id, Bounds::of(&bounds))
    }

    /// Returns an iterator over the pairs whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.db.scan(self.id, Bounds::prefix(prefix.as_ref()))
    }

    /// Moves the current contents of `bounds` as deep into the bottom as they can go; see
    /// [`Db::compact_range`].
    pub fn compact_range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<()> {
        self.db.compact(self.id, &Bounds::of(&bounds))
    }

    /// Returns the approximate bytes of the pairs in `bounds`.
    pub fn approximate_size<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<u64> {
        self.db
            .approximate(self.id, &Bounds::of(&bounds))
            .map(|(_, bytes)| bytes)
    }

    /// Returns the approximate number of pairs, including superseded versions.
    pub fn approximate_len(&self) -> Result<u64> {
        self.db
            .approximate(self.id, &Bounds::all())
            .map(|(entries, _)| entries)
    }
}

/// BOUND: an open checks at most this many dropped ids for remaining data.
const FORGET_MAX: usize = 1000;

/// Reads the ids of dropped keyspaces from the catalog.
fn dropped_ids(engine: &Arc<Engine>) -> Result<Vec<u32>> {
    let mut dropped = Vec::new();
    for record in records(engine, DROPPED)? {
        let (name, _) = record?.into_pair();
        let id = name
            .get(DROPPED.len()..)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| digits.parse().ok());
        match id {
            Some(id) => dropped.push(id),
            None => return Err(damaged(&name)),
        }
    }
    Ok(dropped)
}

/// Reads which keyspaces were dropped, and returns those without remaining data. Only an open can
/// decide that: every log that may be replayed has been, so all data of a keyspace is in a source;
/// no job moves entries yet, and no handle from before exists. And only after a `clean` close.
///
/// CRASH: on `Mapped` never. Entries removed from a table are still in its extents, and after power
/// loss tables are rebuilt from everything in them: nothing would record the drop any more.
/// Elsewhere the last writes of a killed process need not be durable.
pub(super) fn load_dropped(engine: &Arc<Engine>, clean: bool) -> Result<Vec<u32>> {
    let sources = &engine.views.hold().sources;
    let told = clean && engine.shared.pool.medium() != Medium::Mapped;
    let dropped = dropped_ids(engine)?;
    if !dropped.is_empty() && !clean && !engine.shared.options.read_only {
        // PERSIST: the drops before a job leaves out what they cover. A killed process may have
        // left them in the system's cache only. Reversed, a power loss would bring a keyspace back
        // without some of its entries.
        engine.stages.front.sync_logs()?;
    }
    let mut gone = Vec::new();
    for (at, id) in dropped.into_iter().enumerate() {
        let mut left = !told || at >= FORGET_MAX;
        for source in sources {
            left = left || has_any(&**source, id)? || has_any(&**source, id | RANGE_DELETE_BIT)?;
        }
        match left {
            true => engine.shared.dropped.insert(id),
            false => gone.push(id),
        }
    }
    Ok(gone)
}

/// Removes the records of dropped ids without remaining data, so that their number does not grow
/// forever.
///
/// CRASH: with a record the next open checks again; without it there is nothing that it would hide.
pub(super) fn forget(engine: &Arc<Engine>, gone: &[u32]) -> Result<()> {
    let mut batch = Batch::default();
    for id in gone {
        let record = format!("{DROPPED}{id}");
        batch.push(EntryKind::Delete, SYSTEM_KEYSPACE, record.as_bytes(), &[]);
    }
    if batch.len() == 0 {
        return Ok(());
    }
    match engine.write(&mut batch, Durability::Buffered) {
        // The next open tries again.
        Err(e) if e.kind() == ErrorKind::Full => Ok(()),
        other => other,
    }
}

/// Returns whether a source contains any entry of a keyspace, including versions that no reader can
/// see.
fn has_any(source: &dyn Source, keyspace: u32) -> Result<bool> {
    let mut cursor = source.cursor();
    cursor.hold();
    let found = cursor
        .seek(&Target::first_of(keyspace, &[]))
        .and_then(|()| Ok(cursor.entry()?.is_some_and(|e| e.keyspace == keyspace)));
    cursor.release();
    found
}

fn records(engine: &Arc<Engine>, prefix: &str) -> Result<Iter> {
    let point = engine.register_moment();
    Iter::new(
        engine,
        SYSTEM_KEYSPACE,
        Bounds::prefix(prefix.as_bytes()),
        point,
    )
}

pub(super) fn foreign() -> Error {
    Error::invalid(
        "the keyspace handle is from another database, or from an earlier opening of this one: get \
         a new handle from this database",
    )
}

fn damaged(name: &[u8]) -> Error {
    Error::corruption(format!(
        "the catalog of keyspaces has the invalid record {:?}; restore the database from a copy, \
         or recover the readable data with \"terrace repair\"",
        name.escape_ascii().to_string()
    ))
}

/// A record of the catalog.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The keyspace with this number has this name.
    Name(u32, String),
    /// The keyspace with this number was dropped.
    Dropped(u32),
    /// The number of the next keyspace.
    Next(u32),
}

impl Record {
    /// Returns the record with this key and value; `None` if they are malformed.
    pub(super) fn of(key: &[u8], value: &[u8]) -> Option<Record> {
        let key = std::str::from_utf8(key).ok()?;
        if let Some(id) = key.strip_prefix(DROPPED) {
            return id.parse().ok().map(Record::Dropped);
        }
        let id = u32::from_le_bytes(value.try_into().ok()?);
        match key.strip_prefix(NAMES) {
            Some(name) => Some(Record::Name(id, name.to_owned())),
            None => (key == NEXT_ID).then_some(Record::Next(id)),
        }
    }

    /// Appends the record to a batch.
    pub(super) fn write(&self, batch: &mut Batch) {
        let (key, id) = match self {
            Record::Name(id, name) => (format!("{NAMES}{name}"), Some(id)),
            Record::Dropped(id) => (format!("{DROPPED}{id}"), None),
            Record::Next(id) => (NEXT_ID.to_owned(), Some(id)),
        };
        let value = id.map(|id| id.to_le_bytes());
        let value = value.as_ref().map_or([].as_slice(), |id| id.as_slice());
        batch.push(EntryKind::Put, SYSTEM_KEYSPACE, key.as_bytes(), value);
    }
}

fn id_of(value: &[u8], name: &[u8]) -> Result<u32> {
    let bytes: [u8; 4] = value.try_into().map_err(|_| damaged(name))?;
    Ok(u32::from_le_bytes(bytes))
}

impl Db {
    /// Opens the keyspace `name`, and creates it if it does not exist.
    ///
    /// # Errors
    /// `Invalid` if the name is empty or longer than 255 bytes; errors of a write.
    pub fn create_keyspace(&self, name: &str) -> Result<Keyspace> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a keyspace name must have 1 to {NAME_BYTES_MAX} bytes, but {name:?} has {}",
                name.len()
            )));
        }
        let _one = self.catalog().lock();
        if let Some(keyspace) = self.keyspace(name)? {
            return Ok(keyspace);
        }
        let next = self
            .engine()
            .get(SYSTEM_KEYSPACE, NEXT_ID.as_bytes(), None)?;
        let id = match next {
            Some(value) => id_of(&value, NEXT_ID.as_bytes())?,
            None => DEFAULT_KEYSPACE + 1,
        };
        if id >= RANGE_DELETE_BIT - 1 {
            return Err(Error::invalid(
                "no keyspace numbers are left in this database: copy it into a new one",
            ));
        }
        let mut batch = Batch::default();
        Record::Name(id, name.to_owned()).write(&mut batch);
        Record::Next(id + 1).write(&mut batch);
        self.engine().write(&mut batch, Durability::Sync)?;
        Ok(Keyspace::new(self, id, name))
    }

    /// Opens the keyspace `name`; `None` if it does not exist.
    pub fn keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        if name == DEFAULT_NAME {
            return Ok(Some(self.default_keyspace()));
        }
        let record = format!("{NAMES}{name}");
        match self
            .engine()
            .get(SYSTEM_KEYSPACE, record.as_bytes(), None)?
        {
            Some(value) => {
                let id = id_of(&value, record.as_bytes())?;
                // A keyspace that is being dropped takes no more calls.
                let is_there = !self.engine().shared.dropped.contains(id);
                Ok(is_there.then(|| Keyspace::new(self, id, name)))
            }
            None => Ok(None),
        }
    }

    /// Returns the keyspace for calls without a keyspace; its name is "default".
    pub fn default_keyspace(&self) -> Keyspace {
        Keyspace::new(self, DEFAULT_KEYSPACE, DEFAULT_NAME)
    }

    /// Returns the names of all keyspaces: "default", then the others in order.
    pub fn list_keyspaces(&self) -> Result<Vec<String>> {
        let mut names = vec![DEFAULT_NAME.to_owned()];
        for record in records(self.engine(), NAMES)? {
            let (name, value) = record?.into_pair();
            if self.engine().shared.dropped.contains(id_of(&value, &name)?) {
                continue;
            }
            let text = name
                .get(NAMES.len()..)
                .and_then(|n| std::str::from_utf8(n).ok());
            names.push(text.ok_or_else(|| damaged(&name))?.to_owned());
        }
        Ok(names)
    }

    /// Drops the keyspace `name` with all its keys. Returns false if it did not exist. Handles of
    /// it get `Invalid` from then on, its snapshots and iterators too, and no call sees a part of
    /// it: a read returns the data or `Invalid`, and an acknowledged write came before the drop.
    /// The space is freed in the background.
    ///
    /// # Errors
    /// `Invalid` for "default"; errors of a write. After `Full` the keyspace exists as before;
    /// after other errors, whether it exists is known only once the database is opened again.
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        if name == DEFAULT_NAME {
            return Err(Error::invalid("the keyspace \"default\" cannot be dropped"));
        }
        let _one = self.catalog().lock();
        let Some(keyspace) = self.keyspace(name)? else {
            return Ok(false);
        };
        let mut batch = Batch::default();
        let record = format!("{NAMES}{name}");
        batch.push(EntryKind::Delete, SYSTEM_KEYSPACE, record.as_bytes(), &[]);
        Record::Dropped(keyspace.id()).write(&mut batch);
        batch.mark_freeing();
        let dropped = &self.engine().shared.dropped;
        // Before the drop has a number, so that each acknowledged write is before it.
        dropped.refuse(keyspace.id());
        if let Err(e) = self.engine().write(&mut batch, Durability::Sync) {
            if e.kind() == ErrorKind::Full {
                dropped.readmit(keyspace.id());
            }
            return Err(e);
        }
        // Durable before it takes effect: a crash must not leave a keyspace half purged.
        dropped.insert(keyspace.id());
        self.engine().jobs.wake_workers();
        Ok(true)
    }
}
