//! Spare contract: memtables that are made ahead of need, so that sealing a full one only swaps
//! pointers.
//!
//! A front whose `rotate` makes new memtables has no spares.

use crate::error::{Error, Result};
use crate::parts::batch::Batch;

/// The spare memtables of a front.
pub(crate) trait Spares {
    /// Returns whether one is missing and may be made.
    fn are_due(&self) -> bool;
    /// Returns the bytes that one takes, large enough for `batch`.
    fn bytes(&self, batch: Option<&Batch>) -> SpareBytes;
    /// Returns the bytes of one in memory for `batch`, if one of the usual size does not take it.
    fn larger(&self, batch: &Batch) -> Option<SpareBytes>;
    /// Makes one, large enough for `batch`. Slow; runs concurrently with writers.
    fn prepare(&self, batch: Option<&Batch>, size: SpareSize) -> Result<Spare>;
}

/// The size of a spare memtable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpareSize {
    /// The size in the options.
    Usual,
    /// A small one for deletes only, whose log may be on the reserve. In the pool the smallest one,
    /// if no batch waits for it and all free pieces are too short for the small one.
    Small,
    /// The usual one, or a small one if the place of its log has no space for it.
    UsualOrSmall,
}

/// The bytes that a spare memtable takes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpareBytes {
    /// Bytes of the pool, in one extent each, or 0.
    pub(crate) extents: [u64; 2],
    /// Bytes of its nodes, in the pool or in memory.
    pub(crate) index: u64,
    /// Bytes of the disk, if logs are files.
    pub(crate) log_file: u64,
}

impl SpareBytes {
    /// Returns whether it takes more of any place than `other`.
    pub(crate) fn is_beyond(&self, other: SpareBytes) -> bool {
        self.pool() > other.pool() || self.index > other.index || self.log_file > other.log_file
    }

    /// Returns the one that takes more of the pool.
    pub(crate) fn max(self, other: SpareBytes) -> SpareBytes {
        match other.pool() > self.pool() {
            true => other,
            false => self,
        }
    }

    /// Returns the bytes of the pool.
    pub(crate) fn pool(&self) -> u64 {
        self.extents[0] + self.extents[1]
    }
}

/// The outcome of making a spare memtable.
pub(crate) enum Spare {
    Ready,
    /// Another thread is making one.
    Underway,
    /// The pool has no space for it.
    PoolFull,
    /// A disk has no space for it; the error has the details.
    DiskFull(Error),
}
