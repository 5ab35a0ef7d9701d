//! Tests of the superblock: damage, foreign and newer files, and crashes during changes.

use super::{closed, config, error, file};
use crate::pm::arch::Flush;
use crate::pm::count::Purpose;
use crate::pool::layout::{
    AT_CHECKSUM, AT_FORMAT, AT_GENERATION, AT_INCOMPAT, MAGIC, SLOT_BYTES, SLOT_BYTES_MAX, SLOTS,
};
use crate::pool::superblock::{Slot, Superblock};
use crate::pool::*;
use crate::{Image, Machine, Survive};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

fn open_bytes(path: &Path) -> std::fs::File {
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("the pool's file")
}

fn flip(path: &Path, at: u64) {
    let file = open_bytes(path);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0x40], at).expect("written");
}

/// Changes a slot and corrects its checksum.
fn patch(path: &Path, slot: u64, at: usize, bytes: &[u8]) {
    let file = open_bytes(path);
    let mut whole = [0; SLOT_BYTES];
    file.read_exact_at(&mut whole, slot).expect("read");
    whole[at..at + bytes.len()].copy_from_slice(bytes);
    let checksum = crc32c::crc32c(&whole[..AT_CHECKSUM]);
    whole[AT_CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    file.write_all_at(&whole, slot).expect("written");
}

/// After any one byte of either slot is flipped, the pool opens from the other slot with its full
/// state; after both are damaged, it is refused with the offset.
#[test]
fn one_damaged_slot_loses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = closed(dir.path());
    let path = dir.path().join("pool");
    for slot in SLOTS {
        for at in (0..SLOT_BYTES as u64).step_by(3) {
            flip(&path, slot + at);
            let pool = Pool::open(config.clone()).expect("opened");
            assert_eq!(pool.root(3), 33, "slot {slot} byte {at}");
            assert_eq!(pool.shutdown(), Shutdown::Clean);
            pool.mark_clean().expect("marked");
        }
    }
    flip(&path, SLOTS[0] + 40);
    flip(&path, SLOTS[1] + 50);
    let error = error(Pool::open(config));
    assert!(
        matches!(error, PoolError::Corrupt { offset: 0, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("checksum"), "{error}");
}

/// A whole slot of a later format is refused as such, regardless of the other slot.
#[test]
fn a_newer_format_is_refused() {
    for slot in SLOTS {
        let dir = tempfile::tempdir().expect("a directory");
        let config = closed(dir.path());
        patch(
            &dir.path().join("pool"),
            slot,
            AT_FORMAT,
            &9u32.to_le_bytes(),
        );
        let error = error(Pool::open(config.clone()));
        assert!(
            matches!(
                error,
                PoolError::Newer {
                    format: 9,
                    supported: 1,
                    ..
                }
            ),
            "{error}"
        );
    }
}

/// An unknown feature is refused.
#[test]
fn an_unknown_feature_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = closed(dir.path());
    for slot in SLOTS {
        patch(
            &dir.path().join("pool"),
            slot,
            AT_INCOMPAT,
            &4u64.to_le_bytes(),
        );
    }
    let error = error(Pool::open(config));
    assert!(matches!(error, PoolError::Unsupported(_)), "{error}");
}

/// The state that one open finds after a crash, or with a damaged slot, is found by the next one
/// too, even if power is lost again during the first.
#[test]
fn what_was_found_is_found_again() {
    let images = |medium| {
        let machine = Machine::new(6, medium);
        let pool = Pool::create(config(Backing::Simulated(machine.clone()))).expect("created");
        let found = Arc::new(Mutex::new(Vec::new()));
        let images = Arc::clone(&found);
        machine.on_persist(Some(Box::new(move |machine, _| {
            for seed in 0..6 {
                images
                    .lock()
                    .push(machine.crash_image(Survive::Random(seed)));
            }
        })));
        for round in 1..3 {
            pool.set_roots(&[(0, round), (15, round)]).expect("set");
        }
        // In addition, damage one slot and then the other, durably.
        for slot in SLOTS {
            let flip = || {
                let word = pool.region().word(slot + 128).expect("mapped");
                word.fetch_xor(1, std::sync::atomic::Ordering::Relaxed);
                pool.region().persist(slot + 128, 8, Purpose::Superblock);
                pool.sync_all().expect("synced");
            };
            flip();
            let whole = machine.crash_image(Survive::None);
            flip();
            found.lock().push(whole);
        }
        machine.on_persist(None);
        Arc::clone(&found)
    };
    for medium in [Medium::Dax, Medium::Mapped] {
        for image in images(medium).lock().iter() {
            let machine = Machine::boot(image.clone(), 1);
            let again = Arc::new(Mutex::new(Vec::new()));
            let images = Arc::clone(&again);
            machine.on_persist(Some(Box::new(move |machine, _| {
                for seed in 0..12 {
                    images
                        .lock()
                        .push(machine.crash_image(Survive::Random(seed)));
                }
            })));
            let pool = Pool::open(config(Backing::Simulated(machine))).expect("opened");
            let found = (pool.root(0), pool.root(15));
            assert_eq!(found.0, found.1);
            for image in again.lock().drain(..) {
                let machine = Machine::boot(image, 2);
                let pool = Pool::open(config(Backing::Simulated(machine))).expect("opened again");
                assert_eq!((pool.root(0), pool.root(15)), found);
            }
        }
    }
}

/// Returns the image left by a process that was killed during a change of the roots from 1 to 2, in
/// either slot: the first `words` words of the slot are stored and not durable.
fn killed_while_changing(medium: Medium, second: bool, words: usize) -> Image {
    let machine = Machine::new(8, medium);
    let pool = Pool::create(config(Backing::Simulated(machine.clone()))).expect("created");
    pool.set_roots(&[(0, 1), (15, 1)]).expect("set");
    let before = machine.process_image();
    pool.set_roots(&[(0, 2), (15, 2)]).expect("set");
    let mut changed = [0; SLOT_BYTES / 8];
    for (i, word) in changed.iter_mut().enumerate() {
        let stored = pool.region().word(i as u64 * 8).expect("mapped");
        *word = stored.load(Relaxed);
    }

    let machine = Machine::boot(before, 0);
    let (memory, committed) = machine.pm_open(1 << 20).expect("mapped");
    let extras = Extras {
        hook: Some(machine.hook()),
        ..Extras::default()
    };
    let needs_sync = medium == Medium::Mapped;
    let mapping = Mapping::new(memory, committed, Flush::Nothing, needs_sync, extras);
    let region = Region::new(Arc::new(mapping), 0);
    let store = |slot: u64, words: usize| {
        for (i, word) in changed[..words].iter().enumerate() {
            let to = region.word(slot + i as u64 * 8).expect("mapped");
            to.store(*word, Relaxed);
        }
    };
    // In the order of `superblock::write`, with the first slot current.
    if second {
        store(SLOTS[1], changed.len());
        region.persist(SLOTS[1], SLOT_BYTES, Purpose::Superblock);
        region
            .sync(SLOTS[1], SLOT_BYTES)
            .expect("synced by the machine");
        store(SLOTS[0], words);
    } else {
        store(SLOTS[1], words);
    }
    machine.process_image()
}

/// Opens the image of a killed process, once for each way in which the opening process can end:
/// after the open, or at a persist point by a power loss or a kill. Images left by a power loss
/// must open with the state that the opening process found or, while it was opening, could have
/// found. Returns the images left by kills.
fn crash_the_next_open(image: &Image) -> Vec<Image> {
    let machine = Machine::boot(image.clone(), 0);
    let (lost, killed) = (Arc::default(), Arc::new(Mutex::new(Vec::new())));
    let (to_lost, to_killed) = (Arc::clone(&lost), Arc::clone(&killed));
    let collect = move |machine: &Machine, point: crate::PersistPoint| {
        let images = machine.crash_images(8).expect("few pending lines");
        let torn = (0..4).map(|seed| machine.crash_image(Survive::Random(seed)));
        let lost: &Mutex<Vec<_>> = &to_lost;
        let taken = images.into_iter().chain(torn);
        lost.lock().extend(taken.map(|image| (point.index, image)));
        to_killed.lock().push(machine.process_image());
    };
    machine.on_persist(Some(Box::new(collect)));
    let pool = match Pool::open(config(Backing::Simulated(machine.clone()))) {
        // Killed while the pool was created, before the magic was stored.
        Err(PoolError::NotFound { .. }) => return Vec::new(),
        pool => pool.expect("opened after a process crash"),
    };
    machine.on_persist(None);
    let found = pool.root(0);
    assert_eq!(pool.root(15), found);
    // On `Mapped` a fence precedes each sync and makes nothing durable.
    let settled = match machine.medium() {
        Medium::Mapped => 2,
        Medium::Dax | Medium::Dram => 1,
    };
    let last = machine.points();
    let after = machine.crash_images(8).expect("few pending lines");
    lost.lock()
        .extend(after.into_iter().map(|image| (last, image)));
    for (point, image) in lost.lock().drain(..) {
        let machine = Machine::boot(image, 1);
        let pool = match Pool::open(config(Backing::Simulated(machine))) {
            Err(PoolError::NotFound { .. }) if found == 0 && point < settled => continue,
            pool => pool.unwrap_or_else(|e| panic!("power lost at point {point}: {e}")),
        };
        assert_eq!(pool.root(0), pool.root(15));
        // Once the state is settled, it is found again.
        let legal = pool.root(0) == found || point < settled && found == 2 && pool.root(0) == 1;
        assert!(legal, "{} after {found}, at point {point}", pool.root(0));
        assert_eq!(pool.shutdown(), Shutdown::PowerLost);
    }
    killed.lock().drain(..).collect()
}

/// A process is killed at any store of a change or at any persist point of a creation, and the
/// processes after it at any persist point of their opens. At any point of these opens power is
/// lost with any subset of the pending lines. One slot is always whole, and no state that an open
/// has relied on is undone.
#[test]
fn a_kill_and_then_a_power_loss_leave_a_whole_slot() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let machine = Machine::new(9, medium);
        let made = Arc::new(Mutex::new(Vec::new()));
        let images = Arc::clone(&made);
        machine.on_persist(Some(Box::new(move |machine, _| {
            images.lock().push(machine.process_image());
        })));
        drop(Pool::create(config(Backing::Simulated(machine))).expect("created"));
        let mut left: Vec<Image> = made.lock().drain(..).collect();
        for second in [false, true] {
            let killed = (0..=SLOT_BYTES / 8).map(|n| killed_while_changing(medium, second, n));
            left.extend(killed);
        }
        for _ in 0..3 {
            left = left.iter().flat_map(crash_the_next_open).collect();
        }
        assert!(left.len() > 66 * 3, "{} images", left.len());
    }
}

/// A file that is not a pool is refused by `open` and by `create`, and does not change.
#[test]
fn a_foreign_file_is_refused_and_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pool");
    for content in [
        &b"a letter to somebody"[..],
        &[0; 100_000],
        b"x",
        &[0xff; 40_000],
    ] {
        std::fs::write(&path, content).expect("written");
        let opened = error(Pool::open(file(dir.path())));
        assert!(
            matches!(
                opened,
                PoolError::Foreign { .. } | PoolError::Truncated { .. }
            ),
            "{opened}"
        );
        let created = error(Pool::create(file(dir.path())));
        assert!(matches!(created, PoolError::Foreign { .. }), "{created}");
        assert_eq!(std::fs::read(&path).expect("read"), content);
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
    }
    std::fs::write(&path, b"a letter").expect("written");
    let text = error(Pool::create(file(dir.path()))).to_string();
    assert!(
        text.contains("a letter") && text.contains("not a pool"),
        "{text}"
    );
}

/// A truncated pool file is refused, even if its superblock is cut off.
#[test]
fn a_truncated_file_is_refused() {
    for (len, least) in [
        (8, 16 << 10),
        (100, 16 << 10),
        (5000, 16 << 10),
        (16 << 10, 64 << 10),
        (40 << 10, 64 << 10),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let config = closed(dir.path());
        open_bytes(&dir.path().join("pool"))
            .set_len(len)
            .expect("cut");
        let error = error(Pool::open(config));
        assert!(
            matches!(error, PoolError::Truncated { expected, .. } if expected == least),
            "{len}: {error}"
        );
    }
}

/// A power loss at any persist point of creating a pool and changing roots leaves either no pool,
/// so that one can be created, or all roots of one change.
#[test]
fn roots_change_all_or_none_at_every_crash() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let machine = Machine::new(5, medium);
        let acknowledged = Arc::new(Mutex::new(None::<u64>));
        let seen = Arc::clone(&acknowledged);
        let images = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let count = Arc::clone(&images);
        machine.on_persist(Some(Box::new(move |machine, point| {
            let acknowledged = *seen.lock();
            for seed in 0..40 {
                let survive = match seed {
                    0 => Survive::None,
                    1 => Survive::All,
                    seed => Survive::Random(seed * 1000 + point.index),
                };
                let after = Machine::boot(machine.crash_image(survive), seed);
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let config = config(Backing::Simulated(after));
                match Pool::open(config.clone()) {
                    Ok(pool) => {
                        let roots: Vec<u64> = (0..16).map(|i| pool.root(i)).collect();
                        assert!(roots.iter().all(|root| *root == roots[0]), "{roots:?}");
                        let least = acknowledged.unwrap_or(0);
                        assert!(roots[0] == least || roots[0] == least + 1, "{point:?}");
                        assert_eq!(pool.shutdown(), Shutdown::PowerLost);
                    }
                    Err(PoolError::NotFound { .. }) => {
                        assert_eq!(acknowledged, None, "{point:?}");
                        assert!(Pool::create(config).is_ok());
                    }
                    Err(error) => panic!("{point:?}, seed {seed}: {error}"),
                }
            }
        })));
        let pool = Pool::create(config(Backing::Simulated(machine.clone()))).expect("created");
        *acknowledged.lock() = Some(0);
        for round in 1..6 {
            let changes: Vec<(usize, u64)> = (0..16).map(|i| (i, round)).collect();
            pool.set_roots(&changes).expect("set");
            *acknowledged.lock() = Some(round);
        }
        assert!(images.load(std::sync::atomic::Ordering::Relaxed) > 400);
    }
}

/// After a failed sync, further changes of the superblock are refused.
#[test]
fn a_failed_sync_is_final() {
    let dir = tempfile::tempdir().expect("a directory");
    let faults = PoolFaults::new();
    let config = PoolConfig {
        faults: Some(Arc::clone(&faults)),
        ..file(dir.path())
    };
    let pool = Pool::create(PoolConfig {
        medium: MediumChoice::Mapped,
        ..config
    })
    .expect("created");
    pool.set_roots(&[(0, 1)]).expect("set");
    faults.fail_sync(1, io::ErrorKind::Other, false);
    assert!(pool.set_roots(&[(0, 2)]).is_err());
    assert_eq!(pool.root(0), 1);
    let later = pool.set_roots(&[(0, 3)]).expect_err("still failed");
    assert!(
        later.to_string().contains("earlier update failed"),
        "{later}"
    );
    assert!(pool.mark_clean().is_err());
    drop(pool);
    let pool = Pool::open(file(dir.path())).expect("opened");
    assert!(pool.root(0) == 1 || pool.root(0) == 2);
    assert_eq!(pool.shutdown(), Shutdown::Crashed);
}

/// After a failed sync of one range, syncs of all other ranges fail: the kernel may have reported
/// their pages with the first.
#[test]
fn a_failed_sync_of_a_range_is_final_for_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let faults = PoolFaults::new();
    let pool = Pool::create(PoolConfig {
        faults: Some(Arc::clone(&faults)),
        medium: MediumChoice::Mapped,
        ..file(dir.path())
    })
    .expect("created");
    let two = [pool.alloc(4096), pool.alloc(4096)].map(|extent| extent.expect("an extent"));
    let sync = |at: usize| pool.region().sync(two[at].span().off, 4096);
    sync(0).expect("synced");
    faults.fail_sync(1, io::ErrorKind::Other, false);
    assert!(sync(0).is_err());
    let later = sync(1).expect_err("still failed");
    assert!(later.to_string().contains("an earlier sync"), "{later}");
    assert!(pool.sync_all().is_err());
    assert!(pool.set_roots(&[(0, 2)]).is_err());
}

/// Any bytes decode without a panic; a slot decodes to its state, and is invalid after a bit flip.
#[test]
fn slots_decode_whatever_they_hold() {
    let mut random = fastrand::Rng::with_seed(11);
    for turn in 0..20_000 {
        let mut bytes = [0; SLOT_BYTES_MAX];
        random.fill(&mut bytes);
        let state = Superblock {
            compat: random.u64(..),
            ro_compat: random.u64(..),
            incompat: random.u64(..),
            uuid: random.u128(..).to_le_bytes(),
            granule: random.u64(..),
            cap: random.u64(..),
            committed: random.u64(..),
            boot_id: random.u128(..).to_le_bytes(),
            flags: random.u64(..),
            generation: random.u64(..),
            roots: std::array::from_fn(|_| random.u64(..)),
        };
        match turn % 3 {
            0 => bytes[..8].copy_from_slice(&MAGIC),
            1 => {
                bytes[..SLOT_BYTES].copy_from_slice(&state.encode());
                let decoded = Superblock::decode(&bytes);
                assert_eq!(decoded, Slot::Valid(Box::new(state)));
                bytes[random.usize(..SLOT_BYTES)] ^= 1 << random.u8(0..8);
            }
            _ => {}
        }
        let decoded = Superblock::decode(&bytes);
        assert!(!matches!(decoded, Slot::Valid(_)), "{decoded:?}");
    }
}

/// The maximum generation is refused: the next one would be older than all others.
#[test]
fn the_last_generation_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = closed(dir.path());
    let path = dir.path().join("pool");
    for slot in SLOTS {
        patch(&path, slot, AT_GENERATION, &u64::MAX.to_le_bytes());
    }
    let error = error(Pool::open(config));
    assert!(matches!(error, PoolError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("generation"), "{error}");
}
