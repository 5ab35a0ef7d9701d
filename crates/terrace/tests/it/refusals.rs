//! Databases that cannot be opened at present: the refusal has the right kind and advice, and the
//! database is sound again once the cause is fixed.

use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use terrace::{Db, Design, Error, ErrorKind};
use terrace_media::{File, FileLock, FileSystem, Medium, OpenMode, OsFs};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

/// The environment variable with the database that a child must open.
const VARIABLE: &str = "TERRACE_OPEN_CHILD";

/// The entry point of a child that opens a database, prints the result, and waits; not a test.
#[test]
fn child() {
    let Ok(folder) = std::env::var(VARIABLE) else {
        return;
    };
    let opened = Db::open(folder, settings::small(Medium::Dax));
    match &opened {
        Ok(_) => println!("\nsays open"),
        Err(e) => println!("\nsays {:?}: {e}", e.kind()),
    }
    let _ = io::stdin().read_line(&mut String::new());
}

fn child_for(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["refusals::child", "--exact", "--nocapture"])
        .env(VARIABLE, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// Returns the first message of the child.
fn answer(child: &mut std::process::Child) -> String {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = lines.map_while(Result::ok);
    said.find_map(|line| line.strip_prefix("says ").map(str::to_owned))
        .unwrap_or_default()
}

fn made(folder: &Path) {
    let db = Db::open(folder, settings::small(Medium::Dax)).unwrap();
    db.put("a", "b").unwrap();
    db.close().unwrap();
}

fn refusal(folder: &Path) -> Error {
    Db::open(folder, settings::small(Medium::Dax)).unwrap_err()
}

fn assert_says(e: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(e.kind(), kind, "{e}");
    for part in parts {
        assert!(e.to_string().contains(part), "{part:?} is not in: {e}");
    }
}

/// Changes a file, expects the refusal, and opens the database with the original file.
fn refused(name: &str, change: impl Fn(&mut Vec<u8>), kind: ErrorKind, parts: &[&str]) {
    let folder = scratch().unwrap();
    made(folder.path());
    let path = folder.path().join(name);
    let good = std::fs::read(&path).unwrap();
    let mut bytes = good.clone();
    change(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    assert_says(&refusal(folder.path()), kind, parts);
    std::fs::write(&path, &good).unwrap();
    let db = Db::open(folder.path(), settings::small(Medium::Dax)).unwrap();
    assert_eq!(db.get("a").unwrap(), Some(b"b".to_vec()));
}

/// Increments the version at `at`, and updates the checksum.
fn later(bytes: &mut [u8], at: usize, checked: usize) {
    bytes[at] += 1;
    let crc = crc32c::crc32c(&bytes[..checked]);
    bytes[checked..checked + 4].copy_from_slice(&crc.to_le_bytes());
}

/// The format of files without the identity of their database is refused as such, and nothing is
/// changed.
#[test]
fn the_format_without_identities_is_refused() {
    let former = |bytes: &mut Vec<u8>| {
        let text = String::from_utf8(std::mem::take(bytes)).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("id = "));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        let text = text.replace("format = 2", "format = 1");
        let body = &text[..text.rfind("checksum").unwrap()];
        let crc = crc32c::crc32c(body.as_bytes());
        *bytes = format!("{body}checksum = {crc:08x}\n").into_bytes();
    };
    let advice = ["format 1", "the version that wrote it"];
    refused("OPTIONS", former, ErrorKind::Unsupported, &advice);
}

/// A later format of the superblock, of OPTIONS or of the manifest is refused with the advice to
/// use a later version of the program.
#[test]
fn later_formats_are_refused() {
    let slots = |bytes: &mut Vec<u8>| {
        later(&mut bytes[..256], 8, 252);
        later(&mut bytes[4096..4352], 8, 252);
    };
    let advice = ["format 2", "later version"];
    refused("pool", slots, ErrorKind::Unsupported, &advice);
    let options = |bytes: &mut Vec<u8>| {
        let text = String::from_utf8(std::mem::take(bytes)).unwrap();
        let text = text.replace("format = 2", "format = 3");
        let body = &text[..text.rfind("checksum").unwrap()];
        let crc = crc32c::crc32c(body.as_bytes());
        *bytes = format!("{body}checksum = {crc:08x}\n").into_bytes();
    };
    let advice = ["format 3", "newer version"];
    refused("OPTIONS", options, ErrorKind::Unsupported, &advice);
    let manifest = |bytes: &mut Vec<u8>| {
        for page in bytes.chunks_mut(4096) {
            if page.starts_with(b"TMAN") {
                later(page, 4, 60);
            }
        }
    };
    let advice = ["manifest", "version 7", "later version"];
    refused("pool", manifest, ErrorKind::Unsupported, &advice);
}

/// A foreign file in the place of the pool or of OPTIONS is refused and kept.
#[test]
fn foreign_files_are_refused() {
    let other = |bytes: &mut Vec<u8>| bytes.fill(b'x');
    let advice = ["is not a pool", "--pool", "restore it", "terrace repair"];
    refused("pool", other, ErrorKind::Invalid, &advice);
    let advice = ["is missing or empty", "--pool", "terrace repair"];
    refused("pool", Vec::clear, ErrorKind::Invalid, &advice);
    refused("OPTIONS", other, ErrorKind::Corruption, &["OPTIONS"]);
}

/// The pool of an existing database need not be named again, for any design.
#[test]
fn a_pool_need_not_be_named_again() {
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), settings::small_of(design, Medium::Dax)).unwrap();
        db.put("a", "b").unwrap();
        db.close().unwrap();
        drop(db);
        let db = Db::open(folder.path(), settings::small_of(design, Medium::Dram)).unwrap();
        assert_eq!(db.get("a").unwrap(), Some(b"b".to_vec()));
    }
}

/// While one process has a database open, another one is refused, and may open it afterwards.
#[test]
fn two_processes_never_share_a_database() {
    let folder = scratch().unwrap();
    made(folder.path());
    let mut first = child_for(folder.path()).spawn().unwrap();
    assert_eq!(answer(&mut first), "open");
    let e = refusal(folder.path());
    assert_says(&e, ErrorKind::Locked, &["another process", "close it"]);
    first.kill().unwrap();
    first.wait().unwrap();
    let db = Db::open(folder.path(), settings::small(Medium::Dax)).unwrap();
    let mut second = child_for(folder.path()).spawn().unwrap();
    let said = answer(&mut second);
    assert!(said.starts_with("Locked"), "{said}");
    drop(second.stdin.take());
    second.wait().unwrap();
    assert_eq!(db.get("a").unwrap(), Some(b"b".to_vec()));
}

/// A read-only file system.
struct ReadOnly(OsFs);

fn read_only<T>() -> io::Result<T> {
    Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem))
}

impl FileSystem for ReadOnly {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() { Ok(()) } else { read_only() }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        match mode {
            OpenMode::Read => self.0.open(path, mode),
            _ => read_only(),
        }
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn link(&self, _: &Path, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.0.exists(path)
    }

    fn lock(&self, _: &Path) -> io::Result<Box<dyn FileLock>> {
        read_only()
    }
}

/// In a directory without write permission, opening names the file and the system's reason.
#[test]
fn read_only_folders_are_refused() {
    for medium in [Medium::Dax, Medium::Dram] {
        for exists in [true, false] {
            let folder = scratch().unwrap();
            let mut place = Place::folder(folder.path().join("db"));
            if exists {
                place
                    .open(&settings::small(medium))
                    .unwrap()
                    .close()
                    .unwrap();
            }
            place.fs = Some(Arc::new(ReadOnly(OsFs)));
            let e = place.open(&settings::small(medium)).unwrap_err();
            assert_says(&e, ErrorKind::Io, &["db", "read-only"]);
        }
    }
}

/// A read-only pool is refused with the permission that it needs. A user with permission to write
/// everywhere runs the test as one without.
#[test]
fn read_only_pools_are_refused() {
    let folder = scratch().unwrap();
    made(folder.path());
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&folder.path().join("pool"), 0o444);
    mode(&folder.path().join("LOCK"), 0o666);
    mode(folder.path(), 0o777);
    let mut command = child_for(folder.path());
    if std::fs::OpenOptions::new()
        .append(true)
        .open(folder.path().join("pool"))
        .is_ok()
    {
        command.uid(65534);
    }
    match command.spawn() {
        Ok(mut child) => {
            let said = answer(&mut child);
            assert!(said.starts_with("Io") && said.contains("pool"), "{said}");
            assert!(said.contains("a writable file"), "{said}");
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        // That user may not run this program, so the test cannot be made.
        Err(e) => assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{e}"),
    }
}

/// A pool in a file keeps its size when a smaller one is stated, and options are judged by it.
#[test]
fn a_pool_keeps_its_size() {
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(design, Medium::Dax);
        let before = options.pool.size_bytes;
        let db = Db::open(folder.path(), options.clone()).unwrap();
        db.put("a", "b").unwrap();
        drop(db);
        options.pool.size_bytes = 128 << 10;
        let db = Db::open(folder.path(), options).unwrap();
        assert_eq!(db.options().pool.size_bytes, before, "{design}");
        assert_eq!(db.get("a").unwrap(), Some(b"b".to_vec()));
    }
}
