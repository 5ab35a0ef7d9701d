//! Quiesce: callers that wait for background work to reach a state.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, ErrorKind, Result};
use crate::metrics::OpCounter;
use crate::options::Workers;
use crate::parts::manifest::{Change, Edit};
use crate::stages::{RangeRequest, Survival, retired};
use crate::types::SeqNo;

use super::Engine;
use super::admission::Need;

impl Engine {
    /// Waits until `done` while background work runs.
    pub(super) fn wait_until(self: &Arc<Self>, done: &dyn Fn() -> bool) -> Result<()> {
        self.admit(&Need::Jobs, &mut || Ok(done().then_some(())))
    }

    /// Moves every memtable that contains a current entry into the buffer. Later writes do not
    /// prolong it: while writers run there is always another memtable.
    pub(crate) fn flush(self: &Arc<Self>) -> Result<()> {
        self.check_writable()?;
        let seq = self.shared.sequencer.last_taken();
        let front = &self.stages.front;
        self.admit(&Need::Flush, &mut || {
            // Another writer may have replaced the memtable that contained the entries.
            let done = !front.has_active_before(seq + 1) || self.rotate(None)?;
            Ok(done.then_some(()))
        })?;
        self.wait_until(&|| !self.stages.front.has_sealed_before(seq + 1))
    }

    /// Moves everything into the bottom and waits until background work rests.
    pub(crate) fn drain(self: &Arc<Self>) -> Result<()> {
        self.flush()?;
        self.jobs.want_everything(true);
        let drained = self.wait_until(&|| !self.stages.is_buffering());
        self.jobs.want_everything(false);
        drained?;
        self.wait_for_rest()
    }

    /// Before a close: moves data from memory to where the next open need not replay it. If the
    /// buffer is memory and the bottom is not, that is everything; else the log may keep a little.
    /// `progress` gets the bytes written out, and the total bytes.
    pub(crate) fn write_out(self: &Arc<Self>, progress: &dyn Fn(u64, u64)) -> Result<()> {
        self.check_writable()?;
        let front = &self.stages.front;
        match self.shared.survival() {
            Survival::Files => {}
            // Everything stays in its log.
            Survival::LogTables => return Ok(()),
            Survival::Pool | Survival::Logs => {
                let wanted = front.wants_flush_to_close() || front.sealed_count() > 0;
                return if wanted { self.flush() } else { Ok(()) };
            }
        }
        self.flush()?;
        let seq = self.shared.sequencer.last_taken();
        let total = self.stages.buffered_bytes();
        let reported = Cell::new(total);
        self.wait_drained(&|| {
            let left = self.stages.buffered_bytes();
            if left != reported.replace(left) {
                progress(total.saturating_sub(left), total);
            }
            // Level 0 may stay as it is: it is in files. What is written meanwhile stays in its
            // log.
            !self.stages.buffers_up_to(seq)
        })
    }

    /// Returns whether a close would lose entries that a write to disk or pool could keep:
    /// `Volatile` ones that are only in memory.
    pub(crate) fn close_would_lose(&self) -> bool {
        let newest = self.shared.newest_unlogged.load(Ordering::Relaxed);
        if newest == 0 {
            return false;
        }
        let memtables = self.stages.front.sources();
        if memtables.iter().any(|memtable| memtable.seqs().0 <= newest) {
            return true;
        }
        // Without a pool the buffer is memory. A bottom in memory keeps nothing in any case.
        self.shared.survival() == Survival::Files && self.stages.buffers_up_to(newest)
    }

    /// After the last write: makes the logs durable, and records a clean close and the logs that
    /// are no longer needed.
    pub(crate) fn seal_off(&self) -> Result<()> {
        let front = &self.stages.front;
        let unused = front.close()?;
        if self.shared.pool_outlives() {
            return match self.shared.note_totals() {
                Err(e) if e.kind() == ErrorKind::Full => Ok(()),
                noted => noted,
            };
        }
        let mut changes: Vec<Change> = retired(&unused).collect();
        let seq = self.shared.sequencer.last_taken();
        let totals = Change::Totals(self.shared.totals());
        changes.extend(self.shared.time_told());
        changes.extend([Change::LastSeq { seq }, totals, Change::Closed]);
        // PERSIST: the contents of the logs before the record of a clean close.
        match self
            .shared
            .manifest
            .commit(Edit { changes })
            .map_err(Error::from)
        {
            Ok(()) => front.logs_retired(&unused),
            // Nothing is lost: the next open replays the logs, as after a crash.
            Err(e) if e.kind() == ErrorKind::Full => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Moves the current entries of a range of keys as deep into the bottom as they can go. Both
    /// keys are inclusive.
    pub(crate) fn compact_range(
        self: &Arc<Self>,
        first: (u32, Vec<u8>),
        last: (u32, Vec<u8>),
    ) -> Result<()> {
        self.check_writable()?;
        let seq = self.shared.sequencer.visible();
        self.flush()?;
        // Tables leave the buffer oldest first: the range may be behind all others.
        self.drain_up_to(seq)?;
        let request = Arc::new(RangeRequest {
            first,
            last,
            seq,
            id: self.shared.next_id(),
        });
        let bottom = &self.stages.bottom;
        bottom.compact_range(&request);
        self.wait_until(&|| bottom.is_compacted(&request))?;
        self.shared.counters.add(OpCounter::RangesCompacted, 1);
        Ok(())
    }

    /// Waits until no table of the buffer contains an entry up to `seq`.
    pub(super) fn drain_up_to(self: &Arc<Self>, seq: SeqNo) -> Result<()> {
        self.wait_drained(&|| !self.stages.buffers_up_to(seq))
    }

    /// Waits until `done`, which drains lead to.
    fn wait_drained(self: &Arc<Self>, done: &dyn Fn() -> bool) -> Result<()> {
        if done() {
            return Ok(());
        }
        self.jobs.want_drained(true);
        let waited = self.wait_until(done);
        self.jobs.want_drained(false);
        waited
    }

    /// Waits until no job runs and none may begin, including those that are worth it only at rest.
    pub(crate) fn wait_idle(self: &Arc<Self>) -> Result<()> {
        self.jobs.state.lock().rest.waiting += 1;
        let rested = self.wait_for_rest();
        self.jobs.state.lock().rest.waiting -= 1;
        self.stages.front.rest();
        rested
    }

    fn wait_for_rest(self: &Arc<Self>) -> Result<()> {
        let rests = self.admit(&Need::Jobs, &mut || {
            let rests = match self.jobs.workers() {
                Workers::Manual => !self.step(0)?,
                Workers::Auto | Workers::Threads(_) => self.rests()?,
            };
            Ok(rests.then_some(()))
        });
        match rests {
            // Work stopped by a full disk resumes when there is space.
            Err(e) if e.kind() == ErrorKind::Full => Ok(()),
            other => other,
        }
    }
}
