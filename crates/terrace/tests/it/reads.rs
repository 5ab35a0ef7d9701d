//! Reads of many keys in turns, and reads with read workers: both find what single reads find.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace::{Db, Design, Durability, ErrorKind, Workers, WriteBatch};
use terrace_media::Medium;
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

const KEYS: u64 = 300;
/// The time for which threads write and read in each case.
const HAMMER: Duration = Duration::from_millis(300);

/// All designs, those that only tests use as well.
fn designs() -> impl Iterator<Item = Design> {
    let more = [Design::NoveLsm, Design::NoveLsmNoSst, Design::NoveLsmHier];
    Design::ALL.into_iter().chain(more)
}

fn open(folder: &std::path::Path, design: Design, medium: Medium, read_workers: usize) -> Db {
    let mut options = settings::small_of(design, medium);
    options.background.workers = Workers::Threads(2);
    options.background.read_workers = read_workers;
    Place::folder(folder).open(&options).unwrap()
}

fn key(n: u64) -> String {
    format!("{}/{n:04}", n % 7)
}

/// Makes one random change, which sets keys to `round` or deletes them.
fn change(db: &Db, rng: &mut fastrand::Rng, round: u64) {
    let value = |rng: &mut fastrand::Rng| {
        let mut value = round.to_le_bytes().to_vec();
        value.resize(8 + rng.usize(..200), 7);
        value
    };
    match rng.u32(..400) {
        0 => db.flush().unwrap(),
        1 => db.drain().unwrap(),
        2..6 => {
            let first = rng.u64(..KEYS);
            db.delete_range(key(first)..key(first + 7 * 5)).unwrap();
        }
        6..60 => db.delete(key(rng.u64(..KEYS))).unwrap(),
        60..90 => {
            let mut batch = WriteBatch::new();
            for _ in 0..rng.usize(1..20) {
                match rng.u32(..4) {
                    0 => batch.delete(key(rng.u64(..KEYS))),
                    _ => batch.put(key(rng.u64(..KEYS)), value(rng)),
                };
            }
            db.write(batch, Durability::Buffered).unwrap();
        }
        _ => db.put(key(rng.u64(..KEYS)), value(rng)).unwrap(),
    }
}

/// Runs `write` on another thread, with rising numbers, until `read` was called for `HAMMER`.
fn hammer(write: impl Fn(u64) + Sync, mut read: impl FnMut()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (1..)
                .take_while(|_| !stop.load(Ordering::Relaxed))
                .for_each(&write);
        });
        let begun = Instant::now();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while begun.elapsed() < HAMMER {
                read();
            }
        }));
        stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// At a snapshot, reads of many keys, single reads with and without read workers, and a scan agree,
/// while another thread writes, deletes, flushes and drains.
#[test]
fn all_kinds_of_reads_agree_under_writes() {
    let mut parallel = 0;
    for (number, design) in designs().enumerate() {
        for medium in [Medium::Dax, Medium::Dram] {
            for read_workers in [0, 2] {
                let folder = scratch().unwrap();
                let db = open(folder.path(), design, medium, read_workers);
                let case = format!("{design} on {medium}, {read_workers} read workers");
                let rng = std::sync::Mutex::new(fastrand::Rng::with_seed(number as u64));
                let write = |round| change(&db, &mut rng.lock().unwrap(), round);
                (0..2000).for_each(write);
                let mut rng = fastrand::Rng::with_seed(7);
                hammer(write, || {
                    let snapshot = db.snapshot().unwrap();
                    let mut asked: Vec<String> = (0..rng.usize(1..60))
                        .map(|_| key(rng.u64(..KEYS + 50)))
                        .collect();
                    asked.push(asked[0].clone());
                    let singles: Vec<_> = asked.iter().map(|k| snapshot.get(k).unwrap()).collect();
                    let many = snapshot.multi_get(&asked).unwrap();
                    assert_eq!(many, singles, "{case}: {asked:?}");
                    for (key, found) in asked.iter().zip(many).take(3) {
                        let mut pairs = snapshot.range(key.as_bytes()..).unwrap();
                        let pair = pairs.next().map(|pair| pair.unwrap().into_pair());
                        let pair = pair.filter(|(k, _)| k == key.as_bytes());
                        assert_eq!(pair.map(|(_, value)| value), found, "{case}: {key}");
                    }
                });
                parallel += db.metrics().parallel_read_count;
                assert!(read_workers > 0 || db.metrics().parallel_read_count == 0);
                assert!(
                    db.verify(&mut |_| ()).unwrap().problems.is_empty(),
                    "{case}"
                );
                db.close().unwrap();
            }
        }
    }
    assert!(
        parallel > 100,
        "only {parallel} reads had the help of a worker"
    );
}

/// A plain read never misses an entry that moves down meanwhile: it finds at least what was
/// acknowledged before it began, also behind range deletes.
#[test]
fn reads_with_workers_never_go_back() {
    let mut parallel = 0;
    for design in designs() {
        for medium in [Medium::Dax, Medium::Dram] {
            let folder = scratch().unwrap();
            let db = open(folder.path(), design, medium, 2);
            let written: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
            let write = |round: u64| {
                let n = (round.wrapping_mul(7919) % KEYS) as usize;
                let key = key(n as u64);
                let mut value = round.to_le_bytes().to_vec();
                value.resize(8 + (round % 150) as usize, 1);
                match round % 500 {
                    0 => db.flush().unwrap(),
                    250 => db.drain().unwrap(),
                    n if n % 100 == 7 => {
                        let mut batch = WriteBatch::new();
                        batch.delete_range(key.clone()..format!("{key}0"));
                        batch.put(&key, &value);
                        db.write(batch, Durability::Buffered).unwrap();
                    }
                    _ => db.put(&key, &value).unwrap(),
                }
                if ![0, 250].contains(&(round % 500)) {
                    written[n].store(round, Ordering::Release);
                }
            };
            (1..3000).for_each(write);
            let mut rng = fastrand::Rng::with_seed(3);
            hammer(
                |round| write(3000 + round),
                || {
                    let n = rng.u64(..KEYS);
                    let before = written[n as usize].load(Ordering::Acquire);
                    let found = db.get(key(n)).unwrap();
                    let found =
                        found.map_or(0, |value| u64::from_le_bytes(*value.first_chunk().unwrap()));
                    assert!(
                        found >= before,
                        "{design} on {medium}: {n}: {found} < {before}"
                    );
                },
            );
            parallel += db.metrics().parallel_read_count;
        }
    }
    assert!(
        parallel > 100,
        "only {parallel} reads had the help of a worker"
    );
}

/// A close ends although readers and their workers are busy; each read is answered, or refused as
/// closed.
#[test]
fn a_close_waits_for_no_reader() {
    for design in [Design::MioDbSsd, Design::Leveled, Design::NoveLsm] {
        for round in 0..5 {
            let folder = scratch().unwrap();
            let db = open(folder.path(), design, Medium::Dax, 1 + round);
            let mut rng = fastrand::Rng::with_seed(round as u64);
            (0..2000).for_each(|round| change(&db, &mut rng, round));
            std::thread::scope(|scope| {
                for seed in 0..3 {
                    let db = db.clone();
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(seed);
                        let ended = loop {
                            if let Err(e) = db.get(key(rng.u64(..KEYS))) {
                                break e;
                            }
                        };
                        assert_eq!(ended.kind(), ErrorKind::Closed);
                    });
                }
                std::thread::sleep(Duration::from_millis(20));
                db.close().unwrap();
            });
        }
    }
}
