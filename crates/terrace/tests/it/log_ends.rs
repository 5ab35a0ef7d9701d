//! Logs that end before the end recorded in the manifest: emptied, truncated, without their last
//! page, or replaced with older copies. Opening reports it, and a repair reports the loss.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use terrace::inspect::{self, LogPiece, LogPlace};
use terrace::{Db, Design, Durability, ErrorKind, Options, RepairOutcome, RepairSource};
use terrace_media::{Machine, Medium, Survive};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

const HEADER_BYTES: usize = 64;
const KEYS: u32 = 60;

/// Returns options with space for many logs.
fn options(design: Design) -> Options {
    let mut options = settings::small_of(design, Medium::Dram);
    options.pool.size_bytes = 16 << 20;
    options.front.log_bytes_max = 8 << 20;
    options.front.sealed_count_max = 64;
    options.buffer.levels = 16;
    options.buffer.tables.flush_count = 64;
    options.buffer.tables.count_max = 128;
    options
}

/// The written data: all values that each key ever had, and its last one unless deleted.
#[derive(Default)]
struct Written {
    all: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    last: BTreeMap<Vec<u8>, Vec<u8>>,
    count: u32,
}

impl Written {
    fn write(&mut self, db: &Db, durability: Durability) {
        let n = self.count;
        self.count += 1;
        let key = (n % KEYS).to_be_bytes().to_vec();
        if n % 7 == 6 {
            db.delete_with(&key, durability).unwrap();
            self.last.remove(&key);
            return;
        }
        let value = [&n.to_be_bytes()[..], &[n as u8; 90]].concat();
        db.put_with(&key, &value, durability).unwrap();
        self.all
            .entry(key.clone())
            .or_default()
            .insert(value.clone());
        self.last.insert(key, value);
    }

    fn is_in(&self, db: &Db) -> bool {
        let pairs = db.iter().unwrap().map(|pair| pair.unwrap().into_pair());
        pairs.collect::<BTreeMap<_, _>>() == self.last
    }
}

fn log_files(folder: &Path) -> Vec<PathBuf> {
    let logs = inspect::logs(folder).unwrap();
    let files = logs.into_iter().map(|log| match log {
        LogPlace::File { path, .. } => path,
        other => panic!("{other:?}"),
    });
    files.collect()
}

fn copied(folder: &Path) -> tempfile::TempDir {
    let copy = scratch().unwrap();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// Returns the ends of the records of a log.
fn ends(path: &Path) -> Vec<usize> {
    let mut ends = Vec::new();
    let visit = &mut |piece: LogPiece<'_>| {
        if let LogPiece::Record { offset, bytes, .. } = piece {
            ends.push((offset + bytes) as usize);
        }
        Ok::<_, terrace::Error>(())
    };
    inspect::file_log(path, visit).unwrap();
    ends
}

/// Returns the ways in which a log can end too early, by name.
fn damages(path: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let bytes = std::fs::read(path).unwrap();
    let ends = ends(path);
    let [.., before, last] = ends[..] else {
        panic!("{} has {} records", path.display(), ends.len());
    };
    let filled = |from: usize, to: usize| {
        let mut bytes = bytes.clone();
        bytes[from..to].fill(0);
        bytes
    };
    let page = (last - 1) / 4096 * 4096;
    vec![
        ("emptied", Vec::new()),
        ("without records", bytes[..HEADER_BYTES].to_vec()),
        ("cut off", bytes[..before].to_vec()),
        (
            "without its last page",
            filled(page, bytes.len().min(page + 4096)),
        ),
        ("an older copy", filled(ends[ends.len() / 2], bytes.len())),
    ]
}

/// Opens and repairs a copy of `folder` in which the log `path` is damaged in each way.
fn check(folder: &Path, path: &Path, options: &Options, written: &Written) {
    let name = path.file_name().unwrap();
    for (how, bytes) in damages(path) {
        let copy = copied(folder);
        std::fs::write(copy.path().join(name), bytes).unwrap();
        let name = name.to_string_lossy();
        for read_only in [true, false] {
            let mut options = options.clone();
            options.read_only = read_only;
            let e = match Db::open(copy.path(), options) {
                Ok(db) => panic!(
                    "{how}: {name} is taken, whole: {}\n{}",
                    written.is_in(&db),
                    db.metrics()
                ),
                Err(e) => e,
            };
            assert_eq!(e.kind(), ErrorKind::Corruption, "{how}: {e}");
            for part in [&*name, "terrace repair", "offset"] {
                assert!(e.to_string().contains(part), "{how}: {part} is not in: {e}");
            }
        }
        let beside = scratch().unwrap();
        let report = Db::builder(beside.path().join("repaired"))
            .options(options.clone())
            .repair_of(&RepairSource::new(copy.path()))
            .unwrap();
        assert_eq!(report.outcome, RepairOutcome::Partly, "{how}: {report:#?}");
        let told = report.losses.iter().any(|loss| {
            loss.certain && loss.path == copy.path().join(&*name) && loss.keys.has(1, b"any")
        });
        assert!(told, "{how}: {report:#?}");
        let db = Db::open(beside.path().join("repaired"), options.clone()).unwrap();
        for pair in db.iter().unwrap() {
            let (key, value) = pair.unwrap().into_pair();
            assert!(written.all[&key].contains(&value), "{how}: {key:?} is new");
        }
    }
}

/// If any log of a database without a pool ends too early, and its end was recorded by a close or
/// by a write after a `Sync` one, it is refused by name, and a repair reports it.
#[test]
fn logs_that_end_too_early_are_refused() {
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let options = options(design);
        let mut written = Written::default();
        let db = Db::open(folder.path(), options.clone()).unwrap();
        let until = |count: usize, written: &mut Written| {
            for _ in 0..3000 {
                if log_files(folder.path()).len() >= count {
                    return;
                }
                written.write(&db, Durability::Buffered);
                // Without a buffer, or if that drains early, flushed data needs no log.
                if design.keeps_data_in_pool() && design != Design::NoveLsm {
                    db.step(0).unwrap();
                }
            }
            panic!("{design} has no {count} logs");
        };
        until(6, &mut written);
        written.write(&db, Durability::Sync);
        let synced = log_files(folder.path());
        // The next edit for a log records the ends of synced ones.
        until(8, &mut written);
        let killed = copied(folder.path());
        drop(db);
        // All but the active one and the spare.
        let (middle, last) = (&synced[2], &synced[synced.len() - 3]);
        for path in [middle, last] {
            let path = killed.path().join(path.file_name().unwrap());
            check(killed.path(), &path, &options, &written);
        }
        let db = Db::open(killed.path(), options.clone()).unwrap();
        assert!(written.is_in(&db), "{design}");
        assert!(!db.recovery().clean && db.recovery().logs_replayed > 5);
        // The next close also records the ends of logs that a crash left and that were replayed.
        for _ in 0..20 {
            written.write(&db, Durability::Buffered);
        }
        db.close().unwrap();
        let logs = log_files(killed.path());
        assert_eq!(logs.is_empty(), design.keeps_table_files(), "{design}");
        if let [_, middle, .., last] = &logs[..] {
            written.write(
                &Db::open(killed.path(), options.clone()).unwrap(),
                Durability::Buffered,
            );
            for path in [middle, last] {
                check(killed.path(), path, &options, &written);
            }
        }
        assert!(written.is_in(&Db::open(killed.path(), options).unwrap()));
    }
}

/// The same holds for the remaining log of a closed database with a pool.
#[test]
fn a_log_in_the_pool_that_was_emptied_is_refused() {
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Mapped] {
            let folder = scratch().unwrap();
            let options = settings::small_of(design, medium);
            let db = Db::open(folder.path(), options.clone()).unwrap();
            for n in 0..5u8 {
                db.put([n], [n; 20]).unwrap();
            }
            drop(db);
            let pool = folder.path().join("pool");
            let good = std::fs::read(&pool).unwrap();
            let mut bytes = good.clone();
            for log in inspect::logs(folder.path()).unwrap() {
                let LogPlace::Pool {
                    offset, bytes: len, ..
                } = log
                else {
                    panic!("{log:?}");
                };
                bytes[offset as usize + HEADER_BYTES..(offset + len) as usize].fill(0);
            }
            std::fs::write(&pool, bytes).unwrap();
            let e = Db::open(folder.path(), options.clone()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
            assert!(e.to_string().contains("terrace repair"), "{e}");
            std::fs::write(&pool, good).unwrap();
            let db = Db::open(folder.path(), options).unwrap();
            assert_eq!(db.iter().unwrap().count(), 5, "{design} on {medium}");
        }
    }
}

/// Power is lost at any moment of writes to several logs, of a close, and of the open and close
/// after it: unsynced data may be lost, and no log is reported as damaged because of it.
#[test]
fn a_crash_is_not_taken_for_a_log_that_was_cut_off() {
    for design in Design::ALL {
        for synced in [false, true] {
            let options = options(design);
            let machine = Machine::new(u64::from(synced), Medium::Dax);
            let images = Arc::new(Mutex::new(Vec::new()));
            let taken = Arc::clone(&images);
            machine.on_persist(Some(Box::new(move |machine: &Machine, _| {
                let mut taken = taken.lock().unwrap();
                let turn = taken.len() as u64;
                let survive = [Survive::None, Survive::Random(turn)][turn as usize % 2];
                taken.push(machine.crash_image(survive));
            })));
            let mut written = Written::default();
            for _ in 0..2 {
                let db = Place::machine(&machine).open(&options).unwrap();
                for n in 0..150 {
                    let durability = match synced && n % 10 == 9 {
                        true => Durability::Sync,
                        false => Durability::Buffered,
                    };
                    written.write(&db, durability);
                    db.step(n as usize).unwrap();
                }
                db.close().unwrap();
            }
            machine.on_persist(None);
            let images = std::mem::take(&mut *images.lock().unwrap());
            assert!(images.len() > 20, "{} images", images.len());
            let mut ended = 0;
            for (at, image) in images.into_iter().enumerate() {
                let machine = Machine::boot(image, at as u64);
                // The database may not have been created yet.
                let place = Place::machine(&machine);
                let opened = place.open(&options);
                let db = opened.unwrap_or_else(|e| panic!("{design}, point {at}: {e}"));
                for pair in db.iter().unwrap() {
                    let (key, value) = pair.unwrap().into_pair();
                    assert!(written.all[&key].contains(&value), "point {at}: {key:?}");
                }
                ended += db.recovery().logs_replayed;
            }
            assert!(ended > 20, "{ended} logs were replayed");
        }
    }
}

/// An older manifest, whose files all exist, does not hide the logs that came after it: opening
/// fails and removes nothing, and with the right manifest everything is there.
#[test]
fn an_older_manifest_does_not_hide_newer_logs() {
    let folder = scratch().unwrap();
    let open = || Db::open(folder.path(), settings::small(Medium::Dram));
    let db = open().unwrap();
    db.put("old", "value").unwrap();
    db.close().unwrap();
    let manifest = folder.path().join("MANIFEST");
    let older = std::fs::read(&manifest).unwrap();
    let db = open().unwrap();
    for n in 0..100u32 {
        db.put(n.to_be_bytes(), [7; 500]).unwrap();
    }
    db.close().unwrap();
    drop(db);
    let newer = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, older).unwrap();
    for _ in 0..2 {
        let refused = open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corruption, "{refused}");
        assert!(refused.to_string().contains("older"), "{refused}");
    }
    std::fs::write(&manifest, newer).unwrap();
    let db = open().unwrap();
    assert_eq!(db.iter().unwrap().count(), 101);
}

/// Whole records after a broken one in a log without a seal are not replayed, since a crash may
/// have left them, and the report counts them.
#[test]
fn records_after_a_broken_one_are_counted() {
    for design in [Design::Leveled, Design::FlatLsm] {
        let folder = scratch().unwrap();
        let options = options(design);
        let db = Db::open(folder.path(), options.clone()).unwrap();
        for n in 0..40u8 {
            db.put([n], [n; 90]).unwrap();
        }
        let killed = copied(folder.path());
        let [log] = &log_files(killed.path())[..] else {
            panic!("one log");
        };
        let ends = ends(log);
        let mut bytes = std::fs::read(log).unwrap();
        bytes[ends[ends.len() - 11] + 70] ^= 1;
        std::fs::write(log, bytes).unwrap();
        let after = Db::open(killed.path(), options).unwrap();
        assert_eq!(after.recovery().records_stranded, 9, "{design}");
        assert_eq!(after.iter().unwrap().count(), 30, "{design}");
        let report = after.recovery().to_string();
        assert!(report.contains("9 records after a broken one"), "{report}");
    }
}
