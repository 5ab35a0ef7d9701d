//! Tests of files: the real and the simulated file system behave alike, and faults occur as set.

use crate::{
    Advice, Appender, Effect, FaultFs, FileSystem, Machine, Medium, OpenMode, OsFs, QuotaFs,
    Survive,
};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Runs a script on the real and on a simulated file system.
fn on_both(script: impl Fn(&dyn FileSystem, &Path)) {
    let dir = tempfile::tempdir().expect("a directory");
    script(&OsFs, &dir.path().join("deep/store"));
    let machine = Machine::new(1, Medium::Dax);
    script(&*machine.fs(), Path::new("/deep/store"));
}

fn kind<T>(result: std::io::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("an error is expected"),
        Err(e) => e.kind(),
    }
}

/// Reads return the written bytes, at any offset, across lengths and holes.
#[test]
fn files_hold_what_was_written() {
    on_both(|fs, dir| {
        fs.create_dir_all(dir).expect("made");
        fs.create_dir_all(dir).expect("made again");
        let path = dir.join("file");
        let file = fs.open(&path, OpenMode::CreateNew).expect("opened");
        assert!(file.is_empty().expect("length"));
        file.write_at(10_000, b"far").expect("written");
        file.write_at(4090, b"across a block").expect("written");
        assert_eq!(file.len().expect("length"), 10_003);
        let mut buf = [1; 24];
        file.read_exact_at(4085, &mut buf).expect("read");
        assert_eq!(&buf, b"\0\0\0\0\0across a block\0\0\0\0\0");
        let mut end = [0; 10];
        assert_eq!(file.read_at(10_001, &mut end).expect("read"), 2);
        assert_eq!(&end[..2], b"ar");
        assert_eq!(file.read_at(10_003, &mut end).expect("read"), 0);
        assert_eq!(
            kind(file.read_exact_at(10_000, &mut end)),
            ErrorKind::UnexpectedEof
        );
        // Truncating and extending reads as zeros, not as the old bytes.
        file.set_len(4095).expect("cut");
        file.set_len(9000).expect("extended");
        file.read_exact_at(4085, &mut buf).expect("read");
        assert_eq!(&buf, b"\0\0\0\0\0acros\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        file.allocate(20_000).expect("allocated");
        assert_eq!(file.len().expect("length"), 20_000);
        file.allocate(100).expect("allocated");
        assert_eq!(file.len().expect("length"), 20_000);
        file.sync_data().expect("synced");
    });
}

/// Names appear, change and vanish as the open modes and operations specify.
#[test]
fn names_follow_their_operations() {
    on_both(|fs, dir| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        assert_eq!(kind(fs.open(&a, OpenMode::Create)), ErrorKind::NotFound);
        assert_eq!(kind(fs.list(dir)), ErrorKind::NotFound);
        fs.create_dir_all(dir).expect("made");
        for mode in [OpenMode::Read, OpenMode::Write] {
            assert_eq!(kind(fs.open(&a, mode)), ErrorKind::NotFound);
        }
        let file = fs.open(&a, OpenMode::Create).expect("opened");
        file.write_at(0, b"first").expect("written");
        assert_eq!(
            kind(fs.open(&a, OpenMode::CreateNew)),
            ErrorKind::AlreadyExists
        );
        assert_eq!(
            fs.open(&a, OpenMode::Create)
                .and_then(|f| f.len())
                .expect("kept"),
            5
        );
        assert!(
            fs.open(&a, OpenMode::Read)
                .expect("opened")
                .write_at(0, b"x")
                .is_err()
        );
        fs.open(&b, OpenMode::Create).expect("opened");
        assert_eq!(fs.list(dir).expect("listed"), ["a", "b"]);
        fs.rename(&a, &b).expect("renamed");
        assert_eq!(fs.list(dir).expect("listed"), ["b"]);
        assert!(!fs.exists(&a).expect("looked"));
        assert!(fs.exists(&b).expect("looked"));
        fs.sync_dir(dir).expect("synced");
        fs.remove(&b).expect("removed");
        assert_eq!(kind(fs.remove(&b)), ErrorKind::NotFound);
        assert_eq!(kind(fs.rename(&a, &b)), ErrorKind::NotFound);
        fs.sync_dir(dir).expect("synced");
        // A handle outlives its name.
        let mut buf = [0; 5];
        file.read_exact_at(0, &mut buf).expect("read");
        assert_eq!(&buf, b"first");
        file.write_at(0, b"later").expect("written");
        fs.open(&a, OpenMode::Create)
            .expect("opened")
            .write_at(0, b"other")
            .expect("written");
        fs.open(&a, OpenMode::Truncate).expect("opened");
        assert_eq!(
            fs.open(&a, OpenMode::Read)
                .and_then(|f| f.len())
                .expect("length"),
            0
        );
    });
}

/// A lock is exclusive, and free again once its value is dropped.
#[test]
fn locks_exclude() {
    on_both(|fs, dir| {
        fs.create_dir_all(dir).expect("made");
        let path = dir.join("LOCK");
        let lock = fs.lock(&path).expect("locked");
        assert_eq!(kind(fs.lock(&path)), ErrorKind::WouldBlock);
        drop(lock);
        assert!(fs.lock(&path).is_ok());
    });
}

/// A lock that is released a moment later is acquired: a process that is starting may hold its
/// parent's locks for that long.
#[test]
fn a_lock_held_for_a_moment_is_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("LOCK");
    let lock = OsFs.lock(&path).expect("locked");
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(30));
            drop(lock);
        });
        assert!(OsFs.lock(&path).is_ok());
    });
}

fn script(fs: &dyn FileSystem) -> std::io::Result<()> {
    let dir = Path::new("/store");
    fs.create_dir_all(dir)?;
    let _lock = fs.lock(&dir.join("LOCK"))?;
    let file = fs.open(&dir.join("new"), OpenMode::CreateNew)?;
    file.allocate(100)?;
    file.write_at(0, b"content!")?;
    file.sync_data()?;
    file.set_len(8)?;
    fs.rename(&dir.join("new"), &dir.join("file"))?;
    fs.sync_dir(dir)?;
    let mut buf = [0; 8];
    assert_eq!(file.len()?, 8);
    file.read_exact_at(0, &mut buf)?;
    assert_eq!(&buf, b"content!");
    fs.list(dir)?;
    fs.exists(&dir.join("file"))?;
    fs.link(&dir.join("file"), &dir.join("second"))?;
    file.advise(0, 8, Advice::WillNeed)?;
    fs.remove(&dir.join("file"))
}

/// For every n, the n-th operation of a script fails with the chosen error, and no other does.
#[test]
fn every_operation_can_fail() {
    let count = {
        let fs = FaultFs::new(Machine::new(1, Medium::Dax).fs());
        script(&fs).expect("no fault");
        fs.operations()
    };
    assert!(count >= 16);
    for n in 1..=count {
        let fs = FaultFs::new(Machine::new(1, Medium::Dax).fs());
        fs.fail_at(n, ErrorKind::StorageFull, false);
        let error = script(&fs).expect_err("a fault");
        assert_eq!(error.kind(), ErrorKind::StorageFull, "operation {n}");
        assert_eq!(fs.operations(), n);
        // The fault has passed.
        assert!(fs.exists(Path::new("/")).is_ok());
        fs.fail_at(1, ErrorKind::Other, true);
        assert!(fs.exists(Path::new("/")).is_err());
        assert!(fs.exists(Path::new("/")).is_err());
        fs.reset();
        assert!(fs.exists(Path::new("/")).is_ok());
    }
}

/// A failing write leaves half of its bytes, and a series of short reads returns all bytes.
#[test]
fn transfers_can_be_partial() {
    let fs = FaultFs::new(Arc::clone(&Machine::new(1, Medium::Dax).fs()));
    let file = fs
        .open(Path::new("/file"), OpenMode::Create)
        .expect("opened");
    fs.fail_at(1, ErrorKind::Other, false);
    assert!(file.write_at(0, &[7; 100]).is_err());
    assert_eq!(file.len().expect("length"), 50);
    let content: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    file.write_at(0, &content).expect("written");
    fs.short_transfers(true);
    let mut buf = vec![0; 5000];
    assert!(file.read_at(0, &mut buf).expect("read") < 5000);
    file.read_exact_at(0, &mut buf).expect("read");
    assert_eq!(buf, content);
}

/// A hard link has the same content, does not replace an existing name, and keeps the content when
/// the first name is removed.
#[test]
fn links_share_their_content() {
    on_both(|fs, dir| {
        fs.create_dir_all(dir).expect("made");
        let (a, b, c) = (dir.join("a"), dir.join("b"), dir.join("c"));
        assert_eq!(kind(fs.link(&a, &b)), ErrorKind::NotFound);
        let file = fs.open(&a, OpenMode::CreateNew).expect("opened");
        file.write_at(0, b"shared").expect("written");
        fs.open(&c, OpenMode::CreateNew).expect("opened");
        assert_eq!(kind(fs.link(&a, &c)), ErrorKind::AlreadyExists);
        assert_eq!(kind(fs.link(&a, dir)), ErrorKind::AlreadyExists);
        fs.link(&a, &b).expect("linked");
        assert_eq!(fs.list(dir).expect("listed"), ["a", "b", "c"]);
        file.write_at(0, b"S").expect("written");
        fs.remove(&a).expect("removed");
        drop(file);
        let mut buf = [0; 6];
        let second = fs.open(&b, OpenMode::Read).expect("opened");
        second.read_exact_at(0, &mut buf).expect("read");
        assert_eq!(&buf, b"Shared");
    });
}

/// An empty directory can be removed, through every layer that forwards the call; a directory with
/// a file in it cannot.
#[test]
fn empty_folders_are_removed() {
    let place = tempfile::tempdir().expect("a directory");
    let os: Arc<dyn FileSystem> = Arc::new(OsFs);
    let layers: [Arc<dyn FileSystem>; 3] = [
        Arc::clone(&os),
        Arc::new(FaultFs::new(Arc::clone(&os))),
        Arc::new(QuotaFs::new(os, 1 << 20)),
    ];
    for fs in layers {
        let dir = place.path().join("dir");
        fs.create_dir_all(&dir).expect("made");
        fs.open(&dir.join("a"), OpenMode::CreateNew)
            .expect("opened");
        assert_eq!(kind(fs.remove_dir(&dir)), ErrorKind::DirectoryNotEmpty);
        fs.remove(&dir.join("a")).expect("removed");
        fs.remove_dir(&dir).expect("removed");
        assert!(!fs.exists(&dir).expect("looked"));
    }
}

/// A link survives a power loss once its directory was synced; before that it may be lost.
#[test]
fn links_are_durable_with_their_folder() {
    let machine = Machine::new(2, Medium::Dax);
    let fs = machine.fs();
    let (a, b) = (Path::new("/a"), Path::new("/b"));
    let file = fs.open(a, OpenMode::CreateNew).expect("opened");
    file.write_at(0, b"content").expect("written");
    file.sync_data().expect("synced");
    fs.sync_dir(Path::new("/")).expect("synced");
    fs.link(a, b).expect("linked");
    let after = |survive| Machine::boot(machine.crash_image(survive), 3).fs();
    assert!(!after(Survive::None).exists(b).expect("looked"));
    assert!(after(Survive::All).exists(b).expect("looked"));
    fs.remove(a).expect("removed");
    fs.sync_dir(Path::new("/")).expect("synced");
    let left = after(Survive::None);
    assert!(!left.exists(a).expect("looked"));
    let mut buf = [0; 7];
    let second = left.open(b, OpenMode::Read).expect("opened");
    second.read_exact_at(0, &mut buf).expect("read");
    assert_eq!(&buf, b"content");
}

/// Direct reads return the same as ordinary reads, at any offset and length, and refuse writes.
#[test]
fn direct_reads_equal_others() {
    on_both(|fs, dir| {
        fs.create_dir_all(dir).expect("made");
        let path = dir.join("file");
        let content: Vec<u8> = (0..3_000_001u32).map(|i| (i ^ (i >> 9)) as u8).collect();
        let file = fs.open(&path, OpenMode::CreateNew).expect("opened");
        file.write_at(0, &content).expect("written");
        file.sync_data().expect("synced");
        let direct = fs.open(&path, OpenMode::ReadDirect).expect("opened");
        assert!(direct.write_at(0, b"x").is_err());
        assert_eq!(direct.len().expect("length"), content.len() as u64);
        for (off, len) in [
            (0, 1),
            (1, 4096),
            (4095, 2),
            (4096, 4096),
            (777, 2_500_000),
            (3_000_000, 1),
        ] {
            let mut buf = vec![0; len];
            direct.read_exact_at(off as u64, &mut buf).expect("read");
            assert_eq!(buf, content[off..off + len], "{len} bytes at {off}");
        }
        let mut end = [0; 10];
        assert_eq!(direct.read_at(2_999_998, &mut end).expect("read"), 3);
        assert_eq!(direct.read_at(3_000_001, &mut end).expect("read"), 0);
        let advices = [
            Advice::Sequential,
            Advice::Random,
            Advice::WillNeed,
            Advice::DontNeed,
        ];
        for advice in advices {
            file.advise(0, 3_000_001, advice).expect("advised");
            direct.advise(100, 0, advice).expect("advised");
        }
    });
}

/// Prefaulting any part of a file changes neither content nor length, nor the effect of writes.
#[test]
fn prefaulting_changes_nothing() {
    on_both(|fs, dir| {
        fs.create_dir_all(dir).expect("made");
        let file = fs
            .open(&dir.join("file"), OpenMode::CreateNew)
            .expect("opened");
        file.prefault(0, 10_000).expect("prefaulted an empty file");
        assert_eq!(file.len().expect("length"), 0);
        file.allocate(1 << 20).expect("allocated");
        file.write_at(5_000, b"before").expect("written");
        for (off, len) in [
            (0, 1 << 20),
            (4_999, 3),
            ((1 << 20) - 10, 1 << 20),
            (1 << 30, 1),
            (7, 0),
        ] {
            file.prefault(off, len).expect("prefaulted");
        }
        file.write_at(900_000, b"behind").expect("written");
        assert_eq!(file.len().expect("length"), 1 << 20);
        let mut found = vec![0; 1 << 20];
        file.read_exact_at(0, &mut found).expect("read");
        let mut expected = vec![0; 1 << 20];
        expected[5_000..5_006].copy_from_slice(b"before");
        expected[900_000..900_006].copy_from_slice(b"behind");
        assert!(found == expected);
    });
}

/// Appended pieces of any size form the file, in order; after a failed write every call fails.
#[test]
fn appended_pieces_become_the_file() {
    on_both(|fs, dir| {
        fs.create_dir_all(dir).expect("made");
        let path = dir.join("file");
        let file = fs.open(&path, OpenMode::CreateNew).expect("opened");
        let mut out = Appender::new(file, 100);
        let mut content = Vec::new();
        for len in [0, 1, 99, 100, 5, 101, 1000, 40, 60, 1] {
            let piece: Vec<u8> = (0..len).map(|i| (i + content.len()) as u8).collect();
            out.append(&piece).expect("appended");
            content.extend(piece);
            assert_eq!(out.position(), content.len() as u64);
        }
        out.sync().expect("synced");
        assert_eq!(out.file().len().expect("length"), content.len() as u64);
        let mut found = vec![0; content.len()];
        let file = fs.open(&path, OpenMode::Read).expect("opened");
        file.read_exact_at(0, &mut found).expect("read");
        assert_eq!(found, content);
    });
    let fs = FaultFs::new(Machine::new(1, Medium::Dax).fs());
    let file = fs
        .open(Path::new("/file"), OpenMode::CreateNew)
        .expect("opened");
    let mut out = Appender::new(file, 10);
    fs.fail_at(1, ErrorKind::StorageFull, false);
    assert_eq!(kind(out.append(&[1; 20])), ErrorKind::StorageFull);
    assert!(out.append(&[1; 1]).is_err());
    assert!(out.sync().is_err());
}

/// A file written with direct I/O holds the written bytes for all sizes and offsets, and an
/// existing file is refused.
#[test]
fn direct_writes_equal_others() {
    on_both(|fs, dir| {
        fs.create_dir_all(dir).expect("made");
        let path = dir.join("file");
        let content: Vec<u8> = (0..3_500_001u32).map(|i| (i ^ (i >> 7)) as u8).collect();
        let file = fs.open(&path, OpenMode::CreateNewDirect).expect("made");
        // Whole blocks, then parts of blocks, then blocks that are not aligned.
        let mut at = 0;
        for len in [2_101_248, 4096, 1, 4095, 100, 1_300_000, 90_461] {
            let piece = &content[at..at + len];
            file.write_at(at as u64, piece).expect("written");
            at += len;
        }
        assert_eq!(at, content.len());
        file.write_durable_at(8192, &content[8192..8292])
            .expect("written");
        file.sync_data().expect("synced");
        assert_eq!(file.len().expect("length"), content.len() as u64);
        for mode in [OpenMode::Read, OpenMode::ReadDirect] {
            let mut found = vec![0; content.len()];
            let file = fs.open(&path, mode).expect("opened");
            file.read_exact_at(0, &mut found).expect("read");
            assert!(found == content, "{mode:?}");
        }
        let again = fs.open(&path, OpenMode::CreateNewDirect);
        assert_eq!(kind(again), ErrorKind::AlreadyExists);
    });
}

/// A failing call may still have taken effect, and the first failure is reported.
#[test]
fn calls_that_fail_may_have_been_done() {
    let fs = FaultFs::new(Machine::new(1, Medium::Dax).fs());
    let (old, new) = (Path::new("/old"), Path::new("/new"));
    let file = fs.open(old, OpenMode::Create).expect("opened");
    fs.leave(Effect::All);
    fs.fail_at(1, ErrorKind::Other, true);
    assert!(file.write_at(0, &[7; 100]).is_err());
    assert!(fs.rename(old, new).is_err());
    assert_eq!(fs.tripped().as_deref(), Some("write old"));
    fs.reset();
    assert_eq!(fs.tripped(), None);
    assert_eq!(file.len().expect("length"), 100);
    assert!(fs.exists(new).expect("a look"));
    assert!(!fs.exists(old).expect("a look"));
}
