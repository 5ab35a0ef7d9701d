//! Keys that the store must contain: a sample of them, so that a lost one is noticed.
//!
//! One number in [`EVERY`] is tracked: a flag states that its key was put and acknowledged, and not
//! deleted since. A reader that misses such a key reads again, since the flag may have been set
//! between its read and its check of the flag; a second miss means a lost key.
//!
//! Invariants
//!   K1  A flag is set after the put was acknowledged, and cleared before the delete begins.

use std::sync::atomic::{AtomicBool, Ordering};

/// One number in this many is tracked.
pub(crate) const EVERY: u64 = 16;

/// The keys that the store must contain.
#[derive(Debug)]
pub(crate) struct Known {
    /// One byte each instead of bits of a word, so that setting a flag is a plain store. A locked
    /// instruction would wait until the stores of the preceding put have left the processor's store
    /// buffer.
    flags: Vec<AtomicBool>,
}

impl Known {
    /// Returns flags for `num` numbers from 0, with no key known to exist.
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

    /// Records that the key of `number` was put.
    #[inline]
    pub(crate) fn put(&self, number: u64) {
        if let Some(flag) = self.flag(number) {
            flag.store(true, Ordering::Release);
        }
    }

    /// Records that the key of `number` is about to be deleted.
    #[inline]
    pub(crate) fn delete(&self, number: u64) {
        if let Some(flag) = self.flag(number) {
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// Estimates the number of keys that must exist, from the sample.
    pub(crate) fn estimate(&self) -> u64 {
        let set = self
            .flags
            .iter()
            .filter(|flag| flag.load(Ordering::Relaxed));
        set.count() as u64 * EVERY
    }

    /// Returns whether the key of `number` must exist; always false for one that is not tracked.
    #[inline]
    pub(crate) fn must_have(&self, number: u64) -> bool {
        self.flag(number)
            .is_some_and(|flag| flag.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts without a later delete are known, for tracked numbers only.
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
