//! This file finds what is above a table that is rewritten in place: the newer entries that hide some of its own.

use std::sync::Arc;

use super::source::RunCursor;
use super::version::{Run, Table, Version};
use crate::error::Result;
use crate::parts::iter::Cursor;
use crate::parts::key::Target;
use crate::parts::ranges::Key;
use crate::parts::sstable::ReadCounts;
use crate::stages::Drain;
use crate::types::{SeqNo, key_hash};

/// A table is worth rewriting if one of so many of its entries is hidden.
pub(super) const WORTH_ONE_IN: u64 = 8;

/// About so many entries of a table are looked up, one every so many blocks.
const SAMPLES: usize = 16;

/// The newer entries that may hide those of a table which is rewritten in place.
pub(super) struct Above<'a> {
    /// What drains, with the newer tables of the buffer.
    pub(super) drain: Option<&'a Drain>,
    pub(super) version: &'a Version,
    /// The level of the table, and its run.
    pub(super) place: (u32, u64),
}

impl Above<'_> {
    /// Returns the number of the newest entry of a key.
    pub(super) fn newest(&self, (keyspace, key): Key<'_>) -> Result<Option<SeqNo>> {
        let hash = key_hash(keyspace, key);
        let drain = self
            .drain
            .map(|drain| drain.newest_of_all(keyspace, key, hash));
        match drain.transpose()?.flatten() {
            Some(newest) => Ok(Some(newest)),
            None => self.version.newest_above(self.place, (keyspace, key), hash),
        }
    }

    /// Whether so much of a table seems to be hidden that it is worth rewriting.
    pub(super) fn hides_much_of(&self, table: &Table) -> Result<bool> {
        let cuts = table
            .open()?
            .split_keys(SAMPLES, &mut ReadCounts::default())?;
        let run = Arc::new(Run::of(vec![table.clone()]));
        let mut cursor = RunCursor::new(run, false);
        let first = table.first();
        let places = cuts
            .iter()
            .map(|(keyspace, key)| (*keyspace, key.as_slice()));
        let (mut looked_up, mut hidden) = (0, 0);
        for (keyspace, key) in [first].into_iter().chain(places) {
            cursor.seek(&Target::first_of(keyspace, key))?;
            if let Some(entry) = cursor.entry()? {
                let newest = self.newest((entry.keyspace, entry.key))?;
                looked_up += 1;
                hidden += u64::from(newest.is_some_and(|newest| newest > entry.seq));
            }
        }
        Ok(hidden > 0 && hidden * WORTH_ONE_IN >= looked_up)
    }
}
