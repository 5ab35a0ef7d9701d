//! Faults of a pool on demand: growing or syncing fails at a chosen call.

use crate::fs::fault::Trap;
use std::io;
use std::sync::Arc;

/// Makes the n-th growth or sync of a pool fail. Calls count from 1 since the last reset.
#[derive(Default)]
pub struct PoolFaults {
    grow: Trap,
    sync: Trap,
}

impl PoolFaults {
    /// No fault.
    pub fn new() -> Arc<PoolFaults> {
        Arc::default()
    }

    /// Makes the `n`-th growth from now fail with `kind`, and all later ones too if `sticky`.
    pub fn fail_grow(&self, n: u64, kind: io::ErrorKind, sticky: bool) {
        self.grow.set(n, kind, sticky);
    }

    /// Makes the `n`-th sync from now fail with `kind`, and all later ones too if `sticky`.
    pub fn fail_sync(&self, n: u64, kind: io::ErrorKind, sticky: bool) {
        self.sync.set(n, kind, sticky);
    }

    /// Takes all faults away and counts from zero again.
    pub fn reset(&self) {
        self.grow.reset();
        self.sync.reset();
    }

    /// Growths since the last reset or fault set.
    pub fn grows(&self) -> u64 {
        self.grow.calls()
    }

    /// Syncs since the last reset or fault set.
    pub fn syncs(&self) -> u64 {
        self.sync.calls()
    }

    pub(crate) fn grow(&self) -> io::Result<()> {
        self.grow
            .step()
            .map_err(|fault| fault.error("growing the pool"))
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.sync
            .step()
            .map_err(|fault| fault.error("syncing the pool"))
    }
}
