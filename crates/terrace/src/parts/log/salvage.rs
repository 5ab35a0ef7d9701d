//! Salvage of a log: reads the intact records of a log that may be damaged, for inspection and
//! repair.
//!
//! Replay stops at the first incomplete record. This walk continues after it: a record found there
//! has a valid checksum, and the caller learns that records before it are missing.

use std::path::Path;

use terrace_media::{File, Span};

use super::layout::{
    LOG_HEADER_BYTES, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, check_log_header, log_id,
};
use super::record::{RecordView, Verdict, judge, record_bytes};
use crate::error::{Error, Result};

/// The number of bytes per read of the file.
const READ_BYTES: usize = 1 << 20;
/// The number of damaged values after the end of a replay whose text is kept; the others are
/// counted.
const IN_FLIGHT_TEXTS: usize = 64;

/// A piece of a log. Pieces are visited in order, except that damage proven only by a later record
/// comes last.
pub(crate) enum Piece<'a> {
    /// A record with valid checksums.
    Record {
        view: RecordView<'a>,
        /// The size of the record in the log.
        bytes: u64,
        /// Whether a replay ends before the record, that is, records before it are missing.
        stranded: bool,
    },
    /// The bytes at an offset are not the ones written there.
    Problem { offset: u64, text: String },
}

/// The result of the walk for the log as a whole.
#[derive(Debug, Default, Clone)]
pub(crate) struct Salvaged {
    /// The id in the header; `None` if it is damaged and the caller did not give one.
    pub(crate) id: Option<u64>,
    /// The number of records that a replay returns, and the end of the last one, from the log's
    /// start.
    pub(crate) records: u64,
    pub(crate) end: u64,
    /// Whether the log has a seal after these records.
    pub(crate) sealed: bool,
    /// The number of records after that end.
    pub(crate) stranded: u64,
    pub(crate) problems: u64,
    /// The position, from the log's start, up to which a record calls the log durable: an
    /// incomplete record before it is damage.
    pub(crate) settled: u64,
    /// Whether the last record is incomplete, as after a crash; this is not damage.
    pub(crate) torn: bool,
}

/// A callback that takes the pieces.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Piece<'_>) -> Result<()>;

/// Walks the log in `span` of `file`; errors name `path`. `id` is the expected id, `None` the one
/// in the header. `end` is the expected end of the last record, if known.
///
/// # Errors
/// Fails if the file cannot be read or `visit` fails. Damage is not an error.
pub(crate) fn salvage(
    file: &dyn File,
    path: &Path,
    span: Span,
    (id, end): (Option<u64>, Option<u64>),
    visit: Visit<'_>,
) -> Result<Salvaged> {
    let mut walk = Walk {
        window: Window {
            file,
            path,
            span,
            buffer: Vec::new(),
            start: 0,
        },
        found: Salvaged::default(),
        visit,
    };
    let head_bytes = span.len.min(LOG_HEADER_BYTES as u64) as usize;
    let head = walk.window.get(0, head_bytes)?;
    let known = id.or_else(|| log_id(head));
    if let Err(e) = check_log_header(head, None, known.unwrap_or_default(), span.off) {
        walk.problem(e.offset, e.to_string())?;
    }
    walk.found.id = known;
    if let Some(id) = known {
        walk.records(id, end)?;
    }
    Ok(walk.found)
}

struct Walk<'a> {
    window: Window<'a>,
    found: Salvaged,
    visit: Visit<'a>,
}

impl Walk<'_> {
    fn problem(&mut self, offset: u64, text: String) -> Result<()> {
        self.found.problems += 1;
        (self.visit)(Piece::Problem { offset, text })
    }

    fn records(&mut self, id: u64, end: Option<u64>) -> Result<()> {
        let (base, len) = (self.window.span.off, self.window.span.len);
        let mut at = LOG_HEADER_BYTES as u64;
        self.found.end = at;
        // The first incomplete record with its error, and whether it is damage, which a later
        // record proves, or the end of the log.
        let mut broken: Option<(u64, String)> = None;
        let mut damaged = false;
        // Damaged values after it. If it is the end of the log, they were in flight as well.
        let (mut in_flight, mut more) = (Vec::new(), 0);
        // BOUND: the position only grows.
        while at.saturating_add(RECORD_HEADER_BYTES as u64) <= len {
            let step = RECORD_ALIGN as u64;
            let bytes = self.window.get(at, RECORD_HEADER_BYTES)?;
            let header = bytes.first_chunk().map(RecordHeader::decode);
            let Some(header) = header.filter(|header| header.log_id == id) else {
                broken.get_or_insert_with(|| (base + at, "there is no record here".into()));
                at += step;
                continue;
            };
            let wanted = RECORD_HEADER_BYTES as u64 + u64::from(header.payload_bytes);
            if wanted > len - at || !header.payload_bytes.is_multiple_of(8) {
                self.found.torn |= broken.is_none();
                broken.get_or_insert_with(|| {
                    let text = format!("a record of {wanted} bytes exceeds the log");
                    (base + at, text)
                });
                at += step;
                continue;
            }
            let record = self.window.get(at, wanted as usize)?;
            let size = record_bytes(header.payload_bytes as usize);
            match judge(&header, record, base, at) {
                Verdict::Whole(view) if view.is_seal() => {
                    match broken {
                        None => {
                            self.found.sealed = true;
                            // A replay ends here in any case.
                            broken = Some((base + at + size, "the log is sealed".into()));
                        }
                        Some(_) => damaged |= header.settled(at) > self.found.end,
                    }
                    at += size;
                }
                Verdict::Whole(view) => {
                    self.found.settled = self.found.settled.max(header.settled(at));
                    let stranded = broken.is_some();
                    if !stranded {
                        self.found.records += 1;
                        self.found.end = at + size;
                    } else {
                        self.found.stranded += 1;
                        damaged |= header.settled(at) > self.found.end;
                    }
                    (self.visit)(Piece::Record {
                        view,
                        bytes: size,
                        stranded,
                    })?;
                    at += size;
                }
                Verdict::BadValue(e) => {
                    // The record's checksum is valid, so its size and its settled position can be
                    // trusted.
                    self.found.settled = self.found.settled.max(header.settled(at));
                    self.found.torn |= broken.is_none();
                    match broken {
                        None => broken = Some((e.offset, e.to_string())),
                        Some(_) => {
                            damaged |= header.settled(at) > self.found.end;
                            match in_flight.len() < IN_FLIGHT_TEXTS {
                                true => in_flight.push((e.offset, e.to_string())),
                                false => more += 1,
                            }
                        }
                    }
                    at += size;
                }
                Verdict::Bad(e) => {
                    self.found.torn |= broken.is_none();
                    broken.get_or_insert_with(|| (e.offset, e.to_string()));
                    at += step;
                }
            }
        }
        if let Some(end) = end.filter(|end| self.found.end < *end) {
            let ends = base + self.found.end;
            let text = format!(
                "the log ends here, but had records up to offset {}",
                base + end
            );
            broken = broken.filter(|(at, _)| *at == ends).or(Some((ends, text)));
            damaged = true;
        }
        if let Some(broken) = broken.filter(|_| damaged) {
            self.found.torn = false;
            self.found.problems += more;
            for (offset, text) in in_flight.into_iter().chain([broken]) {
                self.problem(offset, text)?;
            }
        }
        Ok(())
    }
}

/// A buffered piece of the log.
struct Window<'a> {
    file: &'a dyn File,
    path: &'a Path,
    span: Span,
    buffer: Vec<u8>,
    /// The offset of the buffer in the log.
    start: u64,
}

impl Window<'_> {
    /// Returns `len` bytes at `at`; the range must be inside the log.
    fn get(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        let buffered = self.start + self.buffer.len() as u64;
        if at < self.start || at + len as u64 > buffered {
            let rest = usize::try_from(self.span.len - at).unwrap_or(usize::MAX);
            self.start = at;
            self.buffer.resize(rest.min(len.max(READ_BYTES)), 0);
            let off = self.span.off + at;
            if let Err(e) = self.file.read_exact_at(off, &mut self.buffer) {
                self.buffer.clear();
                return Err(Error::io("read the log in", self.path, e));
            }
        }
        let from = (at - self.start) as usize;
        Ok(&self.buffer[from..from + len])
    }
}
