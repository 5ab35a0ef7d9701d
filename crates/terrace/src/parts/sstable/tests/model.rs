//! Tests of tables against a map with versions: every read, every walk, every setting.

use std::cmp::Reverse;
use std::sync::Arc;

use super::super::{MultiRead, Place, Properties, Verified};
use super::*;
use crate::types::DbId;

/// Returns a model with long and empty common prefixes, the empty key and many versions.
fn random_model(rng: &mut fastrand::Rng, rows: usize) -> Model {
    let mut model = Model::default();
    let shape = rng.u32(..4);
    let mut key = Vec::new();
    for _ in 0..rows {
        let keyspace = rng.u32(..3) * 300;
        if rng.u32(..3) > 0 || key.is_empty() {
            key = match shape {
                0 => format!("key{:06}", rng.u32(..2000)).into_bytes(),
                1 => (0..rng.usize(..5)).map(|_| rng.u8(..3) * 127).collect(),
                2 => [vec![b'p'; rng.usize(..40)], vec![rng.u8(..)]].concat(),
                _ => (0..rng.usize(..30)).map(|_| rng.u8(..)).collect(),
            };
        }
        let kind = match rng.u32(..10) {
            0 | 1 => EntryKind::Delete as u8,
            2 => kind::VALUE_POINTER,
            _ => EntryKind::Put as u8,
        };
        let value = match (kind == EntryKind::Delete as u8, rng.u32(..20)) {
            (true, _) => Vec::new(),
            (_, 0) => vec![rng.u8(..); rng.usize(..3000)],
            _ => (0..rng.usize(..150)).map(|_| rng.u8(b'a'..b'f')).collect(),
        };
        let expiry = if rng.u32(..8) == 0 { rng.u64(1..) } else { 0 };
        let row = Row {
            kind,
            expiry,
            value,
        };
        let seq = if rng.u32(..50) == 0 {
            SEQ_MAX
        } else {
            rng.u64(..1000)
        };
        model
            .rows
            .insert((keyspace, key.clone(), Reverse(seq)), row);
    }
    let keys: Vec<Vec<u8>> = model.rows.keys().map(|(_, key, _)| key.clone()).collect();
    for _ in 0..rng.usize(..8) * usize::from(rng.bool()) {
        let mut pick = || match keys.is_empty() {
            true => Vec::new(),
            false => keys[rng.usize(..keys.len())].clone(),
        };
        let range = RangeDelete {
            begin: pick(),
            end: pick(),
            keyspace: rng.u32(..3) * 300,
            seq: rng.u64(..1000),
        };
        if range.is_some() {
            model.ranges.push(range);
        }
    }
    model
}

fn random_options(rng: &mut fastrand::Rng) -> SstOptions {
    let compressions = compressions();
    SstOptions {
        db: DbId(*b"sixteen bytes id"),
        block_bytes: [1, 64, 300, 4096][rng.usize(..4)],
        restart_interval: [1, 2, 3, 16][rng.usize(..4)],
        index_block_bytes: [1, 80, 32 << 10][rng.usize(..3)],
        filter_bits_per_key: [0, 1, 10][rng.usize(..3)],
        compression: compressions[rng.usize(..compressions.len())],
        direct: rng.bool(),
        write_bytes: [1, 4096, 1 << 20][rng.usize(..3)],
    }
}

/// Returns places in and around the entries of the model.
fn places(rng: &mut fastrand::Rng, model: &Model, count: usize) -> Vec<(u32, Vec<u8>, u64)> {
    let rows: Vec<_> = model.rows.keys().collect();
    let near = |rng: &mut fastrand::Rng| {
        let Some((keyspace, key, Reverse(seq))) = rows.get(rng.usize(..rows.len().max(1))) else {
            return (0, Vec::new(), 5);
        };
        let mut key = key.clone();
        match rng.u32(..6) {
            0 => key.push(rng.u8(..)),
            1 => drop(key.pop()),
            2 if !key.is_empty() => {
                let at = rng.usize(..key.len());
                key[at] = key[at].wrapping_add(rng.u8(..));
            }
            _ => {}
        }
        let seq = match rng.u32(..4) {
            0 => SEQ_MAX,
            1 => seq.saturating_sub(1),
            2 => rng.u64(..1000),
            _ => *seq,
        };
        (*keyspace + rng.u32(..10) / 9, key, seq)
    };
    (0..count).map(|_| near(rng)).collect()
}

fn check_reads(rng: &mut fastrand::Rng, table: &SsTable, model: &Model) {
    for (keyspace, key, Reverse(seq)) in model.rows.keys() {
        let at = target(*keyspace, key, *seq);
        agrees(model, &at, get(table, &at).unwrap().as_ref());
    }
    let places = places(rng, model, 200);
    for (keyspace, key, seq) in &places {
        let at = target(*keyspace, key, *seq);
        agrees(model, &at, get(table, &at).unwrap().as_ref());
    }
    let mut reads: Vec<_> = places
        .iter()
        .map(|(keyspace, key, seq)| {
            MultiRead::new(target(*keyspace, key, *seq), key_hash(*keyspace, key))
        })
        .collect();
    table
        .multi_get(&mut reads, &mut ReadCounts::default())
        .unwrap();
    for read in &reads {
        agrees(model, &read.target, read.answer.as_ref());
    }
}

fn check_walks(rng: &mut fastrand::Rng, table: &Arc<SsTable>, model: &Model) {
    let rows: Vec<Seen> = model.rows.clone().into_iter().collect();
    assert_eq!(all(table).unwrap(), rows);
    let mut cursor = SstCursor::new(Arc::clone(table), rng.bool());
    cursor.read_ahead([0, 500, 1 << 20][rng.usize(..3)]);
    cursor.seek_to_last().unwrap();
    for row in rows.iter().rev() {
        assert_eq!(seen(&cursor).as_ref(), Some(row));
        cursor.retreat().unwrap();
    }
    assert_eq!(seen(&cursor), None);
    for (keyspace, key, seq) in places(rng, model, 60) {
        let to = target(keyspace, &key, seq);
        let at = rows.partition_point(|(place, _)| *place < (keyspace, key.clone(), Reverse(seq)));
        match rng.u32(..3) {
            0 => {
                cursor.seek_to_before(&to).unwrap();
                assert_eq!(
                    seen(&cursor).as_ref(),
                    at.checked_sub(1).map(|at| &rows[at])
                );
            }
            1 => {
                cursor.seek_before(&to, rng.usize(..4)).unwrap();
                let found = seen(&cursor);
                assert!(found.is_none_or(|found| rows[..at].contains(&found)));
            }
            _ => {
                cursor.seek(&to).unwrap();
                assert!(cursor.hold());
                let mut at = at;
                for _ in 0..12 {
                    assert_eq!(seen(&cursor).as_ref(), rows.get(at));
                    if rng.bool() {
                        cursor.advance().unwrap();
                        at = (at + 1).min(rows.len());
                    } else {
                        cursor.retreat().unwrap();
                        // An unpositioned cursor stays unpositioned.
                        at = if at == rows.len() {
                            at
                        } else {
                            at.wrapping_sub(1)
                        };
                    }
                    if at >= rows.len() {
                        assert_eq!(seen(&cursor), None);
                        break;
                    }
                }
                cursor.release();
            }
        }
    }
}

fn check_facts(table: &SsTable, finished: &Finished, model: &Model) {
    let p: &Properties = table.properties();
    assert_eq!(p, &finished.properties);
    assert_eq!(table.file_bytes(), finished.file_bytes);
    assert_eq!(table.number(), finished.number);
    assert_eq!(p.entry_count, model.rows.len() as u64);
    let smallest = model.rows.keys().map(|(_, _, seq)| seq.0).min();
    let ranges = model.ranges.iter().map(|range| range.seq).min();
    let least = [smallest, ranges].into_iter().flatten().min();
    assert_eq!(p.seqs.map(|seqs| seqs.0), least);
    let first = model.rows.keys().next();
    let found = p.entries.as_ref().map(|(first, _)| first);
    assert_eq!(found.map(|f| &f.key), first.map(|(_, key, _)| key));
    let last = model.rows.keys().next_back();
    let found = p
        .entries
        .as_ref()
        .map(|(_, last): &(Place, Place)| last.target());
    assert_eq!(found.map(|f| f.seq), last.map(|(_, _, seq)| seq.0));
    let expiring = model.rows.values().filter(|row| row.expiry != 0).count();
    assert_eq!(p.expiring_count, expiring as u64);
    assert_eq!(p.ranges.is_some(), !model.ranges.is_empty());
    assert_eq!(table.range_deletes().is_empty(), model.ranges.is_empty());
    let mut visited = 0;
    let verified: Verified = table.verify(&mut |bytes| visited += bytes, &mut |_| Ok(0));
    assert_eq!(verified.problems, Vec::<String>::new());
    assert_eq!(verified.entries, model.rows.len() as u64);
    assert_eq!(verified.bytes, visited);
}

/// For any entries and any settings, every read and walk agrees with a map with versions, and
/// verify finds no problem.
#[test]
fn tables_equal_a_map_with_versions() {
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let rows = [0, 1, 2, 40, 400][rng.usize(..5)];
        let model = random_model(&mut rng, rows);
        let options = random_options(&mut rng);
        println!("seed {seed}: {} rows, {options:?}", model.rows.len());
        let fs = machine();
        let finished = write(&fs, file(), options, &model).unwrap();
        let cache = Arc::new(SstCache::new([0, 3000, 8 << 20][rng.usize(..3)]));
        let table = open(&*fs, file(), &cache).unwrap();
        check_reads(&mut rng, &table, &model);
        check_walks(&mut rng, &table, &model);
        check_facts(&table, &finished, &model);
        drop(table);
        assert_eq!(cache.used_bytes().1, 0, "a closed table holds nothing");
    }
}

/// The empty key, keys of maximum length that differ only at the end, values larger than any block,
/// and versions of one key over many blocks are found like all others.
#[test]
fn extreme_entries_are_found() {
    let mut model = Model::default();
    model.put(0, b"", 9, b"first of all");
    model.put(0, b"", 3, b"");
    let mut long = vec![0xff; crate::types::KEY_BYTES_MAX];
    for last in 0..8 {
        if let Some(end) = long.last_mut() {
            *end = last * 30;
        }
        model.put(1, &long, 5, &[last; 10]);
        model.put(1, &long[..long.len() - 1 - last as usize], 6, b"shorter");
    }
    for seq in 0..3000 {
        model.put(2, b"one key", seq * 3, format!("version {seq}").as_bytes());
    }
    model.put(3, b"large", 1, &vec![b'x'; 5 << 20]);
    let noise: Vec<u8> = (0..3u32 << 20)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8)
        .collect();
    model.put(3, b"larger", 1, &noise);
    model.put(u32::MAX, b"", 1, b"in the last keyspace");
    for compression in compressions() {
        for options in [
            tiny(compression),
            SstOptions {
                compression,
                ..SstOptions::default()
            },
        ] {
            let fs = machine();
            let finished = write(&fs, file(), options, &model).unwrap();
            let table = open(&*fs, file(), &cache()).unwrap();
            check_facts(&table, &finished, &model);
            assert_eq!(all(&table).unwrap().len(), model.rows.len());
            let mut rng = fastrand::Rng::with_seed(8);
            check_walks(&mut rng, &table, &model);
            for (keyspace, key, Reverse(seq)) in model.rows.keys() {
                for seq in [*seq, seq + 1, SEQ_MAX] {
                    let at = target(*keyspace, key, seq);
                    agrees(&model, &at, get(&table, &at).unwrap().as_ref());
                }
            }
            if compression == Compression::None {
                assert!(finished.file_bytes > 8 << 20);
            } else {
                assert!(finished.file_bytes < 7 << 20, "{}", finished.file_bytes);
            }
        }
    }
}

/// A large value does not share its block, so reading its neighbours does not read it.
#[test]
fn large_values_have_blocks_of_their_own() {
    let mut model = Model::default();
    for i in 0..20u8 {
        model.put(1, &[i], 1, b"small");
    }
    model.put(1, &[10], 1, &vec![1; 1 << 20]);
    let fs = machine();
    let options = SstOptions {
        compression: Compression::None,
        ..SstOptions::default()
    };
    write(&fs, file(), options, &model).unwrap();
    let table = open(&*fs, file(), &cache()).unwrap();
    assert_eq!(table.properties().data_block_count, 3);
    for (key, bytes_max) in [(9, 5000), (11, 5000), (10, (1 << 20) + 5000)] {
        let mut counts = ReadCounts::default();
        let key = [key];
        let at = target(1, &key, SEQ_MAX);
        let hash = key_hash(1, &key);
        assert!(table.get(&at, hash, &mut counts).unwrap().is_some());
        assert!(counts.file_bytes < bytes_max, "{counts:?}");
    }
}

/// A get of a cached block reads nothing, a filtered get reads no block, a walk and a batch read
/// far fewer times than they read blocks, and closed tables leave the budget.
#[test]
fn reads_are_as_few_as_promised() {
    let mut model = Model::default();
    for i in 0..4000u32 {
        model.put(1, format!("{i:08}").as_bytes(), 1, &[b'v'; 100]);
    }
    let fs = machine();
    let options = SstOptions {
        index_block_bytes: 2000,
        ..SstOptions::default()
    };
    write(&fs, file(), options, &model).unwrap();
    let cache = cache();
    let table = open(&*fs, file(), &cache).unwrap();
    let mut counts = ReadCounts::default();
    let key = b"00002000";
    let at = target(1, key, SEQ_MAX);
    let hash = key_hash(1, key);
    table.get(&at, hash, &mut counts).unwrap().unwrap();
    assert_eq!(
        (counts.blocks_read, counts.file_reads),
        (3, 3),
        "filter, index, data"
    );
    counts = ReadCounts::default();
    table.get(&at, hash, &mut counts).unwrap().unwrap();
    assert_eq!(
        (counts.file_reads, counts.cache_hits),
        (0, 2),
        "the filter is held"
    );
    counts = ReadCounts::default();
    let absent = key_hash(1, b"absent");
    assert!(
        table
            .get(&target(1, b"absent", 9), absent, &mut counts)
            .unwrap()
            .is_none()
    );
    assert_eq!((counts.filter_saved, counts.cache_hits), (1, 0));

    let mut cursor = SstCursor::new(Arc::clone(&table), false);
    cursor.seek_to_first().unwrap();
    while cursor.entry().unwrap().is_some() {
        cursor.advance().unwrap();
    }
    let walked = cursor.take_counts();
    assert!(walked.blocks_read > 100, "{walked:?}");
    assert!(walked.file_reads * 4 < walked.blocks_read, "{walked:?}");

    let keys: Vec<String> = (0..400).map(|i| format!("{:08}", i * 7)).collect();
    let fresh = open(&*fs, file(), &SstCache::new(8 << 20).into()).unwrap();
    let mut reads: Vec<_> = keys
        .iter()
        .map(|key| MultiRead::new(target(1, key.as_bytes(), 9), key_hash(1, key.as_bytes())))
        .collect();
    counts = ReadCounts::default();
    fresh.multi_get(&mut reads, &mut counts).unwrap();
    assert!(reads.iter().all(|read| read.answer.is_some()));
    assert!(counts.file_reads * 3 < counts.blocks_read, "{counts:?}");

    let (_, pinned) = cache.used_bytes();
    assert!(pinned > 4000, "upper index and filter: {pinned}");
    drop((cursor, table));
    assert_eq!(cache.used_bytes().1, 0);
}

/// A table opened for direct reads answers like any other.
#[test]
fn direct_reads_give_the_same() {
    let mut rng = fastrand::Rng::with_seed(31);
    let model = random_model(&mut rng, 3000);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table");
    let fs: Arc<dyn FileSystem> = Arc::new(terrace_media::OsFs);
    let options = SstOptions {
        direct: true,
        ..SstOptions::default()
    };
    write(&fs, &path, options, &model).unwrap();
    for mode in [ReadMode::Direct, ReadMode::Buffered] {
        let table = SsTable::open(&*fs, &path, NUMBER, mode, &cache()).unwrap();
        let table = Arc::new(table);
        assert_eq!(table.path(), path);
        check_reads(&mut rng, &table, &model);
        check_walks(&mut rng, &table, &model);
    }
}

/// Keys that split a table are in order, inside the table, and make parts of similar size. The
/// estimate between two places is accurate to within a few blocks.
#[test]
fn estimates_and_splits_are_near() {
    let mut model = Model::default();
    for i in 0..5000u32 {
        model.put(1, &i.to_be_bytes(), 1, &[b'v'; 50]);
    }
    for index_block_bytes in [500, 1 << 20] {
        let fs = machine();
        let options = SstOptions {
            index_block_bytes,
            ..SstOptions::default()
        };
        write(&fs, file(), options, &model).unwrap();
        let table = open(&*fs, file(), &cache()).unwrap();
        let mut counts = ReadCounts::default();
        let keys = table.split_keys(8, &mut counts).unwrap();
        assert!((6..8).contains(&keys.len()), "{} parts", keys.len());
        assert!(keys.is_sorted());
        let (mut from, mut sum) = (Vec::new(), 0);
        for key in keys.iter().map(|(_, key)| key.clone()).chain([vec![0xff]]) {
            let (a, b) = (target(1, &from, SEQ_MAX), target(1, &key, SEQ_MAX));
            let (entries, bytes) = table.approximate(&a, &b, &mut counts).unwrap();
            let next = model.rows.range((1, from.clone(), Reverse(SEQ_MAX))..);
            let exact = next.take_while(|(place, _)| place.1 < key).count() as u64;
            assert!(entries.abs_diff(exact) < 200, "{entries} for {exact}");
            assert!(bytes > 0);
            sum += entries;
            from = key;
        }
        assert!(sum.abs_diff(5000) < 100, "{sum}");
    }
}
