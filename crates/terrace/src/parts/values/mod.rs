//! Value files: values stored apart from their keys, so that compactions move keys and pointers
//! only (WiscKey, FAST 2016; FlatLSM, section 4.4).
//!
//! ```text
//! ValueWriter --append--> pointer for a table; --finish: sync file, sync directory--> a file
//! ValueFile   --read(pointer)--> the value of a key
//! ```
//!
//! A record has its key, so that a pointer to another record is detected, and a repair can use it.
//! Which records are live only the pointers in tables tell: a value file is needed as long as a
//! table points into it.
//!
//! Invariants
//!   A1  A value file never changes once `ValueWriter::finish` has returned, and nothing may refer
//!       to it before that: the file is made durable first, then its name, then the manifest.
//!
//! layout.rs defines the bytes. A file has one writer and any number of readers.

#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod file;
pub(crate) mod layout;
mod meta;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use file::{ValueFile, ValueReader};
pub(crate) use layout::Pointer;
pub(crate) use meta::{VALUE_FILE, ValueMeta};
pub(crate) use writer::{NewValue, ValueOptions, ValueWriter};
