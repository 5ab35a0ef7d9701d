//! The one public error of the store: a kind that determines the reaction, a sentence, a cause.
//!
//! Parts have their own narrow errors and convert them once, at the stage boundary, where the place
//! (file or pool, offset, table) is known.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use terrace_media::{AllocError, PoolError};

/// The result of every call of the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, by what the caller should do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call or the options are wrong: fix them.
    Invalid,
    /// Another process, or another handle in this one, has the database open: close it there.
    Locked,
    /// Written by a newer version, or by another design: open it with that one.
    Unsupported,
    /// Bytes on the medium differ from what was written: restore them, or rebuild the readable rest
    /// with [`repair_of`](crate::DbBuilder::repair_of).
    Corruption,
    /// A medium has no space left: delete data, or give it more. Reads and deletes continue.
    Full,
    /// The operating system refused an operation, which the message names; reopening may help.
    Io,
    /// An earlier write or sync failed, so later ones cannot be trusted: reopen.
    Stopped,
    /// The handle was closed: open the database again.
    Closed,
    /// The database was opened read-only: open it without `read_only` to change it.
    ReadOnly,
}

impl ErrorKind {
    /// Returns the kind's name in lower case, as the command line prints it.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "invalid",
            ErrorKind::Locked => "locked",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Corruption => "corruption",
            ErrorKind::Full => "full",
            ErrorKind::Io => "io",
            ErrorKind::Stopped => "stopped",
            ErrorKind::Closed => "closed",
            ErrorKind::ReadOnly => "read-only",
        }
    }
}

/// A failure of the store: [`kind`](Error::kind) determines the reaction, `Display` is a sentence.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The number of the system's error for a failed read or write of a device.
const EIO: i32 = 5;
/// The same if a process has too many open files.
const EMFILE: i32 = 24;

/// How deletes free space on a full disk.
const ROOM_BY_DELETES: &str = ", or delete a range or drop a keyspace, which works on a full disk";

impl Error {
    /// Creates an error of `kind` whose message is a sentence for people.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Returns the same error, with the failure that caused it.
    #[must_use]
    pub fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.source = Some(Arc::new(source));
        self
    }

    /// Returns the kind, which determines what the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns whether a failed read says something about the data: it is damaged or missing, or
    /// its device cannot read it. Otherwise the process lacks something, such as memory,
    /// descriptors or permissions.
    pub(crate) fn is_of_data(&self) -> bool {
        match self.kind {
            ErrorKind::Full | ErrorKind::Closed => false,
            ErrorKind::Io => self.io_cause().is_some_and(|e| {
                e.kind() == std::io::ErrorKind::NotFound || e.raw_os_error() == Some(EIO)
            }),
            _ => true,
        }
    }

    /// Returns the system's error that caused this one, if there is one.
    fn io_cause(&self) -> Option<&std::io::Error> {
        let mut cause = self.source();
        // BOUND: causes are few.
        while let Some(e) = cause {
            if let Some(found) = e.downcast_ref() {
                return Some(found);
            }
            cause = e.source();
        }
        None
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn corruption(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Corruption, message)
    }

    pub(crate) fn closed() -> Error {
        Error::new(ErrorKind::Closed, "the database is closed: open it again")
    }

    pub(crate) fn read_only() -> Error {
        Error::new(
            ErrorKind::ReadOnly,
            "the database is open read-only: open it without --read-only (read_only) to change it",
        )
    }

    pub(crate) fn io(what: &str, path: &Path, source: std::io::Error) -> Error {
        let kind = match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::Full,
            _ => ErrorKind::Io,
        };
        let hint = match source.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                "; the database needs a writable directory"
            }
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                "; free space on that disk and try again"
            }
            _ if source.raw_os_error() == Some(EMFILE) => {
                "; raise the limit on open files (ulimit -n), or lower \
                 bottom.leveled.open_files_max"
            }
            std::io::ErrorKind::FileTooLarge => {
                "; raise the limit on the size of a process's files (ulimit -f), or use a file \
                 system that allows larger ones"
            }
            _ => "",
        };
        let more = match kind {
            ErrorKind::Full => ROOM_BY_DELETES,
            _ => "",
        };
        Error::new(
            kind,
            format!("cannot {what} {}: {source}{hint}{more}", path.display()),
        )
        .because(source)
    }

    /// Returns the same error for a database that is being created, from which nothing can be
    /// deleted.
    pub(crate) fn of_new(self) -> Error {
        Error {
            message: self
                .message
                .replace(ROOM_BY_DELETES, "")
                .replace("delete data, ", ""),
            ..self
        }
    }

    /// Returns the error of a failed sync of a directory. Never `Full`, whatever the system
    /// reports: that would be retried, and a later sync proves nothing about names that this one
    /// has lost.
    pub(crate) fn unsynced_folder(dir: &Path, source: std::io::Error) -> Error {
        Error::new(
            ErrorKind::Io,
            format!("cannot sync the directory {}: {source}", dir.display()),
        )
        .because(source)
    }

    /// Returns the error of every write after one has failed, with the first cause.
    pub(crate) fn stopped(first: &Error) -> Error {
        Error::new(
            ErrorKind::Stopped,
            format!(
                "an earlier write failed, so later writes cannot be trusted: reopen the database \
                 (first failure: {})",
                first.message
            ),
        )
        .because(first.clone())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} error: {}", self.kind.name(), self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|s| s as &(dyn StdError + 'static))
    }
}

impl From<AllocError> for Error {
    fn from(e: AllocError) -> Error {
        let kind = match &e {
            AllocError::Full { .. } => ErrorKind::Full,
            AllocError::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => ErrorKind::Full,
            AllocError::Io(_) => ErrorKind::Io,
            _ => ErrorKind::Corruption,
        };
        Error::new(kind, e.to_string()).because(e)
    }
}

impl From<PoolError> for Error {
    fn from(e: PoolError) -> Error {
        let kind = match &e {
            PoolError::Locked { .. } => ErrorKind::Locked,
            PoolError::Newer { .. } | PoolError::Unsupported(..) => ErrorKind::Unsupported,
            PoolError::Corrupt { .. } | PoolError::Truncated { .. } => ErrorKind::Corruption,
            PoolError::Full { .. } => ErrorKind::Full,
            PoolError::Io { .. } => ErrorKind::Io,
            _ => ErrorKind::Invalid,
        };
        let text = match kind {
            ErrorKind::Corruption => {
                format!("{e}, or rebuild what is left with \"terrace repair\"")
            }
            _ => e.to_string(),
        };
        Error::new(kind, text).because(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a new database does not advise to delete from it.
    #[test]
    fn a_new_database_has_nothing_to_delete() {
        let (wanted, free, cap) = (2, 1, 3);
        let pool = Error::from(AllocError::Full { wanted, free, cap });
        let full = std::io::ErrorKind::StorageFull.into();
        for e in [pool, Error::io("write", Path::new("/x"), full)] {
            assert!(e.to_string().contains("delete"), "{e}");
            let new = e.of_new().to_string();
            assert!(
                !new.contains("delete") && new.contains("free space"),
                "{new}"
            );
        }
    }

    /// Damage, missing files and failing devices are facts about the data; a lack of descriptors,
    /// permissions or memory is not, also as the cause of another error.
    #[test]
    fn errors_of_data_are_told_from_those_of_the_process() {
        let io = |number| {
            let e = std::io::Error::from_raw_os_error(number);
            Error::io("read", Path::new("/x"), e)
        };
        let (enoent, eacces) = (2, 13);
        let of_data = [io(EIO), io(enoent), Error::corruption("damage")];
        let others = [io(EMFILE), io(eacces), Error::closed()];
        for (all, expected) in [(of_data, true), (others, false)] {
            for e in all {
                assert_eq!(e.is_of_data(), expected, "{e}");
                let outer = Error::new(e.kind(), "outer").because(e);
                assert_eq!(outer.is_of_data(), expected, "{outer}");
            }
        }
        assert!(io(EMFILE).to_string().contains("ulimit -n"));
    }

    /// The error of a full disk or quota names the remedies: free space on the disk, or the deletes
    /// that the database still accepts.
    #[test]
    fn a_full_disk_says_what_helps() {
        for full in [
            std::io::ErrorKind::StorageFull,
            std::io::ErrorKind::QuotaExceeded,
        ] {
            let e = Error::io("write", Path::new("/x/7.sst"), full.into());
            assert_eq!(e.kind(), ErrorKind::Full);
            let text = e.to_string();
            assert!(text.starts_with("cannot write /x/7.sst: "), "{text}");
            for part in ["free space", "delete a range", "drop a keyspace"] {
                assert!(text.contains(part), "{part} in {text}");
            }
        }
    }
}
