//! Fitting logs, memtables and table files to a small disk.
//!
//! If the buffer is in memory, its data stays in logs until it is in table files, so it is on the
//! disk twice for a while. Logs that took most of the disk would leave no space for the tables that
//! retire them, and the database would be full with little data in it. A large memtable or a large
//! table of the buffer has the same effect.
//!
//! A pool grows until its device is full. If the device is smaller than the pool may become, sizes
//! follow the device: a memtable of the usual size could take most of it. A pool on the same disk
//! as table files takes at most half of it.
//!
//! On a full disk table files are rewritten one at a time in space that is reserved for the
//! largest, so a large one would reserve much of the disk.
//!
//! If a disk has no space even so, the error says how to continue.

use std::io;
use std::path::Path;

use terrace_media::{AllocError, FileSystem, OpenMode, OsFs, PoolConfig};

use super::open::DbBuilder;
use crate::error::{Error, ErrorKind};
use crate::metrics::human_bytes;
use crate::options::{MEMTABLE_BYTES_SMALL, PAGE_BYTES};
use crate::parts::manifest::LogPlace;
use crate::parts::memory::out_of_budget;
use crate::parts::reserve::reserve_owner;
use crate::stages::Shared;
use crate::stages::file_names::log_file_name;
use crate::types::DbId;

/// Logs take at most 1/`LOGS` of the disk.
const LOGS: u64 = 4;
/// A memtable is at most 1/`MEMTABLES` of the size of logs.
const MEMTABLES: u64 = 8;
/// The approximate size of a new database on a small disk.
const NEW_BYTES: u64 = 2 << 20;
/// A table file is at most 1/`TABLE_FILES` of the disk.
const TABLE_FILES: u64 = 32;
/// The minimum size of a table file.
const TABLE_FILE_BYTES_MIN: u64 = 64 << 10;
/// The step in which a pool grows.
const POOL_STEP_BYTES: u64 = 64 << 20;
/// The step is at most 1/`POOL_STEPS` of the free space on the pool's device.
const POOL_STEPS: u64 = 8;
/// The minimum of the step.
const POOL_STEP_BYTES_MIN: u64 = 1 << 20;

impl DbBuilder {
    /// Returns the step in which a pool grows: on a small device the first step must leave space
    /// for the directory.
    pub(super) fn pool_step(&self, config: &PoolConfig) -> u64 {
        let free = config.backing.free_bytes();
        let part = free.map_or(POOL_STEP_BYTES, |free| free / POOL_STEPS);
        part.clamp(POOL_STEP_BYTES_MIN, POOL_STEP_BYTES)
    }

    /// Lowers the sizes of logs, memtables and table files for this opening to what fits the disk:
    /// its free space and the database's present files. The kept options stay as they were stated.
    pub(super) fn fit_disk(&self, shared: &mut Shared) {
        if self.options.read_only {
            return;
        }
        let (files, logs) = shared.manifest.with_state(|state| {
            let files = state.all_items().filter(|item| !item.owner().in_pool);
            let files: u64 = files.map(|item| item.bytes()).sum();
            let logs = state.logs.iter();
            let logs = logs.filter(|(_, log)| log.place == LogPlace::File);
            (files, logs.map(|(id, _)| *id).collect::<Vec<_>>())
        });
        if shared.pool_outlives() {
            self.fit_pool(shared, files);
        }
        let in_files = shared.options.design_of_new().keeps_table_files();
        if shared.pool_outlives() && !in_files {
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
        let disk = free + files + logs + self.reserve_bytes(shared.manifest.db());
        let leveled = &mut shared.options.bottom.leveled;
        let table_max = (disk / TABLE_FILES).max(TABLE_FILE_BYTES_MIN);
        leveled.table_bytes = leveled.table_bytes.min(table_max);
        if shared.pool_outlives() {
            return;
        }
        let front = &mut shared.options.front;
        let logs_max = (disk / LOGS).max(MEMTABLES * MEMTABLE_BYTES_SMALL);
        if in_files {
            front.log_bytes_max = front.log_bytes_max.min(logs_max);
        }
        // A memory budget determines their size, and the largest entry depends on it.
        if shared.options.memory_bytes.is_none() {
            let most = logs_max / MEMTABLES / PAGE_BYTES * PAGE_BYTES;
            front.memtable_bytes = front.memtable_bytes.min(most);
        }
    }

    /// Limits the size of the pool to the room on its device, and lowers the sizes of memtables and
    /// of extents to fit. `files`: the bytes of table files and value files.
    fn fit_pool(&self, shared: &mut Shared, files: u64) {
        let (Some(path), Some(mut room)) = (&self.options.pool.path, shared.pool.device_room())
        else {
            return;
        };
        let options = &mut shared.options;
        if options.design_of_new().keeps_table_files() && self.is_on_disk_of(&self.path.join(path))
        {
            // A pool that took all of it would leave no space for the table files into which it is
            // drained.
            room = ((room + files) / 2).max(shared.pool.usage().committed);
            shared.pool.grow_to_at_most(room);
        }
        if room >= options.pool.size_bytes {
            return;
        }
        match options.memory_bytes {
            Some(_) => options.pool.size_bytes = room,
            None => *options = std::mem::take(options).with_pool_bytes(room),
        }
    }

    /// Returns the bytes of the reserve that the last opening has left.
    fn reserve_bytes(&self, db: DbId) -> u64 {
        let names = self.fs.list(&self.path).unwrap_or_default();
        let own = names.iter().find(|name| reserve_owner(name) == Some(db));
        let file = own.and_then(|name| self.fs.open(&self.path.join(name), OpenMode::Read).ok());
        file.and_then(|file| file.len().ok()).unwrap_or(0)
    }

    /// Returns whether the directory is on the same disk as the file `pool`, which is a file of the
    /// operating system.
    fn is_on_disk_of(&self, pool: &Path) -> bool {
        let disk = |id: io::Result<Option<(u64, u64)>>| id.ok().flatten().map(|(disk, _)| disk);
        let both = disk(OsFs.identity(pool)).zip(disk(self.fs.identity(&self.path)));
        both.is_some_and(|(one, other)| one == other)
    }

    /// Adds advice to the error of an open for writing if a disk is full.
    pub(super) fn with_way_on(&self, e: Error, exists: bool) -> Error {
        // A reader needs the same memory.
        if e.kind() != ErrorKind::Full || self.options.read_only || out_of_budget(&e).is_some() {
            return e;
        }
        // A pool without room for a log has no room for that of a reader either.
        let source = std::error::Error::source(&e);
        let of_pool = source.is_some_and(|source| source.downcast_ref::<AllocError>().is_some());
        let text = match (exists, of_pool) {
            (true, true) => return e,
            (true, false) => format!(
                "{e}; or open the database with --read-only (Options::read_only), which writes \
                 nothing"
            ),
            (false, _) => {
                let e = e.of_new();
                let text = format!(
                    "{e}; a new database needs about {} for its first memtable and its manifest: \
                     free space, or use another disk",
                    human_bytes(NEW_BYTES)
                );
                return Error::new(ErrorKind::Full, text).because(e);
            }
        };
        Error::new(ErrorKind::Full, text).because(e)
    }
}
