//! Front of a write-ahead log and a DRAM memtable (MioDB 4.1, and LevelDB before it).
//!
//! A write takes its sequence numbers, its place in the log and its place in the memtable under one
//! short lock, then writes its own checksummed record, inserts its entries and publishes, all
//! beside other writers. One record a batch and not one a group: on persistent memory a fence costs
//! about 0.1 us, less than waking a queue of followers; on files the sync, not the append, is
//! what is worth sharing, and it is shared outside the lock.
//!
//! A spare memtable with its log and its place in the pool is kept ready, so that sealing a full
//! memtable swaps pointers.
//!
//! Invariants
//!   W1  Sequence numbers of a memtable are all above those of every memtable sealed before it.
//!   W2  A log is named in the manifest before its first record is written, and retired by the edit
//!       that names the table which its entries have become.
//!   W3  An entry is visible only after its record is in the log, and never without the others of
//!       its batch.
//!
//! After a crash: recover.rs. Callers: writers on any thread; one job at a time makes spares.

mod memtable;
pub(crate) mod recover;
mod spare;

use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::Extent;

use crate::canary::{self, Canary};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{Metrics, OpCounter};
use crate::parts::batch::Batch;
use crate::parts::manifest::{Change, Edit};
use crate::stages::{Folder, Front, Ground, Job, Replayed, SealedTable, Source, Sources, Written};
use crate::types::Durability;

use memtable::{Arenas, Memtable};
use recover::FoundLog;
use spare::FaultIn;

/// The front of one database.
pub(crate) struct WalMemtable {
    /// Where memtables are linked for when nothing copies them into the pool: one place for all,
    /// which nobody writes. `None`: each has an extent, where its flush goes.
    anchor: Option<Arc<Extent>>,
    ground: Arc<Ground>,
    tables: Arc<Tables>,
    /// Guards sequence numbers, log places and memtable places; holds the active memtable.
    /// LOCK: first of all locks of the write path.
    commit: Mutex<Arc<Memtable>>,
    spare: Mutex<Option<Memtable>>,
    /// LOCK: one spare is made at a time; taken before `spare`.
    making: Mutex<()>,
    /// What is left to be done about the first memtable.
    cold: Mutex<Option<FaultIn>>,
    arenas: Arc<Arenas>,
    files: Folder,
    /// Logs that recovery found and has not replayed yet, oldest first.
    found: Mutex<Vec<FoundLog>>,
}

/// Where a sealed memtable goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushTo {
    /// Into the pool as it is: each memtable has an extent from the start.
    Pool,
    /// Entry by entry to the bottom: the pool has nothing but its log.
    Bottom,
}

/// What readers see of the front.
pub(super) struct Tables(Mutex<Shown>);

pub(super) struct Shown {
    active: Arc<Memtable>,
    /// Oldest first.
    sealed: Vec<Sealed>,
}

struct Sealed {
    memtable: Arc<Memtable>,
    /// A flush has taken it.
    taken: bool,
}

impl WalMemtable {
    fn spare_fits(&self, spare: &Memtable, batch: Option<&Batch>) -> bool {
        batch.is_none_or(|batch| {
            let needed = Memtable::bytes_for(batch.payload.len_bytes(), batch.len());
            spare.bump.capacity() >= needed && spare::log_fits(spare, batch)
        })
    }
}

/// Waits until all writers of a sealed memtable are done, and makes its log durable.
fn settle(ground: &Ground, memtable: &Memtable) -> Result<()> {
    // BOUND: writers that hold numbers of this memtable only have to finish copying.
    if !ground.sequencer.wait_visible(memtable.seqs().1) {
        return Err(not_published());
    }
    match &memtable.log {
        // On `Dram` the log stays what the entries live by, and nobody syncs it later.
        Some(log) => log.sync().map_err(|e| append_failed(ground, e)),
        None => Ok(()),
    }
}

fn append_failed(ground: &Ground, e: std::io::Error) -> Error {
    ground.sequencer.break_off();
    Error::new(
        match e.kind() {
            std::io::ErrorKind::StorageFull => ErrorKind::Full,
            _ => ErrorKind::Io,
        },
        format!("a record cannot be written to the log: {e}"),
    )
    .because(e)
}

fn not_published() -> Error {
    Error::new(
        ErrorKind::Stopped,
        "a write before this one failed, so nothing after it may be trusted: reopen the database",
    )
}

impl Front for WalMemtable {
    fn write(&self, batch: &mut Batch, durability: Durability) -> Result<Written> {
        let sequencer = &self.ground.sequencer;
        let count = batch.len() as u64;
        let logged = durability != Durability::Volatile;
        let commit = self.commit.lock();
        let memtable = Arc::clone(&commit);
        let first = sequencer.last_taken() + 1;
        let bytes = Memtable::node_bytes(batch, first);
        if memtable.bump.remaining() < bytes as u64 {
            return Ok(Written::NeedsRoom(memtable.id));
        }
        let log = memtable.log.as_deref().filter(|_| logged);
        let slot = match log {
            Some(log) => match log.reserve(batch.payload.len_bytes()) {
                Some(slot) => Some(slot),
                None => return Ok(Written::NeedsRoom(memtable.id)),
            },
            None => None,
        };
        let Some(mut claim) = memtable.bump.lend(bytes, 8) else {
            // Nobody else claims while the lock is held, so the room that was there still is.
            sequencer.break_off();
            return Err(not_published());
        };
        sequencer.take(count);
        memtable.count(first, count);
        if !logged {
            memtable.mark_unlogged();
        }
        let due = memtable.spare_due_at();
        let spare_due = (memtable.bump.used() - bytes as u64..memtable.bump.used()).contains(&due);
        drop(commit);

        let lost = canary::breaks(Canary::LogRecord) && first.is_multiple_of(16);
        let mut placed = None;
        if let (Some(log), Some(slot), false) = (log, slot, lost) {
            if matches!(self.ground.pool.medium(), terrace_media::Medium::Dram) {
                self.ground
                    .counters
                    .add(OpCounter::LogFileBytes, slot.bytes());
            }
            let record = log.place(slot, first, &mut batch.payload);
            placed = Some((log, record.map_err(|e| append_failed(&self.ground, e))?));
        }
        let mut at = 0;
        for (seq, (entry, &hash)) in (first..).zip(batch.payload.iter().zip(batch.hashes())) {
            match memtable.insert(&mut claim, at, &entry, hash, seq) {
                Ok(bytes) => at += bytes,
                Err(e) => {
                    sequencer.break_off();
                    return Err(e);
                }
            }
        }
        if let Some((log, record)) = placed {
            // PERSIST: the record before the entries are visible (W3). Reversed, somebody could
            // read a value that a crash then takes back. The copy had the time of the search above
            // to reach the medium, so little is left to wait for.
            log.settle(record);
        }
        if !sequencer.publish(first, count) {
            return Err(not_published());
        }
        if durability == Durability::Sync {
            // Earlier logs too: what is durable is a prefix of what was acknowledged.
            self.sync()?;
        }
        Ok(Written::Done { spare_due })
    }

    fn rotate(&self, full: Option<(&Batch, u64)>, install: &dyn Fn()) -> Result<bool> {
        let mut commit = self.commit.lock();
        let batch = full.map(|(batch, _)| batch);
        let replaced = full.is_some_and(|(_, id)| id != commit.id);
        let empty = full.is_none() && commit.entry_count() == 0;
        if replaced || empty {
            return Ok(true);
        }
        {
            let mut spare = self.spare.lock();
            if !spare
                .as_ref()
                .is_some_and(|spare| self.spare_fits(spare, batch))
            {
                return Ok(false);
            }
            let Some(next) = spare.take() else {
                return Ok(false);
            };
            *commit = Arc::new(next);
        }
        {
            let mut shown = self.tables.0.lock();
            let sealed = std::mem::replace(&mut shown.active, Arc::clone(&commit));
            if canary::breaks(Canary::FlushTwice) {
                let memtable = Arc::clone(&sealed);
                let taken = false;
                shown.sealed.push(Sealed { memtable, taken });
            }
            shown.sealed.push(Sealed {
                memtable: sealed,
                taken: false,
            });
        }
        // Readers must be able to see the new memtable before anything in it is published.
        if !canary::breaks(Canary::ViewSkipped) {
            install();
        }
        Ok(true)
    }

    fn wants_spare(&self) -> bool {
        let filling = {
            let shown = self.tables.0.lock();
            shown.active.bump.used() > shown.active.spare_due_at()
        };
        filling
            && self.spare.lock().is_none()
            && self.sealed_count() < self.ground.options.front.sealed_count_max
    }

    fn next_job(&self) -> Option<Box<dyn Job>> {
        let cold = self.cold.lock().take()?;
        Some(Box::new(cold))
    }

    fn spare_bytes(&self, batch: Option<&Batch>) -> u64 {
        let (table, log) = self.spare_sizes(batch);
        match &self.anchor {
            Some(_) => log,
            None => table + log,
        }
    }

    fn prepare_spare(&self, batch: Option<&Batch>) -> Result<()> {
        let _one = self.making.lock();
        {
            let mut spare = self.spare.lock();
            match spare.take() {
                Some(ready) if self.spare_fits(&ready, batch) => {
                    *spare = Some(ready);
                    return Ok(());
                }
                Some(small) => {
                    let retired = Change::LogRetired { id: small.id };
                    // PERSIST: retired before its extents are free again, which is when it drops.
                    self.ground.manifest.commit(Edit {
                        changes: vec![retired],
                    })?;
                }
                None => {}
            }
        }
        let spare = self.make_spare(batch)?;
        *self.spare.lock() = Some(spare);
        Ok(())
    }

    fn next_sealed(&self) -> Result<Option<SealedTable>> {
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
        let retire = memtable
            .logs
            .iter()
            .map(|&id| Change::LogRetired { id })
            .collect();
        let id = memtable.id;
        let tables = Arc::clone(&self.tables);
        let ground = Arc::clone(&self.ground);
        Ok(Some(SealedTable {
            id,
            image: memtable.bump.region().clone(),
            extent: Arc::clone(&memtable.extent),
            used: memtable.bump.used(),
            entries: memtable.entry_count(),
            seq_first,
            seq_last,
            retire,
            cursor: memtable.cursor(),
            settle: Box::new(move || settle(&ground, &memtable)),
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

    fn has_entries(&self) -> bool {
        self.commit.lock().entry_count() > 0
    }

    fn wants_flush_to_close(&self) -> bool {
        let memtable = self.commit.lock();
        memtable.has_unlogged() || memtable.bump.used() > memtable.spare_due_at()
    }

    fn sync(&self) -> Result<()> {
        let mut tables: Vec<Arc<Memtable>> = Vec::new();
        {
            let shown = self.tables.0.lock();
            tables.extend(
                shown
                    .sealed
                    .iter()
                    .map(|sealed| Arc::clone(&sealed.memtable)),
            );
            tables.push(Arc::clone(&shown.active));
        }
        for memtable in tables {
            if let Some(log) = &memtable.log {
                log.sync().map_err(|e| append_failed(&self.ground, e))?;
            }
        }
        Ok(())
    }

    fn replay_next(&self) -> Result<Option<Replayed>> {
        self.replay_found()
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
            metrics.memtable_bytes += memtable.bump.used();
            metrics.log_bytes += memtable.log.as_ref().map_or(0, |log| log.bytes());
        }
    }
}
