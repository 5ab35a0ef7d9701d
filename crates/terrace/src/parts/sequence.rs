//! Sequence numbers: taken in order, finished in any order, visible in order.
//!
//! A writer takes its numbers under its front's commit lock, then logs and inserts beside other
//! writers, then publishes. Publishing waits until every smaller number is visible, so a read at
//! `visible` sees each batch whole or not at all, and an acknowledged write implies that all
//! writes before it are as durable as they asked to be.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::types::SeqNo;

/// The numbers of one database.
#[derive(Default)]
pub(crate) struct Sequencer {
    /// The last number taken; changed only under the front's commit lock.
    taken: AtomicU64,
    /// Every number up to this one is inserted.
    visible: AtomicU64,
    /// Set when a writer failed after taking numbers: nobody after it can become visible.
    broken: AtomicBool,
}

impl Sequencer {
    /// Takes and shows every number up to `last`, which recovery has found in use.
    pub(crate) fn start_after(&self, last: SeqNo) {
        self.taken.fetch_max(last, Ordering::Relaxed);
        self.visible.fetch_max(last, Ordering::Release);
    }

    /// Takes `count` numbers and returns the first. The caller holds the commit lock.
    pub(crate) fn take(&self, count: u64) -> SeqNo {
        let first = self.taken.load(Ordering::Relaxed) + 1;
        self.taken.store(first + count - 1, Ordering::Relaxed);
        first
    }

    /// The last number taken. Exact under the commit lock.
    pub(crate) fn last_taken(&self) -> SeqNo {
        self.taken.load(Ordering::Relaxed)
    }

    /// What reads that begin now may see.
    #[inline]
    pub(crate) fn visible(&self) -> SeqNo {
        // Acquire: pairs with the Release in `publish`, so that the entries themselves are seen.
        self.visible.load(Ordering::Acquire)
    }

    /// Makes `first` and the `count - 1` numbers after it visible, after all before them. False:
    /// an earlier writer failed and this one can never become visible.
    #[must_use]
    pub(crate) fn publish(&self, first: SeqNo, count: u64) -> bool {
        // BOUND: the writers before this one hold their numbers only while they copy and insert.
        if !self.wait_visible(first - 1) {
            return false;
        }
        self.visible.store(first + count - 1, Ordering::Release);
        true
    }

    /// Waits until `seq` is visible. False: it never will be.
    #[must_use]
    pub(crate) fn wait_visible(&self, seq: SeqNo) -> bool {
        let mut spins = 0u32;
        while self.visible.load(Ordering::Acquire) < seq {
            if self.broken.load(Ordering::Acquire) {
                return false;
            }
            spins += 1;
            if spins < 128 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        true
    }

    /// Declares that a writer has failed between taking its numbers and publishing them.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::Release);
    }
}
