//! The escapes that turn any bytes into one line of text: `\t \n \r \\` and `\xNN`.
//!
//! Printable UTF-8 stays unchanged; control characters and bytes that are not UTF-8 become escapes.
//! Unescaping also accepts any unescaped byte as itself.

/// Appends `bytes` to `out`, escaped.
pub(crate) fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let mut utf8 = [0; 4];
            let encoded = c.encode_utf8(&mut utf8).as_bytes();
            match c {
                '\t' => out.extend_from_slice(b"\\t"),
                '\n' => out.extend_from_slice(b"\\n"),
                '\r' => out.extend_from_slice(b"\\r"),
                '\\' => out.extend_from_slice(b"\\\\"),
                c if c.is_control() => encoded.iter().for_each(|byte| push_hex(*byte, out)),
                _ => out.extend_from_slice(encoded),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_hex(*byte, out));
    }
}

/// Returns `bytes` as escaped text.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len());
    escape(bytes, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Returns the bytes of an escaped `text`, or the reason that it is invalid.
pub(crate) fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        rest = match &rest[at + 1..] {
            [b't', rest @ ..] => push(b'\t', rest, &mut out),
            [b'n', rest @ ..] => push(b'\n', rest, &mut out),
            [b'r', rest @ ..] => push(b'\r', rest, &mut out),
            [b'\\', rest @ ..] => push(b'\\', rest, &mut out),
            [b'x', high, low, rest @ ..] => {
                let byte = hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low);
                let digits = || escaped(&[*high, *low]);
                let byte = byte.ok_or_else(|| {
                    format!("\\x{} is not \\x and two hexadecimal digits", digits())
                })?;
                push(byte, rest, &mut out)
            }
            [b'x', ..] => return Err("\\x is not followed by two hexadecimal digits".to_string()),
            [] => return Err("it ends in a backslash; write \\\\ for a backslash".to_string()),
            [other, ..] => {
                let other = escaped(&[*other]);
                return Err(format!(
                    "\\{other} is not an escape; write \\\\ for a backslash"
                ));
            }
        };
    }
    out.extend_from_slice(rest);
    Ok(out)
}

fn push<'a>(byte: u8, rest: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    out.push(byte);
    rest
}

fn push_hex(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| DIGITS[usize::from(nibble & 15)];
    out.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte)]);
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text stays readable, and all other bytes become escapes.
    #[test]
    fn text_stays_text() {
        assert_eq!(
            escaped("plain \u{e4}\u{65e5}".as_bytes()),
            "plain \u{e4}\u{65e5}"
        );
        assert_eq!(escaped(b"a\tb\nc\rd\\"), "a\\tb\\nc\\rd\\\\");
        assert_eq!(escaped(b"\0\x1b\x7f\xff"), "\\x00\\x1b\\x7f\\xff");
        assert_eq!(escaped("\u{85}".as_bytes()), "\\xc2\\x85");
    }

    /// An invalid escape is refused, and the message names it.
    #[test]
    fn wrong_escapes_are_refused() {
        for (text, part) in [
            ("a\\q", "\\q"),
            ("a\\", "ends"),
            ("\\x4", "two hex"),
            ("\\xg0", "\\xg0"),
        ] {
            let problem = unescape(text.as_bytes()).expect_err(text);
            assert!(problem.contains(part), "{problem}");
        }
        assert_eq!(unescape(b"\\x4A\\x4a\xff"), Ok(b"JJ\xff".to_vec()));
    }
}
