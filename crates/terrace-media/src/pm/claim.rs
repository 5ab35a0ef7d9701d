//! Claims: ranges that one writer owns, and the bump allocator that creates them.
//!
//! A claim is the only way to write plain bytes. Claims of one allocator never overlap, so writers
//! need no lock among themselves. The bytes written to a claim become visible to readers when its
//! offset is published with a release store.
//!
//! Invariants
//!   B1  `used` only grows, and a range is handed out once.
//!   B2  A claim's range is committed memory of its region.

use super::count::Purpose;
use super::region::Region;
use std::borrow::Borrow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A range with one exclusive writer.
///
/// A claim owns its region by default, so that it can be stored and sent; `Claim<&Region>`, from
/// `Bump::lend`, borrows it and saves a reference count.
pub struct Claim<R = Region> {
    region: R,
    off: u64,
    at: u64,
    len: usize,
}

impl<R: Borrow<Region>> Claim<R> {
    pub(crate) fn new(region: R, off: u64, len: usize) -> Option<Claim<R>> {
        let at = region.borrow().locate(off, len)?;
        Some(Claim {
            region,
            off,
            at,
            len,
        })
    }

    /// Returns the offset of the first byte.
    #[inline]
    pub fn off(&self) -> u64 {
        self.off
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether the claim is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the region that contains the claim.
    #[inline]
    pub fn region(&self) -> &Region {
        self.region.borrow()
    }

    /// Returns the position in the mapping of `len` bytes at `at`.
    ///
    /// # Panics
    /// If they are not all inside the claim.
    #[inline]
    fn place(&self, at: usize, len: usize) -> u64 {
        assert!(
            at <= self.len && len <= self.len - at,
            "a write of {len} bytes at {at} exceeds its claim of {} bytes",
            self.len
        );
        self.at + at as u64
    }

    #[inline]
    fn pointer(&self, at: usize, len: usize) -> *mut u8 {
        let place = self.place(at, len);
        // SAFETY: inside the claim, which is committed memory (B2).
        unsafe { self.region.borrow().map().base().add(place as usize) }
    }

    /// Copies bytes in. They are not durable until they are flushed and fenced.
    ///
    /// # Panics
    /// If the range is not inside the claim.
    #[inline]
    pub fn write(&mut self, at: usize, src: &[u8]) {
        let dst = self.pointer(at, src.len());
        // SAFETY: this claim owns the destination exclusively (B1), so it cannot overlap a source
        // that others may read.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) };
    }

    /// Copies bytes in so that they are durable after this thread's next fence. Bypasses the caches
    /// if the medium uses line flushes and the length makes it worthwhile, else copies and flushes.
    ///
    /// # Panics
    /// If the range is not inside the claim.
    #[inline]
    pub fn write_streaming(&mut self, at: usize, src: &[u8], purpose: Purpose) {
        let place = self.place(at, src.len());
        // SAFETY: the destination is committed (B2) and owned by this claim alone (B1).
        unsafe { self.region.borrow().map().stream(place, src, purpose) };
    }

    /// Stores a word at an 8-byte aligned offset, relaxed.
    ///
    /// # Panics
    /// If the word is not inside the claim, or not aligned.
    #[inline]
    pub fn store(&mut self, at: usize, word: u64) {
        let dst = self.pointer(at, 8).cast::<u64>();
        assert!(dst.is_aligned(), "a word is stored at a multiple of 8");
        // SAFETY: inside the claim and aligned.
        unsafe { AtomicU64::from_ptr(dst) }.store(word, Ordering::Relaxed);
    }

    /// Fills a range with zeros.
    ///
    /// # Panics
    /// If the range is not inside the claim.
    #[inline]
    pub fn fill_zero(&mut self, at: usize, len: usize) {
        let dst = self.pointer(at, len);
        // SAFETY: inside the claim, which owns its bytes exclusively (B1).
        unsafe { std::ptr::write_bytes(dst, 0, len) };
    }
}

impl<R: Borrow<Region>> fmt::Debug for Claim<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({}+{})", self.off, self.len)
    }
}

/// Keeps the changing counter off the cache line of the fields that every claim reads.
#[repr(align(128))]
struct Used(AtomicU64);

/// Hands out disjoint claims of one extent or arena, without a lock.
pub struct Bump {
    region: Region,
    start: u64,
    capacity: u64,
    used: Used,
}

impl Bump {
    pub(crate) fn new(region: Region, start: u64, capacity: u64, used: u64) -> Bump {
        assert!(start.is_multiple_of(64), "an allocator starts at a line");
        assert!(used <= capacity, "used bytes are within the capacity");
        Bump {
            region,
            start,
            capacity,
            used: Used(AtomicU64::new(used)),
        }
    }

    /// Claims the next `len` bytes, rounded up to 8, at a multiple of `align`. Returns `None` if
    /// they do not fit; smaller claims may still succeed.
    ///
    /// # Panics
    /// If `align` is not a power of two from 1 to 64. Values below 8 mean 8.
    #[inline]
    pub fn claim(&self, len: usize, align: usize) -> Option<Claim> {
        let (off, len) = self.take(len, align)?;
        Claim::new(self.region.clone(), off, len)
    }

    /// As `claim`, but borrows the region: cheaper for a claim that is used and dropped at once.
    #[inline]
    pub fn lend(&self, len: usize, align: usize) -> Option<Claim<&Region>> {
        let (off, len) = self.take(len, align)?;
        Claim::new(&self.region, off, len)
    }

    #[inline]
    fn take(&self, len: usize, align: usize) -> Option<(u64, usize)> {
        assert!(
            align.is_power_of_two() && align <= 64,
            "claims align to at most a line"
        );
        let align = (align as u64).max(8);
        let len = len.checked_next_multiple_of(8)?;
        let mut used = self.used.0.load(Ordering::Relaxed);
        // BOUND: each retry follows a spurious failure or another thread's claim, and the capacity
        // is finite.
        loop {
            // The start is line-aligned, so aligning the position aligns the offset.
            let at = used.next_multiple_of(align);
            let end = at
                .checked_add(len as u64)
                .filter(|end| *end <= self.capacity)?;
            match self
                .used
                .0
                .compare_exchange_weak(used, end, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some((self.start + at, len)),
                Err(now) => used = now,
            }
        }
    }

    /// Returns the number of claimed bytes, including alignment gaps.
    #[inline]
    pub fn used(&self) -> u64 {
        self.used.0.load(Ordering::Relaxed)
    }

    /// Returns the number of unclaimed bytes.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.capacity - self.used()
    }

    /// Returns the total number of bytes.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the offset of the first byte.
    #[inline]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the region that contains the claims.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }
}

impl fmt::Debug for Bump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Bump({}+{}, {} used)",
            self.start,
            self.capacity,
            self.used()
        )
    }
}
