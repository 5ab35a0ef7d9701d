//! Tests of cursors: merges of several lists in both directions, and lists relinked concurrently.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_media::{Arena, Bump};

use super::{Cursor, EntryView, ListCursor, MergeCursor};
use crate::parts::key::Target;
use crate::parts::latch::Latch;
use crate::parts::skiplist::fingers::{Fingers, Plan};
use crate::parts::skiplist::layout::{HEAD_BYTES, HEIGHT_MAX};
use crate::parts::skiplist::node::{head_bytes, height_for, link_at};
use crate::parts::skiplist::{NewNode, SkipList};
use crate::types::{SEQ_MAX, key_hash};

/// A place in the order of all lists.
type Place = (u32, Vec<u8>, Reverse<u64>);

/// One memory shared by several lists, like the pool.
struct Shared {
    bump: Bump,
}

impl Shared {
    fn new() -> Shared {
        let bump = Arena::new(4 << 20).unwrap().bump(1 << 16);
        Shared { bump }
    }

    fn list(&self) -> Source {
        let mut claim = self.bump.claim(HEAD_BYTES, 8).unwrap();
        claim.write(0, &head_bytes());
        Source {
            list: SkipList::new(self.bump.region().clone(), claim.off()),
            latch: Latch::default(),
        }
    }

    /// Inserts an entry whose value identifies its place. Returns the height of its node.
    fn insert(&self, source: &Source, place: &Place) -> usize {
        let (keyspace, key, seq) = place;
        let hash = key_hash(*keyspace, key);
        let value = value_of(place);
        let node = NewNode {
            keyspace: *keyspace,
            seq: seq.0,
            kind: 1,
            hash,
            height: height_for(hash, seq.0),
            key,
            value: &value,
            value_crc: crc32c::crc32c(&value),
            more: false,
        };
        let mut claim = self.bump.claim(node.bytes(), 8).unwrap();
        node.write(&mut claim, 0);
        let target = target(place);
        source
            .list
            .insert(claim.off(), node.height, &target)
            .unwrap();
        usize::from(node.height)
    }
}

struct Source {
    list: SkipList,
    latch: Latch,
}

impl Source {
    fn cursor(&self) -> Box<dyn Cursor> {
        Box::new(ListCursor::new(self.list.clone(), Some(self.latch.clone())))
    }
}

fn value_of((keyspace, key, seq): &Place) -> Vec<u8> {
    format!("{keyspace} {} {}", key.escape_ascii(), seq.0).into_bytes()
}

fn target((keyspace, key, seq): &Place) -> Target<'_> {
    Target {
        keyspace: *keyspace,
        key,
        seq: seq.0,
    }
}

fn place_of(entry: &EntryView<'_>) -> Place {
    (entry.keyspace, entry.key.to_vec(), Reverse(entry.seq))
}

fn random_place(rng: &mut fastrand::Rng, seq: u64) -> Place {
    let length = rng.usize(0..5);
    // Some keys differ only beyond the prefix that a merge caches.
    let begin = ["", "abcabcabcabcabca"][usize::from(rng.u8(..4) == 0)];
    let mut key = begin.as_bytes().to_vec();
    key.extend((0..length).map(|_| b'a' + rng.u8(0..3)));
    (rng.u32(1..3), key, Reverse(seq))
}

/// Takes up to `count` entries and checks their values.
fn take(cursor: &mut MergeCursor, count: usize) -> Vec<Place> {
    let mut places = Vec::new();
    while places.len() < count {
        let Some(entry) = cursor.entry().unwrap() else {
            break;
        };
        let place = place_of(&entry);
        assert_eq!(entry.target().seq, entry.seq);
        assert_eq!(cursor.value().unwrap().bytes, value_of(&place));
        places.push(place);
        cursor.advance().unwrap();
    }
    places
}

/// A merge of several lists visits the entries of all lists in one order, from any target.
#[test]
fn merges_agree_with_a_model() {
    for count in [0, 1, 2, 5, 60] {
        let shared = Shared::new();
        let sources: Vec<Source> = (0..count).map(|_| shared.list()).collect();
        let mut rng = fastrand::Rng::with_seed(21 + count);
        let mut model = Vec::new();
        for seq in 1..400 {
            if let Some(source) = rng.choice(&sources) {
                let place = random_place(&mut rng, seq);
                shared.insert(source, &place);
                model.push(place);
            }
        }
        model.sort();
        let mut cursor = MergeCursor::new(sources.iter().map(Source::cursor).collect());
        assert!(cursor.hold(), "nothing moved");
        assert!(
            cursor.entry().unwrap().is_none(),
            "a cursor starts without a position"
        );
        assert_eq!(cursor.value().unwrap().bytes, b"");
        cursor.advance().unwrap();
        for _ in 0..200 {
            let seq = [0, SEQ_MAX, rng.u64(..400)][rng.usize(..3)];
            let from = random_place(&mut rng, seq);
            cursor.seek(&target(&from)).unwrap();
            let at = model.partition_point(|place| *place < from);
            let length = rng.usize(..40);
            let expected = &model[at..model.len().min(at + length)];
            assert_eq!(take(&mut cursor, length), expected);
        }
        cursor.seek(&Target::first_of(0, b"")).unwrap();
        assert_eq!(take(&mut cursor, usize::MAX), model);
        assert!(cursor.entry().unwrap().is_none());
        cursor.advance().unwrap();
        assert!(
            cursor.entry().unwrap().is_none(),
            "a cursor stays past the end"
        );
        cursor.release();
    }
}

/// `place_before` returns the last of the places that the lists propose; each proposes the last
/// node before the target whose tower is high enough. Going back chunk by chunk shows every entry
/// once.
#[test]
fn merges_go_backward() {
    let shared = Shared::new();
    let sources: Vec<Source> = (0..4).map(|_| shared.list()).collect();
    let mut rng = fastrand::Rng::with_seed(31);
    // For each list, its places and the heights of their nodes.
    let mut model: Vec<BTreeMap<Place, usize>> = vec![BTreeMap::new(); sources.len()];
    for seq in 1..600 {
        let at = rng.usize(..sources.len());
        let place = random_place(&mut rng, seq);
        let height = shared.insert(&sources[at], &place);
        model[at].insert(place, height);
    }
    let mut all: Vec<Place> = model.iter().flat_map(|list| list.keys().cloned()).collect();
    all.sort();
    let mut cursor = MergeCursor::new(sources.iter().map(Source::cursor).collect());
    for breadth in 0..4 {
        for _ in 0..200 {
            let to = random_place(&mut rng, SEQ_MAX);
            let expected = model.iter().filter_map(|list| {
                let mut before = list.range((Bound::Unbounded, Bound::Excluded(to.clone())));
                let found = before.rfind(|(_, height)| **height > breadth);
                found.map(|((keyspace, key, _), _)| (*keyspace, key.clone()))
            });
            let found = cursor.place_before(&target(&to), breadth, None).unwrap();
            assert_eq!(found, expected.max());
        }
        let mut backward = Vec::new();
        let mut to: Place = (9, Vec::new(), Reverse(SEQ_MAX));
        loop {
            let place = cursor.place_before(&target(&to), breadth, None).unwrap();
            let start = match &place {
                Some((keyspace, key)) => (*keyspace, key.clone(), Reverse(SEQ_MAX)),
                None => (0, Vec::new(), Reverse(SEQ_MAX)),
            };
            cursor.seek(&target(&start)).unwrap();
            let mut chunk = Vec::new();
            while let Some(entry) = cursor.entry().unwrap() {
                let place = place_of(&entry);
                if place >= to {
                    break;
                }
                chunk.push(place);
                cursor.advance().unwrap();
            }
            backward.extend(chunk.into_iter().rev());
            if place.is_none() {
                break;
            }
            assert!(start < to, "each turn moves back");
            to = start;
        }
        backward.reverse();
        assert_eq!(backward, all, "breadth {breadth}");
    }
}

/// Makes planned stores immediately, in any order, because no thread reads a list whose latch is
/// held.
struct Now<'r>(&'r SkipList);

impl Plan for Now<'_> {
    fn prepare(&mut self, off: u64, value: u64) {
        self.store(off, value);
    }

    fn store(&mut self, off: u64, value: u64) {
        self.0
            .region()
            .word(off)
            .unwrap()
            .store(value, Ordering::Release);
    }
}

/// Moves the first node of `newer` into `older`, as a merge does, under both latches. Returns false
/// if `newer` is empty.
fn move_one(newer: &Source, older: &Source) -> bool {
    let _newer = newer.latch.relink();
    let _older = older.latch.relink();
    let off = newer.list.next(newer.list.head(), 0).unwrap();
    if off == 0 {
        return false;
    }
    let node = newer.list.node(off).unwrap();
    let height = node.header.height;
    let mut heads = [0; HEIGHT_MAX];
    for (level, head) in heads.iter_mut().enumerate().take(usize::from(height)) {
        *head = newer.list.next(off, level).unwrap();
    }
    let mut fingers = Fingers::at(&older.list, &node.target()).unwrap();
    let mut plan = Now(&older.list);
    fingers.insert(off, &heads[..usize::from(height)], &mut plan);
    fingers.flush(&mut plan);
    for (level, head) in heads.iter().enumerate().take(usize::from(height)) {
        Now(&newer.list).store(link_at(newer.list.head(), level), *head);
    }
    true
}

/// After entries have moved, the next hold reports that the position is lost. Otherwise the cursor
/// continues from its position.
#[test]
fn holds_tell_whether_entries_moved() {
    let shared = Shared::new();
    let (newer, older) = (shared.list(), shared.list());
    let mut model: Vec<Place> = (0..40u8)
        .map(|i| (1, vec![i], Reverse(u64::from(i) + 1)))
        .collect();
    for (i, place) in model.iter().enumerate() {
        shared.insert([&newer, &older][i % 2], place);
    }
    model.sort();
    let mut cursor = MergeCursor::new(vec![newer.cursor(), older.cursor()]);
    assert!(cursor.hold());
    cursor.seek(&Target::first_of(1, b"")).unwrap();
    let mut seen = take(&mut cursor, 5);
    cursor.release();
    let mut moves = 0;
    while seen.len() < model.len() {
        let moved = seen.len() % 2 == 1 && move_one(&newer, &older);
        moves += usize::from(moved);
        let asked = seen.len() % 2 == 1;
        assert_eq!(cursor.hold(), !asked, "a batch, even an empty one, counts");
        if asked {
            let last = seen.last().unwrap();
            cursor.seek(&target(last)).unwrap();
            assert_eq!(
                take(&mut cursor, 1),
                std::slice::from_ref(last),
                "the last entry is still there"
            );
        }
        let count = 1 + seen.len() % 3;
        seen.extend(take(&mut cursor, count));
        cursor.release();
        assert!(
            cursor.hold(),
            "nothing moved between a release and the next hold"
        );
        cursor.release();
    }
    assert!(moves > 5);
    assert_eq!(seen, model);
}

/// While a merge moves one list into another, every scan that holds both sees each entry once,
/// whether in one piece or chunk by chunk.
#[test]
fn scans_during_a_merge_see_everything() {
    for round in 0..10 {
        let shared = Shared::new();
        let (newer, older) = (shared.list(), shared.list());
        let mut rng = fastrand::Rng::with_seed(41 + round);
        let mut model = Vec::new();
        for seq in 1..=400 {
            let place = random_place(&mut rng, seq);
            shared.insert(if rng.bool() { &newer } else { &older }, &place);
            model.push(place);
        }
        model.sort();
        let merged = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while move_one(&newer, &older) {
                    std::thread::yield_now();
                }
                merged.store(true, Ordering::Release);
            });
            for chunk in [usize::MAX, 7] {
                let (newer, older, model, merged) = (&newer, &older, &model, &merged);
                scope.spawn(move || {
                    let mut cursor = MergeCursor::new(vec![newer.cursor(), older.cursor()]);
                    let mut last_round = false;
                    while !last_round {
                        last_round = merged.load(Ordering::Acquire);
                        let mut seen: Vec<Place> = Vec::new();
                        loop {
                            let same = cursor.hold();
                            if !same || seen.is_empty() {
                                let from = seen.last();
                                let from = from.map_or(Target::first_of(0, b""), target);
                                cursor.seek(&from).unwrap();
                                if !seen.is_empty() {
                                    assert_eq!(take(&mut cursor, 1), seen[seen.len() - 1..]);
                                }
                            }
                            let more = take(&mut cursor, chunk);
                            cursor.release();
                            if more.is_empty() {
                                break;
                            }
                            seen.extend(more);
                        }
                        assert_eq!(&seen, model);
                    }
                });
            }
        });
        assert_eq!(newer.list.next(newer.list.head(), 0).unwrap(), 0);
        let mut count = 0;
        older
            .list
            .check(
                &older.latch,
                &mut |_, value| {
                    value.unwrap();
                    count += 1;
                },
                &mut || {},
            )
            .unwrap();
        assert_eq!(count, model.len());
    }
}
