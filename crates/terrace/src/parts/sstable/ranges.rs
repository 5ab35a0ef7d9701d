//! This file is range deletes: made into fragments by the writer, asked by readers.
//!
//! Invariants
//!   R1  Fragments ascend by keyspace and begin, then descend by sequence number.
//!   R2  Two fragments with one begin have one end; any others do not overlap.

use std::cmp::Ordering as Order;
use std::collections::BTreeMap;

use super::block::Block;
use super::build::{BlockBuilder, RawEntry};
use super::layout::{keyspace_bytes, kind};
use super::walk::{BlockCursor, user_key};
use crate::parts::codec::DecodeError;
use crate::parts::skiplist::Target;
use crate::types::SeqNo;
use std::sync::Arc;

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
fn compare_ends(a: &[u8], b: &[u8]) -> Order {
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

    fn order(&self, other: &RangeDelete) -> Order {
        (self.keyspace, &self.begin)
            .cmp(&(other.keyspace, &other.begin))
            .then(other.seq.cmp(&self.seq))
    }

    fn has(&self, keyspace: u32, key: &[u8]) -> bool {
        self.keyspace == keyspace
            && self.begin.as_slice() <= key
            && (self.end.is_empty() || key < self.end.as_slice())
    }
}

/// Cuts ranges where any of them begins or ends, so that R1 and R2 hold. Nested ranges give a
/// fragment for each of them in each piece.
pub(crate) fn fragment(mut ranges: Vec<RangeDelete>) -> Vec<RangeDelete> {
    ranges.retain(RangeDelete::is_some);
    ranges.sort_by(RangeDelete::order);
    let mut fragments = Vec::new();
    for ranges in ranges.chunk_by(|a, b| a.keyspace == b.keyspace) {
        let mut cuts: Vec<&[u8]> = ranges.iter().map(|r| r.begin.as_slice()).collect();
        let ends = ranges.iter().map(|r| r.end.as_slice());
        cuts.extend(ends.filter(|end| !end.is_empty()));
        cuts.sort_unstable();
        cuts.dedup();
        // How many active ranges have each sequence number, and where they end.
        let mut active: BTreeMap<SeqNo, Vec<&[u8]>> = BTreeMap::new();
        let mut next = 0;
        for (i, &cut) in cuts.iter().enumerate() {
            active.retain(|_, ends| {
                ends.retain(|end| compare_ends(end, cut) == Order::Greater);
                !ends.is_empty()
            });
            while let Some(range) = ranges.get(next).filter(|r| r.begin == cut) {
                active.entry(range.seq).or_default().push(&range.end);
                next += 1;
            }
            let end = cuts.get(i + 1).copied().unwrap_or(&[]);
            fragments.extend(active.keys().rev().map(|seq| RangeDelete {
                keyspace: ranges[0].keyspace,
                begin: cut.to_vec(),
                end: end.to_vec(),
                seq: *seq,
            }));
        }
    }
    fragments
}

/// The content of the block of these fragments.
pub(crate) fn encode(fragments: &[RangeDelete], restart_interval: usize) -> BlockBuilder {
    let mut block = BlockBuilder::new(restart_interval);
    let mut stored = Vec::new();
    for fragment in fragments {
        stored.clear();
        stored.extend_from_slice(&keyspace_bytes(fragment.keyspace));
        stored.extend_from_slice(&fragment.begin);
        block.push(&RawEntry {
            stored: &stored,
            seq: fragment.seq,
            kind: kind::RANGE_DELETE,
            expiry: 0,
            value: &fragment.end,
        });
    }
    block
}

/// The range deletes of one table.
#[derive(Debug, Default)]
pub(crate) struct RangeDeletes {
    fragments: Vec<RangeDelete>,
    weight: usize,
}

impl RangeDeletes {
    /// Reads the fragments of a block; an error where R1 or R2 does not hold.
    pub(crate) fn decode(block: Arc<Block>) -> Result<RangeDeletes, DecodeError> {
        let offset = block.offset();
        let mut ranges = RangeDeletes::default();
        let mut cursor = BlockCursor::default();
        cursor.enter(block);
        while cursor.advance()? {
            let (keyspace, begin) = user_key(&cursor);
            let (seq, found) = cursor
                .head()
                .map_or((0, 0), |h| (h.tag.seq(), h.tag.kind()));
            let range = RangeDelete {
                keyspace,
                begin: begin.to_vec(),
                end: cursor.value().to_vec(),
                seq,
            };
            let fits = ranges.fragments.last().is_none_or(|last| {
                let apart = last.keyspace < range.keyspace
                    || !last.end.is_empty() && last.end <= range.begin;
                let same = last.begin == range.begin && last.end == range.end;
                last.order(&range) == Order::Less && (apart || same)
            });
            if found != kind::RANGE_DELETE || !range.is_some() || !fits {
                let found = format!("kind {found}, {range:?}");
                let expected = "range deletes in order, apart or alike";
                return Err(DecodeError::new("range deletes", offset, expected, found));
            }
            ranges.weight += size_of::<RangeDelete>() + range.begin.len() + range.end.len();
            ranges.fragments.push(range);
        }
        Ok(ranges)
    }

    /// All fragments, in order.
    pub(crate) fn fragments(&self) -> &[RangeDelete] {
        &self.fragments
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// The newest range delete that a read at `target` sees and that covers its key: versions of the
    /// key with a smaller sequence number are deleted.
    #[inline]
    pub(crate) fn covering(&self, target: &Target<'_>) -> Option<SeqNo> {
        if self.fragments.is_empty() {
            return None;
        }
        self.newest_over(target)
    }

    fn newest_over(&self, target: &Target<'_>) -> Option<SeqNo> {
        let place = (target.keyspace, target.key);
        let after = self
            .fragments
            .partition_point(|f| (f.keyspace, f.begin.as_slice()) <= place);
        let last = self.fragments.get(after.checked_sub(1)?)?;
        if !last.has(target.keyspace, target.key) {
            return None;
        }
        let first = self
            .fragments
            .partition_point(|f| (f.keyspace, &f.begin) < (last.keyspace, &last.begin));
        let seqs = self.fragments[first..after].iter().map(|f| f.seq);
        seqs.into_iter().find(|seq| *seq <= target.seq)
    }

    /// Bytes of memory.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }
}
