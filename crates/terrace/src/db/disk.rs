//! This file fits logs, memtables and table files to a small disk.
//!
//! Where the buffer is memory, what it has stays in logs until it is in table files, so it is on the disk twice for a
//! while. Logs that took most of the disk would leave no room for the tables by which they go, and the database would
//! be full with little in it. A large memtable or a large table of the buffer is such a step as well.
//!
//! On a full disk table files are rewritten one at a time in room that is kept for the largest, so a large one would
//! keep much of the disk from everything else.

use terrace_media::OpenMode;

use super::open::DbBuilder;
use crate::parts::manifest::LogPlace;
use crate::stages::Ground;
use crate::stages::names::log_file_name;

/// Logs take at most one part in so many of the disk.
const LOGS: u64 = 4;
/// A memtable is at most one part in so many of what logs take.
const MEMTABLES: u64 = 8;
/// A table file is at most one part in so many of the disk.
const TABLE_FILES: u64 = 32;
/// The least that a table file is made.
const TABLE_FILE_BYTES_MIN: u64 = 64 << 10;
/// The least that a memtable is made.
const MEMTABLE_BYTES_MIN: u64 = 64 << 10;
const PAGE_BYTES: u64 = 4096;

impl DbBuilder {
    /// Lowers the sizes of logs, memtables and table files for this opening to what fits the disk, which is what is free
    /// and what the database has on it already. The options that are kept stay as they were stated.
    pub(super) fn fit_disk(&self, ground: &mut Ground) {
        let in_files = ground.options.design_of_new().keeps_table_files();
        if !in_files || self.options.read_only {
            return;
        }
        let Ok(Some(free)) = self.fs.free_bytes(&self.path) else {
            return;
        };
        let (tables, logs) = ground.manifest.with_state(|state| {
            let tables: u64 = state.files.values().map(|file| file.bytes).sum();
            let logs = state.logs.iter();
            let logs = logs.filter(|(_, log)| log.place == LogPlace::File);
            (tables, logs.map(|(id, _)| *id).collect::<Vec<_>>())
        });
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
        front.log_bytes_max = front.log_bytes_max.min(logs_max);
        // With a budget of memory they are as large as that says, and so is what may be in one.
        if ground.options.memory_bytes.is_none() {
            let most = logs_max / MEMTABLES / PAGE_BYTES * PAGE_BYTES;
            front.memtable_bytes = front.memtable_bytes.min(most);
        }
    }
}
