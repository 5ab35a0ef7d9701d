//! Ingests: which entries appear and when, concurrency, and the state after a failure.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace::{Db, Design, Durability, ErrorKind, Options, Workers, WriteBatch};
use terrace_media::{FaultFs, Medium, OsFs};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;
use terrace_testkit::world::verify;

fn options(design: Design, workers: Workers) -> Options {
    let mut options = settings::small_of(design, Medium::Dax);
    options.pool.size_bytes = 8 << 20;
    options.background.workers = workers;
    options
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn load(db: &Db, keys: std::ops::Range<u32>, value: &[u8]) -> terrace::Result<()> {
    let mut ingest = db.ingest()?;
    for n in keys {
        ingest.add(key(n), value)?;
    }
    ingest.finish().map(|_| ())
}

/// An ingest replaces everything older, in memtables, tables and files, and is replaced by
/// everything newer. Earlier snapshots do not see it, and all of it is there after a reopen.
#[test]
fn an_ingest_is_newer_than_what_was_there() {
    for design in Design::ALL {
        for workers in [Workers::Manual, Workers::Threads(1)] {
            let folder = scratch().unwrap();
            let db = Db::open(folder.path(), options(design, workers)).unwrap();
            let old = |n: u32| vec![b'o'; 20 + n as usize % 50];
            for n in 0..600 {
                db.put(key(n), old(n)).unwrap();
                match n {
                    200 => db.drain().unwrap(),
                    400 => db.flush().unwrap(),
                    _ => {}
                }
            }
            let before = db.snapshot().unwrap();
            load(&db, 100..1000, b"new").unwrap();
            let after = db.snapshot().unwrap();
            db.put(key(150), "newest").unwrap();
            db.delete(key(151)).unwrap();
            let check = |db: &Db| {
                for n in 0..1000 {
                    let expected = match n {
                        0..100 => Some(old(n)),
                        150 => Some(b"newest".to_vec()),
                        151 => None,
                        _ => Some(b"new".to_vec()),
                    };
                    assert_eq!(db.get(key(n)).unwrap(), expected, "{design} key {n}");
                }
                assert_eq!(db.iter().unwrap().count(), 999);
                verify(db, Some(999)).unwrap();
            };
            check(&db);
            for step in 0..3 {
                assert_eq!(before.iter().unwrap().count(), 600, "{design} {step}");
                assert_eq!(before.get(key(100)).unwrap(), Some(old(100)));
                assert_eq!(before.get(key(999)).unwrap(), None);
                assert_eq!(after.get(key(150)).unwrap(), Some(b"new".to_vec()));
                assert_eq!(after.iter().unwrap().count(), 1000);
                // The same holds after everything has moved down.
                if step == 1 {
                    db.drain().unwrap();
                }
            }
            drop((before, after));
            check(&db);
            db.close().unwrap();
            drop(db);
            check(&Db::open(folder.path(), options(design, workers)).unwrap());
        }
    }
}

/// A range delete hides what existed when it was made, and never a later ingest, even if the delete
/// is above it, in a memtable, and moves down after it. A range delete made after the ingest hides
/// it.
#[test]
fn range_deletes_and_ingests_are_in_order() {
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Dram] {
            for flush_first in [false, true] {
                if !design.keeps_table_files() && medium == Medium::Dram {
                    // This is refused, see `tables_in_plain_memory_take_no_ingest`.
                    continue;
                }
                check_order(design, medium, flush_first);
            }
        }
    }
}

/// A range delete above all entries, and the only thing there, hides nothing of a later ingest, for
/// any subset of its keys that it covers: not immediately, not after a crash, not after a close.
#[test]
fn an_ingest_passes_a_range_delete_that_is_alone() {
    let (all, unbounded) = (key(90)..key(2000), key(150)..[255; 4]);
    let (first, last) = (key(0)..key(101), key(199)..key(200));
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Dram] {
            if !design.keeps_table_files() && medium == Medium::Dram {
                continue;
            }
            for deleted in [&all, &unbounded, &first, &last] {
                let folder = scratch().unwrap();
                let mut options = options(design, Workers::Manual);
                let of_medium = settings::small_of(design, medium);
                (options.pool.path, options.pool.medium) =
                    (of_medium.pool.path, of_medium.pool.medium);
                let mut db = Db::open(folder.path(), options.clone()).unwrap();
                db.delete_range(deleted.clone()).unwrap();
                load(&db, 100..200, b"new").unwrap();
                for reopened in [false, true, true] {
                    if reopened {
                        db.close().unwrap();
                        drop(db);
                        db = Db::open(folder.path(), options.clone()).unwrap();
                    }
                    for n in 100..200 {
                        let value = db.get(key(n)).unwrap();
                        let when = format!("{design} on {medium}, {deleted:?}, {n}, {reopened}");
                        assert_eq!(value.as_deref(), Some(&b"new"[..]), "{when}");
                    }
                    assert_eq!(db.iter().unwrap().count(), 100);
                }
            }
        }
    }
}

fn check_order(design: Design, medium: Medium, flush_first: bool) {
    let folder = scratch().unwrap();
    let mut options = options(design, Workers::Manual);
    let of_medium = settings::small_of(design, medium);
    (options.pool.path, options.pool.medium) = (of_medium.pool.path, of_medium.pool.medium);
    let when = |what: &str| format!("{design} on {medium}, {flush_first}: {what}");
    let db = Db::open(folder.path(), options.clone()).unwrap();
    // Old entries at every depth below the range delete.
    for n in 0..600 {
        db.put(key(n), "old").unwrap();
        match n {
            200 => db.drain().unwrap(),
            400 => db.flush().unwrap(),
            _ => {}
        }
    }
    let at_first = db.snapshot().unwrap();
    db.delete_range(key(100)..key(550)).unwrap();
    // Another range delete, which starts and ends outside the keys of the ingest.
    db.delete_range(key(90)..key(2000)).unwrap();
    if flush_first {
        db.flush().unwrap();
    }
    let deleted = db.snapshot().unwrap();
    load(&db, 100..900, b"new").unwrap();
    let ingested = db.snapshot().unwrap();
    let values = |pairs: terrace::Iter| -> Vec<(Vec<u8>, Vec<u8>)> {
        pairs.map(|pair| pair.unwrap().into_pair()).collect()
    };
    let expected = |old: u32, new: &dyn Fn(u32) -> bool| -> Vec<(Vec<u8>, Vec<u8>)> {
        let old = (0..old).map(|n| (key(n).to_vec(), b"old".to_vec()));
        let new = (100..900).filter(|n| new(*n));
        old.chain(new.map(|n| (key(n).to_vec(), b"new".to_vec())))
            .collect()
    };
    let with_all = expected(90, &|_| true);
    let with_half = expected(90, &|n| !(300..700).contains(&n));
    let check = |db: &Db, expected: &[(Vec<u8>, Vec<u8>)], what: &str| {
        assert!(values(db.iter().unwrap()) == expected, "{}", when(what));
        let back = db
            .iter()
            .unwrap()
            .rev()
            .map(|pair| pair.unwrap().into_pair());
        let mut back: Vec<_> = back.collect();
        back.reverse();
        assert!(back == expected, "{}", when(what));
        let mut left = expected.iter().peekable();
        for n in 0..1000 {
            let value = left.next_if(|(k, _)| k == &key(n)).map(|(_, v)| v.clone());
            assert_eq!(db.get(key(n)).unwrap(), value, "{} {n}", when(what));
        }
        verify(db, Some(expected.len() as u64)).unwrap();
    };
    let snapshots = |what: &str| {
        assert_eq!(at_first.iter().unwrap().count(), 600, "{}", when(what));
        assert_eq!(at_first.get(key(300)).unwrap(), Some(b"old".to_vec()));
        assert_eq!(deleted.iter().unwrap().count(), 90, "{}", when(what));
        assert_eq!(deleted.get(key(300)).unwrap(), None, "{}", when(what));
        let seen = values(ingested.iter().unwrap());
        assert!(seen == with_all, "{}", when(what));
    };
    check(&db, &with_all, "ingested");
    snapshots("ingested");
    db.flush().unwrap();
    check(&db, &with_all, "flushed");
    db.drain().unwrap();
    check(&db, &with_all, "drained");
    snapshots("drained");
    db.delete_range(key(300)..key(700)).unwrap();
    check(&db, &with_half, "deleted again");
    snapshots("deleted again");
    db.flush().unwrap();
    check(&db, &with_half, "flushed again");
    db.compact_range::<&[u8]>(..).unwrap();
    check(&db, &with_half, "compacted");
    snapshots("compacted");
    drop((at_first, deleted, ingested));
    db.compact_range::<&[u8]>(..).unwrap();
    check(&db, &with_half, "compacted without snapshots");
    // Ingests again over the range of the last delete, before its effects are gone, and kills the
    // database.
    db.delete_range(key(0)..key(900)).unwrap();
    load(&db, 100..900, b"new").unwrap();
    let last = expected(0, &|_| true);
    check(&db, &last, "ingested again");
    drop(db);
    let db = Db::open(folder.path(), options.clone()).unwrap();
    check(&db, &last, "reopened");
    db.compact_range::<&[u8]>(..).unwrap();
    check(&db, &last, "compacted again");
    db.close().unwrap();
    drop(db);
    check(&Db::open(folder.path(), options).unwrap(), &last, "closed");
}

/// Pairs ingested into a range that was deleted before are visible, whatever other ranges were
/// deleted, and stay so when these become tables above them.
#[test]
fn ranges_deleted_before_an_ingest_do_not_hide_it() {
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let mut options = options(design, Workers::Manual);
        // No compaction runs in between, which would order everything.
        options.bottom.leveled.runs_compact = 20;
        options.bottom.leveled.runs_slow = 30;
        options.bottom.leveled.runs_stop = 40;
        let db = Db::open(folder.path(), options).unwrap();
        db.put("m-before", "x").unwrap();
        // At the bottom, so that the range delete over it goes into a table.
        db.drain().unwrap();
        // On both sides, so that the table of the range deletes has them between its entries.
        db.put("a", "x").unwrap();
        db.put("zzzz", "x").unwrap();
        // Ranges of all lengths, on both sides of the ingested keys and over them.
        for (from, to) in [
            ("z", "zz"),
            ("b", "bb"),
            ("l-is-longer", "n"),
            ("yyy", "yyyy"),
        ] {
            db.delete_range(from..to).unwrap();
        }
        let mut ingest = db.ingest().unwrap();
        ingest.add("m", "loaded").unwrap();
        ingest.finish().unwrap();
        let check = |what: &str| {
            let found = db.get("m").unwrap();
            assert_eq!(found.as_deref(), Some(&b"loaded"[..]), "{design}, {what}");
            assert_eq!(db.multi_get(&["m"]).unwrap()[0], found, "{design}, {what}");
            assert_eq!(db.get("m-before").unwrap(), None, "{design}, {what}");
        };
        check("loaded");
        db.flush().unwrap();
        check("flushed");
        db.wait_idle().unwrap();
        check("at rest");
        db.drain().unwrap();
        check("drained");
    }
}

/// An ingest that is dropped, out of order or refused shows nothing and leaves no file, and the
/// next one works.
#[test]
fn an_ingest_that_fails_leaves_nothing() {
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let fs = FaultFs::new(Arc::new(OsFs));
        let mut place = Place::folder(folder.path());
        place.fs = Some(Arc::new(fs.clone()));
        let db = place.open(&options(design, Workers::Manual)).unwrap();
        let files = || tables(folder.path());
        let allocated = || db.metrics().pool.allocated_bytes;
        let at_first = allocated();

        let mut ingest = db.ingest().unwrap();
        assert_eq!(db.ingest().unwrap_err().kind(), ErrorKind::Invalid);
        for n in 0..2000 {
            ingest.add(key(n), [7; 40]).unwrap();
        }
        let refused = ingest.add(key(1999), "again").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(
            refused.to_string().contains("not greater than"),
            "{refused}"
        );
        ingest.add(key(2000), "goes on").unwrap();
        drop(ingest);
        assert_eq!((files(), allocated()), (0, at_first), "{design}");

        if design.keeps_table_files() {
            fs.fill_up(true);
            let refused = load(&db, 0..4000, &[7; 40]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
            fs.fill_up(false);
        } else {
            let refused = load(&db, 0..9000, &[7; 1000]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
        }
        assert_eq!((files(), allocated()), (0, at_first), "{design}");
        assert_eq!(db.iter().unwrap().count(), 0);

        assert_eq!(db.ingest().unwrap().finish().unwrap().entries, 0);
        load(&db, 0..500, &[7; 40]).unwrap();
        assert_eq!(db.iter().unwrap().count(), 500);
        let mut late = db.ingest().unwrap();
        late.add("k", "v").unwrap();
        db.close().unwrap();
        assert_eq!(late.finish().unwrap_err().kind(), ErrorKind::Closed);
    }
}

fn tables(folder: &Path) -> usize {
    terrace::inspect::tables(folder).unwrap().len()
}

/// A database that keeps only logs refuses an ingest with advice.
#[test]
fn tables_in_plain_memory_take_no_ingest() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), settings::small(Medium::Dram)).unwrap();
    let refused = db.ingest().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("write with put"), "{refused}");
}

/// A run that is alone on level 0 and overlaps nothing is written once: its tables move down by
/// edits.
#[test]
fn sorted_files_are_written_once() {
    let folder = scratch().unwrap();
    let mut options = options(Design::Leveled, Workers::Manual);
    options.bottom.leveled.runs_compact = 1;
    let db = Db::open(folder.path(), options).unwrap();
    load(&db, 0..5000, &[7; 40]).unwrap();
    let written = db.metrics().table_file_bytes;
    db.drain().unwrap();
    assert_eq!(db.metrics().table_file_bytes, written);
    assert!(db.metrics().files.iter().all(|level| level.level > 0));
}

/// An ingest moves only entries between its keys, and what is older than those: tables that came
/// later stay in the buffer, and data in files stays where it is.
#[test]
fn an_ingest_moves_what_is_in_its_way_only() {
    let folder = scratch().unwrap();
    let mut options = options(Design::MioDbSsd, Workers::Manual);
    options.buffer.levels = 32;
    options.buffer.table_bytes_max = Some(options.front.memtable_bytes);
    // Few pairs would go into the buffer.
    let new = vec![b'n'; options.front.memtable_bytes as usize / 50];
    let db = Db::open(folder.path(), options).unwrap();
    for n in 0..100 {
        db.put(key(n), "old").unwrap();
    }
    db.flush().unwrap();
    // More tables than one drain takes, none of them on the last level.
    for n in 0..160 {
        db.put(key(5000 + n), vec![7; 1000]).unwrap();
    }
    db.flush().unwrap();
    assert_eq!(db.metrics().table_file_bytes, 0);
    let buffered = || -> u64 { db.metrics().levels.iter().map(|l| l.bytes).sum() };
    load(&db, 0..100, &new).unwrap();
    let left = buffered();
    assert!(left > 0, "all of the buffer was drained");
    for n in 0..100 {
        assert_eq!(db.get(key(n)).unwrap().as_ref(), Some(&new), "key {n}");
    }
    // Nothing overlaps, so nothing moves.
    let written = db.metrics().table_file_bytes;
    load(&db, 200..300, b"new").unwrap();
    assert_eq!(buffered(), left);
    let own = db.metrics().table_file_bytes - written;
    assert!(
        own < 4096,
        "{own} bytes were written for a hundred small pairs"
    );
    drop(db);

    let folder = scratch().unwrap();
    let mut options = self::options(Design::Leveled, Workers::Manual);
    options.bottom.leveled.runs_compact = 6;
    options.bottom.leveled.runs_slow = 8;
    options.bottom.leveled.runs_stop = 12;
    let db = Db::open(folder.path(), options).unwrap();
    for round in 0..3 {
        for n in 0..100 {
            db.put(key(n), [round]).unwrap();
        }
        db.flush().unwrap();
    }
    db.put(key(50), "in a memtable").unwrap();
    load(&db, 0..100, b"new").unwrap();
    assert_eq!(
        db.metrics().files[0].run_count,
        5,
        "{:?}",
        db.metrics().files
    );
    assert_eq!(db.get(key(50)).unwrap(), Some(b"new".to_vec()));
}

/// With concurrent writers of the same keys, each key takes its values in order, an ingest shows in
/// all keys or in none at every moment, and no reader goes back to an earlier state.
#[test]
fn ingests_during_writes_are_atomic() {
    const KEYS: u32 = 300;
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let mut options = options(design, Workers::Threads(2));
        options.pool.size_bytes = 32 << 20;
        let db = Db::open(folder.path(), options).unwrap();
        let (done, round) = (AtomicBool::new(false), AtomicU64::new(0));
        // Values are the number of the ingest or, from a writer in between, the number before it.
        // Few bytes may go into the buffer, many into the bottom.
        let load = |n: u64| {
            let mut value = n.to_be_bytes().to_vec();
            value.resize(if n.is_multiple_of(2) { 8 } else { 100 }, 0);
            super::ingest::load(&db, 0..KEYS, &value).unwrap();
        };
        load(0);
        let number = |value: Vec<u8>| u64::from_be_bytes(value[..8].try_into().unwrap());
        std::thread::scope(|scope| {
            let (db, done, round) = (&db, &done, &round);
            for writer in 0..2u32 {
                scope.spawn(move || {
                    let mut n = writer;
                    while !done.load(Ordering::Acquire) {
                        // An own key in the middle of the range, and one after it.
                        n = n.wrapping_add(2);
                        let own = [key(n % KEYS).as_slice(), b"x"].concat();
                        db.put(own, n.to_be_bytes()).unwrap();
                        db.put(key(KEYS + n % 100), n.to_be_bytes()).unwrap();
                    }
                });
            }
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let at_least = round.load(Ordering::Acquire);
                    let early = number(db.get(key(1)).unwrap().unwrap());
                    let snapshot = db.snapshot().unwrap();
                    let seen: Vec<u64> = [0, 1, KEYS / 2, KEYS - 1]
                        .map(|n| number(snapshot.get(key(n)).unwrap().unwrap()))
                        .into();
                    assert!(seen.iter().all(|n| *n == seen[0]), "{design}: {seen:?}");
                    assert!(early >= at_least, "{design}: {at_least}, then {early}");
                    assert!(seen[0] >= early, "{design}: {early}, then {}", seen[0]);
                }
            });
            for n in 1..=25u64 {
                load(n);
                round.store(n, Ordering::Release);
                for k in [0, 77, KEYS - 1] {
                    assert_eq!(number(db.get(key(k)).unwrap().unwrap()), n, "{design}");
                }
            }
            done.store(true, Ordering::Release);
        });
        verify(&db, None).unwrap();
        db.close().unwrap();
    }
}

/// Threads that begin ingests at the same time get one each, or are told that another is running:
/// none that was begun fails.
#[test]
fn ingests_that_begin_together_do_not_fail() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), options(Design::Leveled, Workers::Threads(1))).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6u32 {
            let db = &db;
            scope.spawn(move || {
                let mut done = 0;
                while done < 100 {
                    let mut ingest = match db.ingest() {
                        Ok(ingest) => ingest,
                        Err(e) => {
                            assert!(e.to_string().contains("another ingest"), "{e}");
                            continue;
                        }
                    };
                    ingest.add(key(thread), key(done)).unwrap();
                    ingest.finish().unwrap();
                    done += 1;
                }
            });
        }
    });
    for thread in 0..6 {
        assert_eq!(db.get(key(thread)).unwrap(), Some(key(99).to_vec()));
    }
}

/// A range delete that is only in a memtable removes nothing permanently, though entries ingested
/// after it are in files already: a process killed then leaves the batch entirely or not at all.
#[test]
fn ranges_deleted_before_an_ingest_are_applied_when_they_last() {
    for design in settings::designs_with_files() {
        let mut options = options(design, Workers::Manual);
        options.bottom.leveled.runs_compact = 1;
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let folder = scratch().unwrap();
            let place = |name: &str| folder.path().join(name);
            let db = Db::open(place("db"), options.clone()).unwrap();
            for n in 0..100 {
                db.put(key(n), [7; 50]).unwrap();
            }
            db.drain().unwrap();
            let mut batch = WriteBatch::new();
            batch.delete_range(key(10)..key(90)).put(key(200), "both");
            db.write(batch, Durability::Volatile).unwrap();
            // Ingests next to the range: compactions with these entries include keys of the range.
            for _ in 0..rng.u32(1..4) {
                load(&db, 0..2, b"new").unwrap();
            }
            for _ in 0..rng.u32(0..12) {
                db.step(rng.usize(..)).unwrap();
            }
            std::fs::create_dir(place("killed")).unwrap();
            for file in std::fs::read_dir(place("db")).unwrap() {
                let name = file.unwrap().file_name();
                std::fs::copy(place("db").join(&name), place("killed").join(&name)).unwrap();
            }
            let killed = Db::open(place("killed"), options.clone()).unwrap();
            let left = killed.range(key(10)..key(90)).unwrap().count();
            let lasts = killed.get(key(200)).unwrap().is_some();
            assert_eq!(left, if lasts { 0 } else { 80 }, "{design}, seed {seed}");
        }
    }
}
