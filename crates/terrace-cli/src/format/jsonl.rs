//! The JSON Lines format: an object a line, base64 for bytes that are not UTF-8.

use std::num::NonZeroU64;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Map;

use super::{Entry, moment};
use crate::output::{insert_bytes, insert_expiry};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Option<String>,
    key_b64: Option<String>,
    value: Option<String>,
    value_b64: Option<String>,
    expiry_ms: Option<NonZeroU64>,
}

/// Parses a line without its end.
pub(crate) fn parse(line: &[u8]) -> Result<Entry, String> {
    // The parser counts lines itself, but it only ever sees one.
    let text = std::str::from_utf8(line)
        .map_err(|e| format!("it is not UTF-8 from byte {} on", e.valid_up_to() + 1))?;
    let line: Line = serde_json::from_str(text).map_err(|e| {
        let problem = e.to_string();
        let place = format!(" at line {} column {}", e.line(), e.column());
        format!(
            "at column {}: {}",
            e.column(),
            problem.strip_suffix(&place).unwrap_or(&problem)
        )
    })?;
    let key = field("key", line.key, line.key_b64)?;
    let value = field("value", line.value, line.value_b64)?;
    let expiry = line
        .expiry_ms
        .map(|millis| moment(millis.get()))
        .transpose()?;
    Ok(Entry { key, value, expiry })
}

/// Appends the line of an entry, including its end.
pub(crate) fn write(key: &[u8], value: &[u8], expiry: Option<SystemTime>, out: &mut Vec<u8>) {
    let mut object = Map::new();
    insert_bytes(&mut object, "key", key);
    insert_bytes(&mut object, "value", value);
    insert_expiry(&mut object, expiry);
    out.extend_from_slice(serde_json::Value::Object(object).to_string().as_bytes());
    out.push(b'\n');
}

fn field(name: &str, text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, String> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(base64)) => STANDARD
            .decode(base64)
            .map_err(|e| format!("{name}_b64 is not base64: {e}")),
        (Some(_), Some(_)) => Err(format!("it has both {name} and {name}_b64")),
        (None, None) => Err(format!("it has neither {name} nor {name}_b64")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text is written as text and other bytes as base64, and both are parsed.
    #[test]
    fn both_forms_are_understood() {
        let mut out = Vec::new();
        write(b"k\"", b"\xff\x00", None, &mut out);
        assert_eq!(out, b"{\"key\":\"k\\\"\",\"value_b64\":\"/wA=\"}\n");
        let line = br#" {"value": "v", "key_b64": "/wA="} "#;
        let entry = Entry {
            key: b"\xff\x00".to_vec(),
            value: b"v".to_vec(),
            expiry: None,
        };
        assert_eq!(parse(line), Ok(entry.clone()));
        let expiry = Some(moment(1_732_200_000_123).expect("a moment"));
        out.clear();
        write(b"\xff\x00", b"v", expiry, &mut out);
        assert!(
            out.ends_with(b",\"expiry_ms\":1732200000123}\n")
                || out.starts_with(b"{\"expiry_ms\":1732200000123,")
        );
        assert_eq!(parse(&out), Ok(Entry { expiry, ..entry }));
    }

    /// An invalid line is refused with the reason, in one line.
    #[test]
    fn wrong_lines_are_refused() {
        for (line, part) in [
            (&b"{"[..], "column"),
            (b"[]", "column"),
            (b"{\"key\":\"a\"}", "neither value"),
            (b"{\"value\":\"a\"}", "neither key"),
            (b"{\"key\":\"a\",\"key_b64\":\"\",\"value\":\"\"}", "both"),
            (b"{\"key\":\"a\",\"value\":1}", "string"),
            (b"{\"key\":\"a\",\"value\":\"b\",\"ttl\":1}", "ttl"),
            (b"{\"key\":\"a\",\"value_b64\":\"?\"}", "base64"),
            (
                b"{\"key\":\"a\",\"value\":\"b\",\"expiry_ms\":0}",
                "nonzero",
            ),
            (b"{\"key\":\"a\",\"value\":\"b\",\"expiry_ms\":-1}", "-1"),
            (
                b"{\"key\":\"a\",\"value\":\"b\",\"expiry_ms\":\"1\"}",
                "string",
            ),
            (b"{\"key\":\"\xff\",\"value\":\"\"}", "UTF-8"),
        ] {
            let problem = parse(line).expect_err(&String::from_utf8_lossy(line));
            assert!(problem.contains(part), "{problem}");
            assert!(!problem.contains(" line "), "{problem}");
        }
    }
}
