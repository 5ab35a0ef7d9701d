//! Time to live: what has expired is gone for good, for everybody who comes later, and its space comes
//! back without another write.

use std::time::Duration;

use terrace::{Db, Design, Durability, WriteBatch};
use terrace_media::Medium;
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

const DESIGNS: [Design; 3] = [Design::MioDb, Design::MioDbSsd, Design::Leveled];
const SECOND: Duration = Duration::from_secs(1);

fn keys(db: &Db) -> usize {
    let forward = db.iter().unwrap().count();
    assert_eq!(db.iter().unwrap().rev().count(), forward);
    forward
}

fn settled(db: &Db) {
    db.drain().unwrap();
    let problems = db.verify(&mut |_| {}).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new());
}

/// After its time an entry is absent for every read, an older one does not come back, whatever moves
/// down meanwhile and however the clock is set back over a restart; a snapshot goes on seeing it.
#[test]
fn what_has_expired_stays_away() {
    for design in DESIGNS {
        for medium in [Medium::Dax, Medium::Mapped] {
            let folder = scratch().unwrap();
            let place = Place::folder(folder.path());
            let options = settings::small_of(design, medium);
            let mut db = place.open(&options).unwrap();
            db.put("a", "older").unwrap();
            db.put("b", "stays").unwrap();
            settled(&db);
            db.put_with_ttl("a", "newer", 10 * SECOND).unwrap();
            let mut batch = WriteBatch::new();
            batch.put_with_ttl("c", "of a batch", 5 * SECOND);
            db.write_ref(&mut batch, Durability::Sync).unwrap();
            place.clock.advance(4 * SECOND);
            // The same batch again: its time begins when it is written.
            db.write_ref(&mut batch, Durability::Sync).unwrap();
            place.clock.advance(4 * SECOND);
            assert_eq!(db.get("c").unwrap(), Some(b"of a batch".to_vec()));
            let (snapshot, held) = (db.snapshot().unwrap(), db.iter().unwrap());
            assert_eq!(keys(&db), 3);
            place.clock.advance(2 * SECOND);
            for _ in 0..2 {
                assert_eq!(db.get("a").unwrap(), None, "{design} on {medium}");
                assert_eq!(db.multi_get(&["a", "b", "c"]).unwrap()[0], None);
                assert_eq!(keys(&db), 1);
                assert_eq!(snapshot.get("a").unwrap(), Some(b"newer".to_vec()));
                assert_eq!(snapshot.iter().unwrap().count(), 3);
                settled(&db);
            }
            assert_eq!(held.count(), 3, "the iterator's time is that of its making");
            drop(snapshot);
            settled(&db);
            for _ in 0..2 {
                db.close().unwrap();
                drop(db);
                place.clock.set_back(8 * SECOND);
                db = place.open(&options).unwrap();
                assert_eq!(db.get("a").unwrap(), None, "{design} on {medium}");
                assert_eq!(keys(&db), 1, "{design} on {medium}");
            }
        }
    }
}

/// What expires in a log, a table or a file is gone too when nothing was drained: the manifest keeps
/// the time of a close, and an entry its own.
#[test]
fn expiry_survives_a_restart() {
    for design in DESIGNS {
        let folder = scratch().unwrap();
        let place = Place::folder(folder.path());
        let options = settings::small_of(design, Medium::Dax);
        let db = place.open(&options).unwrap();
        db.put_with_ttl("short", "v", SECOND).unwrap();
        db.put_with_ttl("long", "v", 100 * SECOND).unwrap();
        place.clock.advance(2 * SECOND);
        assert_eq!(keys(&db), 1);
        drop(db);
        place.clock.set_back(2 * SECOND);
        let db = place.open(&options).unwrap();
        assert_eq!(db.get("short").unwrap(), None, "{design}");
        assert_eq!(keys(&db), 1, "{design}");
        // The time of the database goes on when the clock has caught up.
        place.clock.advance(103 * SECOND);
        assert_eq!(keys(&db), 0, "{design}");
    }
}

/// The space of what has expired comes back without another write, but not before a snapshot that
/// reads it is gone.
#[test]
fn the_space_of_what_has_expired_comes_back() {
    for design in DESIGNS {
        for medium in [Medium::Dax, Medium::Mapped] {
            let folder = scratch().unwrap();
            let place = Place::folder(folder.path());
            let mut options = settings::small_of(design, medium);
            options.pool.size_bytes = 16 << 20;
            let db = place.open(&options).unwrap();
            for n in 0..4000u32 {
                let key = n.to_be_bytes();
                match n % 20 {
                    0 => db.put(key, [b'v'; 200]).unwrap(),
                    _ => db.put_with_ttl(key, [b'v'; 200], 60 * SECOND).unwrap(),
                }
            }
            settled(&db);
            let kept = || {
                let metrics = db.metrics();
                let files: u64 = metrics.files.iter().map(|level| level.bytes).sum();
                files + metrics.bottom.bytes
            };
            let full = kept();
            let snapshot = db.snapshot().unwrap();
            place.clock.advance(90 * SECOND);
            assert_eq!(keys(&db), 200);
            settled(&db);
            assert_eq!(
                snapshot.iter().unwrap().count(),
                4000,
                "{design} on {medium}"
            );
            drop(snapshot);
            settled(&db);
            assert_eq!(keys(&db), 200);
            assert!(
                kept() * 3 < full,
                "{design} on {medium}: {} of {full} bytes are kept",
                kept()
            );
        }
    }
}
