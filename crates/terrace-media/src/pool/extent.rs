//! Extents: ranges allocated from a pool, and the claims made inside them.
//!
//! An extent is reference-counted: its space is freed when the last holder drops it. The allocator
//! keeps no record on media. After a restart the manifest determines the owners, and recovery
//! adopts each extent that it names.

use super::PoolInner;
use super::span::Span;
use crate::pm::claim::{Bump, Claim};
use crate::pm::region::Region;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An allocated range of a pool. It keeps the pool's mapping alive, and its space is freed when the
/// last holder drops it.
pub struct Extent {
    off: u64,
    /// The bytes, which only become fewer.
    len: AtomicU64,
    pool: Arc<PoolInner>,
}

impl Extent {
    pub(crate) fn new(span: Span, pool: Arc<PoolInner>) -> Arc<Extent> {
        Arc::new(Extent {
            off: span.off,
            len: AtomicU64::new(span.len),
            pool,
        })
    }

    /// Returns the offset of the first byte.
    #[inline]
    pub fn off(&self) -> u64 {
        self.off
    }

    /// Returns the number of bytes, a multiple of the granule.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns whether the extent is empty, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the range.
    #[inline]
    pub fn span(&self) -> Span {
        Span {
            off: self.off,
            len: self.len(),
        }
    }

    /// Frees the bytes behind the first `len`, in whole granules.
    ///
    /// The caller ensures that nothing names or uses them, and that no other thread claims or frees
    /// parts of the extent meanwhile.
    pub fn shorten(&self, len: u64) {
        let Some(kept) = self.pool.round(len.max(1)) else {
            return;
        };
        let old = self.len();
        if kept < old {
            self.len.store(kept, Ordering::Relaxed);
            self.pool.give_back(Span {
                off: self.off + kept,
                len: old - kept,
            });
        }
    }

    /// Returns the first position at or after `at` that may have been written. The bytes before it
    /// are zeros of a file to which its file system has given no content, and reading them would
    /// make it clear pages for them.
    pub fn next_written(&self, at: u64) -> u64 {
        let found = self.pool.store.next_written(self.off.saturating_add(at));
        found.saturating_sub(self.off).clamp(at, self.len().max(at))
    }

    /// Returns the pool's region.
    #[inline]
    pub fn region(&self) -> &Region {
        self.pool.region()
    }

    /// Returns a bump allocator over the extent with the first `used` bytes already taken. A larger
    /// value than the length means the whole extent.
    ///
    /// The caller ensures that an extent has one writer at a time: no other allocator or claim over
    /// the bytes after `used` is alive.
    pub fn bump_from(&self, used: u64) -> Bump {
        self.bump_within(used, self.len())
    }

    /// As `bump_from`, over the first `capacity` bytes, or the whole extent if it has fewer.
    pub fn bump_within(&self, used: u64, capacity: u64) -> Bump {
        let capacity = capacity.min(self.len());
        Bump::new(
            self.region().clone(),
            self.off,
            capacity,
            used.min(capacity),
        )
    }

    /// Claims `len` bytes at `at` from the start; `None` if they are not inside the extent.
    ///
    /// The caller ensures that no one else writes them while the claim lives, and that they have no
    /// readers yet.
    pub fn claim(&self, at: u64, len: usize) -> Option<Claim> {
        Claim::new(self.region().clone(), self.place(at, len)?, len)
    }

    /// As `claim`, but borrows the region: cheaper for a claim that is used and dropped at once.
    #[inline]
    pub fn lend(&self, at: u64, len: usize) -> Option<Claim<&Region>> {
        Claim::new(self.region(), self.place(at, len)?, len)
    }

    /// Returns the offset of `len` bytes at `at` from the start, if they are inside.
    fn place(&self, at: u64, len: usize) -> Option<u64> {
        let all = self.len();
        let inside = at <= all && len as u64 <= all - at;
        inside.then(|| self.off + at)
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.pool.give_back(self.span());
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extent({})", self.span())
    }
}
