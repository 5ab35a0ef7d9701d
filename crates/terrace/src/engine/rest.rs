//! Rest: whether writers rest, so that what is worth doing only then is done.
//!
//! They rest when none has taken a number for a while, as workers without work see it, and while somebody waits
//! until nothing is left to do. Jobs ask under the lock of their state.

use std::time::{Duration, Instant};

use crate::types::SeqNo;

/// Writers who have written nothing for so long rest.
const REST: Duration = Duration::from_secs(1);

/// What is known of writers that may rest.
#[derive(Default)]
pub(super) struct Rest {
    /// How many wait until nothing is left to do.
    pub(super) waiting: usize,
    /// The last number that a worker without work has seen taken, and since when.
    still: Option<(SeqNo, Instant)>,
    /// Whether a worker was told that they rest.
    told: bool,
}

impl Rest {
    /// Whether writers, who took `seq` last, rest.
    pub(super) fn is_reached(&self, seq: SeqNo) -> bool {
        self.waiting > 0 || self.is_still(seq)
    }

    fn is_still(&self, seq: SeqNo) -> bool {
        self.still
            .is_some_and(|(still, since)| still == seq && since.elapsed() >= REST)
    }

    /// A worker has found no work, and writers took `seq` last. True, once: now they rest.
    pub(super) fn begins(&mut self, seq: SeqNo) -> bool {
        if self.still.is_none_or(|(still, _)| still != seq) {
            self.still = Some((seq, Instant::now()));
            self.told = false;
        }
        let begins = !self.told && self.is_still(seq);
        self.told |= begins;
        begins
    }
}
