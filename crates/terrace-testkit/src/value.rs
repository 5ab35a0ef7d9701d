//! Values that identify the write that made them.
//!
//! A value is a tag and a length, which determine its bytes. Every write of a script has a unique
//! tag, so bytes found in a store identify one write, unless they are too short.

use std::fmt;

/// A value, generated instead of stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// Identifies the write that made it.
    pub tag: u64,
    /// The length in bytes.
    pub len: u32,
}

impl Value {
    /// Returns byte `at` of the value.
    fn byte(self, at: usize) -> u8 {
        if at < 8 {
            return self.tag.to_le_bytes()[at];
        }
        let mixed = (self.tag ^ (at as u64 / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.to_le_bytes()[at % 8]
    }

    /// Returns the bytes.
    pub fn bytes(self) -> Vec<u8> {
        (0..self.len as usize).map(|at| self.byte(at)).collect()
    }

    /// Returns whether `bytes` are this value.
    pub fn is(self, bytes: &[u8]) -> bool {
        bytes.len() == self.len as usize
            && bytes.iter().enumerate().all(|(i, b)| self.byte(i) == *b)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes, tag {}>", self.len, self.tag)
    }
}

/// Formats bytes found in a store: their length, and tag or content.
pub fn shown(bytes: Option<&[u8]>) -> String {
    let Some(bytes) = bytes else {
        return "nothing".into();
    };
    match bytes.first_chunk::<8>() {
        Some(tag) => format!("<{} bytes, tag {}>", bytes.len(), u64::from_le_bytes(*tag)),
        None => format!("<{}>", bytes.escape_ascii()),
    }
}
