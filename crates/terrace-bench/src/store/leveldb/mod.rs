//! The adapter of LevelDB: the distribution's library, by its C interface.
//!
//! A write is passed to the operating system before it returns, which is `buffered`; `sync` is its
//! option of that name (doc/index.md, "Synchronous Writes"). Snappy compression is on unless
//! compression is turned off, and a Bloom filter is set, both as doc/index.md recommends
//! ("Compression", "Filters"). Write buffer, block cache, sizes of blocks and tables and the
//! filter's bits are Terrace's. LevelDB never has more than two write buffers, and level 1 is
//! always 10 MiB.

mod ffi;

use ::terrace::{Compression, Durability};

use super::{About, Budget, Counters, Direction, Session, Settle, Setup, Store, is_synced};
use crate::error::BenchError;
use crate::space::Space;
use crate::units;
use ffi::{Batch, Db, Settings, WriteOptions};

fn failed(what: String) -> BenchError {
    BenchError::peer("leveldb", what)
}

/// Opens or creates the database.
pub(super) fn open(setup: &Setup<'_>) -> Result<Box<dyn Store>, BenchError> {
    let budget = Budget::of(setup.options);
    let leveled = &setup.options.bottom.leveled;
    let settings = Settings {
        create: !setup.existing,
        write_buffer_bytes: budget.buffer_bytes as usize,
        cache_bytes: budget.cache_bytes as usize,
        block_bytes: leveled.block_bytes,
        table_bytes: leveled.table_bytes as usize,
        filter_bits: leveled.filter_bits_per_key as i32,
        compress: leveled.compression != Compression::None,
    };
    let words = format!(
        "2 write buffers of {}, block cache {}, tables of {}, blocks of {}, {}, filters of {} bits a \
         key; else LevelDB's defaults",
        units::bytes(budget.buffer_bytes),
        units::bytes(budget.cache_bytes),
        units::bytes(leveled.table_bytes),
        units::bytes(leveled.block_bytes as u64),
        if settings.compress {
            "Snappy"
        } else {
            "no compression"
        },
        settings.filter_bits,
    );
    let durability = setup.options.durability;
    Ok(Box::new(LevelDb {
        db: Db::open(setup.folder, &settings).map_err(failed)?,
        write: WriteOptions::new(is_synced(durability)),
        durability,
        settings: words,
    }))
}

struct LevelDb {
    db: Db,
    write: WriteOptions,
    durability: Durability,
    settings: String,
}

impl Store for LevelDb {
    fn about(&self) -> About {
        let durability = match self.durability {
            Durability::Volatile | Durability::Buffered => {
                "buffered (logged, handed to the operating system by each write; survives a killed \
                 process)"
            }
            Durability::Sync => "sync (logged and synced by each write; survives power loss)",
        };
        let (major, minor) = ffi::version();
        About {
            name: format!("LevelDB {major}.{minor}"),
            medium: "files".to_string(),
            durability: durability.to_string(),
            settings: self.settings.clone(),
            counted_by: "the process: bytes passed to write calls",
        }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(Client {
            store: self,
            batch: Batch::new(),
        }))
    }

    fn settle(&self, how: Settle) -> Result<(), BenchError> {
        match how {
            // Compacts the write buffer and every level down to the last one.
            Settle::Drain | Settle::Flush => self.db.compact_all(),
            Settle::Rest => self.db.rest(),
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
        // Entries that are in no table yet are in the log, which the next open replays.
        Ok(())
    }
}

struct Client<'a> {
    store: &'a LevelDb,
    batch: Batch,
}

impl Session for Client<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        let LevelDb { db, write, .. } = self.store;
        db.put(write, key, value).map_err(failed)
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        let LevelDb { db, write, .. } = self.store;
        db.delete(write, key).map_err(failed)
    }

    fn batch_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.batch.put(key, value);
        Ok(())
    }

    fn batch_delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        self.batch.delete(key);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), BenchError> {
        let LevelDb { db, write, .. } = self.store;
        let written = db.write(write, &mut self.batch).map_err(failed);
        self.batch.clear();
        written
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, BenchError> {
        self.store.db.get(key, see).map_err(failed)
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), BenchError> {
        let mut iter = self.store.db.iter();
        match (direction, from) {
            (Direction::Forward, None) => iter.seek_to_first(),
            (Direction::Backward, None) => iter.seek_to_last(),
            (_, Some(key)) => iter.seek(key),
        }
        if let (Direction::Backward, Some(from)) = (direction, from) {
            // A seek ends at the key or the next larger one; a backward scan starts at or below it.
            match iter.entry() {
                Some((key, _)) if key > from => iter.prev(),
                Some(_) => {}
                None => iter.seek_to_last(),
            }
        }
        while let Some((key, value)) = iter.entry() {
            if !see(key, value) {
                break;
            }
            match direction {
                Direction::Forward => iter.next(),
                Direction::Backward => iter.prev(),
            }
        }
        iter.status().map_err(failed)
    }
}
