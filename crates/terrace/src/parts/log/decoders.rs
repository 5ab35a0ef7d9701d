//! The decoders of logs for fuzzing: replay and salvage of the same bytes, and replay of lists.

use std::io;
use std::path::Path;

use terrace_media::decoder::{Decoder, Seen, same, seal};
use terrace_media::{Advice, File, Span};

use super::layout::{
    ENTRY_HEADER_BYTES, EntryHeader, LIST_MARK_BYTES, LIST_MARKS, LOG_HEADER_BYTES, ListMark,
    RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, check_log_header, encode_log_header,
    log_database, log_id,
};
use super::list::{ListBounds, ListEnd, replay_list};
use super::record::{Payload, RecordView};
use super::replay::{LogOf, replay_slice};
use super::salvage::{Piece, salvage};
use crate::parts::codec::decoders::refused;
use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::skiplist::NewNode;
use crate::parts::skiplist::decoders::mend_node;
use crate::parts::skiplist::layout::{TABLE_HEADER_BYTES, TABLE_NODES_AT, encode_table_header};
use crate::parts::skiplist::node::head_bytes;
use crate::types::{DbId, key_hash};

/// The id of the log.
const ID: u64 = 7;
/// The database of the log.
const DB: DbId = DbId(*b"0123456789abcdef");

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![
        Decoder {
            name: "log-header",
            seeds: || {
                vec![
                    encode_log_header(DB, ID).to_vec(),
                    encode_log_header(DB, 8).to_vec(),
                ]
            },
            mend: |bytes| seal(bytes, LOG_HEADER_BYTES - 4),
            run: |bytes| {
                let (id, db) = (log_id(bytes), log_database(bytes));
                match check_log_header(bytes, Some(DB), ID, 4096) {
                    Ok(()) => {
                        same("the id", &id, &Some(ID))?;
                        same("the database", &db, &Some(DB))?;
                        let again = encode_log_header(DB, ID);
                        same("a header", &&again[..], &&bytes[..LOG_HEADER_BYTES])?;
                        Ok(Seen::Accepted(0))
                    }
                    Err(e) => Ok(refused(&e)),
                }
            },
        },
        Decoder {
            name: "log",
            seeds,
            mend,
            run,
        },
        Decoder {
            name: "list-log",
            seeds: list_seeds,
            mend: mend_list,
            run: run_list,
        },
    ]
}

/// The kind, key and value of an entry.
type Row<'a> = (u8, &'a [u8], &'a [u8]);

fn seeds() -> Vec<Vec<u8>> {
    let log = |sealed: bool, batches: &[&[Row]]| {
        let mut bytes = encode_log_header(DB, ID).to_vec();
        let mut seq = 100;
        for batch in batches {
            let mut payload = Payload::new();
            for (kind, key, value) in *batch {
                payload.push(*kind, 1, key, value);
            }
            let at = bytes.len() as u64;
            payload.with_record(ID, at, seq, 1, |record| bytes.extend_from_slice(record));
            seq += batch.len() as u64;
        }
        if sealed {
            let at = bytes.len() as u64;
            Payload::new().with_record(ID, at, seq, 0, |record| bytes.extend_from_slice(record));
        }
        bytes.resize(bytes.len() + 128, 0);
        bytes
    };
    let range = crate::parts::ranges::layout::encode(b"a", b"c");
    let expiring = crate::parts::expiry::layout::encode(5, b"soon");
    vec![
        log(true, &[&[(1, b"key", b"value")], &[(2, b"other", b"")]]),
        log(
            false,
            &[&[(1, b"", b""), (3, &range, b""), (5, b"k", &expiring)]],
        ),
        log(
            false,
            &[
                &[(1, b"long", &[9; 300])],
                &[(1, b"x", b"y")],
                &[(1, b"z", b"")],
            ],
        ),
        log(false, &[]),
    ]
}

/// Corrects the checksums of the header and of everything that looks like a record.
fn mend(bytes: &mut [u8]) {
    seal(bytes, LOG_HEADER_BYTES - 4);
    let mut at = LOG_HEADER_BYTES;
    // BOUND: the position only grows.
    while let Some(rest) = bytes.get_mut(at..)
        && rest.len() >= RECORD_HEADER_BYTES
    {
        at += mend_record(rest, at as u64).unwrap_or(RECORD_ALIGN);
    }
}

fn mend_record(rest: &mut [u8], position: u64) -> Option<usize> {
    let header = RecordHeader::decode(rest.first_chunk()?);
    let end = RECORD_HEADER_BYTES.checked_add(header.payload_bytes as usize)?;
    if header.log_id != ID || end > rest.len() {
        return None;
    }
    let (mut at, mut meta_crc) = (RECORD_HEADER_BYTES, 0);
    // BOUND: every entry consumes bytes of the record.
    for _ in 0..header.entry_count {
        let mut r = Reader::new("", 0, rest.get(at..end)?);
        let mut entry = EntryHeader::decode(&mut r).ok()?;
        let value_at = at + ENTRY_HEADER_BYTES + entry.key_bytes;
        let value_end = value_at.checked_add(entry.value_bytes)?;
        entry.value_crc = codec::checksum(rest.get(value_at..value_end)?);
        rest.get_mut(at..)?
            .get_mut(..ENTRY_HEADER_BYTES)?
            .copy_from_slice(&entry.encode());
        meta_crc = codec::checksum_append(meta_crc, rest.get(at..value_at)?);
        at = value_end.next_multiple_of(8);
    }
    let head = header.encode(meta_crc, position);
    rest[..RECORD_HEADER_BYTES].copy_from_slice(&head);
    Some(end.next_multiple_of(RECORD_ALIGN))
}

/// The first number, the number after the last, and the entries of a record.
type Batch = ((u64, u64), Vec<(u8, u32, Vec<u8>, Vec<u8>)>);

fn batch(view: &RecordView<'_>) -> Result<Batch, DecodeError> {
    let mut entries = Vec::new();
    for (_, entry) in view.entries() {
        let entry = entry?;
        entries.push((
            entry.kind,
            entry.keyspace,
            entry.key.to_vec(),
            entry.value.to_vec(),
        ));
    }
    Ok(((view.first_seq, view.seq_end()), entries))
}

fn run(bytes: &[u8]) -> Result<Seen, String> {
    let mut replayed = Vec::new();
    let mut broken = None;
    let log = |end| LogOf {
        db: DB,
        id: ID,
        end,
        from: None,
    };
    let end = replay_slice(bytes, log(None), &mut |view| {
        match batch(&view) {
            Ok(batch) => {
                let mut payload = Payload::new();
                for (kind, keyspace, key, value) in &batch.1 {
                    payload.push(*kind, *keyspace, key, value);
                }
                if super::record_bytes(payload.len_bytes()) != view.bytes() {
                    broken = Some(format!("a record of {} bytes", view.bytes()));
                }
                replayed.push(batch);
            }
            Err(e) => broken = Some(format!("a record was judged complete: {e}")),
        }
        Ok(())
    });
    let mut salvaged = Vec::new();
    let file = Still(bytes);
    let span = Span {
        off: 0,
        len: bytes.len() as u64,
    };
    let found = salvage(
        &file,
        Path::new("log"),
        span,
        (Some(ID), None),
        &mut |piece| {
            if let Piece::Record { view, stranded, .. } = piece {
                match batch(&view) {
                    Ok(batch) if !stranded => salvaged.push(batch),
                    Ok(_) => {}
                    Err(e) => broken = Some(format!("a record was salvaged: {e}")),
                }
            }
            Ok(())
        },
    );
    if let Some(broken) = broken {
        return Err(broken);
    }
    let found = found.map_err(|e| format!("memory cannot be read: {e}"))?;
    match end {
        Ok(end) => {
            // A replay returns the records that salvage finds before anything is missing.
            if check_log_header(bytes, Some(DB), ID, 0).is_ok() {
                same("records", &replayed, &salvaged)?;
                same("how many", &end.records, &found.records)?;
                same("where they end", &end.bytes, &found.end)?;
                same("damage", &0, &found.problems)?;
            }
            // Both accept the log with its end recorded, and neither accepts it with a later end.
            for (noted, is_short) in [(end.bytes, false), (end.bytes + 1, true)] {
                let again = replay_slice(bytes, log(Some(noted)), &mut |_| Ok(()));
                same("a log with an end", &again.is_err(), &is_short)?;
                let ids = (Some(ID), Some(noted));
                let again = salvage(&file, Path::new("log"), span, ids, &mut |_| Ok(()));
                let again = again.map_err(|e| format!("memory cannot be read: {e}"))?;
                same("damage of its end", &(again.problems > 0), &is_short)?;
            }
            let entries: usize = replayed.iter().map(|(_, entries)| entries.len()).sum();
            let shape = end.records.min(7) << 8 | end.stranded.min(3) << 4;
            let shape = shape | u64::from(end.torn) << 3 | entries.min(7) as u64;
            Ok(Seen::Accepted(shape))
        }
        // Salvage takes the log of any database and leaves the check to its caller.
        Err(e) if found.problems == 0 && log_database(bytes) == Some(DB) => Err(format!(
            "salvage finds no problem where a replay reports: {e}"
        )),
        Err(e) => Ok(refused(&e)),
    }
}

/// The bytes of the marks of a list.
const MARKS: usize = (LIST_MARKS * LIST_MARK_BYTES) as usize;

fn list_seeds() -> Vec<Vec<u8>> {
    // The nodes of each batch, whether the last batch is whole, and the part before the mark.
    let list = |batches: &[&[(&[u8], usize)]], whole: bool, marked: Option<usize>| {
        let mut bytes = encode_table_header(ID).to_vec();
        bytes.extend_from_slice(&head_bytes());
        let mut seq = 100;
        for (at, batch) in batches.iter().enumerate() {
            let is_cut = at + 1 == batches.len() && !whole;
            for (number, (key, value_bytes)) in batch.iter().enumerate() {
                let value = vec![b'v'; *value_bytes];
                let node = NewNode {
                    keyspace: 1,
                    seq,
                    kind: 1,
                    hash: key_hash(1, key),
                    height: 1 + (seq % 3) as u8,
                    key,
                    value: &value,
                    value_crc: codec::checksum(&value),
                    more: number + 1 < batch.len() || is_cut,
                };
                let end = bytes.len() + node.bytes();
                bytes.extend_from_slice(&node.header());
                bytes.resize(bytes.len() + 8 * usize::from(node.height), 0);
                bytes.extend_from_slice(key);
                bytes.extend_from_slice(&value);
                bytes.resize(end, 0);
                seq += 1;
            }
        }
        let end = bytes.len();
        bytes.resize(end + 64 + MARKS, 0);
        if let Some(place) = marked {
            let written = place.min(end) as u64;
            let mark = ListMark {
                id: ID,
                durable: written / 2,
                written,
            };
            let words = mark.encode().map(u64::to_le_bytes);
            let mark = words.as_flattened();
            bytes[end + 64..][..mark.len()].copy_from_slice(mark);
        }
        bytes
    };
    let one: &[(&[u8], usize)] = &[(b"key", 20)];
    let two: &[(&[u8], usize)] = &[(b"a", 0), (b"long", 200)];
    vec![
        list(&[one, two, one], true, Some(TABLE_NODES_AT)),
        list(&[two, one], false, None),
        list(&[two, two], true, Some(usize::MAX)),
        list(&[], true, None),
    ]
}

/// Corrects the checksums of header, nodes and marks.
fn mend_list(bytes: &mut [u8]) {
    seal(bytes, TABLE_HEADER_BYTES - 4);
    let marks = bytes.len().saturating_sub(MARKS);
    let mut at = TABLE_HEADER_BYTES;
    // BOUND: every node takes bytes.
    while let Some(rest) = bytes.get_mut(at..marks)
        && let Some(len) = mend_node(rest)
    {
        at += len;
    }
    for mark in bytes.get_mut(marks..).unwrap_or(&mut []).chunks_mut(64) {
        let (words, _) = mark.as_chunks_mut::<8>();
        if let [id, durable, written, checksum, ..] = words {
            let fields = [&*id, &*durable, &*written].map(|word| u64::from_le_bytes(*word));
            let [id, durable, written] = fields;
            let mark = ListMark {
                id,
                durable,
                written,
            };
            *checksum = mark.encode()[3].to_le_bytes();
        }
    }
}

fn run_list(bytes: &[u8]) -> Result<Seen, String> {
    let replay = |end: Option<u64>| -> (Vec<u64>, Result<ListEnd, DecodeError>, Option<String>) {
        let (mut places, mut next, mut broken) = (Vec::new(), TABLE_NODES_AT as u64, None);
        let mut seq = None;
        let bounds = ListBounds {
            id: ID,
            end,
            power_lost: false,
        };
        let found = replay_list(bytes, 0, bounds, &mut |at, node| {
            let follows = seq.is_none_or(|seq| seq + 1 == node.header.seq);
            if at != next || !follows {
                broken = Some(format!(
                    "the node at {at:#x} does not follow the one before"
                ));
            }
            (next, seq) = (at + node.bytes(), Some(node.header.seq));
            places.push(at);
            Ok::<(), DecodeError>(())
        });
        if let Ok(found) = &found
            && (found.bytes, found.entries) != (next, places.len() as u64)
        {
            broken = Some(format!("{found:?} after nodes up to {next:#x}"));
        }
        (places, found, broken)
    };
    let (places, found, broken) = replay(None);
    if let Some(broken) = broken {
        return Err(broken);
    }
    match found {
        Ok(end) => {
            if end.marked > end.bytes {
                return Err(format!("the end {:#x} is before a mark", end.bytes));
            }
            // It is whole with its end recorded, and damaged with a later one.
            let (again, noted, _) = replay(Some(end.bytes));
            same("the nodes", &again, &places)?;
            let with_end = ListEnd {
                durable: end.bytes,
                ..end
            };
            same("a list with an end", &noted, &Ok(with_end))?;
            let (_, short, _) = replay(Some(end.bytes + 1));
            same("damage of its end", &short.is_err(), &true)?;
            let shape = end.batches.min(7) << 8 | end.entries.min(7) << 4;
            Ok(Seen::Accepted(shape | u64::from(end.marked > 0)))
        }
        Err(e) => Ok(refused(&e)),
    }
}

/// A read-only file over bytes.
struct Still<'a>(&'a [u8]);

impl File for Still<'_> {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(off).ok().and_then(|off| self.0.get(off..));
        let rest = rest.unwrap_or(&[]);
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_at(&self, _off: u64, _buf: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn allocate(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn advise(&self, _off: u64, _len: u64, _advice: Advice) -> io::Result<()> {
        Ok(())
    }
}
