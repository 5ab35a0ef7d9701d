//! Inspection of manifests, in pools and in files.

use std::path::{Path, PathBuf};

use terrace_media::{PoolHeader, Span};

use super::{Finding, Home, Kept};
use crate::designs::OWNERS;
use crate::error::{Error, ErrorKind, Result};
use crate::parts::manifest::item::Item;
use crate::parts::manifest::layout::{Roots, other_version, version_text};
use crate::parts::manifest::salvage::{self, Piece, Salvaged};
use crate::parts::manifest::{Change as StoredChange, FILE_BYTES_MAX, LogPlace, State};

pub use crate::parts::manifest::item::Field;

/// One piece of a manifest, in the order of its records.
#[derive(Debug)]
#[non_exhaustive]
pub enum ManifestPiece<'a> {
    /// An edit: changes that took effect atomically.
    Edit {
        /// Its number; 0 is the state that the generation began with.
        number: u64,
        /// Its offset in the file.
        offset: u64,
        /// The changes.
        changes: &'a [Change],
    },
    /// Bytes that differ from those written, or a change that contradicts the others.
    Problem(Finding),
}

/// One change of the manifest, with its name and named fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// What changed, such as "file-added".
    pub name: String,
    /// The fields in a fixed order.
    pub fields: Vec<(&'static str, Field)>,
}

/// The result of a walk over a manifest.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ManifestSummary {
    /// The file that the manifest is in.
    pub path: PathBuf,
    /// The offset of the manifest in it.
    pub offset: u64,
    /// The number of rewrites of the manifest.
    pub generation: u64,
    /// Edits passed to the caller.
    pub edits: u64,
    /// The resulting state, as the changes that lead to it from an empty one.
    pub state: Vec<Change>,
    /// Whether the last edit is incomplete: torn by a crash, or still being appended.
    pub torn: bool,
    /// The number of problems passed to the caller.
    pub problems: u64,
}

/// Walks a manifest. `path` is a pool, a manifest file, or the directory of a database, whose
/// manifest is in its pool or, if it has none, in the file `MANIFEST`.
///
/// # Errors
/// `Invalid` if there is none, `Io` and `Corruption` if the files that locate it cannot be read,
/// `Unsupported` if another version wrote it, and errors of `visit`. Damage of the manifest itself
/// is no error.
pub fn manifest<E: From<Error>>(
    path: impl AsRef<Path>,
    visit: &mut dyn FnMut(ManifestPiece<'_>) -> Result<(), E>,
) -> Result<ManifestSummary, E> {
    let path = path.as_ref();
    let raw = read(super::home_of(path)?)?;
    let mut kept = Kept(None);
    let walked = salvage::salvage(
        &raw.bytes,
        raw.offset,
        raw.generation,
        OWNERS,
        &mut |piece| match piece {
            Piece::Record {
                number,
                offset,
                changes,
            } => {
                let changes: Vec<_> = changes.iter().map(shown).collect();
                kept.note(visit(ManifestPiece::Edit {
                    number,
                    offset,
                    changes: &changes,
                }))
            }
            Piece::Problem { offset, text } => {
                kept.note(visit(ManifestPiece::Problem(Finding::new(offset, text))))
            }
        },
    );
    let summary = |found: Salvaged| ManifestSummary {
        path: raw.path.clone(),
        offset: raw.offset,
        generation: found.generation,
        edits: found.records,
        state: found.state.to_changes().iter().map(shown).collect(),
        torn: found.torn,
        problems: found.problems,
    };
    kept.end(walked.map(summary))
}

/// Returns the live state according to the manifest in the pool file `pool`, if it can be read.
pub(super) fn pool_state(pool: &Path) -> Result<State> {
    let raw = read(Home::Pool(pool.to_owned()))?;
    let found = salvage::salvage(&raw.bytes, raw.offset, raw.generation, OWNERS, &mut |_| {
        Ok(())
    })?;
    Ok(found.state)
}

/// A manifest's bytes, not yet decoded.
struct RawManifest {
    path: PathBuf,
    /// Its offset in the file.
    offset: u64,
    /// The generation according to the roots of the pool; `None` for a manifest file.
    generation: Option<u64>,
    bytes: Vec<u8>,
}

fn read(home: Home) -> Result<RawManifest> {
    let raw = match home {
        Home::Pool(pool) => read_pool(pool),
        Home::File(path) => read_file(path),
    }?;
    match other_version(&raw.bytes) {
        Some(version) => {
            let text = format!("{}: {}", raw.path.display(), version_text(version));
            Err(Error::new(ErrorKind::Unsupported, text))
        }
        None => Ok(raw),
    }
}

/// Reads the manifest file. A rename replaces it with the next generation as a whole, so the opened
/// file is one generation, whose last record may be incomplete.
fn read_file(path: PathBuf) -> Result<RawManifest> {
    let file = super::open(&path)?;
    let len = file.len().map_err(|e| Error::io("examine", &path, e))?;
    if len > FILE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "{} has {len} bytes, too many for a manifest: give the database's directory or its pool",
            path.display()
        )));
    }
    let span = Span { off: 0, len };
    let bytes = super::read_span(&*file, &path, span)?;
    Ok(RawManifest {
        path,
        offset: 0,
        generation: None,
        bytes,
    })
}

/// BOUND: the number of attempts to read a manifest that moves meanwhile.
const TRIES: usize = 5;

/// Reads the manifest's extent. A process that has the pool open may rewrite the manifest
/// meanwhile, so the roots must be the same before and after.
fn read_pool(pool: PathBuf) -> Result<RawManifest> {
    let (file, mut header) = super::open_pool(&pool)?;
    for _ in 0..TRIES {
        let roots = Roots::read(|i| header.roots[i]);
        let bytes = super::read_span(&*file, &pool, roots.current)?;
        let again = PoolHeader::read(&*file, &pool)?;
        if again.roots == header.roots {
            // The creation of the pool did not finish.
            if roots.generation == 0 {
                break;
            }
            return Ok(RawManifest {
                path: pool,
                offset: roots.current.off,
                generation: Some(roots.generation),
                bytes,
            });
        }
        header = again;
    }
    Err(Error::invalid(format!(
        "cannot find the manifest of {}: the pool's creation did not finish, or the manifest moved \
         during every read; try again",
        pool.display()
    )))
}

/// Returns a change as callers see it.
fn shown(change: &StoredChange) -> Change {
    let number = |name, value| (name, Field::Number(value));
    let of_item = |item: &dyn Item, what| {
        let owner = item.owner().name;
        let mut fields = vec![number("id", item.id())];
        fields.extend(item.fields());
        (format!("{owner}-{what}"), fields)
    };
    let (name, fields) = match change {
        StoredChange::LogCreated { id, place } => {
            let mut fields = vec![number("id", *id)];
            fields.extend(place.span().map(|at| ("at", Field::from(at))));
            let name = match place {
                LogPlace::List(_) => "list-created",
                LogPlace::Pool(_) | LogPlace::File => "log-created",
            };
            (name.into(), fields)
        }
        StoredChange::LogEnded { id, end } => {
            let fields = vec![number("id", *id), number("end", *end)];
            ("log-ended".into(), fields)
        }
        StoredChange::LogRetired { id } => ("log-retired".into(), vec![number("id", *id)]),
        StoredChange::Added(item) => of_item(&**item, "added"),
        StoredChange::Changed(item) => of_item(&**item, "changed"),
        StoredChange::Removed { owner, id } => {
            let name = format!("{}-removed", owner.name);
            (name, vec![number("id", *id)])
        }
        StoredChange::LastSeq { seq } => ("last-seq".into(), vec![number("seq", *seq)]),
        StoredChange::NextId { id } => ("next-id".into(), vec![number("id", *id)]),
        StoredChange::Totals(totals) => (
            "totals".into(),
            vec![
                number("user_bytes", totals.user),
                number("pool_bytes", totals.pool),
                number("log_file_bytes", totals.log_files),
                number("table_file_bytes", totals.table_files),
            ],
        ),
        StoredChange::Time { time } => ("time".into(), vec![number("milliseconds", *time)]),
        StoredChange::Closed => ("closed".into(), Vec::new()),
        StoredChange::Created => ("created".into(), Vec::new()),
    };
    Change { name, fields }
}
