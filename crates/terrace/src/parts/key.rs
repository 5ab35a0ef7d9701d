//! Sort key: the order of entries in every memtable, table and cursor.
//!
//! Entries ascend by keyspace, then by key, bytewise; versions of one key come newest first.

use std::cmp::Ordering;

use crate::types::{SEQ_MAX, SeqNo};

/// A position in the sort order: keyspace and key ascending, sequence number descending.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) seq: SeqNo,
}

impl<'a> Target<'a> {
    /// Returns the position before every version of `key`.
    pub(crate) fn first_of(keyspace: u32, key: &'a [u8]) -> Target<'a> {
        Target {
            keyspace,
            key,
            seq: SEQ_MAX,
        }
    }
}

/// A key and its keyspace, owned.
pub(crate) type Place = (u32, Vec<u8>);

/// A range of keys. All versions of a key are inside it or outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeyRange {
    /// `None`: from the first key.
    pub(crate) from: Option<Place>,
    /// The exclusive end; `None`: to the last key.
    pub(crate) to: Option<Place>,
}

impl KeyRange {
    /// Returns the place of the first entry that may be in the range.
    pub(crate) fn start(&self) -> Target<'_> {
        match &self.from {
            Some((keyspace, key)) => Target::first_of(*keyspace, key),
            None => Target::first_of(0, &[]),
        }
    }

    /// Returns whether a key is after the range.
    pub(crate) fn ends_before(&self, keyspace: u32, key: &[u8]) -> bool {
        let to = self.to.as_ref();
        to.is_some_and(|(end_keyspace, end)| (keyspace, key) >= (*end_keyspace, end.as_slice()))
    }
}

/// Compares keys in words of eight bytes, since a call of memcmp costs more than comparing short
/// keys.
#[inline(always)]
pub(crate) fn compare_keys(a: &[u8], b: &[u8]) -> Ordering {
    let mut a = a;
    let mut b = b;
    while let (Some(x), Some(y)) = (a.first_chunk::<8>(), b.first_chunk::<8>()) {
        let (x, y) = (u64::from_be_bytes(*x), u64::from_be_bytes(*y));
        if x != y {
            return x.cmp(&y);
        }
        a = &a[8..];
        b = &b[8..];
    }
    a.cmp(b)
}

/// Returns the first eight bytes of a key as a number, padded with zeros. Fronts compare as keys
/// do, or are equal. Built in registers: a word loaded right after its parts were stored waits
/// until all earlier stores are in the cache, including those of a value of some KiB.
#[inline(always)]
pub(crate) fn key_front(key: &[u8]) -> u64 {
    if let Some(front) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*front);
    }
    let unused = 64 - 8 * key.len() as u32;
    match (key.first_chunk::<4>(), key.last_chunk::<4>()) {
        // Bytes in both halves are equal, so they may be set twice.
        (Some(first), Some(last)) => {
            let (first, last) = (u32::from_be_bytes(*first), u32::from_be_bytes(*last));
            u64::from(first) << 32 | u64::from(last) << unused
        }
        _ => match key {
            [] => 0,
            [a] => u64::from(*a) << 56,
            [a, b, ..] => {
                let last = u64::from(key[key.len() - 1]);
                u64::from(*a) << 56 | u64::from(*b) << 48 | last << unused
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys compare as byte strings at any lengths.
    #[test]
    fn keys_compare_as_bytes() {
        let mut rng = fastrand::Rng::with_seed(9);
        let mut key = || -> Vec<u8> {
            let length = rng.usize(0..20);
            (0..length)
                .map(|_| [0, 1, 127, 128, 255][rng.usize(..5)])
                .collect()
        };
        for _ in 0..20_000 {
            let (a, b) = (key(), key());
            assert_eq!(compare_keys(&a, &b), a.cmp(&b));
        }
    }

    /// The front of a key is its first eight bytes as a number, padded with zeros, at any length.
    #[test]
    fn fronts_are_the_first_bytes_of_keys() {
        let mut rng = fastrand::Rng::with_seed(35);
        for _ in 0..100_000 {
            let key: Vec<u8> = (0..rng.usize(..12)).map(|_| rng.u8(..)).collect();
            let mut padded = key.clone();
            padded.resize(12, 0);
            let front: [u8; 8] = padded[..8].try_into().unwrap();
            assert_eq!(key_front(&key), u64::from_be_bytes(front), "{key:?}");
        }
    }
}
