//! Full pools whose free space is fragmented, or waits for deletes that are in memory: puts
//! continue nevertheless.

use std::collections::BTreeSet;

use terrace::{Db, ErrorKind, Workers};
use terrace_media::Medium;
use terrace_testkit::place::scratch;
use terrace_testkit::{seeds, settings};

use crate::space::{fill, options};

/// A full pool accepts puts again after single deletes, without a call that flushes them.
#[test]
fn single_deletes_give_a_full_pool_back() {
    for medium in [Medium::Dax, Medium::Dram] {
        for workers in [Workers::Manual, Workers::Threads(2)] {
            let folder = scratch().unwrap();
            let mut options = settings::small(medium);
            options.pool.size_bytes = 4 << 20;
            options.front.memtable_bytes = 128 << 10;
            options.background.workers = workers;
            let db = Db::open(folder.path(), options).unwrap();
            let put = |n: u32| db.put(n.to_be_bytes(), vec![n as u8; 20_000]);
            let mut live = BTreeSet::new();
            let mut keys = 0..;
            for round in 0..6 {
                let refused = keys.by_ref().find_map(|n| {
                    let refused = put(n).err();
                    if refused.is_none() {
                        live.insert(n);
                    }
                    refused
                });
                assert_eq!(refused.unwrap().kind(), ErrorKind::Full);
                let place = format!("{medium:?}, {workers:?}, round {round}");
                assert!(live.len() > 60, "{place}: {} values are all", live.len());
                let gone: Vec<u32> = live.iter().copied().filter(|n| n % 8 > 0).collect();
                for n in gone {
                    db.delete(n.to_be_bytes()).unwrap();
                    live.remove(&n);
                }
                for n in keys.by_ref().take(20) {
                    let usage = db.metrics().pool;
                    put(n).unwrap_or_else(|e| panic!("{place}: {e}, {usage:?}"));
                    live.insert(n);
                }
            }
            for n in live {
                let found = db.get(n.to_be_bytes()).unwrap();
                assert_eq!(found, Some(vec![n as u8; 20_000]), "key {n}");
            }
            let verified = db.verify(&mut |_| {}).unwrap();
            assert_eq!(verified.problems, Vec::<String>::new());
        }
    }
}

/// A drain that needs a longer free range than any available one has the fragments joined, even if
/// puts have no space to request that.
#[test]
fn drains_have_free_space_joined() {
    for workers in [Workers::Manual, Workers::Threads(2)] {
        let folder = scratch().unwrap();
        let mut options = settings::small(Medium::Dram);
        options.pool.size_bytes = 8 << 20;
        options.front.memtable_bytes = 320 << 10;
        options.background.workers = workers;
        let db = Db::open(folder.path(), options).unwrap();
        let put = |n: u32, bytes: usize| db.put(n.to_be_bytes(), vec![n as u8; bytes]);
        let full = |n: &u32, bytes| put(*n, bytes).is_err();
        // Leaves fragments of 24 KiB between values, and no long free range.
        let count = (0..).find(|n| full(n, 12_000)).unwrap();
        db.drain().unwrap();
        for n in (0..count).filter(|n| n % 3 > 0) {
            db.delete(n.to_be_bytes()).unwrap();
        }
        db.drain().unwrap();
        let end = (count..).find(|n| full(n, 100_000)).unwrap();
        for n in (0..count).step_by(3) {
            db.delete(n.to_be_bytes()).unwrap();
        }
        for n in end..end + 5 {
            let usage = db.metrics().pool;
            put(n, 100_000).unwrap_or_else(|e| {
                panic!(
                    "{workers:?}, {count} of 12 KB, {} of 100 KB: {e}, {usage:?}",
                    n - count
                )
            });
        }
        db.drain().unwrap();
        assert_eq!(db.iter().unwrap().count(), (end + 5 - count) as usize);
        let verified = db.verify(&mut |_| {}).unwrap();
        assert_eq!(verified.problems, Vec::<String>::new());
    }
}

/// Free space fragmented by live data is joined before puts are refused permanently.
#[test]
fn free_space_in_pieces_is_joined() {
    for workers in [Workers::Manual, Workers::Threads(2)] {
        let folder = scratch().unwrap();
        let mut options = options(workers);
        options.pool.size_bytes = 8 << 20;
        options.front.memtable_bytes = 8 << 10;
        let extent = u32::try_from(options.bottom.extent_bytes).unwrap();
        let db = Db::open(folder.path(), options.clone()).unwrap();
        let count = fill(&db);
        db.drain().unwrap();
        // Keys are in order in extents, so that one extent of four stays, or its data that has
        // moved meanwhile.
        let keys = extent / 1000 + 1;
        for from in (0..count).step_by(4 * keys as usize) {
            let range = from.to_be_bytes()..(from + 3 * keys).to_be_bytes();
            db.delete_range(range).unwrap();
        }
        db.drain().unwrap();
        db.close().unwrap();

        options.front.memtable_bytes = 640 << 10;
        let db = Db::open(folder.path(), options).unwrap();
        for round in 0..5u32 {
            for n in 0..20u32 {
                let key = [b"new".as_slice(), &round.to_be_bytes(), &n.to_be_bytes()].concat();
                let put = db.put(key, vec![1; 1000]);
                let usage = db.metrics().pool;
                assert!(
                    put.is_ok(),
                    "{workers:?}, round {round}: {put:?}, {usage:?}"
                );
            }
            db.flush().unwrap();
        }
        let kept = (0..count).filter(|n| n / keys % 4 == 3);
        assert_eq!(db.iter().unwrap().count(), kept.clone().count() + 100);
        for n in kept {
            let found = db.get(n.to_be_bytes()).unwrap();
            assert_eq!(found, Some(vec![n as u8; 1000]), "key {n}");
        }
        let verified = db.verify(&mut |_| {}).unwrap();
        assert_eq!(verified.problems, Vec::<String>::new());
    }
}

/// If values are larger than a memtable and no free range is long enough, a drain waits for space
/// that deletes in newer tables would free: the values that these hide are removed before they are
/// drained.
#[test]
fn deletes_behind_a_drain_that_waits_free_space() {
    for seed in seeds::seeds(4) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let folder = scratch().unwrap();
        let mut options = settings::small(Medium::Mapped);
        options.pool.size_bytes = 4 << 20;
        options.front.memtable_bytes = 25 << 10;
        options.bottom.extent_bytes = 32 << 10;
        if seed % 2 == 0 {
            options.background.workers = Workers::Threads(2);
        }
        let db = Db::open(folder.path(), options).unwrap();
        let mut live = BTreeSet::new();
        for round in 0..3 {
            let mut refused = 0;
            while refused < 8 {
                let key = rng.u32(..5000);
                match db.put(key.to_be_bytes(), vec![7; rng.usize(33_000..37_000)]) {
                    Ok(()) => drop(live.insert(key)),
                    Err(_) => refused += 1,
                }
            }
            let gone: Vec<u32> = live.iter().copied().filter(|key| key % 3 > 0).collect();
            for key in gone {
                db.delete(key.to_be_bytes()).unwrap();
                live.remove(&key);
            }
            for n in 0..600u32 {
                let key = [b"new".as_slice(), &n.to_be_bytes()].concat();
                // The first puts may come before the deleted data is gone.
                let put = (0..20).find_map(|_| db.put(&key, [n as u8; 1000]).ok());
                let usage = db.metrics().pool;
                assert!(
                    put.is_some(),
                    "seed {seed}, round {round}, put {n}: {usage:?}"
                );
            }
            for n in 0..600u32 {
                db.delete([b"new".as_slice(), &n.to_be_bytes()].concat())
                    .unwrap();
            }
        }
        assert_eq!(db.iter().unwrap().count(), live.len());
        let verified = db.verify(&mut |_| {}).unwrap();
        assert_eq!(verified.problems, Vec::<String>::new());
    }
}
