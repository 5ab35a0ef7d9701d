//! Values: windows of a prepared buffer, each tagged with its owner.
//!
//! The buffer is as compressible as db_bench's (half of it repeats). As in db_bench, values are
//! taken from it in order, so that copying one hits the caches and adds no cost that a user's value
//! would not have. A tag of 8 bytes overlays the start of a value: 2 give its place in the buffer,
//! and 6 are derived from that place, its number and the seed, so any value read can be checked
//! without having been kept. Making one costs no allocation and no copy except those 8 bytes.
//!
//! The value of a record starts with a version: 4 bytes that number the writes of the record, and a
//! tag derived from record, version, length, place and seed. So a value of any length shows whether
//! it is whole and which record owns it, and a reader can compare its version with those that were
//! written.

/// Windows start at multiples of this, as allocations would.
const ALIGNED: usize = 16;

/// The span over which windows start: as many places as two bytes can distinguish.
const STARTS: usize = ALIGNED << 16;

/// The length of one compressible piece, whose second half repeats the first.
const PIECE: usize = 100;

const TAG: usize = 8;

/// The header of a record's value: its version and its tag. A shorter value has no version.
const HEADER: usize = 4 + TAG;

const _: () = assert!(HEADER <= ALIGNED, "a header fits at every offset");

/// The bits of a tag that do not give the place.
const HASH: u64 = (1 << 48) - 1;

/// Makes and checks values for one thread.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    buffer: Vec<u8>,
    /// The shortest value of a number, and the longest value of any kind.
    value_bytes_min: usize,
    value_bytes: usize,
    seed: u64,
    /// The place of the next value.
    next: u16,
    /// The bytes under the last header and their offset, so that the next call can restore them.
    /// Always as long as the longest header, so that saving them takes two moves and no call.
    covered: [u8; HEADER],
    covered_start: usize,
}

impl Values {
    /// Returns values of `value_bytes` bytes; the same seed always makes the same values.
    #[cfg(test)]
    pub(crate) fn new(value_bytes: usize, seed: u64) -> Values {
        Values::mixed(value_bytes, value_bytes, seed)
    }

    /// Returns values of `value_bytes_min` to `value_bytes` bytes, uniformly distributed; the
    /// length of a number's value is derived from number and seed.
    pub(crate) fn mixed(value_bytes_min: usize, value_bytes: usize, seed: u64) -> Values {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut buffer = Vec::with_capacity(STARTS + value_bytes + PIECE);
        while buffer.len() < STARTS + value_bytes {
            let start = buffer.len();
            buffer.extend((0..PIECE / 2).map(|_| rng.u8(b' '..=b'~')));
            buffer.extend_from_within(start..);
        }
        let mut values = Values {
            buffer,
            value_bytes_min,
            value_bytes,
            seed,
            next: 0,
            covered: [0; HEADER],
            covered_start: 0,
        };
        values.cover(0);
        values
    }

    /// Returns a value of `number`; each call takes it from the next place.
    #[inline]
    pub(crate) fn value(&mut self, number: u64) -> &[u8] {
        let len = self.len_of(number);
        let place = self.take_place(len);
        self.value_at(number, place, len)
    }

    /// Returns the bytes that `value` should have as a value of `number`.
    pub(crate) fn expected(&mut self, number: u64, value: &[u8]) -> &[u8] {
        self.value_at(number, place_in(value), self.len_of(number))
    }

    #[inline]
    fn value_at(&mut self, number: u64, place: u16, len: usize) -> &[u8] {
        let tag = tag(number, place, self.seed);
        self.window(place, tag.to_le_bytes(), len)
    }

    /// Returns the place of the next value, which is `len` bytes long, and advances past it.
    #[inline]
    fn take_place(&mut self, len: usize) -> u16 {
        if len < TAG {
            // Too short to store its place.
            return 0;
        }
        let place = self.next;
        self.next = place.wrapping_add(len.div_ceil(ALIGNED) as u16);
        place
    }

    /// Returns the length of the value of `number`.
    #[inline]
    fn len_of(&self, number: u64) -> usize {
        if self.value_bytes_min >= self.value_bytes {
            return self.value_bytes;
        }
        let lengths = (self.value_bytes - self.value_bytes_min + 1) as u64;
        let hash = mix(number, self.seed) >> 32;
        self.value_bytes_min + ((hash * lengths) >> 32) as usize
    }

    /// Returns the value of `len` bytes for version `version` of `record`. `len` must not exceed
    /// the length that these values were made for. A value of less than 12 bytes has no space for a
    /// version.
    #[inline]
    pub(crate) fn record(&mut self, record: u64, version: u32, len: usize) -> &[u8] {
        let place = self.take_place(len);
        self.record_at(record, version, len, place)
    }

    #[inline]
    fn record_at(&mut self, record: u64, version: u32, len: usize, place: u16) -> &[u8] {
        let version = if len < HEADER { 0 } else { version };
        let tag = self.record_tag(record, version, len, place);
        if len < HEADER {
            return self.window(place, tag.to_le_bytes(), len);
        }
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&version.to_le_bytes());
        header[4..].copy_from_slice(&tag.to_le_bytes());
        self.window(place, header, len)
    }

    /// Returns whether a value of `len` bytes contains its version.
    pub(crate) fn has_version(len: usize) -> bool {
        len >= HEADER
    }

    /// Returns the version of `record` in `value`; `None` if it is no value of that record, judged
    /// by its tag or, with `exactly`, by all of its bytes.
    #[inline]
    pub(crate) fn version_of(&mut self, record: u64, value: &[u8], exactly: bool) -> Option<u32> {
        let len = value.len();
        if len > self.value_bytes {
            return None;
        }
        let (version, place) = match value.first_chunk::<HEADER>() {
            Some(header) => {
                let version = header
                    .first_chunk::<4>()
                    .map_or(0, |b| u32::from_le_bytes(*b));
                (version, place_in(&header[4..]))
            }
            None => (0, place_in(value)),
        };
        let right = if exactly || len < HEADER {
            self.record_at(record, version, len, place) == value
        } else {
            value[4..HEADER] == self.record_tag(record, version, len, place).to_le_bytes()
        };
        right.then_some(version)
    }

    #[inline]
    fn record_tag(&self, record: u64, version: u32, len: usize, place: u16) -> u64 {
        // One mix more than for a plain number, since more parts enter it.
        let parts = u64::from(version) << 32 | len as u64;
        tag(record ^ mix(parts, self.seed), place, self.seed)
    }

    /// Returns the window of `len` bytes at `place`, with as much of `header` over its start as
    /// fits.
    #[inline]
    fn window<const N: usize>(&mut self, place: u16, header: [u8; N], len: usize) -> &[u8] {
        const { assert!(N <= HEADER) };
        let (covered, start) = (self.covered, self.covered_start);
        self.buffer[start..start + HEADER].copy_from_slice(&covered);
        let start = place as usize * ALIGNED;
        self.cover(start);
        if len >= N {
            self.buffer[start..start + N].copy_from_slice(&header);
        } else {
            self.buffer[start..start + len].copy_from_slice(&header[..len]);
        }
        &self.buffer[start..start + len]
    }

    /// Saves the bytes at `start`.
    #[inline]
    fn cover(&mut self, start: usize) {
        self.covered
            .copy_from_slice(&self.buffer[start..start + HEADER]);
        self.covered_start = start;
    }

    /// Returns whether `value` has the length and the tag of a value of `number`.
    #[inline]
    pub(crate) fn has_tag(&self, number: u64, value: &[u8]) -> bool {
        let len = self.len_of(number);
        let tag = tag(number, place_in(value), self.seed).to_le_bytes();
        match value.first_chunk::<TAG>() {
            Some(said) => value.len() == len && *said == tag,
            None => value.len() == len && *value == tag[..len],
        }
    }

    /// Returns whether `value` is byte for byte a value of `number`.
    pub(crate) fn is_value(&mut self, number: u64, value: &[u8]) -> bool {
        self.expected(number, value) == value
    }
}

/// Returns the place stored in the value that begins with `tag`.
#[inline]
fn place_in(tag: &[u8]) -> u16 {
    match tag.first_chunk::<TAG>() {
        Some([.., low, high]) => u16::from_le_bytes([*low, *high]),
        None => 0,
    }
}

/// Returns the tag of a value of `number` from `place`.
#[inline]
fn tag(number: u64, place: u16, seed: u64) -> u64 {
    let place = u64::from(place) << 48;
    mix(number ^ place, seed) & HASH | place
}

/// Mixes number and seed so that neighbours share nothing (the finalizer of SplitMix64).
#[inline]
fn mix(number: u64, seed: u64) -> u64 {
    let mut x = number.wrapping_add(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any thread can check a value at any time, and only against its own number, for every place
    /// in the buffer.
    #[test]
    fn values_are_derivable() {
        for value_bytes in [1, 7, 8, 9, 100, 4096, STARTS + 5] {
            let mut writer = Values::new(value_bytes, 42);
            // Each of the longest values begins where another one ends, beyond the end of the
            // places.
            let count = 200.min((1 << 23) / value_bytes as u64);
            let written: Vec<Vec<u8>> = (0..count).map(|n| writer.value(n).to_vec()).collect();
            let mut reader = Values::new(value_bytes, 42);
            for (n, value) in written.iter().enumerate().rev() {
                assert_eq!(value.len(), value_bytes);
                assert!(reader.has_tag(n as u64, value));
                assert!(reader.is_value(n as u64, value));
                assert_eq!(reader.expected(n as u64, value), value);
                if value_bytes >= 6 {
                    assert!(!reader.has_tag(n as u64 + 1, value));
                    assert!(!reader.is_value(n as u64 + 1, value));
                }
            }
        }
    }

    /// A change of any byte is noticed.
    #[test]
    fn a_changed_byte_is_noticed() {
        for len in [1, 7, 8, 256] {
            let mut values = Values::new(len, 1);
            for _ in 0..3 {
                let good = values.value(5).to_vec();
                for i in 0..good.len() {
                    let mut bad = good.clone();
                    bad[i] ^= 1;
                    assert!(!values.is_value(5, &bad), "byte {i}");
                    assert_eq!(values.has_tag(5, &bad), i >= TAG, "byte {i}");
                }
            }
        }
    }

    /// Values use all places in order, so that neighbours in time do not repeat each other.
    #[test]
    fn values_follow_each_other() {
        let mut values = Values::new(1000, 9);
        let first = values.value(1).to_vec();
        let second = values.value(1).to_vec();
        assert_eq!((place_in(&first), place_in(&second)), (0, 63));
        assert_ne!(first[TAG..], second[TAG..]);
        let buffer = Values::new(1000, 9).buffer;
        assert_eq!(second[TAG..], buffer[63 * ALIGNED + TAG..][..1000 - TAG]);
        // The bytes under a tag are restored, thousands of values later.
        for number in 0..3000 {
            values.value(number);
        }
        values.window(0, [], 0);
        values
            .buffer
            .iter()
            .zip(&buffer)
            .for_each(|(a, b)| assert_eq!(a, b));
    }

    /// Any thread recognises the value of a record with its version, for every length; a value of
    /// another record, another length or with a changed byte is rejected.
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

    /// A value too short for a version is still checked against its record by its bytes.
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

    /// Mixed values reach both ends of their range with uniform lengths, and are checked like
    /// others.
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
