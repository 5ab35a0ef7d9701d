//! Sealed memtables of entries that no writer has written: those of an ingest, all with one number,
//! and those that are left of logs of mostly garbage, each with its own.
//!
//! CRASH: before an edit names the log, its space is free; after it, the log is replayed like any
//! other.

use std::borrow::Cow;
use std::sync::Arc;

use terrace_media::{Extent, Purpose};

use super::in_log::Values;
use super::memtable::Home;
use super::memtable::{Arenas, Memtable};
use super::spare::Size;
use super::{WalMemtable, append_failed};
use crate::error::{Error, ErrorKind, Result};
use crate::parts::batch::Batch;
use crate::parts::expiry::{Value, layout as expiring};
use crate::parts::iter::EntryView;
use crate::parts::log::layout::{LOG_HEADER_BYTES, RECORD_ALIGN};
use crate::parts::log::{Log, LogEntry, Payload, PoolLog, record_bytes};
use crate::parts::manifest::{Change, Edit, LogPlace};
use crate::stages::{ApartBytes, Form, RewriteApart, SealApart, Sealed, Shared, Source};
use crate::types::{EntryKind, SeqNo};

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

/// A memtable and its log, before they are complete.
struct Making {
    shared: Arc<Shared>,
    memtable: Memtable,
    log: PoolLog,
    extent: Arc<Extent>,
    /// One record, and the record of an entry of a table.
    payload: Payload,
}

impl Apart {
    /// Begins a memtable whose records and nodes have these bytes.
    fn make(&self, bytes: ApartBytes, purpose: Purpose) -> Result<Making> {
        let (Values::InLog(_), Some(anchor)) = (&self.values, &self.anchor) else {
            return Err(Error::invalid(
                "only a design with its tables in logs in a pool takes entries apart",
            ));
        };
        let shared = &self.shared;
        let extent = shared.pool.alloc(log_bytes(bytes))?;
        let id = shared.next_id();
        let nodes = bytes.nodes + Memtable::index_bytes(&self.values, bytes.entries);
        let (anchor, values) = (Arc::clone(anchor), self.values.clone());
        // It may be refused, so it comes before anything durable.
        let mut memtable = Memtable::new(id, anchor, nodes, &self.arenas, Home::Arena, values)?;
        memtable.logs.push(id);
        // PERSIST: the id is used up before a record has it (L2). Reversed, a crash before the edit
        // that names the log could leave a record which a later log with this id takes for its own.
        let next = Change::NextId { id: id + 1 };
        shared.manifest.commit(Edit::of(next))?;
        let owner = (shared.manifest.db(), id);
        let log = PoolLog::create(Arc::clone(&extent), owner, shared.pool.medium());
        let log = log.map_err(|e| append_failed(shared, e))?;
        Ok(Making {
            shared: Arc::clone(shared),
            memtable,
            log: log.counted_as(purpose),
            extent,
            payload: Payload::new(),
        })
    }
}

/// Returns the size of a log for records of these bytes and a seal.
fn log_bytes(bytes: ApartBytes) -> u64 {
    (LOG_HEADER_BYTES + RECORD_ALIGN) as u64 + bytes.log
}

impl Making {
    /// Writes the record, all of whose entries have the number `seq`, and indexes them.
    fn write(&mut self, seq: SeqNo) -> Result<()> {
        let Some(slot) = self.log.reserve(self.payload.len_bytes()) else {
            return Err(Error::invalid("too many bytes for one record of a log"));
        };
        let payload_at = self.extent.off() + slot.payload_at();
        let failed = |e| append_failed(&self.shared, e);
        let placed = self.log.place(slot, seq, &mut self.payload);
        // PERSIST: the record, before the edit that names its log; `seal` syncs it where a fence is
        // not enough. Reversed, a crash could leave the name of a log without it, and entries that
        // are visible would be lost.
        self.log.settle(placed.map_err(failed)?);
        for entry in self.payload.iter() {
            let value_at = payload_at + entry.value_at;
            let entry = LogEntry { value_at, ..entry };
            if !self.memtable.replay(&entry, seq, &mut Vec::new())? {
                return Err(Error::corruption("a memtable is smaller than its entries"));
            }
        }
        Ok(())
    }

    /// Seals the memtable and its log, which is durable and named by the changes.
    fn seal(self) -> Result<(Sealed, Vec<Change>)> {
        let Making {
            shared,
            mut memtable,
            log,
            extent,
            ..
        } = self;
        let failed = |e| append_failed(&shared, e);
        let (seq_first, seq_last) = memtable.seqs();
        // PERSIST: all records before the seal and the edit, as above.
        log.sync().map_err(failed)?;
        let end = log.durable_end();
        log.seal(seq_last + 1).map_err(failed)?;
        let id = memtable.id;
        let place = LogPlace::Pool(extent.span());
        memtable.log_bytes_max = log.bytes();
        memtable.log = Some(Arc::new(log));
        memtable.log_extent = Some(extent);
        let memtable = Arc::new(memtable);
        let sealed = Sealed {
            id,
            entries: memtable.entry_count(),
            bytes: memtable.used_bytes(),
            seq_first,
            seq_last,
            late: memtable.late.any().then(|| Arc::clone(&memtable.late)),
            logs: vec![id],
            open: {
                let memtable = Arc::clone(&memtable);
                Box::new(move || memtable.cursor())
            },
            form: Form::Source(memtable as Arc<dyn Source>),
            finish: Box::new(|| Ok(true)),
            forget: Box::new(|| {}),
        };
        let mut changes = vec![Change::LogCreated { id, place }];
        changes.extend(end.map(|end| Change::LogEnded { id, end }));
        Ok((sealed, changes))
    }
}

/// Returns the kind and the value of an entry as they are logged.
fn logged<'a>(entry: &EntryView<'_>, value: &Value<'a>) -> (u8, Cow<'a, [u8]>) {
    match value.expiry {
        0 => (entry.kind, Cow::Borrowed(value.bytes)),
        expiry => {
            let value = expiring::encode(expiry, value.bytes);
            (EntryKind::PutExpiring as u8, Cow::Owned(value))
        }
    }
}

impl SealApart for Apart {
    fn seal_apart(&self, batch: &Batch, seq: SeqNo) -> Result<(Sealed, Vec<Change>)> {
        let entries = batch.payload.iter();
        let nodes = entries.map(|entry| Memtable::entry_bytes(&self.values, &entry, seq) as u64);
        let bytes = ApartBytes {
            log: record_bytes(batch.payload.len_bytes()),
            nodes: nodes.sum(),
            entries: batch.len() as u64,
        };
        let mut making = self.make(bytes, Purpose::Log)?;
        making.payload = batch.payload.clone().with_one_number();
        making.write(seq)?;
        making.seal()
    }

    fn can_rewrite(&self) -> bool {
        matches!(self.values, Values::InLog(_)) && !self.shared.options.read_only
    }

    fn entry_bytes(&self, entry: &EntryView<'_>, value: &Value<'_>) -> ApartBytes {
        let (kind, value) = logged(entry, value);
        let seq = entry.seq;
        let entry = LogEntry {
            kind,
            keyspace: entry.keyspace,
            key: entry.key,
            value: &value,
            value_crc: 0,
            value_at: 0,
        };
        let payload = Payload::entry_bytes(entry.key.len(), value.len());
        ApartBytes {
            log: record_bytes(payload),
            nodes: Memtable::entry_bytes(&self.values, &entry, seq) as u64,
            entries: 1,
        }
    }

    fn rewrite(&self, bytes: ApartBytes) -> Result<Option<Box<dyn RewriteApart>>> {
        let shared = &self.shared;
        // The next memtables of writers must find their space and their memory.
        let next = Size::usual(shared, None, true);
        let usage = shared.pool.usage();
        let free = usage.limit.saturating_sub(usage.allocated);
        let taken = log_bytes(bytes);
        let memory = &shared.memory;
        let nodes = bytes.nodes + Memtable::index_bytes(&self.values, bytes.entries);
        let arenas = memory.arenas.used() + nodes + 2 * next.table;
        let has_room = free >= taken + 2 * shared.options.front.memtable_bytes
            && arenas <= memory.limits.arenas_bytes;
        if !has_room {
            return Ok(None);
        }
        match self.make(bytes, Purpose::Merge) {
            Ok(making) => Ok(Some(Box::new(making))),
            Err(e) if e.kind() == ErrorKind::Full => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl RewriteApart for Making {
    fn add(&mut self, entry: &EntryView<'_>, value: &Value<'_>) -> Result<()> {
        let (kind, value) = logged(entry, value);
        self.payload.clear();
        self.payload.push(kind, entry.keyspace, entry.key, &value);
        self.write(entry.seq)
    }

    fn sync(&mut self) -> Result<()> {
        self.log.sync().map_err(|e| append_failed(&self.shared, e))
    }

    fn finish(mut self: Box<Self>) -> Result<(Sealed, Vec<Change>)> {
        self.memtable.is_rewritten = true;
        self.seal()
    }
}
