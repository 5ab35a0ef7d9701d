//! This file is the TSV format: a key, a tab, a value, both escaped.

use super::Entry;
use super::escape::{escape, unescape};

/// The entry of a line without its end.
pub(crate) fn parse(line: &[u8]) -> Result<Entry, String> {
    let mut fields = line.split(|byte| *byte == b'\t');
    let (key, value) = match (fields.next(), fields.next(), fields.count()) {
        (Some(key), Some(value), 0) => (key, value),
        (_, Some(_), more) => {
            return Err(format!(
                "it has {} tabs; a key and a value have one between them (\\t is a tab in a value)",
                more + 1
            ));
        }
        _ => return Err("it has no tab between a key and a value".to_string()),
    };
    let key = unescape(key).map_err(|e| format!("its key is wrong: {e}"))?;
    let value = unescape(value).map_err(|e| format!("its value is wrong: {e}"))?;
    Ok((key, value))
}

/// Adds the line of an entry, its end included.
pub(crate) fn write(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    escape(key, out);
    out.push(b'\t');
    escape(value, out);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line is a key, a tab and a value; anything else is refused with what is wrong.
    #[test]
    fn wrong_lines_are_refused() {
        assert_eq!(parse(b"a\tb c"), Ok((b"a".to_vec(), b"b c".to_vec())));
        assert_eq!(parse(b"\t"), Ok((Vec::new(), Vec::new())));
        // A carriage return is a byte like any other: what is in the file is what is stored.
        assert_eq!(parse(b"a\tb\r"), Ok((b"a".to_vec(), b"b\r".to_vec())));
        for (line, part) in [
            ("", "no tab"),
            ("a", "no tab"),
            ("a\tb\tc", "2 tabs"),
            ("a\tb\\q", "value"),
        ] {
            let problem = parse(line.as_bytes()).expect_err(line);
            assert!(problem.contains(part), "{problem}");
        }
    }
}
