//! Handles: a close unlocks the database although handles are left, and a forked child changes
//! nothing.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use terrace::{Db, Design, Durability, ErrorKind, Workers};
use terrace_media::{Medium, fork_to};
use terrace_testkit::place::scratch;
use terrace_testkit::settings;

const MEDIA: [Medium; 3] = [Medium::Dax, Medium::Mapped, Medium::Dram];

/// After a close the database can be reopened while handles, snapshots and iterators of it are
/// left, and each of those fails as closed.
#[test]
fn a_close_unlocks_whatever_handles_are_left() {
    for medium in MEDIA {
        for design in Design::ALL {
            let folder = scratch().unwrap();
            let options = settings::small_of(design, medium);
            let db = Db::open(folder.path(), options.clone()).unwrap();
            db.put("key", "value").unwrap();
            let snapshot = db.snapshot().unwrap();
            let mut iter = db.iter().unwrap();
            db.close().unwrap();

            let again = Db::open(folder.path(), options.clone()).unwrap();
            again.put("key", "newer").unwrap();
            assert_eq!(db.get("key").unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(snapshot.get("key").unwrap_err().kind(), ErrorKind::Closed);
            let next = iter.next().unwrap();
            assert_eq!(next.unwrap_err().kind(), ErrorKind::Closed);
            drop((db, snapshot, iter));
            let locked = Db::open(folder.path(), options).unwrap_err();
            assert_eq!(locked.kind(), ErrorKind::Locked, "{design}, {medium}");
            assert_eq!(again.get("key").unwrap(), Some(b"newer".to_vec()));
        }
    }
}

/// A forked child is refused on every handle that it has a copy of, and leaves the database to its
/// parent. The copies hold no lock once the parent has closed.
#[test]
fn a_forked_child_is_refused_and_changes_nothing() {
    for medium in MEDIA {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(Design::MioDbSsd, medium);
        options.background.workers = Workers::Threads(1);
        let db = Db::open(folder.path(), options.clone()).unwrap();
        db.put("key", "value").unwrap();
        let snapshot = db.snapshot().unwrap();
        let iter = db.iter().unwrap();
        let mine = db.clone();
        let mut ingest = db.ingest().unwrap();
        for n in 0..5000u32 {
            ingest.add(n.to_be_bytes(), "ingested").unwrap();
        }
        let ingest = Arc::new(Mutex::new(Some(ingest)));
        let copy = Arc::clone(&ingest);
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let (mut gone, mut done) = std::io::pipe().unwrap();
        let child = fork_to(move || {
            let invalid = |e: terrace::Error| e.kind() == ErrorKind::Invalid;
            let refused = [
                mine.put("key", "child").is_err_and(invalid),
                mine.get("key").is_err_and(invalid),
                mine.snapshot().is_err_and(invalid),
                mine.iter().is_err_and(invalid),
                mine.flush().is_err_and(invalid),
                mine.close().is_err_and(invalid),
                snapshot.get("key").is_err_and(invalid),
            ];
            let ingest = copy.lock().unwrap().take();
            drop((iter, snapshot, mine, ingest));
            let told = done.write_all(b"!").is_ok() && reader.read_exact(&mut [0]).is_ok();
            u8::from(told && refused.iter().all(|&refused| refused))
        });
        let child = child.unwrap();
        db.put("other", "value").unwrap();
        assert_eq!(db.get("key").unwrap(), Some(b"value".to_vec()));
        gone.read_exact(&mut [0]).unwrap();
        let mine = ingest.lock().unwrap().take().unwrap();
        // Results are checked once the child has ended, which would otherwise wait forever.
        let finished = mine.finish();
        let verified = db.verify(&mut |_| {});

        // The child, which is still alive, has copies of all descriptors.
        db.close().unwrap();
        let again = Db::open(folder.path(), options).unwrap();
        writer.write_all(b"!").unwrap();
        assert_eq!(child.wait().unwrap(), 1, "{medium}");
        finished.unwrap();
        assert!(verified.unwrap().problems.is_empty(), "{medium}");
        assert_eq!(again.get("other").unwrap(), Some(b"value".to_vec()));
        assert_eq!(again.iter().unwrap().count(), 5002, "{medium}");
    }
}

/// Writers interrupted by a close have written all of a batch or nothing, and change nothing after
/// it has returned.
#[test]
fn a_close_during_writes_leaves_an_intact_database() {
    const ROUNDS: u64 = 60;
    for (design, medium) in [
        (Design::MioDb, Medium::Dax),
        (Design::MioDbSsd, Medium::Mapped),
        (Design::MioDbSsd, Medium::Dram),
        (Design::Leveled, Medium::Dram),
        (Design::NoveLsm, Medium::Dax),
    ] {
        let mut options = settings::small_of(design, medium);
        options.pool.size_bytes = 64 << 20;
        options.front.memtable_bytes = 64 << 10;
        for round in 0..ROUNDS {
            options.background = settings::background(round);
            let folder = scratch().unwrap();
            let db = Db::open(folder.path(), options.clone()).unwrap();
            let writer = |writer: u64| {
                let db = db.clone();
                std::thread::spawn(move || {
                    for n in 0u64.. {
                        let key = [writer.to_be_bytes(), n.to_be_bytes()].concat();
                        // A close keeps acknowledged writes of every mode.
                        let mode = [Durability::Buffered, Durability::Volatile][n as usize % 2];
                        if let Err(e) = db.put_with(key, vec![7; 20_000], mode) {
                            // A temporarily full pool is unrelated.
                            let ends = [ErrorKind::Closed, ErrorKind::Full];
                            assert!(ends.contains(&e.kind()), "{e:?}");
                            return n;
                        }
                    }
                    0
                })
            };
            let writers: Vec<_> = (0..4).map(writer).collect();
            std::thread::sleep(std::time::Duration::from_micros(round * 37 % 4000));
            // It may refuse while volatile writes fill the pool.
            for attempt in 0.. {
                match db.close() {
                    Ok(()) => break,
                    Err(e) => assert!(e.kind() == ErrorKind::Full && attempt < 1000, "{e:?}"),
                }
            }
            let written = writers.into_iter().map(|w| w.join().unwrap());
            let written: u64 = written.sum();
            drop(db);
            let case = format!("{design}, {medium}, round {round}");
            let again = Db::open(folder.path(), options.clone());
            let again = again.unwrap_or_else(|e| panic!("{case}: {e:?}"));
            assert_eq!(again.iter().unwrap().count() as u64, written, "{case}");
            assert!(
                again.verify(&mut |_| {}).unwrap().problems.is_empty(),
                "{case}"
            );
        }
    }
}
