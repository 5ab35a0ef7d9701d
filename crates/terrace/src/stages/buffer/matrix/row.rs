//! One row: how it is searched, and how it loses the keys that columns drain.

use std::cmp::Ordering;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::{Extent, prefetch};

use super::layout::{
    ArrayHeader, Common, ENTRY_BYTES, Entry, Front, GroupHeader, HEADER_BYTES, ROW, RowMeta,
    SLOT_BYTES, Slot,
};
use crate::error::{Error, Result};
use crate::parts::codec::{self, DecodeError};
use crate::parts::expiry::Value;
use crate::parts::iter::{Cursor, EntryView};
use crate::parts::key::{KeyRange, Place, Target};
use crate::parts::manifest::Change;
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::ranges::{LateKeys, Newer, SeqBound};
use crate::stages::Census;
use crate::types::{EntryKind, SeqNo};

/// A row without the keys that are drained. It never changes: a drain that ends makes another one,
/// and views made before keep this one with all of its groups.
pub(super) struct Row {
    pub(super) meta: RowMeta,
    /// The groups that are left, and the extent of the array.
    groups: Vec<Arc<Extent>>,
    array: Arc<Extent>,
    /// The id of the row that the forward pointers are for, or 0.
    pub(super) older: u64,
    common: Common,
    slots_crc: u32,
    /// The index of the first entry that is not drained.
    from: u64,
    late: Option<Arc<LateKeys>>,
    bound: SeqBound,
    pub(super) state: Arc<Mutex<State>>,
}

/// The state that jobs change, shared by all forms of a row.
#[derive(Default)]
pub(super) struct State {
    /// Whether a drain has it.
    pub(super) busy: bool,
    /// The logs that have its entries, if the pool is memory.
    pub(super) logs: Vec<u64>,
    /// Whether the pool is memory and some entries are in no log that is known to be synced.
    pub(super) unsynced: bool,
}

/// Returns the first `len` bytes of an extent from an offset on.
fn bytes_at(extent: &Extent, at: u64, len: usize) -> Result<&[u8], DecodeError> {
    let off = extent.off().saturating_add(at);
    let inside = at.saturating_add(len as u64) <= extent.len();
    let bytes = inside.then(|| extent.region().bytes(off, len)).flatten();
    bytes.ok_or_else(|| DecodeError::new("row", off, "bytes of the row", "none"))
}

impl Row {
    /// Opens a row over its extents.
    pub(super) fn open(
        meta: RowMeta,
        groups: Vec<Arc<Extent>>,
        own: Option<Arc<Extent>>,
        late: Option<Arc<LateKeys>>,
        state: State,
    ) -> Result<Row> {
        let damaged = |what: &str| Error::corruption(format!("row {} has no {what}", meta.id));
        let array = own.or(groups.last().cloned());
        let array = array.ok_or_else(|| damaged("extent"))?;
        let header = bytes_at(&array, meta.array_at, HEADER_BYTES)?;
        let header = ArrayHeader::decode(header, array.off() + meta.array_at)?;
        if (header.id, header.entries) != (meta.id, meta.entries) {
            let expected = format!("row {} of {} entries", meta.id, meta.entries);
            let found = format!("row {} of {}", header.id, header.entries);
            return Err(DecodeError::new("array header", array.off(), expected, found).into());
        }
        for (at, (group, named)) in groups.iter().zip(&meta.groups).enumerate() {
            let found = GroupHeader::decode(bytes_at(group, 0, HEADER_BYTES)?, group.off())?;
            let number = meta.first.0 + at as u32;
            if (found.id, found.number, u64::from(found.end)) != (meta.id, number, named.end) {
                let expected = format!("group {number} of row {}", meta.id);
                let other = format!("group {} of row {}", found.number, found.id);
                return Err(DecodeError::new("group header", group.off(), expected, other).into());
            }
        }
        let mut row = Row {
            older: header.older,
            common: header.common,
            slots_crc: header.slots_crc,
            groups,
            array,
            from: 0,
            bound: SeqBound::new(meta.seqs.1, late.clone()),
            late,
            state: Arc::new(Mutex::new(state)),
            meta,
        };
        row.from = row.first_left()?;
        Ok(row)
    }

    /// Returns the row without the keys before a place.
    pub(super) fn without(&self, drained: &Place) -> Result<Row> {
        let from = self.position(&Target::first_of(drained.0, &drained.1))?;
        let mut meta = self.meta.clone();
        meta.drained = Some(drained.clone());
        let last = self.groups.len().saturating_sub(1);
        let left = match from < self.meta.entries {
            true => {
                // The manifest will name this place, so damage of the array is found before.
                let (slot, entry) = (self.slot(from)?, self.entry(from)?);
                entry.checked_value()?;
                if (entry.view.keyspace, entry.view.key) < (drained.0, &drained.1[..]) {
                    let off = self.array.off() + self.meta.array_at;
                    let expected = "the first entry after a column";
                    let found = "one of the column";
                    return Err(DecodeError::new("array of a row", off, expected, found).into());
                }
                meta.first = (slot.group, slot.offset);
                (slot.group.saturating_sub(self.meta.first.0) as usize).min(last)
            }
            // The array may be in the last group.
            false => {
                let end = self.meta.groups.last().map_or(0, |group| group.end);
                meta.first = (self.meta.first.0 + last as u32, end as u32);
                last
            }
        };
        meta.groups.drain(..left);
        Ok(Row {
            groups: self.groups[left..].to_vec(),
            array: Arc::clone(&self.array),
            older: self.older,
            common: self.common,
            slots_crc: self.slots_crc,
            from,
            late: self.late.clone(),
            bound: SeqBound::new(meta.seqs.1, self.late.clone()),
            state: Arc::clone(&self.state),
            meta,
        })
    }

    /// Returns the change that removes the row.
    pub(super) fn removed(&self) -> Change {
        let id = self.meta.id;
        Change::Removed { owner: &ROW, id }
    }

    /// Returns the number of entries, drained ones included.
    pub(super) fn entries(&self) -> u64 {
        self.meta.entries
    }

    /// Returns the bytes of its extents.
    pub(super) fn extent_bytes(&self) -> u64 {
        self.meta.spans_bytes()
    }

    /// Returns the bytes of entries that are not drained.
    pub(super) fn live_bytes(&self) -> u64 {
        let live = self.meta.entries.saturating_sub(self.from);
        live * self.mean()
    }

    pub(super) fn mean(&self) -> u64 {
        self.meta.bytes / self.meta.entries.max(1)
    }

    #[inline]
    fn slot_bytes(&self, index: u64) -> Result<&[u8], DecodeError> {
        let at = self.meta.array_at + HEADER_BYTES as u64 + index * SLOT_BYTES as u64;
        bytes_at(&self.array, at, SLOT_BYTES)
    }

    #[inline]
    fn slot(&self, index: u64) -> Result<Slot, DecodeError> {
        let bytes = self.slot_bytes(index)?;
        Ok(Slot::decode(
            bytes.first_chunk().unwrap_or(&[0; SLOT_BYTES]),
        ))
    }

    /// Begins to load the slot at an index into the processor's cache.
    #[inline]
    pub(super) fn prefetch_slot(&self, index: u64) {
        if let Ok(bytes) = self.slot_bytes(index) {
            prefetch(bytes);
        }
    }

    /// Begins to load the entry at an index, if there is one, into the processor's cache.
    #[inline]
    pub(super) fn prefetch_entry(&self, index: u64) {
        if index < self.meta.entries
            && let Ok(slot) = self.slot(index)
            && let Some(group) = slot.group.checked_sub(self.meta.first.0)
            && let Some(extent) = self.groups.get(group as usize)
            && let Ok(head) = bytes_at(extent, u64::from(slot.offset), ENTRY_BYTES)
        {
            prefetch(head);
        }
    }

    fn entry_of(&self, slot: &Slot) -> Result<Entry<'_>, DecodeError> {
        let group = slot.group.checked_sub(self.meta.first.0);
        let group = group.and_then(|at| {
            let at = at as usize;
            Some((self.groups.get(at)?, self.meta.groups.get(at)?.end))
        });
        let Some((extent, end)) =
            group.filter(|(_, end)| u64::from(slot.offset) + ENTRY_BYTES as u64 <= *end)
        else {
            let found = format!("offset {} of group {}", slot.offset, slot.group);
            let off = self.array.off() + self.meta.array_at;
            return Err(DecodeError::new("array of a row", off, "an entry", found));
        };
        let off = extent.off();
        Entry::read(extent.region(), off + u64::from(slot.offset), off + end)
    }

    /// Returns the entry at an index.
    pub(super) fn entry(&self, index: u64) -> Result<Entry<'_>, DecodeError> {
        self.entry_of(&self.slot(index)?)
    }

    /// Returns the front of a key for comparisons with entries of this row.
    #[inline]
    pub(super) fn front_of(&self, target: &Target<'_>) -> Front {
        self.common.front_of_target(target.keyspace, target.key)
    }

    /// Compares the entry at an index with a target, whose front for this row is `front`.
    #[inline]
    pub(super) fn compare(
        &self,
        index: u64,
        target: &Target<'_>,
        front: Front,
    ) -> Result<Ordering, DecodeError> {
        let slot = self.slot(index)?;
        match slot.compare(front) {
            Ordering::Equal => Ok(self.entry_of(&slot)?.compare(target)),
            order => Ok(order),
        }
    }

    /// Returns the indexes between which a search has to look: without those that are drained.
    #[inline]
    pub(super) fn bounds(&self) -> (u64, u64) {
        (self.from, self.meta.entries)
    }

    /// Returns the index of the first entry not before `target` between two indexes.
    pub(super) fn position_in(
        &self,
        target: &Target<'_>,
        (mut low, mut high): (u64, u64),
    ) -> Result<u64, DecodeError> {
        let front = self.front_of(target);
        // BOUND: the range halves.
        while low < high {
            let middle = low + (high - low) / 2;
            match self.compare(middle, target, front)? {
                Ordering::Less => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Returns the index of the first entry not before `target`.
    pub(super) fn position(&self, target: &Target<'_>) -> Result<u64, DecodeError> {
        self.position_in(target, self.bounds())
    }

    /// Returns the index of the first entry not before `target`, searched outwards from the index
    /// `near`: cheap if it is close to that.
    pub(super) fn position_near(&self, target: &Target<'_>, near: u64) -> Result<u64, DecodeError> {
        let (from, entries) = self.bounds();
        let front = self.front_of(target);
        let (mut low, mut step) = (near.clamp(from, entries), 1);
        if low > from && self.compare(low - 1, target, front)?.is_ge() {
            return self.position_in(target, (from, low - 1));
        }
        // BOUND: the step doubles.
        loop {
            let high = low.saturating_add(step);
            if high >= entries {
                return self.position_in(target, (low, entries));
            }
            if self.compare(high - 1, target, front)?.is_ge() {
                return self.position_in(target, (low, high - 1));
            }
            (low, step) = (high, 2 * step);
        }
    }

    /// Returns the index of the first entry that is not drained.
    fn first_left(&self) -> Result<u64, DecodeError> {
        let (mut low, mut high) = (0, self.meta.entries);
        // BOUND: the range halves.
        while low < high {
            let middle = low + (high - low) / 2;
            let slot = self.slot(middle)?;
            match (slot.group, slot.offset) < self.meta.first {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(low)
    }

    /// Returns the range of indexes in the older row of a target, whose index in this row is
    /// `index`, if the forward pointers are for that row.
    #[inline]
    pub(super) fn forward(
        &self,
        index: u64,
        older: &Row,
    ) -> Result<Option<(u64, u64)>, DecodeError> {
        if self.older != older.meta.id {
            return Ok(None);
        }
        let (from, entries) = older.bounds();
        // A target before the first entry that is left may be before drained ones too.
        let low = match index > self.from {
            true => u64::from(self.slot(index - 1)?.forward).max(from),
            false => from,
        };
        let high = match index < self.meta.entries {
            true => u64::from(self.slot(index)?.forward).max(from).min(entries),
            false => entries,
        };
        Ok((low <= high).then_some((low, high)))
    }

    /// Returns the entry at an index if it has this key. For most other entries the front in the
    /// array shows that they have not, without a cache miss for the entry.
    #[inline]
    pub(super) fn entry_with_key(
        &self,
        index: u64,
        keyspace: u32,
        key: &[u8],
    ) -> Result<Option<Entry<'_>>, DecodeError> {
        if index >= self.meta.entries {
            return Ok(None);
        }
        let slot = self.slot(index)?;
        if slot
            .compare(self.common.front_of_target(keyspace, key))
            .is_ne()
        {
            return Ok(None);
        }
        let entry = self.entry_of(&slot)?;
        Ok(((entry.view.keyspace, entry.view.key) == (keyspace, key)).then_some(entry))
    }

    /// Returns the index of the first range delete; they follow all other entries.
    fn ranges_from(&self) -> Result<u64, DecodeError> {
        self.position(&Target::first_of(RANGE_DELETE_BIT, &[]))
    }

    /// Returns the number of range deletes.
    pub(super) fn range_deletes(&self) -> Result<u64, DecodeError> {
        Ok(self.meta.entries - self.ranges_from()?)
    }

    /// Returns the indexes of the entries with keys in a range, without range deletes.
    fn span(&self, keys: &KeyRange) -> Result<(u64, u64), DecodeError> {
        let end = match &keys.to {
            Some((keyspace, key)) => self.position(&Target::first_of(*keyspace, key))?,
            None => self.ranges_from()?,
        };
        let from = self.position(&keys.start())?;
        Ok((from, end.max(from)))
    }

    /// Returns the number of entries with keys in a range, without range deletes.
    pub(super) fn count(&self, keys: &KeyRange) -> Result<u64, DecodeError> {
        let (from, end) = self.span(keys)?;
        Ok(end - from)
    }

    /// Returns the keys in a range, one for each entry.
    pub(super) fn keys(&self, keys: &KeyRange) -> Result<Vec<Place>, DecodeError> {
        let (from, end) = self.span(keys)?;
        let place = |at: u64| {
            let view = self.entry(at)?.view;
            Ok((view.keyspace, view.key.to_vec()))
        };
        (from..end).map(place).collect()
    }

    /// Returns about how many bytes the entries with keys in a range have.
    pub(super) fn bytes(&self, keys: &KeyRange) -> Result<u64, DecodeError> {
        Ok(self.count(keys)? * self.mean())
    }

    /// Returns about how many entries, and bytes of them, are between two places.
    pub(super) fn approximate(
        &self,
        from: &Target<'_>,
        to: &Target<'_>,
    ) -> Result<(u64, u64), DecodeError> {
        let entries = self.position(to)?.saturating_sub(self.position(from)?);
        Ok((entries, entries * self.mean()))
    }

    /// Returns the key of the entry `count` entries after the first one in a range. If that entry
    /// has the first one's key, returns the key after it; `None` if the range ends before.
    pub(super) fn key_after(
        &self,
        keys: &KeyRange,
        count: u64,
    ) -> Result<Option<Place>, DecodeError> {
        let (from, end) = self.span(keys)?;
        let Some(mut at) = from.checked_add(count).filter(|at| *at < end) else {
            return Ok(None);
        };
        let first = self.entry(from)?.view;
        let is_first = |at: u64| -> Result<bool, DecodeError> {
            let entry = self.entry(at)?.view;
            Ok((entry.keyspace, entry.key) == (first.keyspace, first.key))
        };
        if is_first(at)? {
            let (keyspace, key) = (first.keyspace, first.key);
            let last = Target {
                keyspace,
                key,
                seq: 0,
            };
            at = self.position(&last)?;
            at += u64::from(at < end && is_first(at)?);
        }
        let entry = (at < end).then(|| self.entry(at)).transpose()?;
        Ok(entry.map(|entry| (entry.view.keyspace, entry.view.key.to_vec())))
    }

    /// Checks everything, and calls `visited` with the number of bytes of each read.
    pub(super) fn check(
        &self,
        census: &mut Census,
        visited: &mut dyn FnMut(u64),
    ) -> Result<(), DecodeError> {
        let at = self.meta.array_at + HEADER_BYTES as u64;
        let slots = bytes_at(&self.array, at, self.meta.entries as usize * SLOT_BYTES)?;
        let wrong = |expected: &str| {
            let off = self.array.off() + at;
            DecodeError::new("array of a row", off, expected, "others")
        };
        if codec::checksum(slots) != self.slots_crc {
            return Err(wrong("slots with the checksum in its header"));
        }
        let mut forward = 0;
        for index in self.from..self.meta.entries {
            let (slot, entry) = (self.slot(index)?, self.entry(index)?);
            let view = entry.view;
            if index > self.from && self.entry(index - 1)?.compare(&view.target()).is_ge() {
                return Err(wrong("ascending keys"));
            }
            if slot.compare(self.front_of(&view.target())).is_ne() {
                return Err(wrong("the fronts of its keys"));
            }
            // A flush that had to let the older row go has left the other pointers out.
            let before = std::mem::replace(&mut forward, slot.forward);
            if self.older != 0 && slot.forward < before {
                return Err(wrong("ascending forward pointers"));
            }
            census.entries += 1;
            census.bytes += entry.len();
            census.tombstones += u64::from(view.kind == EntryKind::Delete as u8);
            if let Err(e) = entry.checked_value() {
                census.problems.push(format!("row {}: {e}", self.meta.id));
            }
            visited(entry.len() + SLOT_BYTES as u64);
        }
        Ok(())
    }
}

/// A position in a row.
pub(super) struct RowCursor {
    row: Arc<Row>,
    /// The index of the entry; their number if unpositioned.
    at: u64,
}

/// The entries between the current one and the one that is loaded ahead.
const AHEAD: u64 = 4;

impl RowCursor {
    pub(super) fn new(row: Arc<Row>) -> RowCursor {
        let at = row.entries();
        RowCursor { row, at }
    }

    /// Moves to the entry at an index.
    pub(super) fn place_at(&mut self, index: u64) {
        self.at = index.min(self.row.entries());
    }

    fn current(&self) -> Result<Option<Entry<'_>>> {
        let inside = self.at < self.row.entries();
        Ok(inside.then(|| self.row.entry(self.at)).transpose()?)
    }
}

impl Cursor for RowCursor {
    fn hold(&mut self) -> bool {
        true
    }

    fn release(&mut self) {}

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        self.at = self.row.position(target)?;
        Ok(())
    }

    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()> {
        let back = 3u64.saturating_pow(breadth as u32);
        let at = self.row.position(target)?.checked_sub(back);
        let at = at.filter(|at| *at >= self.row.from);
        self.at = at.unwrap_or(self.row.entries());
        Ok(())
    }

    fn advance(&mut self) -> Result<()> {
        self.at = (self.at + 1).min(self.row.entries());
        // Loads an entry that follows.
        self.row.prefetch_entry(self.at + AHEAD);
        Ok(())
    }

    fn newer(&self, from: &Target<'_>, to: &Target<'_>, than: SeqNo, last: bool) -> Newer {
        self.row.bound.newer(from, to, than, last)
    }

    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        Ok(self.current()?.map(|entry| entry.view))
    }

    fn value(&self) -> Result<Value<'_>> {
        let value = self.current()?.map(|entry| entry.checked_value());
        Ok(value.transpose()?.unwrap_or_default())
    }
}
