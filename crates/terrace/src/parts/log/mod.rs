//! Log: what makes a write durable before its table is, in the pool or in a file.
//!
//! A record is one batch, whole or absent. Places are reserved one after the other and written in
//! parallel; each record is one copy of one finished piece. Replay stops where a crash stopped the
//! log, and tells that place from damage: every record says how far the log was settled when its
//! place was reserved, so a bad record that a later one calls settled is damage, and is reported.
//!
//! Invariants
//!   L1  Places are reserved in order and without gaps; a record fills its place exactly.
//!   L2  A log id is never reused, so bytes of an earlier user of the place are no record.
//!   L3  What is settled survives every crash that the medium promises to survive: on `Dax` what
//!       has been fenced, elsewhere what has been synced, up to the first place not yet written.
//!   L4  After a failed append or sync every later one fails: nothing may be assumed any more.
//!
//! The last records have none behind them that could call them settled. A log that takes no more gets a
//! *seal*: a record without entries, behind all others, written when they are durable. And the manifest
//! is told where it ends: a log that was cut off, or is an older copy of itself, is whole in itself.
//!
//! A record is recovered only if all before it are, so its writer may be told that it is durable
//! only after the writers of all earlier records. Bytes: layout.rs. Any thread may append; `reserve`
//! is called by one thread at a time.

#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod file;
pub(crate) mod layout;
mod pool;
mod record;
mod replay;
pub(crate) mod salvage;
mod settle;
mod sync;
#[cfg(test)]
mod tests;

pub(crate) use file::FileLog;
pub(crate) use pool::PoolLog;
pub(crate) use record::{LogEntry, Payload, RecordView, record_bytes};
pub(crate) use replay::{LogOf, replay_file, replay_pool};

use std::io;

/// The place of one record, reserved and to be filled by `Log::place`.
///
/// A slot that is dropped leaves a hole at which replay will end.
#[derive(Debug)]
#[must_use = "a place that is never written ends the replay"]
pub(crate) struct Slot {
    /// Where the record begins.
    at: u64,
    /// Bytes of the record, a multiple of 64.
    bytes: u64,
    /// Units of 64 bytes right before it that were not settled when it was reserved.
    unsettled: u32,
    ticket: settle::Ticket,
}

impl Slot {
    /// Bytes that the record takes in the log.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A record that lies in its place and is not settled yet.
#[derive(Debug)]
#[must_use = "a record that is never settled holds up all after it"]
pub(crate) struct Placed {
    ticket: settle::Ticket,
    end: u64,
}

/// A log that takes records.
pub(crate) trait Log: Send + Sync {
    /// Reserves the place of the next record; `None` when it does not fit. Calls must not overlap.
    fn reserve(&self, payload_bytes: usize) -> Option<Slot>;

    /// Copies the record into its place. It may be on its way to the medium still: what its writer
    /// does before `settle` costs less.
    ///
    /// # Panics
    ///
    /// If the payload is not of the size that the slot was reserved for.
    fn place(&self, slot: Slot, first_seq: u64, payload: &mut Payload) -> io::Result<Placed>;

    /// Waits for the record: on `Dax` it is durable on return, elsewhere after `sync`.
    fn settle(&self, placed: Placed);

    /// Places a record and settles it.
    #[cfg(test)]
    fn append(&self, slot: Slot, first_seq: u64, payload: &mut Payload) -> io::Result<()> {
        self.settle(self.place(slot, first_seq, payload)?);
        Ok(())
    }

    /// Makes everything appended before the call durable. Concurrent callers share one sync.
    fn sync(&self) -> io::Result<()>;

    /// Whether everything appended is durable, when nothing is being appended.
    fn is_synced(&self) -> bool;

    /// Where the last record ends, if everything that was reserved is written and durable. Of a log that takes
    /// no more records this stays, and the manifest may be told.
    fn durable_end(&self) -> Option<u64>;

    /// Bytes reserved so far, header included.
    fn bytes(&self) -> u64;

    /// Whether `prefault` has something to do.
    fn is_cold(&self) -> bool {
        false
    }

    /// Takes memory for `len` bytes at a position, which whoever writes there first would have to wait for.
    /// For speed only.
    fn prefault(&self, at: u64, len: u64) {
        let _ = (at, len);
    }

    /// Says behind the last record that all of them are settled, so that replay takes one that is not
    /// whole for damage, as it otherwise can only before another record. For a log that takes no more
    /// records, after a `sync`; may be said again. Where a place was never written, or there is no room,
    /// nothing is said. `next_seq` follows the last number in the log.
    ///
    /// Nothing waits for it: a crash that takes it leaves the log as it is without.
    fn seal(&self, next_seq: u64) -> io::Result<()>;
}
