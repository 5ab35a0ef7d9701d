//! This file is the JSON Lines format: an object a line, base64 for what is not UTF-8.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Map;

use super::Entry;
use crate::output::insert_bytes;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Option<String>,
    key_b64: Option<String>,
    value: Option<String>,
    value_b64: Option<String>,
}

/// The entry of a line without its end.
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
    Ok((key, value))
}

/// Adds the line of an entry, its end included.
pub(crate) fn write(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let mut object = Map::new();
    insert_bytes(&mut object, "key", key);
    insert_bytes(&mut object, "value", value);
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

    /// Text is text, other bytes are base64, and both are understood.
    #[test]
    fn both_forms_are_understood() {
        let mut out = Vec::new();
        write(b"k\"", b"\xff\x00", &mut out);
        assert_eq!(out, b"{\"key\":\"k\\\"\",\"value_b64\":\"/wA=\"}\n");
        let line = br#" {"value": "v", "key_b64": "/wA="} "#;
        assert_eq!(parse(line), Ok((b"\xff\x00".to_vec(), b"v".to_vec())));
    }

    /// A wrong line is refused with what is wrong, in one line.
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
            (b"{\"key\":\"\xff\",\"value\":\"\"}", "UTF-8"),
        ] {
            let problem = parse(line).expect_err(&String::from_utf8_lossy(line));
            assert!(problem.contains(part), "{problem}");
            assert!(!problem.contains(" line "), "{problem}");
        }
    }
}
