//! This file makes compactions smaller where the disk has no room for them.
//!
//! A compaction writes its result before the tables that it replaces go, so a large one needs much room at once. When
//! the disk refuses it, three things make a smaller one of it, in this order:
//!
//! 1. Tables that range deletes hide in part are rewritten without what is hidden.
//! 2. If level 0 falls into pieces that share no key, one of them is compacted that is known to fit.
//! 3. Tables are cut: each is rewritten as several, which all end at the same keys. Level 0 has smaller pieces then,
//!    and a table of a deeper level overlaps less.
//!
//! Rewriting takes the room of one table, which the reserve keeps, and gives back that of the table. So as long as the
//! reserve is whole, a full disk compacts its way through any amount of data.

use std::collections::HashSet;
use std::sync::Arc;

use super::pick::Picked;
use super::split::{self, Place};
use super::vanish;
use super::version::{Run, Table, Version};
use super::{Body, Busy};
use crate::error::Result;

/// A refused compaction is cut so that each part takes about half of what has fitted, in no more parts than this at a
/// time: each table can become as many files.
const PARTS_MAX: u64 = 32;

/// A table to be rewritten in place.
struct Rewrite {
    number: u64,
    /// Keys, ascending, before which a new table begins.
    cuts: Arc<[Place]>,
}

/// What a full disk makes of compactions.
pub(super) struct Narrow {
    /// The most bytes of tables that a compaction of level 0 takes. A refusal lowers it to what had room, and each
    /// compaction that ends raises it by an eighth: one that is too large fills the disk before it is refused.
    fits: u64,
    rewrites: Vec<Rewrite>,
    /// The table that is being rewritten, for as long as it is busy. One at a time, since the reserve has the room of
    /// one.
    rewriting: Option<u64>,
}

impl Default for Narrow {
    fn default() -> Narrow {
        Narrow {
            fits: u64::MAX,
            rewrites: Vec::new(),
            rewriting: None,
        }
    }
}

impl Narrow {
    /// Notes that a compaction has ended.
    pub(super) fn widen(&mut self) {
        self.fits = self.fits.saturating_add(self.fits / 8);
    }
}

/// Returns the next table to rewrite for room, each at most once and only while it is live. True beside it: other
/// compactions wait until all of these are rewritten.
pub(super) fn pick_rewrite(version: &Version, busy: &mut Busy) -> (Option<Picked>, bool) {
    let Busy {
        narrow, numbers, ..
    } = busy;
    let find = |number: u64| version.tables().find(|table| table.number() == number);
    narrow
        .rewrites
        .retain(|rewrite| find(rewrite.number).is_some());
    if narrow
        .rewriting
        .is_some_and(|number| numbers.contains(&number))
    {
        return (None, true);
    }
    narrow.rewriting = None;
    let free = |rewrite: &Rewrite| !numbers.contains(&rewrite.number);
    let Some(at) = narrow.rewrites.iter().position(free) else {
        return (None, !narrow.rewrites.is_empty());
    };
    let Rewrite { number, cuts } = narrow.rewrites.remove(at);
    narrow.rewriting = Some(number);
    let picked = find(number).map(|table| Picked::rewriting(table).cut_at(cuts));
    (picked, true)
}

/// Returns what of level 0 to compact into `base` instead of `whole`, if that takes more than fits.
pub(super) fn pick_runs(whole: Picked, version: &Version, runs_max: usize, busy: &Busy) -> Picked {
    let fits = busy.narrow.fits;
    match whole.bytes() > fits {
        true => piece(version, whole.to, runs_max, fits, &busy.numbers).unwrap_or(whole),
        false => whole,
    }
}

/// Returns the largest piece of level 0 that takes no more than `fits` together with what it overlaps on `base`. Older
/// runs are tried alone if no piece of the oldest `runs_max` fits: what is newer stays above.
pub(super) fn piece(
    version: &Version,
    base: usize,
    runs_max: usize,
    fits: u64,
    busy: &HashSet<u64>,
) -> Option<Picked> {
    let count = version.runs.len();
    let free = |picked: &Picked| picked.tables().all(|t| !busy.contains(&t.number()));
    (count.saturating_sub(runs_max)..count).find_map(|newest| {
        let runs = &version.runs[newest..];
        let pieces = pieces(runs).into_iter();
        let picked = pieces.map(|piece| Picked::piece(version, base, runs, &piece));
        picked
            .filter(|picked| picked.bytes() <= fits && free(picked))
            .max_by_key(Picked::bytes)
    })
}

/// Returns the numbers of the tables of some runs, in groups that share no key with one another.
fn pieces(runs: &[Arc<Run>]) -> Vec<HashSet<u64>> {
    let mut tables: Vec<&Table> = runs.iter().flat_map(|run| &run.tables).collect();
    tables.sort_by_key(|table| table.reach().0);
    let mut pieces: Vec<HashSet<u64>> = Vec::new();
    let mut widest: Option<&Table> = None;
    for table in tables {
        match (pieces.last_mut(), widest) {
            (Some(piece), Some(widest)) if !widest.ends_before(table.reach().0) => {
                piece.insert(table.number());
            }
            _ => pieces.push(HashSet::from([table.number()])),
        }
        if widest.is_none_or(|widest| table.ends_behind(widest)) {
            widest = Some(table);
        }
    }
    pieces
}

impl Body {
    /// Prepares a compaction that fits where the disk has refused `picked` after `written` bytes. Returns whether there
    /// is one; the refused compaction then ends.
    pub(super) fn narrow(&self, picked: &Picked, written: u64) -> Result<bool> {
        if picked.rewrites {
            return Ok(false);
        }
        // Others may have filled the disk, and this much is there for tables alone.
        let fits = written.max(self.ground.reserve.held_for_tables());
        let mut rewrites: Vec<Rewrite> = vanish::hidden_in_part(self, picked.tables())?
            .into_iter()
            .map(|number| Rewrite {
                number,
                cuts: Arc::default(),
            })
            .collect();
        if rewrites.is_empty() {
            if self.fits_in_pieces(picked, fits) {
                return Ok(true);
            }
            rewrites = cut(picked, fits)?;
        }
        let found = !rewrites.is_empty();
        self.busy.lock().narrow.rewrites.extend(rewrites);
        Ok(found)
    }

    /// Notes what fits where a compaction of level 0 did not, and returns whether level 0 has such a piece.
    fn fits_in_pieces(&self, picked: &Picked, fits: u64) -> bool {
        if picked.from() != 0 {
            return false;
        }
        let (mut busy, version) = self.choosing();
        busy.narrow.fits = fits;
        let mut others = busy.numbers.clone();
        picked.tables().for_each(|table| {
            others.remove(&table.number());
        });
        let runs_max = self.ground.memory.limits.runs;
        piece(&version, picked.to, runs_max, fits, &others).is_some()
    }
}

/// Returns the tables of a compaction that reach over a key at which it should be cut, the smallest first.
fn cut(picked: &Picked, fits: u64) -> Result<Vec<Rewrite>> {
    let parts = (2 * picked.bytes()).div_ceil(fits.max(1));
    let parts = parts.clamp(2, PARTS_MAX) as usize;
    // Tables of level 0 overlap all others, so that where each begins says nothing.
    let cuts = split::cuts(picked, parts, 2 * parts)?;
    let inside = |table: &Table| {
        let cuts = cuts.iter();
        let cuts = cuts.filter(|(keyspace, key)| table.reaches_over((*keyspace, key)));
        cuts.cloned().collect::<Arc<[Place]>>()
    };
    let tables = picked.tables().map(|table| (table, inside(table)));
    let mut tables: Vec<_> = tables.filter(|(_, cuts)| !cuts.is_empty()).collect();
    tables.sort_by_key(|(table, _)| table.meta.bytes);
    let rewrites = tables.into_iter().map(|(table, cuts)| Rewrite {
        number: table.number(),
        cuts,
    });
    Ok(rewrites.collect())
}
