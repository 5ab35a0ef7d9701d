//! The drain on one thread: a sorted stream becomes a run of level 0, or is merged with tables of
//! the first level. Large ones of the second kind are divided (drain_parts.rs).
//!
//! CRASH: tables that no edit names are removed when the database is opened; the drain restarts.

use std::sync::Arc;

use super::Inner;
use super::column::{Lower, Merging};
use super::hidden::{Hidden, Progress};
use super::output::Output;
use super::source::RunCursor;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Workers;
use crate::parts::iter::{Cursor as _, EntryView, MergeCursor};
use crate::parts::key::{KeyRange, Place};
use crate::parts::manifest::Change;
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::ranges::{Applicable, RangeDelete};
use crate::parts::sstable::TABLE_FILE;
use crate::stages::{
    Completion, Drain, Job, JobCounter, JobKind, NewerVersions, PendingFree, Step, retired,
};
use crate::types::{SeqNo, key_hash};

/// After this many tries on a full disk a job returns its sources, so that the next one is chosen
/// by the state at that time. Not less than the number of refusals that the engine counts before it
/// refuses waiting callers.
const REFUSED_MAX: u32 = 2;

/// The entries and bytes of one step.
const STEP_ENTRIES: u32 = 1024;
const STEP_BYTES: usize = 1 << 20;

/// One drain.
pub(super) struct DrainJob {
    inner: Arc<Inner>,
    drain: Option<Drain>,
    run: u64,
    /// The tables of the first level that it is merged with, and the place in them.
    lower: Option<Lower>,
    below: Option<RunCursor>,
    /// `None` until all entries are in place: the snapshots are read only then.
    output: Option<Output>,
    /// The pending free of the drain, once its entries are written. It ends with the job, when the
    /// pool gets its space back.
    pending_free: PendingFree,
    finished: bool,
    /// The number of times that the disk had no space for it.
    refused: u32,
    /// The rewriting of a table that makes space for later drains; this one is put back.
    hidden: Option<Hidden>,
    /// Whether the bottom accepts no drain for now, so that this one only makes space.
    waits: bool,
    /// Whether the entries come from a buffer. Otherwise this is the flush of a memtable.
    has_buffer: bool,
}

impl DrainJob {
    /// Creates the job. `waits`: the bottom accepts no drain for now, so this one makes space and
    /// is put back.
    pub(super) fn begin(
        inner: &Arc<Inner>,
        drain: Drain,
        lower: Option<Lower>,
        waits: bool,
    ) -> DrainJob {
        // Runs of level 0 are ordered by these numbers; drains come one after the other.
        let run = inner.shared.next_id();
        DrainJob {
            inner: Arc::clone(inner),
            has_buffer: drain.newer.is_some(),
            drain: Some(drain),
            run,
            lower,
            below: None,
            output: None,
            pending_free: PendingFree::default(),
            finished: false,
            refused: 0,
            hidden: None,
            waits,
        }
    }

    /// Writes for one step. Returns true when the stream is exhausted and its last table closed.
    fn write_some(&mut self, drain: &mut Drain) -> Result<bool> {
        let mut ranges = Vec::new();
        if self.output.is_none() {
            drain.start()?;
            drain.pending_free.restart();
            ranges = drain.range_deletes()?;
            if let Some(lower) = &self.lower {
                self.below = Some(lower.cursor(&KeyRange::default())?);
                ranges.extend(lower.ranges());
            }
        }
        // The snapshots are read now and not earlier, so that they include one taken just before a
        // recent write.
        let begin = || match &self.lower {
            Some(lower) => merged(&self.inner, lower, drain.durable, &drain.keys, ranges),
            None => {
                let hides = hides(&self.inner, drain.durable);
                let mut output = Output::new(&self.inner, (0, self.run), ranges, hides);
                if self.inner.shared.pool_outlives() {
                    output.lend_to_deletes();
                }
                output
            }
        };
        let output = self.output.get_or_insert_with(begin);
        let mut merge = Merge {
            above: &mut drain.cursor,
            keys: &drain.keys,
            newer: drain.newer.as_deref(),
            below: self.below.as_mut(),
            below_to: None,
        };
        let (done, entries) = merge.step(output)?;
        drain.count.passed += entries;
        if done {
            drain.finish()?;
        }
        drain.pending_free.pass(entries);
        Ok(done)
    }

    /// Returns the number of tries after which the job returns its sources.
    fn tries(&self) -> u32 {
        match self.inner.shared.options.background.workers {
            // Without threads each try is another call.
            Workers::Manual => 1,
            _ => REFUSED_MAX,
        }
    }

    /// Leaves the first level to compactions, if the disk has refused a merge with all of it. They
    /// can make space, and the drain becomes a run of level 0.
    fn join_level0(&mut self) {
        if let Some(Merging::Whole) = self.inner.merging {
            self.below = None;
            let lower = self.lower.take();
            self.inner.busy.lock().merging_refused |= lower.is_some();
        }
    }

    fn refuse(&mut self, why: Error) -> Step {
        self.refused += 1;
        Step::Retry(why)
    }

    /// Makes space by rewriting a table. Then the drain is put back, and the next one finds the
    /// space.
    fn make_room(&mut self, mut hidden: Hidden, drain: Drain) -> Result<Step> {
        let progress = match hidden.step(&drain) {
            Err(e) if e.kind() == ErrorKind::Full => {
                hidden.pass_over(e);
                Progress::More
            }
            progress => progress?,
        };
        match progress {
            Progress::Rewritten(completion) => {
                // The table is busy until the job has ended.
                self.hidden = Some(hidden);
                Ok(give_back(drain, completion))
            }
            Progress::Nothing(None) => Ok(give_back(drain, Completion::nothing())),
            Progress::Nothing(Some(why)) => {
                self.drain = Some(drain);
                Ok(self.refuse(why))
            }
            Progress::More => {
                (self.hidden, self.drain) = (Some(hidden), Some(drain));
                Ok(Step::More)
            }
        }
    }
}

/// Returns the range deletes that may hide entries of a drain. `durable` is the last sequence
/// number up to which the range deletes of the buffer are durable.
fn hides(inner: &Inner, durable: SeqNo) -> Vec<Applicable> {
    let live = &inner.shared.ranges;
    let durable = durable.max(live.durable());
    let hides = live.applicable(durable, inner.version().ranges.clone());
    hides.into_iter().collect()
}

/// Creates the output of a drain that is merged with the first level. `ranges` are the range
/// deletes of both. No table reaches over the ends of a column's keys.
pub(super) fn merged(
    inner: &Arc<Inner>,
    lower: &Lower,
    durable: SeqNo,
    keys: &KeyRange,
    ranges: Vec<RangeDelete>,
) -> Output {
    let mut output = Output::new(inner, (lower.level, 0), ranges, hides(inner, durable));
    let replaces_logs = !inner.shared.pool_outlives();
    if let Some(Merging::Whole) = inner.merging {
        // The reserve could hold neither the level nor what the drain adds to it.
        if !replaces_logs {
            output.end_loan();
        }
        return output;
    }
    if !replaces_logs {
        output.write_values_beside_reserve();
    }
    let cuts = [&keys.from, &keys.to].into_iter().flatten();
    output.cut_at(&cuts.cloned().collect())
}

/// The merge of the entries of a drain with those below.
pub(super) struct Merge<'a> {
    /// The entries of the drain.
    pub(super) above: &'a mut MergeCursor,
    /// The keys that are drained.
    pub(super) keys: &'a KeyRange,
    pub(super) newer: Option<&'a dyn NewerVersions>,
    pub(super) below: Option<&'a mut RunCursor>,
    /// The exclusive end of the entries below.
    pub(super) below_to: Option<&'a Place>,
}

impl Merge<'_> {
    /// Merges for one step. Returns whether everything is merged and the last table closed, and how
    /// many entries of the drain were passed. The range deletes follow all other entries, and are
    /// written with the tables.
    pub(super) fn step(&mut self, output: &mut Output) -> Result<(bool, u64)> {
        let (mut entries, mut bytes, mut steps) = (0, 0, 0);
        loop {
            let above = self.above.entry()?.filter(|entry| {
                entry.keyspace < RANGE_DELETE_BIT
                    && !self.keys.ends_before(entry.keyspace, entry.key)
            });
            let below = match &self.below {
                Some(below) => below.entry()?,
                None => None,
            };
            let is_left = |entry: &EntryView<'_>| {
                let to = self.below_to.map(|(keyspace, key)| (*keyspace, &key[..]));
                to.is_none_or(|to| (entry.keyspace, entry.key) < to)
            };
            let below = below.filter(is_left);
            let is_below = match (&above, &below) {
                (Some(above), Some(below)) => follows(above, below),
                (above, _) => above.is_none(),
            };
            let Some(entry) = (if is_below { below } else { above }) else {
                output.close_table(None)?;
                return Ok((true, entries));
            };
            if !output.same_key(&entry) {
                if let Some((keyspace, key)) = output.cut_before(&entry) {
                    output.close_table(Some((keyspace, &key)))?;
                    return Ok((false, entries));
                }
                if output.is_full() {
                    output.close_table(Some((entry.keyspace, entry.key)))?;
                    return Ok((false, entries));
                }
                if steps >= STEP_ENTRIES || bytes >= STEP_BYTES {
                    return Ok((false, entries));
                }
            }
            steps += 1;
            if is_below {
                if let Some(below) = &self.below {
                    bytes += output.offer(&entry, below.stored()?)?;
                }
                if let Some(below) = &mut self.below {
                    below.advance()?;
                }
                continue;
            }
            // A version that a newer table hides would be written only to be dropped.
            let newer = match self.newer {
                Some(newer) => {
                    let hash = key_hash(entry.keyspace, entry.key);
                    newer.newest(entry.keyspace, entry.key, hash)?
                }
                None => None,
            };
            if !output.is_superseded(newer, entry.seq) {
                bytes += output.offer(&entry, self.above.stored()?)?;
            }
            entries += 1;
            self.above.advance()?;
        }
    }
}

/// Returns whether an entry of a drain comes after one of the tables below it.
fn follows(above: &EntryView<'_>, below: &EntryView<'_>) -> bool {
    // Versions of one key are newer above.
    (below.keyspace, below.key) < (above.keyspace, above.key)
}

/// Returns the end of a drain: one edit with its entries in files, and without its tables and those
/// that it was merged with.
pub(super) fn completion(
    inner: &Arc<Inner>,
    drain: Drain,
    lower: Option<&Lower>,
    outputs: impl IntoIterator<Item = Output>,
) -> (Completion, PendingFree) {
    let removed = lower.map(Lower::numbers).unwrap_or_default();
    let (mut entries, mut edit) = (0, drain.edit);
    let (mut tables, mut values) = (Vec::new(), Vec::new());
    for mut output in outputs {
        entries += output.entries();
        let written = output.finish();
        tables.extend(written.tables);
        values.extend(written.values);
        edit.changes.extend(written.changes);
    }
    edit.changes
        .extend(removed.iter().map(|&id| Change::Removed {
            owner: &TABLE_FILE,
            id,
        }));
    // The entries of the logs are in named files from this edit on.
    edit.changes.extend(retired(&drain.logs));
    let settled = drain.settles.then_some(drain.seq_last);
    let (inner, forget) = (Arc::clone(inner), drain.forget);
    let completion = Completion {
        edit,
        apply: Box::new(move || {
            inner.install(&removed, &tables, &values);
            forget();
            inner.busy.lock().merging_refused = false;
            // Not before the entries that they cover are forgotten above.
            let shared = &inner.shared;
            if let Some(seq) = settled {
                shared.ranges.trim(seq, &shared.readable());
            }
        }),
        garbage: Vec::new(),
        entries,
    };
    (completion, drain.pending_free)
}

/// A drain that another job leaves no table for. It is put back.
pub(super) struct PutBack(pub(super) Option<Drain>);

impl Job for PutBack {
    fn kind(&self) -> JobKind {
        JobKind::Drain
    }

    fn step(&mut self) -> Result<Step> {
        Ok(match self.0.take() {
            Some(drain) => give_back(drain, Completion::nothing()),
            None => Step::Done(Completion::nothing()),
        })
    }
}

/// Ends the job and puts its drain back.
fn give_back(drain: Drain, completion: Completion) -> Step {
    put_back(drain);
    Step::Done(completion)
}

/// Puts a drain back. A smaller one may fit, or newer tables may hide more of it by then.
pub(super) fn put_back(mut drain: Drain) {
    let put_back = drain.put_back.take();
    drop(drain);
    put_back.into_iter().for_each(|put_back| put_back());
}

impl Job for DrainJob {
    fn kind(&self) -> JobKind {
        JobKind::Drain
    }

    fn counted_as(&self) -> JobCounter {
        match self.has_buffer {
            true => JobCounter::Drain,
            false => JobCounter::Flush,
        }
    }

    fn keeps_to_rate(&self) -> bool {
        self.has_buffer
    }

    fn step(&mut self) -> Result<Step> {
        let Some(mut drain) = self.drain.take() else {
            return Ok(Step::More);
        };
        if self.refused >= self.tries() && drain.put_back.is_some() {
            return Ok(give_back(drain, Completion::nothing()));
        }
        if std::mem::take(&mut self.waits) {
            self.hidden = Some(Hidden::begin(&self.inner, &mut drain, None)?);
        }
        if let Some(hidden) = self.hidden.take() {
            return self.make_room(hidden, drain);
        }
        let written = if self.finished {
            Ok(true)
        } else {
            self.write_some(&mut drain)
        };
        match written {
            Ok(false) => {
                self.drain = Some(drain);
                return Ok(Step::More);
            }
            Ok(true) => self.finished = true,
            Err(e) if e.kind() == ErrorKind::Full => {
                // Nothing is lost: the source stays until this has succeeded.
                self.output = None;
                self.join_level0();
                self.inner.rewrites_covered()?;
                if drain.put_back.is_none() {
                    self.inner.rewrites_hidden()?;
                    self.drain = Some(drain);
                    return Ok(self.refuse(e));
                }
                // The refusal is reported to callers only if no table can be rewritten for space.
                self.hidden = Some(Hidden::begin(&self.inner, &mut drain, Some(e))?);
                self.drain = Some(drain);
                return Ok(Step::More);
            }
            Err(e) => return Err(e),
        }
        let outputs = self.output.take();
        let (completion, pending_free) =
            completion(&self.inner, drain, self.lower.as_ref(), outputs);
        self.pending_free = pending_free;
        Ok(Step::Done(completion))
    }
}
