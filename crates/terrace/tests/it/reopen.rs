//! Databases killed with a nearly full pool: everything acknowledged under a cap is there when the
//! database is reopened under the same cap.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace::{Db, Design, Durability, ErrorKind, Workers, WriteBatch};
use terrace_media::{FaultFs, Medium, OsFs};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::{seeds, settings};

/// The parameters of the writes, drawn from a seed.
#[derive(Debug)]
struct Shape {
    /// The number of keys.
    keys: u32,
    /// The maximum length of a value.
    len: usize,
    /// The maximum number of entries in a batch.
    batch: usize,
    /// The percentages of entries that are deletes, and range deletes.
    deletes: u8,
    ranges: u8,
    /// One in this many writes is followed by a flush, and by background steps.
    flush: u32,
    steps: u32,
}

impl Shape {
    fn draw(rng: &mut fastrand::Rng, medium: Medium, pool: u64) -> Shape {
        let len = [300, 1000, 5000, 12_000][rng.usize(..4)];
        // Up to twice the capacity of the pool. If all data is in logs, their content is rebuilt at
        // open. Of values as large as extents the bottom holds less than memtables do, so less than
        // half is guaranteed.
        let percent = match medium {
            Medium::Dram if len > 1000 => 45,
            Medium::Dax | Medium::Mapped | Medium::Dram => 200,
        };
        let most = pool * percent / 100 / (64 + len as u64 / 2);
        Shape {
            keys: rng.u32(most as u32 / 8..=most as u32),
            len,
            batch: [1, 1, 8][rng.usize(..3)],
            deletes: [0, 5, 30][rng.usize(..3)],
            ranges: [0, 0, 1][rng.usize(..3)],
            flush: [u32::MAX, 500, 10][rng.usize(..3)],
            steps: [u32::MAX, 20, 2][rng.usize(..3)],
        }
    }
}

type Model = BTreeMap<u32, (u8, usize)>;

/// Writes until the pool has refused enough writes, or enough was written. Returns the number of
/// refused writes.
fn write(db: &Db, rng: &mut fastrand::Rng, shape: &Shape, model: &mut Model, total: u64) -> u32 {
    let (mut written, mut refused, mut turns) = (0, 0, 0);
    while written < total && refused < 20 && turns < 6000 {
        turns += 1;
        let mut batch = WriteBatch::new();
        let mut after = Vec::new();
        for _ in 0..rng.usize(1..=shape.batch) {
            let key = rng.u32(..shape.keys);
            let kind = rng.u8(..100);
            if kind < shape.ranges {
                let end = key + rng.u32(1..=shape.keys / 8);
                batch.delete_range(key.to_be_bytes()..end.to_be_bytes());
                after.push((key..end, None));
            } else if kind < shape.ranges + shape.deletes {
                batch.delete(key.to_be_bytes());
                after.push((key..key + 1, None));
            } else {
                let (byte, len) = (rng.u8(..), rng.usize(..=shape.len));
                batch.put(key.to_be_bytes(), vec![byte; len]);
                written += len as u64;
                after.push((key..key + 1, Some((byte, len))));
            }
            written += 64;
        }
        match db.write(batch, Durability::Buffered) {
            Ok(()) => {
                for (keys, value) in after {
                    match value {
                        Some(value) => {
                            model.insert(keys.start, value);
                        }
                        None => {
                            let gone: Vec<u32> = model.range(keys).map(|(&key, _)| key).collect();
                            for key in gone {
                                model.remove(&key);
                            }
                        }
                    }
                }
            }
            Err(e) if e.kind() == ErrorKind::Full => refused += 1,
            Err(e) => panic!("{shape:?}: {e}"),
        }
        if shape.flush != u32::MAX && rng.u32(..shape.flush) == 0 {
            match db.flush() {
                Ok(()) => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::Full, "{e}"),
            }
        }
        if shape.steps != u32::MAX && rng.u32(..shape.steps) == 0 {
            for _ in 0..rng.u32(..20) {
                if !db.step(rng.usize(..)).unwrap() {
                    break;
                }
            }
        }
    }
    refused
}

fn check(db: &Db, model: &Model, what: &dyn Fn() -> String) {
    let mut expected = model.iter();
    for pair in db.iter().unwrap() {
        let pair = pair.unwrap_or_else(|e| panic!("{}: {e}", what()));
        let (&key, &(byte, len)) = expected.next().unwrap_or_else(|| panic!("{}", what()));
        assert_eq!(pair.key(), key.to_be_bytes(), "{}", what());
        assert!(pair.value() == vec![byte; len], "{}: key {key}", what());
    }
    assert_eq!(expected.next(), None, "{}", what());
}

/// Copies the directory of an open idle database, as a killed process leaves it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        std::fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

/// Runs the lives of one database: each fills it further, is killed, and is reopened with the same
/// or other options of the same pool. Returns the number of refused writes.
fn live(design: Design, medium: Medium, seed: u64, other: bool) -> u32 {
    const POOL: u64 = 2 << 20;
    let mut rng = fastrand::Rng::with_seed(seed);
    let small = settings::small_of(design, medium);
    let options = |rng: &mut fastrand::Rng| {
        let mut options = settings::varied(&small, rng.u8(..));
        options.pool.size_bytes = POOL;
        options
    };
    let mut now = options(&mut rng);
    let shape = Shape::draw(&mut rng, medium, POOL);
    let mut model = Model::new();
    let mut folder = scratch().unwrap();
    let mut refused = 0;
    let mut db = Db::open(folder.path(), now.clone()).unwrap();
    for life in 0..3 {
        refused += write(&db, &mut rng, &shape, &mut model, 2 * POOL);
        let used = db.metrics().pool.allocated_bytes;
        if other {
            now = options(&mut rng);
        }
        let what = || {
            let memtable = now.front.memtable_bytes;
            format!(
                "{design} on {medium}, seed {seed:#x}, life {life}: {used} bytes used, {refused} writes \
                 refused, then memtables of {memtable}, {shape:?}"
            )
        };
        // There are no writes and no threads, so a copy is what a killed process leaves.
        let (one, next) = (scratch().unwrap(), scratch().unwrap());
        copy(folder.path(), one.path());
        copy(folder.path(), next.path());
        drop(db);
        let reopen = |folder: &Path, workers| {
            let mut options = now.clone();
            options.background.workers = workers;
            let db = Db::open(folder, options).unwrap_or_else(|e| panic!("{}: {e}", what()));
            check(&db, &model, &what);
            db
        };
        // With threads, several logs are replayed concurrently.
        drop(reopen(one.path(), Workers::Threads(1)));
        db = reopen(next.path(), Workers::Manual);
        folder = next;
    }
    refused
}

/// Everything acknowledged under a cap is replayed under the same cap: with the same options, and
/// for odd seeds with other options of the same pool: smaller and larger memtables, fewer levels,
/// no filters.
#[test]
fn a_killed_database_opens_again_in_its_pool() {
    let seeds = seeds::seeds(6);
    let media = [Medium::Dax, Medium::Mapped, Medium::Dram];
    for (design, medium) in media
        .map(|medium| (Design::MioDb, medium))
        .into_iter()
        .chain([(Design::MioDbSsd, Medium::Dram)])
    {
        let lives = seeds
            .iter()
            .map(|&seed| live(design, medium, seed, seed % 2 == 1));
        let full = lives.filter(|&refused| refused > 0).count();
        let fills = design == Design::MioDb && seeds.len() > 4;
        assert!(full > 0 || !fills, "no pool was filled: {design}, {medium}");
    }
}

/// A database killed at any moment of a full pool, including flushes that use the reserve too,
/// opens in the same pool.
#[test]
fn a_pool_filled_by_flushes_opens_again() {
    let mut options = settings::small(Medium::Dax);
    (options.pool.size_bytes, options.front.memtable_bytes) = (2432 << 10, 160 << 10);
    for seed in seeds::seeds(3) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (folder, copy) = (scratch().unwrap(), scratch().unwrap());
        let db = Db::open(folder.path(), options.clone()).unwrap();
        for turn in 0..400 {
            let (key, len) = (rng.u32(..200), rng.usize(..50_000));
            if db.put(key.to_be_bytes(), vec![7; len]).is_err() {
                let _ = db.delete_range::<&[u8]>(..);
            }
            for _ in 0..rng.u32(..3) {
                db.step(rng.usize(..)).unwrap();
            }
            if rng.u8(..4) == 0 {
                let _ = db.flush();
            }
            if turn % 8 == 0 {
                // Copies what a killed process leaves.
                for name in ["pool", "OPTIONS", "LOCK"] {
                    std::fs::copy(folder.path().join(name), copy.path().join(name)).unwrap();
                }
                let opened = Db::open(copy.path(), options.clone());
                let opened = opened.unwrap_or_else(|e| panic!("seed {seed:#x}, turn {turn}: {e}"));
                let pairs = |db: &Db| db.iter().unwrap().filter(|pair| pair.is_ok()).count();
                assert_eq!(pairs(&opened), pairs(&db), "seed {seed:#x}, turn {turn}");
            }
        }
    }
}

/// A log that was written under larger memtables is read to its end once, and then once more by all
/// the memtables that it becomes together, however many these are, and whether or not other logs
/// follow it.
#[test]
fn a_large_log_is_not_read_again_for_each_small_memtable() {
    for (workers, memtable) in [
        (Workers::Manual, 8 << 20),
        (Workers::Threads(2), 8 << 20),
        (Workers::Threads(2), 2 << 20),
    ] {
        replay_into_small_memtables(workers, memtable);
    }
}

fn replay_into_small_memtables(workers: Workers, memtable: u64) {
    const PAIRS: u32 = 40_000;
    let mut options = settings::small_of(Design::MioDbSsd, Medium::Dram);
    options.pool.size_bytes = 128 << 20;
    options.front.memtable_bytes = memtable;
    options.front.log_bytes_max = 256 << 20;
    let (folder, killed) = (scratch().unwrap(), scratch().unwrap());
    let db = Db::open(folder.path(), options.clone()).unwrap();
    // Batches, so that memtables end inside of records.
    for batch in 0..PAIRS / 50 {
        let mut all = WriteBatch::new();
        for n in batch * 50..(batch + 1) * 50 {
            all.put(n.to_be_bytes(), n.to_le_bytes().repeat(20));
        }
        db.write(all, Durability::Buffered).unwrap();
    }
    copy(folder.path(), killed.path());
    drop(db);
    let logs = std::fs::read_dir(killed.path()).unwrap();
    let logs = logs.map(|entry| entry.unwrap()).filter(|entry| {
        let name = entry.file_name().into_string().unwrap();
        name.ends_with(".log")
    });
    let sizes: Vec<u64> = logs.map(|log| log.metadata().unwrap().len()).collect();
    let bytes: u64 = sizes.iter().sum();
    assert!(sizes.len() > 2 || memtable > 2 << 20, "{sizes:?}");

    options.front.memtable_bytes = 256 << 10;
    options.background.workers = workers;
    let fs = FaultFs::new(Arc::new(OsFs));
    let reads = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reads);
    fs.judge(move |call| {
        let is_read = call.starts_with("read ") && call.ends_with(".log");
        counter.fetch_add(u64::from(is_read), Ordering::Relaxed);
        Ok(())
    });
    let mut place = Place::folder(killed.path());
    place.fs = Some(Arc::new(fs));
    let db = place.open(&options).unwrap();
    let pairs = db.iter().unwrap().map(|pair| pair.unwrap());
    let values = pairs.map(|pair| {
        let n = u32::from_be_bytes(pair.key().try_into().unwrap());
        assert_eq!(pair.value(), n.to_le_bytes().repeat(20));
    });
    assert_eq!(values.count(), PAIRS as usize);
    // Reads of 256 KiB, the last one of a memtable also for the next one; some for each log.
    let most = 4 * bytes / (256 << 10) + 8 * sizes.len() as u64;
    let reads = reads.load(Ordering::Relaxed);
    assert!(
        reads <= most,
        "{workers:?}: {reads} reads of {bytes} bytes in {} logs, not {most}",
        sizes.len()
    );
}
