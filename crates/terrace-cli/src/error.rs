//! The failure of a command: one sentence on standard error, and an exit code.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use serde_json::json;
use terrace_bench::BenchError;

/// The reason that a command ended early.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The command line is wrong in a way that its grammar cannot detect.
    Usage(String),
    /// The store failed.
    Store(terrace::Error),
    /// The benchmark failed.
    Bench(BenchError),
    /// A file, or standard input or output, failed.
    Io { what: String, source: io::Error },
    /// The command completed with a negative result.
    Failed(String),
    /// A repair made a database from which data may be missing.
    Partly(String),
    /// A repair found no data for a new database.
    NothingFound(String),
    /// Standard output was closed by its reader.
    OutputClosed,
}

impl CliError {
    /// Returns a failure to do `what` with `path`.
    pub(crate) fn io(what: &str, path: &Path, source: io::Error) -> CliError {
        CliError::Io {
            what: format!("{what} {}", path.display()),
            source,
        }
    }

    /// Returns a failure to write the results.
    pub(crate) fn output(source: io::Error) -> CliError {
        if source.kind() == io::ErrorKind::BrokenPipe {
            return CliError::OutputClosed;
        }
        CliError::Io {
            what: "write the output".to_string(),
            source,
        }
    }

    /// Returns the exit code of the process.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            CliError::Usage(_) | CliError::Bench(BenchError::Invalid(_)) => 2,
            CliError::Partly(_) => 3,
            CliError::NothingFound(_) => 4,
            _ => 1,
        }
    }

    /// Writes the sentence to standard error; as an object if `json` is set.
    pub(crate) fn report(&self, json: bool) -> io::Result<()> {
        let mut err = io::stderr().lock();
        if json {
            return writeln!(
                err,
                "{}",
                json!({ "error": self.to_string(), "kind": self.kind() })
            );
        }
        writeln!(err, "terrace: {self}")
    }

    fn kind(&self) -> &'static str {
        match self {
            CliError::Usage(_) => "usage",
            CliError::Store(e) | CliError::Bench(BenchError::Store(e)) => e.kind().name(),
            CliError::Bench(BenchError::Invalid(_)) => "invalid",
            CliError::Io { .. } | CliError::OutputClosed => "io",
            CliError::Bench(_) | CliError::Failed(_) => "failed",
            CliError::Partly(_) => "partly",
            CliError::NothingFound(_) => "nothing",
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CliError::Usage(what)
            | CliError::Failed(what)
            | CliError::Partly(what)
            | CliError::NothingFound(what) => f.write_str(what),
            CliError::Store(e) => e.fmt(f),
            CliError::Bench(e) => e.fmt(f),
            CliError::Io { what, source } => write!(f, "cannot {what}: {source}"),
            CliError::OutputClosed => f.write_str("the output was closed"),
        }
    }
}

impl From<terrace::Error> for CliError {
    fn from(e: terrace::Error) -> CliError {
        CliError::Store(e)
    }
}

impl From<BenchError> for CliError {
    fn from(e: BenchError) -> CliError {
        match e {
            BenchError::Output(source) => CliError::output(source),
            e => CliError::Bench(e),
        }
    }
}
