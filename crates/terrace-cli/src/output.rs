//! Standard output: buffered, escaped for people, exact for programs.

use std::io::{self, BufWriter, StdoutLock, Write};
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::error::CliError;
use crate::format::{EXPIRY, expiry_ms};

/// Standard output, locked and buffered.
pub(crate) struct Output {
    inner: BufWriter<StdoutLock<'static>>,
}

impl Output {
    pub(crate) fn new() -> Output {
        Output {
            inner: BufWriter::with_capacity(1 << 16, io::stdout().lock()),
        }
    }

    /// Writes exact bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.inner.write_all(bytes).map_err(CliError::output)
    }

    /// Writes a line of text.
    pub(crate) fn line(&mut self, line: impl std::fmt::Display) -> Result<(), CliError> {
        writeln!(self.inner, "{line}").map_err(CliError::output)
    }

    /// Writes all buffered output. Without this call, a failure would go unnoticed.
    pub(crate) fn finish(mut self) -> Result<(), CliError> {
        self.inner.flush().map_err(CliError::output)
    }
}

/// Adds an expiry, if any, to a JSON object, in milliseconds since 1970.
pub(crate) fn insert_expiry(object: &mut Map<String, Value>, expiry: Option<SystemTime>) {
    if let Some(expiry) = expiry {
        object.insert(EXPIRY.to_string(), Value::from(expiry_ms(expiry)));
    }
}

/// Adds `bytes` to a JSON object as `name`, or as `name_b64` in base64 if they are not UTF-8.
pub(crate) fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_string(), Value::from(text)),
        Err(_) => object.insert(format!("{name}_b64"), Value::from(STANDARD.encode(bytes))),
    };
}
