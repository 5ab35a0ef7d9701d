//! Injected faults of a pool: growing, syncing, or any other call on its file fails.

use crate::fs::fault::Trap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes the n-th growth, sync or other call on the file of a pool fail. Calls count from 1 since
/// the last reset.
#[derive(Default)]
pub struct PoolFaults {
    /// The largest size in bytes that the pool can grow to. 0 means no limit.
    room: AtomicU64,
    grow: Trap,
    sync: Trap,
    file: Trap,
}

impl PoolFaults {
    /// Returns an instance without faults.
    pub fn new() -> Arc<PoolFaults> {
        Arc::default()
    }

    /// Makes the `n`-th growth from now fail with `kind`, and all later ones too if `sticky`.
    pub fn fail_grow(&self, n: u64, kind: io::ErrorKind, sticky: bool) {
        self.grow.set(n, kind, sticky);
    }

    /// Makes every growth beyond `bytes` fail as on a full device. 0 removes the limit.
    pub fn set_room(&self, bytes: u64) {
        self.room.store(bytes, Ordering::Relaxed);
    }

    /// Makes the `n`-th sync from now fail with `kind`, and all later ones too if `sticky`.
    pub fn fail_sync(&self, n: u64, kind: io::ErrorKind, sticky: bool) {
        self.sync.set(n, kind, sticky);
    }

    /// Makes the `n`-th other call on the pool's file from now fail with `kind`, and all later ones
    /// too if `sticky`: open, lock, examine, map, truncate, rename and shrink.
    pub fn fail_file(&self, n: u64, kind: io::ErrorKind, sticky: bool) {
        self.file.set(n, kind, sticky);
    }

    /// Returns a description of the first call that failed since the faults were set: of a growth
    /// if any failed, else of a sync, else of another call.
    pub fn tripped(&self) -> Option<String> {
        let traps = [&self.grow, &self.sync, &self.file];
        traps.into_iter().find_map(|trap| trap.tripped())
    }

    /// Removes all faults and resets the counters.
    pub fn reset(&self) {
        self.set_room(0);
        self.grow.reset();
        self.sync.reset();
        self.file.reset();
    }

    /// Returns the number of growths since the last reset or fault set.
    pub fn grows(&self) -> u64 {
        self.grow.calls()
    }

    /// Returns the number of syncs since the last reset or fault set.
    pub fn syncs(&self) -> u64 {
        self.sync.calls()
    }

    /// Returns the number of other calls on the pool's file since the last reset or fault set.
    pub fn file_calls(&self) -> u64 {
        self.file.calls()
    }

    /// Returns the limit of [`PoolFaults::set_room`], if there is one.
    pub(crate) fn room(&self) -> Option<u64> {
        let room = self.room.load(Ordering::Relaxed);
        (room > 0).then_some(room)
    }

    pub(crate) fn file(&self, what: &'static str) -> io::Result<()> {
        let step = self.file.step(|| format!("{what} the pool"));
        step.map_err(|fault| fault.error(what))
    }

    pub(crate) fn grow(&self, to: u64) -> io::Result<()> {
        if self.room().is_some_and(|room| to > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.grow
            .step(|| "grow the pool".into())
            .map_err(|fault| fault.error("growing the pool"))
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.sync
            .step(|| "sync the pool".into())
            .map_err(|fault| fault.error("syncing the pool"))
    }
}
