//! The choice of compactions: the level that exceeds its target most, and tables of it.
//!
//! Targets are set from below: the last level is as large as its data, each level above it a
//! `growth`-th of the one below, up to the first whose target is no larger than `level1_bytes`.
//! That one, the *base*, takes the output of level 0, and levels between the two are empty. So at
//! most about a ninth of the data is above the last level, whatever its amount (RocksDB's dynamic
//! level sizes).

use std::cell::LazyCell;
use std::sync::{Arc, Weak};

use super::compaction::Compaction;
use super::request::{self, Due};
use super::version::{Table, Version};
use super::{Busy, Inner, LeveledOptions, Numbers};
use super::{join, level0, narrow, values};
use crate::parts::expiry::Millis;
use crate::parts::key::{KeyRange, Place};
use crate::stages::Urgency;
use crate::types::SeqNo;

/// Returns the level that takes the output of level 0, and the target of every level; index 0 is
/// unused.
pub(super) fn targets(version: &Version, options: &LeveledOptions) -> (usize, Vec<u64>) {
    let depth = version.levels.len();
    let mut targets = vec![u64::MAX; depth + 1];
    if !options.dynamic_sizes {
        let mut target = options.level1_bytes;
        for slot in &mut targets[1..] {
            *slot = target;
            target = target.saturating_mul(options.growth);
        }
        return (1, targets);
    }
    let mut target = version.level(depth).bytes().max(1);
    let mut base = depth;
    targets[depth] = target.max(options.level1_bytes);
    while base > 1 && target > options.level1_bytes {
        base -= 1;
        target = (target / options.growth).max(1);
        targets[base] = target.max(options.level1_bytes / options.growth);
    }
    // Data that is still above, after the database has shrunk, is newer than all below it: nothing
    // from level 0 may pass it (L1), and it has to move down.
    let first = (1..=depth).find(|&level| version.level(level).bytes() > 0);
    for slot in &mut targets[1..base] {
        *slot = 0;
    }
    (base.min(first.unwrap_or(depth)), targets)
}

/// Returns the score of each level, level 0 first; a level is due above 1.
///
/// `garbage` is the score of garbage: such compactions begin at the level with most of it.
fn scores(
    version: &Version,
    options: &LeveledOptions,
    targets: &[u64],
    garbage: f64,
) -> Vec<(f64, usize)> {
    let superseded: Vec<u64> = version.superseded().collect();
    let most = superseded.iter().max().map_or(1, |&most| most.max(1)) as f64;
    let garbage = |level: usize| garbage * superseded[level] as f64 / most;
    let runs = version.runs.len() as f64 / options.runs_compact.max(1) as f64;
    let mut scores = vec![(runs.max(garbage(0)), 0)];
    let above_last = version.levels.len() - 1;
    for (at, run) in version.levels[..above_last].iter().enumerate() {
        let (bytes, level) = (run.bytes(), at + 1);
        if bytes > 0 {
            let size = bytes as f64 / targets[level].max(1) as f64;
            scores.push((size.max(garbage(level)), level));
        }
    }
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
    scores
}

/// Returns the bytes that compactions have to move before every level fits its target.
pub(super) fn debt(version: &Version, options: &LeveledOptions) -> u64 {
    let (_, targets) = targets(version, options);
    let mut debt = 0u64;
    if version.runs.len() >= options.runs_compact {
        debt += version.runs.iter().map(|run| run.bytes()).sum::<u64>();
    }
    let levels = version.levels.iter().zip(&targets[1..]);
    let above_last = levels.take(version.levels.len() - 1);
    debt + above_last
        .map(|(run, target)| run.bytes().saturating_sub(*target))
        .sum::<u64>()
}

impl Inner {
    /// Returns the most urgent compaction, with its tables marked busy, or `None` if there is none
    /// or its tables are busy. For `Everything`, level 0 is compacted even if it has few runs.
    pub(super) fn pick(&self, urgency: Urgency) -> Option<Compaction> {
        let everything = urgency == Urgency::Everything;
        let (mut busy, version) = self.choosing();
        let busy = &mut *busy;
        let options = &self.store.options;
        let (base, targets) = targets(&version, options);
        let runs_max = self.shared.memory.limits.runs;
        let (rewrite, others_wait) = narrow::pick_rewrite(&version, busy);
        if let Some(compaction) = rewrite {
            busy.numbers.extend(compaction.tables().map(Table::number));
            return Some(compaction);
        }
        if others_wait {
            return None;
        }
        let level0 = |busy: &Busy| {
            if busy.has_column || busy.joined == Some(base) {
                return None;
            }
            let whole = level0::whole(&version, base, runs_max, &busy.numbers)?;
            let Busy {
                narrow, numbers, ..
            } = busy;
            Some(level0::fitting(whole, &version, narrow.fits, numbers))
        };
        busy.requests.retain(|request| request.strong_count() > 0);
        for request in busy.requests.iter().filter_map(Weak::upgrade) {
            let compaction = match request::due(&version, &request) {
                Some(Due::Runs) => level0(busy),
                Some(Due::Tables(level, tables)) => tables
                    .iter()
                    .find_map(|table| pick_one(&version, table, level + 1, busy)),
                Some(Due::Rewrites(tables)) => tables
                    .iter()
                    .find(|table| !busy.numbers.contains(&table.number()))
                    .map(Compaction::rewriting),
                None => None,
            };
            if let Some(compaction) = compaction {
                busy.numbers.extend(compaction.tables().map(Table::number));
                return Some(compaction);
            }
        }
        let garbage = self.garbage(&version).score(urgency);
        let of_values = self.value_garbage(&version).score(urgency);
        // Asks the system, so only if a level is due.
        let is_full = LazyCell::new(|| self.shared.reserve.is_full());
        let holds = (busy.awaited.as_mut()).is_some_and(|awaited| awaited.holds(&busy.numbers));
        // While compactions are so far behind that no drain begins, nothing is left to one.
        let holds = holds && !self.need().stops();
        // No rewriting of a table begins that a drain waits for.
        let left: Numbers = match &busy.awaited {
            Some(awaited) if holds => {
                let tables = version.level(base).tables.iter();
                let awaited = tables.filter(|table| table.is_in(&awaited.keys));
                awaited.map(Table::number).collect()
            }
            _ => Numbers::new(),
        };
        let is_free = |numbers: &Numbers, table: &Table| {
            let number = table.number();
            !numbers.contains(&number) && !left.contains(&number)
        };
        // On a full disk the space of a value file is needed as soon as half of it is garbage.
        let mut values_left = of_values >= 1.0 || self.shared.reserve.is_tight();
        for (score, level) in scores(&version, options, &targets, garbage) {
            if values_left && of_values > score {
                values_left = false;
                let is_due = of_values >= 1.0;
                if let Some(compaction) =
                    values::pick(self, &version, is_due, &|t| is_free(&busy.numbers, t))
                {
                    busy.numbers.extend(compaction.tables().map(Table::number));
                    return Some(compaction);
                }
            }
            if score < 1.0 && !(everything && level == 0 && score > 0.0) {
                continue;
            }
            // On a full disk tables are rewritten in place without hidden entries. Moved down, they
            // would free no more, and those that have no space would be cut into small ones, which
            // take more.
            if level > 0 && *is_full {
                continue;
            }
            let compaction = match level {
                0 => level0(busy),
                _ => {
                    let swept = busy.swept.as_ref().filter(|_| level == base);
                    let awaited = busy.awaited.as_ref().filter(|_| level == base && holds);
                    let awaited = awaited.map(|awaited| &awaited.keys);
                    pick_table(&version, level, swept, awaited, busy)
                }
            };
            if let Some(compaction) = compaction {
                busy.numbers.extend(compaction.tables().map(Table::number));
                if let Some(last) = compaction.upper.iter().flat_map(|r| r.tables.last()).last() {
                    busy.next[level] = Some((last.meta.last.0, last.meta.last.1.clone()));
                }
                return Some(compaction);
            }
        }
        let is_free = |table: &Table| is_free(&busy.numbers, table);
        let of_values = || values::pick(self, &version, of_values >= 1.0, &is_free);
        let compaction = values_left.then(of_values).flatten();
        let compaction = compaction
            .or_else(|| join::pick(self, &version, base, busy, &is_free))
            .or_else(|| pick_dropped(&version, &self.shared.dropped.all(), &is_free))
            .or_else(|| {
                let oldest = self.shared.snapshots.stripes().oldest();
                let is_free = |level, table: &Table| busy.joined != Some(level) && is_free(table);
                let percent = match urgency {
                    Urgency::Rest => options.garbage_percent / 3,
                    _ => options.garbage_percent,
                };
                pick_stale(&version, oldest, self.shared.horizon(), percent, &is_free)
            })?;
        busy.numbers.extend(compaction.tables().map(Table::number));
        if compaction.joins {
            busy.joined = Some(compaction.to);
        }
        Some(compaction)
    }
}

/// Returns a table below level 0 that may have entries of dropped keyspaces among others, to be
/// rewritten without them. Each is rewritten once, since it is then known to have none.
fn pick_dropped(
    version: &Version,
    dropped: &Arc<Vec<u32>>,
    is_free: &dyn Fn(&Table) -> bool,
) -> Option<Compaction> {
    let mut tables = version.levels.iter().flat_map(|run| &run.tables);
    let table = tables.find(|t| is_free(t) && t.may_have_dropped(dropped))?;
    Some(Compaction::rewriting(table))
}

/// Returns a table with range deletes, or half of whose entries have expired, though its level
/// needs no compaction: otherwise the range deletes and the entries that they hide would stay until
/// something else is written there. So would older versions in a table with nothing below, which
/// snapshots kept: their bytes per live byte are limited like other garbage. Only tables with
/// nothing newer than the oldest snapshot, so that they leave the last level without them.
/// `is_free`: whether a level takes the result and a table is free.
fn pick_stale(
    version: &Version,
    oldest: Option<SeqNo>,
    horizon: Millis,
    garbage_percent: u32,
    is_free: &dyn Fn(usize, &Table) -> bool,
) -> Option<Compaction> {
    let depth = version.levels.len();
    let stale = |t: &Table| {
        let expired = t.meta.expiry_last <= horizon && 2 * t.meta.expiring >= t.meta.entries;
        t.meta.range_deletes > 0 || t.meta.expiring > 0 && expired
    };
    let outdated = |t: &Table| {
        let live = t.meta.entries - t.meta.older.min(t.meta.entries);
        100 * u128::from(t.meta.older) > u128::from(garbage_percent) * u128::from(live)
    };
    for level in 1..=depth {
        let held = |t: &Table| oldest.is_some_and(|oldest| oldest < t.meta.seq_last);
        let with = version.level(level).tables.iter();
        let with = with.filter(|t| (stale(t) || outdated(t)) && is_free(0, t));
        for table in with.filter(|t| !held(t)) {
            let (first, last) = table.reach();
            // With nothing below it loses them where it is.
            if !version.reaches_below(level, first, last) {
                return Some(Compaction::rewriting(table));
            }
            if !stale(table) {
                continue;
            }
            let to = (level + 1).min(depth);
            let lower = version.level(to).overlapping(first, last);
            if is_free(to, table) && lower.iter().all(|t| is_free(to, t)) {
                return Some(Compaction::one(to, table, lower));
            }
        }
    }
    None
}

/// Picks a table of the level above `to`, if it and the tables that it overlaps below are free.
fn pick_one(version: &Version, table: &Table, to: usize, busy: &Busy) -> Option<Compaction> {
    if busy.joined == Some(to) {
        return None;
    }
    let (first, last) = table.reach();
    let lower = version.level(to).overlapping(first, last);
    let mut all = lower.iter().chain([table]);
    if all.any(|t| busy.numbers.contains(&t.number())) {
        return None;
    }
    Some(Compaction::one(to, table, lower))
}

/// Picks a table; it and the tables that it overlaps below must be free. On the level that columns
/// are merged with, this is the table that they reach last, so that they do not have to wait for
/// it; on others the next one in a circle, from the key where the last compaction of the level
/// ended. Tables that a waiting column is going to reach are left to it.
pub(super) fn pick_table(
    version: &Version,
    level: usize,
    swept: Option<&Place>,
    awaited: Option<&KeyRange>,
    busy: &Busy,
) -> Option<Compaction> {
    let tables = &version.level(level).tables;
    let order: Vec<&Table> = match (swept, &busy.next[level]) {
        (Some(place), _) => {
            let (passed, ahead) =
                tables.split_at(tables.partition_point(|t| t.is_before(Some(place))));
            passed.iter().rev().chain(ahead.iter().rev()).collect()
        }
        (None, Some((keyspace, key))) => {
            let start = tables.partition_point(|t| t.first() <= (*keyspace, key.as_slice()));
            tables[start..].iter().chain(&tables[..start]).collect()
        }
        (None, None) => tables.iter().collect(),
    };
    let is_free = |table: &&Table| awaited.is_none_or(|keys| !table.is_in(keys));
    let mut order = order.into_iter().filter(is_free);
    order.find_map(|table| pick_one(version, table, level + 1, busy))
}
