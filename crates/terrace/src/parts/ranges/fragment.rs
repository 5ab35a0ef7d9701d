//! This file is range deletes as pieces of the key space.
//!
//! Invariants of fragments
//!   R1  Fragments ascend by keyspace and begin, then descend by sequence number.
//!   R2  Two fragments with one begin have one end; any others do not overlap.

use std::cmp::Ordering as Order;
use std::collections::BTreeMap;

use super::layout::{self, SHADOW};
use crate::parts::codec::DecodeError;
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
