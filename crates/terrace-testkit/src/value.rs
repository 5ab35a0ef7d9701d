//! Values that tell which write made them.
//!
//! A value is a tag and a length; its bytes follow from both. Every write of a script has a tag of
//! its own, so bytes found in a store lead back to one write, unless they are too short to.

use std::fmt;

/// A value, described instead of stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// Which write made it.
    pub tag: u64,
    /// Its length in bytes.
    pub len: u32,
}

impl Value {
    /// Byte `at` of the value.
    fn byte(self, at: usize) -> u8 {
        if at < 8 {
            return self.tag.to_le_bytes()[at];
        }
        let mixed = (self.tag ^ (at as u64 / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.to_le_bytes()[at % 8]
    }

    /// The bytes.
    pub fn bytes(self) -> Vec<u8> {
        (0..self.len as usize).map(|at| self.byte(at)).collect()
    }

    /// Whether `bytes` are this value.
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

/// Bytes found in a store, for messages: length and beginning.
pub fn shown(bytes: Option<&[u8]>) -> String {
    let Some(bytes) = bytes else {
        return "nothing".into();
    };
    match bytes.first_chunk::<8>() {
        Some(tag) => format!("<{} bytes, tag {}>", bytes.len(), u64::from_le_bytes(*tag)),
        None => format!("<{}>", bytes.escape_ascii()),
    }
}
