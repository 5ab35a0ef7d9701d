//! The error of the benchmark: a failure of the store or the medium, or a wrong answer.

use std::fmt;
use std::io;
use std::path::Path;

use crate::fnv::fnv1a;
use crate::versions::Wrong;

/// The reason that a benchmark ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum BenchError {
    /// The settings contradict each other or the existing database.
    Invalid(String),
    /// The store failed.
    Store(terrace::Error),
    /// A peer failed.
    Peer {
        /// Its name.
        store: &'static str,
        /// Its message.
        what: String,
    },
    /// The pool of the limit line failed.
    Medium(String),
    /// An operation of the operating system failed.
    Io {
        /// The operation, with its path.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// Writing the results failed.
    Output(io::Error),
    /// The process that killreopen starts failed before it was killed.
    Victim(String),
    /// A read returned a value that was never written under that key, or missed one that was.
    WrongValue(String),
}

/// A value as evidence: its length, its first bytes, and a checksum of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    bytes: usize,
    first: Vec<u8>,
    hash: u64,
}

impl Found {
    /// The number of bytes of a value in a message.
    const SHOWN: usize = 24;

    pub(crate) fn of(value: &[u8]) -> Found {
        Found {
            bytes: value.len(),
            first: value[..value.len().min(Found::SHOWN)].to_vec(),
            hash: fnv1a(value.iter().copied()),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.bytes > self.first.len() {
            "..."
        } else {
            ""
        };
        let first = self.first.escape_ascii();
        let (bytes, hash) = (self.bytes, self.hash);
        write!(f, "\"{first}{more}\" ({bytes} B, hash {hash:016x})")
    }
}

impl BenchError {
    /// Returns a failure of a peer.
    #[allow(dead_code, reason = "only builds with a peer construct it")]
    pub(crate) fn peer(store: &'static str, what: impl fmt::Display) -> BenchError {
        let what = what.to_string();
        BenchError::Peer { store, what }
    }

    pub(crate) fn wrong(key: &[u8], expected: &Found, found: &Found) -> BenchError {
        BenchError::WrongValue(format!(
            "the store returned a wrong value: key \"{}\", expected {expected}, found {found}",
            key.escape_ascii()
        ))
    }

    pub(crate) fn lost(key: &[u8], expected: &Found) -> BenchError {
        BenchError::WrongValue(format!(
            "the store lost an acknowledged write: key \"{}\", expected {expected}, found nothing",
            key.escape_ascii()
        ))
    }

    pub(crate) fn never_written(key: &[u8], found: &Found) -> BenchError {
        BenchError::WrongValue(format!(
            "the store has a key that was never written: key \"{}\", expected nothing, found \
             {found}",
            key.escape_ascii()
        ))
    }

    pub(crate) fn deleted(key: &[u8], found: &Found) -> BenchError {
        BenchError::WrongValue(format!(
            "the store has a key that was deleted: key \"{}\", expected nothing, found {found}",
            key.escape_ascii()
        ))
    }

    /// Returns the error for a value that matches no version of the record of its key.
    pub(crate) fn not_of_record(key: &[u8], found: &Found) -> BenchError {
        BenchError::WrongValue(format!(
            "the store returned a wrong value: key \"{}\", expected one written for this key, \
             found {found}",
            key.escape_ascii()
        ))
    }

    /// Returns the error for a record that was written, never deleted, and not found.
    pub(crate) fn lost_record(key: &[u8]) -> BenchError {
        BenchError::WrongValue(format!(
            "the store lost an acknowledged write: key \"{}\", expected one of its versions, found \
             nothing",
            key.escape_ascii()
        ))
    }

    /// Returns the error for a version of a record that a read must not return.
    pub(crate) fn wrong_version(key: &[u8], why: Wrong) -> BenchError {
        let key = key.escape_ascii();
        BenchError::WrongValue(match why {
            Wrong::Lost(floor) => format!(
                "the store lost an acknowledged write: key \"{key}\", expected version {floor} or a \
                 later one, found nothing"
            ),
            Wrong::Stale(version, floor) => format!(
                "the store returned an old value: key \"{key}\", expected version {floor} or a \
                 later one, acknowledged before the read began, found version {version}"
            ),
            Wrong::Unwritten(version, last) => format!(
                "the store returned a value that was never written: key \"{key}\", expected \
                 version {last} or an earlier one, found version {version}"
            ),
        })
    }

    pub(crate) fn io(what: &str, path: &Path, source: io::Error) -> BenchError {
        BenchError::Io {
            what: format!("{what} {}", path.display()),
            source,
        }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Invalid(what) | BenchError::WrongValue(what) | BenchError::Victim(what) => {
                f.write_str(what)
            }
            BenchError::Store(e) => e.fmt(f),
            BenchError::Peer { store, what } => write!(f, "{store} failed: {what}"),
            BenchError::Medium(e) => write!(f, "cannot measure the limit of the medium: {e}"),
            BenchError::Io { what, source } => write!(f, "cannot {what}: {source}"),
            BenchError::Output(e) => write!(f, "cannot write the results: {e}"),
        }
    }
}

impl std::error::Error for BenchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BenchError::Store(e) => Some(e),
            BenchError::Io { source, .. } | BenchError::Output(source) => Some(source),
            BenchError::Invalid(_)
            | BenchError::Peer { .. }
            | BenchError::Medium(_)
            | BenchError::Victim(_)
            | BenchError::WrongValue(_) => None,
        }
    }
}

impl From<terrace::Error> for BenchError {
    fn from(e: terrace::Error) -> BenchError {
        BenchError::Store(e)
    }
}
