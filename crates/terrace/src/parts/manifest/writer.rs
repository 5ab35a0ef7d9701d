//! This file is how edits reach the medium: appended one by one, compacted when the extent is full,
//! and added up again when the pool is opened.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::{Extent, Pool, Purpose, Region, Span};

use crate::canary::{self, Canary};
use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::manifest::ManifestError;
use crate::parts::manifest::edit::{Change, Edit};
use crate::parts::manifest::layout::{
    HEADER_BYTES, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, Roots, check_header,
    encode_header, newer_version, record_checksum,
};
use crate::parts::manifest::state::State;

/// The manifest of a pool, open for edits.
pub(crate) struct Manifest {
    pool: Pool,
    inner: Mutex<Inner>,
}

struct Inner {
    state: State,
    place: Place,
    /// Where the next record goes.
    tail: u64,
    /// The number of the next record.
    number: u64,
    /// The first failure; nothing works after it.
    failed: Option<String>,
    /// Extents that the superblock may or may not name since a failure.
    limbo: Vec<Place>,
    /// The record being encoded; kept for its memory.
    record: Vec<u8>,
}

/// The two extents, and which generation is in the first of them.
struct Place {
    current: Arc<Extent>,
    spare: Arc<Extent>,
    generation: u64,
}

impl Place {
    fn roots(&self) -> Roots {
        Roots {
            current: self.current.span(),
            generation: self.generation,
            spare: self.spare.span(),
        }
    }
}

impl Manifest {
    /// Makes the manifest of an empty store, durable on return, in two extents of `extent_bytes`.
    ///
    /// One that the roots may name from a creation that was not finished is forgotten.
    pub(crate) fn create(pool: &Pool, extent_bytes: u64) -> Result<Manifest, ManifestError> {
        let place = Place {
            current: pool.alloc(extent_bytes)?,
            spare: pool.alloc(extent_bytes)?,
            // Above any that left records in these extents: they must not follow the first one.
            generation: Roots::read(|i| pool.root(i)).generation + 1,
        };
        let state = State::default();
        let mut record = Vec::new();
        let count = encode(&mut record, &state.to_changes());
        let tail = write_generation(&place.current, place.generation, count, &mut record)
            .map_err(ManifestError::Io)?;
        pool.set_roots(&place.roots().words())?;
        Ok(Manifest::new(pool, state, place, tail, 1))
    }

    /// Opens the manifest that the pool's roots name, and adopts its own extents. What it finds is
    /// durable on return.
    ///
    /// The caller adopts what the state names before it commits or allocates anything.
    pub(crate) fn open(pool: &Pool) -> Result<Manifest, ManifestError> {
        let roots = Roots::read(|i| pool.root(i));
        if roots.generation == 0 {
            let found = "none: the pool's creation did not finish";
            return Err(DecodeError::new("manifest root", 0, "an extent", found).into());
        }
        let place = Place {
            current: pool.adopt(roots.current)?,
            spare: pool.adopt(roots.spare)?,
            generation: roots.generation,
        };
        let header = pool.region().bytes(roots.current.off, HEADER_BYTES);
        if let Some(version) = header.and_then(newer_version) {
            return Err(ManifestError::Newer { version });
        }
        let replayed = replay(pool.region(), roots.current, roots.generation)?;
        // PERSIST: a record that a killed process had written and not made durable, before anybody
        // acts on it, and before a record behind it. Reversed, power loss could take the edit back,
        // or leave a hole that looks like damage.
        pool.region()
            .persist(roots.current.off, replayed.tail as usize, Purpose::Manifest);
        let synced = pool
            .region()
            .sync(roots.current.off, replayed.tail as usize);
        synced.map_err(ManifestError::Io)?;
        Ok(Manifest::new(
            pool,
            replayed.state,
            place,
            replayed.tail,
            replayed.number,
        ))
    }

    fn new(pool: &Pool, state: State, place: Place, tail: u64, number: u64) -> Manifest {
        let inner = Inner {
            state,
            place,
            tail,
            number,
            failed: None,
            limbo: Vec::new(),
            record: Vec::new(),
        };
        Manifest {
            pool: pool.clone(),
            inner: Mutex::new(inner),
        }
    }

    /// Makes all changes of `edit` true at once, durably, or none of them.
    ///
    /// An edit that contradicts the state is refused as `Corrupt`, a manifest that cannot grow as
    /// `Alloc`; both leave everything as it is. Any other failure is final.
    pub(crate) fn commit(&self, edit: Edit) -> Result<(), ManifestError> {
        let inner = &mut *self.inner.lock();
        if let Some(first) = &inner.failed {
            return Err(ManifestError::Failed(first.clone()));
        }
        if edit.is_empty() {
            return Ok(());
        }
        let mut state = inner.state.clone();
        for change in &edit.changes {
            state.apply(change)?;
        }
        let count = encode(&mut inner.record, &edit.changes);
        let bytes = inner.record.len().next_multiple_of(RECORD_ALIGN) as u64;
        if bytes <= inner.place.current.len() - inner.tail {
            inner.append(bytes, count)?;
        } else {
            inner.compact(&self.pool, &state)?;
        }
        inner.state = state;
        Ok(())
    }

    /// Runs `f` on the state; commits wait for it.
    pub(crate) fn with_state<T>(&self, f: impl FnOnce(&State) -> T) -> T {
        f(&self.inner.lock().state)
    }

    /// Reads everything on the medium again, compares it with the state in memory, and checks that
    /// no two extents in use share a byte.
    pub(crate) fn verify(&self) -> Result<(), DecodeError> {
        let inner = self.inner.lock();
        let own = [inner.place.current.span(), inner.place.spare.span()];
        let replayed = replay(self.pool.region(), own[0], inner.place.generation)?;
        if replayed.state != inner.state || replayed.tail != inner.tail {
            let at = own[0].off + replayed.tail;
            let expected = format!("{} records", inner.number);
            return Err(DecodeError::new(
                "manifest",
                at,
                expected,
                replayed.number.to_string(),
            ));
        }
        let mut spans = inner.state.spans();
        spans.extend(own);
        spans.sort_unstable();
        for pair in spans.windows(2) {
            if pair[0].off + pair[0].len > pair[1].off {
                let (expected, found) = (
                    format!("no extent inside of {}", pair[0]),
                    pair[1].to_string(),
                );
                return Err(DecodeError::new("manifest", pair[1].off, expected, found));
            }
        }
        Ok(())
    }
}

/// What only tests ask.
#[cfg(test)]
mod testing {
    use super::{Manifest, Span, State};

    impl Manifest {
        /// A copy of the state.
        pub(crate) fn state(&self) -> State {
            self.with_state(State::clone)
        }

        /// The manifest's own extents, the one in use first.
        pub(crate) fn spans(&self) -> [Span; 2] {
            let place = &self.inner.lock().place;
            [place.current.span(), place.spare.span()]
        }

        /// Counts compactions.
        pub(crate) fn generation(&self) -> u64 {
            self.inner.lock().place.generation
        }
    }
}

impl Inner {
    fn fail<T>(&mut self, e: ManifestError) -> Result<T, ManifestError> {
        self.failed.get_or_insert_with(|| e.to_string());
        Err(e)
    }

    /// Writes the encoded record of `count` changes behind the last one.
    fn append(&mut self, bytes: u64, count: u32) -> Result<(), ManifestError> {
        let generation = self.place.generation;
        RecordHeader::finish(&mut self.record, generation, self.number, count);
        match write_durably(&self.place.current, self.tail, &self.record) {
            Ok(()) => {
                self.tail += bytes;
                self.number += 1;
                Ok(())
            }
            Err(e) => self.fail(ManifestError::Io(e)),
        }
    }

    /// Starts a new generation with `state` as its first record.
    fn compact(&mut self, pool: &Pool, state: &State) -> Result<(), ManifestError> {
        let count = encode(&mut self.record, &state.to_changes());
        let wanted = (HEADER_BYTES + self.record.len().next_multiple_of(RECORD_ALIGN)) as u64;
        let next = self.next_place(pool, wanted)?;
        let tail = match write_generation(&next.current, next.generation, count, &mut self.record) {
            Ok(tail) => tail,
            Err(e) => {
                self.limbo.push(next);
                return self.fail(ManifestError::Io(e));
            }
        };
        // PERSIST: the new generation is durable before the roots name it. Reversed, a crash would
        // leave roots that name a manifest that was never written.
        // CRASH: until set_roots returns the old roots may be the valid ones. The old generation is
        // untouched, so recovery finds the state before this edit.
        if let Err(e) = pool.set_roots(&next.roots().words()) {
            self.limbo.push(next);
            return self.fail(ManifestError::Pool(e));
        }
        self.place = next;
        self.tail = tail;
        self.number = 1;
        Ok(())
    }

    /// The extents of the next generation: these two exchanged, or larger ones once a state of
    /// `wanted` bytes leaves less than half of one for edits.
    fn next_place(&self, pool: &Pool, wanted: u64) -> Result<Place, ManifestError> {
        let generation = self.place.generation + 1;
        let room = self.place.spare.len();
        if wanted > room / 2 {
            let bytes = wanted.saturating_mul(4);
            let grown = pool
                .alloc(bytes)
                .and_then(|a| pool.alloc(bytes).map(|b| (a, b)));
            match grown {
                Ok((current, spare)) => {
                    return Ok(Place {
                        current,
                        spare,
                        generation,
                    });
                }
                // A full pool must not stop the edits that make room in it.
                Err(_) if wanted <= room => {}
                Err(e) => return Err(e.into()),
            }
        }
        let (current, spare) = (self.place.spare.clone(), self.place.current.clone());
        Ok(Place {
            current,
            spare,
            generation,
        })
    }
}

/// Encodes changes behind room for the header of their record, and returns how many there are.
fn encode(record: &mut Vec<u8>, changes: &[Change]) -> u32 {
    record.clear();
    record.resize(RECORD_HEADER_BYTES, 0);
    for change in changes {
        change.encode(record);
    }
    changes.len() as u32
}

/// Writes the header and the first record of a generation, durably, and returns the tail.
fn write_generation(
    extent: &Arc<Extent>,
    generation: u64,
    count: u32,
    record: &mut [u8],
) -> io::Result<u64> {
    RecordHeader::finish(record, generation, 0, count);
    let mut bytes = encode_header(generation).to_vec();
    bytes.extend_from_slice(record);
    bytes.resize(bytes.len().next_multiple_of(RECORD_ALIGN), 0);
    write_durably(extent, 0, &bytes)?;
    Ok(bytes.len() as u64)
}

fn write_durably(extent: &Arc<Extent>, at: u64, bytes: &[u8]) -> io::Result<()> {
    let Some(mut claim) = extent.claim(at, bytes.len()) else {
        let text = format!("{} bytes at {at} leave the manifest's extent", bytes.len());
        return Err(io::Error::other(text));
    };
    claim.write_streaming(0, bytes, Purpose::Manifest);
    if canary::breaks(Canary::EditFence) {
        return Ok(());
    }
    // PERSIST: the whole record, before the caller acts on it: frees what it removed, acknowledges
    // what it added. Reversed, a crash would bring back tables whose extents are reused.
    // CRASH: until this returns any part may be missing; the checksum says so, and replay ends
    // before the record.
    extent.region().fence(Purpose::Manifest);
    extent.region().sync(extent.off() + at, bytes.len())
}

/// What the records of a generation add up to.
#[derive(Debug)]
pub(super) struct Replayed {
    pub(super) state: State,
    pub(super) tail: u64,
    pub(super) number: u64,
}

/// Adds up the records of `generation` in `span`.
pub(super) fn replay(
    region: &Region,
    span: Span,
    generation: u64,
) -> Result<Replayed, DecodeError> {
    let Some(bytes) = usize::try_from(span.len)
        .ok()
        .and_then(|len| region.bytes(span.off, len))
    else {
        let found = format!("the end of the pool at {}", region.end());
        let expected = format!("{} bytes", span.len);
        return Err(DecodeError::new(
            "manifest extent",
            span.off,
            expected,
            found,
        ));
    };
    check_header(
        bytes.get(..HEADER_BYTES).unwrap_or(bytes),
        generation,
        span.off,
    )?;
    let mut r = Replayed {
        state: State::default(),
        tail: HEADER_BYTES as u64,
        number: 0,
    };
    // BOUND: every record takes bytes of the extent.
    let end = loop {
        match whole_record(bytes, r.tail, generation, span.off) {
            Ok((header, record)) if header.number == r.number => {
                apply(&mut r.state, &header, record, span.off + r.tail)?;
                r.tail += (record.len().next_multiple_of(RECORD_ALIGN)) as u64;
                r.number += 1;
            }
            Ok((header, _)) => {
                let expected = format!("record {}", r.number);
                let found = format!("record {}", header.number);
                let at = span.off + r.tail;
                break DecodeError::new("manifest record", at, expected, found);
            }
            Err(e) => break e,
        }
    };
    if r.number == 0 || later_record(bytes, r.tail, generation, r.number) {
        return Err(end);
    }
    Ok(r)
}

/// The record at `at`, if all of it is there; `base` is the offset of `bytes`.
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

/// Applies the changes of a record whose checksum agrees.
fn apply(
    state: &mut State,
    header: &RecordHeader,
    record: &[u8],
    offset: u64,
) -> Result<(), DecodeError> {
    let payload = record.get(RECORD_HEADER_BYTES..).unwrap_or(&[]);
    let mut r = Reader::new(
        "manifest edit",
        offset + RECORD_HEADER_BYTES as u64,
        payload,
    );
    // BOUND: every change takes bytes of the record.
    for _ in 0..header.change_count {
        let at = r.offset();
        let change = Change::decode(&mut r)?;
        state
            .apply(&change)
            .map_err(|e| DecodeError { offset: at, ..e })?;
    }
    r.end()
}

/// Whether a record of this generation with a number above `number` lies behind `tail`.
fn later_record(bytes: &[u8], tail: u64, generation: u64, number: u64) -> bool {
    let last = bytes.len() as u64;
    // No more records than fit can follow.
    let numbers = number + 1..number + last / RECORD_HEADER_BYTES as u64;
    let mut at = tail;
    // BOUND: the position only grows.
    while at < last {
        at += RECORD_ALIGN as u64;
        if let Ok((header, _)) = whole_record(bytes, at, generation, 0)
            && numbers.contains(&header.number)
        {
            return true;
        }
    }
    false
}
