//! Spare contract: memtables that are made ahead of need, so that sealing a full one only swaps pointers.
//!
//! A front whose `rotate` makes what writers need has no spares.

use crate::error::{Error, Result};
use crate::parts::batch::Batch;

/// The spare memtables of a front.
pub(crate) trait Spares {
    /// Whether one is missing and may be made.
    fn are_due(&self) -> bool;
    /// Bytes that one takes, large enough for `batch`.
    fn bytes(&self, batch: Option<&Batch>) -> SpareBytes;
    /// Makes one, large enough for `batch`. Slow; runs beside writers.
    fn prepare(&self, batch: Option<&Batch>, size: SpareSize) -> Result<Spare>;
}

/// The size of a spare memtable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpareSize {
    /// That of the options.
    Usual,
    /// A small one for deletes only, whose log may be on the reserve.
    Small,
    /// The usual one, or a small one if the disk of its log has no room for it.
    UsualOrSmall,
}

/// Bytes that a spare memtable takes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpareBytes {
    /// Bytes of the pool, in one extent each; 0: none.
    pub(crate) extents: [u64; 2],
    /// Bytes of the disk, if logs are files.
    pub(crate) log_file: u64,
}

impl SpareBytes {
    /// Whether either place takes more than that of `other`.
    pub(crate) fn is_beyond(&self, other: SpareBytes) -> bool {
        self.pool() > other.pool() || self.log_file > other.log_file
    }

    /// Returns the one that takes more of the pool.
    pub(crate) fn max(self, other: SpareBytes) -> SpareBytes {
        match other.pool() > self.pool() {
            true => other,
            false => self,
        }
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
