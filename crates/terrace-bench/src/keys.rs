//! Keys from numbers: decimal digits, padded with zeros to the key size.
//!
//! Keys of one size sort as their numbers do. As in db_bench, a key that no workload writes is a
//! key followed by a dot.

/// The maximum number of digits of a number.
const DIGITS_MAX: usize = 20;

/// `00` to `99`, so that a key costs one division for two digits.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut i = 0;
    while i < 100 {
        pairs[i] = [b'0' + (i / 10) as u8, b'0' + (i % 10) as u8];
        i += 1;
    }
    pairs
};

/// The first numbers of more than eight and of more than sixteen digits.
const EIGHT_DIGITS: u64 = 100_000_000;
const SIXTEEN_DIGITS: u64 = EIGHT_DIGITS * EIGHT_DIGITS;

/// Returns the last eight digits of `number`.
#[inline]
fn eight_digits(number: u32) -> [u8; 8] {
    let (high, low) = (number / 10_000 % 10_000, number % 10_000);
    // Written out: as a `map` over an array, this compiles to a call and a loop.
    let [a, b] = PAIRS[(high / 100) as usize];
    let [c, d] = PAIRS[(high % 100) as usize];
    let [e, f] = PAIRS[(low / 100) as usize];
    let [g, h] = PAIRS[(low % 100) as usize];
    [a, b, c, d, e, f, g, h]
}

/// Writes keys into one buffer, so that no operation allocates.
#[derive(Debug, Clone)]
pub(crate) struct KeyMaker {
    buffer: Vec<u8>,
    /// Whether digits before the last sixteen may be nonzero.
    is_long: bool,
}

impl KeyMaker {
    /// Returns a maker of keys of `key_bytes` bytes.
    pub(crate) fn new(key_bytes: usize) -> KeyMaker {
        let mut buffer = vec![b'0'; key_bytes];
        buffer.push(b'.');
        KeyMaker {
            buffer,
            is_long: false,
        }
    }

    /// Returns the key of `number`. Digits that do not fit are cut off at the left, which
    /// [`BenchConfig::validate`](crate::BenchConfig::validate) rules out.
    #[inline]
    pub(crate) fn key(&mut self, number: u64) -> &[u8] {
        let len = self.buffer.len() - 1;
        // The usual case: the last sixteen digits are two independent groups of eight.
        if len >= 16 && number < SIXTEEN_DIGITS {
            let low = &mut self.buffer[len - 16..len];
            low[..8].copy_from_slice(&eight_digits((number / EIGHT_DIGITS) as u32));
            low[8..].copy_from_slice(&eight_digits((number % EIGHT_DIGITS) as u32));
            // The buffer may still hold a longer number.
            if len > 16 && self.is_long {
                self.buffer[..len - 16].fill(b'0');
                self.is_long = false;
            }
            return &self.buffer[..len];
        }
        self.is_long = true;
        let first = len.saturating_sub(DIGITS_MAX);
        let mut rest = number;
        for pair in self.buffer[first..len].rchunks_mut(2) {
            let digits = PAIRS[(rest % 100) as usize];
            rest /= 100;
            match pair {
                [tens, ones] => [*tens, *ones] = digits,
                [ones] => *ones = digits[1],
                _ => {}
            }
        }
        &self.buffer[..len]
    }

    /// Returns a key next to that of `number` that no workload ever writes.
    #[inline]
    pub(crate) fn missing(&mut self, number: u64) -> &[u8] {
        self.key(number);
        &self.buffer
    }
}

/// Returns the number whose key is `key`; `None` if it is no key of this benchmark.
pub(crate) fn parse_key(key: &[u8]) -> Option<u64> {
    if key.is_empty() {
        return None;
    }
    key.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key has the requested size and is the zero-padded number, independent of earlier keys.
    #[test]
    fn keys_are_padded_numbers() {
        for key_bytes in [1, 2, 7, 8, 16, 20, 21, 33] {
            let mut maker = KeyMaker::new(key_bytes);
            let long = [
                u64::MAX,
                SIXTEEN_DIGITS - 1,
                99_999_999,
                EIGHT_DIGITS,
                SIXTEEN_DIGITS,
            ];
            for number in [9, 0, 8, 9_999_999, 1_000_000, 31]
                .into_iter()
                .chain(long)
                .chain([7])
            {
                let digits = format!("{number:0key_bytes$}");
                let wanted = &digits[digits.len() - key_bytes..];
                assert_eq!(
                    maker.key(number),
                    wanted.as_bytes(),
                    "{number} in {key_bytes}"
                );
            }
        }
    }

    /// Keys sort as their numbers, and a missing key is never a key.
    #[test]
    fn keys_sort_as_numbers() {
        let mut maker = KeyMaker::new(16);
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..1000 {
            let (a, b) = (rng.u64(0..1 << 40), rng.u64(0..1 << 40));
            let key_a = maker.key(a).to_vec();
            let key_b = maker.key(b).to_vec();
            assert_eq!(a.cmp(&b), key_a.cmp(&key_b));
            assert_eq!(parse_key(&key_a), Some(a));
            assert_eq!(parse_key(maker.missing(a)), None);
        }
        assert_eq!(parse_key(b""), None);
        assert_eq!(parse_key(&[b'9'; 40]), None);
    }
}
