//! Work refused by a full disk: it is not repeated in vain, it resumes when there is space, and
//! refused puts change nothing.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use terrace::{Db, Design, Durability, ErrorKind, Options, Workers};
use terrace_media::Medium;
use terrace_testkit::place::scratch;
use terrace_testkit::watchdog::{watch, watched};
use terrace_testkit::{seeds, settings};

use crate::room::{fill, on_a_disk_of, puts_until_full, value};

/// The time between two tries of a put that a full disk refuses. There are at most 500 tries.
const RETRY: Duration = Duration::from_millis(10);

/// Returns the number of drains that have moved entries.
fn moves_ended(db: &Db) -> u64 {
    let jobs = db.metrics().jobs;
    let drains = jobs.iter().filter(|job| job.kind == "drain");
    drains.map(|job| job.entry_count).sum()
}

/// Returns the number of compactions that have ended.
fn compactions(db: &Db) -> u64 {
    let jobs = db.metrics().jobs;
    let compactions = jobs.iter().filter(|job| job.kind == "compact");
    compactions.map(|job| job.count).sum()
}

/// A refused compaction writes nothing more until there is more space, and a put is refused without
/// waiting for it again.
#[test]
fn a_full_disk_is_not_filled_again_and_again() {
    // One in four tries of a compaction is made.
    for (workers, operations_max) in [(Workers::Manual, 40), (Workers::Threads(2), 1000)] {
        for design in settings::designs_with_files() {
            watch(move |watched| {
                watched.op(format!("{design}, {workers:?}"), || {
                    let folder = scratch().unwrap();
                    let (place, quota, fs) = on_a_disk_of(4 << 20, folder.path());
                    let mut options = settings::small_of(design, Medium::Dram);
                    options.background.workers = workers;
                    options.front.memtable_bytes = 64 << 10;
                    options.bottom.leveled.table_bytes = 64 << 10;
                    options.bottom.leveled.level1_bytes = 128 << 10;
                    let db = place.open(&options).unwrap();
                    fill(&db);
                    // By then other jobs may have started and been refused as well. Those that end
                    // have found space.
                    let (mut refused, mut before) = (db.metrics().retries.count, fs.operations());
                    let mut ended = moves_ended(&db);
                    while db.metrics().retries.count < refused + 12 {
                        let taken = db.put(b"more", value(1, 1000)).is_ok();
                        let before_this = std::mem::replace(&mut ended, moves_ended(&db));
                        if taken || ended > before_this {
                            (refused, before) = (db.metrics().retries.count, fs.operations());
                        }
                        std::thread::yield_now();
                    }
                    let operations = fs.operations() - before;
                    assert!(
                        operations < operations_max,
                        "{operations} operations on files"
                    );
                    quota.set_room(64 << 20);
                    // Jobs check for space ten times a second, and puts are refused until one has
                    // found it.
                    while db.put(b"more", value(1, 1000)).is_err() {
                        std::thread::yield_now();
                    }
                    db.drain().unwrap();
                });
            });
        }
    }
}

/// If two logs fill the disk, a range delete of everything frees space for the next one: its
/// memtable is flushed although no put can fill it.
#[test]
fn a_range_delete_makes_room_for_a_log() {
    // Without threads a buffer keeps its content until `drain` is called.
    for (workers, designs) in [
        (Workers::Manual, &[Design::Leveled][..]),
        (Workers::Threads(2), &[Design::Leveled, Design::MioDbSsd]),
    ] {
        for &design in designs {
            watch(move |watched| {
                watched.op(format!("{design}, {workers:?}"), || {
                    let folder = scratch().unwrap();
                    // Memtables are fitted to the disk at open.
                    let (place, quota, _) = on_a_disk_of(256 << 20, folder.path());
                    let mut options = settings::small_of(design, Medium::Dram);
                    options.background.workers = workers;
                    options.pool.size_bytes = 64 << 20;
                    options.front.memtable_bytes = 6 << 20;
                    let db = place.open(&options).unwrap();
                    quota.set_room(20 << 20);
                    let count = fill(&db);
                    assert!(count > 10_000, "{count}");
                    db.delete_range::<&[u8]>(..).unwrap();
                    while db.put(b"later", value(1, 1000)).is_err() {
                        std::thread::yield_now();
                    }
                    assert_eq!(db.iter().unwrap().count(), 1);
                });
            });
        }
    }
}

/// With default options a small disk is filled by data and not by logs alone, and range deletes of
/// most of it let puts continue, repeatedly.
#[test]
fn a_small_disk_is_given_back_by_range_deletes() {
    const DISK: u64 = 64 << 20;
    const LIVE: u64 = 21 << 20;
    for design in settings::designs_with_files() {
        watch(move |watched| {
            watched.op(format!("{design}"), || {
                let folder = scratch().unwrap();
                let (place, ..) = on_a_disk_of(DISK, folder.path());
                let options = Options {
                    design: Some(design),
                    ..Options::default()
                };
                let db = place.open(&options).unwrap();
                let (mut count, mut kept) = (0u32, 0);
                for cycle in 0..3 {
                    let first = count;
                    loop {
                        let keep = count.is_multiple_of(3) && kept * 1000 < LIVE;
                        let key = format!("{}{count}", if keep { "keep" } else { "gone" });
                        if db.put(key, value(count, 1000)).is_err() {
                            break;
                        }
                        kept += u64::from(keep);
                        count += 1;
                    }
                    let taken = u64::from(count - first) * 1000;
                    assert!(cycle > 0 || taken > DISK * 3 / 5, "{taken} bytes");
                    db.delete_range("gone".."gonf").unwrap();
                    while db.put("gone", value(1, 1000)).is_err() {
                        std::thread::yield_now();
                    }
                }
                assert_eq!(db.prefix("keep").unwrap().count() as u64, kept);
                db.close().unwrap();
                // The options stored for the next open are the given ones.
                let kept = std::fs::read_to_string(folder.path().join("db/OPTIONS")).unwrap();
                assert!(kept.contains("\nmemtable_bytes = 67108864"), "{kept}");
                let table_bytes = "\nbottom.leveled.table_bytes = 67108864";
                assert!(kept.contains(table_bytes), "{kept}");
            });
        });
    }
}

/// Single deletes of most of a full disk let puts continue, although the drained deletes alone are
/// too small to trigger a compaction.
#[test]
fn a_disk_is_given_back_by_single_deletes() {
    const DISK: u64 = 24 << 20;
    for design in settings::designs_with_files() {
        watch(move |watched| {
            watched.op(format!("{design}"), || {
                let folder = scratch().unwrap();
                let (place, ..) = on_a_disk_of(DISK, folder.path());
                let mut options = Options {
                    design: Some(design),
                    ..Options::default()
                };
                options.front.memtable_bytes = 256 << 10;
                options.bottom.leveled.table_bytes = 1 << 20;
                let db = place.open(&options).unwrap();
                let put = |n: u32| db.put(n.to_be_bytes(), value(n, 2000));
                let count = puts_until_full(put);
                // A full disk may refuse it.
                let _ = db.drain();
                for n in (0..count).filter(|n| n % 10 > 2) {
                    delete_at_once(&db, n.to_be_bytes());
                }
                for n in count..count * 5 / 4 {
                    put_in_time(&db, n, || put(n));
                }
                let left = (0..count).filter(|n| n % 10 < 3).count() as u32;
                assert_eq!(
                    db.iter().unwrap().count() as u32,
                    left + count * 5 / 4 - count
                );
            });
        });
    }
}

/// Values apart on a full disk: reads go on, and deletes of keys that lie together give the space
/// of their value files back, to the next puts. With small memtables many files are joined
/// meanwhile.
#[test]
fn a_disk_of_values_apart_is_given_back() {
    const DISK: u64 = 24 << 20;
    let small = [Design::Leveled, Design::FlatLsm].map(|design| (design, 16 << 10));
    let all = settings::designs_with_files().map(|design| (design, 256 << 10));
    for (design, memtable) in all.chain(small) {
        watch(move |watched| {
            let folder = scratch().unwrap();
            let (place, ..) = on_a_disk_of(DISK, folder.path());
            let mut options = Options {
                design: Some(design),
                ..Options::default()
            };
            options.front.memtable_bytes = memtable;
            options.buffer.tables.table_bytes = Some(memtable).filter(|&it| it < 256 << 10);
            options.bottom.leveled.table_bytes = 1 << 20;
            options.bottom.leveled.values_apart_from = Some(500);
            let db = place.open(&options).unwrap();
            let what = format!("{design}, memtables of {memtable} bytes");
            let put = |n: u32| db.put(n.to_be_bytes(), value(n, 2000));
            let count = watched.op(format!("{what}, puts"), || puts_until_full(put));
            let _ = watched.op(format!("{what}, drain"), || db.drain());
            for n in 0..count {
                let found = db.get(n.to_be_bytes()).unwrap();
                assert_eq!(found, Some(value(n, 2000)), "{what}, {n} of {count}");
            }
            let deleted = count * 3 / 4;
            watched.op(format!("{what}, deletes"), || {
                (0..deleted).for_each(|n| delete_at_once(&db, n.to_be_bytes()));
            });
            for n in count..count + count / 4 {
                watched.op(format!("{what}, put {n}"), || {
                    put_in_time(&db, n, || put(n));
                });
            }
            let left = count - deleted + count / 4;
            assert_eq!(db.iter().unwrap().count() as u32, left);
        });
    }
}

/// A range delete gives value files back, even from a pool in which it is behind puts that do not
/// fit on the disk.
#[test]
fn a_disk_of_values_apart_is_given_back_by_range_deletes() {
    const DISK: u64 = 32 << 20;
    const ROUNDS: u32 = 4;
    // Each leaves a quarter of all possible keys.
    const RANGES: [([u8; 4], [u8; 4]); 2] = [([0; 4], [192, 0, 0, 0]), ([64, 0, 0, 0], [255; 4])];
    for design in settings::designs_with_files() {
        watch(move |watched| {
            let folder = scratch().unwrap();
            let (place, ..) = on_a_disk_of(DISK, folder.path());
            let mut options = in_a_pool(design, folder.path());
            options.front.memtable_bytes = 256 << 10;
            options.bottom.leveled.values_apart_from = Some(500);
            let db = place.open(&options).unwrap();
            let put = |n: u32| db.put(key(n), value(n, 30_000));
            let mut n = 0;
            for round in 0..ROUNDS {
                while watched.op(format!("{design}, put {n}"), || put(n)).is_ok() {
                    n += 1;
                }
                let _ = watched.op("drain", || db.drain());
                let all = db.iter().unwrap().count();
                let (low, high) = RANGES[round as usize % 2];
                db.delete_range_with(low..high, Durability::Sync).unwrap();
                let left = db.iter().unwrap().count();
                assert!(left < all / 2, "{design}: {left} of {all}");
                for _ in 0..all / 4 {
                    watched.op(format!("{design}, put {n} after"), || {
                        put_in_time(&db, n, || put(n));
                    });
                    n += 1;
                }
            }
        });
    }
}

/// Value files whose live values do not fit on the disk together are given back one at a time,
/// though the disk is found full only while all of them are copied.
#[test]
fn value_files_leave_one_at_a_time_on_a_full_disk() {
    const COUNT: u32 = 400;
    watch(|watched| {
        let folder = scratch().unwrap();
        let (place, quota, _) = on_a_disk_of(64 << 20, folder.path());
        let mut options = Options {
            design: Some(Design::Leveled),
            ..Options::default()
        };
        options.background.workers = Workers::Threads(1);
        options.front.memtable_bytes = 256 << 10;
        options.bottom.leveled.table_bytes = 1 << 20;
        options.bottom.leveled.values_apart_from = Some(500);
        let db = place.open(&options).unwrap();
        for n in 0..COUNT {
            db.put(key(n), value(n, 30_000)).unwrap();
            if n % 40 == 39 {
                db.drain().unwrap();
            }
        }
        let before = quota.used();
        quota.set_room(before + (1 << 20));
        db.delete_range_with([0; 4]..[170, 0, 0, 0], Durability::Sync)
            .unwrap();
        watched.op("drains", || {
            let drained = (0..500).any(|_| {
                std::thread::sleep(RETRY);
                db.drain().is_ok() && quota.used() < before / 2
            });
            assert!(
                drained,
                "{:?} {} {}",
                db.drain(),
                quota.used(),
                db.metrics()
            );
        });
        let left = (0..COUNT).filter(|n| key(*n) >= [170, 0, 0, 0]).count();
        assert_eq!(db.iter().unwrap().count(), left);
    });
}

/// After single deletes of nearly everything a drain finds space, whatever jobs the deletes met.
#[test]
fn a_drain_of_single_deletes_finds_space_for_values_apart() {
    const DISK: u64 = 32 << 20;
    watch(move |watched| {
        for round in 0..8 {
            let folder = scratch().unwrap();
            let (place, ..) = on_a_disk_of(DISK, folder.path());
            let mut options = in_a_pool(Design::FlatLsm, folder.path());
            options.pool.size_bytes = 32 << 20;
            let db = place.open(&options).unwrap();
            let put = |n: u32| db.put(key(n), value(n, 4096));
            let count = watched.op("puts", || puts_until_full(put));
            std::thread::sleep(RETRY * round);
            watched.op("deletes", || {
                for n in (0..count).filter(|n| n % 20 != 0) {
                    delete_at_once(&db, key(n));
                }
            });
            watched.op(format!("drain {round}"), || {
                // A drain may meet one that was refused before the deletes.
                let drained = (0..8).any(|_| db.drain().is_ok());
                assert!(drained, "{:?} {}", db.drain(), db.metrics());
            });
            assert_eq!(db.iter().unwrap().count() as u32, count.div_ceil(20));
        }
    });
}

/// The same holds above a pool, which has the puts that do not fit on the disk, and the deletes
/// behind them.
#[test]
fn a_disk_above_a_pool_is_given_back_by_single_deletes() {
    const DISK: u64 = 24 << 20;
    watch(move |watched| {
        for value_bytes in [300, 2000, 30_000] {
            let folder = scratch().unwrap();
            let (place, ..) = on_a_disk_of(DISK, folder.path());
            let mut options = in_a_pool(Design::MioDbSsd, folder.path());
            options.front.memtable_bytes = 256 << 10;
            options.bottom.leveled.table_bytes = 1 << 20;
            let db = place.open(&options).unwrap();
            let put = |n: u32| db.put(key(n), value(n, value_bytes));
            let of = |what: &str| format!("{what}, values of {value_bytes} bytes");
            let count = watched.op(of("puts"), || puts_until_full(put));
            let drained = watched.op(of("a drain"), || db.drain());
            assert!(drained.is_err_and(|e| e.kind() == ErrorKind::Full));
            watched.op(of("deletes"), || {
                for n in (0..count).filter(|n| n % 10 > 2) {
                    delete_at_once(&db, key(n));
                }
            });
            watched.op(of("more puts"), || {
                for n in count..count * 5 / 4 {
                    put_in_time(&db, n, || put(n));
                }
            });
            let left = (0..count).filter(|n| n % 10 < 3).count() as u32;
            let new = count * 5 / 4 - count;
            assert_eq!(db.iter().unwrap().count() as u32, left + new);
        }
    });
}

/// A put that finds the disk full of live data is refused after a bounded number of compactions.
/// With little space, level 0 can be compacted in small pieces for long, which frees nothing.
#[test]
fn a_put_waits_for_few_compactions_on_a_full_disk() {
    const DISK: u64 = 48 << 20;
    watch(move |watched| {
        watched.op("puts", || {
            let folder = scratch().unwrap();
            let (place, ..) = on_a_disk_of(DISK, folder.path());
            let mut options = in_a_pool(Design::MioDbSsd, folder.path());
            options.front.memtable_bytes = 256 << 10;
            options.bottom.leveled.table_bytes = 256 << 10;
            let db = place.open(&options).unwrap();
            puts_until_full(|n| {
                let before = compactions(&db);
                let put = db.put(key(n), value(n, 300));
                let ended = compactions(&db) - before;
                assert!(ended < 400, "put {n} waited for {ended} compactions");
                put
            });
        });
    });
}

/// The same holds with small pairs: the pool accepts deletes of one in forty before a drain must
/// free space for more.
#[test]
fn a_disk_of_small_pairs_is_given_back_by_single_deletes() {
    const DISK: u64 = 24 << 20;
    watch(move |watched| {
        let folder = scratch().unwrap();
        let (place, ..) = on_a_disk_of(DISK, folder.path());
        let mut options = in_a_pool(Design::MioDbSsd, folder.path());
        options.front.memtable_bytes = 128 << 10;
        options.background.workers = Workers::Manual;
        let db = place.open(&options).unwrap();
        let key = |n: u32| [key(n), key(n), key(n), key(n)].concat();
        let put = |n: u32| db.put(key(n), value(n, 50 + n as usize % 100));
        let mut count = 0;
        let mut is_full = false;
        while !is_full {
            watched.op("puts", || {
                let first = (count..count + 5000).find(|n| put(*n).is_err());
                is_full = first.is_some();
                count = first.unwrap_or(count + 5000);
            });
        }
        // Deletes in another order than the puts.
        let mut deleted: Vec<u32> = (0..count).filter(|n| n % 10 > 2).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut deleted);
        for some in deleted.chunks(2000) {
            watched.op("deletes", || {
                for n in some {
                    let done = db.delete(key(*n));
                    assert!(done.is_ok(), "{n} of {count}: {done:?} {}", db.metrics());
                }
            });
        }
        let left = count as usize - deleted.len();
        assert_eq!(db.iter().unwrap().count(), left);
    });
}

/// A full pool and disk accept some single deletes after each of many opens. For any number of
/// deletes, the next open finds space for its memtable next to what it replays, and accepts a range
/// delete.
#[test]
fn full_pools_open_again_and_again() {
    const DISK: u64 = 1 << 20;
    watch(move |watched| {
        for per_opening in [1u32, 40, 500] {
            watched.op(format!("{per_opening} deletes"), || {
                let folder = scratch().unwrap();
                let (place, ..) = on_a_disk_of(DISK, folder.path());
                let mut options = in_a_pool(Design::MioDbSsd, folder.path());
                options.front.memtable_bytes = 256 << 10;
                let db = place.open(&options).unwrap();
                let count = (0..).find(|&n| db.put(key(n), value(n, 1000)).is_err());
                let mut left: Vec<u32> = (0..count.unwrap()).collect();
                db.close().unwrap();
                let mut refused = 0;
                for opening in 0..150 * seeds::times() {
                    let db = place.open(&options);
                    let db = db
                        .unwrap_or_else(|e| panic!("opening {opening}, {} left: {e}", left.len()));
                    let before = left.len();
                    for _ in 0..per_opening {
                        match left.last().map(|n| db.delete(key(*n))) {
                            Some(Ok(())) => drop(left.pop()),
                            _ => break,
                        }
                    }
                    refused += u32::from(left.len() == before);
                    assert_eq!(db.iter().unwrap().count(), left.len());
                    match opening % 2 {
                        0 => drop(db),
                        _ => db.close().unwrap(),
                    }
                    if refused > 4 {
                        break;
                    }
                }
                let db = place.open(&options).unwrap();
                db.delete_range::<&[u8]>(..).unwrap();
                for n in 0..100 {
                    put_in_time(&db, n, || db.put(key(n), value(n, 1000)));
                }
            });
        }
    });
}

/// A creation that fails for lack of space leaves nothing that takes space or prevents the next
/// one.
#[test]
fn a_creation_without_room_is_taken_back() {
    for design in Design::ALL {
        for pool in ["new", "prepared", "none"] {
            let folder = scratch().unwrap();
            let (place, quota, _) = on_a_disk_of(0, folder.path());
            let mut options = in_a_pool(design, folder.path());
            options.front.memtable_bytes = 256 << 10;
            let path = folder.path().join("pool");
            match pool {
                "prepared" => std::fs::write(&path, "").unwrap(),
                "none" => options.pool.path = None,
                _ => {}
            }
            for room in [0, 4096, 16 << 10] {
                quota.set_room(room);
                let Err(e) = place.open(&options) else {
                    continue;
                };
                assert_eq!(e.kind(), ErrorKind::Full, "{design}: {e}");
                let text = e.to_string();
                assert!(text.contains("memtable"), "{text}");
                assert!(!text.contains("delete"), "nothing is there yet: {text}");
                let names: Vec<_> = std::fs::read_dir(&place.folder).unwrap().collect();
                assert_eq!(names.len(), 1, "{design}: more than LOCK: {names:?}");
                let left = path.metadata().map(|meta| meta.len()).ok();
                assert_eq!(left, (pool == "prepared").then_some(0), "{design}");
            }
            quota.set_room(16 << 20);
            let db = place.open(&options).unwrap();
            db.put("key", "value").unwrap();
            db.close().unwrap();
        }
    }
}

/// The same holds with only logs in the pool: deletes wait in memory behind memtables of puts
/// without space. Level sizes are fixed, and keys ascend, so that deletes pass through levels
/// without any of their keys.
#[test]
fn a_disk_below_logs_in_a_pool_is_given_back_by_single_deletes() {
    const DISK: u64 = 24 << 20;
    watch(move |watched| {
        for (value_bytes, ascend) in [(170, true), (1000, false), (8000, true), (8000, false)] {
            watched.op(format!("values of {value_bytes} bytes, {ascend}"), || {
                let folder = scratch().unwrap();
                let (place, ..) = on_a_disk_of(DISK, folder.path());
                let mut options = in_a_pool(Design::Leveled, folder.path());
                options.front.memtable_bytes = 128 << 10;
                let leveled = &mut options.bottom.leveled;
                leveled.table_bytes = 512 << 10;
                leveled.level1_bytes = 2 << 20;
                leveled.growth = 4;
                leveled.levels = 5;
                leveled.dynamic_sizes = false;
                leveled.garbage_percent = 51;
                leveled.runs_compact = 3;
                let db = place.open(&options).unwrap();
                let key = |n: u32| match ascend {
                    true => n.to_be_bytes(),
                    false => key(n),
                };
                let put = |n: u32| db.put(key(n), value(n, value_bytes));
                let count = puts_until_full(put);
                let is_deleted = |n: u32| n.wrapping_mul(0x85EB_CA6B) >> 24 < 180;
                for n in (0..count).filter(|n| is_deleted(*n)) {
                    delete_at_once(&db, key(n));
                }
                for n in count..count * 5 / 4 {
                    put_in_time(&db, n, || put(n));
                }
                let left = (0..count).filter(|n| !is_deleted(*n)).count() as u32;
                let new = count * 5 / 4 - count;
                assert_eq!(db.iter().unwrap().count() as u32, left + new);
            });
        }
    });
}

/// Returns the options of a database with a pool of 8 MiB.
fn in_a_pool(design: Design, folder: &Path) -> Options {
    let mut options = Options {
        design: Some(design),
        ..Options::default()
    };
    options.pool.path = Some(folder.join("pool"));
    options.pool.size_bytes = 8 << 20;
    options.bottom.extent_bytes = 64 << 10;
    options
}

/// Deletes a key, which a full disk must not refuse.
fn delete_at_once(db: &Db, key: [u8; 4]) {
    let deleted = watched("delete", || db.delete(key));
    assert!(deleted.is_ok(), "{key:?}: {deleted:?} {}", db.metrics());
}

/// Puts with retries, like a user whose put is refused, while space is released.
fn put_in_time(db: &Db, n: u32, put: impl Fn() -> terrace::Result<()>) {
    let taken = (0..500).any(|_| {
        let taken = watched("put", &put).is_ok();
        if !taken {
            std::thread::sleep(RETRY);
        }
        taken
    });
    assert!(taken, "put {n} is refused: {}", db.metrics());
}

/// Returns unordered keys.
fn key(n: u32) -> [u8; 4] {
    n.wrapping_mul(2_654_435_761).to_be_bytes()
}

/// A disk with two fifths live data accepts overwrites without end, though a compaction of all
/// tables does not fit, and then more single deletes than the reserve has space for, and a range
/// delete after them.
#[test]
fn a_disk_full_of_old_versions_takes_writes() {
    const DISK: u64 = 48 << 20;
    const KEYS: u32 = 9000;
    for (design, workers) in [
        (Design::Leveled, None),
        (Design::MioDbSsd, None),
        (Design::Leveled, Some(Workers::Manual)),
    ] {
        watch(move |watched| {
            watched.op(format!("{design}, {workers:?}"), || {
                let folder = scratch().unwrap();
                let (place, quota, _) = on_a_disk_of(DISK, folder.path());
                let mut options = Options {
                    design: Some(design),
                    ..Options::default()
                };
                if let Some(workers) = workers {
                    options.background.workers = workers;
                }
                let db = place.open(&options).unwrap();
                let key = |n: u32| (n.wrapping_mul(2_654_435_761) % KEYS).to_be_bytes();
                let mut most = 0;
                for n in 0..7 * KEYS {
                    most = most.max(quota.used());
                    // A put during a compaction that fills the disk may be refused for a moment.
                    watched.op("put", || {
                        while let Err(e) = db.put(key(n), value(n, 2000)) {
                            assert_eq!(e.kind(), ErrorKind::Full, "{n}: {e}");
                            std::thread::yield_now();
                        }
                    });
                }
                assert!(most > DISK / 3 * 2, "the disk was never full: {most}");
                let count = 200_000u32;
                for n in 0..count {
                    delete_at_once(&db, (KEYS + n).to_be_bytes());
                }
                let present = db.iter().unwrap().count() as u32;
                assert_eq!(present, KEYS, "absent keys were deleted");
                db.delete_range::<&[u8]>(..).unwrap();
                while let Err(e) = db.put(b"later", value(1, 1000)) {
                    assert_eq!(e.kind(), ErrorKind::Full, "{e}");
                    std::thread::yield_now();
                }
                assert_eq!(db.iter().unwrap().count(), 1);
            });
        });
    }
}

/// On a disk filled by foreign files, an opened database accepts deletes. Refused puts change no
/// file.
#[test]
fn refused_puts_leave_the_reserve_alone() {
    for (workers, design) in [
        (Workers::Manual, Design::Leveled),
        (Workers::Threads(2), Design::Leveled),
        (Workers::Threads(2), Design::MioDbSsd),
    ] {
        watch(move |watched| {
            watched.op(format!("{design}, {workers:?}"), || {
                let folder = scratch().unwrap();
                let (place, quota, fs) = on_a_disk_of(4 << 20, folder.path());
                let mut options = settings::small_of(design, Medium::Dram);
                options.background.workers = workers;
                options.pool.size_bytes = 8 << 20;
                options.front.memtable_bytes = 256 << 10;
                let db = place.open(&options).unwrap();
                db.put(b"key", value(1, 1000)).unwrap();
                db.close().unwrap();
                drop(db);
                quota.set_room(quota.used());
                let db = place.open(&options).unwrap();
                db.put(b"more", value(2, 1000)).unwrap_err();
                let before = fs.operations();
                for _ in 0..100 {
                    let refused = db.put(b"more", value(2, 1000)).unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::Full, "{refused:?}");
                }
                assert_eq!(fs.operations(), before);
                db.delete(b"key").unwrap();
            });
        });
    }
}

/// A quota can be raised while the disk reports the same free bytes as before. A compaction refused
/// by the quota then resumes.
#[test]
fn a_compaction_goes_on_after_a_quota_was_raised() {
    let folder = scratch().unwrap();
    let (place, _, fs) = on_a_disk_of(64 << 20, folder.path());
    let mut options = settings::small_of(Design::Leveled, Medium::Dram);
    options.front.memtable_bytes = 64 << 10;
    let db = place.open(&options).unwrap();
    let put_all = |from: u32| {
        for n in from..from + 200 {
            db.put((n % 200).to_be_bytes(), value(n, 1000)).unwrap();
        }
        db.drain().unwrap();
    };
    put_all(0);
    db.compact_range::<&[u8]>(..).unwrap();
    put_all(200);
    let refuses = Arc::new(AtomicBool::new(true));
    let quota = Arc::clone(&refuses);
    fs.judge(move |call| {
        let writes = call.starts_with("write") && call.contains(".sst");
        match writes && quota.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::QuotaExceeded.into()),
            false => Ok(()),
        }
    });
    let compact = || db.compact_range::<&[u8]>(..);
    for _ in 0..3 {
        assert_eq!(compact().unwrap_err().kind(), ErrorKind::Full);
    }
    refuses.store(false, Ordering::Relaxed);
    assert!((0..20).any(|_| compact().is_ok()), "no try was made");
}

/// The sizes of memtables and tables follow the size of the disk, also if it is full of value files
/// when the database is opened.
#[test]
fn sizes_of_a_full_disk_are_those_of_an_empty_one() {
    const DISK: u64 = 64 << 20;
    for design in settings::designs_with_files() {
        watch(move |watched| {
            watched.op(format!("{design}"), || {
                let folder = scratch().unwrap();
                let (place, ..) = on_a_disk_of(DISK, folder.path());
                let mut options = Options {
                    design: Some(design),
                    ..Options::default()
                };
                options.bottom.leveled.values_apart_from = Some(300);
                let sizes = |db: &Db| {
                    let Options { front, bottom, .. } = db.options().clone();
                    (front.memtable_bytes, bottom.leveled.table_bytes)
                };
                let db = place.open(&options).unwrap();
                let before = sizes(&db);
                let put = |n: u32| db.put(n.to_be_bytes(), value(n, 20_000));
                let count = puts_until_full(put);
                assert!(u64::from(count) * 20_000 > DISK / 2, "{count}");
                drop(db);
                let after = sizes(&place.open(&options).unwrap());
                let keeps = |before: u64, after: u64| after >= before * 3 / 4;
                let all = keeps(before.0, after.0) && keeps(before.1, after.1);
                assert!(all, "{design}: {before:?} {after:?}");
            });
        });
    }
}
