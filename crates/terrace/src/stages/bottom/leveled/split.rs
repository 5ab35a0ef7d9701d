//! Splitting of a large compaction, or of a drain that is merged with the first level, into key
//! ranges of about equal size.
//!
//! Only tables that are large compared to the parts have their index read; for the others the first
//! key suffices.

use super::compaction::Compaction;
use crate::error::Result;
use crate::options::LeveledOptions;
use crate::parts::key::{KeyRange, Place};
use crate::parts::sstable::ReadCounts;

/// Candidate split points for each part: more of them make more even parts.
const SAMPLES_PER_PART: usize = 8;

/// Returns the number of parts of `bytes` that justify one partly filled file each.
pub(super) fn part_count(bytes: u64, options: &LeveledOptions) -> usize {
    let worth = usize::try_from(bytes / options.table_bytes).unwrap_or(usize::MAX);
    worth.clamp(1, options.subcompactions_max)
}

/// Returns the ranges between ascending keys, which together cover everything, in key order.
pub(super) fn between(cuts: Vec<Place>) -> Vec<KeyRange> {
    let mut ranges = Vec::with_capacity(cuts.len() + 1);
    let mut from = None;
    for cut in cuts {
        ranges.push(KeyRange {
            from: from.replace(cut.clone()),
            to: Some(cut),
        });
    }
    ranges.push(KeyRange { from, to: None });
    ranges
}

/// Returns at most `parts` ranges that together cover everything, in key order.
pub(super) fn ranges(compaction: &Compaction, parts: usize) -> Result<Vec<KeyRange>> {
    let tables = compaction.tables().count();
    let pieces = (parts * SAMPLES_PER_PART).div_ceil(tables.max(1));
    Ok(between(cuts(compaction, parts, pieces)?))
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
