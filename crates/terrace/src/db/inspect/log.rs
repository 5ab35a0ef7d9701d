//! Inspection of logs, in files and in pools.

use std::path::{Path, PathBuf};

use terrace_media::{FileSystem, OsFs, Span};

use super::{Entry, Finding, Home, Kept, Kind};
use crate::error::{Error, Result};
use crate::parts::codec::DecodeError;
use crate::parts::expiry::layout as expiring;
use crate::parts::log::salvage::{self, Piece, Salvaged};
use crate::parts::log::{ListBounds, LogEntry, RecordView, replay_list};
use crate::parts::manifest::LogPlace as NamedPlace;
use crate::parts::ranges::layout as ranges;
use crate::stages::file_names::log_file_id;
use crate::types::EntryKind;

/// One piece of a log, in the order of the file.
#[derive(Debug)]
#[non_exhaustive]
pub enum LogPiece<'a> {
    /// A record, which is one batch, that verifies.
    Record {
        /// Its offset.
        offset: u64,
        /// Its length in bytes.
        bytes: u64,
        /// Its entries.
        entries: Vec<Entry<'a>>,
        /// Whether a replay does not reach it, because something before it is missing. It was in
        /// flight when a crash ended the log, or, if the log has problems, follows the damage.
        stranded: bool,
    },
    /// Bytes that differ from what was written.
    Problem(Finding),
}

/// The result of a walk over a log.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct LogSummary {
    /// The log's id; `None` if its header is damaged.
    pub id: Option<u64>,
    /// The offset of the log in the file.
    pub offset: u64,
    /// Bytes from there to the end of the last record that a replay returns.
    pub bytes: u64,
    /// Records that a replay returns.
    pub records: u64,
    /// Records after those.
    pub stranded: u64,
    /// Whether the record at the end is incomplete, because a crash cut it off or a writer is
    /// appending it.
    pub torn: bool,
    /// The number of problems passed to the caller.
    pub problems: u64,
}

/// The location of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogPlace {
    /// In a separate file.
    File {
        /// The log's id.
        id: u64,
        /// The file.
        path: PathBuf,
    },
    /// In the pool.
    Pool {
        /// The log's id.
        id: u64,
        /// The pool's file.
        path: PathBuf,
        /// The offset of the log in it.
        offset: u64,
        /// The space for the log, in bytes.
        bytes: u64,
    },
    /// In the pool, as a skip list that is its own log.
    List {
        /// The log's id.
        id: u64,
        /// The pool's file.
        path: PathBuf,
        /// The offset of the list in it.
        offset: u64,
        /// The space for the list, in bytes.
        bytes: u64,
    },
}

impl LogPlace {
    /// Returns the log's id.
    pub fn id(&self) -> u64 {
        match self {
            LogPlace::File { id, .. } | LogPlace::Pool { id, .. } | LogPlace::List { id, .. } => {
                *id
            }
        }
    }
}

/// Returns the logs of the database in the directory `path`, or of the pool in the file `path`, by
/// id: those that the manifest names in the pool, and the log files of the directory.
///
/// # Errors
/// `Io`, and those of the pool's header. With a damaged manifest, only the logs that it still names
/// are returned.
pub fn logs(path: impl AsRef<Path>) -> Result<Vec<LogPlace>> {
    let path = path.as_ref();
    let mut found = Vec::new();
    if path.is_dir() {
        let names = OsFs.list(path).map_err(|e| Error::io("list", path, e))?;
        found.extend(names.iter().filter_map(|name| {
            let id = log_file_id(name)?;
            let path = path.join(name);
            Some(LogPlace::File { id, path })
        }));
    }
    // A log file has its id in its name, so a manifest in a file is not needed for it.
    if let Home::Pool(pool) = super::home_of(path)? {
        let state = super::manifest::pool_state(&pool)?;
        found.extend(state.logs.iter().filter_map(|(&id, log)| match log.place {
            NamedPlace::Pool(span) => Some(LogPlace::Pool {
                id,
                path: pool.clone(),
                offset: span.off,
                bytes: span.len,
            }),
            NamedPlace::List(span) => Some(LogPlace::List {
                id,
                path: pool.clone(),
                offset: span.off,
                bytes: span.len,
            }),
            NamedPlace::File => None,
        }));
    }
    found.sort_by_key(LogPlace::id);
    Ok(found)
}

/// Walks the log file at `path`. Reads all of it once.
///
/// # Errors
/// `Io` if the file cannot be read, and errors of `visit`. Damage is no error.
pub fn file_log<E: From<Error>>(
    path: impl AsRef<Path>,
    visit: &mut dyn FnMut(LogPiece<'_>) -> Result<(), E>,
) -> Result<LogSummary, E> {
    let path = path.as_ref();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = super::open(path)?;
    let len = file
        .len()
        .map_err(|e| Error::io("get the length of", path, e))?;
    let span = Span { off: 0, len };
    walk(&*file, path, span, log_file_id(&name), visit)
}

/// Walks log `id` of the database in the directory `path`, or of the pool in the file `path`,
/// wherever it is. Reads all of it once.
///
/// # Errors
/// `Invalid` if there is no such log, `Io`, and errors of `visit`. Damage is no error.
pub fn pool_log<E: From<Error>>(
    path: impl AsRef<Path>,
    id: u64,
    visit: &mut dyn FnMut(LogPiece<'_>) -> Result<(), E>,
) -> Result<LogSummary, E> {
    let places = logs(path.as_ref())?;
    match places.iter().find(|place| place.id() == id) {
        Some(LogPlace::File { path, .. }) => file_log(path, visit),
        Some(LogPlace::Pool {
            path,
            offset,
            bytes,
            ..
        }) => {
            let file = super::open(path)?;
            let have = file.len().map_err(|e| Error::io("examine", path, e))?;
            let span = Span {
                off: *offset,
                len: have.saturating_sub(*offset).min(*bytes),
            };
            walk(&*file, path, span, Some(id), visit)
        }
        Some(LogPlace::List {
            path,
            offset,
            bytes,
            ..
        }) => walk_list(path, (*offset, *bytes), id, visit),
        None => {
            let ids: Vec<_> = places.iter().map(|place| place.id().to_string()).collect();
            Err(E::from(Error::invalid(format!(
                "there is no log {id} in {}; the logs are: {}",
                path.as_ref().display(),
                ids.join(", ")
            ))))
        }
    }
}

fn walk<E: From<Error>>(
    file: &dyn terrace_media::File,
    path: &Path,
    span: Span,
    id: Option<u64>,
    visit: &mut dyn FnMut(LogPiece<'_>) -> Result<(), E>,
) -> Result<LogSummary, E> {
    let mut kept = Kept(None);
    let walked = salvage::salvage(file, path, span, (id, None), &mut |piece| match piece {
        Piece::Record {
            view,
            bytes,
            stranded,
        } => {
            let entries = entries(&view)?;
            kept.note(visit(LogPiece::Record {
                offset: view.offset,
                bytes,
                entries,
                stranded,
            }))
        }
        Piece::Problem { offset, text } => {
            kept.note(visit(LogPiece::Problem(Finding::new(offset, text))))
        }
    });
    let summary = |found: Salvaged| LogSummary {
        id: found.id,
        offset: span.off,
        bytes: found.end,
        records: found.records,
        stranded: found.stranded,
        torn: found.torn,
        problems: found.problems,
    };
    kept.end(walked.map(summary))
}

/// Walks a list that is its own log: a record is a batch of nodes.
fn walk_list<E: From<Error>>(
    path: &Path,
    (offset, bytes): (u64, u64),
    id: u64,
    visit: &mut dyn FnMut(LogPiece<'_>) -> Result<(), E>,
) -> Result<LogSummary, E> {
    let (file, header) = super::open_pool(path)?;
    let bounds = ListBounds {
        id,
        end: None,
        power_lost: header.power_lost,
    };
    let have = file.len().map_err(|e| Error::io("examine", path, e))?;
    let mut extent = vec![0; have.saturating_sub(offset).min(bytes) as usize];
    let read = file.read_exact_at(offset, &mut extent);
    read.map_err(|e| Error::io("read", path, e))?;
    let mut summary = LogSummary {
        id: Some(id),
        offset,
        ..LogSummary::default()
    };
    let mut kept = Kept(None);
    let (mut entries, mut from) = (Vec::new(), None);
    let walked = replay_list(&extent, offset, bounds, &mut |at, node| {
        let entry = LogEntry {
            kind: node.header.kind,
            keyspace: node.header.keyspace,
            key: node.key,
            value: node.value,
            value_crc: 0,
            value_at: 0,
        };
        let place = offset + at;
        let from = from.get_or_insert(place);
        entries.push(shown(node.header.seq, &entry, place));
        summary.bytes = at + node.bytes();
        if node.header.more {
            return Ok(());
        }
        summary.records += 1;
        kept.note(visit(LogPiece::Record {
            offset: *from,
            bytes: place + node.bytes() - *from,
            entries: std::mem::take(&mut entries),
            stranded: false,
        }))?;
        *from = place + node.bytes();
        Ok(())
    });
    match walked {
        Err(Ended::Damaged(e)) => {
            summary.problems += 1;
            visit(LogPiece::Problem(Finding::new(e.offset, e.to_string())))?;
            Ok(summary)
        }
        Err(Ended::Stopped(e)) => kept.end(Err(e)),
        Ok(_) => Ok(summary),
    }
}

/// Why the walk of a list ended early.
enum Ended {
    Damaged(DecodeError),
    Stopped(Error),
}

impl From<DecodeError> for Ended {
    fn from(e: DecodeError) -> Ended {
        Ended::Damaged(e)
    }
}

impl From<Error> for Ended {
    fn from(e: Error) -> Ended {
        Ended::Stopped(e)
    }
}

fn entries<'a>(view: &RecordView<'a>) -> Result<Vec<Entry<'a>>> {
    view.entries()
        .map(|(seq, entry)| Ok(shown(seq, &entry?, view.offset)))
        .collect()
}

/// Returns an entry as callers see it: without what logs add to keys and values. One that lacks the
/// addition is returned as it is, with a kind that this version does not write.
fn shown<'a>(seq: u64, entry: &LogEntry<'a>, offset: u64) -> Entry<'a> {
    let raw = Entry {
        keyspace: entry.keyspace,
        key: entry.key,
        seq,
        kind: Kind::Other(entry.kind),
        value: entry.value,
        expiry: None,
        place: None,
    };
    let kind = Kind::of(entry.kind);
    match EntryKind::from_raw(entry.kind) {
        Some(EntryKind::PutExpiring) => match expiring::decode(entry.value, offset) {
            Ok((expiry, value)) => Entry {
                kind,
                value,
                expiry: Some(expiry),
                ..raw
            },
            Err(_) => raw,
        },
        Some(EntryKind::RangeDelete) => match ranges::decode(entry.key, offset) {
            Ok((key, value)) => Entry {
                kind,
                keyspace: entry.keyspace & !ranges::RANGE_DELETE_BIT,
                key,
                value,
                ..raw
            },
            Err(_) => raw,
        },
        Some(EntryKind::Put | EntryKind::Delete) | None => Entry { kind, ..raw },
    }
}
