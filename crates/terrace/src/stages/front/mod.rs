//! Front contract: the stage in which a write becomes durable and readable.
//!
//! | front | durable by | readable in | paper |
//! |---|---|---|---|
//! | `wal_memtable` | a log record in the pool or a file | a DRAM skip list or B+-tree | MioDB, 4.1 and 4.7 |

pub(crate) mod wal_memtable;

use parking_lot::MutexGuard;

use crate::error::Result;
use crate::metrics::Metrics;
use crate::parts::batch::Batch;
use crate::parts::sequence::{Reservation, Sequencer};
use crate::types::{Durability, SeqNo};

use super::job::Job;
use super::replay::Replay;
use super::sealed::Sealed;
use super::source::Sources;
use super::spare::Spares;

/// The outcome of a write to a front.
pub(crate) enum Written<'f> {
    /// To be published.
    Pending(Pending<'f>),
    /// The memtable with this id is too full; a new one is needed first.
    NeedsRoom(u64),
    /// A keyspace was dropped since the keyspaces of the batch were checked.
    KeyspaceDropped,
}

/// A write that is in its log and in its memtable, and that becomes visible when it is published.
///
/// If it is dropped before, the store stops: no later number could become visible.
pub(crate) struct Pending<'f> {
    sequencer: &'f Sequencer,
    reservation: Reservation,
    /// The memtable that has it.
    pub(crate) memtable: u64,
    /// Whether the memtable has just filled so far that a spare should be made.
    pub(crate) spare_due: bool,
    /// Whether it deletes ranges. Readers see these through a view that has them, so a new view
    /// comes first (D1).
    pub(crate) needs_view: bool,
    is_published: bool,
}

impl<'f> Pending<'f> {
    /// Creates the write that has these numbers.
    pub(crate) fn new(
        sequencer: &'f Sequencer,
        reservation: Reservation,
        memtable: u64,
    ) -> Pending<'f> {
        Pending {
            sequencer,
            reservation,
            memtable,
            spare_due: false,
            needs_view: false,
            is_published: false,
        }
    }

    /// Makes the write visible when all before it are. Returns false if one of these has failed.
    pub(crate) fn publish(mut self) -> bool {
        self.is_published = true;
        // PERSIST: the record is in its log since the front took the write (W3).
        self.sequencer.publish(&self.reservation)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.is_published {
            self.sequencer.break_off();
        }
    }
}

/// While it lives no write takes a number.
pub(crate) struct WritersHeld<'f> {
    pub(super) _lock: MutexGuard<'f, ()>,
}

/// The outcome of replacing a memtable.
pub(crate) enum Rotated<'f> {
    /// There is no spare, or it is too small; without spares, no space.
    NoSpare,
    /// The memtable has been replaced before, or is empty.
    Unneeded,
    /// It is sealed. The view must show its successor before any write goes to that.
    Sealed(WritersHeld<'f>),
}

/// The deletes of a memtable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deletes {
    None,
    /// Deletes of single keys.
    Single,
    /// Deletes of ranges, or the memtable takes nothing but deletes.
    Ranges,
}

/// Sizes of a front that other stages and the engine use. They never change while the database is
/// open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrontShape {
    /// The bytes of a memtable of the usual size.
    pub(crate) memtable_bytes: u64,
    /// The maximum number of sealed memtables that wait for their flush.
    pub(crate) sealed_count_max: usize,
    /// The bytes of log files that may be needed at one time.
    pub(crate) log_bytes_max: u64,
    /// The maximum bytes of entries in one batch.
    pub(crate) batch_bytes_max: u64,
}

/// Stage 1: makes writes durable and readable.
pub(crate) trait Front: Send + Sync {
    /// Returns the sizes of the front.
    fn shape(&self) -> FrontShape;
    /// Takes one batch, if no keyspace was refused since `refusals`.
    fn write(
        &self,
        batch: &mut Batch,
        durability: Durability,
        refusals: u64,
    ) -> Result<Written<'_>>;
    /// Makes a write visible, and then durable as requested.
    fn publish(&self, pending: Pending<'_>, durability: Durability) -> Result<()>;
    /// Replaces the memtable by the spare one. The batch that did not fit comes with the memtable
    /// that it did not fit in: if that has been replaced already there is nothing to do.
    fn rotate(&self, full: Option<(&Batch, u64)>) -> Result<Rotated<'_>>;
    /// Holds off every write that would take a number.
    fn hold_off_writers(&self) -> WritersHeld<'_>;
    /// Takes every number up to `upto` for entries that come in below the front, and returns the
    /// first of them; they become visible when the caller publishes them. Before that it replaces
    /// the memtable, as `rotate` does, so that the active one has no entry below `upto`. Returns
    /// `None`, with nothing taken, if there is no spare for that. The view must show the memtable
    /// before any write goes to it.
    fn reserve(&self, upto: SeqNo) -> Result<Option<(Reservation, WritersHeld<'_>)>>;
    /// Returns the deletes in the active memtable, which free nothing before it is flushed.
    fn active_deletes(&self) -> Deletes;
    /// Returns whether at least half of the entries in all memtables are deletes.
    fn has_mostly_deletes(&self) -> bool;
    /// Returns whether the active memtable has an entry below `seq`.
    fn has_active_before(&self, seq: SeqNo) -> bool;
    /// Returns whether a sealed memtable has an entry below `seq`.
    fn has_sealed_before(&self, seq: SeqNo) -> bool;
    /// Returns work inside the front that makes writers faster, when there is no other work.
    fn next_job(&self) -> Option<Box<dyn Job>> {
        None
    }
    /// Returns the memtables made ahead of need; `None` for a front whose `rotate` makes them.
    fn spares(&self) -> Option<&dyn Spares> {
        None
    }
    /// Returns the oldest sealed memtable that no flush has taken yet.
    fn next_sealed(&self) -> Result<Option<Sealed>>;
    /// Returns the number of sealed memtables that wait for the end of their flush.
    fn sealed_count(&self) -> usize;
    /// Returns the bytes in use in all memtables: the active one and those that wait for the end of
    /// their flush.
    fn unflushed_bytes(&self) -> u64;
    /// Returns whether closing should flush the active memtable: it has entries that no log has, or
    /// so many that replaying them would slow the next opening.
    fn wants_flush_to_close(&self) -> bool;
    /// Makes all logs durable. Returns the number up to which they contain every logged entry.
    fn sync_logs(&self) -> Result<SeqNo>;
    /// Logs all writes from now on, in every mode. Earlier ones have their numbers on return.
    fn log_all(&self);
    /// Takes no more writes, waits for those in flight, and makes the logs durable. Returns those
    /// that have no record.
    fn close(&self) -> Result<Vec<u64>>;
    /// Returns the bytes of log files that are needed.
    fn log_file_bytes(&self) -> u64;
    /// Notes that these logs are not needed any more, and no edit names them: their places may be
    /// reused.
    fn logs_retired(&self, logs: &[u64]);
    /// Frees the files that are kept for future logs, since there are no writers now.
    fn rest(&self);
    /// Returns the logs that recovery has found; `None` for a front that recovers in place.
    fn replay(&self) -> Option<&dyn Replay> {
        None
    }
    /// Returns the sources, newest first.
    fn sources(&self) -> Sources;
    /// Adds the metrics of the front.
    fn measure(&self, metrics: &mut Metrics);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers after a hole never become visible, so a write that is lost on its way must end all
    /// writing.
    #[test]
    fn a_write_that_is_never_published_stops_the_store() {
        let sequencer = Sequencer::default();
        assert!(Pending::new(&sequencer, sequencer.take(2), 0).publish());
        let lost = Pending::new(&sequencer, sequencer.take(1), 0);
        let next = Pending::new(&sequencer, sequencer.take(1), 0);
        drop(lost);
        assert!(!next.publish());
        assert_eq!(sequencer.visible(), 2);
    }
}
