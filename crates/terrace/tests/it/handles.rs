//! Handles: a close lets others in though handles are left, and a forked child keeps its hands off.

use std::io::{Read, Write};

use terrace::{Db, Design, ErrorKind, Workers};
use terrace_media::{Medium, fork_to};
use terrace_testkit::place::scratch;
use terrace_testkit::settings;

const MEDIA: [Medium; 3] = [Medium::Dax, Medium::Mapped, Medium::Dram];

/// After a close the database can be opened again while handles, snapshots and iterators of it are left, and
/// each of those is told that it is closed.
#[test]
fn a_close_unlocks_whatever_handles_are_left() {
    for medium in MEDIA {
        for design in Design::ALL {
            let folder = scratch().unwrap();
            let options = settings::small_of(design, medium);
            let db = Db::open(folder.path(), options.clone()).unwrap();
            db.put("key", "value").unwrap();
            let snapshot = db.snapshot().unwrap();
            let mut iter = db.iter().unwrap();
            db.close().unwrap();

            let again = Db::open(folder.path(), options.clone()).unwrap();
            again.put("key", "newer").unwrap();
            assert_eq!(db.get("key").unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(snapshot.get("key").unwrap_err().kind(), ErrorKind::Closed);
            let next = iter.next().unwrap();
            assert_eq!(next.unwrap_err().kind(), ErrorKind::Closed);
            drop((db, snapshot, iter));
            let locked = Db::open(folder.path(), options).unwrap_err();
            assert_eq!(locked.kind(), ErrorKind::Locked, "{design}, {medium}");
            assert_eq!(again.get("key").unwrap(), Some(b"newer".to_vec()));
        }
    }
}

/// A forked child is refused on every handle that it has a copy of, and leaves the database to its parent. The
/// copies keep nobody out once the parent has closed.
#[test]
fn a_forked_child_is_refused_and_changes_nothing() {
    for medium in MEDIA {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(Design::MioDbSsd, medium);
        options.background.workers = Workers::Threads(1);
        let db = Db::open(folder.path(), options.clone()).unwrap();
        db.put("key", "value").unwrap();
        let snapshot = db.snapshot().unwrap();
        let iter = db.iter().unwrap();
        let mine = db.clone();
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let child = fork_to(move || {
            let invalid = |e: terrace::Error| e.kind() == ErrorKind::Invalid;
            let refused = [
                mine.put("key", "child").is_err_and(invalid),
                mine.get("key").is_err_and(invalid),
                mine.snapshot().is_err_and(invalid),
                mine.iter().is_err_and(invalid),
                mine.flush().is_err_and(invalid),
                mine.close().is_err_and(invalid),
                snapshot.get("key").is_err_and(invalid),
            ];
            drop((iter, snapshot, mine));
            let told = reader.read_exact(&mut [0]).is_ok();
            u8::from(told && refused.iter().all(|&refused| refused))
        });
        let child = child.unwrap();
        db.put("other", "value").unwrap();
        assert_eq!(db.get("key").unwrap(), Some(b"value".to_vec()));

        // The child, which lives on, has copies of all descriptors.
        db.close().unwrap();
        let again = Db::open(folder.path(), options).unwrap();
        assert_eq!(again.get("other").unwrap(), Some(b"value".to_vec()));
        writer.write_all(b"!").unwrap();
        assert_eq!(child.wait().unwrap(), 1, "{medium}");
    }
}
