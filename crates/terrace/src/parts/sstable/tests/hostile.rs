//! Tests of tables with correct checksums and wrong facts: verify reports them, and no read panics
//! or runs forever.

use super::super::MultiRead;
use super::super::layout::{
    BlockKind, FOOTER_BYTES, Footer, Handle, TRAILER_BYTES, check_block, encode_trailer,
};
use super::*;
use crate::parts::codec;
use crate::parts::filter::FilterBuilder;

/// A table in memory, to be changed block by block.
struct Bytes {
    bytes: Vec<u8>,
    footer: Footer,
    /// The handle and the kind of every block.
    blocks: Vec<(Handle, BlockKind)>,
}

fn model() -> Model {
    let mut model = Model::default();
    for i in 0..48u64 {
        model.put(
            1,
            format!("key{:02}", i / 2).as_bytes(),
            50 - i,
            b"value, value",
        );
    }
    model.ranges.push(RangeDelete {
        keyspace: 1,
        begin: b"key03".to_vec(),
        end: b"key06".to_vec(),
        seq: 90,
    });
    model
}

impl Bytes {
    fn new(fs: &Arc<dyn FileSystem>) -> Bytes {
        write(fs, file(), tiny(Compression::None), &model()).unwrap();
        let handle = fs.open(file(), terrace_media::OpenMode::Read).unwrap();
        let mut bytes = vec![0; handle.len().unwrap() as usize];
        handle.read_exact_at(0, &mut bytes).unwrap();
        let footer_at = bytes.len() - FOOTER_BYTES;
        let footer = Footer::decode(&bytes[footer_at..], NUMBER, bytes.len() as u64).unwrap();
        let mut blocks = Vec::new();
        let mut offset = 0;
        while offset < footer_at {
            // The kind and size whose checksum matches at this offset identify the block.
            let found = (TRAILER_BYTES..=footer_at - offset).find_map(|len| {
                let kinds = [
                    BlockKind::Data,
                    BlockKind::Index,
                    BlockKind::Filter,
                    BlockKind::RangeDeletes,
                    BlockKind::Properties,
                ];
                let stored = &bytes[offset..offset + len];
                let is =
                    |kind: &BlockKind| check_block(stored, *kind, NUMBER, offset as u64).is_ok();
                Some((len, kinds.into_iter().find(is)?))
            });
            let (len, kind) = found.unwrap();
            let handle = Handle {
                offset: offset as u64,
                size: (len - TRAILER_BYTES) as u32,
            };
            blocks.push((handle, kind));
            offset += len;
        }
        Bytes {
            bytes,
            footer,
            blocks,
        }
    }

    fn payload(&mut self, handle: Handle) -> &mut [u8] {
        let at = handle.offset as usize;
        &mut self.bytes[at..at + handle.size as usize]
    }

    /// Corrects the checksum of a changed block.
    fn reseal(&mut self, (handle, kind): (Handle, BlockKind)) {
        let payload = self.payload(handle);
        let trailer = encode_trailer(payload, Compression::None, kind, NUMBER, handle.offset);
        let at = handle.offset as usize + handle.size as usize;
        self.bytes[at..at + TRAILER_BYTES].copy_from_slice(&trailer);
    }

    fn store(&self, fs: &dyn FileSystem) {
        let handle = fs.open(file(), terrace_media::OpenMode::Truncate).unwrap();
        handle.write_at(0, &self.bytes).unwrap();
    }

    fn first(&self, wanted: BlockKind) -> (Handle, BlockKind) {
        let is = |block: &&(Handle, BlockKind)| block.1 == wanted;
        *self.blocks.iter().find(is).unwrap()
    }
}

/// Returns the problems that verify reports.
fn verdict(fs: &dyn FileSystem) -> String {
    match open(fs, file(), &cache()) {
        Ok(table) => table
            .verify(&mut |_| {}, &mut |_| Ok(0))
            .problems
            .join("; "),
        Err(e) => e.to_string(),
    }
}

/// Verify finds a filter that lacks a key, properties with wrong counts, entries and separators out
/// of order, and an index with wrong handles, even though every checksum is correct.
#[test]
fn verify_finds_wrong_facts() {
    let fs = machine();
    let check = |kind: BlockKind, expected: &str, change: &dyn Fn(&mut [u8])| {
        let fs = machine();
        let mut bytes = Bytes::new(&fs);
        let block = bytes.first(kind);
        change(bytes.payload(block.0));
        bytes.reseal(block);
        bytes.store(&*fs);
        let verdict = verdict(&*fs);
        assert!(verdict.contains(expected), "{expected}: {verdict}");
    };
    check(
        BlockKind::Filter,
        "the filter does not have a key",
        &|payload| {
            // As many keys in as many blocks, none of them in the table.
            let mut builder = FilterBuilder::new(24, 10);
            (0..24).for_each(|i| builder.insert(key_hash(9, &[i])));
            payload.copy_from_slice(&builder.into_bytes());
        },
    );
    check(BlockKind::Filter, "another number of keys", &|payload| {
        payload[16] += 1;
        let crc = codec::checksum(&payload[..60]);
        payload[60..64].copy_from_slice(&crc.to_le_bytes());
    });
    // The first record: id, size, number of entries.
    check(BlockKind::Properties, "the properties are", &|payload| {
        payload[2] += 1
    });
    // The first entry: three sizes, a tag, the keyspace and "key00".
    check(BlockKind::Data, "a later entry", &|payload| {
        payload[3 + 8 + 4] = b'z'
    });
    check(BlockKind::Data, "unknown kind", &|payload| {
        payload[3] = 0x3f
    });
    check(BlockKind::Data, "fewer shared bytes", &|payload| {
        payload[0] = 1
    });
    check(
        BlockKind::Index,
        "less than the last key of its block",
        &|payload| {
            payload[3 + 8 + 4 + 3] = b'/';
        },
    );
    check(BlockKind::RangeDeletes, "range deletes", &|payload| {
        payload[3] = 1
    });
    check(BlockKind::RangeDeletes, "the properties are", &|payload| {
        payload[4] = 1
    });
    // Without the filter's handle in the footer, the bytes of the filter belong to nothing.
    let mut bytes = Bytes::new(&fs);
    let footer_at = bytes.bytes.len() - FOOTER_BYTES;
    bytes.footer.filter = None;
    let footer = bytes.footer.encode();
    bytes.bytes[footer_at..].copy_from_slice(&footer);
    bytes.store(&*fs);
    assert!(
        verdict(&*fs).contains("not at the expected offset"),
        "{}",
        verdict(&*fs)
    );
}

/// After a change of any byte of any block under a correct checksum, every call returns an error or
/// an answer, and walks end.
#[test]
fn no_read_panics_or_loops() {
    let fs = machine();
    let good = Bytes::new(&fs);
    assert!(good.blocks.len() > 8);
    let rows = model().rows;
    let mut refused = 0;
    for (handle, kind) in good.blocks.clone() {
        for at in 0..handle.size as usize {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = Bytes {
                    bytes: good.bytes.clone(),
                    footer: good.footer,
                    blocks: Vec::new(),
                };
                bytes.payload(handle)[at] = value;
                bytes.reseal((handle, kind));
                bytes.store(&*fs);
                let Ok(table) = open(&*fs, file(), &cache()) else {
                    refused += 1;
                    continue;
                };
                use_all(&table, &rows);
            }
        }
    }
    assert!(refused > 0);
}

fn use_all(table: &Arc<SsTable>, rows: &Rows) {
    let mut counts = ReadCounts::default();
    let mut reads = Vec::new();
    let mut cursor = SstCursor::new(Arc::clone(table), false);
    for (keyspace, key, Reverse(seq)) in rows.keys().step_by(5) {
        let at = target(*keyspace, key, *seq);
        let _ = get(table, &at);
        reads.push(MultiRead::new(at, key_hash(*keyspace, key)));
        if cursor.seek(&at).is_ok() {
            let _ = (cursor.advance(), cursor.retreat(), cursor.value());
        }
        let _ = cursor.seek_before(&at, 2);
        let _ = table.approximate(&at, &target(*keyspace, b"z", 0), &mut counts);
    }
    let _ = table.multi_get(&mut reads, &mut counts);
    let _ = table.split_keys(4, &mut counts);
    let _ = all(table);
    // BOUND: every step moves to an earlier entry of a block, or of the index.
    let mut going = cursor.seek_to_last().is_ok();
    while going && cursor.entry().is_ok_and(|entry| entry.is_some()) {
        going = cursor.retreat().is_ok();
    }
    table.verify(&mut |_| {}, &mut |_| Ok(0));
}

/// A handle that leads past the blocks is refused before memory for it is allocated.
#[test]
fn handles_are_checked_before_memory_is_taken() {
    let fs = machine();
    write(&fs, file(), tiny(Compression::None), &model()).unwrap();
    let table = open(&*fs, file(), &cache()).unwrap();
    let blocks_end = table.file_bytes() - FOOTER_BYTES as u64;
    for (offset, size) in [(0, u32::MAX), (u64::MAX, 1), (blocks_end - 5, 1)] {
        let handle = Handle { offset, size };
        let mut counts = ReadCounts::default();
        let read = table
            .file
            .read_content(handle, BlockKind::Data, &mut counts);
        let text = read.unwrap_err().to_string();
        assert!(text.contains("a block inside"), "{text}");
        assert_eq!(counts.file_reads, 0);
    }
}

/// A backward walk through a block whose first restart is not its first entry ends with an error.
#[test]
fn a_walk_backward_never_goes_forward() {
    let mut builder = super::super::build::BlockBuilder::new(1);
    for key in [b"\0\0\0\x01a", b"\0\0\0\x01b", b"\0\0\0\x01c"] {
        builder.push(&super::super::build::RawEntry {
            stored: key,
            seq: 1,
            kind: 1,
            expiry: 0,
            value: b"",
        });
    }
    let mut content = builder.finish().to_vec();
    let restarts_at = content.len() - 16;
    let second = restarts_at + 4;
    content.copy_within(second..second + 4, restarts_at);
    let mut cursor = super::super::walk::BlockCursor::default();
    cursor.enter(Arc::new(
        super::super::block::Block::new(content, 0).unwrap(),
    ));
    assert_eq!(cursor.retreat(), Ok(true));
    assert_eq!(cursor.retreat(), Ok(true));
    assert!(cursor.retreat().is_err());
}
