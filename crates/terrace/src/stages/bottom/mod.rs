//! Bottom contract: the last stage, which holds cold data.
//!
//! | bottom | form | new versions | space | paper |
//! |---|---|---|---|---|
//! | `repository` | one skip list in the pool | are appended, old ones unlinked | extents emptied when half dead | MioDB, 4.4 |
//! | `leveled` | runs and levels of table files | supersede old ones in levels below | compaction rewrites levels | LevelDB |
//! | `none` | nothing | stay in the buffer | depends on the buffer | |

pub(crate) mod leveled;
#[cfg(feature = "test-design")]
pub(crate) mod none;
pub(crate) mod repository;

use std::sync::Arc;

use crate::error::Result;
use crate::metrics::Metrics;
use crate::parts::expiry::Millis;
use crate::parts::ranges::{Fragments, RangeSet};
use crate::types::SeqNo;

use super::column::Columns;
use super::drain::Drain;
use super::job::{Completion, Job};
use super::need::{Need, Urgency};
use super::source::Sources;

/// Sorted entries on their way into a bottom, bypassing the stages above. They are invisible until
/// the completion is applied; dropping the ingest_writer earlier removes them.
pub(crate) trait IngestWriter: Send {
    /// Takes the next put, with its expiry or 0; keys ascend.
    fn add(&mut self, keyspace: u32, key: &[u8], value: &[u8], expiry: Millis) -> Result<()>;
    /// Makes all entries durable, without naming their files.
    fn close(&mut self) -> Result<()>;
    /// Returns the change that adds the entries to the bottom, newer than all data there at this
    /// moment.
    fn complete(self: Box<Self>) -> Completion;
    /// Leaves all files in place, for the process that has the database open.
    fn leave(&mut self);
}

/// A range of keys that a caller wants as deep in the bottom as possible.
#[derive(Debug)]
pub(crate) struct RangeRequest {
    /// Keyspace and key of the first and of the last entry; neither needs to exist.
    pub(crate) first: (u32, Vec<u8>),
    pub(crate) last: (u32, Vec<u8>),
    /// Entries above this number need not move.
    pub(crate) seq: SeqNo,
    /// Tables with this number and above need not move either: they were written since.
    pub(crate) id: u64,
}

/// The input that a bottom takes from the stage above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Nothing: the buffer keeps all data.
    Nothing,
    /// Whole tables, whose entries are newer than the contents of the bottom.
    Tables,
    /// Whole tables, or ranges of their keys, one after another. Of each key, the entries are newer
    /// than those in the bottom.
    Ranges,
}

/// Stage 3: holds cold data.
pub(crate) trait Bottom: Send + Sync {
    /// Returns the input that the bottom takes, which never changes.
    fn takes(&self) -> Takes;
    /// Returns the choice of ranges of keys, if drains are merged with the first level.
    fn columns(&self) -> Option<&dyn Columns> {
        None
    }
    /// Returns the maximum bytes of one drain, which bounds the space that a drain needs or keeps
    /// in the pool until it ends.
    fn drain_bytes_max(&self) -> u64;
    /// Returns the maximum bytes of the next drain, which may have less space.
    fn drain_bytes_now(&self) -> u64 {
        self.drain_bytes_max()
    }
    /// Takes a drain.
    fn drain_job(&self, drain: Drain) -> Result<Box<dyn Job>>;
    /// Returns whether a drain can make space though the bottom accepts none for now, by rewriting
    /// tables without the entries that the buffer hides, whose newest number is `newest`. True once
    /// for each number, and while tables are left to be rewritten.
    fn makes_room_by(&self, _newest: SeqNo) -> bool {
        false
    }
    /// Begins an ingest_writer of sorted entries that bypass the stages above, with the number
    /// `seq`. Returns `None` if this bottom cannot make them visible at once.
    fn ingest_writer(&self, seq: SeqNo) -> Option<Box<dyn IngestWriter>>;
    /// Returns work inside the bottom: collecting garbage.
    fn next_job(&self, urgency: Urgency) -> Result<Option<Box<dyn Job>>>;
    /// Returns whether a drain waits for a longer piece of the pool than any free one, though as
    /// much is free in total.
    fn awaits_piece(&self) -> bool {
        false
    }
    /// Returns work that moves data to join free space of the pool that is in pieces. For use when
    /// `next_job` finds nothing that frees space, and writers or drains need a longer piece than
    /// there is.
    fn join_space(&self) -> Result<Option<Box<dyn Job>>> {
        Ok(None)
    }
    /// Makes `next_job` return the work that moves the range down, while the request lives.
    fn compact_range(&self, request: &Arc<RangeRequest>);
    /// Returns whether nothing is left to do for a request.
    fn is_compacted(&self, request: &RangeRequest) -> bool;
    /// Returns whether everything that came down is in its final place: nothing has to be moved
    /// before readers find it correctly.
    fn is_drained(&self) -> bool;
    /// Returns whether drained data leaves the pool, so that a drain needs no space there.
    fn is_outside_pool(&self) -> bool;
    /// Returns how far the bottom is behind with its own work.
    fn need(&self) -> Need;
    /// Returns whether range deletes that have not come down cover a whole unit of its data, which
    /// could go if they were durable.
    fn is_covered(&self, _: &RangeSet) -> bool {
        false
    }
    /// Returns the range deletes that it holds and whose keys may still be there; `None` if there
    /// are none.
    fn ranges(&self) -> Option<Arc<Fragments>>;
    /// Returns the sources, newest first.
    fn sources(&self) -> Sources;
    /// Adds the metrics of the bottom.
    fn measure(&self, metrics: &mut Metrics);
}
