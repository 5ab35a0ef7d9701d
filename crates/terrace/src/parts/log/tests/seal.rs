//! Tests of seals: with a seal, damage to any record is distinguished from a crash.

use std::path::Path;
use std::sync::Arc;

use terrace_media::{Extent, FileSystem, Machine, Medium, OpenMode, Survive};

use super::{Batch, DB, FILE, Failure, batches, overwrite, pool, read_file, read_pool};
use crate::parts::log::layout::{LOG_HEADER_BYTES, RECORD_ALIGN};
use crate::parts::log::replay::ReplayEnd;
use crate::parts::log::{FileLog, Log, PoolLog};

fn folder(seed: u64) -> (Machine, Arc<dyn FileSystem>) {
    let machine = Machine::new(seed, Medium::Dax);
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    (machine, fs)
}

/// Creates a sealed log in a file, with no sync before its end; returns its records and bytes.
fn sealed_file(fs: &Arc<dyn FileSystem>, seed: u64) -> (Vec<Batch>, Vec<u8>) {
    let log = FileLog::create(fs, Path::new(FILE), (DB, 7), 16 << 10, None).unwrap();
    let all = batches(&mut fastrand::Rng::with_seed(seed), 6, 90);
    all.iter().for_each(|batch| batch.append(&log));
    log.sync().unwrap();
    log.seal(1000).unwrap();
    let mut bytes = vec![0; log.bytes() as usize + RECORD_ALIGN];
    let file = fs.open(Path::new(FILE), OpenMode::Read).unwrap();
    file.read_exact_at(0, &mut bytes).unwrap();
    (all, bytes)
}

/// After any byte before the seal changes, replay returns all records or an error; after a byte of
/// the seal changes, it returns all records.
#[test]
fn every_byte_before_a_seal_counts() {
    let (_machine, fs) = folder(61);
    let (all, bytes) = sealed_file(&fs, 62);
    let end = bytes.len() - RECORD_ALIGN;
    let pool = pool();
    let extent = pool.alloc(16 << 10).unwrap();
    let file = fs.open(Path::new(FILE), OpenMode::Write).unwrap();
    let (mut errors, mut harmless) = (0, 0);
    for at in 0..bytes.len() {
        for mask in [0x01, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= mask;
            file.write_at(0, &changed).unwrap();
            overwrite(&extent, &changed, || 0);
            for (found, ended) in [read_file(&fs, 7), read_pool(&extent, 7)] {
                match ended {
                    Ok(_) => {
                        assert_eq!(found, all, "byte {at} ^ {mask:#x}");
                        assert!(at >= end || bytes[at] == 0, "byte {at} is not padding");
                        harmless += 1;
                    }
                    Err(Failure::Damage(_)) => {
                        assert!(at < end, "byte {at} of the seal");
                        assert_eq!(found, all[..found.len()]);
                        errors += 1;
                    }
                    Err(Failure::Io) => panic!("the file can be read"),
                }
            }
        }
    }
    assert!(
        errors > 10 * harmless / 9,
        "{errors} errors, {harmless} not"
    );
}

/// A log is sealed only if all its records are written and durable; sealing again has no effect.
#[test]
fn only_what_is_durable_is_sealed() {
    let (_machine, fs) = folder(63);
    let pool = pool();
    let all = batches(&mut fastrand::Rng::with_seed(64), 3, 40);
    let seals = |log: &dyn Log, read: &dyn Fn() -> ReplayEnd| {
        log.seal(1).unwrap();
        assert!(!read().sealed, "a log without records");
        all[..2].iter().for_each(|batch| batch.append(log));
        assert!(!read().sealed);
        log.seal(1000).unwrap();
        let before_sync = read();
        log.sync().unwrap();
        log.seal(1000).unwrap();
        log.seal(1000).unwrap();
        for end in [before_sync, read()] {
            assert_eq!(end.bytes, log.bytes());
        }
        assert!(read().sealed);
        before_sync.sealed
    };
    let file = FileLog::create(&fs, Path::new(FILE), (DB, 7), 16 << 10, None).unwrap();
    let before = seals(&file, &|| read_file(&fs, 7).1.unwrap());
    assert!(!before, "nothing was synced");
    for medium in [Medium::Dax, Medium::Mapped] {
        let extent = pool.alloc(16 << 10).unwrap();
        overwrite(&extent, &[], || 0);
        let log = PoolLog::create(Arc::clone(&extent), (DB, 7), medium).unwrap();
        let before = seals(&log, &|| read_pool(&extent, 7).1.unwrap());
        // On `Dax` a record is durable when its writer returns.
        assert_eq!(before, medium == Medium::Dax, "{medium}");
    }
    // A reserved record that is never written.
    let extent: Arc<Extent> = pool.alloc(16 << 10).unwrap();
    let log = PoolLog::create(Arc::clone(&extent), (DB, 8), Medium::Dax).unwrap();
    all[0].append(&log);
    let _ = log.reserve(all[1].payload().len_bytes());
    all[2].append(&log);
    log.seal(1000).unwrap();
    assert_eq!(read_pool(&extent, 8).1.unwrap().records, 1);
}

/// A full log in a file is sealed after its end; in the pool there is no space for a seal, which is
/// not an error.
#[test]
fn a_full_log_can_be_sealed() {
    let (_machine, fs) = folder(65);
    let pool = pool();
    let extent = pool.alloc(4096).unwrap();
    let file = FileLog::create(&fs, Path::new(FILE), (DB, 7), extent.len(), None).unwrap();
    let log = PoolLog::create(Arc::clone(&extent), (DB, 7), Medium::Dax).unwrap();
    let all = batches(&mut fastrand::Rng::with_seed(66), 200, 40);
    for log in [&file as &dyn Log, &log] {
        for batch in &all {
            let mut payload = batch.payload();
            if let Some(slot) = log.reserve(payload.len_bytes()) {
                log.append(slot, batch.first_seq, &mut payload).unwrap();
            }
        }
        assert_eq!(log.bytes(), extent.len());
        log.sync().unwrap();
        log.seal(1000).unwrap();
    }
    for (end, sealed) in [
        (read_pool(&extent, 7).1, false),
        (read_file(&fs, 7).1, true),
    ] {
        let end = end.unwrap();
        assert_eq!((end.bytes, end.sealed), (extent.len(), sealed));
    }
}

/// After a power loss before, during or after sealing, no durable record is missing and nothing is
/// reported as damaged.
#[test]
fn a_crash_takes_a_seal_and_no_record() {
    for turn in 0..40 {
        let (machine, fs) = folder(70 + turn);
        let (all, bytes) = sealed_file(&fs, turn);
        let mut sealed = 0;
        for survive in [Survive::None, Survive::All, Survive::Random(turn)] {
            let after = Machine::boot(machine.crash_image(survive), turn);
            let (found, end) = read_file(&after.fs(), 7);
            assert_eq!(found, all);
            sealed += u64::from(end.unwrap().sealed);
        }
        assert!((1..3).contains(&sealed), "{sealed}");
        assert!(bytes.len() > LOG_HEADER_BYTES + RECORD_ALIGN);
    }
}
