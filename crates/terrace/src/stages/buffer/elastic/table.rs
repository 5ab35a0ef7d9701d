//! One table of the elastic buffer: a skip list in the pool, its filters, its extents, and the way
//! it is read while a merge empties it.
//!
//! Invariants
//!   E1  A node is linked into the older list before it is unlinked from the newer one, so a reader
//!       that searches newer, then older, finds it in one of them.
//!   E2  `frontier` names the last node that has left (or is leaving) the list; it is stored before
//!       any link of such a node changes. A search that stepped only on nodes behind the frontier
//!       has read only links of this list.
//!   E3  The filters together cover every key that the list has or is about to get.

use std::cell::Cell;
use std::cmp::Ordering as Order;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrace_media::{Extent, Purpose};

use super::layout::{TABLE, TableMeta};
use crate::canary::{self, Canary};
use crate::error::Error;
use crate::error::Result;
use crate::parts::codec::DecodeError;
use crate::parts::filter::Filter;
use crate::parts::iter::{Cursor, ListCursor};
use crate::parts::key::Target;
use crate::parts::latch::Latch;
use crate::parts::manifest::State;
use crate::parts::ranges::{LateKeys, SeqBound};
use crate::parts::skiplist::SkipList;
use crate::parts::skiplist::layout::{LEFT_OUT_AT, TABLE_HEADER_BYTES, TABLE_NODES_AT};
use crate::parts::skiplist::search::Found;
use crate::parts::skiplist::walk::Walk;
use crate::stages::{
    Census, ListReads, Lookup, Prediction, Probe, Read, ReadStats, Readers, Shared, Source,
};
use crate::types::{EntryKind, SeqNo, key_hash};

/// BOUND: after this many restarts a point read takes the latch, and the merge waits for it.
const RETRIES_MAX: u32 = 64;

/// BOUND: the number of hashes for which a check of a table asks its filters, which is the number
/// of its entries in between.
const HASHES_MIN: u64 = 1 << 10;
const HASHES_MAX: u64 = 1 << 18;

/// Returns a hash as any key may have, another one for each table and number.
fn absent_hash(table: u64, number: u64) -> u64 {
    let bytes = [table.to_le_bytes(), number.to_le_bytes()].concat();
    key_hash(u32::MAX, &bytes)
}

/// A table of the buffer.
pub(super) struct Table {
    pub(super) id: u64,
    pub(super) list: SkipList,
    pub(super) latch: Latch,
    /// The offset of the last node that a merge has taken out of this list; 0 before the first.
    pub(super) frontier: AtomicU64,
    pub(super) filters: ArcSwap<Vec<Arc<Filter>>>,
    pub(super) seq_bound: Arc<SeqBound>,
    pub(super) inner: Mutex<Inner>,
}

/// The state that changes when tables move and merge.
pub(super) struct Inner {
    pub(super) level: u32,
    pub(super) extents: Vec<(Arc<Extent>, u64)>,
    pub(super) entries: u64,
    /// Bytes of nodes, superseded ones included.
    pub(super) bytes: u64,
    /// The bytes that it has once the merge into it has ended; 0 without one.
    pub(super) grows_to: u64,
    pub(super) seq_first: SeqNo,
    pub(super) seq_last: SeqNo,
    /// The logs that have its entries, if the pool is memory.
    pub(super) logs: Vec<u64>,
    /// Whether the pool is memory and some entries are in no log that is known to be synced.
    pub(super) unsynced: bool,
    /// The readers of the memtable that the table was, in the same memory.
    pub(super) readers: Option<Arc<Readers>>,
    /// Whether a job owns the table.
    pub(super) busy: bool,
    /// The filter that the manifest names: its extent must stay even if it is not used.
    pub(super) named_filter: Option<Arc<Filter>>,
    /// The table that this one is being emptied into.
    pub(super) merging_into: Option<Arc<Table>>,
}

impl Inner {
    /// Returns whether the table may have readers as the memtable that it was (B3).
    pub(super) fn is_read_as_memtable(&mut self) -> bool {
        if self.readers.as_ref().is_some_and(|r| r.are_gone()) {
            self.readers = None;
        }
        self.readers.is_some()
    }
}

impl Table {
    /// Returns the table as the manifest names it. Only the job that has marked the table as busy
    /// may replace it there.
    pub(super) fn named(&self, shared: &Shared) -> Result<TableMeta> {
        let item = |state: &State| state.item(&TABLE, self.id).cloned();
        shared.manifest.with_state(item).ok_or_else(|| {
            Error::corruption(format!("the manifest no longer names table {}", self.id))
        })
    }

    /// Creates a table over a list that is complete in the pool.
    pub(super) fn new(
        id: u64,
        list: SkipList,
        filters: Vec<Arc<Filter>>,
        late: Option<Arc<LateKeys>>,
        inner: Inner,
    ) -> Table {
        Table {
            seq_bound: Arc::new(SeqBound::new(inner.seq_last, late)),
            id,
            list,
            latch: Latch::default(),
            frontier: AtomicU64::new(0),
            filters: ArcSwap::from_pointee(filters),
            inner: Mutex::new(inner),
        }
    }

    /// Returns whether the filters allow that the table has a key of this hash.
    #[inline]
    fn may_contain(&self, hash: u64) -> bool {
        let filters = self.filters.load();
        filters.is_empty() || filters.iter().any(|filter| filter.may_contain(hash))
    }

    /// Returns whether a search that began by stepping on `first` has read only links of this list
    /// (E2).
    #[inline]
    fn path_is_sound(&self, first: u64) -> Result<bool, DecodeError> {
        // Acquire: the links that the search read were loaded with Acquire, so if one of them was
        // changed by a merge, the frontier stored before that change is seen here.
        let frontier = self.frontier.load(Ordering::Acquire);
        if frontier == 0 || first == 0 || canary::breaks(Canary::FrontierIgnored) {
            return Ok(true);
        }
        let moved = self.list.node(frontier)?.target();
        Ok(self.list.node(first)?.compare(&moved) == Order::Greater)
    }

    /// Finds the first node not before `target`, 0 at the end, even during a concurrent merge.
    fn seek(&self, target: &Target<'_>, stats: &mut ReadStats) -> Result<u64, DecodeError> {
        for _ in 0..RETRIES_MAX {
            let found = self.list.seek(target)?;
            if self.path_is_sound(found.first)? {
                return Ok(found.node);
            }
            stats.relink_retries += 1;
            std::hint::spin_loop();
        }
        let _held = self.latch.hold();
        Ok(self.list.seek(target)?.node)
    }

    /// Returns the number of the newest version of the target's key that is not above the target's
    /// own.
    pub(super) fn newest_version(&self, target: &Target<'_>, hash: u64) -> Result<Option<SeqNo>> {
        if !self.may_contain(hash) {
            return Ok(None);
        }
        let off = self.seek(target, &mut ReadStats::default())?;
        if off == 0 {
            return Ok(None);
        }
        let node = self.list.node(off)?;
        let found = node.same_key(target.keyspace, target.key);
        Ok(found.then_some(node.header.seq))
    }
}

impl ListReads for Table {
    fn list(&self) -> &SkipList {
        &self.list
    }

    #[inline]
    fn begin<'a>(&self, probe: &Probe<'a>, stats: &mut ReadStats) -> Option<Target<'a>> {
        if !self.may_contain(probe.hash) {
            stats.filter_saved += 1;
            return None;
        }
        stats.sources += 1;
        Some(probe.target_below_front())
    }

    #[inline]
    fn node_of(&self, target: &Target<'_>, found: Found, stats: &mut ReadStats) -> Result<u64> {
        if self.path_is_sound(found.first)? {
            return Ok(found.node);
        }
        stats.relink_retries += 1;
        std::hint::spin_loop();
        Ok(self.seek(target, stats)?)
    }
}

impl Source for Table {
    fn get(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>> {
        self.read_one(probe, stats)
    }

    fn predict(&self, hash: u64) -> Prediction {
        let filters = self.filters.load();
        match filters.is_empty() {
            true => Prediction::Unknown,
            false => Prediction::of(filters.iter().any(|filter| filter.may_contain(hash))),
        }
    }

    fn multi_get(&self, reads: &mut [Read<'_>], stats: &mut ReadStats) -> Result<()> {
        self.read_groups(reads, stats)
    }

    fn cursor(&self) -> Box<dyn Cursor> {
        let cursor = ListCursor::new(self.list.clone(), Some(self.latch.clone()));
        Box::new(cursor.with_ages(&self.seq_bound))
    }

    fn approximate(&self, from: &Target<'_>, to: &Target<'_>) -> Result<(u64, u64)> {
        let _held = self.latch.hold();
        let entries = self.list.count_between(from, to)?;
        let inner = self.inner.lock();
        let mean = inner.bytes.checked_div(inner.entries).unwrap_or(0);
        Ok((entries, entries * mean))
    }

    fn verify(&self, census: &mut Census, visited: &mut dyn FnMut(u64)) {
        census.tables += 1;
        if let Err(problem) = self.verify_list(census, visited) {
            census
                .problems
                .push(format!("table {}: {problem}", self.id));
        }
        self.probe_filters(census);
        for filter in self.filters.load().iter() {
            if let Err(problem) = filter.verify() {
                census
                    .problems
                    .push(format!("filter of table {}: {problem}", self.id));
            }
        }
    }

    fn verify_bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    fn seqs(&self) -> (SeqNo, SeqNo) {
        let inner = self.inner.lock();
        (inner.seq_first, inner.seq_last)
    }
}

/// Two tables, one of which is emptied into the other, as they were at one moment.
struct Pair {
    older: Arc<Table>,
    entries: (u64, u64),
    left_out: Option<u64>,
    /// These grow when the merge has ended.
    older_extents: usize,
    batches: (u64, u64),
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        let state = |pair: &Pair| {
            (
                pair.entries,
                pair.left_out,
                pair.older_extents,
                pair.batches,
            )
        };
        Arc::ptr_eq(&self.older, &other.older) && state(self) == state(other)
    }
}

impl Pair {
    /// Returns the older table and the number of entries of both, if they are counted.
    fn expected(&self) -> Option<(&Table, u64)> {
        let both = self.entries.0 + self.entries.1;
        Some((&self.older, both.saturating_sub(self.left_out?)))
    }
}

impl Table {
    /// Asks the filters for random hashes, which keys of the table nearly never have.
    fn probe_filters(&self, census: &mut Census) {
        if self.filters.load().is_empty() {
            return;
        }
        let (level, hashes) = {
            let inner = self.inner.lock();
            (inner.level, inner.entries.clamp(HASHES_MIN, HASHES_MAX))
        };
        let counts = census.filters.entry(level).or_default();
        counts.level = level;
        counts.table_count += 1;
        for number in 0..hashes {
            let hash = absent_hash(self.id, number);
            counts.passed_count += u64::from(self.may_contain(hash));
        }
        counts.asked_count += hashes;
    }

    /// Walks the list under its latch, chunk by chunk: order, towers, checksums, filters.
    fn verify_list(
        &self,
        census: &mut Census,
        visited: &mut dyn FnMut(u64),
    ) -> Result<(), DecodeError> {
        let (before, pair) = (self.at_rest(), self.pair());
        let problems = &mut census.problems;
        let dropped = &census.dropped;
        let mut entries = 0;
        let mut tombstones = 0;
        let mut bytes = 0;
        let pending = Cell::new(0);
        self.list.check(
            &self.latch,
            &mut |node, value| {
                entries += 1;
                bytes += node.header.node_bytes() as u64;
                pending.set(pending.get() + node.header.node_bytes() as u64);
                if EntryKind::from_raw(node.header.kind) == Some(EntryKind::Delete) {
                    tombstones += 1;
                }
                if let Err(problem) = value {
                    problems.push(format!("table {}: {problem}", self.id));
                }
                let readable = dropped.binary_search(&node.header.keyspace).is_err();
                if readable && !self.may_contain(node.header.hash) {
                    problems.push(format!(
                        "table {}: the filter denies the key of the node at pool offset {:#x}",
                        self.id, node.off
                    ));
                }
            },
            &mut || visited(pending.take()),
        )?;
        // A lost link looks like the end of the list.
        if let Some((expected, _)) = before.filter(|_| self.at_rest() == before)
            && expected != entries
        {
            problems.push(format!(
                "table {}: {entries} of its {expected} entries are linked",
                self.id
            ));
        }
        if let Some((older, expected)) = pair.as_ref().and_then(|pair| pair.expected()) {
            let mut found = entries;
            // Other problems of it are reported by its own walk.
            let walked = older
                .list
                .check(&older.latch, &mut |_, _| found += 1, &mut || {});
            if walked.is_ok() && found != expected && self.pair() == pair {
                problems.push(format!(
                    "table {}: {found} entries are linked, but it should have {expected} together \
                     with table {}, into which it is merged",
                    self.id, older.id
                ));
            }
        }
        census.entries += entries;
        census.tombstones += tombstones;
        census.bytes += bytes;
        Ok(())
    }

    /// Returns the number of entries in the list, and of its extents, which grow with each merge;
    /// `None` while a merge changes it, or has begun to.
    fn at_rest(&self) -> Option<(u64, usize)> {
        let inner = self.inner.lock();
        let rests = !inner.busy && inner.merging_into.is_none();
        rests.then_some((inner.entries, inner.extents.len()))
    }

    /// Returns the offset of the count of entries that the merge which empties the table has left
    /// out.
    pub(super) fn left_out_at(&self) -> u64 {
        // The head follows the header.
        self.list.head() - (TABLE_HEADER_BYTES - LEFT_OUT_AT) as u64
    }

    /// Returns how many entries of both tables the merge that empties this one has left out; `None`
    /// if they are not counted.
    pub(super) fn left_out(&self) -> Option<u64> {
        let word = self.list.region().word(self.left_out_at())?;
        word.load(Ordering::Acquire).checked_sub(1)
    }

    /// Records durably how many entries were left out.
    pub(super) fn count_left_out(&self, entries: u64) {
        let at = self.left_out_at();
        // PERSIST: the header around it, by the flush that made the table.
        self.list.region().publish(at, entries + 1, Purpose::Merge);
    }

    /// Marks the number left out as unknown; durable when the pool is marked as repaired.
    pub(super) fn forget_left_out(&self) {
        if let Some(word) = self.list.region().word(self.left_out_at()) {
            word.store(0, Ordering::Release);
        }
    }

    /// Returns the table that this one is emptied into, and the state that changes as the merge
    /// goes on.
    fn pair(&self) -> Option<Pair> {
        let (older, newer_entries) = {
            let inner = self.inner.lock();
            (inner.merging_into.clone()?, inner.entries)
        };
        // LOCK: one latch after the other; a batch between the two counts as a change of the pair.
        let newer_batches = self.latch.hold().relink_count();
        let older_batches = older.latch.hold().relink_count();
        let left_out = self.left_out();
        let (older_entries, older_extents) = {
            let inner = older.inner.lock();
            (inner.entries, inner.extents.len())
        };
        Some(Pair {
            older,
            entries: (newer_entries, older_entries),
            left_out,
            older_extents,
            batches: (newer_batches, older_batches),
        })
    }

    /// Visits the nodes of the table in storage order, dropped ones included.
    pub(super) fn walk_extents(&self, visit: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let extents = self.inner.lock().extents.clone();
        for (extent, used) in extents {
            let start = extent.off() + TABLE_NODES_AT as u64;
            let mut walk = Walk::new(extent.region(), start, extent.off() + used);
            while let Some(node) = walk.next_node()? {
                visit(node.off)?;
            }
        }
        Ok(())
    }
}
