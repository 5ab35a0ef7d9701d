//! The shared code of the formats of `load` and `dump`: lines that hold an entry.

pub(crate) mod escape;
pub(crate) mod jsonl;
pub(crate) mod lines;
pub(crate) mod tsv;

use std::io::{self, BufRead};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::args::FormatArg;

/// The name of an expiry in lines, in milliseconds since 1970.
pub(crate) const EXPIRY: &str = "expiry_ms";

/// A key, its value, and its expiry, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) expiry: Option<SystemTime>,
}

/// Returns an expiry of the store in milliseconds since 1970.
pub(crate) fn expiry_ms(expiry: SystemTime) -> u64 {
    let since = expiry.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time `expiry_ms` milliseconds after the start of 1970.
fn moment(expiry_ms: u64) -> Result<SystemTime, String> {
    let moment = UNIX_EPOCH.checked_add(Duration::from_millis(expiry_ms));
    moment.ok_or_else(|| format!("its {EXPIRY} {expiry_ms} is too large for this system"))
}

/// Returns the format that a file's name suggests.
pub(crate) fn of_name(file: &Path) -> FormatArg {
    let extension = file
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "jsonl" | "ndjson" | "json" => FormatArg::Jsonl,
        _ => FormatArg::Tsv,
    }
}

/// Reads one line of any length, including its end; returns false at the end of the input.
pub(crate) fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    Ok(input.read_until(b'\n', line)? > 0)
}

/// Parses line number `number`; the error gives the reason that the line is invalid.
///
/// `line` is as read by [`read_line`]. Returns `None` for a valid line without an entry.
pub(crate) fn parse(format: FormatArg, number: u64, line: &[u8]) -> Result<Option<Entry>, String> {
    let content = line.strip_suffix(b"\n").unwrap_or(line);
    match format {
        FormatArg::Lines => lines::parse(number, line).map(Some),
        FormatArg::Tsv => tsv::parse(content).map(Some),
        FormatArg::Jsonl if content.trim_ascii().is_empty() => Ok(None),
        FormatArg::Jsonl => jsonl::parse(content).map(Some),
    }
}

/// Appends the line of an entry to `out`, including its end.
pub(crate) fn write(
    format: FormatArg,
    key: &[u8],
    value: &[u8],
    expiry: Option<SystemTime>,
    out: &mut Vec<u8>,
) {
    match format {
        FormatArg::Tsv => tsv::write(key, value, expiry, out),
        FormatArg::Jsonl => jsonl::write(key, value, expiry, out),
        FormatArg::Lines => out.extend_from_slice(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a dump and a load, every key and value is unchanged, for any bytes.
    #[test]
    fn any_bytes_come_back() {
        let mut rng = fastrand::Rng::with_seed(11);
        let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = vec![
            (Vec::new(), Vec::new()),
            ((0..=255).collect(), (0..=255).rev().collect()),
            (
                b"tab\tnewline\nreturn\r\n".to_vec(),
                b"back\\slash \\t \\x41".to_vec(),
            ),
            (
                "\u{e4}\u{65e5}\u{1f600}".into(),
                b"\xff\xfe\x80 broken \xe2\x82".to_vec(),
            ),
            (b"\"quoted\"".to_vec(), b"{\"key\":1}".to_vec()),
        ];
        for byte in 0..=255 {
            pairs.push((vec![byte], vec![byte, b'x', byte]));
        }
        for _ in 0..500 {
            let mut random = |most| (0..rng.usize(0..most)).map(|_| rng.u8(..)).collect();
            pairs.push((random(40), random(200)));
        }
        let entries: Vec<Entry> = pairs
            .into_iter()
            .map(|(key, value)| Entry {
                key,
                value,
                // No expiry, the smallest, any, and the largest that a store can have.
                expiry: [None, Some(1), Some(rng.u64(1..)), Some(u64::MAX)][rng.usize(0..4)]
                    .map(|ms| moment(ms).expect("a moment")),
            })
            .collect();
        for format in [FormatArg::Tsv, FormatArg::Jsonl] {
            let mut file = Vec::new();
            for entry in &entries {
                write(format, &entry.key, &entry.value, entry.expiry, &mut file);
            }
            assert!(std::str::from_utf8(&file).is_ok(), "a dump is text");
            let mut input = &file[..];
            let mut line = Vec::new();
            let mut read = Vec::new();
            while read_line(&mut input, &mut line).expect("memory can be read") {
                let entry = parse(format, 0, &line).expect("a dumped line is good");
                read.push(entry.expect("a dumped line holds an entry"));
            }
            assert_eq!(read, entries, "{format:?}");
        }
    }

    /// No input makes a parser panic.
    #[test]
    fn arbitrary_lines_are_parsed_or_refused() {
        let mut rng = fastrand::Rng::with_seed(12);
        let alphabet = b"\\xtn\t\n\r{}\":,keyvalu_b640aF\xff\xc3";
        for _ in 0..20_000 {
            let line: Vec<u8> = (0..rng.usize(0..30))
                .map(|_| alphabet[rng.usize(0..alphabet.len())])
                .collect();
            for format in [FormatArg::Tsv, FormatArg::Jsonl, FormatArg::Lines] {
                if let Err(problem) = parse(format, 1, &line) {
                    assert!(!problem.is_empty() && !problem.contains('\n'), "{problem}");
                }
            }
        }
    }

    /// Names suggest formats.
    #[test]
    fn names_suggest_formats() {
        assert_eq!(of_name(Path::new("a.jsonl")), FormatArg::Jsonl);
        assert_eq!(of_name(Path::new("a.NDJSON")), FormatArg::Jsonl);
        assert_eq!(of_name(Path::new("a.tsv")), FormatArg::Tsv);
        assert_eq!(of_name(Path::new("-")), FormatArg::Tsv);
    }
}
