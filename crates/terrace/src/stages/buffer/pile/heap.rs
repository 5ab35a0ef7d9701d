//! One heap: how it is written once, searched, and walked.

use std::cmp::Ordering;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::{Extent, Purpose};

use super::layout::{
    ENTRY_BYTES, Entry, HEADER_BYTES, HEAP, Header, HeapMeta, SLOT_BYTES, put_entry,
};
use crate::error::{Error, ErrorKind, Result};
use crate::parts::codec::{self, DecodeError};
use crate::parts::expiry::Value;
use crate::parts::iter::{Cursor, EntryView};
use crate::parts::key::{KeyRange, Place, Target};
use crate::parts::manifest::Change;
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::ranges::{LateKeys, Newer, SeqBound};
use crate::stages::{Census, Lookup, Probe, ReadStats, Source};
use crate::types::{EntryKind, SeqNo};

/// A heap of the pile.
pub(super) struct Heap {
    pub(super) meta: HeapMeta,
    header: Header,
    pub(super) extent: Arc<Extent>,
    bound: SeqBound,
    pub(super) state: Mutex<State>,
}

/// The state that a drain changes.
#[derive(Default)]
pub(super) struct State {
    pub(super) busy: bool,
    /// The logs that have its entries, if the pool is memory.
    pub(super) logs: Vec<u64>,
    /// The place before which everything is in the bottom too.
    pub(super) drained: Option<Place>,
    /// Whether the pool is memory and some entries are in no log that is known to be synced.
    pub(super) unsynced: bool,
}

/// Writes a heap.
pub(super) struct Writer {
    extent: Arc<Extent>,
    /// The length of the part that is written; `pending` follows it.
    at: u64,
    pending: Vec<u8>,
    slots: Vec<u8>,
}

impl Writer {
    pub(super) fn new(extent: Arc<Extent>) -> Writer {
        let at = HEADER_BYTES as u64;
        let (pending, slots) = (Vec::new(), Vec::new());
        Writer {
            extent,
            at,
            pending,
            slots,
        }
    }

    /// Takes the next entry. Returns the number of bytes that wait to be written.
    pub(super) fn push(&mut self, entry: &EntryView<'_>, value: Value<'_>) -> usize {
        let off = self.at + self.pending.len() as u64;
        self.slots.extend_from_slice(&off.to_le_bytes());
        put_entry(&mut self.pending, entry, value);
        self.pending.len()
    }

    /// Returns the number of entries so far.
    pub(super) fn entries(&self) -> u64 {
        (self.slots.len() / SLOT_BYTES) as u64
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let larger = || Error::corruption("a heap is larger than its extent in the pool");
        let mut claim = self.extent.claim(at, bytes.len()).ok_or_else(larger)?;
        claim.write_streaming(0, bytes, Purpose::Flush);
        // PERSIST: what this thread has streamed, before another thread may run the next step.
        self.extent.region().fence(Purpose::Flush);
        Ok(())
    }

    /// Writes what waits.
    pub(super) fn write_pending(&mut self) -> Result<()> {
        self.write(self.at, &self.pending)?;
        self.at += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Makes the heap durable.
    pub(super) fn finish(
        mut self,
        id: u64,
        seqs: (SeqNo, SeqNo),
        late: Option<Arc<LateKeys>>,
        state: State,
    ) -> Result<Heap> {
        self.write_pending()?;
        self.write(self.at, &self.slots)?;
        let header = Header {
            id,
            entries: self.entries(),
            index: self.at,
            index_crc: codec::checksum(&self.slots),
        };
        // PERSIST: all of the heap before the edit that names it. Reversed, a crash could leave a
        // heap of garbage and no log to rebuild it from.
        // CRASH: before the edit its extent is free, and its log is replayed.
        self.write(0, &header.encode())?;
        let bytes = self.at + self.slots.len() as u64;
        let region = self.extent.region();
        region
            .sync(self.extent.off(), bytes as usize)
            .map_err(|e| {
                let text = format!("a flushed heap cannot be synced: {e}");
                Error::new(ErrorKind::Io, text).because(e)
            })?;
        let (span, entries) = (self.extent.span(), header.entries);
        let meta = HeapMeta {
            id,
            span,
            entries,
            bytes,
            seqs,
            drained: None,
        };
        Ok(Heap::new(meta, header, self.extent, late, state))
    }
}

impl Heap {
    fn new(
        meta: HeapMeta,
        header: Header,
        extent: Arc<Extent>,
        late: Option<Arc<LateKeys>>,
        state: State,
    ) -> Heap {
        let bound = SeqBound::new(meta.seqs.1, late);
        Heap {
            meta,
            header,
            extent,
            bound,
            state: Mutex::new(state),
        }
    }

    /// Opens the heap that the manifest names.
    pub(super) fn open(meta: &HeapMeta, extent: Arc<Extent>) -> Result<Heap> {
        let off = extent.off();
        let bytes = extent.region().bytes(off, HEADER_BYTES).unwrap_or_default();
        let header = Header::decode(bytes, off, extent.len())?;
        if (header.id, header.entries) != (meta.id, meta.entries) {
            let (expected, found) = (format!("heap {}", meta.id), format!("heap {}", header.id));
            return Err(DecodeError::new("heap header", off, expected, found).into());
        }
        Ok(Heap::new(
            meta.clone(),
            header,
            extent,
            None,
            State {
                drained: meta.drained.clone(),
                ..State::default()
            },
        ))
    }

    fn entry(&self, index: u64) -> Result<Entry<'_>, DecodeError> {
        let (region, off) = (self.extent.region(), self.extent.off());
        let slot_at = off + self.header.index + index * SLOT_BYTES as u64;
        let slot = region
            .bytes(slot_at, SLOT_BYTES)
            .and_then(|b| b.first_chunk());
        let at = u64::from_le_bytes(*slot.unwrap_or(&[0xff; SLOT_BYTES]));
        if at > self.header.index.saturating_sub(ENTRY_BYTES as u64) {
            let found = format!("the offset {at}");
            return Err(DecodeError::new(
                "index of a heap",
                slot_at,
                "an entry",
                found,
            ));
        }
        Entry::read(region, off + at, off + self.header.index)
    }

    /// Returns the index of the first entry not before `target`.
    fn position(&self, target: &Target<'_>) -> Result<u64, DecodeError> {
        let (mut low, mut high) = (0, self.header.entries);
        // BOUND: the range halves.
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry(middle)?.compare(target) {
                Ordering::Less => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Returns the number of the newest version of the target's key up to the target's own.
    pub(super) fn newest_version(&self, target: &Target<'_>) -> Result<Option<SeqNo>> {
        let at = self.position(target)?;
        if at == self.header.entries {
            return Ok(None);
        }
        let entry = self.entry(at)?.view;
        let found = (entry.keyspace, entry.key) == (target.keyspace, target.key);
        Ok(found.then_some(entry.seq))
    }

    /// Returns the change at the end of a drain of `keys`.
    pub(super) fn drained(&self, keys: &KeyRange) -> Change {
        match &keys.to {
            Some(place) => Change::changed(HeapMeta {
                drained: Some(place.clone()),
                ..self.meta.clone()
            }),
            None => Change::Removed {
                owner: &HEAP,
                id: self.meta.id,
            },
        }
    }

    /// Returns the number of range deletes, which follow all other entries.
    pub(super) fn range_deletes(&self) -> Result<u64> {
        let first = self.position(&Target::first_of(RANGE_DELETE_BIT, &[]))?;
        Ok(self.header.entries - first)
    }

    /// Returns the number of entries with keys in a range, without range deletes.
    pub(super) fn count(&self, keys: &KeyRange) -> Result<u64> {
        let end = match &keys.to {
            Some((keyspace, key)) => self.position(&Target::first_of(*keyspace, key))?,
            None => self.header.entries - self.range_deletes()?,
        };
        Ok(end.saturating_sub(self.position(&keys.start())?))
    }

    /// Returns the key of the entry after a quarter of all entries, from the start of a range on,
    /// or `None` if the last key is not after that.
    pub(super) fn quarter_after(&self, keys: &KeyRange) -> Result<Option<Place>> {
        let at = self.position(&keys.start())? + self.header.entries.div_ceil(4);
        if at >= self.header.entries - self.range_deletes()? {
            return Ok(None);
        }
        let entry = self.entry(at)?.view;
        let place = (entry.keyspace, entry.key.to_vec());
        Ok((Some(&place) > keys.from.as_ref()).then_some(place))
    }

    fn check(&self, census: &mut Census, visited: &mut dyn FnMut(u64)) -> Result<(), DecodeError> {
        let (index, len) = (self.header.index, self.header.entries * SLOT_BYTES as u64);
        let at = self.extent.off() + index;
        let slots = self
            .extent
            .region()
            .bytes(at, len as usize)
            .unwrap_or_default();
        if codec::checksum(slots) != self.header.index_crc {
            return Err(DecodeError::new(
                "index of a heap",
                at,
                "its checksum",
                "another",
            ));
        }
        for index in 0..self.header.entries {
            let entry = self.entry(index)?;
            if index > 0 && self.entry(index - 1)?.compare(&entry.view.target()).is_ge() {
                return Err(DecodeError::new(
                    "index of a heap",
                    at,
                    "ascending keys",
                    "others",
                ));
            }
            census.entries += 1;
            census.bytes += entry.len();
            census.tombstones += u64::from(entry.view.kind == EntryKind::Delete as u8);
            if let Err(e) = entry.checked_value() {
                census.problems.push(format!("heap {}: {e}", self.meta.id));
            }
            visited(entry.len() + SLOT_BYTES as u64);
        }
        Ok(())
    }
}

/// The heap as a source. A newtype, since cursors share it.
pub(super) struct HeapSource(pub(super) Arc<Heap>);

impl Source for HeapSource {
    fn get(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>> {
        stats.sources += 1;
        let at = self.0.position(&probe.target_below_front())?;
        if at == self.0.header.entries {
            return Ok(None);
        }
        let entry = self.0.entry(at)?;
        if (entry.view.keyspace, entry.view.key) != (probe.keyspace, probe.key) {
            return Ok(None);
        }
        let found = Lookup::of(entry.view.kind, entry.view.seq, entry.checked_value()?);
        let unknown = || Error::corruption(format!("heap {} has an unknown kind", self.0.meta.id));
        found.ok_or_else(unknown).map(Some)
    }

    fn cursor(&self) -> Box<dyn Cursor> {
        let at = self.0.header.entries;
        Box::new(HeapCursor {
            heap: Arc::clone(&self.0),
            at,
        })
    }

    fn approximate(&self, from: &Target<'_>, to: &Target<'_>) -> Result<(u64, u64)> {
        let entries = self.0.position(to)?.saturating_sub(self.0.position(from)?);
        let mean = self.0.meta.bytes / self.0.meta.entries.max(1);
        Ok((entries, entries * mean))
    }

    fn verify(&self, census: &mut Census, visited: &mut dyn FnMut(u64)) {
        census.tables += 1;
        if let Err(problem) = self.0.check(census, visited) {
            census
                .problems
                .push(format!("heap {}: {problem}", self.0.meta.id));
        }
    }

    fn verify_bytes(&self) -> u64 {
        self.0.meta.bytes
    }

    fn seqs(&self) -> (SeqNo, SeqNo) {
        self.0.meta.seqs
    }
}

/// A position in a heap, which never changes.
struct HeapCursor {
    heap: Arc<Heap>,
    /// The index of the entry; their number if unpositioned.
    at: u64,
}

impl HeapCursor {
    fn current(&self) -> Result<Option<Entry<'_>>> {
        let inside = self.at < self.heap.header.entries;
        Ok(inside.then(|| self.heap.entry(self.at)).transpose()?)
    }
}

impl Cursor for HeapCursor {
    fn hold(&mut self) -> bool {
        true
    }

    fn release(&mut self) {}

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        self.at = self.heap.position(target)?;
        Ok(())
    }

    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()> {
        let back = 3u64.saturating_pow(breadth as u32);
        let at = self.heap.position(target)?.checked_sub(back);
        self.at = at.unwrap_or(self.heap.header.entries);
        Ok(())
    }

    fn advance(&mut self) -> Result<()> {
        self.at = (self.at + 1).min(self.heap.header.entries);
        Ok(())
    }

    fn newer(&self, from: &Target<'_>, to: &Target<'_>, than: SeqNo, last: bool) -> Newer {
        self.heap.bound.newer(from, to, than, last)
    }

    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        Ok(self.current()?.map(|entry| entry.view))
    }

    fn value(&self) -> Result<Value<'_>> {
        let value = self.current()?.map(|entry| entry.checked_value());
        Ok(value.transpose()?.unwrap_or_default())
    }
}
