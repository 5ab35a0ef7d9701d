//! Inspect: the contents of the files of a database, without opening it.
//!
//! For programs that show, check or rescue files: nothing is locked or written, a process that has
//! the database open may continue, and damage is no error. Sound pieces are passed to the caller
//! one by one, damaged ones become a [`Finding`] with their place, and the walk continues after
//! them. Errors are for files that cannot be read at all and for those of later versions.
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
//! Writes in flight while a file is read, such as a record that its writer had begun, may appear
//! unfinished; they are distinguished from damage if the format allows it.

mod log;
mod manifest;
mod table;
mod values;

pub use log::{LogPiece, LogPlace, LogSummary, file_log, logs, pool_log};
pub use manifest::{Change, Field, ManifestPiece, ManifestSummary, manifest};
pub use table::{TableBlock, TablePiece, TableSummary, table, tables};
pub use values::{ValueFileSummary, ValuePiece, value_file, value_files};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{File, FileSystem, OpenMode, OsFs, PoolHeader};

use crate::error::{Error, ErrorKind, Result};
use crate::options::file::OptionsFile;
use crate::parts::manifest::FILE_NAME as MANIFEST_FILE;
use crate::parts::sstable::kind::VALUE_POINTER;
use crate::types::EntryKind;

/// A difference from what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The position, in bytes from the start of the file.
    pub offset: u64,
    /// What was expected there, and what was found, as a sentence.
    pub problem: String,
    /// The entries that cannot be read because of it, if that is known.
    pub lost: Option<LostKeys>,
}

/// Keys whose entries are lost, if there were any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostKeys {
    /// The first key and its keyspace, whose newer versions may be there; `None`: from the first of
    /// all.
    pub after: Option<(u32, Vec<u8>)>,
    /// The last key; `None`: to the last of all.
    pub up_to: Option<(u32, Vec<u8>)>,
}

impl LostKeys {
    /// Any key.
    pub(crate) const ALL: LostKeys = LostKeys {
        after: None,
        up_to: None,
    };

    /// Returns whether this key of this keyspace is among them. Takes negligible time.
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

/// The effect of an entry on its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The key has the entry's value.
    Put,
    /// The key has a value in a value file, at [`Entry::place`]. Only in tables.
    PutApart,
    /// The key is absent.
    Delete,
    /// All keys from the entry's key up to its value, exclusive, are absent; an empty value is the
    /// end of the keyspace. Only in logs: tables have separate pieces for it.
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
            None if raw == VALUE_POINTER => Kind::PutApart,
            None => Kind::Other(raw),
        }
    }

    /// The kind's name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Put => "put",
            Kind::PutApart => "put-apart",
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
    /// Its effect on the key.
    pub kind: Kind,
    /// The value; empty for a delete or a value that is apart, and the exclusive end of a range
    /// delete.
    pub value: &'a [u8],
    /// Milliseconds since 1970 after which the entry counts as deleted; `None` for never.
    pub expiry: Option<u64>,
    /// The place of a value that is apart.
    pub place: Option<ValuePlace>,
}

/// The place of a value in a value file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValuePlace {
    /// The number of the file.
    pub file: u64,
    /// The offset of its record there.
    pub offset: u64,
    /// The bytes of the value.
    pub bytes: u64,
}

/// A caller's error, kept while it passes through code that knows only errors of the store.
struct Kept<E>(Option<E>);

impl<E> Kept<E> {
    /// Ends the walk if the caller failed.
    fn note(&mut self, result: Result<(), E>) -> Result<()> {
        result.map_err(|e| {
            self.0 = Some(e);
            Error::invalid("the caller stopped the walk")
        })
    }

    /// Returns the caller's error, else the walk's.
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

/// Returns the files in a directory whose names have a number, in its order.
fn numbered(folder: &Path, number: fn(&str) -> Option<u64>) -> Result<Vec<PathBuf>> {
    let names = OsFs
        .list(folder)
        .map_err(|e| Error::io("list", folder, e))?;
    let names = names.into_iter();
    let mut numbered: Vec<_> = names
        .filter_map(|name| Some((number(&name)?, name)))
        .collect();
    numbered.sort();
    let names = numbered.into_iter();
    Ok(names.map(|(_, name)| folder.join(name)).collect())
}

/// The location of a database's manifest.
enum Home {
    Pool(PathBuf),
    /// The database has no pool.
    File(PathBuf),
}

/// Returns the location of the manifest of the database in the directory `path`, or `path` itself
/// if it is a file.
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
    match OptionsFile::read(&fs, path) {
        Ok(Some(fixed)) => Ok(match fixed.pool_path {
            Some(pool) => Home::Pool(path.join(pool)),
            None => Home::File(in_folder),
        }),
        // OPTIONS is lost; the usual locations are as good as any.
        Ok(None) | Err(_) => {
            let usual = path.join("pool");
            match (usual.exists(), in_folder.exists()) {
                (true, _) => Ok(Home::Pool(usual)),
                (false, true) => Ok(Home::File(in_folder)),
                (false, false) => Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "cannot find the pool of {}: OPTIONS is missing or damaged, and there is \
                         no file \"pool\" or \"MANIFEST\"; give the path of the pool file",
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

/// Returns the bytes of a part of a file, up to the end of the file.
fn read_span(file: &dyn File, path: &Path, span: terrace_media::Span) -> Result<Vec<u8>> {
    let failed = |e| Error::io("read", path, e);
    let have = file.len().map_err(failed)?.saturating_sub(span.off);
    // A length beyond the end of the file is not allocated.
    let mut bytes = vec![0; span.len.min(have) as usize];
    file.read_exact_at(span.off, &mut bytes).map_err(failed)?;
    Ok(bytes)
}
