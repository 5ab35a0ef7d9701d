//! The adapter of redb.
//!
//! redb has two durabilities: `Immediate`, which syncs, and `None`, which a killed process may
//! lose. A write that survives a killed process but not a power loss needs a commit whose sync is
//! left to the operating system: for `buffered` the commits are `Immediate`, over a file whose
//! syncs return at once. redb provides `StorageBackend` for this; LMDB calls the same thing
//! `MDB_NOSYNC`.
//!
//! redb has a single cache, so it gets the whole budget. Each write is a separate transaction, as
//! the documentation of `WriteTransaction` recommends for durable writes.

use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;

use ::terrace::Durability;
use redb::backends::FileBackend;
use redb::{
    BackendError, Database, ReadableDatabase, StorageBackend, TableDefinition, WriteTransaction,
};

use super::{About, Budget, Counters, Direction, Session, Settle, Setup, Store};
use crate::error::BenchError;
use crate::space::Space;
use crate::units;

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("bench");

fn failed(e: impl Into<redb::Error>) -> BenchError {
    BenchError::peer("redb", e.into())
}

/// Opens or creates the database.
pub(super) fn open(setup: &Setup<'_>) -> Result<Box<dyn Store>, BenchError> {
    let path = setup.folder.join("redb");
    let mut open = OpenOptions::new();
    open.read(true).write(true).create_new(!setup.existing);
    let file = open
        .open(&path)
        .map_err(|e| BenchError::io("open", &path, e))?;
    let backend = FileBackend::new(file).map_err(failed)?;
    let cache_bytes = Budget::of(setup.options).total_bytes();
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes as usize);
    let durability = setup.options.durability;
    let db = if durability == Durability::Buffered {
        builder.create_with_backend(Unsynced(backend))
    } else {
        builder.create_with_backend(backend)
    };
    let store = Redb {
        db: db.map_err(failed)?,
        durability,
        cache_bytes,
    };
    // Creates the table, so that readers find it from the start.
    store.update(|_| Ok(()))?;
    Ok(Box::new(store))
}

struct Redb {
    db: Database,
    durability: Durability,
    cache_bytes: u64,
}

type Table<'a> = redb::Table<'a, &'static [u8], &'static [u8]>;

impl Redb {
    /// Runs `change` in one transaction.
    fn update(
        &self,
        change: impl FnOnce(&mut Table<'_>) -> Result<(), redb::StorageError>,
    ) -> Result<(), BenchError> {
        let transaction = self.begin()?;
        {
            let mut table = transaction.open_table(TABLE).map_err(failed)?;
            change(&mut table).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    fn begin(&self) -> Result<WriteTransaction, BenchError> {
        let mut transaction = self.db.begin_write().map_err(failed)?;
        let durability = match self.durability {
            Durability::Volatile => redb::Durability::None,
            Durability::Buffered | Durability::Sync => redb::Durability::Immediate,
        };
        transaction.set_durability(durability).map_err(failed)?;
        Ok(transaction)
    }
}

impl Store for Redb {
    fn about(&self) -> About {
        let durability = match self.durability {
            Durability::Volatile => "volatile (durability None: in memory until the close)",
            Durability::Buffered => {
                "buffered (durability Immediate, its syncs left to the operating system; survives a \
                 killed process)"
            }
            Durability::Sync => "sync (durability Immediate; survives power loss)",
        };
        About {
            name: "redb 4".to_string(),
            medium: "one file".to_string(),
            durability: durability.to_string(),
            settings: format!("cache {}", units::bytes(self.cache_bytes)),
            counted_by: "the process: bytes passed to write calls",
        }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(Client {
            store: self,
            batch: Vec::new(),
        }))
    }

    fn settle(&self, _: Settle) -> Result<(), BenchError> {
        // There is no background work, and a commit leaves none to be done later.
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn space(&self) -> Space {
        Space::default()
    }

    fn close(self: Box<Self>) -> Result<(), BenchError> {
        if self.durability == Durability::Volatile {
            // An Immediate commit makes earlier commits of durability None durable.
            let transaction = self.db.begin_write().map_err(failed)?;
            transaction.commit().map_err(failed)?;
        }
        Ok(())
    }
}

struct Client<'a> {
    store: &'a Redb,
    /// Keys and values of the batch; `None` as value means a delete.
    batch: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Session for Client<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.store
            .update(|table| table.insert(key, value).map(drop))
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        self.store.update(|table| table.remove(key).map(drop))
    }

    fn batch_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.batch.push((key.to_vec(), Some(value.to_vec())));
        Ok(())
    }

    fn batch_delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        self.batch.push((key.to_vec(), None));
        Ok(())
    }

    fn commit(&mut self) -> Result<(), BenchError> {
        let batch = std::mem::take(&mut self.batch);
        self.store.update(|table| {
            for (key, value) in &batch {
                match value {
                    Some(value) => table.insert(key.as_slice(), value.as_slice())?,
                    None => table.remove(key.as_slice())?,
                };
            }
            Ok(())
        })
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, BenchError> {
        let transaction = self.store.db.begin_read().map_err(failed)?;
        let table = transaction.open_table(TABLE).map_err(failed)?;
        let value = table.get(key).map_err(failed)?;
        if let Some(value) = &value {
            see(value.value());
        }
        Ok(value.is_some())
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), BenchError> {
        let transaction = self.store.db.begin_read().map_err(failed)?;
        let table = transaction.open_table(TABLE).map_err(failed)?;
        let end = from.map_or(Bound::Unbounded, Bound::Included);
        let bounds = match direction {
            Direction::Forward => (end, Bound::Unbounded),
            Direction::Backward => (Bound::Unbounded, end),
        };
        let mut range = table.range::<&[u8]>(bounds).map_err(failed)?;
        loop {
            let entry = match direction {
                Direction::Forward => range.next(),
                Direction::Backward => range.next_back(),
            };
            let Some(entry) = entry else { return Ok(()) };
            let (key, value) = entry.map_err(failed)?;
            if !see(key.value(), value.value()) {
                return Ok(());
            }
        }
    }
}

/// A file whose syncs are left to the operating system.
#[derive(Debug)]
struct Unsynced(FileBackend);

impl StorageBackend for Unsynced {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}
