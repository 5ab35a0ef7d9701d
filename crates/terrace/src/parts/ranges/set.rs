//! Immutable sets of fragments, and the queries of readers and jobs.

use std::sync::Arc;

use super::fragment::{Keep, RangeDelete, compare_ends, fragment};
use crate::parts::snapshots::Stripes;
use crate::types::SeqNo;

/// A keyspace and a key.
pub(crate) type Key<'a> = (u32, &'a [u8]);

/// The end of a stretch of keys.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Last<'a> {
    /// Ends with this key.
    Key(Key<'a>),
    /// Ends before this key of the same keyspace; empty: ends with the keyspace.
    Before(&'a [u8]),
}

/// A piece of the key space with the numbers of the range deletes over it, the newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) keyspace: u32,
    pub(crate) begin: Vec<u8>,
    /// Exclusive; empty: to the end of the keyspace.
    pub(crate) end: Vec<u8>,
    seqs: Vec<SeqNo>,
}

impl Fragment {
    /// Returns the memory in bytes.
    fn bytes(&self) -> usize {
        let keys = self.begin.capacity() + self.end.capacity();
        size_of::<Fragment>() + keys + self.seqs.capacity() * size_of::<SeqNo>()
    }

    /// Returns the newest range delete that a read at `at` sees.
    fn newest(&self, at: SeqNo) -> Option<SeqNo> {
        self.seqs.iter().copied().find(|&seq| seq <= at)
    }
}

/// Returns the maximum number of bytes that a range may add to fragments.
pub(crate) fn pieces_bytes(range: &RangeDelete) -> u64 {
    2 * (size_of::<Fragment>() + size_of::<SeqNo>() + range.begin.len() + range.end.len()) as u64
}

/// Ordered fragments that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    fragments: Vec<Fragment>,
    count: usize,
    /// The memory in bytes.
    bytes: usize,
}

impl Fragments {
    /// Builds the fragments of these ranges that `keep` selects.
    pub(crate) fn new(ranges: Vec<RangeDelete>, keep: Keep<'_>) -> Fragments {
        let mut all = Fragments::default();
        let pieces = fragment(ranges, keep);
        all.count = pieces.len();
        let same =
            |a: &RangeDelete, b: &RangeDelete| a.keyspace == b.keyspace && a.begin == b.begin;
        for over in pieces.chunk_by(same) {
            all.fragments.push(Fragment {
                keyspace: over[0].keyspace,
                begin: over[0].begin.clone(),
                end: over[0].end.clone(),
                seqs: over.iter().map(|piece| piece.seq).collect(),
            });
        }
        all.fragments.shrink_to_fit();
        all.bytes = all.fragments.iter().map(Fragment::bytes).sum();
        all
    }

    /// Returns the memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of fragments, each counted once for every range delete over it.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the range deletes of these fragments, cut at the fragments' ends.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = RangeDelete> {
        self.fragments.iter().flat_map(|piece| {
            piece.seqs.iter().map(|&seq| RangeDelete {
                keyspace: piece.keyspace,
                begin: piece.begin.clone(),
                end: piece.end.clone(),
                seq,
            })
        })
    }

    /// Returns the position of the fragment that contains a key.
    fn position(&self, keyspace: u32, key: &[u8]) -> Option<usize> {
        let place = (keyspace, key);
        let after = self
            .fragments
            .partition_point(|f| (f.keyspace, f.begin.as_slice()) <= place);
        let at = after.checked_sub(1)?;
        let found = &self.fragments[at];
        let has =
            found.keyspace == keyspace && (found.end.is_empty() || key < found.end.as_slice());
        has.then_some(at)
    }

    /// Returns the position of the fragment with the keys just before `end`, empty for the
    /// keyspace's end.
    fn position_before(&self, keyspace: u32, end: &[u8]) -> Option<usize> {
        let after = self.fragments.partition_point(|f| {
            f.keyspace < keyspace
                || f.keyspace == keyspace && (end.is_empty() || f.begin.as_slice() < end)
        });
        let at = after.checked_sub(1)?;
        let found = &self.fragments[at];
        let has = found.keyspace == keyspace && compare_ends(&found.end, end).is_ge();
        has.then_some(at)
    }
}

/// A stretch of keys that a range delete covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cover {
    pub(crate) seq: SeqNo,
    pub(crate) begin: Vec<u8>,
    /// Exclusive; empty: to the end of the keyspace.
    pub(crate) end: Vec<u8>,
}

/// All range deletes of a view.
#[derive(Debug, Clone, Default)]
pub(crate) struct RangeSet {
    runs: Vec<Arc<Fragments>>,
}

impl RangeSet {
    /// Returns the union of some spans.
    pub(crate) fn of(runs: Vec<Arc<Fragments>>) -> RangeSet {
        RangeSet { runs }
    }

    /// Returns the number of fragments, each counted once for every range delete over it.
    pub(crate) fn len(&self) -> usize {
        self.runs.iter().map(|run| run.len()).sum()
    }

    /// Returns the memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.iter().map(|run| run.bytes()).sum()
    }

    /// Returns the maximum memory after the runs are joined into one, given the number of
    /// snapshots: each end of a range may then occur in two pieces, and each piece may have a
    /// number per snapshot.
    pub(crate) fn bytes_max(&self, snapshots: usize) -> u64 {
        2 * (self.bytes() + self.len() * snapshots * size_of::<SeqNo>()) as u64
    }

    /// Returns the newest range delete over a key that a read at `at` sees; older versions are
    /// deleted.
    pub(crate) fn newest(&self, keyspace: u32, key: &[u8], at: SeqNo) -> Option<SeqNo> {
        let over = self.runs.iter().filter_map(|run| {
            run.position(keyspace, key)
                .and_then(|i| run.fragments[i].newest(at))
        });
        over.max()
    }

    /// Returns the stretch around `key` that the newest range delete seen by a read at `at` covers.
    pub(crate) fn cover(&self, keyspace: u32, key: &[u8], at: SeqNo) -> Option<Cover> {
        let over = self.runs.iter().filter_map(|run| {
            let i = run.position(keyspace, key)?;
            Some((run.fragments[i].newest(at)?, run, i))
        });
        let (seq, run, i) = over.max_by_key(|(seq, ..)| *seq)?;
        let mut end = &run.fragments[i].end;
        // A range that others cut into fragments is still one stretch.
        for next in &run.fragments[i + 1..] {
            let joins = next.keyspace == keyspace && !end.is_empty() && next.begin == *end;
            if !joins || next.newest(at).is_none_or(|next| next < seq) {
                break;
            }
            end = &next.end;
        }
        Some(Cover {
            seq,
            begin: run.fragments[i].begin.clone(),
            end: end.clone(),
        })
    }

    /// Returns the stretch up to `end` (exclusive; empty: the keyspace's end) that the newest range
    /// delete over the keys just before it covers.
    pub(crate) fn cover_before(&self, keyspace: u32, end: &[u8], at: SeqNo) -> Option<Cover> {
        let over = self.runs.iter().filter_map(|run| {
            let i = run.position_before(keyspace, end)?;
            Some((run.fragments[i].newest(at)?, run, i))
        });
        let (seq, run, i) = over.max_by_key(|(seq, ..)| *seq)?;
        let mut begin = &run.fragments[i].begin;
        for before in run.fragments[..i].iter().rev() {
            let joins = before.keyspace == keyspace && before.end == *begin;
            if !joins || before.newest(at).is_none_or(|before| before < seq) {
                break;
            }
            begin = &before.begin;
        }
        Some(Cover {
            seq,
            begin: begin.clone(),
            end: end.to_vec(),
        })
    }

    /// Returns whether no read can see version `seq` of a key, because of a range delete up to
    /// `upto` that no snapshot separates from the version.
    pub(crate) fn hides(
        &self,
        (keyspace, key): (u32, &[u8]),
        seq: SeqNo,
        upto: SeqNo,
        stripes: &Stripes,
    ) -> bool {
        self.runs.iter().any(|run| {
            let Some(i) = run.position(keyspace, key) else {
                return false;
            };
            let above = run.fragments[i].seqs.iter();
            above
                .filter(|&&range| range > seq && range <= upto)
                .any(|&range| stripes.same(range, seq))
        })
    }

    /// Returns whether range deletes above `newest` and up to `upto` cover all keys from `first` to
    /// `last`, and no snapshot separates them from versions down to `oldest`.
    pub(crate) fn hides_all(
        &self,
        first: Key<'_>,
        last: Last<'_>,
        (oldest, newest): (SeqNo, SeqNo),
        upto: SeqNo,
        stripes: &Stripes,
    ) -> bool {
        self.runs.iter().any(|run| {
            let Some(i) = run.position(first.0, first.1) else {
                return false;
            };
            let suits = |f: &Fragment| {
                let mut seqs = f.seqs.iter();
                let suits = |range| range > newest && range <= upto && stripes.same(range, oldest);
                seqs.any(|&range| suits(range))
            };
            let mut end: &[u8] = match suits(&run.fragments[i]) {
                true => &run.fragments[i].end,
                false => return false,
            };
            for next in &run.fragments[i + 1..] {
                let joins = next.keyspace == first.0 && !end.is_empty() && next.begin == end;
                if !joins || !suits(next) {
                    break;
                }
                end = &next.end;
            }
            match last {
                Last::Key((keyspace, key)) => keyspace == first.0 && (end.is_empty() || key < end),
                Last::Before(before) => compare_ends(before, end).is_le(),
            }
        })
    }
}
