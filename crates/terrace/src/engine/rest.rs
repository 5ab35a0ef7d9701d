//! Rest: whether writers rest, since some work is worth doing only then.
//!
//! Writers rest when none has taken a number for a while, as seen by idle workers, and while a
//! caller waits until nothing is left to do. Jobs ask under the lock of their state.

use std::time::{Duration, Instant};

use crate::types::SeqNo;

/// Writers rest after this time without a write.
const REST: Duration = Duration::from_secs(1);

/// What is known of resting writers.
#[derive(Default)]
pub(super) struct Rest {
    /// The number of callers that wait until nothing is left to do.
    pub(super) waiting: usize,
    /// The last number that an idle worker has seen taken, and since when.
    still: Option<(SeqNo, Instant)>,
    /// Whether a worker has reported this rest.
    told: bool,
}

impl Rest {
    /// Returns whether writers, which took `seq` last, rest.
    pub(super) fn is_reached(&self, seq: SeqNo) -> bool {
        self.waiting > 0 || self.is_still(seq)
    }

    fn is_still(&self, seq: SeqNo) -> bool {
        self.still
            .is_some_and(|(still, since)| still == seq && since.elapsed() >= REST)
    }

    /// Notes that a worker has found no work, and that writers took `seq` last. Returns true once
    /// per rest.
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
