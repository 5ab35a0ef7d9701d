//! Need: how urgently space is needed, and how near a stage is to slowing and stopping writers.

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

/// The state of a stage's own backlog as one number.
///
/// Below 1 writers notice nothing: at 0 the work may take its time, close to 1 it should hurry.
/// From 1 to 2 writers are slowed. At 2 nothing more should come down.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Need {
    pub(crate) part: f64,
    /// The number of bytes between 1 and 2.
    pub(crate) range: u64,
}

impl Need {
    /// Combines a backlog before the point at which it slows writers, from 0 to 1, with the
    /// pressure after it.
    pub(crate) fn of(before: f64, pressure: Pressure) -> Need {
        let before = match pressure.part > 0.0 {
            true => 1.0,
            false => before.clamp(0.0, 1.0),
        };
        Need {
            part: before + pressure.part,
            range: pressure.range,
        }
    }

    /// Returns the pressure on writers.
    pub(crate) fn pressure(self) -> Pressure {
        Pressure {
            part: (self.part - 1.0).max(0.0),
            range: self.range,
        }
    }

    /// Returns how near writers are to being slowed; at 1 they are.
    pub(crate) fn haste(self) -> f64 {
        self.part.min(1.0)
    }

    /// Returns whether nothing more should come down.
    pub(crate) fn stops(self) -> bool {
        self.part >= 2.0
    }
}
