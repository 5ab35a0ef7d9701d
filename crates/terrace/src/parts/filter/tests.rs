//! Tests of the filter: no false negatives, the rate of false positives, and damage.

use std::sync::Arc;

use terrace_media::{Backing, Extent, Pool, PoolConfig, Prefault, Purpose};

use super::layout::{BLOCK_BYTES, FilterHeader};
use super::{Filter, FilterBuilder, GrowingFilter};

fn pool() -> Pool {
    Pool::create(PoolConfig {
        prefault: Prefault::None,
        grow_bytes: 1 << 20,
        ..PoolConfig::new(Backing::Anonymous, 64 << 20)
    })
    .unwrap()
}

/// Returns a hash for key number `n`, as `types::key_hash` computes it.
fn hash(n: u64) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(1, &n.to_le_bytes())
}

fn build(pool: &Pool, keys: u64, sized_for: u64, bits_per_key: u32) -> Filter {
    let mut builder = FilterBuilder::new(sized_for, bits_per_key);
    for n in 0..keys {
        builder.insert(hash(n));
    }
    let bits = (8 * builder.len_bytes() - 512).max(1);
    assert!(bits >= sized_for * u64::from(bits_per_key));
    let extent = pool.alloc(builder.len_bytes()).unwrap();
    let filter = builder.finish(&extent, Purpose::Flush);
    pool.region().fence(Purpose::Flush);
    filter
}

/// Every inserted key is found, for any set of keys and any size of filter, also after the filter
/// is reopened from its bytes.
#[test]
fn no_false_negatives() {
    let pool = pool();
    let mut rng = fastrand::Rng::with_seed(21);
    for _ in 0..60 {
        let keys = rng.u64(0..3000);
        let sized_for = rng.u64(0..4000);
        let bits = rng.u32(1..24);
        let filter = build(&pool, keys, sized_for, bits);
        let again = Filter::open(Arc::clone(&filter.extent)).unwrap();
        again.verify().unwrap();
        assert_eq!(again.header.key_count, keys);
        assert_eq!(again.span(), filter.span());
        for n in 0..keys {
            assert!(
                filter.may_contain(hash(n)),
                "{keys} keys, {bits} bits, key {n}"
            );
            assert!(again.may_contain(hash(n)));
        }
    }
}

/// At 16 bits per key, fewer than 1 % of absent keys are taken for present, at every size.
#[test]
fn false_positives_are_rare() {
    let pool = pool();
    for keys in [10_000, 100_000, 1_000_000] {
        let filter = build(&pool, keys, keys, 16);
        let asked = 400_000;
        let wrong = (0..asked)
            .filter(|n| filter.may_contain(hash(keys + 1 + n)))
            .count();
        let rate = wrong as f64 / asked as f64;
        println!("{keys} keys: {:.3} % false positives", 100.0 * rate);
        assert!(rate < 0.01, "{rate}");
    }
    let filter = build(&pool, 0, 1000, 16);
    assert!(
        (0..10_000).all(|n| !filter.may_contain(hash(n))),
        "an empty filter has no key"
    );
}

/// Fewer bits per key cause more false positives, but never more than the size allows.
#[test]
fn rates_follow_the_size() {
    let pool = pool();
    for (bits, limit) in [(4, 0.25), (8, 0.06), (10, 0.03), (12, 0.015)] {
        let filter = build(&pool, 50_000, 50_000, bits);
        let wrong = (0..100_000)
            .filter(|n| filter.may_contain(hash(1 << 40 | n)))
            .count();
        let rate = wrong as f64 / 100_000.0;
        println!("{bits} bits: {:.2} % false positives", 100.0 * rate);
        assert!(rate < limit, "{bits} bits: {rate}");
    }
}

fn flip(extent: &Arc<Extent>, at: usize, mask: u8) {
    let was = extent.region().bytes(extent.off() + at as u64, 1).unwrap()[0];
    extent.claim(at as u64, 1).unwrap().write(0, &[was ^ mask]);
}

/// A filter with a damaged header is refused, and `verify` detects damage elsewhere. Neither panics
/// nor reads outside the extent.
#[test]
fn damage_is_found() {
    let pool = pool();
    let filter = build(&pool, 200, 200, 16);
    let extent = Arc::clone(&filter.extent);
    let mut rng = fastrand::Rng::with_seed(22);
    for at in 0..FilterBuilder::new(200, 16).len_bytes() as usize {
        let mask = rng.u8(1..);
        flip(&extent, at, mask);
        let e = match Filter::open(Arc::clone(&extent)) {
            Err(e) => {
                assert!(at < BLOCK_BYTES, "byte {at} is outside the header");
                e
            }
            Ok(opened) => {
                assert!(at >= BLOCK_BYTES, "byte {at} of the header is covered");
                opened.verify().unwrap_err()
            }
        };
        let end = extent.off() + extent.len();
        assert!((extent.off()..end).contains(&e.offset), "{e}");
        let _ = filter.may_contain(hash(at as u64));
        assert!(filter.verify().is_err());
        flip(&extent, at, mask);
    }
    filter.verify().unwrap();
}

/// Any bytes decode to a header or an error, even if the checksum matches.
#[test]
fn hostile_headers_are_refused() {
    let mut rng = fastrand::Rng::with_seed(23);
    let valid = FilterHeader {
        block_count: 4,
        probes: 8,
        key_count: 9,
        block_crc: 1,
    };
    assert_eq!(
        FilterHeader::decode(&valid.encode(), 0, 1024).unwrap(),
        valid
    );
    for wrong in [
        FilterHeader {
            block_count: 0,
            ..valid
        },
        FilterHeader {
            block_count: 16,
            ..valid
        },
        FilterHeader {
            block_count: u32::MAX,
            ..valid
        },
        FilterHeader { probes: 0, ..valid },
        FilterHeader { probes: 9, ..valid },
    ] {
        assert!(
            FilterHeader::decode(&wrong.encode(), 0, 1024).is_err(),
            "{wrong:?}"
        );
    }
    for _ in 0..20_000 {
        let mut bytes = valid.encode().to_vec();
        bytes.truncate(rng.usize(..=64));
        for _ in 0..rng.usize(..4) {
            if !bytes.is_empty() {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
        }
        if bytes.len() == 64 {
            let crc = crate::parts::codec::checksum(&bytes[..60]);
            bytes[60..].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(header) = FilterHeader::decode(&bytes, 0, 1024) {
            assert!((1..16).contains(&header.block_count));
            assert!((1..=8).contains(&header.probes));
        }
    }
}

/// A filter that several threads fill denies no key of any of them, and few others.
#[test]
fn growing_filters_deny_only_absent_keys() {
    const KEYS: u64 = 40_000;
    let filter = GrowingFilter::new(4 * KEYS * 128);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let filter = &filter;
            scope.spawn(move || {
                for n in thread * KEYS..(thread + 1) * KEYS {
                    filter.insert(hash(n));
                    assert!(filter.may_contain(hash(n)));
                }
            });
        }
    });
    assert!((0..4 * KEYS).all(|n| filter.may_contain(hash(n))));
    let passed = (4 * KEYS..8 * KEYS).filter(|n| filter.may_contain(hash(*n)));
    let passed = passed.count() as u64;
    assert!(
        passed * 50 < 4 * KEYS,
        "{passed} of {} absent keys pass",
        4 * KEYS
    );
    // One too small for its keys, or for any.
    let small = GrowingFilter::new(0);
    assert!(!small.may_contain(hash(1)));
    (0..1000).for_each(|n| small.insert(hash(n)));
    assert!((0..1000).all(|n| small.may_contain(hash(n))));
}
