//! The joining of small neighbours.
//!
//! Tables that overlap nothing below are moved down as they are. Where keys are written in order,
//! all of them are, and a level would have a table for each few drains, however small. Each table
//! takes memory, a file, and a place in the manifest.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::compaction::Compaction;
use super::version::{Run, Table, Version};
use super::{Busy, Inner, Merging};

/// BOUND: the tables of a level beyond four times as many as its bytes need, before small
/// neighbours are joined. They also are if there are too many value files, which are small then. A
/// table is small below this part of the full size.
const TABLES_SPARE: u64 = 64;
const SMALL_PART: u64 = 4;

/// The least and most tables that one job joins.
const JOINED_MIN: usize = 8;
const JOINED_MAX: usize = 256;

/// The most bytes of values that a job copies, since their files are small too; in full files.
const VALUE_FILES_MAX: u64 = 2;

/// Returns the joining of the longest row of small neighbours, if there are too many files. One
/// at a time, and only while nothing is brought down to the level: the result lies in the gaps
/// between the tables too.
pub(super) fn pick(
    inner: &Inner,
    version: &Arc<Version>,
    base: usize,
    busy: &Busy,
    is_free: &dyn Fn(&Table) -> bool,
) -> Option<Compaction> {
    let reserve = &inner.shared.reserve;
    let is_refused = busy.join_refused.as_ptr() == Arc::as_ptr(version);
    if busy.joined.is_some() || busy.has_column || is_refused || reserve.is_tight() {
        return None;
    }
    let full = inner.store.options.table_bytes;
    let full_values = inner.store.value_file_bytes();
    let small: BTreeSet<u64> = version.values.small(full_values).map(|it| it.0).collect();
    // Columns leave no small tables in the base, and would have to wait.
    let has_columns = matches!(inner.merging, Some(Merging::Columns(_)));
    let is_due = |level: usize, run: &Run| {
        let most = TABLES_SPARE + 4 * (run.bytes() / full);
        (!small.is_empty() || run.tables.len() as u64 > most) && !(has_columns && level == base)
    };
    let is_idle = |run: &Run| (run.tables.iter()).all(|t| !busy.numbers.contains(&t.number()));
    let mut above_is_idle = version.runs.iter().all(|run| is_idle(run));
    for (level, run) in (1..).zip(&version.levels) {
        if !above_is_idle {
            return None;
        }
        above_is_idle = is_idle(run);
        if !is_due(level, run) {
            continue;
        }
        let sizes = run.tables.iter().map(|table| {
            let values = table.meta.values.iter();
            let copied = values.filter(|(file, _)| small.contains(file));
            Size {
                bytes: table.meta.bytes,
                copied: copied.map(|(_, bytes)| bytes).sum(),
                is_free: is_free(table),
            }
        });
        let sizes: Vec<Size> = sizes.collect();
        if let Some(row) = longest(&sizes, full, VALUE_FILES_MAX * full_values) {
            let sizes = &sizes[row.clone()];
            let bytes: u64 = sizes.iter().map(|table| table.bytes + table.copied).sum();
            // Not with the reserve: nothing needs it.
            let fits = reserve.has_room_for_table(reserve.held_for_tables() + bytes);
            let tables = &run.tables[row];
            let values = tables.iter().flat_map(|table| &table.meta.values);
            let values = values.map(|it| it.0).filter(|file| small.contains(file));
            let leaving = inner.leaving_with(version, values);
            return fits.then(|| Compaction::joining(level, tables).moving(leaving));
        }
    }
    None
}

/// A table that may be joined with its neighbours.
struct Size {
    bytes: u64,
    copied: u64,
    is_free: bool,
}

/// Returns the longest row of free and small tables whose result has at most `full` bytes, and
/// copies at most `copied_max` bytes of values. The largest of them is at most half of the result,
/// so that no entry is joined more often than the size of a table can double.
fn longest(tables: &[Size], full: u64, copied_max: u64) -> Option<Range<usize>> {
    let mut longest: Option<Range<usize>> = None;
    let mut row = 0..0;
    let (mut bytes, mut copied) = (0, 0);
    for (at, table) in tables.iter().enumerate() {
        if !table.is_free || table.bytes >= full / SMALL_PART {
            (row, bytes, copied) = (at + 1..at + 1, 0, 0);
            continue;
        }
        row.end = at + 1;
        bytes += table.bytes;
        copied += table.copied;
        while bytes > full || row.len() > 1 && copied > copied_max || row.len() > JOINED_MAX {
            bytes -= tables[row.start].bytes;
            copied -= tables[row.start].copied;
            row.start += 1;
        }
        let least = longest.as_ref().map_or(JOINED_MIN, |row| row.len() + 1);
        let mut even = row.clone();
        while even.len() >= least
            && let Some(place) = larger_than_rest(&tables[even.clone()])
        {
            even.start += place + 1;
        }
        if even.len() >= least {
            longest = Some(even);
        }
    }
    longest
}

/// Returns the place of the table that is larger than the others together.
fn larger_than_rest(tables: &[Size]) -> Option<usize> {
    let bytes: u64 = tables.iter().map(|table| table.bytes).sum();
    tables.iter().position(|table| table.bytes > bytes / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: u64 = 1 << 20;

    fn row(bytes: &[u64]) -> Option<Range<usize>> {
        let size = |&bytes: &u64| Size {
            bytes,
            copied: 100,
            is_free: bytes != 7,
        };
        let sizes: Vec<Size> = bytes.iter().map(size).collect();
        longest(&sizes, FULL, 100 * 20)
    }

    #[test]
    fn the_longest_row_of_small_neighbours_is_joined() {
        assert_eq!(row(&[]), None);
        assert_eq!(row(&[1000; 7]), None);
        assert_eq!(row(&[1000; 9]), Some(0..9));
        // A row ends at a busy table, and at one that is not small.
        let mut tables = [1000; 24];
        tables[9] = 7;
        assert_eq!(row(&tables), Some(10..24));
        tables[23] = FULL / 4;
        assert_eq!(row(&tables), Some(10..23));
    }

    /// The result is one table, at least twice as large as each of its parts.
    #[test]
    fn the_result_of_a_join_is_limited() {
        assert_eq!(row(&[FULL / 5; 30]), None, "five make a full table");
        assert_eq!(row(&[FULL / 10; 30]).map(|row| row.len()), Some(10));
        let mut tables = [1000; 16];
        tables[0] = 40_000;
        assert_eq!(row(&tables), Some(1..16), "the large one has been joined");
        assert_eq!(row(&[1000; 400]).map(|row| row.len()), Some(20), "values");
    }
}
