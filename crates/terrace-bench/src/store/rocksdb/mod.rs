//! The adapter of RocksDB.
//!
//! Settings follow the page "Setup Options and Basic Tuning" of RocksDB's wiki, with Terrace's
//! memory: equally many write buffers of the same size and an equal block cache. Sizes of tables,
//! levels and blocks and the compression are Terrace's too, and the size of level 0 if that is not
//! the usual one; its default blocks are smaller than
//! that page's (16 KiB), which helps point reads. Statistics stay off, as by default: the wiki
//! (page "Statistics") puts their cost at 5 to 10 %.

mod stats;

use std::fs;
use std::path::Path;

use ::terrace::{Compression, Durability, LeveledOptions, Options};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBPath, DBPinnableSlice, Options as DbOptions,
    ReadOptions, WaitForCompactOptions, WriteBatch, WriteOptions,
};

use super::{About, Budget, Counters, Direction, Session, Settle, Setup, Store, is_synced};
use crate::error::BenchError;
use crate::files::special_settings;
use crate::machine::ProcessIo;
use crate::space::Space;
use crate::units;

const NAME: &str = "rocksdb";

fn failed(e: rocksdb::Error) -> BenchError {
    BenchError::peer(NAME, e.into_string())
}

/// Opens or creates the database.
pub(super) fn open(setup: &Setup<'_>) -> Result<Box<dyn Store>, BenchError> {
    let budget = Budget::of(setup.options);
    let cache = Cache::new_lru_cache(budget.cache_bytes as usize);
    let mut options = db_options(setup.options, &budget, &cache);
    let leveled = &setup.options.bottom.leveled;
    place_level0(&mut options, leveled, budget.buffer_bytes, setup.folder)?;
    options.create_if_missing(!setup.existing);
    options.set_error_if_exists(!setup.existing);
    let db = DB::open(&options, setup.folder).map_err(failed)?;
    Ok(Box::new(RocksDb {
        db,
        durability: setup.options.durability,
        version: version_in(setup.folder),
        settings: settings(setup.options, &budget),
    }))
}

fn compression_of(wanted: Compression) -> DBCompressionType {
    match wanted {
        Compression::None => DBCompressionType::None,
        // The build has no other codec; the settings in the report show the one in use.
        _ => DBCompressionType::Lz4,
    }
}

/// Gives level 0 a directory of its own, with the log, and a size.
fn place_level0(
    db: &mut DbOptions,
    leveled: &LeveledOptions,
    buffer_bytes: u64,
    folder: &Path,
) -> Result<(), BenchError> {
    let usual = LeveledOptions::default();
    if (leveled.runs_compact, leveled.runs_stop) != (usual.runs_compact, usual.runs_stop) {
        db.set_level_zero_file_num_compaction_trigger(leveled.runs_compact as i32);
        db.set_level_zero_slowdown_writes_trigger(leveled.runs_slow as i32);
        db.set_level_zero_stop_writes_trigger(leveled.runs_stop as i32);
    }
    let Some(level0) = &leveled.level0_dir else {
        return Ok(());
    };
    // RocksDB takes level 0 for as large as level 1, and fills the first path with the levels that
    // fit.
    let first = DBPath::new(level0, level1_bytes(leveled)).map_err(failed)?;
    let rest = DBPath::new(folder, u64::MAX).map_err(failed)?;
    db.set_db_paths(&[first, rest]);
    // RocksDB does so itself if it has two paths.
    db.set_level_compaction_dynamic_level_bytes(false);
    // Level 0 is limited in files. RocksDB merges four or more of them into one within the level,
    // up to this size, so that it would take any number of bytes.
    db.set_max_compaction_bytes(4 * buffer_bytes - 1);
    db.set_wal_dir(level0);
    Ok(())
}

fn level1_bytes(leveled: &LeveledOptions) -> u64 {
    leveled.level1_bytes.max(leveled.table_bytes)
}

fn db_options(options: &Options, budget: &Budget, cache: &Cache) -> DbOptions {
    let mut db = DbOptions::default();
    // "Write buffer size" and "Block cache size": Terrace's.
    db.set_write_buffer_size(budget.buffer_bytes as usize);
    db.set_max_write_buffer_number(budget.buffers.max(2) as i32);
    // "Setup Options and Basic Tuning", "Other general options".
    db.set_level_compaction_dynamic_level_bytes(true);
    db.set_bytes_per_sync(1 << 20);
    db.set_max_background_jobs(jobs());
    db.set_max_open_files(-1);
    let leveled = &options.bottom.leveled;
    db.set_target_file_size_base(leveled.table_bytes);
    db.set_max_bytes_for_level_base(level1_bytes(leveled));
    // "Compression": none on the levels that are rewritten most, LZ4 below, as in Terrace.
    let upper = compression_of(leveled.compression_upper);
    let mut levels = [compression_of(leveled.compression); 7];
    (levels[0], levels[1]) = (upper, upper);
    db.set_compression_per_level(&levels);
    if let Some(from) = leveled.values_apart_from {
        // "BlobDB": with the collection of garbage, which is off by default, also of a file that no
        // compaction reaches.
        db.set_enable_blob_files(true);
        db.set_min_blob_size(from);
        db.set_blob_compression_type(compression_of(leveled.compression));
        db.set_enable_blob_gc(true);
        db.set_blob_gc_force_threshold(0.5);
    }
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_block_size(leveled.block_bytes);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_bloom_filter(f64::from(leveled.filter_bits_per_key), false);
    db.set_block_based_table_factory(&table);
    db
}

/// Returns the number of background jobs. The wiki has 6, for a machine with more cores than that.
fn jobs() -> i32 {
    let cores = std::thread::available_parallelism().map_or(2, |n| n.get() as i32);
    cores.max(6)
}

fn settings(options: &Options, budget: &Budget) -> String {
    let leveled = &options.bottom.leveled;
    format!(
        "{} write buffers of {}, block cache {}, tables of {}, level 1 of {}, {} level sizes, \
         blocks of {}, compression {:?} (levels 0 and 1: {}), filters of {} bits a key, {} \
         background jobs{}",
        budget.buffers.max(2),
        units::bytes(budget.buffer_bytes),
        units::bytes(budget.cache_bytes),
        units::bytes(leveled.table_bytes),
        units::bytes(level1_bytes(leveled)),
        match leveled.level0_dir {
            Some(_) => "fixed",
            None => "dynamic",
        },
        units::bytes(leveled.block_bytes as u64),
        compression_of(leveled.compression),
        match leveled.compression_upper {
            Compression::None => "none",
            _ => "Lz4",
        },
        leveled.filter_bits_per_key,
        jobs(),
        special_settings(leveled),
    )
}

/// Returns the version of the library that wrote the database, from its options file.
fn version_in(folder: &Path) -> String {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let options = files.filter(|file| file.file_name().to_string_lossy().starts_with("OPTIONS-"));
    let newest = options.map(|file| file.path()).max();
    let text = newest.and_then(|path| fs::read_to_string(path).ok());
    let version = text.as_deref().and_then(|text| {
        let mut lines = text.lines().map(str::trim);
        lines.find_map(|line| line.strip_prefix("rocksdb_version="))
    });
    version.unwrap_or("of unknown version").to_string()
}

struct RocksDb {
    db: DB,
    durability: Durability,
    version: String,
    settings: String,
}

impl RocksDb {
    fn write_options(&self) -> WriteOptions {
        let mut options = WriteOptions::default();
        options.disable_wal(self.durability == Durability::Volatile);
        options.set_sync(is_synced(self.durability));
        options
    }

    fn property(&self, name: &str) -> String {
        let value = self.db.property_value(name);
        value.ok().flatten().unwrap_or_default()
    }
}

impl Store for RocksDb {
    fn about(&self) -> About {
        let durability = match self.durability {
            Durability::Volatile => "volatile (write-ahead log off)",
            Durability::Buffered => {
                "buffered (a write of each record to the log, not synced; survives a killed process)"
            }
            Durability::Sync => "sync (log synced by fdatasync in groups; survives power loss)",
        };
        About {
            name: format!("RocksDB {}", self.version),
            medium: "files".to_string(),
            durability: durability.to_string(),
            settings: self.settings.clone(),
            counted_by: "RocksDB for the log, rounded to 10 MiB; the process, for the rest: bytes \
                         passed to write calls",
        }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(Client {
            db: &self.db,
            write: self.write_options(),
            read: ReadOptions::default(),
            batch: WriteBatch::default(),
        }))
    }

    fn settle(&self, how: Settle) -> Result<(), BenchError> {
        if how != Settle::Rest {
            self.db.flush().map_err(failed)?;
        }
        if how != Settle::Flush {
            let options = WaitForCompactOptions::default();
            self.db.wait_for_compact(&options).map_err(failed)?;
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        stats::counters(
            &self.property("rocksdb.dbstats"),
            &self.property("rocksdb.cfstats"),
            ProcessIo::read(),
        )
    }

    fn space(&self) -> Space {
        Space::default()
    }

    fn close(self: Box<Self>) -> Result<(), BenchError> {
        // No acknowledged write depends on this: the log is replayed, and has the requested
        // durability.
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}

struct Client<'a> {
    db: &'a DB,
    write: WriteOptions,
    read: ReadOptions,
    batch: WriteBatch,
}

impl Session for Client<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.db.put_opt(key, value, &self.write).map_err(failed)
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        self.db.delete_opt(key, &self.write).map_err(failed)
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
        let batch = std::mem::take(&mut self.batch);
        self.db.write_opt(batch, &self.write).map_err(failed)
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, BenchError> {
        let value: Option<DBPinnableSlice<'_>> =
            self.db.get_pinned_opt(key, &self.read).map_err(failed)?;
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
        let mut iter = self.db.raw_iterator();
        match (from, direction) {
            (None, Direction::Forward) => iter.seek_to_first(),
            (None, Direction::Backward) => iter.seek_to_last(),
            (Some(key), Direction::Forward) => iter.seek(key),
            (Some(key), Direction::Backward) => iter.seek_for_prev(key),
        }
        while let Some((key, value)) = iter.item() {
            if !see(key, value) {
                return Ok(());
            }
            match direction {
                Direction::Forward => iter.next(),
                Direction::Backward => iter.prev(),
            }
        }
        iter.status().map_err(failed)
    }
}
