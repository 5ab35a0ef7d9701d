//! Flush hand-over: a sealed memtable on its way from the front to the buffer, or to the bottom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_media::{Extent, Region};

use crate::error::Result;
use crate::parts::batch::Batch;
use crate::parts::expiry::Value;
use crate::parts::iter::{Cursor, EntryView, MergeCursor};
use crate::parts::key::KeyRange;
use crate::parts::manifest::{Change, Edit};
use crate::parts::ranges::LateKeys;
use crate::types::SeqNo;

use super::drain::{Drain, EntryCount, PendingFrees};
use super::job::Completion;
use super::source::Source;

/// A memtable that is no longer written, on its way to the next stage.
pub(crate) struct Sealed {
    pub(crate) id: u64,
    pub(crate) entries: u64,
    /// The bytes of the entries in the front, with all that it stores for each.
    pub(crate) bytes: u64,
    pub(crate) seq_first: SeqNo,
    pub(crate) seq_last: SeqNo,
    /// Keys written into ranges after they were deleted in the same memtable.
    pub(crate) late: Option<Arc<LateKeys>>,
    /// The logs that have its entries, needed until those are durable elsewhere.
    pub(crate) logs: Vec<u64>,
    /// Creates a cursor over its entries, after `finish`.
    pub(crate) open: Box<dyn Fn() -> Box<dyn Cursor> + Send + Sync>,
    pub(crate) form: Form,
    /// Waits until every entry is in place. Returns whether each is durable by a log that is
    /// synced.
    pub(crate) finish: Box<dyn FnOnce() -> Result<bool> + Send>,
    /// Lets the front forget the memtable, once the next stage shows its entries.
    pub(crate) forget: Box<dyn FnOnce() + Send>,
}

/// The form in which the next stage can take over a sealed memtable without reading its entries. A
/// stage that has no use for a form opens a cursor.
pub(crate) enum Form {
    Entries,
    List(ListImage),
    /// The memtable itself, which the front need not keep. It depends on its logs for as long as
    /// the next stage has it.
    Source(Arc<dyn Source>),
}

/// The bytes of a skip list that will be in the pool.
pub(crate) struct ListImage {
    /// The bytes, at the offsets that they will have in the pool.
    pub(crate) region: Region,
    /// The extent that they are for, which begins at their first offset. Unless they are in it
    /// already, a stage may store another form of the entries there, if that is no longer.
    pub(crate) extent: Arc<Extent>,
    /// Whether they are in the extent already: if the pool is memory, writers put them there.
    pub(crate) in_place: bool,
    /// Whether the list still has readers as a memtable.
    pub(crate) readers: Arc<Readers>,
}

impl Sealed {
    /// Ends the flush of a memtable without entries, sealed to make way for a batch that needed its
    /// own: only its logs are retired. A table of it would have no place in the order of age.
    pub(crate) fn into_nothing(self) -> Completion {
        Completion {
            edit: Edit {
                changes: retired(&self.logs).collect(),
            },
            apply: self.forget,
            garbage: Vec::new(),
            entries: 0,
        }
    }

    /// Converts the memtable to a drain, for designs without a buffer. Its share of `pending_frees`
    /// is the written part of the memtable.
    pub(crate) fn into_drain(self, pending_frees: &PendingFrees) -> Drain {
        let pending_free = pending_frees.open(self.bytes, self.entries);
        let seq_last = self.seq_last;
        Drain {
            prepare: Some(self.finish),
            cursor: MergeCursor::new(vec![(self.open)()]),
            keys: KeyRange::default(),
            settles: true,
            newer: None,
            seq_last,
            // The applied range deletes become durable by the edit that applies them.
            durable: seq_last,
            edit: Edit::of(Change::LastSeq { seq: seq_last }),
            logs: self.logs,
            pending_free,
            put_back: None,
            count: EntryCount::default(),
            forget: self.forget,
            parts: None,
        }
    }
}

/// Makes sealed memtables of entries that no writer has written.
pub(crate) trait SealApart: Send + Sync {
    /// Makes one of the entries of `batch`, whose keys ascend, all with the number `seq`. Its log
    /// is durable, and named by the changes that are returned.
    fn seal_apart(&self, batch: &Batch, seq: SeqNo) -> Result<(Sealed, Vec<Change>)>;
    /// Returns whether memtables have their values in logs, so that a new log of fewer entries
    /// takes less space.
    fn can_rewrite(&self) -> bool;
    /// Returns the bytes that an entry takes, if it is added to such a memtable.
    fn entry_bytes(&self, entry: &EntryView<'_>, value: &Value<'_>) -> ApartBytes;
    /// Begins a memtable of entries that are in other tables of the buffer. Returns `None` if there
    /// is no space for it that writers can do without.
    fn rewrite(&self, bytes: ApartBytes) -> Result<Option<Box<dyn RewriteApart>>>;
}

/// A sealed memtable that is being made of entries in other tables.
pub(crate) trait RewriteApart: Send {
    /// Adds an entry. Its number is not below that of the last one.
    fn add(&mut self, entry: &EntryView<'_>, value: &Value<'_>) -> Result<()>;
    /// Ends a step: syncs the entries so far.
    fn sync(&mut self) -> Result<()>;
    /// Ends it. Its log is durable, and named by the changes that are returned.
    fn finish(self: Box<Self>) -> Result<(Sealed, Vec<Change>)>;
}

/// The bytes of entries in a log, and of their nodes in its index.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ApartBytes {
    pub(crate) log: u64,
    pub(crate) nodes: u64,
    pub(crate) entries: u64,
}

/// Whether a memtable has readers left: views that were made before it became a table. If the table
/// is the same memory, its links must not change before they have left.
#[derive(Default)]
pub(crate) struct Readers(AtomicBool);

impl Readers {
    /// Notes that the memtable has no readers any more, and will have none.
    pub(crate) fn leave(&self) {
        // Release: pairs with the load, so that their last reads come before the first relink.
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether the last reader has left.
    pub(crate) fn are_gone(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Returns the changes that retire these logs.
pub(crate) fn retired(logs: &[u64]) -> impl Iterator<Item = Change> + '_ {
    logs.iter().map(|&id| Change::LogRetired { id })
}
