//! Inspection of value files.

use std::path::{Path, PathBuf};

use terrace_media::OsFs;

use super::{Entry, Finding, Kept, Kind};
use crate::error::{Error, Result};
use crate::parts::values::ValueFile;
use crate::stages::file_names::value_file_number;

/// A piece of a value file, in the order in which the values were written.
#[derive(Debug)]
#[non_exhaustive]
pub enum ValuePiece<'a> {
    /// A value, with its key, at this offset. Only tables tell whether it is still needed.
    Value(u64, Entry<'a>),
    /// Damage.
    Problem(Finding),
}

/// The result of a walk over a value file.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ValueFileSummary {
    /// The number of the file, by its name.
    pub number: u64,
    /// The length of the file.
    pub file_bytes: u64,
    /// The number of values passed to the caller.
    pub values: u64,
    /// The number of problems passed to the caller.
    pub problems: u64,
}

/// Walks the value file at `path`. Reads all of it once.
///
/// # Errors
/// `Io` if the file cannot be read, `Unsupported` if a later version wrote it, `Invalid` if it is
/// not named like a value file, `Corruption` if its header is damaged, and errors of `visit`. Other
/// damage is no error.
pub fn value_file<E: From<Error>>(
    path: impl AsRef<Path>,
    visit: &mut dyn FnMut(ValuePiece<'_>) -> Result<(), E>,
) -> Result<ValueFileSummary, E> {
    let path = path.as_ref();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(number) = value_file_number(&name) else {
        return Err(E::from(Error::invalid(format!(
            "{} is not named like a value file, a number of 16 digits and .val: give a file of a \
             database's directory",
            path.display()
        ))));
    };
    let file = ValueFile::open(&OsFs, path, number, false).map_err(E::from)?;
    let mut summary = ValueFileSummary {
        number,
        file_bytes: file.bytes(),
        ..ValueFileSummary::default()
    };
    let mut kept = Kept(None);
    let walked = file.walk(&mut |offset, record| {
        let (record, value) = match record {
            Ok(found) => found,
            Err(e) => {
                summary.problems += 1;
                let finding = Finding::new(offset, e.to_string());
                return kept.note(visit(ValuePiece::Problem(finding)));
            }
        };
        summary.values += 1;
        let header = &record.header;
        let entry = Entry {
            keyspace: header.keyspace,
            key: record.key,
            seq: header.seq,
            kind: Kind::Put,
            value,
            expiry: (header.expiry != 0).then_some(header.expiry),
            place: None,
        };
        kept.note(visit(ValuePiece::Value(offset, entry)))
    });
    kept.end(walked.map(|()| summary))
}

/// Returns the value files in the directory of a database, in the order of their numbers.
///
/// # Errors
/// `Io` if the directory cannot be listed.
pub fn value_files(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    super::numbered(folder.as_ref(), value_file_number)
}
