//! Gathering: small records stay in the processor's caches until 256 bytes of them are together,
//! and reach the medium with one flush (FlatLSM, section 4.2: the Buffer Log).
//!
//! Only records that a power loss may take are gathered. A *durable* record is one whose writer
//! must not be acknowledged while an earlier record can still be lost: replay ends at the first
//! missing record. So its writer flushes what is gathered before it, although other writers may
//! still be storing there.
//!
//! Invariants
//!   G1  The flushed position passes a gathered record only after it was finished, then flushed and
//!       fenced. It never decreases.
//!   G2  Before a durable record is acknowledged, each gathered record before it is fenced, by its
//!       own writer or by that of the durable record.
//!
//! G2 is a store-buffer pattern with two words. The durable writer stores `required` and, after a
//! sequentially consistent fence, flushes the gathered lines, which reads them. The gathered
//! writer stores its record and, after such a fence, loads `required`. One of the two fences is
//! first. If it is that of the gathered writer, the flush finds the whole record. Otherwise the
//! load finds the position of the durable record, and the gathered writer flushes its record before
//! it publishes, for which the durable writer waits. `tests/gather.rs` has the model.
//!
//! Callers: pool.rs. What happens at a reservation happens under the caller's lock.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The number of bytes that are flushed together: the unit in which persistent memory writes.
pub(super) const BLOCK_BYTES: u64 = 256;

/// The gathered records of one log.
#[derive(Debug)]
pub(super) struct Gathering {
    /// The end of the last gathered record.
    end: AtomicU64,
    /// The position before which all gathered records are flushed and fenced.
    flushed: AtomicU64,
    /// The end of the last record that is durable and had gathered ones before it.
    required: AtomicU64,
}

impl Gathering {
    /// Tracks a log whose first record starts at `start`.
    pub(super) fn new(start: u64) -> Gathering {
        Gathering {
            end: AtomicU64::new(start),
            flushed: AtomicU64::new(start),
            required: AtomicU64::new(start),
        }
    }

    /// Returns whether a gathered record may not be flushed yet. All records count that were
    /// reserved before the call, if the caller holds the lock or knows that they are finished.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.end.load(Ordering::Relaxed) > self.flushed()
    }

    /// Returns the position before which all gathered records are flushed and fenced.
    #[inline]
    pub(super) fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// Returns the position before which everything is durable, if everything before `written` was
    /// finished earlier. Called at a reservation.
    #[inline]
    pub(super) fn settled(&self, written: u64) -> u64 {
        match self.is_pending() {
            true => written.min(self.flushed()),
            false => written,
        }
    }

    /// Notes at its reservation that the record from `at` to `end` is gathered.
    pub(super) fn gather(&self, at: u64, end: u64) {
        if !self.is_pending() {
            // The records since the last gathered one are flushed by their own writers.
            self.advance(at);
        }
        self.end.store(end, Ordering::Relaxed);
    }

    /// Notes at its reservation that the record up to `end` is durable. Returns whether gathered
    /// records before it have to be flushed. If none have, this costs a comparison.
    #[inline]
    pub(super) fn require(&self, end: u64) -> bool {
        let is_pending = self.is_pending();
        if is_pending {
            self.required.store(end, Ordering::Relaxed);
        }
        is_pending
    }

    /// Orders `require` of this thread before its flush of what is gathered (G2).
    pub(super) fn begin_flush(&self) {
        fence(Ordering::SeqCst);
    }

    /// Returns whether a durable record follows the gathered one that ends at `end`. Called after
    /// that is stored and finished, and before it is published (G2).
    pub(super) fn is_required(&self, end: u64) -> bool {
        fence(Ordering::SeqCst);
        self.required.load(Ordering::Relaxed) > end
    }

    /// Notes that all gathered records before `to` are flushed and fenced (G1).
    pub(super) fn advance(&self, to: u64) {
        self.flushed.fetch_max(to, Ordering::Release);
    }
}
