//! The SSTable decoders, for fuzzers and other sources of arbitrary bytes.

use std::sync::Arc;

use terrace_media::decoder::{Decoder, Seen, kind_of, same, seal};

use super::block::{Block, Sought};
use super::build::{BlockBuilder, RawEntry};
use super::layout::{
    BlockKind, CONTENT_BYTES_MAX, Compression, FOOTER_BYTES, Features, Footer, FooterError, Handle,
    TRAILER_BYTES, check_block, encode_trailer, keyspace_bytes, split_key, table_owner,
};
use super::properties::{Place, Properties};
use super::ranges::{self, RangeDelete, RangeDeletes};
use super::walk::BlockCursor;
use crate::parts::codec::decoders::refused;
use crate::parts::compress::{Compressor, decompress};
use crate::parts::key::Target;
use crate::types::DbId;

/// The table number and the offset that the blocks pretend to have.
const NUMBER: u64 = 7;
const OFFSET: u64 = 4096;
const FILE_BYTES: u64 = 100_000;

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![
        Decoder {
            name: "sst-footer",
            seeds: footers,
            mend: |bytes| seal(bytes, FOOTER_BYTES - 4),
            run: |bytes| match Footer::decode(bytes, NUMBER, FILE_BYTES) {
                Ok(footer) => {
                    let owner = Some((footer.db, footer.number));
                    same("the owner", &table_owner(bytes), &owner)?;
                    same("a footer", &&footer.encode()[..], &&bytes[..FOOTER_BYTES])?;
                    Ok(Seen::Accepted(u64::from(footer.features.0)))
                }
                Err(FooterError::Damaged(e)) => Ok(refused(&e)),
                Err(FooterError::Newer { .. }) => Ok(Seen::Refused(0)),
            },
        },
        Decoder {
            name: "sst-handle",
            seeds: || {
                let mut bytes = Vec::new();
                Handle {
                    offset: 1 << 33,
                    size: 4090,
                }
                .put(&mut bytes);
                vec![bytes]
            },
            mend: |_| {},
            run: |bytes| match Handle::decode(bytes, 0) {
                Ok(handle) => {
                    let mut again = Vec::new();
                    handle.put(&mut again);
                    same("a handle", &again.as_slice(), &bytes)?;
                    Ok(Seen::Accepted(bytes.len() as u64))
                }
                Err(e) => Ok(refused(&e)),
            },
        },
        Decoder {
            name: "sst-properties",
            seeds: || vec![Properties::default().encode(), properties().encode()],
            mend: |_| {},
            run: |bytes| match Properties::decode(bytes, 0) {
                Ok(properties) => {
                    let again = Properties::decode(&properties.encode(), 0);
                    same("properties", &again.as_ref(), &Ok(&properties))?;
                    let some = [
                        properties.seqs.is_some(),
                        properties.expiries.is_some(),
                        properties.entries.is_some(),
                        properties.ranges.is_some(),
                    ];
                    let fold = |all, one| all << 1 | u64::from(one);
                    Ok(Seen::Accepted(some.into_iter().fold(0, fold)))
                }
                Err(e) => Ok(refused(&e)),
            },
        },
        Decoder {
            name: "sst-stored-block",
            seeds: stored_blocks,
            mend: |bytes| {
                let Some(at) = bytes.len().checked_sub(TRAILER_BYTES) else {
                    return;
                };
                let (payload, trailer) = bytes.split_at_mut(at);
                let built = built();
                let compressed = built[usize::from(trailer[0]) % built.len()];
                let kind = BlockKind::Data;
                trailer.copy_from_slice(&encode_trailer(payload, compressed, kind, NUMBER, OFFSET));
            },
            run: |bytes| match check_block(bytes, BlockKind::Data, NUMBER, OFFSET) {
                Ok((payload, Compression::None)) => run_block(payload),
                Ok((payload, compression)) => {
                    match decompress(payload, compression, OFFSET, CONTENT_BYTES_MAX, vec![7; 9]) {
                        Ok(content) => run_block(&content),
                        Err(e) => Ok(Seen::Refused(kind_of("decompress", &e.to_string()))),
                    }
                }
                Err(e) => Ok(refused(&e)),
            },
        },
        Decoder {
            name: "sst-block",
            seeds: || blocks().into_iter().map(|(_, content)| content).collect(),
            mend: |_| {},
            run: run_block,
        },
        Decoder {
            name: "sst-range-deletes",
            seeds: || vec![ranges::encode(&fragments(), 2).finish().to_vec()],
            mend: |_| {},
            run: run_ranges,
        },
    ]
}

fn footers() -> Vec<Vec<u8>> {
    let handle = |offset, size| Handle { offset, size };
    let footer = |features, both: bool| Footer {
        db: DbId(*b"0123456789abcdef"),
        number: NUMBER,
        file_bytes: FILE_BYTES,
        features: Features(features),
        index: handle(90_000, 400),
        filter: both.then(|| handle(80_000, 1000)),
        range_deletes: both.then(|| handle(70_000, 50)),
        properties: handle(91_000, 300),
    };
    vec![
        footer(0, false).encode().to_vec(),
        footer(7, true).encode().to_vec(),
    ]
}

fn fragments() -> Vec<RangeDelete> {
    let one = |keyspace, begin: &str, end: &str, seq| RangeDelete {
        keyspace,
        begin: begin.into(),
        end: end.into(),
        seq,
    };
    vec![
        one(1, "a", "c", 9),
        one(1, "a", "c", 4),
        one(1, "d", "dd", 7),
        one(2, "", "", 8),
    ]
}

fn properties() -> Properties {
    let place = |key: &str, seq| Place {
        keyspace: 1,
        key: key.into(),
        seq,
    };
    let mut properties = Properties {
        entry_count: 300,
        key_bytes: 1 << 40,
        entries: Some((place("a", 9), place("z", 1))),
        compression: Compression::Lz4,
        ..Properties::default()
    };
    properties.count_seq(5);
    properties.count_expiry(1_700_000_000_000);
    properties.count_ranges(&fragments());
    properties
}

/// Returns blocks of several shapes: with few entries, and with enough restarts for searches to
/// make heads.
fn blocks() -> Vec<(usize, Vec<u8>)> {
    let block = |interval: usize, count: u64| {
        let mut builder = BlockBuilder::new(interval);
        for at in 0..count {
            let mut stored = keyspace_bytes(1 + (at / 30) as u32).to_vec();
            stored.extend_from_slice(format!("key{:03}", at / 2).as_bytes());
            builder.push(&RawEntry {
                stored: &stored,
                seq: 1000 - at,
                kind: 1 + (at % 2) as u8,
                expiry: at % 3 * 77,
                value: &b"value, value"[..(at % 12) as usize],
            });
        }
        (interval, builder.finish().to_vec())
    };
    vec![
        block(1, 1),
        block(1, 40),
        block(4, 50),
        // With heads from the second search on.
        block(16, 60),
        block(16, 9),
        block(1, 0),
    ]
}

/// Returns the compressions that this build supports.
fn built() -> Vec<Compression> {
    let all = Compression::ALL.into_iter();
    all.filter(|way| way.is_built()).collect()
}

fn stored_blocks() -> Vec<Vec<u8>> {
    let mut stored = Vec::new();
    for (_, content) in blocks() {
        for compression in built().into_iter().rev() {
            let Ok(mut compressor) = Compressor::new(compression) else {
                continue;
            };
            let (payload, compression) = compressor.payload(&content);
            let kind = BlockKind::Data;
            let trailer = encode_trailer(payload, compression, kind, NUMBER, OFFSET);
            stored.push([payload, &trailer].concat());
        }
    }
    stored
}

/// Runs every reader of a block: complete, forward, backward and by search.
fn run_block(content: &[u8]) -> Result<Seen, String> {
    let block = match Block::new(content.to_vec(), OFFSET) {
        Ok(block) => Arc::new(block),
        Err(e) => return Ok(refused(&e)),
    };
    let mut entries = Vec::new();
    let checked = block.check(&mut |key, head, value| {
        entries.push((key.to_vec(), head.tag.seq(), value.to_vec()));
    });
    let mut cursor = BlockCursor::default();
    let ended = match &checked {
        Ok(()) => compare(&mut cursor, &block, &entries)?,
        Err(e) => refused(e),
    };
    // Every walk over a block ends, no matter how damaged the block is.
    let turns_max = content.len() + 1;
    for forward in [true, false] {
        cursor.enter(Arc::clone(&block));
        let mut turns = 0;
        while let Ok(true) = if forward {
            cursor.advance()
        } else {
            cursor.retreat()
        } {
            turns += 1;
            if turns > turns_max {
                return Err("a cursor does not end".into());
            }
        }
    }
    for key in [&b""[..], b"key003", b"key010x", b"zzz"] {
        let target = Target {
            keyspace: 1,
            key,
            seq: 990,
        };
        cursor.enter(Arc::clone(&block));
        let found = Sought::with(&target, |sought| cursor.seek(&sought));
        if checked.is_ok() && found.is_err() {
            return Err(format!("a checked block cannot be searched: {found:?}"));
        }
    }
    Ok(ended)
}

/// Checks that a checked block returns its entries in every direction.
fn compare(
    cursor: &mut BlockCursor,
    block: &Arc<Block>,
    entries: &[(Vec<u8>, u64, Vec<u8>)],
) -> Result<Seen, String> {
    let under = |cursor: &BlockCursor| {
        let seq = cursor.head().map_or(0, |head| head.tag.seq());
        (cursor.stored_key().to_vec(), seq, cursor.value().to_vec())
    };
    let failed = |e| format!("a checked block cannot be read: {e}");
    cursor.enter(Arc::clone(block));
    for entry in entries {
        same("forward", &cursor.advance().map_err(failed)?, &true)?;
        same("forward", &under(cursor), entry)?;
    }
    same("the end", &cursor.advance().map_err(failed)?, &false)?;
    for entry in entries.iter().rev() {
        same("backward", &cursor.retreat().map_err(failed)?, &true)?;
        same("backward", &under(cursor), entry)?;
    }
    same("the start", &cursor.retreat().map_err(failed)?, &false)?;
    for entry in entries {
        let Some((keyspace, key)) = split_key(&entry.0) else {
            return Err("a checked block has a key without a keyspace".into());
        };
        let target = Target {
            keyspace,
            key,
            seq: entry.1,
        };
        cursor.enter(Arc::clone(block));
        let found = Sought::with(&target, |sought| cursor.seek(&sought)).map_err(failed)?;
        same("sought", &found, &true)?;
        same("sought", &under(cursor), entry)?;
    }
    let restarts = block.entries().restart_count().min(31) as u64;
    Ok(Seen::Accepted(restarts << 8 | entries.len().min(63) as u64))
}

fn run_ranges(content: &[u8]) -> Result<Seen, String> {
    let block = match Block::new(content.to_vec(), OFFSET) {
        Ok(block) => block,
        Err(e) => return Ok(refused(&e)),
    };
    match RangeDeletes::decode(Arc::new(block)) {
        Ok(found) => {
            let mut again = ranges::encode(found.fragments(), 3);
            let block = Block::new(again.finish().to_vec(), OFFSET);
            let block = block.map_err(|e| format!("its printed block: {e}"))?;
            let again = RangeDeletes::decode(Arc::new(block));
            let again = again.map_err(|e| format!("its printed fragments: {e}"))?;
            same("fragments", &again.fragments(), &found.fragments())?;
            for key in [&b""[..], b"b", b"dc", b"z"] {
                let target = Target::first_of(1, key);
                let covering = found.covering(&target);
                let newest = found.fragments().iter();
                let newest = newest.filter(|f| f.has(1, key)).map(|f| f.seq).max();
                same("the ranges that cover a key", &covering, &newest)?;
            }
            Ok(Seen::Accepted(found.fragments().len().min(15) as u64))
        }
        Err(e) => Ok(refused(&e)),
    }
}
