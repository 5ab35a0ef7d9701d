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
use terrace_media::{Extent, Medium, Span};

use super::memtable::{Arenas, Memtable};
use super::spare::{log_bytes, log_file_id, log_file_name, new_memtable};
use super::{LogFiles, Sealed, Shown, Tables, WalMemtable};
use crate::error::{Error, Result};
use crate::parts::log::{RecordView, replay_file, replay_pool};
use crate::parts::manifest::{Change, Edit, LogPlace};
use crate::stages::{Ground, Replayed};
use crate::types::SeqNo;

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
pub(crate) fn recover(ground: &Arc<Ground>, files: LogFiles) -> Result<WalMemtable> {
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
    let active = new_memtable(ground, &files, &arenas, memtable, log_bytes(memtable))?;
    let active = Arc::new(active);
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
        arenas,
        files,
        found: Mutex::new(found),
    })
}

/// The memtables that one log becomes.
struct Replay<'a> {
    front: &'a WalMemtable,
    log_id: u64,
    full: Vec<Memtable>,
    current: Option<Memtable>,
    found: Replayed,
    seq_last: SeqNo,
}

impl Replay<'_> {
    fn memtable(&mut self, least: u64) -> Result<&mut Memtable> {
        if self.current.is_none() {
            let ground = &self.front.ground;
            let bytes = ground.options.front.memtable_bytes.max(least);
            let extent = ground.pool.alloc(bytes)?;
            // The first memtable takes the log's id, which names no table yet.
            let id = if self.full.is_empty() {
                self.log_id
            } else {
                ground.next_id()
            };
            self.current = Some(Memtable::new(id, extent, bytes, &self.front.arenas)?);
        }
        self.current
            .as_mut()
            .ok_or_else(|| Error::invalid("a memtable that was just made"))
    }

    fn record(&mut self, record: &RecordView<'_>) -> Result<()> {
        // A batch goes into one memtable, as it did when it was written: tables of one level are
        // ordered by sequence numbers.
        let mut bytes = 0;
        for entry in record.entries() {
            let entry = entry?;
            bytes += entry.key.len() + entry.value.len() + 16;
        }
        let needed = Memtable::bytes_for(
            bytes + 8 * record.entry_count as usize,
            record.entry_count as usize,
        );
        if self
            .current
            .as_ref()
            .is_some_and(|m| m.bump.remaining() < needed)
        {
            self.full.extend(self.current.take());
        }
        let memtable = self.memtable(needed)?;
        for (seq, entry) in (record.first_seq..).zip(record.entries()) {
            if !memtable.replay(&entry?, seq)? {
                return Err(Error::corruption(format!(
                    "a record of log {} does not fit the memtable made for it",
                    record.first_seq
                )));
            }
        }
        self.seq_last = self
            .seq_last
            .max(record.first_seq + u64::from(record.entry_count) - 1);
        self.found.records += 1;
        self.found.entries += u64::from(record.entry_count);
        Ok(())
    }
}

impl WalMemtable {
    /// Replays the oldest log that is left.
    pub(super) fn replay_found(&self) -> Result<Option<Replayed>> {
        let log = {
            let mut found = self.found.lock();
            if found.is_empty() {
                return Ok(None);
            }
            found.remove(0)
        };
        let mut replay = Replay {
            front: self,
            log_id: log.id,
            full: Vec::new(),
            current: None,
            found: Replayed::default(),
            seq_last: 0,
        };
        let region = self.ground.pool.region().clone();
        let end = match &log.place {
            FoundPlace::Pool(extent) => {
                let span: Span = extent.span();
                replay_pool(&region, span, log.id, &mut |record| replay.record(&record))
            }
            FoundPlace::File => {
                let path = self.files.dir.join(log_file_name(log.id));
                let fault = |e| Error::io("read the log", &path, e);
                replay_file(&self.files.fs, &path, log.id, &fault, &mut |record| {
                    replay.record(&record)
                })
            }
        };
        let end = end.map_err(|e| self.name_log(e, &log))?;
        let mut replayed = replay.found;
        replayed.bytes = end.bytes;
        self.ground.sequencer.start_after(replay.seq_last);
        let mut memtables = replay.full;
        memtables.extend(replay.current);
        let in_pool = matches!(log.place, FoundPlace::Pool(_));
        let Some(last) = memtables.last_mut() else {
            if in_pool {
                let retired = Change::LogRetired { id: log.id };
                self.ground.manifest.commit(Edit {
                    changes: vec![retired],
                })?;
            }
            return Ok(Some(replayed));
        };
        if let FoundPlace::Pool(extent) = log.place {
            // Flushed in order, so the last of several is the one that retires the log.
            last.logs.push(log.id);
            last.kept = Some(extent);
        }
        let mut shown = self.tables.0.lock();
        shown.sealed.extend(memtables.into_iter().map(|m| Sealed {
            memtable: Arc::new(m),
            taken: false,
        }));
        Ok(Some(replayed))
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
