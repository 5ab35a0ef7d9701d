//! The remaining work for a range of keys that a user wants compacted.
//!
//! Everything in the range moves, level by level, to the deepest level that has tables. There,
//! tables are rewritten that may have entries that no reader can see: tombstones and older versions
//! that were kept for a snapshot, and expired values. Entries written after the request do not
//! count, so requests end while writers go on.

use super::version::{Run, Table, Version};
use crate::stages::RangeRequest;

/// The next work for a request.
pub(super) enum Due {
    /// Level 0 has entries of the range.
    Runs,
    /// These tables of a level that is not the deepest have entries of the range.
    Tables(usize, Vec<Table>),
    /// These tables of the deepest level may have entries that no reader can see.
    Rewrites(Vec<Table>),
}

/// Returns the tables of a run that have entries of the range from before the request.
fn concerned<'a>(run: &'a Run, request: &'a RangeRequest) -> impl Iterator<Item = &'a Table> {
    let first = (request.first.0, request.first.1.as_slice());
    let last = (request.last.0, request.last.1.as_slice());
    let tables = run.overlapping(first, last).iter();
    tables.filter(|table| table.meta.seq_first <= request.seq)
}

/// Returns the next work, or `None` when nothing is left.
pub(super) fn due(version: &Version, request: &RangeRequest) -> Option<Due> {
    if version
        .runs
        .iter()
        .any(|run| concerned(run, request).next().is_some())
    {
        return Some(Due::Runs);
    }
    let levels = &version.levels;
    let deepest = levels.iter().rposition(|run| !run.tables.is_empty())?;
    for (at, run) in levels[..deepest].iter().enumerate() {
        let tables: Vec<Table> = concerned(run, request).cloned().collect();
        if !tables.is_empty() {
            return Some(Due::Tables(at + 1, tables));
        }
    }
    let stale = |table: &&Table| table.may_have_unreadable() && table.number() < request.id;
    let tables = concerned(&levels[deepest], request).filter(stale);
    let tables: Vec<Table> = tables.cloned().collect();
    (!tables.is_empty()).then_some(Due::Rewrites(tables))
}
