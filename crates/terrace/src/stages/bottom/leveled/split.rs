//! Splitting of a large compaction into key ranges of about equal size.
//!
//! Only tables that are large compared to the parts have their index read; for the others the first
//! key suffices.

use super::compaction::{Compaction, Place};
use crate::error::Result;
use crate::parts::iter::EntryView;
use crate::parts::key::Target;
use crate::parts::ranges::RangeDelete;
use crate::parts::sstable::ReadCounts;

/// Candidate split points for each part: more of them make more even parts.
const SAMPLES_PER_PART: usize = 8;

/// A range of keys: all versions of a key are in one.
#[derive(Debug, Clone, Default)]
pub(super) struct Span {
    /// `None`: from the first key.
    from: Option<Place>,
    /// The exclusive end; `None`: to the last key.
    to: Option<Place>,
}

impl Span {
    /// Returns the place of the first entry that may be in the range.
    pub(super) fn start(&self) -> Target<'_> {
        match &self.from {
            Some((keyspace, key)) => Target::first_of(*keyspace, key),
            None => Target::first_of(0, &[]),
        }
    }

    /// Returns the part of a range delete that is in the range.
    pub(super) fn cut(&self, range: &RangeDelete) -> Option<RangeDelete> {
        let from = self
            .from
            .as_ref()
            .map(|(space, key)| (*space, key.as_slice()));
        let to = self
            .to
            .as_ref()
            .map(|(space, key)| (*space, key.as_slice()));
        range.cut(from, to)
    }

    /// Returns whether an entry is after the range.
    pub(super) fn ends_before(&self, entry: &EntryView<'_>) -> bool {
        let to = self.to.as_ref();
        to.is_some_and(|(keyspace, key)| (entry.keyspace, entry.key) >= (*keyspace, key.as_slice()))
    }
}

/// Returns at most `parts` ranges that together cover everything, in key order.
pub(super) fn spans(compaction: &Compaction, parts: usize) -> Result<Vec<Span>> {
    let mut spans = Vec::new();
    let mut from = None;
    let tables = compaction.tables().count();
    let pieces = (parts * SAMPLES_PER_PART).div_ceil(tables.max(1));
    for cut in cuts(compaction, parts, pieces)? {
        spans.push(Span {
            from: from.replace(cut.clone()),
            to: Some(cut),
        });
    }
    spans.push(Span { from, to: None });
    Ok(spans)
}

/// Returns ascending keys, fewer than `parts`, with about as many bytes between any two. Each table
/// is sampled in `pieces` pieces.
pub(super) fn cuts(compaction: &Compaction, parts: usize, pieces: usize) -> Result<Vec<Place>> {
    // The first key of a piece of a table, and the bytes of the piece.
    let mut samples: Vec<(Place, u64)> = Vec::new();
    for table in compaction.tables() {
        let mut firsts = vec![table.meta.first.clone()];
        if pieces > 1 {
            firsts.extend(
                table
                    .open()?
                    .split_keys(pieces, &mut ReadCounts::default())?,
            );
        }
        let bytes = table.meta.bytes / firsts.len() as u64;
        samples.extend(firsts.into_iter().map(|first| (first, bytes)));
    }
    samples.sort();
    let all: u64 = samples.iter().map(|(_, bytes)| bytes).sum();
    let part = (all / parts as u64).max(1);
    let mut cuts: Vec<Place> = Vec::new();
    let mut before = 0;
    for (place, bytes) in samples {
        let due = before >= part * (cuts.len() as u64 + 1) && cuts.len() + 1 < parts;
        if due && cuts.last().is_none_or(|last| *last < place) {
            cuts.push(place);
        }
        before += bytes;
    }
    Ok(cuts)
}
