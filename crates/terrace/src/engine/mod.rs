//! The engine: moves data between the stages and answers reads; it names no concrete stage.
//!
//! ```text
//!   commit ---> front ---flush---> buffer ---drain---> bottom
//!     |           \________________|___________________/
//!  throttle                        view   <--- read, scan
//!     ^                              ^
//!     |____________ jobs ____________|        one edit, then apply, then a new view
//! ```

mod admission;
mod calls;
mod choose;
pub(crate) mod commit;
pub(crate) mod freeze;
pub(crate) mod held;
pub(crate) mod ingest;
pub(crate) mod jobs;
mod own_jobs;
mod picker;
mod queue;
mod quiesce;
pub(crate) mod read;
mod read_workers;
pub(crate) mod recover;
pub(crate) mod rest;
#[cfg(test)]
mod tests;
pub(crate) mod throttle;
pub(crate) mod view;
mod waiting;
mod workers;
mod write_controller;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use parking_lot::Mutex;
use terrace_media::process_id;

use crate::canary::failpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Once, event};
use crate::metrics::{MemoryMetrics, MemoryUse, Metrics, PoolMetrics};
use crate::options::memory;
use crate::parts::batch::Batch;
use crate::stages::{
    Bottom, Buffer, Front, FrontShape, Job, Sealed, Shared, Sources, SpareBytes, Takes,
};
use crate::types::SeqNo;

use admission::VainWaits;
use calls::Calls;
use held::HeldViews;
use jobs::Jobs;
use read_workers::ReadWorkers;
use throttle::Throttle;
use view::{Parts, Views};
use workers::ThreadPool;

/// The stages of a design.
pub(crate) struct Stages {
    pub(crate) front: Box<dyn Front>,
    /// `None`: sealed memtables are flushed to the bottom.
    pub(crate) buffer: Option<Box<dyn Buffer>>,
    pub(crate) bottom: Box<dyn Bottom>,
}

impl Stages {
    /// Returns the parts of a view of the current state. Range deletes are asked before sources
    /// (V1).
    pub(crate) fn parts(&self, shared: &Shared) -> Parts {
        let tokens = shared.ranges.take_tokens();
        let ranges = shared.ranges.set_above(|| self.bottom.ranges());
        // Newest first (V1).
        let mut sources = self.front.sources();
        let buffer_at = sources.len();
        sources.extend(self.buffer.iter().flat_map(|buffer| buffer.sources()));
        let bottom_at = sources.len();
        sources.extend(self.bottom.sources());
        failpoint!(SourceOrder => sources.reverse());
        Parts {
            sources,
            buffer_at,
            bottom_at,
            ranges,
            tokens,
        }
    }

    /// Returns the job that flushes a sealed memtable.
    fn flush_job(&self, shared: &Shared, sealed: Sealed) -> Result<Box<dyn Job>> {
        match &self.buffer {
            Some(buffer) => buffer.flush_job(sealed),
            None => self
                .bottom
                .drain_job(sealed.into_drain(&shared.flush_credits)),
        }
    }

    /// Returns the bytes of a spare memtable that is large enough for `batch`.
    fn spare_bytes(&self, batch: Option<&Batch>) -> SpareBytes {
        let spares = self.front.spares();
        spares.map_or_else(SpareBytes::default, |spares| spares.bytes(batch))
    }

    /// Returns the bytes of a memtable for `batch`, if one of the usual size does not take it.
    fn larger_spare(&self, batch: &Batch) -> Option<SpareBytes> {
        self.front.spares()?.larger(batch)
    }

    /// Returns the bytes of the largest table of the buffer.
    fn table_bytes_largest(&self) -> u64 {
        let buffer = self.buffer.as_ref();
        buffer.map_or(0, |buffer| buffer.table_bytes_largest())
    }

    /// Returns the bytes of memtables that are not in table files yet, if flushes write table
    /// files.
    fn unflushed_bytes(&self, shared: &Shared) -> u64 {
        if self.buffer.is_some() {
            return 0;
        }
        // Read before the usage: if a flush ends in between, its bytes count as written in both.
        let written = shared.flush_credits.bytes();
        self.front.unflushed_bytes().saturating_sub(written)
    }

    /// Returns the sources above the bottom, newest first.
    fn sources_above(&self) -> Sources {
        let mut sources = self.front.sources();
        sources.extend(self.buffer.iter().flat_map(|buffer| buffer.sources()));
        sources
    }

    /// Returns whether tables leave the buffer eventually.
    fn drains(&self) -> bool {
        self.buffer.is_some() && self.bottom.takes() != Takes::Nothing
    }

    /// Returns whether the buffer contains an entry up to `seq` that is going to leave it.
    fn buffers_up_to(&self, seq: SeqNo) -> bool {
        if !self.drains() {
            return false;
        }
        let tables = self.buffer.iter().flat_map(|buffer| buffer.sources());
        tables.into_iter().any(|table| table.seqs().0 <= seq)
    }

    /// Returns the number and the bytes of memtables and tables of the buffer.
    fn tables(&self) -> (usize, u64) {
        let buffer = self.buffer.as_ref();
        let count = 1 + self.front.sealed_count() + buffer.map_or(0, |it| it.table_count());
        (count, self.front.unflushed_bytes() + self.buffered_bytes())
    }

    /// Returns the bytes of the tables in the buffer.
    fn buffered_bytes(&self) -> u64 {
        let buffer = self.buffer.as_ref();
        buffer.map_or(0, |buffer| buffer.table_bytes())
    }

    /// Returns whether the buffer contains tables to drain, or the bottom has yet to place drained
    /// data.
    fn is_buffering(&self) -> bool {
        let buffer = self.buffer.as_ref().filter(|_| self.drains());
        buffer.is_some_and(|buffer| buffer.table_count() > 0) || !self.bottom.is_drained()
    }
}

/// One open database, below its API.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stages: Stages,
    /// The sizes of the front.
    shape: FrontShape,
    pub(crate) views: Views,
    /// `None`: each read searches alone.
    read_workers: Option<ReadWorkers>,
    /// The views that iterators hold between chunks.
    pub(crate) held: HeldViews,
    pub(crate) jobs: Jobs,
    pub(crate) throttle: Throttle,
    /// The first failure of a write or of a job. Nothing is written after it.
    failure: OnceLock<Error>,
    closed: AtomicBool,
    calls: Calls,
    /// The bytes needed by callers that make a memtable larger than usual.
    larger_needed: Mutex<Vec<SpareBytes>>,
    /// The waits in vain for readers to release what they pin.
    vain_waits: Mutex<VainWaits>,
    /// The process that opened the database; a forked child must not use it.
    process: u32,
    /// Whether an ingest is in progress.
    ingesting: AtomicBool,
    /// Whether a read has found damage.
    damage: Once,
}

impl Engine {
    /// Creates an engine over recovered stages. No job runs yet.
    pub(crate) fn new(shared: Arc<Shared>, stages: Stages) -> Engine {
        let views = Views::new(stages.parts(&shared));
        let throttle = Throttle::new(&shared, &stages);
        Engine {
            jobs: Jobs::new(
                shared.options.background.workers,
                ThreadPool::new(&shared.options, &stages),
            ),
            views,
            read_workers: ReadWorkers::new(shared.options.read_worker_count()),
            held: HeldViews::default(),
            throttle,
            shape: stages.front.shape(),
            shared,
            stages,
            failure: OnceLock::new(),
            closed: AtomicBool::new(false),
            calls: Calls::default(),
            larger_needed: Mutex::default(),
            vain_waits: Mutex::default(),
            process: process_id(),
            ingesting: AtomicBool::new(false),
            damage: Once::default(),
        }
    }

    /// Stops all writes and keeps the first cause. Reads continue.
    pub(crate) fn fail(&self, error: &Error) {
        let is_first = self.failure.set(error.clone()).is_ok();
        self.shared.sequencer.break_off();
        self.jobs.wake_all();
        if is_first {
            event!(
                error,
                "terrace::failure",
                self.shared.db,
                "the store stopped and accepts no writes until it is reopened: {error}"
            );
        }
    }

    /// Reports the first damage that reads find. Errors of reads may contain keys, so they are not
    /// logged; each goes to its caller.
    #[cold]
    pub(crate) fn note_damage(&self, error: &Error) {
        if error.kind() == ErrorKind::Corruption && self.damage.is_first() {
            event!(
                warn,
                "terrace::failure",
                self.shared.db,
                "a read found damage and returned an error; run verify, because damage found by \
                 later reads is not logged"
            );
        }
    }

    /// Returns an error if the database takes no writes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.shared.options.read_only {
            return Err(Error::read_only());
        }
        self.check_not_failed()
    }

    /// Returns an error with the first failure of a write or of a job, if there was one.
    pub(crate) fn check_not_failed(&self) -> Result<()> {
        match self.failure.get() {
            Some(first) => Err(Error::stopped(first)),
            None => Ok(()),
        }
    }

    /// Returns an error if the database is closed.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            Err(Error::closed())
        } else if self.is_foreign() {
            Err(Error::invalid(
                "this database was opened by the parent of this forked process: close it there, \
                 and open it here",
            ))
        } else {
            Ok(())
        }
    }

    /// Returns an error if the database was closed before all reads of the caller were done. After
    /// a close another process may change the pool.
    #[inline]
    pub(crate) fn check_still_open(&self) -> Result<()> {
        // The fence keeps the reads before it from moving after the load of the flag.
        fence(Ordering::Acquire);
        self.check_open()
    }

    /// Returns whether this is a child forked from the process that has the database open. A child
    /// has none of the threads and shares files and pool with its parent, so it must change
    /// nothing.
    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.process != process_id()
    }

    /// Returns whether a write or a job has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Marks the database closed. Returns false if it was closed before.
    pub(crate) fn mark_closed(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Returns the free space. Also sets how much writers are slowed.
    pub(crate) fn headroom(&self) -> throttle::Headroom {
        let pressure = self.stages.bottom.need().pressure();
        let logs = self.stages.front.log_file_bytes();
        let unflushed = self.stages.unflushed_bytes(&self.shared);
        let flushes = unflushed > 0 && self.stages.front.sealed_count() > 0;
        let busy = flushes || self.jobs.is_busy();
        let backlogs = throttle::Backlogs {
            bottom: pressure,
            tables: self.stages.tables(),
            log_bytes: logs,
            unflushed_bytes: unflushed,
            spare: self.largest_needed(),
            table_bytes: self.stages.table_bytes_largest(),
        };
        self.throttle.headroom(&self.shared, backlogs, busy)
    }

    /// Builds and installs a view of the current state of the stages.
    pub(crate) fn install_view(&self) {
        self.views
            .install(|| self.stages.parts(&self.shared), Vec::new());
    }

    /// Returns all metrics.
    pub(crate) fn metrics(&self) -> Metrics {
        let usage = self.shared.pool.usage();
        let ranges = self.views.pin().ranges.clone();
        let mut metrics = Metrics {
            pool: PoolMetrics {
                description: self.shared.pool.describe(),
                cap_bytes: usage.cap,
                committed_bytes: usage.committed,
                allocated_bytes: usage.allocated,
            },
            pm: self.shared.pool.counts(),
            life: self.shared.totals().into(),
            rate_limiter: self.shared.rate_limiter.metrics(),
            retries: self.jobs.retries(),
            snapshot_count: self.shared.snapshots.count(),
            reserve_bytes: self.shared.reserve.bytes(),
            range_delete_count: ranges.map_or(0, |ranges| ranges.len() as u64),
            ..self.shared.counters.metrics()
        };
        self.stages.front.measure(&mut metrics);
        if let Some(buffer) = &self.stages.buffer {
            buffer.measure(&mut metrics);
        }
        self.stages.bottom.measure(&mut metrics);
        metrics.memory = self.memory_metrics(&metrics);
        metrics
    }

    /// Returns the memory in use, divided as the plan of a memory budget would be.
    fn memory_metrics(&self, metrics: &Metrics) -> MemoryMetrics {
        let (options, memory) = (&self.shared.options, &self.shared.memory);
        // A range delete that moves is in both for a moment: only one copy counts.
        let below = self.stages.bottom.ranges().map_or(0, |spans| spans.bytes());
        let ranges = self.shared.ranges.bytes().max(below);
        let (reads, writes) = memory.calls_bytes();
        let used = |name| match name {
            memory::POOL => metrics.pool.allocated_bytes,
            memory::MEMTABLES => memory.arenas.used(),
            memory::SEARCH => memory.search_hints.used(),
            memory::CACHE => metrics.cache.used_bytes,
            memory::JOBS => memory.jobs.used(),
            memory::ITERATORS => memory.iterators.used(),
            memory::READS => reads,
            memory::WRITES => writes,
            memory::RANGES => ranges as u64 * commit::RANGE_COPIES,
            _ => 0,
        };
        let parts = memory.plan.iter().map(|part| MemoryUse {
            name: part.name,
            used_bytes: used(part.name),
            limit_bytes: memory.is_limited().then_some(part.bytes),
        });
        MemoryMetrics {
            budget_bytes: options.memory_bytes,
            parts: parts.filter(|part| part.name != memory::REST).collect(),
        }
    }
}
