//! Dropping of tables that range deletes cover entirely, or that hold only entries of dropped
//! keyspaces, without reading or writing them.
//!
//! A table goes when one range delete covers all its keys and all that its own range deletes cover;
//! that range delete must be durable, newer than the whole table, and not separated from it by a
//! snapshot. Range deletes in other tables and in synced logs are durable: so on a full disk a
//! range delete frees space before anything is written for it. Entries further down that the table
//! hid are hidden by the same range delete, which stays as long as anything below it is left.
//!
//! If a compaction finds the disk full, its tables that are partly covered are rewritten first, one
//! at a time: each takes less space than the old table, whose space it frees.
//!
//! CRASH: one edit forgets the tables; a file that stays behind is removed when the database is
//! opened.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::Inner;
use super::version::{Table, Version};
use crate::canary::{self, Canary};
use crate::error::Result;
use crate::parts::manifest::{Change, Edit};
use crate::parts::ranges::{Applicable, Key, Last, RangeDelete, RangeSet};
use crate::parts::snapshots::Stripes;
use crate::parts::sstable::ReadCounts;
use crate::parts::sstable::TABLE_FILE;
use crate::stages::{Completion, Job, JobKind, Step};
use crate::types::SeqNo;

/// The state of the last search that found nothing: it is not repeated until one of these changes.
#[derive(Default)]
pub(super) struct Looked {
    version: Weak<Version>,
    oldest: Option<SeqNo>,
    dropped: Arc<Vec<u32>>,
    busy: usize,
    /// The number up to which range deletes above are durable.
    durable: SeqNo,
}

/// Tables that are covered entirely.
pub(super) struct DeleteOnly {
    inner: Arc<Inner>,
    tables: Vec<Table>,
}

/// BOUND: the keyspaces of a table that spans more are not checked one by one.
const KEYSPACES_MAX: u32 = 64;

/// The number of pieces in which a table is examined, and the number of hidden ones from which it
/// is rewritten.
const PIECES: usize = 16;
const HIDDEN_PIECES_MIN: usize = 2;

/// The dropped keyspaces and range deletes that hide entries from every reader.
struct Hidden<'a, F> {
    dropped: &'a [u32],
    /// The check whether range deletes hide all keys of a stretch of one keyspace, for all numbers
    /// between two.
    hides: F,
}

impl<F: Fn(Key<'_>, Last<'_>, (SeqNo, SeqNo)) -> bool> Hidden<'_, F> {
    fn is_dropped(&self, keyspace: u32) -> bool {
        self.dropped.binary_search(&keyspace).is_ok()
    }

    /// Returns whether no read sees anything between two keys, for all numbers between `seqs`. `to`
    /// is where the keys of the last keyspace end.
    fn has_stretch(
        &self,
        first: Key<'_>,
        (last, to): (u32, Last<'_>),
        seqs: (SeqNo, SeqNo),
    ) -> bool {
        // A range delete ends with its keyspace, so each keyspace needs its own.
        let within = |keyspace: u32| {
            let from = if keyspace == first.0 { first.1 } else { &[] };
            let to = if keyspace == last {
                to
            } else {
                Last::Before(&[])
            };
            self.is_dropped(keyspace) || (self.hides)((keyspace, from), to, seqs)
        };
        last - first.0 < KEYSPACES_MAX && (first.0..=last).all(within)
    }

    /// Returns whether no read sees anything of a table.
    fn has_table(&self, table: &Table) -> bool {
        let meta = &table.meta;
        let seqs = (meta.seq_first, meta.seq_last);
        let own = |r: &RangeDelete| {
            self.is_dropped(r.keyspace)
                || (self.hides)((r.keyspace, &r.begin), Last::Before(&r.end), seqs)
        };
        let last = table.last();
        (meta.entries == 0 || self.has_stretch(table.first(), (last.0, Last::Key(last)), seqs))
            && table.ranges.iter().all(own)
    }

    /// Returns whether so many pieces of a table are hidden that it should be rewritten.
    fn has_pieces(&self, table: &Table) -> Result<bool> {
        let meta = &table.meta;
        let seqs = (meta.seq_first, meta.seq_last);
        let cuts = table
            .open()?
            .split_keys(PIECES, &mut ReadCounts::default())?;
        let mut first = table.first();
        let mut count = 0;
        for (keyspace, key) in &cuts {
            // An empty key has nothing of its keyspace before it; treating that as the whole
            // keyspace only makes it hidden less often.
            let to = (*keyspace, Last::Before(key));
            count += usize::from(self.has_stretch(first, to, seqs));
            first = (*keyspace, key);
        }
        let last = table.last();
        count += usize::from(self.has_stretch(first, (last.0, Last::Key(last)), seqs));
        Ok(count >= HIDDEN_PIECES_MIN)
    }
}

/// Returns a function that checks whether one of `ranges` hides all keys of a stretch, for all
/// numbers between two.
fn hides_by(
    ranges: &[Applicable],
    stripes: &Stripes,
) -> impl Fn(Key<'_>, Last<'_>, (SeqNo, SeqNo)) -> bool {
    move |first, last, seqs| {
        let mut all = ranges.iter();
        all.any(|ranges| ranges.hides_all(first, last, seqs, stripes))
    }
}

/// Returns the numbers of the tables to rewrite because much of them is hidden, the smallest table
/// first. A rewritten table has nothing that the same range deletes hide, so it is not found twice.
pub(super) fn hidden_in_part<'a>(
    inner: &Inner,
    tables: impl Iterator<Item = &'a Table>,
) -> Result<Vec<u64>> {
    let dropped = inner.shared.dropped.all();
    let ranges = inner.lasting_ranges(&inner.version());
    let stripes = inner.shared.snapshots.stripes();
    let hidden = Hidden {
        dropped: &dropped,
        hides: hides_by(&ranges, &stripes),
    };
    let mut found = Vec::new();
    for table in tables.filter(|table| table.meta.entries > 0) {
        if hidden.has_pieces(table)? {
            found.push((table.meta.bytes, table.number()));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, number)| number).collect())
}

/// Returns whether some table would be hidden if these range deletes were durable.
pub(super) fn covers_any(version: &Version, ranges: &RangeSet, dropped: &[u32]) -> bool {
    // A snapshot that holds a table today may be gone before the range delete has come down.
    let stripes = Stripes::default();
    let hidden = Hidden {
        dropped,
        hides: |first: Key<'_>, last: Last<'_>, seqs| {
            ranges.hides_all(first, last, seqs, SeqNo::MAX, &stripes)
        },
    };
    version.tables().any(|table| hidden.has_table(table))
}

/// Returns the job that drops entirely covered tables, which are marked busy.
pub(super) fn next(inner: &Arc<Inner>) -> Option<Box<dyn Job>> {
    let (mut busy, version) = inner.choosing();
    let dropped = inner.shared.dropped.all();
    let durable = inner.shared.ranges.durable();
    let ranges = inner.lasting_ranges(&version);
    if ranges.is_empty() && dropped.is_empty() {
        return None;
    }
    let stripes = inner.shared.snapshots.stripes();
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
    let hidden = Hidden {
        dropped: &dropped,
        hides: hides_by(&ranges, &stripes),
    };
    let free = |table: &&Table| !busy.numbers.contains(&table.number());
    // No snapshot reads a dropped keyspace.
    let gone = |table: &&Table| table.is_dropped(&dropped) || hidden.has_table(table);
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
    Some(Box::new(DeleteOnly {
        inner: Arc::clone(inner),
        tables,
    }))
}

impl Job for DeleteOnly {
    fn kind(&self) -> JobKind {
        JobKind::Compact
    }

    fn step(&mut self) -> Result<Step> {
        let numbers: Vec<u64> = self.tables.iter().map(Table::number).collect();
        let changes = numbers.iter().map(|&id| Change::Removed {
            owner: &TABLE_FILE,
            id,
        });
        let changes = changes.collect();
        let inner = Arc::clone(&self.inner);
        let entries = self.tables.iter().map(|t| t.meta.entries).sum();
        Ok(Step::Done(Completion {
            edit: Edit { changes },
            apply: Box::new(move || inner.install(&numbers, &[], &[])),
            garbage: Vec::new(),
            entries,
        }))
    }
}

impl Drop for DeleteOnly {
    fn drop(&mut self) {
        let gone: HashSet<u64> = self.tables.iter().map(Table::number).collect();
        let mut busy = self.inner.busy.lock();
        busy.numbers.retain(|number| !gone.contains(number));
    }
}
