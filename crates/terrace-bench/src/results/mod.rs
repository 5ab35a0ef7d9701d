//! Results as JSON Lines: one record a line, the format that `terrace bench --json` prints,
//! comparisons append and reports read.
//!
//! `record.rs` defines the format, `read.rs` reads files and reports errors, and `append.rs`
//! appends to a file so that a crash loses at most the last line.

mod append;
mod read;
mod record;

pub use append::Appender;
pub use read::{ReadError, Results, read, read_line};
pub use record::{End, Failure, Phase, Planned, Record, RunId, VERSION};
