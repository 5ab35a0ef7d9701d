//! This file is the values: windows of a prepared buffer, each telling whose value it is.
//!
//! The buffer is as compressible as db_bench's (half of it repeats). The value of a number is the
//! window at a place that follows from number and seed, with an 8-byte tag over its start, so any
//! value read can be checked without having been kept. Making one costs no allocation and no copy
//! beyond those 8 bytes.

use std::ops::Range;

/// The span over which windows start.
const STARTS: usize = 1 << 20;

/// The length of one compressible piece, of which the second half repeats the first.
const PIECE: usize = 100;

const TAG: usize = 8;

/// Makes and checks values for one thread.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    buffer: Vec<u8>,
    value_bytes: usize,
    seed: u64,
    /// What the last tag lies over, so that the next call can put it back.
    covered: [u8; TAG],
    covered_range: Range<usize>,
}

impl Values {
    /// Values of `value_bytes` bytes; the same seed always makes the same values.
    pub(crate) fn new(value_bytes: usize, seed: u64) -> Values {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut buffer = Vec::with_capacity(STARTS + value_bytes + PIECE);
        while buffer.len() < STARTS + value_bytes {
            let start = buffer.len();
            buffer.extend((0..PIECE / 2).map(|_| rng.u8(b' '..=b'~')));
            buffer.extend_from_within(start..);
        }
        Values {
            buffer,
            value_bytes,
            seed,
            covered: [0; TAG],
            covered_range: 0..0,
        }
    }

    /// The value of `number`.
    #[inline]
    pub(crate) fn value(&mut self, number: u64) -> &[u8] {
        self.uncover();
        let tag = tag(number, self.seed);
        let start = start_of(tag);
        let covered = start..start + TAG.min(self.value_bytes);
        self.covered[..covered.len()].copy_from_slice(&self.buffer[covered.clone()]);
        self.buffer[covered.clone()].copy_from_slice(&tag.to_le_bytes()[..covered.len()]);
        self.covered_range = covered;
        &self.buffer[start..start + self.value_bytes]
    }

    /// Whether `value` says that it belongs to `number`: its length and its tag, no more.
    #[inline]
    pub(crate) fn has_tag(&self, number: u64, value: &[u8]) -> bool {
        let len = TAG.min(self.value_bytes);
        value.len() == self.value_bytes
            && value[..len] == tag(number, self.seed).to_le_bytes()[..len]
    }

    /// Whether `value` is byte for byte the value of `number`.
    pub(crate) fn is_value(&mut self, number: u64, value: &[u8]) -> bool {
        self.value(number) == value
    }

    fn uncover(&mut self) {
        let range = self.covered_range.clone();
        let len = range.len();
        self.buffer[range].copy_from_slice(&self.covered[..len]);
    }
}

/// Mixes number and seed so that neighbours share nothing (the finalizer of SplitMix64).
#[inline]
fn tag(number: u64, seed: u64) -> u64 {
    let mut x = number.wrapping_add(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Where the window of a tag starts: aligned as an allocation would be.
#[inline]
fn start_of(tag: u64) -> usize {
    (tag as usize % STARTS) & !15
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value can be checked by any thread at any time, and only against its own number.
    #[test]
    fn values_are_derivable() {
        for value_bytes in [1, 7, 8, 9, 100, 4096] {
            let mut writer = Values::new(value_bytes, 42);
            let written: Vec<Vec<u8>> = (0..200).map(|n| writer.value(n).to_vec()).collect();
            let mut reader = Values::new(value_bytes, 42);
            for (n, value) in written.iter().enumerate().rev() {
                assert_eq!(value.len(), value_bytes);
                assert!(reader.has_tag(n as u64, value));
                assert!(reader.is_value(n as u64, value));
                if value_bytes >= 8 {
                    assert!(!reader.has_tag(n as u64 + 1, value));
                    assert!(!reader.is_value(n as u64 + 1, value));
                }
            }
        }
    }

    /// One changed byte anywhere is noticed.
    #[test]
    fn a_changed_byte_is_noticed() {
        let mut values = Values::new(256, 1);
        let good = values.value(5).to_vec();
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 1;
            assert!(!values.is_value(5, &bad), "byte {i}");
        }
    }

    /// An empty value is a value.
    #[test]
    fn empty_values_work() {
        let mut values = Values::new(0, 1);
        assert_eq!(values.value(5), b"");
        assert!(values.has_tag(9, b""));
    }
}
