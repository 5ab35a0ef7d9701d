//! All rows as one source, so that a search goes from row to row by forward pointers (cross-row
//! hint search, section 3.4).

use std::cmp::Ordering;
use std::sync::Arc;

use super::layout::Front;
use super::row::{Row, RowCursor};
use crate::error::{Error, Result};
use crate::parts::codec::DecodeError;
use crate::parts::expiry::Value;
use crate::parts::iter::{Cursor, EntryView, MergeCursor};
use crate::parts::key::Target;
use crate::parts::ranges::Newer;
use crate::stages::{Census, Lookup, Probe, ReadStats, Source};
use crate::types::SeqNo;

/// How rows are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// One after another, each between two forward pointers of the one before.
    Hints,
    /// All at once, in turns, so that their cache misses overlap.
    Interleaved,
}

/// The rows of the container, newest first.
pub(super) struct RowsSource {
    pub(super) rows: Arc<[Arc<Row>]>,
    pub(super) search: Search,
}

/// Returns the index of the first entry not before a target in a row; `newer` is the next newer row
/// and the index there.
fn position(
    row: &Row,
    target: &Target<'_>,
    newer: Option<(&Row, u64)>,
) -> Result<u64, DecodeError> {
    let hinted = match newer {
        Some((newer, index)) => newer.forward(index, row)?,
        None => None,
    };
    row.position_in(target, hinted.unwrap_or_else(|| row.bounds()))
}

/// Returns the indexes of the first entries not before a target, searching the rows in turns.
fn positions_by_turns(rows: &[Arc<Row>], target: &Target<'_>) -> Result<Vec<u64>, DecodeError> {
    let bounds_of = |row: &Arc<Row>| (row.bounds(), row.front_of(target));
    let mut bounds: Vec<((u64, u64), Front)> = rows.iter().map(bounds_of).collect();
    let middle = |(low, high): (u64, u64)| low + (high - low) / 2;
    let mut open = true;
    // BOUND: each range halves.
    while open {
        open = false;
        for (row, (bounds, front)) in rows.iter().zip(&mut bounds) {
            if bounds.0 == bounds.1 {
                continue;
            }
            let at = middle(*bounds);
            match row.compare(at, target, *front)? {
                Ordering::Less => bounds.0 = at + 1,
                _ => bounds.1 = at,
            }
            if bounds.0 < bounds.1 {
                row.prefetch_slot(middle(*bounds));
                open = true;
            }
        }
    }
    Ok(bounds.into_iter().map(|((low, _), _)| low).collect())
}

/// Returns the entry at an index, if it is of the probe's key.
fn found(row: &Row, at: u64, probe: &Probe<'_>) -> Result<Option<Lookup>> {
    let Some(entry) = row.entry_with_key(at, probe.keyspace, probe.key)? else {
        return Ok(None);
    };
    let found = Lookup::of(entry.view.kind, entry.view.seq, entry.checked_value()?);
    let unknown = || Error::corruption(format!("row {} has an unknown kind", row.meta.id));
    found.ok_or_else(unknown).map(Some)
}

impl Source for RowsSource {
    fn get(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>> {
        let target = probe.target_below_front();
        if self.search == Search::Interleaved {
            let places = positions_by_turns(&self.rows, &target)?;
            stats.sources += self.rows.len() as u64;
            for (row, at) in self.rows.iter().zip(places) {
                if let Some(lookup) = found(row, at, probe)? {
                    return Ok(Some(lookup));
                }
            }
            return Ok(None);
        }
        let mut newer: Option<(&Row, u64)> = None;
        for row in &*self.rows {
            stats.sources += 1;
            let at = position(row, &target, newer)?;
            if let Some(lookup) = found(row, at, probe)? {
                return Ok(Some(lookup));
            }
            newer = Some((row, at));
        }
        Ok(None)
    }

    fn cursor(&self) -> Box<dyn Cursor> {
        let cursors = self.rows.iter().map(|row| RowCursor::new(Arc::clone(row)));
        Box::new(RowsCursor {
            rows: Arc::clone(&self.rows),
            search: self.search,
            merged: MergeCursor::new(cursors.map(Box::new).collect()),
        })
    }

    fn approximate(&self, from: &Target<'_>, to: &Target<'_>) -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        for row in &*self.rows {
            let (entries, bytes) = row.approximate(from, to)?;
            sum = (sum.0 + entries, sum.1 + bytes);
        }
        Ok(sum)
    }

    fn verify(&self, census: &mut Census, visited: &mut dyn FnMut(u64)) {
        for row in &*self.rows {
            census.tables += 1;
            if let Err(problem) = row.check(census, visited) {
                let problem = format!("row {}: {problem}", row.meta.id);
                census.problems.push(problem);
            }
        }
    }

    fn verify_bytes(&self) -> u64 {
        self.rows.iter().map(|row| row.live_bytes()).sum()
    }

    fn seqs(&self) -> (SeqNo, SeqNo) {
        let first = self.rows.last().map_or(0, |row| row.meta.seqs.0);
        let last = self.rows.first().map_or(0, |row| row.meta.seqs.1);
        (first, last)
    }
}

/// A position in all rows.
struct RowsCursor {
    rows: Arc<[Arc<Row>]>,
    search: Search,
    merged: MergeCursor<RowCursor>,
}

impl Cursor for RowsCursor {
    fn hold(&mut self) -> bool {
        true
    }

    fn release(&mut self) {}

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        let places = match self.search {
            Search::Interleaved => positions_by_turns(&self.rows, target)?,
            Search::Hints => {
                let mut places: Vec<u64> = Vec::with_capacity(self.rows.len());
                for (n, row) in self.rows.iter().enumerate() {
                    let newer = n.checked_sub(1).map(|n| (&*self.rows[n], places[n]));
                    places.push(position(row, target, newer)?);
                }
                places
            }
        };
        // The cursors read their entries one after another.
        let entries = self.rows.iter().zip(&places);
        entries.for_each(|(row, at)| row.prefetch_entry(*at));
        let place = |n: usize, cursor: &mut RowCursor| cursor.place_at(places[n]);
        self.merged.place_each(place)
    }

    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()> {
        match self.merged.place_before(target, breadth, None)? {
            Some((keyspace, key)) => self.seek(&Target::first_of(keyspace, &key)),
            None => {
                let nowhere = |_: usize, cursor: &mut RowCursor| cursor.place_at(u64::MAX);
                self.merged.place_each(nowhere)
            }
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.merged.advance()
    }

    fn newer(&self, from: &Target<'_>, to: &Target<'_>, than: SeqNo, last: bool) -> Newer {
        self.merged.newer(from, to, than, last)
    }

    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        self.merged.entry()
    }

    fn value(&self) -> Result<Value<'_>> {
        self.merged.value()
    }
}
