//! Tests with damaged bytes: every operation ends, and no wrong value is returned.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::{Entry, ORIGIN, Sample};
use crate::parts::iter::{Cursor, ListCursor};
use crate::parts::key::Target;
use crate::parts::latch::Latch;
use crate::parts::skiplist::fingers::{Fingers, Plan};
use crate::parts::skiplist::layout::TABLE_NODES_AT;
use crate::parts::skiplist::node::link_at;
use crate::parts::skiplist::walk::{Walk, is_dead};

/// Far more nodes than any of these lists contains.
const NODES_MAX: usize = 1000;

struct Nowhere;

impl Plan for Nowhere {
    fn prepare(&mut self, _off: u64, _value: u64) {}
    fn store(&mut self, _off: u64, _value: u64) {}
}

/// Keyspace, key, sequence number, value and height.
type Row = (u32, &'static [u8], u64, &'static [u8], u8);

/// Returns a small list with tall and short towers, several versions and two keyspaces.
fn small() -> (Sample, BTreeMap<Entry, u64>) {
    let sample = Sample::new(1 << 14);
    let rows: [Row; 7] = [
        (1, b"", 3, b"empty key", 2),
        (1, b"apple", 9, b"new", 1),
        (1, b"apple", 4, b"old", 3),
        (1, b"apple pie and more", 5, b"", 1),
        (
            1,
            b"pear",
            6,
            b"a longer value, over a line of bytes: 64 and then some more of it",
            2,
        ),
        (2, b"apple", 7, b"elsewhere", 1),
        (2, b"plum", 8, b"last", 2),
    ];
    let nodes = rows
        .into_iter()
        .map(|(keyspace, key, seq, value, height)| {
            let entry = Entry::new(keyspace, key, seq, value);
            let off = sample.insert_at_height(&entry, height);
            (entry, off)
        })
        .collect();
    (sample, nodes)
}

/// Runs every operation on the list. Each may only fail with an error or return values that were
/// written under the same key and sequence number.
fn exercise(sample: &Sample, nodes: &BTreeMap<Entry, u64>) {
    let list = &sample.list;
    let sound = |off: u64| {
        let Ok(node) = list.node(off) else { return };
        if node.checked_value().is_ok() {
            assert!(
                nodes.contains_key(&Entry::of(&node)),
                "a checked value belongs to its key: {:?}",
                Entry::of(&node)
            );
        }
    };
    for entry in nodes.keys() {
        for target in [entry.target(), Target::first_of(entry.keyspace, &entry.key)] {
            if let Ok(found) = list.seek(&target) {
                sound(found.node);
            }
            let _ = list.splice(&target);
            for level in 0..3 {
                let _ = list.seek_before(&target, level);
            }
        }
        let last = Target::first_of(9, b"");
        let _ = list.count_between(&entry.target(), &last);
    }
    let mut cursor = ListCursor::new(list.clone(), Some(Latch::default()));
    cursor.hold();
    if cursor.seek(&Target::first_of(0, b"")).is_ok() {
        for _ in 0..NODES_MAX {
            match cursor.entry() {
                Ok(Some(_)) => {}
                _ => break,
            }
            let _ = cursor.value();
            if cursor.advance().is_err() {
                break;
            }
        }
    }
    if let Ok(mut fingers) = Fingers::at_start(list) {
        for _ in 0..NODES_MAX {
            if fingers.following() == 0 || fingers.pass(list, &mut Nowhere).is_err() {
                break;
            }
        }
    }
    if let Ok(mut fingers) = Fingers::at_start(list) {
        for _ in 0..NODES_MAX {
            if fingers.following() == 0 || fingers.unlink(list).is_err() {
                break;
            }
        }
    }
    let mut walk = Walk::new(list.region(), ORIGIN + TABLE_NODES_AT as u64, sample.end());
    while let Ok(Some(node)) = walk.next_node() {
        sound(node.off);
        let _ = is_dead(list.region(), node.off);
    }
}

/// After a change of any byte of a list, nothing panics, nothing runs forever, and no value is
/// returned for another key.
#[test]
fn no_changed_byte_does_harm() {
    let (sample, nodes) = small();
    let region = sample.list.region();
    let expected: Vec<Entry> = nodes.keys().cloned().collect();
    for word_at in (ORIGIN..sample.end()).step_by(8) {
        let word = region.word(word_at).unwrap();
        let good = word.load(Ordering::Relaxed);
        let mut changes: Vec<u64> = (0..64).map(|bit| 1 << bit).collect();
        changes.extend((0..8).map(|byte| 0xff << (8 * byte)));
        for change in changes {
            word.store(good ^ change, Ordering::Relaxed);
            exercise(&sample, &nodes);
        }
        word.store(good, Ordering::Relaxed);
    }
    assert_eq!(sample.checked(), expected, "the list is as it was");
}

/// A check of the list detects a change of any byte that checksums cover.
#[test]
fn checks_see_every_changed_byte_of_data() {
    let (sample, nodes) = small();
    let region = sample.list.region();
    for off in nodes.values() {
        let node = sample.list.node(*off).unwrap();
        let height = usize::from(node.header.height);
        let end = 32 + 8 * height + node.key.len() + node.header.value_len as usize;
        for at in (0..32).chain(32 + 8 * height..end) {
            let word = region.word((off + at as u64) & !7).unwrap();
            let good = word.load(Ordering::Relaxed);
            word.store(good ^ (0x5a << (8 * (at % 8))), Ordering::Relaxed);
            let mut complaints = 0;
            let walked = sample.list.check(
                &Latch::default(),
                &mut |_, value| {
                    complaints += u64::from(value.is_err());
                },
                &mut || {},
            );
            assert!(walked.is_err() || complaints > 0, "byte {at} of {off:#x}");
            word.store(good, Ordering::Relaxed);
        }
    }
}

/// If links form a cycle, searches end in an error.
#[test]
fn circles_end_in_errors() {
    let (sample, nodes) = small();
    let list = &sample.list;
    let offs: Vec<u64> = nodes.values().copied().collect();
    let end = Target::first_of(9, b"");
    for (from, &off) in offs.iter().enumerate() {
        let word = list.region().word(link_at(off, 0)).unwrap();
        let good = word.load(Ordering::Relaxed);
        for &back in &offs[..=from] {
            word.store(back, Ordering::Relaxed);
            // Higher levels skip the nodes below them, so only some searches meet the cycle.
            let _ = list.seek(&end);
            let _ = list.splice(&end);
            let _ = list.seek_before(&end, 0);
        }
        word.store(good, Ordering::Relaxed);
    }
    let last = *offs.last().unwrap();
    let word = list.region().word(link_at(last, 0)).unwrap();
    for &back in &offs {
        word.store(back, Ordering::Relaxed);
        assert!(list.seek(&end).is_err());
        assert!(list.splice(&end).is_err());
        assert!(list.seek_before(&end, 0).is_err());
    }
}

/// Links to invalid offsets are errors.
#[test]
fn links_to_nowhere_are_errors() {
    let (sample, nodes) = small();
    let list = &sample.list;
    let first = *nodes.values().next().unwrap();
    let word = list.region().word(link_at(first, 0)).unwrap();
    let target = Target::first_of(1, b"apple");
    for link in [
        8,
        ORIGIN - 8,
        sample.end() + (1 << 20),
        1 << 63,
        !7 << 12,
        !7,
    ] {
        word.store(link, Ordering::Relaxed);
        assert!(list.seek(&target).is_err());
        assert!(
            list.check(&Latch::default(), &mut |_, _| {}, &mut || {})
                .is_err()
        );
    }
}
