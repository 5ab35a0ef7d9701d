//! Replay of logs into memtables, several at a time.
//!
//! Logs are independent of one another: each becomes one memtable, since the edit that names the
//! new place of its entries also retires it. Only the sealing of the memtables is in the order of
//! their age. A log is read once, into a memtable of the usual size, since it held the entries of
//! such a memtable. If that was larger, or if there is no space for the usual size, the log is
//! measured first, and its memtable is as large as its entries.
//!
//! In a pool that is memory a log may also become several memtables, the oldest entries first, when
//! free space is in small pieces. The last of them has the log: tables leave the buffer oldest
//! first, so the log goes when all of them have left (B4). The log is synced first: records that a
//! killed process left in the page cache could still be lost, and the first memtables may be in
//! files by then. In a pool that outlives the process the edit of the flush retires the log, so
//! there one memtable has all of it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::{AllocError, Extent};

use super::files::LogFiles;
use super::memtable::{Arenas, Memtable};
use super::{Tables, Waiting, WalMemtable, append_failed};
use crate::canary::failpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::parts::codec::DecodeError;
use crate::parts::log::{FileLog, LogEntry, LogOf, RecordView, replay_file, replay_pool};
use crate::parts::manifest::Edit;
use crate::parts::ranges::{RangeDelete, Readable};
use crate::parts::skiplist::layout::TABLE_NODES_AT;
use crate::stages::{
    Replay, ReplaySealed, ReplaySize, ReplayStart, Replayed, ReplayedLog, Shared, retired,
};
use crate::types::{EntryKind, SeqNo};

/// A log to be replayed.
#[derive(Clone)]
pub(super) struct FoundLog {
    id: u64,
    /// The end of the log, if it was recorded. Then the log is synced.
    end: Option<u64>,
    place: FoundPlace,
    /// The bytes of its place.
    pub(super) bytes: u64,
    /// The entries that are in memtables already, the last of which is not the log's last.
    done: u64,
    /// The size of a memtable for the others, once they were measured.
    exact: Option<Measured>,
}

/// The sizes of memtables.
#[derive(Clone, Copy)]
struct Measured {
    /// The bytes for all entries.
    all: u64,
    /// The bytes for the first entry.
    first: u64,
}

#[derive(Clone)]
pub(super) enum FoundPlace {
    Pool(Arc<Extent>),
    File,
}

impl FoundLog {
    /// Returns whether it is in the pool and has no record. A damaged log is not empty.
    fn is_empty(&self, shared: &Shared) -> bool {
        let FoundPlace::Pool(extent) = &self.place else {
            return false;
        };
        let log = LogOf {
            db: shared.manifest.db(),
            id: self.id,
            end: self.end,
        };
        // The first record ends it.
        let first = &mut |_: RecordView<'_>| Err(None::<DecodeError>);
        replay_pool(shared.pool.region(), extent.span(), log, first).is_ok()
    }

    pub(super) fn new(
        (id, end): (u64, Option<u64>),
        place: FoundPlace,
        log_files: &LogFiles,
    ) -> FoundLog {
        let bytes = match &place {
            FoundPlace::Pool(extent) => extent.len(),
            FoundPlace::File => log_files.bytes(id),
        };
        FoundLog {
            id,
            end,
            place,
            bytes,
            done: 0,
            exact: None,
        }
    }
}

/// Retires the logs in the pool that have no record: those of spares, and of openings that ended
/// before they took a write. In a nearly full pool the first memtable and replays need their space.
///
/// CRASH: before the edit the next opening finds them again, after it their extents are free.
pub(super) fn retire_empty(shared: &Shared, found: &mut VecDeque<FoundLog>) -> Result<()> {
    let empty: Vec<u64> = found
        .iter()
        .filter(|log| log.is_empty(shared))
        .map(|log| log.id)
        .collect();
    if empty.is_empty() {
        return Ok(());
    }
    let changes = retired(&empty).collect();
    // PERSIST: the edit before the extents are free. Reversed, a crash could leave the name of a
    // log on space that has been given to something else.
    shared.manifest.commit(Edit { changes })?;
    found.retain(|log| !empty.contains(&log.id));
    Ok(())
}

/// A log whose entries are in a memtable that is not sealed yet.
struct Ended {
    replayer: Replayer,
    log: FoundLog,
    /// Its file, if it is to be synced.
    file: Option<Arc<FileLog>>,
    replayed: Replayed,
    /// The number of entries of the log that are in memtables now, and the number of the last of
    /// them.
    taken: u64,
    seq_last: SeqNo,
    /// Range deletes among the entries.
    ranges: Vec<RangeDelete>,
    /// `None`: nothing has to be sealed.
    memtable: Option<Memtable>,
    /// Whether all remaining entries are in it.
    fits: bool,
    /// Whether it has been sealed.
    sealed: bool,
}

/// The state of the front that one replay uses, on any thread.
struct Replayer {
    shared: Arc<Shared>,
    log_files: Arc<LogFiles>,
    arenas: Arc<Arenas>,
    /// Stands for the places of memtables that go to files.
    anchor: Option<Arc<Extent>>,
    tables: Arc<Tables>,
    found: Arc<Mutex<VecDeque<FoundLog>>>,
}

impl Replayer {
    /// Returns an empty memtable of `bytes` for a log.
    fn memtable(&self, log: &FoundLog, bytes: u64) -> Result<Memtable> {
        let extent = match &self.anchor {
            Some(anchor) => Arc::clone(anchor),
            None => self.shared.pool.alloc(bytes)?,
        };
        let in_place = !self.shared.pool_outlives();
        // The log's id names no table until the first of its memtables does.
        let id = match log.done {
            0 => log.id,
            _ => self.shared.next_id(),
        };
        let mut memtable = Memtable::new(id, extent, bytes, &self.arenas, in_place)?;
        memtable.logs.push(log.id);
        Ok(memtable)
    }

    /// Reads a log into a memtable. `read` gets the number of bytes of each read.
    fn replay(self, log: FoundLog, memtable: Memtable, read: &dyn Fn(u64)) -> Result<Ended> {
        let mut memtable = memtable;
        let mut fits = true;
        let mut ranges = Vec::new();
        let mut expiring = false;
        let (mut at, mut taken, mut seq_last) = (0, log.done, 0);
        let file = match log.place {
            FoundPlace::File if log.end.is_none() && !self.shared.options.read_only => {
                let path = self.log_files.path(log.id);
                let file = FileLog::found(self.log_files.fs(), &path, log.id);
                Some(file.map_err(|e| Error::io("open the log", &path, e))?)
            }
            FoundPlace::File | FoundPlace::Pool(_) => None,
        };
        let replayed = self.read_log(&log, read, &mut |entry, seq| {
            expiring |= entry.kind == EntryKind::PutExpiring as u8;
            at += 1;
            if at > log.done && fits {
                fits = memtable.replay(&entry, seq, &mut ranges)?;
                if fits {
                    (taken, seq_last) = (at, seq);
                }
            }
            Ok(())
        })?;
        if expiring {
            self.shared.time.begin();
        }
        if let FoundPlace::Pool(extent) = &log.place {
            // A process crash leaves records in the page cache only, and replay relies on them from
            // here on.
            let region = extent.region();
            region
                .sync(extent.off(), replayed.bytes as usize)
                .map_err(|e| append_failed(&self.shared, e))?;
            memtable.kept = Some(Arc::clone(extent));
        }
        if let Some(file) = &file {
            file.ends_at(replayed.bytes);
        }
        let in_parts = memtable.is_in_place() && taken > log.done;
        Ok(Ended {
            replayer: self,
            log,
            file: file.map(Arc::new),
            replayed,
            taken,
            seq_last,
            ranges,
            memtable: (fits || in_parts).then_some(memtable),
            fits,
            sealed: false,
        })
    }

    /// Returns the bytes that a memtable for the rest of a log needs.
    fn measure(&self, log: &FoundLog) -> Result<Measured> {
        let mut measured = Measured {
            all: TABLE_NODES_AT as u64,
            first: TABLE_NODES_AT as u64,
        };
        let mut at = 0;
        self.read_log(log, &|_| {}, &mut |entry, seq| {
            at += 1;
            if at > log.done {
                measured.all += Memtable::entry_bytes(&entry, seq) as u64;
            }
            if at == log.done + 1 {
                measured.first = measured.all;
            }
            Ok(())
        })?;
        Ok(measured)
    }

    /// Passes every entry of a log to `entry`; returns the counts of its contents.
    fn read_log(
        &self,
        log: &FoundLog,
        read: &dyn Fn(u64),
        entry: &mut dyn FnMut(LogEntry<'_>, SeqNo) -> Result<()>,
    ) -> Result<Replayed> {
        let mut replayed = Replayed::default();
        let mut record = |record: RecordView<'_>| -> Result<()> {
            for (seq, found) in (record.first_seq..).zip(record.entries()) {
                entry(found?, seq)?;
            }
            replayed.records += 1;
            replayed.entries += u64::from(record.entry_count);
            read(record.bytes());
            Ok(())
        };
        let found = LogOf {
            db: self.shared.manifest.db(),
            id: log.id,
            end: log.end,
        };
        let end = match &log.place {
            FoundPlace::Pool(extent) => {
                let region = self.shared.pool.region();
                replay_pool(region, extent.span(), found, &mut record)
            }
            FoundPlace::File => {
                let path = self.log_files.path(log.id);
                let fault = |e| Error::io("read the log", &path, e);
                replay_file(self.log_files.fs(), &path, found, &fault, &mut record)
            }
        };
        let end = end.map_err(|e| self.name_log(e, log))?;
        replayed.bytes = end.bytes;
        Ok(replayed)
    }

    fn name_log(&self, e: Error, log: &FoundLog) -> Error {
        let place = match &log.place {
            FoundPlace::Pool(extent) => format!("pool extent {}", extent.span()),
            FoundPlace::File => self.log_files.path(log.id).display().to_string(),
        };
        Error::new(e.kind(), format!("log {} ({place}): {e}", log.id)).because(e)
    }
}

impl WalMemtable {
    fn replayer(&self) -> Replayer {
        Replayer {
            shared: Arc::clone(&self.shared),
            log_files: Arc::clone(&self.log_files),
            arenas: Arc::clone(&self.arenas),
            anchor: self.anchor.clone(),
            tables: Arc::clone(&self.tables),
            found: Arc::clone(&self.found),
        }
    }
}

impl Replay for WalMemtable {
    fn logs_left(&self) -> (usize, u64) {
        let found = self.found.lock();
        (found.len(), found.iter().map(|log| log.bytes).sum())
    }

    fn begin(&self, size: ReplaySize) -> Result<ReplayStart> {
        let mut found = self.found.lock();
        let Some(log) = found.front_mut() else {
            return Ok(ReplayStart::Done);
        };
        let replayer = self.replayer();
        if size != ReplaySize::Usual && log.exact.is_none() {
            log.exact = Some(replayer.measure(log)?);
        }
        let bytes = match log.exact {
            None => self.shared.options.front.memtable_bytes,
            Some(exact) if size == ReplaySize::Part && !self.shared.pool_outlives() => {
                // The remaining space must take the copies of these entries in the bottom.
                let usage = self.shared.pool.usage();
                let most = usage.largest_free.min(usage.free / 4);
                most.clamp(exact.first, exact.all.max(exact.first))
            }
            Some(exact) => exact.all,
        };
        let memtable = match replayer.memtable(log, bytes) {
            Ok(memtable) => memtable,
            Err(e) if e.kind() == ErrorKind::Full => return Ok(ReplayStart::Full(no_room(e))),
            Err(e) => return Err(e),
        };
        let Some(log) = found.pop_front() else {
            return Ok(ReplayStart::Done);
        };
        Ok(ReplayStart::Task(Box::new(move |read| {
            let ended = replayer.replay(log, memtable, read)?;
            Ok(Box::new(ended) as Box<dyn ReplayedLog>)
        })))
    }
}

impl ReplayedLog for Ended {
    fn seal(mut self: Box<Self>) -> Result<ReplaySealed> {
        let Replayer {
            shared,
            log_files,
            tables,
            ..
        } = &self.replayer;
        let log = &mut self.log;
        if self.replayed.records == 0 {
            let changes = retired(&[log.id]).collect();
            shared.manifest.commit(Edit { changes })?;
            log_files.retire(log.id);
            return Ok(ReplaySealed::All(self.replayed));
        }
        let Some(mut memtable) = self.memtable.take() else {
            return Ok(ReplaySealed::Unfinished(self));
        };
        if let Some(file) = self.file.take() {
            // A process crash leaves records in the page cache only.
            log_files
                .leave_unsynced(log.id, file, None)
                .map_err(|e| append_failed(shared, e))?;
        }
        if !self.fits {
            // PERSIST: the log before a table that has some of its entries. Reversed, a power loss
            // could leave that table without the rest of the log, and with it a part of a batch.
            failpoint!(PartUnsynced skips log_files.sync_left().map_err(|e| append_failed(shared, e))?);
            memtable.logs.clear();
            (log.done, log.exact) = (self.taken, None);
        }
        let ranges = std::mem::take(&mut self.ranges);
        shared.ranges.add(ranges, &Readable::later(), true);
        shared.sequencer.start_after(self.seq_last);
        let sealed = Waiting {
            memtable: Arc::new(memtable),
            taken: false,
        };
        tables.0.lock().sealed.push(sealed);
        self.sealed = true;
        Ok(match self.fits {
            true => ReplaySealed::All(self.replayed),
            false => ReplaySealed::Unfinished(self),
        })
    }

    /// Undoes the replay. Measures the log if its memtable was too small for even one entry, or
    /// must hold all of it.
    fn undo(self: Box<Self>) -> Result<()> {
        let Ended {
            replayer,
            mut log,
            memtable,
            sealed,
            ..
        } = *self;
        if memtable.is_none() && !sealed {
            if log.exact.is_some() {
                return Err(Error::corruption("the log changed during its replay"));
            }
            log.exact = Some(replayer.measure(&log)?);
        }
        replayer.found.lock().push_front(log);
        Ok(())
    }
}

/// Returns the error for a log whose memtable has no place, when no more data can be moved to make
/// one.
fn no_room(e: Error) -> Error {
    let source = std::error::Error::source(&e);
    if source.is_none_or(|source| source.downcast_ref::<AllocError>().is_none()) {
        return e;
    }
    Error::new(
        ErrorKind::Full,
        "the pool has no space for the data of its logs; reopen with a larger --pool-size \
         (pool.size_bytes)",
    )
    .because(e)
}
