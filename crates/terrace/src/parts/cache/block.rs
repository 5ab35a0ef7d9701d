//! The block cache, and the budget that cached and pinned blocks share.
//!
//! Invariants
//!   C1  Cached and pinned bytes together stay within the capacity unless mandatory pins (`charge`)
//!       alone exceed it. An optional pin (`try_pin`) is granted only while all pins take at most
//!       half of the capacity, and optional pins at most the limit of the memory budget, if there
//!       is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::parts::memory::Memory;

/// The identity of a block: the number of its file, and its offset there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey {
    pub(crate) number: u64,
    pub(crate) offset: u64,
}

/// A value whose size is known.
pub(crate) trait Weigh {
    /// Returns the bytes of memory that the value takes.
    fn weight(&self) -> usize;
}

/// The cache's own overhead for a block, in bytes.
const OVERHEAD_BYTES: usize = 96;
/// The minimum shard size. A smaller shard would refuse blocks of moderate size.
const SHARD_BYTES_MIN: u64 = 2 << 20;
/// The maximum number of shards. More do not reduce contention further.
const SHARDS_MAX: u64 = 64;
/// While the cache is full, one in this many scanned spans is cached. The free space is refreshed
/// as rarely, because that visits every shard.
const SCANNED_KEPT_ONE_IN: u64 = 16;
/// The usual block size, used only for the initial size of the cache's tables.
const BLOCK_BYTES_USUAL: u64 = 4 << 10;

#[derive(Debug, Clone, Copy)]
struct ByWeight;

impl<V: Weigh> Weighter<BlockKey, V> for ByWeight {
    fn weight(&self, _: &BlockKey, value: &V) -> u64 {
        (value.weight() + OVERHEAD_BYTES) as u64
    }
}

type Inner<V> = Cache<BlockKey, V, ByWeight, DefaultHashBuilder, DefaultLifecycle<BlockKey, V>>;

/// A cache of blocks in memory, shared by any number of threads.
pub(crate) struct BlockCache<V: Weigh + Clone> {
    cache: Inner<V>,
    capacity_bytes: u64,
    pinned: Mutex<Pinned>,
    memory: Arc<Memory>,
    /// The number of spans that scans have read.
    scanned: AtomicU64,
    /// The bytes that were free at the last refresh, less those that scans have used since.
    free: AtomicU64,
}

/// Bytes subtracted from the budget of the cache.
#[derive(Default)]
struct Pinned {
    all: u64,
    /// Bytes pinned by `try_pin`.
    optional: u64,
}

impl<V: Weigh + Clone> BlockCache<V> {
    /// Creates an empty cache with a budget of `capacity_bytes`, for a store without a memory
    /// limit.
    pub(crate) fn new(capacity_bytes: u64) -> BlockCache<V> {
        BlockCache::within(capacity_bytes, Memory::unlimited())
    }

    /// Creates an empty cache with a budget of `capacity_bytes`, which is a part of `memory`.
    pub(crate) fn within(capacity_bytes: u64, memory: Arc<Memory>) -> BlockCache<V> {
        let shards = (capacity_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let options = OptionsBuilder::new()
            .shards(1 << shards.ilog2())
            .estimated_items_capacity((capacity_bytes / BLOCK_BYTES_USUAL) as usize)
            .weight_capacity(capacity_bytes)
            .build();
        let cache = match options {
            Ok(options) => Cache::with_options(
                options,
                ByWeight,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            // Not reached, since all options are set. This cache has one shard per core.
            Err(_) => Cache::with_weighter(0, capacity_bytes, ByWeight),
        };
        BlockCache {
            cache,
            capacity_bytes,
            pinned: Mutex::default(),
            memory,
            scanned: AtomicU64::new(0),
            free: AtomicU64::new(0),
        }
    }

    /// Returns the block if it is cached.
    #[inline]
    pub(crate) fn get(&self, key: &BlockKey) -> Option<V> {
        self.cache.get(key)
    }

    /// Returns whether the block is cached, without counting a use.
    pub(crate) fn contains(&self, key: &BlockKey) -> bool {
        self.cache.contains_key(key)
    }

    /// Caches a block and returns a block that was evicted for it, if any. A block larger than a
    /// shard is not cached.
    pub(crate) fn insert(&self, key: BlockKey, block: V) -> Option<V> {
        let mut gone = [None, None];
        self.cache.insert_with_lifecycle(key, block, &mut gone);
        let [gone, _] = gone;
        gone.map(|(_, block)| block)
    }

    /// Returns whether `bytes` that a scan has read should be cached. While there is free space,
    /// they always are; in a full cache only a small part is, so that data scanned repeatedly
    /// gradually replaces data no longer read.
    pub(crate) fn keeps_scanned(&self, bytes: usize) -> bool {
        // ORDERING: relaxed, as this is only a counter and a hint.
        let turn = self.scanned.fetch_add(1, Ordering::Relaxed);
        if turn.is_multiple_of(SCANNED_KEPT_ONE_IN) {
            let free = self.cache.capacity().saturating_sub(self.cache.weight());
            self.free.store(free, Ordering::Relaxed);
            return true;
        }
        let bytes = bytes as u64;
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(bytes)
            })
            .is_ok()
    }

    /// Drops all blocks of a file, in time proportional to the size of the cache.
    pub(crate) fn forget(&self, number: u64) {
        self.cache.retain(|key, _| key.number != number);
    }

    /// Returns the budget.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Returns the bytes of the budget in use: cached, and pinned.
    pub(crate) fn used_bytes(&self) -> (u64, u64) {
        (self.cache.weight(), self.pinned.lock().all)
    }

    /// Returns the memory budget that the cache is a part of.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Subtracts bytes that the caller must hold from the budget, until the pin is dropped.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Pin<V> {
        let bytes = bytes as u64;
        let mut pinned = self.pinned.lock();
        pinned.all = pinned.all.saturating_add(bytes);
        self.set_capacity(&pinned);
        Pin {
            cache: Arc::clone(self),
            bytes,
            optional: false,
        }
    }

    /// Subtracts bytes that the caller would like to hold from the budget, unless pins would then
    /// take more than half of it, or optional pins more than the memory budget allows.
    pub(crate) fn try_pin(self: &Arc<Self>, bytes: usize) -> Option<Pin<V>> {
        let bytes = bytes as u64;
        let mut pinned = self.pinned.lock();
        let all = pinned.all.saturating_add(bytes);
        let optional = pinned.optional.saturating_add(bytes);
        if all > self.capacity_bytes / 2 || optional > self.memory.limits.held_bytes {
            return None;
        }
        (pinned.all, pinned.optional) = (all, optional);
        self.set_capacity(&pinned);
        Some(Pin {
            cache: Arc::clone(self),
            bytes,
            optional: true,
        })
    }

    /// Gives the cache all bytes that are not pinned. LOCK: takes the cache's shards, one at a
    /// time, under `pinned`.
    fn set_capacity(&self, pinned: &Pinned) {
        self.cache
            .set_capacity(self.capacity_bytes.saturating_sub(pinned.all));
    }
}

/// Bytes subtracted from the budget of a cache.
pub(crate) struct Pin<V: Weigh + Clone> {
    cache: Arc<BlockCache<V>>,
    bytes: u64,
    optional: bool,
}

impl<V: Weigh + Clone> Pin<V> {
    /// Returns the number of bytes pinned.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<V: Weigh + Clone> Drop for Pin<V> {
    fn drop(&mut self) {
        let mut pinned = self.cache.pinned.lock();
        pinned.all = pinned.all.saturating_sub(self.bytes);
        if self.optional {
            pinned.optional = pinned.optional.saturating_sub(self.bytes);
        }
        self.cache.set_capacity(&pinned);
    }
}
