//! Sizes near a limit: every call returns, with an answer or an error that names what is full, with worker
//! threads and without.

use std::sync::Arc;

use terrace::{Db, Design, ErrorKind, Options, Workers};
use terrace_media::{Medium, OsFs, QuotaFs};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::seeds::seeds;
use terrace_testkit::sizes::{self, Edges};
use terrace_testkit::watchdog::{Watched, watch};
use terrace_testkit::{model, settings};

const MEDIA: [Medium; 2] = [Medium::Dax, Medium::Dram];
const WORKERS: [Workers; 2] = [Workers::Threads(1), Workers::Manual];

/// Runs `test` for every design on every medium in both modes of workers; its string says which.
fn everywhere(test: impl Fn(&Watched, Options, &str) + Send + 'static) {
    watch(move |watched| {
        for design in Design::ALL {
            for medium in MEDIA {
                for workers in WORKERS {
                    let mut options = settings::small_of(design, medium);
                    options.background.workers = workers;
                    test(
                        watched,
                        options,
                        &format!("{design}, {medium}, {workers:?}"),
                    );
                }
            }
        }
    });
}

/// Puts a value of `bytes`; the database goes on whatever the answer is.
fn put(watched: &Watched, db: &Db, key: &str, bytes: usize, place: &str) -> bool {
    let what = format!("{place}: a put of {bytes} bytes");
    let result = watched.op(&what, || db.put(key, vec![7; bytes]));
    if let Err(e) = &result {
        let expected = matches!(e.kind(), ErrorKind::Full | ErrorKind::Invalid);
        assert!(expected, "{what}: {e}");
        return false;
    }
    let found = watched
        .op(format!("{place}: a get"), || db.get(key))
        .unwrap();
    assert_eq!(found.map(|value| value.len()), Some(bytes), "{what}");
    true
}

/// A memtable that is hardly filled has no spare, and a large put needs one.
#[test]
fn a_large_put_follows_a_small_one() {
    everywhere(|watched, options, place| {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options).unwrap();
        for round in 0..3 {
            for bytes in [500, 7700, 1, 7000, 8100, 20] {
                let done = put(watched, &db, &format!("{round}"), bytes, place);
                assert!(done, "{place}: {bytes} bytes");
            }
        }
    });
}

/// Near every limit of sizes each write is taken, or refused by the limit that it goes beyond, and what was taken
/// is there.
#[test]
fn sizes_near_each_limit_are_answered() {
    for design in Design::ALL {
        for medium in MEDIA {
            for (seed, workers) in WORKERS.into_iter().enumerate() {
                let mut options = settings::small_of(design, medium);
                options.background.workers = workers;
                let script = sizes::of_writes(&Edges::of(&options, medium), 60, seed as u64);
                model::run(&options, medium, &script)
                    .unwrap_or_else(|failure| panic!("{design}, {medium}, {workers:?}: {failure}"));
            }
        }
    }
}

/// Near every limit of sizes each pair of an ingest is taken, or left out by the limit that it goes beyond; an ingest
/// ends beside small puts and in a pool that is nearly full, and what was taken is there.
#[test]
fn ingests_of_sizes_near_each_limit_are_answered() {
    for design in Design::ALL {
        for medium in MEDIA {
            // MioDb in plain memory takes none.
            if medium == Medium::Dram && !design.keeps_table_files() {
                continue;
            }
            // With the last one a caller needed a memtable of more than the usual size, beside which a job made usual
            // ones without end.
            let spins = (design, medium) == (Design::MioDbSsd, Medium::Dax);
            for seed in seeds(1).into_iter().chain(spins.then_some(2)) {
                let mut options = settings::small_of(design, medium);
                options.background.workers = WORKERS[seed as usize / 2 % 2];
                let edges = Edges::of(&options, medium);
                let case = format!("{design}, {medium}, seed {seed}");
                let _case = terrace_testkit::watchdog::case(case);
                let script = sizes::of_ingests(&edges, options.pool.size_bytes, 30, seed);
                model::run(&options, medium, &script)
                    .unwrap_or_else(|e| panic!("{design}, {medium}, seed {seed}: {e}"));
            }
        }
    }
}

/// With the options that a user has who sets none.
#[test]
fn a_large_put_follows_a_small_one_by_default() {
    watch(|watched| {
        let folder = scratch().unwrap();
        let mut options = Options::default();
        options.pool.size_bytes = 1 << 30;
        let db = Db::open(folder.path(), options).unwrap();
        put(watched, &db, "a", 7 << 20, "default options");
        assert!(put(watched, &db, "b", 60 << 20, "default options"));
    });
}

/// A log that is larger than all logs may take together does not keep writers from going on.
#[test]
fn small_puts_follow_one_beyond_the_log_cap() {
    everywhere(|watched, mut options, place| {
        options.pool.size_bytes = 16 << 20;
        options.front.memtable_bytes = 16 << 10;
        options.front.log_bytes_max = 256 << 10;
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options).unwrap();
        for round in 0..2 {
            let done = put(watched, &db, "large", 512 << 10, place);
            assert!(done, "{place}");
            for n in 0..100 {
                assert!(
                    put(watched, &db, &format!("{round} {n}"), 1000, place),
                    "{place}"
                );
            }
        }
    });
}

/// An ingest into a pool that is nearly full ends, and so do those after it.
#[test]
fn an_ingest_ends_in_a_pool_that_is_nearly_full() {
    everywhere(|watched, options, place| {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options).unwrap();
        for n in 0..1800u32 {
            // Overwritten keys too, so that there is something to be given back.
            let key = n.wrapping_mul(2_654_435_761) % 3000;
            let put = watched.op(format!("{place}: put {n}"), || {
                db.put(key.to_be_bytes(), [7; 500])
            });
            if let Err(e) = put {
                assert_eq!(e.kind(), ErrorKind::Full, "{place}: {e}");
                break;
            }
        }
        for round in 0..3 {
            let Ok(mut ingest) = db.ingest() else {
                // MioDb in plain memory takes none.
                return;
            };
            let mut done = true;
            for n in 0..2000u32 {
                let what = format!("{place}: round {round}, an ingest of pair {n}");
                let added = watched.op(&what, || ingest.add(n.to_be_bytes(), [8; 500]));
                if let Err(e) = added {
                    assert_eq!(e.kind(), ErrorKind::Full, "{what}: {e}");
                    done = false;
                    break;
                }
            }
            if done {
                let ended = watched.op(format!("{place}: round {round}"), || ingest.finish());
                if let Err(e) = ended {
                    assert_eq!(e.kind(), ErrorKind::Full, "{place}: {e}");
                }
            }
        }
    });
}

/// A put waits for readers to let go of a full pool. While no job runs, each one after it waits half as long: a loop
/// that writes beside a snapshot of its own would stand for half a second at each put.
#[test]
fn puts_do_not_all_wait_for_the_same_readers() {
    watch(|watched| {
        for design in [Design::MioDb, Design::Leveled] {
            let mut options = settings::small_of(design, Medium::Dax);
            options.background.workers = Workers::Threads(1);
            let folder = scratch().unwrap();
            let db = Db::open(folder.path(), options).unwrap();
            let fill = |n: u32| db.put(n.to_be_bytes(), [7; 3000]);
            let _snapshot = db.snapshot().unwrap();
            let _iter = db.iter().unwrap();
            let refused = watched.op(format!("{design}: filling"), || {
                (0..700).find_map(|n| fill(n).err())
            });
            match refused {
                Some(e) => assert_eq!(e.kind(), ErrorKind::Full, "{design}: {e}"),
                None => assert_ne!(design, Design::MioDb, "2 MiB take 2.1 MB"),
            }
            watched.op(format!("{design}: 300 puts"), || {
                for n in 0..300 {
                    if let Err(e) = fill(n) {
                        assert_eq!(e.kind(), ErrorKind::Full, "{design}: {e}");
                    }
                }
            });
        }
    });
}

/// Calls that wait for background work are refused while a disk has no room for it, however much of that work
/// is done again and again before it finds that out.
#[test]
fn calls_end_where_a_disk_is_full() {
    watch(|watched| {
        for design in settings::designs_with_files() {
            for workers in [Workers::Threads(3), Workers::Manual] {
                let mut options = settings::small_of(design, Medium::Dram);
                options.background.workers = workers;
                let place = format!("{design}, {workers:?}");
                let folder = scratch().unwrap();
                let fs = QuotaFs::new(Arc::new(OsFs), u64::MAX >> 1);
                let mut on = Place::folder(folder.path());
                on.fs = Some(Arc::new(fs.clone()));
                let db = on.open(&options).unwrap();
                for n in 0..1200u32 {
                    let mut value = [0; 500];
                    fastrand::Rng::with_seed(u64::from(n)).fill(&mut value);
                    db.put(n.wrapping_mul(2_654_435_761).to_be_bytes(), value)
                        .unwrap();
                }
                db.drain().unwrap();
                fs.set_room(fs.used() + (48 << 10));
                for call in ["compact_range", "flush", "drain", "compact_range"] {
                    let what = format!("{place}: {call}");
                    let result = watched.op(&what, || match call {
                        "flush" => db.flush(),
                        "drain" => db.drain(),
                        _ => db.compact_range::<&[u8]>(..),
                    });
                    if let Err(e) = &result {
                        assert_eq!(e.kind(), ErrorKind::Full, "{what}: {e}");
                    }
                    // With threads a compaction may have done all there is to do in what room there was.
                    let refused = call == "compact_range" && workers == Workers::Manual;
                    assert!(!refused || result.is_err(), "{what}");
                    // Something to be flushed by the next call.
                    let _ = watched.op(&what, || db.put("key", [7; 3000]));
                }
                fs.set_room(u64::MAX >> 1);
                watched.op(format!("{place}: room"), || {
                    // A job that was refused before may be heard of once more.
                    while let Err(e) = db.compact_range::<&[u8]>(..) {
                        assert_eq!(e.kind(), ErrorKind::Full, "{place}: {e}");
                    }
                });
            }
        }
    });
}
