//! MatrixKV: rows leave in columns, and nobody notices.

use std::time::{Duration, SystemTime};

use terrace::{Db, Design, Options, RepairOutcome, RepairSource, Workers};
use terrace_media::Medium;
use terrace_testkit::place::scratch;
use terrace_testkit::settings;

use crate::buffer_only::{crashes_of, random_calls_of};

const MEDIA: [Medium; 3] = [Medium::Dax, Medium::Mapped, Medium::Dram];

/// After random calls, with manual steps and with threads, the store equals an ordered map.
#[test]
fn random_calls_agree_with_a_map() {
    random_calls_of(Design::MatrixKv, 12, &MEDIA, 1, |_| {});
}

/// After a crash at any point of short scripts, between two columns too, nothing
/// acknowledged is lost.
#[test]
fn crashes_lose_nothing() {
    crashes_of(Design::MatrixKv, &MEDIA, |_| {});
}

/// Columns follow one another, and a range delete over several of them deletes the same keys
/// before, between and after them. Between two of them a repair finds everything too.
#[test]
fn columns_drain_one_after_another() {
    for medium in MEDIA {
        let folder = scratch().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut options = settings::small_of(Design::MatrixKv, medium);
        options.background.workers = Workers::Manual;
        options.front.memtable_bytes = 256 << 10;
        options.pool.size_bytes = 3344 << 10;
        let db = Db::open(at("db"), options.clone()).unwrap();
        // The range delete is in the second row, over keys of all.
        for part in 0..9u32 {
            for n in (0..1000u32).skip(part as usize).step_by(10) {
                db.put(n.to_be_bytes(), [n as u8; 2000]).unwrap();
            }
            if part == 1 {
                db.delete_range(200u32.to_be_bytes()..800u32.to_be_bytes())
                    .unwrap();
            }
            db.flush()
                .unwrap_or_else(|e| panic!("{medium} {part}: {e}\n{}", db.metrics()));
        }
        let expected = all(&db);
        assert_eq!(expected.len(), 900 - 2 * 60, "{medium}");
        // BOUND: each step does some of the work.
        while drains(&db) < 2 && db.step(0).unwrap() {
            assert_eq!(all(&db), expected, "{medium}");
        }
        let before = drains(&db);
        db.close().unwrap();
        let damaged = RepairSource::new(at("db"));
        let report = Db::builder(at("repaired")).repair_of(&damaged).unwrap();
        assert_ne!(report.outcome, RepairOutcome::Partly, "{report:#?}");
        let repaired = Db::builder(at("repaired")).open().unwrap();
        assert_eq!(all(&repaired), expected, "the repair on {medium}");
        let db = Db::open(at("db"), options.clone()).unwrap();
        assert_eq!(all(&db), expected, "reopened on {medium}");
        // BOUND: as above.
        while db.step(0).unwrap() {
            assert_eq!(all(&db), expected, "{medium}");
        }
        // A pool of memory drains whole rows.
        let least = if medium == Medium::Dram { 1 } else { 4 };
        let count = before + drains(&db);
        assert!(count >= least, "{count} drains on {medium}");
        db.drain().unwrap();
        assert_eq!(all(&db), expected, "{medium}");
        db.close().unwrap();
    }
}

/// Between two columns a store may be opened with other options of its container and its levels:
/// the rest of the round leaves in the columns that these ask for.
#[test]
fn a_round_goes_on_with_other_options() {
    let folder = scratch().unwrap();
    let db = of_columns(folder.path());
    for n in 0..1800u32 {
        db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
    }
    let expected = all(&db);
    let mut options = db.options_stated().clone();
    db.close().unwrap();
    let changes: [fn(&mut Options); 5] = [
        |options| options.buffer.matrix.hints = false,
        |options| options.pool.size_bytes = 6 << 20,
        |options| options.bottom.leveled.table_bytes *= 2,
        |options| options.buffer.matrix.flattened = false,
        |options| options.buffer.matrix.columns = false,
    ];
    let mut left = u64::MAX;
    for (at, change) in changes.into_iter().enumerate() {
        change(&mut options);
        let db = Db::open(folder.path(), options.clone()).unwrap();
        assert_eq!(all(&db), expected, "after change {at}");
        // BOUND: each step does some of the work.
        while drains(&db) < 1 && db.step(0).unwrap() {
            assert_eq!(all(&db), expected, "after change {at}");
        }
        let levels = db.metrics().levels;
        let now: u64 = levels.iter().map(|level| level.entry_count).sum();
        assert!(now < left, "{now} entries are left after change {at}");
        left = now;
        db.close().unwrap();
    }
    // Without columns all of the compactor leaves at once.
    let db = Db::open(folder.path(), options).unwrap();
    let compactor = db.metrics().levels.into_iter().nth(1);
    assert_eq!(compactor.map_or(0, |rows| rows.entry_count), 0);
    assert_eq!(all(&db), expected);
}

/// Metrics name the parts of the container, and the options in force have what the design sets.
#[test]
fn metrics_and_options_show_the_container() {
    let folder = scratch().unwrap();
    let db = of_columns(folder.path());
    let pool = db.options().pool.size_bytes;
    let levels = |options: &Options| options.bottom.leveled.clone();
    assert_eq!(levels(db.options()).level1_bytes, pool);
    assert!(!levels(db.options()).dynamic_sizes);
    assert_ne!(levels(db.options_stated()).level1_bytes, pool);
    // A copy states what its source states.
    let copied = scratch().unwrap();
    db.checkpoint(copied.path()).unwrap();
    let copy = Db::builder(copied.path()).open().unwrap();
    let kept = |db: &Db| db.options_stated().kept();
    assert_eq!(kept(&copy), kept(&db));
    copy.close().unwrap();
    for n in 0..1800u32 {
        db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
    }
    // BOUND: each step does some of the work.
    while drains(&db) < 1 && db.step(0).unwrap() {}
    let levels = db.metrics().levels;
    let names: Vec<_> = levels.iter().map(|level| level.name).collect();
    assert_eq!(names, ["receiver", "compactor"]);
    assert!(
        levels[1].table_count > 0 && levels[1].entry_count > 0,
        "{levels:?}"
    );
    let rows = levels.iter().map(|level| level.entry_count).sum::<u64>();
    let files = db.metrics().files;
    let below: u64 = files.iter().map(|level| level.entry_count).sum();
    assert!(rows < 1800 && rows + below <= 1800, "{rows} and {below}");
    let text = db.metrics().to_string();
    assert!(
        text.contains("receiver ") && text.contains("compactor "),
        "{text}"
    );
}

/// An ingest of few pairs over keys of the container becomes a row: no column is waited for.
#[test]
fn a_small_ingest_becomes_a_row() {
    let folder = scratch().unwrap();
    let db = of_columns(folder.path());
    for n in 0..1500u32 {
        db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    let before = drains(&db);
    let mut ingest = db.ingest().unwrap();
    for n in (0..1500u32).step_by(100) {
        ingest.add(n.to_be_bytes(), b"ingested").unwrap();
    }
    let expiry = SystemTime::now() + Duration::from_secs(3600);
    ingest
        .add_with_expiry(1600u32.to_be_bytes(), b"ingested", expiry)
        .unwrap();
    assert_eq!(ingest.finish().unwrap().entries, 16);
    assert_eq!(drains(&db), before);
    db.put(100u32.to_be_bytes(), b"newest").unwrap();
    let check = |db: &Db| {
        let pairs = all(db);
        assert_eq!(pairs.len(), 1501);
        let ingested = pairs.iter().filter(|(_, value)| value == b"ingested");
        assert_eq!(ingested.count(), 15);
        let newest = db.get(100u32.to_be_bytes()).unwrap();
        assert_eq!(newest.as_deref(), Some(&b"newest"[..]));
        let expires = db.get_with_expiry(1600u32.to_be_bytes()).unwrap();
        assert!(expires.is_some_and(|(_, at)| at.is_some()));
    };
    check(&db);
    assert_eq!(snapshot.iter().unwrap().count(), 1500);
    drop(snapshot);
    db.close().unwrap();
    let db = Db::builder(folder.path()).open().unwrap();
    check(&db);
    db.drain().unwrap();
    check(&db);
}

/// A longer ingest waits for the columns of its keys, not for a whole round.
#[test]
fn an_ingest_waits_only_for_its_keys() {
    let folder = scratch().unwrap();
    let db = of_columns(folder.path());
    for n in 0..1500u32 {
        db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
    }
    let memtable = db.options().front.memtable_bytes;
    let mut ingest = db.ingest().unwrap();
    for n in 0..100u32 {
        ingest
            .add(n.to_be_bytes(), vec![b'i'; memtable as usize / 50])
            .unwrap();
    }
    ingest.finish().unwrap();
    let levels = db.metrics().levels;
    let left: u64 = levels.iter().map(|level| level.entry_count).sum();
    assert!(left > 500, "{levels:?}");
    let ingested = |db: &Db| all(db).iter().filter(|pair| pair.1[0] == b'i').count();
    // The values of 105, 361, 617 and so on begin with the same byte.
    let like_them = (100..1500u32).filter(|n| *n as u8 == b'i').count();
    assert_eq!(ingested(&db), 100 + like_them);
    db.drain().unwrap();
    assert_eq!(ingested(&db), 100 + like_them);
}

/// Hundreds of small ingests between puts of the same keys: each is newer than what it found, and
/// their rows leave once they are many.
#[test]
fn small_ingests_follow_one_another() {
    for workers in [Workers::Manual, Workers::Threads(1)] {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(Design::MatrixKv, Medium::Dax);
        options.background.workers = workers;
        options.pool.size_bytes = 4 << 20;
        let db = Db::open(folder.path(), options).unwrap();
        let mut expected = std::collections::BTreeMap::new();
        for turn in 0..300u32 {
            let value = |n: u32| [turn.to_be_bytes().as_slice(), &[n as u8; 400]].concat();
            for n in (turn * 7..).step_by(13).take(5) {
                let key = (n % 200).to_be_bytes();
                db.put(key, value(n)).unwrap();
                expected.insert(key.to_vec(), value(n));
            }
            let mut ingest = db.ingest().unwrap();
            for n in (turn % 50..200).step_by(50) {
                ingest.add(n.to_be_bytes(), value(n)).unwrap();
                expected.insert(n.to_be_bytes().to_vec(), value(n));
            }
            let finished = ingest.finish();
            finished.unwrap_or_else(|e| panic!("{workers:?}, ingest {turn}: {e}"));
            if turn % 10 == 0 {
                assert!(all(&db).into_iter().eq(expected.clone()), "{turn}");
            }
        }
        assert!(all(&db).into_iter().eq(expected.clone()));
        db.wait_idle().unwrap();
        let levels = db.metrics().levels;
        let rows: u64 = levels.iter().map(|level| level.table_count).sum();
        assert!(rows < 256, "{workers:?}: {rows} rows");
        assert!(all(&db).into_iter().eq(expected.clone()));
        db.close().unwrap();
        let db = Db::builder(folder.path()).open().unwrap();
        db.drain().unwrap();
        assert!(all(&db).into_iter().eq(expected));
    }
}

/// Entries of a few bytes pass through a small container, most of which a reader keeps: none is
/// refused, and the reader sees what was there when it began.
#[test]
fn tiny_entries_pass_behind_a_reader() {
    let folder = scratch().unwrap();
    let mut options = settings::small_of(Design::MatrixKv, Medium::Dax);
    options.background.workers = Workers::Threads(1);
    options.pool.size_bytes = 2 << 20;
    options.bottom.leveled.table_bytes = 1 << 20;
    options.bottom.leveled.level1_bytes = 1 << 20;
    let db = Db::open(folder.path(), options).unwrap();
    let put = |n: u32| db.put(n.to_be_bytes(), [n as u8]).unwrap();
    (0..20_000).for_each(put);
    let mut reader = db.iter().unwrap();
    assert!(reader.next().is_some());
    (20_000..80_000).for_each(put);
    assert_eq!(reader.count(), 19_999);
    let found = all(&db);
    assert_eq!(found.len(), 80_000);
    assert!(
        (0..)
            .zip(&found)
            .all(|(n, (key, value))| { key[..] == u32::to_be_bytes(n) && value[..] == [n as u8] })
    );
}

/// Returns all pairs.
fn all(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = db.iter().unwrap().map(|pair| pair.unwrap());
    pairs
        .map(|pair| (pair.key().to_vec(), pair.value().to_vec()))
        .collect()
}

/// Returns the number of drains that have ended.
fn drains(db: &Db) -> u64 {
    let jobs = db.metrics().jobs;
    let drains = jobs.iter().find(|job| job.kind == "drain");
    drains.map_or(0, |job| job.count)
}

/// Returns a store in which columns are merged with level 1.
fn of_columns(folder: &std::path::Path) -> Db {
    let mut options = settings::small_of(Design::MatrixKv, Medium::Dax);
    options.background.workers = Workers::Manual;
    options.pool.size_bytes = 4 << 20;
    options.buffer.matrix.flattened = true;
    Db::open(folder, options).unwrap()
}

/// Rows that share no key leave in columns of the usual size, though each has all keys of its part.
#[test]
fn rows_without_common_keys_leave_in_columns() {
    let folder = scratch().unwrap();
    let db = of_columns(folder.path());
    for n in 0..1800u32 {
        db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
    }
    let before = drains(&db);
    db.drain().unwrap();
    let count = drains(&db) - before;
    // A column has a 32nd of the pool at most, 128 KiB, of 1.8 MiB.
    assert!(count >= 14, "{count} drains");
    assert_eq!(all(&db).len(), 1800);
}

/// Of rows with nothing but a range delete, no more of level 1 is rewritten than it reaches.
#[test]
fn a_range_delete_alone_does_not_rewrite_level_1() {
    let folder = scratch().unwrap();
    let db = of_columns(folder.path());
    for n in 0..1500u32 {
        db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
    }
    db.drain().unwrap();
    let before = db.metrics().table_file_bytes;
    db.delete_range(700u32.to_be_bytes()..705u32.to_be_bytes())
        .unwrap();
    db.drain().unwrap();
    let written = db.metrics().table_file_bytes - before;
    let all_bytes: u64 = db.metrics().files.iter().map(|level| level.bytes).sum();
    assert!(
        written < all_bytes / 8,
        "{written} bytes written for five keys of {all_bytes} bytes"
    );
    assert_eq!(all(&db).len(), 1495);
}

/// Values that are a little longer than half of a group of pages do not leave the other half empty.
/// The common start of keys is found in any order of writes, and keys beside it are too.
#[test]
fn rows_waste_no_pages() {
    let folder = scratch().unwrap();
    let mut options = settings::small_of(Design::MatrixKv, Medium::Dax);
    options.background.workers = Workers::Manual;
    options.front.memtable_bytes = 2 << 20;
    options.pool.size_bytes = 64 << 20;
    let db = Db::open(folder.path(), options).unwrap();
    let key = |n: u32| format!("a start that all keys have in common: {n:08}");
    for n in (0..50).rev() {
        db.put(key(n), vec![n as u8; 70_000]).unwrap();
    }
    db.flush().unwrap();
    let levels = db.metrics().levels;
    let bytes: u64 = levels.iter().map(|level| level.bytes).sum();
    assert!(bytes < 50 * 70_000 / 4 * 5, "{levels:?}");
    assert_eq!(db.iter().unwrap().count(), 50);
    for n in 0..50 {
        assert_eq!(db.get(key(n)).unwrap(), Some(vec![n as u8; 70_000]));
    }
    for absent in [
        "",
        "a",
        "a start",
        "b",
        "a start that all keys have in common: ",
        "zzz",
    ] {
        assert_eq!(db.get(absent).unwrap(), None, "{absent}");
        let first = db.range(absent.to_string()..).unwrap().next();
        let first = first.map(|item| item.unwrap().key().to_vec());
        let expected = (absent <= key(0).as_str()).then(|| key(0).into_bytes());
        assert_eq!(first, expected, "{absent}");
    }
}

/// Flushes of single entries do not pile up rows, each of which every read would search.
#[test]
fn small_rows_leave_before_they_are_many() {
    let folder = scratch().unwrap();
    let mut options = settings::small_of(Design::MatrixKv, Medium::Dax);
    options.background.workers = Workers::Manual;
    options.pool.size_bytes = 64 << 20;
    let db = Db::open(folder.path(), options).unwrap();
    for n in 0..1000u32 {
        db.put(n.to_be_bytes(), b"value").unwrap();
        db.flush().unwrap();
        while db.step(0).unwrap() {}
        let rows: u64 = (db.metrics().levels.iter())
            .map(|level| level.table_count)
            .sum();
        assert!(rows < 256, "{rows} rows after {n} flushes");
    }
    assert_eq!(db.iter().unwrap().count(), 1000);
}

/// Range deletes leave the levels where nothing is below them: the tree does not become deeper.
#[test]
fn range_deletes_make_no_deep_tree() {
    let folder = scratch().unwrap();
    let db = of_columns(folder.path());
    for n in 0..1500u32 {
        db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
    }
    db.drain().unwrap();
    let deepest = |db: &Db| {
        let files = db.metrics().files;
        let filled = files.iter().filter(|level| level.bytes > 0);
        filled.map(|level| level.level).max()
    };
    let before = deepest(&db);
    let snapshot = db.snapshot().unwrap();
    for from in (0..1500u32).step_by(300) {
        db.delete_range(from.to_be_bytes()..(from + 50).to_be_bytes())
            .unwrap();
    }
    db.drain().unwrap();
    while db.step(0).unwrap() {}
    assert_eq!(snapshot.iter().unwrap().count(), 1500);
    drop(snapshot);
    while db.step(0).unwrap() {}
    assert_eq!(deepest(&db), before);
    assert_eq!(all(&db).len(), 1250);
    let ranges = db.metrics().range_delete_count;
    assert_eq!(ranges, 0);
}
