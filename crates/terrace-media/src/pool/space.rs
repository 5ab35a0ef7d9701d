//! The space of an open pool: allocating, growing, faulting in and freeing.
//!
//! Invariants
//!   P2  (see `mod.rs`) holds because every change of the free map is made under one lock.
//!
//! Growing and faulting in happen outside that lock, since they take milliseconds: a span is taken
//! first, and freed if its bytes cannot be provided. Locks are taken in the order `free`,
//! `growing`, superblock, `populated`.

use super::alloc::FreeMap;
use super::backing::{Backing, Store};
use super::extent::Extent;
use super::layout::SLOT_BYTES_MAX;
use super::span::{AllocError, Span};
use super::{Pool, PoolConfig, PoolFaults, PoolInner, Prefault};
use crate::pm::map::HUGE;
use crate::pm::persist::Mapping;
use crate::pm::region::Region;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const _: () = assert!(SLOT_BYTES_MAX <= 4096, "a granule holds a slot");

/// The space usage of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolUsage {
    /// The maximum size in bytes.
    pub cap: u64,
    /// The size that is possible now: the cap, or the current size if the device is full.
    pub limit: u64,
    /// The length of the backing in bytes.
    pub committed: u64,
    /// Bytes in extents.
    pub allocated: u64,
    /// Bytes in no extent, up to the limit.
    pub free: u64,
    /// The longest extent that can be allocated.
    pub largest_free: u64,
    /// The second-longest free range.
    pub second_free: u64,
    /// The unit of allocation.
    pub granule: u64,
}

impl PoolUsage {
    /// Returns whether the device had no space for the last growth.
    pub fn is_device_full(&self) -> bool {
        self.limit < self.cap
    }

    /// Returns the bytes that are free when a device fills up, if the pool grows ahead of need.
    pub fn kept_ahead(&self) -> u64 {
        self.limit / (AHEAD_PART + 1)
    }

    /// Returns whether two extents of these lengths can be allocated, the longer one first. A
    /// length of 0 stands for no extent.
    pub fn fits(&self, lens: [u64; 2]) -> bool {
        let [a, b] = lens.map(|len| len.div_ceil(self.granule).saturating_mul(self.granule));
        let (long, short) = (a.max(b), a.min(b));
        // Each extent has a range of its own, in either order, or both share the largest range.
        let apart = self.largest_free >= long && self.second_free >= short;
        apart || self.largest_free >= long.saturating_add(short)
    }
}

/// The placement of an extent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fit {
    /// The lowest free offset, preferably one that was faulted in.
    Lowest,
    /// The start of the shortest free range that is long enough.
    Tight,
    /// The lowest free offset, if the extent ends at or before this offset.
    Below(u64),
}

/// A bit for each granule that was faulted in.
#[derive(Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn get(&self, i: u64) -> bool {
        self.0
            .get(i as usize / 64)
            .is_some_and(|word| word >> (i % 64) & 1 != 0)
    }

    fn set(&mut self, i: u64) {
        let word = i as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (i % 64);
    }

    /// Clears all bits from `i` on.
    fn clear_from(&mut self, i: u64) {
        let word = i as usize / 64;
        if word < self.0.len() {
            self.0.truncate(word + 1);
            self.0[word] &= (1 << (i % 64)) - 1;
        }
    }
}

/// A pool that grows ahead of need keeps one free byte for this many allocated ones.
const AHEAD_PART: u64 = 4;

/// The allocator of a pool, with the state of its pages.
pub(crate) struct Space {
    free: Mutex<FreeMap>,
    /// Held while the backing grows or shrinks.
    growing: Mutex<()>,
    /// Whether the device had no space for the last growth. Changed under `growing`.
    device_full: AtomicBool,
    /// See `Pool::grow_ahead`.
    ahead: AtomicBool,
    /// See `Pool::keep_extents`.
    keeps: AtomicBool,
    /// See `Pool::grow_to_at_most`.
    growth_max: AtomicU64,
    populated: Mutex<Bits>,
    prefault: Prefault,
    grow_bytes: u64,
    granule: u64,
    cap: u64,
}

/// Returns whether an error means that the device is full.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Grows the backing of a pool up to `step`, or up to `least` if the device has no space for the
/// whole step. Returns the new length.
pub(super) fn grow(
    store: &Store,
    faults: Option<&PoolFaults>,
    from: u64,
    (least, step): (u64, u64),
) -> io::Result<u64> {
    let grow = |to: u64| {
        faults.map_or(Ok(()), |faults| faults.grow(to))?;
        store.grow(from, to).map(|()| to)
    };
    match grow(step) {
        Err(e) if is_full(&e) && from < least && least < step => grow(least),
        grown => grown,
    }
}

/// The bytes that are faulted in at once. The system holds a lock on the process's memory
/// meanwhile, which a writer that allocates memory waits for.
const POPULATE_BYTES: u64 = 4 << 20;

impl Space {
    pub(crate) fn new(start: u64, cap: u64, granule: u64, config: &PoolConfig) -> Space {
        Space {
            free: Mutex::new(FreeMap::new(start, cap, granule)),
            growing: Mutex::default(),
            device_full: AtomicBool::new(false),
            ahead: AtomicBool::new(false),
            keeps: AtomicBool::new(false),
            growth_max: AtomicU64::new(cap),
            populated: Mutex::default(),
            prefault: config.prefault,
            grow_bytes: config.grow_bytes.max(granule).next_multiple_of(granule),
            granule,
            cap,
        }
    }

    pub(crate) fn usage(&self, committed: u64) -> PoolUsage {
        let free = self.free.lock();
        let limit = match self.device_full.load(Ordering::Relaxed) {
            true => committed - committed % self.granule,
            false => self.cap,
        };
        let (largest_free, second_free) = free.largest_two(limit);
        PoolUsage {
            cap: self.cap,
            limit,
            committed,
            allocated: free.allocated(),
            free: free.free_below(limit),
            largest_free,
            second_free,
            granule: self.granule,
        }
    }

    /// Returns the length that the backing should have, with free space for at least `needed`
    /// bytes.
    fn end_ahead(&self, committed: u64, needed: u64) -> u64 {
        let (used, free) = {
            let map = self.free.lock();
            (map.allocated(), map.free_below(committed))
        };
        let wanted = needed.max(used / AHEAD_PART);
        let end = committed.saturating_add(wanted.saturating_sub(free));
        // The cap is a multiple of the granule.
        end.min(self.cap)
            .next_multiple_of(self.granule)
            .min(self.cap)
    }

    pub(crate) fn adopt(&self, span: Span, end: u64) -> Result<(), AllocError> {
        let mut free = self.free.lock();
        if !free.contains(span) || span.off + span.len > end {
            return Err(AllocError::OutOfRange { span, end });
        }
        if free.take(span) {
            Ok(())
        } else {
            Err(AllocError::Overlap(span))
        }
    }

    /// Returns whether all granules of a span were faulted in.
    fn is_populated(&self, bits: &Bits, span: Span) -> bool {
        (span.off / self.granule..(span.off + span.len) / self.granule).all(|i| bits.get(i))
    }

    /// Faults in the granules of a span that were not faulted in before.
    pub(crate) fn populate(&self, span: Span, map: &Mapping) -> io::Result<()> {
        if self.prefault == Prefault::None {
            return Ok(());
        }
        let last = (span.off + span.len) / self.granule;
        let mut i = span.off / self.granule;
        // BOUND: `i` increases up to `last`.
        while i < last {
            let (start, end) = {
                let bits = self.populated.lock();
                let start = (i..last).find(|i| !bits.get(*i)).unwrap_or(last);
                let most = last.min(start + (POPULATE_BYTES / self.granule).max(1));
                (start, (start..most).find(|i| bits.get(*i)).unwrap_or(most))
            };
            if start == end {
                break;
            }
            let (at, len) = (start * self.granule, (end - start) * self.granule);
            map.memory().populate(at as usize, len as usize)?;
            let mut bits = self.populated.lock();
            (start..end).for_each(|i| bits.set(i));
            i = end;
        }
        Ok(())
    }
}

impl PoolInner {
    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Allocates a span for an extent.
    pub(super) fn allocate(&self, len: u64, fit: Fit) -> Result<Span, AllocError> {
        let space = &self.space;
        let full = |wanted| {
            let usage = space.usage(self.region.end());
            AllocError::Full {
                wanted,
                free: usage.free,
                cap: usage.limit,
            }
        };
        let span = {
            let mut free = space.free.lock();
            let wanted = free.round(len);
            let span = wanted.and_then(|wanted| match fit {
                Fit::Lowest => {
                    let bits = space.populated.lock();
                    let ready = free.find(wanted, |span| space.is_populated(&bits, span));
                    ready.or_else(|| free.find(wanted, |_| true))
                }
                Fit::Tight => free.find_tight(wanted),
                Fit::Below(limit) => free.find(wanted, |span| span.off + span.len <= limit),
            });
            if let Some(span) = span {
                let taken = free.take(span);
                assert!(taken, "a span found under the lock is free");
            }
            span.ok_or(wanted.unwrap_or(len))
        };
        let span = span.map_err(full)?;
        if let Err(e) = self.grow_to(span.off + span.len) {
            self.give_back(span);
            return Err(if is_full(&e) {
                full(span.len)
            } else {
                AllocError::Io(e)
            });
        }
        self.grow_ahead(0);
        if space.prefault != Prefault::None
            && let Err(e) = space.populate(span, self.region.map())
        {
            self.give_back(span);
            return Err(AllocError::Io(e));
        }
        Ok(span)
    }

    /// Commits the bytes up to `end`, or more.
    fn grow_to(&self, end: u64) -> io::Result<()> {
        let space = &self.space;
        if end <= self.region.end() {
            return Ok(());
        }
        let _growing = space.growing.lock();
        let committed = self.region.end();
        if end <= committed {
            return Ok(());
        }
        let most = space.growth_max.load(Ordering::Relaxed);
        let step = end.next_multiple_of(space.grow_bytes).min(most);
        let faults = self.faults.as_deref();
        let grown = match end <= most {
            true => grow(&self.store, faults, committed, (end, step)),
            false => Err(io::ErrorKind::StorageFull.into()),
        };
        let full = grown.as_ref().is_err_and(is_full);
        space.device_full.store(full, Ordering::Relaxed);
        // P1: the bytes are allocated now.
        self.region.map().set_committed(grown?);
        Ok(())
    }

    fn grow_ahead(&self, needed: u64) {
        let space = &self.space;
        if !space.ahead.load(Ordering::Relaxed) {
            return;
        }
        // `usage` reports a full device. Any other failure recurs when the bytes are needed.
        let _ = self.grow_to(space.end_ahead(self.region.end(), needed));
    }

    /// See `Pool::grow_ahead`.
    pub(crate) fn start_growing_ahead(&self, needed: u64) {
        self.space.ahead.store(true, Ordering::Relaxed);
        self.grow_ahead(needed);
    }

    /// See `Pool::look_for_room`.
    pub(crate) fn look_for_room(&self) -> bool {
        let space = &self.space;
        if !space.device_full.load(Ordering::Relaxed) {
            return false;
        }
        let committed = self.region.end();
        let end = space.end_ahead(committed, 0);
        self.grow_to(end.max(committed + space.granule).min(space.cap))
            .is_ok()
    }

    /// Returns the whole granules that take `len` bytes.
    pub(crate) fn round(&self, len: u64) -> Option<u64> {
        self.space.free.lock().round(len)
    }

    /// Frees a span, unless extents are kept.
    pub(crate) fn give_back(&self, span: Span) {
        // ORDERING: relaxed, since the caller of `keep_extents` still holds the extents that matter
        // and drops them later.
        if !self.space.keeps.load(Ordering::Relaxed) {
            self.space.free.lock().give(span);
        }
    }

    /// Grows to the cap and faults in all pages.
    pub(crate) fn prefault_all(&self) -> io::Result<()> {
        self.grow_to(self.space.cap)?;
        self.space.populate(
            Span {
                off: 0,
                len: self.space.cap,
            },
            self.region.map(),
        )
    }

    /// See `Pool::trim`.
    pub(crate) fn trim(&self) {
        let free = self.space.free.lock();
        let _growing = self.space.growing.lock();
        let committed = self.region.end();
        let unit = if self.space.grow_bytes >= HUGE as u64 {
            HUGE as u64
        } else {
            4096
        };
        // On a full device the reserve grown ahead is kept, because it could not be regained.
        let kept = match self.space.device_full.load(Ordering::Relaxed) {
            true => committed,
            false => free.used_end(),
        };
        let end = kept
            .next_multiple_of(unit.max(self.space.granule))
            .min(committed);
        if end == committed || self.space.prefault == Prefault::All {
            return;
        }
        // PERSIST: the shorter length in the superblock before the truncation. Reversed, a crash
        // could leave a pool that looks truncated (P3). `committed` is lowered first, so that an
        // update by another thread cannot restore it.
        self.region.map().set_committed(end);
        if self.update(|_| {}).is_err() || self.store.shrink(end, self.faults.as_deref()).is_err() {
            self.region.map().set_committed(committed);
            return;
        }
        self.space
            .populated
            .lock()
            .clear_from(end / self.space.granule);
    }

    /// Changes the superblock, durably.
    pub(crate) fn update(
        &self,
        change: impl FnOnce(&mut super::Superblock),
    ) -> Result<(), super::PoolError> {
        let error = |source| super::PoolError::Io {
            path: self.path.clone(),
            op: "update the superblock of",
            source,
        };
        let mut locked = self.superblock.lock();
        if locked.failed {
            return Err(error(io::Error::other(
                "an earlier update failed, so its state is unknown; reopen the pool",
            )));
        }
        let mut state = locked.state.clone();
        state.committed = self.region.end();
        state.generation += 1;
        change(&mut state);
        match super::superblock::write(&self.region, &state, locked.current) {
            Ok(()) => {
                locked.state = state;
                Ok(())
            }
            Err(e) => {
                locked.failed = true;
                Err(error(e))
            }
        }
    }
}

impl Pool {
    /// As `alloc`, but in the shortest free range that is long enough, which keeps long ranges
    /// intact.
    ///
    /// # Errors
    /// As `alloc`.
    pub fn alloc_tight(&self, len: u64) -> Result<Arc<Extent>, AllocError> {
        let span = self.inner.allocate(len, Fit::Tight)?;
        Ok(Extent::new(span, Arc::clone(&self.inner)))
    }

    /// As `alloc`, but only if the extent ends at or before the offset `limit`. Moving data from
    /// `limit` to such an extent merges the free space behind it.
    ///
    /// # Errors
    /// As `alloc`; `Full` if there is no such place.
    pub fn alloc_below(&self, len: u64, limit: u64) -> Result<Arc<Extent>, AllocError> {
        let span = self.inner.allocate(len, Fit::Below(limit))?;
        Ok(Extent::new(span, Arc::clone(&self.inner)))
    }

    /// Returns the size that the pool can reach before its device is full, or `None` if it is
    /// unknown.
    pub fn device_room(&self) -> Option<u64> {
        let inner = &self.inner;
        let free = match &inner.store {
            Store::File {
                path,
                device: false,
                ..
            } => Backing::File(path.clone()).free_bytes(),
            _ => None,
        };
        let room = free.map(|free| free.saturating_add(inner.region.end()));
        let faults = inner.faults.as_ref().and_then(|faults| faults.room());
        room.into_iter().chain(faults).min()
    }

    /// Leaves the rest of the device to others: growing beyond `bytes` fails as on a full device.
    pub fn grow_to_at_most(&self, bytes: u64) {
        let space = &self.inner.space;
        let most = bytes - bytes % space.granule;
        // ORDERING: relaxed, as a concurrent growth may still exceed the limit.
        space
            .growth_max
            .store(most.min(space.cap), Ordering::Relaxed);
    }

    /// Keeps the space of dropped extents allocated until the pool is closed. For a caller that
    /// does not know whether its last write reached the medium: the medium may refer to extents
    /// that the caller is about to drop, and their space must not be overwritten.
    pub fn keep_extents(&self) {
        self.inner.space.keeps.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two extents fit exactly if the longer one and then the shorter one can be allocated.
    #[test]
    fn two_extents_fit_where_they_can_be_allocated() {
        const GRANULE: u64 = 4096;
        let config = PoolConfig::new(crate::Backing::Anonymous, 64 * GRANULE);
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let space = Space::new(0, 64 * GRANULE, GRANULE, &config);
            for i in 0..64 {
                if rng.u8(..4) == 0 {
                    let span = Span {
                        off: i * GRANULE,
                        len: GRANULE,
                    };
                    assert!(space.free.lock().take(span));
                }
            }
            let lens = [rng.u64(1..12 * GRANULE), rng.u64(0..12 * GRANULE)];
            let fits = space.usage(space.cap).fits(lens);
            let mut free = space.free.lock();
            let (long, short) = (lens[0].max(lens[1]), lens[0].min(lens[1]));
            let allocated = [long, short].into_iter().all(|len| {
                let len = len.next_multiple_of(GRANULE);
                len == 0 || free.find(len, |_| true).is_some_and(|span| free.take(span))
            });
            assert_eq!(fits, allocated, "seed {seed}: {lens:?}");
        }
    }
}
