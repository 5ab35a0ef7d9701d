//! The memtable: an index and its nodes in a DRAM arena (index.rs).
//!
//! Nodes and links of a skip list have the layout that they will have in the pool. The arena's
//! offsets are those of the pool extent that the memtable got when it was made, so the
//! links between nodes are pool offsets from the start and a flush copies bytes. If the pool is
//! memory itself, the extent is the arena, and a flush copies nothing. Nor does that of a list that
//! is its own log: it is in its extent in the pool, and its writers make its nodes durable.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_media::{Arena, Bump, Claim, Extent, Pool, Purpose, Region};

use super::in_log::{self, Values, logged_bytes};
use super::index::{Approach, Index};
use crate::canary::{self, Canary};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::parts::batch::Batch;
use crate::parts::filter::GrowingFilter;
use crate::parts::iter::Cursor;
use crate::parts::key::{Place, Target};
use crate::parts::log::{ListLog, Log, LogEntry};
use crate::parts::memory::{Lease, Memory as Budget, OutOfBudget};
use crate::parts::ranges::{LateKeys, RangeDelete};
use crate::parts::skiplist::search_hints::SearchHints;
use crate::parts::skiplist::{NewNode, Node, SkipList};
use crate::stages::{
    Census, ListReads, Lookup, Probe, Read, ReadStats, Readers, Source, read_each,
};
use crate::types::{EntryKind, SeqNo, key_hash};

/// BOUND: more unused arenas than this are returned to the system.
const ARENAS_KEPT: usize = 8;

/// Arenas come in whole pages.
const PAGE: u64 = 4096;

/// The place of the nodes of a memtable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    /// In an arena, to be copied.
    Arena,
    /// In their extent, in a pool that is memory.
    Extent,
    /// In their extent, which is their log as well.
    List,
}

/// The DRAM of a memtable.
struct Memory {
    /// `None` if the memtable is in its extent.
    arena: Option<Arena>,
    /// `None` if there was no memory for them: searches are slower then.
    search_hints: Option<SearchHints>,
    /// The size of the memtables that it is for.
    bytes: u64,
    /// The arena's share of the memory budget.
    lease: Option<Lease>,
}

/// DRAM that no memtable uses any more. It is reused, since faulting pages in costs more than
/// everything else that a memtable does.
pub(super) struct Arenas {
    idle: Mutex<Vec<Memory>>,
    budget: Arc<Budget>,
    /// Whether memtables have filters.
    filters: bool,
}

impl Arenas {
    /// Creates an empty list of arenas within a budget.
    pub(super) fn new(budget: &Arc<Budget>, options: &Options) -> Arenas {
        Arenas {
            // A memory budget has no row for them.
            filters: options.read_worker_count() > 0 && !budget.is_limited(),
            idle: Mutex::default(),
            budget: Arc::clone(budget),
        }
    }

    /// Makes `count` arenas ahead of need, faulted in.
    pub(super) fn preallocate(&self, count: usize, bytes: u64) -> Result<()> {
        let taken: Result<Vec<Memory>> =
            (0..count).map(|_| self.take(bytes, false, true)).collect();
        let taken = taken?;
        for arena in taken.iter().filter_map(|memory| memory.arena.as_ref()) {
            // For speed only: a failure appears, if at all, at the first store.
            let _ = arena.populate(0, bytes);
        }
        self.idle.lock().extend(taken);
        Ok(())
    }

    /// Returns an arena of at least `bytes`, a used one if possible; `in_place`: no arena, only the
    /// memory that belongs to it. `is_list`: with search hints.
    fn take(&self, bytes: u64, in_place: bool, is_list: bool) -> Result<Memory> {
        let hints = || match is_list {
            true => SearchHints::within(&self.budget, bytes),
            false => None,
        };
        let mut arenas = self.idle.lock();
        // Not larger either: the memtable must not outgrow its extent.
        let fits = |m: &Memory| match &m.arena {
            Some(arena) => {
                !in_place && arena.is_idle() && (bytes..bytes + PAGE).contains(&arena.len())
            }
            None => in_place && m.bytes == bytes,
        };
        if let Some(at) = arenas.iter().position(fits) {
            let mut found = arenas.swap_remove(at);
            if found.search_hints.is_none() {
                found.search_hints = hints();
            }
            return Ok(found);
        }
        // The others are of a size that is no longer requested, or still read.
        if arenas.len() > ARENAS_KEPT {
            let idle = arenas.iter().position(Memory::is_idle);
            if !self.budget.is_limited() || idle.is_some() {
                arenas.remove(idle.unwrap_or(0));
            }
        }
        let mut lease = None;
        let mut arena = None;
        if !in_place {
            let whole = bytes.next_multiple_of(PAGE);
            // BOUND: each iteration frees one.
            lease = self.budget.arenas.take(whole);
            while lease.is_none() {
                match arenas.iter().position(Memory::is_idle) {
                    Some(at) => drop(arenas.swap_remove(at)),
                    None => return Err(self.full(bytes)),
                }
                lease = self.budget.arenas.take(whole);
            }
            arena = Some(Arena::new(bytes).map_err(|e| {
                Error::new(
                    crate::error::ErrorKind::Full,
                    format!("cannot allocate {bytes} bytes for a memtable: {e}"),
                )
                .because(e)
            })?);
        }
        Ok(Memory {
            arena,
            search_hints: hints(),
            bytes,
            lease,
        })
    }

    /// Returns the refusal of a memtable of this many bytes.
    #[cold]
    fn full(&self, bytes: u64) -> Error {
        let most = self.budget.limits.arenas_bytes;
        let cause = match bytes > most {
            true => OutOfBudget::TooLarge,
            false => OutOfBudget::HeldByReaders,
        };
        let text = match cause {
            OutOfBudget::TooLarge => format!(
                "a memtable of {bytes} bytes is needed, for example to replay a log of larger \
                 memtables, but --memory (memory_bytes) allows {most} for all memtables: open the \
                 database once with a larger memory_bytes and compact it (\"terrace compact\", \
                 Db::compact_range)"
            ),
            OutOfBudget::HeldByReaders => format!(
                "memtables have reached their limit of {most} bytes, and readers still use flushed \
                 ones: drop unused iterators, or reopen with a larger memory_bytes (--memory)"
            ),
        };
        Error::new(crate::error::ErrorKind::Full, text).because(cause)
    }
}

impl Memory {
    /// Returns that of a memtable that is in its extent and takes no entries.
    fn none() -> Memory {
        Memory {
            arena: None,
            search_hints: None,
            bytes: 0,
            lease: None,
        }
    }

    /// Returns whether it is no longer in use.
    fn is_idle(&self) -> bool {
        self.arena.as_ref().is_none_or(Arena::is_idle)
    }
}

/// The counters that every write changes, apart from the fields that every search reads.
#[repr(align(128))]
struct Counted {
    entries: AtomicU64,
    /// The deletes among them.
    deletes: AtomicU64,
    seq_first: AtomicU64,
    seq_last: AtomicU64,
}

/// A memtable, active or sealed.
pub(super) struct Memtable {
    pub(super) id: u64,
    pub(super) index: Index,
    /// Has every key, unless it is `None`.
    filter: Option<GrowingFilter>,
    pub(super) bump: Bump,
    /// The place of the memtable in the pool, for its flush.
    pub(super) extent: Arc<Extent>,
    /// The log that makes it durable. `None` after a replay: the old log is kept by `kept`.
    pub(super) log: Option<Arc<dyn Log>>,
    /// The bytes of the log when it is full.
    pub(super) log_bytes_max: u64,
    pub(super) values: Values,
    /// The extent of the log, if it is in the pool.
    pub(super) log_extent: Option<Arc<Extent>>,
    /// The extent of the log that this memtable was replayed from, and the end of its records.
    pub(super) kept: Option<Arc<Extent>>,
    pub(super) kept_bytes: u64,
    /// Logs that are not needed once its entries outlive the process without them.
    pub(super) logs: Vec<u64>,
    /// Notified when the memtable has no more readers.
    pub(super) readers: Arc<Readers>,
    /// Keys written into ranges that were deleted in this memtable.
    pub(super) late: Arc<LateKeys>,
    pub(super) admits: Admits,
    pub(super) home: Home,
    /// Whether some versions that readers may still look for are left out: a read of the newest one
    /// must see that there is a newer one.
    pub(super) is_rewritten: bool,
    /// Whether some entries were written with `Durability::Volatile`.
    unlogged: AtomicBool,
    counted: Counted,
    arena: Mutex<Option<Arena>>,
    bytes: u64,
    lease: Option<Lease>,
    arenas: Arc<Arenas>,
}

/// The batches that a memtable takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admits {
    All,
    /// Batches that only delete: its log is on the reserve, which puts must not take.
    Deletes,
    /// Batches that delete more than single keys, and others that delete while the pool has pieces
    /// for the next opening: each opening takes more of them for the entries that it replays.
    Ranges,
}

/// Returns whether a log is synced; `now`: syncs it. On a full disk that is needed: entries in no
/// synced log hide nothing, and there is no space to write them out.
pub(super) fn is_synced(log: &dyn Log, now: bool) -> std::io::Result<bool> {
    if now {
        log.sync()?;
    }
    Ok(log.is_synced())
}

impl Memtable {
    /// Returns whether it takes such batches.
    pub(super) fn takes(&self, batch: &Batch) -> bool {
        match self.admits {
            Admits::All => true,
            Admits::Deletes => batch.only_deletes(),
            Admits::Ranges => batch.deletes_many(),
        }
    }

    /// Creates an empty memtable that will be flushed to `extent`, or is in it from the start.
    pub(super) fn new(
        id: u64,
        extent: Arc<Extent>,
        capacity: u64,
        arenas: &Arc<Arenas>,
        home: Home,
        values: Values,
    ) -> Result<Memtable> {
        let mut memory = arenas.take(capacity, home != Home::Arena, !values.in_tree())?;
        let bump = match (&mut memory.arena, home) {
            (Some(arena), _) => arena.bump(extent.off()),
            (None, Home::List) => extent.bump_within(0, ListLog::capacity(&extent)),
            (None, _) => extent.bump_from(0),
        };
        let index = match values.in_tree() {
            true => Index::tree(&bump)?,
            false => Index::list(&bump, extent.off(), id, memory.search_hints.take())?,
        };
        let parts = (bump, index, home);
        let mut memtable = Memtable::of(id, extent, parts, memory, arenas, values);
        memtable.filter = arenas.filters.then(|| GrowingFilter::new(capacity));
        Ok(memtable)
    }

    /// Opens the list in `extent` that takes its first `used` bytes, and takes no more entries.
    /// Its links are to be made.
    pub(super) fn of_list(
        id: u64,
        extent: Arc<Extent>,
        used: u64,
        arenas: &Arc<Arenas>,
    ) -> Memtable {
        let bump = extent.bump_from(used);
        let index = Index::existing_list(&extent);
        let memory = Memory::none();
        let parts = (bump, index, Home::List);
        Memtable::of(id, extent, parts, memory, arenas, Values::InNodes)
    }

    fn of(
        id: u64,
        extent: Arc<Extent>,
        (bump, index, home): (Bump, Index, Home),
        memory: Memory,
        arenas: &Arc<Arenas>,
        values: Values,
    ) -> Memtable {
        let Memory {
            arena,
            bytes,
            lease,
            search_hints: _,
        } = memory;
        Memtable {
            id,
            index,
            filter: None,
            bump,
            extent,
            home,
            log: None,
            log_bytes_max: 0,
            values,
            log_extent: None,
            kept: None,
            kept_bytes: 0,
            logs: Vec::new(),
            readers: Arc::default(),
            late: Arc::new(LateKeys::within(arenas.budget.limits.late_bytes)),
            admits: Admits::All,
            is_rewritten: false,
            unlogged: AtomicBool::new(false),
            counted: Counted {
                entries: AtomicU64::new(0),
                deletes: AtomicU64::new(0),
                seq_first: AtomicU64::new(u64::MAX),
                seq_last: AtomicU64::new(0),
            },
            arena: Mutex::new(arena),
            bytes,
            lease,
            arenas: Arc::clone(arenas),
        }
    }

    /// Returns whether it is in its extent, so that a flush copies nothing.
    pub(super) fn is_in_place(&self) -> bool {
        self.home != Home::Arena
    }

    /// Returns whether it is its own log.
    #[inline]
    pub(super) fn is_list(&self) -> bool {
        self.home == Home::List
    }

    /// Returns the bytes with which a memtable is sure to take `batch`.
    pub(super) fn bytes_for(in_log: bool, batch: &Batch) -> u64 {
        let nodes = match in_log {
            true => batch.payload.iter().map(|entry| logged_bytes(&entry)).sum(),
            // A node has 16 bytes more than the entry's header, and a tower.
            false => {
                let tower = 8 * crate::parts::skiplist::layout::HEIGHT_MAX;
                batch.payload.len_bytes() + batch.len() * (16 + tower)
            }
        };
        Index::bytes_for(in_log, batch.len() as u64) + nodes as u64
    }

    /// Returns the bytes that a memtable of `entries` needs besides their nodes.
    pub(super) fn index_bytes(values: &Values, entries: u64) -> u64 {
        Index::bytes_for(values.in_tree(), entries)
    }

    /// Returns the bytes of the node of an entry that has a record and the number `seq`.
    pub(super) fn entry_bytes(values: &Values, entry: &LogEntry<'_>, seq: SeqNo) -> usize {
        let hash = key_hash(entry.keyspace, entry.key);
        values.entry(entry, Some(0)).node_bytes(hash, seq)
    }

    /// Returns the bytes of the nodes of `batch`, if its first entry gets the number `first`.
    /// `logged`: the batch has a record.
    pub(super) fn node_bytes(&self, batch: &Batch, first: SeqNo, logged: bool) -> usize {
        let mut bytes = 0;
        let at = logged.then_some(0);
        for (seq, (entry, &hash)) in (first..).zip(batch.payload.iter().zip(batch.hashes())) {
            bytes += self.values.entry(&entry, at).node_bytes(hash, seq);
        }
        bytes
    }

    /// Returns the bytes in use: of its log if this has the values, else of its nodes.
    pub(super) fn used_bytes(&self) -> u64 {
        match (&self.values, &self.log) {
            (Values::InLog(_), Some(log)) => log.bytes(),
            (Values::InLog(_), None) => self.kept_bytes,
            (Values::InNodes, _) => self.bump.used(),
        }
    }

    /// Returns whether a spare should be made, since an eighth of its nodes or, if this has the
    /// values, of its log is in use: early enough that it is ready in time, and late enough that a
    /// small database never makes one.
    pub(super) fn is_spare_due(&self) -> bool {
        self.bump.used() > self.spare_due_at() || self.log_passes_due(u64::MAX)
    }

    /// Returns whether the last `bytes` in the log have passed the point at which a spare is due.
    pub(super) fn log_passes_due(&self, bytes: u64) -> bool {
        match (&self.values, &self.log) {
            (Values::InLog(_), Some(log)) => {
                let (due, used) = (self.log_bytes_max / 8, log.bytes());
                used > due && used.saturating_sub(bytes) <= due
            }
            _ => false,
        }
    }

    /// Faults a range of the arena in.
    pub(super) fn populate(&self, at: u64, len: u64) {
        if let Some(arena) = &*self.arena.lock() {
            // For speed only: a failure appears, if at all, at the first store.
            let _ = arena.populate(at, len);
        }
    }

    /// Faults in the extents of the log and of the flush; the log first, since it is written at
    /// once.
    pub(super) fn prefault_extents(&self, pool: &Pool) {
        if let Some(extent) = &self.log_extent {
            pool.prefault(extent);
        }
        pool.prefault(&self.extent);
    }

    /// Returns the bytes of nodes at which a spare should be made.
    pub(super) fn spare_due_at(&self) -> u64 {
        // Behind an empty index, which a small arena is full of.
        let empty = Index::bytes_for(self.values.in_tree(), 0);
        (self.bump.capacity() / 8).max(empty)
    }

    /// Counts entries that a writer is about to insert. The caller holds the commit lock.
    pub(super) fn count(&self, first: SeqNo, entries: u64, deletes: u64) {
        let relaxed = Ordering::Relaxed;
        let counted = &self.counted;
        let before = counted.entries.load(relaxed);
        if before == 0 {
            counted.seq_first.store(first, relaxed);
        }
        counted.entries.store(before + entries, relaxed);
        counted.seq_last.store(first + entries - 1, relaxed);
        if deletes > 0 {
            let before = counted.deletes.load(relaxed);
            counted.deletes.store(before + deletes, relaxed);
        }
    }

    /// Notes that some entries are in no log.
    pub(super) fn mark_unlogged(&self) {
        self.unlogged.store(true, Ordering::Relaxed);
    }

    /// Returns whether some entries are in no log.
    pub(super) fn has_unlogged(&self) -> bool {
        self.unlogged.load(Ordering::Relaxed)
    }

    /// Returns the number of deletes among the entries.
    pub(super) fn delete_count(&self) -> u64 {
        self.counted.deletes.load(Ordering::Relaxed)
    }

    /// Returns the number of entries inserted, or about to be.
    pub(super) fn entry_count(&self) -> u64 {
        self.counted.entries.load(Ordering::Relaxed)
    }

    /// Returns the first and last sequence number.
    pub(super) fn seqs(&self) -> (SeqNo, SeqNo) {
        (
            self.counted.seq_first.load(Ordering::Relaxed),
            self.counted.seq_last.load(Ordering::Relaxed),
        )
    }

    /// Returns whether the memtable may have a key of this hash; `false` is certain.
    #[inline]
    fn may_have(&self, hash: u64) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|filter| filter.may_contain(hash))
    }

    /// Adds a key to the filter, before it is visible.
    #[inline]
    fn note_key(&self, hash: u64) {
        if let Some(filter) = &self.filter {
            filter.insert(hash);
        }
    }

    /// Begins the search for the place of an entry, before its node is written.
    #[inline]
    pub(super) fn approach(&self, entry: &LogEntry<'_>, seq: SeqNo) -> Approach {
        let (keyspace, key) = (entry.keyspace, entry.key);
        self.index.approach(&Target { keyspace, key, seq })
    }

    /// Writes and links one entry into `claim` at `at`; returns the bytes it took. `more`: the next
    /// entry belongs to the same batch.
    #[inline]
    pub(super) fn insert<R: Borrow<Region>>(
        &self,
        approach: Approach,
        claim: &mut Claim<R>,
        at: usize,
        (entry, logged_at): (&LogEntry<'_>, Option<u64>),
        (hash, seq, more): (u64, SeqNo, bool),
    ) -> Result<usize> {
        self.note_key(hash);
        let prepared = self.values.entry(entry, logged_at);
        let node = NewNode {
            more: more && self.is_list() && !canary::breaks(Canary::ListBatch),
            ..prepared.node(hash, seq)
        };
        let target = Target {
            keyspace: entry.keyspace,
            key: entry.key,
            seq,
        };
        self.index.insert(approach, &target, || {
            match self.is_list() {
                // The search for its links overlaps with this; the log waits for it.
                true => node.write_flushed(claim, at, Purpose::Log),
                false => node.write(claim, at),
            }
            (claim.off() + at as u64, node.height)
        })?;
        if self.late.any() {
            self.late.note(entry.keyspace, entry.key, seq);
        }
        Ok(node.bytes())
    }

    /// Inserts an entry found in a log, which stays if it has the value, and a range delete also
    /// into `ranges`. Returns false if the memtable is full.
    pub(super) fn replay(
        &self,
        entry: &LogEntry<'_>,
        seq: SeqNo,
        ranges: &mut Vec<RangeDelete>,
    ) -> Result<bool> {
        let Some((off, height)) = self.place(entry, seq, ranges)? else {
            return Ok(false);
        };
        let target = Target {
            keyspace: entry.keyspace,
            key: entry.key,
            seq,
        };
        let approach = self.index.approach(&target);
        self.index.insert(approach, &target, || (off, height))?;
        Ok(true)
    }

    /// Does the same without linking the node, whose offset and height it returns.
    pub(super) fn place(
        &self,
        entry: &LogEntry<'_>,
        seq: SeqNo,
        ranges: &mut Vec<RangeDelete>,
    ) -> Result<Option<(u64, u8)>> {
        let hash = key_hash(entry.keyspace, entry.key);
        self.note_key(hash);
        let prepared = self.values.entry(entry, Some(entry.value_at));
        let node = prepared.node(hash, seq);
        if !self.index.grow(&self.bump, self.entry_count() + 1) {
            return Ok(None);
        }
        let Some(mut claim) = self.bump.lend(node.bytes(), 8) else {
            return Ok(None);
        };
        if entry.kind == EntryKind::RangeDelete as u8 {
            let range = RangeDelete::from_entry(entry.keyspace, entry.key, seq, claim.off())?;
            self.late.add(std::slice::from_ref(&range));
            ranges.push(range);
        }
        let is_delete =
            entry.kind == EntryKind::Delete as u8 || entry.kind == EntryKind::RangeDelete as u8;
        self.count(seq, 1, u64::from(is_delete));
        node.write(&mut claim, 0);
        if self.late.any() {
            self.late.note(entry.keyspace, entry.key, seq);
        }
        Ok(Some((claim.off(), node.height)))
    }
}

impl Drop for Memtable {
    fn drop(&mut self) {
        let arena = self.arena.get_mut().take();
        let bytes = self.bytes;
        let search_hints = self.index.take_search_hints();
        if arena.is_some() || search_hints.is_some() {
            let memory = Memory {
                arena,
                search_hints,
                bytes,
                lease: self.lease.take(),
            };
            let mut arenas = self.arenas.idle.lock();
            // Those with an arena are in use until their readers are gone, and bounded by `take`.
            if memory.arena.is_some() || arenas.len() < ARENAS_KEPT {
                arenas.push(memory);
            }
        }
        self.readers.leave();
    }
}

#[cold]
fn unknown_kind(kind: u8) -> Error {
    Error::corruption(format!(
        "an entry of a memtable has the unknown kind {kind}"
    ))
}

impl Memtable {
    /// Returns the place to search for, or `None` if the filter denies the key.
    #[inline]
    fn target_of<'a>(&self, probe: &Probe<'a>, stats: &mut ReadStats) -> Option<Target<'a>> {
        if !self.may_have(probe.hash) {
            stats.filter_saved += 1;
            return None;
        }
        stats.sources += 1;
        Some(match self.is_rewritten {
            true => probe.target_below_front(),
            false => probe.front_target(),
        })
    }

    /// Converts the node of a sought key to an answer.
    #[inline]
    fn answer_of(&self, node: &Node<'_>) -> Result<Lookup> {
        if let Values::InNodes = self.values {
            return Lookup::from_node(node);
        }
        let value = self.values.read(node)?;
        let kind = EntryKind::without_expiry(in_log::plain(node.header.kind));
        Lookup::of(kind, node.header.seq, value).ok_or_else(|| unknown_kind(kind))
    }
}

/// A memtable whose index is a list.
struct InList<'m>(&'m Memtable, &'m SkipList);

impl ListReads for InList<'_> {
    fn list(&self) -> &SkipList {
        self.1
    }

    #[inline]
    fn begin<'a>(&self, probe: &Probe<'a>, stats: &mut ReadStats) -> Option<Target<'a>> {
        self.0.target_of(probe, stats)
    }

    #[inline]
    fn answer(&self, node: &Node<'_>) -> Result<Lookup> {
        self.0.answer_of(node)
    }
}

impl Source for Memtable {
    fn get(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>> {
        let Some(target) = self.target_of(probe, stats) else {
            return Ok(None);
        };
        let Some(node) = self.index.seek(&target)? else {
            return Ok(None);
        };
        if !node.same_key(probe.keyspace, probe.key) {
            return Ok(None);
        }
        self.answer_of(&node).map(Some)
    }

    fn multi_get(&self, reads: &mut [Read<'_>], stats: &mut ReadStats) -> Result<()> {
        match &self.index {
            Index::List(list) => InList(self, list).read_groups(reads, stats),
            Index::Tree(_) => read_each(self, reads, stats),
        }
    }

    fn cursor(&self) -> Box<dyn Cursor> {
        let log = self.log_extent.as_ref().or(self.kept.as_ref());
        let late = self.late.any().then(|| Arc::clone(&self.late));
        // Entries inserted later are above every number that the cursor's reader may see.
        self.index.cursor(self.seqs().1, late, (&self.values, log))
    }

    fn spread(&self, count: usize) -> Result<Vec<(Place, SeqNo)>> {
        self.index.spread(self.entry_count(), count)
    }

    fn approximate(&self, from: &Target<'_>, to: &Target<'_>) -> Result<(u64, u64)> {
        let entries = self.index.count_between(from, to, self.entry_count())?;
        let mean = self
            .used_bytes()
            .checked_div(self.entry_count())
            .unwrap_or(0);
        Ok((entries, entries * mean))
    }

    fn verify(&self, census: &mut Census, visited: &mut dyn FnMut(u64)) {
        census.tables += 1;
        let walked = self.index.check(&mut |node, value| {
            let value = value
                .map_err(Error::from)
                .and_then(|()| self.values.read(node));
            let apart = match (in_log::plain(node.header.kind) == node.header.kind, &value) {
                (false, Ok(value)) => value.bytes.len(),
                _ => 0,
            };
            let bytes = (node.header.node_bytes() + apart) as u64;
            census.entries += 1;
            census.bytes += bytes;
            visited(bytes);
            census.tombstones +=
                u64::from(EntryKind::from_raw(node.header.kind) == Some(EntryKind::Delete));
            if let Err(e) = value {
                census.failed(format_args!("memtable {}: ", self.id), e);
            }
        });
        if let Err(problem) = walked {
            census
                .problems
                .push(format!("memtable {}: {problem}", self.id));
        }
    }

    fn verify_bytes(&self) -> u64 {
        self.used_bytes()
    }

    fn seqs(&self) -> (SeqNo, SeqNo) {
        Memtable::seqs(self)
    }
}
