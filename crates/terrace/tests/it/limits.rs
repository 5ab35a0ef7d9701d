//! Sizes near a limit: every call returns a result or an error that names what is full, with and
//! without worker threads.

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

/// Runs `test` for every design on every medium in both modes of workers. Its string names the
/// combination.
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

/// Puts a value of `bytes`. Returns whether it was accepted; an error must be `Full` or `Invalid`.
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

/// A large put after a small one succeeds: a memtable that is nearly empty has no spare, but the
/// put needs one.
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

/// Near every size limit each write is accepted, or rejected by the limit that it exceeds, and the
/// accepted data is there.
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

/// Near every size limit each pair of an ingest is accepted, or rejected by the limit that it
/// exceeds. An ingest returns alongside small puts and in a pool that is nearly full, and the
/// accepted pairs are there.
#[test]
fn ingests_of_sizes_near_each_limit_are_answered() {
    for design in Design::ALL {
        for medium in MEDIA {
            // MioDb in plain memory has no ingest.
            if medium == Medium::Dram && !design.keeps_table_files() {
                continue;
            }
            // With seed 2 a caller needed a memtable of more than the usual size, while a job made
            // usual ones endlessly.
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

/// The same holds with default options.
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

/// A log that is larger than the cap of all logs does not block writers.
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

/// An ingest into a pool that is nearly full returns, and so do those after it.
#[test]
fn an_ingest_ends_in_a_pool_that_is_nearly_full() {
    everywhere(|watched, options, place| {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options).unwrap();
        for n in 0..1800u32 {
            // Some keys are overwritten, so that there is space to release.
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
                // MioDb in plain memory has no ingest.
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

/// A put waits for readers to release space of a full pool. While no job runs, each further put
/// waits half as long: otherwise a loop that writes while it holds a snapshot would wait for half a
/// second at each put.
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

/// Calls that wait for background work are refused while a disk has no space for it, however much
/// of that work is repeated before this is detected.
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
                    // With threads a compaction may have finished in the remaining space, and keys
                    // without their values fit it.
                    let refused = call == "compact_range"
                        && workers == Workers::Manual
                        && design != Design::FlatLsm;
                    assert!(!refused || result.is_err(), "{what}");
                    // Leaves data to be flushed by the next call.
                    let _ = watched.op(&what, || db.put("key", [7; 3000]));
                }
                fs.set_room(u64::MAX >> 1);
                watched.op(format!("{place}: room"), || {
                    // A job refused earlier may be reported again.
                    while let Err(e) = db.compact_range::<&[u8]>(..) {
                        assert_eq!(e.kind(), ErrorKind::Full, "{place}: {e}");
                    }
                });
            }
        }
    });
}
