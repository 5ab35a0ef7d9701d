//! Errors of creating, opening and changing a pool.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// An error of creating, opening or changing a pool. Each message includes a remedy.
#[derive(Debug)]
pub enum PoolError {
    /// There is no pool at the path.
    NotFound {
        /// The pool's path.
        path: PathBuf,
    },
    /// A pool already exists at the path.
    Exists {
        /// The pool's path.
        path: PathBuf,
    },
    /// The pool is open in another process or through another handle of this one.
    Locked {
        /// The pool's path.
        path: PathBuf,
    },
    /// The file is not a pool.
    Foreign {
        /// The file's path.
        path: PathBuf,
        /// Its first bytes, in printable form.
        found: String,
    },
    /// A later version of this program wrote the pool.
    Newer {
        /// The pool's path.
        path: PathBuf,
        /// The pool's format.
        format: u32,
        /// The latest format that this program knows.
        supported: u32,
    },
    /// The pool or the request needs something that this program or machine lacks.
    Unsupported(String),
    /// Bytes of the pool changed after they were written.
    Corrupt {
        /// The pool's path.
        path: PathBuf,
        /// The damaged item.
        what: &'static str,
        /// Its offset.
        offset: u64,
        /// The expected value.
        expected: String,
        /// The actual value.
        found: String,
    },
    /// The file is shorter than the pool in it.
    Truncated {
        /// The pool's path.
        path: PathBuf,
        /// The length of the file in bytes.
        len: u64,
        /// The minimum length in bytes.
        expected: u64,
    },
    /// The configuration or the call is invalid; the text explains why.
    Invalid(String),
    /// The device of the pool is full.
    Full {
        /// The pool's path.
        path: PathBuf,
        /// The number of bytes to be added.
        wanted: u64,
    },
    /// The system refused an operation.
    Io {
        /// The pool's path.
        path: PathBuf,
        /// The failed operation.
        op: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::NotFound { path } => {
                write!(
                    f,
                    "there is no pool at {}; create it or correct the path",
                    path.display()
                )
            }
            PoolError::Exists { path } => {
                write!(
                    f,
                    "{} is already a pool; open it or choose another path",
                    path.display()
                )
            }
            PoolError::Locked { path } => write!(
                f,
                "the pool {} is in use; close the other process or handle that has it open",
                path.display()
            ),
            PoolError::Foreign { path, found } => write!(
                f,
                "{} is not a pool: it starts with {found}; choose another path",
                path.display()
            ),
            PoolError::Newer {
                path,
                format,
                supported,
            } => write!(
                f,
                "the pool {} has format {format}, but this program knows formats up to \
                 {supported}; use a later version",
                path.display()
            ),
            PoolError::Unsupported(text) | PoolError::Invalid(text) => f.write_str(text),
            PoolError::Corrupt {
                path,
                what,
                offset,
                expected,
                found,
            } => write!(
                f,
                "the pool {} is damaged: {what} at offset {offset} should be {expected}, but is \
                 {found}; restore it from a copy",
                path.display()
            ),
            PoolError::Truncated {
                path,
                len,
                expected,
            } => write!(
                f,
                "the pool {} is truncated: it has {len} bytes, but needs at least {expected}; \
                 restore it from a copy",
                path.display()
            ),
            PoolError::Full { path, wanted } => write!(
                f,
                "the device of the pool {} has no space for {wanted} more bytes; free space on it",
                path.display()
            ),
            PoolError::Io { path, op, source } => {
                write!(f, "cannot {op} {}: {source}", path.display())?;
                match source.kind() {
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                        f.write_str("; a pool needs a writable file in a writable directory")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for PoolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PoolError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
