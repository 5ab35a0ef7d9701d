//! The part of level 0 that one compaction takes: all of it, its oldest runs, or a piece that
//! shares no key with the rest.

use std::collections::HashSet;
use std::sync::Arc;

use super::compaction::{Compaction, span};
use super::version::{Run, Table, Version};

/// Picks all of level 0, or its oldest runs if there are more than `runs_max`, and the tables that
/// they overlap on the base. Runs newer than those that move stay above them.
pub(super) fn whole(
    version: &Version,
    base: usize,
    runs_max: usize,
    busy: &HashSet<u64>,
) -> Option<Compaction> {
    let newer = version.runs.len().saturating_sub(runs_max);
    let upper = version.runs[newer..].to_vec();
    let free = |tables: &[Table]| tables.iter().all(|t| !busy.contains(&t.number()));
    if upper.is_empty() || !upper.iter().all(|run| free(&run.tables)) {
        return None;
    }
    let (first, last) = span(upper.iter().flat_map(|run| &run.tables))?;
    let lower = version.level(base).overlapping(first, last);
    free(lower).then(|| Compaction::new(base, upper, lower))
}

/// Tables of level 0 that share no key with its other tables, and the tables that they overlap on
/// the level below.
struct Piece<'a> {
    /// Each table with the position of its run.
    upper: Vec<(usize, &'a Table)>,
    lower: &'a [Table],
}

impl<'a> Piece<'a> {
    fn tables(&self) -> impl Iterator<Item = &'a Table> {
        let upper = self.upper.iter().map(|(_, table)| *table);
        upper.chain(self.lower)
    }

    fn bytes(&self) -> u64 {
        self.tables().map(|table| table.meta.bytes).sum()
    }

    fn compaction(&self, to: usize) -> Compaction {
        let last = self.upper.iter().map(|(run, _)| *run).max();
        let mut runs = vec![Vec::new(); last.map_or(0, |last| last + 1)];
        for (run, table) in &self.upper {
            runs[*run].push(Table::clone(table));
        }
        let runs = runs.into_iter().filter(|tables| !tables.is_empty());
        let upper = runs.map(|tables| Arc::new(Run::of(tables)));
        Compaction::new(to, upper.collect(), self.lower)
    }
}

/// Returns the part of level 0 to compact instead of `whole`, if that takes more than `fits`: the
/// largest piece that fits together with the tables that it overlaps below. If none does, the
/// smallest piece is tried, and cut when the disk refuses it.
///
/// If all runs together give no piece that fits, only the older runs are considered: newer ones
/// stay above.
pub(super) fn fitting(
    whole: Compaction,
    version: &Version,
    fits: u64,
    busy: &HashSet<u64>,
) -> Compaction {
    if whole.bytes() <= fits {
        return whole;
    }
    let oldest = version.runs.len() - whole.upper.len();
    let mut smallest = None;
    for newest in oldest..version.runs.len() {
        let mut pieces = pieces(&version.runs[newest..], version.level(whole.to));
        let is_whole = pieces.len() < 2;
        pieces.retain(|piece| piece.tables().all(|t| !busy.contains(&t.number())));
        let fitting = pieces.iter().filter(|piece| piece.bytes() <= fits);
        if let Some(largest) = fitting.max_by_key(|piece| piece.bytes()) {
            return largest.compaction(whole.to);
        }
        if smallest.is_none() && !is_whole {
            smallest = pieces.into_iter().min_by_key(Piece::bytes);
        }
    }
    match smallest {
        Some(piece) => piece.compaction(whole.to),
        None => whole,
    }
}

/// Returns the tables of some runs in pieces, with the tables of `below` that each overlaps.
fn pieces<'a>(runs: &'a [Arc<Run>], below: &'a Run) -> Vec<Piece<'a>> {
    let places = runs.iter().enumerate();
    let of_run = |(place, run): (usize, &'a Arc<Run>)| run.tables.iter().map(move |t| (place, t));
    let mut tables: Vec<(usize, &Table)> = places.flat_map(of_run).collect();
    tables.sort_by_key(|(_, table)| table.reach().0);
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    let mut widest: Option<&Table> = None;
    for (place, table) in tables {
        match (pieces.last_mut(), widest) {
            (Some(piece), Some(widest)) if !widest.ends_before(table.reach().0) => {
                piece.upper.push((place, table));
            }
            _ => pieces.push(Piece {
                upper: vec![(place, table)],
                lower: &[],
            }),
        }
        if widest.is_none_or(|widest| table.ends_behind(widest)) {
            widest = Some(table);
        }
    }
    for piece in &mut pieces {
        if let Some((first, last)) = span(piece.upper.iter().map(|(_, table)| *table)) {
            piece.lower = below.overlapping(first, last);
        }
    }
    pieces
}
