//! Sealed memtables of entries that no writer has written: those of an ingest, all with one number.
//!
//! CRASH: before an edit names the log, its space is free; after it, the log is replayed like any
//! other.

use std::sync::Arc;

use terrace_media::Extent;

use super::in_log::Values;
use super::memtable::{Arenas, Memtable};
use super::{WalMemtable, append_failed};
use crate::error::{Error, Result};
use crate::parts::batch::Batch;
use crate::parts::log::layout::{LOG_HEADER_BYTES, RECORD_ALIGN};
use crate::parts::log::{Log, LogEntry, PoolLog, record_bytes};
use crate::parts::manifest::{Change, Edit, LogPlace};
use crate::stages::{Form, SealApart, Sealed, Shared, Source};
use crate::types::SeqNo;

/// Makes memtables whose values are in logs in the pool.
pub(crate) struct Apart {
    shared: Arc<Shared>,
    arenas: Arc<Arenas>,
    anchor: Option<Arc<Extent>>,
    values: Values,
}

impl WalMemtable {
    /// Returns the maker of memtables apart from the writers.
    pub(crate) fn apart(&self) -> Apart {
        Apart {
            shared: Arc::clone(&self.shared),
            arenas: Arc::clone(&self.arenas),
            anchor: self.anchor.clone(),
            values: self.values(),
        }
    }
}

impl SealApart for Apart {
    fn seal_apart(&self, batch: &Batch, seq: SeqNo) -> Result<(Sealed, Vec<Change>)> {
        let (Values::InLog(_), Some(anchor)) = (&self.values, &self.anchor) else {
            return Err(Error::invalid(
                "only a design with its tables in logs in a pool takes entries apart",
            ));
        };
        let shared = &self.shared;
        let mut payload = batch.payload.clone().with_one_number();
        let record = record_bytes(payload.len_bytes());
        // And a seal.
        let bytes = (LOG_HEADER_BYTES + RECORD_ALIGN) as u64 + record;
        let extent = shared.pool.alloc(bytes)?;
        let id = shared.next_id();
        let entries = payload.iter();
        let nodes = entries.map(|entry| Memtable::entry_bytes(&self.values, &entry, seq) as u64);
        let nodes = nodes.sum::<u64>() + Memtable::index_bytes(&self.values, batch.len() as u64);
        let (anchor, values) = (Arc::clone(anchor), self.values.clone());
        // It may be refused, so it comes before anything durable.
        let mut memtable = Memtable::new(id, anchor, nodes, &self.arenas, false, values)?;
        // PERSIST: the id is used up before a record has it (L2). Reversed, a crash before the edit
        // that names the log could leave a record which a later log with this id takes for its own.
        let next = Change::NextId { id: id + 1 };
        shared.manifest.commit(Edit::of(next))?;
        let owner = (shared.manifest.db(), id);
        let failed = |e| append_failed(shared, e);
        let log = PoolLog::create(Arc::clone(&extent), owner, shared.pool.medium());
        let log = log.map_err(failed)?;
        let Some(slot) = log.reserve(payload.len_bytes()) else {
            return Err(Error::invalid("an ingest is too large for one record"));
        };
        let payload_at = extent.off() + slot.payload_at();
        let placed = log.place(slot, seq, &mut payload).map_err(failed)?;
        // PERSIST: the record, before the edit that names its log. Reversed, a crash could leave
        // the name of a log without it, and the ingest would be lost though it is visible.
        log.settle(placed);
        log.sync().map_err(failed)?;
        log.seal(seq + 1).map_err(failed)?;

        for entry in payload.iter() {
            let value_at = payload_at + entry.value_at;
            let entry = LogEntry { value_at, ..entry };
            if !memtable.replay(&entry, seq, &mut Vec::new())? {
                return Err(Error::corruption("a memtable is smaller than its entries"));
            }
        }
        let place = LogPlace::Pool(extent.span());
        memtable.log_bytes_max = log.bytes();
        memtable.log = Some(Arc::new(log));
        memtable.log_extent = Some(extent);
        memtable.logs.push(id);
        let memtable = Arc::new(memtable);
        let sealed = Sealed {
            id,
            entries: memtable.entry_count(),
            bytes: memtable.used_bytes(),
            seq_first: seq,
            seq_last: seq,
            late: None,
            logs: vec![id],
            open: {
                let memtable = Arc::clone(&memtable);
                Box::new(move || memtable.cursor())
            },
            form: Form::Source(memtable as Arc<dyn Source>),
            finish: Box::new(|| Ok(true)),
            forget: Box::new(|| {}),
        };
        Ok((sealed, vec![Change::LogCreated { id, place }]))
    }
}
