//! Files and pools that fail at the n-th operation, for every n: calls fail or succeed, nothing
//! acknowledged is lost, nothing else appears.

use std::io::ErrorKind as Io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use terrace::{Db, Design, Durability, ErrorKind, Options, Workers};
use terrace_media::{FaultFs, FileSystem, Medium, OsFs, PoolFaults};
use terrace_testkit::faults::sweep;
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::seeds::{seeds, stride};
use terrace_testkit::settings;

const KEYS: u8 = 40;

/// Writes, flushes, drains and closes until something fails. Returns how many writes of the round
/// were acknowledged, and the first failure.
fn work(place: &Place, options: &Options, round: u8) -> (u8, Option<terrace::Error>) {
    let mut written = 0;
    let mut run = || -> terrace::Result<()> {
        let db = place.open(options)?;
        for n in 0..KEYS {
            db.put_with([n], vec![round; 700], terrace::Durability::Sync)?;
            written = n + 1;
            if n % 16 == 7 {
                db.flush()?;
            }
        }
        db.drain()?;
        db.close()
    };
    let failure = run().err();
    (written, failure)
}

/// Opens without faults and checks that every key has the last acknowledged value, or one that was
/// in flight since.
fn check(place: &Place, options: &Options, allowed: &[Vec<u8>]) {
    let db = match place.open(options) {
        Ok(db) => db,
        Err(e) => panic!("reopening: {e:?}"),
    };
    for (n, allowed) in allowed.iter().enumerate() {
        let found = db.get([n as u8]).unwrap();
        let round = found.as_ref().map_or(0, |value| value[0]);
        assert!(
            allowed.contains(&round),
            "key {n}: found round {round} of {allowed:?}"
        );
        assert!(found.is_none_or(|value| value == vec![round; 700]));
    }
    assert_eq!(
        db.verify(&mut |_| {}).unwrap().problems,
        Vec::<String>::new()
    );
}

/// Records what the failed round may have left.
fn note(allowed: &mut [Vec<u8>], written: u8, round: u8) {
    for (n, allowed) in allowed.iter_mut().enumerate() {
        match n as u8 {
            n if n < written => *allowed = vec![round],
            n if n == written => allowed.push(round),
            _ => {}
        }
    }
}

fn expect_clear(failure: &terrace::Error) {
    let kinds = [ErrorKind::Io, ErrorKind::Full, ErrorKind::Stopped];
    assert!(kinds.contains(&failure.kind()), "{failure:?}");
    assert!(
        failure.to_string().len() > 20,
        "an error says what is wrong: {failure}"
    );
}

fn files_that_fail(medium: Medium, kind: Io, sticky: bool) {
    let folder = scratch().unwrap();
    let fs = FaultFs::new(Arc::new(OsFs));
    let mut place = Place::folder(folder.path());
    place.fs = Some(Arc::new(fs.clone()));
    let options = settings::small(medium);
    let mut allowed = vec![vec![0u8]; usize::from(KEYS)];
    let mut failures = 0;
    for n in 1..400 {
        let round = (n % 200 + 1) as u8;
        fs.fail_at(n, kind, sticky);
        let (written, failure) = work(&place, &options, round);
        let calls = fs.operations();
        fs.reset();
        note(&mut allowed, written, round);
        check(&place, &options, &allowed);
        match failure {
            Some(failure) => expect_clear(&failure),
            None if calls < n => break,
            None => {}
        }
        failures += 1;
        // Without a pool, every log is replayed at each open.
        if n % 25 == 0 {
            std::fs::remove_dir_all(folder.path()).unwrap();
            allowed = vec![vec![0]; usize::from(KEYS)];
        }
    }
    assert!(failures > 5, "the script has more operations than that");
}

/// If any operation on files fails with any error, nothing acknowledged is lost.
#[test]
fn failing_files_lose_nothing() {
    for medium in [Medium::Dram, Medium::Dax] {
        files_that_fail(medium, Io::Other, false);
        files_that_fail(medium, Io::StorageFull, true);
    }
}

/// Reads that return fewer bytes than requested change nothing.
#[test]
fn short_reads_change_nothing() {
    let folder = scratch().unwrap();
    let fs = FaultFs::new(Arc::new(OsFs));
    fs.short_transfers(true);
    let mut place = Place::folder(folder.path());
    place.fs = Some(Arc::new(fs));
    let options = settings::small(Medium::Dram);
    for round in 1..5 {
        let (written, failure) = work(&place, &options, round);
        assert!(failure.is_none(), "{failure:?}");
        assert_eq!(written, KEYS);
        check(&place, &options, &vec![vec![round]; usize::from(KEYS)]);
    }
}

/// If any growth or sync of the pool fails, nothing acknowledged is lost.
#[test]
fn failing_pools_lose_nothing() {
    for sync in [false, true] {
        let folder = scratch().unwrap();
        let mut place = Place::folder(folder.path());
        let faults = PoolFaults::new();
        place.faults = Some(Arc::clone(&faults));
        let options = settings::small(Medium::Mapped);
        let mut allowed = vec![vec![0u8]; usize::from(KEYS)];
        let mut failures = 0;
        for n in 1..300 {
            let round = (n % 200 + 1) as u8;
            if sync {
                faults.fail_sync(n, Io::Other, n % 2 == 0);
            } else {
                faults.fail_grow(n, Io::StorageFull, n % 2 == 0);
            }
            let (written, failure) = work(&place, &options, round);
            let calls = if sync { faults.syncs() } else { faults.grows() };
            faults.reset();
            note(&mut allowed, written, round);
            check(&place, &options, &allowed);
            match failure {
                Some(failure) => expect_clear(&failure),
                None if calls < n => break,
                None => assert!(!sync, "sync {n} failed without a report"),
            }
            failures += 1;
        }
        assert!(failures > 0, "the script syncs and grows");
    }
}

/// An open that fails after its workers have started leaves nothing behind: they would hold the
/// pool and its lock as long as the process lives. The record of a dropped keyspace is written at
/// that time.
#[test]
fn an_opening_that_fails_late_leaves_no_workers() {
    let mut failures = 0;
    for design in settings::designs_with_files() {
        for n in 1.. {
            let folder = scratch().unwrap();
            let faults = FaultFs::new(Arc::new(OsFs));
            let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
            let place = Place {
                fs: Some(Arc::clone(&fs)),
                ..Place::folder(folder.path().join("db"))
            };
            let mut options = settings::small_of(design, Medium::Dram);
            options.background.workers = Workers::Threads(2);
            let db = place.open(&options).unwrap();
            db.create_keyspace("dropped").unwrap();
            db.drop_keyspace("dropped").unwrap();
            db.close().unwrap();
            drop(db);
            let held = Arc::strong_count(&fs);
            let writes = AtomicU32::new(0);
            faults.judge(move |call| {
                let is_of_log = call.starts_with("write wal-");
                match is_of_log && writes.fetch_add(1, Ordering::Relaxed) + 1 == n {
                    true => Err(Io::Other.into()),
                    false => Ok(()),
                }
            });
            if place.open(&options).is_ok() {
                break;
            }
            assert_eq!(Arc::strong_count(&fs), held, "{design}, write {n} of a log");
            failures += 1;
        }
    }
    assert!(failures > 0, "a log is written while a database is opened");
}

/// Every call on files and on the pool fails in turn, while a script runs, while a database
/// recovers from a crash, and while it is only read: results are right or errors that name the
/// fault, and nothing is lost. This is a sample; the campaign `faults` covers all calls and ways.
#[test]
fn every_call_can_fail() {
    let mut sum = sweep::Tally::default();
    for seed in seeds(2) {
        for medium in [Medium::Dax, Medium::Mapped, Medium::Dram] {
            for design in Design::ALL {
                // A case takes a second with default options, so only one kind of database uses
                // them.
                let one = (medium, design) == (Medium::Dram, Design::Leveled);
                if settings::is_by_default(seed) && !one {
                    continue;
                }
                let tally = sweep::sweep((medium, design), seed, stride(199) as u64, false);
                sum.add(&tally.unwrap_or_else(|e| panic!("{e}")));
            }
        }
    }
    assert!(sum.cases > 10, "{sum}");
}

/// Faults that sweeps once found mishandled are handled. Each comment gives the former error.
#[test]
fn faults_that_once_were_lies() {
    let cases = [
        // A sync of the log that failed with a full disk was reported as `Full`, so nothing of the
        // write was supposed to show, but it did.
        (
            Design::MioDb,
            Medium::Mapped,
            0,
            "Recovery,Syncs,121,1,manual",
        ),
        // After an ingest whose sync of the pool failed, the store trusted later syncs.
        (
            Design::MioDb,
            Medium::Mapped,
            2,
            "Recovery,Syncs,105,5,manual",
        ),
        // A pool whose creation had failed kept its name, and no database could be created there.
        (Design::MioDb, Medium::Dax, 7, "Life,PoolFile,8,0,manual"),
    ];
    for (design, medium, seed, only) in cases {
        let only = only.parse().expect("a fault");
        sweep::repeat((medium, design), seed, only).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// A log whose sync fails reports that the outcome is unknown, for any reason of the system, and
/// the store stops.
#[test]
fn a_log_that_cannot_be_synced_is_not_full() {
    let folder = scratch().unwrap();
    let faults = PoolFaults::new();
    let mut place = Place::folder(folder.path());
    place.faults = Some(Arc::clone(&faults));
    let db = place.open(&settings::small(Medium::Mapped)).unwrap();
    faults.fail_sync(1, Io::StorageFull, false);
    let failed = db.put_with("k", "v", Durability::Sync).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    assert!(failed.to_string().contains("reopen"), "{failed}");
    assert_eq!(db.put("k", "v").unwrap_err().kind(), ErrorKind::Stopped);
}

fn open(folder: &std::path::Path, options: Options) -> terrace::Result<Db> {
    Db::open(folder, options)
}

/// A closed database can be reopened at once although the process constantly starts children: until
/// it runs its own program, a child has copies of its parent's locks.
#[test]
fn children_that_start_keep_no_lock() {
    let folder = scratch().unwrap();
    let options = settings::small(Medium::Dax);
    let done = std::sync::atomic::AtomicBool::new(false);
    let ordering = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !done.load(ordering) {
                    let exe = std::env::current_exe().unwrap();
                    let mut command = std::process::Command::new(exe);
                    command.args(["no such test", "--exact"]);
                    command.stdout(std::process::Stdio::null());
                    assert!(command.status().unwrap().success());
                }
            });
        }
        let opened = (0..150).find_map(|_| open(folder.path(), options.clone()).err());
        done.store(true, ordering);
        assert!(opened.is_none(), "{opened:?}");
    });
}

/// A second handle, a foreign file and a missing pool are refused with the reason.
#[test]
fn what_cannot_be_opened_is_refused_with_the_reason() {
    let folder = scratch().unwrap();
    let options = settings::small(Medium::Dax);
    let db = open(folder.path(), options.clone()).unwrap();
    let twice = open(folder.path(), options.clone()).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Locked, "{twice}");
    db.put("a", "b").unwrap();
    db.close().unwrap();
    drop(db);
    let pool = folder.path().join("pool");
    let good = std::fs::read(&pool).unwrap();
    std::fs::write(&pool, vec![0x55; good.len()]).unwrap();
    let foreign = open(folder.path(), options.clone()).unwrap_err();
    assert!(
        matches!(foreign.kind(), ErrorKind::Invalid | ErrorKind::Corruption),
        "{foreign}"
    );
    assert!(foreign.to_string().contains("pool"), "{foreign}");
    std::fs::remove_file(&pool).unwrap();
    let missing = open(folder.path(), options.clone()).unwrap_err();
    assert!(missing.to_string().contains("pool"), "{missing}");
    std::fs::write(&pool, &good).unwrap();
    assert_eq!(
        open(folder.path(), options).unwrap().get("a").unwrap(),
        Some(b"b".to_vec())
    );
}
