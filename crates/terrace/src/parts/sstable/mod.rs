//! SSTables: sorted tables in files, each written once, front to back, and read by blocks.
//!
//! ```text
//! SstWriter --add--> blocks --finish: sync file, sync directory--> a file for the manifest
//! SsTable   --get, multi_get, cursor--> index -> block cache -> file
//! ```
//!
//! A point read queries the filter, finds a block through the index and searches it. Each of these
//! is in the block cache or takes one read of the file. A scan visits block after block and reads
//! ahead. Checksums are verified once, when bytes are read from the file.
//!
//! Invariants
//!   T1  A table never changes once `SstWriter::finish` has returned, and nothing may refer to it
//!       before that: the file is made durable first, then its name, then the manifest.
//!   T2  Entries ascend strictly by keyspace, key and descending sequence number.
//!   T3  The block that the index returns for a key and a sequence number contains the newest
//!       version that a read there sees, if the table contains any: a separator with sequence
//!       number 0 is between two keys, any other is the last entry of its block.
//!
//! layout.rs defines the bytes. A table has one writer and any number of readers. The caller
//! chooses file names.

#![cfg_attr(
    not(test),
    expect(
        dead_code,
        unused_imports,
        reason = "the engine will use it for multi-get"
    )
)]

mod block;
mod block_scan;
mod build;
mod cursor;
#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod entries;
mod fetch;
mod heads;
mod index;
pub(crate) mod layout;
mod meta;
mod multi;
mod properties;
mod ranges;
mod reader;
mod salvage;
#[cfg(test)]
mod tests;
mod verify;
mod walk;
mod writer;

pub(crate) use cursor::SstCursor;
pub(crate) use fetch::{CachedBlock, ReadCounts};
pub(crate) use layout::{BlockKind, Compression, VALUE_BYTES_MAX, kind};
pub(crate) use meta::{FileMeta, TABLE_FILE};
pub(crate) use multi::MultiRead;
pub(crate) use properties::{Place, Properties};
pub(crate) use ranges::{RangeDelete, RangeDeletes};
pub(crate) use reader::{Answer, Found, ReadMode, SsTable};
pub(crate) use salvage::{LostKeys, Piece, Salvaged, SalvagedEntry, salvage};
pub(crate) use verify::{PointerEntry, Verified};
pub(crate) use writer::{Finished, NewEntry, SstOptions, SstWriter};

use crate::parts::cache::BlockCache;

/// The cache of all blocks of all tables.
pub(crate) type SstCache = BlockCache<CachedBlock>;
