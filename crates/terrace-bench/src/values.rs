//! This file is the values: windows of a prepared buffer, each telling whose value it is.
//!
//! The buffer is as compressible as db_bench's (half of it repeats). The value of a number is the
//! window at a place that follows from number and seed, with an 8-byte tag over its start, so any
//! value read can be checked without having been kept. Making one costs no allocation and no copy
//! beyond those 8 bytes.
//!
//! The value of a record has a version: 4 bytes that say which write of it this is, and a tag that
//! follows from record, version, length and seed. So a value tells by itself whether it is whole and
//! whose it is, of any length, and a reader can compare its version with those that were written.

use std::ops::Range;

/// The span over which windows start.
const STARTS: usize = 1 << 20;

/// The length of one compressible piece, of which the second half repeats the first.
const PIECE: usize = 100;

const TAG: usize = 8;

/// What a record's value has before its window: its version and its tag. A shorter value has no version.
const HEADER: usize = 4 + TAG;

/// Makes and checks values for one thread.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    buffer: Vec<u8>,
    /// Values of numbers are so long at least, and all values at most.
    value_bytes_min: usize,
    value_bytes: usize,
    seed: u64,
    /// What the last tag lies over, so that the next call can put it back.
    covered: [u8; HEADER],
    covered_range: Range<usize>,
}

impl Values {
    /// Values of `value_bytes` bytes; the same seed always makes the same values.
    #[cfg(test)]
    pub(crate) fn new(value_bytes: usize, seed: u64) -> Values {
        Values::mixed(value_bytes, value_bytes, seed)
    }

    /// Values of `value_bytes_min` to `value_bytes` bytes, each length as often; the length of a
    /// number's value follows from number and seed.
    pub(crate) fn mixed(value_bytes_min: usize, value_bytes: usize, seed: u64) -> Values {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut buffer = Vec::with_capacity(STARTS + value_bytes + PIECE);
        while buffer.len() < STARTS + value_bytes {
            let start = buffer.len();
            buffer.extend((0..PIECE / 2).map(|_| rng.u8(b' '..=b'~')));
            buffer.extend_from_within(start..);
        }
        Values {
            buffer,
            value_bytes_min,
            value_bytes,
            seed,
            covered: [0; HEADER],
            covered_range: 0..0,
        }
    }

    /// The value of `number`.
    #[inline]
    pub(crate) fn value(&mut self, number: u64) -> &[u8] {
        let tag = tag(number, self.seed);
        self.window(tag, &tag.to_le_bytes(), self.len_of(tag))
    }

    /// The length of the value with `tag`.
    #[inline]
    fn len_of(&self, tag: u64) -> usize {
        if self.value_bytes_min >= self.value_bytes {
            return self.value_bytes;
        }
        // The upper half: the lower bits say where the window is.
        let lengths = (self.value_bytes - self.value_bytes_min + 1) as u64;
        self.value_bytes_min + (((tag >> 32) * lengths) >> 32) as usize
    }

    /// The value of `len` bytes that version `version` of `record` has. `len` is at most what these
    /// values were made for. One of less than 12 bytes has no room for a version: it is 0 there.
    #[inline]
    pub(crate) fn record(&mut self, record: u64, version: u32, len: usize) -> &[u8] {
        let version = if len < HEADER { 0 } else { version };
        let tag = self.record_tag(record, version, len);
        let mut header = [0; HEADER];
        if len < HEADER {
            header[..TAG].copy_from_slice(&tag.to_le_bytes());
        } else {
            header[..4].copy_from_slice(&version.to_le_bytes());
            header[4..].copy_from_slice(&tag.to_le_bytes());
        }
        self.window(tag, &header[..HEADER.min(len)], len)
    }

    /// Whether a value of `len` bytes says its version.
    pub(crate) fn has_version(len: usize) -> bool {
        len >= HEADER
    }

    /// The version of `record` that `value` says to be; `None` where it is no value of that record, by
    /// its tag or, with `exactly`, by any of its bytes.
    #[inline]
    pub(crate) fn version_of(&mut self, record: u64, value: &[u8], exactly: bool) -> Option<u32> {
        let len = value.len();
        if len > self.value_bytes {
            return None;
        }
        let version = match value.first_chunk::<4>() {
            Some(version) if len >= HEADER => u32::from_le_bytes(*version),
            _ => 0,
        };
        let right = if exactly || len < HEADER {
            self.record(record, version, len) == value
        } else {
            value[4..HEADER] == self.record_tag(record, version, len).to_le_bytes()
        };
        right.then_some(version)
    }

    #[inline]
    fn record_tag(&self, record: u64, version: u32, len: usize) -> u64 {
        // One mix more than for a plain number, since three parts go into it.
        tag(
            record ^ tag(u64::from(version) << 32 | len as u64, self.seed),
            self.seed,
        )
    }

    /// The window of `tag`, of `len` bytes and with `header` over its start.
    #[inline]
    fn window(&mut self, tag: u64, header: &[u8], len: usize) -> &[u8] {
        self.uncover();
        let start = start_of(tag);
        let covered = start..start + header.len().min(len);
        self.covered[..covered.len()].copy_from_slice(&self.buffer[covered.clone()]);
        self.buffer[covered.clone()].copy_from_slice(&header[..covered.len()]);
        self.covered_range = covered;
        &self.buffer[start..start + len]
    }

    /// Whether `value` says that it belongs to `number`: its length and its tag, no more.
    #[inline]
    pub(crate) fn has_tag(&self, number: u64, value: &[u8]) -> bool {
        let tag = tag(number, self.seed);
        let len = self.len_of(tag);
        value.len() == len && value[..TAG.min(len)] == tag.to_le_bytes()[..TAG.min(len)]
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

    /// The value of a record is recognised by any thread, with its version, whatever its length; a value
    /// of another record, another length or with any other byte is not.
    #[test]
    fn records_are_recognised() {
        let mut writer = Values::new(300, 42);
        let mut reader = Values::new(300, 42);
        for len in [12, 13, 100, 300] {
            for (record, version) in [(0, 0), (7, 1), (7, u32::MAX), (u64::MAX, 3)] {
                let value = writer.record(record, version, len).to_vec();
                assert_eq!(value.len(), len);
                for exactly in [false, true] {
                    let recognised = reader.version_of(record, &value, exactly);
                    assert_eq!(recognised, Some(version), "{record} {len}");
                    assert_eq!(reader.version_of(record ^ 1, &value, exactly), None);
                    assert_eq!(reader.version_of(record, &value[1..], exactly), None);
                    assert_eq!(reader.version_of(record, &value[..len - 1], exactly), None);
                }
                for i in 0..len {
                    let mut bad = value.clone();
                    bad[i] ^= 1;
                    assert_eq!(reader.version_of(record, &bad, true), None, "byte {i}");
                    if i < HEADER {
                        assert_eq!(reader.version_of(record, &bad, false), None, "byte {i}");
                    }
                }
            }
        }
        let long = vec![0; 301];
        assert_eq!(reader.version_of(1, &long, true), None);
    }

    /// A value too short for a version is still that of its record, as far as its bytes go.
    #[test]
    fn short_records_have_no_version() {
        let mut values = Values::new(64, 1);
        for len in 0..HEADER {
            assert!(!Values::has_version(len));
            let value = values.record(5, 9, len).to_vec();
            assert_eq!(values.version_of(5, &value, false), Some(0));
            if len >= 8 {
                assert_eq!(values.version_of(6, &value, false), None);
            }
        }
        assert!(Values::has_version(HEADER));
    }

    /// Mixed values reach both ends of their range, all lengths alike, and are checked like others.
    #[test]
    fn mixed_values_are_derivable_too() {
        let mut values = Values::mixed(10, 29, 3);
        let mut counts = [0u32; 30];
        for number in 0..20_000 {
            let value = values.value(number).to_vec();
            counts[value.len()] += 1;
            assert!(values.has_tag(number, &value) && values.is_value(number, &value));
            assert!(!values.has_tag(number, &value[1..]));
        }
        assert!(
            counts[10..].iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
    }

    /// An empty value is a value.
    #[test]
    fn empty_values_work() {
        let mut values = Values::new(0, 1);
        assert_eq!(values.value(5), b"");
        assert!(values.has_tag(9, b""));
    }
}
