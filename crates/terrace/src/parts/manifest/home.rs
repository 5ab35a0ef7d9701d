//! The home of a manifest, the place of its records: two extents of the pool (pool.rs) or a file in
//! the database's directory (file.rs).

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use terrace_media::Span;

use crate::parts::manifest::ManifestError;
use crate::parts::manifest::edit::Change;
use crate::parts::reserve::Reserve;

/// The storage of a manifest's records.
pub(super) trait Home: Send {
    /// Returns whether a change is written. Changes of a pool that disappears with the process are
    /// not, and must not come back without it.
    fn keeps(&self, change: &Change) -> bool;

    /// Returns the capacity of the current generation in bytes.
    fn room(&self) -> u64;

    /// Returns the capacity of a generation whose first record ends at `wanted`, or 0 if it is
    /// unknown before the generation is written.
    fn room_of(&self, wanted: u64) -> u64;

    /// Writes a record at `at`, after all others, durable on return. After a failure the bytes
    /// there are unknown.
    fn append(&mut self, at: u64, record: &[u8]) -> io::Result<()>;

    /// Replaces all records by a new generation with the contents `image` and space for `kept` more
    /// bytes, in one step that is durable on return. A failure for which `ManifestError::is_final`
    /// is false leaves everything unchanged.
    fn replace(&mut self, generation: u64, image: &[u8], kept: u64) -> Result<(), ManifestError>;

    /// Returns the bytes of the current generation, and the offset of the first byte for errors.
    fn read(&self) -> Result<(Cow<'_, [u8]>, u64), ManifestError>;

    /// Lets generations use the space of `reserve` when the disk is full.
    fn lend(&mut self, reserve: &Arc<Reserve>) {
        let _ = reserve;
    }

    /// Returns the pool extents that contain the records.
    fn spans(&self) -> Vec<Span>;
}

/// The space for edits that a small state gets in any case, in bytes.
const EDITS_BYTES: u64 = 1 << 20;

/// Returns the capacity of the next generation if its first record ends at `wanted`: edits get
/// three times the size of a small state before the next compaction, and the size of a large one.
pub(super) fn room_for(wanted: u64) -> u64 {
    let edits = wanted.saturating_mul(3).min(wanted.max(EDITS_BYTES));
    wanted.saturating_add(edits)
}
