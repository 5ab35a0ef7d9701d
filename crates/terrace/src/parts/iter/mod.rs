//! Cursors: one way to walk any sorted source, and the merge of several.
//!
//! A cursor is *held* while a chunk of entries is taken from it and *released* between chunks. Held,
//! its source does not move nodes; released, it may, and the next hold says whether the position
//! is still good.

mod list;
mod merge;

#[cfg(test)]
mod tests;

use crate::error::Result;
use crate::parts::expiry::Value;
use crate::parts::key::Target;
use crate::parts::ranges::Newer;
use crate::types::SeqNo;

pub(crate) use list::ListCursor;
pub(crate) use merge::MergeCursor;

/// One entry under a cursor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryView<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) seq: SeqNo,
    /// `Put` for a value that expires, too.
    pub(crate) kind: u8,
}

impl<'a> EntryView<'a> {
    /// The entry's place in the sort order.
    pub(crate) fn target(&self) -> Target<'a> {
        Target {
            keyspace: self.keyspace,
            key: self.key,
            seq: self.seq,
        }
    }
}

/// A position in one sorted source.
pub(crate) trait Cursor: Send {
    /// Holds the source still until [`release`](Cursor::release). False: entries have moved since
    /// the last release, and the cursor must seek before it is read.
    fn hold(&mut self) -> bool;
    /// Lets the source move entries again.
    fn release(&mut self);
    /// Goes to the first entry not before `target`.
    fn seek(&mut self, target: &Target<'_>) -> Result<()>;
    /// Begins to go there. False: [`step_seek`](Cursor::step_seek) has to be called for that target until it
    /// says true, and nothing else before. Several cursors that take steps by turns wait for memory together.
    fn begin_seek(&mut self, target: &Target<'_>) -> Result<bool> {
        self.seek(target)?;
        Ok(true)
    }
    /// Goes on; whether the cursor is there.
    fn step_seek(&mut self, _target: &Target<'_>) -> Result<bool> {
        Ok(true)
    }
    /// Goes to an entry before `target`, some entries before it, about three times as many for each
    /// step of `breadth`; off the source when
    /// there are not so many.
    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()>;
    /// Goes to the next entry.
    fn advance(&mut self) -> Result<()>;
    /// The first key, or the `last`, between two places of one keyspace that may have a version newer than
    /// `than`. Cheap: it is asked where a range delete with that number covers the stretch.
    fn newer(&self, from: &Target<'_>, to: &Target<'_>, than: SeqNo, last: bool) -> Newer;
    /// The entry under the cursor, `None` off the source.
    fn entry(&self) -> Result<Option<EntryView<'_>>>;
    /// The value of the entry under the cursor and when it expires, its checksum found right; empty off the source.
    fn value(&self) -> Result<Value<'_>>;
}
