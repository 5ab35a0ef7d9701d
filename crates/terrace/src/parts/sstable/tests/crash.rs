//! Tests of tables in crashes and with faults: a published table is complete.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace_media::{FaultFs, Survive};

use super::super::MultiRead;
use super::*;
use crate::error::ErrorKind;

fn model(rows: u32) -> Model {
    let mut model = Model::default();
    for i in 0..rows {
        model.put(
            1,
            format!("{i:06}").as_bytes(),
            u64::from(i) + 1,
            &[i as u8; 200],
        );
    }
    model
}

/// After a power failure at any sync, with any part of the unsynced data lost: before `finish`
/// returns, no table is published; afterwards the table exists and is complete.
#[test]
fn a_named_table_is_whole_after_any_power_loss() {
    let machine = Machine::new(61, Medium::Dax);
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    let model = Arc::new(model(20_000));
    // Stands for the manifest, which is made durable with its own sync after `finish`.
    let named = Arc::new(AtomicBool::new(false));
    let crashes = Arc::new(AtomicU64::new(0));
    let points = Arc::new(Mutex::new(Vec::new()));
    let (known, count, seen_at, expected) = (
        Arc::clone(&named),
        Arc::clone(&crashes),
        Arc::clone(&points),
        Arc::clone(&model),
    );
    machine.on_persist(Some(Box::new(move |machine, point| {
        seen_at.lock().unwrap().push(point.what);
        let mut ways = vec![Survive::None, Survive::All];
        ways.extend((0..10).map(|i| Survive::Random(point.index * 10 + i)));
        for survive in ways {
            let after = Machine::boot(machine.crash_image(survive), point.index).fs();
            count.fetch_add(1, Ordering::Relaxed);
            if known.load(Ordering::Relaxed) {
                let table = open(&*after, file(), &cache()).unwrap();
                let rows: Vec<Seen> = expected.rows.clone().into_iter().collect();
                assert_eq!(all(&table).unwrap(), rows, "{point:?} {survive:?}");
            } else if let Ok(true) = after.exists(file()) {
                // An orphan is complete or refused, and it can be removed and rewritten.
                if let Ok(table) = open(&*after, file(), &cache()) {
                    assert_eq!(table.properties().entry_count, 20_000);
                }
                after.remove(file()).unwrap();
            }
        }
    })));
    let finished = write(&fs, file(), SstOptions::default(), &model).unwrap();
    assert!(finished.file_bytes > 100_000);
    named.store(true, Ordering::Relaxed);
    let manifest = fs
        .open(Path::new("/db/MANIFEST"), terrace_media::OpenMode::Create)
        .unwrap();
    manifest.write_at(0, b"table 7").unwrap();
    manifest.sync_data().unwrap();
    machine.on_persist(None);
    let lost = Machine::boot(machine.crash_image(Survive::None), 1).fs();
    let table = open(&*lost, file(), &cache()).unwrap();
    assert_eq!(all(&table).unwrap().len(), model.rows.len());
    let points = points.lock().unwrap();
    assert_eq!(*points, ["file sync", "rename", "folder sync", "file sync"]);
    assert_eq!(crashes.load(Ordering::Relaxed), 48);
}

/// For every n, the n-th operation fails: writing returns an error and leaves no table, and never
/// panics. Only a failure of an early writeback request changes nothing.
#[test]
fn every_write_can_fail() {
    let model = model(14_000);
    let script = |fs: &FaultFs| {
        let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        write(&fs, file(), tiny(Compression::None), &model)
    };
    let clean = FaultFs::new(machine());
    script(&clean).unwrap();
    let count = clean.operations();
    assert!(count >= 6, "{count} operations");
    let mut begun_early = 0;
    for n in 1..=count {
        for (fault, expected) in [
            (io::ErrorKind::StorageFull, ErrorKind::Full),
            (io::ErrorKind::Other, ErrorKind::Io),
        ] {
            let inner = machine();
            let fs = FaultFs::new(Arc::clone(&inner));
            fs.fail_at(n, fault, false);
            match script(&fs) {
                Err(error) => {
                    // A failed sync of a directory is never reported as a full disk.
                    let folder = fs
                        .tripped()
                        .is_some_and(|what| what.starts_with("sync folder"));
                    let expected = if folder { ErrorKind::Io } else { expected };
                    assert_eq!(error.kind(), expected, "operation {n}: {error}");
                    assert!(error.to_string().contains("/db"), "{error}");
                }
                Ok(_) => {
                    let what = fs.tripped().expect("a fault");
                    assert!(what.starts_with("begin sync"), "operation {n}: {what}");
                    begun_early += 1;
                }
            }
            fs.reset();
            let _ = inner.remove(file());
            // A writer that is dropped leaves its draft, which the next open of the database
            // removes.
            let draft = crate::types::draft_of(file(), SstOptions::default().db);
            let _ = inner.remove(&draft);
            let finished = script(&fs).unwrap();
            let table = open(&*inner, file(), &cache()).unwrap();
            assert_eq!(table.properties(), &finished.properties);
        }
    }
    assert!(begun_early > 0, "no file was long enough");
}

/// For every n, the n-th read operation fails: the call returns an error that names the file, and
/// the same call succeeds afterwards. Failed advice changes nothing.
#[test]
fn every_read_can_fail() {
    let model = model(600);
    let inner = machine();
    write(&inner, file(), tiny(Compression::Lz4), &model).unwrap();
    let rows: Vec<Seen> = model.rows.clone().into_iter().collect();
    let fs = FaultFs::new(inner);
    let run = |fs: &FaultFs| -> crate::error::Result<()> {
        let table = open(fs, file(), &cache())?;
        let mut reads = Vec::new();
        for ((keyspace, key, _), _) in rows.iter().step_by(37) {
            let at = target(*keyspace, key, SEQ_MAX);
            agrees(&model, &at, get(&table, &at)?.as_ref());
        }
        for ((keyspace, key, _), _) in rows.iter().step_by(5) {
            let hash = key_hash(*keyspace, key);
            reads.push(MultiRead::new(target(*keyspace, key, SEQ_MAX), hash));
        }
        table.multi_get(&mut reads, &mut ReadCounts::default())?;
        for read in &reads {
            agrees(&model, &read.target, read.answer.as_ref());
        }
        assert_eq!(all(&table)?, rows);
        let mut cursor = SstCursor::new(Arc::clone(&table), false);
        cursor.seek_to_last()?;
        for row in rows.iter().rev().take(50) {
            assert_eq!(seen(&cursor).as_ref(), Some(row));
            cursor.retreat()?;
        }
        Ok(())
    };
    run(&fs).unwrap();
    let count = fs.operations();
    assert!(count > 60, "{count} operations");
    let mut errors = 0;
    for n in 1..=count {
        fs.fail_at(n, io::ErrorKind::Other, false);
        if let Err(error) = run(&fs) {
            errors += 1;
            assert_eq!(error.kind(), ErrorKind::Io, "operation {n}: {error}");
            let text = error.to_string();
            assert!(
                text.contains("/db/7.sst") && text.contains("injected"),
                "{text}"
            );
        }
    }
    assert!(errors * 2 > count, "{errors} errors of {count} operations");
    fs.reset();
    fs.short_transfers(true);
    run(&fs).unwrap();
}

/// After a failed read a cursor is unpositioned, and a table answers as before once reads work.
#[test]
fn reads_recover_from_a_fault() {
    let model = model(600);
    let inner = machine();
    write(&inner, file(), tiny(Compression::None), &model).unwrap();
    let fs = FaultFs::new(inner);
    let table = open(&fs, file(), &cache()).unwrap();
    let mut cursor = SstCursor::new(Arc::clone(&table), false);
    cursor.read_ahead(0);
    cursor.seek_to_first().unwrap();
    fs.fail_at(1, io::ErrorKind::Other, true);
    let mut steps = 0;
    let error = loop {
        match cursor.advance() {
            Ok(()) => steps += 1,
            Err(e) => break e,
        }
        assert!(steps < 600);
    };
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(seen(&cursor), None);
    cursor.advance().unwrap();
    assert_eq!(seen(&cursor), None);
    let at = target(1, b"000300", SEQ_MAX);
    assert!(get(&table, &at).is_err());
    fs.reset();
    agrees(&model, &at, get(&table, &at).unwrap().as_ref());
    cursor.seek(&at).unwrap();
    assert_eq!(
        seen(&cursor).map(|(place, _)| place.1),
        Some(b"000300".to_vec())
    );
}
