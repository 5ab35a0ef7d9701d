//! This file drops tables that range deletes cover whole, or that have nothing but what dropped keyspaces
//! had: nothing of them is read or written.
//!
//! A table goes when one range delete that is durable, newer than all of it and that no snapshot
//! tells apart from it covers all its keys. What the table hid further down is hidden by the same range
//! delete, which stays for as long as anything below it is left.
//!
//! CRASH: one edit forgets the tables; a file that stays behind is removed when the database is opened.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::Body;
use super::version::{Table, Version};
use crate::error::Result;
use crate::parts::manifest::{Change, Edit};
use crate::stages::{Completion, Job, JobKind, Step};
use crate::types::SeqNo;

/// What was looked at without finding anything: nothing changes until one of these does.
#[derive(Default)]
pub(super) struct Looked {
    version: Weak<Version>,
    oldest: Option<SeqNo>,
    dropped: Arc<Vec<u32>>,
    busy: usize,
}

/// Tables that are covered whole.
pub(super) struct Vanish {
    body: Arc<Body>,
    tables: Vec<Table>,
}

/// The job that drops what is covered whole; its tables are marked busy.
pub(super) fn next(body: &Arc<Body>) -> Option<Box<dyn Job>> {
    let (mut busy, version) = body.choosing();
    let ranges = version.ranges.clone();
    let dropped = body.ground.dropped.all();
    if ranges.is_none() && dropped.is_empty() {
        return None;
    }
    let stripes = body.ground.snapshots.stripes();
    let now = Looked {
        version: Arc::downgrade(&version),
        oldest: stripes.oldest(),
        dropped: Arc::clone(&dropped),
        busy: busy.numbers.len(),
    };
    let before = &busy.looked;
    let same = Weak::ptr_eq(&before.version, &now.version)
        && before.oldest == now.oldest
        && Arc::ptr_eq(&before.dropped, &now.dropped)
        && before.busy == now.busy;
    if same {
        return None;
    }
    // Those of the tables alone: they are as durable as the tables themselves.
    let spans = crate::parts::ranges::RangeSet::of(ranges.into_iter().collect());
    let covered = |table: &&Table| {
        let meta = &table.meta;
        let span = (table.first(), table.last());
        // A table with range deletes of its own may cover something further down.
        meta.range_deletes == 0
            && !busy.numbers.contains(&meta.number)
            && spans.hides_all(span, (meta.seq_first, meta.seq_last), &stripes)
    };
    // Of a dropped keyspace no snapshot reads.
    let unread =
        |table: &&Table| table.is_dropped(&dropped) && !busy.numbers.contains(&table.number());
    let gone = |table: &&Table| covered(table) || unread(table);
    let tables: Vec<Table> = version.tables().filter(gone).cloned().collect();
    if tables.is_empty() {
        busy.looked = now;
        return None;
    }
    busy.numbers.extend(tables.iter().map(Table::number));
    Some(Box::new(Vanish {
        body: Arc::clone(body),
        tables,
    }))
}

impl Job for Vanish {
    fn kind(&self) -> JobKind {
        JobKind::Compact
    }

    fn step(&mut self) -> Result<Step> {
        let numbers: Vec<u64> = self.tables.iter().map(Table::number).collect();
        let changes = numbers.iter().map(|&number| Change::FileRemoved { number });
        let changes = changes.collect();
        let body = Arc::clone(&self.body);
        let entries = self.tables.iter().map(|t| t.meta.entries).sum();
        Ok(Step::Done(Completion {
            edit: Edit { changes },
            apply: Box::new(move || body.install(&numbers, &[])),
            garbage: Vec::new(),
            entries,
        }))
    }
}

impl Drop for Vanish {
    fn drop(&mut self) {
        let gone: HashSet<u64> = self.tables.iter().map(Table::number).collect();
        let mut busy = self.body.busy.lock();
        busy.numbers.retain(|number| !gone.contains(number));
    }
}
