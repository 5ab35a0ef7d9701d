//! Commit: gives a batch to the front, and makes room first when the memtable is full.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::canary::{self, Canary};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{OpCounter, StallReason, human_bytes};
use crate::options::Workers;
use crate::parts::batch::Batch;
use crate::parts::memory::{HeldByReaders, Lease};
use crate::parts::ranges::pieces_bytes;
use crate::stages::{Spare, SpareBytes, Written};
use crate::types::{Durability, KEY_BYTES_MAX};

use super::admission::SpaceWait;
use super::throttle::{Headroom, Lack};
use super::{Engine, governor};

/// How long a stopped writer sleeps before it looks again, when nobody wakes it.
pub(super) const WAIT: Duration = Duration::from_millis(20);
/// How often a deleted range may be in memory: in the views of now and of before, and in what jobs write
/// and have written of it.
pub(super) const RANGE_COPIES: u64 = 6;
/// The largest batch in bytes of entries.
const BATCH_BYTES_MAX: usize = 1 << 30;

impl Engine {
    /// Writes `batch`: all of it or nothing, durable as asked and visible on return.
    pub(crate) fn write(self: &Arc<Self>, batch: &mut Batch, durability: Durability) -> Result<()> {
        self.check_writable()?;
        if batch.len() == 0 {
            return Ok(());
        }
        self.check_batch(batch)?;
        let _coming = self.admit_ranges(batch)?;
        if self.throttle.governor.slows() {
            self.slow_down(batch);
        }
        if canary::breaks(Canary::BatchSplit) && batch.len() > 1 {
            let (mut first, mut rest) = batch.split();
            self.write(&mut first, durability)?;
            return self.write(&mut rest, durability);
        }
        // BOUND: a turn for each drop of a keyspace and for each lack of room.
        loop {
            let install = || self.install_view();
            let refusals = self.check_keyspaces(batch)?;
            let front = &self.pipeline.front;
            match front.write(batch, durability, refusals, &install) {
                Ok(Written::Done { spare_due }) => {
                    if spare_due || batch.ranges() > 0 {
                        self.jobs.wake_all();
                    }
                    break;
                }
                Ok(Written::KeyspaceDropped) => {}
                Ok(Written::NeedsRoom(memtable)) => self.make_room(batch, memtable)?,
                // Closed meanwhile: nothing was written.
                Err(e) if e.kind() == ErrorKind::Closed => return Err(e),
                Err(e) => {
                    // The record may be half written, and numbers after it are taken.
                    self.fail(&e);
                    return Err(e);
                }
            }
        }
        let counters = &self.ground.counters;
        counters.add(OpCounter::Puts, batch.len() as u64);
        counters.add(OpCounter::UserBytes, batch.user_bytes());
        if batch.deletes() > 0 {
            counters.add(OpCounter::Deletes, batch.deletes());
        }
        Ok(())
    }

    /// An error when a keyspace of `batch` was dropped; else how often one was refused by then.
    #[inline]
    fn check_keyspaces(&self, batch: &Batch) -> Result<u64> {
        // The count first: a drop that the check does not see changes it.
        let refusals = self.ground.dropped.refusals();
        for keyspace in batch.named_keyspaces() {
            self.check_keyspace(keyspace)?;
        }
        Ok(refusals)
    }

    pub(super) fn check_batch(&self, batch: &Batch) -> Result<()> {
        if batch.longest_key() > KEY_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a key has {} bytes, but at most {KEY_BYTES_MAX} are possible",
                batch.longest_key()
            )));
        }
        let bytes = batch.payload.len_bytes();
        // A memtable of its own, its log, and its copy in the bottom must fit at one time.
        let most = (self.ground.options.pool.size_bytes / 8)
            .max(self.ground.options.front.memtable_bytes / 2)
            .min(BATCH_BYTES_MAX as u64);
        if bytes as u64 > most {
            return Err(Error::invalid(format!(
                "the batch has {bytes} bytes, but at most {most} are possible in one batch (an \
                 eighth of the pool, 1 GiB at most): split it"
            )));
        }
        if self.ground.memory.is_limited() {
            return self.check_memory_of(batch);
        }
        Ok(())
    }

    /// Refuses a batch for which the budget of memory has no place.
    fn check_memory_of(&self, batch: &Batch) -> Result<()> {
        let limits = &self.ground.memory.limits;
        let budget = || human_bytes(self.ground.options.memory_bytes.unwrap_or(0));
        let largest = batch.largest_entry() as u64;
        if largest > limits.entry_bytes {
            return Err(Error::invalid(format!(
                "a key and its value have {largest} bytes, but with memory_bytes of {} at most \
                 {} are possible: divide the value, or reopen with a larger memory_bytes",
                budget(),
                limits.entry_bytes
            )));
        }
        // A memtable of its own is memory that nobody has planned.
        let spare = |batch| {
            let bytes = self.pipeline.front.spare_bytes(batch);
            bytes.pool() + bytes.log_file
        };
        if spare(Some(batch)) > spare(None) {
            return Err(Error::invalid(format!(
                "the batch has {} entries of {} bytes, which may not fit a memtable of {}, and with \
                 memory_bytes of {} none is larger: split it, or reopen with larger memtables",
                batch.len(),
                batch.payload.len_bytes(),
                human_bytes(self.ground.options.front.memtable_bytes),
                budget()
            )));
        }
        if batch.ranges() == 0 {
            return Ok(());
        }
        if batch.ranges() > limits.batch_ranges {
            return Err(Error::invalid(format!(
                "the batch deletes {} ranges, but with memory_bytes at most {} are possible in one: \
                 split it",
                batch.ranges(),
                limits.batch_ranges
            )));
        }
        Ok(())
    }

    /// A place in the budget for the range deletes of a batch, until a view has them.
    fn admit_ranges(&self, batch: &Batch) -> Result<Option<Lease>> {
        let memory = &self.ground.memory;
        if batch.ranges() == 0 || !memory.is_limited() {
            return Ok(None);
        }
        let ranges = batch.range_deletes(0);
        let mut coming = memory.ranges.lease();
        // It has no limit of its own: those of other writers count, whoever came first.
        let _ = coming.set(ranges.iter().map(pieces_bytes).sum());
        let snapshots = self.ground.snapshots.stripes().len();
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
                    "deleted ranges may come to take {} of the {} that they may: call compact_range for \
                     what they cover, or reopen with a larger memory_bytes",
                    human_bytes(bytes),
                    human_bytes(limit)
                ),
            ));
        }
        Ok(Some(coming))
    }

    /// Holds one write back for as long as the governor says.
    fn slow_down(&self, batch: &Batch) {
        if self.jobs.workers() == Workers::Manual {
            return;
        }
        let governor = &self.throttle.governor;
        if governor.look_is_due() {
            self.headroom();
        }
        let wait = governor.charge(batch.user_bytes(), batch.len() as u64);
        if wait.is_zero() {
            return;
        }
        let started = Instant::now();
        governor::pass(wait);
        let waited = started.elapsed();
        self.ground.counters.stall(self.throttle.reason(), waited);
    }

    /// Seals the memtable, waiting for a spare one if need be.
    fn make_room(self: &Arc<Self>, batch: &Batch, full: u64) -> Result<()> {
        let started = Instant::now();
        let mut stalled = None;
        let mut wait = SpaceWait::default();
        let result = loop {
            if let Err(e) = self.check_writable() {
                break Err(e);
            }
            match self
                .pipeline
                .front
                .rotate(Some((batch, full)), &|| self.install_view())
            {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(e) => break Err(e),
            }
            self.jobs.wake_all();
            match self.wait_for_spare(batch, stalled.is_none(), &mut wait) {
                Ok(Some(reason)) => stalled = Some(reason),
                Ok(None) => {}
                Err(e) => break Err(e),
            }
        };
        if let Some(reason) = stalled {
            self.ground.counters.stall(reason, started.elapsed());
        }
        self.jobs.wake_all();
        result
    }

    /// Does one thing that may lead to a spare memtable: makes it, lets background work go on, or
    /// finds that nothing can. Returns why it waited, if it did.
    fn wait_for_spare(
        self: &Arc<Self>,
        batch: &Batch,
        first: bool,
        wait: &mut SpaceWait,
    ) -> Result<Option<StallReason>> {
        let patience = self.patience();
        let front = &self.pipeline.front;
        let bytes = front.spare_bytes(Some(batch));
        let deletes_only = batch.only_deletes();
        let is_full = deletes_only && self.disk_full().is_some();
        // One more where flushes find a full disk, since deletes are what gives room back.
        let sealed_max = self.ground.options.front.sealed_count_max + usize::from(is_full);
        if front.sealed_count() < sealed_max {
            match self.spare_lacks(&self.headroom(), bytes) {
                Some(Lack::Logs) if !is_full => return self.wait_for_logs(first).map(Some),
                Some(Lack::Pool) if !deletes_only => {
                    return self.wait_for_space(patience, first, wait).map(Some);
                }
                None | Some(Lack::Pool | Lack::Logs) => {}
            }
            // Workers make spares ahead of need, and of the usual size. One that is needed is made here.
            match self.prepare_spare(Some(batch))? {
                Spare::Ready => return Ok(None),
                Spare::PoolFull => {
                    return self.wait_for_space(patience, first, wait).map(Some);
                }
                Spare::DiskFull(why) => {
                    let waits = self.may_find_room(first) || self.may_let_go(&why, wait);
                    if self.jobs.workers() == Workers::Manual {
                        // The caller runs the jobs that can give room back; it is refused once there is none.
                        return match self.step(0)? {
                            true => Ok(Some(StallReason::MemtablesSealed)),
                            false => Err(why),
                        };
                    }
                    if !waits {
                        return Err(why);
                    }
                }
                Spare::Underway => {}
            }
            self.jobs.wait_changed(if first { WAIT / 20 } else { WAIT });
            return Ok(Some(StallReason::MemtablesSealed));
        }
        let reason = StallReason::MemtablesSealed;
        if let Some(why) = self.disk_full()
            && !self.may_find_room(first)
            && !self.may_let_go(&why, wait)
        {
            return Err(why);
        }
        if self.jobs.workers() == Workers::Manual {
            if !self.step(0)? {
                return Err(self.full_error());
            }
            return Ok(Some(reason));
        }
        // The first look is short: a spare is usually a moment away.
        self.jobs.wait_changed(if first { WAIT / 20 } else { WAIT });
        Ok(Some(reason))
    }

    /// Lets drains give log files back. `Full` when a disk is what they wait for.
    fn wait_for_logs(self: &Arc<Self>, first: bool) -> Result<StallReason> {
        if let Some(why) = self.disk_full()
            && !self.may_find_room(first)
        {
            return Err(why);
        }
        if self.jobs.workers() == Workers::Manual {
            if !self.step(0)? {
                return Err(Error::new(
                    ErrorKind::Full,
                    "log files take all that they may, and nothing can be drained; reopen with a \
                     larger front.log_bytes_max",
                ));
            }
            return Ok(StallReason::LogCap);
        }
        // Drains always can: what holds a log is a table that they take, sooner or later.
        self.jobs.wait_changed(WAIT);
        Ok(StallReason::LogCap)
    }

    /// Whether background work that a full disk has stopped should be given another try before a
    /// write is refused. Without threads, once for each write.
    pub(super) fn may_find_room(&self, first: bool) -> bool {
        if first && self.jobs.workers() == Workers::Manual {
            self.look_for_room();
        }
        first
    }

    /// Whether readers who hold what a memtable needs may let go of it soon.
    fn may_let_go(&self, why: &Error, wait: &mut SpaceWait) -> bool {
        let source = std::error::Error::source(why);
        let held = source.is_some_and(|source| source.downcast_ref::<HeldByReaders>().is_some());
        held && self.jobs.workers() != Workers::Manual && wait.goes_on_for_readers()
    }

    /// Makes a spare; for deletes on the reserve, if need be.
    pub(crate) fn prepare_spare(&self, batch: Option<&Batch>) -> Result<Spare> {
        self.make_spare(batch, batch.is_some_and(Batch::only_deletes))
    }

    /// Makes a spare, without which what is in memory cannot be moved on.
    pub(super) fn prepare_spare_to_flush(&self) -> Result<Spare> {
        self.make_spare(None, true)
    }

    fn make_spare(&self, batch: Option<&Batch>, on_reserve: bool) -> Result<Spare> {
        let spare = self.pipeline.front.prepare_spare(batch, on_reserve);
        spare.inspect_err(|e| self.fail(e))
    }

    /// What there is too little of for a spare of these `bytes`, which a put needs.
    pub(super) fn spare_lacks(&self, headroom: &Headroom, bytes: SpareBytes) -> Option<Lack> {
        // A log of the active memtable goes only after the next memtable has come: that one is let in, and
        // the cap exceeded by its log, where there is nothing else to drain.
        let buffer = self.pipeline.buffer.as_ref();
        let drainable = || {
            self.pipeline.front.sealed_count() > 0
                || buffer.is_some_and(|buffer| buffer.table_count() > 0)
        };
        if !headroom.allows(bytes) {
            Some(Lack::Pool)
        } else if !headroom.allows_log(bytes) && drainable() {
            Some(Lack::Logs)
        } else {
            None
        }
    }
}
