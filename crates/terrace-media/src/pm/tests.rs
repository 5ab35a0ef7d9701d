//! Tests of mapped memory: bounds, flushes, streaming writes, counters, and the emulator's model.

use super::arch::{self, Flush};
use super::emulate::{Emulation, Emulator};
use crate::{
    Arena, Backing, Machine, Medium, MediumChoice, Pool, PoolConfig, Prefault, Purpose, Survive,
};

fn config(backing: Backing) -> PoolConfig {
    PoolConfig {
        grow_bytes: 64 << 10,
        granule: 4096,
        prefault: Prefault::None,
        ..PoolConfig::new(backing, 1 << 20)
    }
}

/// For every offset in a line and every length, the cover is exactly the lines that contain a byte.
#[test]
fn cover_is_every_line_and_no_other() {
    for offset in 0..64 {
        for len in 1..200 {
            let (first, lines) = arch::cover(1024 + offset, len);
            let touched: Vec<usize> = {
                let mut lines: Vec<_> = (1024 + offset..1024 + offset + len)
                    .map(|b| b / 64)
                    .collect();
                lines.dedup();
                lines
            };
            assert_eq!(first, touched[0] * 64);
            assert_eq!(lines, touched.len());
        }
    }
}

/// After a flush and a fence of any range, a power loss keeps its lines and loses all others.
#[test]
fn a_flush_makes_its_lines_durable_and_no_other() {
    for offset in 0..64 {
        for len in [1, 8, 63, 64, 65, 128, 130] {
            let machine = Machine::new(1, Medium::Dax);
            let pool = Pool::create(config(Backing::Simulated(machine.clone()))).expect("created");
            let extent = pool.alloc(4096).expect("allocated");
            extent.claim(0, 512).expect("claimed").write(0, &[9; 512]);
            let before = pool.counts();
            pool.region()
                .persist(extent.off() + 64 + offset, len, Purpose::Merge);
            let (first, lines) = arch::cover(64 + offset as usize, len);
            let cost = (pool.counts() - before).get(Purpose::Merge);
            assert_eq!(
                (cost.lines, cost.flushes, cost.fences),
                (lines as u64, 1, 1)
            );
            assert_eq!(cost.bytes, lines as u64 * 64);

            let after = Machine::boot(machine.crash_image(Survive::None), 2);
            let after = Pool::open(config(Backing::Simulated(after))).expect("opened");
            let bytes = after.region().bytes(extent.off(), 512).expect("mapped");
            for (i, byte) in bytes.iter().enumerate() {
                let durable = (first..first + lines * 64).contains(&i);
                assert_eq!(
                    *byte,
                    if durable { 9 } else { 0 },
                    "offset {offset} len {len} at {i}"
                );
            }
        }
    }
}

/// A streaming write has the effect of a plain one, and changes no other bytes, for every alignment
/// and length and on every kind of medium.
#[test]
fn streaming_equals_writing() {
    let dir = tempfile::tempdir().expect("a directory");
    let pools = [
        PoolConfig {
            medium: MediumChoice::ForceDax,
            ..config(Backing::Anonymous)
        },
        PoolConfig {
            medium: MediumChoice::ForceDax,
            ..config(Backing::File(dir.path().join("pool")))
        },
        config(Backing::Anonymous),
        config(Backing::Simulated(Machine::new(1, Medium::Dax))),
    ]
    .map(|config| Pool::create(config).expect("created"));
    let src: Vec<u8> = (0..300u32).map(|i| (i * 7 + 1) as u8).collect();
    for pool in &pools {
        let extent = pool.alloc(4096).expect("allocated");
        let mut claim = extent.claim(0, 1024).expect("claimed");
        for at in 0..72 {
            for len in 0..=300 {
                claim.fill_zero(0, 512);
                let before = pool.counts();
                claim.write_streaming(at, &src[..len], Purpose::Log);
                pool.region().fence(Purpose::Log);
                let bytes = pool.region().bytes(extent.off(), 512).expect("mapped");
                assert_eq!(&bytes[at..at + len], &src[..len], "{at} {len}");
                assert!(bytes[..at].iter().all(|b| *b == 0), "{at} {len}");
                assert!(bytes[at + len..].iter().all(|b| *b == 0), "{at} {len}");
                let cost = (pool.counts() - before).get(Purpose::Log);
                let lines = if len == 0 {
                    0
                } else {
                    arch::cover(at, len).1 as u64
                };
                assert_eq!(cost.lines, lines);
                assert_eq!(cost.fences, 1);
            }
        }
        // Long enough for many lines of every kind of copy.
        let long: Vec<u8> = (0..3000u32).map(|i| (i * 11 + 3) as u8).collect();
        let mut claim = extent.claim(0, 4096).expect("claimed");
        claim.write_streaming(13, &long, Purpose::Flush);
        pool.region().fence(Purpose::Flush);
        assert_eq!(
            pool.region().bytes(extent.off() + 13, 3000),
            Some(&long[..])
        );
    }
}

/// A word or bytes outside the committed range, or an unaligned word, return `None`.
#[test]
fn offsets_from_media_are_checked() {
    let pool = Pool::create(config(Backing::Anonymous)).expect("created");
    let region = pool.region();
    let end = region.end();
    assert!(region.word(end - 8).is_some());
    for off in [end, end + 8, end - 7, 1, u64::MAX, u64::MAX - 7] {
        assert!(region.word(off).is_none(), "{off}");
    }
    assert!(region.bytes(end, 0).is_some());
    assert!(region.bytes(end - 1, 1).is_some());
    for (off, len) in [
        (end, 1),
        (end + 1, 0),
        (0, usize::MAX),
        (u64::MAX, 1),
        (1, end as usize),
    ] {
        assert!(region.bytes(off, len).is_none(), "{off} {len}");
    }
    assert!(region.publish(end, 1, Purpose::Log).is_none());
    assert!(region.sync(end, 1).is_err());
    for off in [0, end, u64::MAX, 1 << 63] {
        region.prefetch(off);
        region.flush(off, 1 << 20, Purpose::Log);
    }
    assert_eq!(pool.counts().get(Purpose::Log).lines, 0);
}

/// An arena's offsets start at its origin, and it is idle again once it has no users.
#[test]
fn an_arena_has_the_offsets_of_its_extent() {
    let mut arena = Arena::new(10_000).expect("made");
    assert_eq!(arena.len(), 12 << 10);
    let origin = 7 << 20;
    let bump = arena.bump(origin);
    let mut claim = bump.claim(24, 8).expect("claimed");
    assert_eq!(claim.off(), origin);
    claim.store(8, 42);
    claim.write(16, b"12345678");
    let region = bump.region();
    assert_eq!(
        (region.origin(), region.end()),
        (origin, origin + (12 << 10))
    );
    assert_eq!(
        region
            .word(origin + 8)
            .map(|w| w.load(std::sync::atomic::Ordering::Relaxed)),
        Some(42)
    );
    assert_eq!(region.bytes(origin + 16, 8), Some(&b"12345678"[..]));
    assert!(region.word(0).is_none());
    assert!(region.word(origin - 8).is_none());
    assert!(!arena.is_idle());
    drop((claim, bump));
    assert!(arena.is_idle());
    assert!(Arena::new(0).is_err());
}

/// Counting by more threads than shards loses nothing.
#[test]
fn counts_of_all_threads_add_up() {
    let pool = Pool::create(config(Backing::Anonymous)).expect("created");
    let before = pool.counts();
    for _ in 0..2 {
        let barrier = std::sync::Barrier::new(40);
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..20_000 {
                        pool.region().persist(64, 65, Purpose::Drain);
                    }
                });
            }
        });
    }
    let cost = (pool.counts() - before).get(Purpose::Drain);
    assert_eq!(
        (cost.lines, cost.flushes, cost.fences),
        (3_200_000, 1_600_000, 1_600_000)
    );
    assert_eq!((pool.counts() - before).total(), cost);
    assert_eq!(Purpose::ALL.map(|p| p as usize), [0, 1, 2, 3, 4, 5, 6]);
}

/// The emulated device accepts writes one after the other, in whole device lines.
#[test]
fn the_emulated_device_takes_writes_in_turn() {
    let slow = Emulator::new(Emulation {
        write_gbps: 1.0,
        write_latency_ns: 0,
    });
    assert_eq!(slow.cost_ns(0, 1), 256);
    assert_eq!(slow.cost_ns(255, 2), 512);
    assert_eq!(slow.cost_ns(256, 256), 256);
    let half = Emulator::new(Emulation {
        write_gbps: 2.0,
        write_latency_ns: 0,
    });
    assert_eq!(half.cost_ns(0, 4096), 2048);
    let free = Emulator::new(Emulation {
        write_gbps: 0.0,
        write_latency_ns: 5,
    });
    assert_eq!(free.cost_ns(0, 1 << 30), 0);
    free.fence();
    // Two concurrent writes end one after the other, from any threads.
    slow.wrote(0, 1 << 20);
    let first = slow.taken();
    slow.wrote(0, 1 << 20);
    assert!(slow.taken() >= first + (1 << 20));
    slow.fence();
    assert!(slow.now() >= first + (1 << 20));
}

/// With an emulator, bytes and counts are the same as without.
#[test]
fn emulation_changes_nothing_but_time() {
    let pool = Pool::create(PoolConfig {
        emulation: Some(Emulation {
            write_gbps: 2.0,
            write_latency_ns: 100,
        }),
        medium: MediumChoice::ForceDax,
        ..config(Backing::Anonymous)
    })
    .expect("created");
    let extent = pool.alloc(4096).expect("allocated");
    let before = pool.counts();
    let mut claim = extent.claim(0, 256).expect("claimed");
    claim.write_streaming(0, &[3; 256], Purpose::Flush);
    pool.region().fence(Purpose::Flush);
    let cost = (pool.counts() - before).get(Purpose::Flush);
    assert_eq!((cost.lines, cost.fences), (4, 1));
    assert_eq!(pool.region().bytes(extent.off(), 256), Some(&[3; 256][..]));
}

/// Reports name the instructions that are used.
#[test]
fn instructions_are_named() {
    let forced = PoolConfig {
        medium: MediumChoice::ForceDax,
        ..config(Backing::Anonymous)
    };
    let pool = Pool::create(forced).expect("created");
    assert_eq!((pool.medium(), pool.forced()), (Medium::Dax, true));
    assert_eq!(pool.instructions(), Flush::best().name());
    assert!(
        pool.describe().starts_with("dax (forced), "),
        "{}",
        pool.describe()
    );
    let pool = Pool::create(config(Backing::Anonymous)).expect("created");
    assert_eq!(
        (pool.medium(), pool.forced(), pool.instructions()),
        (Medium::Dram, false, "none")
    );
    let dir = tempfile::tempdir().expect("a directory");
    let pool = Pool::create(PoolConfig {
        medium: MediumChoice::Mapped,
        ..config(Backing::File(dir.path().join("pool")))
    })
    .expect("created");
    assert_eq!(
        (pool.medium(), pool.instructions()),
        (Medium::Mapped, "msync")
    );
}
