//! Rewriting of logs of mostly garbage (FlatLSM, section 4.2.2): if the logs of the newest tables
//! have more than eight times the bytes that their live entries need, one new log takes these, and
//! the old ones are free.
//!
//! So keys that are overwritten all the time stay in persistent memory: each table of them is
//! rewritten together with the table that the previous rewrite has made, and the tables never
//! become enough to drain. Other tables drain as they are, since a drain leaves garbage out too,
//! and most logs have little.
//!
//! A job judges a table by a sample of its index, once. If that promises enough, it reads the index
//! of all its tables and notes the live entries. If these are too many, it tries fewer tables. If
//! they still are, or if there is no space for them, it gives up; then the newest table counts as
//! live, and is left to a drain. Otherwise it writes the noted entries in the order of their
//! numbers, in which a replay expects them.
//!
//! There are always older tables or files below. So tombstones, range deletes and values that have
//! expired are live, like versions that a snapshot reads: the rule of merges (parts/retain.rs).
//!
//! Durable order: the records and the seal of the new log, then the edit that names it and retires
//! the old logs, then their space is free.
//!
//! CRASH: before the edit nothing names the new log, and its space is free; the old logs are
//! replayed. After the edit the new log is replayed in their place: its first number is between
//! those of the older and of the newer logs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::filtered::Filling;
use super::{Queue, Table, Tables, cursor_of};
use crate::canary::failpoint;
use crate::error::{Error, Result};
use crate::parts::iter::{Cursor, EntryView, MergeCursor};
use crate::parts::key::Target;
use crate::parts::manifest::{Change, Edit};
use crate::parts::memory::Lease;
use crate::parts::retain::Retention;
use crate::stages::{
    ApartBytes, Completion, EntryCount, Job, JobCounter, JobKind, RewriteApart, SealApart, Shared,
    Step, retired,
};
use crate::types::{EntryKind, SeqNo};

/// A log is rewritten if it has more than this many times its live bytes.
const GARBAGE_MIN: u64 = 8;

/// The live bytes of a table that was not judged yet.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// The stretches of a sample, and their entries.
const STRETCHES: usize = 32;
const STRETCH_ENTRIES: u64 = 32;

/// The entries that one step reads or writes, and the bytes of them that it reads or writes in
/// logs.
const STEP_ENTRIES: u64 = 4096;
const STEP_BYTES: u64 = 1 << 20;

/// References that are sorted together.
const SORTED_TOGETHER: usize = 16 << 10;

/// Returns how many of the newest tables have so much garbage that one new log should replace their
/// logs. A table that was not judged counts as garbage. 0 if as many tables would be left as are
/// due to drain.
pub(super) fn garbage_count(shared: &Shared, tables: &[Arc<Table>]) -> usize {
    let visible = shared.sequencer.visible();
    // A snapshot that is made later must not need what is left out (R1), and a table of an ingest
    // has yet to appear.
    let is_free = |table: &Arc<Table>| {
        !table.busy.load(Ordering::Relaxed) && !table.unsynced && table.seqs.1 <= visible
    };
    let free = tables.iter().take_while(|table| is_free(table));
    let count = mostly_garbage(free, Overlap::Whole);
    let left = tables.len() + 1 - count;
    match left < shared.options.buffer.tables.flush_count {
        true => count,
        false => 0,
    }
}

/// An assumption about the live entries of several tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overlap {
    /// They are versions of the same keys, of which the newest is left.
    Whole,
    /// They are of different keys.
    None,
}

/// Returns how many of these tables, newest first, have mostly garbage together.
fn mostly_garbage<'t>(tables: impl Iterator<Item = &'t Arc<Table>>, overlap: Overlap) -> usize {
    let (mut all, mut live) = (0, 0);
    let both = tables.map(|table| {
        let live_here = table.known_live().unwrap_or(0);
        all += table.bytes;
        live = match overlap {
            Overlap::Whole => live.max(live_here),
            Overlap::None => live + live_here,
        };
        all > live * GARBAGE_MIN
    });
    both.take_while(|is_mostly| *is_mostly).count()
}

/// Returns the rule by which versions up to a number are live.
fn retention(shared: &Shared, upto: SeqNo) -> Retention {
    Retention {
        stripes: shared.snapshots.stripes(),
        dropped: shared.dropped.all(),
        // Those in the tables stay there, and all are in synced logs.
        ranges: Vec::from_iter(shared.ranges.applicable(upto, None)),
        // Expired values are left to drains.
        horizon: 0,
    }
}

/// A walk over versions that finds the live ones.
struct Judge {
    retention: Retention,
    /// The last live version.
    last: Option<(u32, Vec<u8>, SeqNo)>,
}

impl Judge {
    /// Returns whether a version is live, given those before it.
    fn is_live(&mut self, entry: &EntryView<'_>) -> bool {
        let key = (entry.keyspace, entry.key);
        let last = self.last.as_ref();
        let newer = last.filter(|(keyspace, last, _)| (*keyspace, last.as_slice()) == key);
        let newer = newer.map(|(_, _, seq)| *seq);
        if self.retention.is_hidden(key, entry.seq, newer) {
            return false;
        }
        self.note(entry.keyspace, entry.key, entry.seq);
        failpoint!(RewriteDropsTombstones if entry.kind == EntryKind::Delete as u8 => return false);
        true
    }

    fn note(&mut self, keyspace: u32, key: &[u8], seq: SeqNo) {
        match &mut self.last {
            Some((space, last, newest)) => {
                (*space, *newest) = (keyspace, seq);
                last.clear();
                last.extend_from_slice(key);
            }
            None => self.last = Some((keyspace, key.to_vec(), seq)),
        }
    }
}

impl Table {
    fn known_live(&self) -> Option<u64> {
        let live = self.live.load(Ordering::Relaxed);
        (live != UNKNOWN).then_some(live)
    }

    /// Judges some stretches of entries, and notes about how many bytes are live.
    fn sample(&self, shared: &Shared, apart: &dyn SealApart) -> Result<()> {
        let mut judge = Judge {
            retention: retention(shared, self.seqs.1),
            last: None,
        };
        let mut cursor = self.source.cursor();
        cursor.hold();
        let (mut seen, mut live) = (0, 0);
        let mut stretch = |cursor: &mut dyn Cursor, judge: &mut Judge, most: u64| -> Result<()> {
            let end = seen + most;
            while seen < end
                && let Some(entry) = cursor.entry()?
            {
                seen += 1;
                if judge.is_live(&entry) {
                    live += apart.entry_bytes(&entry, &cursor.value()?).log;
                }
                cursor.advance()?;
            }
            Ok(())
        };
        if self.entries <= 2 * STRETCHES as u64 * STRETCH_ENTRIES {
            cursor.seek(&Target::first_of(0, &[]))?;
            stretch(&mut *cursor, &mut judge, self.entries)?;
        } else {
            // Each entry may be one of them, whether its key has other versions or not.
            for ((keyspace, key), seq) in self.source.spread(STRETCHES)? {
                cursor.seek(&Target::first_of(keyspace, &key))?;
                judge.last = None;
                let newest = cursor.entry()?.map_or(seq, |entry| entry.seq);
                if newest != seq {
                    judge.note(keyspace, &key, newest);
                }
                cursor.seek(&Target {
                    keyspace,
                    key: &key,
                    seq,
                })?;
                stretch(&mut *cursor, &mut judge, STRETCH_ENTRIES)?;
            }
        }
        let all = u128::from(live) * u128::from(self.entries) / u128::from(seen.max(1));
        self.live.store(all as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// The place of a live entry, ordered by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Reference {
    seq: SeqNo,
    keyspace: u32,
    key_bytes: u32,
    key_at: usize,
}

/// The live entries that were found.
struct Live {
    keys: Vec<u8>,
    /// References in the order of keys.
    found: Vec<Reference>,
    /// Others, each list in the order of numbers.
    sorted: Vec<Vec<Reference>>,
    bytes: ApartBytes,
    /// The bytes of references and keys, which are fewer than those of the new log.
    memory: Lease,
}

impl Live {
    fn add(&mut self, entry: &EntryView<'_>, bytes: ApartBytes) {
        self.bytes.log += bytes.log;
        self.bytes.nodes += bytes.nodes;
        self.bytes.entries += bytes.entries;
        self.found.push(Reference {
            seq: entry.seq,
            keyspace: entry.keyspace,
            key_bytes: entry.key.len() as u32,
            key_at: self.keys.len(),
        });
        self.keys.extend_from_slice(entry.key);
        if self.found.len() >= SORTED_TOGETHER {
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.found.sort_unstable();
        let list = std::mem::take(&mut self.found);
        let more = self.keys.len() + SORTED_TOGETHER * size_of::<Reference>() * self.sorted.len();
        // The gauge only counts.
        let _ = self.memory.set(more as u64);
        self.sorted.push(list);
    }

    fn is_empty(&self) -> bool {
        self.bytes.log == 0
    }
}

/// The state between the steps.
enum Phase {
    /// Judges by samples, and chooses tables.
    Choose,
    Read(Box<Reading>),
    Write(Box<Writing>),
}

/// The walk over all entries.
struct Reading {
    cursor: MergeCursor,
    judge: Judge,
    count: EntryCount,
    live: Live,
}

/// The writing of live entries.
struct Writing {
    writer: Box<dyn RewriteApart>,
    filling: Filling,
    /// A cursor for each table.
    cursors: Vec<Box<dyn Cursor>>,
    live: Live,
    /// The next reference of each sorted list, with the number of the list and its place there.
    next: BinaryHeap<Reverse<(Reference, usize, usize)>>,
}

/// One rewrite.
pub(super) struct Rewrite {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    apart: Arc<dyn SealApart>,
    rewrites: Arc<AtomicBool>,
    /// The tables that it replaces, newest first.
    tables: Vec<Arc<Table>>,
    /// The assumption by which they were chosen.
    overlap: Overlap,
    phase: Phase,
    /// Whether it has replaced them.
    has_ended: bool,
}

impl Rewrite {
    /// Begins with these tables, newest first. The caller holds the lock of the queue.
    pub(super) fn begin(buffer: &Tables, tables: &[Arc<Table>]) -> Rewrite {
        buffer.rewrites.store(true, Ordering::Relaxed);
        for table in tables {
            table.busy.store(true, Ordering::Relaxed);
        }
        Rewrite {
            shared: Arc::clone(&buffer.shared),
            queue: Arc::clone(&buffer.queue),
            apart: Arc::clone(&buffer.apart),
            rewrites: Arc::clone(&buffer.rewrites),
            tables: tables.to_vec(),
            overlap: Overlap::Whole,
            phase: Phase::Choose,
            has_ended: false,
        }
    }

    /// Judges one table, or begins with those that have mostly garbage.
    fn choose(&mut self) -> Result<Step> {
        let count = mostly_garbage(self.tables.iter(), self.overlap);
        let unknown = |table: &&Arc<Table>| table.known_live().is_none();
        if let Some(table) = self.tables[..count].iter().find(unknown) {
            table.sample(&self.shared, &*self.apart)?;
            return Ok(Step::More);
        }
        {
            let all = self.queue.0.lock();
            for table in &self.tables[count..] {
                table.busy.store(false, Ordering::Relaxed);
            }
            self.tables.truncate(count);
            // The samples have changed the choice, or tables have come.
            let left = all.len() + 1 - count;
            if count == 0 || left >= self.shared.options.buffer.tables.flush_count {
                if self.overlap == Overlap::None {
                    self.leave_newest();
                }
                return Ok(Step::Done(Completion::nothing()));
            }
        }
        let mut cursor = cursor_of(&self.tables);
        cursor.hold();
        cursor.seek(&Target::first_of(0, &[]))?;
        // The tables belong to this job, and nothing relinks them.
        cursor.release();
        self.phase = Phase::Read(Box::new(Reading {
            cursor,
            judge: Judge {
                retention: retention(&self.shared, self.tables[0].seqs.1),
                last: None,
            },
            count: EntryCount::of(self.tables.iter().map(|table| table.entries).sum()),
            live: Live {
                keys: Vec::new(),
                found: Vec::new(),
                sorted: Vec::new(),
                bytes: ApartBytes::default(),
                memory: self.shared.memory.jobs.lease(),
            },
        }));
        Ok(Step::More)
    }

    /// Goes on with fewer tables, if their keys differ and some of them have mostly garbage without
    /// the others. Else the tables are left to a drain.
    fn give_up(&mut self) -> Step {
        let fewer = mostly_garbage(self.tables.iter(), Overlap::None);
        if self.overlap == Overlap::Whole && (1..self.tables.len()).contains(&fewer) {
            self.overlap = Overlap::None;
            // `choose` gives the others back.
            return Step::More;
        }
        self.leave_newest();
        Step::Done(Completion::nothing())
    }

    /// Lets no later rewrite begin with the newest table.
    fn leave_newest(&self) {
        if let Some(newest) = self.tables.first() {
            newest.live.store(newest.bytes, Ordering::Relaxed);
        }
    }

    fn read(&mut self, mut reading: Box<Reading>) -> Result<Step> {
        let all: u64 = self.tables.iter().map(|table| table.bytes).sum();
        let Reading {
            cursor,
            judge,
            count,
            live,
        } = &mut *reading;
        let (passed, read) = (count.passed, live.bytes.log);
        while count.passed - passed < STEP_ENTRIES && live.bytes.log - read < STEP_BYTES {
            let Some(entry) = cursor.entry()? else {
                count.check()?;
                return self.turn_to_writing(reading.live);
            };
            count.passed += 1;
            if judge.is_live(&entry) {
                let bytes = self.apart.entry_bytes(&entry, &cursor.value()?);
                live.add(&entry, bytes);
                if live.bytes.log * GARBAGE_MIN >= all {
                    return Ok(self.give_up());
                }
            }
            cursor.advance()?;
        }
        self.phase = Phase::Read(reading);
        Ok(Step::More)
    }

    fn turn_to_writing(&mut self, mut live: Live) -> Result<Step> {
        live.sort();
        if live.is_empty() {
            return Ok(Step::Done(self.completed(None, Vec::new())));
        }
        let Some(writer) = self.apart.rewrite(live.bytes)? else {
            return Ok(self.give_up());
        };
        let cursors = self.tables.iter().map(|table| {
            let mut cursor = table.source.cursor();
            cursor.hold();
            cursor
        });
        let first = |(at, list): (usize, &Vec<Reference>)| Some(Reverse((*list.first()?, at, 0)));
        self.phase = Phase::Write(Box::new(Writing {
            writer,
            filling: Filling::new(&self.shared, live.bytes.entries),
            cursors: cursors.collect(),
            next: live.sorted.iter().enumerate().filter_map(first).collect(),
            live,
        }));
        Ok(Step::More)
    }

    fn write(&mut self, mut writing: Box<Writing>) -> Result<Step> {
        let Writing {
            writer,
            filling,
            cursors,
            live,
            next,
        } = &mut *writing;
        let (mut entries, mut bytes) = (0, 0);
        while entries < STEP_ENTRIES && bytes < STEP_BYTES {
            let Some(Reverse((reference, list, at))) = next.pop() else {
                let (sealed, changes) = writing.writer.finish()?;
                let mut table = Tables::table(&sealed, false)?;
                table.source = writing.filling.finish(table.source)?;
                let (newest, oldest) = (self.tables.first(), self.tables.last());
                if let (Some(newest), Some(oldest)) = (newest, oldest) {
                    // The newest entries may have been in a keyspace that was dropped.
                    table.seqs = (oldest.seqs.0, newest.seqs.1);
                }
                *table.live.get_mut() = table.bytes;
                return Ok(Step::Done(self.completed(Some(table), changes)));
            };
            let following = live.sorted[list].get(at + 1);
            next.extend(following.map(|it| Reverse((*it, list, at + 1))));
            let Reference {
                seq,
                keyspace,
                key_bytes,
                key_at,
            } = reference;
            let target = Target {
                keyspace,
                key: &live.keys[key_at..key_at + key_bytes as usize],
                seq,
            };
            // Numbers of a newer table are all above those of an older one (Q1).
            let of_table = self.tables.partition_point(|table| table.seqs.0 > seq);
            let cursor = cursors.get_mut(of_table).ok_or_else(changed)?;
            cursor.seek(&target)?;
            let sought = (keyspace, target.key, seq);
            let entry = cursor.entry()?;
            let entry = entry.filter(|it| (it.keyspace, it.key, it.seq) == sought);
            let entry = entry.ok_or_else(changed)?;
            let value = cursor.value()?;
            filling.insert(keyspace, target.key);
            writer.add(&entry, &value)?;
            entries += 1;
            bytes += self.apart.entry_bytes(&entry, &value).log;
        }
        writer.sync()?;
        self.phase = Phase::Write(writing);
        Ok(Step::More)
    }

    /// Returns the end: the new table, if it has entries, in the place of the old ones.
    fn completed(&mut self, table: Option<Table>, mut changes: Vec<Change>) -> Completion {
        self.has_ended = true;
        let newest = self.tables.first().map_or(0, |table| table.seqs.1);
        let logs = self.tables.iter().flat_map(|table| table.logs.clone());
        changes.extend(retired(&Vec::from_iter(logs)));
        // No entry may be left with this number, which must not be used again.
        changes.push(Change::LastSeq { seq: newest });
        let entries = table.as_ref().map_or(0, |table| table.entries);
        let (queue, old) = (Arc::clone(&self.queue), self.tables.clone());
        Completion {
            edit: Edit { changes },
            // PERSIST: the edit, before the old logs are free, which is when the last view with
            // their tables is gone. Reversed, a crash could leave names of logs on space that has
            // been given to something else.
            apply: Box::new(move || queue.replace(&old, table)),
            garbage: Vec::new(),
            entries,
        }
    }
}

#[cold]
fn changed() -> Error {
    Error::corruption("an index of a log has lost an entry while the log was rewritten")
}

impl Drop for Rewrite {
    fn drop(&mut self) {
        let _all = self.queue.0.lock();
        for table in &self.tables {
            table.busy.store(false, Ordering::Relaxed);
        }
        self.rewrites.store(false, Ordering::Relaxed);
    }
}

impl Job for Rewrite {
    fn kind(&self) -> JobKind {
        JobKind::Merge
    }

    fn counted_as(&self) -> JobCounter {
        JobCounter::Rewrite
    }

    fn is_counted(&self) -> bool {
        self.has_ended
    }

    fn step(&mut self) -> Result<Step> {
        match std::mem::replace(&mut self.phase, Phase::Choose) {
            Phase::Choose => self.choose(),
            Phase::Read(reading) => self.read(reading),
            Phase::Write(writing) => self.write(writing),
        }
    }
}
