//! Time to live: expired entries are permanently invisible to later readers, and their space is
//! freed without another write.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use terrace::{Db, Design, Durability, WriteBatch};
use terrace_media::Medium;
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

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

/// After its time an entry is absent for every read and no older one reappears, even if data moves
/// down and the clock is set back over a restart. A snapshot still sees it.
#[test]
fn what_has_expired_stays_away() {
    for design in Design::ALL {
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
            // In the same batch, written again, the time to live starts at the new write.
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

/// Entries that expire in a log, a table or a file are absent even if nothing was drained: the
/// manifest keeps the time of a close, and an entry its own.
#[test]
fn expiry_survives_a_restart() {
    for design in Design::ALL {
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
        // The time of the database advances again when the clock has caught up.
        place.clock.advance(103 * SECOND);
        assert_eq!(keys(&db), 0, "{design}");
    }
}

/// The space of expired entries is freed without another write, but not before the release of a
/// snapshot that reads them.
#[test]
fn the_space_of_what_has_expired_comes_back() {
    for design in Design::ALL {
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

/// The expected expiry of each pair that `fill` writes.
type Moments = BTreeMap<Vec<u8>, Option<SystemTime>>;

fn at(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

fn moments(iter: terrace::Iter) -> Moments {
    iter.map(|pair| {
        let pair = pair.unwrap();
        (pair.key().to_vec(), pair.expiry())
    })
    .collect()
}

/// Checks that the expiry times are those given, read by key, by a snapshot, forward and backward.
fn assert_moments(db: &Db, expected: &Moments, what: &str) {
    let snapshot = db.snapshot().unwrap();
    assert_eq!(&moments(db.iter().unwrap()), expected, "{what}");
    let backwards = db.iter().unwrap().rev();
    let found: Moments = backwards
        .map(|pair| {
            pair.map(|pair| (pair.key().to_vec(), pair.expiry()))
                .unwrap()
        })
        .collect();
    assert_eq!(&found, expected, "{what}, backwards");
    for (key, moment) in expected {
        let found = Some((b"value".to_vec(), *moment));
        assert_eq!(db.get_with_expiry(key).unwrap(), found, "{what}");
        assert_eq!(snapshot.get_with_expiry(key).unwrap(), found, "{what}");
        assert_eq!(db.get(key).unwrap(), Some(b"value".to_vec()));
    }
    assert_eq!(db.get_with_expiry("absent").unwrap(), None);
}

/// The expiry of an entry is kept to the millisecond wherever the entry goes: memtable, log and its
/// replay, buffer, repository or tables, compaction, checkpoint, ingest.
#[test]
fn moments_are_kept_in_every_stage() {
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Mapped, Medium::Dram] {
            let what = format!("{design} on {medium}");
            let folder = scratch().unwrap();
            let place = Place::folder(folder.path().join("db"));
            let options = settings::small_of(design, medium);
            let mut db = place.open(&options).unwrap();
            let space = db.create_keyspace("other").unwrap();
            let mut expected = Moments::new();
            for n in 0..300u64 {
                let key = format!("key{n:03}").into_bytes();
                // The clock is at one second after 1970.
                let moment = (n % 3 > 0).then(|| at(5000 + 7 * n));
                match moment {
                    None => db.put(&key, "value").unwrap(),
                    Some(moment) if n % 3 == 1 => {
                        db.put_with_expiry(&key, "value", moment).unwrap()
                    }
                    Some(moment) => {
                        let mut batch = WriteBatch::new();
                        // An absolute time between relative ones, in one batch.
                        batch.put_with_ttl("gone", "x", SECOND);
                        batch.put_with_expiry(&key, "value", moment);
                        batch.put_with_ttl_in(&space, &key, "value", SECOND);
                        batch.delete("gone");
                        db.write(batch, Durability::Buffered).unwrap();
                    }
                }
                expected.insert(key, moment);
            }
            assert_moments(&db, &expected, &what);
            let found = space.get_with_expiry("key002").unwrap();
            assert_eq!(found, Some((b"value".to_vec(), Some(at(2000)))));
            let copy = space.iter().unwrap().next().unwrap().unwrap();
            assert_eq!(copy.expiry(), Some(at(2000)));
            std::mem::forget(db);
            drop(space);
            // The logs are replayed, as after a crash.
            let crashed = Place {
                folder: folder.path().join("crashed"),
                ..place.clone()
            };
            std::fs::create_dir(&crashed.folder).unwrap();
            for entry in std::fs::read_dir(&place.folder).unwrap() {
                let name = entry.unwrap().file_name();
                std::fs::copy(place.folder.join(&name), crashed.folder.join(&name)).unwrap();
            }
            db = crashed.open(&options).unwrap();
            assert_moments(&db, &expected, &format!("{what}, replayed"));
            db.flush().unwrap();
            assert_moments(&db, &expected, &format!("{what}, flushed"));
            settled(&db);
            assert_moments(&db, &expected, &format!("{what}, drained"));
            db.compact_range::<&str>(..).unwrap();
            assert_moments(&db, &expected, &format!("{what}, compacted"));
            if medium != Medium::Dram || design.keeps_table_files() {
                let copy = Place {
                    folder: folder.path().join("copy"),
                    ..place.clone()
                };
                db.checkpoint(&copy.folder).unwrap();
                let copied = copy.open(&options).unwrap();
                assert_moments(&copied, &expected, &format!("{what}, copied"));
            }
            db.close().unwrap();
            drop(db);
            db = crashed.open(&options).unwrap();
            assert_moments(&db, &expected, &format!("{what}, reopened"));
            // The entry expires at the given time, and not before.
            place.clock.advance(Duration::from_millis(4006));
            assert!(db.get("key001").unwrap().is_some(), "{what}");
            place.clock.advance(Duration::from_millis(1));
            assert_eq!(db.get_with_expiry("key001").unwrap(), None, "{what}");
            expected.remove(&b"key001"[..]);
            assert_moments(&db, &expected, &format!("{what}, later"));
            settled(&db);
        }
    }
}

/// Expiring pairs can be ingested, even an expired one: it hides older entries, wherever they are.
/// From then on the database has a time, even after a restart.
#[test]
fn what_expires_can_be_ingested() {
    for design in Design::ALL {
        for older_is_drained in [false, true] {
            let folder = scratch().unwrap();
            let place = Place::folder(folder.path());
            let options = settings::small_of(design, Medium::Dax);
            let db = place.open(&options).unwrap();
            db.put("a", "older").unwrap();
            db.put("c", "older").unwrap();
            if older_is_drained {
                settled(&db);
            }
            place.clock.advance(10 * SECOND);
            let mut ingest = db.ingest().unwrap();
            ingest.add_with_expiry("a", "past", at(5000)).unwrap();
            ingest.add("b", "value").unwrap();
            ingest.add_with_expiry("c", "value", at(15_000)).unwrap();
            assert_eq!(ingest.finish().unwrap().entries, 3);
            let expected =
                Moments::from([(b"b".to_vec(), None), (b"c".to_vec(), Some(at(15_000)))]);
            assert_moments(&db, &expected, &format!("{design}"));
            assert_eq!(db.get("a").unwrap(), None, "{design}");
            drop(db);
            let db = place.open(&options).unwrap();
            assert_moments(&db, &expected, &format!("{design}, reopened"));
            place.clock.advance(5 * SECOND);
            assert_eq!(db.get("c").unwrap(), None, "{design}");
            settled(&db);
            assert_eq!(moments(db.iter().unwrap()).len(), 1, "{design}");
        }
    }
}
