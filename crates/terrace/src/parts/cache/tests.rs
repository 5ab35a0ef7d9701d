//! Tests of the caches: limits hold, and a cached value is returned while it is cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{BlockCache, BlockKey, FileCache, Weigh};

#[derive(Debug)]
struct Bytes(usize, u64);

impl Weigh for Arc<Bytes> {
    fn weight(&self) -> usize {
        self.0
    }
}

fn key(number: u64, offset: u64) -> BlockKey {
    BlockKey { number, offset }
}

fn blocks(capacity: u64) -> Arc<BlockCache<Arc<Bytes>>> {
    Arc::new(BlockCache::new(capacity))
}

/// An evicted block is returned to the caller whose block replaced it.
#[test]
fn what_goes_is_given_back() {
    let cache = blocks(1 << 20);
    let mut gone = 0;
    for offset in 0..1000 {
        let block = cache.insert(key(1, offset), Arc::new(Bytes(4000, offset)));
        if let Some(block) = block {
            assert!(
                !cache.contains(&key(1, block.1)),
                "block {} is cached",
                block.1
            );
            assert_eq!(Arc::strong_count(&block), 1);
            gone += 1;
        }
    }
    let kept = (0..1000).filter(|offset| cache.contains(&key(1, *offset)));
    assert_eq!(gone + kept.count(), 1000);
}

/// Scanned blocks are cached while there is space. In a full cache one span in sixteen is.
#[test]
fn a_full_cache_keeps_little_of_scans() {
    let cache = blocks(1 << 20);
    let kept = |cache: &BlockCache<_>| (0..160).filter(|_| cache.keeps_scanned(64 << 10)).count();
    assert_eq!(kept(&cache), 160);
    for offset in 0..2000 {
        cache.insert(key(1, offset), Arc::new(Bytes(4000, 0)));
    }
    assert_eq!(kept(&cache), 10);
    // Pinned bytes do not count as free space.
    let cache = blocks(1 << 20);
    let _pin = cache.charge(1 << 20);
    assert_eq!(kept(&cache), 10);
}

/// Cached and pinned blocks together stay within the budget in any order of operations, and a hit
/// returns the block cached under that key.
#[test]
fn cached_and_pinned_blocks_share_one_budget() {
    for capacity in [64 << 10, 1 << 20, 16 << 20] {
        let cache = blocks(capacity);
        let mut rng = fastrand::Rng::with_seed(capacity);
        let mut pins = Vec::new();
        let mut refused = 0;
        for turn in 0..20_000u64 {
            let at = key(rng.u64(..4), rng.u64(..5000) * 4096);
            if let Some(found) = cache.get(&at) {
                assert_eq!(found.1, at.number ^ at.offset);
            } else {
                let block = Bytes(rng.usize(100..9000), at.number ^ at.offset);
                cache.insert(at, Arc::new(block));
            }
            if turn % 10 == 0 {
                let bytes = rng.usize(..capacity as usize / 8);
                match rng.u32(..3) {
                    0 => pins.truncate(rng.usize(..=pins.len())),
                    1 => match cache.try_pin(bytes) {
                        Some(pin) => pins.push(pin),
                        None => refused += 1,
                    },
                    _ if pins.len() < 3 => pins.push(cache.charge(bytes)),
                    _ => {}
                }
                let (cached, pinned) = cache.used_bytes();
                assert!(cached + pinned <= cache.capacity_bytes(), "turn {turn}");
            }
        }
        assert!(refused > 0);
        pins.clear();
        let (cached, pinned) = cache.used_bytes();
        assert_eq!(pinned, 0);
        assert!(cached > 0);
        cache.forget(2);
        assert!((0..5000).all(|i| !cache.contains(&key(2, i * 4096))));
        assert!((0..5000).any(|i| cache.contains(&key(1, i * 4096))));
    }
}

/// While readers must hold more than the budget, nothing is cached. Caching resumes afterwards.
#[test]
fn an_overdrawn_budget_caches_nothing() {
    let cache = blocks(1 << 20);
    let charge = cache.charge(2 << 20);
    assert!(cache.try_pin(1).is_none());
    cache.insert(key(1, 0), Arc::new(Bytes(1000, 1)));
    assert_eq!(cache.used_bytes(), (0, 2 << 20));
    drop(charge);
    cache.insert(key(1, 0), Arc::new(Bytes(1000, 1)));
    assert!(cache.get(&key(1, 0)).is_some());
}

/// The cache closes files beyond its limit. Concurrent callers open a file once, and a failure to
/// open is returned to its caller and not cached.
#[test]
fn open_files_stay_within_their_limit() {
    for files_max in [4, 7, 100, 1000] {
        let cache = FileCache::<u64>::new(files_max);
        let opened = AtomicU64::new(0);
        let open = |number: u64| {
            cache.get_or_open::<()>(number, || {
                opened.fetch_add(1, Ordering::Relaxed);
                Ok(Arc::new(number))
            })
        };
        for number in 0..3000 {
            assert_eq!(*open(number).unwrap(), number);
            assert!(cache.open_count() <= files_max);
            let before = opened.load(Ordering::Relaxed);
            assert_eq!(*open(number).unwrap(), number);
            assert_eq!(opened.load(Ordering::Relaxed), before, "{files_max} files");
        }
        assert!(cache.get_or_open(9999, || Err("cannot")).is_err());
        assert_eq!(*open(9999).unwrap(), 9999);
        cache.forget(9999);
        assert!(cache.get_or_open(9999, || Err("cannot")).is_err());
    }
}

/// Files also count by the memory that they hold. Together they stay within the limit, and a file
/// that exceeds it alone is opened each time and not kept.
#[test]
fn open_files_stay_within_their_memory() {
    let cache = FileCache::<u64>::within(100, 1 << 20, |bytes| *bytes);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut bytes_of = std::collections::BTreeMap::new();
    for number in 0..5000 {
        let bytes = rng.u64(..100_000);
        bytes_of.insert(number, bytes);
        cache
            .get_or_open::<()>(number, || Ok(Arc::new(bytes)))
            .unwrap();
        assert!(cache.open_count() <= 100);
        if number % 100 == 99 {
            let held = bytes_of
                .iter()
                .filter(|(number, _)| cache.has(**number))
                .map(|(_, bytes)| bytes)
                .sum::<u64>();
            assert!(held <= 1 << 20, "{held}");
            assert!(held > 1 << 18, "{held}");
        }
    }
    cache
        .get_or_open::<()>(9999, || Ok(Arc::new(2 << 20)))
        .unwrap();
    assert!(cache.get_or_open(9999, || Err("not kept")).is_err());
}

/// With a memory budget, bytes held outside the cache are limited to a small part of it.
#[test]
fn a_budget_limits_what_is_held() {
    let options = crate::Options::default().within(64 << 20, crate::Sizes::default());
    let memory = crate::parts::memory::Memory::of(&options);
    let capacity = options.bottom.leveled.cache_bytes;
    let cache = Arc::new(BlockCache::<Arc<Bytes>>::within(capacity, memory));
    let pins: Vec<_> = std::iter::from_fn(|| cache.try_pin(10_000)).collect();
    let held = pins.len() as u64 * 10_000;
    assert!(held <= capacity / 8 && held > capacity / 10, "{held}");
    drop(pins);
    assert!(cache.try_pin(10_000).is_some());
}
