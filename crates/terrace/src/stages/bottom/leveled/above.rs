//! Lookups in the runs above a table that is rewritten in place, to find the newer entries that
//! hide some of its own.

use std::sync::Arc;

use super::source::RunCursor;
use super::version::{Run, Table, Version};
use crate::error::Result;
use crate::parts::iter::{Cursor, MergeCursor};
use crate::parts::key::Target;
use crate::parts::ranges::Key;
use crate::parts::sstable::ReadCounts;
use crate::stages::Drain;
use crate::types::{SeqNo, key_hash};

/// A table is rewritten if at least one entry in this many is hidden.
pub(super) const WORTH_ONE_IN: u64 = 8;

/// The runs above a table. They are read alongside it in key order, so that each of their tables is
/// opened once.
pub(super) struct Above {
    cursor: MergeCursor,
}

impl Above {
    /// Opens the runs above `run` of `level`.
    pub(super) fn of(version: &Version, place: (u32, u64)) -> Above {
        let cursors = version.above(place).map(|run| {
            let cursor = RunCursor::new(Arc::clone(run), false);
            Box::new(cursor) as Box<dyn Cursor>
        });
        Above {
            cursor: MergeCursor::new(cursors.collect()),
        }
    }

    /// Positions the cursor at the first entry of a key, or after it.
    pub(super) fn seek(&mut self, (keyspace, key): Key<'_>) -> Result<()> {
        self.cursor.seek(&Target::first_of(keyspace, key))
    }

    /// Returns the number of the newest entry of a key that is at or after the cursor.
    pub(super) fn newest(&mut self, (keyspace, key): Key<'_>) -> Result<Option<SeqNo>> {
        // BOUND: the entries up to the key, each once.
        while let Some(entry) = self.cursor.entry()? {
            if (entry.keyspace, entry.key) >= (keyspace, key) {
                let found = (entry.keyspace, entry.key) == (keyspace, key);
                return Ok(found.then_some(entry.seq));
            }
            self.cursor.advance()?;
        }
        Ok(None)
    }

    /// Returns whether at least one entry of a table in `one_in` seems to be hidden, from about
    /// twice as many lookups, spread evenly over its blocks. Entries are hidden by these runs, and
    /// by a drain and newer tables of the buffer if one is given.
    pub(super) fn hides_much_of(
        &mut self,
        table: &Table,
        drain: Option<&Drain>,
        one_in: u64,
    ) -> Result<bool> {
        let samples = 2 * one_in as usize;
        let cuts = table
            .open()?
            .split_keys(samples, &mut ReadCounts::default())?;
        let mut cursor = RunCursor::new(Arc::new(Run::of(vec![table.clone()])), false);
        let places = cuts
            .iter()
            .map(|(keyspace, key)| (*keyspace, key.as_slice()));
        let (mut looked_up, mut hidden) = (0, 0);
        for (keyspace, key) in [table.first()].into_iter().chain(places) {
            cursor.seek(&Target::first_of(keyspace, key))?;
            let Some(entry) = cursor.entry()? else {
                continue;
            };
            let place = (entry.keyspace, entry.key);
            let hash = key_hash(entry.keyspace, entry.key);
            let in_buffer = match drain {
                Some(drain) => drain.newest_of_all(entry.keyspace, entry.key, hash)?,
                None => None,
            };
            let newest = match in_buffer {
                Some(newest) => Some(newest),
                None => {
                    self.seek(place)?;
                    self.newest(place)?
                }
            };
            looked_up += 1;
            hidden += u64::from(newest.is_some_and(|newest| newest > entry.seq));
        }
        Ok(hidden > 0 && hidden * one_in >= looked_up)
    }
}
