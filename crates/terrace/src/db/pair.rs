//! Pairs as users get them, and those that are ready in an iterator.
//!
//! Small ready pairs share one allocation, so that looking at one needs no allocation, and large
//! ones have one each, so that none is copied twice.

use std::collections::VecDeque;
use std::time::SystemTime;

use crate::parts::expiry::{Millis, time_of};

/// The maximum size of a small pair: key and value together.
const SMALL_BYTES_MAX: usize = 2048;

/// The memory that is kept for the next pairs.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// One pair of key and value.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The key followed by the value: one allocation.
    bytes: Vec<u8>,
    key_len: usize,
    /// The expiry, or 0.
    expiry: Millis,
}

impl KeyValue {
    fn new(key: &[u8], value: &[u8], expiry: Millis) -> KeyValue {
        let mut bytes = Vec::with_capacity(key.len() + value.len());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        KeyValue {
            bytes,
            key_len: key.len(),
            expiry,
        }
    }

    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len]
    }

    /// Returns the value.
    pub fn value(&self) -> &[u8] {
        &self.bytes[self.key_len..]
    }

    /// Returns the expiry, if there is one, in whole milliseconds. The pair was there for its
    /// iterator, so the expiry may be past.
    pub fn expiry(&self) -> Option<SystemTime> {
        (self.expiry != 0).then(|| time_of(self.expiry))
    }

    /// Returns key and value, owned.
    pub fn into_pair(mut self) -> (Vec<u8>, Vec<u8>) {
        let value = self.bytes.split_off(self.key_len);
        (self.bytes, value)
    }

    fn as_ref(&self) -> PairRef<'_> {
        PairRef {
            key: self.key(),
            value: self.value(),
            expiry: self.expiry,
        }
    }
}

impl std::fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_ref().fmt(f)
    }
}

/// One pair of key and value that is stored in an iterator: see
/// [`Iter::next_ref`](crate::Iter::next_ref).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PairRef<'a> {
    key: &'a [u8],
    value: &'a [u8],
    expiry: Millis,
}

impl<'a> PairRef<'a> {
    /// Returns the key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Returns the value.
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// As [`KeyValue::expiry`].
    pub fn expiry(&self) -> Option<SystemTime> {
        (self.expiry != 0).then(|| time_of(self.expiry))
    }

    /// Returns a copy that outlives the iterator.
    pub fn to_owned(&self) -> KeyValue {
        KeyValue::new(self.key, self.value, self.expiry)
    }
}

impl std::fmt::Debug for PairRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (key, value) = (self.key.escape_ascii(), self.value.escape_ascii());
        write!(f, "{key} => {value}")
    }
}

/// Ready pairs in key order.
#[derive(Default)]
pub(super) struct Ready {
    /// The small pairs, including those that were returned, until all were.
    small: Vec<u8>,
    pairs: VecDeque<Pair>,
    /// The large pair that was lent last.
    lent: Option<KeyValue>,
}

enum Pair {
    Small {
        at: usize,
        key_len: usize,
        value_len: usize,
        expiry: Millis,
    },
    Large(KeyValue),
}

/// The end that a pair is taken from.
#[derive(Clone, Copy)]
pub(super) enum End {
    Front,
    Back,
}

impl Ready {
    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the maximum memory of a pair of `bytes`: a growing allocation has up to twice its
    /// contents.
    pub(super) fn cost_max(bytes: usize) -> usize {
        match bytes <= SMALL_BYTES_MAX {
            true => 2 * (bytes + size_of::<Pair>()),
            false => bytes + 2 * size_of::<Pair>() + 32,
        }
    }

    /// Returns the memory of all pairs.
    pub(super) fn held_bytes(&self) -> usize {
        let large = |pair: &Pair| match pair {
            Pair::Small { .. } => 0,
            Pair::Large(pair) => pair.bytes.capacity() + 32,
        };
        let large: usize = self.pairs.iter().map(large).sum();
        let lent = self.lent.as_ref().map_or(0, |lent| lent.bytes.capacity());
        self.small.capacity() + self.pairs.capacity() * size_of::<Pair>() + large + lent
    }

    /// Adds a pair after all others. If there are no others, the lent one is freed.
    #[inline]
    pub(super) fn push(&mut self, key: &[u8], value: &[u8], expiry: Millis) {
        if self.pairs.is_empty() {
            self.clear();
        }
        let (key_len, value_len) = (key.len(), value.len());
        let pair = if key_len + value_len <= SMALL_BYTES_MAX {
            let at = self.small.len();
            self.small.extend_from_slice(key);
            self.small.extend_from_slice(value);
            Pair::Small {
                at,
                key_len,
                value_len,
                expiry,
            }
        } else {
            Pair::Large(KeyValue::new(key, value, expiry))
        };
        self.pairs.push_back(pair);
    }

    /// Returns the key of the last pair.
    #[inline]
    pub(super) fn last_key(&self) -> Option<&[u8]> {
        self.pairs.back().map(|pair| match pair {
            Pair::Small { at, key_len, .. } => &self.small[*at..*at + *key_len],
            Pair::Large(pair) => pair.key(),
        })
    }

    #[inline]
    fn pop(&mut self, end: End) -> Option<Pair> {
        match end {
            End::Front => self.pairs.pop_front(),
            End::Back => self.pairs.pop_back(),
        }
    }

    /// Returns the pair at an end.
    #[inline]
    pub(super) fn take(&mut self, end: End) -> Option<KeyValue> {
        match self.pop(end)? {
            Pair::Large(pair) => Some(pair),
            small => self.look_at(&small).map(|pair| pair.to_owned()),
        }
    }

    /// Lends the pair at an end, until the next call.
    #[inline]
    pub(super) fn lend(&mut self, end: End) -> Option<PairRef<'_>> {
        match self.pop(end)? {
            Pair::Large(pair) => Some(self.lent.insert(pair).as_ref()),
            small => self.look_at(&small),
        }
    }

    #[inline]
    fn look_at(&self, pair: &Pair) -> Option<PairRef<'_>> {
        let Pair::Small {
            at,
            key_len,
            value_len,
            expiry,
        } = *pair
        else {
            return None;
        };
        let (key, value) = self.small[at..at + key_len + value_len].split_at(key_len);
        Some(PairRef { key, value, expiry })
    }

    /// Drops the first half of the pairs, at least one, and frees their memory. Returns the last
    /// key dropped; `None` if there were no pairs.
    pub(super) fn drop_first_half(&mut self) -> Option<Vec<u8>> {
        let mut last = None;
        for _ in 0..self.pairs.len().div_ceil(2) {
            last = self.take(End::Front);
        }
        let mut end = 0;
        for pair in &mut self.pairs {
            let Pair::Small {
                at,
                key_len,
                value_len,
                ..
            } = pair
            else {
                continue;
            };
            let from = *at;
            self.small
                .copy_within(from..from + *key_len + *value_len, end);
            *at = end;
            end += *key_len + *value_len;
        }
        self.small.truncate(end);
        self.small.shrink_to_fit();
        self.pairs.shrink_to_fit();
        last.map(|pair| pair.key().to_vec())
    }

    /// Drops all pairs.
    pub(super) fn clear(&mut self) {
        self.pairs.clear();
        self.small.clear();
        self.small.shrink_to(KEPT_BYTES_MAX);
        self.lent = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of any size come out of both ends as they went in, owned or lent, and take no more
    /// memory than predicted.
    #[test]
    fn pairs_come_out_as_they_went_in() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut ready = Ready::default();
        let mut model: VecDeque<(Vec<u8>, Vec<u8>, Millis)> = VecDeque::new();
        for round in 0..40_000u64 {
            if rng.u8(..3) == 0 {
                let key = round.to_be_bytes().to_vec();
                let value = vec![round as u8; [0, 5, 2040, 2041, 9000][rng.usize(..5)]];
                ready.push(&key, &value, round % 3);
                model.push_back((key, value, round % 3));
            } else {
                let (end, expected) = match rng.bool() {
                    true => (End::Front, model.pop_front()),
                    false => (End::Back, model.pop_back()),
                };
                let expected = expected.map(|(key, value, e)| KeyValue::new(&key, &value, e));
                match rng.bool() {
                    true => assert_eq!(ready.take(end), expected),
                    false => assert_eq!(ready.lend(end).map(|pair| pair.to_owned()), expected),
                }
            }
            assert_eq!(ready.last_key(), model.back().map(|pair| pair.0.as_slice()));
            assert_eq!(
                (ready.len(), ready.is_empty()),
                (model.len(), model.is_empty())
            );
        }
        let mut ready = Ready::default();
        let mut cost = 0;
        for len in (0..3000).step_by(7) {
            ready.push(&[b"key", &[len as u8][..]].concat(), &vec![1; len], 0);
            cost += Ready::cost_max(4 + len);
        }
        assert!(
            ready.held_bytes() <= cost,
            "{} in {cost}",
            ready.held_bytes()
        );
        let (count, bytes) = (ready.len(), ready.held_bytes());
        let dropped = ready.drop_first_half().unwrap();
        let last = (count.div_ceil(2) - 1) * 7;
        assert_eq!(dropped, [b"key", &[last as u8][..]].concat());
        assert_eq!(ready.len(), count / 2);
        // The first half has a quarter of the bytes.
        assert!(ready.held_bytes() < bytes * 7 / 8, "of {bytes}");
        for len in (last + 7..3000).step_by(7) {
            assert_eq!(ready.take(End::Front).unwrap().value(), vec![1; len]);
        }
        assert_eq!(ready.drop_first_half(), None);
        ready.clear();
        assert!(ready.held_bytes() < 2 * KEPT_BYTES_MAX);
    }
}
