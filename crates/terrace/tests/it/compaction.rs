//! Compactions of table files: split by key ranges, of ranges given by users, and rate-limited.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrace::{Db, Design, Metrics, Options, Snapshot, Workers};
use terrace_media::{FaultFs, Medium, OsFs};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::{seeds, settings};

/// The number of runs that the tests put on level 0. The last one makes a compaction due.
const RUNS: u8 = 5;

fn options(parts: usize) -> Options {
    let mut options = settings::small_of(Design::Leveled, Medium::Dax);
    options.pool.size_bytes = 4 << 20;
    options.front.memtable_bytes = 128 << 10;
    options.bottom.leveled.subcompactions_max = parts;
    options.bottom.leveled.runs_compact = usize::from(RUNS);
    // Level 0 is compacted only because of the number of its runs.
    options.bottom.leveled.garbage_percent = 1000;
    options
}

/// Adds a low limit on the rate, and a level 0 that takes all runs of a test.
fn limited(mut options: Options) -> Options {
    options.background.workers = Workers::Threads(1);
    options.bottom.leveled.runs_compact = 64;
    options.bottom.leveled.runs_slow = 64;
    options.bottom.leveled.runs_stop = 65;
    options.bottom.leveled.write_rate_max = Some(64 << 10);
    options
}

/// All pairs, of the newest state and of a snapshot.
type Content = (Vec<(Vec<u8>, Vec<u8>)>, Vec<(Vec<u8>, Vec<u8>)>);

fn content(db: &Db, snapshot: &Snapshot) -> Content {
    let pairs = |iter: terrace::Iter| iter.map(|pair| pair.unwrap().into_pair()).collect();
    (pairs(db.iter().unwrap()), pairs(snapshot.iter().unwrap()))
}

/// Makes runs on level 0, with overwritten and deleted keys, and versions that only a snapshot
/// reads.
fn runs(db: &Db, seed: u64) -> Snapshot {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut snapshot = None;
    for round in 0..RUNS {
        for _ in 0..120 {
            let key = format!("{:04}", rng.u32(0..400));
            match rng.u8(0..5) {
                0 => db.delete(key).unwrap(),
                _ => db.put(key, vec![round; rng.usize(0..200)]).unwrap(),
            }
        }
        if round == 2 {
            snapshot = Some(db.snapshot().unwrap());
        }
        db.flush().unwrap();
    }
    snapshot.unwrap()
}

fn jobs(metrics: &Metrics) -> u64 {
    let mut jobs = metrics.jobs.iter();
    jobs.find(|job| job.kind == "compact")
        .map_or(0, |job| job.count)
}

fn entries(metrics: &Metrics) -> (u64, u64) {
    let levels = &metrics.files;
    (
        levels.iter().map(|level| level.entry_count).sum(),
        levels.iter().map(|level| level.tombstone_count).sum(),
    )
}

fn named(db: &Db) -> u64 {
    let levels = db.metrics().files;
    levels.iter().map(|level| level.file_count).sum()
}

fn table_files(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder).unwrap();
    names
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().ends_with(".sst")
        })
        .count()
}

/// A split compaction leaves the same as an unsplit one: the same entries, including tombstones and
/// old versions, in any order of the steps of its parts. Readers see everything between any two
/// steps.
#[test]
fn parts_leave_what_one_compaction_leaves() {
    for seed in seeds::seeds(12) {
        let mut outcomes = Vec::new();
        for parts in [1, 3, 16] {
            let folder = scratch().unwrap();
            let db = Db::open(folder.path(), options(parts)).unwrap();
            let snapshot = runs(&db, seed);
            let before = content(&db, &snapshot);
            let level0 = |db: &Db| db.metrics().files.iter().any(|level| level.level == 0);
            let mut rng = fastrand::Rng::with_seed(seed ^ 77);
            let mut side_by_side = 0;
            while level0(&db) {
                side_by_side = side_by_side.max(db.step_count());
                assert!(db.step(rng.usize(..)).unwrap(), "level 0 is compacted");
                assert_eq!(content(&db, &snapshot), before, "{parts} parts");
            }
            assert_eq!(side_by_side > 1, parts > 1, "{parts} parts");
            outcomes.push((before, entries(&db.metrics())));
            assert_eq!(
                db.verify(&mut |_| {}).unwrap().problems,
                Vec::<String>::new()
            );
            assert_eq!(table_files(folder.path()) as u64, named(&db));
        }
        assert!(
            outcomes.windows(2).all(|two| two[0] == two[1]),
            "seed {seed}"
        );
    }
}

/// A close in the middle of a split compaction leaves no file of it, and a crash leaves files that
/// the next open removes. In both cases nothing is missing and the compaction restarts.
#[test]
fn a_compaction_in_parts_can_be_given_up_anywhere() {
    for seed in seeds::seeds(6) {
        for close in [true, false] {
            let folder = scratch().unwrap();
            let mut rng = fastrand::Rng::with_seed(seed);
            let db = Db::open(folder.path(), options(6)).unwrap();
            let snapshot = runs(&db, seed);
            let (before, _) = content(&db, &snapshot);
            drop(snapshot);
            for _ in 0..rng.usize(2..30) {
                db.step(rng.usize(..)).unwrap();
            }
            if close {
                db.close().unwrap();
                drop(db);
                // Exactly the files in the manifest exist.
                let names = table_files(folder.path());
                let db = Db::open(folder.path(), options(1)).unwrap();
                assert_eq!(names as u64, named(&db), "files are left by a close");
            } else {
                // Copies the files as a process crash leaves them.
                let copy = scratch().unwrap();
                for entry in std::fs::read_dir(folder.path()).unwrap() {
                    let path = entry.unwrap().path();
                    std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
                }
                let db = Db::open(copy.path(), options(6)).unwrap();
                assert_eq!(table_files(copy.path()) as u64, named(&db));
                db.drain().unwrap();
                let after: Vec<_> = db.iter().unwrap().map(|p| p.unwrap().into_pair()).collect();
                assert_eq!(after, before);
                continue;
            }
            let db = Db::open(folder.path(), options(6)).unwrap();
            db.drain().unwrap();
            let after: Vec<_> = db.iter().unwrap().map(|p| p.unwrap().into_pair()).collect();
            assert_eq!(after, before);
        }
    }
}

/// If the disk has no space for a split compaction, all of its parts release their space, including
/// finished ones. Once there is space, it continues.
#[test]
fn parts_give_room_back_on_a_full_disk() {
    for seed in seeds::seeds(6) {
        let folder = scratch().unwrap();
        let fs = FaultFs::new(Arc::new(OsFs));
        let mut place = Place::folder(folder.path());
        place.fs = Some(Arc::new(fs.clone()));
        let db = place.open(&options(6)).unwrap();
        let snapshot = runs(&db, seed);
        let before = content(&db, &snapshot);
        let files = named(&db);
        let mut rng = fastrand::Rng::with_seed(seed);
        // Steps until some parts are finished, or nearly.
        for _ in 0..rng.usize(3..40) {
            if db.metrics().files.iter().all(|level| level.level > 0) {
                break;
            }
            db.step(rng.usize(..)).unwrap();
        }
        let done = db.metrics().files.iter().all(|level| level.level > 0);
        fs.fill_up(true);
        while db.step(rng.usize(..)).unwrap() {}
        if !done {
            assert_eq!(table_files(folder.path()) as u64, files, "seed {seed}");
        }
        assert_eq!(content(&db, &snapshot), before);
        fs.fill_up(false);
        db.drain().unwrap();
        assert_eq!(table_files(folder.path()) as u64, named(&db));
        assert_eq!(content(&db, &snapshot), before);
    }
}

/// With threads of the store, parts run on several of them.
#[test]
fn parts_run_on_threads() {
    let folder = scratch().unwrap();
    let mut options = options(8);
    options.background.workers = Workers::Threads(3);
    let db = Db::open(folder.path(), options).unwrap();
    for round in 0..4 {
        let snapshot = runs(&db, round);
        let before = content(&db, &snapshot);
        db.drain().unwrap();
        assert_eq!(content(&db, &snapshot), before);
    }
    assert!(jobs(&db.metrics()) > 8, "{}", db.metrics());
    assert_eq!(
        db.verify(&mut |_| {}).unwrap().problems,
        Vec::<String>::new()
    );
}

/// Makes a tree with entries on several levels, in two keyspaces, some of them deleted.
fn tree(design: Design, dynamic: bool, folder: &Path) -> Db {
    let mut options = settings::small_of(design, Medium::Dax);
    options.pool.size_bytes = 4 << 20;
    options.bottom.leveled.dynamic_sizes = dynamic;
    let db = Db::open(folder, options).unwrap();
    let other = db.create_keyspace("other").unwrap();
    for round in 0..6u8 {
        for n in 0..400u32 {
            let key = format!("{:05}", (n * 7 + u32::from(round) * 13) % 900);
            match n % 4 {
                0 if round > 2 => db.delete(&key).unwrap(),
                1 => other.put(&key, vec![round; 60]).unwrap(),
                _ => db.put(&key, vec![round; 90]).unwrap(),
            }
        }
        while db.step(0).unwrap() {}
    }
    db
}

fn pairs(iter: terrace::Iter) -> Vec<(Vec<u8>, Vec<u8>)> {
    iter.map(|pair| pair.unwrap().into_pair()).collect()
}

/// The entries of the range end on the deepest level without tombstones, and reads return the same
/// as before. If the range covers everything, one level remains.
#[test]
fn a_range_goes_as_deep_as_it_can() {
    for design in settings::designs_with_files() {
        for dynamic in [true, false] {
            let folder = scratch().unwrap();
            let db = tree(design, dynamic, folder.path());
            let other = db.create_keyspace("other").unwrap();
            let read = || (pairs(db.iter().unwrap()), pairs(other.iter().unwrap()));
            let before = read();
            db.compact_range("00200".."00400").unwrap();
            assert_eq!(read(), before);
            other.compact_range("00300"..="00500").unwrap();
            assert_eq!(read(), before);
            // An empty range, and one whose end is before its start.
            db.compact_range("zzz".."zzz").unwrap();
            db.compact_range("z".."a").unwrap();
            db.compact_range::<&str>(..).unwrap();
            other.compact_range::<&str>(..).unwrap();
            let metrics = db.metrics();
            let tombstones: u64 = metrics.files.iter().map(|l| l.tombstone_count).sum();
            // The system keyspace, with the names of the others, has no tombstones here.
            assert_eq!(tombstones, 0, "{metrics}");
            let holding = metrics.files.iter().filter(|l| l.entry_count > 10).count();
            assert_eq!(holding, 1, "{metrics}");
            let entries: u64 = metrics.files.iter().map(|l| l.entry_count).sum();
            let live = (before.0.len() + before.1.len()) as u64;
            assert!(
                (live..live + 5).contains(&entries),
                "{live} pairs: {metrics}"
            );
            assert_eq!(metrics.range_compaction_count, 5);
            assert_eq!(read(), before);
            assert_eq!(table_files(folder.path()) as u64, named(&db));
            assert_eq!(
                db.verify(&mut |_| {}).unwrap().problems,
                Vec::<String>::new()
            );
        }
    }
}

/// Tombstones kept for a snapshot are removed when the range is compacted again after its release.
#[test]
fn tombstones_kept_for_a_snapshot_go_later() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), options(2)).unwrap();
    for n in 0..200u32 {
        db.put(format!("{n:04}"), [7; 50]).unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    for n in 0..200u32 {
        db.delete(format!("{n:04}")).unwrap();
    }
    db.compact_range::<&str>(..).unwrap();
    assert_eq!(entries(&db.metrics()), (400, 200));
    assert_eq!(snapshot.iter().unwrap().count(), 200);
    drop(snapshot);
    db.compact_range("0100"..).unwrap();
    let (all, tombstones) = entries(&db.metrics());
    assert!(tombstones <= 110 && all <= 220, "{all}, {tombstones}");
    db.compact_range::<&str>(..).unwrap();
    assert_eq!(entries(&db.metrics()), (0, 0));
    assert_eq!(table_files(folder.path()), 0);
}

/// Versions kept for a snapshot go after its release, from the deepest level too: many by
/// themselves, also after an opening, and few when the range is compacted again.
#[test]
fn versions_kept_for_a_snapshot_go_later() {
    for (design, reopened) in settings::designs_with_files().flat_map(|d| [(d, false), (d, true)]) {
        for (overwritten, go) in [(400, true), (20, false)] {
            let folder = scratch().unwrap();
            let mut options = settings::small_of(design, Medium::Dax);
            options.pool.size_bytes = 4 << 20;
            let mut db = Db::open(folder.path(), options.clone()).unwrap();
            for n in 0..400u32 {
                db.put(format!("{n:04}"), [7; 50]).unwrap();
            }
            let snapshot = db.snapshot().unwrap();
            for n in 0..overwritten {
                let key = format!("{:04}", n * (400 / overwritten));
                db.put(key, [8; 50]).unwrap();
            }
            db.compact_range::<&str>(..).unwrap();
            while db.step(0).unwrap() {}
            let count = |db: &Db| entries(&db.metrics()).0;
            assert_eq!(count(&db), 400 + overwritten, "{design}");
            assert_eq!(snapshot.get("0000").unwrap(), Some(vec![7; 50]));
            drop(snapshot);
            if reopened {
                drop(db);
                db = Db::open(folder.path(), options).unwrap();
            }
            while db.step(0).unwrap() {}
            let left = if go { 0 } else { overwritten };
            assert_eq!(count(&db), 400 + left, "{design}, reopened: {reopened}");
            db.compact_range::<&str>(..).unwrap();
            assert_eq!(count(&db), 400, "{design}");
            assert_eq!(db.get("0000").unwrap(), Some(vec![8; 50]));
        }
    }
}

/// Values that have expired on the deepest level go when the range is compacted.
#[test]
fn expired_values_go_when_their_range_is_compacted() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let place = Place::folder(folder.path());
        let mut options = settings::small_of(design, Medium::Dax);
        options.pool.size_bytes = 4 << 20;
        let db = place.open(&options).unwrap();
        for n in 0..400u32 {
            match n % 4 {
                0 => db.put_with_ttl(format!("{n:04}"), [7; 50], Duration::from_secs(1)),
                _ => db.put(format!("{n:04}"), [7; 50]),
            }
            .unwrap();
        }
        db.compact_range::<&str>(..).unwrap();
        assert_eq!(entries(&db.metrics()), (400, 0), "{design}");
        place.clock.advance(Duration::from_secs(2));
        db.compact_range::<&str>(..).unwrap();
        assert_eq!(entries(&db.metrics()), (300, 0), "{design}");
    }
}

/// Without levels of files, the range is drained.
#[test]
fn a_range_of_the_repository_is_drained() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), settings::small(Medium::Dax)).unwrap();
    for n in 0..300u32 {
        db.put(format!("{n:04}"), [7; 90]).unwrap();
    }
    db.compact_range("0100".."0101").unwrap();
    assert!(db.metrics().levels.is_empty());
    assert!(db.metrics().bottom.used_bytes > 300 * 90);
    assert_eq!(db.iter().unwrap().count(), 300);
}

/// Flushes to level 0 never wait for the rate limit, whichever thread runs them: writers would wait
/// for them.
#[test]
fn flushes_do_not_wait_for_the_rate() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), limited(options(1))).unwrap();
    // Many memtables, and fewer runs than a compaction needs.
    for n in 0..1000u32 {
        db.put(n.to_be_bytes(), [n as u8; 2000]).unwrap();
    }
    db.flush().unwrap();
    assert!(db.metrics().files.len() == 1, "nothing was compacted");
    assert_eq!(db.metrics().rate_limiter.wait_count, 0);
}

/// A close that writes out a buffer in memory does not keep to the rate limit.
#[test]
fn a_close_does_not_wait_for_the_rate() {
    let folder = scratch().unwrap();
    let mut options = limited(settings::small_of(Design::MioDbSsd, Medium::Dram));
    options.pool.size_bytes = 16 << 20;
    options.front.log_bytes_max = 32 << 20;
    // So deep that nothing is due for a drain before the close.
    options.buffer.levels = 16;
    let db = Db::open(folder.path(), options).unwrap();
    for n in 0..1000u32 {
        db.put(n.to_be_bytes(), [n as u8; 2000]).unwrap();
    }
    assert!(db.metrics().files.iter().all(|level| level.file_count == 0));
    let other = db.clone();
    db.close().unwrap();
    let metrics = other.metrics();
    assert!(metrics.life.table_file_bytes > 1 << 20, "{metrics}");
    assert_eq!(metrics.rate_limiter.wait_count, 0);
}

/// A close on another handle soon ends a compaction of a range, and nothing is lost.
#[test]
fn a_close_ends_the_compaction_of_a_range() {
    let folder = scratch().unwrap();
    // The rate is so low that the compaction takes a minute.
    let mut options = limited(options(4));
    let db = Db::open(folder.path(), options.clone()).unwrap();
    let value = |n: u32| {
        let mut rng = fastrand::Rng::with_seed(u64::from(n));
        let mut value = vec![0; 2000];
        rng.fill(&mut value);
        value
    };
    for n in 0..2000u32 {
        db.put(format!("{:05}", n * 7919 % 2000), value(n)).unwrap();
    }
    let handle = db.clone();
    let waiter = std::thread::spawn(move || handle.compact_range::<&str>(..));
    while db.metrics().rate_limiter.wait_count == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let began = std::time::Instant::now();
    db.close().unwrap();
    let ended = waiter.join().unwrap().unwrap_err();
    assert_eq!(ended.kind(), terrace::ErrorKind::Closed, "{ended}");
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    drop(db);
    options.bottom.leveled.write_rate_max = None;
    let db = Db::open(folder.path(), options).unwrap();
    assert_eq!(table_files(folder.path()) as u64, named(&db));
    assert_eq!(db.iter().unwrap().count(), 2000);
}

/// A limit far below the write rate delays compactions but never a writer: the limit is lifted near
/// the throttle that compaction debt causes.
#[test]
fn a_limit_on_the_rate_stops_no_writer() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(design, Medium::Dax);
        options.pool.size_bytes = 8 << 20;
        options.front.memtable_bytes = 64 << 10;
        options.bottom.leveled.table_bytes = 64 << 10;
        options.bottom.leveled.level1_bytes = 128 << 10;
        options.bottom.leveled.write_rate_max = Some(64 << 10);
        options.background.workers = Workers::Threads(1);
        let db = Db::open(folder.path(), options).unwrap();
        for n in 0..20_000u32 {
            let key = (n.wrapping_mul(2_654_435_761) % 10_000).to_be_bytes();
            db.put(key, [n as u8; 400]).unwrap();
        }
        // At the limited rate the flushes alone would take minutes.
        assert_eq!(db.iter().unwrap().count(), 10_000);
    }
}
