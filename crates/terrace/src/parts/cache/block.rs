//! This file is the cache of blocks, and the one budget that cached and pinned blocks share.
//!
//! Invariants
//!   C1  Bytes cached and pinned together are at most the capacity, while what readers must hold
//!       (`charge`) leaves room; what they may hold (`try_pin`) never takes more than half, and with
//!       a budget for memory no more than that allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::parts::memory::Memory;

/// Which block: the number of its file and its offset there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey {
    pub(crate) number: u64,
    pub(crate) offset: u64,
}

/// Something of known size.
pub(crate) trait Weigh {
    /// Bytes of memory that it takes.
    fn weight(&self) -> usize;
}

/// What the cache needs for a block besides the block.
const OVERHEAD_BYTES: usize = 96;
/// A shard smaller than this would refuse blocks that are not large.
const SHARD_BYTES_MIN: u64 = 2 << 20;
/// More shards than this do not make two threads meet less often.
const SHARDS_MAX: u64 = 64;
/// Of what scans read while the cache is full, one span in so many is kept. How full it is is looked up as often:
/// that asks every shard.
const SCANNED_KEPT_ONE_IN: u64 = 16;
/// Only for the first size of the cache's tables.
const BLOCK_BYTES_USUAL: u64 = 4 << 10;

#[derive(Debug, Clone, Copy)]
struct ByWeight;

impl<V: Weigh> Weighter<BlockKey, V> for ByWeight {
    fn weight(&self, _: &BlockKey, value: &V) -> u64 {
        (value.weight() + OVERHEAD_BYTES) as u64
    }
}

type Inner<V> = Cache<BlockKey, V, ByWeight, DefaultHashBuilder, DefaultLifecycle<BlockKey, V>>;

/// Blocks in memory. Any number of threads.
pub(crate) struct BlockCache<V: Weigh + Clone> {
    cache: Inner<V>,
    capacity_bytes: u64,
    pinned: Mutex<Pinned>,
    memory: Arc<Memory>,
    /// Spans of scans that came.
    scanned: AtomicU64,
    /// Bytes that were free when a span last looked, less what later ones have used.
    free: AtomicU64,
}

/// Bytes that are taken off what may be cached.
#[derive(Default)]
struct Pinned {
    all: u64,
    /// Of `try_pin`.
    optional: u64,
}

impl<V: Weigh + Clone> BlockCache<V> {
    /// An empty cache with a budget of `capacity_bytes`, of a store whose memory has no limit.
    pub(crate) fn new(capacity_bytes: u64) -> BlockCache<V> {
        BlockCache::within(capacity_bytes, Memory::unlimited())
    }

    /// An empty cache with a budget of `capacity_bytes`, a part of `memory`.
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
            // The options are complete; this is what they would give with one shard a core.
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

    /// The block, if it is cached.
    #[inline]
    pub(crate) fn get(&self, key: &BlockKey) -> Option<V> {
        self.cache.get(key)
    }

    /// Whether the block is cached; does not count as a use.
    pub(crate) fn contains(&self, key: &BlockKey) -> bool {
        self.cache.contains_key(key)
    }

    /// Caches a block, and returns one that had to go for it, if any. One that is larger than a shard is not
    /// kept.
    pub(crate) fn insert(&self, key: BlockKey, block: V) -> Option<V> {
        let mut gone = [None, None];
        self.cache.insert_with_lifecycle(key, block, &mut gone);
        let [gone, _] = gone;
        gone.map(|(_, block)| block)
    }

    /// Whether so many bytes that a scan has read are worth caching: while there is room, and then a few, so
    /// that what is scanned again and again comes to push out what is not read any more.
    pub(crate) fn keeps_scanned(&self, bytes: usize) -> bool {
        // ORDERING: a count, and a hint.
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

    /// Drops every block of a file. Takes time in proportion to the cache.
    pub(crate) fn forget(&self, number: u64) {
        self.cache.retain(|key, _| key.number != number);
    }

    /// The budget.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes of the budget in use: cached, and pinned.
    pub(crate) fn used_bytes(&self) -> (u64, u64) {
        (self.cache.weight(), self.pinned.lock().all)
    }

    /// The memory that it is a part of.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Takes bytes that the caller must hold off the budget, until the pin is dropped.
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

    /// Takes bytes that the caller would like to hold off the budget, unless pins would then have
    /// more than half of it.
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

    /// Lets the cache have what is not pinned. LOCK: the shards of the cache, each alone, under
    /// `pinned`.
    fn set_capacity(&self, pinned: &Pinned) {
        self.cache
            .set_capacity(self.capacity_bytes.saturating_sub(pinned.all));
    }
}

/// Bytes off the budget of a cache.
pub(crate) struct Pin<V: Weigh + Clone> {
    cache: Arc<BlockCache<V>>,
    bytes: u64,
    optional: bool,
}

impl<V: Weigh + Clone> Pin<V> {
    /// Bytes that are pinned.
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
