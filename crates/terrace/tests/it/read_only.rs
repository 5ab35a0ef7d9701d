//! Databases opened read-only: what they show, what they refuse, and what they leave unchanged.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use terrace::{Db, Design, Durability, ErrorKind, Options, Workers, WriteBatch};
use terrace_media::Medium;
use terrace_testkit::place::scratch;
use terrace_testkit::settings;
use terrace_testkit::world::{count_pairs, verify};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(design: Design, medium: Medium) -> Options {
    let mut options = settings::small_of(design, medium);
    options.pool.size_bytes = 8 << 20;
    options.background.workers = Workers::Manual;
    options
}

fn to_read(options: &Options) -> Options {
    Options {
        read_only: true,
        ..options.clone()
    }
}

fn pairs(db: &Db) -> Pairs {
    let pairs = db.iter().unwrap().map(|pair| pair.unwrap().into_pair());
    pairs.collect()
}

/// Returns name, content and times of every file of a directory, and of the directory.
fn everything(folder: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime, u64)> {
    let mut all = BTreeMap::new();
    let times = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let content = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let len = content.len() as u64;
        all.insert(name, (content, times(&path), len));
    }
    all.insert(".".into(), (Vec::new(), times(folder), 0));
    all
}

/// Makes a database as a killed process leaves it, with data in every component: files, repository,
/// tables in the middle of a merge, logs. Returns its content.
fn killed(folder: &Path, options: &Options) -> Pairs {
    let running = folder.with_extension("running");
    let db = Db::open(&running, options.clone()).unwrap();
    let space = db.create_keyspace("other").unwrap();
    for n in 0..700u32 {
        let mut batch = WriteBatch::new();
        batch.put(n.to_be_bytes(), vec![n as u8; 40]);
        batch.delete((n / 2).to_be_bytes());
        db.write(batch, Durability::Buffered).unwrap();
        space.put(n.to_be_bytes(), "other").unwrap();
        match n {
            300 => db.drain().unwrap(),
            500 | 600 => db.flush().unwrap(),
            601..620 => drop(db.step(n as usize).unwrap()),
            _ => {}
        }
    }
    // The next process sees every store of this one, so it finds what a copy of the files contains.
    std::fs::create_dir(folder).unwrap();
    for entry in std::fs::read_dir(&running).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let held = pairs(&db);
    drop((db, space));
    std::fs::remove_dir_all(&running).unwrap();
    held
}

/// After a crash a read-only database shows everything, sound, opened any number of times at once,
/// refuses every change, and when it is closed not a byte and not a time has changed.
#[test]
fn reading_changes_nothing() {
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Mapped, Medium::Dram] {
            if medium == Medium::Dram && design.keeps_table_files() {
                continue;
            }
            let folder = scratch().unwrap();
            let path = folder.path().join("db");
            let options = options(design, medium);
            let held = killed(&path, &options);
            let before = everything(&path);

            let db = Db::open(&path, to_read(&options)).unwrap();
            let second = Db::open(&path, to_read(&options)).unwrap();
            assert!(db.recovery().entries_replayed > 0, "{design} on {medium}");
            assert!(
                pairs(&db) == held && pairs(&second) == held,
                "{design} on {medium}"
            );
            verify(&db, Some(count_pairs(&db).unwrap())).unwrap();
            let space = db.keyspace("other").unwrap().unwrap();
            assert_eq!(space.iter().unwrap().count(), 700);
            let snapshot = db.snapshot().unwrap();
            assert_eq!(
                snapshot.get(699u32.to_be_bytes()).unwrap(),
                Some(vec![187; 40])
            );

            let refused = [
                db.put("k", "v"),
                db.put_with("k", "v", Durability::Volatile),
                db.delete("k"),
                space.put("k", "v"),
                db.flush(),
                db.drain(),
                db.create_keyspace("new").map(|_| ()),
                db.drop_keyspace("other").map(|_| ()),
                db.ingest().map(|_| ()),
                db.step(0).map(|_| ()),
            ];
            for (call, refused) in refused.into_iter().enumerate() {
                let e = refused.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::ReadOnly, "call {call}: {e}");
            }
            // Writers are locked out meanwhile.
            let owner = Db::open(&path, options.clone()).unwrap_err();
            assert_eq!(owner.kind(), ErrorKind::Locked, "{owner}");
            // A read-only database can be copied.
            let copy = folder.path().join("copy");
            db.checkpoint(&copy).unwrap();
            assert!(pairs(&Db::open(&copy, options.clone()).unwrap()) == held);

            drop(snapshot);
            db.close().unwrap();
            assert_eq!(db.get("k").unwrap_err().kind(), ErrorKind::Closed);
            drop((db, second, space));
            assert!(
                everything(&path) == before,
                "{design} on {medium}: something changed"
            );

            let owner = Db::open(&path, options.clone()).unwrap();
            assert!(pairs(&owner) == held);
            let reader = Db::open(&path, to_read(&options)).unwrap_err();
            assert_eq!(reader.kind(), ErrorKind::Locked);
            assert!(reader.to_string().contains("open for writing"), "{reader}");
        }
    }
}

/// Makes the file of a pool look like one of an earlier boot, as after a reboot of the machine.
fn of_another_boot(pool: &Path) {
    let mut bytes = std::fs::read(pool).unwrap();
    // Changes both slots of the superblock; see pool/layout.rs of terrace-media.
    for slot in [0, 4096] {
        let slot = &mut bytes[slot..slot + 256];
        slot[80..96].fill(0x5a);
        let checksum = crc32c::crc32c(&slot[..252]);
        slot[252..].copy_from_slice(&checksum.to_le_bytes());
    }
    std::fs::write(pool, bytes).unwrap();
}

/// After a power loss on `Mapped`, a read-only open rebuilds links in memory. The pool stays
/// unchanged for an owner, who rebuilds them permanently.
#[test]
fn reading_after_a_power_loss_rebuilds_in_memory() {
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let path = folder.path().join("db");
        let options = options(design, Medium::Mapped);
        let held = killed(&path, &options);
        of_another_boot(&path.join("pool"));
        let before = everything(&path);
        for _ in 0..2 {
            let db = Db::open(&path, to_read(&options)).unwrap();
            let rebuilt = db.recovery().tables_rebuilt > 0;
            // All tables of NoveLsm have left for files, and its list in the pool is a log.
            let has_lists = design.buffer() == Some("elastic") && design != Design::NoveLsm;
            assert_eq!(rebuilt, has_lists, "{design}");
            assert!(pairs(&db) == held, "{design}");
            verify(&db, Some(count_pairs(&db).unwrap())).unwrap();
            db.close().unwrap();
            drop(db);
            assert!(everything(&path) == before, "{design}: something changed");
        }
        let owner = Db::open(&path, options.clone()).unwrap();
        assert!(pairs(&owner) == held, "{design}");
    }
}

/// A copy without its lock file can be read and gets none. Where there is no database, none is
/// created.
#[test]
fn reading_makes_nothing() {
    let folder = scratch().unwrap();
    let path = folder.path().join("db");
    let options = options(Design::MioDb, Medium::Dax);
    let missing = Db::open(&path, to_read(&options)).unwrap_err();
    assert!(
        missing.to_string().contains("there is no database"),
        "{missing}"
    );
    assert!(!path.exists());
    let held = killed(&path, &options);
    std::fs::remove_file(path.join("LOCK")).unwrap();
    let db = Db::open(&path, to_read(&options)).unwrap();
    assert!(pairs(&db) == held);
    drop(db);
    assert!(!path.join("LOCK").exists());
}
