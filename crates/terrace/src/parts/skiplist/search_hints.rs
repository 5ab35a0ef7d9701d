//! SearchHints: places in a memtable from which a search can start close to its target.
//!
//! A skip-list search misses the cache at almost every step. A memtable therefore keeps the nodes
//! of level 1, a quarter of all, and every second one of the others also in a B-tree of three
//! levels in DRAM: leaves hold eight bytes of each key, many to a cache line, branches are an index
//! of leaves, and the root is one of branches. A lookup returns the last of these nodes before a
//! key, or the last one that is linked on some level. A few steps along that level do the rest, so
//! a writer needs no search from the head for the links of a node of up to three levels. With all
//! nodes, writes were slower. If memory is limited, only the nodes of level 1 are kept.
//!
//! The result is only a hint, and the list never depends on it: the caller compares the node with
//! the key, and searches from the head if the hint is wrong or too far away. So readers take no
//! lock and check nothing. A writer that finds another writer active leaves its node out. A reader
//! that sees words half changed loses time and nothing else.
//!
//! Invariants
//!   H1  Every offset in a leaf is that of a node linked on the levels that its place names, and on
//!       level 0. The Acquire load of the place makes the node's bytes and links visible. A place
//!       is never a mix of two.
//!   H2  Leaves are in key order, and so are the entries of a leaf. Only the holder of `writer`
//!       changes them.
//!
//! Source: ours; MioDB searches its memtable from the head.

use std::cmp::Ordering as Order;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::node::Node;
use crate::parts::key::{Target, key_front};
use terrace_media::Region;

use crate::parts::codec::DecodeError;
use crate::parts::memory::{Lease, Memory};

/// The number of entries in a leaf. Its words are 512 bytes, which a search halves six times.
const LEAF_ENTRIES: usize = 64;
/// The number of leaves of a branch.
const BRANCH_LEAVES: usize = 128;
/// The bytes of a memtable per leaf, which is enough for nodes of 70 bytes or more. With smaller
/// nodes the leaves run out, and full leaves are no longer split.
const BYTES_PER_LEAF: u64 = 4096;
/// The same if only the nodes of level 1 are kept.
const BYTES_PER_LEAF_OF_LEVEL_1: u64 = 8192;
/// The number of leaves, or of branches, allocated at a time, by a writer: the system has to find
/// memory for them.
const CHUNK_LEAVES: usize = 16;
const CHUNK_BRANCHES: usize = 4;
/// The number of bytes of a leaf's common prefix that its words may repeat before they are rebuilt.
const REPEATED_MAX: usize = 4;
/// The highest level that places tell of.
pub(super) const LEVEL_MAX: u32 = 2;
/// The bits of a place for that level. The others are an offset in units of eight bytes, so nodes
/// more than 8 GiB from the origin are left out.
const LEVEL_BITS: u32 = 2;
/// The leaves before the first one that are searched for a node of a level.
const LEAVES_BACK: usize = 1;

const _: () = assert!(LEVEL_MAX < 1 << LEVEL_BITS, "levels fit");

/// Sorted entries with a common prefix.
#[derive(Debug)]
struct Leaf {
    /// Eight bytes of each key, after the common prefix.
    words: [AtomicU64; LEAF_ENTRIES],
    /// The offset of each node from the origin, and the highest level on which it is linked.
    places: [AtomicU32; LEAF_ENTRIES],
}

/// An index of leaves.
#[derive(Debug)]
struct Branch {
    /// Eight bytes of each leaf's first key.
    words: [AtomicU64; BRANCH_LEAVES],
    handles: [AtomicU64; BRANCH_LEAVES],
}

impl Leaf {
    fn empty() -> Leaf {
        Leaf {
            words: [const { AtomicU64::new(0) }; LEAF_ENTRIES],
            places: [const { AtomicU32::new(0) }; LEAF_ENTRIES],
        }
    }
}

impl Branch {
    fn empty() -> Branch {
        Branch {
            words: [const { AtomicU64::new(0) }; BRANCH_LEAVES],
            handles: [const { AtomicU64::new(0) }; BRANCH_LEAVES],
        }
    }
}

/// The number, length and skipped bytes of a leaf, or those of a branch, packed in one word.
#[derive(Debug, Clone, Copy)]
struct Handle {
    id: usize,
    /// The number of its entries.
    len: usize,
    /// The number of bytes that all keys of a leaf share and its words leave out.
    skip: usize,
}

impl Handle {
    fn pack(self) -> u64 {
        self.id as u64 | (self.len as u64) << 24 | (self.skip as u64) << 32
    }

    fn unpack(word: u64, len_max: usize) -> Handle {
        Handle {
            id: (word & 0xff_ffff) as usize,
            len: ((word >> 24 & 0xff) as usize).min(len_max),
            skip: (word >> 32) as usize,
        }
    }
}

const _: () = assert!(LEAF_ENTRIES <= 0xff && BRANCH_LEAVES <= 0xff, "lengths fit");

/// Leaves or branches, allocated on demand.
#[derive(Debug)]
struct Slab<T> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
    chunk: usize,
    /// The number that may be allocated.
    count: usize,
}

impl<T> Slab<T> {
    fn new(count: usize, chunk: usize) -> Slab<T> {
        Slab {
            chunks: (0..count.div_ceil(chunk))
                .map(|_| OnceLock::new())
                .collect(),
            chunk,
            count,
        }
    }

    fn bytes_for(count: usize, chunk: usize) -> u64 {
        let bytes = chunk * size_of::<T>() + size_of::<OnceLock<Box<[T]>>>();
        (count.div_ceil(chunk) * bytes) as u64
    }

    #[inline(always)]
    fn get(&self, id: usize) -> Option<&T> {
        self.chunks
            .get(id / self.chunk)?
            .get()?
            .get(id % self.chunk)
    }

    /// Returns the one with this number for the caller to fill, or `None` if the maximum is
    /// reached.
    fn make(&self, id: usize, empty: fn() -> T) -> Option<&T> {
        if id >= self.count {
            return None;
        }
        let chunk = self.chunks.get(id / self.chunk)?;
        let chunk = chunk.get_or_init(|| (0..self.chunk).map(|_| empty()).collect());
        chunk.get(id % self.chunk)
    }
}

/// The numbers of leaves and branches in use.
#[derive(Debug, Default)]
struct Used {
    leaves: usize,
    branches: usize,
}

/// The position of a leaf.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// The position of its branch in the root.
    branch: usize,
    /// Its position there.
    leaf: usize,
}

/// The search hints of one list.
#[derive(Debug)]
pub(crate) struct SearchHints {
    /// The number of branches, and the number of bytes that all their first keys share.
    root: AtomicU64,
    /// Eight bytes of each branch's first key.
    words: Box<[AtomicU64]>,
    handles: Box<[AtomicU64]>,
    branches: Slab<Branch>,
    leaves: Slab<Leaf>,
    /// The lowest level of the nodes that are kept.
    lowest: u32,
    origin: u64,
    /// The lease of memory from the budget.
    _lease: Option<Lease>,
    /// Guards every change. LOCK: innermost, taken with `try_lock` only.
    writer: Mutex<Used>,
}

/// Returns true for every second offset, in no order.
fn is_chosen(units: u64) -> bool {
    units.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0
}

/// Returns the bytes of a memtable per leaf, and the lowest level of the nodes that are kept.
fn density(dense: bool) -> (u64, u32) {
    match dense {
        true => (BYTES_PER_LEAF, 0),
        false => (BYTES_PER_LEAF_OF_LEVEL_1, 1),
    }
}

/// Returns the maximum numbers of leaves and of branches for a memtable of `bytes`.
fn counts(bytes: u64, bytes_per_leaf: u64) -> (usize, usize) {
    let leaves = (bytes / bytes_per_leaf).clamp(2, 1 << 22) as usize;
    // A branch that is split has half of its leaves.
    (leaves, leaves.div_ceil(BRANCH_LEAVES / 2) + 1)
}

impl SearchHints {
    /// Creates search hints for a memtable of `bytes`. `dense`: memory is not limited.
    #[cfg(test)]
    pub(crate) fn new(bytes: u64, dense: bool) -> SearchHints {
        let (per_leaf, lowest) = density(dense);
        SearchHints::of(counts(bytes, per_leaf), lowest, None)
    }

    /// Creates search hints for a memtable of `bytes`, if the budget has memory for them. A limited
    /// budget has it for the nodes of level 1. Leaves are allocated on demand.
    pub(crate) fn within(memory: &Memory, bytes: u64) -> Option<SearchHints> {
        let (per_leaf, lowest) = density(!memory.is_limited());
        let counts = counts(bytes, per_leaf);
        let lease = memory.search_hints.take(SearchHints::bytes_for(counts))?;
        Some(SearchHints::of(counts, lowest, Some(lease)))
    }

    fn of((leaves, branches): (usize, usize), lowest: u32, lease: Option<Lease>) -> SearchHints {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        SearchHints {
            root: AtomicU64::new(0),
            words: zeros(branches),
            handles: zeros(branches),
            branches: Slab::new(branches, CHUNK_BRANCHES),
            leaves: Slab::new(leaves, CHUNK_LEAVES),
            lowest,
            origin: 0,
            _lease: lease,
            writer: Mutex::default(),
        }
    }

    /// Returns the maximum size in bytes of search hints with these numbers of leaves and branches.
    fn bytes_for((leaves, branches): (usize, usize)) -> u64 {
        Slab::<Leaf>::bytes_for(leaves, CHUNK_LEAVES)
            + Slab::<Branch>::bytes_for(branches, CHUNK_BRANCHES)
            + (2 * branches * size_of::<u64>()) as u64
    }

    /// Clears the search hints for use with a list whose nodes are behind `origin`.
    pub(crate) fn reset(&mut self, origin: u64) {
        *self.root.get_mut() = 0;
        *self.writer.get_mut() = Used::default();
        self.origin = origin;
    }

    /// Returns the number of branches and the bytes that all first keys share.
    #[inline(always)]
    fn root(&self) -> (usize, usize) {
        let word = self.root.load(Ordering::Relaxed);
        let len = ((word & 0xffff_ffff) as usize).min(self.words.len());
        (len, (word >> 32) as usize)
    }

    fn set_root(&self, len: usize, skip: usize) {
        let word = len as u64 | (skip as u64) << 32;
        self.root.store(word, Ordering::Relaxed);
    }

    /// Returns the branch at a position of the root.
    #[inline(always)]
    fn branch(&self, at: usize) -> Option<(&Branch, Handle)> {
        let handle = self.handles.get(at)?.load(Ordering::Relaxed);
        let handle = Handle::unpack(handle, BRANCH_LEAVES);
        Some((self.branches.get(handle.id)?, handle))
    }

    /// Returns the leaf at a position.
    #[inline(always)]
    fn leaf(&self, at: Position) -> Option<(&Leaf, Handle)> {
        let (branch, _) = self.branch(at.branch)?;
        self.leaf_in(branch, at.leaf)
    }

    #[inline(always)]
    fn leaf_in(&self, branch: &Branch, at: usize) -> Option<(&Leaf, Handle)> {
        let handle = branch.handles.get(at)?.load(Ordering::Relaxed);
        let handle = Handle::unpack(handle, LEAF_ENTRIES);
        Some((self.leaves.get(handle.id)?, handle))
    }

    /// Returns the first node of a leaf.
    fn first<'r>(&self, region: &'r Region, leaf: &Leaf) -> Result<Node<'r>, DecodeError> {
        Node::read(region, self.off(leaf, 0).0)
    }

    /// Returns the offset of an entry's node and the highest level that its place names.
    #[inline(always)]
    fn off(&self, leaf: &Leaf, at: usize) -> (u64, u32) {
        // Acquire: pairs with the Release in `add`, which follows the linking of the node (H1).
        let place = leaf.places[at].load(Ordering::Acquire);
        let level = place & ((1 << LEVEL_BITS) - 1);
        (self.origin + 8 * u64::from(place >> LEVEL_BITS), level)
    }

    /// Returns the last known node before `target` that is linked on `level`. Only H1 is guaranteed
    /// of the result.
    #[inline]
    pub(crate) fn before(
        &self,
        region: &Region,
        target: &Target<'_>,
        level: u32,
    ) -> Result<Option<u64>, DecodeError> {
        let Some(at) = self.leaf_of(region, target)? else {
            return Ok(None);
        };
        let Some((leaf, handle)) = self.leaf(at) else {
            return Ok(None);
        };
        let before = self.entry_of(region, leaf, handle, target)?;
        let linked = |leaf: &Leaf, before: usize| {
            let mut entries = (0..before).rev().map(|entry| self.off(leaf, entry));
            entries.find(|(_, linked)| *linked >= level)
        };
        let mut found = linked(leaf, before);
        let mut at = at;
        for _ in 0..LEAVES_BACK {
            if found.is_some() || level == 0 {
                break;
            }
            let Some((leaf, handle)) = self.leaf_before(&mut at) else {
                break;
            };
            found = linked(leaf, handle.len);
        }
        Ok(found.map(|(off, _)| off))
    }

    /// Goes back one leaf, and returns it.
    fn leaf_before(&self, at: &mut Position) -> Option<(&Leaf, Handle)> {
        match at.leaf.checked_sub(1) {
            Some(leaf) => at.leaf = leaf,
            None => {
                at.branch = at.branch.checked_sub(1)?;
                at.leaf = self.branch(at.branch)?.1.len.checked_sub(1)?;
            }
        }
        self.leaf(*at)
    }

    /// Returns the position of the last leaf that begins before `target`.
    #[inline]
    fn leaf_of(
        &self,
        region: &Region,
        target: &Target<'_>,
    ) -> Result<Option<Position>, DecodeError> {
        let (len, skip) = self.root();
        let word = word_of(target.keyspace, target.key, skip);
        let begins_before = |leaf: Option<(&Leaf, Handle)>| match leaf {
            Some((leaf, _)) => {
                let first = self.first(region, leaf)?;
                Ok(first.compare(target) == Order::Less)
            }
            None => Ok(false),
        };
        let words = &self.words[..len];
        let behind = behind_ties(words, words_below(words, word), word, |at| {
            begins_before(self.leaf(Position {
                branch: at,
                leaf: 0,
            }))
        })?;
        let Some(at) = behind.checked_sub(1) else {
            return Ok(None);
        };
        let Some((branch, handle)) = self.branch(at) else {
            return Ok(None);
        };
        let words = &branch.words[..handle.len];
        let behind = behind_ties(words, words_below(words, word), word, |at| {
            begins_before(self.leaf_in(branch, at))
        })?;
        let leaf = behind.checked_sub(1);
        Ok(leaf.map(|leaf| Position { branch: at, leaf }))
    }

    /// Returns the number of entries of a leaf that are before `target`.
    #[inline]
    fn entry_of(
        &self,
        region: &Region,
        leaf: &Leaf,
        handle: Handle,
        target: &Target<'_>,
    ) -> Result<usize, DecodeError> {
        let words = &leaf.words[..handle.len];
        let word = word_of(target.keyspace, target.key, handle.skip);
        let at = words_below(words, word);
        behind_ties(words, at, word, |at| {
            let node = Node::read(region, self.off(leaf, at).0)?;
            Ok(node.compare(target) == Order::Less)
        })
    }

    /// Adds the node at `off`, which must be linked on all levels of its `height`, unless another
    /// thread is adding one or there is no space.
    pub(crate) fn add(
        &self,
        region: &Region,
        (off, height): (u64, u8),
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        let level = u32::from(height.saturating_sub(1)).min(LEVEL_MAX);
        let units = (off - self.origin) / 8;
        let is_kept = match level {
            0 => self.lowest == 0 && is_chosen(units),
            _ => true,
        };
        if !is_kept || units >> (u32::BITS - LEVEL_BITS) != 0 {
            return Ok(());
        }
        let place = (units as u32) << LEVEL_BITS | level;
        let Some(mut used) = self.writer.try_lock() else {
            return Ok(());
        };
        let used = &mut *used;
        if self.root().0 == 0 {
            self.set_root(0, 4 + target.key.len());
            if let Some(leaf) = self.begin_leaf(used, place, target) {
                self.begin_branch(used, 0, leaf, target);
            }
            return Ok(());
        }
        self.widen_root(region, target)?;
        let at = self.leaf_of(region, target)?;
        let at = at.unwrap_or(Position { branch: 0, leaf: 0 });
        let (Some((branch, above)), Some((leaf, mut handle))) =
            (self.branch(at.branch), self.leaf(at))
        else {
            return Ok(());
        };
        let first = self.first(region, leaf)?;
        let common = common_bytes(&first.target(), target);
        if common < handle.skip {
            handle.skip = common;
            self.cut_words(region, leaf, handle)?;
            branch.handles[at.leaf].store(handle.pack(), Ordering::Relaxed);
        }
        let entry = self.entry_of(region, leaf, handle, target)?;
        if handle.len == LEAF_ENTRIES {
            let is_last = at.branch + 1 == self.root().0 && at.leaf + 1 == above.len;
            // Keys inserted in ascending order fill every leaf and every branch.
            if is_last && entry == LEAF_ENTRIES {
                if let Some(leaf) = self.begin_leaf(used, place, target) {
                    match above.len == BRANCH_LEAVES {
                        true => self.begin_branch(used, at.branch + 1, leaf, target),
                        false => self.open_branch(at.branch, at.leaf + 1, leaf, target),
                    }
                }
                return Ok(());
            }
            // The node itself is left out, but its neighbours are included.
            return match above.len == BRANCH_LEAVES {
                true => self.split_branch(region, used, at.branch),
                false => self.split(region, used, at),
            };
        }
        let word = word_of(target.keyspace, target.key, handle.skip);
        insert_at(&leaf.words, &leaf.places, handle.len, entry, (word, place));
        handle.len += 1;
        branch.handles[at.leaf].store(handle.pack(), Ordering::Relaxed);
        if entry == 0 {
            self.set_first(at, word_of(target.keyspace, target.key, self.root().1));
        }
        Ok(())
    }

    /// Sets the word of a leaf that has a new first key.
    fn set_first(&self, at: Position, word: u64) {
        if let Some((branch, _)) = self.branch(at.branch) {
            branch.words[at.leaf].store(word, Ordering::Relaxed);
        }
        if at.leaf == 0 {
            self.words[at.branch].store(word, Ordering::Relaxed);
        }
    }

    /// Creates a leaf of one node, if there is space.
    fn begin_leaf(&self, used: &mut Used, place: u32, target: &Target<'_>) -> Option<Handle> {
        let leaf = self.leaves.make(used.leaves, Leaf::empty)?;
        leaf.words[0].store(0, Ordering::Relaxed);
        // Release: as in `insert_at`.
        leaf.places[0].store(place, Ordering::Release);
        let handle = Handle {
            id: used.leaves,
            len: 1,
            skip: 4 + target.key.len(),
        };
        used.leaves += 1;
        Some(handle)
    }

    /// Creates a branch of one leaf at a position of the root, if there is space.
    fn begin_branch(&self, used: &mut Used, at: usize, leaf: Handle, target: &Target<'_>) {
        let Some(branch) = self.branches.make(used.branches, Branch::empty) else {
            return;
        };
        let word = word_of(target.keyspace, target.key, self.root().1);
        branch.words[0].store(word, Ordering::Relaxed);
        branch.handles[0].store(leaf.pack(), Ordering::Relaxed);
        let handle = Handle {
            id: used.branches,
            len: 1,
            skip: 0,
        };
        used.branches += 1;
        self.open_root(at, handle, word);
    }

    /// Inserts a leaf that begins with `target` into a branch that is not full.
    fn open_branch(&self, at: usize, leaf_at: usize, leaf: Handle, target: &Target<'_>) {
        let word = word_of(target.keyspace, target.key, self.root().1);
        let Some((branch, mut handle)) = self.branch(at) else {
            return;
        };
        let entry = (word, leaf.pack());
        insert_at(&branch.words, &branch.handles, handle.len, leaf_at, entry);
        handle.len += 1;
        self.handles[at].store(handle.pack(), Ordering::Relaxed);
    }

    /// Inserts a branch at a position of the root, which has space for all branches.
    fn open_root(&self, at: usize, branch: Handle, word: u64) {
        let (len, skip) = self.root();
        insert_at(&self.words, &self.handles, len, at, (word, branch.pack()));
        self.set_root(len + 1, skip);
    }

    /// Moves the upper half of a full leaf into a new one. Its branch is not full.
    fn split(&self, region: &Region, used: &mut Used, at: Position) -> Result<(), DecodeError> {
        let (Some((lower, mut handle)), Some(upper)) =
            (self.leaf(at), self.leaves.make(used.leaves, Leaf::empty))
        else {
            return Ok(());
        };
        let half = LEAF_ENTRIES / 2;
        copy_to(&lower.words[half..], &upper.words);
        copy_to(&lower.places[half..], &upper.places);
        handle.len = half;
        let mut moved = Handle {
            id: used.leaves,
            ..handle
        };
        used.leaves += 1;
        self.sharpen(region, upper, &mut moved)?;
        let first = self.first(region, upper)?;
        self.open_branch(at.branch, at.leaf + 1, moved, &first.target());
        self.sharpen(region, lower, &mut handle)?;
        if let Some((branch, _)) = self.branch(at.branch) {
            branch.handles[at.leaf].store(handle.pack(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Moves the upper half of a full branch into a new one.
    fn split_branch(&self, region: &Region, used: &mut Used, at: usize) -> Result<(), DecodeError> {
        let (Some((lower, mut handle)), Some(upper)) = (
            self.branch(at),
            self.branches.make(used.branches, Branch::empty),
        ) else {
            return Ok(());
        };
        let half = BRANCH_LEAVES / 2;
        copy_to(&lower.words[half..], &upper.words);
        copy_to(&lower.handles[half..], &upper.handles);
        handle.len = half;
        let moved = Handle {
            id: used.branches,
            ..handle
        };
        used.branches += 1;
        if let Some((leaf, _)) = self.leaf_in(upper, 0) {
            let first = self.first(region, leaf)?;
            let word = word_of(first.header.keyspace, first.key, self.root().1);
            self.open_root(at + 1, moved, word);
        }
        self.handles[at].store(handle.pack(), Ordering::Relaxed);
        Ok(())
    }

    /// Shortens the common prefix of all first keys to what `target` shares with all keys so far.
    fn widen_root(&self, region: &Region, target: &Target<'_>) -> Result<(), DecodeError> {
        let (len, skip) = self.root();
        let first = match self.leaf(Position { branch: 0, leaf: 0 }) {
            Some((leaf, _)) => self.first(region, leaf)?,
            None => return Ok(()),
        };
        let common = common_bytes(&first.target(), target);
        if common >= skip {
            return Ok(());
        }
        // BOUND: the common prefix gets shorter each time.
        for branch in 0..len {
            let leaves = self.branch(branch).map_or(0, |(_, handle)| handle.len);
            for leaf in 0..leaves {
                let at = Position { branch, leaf };
                if let Some((leaf, _)) = self.leaf(at) {
                    let first = self.first(region, leaf)?;
                    let word = word_of(first.header.keyspace, first.key, common);
                    self.set_first(at, word);
                }
            }
        }
        self.set_root(len, common);
        Ok(())
    }

    /// Leaves out more of each key if the words repeat too much of the common prefix.
    fn sharpen(
        &self,
        region: &Region,
        leaf: &Leaf,
        handle: &mut Handle,
    ) -> Result<(), DecodeError> {
        let first = self.first(region, leaf)?;
        let last = Node::read(region, self.off(leaf, handle.len - 1).0)?;
        let common = common_bytes(&first.target(), &last.target());
        if common >= handle.skip + REPEATED_MAX {
            handle.skip = common;
            self.cut_words(region, leaf, *handle)?;
        }
        Ok(())
    }

    fn cut_words(&self, region: &Region, leaf: &Leaf, handle: Handle) -> Result<(), DecodeError> {
        for at in 0..handle.len {
            let node = Node::read(region, self.off(leaf, at).0)?;
            let word = word_of(node.header.keyspace, node.key, handle.skip);
            leaf.words[at].store(word, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A word that is written by one thread and read by others.
trait Cell {
    type Value: Copy;
    fn get(&self) -> Self::Value;
    fn set(&self, value: Self::Value);
}

impl Cell for AtomicU64 {
    type Value = u64;

    fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }
}

/// A place. Release: a reader that finds it sees the node and its links (H1).
impl Cell for AtomicU32 {
    type Value = u32;

    fn get(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }

    fn set(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
}

/// Inserts a word and its value before position `at` of the first `len`.
fn insert_at<V: Cell>(
    words: &[AtomicU64],
    values: &[V],
    len: usize,
    at: usize,
    (word, value): (u64, V::Value),
) {
    // From the end, so that a reader may see an entry twice but never misses one.
    for to in (at + 1..=len).rev() {
        words[to].set(words[to - 1].get());
        values[to].set(values[to - 1].get());
    }
    words[at].set(word);
    values[at].set(value);
}

/// Copies all of `from` to the beginning of `to`.
fn copy_to<V: Cell>(from: &[V], to: &[V]) {
    for (from, to) in from.iter().zip(to) {
        to.set(from.get());
    }
}

/// Returns the number of the sorted `words` below `word`.
#[inline(always)]
fn words_below(words: &[AtomicU64], word: u64) -> usize {
    let mut base = 0;
    let mut len = words.len();
    // Avoids a branch on the comparison, of which half would be mispredicted.
    while len > 1 {
        let half = len / 2;
        let below = words[base + half - 1].load(Ordering::Relaxed) < word;
        base += half * usize::from(below);
        len -= half;
    }
    base + usize::from(len == 1 && words[base].load(Ordering::Relaxed) < word)
}

/// Returns the first position from `at` on that is not `below`. `at` is the first whose word is not
/// below `word`; only words equal to `word` need `below` to decide.
#[inline(always)]
fn behind_ties(
    words: &[AtomicU64],
    at: usize,
    word: u64,
    below: impl Fn(usize) -> Result<bool, DecodeError>,
) -> Result<usize, DecodeError> {
    let differs = |w: &AtomicU64| w.load(Ordering::Relaxed) != word;
    if words.get(at).is_none_or(differs) {
        return Ok(at);
    }
    let equal = words[at..].partition_point(|w| w.load(Ordering::Relaxed) <= word);
    let (mut from, mut to) = (at, at + equal);
    while from < to {
        let middle = from + (to - from) / 2;
        if below(middle)? {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    Ok(from)
}

/// Returns eight bytes of keyspace and key after the first `skip` bytes. Among keys with equal
/// first bytes, the words compare as the keys do, or are equal.
#[inline(always)]
fn word_of(keyspace: u32, key: &[u8], skip: usize) -> u64 {
    if let Some(at) = skip.checked_sub(4) {
        return key_front(key.get(at..).unwrap_or(&[]));
    }
    let both = u128::from(keyspace) << 64 | u128::from(key_front(key));
    (both >> (32 - 8 * skip)) as u64
}

/// Returns the number of leading bytes of keyspace and key that two places share.
fn common_bytes(a: &Target<'_>, b: &Target<'_>) -> usize {
    if a.keyspace != b.keyspace {
        return (a.keyspace ^ b.keyspace).leading_zeros() as usize / 8;
    }
    4 + a.key.iter().zip(b.key).take_while(|(a, b)| a == b).count()
}
