//! A region: mapped bytes addressed by offset, shared by readers and made durable by their writer.
//!
//! Every link between two places on media is an offset. A region checks it before it accesses
//! memory, so that a corrupt offset returns `None` and never causes a wild access. The check is one
//! subtraction and one comparison with the committed length.
//!
//! Invariants
//!   R1  `base` is the address of offset `origin`, and stays valid while `map` lives.
//!   R2  The committed length is a multiple of 8, and `origin` a multiple of 64.
//!   R3  A byte changes only through a claim before it is published, or through an atomic word.

use super::arch::LINE;
use super::count::Purpose;
use super::persist::Mapping;
use super::prefetch::prefetch_line;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Mapped bytes addressed by offset.
///
/// Offsets start at `origin`. The origin of a pool's region is 0. The origin of an arena is the
/// offset of the extent to which it will be copied, so that links keep their values. Cloning copies
/// two words and increments a reference count.
#[derive(Clone)]
pub struct Region {
    base: *mut u8,
    origin: u64,
    map: Arc<Mapping>,
}

// SAFETY: the pointer is the mapping's base (R1), and accesses to its bytes are either atomic or to
// bytes that no longer change (R3).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(map: Arc<Mapping>, origin: u64) -> Region {
        assert!(
            origin.is_multiple_of(LINE as u64),
            "an origin is the start of a line"
        );
        Region {
            base: map.base(),
            origin,
            map,
        }
    }

    #[inline(always)]
    pub(crate) fn map(&self) -> &Arc<Mapping> {
        &self.map
    }

    /// Returns the position of a range in the mapping, if all of it is committed.
    #[inline(always)]
    pub(crate) fn locate(&self, off: u64, len: usize) -> Option<u64> {
        let at = off.wrapping_sub(self.origin);
        let committed = self.map.committed();
        (at <= committed && len as u64 <= committed - at).then_some(at)
    }

    /// Returns the word at an offset; `None` if the offset is unaligned or outside the mapped
    /// range.
    #[inline(always)]
    pub fn word(&self, off: u64) -> Option<&AtomicU64> {
        let at = off.wrapping_sub(self.origin);
        // The committed length consists of whole words, so an aligned word below it is inside (R2).
        if at & 7 == 0 && at < self.map.committed() {
            // SAFETY: aligned and committed; the memory lives as long as `self` (R1).
            Some(unsafe { AtomicU64::from_ptr(self.base.add(at as usize).cast()) })
        } else {
            None
        }
    }

    /// Returns the `N` words from an offset on; `None` if the offset is unaligned or they are not
    /// all inside the mapped range.
    #[inline(always)]
    pub fn words<const N: usize>(&self, off: u64) -> Option<&[AtomicU64; N]> {
        let at = self.locate(off, 8 * N)?;
        if at & 7 != 0 {
            return None;
        }
        // SAFETY: aligned and committed; the memory lives as long as `self` (R1), and an atomic
        // word has the layout of a plain one.
        Some(unsafe { &*self.base.add(at as usize).cast() })
    }

    /// Returns published bytes, which no longer change; `None` if they are not all inside the
    /// mapped range.
    #[inline(always)]
    pub fn bytes(&self, off: u64, len: usize) -> Option<&[u8]> {
        let at = self.locate(off, len)?;
        // SAFETY: committed, alive as long as `self` (R1), and unchanging once published (R3).
        Some(unsafe { std::slice::from_raw_parts(self.base.add(at as usize), len) })
    }

    /// Prefetches the line at an offset. Any offset is allowed.
    #[inline(always)]
    pub fn prefetch(&self, off: u64) {
        // A prefetch never faults, so the address is not checked. `wrapping_add` allows an address
        // outside the mapping.
        let address = self
            .base
            .wrapping_add(off.wrapping_sub(self.origin) as usize);
        prefetch_line(address);
    }

    /// Returns the offset of the first mapped byte.
    #[inline]
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// Returns the current offset after the last mapped byte, which increases as a pool grows.
    #[inline]
    pub fn end(&self) -> u64 {
        self.origin + self.map.committed()
    }

    /// Starts the write-back of the lines of a range; they are durable after the next fence of this
    /// thread. Ignores a range that is not mapped.
    #[inline]
    pub fn flush(&self, off: u64, len: usize, purpose: Purpose) {
        if let Some(at) = self.locate(off, len) {
            self.map.flush(at, len, purpose);
        }
    }

    /// Waits until everything that this thread flushed or streamed is durable.
    #[inline]
    pub fn fence(&self, purpose: Purpose) {
        self.map.fence(purpose);
    }

    /// Makes the lines of a range durable.
    #[inline]
    pub fn persist(&self, off: u64, len: usize, purpose: Purpose) {
        self.flush(off, len, purpose);
        self.fence(purpose);
    }

    /// Stores a word that is visible to readers at once and durable when this returns. Everything
    /// that the word makes reachable must be durable before the call.
    #[inline]
    pub fn publish(&self, off: u64, value: u64, purpose: Purpose) -> Option<()> {
        self.word(off)?.store(value, Ordering::Release);
        self.persist(off, 8, purpose);
        Some(())
    }

    /// Makes the pages of a range durable on media that do not support line flushes. Does nothing
    /// on `Dax`, where flushing lines is enough, and on memory that is not durable at all.
    pub fn sync(&self, off: u64, len: usize) -> io::Result<()> {
        match self.locate(off, len) {
            Some(at) => self.map.sync(at, len),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("cannot sync {len} bytes at offset {off}: they are not mapped"),
            )),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}..{})", self.origin, self.end())
    }
}
