//! Devices that are full before a pool has its maximum size.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use terrace::{Db, Design, Durability, ErrorKind, Options, Workers, WriteBatch};
use terrace_media::{Machine, Medium, OsFs, PoolFaults, QuotaFs, Survive};
use terrace_testkit::damage::maps_large_pools;
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::watchdog::watch;
use terrace_testkit::{seeds, settings};

use crate::room::{puts_until_full, value};

/// Copies the files of an open database, as a kill leaves them.
fn killed(db: &Db) -> tempfile::TempDir {
    let copy = scratch().unwrap();
    for file in std::fs::read_dir(db.path()).unwrap() {
        let file = file.unwrap().path();
        std::fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    copy
}

fn device_fills(seed: u64, design: Design) {
    const KIB: u64 = 1 << 10;
    let mut rng = fastrand::Rng::with_seed(seed);
    let medium = [Medium::Dax, Medium::Mapped][seed as usize / 2 % 2];
    let mut options = settings::small_of(design, medium);
    options.pool.size_bytes = 64 << 20;
    options.front.memtable_bytes = [64 * KIB, 160 * KIB][seed as usize / 4 % 2];
    options.background = settings::background(seed);
    let room = rng.u64(5000 * KIB..7000 * KIB);
    let case = format!("seed {seed}, {design} on {medium}, {room} bytes");
    let faults = PoolFaults::new();
    faults.set_room(room);
    // Some of these designs have table files, on a disk that fills up too.
    let fs = QuotaFs::new(Arc::new(OsFs), room / 2);
    let place = |folder: &std::path::Path| Place {
        fs: Some(Arc::new(fs.clone())),
        faults: Some(Arc::clone(&faults)),
        ..Place::folder(folder)
    };
    let folder = scratch().unwrap();
    let db = place(folder.path()).open(&options).unwrap();
    let (mut count, mut refused) = (0u32, 0);
    while refused < 5 {
        match db.put(count.to_be_bytes(), value(count, rng.usize(..6000))) {
            Ok(()) => count += 1,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Full, "{case}: {e:?}");
                refused += 1;
            }
        }
        assert!(count < 20_000, "{case}: the device does not fill");
    }
    // Threads would change the files during the copy.
    let is_manual = options.background.workers == Workers::Manual;
    let copy = (is_manual && rng.bool()).then(|| killed(&db));
    drop(db);
    let reopened = place(copy.as_ref().unwrap_or(&folder).path()).open(&options);
    let db = reopened.unwrap_or_else(|e| panic!("{case}: {e:?}"));
    assert_eq!(db.iter().unwrap().count(), count as usize, "{case}");
    if rng.bool() {
        faults.set_room(2 * room);
        fs.set_room(2 * room);
    } else {
        for n in 0..20u32 {
            let deleted = db.delete(n.to_be_bytes());
            deleted.unwrap_or_else(|e| panic!("{case}: delete {n}: {e:?}"));
        }
        db.delete_range::<&[u8]>(..).unwrap();
        assert_eq!(db.iter().unwrap().count(), 0, "{case}");
    }
    for n in 0..100u32 {
        let put = db.put(n.to_be_bytes(), value(n, 6000));
        put.unwrap_or_else(|e| panic!("{case}: put {n}: {e:?} {}", db.metrics()));
    }
    db.close().unwrap();
}

/// If a pool's maximum exceeds the space of its device, puts are refused once the device is full,
/// the database reopens, killed or closed, deletes release space, and puts continue when the device
/// has space.
#[test]
fn a_pool_that_has_filled_its_device_goes_on() {
    // A drain was refused next to a range delete that had just become durable.
    let refused = [118, 156];
    // The first memtable of the reopened database took the only space that a replay needed, in one
    // run of ten.
    let in_pieces = [161, 185, 195, 217, 243];
    let designs = [
        Design::MioDb,
        Design::MioDbSsd,
        Design::NoveLsm,
        Design::NoveLsmNoSst,
        Design::NoveLsmHier,
    ];
    let once_failed = refused.into_iter().chain(in_pieces);
    let once_failed = once_failed.map(|seed| (seed, designs[seed as usize % 2]));
    let cases = seeds::in_turns(8, &designs).into_iter().chain(once_failed);
    watch(|_| cases.for_each(|(seed, design)| device_fills(seed, design)));
}

/// A database with default options except for the pool, on a device smaller than one memtable of
/// the default size, accepts data for more than half of it, and as much again after most was
/// deleted.
#[test]
fn default_options_fit_a_small_device() {
    const ROOM: u64 = 48 << 20;
    let _large = maps_large_pools();
    for design in [
        Design::MioDb,
        Design::MioDbSsd,
        Design::NoveLsm,
        Design::NoveLsmNoSst,
        Design::NoveLsmHier,
        Design::Leveled,
    ] {
        watch(move |watched| {
            watched.op(design.to_string(), || {
                let folder = scratch().unwrap();
                let faults = PoolFaults::new();
                faults.set_room(ROOM);
                let fs = QuotaFs::new(Arc::new(OsFs), ROOM);
                let place = Place {
                    fs: Some(Arc::new(fs)),
                    faults: Some(faults),
                    ..Place::folder(folder.path())
                };
                let mut options = Options {
                    design: Some(design),
                    ..Options::default()
                };
                options.pool.path = Some("pool".into());
                let db = place.open(&options).unwrap();
                let put = |n: u32| db.put(n.to_be_bytes(), value(n, 1000));
                let count = puts_until_full(put);
                let bytes = u64::from(count) * 1000;
                assert!(bytes > ROOM / 2, "{bytes} bytes of {ROOM}");
                let most = count / 10 * 7;
                db.delete_range(..most.to_be_bytes()).unwrap();
                for n in 0..most / 10 * 7 {
                    let taken = (0..500).any(|_| {
                        let taken = put(n).is_ok();
                        if !taken {
                            std::thread::sleep(std::time::Duration::from_millis(10));
                        }
                        taken
                    });
                    assert!(taken, "put {n} of {count} again: {}", db.metrics());
                }
            });
        });
    }
}

/// An open that ends early leaves the empty log of its first memtable. Many of these do not fill a
/// pool that is nearly full.
#[test]
fn openings_that_end_early_leave_room_for_the_next() {
    for (design, medium) in [
        (Design::MioDb, Medium::Dax),
        (Design::MioDbSsd, Medium::Mapped),
    ] {
        let faults = PoolFaults::new();
        faults.set_room(5 << 20);
        let place = |machine: &Machine| Place {
            faults: Some(Arc::clone(&faults)),
            ..Place::machine(machine)
        };
        let mut options = settings::small_of(design, medium);
        options.pool.size_bytes = 64 << 20;
        options.front.memtable_bytes = 64 << 10;
        let machine = Machine::new(1, medium);
        let db = place(&machine).open(&options).unwrap();
        let put = |n: u32| db.put_with(n.to_be_bytes(), value(n, 3000), Durability::Sync);
        let count = (0..1500).find(|&n| put(n).is_err()).unwrap_or(1500);
        for at in 0..12 {
            let mut image = machine.crash_image(Survive::None);
            for round in 0..20 {
                let machine = Machine::boot(image, round);
                let early = Arc::new(Mutex::new(None));
                let taken = Arc::clone(&early);
                machine.on_persist(Some(Box::new(move |machine: &Machine, point| {
                    if point.index <= at {
                        *taken.lock().unwrap() = Some(machine.crash_image(Survive::All));
                    }
                })));
                let opened = place(&machine).open(&options);
                let case = format!("{design}, ends at point {at}, round {round}");
                let opened = opened.unwrap_or_else(|e| panic!("{case}: {e:?}"));
                assert_eq!(opened.iter().unwrap().count(), count as usize, "{case}");
                machine.on_persist(None);
                image = early.lock().unwrap().take().unwrap();
            }
        }
    }
}

/// A drain that found no space drops what later range deletes hide. A power loss at any moment of
/// that removes no key without its range delete, so each range is there entirely or not at all, and
/// those deleted first go first.
#[test]
fn a_power_loss_during_range_deletes_on_a_full_device_loses_no_keys() {
    const PIECES: u32 = 16;
    for (seed, medium) in [(1, Medium::Dax), (2, Medium::Mapped), (3, Medium::Mapped)] {
        let faults = PoolFaults::new();
        faults.set_room(5600 << 10);
        let machine = Machine::new(seed, medium);
        let place = |machine: &Machine| Place {
            faults: Some(Arc::clone(&faults)),
            ..Place::machine(machine)
        };
        let mut options = settings::small_of(Design::MioDb, medium);
        options.pool.size_bytes = 64 << 20;
        options.front.memtable_bytes = 64 << 10;
        let db = place(&machine).open(&options).unwrap();
        let put = |n: u32| {
            let mut batch = WriteBatch::new();
            batch.put(n.to_be_bytes(), value(n, 3000));
            db.write(batch, Durability::Sync)
        };
        let count = (0..10_000).find(|&n| put(n).is_err()).unwrap();
        let piece = count / PIECES;
        let images = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&images);
        machine.on_persist(Some(Box::new(move |machine: &Machine, point| {
            if point.index % 151 == 0 {
                let survive = [Survive::None, Survive::Random(point.index)];
                let survive = survive[point.index as usize % 2];
                taken.lock().unwrap().push(machine.crash_image(survive));
            }
        })));
        let mut later = 0;
        for n in 0..PIECES {
            let (from, to) = (n * piece, (n + 1) * piece);
            db.delete_range(from.to_be_bytes()..to.to_be_bytes())
                .unwrap();
            // While there is no space for them, these puts let jobs run.
            for m in 0..piece / 2 {
                later += u32::from(db.put(format!("later {n} {m}"), value(m, 3000)).is_ok());
            }
        }
        machine.on_persist(None);
        assert!(later > count / 8, "{medium}: {later} after {count}");
        let mut seen = BTreeSet::new();
        for image in std::mem::take(&mut *images.lock().unwrap()) {
            let opened = place(&Machine::boot(image, seed)).open(&options);
            let opened = opened.unwrap_or_else(|e| panic!("{medium}, {count} keys: {e:?}"));
            let mut left = [0; PIECES as usize + 1];
            for pair in opened.iter().unwrap() {
                if let Ok(key) = <[u8; 4]>::try_from(pair.unwrap().key()) {
                    left[(u32::from_be_bytes(key) / piece).min(PIECES) as usize] += 1;
                }
            }
            let gone = left.iter().take_while(|left| **left == 0).count();
            let rest = &left[gone.min(PIECES as usize)..PIECES as usize];
            let whole = rest.iter().all(|left| *left == piece);
            assert!(whole, "{medium}: {left:?} of {piece} each");
            seen.insert(gone);
        }
        assert!(seen.len() > 3, "{medium}: {seen:?}");
    }
}
