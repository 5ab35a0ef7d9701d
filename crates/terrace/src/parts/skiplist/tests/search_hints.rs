//! Tests of search hints: they do not change results, and they lead close to the target.

use super::{Entry, Sample};
use crate::parts::skiplist::search_hints::{LEVEL_MAX, SearchHints};
use crate::types::SEQ_MAX;

/// Returns keys in shapes and orders that fill leaves differently.
fn shapes(rng: &mut fastrand::Rng) -> Vec<(&'static str, Vec<Entry>)> {
    let count = 6000;
    let numbered = |i: usize| format!("{i:016}").into_bytes();
    let mut shapes: Vec<(&'static str, Vec<Vec<u8>>)> = vec![
        ("ascending", (0..count).map(numbered).collect()),
        ("descending", (0..count).rev().map(numbered).collect()),
        (
            "at random",
            (0..count).map(|_| numbered(rng.usize(..1 << 40))).collect(),
        ),
        (
            "behind a long common beginning",
            (0..count)
                .map(|_| [vec![b'p'; 300], numbered(rng.usize(..count))].concat())
                .collect(),
        ),
        (
            "in groups with different beginnings",
            (0..count)
                .map(|_| {
                    let group = rng.usize(..7);
                    [
                        vec![b'a' + group as u8; 10 * group],
                        numbered(rng.usize(..1 << 30)),
                    ]
                    .concat()
                })
                .collect(),
        ),
        (
            "a few keys, many versions",
            (0..count).map(|_| numbered(rng.usize(..5))).collect(),
        ),
        (
            "beginnings of one another",
            (0..count).map(|_| vec![0; rng.usize(..40)]).collect(),
        ),
        (
            "bytes that pad",
            (0..count)
                .map(|_| (0..rng.usize(..12)).map(|_| rng.u8(..2)).collect())
                .collect(),
        ),
    ];
    // The last keys do not share the common prefix of the first thousands.
    let mut late: Vec<Vec<u8>> = (0..count).map(numbered).collect();
    late[count - 100..]
        .iter_mut()
        .for_each(|key| key[0] = rng.u8(..));
    shapes.push(("another beginning at the end", late));
    let entry = |(i, key): (usize, Vec<u8>), keyspaces: u32| {
        Entry::new(i as u32 % keyspaces, &key, i as u64 + 1, b"value")
    };
    let mut all = Vec::new();
    for (name, keys) in shapes {
        let keyspaces = if name == "at random" { 3 } else { 1 };
        let keys = keys.into_iter().enumerate();
        all.push((name, keys.map(|key| entry(key, keyspaces)).collect()));
    }
    all
}

/// For keys of any shape, the list equals one built without search hints.
#[test]
fn lists_are_the_same_without_them() {
    let mut rng = fastrand::Rng::with_seed(31);
    for (name, entries) in shapes(&mut rng) {
        for dense in [true, false] {
            let (with, without) = (Sample::memtable(8 << 20, dense), Sample::new(8 << 20));
            for entry in &entries {
                assert_eq!(with.insert(entry), without.insert(entry), "same place");
            }
            assert_eq!(with.checked(), without.checked(), "{name}");
            for entry in &entries {
                for seq in [SEQ_MAX, entry.seq.0, entry.seq.0.saturating_sub(1)] {
                    let mut place = entry.clone();
                    place.seq.0 = seq;
                    let found = with.list.seek(&place.target()).unwrap().node;
                    let sought = without.list.seek(&place.target()).unwrap().node;
                    assert_eq!(found, sought, "{name}");
                }
            }
        }
    }
}

/// For keys of every shape, search hints lead to a node few steps before the target. Otherwise they
/// would cost time and save none.
#[test]
fn they_lead_near() {
    let mut rng = fastrand::Rng::with_seed(32);
    for (name, entries) in shapes(&mut rng) {
        for dense in [true, false] {
            let sample = Sample::memtable(8 << 20, dense);
            for entry in &entries {
                sample.insert(entry);
            }
            let near = |entry: &&Entry| sample.list.near(&entry.target()).unwrap().is_some();
            let helped = entries.iter().filter(near).count();
            assert!(
                helped * 100 > entries.len() * 97,
                "{helped} of {} searches were helped: keys {name}",
                entries.len()
            );
        }
    }
}

/// A hint for a level is linked on it, and is a few nodes of that level before the target.
#[test]
fn they_tell_of_levels() {
    let mut rng = fastrand::Rng::with_seed(34);
    for (name, entries) in shapes(&mut rng) {
        let Sample { list, .. } = {
            let sample = Sample::memtable(8 << 20, true);
            entries.iter().for_each(|entry| {
                sample.insert(entry);
            });
            sample
        };
        for level in 0..=LEVEL_MAX {
            let mut near = 0;
            for entry in &entries {
                let target = entry.target();
                let Some(off) = list.hint(&target, level).unwrap() else {
                    continue;
                };
                assert!(u32::from(list.node(off).unwrap().header.height) > level);
                let is_before = list.is_before(off, &target).unwrap();
                let found = list.walk_from(off, level as usize, &target).unwrap();
                near += usize::from(is_before && found.is_some());
            }
            let least = [97, 95, 85][level as usize];
            let count = entries.len();
            assert!(
                near * 100 > count * least,
                "{near} of {count}, level {level}: keys {name}"
            );
        }
    }
}

/// With too few leaves for its nodes a list is slower, but still correct.
#[test]
fn too_few_leaves_do_no_harm() {
    let mut rng = fastrand::Rng::with_seed(33);
    for (name, entries) in shapes(&mut rng) {
        let Sample { bump, list } = Sample::new(8 << 20);
        let list = list.with_search_hints(SearchHints::new(1, true));
        let sample = Sample { bump, list };
        let mut sorted = entries.clone();
        for entry in &entries {
            sample.insert(entry);
        }
        sorted.sort_by(|a, b| (a.keyspace, &a.key, a.seq).cmp(&(b.keyspace, &b.key, b.seq)));
        assert_eq!(sample.checked(), sorted, "{name}");
    }
}

/// When reused for another list at another offset, search hints retain nothing of the previous
/// list.
#[test]
fn nothing_is_left_of_the_list_before() {
    let mut search_hints = SearchHints::new(1 << 20, true);
    for turn in 0..3u64 {
        let Sample { bump, list } = Sample::new(1 << 20);
        let mut sample = Sample {
            bump,
            list: list.with_search_hints(search_hints),
        };
        for i in 0..500u64 {
            let key = (i * 7919 % 500 + turn * 250).to_be_bytes();
            sample.insert(&Entry::new(1, &key, i + 1, b""));
        }
        assert_eq!(sample.checked().len(), 500);
        search_hints = sample.list.take_search_hints().unwrap();
    }
}
