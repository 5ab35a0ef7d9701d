//! The writing of a row: group after group, then the array.

use std::cmp::Ordering;
use std::sync::Arc;

use terrace_media::{AllocError, Extent, Purpose};

use super::layout::{
    ArrayHeader, Common, ENTRY_BYTES, GroupHeader, GroupMeta, HEADER_BYTES, RowMeta, SLOT_BYTES,
    Slot, put_entry,
};
use super::row::{Row, State};
use crate::canary::failpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::parts::codec::{self, DecodeError};
use crate::parts::expiry::Value;
use crate::parts::iter::EntryView;
use crate::parts::key::Target;
use crate::parts::ranges::LateKeys;
use crate::stages::Shared;
use crate::types::SeqNo;

/// A row has about this many groups, so that a column gives most of its space back.
const GROUPS: u64 = 16;
/// The smallest group of a row that has several.
const GROUP_BYTES_MIN: u64 = 64 << 10;
/// The slots begin at a multiple of this.
const ALIGN: u64 = 8;

/// Writes a row.
pub(super) struct Writer {
    shared: Arc<Shared>,
    id: u64,
    group_bytes: u64,
    /// The bytes that the row is expected to have.
    expected: u64,
    groups: Vec<(Arc<Extent>, u64)>,
    /// The group that is being written, and the length of the part that is written; `pending`
    /// follows it.
    current: Option<(Arc<Extent>, u64)>,
    pending: Vec<u8>,
    slots: Vec<u8>,
    common: Common,
    bytes: u64,
    /// The next older row, and the index of its first entry at or after the last key. `None` once
    /// its forward pointers are complete, or given up.
    older: Option<(Arc<Row>, u64)>,
    /// The id of the row that the forward pointers are for, or 0.
    older_id: u64,
}

/// The extent of an array, if it is not in the last group, and its offset there.
type ArrayPlace = (Option<Arc<Extent>>, u64);

/// The sequence numbers of a row, and what is known of its keys.
pub(super) struct Numbers {
    pub(super) seqs: (SeqNo, SeqNo),
    pub(super) late: Option<Arc<LateKeys>>,
}

impl Writer {
    /// Begins a row of about `bytes` with `entries` entries, whose keys have this `common` start.
    /// `older` is the newest row so far.
    pub(super) fn new(
        shared: &Arc<Shared>,
        id: u64,
        (entries, bytes): (u64, u64),
        common: Common,
        older: Option<Arc<Row>>,
    ) -> Writer {
        let slots = entries * SLOT_BYTES as u64 + 2 * HEADER_BYTES as u64;
        let memtable = shared.options.front.memtable_bytes;
        let older = older.map(|row| {
            let from = row.bounds().0;
            (row, from)
        });
        Writer {
            shared: Arc::clone(shared),
            id,
            group_bytes: (memtable / GROUPS).max(GROUP_BYTES_MIN),
            expected: bytes + slots,
            groups: Vec::new(),
            current: None,
            pending: Vec::new(),
            slots: Vec::new(),
            common,
            bytes: 0,
            older_id: older.as_ref().map_or(0, |(row, _)| row.meta.id),
            older,
        }
    }

    /// Makes room for an entry with these lengths of key and value. If the pool has none, the
    /// writer can be asked again. It no longer holds the older row then, whose space may be what
    /// it waits for, and the row has no forward pointers.
    pub(super) fn make_room(&mut self, key: usize, value: usize) -> Result<Result<(), AllocError>> {
        let needed = (ENTRY_BYTES + key + value) as u64;
        let fits = |(extent, at): &(Arc<Extent>, u64)| {
            at + self.pending.len() as u64 + needed <= extent.len().min(u64::from(u32::MAX))
        };
        if self.current.as_ref().is_some_and(fits) {
            return Ok(Ok(()));
        }
        self.close_group()?;
        let wanted = match self.expected <= self.group_bytes {
            // A small row is one group, with its array.
            true => self.expected.max(needed + HEADER_BYTES as u64),
            // Whole entries of this size: otherwise large ones leave up to half of a group empty.
            false => self.group_bytes.div_ceil(needed) * needed + HEADER_BYTES as u64,
        };
        match self.shared.pool.alloc(wanted) {
            Ok(extent) => {
                self.current = Some((extent, HEADER_BYTES as u64));
                Ok(Ok(()))
            }
            Err(e) => {
                (self.older, self.older_id) = (None, 0);
                Ok(Err(e))
            }
        }
    }

    /// Takes the next entry, for which there is room. Returns the bytes that wait to be written.
    pub(super) fn push(&mut self, entry: &EntryView<'_>, value: Value<'_>) -> Result<usize> {
        let number = self.groups.len() as u32;
        let at = self.current.as_ref().map_or(0, |(_, at)| *at) + self.pending.len() as u64;
        let forward = match self.forward(&Target::first_of(entry.keyspace, entry.key)) {
            Ok(forward) => forward,
            // Damage of the older row is its own.
            Err(_) => {
                (self.older, self.older_id) = (None, 0);
                0
            }
        };
        let Some(front) = self.common.front(entry.keyspace, entry.key) else {
            return Err(Error::corruption(
                "keys of a memtable are not in order; run \"terrace verify\"",
            ));
        };
        let before = self.pending.len();
        put_entry(&mut self.pending, entry, value);
        let slot = Slot {
            front,
            keyspace: entry.keyspace,
            group: number,
            offset: at as u32,
            forward,
        };
        self.slots.extend_from_slice(&slot.encode());
        self.bytes += (self.pending.len() - before + SLOT_BYTES) as u64;
        Ok(self.pending.len())
    }

    /// Returns the index of the first entry of the older row that is not before a key.
    fn forward(&mut self, key: &Target<'_>) -> Result<u32, DecodeError> {
        let Some((older, at)) = &mut self.older else {
            return Ok(0);
        };
        let front = older.front_of(key);
        // BOUND: the keys ascend, so each entry is passed once.
        while *at < older.entries() && older.compare(*at, key, front)? == Ordering::Less {
            *at += 1;
        }
        failpoint!(HintTooFar => return Ok((*at + 1).min(older.entries()) as u32));
        Ok(*at as u32)
    }

    /// Returns the number of entries so far.
    pub(super) fn entries(&self) -> u64 {
        (self.slots.len() / SLOT_BYTES) as u64
    }

    fn write(&self, extent: &Extent, at: u64, bytes: &[u8]) -> Result<()> {
        let larger = || Error::corruption("a row is larger than its extent in the pool");
        let mut claim = extent.claim(at, bytes.len()).ok_or_else(larger)?;
        claim.write_streaming(0, bytes, Purpose::Flush);
        // PERSIST: what this thread has streamed, before another thread may run the next step.
        extent.region().fence(Purpose::Flush);
        Ok(())
    }

    /// Writes the entries that wait.
    pub(super) fn write_pending(&mut self) -> Result<()> {
        if let Some((extent, at)) = &self.current {
            self.write(extent, *at, &self.pending)?;
        }
        if let Some((_, at)) = &mut self.current {
            *at += self.pending.len() as u64;
        }
        self.pending.clear();
        Ok(())
    }

    /// Ends the current group, if there is one.
    fn close_group(&mut self) -> Result<()> {
        self.write_pending()?;
        if let Some((extent, end)) = self.current.take() {
            let header = GroupHeader {
                id: self.id,
                number: self.groups.len() as u32,
                end: end as u32,
            };
            self.write(&extent, 0, &header.encode())?;
            self.groups.push((extent, end));
        }
        Ok(())
    }

    /// Ends the last group and finds a place for the array: behind its entries, or an extent of its
    /// own. If the pool has none, the writer can be asked again.
    pub(super) fn place_array(&mut self) -> Result<Result<ArrayPlace, AllocError>> {
        self.close_group()?;
        // The space of the older row may be what this waits for.
        self.older = None;
        let bytes = (HEADER_BYTES + self.slots.len()) as u64;
        if let Some((last, end)) = self.groups.last()
            && end.next_multiple_of(ALIGN) + bytes <= last.len()
        {
            return Ok(Ok((None, end.next_multiple_of(ALIGN))));
        }
        Ok(self
            .shared
            .pool
            .alloc(bytes)
            .map(|extent| (Some(extent), 0)))
    }

    /// Makes the row durable.
    pub(super) fn finish(
        self,
        (own, array_at): ArrayPlace,
        numbers: Numbers,
        state: State,
    ) -> Result<Row> {
        let header = ArrayHeader {
            id: self.id,
            entries: self.entries(),
            older: self.older_id,
            common: self.common,
            slots_crc: codec::checksum(&self.slots),
        };
        let last = self.groups.last().map(|(extent, _)| extent);
        if let Some(array) = own.as_ref().or(last) {
            let slots_at = array_at + HEADER_BYTES as u64;
            self.write(array, slots_at, &self.slots)?;
            self.write(array, array_at, &header.encode())?;
        }
        // PERSIST: all of the row before the edit that names it. Reversed, a crash could leave a
        // row of garbage and no log to rebuild it from.
        // CRASH: before the edit its extents are free, and its log is replayed.
        let groups = self.groups.iter().map(|(extent, _)| extent);
        for extent in groups.chain(&own) {
            let synced = extent.region().sync(extent.off(), extent.len() as usize);
            synced.map_err(|e| {
                let text = format!("a flushed row cannot be synced: {e}");
                Error::new(ErrorKind::Io, text).because(e)
            })?;
        }
        let named = |(extent, end): &(Arc<Extent>, u64)| GroupMeta {
            span: extent.span(),
            end: *end,
        };
        let meta = RowMeta {
            id: self.id,
            entries: header.entries,
            bytes: self.bytes,
            seqs: numbers.seqs,
            first: (0, HEADER_BYTES as u32),
            groups: self.groups.iter().map(named).collect(),
            array: own.as_ref().map(|extent| extent.span()),
            array_at,
            drained: None,
        };
        let groups = self.groups.into_iter().map(|(extent, _)| extent).collect();
        Row::open(meta, groups, own, numbers.late, state)
    }
}
