//! Inspect: what is in the files of a database, without opening it.
//!
//! For programs that show, check or rescue files: nothing is locked and no byte is written, a
//! process that has the database open may go on, and damage is no error. What is sound is handed
//! out piece by piece, what is not becomes a [`Finding`] with its place, and the walk goes on behind
//! it. Errors are for files that cannot be read at all and for those of later versions.
//!
//! ```
//! use terrace::inspect::{self, TablePiece};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let mut options = terrace::testing::small_options();
//! # options.design = Some(terrace::Design::Leveled);
//! # let db = terrace::Db::open(folder.path(), options)?;
//! # db.put("k", "v")?;
//! # db.flush()?;
//! let mut values = 0;
//! for table in inspect::tables(db.path())? {
//!     let found = inspect::table::<terrace::Error>(&table, &mut |piece| {
//!         if let TablePiece::Entry(entry) = piece {
//!             values += entry.value.len();
//!         }
//!         Ok(())
//!     })?;
//!     assert_eq!(found.problems, 0);
//! }
//! # assert!(values > 0);
//! # Ok(())
//! # }
//! ```
//!
//! What was in flight while a file was read, such as a record that its writer had begun, may appear
//! as unfinished; it is told from damage where the format can tell.

mod log;
mod manifest;
mod table;

pub use log::{LogPiece, LogPlace, LogSummary, file_log, logs, pool_log};
pub use manifest::{Change, Field, ManifestPiece, ManifestSummary, manifest};
pub use table::{TableBlock, TablePiece, TableSummary, table, tables};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{File, FileSystem, OpenMode, OsFs, PoolHeader};

use crate::error::{Error, ErrorKind, Result};
use crate::options::file::Fixed;
use crate::parts::manifest::FILE_NAME as MANIFEST_FILE;
use crate::types::EntryKind;

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where, in bytes from the start of the file.
    pub offset: u64,
    /// What was expected there, and what was found, as a sentence.
    pub problem: String,
    /// The entries that cannot be read for it, where that is known.
    pub lost: Option<LostKeys>,
}

/// Entries of these keys are lost, if there were any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostKeys {
    /// From this key of this keyspace on, whose newer versions may be there; `None`: from the first.
    pub after: Option<(u32, Vec<u8>)>,
    /// Up to this key; `None`: to the last.
    pub up_to: Option<(u32, Vec<u8>)>,
}

impl LostKeys {
    /// Any key.
    pub(crate) const ALL: LostKeys = LostKeys {
        after: None,
        up_to: None,
    };

    /// Whether this key of this keyspace is among them. Takes no time to speak of.
    pub fn has(&self, keyspace: u32, key: &[u8]) -> bool {
        let place = |place: &(u32, Vec<u8>)| (keyspace, key).cmp(&(place.0, place.1.as_slice()));
        self.after.as_ref().is_none_or(|after| place(after).is_ge())
            && self.up_to.as_ref().is_none_or(|up_to| place(up_to).is_le())
    }
}

impl Finding {
    fn new(offset: u64, problem: String) -> Finding {
        Finding {
            offset,
            problem,
            lost: None,
        }
    }
}

/// What an entry says of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The key has the entry's value.
    Put,
    /// The key is absent.
    Delete,
    /// All keys from the entry's key up to its value, which is not deleted, are absent; an empty
    /// value is the end of the keyspace. Only in logs: tables have pieces of their own for it.
    RangeDelete,
    /// A kind that this version does not write.
    Other(u8),
}

impl Kind {
    fn of(raw: u8) -> Kind {
        match EntryKind::from_raw(raw) {
            Some(EntryKind::Put | EntryKind::PutExpiring) => Kind::Put,
            Some(EntryKind::Delete) => Kind::Delete,
            Some(EntryKind::RangeDelete) => Kind::RangeDelete,
            None => Kind::Other(raw),
        }
    }

    /// The kind's name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Put => "put",
            Kind::Delete => "delete",
            Kind::RangeDelete => "range-delete",
            Kind::Other(_) => "other",
        }
    }
}

/// One entry of a log or a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// The keyspace's number: 0 for the catalog, 1 for the default keyspace.
    pub keyspace: u32,
    /// The key.
    pub key: &'a [u8],
    /// The sequence number.
    pub seq: u64,
    /// What it says of its key.
    pub kind: Kind,
    /// The value; empty for a delete, and the key behind the last of a range delete.
    pub value: &'a [u8],
    /// Milliseconds since 1970 after which the entry counts as deleted; `None` for never.
    pub expiry: Option<u64>,
}

/// A caller's failure, kept while it passes through code that knows only errors of the store.
struct Kept<E>(Option<E>);

impl<E> Kept<E> {
    /// Ends the walk where the caller failed.
    fn note(&mut self, result: Result<(), E>) -> Result<()> {
        result.map_err(|e| {
            self.0 = Some(e);
            Error::invalid("the caller ended the walk")
        })
    }

    /// The caller's failure, else the walk's.
    fn end<T>(self, result: Result<T>) -> Result<T, E>
    where
        E: From<Error>,
    {
        match self.0 {
            Some(e) => Err(e),
            None => result.map_err(E::from),
        }
    }
}

fn open(path: &Path) -> Result<Box<dyn File>> {
    OsFs.open(path, OpenMode::Read)
        .map_err(|e| Error::io("open", path, e))
}

/// Where the manifest of a database is.
enum Home {
    Pool(PathBuf),
    /// The database has no pool.
    File(PathBuf),
}

/// Where the manifest of the database in the folder `path` is; or `path` itself where it is a file.
fn home_of(path: &Path) -> Result<Home> {
    if !path.is_dir() {
        let is_manifest = path.file_name().is_some_and(|name| name == MANIFEST_FILE);
        return Ok(match is_manifest {
            true => Home::File(path.to_owned()),
            false => Home::Pool(path.to_owned()),
        });
    }
    let fs: Arc<dyn FileSystem> = Arc::new(OsFs);
    let in_folder = path.join(MANIFEST_FILE);
    match Fixed::read(&fs, path) {
        Ok(Some(fixed)) => Ok(match fixed.pool_path {
            Some(pool) => Home::Pool(path.join(pool)),
            None => Home::File(in_folder),
        }),
        // What OPTIONS says is lost; the usual places are as good as none.
        Ok(None) | Err(_) => {
            let usual = path.join("pool");
            match (usual.exists(), in_folder.exists()) {
                (true, _) => Ok(Home::Pool(usual)),
                (false, true) => Ok(Home::File(in_folder)),
                (false, false) => Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "{} has no sound OPTIONS file that says where the pool is, and no file \
                         \"pool\" or \"MANIFEST\": name the pool's file itself",
                        path.display()
                    ),
                )),
            }
        }
    }
}

/// An open pool file and its header.
fn open_pool(path: &Path) -> Result<(Box<dyn File>, PoolHeader)> {
    let file = open(path)?;
    let header = PoolHeader::read(&*file, path)?;
    Ok((file, header))
}

/// The bytes of a part of a file, as far as the file has them.
fn read_span(file: &dyn File, path: &Path, span: terrace_media::Span) -> Result<Vec<u8>> {
    let failed = |e| Error::io("read", path, e);
    let have = file.len().map_err(failed)?.saturating_sub(span.off);
    // A length that the file does not have is not allocated.
    let mut bytes = vec![0; span.len.min(have) as usize];
    file.read_exact_at(span.off, &mut bytes).map_err(failed)?;
    Ok(bytes)
}
