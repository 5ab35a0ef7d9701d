//! Tests of searches and estimates against a sorted model.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::AtomicU64;

use super::{Entry, Sample, awkward_entries};
use crate::parts::skiplist::GROUP_MAX;
use crate::parts::skiplist::layout::HEIGHT_MAX;
use crate::parts::skiplist::node::link_word;
use crate::types::SEQ_MAX;

/// The model: the offset and height of each entry's node.
type Model = BTreeMap<Entry, (u64, usize)>;

fn sample(seed: u64, count: usize) -> (Sample, Model) {
    let sample = match seed % 2 {
        0 => Sample::memtable(16 << 20, true),
        _ => Sample::new(16 << 20),
    };
    let mut rng = fastrand::Rng::with_seed(seed);
    let entries = awkward_entries(&mut rng, count, &AtomicU64::new(2));
    let mut model = Model::new();
    for entry in entries {
        let off = sample.insert(&entry);
        let height = usize::from(sample.list.node(off).unwrap().header.height);
        model.insert(entry, (off, height));
    }
    (sample, model)
}

/// Returns places at, around and far from the entries of the model. Kind 0 precedes every entry's
/// kind, so no place equals an entry in all fields, and each sorts in the model as in the list.
fn places(rng: &mut fastrand::Rng, model: &Model) -> Vec<Entry> {
    let mut places = vec![
        Entry::new(0, b"", SEQ_MAX, b""),
        Entry::new(1, b"", SEQ_MAX, b""),
        Entry::new(1, b"", 0, b""),
        Entry::new(9, b"z", 0, b""),
    ];
    for entry in model.keys() {
        let mut place = entry.clone();
        place.value.clear();
        place.seq.0 = match rng.u32(..4) {
            0 => SEQ_MAX,
            1 => 0,
            2 => place.seq.0 + 1,
            _ => place.seq.0,
        };
        if rng.u32(..4) == 0 {
            place.key.push(0);
            place.key.truncate(rng.usize(..=place.key.len()));
        }
        places.push(place);
    }
    for place in &mut places {
        place.kind = 0;
    }
    places
}

/// Returns the last node before a place whose tower is higher than `level`.
fn before(model: &Model, place: &Entry, level: usize) -> Option<u64> {
    let mut earlier = model.range(..place.clone()).rev();
    earlier
        .find(|(_, (_, height))| *height > level)
        .map(|(_, (off, _))| *off)
}

/// Returns the first node at or after a place whose tower is higher than `level`.
fn from(model: &Model, place: &Entry, level: usize) -> Option<u64> {
    let mut later = model.range((Bound::Included(place.clone()), Bound::Unbounded));
    later
        .find(|(_, (_, height))| *height > level)
        .map(|(_, (off, _))| *off)
}

/// Every search for every place agrees with the model, on every level.
#[test]
fn searches_agree_with_a_model() {
    for (seed, count) in [(1, 0), (2, 1), (3, 40), (4, 600), (5, 600)] {
        let (sample, model) = sample(seed, count);
        let list = &sample.list;
        let mut rng = fastrand::Rng::with_seed(seed + 100);
        for place in places(&mut rng, &model) {
            let target = place.target();
            let found = list.seek(&target).unwrap();
            assert_eq!(found.node, from(&model, &place, 0).unwrap_or(0));
            let predecessor = before(&model, &place, 0);
            assert_eq!(
                found.first == 0,
                predecessor.is_none(),
                "a search steps on a node exactly when there is one before its target"
            );
            if found.first != 0 {
                let first = Entry::of(&list.node(found.first).unwrap());
                assert!(first < place, "steps go to nodes before the target only");
            }
            let splice = list.splice(&target).unwrap();
            for level in 0..HEIGHT_MAX {
                let prev = before(&model, &place, level);
                let next = from(&model, &place, level).unwrap_or(0);
                assert_eq!(splice.prev[level], prev.unwrap_or(list.head()));
                assert_eq!(splice.next[level], next);
                assert_eq!(list.seek_before(&target, level).unwrap(), prev.unwrap_or(0));
            }
        }
    }
}

/// An estimate is exact if only the lowest level has 64 nodes in the range, and otherwise within a
/// half.
#[test]
fn estimates_are_near() {
    let (sample, model) = sample(7, 3000);
    let mut rng = fastrand::Rng::with_seed(8);
    let places = places(&mut rng, &model);
    let mut exact = 0;
    for _ in 0..1000 {
        let (a, b) = (rng.choice(&places).unwrap(), rng.choice(&places).unwrap());
        let estimate = sample.list.count_between(&a.target(), &b.target()).unwrap();
        if a >= b {
            assert_eq!(
                estimate, 0,
                "nothing lies between a place and an earlier one"
            );
            continue;
        }
        let range = || model.range(a.clone()..b.clone());
        let truth = range().count() as u64;
        if range().filter(|(_, (_, height))| *height > 1).count() < 64 {
            assert_eq!(estimate, truth);
            exact += 1;
        }
        assert!(
            2 * estimate <= 3 * truth && 2 * truth <= 3 * estimate,
            "{estimate} for {truth}"
        );
    }
    assert!(exact > 50, "short ranges are among them");
}

/// Searches in turns find what single searches find, wherever hints lead, in groups of every size.
#[test]
fn groups_agree_with_single_searches() {
    for (seed, count) in [
        (1, 0),
        (2, 0),
        (3, 1),
        (4, 1),
        (5, 40),
        (6, 600),
        (7, 600),
        (8, 5000),
    ] {
        let (sample, model) = sample(seed, count);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut places = places(&mut rng, &model);
        // Ascending as reads are, and in any order.
        if seed % 4 < 2 {
            places.sort();
        } else {
            rng.shuffle(&mut places);
        }
        let mut rest = &places[..];
        while !rest.is_empty() {
            let (group, others) = rest.split_at(rng.usize(1..=GROUP_MAX).min(rest.len()));
            rest = others;
            let targets: Vec<_> = group.iter().map(Entry::target).collect();
            let found = sample.list.seek_group(&targets).unwrap();
            for (place, found) in group.iter().zip(found) {
                let single = sample.list.seek(&place.target()).unwrap();
                assert_eq!(found, single, "seed {seed}, {place:?}");
                assert_eq!(found.node, from(&model, place, 0).unwrap_or(0));
            }
        }
    }
}

/// A group does not follow links in a cycle for ever.
#[test]
fn groups_end_on_damaged_links() {
    let (sample, model) = sample(1, 600);
    let last = model.values().next_back().unwrap().0;
    let first = model.values().next().unwrap().0;
    let link = link_word(sample.list.region(), last, 0).unwrap();
    link.store(first, std::sync::atomic::Ordering::Release);
    let place = Entry::new(u32::MAX, b"z", 0, b"");
    assert!(
        sample
            .list
            .seek_group(&[place.target(), place.target()])
            .is_err()
    );
}
