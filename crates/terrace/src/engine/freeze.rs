//! Freeze: one moment of the database, for a copy of all of it while writers run.
//!
//! A view and a sequence number are taken together, so that the view contains every entry up to the
//! number, and its files contain none above it: files can be copied as they are. The rest is walked
//! with a cursor that shows of each key the version visible at the number, including tombstones,
//! since they may delete entries in the files.
//!
//! A view keeps everything that reclaims have emptied since. If nothing was in files, the number
//! alone keeps what the cursor shows, so no view is held between its chunks: however long the copy
//! takes, writers have the same space as without it. Otherwise the view is held to the end. The
//! bottom is files then, and what is kept are the tables of the pool that are not walked yet.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::parts::batch::Batch;
use crate::parts::expiry::{Millis, Value};
use crate::parts::iter::{Cursor, EntryView, MergeCursor};
use crate::parts::key::{KeyRange, Target};
use crate::parts::manifest::{Change, Edit};
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::ranges::{Newer, RangeSet};
use crate::stages::{Drain, EntryCount, NamedFile, PendingFree, Source, Takes};
use crate::types::{EntryKind, SeqNo};

use super::Engine;
use super::view::View;

/// The maximum entries of a chunk, and the bytes after which it ends early.
const CHUNK_ENTRIES: usize = 1024;
const CHUNK_BYTES: usize = 1 << 20;

/// A moment of a database.
pub(crate) struct Frozen {
    point: Registered,
    view: Arc<View>,
}

/// The number of a moment. It keeps the versions visible at it.
struct Registered {
    engine: Arc<Engine>,
    seq: SeqNo,
    dropped: Arc<Vec<u32>>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.engine.shared.snapshots.release(self.seq);
    }
}

impl Engine {
    /// Freezes the current moment.
    pub(crate) fn freeze(self: &Arc<Self>) -> Result<Frozen> {
        self.check_open()?;
        let shared = &self.shared;
        // No view can be installed between the two. So everything visible is in this view: it was
        // there before it had a number. And its files contain nothing above the number: what goes
        // into a file is visible before, or, for an ingest, becomes visible with the view.
        let (view, seq) = self.views.hold_during(|| {
            let snapshots = &shared.snapshots;
            snapshots.register_number(&shared.sequencer, &shared.time)
        });
        let point = Registered {
            engine: Arc::clone(self),
            seq,
            dropped: shared.dropped.all(),
        };
        Ok(Frozen { point, view })
    }

    /// Moves all of `cursor` to the lowest stage, whose entries are all older, and takes the
    /// numbers up to `seq`. For an engine without other users yet. `moved` is called after each
    /// step.
    pub(crate) fn drain_all(
        self: &Arc<Self>,
        cursor: Box<dyn Cursor>,
        seq: SeqNo,
        moved: &mut dyn FnMut(),
    ) -> Result<()> {
        if self.stages.bottom.takes() == Takes::Nothing {
            return self.build_all(cursor, seq, moved);
        }
        let job = self.stages.bottom.drain_job(Drain {
            prepare: None,
            cursor: MergeCursor::new(vec![cursor]),
            keys: KeyRange::default(),
            settles: true,
            newer: None,
            seq_last: seq,
            durable: seq,
            edit: Edit::of(Change::LastSeq { seq }),
            logs: Vec::new(),
            pending_free: PendingFree::default(),
            count: EntryCount::default(),
            forget: Box::new(|| {}),
            put_back: None,
            parts: None,
        })?;
        let completion = self.run_apart(job, moved)?;
        if completion.edit.is_empty() {
            return Err(Error::new(
                ErrorKind::Full,
                "the levels of the copy take no data for now: copy the database again",
            ));
        }
        self.shared.manifest.commit(completion.edit)?;
        (completion.apply)();
        self.install_view();
        self.shared.sequencer.start_after(seq);
        Ok(())
    }

    /// The same if the buffer keeps all data: makes tables of the newest values, all with the
    /// number `seq`.
    fn build_all(
        self: &Arc<Self>,
        mut cursor: Box<dyn Cursor>,
        seq: SeqNo,
        moved: &mut dyn FnMut(),
    ) -> Result<()> {
        let mut batch = Batch::default();
        let mut end = |batch: &mut Batch| -> Result<()> {
            let completion = self.table_apart(batch, seq)?;
            batch.clear();
            self.shared.manifest.commit(completion.edit)?;
            (completion.apply)();
            moved();
            Ok(())
        };
        cursor.hold();
        cursor.seek(&Target::first_of(0, &[]))?;
        // Tombstones are left out, since nothing is below them.
        while let Some(entry) = cursor.entry()? {
            let (keyspace, kind) = (entry.keyspace, entry.kind);
            if keyspace < RANGE_DELETE_BIT && kind != EntryKind::Delete as u8 {
                let Value { bytes, expiry } = cursor.value()?;
                match expiry {
                    0 => batch.push(EntryKind::Put, keyspace, entry.key, bytes),
                    expiry => batch.push_expiring(keyspace, entry.key, bytes, expiry),
                }
            }
            if batch.payload.len_bytes() as u64 > self.shape.memtable_bytes {
                end(&mut batch)?;
            }
            cursor.advance()?;
        }
        cursor.release();
        if batch.len() > 0 {
            end(&mut batch)?;
        }
        self.install_view();
        self.shared.sequencer.start_after(seq);
        Ok(())
    }
}

impl Frozen {
    /// Returns the number of the moment.
    pub(crate) fn seq(&self) -> SeqNo {
        self.point.seq
    }

    /// Returns the files that contain a part of it, each once.
    pub(crate) fn files(&self) -> Vec<NamedFile> {
        let sources = self.view.sources.iter();
        let mut seen = HashSet::new();
        let files = sources.flat_map(|source| source.files());
        // Several runs may need one value file.
        let first = files.filter(|file| seen.insert(file.path.clone()));
        first.collect()
    }

    /// Returns the approximate number of bytes that the cursor has to walk.
    pub(crate) fn bytes_beside_files(&self) -> u64 {
        let sources = self.view.sources.iter().filter(|s| s.files().is_empty());
        sources.map(|source| source.verify_bytes()).sum()
    }

    /// Returns a cursor over the entries outside files. The caller has copied the files by then.
    pub(crate) fn cursor(self) -> FrozenCursor {
        FrozenCursor {
            moves_on: self.files().is_empty(),
            view: Some(self.view),
            merged: None,
            point: self.point,
            chunk: Vec::new(),
            at: 0,
            start: (0, Vec::new()),
            last: None,
            ended: false,
            handed_out: Arc::default(),
        }
    }
}

/// One entry of a chunk.
struct Kept {
    keyspace: u32,
    key: Vec<u8>,
    seq: SeqNo,
    kind: u8,
    value: Vec<u8>,
    /// The expiry, or 0.
    expiry: Millis,
}

/// A cursor over the versions visible at one moment. It fetches chunks, and releases the sources in
/// between.
pub(crate) struct FrozenCursor {
    point: Registered,
    /// Whether nothing was in files. Then the current view can replace that of the moment, and the
    /// pool gets back what jobs have emptied.
    moves_on: bool,
    /// `None` between the chunks of a cursor that moves on.
    view: Option<Arc<View>>,
    /// `None` until the sources of the view are first walked.
    merged: Option<MergeCursor>,
    chunk: Vec<Kept>,
    at: usize,
    /// The start of the walk.
    start: (u32, Vec<u8>),
    /// The last key looked at.
    last: Option<(u32, Vec<u8>)>,
    ended: bool,
    handed_out: Arc<HandedOut>,
}

/// The counts of what a cursor has returned so far.
#[derive(Debug, Default)]
pub(crate) struct HandedOut {
    pub(crate) entries: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl FrozenCursor {
    /// Returns the counts of what the cursor returns, for progress reports.
    pub(crate) fn handed_out(&self) -> Arc<HandedOut> {
        Arc::clone(&self.handed_out)
    }

    fn fetch(&mut self) -> Result<()> {
        self.chunk.clear();
        self.at = 0;
        // BOUND: each turn advances the last key, or ends.
        while self.chunk.is_empty() && !self.ended {
            let engine = Arc::clone(&self.point.engine);
            engine.check_open()?;
            let view = self.view.take().unwrap_or_else(|| engine.views.hold());
            let mut positioned = true;
            let mut merged = self.merged.take().unwrap_or_else(|| {
                positioned = false;
                // Entries in files are copied with them, if there were files at the moment. If
                // there were none, there may be some by now, and they have to be walked too.
                let walked = |source: &&Arc<dyn Source>| self.moves_on || source.files().is_empty();
                let sources = view.sources.iter().filter(walked);
                MergeCursor::new(sources.map(|source| source.cursor()).collect())
            });
            positioned &= merged.hold();
            let filled = self.fill(&mut merged, view.ranges.as_deref(), positioned);
            merged.release();
            if !self.moves_on {
                self.view = Some(view);
                self.merged = Some(merged);
            }
            filled?;
        }
        let bytes = self
            .chunk
            .iter()
            .map(|kept| kept.key.len() + kept.value.len());
        let (entries, bytes) = (self.chunk.len(), bytes.sum::<usize>());
        self.handed_out
            .entries
            .fetch_add(entries as u64, Ordering::Relaxed);
        self.handed_out
            .bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    fn fill(
        &mut self,
        merged: &mut MergeCursor,
        ranges: Option<&RangeSet>,
        positioned: bool,
    ) -> Result<()> {
        if !positioned {
            merged.seek(&match &self.last {
                // After all versions of the last key.
                Some((keyspace, key)) => Target {
                    keyspace: *keyspace,
                    key,
                    seq: 0,
                },
                None => Target::first_of(self.start.0, &self.start.1),
            })?;
        }
        let mut bytes = 0;
        while self.chunk.len() < CHUNK_ENTRIES && bytes < CHUNK_BYTES {
            let Some(entry) = merged.entry()? else {
                self.ended = true;
                return Ok(());
            };
            let place = (entry.keyspace, entry.key);
            let last = self.last.as_ref().map(|(k, key)| (*k, key.as_slice()));
            let seen = last == Some(place);
            if last.is_some_and(|last| last > place) {
                // BOUND: damaged links may form a cycle; then keys stop ascending.
                return Err(Error::corruption(format!(
                    "keys are out of order at {}: run verify, and recover the readable data with \
                     \"terrace repair\"",
                    entry.key.escape_ascii()
                )));
            }
            if entry.seq <= self.point.seq && !seen {
                self.last = Some((entry.keyspace, entry.key.to_vec()));
                // The range delete, which is copied, also hides the entries in files that it may
                // hide.
                let deleted = ranges.is_some_and(|ranges| {
                    entry.keyspace < RANGE_DELETE_BIT
                        && ranges.newest(entry.keyspace, entry.key, self.point.seq)
                            > Some(entry.seq)
                });
                let dropped = &self.point.dropped;
                if !deleted
                    && dropped
                        .binary_search(&(entry.keyspace & !RANGE_DELETE_BIT))
                        .is_err()
                {
                    let (keyspace, key) = (entry.keyspace, entry.key.to_vec());
                    let (seq, kind) = (entry.seq, entry.kind);
                    let Value {
                        bytes: value,
                        expiry,
                    } = merged.value()?;
                    let value = value.to_vec();
                    bytes += key.len() + value.len();
                    self.chunk.push(Kept {
                        keyspace,
                        key,
                        seq,
                        kind,
                        value,
                        expiry,
                    });
                }
            }
            merged.advance()?;
        }
        Ok(())
    }
}

impl Cursor for FrozenCursor {
    fn hold(&mut self) -> bool {
        // Its entries are copies.
        true
    }

    fn release(&mut self) {}

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        self.start = (target.keyspace, target.key.to_vec());
        self.last = None;
        self.ended = false;
        self.merged = None;
        // A drain first looks for range deletes, which come last, so the counts restart.
        self.handed_out.entries.store(0, Ordering::Relaxed);
        self.handed_out.bytes.store(0, Ordering::Relaxed);
        self.fetch()
    }

    fn seek_before(&mut self, target: &Target<'_>, _breadth: usize) -> Result<()> {
        self.seek(target)
    }

    fn newer(&self, _: &Target<'_>, _: &Target<'_>, _: SeqNo, _: bool) -> Newer {
        Newer::Unknown
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        if self.at < self.chunk.len() {
            return Ok(());
        }
        self.fetch()
    }

    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        Ok(self.chunk.get(self.at).map(|kept| EntryView {
            keyspace: kept.keyspace,
            key: &kept.key,
            seq: kept.seq,
            kind: kept.kind,
        }))
    }

    fn value(&self) -> Result<Value<'_>> {
        let kept = self.chunk.get(self.at);
        Ok(kept.map_or(Value::default(), |kept| Value {
            bytes: &kept.value,
            expiry: kept.expiry,
        }))
    }
}
