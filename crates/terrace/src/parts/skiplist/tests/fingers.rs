//! Tests of fingers against a sorted model, with plans applied late and piece by piece.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Entry, Sample, awkward_entries};
use crate::parts::latch::Latch;
use crate::parts::skiplist::SkipList;
use crate::parts::skiplist::fingers::{Fingers, Plan};
use crate::parts::skiplist::layout::HEIGHT_MAX;
use crate::parts::skiplist::node::{height_for, link_at};
use crate::types::key_hash;

/// Planned stores that have not been applied.
#[derive(Default)]
struct Later {
    prepared: Vec<(u64, u64)>,
    stores: Vec<(u64, u64)>,
    /// The stores of settled plans, in the order in which to apply them.
    settled: VecDeque<(u64, u64)>,
}

impl Plan for Later {
    fn prepare(&mut self, off: u64, value: u64) {
        self.prepared.push((off, value));
    }

    fn store(&mut self, off: u64, value: u64) {
        self.stores.push((off, value));
    }
}

impl Later {
    /// Ends a batch, as a commit does.
    fn flush(&mut self, fingers: &mut Fingers) {
        fingers.flush(self);
        assert!(fingers.is_flushed());
        let batch = self.prepared.drain(..).chain(self.stores.drain(..));
        let batch: Vec<(u64, u64)> = batch.collect();
        let words: BTreeSet<u64> = batch.iter().map(|(off, _)| *off).collect();
        assert_eq!(words.len(), batch.len(), "a batch stores to a word once");
        self.settled.extend(batch);
    }

    /// Applies the first `count` of the settled stores and calls `seen` after each.
    fn make(&mut self, list: &SkipList, count: usize, seen: &dyn Fn()) {
        for _ in 0..count {
            let Some((off, value)) = self.settled.pop_front() else {
                return;
            };
            let word = list.region().word(off).unwrap();
            let before = word.swap(value, Ordering::Release);
            assert_ne!(before, value, "a store that changes nothing");
            seen();
        }
    }
}

/// Returns the nodes on one level.
fn level(list: &SkipList, level: usize) -> Vec<u64> {
    let mut offs = Vec::new();
    let mut at = list.next(list.head(), level).unwrap();
    while at != 0 {
        offs.push(at);
        at = list.next(at, level).unwrap();
    }
    offs
}

/// Checks the guarantees that readers have at any moment: the list is in order, and a search finds
/// the entries that exist both before and after the plan.
fn readable(list: &SkipList, stay: &BTreeMap<Entry, u64>) {
    list.check_growing(&mut |_, value| value.unwrap()).unwrap();
    for (entry, off) in stay {
        assert_eq!(list.seek(&entry.target()).unwrap().node, *off, "{entry:?}");
    }
}

/// Checks the guarantee between batches: every node of a level is also on the one below.
fn whole(list: &SkipList) {
    let mut below = level(list, 0);
    for n in 1..HEIGHT_MAX {
        let here = level(list, n);
        let mut rest = below.iter();
        for off in &here {
            assert!(
                rest.any(|b| b == off),
                "level {n} has a node that level {} has not there",
                n - 1
            );
        }
        below = here;
    }
}

/// Runs one pass of fingers over a list, inserting and removing nodes in key order.
fn pass(seed: u64, count: usize, watch: bool) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let sample = Sample::new(32 << 20);
    let list = &sample.list;
    let mut entries = awkward_entries(&mut rng, count, &AtomicU64::new(1));
    rng.shuffle(&mut entries);
    let news = entries.split_off(count / 2);
    let mut model: BTreeMap<Entry, u64> = entries
        .into_iter()
        .map(|e| {
            let off = sample.insert(&e);
            (e, off)
        })
        .collect();
    let mut news: Vec<(Entry, u8)> = news
        .into_iter()
        .map(|e| {
            let height = height_for(key_hash(e.keyspace, &e.key), e.seq.0);
            (e, height)
        })
        .collect();
    news.sort();
    let mut stay = model.clone();
    let seen = |stay: &BTreeMap<Entry, u64>| {
        if watch {
            readable(list, stay);
        }
    };

    let start = rng.bool().then(|| news[0].0.clone());
    let mut fingers = match &start {
        Some(entry) => Fingers::at(list, &entry.target()).unwrap(),
        None => Fingers::at_start(list).unwrap(),
    };
    let mut plan = Later::default();
    for (entry, height) in news {
        // Visits some of the nodes before the new node's place one by one.
        while rng.u32(..8) != 0 {
            let off = fingers.following();
            if off == 0 {
                break;
            }
            let next = Entry::of(&list.node(off).unwrap());
            if next > entry {
                break;
            }
            assert_eq!(
                model.get(&next),
                Some(&off),
                "the following nodes are in the list"
            );
            if rng.u32(..3) == 0 {
                fingers.unlink(list).unwrap();
                model.remove(&next);
                stay.remove(&next);
            } else {
                fingers.pass(list, &mut plan).unwrap();
            }
            plan.make(list, rng.usize(..4), &|| seen(&stay));
        }
        fingers.advance(list, &entry.target(), &mut plan).unwrap();
        let before = model.range(..entry.clone()).next_back();
        assert_eq!(
            fingers.before(0),
            before.map_or(list.head(), |(_, off)| *off)
        );
        let after = model.range(entry.clone()..).next();
        assert_eq!(fingers.following(), after.map_or(0, |(_, off)| *off));
        let off = sample.write(&entry, height);
        if rng.bool() {
            let held = [0; HEIGHT_MAX];
            fingers.insert(off, &held[..usize::from(height)], &mut plan);
        } else {
            for (level, link) in fingers.links(height).iter().enumerate() {
                let word = list.region().word(link_at(off, level)).unwrap();
                word.store(*link, Ordering::Release);
            }
            fingers.insert_linked(off, height, &mut plan);
        }
        assert_eq!(
            fingers.before(0),
            off,
            "fingers step on the nodes that they insert"
        );
        model.insert(entry, off);
        if rng.u32(..4) == 0 {
            if plan.settled.is_empty() {
                whole(list);
            }
            plan.flush(&mut fingers);
            let some = rng.usize(..=plan.settled.len());
            plan.make(list, some, &|| seen(&stay));
        }
    }
    // The rest of the list, to its end.
    while fingers.following() != 0 {
        if rng.u32(..3) == 0 {
            let off = fingers.following();
            let gone = Entry::of(&list.node(off).unwrap());
            model.remove(&gone);
            stay.remove(&gone);
            fingers.unlink(list).unwrap();
        } else {
            fingers.pass(list, &mut plan).unwrap();
        }
    }
    plan.flush(&mut fingers);
    plan.make(list, usize::MAX, &|| seen(&stay));
    whole(list);
    assert_eq!(sample.checked(), model.into_keys().collect::<Vec<_>>());
}

/// After a pass of insertions and removals, applied at arbitrary moments, the list equals the
/// model. After every single store the list was searchable, and no store was redundant.
#[test]
fn plans_may_come_true_late_and_in_pieces() {
    for seed in 0..150 {
        pass(seed, 60, true);
    }
    for seed in 0..20 {
        pass(1000 + seed, 1500, false);
    }
}

/// Merges nodes of height 1 by key, in one batch, with newer nodes replacing older ones. Returns
/// the number of stores, except those to the newer head.
fn merge_stores(newer: &[u32], older: &[u32]) -> usize {
    let sample = Sample::new(1 << 20);
    let list = &sample.list;
    let entry = |key: u32, seq| Entry::new(1, &key.to_be_bytes(), seq, b"");
    for &key in older {
        sample.insert_at_height(&entry(key, 1), 1);
    }
    let nodes: Vec<u64> = newer
        .iter()
        .map(|&key| sample.write(&entry(key, 2), 1))
        .collect();
    let link = |off| list.region().word(link_at(off, 0)).unwrap();
    for pair in nodes.windows(2) {
        link(pair[0]).store(pair[1], Ordering::Relaxed);
    }
    let mut plan = Later::default();
    let mut fingers = Fingers::at_start(list).unwrap();
    for (off, &key) in nodes.iter().zip(newer) {
        let target = entry(key, 2);
        fingers.advance(list, &target.target(), &mut plan).unwrap();
        let held = [link(*off).load(Ordering::Relaxed)];
        fingers.insert(*off, &held, &mut plan);
        if older.contains(&key) {
            fingers.unlink(list).unwrap();
        }
    }
    plan.flush(&mut fingers);
    let count = plan.settled.len();
    plan.make(list, usize::MAX, &|| {});
    let mut merged: Vec<Entry> = newer.iter().map(|&key| entry(key, 2)).collect();
    let kept = older.iter().filter(|key| !newer.contains(key));
    merged.extend(kept.map(|&key| entry(key, 1)));
    merged.sort();
    assert_eq!(sample.checked(), merged);
    count
}

/// A merge stores only links between nodes that were not neighbours before: a handful for disjoint
/// lists, one per node for lists that alternate.
#[test]
fn neighbours_that_stay_so_cost_no_store() {
    let low: Vec<u32> = (0..100).collect();
    let high: Vec<u32> = (100..200).collect();
    assert_eq!(merge_stores(&high, &low), 1, "behind all others");
    assert_eq!(merge_stores(&low, &high), 2, "before all others");
    assert_eq!(merge_stores(&[50, 51, 52], &[1, 2, 60, 61]), 2, "between");
    let even: Vec<u32> = low.iter().map(|key| 2 * key).collect();
    let odd: Vec<u32> = low.iter().map(|key| 2 * key + 1).collect();
    assert_eq!(merge_stores(&even, &odd), 200, "the old head included");
    assert_eq!(merge_stores(&odd, &even), 199);
    assert_eq!(merge_stores(&low, &low), 1, "all replaced");
    assert_eq!(
        merge_stores(&even[..50], &low),
        100,
        "every other one replaced"
    );
}

/// A reader on an unlinked node continues with the node that followed it (S3).
#[test]
fn unlinked_nodes_lead_on() {
    let sample = Sample::new(1 << 20);
    let list = &sample.list;
    let entries: Vec<Entry> = (0..8).map(|i| Entry::new(1, &[i], 1, b"")).collect();
    let offs: Vec<u64> = entries.iter().map(|e| sample.insert(e)).collect();
    let mut fingers = Fingers::at(list, &entries[2].target()).unwrap();
    let mut plan = Later::default();
    for _ in 0..3 {
        fingers.unlink(list).unwrap();
    }
    plan.flush(&mut fingers);
    plan.make(list, usize::MAX, &|| {});
    whole(list);
    for at in 2..5 {
        assert_eq!(list.next(offs[at], 0).unwrap(), offs[at + 1]);
    }
    assert_eq!(level(list, 0), [&offs[..2], &offs[5..]].concat());
}

/// A node missing on a level of its tower is an error, not a wrong link (S2).
#[test]
fn torn_towers_are_refused() {
    let sample = Sample::new(1 << 20);
    let list = &sample.list;
    sample.insert_at_height(&Entry::new(1, b"a", 1, b""), 4);
    let torn = sample.insert_at_height(&Entry::new(1, b"b", 1, b""), 4);
    for level in 0..4 {
        let first = list.next(list.head(), level).unwrap();
        let word = list.region().word(link_at(first, level)).unwrap();
        let link = word.swap(0, Ordering::Relaxed);
        assert_eq!(link, torn);
        let mut plan = Later::default();
        let mut fingers = Fingers::at_start(list).unwrap();
        fingers.pass(list, &mut plan).unwrap();
        if level > 0 {
            fingers.pass(list, &mut plan).unwrap_err();
            fingers.unlink(list).unwrap_err();
            list.check(&Latch::default(), &mut |_, _| {}, &mut || {})
                .unwrap_err();
        } else {
            assert_eq!(fingers.following(), 0);
        }
        word.store(link, Ordering::Relaxed);
    }
    list.check(&Latch::default(), &mut |_, _| {}, &mut || {})
        .unwrap();
}
