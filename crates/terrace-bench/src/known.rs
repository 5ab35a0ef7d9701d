//! This file is which keys the store must have: a sample of them, so that a lost one is noticed.
//!
//! One number in [`EVERY`] is followed: a flag says that its key was put and acknowledged, and not
//! deleted since. A reader that misses such a key asks again, since a flag may have been set between
//! its read and its look at the flag; who misses it twice has found a lost key.
//!
//! Invariants
//!   K1  A flag is set after the put was acknowledged, and cleared before the delete begins.

use std::sync::atomic::{AtomicBool, Ordering};

/// One number in this many is followed.
pub(crate) const EVERY: u64 = 16;

/// The keys that the store must have.
#[derive(Debug)]
pub(crate) struct Known {
    /// A byte each, and no bits of a word: to set one is a plain store. An operation that locks would wait
    /// until all is written that the store's put has left in the processor's buffers.
    flags: Vec<AtomicBool>,
}

impl Known {
    /// Of `num` numbers from 0, none is known to be there.
    pub(crate) fn none_of(num: u64) -> Known {
        Known {
            flags: (0..num.div_ceil(EVERY))
                .map(|_| AtomicBool::new(false))
                .collect(),
        }
    }

    #[inline]
    fn flag(&self, number: u64) -> Option<&AtomicBool> {
        match number.is_multiple_of(EVERY) {
            true => self.flags.get((number / EVERY) as usize),
            false => None,
        }
    }

    /// The key of `number` was put.
    #[inline]
    pub(crate) fn put(&self, number: u64) {
        if let Some(flag) = self.flag(number) {
            flag.store(true, Ordering::Release);
        }
    }

    /// The key of `number` is about to be deleted.
    #[inline]
    pub(crate) fn delete(&self, number: u64) {
        if let Some(flag) = self.flag(number) {
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// How many keys must be there, by those that are followed.
    pub(crate) fn estimate(&self) -> u64 {
        let set = self
            .flags
            .iter()
            .filter(|flag| flag.load(Ordering::Relaxed));
        set.count() as u64 * EVERY
    }

    /// Whether the key of `number` must be there; never for one that is not followed.
    #[inline]
    pub(crate) fn must_have(&self, number: u64) -> bool {
        self.flag(number)
            .is_some_and(|flag| flag.load(Ordering::Acquire))
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
