//! Tests of pools: creating, opening, locking, growing, shrinking, and refusals.

mod extent;
mod superblock;

use super::*;
use crate::{AllocError, Machine, Purpose, Survive};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn config(backing: Backing) -> PoolConfig {
    PoolConfig {
        grow_bytes: 64 << 10,
        granule: 4096,
        ..PoolConfig::new(backing, 1 << 20)
    }
}

fn file(dir: &Path) -> PoolConfig {
    config(Backing::File(dir.join("pool")))
}

/// After a clean close, a pool opens with its roots and bytes, and reports `Clean`.
#[test]
fn reopens_with_what_it_held() {
    let dir = tempfile::tempdir().expect("a directory");
    let machine = Machine::new(1, Medium::Dax);
    for config in [
        file(dir.path()),
        PoolConfig {
            medium: MediumChoice::ForceDax,
            ..config(Backing::File(dir.path().join("forced")))
        },
        config(Backing::Simulated(machine)),
        config(Backing::Simulated(Machine::new(2, Medium::Mapped))),
    ] {
        let pool = Pool::create(config.clone()).expect("created");
        assert_eq!(pool.shutdown(), Shutdown::Clean);
        let extent = pool.alloc(10_000).expect("allocated");
        assert_eq!(extent.len(), 12 << 10);
        let span = extent.span();
        let mut claim = extent.claim(0, 10_000).expect("claimed");
        claim.write_streaming(0, &[7; 10_000], Purpose::Flush);
        pool.region().fence(Purpose::Flush);
        pool.region().sync(span.off, 10_000).expect("synced");
        pool.set_roots(&[(0, span.off), (15, span.len)])
            .expect("set");
        pool.mark_clean().expect("marked");
        let uuid = pool.uuid();
        drop((claim, extent, pool));

        let pool = Pool::open(config).expect("opened");
        assert_eq!(pool.shutdown(), Shutdown::Clean);
        assert_eq!(pool.uuid(), uuid);
        assert_eq!((pool.root(0), pool.root(15)), (span.off, span.len));
        let extent = pool.adopt(span).expect("adopted");
        assert!(matches!(pool.adopt(span), Err(AllocError::Overlap(_))));
        assert_eq!(
            pool.region().bytes(extent.off(), 10_000),
            Some(&[7; 10_000][..])
        );
    }
}

/// On `Dax`, flushed and fenced bytes survive a power loss; other bytes need not.
#[test]
fn power_loss_keeps_what_was_fenced() {
    let machine = Machine::new(3, Medium::Dax);
    let pool = Pool::create(config(Backing::Simulated(machine.clone()))).expect("created");
    let extent = pool.alloc(4096).expect("allocated");
    let mut claim = extent.claim(0, 4096).expect("claimed");
    claim.write(0, &[1; 64]);
    claim.write(64, &[2; 64]);
    pool.region().persist(extent.off(), 64, Purpose::Log);
    let image = machine.crash_image(Survive::None);
    let after = Machine::boot(image, 4);
    let pool = Pool::open(config(Backing::Simulated(after))).expect("opened");
    assert_eq!(pool.shutdown(), Shutdown::PowerLost);
    assert_eq!(pool.region().bytes(extent.off(), 64), Some(&[1; 64][..]));
    assert_eq!(
        pool.region().bytes(extent.off() + 64, 64),
        Some(&[0; 64][..])
    );
}

fn error(result: Result<Pool, PoolError>) -> PoolError {
    result.map(|pool| pool.describe()).expect_err("an error")
}

/// Creates a pool file with a root and closes it.
fn closed(dir: &Path) -> PoolConfig {
    let config = file(dir);
    let pool = Pool::create(config.clone()).expect("created");
    pool.set_roots(&[(3, 33)]).expect("set");
    pool.mark_clean().expect("marked");
    config
}

/// An open pool cannot be opened again, by this process or another, until it is closed.
#[test]
fn an_open_pool_is_locked() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = file(dir.path());
    let pool = Pool::create(config.clone()).expect("created");
    let locked = error(Pool::open(config.clone()));
    assert!(matches!(locked, PoolError::Locked { .. }), "{locked}");
    let extent = pool.alloc(1).expect("allocated");
    drop(pool);
    // The extent still uses the mapping.
    assert!(matches!(
        error(Pool::open(config.clone())),
        PoolError::Locked { .. }
    ));
    drop(extent);
    assert!(Pool::open(config.clone()).is_ok());

    let machine = Machine::new(1, Medium::Dax);
    let config = self::config(Backing::Simulated(machine));
    let pool = Pool::create(config.clone()).expect("created");
    assert!(matches!(
        error(Pool::open(config.clone())),
        PoolError::Locked { .. }
    ));
    drop(pool);
    assert!(Pool::open(config).is_ok());
}

/// A pool can be opened even if its lock is released a moment after it was closed, as by a process
/// that is starting.
#[test]
fn a_lock_held_for_a_moment_is_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = closed(dir.path());
    let file = std::fs::File::open(dir.path().join("pool")).expect("the pool's file");
    file.lock().expect("locked");
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(30));
            drop(file);
        });
        assert_eq!(Pool::open(config).expect("opened").root(3), 33);
    });
}

/// `next_written` never skips a stored byte, on a disk or in memory, even before a sync.
#[test]
fn what_is_written_is_found() {
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let Ok(dir) = tempfile::tempdir_in(&parent) else {
            continue;
        };
        let config = PoolConfig {
            grow_bytes: 8 << 20,
            ..PoolConfig::new(Backing::File(dir.path().join("pool")), 64 << 20)
        };
        let pool = Pool::create(config).expect("created");
        let extent = pool.alloc(16 << 20).expect("allocated");
        let mut rng = fastrand::Rng::with_seed(3);
        let mut written = std::collections::BTreeSet::new();
        for _ in 0..40 {
            let at = rng.u64(..extent.len() / 64) * 64;
            let from = rng.u64(..at + 1);
            let bound = written
                .range(from..)
                .next()
                .copied()
                .unwrap_or(extent.len());
            let found = extent.next_written(from);
            assert!(from <= found && found <= bound, "{found} for {from}");
            if written.insert(at) {
                let mut claim = extent.claim(at, 64).expect("claimed");
                claim.write(0, &[7; 64]);
            }
            let found = extent.next_written(from);
            assert!(
                from <= found && found <= at.min(bound),
                "{found} for {from}"
            );
        }
        assert_eq!(extent.next_written(extent.len()), extent.len());
    }
}

/// A second creation is refused and changes nothing; an empty file at the path does not matter.
#[test]
fn a_pool_is_made_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = closed(dir.path());
    assert!(matches!(
        error(Pool::create(config.clone())),
        PoolError::Exists { .. }
    ));
    assert_eq!(Pool::open(config).expect("opened").root(3), 33);

    let dir = tempfile::tempdir().expect("a directory");
    let config = file(dir.path());
    assert!(matches!(
        error(Pool::open(config.clone())),
        PoolError::NotFound { .. }
    ));
    std::fs::write(dir.path().join("pool"), b"").expect("written");
    assert!(matches!(
        error(Pool::open(config.clone())),
        PoolError::NotFound { .. }
    ));
    // A foreign file is kept; the leftover of a killed creation is reused.
    std::fs::write(dir.path().join("pool.creating"), [1; 9000]).expect("written");
    assert!(matches!(
        error(Pool::create(config.clone())),
        PoolError::Invalid(_)
    ));
    let kept = std::fs::read(dir.path().join("pool.creating")).expect("read");
    assert!(kept == [1; 9000]);
    std::fs::write(dir.path().join("pool.creating"), [0; 9000]).expect("written");
    drop(Pool::create(config.clone()).expect("created"));
    assert!(Pool::open(config).is_ok());
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
}

/// Paths and files that cannot hold a pool give a specific error.
#[test]
fn impossible_places_are_explained() {
    let dir = tempfile::tempdir().expect("a directory");
    let folder = config(Backing::File(dir.path().to_owned()));
    for result in [Pool::create(folder.clone()), Pool::open(folder)] {
        let error = error(result);
        assert!(matches!(error, PoolError::Invalid(_)), "{error}");
    }
    let nowhere = config(Backing::File(dir.path().join("no/pool")));
    assert!(matches!(error(Pool::create(nowhere)), PoolError::Io { .. }));
    let null = config(Backing::File("/dev/null".into()));
    for result in [Pool::create(null.clone()), Pool::open(null)] {
        assert!(matches!(error(result), PoolError::Unsupported(_)));
    }

    let config = closed(dir.path());
    let path = dir.path().join("pool");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).expect("set");
    // A user who may write regardless of the mode, such as root, is not refused.
    let may_write = std::fs::OpenOptions::new().write(true).open(&path).is_ok();
    match Pool::open(config) {
        Ok(_) => assert!(may_write),
        Err(error) => {
            assert!(!may_write);
            assert!(error.to_string().contains("a writable file"), "{error}");
        }
    }
}

/// Invalid configurations are refused.
#[test]
fn senseless_configurations_are_refused() {
    for (granule, cap_bytes) in [
        (4096, 16 << 10),
        (4096, 0),
        (100, 1 << 20),
        (6000, 1 << 20),
        (1 << 31, 1 << 40),
    ] {
        let config = PoolConfig {
            granule,
            ..PoolConfig::new(Backing::Anonymous, cap_bytes)
        };
        assert!(matches!(error(Pool::create(config)), PoolError::Invalid(_)));
    }
    let config = PoolConfig::new(Backing::Anonymous, 1 << 50);
    assert!(matches!(error(Pool::create(config)), PoolError::Invalid(_)));
    let config = PoolConfig {
        granule: 4096,
        ..PoolConfig::new(Backing::Anonymous, 20 << 10)
    };
    assert!(Pool::create(config).expect("created").alloc(1).is_ok());
}

/// The cap can be raised on reopening, but not below the size of the pool.
#[test]
fn the_cap_can_be_raised() {
    let dir = tempfile::tempdir().expect("a directory");
    let simulated = config(Backing::Simulated(Machine::new(1, Medium::Dax)));
    for config in [file(dir.path()), simulated] {
        let pool = Pool::create(config.clone()).expect("created");
        let span = {
            let extent = pool.alloc(1 << 19).expect("allocated");
            extent.claim(0, 4).expect("claimed").write(0, b"word");
            extent.span()
        };
        drop(pool);
        let smaller = PoolConfig {
            cap_bytes: 1 << 17,
            ..config.clone()
        };
        assert!(matches!(error(Pool::open(smaller)), PoolError::Invalid(_)));
        let larger = PoolConfig {
            cap_bytes: 4 << 20,
            ..config
        };
        let pool = Pool::open(larger).expect("opened");
        assert_eq!(pool.usage().cap, 4 << 20);
        let kept = pool.adopt(span).expect("adopted");
        assert_eq!(pool.region().bytes(kept.off(), 4), Some(&b"word"[..]));
        assert!(pool.alloc(3 << 20).is_ok());
    }
}

/// Trimming frees the bytes after the last extent, and the pool opens and grows as before.
#[test]
fn trim_gives_the_tail_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let simulated = config(Backing::Simulated(Machine::new(1, Medium::Dax)));
    for config in [file(dir.path()), simulated] {
        let pool = Pool::create(config.clone()).expect("created");
        let low = pool.alloc(4096).expect("allocated");
        let high = pool.alloc(500_000).expect("allocated");
        high.claim(0, 4096).expect("claimed").write(0, &[9; 4096]);
        let (keep, gone) = (low.span(), high.span());
        pool.set_roots(&[(0, 1)]).expect("set");
        let grown = pool.usage().committed;
        drop(high);
        pool.trim();
        let end = keep.off + keep.len;
        assert!(grown > end);
        assert_eq!((pool.usage().committed, pool.region().end()), (end, end));
        drop((low, pool));

        let pool = Pool::open(config).expect("opened");
        assert!(matches!(
            pool.adopt(gone),
            Err(AllocError::OutOfRange { .. })
        ));
        let kept = pool.adopt(keep).expect("adopted");
        let again = pool.alloc(500_000).expect("allocated");
        assert_eq!(again.span(), gone);
        let bytes = pool.region().bytes(again.off(), 4096).expect("mapped");
        assert!(bytes.iter().all(|b| *b == 0), "reused bytes are zero");
        pool.trim();
        assert_eq!(again.len() + kept.len(), pool.usage().allocated);
    }
}

/// Recovery adopts only spans that can be extents.
#[test]
fn impossible_extents_are_not_adopted() {
    let pool = Pool::create(config(Backing::Anonymous)).expect("created");
    for (off, len) in [
        (0, 4096),
        (16 << 10, 0),
        (16 << 10, 100),
        ((16 << 10) + 8, 4096),
        (1 << 20, 4096),
        (60 << 10, 8192),
        (u64::MAX - 4095, 4096),
        (16 << 10, u64::MAX - 4095),
    ] {
        let result = pool.adopt(Span { off, len });
        assert!(
            matches!(result, Err(AllocError::OutOfRange { .. })),
            "{off}+{len}"
        );
    }
    let adopted = pool
        .adopt(Span {
            off: 20 << 10,
            len: 8192,
        })
        .expect("adopted");
    let around = Span {
        off: 16 << 10,
        len: 16 << 10,
    };
    assert!(matches!(pool.adopt(around), Err(AllocError::Overlap(span)) if span == around));
    drop(adopted);
    assert!(pool.adopt(around).is_ok());
}

/// The next open reports how a pool ended: closed, crashed in this boot, or power lost, which
/// remains until it is repaired.
#[test]
fn the_last_shutdown_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = closed(dir.path());
    let reopened = || Pool::open(config.clone()).expect("opened");
    assert_eq!(reopened().shutdown(), Shutdown::Clean);
    assert_eq!(reopened().shutdown(), Shutdown::Crashed);
    let pool = reopened();
    pool.mark_clean().expect("marked");
    drop(pool);
    assert_eq!(reopened().shutdown(), Shutdown::Clean);

    let machine = Machine::new(1, Medium::Mapped);
    drop(Pool::create(self::config(Backing::Simulated(machine.clone()))).expect("created"));
    let machine = Machine::boot(machine.process_image(), 2);
    let config = self::config(Backing::Simulated(machine.clone()));
    assert_eq!(
        Pool::open(config).expect("opened").shutdown(),
        Shutdown::Crashed
    );
    let machine = Machine::boot(machine.crash_image(Survive::All), 2);
    let config = self::config(Backing::Simulated(machine));
    let reopened = || Pool::open(config.clone()).expect("opened");
    assert_eq!(reopened().shutdown(), Shutdown::PowerLost);
    let pool = reopened();
    assert_eq!(pool.shutdown(), Shutdown::PowerLost, "nothing repaired it");
    pool.mark_recovered().expect("marked");
    drop(pool);
    assert_eq!(reopened().shutdown(), Shutdown::Crashed);
}

/// Whether a power loss lost pages depends on the medium at that time, not on the pool's medium
/// now, and is reported until it is repaired.
#[test]
fn pages_are_lost_where_the_pool_was_mapped() {
    for (was, now) in [
        (Medium::Dax, Medium::Dax),
        (Medium::Dax, Medium::Mapped),
        (Medium::Mapped, Medium::Dax),
        (Medium::Mapped, Medium::Mapped),
    ] {
        let open = |machine: &Machine| {
            Pool::open(self::config(Backing::Simulated(machine.clone()))).expect("opened")
        };
        let machine = Machine::new(1, was);
        drop(Pool::create(self::config(Backing::Simulated(machine.clone()))).expect("created"));
        let lost = Machine::boot_on(machine.crash_image(Survive::None), 2, now);
        for _ in 0..2 {
            let pool = open(&lost);
            assert_eq!(pool.shutdown(), Shutdown::PowerLost);
            // On `Mapped` the second open cannot know which pages the first one left unwritten.
            let first = pool.pages_lost();
            assert!(first == (was == Medium::Mapped) || now == Medium::Mapped);
        }
        let pool = open(&lost);
        pool.mark_recovered().expect("marked");
        drop(pool);
        assert!(!open(&lost).pages_lost(), "{was} then {now}");
        let killed = Machine::boot_on(machine.process_image(), 2, now);
        assert!(
            !open(&killed).pages_lost(),
            "{was} then {now}: no power lost"
        );
        let again = Machine::boot_on(killed.crash_image(Survive::None), 2, was);
        assert_eq!(open(&again).pages_lost(), now == Medium::Mapped);
    }
}

/// Prefaulting by extent, all at once or never gives the same pool.
#[test]
fn prefaulting_changes_nothing_but_time() {
    let dir = tempfile::tempdir().expect("a directory");
    for (i, prefault) in [Prefault::Ahead, Prefault::All, Prefault::None]
        .into_iter()
        .enumerate()
    {
        for backing in [
            Backing::File(dir.path().join(i.to_string())),
            Backing::Anonymous,
        ] {
            let pool = Pool::create(PoolConfig {
                prefault,
                ..config(backing)
            })
            .expect("created");
            let extents: Vec<_> = (0..8)
                .map(|_| pool.alloc(100_000).expect("allocated"))
                .collect();
            for extent in &extents {
                pool.prefault(extent);
                extent
                    .claim(0, 100_000)
                    .expect("claimed")
                    .fill_zero(0, 100_000);
            }
            let committed = pool.usage().committed;
            assert_eq!(committed == 1 << 20, prefault == Prefault::All);
            drop(extents);
            pool.trim();
            assert!(pool.alloc(900_000).is_ok());
        }
    }
}

/// The caches count as durable only if every region of persistent memory reports it.
#[test]
fn durable_caches_are_detected() {
    let dir = tempfile::tempdir().expect("a directory");
    let durable = || medium::caches_are_durable_in(dir.path());
    assert!(!medium::caches_are_durable_in(&dir.path().join("nothing")));
    assert!(!durable());
    let set = |region: &str, domain: &str| {
        let region = dir.path().join(region);
        std::fs::create_dir_all(&region).expect("made");
        std::fs::write(region.join("persistence_domain"), domain).expect("written");
    };
    set("namespace0", "memory_controller\n");
    set("region0", "cpu_cache\n");
    assert!(durable());
    set("region1", "memory_controller\n");
    assert!(!durable());
    set("region1", "cpu_cache\n");
    assert!(durable());
}

/// A pool grows a quarter ahead of its allocated bytes. If its device has no space for that, it
/// reports the current size as its limit, all of which can be allocated, until the device has space
/// again.
#[test]
fn a_full_device_is_known_ahead_of_need() {
    let dir = tempfile::tempdir().expect("a directory");
    let faults = PoolFaults::new();
    let pool = Pool::create(PoolConfig {
        grow_bytes: 4096,
        faults: Some(Arc::clone(&faults)),
        ..file(dir.path())
    });
    let pool = pool.expect("created");
    pool.grow_ahead(0);
    let mut held = vec![pool.alloc(256 << 10).expect("allocated")];
    let ahead = pool.usage();
    assert!(ahead.committed >= (256 + 64) << 10, "{ahead:?}");
    assert!(!ahead.is_device_full() && ahead.limit == ahead.cap);
    let room = ahead.committed + 8192;
    faults.set_room(room);
    held.push(pool.alloc(32 << 10).expect("allocated ahead"));
    let full = pool.usage();
    assert!(full.is_device_full(), "{full:?}");
    assert!(full.limit <= room && full.cap == ahead.cap, "{full:?}");
    assert_eq!(full.free, full.largest_free, "{full:?}");
    assert!(!full.fits([full.free, 4096]) && full.fits([full.free, 0]));
    assert!(!pool.look_for_room(), "the device is still full");
    let beyond = pool.alloc(full.free + 16_384);
    assert!(matches!(beyond, Err(AllocError::Full { .. })));
    held.push(pool.alloc(full.free).expect("the reported value"));
    assert_eq!(pool.usage().free, 0);
    faults.set_room(0);
    assert!(pool.look_for_room());
    assert!(!pool.usage().is_device_full());
    held.push(pool.alloc(256 << 10).expect("grown"));
    assert!(!pool.look_for_room(), "no search is needed");
    let grown = pool.usage();
    pool.grow_ahead(grown.committed - grown.allocated + (16 << 10));
    assert!(pool.usage().committed > grown.committed);
    faults.set_room(pool.usage().committed);
    pool.grow_ahead(256 << 10);
    assert!(pool.usage().is_device_full(), "the needed bytes do not fit");
}

/// A pool limited to a part of its device grows up to that part and then counts as full. A pool
/// that is already larger keeps its size.
#[test]
fn a_pool_keeps_to_its_part_of_a_device() {
    let dir = tempfile::tempdir().expect("a directory");
    let pool = Pool::create(file(dir.path())).expect("created");
    let room = pool
        .device_room()
        .expect("a file system reports its free bytes");
    assert!(room > pool.usage().committed, "{room}");
    let part = pool.usage().committed + (100 << 10);
    pool.grow_to_at_most(part);
    let mut held = Vec::new();
    while let Ok(extent) = pool.alloc(16 << 10) {
        held.push(extent);
    }
    let full = pool.usage();
    assert!(full.is_device_full() && full.cap > part, "{full:?}");
    assert!(
        (part - (16 << 10)..=part).contains(&full.committed),
        "{full:?}"
    );
    pool.grow_to_at_most(4096);
    assert!(!pool.look_for_room());
    assert_eq!(pool.usage().committed, full.committed);
    pool.grow_to_at_most(u64::MAX);
    assert!(pool.look_for_room());
    held.push(pool.alloc(200 << 10).expect("grown"));
}

/// `alloc_below` takes the lowest place that ends at or before the limit, or fails.
#[test]
fn a_place_below_ends_before_its_limit() {
    let pool = Pool::create(config(Backing::Anonymous)).expect("created");
    let mut held: Vec<_> = [8, 4, 16, 4].map(|kib| pool.alloc(kib << 10)).into();
    let spans: Vec<_> = held.iter().flatten().map(|e| e.span()).collect();
    held.remove(2).expect("allocated");
    held.remove(0).expect("allocated");
    let limit = spans[3].off;
    let low = pool.alloc_below(8 << 10, limit).expect("allocated");
    assert_eq!(low.span(), spans[0]);
    let next = pool.alloc_below(12 << 10, limit).expect("allocated");
    assert_eq!(next.off(), spans[2].off);
    let full = pool.alloc_below(8 << 10, limit);
    assert!(
        matches!(full, Err(AllocError::Full { .. })),
        "4 KiB are free below, more above"
    );
    pool.alloc_below(4 << 10, limit).expect("allocated");
}

/// `alloc_tight` takes the shortest free range that is long enough.
#[test]
fn a_tight_place_is_the_shortest() {
    let pool = Pool::create(config(Backing::Anonymous)).expect("created");
    let mut held: Vec<_> = [64, 4, 8, 4, 16, 4].map(|kib| pool.alloc(kib << 10)).into();
    let spans: Vec<_> = held.iter().flatten().map(|e| e.span()).collect();
    for hole in [4, 2, 0] {
        held.remove(hole).expect("allocated");
    }
    let tight = pool.alloc_tight(6 << 10).expect("allocated");
    assert_eq!(tight.span(), spans[2], "the hole of 8 KiB");
    let tight = pool.alloc_tight(6 << 10).expect("allocated");
    assert_eq!(tight.off(), spans[4].off, "the hole of 16 KiB");
    let first = pool.alloc(6 << 10).expect("allocated");
    assert_eq!(
        first.off(),
        spans[0].off,
        "any other goes into the first fitting hole"
    );
}
