//! Pools that fill up: what does not fit is refused, everything else continues, and space is freed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use terrace::{
    Compression, Db, Design, Durability, ErrorKind, Options, Purpose, StallReason, Workers,
    WriteBatch,
};
use terrace_media::Medium;
use terrace_testkit::place::scratch;
use terrace_testkit::space::{Overwriting, overwrite};
use terrace_testkit::{seeds, settings};

pub(crate) fn options(workers: Workers) -> Options {
    let mut options = settings::small(Medium::Dax);
    options.pool.size_bytes = 4 << 20;
    options.front.memtable_bytes = 32 << 10;
    options.background.workers = workers;
    options
}

pub(crate) fn fill(db: &Db) -> u32 {
    for n in 0..100_000u32 {
        if let Err(e) = db.put(n.to_be_bytes(), vec![n as u8; 1000]) {
            assert_eq!(e.kind(), ErrorKind::Full, "{e}");
            assert!(e.to_string().contains("pool"), "{e}");
            return n;
        }
    }
    panic!("100 MB fit a pool of 4 MiB");
}

/// A full pool refuses writes, still serves reads and deletes, and accepts writes again after
/// deletes.
#[test]
fn a_full_pool_reads_deletes_and_comes_back() {
    for workers in [Workers::Manual, Workers::Threads(2)] {
        let folder = scratch().unwrap();
        let mut db = Db::open(folder.path(), options(workers)).unwrap();
        let mut least = u32::MAX;
        for round in 0..3 {
            let count = fill(&db);
            assert!(count > 1000, "only {count} KiB fit in round {round}");
            least = least.min(count);
            for n in 0..count {
                let found = db.get(n.to_be_bytes()).unwrap();
                assert_eq!(found, Some(vec![n as u8; 1000]), "round {round}, key {n}");
            }
            if round == 1 {
                drop(db);
                db = Db::open(folder.path(), options(workers)).unwrap();
            }
            for n in 0..count {
                db.delete(n.to_be_bytes()).unwrap();
            }
            assert_eq!(db.iter().unwrap().count(), 0);
            assert_eq!(
                db.verify(&mut |_| {}).unwrap().problems,
                Vec::<String>::new()
            );
        }
        let count = fill(&db);
        assert!(
            count * 10 >= least * 9,
            "{count} fit after deletes, {least} before"
        );
    }
}

/// Compacting a range frees the space of its deletes, whoever runs the jobs.
#[test]
fn a_compaction_gives_the_space_of_deletes_back() {
    for design in settings::designs_in_pool() {
        for workers in [Workers::Manual, Workers::Threads(1)] {
            let folder = scratch().unwrap();
            let mut options = Options {
                design: Some(design),
                ..options(workers)
            };
            options.pool.size_bytes = 16 << 20;
            let db = Db::open(folder.path(), options).unwrap();
            for n in 0..5000u32 {
                db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
            }
            db.drain().unwrap();
            db.delete_range(250u32.to_be_bytes()..).unwrap();
            db.compact_range::<&[u8]>(..).unwrap();
            let metrics = db.metrics();
            let used = metrics.bottom.used_bytes.max(metrics.pool.allocated_bytes);
            assert!(used < 2 << 20, "{design}, {workers:?}: {metrics}");
            assert_eq!(db.iter().unwrap().count(), 250);
        }
    }
}

/// Overwrites keys, far more than the pool holds, until a write fails. Returns the error, and how
/// long that write took.
fn overwrite_some(db: &Db) -> Option<(ErrorKind, Duration)> {
    overwrite_until_full(db, 20_000)
}

fn overwrite_until_full(db: &Db, times: u32) -> Option<(ErrorKind, Duration)> {
    (0..times).find_map(|n| {
        let begun = Instant::now();
        let written = db.put((n % 700).to_be_bytes(), vec![n as u8; 1000]);
        written.err().map(|e| (e.kind(), begun.elapsed()))
    })
}

/// Fills the pool with superseded versions that snapshots hold back. Checks that it ends as `Full`,
/// after a bounded wait.
fn fill_behind_readers(db: &Db) -> Vec<terrace::Snapshot> {
    let mut readers = Vec::new();
    // Each of 700 keys has a version for each snapshot.
    let (kind, waited) = (0..100)
        .find_map(|_| {
            readers.push(db.snapshot().unwrap());
            overwrite_until_full(db, 700)
        })
        .unwrap_or_else(|| {
            panic!(
                "what the readers hold does not fill the pool: {:#?}",
                db.metrics()
            )
        });
    assert_eq!(kind, ErrorKind::Full);
    assert!(waited >= Duration::from_millis(300), "after {waited:?}");
    assert!(waited < Duration::from_secs(20), "after {waited:?}");
    let stalls = db.metrics().stalls;
    let stall = stalls.iter().find(|s| s.reason == StallReason::PoolFull);
    assert!(stall.is_some_and(|stall| stall.longest >= Duration::from_millis(300)));
    readers
}

/// With idle readers, puts fail as `Full` after a bounded wait, and deletes succeed.
#[test]
fn idle_readers_block_no_thread() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), options(Workers::Threads(2))).unwrap();
    let reader = fill_behind_readers(&db);
    for n in 0..2000u32 {
        db.delete(n.to_be_bytes()).unwrap();
    }
    drop(reader);
    assert_eq!(overwrite_some(&db), None);
}

/// A put waits for space that only a reader still holds, and continues when the reader releases it.
#[test]
fn a_put_waits_for_a_reader_to_let_go() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), options(Workers::Threads(2))).unwrap();
    let reader = fill_behind_readers(&db);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            drop(reader);
        });
        assert_eq!(overwrite_some(&db), None);
    });
}

/// Idle iterators hold no space while others need it, with tables of any size, and stay exact.
#[test]
fn idle_iterators_let_go_of_space() {
    for design in settings::designs_in_pool() {
        for workers in [Workers::Manual, Workers::Threads(2)] {
            let folder = scratch().unwrap();
            let mut options = settings::default_of(design, Medium::Dax);
            options.pool.size_bytes = 128 << 20;
            options.front.memtable_bytes = 4 << 20;
            options.background.workers = workers;
            let db = Db::open(folder.path(), options).unwrap();
            let mut iters = Vec::new();
            for n in 0..60u32 {
                // The iterator before has seen none of these, and the next one sees both.
                db.put([0, 0, n as u8], [n as u8; 100])
                    .and_then(|()| db.put([1, 0, n as u8], [n as u8; 100]))
                    .and_then(|()| db.flush())
                    .unwrap_or_else(|e| panic!("{design}, {workers:?}, iterator {n}: {e}"));
                let mut iter = db.iter().unwrap();
                assert_eq!(iter.next().unwrap().unwrap().key(), [0, 0, 0]);
                iters.push(iter);
            }
            db.drain().unwrap();
            for (n, mut iter) in iters.into_iter().enumerate() {
                // From both ends.
                let last = iter.next_back().unwrap().unwrap();
                assert_eq!(last.key(), [1, 0, n as u8]);
                assert_eq!(iter.count(), 2 * n, "{design}, {workers:?}");
            }
        }
    }
}

/// Continuous overwriting of the same keys with values of changing size keeps the pool bounded.
#[test]
fn overwriting_for_ever_stays_within_the_pool() {
    for workers in [Workers::Manual, Workers::Threads(2)] {
        let mut options = options(workers);
        options.pool.size_bytes = 8 << 20;
        for seed in seeds::seeds(1) {
            overwrite(&options, seed, 6000).unwrap_or_else(|e| panic!("seed {seed:#x}: {e}"));
        }
    }
}

/// Who runs background steps alongside a writer: the writer only when it must wait, occasional
/// random steps, or all pending steps.
#[derive(Debug, Clone, Copy)]
enum Steps {
    None,
    Some,
    All,
}

/// The keys that a writer overwrites.
#[derive(Debug, Clone, Copy)]
enum Keys {
    Any,
    /// One of a few keys nine times out of ten.
    Few,
    InTurn,
}

/// Returns the approximate bytes of a pair in a list: header, a tower of a link and a third, key
/// and value.
fn node_bytes(value: usize) -> u64 {
    64 + value as u64
}

/// Overwrites `count` keys with values of `len` bytes until `total` bytes were written, then checks
/// each.
fn overwrite_keys(db: &Db, count: u32, len: usize, total: u64, keys: Keys, steps: Steps) {
    let mut rng = fastrand::Rng::with_seed(total ^ len as u64);
    let turns = (total / node_bytes(len)) as u32;
    let mut last = vec![0u8; count as usize];
    let what = || format!("{count} values of {len} bytes, {keys:?}, {steps:?}");
    for turn in 0..turns {
        let n = match keys {
            _ if turn < count => turn,
            Keys::Few if rng.u8(..10) > 0 => rng.u32(..count.div_ceil(20)),
            Keys::Any | Keys::Few => rng.u32(..count),
            Keys::InTurn => turn % count,
        };
        last[n as usize] = turn as u8;
        let written = db.put(n.to_be_bytes(), vec![turn as u8; len]);
        written.unwrap_or_else(|e| panic!("{}: {turn} of {turns}: {e}", what()));
        match steps {
            Steps::None => {}
            Steps::Some if rng.u8(..8) > 0 => {}
            Steps::Some => drop(db.step(rng.usize(..)).unwrap()),
            Steps::All => while db.step(rng.usize(..)).unwrap() {},
        }
    }
    for (n, byte) in (0..count).zip(&last) {
        let found = db.get(n.to_be_bytes()).unwrap();
        assert!(found == Some(vec![*byte; len]), "{}: key {n}", what());
    }
}

/// Continuous overwriting of slightly less than half of the pool is never refused, for any keys and
/// sizes, on every medium, and for any schedule of background steps.
#[test]
fn data_under_half_of_the_pool_can_be_overwritten_for_ever() {
    const POOL: u64 = 2 << 20;
    let pairs = [
        (Keys::Any, Steps::Some),
        (Keys::Few, Steps::None),
        (Keys::InTurn, Steps::All),
    ];
    let media = [Medium::Dax, Medium::Mapped, Medium::Dram];
    for (row, medium) in media.into_iter().enumerate() {
        for (column, len) in [10, 300, 4000, 64 << 10].into_iter().enumerate() {
            // Each medium has each pair, and so has each length.
            for turn in 0..pairs.len().min(seeds::times() as usize) {
                let (keys, steps) = pairs[(row + column + turn) % pairs.len()];
                let mut options = settings::small(medium);
                options.pool.size_bytes = POOL;
                let folder = scratch().unwrap();
                let db = Db::open(folder.path(), options).unwrap();
                let count = (POOL * 48 / 100 / node_bytes(len)) as u32;
                overwrite_keys(&db, count, len, 5 * POOL, keys, steps);
            }
        }
    }
}

/// The same holds with threads, alongside readers that come and go: writers wait, and are not
/// refused.
#[test]
fn writers_that_wait_are_not_refused() {
    const POOL: u64 = 4 << 20;
    const LEN: usize = 1000;
    for medium in [Medium::Dax, Medium::Dram] {
        let mut options = settings::small(medium);
        options.pool.size_bytes = POOL;
        options.background.workers = Workers::Threads(1);
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options).unwrap();
        let count = (POOL * 48 / 100 / node_bytes(LEN)) as u32;
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let seen = db.iter().unwrap().take(100).map(|pair| pair.unwrap());
                    seen.for_each(|pair| assert_eq!(pair.value().len(), LEN));
                    std::thread::yield_now();
                }
            });
            overwrite_keys(&db, count, LEN, 10 * POOL, Keys::Any, Steps::None);
            done.store(true, Ordering::Release);
        });
    }
}

/// An ingest waits for space as a put does: if overwriting is never refused, neither are ingests of
/// a few pairs in between, with manual steps and with concurrent writers.
#[test]
fn an_ingest_waits_for_space_as_a_put_does() {
    const POOL: u64 = 2 << 20;
    const LEN: usize = 1000;
    for workers in [Workers::Manual, Workers::Threads(1)] {
        let mut options = settings::small(Medium::Dax);
        options.pool.size_bytes = POOL;
        options.background.workers = workers;
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options).unwrap();
        let keys = (POOL * 40 / 100 / node_bytes(LEN)) as u32;
        let done = AtomicBool::new(false);
        let put = |turn: u32| {
            let put = db.put((turn % keys).to_be_bytes(), vec![turn as u8; LEN]);
            put.unwrap_or_else(|e| panic!("{workers:?}, put {turn}: {e}"));
        };
        let load = |turn: u32| {
            let mut ingest = db.ingest().unwrap();
            for n in 0..5u8 {
                ingest.add([b'i', n], vec![turn as u8; LEN]).unwrap();
            }
            let loaded = ingest.finish();
            loaded.unwrap_or_else(|e| panic!("{workers:?}, ingest {turn}: {e}"));
            assert_eq!(db.get([b'i', 4]).unwrap(), Some(vec![turn as u8; LEN]));
        };
        if workers == Workers::Manual {
            for turn in 0..8 * keys {
                put(turn);
                if turn % 5 == 0 {
                    load(turn);
                }
            }
            continue;
        }
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut turn = 0;
                while !done.load(Ordering::Acquire) {
                    put(turn);
                    turn += 1;
                }
            });
            (0..200).for_each(load);
            done.store(true, Ordering::Release);
        });
    }
}

/// Entries that a newer table hides are not copied to the bottom, unless a snapshot reads them.
/// Entries that they would have superseded there are removed nevertheless.
#[test]
fn drains_leave_out_what_a_newer_table_hides() {
    let keys = || (0..30u8).map(|n| [b'k', n]);
    for held in [false, true] {
        let folder = scratch().unwrap();
        let mut options = options(Workers::Manual);
        // Tables are not merged.
        options.buffer.table_bytes_max = Some(options.front.memtable_bytes);
        let db = Db::open(folder.path(), options).unwrap();
        let fill = |byte: u8| {
            for key in keys() {
                db.put(key, vec![byte; 900]).unwrap();
            }
            db.flush().unwrap();
        };
        fill(1);
        db.drain().unwrap();
        let drained = || db.metrics().pm.get(Purpose::Drain).bytes;
        let before = drained();
        fill(2);
        let snapshot = held.then(|| db.snapshot().unwrap());
        fill(3);
        for key in keys().take(10) {
            db.delete(key).unwrap();
        }
        db.flush().unwrap();
        db.drain().unwrap();
        let copied = (drained() - before) / 900;
        // Twenty values in a drained database, and thirty that the snapshot reads.
        let expected = if held { 50..70 } else { 20..35 };
        assert!(
            expected.contains(&copied),
            "about {copied} values were copied"
        );
        for (n, key) in keys().enumerate() {
            let newest = (n >= 10).then(|| vec![3; 900]);
            assert_eq!(db.get(key).unwrap(), newest, "key {n}");
            if let Some(snapshot) = &snapshot {
                assert_eq!(snapshot.get(key).unwrap(), Some(vec![2; 900]), "key {n}");
            }
        }
        assert_eq!(db.iter().unwrap().count(), 20);
        let verified = db.verify(&mut |_| {}).unwrap();
        assert_eq!(verified.problems, Vec::<String>::new());
        if !held {
            assert_eq!(verified.entries, 20, "nothing hidden is left");
        }
    }
}

/// Keys and values that cannot fit are refused with a clear error, and nothing of them shows.
#[test]
fn what_is_too_large_is_refused() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), options(Workers::Manual)).unwrap();
    let long = vec![b'k'; 64 * 1024 + 1];
    assert_eq!(db.put(&long, "v").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(
        db.put("k", vec![0; 1 << 20]).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    let mut batch = WriteBatch::new();
    batch.put("a", "1").put("b", vec![0; 1 << 20]);
    let refused = db.write(batch, Durability::Buffered).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("split"), "{refused}");
    assert_eq!(db.iter().unwrap().count(), 0);
    db.put(&long[1..], "v").unwrap();
    assert_eq!(db.get(&long[1..]).unwrap(), Some(b"v".to_vec()));
}

/// Transient keyspaces leave nothing: neither data nor, except on `Mapped`, a record of each.
#[test]
fn keyspaces_that_come_and_go_leave_nothing() {
    for (design, medium) in [
        (Design::MioDb, Medium::Dax),
        (Design::MioDbSsd, Medium::Dax),
        (Design::MioDbSsd, Medium::Dram),
        (Design::Leveled, Medium::Dax),
        (Design::NoveLsm, Medium::Dax),
    ] {
        let folder = scratch().unwrap();
        let options = settings::small_of(design, medium);
        let reopened = |db: Db| {
            db.close().unwrap();
            drop(db);
            Db::open(folder.path(), options.clone()).unwrap()
        };
        let mut db = Db::open(folder.path(), options.clone()).unwrap();
        db.put("kept", "x").unwrap();
        for n in 0..100u8 {
            let space = db.create_keyspace("passing").unwrap();
            space.put([n], vec![n; 500]).unwrap();
            space.delete_range([n]..[n + 2]).unwrap();
            assert!(db.drop_keyspace("passing").unwrap());
            drop(space);
            if n % 30 == 29 {
                db = reopened(db);
                let found = db.keyspace("passing").unwrap();
                assert!(found.is_none(), "{design} on {medium}: {found:?}");
            }
        }
        // The first open forgets keyspaces without data, and the tables drop these records.
        for _ in 0..2 {
            db.drain().unwrap();
            db.compact_range::<&[u8]>(..).unwrap();
            db = reopened(db);
        }
        db.drain().unwrap();
        db.compact_range::<&[u8]>(..).unwrap();
        let report = db.verify(&mut |_| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        // The pair, and the number of the next keyspace.
        assert_eq!(report.entries, 2, "{design} on {medium}: {report:?}");
        let space = db.create_keyspace("passing").unwrap();
        assert_eq!(space.iter().unwrap().count(), 0);
    }
}

/// The space of a dropped keyspace is freed automatically, however deep its data is, alone in files
/// or together with data of others, and with or without a reopen in between.
#[test]
fn the_space_of_dropped_keyspaces_comes_back() {
    for (design, medium) in [
        (Design::MioDb, Medium::Dax),
        (Design::MioDbSsd, Medium::Dax),
        (Design::MioDbSsd, Medium::Dram),
        (Design::Leveled, Medium::Mapped),
        (Design::NoveLsm, Medium::Mapped),
    ] {
        for reopens in [false, true] {
            let folder = scratch().unwrap();
            let options = settings::small_of(design, medium);
            let mut db = Db::open(folder.path(), options.clone()).unwrap();
            for n in 0..9u8 {
                let space = db.create_keyspace(&format!("space {n}")).unwrap();
                // Every other one is small, so that several are in one file.
                for key in 0..[3u8, 60][usize::from(n % 2)] {
                    space.put([key], vec![n; 1000]).unwrap();
                }
            }
            db.drain().unwrap();
            db.compact_range::<&[u8]>(..).unwrap();
            let before = db.verify(&mut |_| {}).unwrap().entries;
            assert_eq!(before, 5 * 3 + 4 * 60 + 10, "{design} on {medium}");
            for n in (0..9).filter(|n| *n != 4 && *n != 5) {
                assert!(db.drop_keyspace(&format!("space {n}")).unwrap());
            }
            db.drain().unwrap();
            if reopens {
                db.close().unwrap();
                drop(db);
                db = Db::open(folder.path(), options).unwrap();
            }
            db.wait_idle().unwrap();
            let report = db.verify(&mut |_| {}).unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
            let names_and_records = 2 + 1 + 3 * 7;
            assert!(
                report.entries <= 3 + 60 + names_and_records,
                "{design} on {medium}, {reopens}: {report:?}\n{}",
                db.metrics()
            );
            for (n, count) in [(4u8, 3u8), (5, 60)] {
                let space = db.keyspace(&format!("space {n}")).unwrap().unwrap();
                let pairs = space.iter().unwrap().map(|pair| pair.unwrap().into_pair());
                assert!(pairs.eq((0..count).map(|key| (vec![key], vec![n; 1000]))));
            }
        }
    }
}

/// A database in table files takes no more than docs/operations.md states during long overwriting:
/// in tables three tenths more than the live data and two drains, and hardly more than that once
/// settled. Level 0 may have so many runs here that their number alone would let it grow to several
/// times the data.
#[test]
fn overwriting_in_table_files_stays_within_the_bound() {
    for design in settings::designs_with_files() {
        for (medium, workers) in [
            (Medium::Dram, Workers::Manual),
            (Medium::Dram, Workers::Threads(2)),
            (Medium::Dax, Workers::Threads(2)),
        ] {
            let mut options = settings::small(medium);
            options.design = Some(design);
            options.background.workers = workers;
            options.pool.size_bytes = 4 << 20;
            options.front.memtable_bytes = 32 << 10;
            options.front.log_bytes_max = 512 << 10;
            let leveled = &mut options.bottom.leveled;
            leveled.table_bytes = 64 << 10;
            leveled.level1_bytes = 256 << 10;
            leveled.runs_compact = 40;
            leveled.runs_slow = 80;
            leveled.runs_stop = 160;
            leveled.filter_bits_per_key = 10;
            // Garbage is counted if all tables may be open, and sampled otherwise.
            leveled.open_files_max = 1000;
            let case = Overwriting {
                options,
                keys: 1000,
                value_bytes: 1000,
                threads: 4,
                times: 8,
                time: Duration::from_secs(20),
                seed: 7,
            };
            let folder = scratch().unwrap();
            let taken = case.hold(folder.path());
            let taken = taken.unwrap_or_else(|e| panic!("{design}, {medium:?}, {workers:?}: {e}"));
            println!("{design}, {medium:?}, {workers:?}: {taken:?}");
        }
    }
}

/// An ingest that stays open keeps no files that compactions have replaced since it began: they go
/// with the next table that it finishes.
#[test]
fn an_open_ingest_keeps_no_replaced_files() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(design, Medium::Dax);
        options.bottom.leveled.compression = Compression::None;
        // Values make many tables.
        options.bottom.leveled.values_apart_from = Some(1 << 20);
        let db = Db::open(folder.path(), options.clone()).unwrap();
        let overwrite = |turn: u8| {
            for n in 0..100u32 {
                db.put(n.to_be_bytes(), [turn; 1000]).unwrap();
            }
            db.drain().unwrap();
            db.compact_range::<&[u8]>(..).unwrap();
        };
        overwrite(0);
        let mut ingest = db.ingest().unwrap();
        // Two tables before, and two after, of keys behind all others.
        let table = options.bottom.leveled.table_bytes as u32 / 1000 + 1;
        let mut keys = 1000..;
        let mut add = |tables: u32| {
            for n in keys.by_ref().take((tables * table) as usize) {
                ingest.add(u32::to_be_bytes(n), [9; 1000]).unwrap();
            }
        };
        add(2);
        for turn in 1..4 {
            overwrite(turn);
        }
        add(2);
        let files = std::fs::read_dir(folder.path()).unwrap();
        let names = files.map(|file| file.unwrap().file_name());
        let count = names.filter(|name| name.to_string_lossy().ends_with(".sst"));
        let live: u64 = db.metrics().files.iter().map(|l| l.file_count).sum();
        let (count, own) = (count.count() as u64, 6);
        assert!(live >= 20, "{design}: {live}");
        assert!(count <= live + own, "{design}: {count} files, {live} live");
    }
}

/// While most of the pool is free, tables double with each level, past an eighth of the pool; yet a
/// pool of such tables takes as many entries before it is full as one of small tables, since the
/// space for their drains is kept free in time.
#[test]
fn tables_grow_while_the_pool_has_room() {
    let fills = |limit: Option<u64>, workers| {
        let folder = scratch().unwrap();
        let mut options = settings::small(Medium::Dax);
        options.pool.size_bytes = 12 << 20;
        options.front.memtable_bytes = 32 << 10;
        options.buffer.levels = 8;
        options.buffer.table_bytes_max = limit;
        options.background.workers = workers;
        let eighth = options.pool.size_bytes / 8;
        let db = Db::open(folder.path(), options).unwrap();
        // Seventy memtables: with merges of all sizes, a table of 2 MiB.
        for n in 0..2200u32 {
            // Other keys than those of `fill`, so that all of it has to be copied.
            db.put(format!("k{n}"), vec![n as u8; 1000]).unwrap();
            if n % 31 == 0 {
                db.wait_idle().unwrap();
            }
        }
        db.wait_idle().unwrap();
        let levels = db.metrics().levels;
        let mean = levels.iter().map(|level| level.bytes / level.table_count);
        let largest = mean.max().unwrap();
        if limit.is_none() {
            assert!(largest > eighth + eighth / 8, "{workers:?}: {levels:?}");
        } else {
            assert!(largest <= eighth + eighth / 8, "{workers:?}: {levels:?}");
        }
        // Each level with a table has filters, which exclude nearly all absent keys.
        let filters = db.verify(&mut |_| {}).unwrap().filters;
        assert_eq!(filters.len(), levels.len(), "{filters:?}");
        for level in &filters {
            assert!(level.asked_count >= 1000 * level.table_count, "{level:?}");
            assert!(level.false_positives() < 0.02, "{level:?}");
        }
        let count = fill(&db);
        for n in 0..count {
            assert_eq!(db.get(n.to_be_bytes()).unwrap(), Some(vec![n as u8; 1000]));
        }
        let verified = db.verify(&mut |_| {}).unwrap();
        assert_eq!(verified.problems, Vec::<String>::new());
        count
    };
    for workers in [Workers::Manual, Workers::Threads(2)] {
        let (large, small) = (fills(None, workers), fills(Some(1536 << 10), workers));
        assert!(
            large >= small / 10 * 9,
            "{workers:?}: {large} entries, {small} in tables of an eighth"
        );
    }
}

/// In a pool, the tables of the last level wait until there are three of them, so that versions of
/// one key in several of them are copied once; a caller who wants them drained does not wait.
#[test]
fn tables_of_the_last_level_drain_together() {
    let folder = scratch().unwrap();
    let mut options = options(Workers::Manual);
    options.buffer.levels = 1;
    let db = Db::open(folder.path(), options).unwrap();
    let copied = || db.metrics().pm.get(Purpose::Drain).bytes / 900;
    for round in 0..7u8 {
        for n in 0..10u8 {
            db.put([b'k', n], vec![round; 900]).unwrap();
        }
        db.flush().unwrap();
        // BOUND: each step does some of the work.
        while db.step(0).unwrap() {}
        let tables = db
            .metrics()
            .levels
            .iter()
            .map(|it| it.table_count)
            .sum::<u64>();
        // Three drain together: ten values of thirty.
        let drains = u64::from(round + 1) / 3;
        assert_eq!(tables, u64::from(round + 1) % 3, "round {round}");
        assert!(
            (10 * drains..10 * drains + 5).contains(&copied()),
            "{}",
            copied()
        );
    }
    db.drain().unwrap();
    assert_eq!(db.metrics().levels, []);
    assert_eq!(db.iter().unwrap().count(), 10);
}
