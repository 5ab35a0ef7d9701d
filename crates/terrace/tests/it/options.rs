//! Options that a database stores: they are restored, and replaced by those given later, and the
//! file with them cannot be lost.

use std::sync::{Arc, Mutex};

use terrace::{Compression, Db, Design, ErrorKind, Options, Sizes};
use terrace_media::{FaultFs, Image, Machine, Medium, OsFs, Survive};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

/// Returns options of which many are not defaults.
fn stated(design: Design, medium: Medium) -> Options {
    let mut options = settings::small_of(design, medium);
    options.front.sealed_count_max = 1;
    options.buffer.filter_bits_per_key = 3;
    options.buffer.table_bytes_max = Some(100 << 10);
    let leveled = &mut options.bottom.leveled;
    leveled.filter_bits_per_key = 0;
    leveled.compression = Compression::None;
    leveled.dynamic_sizes = false;
    options
}

/// Opened without options, a database has those of its last open. Options of the process are not
/// stored.
#[test]
fn options_are_kept_until_others_are_stated() {
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Mapped, Medium::Dram] {
            let folder = scratch().unwrap();
            let options = stated(design, medium);
            let db = Db::open(folder.path(), options.clone()).unwrap();
            db.put("key", "value").unwrap();
            drop(db);
            let db = Db::builder(folder.path()).open().unwrap();
            let found = db.options_stated();
            assert_eq!(found.kept(), options.kept(), "{design} on {medium}");
            assert_eq!(found.design, Some(design));
            assert_eq!(found.pool.size_bytes, options.pool.size_bytes);
            assert_eq!(found.bottom.leveled.cache_bytes, 256 << 20);
            assert_eq!(found.bottom.leveled.open_files_max, 1000);
            assert_eq!(db.get("key").unwrap(), Some(b"value".to_vec()));
            drop(db);

            let mut other = options.clone();
            other.pool.size_bytes *= 2;
            other.bottom.leveled.growth = 9;
            other.front.memtable_bytes = 16 << 10;
            drop(Db::open(folder.path(), other.clone()).unwrap());
            let found = Options::load(folder.path()).unwrap().unwrap();
            assert_eq!(found.kept(), other.kept());
            assert_ne!(found.kept(), options.kept());
            assert_eq!(found.pool.size_bytes, other.pool.size_bytes);
        }
    }
}

/// A read-only open may use any options, and stores none.
#[test]
fn a_reader_keeps_nothing() {
    let folder = scratch().unwrap();
    let options = stated(Design::MioDbSsd, Medium::Dax);
    drop(Db::open(folder.path(), options.clone()).unwrap());
    let before = std::fs::read(folder.path().join("OPTIONS")).unwrap();
    let mut other = options.clone();
    other.read_only = true;
    other.bottom.leveled.growth = 9;
    let reader = Db::open(folder.path(), other).unwrap();
    assert_eq!(reader.options().bottom.leveled.growth, 9);
    drop(reader);
    assert_eq!(
        std::fs::read(folder.path().join("OPTIONS")).unwrap(),
        before
    );
}

/// An open that keeps nothing works with its options, and stores them neither in a pool nor without
/// one; a larger pool is stored.
#[test]
fn an_open_without_keeping_stores_no_sizes() {
    for medium in [Medium::Dax, Medium::Dram] {
        let folder = scratch().unwrap();
        let options = stated(Design::MioDbSsd, medium);
        drop(Db::open(folder.path(), options.clone()).unwrap());
        let before = Options::load(folder.path()).unwrap().unwrap();
        let mut other = options.clone();
        other.bottom.leveled.growth = 9;
        other.front.memtable_bytes = 16 << 10;
        other.pool.size_bytes *= 2;
        let builder = Db::builder(folder.path()).options(other).without_keeping();
        let db = builder.open().unwrap();
        assert_eq!(db.options().bottom.leveled.growth, 9);
        db.put("key", "value").unwrap();
        drop(db);
        let after = Options::load(folder.path()).unwrap().unwrap();
        assert_eq!(after.kept(), before.kept(), "{medium}");
        let is_raised = after.pool.size_bytes > before.pool.size_bytes;
        assert_eq!(is_raised, medium == Medium::Dax);
        let db = Db::builder(folder.path()).open().unwrap();
        assert_eq!(db.get("key").unwrap(), Some(b"value".to_vec()));
    }
}

/// Another design is refused as such, even with sizes that it does not allow.
#[test]
fn designs_are_compared_before_sizes() {
    let folder = scratch().unwrap();
    drop(Db::open(folder.path(), stated(Design::Leveled, Medium::Dax)).unwrap());
    let mut other = stated(Design::FlatLsm, Medium::Dax);
    other.buffer.tables.table_bytes = Some(1 << 30);
    other.pool.size_bytes = 1 << 20;
    let refused = Db::open(folder.path(), other).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("design leveled"), "{refused}");
}

/// A small pool with the default sizes is refused with advice that applies: sizes that were stated
/// are never changed. With the sizes of `with_pool_bytes` or of `within` it opens.
#[test]
fn a_small_pool_is_refused_with_the_way_to_open_it() {
    let folder = scratch().unwrap();
    let mut options = Options::default();
    options.pool.path = Some("pool".into());
    for (bytes, helps) in [(256 << 20, true), (1 << 20, false)] {
        options.pool.size_bytes = bytes;
        let within = options.clone().within(1 << 30, Sizes::default());
        let mut later = Options {
            memory_bytes: within.memory_bytes,
            ..options.clone()
        };
        later.bottom.leveled = within.bottom.leveled.clone();
        for refused in [&options, &later] {
            let e = Db::open(folder.path(), refused.clone()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
            let text = e.to_string();
            assert_eq!(text.contains("Options::with_pool_bytes"), helps, "{text}");
            assert!(!text.contains("set --memory"), "{text}");
            // Neither form says twice that options are invalid.
            assert_eq!(format!("{e:?}").matches("invalid").count(), 1, "{e:?}");
        }
        for (number, fits) in [options.clone().with_pool_bytes(bytes), within]
            .into_iter()
            .enumerate()
            .filter(|_| helps)
        {
            let db = Db::open(folder.path().join(number.to_string()), fits).unwrap();
            db.put("key", "value").unwrap();
        }
    }
}

/// An open that fails stores nothing either. If the options cannot be stored, it reports that and
/// leaves the old ones.
#[test]
fn a_refused_open_keeps_nothing() {
    let folder = scratch().unwrap();
    let fs = FaultFs::new(Arc::new(OsFs));
    let mut place = Place::folder(folder.path());
    place.fs = Some(Arc::new(fs.clone()));
    let options = stated(Design::Leveled, Medium::Dax);
    drop(place.open(&options).unwrap());
    let before = std::fs::read(folder.path().join("OPTIONS")).unwrap();

    let mut other = options.clone();
    other.bottom.leveled.growth = 9;
    fs.fill_up(true);
    let refused = place.open(&other).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    assert!(refused.to_string().contains("OPTIONS"), "{refused}");
    assert_eq!(
        std::fs::read(folder.path().join("OPTIONS")).unwrap(),
        before
    );
    // With its stored options it opens on a full disk as well.
    drop(place.open(&options).unwrap());
    fs.fill_up(false);

    let mut wrong = other.clone();
    wrong.design = Some(Design::MioDb);
    assert!(place.open(&wrong).is_err());
    assert_eq!(
        std::fs::read(folder.path().join("OPTIONS")).unwrap(),
        before
    );
    drop(place.open(&other).unwrap());
    assert_ne!(
        std::fs::read(folder.path().join("OPTIONS")).unwrap(),
        before
    );
}

/// A moved pool must be named once.
#[test]
fn a_moved_pool_is_named_once() {
    let folder = scratch().unwrap();
    let mut options = stated(Design::MioDb, Medium::Dax);
    let db = Db::open(folder.path().join("db"), options.clone()).unwrap();
    db.put("key", "value").unwrap();
    drop(db);
    let moved = folder.path().join("moved.pool");
    std::fs::rename(folder.path().join("db/pool"), &moved).unwrap();
    assert!(Db::builder(folder.path().join("db")).open().is_err());
    options.pool.path = Some(moved.clone());
    drop(Db::open(folder.path().join("db"), options).unwrap());
    let db = Db::builder(folder.path().join("db")).open().unwrap();
    assert_eq!(db.options().pool.path, Some(moved));
    assert_eq!(db.get("key").unwrap(), Some(b"value".to_vec()));
}

/// Power fails at every moment of an open with other options: the old or the new ones are found,
/// and once it has returned, the new ones.
#[test]
fn a_crash_leaves_old_options_or_new_ones() {
    for design in Design::ALL {
        let medium = Medium::Mapped;
        let options = stated(design, medium);
        let mut other = options.clone();
        other.bottom.leveled.growth = 9;
        other.buffer.levels = 2;
        let machine = Machine::new(3, medium);
        let open = |machine: &Machine, options: &Options| {
            let builder = Db::builder("db").options(options.clone());
            builder.machine(machine.clone()).open()
        };
        let db = open(&machine, &options).unwrap();
        db.put("key", "value").unwrap();
        drop(db);
        let images: Arc<Mutex<Vec<Image>>> = Arc::default();
        let taken = Arc::clone(&images);
        machine.on_persist(Some(Box::new(move |machine, point| {
            for survive in [Survive::None, Survive::All, Survive::Random(point.index)] {
                taken.lock().unwrap().push(machine.crash_image(survive));
            }
        })));
        let db = open(&machine, &other).unwrap();
        machine.on_persist(None);
        let last = machine.crash_image(Survive::None);
        drop(db);
        let kept = |image: Image| {
            let machine = Machine::boot(image, 7);
            let db = Db::builder("db").machine(machine).open().unwrap();
            assert_eq!(db.get("key").unwrap(), Some(b"value".to_vec()), "{design}");
            db.options_stated().kept()
        };
        let (mut old, mut new) = (0, 0);
        for image in std::mem::take(&mut *images.lock().unwrap()) {
            let found = kept(image);
            match found == other.kept() {
                true => new += 1,
                false if found == options.kept() => old += 1,
                false => panic!("{design}: options that nobody stated: {found:?}"),
            }
        }
        assert!(old > 0 && new > 0, "{design}: {old} old, {new} new");
        assert_eq!(kept(last), other.kept(), "{design}");
    }
}

/// A pool whose path cannot be stored as a line of text is refused before anything is created.
#[test]
fn a_path_that_cannot_be_noted_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    for path in [&b"po\nol"[..], b"pool\r", b"po\xffol"] {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(Design::MioDb, Medium::Mapped);
        options.pool.path = Some(std::ffi::OsStr::from_bytes(path).into());
        let error = Db::open(folder.path(), options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("name the pool"), "{error}");
        assert!(!folder.path().join("OPTIONS").exists());
    }
}

/// A draft left by a crash or a failed call is removed by the next open, even if that writes no new
/// one.
#[test]
fn drafts_of_options_go() {
    for design in Design::ALL {
        let folder = scratch().unwrap();
        let options = settings::small_of(design, Medium::Dax);
        Db::open(folder.path(), options.clone())
            .unwrap()
            .close()
            .unwrap();
        let kept = std::fs::read_to_string(folder.path().join("OPTIONS")).unwrap();
        let id = kept.lines().find_map(|line| line.strip_prefix("id = "));
        let id = id.expect("OPTIONS says which database it belongs to");
        let draft = folder.path().join(format!("OPTIONS.{id}.draft"));
        std::fs::write(&draft, "half of a ").unwrap();
        let mut reading = options.clone();
        reading.read_only = true;
        Db::open(folder.path(), reading).unwrap().close().unwrap();
        assert!(draft.exists(), "{design}: who only reads changes nothing");
        Db::open(folder.path(), options).unwrap().close().unwrap();
        assert!(!draft.exists(), "{design}");
    }
}
