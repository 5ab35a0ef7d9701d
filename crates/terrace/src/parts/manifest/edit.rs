//! The edits of the manifest: the kinds of change and their encoding.
//!
//! A change is a tag byte followed by its numbers as varints. A change of an item has the owner's
//! tag, the item's id, and, unless it removes the item, the length of the owner's bytes and the
//! bytes (item.rs). Tags are part of the format: a new kind of change takes a new tag.

use std::sync::Arc;

use terrace_media::Span;

use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::manifest::ManifestError;
use crate::parts::manifest::item::{self, Item, Owner, Owners, put_numbers};

/// The location of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogPlace {
    /// In an extent of the pool.
    Pool(Span),
    /// In an extent of the pool, as a list that is its own log.
    List(Span),
    /// In a file named after the log's id.
    File,
}

impl LogPlace {
    /// Returns the extent, if it is in the pool.
    pub(crate) fn span(&self) -> Option<Span> {
        match self {
            LogPlace::Pool(span) | LogPlace::List(span) => Some(*span),
            LogPlace::File => None,
        }
    }
}

/// The bytes written in the database's lifetime, up to the edit that records them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Key and value bytes of users.
    pub(crate) user: u64,
    /// Bytes written to the pool.
    pub(crate) pool: u64,
    /// Bytes written to log files, and to table files.
    pub(crate) log_files: u64,
    pub(crate) table_files: u64,
}

/// One structural change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// A log exists and may contain records.
    LogCreated { id: u64, place: LogPlace },
    /// A log takes no more records and is durable up to its byte `end`; a log that ends earlier is
    /// damaged.
    LogEnded { id: u64, end: u64 },
    /// All entries of a log are stored elsewhere; its space may be reused.
    LogRetired { id: u64 },
    /// An item is complete on its medium.
    Added(Arc<dyn Item>),
    /// An item takes the place of the one with its id.
    Changed(Arc<dyn Item>),
    /// An item is no longer needed.
    Removed { owner: &'static Owner, id: u64 },
    /// Sequence numbers up to this one are used. Never lowers the known value.
    LastSeq { seq: u64 },
    /// Ids below this one are used. Never lowers the known value.
    NextId { id: u64 },
    /// The database was closed cleanly. Any later change that is not of the pool cancels this.
    Closed,
    /// The creation of the database has completed: the directory is a database.
    Created,
    /// The bytes written in the database's lifetime. Never lowers the known values.
    Totals(Totals),
    /// Entries that expire up to this time, in milliseconds since 1970, are absent. Never lowers
    /// the known value.
    Time { time: u64 },
}

/// Changes that become durable atomically.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) changes: Vec<Change>,
}

impl Totals {
    /// Adds the fields.
    pub(crate) fn plus(self, other: Totals) -> Totals {
        Totals {
            user: self.user.saturating_add(other.user),
            pool: self.pool.saturating_add(other.pool),
            log_files: self.log_files.saturating_add(other.log_files),
            table_files: self.table_files.saturating_add(other.table_files),
        }
    }

    /// Returns the maximum of each field.
    pub(crate) fn max(self, other: Totals) -> Totals {
        Totals {
            user: self.user.max(other.user),
            pool: self.pool.max(other.pool),
            log_files: self.log_files.max(other.log_files),
            table_files: self.table_files.max(other.table_files),
        }
    }
}

impl Edit {
    /// Creates an edit of one change.
    pub(crate) fn of(change: Change) -> Edit {
        Edit {
            changes: vec![change],
        }
    }

    /// Returns whether there is nothing to commit.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the logs that are no longer needed after the edit.
    pub(crate) fn retired_logs(&self) -> impl Iterator<Item = u64> + '_ {
        self.changes.iter().filter_map(|change| match change {
            Change::LogRetired { id } => Some(*id),
            _ => None,
        })
    }
}

mod tag {
    pub(super) const LOG_IN_POOL: u8 = 1;
    pub(super) const LOG_IN_FILE: u8 = 2;
    pub(super) const LOG_ENDED: u8 = 3;
    pub(super) const LOG_RETIRED: u8 = 4;
    pub(super) const ADDED: u8 = 5;
    pub(super) const CHANGED: u8 = 6;
    pub(super) const REMOVED: u8 = 7;
    pub(super) const LAST_SEQ: u8 = 8;
    pub(super) const NEXT_ID: u8 = 9;
    pub(super) const CLOSED: u8 = 10;
    pub(super) const CREATED: u8 = 11;
    pub(super) const TOTALS: u8 = 12;
    pub(super) const TIME: u8 = 13;
    pub(super) const LOG_IS_LIST: u8 = 14;
}

fn put(out: &mut Vec<u8>, tag: u8, numbers: &[u64]) {
    codec::put_u8(out, tag);
    put_numbers(out, numbers);
}

fn put_item(out: &mut Vec<u8>, tag: u8, item: &dyn Item) {
    codec::put_u8(out, tag);
    codec::put_u8(out, item.owner().tag);
    let mut bytes = Vec::new();
    item.encode(&mut bytes);
    put_numbers(out, &[item.id(), bytes.len() as u64]);
    out.extend_from_slice(&bytes);
}

impl Change {
    /// Returns the change that adds an item.
    pub(crate) fn added(item: impl Item) -> Change {
        Change::Added(Arc::new(item))
    }

    /// Returns the change that replaces an item.
    pub(crate) fn changed(item: impl Item) -> Change {
        Change::Changed(Arc::new(item))
    }

    /// Returns whether the change adds something that has entries.
    pub(super) fn adds_data(&self) -> bool {
        matches!(self, Change::Added(item) if item.has_entries())
    }

    /// Returns whether the change frees space in the pool or on a disk.
    pub(crate) fn frees(&self) -> bool {
        matches!(self, Change::LogRetired { .. } | Change::Removed { .. })
    }

    /// Returns the owner of the item that the change is about.
    pub(crate) fn owner(&self) -> Option<&'static Owner> {
        match self {
            Change::Added(item) | Change::Changed(item) => Some(item.owner()),
            Change::Removed { owner, .. } => Some(owner),
            _ => None,
        }
    }

    /// Returns whether the change is about something in the pool.
    pub(crate) fn is_of_pool(&self) -> bool {
        match self {
            Change::LogCreated { place, .. } => place.span().is_some(),
            // A log in a pool ends and is retired only if the pool survives the process.
            _ => self.owner().is_some_and(|owner| owner.in_pool),
        }
    }

    /// Appends the encoded change to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Change::LogCreated {
                id,
                place: LogPlace::Pool(span),
            } => {
                put(out, tag::LOG_IN_POOL, &[*id, span.off, span.len]);
            }
            Change::LogCreated {
                id,
                place: LogPlace::List(span),
            } => {
                put(out, tag::LOG_IS_LIST, &[*id, span.off, span.len]);
            }
            Change::LogCreated {
                id,
                place: LogPlace::File,
            } => put(out, tag::LOG_IN_FILE, &[*id]),
            Change::LogEnded { id, end } => put(out, tag::LOG_ENDED, &[*id, *end]),
            Change::LogRetired { id } => put(out, tag::LOG_RETIRED, &[*id]),
            Change::Added(item) => put_item(out, tag::ADDED, &**item),
            Change::Changed(item) => put_item(out, tag::CHANGED, &**item),
            Change::Removed { owner, id } => {
                codec::put_u8(out, tag::REMOVED);
                codec::put_u8(out, owner.tag);
                codec::put_varint(out, *id);
            }
            Change::LastSeq { seq } => put(out, tag::LAST_SEQ, &[*seq]),
            Change::NextId { id } => put(out, tag::NEXT_ID, &[*id]),
            Change::Closed => put(out, tag::CLOSED, &[]),
            Change::Created => put(out, tag::CREATED, &[]),
            Change::Totals(t) => put(
                out,
                tag::TOTALS,
                &[t.user, t.pool, t.log_files, t.table_files],
            ),
            Change::Time { time } => put(out, tag::TIME, &[*time]),
        }
    }

    /// Decodes one change.
    pub(crate) fn decode(r: &mut Reader<'_>, owners: Owners) -> Result<Change, ManifestError> {
        let at = r.clone();
        Ok(match r.u8()? {
            tag::LOG_IN_POOL => Change::LogCreated {
                id: item::id(r)?,
                place: LogPlace::Pool(item::span(r)?),
            },
            tag::LOG_IS_LIST => Change::LogCreated {
                id: item::id(r)?,
                place: LogPlace::List(item::span(r)?),
            },
            tag::LOG_IN_FILE => Change::LogCreated {
                id: item::id(r)?,
                place: LogPlace::File,
            },
            tag::LOG_ENDED => Change::LogEnded {
                id: r.varint()?,
                end: item::amount(r)?,
            },
            tag::LOG_RETIRED => Change::LogRetired { id: r.varint()? },
            tag::ADDED => Change::Added(decode_item(r, owners)?),
            tag::CHANGED => Change::Changed(decode_item(r, owners)?),
            tag::REMOVED => Change::Removed {
                owner: decode_owner(r, owners)?,
                id: r.varint()?,
            },
            tag::LAST_SEQ => Change::LastSeq { seq: item::seq(r)? },
            tag::NEXT_ID => Change::NextId { id: item::id(r)? },
            tag::CLOSED => Change::Closed,
            tag::CREATED => Change::Created,
            tag::TOTALS => Change::Totals(Totals {
                user: r.varint()?,
                pool: r.varint()?,
                log_files: r.varint()?,
                table_files: r.varint()?,
            }),
            tag::TIME => Change::Time { time: r.varint()? },
            other => return Err(at.refuse("the tag of a change", other.to_string()).into()),
        })
    }
}

fn decode_owner(r: &mut Reader<'_>, owners: Owners) -> Result<&'static Owner, ManifestError> {
    let tag = r.u8()?;
    let owner = owners.iter().find(|owner| owner.tag == tag);
    owner.copied().ok_or(ManifestError::UnknownOwner { tag })
}

fn decode_item(r: &mut Reader<'_>, owners: Owners) -> Result<Arc<dyn Item>, ManifestError> {
    let owner = decode_owner(r, owners)?;
    let id = item::id(r)?;
    let len = r.varint()?;
    let offset = r.clone();
    let Some(bytes) = usize::try_from(len).ok().and_then(|len| r.bytes(len).ok()) else {
        let found = format!("{} bytes", offset.remaining());
        return Err(offset.refuse(format!("{len} bytes"), found).into());
    };
    let mut own = Reader::new(owner.name, offset.offset(), bytes);
    let item = (owner.decode)(id, &mut own)?;
    own.end()?;
    Ok(item)
}

/// Refuses a change that contradicts the state. The offset is 0: the caller knows the record.
pub(crate) fn refuse<T>(expected: &str, found: impl Into<String>) -> Result<T, DecodeError> {
    Err(DecodeError::new("manifest edit", 0, expected, found))
}
