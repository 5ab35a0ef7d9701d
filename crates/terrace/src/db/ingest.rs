//! Bulk load: sorted pairs written directly into the tables of a database.

use std::time::SystemTime;

use crate::db::{Db, Keyspace};
use crate::engine::ingest::Ingest as Entries;
use crate::error::{Error, Result};
use crate::parts::expiry::{Millis, millis_of};
use crate::types::KEY_BYTES_MAX;

/// The longest value in bytes.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// A bulk load: pairs in key order, written once, bypassing logs and memtables. All of them become
/// visible at once when [`finish`](Ingest::finish) returns, or none does, even after a crash.
///
/// They are newer than everything written before `finish` was called: a pair replaces one with the
/// same key, and earlier snapshots do not see it. If the value is dropped without `finish`, nothing
/// is added.
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

/// The result of an ingest.
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
    /// Begins a bulk load into this keyspace. A database can have one at a time.
    ///
    /// Designs with table files write them, and the data needs no space in the pool. `MioDb` writes
    /// tables in its pool, which must have space for all of them at once.
    ///
    /// # Errors
    /// `Invalid` if another ingest is in progress or the keyspace was dropped, `Unsupported` for a
    /// database that keeps its tables in plain memory, `Stopped`, `Closed`.
    pub fn ingest(&self) -> Result<Ingest> {
        let entries = self.engine().ingest(self.id())?;
        Ok(Ingest { entries })
    }
}

impl Ingest {
    /// Adds the next pair. Its key must be above the last one's. Beyond the size of a memtable,
    /// added pairs are written to the medium gradually, in tables that nothing names yet.
    ///
    /// # Errors
    /// `Invalid` for a key that is not above the last one, over 64 KiB, or a value that is too
    /// large: the pair is left out and the next may follow. `Full`, `Io`, `Stopped`, `Closed`: the
    /// ingest cannot continue, and adds nothing.
    pub fn add(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add_pair(key.as_ref(), value.as_ref(), 0)
    }

    /// Adds the next pair, which expires at `expiry`; see [`Db::put_with_expiry`]. Otherwise as
    /// [`add`](Ingest::add).
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
                "the pair has a key of {} bytes and a value of {} bytes, but the maximum is \
                 {KEY_BYTES_MAX} for keys and {VALUE_BYTES_MAX} for values",
                key.len(),
                value.len()
            )));
        }
        if let Some(last) = self.entries.last_key().filter(|last| key <= *last) {
            return Err(Error::invalid(format!(
                "the key \"{}\" is not greater than the previous key \"{}\": sort the pairs by the \
                 bytes of their keys, without duplicates",
                key.escape_ascii(),
                last.escape_ascii()
            )));
        }
        self.entries.add(key, value, expiry)
    }

    /// Makes everything durable and visible at once.
    ///
    /// Writers wait during that step: for one manifest edit, and until older entries between the
    /// first and the last key that were written just before have moved down.
    ///
    /// # Errors
    /// `Full`, `Io`, `Stopped`, `Closed`, and `Invalid` after a failed `add`, if the keyspace was
    /// dropped, or if four billion entries were written since the ingest began. None of the pairs
    /// is visible then, unless the error is `Stopped` or comes from the manifest; then reopening
    /// the database shows all of them or none.
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
