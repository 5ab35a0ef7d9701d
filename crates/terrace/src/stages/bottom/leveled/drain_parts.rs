//! A drain in parts: ranges of its keys that are merged with the first level at the same time, as
//! large compactions are (the parallel compaction of FlatLSM, section 4.4).
//!
//! The first step divides the keys; each part is a job, which any thread may run. A part merges
//! with the first level whatever has a key in its range, and not whole tables: a table that reaches
//! into two ranges is read by both parts, each up to the cut. The paper gives each part the tables
//! that overlap the keys that it drains (its algorithm 5); an entry of a table between the last of
//! these keys in one part and the first in the next would be in neither.
//!
//! The job that ends last completes the drain. If the disk refuses a part, all of them end without
//! a result, the last one puts the drain back, and the next one becomes a run of level 0: it knows
//! how to make space (drain_job.rs), and takes less at a time.
//!
//! Invariants
//!   P1  The ranges of the parts cover all keys and are disjoint, and no cut parts the versions of
//!       a key. Range deletes are clipped to each range.
//!   P2  The drain has an edit only if every part has merged its whole range, and if all parts
//!       together have passed as many entries as the tables have.
//!   P3  The tables of the first level are busy until the edit is applied, or no part is left.
//!
//! CRASH: one edit names the tables of all parts, and forgets the drained tables and those of the
//! first level. Before it, no edit names the new tables, and they are removed when the database is
//! opened; the drained tables are as they were.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Inner;
use super::column::Lower;
use super::drain_job::{self, Merge};
use super::output::Output;
use super::source::RunCursor;
use super::split;
use crate::error::{ErrorKind, Result};
use crate::parts::iter::MergeCursor;
use crate::parts::key::{KeyRange, Place};
use crate::parts::ranges::RangeDelete;
use crate::stages::{
    Completion, Drain, DrainParts, Job, JobKind, NewerVersions, PendingFree, Step,
};
use crate::types::SeqNo;

/// The way in which a drain is divided.
pub(super) struct Division {
    parts: DrainParts,
    /// The maximum number of parts.
    count: usize,
}

impl Division {
    /// Returns how to divide a drain, or `None` if it is to stay whole.
    pub(super) fn of(inner: &Inner, drain: &mut Drain, lower: &Lower) -> Option<Division> {
        // Parts give up on a full disk and put the drain back, which this one does not support.
        drain.put_back.as_ref()?;
        let bytes = drain.parts.as_ref()?.bytes;
        let bytes = bytes.saturating_add(lower.tables.bytes());
        let count = split::part_count(bytes, &inner.store.options);
        let parts = drain.parts.take().filter(|_| count > 1)?;
        Some(Division { parts, count })
    }
}

/// One drain: the state that its parts share.
struct Plan {
    inner: Arc<Inner>,
    lower: Lower,
    parts: DrainParts,
    /// The keys of the drain.
    keys: KeyRange,
    durable: SeqNo,
    /// The range deletes of the drain and of the tables that it is merged with.
    ranges: Vec<RangeDelete>,
    /// LOCK: held briefly.
    progress: Mutex<Progress>,
    /// Whether its parts end without a result.
    given_up: AtomicBool,
}

struct Progress {
    drain: Drain,
    /// The parts that have not merged their range.
    open: usize,
    /// The entries of the drain that the others have passed.
    passed: u64,
    written: Vec<Output>,
}

impl Plan {
    /// Begins a drain with its first entry, and divides its keys into ranges.
    fn begin(
        inner: &Arc<Inner>,
        mut drain: Drain,
        lower: Lower,
        division: Division,
    ) -> Result<(Plan, Vec<KeyRange>)> {
        drain.start()?;
        drain.pending_free.restart();
        let mut ranges = drain.range_deletes()?;
        ranges.extend(lower.ranges());
        let Division { parts, count } = division;
        let mut cuts = (parts.cuts)(count)?;
        let after = |place: &Place| drain.keys.from.as_ref().is_none_or(|from| place > from);
        cuts.retain(|place| after(place) && !drain.keys.ends_before(place.0, &place.1));
        debug_assert!(cuts.is_sorted_by(|a, b| a < b), "P1");
        let of_parts = split::between(cuts);
        let plan = Plan {
            inner: Arc::clone(inner),
            lower,
            parts,
            keys: drain.keys.clone(),
            durable: drain.durable,
            ranges,
            progress: Mutex::new(Progress {
                open: of_parts.len(),
                passed: 0,
                written: Vec::new(),
                drain,
            }),
            given_up: AtomicBool::new(false),
        };
        Ok((plan, of_parts))
    }

    /// Begins to merge a range.
    fn range(&self, keys: &KeyRange) -> Result<Range> {
        // Those of the drain may be fewer than those of the tables that it is merged with.
        let drained = KeyRange {
            from: keys.from.clone().or_else(|| self.keys.from.clone()),
            to: keys.to.clone().or_else(|| self.keys.to.clone()),
        };
        let newer = (self.parts.newer)();
        let mut above = (self.parts.open)();
        above.hold();
        above.seek(&drained.start())?;
        // As in `Drain::start`.
        above.release();
        let ranges = self.ranges.iter().filter_map(|range| range.within(keys));
        let output = drain_job::merged(
            &self.inner,
            &self.lower,
            self.durable,
            &self.keys,
            ranges.collect(),
        );
        Ok(Range {
            above,
            drained,
            newer,
            below: self.lower.cursor(keys)?,
            below_to: keys.to.clone(),
            output,
            passed: 0,
        })
    }

    /// Ends a drain that no job has a part of any more.
    fn end(self) -> Result<(Completion, Option<Drained>)> {
        let Progress {
            mut drain,
            open,
            passed,
            written,
        } = self.progress.into_inner();
        if self.given_up.into_inner() {
            // The next drain finds the space of what was written, and the tables.
            drop((written, self.lower));
            self.inner.busy.lock().merging_refused = true;
            drain_job::put_back(drain);
            return Ok((Completion::nothing(), None));
        }
        // Another part has failed, and the store with it.
        if open > 0 {
            return Ok((Completion::nothing(), None));
        }
        drain.finish_parts(passed)?;
        let (completion, pending_free) =
            drain_job::completion(&self.inner, drain, Some(&self.lower), written);
        Ok((completion, Some(Drained(self.lower, pending_free))))
    }
}

/// A range that is being merged.
struct Range {
    above: MergeCursor,
    /// The keys that are drained.
    drained: KeyRange,
    newer: Box<dyn NewerVersions>,
    below: RunCursor,
    below_to: Option<Place>,
    output: Output,
    /// The entries of the drain that were passed.
    passed: u64,
}

impl Range {
    /// Merges for one step. Returns whether everything is merged.
    fn merge_some(&mut self, plan: &Plan) -> Result<bool> {
        let mut merge = Merge {
            above: &mut self.above,
            keys: &self.drained,
            newer: Some(&*self.newer),
            below: Some(&mut self.below),
            below_to: self.below_to.as_ref(),
        };
        let (done, entries) = merge.step(&mut self.output)?;
        self.passed += entries;
        plan.progress.lock().drain.pending_free.pass(entries);
        Ok(done)
    }
}

/// The tables of the first level and the pending free of a drain that has ended: both are held
/// until the engine has carried out its end.
#[expect(dead_code, reason = "held")]
struct Drained(Lower, PendingFree);

/// A job of a drain: the whole drain until it is divided, then a part of it.
pub(super) struct DrainPart(State);

enum State {
    Begun(Arc<Inner>, Box<(Drain, Lower, Division)>),
    Part(Arc<Plan>, KeyRange, Option<Box<Range>>),
    /// `None` for a part that others outlast.
    Ended(Option<Drained>),
}

impl DrainPart {
    /// Creates the job of a whole drain.
    pub(super) fn begin(
        inner: &Arc<Inner>,
        drain: Drain,
        lower: Lower,
        division: Division,
    ) -> DrainPart {
        let begun = Box::new((drain, lower, division));
        DrainPart(State::Begun(Arc::clone(inner), begun))
    }

    /// Divides the drain: keeps the first range, and returns jobs for the others.
    fn split(&mut self, inner: &Arc<Inner>, begun: (Drain, Lower, Division)) -> Result<Step> {
        let (drain, lower, division) = begun;
        let (plan, mut ranges) = Plan::begin(inner, drain, lower, division)?;
        let plan = Arc::new(plan);
        let others = ranges.split_off(1);
        let part = |keys| State::Part(Arc::clone(&plan), keys, None);
        let jobs = others
            .into_iter()
            .map(|keys| -> Box<dyn Job> { Box::new(DrainPart(part(keys))) });
        let jobs: Vec<_> = jobs.collect();
        if let Some(keys) = ranges.pop() {
            self.0 = part(keys);
        }
        Ok(match jobs.is_empty() {
            true => Step::More,
            false => Step::Split(jobs),
        })
    }

    /// Merges for one step.
    fn merge_some(
        &mut self,
        plan: Arc<Plan>,
        keys: KeyRange,
        range: Option<Box<Range>>,
    ) -> Result<Step> {
        if plan.given_up.load(Ordering::Relaxed) {
            // Its files go before the drain is put back.
            drop(range);
        } else {
            let mut range = match range {
                Some(range) => range,
                None => Box::new(plan.range(&keys)?),
            };
            match range.merge_some(&plan) {
                Ok(false) => {
                    self.0 = State::Part(plan, keys, Some(range));
                    return Ok(Step::More);
                }
                Ok(true) => {
                    let mut progress = plan.progress.lock();
                    progress.open -= 1;
                    progress.passed += range.passed;
                    progress.written.push(range.output);
                }
                Err(e) if e.kind() == ErrorKind::Full => {
                    plan.given_up.store(true, Ordering::Relaxed);
                }
                Err(e) => return Err(e),
            }
        }
        // Only the last job to end holds the plan alone.
        let Some(plan) = Arc::into_inner(plan) else {
            return Ok(Step::Done(Completion::nothing()));
        };
        let (completion, drained) = plan.end()?;
        self.0 = State::Ended(drained);
        Ok(Step::Done(completion))
    }
}

impl Job for DrainPart {
    fn kind(&self) -> JobKind {
        JobKind::Drain
    }

    fn is_counted(&self) -> bool {
        !matches!(self.0, State::Ended(None))
    }

    fn step(&mut self) -> Result<Step> {
        match std::mem::replace(&mut self.0, State::Ended(None)) {
            State::Begun(inner, begun) => self.split(&inner, *begun),
            State::Part(plan, keys, range) => self.merge_some(plan, keys, range),
            State::Ended(_) => Ok(Step::Done(Completion::nothing())),
        }
    }
}
