//! Pools outside the directory: copies made with tools of the system, and prepared files.

use std::path::Path;

use terrace::{Db, Design, ErrorKind, Options};
use terrace_media::Medium;
use terrace_testkit::place::scratch;
use terrace_testkit::settings;

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A copy of the directory names the pool of its original, if that is outside. Alternating writes
/// to both would lose data that leaves the pool, so the copy is refused while the original exists.
#[test]
fn a_copy_does_not_write_to_the_pool_of_its_original() {
    for design in Design::ALL {
        for pool in ["absolute", "../relative"] {
            let outside = scratch().unwrap();
            let (folder, moved) = (outside.path().join("db"), outside.path().join("moved"));
            let copy = outside.path().join("copy");
            let mut options = settings::small_of(design, Medium::Mapped);
            options.pool.path = Some(match pool {
                "absolute" => outside.path().join(pool),
                _ => pool.into(),
            });
            let db = Db::open(&folder, options.clone()).unwrap();
            db.put("key", "value").unwrap();
            db.close().unwrap();
            copy_folder(&folder, &copy);
            for _ in 0..2 {
                let refused = Db::open(&copy, options.clone()).map(drop).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Invalid, "{design}");
                assert!(refused.to_string().contains("a copy of"), "{refused}");
            }
            let mut reading = options.clone();
            reading.read_only = true;
            let db = Db::open(&copy, reading).unwrap();
            assert_eq!(db.get("key").unwrap(), Some(b"value".to_vec()));
            drop(db);
            let db = Db::open(&folder, options.clone()).unwrap();
            db.put("other", "value").unwrap();
            db.close().unwrap();
            std::fs::rename(&folder, &moved).unwrap();
            let db = Db::open(&moved, options.clone()).unwrap();
            assert_eq!(db.get("other").unwrap(), Some(b"value".to_vec()));
        }
    }
}

/// If the original was moved, the pool belongs to the first of the two directories that is opened
/// for writing.
#[test]
fn the_first_of_two_folders_keeps_the_pool() {
    let refused = |folder: &Path, options: &Options| {
        for _ in 0..2 {
            let e = Db::open(folder, options.clone()).map(drop).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
            assert!(e.to_string().contains("older copy"), "{e}");
        }
    };
    for design in Design::ALL {
        for copy_first in [false, true] {
            let outside = scratch().unwrap();
            let place = |name: &str| outside.path().join(name);
            let mut options = settings::small_of(design, Medium::Mapped);
            options.pool.path = Some(place("pool"));
            let write = |folder: &Path, key: &str| {
                let db = Db::open(folder, options.clone()).unwrap();
                db.put(key, "value").unwrap();
                db.flush().unwrap();
                let count = db.iter().unwrap().count();
                db.close().unwrap();
                count
            };
            assert_eq!(write(&place("db"), "a"), 1);
            copy_folder(&place("db"), &place("copy"));
            std::fs::rename(place("db"), place("moved")).unwrap();
            let (first, second) = match copy_first {
                true => ("copy", "moved"),
                false => ("moved", "copy"),
            };
            assert_eq!(write(&place(first), "b"), 2);
            refused(&place(second), &options);
            // The directory may move again.
            std::fs::rename(place(first), place("again")).unwrap();
            assert_eq!(write(&place("again"), "c"), 3);
            assert_eq!(write(&place("again"), "d"), 4);
            refused(&place(second), &options);
        }
    }
}

/// A crash between the two notes of a move leaves it in OPTIONS only. The directory opens, and the
/// pool notes it then.
#[test]
fn a_move_is_noted_after_a_crash() {
    for design in Design::ALL {
        let outside = scratch().unwrap();
        let place = |name: &str| outside.path().join(name);
        let mut options = settings::small_of(design, Medium::Mapped);
        options.pool.path = Some(place("pool"));
        let open = |folder: &str| Db::open(place(folder), options.clone());
        open("db").unwrap().close().unwrap();
        copy_folder(&place("db"), &place("copy"));
        std::fs::rename(place("db"), place("moved")).unwrap();
        // The pool as it was before the move.
        std::fs::copy(place("pool"), place("pool before")).unwrap();
        open("moved").unwrap().close().unwrap();
        std::fs::copy(place("pool before"), place("pool")).unwrap();
        let db = open("moved").unwrap();
        db.put("key", "value").unwrap();
        db.close().unwrap();
        let e = open("copy").map(drop).unwrap_err();
        assert!(e.to_string().contains("older copy"), "{design}: {e}");
        let db = open("moved").unwrap();
        assert_eq!(db.get("key").unwrap(), Some(b"value".to_vec()), "{design}");
    }
}

/// An empty file that was prepared for the pool keeps its place and its permissions, also behind
/// symbolic links, whether or not their target exists.
#[test]
fn prepared_pools_stay_where_they_are() {
    use std::os::unix::fs::PermissionsExt;
    for design in Design::ALL {
        let place = scratch().unwrap();
        let path = |name: &str| place.path().join(name);
        std::fs::create_dir(path("elsewhere")).unwrap();
        let open = |folder: &str, pool: &str| {
            let mut options = settings::small_of(design, Medium::Mapped);
            options.pool.path = Some(path(pool));
            Db::open(path(folder), options)
        };
        std::fs::write(path("plain"), "").unwrap();
        let mode = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(path("plain"), mode.clone()).unwrap();
        std::fs::write(path("elsewhere/real"), "").unwrap();
        std::os::unix::fs::symlink("elsewhere/real", path("link")).unwrap();
        std::os::unix::fs::symlink("link", path("link of link")).unwrap();
        std::os::unix::fs::symlink("elsewhere/new", path("dangling")).unwrap();
        for (n, pool) in ["plain", "link of link", "dangling"].iter().enumerate() {
            let folder = format!("db{n}");
            let db = open(&folder, pool).unwrap();
            db.put("key", "value").unwrap();
            db.close().unwrap();
            let db = open(&folder, pool).unwrap();
            assert_eq!(db.get("key").unwrap(), Some(b"value".to_vec()));
        }
        let found = path("plain").metadata().unwrap().permissions();
        assert_eq!(found.mode() & 0o777, mode.mode());
        for link in ["link", "link of link", "dangling"] {
            assert!(path(link).is_symlink(), "{design}: {link}");
        }
        for file in ["elsewhere/real", "elsewhere/new"] {
            assert!(path(file).metadata().unwrap().len() > 0, "{design}: {file}");
        }
        std::fs::write(path("one"), "").unwrap();
        std::fs::hard_link(path("one"), path("other")).unwrap();
        let e = open("db", "one").map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{design}: {e}");
        assert!(!path("one.creating").exists(), "{design}");
        std::fs::remove_file(path("other")).unwrap();
        open("db", "one").unwrap().close().unwrap();
    }
}
