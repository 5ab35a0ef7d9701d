//! A random order of numbers that needs no memory: a permutation by a small cipher.
//!
//! Four Feistel rounds permute the numbers of an even number of bits. A result that is not below
//! the count is permuted again until it is, which gives a permutation of the numbers below the
//! count.

/// The numbers below `count` in a random order.
#[derive(Debug, Clone)]
pub(crate) struct Shuffle {
    count: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Shuffle {
    /// Returns an order of the numbers below `count`, derived from `seed`.
    pub(crate) fn new(count: u64, seed: u64) -> Shuffle {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        let mut rng = fastrand::Rng::with_seed(seed);
        Shuffle {
            count,
            half_bits: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|_| rng.u64(..)),
        }
    }

    /// Returns the number at index `i`, which must be below the count.
    #[inline]
    pub(crate) fn at(&self, i: u64) -> u64 {
        let mut number = i;
        // BOUND: the cycle through `i` returns to it, and takes fewer than four rounds on average.
        loop {
            number = self.permute(number);
            if number < self.count {
                return number;
            }
        }
    }

    fn permute(&self, number: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for key in self.keys {
            let mixed = (right ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (left, right) = (right, left ^ ((mixed >> 32) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number occurs once for every count, and not in order.
    #[test]
    fn every_number_comes_once() {
        for count in [1, 2, 3, 10, 64, 1000, 65_537] {
            let shuffle = Shuffle::new(count, 5);
            let mut numbers: Vec<u64> = (0..count).map(|i| shuffle.at(i)).collect();
            let in_order = numbers.windows(2).filter(|pair| pair[0] + 1 == pair[1]);
            assert!(in_order.count() as u64 <= count / 10 + 2, "{count}");
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..count), "{count}");
        }
    }

    /// Another seed gives another order.
    #[test]
    fn seeds_differ() {
        let [a, b] = [1, 2].map(|seed| Shuffle::new(1000, seed));
        let same = (0..1000).filter(|i| a.at(*i) == b.at(*i)).count();
        assert!(same < 20, "{same}");
    }
}
