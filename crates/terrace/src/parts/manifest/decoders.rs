//! The decoders of the manifest for fuzzing: replay and salvage of the same bytes, and single
//! changes.

use terrace_media::Span;
use terrace_media::decoder::{Decoder, Seen, same, seal};

use super::edit::{Change, FileMeta, LogPlace, TableExtent, TableMeta, Totals};
use super::layout::{
    HEADER_BYTES, Header, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, decode_header,
    encode_header, generation_of, newer_version, record_checksum,
};
use super::replay::replay;
use super::salvage::salvage;
use super::state::State;
use crate::parts::codec::Reader;
use crate::parts::codec::decoders::refused;
use crate::types::DbId;

/// The generation of the manifest.
const GENERATION: u64 = 3;

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![
        Decoder {
            name: "manifest-header",
            seeds: || vec![header()],
            mend: |bytes| seal(bytes, HEADER_BYTES - 4),
            run: |bytes| {
                let (generation, newer) = (generation_of(bytes), newer_version(bytes));
                match decode_header(bytes, 0) {
                    Ok(header) => {
                        same("the generation", &generation, &Some(header.generation))?;
                        same("a later version", &newer, &None)?;
                        let again = encode_header(header);
                        same("a header", &&again[..], &&bytes[..HEADER_BYTES])?;
                        Ok(Seen::Accepted(0))
                    }
                    Err(e) => Ok(refused(&e)),
                }
            },
        },
        Decoder {
            name: "manifest-changes",
            seeds: || {
                let encoded = |change: &Change| {
                    let mut bytes = Vec::new();
                    change.encode(&mut bytes);
                    bytes
                };
                changes().iter().map(encoded).collect()
            },
            mend: |_| {},
            run: |bytes| {
                let mut r = Reader::new("manifest edit", 0, bytes);
                let (mut again, mut tags) = (Vec::new(), 0u64);
                // BOUND: every change consumes bytes.
                while r.remaining() > 0 {
                    tags |= 1 << (bytes[bytes.len() - r.remaining()] % 64);
                    match Change::decode(&mut r) {
                        Ok(change) => change.encode(&mut again),
                        Err(e) => return Ok(refused(&e)),
                    }
                }
                same("changes", &again.as_slice(), &bytes)?;
                Ok(Seen::Accepted(tags))
            },
        },
        Decoder {
            name: "manifest",
            seeds,
            mend,
            run,
        },
    ]
}

fn header() -> Vec<u8> {
    let header = Header {
        generation: GENERATION,
        file_bytes: 4096,
        db: DbId(*b"0123456789abcdef"),
    };
    encode_header(header).to_vec()
}

/// Returns a change of each kind, in an order that the state accepts.
fn changes() -> Vec<Change> {
    let span = |off: u64| Span { off, len: 65536 };
    let table = |id: u64| TableMeta {
        id,
        level: 1,
        head: id << 20,
        extents: vec![TableExtent {
            span: span(id << 20),
            used: 1000,
        }],
        filter: id.is_multiple_of(2).then(|| span(7 << 30)),
        entries: 10,
        bytes: 900,
        seq_first: 5 * id,
        seq_last: 5 * id + 4,
        merging_into: None,
    };
    let file = |number: u64, ranges: u64| FileMeta {
        number,
        level: 0,
        run: 2,
        bytes: 5000,
        entries: 40,
        tombstones: 3,
        seq_first: 1,
        seq_last: 60,
        first: (1, b"alpha".to_vec()),
        last: (2, b"".to_vec()),
        range_deletes: ranges,
        reach: (ranges > 0).then(|| ((1, b"a".to_vec()), (2, b"z".to_vec()))),
        expiring: 4,
        expiry_last: 1_700_000_000_000,
    };
    vec![
        Change::Created,
        Change::LogCreated {
            id: 1,
            place: LogPlace::Pool(span(1 << 16)),
        },
        Change::LogCreated {
            id: 2,
            place: LogPlace::File,
        },
        Change::LogEnded { id: 2, end: 64000 },
        Change::LogRetired { id: 1 },
        Change::TableAdded(table(3)),
        Change::TableAdded(table(4)),
        Change::TableMoved { id: 3, level: 2 },
        Change::MergeBegun { newer: 4, older: 3 },
        Change::MergeEnded {
            newer: 4,
            older: 3,
            level: 2,
            filter: Some(span(9 << 30)),
            entries: 20,
            bytes: 1800,
        },
        Change::TableRemoved { id: 3 },
        Change::RepositoryCreated {
            head: span(1 << 24),
        },
        Change::RepositoryExtentAdded {
            span: span(1 << 25),
        },
        Change::RepositoryExtentRemoved { off: 1 << 25 },
        Change::FileAdded(file(5, 0)),
        Change::FileAdded(file(6, 2)),
        Change::FileMoved {
            number: 5,
            level: 3,
        },
        Change::FileRemoved { number: 6 },
        Change::LastSeq { seq: 77 },
        Change::NextId { id: 8 },
        Change::Time {
            time: 1_700_000_000_000,
        },
        Change::Totals(Totals {
            user: 1,
            pool: 2,
            log_files: 3,
            table_files: 1 << 40,
        }),
        Change::Closed,
    ]
}

/// Returns a manifest of these records.
fn manifest(records: &[&[Change]]) -> Vec<u8> {
    let mut bytes = header();
    for (number, changes) in records.iter().enumerate() {
        let mut record = vec![0; RECORD_HEADER_BYTES];
        changes.iter().for_each(|change| change.encode(&mut record));
        RecordHeader::finish(&mut record, GENERATION, number as u64, changes.len() as u32);
        bytes.extend_from_slice(&record);
        bytes.resize(bytes.len().next_multiple_of(RECORD_ALIGN), 0);
    }
    bytes.resize(bytes.len() + 64, 0);
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let all = changes();
    let each: Vec<&[Change]> = all.chunks(1).collect();
    let some: Vec<&[Change]> = all.chunks(5).collect();
    vec![
        manifest(&[&[]]),
        manifest(&[&all]),
        manifest(&each[..9]),
        manifest(&some),
    ]
}

/// Corrects the checksums of the header and of everything that looks like a record.
fn mend(bytes: &mut [u8]) {
    seal(bytes, HEADER_BYTES - 4);
    let mut at = HEADER_BYTES;
    // BOUND: the position only grows.
    while let Some(rest) = bytes.get_mut(at..)
        && let Ok(header) = RecordHeader::decode(rest, 0)
    {
        at += RECORD_ALIGN;
        let len = usize::try_from(header.record_bytes()).unwrap_or(usize::MAX);
        if header.generation == GENERATION
            && let Some(record) = rest.get_mut(..len)
        {
            let crc = record_checksum(record);
            record[..4].copy_from_slice(&crc.to_le_bytes());
            at += len.next_multiple_of(RECORD_ALIGN) - RECORD_ALIGN;
        }
    }
}

fn run(bytes: &[u8]) -> Result<Seen, String> {
    let replayed = replay(bytes, 0, GENERATION);
    let salvaged = salvage(bytes, 0, Some(GENERATION), &mut |_| Ok(()));
    let salvaged = salvaged.map_err(|e| format!("a rescue fails: {e}"))?;
    match replayed {
        Ok(replayed) => {
            let state = &replayed.state;
            let mut again = State::default();
            for change in state.to_changes() {
                again
                    .apply(&change)
                    .map_err(|e| format!("its own changes: {e}"))?;
            }
            same("the state", &again, state)?;
            // Salvage continues after what a replay takes for the end and no crash leaves: the next
            // record at a wrong position.
            match salvaged.problems {
                0 => {
                    same("records", &salvaged.records, &replayed.number)?;
                    same("what is salvaged", &salvaged.state, state)?;
                }
                _ if salvaged.records > replayed.number => {}
                _ => return Err("a rescue finds wrong what a replay reads".into()),
            }
            let spans = state.spans().len().min(15) as u64;
            let shape = replayed.number.min(15) << 8 | spans << 4;
            Ok(Seen::Accepted(shape | state.files.len().min(15) as u64))
        }
        Err(e) => Ok(refused(&e)),
    }
}
