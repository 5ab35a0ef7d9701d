//! This file drops tables that range deletes cover whole, or that have nothing but what dropped keyspaces
//! had: nothing of them is read or written.
//!
//! A table goes when one range delete that is durable, newer than all of it and that no snapshot
//! tells apart from it covers all its keys, and all that range deletes of its own cover. Durable is what
//! another table has, and what a synced log has: so on a disk that is full a range delete gives room back before
//! anything is written for it. What the table hid further down is hidden by the same range delete, which stays
//! for as long as anything below it is left.
//!
//! CRASH: one edit forgets the tables; a file that stays behind is removed when the database is opened.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::Body;
use super::version::{Table, Version};
use crate::canary::{self, Canary};
use crate::error::Result;
use crate::parts::manifest::{Change, Edit};
use crate::parts::ranges::{Applicable, Key, Last, RangeDelete, RangeSet};
use crate::parts::snapshots::Stripes;
use crate::stages::{Completion, Job, JobKind, Step};
use crate::types::SeqNo;

/// What was looked at without finding anything: nothing changes until one of these does.
#[derive(Default)]
pub(super) struct Looked {
    version: Weak<Version>,
    oldest: Option<SeqNo>,
    dropped: Arc<Vec<u32>>,
    busy: usize,
    /// Up to where range deletes above are durable.
    durable: SeqNo,
}

/// Tables that are covered whole.
pub(super) struct Vanish {
    body: Arc<Body>,
    tables: Vec<Table>,
}

/// BOUND: a table that spans more keyspaces is not looked at one by one.
const KEYSPACES_MAX: u32 = 64;

/// Whether no read sees anything of a table, because of range deletes of which `hides` says whether they
/// hide all keys and numbers of a stretch of one keyspace, or because of keyspaces that were dropped.
fn is_hidden(
    table: &Table,
    dropped: &[u32],
    hides: impl Fn(Key<'_>, Last<'_>, (SeqNo, SeqNo)) -> bool,
) -> bool {
    let meta = &table.meta;
    let seqs = (meta.seq_first, meta.seq_last);
    let gone = |keyspace: u32| dropped.binary_search(&keyspace).is_ok();
    let own = |r: &RangeDelete| {
        gone(r.keyspace) || hides((r.keyspace, &r.begin), Last::Before(&r.end), seqs)
    };
    // A range delete ends with its keyspace, so each keyspace has its own.
    let entries = || {
        let (first, last) = (table.first(), table.last());
        let within = |keyspace: u32| {
            let from = if keyspace == first.0 { first.1 } else { &[] };
            let to = match keyspace == last.0 {
                true => Last::Key(last),
                false => Last::Before(&[]),
            };
            gone(keyspace) || hides((keyspace, from), to, seqs)
        };
        last.0 - first.0 < KEYSPACES_MAX && (first.0..=last.0).all(within)
    };
    (meta.entries == 0 || entries()) && table.ranges.iter().all(own)
}

/// Whether some table would be hidden if these range deletes were durable.
pub(super) fn covers_any(version: &Version, ranges: &RangeSet, dropped: &[u32]) -> bool {
    // A snapshot that holds a table today may be gone before the range delete has come down.
    let stripes = Stripes::default();
    let hides = |first: Key<'_>, last: Last<'_>, seqs| {
        ranges.hides_all(first, last, seqs, SeqNo::MAX, &stripes)
    };
    version
        .tables()
        .any(|table| is_hidden(table, dropped, hides))
}

/// The job that drops what is covered whole; its tables are marked busy.
pub(super) fn next(body: &Arc<Body>) -> Option<Box<dyn Job>> {
    let (mut busy, version) = body.choosing();
    let dropped = body.ground.dropped.all();
    let live = &body.ground.ranges;
    let durable = live.durable();
    // Of those above the tables only what is in a synced log: a crash would take another one, and not give
    // back what it had hidden.
    let ranges: Vec<Applicable> = (version.ranges.clone().map(Applicable::lasting).into_iter())
        .chain(live.applicable(durable, None))
        .collect();
    if ranges.is_empty() && dropped.is_empty() {
        return None;
    }
    let stripes = body.ground.snapshots.stripes();
    let now = Looked {
        version: Arc::downgrade(&version),
        oldest: stripes.oldest(),
        dropped: Arc::clone(&dropped),
        busy: busy.numbers.len(),
        durable,
    };
    let before = &busy.looked;
    let same = Weak::ptr_eq(&before.version, &now.version)
        && before.oldest == now.oldest
        && Arc::ptr_eq(&before.dropped, &now.dropped)
        && before.busy == now.busy
        && before.durable == now.durable;
    if same || canary::breaks(Canary::RoomKept) {
        return None;
    }
    let hides = |first: Key<'_>, last: Last<'_>, seqs| {
        let mut all = ranges.iter();
        all.any(|ranges| ranges.hides_all(first, last, seqs, &stripes))
    };
    let free = |table: &&Table| !busy.numbers.contains(&table.number());
    // Of a dropped keyspace no snapshot reads.
    let gone = |table: &&Table| table.is_dropped(&dropped) || is_hidden(table, &dropped, hides);
    let tables: Vec<Table> = version
        .tables()
        .filter(free)
        .filter(gone)
        .cloned()
        .collect();
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
