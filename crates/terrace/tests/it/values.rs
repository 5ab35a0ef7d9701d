//! Values apart from their keys: they read like others, their space comes back, and copies and
//! repairs have them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use terrace::{Compression, Db, Design, ErrorKind, Options, RepairOutcome, RepairSource, Workers};
use terrace_media::Medium;
use terrace_testkit::crash::Case;
use terrace_testkit::model::run;
use terrace_testkit::place::scratch;
use terrace_testkit::script::Profile;
use terrace_testkit::world::verify;
use terrace_testkit::{seeds, settings};

const MEDIA: [Medium; 3] = [Medium::Dax, Medium::Mapped, Medium::Dram];

fn options(design: Design, medium: Medium, workers: Workers) -> Options {
    let mut options = settings::small_of(design, medium);
    options.background.workers = workers;
    options.bottom.leveled.values_apart_from = Some(64);
    options
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Returns a value that is apart for two keys of three.
fn value(n: u32, turn: u32) -> Vec<u8> {
    let len = [10, 64, 900][n as usize % 3] + (turn % 7) as usize;
    let byte = |at: usize| (n as u8).wrapping_mul(31) ^ (turn as u8) ^ (at / 40) as u8;
    (0..len).map(byte).collect()
}

/// Returns the value files in a directory.
fn value_files(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "val"))
        .collect()
}

fn pairs(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let pairs = db.iter().unwrap().map(|pair| pair.unwrap());
    pairs
        .map(|pair| (pair.key().to_vec(), pair.value().to_vec()))
        .collect()
}

/// Random calls agree with an ordered map.
#[test]
fn random_calls_agree_with_a_map() {
    let designs: Vec<_> = settings::designs_with_files().collect();
    for (seed, design) in seeds::in_turns(9, &designs) {
        let medium = MEDIA[seed as usize % 3];
        let mut options = options(design, medium, Workers::Manual);
        options.bottom.leveled.values_apart_from = Some(32);
        let script = Profile::everything(800).generate(seed);
        run(&options, medium, &script)
            .unwrap_or_else(|failure| panic!("{design} on {medium}, seed {seed}: {failure}"));
    }
}

/// After a crash at any point of short scripts nothing acknowledged is lost.
#[test]
fn crashes_lose_nothing() {
    let designs: Vec<_> = settings::designs_with_files().collect();
    for (seed, design) in seeds::in_turns(6, &designs) {
        let medium = MEDIA[seed as usize % 3];
        let (mut case, script) = Case::every_point(seed, medium);
        case.options.bottom.leveled.values_apart_from = Some(32);
        if let Err(failure) = case.of(design).run(&script) {
            panic!("{design} on {medium}, seed {seed}: {failure}");
        }
    }
}

/// Values of both kinds are read by every call, with old versions for snapshots, and after a
/// reopen, whatever the options say by then.
#[test]
fn values_are_read_by_every_call() {
    for design in settings::designs_with_files() {
        for compression in [Compression::None, Compression::Lz4] {
            let folder = scratch().unwrap();
            let mut options = options(design, Medium::Dax, Workers::Manual);
            options.bottom.leveled.compression = compression;
            let db = Db::open(folder.path(), options.clone()).unwrap();
            for n in 0..1500 {
                db.put(key(n), value(n, 0)).unwrap();
            }
            db.drain().unwrap();
            let before = db.snapshot().unwrap();
            let expiry = SystemTime::now() + Duration::from_secs(3600);
            for n in (0..1500).step_by(4) {
                match n % 8 {
                    0 => db.put(key(n), value(n, 1)).unwrap(),
                    _ => db.put_with_expiry(key(n), value(n, 1), expiry).unwrap(),
                }
            }
            db.delete_range(key(300)..key(400)).unwrap();
            db.drain().unwrap();
            let metrics = db.metrics();
            assert!(metrics.values.file_count > 0, "{design}: {metrics}");
            assert!(metrics.values.live_bytes > 0 && metrics.to_string().contains("values "));
            let expected = |n: u32| match n {
                300..400 => None,
                n if n % 4 == 0 => Some(value(n, 1)),
                n => Some(value(n, 0)),
            };
            let check = |db: &Db| {
                for n in 0..1500 {
                    assert_eq!(db.get(key(n)).unwrap(), expected(n), "{design} {n}");
                }
                let all: Vec<_> = (0..1500).map(key).collect();
                let many = db.multi_get(&all).unwrap();
                assert!(many.into_iter().eq((0..1500).map(expected)));
                let scanned = pairs(db);
                assert_eq!(scanned.len(), 1400);
                let mut back = db.iter().unwrap().rev().map(|pair| pair.unwrap());
                let mut ahead = scanned.iter().rev();
                assert!(back.all(|pair| {
                    ahead.next() == Some((&pair.key().to_vec(), &pair.value().to_vec()))
                }));
                let expires = db.get_with_expiry(key(4)).unwrap().unwrap();
                assert!(expires.0 == value(4, 1) && expires.1.is_some());
                verify(db, Some(1400)).unwrap();
            };
            check(&db);
            assert_eq!(before.iter().unwrap().count(), 1500);
            assert_eq!(before.get(key(304)).unwrap(), Some(value(304, 0)));
            drop(before);
            db.compact_range::<[u8; 4]>(..).unwrap();
            check(&db);
            db.close().unwrap();
            // Values that are apart stay where they are.
            options.bottom.leveled.values_apart_from = None;
            let db = Db::open(folder.path(), options).unwrap();
            check(&db);
            db.compact_range::<[u8; 4]>(..).unwrap();
            check(&db);
        }
    }
}

/// Compactions move no values: bytes written to files stay near what was written once.
#[test]
fn compactions_move_no_values() {
    let written = |apart: Option<u64>| {
        let folder = scratch().unwrap();
        let mut options = options(Design::Leveled, Medium::Dram, Workers::Manual);
        options.bottom.leveled.values_apart_from = apart;
        options.bottom.leveled.compression = Compression::None;
        let db = Db::open(folder.path(), options).unwrap();
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..4000 {
            db.put(key(rng.u32(..3000)), [rng.u8(..); 1000]).unwrap();
            while db.step(0).unwrap() {}
        }
        let metrics = db.metrics();
        metrics.table_file_bytes as f64 / metrics.user_written_bytes as f64
    };
    let (apart, inline) = (written(Some(64)), written(None));
    assert!(apart < inline * 0.7, "{apart} and {inline} bytes a byte");
}

/// Endless overwriting keeps value files bounded, and deletes give all of their space back.
#[test]
fn the_space_of_values_comes_back() {
    for design in settings::designs_with_files() {
        for workers in [Workers::Manual, Workers::Threads(1)] {
            let folder = scratch().unwrap();
            let mut options = options(design, Medium::Dax, workers);
            options.bottom.leveled.compression = Compression::None;
            let drain = options.pool.size_bytes / 4;
            let db = Db::open(folder.path(), options).unwrap();
            let mut rng = fastrand::Rng::with_seed(5);
            const KEYS: u32 = 1500;
            let mut worst = 0;
            for turn in 0..30_000u32 {
                let n = if turn < KEYS { turn } else { rng.u32(..KEYS) };
                db.put(key(n), vec![turn as u8; 200 + n as usize % 300])
                    .unwrap();
                if workers == Workers::Manual && turn % 10 == 0 {
                    for _ in 0..4 {
                        db.step(rng.usize(..)).unwrap();
                    }
                }
                if turn > 2 * KEYS && turn % 500 == 0 {
                    worst = worst.max(db.metrics().values.bytes);
                }
            }
            let live = u64::from(KEYS) * (350 + 40);
            // The bound of docs/operations.md: of tables, and of the files that they point into.
            let bound = live * 145 / 100 * 145 / 100 + 5 * drain;
            assert!(worst < bound, "{design}, {workers:?}: {worst} over {bound}");
            for n in 0..KEYS {
                db.delete(key(n)).unwrap();
            }
            db.compact_range::<[u8; 4]>(..).unwrap();
            db.wait_idle().unwrap();
            while workers == Workers::Manual && db.step(0).unwrap() {}
            let metrics = db.metrics();
            assert_eq!(metrics.values.file_count, 0, "{design}: {metrics}");
            assert_eq!(
                value_files(folder.path()),
                Vec::<PathBuf>::new(),
                "{design}"
            );
        }
    }
}

/// A database at rest has as much garbage in value files as docs/operations.md says.
#[test]
fn at_rest_little_of_value_files_is_garbage() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let mut options = options(design, Medium::Dram, Workers::Manual);
        options.bottom.leveled.compression = Compression::None;
        let db = Db::open(folder.path(), options).unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        const KEYS: u32 = 4000;
        for turn in 0..4 * KEYS {
            let n = if turn < KEYS { turn } else { rng.u32(..KEYS) };
            db.put(key(n), vec![turn as u8; 500]).unwrap();
            while db.step(0).unwrap() {}
        }
        db.wait_idle().unwrap();
        let values = db.metrics().values;
        let live = u64::from(KEYS) * (500 + 24);
        // A tenth of garbage, a tenth of values that only superseded entries point to, and what is
        // always left alone.
        let bound = live * 110 / 100 * 110 / 100 + live * 5 / 100 + (64 << 10);
        assert!(values.bytes < bound, "{design}: {values:?} over {bound}");
    }
}

/// Returns the number of files and the bytes of tables, of the level with most, and of value files.
fn counts(db: &Db) -> [(u64, u64); 2] {
    let metrics = db.metrics();
    let levels = metrics.files.iter().filter(|level| level.level > 0);
    let levels = levels.map(|level| (level.file_count, level.bytes));
    let values = (metrics.values.file_count, metrics.values.bytes);
    [levels.max().unwrap_or_default(), values]
}

/// Files are about as many as their bytes need, though each drain of keys in ascending order makes
/// a table that overlaps nothing.
#[test]
fn small_neighbours_are_joined() {
    const TABLE: u64 = 64 << 10;
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let mut options = options(design, Medium::Dram, Workers::Manual);
        options.bottom.leveled.table_bytes = TABLE;
        options.bottom.leveled.level1_bytes = 4 * TABLE;
        let db = Db::open(folder.path(), options).unwrap();
        for n in 0..12_000 {
            db.put(key(n), value(n, n)).unwrap();
            if n % 10 == 9 {
                db.flush().unwrap();
                db.drain().unwrap();
            }
            while db.step(0).unwrap() {}
        }
        db.wait_idle().unwrap();
        while db.step(0).unwrap() {}
        for ((files, bytes), full) in counts(&db).into_iter().zip([TABLE, 4 * TABLE]) {
            let most = 64 + 4 * (bytes / full) + 8;
            assert!(files <= most, "{design}: {files} files with {bytes} bytes");
        }
        for n in 0..12_000 {
            assert_eq!(db.get(key(n)).unwrap(), Some(value(n, n)), "{design} {n}");
        }
        verify(&db, Some(12_000)).unwrap();
    }
}

/// A drain that meets the values of all files joins a few small ones, not all of them: writers
/// wait for it.
#[test]
fn a_drain_joins_few_value_files() {
    let folder = scratch().unwrap();
    let mut options = options(Design::FlatLsm, Medium::Dram, Workers::Manual);
    options.bottom.leveled.table_bytes = 1 << 20;
    options.bottom.leveled.level1_bytes = 4 << 20;
    options.bottom.leveled.compression = Compression::None;
    let db = Db::open(folder.path(), options).unwrap();
    let drain = 4 * db.options().front.memtable_bytes;
    let (mut written, mut most, mut files) = (0, 0, 0);
    for n in 0..12_000u32 {
        // New keys all over the key space.
        db.put(key(n.wrapping_mul(0x9e37_79b1)), [n as u8; 900])
            .unwrap();
        while db.step(0).unwrap() {}
        let metrics = db.metrics();
        most = most.max(metrics.table_file_bytes - written);
        written = metrics.table_file_bytes;
        files = files.max(metrics.values.file_count);
    }
    // The entries of the drain, four times as many bytes joined, and the tables of level 1.
    let tables: u64 = db.metrics().files.iter().map(|level| level.bytes).sum();
    assert!(
        most < 6 * drain + tables,
        "{most} bytes, {drain} and {tables}"
    );
    assert!(files > 64, "{files} files");
    verify(&db, Some(12_000)).unwrap();
}

/// While tables are joined, nothing comes between them: tables of one run share no key.
#[test]
fn joined_tables_overlap_no_others() {
    const APART: u32 = 100_000;
    for seed in 0..2 {
        let folder = scratch().unwrap();
        let mut options = options(Design::Leveled, Medium::Dram, Workers::Manual);
        options.bottom.leveled.table_bytes = 256 << 10;
        options.bottom.leveled.level1_bytes = 1 << 20;
        let db = Db::open(folder.path(), options.clone()).unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut model = BTreeMap::new();
        let mut put = |db: &Db, n: u32| {
            let value = value(n, n);
            db.put(key(n), &value).unwrap();
            model.insert(key(n).to_vec(), value);
        };
        let mut count = 0;
        for _ in 0..12 {
            for _ in 0..40 {
                let first = count * APART;
                for _ in 0..20 {
                    put(&db, count * APART);
                    count += 1;
                }
                db.flush().unwrap();
                db.compact_range(key(first)..).unwrap();
            }
            // All of level 0 lies between two tables now.
            let gap = (rng.u32(..count / 20) * 20 + 19) * APART;
            for n in 0..3000 {
                put(&db, gap + 1 + n);
                for _ in 0..usize::from(n % 64 == 0) * rng.usize(..5) {
                    db.step(rng.usize(..)).unwrap();
                }
            }
            db.compact_range(key(gap)..key(gap + APART)).unwrap();
        }
        assert!(pairs(&db) == model, "{seed}");
        db.close().unwrap();
        let db = Db::open(folder.path(), options).unwrap();
        assert!(pairs(&db) == model, "{seed}");
        verify(&db, Some(model.len() as u64)).unwrap();
    }
}

/// A reader keeps the value files that it reads, and their space comes back when it is gone.
#[test]
fn a_reader_keeps_its_values() {
    let folder = scratch().unwrap();
    let db = Db::open(
        folder.path(),
        options(Design::Leveled, Medium::Dram, Workers::Manual),
    )
    .unwrap();
    for n in 0..600 {
        db.put(key(n), value(n, 0)).unwrap();
    }
    db.drain().unwrap();
    let mut reader = db.iter().unwrap();
    assert_eq!(reader.next().unwrap().unwrap().value(), value(0, 0));
    db.delete_range::<[u8; 4]>(..).unwrap();
    db.compact_range::<[u8; 4]>(..).unwrap();
    while db.step(0).unwrap() {}
    let mut count = 1;
    for (n, pair) in (1..).zip(reader.by_ref()) {
        assert_eq!(pair.unwrap().value(), value(n, 0));
        count += 1;
    }
    assert_eq!(count, 600);
    drop(reader);
    db.compact_range::<[u8; 4]>(..).unwrap();
    while db.step(0).unwrap() {}
    assert_eq!(db.metrics().values.file_count, 0);
    assert_eq!(value_files(folder.path()), Vec::<PathBuf>::new());
}

/// A checkpoint shares value files, and both databases go on by themselves.
#[test]
fn a_copy_has_its_values() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let at = |name: &str| folder.path().join(name);
        let options = options(design, Medium::Dax, Workers::Manual);
        let db = Db::open(at("db"), options).unwrap();
        for n in 0..900 {
            db.put(key(n), value(n, 0)).unwrap();
        }
        db.drain().unwrap();
        for n in 0..900 {
            if n % 5 == 0 {
                db.put(key(n), value(n, 3)).unwrap();
            }
        }
        let expected = pairs(&db);
        db.checkpoint(at("copy")).unwrap();
        db.delete_range::<[u8; 4]>(..).unwrap();
        db.compact_range::<[u8; 4]>(..).unwrap();
        while db.step(0).unwrap() {}
        db.close().unwrap();
        assert_eq!(value_files(&at("db")), Vec::<PathBuf>::new());
        let copy = Db::builder(at("copy")).open().unwrap();
        assert_eq!(pairs(&copy), expected, "{design}");
        verify(&copy, Some(900)).unwrap();
        assert!(!value_files(&at("copy")).is_empty());
        copy.compact_range::<[u8; 4]>(..).unwrap();
        assert_eq!(pairs(&copy), expected, "{design}");
    }
}

/// If any byte of a value file changes, reads are right or fail with an error that names the file,
/// verify finds it, and a repair keeps all other values. A missing file is named when the database
/// is opened.
#[test]
fn damage_of_values_is_found() {
    let folder = scratch().unwrap();
    let at = |name: &str| folder.path().join(name);
    let options = options(Design::Leveled, Medium::Dram, Workers::Manual);
    let db = Db::open(at("db"), options.clone()).unwrap();
    for n in 0..200 {
        db.put(key(n), value(n, 0)).unwrap();
    }
    db.drain().unwrap();
    db.close().unwrap();
    let len = |path: &PathBuf| std::fs::metadata(path).unwrap().len();
    let path = value_files(&at("db")).into_iter().max_by_key(len).unwrap();
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let good = std::fs::read(&path).unwrap();
    let mut repairs = 0;
    for (turn, byte) in (0..good.len()).step_by(good.len() / 40).enumerate() {
        let mut bad = good.clone();
        bad[byte] ^= 1 << (byte % 8);
        std::fs::write(&path, &bad).unwrap();
        let db = Db::open(at("db"), options.clone()).unwrap();
        let mut lost = Vec::new();
        for n in 0..200 {
            match db.get(key(n)) {
                Ok(found) => assert_eq!(found, Some(value(n, 0)), "byte {byte}, key {n}"),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                    assert!(e.to_string().contains(&name), "{e}");
                    lost.push(n);
                }
            }
        }
        assert!(!lost.is_empty() || (32..60).contains(&byte), "byte {byte}");
        let problems = db.verify(&mut |_| {}).unwrap().problems;
        assert_eq!(problems.is_empty(), lost.is_empty(), "byte {byte}");
        db.close().unwrap();
        if turn % 2 > 0 || lost.is_empty() {
            continue;
        }
        repairs += 1;
        let to = at(&format!("repaired {turn}"));
        let report = Db::builder(&to)
            .repair_of(&RepairSource::new(at("db")))
            .unwrap();
        assert_eq!(report.outcome, RepairOutcome::Partly, "{report:#?}");
        let repaired = Db::builder(&to).open().unwrap();
        for n in 0..200 {
            let found = repaired.get(key(n)).unwrap();
            let expected = (!lost.contains(&n)).then(|| value(n, 0));
            assert_eq!(found, expected, "byte {byte}, key {n}");
            let is_told = report.losses.iter().any(|loss| loss.keys.has(1, &key(n)));
            assert!(is_told || !lost.contains(&n), "key {n}: {report:#?}");
        }
    }
    assert!(repairs > 3, "{repairs} repairs");
    std::fs::remove_file(&path).unwrap();
    let e = Db::open(at("db"), options.clone()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(e.to_string().contains(&name), "{e}");
    // An unnamed file of ours is removed, a foreign one stays.
    std::fs::write(&path, &good).unwrap();
    std::fs::write(at("db").join("0000000000990000.val"), b"another's").unwrap();
    let db = Db::open(at("db"), options).unwrap();
    assert_eq!(pairs(&db).len(), 200);
    assert!(at("db").join("0000000000990000.val").exists());
}

/// An iterator over keys passes damaged values in both directions, with the right expiry, and
/// verify reports the damage once.
#[test]
fn keys_are_read_past_damaged_values() {
    let folder = scratch().unwrap();
    let options = options(Design::Leveled, Medium::Dram, Workers::Manual);
    let db = Db::open(folder.path(), options.clone()).unwrap();
    for n in 0..200 {
        db.put(key(n), value(n, 0)).unwrap();
    }
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9999);
    db.put_with_expiry(key(200), vec![1; 5000], later).unwrap();
    db.drain().unwrap();
    db.close().unwrap();
    let len = |path: &PathBuf| std::fs::metadata(path).unwrap().len();
    let path = value_files(folder.path()).into_iter().max_by_key(len);
    let path = path.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let db = Db::open(folder.path(), options).unwrap();
    assert!(db.iter().unwrap().any(|pair| pair.is_err()));
    let keys = || db.iter().unwrap().keys_only().map(Result::unwrap);
    let expected: Vec<_> = (0..201).map(key).collect();
    assert!(keys().all(|pair| pair.value().is_empty()));
    assert!(
        keys()
            .map(|pair| pair.key().to_vec())
            .eq(expected.iter().map(|k| k.to_vec()))
    );
    let backward = keys().rev().map(|pair| pair.key().to_vec());
    assert!(backward.eq(expected.iter().rev().map(|k| k.to_vec())));
    assert!(keys().next_back().unwrap().expiry().is_some());
    let problems = db.verify(&mut |_| {}).unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:#?}");
}

/// Many reads at once of values apart, within a small memory budget, end.
#[test]
fn reads_within_a_budget_end() {
    let folder = scratch().unwrap();
    let mut options = Options {
        design: Some(Design::Leveled),
        ..Options::default()
    };
    options.pool.path = None;
    let mut options = options.within(16 << 20, Default::default());
    options.bottom.leveled.values_apart_from = Some(64);
    let db = Db::open(folder.path(), options).unwrap();
    let value = |n: u32| vec![n as u8; 20_000];
    for n in 0..600 {
        db.put(key(n), value(n)).unwrap();
    }
    db.drain().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let db = &db;
            scope.spawn(move || {
                for turn in 0..60 {
                    let wanted: Vec<u32> =
                        (0..8).map(|n| (thread + turn * 7 + n * 70) % 600).collect();
                    let keys: Vec<_> = wanted.iter().map(|n| key(*n)).collect();
                    let found = db.multi_get(&keys).unwrap();
                    assert!(found.into_iter().eq(wanted.iter().map(|n| Some(value(*n)))));
                    assert_eq!(db.get(key(turn)).unwrap(), Some(value(turn)));
                }
                assert_eq!(db.iter().unwrap().count(), 600);
            });
        }
    });
}

/// An expired entry is written as a delete without an expiry.
#[test]
fn an_expired_entry_becomes_a_plain_delete() {
    let folder = scratch().unwrap();
    let mut options = options(Design::Leveled, Medium::Dram, Workers::Manual);
    options.bottom.leveled.runs_compact = 8;
    let db = Db::open(folder.path(), options).unwrap();
    for n in 0..200 {
        db.put(key(n), value(n, 0)).unwrap();
    }
    db.drain().unwrap();
    let soon = SystemTime::now() + Duration::from_millis(20);
    for n in 0..200 {
        db.put_with_expiry(key(n), value(n, 1), soon).unwrap();
    }
    std::thread::sleep(Duration::from_millis(60));
    db.flush().unwrap();
    let mut deletes = 0;
    for table in terrace::inspect::tables(folder.path()).unwrap() {
        let visit = &mut |piece: terrace::inspect::TablePiece<'_>| {
            if let terrace::inspect::TablePiece::Entry(entry) = piece
                && entry.kind == terrace::inspect::Kind::Delete
            {
                deletes += 1;
                assert_eq!(entry.expiry, None);
            }
            Ok::<_, terrace::Error>(())
        };
        terrace::inspect::table(&table, visit).unwrap();
    }
    assert!(deletes > 0, "nothing had expired before it was flushed");
    assert_eq!(db.iter().unwrap().count(), 0);
}
