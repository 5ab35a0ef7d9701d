//! Tests of value files: what is written is read, damage is found, and a crash leaves a whole file
//! or none.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use terrace_media::{FaultFs, FileSystem, Machine, Medium, OpenMode, Survive};

use super::layout::{HEADER_BYTES, value_owner};
use super::*;
use crate::error::ErrorKind;
use crate::types::{Compression, DbId};

const DB: DbId = DbId(*b"0123456789abcdef");
const NUMBER: u64 = 7;

fn path() -> PathBuf {
    PathBuf::from("/db/7.val")
}

fn machine() -> Arc<dyn FileSystem> {
    let fs = Machine::new(1, Medium::Dax).fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    fs
}

fn options(compression: Compression) -> ValueOptions {
    ValueOptions {
        db: DB,
        compression,
        direct: false,
        write_bytes: 4096,
    }
}

fn key(n: u32) -> Vec<u8> {
    [b"key".as_slice(), &n.to_be_bytes()].concat()
}

fn value(n: u32) -> Vec<u8> {
    let len = (n as usize * 37) % 5000;
    (0..len).map(|at| (at / 50) as u8 ^ n as u8).collect()
}

/// Writes `count` values. Returns their pointers.
fn write(fs: &Arc<dyn FileSystem>, compression: Compression, count: u32) -> Vec<Pointer> {
    let mut writer = ValueWriter::create(fs, &path(), NUMBER, options(compression)).unwrap();
    let pointers = (0..count).map(|n| {
        let new = NewValue {
            keyspace: 1,
            key: &key(n),
            seq: u64::from(n) + 1,
            expiry: u64::from(n % 3),
            value: &value(n),
        };
        writer.append(&new).unwrap()
    });
    let pointers = pointers.collect();
    let meta = writer.finish().unwrap();
    assert_eq!((meta.number, meta.values), (NUMBER, u64::from(count)));
    pointers
}

fn open(fs: &Arc<dyn FileSystem>) -> crate::error::Result<Arc<ValueFile>> {
    ValueFile::open(&**fs, &path(), NUMBER, false).map(Arc::new)
}

/// Each value is read by its pointer, alone, in order and in leaps, and pointers survive their
/// encoding.
#[test]
fn values_are_read_by_pointers() {
    for compression in [Compression::None, Compression::Lz4] {
        let fs = machine();
        let pointers = write(&fs, compression, 300);
        let file = open(&fs).unwrap();
        assert_eq!(file.db(), DB);
        for (n, pointer) in (0..).zip(&pointers) {
            let again = Pointer::decode(pointer.encode().bytes(), 0).unwrap();
            assert_eq!(again, *pointer);
            assert_eq!(file.read(again, (1, &key(n))).unwrap(), value(n), "{n}");
        }
        for (step, ahead) in [(1, 64 << 10), (3, 1 << 20), (50, 20 << 10), (1, 0)] {
            let mut reader = ValueReader::new(ahead, None);
            for (n, pointer) in (0..).zip(&pointers).step_by(step) {
                let read = reader.read(&file, *pointer, (1, &key(n))).unwrap();
                assert_eq!(read, value(n), "{n} of steps of {step}");
            }
        }
        let mut walked = 0;
        let walk = file.walk(&mut |at, record| {
            let (record, found) = record.unwrap();
            assert_eq!((record.key, found), (&key(walked)[..], &value(walked)[..]));
            assert_eq!(record.header.seq, u64::from(walked) + 1);
            assert_eq!(at, pointers[walked as usize].offset);
            walked += 1;
            Ok(())
        });
        walk.unwrap();
        assert_eq!(walked, 300);
    }
}

/// Another key, another file and pointers outside the file are refused.
#[test]
fn pointers_to_other_records_are_refused() {
    let fs = machine();
    let pointers = write(&fs, Compression::None, 10);
    let file = open(&fs).unwrap();
    let mut reader = ValueReader::new(1 << 20, None);
    let mut refuse = |pointer: Pointer, key: (u32, &[u8])| {
        let e = file.read(pointer, key).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        assert!(e.to_string().contains("7.val"), "{e}");
        let read = reader.read(&file, pointer, key).map(<[u8]>::to_vec);
        assert_eq!(read.unwrap_err().to_string(), e.to_string());
    };
    let pointer = pointers[3];
    refuse(pointer, (1, &key(4)));
    refuse(pointer, (2, &key(3)));
    refuse(pointers[4], (1, &key(3)));
    let longer = Pointer {
        bytes: pointer.bytes + 1,
        ..pointer
    };
    refuse(longer, (1, &key(3)));
    let outside = Pointer {
        offset: u64::MAX / 2,
        ..pointer
    };
    refuse(outside, (1, &key(3)));
    let other = Pointer {
        value_bytes: pointer.value_bytes + 1,
        ..pointer
    };
    refuse(other, (1, &key(3)));
    // A file of another number.
    fs.link(&path(), Path::new("/db/8.val")).unwrap();
    let e = ValueFile::open(&*fs, Path::new("/db/8.val"), 8, false)
        .err()
        .unwrap();
    assert!(e.to_string().contains("file 8"), "{e}");
}

/// Any changed byte is found by the read of its record, or when the file is opened, and no other
/// value changes.
#[test]
fn damage_is_found() {
    for compression in [Compression::None, Compression::Lz4] {
        let fs = machine();
        let pointers = write(&fs, compression, 12);
        let file = fs.open(&path(), OpenMode::Write).unwrap();
        let len = file.len().unwrap();
        for at in 0..len {
            let mut byte = [0];
            file.read_exact_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 0x40]).unwrap();
            match open(&fs) {
                Err(e) => {
                    assert!(at < HEADER_BYTES as u64, "{at}: {e}");
                    let kinds = [ErrorKind::Corruption, ErrorKind::Unsupported];
                    assert!(kinds.contains(&e.kind()), "{at}: {e}");
                }
                Ok(open) => {
                    assert!(at >= HEADER_BYTES as u64, "{at}");
                    for (n, pointer) in (0..).zip(&pointers) {
                        let record = pointer.offset..pointer.offset + u64::from(pointer.bytes);
                        match open.read(*pointer, (1, &key(n))) {
                            Ok(read) => {
                                assert_eq!(read, value(n));
                                assert!(!record.contains(&at), "byte {at} is in record {n}");
                            }
                            Err(e) => assert!(record.contains(&at), "byte {at}: {e}"),
                        }
                    }
                }
            }
            file.write_at(at, &byte).unwrap();
        }
        // A file that lost its end.
        file.set_len(len - 1).unwrap();
        let open = open(&fs).unwrap();
        let last = pointers.len() - 1;
        assert!(open.read(pointers[last], (1, &key(last as u32))).is_err());
        assert_eq!(open.read(pointers[0], (1, &key(0))).unwrap(), value(0));
    }
}

/// After a power failure at any sync, with any part of the unsynced data lost: before `finish`
/// returns nothing refers to the file; afterwards it is whole.
#[test]
fn a_named_file_is_whole_after_any_power_loss() {
    let machine = Machine::new(61, Medium::Dax);
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    // Stands for the manifest, which is made durable with its own sync after `finish`.
    let named = Arc::new(Mutex::new(None::<Vec<Pointer>>));
    let crashes = Arc::new(AtomicU64::new(0));
    let (known, count) = (Arc::clone(&named), Arc::clone(&crashes));
    machine.on_persist(Some(Box::new(move |machine, point| {
        let mut ways = vec![Survive::None, Survive::All];
        ways.extend((0..10).map(|i| Survive::Random(point.index * 10 + i)));
        for survive in ways {
            let after = Machine::boot(machine.crash_image(survive), point.index).fs();
            count.fetch_add(1, Ordering::Relaxed);
            let Some(pointers) = &*known.lock().unwrap() else {
                continue;
            };
            let file = open(&after).unwrap();
            for (n, pointer) in (0..).zip(pointers) {
                assert_eq!(file.read(*pointer, (1, &key(n))).unwrap(), value(n));
            }
        }
    })));
    let pointers = write(&fs, Compression::None, 300);
    *named.lock().unwrap() = Some(pointers);
    let manifest = fs
        .open(Path::new("/db/MANIFEST"), OpenMode::Create)
        .unwrap();
    manifest.write_at(0, b"value file 7").unwrap();
    manifest.sync_data().unwrap();
    machine.on_persist(None);
    assert!(crashes.load(Ordering::Relaxed) >= 4 * 12);
    let mut header = [0; HEADER_BYTES];
    let file = fs.open(&path(), OpenMode::Read).unwrap();
    file.read_exact_at(0, &mut header).unwrap();
    assert_eq!(value_owner(&header), Some((DB, NUMBER)));
}

/// For every n, the n-th operation fails: writing returns an error, and no file has the name unless
/// its name could not be made durable. Only a failure of an early write-back changes nothing.
#[test]
fn every_write_can_fail() {
    let script = |fs: &Arc<dyn FileSystem>| -> crate::error::Result<ValueMeta> {
        let mut writer = ValueWriter::create(fs, &path(), NUMBER, options(Compression::None))?;
        for n in 0..40 {
            let new = NewValue {
                keyspace: 1,
                key: &key(n),
                seq: 1,
                expiry: 0,
                value: &value(n),
            };
            writer.append(&new)?;
        }
        writer.finish()
    };
    let clean = FaultFs::new(machine());
    script(&(Arc::new(clean.clone()) as Arc<dyn FileSystem>)).unwrap();
    let count = clean.operations();
    assert!(count >= 10, "{count} operations");
    for n in 1..=count {
        for (fault, expected) in [
            (io::ErrorKind::StorageFull, ErrorKind::Full),
            (io::ErrorKind::Other, ErrorKind::Io),
        ] {
            let inner = machine();
            let faults = FaultFs::new(Arc::clone(&inner));
            faults.fail_at(n, fault, false);
            let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
            if let Err(error) = script(&fs) {
                let tripped = faults.tripped();
                let folder = tripped.is_some_and(|what| what.starts_with("sync folder"));
                let expected = if folder { ErrorKind::Io } else { expected };
                assert_eq!(error.kind(), expected, "operation {n}: {error}");
                assert!(error.to_string().contains("/db"), "{error}");
                assert!(!inner.exists(&path()).unwrap(), "operation {n}");
            }
            faults.reset();
            let _ = inner.remove(&path());
            // A writer that is dropped leaves its draft, which the next open of the database
            // removes.
            let _ = inner.remove(&crate::types::draft_of(&path(), DB));
            assert_eq!(script(&fs).unwrap().values, 40);
        }
    }
    let fs = machine();
    let writer = ValueWriter::create(&fs, &path(), NUMBER, options(Compression::None)).unwrap();
    writer.abandon().unwrap();
    assert_eq!(fs.list(Path::new("/db")).unwrap(), Vec::<String>::new());
}
