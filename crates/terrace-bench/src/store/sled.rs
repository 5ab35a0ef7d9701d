//! The adapter of sled, in the released version 0.34, the one that its users get.
//!
//! sled keeps writes in its own buffers and syncs them several times a second in the background;
//! only a return from `flush` means that a write is durable (its README and the page of
//! `Db::flush`). It has no mode in which a write has reached the operating system and no more, so
//! `buffered` is `sync` there: a flush after each write. The cache is the only memory that can be
//! set, so it gets the whole budget. The mode `HighThroughput` is the default and, according to the
//! page of `Mode`, the one for speed. Compression is off, since it needs a build with a C library.

use std::ops::Bound;
use std::time::Duration;

use ::terrace::Durability;
use sled::{Batch, Db, IVec, Mode};

use super::{About, Budget, Counters, Direction, Session, Settle, Setup, Store};
use crate::error::BenchError;
use crate::space::Space;
use crate::units;

fn failed(e: sled::Error) -> BenchError {
    BenchError::peer("sled", e)
}

/// Opens or creates the database.
pub(super) fn open(setup: &Setup<'_>) -> Result<Box<dyn Store>, BenchError> {
    let cache_bytes = Budget::of(setup.options).total_bytes();
    let durability = setup.options.durability;
    let db = sled::Config::new()
        .path(setup.folder)
        .cache_capacity(cache_bytes)
        .mode(Mode::HighThroughput)
        .open()
        .map_err(failed)?;
    Ok(Box::new(Sled {
        db,
        durability,
        cache_bytes,
    }))
}

struct Sled {
    db: Db,
    durability: Durability,
    cache_bytes: u64,
}

impl Sled {
    fn after_write(&self) -> Result<(), BenchError> {
        if self.durability != Durability::Volatile {
            self.db.flush().map_err(failed)?;
        }
        Ok(())
    }
}

impl Store for Sled {
    fn about(&self) -> About {
        let durability = match self.durability {
            Durability::Volatile => "volatile (synced in the background every 500 ms)",
            Durability::Buffered => {
                "sync, since it has no buffered mode (a flush after each write; survives power loss)"
            }
            Durability::Sync => "sync (a flush after each write; survives power loss)",
        };
        About {
            name: "sled 0.34".to_string(),
            medium: "files".to_string(),
            durability: durability.to_string(),
            settings: format!(
                "cache {}, mode HighThroughput, no compression; else sled's defaults",
                units::bytes(self.cache_bytes)
            ),
            counted_by: "the process: bytes passed to write calls",
        }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(Client {
            store: self,
            batch: Batch::default(),
        }))
    }

    fn settle(&self, how: Settle) -> Result<(), BenchError> {
        // After a flush only the next background sync is left, which has nothing to write.
        match how {
            Settle::Drain | Settle::Flush => self.db.flush().map(drop).map_err(failed),
            Settle::Rest => {
                std::thread::sleep(Duration::from_secs(1));
                Ok(())
            }
        }
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn space(&self) -> Space {
        Space::default()
    }

    fn close(self: Box<Self>) -> Result<(), BenchError> {
        self.db.flush().map(drop).map_err(failed)
    }
}

struct Client<'a> {
    store: &'a Sled,
    batch: Batch,
}

impl Session for Client<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.store.db.insert(key, value).map_err(failed)?;
        self.store.after_write()
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        self.store.db.remove(key).map_err(failed)?;
        self.store.after_write()
    }

    fn batch_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.batch.insert(key, value);
        Ok(())
    }

    fn batch_delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        self.batch.remove(key);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), BenchError> {
        let batch = std::mem::take(&mut self.batch);
        self.store.db.apply_batch(batch).map_err(failed)?;
        self.store.after_write()
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, BenchError> {
        let value = self.store.db.get(key).map_err(failed)?;
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
        let db = &self.store.db;
        let bound = from.map_or(Bound::Unbounded, Bound::Included);
        let mut iter = match direction {
            Direction::Forward => db.range::<&[u8], _>((bound, Bound::Unbounded)),
            Direction::Backward => db.range::<&[u8], _>((Bound::Unbounded, bound)),
        };
        let mut step = || -> Option<sled::Result<(IVec, IVec)>> {
            match direction {
                Direction::Forward => iter.next(),
                Direction::Backward => iter.next_back(),
            }
        };
        while let Some(entry) = step() {
            let (key, value) = entry.map_err(failed)?;
            if !see(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}
