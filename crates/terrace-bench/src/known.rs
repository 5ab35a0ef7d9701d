//! This file is which keys the store must have: a sample of them, so that a lost one is noticed.
//!
//! One number in [`EVERY`] is followed: a bit says that its key was put and acknowledged, and not
//! deleted since. A reader that misses such a key asks again, since a bit may have been set between
//! its read and its look at the bit; who misses it twice has found a lost key.
//!
//! Invariants
//!   K1  A bit is set after the put was acknowledged, and cleared before the delete begins.

use std::sync::atomic::{AtomicU64, Ordering};

/// One number in this many is followed.
pub(crate) const EVERY: u64 = 16;

/// The keys that the store must have.
#[derive(Debug)]
pub(crate) struct Known {
    bits: Vec<AtomicU64>,
}

impl Known {
    /// Of `num` numbers from 0, none is known to be there.
    pub(crate) fn none_of(num: u64) -> Known {
        let words = num.div_ceil(EVERY).div_ceil(64);
        Known {
            bits: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn place(&self, number: u64) -> Option<(&AtomicU64, u64)> {
        if !number.is_multiple_of(EVERY) {
            return None;
        }
        let at = number / EVERY;
        let word = self.bits.get((at / 64) as usize)?;
        Some((word, 1 << (at % 64)))
    }

    /// The key of `number` was put.
    #[inline]
    pub(crate) fn put(&self, number: u64) {
        if let Some((word, bit)) = self.place(number)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// The key of `number` is about to be deleted.
    #[inline]
    pub(crate) fn delete(&self, number: u64) {
        if let Some((word, bit)) = self.place(number)
            && word.load(Ordering::Relaxed) & bit != 0
        {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// How many keys must be there, by those that are followed.
    pub(crate) fn estimate(&self) -> u64 {
        let ones = |word: &AtomicU64| u64::from(word.load(Ordering::Relaxed).count_ones());
        self.bits.iter().map(ones).sum::<u64>() * EVERY
    }

    /// Whether the key of `number` must be there; never for one that is not followed.
    #[inline]
    pub(crate) fn must_have(&self, number: u64) -> bool {
        self.place(number)
            .is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was put and not deleted is known, of the numbers that are followed and no other.
    #[test]
    fn a_sample_is_followed() {
        let known = Known::none_of(5000);
        for number in 0..5000 {
            assert!(!known.must_have(number));
            known.put(number);
        }
        known.delete(32);
        known.delete(33);
        for number in 0..5000 {
            let followed = number % EVERY == 0 && number != 32;
            assert_eq!(known.must_have(number), followed, "{number}");
        }
        assert_eq!(known.estimate(), 4992);
        known.put(1 << 40);
        assert!(!known.must_have(1 << 40), "beyond the numbers of the run");
    }
}
