//! This file splits a large compaction into ranges of keys of about equal size.
//!
//! Only tables that are large against the parts have their index read; of the others the first key
//! says enough.

use super::picked::{Picked, Place};
use crate::error::Result;
use crate::parts::iter::EntryView;
use crate::parts::key::Target;
use crate::parts::ranges::RangeDelete;
use crate::parts::sstable::ReadCounts;

/// Places at which a part may end, for each part: more of them, more even parts.
const SAMPLES_PER_PART: usize = 8;

/// A range of keys: all versions of a key are in one.
#[derive(Debug, Clone, Default)]
pub(super) struct Span {
    /// `None`: from the first key.
    from: Option<Place>,
    /// `None`: to the last; else up to this key and without it.
    to: Option<Place>,
}

impl Span {
    /// The place of the first entry that may be in the range.
    pub(super) fn start(&self) -> Target<'_> {
        match &self.from {
            Some((keyspace, key)) => Target::first_of(*keyspace, key),
            None => Target::first_of(0, &[]),
        }
    }

    /// The part of a range delete that is in the range.
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

    /// Whether an entry lies behind the range.
    pub(super) fn ends_before(&self, entry: &EntryView<'_>) -> bool {
        let to = self.to.as_ref();
        to.is_some_and(|(keyspace, key)| (entry.keyspace, entry.key) >= (*keyspace, key.as_slice()))
    }
}

/// Ranges that together are everything, `parts` at most, in the order of their keys.
pub(super) fn spans(picked: &Picked, parts: usize) -> Result<Vec<Span>> {
    let mut spans = Vec::new();
    let mut from = None;
    let tables = picked.tables().count();
    let pieces = (parts * SAMPLES_PER_PART).div_ceil(tables.max(1));
    for cut in cuts(picked, parts, pieces)? {
        spans.push(Span {
            from: from.replace(cut.clone()),
            to: Some(cut),
        });
    }
    spans.push(Span { from, to: None });
    Ok(spans)
}

/// Ascending keys, fewer than `parts`, with about as many bytes between any two. Each table is looked at in so many
/// pieces.
pub(super) fn cuts(picked: &Picked, parts: usize, pieces: usize) -> Result<Vec<Place>> {
    // The first key of a piece of a table, and the bytes of the piece.
    let mut samples: Vec<(Place, u64)> = Vec::new();
    for table in picked.tables() {
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
