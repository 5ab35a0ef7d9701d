//! Salvage of a manifest: reads the intact records of a manifest that may be damaged, for
//! inspection and repair.
//!
//! Records are walked as in a replay, each verified alone. After a damaged one the walk continues
//! with the next valid one. Changes that contradict the state, since earlier ones are missing, are
//! reported and not applied.

use super::ManifestError;
use super::edit::Change;
use super::item::Owners;
use super::layout::{
    HEADER_BYTES, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, check_header, generation_of,
    record_checksum,
};
use super::state::State;
use crate::error::Result;
use crate::parts::codec::{DecodeError, Reader};

/// A piece of a manifest. Pieces are visited in order.
pub(crate) enum Piece<'a> {
    /// A record with a valid checksum. Number 0 is the state at the start of the generation.
    Record {
        number: u64,
        offset: u64,
        changes: &'a [Change],
    },
    /// The bytes at an offset are not the ones written there.
    Problem { offset: u64, text: String },
}

/// The result of the walk for the manifest as a whole.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    pub(crate) generation: u64,
    pub(crate) records: u64,
    /// The state after all changes that could be applied.
    pub(crate) state: State,
    pub(crate) problems: u64,
    /// Whether the last record is incomplete: still being written, or torn by a crash.
    pub(crate) torn: bool,
}

/// A callback that takes the pieces.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Piece<'_>) -> Result<()>;

/// Walks the manifest in `bytes`, whose first byte is at offset `base`. `generation` is the
/// expected generation, `None` the one in the header.
///
/// # Errors
/// Fails if `visit` fails, and if there are items of an owner that is not in `owners`. Damage is
/// not an error.
pub(crate) fn salvage(
    bytes: &[u8],
    base: u64,
    generation: Option<u64>,
    owners: Owners,
    visit: Visit<'_>,
) -> Result<Salvaged> {
    let head = bytes.get(..HEADER_BYTES).unwrap_or(bytes);
    let generation = generation.or_else(|| generation_of(head)).unwrap_or(0);
    let mut walk = Walk {
        bytes,
        base,
        found: Salvaged {
            generation,
            ..Salvaged::default()
        },
        owners,
        visit,
    };
    if let Err(e) = check_header(head, generation, base) {
        walk.problem(&e)?;
    }
    walk.records()?;
    let state = &walk.found.state;
    if let Err(e) = state.check(&state.to_changes()) {
        walk.problem(&DecodeError { offset: base, ..e })?;
    }
    Ok(walk.found)
}

struct Walk<'a> {
    bytes: &'a [u8],
    base: u64,
    found: Salvaged,
    owners: Owners,
    visit: Visit<'a>,
}

impl Walk<'_> {
    fn problem(&mut self, e: &DecodeError) -> Result<()> {
        self.found.problems += 1;
        let text = e.to_string();
        (self.visit)(Piece::Problem {
            offset: e.offset,
            text,
        })
    }

    fn records(&mut self) -> Result<()> {
        let (mut at, mut next) = (HEADER_BYTES, 0u64);
        // No more records can be missing than fit, as in a replay.
        let most = (self.bytes.len() / RECORD_HEADER_BYTES) as u64;
        // The first position without a complete record, and the error.
        let mut broken: Option<(usize, DecodeError)> = None;
        // BOUND: the position only grows.
        while at + RECORD_HEADER_BYTES <= self.bytes.len() {
            let offset = self.base + at as u64;
            let whole = record_at(&self.bytes[at..], offset, self.found.generation);
            let (header, record) = match whole {
                // Only a later number counts: bytes after the end may be of an earlier use.
                Ok((header, record)) if (next..next + most).contains(&header.number) => {
                    (header, record)
                }
                Ok(_) => {
                    at += RECORD_ALIGN;
                    continue;
                }
                Err(e) => {
                    broken.get_or_insert((at, e));
                    at += RECORD_ALIGN;
                    continue;
                }
            };
            if let Some((_, e)) = broken.take() {
                // A later record proves that this one was complete (N2).
                self.problem(&e)?;
            }
            if header.number != next {
                let (expected, found) = (format!("record {next}"), header.number.to_string());
                self.problem(&DecodeError::new("manifest", offset, expected, found))?;
            }
            self.record(&header, record, offset)?;
            next = header.number + 1;
            at += record.len().next_multiple_of(RECORD_ALIGN);
        }
        // At the end, zeros or bytes of an earlier use are no record; a header of this generation
        // with the next number is a torn one.
        self.found.torn = broken.is_some_and(|(at, _)| {
            let header = RecordHeader::decode(&self.bytes[at..], 0);
            header.is_ok_and(|h| h.generation == self.found.generation && h.number == next)
        });
        if self.found.records == 0 {
            let e = DecodeError::new("manifest", self.base, "a record", "no intact record");
            self.problem(&e)?;
        }
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, record: &[u8], offset: u64) -> Result<()> {
        let payload = record.get(RECORD_HEADER_BYTES..).unwrap_or(&[]);
        let first = offset + RECORD_HEADER_BYTES as u64;
        let mut r = Reader::new("manifest edit", first, payload);
        let mut changes = Vec::new();
        // BOUND: every change consumes bytes of the record.
        for _ in 0..header.change_count {
            let at = r.offset();
            match Change::decode(&mut r, self.owners) {
                Ok(change) => {
                    if let Err(e) = self.found.state.apply(&change) {
                        self.problem(&DecodeError { offset: at, ..e })?;
                    }
                    changes.push(change);
                }
                Err(ManifestError::Corrupt(e)) => {
                    self.problem(&e)?;
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        self.found.records += 1;
        (self.visit)(Piece::Record {
            number: header.number,
            offset,
            changes: &changes,
        })
    }
}

/// Returns the record of `generation` at the start of `bytes` if it is complete.
fn record_at(
    bytes: &[u8],
    offset: u64,
    generation: u64,
) -> Result<(RecordHeader, &[u8]), DecodeError> {
    let header = RecordHeader::decode(bytes, offset)?;
    let refuse = |expected: String, found: String| {
        Err(DecodeError::new("manifest record", offset, expected, found))
    };
    if header.generation != generation {
        let found = header.generation.to_string();
        return refuse(format!("generation {generation}"), found);
    }
    let record = usize::try_from(header.record_bytes())
        .ok()
        .and_then(|len| bytes.get(..len));
    let Some(record) = record else {
        let found = header.record_bytes().to_string();
        return refuse(format!("at most {} bytes", bytes.len()), found);
    };
    let computed = record_checksum(record);
    if computed != header.checksum {
        let found = crate::parts::codec::hex(header.checksum);
        return refuse(crate::parts::codec::hex(computed), found);
    }
    Ok((header, record))
}
