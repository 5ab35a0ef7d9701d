//! Lines, flushes, fences and bytes of each operation, compared with a golden file.
//!
//! Counts need no clock and show both a missing and a redundant persist. After an intended change
//! run `TERRACE_BLESS=1 cargo test -p terrace --test it persist`, and read the diff.

use std::fmt::Write;
use std::path::Path;

use terrace::{Counts, Db, Durability, Options, Purpose, WriteBatch};
use terrace_media::{Machine, Medium};
use terrace_testkit::place::Place;
use terrace_testkit::settings;

const GOLDEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/golden/persist_count.txt"
);

/// Measures consecutive operations.
struct Meter {
    text: String,
    before: Counts,
}

impl Meter {
    fn start(&mut self, db: &Db) {
        self.before = db.metrics().pm;
    }

    /// Records the operations on the pool since `start`.
    fn note(&mut self, what: &str, db: &Db) {
        let now = db.metrics().pm;
        let spent = now - self.before;
        self.before = now;
        let _ = writeln!(self.text, "{what}");
        for purpose in Purpose::ALL {
            let counts = spent.get(purpose);
            if counts.lines + counts.flushes + counts.fences + counts.bytes > 0 {
                let _ = writeln!(
                    self.text,
                    "  {:10} {:6} lines {:6} flushes {:6} fences {:8} bytes",
                    purpose.name(),
                    counts.lines,
                    counts.flushes,
                    counts.fences,
                    counts.bytes
                );
            }
        }
    }
}

fn options() -> Options {
    let mut options = settings::small(Medium::Dax);
    options.pool.size_bytes = 4 << 20;
    options.front.memtable_bytes = 64 << 10;
    options.bottom.extent_bytes = 32 << 10;
    options.buffer.levels = 2;
    options
}

fn fill(db: &Db, round: u8) {
    for n in 0..100u8 {
        db.put([b'k', n], vec![round; 100]).unwrap();
    }
}

/// Steps until the jobs of `kind` have ended `count` more times.
fn step_until(db: &Db, kind: &str, count: u64) {
    let ended = || {
        let jobs = db.metrics().jobs;
        jobs.iter()
            .find(|job| job.kind == kind)
            .map_or(0, |job| job.count)
    };
    let goal = ended() + count;
    while ended() < goal {
        assert!(
            db.step(0).unwrap(),
            "there is nothing to do, and no {kind} has ended"
        );
    }
}

/// Every operation issues exactly the lines, flushes and fences of the golden file.
#[test]
fn persist_counts_are_the_golden_ones() {
    let machine = Machine::new(1, Medium::Dax);
    let place = Place::machine(&machine);
    let db = place.open(&options()).unwrap();
    let mut meter = Meter {
        text: String::new(),
        before: Counts::default(),
    };
    meter.note("open a new database", &db);
    db.put("a", "b").unwrap();
    meter.note("put 1 byte", &db);
    fill(&db, 1);
    meter.note("put 100 x 100 bytes", &db);
    let mut batch = WriteBatch::new();
    for n in 0..10u8 {
        batch.put([b'b', n], [n; 100]);
    }
    db.write(batch, Durability::Sync).unwrap();
    meter.note("a batch of 10 x 100 bytes, sync", &db);
    db.delete("a").unwrap();
    meter.note("delete", &db);
    db.get("a").unwrap();
    db.iter().unwrap().count();
    meter.note("get and scan", &db);
    db.flush().unwrap();
    meter.note("seal and flush", &db);
    fill(&db, 2);
    db.flush().unwrap();
    meter.start(&db);
    step_until(&db, "merge", 1);
    meter.note("merge 111 entries with 100 newer ones", &db);
    db.drain().unwrap();
    meter.note("drain 110 entries", &db);
    fill(&db, 3);
    db.flush().unwrap();
    meter.start(&db);
    db.drain().unwrap();
    meter.note("drain 100 entries over their old versions", &db);
    // Overwrites until an extent is worth reclaiming.
    let emptied = |db: &Db| db.metrics().pm.get(Purpose::Reclaim).fences > 0;
    for round in 4..20 {
        meter.start(&db);
        fill(&db, round);
        db.drain().unwrap();
        if emptied(&db) {
            break;
        }
    }
    assert!(
        emptied(&db),
        "sixteen rounds of overwriting leave no garbage"
    );
    meter.note("put, flush, drain and reclaim 100 entries", &db);
    fill(&db, 20);
    meter.start(&db);
    db.close().unwrap();
    meter.note("close with 100 entries in memory", &db);
    drop(db);
    let db = place.open(&options()).unwrap();
    meter.before = Counts::default();
    meter.note("open after a close", &db);
    check(&meter.text);
}

fn check(found: &str) {
    if std::env::var_os("TERRACE_BLESS").is_some() {
        std::fs::write(Path::new(GOLDEN), found).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    assert!(
        found == expected,
        "persist counts have changed; now:\n{found}\ninstead of:\n{expected}\nif that is meant, \
         run TERRACE_BLESS=1 cargo test -p terrace --test it persist"
    );
}
