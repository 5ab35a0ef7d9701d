//! Exhausted space: a database whose manifest, disk or pool is out of space refuses writes as
//! `Full`, reopens, and gets all of its space back when its data is deleted.

use std::sync::Arc;

use terrace::{Db, Design, Durability, ErrorKind, Options, Workers, WriteBatch};
use terrace_media::{FaultFs, Medium, OsFs, QuotaFs};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;
use terrace_testkit::watchdog::{watch, watched};

/// Returns an incompressible value.
pub(crate) fn value(n: u32, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(u64::from(n));
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

/// Returns a key of up to the maximum length.
fn long_key(n: u32) -> Vec<u8> {
    let mut key = n.wrapping_mul(2_654_435_761).to_be_bytes().to_vec();
    key.resize([70, 9000, 30_000, 64 << 10][n as usize % 4], b'k');
    key
}

/// Puts pairs with long keys until one does not fit. Returns the number of pairs.
fn fill_with_long_keys(db: &Db, from: u32) -> u32 {
    for n in from..from + 3000 {
        if let Err(e) = db.put(long_key(n), b"value") {
            assert_eq!(e.kind(), ErrorKind::Full, "put {n}: {e:?}");
            return n - from;
        }
    }
    panic!("the keys of 3000 pairs fit the manifest of a pool of 2 MiB");
}

fn manifest_fills(workers: Workers) {
    let folder = scratch().unwrap();
    let mut options: Options = settings::small_of(Design::Leveled, Medium::Mapped);
    options.pool.size_bytes = 2_300_000;
    options.background.workers = workers;
    let mut db = Db::open(folder.path(), options.clone()).unwrap();
    for round in 0..4u32 {
        let count = fill_with_long_keys(&db, round * 10_000);
        assert!(count > 0, "nothing fits in round {round}");
        let last = long_key(round * 10_000 + count - 1);
        assert!(db.get(&last).unwrap().is_some());
        if round % 2 == 1 {
            let closed = db.close();
            assert!(
                closed
                    .as_ref()
                    .err()
                    .is_none_or(|e| e.kind() == ErrorKind::Full),
                "{closed:?}"
            );
            drop(db);
            db = Db::open(folder.path(), options.clone()).unwrap();
            assert!(db.get(&last).unwrap().is_some());
        }
        db.delete_range::<&[u8]>(..).unwrap();
        db.drain().unwrap();
        assert_eq!(db.iter().unwrap().count(), 0);
        assert_eq!(
            db.verify(&mut |_| {}).unwrap().problems,
            Vec::<String>::new()
        );
    }
}

/// Tables that a range delete covers are removed while it is only in a log, before anything is
/// written for it. It remains a range delete if the process ends there.
#[test]
fn what_a_range_delete_covers_goes_at_once() {
    for (design, medium) in [
        (Design::Leveled, Medium::Dram),
        (Design::Leveled, Medium::Mapped),
        (Design::MioDbSsd, Medium::Dram),
        (Design::MioDbSsd, Medium::Dax),
    ] {
        let folder = scratch().unwrap();
        let options = settings::small_of(design, medium);
        let db = Db::open(folder.path(), options.clone()).unwrap();
        for n in 0..200u32 {
            db.put(n.to_be_bytes(), value(n, 500)).unwrap();
        }
        db.drain().unwrap();
        db.compact_range::<&[u8]>(..).unwrap();
        let bytes = |db: &Db| {
            db.metrics()
                .files
                .iter()
                .map(|level| level.bytes)
                .sum::<u64>()
        };
        let before = bytes(&db);
        assert!(before > 80_000, "{before}");
        let held = db.snapshot().unwrap();
        db.delete_range(20u32.to_be_bytes()..).unwrap();
        while db.step(0).unwrap() {}
        assert_eq!(bytes(&db), before, "a snapshot reads all of it");
        drop(held);
        while db.step(0).unwrap() {}
        let after = bytes(&db);
        assert!(
            after < before / 4,
            "{design} on {medium}: {after} of {before}"
        );
        assert_eq!(db.iter().unwrap().count(), 20);
        // Copies the files as a killed process leaves them.
        let copy = scratch().unwrap();
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
        let db = Db::open(copy.path(), options).unwrap();
        assert_eq!(db.iter().unwrap().count(), 20, "{design} on {medium}");
        assert_eq!(
            db.verify(&mut |_| {}).unwrap().problems,
            Vec::<String>::new()
        );
    }
}

/// A pool without space for a larger manifest refuses puts, reopens, and accepts puts after
/// deletes.
#[test]
fn a_manifest_that_cannot_grow_stops_nothing() {
    for workers in [Workers::Manual, Workers::Threads(2)] {
        watch(move |watched| watched.op(format!("{workers:?}"), || manifest_fills(workers)));
    }
}

/// Puts pairs of 1 kB until the disk has no space for one. Returns their number.
pub(crate) fn fill(db: &Db) -> u32 {
    for n in 0..20_000u32 {
        if let Err(e) = watched("put", || db.put(n.to_be_bytes(), value(n, 1000))) {
            assert_eq!(e.kind(), ErrorKind::Full, "put {n}: {e:?}");
            return n;
        }
    }
    panic!("a disk of 2 MiB never fills");
}

/// Puts one pair after another until one is refused. Returns their number. Each put must return.
pub(crate) fn puts_until_full(put: impl Fn(u32) -> terrace::Result<()>) -> u32 {
    let is_refused = |n: &u32| watched("put", || put(*n)).is_err();
    (0..).find(is_refused).unwrap()
}

/// Returns a place for a database in the directory `db` on a disk of `bytes`, with counted
/// operations.
pub(crate) fn on_a_disk_of(bytes: u64, folder: &std::path::Path) -> (Place, QuotaFs, FaultFs) {
    let quota = QuotaFs::new(Arc::new(OsFs), bytes);
    let fs = FaultFs::new(Arc::new(quota.clone()));
    let place = Place {
        fs: Some(Arc::new(fs.clone())),
        ..Place::folder(folder.join("db"))
    };
    (place, quota, fs)
}

/// Passes a database with manual workers on a disk of 2 MiB to `then`, with a function that reopens
/// it.
fn on_a_small_disk(then: fn(Db, &QuotaFs, &dyn Fn() -> Db)) {
    for design in settings::designs_with_files() {
        watch(move |watched| {
            watched.op(format!("{design}"), || {
                let folder = scratch().unwrap();
                let (place, fs, _) = on_a_disk_of(2 << 20, folder.path());
                let mut options = settings::small_of(design, Medium::Dram);
                options.front.memtable_bytes = 64 << 10;
                options.front.log_bytes_max = 1 << 20;
                options.bottom.leveled.table_bytes = 64 << 10;
                options.bottom.leveled.level1_bytes = 128 << 10;
                let open = || place.open(&options).unwrap();
                then(open(), &fs, &open);
            });
        });
    }
}

/// Without threads a put without space for the next log is refused once nothing can release space.
#[test]
fn manual_workers_refuse_a_put_without_room_for_a_log() {
    on_a_small_disk(|db, fs, _| {
        db.put(b"first", value(1, 1000)).unwrap();
        fs.set_room(fs.used());
        let count = fill(&db);
        assert!(count > 0);
        let last = db.get((count - 1).to_be_bytes()).unwrap();
        assert_eq!(last, Some(value(count - 1, 1000)));
        fs.set_room(2 << 20);
        db.put(b"second", value(2, 1000)).unwrap();
    });
}

/// A compaction that waits for space does not keep files of replaced tables.
#[test]
fn a_compaction_that_waits_for_room_holds_none() {
    on_a_small_disk(|db, _, open| {
        let count = fill(&db);
        drop(db);
        let mut db = open();
        for cycle in 0..4 {
            let deleted = db.delete_range::<&[u8]>(..);
            deleted.unwrap_or_else(|e| panic!("cycle {cycle}: {e:?}"));
            // Without threads, jobs that were refused space retry at the next call.
            returns(db.drain(), "drain");
            db.drain().unwrap();
            assert_eq!(db.iter().unwrap().count(), 0);
            let fit = fill(&db);
            assert!(fit * 10 >= count * 7, "cycle {cycle}: {fit} fit of {count}");
            if cycle == 1 {
                drop(db);
                db = open();
            }
        }
    });
}

/// A close without space on the disk keeps the database open if entries are only in memory. A close
/// after space is released keeps them. If logs contain all entries, a full disk does not prevent a
/// close.
#[test]
fn a_close_without_room_loses_no_volatile_entry() {
    on_a_small_disk(|db, fs, open| {
        db.put(b"key", b"older").unwrap();
        let mut batch = WriteBatch::new();
        batch.put(b"key", b"newer");
        for n in 0..20u32 {
            batch.put(n.to_be_bytes(), value(n, 1000));
        }
        db.write(batch, Durability::Volatile).unwrap();
        let is_there = |db: &Db| {
            assert_eq!(db.get(b"key").unwrap(), Some(b"newer".to_vec()));
            for n in 0..20u32 {
                let found = db.get(n.to_be_bytes()).unwrap();
                assert_eq!(found, Some(value(n, 1000)), "{n}");
            }
        };
        fs.set_room(fs.used());
        let refused = match db.close() {
            Err(e) => e,
            Ok(()) => {
                // A small table with its values fits the reserve.
                assert_eq!(db.options().design_of_new(), Design::FlatLsm);
                drop(db);
                return is_there(&open());
            }
        };
        assert_eq!(refused.kind(), ErrorKind::Full, "{refused:?}");
        assert!(refused.to_string().contains("stays open"), "{refused}");
        assert_eq!(db.get(b"key").unwrap(), Some(b"newer".to_vec()));
        fs.set_room(2 << 20);
        db.put(b"later", b"value").unwrap();
        db.close().unwrap();
        drop(db);

        let db = open();
        is_there(&db);
        db.put(b"key", b"logged").unwrap();
        fs.set_room(fs.used());
        db.close().unwrap();
        drop(db);
        fs.set_room(2 << 20);
        assert_eq!(open().get(b"key").unwrap(), Some(b"logged".to_vec()));
    });
}

/// Jobs refused by a full disk are reported with the reason, while they wait and afterwards.
#[test]
fn refused_jobs_are_reported() {
    on_a_small_disk(|db, fs, _| {
        assert_eq!(db.metrics().retries, Default::default());
        fill(&db);
        let retries = db.metrics().retries;
        let last = retries.last.as_deref().unwrap_or_default();
        assert!(
            retries.count > 0 && retries.waiting_count > 0,
            "{retries:?}"
        );
        // The last one was refused by the disk, or a log by what is reserved on it.
        let reasons = ["no storage space", "the remaining disk space is reserved"];
        assert!(
            reasons.iter().any(|reason| last.contains(reason)),
            "{retries:?}"
        );
        assert!(db.metrics().to_string().contains(last));
        fs.set_room(64 << 20);
        db.drain().unwrap();
        let after = db.metrics().retries;
        assert_eq!(after.waiting_count, 0, "{after:?}");
        assert!(after.count >= retries.count && after.last.is_some());
    });
}

/// Returns the bytes of the files of a database, from the system's names and lengths.
fn folder_bytes(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().metadata().map_or(0, |m| m.len()))
        .sum()
}

/// Expects `Ok`, or a refusal because of a full disk.
fn returns(done: terrace::Result<()>, what: &str) {
    if let Err(e) = done {
        assert_eq!(e.kind(), ErrorKind::Full, "{what}: {e:?}");
    }
}

/// Repeatedly fills a disk of 3 MiB and deletes everything, sometimes reopening in between.
fn fill_and_delete(design: Design, workers: Workers, cycles: u32) {
    let folder = scratch().unwrap();
    let fs = QuotaFs::new(Arc::new(OsFs), 3 << 20);
    let at = folder.path().join("db");
    let place = Place {
        fs: Some(Arc::new(fs.clone())),
        ..Place::folder(&at)
    };
    let mut options = settings::small_of(design, Medium::Dram);
    options.front.memtable_bytes = 64 << 10;
    options.front.log_bytes_max = 1 << 20;
    options.bottom.leveled.table_bytes = 64 << 10;
    options.bottom.leveled.level1_bytes = 128 << 10;
    options.background.workers = workers;
    let mut db = place.open(&options).unwrap();
    for cycle in 0..cycles {
        let name = format!("{design} {workers:?}, cycle {cycle}");
        let count = fill(&db);
        assert!(count > 400, "{name}: {count} fit");
        returns(db.flush(), "flush");
        returns(db.compact_range::<&[u8]>(..), "compact_range");
        if cycle % 3 == 1 {
            drop(db);
            let mut to_read = options.clone();
            to_read.read_only = true;
            let read = place.open(&to_read).unwrap();
            assert!(read.get((count - 1).to_be_bytes()).unwrap().is_some());
            drop(read);
            db = place.open(&options).unwrap();
            let mut puts =
                (1 << 20..(1 << 20) + 4000).map(|n| db.put(u32::to_be_bytes(n), value(n, 1000)));
            assert!(
                puts.any(|put| put.is_err()),
                "{name}: puts take the reserve"
            );
        }
        let last = db.get((count - 1).to_be_bytes()).unwrap();
        assert_eq!(last, Some(value(count - 1, 1000)), "{name}");
        db.delete_range::<&[u8]>(..).unwrap();
        assert_eq!(db.iter().unwrap().count(), 0, "{name}");
        returns(db.drain(), "drain");
        if cycle % 3 == 2 {
            returns(db.close(), "close");
            drop(db);
            db = place.open(&options).unwrap();
        }
        db.drain().unwrap();
        db.compact_range::<&[u8]>(..).unwrap();
        let bytes = folder_bytes(&at);
        let tables: u64 = db.metrics().files.iter().map(|level| level.bytes).sum();
        assert!(tables < 100_000, "{name}: {tables} left in tables");
        assert!(bytes < 1_500_000, "{name}: {bytes} left");
    }
}

/// A disk filled by the database accepts a range delete, even right after a reopen, refuses puts,
/// and gets its space back then.
#[test]
fn a_disk_that_is_full_gets_its_room_back() {
    for design in settings::designs_with_files() {
        for workers in [Workers::Manual, Workers::Auto] {
            watch(move |watched| {
                watched.op(format!("{design} {workers:?}"), || {
                    fill_and_delete(design, workers, 5);
                });
            });
        }
    }
}

/// In a full pool, a range delete of everything lets puts continue, although it is in the memtable
/// that those puts cannot replace.
#[test]
fn a_range_delete_empties_a_full_pool() {
    for design in settings::designs_in_pool() {
        for workers in [Workers::Manual, Workers::Threads(1)] {
            watch(move |watched| {
                let mut options = settings::small_of(design, Medium::Dax);
                options.background.workers = workers;
                let folder = scratch().unwrap();
                let db = Db::open(folder.path(), options).unwrap();
                for cycle in 0..3 {
                    let what = format!("{design}, {workers:?}, cycle {cycle}");
                    let mut count = 0u32;
                    while watched
                        .op(&what, || db.put(count.to_be_bytes(), value(count, 700)))
                        .is_ok()
                        && count < 5000
                    {
                        count += 1;
                    }
                    assert!(count > 500, "{what}: {count} fit");
                    db.delete_range::<&[u8]>(..).unwrap();
                    for n in 0..200u32 {
                        let put = watched.op(&what, || db.put(n.to_be_bytes(), value(n, 700)));
                        put.unwrap_or_else(|e| panic!("{what}: put {n} of {count}: {e:?}"));
                    }
                }
            });
        }
    }
}

/// Tables with keys of several keyspaces are removed when each of these is deleted as a whole,
/// without any write.
#[test]
fn a_full_disk_with_keyspaces_gets_its_room_back() {
    on_a_small_disk(|db, fs, _| {
        let spaces: Vec<_> = (0..4)
            .map(|n| db.create_keyspace(&format!("space {n}")).unwrap())
            .collect();
        let put = |n: u32| {
            let mut batch = WriteBatch::new();
            for (at, space) in (0..).zip(&spaces) {
                batch.put_in(space, n.to_be_bytes(), value(4 * n + at, 500));
            }
            db.write(batch, Durability::Buffered)
        };
        let mut first = 0;
        for cycle in 0..3 {
            let count = puts_until_full(put);
            if cycle == 0 {
                first = count;
            }
            assert!(count * 2 > first, "cycle {cycle}: {count} of {first} fit");
            for space in &spaces {
                space
                    .delete_range_with::<&[u8]>(.., Durability::Sync)
                    .unwrap();
            }
            let _ = (db.drain(), db.drain());
            let used = fs.used();
            assert!(used < 1_300_000, "cycle {cycle}: {used} bytes are left");
        }
    });
}

/// A pool that puts and flushes have filled completely still accepts deletes.
#[test]
fn a_full_pool_takes_deletes() {
    for (design, size) in [(Design::MioDb, 2432 << 10), (Design::MioDb, 4 << 20)] {
        let mut options = settings::small_of(design, Medium::Dax);
        (options.pool.size_bytes, options.front.memtable_bytes) = (size, 160 << 10);
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options).unwrap();
        let mut rng = fastrand::Rng::with_seed(size);
        let mut refused = 0;
        for turn in 0..20_000u32 {
            let (key, len) = (rng.u32(..4000), rng.usize(..40_000));
            refused += u32::from(db.put(key.to_be_bytes(), value(turn, len)).is_err());
            if rng.u8(..4) == 0 {
                let _ = db.flush();
            }
            if refused > 30 {
                break;
            }
        }
        assert!(refused > 30, "{size}");
        for n in 0..4000u32 {
            let deleted = db.delete(n.to_be_bytes());
            deleted.unwrap_or_else(|e| panic!("{design}, {size}: delete {n}: {e:?}"));
        }
        assert_eq!(db.iter().unwrap().count(), 0);
        db.put("later", value(1, 30_000)).unwrap();
    }
}

/// A disk filled by one keyspace gets its space back when that is dropped, and the drop is
/// accepted.
#[test]
fn a_keyspace_can_be_dropped_on_a_full_disk() {
    on_a_small_disk(|db, _, _| {
        let space = db.create_keyspace("large").unwrap();
        let put = |n: u32| space.put(n.to_be_bytes(), value(n, 1000));
        let count = puts_until_full(put);
        assert!(count > 300, "{count} fit");
        assert!(db.drop_keyspace("large").unwrap());
        for n in 0..count / 2 {
            // BOUND: a few jobs release space.
            let put = (0..400).find_map(|_| match db.put(n.to_be_bytes(), value(n, 1000)) {
                Ok(()) => Some(()),
                Err(_) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    None
                }
            });
            assert!(put.is_some(), "put {n} of {count}");
        }
    });
}
