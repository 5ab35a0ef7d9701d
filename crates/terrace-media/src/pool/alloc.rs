//! Free space of a pool: an ordered map of free ranges, in DRAM only.
//!
//! The manifest knows what is allocated, so the map is never written to media: after a restart the
//! live extents are taken out of a fresh map, and a crash leaks nothing.
//!
//! Invariants
//!   A1  Free ranges are granule-aligned, inside of `start..cap`, and neither overlap nor touch.
//!   A2  `free_bytes` is the sum of their lengths.

use super::span::Span;
use std::collections::BTreeMap;

/// The free ranges of one pool.
pub(crate) struct FreeMap {
    granule: u64,
    start: u64,
    cap: u64,
    free: BTreeMap<u64, u64>,
    free_bytes: u64,
}

impl FreeMap {
    /// Returns a map in which all of `start..cap` is free, rounded inwards to granules.
    pub(crate) fn new(start: u64, cap: u64, granule: u64) -> FreeMap {
        assert!(granule.is_power_of_two(), "granules are powers of two");
        let start = start.next_multiple_of(granule);
        let cap = cap - cap % granule;
        let mut free = BTreeMap::new();
        let free_bytes = cap.saturating_sub(start);
        if free_bytes > 0 {
            free.insert(start, free_bytes);
        }
        FreeMap {
            granule,
            start,
            cap,
            free,
            free_bytes,
        }
    }

    /// Returns `len` rounded up to granules, at least one.
    pub(crate) fn round(&self, len: u64) -> Option<u64> {
        len.max(1).checked_next_multiple_of(self.granule)
    }

    /// Finds the lowest free span of `len` bytes that `fit` accepts, without taking it.
    pub(crate) fn find(&self, len: u64, fit: impl Fn(Span) -> bool) -> Option<Span> {
        self.free
            .iter()
            .filter(|(_, have)| **have >= len)
            .map(|(off, _)| Span { off: *off, len })
            .find(|span| fit(*span))
    }

    /// Finds `len` bytes at the start of the shortest free range that is long enough, without
    /// taking them.
    pub(crate) fn find_tight(&self, len: u64) -> Option<Span> {
        let long_enough = self.free.iter().filter(|(_, have)| **have >= len);
        let (&off, _) = long_enough.min_by_key(|(_, have)| **have)?;
        Some(Span { off, len })
    }

    /// Returns whether a span consists of whole granules inside the map.
    pub(crate) fn contains(&self, span: Span) -> bool {
        span.len > 0
            && span.off.is_multiple_of(self.granule)
            && span.len.is_multiple_of(self.granule)
            && span.off >= self.start
            && span.off <= self.cap
            && span.len <= self.cap - span.off
    }

    /// Takes exactly this span. Returns `false` and changes nothing if any of it is not free.
    pub(crate) fn take(&mut self, span: Span) -> bool {
        if !self.contains(span) {
            return false;
        }
        let Some((&off, &len)) = self.free.range(..=span.off).next_back() else {
            return false;
        };
        if off + len < span.off + span.len {
            return false;
        }
        self.free.remove(&off);
        if off < span.off {
            self.free.insert(off, span.off - off);
        }
        let (end, span_end) = (off + len, span.off + span.len);
        if span_end < end {
            self.free.insert(span_end, end - span_end);
        }
        self.free_bytes -= span.len;
        true
    }

    /// Frees a span and merges it with its neighbours.
    ///
    /// # Panics
    /// If any of it is free already, which is a double free.
    pub(crate) fn give(&mut self, span: Span) {
        assert!(self.contains(span), "only allocated spans are freed");
        let (mut off, mut end) = (span.off, span.off + span.len);
        if let Some((&before, &len)) = self.free.range(..=off).next_back() {
            assert!(before + len <= off, "a span is freed once");
            if before + len == off {
                self.free.remove(&before);
                off = before;
            }
        }
        if let Some((&after, &len)) = self.free.range(span.off..).next() {
            assert!(after >= end, "a span is freed once");
            if after == end {
                self.free.remove(&after);
                end += len;
            }
        }
        self.free.insert(off, end - off);
        self.free_bytes += span.len;
    }

    /// Returns the free ranges in order.
    #[cfg(test)]
    pub(crate) fn ranges(&self) -> Vec<Span> {
        self.free
            .iter()
            .map(|(off, len)| Span {
                off: *off,
                len: *len,
            })
            .collect()
    }

    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.cap.saturating_sub(self.start) - self.free_bytes
    }

    /// Returns the free bytes below `limit`. Nothing may be allocated above it.
    pub(crate) fn free_below(&self, limit: u64) -> u64 {
        self.free_bytes
            .saturating_sub(self.cap.saturating_sub(limit.max(self.start)))
    }

    /// Returns the lengths of the two longest free ranges below `limit`, 0 if there is no such
    /// range.
    pub(crate) fn largest_two(&self, limit: u64) -> (u64, u64) {
        let below = self.free.range(..limit);
        let below = below.map(|(&off, &len)| len.min(limit - off));
        below.fold((0, 0), |(first, second), len| {
            if len > first {
                (len, first)
            } else {
                (first, second.max(len))
            }
        })
    }

    /// Returns the end of the last allocated granule, or the start of the map if nothing is
    /// allocated.
    pub(crate) fn used_end(&self) -> u64 {
        match self.free.last_key_value() {
            Some((&off, &len)) if off + len == self.cap => off,
            _ => self.cap.max(self.start),
        }
    }
}
