//! The names of the files that stages keep in a database's directory, and the proof that a file is
//! the database's own.
//!
//! A directory may contain foreign files. So a name alone proves nothing, unless the database's id
//! is in it.
//!
//! Invariants
//!   F1  A log, a table or a value file is written as a draft, whose name has the database's id in
//!       it, and gets its own name when it is durable and its header or footer names its database.
//!   F2  No name that is in use is given to a file (`FileSystem::rename_new`). A number in the name
//!       of a foreign file is skipped.
//!   F3  A file is removed or overwritten only if it is proved ours: by the name of a draft, or by
//!       the exact name of a log, a table or a value file and its contents. So the remains of a
//!       damaged file of ours stay too; the database never makes another one of that number.

use std::path::Path;

use terrace_media::{FileSystem, OpenMode};

use crate::canary::{self, Canary};
use crate::parts::log::layout::{LOG_HEADER_BYTES, log_database};
use crate::parts::sstable::layout::{FOOTER_BYTES, table_owner};
use crate::parts::values::layout::{HEADER_BYTES, value_owner};
use crate::types::DbId;

/// Returns the name of the file of table `number`.
pub(crate) fn table_file_name(number: u64) -> String {
    format!("{number:016}.sst")
}

/// Returns the number in the name of a table file, if it is exactly that.
pub(crate) fn table_file_number(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".sst")?.parse().ok()?;
    (table_file_name(number) == name).then_some(number)
}

/// Returns the name of value file `number`.
pub(crate) fn value_file_name(number: u64) -> String {
    format!("{number:016}.val")
}

/// Returns the number in the name of a value file, if it is exactly that.
pub(crate) fn value_file_number(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".val")?.parse().ok()?;
    (value_file_name(number) == name).then_some(number)
}

/// Returns the name of the file of log `id`.
pub(crate) fn log_file_name(id: u64) -> String {
    format!("wal-{id:016}.log")
}

/// Returns the id in the name of a log file, if it is exactly that.
pub(crate) fn log_file_id(name: &str) -> Option<u64> {
    let id = name.strip_prefix("wal-")?.strip_suffix(".log")?;
    let id = id.parse().ok()?;
    (log_file_name(id) == name).then_some(id)
}

/// Returns whether the file at `path`, which has the name of a log, is proved to be one of the
/// database `db`.
pub(crate) fn is_log_of(fs: &dyn FileSystem, path: &Path, db: DbId) -> bool {
    canary::breaks(Canary::ForeignFile) || log_file_owner(fs, path) == Some(db)
}

/// Returns whether the file at `path`, which has the name of table `number`, is proved to be that
/// of the database `db`.
pub(crate) fn is_table_of(fs: &dyn FileSystem, path: &Path, db: DbId, number: u64) -> bool {
    canary::breaks(Canary::ForeignFile) || table_file_owner(fs, path) == Some((db, number))
}

/// Returns whether the file at `path`, which has the name of value file `number`, is proved to be
/// that of the database `db`.
pub(crate) fn is_value_file_of(fs: &dyn FileSystem, path: &Path, db: DbId, number: u64) -> bool {
    canary::breaks(Canary::ForeignFile) || value_file_owner(fs, path) == Some((db, number))
}

/// Returns the database and the number in the header of the value file at `path`.
pub(crate) fn value_file_owner(fs: &dyn FileSystem, path: &Path) -> Option<(DbId, u64)> {
    let file = fs.open(path, OpenMode::Read).ok()?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(0, &mut header).ok()?;
    value_owner(&header)
}

/// Returns the database in the header of the log file at `path`.
pub(crate) fn log_file_owner(fs: &dyn FileSystem, path: &Path) -> Option<DbId> {
    let file = fs.open(path, OpenMode::Read).ok()?;
    let mut head = [0; LOG_HEADER_BYTES];
    file.read_exact_at(0, &mut head).ok()?;
    log_database(&head)
}

/// Returns the database and the number in the footer of the table file at `path`.
pub(crate) fn table_file_owner(fs: &dyn FileSystem, path: &Path) -> Option<(DbId, u64)> {
    let file = fs.open(path, OpenMode::Read).ok()?;
    let mut footer = [0; FOOTER_BYTES];
    let at = file.len().ok()?.checked_sub(FOOTER_BYTES as u64)?;
    file.read_exact_at(at, &mut footer).ok()?;
    table_owner(&footer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the exact name of a number is parsed.
    #[test]
    fn a_name_is_exact() {
        for number in [0, 7, 1 << 60, u64::MAX] {
            assert_eq!(table_file_number(&table_file_name(number)), Some(number));
            assert_eq!(log_file_id(&log_file_name(number)), Some(number));
        }
        for name in [
            "7.sst",
            "000007.sst",
            "00000000000000007.sst",
            "+000000000000007.sst",
            "000000000000000a.sst",
            "0000000000000007.SST",
        ] {
            assert_eq!(table_file_number(name), None, "{name}");
        }
        for name in [
            "wal-2024.log",
            "wal-+000000000000007.log",
            "0000000000000007.log",
        ] {
            assert_eq!(log_file_id(name), None, "{name}");
        }
    }
}
