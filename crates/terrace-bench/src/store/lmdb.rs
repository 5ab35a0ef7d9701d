//! The adapter of LMDB, through the crate heed.
//!
//! By default a commit is synced, which is `sync`. For `buffered` the flag `MDB_NOSYNC` leaves that
//! to the operating system: the commit has written its pages and survives a killed process. (LMDB's
//! documentation of the flag: without `MDB_WRITEMAP` transactions keep all properties but
//! durability.) `MDB_WRITEMAP` is not used: the same documentation warns of it. LMDB has no cache
//! of its own and reads through a map of its file; the map is as large as the data may get, which
//! costs only address space. Each write is a transaction, and so is each read, as in users'
//! programs; keys are at most 511 bytes.

#![allow(unsafe_code, reason = "opening a memory map is unsafe")]

use std::ops::Bound;

use ::terrace::Durability;
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RwTxn, WithTls};

use super::{About, Counters, Direction, Session, Settle, Setup, Store};
use crate::error::BenchError;
use crate::space::Space;
use crate::units;

/// The maximum number of concurrent readers: the client threads that a run may have.
const READERS_MAX: u32 = 1100;

/// The minimum size of the map, and its ratio to the data: pages are copied on write, and those
/// freed by a transaction are reused only by the one after the next.
const MAP_BYTES_MIN: u64 = 1 << 30;
const MAP_FACTOR: u64 = 4;

fn failed(e: heed::Error) -> BenchError {
    BenchError::peer("lmdb", e)
}

/// Opens or creates the database.
pub(super) fn open(setup: &Setup<'_>) -> Result<Box<dyn Store>, BenchError> {
    let map_bytes = setup
        .data_bytes
        .saturating_mul(MAP_FACTOR)
        .clamp(MAP_BYTES_MIN, 1 << 44)
        .next_multiple_of(1 << 20);
    let durability = setup.options.durability;
    let mut options = EnvOpenOptions::new();
    options
        .map_size(map_bytes as usize)
        .max_readers(READERS_MAX);
    if durability != Durability::Sync {
        // SAFETY: without syncs a power loss may damage the file, and no run opens it again after
        // one.
        unsafe { options.flags(EnvFlags::NO_SYNC) };
    }
    // SAFETY: the directory belongs to this run; no other code opens, changes or truncates the file
    // while its map lives, and LMDB's own lock file excludes other processes.
    let env = unsafe { options.open(setup.folder) }.map_err(failed)?;
    let txn = env.write_txn().map_err(failed)?;
    let made = env.create_databases_and_commit(txn, |opener, txn| {
        let db = opener.create_database::<Bytes, Bytes>(txn, None)?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(db))
    });
    let db = made.map_err(failed)?.unwrap_commit();
    let map_bytes = env.info().map_size as u64;
    Ok(Box::new(Lmdb {
        env,
        db,
        durability,
        map_bytes,
    }))
}

struct Lmdb {
    env: Env<WithTls>,
    db: Database<'static, Bytes, Bytes>,
    durability: Durability,
    map_bytes: u64,
}

impl Lmdb {
    /// Runs `change` in one transaction.
    fn update(
        &self,
        change: impl FnOnce(&mut RwTxn<'_>) -> heed::Result<()>,
    ) -> Result<(), BenchError> {
        let mut txn = self.env.write_txn().map_err(failed)?;
        change(&mut txn).map_err(failed)?;
        txn.commit().map_err(failed)
    }
}

impl Store for Lmdb {
    fn about(&self) -> About {
        let durability = match self.durability {
            Durability::Volatile | Durability::Buffered => {
                "buffered (MDB_NOSYNC: each commit is handed to the operating system; survives a \
                 killed process)"
            }
            Durability::Sync => "sync (each commit is synced; survives power loss)",
        };
        About {
            name: format!("LMDB {}", version()),
            medium: "one file".to_string(),
            durability: durability.to_string(),
            settings: format!(
                "no cache but the operating system's, a map of {}, a transaction for each call",
                units::bytes(self.map_bytes)
            ),
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
        self.env.force_sync().map_err(failed)?;
        // The next open of the same directory must find the environment closed.
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

fn version() -> String {
    let version = heed::lmdb_version();
    format!("{}.{}.{}", version.major, version.minor, version.patch)
}

struct Client<'a> {
    store: &'a Lmdb,
    /// Keys and values of the batch; `None` as value means a delete.
    batch: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Session for Client<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        let db = &self.store.db;
        self.store.update(|txn| db.put(txn, key, value))
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        let db = &self.store.db;
        self.store.update(|txn| db.delete(txn, key).map(drop))
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
        let (db, batch) = (&self.store.db, std::mem::take(&mut self.batch));
        self.store.update(|txn| {
            for (key, value) in &batch {
                match value {
                    Some(value) => db.put(txn, key, value)?,
                    None => db.delete(txn, key).map(drop)?,
                }
            }
            Ok(())
        })
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, BenchError> {
        let txn = self.store.env.read_txn().map_err(failed)?;
        let value = self.store.db.get(&txn, key).map_err(failed)?;
        if let Some(value) = value {
            see(value);
        }
        Ok(value.is_some())
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), BenchError> {
        let txn = self.store.env.read_txn().map_err(failed)?;
        let db = &self.store.db;
        let end = from.map_or(Bound::Unbounded, Bound::Included);
        match direction {
            Direction::Forward => {
                let bounds = (end, Bound::Unbounded);
                show(db.range(&txn, &bounds).map_err(failed)?, see)
            }
            Direction::Backward => {
                let bounds = (Bound::Unbounded, end);
                show(db.rev_range(&txn, &bounds).map_err(failed)?, see)
            }
        }
    }
}

/// Shows entries until `see` returns false.
fn show<'a>(
    entries: impl Iterator<Item = heed::Result<(&'a [u8], &'a [u8])>>,
    see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), BenchError> {
    for entry in entries {
        let (key, value) = entry.map_err(failed)?;
        if !see(key, value) {
            break;
        }
    }
    Ok(())
}
