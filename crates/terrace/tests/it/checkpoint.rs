//! Checkpoints: copies made during writes, for all designs and media, and the remains of an
//! interrupted one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use terrace::{Db, Design, Durability, ErrorKind, Options, Workers, WriteBatch};
use terrace_media::{FaultFs, Image, Machine, Medium, OsFs, Survive};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;
use terrace_testkit::world::{count_pairs, verify};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(design: Design, medium: Medium, workers: Workers) -> Options {
    let mut options = settings::small_of(design, medium);
    options.pool.size_bytes = 8 << 20;
    options.background.workers = workers;
    options
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn pairs(db: &Db) -> Pairs {
    let pairs = db.iter().unwrap().map(|pair| pair.unwrap().into_pair());
    pairs.collect()
}

/// A copy has the content of the database, and from then on the two are independent: writes, drains
/// and compactions of one change nothing in the other.
#[test]
fn a_copy_is_a_database_of_its_own() {
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Mapped, Medium::Dram] {
            if medium == Medium::Dram && design.keeps_table_files() {
                continue;
            }
            let folder = scratch().unwrap();
            let (from, to) = (folder.path().join("db"), folder.path().join("copy"));
            let options = options(design, medium, Workers::Manual);
            let db = Db::open(&from, options.clone()).unwrap();
            let space = db.create_keyspace("other").unwrap();
            db.create_keyspace("gone").unwrap();
            fill(&db);
            let before = pairs(&db);
            let other: Pairs = space
                .iter()
                .unwrap()
                .map(|p| p.unwrap().into_pair())
                .collect();
            let report = db.checkpoint(&to).unwrap();
            assert_eq!(report.files_linked > 0, design.keeps_table_files());
            assert_eq!(report.files_copied, 0);

            let kept = |path| Options::load(path).unwrap().unwrap().kept();
            let pools = |(name, _): &(&str, String)| *name != "pool.path";
            assert!(
                kept(&from)
                    .into_iter()
                    .filter(pools)
                    .eq(kept(&to).into_iter().filter(pools)),
                "{design} on {medium}: {:?}",
                kept(&to)
            );

            let copy = Db::open(&to, options.clone()).unwrap();
            if medium != Medium::Dram {
                assert!(copy.recovery().clean, "{design} on {medium}");
            }
            assert!(pairs(&copy) == before, "{design} on {medium}");
            verify(&copy, Some((before.len() + other.len()) as u64)).unwrap();
            assert_eq!(copy.list_keyspaces().unwrap(), ["default", "other"]);
            let copied = copy.keyspace("other").unwrap().unwrap();
            let found: Pairs = copied
                .iter()
                .unwrap()
                .map(|p| p.unwrap().into_pair())
                .collect();
            assert!(found == other);
            // Ids are not reused, and new writes are newer than all copied ones.
            let fresh = copy.create_keyspace("fresh").unwrap();
            assert_eq!(fresh.iter().unwrap().count(), 0);

            for n in 0..600 {
                db.delete(key(n)).unwrap();
                copy.put(key(n), "copy").unwrap();
            }
            db.drain().unwrap();
            copy.drain().unwrap();
            assert_eq!(pairs(&db).len(), 0);
            assert!(pairs(&copy).len() == 600 && pairs(&copy).values().all(|v| v == b"copy"));
            let others = other.len() as u64;
            verify(&db, Some(others)).unwrap();
            verify(&copy, Some(600 + others)).unwrap();
            db.close().unwrap();
            drop((db, space));
            std::fs::remove_dir_all(&from).unwrap();
            copy.close().unwrap();
            drop((copy, copied, fresh));
            let copy = Db::open(&to, options).unwrap();
            verify(&copy, Some(600 + others)).unwrap();
        }
    }
}

/// Puts data into every component: files, repository, tables, memtable; with overwritten and
/// deleted keys in all of them, tombstones above the entries they delete, and a dropped keyspace.
fn fill(db: &Db) {
    let space = db.keyspace("other").unwrap().unwrap();
    let gone = db.keyspace("gone").unwrap().unwrap();
    for n in 0..900u32 {
        db.put(key(n * 7 % 500), vec![n as u8; 30]).unwrap();
        if n % 3 == 0 {
            db.delete(key(n % 450)).unwrap();
        }
        space.put(key(n % 50), n.to_be_bytes()).unwrap();
        match n {
            0..=600 => gone.put(key(n % 50), n.to_be_bytes()).unwrap(),
            601 => assert!(db.drop_keyspace("gone").unwrap()),
            _ => {}
        }
        match n {
            400 => db.drain().unwrap(),
            700 => db.flush().unwrap(),
            _ => {}
        }
    }
}

/// Range deletes that are still above the entries they hide, and expiring entries above older ones,
/// have the same effect in a copy: it equals the snapshot of the same instant, even after time has
/// passed.
#[test]
fn range_deletes_and_expiry_are_copied() {
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Mapped, Medium::Dram] {
            for depth in 0..3 {
                check_deletes_and_expiry(design, medium, depth);
            }
        }
    }
}

fn check_deletes_and_expiry(design: Design, medium: Medium, depth: u32) {
    const SECOND: Duration = Duration::from_secs(1);
    let when = format!("{design} on {medium}, depth {depth}");
    let folder = scratch().unwrap();
    let place = Place::folder(folder.path().join("db"));
    let options = options(design, medium, Workers::Manual);
    let db = place.open(&options).unwrap();
    let space = db.create_keyspace("other").unwrap();
    for n in 0..400 {
        db.put(key(n), vec![n as u8; 30]).unwrap();
        space.put(key(n), "other").unwrap();
    }
    db.drain().unwrap();
    // The range deletes cover keys at the bottom, overlap, extend to the end of a keyspace, and are
    // partly overwritten.
    db.delete_range(key(50)..key(150)).unwrap();
    db.delete_range(key(100)..key(200)).unwrap();
    space.delete_range(key(300)..).unwrap();
    for n in [60, 120, 180] {
        db.put(key(n), "again").unwrap();
        db.put_with_ttl(key(n + 1), "again, for a while", 20 * SECOND)
            .unwrap();
    }
    // The entries hide older values, some of which are deleted; some have expired by now, others
    // expire soon.
    for n in 230..260 {
        db.put_with_ttl(key(n), "short", 2 * SECOND).unwrap();
        db.put_with_ttl(key(n + 40), "long", 20 * SECOND).unwrap();
    }
    db.delete_range(key(275)..key(280)).unwrap();
    place.clock.advance(5 * SECOND);
    // All of that is in the memtable, in a table of the buffer or of level 0, or at the bottom.
    match depth {
        0 => {}
        1 => db.flush().unwrap(),
        _ => db.drain().unwrap(),
    }
    db.delete_range(key(5)..key(10)).unwrap();
    let snapshot = db.snapshot().unwrap();
    let target = Place {
        folder: folder.path().join("copy"),
        ..place.clone()
    };
    db.checkpoint(&target.folder).unwrap();
    let all = |iter: terrace::Iter| -> Pairs {
        let pairs = iter.map(|pair| pair.unwrap().into_pair());
        pairs.collect()
    };
    let now = all(snapshot.iter().unwrap());
    let others = all(space.iter().unwrap());
    assert_eq!((now.len(), others.len()), (400 - 5 - 150 + 6 - 30 - 5, 300));
    // Later changes of the original are not in the copy.
    db.delete_range(key(0)..).unwrap();
    db.drain().unwrap();

    let mut copy = target.open(&options).unwrap();
    for round in 0..3 {
        let copied = copy.keyspace("other").unwrap().unwrap();
        assert!(all(copy.iter().unwrap()) == now, "{when}, round {round}");
        assert!(all(copied.iter().unwrap()) == others, "{when}");
        let mut back: Vec<_> = copy.iter().unwrap().rev().map(|p| p.unwrap()).collect();
        back.reverse();
        assert!(back.len() == now.len(), "{when}, round {round}");
        for n in 0..400 {
            let expected = now.get(key(n).as_slice()).cloned();
            assert_eq!(copy.get(key(n)).unwrap(), expected, "{when} {n}");
        }
        verify(&copy, Some((now.len() + others.len()) as u64)).unwrap();
        match round {
            0 => {
                drop(copied);
                drop(copy);
                copy = target.open(&options).unwrap();
            }
            _ => copy.drain().unwrap(),
        }
    }
    // Entries that expire later also expire in the copy, and no older ones reappear.
    place.clock.advance(20 * SECOND);
    let later: Pairs = now
        .iter()
        .filter(|(_, value)| !value.starts_with(b"long") && !value.ends_with(b"for a while"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    assert_eq!(later.len(), now.len() - 25 - 3, "{when}");
    for round in 0..2 {
        assert!(pairs(&copy) == later, "{when}, later, {round}");
        copy.compact_range::<&[u8]>(..).unwrap();
        verify(&copy, Some((later.len() + others.len()) as u64)).unwrap();
    }
    assert_eq!(all(snapshot.iter().unwrap()), now, "{when}");
    // The clock of the copy's machine may be behind: entries that had expired before the copy stay
    // hidden.
    copy.close().unwrap();
    drop(copy);
    place.clock.set_back(25 * SECOND);
    let copy = target.open(&options).unwrap();
    assert!(pairs(&copy) == later, "{when}, with a clock set back");
}

/// A copy made during writes is the database at one instant: it contains each batch entirely or not
/// at all, everything that was acknowledged before it started, and nothing of a later instant.
#[test]
fn a_copy_during_writes_is_one_moment() {
    const KEYS: u64 = 200;
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Dram] {
            if medium == Medium::Dram && design.keeps_table_files() {
                continue;
            }
            let folder = scratch().unwrap();
            let mut options = options(design, medium, Workers::Threads(1));
            options.pool.size_bytes = 64 << 20;
            let db = Db::open(folder.path().join("db"), options.clone()).unwrap();
            let (done, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| {
                let (db, done, acknowledged) = (&db, &done, &acknowledged);
                scope.spawn(move || {
                    // Batch n sets "last", sets one of many keys, and deletes another.
                    let mut n = 0u64;
                    while !done.load(Ordering::Acquire) {
                        n += 1;
                        let mut batch = WriteBatch::new();
                        batch.put("last", n.to_be_bytes());
                        batch.put((n % KEYS).to_be_bytes(), n.to_be_bytes());
                        batch.delete(((n + 50) % KEYS).to_be_bytes());
                        db.write(batch, Durability::Buffered).unwrap();
                        acknowledged.store(n, Ordering::Release);
                    }
                });
                for copy in 0..4 {
                    std::thread::sleep(std::time::Duration::from_millis(40));
                    let path = folder.path().join(format!("copy{copy}"));
                    let least = acknowledged.load(Ordering::Acquire);
                    db.checkpoint(&path).unwrap();
                    let most = acknowledged.load(Ordering::Acquire) + 1;
                    let copy = Db::open(&path, options.clone()).unwrap();
                    let number = |v: Vec<u8>| u64::from_be_bytes(v.try_into().unwrap());
                    let last = copy.get("last").unwrap().map_or(0, number);
                    assert!((least..=most).contains(&last), "{least} {last} {most}");
                    for k in 0..KEYS {
                        let put = (0..=last).rev().find(|n| n % KEYS == k && *n > 0);
                        let deleted = (0..=last).rev().find(|n| (n + 50) % KEYS == k && *n > 0);
                        let expected = put.filter(|put| deleted.is_none_or(|at| at < *put));
                        let found = copy.get(k.to_be_bytes()).unwrap().map(number);
                        assert_eq!(found, expected, "{design} on {medium}: {k} at {last}");
                    }
                    verify(&copy, None).unwrap();
                }
                done.store(true, Ordering::Release);
            });
            verify(&db, None).unwrap();
        }
    }
}

/// A long copy holds no space: while it is made, a small pool takes overwrites of many times its
/// size, as usual.
#[test]
fn writers_find_space_during_a_long_copy() {
    const KEYS: u32 = 500;
    let value = |n: u32| vec![n as u8; 600];
    for medium in [Medium::Dax, Medium::Mapped, Medium::Dram] {
        let folder = scratch().unwrap();
        let mut options = options(Design::MioDb, medium, Workers::Manual);
        options.pool.size_bytes = 4 << 20;
        options.front.memtable_bytes = 16 << 10;
        let db = Db::open(folder.path().join("db"), options.clone()).unwrap();
        for n in 0..KEYS {
            db.put(key(n), value(n)).unwrap();
        }
        let (writer, written) = (db.clone(), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&written);
        let watch = move |progress: &terrace::Progress| {
            if progress.what != "copying" {
                return;
            }
            for _ in 0..5000 {
                let n = count.fetch_add(1, Ordering::Relaxed) as u32;
                writer.put(key(n % KEYS), value(n + 7)).unwrap();
            }
        };
        let path = folder.path().join("copy");
        let builder = Db::builder(&path).progress(watch);
        builder.checkpoint_of(&db).unwrap();
        let bytes = written.load(Ordering::Relaxed) * 600;
        assert!(bytes > 8 << 20, "{medium}: only {bytes} were written");
        let copy = Db::open(&path, options).unwrap();
        let all: Pairs = (0..KEYS).map(|n| (key(n).to_vec(), value(n))).collect();
        assert!(pairs(&copy) == all, "{medium}");
        verify(&copy, Some(u64::from(KEYS))).unwrap();
        verify(&db, None).unwrap();
    }
}

/// A copy to an existing file or non-empty directory fails and leaves it unchanged.
#[test]
fn a_copy_replaces_nothing() {
    let folder = scratch().unwrap();
    let options = options(Design::Leveled, Medium::Dax, Workers::Manual);
    let db = Db::open(folder.path().join("db"), options).unwrap();
    db.put("k", "v").unwrap();
    std::fs::write(folder.path().join("file"), "x").unwrap();
    std::fs::create_dir(folder.path().join("full")).unwrap();
    std::fs::write(folder.path().join("full/mine"), "x").unwrap();
    std::os::unix::fs::symlink("db", folder.path().join("link")).unwrap();
    for (target, part) in [
        ("db", "in the directory of the database"),
        ("db/sub", "in the directory of the database"),
        ("db/deep/sub", "in the directory of the database"),
        ("link/sub", "in the directory of the database"),
        ("full/../db/sub", "in the directory of the database"),
        ("file", "is a file"),
        ("full", "it contains mine"),
    ] {
        let refused = db.checkpoint(folder.path().join(target)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains(part), "{refused}");
    }
    assert!(folder.path().join("full/mine").exists());
    assert!(!folder.path().join("db/sub").exists());
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    db.checkpoint(folder.path().join("empty")).unwrap();
    // The pool of the copy may be elsewhere, but must not exist yet.
    let elsewhere = folder.path().join("elsewhere.pool");
    let mut other = Options::default();
    other.pool.path = Some(elsewhere.clone());
    let copy = |name: &str| Db::builder(folder.path().join(name)).options(other.clone());
    copy("second").checkpoint_of(&db).unwrap();
    let refused = copy("third").checkpoint_of(&db).unwrap_err();
    assert!(refused.to_string().contains("elsewhere.pool"), "{refused}");
    assert!(elsewhere.exists());
    let mut options = db.options().clone();
    options.pool.path = None;
    options.error_if_missing = true;
    let second = Db::open(folder.path().join("second"), options).unwrap();
    assert_eq!(second.get("k").unwrap(), Some(b"v".to_vec()));
}

/// After a full disk nothing is left of a copy, except its directory if that existed before; the
/// database continues, and a copy succeeds once there is space.
#[test]
fn a_full_disk_leaves_no_copy() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let fs = FaultFs::new(Arc::new(OsFs));
        let mut place = Place::folder(folder.path().join("db"));
        place.fs = Some(Arc::new(fs.clone()));
        let options = options(design, Medium::Dax, Workers::Manual);
        let db = place.open(&options).unwrap();
        db.create_keyspace("other").unwrap();
        db.create_keyspace("gone").unwrap();
        fill(&db);
        let before = pairs(&db);
        let (copy, given) = (folder.path().join("copy"), folder.path().join("given"));
        std::fs::create_dir(&given).unwrap();
        fs.fill_up(true);
        for target in [&copy, &given] {
            let refused = db.checkpoint(target).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
        }
        fs.fill_up(false);
        assert!(!copy.exists());
        assert_eq!(std::fs::read_dir(&given).unwrap().count(), 0);
        db.put("goes", "on").unwrap();
        db.delete("goes").unwrap();
        db.checkpoint(&copy).unwrap();
        assert!(pairs(&Db::open(&copy, options).unwrap()) == before);
    }
}

/// Power may fail at every moment of a checkpoint: what is found then is no database or the whole
/// copy, and once the checkpoint has returned it is the copy.
#[test]
fn a_crash_leaves_a_whole_copy_or_none() {
    for (seed, design) in Design::ALL.into_iter().enumerate() {
        for medium in [Medium::Dax, Medium::Mapped] {
            let options = options(design, medium, Workers::Manual);
            // The pools are on separate machines. The files of both databases are on the machine of
            // the copy, so that they can be linked.
            let (first, second) = (Machine::new(1, medium), Machine::new(seed as u64, medium));
            let builder = Db::builder("db").options(options.clone()).machine(first);
            let db = builder.file_system(second.fs()).open().unwrap();
            db.create_keyspace("other").unwrap();
            db.create_keyspace("gone").unwrap();
            fill(&db);
            let expected = pairs(&db);
            let all = count_pairs(&db).unwrap();
            let images: Arc<Mutex<Vec<(u64, Image)>>> = Arc::default();
            let taken = Arc::clone(&images);
            second.on_persist(Some(Box::new(move |machine, point| {
                let mut taken = taken.lock().unwrap();
                for survive in [Survive::None, Survive::All, Survive::Random(point.index)] {
                    taken.push((point.index, machine.crash_image(survive)));
                }
            })));
            let copy = Db::builder("copy").machine(second.clone());
            let report = copy.checkpoint_of(&db).unwrap();
            assert_eq!(report.files_linked > 0, design.keeps_table_files());
            second.on_persist(None);
            let last = second.crash_image(Survive::None);
            let images = std::mem::take(&mut *images.lock().unwrap());
            let open = |image: Image| {
                let machine = Machine::boot(image, 7);
                let is_begun = machine
                    .fs()
                    .list("copy".as_ref())
                    .is_ok_and(|names| names.len() > 1);
                let mut options = options.clone();
                options.error_if_missing = !is_begun;
                Db::builder("copy").options(options).machine(machine).open()
            };
            let (mut whole, mut none) = (0, 0);
            for (point, image) in images {
                match open(image) {
                    Ok(copy) => {
                        whole += 1;
                        assert!(pairs(&copy) == expected, "{design} on {medium} at {point}");
                        verify(&copy, Some(all)).unwrap();
                    }
                    Err(e) => {
                        none += 1;
                        let e = e.to_string();
                        let is_told = e.contains("there is no database");
                        assert!(is_told || e.contains("a checkpoint into"), "{e}");
                    }
                }
            }
            assert!(whole > 0 && none > 10, "{whole} whole, {none} none");
            assert!(pairs(&open(last).unwrap()) == expected);
        }
    }
}

/// A copy of a store whose levels are so far behind that they take no drain is whole.
#[test]
fn a_copy_of_levels_that_are_behind_is_whole() {
    for design in settings::designs_with_files() {
        let folder = scratch().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut options = settings::small_of(design, Medium::Dax);
        options.pool.size_bytes = 16 << 20;
        options.bottom.leveled.table_bytes = 64 << 10;
        options.bottom.leveled.level1_bytes = 32 << 20;
        options.bottom.leveled.dynamic_sizes = false;
        options.buffer.tables.table_bytes = Some(1 << 20);
        options.front.memtable_bytes = 64 << 10;
        let db = Db::open(at("db"), options.clone()).unwrap();
        for n in 0..4000u32 {
            db.put(n.to_be_bytes(), [1; 200]).unwrap();
        }
        db.drain().unwrap();
        db.close().unwrap();
        drop(db);
        // The same data is far more than these levels may have.
        options.bottom.leveled.level1_bytes = 64 << 10;
        options.bottom.leveled.debt_stop_bytes = 64 << 10;
        options.background.workers = Workers::Manual;
        let db = Db::open(at("db"), options.clone()).unwrap();
        for n in (0..4000u32).step_by(100) {
            db.put(n.to_be_bytes(), [2; 200]).unwrap();
            db.delete((n + 1).to_be_bytes()).unwrap();
        }
        let all = |db: &Db| -> Vec<(Vec<u8>, Vec<u8>)> {
            let pairs = db.iter().unwrap();
            pairs.map(|pair| pair.unwrap().into_pair()).collect()
        };
        db.checkpoint(at("copy")).unwrap();
        let copy = Db::open(at("copy"), options).unwrap();
        assert!(all(&copy) == all(&db), "{design}");
        assert_eq!(
            copy.get(0u32.to_be_bytes()).unwrap(),
            Some(vec![2; 200]),
            "{design}"
        );
    }
}
