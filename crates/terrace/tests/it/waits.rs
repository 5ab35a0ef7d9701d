//! Calls that wait for background work wait only for the work present when they started: they
//! return even if writers never stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace::{Db, Design, Workers};
use terrace_media::{FaultFs, Medium, OsFs};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

/// The time for which writers continue if a call does not return. Calls take two seconds, and
/// thirty times that if other programs leave these threads a third of a processor.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs `call` a few times alongside two writers of all keys that it may touch. Fails if it returns
/// only when they stop.
fn ends_beside_writers(design: Design, medium: Medium, what: &str, call: &dyn Fn(&Db)) {
    let folder = scratch().unwrap();
    let mut options = settings::small_of(design, medium);
    options.pool.size_bytes = 4 << 20;
    options.front.log_bytes_max = 1 << 20;
    options.background.workers = Workers::Threads(1);
    let db = Db::open(folder.path(), options).unwrap();
    let (done, gave_up) = (AtomicBool::new(false), AtomicBool::new(false));
    let written = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for writer in 0..2u32 {
            let (db, done, gave_up, written) = (&db, &done, &gave_up, &written);
            threads.spawn(move || {
                let begun = Instant::now();
                for n in 0u32.. {
                    if done.load(Ordering::Acquire) {
                        return;
                    }
                    if begun.elapsed() > PATIENCE {
                        gave_up.store(true, Ordering::Release);
                        return;
                    }
                    let key = (n.wrapping_mul(2_654_435_761) % 20_000 * 2 + writer).to_be_bytes();
                    if let Err(e) = db.put(key, [7; 100]) {
                        gave_up.store(true, Ordering::Release);
                        panic!("put {n}: {e}");
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..2 {
            let enough = written.load(Ordering::Relaxed) + 2000;
            while written.load(Ordering::Relaxed) < enough && !gave_up.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            call(&db);
        }
        done.store(true, Ordering::Release);
    });
    let gave_up = gave_up.into_inner();
    assert!(
        !gave_up,
        "{what} of {design} on {medium} did not end beside writers"
    );
}

fn everywhere(what: &str, call: &dyn Fn(&Db)) {
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Dram] {
            ends_beside_writers(design, medium, what, call);
        }
    }
}

/// While a slow disk takes one memtable, writers fill the maximum number of them: the thread that
/// flushes makes new ones in between. All data is there afterwards.
#[test]
fn memtables_are_created_during_a_flush() {
    let folder = scratch().unwrap();
    let fs = FaultFs::new(Arc::new(OsFs));
    let place = Place {
        fs: Some(Arc::new(fs.clone())),
        ..Place::folder(folder.path().join("db"))
    };
    // Logs and memtables are in the pool: the disk has table files only.
    let mut options = settings::small_of(Design::Leveled, Medium::Dax);
    options.pool.size_bytes = 64 << 20;
    // A flush takes several steps.
    options.front.memtable_bytes = 4 << 20;
    options.front.sealed_count_max = 2;
    options.background.workers = Workers::Threads(1);
    let db = place.open(&options).unwrap();
    fs.slow_writes(Duration::from_millis(5));
    let mut written = 0u32;
    let mut sealed_most = 0;
    // Writes into the third memtable, and not beyond it.
    while sealed_most < 2 && written < 9000 {
        db.put(written.to_be_bytes(), [7; 1000]).unwrap();
        written += 1;
        if written.is_multiple_of(64) {
            sealed_most = sealed_most.max(db.metrics().sealed_count);
        }
    }
    assert_eq!(sealed_most, 2, "after {written} writes");
    fs.slow_writes(Duration::ZERO);
    db.flush().unwrap();
    let found = db.iter().unwrap().filter(|pair| pair.is_ok()).count();
    assert_eq!(found, written as usize);
}

/// While a caller makes a memtable of its own size, the thread that flushes waits for it, and does
/// not start the same job repeatedly.
#[test]
fn a_memtable_is_made_by_one() {
    let folder = scratch().unwrap();
    let fs = FaultFs::new(Arc::new(OsFs));
    let place = Place {
        fs: Some(Arc::new(fs.clone())),
        ..Place::folder(folder.path().join("db"))
    };
    let mut options = settings::small_of(Design::Leveled, Medium::Dram);
    options.pool.size_bytes = 64 << 20;
    options.front.memtable_bytes = 1 << 20;
    options.background.workers = Workers::Threads(1);
    let db = place.open(&options).unwrap();
    // Past the point from which on there must be another memtable.
    for n in 0..400u32 {
        db.put(n.to_be_bytes(), [7; 1000]).unwrap();
    }
    fs.judge(|call| {
        if call.starts_with("allocate") {
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    });
    let ended = || {
        let jobs = db.metrics().jobs;
        let jobs = jobs.iter();
        let of_writers = jobs.filter(|job| matches!(job.kind, "flush" | "spare"));
        of_writers.map(|job| job.count).sum::<u64>()
    };
    let before = ended();
    db.put(b"large", vec![7; 2 << 20]).unwrap();
    let ended = ended() - before;
    assert!(ended < 100, "{ended} jobs ended");
}

#[test]
fn flushes_end_during_writes() {
    everywhere("a flush", &|db| db.flush().unwrap());
}

#[test]
fn compactions_of_ranges_end_during_writes() {
    everywhere("a compaction", &|db| {
        let (from, to) = (1000u32.to_be_bytes(), 2000u32.to_be_bytes());
        db.compact_range(from..to).unwrap();
    });
}

#[test]
fn ingests_end_during_writes() {
    everywhere("an ingest", &|db| {
        let Ok(mut ingest) = db.ingest() else {
            // MioDb in plain memory has no ingest.
            return;
        };
        for n in 1000..2000u32 {
            ingest.add(n.to_be_bytes(), [8; 100]).unwrap();
        }
        ingest.finish().unwrap();
    });
}
