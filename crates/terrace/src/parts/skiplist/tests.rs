//! Tests of the skip list: layout, concurrent insertion, searches and walks.

mod damage;
mod fingers;
mod models;
mod search;
mod search_hints;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_media::{Arena, Bump};

use super::layout::{
    HEAD_BYTES, HEADER_BYTES, HEIGHT_MAX, LEFT_OUT_AT, LINK_DEAD, TABLE_HEADER_BYTES,
    TABLE_NODES_AT, decode_table_header, encode_table_header,
};
use super::node::{NewNode, head_bytes, height_for, link_at};
use super::search_hints::SearchHints;
use super::walk::{self, Walk, is_dead, keep_only, relink_sorted};
use super::{Node, SkipList};
use crate::parts::key::Target;
use crate::parts::latch::Latch;
use crate::types::{KEY_BYTES_MAX, key_hash};

/// The offset at which the arenas of these tests begin: not 0, as for memtables.
const ORIGIN: u64 = 1 << 20;

/// An entry, ordered as in a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    keyspace: u32,
    key: Vec<u8>,
    seq: Reverse<u64>,
    kind: u8,
    value: Vec<u8>,
}

impl Entry {
    fn new(keyspace: u32, key: &[u8], seq: u64, value: &[u8]) -> Entry {
        Entry {
            keyspace,
            key: key.to_vec(),
            seq: Reverse(seq),
            kind: 1,
            value: value.to_vec(),
        }
    }

    fn target(&self) -> Target<'_> {
        Target {
            keyspace: self.keyspace,
            key: &self.key,
            seq: self.seq.0,
        }
    }

    fn of(node: &Node<'_>) -> Entry {
        Entry {
            keyspace: node.header.keyspace,
            key: node.key.to_vec(),
            seq: Reverse(node.header.seq),
            kind: node.header.kind,
            value: node.value().unwrap().to_vec(),
        }
    }
}

/// A list in its own arena, laid out as a table.
struct Sample {
    bump: Bump,
    list: SkipList,
}

impl Sample {
    fn new(bytes: u64) -> Sample {
        let bump = Arena::new(bytes).unwrap().bump(ORIGIN);
        let mut claim = bump.claim(TABLE_NODES_AT, 64).unwrap();
        claim.write(0, &encode_table_header(7));
        claim.write(TABLE_HEADER_BYTES, &head_bytes());
        let list = SkipList::new(bump.region().clone(), ORIGIN + TABLE_HEADER_BYTES as u64);
        Sample { bump, list }
    }

    /// Creates a list with search hints, as in a memtable.
    fn memtable(bytes: u64, dense: bool) -> Sample {
        let Sample { bump, list } = Sample::new(bytes);
        let list = list.with_search_hints(SearchHints::new(bytes, dense));
        Sample { bump, list }
    }

    /// Writes the node of an entry without linking it.
    fn write(&self, entry: &Entry, height: u8) -> u64 {
        let node = NewNode {
            keyspace: entry.keyspace,
            seq: entry.seq.0,
            kind: entry.kind,
            hash: key_hash(entry.keyspace, &entry.key),
            height,
            key: &entry.key,
            value: &entry.value,
            value_crc: crc32c::crc32c(&entry.value),
            more: false,
        };
        let mut claim = self.bump.claim(node.bytes(), 8).unwrap();
        node.write(&mut claim, 0);
        claim.off()
    }

    fn insert_at_height(&self, entry: &Entry, height: u8) -> u64 {
        let off = self.write(entry, height);
        self.list.insert(off, height, &entry.target()).unwrap();
        off
    }

    fn insert(&self, entry: &Entry) -> u64 {
        let height = height_for(key_hash(entry.keyspace, &entry.key), entry.seq.0);
        self.insert_at_height(entry, height)
    }

    /// Returns the whole list, checked.
    fn checked(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.list
            .check(
                &Latch::default(),
                &mut |node, value| {
                    value.unwrap();
                    entries.push(Entry::of(node));
                },
                &mut || {},
            )
            .unwrap();
        entries
    }

    fn end(&self) -> u64 {
        self.bump.start() + self.bump.used()
    }
}

/// Returns entries whose order is easy to get wrong: the empty key, the longest key, prefixes of
/// one another, keys that differ in the last byte of a word, several versions and keyspaces.
fn awkward_entries(rng: &mut fastrand::Rng, count: usize, seqs: &AtomicU64) -> Vec<Entry> {
    let mut keys: Vec<Vec<u8>> = vec![
        vec![],
        vec![0],
        vec![0; 8],
        vec![0; 9],
        vec![255],
        vec![255; KEY_BYTES_MAX],
        vec![b'a'; KEY_BYTES_MAX],
        b"abcdefg".to_vec(),
        b"abcdefgh".to_vec(),
        b"abcdefgh\0".to_vec(),
        b"abcdefghi".to_vec(),
        b"abcdefgx".to_vec(),
        vec![0x7f, 0x80],
        vec![0x80, 0x7f],
    ];
    for _ in 0..count / 3 {
        let length = rng.usize(0..24);
        keys.push((0..length).map(|_| b'a' + rng.u8(0..3)).collect());
    }
    (0..count)
        .map(|i| {
            let key = if i < keys.len() {
                keys[i].clone()
            } else {
                rng.choice(&keys).cloned().unwrap()
            };
            let value: Vec<u8> = (0..rng.usize(0..40)).map(|_| rng.u8(..)).collect();
            let seq = seqs.fetch_add(1, Ordering::Relaxed);
            let mut entry = Entry::new(rng.u32(1..3), &key, seq, &value);
            entry.kind = rng.u8(1..3);
            entry
        })
        .collect()
}

/// After several threads have inserted concurrently, the list contains every entry in order, with
/// sound towers. Meanwhile a reader finds every entry inserted before its search.
#[test]
fn threads_insert_in_order() {
    const WRITERS: usize = 3;
    for seed in 0..4 {
        let sample = match seed % 2 {
            0 => Sample::memtable(64 << 20, true),
            _ => Sample::new(64 << 20),
        };
        let seqs = AtomicU64::new(1);
        let mut rng = fastrand::Rng::with_seed(seed);
        let shares: Vec<Vec<Entry>> = (0..WRITERS)
            .map(|_| awkward_entries(&mut rng, 700, &seqs))
            .collect();
        let done: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for (share, done) in shares.iter().zip(&done) {
                let sample = &sample;
                scope.spawn(move || {
                    for entry in share {
                        sample.insert(entry);
                        done.fetch_add(1, Ordering::Release);
                    }
                });
            }
            let mut all = 0;
            while all < WRITERS * 700 {
                all = 0;
                for (share, done) in shares.iter().zip(&done) {
                    let inserted = done.load(Ordering::Acquire) as usize;
                    all += inserted;
                    if inserted == 0 {
                        continue;
                    }
                    let entry = &share[rng.usize(..inserted)];
                    let found = sample.list.seek(&entry.target()).unwrap().node;
                    assert_ne!(found, 0, "an inserted entry is found");
                    assert_eq!(&Entry::of(&sample.list.node(found).unwrap()), entry);
                }
                let mut last = None;
                sample
                    .list
                    .check_growing(&mut |node, value| {
                        value.unwrap();
                        let entry = Entry::of(node);
                        assert!(last.as_ref() < Some(&entry), "a walk ascends");
                        last = Some(entry);
                    })
                    .unwrap();
            }
        });
        let mut expected = shares.concat();
        expected.sort();
        assert_eq!(sample.checked(), expected, "seed {seed}");
    }
}

/// A walk over an extent finds every node in the order of writing, and reports a node that the end
/// cuts off.
#[test]
fn walks_find_every_node_where_it_lies() {
    let sample = Sample::new(4 << 20);
    let mut rng = fastrand::Rng::with_seed(5);
    let entries = awkward_entries(&mut rng, 100, &AtomicU64::new(1));
    let offs: Vec<u64> = entries.iter().map(|e| sample.insert(e)).collect();
    let start = ORIGIN + TABLE_NODES_AT as u64;
    let region = sample.list.region();
    let mut walk = Walk::new(region, start, sample.end());
    for (entry, off) in entries.iter().zip(&offs) {
        assert_eq!(walk.position(), *off);
        let node = walk.next_node().unwrap().unwrap();
        assert_eq!((&Entry::of(&node), node.off), (entry, *off));
    }
    assert!(walk.next_node().unwrap().is_none());
    assert!(walk.next_node().unwrap().is_none());

    let mut short = Walk::new(region, start, sample.end() - 8);
    let mut count = 0;
    let error = loop {
        match short.next_node() {
            Ok(Some(_)) => count += 1,
            Ok(None) => panic!("the last node is cut off"),
            Err(e) => break e,
        }
    };
    assert_eq!(count, entries.len() - 1);
    assert_eq!(error.offset, *offs.last().unwrap());
}

/// When links are lost, a list rebuilt from its sorted nodes equals the original, and none of its
/// nodes is dead.
#[test]
fn rebuilt_lists_are_whole() {
    let sample = Sample::new(8 << 20);
    let region = sample.list.region().clone();
    let mut rng = fastrand::Rng::with_seed(6);
    let entries = awkward_entries(&mut rng, 400, &AtomicU64::new(1));
    let nodes: BTreeMap<&Entry, u64> = entries.iter().map(|e| (e, sample.insert(e))).collect();
    let scramble = |rng: &mut fastrand::Rng, off: u64| {
        let height = usize::from(sample.list.node(off).unwrap().header.height);
        for level in 0..height {
            let word = region.word(link_at(off, level)).unwrap();
            word.store(rng.u64(..), Ordering::Relaxed);
        }
    };
    for keep in [1.0, 0.5, 0.0] {
        scramble(&mut rng, sample.list.head());
        nodes.values().for_each(|&off| scramble(&mut rng, off));
        let kept: Vec<(&Entry, u64)> = nodes
            .iter()
            .map(|(e, off)| (*e, *off))
            .filter(|_| rng.f64() < keep)
            .collect();
        let offs = kept.iter().map(|(_, off)| *off);
        relink_sorted(&region, sample.list.head(), offs).unwrap();
        let expected: Vec<Entry> = kept.iter().map(|(e, _)| (*e).clone()).collect();
        assert_eq!(sample.checked(), expected);
        for (_, off) in kept {
            assert!(!is_dead(&region, off).unwrap());
        }
    }
}

/// Nodes are sorted by their keys and numbers, whatever their links are.
#[test]
fn sorting_needs_no_links() {
    let mut rng = fastrand::Rng::with_seed(41);
    for (lean, begin) in [(false, ""), (true, ""), (false, "all keys begin so")] {
        let sample = Sample::new(16 << 20);
        let seqs = AtomicU64::new(1);
        let mut entries = awkward_entries(&mut rng, 500, &seqs);
        for entry in &mut entries {
            entry.key.truncate(KEY_BYTES_MAX - begin.len());
            entry.key.splice(..0, begin.bytes());
        }
        let mut offs: Vec<u64> = entries.iter().map(|entry| sample.write(entry, 1)).collect();
        entries.sort();
        let region = sample.list.region();
        walk::sort(region, &mut offs, lean).unwrap();
        let sorted = offs
            .iter()
            .map(|&off| Entry::of(&sample.list.node(off).unwrap()));
        assert!(sorted.eq(entries.iter().cloned()), "{lean}");
        // The same version twice.
        offs.push(sample.write(&entries[250], 1));
        let same = walk::sort(region, &mut offs, lean).unwrap_err();
        assert_eq!(same.expected, "the only node of its version");
    }
}

/// After a kill the links of the first nodes are whole, and those of others are in any state: the
/// first stay, all others leave. A node that lacks a link on any of its levels is noticed.
#[test]
fn only_whole_towers_are_kept() {
    let mut rng = fastrand::Rng::with_seed(42);
    for turn in 0..60 {
        let sample = Sample::new(16 << 20);
        let list = &sample.list;
        let seqs = AtomicU64::new(1);
        let count = rng.usize(..80);
        let mut entries = awkward_entries(&mut rng, 80, &seqs);
        let mut first: Vec<u64> = entries[..count].iter().map(|e| sample.insert(e)).collect();
        for entry in &entries[count..] {
            // Linked on some levels from the lowest up, or on none.
            let height = height_for(key_hash(entry.keyspace, &entry.key), entry.seq.0);
            let off = sample.write(entry, height);
            match rng.u8(..=height) {
                0 => {}
                linked => list.insert(off, linked, &entry.target()).unwrap(),
            }
        }
        assert!(
            keep_only(list.region(), list.head(), &first).unwrap(),
            "{turn}"
        );
        entries.truncate(count);
        entries.sort();
        assert_eq!(sample.checked(), entries, "{turn}");
        if let Some(lost) = first.pop() {
            // It is linked on all levels, but so is one more.
            assert!(!first.is_empty() || count == 1);
            let node = list.node(lost).unwrap();
            let level = rng.usize(..usize::from(node.header.height));
            let before = match list.seek_before(&node.target(), level).unwrap() {
                0 => list.head(),
                off => off,
            };
            let after = list.next(lost, level).unwrap();
            let word = list.region().word(link_at(before, level)).unwrap();
            word.store(after, Ordering::Relaxed);
            first.push(lost);
            assert!(
                !keep_only(list.region(), list.head(), &first).unwrap(),
                "{turn}"
            );
        }
    }
}

/// Nodes that are not kept may lead anywhere: to bytes that are no node, back, or to a node that is
/// not on the level. Then links that are missing are noticed even if as many nodes are found.
#[test]
fn strays_are_not_taken_for_kept_nodes() {
    let entry = |key: &[u8], seq, value: &[u8]| Entry::new(1, key, seq, value);
    // By the heights of a, b and c, in the order of keys: they are written from the last on.
    let list_of = |heights: [u8; 3]| {
        let sample = Sample::new(1 << 20);
        let c = sample.write(&entry(&[3], 1, b""), heights[2]);
        // Taken for a link, its key leads nowhere.
        let b = sample.write(&entry(&[2, 0, 0, 0, 0, 0, 0, 0], 2, &[0; 80]), heights[1]);
        let a = sample.write(&entry(&[1], 3, b""), heights[0]);
        let stray = sample.write(&entry(&[9], 4, b""), 2);
        (sample, [a, b, c], stray)
    };
    let link = |sample: &Sample, from: u64, level: usize, to: u64| {
        let word = sample.list.region().word(link_at(from, level)).unwrap();
        word.store(to, Ordering::Relaxed);
    };
    let whole = |sample: &Sample, [a, b, c]: [u64; 3]| {
        let head = sample.list.head();
        keep_only(sample.list.region(), head, &[c, b, a]).unwrap()
    };

    // b is lost, and the stray leads to bytes in it, from where c is reached.
    let (sample, [a, b, c], stray) = list_of([1, 1, 1]);
    let head = sample.list.head();
    let inside = b + 64;
    for (from, to) in [(head, a), (a, stray), (stray, inside), (inside, c), (b, c)] {
        link(&sample, from, 0, to);
    }
    assert!(!whole(&sample, [a, b, c]), "bytes inside a node");

    // The head leads to c alone, and the stray behind it back to a.
    let (sample, [a, b, c], stray) = list_of([1, 1, 1]);
    let head = sample.list.head();
    for (from, to) in [(head, c), (c, stray), (stray, a), (a, b)] {
        link(&sample, from, 0, to);
    }
    assert!(!whole(&sample, [a, b, c]), "a node that comes earlier");

    // On level 1 the stray leads to b, which is on level 0 only.
    let (sample, [a, b, c], stray) = list_of([2, 1, 2]);
    let head = sample.list.head();
    for (level, from, to) in [
        (0, head, a),
        (0, a, b),
        (0, b, c),
        (1, head, a),
        (1, a, stray),
    ] {
        link(&sample, from, level, to);
    }
    link(&sample, stray, 1, b);
    assert!(!whole(&sample, [a, b, c]), "a node without the level");

    // Links that are there are found around a stray.
    let (sample, [a, b, c], stray) = list_of([2, 1, 2]);
    let head = sample.list.head();
    for (level, from, to) in [
        (0, head, a),
        (0, a, b),
        (0, b, stray),
        (0, stray, c),
        (1, head, a),
        (1, a, stray),
        (1, stray, c),
    ] {
        link(&sample, from, level, to);
    }
    assert!(whole(&sample, [a, b, c]));
    assert_eq!(sample.checked().len(), 3);
}

/// A node is dead if the flag in its first link is set. Searches ignore the flag.
#[test]
fn dead_flags_do_not_disturb_searches() {
    let sample = Sample::new(1 << 20);
    let entries: Vec<Entry> = (0..9).map(|i| Entry::new(1, &[i], 1, b"v")).collect();
    let offs: Vec<u64> = entries.iter().map(|e| sample.insert(e)).collect();
    let region = sample.list.region();
    for &off in &offs {
        let word = region.word(link_at(off, 0)).unwrap();
        word.fetch_or(LINK_DEAD, Ordering::Relaxed);
        assert!(is_dead(region, off).unwrap());
    }
    assert_eq!(sample.checked(), entries);
    for (entry, off) in entries.iter().zip(offs) {
        assert_eq!(sample.list.seek(&entry.target()).unwrap().node, off);
    }
}

/// Towers are geometric: each level holds between a fifth and a little over half of the nodes below
/// it, and the versions of one key have towers as varied as those of different keys.
#[test]
fn heights_are_geometric() {
    for one_key in [false, true] {
        let mut higher = [0u64; HEIGHT_MAX + 1];
        for i in 0..1 << 16u64 {
            let key = if one_key { 0u64 } else { i };
            let hash = key_hash(1, &key.to_le_bytes());
            let height = usize::from(height_for(hash, i));
            assert_ne!(height, 0, "no node is without a link");
            higher[..height].iter_mut().for_each(|n| *n += 1);
        }
        for level in 0..6 {
            let ratio = higher[level + 1] as f64 / higher[level] as f64;
            assert!((0.2..0.55).contains(&ratio), "level {level}: {higher:?}");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16);
    let lines = lines.map(|line| line.iter().map(|b| format!("{b:02x}")).collect::<String>());
    lines.collect::<Vec<_>>().join("\n")
}

/// The bytes of a node, a head and a table header match format version 1.
#[test]
fn the_layout_is_pinned() {
    let sample = Sample::new(1 << 16);
    let off = sample.write(
        &Entry {
            keyspace: 0x0102_0304,
            key: b"golden key".to_vec(),
            seq: Reverse(0x00a1_a2a3_a4a5_a6a7),
            kind: 2,
            value: b"a value of 21 bytes..".to_vec(),
        },
        3,
    );
    let region = sample.list.region();
    let links: [u64; 3] = [0x1111, 0x2222, 0x3333];
    for (level, link) in links.into_iter().enumerate() {
        let word = region.word(link_at(off, level)).unwrap();
        word.store(link << 3, Ordering::Relaxed);
    }
    let bytes = region
        .bytes(off, HEADER_BYTES + 3 * 8 + 10 + 21)
        .unwrap()
        .to_vec();
    assert_eq!(hex(&bytes), GOLDEN_NODE);
    // The checksum as the table in layout.rs defines it.
    let crc = crc32c::crc32c(&bytes[4..32]);
    let crc = crc32c::crc32c_append(crc, b"golden key");
    let value_crc = crc32c::crc32c(b"a value of 21 bytes..");
    let crc = crc32c::crc32c_append(crc, &value_crc.to_le_bytes());
    assert_eq!(bytes[..4], crc.to_le_bytes());
    let node = sample.list.node(off).unwrap();
    assert_eq!(node.checked_value().unwrap().1, value_crc);
    assert_eq!(node.header.node_bytes(), 88);

    let head = head_bytes();
    assert_eq!(hex(&head[..HEADER_BYTES]), GOLDEN_HEAD);
    assert!(head[HEADER_BYTES..].iter().all(|&b| b == 0));
    assert_eq!((head.len(), HEAD_BYTES), (160, 160));

    let header = encode_table_header(0x0807_0605_0403_0201);
    assert_eq!(hex(&header), GOLDEN_TABLE_HEADER);
    assert_eq!(
        decode_table_header(&header, 0).unwrap(),
        0x0807_0605_0403_0201
    );
}

const GOLDEN_NODE: &str = "\
f3818b7f0403020102a7a6a5a4a3a2a1
74ac5feb504d5fd30a00000315000000
88880000000000001011010000000000
9899010000000000676f6c64656e206b
6579612076616c7565206f6620323120
62797465732e2e";
const GOLDEN_HEAD: &str = "\
75a59aff000000000000000000000000
00000000000000000000001000000000";
const GOLDEN_TABLE_HEADER: &str = "\
5454424c010000000102030405060708
00000000000000000000000000000000
00000000000000000000000000000000
00000000000000000000000086c1ffc8";

/// A table header with any bit changed or any bytes missing is refused.
#[test]
fn damaged_table_headers_are_refused() {
    let header = encode_table_header(9);
    for at in 0..header.len() * 8 {
        let mut damaged = header;
        damaged[at / 8] ^= 1 << (at % 8);
        // The count that merges store there is checked against the links instead.
        if (LEFT_OUT_AT..LEFT_OUT_AT + 8).contains(&(at / 8)) {
            assert_eq!(decode_table_header(&damaged, 4096).unwrap(), 9);
            continue;
        }
        let error = decode_table_header(&damaged, 4096).unwrap_err();
        assert_eq!(error.offset, 4096);
    }
    for len in 0..header.len() {
        decode_table_header(&header[..len], 0).unwrap_err();
    }
}
