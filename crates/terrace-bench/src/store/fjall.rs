//! The adapter of fjall.
//!
//! By default fjall passes its journal to the operating system after each write, which is
//! `buffered`; `sync` persists by `PersistMode::SyncData` after each write, as the documentation of
//! `Database::persist` shows. Memtable, cache and block size are those of Terrace; the page of
//! `KeyspaceCreateOptions` recommends blocks of 4 to 8 KiB for point reads and memtables of at most
//! 64 MiB. The rest are fjall's defaults: LZ4 below the first levels, and filters by level.

use std::time::Duration;

use ::terrace::Durability;
use fjall::config::BlockSizePolicy;
use fjall::{Database, Guard, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};

use super::{About, Budget, Counters, Direction, Session, Settle, Setup, Store, is_synced};
use crate::error::BenchError;
use crate::space::Space;
use crate::units;

/// The interval of checks for idle background work, and the number of idle checks in a row needed.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS: u32 = 5;

fn failed(e: fjall::Error) -> BenchError {
    BenchError::peer("fjall", e)
}

/// Opens or creates the database.
pub(super) fn open(setup: &Setup<'_>) -> Result<Box<dyn Store>, BenchError> {
    let budget = Budget::of(setup.options);
    let durability = setup.options.durability;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let db = Database::builder(setup.folder)
        .cache_size(budget.cache_bytes)
        .worker_threads(cores.min(4))
        .manual_journal_persist(durability == Durability::Volatile)
        .open()
        .map_err(failed)?;
    let block_bytes = setup.options.bottom.leveled.block_bytes as u32;
    let keyspace = db.keyspace("bench", || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(budget.buffer_bytes)
            .data_block_size_policy(BlockSizePolicy::all(block_bytes.max(1024)))
            .manual_journal_persist(durability == Durability::Volatile)
    });
    Ok(Box::new(Fjall {
        keyspace: keyspace.map_err(failed)?,
        db,
        durability,
        settings: format!(
            "memtables of {}, cache {}, blocks of {}, {} workers; else fjall's defaults",
            units::bytes(budget.buffer_bytes),
            units::bytes(budget.cache_bytes),
            units::bytes(u64::from(block_bytes)),
            cores.min(4),
        ),
    }))
}

struct Fjall {
    keyspace: Keyspace,
    db: Database,
    durability: Durability,
    settings: String,
}

impl Fjall {
    fn after_write(&self) -> Result<(), BenchError> {
        if is_synced(self.durability) {
            self.db.persist(PersistMode::SyncData).map_err(failed)?;
        }
        Ok(())
    }

    /// Waits until flushes and compactions are idle.
    fn rest(&self) {
        let mut found = 0;
        // BOUND: without new writes, background work ends.
        while found < LOOKS {
            std::thread::sleep(LOOK);
            let at_rest = self.db.active_compactions() == 0 && self.db.outstanding_flushes() == 0;
            found = if at_rest { found + 1 } else { 0 };
        }
    }
}

impl Store for Fjall {
    fn about(&self) -> About {
        let durability = match self.durability {
            Durability::Volatile => "volatile (journal not written to the operating system)",
            Durability::Buffered => {
                "buffered (journal handed to the operating system by each write; survives a killed \
                 process)"
            }
            Durability::Sync => {
                "sync (PersistMode::SyncData after each write; survives power loss)"
            }
        };
        About {
            name: "fjall 3".to_string(),
            medium: "files".to_string(),
            durability: durability.to_string(),
            settings: self.settings.clone(),
            counted_by: "the process: bytes passed to write calls",
        }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(Client {
            store: self,
            batch: self.db.batch(),
        }))
    }

    fn settle(&self, how: Settle) -> Result<(), BenchError> {
        if how != Settle::Rest {
            self.keyspace.rotate_memtable_and_wait().map_err(failed)?;
        }
        if how != Settle::Flush {
            self.rest();
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn space(&self) -> Space {
        Space::default()
    }

    fn close(self: Box<Self>) -> Result<(), BenchError> {
        self.db.persist(PersistMode::Buffer).map_err(failed)
    }
}

struct Client<'a> {
    store: &'a Fjall,
    batch: OwnedWriteBatch,
}

impl Session for Client<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.store.keyspace.insert(key, value).map_err(failed)?;
        self.store.after_write()
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        self.store.keyspace.remove(key).map_err(failed)?;
        self.store.after_write()
    }

    fn batch_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.batch.insert(&self.store.keyspace, key, value);
        Ok(())
    }

    fn batch_delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        self.batch.remove(&self.store.keyspace, key);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), BenchError> {
        let mode = match self.store.durability {
            Durability::Volatile => None,
            Durability::Buffered => Some(PersistMode::Buffer),
            Durability::Sync => Some(PersistMode::SyncData),
        };
        let batch = std::mem::replace(&mut self.batch, self.store.db.batch());
        batch.durability(mode).commit().map_err(failed)
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, BenchError> {
        let value = self.store.keyspace.get(key).map_err(failed)?;
        if let Some(value) = &value {
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
        let keyspace = &self.store.keyspace;
        let mut iter = match (from, direction) {
            (None, _) => keyspace.iter(),
            (Some(key), Direction::Forward) => keyspace.range(key..),
            (Some(key), Direction::Backward) => keyspace.range(..=key),
        };
        let mut step = || -> Option<Guard> {
            match direction {
                Direction::Forward => iter.next(),
                Direction::Backward => iter.next_back(),
            }
        };
        while let Some(entry) = step() {
            let (key, value) = entry.into_inner().map_err(failed)?;
            if !see(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}
