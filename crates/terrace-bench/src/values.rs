//! This file is the values: windows of a prepared buffer, each telling whose value it is.
//!
//! The buffer is as compressible as db_bench's (half of it repeats). Values are taken from it one after the
//! other, as db_bench takes them, so that whoever copies one finds it in the caches and pays for nothing
//! that a user's value would not cost. Over the start of a value lies a tag of 8 bytes: 2 say where in the
//! buffer the value is from, and 6 follow from that, its number and the seed, so any value read can be
//! checked without having been kept. Making one costs no allocation and no copy beyond those 8 bytes.
//!
//! The value of a record has a version: 4 bytes that say which write of it this is, and a tag that
//! follows from record, version, length, place and seed. So a value tells by itself whether it is whole and
//! whose it is, of any length, and a reader can compare its version with those that were written.

/// Windows start at multiples of this, as allocations would.
const ALIGNED: usize = 16;

/// The span over which windows start: as many places as two bytes can tell apart.
const STARTS: usize = ALIGNED << 16;

/// The length of one compressible piece, of which the second half repeats the first.
const PIECE: usize = 100;

const TAG: usize = 8;

/// What a record's value has before its window: its version and its tag. A shorter value has no version.
const HEADER: usize = 4 + TAG;

const _: () = assert!(
    HEADER <= ALIGNED,
    "there is room for a header at every place"
);

/// What of a tag does not say the place.
const HASH: u64 = (1 << 48) - 1;

/// Makes and checks values for one thread.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    buffer: Vec<u8>,
    /// Values of numbers are so long at least, and all values at most.
    value_bytes_min: usize,
    value_bytes: usize,
    seed: u64,
    /// Where the next value is from.
    next: u16,
    /// What the last header lies over and where, so that the next call can put it back. Always as long as
    /// the longest header, so that it is two moves and no call.
    covered: [u8; HEADER],
    covered_start: usize,
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

    /// A value of `number`: the next one, since each call gives it from another place.
    #[inline]
    pub(crate) fn value(&mut self, number: u64) -> &[u8] {
        let len = self.len_of(number);
        let place = self.take_place(len);
        self.value_at(number, place, len)
    }

    /// What `value` would be if it were one of `number`.
    pub(crate) fn expected(&mut self, number: u64, value: &[u8]) -> &[u8] {
        self.value_at(number, place_in(value), self.len_of(number))
    }

    #[inline]
    fn value_at(&mut self, number: u64, place: u16, len: usize) -> &[u8] {
        let tag = tag(number, place, self.seed);
        self.window(place, tag.to_le_bytes(), len)
    }

    /// The place of the next value, which is `len` bytes long; the one after it follows behind.
    #[inline]
    fn take_place(&mut self, len: usize) -> u16 {
        if len < TAG {
            // It has no room to say its place.
            return 0;
        }
        let place = self.next;
        self.next = place.wrapping_add(len.div_ceil(ALIGNED) as u16);
        place
    }

    /// The length of the value of `number`.
    #[inline]
    fn len_of(&self, number: u64) -> usize {
        if self.value_bytes_min >= self.value_bytes {
            return self.value_bytes;
        }
        let lengths = (self.value_bytes - self.value_bytes_min + 1) as u64;
        let hash = mix(number, self.seed) >> 32;
        self.value_bytes_min + ((hash * lengths) >> 32) as usize
    }

    /// The value of `len` bytes that version `version` of `record` has. `len` is at most what these
    /// values were made for. One of less than 12 bytes has no room for a version: it is 0 there.
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
        // One mix more than for a plain number, since more parts go into it.
        let parts = u64::from(version) << 32 | len as u64;
        tag(record ^ mix(parts, self.seed), place, self.seed)
    }

    /// The window at `place`, of `len` bytes and with `header`, or what of it fits, over its start.
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

    /// Keeps what is at `start`.
    #[inline]
    fn cover(&mut self, start: usize) {
        self.covered
            .copy_from_slice(&self.buffer[start..start + HEADER]);
        self.covered_start = start;
    }

    /// Whether `value` says that it belongs to `number`: its length and its tag, no more.
    #[inline]
    pub(crate) fn has_tag(&self, number: u64, value: &[u8]) -> bool {
        let len = self.len_of(number);
        let tag = tag(number, place_in(value), self.seed).to_le_bytes();
        match value.first_chunk::<TAG>() {
            Some(said) => value.len() == len && *said == tag,
            None => value.len() == len && *value == tag[..len],
        }
    }

    /// Whether `value` is byte for byte a value of `number`.
    pub(crate) fn is_value(&mut self, number: u64, value: &[u8]) -> bool {
        self.expected(number, value) == value
    }
}

/// Where the value that begins with `tag` says that it is from.
#[inline]
fn place_in(tag: &[u8]) -> u16 {
    match tag.first_chunk::<TAG>() {
        Some([.., low, high]) => u16::from_le_bytes([*low, *high]),
        None => 0,
    }
}

/// The tag of a value of `number` that is from `place`.
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

    /// A value can be checked by any thread at any time, and only against its own number, wherever in the
    /// buffer it is from.
    #[test]
    fn values_are_derivable() {
        for value_bytes in [1, 7, 8, 9, 100, 4096, STARTS + 5] {
            let mut writer = Values::new(value_bytes, 42);
            // Of the longest, each begins where another one ends, beyond the end of the places.
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

    /// One changed byte anywhere is noticed.
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

    /// Values come from one place after the other, and from all places, so that neighbours in time do not
    /// repeat each other.
    #[test]
    fn values_follow_each_other() {
        let mut values = Values::new(1000, 9);
        let first = values.value(1).to_vec();
        let second = values.value(1).to_vec();
        assert_eq!((place_in(&first), place_in(&second)), (0, 63));
        assert_ne!(first[TAG..], second[TAG..]);
        let buffer = Values::new(1000, 9).buffer;
        assert_eq!(second[TAG..], buffer[63 * ALIGNED + TAG..][..1000 - TAG]);
        // What a tag lay over is whole again, a thousand values later.
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
