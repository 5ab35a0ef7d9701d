//! Inspection of table files.

use std::path::{Path, PathBuf};

use terrace_media::OsFs;

use super::{Entry, Finding, Kept, Kind, LostKeys, ValuePlace};
use crate::error::{Error, Result};
use crate::parts::sstable::{self, BlockKind, Piece, Salvaged};
use crate::parts::values::Pointer;
use crate::stages::file_names::table_file_number;

/// A piece of a table file. The properties come first and every index block before the blocks that
/// it lists; if the footer is damaged, blocks come in file order. A block follows its entries.
#[derive(Debug)]
#[non_exhaustive]
pub enum TablePiece<'a> {
    /// An entry, and the offset of its block.
    Entry(Entry<'a>),
    /// A range delete: it hides entries with smaller sequence numbers.
    RangeDelete {
        /// The keyspace's number.
        keyspace: u32,
        /// The first key.
        begin: &'a [u8],
        /// The exclusive end; empty for the end of the keyspace.
        end: &'a [u8],
        /// The sequence number.
        seq: u64,
    },
    /// An intact block.
    Block(TableBlock),
    /// Damage to a block or another part.
    Problem(Finding),
}

/// A block of a table file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableBlock {
    /// "data", "index", "filter", "range deletes" or "properties".
    pub kind: &'static str,
    /// Its offset in the file.
    pub offset: u64,
    /// Bytes in the file, including the checksum.
    pub stored_bytes: u64,
    /// Bytes before compression.
    pub content_bytes: u64,
    /// Entries in it, or keys in the filter.
    pub entries: u64,
}

/// The result of a walk over a table file.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct TableSummary {
    /// The table's number; `None` if the footer is damaged.
    pub number: Option<u64>,
    /// The length of the file.
    pub file_bytes: u64,
    /// The properties of the table by name; empty if they are damaged.
    pub properties: Vec<(&'static str, u64)>,
    /// Keyspace and key of the first and the last entry, according to the table.
    pub keys: Option<[(u32, Vec<u8>); 2]>,
    /// The number of intact blocks.
    pub blocks: u64,
    /// The number of entries passed to the caller.
    pub entries: u64,
    /// The number of problems passed to the caller.
    pub problems: u64,
}

/// Walks the table file at `path`. Reads all of it once.
///
/// # Errors
/// `Io` if the file cannot be read, `Unsupported` if a later version wrote it, `Invalid` if it is
/// not a table file and not named like one, and errors of `visit`. Damage is no error.
pub fn table<E: From<Error>>(
    path: impl AsRef<Path>,
    visit: &mut dyn FnMut(TablePiece<'_>) -> Result<(), E>,
) -> Result<TableSummary, E> {
    let path = path.as_ref();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = table_file_number(&name);
    let mut kept = Kept(None);
    let walked = sstable::salvage(&OsFs, path, number, &mut |piece| {
        kept.note(visit(shown(piece)))
    });
    kept.end(walked.map(summary))
}

/// Returns a piece as callers see it.
fn shown(piece: Piece<'_>) -> TablePiece<'_> {
    match piece {
        Piece::Entry(entry) => {
            let kind = Kind::of(entry.kind);
            // A pointer that cannot be decoded is shown as it is.
            let pointer = match kind {
                Kind::PutApart => Pointer::decode(entry.value, 0).ok(),
                _ => None,
            };
            TablePiece::Entry(Entry {
                keyspace: entry.keyspace,
                key: entry.key,
                seq: entry.seq,
                kind,
                value: match pointer {
                    Some(_) => &[],
                    None => entry.value,
                },
                expiry: (entry.expiry != 0).then_some(entry.expiry),
                place: pointer.map(|pointer| ValuePlace {
                    file: pointer.file,
                    offset: pointer.offset,
                    bytes: pointer.value_bytes.into(),
                }),
            })
        }
        Piece::RangeDelete(range) => TablePiece::RangeDelete {
            keyspace: range.keyspace,
            begin: &range.begin,
            end: &range.end,
            seq: range.seq,
        },
        Piece::Block {
            kind,
            offset,
            stored_bytes,
            content_bytes,
            entries,
        } => TablePiece::Block(TableBlock {
            kind: match kind {
                BlockKind::Data => "data",
                BlockKind::Index => "index",
                BlockKind::Filter => "filter",
                BlockKind::RangeDeletes => "range deletes",
                BlockKind::Properties => "properties",
            },
            offset,
            stored_bytes,
            content_bytes,
            entries,
        }),
        Piece::Problem(problem) => TablePiece::Problem(Finding {
            offset: problem.offset,
            problem: problem.text,
            lost: problem.lost.map(|keys| LostKeys {
                after: keys.after,
                up_to: keys.up_to,
            }),
        }),
    }
}

fn summary(found: Salvaged) -> TableSummary {
    let mut properties = Vec::new();
    let mut keys = None;
    if let Some(p) = &found.properties {
        properties = vec![
            ("entries", p.entry_count),
            ("tombstones", p.tombstone_count),
            ("expiring_entries", p.expiring_count),
            ("value_pointers", p.value_pointer_count),
            ("range_deletes", p.range_delete_count),
            ("keys", p.key_count),
            ("key_bytes", p.key_bytes),
            ("value_bytes", p.value_bytes),
            ("data_blocks", p.data_block_count),
            ("data_bytes", p.data_bytes),
            ("content_bytes", p.content_bytes),
            ("index_bytes", p.index_bytes),
            ("filter_bytes", p.filter_bytes),
        ];
        if let Some((first, last)) = p.seqs {
            properties.extend([("seq_first", first), ("seq_last", last)]);
        }
        if let Some((first, last)) = p.expiries {
            properties.extend([("expiry_first", first), ("expiry_last", last)]);
        }
        keys = p
            .entries
            .as_ref()
            .map(|(first, last)| [first, last].map(|place| (place.keyspace, place.key.clone())));
    }
    TableSummary {
        number: found.number,
        file_bytes: found.file_bytes,
        properties,
        keys,
        blocks: found.blocks,
        entries: found.entries,
        problems: found.problems,
    }
}

/// Returns the table files in the directory of a database, in the order of their numbers.
///
/// # Errors
/// `Io` if the directory cannot be listed.
pub fn tables(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    super::numbered(folder.as_ref(), table_file_number)
}
