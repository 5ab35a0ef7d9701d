//! Compactions of table files: split by ranges of keys, of ranges that users name, at a rate.

use std::path::Path;
use std::sync::Arc;

use terrace::{Db, Design, Metrics, Options, Snapshot, Workers};
use terrace_media::{FaultFs, Medium, OsFs};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::{seeds, settings};

/// How many runs the tests put on level 0: with the last one a compaction is due.
const RUNS: u8 = 5;

fn options(parts: usize) -> Options {
    let mut options = settings::small_of(Design::Leveled, Medium::Dax);
    options.pool.size_bytes = 4 << 20;
    options.front.memtable_bytes = 128 << 10;
    options.bottom.leveled.compaction_parts_max = parts;
    options.bottom.leveled.runs_compact = usize::from(RUNS);
    options
}

/// Every pair, of the newest state and of a snapshot.
type Content = (Vec<(Vec<u8>, Vec<u8>)>, Vec<(Vec<u8>, Vec<u8>)>);

fn content(db: &Db, snapshot: &Snapshot) -> Content {
    let pairs = |iter: terrace::Iter| iter.map(|pair| pair.unwrap().into_pair()).collect();
    (pairs(db.iter().unwrap()), pairs(snapshot.iter().unwrap()))
}

/// Some runs on level 0: overwritten and deleted keys, and versions that only a snapshot reads.
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

/// A compaction that is split leaves what one that is not leaves: the same entries, tombstones and
/// old versions included, whatever the order in which the steps of its parts run; and readers see
/// all of it between any two steps.
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

/// A close in the middle of a compaction in parts leaves no file of it, and a crash leaves files
/// that opening removes; either way nothing is missing and the compaction begins again.
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
                // What the manifest names and nothing else.
                let names = table_files(folder.path());
                let db = Db::open(folder.path(), options(1)).unwrap();
                assert_eq!(names as u64, named(&db), "files are left by a close");
            } else {
                // As a process crash leaves them.
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

/// Where the disk has no room for a compaction in parts, all of them give back what they have, those
/// that had ended too; once there is room it goes on.
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
        // Until some parts have ended, or nearly.
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

/// With threads of the store's own, parts run on several of them.
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
