//! Compaction: tables of one level are merged with the tables below that they overlap, and the
//! result replaces both on the level below.
//!
//! A table that overlaps nothing is moved by an edit alone. A merge keeps only the versions that a
//! snapshot can read, and drops a tombstone when nothing below depends on it.
//!
//! A large compaction is split by key range into jobs that may run concurrently. The last one to
//! end hands over the output of all of them, so readers and the manifest see one compaction.
//!
//! CRASH: one edit names the result and forgets the inputs. Before it, no edit names the new
//! tables, and they are removed when the database is opened.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::above::Above;
use super::compaction::Compaction;
use super::output::Output;
use super::source::RunCursor;
use super::split;
use super::version::Table;
use super::{Inner, Version};
use crate::error::{ErrorKind, Result};
use crate::parts::iter::{Cursor, MergeCursor};
use crate::parts::key::KeyRange;
use crate::parts::manifest::item::Item;
use crate::parts::manifest::{Change, Edit};
use crate::parts::sstable::TABLE_FILE;
use crate::stages::{Completion, Drain, Job, JobKind, Step};
use crate::types::{SeqNo, key_hash};

/// The entries and bytes of one step.
const STEP_ENTRIES: u32 = 1024;
const STEP_BYTES: usize = 1 << 20;

/// One compaction: the state that its parts share.
struct Plan {
    inner: Arc<Inner>,
    compaction: Compaction,
    /// LOCK: held briefly.
    parts: Mutex<Subcompactions>,
    /// Whether its jobs end without a result.
    given_up: AtomicBool,
}

#[derive(Default)]
struct Subcompactions {
    /// Jobs that have not ended.
    open: usize,
    /// Ranges that are written, and their tables.
    written: Vec<(KeyRange, Output)>,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // A cancelled job frees its tables; one that has ended has no live tables left.
        let mut busy = self.inner.busy.lock();
        for table in self.compaction.tables() {
            busy.numbers.remove(&table.number());
        }
        if self.compaction.joins {
            busy.joined = None;
        }
    }
}

impl Plan {
    fn new(inner: &Arc<Inner>, compaction: Compaction) -> Plan {
        Plan {
            inner: Arc::clone(inner),
            compaction,
            parts: Mutex::new(Subcompactions {
                open: 1,
                written: Vec::new(),
            }),
            given_up: AtomicBool::new(false),
        }
    }

    /// Returns whether the tables can change their level without being rewritten.
    fn moves(&self) -> bool {
        let [run] = self.compaction.upper.as_slice() else {
            return false;
        };
        // A file stays in its directory.
        let store = &self.inner.store;
        let from = run.tables.first().map_or(0, |table| table.meta.level);
        if self.compaction.rewrites || store.dir(from) != store.dir(self.compaction.to as u32) {
            return false;
        }
        // Tables that go to the last level are rewritten, so that unreadable entries go.
        let last = self.compaction.to == self.inner.version().levels.len();
        let stale = run.tables.iter().any(Table::may_have_unreadable);
        self.compaction.lower.tables.is_empty() && !(last && stale)
    }

    fn move_down(&self) -> Completion {
        let to = self.compaction.to as u32;
        let tables: Vec<Table> = self.compaction.tables().map(|t| t.moved_to(to)).collect();
        let numbers: Vec<u64> = tables.iter().map(Table::number).collect();
        let moved = tables
            .iter()
            .map(|t| -> Arc<dyn Item> { Arc::clone(&t.meta) as _ });
        let edit = Edit {
            changes: moved.map(Change::Changed).collect(),
        };
        let inner = Arc::clone(&self.inner);
        Completion {
            edit,
            apply: Box::new(move || inner.install(&numbers, &tables, &[])),
            garbage: Vec::new(),
            entries: 0,
        }
    }

    /// Returns the number of parts that justify one partly filled file each.
    fn part_count(&self) -> usize {
        split::part_count(self.compaction.bytes(), &self.inner.store.options)
    }

    fn cursor(&self, keys: &KeyRange) -> Result<MergeCursor> {
        let runs = self.compaction.upper.iter().chain([&self.compaction.lower]);
        let ahead = self.inner.shared.memory.limits.job_ahead_bytes;
        let cursors = runs.map(|run| {
            let cursor = RunCursor::new(Arc::clone(run), false).read_ahead(ahead);
            Box::new(cursor) as Box<dyn Cursor>
        });
        let mut cursor = MergeCursor::new(cursors.collect());
        cursor.seek(&keys.start())?;
        Ok(cursor)
    }

    fn output(&self, keys: &KeyRange) -> Output {
        let all = self
            .compaction
            .tables()
            .flat_map(|table| table.ranges.iter());
        let ranges = all.filter_map(|range| range.within(keys)).collect();
        let hides = self.inner.lasting_ranges(&self.inner.version());
        let to = (self.compaction.to as u32, self.compaction.run);
        let output = Output::new(&self.inner, to, ranges, hides).cut_at(&self.compaction.cuts);
        match &self.compaction.leaving {
            Some(leaving) => output.moving(leaving),
            None => output,
        }
    }

    fn range(&self, keys: &KeyRange) -> Result<Range> {
        let above = self.compaction.leaves_hidden.then(|| {
            let place = (self.compaction.to as u32, self.compaction.run);
            Above::of(&self.inner.version(), place)
        });
        let mut range = Range {
            cursor: self.cursor(keys)?,
            output: self.output(keys),
            keys: keys.clone(),
            above,
        };
        if let (Some(above), Some(first)) = (&mut range.above, range.cursor.entry()?) {
            above.seek((first.keyspace, first.key))?;
        }
        Ok(range)
    }

    /// Returns the completion of the compaction, with the output of all parts.
    fn complete(&self, written: impl IntoIterator<Item = (KeyRange, Output)>) -> Completion {
        let removed: Vec<u64> = self.compaction.tables().map(Table::number).collect();
        let mut entries = 0;
        let (mut tables, mut values, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        for (_, mut output) in written {
            entries += output.entries();
            let written = output.finish();
            tables.extend(written.tables);
            values.extend(written.values);
            changes.extend(written.changes);
        }
        changes.extend(removed.iter().map(|&id| Change::Removed {
            owner: &TABLE_FILE,
            id,
        }));
        let (inner, rewrites) = (Arc::clone(&self.inner), self.compaction.rewrites);
        Completion {
            edit: Edit { changes },
            apply: Box::new(move || {
                inner.install(&removed, &tables, &values);
                if !rewrites {
                    inner.busy.lock().narrow.widen();
                }
            }),
            garbage: Vec::new(),
            entries,
        }
    }
}

/// A job of a compaction: the whole compaction or a part of it.
pub(super) struct Compact {
    plan: Arc<Plan>,
    /// Ranges that are still to be merged.
    left: Vec<KeyRange>,
    current: Option<Range>,
    /// Whether the job's ranges are known.
    begun: bool,
    /// The number of times that the disk had no space for it, and the state at the first time.
    refused: (u32, (Weak<Version>, SeqNo)),
}

/// A range that is being merged.
struct Range {
    keys: KeyRange,
    cursor: MergeCursor,
    output: Output,
    /// The runs above, if a table is rewritten without the entries that they hide.
    above: Option<Above>,
}

impl Range {
    /// Merges for one step, without the entries that newer ones above hide. Returns true when
    /// everything is merged and the last table closed.
    fn merge_some(&mut self, drain: Option<&Drain>) -> Result<bool> {
        let (mut entries, mut bytes) = (0, 0);
        loop {
            let entry = self.cursor.entry()?;
            let Some(entry) =
                entry.filter(|entry| !self.keys.ends_before(entry.keyspace, entry.key))
            else {
                self.output.close_table(None)?;
                return Ok(true);
            };
            if !self.output.same_key(&entry) {
                if let Some((keyspace, key)) = self.output.cut_before(&entry) {
                    self.output.close_table(Some((keyspace, &key)))?;
                    return Ok(false);
                }
                if self.output.is_full() {
                    let next = (entry.keyspace, entry.key);
                    self.output.close_table(Some(next))?;
                    return Ok(false);
                }
                if entries >= STEP_ENTRIES || bytes >= STEP_BYTES {
                    return Ok(false);
                }
            }
            let mut newer = None;
            if let Some(drain) = drain {
                let hash = key_hash(entry.keyspace, entry.key);
                newer = drain.newest_of_all(entry.keyspace, entry.key, hash)?;
            }
            if let (None, Some(above)) = (newer, &mut self.above) {
                newer = above.newest((entry.keyspace, entry.key))?;
            }
            if !self.output.is_superseded(newer, entry.seq) {
                bytes += self.output.offer(&entry, self.cursor.stored()?)?;
            }
            entries += 1;
            self.cursor.advance()?;
        }
    }
}

/// The rewriting of one table in place, as part of another job. Dropping it frees its table.
pub(super) struct Rewriting {
    plan: Plan,
    range: Option<Range>,
}

impl Rewriting {
    /// Begins with a table that is marked busy.
    pub(super) fn begin(inner: &Arc<Inner>, table: &Table) -> Result<Rewriting> {
        let plan = Plan::new(inner, Compaction::rewriting(table).for_room(Arc::default()));
        let range = Some(plan.range(&KeyRange::default())?);
        Ok(Rewriting { plan, range })
    }

    /// Writes for one step, without the entries that a drain, newer tables of the buffer, or tables
    /// above hide. Returns the change of tables once everything is written.
    pub(super) fn step(&mut self, drain: &Drain) -> Result<Option<Completion>> {
        if let Some(range) = &mut self.range
            && !range.merge_some(Some(drain))?
        {
            return Ok(None);
        }
        let written = self.range.take().map(|range| (range.keys, range.output));
        Ok(Some(self.plan.complete(written)))
    }
}

impl Compact {
    pub(super) fn begin(inner: &Arc<Inner>, compaction: Compaction) -> Compact {
        Compact {
            plan: Arc::new(Plan::new(inner, compaction)),
            left: Vec::new(),
            current: None,
            begun: false,
            refused: Default::default(),
        }
    }

    /// Creates a job for one more range.
    fn part(&self, keys: KeyRange) -> Box<dyn Job> {
        Box::new(Compact {
            plan: Arc::clone(&self.plan),
            left: vec![keys],
            current: None,
            begun: true,
            refused: Default::default(),
        })
    }

    /// Determines the ranges: keeps the first, and returns jobs for the others.
    fn split(&mut self) -> Result<Vec<Box<dyn Job>>> {
        let mut ranges = match self.plan.part_count() {
            1 => vec![KeyRange::default()],
            parts => split::ranges(&self.plan.compaction, parts)?,
        };
        let others = ranges.split_off(1);
        self.left = ranges;
        self.plan.parts.lock().open += others.len();
        Ok(others.into_iter().map(|keys| self.part(keys)).collect())
    }

    /// Merges for one step. Returns true when the job has no range left.
    fn merge_some(&mut self) -> Result<bool> {
        if self.current.is_none() {
            let Some(keys) = self.left.last() else {
                return Ok(true);
            };
            self.current = Some(self.plan.range(keys)?);
            self.left.pop();
        }
        if let Some(range) = &mut self.current
            && !range.merge_some(None)?
        {
            return Ok(false);
        }
        if let Some(range) = self.current.take() {
            let written = (range.keys, range.output);
            self.plan.parts.lock().written.push(written);
        }
        Ok(self.left.is_empty())
    }

    /// Returns the bytes of tables written by this job and by the ended jobs of the same
    /// compaction.
    fn written_bytes(&self) -> u64 {
        let parts = self.plan.parts.lock();
        let ended = parts.written.iter().map(|(_, output)| output.bytes());
        let current = self
            .current
            .as_ref()
            .map_or(0, |range| range.output.bytes());
        current + ended.sum::<u64>()
    }

    /// Restarts this job and all ranges that are written: a full disk gets back all of its space
    /// until the compaction can go on. The written ranges become ranges of this job, since their
    /// jobs have ended.
    fn give_room_back(&mut self) {
        let aborted = self.current.take().map(|range| range.keys);
        let written = std::mem::take(&mut self.plan.parts.lock().written);
        self.left.extend(aborted);
        self.left.extend(written.into_iter().map(|(keys, _)| keys));
    }
}

impl Compact {
    /// Returns the state on which the choice of a compaction depends: the tables, and the number up
    /// to which range deletes above them are durable.
    fn seen(&self) -> (Weak<Version>, SeqNo) {
        let inner = &self.plan.inner;
        (
            Arc::downgrade(&inner.version()),
            inner.shared.ranges.durable(),
        )
    }

    /// Returns whether the job ends here, since another one may fit the disk: the tables have
    /// changed, or there are range deletes that cover some of these, which cannot be dropped while
    /// they are busy, or other value files would leave now, as on a full disk one at a time does.
    fn gives_up(&self) -> bool {
        let (count, (version, durable)) = &self.refused;
        if *count > 0 {
            let now = self.seen();
            let others_leave = || {
                let leaving = self.plan.compaction.leaving.as_ref();
                leaving.is_some_and(|leaving| *leaving != self.plan.inner.leaving_if_due())
            };
            if !Weak::ptr_eq(version, &now.0) || *durable != now.1 || others_leave() {
                self.plan.given_up.store(true, Ordering::Relaxed);
            }
        }
        self.plan.given_up.load(Ordering::Relaxed)
    }
}

impl Job for Compact {
    fn kind(&self) -> JobKind {
        JobKind::Compact
    }

    fn needs_as_much(&self) -> bool {
        !self.gives_up()
    }

    fn step(&mut self) -> Result<Step> {
        if self.gives_up() {
            return Ok(Step::Done(Completion::nothing()));
        }
        if !self.begun {
            if self.plan.moves() {
                return Ok(Step::Done(self.plan.move_down()));
            }
            let parts = self.split()?;
            self.begun = true;
            return Ok(match parts.is_empty() {
                true => Step::More,
                false => Step::Split(parts),
            });
        }
        match self.merge_some() {
            Ok(false) => return Ok(Step::More),
            Ok(true) => {}
            Err(e) if e.kind() == ErrorKind::Full => {
                let written = self.written_bytes();
                self.give_room_back();
                if self.refused.0 == 0 {
                    if self.plan.inner.narrow(&self.plan.compaction, written)? {
                        self.plan.given_up.store(true, Ordering::Relaxed);
                        return Ok(Step::Done(Completion::nothing()));
                    }
                    self.refused.1 = self.seen();
                }
                self.refused.0 += 1;
                return Ok(Step::Retry(e));
            }
            Err(e) => return Err(e),
        }
        let mut parts = self.plan.parts.lock();
        parts.open -= 1;
        if parts.open > 0 {
            return Ok(Step::Done(Completion::nothing()));
        }
        let written = std::mem::take(&mut parts.written);
        drop(parts);
        Ok(Step::Done(self.plan.complete(written)))
    }
}
