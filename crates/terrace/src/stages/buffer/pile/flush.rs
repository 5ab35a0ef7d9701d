//! The flush: the entries of a sealed memtable, or of an ingest, become a heap.

use std::sync::Arc;

use terrace_media::{AllocError, Extent};

use super::Heaps;
use super::heap::{Heap, State, Writer};
use super::layout::{ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES};
use crate::error::{Error, Result};
use crate::parts::batch::Batch;
use crate::parts::expiry::{Value, layout as expiring};
use crate::parts::iter::{Cursor, EntryView};
use crate::parts::key::Target;
use crate::parts::manifest::{Change, Edit};
use crate::stages::{Completion, Form, Job, JobKind, Sealed, Shared, Step, retired};
use crate::types::{EntryKind, SeqNo};

/// Bytes written in one step.
const STEP_BYTES: usize = 256 << 10;

/// The flush of one memtable.
pub(super) struct Flush {
    shared: Arc<Shared>,
    heaps: Arc<Heaps>,
    /// Taken by the last step.
    sealed: Option<Sealed>,
    writing: Option<(Writer, Box<dyn Cursor>)>,
    /// Whether all entries are in the memtable, and whether each is in a log that is synced.
    finished: bool,
    synced: bool,
}

impl Flush {
    pub(super) fn begin(shared: Arc<Shared>, heaps: Arc<Heaps>, sealed: Sealed) -> Flush {
        let sealed = Some(sealed);
        Flush {
            shared,
            heaps,
            sealed,
            writing: None,
            finished: false,
            synced: false,
        }
    }

    /// Returns the place of the heap. The extent that was reserved for the memtable's list is large
    /// enough, unless the memtable is in it.
    fn place(&self, sealed: &Sealed) -> Result<Arc<Extent>, AllocError> {
        match &sealed.form {
            Form::List(list) if !list.in_place => Ok(Arc::clone(&list.extent)),
            Form::List(_) | Form::Entries => self.shared.pool.alloc(sealed.bytes),
        }
    }

    /// Writes for one step; returns the heap when it is complete.
    fn write(&mut self, sealed: &mut Sealed) -> Result<Option<Heap>> {
        let Some((mut writer, mut cursor)) = self.writing.take() else {
            return Ok(None);
        };
        while let Some(entry) = cursor.entry()? {
            if writer.push(&entry, cursor.value()?) >= STEP_BYTES {
                cursor.advance()?;
                writer.write_pending()?;
                self.writing = Some((writer, cursor));
                return Ok(None);
            }
            cursor.advance()?;
        }
        if writer.entries() != sealed.entries {
            // Lost links look like the end of a list, and its log is retired.
            return Err(Error::corruption(format!(
                "{} entries were found in a memtable that has {}",
                writer.entries(),
                sealed.entries
            )));
        }
        let seqs = (sealed.seq_first, sealed.seq_last);
        let state = State {
            drained: None,
            busy: false,
            logs: std::mem::take(&mut sealed.logs),
            unsynced: !self.shared.pool_outlives() && !self.synced,
        };
        writer
            .finish(sealed.id, seqs, sealed.late.clone(), state)
            .map(Some)
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
            match self.place(&sealed) {
                Ok(extent) => {
                    let mut cursor = (sealed.open)();
                    cursor.hold();
                    cursor.seek(&Target::first_of(0, &[]))?;
                    cursor.release();
                    self.writing = Some((Writer::new(extent), cursor));
                }
                Err(AllocError::Full { .. }) => {
                    self.sealed = Some(sealed);
                    return Ok(Step::Wait);
                }
                Err(e) => return Err(e.into()),
            }
        }
        match self.write(&mut sealed)? {
            Some(heap) => {
                let done = completion(&self.shared, &self.heaps, heap, sealed.forget);
                Ok(Step::Done(done))
            }
            None => {
                self.sealed = Some(sealed);
                Ok(Step::More)
            }
        }
    }
}

/// Names a heap, and shows it.
fn completion(
    shared: &Shared,
    heaps: &Arc<Heaps>,
    heap: Heap,
    forget: Box<dyn FnOnce() + Send>,
) -> Completion {
    let mut changes = vec![Change::added(heap.meta.clone())];
    // A heap in memory needs its logs until it is drained (H3).
    if shared.pool_outlives() {
        let (seq, id) = (heap.meta.seqs.1, heap.meta.id + 1);
        changes.extend([Change::LastSeq { seq }, Change::NextId { id }]);
        changes.extend(retired(&std::mem::take(&mut heap.state.lock().logs)));
    }
    let (heaps, entries) = (Arc::clone(heaps), heap.meta.entries);
    Completion {
        edit: Edit { changes },
        apply: Box::new(move || {
            heaps.insert(Arc::new(heap));
            forget();
        }),
        garbage: Vec::new(),
        entries,
    }
}

/// A heap that is complete and not named.
struct Built(Option<Completion>);

impl Job for Built {
    fn kind(&self) -> JobKind {
        JobKind::Flush
    }

    fn step(&mut self) -> Result<Step> {
        Ok(self.0.take().map_or(Step::More, Step::Done))
    }
}

/// Makes a heap of the entries of `batch`.
pub(super) fn build(
    shared: &Arc<Shared>,
    heaps: &Arc<Heaps>,
    batch: &Batch,
    seq: SeqNo,
) -> Result<Box<dyn Job>> {
    let bytes = |key: &[u8], value: &[u8]| ENTRY_BYTES + SLOT_BYTES + key.len() + value.len();
    let entries = batch
        .payload
        .iter()
        .map(|entry| bytes(entry.key, entry.value));
    let extent = shared
        .pool
        .alloc((HEADER_BYTES + entries.sum::<usize>()) as u64)?;
    let mut writer = Writer::new(extent);
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
        writer.push(&view, Value { bytes, expiry });
    }
    let state = State {
        unsynced: !shared.pool_outlives(),
        ..State::default()
    };
    let heap = writer.finish(shared.next_id(), (seq, seq), None, state)?;
    let done = completion(shared, heaps, heap, Box::new(|| {}));
    Ok(Box::new(Built(Some(done))))
}
