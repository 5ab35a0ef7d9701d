//! The input of one compaction: its tables, and the place of its result.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::version::{Run, Table};
use crate::parts::key::Place;
use crate::parts::ranges::Key;

/// The input of one compaction.
pub(super) struct Compaction {
    /// The level of the result.
    pub(super) to: usize,
    /// The run of level 0 for the result, or 0 for deeper levels.
    pub(super) run: u64,
    /// Runs of level 0, or one run with the compaction tables; newest first.
    pub(super) upper: Vec<Arc<Run>>,
    /// The tables of `to` that they overlap.
    pub(super) lower: Arc<Run>,
    /// Whether they are rewritten even if they could stay unchanged.
    pub(super) rewrites: bool,
    /// Whether the result lies in the gaps between the tables too.
    pub(super) joins: bool,
    /// The keys, ascending, before which a new table begins.
    pub(super) cuts: Arc<[Place]>,
    /// Whether entries that newer ones in tables above hide are left out, in the rewriting of one
    /// table.
    pub(super) leaves_hidden: bool,
    /// The value files whose values move, if the compaction was chosen for them.
    pub(super) leaving: Option<BTreeSet<u64>>,
}

impl Compaction {
    /// Merges runs of one level, newest first, with the tables of `to` that they overlap.
    pub(super) fn new(to: usize, upper: Vec<Arc<Run>>, lower: &[Table]) -> Compaction {
        Compaction {
            to,
            run: 0,
            upper,
            lower: Arc::new(Run::of(lower.to_vec())),
            rewrites: false,
            joins: false,
            cuts: Arc::default(),
            leaves_hidden: false,
            leaving: None,
        }
    }

    /// Merges one table with tables of another level.
    pub(super) fn one(to: usize, table: &Table, lower: &[Table]) -> Compaction {
        Compaction::new(to, vec![Arc::new(Run::of(vec![table.clone()]))], lower)
    }

    /// Merges tables of several runs of level 0 into one of them, which has the number `run`. No
    /// other table of these runs has a key between theirs.
    pub(super) fn into_run(run: u64, upper: Vec<Vec<Table>>) -> Compaction {
        let upper = upper.into_iter().map(|tables| Arc::new(Run::of(tables)));
        Compaction {
            run,
            ..Compaction::new(0, upper.collect(), &[])
        }
    }

    /// Rewrites one table in place and drops the entries that no reader can see.
    pub(super) fn rewriting(table: &Table) -> Compaction {
        Compaction {
            run: table.meta.run,
            rewrites: true,
            ..Compaction::one(table.meta.level as usize, table, &[])
        }
    }

    /// Rewrites neighbours of a level below level 0 in place, as fewer and larger tables.
    pub(super) fn joining(level: usize, tables: &[Table]) -> Compaction {
        let run = Arc::new(Run::of(tables.to_vec()));
        Compaction {
            rewrites: true,
            joins: true,
            ..Compaction::new(level, vec![run], &[])
        }
    }

    /// Moves the values of these value files.
    pub(super) fn moving(self, leaving: BTreeSet<u64>) -> Compaction {
        Compaction {
            leaving: Some(leaving),
            ..self
        }
    }

    /// Leaves out the entries that tables above hide, and begins a new table before each of these
    /// keys, which ascend.
    pub(super) fn for_room(self, cuts: Arc<[Place]>) -> Compaction {
        Compaction {
            cuts,
            leaves_hidden: true,
            ..self
        }
    }

    /// Returns the level of the tables that are merged with those of `to`.
    pub(super) fn from(&self) -> u32 {
        let mut tables = self.upper.iter().flat_map(|run| &run.tables);
        tables.next().map_or(0, |table| table.meta.level)
    }

    /// Returns the bytes of all tables.
    pub(super) fn bytes(&self) -> u64 {
        self.tables().map(|t| t.meta.bytes).sum()
    }

    /// Returns all tables of the compaction.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table> {
        let runs = self.upper.iter().chain([&self.lower]);
        runs.flat_map(|run| &run.tables)
    }
}

/// Returns the first and the last key of some tables.
pub(super) fn span<'a>(tables: impl Iterator<Item = &'a Table>) -> Option<(Key<'a>, Key<'a>)> {
    tables.fold(None, |span, table| {
        let (first, last) = table.reach();
        Some(match span {
            None => (first, last),
            Some((f, l)) => (first.min(f), last.max(l)),
        })
    })
}
