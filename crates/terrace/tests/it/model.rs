//! Random calls against an ordered map: after any sequence of them, both say the same.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrace::{Db, Durability, Options, WriteBatch};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = rng.usize(0..6);
    (0..len).map(|_| b"abc\xff"[rng.usize(0..4)]).collect()
}

fn random_value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = match rng.u8(0..20) {
        0 => rng.usize(0..6000),
        1..4 => 0,
        _ => rng.usize(0..200),
    };
    let byte = rng.u8(..);
    vec![byte; len]
}

fn pairs(iter: terrace::Iter) -> Vec<(Vec<u8>, Vec<u8>)> {
    iter.map(|pair| pair.unwrap().into_pair()).collect()
}

fn check_scans(rng: &mut fastrand::Rng, db: &Db, map: &Map) {
    let (a, b) = (random_key(rng), random_key(rng));
    let (low, high) = if a <= b { (a, b) } else { (b, a) };
    let bounds = (Bound::Included(low), Bound::Excluded(high));
    let expected: Vec<_> = map
        .range::<Vec<u8>, _>(bounds.clone())
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    assert_eq!(pairs(db.range(bounds.clone()).unwrap()), expected);
    let mut reversed: Vec<_> = db
        .range(bounds)
        .unwrap()
        .rev()
        .map(|pair| pair.unwrap().into_pair())
        .collect();
    reversed.reverse();
    assert_eq!(reversed, expected);
}

fn run(seed: u64, options: Options, calls: usize) {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut map = Map::new();
    let mut snapshots: Vec<(terrace::Snapshot, Map)> = Vec::new();
    let mut db = Db::open(folder.path(), options.clone()).unwrap();
    for call in 0..calls {
        match rng.u8(0..100) {
            0..40 => {
                let (key, value) = (random_key(&mut rng), random_value(&mut rng));
                db.put(&key, &value).unwrap();
                map.insert(key, value);
            }
            40..52 => {
                let key = random_key(&mut rng);
                db.delete(&key).unwrap();
                map.remove(&key);
            }
            52..60 => {
                let mut batch = WriteBatch::new();
                for _ in 0..rng.usize(0..12) {
                    let key = random_key(&mut rng);
                    if rng.u8(0..4) == 0 {
                        batch.delete(&key);
                        map.remove(&key);
                    } else {
                        let value = random_value(&mut rng);
                        batch.put(&key, &value);
                        map.insert(key, value);
                    }
                }
                db.write(batch, Durability::Buffered).unwrap();
            }
            60..75 => {
                let key = random_key(&mut rng);
                assert_eq!(
                    db.get(&key).unwrap().as_ref(),
                    map.get(&key),
                    "seed {seed} {call}"
                );
            }
            75..85 => {
                for _ in 0..rng.usize(0..20) {
                    let pick = rng.usize(..);
                    db.step(pick).unwrap();
                }
            }
            85..90 => check_scans(&mut rng, &db, &map),
            90..93 => {
                if snapshots.len() < 3 {
                    snapshots.push((db.snapshot().unwrap(), map.clone()));
                } else {
                    let at = rng.usize(..snapshots.len());
                    snapshots.swap_remove(at);
                }
            }
            93..97 => {
                for (snapshot, then) in &snapshots {
                    let expected: Vec<_> =
                        then.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
                    assert_eq!(
                        pairs(snapshot.iter().unwrap()),
                        expected,
                        "seed {seed} {call}"
                    );
                    let key = random_key(&mut rng);
                    assert_eq!(snapshot.get(&key).unwrap().as_ref(), then.get(&key));
                }
            }
            97 => db.flush().unwrap(),
            98 => {
                if snapshots.is_empty() {
                    db.drain().unwrap();
                }
            }
            _ => {
                snapshots.clear();
                if rng.bool() {
                    db.close().unwrap();
                }
                drop(db);
                db = Db::open(folder.path(), options.clone()).unwrap();
            }
        }
        if call % 500 == 0 {
            let report = db.verify(&mut |_| {}).unwrap();
            assert_eq!(
                report.problems,
                Vec::<String>::new(),
                "seed {seed} call {call}"
            );
            assert_eq!(
                report.live_entries,
                map.len() as u64,
                "seed {seed} call {call}"
            );
        }
    }
    let expected: Vec<_> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(pairs(db.iter().unwrap()), expected, "seed {seed}");
}

/// After random calls in random interleavings with background steps, the store equals the map.
#[test]
fn random_calls_agree_with_a_map() {
    for seed in 0..40 {
        println!("seed {seed}");
        run(seed, terrace::testing::small_options(), 2000);
    }
}
