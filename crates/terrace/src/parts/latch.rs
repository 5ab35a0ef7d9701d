//! Latch: lets cursors keep a list unchanged while they read one chunk, and tells them whether it
//! has been relinked since.
//!
//! Point reads never touch a latch unless merging has overtaken them many times. A job that relinks
//! holds the latch for one bounded batch. LOCK: latches are taken from the newest source to the
//! oldest, by cursors and by jobs alike.

use std::sync::Arc;

use parking_lot::lock_api::{ArcRwLockReadGuard, ArcRwLockWriteGuard};
use parking_lot::{RawRwLock, RwLock};

/// The latch of one list; clones share it.
#[derive(Clone, Default)]
pub(crate) struct Latch(Arc<RwLock<u64>>);

/// A guard that prevents relinking of the list.
pub(crate) struct Held(ArcRwLockReadGuard<RawRwLock, u64>);

/// A guard that keeps cursors from reading the list; it counts as one relink.
pub(crate) struct Relinking {
    _guard: ArcRwLockWriteGuard<RawRwLock, u64>,
}

impl Latch {
    /// Waits for the batch in flight, then blocks relinking.
    pub(crate) fn hold(&self) -> Held {
        Held(RwLock::read_arc(&self.0))
    }

    /// Waits for the cursors in flight, then allows one batch of changes.
    pub(crate) fn relink(&self) -> Relinking {
        let mut guard = RwLock::write_arc(&self.0);
        *guard += 1;
        Relinking { _guard: guard }
    }
}

impl Held {
    /// Returns the number of batches that have changed the list so far.
    pub(crate) fn relink_count(&self) -> u64 {
        *self.0
    }
}
