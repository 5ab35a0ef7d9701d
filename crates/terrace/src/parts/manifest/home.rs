//! This file is what a manifest needs of the place where its records are: two extents of the pool
//! (pool.rs), or a file in the database's folder (file.rs).

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use terrace_media::Span;

use crate::parts::manifest::ManifestError;
use crate::parts::manifest::edit::Change;
use crate::parts::reserve::Reserve;

/// Where the records of a manifest are.
pub(super) trait Home: Send {
    /// Whether a change is written down: what is said of a pool that is gone with the process need
    /// not be, and must not come back without it.
    fn keeps(&self, change: &Change) -> bool;

    /// Bytes that there is room for in the generation in use.
    fn room(&self) -> u64;

    /// The room that a generation gets whose first record ends at `wanted`, where that is known before
    /// it is written.
    fn room_of(&self, wanted: u64) -> u64;

    /// Writes a record at `at`, behind all others, durable on return. After a failure nothing is
    /// known of what is there.
    fn append(&mut self, at: u64, record: &[u8]) -> io::Result<()>;

    /// Makes `image` all there is of a new generation, in one step that is durable on return, with room for
    /// `kept` bytes more. A failure that `ManifestError::is_final` denies leaves everything as it was.
    fn replace(&mut self, generation: u64, image: &[u8], kept: u64) -> Result<(), ManifestError>;

    /// The bytes of the generation in use, and the offset that errors give to the first of them.
    fn read(&self) -> Result<(Cow<'_, [u8]>, u64), ManifestError>;

    /// Generations that find a full disk take the room of `reserve`.
    fn lend(&mut self, reserve: &Arc<Reserve>) {
        let _ = reserve;
    }

    /// The extents of the pool that the records are in.
    fn spans(&self) -> Vec<Span>;
}

/// The room that the next generation should have for a first record that ends at `wanted`: edits
/// get as much again before the state is written anew.
pub(super) fn room_for(wanted: u64) -> u64 {
    wanted.saturating_mul(4)
}
