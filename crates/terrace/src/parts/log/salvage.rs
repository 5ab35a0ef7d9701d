//! This file reads what is sound of a log that may be damaged, for those who show or rescue it.
//!
//! Replay stops at the first record that is not whole. Here the walk goes on behind it: a record
//! that is found there verifies by itself, and the caller is told that others before it are missing.

use std::path::Path;

use terrace_media::{File, Span};

use super::layout::{
    LOG_HEADER_BYTES, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, check_log_header, log_id,
};
use super::record::{RecordView, Verdict, judge, record_bytes};
use crate::error::{Error, Result};

/// Bytes read from the file at once.
const READ_BYTES: usize = 1 << 20;
/// Of so many damaged values behind the end of a replay the text is kept; others are counted.
const IN_FLIGHT_TEXTS: usize = 64;

/// One piece of a log, in the order of their places; what turns out to be damage only behind it comes last.
pub(crate) enum Piece<'a> {
    /// A record that verifies.
    Record {
        view: RecordView<'a>,
        /// Bytes that it takes in the log.
        bytes: u64,
        /// A replay ends before it: something is missing in front.
        stranded: bool,
    },
    /// What is at an offset is not what was written there.
    Problem { offset: u64, text: String },
}

/// What the walk has learned of the log as a whole.
#[derive(Debug, Default, Clone)]
pub(crate) struct Salvaged {
    /// As the header has it; `None` when that is damaged and the caller did not know it.
    pub(crate) id: Option<u64>,
    /// Records that a replay hands out, and where the last of them ends, from the log's start.
    pub(crate) records: u64,
    pub(crate) end: u64,
    /// A seal is there: it had no others.
    pub(crate) sealed: bool,
    /// Records behind that.
    pub(crate) stranded: u64,
    pub(crate) problems: u64,
    /// Up to here, from the log's start, a record says that the log was durable before it was written:
    /// what is not whole before that is damage.
    pub(crate) settled: u64,
    /// A record was begun at the end and not finished, as a crash leaves it; no damage.
    pub(crate) torn: bool,
}

/// Takes the pieces.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Piece<'_>) -> Result<()>;

/// Walks the log in `span` of `file`, whose path errors name. `id`: what the log should be; `None`:
/// what its header says. `end`: where its last record must end, if that is known.
///
/// # Errors
/// The file cannot be read, or `visit` failed. Damage is no error.
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
        // Where the first record is that is not whole, and why; and whether that is damage, which a
        // later record proves, or the end.
        let mut broken: Option<(u64, String)> = None;
        let mut damaged = false;
        // Damaged values behind that: if it is the end, they were in flight like it.
        let (mut in_flight, mut more) = (Vec::new(), 0);
        // BOUND: the position only grows.
        while at.saturating_add(RECORD_HEADER_BYTES as u64) <= len {
            let step = RECORD_ALIGN as u64;
            let bytes = self.window.get(at, RECORD_HEADER_BYTES)?;
            let header = bytes.first_chunk().map(RecordHeader::decode);
            let Some(header) = header.filter(|header| header.log_id == id) else {
                broken.get_or_insert_with(|| (base + at, "no record begins here".into()));
                at += step;
                continue;
            };
            let wanted = RECORD_HEADER_BYTES as u64 + u64::from(header.payload_bytes);
            if wanted > len - at || !header.payload_bytes.is_multiple_of(8) {
                self.found.torn |= broken.is_none();
                broken.get_or_insert_with(|| {
                    let text = format!("a record of {wanted} bytes leaves the log");
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
                            // A replay ends here, whatever follows.
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
                    // Its own checksum is right, so its end is known, and what it says of others holds.
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
                "the log ends here, and had records up to offset {}",
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

/// A piece of the log in memory.
struct Window<'a> {
    file: &'a dyn File,
    path: &'a Path,
    span: Span,
    buffer: Vec<u8>,
    /// Where in the log the buffer begins.
    start: u64,
}

impl Window<'_> {
    /// `len` bytes at `at` of the log, both inside of it.
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
