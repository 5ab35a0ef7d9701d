//! Events: a logger gets one message for each event, without keys and values.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use terrace::{Db, Design, ErrorKind, Workers};
use terrace_media::{FaultFs, Medium, OsFs};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

use crate::room::{fill, on_a_disk_of};

/// A word in all keys and values of these tests, which no message may contain.
const SECRET: &str = "s3cr3t";

/// One message.
#[derive(Debug, Clone)]
struct Event {
    level: Level,
    target: String,
    message: String,
}

/// The messages of one database.
struct Told {
    /// The end of its path, which is unique.
    folder: String,
    /// The prefix of its messages, once it was opened.
    tag: Option<String>,
    events: Vec<Event>,
}

/// The databases that tests watch. Others of the process are ignored.
static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

fn told() -> MutexGuard<'static, Vec<Told>> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Collector;

impl Log for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("terrace::")
    }

    fn log(&self, record: &Record<'_>) {
        let message = record.args().to_string();
        let tag = message.split(": ").next().unwrap_or_default();
        let mut told = told();
        let of = |told: &&mut Told| match &told.tag {
            Some(known) => known == tag,
            None => message.contains(&told.folder),
        };
        if let Some(told) = told.iter_mut().find(of) {
            told.tag = Some(tag.to_owned());
            told.events.push(Event {
                level: record.level(),
                target: record.target().to_owned(),
                message,
            });
        }
    }

    fn flush(&self) {}
}

/// The messages about the database in a directory.
struct Seen(String);

impl Seen {
    /// Installs the logger, and listens for the database in `folder`.
    fn of(folder: &Path) -> Seen {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            log::set_logger(&Collector).unwrap();
            log::set_max_level(LevelFilter::Debug);
        });
        let folder = folder.to_str().unwrap().to_owned();
        told().push(Told {
            folder: folder.clone(),
            tag: None,
            events: Vec::new(),
        });
        Seen(folder)
    }

    fn all(&self) -> Vec<Event> {
        let told = told();
        let mut of = told.iter().filter(|told| told.folder == self.0);
        of.next().unwrap().events.clone()
    }

    /// Returns the messages of a level and a target that contain `part`.
    fn find(&self, level: Level, target: &str, part: &str) -> Vec<String> {
        let all = self.all().into_iter();
        let found = all.filter(|event| {
            event.level == level && event.target == target && event.message.contains(part)
        });
        found.map(|event| event.message).collect()
    }

    /// Returns the only such message.
    #[track_caller]
    fn one(&self, level: Level, target: &str, part: &str) -> String {
        let mut found = self.find(level, target, part);
        assert_eq!(found.len(), 1, "{part}: {found:#?} of {:#?}", self.all());
        found.remove(0)
    }
}

fn key(n: u32) -> String {
    format!("{SECRET}-{n:05}")
}

/// Returns an incompressible value, so that a table has many blocks.
fn noise(n: u32) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(u64::from(n));
    let mut value = SECRET.as_bytes().to_vec();
    value.extend((0..100).map(|_| rng.u8(..)));
    value
}

/// Returns the number before `what`.
fn number(message: &str, what: &str) -> u64 {
    let front = message.split(what).next().unwrap();
    front.rsplit(' ').next().unwrap().parse().unwrap()
}

/// An open, each job that has done something, and a close are logged once, with what they did.
#[test]
fn openings_jobs_and_closes_are_logged_once() {
    let media = [Medium::Dax, Medium::Dram];
    let all = Design::ALL.into_iter();
    for (design, medium) in all.flat_map(|design| media.map(|medium| (design, medium))) {
        let folder = scratch().unwrap();
        let seen = Seen::of(folder.path());
        let options = settings::small_of(design, medium);
        let db = Db::open(folder.path(), options.clone()).unwrap();
        let opened = seen.one(Level::Info, "terrace::open", "created in");
        let (tag, _) = opened.split_once(": ").unwrap();
        assert!(opened.contains(&format!("has the id {tag}")), "{opened}");
        assert!(
            opened.contains(&format!("the design {design};")),
            "{opened}"
        );
        assert!(opened.contains(&medium.to_string()), "{opened}");
        for n in 0..20 {
            db.put(key(n), SECRET.repeat(10)).unwrap();
        }
        db.flush().unwrap();
        let flush = seen.one(Level::Debug, "terrace::job", " job moved");
        assert!(
            flush.contains(": a flush job moved 20 entries in "),
            "{flush}"
        );
        let added = match design {
            Design::Leveled => ": 1 file added",
            Design::MatrixKv => ": 1 row added",
            // It becomes a table without an edit.
            Design::FlatLsm => " job moved",
            _ => ": 1 table added",
        };
        assert!(flush.contains(added), "{flush}");
        for round in 0..12 {
            for n in 0..200 {
                db.put(key(n * 7 % 200), SECRET.repeat(10 + round)).unwrap();
            }
            if round % 4 == 3 {
                db.drain().unwrap();
            }
        }
        db.compact_range::<&[u8]>(..).unwrap();
        db.wait_idle().unwrap();
        for job in db.metrics().jobs {
            let all = seen.find(Level::Debug, "terrace::job", &format!("a {} job", job.kind));
            let moved = all.iter().map(|message| {
                let what = if message.contains(" 1 entry") {
                    " entry"
                } else {
                    " entries"
                };
                number(message, what)
            });
            assert_eq!(moved.sum::<u64>(), job.entry_count, "{design}: {all:#?}");
            assert!(all.len() as u64 <= job.count, "{design}, {}", job.kind);
            let wanted = match job.kind {
                "flush" => true,
                "merge" => [Design::MioDb, Design::MioDbSsd, Design::NoveLsmHier].contains(&design),
                "drain" => design != Design::Leveled,
                "spare" | "rewrite" => false,
                "compact" => design.keeps_table_files(),
                _ => !design.keeps_table_files(),
            };
            assert_eq!(!all.is_empty(), wanted, "{design}, {}: {all:#?}", job.kind);
        }
        db.close().unwrap();
        assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Closed);
        drop(db);
        seen.one(Level::Info, "terrace::open", "closed in ");
        drop(Db::open(folder.path(), options).unwrap());
        seen.one(
            Level::Info,
            "terrace::open",
            "opened after a clean close in ",
        );
        assert_eq!(
            seen.find(Level::Info, "terrace::open", "closed in ").len(),
            2
        );
        for event in seen.all() {
            assert!(!event.message.contains(SECRET), "{event:?}");
            // A busy machine may let a writer wait for long.
            let is_stall = event.target == "terrace::stall";
            assert!(event.level >= Level::Info || is_stall, "{event:?}");
        }
    }
}

/// A long wait of a writer is logged when it ends, with reason and duration; short waits are not.
#[test]
fn long_stalls_are_logged() {
    let folder = scratch().unwrap();
    let seen = Seen::of(folder.path());
    let fs = FaultFs::new(Arc::new(OsFs));
    let place = Place {
        fs: Some(Arc::new(fs.clone())),
        ..Place::folder(folder.path().join("db"))
    };
    // Logs and memtables are in the pool: the disk has table files only.
    let mut options = settings::small_of(Design::Leveled, Medium::Dax);
    options.front.sealed_count_max = 1;
    options.background.workers = Workers::Threads(1);
    let db = place.open(&options).unwrap();
    // Short waits: writers are faster than the flushes.
    for n in 0..300 {
        db.put(key(n), SECRET.repeat(100)).unwrap();
    }
    fs.slow_writes(Duration::from_millis(150));
    let stalls = || seen.find(Level::Warn, "terrace::stall", "a writer waited ");
    let mut written = 0;
    while stalls().is_empty() && written < 2000 {
        db.put(key(written), SECRET.repeat(100)).unwrap();
        written += 1;
    }
    fs.slow_writes(Duration::ZERO);
    let (stalls, metrics) = (stalls(), db.metrics().stalls);
    for stall in &stalls {
        let (_, waited) = stall.split_once(" waited ").unwrap();
        let (waited, _) = waited.split_once(" for ").unwrap();
        let millis = match waited.strip_suffix("ms") {
            Some(millis) => millis.parse::<f64>().unwrap(),
            // Microseconds do not parse as a number after the suffix is removed.
            None => {
                waited
                    .strip_suffix('s')
                    .unwrap()
                    .parse::<f64>()
                    .unwrap_or(0.0)
                    * 1000.0
            }
        };
        assert!(millis >= 100.0, "{stall}");
    }
    let stall = stalls.first().expect("writers were never stalled for long");
    let reason = metrics
        .iter()
        .find(|of| stall.ends_with(&format!(" for {}", of.reason.name())));
    let reason = reason.unwrap_or_else(|| panic!("{stall} has no reason"));
    assert!(reason.longest >= Duration::from_millis(100), "{reason:?}");
    let longest = format!("{:.1?}", reason.longest);
    assert!(
        stalls.iter().any(|stall| stall.contains(&longest)),
        "{longest}: {stalls:?}"
    );
    assert!(
        stalls.len() as u64 <= reason.count,
        "{reason:?}, {stalls:?}"
    );
}

/// A full disk, jobs that it refuses, and its recovery are logged, refusals with decreasing
/// frequency.
#[test]
fn a_full_disk_is_logged() {
    let folder = scratch().unwrap();
    let seen = Seen::of(folder.path());
    let (place, quota, _) = on_a_disk_of(2 << 20, folder.path());
    let mut options = settings::small_of(Design::Leveled, Medium::Dram);
    options.front.memtable_bytes = 64 << 10;
    options.front.log_bytes_max = 1 << 20;
    options.bottom.leveled.table_bytes = 64 << 10;
    options.bottom.leveled.level1_bytes = 128 << 10;
    let db = place.open(&options).unwrap();
    fill(&db);
    // A few of them find released space, or a memtable has some.
    for n in 0..50 {
        let _ = db.put(key(n), SECRET.repeat(100));
    }
    assert!(
        !seen
            .find(Level::Warn, "terrace::job", "the disk is full")
            .is_empty()
    );
    let refused = seen.find(Level::Warn, "terrace::job", " a full disk refused a ");
    let count = db.metrics().retries.count;
    assert!(
        !refused.is_empty() && refused.len() as u64 * 2 < count,
        "{count}: {refused:#?}"
    );
    for message in &refused {
        let what = if message.contains(" 1 time ") {
            " time so far"
        } else {
            " times so far"
        };
        assert!(number(message, what).is_power_of_two(), "{message}");
        assert!(message.contains("it retries within "), "{message}");
        assert!(message.contains("cannot "), "the reason: {message}");
    }
    quota.set_room(64 << 20);
    db.drain().unwrap();
    fill_a_memtable(&db);
    seen.one(
        Level::Info,
        "terrace::job",
        "the disk has space for logs again",
    );
}

fn fill_a_memtable(db: &Db) {
    for n in 0..200 {
        db.put(key(n), SECRET.repeat(100)).unwrap();
    }
}

/// Syncs of logs for a range delete, which let it free what it covers, are logged.
#[test]
fn a_sync_for_range_deletes_is_logged() {
    let folder = scratch().unwrap();
    let seen = Seen::of(folder.path());
    let db = Db::open(
        folder.path(),
        settings::small_of(Design::Leveled, Medium::Dram),
    )
    .unwrap();
    fill_a_memtable(&db);
    db.drain().unwrap();
    db.delete_range::<&str>(..).unwrap();
    db.wait_idle().unwrap();
    let synced = "so that their range deletes can free space";
    seen.one(Level::Debug, "terrace::job", synced);
}

/// A failure stops the store and is logged once, even if calls are refused afterwards.
#[test]
fn a_stop_is_logged_once() {
    let folder = scratch().unwrap();
    let seen = Seen::of(folder.path());
    let fs = FaultFs::new(Arc::new(OsFs));
    let place = Place {
        fs: Some(Arc::new(fs.clone())),
        ..Place::folder(folder.path().join("db"))
    };
    let db = place
        .open(&settings::small_of(Design::Leveled, Medium::Dax))
        .unwrap();
    db.put(key(1), SECRET).unwrap();
    fs.judge(
        |call| match call.starts_with("write") && call.contains(".sst") {
            true => Err(io::Error::other("a broken disk")),
            false => Ok(()),
        },
    );
    db.flush().unwrap_err();
    for n in 0..10 {
        assert_eq!(
            db.put(key(n), SECRET).unwrap_err().kind(),
            ErrorKind::Stopped
        );
    }
    let stop = seen.one(Level::Error, "terrace::failure", "the store stopped");
    assert!(stop.contains("a broken disk"), "{stop}");
    db.close().unwrap_err();
    seen.one(Level::Warn, "terrace::open", "close failed after ");
    assert!(seen.find(Level::Info, "terrace::open", "closed").is_empty());
}

/// Damage is logged when a read first finds it, and when verify has counted all of it, without
/// keys.
#[test]
fn damage_is_logged() {
    let folder = scratch().unwrap();
    let seen = Seen::of(folder.path());
    let options = settings::small_of(Design::Leveled, Medium::Dax);
    let db = Db::open(folder.path(), options.clone()).unwrap();
    for n in 0..40 {
        db.put(key(n), noise(n)).unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "sst") {
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let all: Vec<_> = (0..40).map(key).collect();
    let reads: [&dyn Fn(&Db) -> bool; 3] = [
        &|db| db.iter().unwrap().any(|pair| pair.is_err()),
        &|db| all.iter().any(|key| db.get(key).is_err()),
        &|db| db.multi_get(&all).is_err(),
    ];
    for (before, read) in reads.into_iter().enumerate() {
        let found = || {
            seen.find(Level::Warn, "terrace::failure", "a read found damage")
                .len()
        };
        let db = Db::open(folder.path(), options.clone()).unwrap();
        assert_eq!(found(), before);
        assert!(read(&db) && read(&db));
        assert_eq!(found(), before + 1);
        db.close().unwrap();
    }
    let db = Db::open(folder.path(), options).unwrap();
    let report = db.verify(&mut |_| {}).unwrap();
    let found = seen.one(Level::Warn, "terrace::failure", "verify found ");
    assert_eq!(number(&found, " problem") as usize, report.problems.len());
    assert!(
        seen.all()
            .iter()
            .all(|event| !event.message.contains(SECRET))
    );
}
