//! This file is the one error of the benchmark: the store's, the medium's, or a wrong answer.

use std::fmt;
use std::io;
use std::path::Path;

/// Why a benchmark ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum BenchError {
    /// The settings contradict each other or the database that is there.
    Invalid(String),
    /// The store failed.
    Store(terrace::Error),
    /// The pool of the limit line failed.
    Medium(String),
    /// The operating system refused something around the store.
    Io {
        /// What was tried, with its path.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The results could not be written out.
    Output(io::Error),
    /// A read gave a value that was never written under that key.
    WrongValue(String),
}

impl BenchError {
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
            BenchError::Invalid(what) | BenchError::WrongValue(what) => f.write_str(what),
            BenchError::Store(e) => e.fmt(f),
            BenchError::Medium(e) => write!(f, "the limit line cannot be measured: {e}"),
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
            BenchError::Invalid(_) | BenchError::Medium(_) | BenchError::WrongValue(_) => None,
        }
    }
}

impl From<terrace::Error> for BenchError {
    fn from(e: terrace::Error) -> BenchError {
        BenchError::Store(e)
    }
}
