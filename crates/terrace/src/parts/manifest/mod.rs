//! Manifest: the log of structural changes, and the only place that makes a change take effect.
//!
//! An edit is one checksummed record, durable when `commit` returns. When the space for records is
//! full, a compaction writes the state elsewhere as the first record of a new generation and
//! switches to it in one step. Records are stored in one of two homes. In a pool two extents
//! alternate, and the superblock's roots name the current one (pool.rs). Without a pool a file is
//! replaced by a rename (file.rs), and changes of the pool, which is DRAM then, are not written.
//!
//! Invariants
//!   N1  Space that the state does not name is free. So nothing is reused before the edit that
//!       frees it is durable, and nothing is named before it is durable itself.
//!   N2  Each record is written after the one before it is durable. So only the last record can be
//!       torn, and a bad record before a good one is damage.
//!   N3  A generation with records after its first is named, by the roots or by the file's name. An
//!       unfinished compaction leaves at most one record, which the next one overwrites.
//!   N4  After a failed commit all later ones fail, since the contents of the medium are unknown. A
//!       caller may retry only if nothing was written, or only a draft without a name.
//!
//! Bytes: layout.rs, edit.rs, and those of items with their owners. Any thread may commit; a lock
//! orders commits.

#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod edit;
mod file;
mod home;
pub(crate) mod item;
pub(crate) mod layout;
mod pool;
mod replay;
pub(crate) mod salvage;
mod shown;
mod state;
#[cfg(test)]
mod tests;
mod watch;
mod writer;

pub(crate) use edit::{Change, Edit, LogPlace, Totals, refuse};
pub(crate) use file::{BYTES_MAX as FILE_BYTES_MAX, NAME as FILE_NAME};
pub(crate) use state::{LogMeta, State};
pub(crate) use writer::Manifest;

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

use terrace_media::{AllocError, PoolError};

use crate::error::ErrorKind;
use crate::parts::codec::DecodeError;

/// The reason why an edit was not committed or a manifest not opened.
#[derive(Debug)]
pub(crate) enum ManifestError {
    /// Bytes on the medium are damaged, or an edit contradicts the state. In the second case
    /// nothing was written and the manifest remains usable.
    Corrupt(DecodeError),
    /// Another version of this program wrote the manifest.
    Version {
        /// The version of the manifest.
        version: u32,
    },
    /// The manifest has items of an owner that this program does not know.
    UnknownOwner {
        /// The owner's tag.
        tag: u8,
    },
    /// The pool has no space for the manifest. Nothing was written and the manifest remains usable.
    Alloc(AllocError),
    /// The next generation of a file could not be written and got no name. The manifest remains
    /// usable.
    Draft(io::Error),
    /// The superblock could not be updated.
    Pool(PoolError),
    /// The record could not be made durable.
    Io(io::Error),
    /// A file of the open database was removed or replaced.
    Gone(PathBuf),
    /// An earlier commit failed; contains the text of the first failure.
    Failed(String),
}

impl ManifestError {
    /// Returns whether the manifest takes no more edits, since the contents of the medium are
    /// unknown.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            ManifestError::Corrupt(_) | ManifestError::Alloc(_) | ManifestError::Draft(_) => false,
            ManifestError::Version { .. }
            | ManifestError::UnknownOwner { .. }
            | ManifestError::Pool(_)
            | ManifestError::Io(_)
            | ManifestError::Gone(_)
            | ManifestError::Failed(_) => true,
        }
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ManifestError::Corrupt(e) => e.fmt(f),
            ManifestError::Version { version } => f.write_str(&layout::version_text(*version)),
            ManifestError::UnknownOwner { tag } => write!(
                f,
                "the manifest names items of kind {tag}, which this version of Terrace does not \
                 know; use the version that wrote them, or a later one"
            ),
            ManifestError::Alloc(e) => write!(f, "cannot grow the manifest: {e}"),
            ManifestError::Draft(e) => write!(f, "cannot rewrite the manifest: {e}"),
            ManifestError::Pool(e) => e.fmt(f),
            ManifestError::Io(e) => write!(f, "cannot make an edit durable: {e}"),
            ManifestError::Gone(path) => write!(
                f,
                "{} was removed or replaced while the database was open",
                path.display()
            ),
            ManifestError::Failed(first) => write!(f, "an earlier edit failed: {first}"),
        }
    }
}

impl Error for ManifestError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ManifestError::Corrupt(e) => Some(e),
            ManifestError::Alloc(e) => Some(e),
            ManifestError::Pool(e) => Some(e),
            ManifestError::Io(e) | ManifestError::Draft(e) => Some(e),
            ManifestError::Version { .. }
            | ManifestError::UnknownOwner { .. }
            | ManifestError::Gone(_)
            | ManifestError::Failed(_) => None,
        }
    }
}

impl From<ManifestError> for crate::error::Error {
    fn from(e: ManifestError) -> crate::error::Error {
        match e {
            ManifestError::Corrupt(e) => crate::error::Error::from(e),
            ManifestError::Version { .. } | ManifestError::UnknownOwner { .. } => {
                crate::error::Error::new(ErrorKind::Unsupported, e.to_string())
            }
            ManifestError::Alloc(e) => crate::error::Error::from(e),
            ManifestError::Pool(e) => crate::error::Error::from(e),
            ManifestError::Io(e) => crate::error::Error::new(
                ErrorKind::Io,
                format!("cannot make the manifest durable: {e}"),
            )
            .because(e),
            ManifestError::Draft(e) => {
                let full = e.kind() == std::io::ErrorKind::StorageFull;
                let kind = if full { ErrorKind::Full } else { ErrorKind::Io };
                let text = format!("cannot rewrite the manifest: {e}");
                crate::error::Error::new(kind, text).because(e)
            }
            ManifestError::Gone(path) => crate::error::Error::new(
                ErrorKind::Stopped,
                format!(
                    "{} was removed or replaced while the database was open, so writing has \
                     stopped: writes since then are lost unless the files are restored; close the \
                     database and check its directory",
                    path.display()
                ),
            ),
            ManifestError::Failed(first) => crate::error::Error::new(
                ErrorKind::Stopped,
                format!("an earlier manifest edit failed: reopen the database ({first})"),
            ),
        }
    }
}

impl From<DecodeError> for ManifestError {
    fn from(e: DecodeError) -> ManifestError {
        ManifestError::Corrupt(e)
    }
}

impl From<AllocError> for ManifestError {
    fn from(e: AllocError) -> ManifestError {
        ManifestError::Alloc(e)
    }
}

impl From<PoolError> for ManifestError {
    fn from(e: PoolError) -> ManifestError {
        ManifestError::Pool(e)
    }
}
