//! Directories with foreign files, and databases with missing parts: foreign files stay unchanged,
//! and an existing database is never hidden.

use std::collections::BTreeMap;
use std::path::Path;

use terrace::{Db, Design, ErrorKind, Options, PartState, RepairSource};
use terrace_media::Medium;
use terrace_testkit::place::scratch;
use terrace_testkit::settings;
use terrace_testkit::strangers::processes;

/// Designs with and without a pool, with and without table files.
const SHAPES: [(Design, Medium); 6] = [
    (Design::MioDb, Medium::Dax),
    (Design::MioDb, Medium::Dram),
    (Design::MioDbSsd, Medium::Dax),
    (Design::MioDbSsd, Medium::Dram),
    (Design::Leveled, Medium::Dram),
    (Design::NoveLsm, Medium::Dax),
];

fn options((design, medium): (Design, Medium)) -> Options {
    settings::small_of(design, medium)
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Returns all files of a directory with their contents.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.path().is_file());
    files
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

fn write_all(folder: &Path, files: &[(&str, &[u8])]) {
    for (name, content) in files {
        std::fs::write(folder.join(name), content).unwrap();
    }
}

fn check_all(folder: &Path, files: &[(&str, &[u8])], when: &str) {
    for (name, content) in files {
        let found = std::fs::read(folder.join(name));
        assert!(
            found.as_ref().is_ok_and(|found| found == content),
            "{when}: {name} is {found:?}"
        );
    }
}

/// Fills a database, so that tables and logs are created and removed.
fn work(db: &Db, round: u32) {
    for n in 0..1500 {
        db.put(key(n), [(n + round) as u8; 100]).unwrap();
    }
    db.drain().unwrap();
}

fn check(db: &Db, round: u32) {
    for n in 0..1500 {
        let found = db.get(key(n)).unwrap();
        assert_eq!(found, Some(vec![(n + round) as u8; 100]), "key {n}");
    }
}

/// Foreign files, with names like the database's own and with other names.
const FOREIGN: [(&str, &[u8]); 16] = [
    ("000009.sst", b"a table of another store"),
    ("0000000000000003.sst", b"exactly our name, and not ours"),
    ("0000000000000005.sst", b""),
    ("0000000000000020.sst", &[0; 300]),
    ("18446744073709551615.sst", b"the last number there is"),
    ("00000000000000000007.sst", b"too many digits"),
    ("wal-2024.log", b"a user's log"),
    ("wal-+000000000000002.log", b"not a number of ours"),
    ("MANIFEST-000004", b"of another store"),
    ("MANIFEST.new", b"mine"),
    ("OPTIONS-000007", b"of another store"),
    ("OPTIONS.new", b"mine"),
    ("CURRENT", b"MANIFEST-000004"),
    ("LOCK", b""),
    (".gitkeep", b""),
    ("notes.txt", b"mine"),
];

/// A database in a directory with foreign files leaves them unchanged, and works: when it is
/// created, while it is open, and when it is reopened.
#[test]
fn files_of_others_stay_as_they_are() {
    for shape in SHAPES {
        let folder = scratch().unwrap();
        write_all(folder.path(), &FOREIGN);
        std::fs::create_dir(folder.path().join("lost+found")).unwrap();
        std::fs::create_dir(folder.path().join("0000000000000011.sst")).unwrap();
        for round in 0..3 {
            let db = Db::open(folder.path(), options(shape)).unwrap();
            work(&db, round);
            check(&db, round);
            check_all(
                folder.path(),
                &FOREIGN,
                &format!("{shape:?}, round {round}"),
            );
            db.close().unwrap();
            drop(db);
            check_all(folder.path(), &FOREIGN, &format!("{shape:?}, closed"));
        }
        let db = Db::open(folder.path(), options(shape)).unwrap();
        check(&db, 2);
        assert!(folder.path().join("lost+found").is_dir());
        assert!(folder.path().join("0000000000000011.sst").is_dir());
    }
}

/// Foreign files added to the directory of a closed database stay too: with names that are exactly
/// those of future logs and tables, and as the files of another database.
#[test]
fn files_that_came_later_stay() {
    for shape in SHAPES {
        let folder = scratch().unwrap();
        let other = scratch().unwrap();
        for place in [&folder, &other] {
            let db = Db::open(place.path(), options(shape)).unwrap();
            work(&db, 1);
            // Without a close, so that logs stay.
            std::mem::forget(db.clone());
            std::fs::create_dir(place.path().join("copy")).unwrap();
            for (name, content) in contents(place.path()) {
                std::fs::write(place.path().join("copy").join(name), content).unwrap();
            }
        }
        let (folder, other) = (folder.path().join("copy"), other.path().join("copy"));
        let mut foreign: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (name, content) in contents(&other) {
            // Tables and logs of the other database, under names that this one does not use.
            let number: String = name.chars().filter(char::is_ascii_digit).collect();
            if let Ok(number) = number.parse::<u64>() {
                let moved =
                    name.replace(&format!("{number:016}"), &format!("{:016}", number + 200));
                foreign.insert(moved, content);
            }
        }
        for n in 300..310 {
            foreign.insert(format!("{n:016}.sst"), b"half a table".to_vec());
            foreign.insert(format!("wal-{n:016}.log"), vec![0; 100]);
        }
        for (name, content) in &foreign {
            std::fs::write(folder.join(name), content).unwrap();
        }
        for round in 2..8 {
            let db = Db::open(&folder, options(shape)).unwrap();
            check(&db, round - 1);
            work(&db, round);
            check(&db, round);
            db.close().unwrap();
        }
        let found = contents(&folder);
        for (name, content) in &foreign {
            assert!(found.get(name) == Some(content), "{shape:?}: {name}");
        }
    }
}

/// If a name that the database would use is taken, nothing is created and nothing is changed.
#[test]
fn a_taken_name_is_refused() {
    for shape in SHAPES {
        for (name, content) in [
            ("MANIFEST", &b"a list of goods"[..]),
            ("wal-0000000000000001.log", b"a user's log"),
        ] {
            let folder = scratch().unwrap();
            std::fs::write(folder.path().join(name), content).unwrap();
            let e = Db::open(folder.path(), options(shape)).unwrap_err();
            assert!(e.to_string().contains(name), "{shape:?}: {e}");
            let mut found = contents(folder.path());
            found.remove("LOCK");
            assert_eq!(found, BTreeMap::from([(name.into(), content.to_vec())]));
        }
    }
}

/// Without OPTIONS, any trace of a database shows that it exists: for any options of the open,
/// nothing is removed, and no new database hides it.
#[test]
fn a_database_without_options_is_not_new() {
    for shape in SHAPES {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options(shape)).unwrap();
        work(&db, 1);
        db.put("last", "in a log or a memtable").unwrap();
        db.flush().unwrap();
        drop(db);
        std::fs::remove_file(folder.path().join("OPTIONS")).unwrap();
        let before = contents(folder.path());
        for other in SHAPES {
            for pool in [None, Some("pool"), Some("another")] {
                let mut options = options(other);
                if pool.is_none() && other.1 != Medium::Dram {
                    continue;
                }
                options.pool.path = pool.map(Into::into);
                for must_exist in [false, true] {
                    options.error_if_missing = must_exist;
                    let e = Db::open(folder.path(), options.clone()).unwrap_err();
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{shape:?}, {other:?}: {e}");
                    let text = e.to_string();
                    assert!(
                        text.contains("OPTIONS") && text.contains("repair"),
                        "{text}"
                    );
                    assert!(!text.contains("create it first"), "{text}");
                    assert!(
                        contents(folder.path()) == before,
                        "{shape:?}, {other:?}, {pool:?}: something was changed"
                    );
                }
            }
        }
    }
}

/// A single part of a database is a trace.
#[test]
fn each_part_of_a_database_is_a_trace() {
    for shape in SHAPES {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options(shape)).unwrap();
        work(&db, 1);
        for n in 0..5 {
            db.put(key(n), "in a log").unwrap();
        }
        let parts = contents(folder.path());
        drop(db);
        for (name, content) in parts {
            if name == "LOCK" || name == "OPTIONS" {
                continue;
            }
            let alone = scratch().unwrap();
            std::fs::write(alone.path().join(&name), &content).unwrap();
            for other in SHAPES {
                let e = Db::open(alone.path(), options(other)).unwrap_err();
                assert!(e.to_string().contains(&name), "{name}: {e}");
                assert!(std::fs::read(alone.path().join(&name)).unwrap() == content);
            }
        }
    }
}

/// Destroying a database removes only its own files. An open one is not destroyed.
#[test]
fn a_database_is_destroyed_alone() {
    for shape in SHAPES {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options(shape)).unwrap();
        work(&db, 1);
        let refused = Db::destroy(folder.path()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Locked, "{refused}");
        check(&db, 1);
        db.close().unwrap();
        drop(db);
        let late = [
            (
                "0000000000990000.sst",
                &b"exactly our name, and not ours"[..],
            ),
            ("notes.txt", b"mine"),
        ];
        write_all(folder.path(), &late);
        Db::destroy(folder.path()).unwrap();
        check_all(folder.path(), &late, "destroyed");
        assert_eq!(contents(folder.path()).len(), late.len());
        let refused = Db::destroy(folder.path()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        let db = Db::open(folder.path(), options(shape)).unwrap();
        work(&db, 2);
        db.close().unwrap();
        check_all(folder.path(), &late, "made again");
    }
}

/// The database stays open and locked until the last of its handles of any kind is dropped.
#[test]
fn every_handle_keeps_the_database_open() {
    for shape in SHAPES {
        for kind in ["keyspace", "snapshot", "iter", "iter of a snapshot"] {
            let folder = scratch().unwrap();
            let db = Db::open(folder.path(), options(shape)).unwrap();
            work(&db, 1);
            let (mut keyspace, mut snapshot, mut iter) = (None, None, None);
            match kind {
                "keyspace" => keyspace = Some(db.default_keyspace()),
                "snapshot" => snapshot = Some(db.snapshot().unwrap()),
                "iter" => iter = Some(db.iter().unwrap()),
                _ => iter = Some(db.snapshot().unwrap().iter().unwrap()),
            }
            drop(db);
            let e = Db::open(folder.path(), options(shape)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Locked, "{shape:?}, {kind}: {e}");
            let expected = Some(vec![8; 100]);
            if let Some(keyspace) = &keyspace {
                assert_eq!(keyspace.get(key(7)).unwrap(), expected);
                keyspace.put(key(7), [8; 100]).unwrap();
            }
            if let Some(snapshot) = &snapshot {
                assert_eq!(snapshot.get(key(7)).unwrap(), expected);
                assert_eq!(snapshot.iter().unwrap().count(), 1500);
            }
            if let Some(iter) = &mut iter {
                assert_eq!(iter.by_ref().filter(Result::is_ok).count(), 1500);
            }
            drop((keyspace, snapshot, iter));
            let db = Db::open(folder.path(), options(shape)).unwrap();
            check(&db, 1);
        }
    }
}

/// A close ends the database for all handles at once.
#[test]
fn a_close_ends_every_handle() {
    for shape in SHAPES {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), options(shape)).unwrap();
        work(&db, 1);
        let (keyspace, snapshot) = (db.default_keyspace(), db.snapshot().unwrap());
        let mut iter = db.iter().unwrap();
        db.close().unwrap();
        let closed = [
            keyspace.get(key(1)).map(drop).unwrap_err(),
            snapshot.get(key(1)).map(drop).unwrap_err(),
            iter.next().unwrap().map(drop).unwrap_err(),
        ];
        for e in closed {
            assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
        }
    }
}

/// The environment variable with the directory in which a child works.
const VARIABLE: &str = "TERRACE_STRANGERS";

/// Uses a database by a relative path while it changes its current directory, if requested.
#[test]
fn child_that_moves() {
    let Some(place) = std::env::var_os(VARIABLE) else {
        return;
    };
    let place = Path::new(&place);
    for (at, shape) in SHAPES.into_iter().enumerate() {
        let name = format!("db-{at}");
        std::env::set_current_dir(place.join("here")).unwrap();
        let db = Db::open(&name, options(shape)).unwrap();
        work(&db, 1);
        std::env::set_current_dir(place.join("elsewhere")).unwrap();
        work(&db, 2);
        db.checkpoint(place.join(format!("copy-{at}"))).unwrap();
        db.close().unwrap();
        drop(db);
        std::env::set_current_dir(place.join("here")).unwrap();
        let db = Db::open(&name, options(shape)).unwrap();
        check(&db, 2);
    }
    println!("moved well");
}

/// A database that was opened by a relative path stays in place when the process changes its
/// current directory.
#[test]
fn a_relative_path_is_held() {
    let place = scratch().unwrap();
    for folder in ["here", "elsewhere"] {
        std::fs::create_dir(place.path().join(folder)).unwrap();
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["strangers::child_that_moves", "--exact", "--nocapture"])
        .env(VARIABLE, place.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let failed = String::from_utf8_lossy(&child.stderr);
    assert!(said.contains("moved well"), "{said}\n{failed}");
    let left = std::fs::read_dir(place.path().join("elsewhere")).unwrap();
    assert_eq!(left.count(), 0, "something was made in the wrong place");
}

/// A writer whose files were removed or replaced detects it at its next flush, reports it, and
/// writes nothing into the replacements.
#[test]
fn a_writer_whose_files_are_gone_stops() {
    for shape in SHAPES {
        for lost in ["LOCK", "OPTIONS", "MANIFEST", "pool", "everything"] {
            let folder = scratch().unwrap();
            let db = Db::open(folder.path(), options(shape)).unwrap();
            work(&db, 1);
            db.put("a", "b").unwrap();
            let names: Vec<String> = contents(folder.path()).into_keys().collect();
            if lost != "everything" && !names.iter().any(|name| name == lost) {
                continue;
            }
            for name in names.iter().filter(|n| lost == "everything" || *n == lost) {
                std::fs::remove_file(folder.path().join(name)).unwrap();
            }
            let e = db.flush().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Stopped, "{shape:?}, {lost}: {e}");
            assert!(e.to_string().contains("removed or replaced"), "{e}");
            let e = db.put("c", "d").unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Stopped, "{shape:?}, {lost}: {e}");
            if lost == "everything" {
                let before = contents(folder.path());
                drop(db);
                assert!(contents(folder.path()) == before, "{shape:?}");
            }
        }
    }
}

/// Returns the files of a database that ran these rounds of work and was not closed.
fn unclosed(shape: (Design, Medium), rounds: std::ops::Range<u32>) -> BTreeMap<String, Vec<u8>> {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), options(shape)).unwrap();
    for round in rounds {
        work(&db, round);
        for n in 0..300 {
            db.put(key(n), [(n + round) as u8; 100]).unwrap();
        }
    }
    contents(folder.path())
}

/// A repair uses no log and no table of another database, whatever their names, and reports those
/// that it skipped, even if OPTIONS, the manifest or both are missing, or the manifest is the
/// other's.
#[test]
fn a_repair_leaves_out_what_is_of_another_database() {
    for shape in SHAPES.into_iter().filter(|shape| shape.1 == Medium::Dram) {
        let own = unclosed(shape, 1..2);
        // Its sequence numbers are larger, so its entries would be treated as newer.
        let other = unclosed(shape, 2..5);
        let numbered = |name: &str| name.ends_with(".sst") || name.ends_with(".log");
        let own_files = own.keys().filter(|name| numbered(name)).count();
        for lost in [
            &[][..],
            &["OPTIONS"],
            &["MANIFEST"],
            &["OPTIONS", "MANIFEST"],
        ] {
            for swapped in [None, Some("OPTIONS"), Some("MANIFEST")] {
                if swapped.is_some() && !lost.is_empty() {
                    continue;
                }
                let place = scratch().unwrap();
                let (from, to) = (place.path().join("from"), place.path().join("to"));
                std::fs::create_dir(&from).unwrap();
                for (name, content) in &own {
                    let lost = lost.contains(&name.as_str());
                    let content = if swapped == Some(name) {
                        &other[name]
                    } else {
                        content
                    };
                    if !lost {
                        std::fs::write(from.join(name), content).unwrap();
                    }
                }
                let mut foreign = Vec::new();
                for (name, content) in other.iter().filter(|(name, _)| numbered(name)) {
                    if !own.contains_key(name) && foreign.len() + 1 < own_files {
                        std::fs::write(from.join(name), content).unwrap();
                        foreign.push(name.clone());
                    }
                }
                assert!(!foreign.is_empty(), "{shape:?}: {own_files}");
                let case = format!("{shape:?}, {lost:?} lost, {swapped:?} swapped");
                let report = Db::builder(&to)
                    .options(options(shape))
                    .repair_of(&RepairSource::new(&from))
                    .unwrap();
                let left_out = |name: &str| {
                    let part = report
                        .parts
                        .iter()
                        .find(|part| part.path == from.join(name));
                    part.is_some_and(|part| {
                        part.state == PartState::Ignored
                            && part.note.contains("belongs to database")
                    })
                };
                for name in foreign.iter().map(String::as_str).chain(swapped) {
                    assert!(left_out(name), "{case}: {name}, {report:#?}");
                }
                let db = Db::open(&to, options(shape)).unwrap();
                check(&db, 1);
            }
        }
    }
}

/// An open that fails because the manifest, or the pool with it, is an older one removes nothing:
/// with the right one restored, everything is there.
#[test]
fn a_refused_opening_removes_nothing() {
    let mut refused = 0;
    for shape in SHAPES {
        let folder = scratch().unwrap();
        let path_name = match shape.1 {
            Medium::Dram => "MANIFEST",
            _ => "pool",
        };
        let path = folder.path().join(path_name);
        let mut older = Vec::new();
        for round in 1..4 {
            let db = Db::open(folder.path(), options(shape)).unwrap();
            work(&db, round);
            db.close().unwrap();
            drop(db);
            older.push(std::fs::read(&path).unwrap());
        }
        older.pop();
        let right = contents(folder.path());
        for older in older {
            std::fs::write(&path, older).unwrap();
            let opened = Db::open(folder.path(), options(shape));
            let refusal = opened.map(drop).err();
            if let Some(e) = &refusal {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{shape:?}: {e}");
                let now = contents(folder.path());
                let gone = right.keys().find(|name| !now.contains_key(*name));
                assert_eq!(gone, None, "{shape:?}: {e}");
                refused += 1;
            }
            // After an open that succeeded, restores all files.
            let again = right
                .iter()
                .filter(|(name, _)| *name == path_name || refusal.is_none());
            for (name, content) in again {
                std::fs::write(folder.path().join(name), content).unwrap();
            }
            if refusal.is_some() {
                let db = Db::open(folder.path(), options(shape)).unwrap();
                check(&db, 3);
                break;
            }
        }
    }
    assert!(refused > 0, "no older manifest was refused");
}

/// For any foreign files and any design, these stay unchanged, problems with files are reported,
/// and no database is opened twice. Tiny devices are left to the campaign.
#[test]
fn random_strangers_stay() {
    for seed in terrace_testkit::seeds::seeds(12)
        .into_iter()
        .filter(|seed| seed % 4 != 2)
    {
        let medium = [Medium::Dram, Medium::Dax][seed as usize % 2];
        if let Err(e) = terrace_testkit::strangers::once(seed, medium) {
            panic!("seed {seed}: {e}");
        }
    }
}

/// The entry point of the children of the next test, not a test. Without orders it does nothing.
#[test]
fn child() {
    if let Some(code) = processes::child_if_asked() {
        std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
    }
}

/// A process that has a database open locks out every other one, by every path, and a killed one
/// leaves everything acknowledged to the next.
#[test]
fn a_second_process_is_kept_out() {
    let exe = std::env::current_exe().unwrap();
    let command = || {
        let mut command = std::process::Command::new(&exe);
        command.args(["strangers::child", "--exact", "--nocapture"]);
        command
    };
    for seed in terrace_testkit::seeds::seeds(3) {
        let medium = [Medium::Dram, Medium::Dax, Medium::Mapped][seed as usize % 3];
        if let Err(e) = processes::once(seed, medium, &command) {
            panic!("{e}");
        }
    }
}
