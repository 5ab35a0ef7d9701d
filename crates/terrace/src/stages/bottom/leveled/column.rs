//! Columns: drains of ranges of keys that are merged with the first level instead of becoming runs
//! of level 0 (MatrixKV, section 3.2).
//!
//! A column begins where the last one ended, and ends at the end of a table of the first level, as
//! soon as entries and tables together have the least size of a column. If a table is about to
//! exceed the greatest size, the column ends before it, or inside it where the entries alone are
//! too many.
//!
//! A column cannot share a table with a compaction. If one has its first table, the column waits
//! for that one, and meanwhile no table from its start on is chosen because the level is too large:
//! so a round always ends. It rarely has to wait, since compactions of the level choose the tables
//! that columns reach last.
//!
//! While a column is merged, level 0 stays where it is: an ingest may bring it keys that lie
//! between the tables that the column has.
//!
//! The drains of other buffers take all keys at once (`Merging::Whole`). Such a drain takes the
//! whole level, so it waits for every job that has a table there, one after another. On a full
//! disk, or once the disk has refused such a merge, it becomes a run of level 0 instead: it cannot
//! be narrower, and compactions of level 0 can.

use std::sync::Arc;

use super::source::RunCursor;
use super::version::{Run, Table, Version};
use super::{Busy, Inner, Leveled, Numbers, pick};
use crate::error::Result;
use crate::parts::iter::Cursor as _;
use crate::parts::key::{KeyRange, Place};
use crate::parts::ranges::{Key, RangeDelete};
use crate::stages::{Columns, Drain, Rows};

/// The least and the greatest bytes of a column, tables of the first level included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColumnBytes {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

/// How drains are merged with the first level.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Merging {
    /// In columns of these sizes.
    Columns(ColumnBytes),
    /// All keys at once: the buffer cannot divide its tables.
    Whole,
}

/// BOUND: the number of choices of a compaction in which a whole level is left to a drain that has
/// waited for it. The thread that ends the last job of the level would otherwise begin the next one
/// before another thread looks for the drain, again and again.
const LOOKS_MAX: u32 = 64;

/// The keys of a drain that waits for a table.
pub(super) struct Awaited {
    pub(super) keys: KeyRange,
    /// The number of the table.
    number: u64,
    /// The number of choices in which the keys are left to the drain once the table is free.
    looks: u32,
}

impl Awaited {
    /// Creates the state after the awaited table has become free.
    #[cfg(test)]
    pub(super) fn freed() -> Awaited {
        Awaited {
            keys: KeyRange::default(),
            number: 0,
            looks: LOOKS_MAX,
        }
    }

    /// Returns whether compactions of the level leave the keys to the drain. Called once for each
    /// choice of a compaction.
    pub(super) fn holds(&mut self, busy: &Numbers) -> bool {
        if busy.contains(&self.number) {
            return true;
        }
        let left = self.looks.checked_sub(1);
        self.looks = left.unwrap_or(0);
        left.is_some()
    }
}

/// BOUND: about how many columns a full container has at most, and how many at least. In the paper
/// it has twelve.
const COLUMNS_MAX: u64 = 32;
const COLUMNS_MIN: u64 = 6;

impl ColumnBytes {
    /// Returns the bounds of the paper: half of, and all of, what one table of the first level may
    /// overlap on the second (section 3.2). With tables that are tiny compared to the container,
    /// columns are wider: the edit of each names all rows. With tables that are large they are
    /// narrower: writers would wait for the only column.
    pub(crate) fn of(growth: u64, table_bytes: u64, container: u64) -> ColumnBytes {
        let most = growth.saturating_mul(table_bytes);
        let most = most.clamp(container / COLUMNS_MAX, container / COLUMNS_MIN);
        let least = most / 2;
        ColumnBytes { least, most }
    }

    /// Returns bounds with which everything is one column.
    pub(crate) fn unbounded() -> ColumnBytes {
        ColumnBytes {
            least: u64::MAX,
            most: u64::MAX,
        }
    }
}

/// Returns the shortest place after a key and not after another one, which follows it: the manifest
/// keeps it for each row.
fn shortest_between(after: Key<'_>, to: Key<'_>) -> Place {
    if after.0 < to.0 {
        return (to.0, Vec::new());
    }
    let common = after.1.iter().zip(to.1).take_while(|(a, b)| a == b).count();
    (to.0, to.1[..to.1.len().min(common + 1)].to_vec())
}

/// Returns the range up to a place, and the bytes of entries there.
fn sized(from: Option<&Place>, to: Option<Place>, rows: &dyn Rows) -> Result<(KeyRange, u64)> {
    let keys = KeyRange {
        from: from.cloned(),
        to,
    };
    let bytes = rows.bytes(&keys)?;
    Ok((keys, bytes))
}

impl Columns for Leveled {
    fn next(&self, from: Option<&Place>, rows: &dyn Rows) -> Result<Option<KeyRange>> {
        let bounds = match self.inner.merging {
            Some(Merging::Columns(bounds)) => bounds,
            Some(Merging::Whole) => return Ok(self.whole(from)),
            None => return Ok(sized(from, None, rows)?.0.into()),
        };
        let (mut busy, version) = self.inner.choosing();
        let keys = self.column(bounds, from, rows, &version, &mut busy)?;
        // The last column is followed by the first one of the next round.
        let is_last = keys.as_ref().is_some_and(|keys| keys.to.is_none());
        let reached = from.filter(|_| !is_last).cloned().unwrap_or_default();
        busy.swept = (bounds.most < u64::MAX).then_some(reached);
        Ok(keys)
    }
}

impl Inner {
    /// Returns whether drains may be merged with the first level.
    fn merges(&self, busy: &Busy) -> bool {
        match self.merging {
            Some(Merging::Columns(_)) => true,
            Some(Merging::Whole) => !self.shared.reserve.is_tight() && !busy.merging_refused,
            None => false,
        }
    }
}

impl Leveled {
    /// Returns all keys from `from` on, or `None` while a table of the first level is busy.
    fn whole(&self, from: Option<&Place>) -> Option<KeyRange> {
        let keys = KeyRange {
            from: from.cloned(),
            to: None,
        };
        let (mut busy, version) = self.inner.choosing();
        let joins_level0 = !version.runs.is_empty() || !self.inner.merges(&busy);
        let (base, _) = pick::targets(&version, &self.inner.store.options);
        let mut tables = version.level(base).tables.iter().map(Table::number);
        let number = match joins_level0 {
            true => None,
            false => tables.find(|number| busy.numbers.contains(number)),
        };
        busy.awaited = number.map(|number| Awaited {
            keys: keys.clone(),
            number,
            looks: LOOKS_MAX,
        });
        number.is_none().then_some(keys)
    }

    /// Returns the keys of a column, or `None` while its first table is busy.
    fn column(
        &self,
        bounds: ColumnBytes,
        from: Option<&Place>,
        rows: &dyn Rows,
        version: &Version,
        busy: &mut Busy,
    ) -> Result<Option<KeyRange>> {
        // On a full disk a column is as narrow as possible: it needs the space of the tables that
        // it replaces, and the reserve has the space of one.
        let bounds = match self.inner.shared.reserve.is_tight() {
            true => ColumnBytes {
                least: 0,
                most: bounds.most.min(self.inner.store.options.table_bytes),
            },
            false => bounds,
        };
        let inside = || -> Result<Option<KeyRange>> {
            let to = rows.key_after(from, bounds.most)?;
            Ok(Some(sized(from, to, rows)?.0))
        };
        // Entries of level 0, which ingests bring, must not be passed: the column joins them there.
        if !version.runs.is_empty() {
            busy.awaited = None;
            return inside();
        }
        let rest = sized(from, None, rows)?;
        if rest.1 == 0 {
            return Ok(Some(rest.0));
        }
        let (base, _) = pick::targets(version, &self.inner.store.options);
        let tables = &version.level(base).tables;
        let first = tables.partition_point(|table| table.is_before(from));
        let mut below = 0u64;
        let mut found: Option<KeyRange> = None;
        for (at, table) in tables.iter().enumerate().skip(first) {
            if busy.numbers.contains(&table.number()) {
                if found.is_none() {
                    let keys = KeyRange {
                        from: from.cloned(),
                        to: None,
                    };
                    busy.awaited = Some(Awaited {
                        keys,
                        number: table.number(),
                        looks: 0,
                    });
                    return Ok(None);
                }
                break;
            }
            let next = tables.get(at + 1);
            let next = next.map(|next| shortest_between(table.reach().1, next.reach().0));
            let (keys, above) = sized(from, next, rows)?;
            below += table.meta.bytes;
            let all = above.saturating_add(below);
            if all > bounds.most && found.is_some() {
                break;
            }
            if above > bounds.most {
                busy.awaited = None;
                return inside();
            }
            found = Some(keys);
            if all >= bounds.least {
                break;
            }
        }
        busy.awaited = None;
        match found {
            Some(keys) => Ok(Some(keys)),
            None => inside(),
        }
    }
}

/// The tables of the first level that a drain is merged with, while it has them.
pub(super) struct Lower {
    inner: Arc<Inner>,
    pub(super) level: u32,
    pub(super) tables: Arc<Run>,
}

impl Lower {
    /// Takes the tables that a drain overlaps. `Not` if it has to become a run of level 0: since
    /// there are others, or since it has no entries, so that merging would rewrite tables for its
    /// range deletes or for nothing, or since a full disk has no space for a merge of everything.
    pub(super) fn take(inner: &Arc<Inner>, drain: &mut Drain) -> Result<Taken> {
        if inner.merging.is_none() {
            return Ok(Taken::Not);
        }
        drain.start()?;
        if drain.entry()?.is_none() {
            return Ok(Taken::Not);
        }
        let keys = &drain.keys;
        let (mut busy, version) = inner.choosing();
        if !version.runs.is_empty() || !inner.merges(&busy) {
            return Ok(Taken::Not);
        }
        let (base, _) = pick::targets(&version, &inner.store.options);
        let tables = version.level(base).tables.iter();
        let tables: Vec<Table> = tables.filter(|t| t.is_in(keys)).cloned().collect();
        let is_busy = |table: &Table| busy.numbers.contains(&table.number());
        if busy.joined == Some(base) || tables.iter().any(is_busy) {
            return Ok(Taken::Busy);
        }
        busy.numbers.extend(tables.iter().map(Table::number));
        busy.has_column = true;
        Ok(Taken::Tables(Lower {
            inner: Arc::clone(inner),
            level: base as u32,
            tables: Arc::new(Run::of(tables)),
        }))
    }

    /// Returns a cursor at the first entry of a range.
    pub(super) fn cursor(&self, keys: &KeyRange) -> Result<RunCursor> {
        let ahead = self.inner.shared.memory.limits.job_ahead_bytes;
        let mut cursor = RunCursor::new(Arc::clone(&self.tables), false).read_ahead(ahead);
        cursor.seek(&keys.start())?;
        Ok(cursor)
    }

    /// Returns the range deletes of the tables.
    pub(super) fn ranges(&self) -> impl Iterator<Item = RangeDelete> {
        let tables = self.tables.tables.iter();
        tables.flat_map(|table| table.ranges.iter().cloned())
    }

    /// Returns the numbers of the tables.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.tables.tables.iter().map(Table::number).collect()
    }
}

impl Drop for Lower {
    fn drop(&mut self) {
        // Of a job that has ended, no table is live any more.
        let mut busy = self.inner.busy.lock();
        busy.has_column = false;
        for number in self.numbers() {
            busy.numbers.remove(&number);
        }
    }
}

/// The tables of a drain.
pub(super) enum Taken {
    Tables(Lower),
    Not,
    /// A job has one of them.
    Busy,
}
