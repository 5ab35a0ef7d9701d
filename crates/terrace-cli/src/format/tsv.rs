//! The TSV format: a key, a tab and a value, both escaped; an expiring entry adds a tab and
//! `expiry_ms=` with the time.

use std::time::SystemTime;

use super::escape::{escape, unescape};
use super::{EXPIRY, Entry, expiry_ms, moment};

const EXPIRY_FIELD: &[u8] = b"expiry_ms=";

/// Parses a line without its end.
pub(crate) fn parse(line: &[u8]) -> Result<Entry, String> {
    let mut fields = line.split(|byte| *byte == b'\t');
    let (key, value, third) = match (fields.next(), fields.next(), fields.next()) {
        (Some(key), Some(value), third) => (key, value, third),
        _ => return Err("it has no tab between key and value".to_string()),
    };
    let expiry = match (
        third.map(|third| third.strip_prefix(EXPIRY_FIELD)),
        fields.count(),
    ) {
        (None, _) => None,
        (Some(Some(digits)), 0) => Some(expiry(digits)?),
        (Some(_), more) => {
            return Err(format!(
                "it has {} tabs, but must have one between key and value, and a second only before \
                 {EXPIRY}= (write \\t for a tab in a value)",
                more + 2
            ));
        }
    };
    let key = unescape(key).map_err(|e| format!("its key is invalid: {e}"))?;
    let value = unescape(value).map_err(|e| format!("its value is invalid: {e}"))?;
    Ok(Entry { key, value, expiry })
}

fn expiry(digits: &[u8]) -> Result<SystemTime, String> {
    let text = String::from_utf8_lossy(digits);
    match text.parse() {
        Ok(0) | Err(_) => Err(format!(
            "its {EXPIRY} is {text:?}, not a time in milliseconds since 1970"
        )),
        Ok(millis) => moment(millis),
    }
}

/// Appends the line of an entry, including its end.
pub(crate) fn write(key: &[u8], value: &[u8], expiry: Option<SystemTime>, out: &mut Vec<u8>) {
    escape(key, out);
    out.push(b'\t');
    escape(value, out);
    if let Some(expiry) = expiry {
        out.extend_from_slice(format!("\t{EXPIRY}={}", expiry_ms(expiry)).as_bytes());
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line is a key, a tab and a value; any other line is refused with the reason.
    #[test]
    fn wrong_lines_are_refused() {
        let entry = |key: &[u8], value: &[u8], millis: Option<u64>| {
            Ok(Entry {
                key: key.to_vec(),
                value: value.to_vec(),
                expiry: millis.map(|millis| moment(millis).expect("a moment")),
            })
        };
        assert_eq!(parse(b"a\tb c"), entry(b"a", b"b c", None));
        assert_eq!(parse(b"\t"), entry(b"", b"", None));
        // A carriage return is a byte like any other: the file's bytes are stored unchanged.
        assert_eq!(parse(b"a\tb\r"), entry(b"a", b"b\r", None));
        assert_eq!(parse(b"a\tb\texpiry_ms=7"), entry(b"a", b"b", Some(7)));
        assert_eq!(parse(b"a\texpiry_ms=7"), entry(b"a", b"expiry_ms=7", None));
        let mut line = Vec::new();
        write(
            b"a",
            b"b",
            entry(b"", b"", Some(7)).expect("one").expiry,
            &mut line,
        );
        assert_eq!(line, b"a\tb\texpiry_ms=7\n");
        for (line, part) in [
            ("", "no tab"),
            ("a", "no tab"),
            ("a\tb\tc", "2 tabs"),
            ("a\tb\\q", "value"),
            ("a\tb\texpiry_ms=7\tc", "3 tabs"),
            ("a\tb\texpiry_ms=", "expiry_ms is \"\""),
            ("a\tb\texpiry_ms=0", "expiry_ms is \"0\""),
            ("a\tb\texpiry_ms=-7", "expiry_ms is \"-7\""),
            ("a\tb\texpiry_ms=7s", "expiry_ms is \"7s\""),
            ("a\tb\texpiry=7", "2 tabs"),
        ] {
            let problem = parse(line.as_bytes()).expect_err(line);
            assert!(problem.contains(part), "{problem}");
        }
    }
}
