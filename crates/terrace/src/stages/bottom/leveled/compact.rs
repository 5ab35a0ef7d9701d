//! This file compacts: tables of one level are merged with those below that they overlap, and the
//! result replaces both on the level below.
//!
//! A table that overlaps nothing is moved by an edit alone. Of the versions of a key those stay that
//! a snapshot can read; a tombstone goes when nothing below could come back without it.
//!
//! CRASH: the result is named and what it replaces forgotten by one edit. Before it, new tables are
//! named by nothing and removed when the database is opened.

use std::sync::Arc;

use super::output::Output;
use super::pick::Picked;
use super::source::RunCursor;
use super::version::Table;
use super::{Body, Version};
use crate::error::{ErrorKind, Result};
use crate::parts::iter::{Cursor, MergeCursor};
use crate::parts::manifest::{Change, Edit};
use crate::parts::skiplist::Target;
use crate::stages::{Completion, Job, JobKind, Step};
use crate::types::EntryKind;

/// Entries and bytes of one step.
const STEP_ENTRIES: u32 = 1024;
const STEP_BYTES: usize = 1 << 20;
/// Read at once from each table.
const AHEAD_BYTES: usize = 1 << 20;

/// One compaction.
pub(super) struct Compact {
    body: Arc<Body>,
    picked: Picked,
    cursor: Option<MergeCursor>,
    output: Output,
    finished: bool,
}

impl Compact {
    pub(super) fn begin(body: &Arc<Body>, picked: Picked) -> Compact {
        let version = body.version();
        let ranges = picked
            .tables()
            .flat_map(|t| t.ranges.iter().cloned())
            .collect();
        let durable = version.tables().map(|t| t.meta.seq_last).max();
        let (to, durable) = (picked.to as u32, durable.unwrap_or(0));
        Compact {
            output: Output::new(body, version, (to, 0), ranges, durable),
            body: Arc::clone(body),
            picked,
            cursor: None,
            finished: false,
        }
    }

    /// Whether the tables can change their level as they are.
    fn moves(&self, version: &Version) -> bool {
        let [run] = self.picked.upper.as_slice() else {
            return false;
        };
        // Down to the last level it is rewritten, so that what nobody reads goes.
        let last = self.picked.to == version.levels.len();
        let stale = run
            .tables
            .iter()
            .any(|t| t.meta.tombstones > 0 || t.meta.range_deletes > 0 || t.meta.expiring > 0);
        self.picked.lower.tables.is_empty() && !(last && stale)
    }

    fn move_down(&self) -> Completion {
        let to = self.picked.to as u32;
        let tables: Vec<Table> = self.picked.tables().map(|t| t.moved_to(to)).collect();
        let numbers: Vec<u64> = tables.iter().map(Table::number).collect();
        let changes = numbers
            .iter()
            .map(|&number| Change::FileMoved { number, level: to });
        let edit = Edit {
            changes: changes.collect(),
        };
        let body = Arc::clone(&self.body);
        Completion {
            edit,
            apply: Box::new(move || body.install(&numbers, &tables)),
            garbage: Vec::new(),
            entries: 0,
        }
    }

    fn start(&mut self) -> Result<()> {
        let runs = self.picked.upper.iter().chain([&self.picked.lower]);
        let cursors = runs.map(|run| {
            let cursor = RunCursor::new(Arc::clone(run), false).read_ahead(AHEAD_BYTES);
            Box::new(cursor) as Box<dyn Cursor>
        });
        let mut cursor = MergeCursor::new(cursors.collect());
        cursor.seek(&Target::first_of(0, &[]))?;
        self.cursor = Some(cursor);
        Ok(())
    }

    /// Merges one step's worth. True when everything is merged and the last table closed.
    fn merge_some(&mut self) -> Result<bool> {
        if self.cursor.is_none() {
            self.start()?;
        }
        let Some(cursor) = &mut self.cursor else {
            return Ok(true);
        };
        let (mut entries, mut bytes) = (0, 0);
        loop {
            let Some(entry) = cursor.entry()? else {
                self.output.close_table(None)?;
                return Ok(true);
            };
            if !self.output.same_key(&entry) {
                if self.output.is_full() {
                    let next = (entry.keyspace, entry.key);
                    self.output.close_table(Some(next))?;
                    return Ok(false);
                }
                if entries >= STEP_ENTRIES || bytes >= STEP_BYTES {
                    return Ok(false);
                }
            }
            let expiry = match EntryKind::from_raw(entry.kind) {
                Some(EntryKind::PutExpiring) => cursor.expiry()?,
                _ => 0,
            };
            bytes += self.output.offer(&entry, cursor.value()?, expiry)?;
            entries += 1;
            cursor.advance()?;
        }
    }
}

impl Job for Compact {
    fn kind(&self) -> JobKind {
        JobKind::Compact
    }

    fn step(&mut self) -> Result<Step> {
        if self.cursor.is_none() && !self.finished && self.moves(&self.body.version()) {
            return Ok(Step::Done(self.move_down()));
        }
        let merged = if self.finished {
            Ok(true)
        } else {
            self.merge_some()
        };
        match merged {
            Ok(false) => return Ok(Step::More),
            Ok(true) => self.finished = true,
            Err(e) if e.kind() == ErrorKind::Full => {
                self.output.abandon();
                self.cursor = None;
                return Ok(Step::Retry(e));
            }
            Err(e) => return Err(e),
        }
        let entries = self.output.entries();
        let removed: Vec<u64> = self.picked.tables().map(Table::number).collect();
        let (tables, mut changes) = self.output.finish();
        changes.extend(removed.iter().map(|&number| Change::FileRemoved { number }));
        let body = Arc::clone(&self.body);
        Ok(Step::Done(Completion {
            edit: Edit { changes },
            apply: Box::new(move || body.install(&removed, &tables)),
            garbage: Vec::new(),
            entries,
        }))
    }
}

impl Drop for Compact {
    fn drop(&mut self) {
        // A job that was cancelled gives its tables back; one that has ended has none that are live.
        let mut busy = self.body.busy.lock();
        for table in self.picked.tables() {
            busy.numbers.remove(&table.number());
        }
    }
}
