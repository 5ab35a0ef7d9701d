//! Ingest: sorted entries written below the front, bypassing logs and memtables, and made visible
//! at once.
//!
//! The entries get one sequence number, chosen when the ingest begins and far above all that are
//! taken, so that tables can be written with it in advance. They are invisible, and a crash removes
//! them, until `finish`:
//!
//!   1. Older data that would hide the entries moves below them, while writers run, until no source
//!      above contains an entry or a range delete between the first and the last key.
//!   2. Every number up to that one is taken, and the memtable replaced: later writers get a larger
//!      number, in another memtable, and wait to become visible. What was written between the keys
//!      since the last round of step 1 began moves too, and nothing can be added to it.
//!   3. One manifest edit names all tables; then one view shows them, at the moment at which their
//!      number becomes visible. No job begins between the moment at which the stages get the tables
//!      and that one: tables that change in place belong to older views too, and would show there
//!      what a drain or a merge had moved already; and a job heeds no snapshots of that time.
//!
//! So the read rule holds as everywhere: for one key, the entries of a newer source are newer. A
//! bottom of files takes the entries itself; what may hide them is above it, in memtables and
//! buffer. If the bottom changes in place, the buffer takes them as its newest tables; then every
//! older memtable has to be in the buffer first, since tables there are ordered by age. Entries for
//! a bottom of files that fit one memtable go there too, if older data would hide them: to wait
//! until that has left the buffer would take much longer than to write them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_media::AllocError;

use crate::canary;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::OpCounter;
use crate::parts::batch::Batch;
use crate::parts::expiry::{Millis, layout as expiring};
use crate::parts::iter::Cursor;
use crate::parts::key::Target;
use crate::parts::manifest::{Change, Edit};
use crate::parts::memory::is_held_by_readers;
use crate::parts::ranges::RangeDelete;
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::sequence::Reservation;
use crate::stages::{Completion, IngestWriter, SpareBytes};
use crate::types::{EntryKind, SEQ_MAX, SeqNo};

use super::Engine;
use super::admission::Need;

/// How far above the last number taken an ingest chooses its own: the number of entries that may be
/// written before it ends. 16 million ingests fit in a database's life.
const AHEAD: u64 = 1 << 32;

/// BOUND: how often older data is moved while writers run, before they wait for the rest: once for
/// what was there, and once for what was written meanwhile. If drains keep up with writers, little
/// is left then; if not, another round would leave as much.
const ROUNDS: u32 = 2;

/// An ingest in progress.
pub(crate) struct Ingest {
    engine: Arc<Engine>,
    keyspace: u32,
    seq: SeqNo,
    sink: Sink,
    /// The first and the last key.
    first: Option<Vec<u8>>,
    last: Vec<u8>,
    entries: u64,
    bytes: u64,
    /// Whether an entry was refused, so that the ingest is incomplete.
    failed: bool,
}

enum Sink {
    /// The bottom takes the entries. While they are few they are kept, and written at the end: the
    /// buffer takes them if older data would hide them in the bottom.
    Bottom {
        writer: Box<dyn IngestWriter>,
        few: Option<Batch>,
    },
    /// The buffer takes them, in tables of a memtable's size: the next one, and the completed ones.
    Buffer {
        batch: Batch,
        tables: Vec<Completion>,
    },
}

impl Engine {
    /// Begins an ingest into `keyspace`. Only one may run at a time.
    pub(crate) fn ingest(self: &Arc<Self>, keyspace: u32) -> Result<Ingest> {
        let _call = self.enter()?;
        self.check_writable()?;
        self.check_keyspace(keyspace)?;
        if self.ingesting.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid(
                "another ingest into this database is running: finish or drop it first",
            ));
        }
        let begun = self.begin_ingest(keyspace);
        if begun.is_err() {
            self.ingesting.store(false, Ordering::Release);
        }
        begun
    }

    /// Begins the only ingest. Its number is chosen after all that an earlier one took.
    fn begin_ingest(self: &Arc<Self>, keyspace: u32) -> Result<Ingest> {
        let shared = &self.shared;
        let seq = shared.sequencer.last_taken() + AHEAD;
        if seq > SEQ_MAX - AHEAD {
            return Err(Error::invalid(
                "the sequence numbers of this database are nearly exhausted: copy it into a new one",
            ));
        }
        let sink = match self.stages.bottom.ingest_writer(seq) {
            Some(writer) => Sink::Bottom {
                writer,
                // A buffer of memory loses what no log has.
                few: (self.stages.drains() && shared.pool_outlives()).then(Batch::default),
            },
            None if shared.pool.medium() == terrace_media::Medium::Dram => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "this database keeps its tables in DRAM, where data without a log does not \
                     survive the process: write with put or batches instead, or create the \
                     database with a pool",
                ));
            }
            None => Sink::Buffer {
                batch: Batch::default(),
                tables: Vec::new(),
            },
        };
        Ok(Ingest {
            engine: Arc::clone(self),
            keyspace,
            seq,
            sink,
            first: None,
            last: Vec::new(),
            entries: 0,
            bytes: 0,
            failed: false,
        })
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        let engine = Arc::clone(&self.engine);
        let call = engine.enter();
        if let (Err(_), Sink::Bottom { writer, .. }) = (&call, &mut self.sink) {
            // In a forked child the files belong to its parent, which continues; else the next open
            // removes them.
            writer.leave();
        }
        self.sink = Sink::empty();
        self.engine.ingesting.store(false, Ordering::Release);
    }
}

impl Ingest {
    /// Returns the last key added.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.first.as_ref().map(|_| self.last.as_slice())
    }

    /// Adds the next entry, with its expiry or 0. Its key must be above the last. After an error
    /// `finish` fails too.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8], expiry: Millis) -> Result<()> {
        if self.failed {
            return Err(Error::invalid(
                "an earlier entry of this ingest failed: start the ingest again",
            ));
        }
        let engine = Arc::clone(&self.engine);
        let _call = engine.enter()?;
        engine.check_writable()?;
        engine.check_entry(key.len() + value.len())?;
        if expiry != 0 {
            // From the first expiring entry on, the database has a time.
            engine.shared.time.begin();
        }
        if let Err(e) = self.take(key, value, expiry) {
            // An entry that is invalid is left out, and changes nothing.
            self.failed = e.kind() != ErrorKind::Invalid;
            return Err(e);
        }
        self.first.get_or_insert_with(|| key.to_vec());
        self.last.clear();
        self.last.extend_from_slice(key);
        self.entries += 1;
        self.bytes += (key.len() + value.len()) as u64;
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8], expiry: Millis) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let limits = &engine.shared.memory.limits;
        let most = engine
            .shape
            .memtable_bytes
            .min(FEW_BYTES)
            .min(limits.ingest_bytes);
        let bytes = (key.len() + value.len()) as u64;
        let fits = |batch: &Batch| {
            let wanted = table_bytes(batch) + bytes + ENTRY_BESIDE_BYTES;
            wanted <= most && bytes <= limits.entry_bytes
        };
        match &mut self.sink {
            Sink::Bottom { few: Some(few), .. } if fits(few) => {
                push(few, self.keyspace, key, value, expiry);
                Ok(())
            }
            Sink::Bottom { writer, few } => {
                if let Some(few) = few.take() {
                    add_all(&mut **writer, &few)?;
                }
                writer.add(self.keyspace, key, value, expiry)
            }
            Sink::Buffer { batch, tables } => {
                if batch.len() > 0 && !fits(batch) {
                    tables.push(engine.table_apart(batch, self.seq)?);
                    batch.clear();
                }
                push(batch, self.keyspace, key, value, expiry);
                if batch.len() == 1
                    && let Err(e) = engine.check_batch(batch)
                {
                    batch.clear();
                    return Err(e);
                }
                Ok(())
            }
        }
    }

    /// Makes everything durable and visible at once. Returns the number of entries and the bytes of
    /// keys and values.
    pub(crate) fn finish(mut self) -> Result<(u64, u64)> {
        let engine = Arc::clone(&self.engine);
        let _call = engine.enter()?;
        engine.check_writable()?;
        engine.check_keyspace(self.keyspace)?;
        if self.failed {
            return Err(Error::invalid(
                "an earlier entry of this ingest failed, so nothing was ingested: start the ingest \
                 again",
            ));
        }
        if self.entries == 0 {
            return Ok((0, 0));
        }
        self.write()?;
        // Before writers have to wait, moves down what would hide the entries.
        for _ in 0..ROUNDS {
            let now = engine.shared.sequencer.visible();
            if self.is_for_buffer() || !self.is_hidden(now)? || self.turn_to_buffer()? {
                break;
            }
            if engine.stages.front.has_active_before(now + 1) {
                engine.flush()?;
            }
            self.sink_below(now)?;
        }
        if self.is_for_buffer() {
            engine.flush()?;
        }
        let reservation = engine.reserve(self.seq)?;
        // From here on writers wait, so every way out makes the numbers visible. The numbers are
        // taken: a drop that is not seen here comes after the ingest.
        let appeared = engine
            .check_keyspace(self.keyspace)
            .and_then(|()| self.appear(&reservation));
        if appeared.is_err() && !engine.has_failed() {
            // PERSIST: nothing. No entry has these numbers, so no reader sees what a crash could
            // lose.
            let _ = engine.shared.sequencer.publish(&reservation);
        }
        appeared?;
        let counters = &engine.shared.counters;
        counters.add(OpCounter::Puts, self.entries);
        counters.add(OpCounter::UserBytes, self.bytes);
        engine.headroom();
        engine.jobs.wake_workers();
        Ok((self.entries, self.bytes))
    }

    /// Writes all entries that are not written yet.
    fn write(&mut self) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let are_few = matches!(&self.sink, Sink::Bottom { few: Some(_), .. });
        let now = engine.shared.sequencer.visible();
        if are_few && self.is_hidden(now)? && self.turn_to_buffer()? {
            return Ok(());
        }
        match &mut self.sink {
            Sink::Bottom { writer, few } => {
                if let Some(few) = few {
                    add_all(&mut **writer, few)?;
                }
                writer.close()?;
                engine.wait_until(&|| !engine.stages.bottom.need().stops())
            }
            Sink::Buffer { batch, tables } => {
                tables.push(engine.table_apart(&std::mem::take(batch), self.seq)?);
                Ok(())
            }
        }
    }

    fn is_for_buffer(&self) -> bool {
        matches!(self.sink, Sink::Buffer { .. })
    }

    /// Gives the entries to the buffer instead of the bottom, if they are few and the pool has
    /// space for them now. It does not wait for space, since the bottom takes them too. Returns
    /// whether the buffer has them.
    fn turn_to_buffer(&mut self) -> Result<bool> {
        let Sink::Bottom { few: Some(few), .. } = &self.sink else {
            return Ok(false);
        };
        let engine = &self.engine;
        let Some(table) = engine.try_table_apart(few, self.seq)? else {
            return Ok(false);
        };
        self.sink = Sink::Buffer {
            batch: Batch::default(),
            tables: vec![table],
        };
        Ok(true)
    }

    /// Waits until nothing up to `seq`, which is in no active memtable, would hide the entries.
    fn sink_below(&self, seq: SeqNo) -> Result<()> {
        let engine = &self.engine;
        engine.jobs.want_drained(true);
        // Sources are searched again only if a drain may have ended, or a flush without a buffer.
        let mut seen = None;
        let waited = engine.admit(&Need::Jobs, &mut || {
            let now = (engine.jobs.edits(), engine.stages.front.sealed_count());
            let changed = seen.replace(now) != Some(now);
            Ok((changed && !self.is_hidden(seq)?).then_some(()))
        });
        engine.jobs.want_drained(false);
        waited
    }

    /// Names the tables and shows them, once the numbers up to theirs are taken.
    fn appear(&mut self, reservation: &Reservation) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let shared = &engine.shared;
        // BOUND: writers that hold smaller numbers only have to finish copying.
        if !shared.sequencer.wait_visible(reservation.first - 1) {
            return Err(engine.check_writable().err().unwrap_or_else(Error::closed));
        }
        let last = self.seq - 1;
        if self.is_for_buffer() || self.is_hidden(last)? && self.turn_to_buffer()? {
            let front = &engine.stages.front;
            engine.wait_until(&|| !front.has_sealed_before(self.seq))?;
        } else {
            // BOUND: no older data is added.
            self.sink_below(last)?;
        }
        let completions = match std::mem::replace(&mut self.sink, Sink::empty()) {
            Sink::Bottom { writer, .. } => vec![writer.complete()],
            Sink::Buffer { tables, .. } => tables,
        };
        let mut edit = Edit::of(Change::LastSeq { seq: self.seq });
        // If an open finds no log of these entries, it still has to know that entries expire.
        edit.changes.extend(shared.time_told());
        let mut applies = Vec::new();
        for completion in completions {
            edit.changes.extend(completion.edit.changes);
            applies.push(completion.apply);
        }
        // PERSIST: every table, and the names of files, are durable before the one edit that names
        // them all. Reversed, a crash could leave a name without a table.
        // CRASH: before the edit nothing names the tables, and opening the database removes files
        // and reuses the space; after it all of them are there.
        shared.manifest.commit(edit).map_err(|e| {
            let e = Error::from(e);
            if e.kind() != ErrorKind::Full {
                engine.fail(&e);
            }
            e
        })?;
        if engine.jobs.hold_off(|| self.show(applies, reservation)) {
            return Ok(());
        }
        Err(engine.check_writable().err().unwrap_or_else(Error::closed))
    }

    /// Hands the tables to their stages and shows them, with their number. Returns false if a
    /// writer has failed.
    fn show(&self, applies: Vec<Box<dyn FnOnce() + Send>>, reservation: &Reservation) -> bool {
        let shared = &self.engine.shared;
        let mut published = false;
        let build = || {
            // Under the lock of views, so that no other view shows the entries early.
            applies.into_iter().for_each(|apply| apply());
            canary::stand_still();
            self.engine.stages.parts(shared)
        };
        self.engine.views.install_during(build, Vec::new(), |show| {
            // No snapshot comes between: a snapshot without the number does not have the view, and
            // after a read that has seen an entry, snapshots see it too.
            shared.snapshots.hold_off(|| {
                show();
                // PERSIST: the edit, before any reader sees an entry. Reversed, a crash could take
                // back what a reader has seen.
                published = shared.sequencer.publish(reservation);
            });
        });
        published
    }

    /// Returns whether a source above the bottom contains an entry up to `seq`, or a range delete,
    /// between the first and the last key. A merge may be moving it to an older table, which is
    /// read later.
    fn is_hidden(&self, seq: SeqNo) -> Result<bool> {
        for source in self.engine.stages.sources_above() {
            if source.seqs().0 > seq {
                continue;
            }
            let mut cursor = source.cursor();
            cursor.hold();
            let found = self
                .is_in(&mut *cursor, seq)
                .and_then(|found| Ok(found || self.is_deleted_in(&mut *cursor, seq)?));
            cursor.release();
            if found? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether a source contains an entry up to `seq` between the first and the last key.
    fn is_in(&self, cursor: &mut dyn Cursor, seq: SeqNo) -> Result<bool> {
        let Some(first) = &self.first else {
            return Ok(false);
        };
        cursor.seek(&Target::first_of(self.keyspace, first))?;
        // BOUND: entries above `seq` came since it was read, or belong to writers that wait for
        // this ingest.
        while let Some(entry) = cursor.entry()? {
            if (entry.keyspace, entry.key) > (self.keyspace, self.last.as_slice()) {
                return Ok(false);
            }
            if entry.seq <= seq {
                return Ok(true);
            }
            cursor.advance()?;
        }
        Ok(false)
    }

    /// Returns whether a source contains a range delete up to `seq` over any key between the first
    /// and the last. A point read that finds one above does not search below.
    fn is_deleted_in(&self, cursor: &mut dyn Cursor, seq: SeqNo) -> Result<bool> {
        let Some(first) = &self.first else {
            return Ok(false);
        };
        let keyspace = self.keyspace | RANGE_DELETE_BIT;
        cursor.seek(&Target::first_of(keyspace, &[]))?;
        // BOUND: the range deletes of one source. All are read, because they are ordered by the
        // length of their first key before the key.
        while let Some(entry) = cursor.entry()? {
            if entry.keyspace != keyspace {
                return Ok(false);
            }
            let range = RangeDelete::from_entry(entry.keyspace, entry.key, entry.seq, 0)?;
            let reaches = range.begin <= self.last && (range.end.is_empty() || range.end > *first);
            if range.is_some() && reaches && range.seq <= seq {
                return Ok(true);
            }
            cursor.advance()?;
        }
        Ok(false)
    }
}

/// Adds a put, with its expiry or 0.
fn push(batch: &mut Batch, keyspace: u32, key: &[u8], value: &[u8], expiry: Millis) {
    match expiry {
        0 => batch.push(EntryKind::Put, keyspace, key, value),
        expiry => batch.push_expiring(keyspace, key, value, expiry),
    }
}

/// Writes puts that were kept.
fn add_all(writer: &mut dyn IngestWriter, batch: &Batch) -> Result<()> {
    for entry in batch.payload.iter() {
        let (expiry, value) = match entry.kind == EntryKind::PutExpiring as u8 {
            true => expiring::decode(entry.value, 0)?,
            false => (0, entry.value),
        };
        writer.add(entry.keyspace, entry.key, value, expiry)?;
    }
    Ok(())
}

impl Sink {
    fn empty() -> Sink {
        Sink::Buffer {
            batch: Batch::default(),
            tables: Vec::new(),
        }
    }
}

impl Engine {
    /// Takes every number up to `seq`, behind a fresh memtable.
    fn reserve(self: &Arc<Self>, seq: SeqNo) -> Result<Reservation> {
        let front = &self.stages.front;
        self.admit(&Need::Numbers, &mut || {
            let reserved = front.reserve(seq)?;
            Ok(reserved.map(|(reservation, _held)| {
                self.install_view();
                reservation
            }))
        })
    }

    /// Writes a table of the entries of `batch`, which nothing names yet. It takes space that a put
    /// might take too, so it waits by the rule of puts, as long as background work can free some.
    /// It holds nothing that this work or writers need.
    pub(super) fn table_apart(self: &Arc<Self>, batch: &Batch, seq: SeqNo) -> Result<Completion> {
        self.admit(&Need::Pool, &mut || self.try_table_apart(batch, seq))
    }

    /// Does the same if the pool has space now.
    fn try_table_apart(&self, batch: &Batch, seq: SeqNo) -> Result<Option<Completion>> {
        let Some(buffer) = &self.stages.buffer else {
            return Err(Error::invalid(
                "this design has no buffer that accepts tables",
            ));
        };
        let bytes = SpareBytes {
            extents: [table_bytes(batch), 0],
            ..SpareBytes::default()
        };
        if !self.headroom().allows(bytes) {
            return Ok(None);
        }
        let built = buffer.build(batch, seq);
        match built.and_then(|job| self.run_apart(job, &mut || {})) {
            // Another writer was first.
            Err(e) if is_pool_full(&e) || is_held_by_readers(&e) => Ok(None),
            table => table.map(Some),
        }
    }
}

/// The most bytes of entries that an ingest keeps, or that a table of it has.
const FEW_BYTES: u64 = 64 << 20;

/// The greatest number of bytes that a table of the buffer adds to a key and its value.
const ENTRY_BESIDE_BYTES: u64 = 96;

/// Returns about how many bytes the entries of a batch take in a table of the buffer.
fn table_bytes(batch: &Batch) -> u64 {
    batch.payload.len_bytes() as u64 + batch.len() as u64 * ENTRY_BESIDE_BYTES
}

/// Returns whether the pool has no room for an extent.
fn is_pool_full(e: &Error) -> bool {
    let source = std::error::Error::source(e).and_then(|source| source.downcast_ref());
    matches!(source, Some(AllocError::Full { .. }))
}
