//! Tests of the log in crashes: at every persist point, with overlapping writers and with faults.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use terrace_media::{
    Backing, Extent, FaultFs, FileSystem, Machine, Medium, Pool, PoolConfig, PoolFaults, Prefault,
    Span, Survive,
};

use super::{Batch, DB, FILE, Failure, batches, read_file, read_pool};
use crate::parts::log::{FileLog, Log, PoolLog};

pub(super) fn config(machine: &Machine) -> PoolConfig {
    PoolConfig {
        prefault: Prefault::None,
        grow_bytes: 1 << 20,
        ..PoolConfig::new(Backing::Simulated(machine.clone()), 8 << 20)
    }
}

/// Returns the ways to crash at a point.
pub(super) fn survivals(point: u64) -> Vec<Survive> {
    let mut all = vec![Survive::None, Survive::All];
    all.extend((0..6).map(|i| Survive::Random(point * 6 + i)));
    all
}

pub(super) fn reopen(machine: &Machine, span: Span) -> Arc<Extent> {
    Pool::open(config(machine)).unwrap().adopt(span).unwrap()
}

/// After a crash at any fence or sync, with any choice of surviving bytes, replay returns a prefix
/// with every durable record and reports no damage.
#[test]
fn pool_logs_survive_crashes() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let machine = Machine::new(51, medium);
        let pool = Pool::create(config(&machine)).unwrap();
        let extent = pool.alloc(64 << 10).unwrap();
        let span = extent.span();
        let log = PoolLog::create(extent, (DB, 3), medium).unwrap();
        let all = batches(&mut fastrand::Rng::with_seed(52), 60, 300);
        let durable = Arc::new(AtomicU64::new(0));
        let crashes = Arc::new(AtomicU64::new(0));
        let (expected, known, count) = (all.clone(), Arc::clone(&durable), Arc::clone(&crashes));
        machine.on_persist(Some(Box::new(move |machine, point| {
            for survive in survivals(point.index) {
                let after = Machine::boot(machine.crash_image(survive), point.index);
                let (found, end) = read_pool(&reopen(&after, span), 3);
                let end = end.unwrap_or_else(|e| panic!("{medium} {point:?} {survive:?}: {e:?}"));
                assert_eq!(found, expected[..found.len()], "{point:?} {survive:?}");
                assert!(
                    end.records >= known.load(Ordering::Relaxed),
                    "{point:?} {survive:?}"
                );
                count.fetch_add(1, Ordering::Relaxed);
            }
            let after = Machine::boot(machine.process_image(), point.index);
            let extent = reopen(&after, span);
            let (found, end) = read_pool(&extent, 3);
            let end = end.unwrap();
            assert_eq!(found, expected[..found.len()]);
            if medium == Medium::Mapped {
                extent.region().sync(span.off, end.bytes as usize).unwrap();
            }
            let lost = Machine::boot(after.crash_image(Survive::None), point.index);
            let (again, _) = read_pool(&reopen(&lost, span), 3);
            assert_eq!(again, found, "records found once stay");
        })));
        for (i, batch) in all.iter().enumerate() {
            batch.append(&log);
            if medium == Medium::Mapped && i % 7 == 0 {
                log.sync().unwrap();
            }
            if medium == Medium::Dax || i % 7 == 0 {
                durable.store(i as u64 + 1, Ordering::Relaxed);
            }
        }
        machine.on_persist(None);
        let after = Machine::boot(machine.process_image(), 1);
        let (found, _) = read_pool(&reopen(&after, span), 3);
        assert_eq!(found, all, "a process crash loses nothing");
        let crashes = crashes.load(Ordering::Relaxed);
        println!("{medium}: {crashes} crashes");
        assert!(crashes >= 60 * 8);
    }
}

/// After a crash at any sync, a log in a file yields a prefix with every synced record.
#[test]
fn file_logs_survive_crashes() {
    let machine = Machine::new(53, Medium::Dax);
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    let all = batches(&mut fastrand::Rng::with_seed(54), 80, 3000);
    let durable = Arc::new(AtomicU64::new(0));
    let (expected, known) = (all.clone(), Arc::clone(&durable));
    let named = Arc::new(AtomicBool::new(false));
    let created = Arc::clone(&named);
    machine.on_persist(Some(Box::new(move |machine, point| {
        for survive in survivals(point.index) {
            let after = Machine::boot(machine.crash_image(survive), point.index);
            if !after.fs().exists(Path::new(FILE)).unwrap() {
                assert!(!created.load(Ordering::Relaxed), "{point:?} {survive:?}");
                continue;
            }
            let (found, end) = read_file(&after.fs(), 3);
            let end = end.unwrap_or_else(|e| panic!("{point:?} {survive:?}: {e:?}"));
            assert_eq!(found, expected[..found.len()], "{point:?} {survive:?}");
            assert!(
                end.records >= known.load(Ordering::Relaxed),
                "{point:?} {survive:?}"
            );
        }
    })));
    let log = FileLog::create(&fs, Path::new(FILE), (DB, 3), 1 << 20, None).unwrap();
    named.store(true, Ordering::Relaxed);
    for (i, batch) in all.iter().enumerate() {
        batch.append(&log);
        if i % 5 == 0 {
            log.sync().unwrap();
            durable.store(i as u64 + 1, Ordering::Relaxed);
        }
    }
    machine.on_persist(None);
    let after = Machine::boot(machine.process_image(), 1);
    assert_eq!(
        read_file(&after.fs(), 3).0,
        all,
        "a process crash loses nothing"
    );
    let lost = Machine::boot(after.crash_image(Survive::None), 1);
    // Replay syncs no file: unsynced records may still be lost with the power.
    let (found, _) = read_file(&lost.fs(), 3);
    assert_eq!(found, all[..found.len()]);
    assert!((durable.load(Ordering::Relaxed)..all.len() as u64).contains(&(found.len() as u64)));
}

/// The file of a log is recycled for a second log, and that one's for a third. After a crash at any
/// sync or rename the newest log has its synced records, and none has a record of an earlier log,
/// though those are valid and at the offsets of the new ones.
#[test]
fn used_again_a_file_shows_nothing_old() {
    let machine = Machine::new(57, Medium::Dax);
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    let first = FileLog::create(&fs, Path::new(FILE), (DB, 3), 256 << 10, None).unwrap();
    let old = batches(&mut fastrand::Rng::with_seed(58), 60, 3000);
    old.iter().for_each(|batch| batch.append(&first));
    first.sync().unwrap();
    drop(first);
    let aside = Path::new("/db/wal-aside");
    for id in 4..6 {
        fs.rename(Path::new(FILE), aside).unwrap();
        // The sizes are the same, so that every record is at the offset of an old one.
        let all = batches(&mut fastrand::Rng::with_seed(58), 40, 3000);
        let (expected, durable) = (all.clone(), Arc::new(AtomicU64::new(u64::MAX)));
        let known = Arc::clone(&durable);
        let crashes = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&crashes);
        machine.on_persist(Some(Box::new(move |machine, point| {
            let known = known.load(Ordering::Relaxed);
            for survive in survivals(point.index) {
                let after = Machine::boot(machine.crash_image(survive), point.index);
                if known == u64::MAX {
                    // Nothing names the log yet.
                    continue;
                }
                let (found, end) = read_file(&after.fs(), id);
                let end = end.unwrap_or_else(|e| panic!("{point:?} {survive:?}: {e:?}"));
                assert_eq!(found, expected[..found.len()], "{point:?} {survive:?}");
                assert!(end.records >= known, "{point:?} {survive:?}");
                count.fetch_add(1, Ordering::Relaxed);
            }
        })));
        let log = FileLog::create(&fs, Path::new(FILE), (DB, id), 256 << 10, Some(aside)).unwrap();
        durable.store(0, Ordering::Relaxed);
        let (found, end) = read_file(&fs, id);
        assert!(found.is_empty() && !end.unwrap().torn, "it begins empty");
        for (i, batch) in all.iter().enumerate() {
            batch.append(&log);
            if i % 5 == 0 {
                log.sync().unwrap();
                durable.store(i as u64 + 1, Ordering::Relaxed);
            }
        }
        log.sync().unwrap();
        machine.on_persist(None);
        assert!(crashes.load(Ordering::Relaxed) > 60);
        let (found, end) = read_file(&fs, id);
        assert_eq!(found, all);
        assert!(!end.unwrap().torn, "the bytes that follow are not a record");
        let (found, end) = read_file(&fs, id - 1);
        assert!(found.is_empty() && end.is_err(), "the old log is gone");
    }
}

/// A record after one that was lost in flight is stranded: not replayed, and not damage. Once a
/// later record calls the position settled, the same bytes are damage.
#[test]
fn gaps_in_flight_are_not_damage() {
    let machine = Machine::new(55, Medium::Dax);
    let pool = Pool::create(config(&machine)).unwrap();
    let extent = pool.alloc(64 << 10).unwrap();
    let log = PoolLog::create(Arc::clone(&extent), (DB, 3), Medium::Dax).unwrap();
    let all = batches(&mut fastrand::Rng::with_seed(56), 5, 200);
    all[0].append(&log);
    let (mut p1, mut p2) = (all[1].payload(), all[2].payload());
    let at = log.bytes();
    let slot1 = log.reserve(p1.len_bytes()).unwrap();
    let slot2 = log.reserve(p2.len_bytes()).unwrap();
    log.append(slot2, all[2].first_seq, &mut p2).unwrap();
    let after = Machine::boot(machine.crash_image(Survive::None), 1);
    let (found, end) = read_pool(&reopen(&after, extent.span()), 3);
    assert_eq!(found, all[..1]);
    let end = end.unwrap();
    assert_eq!((end.torn, end.stranded), (true, 1));

    log.append(slot1, all[1].first_seq, &mut p1).unwrap();
    assert_eq!(read_pool(&extent, 3).0, all[..3]);
    // The next record is reserved after both, so it proves them settled.
    all[3].append(&log);
    let was = extent.region().bytes(extent.off() + at + 40, 1).unwrap()[0];
    extent.claim(at + 40, 1).unwrap().write(0, &[was ^ 4]);
    let (found, end) = read_pool(&extent, 3);
    assert_eq!(found, all[..1]);
    match end {
        Err(Failure::Damage(e)) => assert!(e.offset >= extent.off() + at, "{e}"),
        other => panic!("{other:?}"),
    }
}

/// A sync settles only written records: space reserved before it and filled after it may be lost
/// while later records are durable, and that is not damage.
#[test]
fn syncs_settle_no_gap() {
    let machine = Machine::new(65, Medium::Mapped);
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    let pool = Pool::create(config(&machine)).unwrap();
    let extent = pool.alloc(128 << 10).unwrap();
    let in_pool = PoolLog::create(Arc::clone(&extent), (DB, 3), Medium::Mapped).unwrap();
    let in_file = FileLog::create(&fs, Path::new(FILE), (DB, 3), 128 << 10, None).unwrap();
    let mut rng = fastrand::Rng::with_seed(66);
    let mut all = batches(&mut rng, 4, 10);
    for batch in &mut all {
        // The records are larger than a page, so that they are lost one by one.
        batch.entries[0].3 = (0..9000).map(|_| rng.u8(..)).collect();
    }
    let logs: [&dyn Log; 2] = [&in_pool, &in_file];
    for log in logs {
        all[0].append(log);
        log.sync().unwrap();
        let (mut p1, mut p2) = (all[1].payload(), all[2].payload());
        let slot1 = log.reserve(p1.len_bytes()).unwrap();
        let slot2 = log.reserve(p2.len_bytes()).unwrap();
        log.append(slot2, all[2].first_seq, &mut p2).unwrap();
        log.sync().unwrap();
        all[3].append(log);
        log.sync().unwrap();
        log.append(slot1, all[1].first_seq, &mut p1).unwrap();
    }
    let machine = Machine::boot(machine.crash_image(Survive::None), 1);
    let extent = reopen(&machine, extent.span());
    for (found, end) in [read_pool(&extent, 3), read_file(&machine.fs(), 3)] {
        let end = end.unwrap();
        assert_eq!(found, all[..1]);
        assert_eq!((end.torn, end.stranded), (true, 2));
    }
}

/// After a crash at any moment, with no sync since the log was created, the surviving part of a
/// file is a prefix: records never survive without the header.
#[test]
fn unsynced_files_are_prefixes() {
    let machine = Machine::new(67, Medium::Dax);
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    let log = FileLog::create(&fs, Path::new(FILE), (DB, 3), 1 << 20, None).unwrap();
    let all = batches(&mut fastrand::Rng::with_seed(68), 20, 4000);
    let mut lengths = [0; 21];
    for (i, batch) in all.iter().enumerate() {
        batch.append(&log);
        for seed in 0..60 {
            let image = machine.crash_image(Survive::Random(60 * i as u64 + seed));
            let (found, end) = read_file(&Machine::boot(image, 1).fs(), 3);
            assert!(end.is_ok(), "{i} {seed}: {end:?}");
            assert_eq!(found, all[..found.len()]);
            lengths[found.len()] += 1;
        }
    }
    assert!(
        lengths.iter().filter(|n| **n > 0).count() > 5,
        "{lengths:?}"
    );
}

/// After many threads append and sync concurrently, replay returns every record in the reserved
/// order.
#[test]
fn parallel_appends_are_all_there() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let machine = Machine::new(57, medium);
        let fs = machine.fs();
        fs.create_dir_all(Path::new("/db")).unwrap();
        let pool = Pool::create(config(&machine)).unwrap();
        let extent = pool.alloc(2 << 20).unwrap();
        let in_pool = PoolLog::create(Arc::clone(&extent), (DB, 3), medium).unwrap();
        let in_file = FileLog::create(&fs, Path::new(FILE), (DB, 3), 2 << 20, None).unwrap();
        let logs: [&dyn Log; 2] = [&in_pool, &in_file];
        let mut orders = Vec::new();
        for log in logs {
            let order = Mutex::new((1u64, Vec::new()));
            std::thread::scope(|scope| {
                for t in 0..4 {
                    let order = &order;
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(58 + t);
                        for i in 0..150 {
                            let mut batch = Batch::random(&mut rng, 0, 400);
                            let mut payload = batch.payload();
                            let slot = {
                                let mut order = order.lock().unwrap();
                                batch.first_seq = order.0;
                                order.0 += batch.entries.len() as u64;
                                order.1.push(batch.clone());
                                log.reserve(payload.len_bytes()).unwrap()
                            };
                            log.append(slot, batch.first_seq, &mut payload).unwrap();
                            if i % 10 == 0 {
                                log.sync().unwrap();
                            }
                        }
                        log.sync().unwrap();
                    });
                }
            });
            orders.push(order.into_inner().unwrap().1);
        }
        let after = Machine::boot(machine.crash_image(Survive::None), 1);
        let (found, end) = read_pool(&reopen(&after, extent.span()), 3);
        assert!(!end.unwrap().torn);
        assert_eq!(found, orders[0]);
        let (found, end) = read_file(&after.fs(), 3);
        assert!(!end.unwrap().torn);
        assert_eq!(found, orders[1]);
    }
}

/// If the n-th file operation fails, for every n, the call reports it, later ones fail too, and
/// records synced before are replayed.
#[test]
fn file_faults_stop_the_log() {
    let all = batches(&mut fastrand::Rng::with_seed(59), 12, 500);
    for n in 1.. {
        let machine = Machine::new(60, Medium::Dax);
        let plain = machine.fs();
        plain.create_dir_all(Path::new("/db")).unwrap();
        let faulty = FaultFs::new(Arc::clone(&plain));
        faulty.fail_at(n, io::ErrorKind::StorageFull, false);
        let fs: Arc<dyn FileSystem> = Arc::new(faulty.clone());
        let Ok(log) = FileLog::create(&fs, Path::new(FILE), (DB, 3), 1 << 20, None) else {
            continue;
        };
        let mut failed = false;
        let mut synced = 0;
        for (i, batch) in all.iter().enumerate() {
            let mut payload = batch.payload();
            let slot = log.reserve(payload.len_bytes()).unwrap();
            let appended = log.append(slot, batch.first_seq, &mut payload);
            let done = appended.and_then(|()| if i % 3 == 0 { log.sync() } else { Ok(()) });
            match done {
                Ok(()) => assert!(!failed, "a failed log accepts no more records"),
                Err(e) => {
                    assert_eq!(e.kind(), io::ErrorKind::StorageFull);
                    failed = true;
                }
            }
            if !failed && i % 3 == 0 {
                synced = i + 1;
            }
        }
        let after = Machine::boot(machine.crash_image(Survive::None), 1);
        let (found, end) = read_file(&after.fs(), 3);
        assert!(end.is_ok(), "operation {n}: {end:?}");
        assert!(found.len() >= synced, "operation {n}");
        assert_eq!(found, all[..found.len()]);
        if !failed {
            assert!(n > 15, "every operation was reached");
            break;
        }
        assert!(log.sync().is_err());
    }
}

/// Replay reads the whole file even if each read returns few bytes, and reports a failed read.
#[test]
fn short_and_failing_reads() {
    let machine = Machine::new(61, Medium::Dax);
    let plain = machine.fs();
    plain.create_dir_all(Path::new("/db")).unwrap();
    let log = FileLog::create(&plain, Path::new(FILE), (DB, 3), 1 << 20, None).unwrap();
    let all = batches(&mut fastrand::Rng::with_seed(62), 30, 2000);
    all.iter().for_each(|batch| batch.append(&log));
    let faulty = FaultFs::new(plain);
    let fs: Arc<dyn FileSystem> = Arc::new(faulty.clone());
    faulty.short_transfers(true);
    assert_eq!(read_file(&fs, 3).0, all);
    faulty.short_transfers(false);
    for n in 1.. {
        faulty.fail_at(n, io::ErrorKind::Other, false);
        let (found, end) = read_file(&fs, 3);
        match end {
            Ok(_) => {
                assert_eq!(found, all);
                assert!(n > 3, "opening, length and reading were reached");
                break;
            }
            Err(Failure::Io) => assert_eq!(found, all[..found.len()]),
            Err(Failure::Damage(e)) => panic!("{e}"),
        }
    }
}

/// After a sync of the pool fails, the log on a `Mapped` medium never reports success again.
#[test]
fn failed_syncs_of_the_pool_stay() {
    let machine = Machine::new(63, Medium::Mapped);
    let faults = PoolFaults::new();
    let config = PoolConfig {
        faults: Some(Arc::clone(&faults)),
        ..config(&machine)
    };
    let pool = Pool::create(config).unwrap();
    let extent = pool.alloc(64 << 10).unwrap();
    let log = PoolLog::create(extent, (DB, 3), Medium::Mapped).unwrap();
    let all = batches(&mut fastrand::Rng::with_seed(64), 3, 100);
    all[0].append(&log);
    log.sync().unwrap();
    all[1].append(&log);
    faults.fail_sync(1, io::ErrorKind::Other, false);
    assert!(log.sync().is_err());
    assert!(
        log.sync().is_err(),
        "data lost by the failed sync is unknown"
    );
}
