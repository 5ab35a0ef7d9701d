//! Tests of tables with changed bytes: reads return an error or the truth, and never panic.

use super::super::block::{Block, Sought};
use super::super::layout::{
    BlockKind, CONTENT_BYTES_MAX, FOOTER_BYTES, Footer, FooterError, TRAILER_BYTES, encode_trailer,
};
use super::super::properties::Properties;
use super::super::walk::BlockCursor;
use super::super::{MultiRead, RangeDeletes};
use super::*;
use crate::error::ErrorKind;
use crate::parts::codec;
use crate::parts::compress::decompress;

fn small_model() -> Model {
    let mut model = Model::default();
    for i in 0..30u64 {
        model.put(
            1,
            format!("key{:03}", i / 2).as_bytes(),
            100 - i,
            b"some value, some value",
        );
    }
    model.put(2, b"", 7, &[9; 300]);
    let row = Row {
        kind: EntryKind::Delete as u8,
        expiry: 77,
        value: Vec::new(),
    };
    model.rows.insert((2, b"gone".to_vec(), Reverse(8)), row);
    model.ranges.push(RangeDelete {
        keyspace: 1,
        begin: b"key003".to_vec(),
        end: b"key006".to_vec(),
        seq: 90,
    });
    model
}

pub(super) fn bytes_of(fs: &dyn FileSystem, path: &Path) -> Vec<u8> {
    let file = fs.open(path, terrace_media::OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(0, &mut bytes).unwrap();
    bytes
}

pub(super) fn overwrite(fs: &dyn FileSystem, path: &Path, bytes: &[u8]) {
    let file = fs.open(path, terrace_media::OpenMode::Truncate).unwrap();
    file.write_at(0, bytes).unwrap();
}

/// Reads everything in every way, and checks that every result that is not an error is true.
fn error_or_truth(fs: &dyn FileSystem, model: &Model) -> Result<(), crate::error::Error> {
    let table = open(fs, file(), &cache())?;
    let mut failed = None;
    let mut note = |e: crate::error::Error| failed = Some(e);
    let rows: Vec<Seen> = model.rows.clone().into_iter().collect();
    match all(&table) {
        Ok(found) => assert_eq!(found, rows),
        Err(e) => note(e),
    }
    let mut cursor = SstCursor::new(Arc::clone(&table), true);
    let mut backward = cursor.seek_to_last();
    for row in rows.iter().rev() {
        if backward.is_err() {
            break;
        }
        assert_eq!(seen(&cursor).as_ref(), Some(row));
        backward = cursor.retreat();
    }
    backward.unwrap_or_else(&mut note);
    let mut reads = Vec::new();
    for (keyspace, key, Reverse(seq)) in model.rows.keys() {
        let at = target(*keyspace, key, *seq);
        match get(&table, &at) {
            Ok(answer) => agrees(model, &at, answer.as_ref()),
            Err(e) => note(e),
        }
        reads.push(MultiRead::new(at, key_hash(*keyspace, key)));
    }
    match table.multi_get(&mut reads, &mut ReadCounts::default()) {
        Ok(()) => reads
            .iter()
            .for_each(|read| agrees(model, &read.target, read.answer.as_ref())),
        Err(e) => note(e),
    }
    let verified = table.verify(&mut |_| {}, &mut |_| Ok(0));
    assert!(
        failed.is_none() || verified.problem_count > 0,
        "verify missed {failed:?}"
    );
    match (failed, verified.problems.first()) {
        (Some(e), _) => Err(e),
        (None, Some(problem)) => {
            // The path is added as on display, so the problem itself must not contain it.
            assert!(!problem.contains("/db/7.sst"), "{problem}");
            let shown = format!("{}: {problem}", table.path().display());
            Err(crate::error::Error::corruption(shown))
        }
        (None, None) => Ok(()),
    }
}

/// Any change of any byte of a table is detected by the open, by every read that needs the byte,
/// and by verify. The error names the file.
#[test]
fn every_changed_byte_is_found() {
    let model = small_model();
    let fs = machine();
    for compression in compressions() {
        let _ = fs.remove(file());
        write(&fs, file(), tiny(compression), &model).unwrap();
        error_or_truth(&*fs, &model).unwrap();
        let good = bytes_of(&*fs, file());
        for at in 0..good.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] ^= mask;
                overwrite(&*fs, file(), &bytes);
                let error = error_or_truth(&*fs, &model).expect_err("found");
                let text = error.to_string();
                assert!(text.contains("/db/7.sst"), "{text}");
                assert!(
                    matches!(error.kind(), ErrorKind::Corruption | ErrorKind::Unsupported),
                    "byte {at}: {text}"
                );
            }
        }
    }
}

/// A table truncated or extended anywhere, another table's file, and an empty file are refused.
#[test]
fn tables_of_other_lengths_are_refused() {
    let model = small_model();
    let fs = machine();
    write(&fs, file(), tiny(Compression::Lz4), &model).unwrap();
    let good = bytes_of(&*fs, file());
    for len in (0..good.len()).chain([good.len() + 1, good.len() * 2]) {
        let mut bytes = good.clone();
        bytes.resize(len, 0);
        overwrite(&*fs, file(), &bytes);
        let error = open(&*fs, file(), &cache()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{len} bytes");
    }
    overwrite(&*fs, file(), &good);
    let other = SsTable::open(&*fs, file(), NUMBER + 1, ReadMode::Buffered, &cache());
    let error = other.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("table 8"), "{error}");
    assert!(open(&*fs, Path::new("/db/none"), &cache()).is_err());
}

/// A block of another place or of another kind is refused, even though its checksum was correct
/// there.
#[test]
fn blocks_belong_to_their_place() {
    let mut model = Model::default();
    for i in 0..4u8 {
        model.put(1, &[i], 1, &[i; 250]);
    }
    let fs = machine();
    let options = SstOptions {
        filter_bits_per_key: 0,
        ..tiny(Compression::None)
    };
    write(&fs, file(), options, &model).unwrap();
    let good = bytes_of(&*fs, file());
    let table = open(&*fs, file(), &cache()).unwrap();
    let p = table.properties();
    let block = (p.data_bytes / p.data_block_count) as usize;
    assert_eq!(p.data_bytes % p.data_block_count, 0, "blocks of one size");
    let mut bytes = good.clone();
    bytes.copy_within(0..block, block);
    overwrite(&*fs, file(), &bytes);
    let table = open(&*fs, file(), &cache()).unwrap();
    assert!(get(&table, &target(1, &[1], 9)).is_err());
    assert!(get(&table, &target(1, &[0], 9)).is_ok());
    let payload = block - TRAILER_BYTES;
    let kind = BlockKind::Index;
    let trailer = encode_trailer(&good[..payload], Compression::None, kind, NUMBER, 0);
    bytes = good;
    bytes[payload..block].copy_from_slice(&trailer);
    overwrite(&*fs, file(), &bytes);
    let table = open(&*fs, file(), &cache()).unwrap();
    let error = get(&table, &target(1, &[0], 9)).unwrap_err();
    assert!(error.to_string().contains("kind 2"), "{error}");
}

/// A later version or an unknown feature is refused as unsupported, not as damaged.
#[test]
fn later_formats_are_refused_by_name() {
    let fs = machine();
    write(&fs, file(), tiny(Compression::None), &small_model()).unwrap();
    let good = bytes_of(&*fs, file());
    let footer_at = good.len() - FOOTER_BYTES;
    for (at, value) in [(4, 3u8), (24, 0x80), (27, 1)] {
        let mut bytes = good.clone();
        bytes[footer_at + at] = value;
        let crc = codec::checksum(&bytes[footer_at..footer_at + 124]);
        bytes[footer_at + 124..].copy_from_slice(&crc.to_le_bytes());
        let found = Footer::decode(&bytes[footer_at..], NUMBER, bytes.len() as u64);
        assert!(matches!(found, Err(FooterError::Newer { .. })), "{found:?}");
        overwrite(&*fs, file(), &bytes);
        let error = open(&*fs, file(), &cache()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

/// Any bytes as a block, a footer, properties, a filter, compressed content or range deletes are
/// accepted or refused. Accepted bytes can be searched and walked without a panic.
#[test]
fn decoders_take_any_bytes() {
    let fs = machine();
    let mut rng = fastrand::Rng::with_seed(51);
    let model = small_model();
    let mut content = super::super::build::BlockBuilder::new(3);
    for ((keyspace, key, Reverse(seq)), row) in &model.rows {
        let stored = [&keyspace.to_be_bytes()[..], key].concat();
        content.push(&super::super::build::RawEntry {
            stored: &stored,
            seq: *seq,
            kind: row.kind,
            expiry: row.expiry,
            value: &row.value,
        });
    }
    let content = content.finish().to_vec();
    write(&fs, file(), tiny(Compression::Lz4), &model).unwrap();
    let good = bytes_of(&*fs, file());
    let table = open(&*fs, file(), &cache()).unwrap();
    let properties = table.properties().encode();
    let footer = good[good.len() - FOOTER_BYTES..].to_vec();
    let packed = lz4_flex::block::compress_prepend_size(&content);
    for round in 0..60_000u32 {
        let mut bytes = [&content, &properties, &footer, &packed][round as usize % 4].clone();
        for _ in 0..rng.usize(1..5) {
            let at = rng.usize(..bytes.len());
            match rng.u32(..5) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes.insert(at, rng.u8(..)),
                2 => bytes[at] ^= 1 << rng.u32(..8),
                _ => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, rng.u8(..)][rng.usize(..6)],
            }
        }
        let _ = Properties::decode(&bytes, 0);
        if let Some(at) = bytes.len().checked_sub(4) {
            let crc = codec::checksum(&bytes[..at]);
            let mut footer = bytes.clone();
            footer[at..].copy_from_slice(&crc.to_le_bytes());
            let _ = Footer::decode(&footer, NUMBER, good.len() as u64);
        }
        for compression in compressions() {
            if compression != Compression::None {
                let _ = decompress(&bytes, compression, 0, CONTENT_BYTES_MAX, vec![7; 9]);
            }
        }
        let _ = crate::parts::filter::FilterBlock::new(bytes.clone(), 0);
        let Ok(block) = Block::new(bytes, 0) else {
            continue;
        };
        let block = Arc::new(block);
        let _ = block.check(&mut |_, _, _| {});
        let _ = RangeDeletes::decode(Arc::clone(&block));
        walk_any(&mut rng, &block);
    }
}

fn walk_any(rng: &mut fastrand::Rng, block: &Arc<Block>) {
    let mut cursor = BlockCursor::default();
    cursor.enter(Arc::clone(block));
    while let Ok(true) = cursor.advance() {}
    cursor.enter(Arc::clone(block));
    // BOUND: every step moves to an earlier byte.
    while let Ok(true) = cursor.retreat() {}
    let key = format!("key{:03}", rng.u32(..20));
    Sought::with(&target(1, key.as_bytes(), rng.u64(..100)), |sought| {
        let _ = block.find(&sought);
        if let Ok(true) = cursor.seek(&sought) {
            let _ = cursor.value();
            let _ = cursor.advance();
            let _ = cursor.retreat();
        }
    });
}
