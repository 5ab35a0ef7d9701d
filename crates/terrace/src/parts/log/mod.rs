//! Log: makes a write durable before its table is, in the pool or in a file.
//!
//! A record is one batch and is replayed whole or not at all. Space is reserved in order, and
//! records are written in parallel, each by one copy of a contiguous buffer. Replay stops where a
//! crash cut the log, and distinguishes that point from damage: each record stores how much of the
//! log was settled when its space was reserved, so a bad record that a later one calls settled is
//! reported as damage.
//!
//! Invariants
//!   L1  Space is reserved in order and without gaps; a record fills its space exactly.
//!   L2  A log id is never reused, so stale bytes of an earlier log are never taken for a record.
//!   L3  The settled part is the longest prefix of written records that were fenced on `Dax`, or
//!       synced elsewhere; a gathered record counts once it is flushed and fenced. It survives
//!       every crash that the medium promises to survive.
//!   L4  After a failed append or sync every later one fails, since the durable state is unknown.
//!
//! The last records have no successor that calls them settled. So a log that takes no more records
//! gets a *seal*: a record without entries after all others, written once they are durable. The
//! manifest also records where the log ends, since a truncated log, or an older copy of it, is
//! consistent in itself.
//!
//! A record is recovered only if all records before it are, so its writer may be acknowledged only
//! after the writers of all earlier records. Bytes: layout.rs. Any thread may append; `reserve` is
//! called by one thread at a time.

#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod file;
mod gather;
pub(crate) mod layout;
mod list;
mod pool;
mod record;
mod replay;
pub(crate) mod salvage;
mod settle;
mod sync;
#[cfg(test)]
mod tests;

pub(crate) use file::FileLog;
pub(crate) use list::{ListBounds, ListLog, list_known_end, mark_end, replay_list};
pub(crate) use pool::PoolLog;
pub(crate) use record::{LogEntry, Payload, RecordView, record_bytes};
pub(crate) use replay::{LogOf, replay_file, replay_pool};

use std::io;

/// The reserved space of one record, to be filled by `Log::place`.
///
/// A slot that is dropped leaves a hole, and replay ends there.
#[derive(Debug)]
#[must_use = "a reservation that is never written ends the replay"]
pub(crate) struct Slot {
    /// The offset of the record.
    at: u64,
    /// The size of the record in bytes, a multiple of 64.
    bytes: u64,
    /// The number of 64-byte units right before the record that were not settled at the
    /// reservation.
    unsettled: u32,
    ticket: settle::Ticket,
    settling: Settling,
}

/// The way in which a record becomes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settling {
    /// Its writer waits for it alone: those before it are durable, or their writers wait.
    Alone,
    /// As `Alone`, and its writer flushes gathered records before it.
    AfterGathered,
    /// It is gathered: its writer waits for nothing, as a rule.
    Gathered,
}

impl Slot {
    /// Returns the size of the record in the log.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the offset in the log of the first byte of entries.
    pub(crate) fn payload_at(&self) -> u64 {
        self.at + layout::RECORD_HEADER_BYTES as u64
    }
}

/// A record that is written and not settled yet.
#[derive(Debug)]
#[must_use = "an unsettled record blocks all later ones"]
pub(crate) struct Placed {
    ticket: settle::Ticket,
    at: u64,
    end: u64,
    settling: Settling,
}

/// A log that is open for appends.
pub(crate) trait Log: Send + Sync {
    /// Reserves the space of the next record, by the bytes of its entries, or in a list of their
    /// nodes; returns `None` if it does not fit. Calls must not overlap.
    fn reserve(&self, payload_bytes: usize) -> Option<Slot>;

    /// As `reserve`, for a record that a power loss may take, with all later ones: on `Dax` small
    /// records are gathered, and flushed once they are 256 bytes together, or before a record that
    /// `reserve` has given space to is settled.
    fn reserve_gathered(&self, payload_bytes: usize) -> Option<Slot> {
        self.reserve(payload_bytes)
    }

    /// Copies the record into its space. The copy may still be in flight on return; work that the
    /// writer does before `settle` overlaps with it.
    ///
    /// # Panics
    ///
    /// If the size of the payload is not the one that the slot was reserved for.
    fn place(&self, slot: Slot, first_seq: u64, payload: &mut Payload) -> io::Result<Placed>;

    /// Waits for the record: on `Dax` it is durable on return unless it is gathered, elsewhere
    /// after `sync`. Called by the thread that has reserved the space, before it publishes.
    fn settle(&self, placed: Placed);

    /// Places and settles a record.
    #[cfg(test)]
    fn append(&self, slot: Slot, first_seq: u64, payload: &mut Payload) -> io::Result<()> {
        self.settle(self.place(slot, first_seq, payload)?);
        Ok(())
    }

    /// Makes gathered records durable for writers that append to a later log. The call must not
    /// overlap with `reserve`, and none follows. Writers that settle later make their records
    /// durable themselves.
    fn end_gathering(&self) {}

    /// Makes everything appended before the call durable. Concurrent callers share one sync.
    fn sync(&self) -> io::Result<()>;

    /// Returns whether everything appended is durable, if no append is in progress.
    fn is_synced(&self) -> bool;

    /// Returns the end of the last record if everything reserved is written and durable. For a log
    /// that takes no more records the value is final, and the manifest may record it.
    fn durable_end(&self) -> Option<u64>;

    /// Returns the number of bytes reserved so far, including the header.
    fn bytes(&self) -> u64;

    /// Returns whether `prefault` has work to do.
    fn is_cold(&self) -> bool {
        false
    }

    /// Prefaults `len` bytes at a position, so that the first write there does not wait for memory.
    /// Affects speed only.
    fn prefault(&self, at: u64, len: u64) {
        let _ = (at, len);
    }

    /// Appends a seal, which marks all records as settled, so that replay reports an incomplete one
    /// as damage even if it is the last. Called for a log that takes no more records, after a
    /// `sync`; repeating the call is harmless. Writes nothing if a reserved record was never
    /// written or there is no space. `next_seq` follows the last number in the log.
    ///
    /// Nothing waits for the seal: if a crash takes it, the log is as it was before.
    fn seal(&self, next_seq: u64) -> io::Result<()>;
}
