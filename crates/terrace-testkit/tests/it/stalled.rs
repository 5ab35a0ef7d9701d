//! Reads that pause after taking their view, while a keyspace is dropped and purged.

use terrace::testing::in_the_next_call;
use terrace::{Db, Design, Durability, ErrorKind, Keyspace, Result, WriteBatch};
use terrace_media::Medium;
use terrace_testkit::place::scratch;
use terrace_testkit::{settings, stalled};

const KEYS: u8 = 200;

type Look = fn(&Db, &Keyspace) -> Result<usize>;

/// Every way to read, with the number of keys that it returns.
const LOOKS: [(&str, usize, Look); 7] = [
    ("get", 1, |_, space| {
        Ok(usize::from(space.get([9])?.is_some()))
    }),
    ("multi_get", 200, |_, space| {
        let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
        Ok(space.multi_get(&keys)?.iter().flatten().count())
    }),
    ("snapshot", 1, |db, space| {
        let found = db.snapshot()?.get_in(space, [9])?;
        Ok(usize::from(found.is_some()))
    }),
    ("snapshot, several", 200, |db, space| {
        let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
        let found = db.snapshot()?.multi_get_in(space, &keys)?;
        Ok(found.iter().flatten().count())
    }),
    ("iter", 200, |_, space| {
        space
            .iter()?
            .try_fold(0, |count, pair| pair.map(|_| count + 1))
    }),
    ("iter backward", 200, |_, space| {
        let mut pairs = space.iter()?.rev();
        pairs.try_fold(0, |count, pair| pair.map(|_| count + 1))
    }),
    ("range of a snapshot", 191, |db, space| {
        let mut pairs = db.snapshot()?.range_in(space, [9]..)?;
        pairs.try_fold(0, |count, pair| pair.map(|_| count + 1))
    }),
];

/// A read during the drop of its keyspace returns all of its content, or `Invalid`.
#[test]
fn a_read_that_stands_still_in_a_drop_sees_all_or_is_refused() {
    for (design, medium) in [
        (Design::MioDb, Medium::Dax),
        (Design::MioDb, Medium::Dram),
        (Design::MioDbSsd, Medium::Dram),
        (Design::Leveled, Medium::Dram),
    ] {
        for (name, all, look) in LOOKS {
            let folder = scratch().expect("a directory");
            let options = settings::small_of(design, medium);
            let db = Db::open(folder.path(), options).expect("a database");
            let space = db.create_keyspace("space").expect("a keyspace");
            let mut batch = WriteBatch::new();
            for key in 0..KEYS {
                batch.put_in(&space, [key], [7; 50]);
            }
            db.write(batch, Durability::Buffered).expect("a write");
            db.drain().expect("a drain");
            let meanwhile = db.clone();
            in_the_next_call(move || {
                meanwhile.drop_keyspace("space").expect("a drop");
                meanwhile.flush().expect("a flush");
                for _ in 0..1000 {
                    // A failure here stops the store, so the read reports it.
                    let _ = meanwhile.step(0);
                }
            });
            match look(&db, &space) {
                Ok(found) => assert_eq!(found, all, "{name}, {design} on {medium}"),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Invalid, "{name}, {design}: {e}"),
            }
        }
    }
}

/// Calls that pause while the store changes return exact results.
#[test]
fn calls_that_stand_still_are_exact() {
    for medium in [Medium::Dax, Medium::Mapped, Medium::Dram] {
        for seed in 0..12 {
            stalled::once(seed, medium).unwrap_or_else(|e| panic!("{medium}, seed {seed}: {e}"));
        }
    }
}
