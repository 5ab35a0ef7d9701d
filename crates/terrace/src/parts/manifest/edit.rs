//! The edits of the manifest: the kinds of change and their encoding.
//!
//! A change is a tag byte followed by its numbers as varints. Tags are part of the format: a new
//! kind of change takes a new tag.

use terrace_media::Span;

use crate::parts::codec::{self, DecodeError, Reader};
use crate::types::SEQ_MAX;

/// The deepest possible level; no option reaches it.
const LEVEL_MAX: u64 = 63;
/// The maximum number of entries or bytes of a table; sums over all tables do not overflow.
const AMOUNT_MAX: u64 = 1 << 48;

/// The location of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogPlace {
    /// In an extent of the pool.
    Pool(Span),
    /// In a file named after the log's id.
    File,
}

/// An extent of a table, and how much of it contains nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableExtent {
    pub(crate) span: Span,
    pub(crate) used: u64,
}

/// A table of the buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableMeta {
    pub(crate) id: u64,
    pub(crate) level: u32,
    /// The pool offset of the head node.
    pub(crate) head: u64,
    /// The extents with its nodes: its own first, then those of the tables merged into it.
    pub(crate) extents: Vec<TableExtent>,
    pub(crate) filter: Option<Span>,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) seq_first: u64,
    pub(crate) seq_last: u64,
    /// The older table into which an unfinished merge moves this table's nodes.
    pub(crate) merging_into: Option<u64>,
}

/// A table of the bottom, in a file named after its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileMeta {
    pub(crate) number: u64,
    /// 0 receives drains; deeper levels hold older data.
    pub(crate) level: u32,
    /// Tables of level 0 with the same run are disjoint and were written together; a larger run is
    /// newer. Each deeper level is one run, and the value is 0.
    pub(crate) run: u64,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    pub(crate) tombstones: u64,
    pub(crate) seq_first: u64,
    pub(crate) seq_last: u64,
    /// The keyspace and key of the first entry.
    pub(crate) first: (u32, Vec<u8>),
    /// The keyspace and key of the last entry.
    pub(crate) last: (u32, Vec<u8>),
    /// The number of range delete fragments. A table may contain nothing else: `first` and `last`
    /// are then the start of the first fragment.
    pub(crate) range_deletes: u64,
    /// With range deletes: the bounds of entries and range deletes together, with an exclusive end.
    pub(crate) reach: Option<(Place, Place)>,
    /// The number of entries that expire, and the time when the last of them does.
    pub(crate) expiring: u64,
    pub(crate) expiry_last: u64,
}

/// A keyspace and a key.
pub(crate) type Place = (u32, Vec<u8>);

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
    /// A table is complete on the medium. It is not part of a merge.
    TableAdded(TableMeta),
    /// A table's data is stored elsewhere or dropped. The table is not part of a merge.
    TableRemoved { id: u64 },
    /// A table moved to another level.
    TableMoved { id: u64, level: u32 },
    /// From now on nodes of `newer` may be linked into `older`.
    MergeBegun { newer: u64, older: u64 },
    /// All nodes of `newer` are in `older`, which takes its extents and sequence numbers.
    MergeEnded {
        newer: u64,
        older: u64,
        level: u32,
        filter: Option<Span>,
        entries: u64,
        bytes: u64,
    },
    /// The repository exists; its head is in an extent of its own.
    RepositoryCreated { head: Span },
    /// The repository may put nodes into an extent.
    RepositoryExtentAdded { span: Span },
    /// The repository has no live node left in the extent at `off`.
    RepositoryExtentRemoved { off: u64 },
    /// A table file and its name are complete and durable.
    FileAdded(FileMeta),
    /// A table file is no longer needed.
    FileRemoved { number: u64 },
    /// A table file moved to another level.
    FileMoved { number: u64, level: u32 },
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
    pub(super) const LOG_RETIRED: u8 = 3;
    pub(super) const TABLE_ADDED: u8 = 4;
    pub(super) const TABLE_REMOVED: u8 = 5;
    pub(super) const TABLE_MOVED: u8 = 6;
    pub(super) const MERGE_BEGUN: u8 = 7;
    pub(super) const MERGE_ENDED: u8 = 8;
    pub(super) const REPOSITORY_CREATED: u8 = 9;
    pub(super) const REPOSITORY_EXTENT_ADDED: u8 = 10;
    pub(super) const REPOSITORY_EXTENT_REMOVED: u8 = 11;
    pub(super) const LOG_ENDED: u8 = 18;
    pub(super) const LAST_SEQ: u8 = 12;
    pub(super) const NEXT_ID: u8 = 13;
    pub(super) const FILE_ADDED: u8 = 14;
    pub(super) const FILE_REMOVED: u8 = 15;
    pub(super) const FILE_MOVED: u8 = 16;
    pub(super) const CLOSED: u8 = 32;
    pub(super) const CREATED: u8 = 33;
    pub(super) const TOTALS: u8 = 34;
    pub(super) const TIME: u8 = 17;
}

fn put(out: &mut Vec<u8>, tag: u8, numbers: &[u64]) {
    codec::put_u8(out, tag);
    for &n in numbers {
        codec::put_varint(out, n);
    }
}

fn put_filter(out: &mut Vec<u8>, filter: Option<Span>) {
    // A span at offset 0 would be the superblock, so 0 means no filter.
    let span = filter.unwrap_or(Span { off: 0, len: 0 });
    codec::put_varint(out, span.off);
    if filter.is_some() {
        codec::put_varint(out, span.len);
    }
}

impl Change {
    /// Returns whether the change adds something that has entries.
    pub(super) fn adds_data(&self) -> bool {
        matches!(
            self,
            Change::TableAdded(_) | Change::FileAdded(_) | Change::RepositoryExtentAdded { .. }
        )
    }

    /// Returns whether the change frees space in the pool or on a disk.
    pub(crate) fn frees(&self) -> bool {
        matches!(
            self,
            Change::LogRetired { .. }
                | Change::TableRemoved { .. }
                | Change::FileRemoved { .. }
                | Change::RepositoryExtentRemoved { .. }
        )
    }

    /// Returns whether the change is about something in the pool.
    pub(crate) fn is_of_pool(&self) -> bool {
        match self {
            Change::LogCreated { place, .. } => matches!(place, LogPlace::Pool(_)),
            Change::TableAdded(_)
            | Change::TableRemoved { .. }
            | Change::TableMoved { .. }
            | Change::MergeBegun { .. }
            | Change::MergeEnded { .. }
            | Change::RepositoryCreated { .. }
            | Change::RepositoryExtentAdded { .. }
            | Change::RepositoryExtentRemoved { .. } => true,
            // A log in a pool ends and is retired only if the pool survives the process.
            Change::LogEnded { .. }
            | Change::LogRetired { .. }
            | Change::FileAdded(_)
            | Change::FileRemoved { .. }
            | Change::FileMoved { .. }
            | Change::LastSeq { .. }
            | Change::NextId { .. }
            | Change::Totals(_)
            | Change::Time { .. }
            | Change::Closed
            | Change::Created => false,
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
                place: LogPlace::File,
            } => put(out, tag::LOG_IN_FILE, &[*id]),
            Change::LogEnded { id, end } => put(out, tag::LOG_ENDED, &[*id, *end]),
            Change::LogRetired { id } => put(out, tag::LOG_RETIRED, &[*id]),
            Change::TableAdded(table) => table.encode(out),
            Change::TableRemoved { id } => put(out, tag::TABLE_REMOVED, &[*id]),
            Change::TableMoved { id, level } => {
                put(out, tag::TABLE_MOVED, &[*id, u64::from(*level)]);
            }
            Change::MergeBegun { newer, older } => put(out, tag::MERGE_BEGUN, &[*newer, *older]),
            Change::MergeEnded {
                newer,
                older,
                level,
                filter,
                entries,
                bytes,
            } => {
                put(
                    out,
                    tag::MERGE_ENDED,
                    &[*newer, *older, u64::from(*level), *entries, *bytes],
                );
                put_filter(out, *filter);
            }
            Change::RepositoryCreated { head } => {
                put(out, tag::REPOSITORY_CREATED, &[head.off, head.len]);
            }
            Change::RepositoryExtentAdded { span } => {
                put(out, tag::REPOSITORY_EXTENT_ADDED, &[span.off, span.len]);
            }
            Change::RepositoryExtentRemoved { off } => {
                put(out, tag::REPOSITORY_EXTENT_REMOVED, &[*off]);
            }
            Change::FileAdded(file) => file.encode(out),
            Change::FileRemoved { number } => put(out, tag::FILE_REMOVED, &[*number]),
            Change::FileMoved { number, level } => {
                put(out, tag::FILE_MOVED, &[*number, u64::from(*level)]);
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
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Change, DecodeError> {
        let at = r.clone();
        Ok(match r.u8()? {
            tag::LOG_IN_POOL => Change::LogCreated {
                id: id(r)?,
                place: LogPlace::Pool(span(r)?),
            },
            tag::LOG_IN_FILE => Change::LogCreated {
                id: id(r)?,
                place: LogPlace::File,
            },
            tag::LOG_ENDED => Change::LogEnded {
                id: r.varint()?,
                end: amount(r)?,
            },
            tag::LOG_RETIRED => Change::LogRetired { id: r.varint()? },
            tag::TABLE_ADDED => Change::TableAdded(TableMeta::decode(r)?),
            tag::TABLE_REMOVED => Change::TableRemoved { id: r.varint()? },
            tag::TABLE_MOVED => Change::TableMoved {
                id: r.varint()?,
                level: level(r)?,
            },
            tag::MERGE_BEGUN => Change::MergeBegun {
                newer: r.varint()?,
                older: r.varint()?,
            },
            tag::MERGE_ENDED => {
                let (newer, older, level) = (r.varint()?, r.varint()?, level(r)?);
                let (entries, bytes) = (amount(r)?, amount(r)?);
                Change::MergeEnded {
                    newer,
                    older,
                    level,
                    filter: filter(r)?,
                    entries,
                    bytes,
                }
            }
            tag::REPOSITORY_CREATED => Change::RepositoryCreated { head: span(r)? },
            tag::REPOSITORY_EXTENT_ADDED => Change::RepositoryExtentAdded { span: span(r)? },
            tag::REPOSITORY_EXTENT_REMOVED => Change::RepositoryExtentRemoved { off: r.varint()? },
            tag::FILE_ADDED => Change::FileAdded(FileMeta::decode(r)?),
            tag::FILE_REMOVED => Change::FileRemoved {
                number: r.varint()?,
            },
            tag::FILE_MOVED => Change::FileMoved {
                number: r.varint()?,
                level: level(r)?,
            },
            tag::LAST_SEQ => Change::LastSeq { seq: seq(r)? },
            tag::NEXT_ID => Change::NextId { id: id(r)? },
            tag::CLOSED => Change::Closed,
            tag::CREATED => Change::Created,
            tag::TOTALS => Change::Totals(Totals {
                user: r.varint()?,
                pool: r.varint()?,
                log_files: r.varint()?,
                table_files: r.varint()?,
            }),
            tag::TIME => Change::Time { time: r.varint()? },
            other => return Err(at.refuse("the tag of a change", other.to_string())),
        })
    }
}

impl TableMeta {
    fn encode(&self, out: &mut Vec<u8>) {
        let level = u64::from(self.level);
        put(
            out,
            tag::TABLE_ADDED,
            &[self.id, level, self.head, self.entries, self.bytes],
        );
        codec::put_varint(out, self.seq_first);
        codec::put_varint(out, self.seq_last);
        put_filter(out, self.filter);
        codec::put_varint(out, self.extents.len() as u64);
        for extent in &self.extents {
            codec::put_varint(out, extent.span.off);
            codec::put_varint(out, extent.span.len);
            codec::put_varint(out, extent.used);
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<TableMeta, DecodeError> {
        let (id, level, head) = (id(r)?, level(r)?, r.varint()?);
        let (entries, bytes) = (amount(r)?, amount(r)?);
        let (seq_first, seq_last) = (seq(r)?, seq(r)?);
        let filter = filter(r)?;
        let at = r.clone();
        let count = r.varint()?;
        // An extent takes at least three bytes, so the count is checked before it sizes an
        // allocation.
        if count > r.remaining() as u64 / 3 {
            return Err(at.refuse("a count of extents", count.to_string()));
        }
        let mut extents = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let at = r.clone();
            let extent = TableExtent {
                span: span(r)?,
                used: r.varint()?,
            };
            if extent.used > extent.span.len {
                return Err(at.refuse(format!("a use of at most {}", extent.span.len), "more"));
            }
            extents.push(extent);
        }
        Ok(TableMeta {
            id,
            level,
            head,
            extents,
            filter,
            entries,
            bytes,
            seq_first,
            seq_last,
            merging_into: None,
        })
    }
}

impl FileMeta {
    fn encode(&self, out: &mut Vec<u8>) {
        let level = u64::from(self.level);
        put(out, tag::FILE_ADDED, &[self.number, level, self.run]);
        let counts = [self.bytes, self.entries, self.tombstones];
        for number in counts.into_iter().chain([self.seq_first, self.seq_last]) {
            codec::put_varint(out, number);
        }
        put_place(out, &self.first);
        put_place(out, &self.last);
        codec::put_varint(out, self.expiring);
        codec::put_varint(out, self.expiry_last);
        codec::put_varint(out, self.range_deletes);
        if let Some((first, end)) = &self.reach {
            put_place(out, first);
            put_place(out, end);
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<FileMeta, DecodeError> {
        let (number, level, run) = (id(r)?, level(r)?, id(r)?);
        let (bytes, entries, tombstones) = (amount(r)?, amount(r)?, amount(r)?);
        let (seq_first, seq_last) = (seq(r)?, seq(r)?);
        let at = r.clone();
        let first = place(r)?;
        let last = place(r)?;
        if first > last {
            return Err(at.refuse("a first key that is not behind the last", "the reverse"));
        }
        let (expiring, expiry_last) = (amount(r)?, r.varint()?);
        let range_deletes = amount(r)?;
        let mut reach = None;
        if range_deletes > 0 {
            let at = r.clone();
            let (begin, end) = (place(r)?, place(r)?);
            if begin > first || end < last {
                return Err(at.refuse("a reach over the table's keys", "a smaller one"));
            }
            reach = Some((begin, end));
        }
        Ok(FileMeta {
            number,
            level,
            run,
            bytes,
            entries,
            tombstones,
            seq_first,
            seq_last,
            first,
            last,
            range_deletes,
            reach,
            expiring,
            expiry_last,
        })
    }
}

/// Decodes a number that must not exceed `most`.
fn at_most(r: &mut Reader<'_>, most: u64) -> Result<u64, DecodeError> {
    let at = r.clone();
    match r.varint()? {
        number if number > most => Err(at.refuse(format!("at most {most}"), number.to_string())),
        number => Ok(number),
    }
}

/// Decodes the id of something new, with room for later ids.
fn id(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    at_most(r, u64::MAX / 2)
}

fn seq(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    at_most(r, SEQ_MAX)
}

/// Decodes the number of entries or bytes of a table.
fn amount(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    at_most(r, AMOUNT_MAX)
}

/// Decodes a level; readers have a slot for each possible level.
fn level(r: &mut Reader<'_>) -> Result<u32, DecodeError> {
    Ok(at_most(r, LEVEL_MAX)? as u32)
}

fn put_place(out: &mut Vec<u8>, (keyspace, key): &Place) {
    codec::put_varint(out, u64::from(*keyspace));
    codec::put_varint(out, key.len() as u64);
    out.extend_from_slice(key);
}

fn place(r: &mut Reader<'_>) -> Result<Place, DecodeError> {
    let keyspace = r.varint_u32()?;
    let at = r.clone();
    let len = r.varint()?;
    if len > crate::types::KEY_BYTES_MAX as u64 {
        return Err(at.refuse("the length of a key", len.to_string()));
    }
    Ok((keyspace, r.bytes(len as usize)?.to_vec()))
}

fn span(r: &mut Reader<'_>) -> Result<Span, DecodeError> {
    let at = r.clone();
    let span = Span {
        off: r.varint()?,
        len: r.varint()?,
    };
    if span.off == 0 || span.len == 0 || span.off.checked_add(span.len).is_none() {
        return Err(at.refuse(
            "an extent",
            format!("offset {}, length {}", span.off, span.len),
        ));
    }
    Ok(span)
}

fn filter(r: &mut Reader<'_>) -> Result<Option<Span>, DecodeError> {
    let at = r.clone();
    if r.varint()? == 0 {
        return Ok(None);
    }
    *r = at;
    span(r).map(Some)
}
