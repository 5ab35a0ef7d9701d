//! A region: mapped bytes addressed by offset, read by everybody and made durable by their writer.
//!
//! Every link between two places on media is an offset, and a region turns it into memory after
//! checking it, so that a corrupt offset is an absent answer and never a wild access. The check is
//! one subtraction and one comparison with the committed length.
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
/// Offsets start at `origin`: a pool's region has the origin 0; an arena's has the offset of the
/// extent that it will be copied to, so that links have the same value in both homes. Cloning
/// copies two words and a reference count.
#[derive(Clone)]
pub struct Region {
    base: *mut u8,
    origin: u64,
    map: Arc<Mapping>,
}

// SAFETY: the pointer is the mapping's base (R1), and access to the bytes behind it is either
// atomic or to bytes that no longer change (R3).
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

    /// The position in the mapping of a range, if all of it is committed.
    #[inline(always)]
    pub(crate) fn locate(&self, off: u64, len: usize) -> Option<u64> {
        let at = off.wrapping_sub(self.origin);
        let committed = self.map.committed();
        (at <= committed && len as u64 <= committed - at).then_some(at)
    }

    /// The word at an offset; `None` if the offset is unaligned or outside of the mapped range.
    #[inline(always)]
    pub fn word(&self, off: u64) -> Option<&AtomicU64> {
        let at = off.wrapping_sub(self.origin);
        // An aligned offset below a length of whole words has its word inside (R2).
        if at & 7 == 0 && at < self.map.committed() {
            // SAFETY: aligned and committed; the memory lives as long as `self` (R1).
            Some(unsafe { AtomicU64::from_ptr(self.base.add(at as usize).cast()) })
        } else {
            None
        }
    }

    /// Published bytes, which no longer change; `None` if they are not all inside of the mapped
    /// range.
    #[inline(always)]
    pub fn bytes(&self, off: u64, len: usize) -> Option<&[u8]> {
        let at = self.locate(off, len)?;
        // SAFETY: committed, alive as long as `self` (R1), and unchanging once published (R3).
        Some(unsafe { std::slice::from_raw_parts(self.base.add(at as usize), len) })
    }

    /// Asks the processor to load the line at an offset. Any offset is allowed.
    #[inline(always)]
    pub fn prefetch(&self, off: u64) {
        // A prefetch never faults, so the address needs no check; it is computed without claiming
        // that it lies inside of the mapping.
        let address = self
            .base
            .wrapping_add(off.wrapping_sub(self.origin) as usize);
        prefetch_line(address);
    }

    /// The offset of the first mapped byte.
    #[inline]
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// The offset after the last mapped byte right now; it moves up as a pool grows.
    #[inline]
    pub fn end(&self) -> u64 {
        self.origin + self.map.committed()
    }

    /// Starts making the lines of a range durable; they are after the next fence of this thread.
    /// A range that is not mapped is ignored.
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

    /// Stores a word, for readers at once and for recovery when this returns. What the word makes
    /// reachable has to be durable before the call.
    #[inline]
    pub fn publish(&self, off: u64, value: u64, purpose: Purpose) -> Option<()> {
        self.word(off)?.store(value, Ordering::Release);
        self.persist(off, 8, purpose);
        Some(())
    }

    /// Makes the pages of a range durable on media where lines cannot be flushed. Does nothing on
    /// `Dax`, where flushing lines is enough, and on memory that is not durable at all.
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
