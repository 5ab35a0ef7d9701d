//! Cursors: the interface to walk any sorted source, and the merge of several cursors.
//!
//! A cursor is *held* while a chunk of entries is read from it and *released* between chunks. While
//! held, its source does not move nodes. While released, the source may, and the next hold reports
//! whether the position is still valid.

mod list;
mod merge;
mod tree;

#[cfg(test)]
mod tests;

use crate::error::Result;
use crate::parts::expiry::{Millis, Value};
use crate::parts::key::Target;
use crate::parts::ranges::Newer;
use crate::parts::values::Pointer;
use crate::types::SeqNo;

pub(crate) use list::ListCursor;
pub(crate) use merge::MergeCursor;
pub(crate) use tree::TreeCursor;

/// The entry that a cursor is at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryView<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) seq: SeqNo,
    /// `Put` also for a value that expires.
    pub(crate) kind: u8,
}

impl<'a> EntryView<'a> {
    /// Returns the entry's place in the sort order.
    pub(crate) fn target(&self) -> Target<'a> {
        Target {
            keyspace: self.keyspace,
            key: self.key,
            seq: self.seq,
        }
    }
}

/// The value of an entry as its source stores it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stored<'a> {
    /// With the entry.
    Inline(Value<'a>),
    /// In a value file, with its expiry.
    Apart(Pointer, Millis),
}

/// A position in one sorted source.
pub(crate) trait Cursor: Send {
    /// Prevents the source from moving entries until [`release`](Cursor::release). Returns false if
    /// entries have moved since the last release; the cursor must then seek before it is read.
    fn hold(&mut self) -> bool;
    /// Allows the source to move entries again.
    fn release(&mut self);
    /// Moves to the first entry at or after `target`.
    fn seek(&mut self, target: &Target<'_>) -> Result<()>;
    /// Begins a seek to `target`. If this returns false, [`step_seek`](Cursor::step_seek) must be
    /// called for the same target, and nothing else, until it returns true. Interleaving the steps
    /// of several cursors overlaps their cache misses.
    fn begin_seek(&mut self, target: &Target<'_>) -> Result<bool> {
        self.seek(target)?;
        Ok(true)
    }
    /// Continues the seek and returns whether it is complete.
    fn step_seek(&mut self, _target: &Target<'_>) -> Result<bool> {
        Ok(true)
    }
    /// Moves to an entry some entries before `target`, about three times as many for each step of
    /// `breadth`. Leaves the cursor unpositioned if there are not that many.
    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()>;
    /// Moves to the next entry.
    fn advance(&mut self) -> Result<()>;
    /// Returns the first key, or the last if `last`, between two places of one keyspace that may
    /// have a version newer than `than`. Must be cheap: it is called wherever a range delete with
    /// that number covers the stretch.
    fn newer(&self, from: &Target<'_>, to: &Target<'_>, than: SeqNo, last: bool) -> Newer;
    /// Returns the current entry, or `None` if the cursor is unpositioned.
    fn entry(&self) -> Result<Option<EntryView<'_>>>;
    /// Returns the value of the current entry and its expiry, after verifying its checksum. Empty
    /// if the cursor is unpositioned. A source that stores values apart reads the value only here.
    fn value(&self) -> Result<Value<'_>>;
    /// Returns the same for a job that can move an entry without its value.
    fn stored(&self) -> Result<Stored<'_>> {
        self.value().map(Stored::Inline)
    }
}
