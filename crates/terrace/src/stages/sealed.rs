//! Flush hand-over: a sealed memtable on its way from the front to the buffer, or to the bottom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_media::{Extent, Region};

use crate::error::Result;
use crate::parts::iter::{Cursor, MergeCursor};
use crate::parts::manifest::{Change, Edit};
use crate::parts::ranges::LateKeys;
use crate::types::SeqNo;

use super::drain::{Credits, Drain, EntryCount};

/// A memtable that is no longer written, on its way to the buffer.
pub(crate) struct SealedTable {
    pub(crate) id: u64,
    /// The table's bytes in DRAM, by the offsets that they will have in the pool.
    pub(crate) image: Region,
    /// The image is in the extent already: where the pool is memory, it is where writers put it.
    pub(crate) in_place: bool,
    /// Where the bytes go; their first offset is the extent's.
    pub(crate) extent: Arc<Extent>,
    pub(crate) used: u64,
    pub(crate) entries: u64,
    pub(crate) seq_first: SeqNo,
    pub(crate) seq_last: SeqNo,
    /// Keys written into ranges after they were deleted in the same memtable.
    pub(crate) late: Option<Arc<LateKeys>>,
    /// The logs that have its entries, needed until those are durable elsewhere.
    pub(crate) logs: Vec<u64>,
    /// Whether anybody still reads the memtable as such.
    pub(crate) readers: Arc<Readers>,
    /// Waits until every entry is in place. Returns whether each is durable by a log that is synced.
    pub(crate) settle: Box<dyn FnOnce() -> Result<bool> + Send>,
    /// Lets the front forget the memtable, once the buffer shows the table.
    pub(crate) forget: Box<dyn FnOnce() + Send>,
    /// A cursor off the memtable, for designs without a buffer.
    pub(crate) cursor: Box<dyn Cursor>,
}

impl SealedTable {
    /// The memtable as a drain, for designs without a buffer. What it has of `credits` is how much of the
    /// memtable is written.
    pub(crate) fn into_drain(self, credits: &Credits) -> Drain {
        let credit = credits.open(self.used, self.entries);
        let SealedTable {
            logs,
            settle,
            forget,
            cursor,
            seq_last,
            ..
        } = self;
        Drain {
            settle: Some(settle),
            cursor: MergeCursor::new(vec![cursor]),
            newer: None,
            seq_last,
            // What of it is applied becomes durable by the edit that applies it.
            durable: seq_last,
            edit: Edit {
                changes: vec![Change::LastSeq { seq: seq_last }],
            },
            logs,
            credit,
            put_back: None,
            count: EntryCount::default(),
            forget,
        }
    }
}

/// Whether a memtable has readers left: views that were made before it became a table. Where the table
/// is the same memory, its links must stay as those readers know them until then.
#[derive(Default)]
pub(crate) struct Readers(AtomicBool);

impl Readers {
    /// Nobody reads the memtable any more, or ever will.
    pub(crate) fn leave(&self) {
        // Release: pairs with the load, so that their last reads come before the first relink.
        self.0.store(true, Ordering::Release);
    }

    /// Whether the last has left.
    pub(crate) fn are_gone(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The changes that retire these logs.
pub(crate) fn retired(logs: &[u64]) -> impl Iterator<Item = Change> + '_ {
    logs.iter().map(|&id| Change::LogRetired { id })
}
