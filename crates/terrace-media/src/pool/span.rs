//! Spans: ranges of a pool, and the errors of allocating one.

use std::fmt;
use std::io;

/// A range of a pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    /// The offset of the first byte.
    pub off: u64,
    /// The number of bytes.
    pub len: u64,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.off, self.len)
    }
}

/// An error of allocating or adopting an extent.
#[derive(Debug)]
pub enum AllocError {
    /// No free range of the pool is long enough, or the device has no space for it to grow.
    Full {
        /// The requested bytes, in whole granules.
        wanted: u64,
        /// The free bytes of the pool, in ranges of any length.
        free: u64,
        /// The pool's cap, or its size if its device is full.
        cap: u64,
    },
    /// Growing the pool failed.
    Io(io::Error),
    /// The range to adopt is already in use.
    Overlap(Span),
    /// The range to adopt cannot have been allocated from this pool.
    OutOfRange {
        /// The range.
        span: Span,
        /// The end of the pool's committed bytes.
        end: u64,
    },
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::Full { wanted, free, cap } => write!(
                f,
                "the pool has no space for {wanted} bytes: {free} of {cap} are free; delete data, \
                 raise the pool's size, or free space on its device"
            ),
            AllocError::Io(_) => write!(f, "growing the pool failed"),
            AllocError::Overlap(span) => {
                write!(
                    f,
                    "the extent {span} is already in use, so it is named twice"
                )
            }
            AllocError::OutOfRange { span, end } => write!(
                f,
                "the extent {span} is not part of this pool, which ends at {end}"
            ),
        }
    }
}

impl std::error::Error for AllocError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AllocError::Io(source) => Some(source),
            _ => None,
        }
    }
}
