//! Designs with levels of table files at the bottom: full disks, missing and foreign files, sizes.

use std::path::Path;
use std::sync::Arc;

use terrace::{Db, Design, ErrorKind, Options, Workers};
use terrace_media::{FaultFs, Medium, OsFs};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

fn options(design: Design, workers: Workers) -> Options {
    let mut options = settings::small_of(design, Medium::Dax);
    options.background.workers = workers;
    options
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn tables(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".sst")).collect();
    names.sort();
    names
}

fn named_tables(db: &Db) -> u64 {
    db.metrics()
        .files
        .iter()
        .map(|level| level.file_count)
        .sum()
}

/// Writes `count` keys, settles, and returns the store.
fn filled(folder: &Path, design: Design, count: u32) -> Db {
    let db = Db::open(folder, options(design, Workers::Manual)).unwrap();
    for n in 0..count {
        db.put(key(n * 7919 % count), vec![n as u8; 100]).unwrap();
    }
    db.drain().unwrap();
    db
}

/// When the disk fills up, writes are refused in time with an error that names it, and reads
/// continue. Once there is space, everything resumes automatically, and nothing acknowledged is
/// lost.
#[test]
fn a_full_disk_refuses_writes_and_comes_back() {
    for design in settings::designs_with_files() {
        for workers in [Workers::Manual, Workers::Threads(1)] {
            let folder = scratch().unwrap();
            let fs = FaultFs::new(Arc::new(OsFs));
            let mut place = Place::folder(folder.path());
            place.fs = Some(Arc::new(fs.clone()));
            let db = place.open(&options(design, workers)).unwrap();
            let value = |n: u32| vec![n as u8; 200];
            let mut count = 0;
            for turn in 0..3 {
                fs.fill_up(true);
                let refused = loop {
                    match db.put(key(count), value(count)) {
                        Ok(()) => count += 1,
                        Err(e) => break e,
                    }
                    assert!(count < 100_000, "20 MB fit a pool of 2 MiB and a full disk");
                };
                assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
                assert!(refused.to_string().contains("space"), "{refused}");
                for n in 0..count {
                    assert_eq!(
                        db.get(key(n)).unwrap(),
                        Some(value(n)),
                        "turn {turn}, key {n}"
                    );
                }
                fs.fill_up(false);
                for n in count..count + 2000 {
                    // The first puts may still be refused: jobs that wait for space retry at
                    // intervals.
                    let mut tries = 0;
                    while let Err(e) = db.put(key(n), value(n)) {
                        assert_eq!(e.kind(), ErrorKind::Full, "{e}");
                        assert!(tries < 100, "room came back and writes are refused");
                        tries += 1;
                        std::thread::sleep(std::time::Duration::from_millis(20));
                    }
                }
                count += 2000;
            }
            assert_eq!(db.iter().unwrap().count() as u32, count);
            if let Err(e) = db.drain() {
                panic!("{design} {workers:?} {e} {}", db.metrics());
            }
            assert_eq!(
                db.verify(&mut |_| {}).unwrap().problems,
                Vec::<String>::new()
            );
            assert_eq!(tables(folder.path()).len() as u64, named_tables(&db));
        }
    }
}

/// A flush with a full pool and disk is refused like a put, and succeeds once there is space.
#[test]
fn a_flush_on_a_full_disk_is_refused() {
    for workers in [Workers::Manual, Workers::Threads(1)] {
        let folder = scratch().unwrap();
        let fs = FaultFs::new(Arc::new(OsFs));
        let mut place = Place::folder(folder.path());
        place.fs = Some(Arc::new(fs.clone()));
        let db = place.open(&options(Design::MioDbSsd, workers)).unwrap();
        fs.fill_up(true);
        let full = |write: &dyn Fn(u32) -> terrace::Result<()>| {
            let refused = (0..100_000).find_map(|n| write(n).err());
            assert_eq!(refused.map(|e| e.kind()), Some(ErrorKind::Full));
        };
        full(&|n| db.put(key(n), [n as u8; 200]));
        // These also use the space reserved for moving data.
        let flushes = std::cell::Cell::new(0);
        full(&|n| {
            db.delete(key(n))?;
            flushes.set(flushes.get() + 1);
            db.flush()?;
            flushes.set(flushes.get() - 1);
            Ok(())
        });
        assert_eq!(flushes.get(), 1, "a delete was refused, not a flush");
        fs.fill_up(false);
        let mut tries = 0;
        while let Err(e) = db.flush() {
            assert_eq!(e.kind(), ErrorKind::Full, "{e}");
            assert!(tries < 100, "room came back and flushes are refused");
            tries += 1;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let problems = db.verify(&mut |_| {}).unwrap().problems;
        assert_eq!(problems, Vec::<String>::new());
    }
}

/// A table of the database that is not in the manifest, as left by a crash, is removed. A file with
/// such a name that is not proved to be the database's stays, and so do other files.
#[test]
fn only_own_unnamed_tables_are_removed() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let open = || Db::open(folder.path(), options(design, Workers::Manual)).unwrap();
        let db = filled(folder.path(), design, 2000);
        db.close().unwrap();
        drop(db);
        let old: Vec<_> = tables(folder.path())
            .into_iter()
            .map(|name| (std::fs::read(folder.path().join(&name)).unwrap(), name))
            .collect();
        let db = open();
        db.delete_range::<[u8; 4]>(..).unwrap();
        for n in 0..2000 {
            db.put(key(n), b"newer").unwrap();
        }
        db.compact_range::<[u8; 4]>(..).unwrap();
        db.close().unwrap();
        drop(db);
        let named = tables(folder.path());
        let unnamed = old.iter().filter(|(_, name)| !named.contains(name));
        assert!(unnamed.clone().count() > 0, "{named:?}");
        for (content, name) in unnamed {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        let others = ["0000000000990000.sst", "notes.txt"];
        for name in others {
            std::fs::write(folder.path().join(name), b"not the database's").unwrap();
        }
        let db = open();
        for name in others {
            let content = std::fs::read(folder.path().join(name)).unwrap();
            assert_eq!(content, b"not the database's");
        }
        assert_eq!(tables(folder.path()).len() as u64, named_tables(&db) + 1);
        // The number is not reused.
        for n in 0..2000 {
            db.put(key(n), b"again").unwrap();
        }
        db.drain().unwrap();
        assert_eq!(db.iter().unwrap().count(), 2000);
    }
}

/// With a directory of its own, level 0 is there and nothing else, across openings; only unnamed
/// tables of the database are removed from it.
#[test]
fn a_level_0_has_its_own_directory() {
    let (folder, level0) = (scratch().unwrap(), scratch().unwrap());
    let mut options = options(Design::Leveled, Workers::Manual);
    options.bottom.leveled.level0_dir = Some(level0.path().into());
    options.bottom.leveled.runs_compact = 3;
    let open = || Db::open(folder.path(), options.clone()).unwrap();
    let db = open();
    let counted = || {
        let levels = db.metrics().files;
        let files = |is_0: bool| {
            let of = levels.iter().filter(|level| (level.level == 0) == is_0);
            of.map(|level| level.file_count).sum::<u64>()
        };
        assert_eq!(tables(level0.path()).len() as u64, files(true));
        assert_eq!(tables(folder.path()).len() as u64, files(false));
        (files(true), files(false))
    };
    let mut old = Vec::new();
    for round in 0..8u32 {
        if round > 0 {
            while db.step(0).unwrap() {}
            assert!(counted().1 > 0);
        }
        for n in 0..400 {
            db.put(key(n * 7 % 400), round.to_be_bytes()).unwrap();
        }
        db.flush().unwrap();
        assert!(counted().0 > 0);
        for name in tables(level0.path()) {
            let path = level0.path().join(&name);
            old.push((std::fs::read(&path).unwrap(), path));
        }
    }
    db.close().unwrap();
    drop(db);
    let named = tables(level0.path());
    assert!(!named.is_empty());
    let is_named = |path: &Path| named.contains(&path.file_name().unwrap().display().to_string());
    let unnamed: Vec<_> = old
        .into_iter()
        .filter(|(_, path)| !is_named(path))
        .collect();
    assert!(!unnamed.is_empty());
    for (content, path) in unnamed {
        std::fs::write(path, content).unwrap();
    }
    std::fs::write(level0.path().join("0000000000990000.sst"), b"another's").unwrap();
    let db = open();
    assert_eq!(tables(level0.path()).len(), named.len() + 1);
    for n in 0..400 {
        assert_eq!(db.get(key(n)).unwrap().unwrap(), 7u32.to_be_bytes());
    }
    drop(db);
    // Without it the tables are missing, and named with their places.
    options.bottom.leveled.level0_dir = None;
    let e = Db::open(folder.path(), options).unwrap_err();
    assert!(e.to_string().contains("is missing"), "{e}");
}

/// Opening a database with a missing table fails with an error that names the table.
#[test]
fn a_missing_table_is_named() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        filled(folder.path(), design, 2000).close().unwrap();
        let lost = tables(folder.path()).swap_remove(0);
        std::fs::remove_file(folder.path().join(&lost)).unwrap();
        let error = Db::open(folder.path(), options(design, Workers::Manual)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert!(error.to_string().contains(&lost), "{error}");
    }
}

/// If any byte of a table changes, reads are right or fail with an error that names the file, and
/// verify finds it.
#[test]
fn changed_bytes_of_tables_are_found() {
    let folder = scratch().unwrap();
    let count = 400;
    filled(folder.path(), Design::Leveled, count)
        .close()
        .unwrap();
    let truth: Vec<Vec<u8>> = {
        let db = Db::open(folder.path(), options(Design::Leveled, Workers::Manual)).unwrap();
        (0..count)
            .map(|n| db.get(key(n)).unwrap().unwrap())
            .collect()
    };
    let name = tables(folder.path()).swap_remove(0);
    let path = folder.path().join(&name);
    let good = std::fs::read(&path).unwrap();
    let mut wrong = 0;
    for at in (0..good.len()).step_by(37) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bad).unwrap();
        let mut expect_named = |e: terrace::Error| {
            assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
            assert!(e.to_string().contains(&name), "{e}");
            wrong += 1;
        };
        let opened = Db::open(folder.path(), options(Design::Leveled, Workers::Manual));
        let db = match opened {
            Ok(db) => db,
            // The store's own records are in the first block of the first table.
            Err(e) => {
                expect_named(e);
                continue;
            }
        };
        for (n, value) in truth.iter().enumerate() {
            match db.get(key(n as u32)) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value), "byte {at}, key {n}"),
                Err(e) => expect_named(e),
            }
        }
        let problems = db.verify(&mut |_| {}).unwrap().problems;
        assert!(!problems.is_empty(), "verify misses byte {at}");
    }
    assert!(wrong > 100, "reads meet the changed bytes");
}

/// After everything was deleted and drained, hardly a file remains. Continuous overwriting does not
/// grow the directory.
#[test]
fn space_of_files_comes_back() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options(design, Workers::Manual)).unwrap();
        let bytes = || -> u64 { db.metrics().files.iter().map(|level| level.bytes).sum() };
        let mut most = 0;
        for round in 0..40u32 {
            for n in 0..500 {
                let len = 20 + (n * 31 + round * 17) % 300;
                db.put(key(n), vec![round as u8; len as usize]).unwrap();
            }
            db.drain().unwrap();
            if round >= 5 {
                most = most.max(bytes());
            }
        }
        let live: u64 = db
            .iter()
            .unwrap()
            .map(|pair| pair.unwrap().value().len() as u64 + 4)
            .sum();
        assert!(
            most < 6 * live,
            "{design}: {most} bytes of files for {live} of data"
        );
        for n in 0..500 {
            db.delete(key(n)).unwrap();
        }
        for _ in 0..3 {
            db.drain().unwrap();
        }
        assert_eq!(db.iter().unwrap().count(), 0);
        assert!(
            bytes() < live / 2,
            "{design}: {} bytes are left of {live}",
            bytes()
        );
    }
}

/// Levels above the last stay within their targets, and most of the data is on the last.
#[test]
fn levels_keep_to_their_targets() {
    let folder = scratch().unwrap();
    let db = filled(folder.path(), Design::Leveled, 20_000);
    let levels = db.metrics().files;
    let all: u64 = levels.iter().map(|level| level.bytes).sum();
    let last = levels.last().unwrap();
    assert!(last.bytes * 2 > all, "{levels:?}");
    assert!(levels.len() > 2, "{levels:?}");
    for level in &levels {
        if let (Some(target), true) = (level.target_bytes, level.level != last.level) {
            assert!(level.bytes <= target, "{level:?} of {levels:?}");
            assert_eq!(level.run_count, 1);
        }
    }
    assert_eq!(db.iter().unwrap().count(), 20_000);
}

/// After a drain no data remains above its destination: no table in the buffer, no run in level 0,
/// for any choice of workers, and for a last flush of any size.
#[test]
fn a_drain_leaves_nothing_above_its_place() {
    for design in settings::designs_with_files() {
        for workers in [Workers::Manual, Workers::Threads(1), Workers::Threads(3)] {
            let folder = scratch().unwrap();
            let mut options = options(design, workers);
            // The limit is more runs than a drain makes: only the drain itself requests their
            // compaction.
            options.bottom.leveled.runs_compact = 8;
            let db = Db::open(folder.path(), options).unwrap();
            let mut met = 0;
            for round in 0..12u32 {
                for n in 0..(round + 1) * 20 {
                    db.put(key(n * 31 + round), vec![round as u8; 120]).unwrap();
                }
                if round % 3 == 2 {
                    db.flush().unwrap();
                }
                met += db.metrics().files.iter().filter(|l| l.level == 0).count();
                db.drain().unwrap();
                let metrics = db.metrics();
                assert!(metrics.levels.is_empty(), "{design}: {:?}", metrics.levels);
                assert!(
                    metrics.files.iter().all(|level| level.level > 0),
                    "{design}, {workers:?}, round {round}: {:?}",
                    metrics.files
                );
            }
            assert!(design != Design::Leveled || met > 0, "level 0 was in use");
        }
    }
}

/// A multi-get returns the same as single gets, in every design, wherever the keys are and in any
/// order, with or without repetitions, and in snapshots too. If blocks are not cached, neighbors
/// share the read of their block.
#[test]
fn many_gets_say_what_single_ones_say() {
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let mut options = options(design, Workers::Manual);
        options.bottom.leveled.cache_bytes = 1;
        options.bottom.leveled.block_bytes = 1024;
        let db = Db::open(folder.path(), options).unwrap();
        let space = db.create_keyspace("other").unwrap();
        let mut rng = fastrand::Rng::with_seed(4);
        let mut snapshots = Vec::new();
        let misses = |db: &Db| db.metrics().cache.miss_count;
        for round in 0..12u8 {
            for _ in 0..150 {
                let n = rng.u32(0..600);
                match rng.u8(0..6) {
                    0 => db.delete(key(n)).unwrap(),
                    1 => space.put(key(n), [round; 30]).unwrap(),
                    _ => db.put(key(n), vec![round; rng.usize(0..90)]).unwrap(),
                }
            }
            match round % 4 {
                0 => db.drain().unwrap(),
                1 => db.flush().unwrap(),
                2 => snapshots.push(db.snapshot().unwrap()),
                _ => {}
            }
            let mut asked: Vec<[u8; 4]> = (0..200).map(|_| key(rng.u32(0..650))).collect();
            asked.push(asked[0]);
            rng.shuffle(&mut asked);
            let before = misses(&db);
            let singles: Vec<_> = asked.iter().map(|k| db.get(k).unwrap()).collect();
            let by_one = misses(&db) - before;
            let many = db.multi_get(&asked).unwrap();
            assert_eq!(many, singles, "{design}, round {round}");
            let at_once = misses(&db) - before - by_one;
            assert!(
                at_once * 2 <= by_one || by_one == 0,
                "{design}, round {round}: {at_once} blocks at once, {by_one} one by one"
            );
            assert_eq!(by_one > 0, design.keeps_table_files(), "{design}, {round}");
            let singles: Vec<_> = asked.iter().map(|k| space.get(k).unwrap()).collect();
            assert_eq!(space.multi_get(&asked).unwrap(), singles);
            for snapshot in &snapshots {
                let singles: Vec<_> = asked.iter().map(|k| snapshot.get(k).unwrap()).collect();
                assert_eq!(snapshot.multi_get(&asked).unwrap(), singles);
                let found = snapshot.multi_get_in(&space, &asked).unwrap();
                let singles = asked.iter().map(|k| snapshot.get_in(&space, k).unwrap());
                assert_eq!(found, singles.collect::<Vec<_>>());
            }
        }
        assert!(db.multi_get::<[u8; 4]>(&[]).unwrap().is_empty());
    }
}

/// Written bytes are counted over the database's life: reopening forgets nothing, and a crash only
/// the bytes after the last edit.
#[test]
fn totals_outlive_a_reopen() {
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let mut ever = 0;
        for round in 0..4u32 {
            let db = Db::open(folder.path(), options(design, Workers::Manual)).unwrap();
            let before = db.metrics().life;
            assert_eq!(before.user_written_bytes, ever, "{design}, round {round}");
            for n in 0..300 {
                db.put(key(n), [round as u8; 96]).unwrap();
            }
            ever += 300 * 100;
            if round % 2 == 0 {
                db.drain().unwrap();
            }
            let metrics = db.metrics();
            assert_eq!(metrics.user_written_bytes, 300 * 100);
            assert_eq!(metrics.life.user_written_bytes, ever);
            assert!(metrics.life.pool_bytes > before.pool_bytes);
            assert_eq!(
                metrics.life.table_file_bytes - before.table_file_bytes,
                metrics.table_file_bytes
            );
            db.close().unwrap();
        }
    }
}

/// Long overwriting keeps the files within the bound of docs/operations.md, in any order of the
/// background steps, and no write is refused or waits for more than their steps.
#[test]
fn overwriting_for_long_keeps_the_files_bounded() {
    for (seed, dynamic) in [(1, true), (2, true), (3, false)] {
        let folder = scratch().unwrap();
        let mut options = options(Design::Leveled, Workers::Manual);
        options.bottom.leveled.dynamic_sizes = dynamic;
        options.bottom.leveled.growth = 10;
        options.bottom.leveled.compression = terrace::Compression::None;
        let memtable = options.front.memtable_bytes;
        let leveled = options.bottom.leveled.clone();
        let db = Db::open(folder.path(), options).unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = 3000u32;
        let live = u64::from(count) * 104;
        let mut worst = 0u64;
        for n in 0..60_000u32 {
            let at = if n < count { n } else { rng.u32(0..count) };
            db.put(key(at), [n as u8; 100]).unwrap();
            // Workers keep up, taking the jobs in any order.
            if n % 20 == 0 {
                for _ in 0..6 {
                    db.step(rng.usize(..)).unwrap();
                }
            }
            if n > count * 2 && n % 100 == 0 {
                let files = std::fs::read_dir(folder.path())
                    .unwrap()
                    .map(Result::unwrap);
                let tables = files.filter(|f| f.path().extension().is_some_and(|e| e == "sst"));
                worst = worst.max(tables.map(|f| f.metadata().unwrap().len()).sum());
            }
        }
        db.compact_range::<[u8; 4]>(..).unwrap();
        let compacted: u64 = db.metrics().files.iter().map(|level| level.bytes).sum();
        // All levels above the last hold a ninth of it. Here every possible compaction is in flight
        // at once, so all of that may exist twice. Level 0 adds its runs.
        let level0 = 2 * (leveled.runs_compact as u64 + 2) * memtable;
        let bound = compacted * 25 / 10 + leveled.level1_bytes + level0;
        assert!(
            worst < bound,
            "seed {seed}: {worst} bytes of {compacted}, over {bound}"
        );
        assert!(worst > live, "{worst}");
        assert_eq!(db.iter().unwrap().count() as u32, count);
    }
}

/// Without a buffer the pool contains the logs but not the memtables: filling and flushing ten of
/// them takes no more of it than their logs.
#[test]
fn a_design_without_a_buffer_keeps_no_room_for_flushes() {
    let used = |design: Design| {
        let folder = scratch().unwrap();
        let mut options = options(design, Workers::Manual);
        options.pool.size_bytes = 8 << 20;
        options.front.memtable_bytes = 256 << 10;
        let db = Db::open(folder.path(), options.clone()).unwrap();
        for n in 0..20_000 {
            db.put(key(n % 4000), [n as u8; 100]).unwrap();
        }
        db.close().unwrap();
        drop(db);
        let db = Db::open(folder.path(), options).unwrap();
        assert_eq!(db.iter().unwrap().count(), 4000);
        db.drain().unwrap();
        db.metrics().pool.allocated_bytes
    };
    // A memtable and a spare, whose logs are a quarter larger than they are.
    let (with, without) = (used(Design::MioDbSsd), used(Design::Leveled));
    // One page covers the placement of all of them.
    assert!(without + (256 << 10) <= with + 4096, "{without} and {with}");
    assert!(without < (512 << 10) + 3 * (320 << 10), "{without}");
}
