//! Column contract: the ranges of keys in which a buffer that drains ranges gives its tables to a
//! bottom that merges them with its first level.
//!
//! The buffer knows how its bytes are spread over the keys, the bottom knows its tables. So the
//! bottom chooses the next range, and asks the buffer for sizes.

use crate::error::Result;
use crate::parts::key::{KeyRange, Place};

/// The tables of a buffer that drain together, as seen by the bottom.
pub(crate) trait Rows {
    /// Returns about how many bytes of entries have keys in a range.
    fn bytes(&self, keys: &KeyRange) -> Result<u64>;
    /// Returns the key after the first `bytes` of entries from `from` on, about; `None` if there
    /// are not more than that.
    fn key_after(&self, from: Option<&Place>, bytes: u64) -> Result<Option<Place>>;
}

/// A bottom that chooses the ranges.
pub(crate) trait Columns {
    /// Returns the range of the next drain, which begins at `from`, or `None` if it has to wait for
    /// a job of the bottom, which then leaves later tables alone. A bottom that merges drains as a
    /// whole returns all keys from there on.
    fn next(&self, from: Option<&Place>, rows: &dyn Rows) -> Result<Option<KeyRange>>;
}
