//! Sizes, counts and times as people write and read them.

use std::time::Duration;

const SUFFIXES: [(&str, u32); 5] = [("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50)];

/// Parses a number of bytes: `4GiB`, `512M`, `64k`, `1.5 GiB`, `4096`.
///
/// A suffix is a power of 1024 (`K` = `KiB` = `KB`), in any case; without one the number is bytes.
///
/// ```
/// assert_eq!(terrace_bench::units::parse_bytes("4GiB"), Ok(4 << 30));
/// assert!(terrace_bench::units::parse_bytes("4 apples").is_err());
/// ```
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let complaint = || format!("{text:?} is not a size; write it like 4GiB, 512M, 64k or 4096");
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = trimmed[digits.len()..].to_ascii_uppercase();
    let unit = suffix
        .strip_suffix("IB")
        .or(suffix.strip_suffix('B'))
        .unwrap_or(&suffix);
    let shift = match unit {
        "" if suffix == "IB" => return Err(complaint()),
        "" => 0,
        _ => {
            SUFFIXES
                .iter()
                .find(|(name, _)| *name == unit)
                .ok_or_else(complaint)?
                .1
        }
    };
    let digits = digits.trim_end();
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    if !digits.starts_with(|c: char| c.is_ascii_digit()) || !digits.chars().all(is_number) {
        return Err(complaint());
    }
    if let Ok(whole) = digits.parse::<u64>() {
        return whole
            .checked_mul(1 << shift)
            .ok_or_else(|| format!("{text:?} is too large"));
    }
    let fraction: f64 = digits.parse().map_err(|_| complaint())?;
    let bytes = fraction * (1u64 << shift) as f64;
    if !bytes.is_finite() || bytes >= u64::MAX as f64 {
        return Err(format!("{text:?} is too large"));
    }
    Ok(bytes.round() as u64)
}

/// Formats `bytes` with three digits and a binary suffix: `1.50 GiB`, `512 MiB`, `17 B`.
pub fn bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut name = "";
    for (suffix, _) in SUFFIXES {
        if value < 999.5 {
            break;
        }
        value /= 1024.0;
        name = suffix;
    }
    format!("{} {name}iB", three_digits(value))
}

/// Formats like [`bytes`], without zeros after the point: `1 KiB`, `1.5 GiB`.
pub fn short_bytes(count: u64) -> String {
    let text = bytes(count);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            let number = number.trim_end_matches('0').trim_end_matches('.');
            format!("{number} {unit}")
        }
        _ => text,
    }
}

/// Formats `n` with commas between groups of three digits.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Formats a time with three digits: `1.25 s`, `310 ms`, `17.0 us`.
pub fn time(t: Duration) -> String {
    let seconds = t.as_secs_f64();
    if seconds >= 0.9995 {
        format!("{} s", three_digits(seconds))
    } else if seconds >= 0.000_999_5 {
        format!("{} ms", three_digits(seconds * 1e3))
    } else {
        format!("{} us", three_digits(seconds * 1e6))
    }
}

/// Formats `value` with three significant digits if it has fewer than three before the point.
pub fn three_digits(value: f64) -> String {
    let decimals = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every spelling of a size that the help shows is parsed.
    #[test]
    fn sizes_are_understood() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512M", 512 << 20),
            ("512 MiB", 512 << 20),
            ("4GiB", 4 << 30),
            ("64k", 64 << 10),
            ("64kb", 64 << 10),
            ("1.5G", 3 << 29),
            ("17B", 17),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    /// An invalid size is refused with the given text.
    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in [
            "",
            "G",
            "4X",
            "-1",
            "1e3",
            "iB",
            "4iB",
            "1.2.3M",
            "99999999999P",
            "inf",
        ] {
            let problem = parse_bytes(text).expect_err(text);
            assert!(problem.contains(text), "{problem}");
        }
    }

    /// Numbers print with the digits that people compare.
    #[test]
    fn numbers_print_short() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(1536 << 20), "1.50 GiB");
        assert_eq!(bytes(512 << 20), "512 MiB");
        assert_eq!(short_bytes(1 << 20), "1 MiB");
        assert_eq!(short_bytes(1536 << 20), "1.5 GiB");
        assert_eq!(short_bytes(100), "100 B");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(time(Duration::from_millis(310)), "310 ms");
        assert_eq!(time(Duration::from_micros(17)), "17.0 us");
    }
}
