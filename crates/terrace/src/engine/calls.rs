//! Calls that may change the database, and the close that waits for them.
//!
//! After a close others may open the database, so nothing may be written after it. A write that
//! finds room is stopped by the front, which takes no batch once it is closed. Everything slower
//! enters here: callers in the loop of admission, which make memtables and may run jobs, steps of
//! jobs without workers, and ingests.
//!
//! Invariants
//!   L1  A call enters before it checks whether the database is closed, and checks again after each
//!       wait.
//!   L2  A close marks the database closed, then waits here, and only then records a clean close.
//!       The database is never closed from inside such a call.

use parking_lot::{RwLock, RwLockReadGuard};

use super::Engine;
use crate::error::Result;

/// The calls in progress.
#[derive(Default)]
pub(super) struct Calls(RwLock<()>);

/// One call, until it is dropped.
pub(super) struct Call<'a> {
    _entered: RwLockReadGuard<'a, ()>,
}

impl Engine {
    /// Enters a call. Calls nest.
    ///
    /// # Errors
    /// `Closed`, and `Invalid` in a forked child, in which the lock is as the parent had it.
    pub(super) fn enter(&self) -> Result<Call<'_>> {
        self.check_open()?;
        let call = Call {
            // Recursive: a nested call must not wait for the close that waits for both.
            _entered: self.calls.0.read_recursive(),
        };
        self.check_open()?;
        Ok(call)
    }

    /// Waits for all calls that entered before the database was marked closed.
    pub(super) fn wait_for_calls(&self) {
        // BOUND: a call checks after each step of a job, and at least every few milliseconds while
        // it waits.
        drop(self.calls.0.write());
    }
}
