//! Front of a write-ahead log and a DRAM memtable (MioDB, 4.1 and 4.7, and LevelDB before it).
//!
//! A write takes its sequence numbers, its place in the log and its place in the memtable under one
//! short lock, then writes its own checksummed record, inserts its entries and publishes, all
//! concurrently with other writers. There is one record for each batch, not for each group: on
//! persistent memory a fence costs about 0.1 us, less than waking a queue of followers; on files
//! the sync, not the append, is worth sharing, and it is shared outside the lock.
//!
//! A spare memtable with its log and its place in the pool is kept ready, so that sealing a full
//! memtable swaps pointers.
//!
//! Invariants
//!   W1  Sequence numbers of a memtable are all above those of every memtable sealed before it.
//!   W2  A log is named in the manifest before its first record is written, and retired by the edit
//!       that names the new place of its entries: a table in a pool, or files below it.
//!   W3  An entry is visible only after its record is in the log, and never without the others of
//!       its batch.
//!
//! After a crash: recover.rs. Callers: writers on any thread; one job at a time makes spares.

mod apart;
mod ended;
mod files;
mod in_log;
mod index;
mod memtable;
mod prefault;
pub(crate) mod recover;
mod replay;
mod spare;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrace_media::Extent;

use crate::canary::{self, Canary, failpoint};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{Metrics, OpCounter};
use crate::parts::batch::Batch;
use crate::parts::manifest::{Change, Edit};
use crate::parts::sequence::Reservation;
use crate::stages::{
    Deletes, Form, Front, FrontShape, Job, ListImage, Pending, Replay, Rotated, Sealed, Shared,
    Source, Sources, Spares, WritersHeld, Written,
};
use crate::types::{Durability, SeqNo};

use ended::finish;
use files::{LogFiles, end_log};
use in_log::Values;
use memtable::{Admits, Arenas, Memtable};
use prefault::Unfaulted;
use replay::FoundLog;
use spare::fits;

/// The front of one database.
pub(crate) struct WalMemtable {
    /// The extent whose offsets memtables use in links if they are not copied into the pool: one
    /// for all, never written. `None`: each memtable has its own extent, where its flush goes.
    anchor: Option<Arc<Extent>>,
    flush_to: FlushTo,
    /// Whether values stay in logs.
    in_log: bool,
    shared: Arc<Shared>,
    tables: Arc<Tables>,
    /// Guards sequence numbers, log places and memtable places, and the choice of `active`.
    /// LOCK: first of all locks of the write path.
    commit: Mutex<()>,
    /// Held by a guard during a write: the cache line of a reference count would bounce between
    /// cores.
    active: ArcSwap<Memtable>,
    /// Whether writing has ended; changed and read under the commit lock.
    closed: AtomicBool,
    /// Whether `Volatile` writes are logged too; changed and read under the commit lock.
    logs_all: AtomicBool,
    spare: Mutex<Option<Arc<Memtable>>>,
    /// LOCK: one spare is made at a time; taken before `spare`.
    making: Mutex<()>,
    /// Extents that the next opening finds free.
    for_next_opening: Mutex<Vec<Arc<Extent>>>,
    /// Memory that writers will reach soon.
    unfaulted: Arc<Unfaulted>,
    arenas: Arc<Arenas>,
    log_files: Arc<LogFiles>,
    /// Logs that recovery found and has not replayed yet, oldest first.
    found: Arc<Mutex<VecDeque<FoundLog>>>,
}

/// The destination of a sealed memtable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushTo {
    /// Into the pool unchanged: each memtable has an extent from the start.
    Pool,
    /// As `Pool`, and if that outlives the process, a memtable in DRAM is followed by one in the
    /// pool that is its own log, and that by one in DRAM (NoveLSM, 4.3).
    PoolInTurns,
    /// Entry by entry to a buffer. As in `Pool`, the log is needed for longer if the pool ends with
    /// the process.
    Buffer,
    /// Entry by entry to the bottom, in files: the pool holds only its log.
    Bottom,
    /// As it is, with its log, to a buffer that keeps both. In a pool on a medium its values are in
    /// the log alone.
    Tables,
}

/// The largest batch in bytes of entries.
const BATCH_BYTES_MAX: u64 = 1 << 30;

/// Returns the sizes of the front of a database that is opened with these options.
pub(crate) fn shape(shared: &Shared) -> FrontShape {
    let front = &shared.options.front;
    // The batch's own memtable, its log, and its copy in the bottom must fit at one time. A small
    // disk makes no batch invalid.
    let memtable_bytes = match shared.options.design_of_new().keeps_tables_in_logs() {
        true => front.memtable_bytes,
        false => shared.stated.front.memtable_bytes,
    };
    let batch_bytes = (shared.options.pool.size_bytes / 8).max(memtable_bytes / 2);
    FrontShape {
        memtable_bytes: front.memtable_bytes,
        sealed_count_max: front.sealed_count_max,
        log_bytes_max: front.log_bytes_max,
        batch_bytes_max: batch_bytes.min(BATCH_BYTES_MAX),
    }
}

/// The memtables that readers see.
pub(super) struct Tables(Mutex<Shown>);

pub(super) struct Shown {
    active: Arc<Memtable>,
    /// Sealed memtables, oldest first.
    sealed: Vec<Waiting>,
}

struct Waiting {
    memtable: Arc<Memtable>,
    /// Whether a flush has taken it.
    taken: bool,
}

impl WalMemtable {
    /// Does the same as `Front::rotate`, under the commit lock. Returns whether a memtable is
    /// sealed; `None` if there is no spare.
    fn rotate_held(&self, full: Option<(&Batch, u64)>) -> Option<bool> {
        let active = self.active.load();
        let batch = full.map(|(batch, _)| batch);
        let replaced = full.is_some_and(|(_, id)| id != active.id);
        let empty = full.is_none() && active.entry_count() == 0;
        if replaced || empty {
            return Some(false);
        }
        let fits = |spare: &mut Arc<Memtable>| batch.is_none_or(|batch| fits(spare, batch));
        let next = self.spare.lock().take_if(fits)?;
        if let Some(log) = &active.log {
            // PERSIST: gathered records before the first one of the next log is acknowledged.
            // Reversed, a power loss could take earlier writes than those that survive.
            log.end_gathering();
        }
        {
            let mut shown = self.tables.0.lock();
            // Under this lock: a flush that does not find its entries in the active memtable looks
            // for them among the sealed ones. Outside, it could miss them in both.
            self.active.store(Arc::clone(&next));
            let sealed = std::mem::replace(&mut shown.active, next);
            let sealed = || Waiting {
                memtable: Arc::clone(&sealed),
                taken: false,
            };
            failpoint!(FlushTwice => shown.sealed.push(sealed()));
            shown.sealed.push(sealed());
        }
        Some(true)
    }
}

/// Stops all writing and returns the error of a failed append. Never `Full`, even if the system
/// reports that: it would promise that nothing of the write is visible and that other writes go on.
/// The record may be in the log, and no write follows it.
fn append_failed(shared: &Shared, e: std::io::Error) -> Error {
    shared.sequencer.break_off();
    Error::new(
        ErrorKind::Io,
        format!(
            "cannot write a record to the log, and it may or may not survive: reopen the database \
             ({e})"
        ),
    )
    .because(e)
}

fn not_published() -> Error {
    Error::new(
        ErrorKind::Stopped,
        "an earlier write failed, so later writes cannot be trusted: reopen the database",
    )
}

impl FlushTo {
    /// Returns the places of values in memtables that go there.
    fn values(self, shared: &Shared) -> Values {
        match self == FlushTo::Tables && shared.pool_outlives() {
            true => Values::InLog(shared.pool.region().clone()),
            false => Values::InNodes,
        }
    }
}

impl WalMemtable {
    fn values(&self) -> Values {
        self.flush_to.values(&self.shared)
    }

    /// Returns the memtables that have not been flushed.
    fn memtables(&self) -> Vec<Arc<Memtable>> {
        let shown = self.tables.0.lock();
        let sealed = shown.sealed.iter().map(|sealed| &sealed.memtable);
        sealed.chain([&shown.active]).cloned().collect()
    }

    /// Makes all writes up to memtable `id` durable against power loss.
    ///
    /// Oldest first, so that a failed sync leaves a prefix durable: logs that are left unsynced are
    /// older than those of all memtables. A memtable that is flushed meanwhile may be among both.
    fn sync(&self, id: u64) -> Result<()> {
        let memtables = self.memtables();
        self.sync_left()?;
        // The last one is active.
        let sealed = memtables.len() - 1;
        for (at, memtable) in memtables.iter().enumerate().filter(|(_, m)| m.id <= id) {
            if let Some(log) = &memtable.log {
                log.sync().map_err(|e| append_failed(&self.shared, e))?;
                if at < sealed {
                    end_log(&self.shared, memtable.id, &**log, None);
                }
            }
        }
        Ok(())
    }

    /// Syncs the logs that memtables have left unsynced when they became tables in memory.
    fn sync_left(&self) -> Result<()> {
        let left = self.log_files.sync_left();
        left.map_err(|e| append_failed(&self.shared, e))
    }
}

impl Front for WalMemtable {
    fn shape(&self) -> FrontShape {
        shape(&self.shared)
    }

    fn write(
        &self,
        batch: &mut Batch,
        durability: Durability,
        refusals: u64,
    ) -> Result<Written<'_>> {
        let sequencer = &self.shared.sequencer;
        let count = batch.len() as u64;
        let commit = self.commit.lock();
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::closed());
        }
        // Under the lock under which the drop takes its number: an acknowledged write is before the
        // drop.
        if self.shared.dropped.refusals() != refusals {
            return Ok(Written::KeyspaceDropped);
        }
        let memtable = self.active.load();
        let durability = match durability {
            Durability::Volatile if self.logs_all.load(Ordering::Relaxed) => Durability::Buffered,
            asked => asked,
        };
        // A log that is the table takes all entries.
        let logged = durability != Durability::Volatile || self.in_log || memtable.is_list();
        let first = sequencer.last_taken() + 1;
        let bytes = memtable.node_bytes(batch, first, logged);
        let used = memtable.bump.used();
        let entries = memtable.entry_count() + count;
        let needed = bytes as u64 + memtable.index.lacks(entries);
        let takes = memtable.takes(batch) || self.admits_deletes(&memtable, batch);
        if !takes || memtable.bump.remaining() < needed {
            return Ok(Written::NeedsRoom(memtable.id));
        }
        let log = memtable.log.as_deref().filter(|_| logged);
        let slot = match log {
            Some(log) => {
                let record = match memtable.is_list() {
                    true => bytes,
                    false => batch.payload.len_bytes(),
                };
                let slot = match durability {
                    Durability::Volatile => log.reserve_gathered(record),
                    Durability::Buffered | Durability::Sync => log.reserve(record),
                };
                match slot {
                    Some(slot) => Some(slot),
                    None => return Ok(Written::NeedsRoom(memtable.id)),
                }
            }
            None => None,
        };
        let grown = memtable.index.grow(&memtable.bump, entries);
        let claim = memtable.bump.lend(bytes, 8).filter(|_| grown);
        let Some(mut claim) = claim else {
            // No other writer claims while the lock is held, so the space that was there still is.
            sequencer.break_off();
            return Err(not_published());
        };
        // Dropped on any failure from here on, it stops the store.
        let mut pending = Pending::new(sequencer, sequencer.take(count), memtable.id);
        memtable.count(first, count, batch.deletes());
        if !logged {
            memtable.mark_unlogged();
            let newest = &self.shared.newest_unlogged;
            newest.store(first + count - 1, Ordering::Relaxed);
        }
        let ranges = match batch.ranges() {
            0 => Vec::new(),
            _ => batch.range_deletes(first),
        };
        memtable.late.add(&ranges);
        let due = memtable.spare_due_at();
        pending.spare_due = (used..memtable.bump.used()).contains(&due)
            || slot
                .as_ref()
                .is_some_and(|slot| memtable.log_passes_due(slot.bytes()));
        // The offset in the pool of the first byte of entries.
        let logged_at = match (&slot, &memtable.log_extent) {
            (Some(slot), Some(extent)) => Some(extent.off() + slot.payload_at()),
            _ => None,
        };
        drop(commit);

        // The search for its place begins here, so that its loads overlap with the writing of the
        // record.
        let mut next = batch
            .payload
            .iter()
            .next()
            .map(|e| memtable.approach(&e, first));
        let lost = canary::breaks(Canary::LogRecord) && first.is_multiple_of(16);
        let mut placed = None;
        if let (Some(log), Some(slot), false) = (log, slot, lost) {
            if matches!(self.shared.pool.medium(), terrace_media::Medium::Dram) {
                self.shared
                    .counters
                    .add(OpCounter::LogFileBytes, slot.bytes());
            }
            let record = log.place(slot, first, &mut batch.payload);
            placed = Some((log, record.map_err(|e| append_failed(&self.shared, e))?));
        }
        let mut at = 0;
        let mut entries = (first..)
            .zip(batch.payload.iter().zip(batch.hashes()))
            .peekable();
        while let Some((seq, (entry, &hash))) = entries.next() {
            let approach = next.take().unwrap_or_default();
            next = entries
                .peek()
                .map(|(seq, (e, _))| memtable.approach(e, *seq));
            let logged_at = logged_at.map(|payload| payload + entry.value_at);
            let numbered = (hash, seq, next.is_some());
            at += memtable.insert(approach, &mut claim, at, (&entry, logged_at), numbered)?;
        }
        if !ranges.is_empty() {
            let readable = self.shared.readable();
            self.shared.ranges.add(ranges, &readable, logged);
            pending.needs_view = true;
        }
        if let Some((log, record)) = placed {
            // PERSIST: the record before the entries are visible (W3). Reversed, a reader could see
            // a value that a crash then takes back, as one of a `Volatile` write may be. The copy
            // had the time of the search above to reach the medium, so little is left to wait for.
            log.settle(record);
        }
        Ok(Written::Pending(pending))
    }

    fn publish(&self, pending: Pending<'_>, durability: Durability) -> Result<()> {
        let memtable = pending.memtable;
        // PERSIST: the record before the entries are visible: `write` has settled it (W3).
        if !pending.publish() {
            return Err(not_published());
        }
        if durability == Durability::Sync {
            // Earlier logs too: the durable writes are a prefix of the acknowledged ones.
            self.sync(memtable)?;
        }
        Ok(())
    }

    fn rotate(&self, full: Option<(&Batch, u64)>) -> Result<Rotated<'_>> {
        let commit = self.commit.lock();
        Ok(match self.rotate_held(full) {
            None => Rotated::NoSpare,
            Some(false) => Rotated::Unneeded,
            Some(true) => Rotated::Sealed(WritersHeld { _lock: commit }),
        })
    }

    fn hold_off_writers(&self) -> WritersHeld<'_> {
        WritersHeld {
            _lock: self.commit.lock(),
        }
    }

    fn reserve(&self, upto: SeqNo) -> Result<Option<(Reservation, WritersHeld<'_>)>> {
        let sequencer = &self.shared.sequencer;
        let commit = self.commit.lock();
        let first = sequencer.last_taken() + 1;
        if first > upto {
            return Err(Error::invalid(
                "too much was written since the ingest began: start the ingest again",
            ));
        }
        if self.rotate_held(None).is_none() {
            return Ok(None);
        }
        let reservation = sequencer.take(upto - first + 1);
        Ok(Some((reservation, WritersHeld { _lock: commit })))
    }

    fn active_deletes(&self) -> Deletes {
        let active = self.active.load();
        match active.late.any() || active.admits != Admits::All {
            true => Deletes::Ranges,
            false if active.delete_count() > 0 => Deletes::Single,
            false => Deletes::None,
        }
    }

    fn has_mostly_deletes(&self) -> bool {
        let shown = self.tables.0.lock();
        let sealed = shown.sealed.iter().map(|sealed| &sealed.memtable);
        let active = self.active.load();
        let counts = sealed
            .chain([&*active])
            .map(|memtable| (memtable.delete_count(), memtable.entry_count()));
        let (deletes, entries) = counts.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        deletes > 0 && 2 * deletes >= entries
    }

    fn has_active_before(&self, seq: SeqNo) -> bool {
        self.active.load().seqs().0 < seq
    }

    fn has_sealed_before(&self, seq: SeqNo) -> bool {
        let shown = self.tables.0.lock();
        shown.sealed.iter().any(|s| s.memtable.seqs().0 < seq)
    }

    fn next_job(&self) -> Option<Box<dyn Job>> {
        self.unfaulted.next_job()
    }

    fn spares(&self) -> Option<&dyn Spares> {
        Some(self)
    }

    fn next_sealed(&self) -> Result<Option<Sealed>> {
        let memtable = {
            let mut shown = self.tables.0.lock();
            // One flush at a time: tables must reach the buffer in the order of their age.
            if shown.sealed.first().is_none_or(|sealed| sealed.taken) {
                return Ok(None);
            }
            shown.sealed[0].taken = true;
            Arc::clone(&shown.sealed[0].memtable)
        };
        let (seq_first, seq_last) = memtable.seqs();
        let id = memtable.id;
        let tables = Arc::clone(&self.tables);
        let shared = Arc::clone(&self.shared);
        let log_files = Arc::clone(&self.log_files);
        let flush_to = self.flush_to;
        let form = match flush_to {
            FlushTo::Buffer | FlushTo::Bottom => Form::Entries,
            FlushTo::Tables => Form::Source(Arc::clone(&memtable) as Arc<dyn Source>),
            FlushTo::Pool | FlushTo::PoolInTurns => Form::List(ListImage {
                region: memtable.bump.region().clone(),
                extent: Arc::clone(&memtable.extent),
                in_place: memtable.is_in_place(),
                readers: Arc::clone(&memtable.readers),
            }),
        };
        let opened = Arc::clone(&memtable);
        Ok(Some(Sealed {
            id,
            entries: memtable.entry_count(),
            bytes: memtable.used_bytes(),
            seq_first,
            seq_last,
            late: memtable.late.any().then(|| Arc::clone(&memtable.late)),
            logs: memtable.logs.clone(),
            open: Box::new(move || opened.cursor()),
            form,
            finish: Box::new(move || finish(&shared, &log_files, &memtable, flush_to)),
            forget: Box::new(move || {
                let sealed = &mut tables.0.lock().sealed;
                if let Some(at) = sealed.iter().position(|sealed| sealed.memtable.id == id) {
                    sealed.remove(at);
                }
            }),
        }))
    }

    fn sealed_count(&self) -> usize {
        self.tables.0.lock().sealed.len()
    }

    fn unflushed_bytes(&self) -> u64 {
        let shown = self.tables.0.lock();
        let sealed = shown.sealed.iter().map(|sealed| &sealed.memtable);
        let all = sealed.chain([&shown.active]);
        all.map(|memtable| memtable.used_bytes()).sum()
    }

    fn wants_flush_to_close(&self) -> bool {
        let memtable = self.active.load();
        memtable.has_unlogged() || memtable.is_spare_due()
    }

    fn sync_logs(&self) -> Result<SeqNo> {
        // Before the sync: it may miss entries that become visible meanwhile.
        let upto = self.shared.sequencer.visible();
        self.sync(u64::MAX).map(|()| upto)
    }

    fn log_all(&self) {
        let _commit = self.commit.lock();
        self.logs_all.store(true, Ordering::Relaxed);
    }

    fn close(&self) -> Result<Vec<u64>> {
        let active = {
            let _commit = self.commit.lock();
            self.closed.store(true, Ordering::Relaxed);
            self.active.load_full()
        };
        // BOUND: writers that hold numbers only have to finish copying.
        let sequencer = &self.shared.sequencer;
        if !sequencer.wait_visible(sequencer.last_taken()) {
            return Err(not_published());
        }
        self.sync(active.id)?;
        let gives_up = || {
            self.memtables()
                .iter()
                .any(|memtable| memtable.has_unlogged())
        };
        if self.flush_to == FlushTo::PoolInTurns && self.shared.pool_outlives() && gives_up() {
            let seq = sequencer.last_taken();
            // PERSIST: the numbers of entries that are given up, before the pool counts as closed.
            // Reversed, the next opening would use them again, and copies of these entries in the
            // pool would pass for those of a list (N2 of parts/log/list.rs).
            self.shared
                .manifest
                .commit(Edit::of(Change::LastSeq { seq }))?;
        }
        let _one = self.making.lock();
        let spare = self.spare.lock().take();
        for memtable in self.memtables().iter().chain(&spare) {
            if let Some(log) = &memtable.log {
                let next_seq = memtable.seqs().1 + 1;
                end_log(&self.shared, memtable.id, &**log, Some(next_seq));
            }
        }
        let mut logs: Vec<u64> = spare.iter().flat_map(|s| s.logs.clone()).collect();
        if active.entry_count() == 0 {
            logs.extend(&active.logs);
        }
        self.log_files.close();
        Ok(logs)
    }

    fn log_file_bytes(&self) -> u64 {
        self.log_files.live_bytes()
    }

    fn logs_retired(&self, logs: &[u64]) {
        logs.iter().for_each(|&id| self.log_files.retire(id));
    }

    fn rest(&self) {
        self.log_files.remove_idle();
    }

    fn replay(&self) -> Option<&dyn Replay> {
        Some(self)
    }

    fn sources(&self) -> Sources {
        let shown = self.tables.0.lock();
        let mut sources: Sources = vec![Arc::clone(&shown.active) as Arc<dyn Source>];
        let sealed = shown.sealed.iter().rev();
        sources.extend(sealed.map(|s| Arc::clone(&s.memtable) as Arc<dyn Source>));
        sources
    }

    fn measure(&self, metrics: &mut Metrics) {
        let shown = self.tables.0.lock();
        metrics.sealed_count = shown.sealed.len() as u64;
        let sealed = shown.sealed.iter().map(|sealed| &sealed.memtable);
        for memtable in sealed.chain([&shown.active]) {
            metrics.memtable_bytes += memtable.used_bytes();
            if memtable.is_list() {
                metrics.pm_memtable_bytes += memtable.used_bytes();
            }
            let log = memtable.log.as_ref().filter(|_| !memtable.is_list());
            metrics.log_bytes += log.map_or(0, |log| log.bytes());
        }
    }
}
