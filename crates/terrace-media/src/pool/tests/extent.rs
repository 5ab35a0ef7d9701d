//! Tests of extents: the allocator against a model, disjoint claims, and dropping.

use crate::pool::alloc::FreeMap;
use crate::{AllocError, Arena, Backing, Pool, PoolConfig, PoolFaults, Prefault, Span};
use std::io;
use std::sync::Arc;

const GRANULE: u64 = 4096;

fn config() -> PoolConfig {
    PoolConfig {
        grow_bytes: 32 << 10,
        granule: GRANULE,
        prefault: Prefault::None,
        ..PoolConfig::new(Backing::Anonymous, 1 << 20)
    }
}

/// Under random takes and gives, the map matches a table of granules.
#[test]
fn free_map_follows_its_model() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let granules = 64;
        let start = 3 * GRANULE;
        let mut map = FreeMap::new(start - 5, start + granules * GRANULE + 9, GRANULE);
        let mut model = vec![true; granules as usize];
        let mut held: Vec<Span> = Vec::new();
        for _ in 0..400 {
            let index = |off: u64| ((off - start) / GRANULE) as usize;
            match random.u8(0..4) {
                0 | 1 => {
                    let len = map.round(random.u64(1..8 * GRANULE)).expect("small");
                    let need = (len / GRANULE) as usize;
                    let first_fit = (0..=model.len() - need)
                        .find(|i| model[*i..*i + need].iter().all(|free| *free));
                    let found = map.find(len, |_| true);
                    assert_eq!(found.map(|span| index(span.off)), first_fit, "seed {seed}");
                    if let Some(span) = found {
                        assert!(map.take(span));
                        model[index(span.off)..][..need].fill(false);
                        held.push(span);
                    }
                }
                2 if !held.is_empty() => {
                    let span = held.swap_remove(random.usize(0..held.len()));
                    map.give(span);
                    model[index(span.off)..][..(span.len / GRANULE) as usize].fill(true);
                }
                _ => {
                    let first = random.usize(0..model.len());
                    let need = random.usize(1..=model.len() - first);
                    let span = Span {
                        off: start + first as u64 * GRANULE,
                        len: need as u64 * GRANULE,
                    };
                    let free = model[first..first + need].iter().all(|free| *free);
                    assert_eq!(map.take(span), free, "seed {seed}");
                    if free {
                        model[first..first + need].fill(false);
                        held.push(span);
                    }
                }
            }
            let free = model.iter().filter(|free| **free).count() as u64;
            assert_eq!(map.free_bytes(), free * GRANULE);
            assert_eq!(map.allocated(), (granules - free) * GRANULE);
            let ranges = map.ranges();
            for pair in ranges.windows(2) {
                assert!(pair[0].off + pair[0].len < pair[1].off, "ranges are apart");
            }
            assert_eq!(
                ranges.iter().map(|span| span.len).sum::<u64>(),
                free * GRANULE
            );
            assert_eq!(
                map.largest_two(u64::MAX).0,
                ranges.iter().map(|span| span.len).max().unwrap_or(0)
            );
            let used = model.iter().rposition(|free| !free).map_or(0, |i| i + 1);
            let below = random.usize(used..=model.len());
            let limit = start + below as u64 * GRANULE;
            let free = model[..below].iter().filter(|free| **free).count() as u64;
            assert_eq!(map.free_below(limit), free * GRANULE);
            assert!(map.largest_two(limit).0 <= free * GRANULE);
            let last = model
                .iter()
                .rposition(|free| !free)
                .map_or(0, |i| i as u64 + 1);
            assert_eq!(map.used_end(), start + last * GRANULE);
        }
        for span in held.drain(..) {
            map.give(span);
        }
        assert_eq!(
            map.ranges(),
            [Span {
                off: start,
                len: granules * GRANULE
            }]
        );
    }
}

/// Spans that are not whole granules inside the map are refused.
#[test]
fn odd_spans_are_refused() {
    let mut map = FreeMap::new(GRANULE, 10 * GRANULE, GRANULE);
    for (off, len) in [
        (0, GRANULE),
        (GRANULE, 0),
        (GRANULE + 8, GRANULE),
        (GRANULE, GRANULE + 8),
        (9 * GRANULE, 2 * GRANULE),
        (u64::MAX - GRANULE + 1, GRANULE),
        (GRANULE, u64::MAX - GRANULE + 1),
    ] {
        assert!(!map.take(Span { off, len }), "{off}+{len}");
    }
    assert!(map.round(u64::MAX).is_none());
    assert_eq!(map.free_bytes(), 9 * GRANULE);
}

/// Extents that several threads allocate, fill and drop never share a byte, and all are freed.
#[test]
fn extents_of_many_threads_do_not_overlap() {
    let pool = Pool::create(config()).expect("created");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(u64::from(thread));
                let mut held = Vec::new();
                for turn in 0..300u32 {
                    if held.len() > 6 || (random.bool() && !held.is_empty()) {
                        let (extent, mark): (Arc<crate::Extent>, u8) =
                            held.swap_remove(random.usize(0..held.len()));
                        let len = extent.len() as usize;
                        let bytes = extent.region().bytes(extent.off(), len).expect("mapped");
                        assert!(
                            bytes.iter().all(|b| *b == mark),
                            "no other thread wrote here"
                        );
                    } else if let Ok(extent) = pool.alloc(random.u64(1..40_000)) {
                        let mark = thread * 60 + (turn % 60) as u8;
                        let len = extent.len() as usize;
                        extent
                            .claim(0, len)
                            .expect("whole")
                            .write(0, &vec![mark; len]);
                        held.push((extent, mark));
                    }
                }
            });
        }
    });
    let usage = pool.usage();
    assert_eq!((usage.allocated, usage.largest_free), (0, usage.free));
}

/// A pool grows to its cap, then reports that it is full, and has space again after a drop.
#[test]
fn a_pool_grows_to_its_cap() {
    let pool = Pool::create(config()).expect("created");
    assert_eq!(pool.usage().committed, 32 << 10);
    let mut held = Vec::new();
    let error = loop {
        match pool.alloc(20_000) {
            Ok(extent) => {
                assert!(extent.off() + extent.len() <= pool.region().end());
                held.push(extent);
            }
            Err(e) => break e,
        }
    };
    assert!(
        matches!(error, AllocError::Full { wanted: 20_480, cap: 1_048_576, free } if free < 20_480)
    );
    assert!(
        error.to_string().contains("no space for 20480 bytes"),
        "{error}"
    );
    assert_eq!(held.len(), ((1 << 20) - (16 << 10)) / 20_480);
    drop(held.pop());
    assert!(pool.alloc(20_000).is_ok());
    assert!(matches!(pool.alloc(u64::MAX), Err(AllocError::Full { .. })));
}

/// If growing fails, the space stays free: a full device is `Full`, anything else is `Io`.
#[test]
fn failed_growth_leaks_nothing() {
    for (kind, sticky) in [
        (io::ErrorKind::StorageFull, true),
        (io::ErrorKind::Other, true),
    ] {
        let faults = PoolFaults::new();
        let pool = Pool::create(PoolConfig {
            faults: Some(Arc::clone(&faults)),
            ..config()
        })
        .expect("created");
        let before = pool.usage();
        faults.fail_grow(1, kind, sticky);
        let error = pool.alloc(100 << 10).expect_err("growth fails");
        match kind {
            io::ErrorKind::StorageFull => assert!(matches!(error, AllocError::Full { .. })),
            _ => assert!(matches!(error, AllocError::Io(_))),
        }
        assert!(faults.grows() > 0);
        let after = pool.usage();
        assert_eq!(after.allocated, before.allocated);
        assert_eq!(after.committed, before.committed);
        assert_eq!(after.is_device_full(), kind == io::ErrorKind::StorageFull);
        faults.reset();
        assert!(pool.alloc(100 << 10).is_ok());
    }
    // A growth step that does not fit is retried with only the necessary bytes.
    let faults = PoolFaults::new();
    let pool = Pool::create(PoolConfig {
        faults: Some(Arc::clone(&faults)),
        ..config()
    })
    .expect("created");
    faults.fail_grow(1, io::ErrorKind::StorageFull, false);
    let extent = pool.alloc(20 << 10).expect("allocated");
    assert_eq!(pool.region().end(), extent.off() + extent.len());
}

/// Claims of one allocator are aligned, disjoint, and within its capacity.
#[test]
fn claims_of_many_threads_are_disjoint() {
    let mut arena = Arena::new(1 << 20).expect("made");
    let bump = arena.bump(64 << 10);
    let mut spans: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|seed| {
                let bump = &bump;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    let mut spans = Vec::new();
                    loop {
                        let (len, align) = (random.usize(1..300), 1 << random.u32(0..7));
                        let span = if random.bool() {
                            bump.claim(len, align)
                                .map(|claim| (claim.off(), claim.len()))
                        } else {
                            bump.lend(len, align)
                                .map(|claim| (claim.off(), claim.len()))
                        };
                        let Some((off, got)) = span else { return spans };
                        assert_eq!(got, len.next_multiple_of(8) as u64);
                        assert!(off.is_multiple_of(align.max(8) as u64));
                        spans.push((off, got));
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("joined"))
            .collect()
    });
    spans.sort_unstable();
    assert!(
        spans
            .windows(2)
            .all(|pair| pair[0].0 + pair[0].1 <= pair[1].0)
    );
    assert!(
        spans
            .iter()
            .all(|(off, len)| *off >= bump.start() && off + len <= bump.start() + bump.capacity())
    );
    assert_eq!(bump.used() + bump.remaining(), bump.capacity());
    // Smaller claims use the rest until nothing is left.
    while bump.claim(8, 8).is_some() {}
    assert!(bump.remaining() < 8);
    assert!(bump.claim(usize::MAX, 8).is_none());
}

/// A bump allocator continues after the bytes that recovery found in use.
#[test]
fn bumping_continues_after_what_is_used() {
    let pool = Pool::create(config()).expect("created");
    let extent = pool.alloc(8192).expect("allocated");
    let bump = extent.bump_from(100);
    let claim = bump.claim(8, 64).expect("claimed");
    assert_eq!(claim.off(), extent.off() + 128);
    assert_eq!(bump.used(), 136);
    assert_eq!(extent.bump_from(u64::MAX).remaining(), 0);
    assert!(extent.claim(8192, 0).is_some());
    assert!(extent.claim(8192, 1).is_none());
    assert!(extent.claim(u64::MAX, 1).is_none());
}

/// A write beyond its claim is a programming error and panics before it changes anything.
#[test]
fn writes_beyond_a_claim_panic() {
    let pool = Pool::create(config()).expect("created");
    let extent = pool.alloc(4096).expect("allocated");
    let attempts: [fn(&mut crate::Claim); 6] = [
        |claim| claim.write(57, &[1; 8]),
        |claim| claim.write(usize::MAX, &[1; 8]),
        |claim| claim.write_streaming(57, &[1; 8], crate::Purpose::Log),
        |claim| claim.store(64, 1),
        |claim| claim.store(4, 1),
        |claim| claim.fill_zero(0, 65),
    ];
    for attempt in attempts {
        let mut claim = extent.claim(0, 64).expect("claimed");
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attempt(&mut claim)));
        assert!(result.is_err());
    }
    assert!(
        pool.region()
            .bytes(extent.off(), 4096)
            .expect("mapped")
            .iter()
            .all(|b| *b == 0)
    );
}

/// An extent outlives its pool's handle, and so do its claims and regions.
#[test]
fn an_extent_keeps_its_pool() {
    let pool = Pool::create(config()).expect("created");
    let extent = pool.alloc(4096).expect("allocated");
    drop(pool);
    let mut claim = extent.claim(0, 8).expect("claimed");
    drop(extent);
    claim.store(0, 5);
    assert_eq!(claim.region().bytes(claim.off(), 1), Some(&[5][..]));
}

/// An extent gives back whole granules behind the bytes that it keeps, once, and the rest when it
/// is dropped.
#[test]
fn shortened_extents_give_back_the_rest() {
    let pool = Pool::create(config()).expect("a pool");
    let before = pool.usage().allocated;
    let extent = pool.alloc(10 * GRANULE).expect("space");
    extent.claim(0, 8).expect("inside").write(0, b"contents");
    for (kept, granules) in [
        (20 * GRANULE, 10),
        (3 * GRANULE - 7, 3),
        (GRANULE, 1),
        (0, 1),
    ] {
        extent.shorten(kept);
        assert_eq!(extent.len(), granules * GRANULE);
        assert_eq!(pool.usage().allocated - before, granules * GRANULE);
    }
    assert!(extent.claim(GRANULE, 1).is_none());
    let other = pool.alloc(2 * GRANULE).expect("space");
    assert_eq!(other.off(), extent.off() + GRANULE, "the rest is free");
    assert_eq!(pool.region().bytes(extent.off(), 8), Some(&b"contents"[..]));
    drop((extent, other));
    assert_eq!(pool.usage().allocated, before);
}
