//! The decoders of the manifest for fuzzing: replay and salvage of the same bytes, and single
//! changes.

use terrace_media::Span;
use terrace_media::decoder::{Decoder, Seen, kind_of, same, seal};

use super::ManifestError;
use super::edit::{Change, LogPlace, Totals};
use super::item::Owners;
use super::layout::{
    HEADER_BYTES, Header, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, decode_header,
    encode_header, generation_of, other_version, record_checksum,
};
use super::replay::replay;
use super::salvage::salvage;
use super::state::State;
use crate::error::ErrorKind;
use crate::parts::codec::Reader;
use crate::parts::codec::decoders::refused;
use crate::types::DbId;

/// The generation of the manifest.
const GENERATION: u64 = 3;

/// The registered owners; a type, since decoders are plain functions.
pub(crate) trait Registry {
    const OWNERS: Owners;
}

pub(crate) fn decoders<R: Registry>() -> Vec<Decoder> {
    vec![
        Decoder {
            name: "manifest-header",
            seeds: || vec![header()],
            mend: |bytes| seal(bytes, HEADER_BYTES - 4),
            run: |bytes| {
                let (generation, other) = (generation_of(bytes), other_version(bytes));
                match decode_header(bytes, 0) {
                    Ok(header) => {
                        same("the generation", &generation, &Some(header.generation))?;
                        same("another version", &other, &None)?;
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
                changes(R::OWNERS).iter().map(encoded).collect()
            },
            mend: |_| {},
            run: |bytes| {
                let mut r = Reader::new("manifest edit", 0, bytes);
                let (mut again, mut tags) = (Vec::new(), 0u64);
                // BOUND: every change consumes bytes.
                while r.remaining() > 0 {
                    tags |= 1 << (bytes[bytes.len() - r.remaining()] % 64);
                    match Change::decode(&mut r, R::OWNERS) {
                        Ok(change) => change.encode(&mut again),
                        Err(e) => return Ok(refusal(&e)),
                    }
                }
                same("changes", &again.as_slice(), &bytes)?;
                Ok(Seen::Accepted(tags))
            },
        },
        Decoder {
            name: "manifest",
            seeds: seeds::<R>,
            mend,
            run: run::<R>,
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
fn changes(owners: Owners) -> Vec<Change> {
    let span = |off: u64| Span { off, len: 65536 };
    let mut changes = vec![
        Change::Created,
        Change::LogCreated {
            id: 1,
            place: LogPlace::Pool(span(1 << 16)),
        },
        Change::LogCreated {
            id: 2,
            place: LogPlace::File,
        },
        Change::LogCreated {
            id: 10,
            place: LogPlace::List(span(1 << 18)),
        },
        Change::LogEnded { id: 2, end: 64000 },
        Change::LogRetired { id: 1 },
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
    ];
    for owner in owners {
        let samples = (owner.samples)();
        changes.extend(samples.iter().cloned().map(Change::Added));
        changes.extend(samples.iter().cloned().map(Change::Changed));
        // The last one: others may lead to an earlier one.
        changes.extend(samples.last().map(|item| Change::Removed {
            owner,
            id: item.id(),
        }));
    }
    changes.push(Change::Closed);
    changes
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

fn seeds<R: Registry>() -> Vec<Vec<u8>> {
    let all = changes(R::OWNERS);
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

fn run<R: Registry>(bytes: &[u8]) -> Result<Seen, String> {
    let replayed = replay(bytes, 0, GENERATION, R::OWNERS);
    let salvaged = salvage(bytes, 0, Some(GENERATION), R::OWNERS, &mut |_| Ok(()));
    if let Err(e @ ManifestError::UnknownOwner { .. }) = &replayed {
        return match salvaged {
            Ok(_) => Err("salvage skips an item of an unknown owner".into()),
            Err(_) => Ok(refusal(e)),
        };
    }
    // Salvage goes on where a replay has ended.
    if let Err(e) = &salvaged
        && e.kind() == ErrorKind::Unsupported
    {
        return Ok(Seen::Refused(kind_of("salvage", "known owners")));
    }
    let salvaged = salvaged.map_err(|e| format!("salvage fails: {e}"))?;
    match replayed {
        Ok(replayed) => {
            let state = &replayed.state;
            let mut again = State::default();
            for change in state.to_changes() {
                again
                    .apply(&change)
                    .map_err(|e| format!("its decoded changes: {e}"))?;
            }
            same("the state", &again, state)?;
            // Salvage continues after what a replay takes for the end and no crash leaves: the next
            // record at a wrong position.
            match salvaged.problems {
                0 => {
                    same("records", &salvaged.records, &replayed.number)?;
                    same("the salvaged state", &salvaged.state, state)?;
                }
                _ if salvaged.records > replayed.number => {}
                _ => return Err("salvage reports a problem where a replay reads".into()),
            }
            let spans = state.spans().len().min(15) as u64;
            let shape = replayed.number.min(15) << 8 | spans << 4;
            Ok(Seen::Accepted(
                shape | state.all_items().count().min(15) as u64,
            ))
        }
        Err(e) => Ok(refusal(&e)),
    }
}

fn refusal(e: &ManifestError) -> Seen {
    match e {
        ManifestError::Corrupt(e) => refused(e),
        e => Seen::Refused(kind_of("manifest", &e.to_string())),
    }
}
