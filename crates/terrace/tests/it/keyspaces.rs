//! Keyspaces: a drop is atomic for every reader and writer, and a handle works only with its own
//! database.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use terrace::{Db, Design, Durability, ErrorKind, Keyspace, Result, Workers, WriteBatch};
use terrace_media::{Machine, Medium, Survive};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

const DESIGNS: [(Design, Medium); 5] = [
    (Design::MioDb, Medium::Dax),
    (Design::MioDb, Medium::Dram),
    (Design::MioDbSsd, Medium::Dram),
    (Design::Leveled, Medium::Dram),
    (Design::NoveLsm, Medium::Dax),
];
const KEYS: u32 = 200;

fn opened(design: Design, medium: Medium, workers: Workers) -> (tempfile::TempDir, Db) {
    let folder = scratch().unwrap();
    let mut options = settings::small_of(design, medium);
    options.background.workers = workers;
    let db = Db::open(folder.path(), options).unwrap();
    (folder, db)
}

/// Reads the keyspace. Returns the number of keys, or an error.
fn look(db: &Db, space: &Keyspace, turn: usize) -> Result<usize> {
    let keys: Vec<[u8; 4]> = (0..KEYS).map(u32::to_be_bytes).collect();
    match turn % 6 {
        0 => {
            let mut count = 0;
            for key in &keys {
                count += usize::from(space.get(key)?.is_some());
            }
            Ok(count)
        }
        1 => Ok(space.multi_get(&keys)?.iter().flatten().count()),
        2 => space
            .iter()?
            .try_fold(0, |count, pair| pair.map(|_| count + 1)),
        3 => {
            let mut pairs = space.iter()?.rev();
            pairs.try_fold(0, |count, pair| pair.map(|_| count + 1))
        }
        4 => {
            let snapshot = db.snapshot()?;
            let mut count = 0;
            for key in &keys {
                count += usize::from(snapshot.get_in(space, key)?.is_some());
            }
            Ok(count)
        }
        _ => {
            let mut pairs = db.snapshot()?.iter_in(space)?;
            pairs.try_fold(0, |count, pair| pair.map(|_| count + 1))
        }
    }
}

/// While a keyspace is dropped and purged, each read returns all of it or `Invalid`, and after the
/// first `Invalid` only that.
#[test]
fn a_read_during_a_drop_sees_all_of_the_keyspace_or_is_refused() {
    for (design, medium) in DESIGNS {
        let (_folder, db) = opened(design, medium, Workers::Threads(2));
        let begun = Instant::now();
        let mut turn = 0;
        while begun.elapsed() < Duration::from_millis(400) {
            turn += 1;
            let space = db.create_keyspace("space").unwrap();
            let mut batch = WriteBatch::new();
            for key in 0..KEYS {
                batch.put_in(&space, key.to_be_bytes(), [7; 100]);
            }
            db.write(batch, Durability::Buffered).unwrap();
            if turn % 3 != 0 {
                db.drain().unwrap();
            }
            let reading = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    loop {
                        let found = look(&db, &space, turn);
                        reading.store(true, Ordering::Relaxed);
                        match found {
                            Ok(count) => assert_eq!(count, KEYS as usize, "{design}, {turn}"),
                            Err(e) => {
                                assert_eq!(e.kind(), ErrorKind::Invalid, "{design}: {e}");
                                break;
                            }
                        }
                    }
                    assert!(look(&db, &space, turn).is_err(), "{design} on {medium}");
                });
                while !reading.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                db.drop_keyspace("space").unwrap();
                // Drains, so that the keyspace is purged at once.
                let _ = db.drain();
            });
        }
    }
}

/// An acknowledged batch with an entry for a keyspace comes before its drop: all of it is there
/// when the drop returns.
#[test]
fn an_acknowledged_write_into_a_dropped_keyspace_came_before_the_drop() {
    let (_folder, db) = opened(Design::MioDb, Medium::Dram, Workers::Threads(2));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        let space = db.create_keyspace("space").unwrap();
        let writing = AtomicBool::new(false);
        let last = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0u64.. {
                    let mut batch = WriteBatch::new();
                    batch.put("marker", round.to_be_bytes());
                    batch.put_in(&space, "key", "value");
                    let written = db.write(batch, Durability::Buffered);
                    writing.store(true, Ordering::Relaxed);
                    if let Err(e) = written {
                        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
                        return round.checked_sub(1);
                    }
                }
                None
            });
            while !writing.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            db.drop_keyspace("space").unwrap();
            let marker = db.get("marker").unwrap();
            (writer.join().unwrap(), marker)
        });
        let (last, marker) = last;
        assert_eq!(marker, last.map(|round| round.to_be_bytes().to_vec()));
        db.delete("marker").unwrap();
    }
}

/// Every call with a keyspace of another database is refused, and changes neither database.
#[test]
fn a_keyspace_of_another_database_is_refused() {
    for (design, medium) in DESIGNS {
        let (_here, db) = opened(design, medium, Workers::Manual);
        let (_there, other) = opened(design, medium, Workers::Manual);
        let own = db.create_keyspace("own").unwrap();
        own.put("key", "mine").unwrap();
        for foreign in [
            other.create_keyspace("foreign").unwrap(),
            other.default_keyspace(),
        ] {
            let minute = Duration::from_secs(60);
            let later = std::time::SystemTime::now() + minute;
            let fills: [&dyn Fn(&mut WriteBatch); 7] = [
                &|batch| {
                    batch.put_in(&foreign, "key", "theirs");
                },
                &|batch| {
                    batch.delete_in(&foreign, "key");
                },
                &|batch| {
                    batch.delete_range_in(&foreign, "a".."z");
                },
                &|batch| {
                    batch.put_with_ttl_in(&foreign, "key", "theirs", minute);
                },
                &|batch| {
                    batch.put_with_expiry_in(&foreign, "key", "theirs", later);
                },
                &|batch| {
                    batch.put_in(&own, "a", "1").put_in(&foreign, "a", "1");
                },
                &|batch| {
                    batch.put_in(&foreign, "a", "1").put_in(&own, "a", "1");
                },
            ];
            let mut batch = WriteBatch::new();
            for fill in fills {
                batch.clear();
                batch.put("default", "value");
                fill(&mut batch);
                let refused = db.write_ref(&mut batch, Durability::Buffered).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Invalid);
            }
            let snapshot = db.snapshot().unwrap();
            let refusals = [
                snapshot.get_in(&foreign, "key").map(drop),
                snapshot.get_with_expiry_in(&foreign, "key").map(drop),
                snapshot.multi_get_in(&foreign, &["key"]).map(drop),
                snapshot.iter_in(&foreign).map(drop),
                snapshot.range_in(&foreign, "a".."z").map(drop),
                snapshot.prefix_in(&foreign, "k").map(drop),
            ];
            for refused in refusals {
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
            }
            assert_eq!(foreign.iter().unwrap().count(), 0);
            // A cleared batch is like a new one.
            batch.clear();
            batch.put_in(&own, "key", "mine");
            db.write_ref(&mut batch, Durability::Buffered).unwrap();
        }
        assert_eq!(own.iter().unwrap().count(), 1);
        assert_eq!(db.iter().unwrap().count(), 0);
    }
}

/// A drop that a killed process has written but not synced is durable before anything is removed: a
/// power loss after the next opening leaves all of the keyspace or nothing.
#[test]
fn a_drop_found_after_a_kill_is_durable_before_it_purges() {
    for (design, seed) in settings::designs_with_files().zip(0..) {
        let machine = Machine::new(seed, Medium::Mapped);
        let options = settings::small_of(design, Medium::Dram);
        let db = Place::machine(&machine).open(&options).unwrap();
        let space = db.create_keyspace("space").unwrap();
        for n in 0..KEYS {
            space.put(n.to_be_bytes(), [n as u8; 100]).unwrap();
        }
        db.drain().unwrap();
        let killed = Arc::new(Mutex::new(None));
        let taken = Arc::clone(&killed);
        machine.on_persist(Some(Box::new(move |machine: &Machine, _| {
            taken
                .lock()
                .unwrap()
                .get_or_insert_with(|| machine.process_image());
        })));
        // Its log is written, and about to be synced.
        assert!(db.drop_keyspace("space").unwrap());
        machine.on_persist(None);
        let image = killed.lock().unwrap().take().unwrap();
        let after = Machine::boot(image, seed);
        let db = Place::machine(&after).open(&options).unwrap();
        let is_there = |db: &Db| db.list_keyspaces().unwrap().contains(&"space".to_owned());
        assert!(!is_there(&db), "{design}: the drop was written");
        // BOUND: until nothing is left to do.
        loop {
            let lost = Machine::boot(after.crash_image(Survive::None), seed);
            let db_after = Place::machine(&lost).open(&options).unwrap();
            assert!(!is_there(&db_after), "{design}: it is back");
            if !db.step(0).unwrap() {
                break;
            }
        }
    }
}
