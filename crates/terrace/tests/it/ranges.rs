//! Range deletes: scans pass them in few steps, their space is freed, and snapshots keep what they
//! read.

use terrace::{Db, Design, Durability, Options, WriteBatch};
use terrace_media::Medium;
use terrace_testkit::crash::Case;
use terrace_testkit::place::scratch;
use terrace_testkit::script::{Entry, Key, Op};
use terrace_testkit::settings;
use terrace_testkit::value::Value;

fn key(n: u32) -> [u8; 5] {
    let [a, b, c, d] = n.to_be_bytes();
    [b'k', a, b, c, d]
}

fn load(db: &Db, count: u32, value: &[u8]) {
    let mut batch = WriteBatch::new();
    for n in 0..count {
        batch.put(key(n), value);
        if batch.len() == 1000 || n + 1 == count {
            db.write_ref(&mut batch, Durability::Buffered).unwrap();
            batch.clear();
        }
    }
}

fn pairs(db: &Db, back: bool) -> (Vec<Vec<u8>>, u64) {
    let before = db.metrics().scan_entry_count;
    let iter = db.iter().unwrap();
    let take = |pair: terrace::Result<terrace::KeyValue>| pair.unwrap().into_pair().0;
    let mut keys: Vec<Vec<u8>> = match back {
        false => iter.map(take).collect(),
        true => iter.rev().map(take).collect(),
    };
    if back {
        keys.reverse();
    }
    (keys, db.metrics().scan_entry_count - before)
}

fn check_scans(db: &Db, expected: &[Vec<u8>], steps_max: u64, when: &str) {
    for back in [false, true] {
        let (found, steps) = pairs(db, back);
        assert_eq!(found, expected, "{when}, back {back}");
        assert!(steps <= steps_max, "{steps} steps {when}, back {back}");
    }
    let problems = db.verify(&mut |_| {}).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new(), "{when}");
}

/// After a million keys were deleted at once, wherever they are, a scan passes them in some hundred
/// steps and finds what was written among them since.
#[test]
fn a_scan_passes_a_million_deleted_keys_in_few_steps() {
    for (design, memtable_bytes) in [
        (Design::MioDb, 128 << 20),
        (Design::MioDb, 8 << 20),
        (Design::MioDbSsd, 8 << 20),
        (Design::Leveled, 8 << 20),
    ] {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(design, Medium::Dax);
        options.pool.size_bytes = 3 << 29;
        options.front.memtable_bytes = memtable_bytes;
        options.bottom.extent_bytes = 1 << 20;
        options.bottom.leveled = Options::default().bottom.leveled;
        let db = Db::open(folder.path(), options).unwrap();
        load(&db, 1_000_000, b"v");
        db.put("a", "first").unwrap();
        db.put("z", "last").unwrap();
        db.delete_range("b".."y").unwrap();
        let mut left = vec![b"a".to_vec(), b"z".to_vec()];
        let when = |what: &str| format!("{what}, {design}, memtables of {memtable_bytes}");
        check_scans(&db, &left, 400, &when("at once"));
        for n in [0, 77_777, 500_000, 999_999] {
            db.put(key(n), "again").unwrap();
            left.insert(left.len() - 1, key(n).to_vec());
        }
        check_scans(&db, &left, 800, &when("with some written again"));
        assert_eq!(db.get(key(5)).unwrap(), None);
        db.flush().unwrap();
        check_scans(&db, &left, 800, &when("flushed"));
        db.drain().unwrap();
        check_scans(&db, &left, 200, &when("drained"));
        let gone = db.metrics().range_delete_count == 0;
        assert!(gone || design.keeps_table_files(), "{}", when("drained"));
    }
}

fn kept_bytes(db: &Db) -> u64 {
    let metrics = db.metrics();
    let files: u64 = metrics.files.iter().map(|level| level.bytes).sum();
    files + metrics.bottom.used_bytes - metrics.bottom.dead_bytes
}

/// The space of the keys that a range delete covers is freed without another write, but not before
/// the release of the snapshot that reads them.
#[test]
fn the_space_of_a_deleted_range_comes_back() {
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Mapped] {
            let folder = scratch().unwrap();
            let mut options = settings::small_of(design, medium);
            options.pool.size_bytes = 16 << 20;
            let db = Db::open(folder.path(), options.clone()).unwrap();
            load(&db, 4000, &[b'v'; 200]);
            db.drain().unwrap();
            let full = kept_bytes(&db);
            let extents = db.metrics().bottom.bytes;
            let snapshot = db.snapshot().unwrap();
            db.delete_range(key(100)..key(3900)).unwrap();
            db.drain().unwrap();
            let when = format!("{design} on {medium}");
            assert_eq!(snapshot.iter().unwrap().count(), 4000, "{when}");
            assert_eq!(snapshot.iter().unwrap().rev().count(), 4000, "{when}");
            assert_eq!(snapshot.get(key(200)).unwrap(), Some(vec![b'v'; 200]));
            assert_eq!(db.get(key(200)).unwrap(), None);
            assert_eq!(db.iter().unwrap().count(), 200, "{when}");
            drop(snapshot);
            db.drain().unwrap();
            let kept = kept_bytes(&db);
            assert!(kept * 8 < full, "{when}: {kept} of {full} bytes are kept");
            assert!(
                db.metrics().bottom.bytes <= extents / 3,
                "{when}: extents of {} of {extents} bytes are kept",
                db.metrics().bottom.bytes
            );
            let gone = db.metrics().range_delete_count == 0;
            assert!(gone || design.keeps_table_files(), "{when}");
            drop(db);
            let db = Db::open(folder.path(), options).unwrap();
            assert_eq!(db.iter().unwrap().count(), 200, "{when}, reopened");
            let problems = db.verify(&mut |_| {}).unwrap().problems;
            assert_eq!(problems, Vec::<String>::new(), "{when}");
        }
    }
}

/// A queue that repeatedly deletes all that was taken keeps a few deleted ranges rather than one
/// per round, with any concurrent readers, and wherever the ranges are.
#[test]
fn a_queue_keeps_few_deleted_ranges() {
    const COUNT: u32 = 4000;
    for (design, medium) in [
        (Design::MioDb, Medium::Dax),
        (Design::MioDbSsd, Medium::Dram),
        (Design::Leveled, Medium::Dram),
    ] {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(design, medium);
        options.pool.size_bytes = 64 << 20;
        let mut db = Db::open(folder.path(), options.clone()).unwrap();
        let mut snapshot = None;
        let mut pieces = 0;
        for n in 0..COUNT {
            db.put(key(n), [b'v'; 100]).unwrap();
            db.delete_range(..key(n.saturating_sub(10))).unwrap();
            pieces = pieces.max(db.metrics().range_delete_count);
            match n {
                500 => snapshot = Some(db.snapshot().unwrap()),
                1500 => db.flush().unwrap(),
                2500 => db.drain().unwrap(),
                3500 => {
                    let left = snapshot.take().unwrap().iter().unwrap().count();
                    assert_eq!(left, 11, "{design}");
                    drop(db);
                    db = Db::open(folder.path(), options.clone()).unwrap();
                }
                _ => {}
            }
        }
        assert!(pieces < 100, "{design}: {pieces} pieces");
        let expected: Vec<Vec<u8>> = (COUNT - 11..COUNT).map(|n| key(n).to_vec()).collect();
        check_scans(&db, &expected, 200, &format!("{design}"));
        db.drain().unwrap();
        check_scans(&db, &expected, 200, &format!("{design}, drained"));
    }
}

/// All bounds mean the same for deletes and scans: included, excluded, unbounded, empty and
/// reversed, up to the longest possible key.
#[test]
fn bounds_mean_the_same_for_deletes_and_scans() {
    use std::ops::Bound::{self, Excluded, Included, Unbounded};
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), settings::small(Medium::Dax)).unwrap();
    let longest = vec![b'b'; terrace::KEY_BYTES_MAX];
    let last = vec![0xff; terrace::KEY_BYTES_MAX];
    let keys: Vec<&[u8]> = vec![
        b"", b"\0", b"a", b"a\0", b"b", &longest, b"c", b"\xff", &last,
    ];
    let mut bounds: Vec<Bound<&[u8]>> = vec![Unbounded];
    bounds.extend(keys.iter().flat_map(|key| [Included(*key), Excluded(*key)]));
    for low in &bounds {
        for high in &bounds {
            for key in &keys {
                db.put(key, "v").unwrap();
            }
            let range = || (low.map(<[u8]>::to_vec), high.map(<[u8]>::to_vec));
            let before = db.iter().unwrap().count();
            let inside = db.range(range()).unwrap().count();
            db.delete_range(range()).unwrap();
            assert_eq!(db.range(range()).unwrap().count(), 0);
            assert_eq!(db.iter().unwrap().count(), before - inside);
            assert_eq!(db.iter().unwrap().rev().count(), before - inside);
        }
    }
    let too_long = vec![b'k'; terrace::KEY_BYTES_MAX + 1];
    let refused = db.delete_range(too_long..).unwrap_err();
    assert_eq!(refused.kind(), terrace::ErrorKind::Invalid);
}

/// In a batch a range delete covers what comes before it, and not what comes after it. All of the
/// batch shows, or nothing.
#[test]
fn batches_with_range_deletes_are_in_order() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), settings::small(Medium::Dax)).unwrap();
    let other = db.create_keyspace("other").unwrap();
    other.put("b", "other").unwrap();
    let mut batch = WriteBatch::new();
    batch.put("a", "1").put("b", "1").delete_range("a".."c");
    batch.put("b", "2").delete_range_in(&other, "x"..);
    db.write(batch, Durability::Sync).unwrap();
    for _ in 0..2 {
        assert_eq!(db.get("a").unwrap(), None);
        assert_eq!(db.get("b").unwrap(), Some(b"2".to_vec()));
        assert_eq!(other.get("b").unwrap(), Some(b"other".to_vec()));
        db.drain().unwrap();
    }
    db.drop_keyspace("other").unwrap();
    let refused = other.delete_range("a"..).unwrap_err();
    assert_eq!(refused.kind(), terrace::ErrorKind::Invalid);
}

/// A range whose ends are keys of the maximum length deletes the keys in it and nothing else, and
/// verify reports no problem with it wherever it is stored.
#[test]
fn ranges_may_end_at_the_longest_keys() {
    use std::ops::Bound::{Excluded, Included};
    let key = |byte: u8, len: usize| {
        let mut key = vec![b'k'; len];
        key[len - 1] = byte;
        key
    };
    let longest = terrace::KEY_BYTES_MAX;
    let keys = [
        key(b'a', longest - 1),
        key(b'a', longest),
        key(b'b', longest),
        key(0xff, longest),
        vec![0xff; longest],
    ];
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Dram] {
            for (from, to) in [(0, 0), (0, 1), (1, 2), (1, 3), (3, 4), (4, 4)] {
                for bounds in [
                    (Included(&keys[from]), Included(&keys[to])),
                    (Excluded(&keys[from]), Included(&keys[to])),
                    (Included(&keys[from]), Excluded(&keys[to])),
                ] {
                    let folder = scratch().unwrap();
                    let mut options = settings::small_of(design, medium);
                    options.pool.size_bytes = 8 << 20;
                    let db = Db::open(folder.path(), options).unwrap();
                    keys.iter().for_each(|key| db.put(key, "value").unwrap());
                    db.flush().unwrap();
                    db.delete_range::<Vec<u8>>(bounds).unwrap();
                    let left = keys.iter().filter(|key| !bounds_have(&bounds, key));
                    let left: Vec<&Vec<u8>> = left.collect();
                    for _ in 0..3 {
                        let found = db.iter().unwrap().map(|pair| pair.unwrap().into_pair().0);
                        let mut found: Vec<Vec<u8>> = found.collect();
                        found.sort_by_key(|key| keys.iter().position(|known| known == key));
                        assert!(
                            found.iter().eq(left.iter().copied()),
                            "{design} on {medium}"
                        );
                        let problems = db.verify(&mut |_| {}).unwrap().problems;
                        assert_eq!(problems, Vec::<String>::new(), "{design} on {medium}");
                        db.flush().unwrap();
                        if !db.step(0).unwrap() {
                            db.drain().unwrap();
                        }
                    }
                }
            }
        }
    }
}

fn bounds_have(bounds: &impl std::ops::RangeBounds<Vec<u8>>, key: &Vec<u8>) -> bool {
    bounds.contains(key)
}

fn put(n: u8, tag: u64) -> Entry {
    Entry {
        space: 0,
        key: Key(vec![b'a' + n]),
        value: Some(Value { tag, len: 60 }),
        until: None,
        ttl: None,
    }
}

fn delete(from: u8, to: u8) -> Entry {
    Entry {
        space: 0,
        key: Key(vec![b'a' + from]),
        value: None,
        until: Some(Key(vec![b'a' + to])),
        ttl: None,
    }
}

/// After a crash at any persist point of flushes, merges, drains and sweeps with range deletes,
/// deleted keys stay deleted and no others are.
#[test]
fn range_deletes_survive_a_crash_at_every_point() {
    let write = |entries| Op::Write(entries, Durability::Buffered);
    let mut script = Vec::new();
    for round in 0..2 {
        let tag = 100 * (round + 1);
        script.extend([
            write((0..12).map(|n| put(n, tag + u64::from(n))).collect()),
            Op::Flush,
            write(vec![delete(2, 9)]),
            write(vec![put(4, tag + 50)]),
            Op::Flush,
            write(vec![delete(0, 4), put(1, tag + 51), delete(5, 6)]),
            Op::Step(round as u32, 6),
            Op::Drain,
            write(vec![put(7, tag + 52)]),
            Op::Reopen(round == 0, 0),
        ]);
    }
    for (design, medium) in [
        (Design::MioDb, Medium::Dax),
        (Design::MioDb, Medium::Mapped),
        (Design::MioDbSsd, Medium::Dax),
        (Design::Leveled, Medium::Mapped),
    ] {
        let (case, _) = Case::every_point(1, medium);
        if let Err(failure) = case.of(design).run(&script) {
            panic!("{design} on {medium}: {failure}");
        }
    }
}
