//! `Options::memory_bytes` is a limit: in any operation of a database, the bytes that this process
//! has allocated or mapped never exceed it.
//!
//! This counts every byte allocated on the heap, by the store and by the test, from before the
//! database is opened until it is closed, and all memory that arenas and pools without a file have
//! mapped, touched or not. It does not count the program, thread stacks, the overhead of the
//! system's allocator, or pages of files.
#![allow(
    clippy::unwrap_used,
    reason = "a test may stop at the first surprise, in its helpers too"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace::{Db, Design, Durability, ErrorKind, Options, Sizes, Workers, WriteBatch};
use terrace_testkit::heap;
use terrace_testkit::watchdog::{self, watched};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

/// All tests of the program share the heap, so they run one at a time.
static ONE: Mutex<()> = Mutex::new(());

const BUDGET: u64 = 16 << 20;
const KEYS: u32 = 6_000;

fn options(design: Design, pool: bool) -> Options {
    let mut options = Options {
        design: Some(design),
        ..Options::default()
    };
    options.pool.path = pool.then(|| "pool".into());
    if pool {
        options.pool.size_bytes = 256 << 20;
    }
    options.background.workers = Workers::Threads(2);
    options.within(BUDGET, Sizes::default())
}

/// Returns a key. Some keys are long.
fn key(number: u32) -> Vec<u8> {
    let mut key = format!("key-{number:06}").into_bytes();
    if number.is_multiple_of(997) {
        key.resize(2000, b'.');
    }
    key
}

fn value(rng: &mut fastrand::Rng, largest: usize) -> Vec<u8> {
    let len = match rng.u32(..1000) {
        0 => largest,
        1..=20 => rng.usize(..8_000),
        _ => rng.usize(..400),
    };
    let mut value = vec![0; len];
    // Half of the value compresses.
    rng.fill(&mut value[..len / 2]);
    value
}

/// Accepts the refusals allowed near a limit. Any other error is a failure.
fn unless_full<T>(result: terrace::Result<T>, refused: &AtomicU64) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e) if e.kind() == ErrorKind::Full => {
            refused.fetch_add(1, Ordering::Relaxed);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn write(db: &Db, seed: u64, largest: usize, refused: &AtomicU64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut batch = WriteBatch::new();
    for turn in 0..40_000u32 {
        let at = rng.u32(..KEYS);
        let result = match turn % 50 {
            0 => {
                batch.clear();
                for _ in 0..20 {
                    batch.put(key(rng.u32(..KEYS)), value(&mut rng, 1000));
                }
                db.write_ref(&mut batch, Durability::Buffered)
            }
            1 => db.delete(key(at)),
            2 if turn % 1000 == 2 => db.delete_range(key(at)..key(at + 50)),
            _ => db.put(key(at), value(&mut rng, largest)),
        };
        if unless_full(result, refused).is_none() {
            // Readers hold the memory: until they run again every write would be refused at once.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

fn read(db: &Db, done: &AtomicBool) {
    let mut rng = fastrand::Rng::with_seed(7);
    while !done.load(Ordering::Relaxed) {
        for _ in 0..100 {
            db.get(key(rng.u32(..KEYS))).unwrap();
        }
        let keys: Vec<Vec<u8>> = (0..40).map(|_| key(rng.u32(..KEYS))).collect();
        db.multi_get(&keys).unwrap();
    }
}

fn scan(db: &Db, done: &AtomicBool, refused: &AtomicU64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(8);
    let mut held = Vec::new();
    let mut seen = 0;
    while !done.load(Ordering::Relaxed) {
        let snapshot = db.snapshot().unwrap();
        let Some(iter) = unless_full(db.range(key(rng.u32(..KEYS))..), refused) else {
            continue;
        };
        for pair in iter.take(rng.usize(..3000)) {
            seen += u64::from(unless_full(pair, refused).is_some());
        }
        for pair in snapshot.iter().unwrap().rev().take(rng.usize(..1000)) {
            seen += u64::from(unless_full(pair, refused).is_some());
        }
        // Holds idle iterators for a while.
        let mut idle = db.range(key(rng.u32(..KEYS))..).unwrap();
        if let Some(pair) = idle.next() {
            unless_full(pair, refused);
        }
        held.push(idle);
        if held.len() > 3 {
            held.clear();
        }
    }
    seen
}

/// Runs two writers, a reader and a scanner, alongside automatic and requested background work.
fn load(db: &Db, largest: usize) {
    let done = AtomicBool::new(false);
    let (writes_refused, scans_refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let seen = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|seed| {
                let refused = &writes_refused;
                scope.spawn(move || write(db, seed, largest, refused))
            })
            .collect();
        scope.spawn(|| read(db, &done));
        let scanner = scope.spawn(|| scan(db, &done, &scans_refused));
        let mut turn = 0;
        while writers.iter().any(|writer| !writer.is_finished()) {
            std::thread::sleep(std::time::Duration::from_millis(50));
            turn += 1;
            if turn % 10 == 0 {
                unless_full(db.compact_range(key(1000)..key(2000)), &writes_refused);
            }
        }
        done.store(true, Ordering::Relaxed);
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        scanner.join().unwrap()
    });
    let refused = writes_refused.load(Ordering::Relaxed);
    assert!(refused < 4000, "{refused} writes were refused");
    assert!(seen > 1000, "scans saw {seen} pairs");
    println!("  {refused} writes and {scans_refused:?} scans refused, {seen} pairs seen");
    unless_full(db.drain(), &writes_refused);
    unless_full(db.compact_range::<&[u8]>(..), &writes_refused);
}

/// Runs `work`, and checks the peak of memory use meanwhile.
fn within_budget(what: &str, work: impl FnOnce()) {
    heap::begin();
    let before = heap::in_use();
    work();
    let taken = heap::peak() - before;
    println!("{what}: {:.2} MiB at most", taken as f64 / (1 << 20) as f64);
    assert!(taken <= BUDGET, "{what}: {taken} bytes of {BUDGET}");
    let left = heap::in_use().saturating_sub(before);
    assert!(left < BUDGET / 8, "{what}: {left} bytes are left behind");
}

fn run(design: Design, pool: bool) {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let folder = tempfile::tempdir().unwrap();
    let options = options(design, pool);
    options.validate().unwrap();
    // Half of the maximum, but far less without table files, if the pool holds all data.
    let largest = if design.keeps_table_files() {
        60_000
    } else {
        8_000
    };
    let what = format!(
        "{design} {}",
        if pool { "with a pool" } else { "in memory" }
    );
    within_budget(&what, || {
        let db = Db::open(folder.path(), options.clone()).unwrap();
        load(&db, largest);
        let memory = db.metrics().memory;
        assert_eq!(memory.budget_bytes, Some(BUDGET));
        for part in &memory.parts {
            println!(
                "  {}: {} of {:?}",
                part.name, part.used_bytes, part.limit_bytes
            );
            assert!(Some(part.used_bytes) <= part.limit_bytes, "{part:?}");
        }
        db.close().unwrap();
    });
    within_budget(&format!("{what}, reopened"), || {
        let db = Db::open(folder.path(), options.clone()).unwrap();
        let pairs = db.iter().unwrap().filter(|pair| pair.is_ok()).count();
        assert!(pairs > 0 || !design.keeps_table_files());
        let report = db.verify(&mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        db.close().unwrap();
    });
}

#[test]
fn miodb_in_memory_keeps_within_its_budget() {
    run(Design::MioDb, false);
}

#[test]
fn miodb_with_a_pool_keeps_within_its_budget() {
    run(Design::MioDb, true);
}

#[test]
fn miodb_ssd_in_memory_keeps_within_its_budget() {
    run(Design::MioDbSsd, false);
}

#[test]
fn miodb_ssd_with_a_pool_keeps_within_its_budget() {
    run(Design::MioDbSsd, true);
}

#[test]
fn leveled_in_memory_keeps_within_its_budget() {
    run(Design::Leveled, false);
}

#[test]
fn leveled_with_a_pool_keeps_within_its_budget() {
    run(Design::Leveled, true);
}

#[test]
fn matrixkv_with_a_pool_keeps_within_its_budget() {
    run(Design::MatrixKv, true);
}

#[test]
fn flatlsm_in_memory_keeps_within_its_budget() {
    run(Design::FlatLsm, false);
}

#[test]
fn flatlsm_with_a_pool_keeps_within_its_budget() {
    run(Design::FlatLsm, true);
}

#[test]
fn novelsm_with_a_pool_keeps_within_its_budget() {
    run(Design::NoveLsm, true);
}

#[test]
fn novelsm_nosst_with_a_pool_keeps_within_its_budget() {
    run(Design::NoveLsmNoSst, true);
}

#[test]
fn novelsm_hier_with_a_pool_keeps_within_its_budget() {
    run(Design::NoveLsmHier, true);
}

/// The options that a database reports, with what its design has set, open it and others.
#[test]
fn options_in_use_are_accepted() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    for design in Design::ALL {
        for (pool, budget) in [(false, BUDGET), (true, BUDGET), (true, 3 * BUDGET)] {
            let folder = tempfile::tempdir().unwrap();
            let stated = options(design, pool).within(budget, Sizes::default());
            let db = Db::open(folder.path().join("first"), stated).unwrap();
            let in_use = db.options().clone();
            drop(db);
            for name in ["first", "second"] {
                let opened = Db::open(folder.path().join(name), in_use.clone());
                opened.unwrap_or_else(|e| panic!("{design}, {budget}: {e}"));
            }
        }
    }
}

/// Reads within a budget return what was written: in order, backward, singly and together.
fn answers_are_right(design: Design, pool: bool) {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let folder = tempfile::tempdir().unwrap();
    let options = options(design, pool);
    let mut db = Db::open(folder.path(), options.clone()).unwrap();
    let mut wanted: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut rng = fastrand::Rng::with_seed(11);
    for turn in 0..30_000u32 {
        let at = rng.u32(..2000);
        match turn % 100 {
            0 => {
                db.delete_range(key(at)..key(at + 30)).unwrap();
                let range = key(at)..key(at + 30);
                let gone: Vec<_> = wanted.range(range).map(|(key, _)| key.clone()).collect();
                gone.iter().for_each(|key| drop(wanted.remove(key)));
            }
            1..10 => {
                db.delete(key(at)).unwrap();
                wanted.remove(&key(at));
            }
            _ => {
                let value = value(&mut rng, 8000);
                db.put(key(at), &value).unwrap();
                wanted.insert(key(at), value);
            }
        }
        if turn == 20_000 {
            db.close().unwrap();
            drop(db);
            db = Db::open(folder.path(), options.clone()).unwrap();
        }
        if turn % 3000 == 2999 {
            let pair = |pair: terrace::Result<terrace::KeyValue>| pair.unwrap().into_pair();
            assert!(
                db.iter().unwrap().map(pair).eq(wanted.clone()),
                "turn {turn}"
            );
            let back = db.iter().unwrap().rev().map(pair);
            assert!(back.eq(wanted.clone().into_iter().rev()), "turn {turn}");
            let keys: Vec<Vec<u8>> = (0..2000).map(key).collect();
            for keys in keys.chunks(100) {
                let found = db.multi_get(keys).unwrap();
                for (key, found) in keys.iter().zip(found) {
                    assert_eq!(found.as_ref(), wanted.get(key), "turn {turn}");
                    assert_eq!(db.get(key).unwrap(), found, "turn {turn}");
                }
            }
        }
    }
    db.close().unwrap();
}

#[test]
fn answers_within_a_budget_are_right() {
    for design in Design::ALL {
        for pool in [false, true] {
            answers_are_right(design, pool);
        }
    }
}

fn copy_folder(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// After a crash that leaves three times as much log as there is memory, opening drains the data to
/// files during the replay, loses nothing and stays within the budget.
#[test]
fn replaying_more_log_than_memory_keeps_within_the_budget() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let within = options(Design::MioDbSsd, false);
    let mut large = within.clone();
    large.memory_bytes = None;
    large.pool.size_bytes = 512 << 20;
    large.front.log_bytes_max = 1 << 30;
    large.buffer.table_bytes_max = None;
    // No data reaches the last of these levels, so all of it stays in logs.
    large.buffer.levels = 20;
    let db = Db::open(first.path(), large).unwrap();
    let entries = 48_000u32;
    for number in 0..entries {
        db.put(key(number), [number as u8; 1000]).unwrap();
    }
    // Does not settle, which would drain the buffer to files.
    db.flush().unwrap();
    // Copies the files as a crash would leave them.
    copy_folder(first.path(), second.path());
    drop(db);
    let mut read_only = within.clone();
    read_only.read_only = true;
    let refused = Db::open(second.path(), read_only).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full);
    assert!(
        refused.to_string().contains("open it once to write"),
        "{refused}"
    );
    within_budget("replay", || {
        let db = Db::open(second.path(), within.clone()).unwrap();
        println!("  {}", db.recovery());
        assert_eq!(db.recovery().entries_replayed, u64::from(entries));
        for number in 0..entries {
            let found = db.get(key(number)).unwrap();
            assert_eq!(
                found.as_deref(),
                Some(&[number as u8; 1000][..]),
                "{number}"
            );
        }
        db.close().unwrap();
    });
}

/// A table ends early when its writer's memory for keys would exceed the plan, however small its
/// file: a file of 2 MiB could hold millions of keys that compress to almost nothing.
#[test]
fn tables_of_tiny_keys_end_early() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let folder = tempfile::tempdir().unwrap();
    within_budget("tiny keys", || {
        let db = Db::open(folder.path(), options(Design::Leveled, false)).unwrap();
        let mut ingest = db.ingest().unwrap();
        for number in 0..100_000u32 {
            ingest.add(number.to_be_bytes(), []).unwrap();
        }
        ingest.finish().unwrap();
        let files = db.metrics().files;
        let count: u64 = files.iter().map(|level| level.file_count).sum();
        let bytes: u64 = files.iter().map(|level| level.bytes).sum();
        assert!(bytes < db.options().bottom.leveled.table_bytes, "{bytes}");
        assert!((9..100).contains(&count), "{count} files");
        assert_eq!(db.iter().unwrap().count(), 100_000);
        db.close().unwrap();
    });
}

/// A thread that writes while it keeps iterators gets the memory back that they hold for older
/// memtables, and they stay exact.
#[test]
fn idle_iterators_hold_no_memtables() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    watchdog::start();
    for design in Design::ALL {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path(), options(design, true)).unwrap();
        let mut kept = Vec::new();
        for number in 0..60_000u32 {
            watched("a put", || db.put(key(number % KEYS), [7; 200]))
                .unwrap_or_else(|e| panic!("{design}, {} iterators: {e}", kept.len()));
            if number.is_multiple_of(500) {
                let mut iter = db.iter().unwrap();
                iter.next().unwrap().unwrap();
                kept.push(iter);
            }
        }
        for (n, iter) in kept.into_iter().enumerate().step_by(25) {
            let keys = (n * 500 + 1).min(KEYS as usize);
            assert_eq!(iter.count() + 1, keys, "{design}, iterator {n}");
        }
        db.close().unwrap();
    }
}

/// The sizes that follow from a budget are kept: an opening without it leaves nothing that one with
/// it could not replay.
#[test]
fn a_budget_is_enough_after_an_opening_without_it() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    for design in Design::ALL {
        let folder = tempfile::tempdir().unwrap();
        let within = options(design, true);
        let db = Db::open(folder.path(), within.clone()).unwrap();
        db.put("first", "of all").unwrap();
        db.close().unwrap();
        let without = Options::load(folder.path()).unwrap().unwrap();
        assert_eq!(without.memory_bytes, None, "a limit is of one opening");
        let db = Db::open(folder.path(), without).unwrap();
        for number in 0..60_000u32 {
            db.put(key(number), [5; 200]).unwrap();
        }
        db.close().unwrap();
        let db = Db::open(folder.path(), within).unwrap_or_else(|e| panic!("{design}: {e}"));
        assert_eq!(db.iter().unwrap().count(), 60_001, "{design}");
        db.close().unwrap();
    }
}

/// A batch whose entries fit the log of a table, but not its index, is refused within a budget, and
/// gets a larger table without one.
#[test]
fn batches_about_as_large_as_a_table_do_not_wait() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    for budget in [Some(BUDGET), None] {
        for value_bytes in [1, 100] {
            for count in (500..1600).step_by(100) {
                let folder = tempfile::tempdir().unwrap();
                let mut options = options(Design::FlatLsm, true);
                options.memory_bytes = budget;
                let db = Db::open(folder.path(), options).unwrap();
                let mut taken = 0;
                for first in (0..5 * count).step_by(count as usize) {
                    let mut batch = WriteBatch::new();
                    for n in first..first + count {
                        batch.put(format!("user{n:08}"), vec![7; value_bytes]);
                    }
                    let what = format!("{count} values of {value_bytes} bytes, {budget:?}");
                    let written = watched("a batch", || db.write(batch, Durability::Buffered));
                    match written {
                        Ok(()) => taken += count,
                        Err(e) => assert!(
                            e.kind() == ErrorKind::Invalid && budget.is_some() && count > 600,
                            "{what}: {e}"
                        ),
                    }
                }
                assert_eq!(db.iter().unwrap().count() as u32, taken);
            }
        }
    }
}

/// One scan of the largest entries has memory, however many runs it merges.
#[test]
fn a_lone_scan_of_the_largest_entries_has_memory() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    // Other designs keep few runs without threads.
    for apart in [None, Some(1000)] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(Design::Leveled, true);
        options.background.workers = Workers::Manual;
        options.bottom.leveled.values_apart_from = apart;
        let mut options = options.within(BUDGET, Sizes::default());
        // Every run stays until writers are stopped.
        options.bottom.leveled.runs_compact = options.bottom.leveled.runs_slow;
        let largest = 64 << 10;
        let db = Db::open(folder.path(), options).unwrap();
        let mut runs = 0;
        for n in 0..600u32 {
            db.put(
                (n * 7919 % 1000).to_be_bytes(),
                vec![n as u8; largest - 100],
            )
            .unwrap();
            runs = db
                .metrics()
                .files
                .first()
                .map_or(0, |level| level.run_count)
                .max(runs);
            if n % 50 == 49 {
                let pairs = db.iter().unwrap().map(|pair| pair.unwrap().into_pair());
                let forward = pairs.count();
                let pairs = db.iter().unwrap().rev().map(|pair| pair.unwrap());
                assert_eq!(pairs.count(), forward);
                assert!(forward > 0);
            }
        }
        // As many as the old limit, a sixteenth, could not merge.
        assert!(runs > 16, "{runs}");
        let report = db.verify(&mut |_| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "{apart:?}");
    }
}

/// Many scans from the back of large pairs share the memory of a budget: each takes fewer pairs
/// at a time.
#[test]
fn scans_from_the_back_share_memory() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(Design::Leveled, true);
    options.bottom.leveled.values_apart_from = Some(1000);
    let db = Db::open(folder.path(), options.within(BUDGET, Sizes::default())).unwrap();
    const PAIRS: u32 = 100;
    for n in 0..PAIRS {
        db.put(n.to_be_bytes(), vec![n as u8; 60 << 10]).unwrap();
    }
    db.compact_range::<[u8; 4]>(..).unwrap();
    let mut scans: Vec<_> = (0..20).map(|_| db.iter().unwrap().rev()).collect();
    for n in (0..PAIRS).rev() {
        for scan in &mut scans {
            let pair = scan.next().unwrap().unwrap();
            assert_eq!(pair.key(), n.to_be_bytes());
            assert!(pair.value().iter().all(|&byte| byte == n as u8));
        }
    }
    assert!(scans.iter_mut().all(|scan| scan.next().is_none()));
}

/// Requests that cannot fit in the budget are refused with advice, and the database continues.
#[test]
fn what_has_no_place_is_refused() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    within_budget("refusals", refusals);
}

fn refusals() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), options(Design::MioDbSsd, false)).unwrap();
    let refused = |result: terrace::Result<()>, words: &str| {
        let e = result.unwrap_err();
        assert!(e.to_string().contains(words), "{e}");
    };
    refused(db.put("large", vec![0; 100_000]), "larger memory_bytes");
    // An ingest leaves such a pair out.
    let mut ingest = db.ingest().unwrap();
    refused(ingest.add("a", vec![0; 100_000]), "larger memory_bytes");
    ingest.add("b", [1]).unwrap();
    assert_eq!(ingest.finish().unwrap().entries, 1);
    db.delete("b").unwrap();
    let mut batch = WriteBatch::new();
    for number in 0..20_000u32 {
        batch.put(key(number), "value");
    }
    refused(db.write(batch, Durability::Buffered), "split it");
    let mut ranges = WriteBatch::new();
    for number in 0..65 {
        ranges.delete_range(key(number)..key(number + 1));
    }
    refused(db.write(ranges, Durability::Buffered), "split it");
    // Ranges that stay above the bottom are held in memory.
    let full = (0..200_000u32).find_map(|number| {
        let begin = format!("{:0>1000}", 2 * number);
        let end = format!("{:0>1000}", 2 * number + 1);
        db.delete_range(begin..end).err()
    });
    if let Some(e) = full {
        assert_eq!(e.kind(), ErrorKind::Full);
        assert!(e.to_string().contains("compact_range"), "{e}");
        db.compact_range::<&[u8]>(..).unwrap();
        db.delete_range("a".."b").unwrap();
    }
    // Iterators that are never dropped.
    db.drain().unwrap();
    for number in 0..2000 {
        db.put(key(number), [1; 1000]).unwrap();
    }
    db.drain().unwrap();
    let mut iterators = Vec::new();
    let e = loop {
        let mut iter = db.iter().unwrap();
        match iter.by_ref().take(300).find_map(Result::err) {
            Some(e) => break e,
            None => iterators.push(iter),
        }
        assert!(iterators.len() < 1000, "iterators are not limited");
    };
    assert_eq!(e.kind(), ErrorKind::Full);
    assert!(e.to_string().contains("drop some of them"), "{e}");
    assert!(db.get(key(5)).unwrap().is_some());
    // Data that cannot be scanned at present is not reported as a problem.
    let unverified = db.verify(&mut |_| {}).map(|report| report.problems);
    assert_eq!(unverified.map_err(|e| e.kind()), Err(ErrorKind::Full));
    iterators.clear();
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, [""; 0]);
    assert_eq!(db.iter().unwrap().filter_map(Result::ok).count(), 2000);
    db.close().unwrap();
}
