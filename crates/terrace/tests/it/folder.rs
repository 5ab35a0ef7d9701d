//! Databases with only a directory and no pool: a buffer in memory over logs, a manifest and tables
//! in files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use terrace::{Db, Design, Durability, ErrorKind, Options, StallReason, Workers, WriteBatch};
use terrace_media::{FaultFs, Machine, Medium, OsFs, PersistPoint, Survive};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

fn options(design: Design) -> Options {
    settings::small_of(design, Medium::Dram)
}

fn threads(design: Design) -> Options {
    let mut options = options(design);
    options.background.workers = Workers::Threads(2);
    options
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Returns the number and bytes of the log files of a database.
fn logs(folder: &Path) -> (usize, u64) {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let logs = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".log"));
    // A log may be removed or renamed meanwhile.
    let sizes: Vec<u64> = logs
        .filter_map(|log| Some(log.metadata().ok()?.len()))
        .collect();
    (sizes.len(), sizes.iter().sum())
}

/// Copies what a process killed now would leave, if nothing runs in it.
fn copied(folder: &Path) -> tempfile::TempDir {
    let copy = scratch().unwrap();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// A new database has levels of files without a pool, and all data in the pool with one. Opened
/// without a named design it keeps its own, and another one is refused.
#[test]
fn a_design_need_not_be_named() {
    for (medium, expected) in [
        (Medium::Dram, Design::MioDbSsd),
        (Medium::Mapped, Design::MioDb),
    ] {
        let folder = scratch().unwrap();
        let mut unnamed = settings::small(medium);
        unnamed.design = None;
        let db = Db::open(folder.path(), unnamed.clone()).unwrap();
        assert_eq!(db.options().design, Some(expected));
        db.put("a", "b").unwrap();
        drop(db);
        let e = Db::open(folder.path(), settings::small_of(Design::Leveled, medium)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        for part in [expected.name(), "leveled"] {
            assert!(e.to_string().contains(part), "{e}");
        }
        drop(Db::open(folder.path(), settings::small_of(expected, medium)).unwrap());
    }
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options(design)).unwrap();
        db.put("a", "b").unwrap();
        drop(db);
        let mut unnamed = options(design);
        unnamed.design = None;
        let db = Db::open(folder.path(), unnamed).unwrap();
        assert_eq!(db.options().design, Some(design));
        assert_eq!(db.get("a").unwrap(), Some(b"b".to_vec()));
    }
}

/// After a close no log is left and all data in memory has gone to files. The next open replays
/// nothing and reports a clean close. The close reports its progress.
#[test]
fn a_close_leaves_nothing_to_replay() {
    for design in settings::designs_with_files() {
        for mut options in [options(design), threads(design)] {
            options.front.log_bytes_max = 1 << 20;
            let folder = scratch().unwrap();
            let told = Arc::new(Mutex::new(Vec::new()));
            let hook = Arc::clone(&told);
            let db = Db::builder(folder.path())
                .options(options.clone())
                .progress(move |progress| {
                    assert!(progress.done <= progress.total);
                    hook.lock().unwrap().push(progress.what);
                })
                .open()
                .unwrap();
            for n in 0..1500 {
                let durability = match n % 3 {
                    0 => Durability::Volatile,
                    _ => Durability::Buffered,
                };
                db.put_with(key(n), [n as u8; 60], durability).unwrap();
            }
            assert!(logs(folder.path()).0 > 2);
            db.close().unwrap();
            assert_eq!(logs(folder.path()), (0, 0), "{design}");
            let buffered = design.keeps_data_in_pool() && design.keeps_table_files();
            let said = told.lock().unwrap().contains(&"writing out the buffer");
            assert_eq!(said, buffered);
            let db = Db::open(folder.path(), options).unwrap();
            let report = db.recovery();
            assert!(report.clean && report.logs_replayed == 0, "{report}");
            for n in 0..1500 {
                assert_eq!(db.get(key(n)).unwrap(), Some(vec![n as u8; 60]), "key {n}");
            }
            if db.options().background.workers != Workers::Manual {
                continue;
            }
            // A copy of the open database was not closed.
            db.put("a", "b").unwrap();
            let copy = copied(folder.path());
            let db = Db::open(copy.path(), settings::small_of(design, Medium::Dram)).unwrap();
            assert!(!db.recovery().clean);
            assert_eq!(db.get("a").unwrap(), Some(b"b".to_vec()));
        }
    }
}

/// Logs stay within their cap, however much is written and however little each contains, and their
/// files are reused. Everything is there after a kill at any time.
#[test]
fn logs_keep_to_their_cap() {
    let cap = 200 << 10;
    // Allows for active and spare logs, and those waiting for reuse.
    let bound = cap + 8 * (10 << 10);
    for design in settings::designs_with_files() {
        for mut options in [options(design), threads(design)] {
            options.front.log_bytes_max = cap;
            // The pool alone could hold all of it.
            options.pool.size_bytes = 16 << 20;
            let folder = scratch().unwrap();
            let by_hand = options.background.workers == Workers::Manual;
            let db = Db::open(folder.path(), options.clone()).unwrap();
            let idle = db.create_keyspace("idle").unwrap();
            idle.put("a", "b").unwrap();
            for n in 0..4000 {
                db.put(key(n), [n as u8; 100]).unwrap();
                if n % 100 == 0 {
                    let (_, bytes) = logs(folder.path());
                    assert!(bytes <= bound, "{design}: {bytes} bytes of logs");
                }
                if n % 1000 == 999 && by_hand {
                    let copy = copied(folder.path());
                    let db = Db::open(copy.path(), options.clone()).unwrap();
                    assert_eq!(db.iter().unwrap().count() as u32, n + 1);
                }
            }
            // Flushed manually, a memtable of one entry has its own log.
            for n in 0..400 {
                db.put(key(n), [7]).unwrap();
                db.flush().unwrap();
            }
            for _ in 0..100 {
                if by_hand {
                    db.wait_idle().unwrap();
                }
                if logs(folder.path()).1 <= bound {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let (count, bytes) = logs(folder.path());
            assert!(bytes <= bound, "{design}: {bytes} bytes in {count} logs");
            assert_eq!(idle.get("a").unwrap(), Some(b"b".to_vec()));
            let problems = db.verify(&mut |_| {}).unwrap().problems;
            assert_eq!(problems, Vec::<String>::new());
        }
    }
}

/// The log files that a drain releases are kept for later logs, as many as fit in a quarter of the
/// cap, and the directory does not grow while they are reused.
#[test]
fn the_log_files_of_a_drain_are_used_again() {
    let cap = 400 << 10;
    let folder = scratch().unwrap();
    let mut options = options(Design::MioDbSsd);
    options.front.log_bytes_max = cap;
    options.pool.size_bytes = 16 << 20;
    let db = Db::open(folder.path(), options).unwrap();
    let write = |from: u32, count: u32| {
        for n in from..from + count {
            db.put(key(n), [n as u8; 100]).unwrap();
        }
    };
    write(0, 3000);
    db.drain().unwrap();
    let (kept, bytes) = logs(folder.path());
    assert!(kept > 6 && bytes <= cap, "{kept} files, {bytes} bytes");
    // Some more logs, but none that require a drain.
    write(3000, 100);
    let (used, _) = logs(folder.path());
    assert!(used <= kept, "{used} files after {kept}");
    assert_eq!(db.iter().unwrap().count(), 3100);
    drop(db);
    assert!(logs(folder.path()).0 < kept, "a close keeps none for later");
}

/// Writers that are faster than the drains wait for logs, under that stall reason.
#[test]
fn waiting_for_logs_has_a_name() {
    let folder = scratch().unwrap();
    let mut options = options(Design::MioDbSsd);
    options.front.log_bytes_max = 1;
    options.pool.size_bytes = 16 << 20;
    let db = Db::open(folder.path(), options).unwrap();
    for n in 0..3000 {
        db.put(key(n), [n as u8; 100]).unwrap();
    }
    let stalls = db.metrics().stalls;
    let stall = stalls.iter().find(|s| s.reason == StallReason::LogCap);
    assert!(stall.is_some_and(|stall| stall.count > 0), "{stalls:?}");
    assert_eq!(db.iter().unwrap().count(), 3000);
}

/// If only the active memtable has logs, and those are over the cap, no drain could free any: a
/// memtable whose log exceeds it is admitted at once, and writers neither wait forever nor are
/// refused.
#[test]
fn a_log_over_the_cap_is_let_in_where_no_drain_could_free_one() {
    for workers in [Workers::Manual, Workers::Threads(1)] {
        for design in settings::designs_with_files() {
            let folder = scratch().unwrap();
            let mut options = options(design);
            options.front.log_bytes_max = 1;
            options.front.sealed_count_max = 1;
            options.pool.size_bytes = 16 << 20;
            options.background.workers = workers;
            let db = Db::open(folder.path(), options).unwrap();
            // The cap is that of some small memtables: each of these logs is larger.
            for n in 0..6u32 {
                let mut batch = WriteBatch::new();
                for k in 0..300u32 {
                    batch.put((n * 1000 + k).to_be_bytes(), [n as u8; 1000]);
                }
                db.write(batch, Durability::Buffered).unwrap();
                // Sealed memtables are flushed and drained to files: only the active one has a log.
                if n % 2 == 0 {
                    db.wait_idle().unwrap();
                }
            }
            assert_eq!(db.iter().unwrap().count(), 1800, "{design}");
        }
    }
}

/// Versions hidden by an unlogged one are kept: a drain must not drop them, since their log is
/// removed after the drain.
#[test]
fn unlogged_versions_hide_nothing() {
    let machine = Machine::new(7, Medium::Mapped);
    let place = Place::machine(&machine);
    let mut options = options(Design::MioDbSsd);
    // The second table comes too late to be merged with the first, which moves down and is drained.
    options.buffer.levels = 2;
    options.buffer.table_bytes_max = Some(8 << 10);
    options.front.log_bytes_max = 16 << 20;
    let db = place.open(&options).unwrap();
    let (old, new) = (vec![1; 300], vec![2; 300]);
    for (value, durability) in [(&old, Durability::Sync), (&new, Durability::Volatile)] {
        for n in 0..20 {
            db.put_with(key(n), value, durability).unwrap();
        }
        db.flush().unwrap();
    }
    assert!(db.metrics().files.is_empty(), "both tables are in memory");
    // BOUND: there is one table to drain, in few steps.
    while db.step(0).unwrap() {
        for image in [machine.process_image(), machine.crash_image(Survive::None)] {
            let after = Place::machine(&Machine::boot(image, 1));
            let found = after.open(&options).unwrap();
            for n in 0..20 {
                let value = found.get(key(n)).unwrap();
                assert!(value.as_ref() == Some(&old) || value.as_ref() == Some(&new));
            }
        }
    }
    let levels = db.metrics().levels;
    assert_eq!(levels.len(), 1, "{levels:?}");
    assert!(!db.metrics().files.is_empty(), "the first was drained");
    assert_eq!(db.get(key(3)).unwrap(), Some(new));
}

/// A disk without space for a log refuses writes, and everything else continues. Nothing busy-loops
/// meanwhile, and with space everything resumes automatically.
#[test]
fn a_disk_without_room_for_a_log_is_asked_now_and_then() {
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let fs = FaultFs::new(Arc::new(OsFs));
        let mut place = Place::folder(folder.path());
        place.fs = Some(Arc::new(fs.clone()));
        let db = place.open(&threads(design)).unwrap();
        fs.fill_up(true);
        let full = (0..100_000).find_map(|n| {
            let e = db.put(key(n), [n as u8; 100]).err()?;
            Some((n, e))
        });
        let (count, e) = full.expect("the disk is full");
        assert_eq!(e.kind(), ErrorKind::Full, "{e}");
        assert!(e.to_string().contains(".log"), "{e}");
        fs.reset();
        std::thread::sleep(Duration::from_millis(500));
        let calls = fs.operations();
        assert!(calls < 200, "{design}: {calls} calls in half a second");
        for n in 0..count {
            assert_eq!(db.get(key(n)).unwrap(), Some(vec![n as u8; 100]));
        }
        fs.fill_up(false);
        let mut tries = 0;
        while db.put(key(count), "x").is_err() {
            assert!(tries < 100, "room came back and writes are refused");
            tries += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(db.iter().unwrap().count() as u32, count + 1);
    }
}

/// Several threads replay logs, and the amount of work is known in advance. If the pool cannot hold
/// the content of the logs, it is drained to files meanwhile.
#[test]
fn many_logs_come_back_at_once() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let mut options = options(design);
        options.front.log_bytes_max = 64 << 20;
        options.front.sealed_count_max = 64;
        options.pool.size_bytes = 16 << 20;
        options.buffer.levels = 32;
        let tables = &mut options.buffer.tables;
        (tables.flush_count, tables.count_max) = (64, 128);
        tables.table_bytes = Some(8 << 10);
        // Nothing is flushed, so all of it is in logs.
        let db = Db::open(folder.path(), options.clone()).unwrap();
        let mut expected = 0;
        // With a buffer, this is more than the small pool below holds, unless the buffer limits the
        // number of its tables or drains them early.
        let buffered =
            design.keeps_data_in_pool() && design != Design::FlatLsm && !design.has_pm_memtable();
        let many = if buffered { 200 } else { 60 };
        while logs(folder.path()).0 < many {
            for _ in 0..50 {
                db.put(key(expected), [expected as u8; 100]).unwrap();
                expected += 1;
            }
        }
        let copy = copied(folder.path());
        for (workers, pool) in [
            (Workers::Threads(2), 16 << 20),
            (Workers::Manual, 16 << 20),
            (Workers::Threads(1), 20 << 16),
            (Workers::Manual, 20 << 16),
        ] {
            let copy = copied(copy.path());
            let told = Arc::new(Mutex::new(Vec::new()));
            let hook = Arc::clone(&told);
            let mut options = options.clone();
            options.background.workers = workers;
            options.front.sealed_count_max = 2;
            options.pool.size_bytes = pool;
            let db = Db::builder(copy.path())
                .options(options)
                .progress(move |progress| {
                    if progress.what == "replaying logs" {
                        hook.lock().unwrap().push((progress.done, progress.total));
                    }
                })
                .open()
                .unwrap();
            let report = *db.recovery();
            assert!(report.logs_replayed > 20, "{report}");
            if buffered && pool < 16 << 20 && workers == Workers::Manual {
                assert!(!db.metrics().files.is_empty(), "the pool held it all");
            }
            let told = told.lock().unwrap().clone();
            let (_, total) = *told.last().unwrap();
            assert!(told.iter().all(|&(done, of)| done <= of && of == total));
            for n in 0..expected {
                assert_eq!(db.get(key(n)).unwrap(), Some(vec![n as u8; 100]), "{n}");
            }
            db.put("a", "b").unwrap();
            db.close().unwrap();
            assert_eq!(logs(copy.path()), (0, 0));
        }
    }
}

/// Opens without writes leave no files, whether they end in a close, are read-only, or are killed:
/// an empty log is removed.
#[test]
fn openings_without_writes_leave_no_files() {
    for design in Design::ALL {
        let options = options(design);
        let mut folder = scratch().unwrap();
        let db = Db::open(folder.path(), options.clone()).unwrap();
        for n in 0..100 {
            db.put(key(n), [n as u8; 60]).unwrap();
        }
        db.close().unwrap();
        drop(db);
        let files = |folder: &Path| std::fs::read_dir(folder).unwrap().count();
        let first = files(folder.path());
        for turn in 0..100 {
            let mut options = options.clone();
            options.read_only = turn % 3 == 1;
            let db = Db::open(folder.path(), options).unwrap();
            assert_eq!(db.iter().unwrap().count(), 100);
            if turn % 3 == 2 {
                let killed = copied(folder.path());
                drop(db);
                folder = killed;
                continue;
            }
            db.close().unwrap();
            drop(db);
            assert_eq!(files(folder.path()), first, "{design}, turn {turn}");
        }
    }
}

/// Missing files that the database needs are named.
#[test]
fn missing_files_are_named() {
    let folder = scratch().unwrap();
    let options = options(Design::MioDbSsd);
    let db = Db::open(folder.path(), options.clone()).unwrap();
    for n in 0..200 {
        db.put(key(n), [n as u8; 100]).unwrap();
    }
    let copy = copied(folder.path());
    let names = std::fs::read_dir(copy.path()).unwrap();
    let mut names: Vec<PathBuf> = names.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let log = names
        .iter()
        .find(|path| path.extension().is_some_and(|e| e == "log"));
    for path in [
        copy.path().join("MANIFEST"),
        copy.path().join("OPTIONS"),
        log.unwrap().clone(),
    ] {
        let good = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let e = Db::open(copy.path(), options.clone()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(e.to_string().contains(&name), "{name} is not in: {e}");
        std::fs::write(&path, good).unwrap();
    }
    let db = Db::open(copy.path(), options).unwrap();
    assert_eq!(db.iter().unwrap().count(), 200);
}

/// A sync makes all logged writes durable that were acknowledged before it: those of memtables that
/// have become tables in memory, whose logs are unsynced, and those that an earlier process left in
/// the page cache.
#[test]
fn a_sync_reaches_the_logs_of_tables_in_memory() {
    for killed_between in [false, true] {
        let machine = Machine::new(7, Medium::Dax);
        let db = Place::machine(&machine)
            .open(&options(Design::MioDbSsd))
            .unwrap();
        for n in 0..3 {
            db.put(key(n), [n as u8; 100]).unwrap();
            db.flush().unwrap();
        }
        assert_eq!(
            db.metrics()
                .levels
                .iter()
                .map(|l| l.table_count)
                .sum::<u64>(),
            3
        );
        let left = |machine: &Machine| {
            let machine = Machine::boot(machine.crash_image(Survive::None), 8);
            let db = Place::machine(&machine)
                .open(&options(Design::MioDbSsd))
                .unwrap();
            db.iter().unwrap().count()
        };
        assert_eq!(left(&machine), 0, "nobody has asked for a sync");
        let second = Machine::boot(machine.process_image(), 9);
        let (machine, db) = match killed_between {
            false => (machine, db),
            true => {
                drop(db);
                let db = Place::machine(&second)
                    .open(&options(Design::MioDbSsd))
                    .unwrap();
                (second, db)
            }
        };
        assert_eq!(db.iter().unwrap().count(), 3);
        assert_eq!(left(&machine), 0, "still nobody has asked");
        db.put_with(key(9), "last", Durability::Sync).unwrap();
        assert_eq!(left(&machine), 4);
    }
}

/// A drain loses nothing durable if what supersedes it is not durable: at each point a power loss
/// leaves the old value or the new one, and the old one only if the new one was not synced.
#[test]
fn a_drain_loses_nothing_that_was_durable() {
    let mut options = options(Design::MioDbSsd);
    // A drain takes one of these tables.
    options.front.log_bytes_max = 32 << 10;
    let (old, new) = ([1; 5000], [2; 5000]);
    for synced in [false, true] {
        let machine = Machine::new(7, Medium::Dax);
        let db = Place::machine(&machine).open(&options).unwrap();
        db.put_with(key(1), old, Durability::Sync).unwrap();
        db.flush().unwrap();
        let durability = match synced {
            true => Durability::Sync,
            false => Durability::Buffered,
        };
        db.put_with(key(1), new, durability).unwrap();
        db.flush().unwrap();
        // A crash at each point of the drains finds one of the two values.
        let found = Arc::new(Mutex::new(Vec::new()));
        let (seen, again) = (Arc::clone(&found), options.clone());
        let look = move |machine: &Machine, _: PersistPoint| {
            let machine = Machine::boot(machine.crash_image(Survive::None), 8);
            let db = Place::machine(&machine).open(&again).unwrap();
            seen.lock()
                .unwrap()
                .push(db.get(key(1)).unwrap().unwrap().to_vec());
        };
        machine.on_persist(Some(Box::new(look)));
        db.drain().unwrap();
        machine.on_persist(None);
        let found = found.lock().unwrap();
        let old = found.iter().filter(|value| **value == old).count();
        assert_eq!(old > 0, !synced, "{found:?}");
        assert!(!found.is_empty());
        drop(db);
    }
}

/// Without a pool there is no medium to force: memory would be treated as surviving the process,
/// and what a close leaves there would be lost.
#[test]
fn a_forced_medium_needs_a_pool() {
    let folder = scratch().unwrap();
    let mut options = settings::small_of(Design::MioDbSsd, Medium::Dax);
    options.pool.path = None;
    let e = Db::open(folder.path(), options).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    assert!(e.to_string().contains("pool.path"), "{e}");
}
