//! The decoders of nodes, tables and lists in memory, for fuzzers and other sources of arbitrary
//! bytes.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use terrace_media::decoder::{Decoder, Seen, same, seal};
use terrace_media::{Arena, Bump};

use super::layout::{
    HEADER_BYTES, HEIGHT_MAX, Header, LEFT_OUT_AT, TABLE_HEADER_BYTES, TABLE_NODES_AT, checksum,
    decode_table_header, encode_table_header,
};
use super::node::{NewNode, head_bytes};
use super::salvage::{front, hashed_key, head_links, sound_node};
use super::walk::{Walk, is_dead};
use super::{Node, SkipList};
use crate::parts::codec;
use crate::parts::codec::decoders::refused;
use crate::parts::iter::{Cursor, ListCursor};
use crate::parts::key::Target;
use crate::parts::latch::Latch;
use crate::types::key_hash;

/// The offset of the list: not 0, as no table is there.
const ORIGIN: u64 = 1 << 20;
/// The size of the list in bytes.
const BYTES: u64 = 4096;
/// BOUND: more nodes than fit.
const NODES_MAX: usize = BYTES as usize / HEADER_BYTES;

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![
        Decoder {
            name: "table-header",
            seeds: || vec![encode_table_header(7).to_vec()],
            mend: |bytes| {
                // The checksum covers the count as zeros.
                let word = LEFT_OUT_AT..LEFT_OUT_AT + 8;
                let count = bytes.get_mut(word.clone()).map(|count| {
                    let kept = count.to_vec();
                    count.fill(0);
                    kept
                });
                seal(bytes, TABLE_HEADER_BYTES - 4);
                if let (Some(count), Some(place)) = (count, bytes.get_mut(word)) {
                    place.copy_from_slice(&count);
                }
            },
            run: |bytes| match decode_table_header(bytes, 0) {
                Ok(id) => {
                    let mut again = encode_table_header(id);
                    let word = LEFT_OUT_AT..LEFT_OUT_AT + 8;
                    again[word.clone()].copy_from_slice(&bytes[word]);
                    same("a header", &&again[..], &&bytes[..TABLE_HEADER_BYTES])?;
                    Ok(Seen::Accepted(0))
                }
                Err(e) => Ok(refused(&e)),
            },
        },
        Decoder {
            name: "node",
            seeds: || {
                let list = seed();
                let node = list[TABLE_NODES_AT..].to_vec();
                vec![node, list[TABLE_HEADER_BYTES..].to_vec()]
            },
            mend: |bytes| {
                mend_node(bytes);
            },
            run: run_node,
        },
        Decoder {
            name: "list",
            seeds: || vec![seed(), seed()[..TABLE_NODES_AT].to_vec()],
            mend: |bytes| {
                let mut at = TABLE_HEADER_BYTES;
                // BOUND: every node takes bytes.
                while let Some(rest) = bytes.get_mut(at..)
                    && let Some(len) = mend_node(rest)
                {
                    at += len;
                }
            },
            run: run_list,
        },
    ]
}

/// Returns an empty table in memory.
fn table() -> Option<(Bump, SkipList)> {
    let bump = Arena::new(BYTES).ok()?.bump(ORIGIN);
    let mut claim = bump.claim(TABLE_NODES_AT, 64)?;
    claim.write(0, &encode_table_header(7));
    claim.write(TABLE_HEADER_BYTES, &head_bytes());
    let list = SkipList::new(bump.region().clone(), ORIGIN + TABLE_HEADER_BYTES as u64);
    Some((bump, list))
}

/// Returns the bytes of a table with towers of several heights, several versions and two keyspaces.
fn seed() -> Vec<u8> {
    let Some((bump, list)) = table() else {
        return Vec::new();
    };
    for (at, key) in ["", "apple", "apple", "apple pie", "pear", "plum"]
        .iter()
        .enumerate()
    {
        let (keyspace, seq) = (1 + at as u32 / 4, 20 - at as u64);
        let (key, value) = (key.as_bytes(), &[b'v'; 70][..at * 13]);
        let node = NewNode {
            keyspace,
            seq,
            kind: 1 + (at % 2) as u8,
            hash: key_hash(keyspace, key),
            height: [2, 1, 3, 1, 4, 1][at],
            key,
            value,
            value_crc: codec::checksum(value),
            more: false,
        };
        let Some(mut claim) = bump.claim(node.bytes(), 8) else {
            break;
        };
        node.write(&mut claim, 0);
        // An arena of this size has space for all of them.
        let _ = list.insert(claim.off(), node.height, &Target { keyspace, key, seq });
    }
    let used = list.region().bytes(ORIGIN, bump.used() as usize);
    used.unwrap_or(&[]).to_vec()
}

/// Corrects the hash and checksum of the node at the start and returns its length.
pub(crate) fn mend_node(bytes: &mut [u8]) -> Option<usize> {
    let (head, rest) = bytes.split_first_chunk_mut::<HEADER_BYTES>()?;
    let header = Header::decode(head);
    if !(1..=HEIGHT_MAX).contains(&usize::from(header.height)) {
        return None;
    }
    let rest = rest.get(8 * usize::from(header.height)..)?;
    let (key, rest) = rest.split_at_checked(header.key_len as usize)?;
    let value = rest.get(..header.value_len as usize)?;
    let hash = key_hash(header.keyspace, key);
    *head = Header { hash, ..header }.encode(key, codec::checksum(value));
    Some(header.node_bytes())
}

fn run_node(bytes: &[u8]) -> Result<Seen, String> {
    let front = front(bytes);
    let hashed = hashed_key(bytes).is_some();
    let links = head_links(bytes).len();
    let Some(node) = sound_node(bytes) else {
        return Ok(Seen::Refused(
            u64::from(hashed) << 1 | u64::from(front.is_some()),
        ));
    };
    let mut head = [0; HEADER_BYTES];
    head.copy_from_slice(&bytes[..HEADER_BYTES]);
    let crc = checksum(&head, node.key, codec::checksum(node.value));
    same("the checksum", &crc, &node.header.checksum)?;
    let again = node.header.encode(node.key, codec::checksum(node.value));
    same("a header", &again, &head)?;
    let heights = (node.links().count(), usize::from(node.header.height));
    same("links", &heights.0, &heights.1)?;
    let short = node.header.key_len <= 1 << 17;
    if short && front.is_none_or(|front| front.bytes != node.bytes()) {
        return Err(format!("the front of a node of {} bytes", node.bytes()));
    }
    Ok(Seen::Accepted(
        (heights.0 as u64) << 8 | links.min(16) as u64,
    ))
}

thread_local! {
    static TABLE: Option<(Bump, SkipList)> = table();
}

fn run_list(bytes: &[u8]) -> Result<Seen, String> {
    TABLE.with(|table| match table {
        Some((_, list)) => walk(list, bytes),
        None => Err("no memory for a list".into()),
    })
}

/// Runs every reader of a list. Readers may only fail with errors, and every walk must end.
fn walk(list: &SkipList, bytes: &[u8]) -> Result<Seen, String> {
    let region = list.region();
    let mut words = bytes.chunks(8);
    for at in (ORIGIN..ORIGIN + BYTES).step_by(8) {
        let mut word = [0; 8];
        let chunk = words.next().unwrap_or(&[]);
        word[..chunk.len()].copy_from_slice(chunk);
        if let Some(place) = region.word(at) {
            place.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }
    let mut sound = 0u64;
    let mut seen = 0;
    let mut visit = |_: &Node<'_>, value: Result<(), crate::parts::codec::DecodeError>| {
        seen += 1;
        sound += u64::from(value.is_ok());
    };
    let checked = list.check(&Latch::default(), &mut visit, &mut || {});
    let mut complaint = checked.as_ref().err().map(refused);
    for key in [&b""[..], b"apple", b"apple pie", b"zebra"] {
        for target in [
            Target::first_of(1, key),
            Target {
                keyspace: 2,
                key,
                seq: 5,
            },
        ] {
            let found = list.seek(&target);
            if checked.is_ok() && found.is_err() {
                return Err(format!(
                    "a checked list cannot be searched: {:?}",
                    found.err()
                ));
            }
            let _ = list.splice(&target);
            let _ = list.seek_before(&target, 0);
            let _ = list.count_between(&target, &Target::first_of(9, b""));
        }
    }
    let mut cursor = ListCursor::new(list.clone(), Some(Latch::default()));
    cursor.hold();
    let mut passed = 0;
    let mut last: Option<(u32, Vec<u8>, Reverse<u64>)> = None;
    let mut next = cursor.seek(&Target::first_of(0, b""));
    while let (Ok(()), Ok(Some(entry))) = (&next, cursor.entry()) {
        let place = (entry.keyspace, entry.key.to_vec(), Reverse(entry.seq));
        // Damaged links may form a cycle, so users of a cursor check that keys ascend.
        if last.as_ref().is_some_and(|last| *last >= place) {
            break;
        }
        last = Some(place);
        let _ = cursor.value();
        passed += 1;
        if passed > NODES_MAX {
            return Err("an ascending cursor does not end".into());
        }
        next = cursor.advance();
    }
    if checked.is_ok() && sound == seen && passed as u64 != seen {
        return Err(format!("a cursor passes {passed} of {seen} nodes"));
    }
    let end = ORIGIN + bytes.len().min(BYTES as usize) as u64;
    let mut walk = Walk::new(region, ORIGIN + TABLE_NODES_AT as u64, end);
    let mut walked = 0u64;
    loop {
        match walk.next_node() {
            Ok(Some(node)) => {
                let _ = (node.checked_value(), is_dead(region, node.off));
                walked += 1;
            }
            Ok(None) => break,
            Err(e) => {
                complaint.get_or_insert(refused(&e));
                break;
            }
        }
    }
    let shape = sound.min(15) << 8 | walked.min(15) << 4;
    Ok(complaint.unwrap_or(Seen::Accepted(shape)))
}
