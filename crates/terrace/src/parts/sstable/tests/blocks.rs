//! Tests of the parts of blocks: separators, fragments of range deletes, and the writer's checks.

use super::super::block::{Block, Sought};
use super::super::build::{BlockBuilder, RawEntry};
use super::super::fetch::spare_memory;
use super::super::index::separator;
use super::super::layout::Handle;
use super::super::walk::BlockCursor;
use super::super::{RangeDeletes, VALUE_BYTES_MAX};
use super::*;
use crate::error::ErrorKind;
use crate::parts::memory::Memory;
use crate::parts::ranges::{Keep, fragment};

/// A separator is at or after the key before it, before the key after it, and no longer than
/// either.
#[test]
fn separators_separate() {
    let mut rng = fastrand::Rng::with_seed(41);
    for _ in 0..20_000 {
        let mut key = || {
            let tail = (0..rng.usize(..6)).map(|_| rng.u8(..4));
            [vec![0; 4], tail.collect()].concat()
        };
        let (mut last, mut next) = (key(), key());
        if last == next {
            continue;
        }
        if last > next {
            std::mem::swap(&mut last, &mut next);
        }
        let found = separator(&last, &next);
        assert!(last.as_slice() <= found && found < next.as_slice());
        assert!(found.len() <= last.len());
    }
}

/// A search finds the first entry at or after its place, with and without heads, for any common
/// prefix of the keys and any number of versions.
#[test]
fn searches_find_with_heads_and_without() {
    let mut rng = fastrand::Rng::with_seed(43);
    let mut made = [0; 3];
    for round in 0..600 {
        let interval = [1, 2, 16, 16][round % 4];
        let (letters, front) = (rng.u8(2..6), rng.usize(..40));
        let longest = rng.usize(3..14);
        let mut entries: Vec<(Vec<u8>, u64)> = (0..rng.usize(1..400))
            .map(|_| {
                let tail = (0..rng.usize(..longest)).map(|_| rng.u8(..letters));
                let key = [vec![0; 4], vec![b'f'; front], tail.collect()].concat();
                (key, rng.u64(..4))
            })
            .collect();
        entries.sort_by(|(a, x), (b, y)| a.cmp(b).then(y.cmp(x)));
        entries.dedup();
        let mut builder = BlockBuilder::new(interval);
        let value = vec![7; rng.usize(..60)];
        for (stored, seq) in &entries {
            builder.push(&RawEntry {
                stored,
                seq: *seq,
                kind: EntryKind::Put as u8,
                expiry: 0,
                value: &value,
            });
        }
        let block = Arc::new(Block::new(builder.finish().to_vec(), 0).unwrap());
        let before = block.weight();
        let mut cursor = BlockCursor::default();
        let mut sought = |stored: &[u8], seq: u64| {
            cursor.enter(Arc::clone(&block));
            let found = cursor.seek(&Sought { stored, seq }).unwrap();
            let expected = entries.iter().find(|(key, other)| {
                stored < key.as_slice() || stored == key.as_slice() && *other <= seq
            });
            let head = cursor.head();
            let found = found.then(|| (cursor.stored_key(), head.unwrap().tag.seq()));
            let expected = expected.map(|(key, seq)| (key.as_slice(), *seq));
            assert_eq!(found, expected, "{round}: {stored:?} {seq}");
        };
        // A block with few restarts is searched by restarts here, since it is the first search.
        sought(&entries[entries.len() / 2].0, 1);
        for (key, seq) in &entries {
            sought(key, *seq);
            sought(key, 0);
            sought(&[key.as_slice(), &[0]].concat(), 9);
            sought(&key[..key.len() - 1], 9);
            let mut other = key.clone();
            let at = rng.usize(4.min(other.len() - 1)..other.len());
            other[at] = other[at].wrapping_add(rng.u8(..3)).wrapping_sub(1);
            sought(&other, rng.u64(..5));
        }
        let heads = block.heads_bytes();
        let room = before - block.content_bytes() - size_of::<Block>();
        assert!(heads.unwrap_or(0) <= room, "{heads:?} in {room}");
        assert_eq!(block.weight(), before, "a cache counts it once");
        made[heads.map_or(0, |_| if interval == 1 { 1 } else { 2 })] += 1;
    }
    assert!(made.iter().all(|count| *count > 20), "{made:?}");
}

/// For any overlapping ranges, the fragments delete from each key exactly what the ranges delete.
/// They are in order and do not overlap.
#[test]
fn fragments_delete_what_ranges_do() {
    let mut rng = fastrand::Rng::with_seed(42);
    for seed in 0..500 {
        let model = Model {
            ranges: (0..rng.usize(..10))
                .map(|_| RangeDelete {
                    keyspace: rng.u32(..2),
                    begin: vec![rng.u8(..20)],
                    end: if rng.u32(..8) == 0 {
                        Vec::new()
                    } else {
                        vec![rng.u8(..20)]
                    },
                    seq: rng.u64(..8),
                })
                .collect(),
            ..Model::default()
        };
        let fragments = fragment(model.ranges.clone(), Keep::All);
        for pair in fragments.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            let alike = (a.keyspace, &a.begin, &a.end) == (b.keyspace, &b.begin, &b.end);
            let apart = !a.end.is_empty() && a.end <= b.begin || a.keyspace < b.keyspace;
            assert!(alike && a.seq > b.seq || apart, "{seed}: {a:?} {b:?}");
        }
        let mut content = super::super::ranges::encode(&fragments, 2);
        let content = content.finish().to_vec();
        let block = Block::new(content, 0).unwrap();
        let ranges = RangeDeletes::decode(Arc::new(block)).unwrap();
        assert_eq!(ranges.fragments(), fragments);
        for keyspace in 0..2 {
            for key in (0..21).map(|key| vec![key]).chain([Vec::new(), vec![3, 0]]) {
                for seq in 0..9 {
                    let at = target(keyspace, &key, seq);
                    assert_eq!(ranges.covering(&at), model.get(&at).1, "{seed} {at:?}");
                }
            }
        }
    }
}

/// The writer refuses entries out of order, too large or of unknown kind, and ranges without a key.
/// After an entry out of order it accepts nothing, and the file can be removed.
#[test]
fn writers_refuse_what_readers_could_not_find() {
    let fs = machine();
    let mut writer = SstWriter::create(&fs, file(), NUMBER, SstOptions::default()).unwrap();
    assert!(SstWriter::create(&fs, file(), NUMBER, SstOptions::default()).is_err());
    let entry = NewEntry {
        keyspace: 2,
        key: b"key",
        seq: 5,
        kind: EntryKind::Put as u8,
        expiry: 0,
        value: b"value",
    };
    writer.add(&entry).unwrap();
    assert_eq!(writer.entry_count(), 1);
    assert!(writer.estimated_bytes() > 128);
    let long = vec![0; crate::types::KEY_BYTES_MAX + 1];
    for wrong in [
        NewEntry {
            key: &long,
            ..entry
        },
        NewEntry {
            kind: 0,
            seq: 4,
            ..entry
        },
        NewEntry {
            kind: kind::RANGE_DELETE,
            seq: 4,
            ..entry
        },
        NewEntry {
            seq: SEQ_MAX + 1,
            key: b"z",
            ..entry
        },
    ] {
        assert_eq!(writer.add(&wrong).unwrap_err().kind(), ErrorKind::Invalid);
    }
    const { assert!(VALUE_BYTES_MAX > 1 << 30) };
    let range = RangeDelete {
        keyspace: 1,
        begin: b"b".to_vec(),
        end: b"b".to_vec(),
        seq: 1,
    };
    let refused = writer.add_range_delete(range.clone()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    writer.add(&NewEntry { seq: 4, ..entry }).unwrap();
    writer
        .add(&NewEntry {
            key: b"key1",
            seq: 9,
            ..entry
        })
        .unwrap();
    for wrong in [
        NewEntry {
            key: b"key1",
            seq: 9,
            ..entry
        },
        NewEntry {
            key: b"key1",
            seq: 10,
            ..entry
        },
        NewEntry {
            key: b"key",
            seq: 1,
            ..entry
        },
        NewEntry {
            keyspace: 1,
            key: b"z",
            ..entry
        },
    ] {
        let path = format!("/db/{}{}", wrong.seq, wrong.keyspace);
        let path = Path::new(&path);
        let mut other = SstWriter::create(&fs, path, NUMBER, SstOptions::default()).unwrap();
        other
            .add(&NewEntry {
                key: b"key1",
                seq: 9,
                ..entry
            })
            .unwrap();
        assert_eq!(other.add(&wrong).unwrap_err().kind(), ErrorKind::Corruption);
        let later = NewEntry { key: b"z", ..entry };
        assert_eq!(other.add(&later).unwrap_err().kind(), ErrorKind::Stopped);
        assert!(other.add_range_delete(range.clone()).is_err());
        other.abandon().unwrap();
        assert!(!fs.exists(path).unwrap());
    }
    let finished = writer.finish().unwrap();
    assert_eq!(
        (finished.number, finished.properties.entry_count),
        (NUMBER, 3)
    );
    if !cfg!(feature = "zstd") {
        let refused = SstWriter::create(&fs, Path::new("/db/z"), 1, tiny(Compression::Zstd));
        assert_eq!(
            refused.map(|_| ()).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        assert!(!fs.exists(Path::new("/db/z")).unwrap());
    }
}

/// The memory of a block evicted from a full cache is kept for the next block of about that size,
/// but not if there is a memory budget, which would not count it.
#[test]
fn memory_of_evicted_blocks_is_used_again() {
    const VALUE_BYTES: usize = 5000;
    let fs = machine();
    let mut model = Model::default();
    for i in 0..500u64 {
        model.put(1, &i.to_be_bytes(), i + 1, &[i as u8; VALUE_BYTES]);
    }
    // Each block contains one pair.
    let options = SstOptions {
        compression: Compression::None,
        ..SstOptions::default()
    };
    write(&fs, file(), options, &model).unwrap();
    let handle = |size| Handle { offset: 0, size };
    let budget = crate::Options::default().within(64 << 20, crate::Sizes::default());
    for memory in [Memory::unlimited(), Memory::of(&budget)] {
        let limited = memory.is_limited();
        let cache = Arc::new(SstCache::within(256 << 10, memory));
        let table = open(&*fs, file(), &cache).unwrap();
        let read = |range: std::ops::Range<u64>| {
            for i in range {
                assert!(
                    get(&table, &target(1, &i.to_be_bytes(), SEQ_MAX))
                        .unwrap()
                        .is_some()
                );
            }
        };
        read(0..250);
        let spare = spare_memory(handle(VALUE_BYTES as u32 - 100));
        assert_eq!(spare.capacity() > VALUE_BYTES, !limited);
        read(250..500);
        assert_eq!(spare_memory(handle(VALUE_BYTES as u32 / 2)).capacity(), 0);
    }
}
