//! This file is a store as the benchmark sees it: what every store that is measured can do.
//!
//! Terrace is one adapter of the trait [`Store`], each peer is another, and [`StoreKind::Empty`] is
//! one that does nothing, so that what the harness itself costs can be measured. A workload knows
//! this trait and nothing of what is behind it; each client thread works through a [`Session`] of
//! its own, which keeps what the store would have a thread keep: a batch, a buffer, a transaction.
//!
//! Reads hand values to a closure, so that a store that can lend its own memory does not have to
//! copy, and one that cannot copies once, as its users would.
//!
//! A peer gets the memory that Terrace gets ([`Budget`]), the durability that was asked for or, where
//! it has none such, the next stronger one, and the settings that its own documentation
//! recommends. What it really does stands in [`About`], which every report prints.
//!
//! Invariants
//!   A1  A call that returned `Ok` did what it says: what cannot be done is an error, never nothing.
//!   A2  An adapter adds nothing that its store's users would not write: no cache, no queue.

mod empty;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "leveldb")]
mod leveldb;
#[cfg(test)]
pub(crate) mod liar;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "sled")]
mod sled;
mod terrace;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ::terrace::{Counts, Durability, Options};
use serde::Serialize;

use crate::error::BenchError;
use crate::files::BlockReads;
use crate::space::Space;

/// A store that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StoreKind {
    /// Terrace, in the design that its options name.
    #[default]
    Terrace,
    /// Nothing: what is put is gone, what is read is absent.
    Empty,
    /// RocksDB; with the feature `rocksdb`.
    RocksDb,
    /// LevelDB; with the feature `leveldb`.
    LevelDb,
    /// LMDB; with the feature `lmdb`.
    Lmdb,
    /// redb; with the feature `redb`.
    Redb,
    /// fjall; with the feature `fjall`.
    Fjall,
    /// sled; with the feature `sled`.
    Sled,
}

impl StoreKind {
    /// All stores, those that are not in this build included.
    pub const ALL: [StoreKind; 8] = [
        StoreKind::Terrace,
        StoreKind::Empty,
        StoreKind::RocksDb,
        StoreKind::LevelDb,
        StoreKind::Lmdb,
        StoreKind::Redb,
        StoreKind::Fjall,
        StoreKind::Sled,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Terrace => "terrace",
            StoreKind::Empty => "empty",
            StoreKind::RocksDb => "rocksdb",
            StoreKind::LevelDb => "leveldb",
            StoreKind::Lmdb => "lmdb",
            StoreKind::Redb => "redb",
            StoreKind::Fjall => "fjall",
            StoreKind::Sled => "sled",
        }
    }

    /// Whether this build has it: peers are behind cargo features of their names.
    pub fn is_built(self) -> bool {
        match self {
            StoreKind::Terrace | StoreKind::Empty => true,
            StoreKind::RocksDb => cfg!(feature = "rocksdb"),
            StoreKind::LevelDb => cfg!(feature = "leveldb"),
            StoreKind::Lmdb => cfg!(feature = "lmdb"),
            StoreKind::Redb => cfg!(feature = "redb"),
            StoreKind::Fjall => cfg!(feature = "fjall"),
            StoreKind::Sled => cfg!(feature = "sled"),
        }
    }

    /// Opens the store in `setup.folder`, and makes it where it does not exist.
    pub(crate) fn open(self, setup: &Setup<'_>) -> Result<Box<dyn Store>, BenchError> {
        match self {
            StoreKind::Terrace => terrace::open(setup),
            StoreKind::Empty => Ok(empty::open()),
            #[cfg(feature = "rocksdb")]
            StoreKind::RocksDb => rocksdb::open(setup),
            #[cfg(feature = "leveldb")]
            StoreKind::LevelDb => leveldb::open(setup),
            #[cfg(feature = "lmdb")]
            StoreKind::Lmdb => lmdb::open(setup),
            #[cfg(feature = "redb")]
            StoreKind::Redb => redb::open(setup),
            #[cfg(feature = "fjall")]
            StoreKind::Fjall => fjall::open(setup),
            #[cfg(feature = "sled")]
            StoreKind::Sled => sled::open(setup),
            #[allow(
                unreachable_patterns,
                reason = "a build with every peer has none that is missing"
            )]
            absent => Err(BenchError::Invalid(format!(
                "this build has no {absent}: build it with --features {absent} \
                 (docs/benchmarking.md says what that needs)"
            ))),
        }
    }
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for StoreKind {
    type Err = String;

    fn from_str(text: &str) -> Result<StoreKind, String> {
        StoreKind::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                let names: Vec<&str> = StoreKind::ALL.iter().map(|kind| kind.name()).collect();
                format!("{text:?} is no store; there are {}", names.join(", "))
            })
    }
}

/// What a store is opened with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    /// Where its files are. It exists, and is empty unless `existing`.
    pub(crate) folder: &'a Path,
    /// Whether there must be a store; otherwise there is none.
    pub(crate) existing: bool,
    /// Options of Terrace. Peers take what has a meaning for them: durability, sizes, compression.
    pub(crate) options: &'a Options,
    /// Bytes of the data that the run will write, about; for stores that reserve address space.
    #[allow(dead_code, reason = "builds without such a peer do not read it")]
    pub(crate) data_bytes: u64,
}

/// The memory that a store may use, the same for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "builds without a peer have nobody who reads it")]
pub(crate) struct Budget {
    /// A write buffer, of which there may be `buffers`.
    pub(crate) buffer_bytes: u64,
    /// Write buffers, the active one included.
    pub(crate) buffers: u64,
    /// A cache of blocks or pages.
    pub(crate) cache_bytes: u64,
}

#[allow(dead_code, reason = "builds without a peer have nobody who reads it")]
impl Budget {
    /// What `options` give to Terrace's memtables and its cache.
    pub(crate) fn of(options: &Options) -> Budget {
        Budget {
            buffer_bytes: options.front.memtable_bytes,
            buffers: options.front.sealed_count_max as u64 + 1,
            cache_bytes: options.bottom.leveled.cache_bytes,
        }
    }

    /// All of it, for stores that have one cache for everything.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.buffer_bytes
            .saturating_mul(self.buffers)
            .saturating_add(self.cache_bytes)
    }
}

/// What a store is and what it really does, for people.
#[derive(Debug, Clone, Serialize)]
pub struct About {
    /// Its name and version, or its design.
    pub name: String,
    /// Where its bytes are: the pool's medium, or files.
    pub medium: String,
    /// What a write waits for, in words, and what that survives.
    pub durability: String,
    /// The settings that matter for the figures.
    pub settings: String,
    /// Where the counts of written bytes come from.
    pub counted_by: &'static str,
}

/// What a store has counted since it was opened. A store that does not count leaves `written` empty,
/// and the process's own accounting stands in its place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    /// Key and value bytes that users wrote; `None` where the store does not say.
    pub(crate) user_bytes: Option<u64>,
    /// Lines, flushes, fences and bytes to a pool, by purpose.
    pub(crate) pm: Counts,
    /// Bytes to files by cause, as the store names them.
    pub(crate) files: Vec<(&'static str, u64)>,
    /// Stalls of writers by reason: how often, where the store says so, and for how long.
    pub(crate) stalls: Vec<(&'static str, u64, Duration)>,
    /// Blocks that point reads asked for.
    pub(crate) blocks: BlockReads,
}

/// A wait for background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settle {
    /// Everything to where it stays, and background work at rest.
    Drain,
    /// What is in write buffers to the next place.
    Flush,
    /// Background work at rest, with nothing asked for.
    Rest,
}

/// A store that is measured. Dropping it closes it, without a word about what failed.
pub(crate) trait Store: Send + Sync {
    /// What it is and does.
    fn about(&self) -> About;

    /// A session for one thread.
    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError>;

    /// Waits for background work.
    fn settle(&self, how: Settle) -> Result<(), BenchError>;

    /// What was counted up to now.
    fn counters(&self) -> Counters;

    /// What it holds, by tier; empty for a store that does not say. What its files take is measured
    /// from outside.
    fn space(&self) -> Space;

    /// Closes it in order: what was acknowledged is there at the next opening.
    fn close(self: Box<Self>) -> Result<(), BenchError>;
}

/// Which way a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Upward, from the key itself or the next larger one.
    Forward,
    /// Downward, from the key itself or the next smaller one.
    Backward,
}

/// What one thread does to a store. Writes have the durability that the store was opened with.
pub(crate) trait Session {
    /// Writes one entry.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError>;

    /// Deletes one key, which need not exist.
    fn delete(&mut self, key: &[u8]) -> Result<(), BenchError>;

    /// Adds a put to the batch that the next [`Session::commit`] writes.
    fn batch_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError>;

    /// Adds a delete to that batch.
    fn batch_delete(&mut self, key: &[u8]) -> Result<(), BenchError>;

    /// Writes the batch: all of it or nothing, where the store has such batches.
    fn commit(&mut self) -> Result<(), BenchError>;

    /// Shows the value of `key` to `see`; whether there is one.
    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, BenchError>;

    /// Shows entries to `see` in order until it says no: from `from` in `direction`, or from the
    /// first or last one.
    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), BenchError>;
}

/// Whether each write waits until it would survive power loss.
#[allow(dead_code, reason = "builds without a peer have nobody who asks")]
pub(crate) fn is_synced(durability: Durability) -> bool {
    durability == Durability::Sync
}
