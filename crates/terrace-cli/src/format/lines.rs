//! The lines format: any text file, each line a value under its number.
//!
//! The value is the whole line including its end, so a dump writes value after value, and a file
//! whose last line has no end is restored without it.

use super::Entry;

/// Digits of a line's number, so that keys sort as numbers.
const DIGITS: usize = 12;

/// Returns the entry of line number `number`, given with its end.
pub(crate) fn parse(number: u64, line: &[u8]) -> Result<Entry, String> {
    let key = format!("{number:0DIGITS$}");
    if key.len() > DIGITS {
        return Err(format!("its number has more than {DIGITS} digits"));
    }
    Ok(Entry {
        key: key.into_bytes(),
        value: line.to_vec(),
        expiry: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of the first and the last line have the same length.
    #[test]
    fn keys_are_padded_numbers() {
        assert_eq!(
            parse(1, b"x\n"),
            Ok(Entry {
                key: b"000000000001".to_vec(),
                value: b"x\n".to_vec(),
                expiry: None,
            })
        );
        assert!(parse(999_999_999_999, b"").is_ok());
        assert!(parse(1_000_000_000_000, b"").is_err());
    }
}
