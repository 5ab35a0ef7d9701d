//! Need: how urgently space is needed, and how near a stage is to stopping writers.

/// The urgency with which space is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// There are no writers now: work that is worthwhile only then.
    Rest,
    /// Data moves when it is cheapest.
    None,
    /// The pool fills, or a caller waits for the contents of the buffer: data moves that need not
    /// move yet.
    Space,
    /// A caller waits for an empty buffer.
    Everything,
}

/// The position of a backlog between the point where it has no effect on writers and the point
/// where nothing more fits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pressure {
    /// 0: writers are not slowed. 1: nothing more should come down.
    pub(crate) part: f64,
    /// The number of bytes between the two points.
    pub(crate) range: u64,
}
