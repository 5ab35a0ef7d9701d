//! This file is the names of the files that stages keep in a database's folder.

/// The name of the file of table `number`.
pub(crate) fn table_file_name(number: u64) -> String {
    format!("{number:016}.sst")
}

/// The number in the name of a table file.
pub(crate) fn table_file_number(name: &str) -> Option<u64> {
    name.strip_suffix(".sst")?.parse().ok()
}

/// The name of the file of log `id`.
pub(crate) fn log_file_name(id: u64) -> String {
    format!("wal-{id:016}.log")
}

/// The id in the name of a log file.
pub(crate) fn log_file_id(name: &str) -> Option<u64> {
    name.strip_prefix("wal-")?
        .strip_suffix(".log")?
        .parse()
        .ok()
}
