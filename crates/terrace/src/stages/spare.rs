//! This file is what a spare memtable takes, and how the making of one ends.

use crate::error::Error;

/// Bytes that a spare memtable takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpareBytes {
    /// Of the pool, in so many extents; 0: none.
    pub(crate) extents: [u64; 2],
    /// Of the disk, where logs are files.
    pub(crate) log_file: u64,
}

impl SpareBytes {
    /// Whether either place takes more than that of `other`.
    pub(crate) fn is_beyond(&self, other: SpareBytes) -> bool {
        self.pool() > other.pool() || self.log_file > other.log_file
    }

    /// Bytes of the pool.
    pub(crate) fn pool(&self) -> u64 {
        self.extents[0] + self.extents[1]
    }
}

/// How the making of a spare memtable ended.
pub(crate) enum Spare {
    Ready,
    /// Another thread is making one.
    Underway,
    /// The pool has no room for it.
    PoolFull,
    /// A disk has none, as the error says.
    DiskFull(Error),
}
