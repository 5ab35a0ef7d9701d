//! Free space of a pool: an ordered map of free ranges, in DRAM only.
//!
//! What is allocated is known from the manifest, so nothing here is ever written to media: after a
//! restart the live extents are taken out of an empty map again, and a crash leaks nothing.
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
    /// A map where everything in `start..cap` is free, rounded inwards to granules.
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

    /// `len` rounded up to granules; at least one.
    pub(crate) fn round(&self, len: u64) -> Option<u64> {
        len.max(1).checked_next_multiple_of(self.granule)
    }

    /// The lowest free place for `len` bytes of which `fit` approves. It is not taken yet.
    pub(crate) fn find(&self, len: u64, fit: impl Fn(Span) -> bool) -> Option<Span> {
        self.free
            .iter()
            .filter(|(_, have)| **have >= len)
            .map(|(off, _)| Span { off: *off, len })
            .find(|span| fit(*span))
    }

    /// Returns `len` bytes at the start of the shortest free range that has room for them. They are not taken yet.
    pub(crate) fn find_tight(&self, len: u64) -> Option<Span> {
        let long_enough = self.free.iter().filter(|(_, have)| **have >= len);
        let (&off, _) = long_enough.min_by_key(|(_, have)| **have)?;
        Some(Span { off, len })
    }

    /// Whether a span is made of whole granules inside of the map.
    pub(crate) fn contains(&self, span: Span) -> bool {
        span.len > 0
            && span.off.is_multiple_of(self.granule)
            && span.len.is_multiple_of(self.granule)
            && span.off >= self.start
            && span.off <= self.cap
            && span.len <= self.cap - span.off
    }

    /// Takes exactly this span; `false`, and no change, if any of it is not free.
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

    /// Gives a span back and joins it with its neighbours.
    ///
    /// # Panics
    /// If any of it is free already: somebody gave it back twice.
    pub(crate) fn give(&mut self, span: Span) {
        assert!(self.contains(span), "only what was taken is given back");
        let (mut off, mut end) = (span.off, span.off + span.len);
        if let Some((&before, &len)) = self.free.range(..=off).next_back() {
            assert!(before + len <= off, "a span is given back once");
            if before + len == off {
                self.free.remove(&before);
                off = before;
            }
        }
        if let Some((&after, &len)) = self.free.range(span.off..).next() {
            assert!(after >= end, "a span is given back once");
            if after == end {
                self.free.remove(&after);
                end += len;
            }
        }
        self.free.insert(off, end - off);
        self.free_bytes += span.len;
    }

    /// The free ranges in order.
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

    /// Returns how many bytes are free below `limit`. Nothing may be allocated above it.
    pub(crate) fn free_below(&self, limit: u64) -> u64 {
        self.free_bytes
            .saturating_sub(self.cap.saturating_sub(limit.max(self.start)))
    }

    /// Returns the lengths of the two longest free ranges below `limit`, 0 for a range that does not exist.
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

    /// The end of the last allocated granule; the start of the map if nothing is allocated.
    pub(crate) fn used_end(&self) -> u64 {
        match self.free.last_key_value() {
            Some((&off, &len)) if off + len == self.cap => off,
            _ => self.cap.max(self.start),
        }
    }
}
