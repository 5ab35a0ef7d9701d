//! Atomic reads: everything that a call reads was the state of the database at one instant of the
//! call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use terrace::{Db, Design, Durability, Workers, WriteBatch};
use terrace_media::{Clock, Medium};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

const DESIGNS: [(Design, Medium); 7] = [
    (Design::MioDb, Medium::Dax),
    (Design::MioDb, Medium::Dram),
    (Design::MioDbSsd, Medium::Dram),
    (Design::NoveLsm, Medium::Dax),
    (Design::NoveLsmNoSst, Medium::Mapped),
    (Design::NoveLsmHier, Medium::Dax),
    (Design::Leveled, Medium::Dram),
];
/// The time that threads try to catch a read between two states: a second for all designs.
const HAMMER: Duration = Duration::from_millis(1000 / DESIGNS.len() as u64);

/// Runs `write` and `read` concurrently on two threads, and stops both at the first failure.
fn hammer(write: impl Fn(u64) + Sync, read: impl Fn() + Sync) {
    let begun = Instant::now();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0.. {
                write(round);
                if stop.load(Ordering::Relaxed) || begun.elapsed() > HAMMER {
                    break;
                }
            }
        });
        while !writer.is_finished() {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&read));
            if let Err(panic) = caught {
                stop.store(true, Ordering::Relaxed);
                std::panic::resume_unwind(panic);
            }
        }
    });
}

/// A batch that deletes a range and puts a key of it again never shows the key as absent, and one
/// that puts a key and then deletes its range never shows the key.
#[test]
fn a_point_read_never_sees_half_of_a_batch_with_a_range_delete() {
    for (design, medium) in DESIGNS {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(design, medium);
        options.background.workers = Workers::Threads(2);
        let db = Place::folder(folder.path()).open(&options).unwrap();
        let write = |round: u64| {
            let mut batch = WriteBatch::new();
            batch.put("a/gone", round.to_le_bytes());
            batch.delete_range("a".."b");
            batch.put("a/key", round.to_le_bytes());
            db.write(batch, Durability::Buffered).unwrap();
        };
        write(0);
        hammer(write, || {
            assert!(db.get("a/key").unwrap().is_some(), "{design} on {medium}");
            assert_eq!(db.get("a/gone").unwrap(), None, "{design} on {medium}");
        });
    }
}

/// A clock that is stopped, and runs a hook of the test when it is read.
#[derive(Default)]
struct Hooked {
    millis: AtomicU64,
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    after: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Clock for Hooked {
    fn now(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::SeqCst))
    }

    fn sleep(&self, _: Duration) {}

    fn unix_millis(&self) -> u64 {
        let before = self.before.lock().unwrap().take();
        before.into_iter().for_each(|f| f());
        let now = self.millis.load(Ordering::SeqCst);
        let after = self.after.lock().unwrap().take();
        after.into_iter().for_each(|f| f());
        now
    }
}

fn opened(design: Design, medium: Medium, folder: &std::path::Path) -> (Arc<Hooked>, Db) {
    let clock = Arc::new(Hooked::default());
    clock.millis.store(1000, Ordering::SeqCst);
    let db = Db::builder(folder)
        .options(settings::small_of(design, medium))
        .clock(Arc::clone(&clock) as Arc<dyn Clock>)
        .open()
        .unwrap();
    (clock, db)
}

type Look = fn(&Db, &str) -> Option<Vec<u8>>;

/// Every way to read a key.
const LOOKS: [(&str, Look); 7] = [
    ("get", |db, key| db.get(key).unwrap()),
    ("get_with_expiry", |db, key| {
        db.get_with_expiry(key).unwrap().map(|(value, _)| value)
    }),
    ("multi_get", |db, key| {
        db.multi_get(&[key, "other"]).unwrap().swap_remove(0)
    }),
    ("snapshot", |db, key| {
        db.snapshot().unwrap().get(key).unwrap()
    }),
    ("iter", |db, key| {
        let mut pairs = db.iter().unwrap().map(|pair| pair.unwrap().into_pair());
        pairs
            .find(|pair| pair.0 == key.as_bytes())
            .map(|pair| pair.1)
    }),
    ("iter backward", |db, key| {
        let pairs = db.iter().unwrap().rev();
        let mut pairs = pairs.map(|pair| pair.unwrap().into_pair());
        pairs
            .find(|pair| pair.0 == key.as_bytes())
            .map(|pair| pair.1)
    }),
    ("range", |db, key| {
        let mut pairs = db.range(key..).unwrap();
        let pair = pairs.next().map(|pair| pair.unwrap().into_pair());
        pair.filter(|pair| pair.0 == key.as_bytes())
            .map(|pair| pair.1)
    }),
];

/// A key that is rewritten before it expires is present for every read, however long the read
/// pauses between its steps.
#[test]
fn a_key_that_is_replaced_in_time_is_never_absent() {
    for (design, medium) in DESIGNS {
        for (name, look) in LOOKS {
            for moves in [false, true] {
                let folder = scratch().unwrap();
                let (clock, db) = opened(design, medium, folder.path());
                db.put_with_ttl("key", "first", Duration::from_millis(10))
                    .unwrap();
                if moves {
                    db.flush().unwrap();
                }
                let (writer, hands) = (db.clone(), Arc::clone(&clock));
                let meanwhile = move || {
                    writer.put("key", "second").unwrap();
                    hands.millis.store(1020, Ordering::SeqCst);
                };
                *clock.before.lock().unwrap() = Some(Box::new(meanwhile));
                let found = look(&db, "key");
                assert!(found.is_some(), "{name}, {design} on {medium}");
            }
        }
    }
}

/// A read of several keys never shows one that has expired together with one written after that.
#[test]
fn an_expired_key_is_not_shown_with_later_ones() {
    for (design, medium) in DESIGNS {
        type Both = fn(&Db) -> (bool, bool);
        let reads: [(&str, Both); 3] = [
            ("multi_get", |db| {
                let found = db.multi_get(&["a", "b"]).unwrap();
                (found[0].is_some(), found[1].is_some())
            }),
            ("snapshot", |db| {
                let snapshot = db.snapshot().unwrap();
                let has = |key| snapshot.get(key).unwrap().is_some();
                (has("a"), has("b"))
            }),
            ("iter", |db| {
                let keys = db.iter().unwrap().map(|pair| pair.unwrap().into_pair().0);
                let keys: Vec<_> = keys.collect();
                (keys.contains(&b"a".to_vec()), keys.contains(&b"b".to_vec()))
            }),
        ];
        for (name, read) in reads {
            let folder = scratch().unwrap();
            let (clock, db) = opened(design, medium, folder.path());
            db.put_with_ttl("a", "early", Duration::from_millis(10))
                .unwrap();
            let (writer, hands) = (db.clone(), Arc::clone(&clock));
            let meanwhile = move || {
                hands.millis.store(1020, Ordering::SeqCst);
                writer.put("b", "late").unwrap();
            };
            *clock.after.lock().unwrap() = Some(Box::new(meanwhile));
            assert_ne!(read(&db), (true, true), "{name}, {design} on {medium}");
        }
    }
}

/// A read finishes even if every look at the clock finds another time and a newer sequence number.
#[test]
fn a_moment_is_found_while_clock_and_writers_never_rest() {
    struct Restless(AtomicU64, Mutex<Option<Db>>);
    impl Clock for Restless {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
        fn sleep(&self, _: Duration) {}
        fn unix_millis(&self) -> u64 {
            let db = self.1.try_lock().ok().and_then(|mut db| db.take());
            if let Some(db) = db {
                // Writes on another thread: the calling one may hold a lock that a write needs.
                let (sent, written) = std::sync::mpsc::channel();
                let writer = db.clone();
                std::thread::spawn(move || sent.send(writer.put("other", "newer").is_ok()));
                // BOUND: if the write is blocked for now, it happens later.
                let _ = written.recv_timeout(Duration::from_millis(20));
                *self.1.lock().unwrap() = Some(db);
            }
            self.0.fetch_add(1, Ordering::SeqCst)
        }
    }
    let folder = scratch().unwrap();
    let clock = Arc::new(Restless(AtomicU64::new(1000), Mutex::default()));
    let options = settings::small_of(Design::MioDb, Medium::Dram);
    let db = Db::builder(folder.path())
        .options(options)
        .clock(Arc::clone(&clock) as Arc<dyn Clock>)
        .open()
        .unwrap();
    let year = Duration::from_secs(365 * 24 * 3600);
    db.put_with_ttl("key", "value", year).unwrap();
    *clock.1.lock().unwrap() = Some(db.clone());
    let snapshot = db.snapshot().unwrap();
    assert_eq!(snapshot.get("key").unwrap(), Some(b"value".to_vec()));
    assert_eq!(db.multi_get(&["key"]).unwrap(), [Some(b"value".to_vec())]);
    *clock.1.lock().unwrap() = None;
}
