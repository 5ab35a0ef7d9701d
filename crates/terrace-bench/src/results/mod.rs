//! This folder is results as JSON Lines: one record a line, the format that `terrace bench --json`
//! prints, comparisons append and reports read.
//!
//! `record.rs` is the format, `read.rs` reads files of it and says what is wrong with them,
//! `append.rs` adds to one so that a crash costs the last line at most.

mod append;
mod read;
mod record;

pub use append::Appender;
pub use read::{ReadError, Results, read, read_line};
pub use record::{End, Failure, Phase, Planned, Record, RunId, VERSION};
