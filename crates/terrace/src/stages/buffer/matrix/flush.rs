//! The flush: the entries of a sealed memtable, or of an ingest, become a row.

use std::sync::Arc;

use terrace_media::AllocError;

use super::Rows;
use super::layout::{Common, ENTRY_BYTES};
use super::row::{Row, State};
use super::writer::{Numbers, Writer};
use crate::error::{Error, Result};
use crate::parts::batch::Batch;
use crate::parts::expiry::{Value, layout as expiring};
use crate::parts::iter::{Cursor, EntryView};
use crate::parts::key::Target;
use crate::parts::manifest::{Change, Edit};
use crate::stages::{Built, Completion, Job, JobKind, Sealed, Shared, Step, retired};
use crate::types::{EntryKind, SeqNo};

/// Bytes written in one step.
const STEP_BYTES: usize = 256 << 10;

/// The flush of one memtable.
pub(super) struct Flush {
    shared: Arc<Shared>,
    rows: Arc<Rows>,
    /// Taken by the last step.
    sealed: Option<Sealed>,
    writing: Option<(Writer, Box<dyn Cursor>)>,
    /// Whether all entries are in the memtable, and whether each is in a log that is synced.
    finished: bool,
    synced: bool,
}

/// The outcome of a step of writing.
enum Written {
    Some,
    /// The pool is full.
    NoRoom,
    All(Box<Row>),
}

impl Flush {
    pub(super) fn begin(shared: Arc<Shared>, rows: Arc<Rows>, sealed: Sealed) -> Flush {
        let sealed = Some(sealed);
        Flush {
            shared,
            rows,
            sealed,
            writing: None,
            finished: false,
            synced: false,
        }
    }

    /// Writes for one step.
    fn write(&mut self, sealed: &mut Sealed) -> Result<Written> {
        let Some((writer, cursor)) = &mut self.writing else {
            return Ok(Written::Some);
        };
        while let Some(entry) = cursor.entry()? {
            let value = cursor.value()?;
            match writer.make_room(entry.key.len(), value.bytes.len())? {
                Ok(()) => {}
                Err(AllocError::Full { .. }) => return Ok(Written::NoRoom),
                Err(e) => return Err(e.into()),
            }
            let waiting = writer.push(&entry, value)?;
            cursor.advance()?;
            if waiting >= STEP_BYTES {
                writer.write_pending()?;
                return Ok(Written::Some);
            }
        }
        if writer.entries() != sealed.entries {
            // Lost links look like the end of a list, and its log is retired.
            return Err(Error::corruption(format!(
                "{} entries were found in a memtable that has {}",
                writer.entries(),
                sealed.entries
            )));
        }
        let array = match writer.place_array()? {
            Ok(array) => array,
            Err(AllocError::Full { .. }) => return Ok(Written::NoRoom),
            Err(e) => return Err(e.into()),
        };
        let numbers = Numbers {
            seqs: (sealed.seq_first, sealed.seq_last),
            late: sealed.late.clone(),
        };
        let state = State {
            busy: false,
            logs: std::mem::take(&mut sealed.logs),
            unsynced: !self.shared.pool_outlives() && !self.synced,
        };
        match self.writing.take() {
            Some((writer, _)) => {
                let row = writer.finish(array, numbers, state)?;
                Ok(Written::All(Box::new(row)))
            }
            None => Ok(Written::Some),
        }
    }
}

impl Job for Flush {
    fn kind(&self) -> JobKind {
        JobKind::Flush
    }

    fn step(&mut self) -> Result<Step> {
        let Some(mut sealed) = self.sealed.take() else {
            return Ok(Step::More);
        };
        if !self.finished {
            let finish = std::mem::replace(&mut sealed.finish, Box::new(|| Ok(false)));
            (self.finished, self.synced) = (true, finish()?);
        }
        if sealed.entries == 0 {
            return Ok(Step::Done(sealed.into_nothing()));
        }
        if self.writing.is_none() {
            let mut cursor = (sealed.open)();
            cursor.hold();
            let common = common_start(&mut *cursor)?;
            cursor.seek(&Target::first_of(0, &[]))?;
            cursor.release();
            let size = (sealed.entries, sealed.bytes);
            let newest = self.rows.newest();
            let writer = Writer::new(&self.shared, sealed.id, size, common, newest);
            self.writing = Some((writer, cursor));
        }
        match self.write(&mut sealed)? {
            Written::All(row) => {
                let done = completion(&self.shared, &self.rows, *row, sealed.forget);
                Ok(Step::Done(done))
            }
            Written::Some => {
                self.sealed = Some(sealed);
                Ok(Step::More)
            }
            Written::NoRoom => {
                self.sealed = Some(sealed);
                Ok(Step::Wait)
            }
        }
    }
}

/// Returns the common start of the keys in the first keyspace of a memtable.
fn common_start(cursor: &mut dyn Cursor) -> Result<Common> {
    cursor.seek(&Target::first_of(0, &[]))?;
    let first = cursor.entry()?;
    let first = first.and_then(|it| Some((it.keyspace, it.keyspace.checked_add(1)?, it.key)));
    let Some((keyspace, next, first)) = first else {
        return Ok(Common::default());
    };
    let first = first.to_vec();
    let mut last = first.clone();
    cursor.seek_before(&Target::first_of(next, &[]), 0)?;
    // BOUND: the few entries by which the cursor may be too far back.
    while let Some(entry) = cursor.entry()?
        && entry.keyspace == keyspace
    {
        last.clear();
        last.extend_from_slice(entry.key);
        cursor.advance()?;
    }
    Ok(Common::of(keyspace, &first, &last))
}

/// Names a row, and shows it.
fn completion(
    shared: &Shared,
    rows: &Arc<Rows>,
    row: Row,
    forget: Box<dyn FnOnce() + Send>,
) -> Completion {
    let mut changes = vec![Change::added(row.meta.clone())];
    // A row in memory needs its logs until it is drained (X3).
    if shared.pool_outlives() {
        let (seq, id) = (row.meta.seqs.1, row.meta.id + 1);
        changes.extend([Change::LastSeq { seq }, Change::NextId { id }]);
        changes.extend(retired(&std::mem::take(&mut row.state.lock().logs)));
    }
    let (rows, entries) = (Arc::clone(rows), row.entries());
    Completion {
        edit: Edit { changes },
        apply: Box::new(move || {
            rows.insert(Arc::new(row));
            forget();
        }),
        garbage: Vec::new(),
        entries,
    }
}

/// Makes a row of the entries of `batch`.
pub(super) fn build(
    shared: &Arc<Shared>,
    rows: &Arc<Rows>,
    batch: &Batch,
    seq: SeqNo,
) -> Result<Box<dyn Job>> {
    let lengths = batch.payload.iter();
    let (mut entries, mut bytes) = (0, 0);
    let (mut first, mut last) = (None, None);
    for entry in lengths {
        let first = *first.get_or_insert((entry.keyspace, entry.key));
        if entry.keyspace == first.0 {
            last = Some(entry.key);
        }
        entries += 1;
        bytes += (ENTRY_BYTES + entry.key.len() + entry.value.len()) as u64;
    }
    let common = match (first, last) {
        (Some((keyspace, first)), Some(last)) => Common::of(keyspace, first, last),
        _ => Common::default(),
    };
    let size = (entries, bytes);
    let mut writer = Writer::new(shared, shared.next_id(), size, common, rows.newest());
    for entry in batch.payload.iter() {
        let (expiry, bytes) = match entry.kind == EntryKind::PutExpiring as u8 {
            true => expiring::decode(entry.value, 0)?,
            false => (0, entry.value),
        };
        let (keyspace, key) = (entry.keyspace, entry.key);
        let kind = EntryKind::without_expiry(entry.kind);
        let view = EntryView {
            keyspace,
            key,
            seq,
            kind,
        };
        writer.make_room(key.len(), bytes.len())??;
        if writer.push(&view, Value { bytes, expiry })? >= STEP_BYTES {
            writer.write_pending()?;
        }
    }
    let array = writer.place_array()??;
    let state = State {
        unsynced: !shared.pool_outlives(),
        ..State::default()
    };
    let (seqs, late) = ((seq, seq), None);
    let row = writer.finish(array, Numbers { seqs, late }, state)?;
    let done = completion(shared, rows, row, Box::new(|| {}));
    Ok(Box::new(Built::new(done)))
}
