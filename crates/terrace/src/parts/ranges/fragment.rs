//! Cuts range deletes into fragments of the key space.
//!
//! Invariants of fragments
//!   R1  Fragments ascend by keyspace and begin, then descend by sequence number.
//!   R2  Two fragments with the same begin have the same end; any others do not overlap.
//!
//! Repeated range deletes, as of a queue that deletes consumed entries, overlap. Most of them are
//! not the newest for any read and are left out; otherwise n of them would make n^2 fragments.

use std::cmp::{Ordering as Order, Reverse};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;

use super::layout::{self, RANGE_DELETE_BIT};
use crate::parts::codec::DecodeError;
use crate::parts::key::KeyRange;
use crate::parts::sequence::Sequencer;
use crate::parts::snapshots::{SnapshotList, Stripes};
use crate::types::SeqNo;

/// Deletes the versions older than `seq` in a range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RangeDelete {
    pub(crate) keyspace: u32,
    pub(crate) begin: Vec<u8>,
    /// Exclusive. Empty stands for the end of the keyspace, since no key is before the empty key.
    pub(crate) end: Vec<u8>,
    pub(crate) seq: SeqNo,
}

/// Compares two ends; the empty one is the last.
pub(crate) fn compare_ends(a: &[u8], b: &[u8]) -> Order {
    match (a.is_empty(), b.is_empty()) {
        (false, false) => a.cmp(b),
        (a, b) => a.cmp(&b),
    }
}

impl RangeDelete {
    /// Returns whether the range can contain a key.
    pub(crate) fn is_some(&self) -> bool {
        self.end.is_empty() || self.begin < self.end
    }

    /// Decodes the range delete of the entry with this keyspace, key and number at `offset`.
    pub(crate) fn from_entry(
        keyspace: u32,
        key: &[u8],
        seq: SeqNo,
        offset: u64,
    ) -> Result<RangeDelete, DecodeError> {
        let (begin, end) = layout::decode(key, offset)?;
        Ok(RangeDelete {
            keyspace: keyspace & !RANGE_DELETE_BIT,
            begin: begin.to_vec(),
            end: end.to_vec(),
            seq,
        })
    }

    /// Returns the part of the range that is in another, or `None` if it is empty.
    pub(crate) fn within(&self, range: &KeyRange) -> Option<RangeDelete> {
        let (low, high) = (range.from.as_ref(), range.to.as_ref());
        self.cut(
            low.map(|(keyspace, key)| (*keyspace, key.as_slice())),
            high.map(|(keyspace, key)| (*keyspace, key.as_slice())),
        )
    }

    /// Returns the part of the range from `low` up to but not including `high`, each a keyspace and
    /// a key, or `None` if it is empty.
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
            // No key is before the empty key, so the whole keyspace is outside.
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

    /// Compares in the order of fragments (R1).
    pub(crate) fn order(&self, other: &RangeDelete) -> Order {
        (self.keyspace, &self.begin)
            .cmp(&(other.keyspace, &other.begin))
            .then(other.seq.cmp(&self.seq))
    }

    /// Returns whether the range contains a key.
    pub(crate) fn has(&self, keyspace: u32, key: &[u8]) -> bool {
        self.keyspace == keyspace
            && self.begin.as_slice() <= key
            && (self.end.is_empty() || key < self.end.as_slice())
    }
}

/// The range deletes to keep over a key.
#[derive(Clone, Copy)]
pub(crate) enum Keep<'a> {
    All,
    /// The one with the smallest number.
    Oldest,
    /// Those that are the newest for some read.
    Readable(&'a Readable),
}

/// The reads that are still possible: at registered snapshots, and at numbers from `visible` on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Readable {
    visible: SeqNo,
    stripes: Stripes,
}

impl Readable {
    /// Returns the reads of those snapshots and of all later readers.
    pub(crate) fn of(snapshots: &SnapshotList, sequencer: &Sequencer) -> Readable {
        // The order matters: a snapshot registered in between has at least this number.
        let visible = sequencer.visible();
        Readable {
            visible,
            stripes: snapshots.stripes(),
        }
    }

    /// Returns only later reads, which see everything.
    pub(crate) fn later() -> Readable {
        Readable::after(Stripes::default())
    }

    /// Returns the reads of those snapshots and later reads, which see everything.
    pub(crate) fn after(stripes: Stripes) -> Readable {
        Readable {
            visible: SeqNo::MAX,
            stripes,
        }
    }
}

impl Keep<'_> {
    /// Returns the number in `active` to keep after `last`, in descending order.
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

/// Cuts ranges at every begin and end, so that R1 and R2 hold, and joins adjacent pieces with the
/// same numbers. Takes time proportional to n log n for n ranges, plus the fragments kept over each
/// piece.
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
        // The number of ranges over the piece with each sequence number, and a heap of their ends,
        // the first end on top.
        let mut active: BTreeMap<SeqNo, usize> = BTreeMap::new();
        let mut ends = BinaryHeap::new();
        let mut next = 0;
        // The fragments of the previous piece.
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

/// The end of a range and its number, ordered by the end.
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
