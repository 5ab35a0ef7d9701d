//! Replay of a log, which distinguishes the end left by a crash from damage.
//!
//! Records are read from the front, and each is verified before it is handed out. At the first
//! incomplete one the rest of the log is searched. A valid record there that calls the bad position
//! settled proves damage. Other records there were in flight together with the torn one; they were
//! never acknowledged as durable, and are counted and not returned.

use std::io;
use std::path::Path;
use std::sync::Arc;

use terrace_media::{Extent, File, FileSystem, OpenMode, Purpose};

use crate::parts::codec::DecodeError;
use crate::parts::log::layout::{
    LOG_HEADER_BYTES, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, check_log_header,
};
use crate::parts::log::record::{RecordView, Verdict, judge, record_bytes};
use crate::types::DbId;

/// The size of a huge page: at the beginning of each a search of a log asks whether, or where next,
/// it may have been written.
const PAGE_BYTES: u64 = 2 << 20;

/// The number of bytes per read of a file.
const READ_BYTES: usize = 256 * 1024;

/// The outcome of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReplayEnd {
    /// The number of records handed out.
    pub(crate) records: u64,
    /// The end of the last of them.
    pub(crate) bytes: u64,
    /// Whether a seal follows them.
    pub(crate) sealed: bool,
    /// Whether the last record is incomplete.
    pub(crate) torn: bool,
    /// The number of valid records after the end, which were in flight at the crash.
    pub(crate) stranded: u64,
}

/// The bytes of a log in the pool or in a file.
trait Bytes {
    type Fault;
    /// Returns the offset of the log's first byte, for errors.
    fn base(&self) -> u64;
    fn len(&self) -> u64;
    /// Returns the first line, from the one at `at` on, that may have been written.
    fn next_written(&self, at: u64) -> u64 {
        at
    }
    /// Returns `len` bytes at `at`; the range is inside the log.
    fn window(&mut self, at: u64, len: usize) -> Result<&[u8], Self::Fault>;
    /// Makes a range that was handed out durable if this costs a flush of memory; does nothing on a
    /// disk.
    fn make_durable(&mut self, at: u64, len: u64) -> Result<(), Self::Fault>;
}

struct PoolBytes<'a> {
    extent: &'a Extent,
}

impl Bytes for PoolBytes<'_> {
    type Fault = DecodeError;

    fn base(&self) -> u64 {
        self.extent.off()
    }

    fn len(&self) -> u64 {
        self.extent.len()
    }

    fn next_written(&self, at: u64) -> u64 {
        // A record begins on a line.
        self.extent.next_written(at) / RECORD_ALIGN as u64 * RECORD_ALIGN as u64
    }

    fn window(&mut self, at: u64, len: usize) -> Result<&[u8], DecodeError> {
        let offset = self.extent.off().saturating_add(at);
        self.extent.region().bytes(offset, len).ok_or_else(|| {
            let expected = format!("{len} bytes of a log");
            DecodeError::new("log extent", offset, expected, "the end of the pool")
        })
    }

    fn make_durable(&mut self, at: u64, len: u64) -> Result<(), DecodeError> {
        // PERSIST: records that a killed process wrote and did not fence, before any caller acts on
        // them. Reversed, a power loss would take back records that a reader has seen.
        let region = self.extent.region();
        region.persist(self.extent.off() + at, len as usize, Purpose::Log);
        Ok(())
    }
}

struct FileBytes {
    file: Box<dyn File>,
    len: u64,
    buffer: Vec<u8>,
    /// The offset of the buffer in the file.
    start: u64,
}

impl Bytes for FileBytes {
    type Fault = io::Error;

    fn base(&self) -> u64 {
        0
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn window(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        let buffered = self.start + self.buffer.len() as u64;
        if at < self.start || at + len as u64 > buffered {
            let rest = usize::try_from(self.len - at).unwrap_or(usize::MAX);
            self.start = at;
            self.buffer.resize(rest.min(len.max(READ_BYTES)), 0);
            if let Err(e) = self.file.read_exact_at(at, &mut self.buffer) {
                self.buffer.clear();
                return Err(e);
            }
        }
        let from = (at - self.start) as usize;
        Ok(&self.buffer[from..from + len])
    }

    fn make_durable(&mut self, _at: u64, _len: u64) -> io::Result<()> {
        // A power loss may take back unsynced records, whether this process or an earlier one wrote
        // them; a caller that promises more syncs the file. A sync here would delay every restart.
        Ok(())
    }
}

/// A failure of replay: damage, an error of the medium, or an error of the callback.
enum Stop<F, E> {
    Damage(DecodeError),
    Fault(F),
    Caller(E),
}

impl<F, E> From<DecodeError> for Stop<F, E> {
    fn from(e: DecodeError) -> Self {
        Stop::Damage(e)
    }
}

/// The identity of a log to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogOf {
    /// The database that owns the log.
    pub(crate) db: DbId,
    pub(crate) id: u64,
    /// The expected end of the last record, if known.
    pub(crate) end: Option<u64>,
    /// The offset of the first record to be read; `None`: that of the log's first. An earlier
    /// replay has checked the header and handed out the records before it.
    pub(crate) from: Option<u64>,
}

/// Calls `f` with every record of the log in `span` from `log.from` on, oldest first.
///
/// The error names the offset of damage, or is the first one of `f`. On `Dax` the records are
/// durable on return. On `Mapped` only the synced ones are; a caller that needs all of them durable
/// syncs the first `ReplayEnd::bytes` of the extent.
pub(crate) fn replay_pool<E: From<DecodeError>>(
    extent: &Extent,
    log: LogOf,
    f: &mut dyn FnMut(RecordView<'_>) -> Result<(), E>,
) -> Result<ReplayEnd, E> {
    let mut bytes = PoolBytes { extent };
    replay(&mut bytes, log, f).map_err(|stop| match stop {
        Stop::Damage(e) | Stop::Fault(e) => E::from(e),
        Stop::Caller(e) => e,
    })
}

/// Calls `f` with every record of the log in the file at `path` from `log.from` on, oldest first.
/// `fault` converts an error of the file system.
///
/// A caller that promises that the records are durable syncs the file.
pub(crate) fn replay_file<E: From<DecodeError>>(
    fs: &Arc<dyn FileSystem>,
    path: &Path,
    log: LogOf,
    fault: &dyn Fn(io::Error) -> E,
    f: &mut dyn FnMut(RecordView<'_>) -> Result<(), E>,
) -> Result<ReplayEnd, E> {
    let file = fs.open(path, OpenMode::Read).map_err(fault)?;
    let len = file.len().map_err(fault)?;
    let mut bytes = FileBytes {
        file,
        len,
        buffer: Vec::new(),
        start: 0,
    };
    replay(&mut bytes, log, f).map_err(|stop| match stop {
        Stop::Damage(e) => E::from(e),
        Stop::Fault(e) => fault(e),
        Stop::Caller(e) => e,
    })
}

/// As `replay_file`, for the bytes of a log in memory.
#[cfg(feature = "decoders")]
pub(super) fn replay_slice(
    bytes: &[u8],
    log: LogOf,
    f: &mut dyn FnMut(RecordView<'_>) -> Result<(), DecodeError>,
) -> Result<ReplayEnd, DecodeError> {
    struct Slice<'a>(&'a [u8]);
    impl Bytes for Slice<'_> {
        type Fault = DecodeError;
        fn base(&self) -> u64 {
            0
        }
        fn len(&self) -> u64 {
            self.0.len() as u64
        }
        fn window(&mut self, at: u64, len: usize) -> Result<&[u8], DecodeError> {
            Ok(&self.0[at as usize..at as usize + len])
        }
        fn make_durable(&mut self, _at: u64, _len: u64) -> Result<(), DecodeError> {
            Ok(())
        }
    }
    replay(&mut Slice(bytes), log, f).map_err(|stop| match stop {
        Stop::Damage(e) | Stop::Fault(e) | Stop::Caller(e) => e,
    })
}

fn replay<B: Bytes, E>(
    bytes: &mut B,
    log: LogOf,
    f: &mut dyn FnMut(RecordView<'_>) -> Result<(), E>,
) -> Result<ReplayEnd, Stop<B::Fault, E>> {
    let id = log.id;
    let base = bytes.base();
    if log.from.is_none() {
        let head_bytes = bytes.len().min(LOG_HEADER_BYTES as u64) as usize;
        let head = bytes.window(0, head_bytes).map_err(Stop::Fault)?;
        // The header was durable before anything named the log, so no crash has taken it.
        check_log_header(head, Some(log.db), id, base)?;
    }
    let mut end = ReplayEnd {
        bytes: log.from.unwrap_or(LOG_HEADER_BYTES as u64),
        ..ReplayEnd::default()
    };
    let mut damage = None;
    // The end of the incomplete record, if known.
    let mut passed = None;
    // The position up to which the writer knew the records to be durable.
    let mut settled = end.bytes;
    // BOUND: every record consumes bytes of the log.
    while let Some(header) = header_at(bytes, end.bytes, id)? {
        end.torn = true;
        let Some(len) = fitting(&header, bytes.len() - end.bytes) else {
            break;
        };
        let record = bytes.window(end.bytes, len).map_err(Stop::Fault)?;
        match judge(&header, record, base, end.bytes) {
            Verdict::Whole(view) if view.is_seal() => {
                (end.torn, end.sealed) = (false, true);
                settled = end.bytes;
                break;
            }
            Verdict::Whole(view) => f(view).map_err(Stop::Caller)?,
            Verdict::BadValue(e) => {
                // Its header is valid, so its end is known, and its contents, which are user data,
                // are skipped.
                passed = Some(end.bytes + record_bytes(len - RECORD_HEADER_BYTES));
                damage = Some(e);
                break;
            }
            Verdict::Bad(e) => {
                damage = Some(e);
                break;
            }
        }
        settled = settled.max(header.settled(end.bytes));
        end.torn = false;
        end.records += 1;
        end.bytes += record_bytes(len - RECORD_HEADER_BYTES);
    }
    let from = passed.unwrap_or(end.bytes + RECORD_ALIGN as u64);
    let later = later_records(bytes, end.bytes, from, id)?;
    if let Some(witness) = later.settled {
        return Err(Stop::Damage(damage.unwrap_or_else(|| {
            let expected = format!("a record before the one at offset {}", base + witness);
            DecodeError::new("log record", base + end.bytes, expected, "other bytes")
        })));
    }
    if let Some(noted) = log.end.filter(|noted| end.bytes < *noted) {
        return Err(Stop::Damage(damage.unwrap_or_else(|| {
            let expected = format!("records up to offset {}", base + noted);
            DecodeError::new(
                "log record",
                base + end.bytes,
                expected,
                "the end of the log",
            )
        })));
    }
    end.stranded = later.in_flight;
    end.torn |= later.in_flight > 0;
    if end.bytes > settled {
        bytes
            .make_durable(settled, end.bytes - settled)
            .map_err(Stop::Fault)?;
    }
    Ok(end)
}

/// Returns the header at `at` if it is inside the log and names log `id`.
fn header_at<B: Bytes, E>(
    bytes: &mut B,
    at: u64,
    id: u64,
) -> Result<Option<RecordHeader>, Stop<B::Fault, E>> {
    if at.saturating_add(RECORD_HEADER_BYTES as u64) > bytes.len() {
        return Ok(None);
    }
    let window = bytes.window(at, RECORD_HEADER_BYTES).map_err(Stop::Fault)?;
    let header = window.first_chunk().map(RecordHeader::decode);
    Ok(header.filter(|h| h.log_id == id))
}

/// Returns the size of the record without padding, if it fits into `room` bytes.
fn fitting(header: &RecordHeader, room: u64) -> Option<usize> {
    let len = RECORD_HEADER_BYTES as u64 + u64::from(header.payload_bytes);
    if len > room || !header.payload_bytes.is_multiple_of(8) {
        return None;
    }
    usize::try_from(len).ok()
}

/// The result of the search after the end of a replay.
#[derive(Debug, Default)]
struct Later {
    /// The position of a record that calls the end settled.
    settled: Option<u64>,
    /// The number of records that do not.
    in_flight: u64,
}

/// Searches the log from `from` on for records, and for one that calls `end` settled.
fn later_records<B: Bytes, E>(
    bytes: &mut B,
    end: u64,
    from: u64,
    id: u64,
) -> Result<Later, Stop<B::Fault, E>> {
    let base = bytes.base();
    let mut later = Later::default();
    // A look at the first line of a page would give it content.
    let page_end = |at: u64| (base + at + 1).next_multiple_of(PAGE_BYTES) - base;
    let mut at = bytes.next_written(from);
    let mut until = page_end(at);
    // BOUND: the position only grows, and `until` follows it.
    while at < bytes.len() {
        if at >= until {
            at = bytes.next_written(at);
            until = page_end(at);
            continue;
        }
        let Some(header) = header_at(bytes, at, id)? else {
            at += RECORD_ALIGN as u64;
            continue;
        };
        let Some(len) = fitting(&header, bytes.len() - at) else {
            at += RECORD_ALIGN as u64;
            continue;
        };
        let record = bytes.window(at, len).map_err(Stop::Fault)?;
        match judge(&header, record, base, at) {
            Verdict::Bad(_) => at += RECORD_ALIGN as u64,
            Verdict::Whole(_) | Verdict::BadValue(_) => {
                if header.settled(at) > end {
                    later.settled = Some(at);
                    return Ok(later);
                }
                later.in_flight += 1;
                at += record_bytes(len - RECORD_HEADER_BYTES);
            }
        }
    }
    Ok(later)
}
