//! This file fits logs, memtables and table files to a small disk.
//!
//! Where the buffer is memory, what it has stays in logs until it is in table files, so it is on the disk twice for a
//! while. Logs that took most of the disk would leave no room for the tables by which they go, and the database would
//! be full with little in it. A large memtable or a large table of the buffer is such a step as well.
//!
//! A pool grows until its device is full. Where that is less than the pool may take, sizes follow the device: a memtable of
//! the usual size could be most of it. A pool beside table files takes half of their disk at most.
//!
//! On a full disk table files are rewritten one at a time in room that is kept for the largest, so a large one would
//! keep much of the disk from everything else.
//!
//! Where a disk has no room even so, it says how to go on.

use std::io;
use std::path::Path;

use terrace_media::{AllocError, FileSystem, OpenMode, OsFs, PoolConfig};

use super::open::DbBuilder;
use crate::error::{Error, ErrorKind};
use crate::metrics::human_bytes;
use crate::parts::manifest::LogPlace;
use crate::stages::Ground;
use crate::stages::names::log_file_name;

/// Logs take at most one part in so many of the disk.
const LOGS: u64 = 4;
/// A memtable is at most one part in so many of what logs take.
const MEMTABLES: u64 = 8;
/// About what a new database takes with the sizes that fit a small disk.
const NEW_BYTES: u64 = 2 << 20;
/// A table file is at most one part in so many of the disk.
const TABLE_FILES: u64 = 32;
/// The least that a table file is made.
const TABLE_FILE_BYTES_MIN: u64 = 64 << 10;
/// The least that a memtable is made.
const MEMTABLE_BYTES_MIN: u64 = 64 << 10;
/// On a device that is smaller than the pool may become, a memtable and an extent are at most one part in so many of it.
const POOL_PIECES: u64 = 32;
const PAGE_BYTES: u64 = 4096;
/// The step in which a pool grows.
const POOL_STEP_BYTES: u64 = 64 << 20;
/// It is at most one part in so many of what is free on the pool's device.
const POOL_STEPS: u64 = 8;
/// The least that it is made.
const POOL_STEP_BYTES_MIN: u64 = 1 << 20;

impl DbBuilder {
    /// Returns the step in which a pool grows: on a small device its first must leave room for the folder.
    pub(super) fn pool_step(&self, config: &PoolConfig) -> u64 {
        let free = config.backing.free_bytes();
        let part = free.map_or(POOL_STEP_BYTES, |free| free / POOL_STEPS);
        part.clamp(POOL_STEP_BYTES_MIN, POOL_STEP_BYTES)
    }

    /// Lowers the sizes of logs, memtables and table files for this opening to what fits the disk, which is what is free
    /// and what the database has on it already. The options that are kept stay as they were stated.
    pub(super) fn fit_disk(&self, ground: &mut Ground) {
        if self.options.read_only {
            return;
        }
        let (tables, logs) = ground.manifest.with_state(|state| {
            let tables: u64 = state.files.values().map(|file| file.bytes).sum();
            let logs = state.logs.iter();
            let logs = logs.filter(|(_, log)| log.place == LogPlace::File);
            (tables, logs.map(|(id, _)| *id).collect::<Vec<_>>())
        });
        if ground.pool_outlives() {
            self.fit_pool(ground, tables);
        }
        let in_files = ground.options.design_of_new().keeps_table_files();
        if ground.pool_outlives() && !in_files {
            return;
        }
        let Ok(Some(free)) = self.fs.free_bytes(&self.path) else {
            return;
        };
        let log_bytes = |id: &u64| {
            let path = self.path.join(log_file_name(*id));
            let file = self.fs.open(&path, OpenMode::Read).ok()?;
            file.len().ok()
        };
        let logs: u64 = logs.iter().filter_map(log_bytes).sum();
        let disk = free + tables + logs;
        let leveled = &mut ground.options.bottom.leveled;
        let table_max = (disk / TABLE_FILES).max(TABLE_FILE_BYTES_MIN);
        leveled.table_bytes = leveled.table_bytes.min(table_max);
        if ground.pool_outlives() {
            return;
        }
        let front = &mut ground.options.front;
        let logs_max = (disk / LOGS).max(MEMTABLES * MEMTABLE_BYTES_MIN);
        if in_files {
            front.log_bytes_max = front.log_bytes_max.min(logs_max);
        }
        // With a budget of memory they are as large as that says, and so is what may be in one.
        if ground.options.memory_bytes.is_none() {
            let most = logs_max / MEMTABLES / PAGE_BYTES * PAGE_BYTES;
            front.memtable_bytes = front.memtable_bytes.min(most);
        }
    }

    /// Takes the room on the device of the pool for the size of the pool if that is less, and lowers the sizes of
    /// memtables and of extents to what fits it. `tables`: the bytes of table files.
    fn fit_pool(&self, ground: &mut Ground, tables: u64) {
        let (Some(path), Some(mut room)) = (&self.options.pool.path, ground.pool.device_room())
        else {
            return;
        };
        let options = &mut ground.options;
        if options.design_of_new().keeps_table_files() && self.is_on_disk_of(&self.path.join(path))
        {
            // A pool that took all of it would leave no room for the table files into which it is drained.
            room = ((room + tables) / 2).max(ground.pool.usage().committed);
            ground.pool.grow_to_at_most(room);
        }
        if room >= options.pool.size_bytes {
            return;
        }
        options.pool.size_bytes = room;
        if options.memory_bytes.is_none() {
            let most = (room / POOL_PIECES / PAGE_BYTES * PAGE_BYTES).max(MEMTABLE_BYTES_MIN);
            let (memtable, extent) = (
                &mut options.front.memtable_bytes,
                &mut options.bottom.extent_bytes,
            );
            *memtable = most.min(*memtable);
            *extent = most.min(*extent);
        }
    }

    /// Returns whether the folder is on the same disk as the file `pool`, which is one of the operating system.
    fn is_on_disk_of(&self, pool: &Path) -> bool {
        let disk = |id: io::Result<Option<(u64, u64)>>| id.ok().flatten().map(|(disk, _)| disk);
        let both = disk(OsFs.identity(pool)).zip(disk(self.fs.identity(&self.path)));
        both.is_some_and(|(one, other)| one == other)
    }

    /// The refusal of an opening to write, with the way on where a disk is full.
    pub(super) fn with_way_on(&self, e: Error, exists: bool) -> Error {
        if e.kind() != ErrorKind::Full || self.options.read_only {
            return e;
        }
        // A pool without room for a log has none for a reader's either.
        let source = std::error::Error::source(&e);
        let of_pool = source.is_some_and(|source| source.downcast_ref::<AllocError>().is_some());
        let text = match (exists, of_pool) {
            (true, true) => return e,
            (true, false) => format!(
                "{e}; or open the database to read only, which writes nothing: with Options::read_only, or \
                 --read-only on the command line"
            ),
            (false, _) => {
                let e = e.of_new();
                let text = format!(
                    "{e}; a new database needs about {} for its first memtable and what names its files: give it a \
                     disk with more room",
                    human_bytes(NEW_BYTES)
                );
                return Error::new(ErrorKind::Full, text).because(e);
            }
        };
        Error::new(ErrorKind::Full, text).because(e)
    }
}
