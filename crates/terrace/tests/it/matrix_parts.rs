//! Drains in parts: the whole container is merged with level 1 by several jobs, and nobody notices.

use std::collections::BTreeMap;
use std::path::Path;

use terrace::{Db, Design, ErrorKind, Options, Snapshot, Workers};
use terrace_media::Medium;
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::{seeds, settings};

use crate::buffer_only::{crashes_of, random_calls_of};
use crate::room::on_a_disk_of;

const ON_MEDIA: [Medium; 2] = [Medium::Dax, Medium::Mapped];

const PARTS: usize = 4;

/// The keys on level 1, about 200 in each of its tables.
const KEYS: u32 = 2000;

/// One in this many keys is in the container: tables of level 1 have keys before the first, after
/// the last and between any two of a part.
const SPARSE: u32 = 40;

fn options(parts: usize) -> Options {
    let mut options = settings::small_of(Design::MatrixKv, Medium::Dax);
    options.pool.size_bytes = 4 << 20;
    options.front.memtable_bytes = 128 << 10;
    options.buffer.matrix.columns = false;
    // Level 1 takes everything: no compaction moves its tables.
    options.buffer.matrix.flattened = true;
    options.bottom.leveled.table_bytes = 64 << 10;
    options.bottom.leveled.level1_bytes = 64 << 10;
    options.bottom.leveled.block_bytes = 1 << 10;
    options.bottom.leveled.subcompactions_max = parts;
    options
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn put(db: &Db, map: &mut Map, n: u32, value: Vec<u8>) {
    db.put(n.to_be_bytes(), &value).unwrap();
    map.insert(n.to_be_bytes().to_vec(), value);
}

/// Fills level 1.
fn fill(db: &Db, map: &mut Map) {
    for n in 0..KEYS {
        put(db, map, n, vec![n as u8; 300]);
    }
    db.drain().unwrap();
    check(db, map, "on level 1");
    let tables: u64 = db.metrics().files.iter().map(|l| l.file_count).sum();
    assert!(tables > 6, "{tables} tables");
}

/// Puts keys into the container until its drain has begun.
fn fill_container(db: &Db, map: &mut Map, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (count, before) = (KEYS / SPARSE, drains(db));
    // BOUND: the container fills.
    while !is_draining(db) {
        for _ in 0..10 {
            let n = SPARSE * rng.u32(..count) + SPARSE / 2;
            put(db, map, n, vec![rng.u8(..); 11_000]);
        }
        db.flush().unwrap();
    }
    assert_eq!(drains(db), before);
}

/// Returns whether a drain has begun. Begins it if it is due.
fn is_draining(db: &Db) -> bool {
    db.step_count();
    let levels = db.metrics().levels;
    let compactor = levels.iter().find(|level| level.name == "compactor");
    compactor.is_some_and(|level| level.table_count > 0)
}

fn all(pairs: terrace::Iter) -> Map {
    pairs.map(|pair| pair.unwrap().into_pair()).collect()
}

/// Compares everything, with iterators and with point reads.
fn check(db: &Db, expected: &Map, when: &str) {
    let found = all(db.iter().unwrap());
    let lost = expected.keys().find(|key| !found.contains_key(*key));
    assert_eq!(lost, None, "lost {when}");
    assert!(found == *expected, "{when}");
    for n in 0..KEYS {
        let key = n.to_be_bytes();
        let value = db.get(key).unwrap();
        assert_eq!(value.as_ref(), expected.get(&key[..]), "{n} {when}");
    }
}

fn drains(db: &Db) -> u64 {
    let jobs = db.metrics().jobs;
    let drains = jobs.iter().find(|job| job.kind == "drain");
    drains.map_or(0, |job| job.count)
}

/// Runs steps in random order until one drain more has ended. Returns the largest number of jobs
/// that could run at one time.
fn drain_by_steps(db: &Db, seed: u64, mut between: impl FnMut()) -> usize {
    let (before, mut side_by_side) = (drains(db), 0);
    let mut rng = fastrand::Rng::with_seed(seed ^ 77);
    while drains(db) == before {
        side_by_side = side_by_side.max(db.step_count());
        assert!(db.step(rng.usize(..)).unwrap(), "the container is drained");
        between();
    }
    assert_eq!(drains(db), before + 1, "parts are no drains");
    side_by_side
}

/// Runs steps until the drain is divided.
fn begin_parts(db: &Db) {
    // BOUND: each step does some of the work.
    while db.step_count() < PARTS {
        assert!(db.step(0).unwrap());
    }
}

fn problems(db: &Db) -> Vec<String> {
    db.verify(&mut |_| {}).unwrap().problems
}

fn table_files(folder: &Path) -> u64 {
    let names = std::fs::read_dir(folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name());
    names
        .filter(|name| name.to_string_lossy().ends_with(".sst"))
        .count() as u64
}

fn named(db: &Db) -> u64 {
    let levels = db.metrics().files;
    levels.iter().map(|level| level.file_count).sum()
}

/// Tables of level 1 that reach into two parts, and have keys between those that are drained, lose
/// none: in any order of steps, and with threads.
#[test]
fn tables_that_straddle_parts_lose_no_key() {
    for seed in seeds::seeds(4) {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options(PARTS)).unwrap();
        let mut expected = Map::new();
        fill(&db, &mut expected);
        fill_container(&db, &mut expected, seed);
        let side_by_side = drain_by_steps(&db, seed, || {
            assert_eq!(db.iter().unwrap().count(), KEYS as usize);
        });
        assert!(side_by_side >= PARTS, "{side_by_side} jobs, seed {seed}");
        check(&db, &expected, &format!("after the drain, seed {seed}"));
        assert_eq!(problems(&db), Vec::<String>::new());
        assert_eq!(table_files(folder.path()), named(&db));
        db.close().unwrap();
        let db = Db::open(folder.path(), options(PARTS)).unwrap();
        check(&db, &expected, &format!("reopened, seed {seed}"));
    }
    let folder = scratch().unwrap();
    let mut options = options(PARTS);
    options.background.workers = Workers::Threads(3);
    let db = Db::open(folder.path(), options).unwrap();
    let mut expected = Map::new();
    // The first drain finds level 1 empty.
    for round in 0..4 {
        fill(&db, &mut expected);
        for n in (0..KEYS).step_by(SPARSE as usize) {
            put(&db, &mut expected, n, vec![round as u8; 11_000]);
        }
        db.drain().unwrap();
        check(&db, &expected, &format!("with threads, round {round}"));
    }
    assert_eq!(problems(&db), Vec::<String>::new());
}

/// Range deletes over several parts, and versions that only snapshots read, are after a drain in
/// parts as after one on one thread.
#[test]
fn range_deletes_and_old_versions_cross_the_cuts() {
    for seed in seeds::seeds(4) {
        let mut outcomes = Vec::new();
        for parts in [1, 3, 16] {
            let folder = scratch().unwrap();
            let db = Db::open(folder.path(), options(parts)).unwrap();
            let other = db.create_keyspace("other").unwrap();
            for n in 0..200u32 {
                other.put(n.to_be_bytes(), [n as u8; 200]).unwrap();
            }
            let mut map = Map::new();
            fill(&db, &mut map);
            let mut moments: Vec<(Snapshot, Map)> = Vec::new();
            let remove = |map: &mut Map, from: u32, to: u32| {
                let keys = from.to_be_bytes()..to.to_be_bytes();
                db.delete_range(keys.clone()).unwrap();
                map.retain(|key, _| !keys.contains(&<[u8; 4]>::try_from(&key[..]).unwrap()));
            };
            let mut rng = fastrand::Rng::with_seed(seed);
            for (from, to) in [(150, 1700), (600, 900), (0, 40)] {
                moments.push((db.snapshot().unwrap(), map.clone()));
                for _ in 0..70 {
                    let n = SPARSE * rng.u32(..KEYS / SPARSE);
                    put(&db, &mut map, n, vec![rng.u8(..); 11_000]);
                    // Many versions of one key, more than any part has of others.
                    put(&db, &mut map, 1000, vec![rng.u8(..); 500]);
                }
                remove(&mut map, from, to);
            }
            other.delete_range(50u32.to_be_bytes()..).unwrap();
            fill_container(&db, &mut map, seed);
            let same = |when: &str| {
                check(&db, &map, when);
                for (at, (snapshot, map)) in moments.iter().enumerate() {
                    assert!(all(snapshot.iter().unwrap()) == *map, "{at} {when}");
                }
                assert_eq!(other.iter().unwrap().count(), 50, "{when}");
            };
            same("before the drain");
            let mut steps = 0;
            let side_by_side = drain_by_steps(&db, seed, || {
                steps += 1;
                if steps % 16 == 0 {
                    same("between two steps");
                }
            });
            assert!(side_by_side >= parts.min(PARTS), "{side_by_side} jobs");
            same("after the drain");
            db.drain().unwrap();
            // BOUND: each step does some of the work.
            while db.step(0).unwrap() {}
            same("at rest");
            let files = db.metrics().files;
            let entries: u64 = files.iter().map(|level| level.entry_count).sum();
            assert_eq!(problems(&db), Vec::<String>::new());
            outcomes.push(entries);
            drop(moments);
            db.drain().unwrap();
            check(&db, &map, "without snapshots");
            db.close().unwrap();
            let db = Db::open(folder.path(), options(parts)).unwrap();
            check(&db, &map, "reopened");
        }
        assert!(
            outcomes.windows(2).all(|two| two[0] == two[1]),
            "{outcomes:?}"
        );
    }
}

/// A close in the middle of a drain in parts, and a crash there, leave what was before it: the
/// drain restarts, and no file of it is left.
#[test]
fn a_drain_in_parts_can_be_given_up_anywhere() {
    for seed in seeds::seeds(8) {
        for close in [true, false] {
            let folder = scratch().unwrap();
            let mut expected = Map::new();
            let db = Db::open(folder.path(), options(PARTS)).unwrap();
            fill(&db, &mut expected);
            fill_container(&db, &mut expected, seed);
            let before = (drains(&db), named(&db));
            let mut rng = fastrand::Rng::with_seed(seed);
            begin_parts(&db);
            for _ in 0..rng.usize(..12) {
                assert!(db.step(rng.usize(..)).unwrap());
            }
            assert_eq!((drains(&db), named(&db)), before);
            match close {
                true => db.close().unwrap(),
                false => std::mem::forget(db),
            }
            let again = match close {
                true => folder.path().to_owned(),
                // The lock of the directory is held: the crash leaves a copy.
                false => {
                    let copy = folder.path().join("copy");
                    std::fs::create_dir(&copy).unwrap();
                    for entry in std::fs::read_dir(folder.path()).unwrap() {
                        let entry = entry.unwrap();
                        if entry.file_type().unwrap().is_file() {
                            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
                        }
                    }
                    copy
                }
            };
            let db = Db::open(&again, options(PARTS)).unwrap();
            assert_eq!(table_files(&again), named(&db), "close: {close}");
            check(&db, &expected, &format!("close: {close}"));
            db.drain().unwrap();
            check(&db, &expected, &format!("drained, close: {close}"));
            assert_eq!(problems(&db), Vec::<String>::new());
        }
    }
}

/// After random calls, with manual steps and with threads, the store equals an ordered map.
#[test]
fn random_calls_agree_with_a_map() {
    random_calls_of(Design::MatrixKv, 15, &ON_MEDIA, 3, |options| {
        options.buffer.matrix.columns = false;
    });
}

/// After a crash at any point of short scripts, inside drains in parts too, nothing acknowledged is
/// lost.
#[test]
fn crashes_lose_nothing() {
    crashes_of(Design::MatrixKv, &ON_MEDIA, |options| {
        options.buffer.matrix.columns = false;
    });
}

/// A disk that becomes full while parts write refuses all of them. The drain is put back, nothing
/// is lost, no file of the parts takes space, and it succeeds once there is space.
#[test]
fn a_full_disk_puts_the_drain_back() {
    for workers in [Workers::Manual, Workers::Threads(3)] {
        let folder = scratch().unwrap();
        let (place, quota, _) = on_a_disk_of(64 << 20, folder.path());
        let mut options = options(PARTS);
        options.background.workers = workers;
        let db = open(&place, &options);
        let mut expected = Map::new();
        fill(&db, &mut expected);
        if workers == Workers::Manual {
            fill_container(&db, &mut expected, 5);
            begin_parts(&db);
            (0..8).for_each(|n| assert!(db.step(n).unwrap()));
            assert!(table_files(&folder.path().join("db")) > named(&db));
            quota.set_room(0);
            // BOUND: as above; each part is refused.
            while db.step_count() > 0 && table_files(&folder.path().join("db")) > named(&db) {
                db.step(0).unwrap();
            }
        } else {
            quota.set_room(200 << 10);
            for n in 0..150u32 {
                put(&db, &mut expected, n * 13, vec![n as u8; 11_000]);
            }
        }
        let refused = db.drain();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Full, "{workers:?}");
        check(&db, &expected, "on the full disk");
        quota.set_room(64 << 20);
        db.drain().unwrap();
        let levels = db.metrics().levels;
        let left: u64 = levels.iter().map(|level| level.entry_count).sum();
        assert_eq!(left, 0, "{workers:?}");
        check(&db, &expected, "with space");
        assert_eq!(table_files(&folder.path().join("db")), named(&db));
        assert_eq!(problems(&db), Vec::<String>::new());
    }
}

fn open(place: &Place, options: &Options) -> Db {
    place.open(options).unwrap()
}
