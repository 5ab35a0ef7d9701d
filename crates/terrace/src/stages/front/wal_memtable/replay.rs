//! This file replays logs into memtables, several at a time.
//!
//! Logs are independent of one another: each becomes one memtable, since the edit that names what its
//! entries become is the one that retires it. Only the order in which the memtables are sealed is that
//! of their age. A log is read once, into a memtable of the size that memtables have, since it held
//! what such a memtable held; where that was larger, it is measured and read again.

use std::sync::Arc;

use terrace_media::Extent;

use super::files::LogFiles;
use super::memtable::{Arenas, Memtable};
use super::{Sealed, WalMemtable};
use crate::error::{Error, Result};
use crate::parts::log::{LogEntry, RecordView, replay_file, replay_pool};
use crate::parts::manifest::Edit;
use crate::parts::ranges::RangeDelete;
use crate::parts::skiplist::layout::TABLE_NODES_AT;
use crate::stages::{Ground, ReplayEnded, ReplayStart, Replayed, retired};
use crate::types::{EntryKind, SeqNo};

/// A log to be replayed.
#[derive(Clone)]
pub(super) struct FoundLog {
    id: u64,
    place: FoundPlace,
    /// Bytes of its place.
    bytes: u64,
}

#[derive(Clone)]
pub(super) enum FoundPlace {
    Pool(Arc<Extent>),
    File,
}

impl FoundLog {
    pub(super) fn new(id: u64, place: FoundPlace, log_files: &LogFiles) -> FoundLog {
        let bytes = match &place {
            FoundPlace::Pool(extent) => extent.len(),
            FoundPlace::File => log_files.bytes(id),
        };
        FoundLog { id, place, bytes }
    }
}

/// What replaying one log has made.
struct Ended {
    log: FoundLog,
    replayed: Replayed,
    seq_last: SeqNo,
    /// Range deletes among the entries.
    ranges: Vec<RangeDelete>,
    /// `None`: it did not fit.
    memtable: Option<Memtable>,
}

/// What a replay works with.
struct Replayer {
    ground: Arc<Ground>,
    log_files: Arc<LogFiles>,
    arenas: Arc<Arenas>,
}

impl Replayer {
    /// An empty memtable of `bytes` for a log.
    fn memtable(&self, log: &FoundLog, bytes: u64) -> Result<Memtable> {
        let extent = self.ground.pool.alloc(bytes)?;
        let in_place = !self.ground.pool_outlives();
        // The log's id names no table yet.
        let mut memtable = Memtable::new(log.id, extent, bytes, &self.arenas, in_place)?;
        memtable.logs.push(log.id);
        Ok(memtable)
    }

    /// Reads a log into a memtable. `read` gets bytes as they are read.
    fn replay(&self, log: FoundLog, memtable: Memtable, read: &dyn Fn(u64)) -> Result<Ended> {
        let mut memtable = memtable;
        let mut fits = true;
        let mut ranges = Vec::new();
        let mut expiring = false;
        let (replayed, seq_last) = self.read_log(&log, read, &mut |entry, seq| {
            expiring |= entry.kind == EntryKind::PutExpiring as u8;
            fits = fits && memtable.replay(&entry, seq, &mut ranges)?;
            Ok(())
        })?;
        if expiring {
            self.ground.time.begin();
        }
        if let FoundPlace::Pool(extent) = &log.place {
            // A process crash leaves records in the page cache only. They are acted on from here.
            let region = extent.region();
            region
                .sync(extent.off(), replayed.bytes as usize)
                .map_err(|e| super::append_failed(&self.ground, e))?;
            memtable.kept = Some(Arc::clone(extent));
        }
        Ok(Ended {
            log,
            replayed,
            seq_last,
            ranges,
            memtable: fits.then_some(memtable),
        })
    }

    /// The bytes that a memtable for all of a log has to have.
    fn measure(&self, log: &FoundLog) -> Result<u64> {
        let mut bytes = TABLE_NODES_AT as u64;
        self.read_log(log, &|_| {}, &mut |entry, seq| {
            bytes += Memtable::entry_bytes(&entry, seq) as u64;
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Hands every entry of a log to `entry`; returns what was in it, and the last number.
    fn read_log(
        &self,
        log: &FoundLog,
        read: &dyn Fn(u64),
        entry: &mut dyn FnMut(LogEntry<'_>, SeqNo) -> Result<()>,
    ) -> Result<(Replayed, SeqNo)> {
        let mut replayed = Replayed::default();
        let mut seq_last = 0;
        let mut record = |record: RecordView<'_>| -> Result<()> {
            for (seq, found) in (record.first_seq..).zip(record.entries()) {
                entry(found?, seq)?;
            }
            replayed.records += 1;
            replayed.entries += u64::from(record.entry_count);
            seq_last = record.first_seq + u64::from(record.entry_count) - 1;
            read(record.bytes());
            Ok(())
        };
        let end = match &log.place {
            FoundPlace::Pool(extent) => {
                let region = self.ground.pool.region();
                replay_pool(region, extent.span(), log.id, &mut record)
            }
            FoundPlace::File => {
                let path = self.log_files.path(log.id);
                let fault = |e| Error::io("read the log", &path, e);
                replay_file(self.log_files.fs(), &path, log.id, &fault, &mut record)
            }
        };
        let end = end.map_err(|e| self.name_log(e, log))?;
        replayed.bytes = end.bytes;
        Ok((replayed, seq_last))
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
            ground: Arc::clone(&self.ground),
            log_files: Arc::clone(&self.log_files),
            arenas: Arc::clone(&self.arenas),
        }
    }

    /// How many logs are left to be replayed, and their bytes.
    pub(super) fn left_to_replay(&self) -> (usize, u64) {
        let found = self.found.lock();
        (found.len(), found.iter().map(|log| log.bytes).sum())
    }

    /// Takes memory for the oldest log that is left.
    pub(super) fn begin_next_replay(&self) -> Result<ReplayStart> {
        let mut found = self.found.lock();
        let Some(log) = found.front() else {
            return Ok(ReplayStart::Done);
        };
        let replayer = self.replayer();
        let bytes = self.ground.options.front.memtable_bytes;
        let memtable = match replayer.memtable(log, bytes) {
            Ok(memtable) => memtable,
            Err(e) if e.kind() == crate::ErrorKind::Full => return Ok(ReplayStart::PoolFull),
            Err(e) => return Err(e),
        };
        let Some(log) = found.pop_front() else {
            return Ok(ReplayStart::Done);
        };
        Ok(ReplayStart::Task(Box::new(move |read| {
            let ended = replayer.replay(log, memtable, read)?;
            Ok(ReplayEnded(Box::new(ended)))
        })))
    }

    /// Seals what was replayed.
    pub(super) fn admit_replayed(&self, ended: ReplayEnded) -> Result<Replayed> {
        let Ok(ended) = ended.0.downcast::<Ended>() else {
            return Err(Error::invalid("a replay ends at the front that began it"));
        };
        let Ended {
            log,
            replayed,
            seq_last,
            ranges,
            memtable,
        } = *ended;
        if replayed.records == 0 {
            let changes = retired(&[log.id]).collect();
            self.ground.manifest.commit(Edit { changes })?;
            self.log_files.retire(log.id);
            return Ok(replayed);
        }
        if let FoundPlace::File = log.place {
            // A process crash leaves records in the page cache only.
            self.log_files.leave_unsynced(log.id, None);
        }
        let (memtable, ranges) = match memtable {
            Some(memtable) => (memtable, ranges),
            None => {
                let replayer = self.replayer();
                let exact = replayer.memtable(&log, replayer.measure(&log)?)?;
                let again = replayer.replay(log, exact, &|_| {})?;
                let changed = || Error::corruption("the log changed while it was replayed");
                (again.memtable.ok_or_else(changed)?, again.ranges)
            }
        };
        self.ground.ranges.add(ranges);
        self.ground.sequencer.start_after(seq_last);
        let sealed = Sealed {
            memtable: Arc::new(memtable),
            taken: false,
        };
        self.tables.0.lock().sealed.push(sealed);
        Ok(replayed)
    }
}
