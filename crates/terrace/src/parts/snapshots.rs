//! Snapshots: which old versions somebody may still read.
//!
//! A snapshot is a sequence number that was visible when it was registered. Registering reads the
//! visible number under the lock, so a job that captures the list afterwards either finds the
//! snapshot or works on entries that are all older than it.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::expiry::{Millis, Time};
use super::sequence::Sequencer;
use crate::canary::{self, Canary, failpoint};
use crate::types::SeqNo;

/// What a snapshot sees: entries up to a number, and those of them that have not expired at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) seq: SeqNo,
    pub(crate) time: Millis,
}

struct Held {
    holders: u64,
    /// The oldest of theirs.
    time: Millis,
}

/// The registered snapshots of one database, with how many holders each has.
#[derive(Default)]
pub(crate) struct SnapshotList {
    seqs: Mutex<BTreeMap<SeqNo, Held>>,
}

impl SnapshotList {
    /// Registers a number and a time that held together at one instant of the call. `None`: while it
    /// looked `looks_max` times, both went on between any two looks.
    ///
    /// Neither number nor time ever falls. So if the time is the same before and after the number is read,
    /// it was the time at that instant; and if the number is the same before and after the time is
    /// told, it was the number then. To read one after the other without looking again is not enough. With the
    /// number first, a key that is written anew before it expires is absent; with the time first, a key
    /// that has expired stands beside one that was written after that.
    pub(crate) fn register(
        &self,
        sequencer: &Sequencer,
        time: &Time,
        looks_max: u32,
    ) -> Option<Moment> {
        // Under the lock: a job that has taken the horizon before has an earlier time, or the same.
        let mut seqs = self.seqs.lock();
        let moment = together(sequencer, time, looks_max)?;
        hold(&mut seqs, moment);
        Some(moment)
    }

    /// Registers a number for readers that take entries as they are, expired or not.
    pub(crate) fn register_number(&self, sequencer: &Sequencer, time: &Time) -> SeqNo {
        let mut seqs = self.seqs.lock();
        let moment = Moment {
            seq: sequencer.visible(),
            time: time.now(),
        };
        hold(&mut seqs, moment);
        moment.seq
    }

    /// Runs `f` while nobody can register: what it makes visible is seen by no snapshot before it, and
    /// by each one after it.
    pub(crate) fn hold_off(&self, f: impl FnOnce()) {
        let _nobody = self.seqs.lock();
        f();
    }

    /// Registers one more holder of a moment, which is registered already.
    pub(crate) fn register_again(&self, moment: Moment) {
        hold(&mut self.seqs.lock(), moment);
    }

    /// The time now, or that of the oldest snapshot.
    pub(crate) fn horizon(&self, time: &Time) -> Millis {
        let seqs = self.seqs.lock();
        let oldest = seqs.values().map(|held| held.time).min();
        time.now().min(oldest.unwrap_or(Millis::MAX))
    }

    /// Gives one registration of `seq` back.
    pub(crate) fn release(&self, seq: SeqNo) {
        let mut seqs = self.seqs.lock();
        if let Some(held) = seqs.get_mut(&seq) {
            held.holders -= 1;
            if held.holders == 0 {
                seqs.remove(&seq);
            }
        }
    }

    /// How many registrations there are.
    pub(crate) fn count(&self) -> u64 {
        self.seqs.lock().values().map(|held| held.holders).sum()
    }

    /// The stripes that the registered snapshots cut time into.
    pub(crate) fn stripes(&self) -> Stripes {
        Stripes {
            seqs: self.seqs.lock().keys().copied().collect(),
        }
    }
}

/// A number and a time that held together; see [`SnapshotList::register`].
fn together(sequencer: &Sequencer, time: &Time, looks_max: u32) -> Option<Moment> {
    let mut seq = sequencer.visible();
    canary::linger(Canary::TimeLast);
    let mut now = time.now();
    failpoint!(TimeLast => return Some(Moment { seq, time: now }));
    for _ in 0..looks_max {
        canary::linger(Canary::TimeFirst);
        let next = sequencer.visible();
        if next == seq || canary::breaks(Canary::TimeFirst) {
            return Some(Moment {
                seq: next,
                time: now,
            });
        }
        let later = time.now();
        if later == now {
            return Some(Moment {
                seq: next,
                time: now,
            });
        }
        (seq, now) = (next, later);
    }
    None
}

fn hold(seqs: &mut BTreeMap<SeqNo, Held>, Moment { seq, time }: Moment) {
    let held = seqs.entry(seq).or_insert(Held { holders: 0, time });
    held.holders += 1;
    held.time = held.time.min(time);
}

/// The pieces of time between snapshots. Of several versions of a key in one stripe, only the
/// newest can be read by anyone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stripes {
    seqs: Vec<SeqNo>,
}

impl Stripes {
    /// Returns the stripes between snapshots with these numbers, which ascend.
    #[cfg(test)]
    pub(crate) fn of(seqs: Vec<SeqNo>) -> Stripes {
        Stripes { seqs }
    }

    /// Whether nobody can tell versions `newer` and `older` of a key apart from `newer` alone.
    pub(crate) fn same(&self, newer: SeqNo, older: SeqNo) -> bool {
        // A snapshot in older..newer sees the older version.
        let at = self.seqs.partition_point(|&s| s < older);
        self.seqs.get(at).is_none_or(|&s| s >= newer)
    }

    /// The newest snapshot before `seq`.
    pub(crate) fn last_before(&self, seq: SeqNo) -> Option<SeqNo> {
        let at = self.seqs.partition_point(|&s| s < seq);
        Some(self.seqs[at.checked_sub(1)?])
    }

    /// How many snapshots there are.
    pub(crate) fn len(&self) -> usize {
        self.seqs.len()
    }

    /// The oldest snapshot.
    pub(crate) fn oldest(&self) -> Option<SeqNo> {
        self.seqs.first().copied()
    }

    /// Whether a snapshot is older than `seq`.
    pub(crate) fn any_before(&self, seq: SeqNo) -> bool {
        self.seqs.first().is_some_and(|&s| s < seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After versions are compared with a list of snapshots, exactly those that some snapshot or
    /// the present reads are kept.
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
