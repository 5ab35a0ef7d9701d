//! Tests of the manifest in crashes, at every persist point and with any surviving bytes, and with
//! faults.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use terrace_media::{
    Backing, Machine, Medium, Pool, PoolConfig, PoolFaults, Prefault, Span, Survive,
};

use super::items::OWNERS;
use super::{DB, Editor};
use crate::parts::manifest::state::State;
use crate::parts::manifest::{Change, Edit, LogPlace, Manifest, ManifestError};
use crate::types::SEQ_MAX;

fn config(machine: &Machine) -> PoolConfig {
    PoolConfig {
        prefault: Prefault::None,
        grow_bytes: 64 << 10,
        granule: 4 << 10,
        ..PoolConfig::new(Backing::Simulated(machine.clone()), 8 << 20)
    }
}

/// Opens the manifest of a machine, commits one more edit, reopens it, and returns the state found
/// first.
fn recover(machine: &Machine) -> State {
    let found = {
        let pool = Pool::open(config(machine)).unwrap();
        let manifest = Manifest::open(&pool, OWNERS).unwrap_or_else(|e| panic!("{e}"));
        let found = manifest.state();
        let lost = Machine::boot(machine.crash_image(Survive::None), 1);
        let pool = Pool::open(config(&lost)).unwrap();
        let after = Manifest::open(&pool, OWNERS)
            .unwrap_or_else(|e| panic!("{e}"))
            .state();
        assert_eq!(after, found, "records found once stay");
        manifest
            .commit(Edit::of(Change::LastSeq { seq: SEQ_MAX }))
            .unwrap();
        manifest.verify().unwrap();
        found
    };
    let pool = Pool::open(config(machine)).unwrap();
    let again = Manifest::open(&pool, OWNERS).unwrap_or_else(|e| panic!("{e}"));
    let mut expected = found.clone();
    (expected.last_seq, expected.closed) = (SEQ_MAX, false);
    assert_eq!(again.state(), expected);
    found
}

/// After a crash at any fence or sync, of edits and of compactions and with any surviving bytes, a
/// reopened manifest has the state before or after the edit in flight and takes edits.
#[test]
fn edits_are_atomic() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let machine = Machine::new(91, medium);
        let pool = Pool::create(config(&machine)).unwrap();
        let manifest = Manifest::create(&pool, DB, 8 << 10, OWNERS).unwrap();
        // The states before and after the edit in flight.
        let between = Arc::new(Mutex::new((State::default(), State::default())));
        let crashes = Arc::new(AtomicU64::new(0));
        let (states, count) = (Arc::clone(&between), Arc::clone(&crashes));
        machine.on_persist(Some(Box::new(move |machine, point| {
            let (before, after) = &*states.lock().unwrap();
            let mut survivals = vec![Survive::None, Survive::All];
            survivals.extend((0..4).map(|i| Survive::Random(point.index * 4 + i)));
            let mut images: Vec<_> = survivals
                .into_iter()
                .map(|s| (format!("{s:?}"), machine.crash_image(s)))
                .collect();
            images.push(("process".into(), machine.process_image()));
            for (survive, image) in images {
                let found = recover(&Machine::boot(image, point.index));
                assert!(
                    &found == before || &found == after,
                    "{medium} {point:?} {survive}"
                );
                count.fetch_add(1, Ordering::Relaxed);
            }
        })));
        let mut editor = Editor::new(92);
        let mut state = State::default();
        for _ in 0..300 {
            let (edit, after) = editor.edit(&state);
            *between.lock().unwrap() = (state.clone(), after.clone());
            manifest.commit(edit).unwrap();
            state = after;
            *between.lock().unwrap() = (state.clone(), state.clone());
        }
        machine.on_persist(None);
        assert!(manifest.generation() > 3, "compactions were crashed at");
        let image = machine.crash_image(Survive::None);
        assert_eq!(
            recover(&Machine::boot(image, 1)),
            state,
            "committed edits are durable"
        );
        println!("{medium}: {} crashes", crashes.load(Ordering::Relaxed));
    }
}

/// After a crash anywhere in `create`, the pool has no manifest or an empty one, and one can be
/// created again.
#[test]
fn creation_is_atomic() {
    let machine = Machine::new(93, Medium::Dax);
    let pool = Pool::create(config(&machine)).unwrap();
    machine.on_persist(Some(Box::new(|machine, point| {
        for survive in [Survive::None, Survive::All, Survive::Random(point.index)] {
            let after = Machine::boot(machine.crash_image(survive), 1);
            let pool = Pool::open(config(&after)).unwrap();
            match Manifest::open(&pool, OWNERS) {
                Ok(manifest) => assert_eq!(manifest.state(), State::default()),
                Err(ManifestError::Corrupt(_)) => assert_eq!(pool.root(0), 0),
                Err(e) => panic!("{e}"),
            }
            drop(pool);
            let pool = Pool::open(config(&after)).unwrap();
            Manifest::create(&pool, DB, 8 << 10, OWNERS)
                .unwrap()
                .verify()
                .unwrap();
        }
    })));
    Manifest::create(&pool, DB, 8 << 10, OWNERS).unwrap();
    assert!(machine.points() >= 2);
}

/// After a manifest is created over an abandoned one, no edit of the earlier one comes back.
#[test]
fn created_again_is_empty() {
    let machine = Machine::new(97, Medium::Dax);
    drop(Pool::create(config(&machine)).unwrap());
    for round in 0..3 {
        let pool = Pool::open(config(&machine)).unwrap();
        let manifest = Manifest::create(&pool, DB, 8 << 10, OWNERS).unwrap();
        let first = manifest.spans()[0].off;
        assert_eq!(first, pool.root(0));
        for id in 0..10 - round {
            let place = LogPlace::File;
            manifest
                .commit(Edit::of(Change::LogCreated { id, place }))
                .unwrap();
        }
        drop((manifest, pool));
        let pool = Pool::open(config(&machine)).unwrap();
        let manifest = Manifest::open(&pool, OWNERS).unwrap();
        assert_eq!(manifest.state().logs.len() as u64, 10 - round);
        drop((manifest, pool));
        let pool = Pool::open(config(&machine)).unwrap();
        let manifest = Manifest::create(&pool, DB, 8 << 10, OWNERS).unwrap();
        assert_eq!(
            manifest.spans()[0].off,
            first,
            "the same extent is used again"
        );
        drop((manifest, pool));
        let pool = Pool::open(config(&machine)).unwrap();
        assert_eq!(
            Manifest::open(&pool, OWNERS).unwrap().state(),
            State::default()
        );
    }
}

/// Growth to larger extents is atomic too, and frees the old ones.
#[test]
fn growth_is_atomic() {
    let machine = Machine::new(94, Medium::Dax);
    let pool = Pool::create(config(&machine)).unwrap();
    let manifest = Manifest::create(&pool, DB, 8 << 10, OWNERS).unwrap();
    let known = Arc::new(AtomicU64::new(0));
    let acknowledged = Arc::clone(&known);
    machine.on_persist(Some(Box::new(move |machine, point| {
        for survive in [Survive::None, Survive::All, Survive::Random(point.index)] {
            let found = recover(&Machine::boot(machine.crash_image(survive), 1));
            let least = acknowledged.load(Ordering::Relaxed);
            let count = found.logs.len() as u64;
            assert!(
                (least..=least + 1).contains(&count),
                "{point:?} {survive:?}"
            );
        }
    })));
    for id in 1..=800 {
        let off = id << 40;
        let place = LogPlace::Pool(Span { off, len: 1 << 40 });
        manifest
            .commit(Edit::of(Change::LogCreated { id, place }))
            .unwrap();
        known.store(id, Ordering::Relaxed);
    }
    assert!(
        manifest.spans()[0].len > 8 << 10,
        "the state outgrew its extent"
    );
    let used: u64 = manifest.spans().iter().map(|s| s.len).sum();
    assert_eq!(pool.usage().allocated, used);
}

/// If the n-th sync fails, for every n, the commit reports it, all later ones fail with the first
/// cause, no extent becomes free, and reopening finds the state before or after the failed edit.
#[test]
fn failed_syncs_stay() {
    let mut n = 0;
    loop {
        n += 1;
        let machine = Machine::new(95, Medium::Mapped);
        let faults = PoolFaults::new();
        let config = PoolConfig {
            faults: Some(Arc::clone(&faults)),
            ..config(&machine)
        };
        let pool = Pool::create(config).unwrap();
        let manifest = Manifest::create(&pool, DB, 8 << 10, OWNERS).unwrap();
        faults.fail_sync(n, io::ErrorKind::Other, false);
        let extent = pool.alloc(4096).unwrap();
        let mut editor = Editor::new(96);
        let mut states = BTreeMap::from([(0, State::default())]);
        let mut failed = None;
        for i in 0..120 {
            let state = states[&i].clone();
            let (edit, after) = editor.edit(&state);
            match manifest.commit(edit) {
                Ok(()) => assert_eq!(manifest.state(), after),
                Err(ManifestError::Io(_) | ManifestError::Pool(_)) => {
                    assert_eq!(manifest.state(), state);
                    failed = Some((state, after));
                    break;
                }
                Err(e) => panic!("{e}"),
            }
            states.insert(i + 1, after);
        }
        let Some((before, after)) = failed else {
            assert!(manifest.generation() > 1, "compaction was reached");
            break;
        };
        let again = manifest.commit(Edit::of(Change::LastSeq { seq: 1 }));
        assert!(matches!(again, Err(ManifestError::Failed(_))), "{again:?}");
        // Nothing on the medium is damaged, and the failed edit may be there or not.
        manifest.verify().unwrap();
        // The failed edit may name the extent.
        let allocated = pool.usage().allocated;
        drop(extent);
        assert_eq!(pool.usage().allocated, allocated, "sync {n}");
        drop((manifest, pool));
        for survive in [Survive::None, Survive::All, Survive::Random(n)] {
            let found = recover(&Machine::boot(machine.crash_image(survive), 1));
            assert!(found == before || found == after, "sync {n}, {survive:?}");
        }
    }
    assert!(n > 20);
}
