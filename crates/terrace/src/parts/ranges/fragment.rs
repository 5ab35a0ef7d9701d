//! This file is range deletes as pieces of the key space.
//!
//! Invariants of fragments
//!   R1  Fragments ascend by keyspace and begin, then descend by sequence number.
//!   R2  Two fragments with one begin have one end; any others do not overlap.
//!
//! Ranges that are deleted again and again, as a queue deletes what has been taken, lie over one another. Most of
//! them are the newest for no read: they are left out, or n of them would be n^2 fragments.

use std::cmp::{Ordering as Order, Reverse};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;

use super::layout::{self, SHADOW};
use crate::parts::codec::DecodeError;
use crate::parts::sequence::Sequencer;
use crate::parts::snapshots::{SnapshotList, Stripes};
use crate::types::SeqNo;

/// Deletes what is older than `seq` in a range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RangeDelete {
    pub(crate) keyspace: u32,
    pub(crate) begin: Vec<u8>,
    /// Exclusive. Empty: to the end of the keyspace, since nothing is before the empty key.
    pub(crate) end: Vec<u8>,
    pub(crate) seq: SeqNo,
}

/// The order of two ends, of which the empty one is the last.
pub(crate) fn compare_ends(a: &[u8], b: &[u8]) -> Order {
    match (a.is_empty(), b.is_empty()) {
        (false, false) => a.cmp(b),
        (a, b) => a.cmp(&b),
    }
}

impl RangeDelete {
    /// Whether any key is in the range.
    pub(crate) fn is_some(&self) -> bool {
        self.end.is_empty() || self.begin < self.end
    }

    /// The range delete whose entry has this keyspace, key and number, and lies at `offset`.
    pub(crate) fn from_entry(
        keyspace: u32,
        key: &[u8],
        seq: SeqNo,
        offset: u64,
    ) -> Result<RangeDelete, DecodeError> {
        let (begin, end) = layout::decode(key, offset)?;
        Ok(RangeDelete {
            keyspace: keyspace & !SHADOW,
            begin: begin.to_vec(),
            end: end.to_vec(),
            seq,
        })
    }

    /// The part of the range from `low` on and before `high`, each a keyspace and a key; `None` when
    /// there is none.
    pub(crate) fn cut(
        &self,
        low: Option<(u32, &[u8])>,
        high: Option<(u32, &[u8])>,
    ) -> Option<RangeDelete> {
        let mut part = self.clone();
        match low {
            Some((keyspace, _)) if keyspace > self.keyspace => return None,
            Some((keyspace, key)) if keyspace == self.keyspace && key > part.begin.as_slice() => {
                part.begin = key.to_vec();
            }
            _ => {}
        }
        match high {
            Some((keyspace, _)) if keyspace < self.keyspace => return None,
            // The empty key is behind nothing, so nothing of the keyspace is before it.
            Some((keyspace, [])) if keyspace == self.keyspace => return None,
            Some((keyspace, key))
                if keyspace == self.keyspace && compare_ends(&part.end, key) == Order::Greater =>
            {
                part.end = key.to_vec();
            }
            _ => {}
        }
        part.is_some().then_some(part)
    }

    /// The order of fragments (R1).
    pub(crate) fn order(&self, other: &RangeDelete) -> Order {
        (self.keyspace, &self.begin)
            .cmp(&(other.keyspace, &other.begin))
            .then(other.seq.cmp(&self.seq))
    }

    /// Whether the range has a key.
    pub(crate) fn has(&self, keyspace: u32, key: &[u8]) -> bool {
        self.keyspace == keyspace
            && self.begin.as_slice() <= key
            && (self.end.is_empty() || key < self.end.as_slice())
    }
}

/// Which of the range deletes over one key are kept.
#[derive(Clone, Copy)]
pub(crate) enum Keep<'a> {
    All,
    /// The one with the smallest number.
    Oldest,
    /// Those that are the newest for some read.
    Readable(&'a Readable),
}

/// What reads there may be from now on: of registered snapshots, and of numbers from `visible` on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Readable {
    visible: SeqNo,
    stripes: Stripes,
}

impl Readable {
    /// By those snapshots, and by whoever reads later.
    pub(crate) fn of(snapshots: &SnapshotList, sequencer: &Sequencer) -> Readable {
        // In this order: who registers in between has at least this number.
        let visible = sequencer.visible();
        Readable {
            visible,
            stripes: snapshots.stripes(),
        }
    }

    /// By nobody who has a number yet, and later by those who see everything.
    pub(crate) fn later() -> Readable {
        Readable::after(Stripes::default())
    }

    /// By those snapshots, and later by those who see everything.
    pub(crate) fn after(stripes: Stripes) -> Readable {
        Readable {
            visible: SeqNo::MAX,
            stripes,
        }
    }
}

impl Keep<'_> {
    /// Of the numbers in `active`, the one to be kept next after `last`, in falling order.
    fn next(self, active: &BTreeMap<SeqNo, usize>, last: Option<SeqNo>) -> Option<SeqNo> {
        let newest = |upto: Bound<SeqNo>| {
            let mut range = active.range((Bound::Unbounded, upto));
            range.next_back().map(|(seq, _)| *seq)
        };
        match (self, last) {
            (Keep::Oldest, None) => active.keys().next().copied(),
            (Keep::Oldest, Some(_)) => None,
            (_, None) => newest(Bound::Unbounded),
            (Keep::All, Some(last)) => newest(Bound::Excluded(last)),
            (Keep::Readable(reads), Some(last)) if last > reads.visible => {
                newest(Bound::Excluded(last))
            }
            (Keep::Readable(reads), Some(last)) => {
                newest(Bound::Included(reads.stripes.last_before(last)?))
            }
        }
    }
}

/// Cuts ranges where any of them begins or ends, so that R1 and R2 hold, and puts pieces together that are
/// alike. Takes time in proportion to the ranges, its logarithm, and what is kept over each piece.
pub(crate) fn fragment(mut ranges: Vec<RangeDelete>, keep: Keep<'_>) -> Vec<RangeDelete> {
    ranges.retain(RangeDelete::is_some);
    ranges.sort_by(RangeDelete::order);
    let mut fragments: Vec<RangeDelete> = Vec::new();
    for ranges in ranges.chunk_by(|a, b| a.keyspace == b.keyspace) {
        let mut cuts: Vec<&[u8]> = ranges.iter().map(|r| r.begin.as_slice()).collect();
        let ends = ranges.iter().map(|r| r.end.as_slice());
        cuts.extend(ends.filter(|end| !end.is_empty()));
        cuts.sort_unstable();
        cuts.dedup();
        // How many ranges over the piece have each sequence number, and where they end, the first end first.
        let mut active: BTreeMap<SeqNo, usize> = BTreeMap::new();
        let mut ends = BinaryHeap::new();
        let mut next = 0;
        // The fragments of the piece before.
        let mut before = fragments.len()..fragments.len();
        for (i, &cut) in cuts.iter().enumerate() {
            while let Some(Reverse(End(end, seq))) = ends.peek()
                && compare_ends(end, cut) != Order::Greater
            {
                if let Entry::Occupied(mut count) = active.entry(*seq) {
                    *count.get_mut() -= 1;
                    if *count.get() == 0 {
                        count.remove();
                    }
                }
                ends.pop();
            }
            while let Some(range) = ranges.get(next).filter(|r| r.begin == cut) {
                *active.entry(range.seq).or_default() += 1;
                ends.push(Reverse(End(&range.end, range.seq)));
                next += 1;
            }
            let end = cuts.get(i + 1).copied().unwrap_or(&[]);
            let kept = std::iter::successors(keep.next(&active, None), |last| {
                keep.next(&active, Some(*last))
            });
            let from = fragments.len();
            fragments.extend(kept.map(|seq| RangeDelete {
                keyspace: ranges[0].keyspace,
                begin: cut.to_vec(),
                end: end.to_vec(),
                seq,
            }));
            let alike = from > before.start
                && fragments[before.start].end == cut
                && fragments[before.clone()]
                    .iter()
                    .map(|f| f.seq)
                    .eq(fragments[from..].iter().map(|f| f.seq));
            if alike {
                fragments.truncate(from);
                let longer = fragments[before.clone()].iter_mut();
                longer.for_each(|f| f.end = end.to_vec());
            } else {
                before = from..fragments.len();
            }
        }
    }
    fragments
}

/// The end of a range and its number, in the order of ends.
#[derive(PartialEq, Eq)]
struct End<'a>(&'a [u8], SeqNo);

impl Ord for End<'_> {
    fn cmp(&self, other: &Self) -> Order {
        compare_ends(self.0, other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for End<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}
