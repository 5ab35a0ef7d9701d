//! Extents: the ranges that a pool allocates, and the claims that are made inside of them.
//!
//! An extent belongs to its holders: when the last of them drops it, its space is free again. The
//! allocator keeps no record on media; who owns what after a restart is the manifest's knowledge,
//! and recovery adopts each extent that it names.

use super::PoolInner;
use super::span::Span;
use crate::pm::claim::{Bump, Claim};
use crate::pm::region::Region;
use std::fmt;
use std::sync::Arc;

/// A range of a pool in use. It keeps the pool's mapping alive, and its space is free again when
/// the last holder drops it.
pub struct Extent {
    span: Span,
    pool: Arc<PoolInner>,
}

impl Extent {
    pub(crate) fn new(span: Span, pool: Arc<PoolInner>) -> Arc<Extent> {
        Arc::new(Extent { span, pool })
    }

    /// The offset of the first byte.
    #[inline]
    pub fn off(&self) -> u64 {
        self.span.off
    }

    /// The number of bytes, whole granules.
    #[inline]
    pub fn len(&self) -> u64 {
        self.span.len
    }

    /// Whether the extent has no bytes, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.span.len == 0
    }

    /// The range.
    #[inline]
    pub fn span(&self) -> Span {
        self.span
    }

    /// The pool's region.
    #[inline]
    pub fn region(&self) -> &Region {
        self.pool.region()
    }

    /// A bump allocator over the extent of which the first `used` bytes are taken; more than the
    /// extent has means all of it.
    ///
    /// The caller promises that an extent has one writer at a time: no other allocator or claim
    /// over the bytes after `used` is alive.
    pub fn bump_from(&self, used: u64) -> Bump {
        Bump::new(
            self.region().clone(),
            self.span.off,
            self.span.len,
            used.min(self.span.len),
        )
    }

    /// A claim on `len` bytes at `at` from the start; `None` if they are not inside of the extent.
    ///
    /// The caller promises that nobody else writes them while the claim lives, and that no reader
    /// was given them.
    pub fn claim(&self, at: u64, len: usize) -> Option<Claim> {
        Claim::new(self.region().clone(), self.place(at, len)?, len)
    }

    /// As `claim`, but borrowing the region: cheaper for a caller that writes and moves on.
    #[inline]
    pub fn lend(&self, at: u64, len: usize) -> Option<Claim<&Region>> {
        Claim::new(self.region(), self.place(at, len)?, len)
    }

    /// The offset of `len` bytes at `at` from the start, if they are inside.
    fn place(&self, at: u64, len: usize) -> Option<u64> {
        let inside = at <= self.span.len && len as u64 <= self.span.len - at;
        inside.then(|| self.span.off + at)
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.pool.give_back(self.span);
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extent({})", self.span)
    }
}
