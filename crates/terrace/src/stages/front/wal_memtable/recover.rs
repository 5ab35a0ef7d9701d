//! This file brings the front back: it finds the logs and replays them into sealed memtables.
//!
//! A crash can leave
//!   - logs whose memtables had not been flushed: replayed, oldest first;
//!   - a spare's log without records: retired;
//!   - records behind the first one that is not whole: their writers had not been answered.
//!
//! Nothing is appended to a replayed log. Its memtable is flushed like any other, and the edit that
//! names the table retires the log.

use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::{Extent, Medium, Prefault};

use super::memtable::{Arenas, Memtable};
use super::spare::{FaultIn, log_bytes, log_file_id, log_file_name, new_memtable};
use super::{Sealed, Shown, Tables, WalMemtable};
use crate::error::{Error, Result};
use crate::parts::log::{RecordView, ReplayEnd, replay_file, replay_pool};
use crate::parts::manifest::{Change, Edit, LogPlace};
use crate::parts::skiplist::layout::TABLE_NODES_AT;
use crate::stages::Folder;
use crate::stages::{Ground, Replayed};
use crate::types::EntryKind;

/// A log to be replayed.
pub(super) struct FoundLog {
    id: u64,
    place: FoundPlace,
}

enum FoundPlace {
    Pool(Arc<Extent>),
    File,
}

/// Finds the logs and makes the front; `Front::replay_next` replays them one by one.
pub(crate) fn recover(ground: &Arc<Ground>, files: Folder) -> Result<WalMemtable> {
    let mut found = Vec::new();
    let logs = ground.manifest.with_state(|state| state.logs.clone());
    for (id, place) in logs {
        let LogPlace::Pool(span) = place else {
            continue;
        };
        found.push(FoundLog {
            id,
            place: FoundPlace::Pool(ground.pool.adopt(span)?),
        });
    }
    if ground.pool.medium() == Medium::Dram {
        let names = files
            .fs
            .list(&files.dir)
            .map_err(|e| Error::io("list", &files.dir, e))?;
        let mut ids: Vec<u64> = names.iter().filter_map(|name| log_file_id(name)).collect();
        ids.sort_unstable();
        found.extend(ids.into_iter().map(|id| FoundLog {
            id,
            place: FoundPlace::File,
        }));
    }
    if let Some(last) = found.last() {
        ground.skip_ids(last.id + 1);
    }
    let arenas = Arc::new(Arenas::default());
    let memtable = ground.options.front.memtable_bytes;
    if ground.options.pool.prefault == Prefault::All {
        // The active one, the spare, and those that wait for their flush.
        arenas.stock(2 + ground.options.front.sealed_count_max, memtable)?;
    }
    let active = new_memtable(ground, &files, &arenas, memtable, log_bytes(memtable))?;
    let active = Arc::new(active);
    let cold = (ground.options.pool.prefault != Prefault::None).then(|| FaultIn {
        ground: Arc::clone(ground),
        memtable: Arc::clone(&active),
        done: 0,
    });
    let shown = Shown {
        active: Arc::clone(&active),
        sealed: Vec::new(),
    };
    Ok(WalMemtable {
        ground: Arc::clone(ground),
        tables: Arc::new(Tables(Mutex::new(shown))),
        commit: Mutex::new(active),
        spare: Mutex::new(None),
        making: Mutex::new(()),
        cold: Mutex::new(cold),
        arenas,
        files,
        found: Mutex::new(found),
    })
}

impl WalMemtable {
    /// Replays the oldest log that is left. One log becomes one memtable, whatever its size: the
    /// edit that names its table is the one that retires the log.
    pub(super) fn replay_found(&self) -> Result<Option<Replayed>> {
        let log = {
            let mut found = self.found.lock();
            if found.is_empty() {
                return Ok(None);
            }
            found.remove(0)
        };
        let mut replayed = Replayed::default();
        let mut bytes = TABLE_NODES_AT as u64;
        let mut seq_last = 0;
        let end = self.read_log(&log, &mut |record| {
            for (seq, entry) in (record.first_seq..).zip(record.entries()) {
                bytes += Memtable::entry_bytes(&entry?, seq) as u64;
            }
            replayed.records += 1;
            replayed.entries += u64::from(record.entry_count);
            seq_last = record.first_seq + u64::from(record.entry_count) - 1;
            Ok(())
        })?;
        replayed.bytes = end.bytes;
        if replayed.records == 0 {
            if let FoundPlace::Pool(_) = log.place {
                let retired = Change::LogRetired { id: log.id };
                self.ground.manifest.commit(Edit {
                    changes: vec![retired],
                })?;
            }
            return Ok(Some(replayed));
        }
        let bytes = bytes.max(self.ground.options.front.memtable_bytes);
        let extent = self.ground.pool.alloc(bytes)?;
        // The log's id names no table yet.
        let mut memtable = Memtable::new(log.id, extent, bytes, &self.arenas)?;
        let mut ranges = Vec::new();
        let mut expiring = false;
        self.read_log(&log, &mut |record| {
            for (seq, entry) in (record.first_seq..).zip(record.entries()) {
                let entry = entry?;
                expiring |= entry.kind == EntryKind::PutExpiring as u8;
                if !memtable.replay(&entry, seq, &mut ranges)? {
                    return Err(Error::corruption("the log changed while it was replayed"));
                }
            }
            Ok(())
        })?;
        self.ground.ranges.add(ranges);
        if expiring {
            self.ground.time.begin();
        }
        self.ground.sequencer.start_after(seq_last);
        if let FoundPlace::Pool(extent) = log.place {
            // A process crash leaves records in the page cache only. They are acted on from here.
            let region = extent.region();
            region
                .sync(extent.off(), end.bytes as usize)
                .map_err(|e| super::append_failed(&self.ground, e))?;
            memtable.logs.push(log.id);
            memtable.kept = Some(extent);
        }
        let sealed = Sealed {
            memtable: Arc::new(memtable),
            taken: false,
        };
        self.tables.0.lock().sealed.push(sealed);
        Ok(Some(replayed))
    }

    fn read_log(
        &self,
        log: &FoundLog,
        record: &mut dyn FnMut(RecordView<'_>) -> Result<()>,
    ) -> Result<ReplayEnd> {
        let end = match &log.place {
            FoundPlace::Pool(extent) => {
                replay_pool(self.ground.pool.region(), extent.span(), log.id, record)
            }
            FoundPlace::File => {
                let path = self.files.dir.join(log_file_name(log.id));
                let fault = |e| Error::io("read the log", &path, e);
                replay_file(&self.files.fs, &path, log.id, &fault, record)
            }
        };
        end.map_err(|e| self.name_log(e, log))
    }

    fn name_log(&self, e: Error, log: &FoundLog) -> Error {
        let place = match &log.place {
            FoundPlace::Pool(extent) => format!("pool extent {}", extent.span()),
            FoundPlace::File => self
                .files
                .dir
                .join(log_file_name(log.id))
                .display()
                .to_string(),
        };
        Error::new(e.kind(), format!("log {} ({place}): {e}", log.id)).because(e)
    }
}
