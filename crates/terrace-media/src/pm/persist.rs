//! A mapping with its persistence domain: the meaning of flush, fence and sync for a region.
//!
//! All regions over the same memory share one `Mapping`. It holds the flush instruction, counts all
//! operations by purpose, and reports every flush, fence and sync to the emulator and to the
//! simulator's hook. Without these, the cost is one branch.

use super::arch::{self, Flush};
use super::count::{Counters, Purpose};
use super::emulate::Emulator;
use super::map::Memory;
use crate::pool::faults::PoolFaults;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The events that the simulator receives. Offsets are positions in the mapping.
pub(crate) trait Hook: Send + Sync {
    /// The lines of this range were flushed or streamed.
    fn flushed(&self, at: u64, len: u64);
    /// A fence is about to take effect on this thread.
    fn fence(&self, purpose: Purpose);
    /// The pages of this range are being synced.
    fn sync(&self, at: u64, len: u64) -> io::Result<()>;
}

/// Optional parts, absent from most mappings.
#[derive(Default)]
pub(crate) struct Extras {
    pub(crate) hook: Option<Arc<dyn Hook>>,
    pub(crate) emulator: Option<Arc<Emulator>>,
    pub(crate) faults: Option<Arc<PoolFaults>>,
}

impl Extras {
    fn is_empty(&self) -> bool {
        self.hook.is_none() && self.emulator.is_none() && self.faults.is_none()
    }
}

/// Memory, its committed length, and its persistence domain. Aligned so that the `Arc` reference
/// counts in front of it do not share a cache line with fields that every access reads.
#[repr(align(128))]
pub(crate) struct Mapping {
    base: *mut u8,
    committed: AtomicU64,
    flush: Flush,
    needs_sync: bool,
    counters: Counters,
    extras: Option<Box<Extras>>,
    memory: Arc<Memory>,
    /// The error of the first sync that failed.
    sync_failed: OnceLock<String>,
}

// SAFETY: the pointer is the base of `memory`, which may be used from every thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Returns a mapping over `memory` with `committed` usable bytes. `needs_sync` is set if bytes
    /// become durable only by writing back their pages.
    pub(crate) fn new(
        memory: Arc<Memory>,
        committed: u64,
        flush: Flush,
        needs_sync: bool,
        extras: Extras,
    ) -> Mapping {
        assert!(
            committed.is_multiple_of(8),
            "committed lengths are whole words"
        );
        assert!(
            committed <= memory.len() as u64,
            "committed bytes are mapped"
        );
        Mapping {
            base: memory.base(),
            committed: AtomicU64::new(committed),
            flush,
            needs_sync,
            counters: Counters::new(),
            extras: (!extras.is_empty()).then(|| Box::new(extras)),
            memory,
            sync_failed: OnceLock::new(),
        }
    }

    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    #[inline(always)]
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub(crate) fn set_committed(&self, committed: u64) {
        assert!(
            committed.is_multiple_of(8),
            "committed lengths are whole words"
        );
        assert!(
            committed <= self.memory.len() as u64,
            "committed bytes are mapped"
        );
        self.committed.store(committed, Ordering::Release);
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn flush_kind(&self) -> Flush {
        self.flush
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Flushes the lines of a range that the caller has checked to be committed.
    #[inline]
    pub(crate) fn flush(&self, at: u64, len: usize, purpose: Purpose) {
        if len == 0 {
            return;
        }
        self.count(at, len, purpose);
        if self.flush != Flush::Nothing {
            // SAFETY: the range is committed, so it is mapped.
            unsafe { arch::flush(self.flush, self.base.add(at as usize), len) };
        }
        if let Some(extras) = &self.extras {
            extras.wrote(at, len);
        }
    }

    /// Copies bytes so that they are durable after the next fence.
    ///
    /// # Safety
    /// The range is committed, no other thread accesses it, and it does not overlap `src`.
    #[inline]
    pub(crate) unsafe fn stream(&self, at: u64, src: &[u8], purpose: Purpose) {
        if src.is_empty() {
            return;
        }
        self.count(at, src.len(), purpose);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let dst = self.base.add(at as usize);
            if self.flush == Flush::Nothing {
                std::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len());
            } else {
                arch::stream(self.flush, dst, src.as_ptr(), src.len());
            }
        }
        if let Some(extras) = &self.extras {
            extras.wrote(at, src.len());
        }
    }

    #[inline]
    fn count(&self, at: u64, len: usize, purpose: Purpose) {
        let (_, lines) = arch::cover(at as usize, len);
        self.counters.wrote(purpose, lines as u64);
    }

    #[inline]
    pub(crate) fn fence(&self, purpose: Purpose) {
        self.counters.fenced(purpose);
        if let Some(extras) = &self.extras {
            extras.before_fence(purpose);
        }
        arch::fence(self.flush);
    }

    /// Writes back the pages of a range if flushing lines is not enough.
    pub(crate) fn sync(&self, at: u64, len: usize) -> io::Result<()> {
        if !self.needs_sync {
            return Ok(());
        }
        self.only_while_syncs_succeed(|| {
            if let Some(extras) = &self.extras {
                if let Some(faults) = &extras.faults {
                    faults.sync()?;
                }
                if let Some(hook) = &extras.hook {
                    return hook.sync(at, len as u64);
                }
            }
            self.memory.msync(at as usize, len)
        })
    }

    /// Runs a sync; fails if this or any other sync of the mapping failed. The kernel reports a
    /// write-back error once per file and then treats the pages as clean, so a later sync, or a
    /// concurrent one of other pages, would wrongly succeed.
    pub(crate) fn only_while_syncs_succeed(
        &self,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.no_sync_failed()?;
        if let Err(e) = sync() {
            let _ = self.sync_failed.set(e.to_string());
            return Err(e);
        }
        self.no_sync_failed()
    }

    fn no_sync_failed(&self) -> io::Result<()> {
        match self.sync_failed.get() {
            None => Ok(()),
            Some(first) => Err(io::Error::other(format!(
                "an earlier sync of the pool failed: {first}"
            ))),
        }
    }
}

impl Extras {
    #[cold]
    fn wrote(&self, at: u64, len: usize) {
        if let Some(emulator) = &self.emulator {
            emulator.wrote(at, len as u64);
        }
        if let Some(hook) = &self.hook {
            hook.flushed(at, len as u64);
        }
    }

    #[cold]
    fn before_fence(&self, purpose: Purpose) {
        if let Some(emulator) = &self.emulator {
            emulator.fence();
        }
        if let Some(hook) = &self.hook {
            hook.fence(purpose);
        }
    }
}
