//! The output of drains and compactions: a sorted stream of entries becomes tables.
//!
//! Versions that no reader can see are left out, and so are tombstones if nothing is left below
//! that they could hide. Tables are cut between keys, so that one table of a run has all versions
//! of a key. Long values go to value files, if the options ask for it.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_media::FileSystem;

use super::garbage::Sampler;
use super::value_file::{ValueHandle, ValueSpace};
use super::version::{Table, Version};
use super::{Inner, TableStore};
use crate::canary::failpoint;
use crate::error::Result;
use crate::parts::expiry::{Millis, Value};
use crate::parts::iter::{EntryView, Stored};
use crate::parts::key::Place;
use crate::parts::manifest::Change;
use crate::parts::memory::Lease;
use crate::parts::ranges::{Applicable, Fragments, Keep, RangeDelete, Readable, fragment};
use crate::parts::reserve::Row;
use crate::parts::retain::{Kept, Retention};
use crate::parts::sstable::FileMeta;
use crate::parts::sstable::{self, Finished, NewEntry, SstWriter};
use crate::parts::values::{NewValue, Pointer, ValueWriter};
use crate::types::{EntryKind, SeqNo};

/// The tables of the level below that one new table may overlap, in table sizes: the maximum cost
/// of compacting it later.
const OVERLAP_MAX: u64 = 12;

/// The unit in which a writer's memory is counted.
const COUNTED_BYTES: u64 = 64 << 10;

/// How a table stores a value.
#[derive(Clone, Copy)]
enum Placed {
    /// With its key.
    Inline,
    /// In a value file, and the bytes that were written there now.
    Apart(Pointer, usize),
}

/// The files that an output has written.
#[derive(Default)]
pub(super) struct Written {
    pub(super) tables: Vec<Table>,
    pub(super) values: Vec<Arc<ValueHandle>>,
    pub(super) changes: Vec<Change>,
}

/// Tables being written.
pub(super) struct Output {
    inner: Arc<Inner>,
    level: u32,
    run: u64,
    /// The tables below the table being written, as they were at its first key. Nothing but the
    /// job itself adds data there, so this stays correct about the entries that a tombstone may
    /// hide. Dropped with each table that is closed: it keeps the files of tables that are gone
    /// since, and a job would keep as much as all compactions beside it rewrite.
    older: OnceCell<Version>,
    retention: Retention,
    /// Fragments of the range deletes that are still needed, to be written with the tables that
    /// they are over.
    ranges: Vec<RangeDelete>,
    /// The keys, ascending, before which a new table begins.
    cuts: Arc<[Place]>,
    /// The exclusive end of the last closed table.
    cut: Option<(u32, Vec<u8>)>,
    /// The file system for tables. On a full disk it uses the space that is reserved for them,
    /// until `loan_ends`.
    fs: Arc<dyn FileSystem>,
    loan_ends: Arc<AtomicBool>,
    /// Whether the loan ends with the first value: naming the tables frees nothing.
    lends_to_deletes: bool,
    /// Whether value files use the space that is reserved for tables.
    lends_to_values: bool,
    writer: Option<SstWriter>,
    done: Vec<(FileMeta, Vec<RangeDelete>)>,
    /// The value file being written, and those written.
    values: Option<ValueWriter>,
    values_done: Vec<Arc<ValueHandle>>,
    /// The bytes of the records that the table being written points to, by file.
    points_to: BTreeMap<u64, u64>,
    /// The value files whose values are copied, and the last one that was.
    leaving: BTreeSet<u64>,
    moved: Vec<u8>,
    /// The key of the last entry offered, and the sequence number of its last version kept.
    keyspace: u32,
    key: Vec<u8>,
    kept: Option<SeqNo>,
    any: bool,
    entries: u64,
    sampler: Sampler,
    /// Bytes of the table being written that the rate limiter has counted.
    charged: u64,
    /// The writer's share of the memory.
    lease: Lease,
    /// Whether the files no longer belong to this output.
    is_left: bool,
}

impl Output {
    /// Creates the output of tables for `level`, and for level 0 of the run `run`. `ranges` are the
    /// range deletes among the entries, `hides` those that may hide entries.
    pub(super) fn new(
        inner: &Arc<Inner>,
        (level, run): (u32, u64),
        ranges: Vec<RangeDelete>,
        mut hides: Vec<Applicable>,
    ) -> Output {
        let stripes = inner.shared.snapshots.stripes();
        let readable = Readable::after(stripes.clone());
        // All range deletes that come with the entries. One with nothing below is not written, so
        // it must hide the entries that it covers here. `hides` may lack it: a set keeps the newest
        // over each piece of the key space, and a newer one that is not durable yet is not applied.
        let own = Fragments::new(ranges.clone(), Keep::Readable(&readable));
        if own.len() > 0 {
            hides.push(Applicable::lasting(Arc::new(own)));
        }
        let row = match level {
            0 => Row::Drains,
            _ => Row::Tables,
        };
        let lender = inner.shared.reserve.lender(&inner.store.fs, row);
        let older = inner.version().below((level, run));
        let mut output = Output {
            retention: Retention {
                stripes,
                dropped: inner.shared.dropped.all(),
                ranges: hides,
                horizon: inner.shared.horizon(),
            },
            ranges: Vec::new(),
            cuts: Arc::default(),
            cut: None,
            loan_ends: lender.end(),
            fs: Arc::new(lender),
            lends_to_deletes: false,
            lends_to_values: true,
            level,
            run,
            sampler: Sampler::above(&older, inner.store.options.open_files_max),
            older: OnceCell::from(older),
            writer: None,
            done: Vec::new(),
            values: None,
            values_done: Vec::new(),
            points_to: BTreeMap::new(),
            leaving: inner.leaving(&inner.version()),
            moved: Vec::new(),
            keyspace: 0,
            key: Vec::new(),
            kept: None,
            any: false,
            entries: 0,
            charged: 0,
            lease: inner.shared.memory.jobs.lease(),
            is_left: false,
            inner: Arc::clone(inner),
        };
        output.ranges = output.needed(ranges);
        output
    }

    /// Returns the fragments of range deletes that hide something, here or below.
    fn needed(&self, mut ranges: Vec<RangeDelete>) -> Vec<RangeDelete> {
        ranges.retain(|r| !self.retention.is_dropped(r.keyspace));
        // Of those over one piece that no snapshot distinguishes, the newest suffices.
        let readable = Readable::after(self.retention.stripes.clone());
        let mut fragments = fragment(ranges, Keep::Readable(&readable));
        fragments.retain(|r| {
            let last = match r.end.is_empty() {
                true => (r.keyspace + 1, [].as_slice()),
                false => (r.keyspace, r.end.as_slice()),
            };
            let first = (r.keyspace, r.begin.as_slice());
            let level = self.level as usize;
            let is_below = || self.older().reaches_below(level, first, last);
            self.retention.hides_below(r.seq, is_below)
        });
        failpoint!(RangeDropped => fragments.clear());
        fragments
    }

    /// Begins a new table before each of these keys, which ascend.
    pub(super) fn cut_at(mut self, cuts: &Arc<[Place]>) -> Output {
        self.cuts = Arc::clone(cuts);
        self
    }

    /// Moves the values of these value files only.
    pub(super) fn moving(mut self, leaving: &BTreeSet<u64>) -> Output {
        self.leaving.clone_from(leaving);
        self
    }

    fn older(&self) -> &Version {
        let place = (self.level, self.run);
        self.older.get_or_init(|| self.inner.version().below(place))
    }

    fn store(&self) -> &Arc<TableStore> {
        &self.inner.store
    }

    /// Returns whether the next entry has the key of the last.
    pub(super) fn same_key(&self, entry: &EntryView<'_>) -> bool {
        self.any && entry.keyspace == self.keyspace && entry.key == self.key.as_slice()
    }

    /// Returns whether a newer version in a stage above hides this one from every reader.
    pub(super) fn is_superseded(&self, newer: Option<SeqNo>, seq: SeqNo) -> bool {
        self.retention.is_superseded(newer, seq)
    }

    /// Returns whether the table being written has its full size.
    pub(super) fn is_full(&self) -> bool {
        let Some(writer) = &self.writer else {
            return false;
        };
        let wanted = self.store().options.table_bytes;
        let keys_max = self.inner.shared.memory.limits.keys_bytes;
        writer.estimated_bytes() >= wanted || writer.keys_bytes() >= keys_max || {
            // Checked only when the table is worth its own file.
            writer.estimated_bytes() >= wanted / 4 && self.overlap_below() >= OVERLAP_MAX * wanted
        }
    }

    /// Returns the bytes on the level below that the table being written overlaps.
    fn overlap_below(&self) -> u64 {
        let (Some(writer), below) = (&self.writer, self.level as usize + 1) else {
            return 0;
        };
        if self.level == 0 || below > self.older().levels.len() {
            return 0;
        }
        let Some(first) = writer.first_entry() else {
            return 0;
        };
        let last = (self.keyspace, self.key.as_slice());
        let tables = self.older().level(below).overlapping(first, last);
        tables.iter().map(|t| t.meta.bytes).sum()
    }

    /// Treats nothing as expired from now on. A tombstone goes if nothing below needs it, and the
    /// caller does not know yet what will be below.
    pub(super) fn keep_expired(&mut self) {
        self.retention.horizon = 0;
    }

    /// Lets deletes use the reserve, and puts only while deletes wait behind them: the output
    /// replaces no files and retires no logs.
    pub(super) fn lend_to_deletes(&mut self) {
        let lender = self
            .inner
            .shared
            .reserve
            .lender(&self.store().fs, Row::Deletes);
        self.loan_ends = lender.end();
        self.fs = Arc::new(lender);
        self.lends_to_deletes = !self.inner.shared.reserve.are_drains_wanted();
    }

    /// Leaves the reserve to tables: the values come from a pool and replace no others.
    pub(super) fn write_values_beside_reserve(&mut self) {
        self.lends_to_values = false;
    }

    /// Stops using the reserve on a full disk.
    pub(super) fn end_loan(&self) {
        self.loan_ends.store(true, Ordering::Relaxed);
    }

    /// Takes the next entry. Returns the number of bytes that it added.
    pub(super) fn offer(&mut self, entry: &EntryView<'_>, value: Stored<'_>) -> Result<usize> {
        let same_key = self.same_key(entry);
        if !same_key {
            self.keyspace = entry.keyspace;
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            self.kept = None;
            self.any = true;
        }
        let key = (entry.keyspace, entry.key);
        if self.retention.is_hidden(key, entry.seq, self.kept) {
            return Ok(0);
        }
        self.kept = Some(entry.seq);
        let level = self.level as usize;
        let is_below = || self.older().reaches_below(level, key, key);
        let expiry = match value {
            Stored::Inline(value) => value.expiry,
            Stored::Apart(_, expiry) => expiry,
        };
        let kept = self.retention.keep(entry.kind, expiry, entry.seq, is_below);
        failpoint!(ExpiredDropped if kept == Kept::Tombstone => return Ok(0));
        let (kind, expiry, value) = match kept {
            Kept::Whole => (entry.kind, expiry, value),
            Kept::Tombstone => (EntryKind::Delete as u8, 0, Stored::Inline(Value::default())),
            Kept::Nothing => return Ok(0),
        };
        if self.lends_to_deletes && kind != EntryKind::Delete as u8 {
            self.end_loan();
        }
        let is_put = kind == EntryKind::Put as u8;
        let placed = match value {
            Stored::Inline(value) => self.place(entry, is_put, expiry, value.bytes)?,
            Stored::Apart(pointer, _) if !self.leaving.contains(&pointer.file) => {
                Placed::Apart(pointer, 0)
            }
            Stored::Apart(pointer, _) => {
                self.moved = self.inner.read_value(pointer, key)?;
                let moved = std::mem::take(&mut self.moved);
                let placed = self.place(entry, is_put, expiry, &moved)?;
                self.moved = moved;
                placed
            }
        };
        let pointer = match placed {
            Placed::Apart(pointer, _) => {
                *self.points_to.entry(pointer.file).or_default() += u64::from(pointer.bytes);
                Some(pointer.encode())
            }
            Placed::Inline => None,
        };
        let moved = std::mem::take(&mut self.moved);
        let value = match (&pointer, value) {
            (Some(pointer), _) => pointer.bytes(),
            (None, Stored::Inline(value)) => value.bytes,
            (None, Stored::Apart(..)) => &moved,
        };
        let kind = match pointer {
            Some(_) => sstable::kind::VALUE_POINTER,
            None => kind,
        };
        let added = match placed {
            Placed::Inline => value.len(),
            Placed::Apart(_, written) => written,
        };
        if let Some(writer) = self.writer()? {
            writer.add(&NewEntry {
                keyspace: entry.keyspace,
                key: entry.key,
                seq: entry.seq,
                kind,
                expiry,
                value,
            })?;
            let bytes = writer.estimated_bytes();
            let held = writer.keys_bytes().next_multiple_of(COUNTED_BYTES);
            self.entries += 1;
            let more = bytes.saturating_sub(self.charged);
            self.inner.shared.rate_limiter.charge(more);
            self.charged += more;
            if held != self.lease.bytes() {
                // Jobs are counted, and bounded by their input.
                let _ = self.lease.set(held);
            }
        }
        if !same_key {
            let place = (self.level, self.run);
            let older = self.older.get_or_init(|| self.inner.version().below(place));
            self.sampler.take(older, level, key);
        }
        Ok(entry.key.len() + added)
    }

    /// Writes a long value to the value file of this output; a short one stays with its key.
    fn place(
        &mut self,
        entry: &EntryView<'_>,
        is_put: bool,
        expiry: Millis,
        value: &[u8],
    ) -> Result<Placed> {
        let from = self.store().options.values_apart_from;
        if !is_put || from.is_none_or(|from| (value.len() as u64) < from) {
            return Ok(Placed::Inline);
        }
        let writer = match &mut self.values {
            Some(writer) => writer,
            None => {
                self.inner.shared.manifest.check_files()?;
                let number = self.inner.shared.next_id();
                let store = &self.inner.store;
                let (path, options) = (store.value_path(number), store.value_options());
                let fs = match self.lends_to_values {
                    true => &self.fs,
                    false => &store.fs,
                };
                let writer = ValueWriter::create(fs, &path, number, options)?;
                self.values.insert(writer)
            }
        };
        let pointer = writer.append(&NewValue {
            keyspace: entry.keyspace,
            key: entry.key,
            seq: entry.seq,
            expiry,
            value,
        })?;
        let is_full = writer.bytes() >= self.inner.store.value_file_bytes();
        self.inner
            .shared
            .rate_limiter
            .charge(u64::from(pointer.bytes));
        if is_full {
            self.close_values()?;
        }
        Ok(Placed::Apart(pointer, value.len()))
    }

    /// Makes the value file being written durable.
    fn close_values(&mut self) -> Result<()> {
        let Some(writer) = self.values.take() else {
            return Ok(());
        };
        let meta = writer.finish()?;
        let counted = crate::metrics::OpCounter::TableFileBytes;
        self.inner.shared.counters.add(counted, meta.bytes);
        self.values_done.push(ValueSpace::held(self.store(), meta));
        self.refill();
        Ok(())
    }

    /// Returns the table being written, and begins one if there is none.
    fn writer(&mut self) -> Result<Option<&mut SstWriter>> {
        if self.writer.is_none() {
            self.inner.shared.manifest.check_files()?;
            let number = self.inner.shared.next_id();
            let store = &self.inner.store;
            let path = store.path(number, self.level);
            let options = store.table_options(self.level);
            self.writer = Some(SstWriter::create(&self.fs, &path, number, options)?);
        }
        Ok(self.writer.as_mut())
    }

    /// Returns the range deletes from the end of the last table up to `next`.
    fn ranges_until(&self, next: Option<(u32, &[u8])>) -> Vec<RangeDelete> {
        let low = self
            .cut
            .as_ref()
            .map(|(keyspace, key)| (*keyspace, key.as_slice()));
        let ended = |r: &RangeDelete| r.cut(low, None).is_none();
        let from = self.ranges.partition_point(ended);
        let after = &self.ranges[from..];
        let before = after
            .iter()
            .take_while(|r| next.is_none_or(|next| (r.keyspace, r.begin.as_slice()) < next));
        before.filter_map(|r| r.cut(low, next)).collect()
    }

    /// Returns the next cut key after the end of the last table.
    fn next_cut(&self) -> Option<&Place> {
        let ended = |place: &Place| self.cut.as_ref().is_some_and(|cut| place <= cut);
        self.cuts.get(self.cuts.partition_point(ended))
    }

    /// Returns the cut key at or before the key of an entry.
    pub(super) fn cut_before(&self, entry: &EntryView<'_>) -> Option<Place> {
        let cut = self.next_cut()?;
        let key = (cut.0, cut.1.as_slice());
        (key <= (entry.keyspace, entry.key)).then(|| cut.clone())
    }

    /// Makes the table being written durable, with the range deletes up to the key `next`.
    pub(super) fn close_table(&mut self, next: Option<(u32, &[u8])>) -> Result<()> {
        // BOUND: each iteration moves the end of the last table past one cut.
        while let Some((keyspace, key)) = self.next_cut().cloned() {
            if next.is_some_and(|next| next <= (keyspace, key.as_slice())) {
                break;
            }
            self.close_piece(Some((keyspace, &key)))?;
        }
        self.close_piece(next)?;
        match next {
            Some(_) => Ok(()),
            // PERSIST: value files before the edit that names the tables which point into them
            // (V1). Reversed, a crash could leave pointers without values.
            None => self.close_values(),
        }
    }

    /// Does the same as `close_table`, if there is no cut before `next`.
    fn close_piece(&mut self, next: Option<(u32, &[u8])>) -> Result<()> {
        let ranges = self.ranges_until(next);
        if !ranges.is_empty()
            && let Some(writer) = self.writer()?
        {
            for range in &ranges {
                writer.add_range_delete(range.clone())?;
            }
        }
        self.cut = next.map(|(keyspace, key)| (keyspace, key.to_vec()));
        let Some(writer) = self.writer.take() else {
            return Ok(());
        };
        self.charged = 0;
        let finished = writer.finish();
        let _ = self.lease.set(0);
        let finished = finished?;
        let counted = crate::metrics::OpCounter::TableFileBytes;
        self.inner.shared.counters.add(counted, finished.file_bytes);
        let of_level = &self.inner.written[self.level as usize];
        of_level.fetch_add(finished.file_bytes, Ordering::Relaxed);
        let meta = self.meta(finished);
        self.done.push((meta, ranges));
        self.sampler.close_table();
        self.older.take();
        self.refill();
        Ok(())
    }

    /// Returns the space of files that are gone to the reserve, before other files take it.
    fn refill(&self) {
        let reserve = &self.inner.shared.reserve;
        if reserve.is_short() {
            reserve.refill();
        }
    }

    fn meta(&mut self, finished: Finished) -> FileMeta {
        let Finished {
            number,
            file_bytes,
            properties,
        } = finished;
        let place = |p: &sstable::Place| (p.keyspace, p.key.clone());
        let entries = properties.entries.as_ref();
        let entries = entries.map(|(first, last)| (place(first), place(last)));
        let ranges = properties.ranges.as_ref().map(|(begin, end)| {
            let end = match end.key.is_empty() {
                true => (end.keyspace + 1, Vec::new()),
                false => place(end),
            };
            (place(begin), end)
        });
        let begin = ranges.as_ref().map(|(begin, _)| begin.clone());
        // A table of range deletes alone is placed where they begin.
        let (first, last) = entries
            .or(begin.map(|b| (b.clone(), b)))
            .unwrap_or_default();
        let reach = ranges.map(|(begin, end)| (begin.min(first.clone()), end.max(last.clone())));
        let (seq_first, seq_last) = properties.seqs.unwrap_or_default();
        FileMeta {
            number,
            level: self.level,
            run: self.run,
            bytes: file_bytes,
            entries: properties.entry_count,
            tombstones: properties.tombstone_count,
            older: properties.entry_count - properties.key_count,
            seq_first,
            seq_last,
            first,
            last,
            range_deletes: properties.range_delete_count,
            reach,
            expiring: properties.expiring_count,
            expiry_last: properties.expiries.map_or(0, |(_, last)| last),
            values: std::mem::take(&mut self.points_to).into_iter().collect(),
        }
    }

    /// Moves the tables written so far to another run of level 0.
    pub(super) fn rename_run(&mut self, run: u64) {
        self.run = run;
        self.done.iter_mut().for_each(|(meta, _)| meta.run = run);
    }

    /// Returns the bytes of the tables written so far.
    pub(super) fn bytes(&self) -> u64 {
        let open = self.writer.as_ref().map_or(0, SstWriter::estimated_bytes)
            + self.values.as_ref().map_or(0, ValueWriter::bytes);
        let done = self.done.iter().map(|(meta, _)| meta.bytes);
        let values = self.values_done.iter().map(|file| file.meta.bytes);
        open + done.sum::<u64>() + values.sum::<u64>()
    }

    /// Returns the entries written so far.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the files that were written, and the changes that name them. The last ones are
    /// closed.
    pub(super) fn finish(&mut self) -> Written {
        let store = Arc::clone(self.store());
        let done = std::mem::take(&mut self.done);
        let values = std::mem::take(&mut self.values_done);
        // The number of the run too, which may have been drawn after those of all tables: reused
        // after a crash, it would make one run of two.
        let last = |meta: &FileMeta| meta.number.max(meta.run);
        let numbers = values.iter().map(|file| file.meta.number);
        let numbers = done.iter().map(|(meta, _)| last(meta)).chain(numbers);
        let next = numbers.map(|number| number + 1).max();
        let files = values.iter().map(|file| Change::added(file.meta.clone()));
        let added = done.iter().map(|(meta, _)| Change::added(meta.clone()));
        let mut changes: Vec<Change> = files.chain(added).collect();
        changes.extend(next.map(|id| Change::NextId { id }));
        let superseded = std::mem::take(&mut self.sampler.tables);
        let tables = done.into_iter().zip(superseded);
        let before = self.inner.version();
        let held = |number: u64| {
            let mut own = values.iter().filter(|file| file.meta.number == number);
            own.next().or_else(|| before.values.get(number)).cloned()
        };
        let tables = tables.map(|((meta, ranges), superseded)| {
            // A file of the input is in the version as long as the input is (V2).
            let files = meta.values.iter().filter_map(|(number, _)| held(*number));
            let files: Arc<[_]> = files.collect();
            debug_assert_eq!(files.len(), meta.values.len(), "V2");
            Table::new(&store, meta, ranges, files)
                .written_without(&self.retention.dropped)
                .superseding(superseded)
        });
        let tables = tables.collect();
        Written {
            tables,
            values,
            changes,
        }
    }

    /// Leaves all files in place.
    pub(super) fn leave(&mut self) {
        self.is_left = true;
    }

    /// Restarts with nothing written: removes all files; those that cannot be removed are left for
    /// recovery.
    pub(super) fn abandon(&mut self) {
        if let Some(writer) = self.writer.take() {
            let _ = writer.abandon();
        }
        if let Some(writer) = self.values.take() {
            let _ = writer.abandon();
        }
        for file in std::mem::take(&mut self.values_done) {
            let _ = self.store().fs.remove(&file.path());
        }
        self.points_to.clear();
        for (meta, _) in std::mem::take(&mut self.done) {
            let _ = self
                .store()
                .fs
                .remove(&self.store().path(meta.number, meta.level));
        }
        self.refill();
        self.sampler = Sampler::above(self.older(), self.store().options.open_files_max);
        self.cut = None;
        self.charged = 0;
        self.any = false;
        self.kept = None;
        self.entries = 0;
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // A cancelled job leaves no files. Those that `finish` returned are no longer here.
        if !self.is_left {
            self.abandon();
        }
    }
}
