//! Need: how badly space is needed, and how near something is to stopping writers.

/// How badly space is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// Writers rest: what is worth doing only then.
    Rest,
    /// Data moves when it is cheapest.
    None,
    /// The pool fills, or somebody waits for what is in the buffer: move data that need not move yet.
    Space,
    /// Somebody waits for an empty buffer.
    Everything,
}

/// How far something is on its way from where writers need not care to where nothing more fits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pressure {
    /// 0: writers go on unslowed. 1: nothing more should come down.
    pub(crate) part: f64,
    /// How many bytes it is from the one to the other.
    pub(crate) range: u64,
}
