//! The conformance test of the adapters: one test for all stores.

use std::collections::BTreeMap;

use ::terrace::{Design, Durability, Options};

use super::{Direction, Session, Settle, Setup, Store, StoreKind};
use crate::error::BenchError;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(design: Option<Design>, durability: Durability) -> Options {
    let mut options = Options {
        design,
        durability,
        ..Options::default()
    };
    options.front.memtable_bytes = 256 << 10;
    if design == Some(Design::MioDb) {
        options.pool.path = Some("pool".into());
        options.pool.size_bytes = 256 << 20;
        options.bottom.extent_bytes = 1 << 20;
    }
    options
}

fn setup<'a>(folder: &'a std::path::Path, existing: bool, options: &'a Options) -> Setup<'a> {
    Setup {
        folder,
        existing,
        options,
        data_bytes: 16 << 20,
    }
}

fn key(rng: &mut fastrand::Rng) -> Vec<u8> {
    format!("key{:05}", rng.u32(0..2000)).into_bytes()
}

fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = match rng.u32(0..20) {
        0 => 0,
        1 => 20_000,
        _ => rng.usize(1..300),
    };
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Checks that a scan of the store in both directions, and a get of every key, match the model.
fn compare(session: &mut dyn Session, model: &Model, rng: &mut fastrand::Rng) {
    let mut seen = Vec::new();
    let mut all = |direction, session: &mut dyn Session| {
        seen.clear();
        let see = &mut |key: &[u8], value: &[u8]| {
            seen.push((key.to_vec(), value.to_vec()));
            true
        };
        session.scan(None, direction, see).expect("a scan");
        if direction == Direction::Backward {
            seen.reverse();
        }
        let expected: Vec<_> = model.clone().into_iter().collect();
        assert_eq!(seen.len(), expected.len(), "{direction:?}");
        assert!(seen == expected, "{direction:?}");
    };
    all(Direction::Forward, session);
    all(Direction::Backward, session);
    for _ in 0..500 {
        let key = key(rng);
        let mut found = None;
        let there = session.get(&key, &mut |value| found = Some(value.to_vec()));
        assert_eq!(there.expect("a get"), model.contains_key(&key));
        assert_eq!(found.as_ref(), model.get(&key), "{}", key.escape_ascii());
    }
    for _ in 0..200 {
        let (from, limit) = (key(rng), rng.usize(1..20));
        let mut seen = Vec::new();
        let mut see = |key: &[u8], _: &[u8]| {
            seen.push(key.to_vec());
            seen.len() < limit
        };
        let expected: Vec<Vec<u8>> = if rng.bool() {
            let scanned = session.scan(Some(&from), Direction::Forward, &mut see);
            scanned.expect("a scan");
            model
                .range(from..)
                .take(limit)
                .map(|(k, _)| k.clone())
                .collect()
        } else {
            let scanned = session.scan(Some(&from), Direction::Backward, &mut see);
            scanned.expect("a scan");
            let below = model.range(..=from).rev();
            below.take(limit).map(|(k, _)| k.clone()).collect()
        };
        assert_eq!(seen, expected);
    }
}

fn change(session: &mut dyn Session, model: &mut Model, rng: &mut fastrand::Rng) {
    match rng.u32(0..10) {
        0..6 => {
            let (key, value) = (key(rng), value(rng));
            session.put(&key, &value).expect("a put");
            model.insert(key, value);
        }
        6..8 => {
            let key = key(rng);
            session.delete(&key).expect("a delete");
            model.remove(&key);
        }
        _ => {
            for _ in 0..rng.u32(1..10) {
                let key = key(rng);
                if rng.u32(0..3) > 0 {
                    let value = value(rng);
                    session.batch_put(&key, &value).expect("a put of a batch");
                    model.insert(key, value);
                } else {
                    session.batch_delete(&key).expect("a delete of a batch");
                    model.remove(&key);
                }
            }
            session.commit().expect("a batch");
        }
    }
}

/// Checks that random calls match an ordered map, between waits for background work and after
/// reopening.
fn conforms(kind: StoreKind, options: &Options, seed: u64) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let folder = folder.path().join("store");
    std::fs::create_dir(&folder).expect("a directory");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut model = Model::new();
    for round in 0..3 {
        let store = kind
            .open(&setup(&folder, round > 0, options))
            .expect("it opens");
        let about = store.about();
        for said in [
            &about.name,
            &about.medium,
            &about.durability,
            &about.settings,
        ] {
            assert!(!said.is_empty(), "{about:?}");
        }
        let mut session = store.session().expect("a session");
        compare(session.as_mut(), &model, &mut rng);
        for how in [Settle::Flush, Settle::Drain, Settle::Rest] {
            for _ in 0..600 {
                change(session.as_mut(), &mut model, &mut rng);
            }
            compare(session.as_mut(), &model, &mut rng);
            store.settle(how).expect("it settles");
            compare(session.as_mut(), &model, &mut rng);
        }
        drop(session);
        store.close().expect("it closes");
    }
}

/// Checks that several threads, each with its session, see their own writes and, at the end, all
/// writes.
fn is_shared(store: &dyn Store) {
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            scope.spawn(move || {
                let mut session = store.session().expect("a session");
                for i in 0..500u32 {
                    let key = format!("{thread}/{i:04}").into_bytes();
                    session.put(&key, &i.to_le_bytes()).expect("a put");
                    let mut right = false;
                    let see = &mut |value: &[u8]| right = value == i.to_le_bytes();
                    assert!(session.get(&key, see).expect("a get") && right);
                }
            });
        }
    });
    let mut count = 0;
    let mut session = store.session().expect("a session");
    let see = &mut |_: &[u8], _: &[u8]| {
        count += 1;
        true
    };
    session.scan(None, Direction::Forward, see).expect("a scan");
    assert_eq!(count, 1500);
}

fn every_way(kind: StoreKind, design: Option<Design>) {
    for durability in [Durability::Buffered, Durability::Sync] {
        conforms(kind, &options(design, durability), 1 + durability as u64);
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let options = options(design, Durability::Volatile);
    let store = kind
        .open(&setup(folder.path(), false, &options))
        .expect("it opens");
    is_shared(store.as_ref());
    store.close().expect("it closes");
}

/// Every design of Terrace conforms.
#[test]
fn terrace_conforms() {
    for design in Design::ALL {
        every_way(StoreKind::Terrace, Some(design));
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn rocksdb_conforms() {
    every_way(StoreKind::RocksDb, None);
}

#[cfg(feature = "redb")]
#[test]
fn redb_conforms() {
    every_way(StoreKind::Redb, None);
}

#[cfg(feature = "leveldb")]
#[test]
fn leveldb_conforms() {
    every_way(StoreKind::LevelDb, None);
}

#[cfg(feature = "lmdb")]
#[test]
fn lmdb_conforms() {
    every_way(StoreKind::Lmdb, None);
}

#[cfg(feature = "fjall")]
#[test]
fn fjall_conforms() {
    every_way(StoreKind::Fjall, None);
}

#[cfg(feature = "sled")]
#[test]
fn sled_conforms() {
    every_way(StoreKind::Sled, None);
}

/// The store that does nothing says so, and contains nothing.
#[test]
fn empty_is_empty() {
    let options = options(None, Durability::Buffered);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let opened = StoreKind::Empty.open(&setup(folder.path(), false, &options));
    let store = opened.expect("it opens");
    let mut session = store.session().expect("a session");
    session.put(b"a", b"b").expect("a put");
    assert!(!session.get(b"a", &mut |_| ()).expect("a get"));
    assert!(store.about().name.contains("nothing"));
}

/// Names are parsed, and a store that is not in this build is refused with a hint.
#[test]
fn names_are_understood() {
    for kind in StoreKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        if kind.is_built() {
            continue;
        }
        let options = options(None, Durability::Buffered);
        let folder = tempfile::tempdir().expect("a temporary directory");
        let opened = kind.open(&setup(folder.path(), false, &options));
        let Err(BenchError::Invalid(problem)) = opened.map(|_| ()) else {
            panic!("{kind} is not built and opens");
        };
        assert!(problem.contains(&format!("--features {kind}")), "{problem}");
    }
    let problem = "nodb".parse::<StoreKind>().expect_err("it does not exist");
    assert!(problem.contains("terrace"), "{problem}");
}
