//! Commit: gives a batch to the front, and makes room first if the memtable is full.

use std::sync::Arc;
use std::time::Instant;

use crate::canary::failpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{OpCounter, human_bytes};
use crate::options::Workers;
use crate::parts::batch::Batch;
use crate::parts::memory::Lease;
use crate::parts::ranges::pieces_bytes;
use crate::stages::{Rotated, Written};
use crate::types::{Durability, KEY_BYTES_MAX};

use super::Engine;
use super::admission::Need;

/// How many copies of a range delete memory may hold: in the current and previous views, and in
/// what jobs write and have written of it.
pub(super) const RANGE_COPIES: u64 = 6;

impl Engine {
    /// Writes `batch` atomically, durable as asked and visible on return.
    pub(crate) fn write(self: &Arc<Self>, batch: &mut Batch, durability: Durability) -> Result<()> {
        self.check_writable()?;
        if batch.len() == 0 {
            return Ok(());
        }
        self.check_batch(batch)?;
        let _coming = self.admit_ranges(batch)?;
        if self.throttle.write_controller.slows() {
            self.slow_down(batch);
        }
        failpoint!(BatchSplit if batch.len() > 1 => return batch.in_two(|half| self.write(half, durability)));
        // BOUND: a turn for each drop of a keyspace and for each lack of room.
        loop {
            let refusals = self.check_keyspaces(batch)?;
            let failed = |e: &Error| match e.kind() {
                // Closed meanwhile: nothing was written.
                ErrorKind::Closed => {}
                // The record may be half written, and numbers after it are taken.
                _ => self.fail(e),
            };
            let front = &self.stages.front;
            let written = front.write(batch, durability, refusals);
            match written.inspect_err(failed)? {
                Written::Pending(pending) => {
                    let wakes = pending.spare_due || pending.needs_view;
                    if pending.needs_view {
                        failpoint!(RangeUnseen skips self.install_view());
                    }
                    // PERSIST: the record before the entries are visible; it is in its log since
                    // `write` (W3).
                    front.publish(pending, durability).inspect_err(failed)?;
                    if wakes {
                        self.jobs.wake_workers();
                    }
                    break;
                }
                Written::KeyspaceDropped => {}
                Written::NeedsRoom(memtable) => self.make_room(batch, memtable)?,
            }
        }
        let counters = &self.shared.counters;
        counters.add(OpCounter::Puts, batch.len() as u64);
        counters.add(OpCounter::UserBytes, batch.user_bytes());
        if batch.deletes() > 0 {
            counters.add(OpCounter::Deletes, batch.deletes());
        }
        Ok(())
    }

    /// Returns an error if a keyspace of `batch` was dropped; else how many batches were refused by
    /// then.
    #[inline]
    fn check_keyspaces(&self, batch: &Batch) -> Result<u64> {
        // The count is read first: a drop that the check does not see changes it.
        let refusals = self.shared.dropped.refusals();
        for keyspace in batch.named_keyspaces() {
            self.check_keyspace(keyspace)?;
        }
        Ok(refusals)
    }

    pub(super) fn check_batch(&self, batch: &Batch) -> Result<()> {
        if batch.longest_key() > KEY_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the key has {} bytes, but the maximum is {KEY_BYTES_MAX}",
                batch.longest_key()
            )));
        }
        let bytes = batch.payload.len_bytes();
        let most = self.shape.batch_bytes_max;
        if bytes as u64 > most {
            let (what, how) = match batch.len() {
                1 => ("entry", "store the value in parts"),
                _ => ("batch", "split it"),
            };
            return Err(Error::invalid(format!(
                "the {what} has {bytes} bytes, but the maximum is {most} (an eighth of the pool, at \
                 most 1 GiB): {how}"
            )));
        }
        if self.shared.memory.is_limited() {
            return self.check_memory_of(batch);
        }
        Ok(())
    }

    /// Refuses an entry with too many `bytes` of key and value for the memory budget.
    pub(super) fn check_entry(&self, bytes: usize) -> Result<()> {
        let most = self.shared.memory.limits.entry_bytes;
        if bytes as u64 > most {
            return Err(Error::invalid(format!(
                "a key and its value have {bytes} bytes, but with --memory (memory_bytes) of {} \
                 the maximum is {most}: split the value, or reopen with a larger memory_bytes",
                human_bytes(self.shared.options.memory_bytes.unwrap_or(0)),
            )));
        }
        Ok(())
    }

    /// Refuses a batch that the memory budget has no room for.
    fn check_memory_of(&self, batch: &Batch) -> Result<()> {
        self.check_entry(batch.largest_entry())?;
        let limits = &self.shared.memory.limits;
        let budget = || human_bytes(self.shared.options.memory_bytes.unwrap_or(0));
        // A memtable of its own size would be memory outside the plan.
        if self.stages.larger_spare(batch).is_some() {
            return Err(Error::invalid(format!(
                "the batch has {} entries of {} bytes, which may not fit a memtable of {}, the \
                 largest with --memory (memory_bytes) of {}: split it, or reopen with larger \
                 memtables",
                batch.len(),
                batch.payload.len_bytes(),
                human_bytes(self.shape.memtable_bytes),
                budget()
            )));
        }
        if batch.ranges() == 0 {
            return Ok(());
        }
        if batch.ranges() > limits.batch_ranges {
            return Err(Error::invalid(format!(
                "the batch deletes {} ranges, but with --memory (memory_bytes) the maximum is {}: \
                 split it",
                batch.ranges(),
                limits.batch_ranges
            )));
        }
        Ok(())
    }

    /// Leases memory for the range deletes of a batch until a view contains them.
    fn admit_ranges(&self, batch: &Batch) -> Result<Option<Lease>> {
        let memory = &self.shared.memory;
        if batch.ranges() == 0 || !memory.is_limited() {
            return Ok(None);
        }
        let ranges = batch.range_deletes(0);
        let mut coming = memory.ranges.lease();
        // The lease is unlimited by itself: the leases of other writers count too, in any order.
        let _ = coming.set(ranges.iter().map(pieces_bytes).sum());
        let snapshots = self.shared.snapshots.stripes().len();
        let view = self.views.pin();
        let held = view.ranges.as_ref();
        let held = held.map_or(0, |ranges| ranges.bytes_max(snapshots));
        let (bytes, limit) = (
            (held + memory.ranges.used()) * RANGE_COPIES,
            memory.limits.ranges_bytes,
        );
        if bytes > limit {
            return Err(Error::new(
                ErrorKind::Full,
                format!(
                    "range deletes may need {} of memory, but their limit is {}: compact the \
                     deleted ranges (compact_range), or reopen with a larger memory_bytes \
                     (--memory)",
                    human_bytes(bytes),
                    human_bytes(limit)
                ),
            ));
        }
        Ok(Some(coming))
    }

    /// Delays a write for as long as the write controller asks.
    fn slow_down(&self, batch: &Batch) {
        if self.jobs.workers() == Workers::Manual {
            return;
        }
        let write_controller = &self.throttle.write_controller;
        if write_controller.look_is_due() {
            self.headroom();
        }
        let wait = write_controller.charge(batch.user_bytes(), batch.len() as u64);
        if wait.is_zero() {
            return;
        }
        let started = Instant::now();
        std::thread::sleep(wait);
        let waited = started.elapsed();
        self.shared.count_stall(self.throttle.reason(), waited);
    }

    /// Seals the memtable, and waits for a spare one if need be.
    fn make_room(self: &Arc<Self>, batch: &Batch, full: u64) -> Result<()> {
        self.admit(&Need::Memtable(batch), &mut || {
            let rotated = self.rotate(Some((batch, full)))?;
            Ok(rotated.then_some(()))
        })
    }

    /// Replaces the memtable as [`Front::rotate`](crate::stages::Front::rotate) does, and shows its
    /// successor. Returns false if there is no spare.
    pub(super) fn rotate(&self, full: Option<(&Batch, u64)>) -> Result<bool> {
        match self.stages.front.rotate(full)? {
            Rotated::NoSpare => return Ok(false),
            Rotated::Unneeded => {}
            Rotated::Sealed(_held) => failpoint!(ViewSkipped skips self.install_view()),
        }
        Ok(true)
    }
}
