//! The tables that are newer than a drain: versions there hide what it carries.
//!
//! What is hidden is not drained, and its log is retired. So the entries that hide it must be in
//! logs that were synced when their table came.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Queue, Table};
use crate::error::Result;
use crate::parts::iter::Cursor;
use crate::parts::key::{Place, Target};
use crate::stages::{NewerVersions, Shared};
use crate::types::SeqNo;

/// BOUND: the steps from the last place, before a search begins from the top.
const STEPS: u32 = 4;

/// The tables newer than those that drain, and these; newest first.
pub(super) struct Newer {
    all: Arc<Queue>,
    shared: Arc<Shared>,
    tables: Vec<Near>,
    drained: Vec<Near>,
}

/// A table, and the last search in it: keys come in order, so that the next one ends close to it.
struct Near {
    table: Arc<Table>,
    last: RefCell<Last>,
}

/// A cursor at the first entry that is not before a key.
struct Last {
    cursor: Box<dyn Cursor>,
    /// `None` before the first search.
    key: Option<Place>,
}

impl Near {
    fn all(tables: &[Arc<Table>]) -> Vec<Near> {
        let near = |table: &Arc<Table>| {
            let mut cursor = table.source.cursor();
            cursor.hold();
            Near {
                table: Arc::clone(table),
                last: RefCell::new(Last { cursor, key: None }),
            }
        };
        tables.iter().map(near).collect()
    }

    /// Returns the number of the newest version of a key.
    fn newest(&self, keyspace: u32, key: &[u8]) -> Result<Option<SeqNo>> {
        let Last { cursor, key: last } = &mut *self.last.borrow_mut();
        let sought = (keyspace, key);
        let before = |cursor: &dyn Cursor| -> Result<bool> {
            let entry = cursor.entry()?;
            Ok(entry.is_some_and(|entry| (entry.keyspace, entry.key) < sought))
        };
        let follows = (last.as_ref()).is_some_and(|(space, key)| (*space, &key[..]) <= sought);
        let mut steps = if follows { 0 } else { STEPS };
        while steps < STEPS && before(&**cursor)? {
            cursor.advance()?;
            steps += 1;
        }
        if steps == STEPS {
            cursor.seek(&Target::first_of(keyspace, key))?;
        }
        match last {
            Some((space, last)) => {
                *space = keyspace;
                last.clear();
                last.extend_from_slice(key);
            }
            None => *last = Some((keyspace, key.to_vec())),
        }
        let entry = cursor.entry()?;
        let found = entry.filter(|entry| (entry.keyspace, entry.key) == sought);
        Ok(found.map(|entry| entry.seq))
    }
}

impl Newer {
    /// `tables` are all that are newer than `drained`.
    pub(super) fn new(
        all: &Arc<Queue>,
        shared: &Arc<Shared>,
        tables: &[Arc<Table>],
        drained: &[Arc<Table>],
    ) -> Newer {
        Newer {
            all: Arc::clone(all),
            shared: Arc::clone(shared),
            tables: Near::all(hiding(shared, tables)),
            drained: Near::all(drained),
        }
    }
}

/// Returns the oldest of those tables, up to the first that hides nothing: one with entries that a
/// power loss could take, or one that is being ingested and is not visible yet.
fn hiding<'t>(shared: &Shared, tables: &'t [Arc<Table>]) -> &'t [Arc<Table>] {
    let visible = shared.sequencer.visible();
    let forgets = |table: &Arc<Table>| table.unsynced || table.seqs.1 > visible;
    let from = tables.iter().rposition(forgets).map_or(0, |at| at + 1);
    &tables[from..]
}

fn newest_in(tables: &[Near], keyspace: u32, key: &[u8]) -> Result<Option<SeqNo>> {
    for table in tables {
        if let Some(seq) = table.newest(keyspace, key)? {
            return Ok(Some(seq));
        }
    }
    Ok(None)
}

impl NewerVersions for Newer {
    fn newest(&self, keyspace: u32, key: &[u8], _hash: u64) -> Result<Option<SeqNo>> {
        newest_in(&self.tables, keyspace, key)
    }

    fn newest_of_all(&self, keyspace: u32, key: &[u8], hash: u64) -> Result<Option<SeqNo>> {
        match self.newest(keyspace, key, hash)? {
            Some(seq) => Ok(Some(seq)),
            None => newest_in(&self.drained, keyspace, key),
        }
    }

    fn count_between(&self, from: &Target<'_>, to: &Target<'_>) -> Result<u64> {
        let tables = self.tables.iter().chain(&self.drained);
        let count = |near: &Near| near.table.source.approximate(from, to);
        tables.map(|near| Ok(count(near)?.0)).sum()
    }

    fn seq_max(&self) -> SeqNo {
        self.tables.first().map_or(0, |near| near.table.seqs.1)
    }

    fn look_again(&mut self) -> bool {
        let last = (self.drained.first()).map_or(0, |near| near.table.seqs.1);
        let all = self.all.0.lock();
        let newer = &all[..all.partition_point(|table| table.seqs.1 > last)];
        let newer = hiding(&self.shared, newer);
        let before = self.tables.first().map(|near| near.table.id);
        if before == newer.first().map(|table| table.id) {
            return false;
        }
        self.tables = Near::all(newer);
        true
    }
}
