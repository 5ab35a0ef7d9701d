//! Memory: keeps the parts of an open database within the limits of its budget.
//!
//! Parts without a fixed size (open iterators, jobs, memtables) take memory from a gauge. A full
//! gauge refuses, and its user does without or fails. Short-term memory of calls is granted in
//! permits: a call that needs much waits until others are done.
//!
//! Invariants
//!   G1  The bytes taken from a gauge never exceed its limit.
//!   G2  A call that has a permit takes no other, except one for an index block while it reads
//!       data; so permits always end.
//!
//! Without a budget nothing is limited, and only memtables are counted. Any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, ErrorKind};
use crate::metrics::human_bytes;
use crate::options::memory::Limits;
use crate::options::{MemoryPart, Options};

/// The cause of a refusal of memory within the budget.
#[derive(Debug)]
pub(crate) enum OutOfBudget {
    /// Readers hold it, and may release it soon.
    HeldByReaders,
    /// The budget never allows as much.
    TooLarge,
}

impl std::fmt::Display for OutOfBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OutOfBudget::HeldByReaders => "readers hold memory",
            OutOfBudget::TooLarge => "the memory budget is too small",
        })
    }
}

impl std::error::Error for OutOfBudget {}

/// Returns why the budget refused memory, if that was the cause of an error.
pub(crate) fn out_of_budget(why: &Error) -> Option<&OutOfBudget> {
    let mut cause = std::error::Error::source(why);
    // BOUND: causes are few.
    while let Some(e) = cause {
        if let Some(found) = e.downcast_ref() {
            return Some(found);
        }
        cause = e.source();
    }
    None
}

/// Returns whether readers hold what was refused, and may release it soon.
pub(crate) fn is_held_by_readers(why: &Error) -> bool {
    matches!(out_of_budget(why), Some(OutOfBudget::HeldByReaders))
}

/// The limit and the usage of one part.
#[derive(Debug)]
pub(crate) struct Gauge {
    max: u64,
    used: AtomicU64,
}

impl Gauge {
    /// Creates the gauge of a part that may take `max` bytes.
    pub(crate) fn new(max: u64) -> Arc<Gauge> {
        Arc::new(Gauge {
            max,
            used: AtomicU64::new(0),
        })
    }

    /// Returns the bytes taken.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes bytes; returns `false` and takes nothing if fewer are left.
    fn add(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.max);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Takes bytes until the lease is dropped; returns `None` if fewer are left.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<Lease> {
        self.add(bytes).then(|| Lease {
            gauge: Arc::clone(self),
            bytes,
        })
    }

    /// Returns an empty lease.
    pub(crate) fn lease(self: &Arc<Self>) -> Lease {
        Lease {
            gauge: Arc::clone(self),
            bytes: 0,
        }
    }
}

/// Bytes of a gauge, released on drop.
#[derive(Debug)]
pub(crate) struct Lease {
    gauge: Arc<Gauge>,
    bytes: u64,
}

impl Lease {
    /// Returns the number of bytes leased.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the lease to `bytes`; returns `false` and changes nothing if the gauge has fewer
    /// left.
    #[must_use]
    pub(crate) fn set(&mut self, bytes: u64) -> bool {
        if bytes > self.bytes && !self.gauge.add(bytes - self.bytes) {
            return false;
        }
        if bytes < self.bytes {
            let less = self.bytes - bytes;
            self.gauge.used.fetch_sub(less, Ordering::Relaxed);
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.gauge.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Short-term memory of calls.
#[derive(Debug)]
pub(crate) struct Permits {
    max: u64,
    used: Mutex<u64>,
    ended: Condvar,
}

/// The memory of one call, released on drop.
pub(crate) struct Permit<'a> {
    permits: &'a Permits,
    bytes: u64,
}

impl Permits {
    fn new(max: u64) -> Permits {
        Permits {
            max,
            used: Mutex::new(0),
            ended: Condvar::new(),
        }
    }

    /// Returns the bytes of all permits.
    fn used(&self) -> u64 {
        *self.used.lock()
    }

    /// Waits until `bytes` are left. A call that needs more than the limit has its permit alone.
    /// BOUND: permits end without waiting for anything but a device or space for a write (G2).
    pub(crate) fn take(&self, bytes: u64) -> Permit<'_> {
        let bytes = bytes.min(self.max);
        let mut used = self.used.lock();
        while self.max - *used < bytes {
            self.ended.wait(&mut used);
        }
        *used += bytes;
        Permit {
            permits: self,
            bytes,
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.permits.used.lock() -= self.bytes;
        self.permits.ended.notify_all();
    }
}

/// The memory of one open database.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) limits: Limits,
    /// Memtables outside of the pool.
    pub(crate) arenas: Arc<Gauge>,
    pub(crate) search_hints: Arc<Gauge>,
    pub(crate) iterators: Arc<Gauge>,
    /// Only counted: the memory of jobs is bounded by their input.
    pub(crate) jobs: Arc<Gauge>,
    /// Range deletes that writers are about to make.
    pub(crate) ranges: Arc<Gauge>,
    reads: Permits,
    index_reads: Permits,
    batches: Permits,
    /// The parts and their limits.
    pub(crate) plan: Vec<MemoryPart>,
}

/// Calls that need no more than this take no permit.
const SMALL_BYTES: u64 = 8 << 10;

impl Memory {
    /// Returns the memory of a database with these options.
    pub(crate) fn of(options: &Options) -> Arc<Memory> {
        Memory::new(Limits::of(options), options.parts_of_memory())
    }

    fn new(limits: Limits, plan: Vec<MemoryPart>) -> Arc<Memory> {
        Arc::new(Memory {
            arenas: Gauge::new(limits.arenas_bytes),
            search_hints: Gauge::new(limits.search_hints_bytes),
            iterators: Gauge::new(limits.iterators_bytes),
            jobs: Gauge::new(u64::MAX),
            ranges: Gauge::new(u64::MAX),
            reads: Permits::new(limits.data_reads_bytes()),
            index_reads: Permits::new(limits.reads_bytes - limits.data_reads_bytes()),
            plan,
            batches: Permits::new(limits.batches_bytes),
            limits,
        })
    }

    /// Returns memory without limits.
    pub(crate) fn unlimited() -> Arc<Memory> {
        Memory::new(Limits::none(), Vec::new())
    }

    /// Returns whether there is a budget.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.limits.are_set
    }

    /// Takes a permit to read `bytes` of an index or a filter, if there is a budget.
    #[inline]
    pub(crate) fn read_index(&self, bytes: u64) -> Option<Permit<'_>> {
        self.is_limited().then(|| self.index_reads.take(bytes))
    }

    /// Takes a permit to read `bytes` of data, if there is a budget.
    #[inline]
    pub(crate) fn read(&self, bytes: u64) -> Option<Permit<'_>> {
        self.is_limited().then(|| self.reads.take(bytes))
    }

    /// Takes a permit to encode and write `bytes`, if there is a budget and the batch is not small.
    #[inline]
    pub(crate) fn batch(&self, bytes: u64) -> Option<Permit<'_>> {
        (self.is_limited() && bytes > SMALL_BYTES).then(|| self.batches.take(bytes))
    }

    /// Returns the bytes of reads and of writes in progress that are counted.
    pub(crate) fn calls_bytes(&self) -> (u64, u64) {
        let reads = self.reads.used() + self.index_reads.used();
        (reads, self.batches.used())
    }

    /// Returns the error for an iterator that is refused.
    #[cold]
    pub(crate) fn iterators_are_full(&self) -> Error {
        Error::new(
            ErrorKind::Full,
            format!(
                "open iterators have reached their memory limit of {}: drop some of them, compact \
                 so that they read fewer tables, or reopen with a larger memory_bytes (--memory)",
                human_bytes(self.limits.iterators_bytes)
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that use a gauge concurrently never exceed its limit together, and nothing is taken
    /// when they are done.
    #[test]
    fn a_gauge_keeps_its_limit() {
        let gauge = Gauge::new(1000);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let gauge = &gauge;
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    let mut leases = Vec::new();
                    for _ in 0..20_000 {
                        match rng.u32(..3) {
                            0 => leases.extend(gauge.take(rng.u64(..400))),
                            1 => leases.truncate(rng.usize(..=leases.len())),
                            _ => {
                                let _ =
                                    leases.last_mut().map(|l: &mut Lease| l.set(rng.u64(..400)));
                            }
                        }
                        let own: u64 = leases.iter().map(Lease::bytes).sum();
                        assert!(own <= gauge.used() && gauge.used() <= 1000);
                    }
                });
            }
        });
        assert_eq!(gauge.used(), 0);
        assert!(gauge.take(1001).is_none());
        let mut lease = gauge.take(1000).unwrap();
        assert!(!lease.set(1001) && lease.bytes() == 1000);
        assert!(lease.set(1) && gauge.used() == 1);
    }

    /// Permits never exceed the limit together, all of them are granted, and one that is too large
    /// runs alone.
    #[test]
    fn permits_are_granted_one_after_the_other() {
        let permits = Permits::new(100);
        let running = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (permits, running) = (&permits, &running);
                scope.spawn(move || {
                    for i in 0..2000u64 {
                        let bytes = [10, 60, 100, 5000][((thread + i) % 4) as usize];
                        let permit = permits.take(bytes);
                        let now = running.fetch_add(permit.bytes, Ordering::SeqCst) + permit.bytes;
                        assert!(now <= 100, "{now}");
                        running.fetch_sub(permit.bytes, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(permits.used(), 0);
    }
}
