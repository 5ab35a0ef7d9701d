//! The range deletes of one table, as fragments in their own block (`parts/ranges`).

use std::cmp::Ordering as Order;

use super::block::Block;
use super::build::{BlockBuilder, RawEntry};
use super::layout::{keyspace_bytes, kind};
use super::walk::{BlockCursor, user_key};
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;
pub(crate) use crate::parts::ranges::RangeDelete;
use crate::types::SeqNo;
use std::sync::Arc;

/// Encodes the content of the block of these fragments.
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
    /// Decodes the fragments of a block. Fails if R1 or R2 does not hold.
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
                let expected = "range deletes in order, disjoint or equal";
                return Err(DecodeError::new("range deletes", offset, expected, found));
            }
            ranges.weight += size_of::<RangeDelete>() + range.begin.len() + range.end.len();
            ranges.fragments.push(range);
        }
        Ok(ranges)
    }

    /// Returns all fragments, in order.
    pub(crate) fn fragments(&self) -> &[RangeDelete] {
        &self.fragments
    }

    /// Returns whether there are no fragments.
    pub(crate) fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Returns the newest range delete that a read at `target` sees and that covers its key.
    /// Versions of the key with a smaller sequence number are deleted.
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

    /// Returns the size in memory in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }
}
