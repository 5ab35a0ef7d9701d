//! Snapshots: the old versions that readers may still see.
//!
//! A snapshot is a sequence number that was visible when it was registered. Registering reads the
//! visible number under the lock. So a job that captures the list afterwards either finds the
//! snapshot or works on entries that are all older than it.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::expiry::{Millis, Time};
use super::sequence::Sequencer;
use crate::canary::{self, Canary, failpoint};
use crate::types::SeqNo;

/// A read point: entries up to a number that have not expired at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReadPoint {
    pub(crate) seq: SeqNo,
    pub(crate) time: Millis,
}

struct Held {
    holders: u64,
    /// The oldest time of the holders.
    time: Millis,
}

/// The registered snapshots of one database, with the number of holders of each.
#[derive(Default)]
pub(crate) struct SnapshotList {
    seqs: Mutex<BTreeMap<SeqNo, Held>>,
}

impl SnapshotList {
    /// Registers a number and a time that were current at the same instant during the call. Returns
    /// `None` if both advanced between any two of `looks_max` reads.
    ///
    /// Neither number nor time ever decreases. So if the time is the same before and after the
    /// number is read, it was current at that instant, and if the number is the same before and
    /// after the time is read, so was the number. Reading one after the other without a check is
    /// not enough. With the number first, a key that is rewritten before it expires would be
    /// absent; with the time first, an expired key would appear next to one written after its
    /// expiry.
    pub(crate) fn register(
        &self,
        sequencer: &Sequencer,
        time: &Time,
        looks_max: u32,
    ) -> Option<ReadPoint> {
        // Read under the lock, so that a job that took the horizon before has the same or an
        // earlier time.
        let mut seqs = self.seqs.lock();
        let point = together(sequencer, time, looks_max)?;
        hold(&mut seqs, point);
        Some(point)
    }

    /// Registers a number for readers that ignore expiry.
    pub(crate) fn register_number(&self, sequencer: &Sequencer, time: &Time) -> SeqNo {
        let mut seqs = self.seqs.lock();
        let point = ReadPoint {
            seq: sequencer.visible(),
            time: time.now(),
        };
        hold(&mut seqs, point);
        point.seq
    }

    /// Runs `f` while no snapshot can be registered: no snapshot before it sees the entries that it
    /// makes visible, and every later one does.
    pub(crate) fn hold_off(&self, f: impl FnOnce()) {
        let _nobody = self.seqs.lock();
        f();
    }

    /// Registers another holder of a moment that is already registered.
    pub(crate) fn register_again(&self, point: ReadPoint) {
        hold(&mut self.seqs.lock(), point);
    }

    /// Returns the current time or that of the oldest snapshot, whichever is earlier.
    pub(crate) fn horizon(&self, time: &Time) -> Millis {
        let seqs = self.seqs.lock();
        let oldest = seqs.values().map(|held| held.time).min();
        time.now().min(oldest.unwrap_or(Millis::MAX))
    }

    /// Releases one registration of `seq`.
    pub(crate) fn release(&self, seq: SeqNo) {
        let mut seqs = self.seqs.lock();
        if let Some(held) = seqs.get_mut(&seq) {
            held.holders -= 1;
            if held.holders == 0 {
                seqs.remove(&seq);
            }
        }
    }

    /// Returns the number of registrations.
    pub(crate) fn count(&self) -> u64 {
        self.seqs.lock().values().map(|held| held.holders).sum()
    }

    /// Returns the stripes between the registered snapshots.
    pub(crate) fn stripes(&self) -> Stripes {
        Stripes {
            seqs: self.seqs.lock().keys().copied().collect(),
        }
    }
}

/// Returns a number and a time that were current at the same instant; see
/// [`SnapshotList::register`].
fn together(sequencer: &Sequencer, time: &Time, looks_max: u32) -> Option<ReadPoint> {
    let mut seq = sequencer.visible();
    canary::linger(Canary::TimeLast);
    let mut now = time.now();
    failpoint!(TimeLast => return Some(ReadPoint { seq, time: now }));
    for _ in 0..looks_max {
        canary::linger(Canary::TimeFirst);
        let next = sequencer.visible();
        if next == seq || canary::breaks(Canary::TimeFirst) {
            return Some(ReadPoint {
                seq: next,
                time: now,
            });
        }
        let later = time.now();
        if later == now {
            return Some(ReadPoint {
                seq: next,
                time: now,
            });
        }
        (seq, now) = (next, later);
    }
    None
}

fn hold(seqs: &mut BTreeMap<SeqNo, Held>, ReadPoint { seq, time }: ReadPoint) {
    let held = seqs.entry(seq).or_insert(Held { holders: 0, time });
    held.holders += 1;
    held.time = held.time.min(time);
}

/// The ranges of sequence numbers between snapshots. Among versions of a key in the same stripe,
/// only the newest can be read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stripes {
    seqs: Vec<SeqNo>,
}

impl Stripes {
    /// Returns the stripes between snapshots with these ascending numbers.
    #[cfg(test)]
    pub(crate) fn of(seqs: Vec<SeqNo>) -> Stripes {
        Stripes { seqs }
    }

    /// Returns whether no reader can tell versions `newer` and `older` of a key apart from `newer`
    /// alone.
    pub(crate) fn same(&self, newer: SeqNo, older: SeqNo) -> bool {
        // A snapshot in older..newer sees the older version.
        let at = self.seqs.partition_point(|&s| s < older);
        self.seqs.get(at).is_none_or(|&s| s >= newer)
    }

    /// Returns the newest snapshot before `seq`.
    pub(crate) fn last_before(&self, seq: SeqNo) -> Option<SeqNo> {
        let at = self.seqs.partition_point(|&s| s < seq);
        Some(self.seqs[at.checked_sub(1)?])
    }

    /// Returns the number of snapshots.
    pub(crate) fn len(&self) -> usize {
        self.seqs.len()
    }

    /// Returns the oldest snapshot.
    pub(crate) fn oldest(&self) -> Option<SeqNo> {
        self.seqs.first().copied()
    }

    /// Returns whether a snapshot is older than `seq`.
    pub(crate) fn any_before(&self, seq: SeqNo) -> bool {
        self.seqs.first().is_some_and(|&s| s < seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two versions are in different stripes exactly if some snapshot reads the older one.
    #[test]
    fn stripes_keep_what_a_snapshot_reads() {
        let stripes = Stripes { seqs: vec![5, 10] };
        let reads =
            |at: SeqNo, versions: &[SeqNo]| versions.iter().copied().filter(|&v| v <= at).max();
        for newer in 1..15 {
            for older in 1..newer {
                let versions = [older, newer];
                let needed = stripes
                    .seqs
                    .iter()
                    .any(|&s| reads(s, &versions) == Some(older));
                assert_eq!(
                    stripes.same(newer, older),
                    !needed,
                    "versions {newer} and {older}"
                );
            }
        }
    }
}
