//! Tests of the tree against sorted entries: alone, under concurrent insertion, and built at once.

mod models;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace_media::{Arena, Bump};

use super::page::FANOUT;
use super::{Tree, pages_for};
use crate::parts::iter::{Cursor, TreeCursor};
use crate::parts::key::Target;
use crate::parts::skiplist::{NewNode, Node};
use crate::types::{KEY_BYTES_MAX, SEQ_MAX, key_hash};

const ORIGIN: u64 = 1 << 20;

/// A place in the order of entries: later numbers come first.
type At = (u32, Vec<u8>, std::cmp::Reverse<u64>);

struct Sample {
    bump: Bump,
    tree: Tree,
    count: AtomicU64,
}

fn target(at: &At) -> Target<'_> {
    Target {
        keyspace: at.0,
        key: &at.1,
        seq: at.2.0,
    }
}

impl Sample {
    fn new(bytes: u64) -> Sample {
        let bump = Arena::new(bytes).unwrap().bump(ORIGIN);
        let tree = Tree::new(&bump).unwrap().unwrap();
        let count = AtomicU64::new(0);
        Sample { bump, tree, count }
    }

    /// Writes an entry without inserting it.
    fn write(&self, at: &At) -> u64 {
        let node = NewNode {
            keyspace: at.0,
            seq: at.2.0,
            kind: 1,
            hash: key_hash(at.0, &at.1),
            height: 1,
            key: &at.1,
            value: &at.1[..at.1.len().min(7)],
            value_crc: crc32c::crc32c(&at.1[..at.1.len().min(7)]),
            more: false,
        };
        let mut claim = self.bump.claim(node.bytes(), 8).unwrap();
        node.write(&mut claim, 0);
        claim.off()
    }

    /// Provides pages for one more entry. One thread at a time.
    fn grow(&self) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(self.tree.grow(&self.bump, count));
    }

    fn insert(&self, at: &At) {
        self.grow();
        let off = self.write(at);
        let approach = self.tree.approach(&target(at));
        self.tree.insert(approach, off, &target(at)).unwrap();
    }

    fn at(&self, entry: u64) -> Option<At> {
        if entry == 0 {
            return None;
        }
        let node = Node::read(self.tree.region(), entry).unwrap();
        let seq = std::cmp::Reverse(node.header.seq);
        Some((node.header.keyspace, node.key.to_vec(), seq))
    }

    /// Returns the whole tree, checked.
    fn checked(&self) -> Vec<At> {
        let mut all = Vec::new();
        let visit = &mut |node: &Node<'_>, sound: Result<(), _>| {
            sound.unwrap();
            all.extend(self.at(node.off));
        };
        self.tree.check(visit).unwrap();
        all
    }

    /// Compares searches with those in a set of the same entries.
    fn agrees(&self, all: &BTreeSet<At>, probe: &At) {
        let after = all.range(probe.clone()..).next().cloned();
        let found = self.tree.seek(&target(probe)).unwrap();
        assert_eq!(self.at(found), after, "the entry at or after {probe:?}");
        for back in [1, 2, 5, 40, 700] {
            let before = all.range(..probe.clone()).rev().nth(back - 1).cloned();
            let found = self.tree.seek_before(&target(probe), back as u64).unwrap();
            assert_eq!(self.at(found), before, "{back} entries before {probe:?}");
        }
    }
}

/// Keys whose order is easy to get wrong, or which share many bytes with others.
fn key(rng: &mut fastrand::Rng, style: u32) -> Vec<u8> {
    match style % 6 {
        0 => (0..rng.usize(..20))
            .map(|_| [0, 1, 97, 255][rng.usize(..4)])
            .collect(),
        1 => format!("{:016}", rng.u32(..5000)).into_bytes(),
        2 => [vec![b'p'; 40], rng.u16(..).to_be_bytes().to_vec()].concat(),
        3 => rng.u64(..).to_be_bytes().to_vec(),
        4 => vec![b'k'; rng.usize(..60)],
        _ if rng.u32(..50) == 0 => vec![b'a' + rng.u8(..2); KEY_BYTES_MAX - rng.usize(..2)],
        _ => vec![rng.u8(..)],
    }
}

fn entry(rng: &mut fastrand::Rng, style: u32, seq: u64) -> At {
    let keyspaces = [1, 2, 0x100, 0x0100_0000, 0x8000_0001];
    let keyspace = match style {
        0..6 => 1,
        _ => keyspaces[rng.usize(..keyspaces.len())],
    };
    (keyspace, key(rng, style), std::cmp::Reverse(seq))
}

/// Every search in a tree finds what a search in a sorted set finds, whatever keys look like.
#[test]
fn searches_agree_with_a_sorted_set() {
    for style in 0..12 {
        let mut rng = fastrand::Rng::with_seed(u64::from(style) + 1);
        let sample = Sample::new(256 << 20);
        let mut all = BTreeSet::new();
        for seq in 1..=4000 {
            let at = entry(&mut rng, style, seq);
            sample.insert(&at);
            all.insert(at);
            if seq < 200 || seq % 64 == 0 {
                let seq = rng.u64(..=seq);
                let probe = entry(&mut rng, style, seq);
                sample.agrees(&all, &probe);
                let known = all.iter().nth(rng.usize(..all.len())).unwrap();
                sample.agrees(&all, known);
            }
        }
        assert_eq!(sample.checked(), all.iter().cloned().collect::<Vec<_>>());
    }
}

/// Ascending and descending keys, and many versions of one, make trees as good as random ones, and
/// ascending ones fill their pages.
#[test]
fn orders_of_insertion_make_sound_trees() {
    for order in 0..4 {
        let sample = Sample::new(64 << 20);
        let mut all = BTreeSet::new();
        for seq in 1..=20_000_u64 {
            let key = match order {
                0 => format!("{seq:016}").into_bytes(),
                1 => format!("{:016}", 1_000_000 - seq).into_bytes(),
                2 => b"one".to_vec(),
                _ => format!("{:016}", seq * 7919 % 20_011).into_bytes(),
            };
            let at = (1, key, std::cmp::Reverse(seq));
            sample.insert(&at);
            all.insert(at);
        }
        assert_eq!(sample.checked(), all.iter().cloned().collect::<Vec<_>>());
        let left = sample.tree.common.free.lock().len() as u64;
        if order == 0 {
            let used = pages_for(20_000) - left;
            assert!(used < 20_000 / FANOUT as u64 * 21 / 20, "{used} pages");
        }
        for at in all.iter().step_by(97) {
            sample.agrees(&all, at);
        }
    }
}

/// A tree that is built at once has the same entries, takes others, and spreads and counts them.
#[test]
fn built_trees_are_complete() {
    for count in [0, 1, 2, 31, 32, 33, 64, 1000, 1024, 1025, 40_000] {
        let mut rng = fastrand::Rng::with_seed(count);
        let sample = Sample::new(64 << 20);
        let mut all: BTreeSet<At> = (1..=count).map(|seq| entry(&mut rng, 7, seq)).collect();
        (0..count).for_each(|_| sample.grow());
        let mut entries: Vec<u64> = all.iter().map(|at| sample.write(at)).collect();
        rng.shuffle(&mut entries);
        sample.tree.build(entries).unwrap();
        assert_eq!(sample.checked(), all.iter().cloned().collect::<Vec<_>>());
        for at in all.iter().step_by(1 + count as usize / 50) {
            sample.agrees(&all, at);
        }
        for part in [4, 32] {
            let spread = sample.tree.spread(part).unwrap();
            let at = spread.iter().map(|entry| sample.at(*entry).unwrap());
            assert!(at.is_sorted_by(|a, b| a < b));
            assert!(
                count < 1024 || spread.len() + 1 >= part,
                "{} of {part}",
                spread.len()
            );
        }
        if let (Some(first), Some(middle)) = (all.first(), all.iter().nth(all.len() / 2)) {
            let half = sample
                .tree
                .count_between(&target(first), &target(middle), count);
            let half = half.unwrap();
            let off = half.abs_diff(count / 2);
            assert!(off <= count / 8 + 2, "{half} of {count}");
        }
        for seq in count + 1..=count + 2000 {
            let at = entry(&mut rng, 7, seq);
            sample.insert(&at);
            all.insert(at);
        }
        assert_eq!(sample.checked(), all.iter().cloned().collect::<Vec<_>>());
    }
}

/// While threads insert, every search finds each entry that was inserted before it, and cursors
/// meet all of them in order; in the end the tree has all entries.
#[test]
fn threads_insert_in_order() {
    const WRITERS: usize = 3;
    for style in [1, 3, 6, 9] {
        let sample = Arc::new(Sample::new(128 << 20));
        let count = 6000;
        let shares: Vec<Vec<At>> = (0..WRITERS)
            .map(|writer| {
                let mut rng = fastrand::Rng::with_seed(writer as u64 * 31 + u64::from(style));
                let seqs = (0..count).map(|n| 1 + n * WRITERS as u64 + writer as u64);
                seqs.map(|seq| entry(&mut rng, style, seq)).collect()
            })
            .collect();
        (0..count * WRITERS as u64).for_each(|_| sample.grow());
        let done: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = shares
                .iter()
                .zip(&done)
                .map(|(share, done)| {
                    let sample = &sample;
                    scope.spawn(move || {
                        for at in share {
                            let approach = sample.tree.approach(&target(at));
                            let off = sample.write(at);
                            sample.tree.insert(approach, off, &target(at)).unwrap();
                            done.fetch_add(1, Ordering::Release);
                        }
                    })
                })
                .collect();
            let (sample, shares, done, over) = (&sample, &shares, &done, &over);
            let reader = scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(5);
                while !over.load(Ordering::Acquire) {
                    let from = rng.usize(..WRITERS);
                    let inserted = done[from].load(Ordering::Acquire) as usize;
                    if inserted == 0 {
                        continue;
                    }
                    let at = &shares[from][rng.usize(..inserted)];
                    let found = sample.tree.seek(&target(at)).unwrap();
                    assert_eq!(sample.at(found).as_ref(), Some(at), "an inserted entry");
                    if rng.u32(..100) == 0 {
                        let before: BTreeSet<&At> = shares[from][..inserted].iter().collect();
                        let mut cursor = TreeCursor::new(sample.tree.clone(), SEQ_MAX);
                        cursor.seek(&Target::first_of(0, &[])).unwrap();
                        let mut expected = before.iter();
                        let mut next = expected.next();
                        while let Some(view) = cursor.entry().unwrap() {
                            let seq = std::cmp::Reverse(view.seq);
                            let at = (view.keyspace, view.key.to_vec(), seq);
                            if next.is_some_and(|next| **next == at) {
                                next = expected.next();
                            }
                            cursor.advance().unwrap();
                        }
                        assert_eq!(next, None, "a walk misses an entry");
                    }
                }
            });
            for writer in writers {
                writer.join().unwrap();
            }
            over.store(true, Ordering::Release);
            reader.join().unwrap();
        });
        let all: BTreeSet<At> = shares.into_iter().flatten().collect();
        assert_eq!(sample.checked(), all.iter().cloned().collect::<Vec<_>>());
    }
}

/// An arena that is full provides no more pages.
#[test]
fn full_arenas_provide_nothing() {
    let bump = Arena::new(4096).unwrap().bump(ORIGIN);
    let tree = Tree::new(&bump).unwrap().unwrap();
    assert!(tree.grow(&bump, 20));
    assert!(!tree.grow(&bump, 1_000_000));
    assert!(Tree::bytes_for(1_000_000) > 4096 && tree.lacks(20) == 0);
    let full = Arena::new(4096).unwrap().bump(ORIGIN);
    full.claim(4000, 8).unwrap();
    assert!(Tree::new(&full).unwrap().is_none());
}
