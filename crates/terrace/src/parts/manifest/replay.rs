//! Replays the records of a manifest, and distinguishes the end left by a crash from damage.

use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::manifest::ManifestError;
use crate::parts::manifest::edit::Change;
use crate::parts::manifest::item::Owners;
use crate::parts::manifest::layout::{
    HEADER_BYTES, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, check_header, record_checksum,
};
use crate::parts::manifest::state::State;
use crate::types::DbId;

/// The result of replaying the records of a generation.
#[derive(Debug)]
pub(super) struct Replayed {
    pub(super) db: DbId,
    pub(super) state: State,
    pub(super) tail: u64,
    pub(super) number: u64,
}

/// Replays the records of `generation` in `bytes`; `base` is the offset of the first byte for
/// errors.
pub(super) fn replay(
    bytes: &[u8],
    base: u64,
    generation: u64,
    owners: Owners,
) -> Result<Replayed, ManifestError> {
    let header = check_header(bytes.get(..HEADER_BYTES).unwrap_or(bytes), generation, base)?;
    let mut r = Replayed {
        db: header.db,
        state: State::default(),
        tail: HEADER_BYTES as u64,
        number: 0,
    };
    // BOUND: every record consumes bytes of the extent.
    let end = loop {
        match whole_record(bytes, r.tail, generation, base) {
            Ok((header, record)) if header.number == r.number => {
                apply(&mut r.state, &header, record, base + r.tail, owners)?;
                r.tail += (record.len().next_multiple_of(RECORD_ALIGN)) as u64;
                r.number += 1;
            }
            Ok((header, _)) => {
                let expected = format!("record {}", r.number);
                let found = format!("record {}", header.number);
                let at = base + r.tail;
                break DecodeError::new("manifest record", at, expected, found);
            }
            Err(e) => break e,
        }
    };
    if r.number == 0 || later_record(bytes, r.tail, generation, r.number) {
        return Err(end.into());
    }
    Ok(r)
}

/// Returns the record at `at` if it is complete; `base` is the offset of `bytes`.
fn whole_record(
    bytes: &[u8],
    at: u64,
    generation: u64,
    base: u64,
) -> Result<(RecordHeader, &[u8]), DecodeError> {
    let offset = base + at;
    let rest = usize::try_from(at)
        .ok()
        .and_then(|at| bytes.get(at..))
        .unwrap_or(&[]);
    let header = RecordHeader::decode(rest, offset)?;
    let refuse = |expected: String, found: String| {
        Err(DecodeError::new("manifest record", offset, expected, found))
    };
    if header.generation != generation {
        return refuse(
            format!("generation {generation}"),
            header.generation.to_string(),
        );
    }
    let record = usize::try_from(header.record_bytes())
        .ok()
        .and_then(|len| rest.get(..len));
    let Some(record) = record else {
        return refuse(
            format!("at most {} bytes", rest.len()),
            header.record_bytes().to_string(),
        );
    };
    let computed = record_checksum(record);
    if computed != header.checksum {
        return refuse(codec::hex(computed), codec::hex(header.checksum));
    }
    Ok((header, record))
}

/// Applies the changes of a record with a valid checksum.
fn apply(
    state: &mut State,
    header: &RecordHeader,
    record: &[u8],
    offset: u64,
    owners: Owners,
) -> Result<(), ManifestError> {
    let payload = record.get(RECORD_HEADER_BYTES..).unwrap_or(&[]);
    let mut r = Reader::new(
        "manifest edit",
        offset + RECORD_HEADER_BYTES as u64,
        payload,
    );
    let mut changes = Vec::new();
    // BOUND: every change consumes bytes of the record.
    for _ in 0..header.change_count {
        let at = r.offset();
        let change = Change::decode(&mut r, owners)?;
        state
            .apply(&change)
            .map_err(|e| DecodeError { offset: at, ..e })?;
        changes.push(change);
    }
    let checked = state.check(&changes);
    checked.map_err(|e| DecodeError { offset, ..e })?;
    Ok(r.end()?)
}

/// Returns whether a record of this generation with a number above `number` follows `tail`.
fn later_record(bytes: &[u8], tail: u64, generation: u64, number: u64) -> bool {
    let last = bytes.len() as u64;
    // No more records can follow than fit.
    let numbers = number + 1..number + last / RECORD_HEADER_BYTES as u64;
    let mut at = tail;
    // BOUND: the position only grows.
    while at < last {
        at += RECORD_ALIGN as u64;
        let head = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
        let head = head.and_then(|rest| rest.first_chunk::<RECORD_HEADER_BYTES>());
        let Some(head) = head else {
            return false;
        };
        // Nearly all places end here, before an error about them is worded.
        if RecordHeader::is_of(head, generation)
            && let Ok((header, _)) = whole_record(bytes, at, generation, 0)
            && numbers.contains(&header.number)
        {
            return true;
        }
    }
    false
}
