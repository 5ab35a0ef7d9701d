//! A list that is its own log: a skip list in persistent memory, whose nodes are what survives
//! (NoveLSM, 4.3 and 4.4).
//!
//! A writer flushes each node that it has written and fences once for its batch; no byte is written
//! twice. Places are reserved in the order of numbers, and the numbers in one list have no gap, so
//! everything that was acknowledged lies before the first node that is not whole, has not the next
//! number, or belongs to a batch that is not whole. There the list ends after a crash. Links are
//! soft: they are flushed when the list becomes a table, and recovery makes those that are missing.
//!
//! Invariants
//!   N1  A node is flushed by its writer before the fence of its batch, and a batch becomes visible
//!       after all before it: what is acknowledged is a prefix of the nodes in storage order.
//!   N2  The first node's place has no sound node when the list is named. Behind that, bytes of an
//!       earlier use never have the next number: within a session numbers only grow, and after an
//!       unclean end they go on above all that may have been used (wal_memtable/recover.rs). An
//!       orderly close records those of entries that it gives up.
//!   N3  A mark names a durable place only when everything before it is durable, and a written one
//!       only when all before it is written and linked. So an unsound node before the first is
//!       damage, never the result of a crash, and one before the second unless power was lost.
//!
//! Bytes: layout.rs and `parts/skiplist/layout.rs`. Callers: the front, as of any log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_media::{Extent, Medium, Purpose};

use crate::canary::failpoint;
use crate::parts::codec::DecodeError;
use crate::parts::log::layout::{
    LIST_MARK_BYTES, LIST_MARK_WORDS, LIST_MARKS, LOG_BYTES_MAX, ListMark,
};
use crate::parts::log::record::Payload;
use crate::parts::log::settle::Settle;
use crate::parts::log::sync::Rounds;
use crate::parts::log::{Log, Placed, Settling, Slot};
use crate::parts::skiplist::layout::{
    HEAD_BYTES, TABLE_HEADER_BYTES, TABLE_NODES_AT, decode_table_header,
};
use crate::parts::skiplist::salvage::{SoundNode, sound_node};
use crate::types::key_hash;

/// A mark is written each time this part of the list, and at most these bytes, have become durable.
const MARKED_PART: u64 = 512;
const MARKED_BYTES_MAX: u64 = 1 << 20;

/// A log whose records are the nodes of the list in its extent.
pub(crate) struct ListLog {
    extent: Arc<Extent>,
    id: u64,
    medium: Medium,
    /// The bytes of the extent before its marks.
    capacity: u64,
    moving: Moving,
    /// The position before which everything has been synced; unused on `Dax`.
    synced: AtomicU64,
    rounds: Rounds,
}

/// The fields that every write changes, on cache lines of their own.
#[repr(align(128))]
struct Moving {
    /// The offset of the next node.
    tail: AtomicU64,
    settle: Settle,
    /// The written place in the last mark; in the lowest bit, which a place does not use, its line.
    marked: AtomicU64,
}

impl ListLog {
    /// Returns the bytes of an extent that takes `bytes` of header, head and nodes.
    pub(crate) fn extent_bytes(bytes: u64) -> u64 {
        bytes + LIST_MARKS * LIST_MARK_BYTES
    }

    /// Returns the bytes of header, head and nodes that an extent takes.
    pub(crate) fn capacity(extent: &Extent) -> u64 {
        let marks = LIST_MARKS * LIST_MARK_BYTES;
        extent.len().saturating_sub(marks)
    }

    /// Makes a log of the empty list in the extent, whose header and head are written. Durable on
    /// return. `medium` is the pool's.
    pub(crate) fn create(extent: Arc<Extent>, id: u64, medium: Medium) -> io::Result<ListLog> {
        let start = TABLE_NODES_AT as u64;
        let capacity = ListLog::capacity(&extent);
        let (Some(mut first), Some(mut last), false) = (
            extent.claim(start, 8),
            extent.claim(capacity, (LIST_MARKS * LIST_MARK_BYTES) as usize),
            capacity > LOG_BYTES_MAX,
        ) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "an extent of {} bytes is too small or too large for a list",
                    extent.len()
                ),
            ));
        };
        first.store(0, 0);
        last.fill_zero(0, (LIST_MARKS * LIST_MARK_BYTES) as usize);
        let region = extent.region();
        region.flush(extent.off(), TABLE_NODES_AT + 8, Purpose::Log);
        region.flush(last.off(), last.len() as usize, Purpose::Log);
        // PERSIST: header, head, a first place without a node and no marks, before the manifest
        // names the list (N2). Reversed, recovery would take bytes of an earlier use for entries.
        region.fence(Purpose::Log);
        region.sync(extent.off(), TABLE_NODES_AT + 8)?;
        region.sync(last.off(), last.len() as usize)?;
        Ok(ListLog {
            extent,
            id,
            medium,
            capacity,
            moving: Moving {
                tail: AtomicU64::new(start),
                settle: Settle::new(start),
                marked: AtomicU64::new(start),
            },
            synced: AtomicU64::new(start),
            rounds: Rounds::default(),
        })
    }

    fn fence_is_enough(&self) -> bool {
        match self.medium {
            Medium::Dax | Medium::Dram => true,
            Medium::Mapped => false,
        }
    }

    /// Notes in a mark that everything before `written` is written, if enough has come since the
    /// last one. Called at a reservation: a list that takes no more nodes may lose its marks.
    fn mark(&self, written: u64) {
        let last = self.moving.marked.load(Ordering::Relaxed);
        let every = (self.capacity / MARKED_PART).min(MARKED_BYTES_MAX);
        if written <= last + every {
            return;
        }
        let line = (last & 1) ^ 1;
        self.moving.marked.store(written | line, Ordering::Relaxed);
        // PERSIST: what is before the durable place was fenced, or synced, before it counts as such
        // (N3).
        let durable = match self.fence_is_enough() {
            true => written,
            false => written.min(self.synced.load(Ordering::Acquire)),
        };
        let mark = ListMark {
            id: self.id,
            durable,
            written,
        };
        // Nothing waits for it: without it, the mark before counts.
        store_mark(&self.extent, line, mark);
    }
}

impl Log for ListLog {
    #[inline]
    fn reserve(&self, node_bytes: usize) -> Option<Slot> {
        let at = self.moving.tail.load(Ordering::Relaxed);
        let bytes = node_bytes as u64;
        if bytes > self.capacity.saturating_sub(at) {
            return None;
        }
        self.moving.tail.store(at + bytes, Ordering::Relaxed);
        let (ticket, written) = self.moving.settle.reserve();
        self.mark(written);
        Some(Slot {
            at,
            bytes,
            unsettled: 0,
            ticket,
            settling: Settling::Alone,
        })
    }

    /// Does not write: the nodes are written as they are inserted.
    fn place(&self, slot: Slot, _: u64, _: &mut Payload) -> io::Result<Placed> {
        Ok(Placed {
            ticket: slot.ticket,
            at: slot.at,
            end: slot.at + slot.bytes,
            settling: slot.settling,
        })
    }

    fn settle(&self, placed: Placed) {
        // PERSIST: the nodes of the batch, which were flushed as they were written, before their
        // writer is acknowledged (N1). Reversed, a power loss could take an acknowledged write.
        // CRASH: until the fence returns, any line of them may be missing. Then a checksum is
        // wrong, and the list ends before the batch.
        failpoint!(ListFence skips self.extent.region().fence(Purpose::Log));
        self.moving.settle.finish(placed.ticket, placed.end);
    }

    fn sync(&self) -> io::Result<()> {
        if self.is_synced() {
            return self.rounds.check();
        }
        self.rounds.run(|| {
            let written = self.moving.settle.written();
            let from = self.synced.load(Ordering::Acquire);
            let to = self.moving.tail.load(Ordering::Relaxed);
            let region = self.extent.region();
            region.sync(self.extent.off() + from, (to - from) as usize)?;
            self.synced.fetch_max(written, Ordering::Release);
            Ok(())
        })
    }

    fn is_synced(&self) -> bool {
        self.fence_is_enough() || self.synced.load(Ordering::Acquire) == self.bytes()
    }

    fn durable_end(&self) -> Option<u64> {
        let durable = match self.fence_is_enough() {
            true => self.moving.settle.written(),
            false => self.synced.load(Ordering::Acquire),
        };
        (durable == self.bytes()).then_some(durable)
    }

    fn bytes(&self) -> u64 {
        self.moving.tail.load(Ordering::Relaxed)
    }

    /// Does nothing: the manifest records the end.
    fn seal(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Writes and flushes a mark into one of its two lines.
fn store_mark(extent: &Extent, line: u64, mark: ListMark) {
    let at = extent.off() + ListLog::capacity(extent) + line * LIST_MARK_BYTES;
    let region = extent.region();
    for (word, value) in mark.encode().into_iter().enumerate() {
        if let Some(word) = region.word(at + 8 * word as u64) {
            word.store(value, Ordering::Relaxed);
        }
    }
    region.flush(at, 8 * LIST_MARK_WORDS, Purpose::Log);
}

/// Notes in both marks where a recovered list ends: all nodes before `end` are durable and linked.
///
/// After a power loss marks may name places that were written and are lost. If the process were
/// killed now, the next recovery would take what is missing before them for damage.
pub(crate) fn mark_end(extent: &Extent, id: u64, end: u64) {
    let mark = ListMark {
        id,
        durable: end,
        written: end,
    };
    (0..LIST_MARKS).for_each(|line| store_mark(extent, line, mark));
}

/// The id of a list, and which of its bytes must be there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListBounds {
    pub(crate) id: u64,
    /// The end of the list, if it is recorded.
    pub(crate) end: Option<u64>,
    /// Whether power was lost since it was written, so that it may lack what was not durable.
    pub(crate) power_lost: bool,
}

/// The end of a list that is a log.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListEnd {
    /// The offset in the extent after the last node.
    pub(crate) bytes: u64,
    /// The written place in the newest mark, after a power loss the durable one, or 0: all nodes
    /// before it were linked on all levels when it was stored.
    pub(crate) marked: u64,
    /// The place before which all nodes are known to be durable, or 0.
    pub(crate) durable: u64,
    pub(crate) batches: u64,
    pub(crate) entries: u64,
}

/// Returns the offset of the marks in the bytes of an extent.
fn marks_at(extent: &[u8]) -> usize {
    let marks = (LIST_MARKS * LIST_MARK_BYTES) as usize;
    extent.len().saturating_sub(marks)
}

/// Returns the places in the newest mark of a list, or zeros: the one that counts for the `bounds`,
/// and the durable one.
fn marked(extent: &[u8], bounds: ListBounds) -> (u64, u64) {
    let marks = marks_at(extent);
    let newest = (0..LIST_MARKS as usize)
        .filter_map(|mark| ListMark::decode(extent.get(marks + mark * LIST_MARK_BYTES as usize..)?))
        .filter(|mark| mark.id == bounds.id && mark.durable <= mark.written)
        .filter(|mark| mark.written <= marks as u64)
        .max_by_key(|mark| mark.written);
    newest.map_or((0, 0), |mark| match bounds.power_lost {
        true => (mark.durable, mark.durable),
        false => (mark.written, mark.durable),
    })
}

/// Returns the offset in the extent before which the nodes of a list must be there, or 0.
pub(crate) fn list_known_end(extent: &[u8], bounds: ListBounds) -> u64 {
    marked(extent, bounds).0.max(bounds.end.unwrap_or(0))
}

/// Calls `f` with the offset in the extent of each node of a list, oldest first, and the node.
/// `extent` has the bytes of its extent, which is at `base` in the pool.
///
/// The error names the offset of damage, or is the first one of `f`. Links are neither read nor
/// trusted.
pub(crate) fn replay_list<'a, E: From<DecodeError>>(
    extent: &'a [u8],
    base: u64,
    bounds: ListBounds,
    f: &mut dyn FnMut(u64, SoundNode<'a>) -> Result<(), E>,
) -> Result<ListEnd, E> {
    check_head(extent, base, bounds.id)?;
    let (end, marks) = (bounds.end, marks_at(extent));
    let nodes = &extent[..end.map_or(marks, |end| marks.min(end as usize))];
    let (marked, durable) = marked(extent, bounds);
    let known = list_known_end(extent, bounds);
    let mut found = ListEnd {
        bytes: TABLE_NODES_AT as u64,
        marked,
        durable: durable.max(end.unwrap_or(0)),
        ..ListEnd::default()
    };
    let mut batch: Vec<(u64, SoundNode<'a>)> = Vec::new();
    let mut at = found.bytes;
    let mut next = None;
    // BOUND: every node consumes bytes of the extent.
    while let Some(node) = nodes.get(at as usize..).and_then(sound_node) {
        let seq = node.header.seq;
        let fits = node.bytes() <= nodes.len() as u64 - at;
        let hash = key_hash(node.header.keyspace, node.key);
        if next.is_some_and(|next| next != seq) || !fits || hash != node.header.hash {
            break;
        }
        next = Some(seq + 1);
        batch.push((at, node));
        at += node.bytes();
        if node.header.more {
            continue;
        }
        found.bytes = at;
        found.batches += 1;
        found.entries += batch.len() as u64;
        for (at, node) in batch.drain(..) {
            f(at, node)?;
        }
    }
    if found.bytes < known {
        let expected = format!("nodes up to {:#x}", base + known);
        let found = "a node that is not whole, or not the next one";
        return Err(DecodeError::new("list that is a log", base + at, expected, found).into());
    }
    Ok(found)
}

/// Checks the header and the head node of the list.
fn check_head(extent: &[u8], base: u64, id: u64) -> Result<(), DecodeError> {
    let found = decode_table_header(extent, base)?;
    if found != id {
        let (expected, found) = (format!("list {id}"), format!("list {found}"));
        return Err(DecodeError::new("header of a list", base, expected, found));
    }
    let head = extent.get(TABLE_HEADER_BYTES..).and_then(sound_node);
    match head.filter(|head| head.bytes() == HEAD_BYTES as u64) {
        Some(_) => Ok(()),
        None => {
            let at = base + TABLE_HEADER_BYTES as u64;
            Err(DecodeError::new(
                "head of a list",
                at,
                "a sound node",
                "another",
            ))
        }
    }
}
