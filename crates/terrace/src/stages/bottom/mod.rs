//! Bottom contract: the stage that is the home of cold data.
//!
//! | bottom | form | new versions | space | paper |
//! |---|---|---|---|---|
//! | `repository` | one skip list in the pool | replace old ones in place | extents emptied when half dead | MioDB, 4.4 |
//! | `leveled` | runs and levels of table files | supersede old ones in levels below | compaction rewrites levels | LevelDB |
//! | `none` | nothing | stay in the buffer | is what the buffer makes of it | |

pub(crate) mod leveled;
#[cfg(feature = "test-design")]
pub(crate) mod none;
pub(crate) mod repository;

use std::sync::Arc;

use crate::error::Result;
use crate::metrics::Metrics;
use crate::parts::expiry::Millis;
use crate::parts::ranges::{RangeSet, Spans};
use crate::types::SeqNo;

use super::drain::Drain;
use super::job::{Completion, Job};
use super::need::{Pressure, Urgency};
use super::source::Sources;

/// Sorted entries on their way into a bottom, past the stages above. Nobody sees any of them before the
/// completion is applied; dropped before, they leave nothing.
pub(crate) trait Intake: Send {
    /// Takes the next put, with its expiry or 0; keys ascend.
    fn add(&mut self, keyspace: u32, key: &[u8], value: &[u8], expiry: Millis) -> Result<()>;
    /// Makes all that was taken durable, without a name.
    fn close(&mut self) -> Result<()>;
    /// The change that makes it part of the bottom, newer than all that is there at this moment.
    fn complete(self: Box<Self>) -> Completion;
    /// Leaves every file where it is, for the process that has the database open.
    fn leave(&mut self);
}

/// A range of keys that somebody wants as deep in the bottom as it can be.
#[derive(Debug)]
pub(crate) struct RangeRequest {
    /// Keyspace and key of the first and of the last entry; both may be there or not.
    pub(crate) first: (u32, Vec<u8>),
    pub(crate) last: (u32, Vec<u8>),
    /// Entries above this number need not move.
    pub(crate) seq: SeqNo,
    /// Tables with this number and above need not move either: they were written since.
    pub(crate) id: u64,
}

/// The things that a bottom takes from the stage above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Nothing: the buffer keeps all data.
    Nothing,
    /// Runs of sorted entries, all of them newer than what it has.
    Runs,
}

/// Stage 3: the home of cold data.
pub(crate) trait Bottom: Send + Sync {
    /// Returns what it takes, which never changes.
    fn takes(&self) -> Takes {
        Takes::Runs
    }
    /// Bytes that one drain should have at most, so that what it needs or keeps of the pool until it
    /// ends is bounded.
    fn drain_bytes_max(&self) -> u64;
    /// The same for the next drain, which may have less room.
    fn drain_bytes_now(&self) -> u64 {
        self.drain_bytes_max()
    }
    /// Takes a drain.
    fn absorb(&self, drain: Drain) -> Result<Box<dyn Job>>;
    /// Whether a drain can make room though the bottom takes none for now, by rewriting tables without what the buffer
    /// hides, whose newest number is `newest`. True once for each number, and while tables are left to be rewritten.
    fn makes_room_by(&self, _newest: SeqNo) -> bool {
        false
    }
    /// Begins to take sorted entries that come in past the stages above, with the number `seq`. `None`:
    /// this bottom cannot take them so that they appear at once.
    fn intake(&self, seq: SeqNo) -> Option<Box<dyn Intake>>;
    /// Work inside the bottom: giving garbage back.
    fn next_job(&self, urgency: Urgency) -> Result<Option<Box<dyn Job>>>;
    /// Whether a drain waits for a longer piece of the pool than any that is free, though as much is free in all.
    fn awaits_piece(&self) -> bool {
        false
    }
    /// Work that moves data so that free space of the pool, which lies in pieces, comes together. For when `next_job`
    /// finds nothing that frees space, and writers or drains need a longer piece than there is.
    fn join_space(&self) -> Result<Option<Box<dyn Job>>> {
        Ok(None)
    }
    /// From now on `next_job` finds what moves the range down, for as long as the request lives.
    fn compact_range(&self, request: &Arc<RangeRequest>);
    /// Whether nothing is left to do for a request.
    fn is_compacted(&self, request: &RangeRequest) -> bool;
    /// Whether everything that came down is where it belongs: nothing waits to be moved on before
    /// readers find it as they should.
    fn is_drained(&self) -> bool;
    /// Whether what comes down leaves the pool, so that a drain needs no room there.
    fn is_outside_pool(&self) -> bool;
    /// How far it is behind with its own work.
    fn pressure(&self) -> Pressure;
    /// How near it is to pressure: at 0 its work may take its time, at 1 writers are about to be
    /// slowed.
    fn haste(&self) -> f64;
    /// Whether range deletes that have not come down cover something of it whole, so that it could go if
    /// they were durable.
    fn is_covered(&self, _: &RangeSet) -> bool {
        false
    }
    /// The range deletes that it holds and whose keys may still be there; `None` without any.
    fn ranges(&self) -> Option<Arc<Spans>>;
    /// Newest first.
    fn sources(&self) -> Sources;
    /// Adds what the bottom knows.
    fn measure(&self, metrics: &mut Metrics);
}
