//! This file is pairs as users get them, and those that lie ready in an iterator.
//!
//! Ready pairs are small ones in one piece of memory, so that a pair that is only looked at costs no
//! allocation, and large ones each in its own, so that none is copied twice.

use std::collections::VecDeque;
use std::time::SystemTime;

use crate::parts::expiry::{Millis, time_of};

/// Key and value together in a pair that is a small one.
const SMALL_BYTES_MAX: usize = 2048;

/// Memory that is kept for the next pairs.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// One pair of key and value.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The key and behind it the value: one allocation.
    bytes: Vec<u8>,
    key_len: usize,
    /// Or 0.
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

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len]
    }

    /// The value.
    pub fn value(&self) -> &[u8] {
        &self.bytes[self.key_len..]
    }

    /// The moment from which on the key is absent, if there is one, in whole milliseconds. The pair was
    /// there for its iterator, so it may be past.
    pub fn expiry(&self) -> Option<SystemTime> {
        (self.expiry != 0).then(|| time_of(self.expiry))
    }

    /// Key and value, owned.
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

/// One pair of key and value that lies in an iterator: see [`Iter::next_ref`](crate::Iter::next_ref).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PairRef<'a> {
    key: &'a [u8],
    value: &'a [u8],
    expiry: Millis,
}

impl<'a> PairRef<'a> {
    /// The key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The value.
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// As [`KeyValue::expiry`].
    pub fn expiry(&self) -> Option<SystemTime> {
        (self.expiry != 0).then(|| time_of(self.expiry))
    }

    /// A copy that outlives the iterator.
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

/// Pairs that lie ready, in the order of their keys.
#[derive(Default)]
pub(super) struct Ready {
    /// The small ones, and those of them that were handed out, until all were.
    small: Vec<u8>,
    pairs: VecDeque<Pair>,
    /// The large one that was lent last.
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

/// Which end a pair is taken from.
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

    /// What a pair of so many bytes takes at most: memory that grows has up to twice what is in it.
    pub(super) fn cost_max(bytes: usize) -> usize {
        match bytes <= SMALL_BYTES_MAX {
            true => 2 * (bytes + size_of::<Pair>()),
            false => bytes + 2 * size_of::<Pair>() + 32,
        }
    }

    /// What they take.
    pub(super) fn held_bytes(&self) -> usize {
        let large = |pair: &Pair| match pair {
            Pair::Small { .. } => 0,
            Pair::Large(pair) => pair.bytes.capacity() + 32,
        };
        let large: usize = self.pairs.iter().map(large).sum();
        let lent = self.lent.as_ref().map_or(0, |lent| lent.bytes.capacity());
        self.small.capacity() + self.pairs.capacity() * size_of::<Pair>() + large + lent
    }

    /// Adds a pair, which comes behind all others. With no others, what was lent is gone.
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

    /// The key of the last pair.
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

    /// Hands out the pair at an end.
    #[inline]
    pub(super) fn take(&mut self, end: End) -> Option<KeyValue> {
        match self.pop(end)? {
            Pair::Large(pair) => Some(pair),
            small => self.look_at(&small).map(|pair| pair.to_owned()),
        }
    }

    /// Hands out the pair at an end, until the next call.
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

    /// Pairs of any size come out of both ends as they went in, owned or lent, and take no more memory than
    /// was said.
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
            ready.push(b"key", &vec![1; len], 0);
            cost += Ready::cost_max(3 + len);
        }
        assert!(
            ready.held_bytes() <= cost,
            "{} in {cost}",
            ready.held_bytes()
        );
        ready.clear();
        assert!(ready.held_bytes() < 2 * KEPT_BYTES_MAX);
    }
}
