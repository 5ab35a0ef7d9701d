//! Rewriting of tables without the entries that newer tables of the buffer hide, when the disk has
//! no space for a drain.
//!
//! Deletes are drained after the puts before them. If the puts have no space, the deletes that
//! would make it never come down. So a drain that was refused rewrites one table in place, without
//! the entries that newer ones hide, and is put back: the next drain finds the space, or rewrites
//! the next table. Rewriting takes the space of one table, which the reserve keeps, and frees that
//! of the old table.
//!
//! Each table is examined at most twice until the buffer has new entries, or until another job has
//! replaced some that were not examined. It is rewritten if an eighth of its entries is hidden,
//! judged by a few lookups. In a pool on media, if that makes no space for the drain, it is
//! rewritten for a smaller share that is only just worthwhile.
//!
//! CRASH: an entry that is left out here is hidden by a durable version above it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::above::{Above, WORTH_ONE_IN};
use super::compact::Rewriting;
use super::version::{Table, Version};
use super::{Busy, Inner};
use crate::error::{Error, Result};
use crate::parts::key::Target;
use crate::stages::{Completion, Drain};
use crate::types::SeqNo;

/// The smallest share of hidden entries that justifies rewriting a table: this many bytes are
/// written for each one freed.
const LEAST_ONE_IN: u64 = 32;

/// The tables that may have entries which the buffer hides.
#[derive(Default)]
pub(super) struct Candidates {
    /// The newest number in the buffer when they were found.
    seq: SeqNo,
    /// A table needs one hidden entry in this many.
    one_in: u64,
    /// The numbers of the tables, those with most entries of the buffer in their key range last.
    numbers: Vec<u64>,
    /// Whether another job has replaced some of them before they were examined.
    are_replaced: bool,
    /// The newest number in the buffer at the last check for other candidates.
    asked: SeqNo,
}

impl Candidates {
    /// Returns whether there may be a candidate, given `newest`, the newest number in the buffer.
    pub(super) fn is_due(&mut self, newest: SeqNo) -> bool {
        // BOUND: once for each newest number in the buffer.
        let is_new = std::mem::replace(&mut self.asked, newest) < newest;
        is_new || !self.numbers.is_empty()
    }

    /// Takes the next one that is live and that no job has.
    fn take(&mut self, version: &Version, busy: &HashSet<u64>) -> Option<Table> {
        let live: HashMap<u64, &Table> = version.tables().map(|t| (t.number(), t)).collect();
        let found = self.numbers.len();
        self.numbers.retain(|number| live.contains_key(number));
        self.are_replaced |= self.numbers.len() < found;
        let at = self
            .numbers
            .iter()
            .rposition(|number| !busy.contains(number))?;
        let number = self.numbers.remove(at);
        live.get(&number).map(|&table| table.clone())
    }
}

/// Makes space for the drains after one that was refused.
pub(super) struct Hidden {
    inner: Arc<Inner>,
    rewriting: Option<Rewriting>,
    /// The reason why the drain was refused. `None`: the bottom accepts none for now.
    why: Option<Error>,
}

/// The outcome of a step.
pub(super) enum Progress {
    More,
    /// A table was rewritten.
    Rewritten(Completion),
    /// No table is worthwhile, and the drain was refused with this error.
    Nothing(Option<Error>),
}

impl Hidden {
    /// Finds the tables that may have something to free, unless the buffer has nothing new since
    /// the last search.
    pub(super) fn begin(
        inner: &Arc<Inner>,
        drain: &mut Drain,
        why: Option<Error>,
    ) -> Result<Hidden> {
        if let Some(newer) = &mut drain.newer {
            newer.look_again();
            let seq = newer.seq_max().max(drain.seq_last);
            let is_new = inner.busy.lock().hidden.seq < seq;
            if is_new {
                let numbers = find(inner, drain, WORTH_ONE_IN)?;
                let hidden = &mut inner.busy.lock().hidden;
                (hidden.seq, hidden.one_in, hidden.numbers) = (seq, WORTH_ONE_IN, numbers);
            }
        }
        Ok(Hidden {
            inner: Arc::clone(inner),
            rewriting: None,
            why,
        })
    }

    /// Examines a table, or writes one step of it.
    pub(super) fn step(&mut self, drain: &Drain) -> Result<Progress> {
        if let Some(rewriting) = &mut self.rewriting {
            let rewritten = rewriting.step(drain)?;
            return Ok(rewritten.map_or(Progress::More, Progress::Rewritten));
        }
        let (mut busy, version) = self.inner.choosing();
        let Busy {
            hidden, numbers, ..
        } = &mut *busy;
        let one_in = hidden.one_in;
        let Some(table) = hidden.take(&version, numbers) else {
            // BOUND: once for each edit of the job that has replaced them.
            let are_replaced = std::mem::take(&mut hidden.are_replaced);
            drop(busy);
            if are_replaced {
                return self.look(drain, one_in);
            }
            // With a pool in memory deletes are not refused meanwhile: their logs are on the
            // reserve.
            let is_last_way = self.why.is_some() && self.inner.shared.pool_outlives();
            return match is_last_way && one_in < LEAST_ONE_IN {
                // Tables that are only just worthwhile, since others made no space for the drain.
                true => self.look(drain, LEAST_ONE_IN),
                false => Ok(Progress::Nothing(self.why.take())),
            };
        };
        numbers.insert(table.number());
        drop(busy);
        let rewriting = Rewriting::begin(&self.inner, &table)?;
        let mut above = Above::of(&version, (table.meta.level, table.meta.run));
        // Dropping it frees the table.
        self.rewriting = above
            .hides_much_of(&table, Some(drain), one_in)?
            .then_some(rewriting);
        Ok(Progress::More)
    }

    /// Finds the tables of which one entry in this many is hidden.
    fn look(&self, drain: &Drain, one_in: u64) -> Result<Progress> {
        let numbers = find(&self.inner, drain, one_in)?;
        let hidden = &mut self.inner.busy.lock().hidden;
        (hidden.one_in, hidden.numbers) = (one_in, numbers);
        Ok(Progress::More)
    }

    /// Gives up the table that is being rewritten, since the disk has refused it; another one
    /// follows.
    pub(super) fn pass_over(&mut self, why: Error) {
        self.rewriting = None;
        self.why = Some(why);
    }
}

/// Returns the numbers of the tables with many entries of the buffer in their key range.
fn find(inner: &Inner, drain: &Drain, one_in: u64) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for table in inner.version().tables() {
        let ((first_keyspace, first), (last_keyspace, last)) = (table.first(), table.last());
        let from = Target::first_of(first_keyspace, first);
        let to = Target {
            keyspace: last_keyspace,
            key: last,
            seq: 0,
        };
        let above = drain.count_between(&from, &to)?;
        let entries = table.meta.entries;
        if above > 0 && above >= entries / one_in {
            let bytes = table.meta.bytes / entries.max(1) * above.min(entries);
            found.push((bytes, table.number()));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, number)| number).collect())
}
