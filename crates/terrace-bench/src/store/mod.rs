//! The interface between the benchmark and every measured store.
//!
//! Terrace is one adapter of the trait [`Store`], each peer is another, and [`StoreKind::Empty`]
//! does nothing, so that the cost of the harness can be measured. A workload uses only this trait;
//! each client thread works through its own [`Session`], which keeps the state that the store would
//! have a thread keep: a batch, a buffer, a transaction.
//!
//! Reads pass values to a closure, so that a store that can lend its own memory does not have to
//! copy, and another store copies once, as its users would.
//!
//! A peer gets the same memory as Terrace ([`Budget`]), the requested durability or, if it has no
//! such mode, the next stronger one, and the settings that its own documentation recommends.
//! [`About`], which every report prints, describes its actual behaviour.
//!
//! Invariants
//!   A1  A call that returned `Ok` had its full effect: an unsupported call is an error, never
//!       ignored.
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
    /// No store: puts are dropped, reads find nothing.
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
    /// All stores, including those that are not in this build.
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

    /// Returns the name on the command line.
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

    /// Returns whether this build contains it: peers are behind cargo features of their names.
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

    /// Opens the store in `setup.folder`, and creates it if it does not exist.
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
            #[allow(unreachable_patterns, reason = "a build with all peers lacks none")]
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
                format!("unknown store {text:?}; use one of {}", names.join(", "))
            })
    }
}

/// The parameters of opening a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    /// The directory of its files. It exists, and is empty unless `existing`.
    pub(crate) folder: &'a Path,
    /// Whether the store must exist; otherwise it must not.
    pub(crate) existing: bool,
    /// Options of Terrace. Peers use those that apply to them: durability, sizes, compression.
    pub(crate) options: &'a Options,
    /// An estimate of the bytes that the run will write, for stores that reserve address space.
    #[allow(dead_code, reason = "builds without such a peer do not read it")]
    pub(crate) data_bytes: u64,
}

/// The memory that a store may use, the same for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "builds without a peer do not read it")]
pub(crate) struct Budget {
    /// The size of a write buffer; there may be `buffers` of them.
    pub(crate) buffer_bytes: u64,
    /// The number of write buffers, including the active one.
    pub(crate) buffers: u64,
    /// The size of the cache of blocks or pages.
    pub(crate) cache_bytes: u64,
}

#[allow(dead_code, reason = "builds without a peer do not read it")]
impl Budget {
    /// Returns the budget that `options` gives to Terrace's memtables and its cache.
    pub(crate) fn of(options: &Options) -> Budget {
        Budget {
            buffer_bytes: options.front.memtable_bytes,
            buffers: options.front.sealed_count_max as u64 + 1,
            cache_bytes: options.bottom.leveled.cache_bytes,
        }
    }

    /// Returns the total, for stores that have one cache for everything.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.buffer_bytes
            .saturating_mul(self.buffers)
            .saturating_add(self.cache_bytes)
    }
}

/// The facts about a store and its actual behaviour, for people.
#[derive(Debug, Clone, Serialize)]
pub struct About {
    /// Its name and version, or its design.
    pub name: String,
    /// The location of its bytes: the pool's medium, or files.
    pub medium: String,
    /// The durability of a write in words: the step it waits for and the failures it survives.
    pub durability: String,
    /// The settings that matter for the figures.
    pub settings: String,
    /// The source of the counts of written bytes.
    pub counted_by: &'static str,
}

/// The counts of a store since it was opened. A store that does not count leaves `files` empty, and
/// the process's own accounting is used instead.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    /// Key and value bytes that users wrote; `None` if the store does not count them.
    pub(crate) user_bytes: Option<u64>,
    /// Lines, flushes, fences and bytes to a pool, by purpose.
    pub(crate) pm: Counts,
    /// Bytes to files by cause, as the store names them.
    pub(crate) files: Vec<(&'static str, u64)>,
    /// Stalls of writers by reason: their number, if the store counts it, and their time.
    pub(crate) stalls: Vec<(&'static str, u64, Duration)>,
    /// Flushes of memtables; `None` if the store does not count them.
    pub(crate) flushes: Option<Flushes>,
    /// Bytes of the live extents of the pool; `None` without one.
    pub(crate) pool_bytes: Option<u64>,
    /// Blocks requested by point reads.
    pub(crate) blocks: BlockReads,
}

/// Flushes since a store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Flushes {
    /// Completed jobs.
    pub(crate) count: u64,
    /// Entries that they moved.
    pub(crate) entry_count: u64,
    /// Time spent in them, over all threads.
    pub(crate) time: Duration,
}

/// A wait for background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settle {
    /// Everything is moved to its final place, and background work is idle.
    Drain,
    /// Write buffers are moved to the next place.
    Flush,
    /// Background work is idle; nothing is requested.
    Rest,
}

/// A measured store. Dropping it closes it without reporting errors.
pub(crate) trait Store: Send + Sync {
    /// Returns the facts about the store.
    fn about(&self) -> About;
    /// Returns the options in force, those that the design sets among them; `None` for a peer.
    fn options(&self) -> Option<&Options> {
        None
    }

    /// Returns a session for one thread.
    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError>;

    /// Waits for background work.
    fn settle(&self, how: Settle) -> Result<(), BenchError>;

    /// Returns the counts so far.
    fn counters(&self) -> Counters;

    /// Returns its bytes by tier; empty for a store that does not report them. The space of its
    /// files is measured separately.
    fn space(&self) -> Space;

    /// Closes it cleanly: the next open finds all acknowledged writes.
    fn close(self: Box<Self>) -> Result<(), BenchError>;
}

/// The direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Upward, from the key itself or the next larger one.
    Forward,
    /// Downward, from the key itself or the next smaller one.
    Backward,
}

/// The operations of one thread on a store. Writes have the durability that the store was opened
/// with.
pub(crate) trait Session {
    /// Writes one entry.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError>;

    /// Deletes one key, which need not exist.
    fn delete(&mut self, key: &[u8]) -> Result<(), BenchError>;

    /// Adds a put to the batch that the next [`Session::commit`] writes.
    fn batch_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError>;

    /// Adds a delete to that batch.
    fn batch_delete(&mut self, key: &[u8]) -> Result<(), BenchError>;

    /// Writes the batch, atomically if the store supports that.
    fn commit(&mut self) -> Result<(), BenchError>;

    /// Shows the value of `key` to `see`; returns whether there is one.
    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, BenchError>;

    /// Shows the value of each of the keys that has one to `see`, with the key's index.
    fn multi_get(
        &mut self,
        keys: &[Vec<u8>],
        see: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), BenchError> {
        for (at, key) in keys.iter().enumerate() {
            self.get(key, &mut |value| see(at, value))?;
        }
        Ok(())
    }

    /// Shows entries to `see` in order until it returns false: from `from` in `direction`, or from
    /// the first or last one.
    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), BenchError>;
}

/// Returns whether each write waits until it would survive power loss.
#[allow(dead_code, reason = "builds without a peer do not call it")]
pub(crate) fn is_synced(durability: Durability) -> bool {
    durability == Durability::Sync
}
