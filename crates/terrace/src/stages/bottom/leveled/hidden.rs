//! This file rewrites tables without what newer tables of the buffer hide, where the disk has no room for a drain.
//!
//! Deletes come down behind the puts before them. If those have no room, the deletes that would make it never come down.
//! So a drain that was refused rewrites one table in place, without the entries that newer ones hide, and is given back:
//! the next drain finds the room, or rewrites the next table. Rewriting takes the room of one table, which the reserve
//! keeps, and gives back that of the table.
//!
//! Each table is looked at twice until something new has come into the buffer. It is rewritten if an eighth of its
//! entries is hidden, by a few that are looked up; and in a pool on media, if that makes no room for the drain, if a part
//! is hidden that is only just worth it.
//!
//! CRASH: what is left out here is hidden by a durable version above it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::above::{Above, WORTH_ONE_IN};
use super::compact::Rewriting;
use super::version::{Table, Version};
use super::{Body, Busy};
use crate::error::{Error, Result};
use crate::parts::key::Target;
use crate::stages::{Completion, Drain};
use crate::types::SeqNo;

/// The least that is worth rewriting a table for: as much is written this many times before it is given back.
const LEAST_ONE_IN: u64 = 32;

/// The tables that may have entries which the buffer hides.
#[derive(Default)]
pub(super) struct Candidates {
    /// The newest number in the buffer when they were found.
    seq: SeqNo,
    /// One entry in this many has to be hidden in one of them.
    one_in: u64,
    /// Their numbers, those with most entries of the buffer between their keys last.
    numbers: Vec<u64>,
    /// The newest number in the buffer when it was last asked whether there may be others.
    asked: SeqNo,
}

impl Candidates {
    /// Whether there may be one, since the buffer's newest number is `newest`.
    pub(super) fn is_due(&mut self, newest: SeqNo) -> bool {
        // BOUND: what the buffer has is asked for once.
        let is_new = std::mem::replace(&mut self.asked, newest) < newest;
        is_new || !self.numbers.is_empty()
    }

    /// Takes the next one that is live and that no job has.
    fn take(&mut self, version: &Version, busy: &HashSet<u64>) -> Option<Table> {
        let live: HashMap<u64, &Table> = version.tables().map(|t| (t.number(), t)).collect();
        self.numbers.retain(|number| live.contains_key(number));
        let at = self
            .numbers
            .iter()
            .rposition(|number| !busy.contains(number))?;
        let number = self.numbers.remove(at);
        live.get(&number).map(|&table| table.clone())
    }
}

/// Makes room for the drains after one that was refused.
pub(super) struct Hidden {
    body: Arc<Body>,
    rewriting: Option<Rewriting>,
    /// Why the drain was refused. `None`: the bottom takes none for now.
    why: Option<Error>,
}

/// The outcome of a step.
pub(super) enum Progress {
    More,
    /// A table was rewritten.
    Rewritten(Completion),
    /// No table is worth it, and the drain was refused with this error.
    Nothing(Option<Error>),
}

impl Hidden {
    /// Finds the tables that may have something to give back, unless the buffer has nothing new since that was done.
    pub(super) fn begin(body: &Arc<Body>, drain: &mut Drain, why: Option<Error>) -> Result<Hidden> {
        if let Some(newer) = &mut drain.newer {
            newer.look_again();
            let seq = newer.seq_max().max(drain.seq_last);
            let is_new = body.busy.lock().hidden.seq < seq;
            if is_new {
                let numbers = find(body, drain, WORTH_ONE_IN)?;
                let hidden = &mut body.busy.lock().hidden;
                (hidden.seq, hidden.one_in, hidden.numbers) = (seq, WORTH_ONE_IN, numbers);
            }
        }
        Ok(Hidden {
            body: Arc::clone(body),
            rewriting: None,
            why,
        })
    }

    /// Looks at a table, or writes one step's worth of it.
    pub(super) fn step(&mut self, drain: &Drain) -> Result<Progress> {
        if let Some(rewriting) = &mut self.rewriting {
            let rewritten = rewriting.step(drain)?;
            return Ok(rewritten.map_or(Progress::More, Progress::Rewritten));
        }
        let (mut busy, version) = self.body.choosing();
        let Busy {
            hidden, numbers, ..
        } = &mut *busy;
        let one_in = hidden.one_in;
        let Some(table) = hidden.take(&version, numbers) else {
            drop(busy);
            // In a pool in memory deletes are not refused meanwhile: their logs are on the reserve.
            let is_last_way = self.why.is_some() && self.body.ground.pool_outlives();
            return match is_last_way && one_in < LEAST_ONE_IN {
                true => self.look_for_less(drain),
                false => Ok(Progress::Nothing(self.why.take())),
            };
        };
        numbers.insert(table.number());
        drop(busy);
        let rewriting = Rewriting::begin(&self.body, &table)?;
        let mut above = Above::of(&version, (table.meta.level, table.meta.run));
        // Dropped, it gives the table back.
        self.rewriting = above
            .hides_much_of(&table, Some(drain), one_in)?
            .then_some(rewriting);
        Ok(Progress::More)
    }

    /// Finds the tables that are only just worth it, since others have made no room for the drain.
    fn look_for_less(&self, drain: &Drain) -> Result<Progress> {
        let numbers = find(&self.body, drain, LEAST_ONE_IN)?;
        let hidden = &mut self.body.busy.lock().hidden;
        (hidden.one_in, hidden.numbers) = (LEAST_ONE_IN, numbers);
        Ok(Progress::More)
    }

    /// Gives up the table that is being rewritten, since the disk has refused it, for another one.
    pub(super) fn pass_over(&mut self, why: Error) {
        self.rewriting = None;
        self.why = Some(why);
    }
}

/// Returns the numbers of the tables between whose keys the buffer has many entries.
fn find(body: &Body, drain: &Drain, one_in: u64) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for table in body.version().tables() {
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
