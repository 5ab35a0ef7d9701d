//! Compactions made smaller when the disk has no space for them.
//!
//! A compaction writes its result before its input tables go, so a large one needs much space at
//! once. When the disk refuses it, five measures make a smaller one of it, in this order:
//!
//! 1. Tables that range deletes partly hide are rewritten without the hidden entries. The same is
//!    done when a drain is refused: the range deletes may be above it, and what it has to write may
//!    not fit before they free something.
//! 2. If level 0 falls into pieces that share no key, one of them is compacted.
//! 3. Tables are rewritten without the entries that newer ones above hide, if these are many. The
//!    same is done when a drain of memtables is refused, since deletes in tables alone free no
//!    space.
//! 4. Tables of several runs of level 0 that overlap are merged into one run, if they are small:
//!    each file takes whole blocks, and cutting one run makes fewer files than cutting many.
//! 5. Tables are cut: each is rewritten as several, which all end at the same keys. Level 0 then
//!    has smaller pieces, and a table of a deeper level overlaps less. A piece that is refused is
//!    cut again, into few parts each time: files take whole blocks, and many small ones would take
//!    more space than they free.
//!
//! Rewriting takes the space of one table, which the reserve keeps, and frees that of the old
//! table. So as long as the reserve is whole, a full disk can compact any amount of data.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::above::{Above, WORTH_ONE_IN};
use super::compaction::Compaction;
use super::delete_only;
use super::level0;
use super::split;
use super::version::{Table, Version};
use super::{Busy, Inner};
use crate::error::Result;
use crate::parts::key::Place;
use crate::types::SeqNo;

/// The maximum number of parts of a refused compaction. There are fewer if the extra blocks of the
/// files, one for each, could take a quarter of the space.
const PARTS_MAX: u64 = 32;
const BLOCK_BYTES: u64 = 4096;

/// A table to be rewritten in place.
struct Rewrite {
    number: u64,
    /// The keys, ascending, before which a new table begins.
    cuts: Arc<[Place]>,
}

/// The state that makes compactions smaller on a full disk.
pub(super) struct Narrow {
    /// The maximum bytes of tables in a compaction of level 0. A refusal lowers it to the size that
    /// fitted, and each compaction that ends raises it by an eighth: a compaction that is too large
    /// fills the disk before it is refused.
    pub(super) fits: u64,
    rewrites: Vec<Rewrite>,
    /// The numbers of tables of level 0 to be merged into one run, newest run first.
    gathered: Vec<Vec<u64>>,
    /// The newest number in tables at the last search for tables with many hidden entries.
    hidden_to: SeqNo,
    /// The state at the last search for tables that range deletes hide in part: the newest number
    /// in tables, the number up to which range deletes are durable, and the oldest snapshot.
    covered_to: (Option<SeqNo>, SeqNo, Option<SeqNo>),
    /// The table that is being rewritten, while it is busy. One at a time, since the reserve has
    /// space for one.
    rewriting: Option<u64>,
}

impl Rewrite {
    /// Rewrites a table into as few tables as possible.
    fn whole(number: u64) -> Rewrite {
        Rewrite {
            number,
            cuts: Arc::default(),
        }
    }
}

impl Default for Narrow {
    fn default() -> Narrow {
        Narrow {
            fits: u64::MAX,
            rewrites: Vec::new(),
            gathered: Vec::new(),
            hidden_to: 0,
            covered_to: (None, 0, None),
            rewriting: None,
        }
    }
}

impl Narrow {
    /// Notes that a compaction has ended.
    pub(super) fn widen(&mut self) {
        self.fits = self.fits.saturating_add(self.fits / 8 + BLOCK_BYTES);
    }
}

/// Returns the next table to rewrite for space, each at most once and only while it is live. The
/// flag is true if other compactions wait until all of these are rewritten.
pub(super) fn pick_rewrite(version: &Version, busy: &mut Busy) -> (Option<Compaction>, bool) {
    if let Some(compaction) = gathered(version, busy) {
        return (Some(compaction), true);
    }
    let Narrow {
        rewrites,
        rewriting,
        ..
    } = &mut busy.narrow;
    if rewrites.is_empty() && rewriting.is_none() {
        return (None, false);
    }
    let live: HashMap<u64, &Table> = version.tables().map(|t| (t.number(), t)).collect();
    rewrites.retain(|rewrite| live.contains_key(&rewrite.number));
    if rewriting.is_some_and(|number| busy.numbers.contains(&number)) {
        return (None, true);
    }
    *rewriting = None;
    let free = |rewrite: &Rewrite| !busy.numbers.contains(&rewrite.number);
    let Some(at) = rewrites.iter().position(free) else {
        return (None, !rewrites.is_empty());
    };
    let Rewrite { number, cuts } = rewrites.remove(at);
    *rewriting = Some(number);
    let table = live.get(&number);
    (
        table.map(|table| Compaction::rewriting(table).for_room(cuts)),
        true,
    )
}

/// Returns the compaction that merges tables of level 0 into one run, once they are free; `None` if
/// one is gone.
fn gathered(version: &Version, busy: &mut Busy) -> Option<Compaction> {
    let Busy {
        narrow, numbers, ..
    } = busy;
    // The refused compaction may still hold them for a moment.
    if narrow
        .gathered
        .iter()
        .flatten()
        .any(|n| numbers.contains(n))
    {
        return None;
    }
    let runs = std::mem::take(&mut narrow.gathered);
    if runs.is_empty() {
        return None;
    }
    let level0 = version.runs.iter().flat_map(|run| &run.tables);
    let live: HashMap<u64, &Table> = level0.map(|t| (t.number(), t)).collect();
    let mut upper = Vec::new();
    for numbers in &runs {
        let tables = numbers.iter().map(|n| live.get(n).map(|&t| t.clone()));
        upper.push(tables.collect::<Option<Vec<Table>>>()?);
    }
    let run = upper.first()?.first()?.meta.run;
    Some(Compaction::into_run(run, upper))
}

impl Inner {
    /// Prepares a compaction that fits after the disk has refused `compaction` after `written`
    /// bytes. Returns whether there is one, or none is needed; the refused compaction then ends.
    pub(super) fn narrow(&self, compaction: &Compaction, written: u64) -> Result<bool> {
        if compaction.joins {
            // Nothing needs it, and others wait for its tables.
            self.busy.lock().join_refused = Arc::downgrade(&self.version());
            return Ok(true);
        }
        if compaction.rewrites || compaction.to == 0 {
            // Another table may be smaller.
            return Ok(!self.busy.lock().narrow.rewrites.is_empty());
        }
        // Other files may have filled the disk, and this much is kept for tables alone.
        let fits = written.max(self.shared.reserve.held_for_tables());
        let hidden = delete_only::hidden_in_part(self, compaction.tables())?;
        let rewrites = match hidden.is_empty() {
            true if compaction.from() == 0 && self.fits_in_pieces(compaction, fits) => {
                return Ok(true);
            }
            true if self.rewrites_hidden()? || self.gathers(compaction, fits) => return Ok(true),
            true => cut(compaction, fits)?,
            false => hidden.into_iter().map(Rewrite::whole).collect(),
        };
        let found = !rewrites.is_empty();
        self.busy.lock().narrow.rewrites.extend(rewrites);
        Ok(found)
    }

    /// Schedules the rewriting of tables that range deletes hide in part.
    pub(super) fn rewrites_covered(&self) -> Result<()> {
        let (mut busy, version) = self.choosing();
        let seq = version.tables().map(|table| table.meta.seq_last).max();
        let durable = self.shared.ranges.durable();
        let oldest = self.shared.snapshots.stripes().oldest();
        // BOUND: once while none of these changes. Each search opens all tables.
        let now = (seq, durable, oldest);
        if std::mem::replace(&mut busy.narrow.covered_to, now) == now {
            return Ok(());
        }
        drop(busy);
        let hidden = delete_only::hidden_in_part(self, version.tables())?;
        let rewrites = hidden.into_iter().map(Rewrite::whole);
        self.busy.lock().narrow.rewrites.extend(rewrites);
        Ok(())
    }

    /// Schedules the rewriting of tables that seem to have many entries hidden by tables above, and
    /// returns whether there are any. Otherwise deletes of keys on the last level would free
    /// nothing until compactions have carried them all the way.
    pub(super) fn rewrites_hidden(&self) -> Result<bool> {
        let (mut busy, version) = self.choosing();
        let seq = version.tables().map(|table| table.meta.seq_last).max();
        let hidden: u64 = version.superseded().sum();
        // BOUND: once for each new number, since a rewritten table has nothing left that is hidden
        // by it.
        if seq.is_none_or(|seq| seq <= busy.narrow.hidden_to)
            || hidden < self.shared.reserve.held_for_tables() / WORTH_ONE_IN
        {
            return Ok(false);
        }
        busy.narrow.hidden_to = seq.unwrap_or(0);
        drop(busy);
        let mut rewrites = Vec::new();
        for table in version.levels.iter().flat_map(|run| &run.tables) {
            let mut above = Above::of(&version, (table.meta.level, table.meta.run));
            if above.hides_much_of(table, None, WORTH_ONE_IN)? {
                rewrites.push(Rewrite::whole(table.number()));
            }
        }
        let found = !rewrites.is_empty();
        self.busy.lock().narrow.rewrites.extend(rewrites);
        Ok(found)
    }

    /// Schedules the merge of the tables of level 0 in a compaction into one run, if they are of
    /// several runs and take no more space than fits.
    fn gathers(&self, refused: &Compaction, fits: u64) -> bool {
        let upper = &refused.upper;
        let bytes: u64 = upper.iter().map(|run| run.bytes()).sum();
        // BOUND: the runs become one, and another drain comes only when there is space.
        if refused.from() > 0 || refused.to == 0 || upper.len() < 2 || bytes > fits {
            return false;
        }
        let numbers = upper
            .iter()
            .map(|run| run.tables.iter().map(Table::number).collect());
        self.busy.lock().narrow.gathered = numbers.collect();
        true
    }

    /// Notes the size that fits after a compaction of level 0 did not, and returns whether another
    /// one comes next.
    fn fits_in_pieces(&self, refused: &Compaction, fits: u64) -> bool {
        let (mut busy, version) = self.choosing();
        // BOUND: it only falls until a compaction ends, so the same ones are not refused in turn.
        busy.narrow.fits = fits.min(busy.narrow.fits);
        let fits = busy.narrow.fits;
        let numbers = |compaction: &Compaction| compaction.tables().map(Table::number).collect();
        let refused_numbers: HashSet<u64> = numbers(refused);
        let others = &busy.numbers - &refused_numbers;
        let (runs_max, base) = (self.shared.memory.limits.runs, refused.to);
        let whole = level0::whole(&version, base, runs_max, &others);
        whole.is_some_and(|whole| {
            let next: HashSet<u64> = numbers(&level0::fitting(whole, &version, fits, &others));
            next != refused_numbers
        })
    }
}

/// Returns the tables of a compaction that span a key at which it should be cut, the largest first:
/// the resulting files take a little more space, and small ones need less.
fn cut(compaction: &Compaction, fits: u64) -> Result<Vec<Rewrite>> {
    let tables = compaction.tables().count() as u64;
    let parts_max = (fits / 4 / (tables * BLOCK_BYTES)).clamp(2, PARTS_MAX);
    let parts = compaction.bytes().div_ceil((fits / 4 * 3).max(1));
    let parts = parts.clamp(2, parts_max) as usize;
    // Tables of level 0 overlap all others, so their first keys alone say little.
    let cuts = split::cuts(compaction, parts, 2 * parts)?;
    let inside = |table: &Table| {
        let cuts = cuts.iter();
        let cuts = cuts.filter(|(keyspace, key)| table.reaches_over((*keyspace, key)));
        cuts.cloned().collect::<Arc<[Place]>>()
    };
    let tables = compaction.tables().map(|table| (table, inside(table)));
    let mut tables: Vec<_> = tables.filter(|(_, cuts)| !cuts.is_empty()).collect();
    tables.sort_by_key(|(table, _)| Reverse(table.meta.bytes));
    let rewrites = tables.into_iter().map(|(table, cuts)| Rewrite {
        number: table.number(),
        cuts,
    });
    Ok(rewrites.collect())
}
