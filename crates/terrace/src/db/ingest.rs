//! This file is bulk load: sorted pairs that go into the tables of a database directly.

use std::time::SystemTime;

use crate::db::{Db, Keyspace};
use crate::engine::ingest::Ingest as Entries;
use crate::error::{Error, Result};
use crate::parts::expiry::{Millis, millis_of};
use crate::types::KEY_BYTES_MAX;

/// The longest value in bytes.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// A bulk load: pairs in the order of their keys, written once, past log and memtables. All of them
/// appear at once when [`finish`](Ingest::finish) returns, or none does, after a crash too.
///
/// They are newer than everything that was written before `finish` was called: a pair takes the
/// place of one with the same key, and snapshots taken before do not see it. Dropping the value
/// instead of finishing it leaves nothing.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let db = terrace::Db::open(folder.path(), terrace::testing::small_options())?;
/// let mut ingest = db.ingest()?;
/// for n in 0..1000 {
///     ingest.add(format!("key{n:04}"), "value")?;
/// }
/// assert_eq!(db.get("key0007")?, None);
/// assert_eq!(ingest.finish()?.entries, 1000);
/// assert_eq!(db.get("key0007")?, Some(b"value".to_vec()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Ingest {
    entries: Entries,
}

/// What an ingest has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestReport {
    /// Pairs.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

impl Db {
    /// Begins a bulk load into the default keyspace; see [`Keyspace::ingest`].
    pub fn ingest(&self) -> Result<Ingest> {
        self.default_keyspace().ingest()
    }
}

impl Keyspace {
    /// Begins a bulk load into this keyspace. A database has one at a time.
    ///
    /// Designs with table files write them, and the pool is not needed for the data. `MioDb` writes
    /// tables in its pool, where all of it must have room at once.
    ///
    /// # Errors
    /// `Invalid` when another one has not ended or the keyspace was dropped, `Unsupported` for a
    /// database that keeps its tables in plain memory, `Stopped`, `Closed`.
    pub fn ingest(&self) -> Result<Ingest> {
        let entries = self.engine().ingest(self.id())?;
        Ok(Ingest { entries })
    }
}

impl Ingest {
    /// Adds the next pair. Its key must be above the last one's. What was added is on the medium
    /// by and by, in tables that nothing names.
    ///
    /// # Errors
    /// `Invalid` for a key that is not above the last one, over 64 KiB, or a value that is too
    /// large: the pair is left out and the next may follow. `Full`, `Io`, `Stopped`, `Closed`: the
    /// ingest cannot go on, and leaves nothing.
    pub fn add(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add_pair(key.as_ref(), value.as_ref(), 0)
    }

    /// Adds the next pair, which is absent from the moment `expiry` on; see
    /// [`Db::put_with_expiry`]. Otherwise as [`add`](Ingest::add).
    pub fn add_with_expiry(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: SystemTime,
    ) -> Result<()> {
        self.add_pair(key.as_ref(), value.as_ref(), millis_of(expiry))
    }

    fn add_pair(&mut self, key: &[u8], value: &[u8], expiry: Millis) -> Result<()> {
        if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a pair has a key of {} bytes and a value of {}, but at most {KEY_BYTES_MAX} and \
                 {VALUE_BYTES_MAX} are possible",
                key.len(),
                value.len()
            )));
        }
        if let Some(last) = self.entries.last_key().filter(|last| key <= *last) {
            return Err(Error::invalid(format!(
                "the key \"{}\" is not above the one before it, \"{}\": pairs must be sorted by \
                 their bytes, each key once",
                key.escape_ascii(),
                last.escape_ascii()
            )));
        }
        self.entries.add(key, value, expiry)
    }

    /// Makes everything durable and lets it appear at once.
    ///
    /// Writers wait while it appears: for one manifest edit, and for older entries between the
    /// first and the last key that were written in this moment to move out of the way.
    ///
    /// # Errors
    /// `Full`, `Io`, `Stopped`, `Closed`, and `Invalid` after an `add` that failed, or when the
    /// keyspace was dropped. Nothing of it has appeared then, unless the error is `Stopped` or comes
    /// from the manifest; then reopening the database shows all of it or nothing.
    pub fn finish(self) -> Result<IngestReport> {
        let (entries, bytes) = self.entries.finish()?;
        Ok(IngestReport { entries, bytes })
    }
}

impl std::fmt::Debug for Ingest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.entries.last_key() {
            Some(key) => write!(f, "Ingest(up to {})", key.escape_ascii()),
            None => f.write_str("Ingest(empty)"),
        }
    }
}
