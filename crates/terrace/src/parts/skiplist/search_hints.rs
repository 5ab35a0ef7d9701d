//! SearchHints: places in a memtable from which a search can start close to its target.
//!
//! A skip-list search misses the cache at almost every step. A memtable therefore keeps nodes also
//! in a three-level B-tree in DRAM: leaves hold eight bytes of each key, many to a cache line,
//! blocks are an index of the leaves, and the root one of the blocks. A lookup returns the last of
//! these nodes before a key, and a few steps along level 0 do the rest. The nodes are those of
//! level 1, or, in a *dense* list, all nodes: then a lookup ends at the right place.
//!
//! The result is only a hint, and the list never depends on it: the caller compares the node with
//! the key, and searches from the head if the hint is wrong or too far away. So readers take no
//! lock and check nothing. A writer that finds another writer active leaves its node out. A reader
//! that sees words half changed loses time and nothing else.
//!
//! Invariants
//!   H1  Every offset in a leaf is that of a node linked on level 0 of the list, and on level 1 if
//!       it is marked so. The Acquire load of the offset makes the node's bytes and links visible.
//!       An offset is never a mix of two.
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
use terrace_media::{Region, prefetch_value};

use crate::parts::codec::DecodeError;
use crate::parts::memory::{Lease, Memory};

/// The number of entries in a leaf. Its words are four cache lines, which are loaded together.
const LEAF_ENTRIES: usize = 32;
/// The bytes of a memtable per leaf, which is enough for nodes of 70 bytes or more. With smaller
/// nodes the leaves run out, and full leaves are no longer split.
const BYTES_PER_LEAF: u64 = 4096;
/// The number of leaves allocated at a time.
const CHUNK_LEAVES: usize = 128;
/// The number of leaves in a block.
const BLOCK_LEAVES: usize = 64;
/// The bit of a place that says that its node is linked on level 1.
const ON_LEVEL1: u32 = 1 << 31;
/// The number of words in a cache line.
const LINE_WORDS: usize = 8;
/// The number of bytes of a leaf's common prefix that its words may repeat before they are rebuilt.
const REPEATED_MAX: usize = 4;

/// Nodes before a place, as search hints know them. They must be compared with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hint {
    /// The last known node.
    pub(crate) last: u64,
    /// The last one that is known to be on level 1, or 0.
    pub(crate) on_level1: u64,
}

/// Sorted entries with a common prefix.
#[derive(Debug)]
struct Leaf {
    /// Eight bytes of each key, after the common prefix.
    words: [AtomicU64; LEAF_ENTRIES],
    /// The offset of each node, in units of eight bytes from the origin, and `ON_LEVEL1`.
    places: [AtomicU32; LEAF_ENTRIES],
}

/// The information that a block has about a leaf, packed in one word.
#[derive(Debug, Clone, Copy)]
struct Handle {
    leaf: usize,
    len: usize,
    /// The number of bytes that all keys of the leaf share and its words leave out.
    skip: usize,
}

impl Handle {
    fn pack(self) -> u64 {
        self.leaf as u64 | (self.len as u64) << 24 | (self.skip as u64) << 32
    }

    fn unpack(word: u64) -> Handle {
        Handle {
            leaf: (word & 0xff_ffff) as usize,
            len: (word >> 24 & 0xff) as usize,
            skip: (word >> 32) as usize,
        }
    }
}

/// The place of a leaf in the index.
#[derive(Debug, Clone, Copy)]
struct At {
    /// The position of its block in the root, and the block's number.
    position: usize,
    block: usize,
    /// The position in the block.
    index: usize,
}

impl At {
    fn slot(self) -> usize {
        self.block * BLOCK_LEAVES + self.index
    }

    fn next(self) -> At {
        At {
            index: self.index + 1,
            ..self
        }
    }
}

/// The contents of the root that change together.
#[derive(Debug, Clone, Copy)]
struct Root {
    /// The number of blocks.
    blocks: usize,
    /// The number of bytes that the first keys of all leaves share.
    skip: usize,
}

/// The search hints of one list.
#[derive(Debug)]
pub(crate) struct SearchHints {
    root: AtomicU64,
    /// The number of leaves.
    leaves: AtomicU64,
    /// Eight bytes of the first key of each block, in order.
    tops: Box<[AtomicU64]>,
    /// The number of each block, in the same order.
    order: Box<[AtomicU32]>,
    /// The number of leaves of each block.
    lens: Box<[AtomicU32]>,
    /// Eight bytes of the first key of each leaf, block by block.
    words: Box<[AtomicU64]>,
    handles: Box<[AtomicU64]>,
    chunks: Box<[OnceLock<Box<[Leaf]>>]>,
    leaves_max: usize,
    origin: u64,
    /// The lease of memory from the budget.
    _lease: Option<Lease>,
    /// Guards every change. LOCK: innermost, taken with `try_lock` only.
    writer: Mutex<()>,
}

/// Returns the maximum number of blocks for `leaves` leaves. Splits leave blocks half full.
fn block_count(leaves: usize) -> usize {
    leaves / (BLOCK_LEAVES / 2) + 2
}

/// Returns the maximum number of leaves for a memtable of `bytes`.
fn leaf_count(bytes: u64) -> usize {
    (bytes / BYTES_PER_LEAF).clamp(2, 1 << 23) as usize
}

impl SearchHints {
    /// Creates search hints for a memtable of `bytes`. Leaves are allocated on demand.
    pub(crate) fn new(bytes: u64) -> SearchHints {
        let count = leaf_count(bytes);
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let numbers = |count: usize| (0..count).map(|_| AtomicU32::new(0)).collect();
        let (blocks, chunks) = (block_count(count), count.div_ceil(CHUNK_LEAVES));
        SearchHints {
            root: AtomicU64::new(0),
            leaves: AtomicU64::new(0),
            tops: zeros(blocks),
            order: numbers(blocks),
            lens: numbers(blocks),
            words: zeros(blocks * BLOCK_LEAVES),
            handles: zeros(blocks * BLOCK_LEAVES),
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            leaves_max: count,
            origin: 0,
            _lease: None,
            writer: Mutex::new(()),
        }
    }

    /// Creates search hints for a memtable of `bytes`, if the budget has memory for them.
    pub(crate) fn within(memory: &Memory, bytes: u64) -> Option<SearchHints> {
        let lease = memory.search_hints.take(SearchHints::bytes_for(bytes))?;
        Some(SearchHints {
            _lease: Some(lease),
            ..SearchHints::new(bytes)
        })
    }

    /// Returns the maximum size in bytes of the search hints for a memtable of `bytes`.
    fn bytes_for(bytes: u64) -> u64 {
        let count = leaf_count(bytes);
        let chunks = count.div_ceil(CHUNK_LEAVES);
        let chunk = CHUNK_LEAVES * size_of::<Leaf>() + size_of::<OnceLock<Box<[Leaf]>>>();
        let words = block_count(count) * (2 * BLOCK_LEAVES + 2);
        (chunks * chunk + words * size_of::<u64>()) as u64
    }

    /// Clears the search hints for use with a list whose offsets begin at `origin`.
    pub(crate) fn reset(&mut self, origin: u64) {
        (*self.root.get_mut(), *self.leaves.get_mut()) = (0, 0);
        self.origin = origin;
    }

    fn root(&self) -> Root {
        // Acquire, like the loads of blocks and handles below: they pair with the Release stores of
        // a writer, so that places up to a length are those of this list.
        let word = self.root.load(Ordering::Acquire);
        Root {
            blocks: ((word & 0xffff_ffff) as usize).min(self.tops.len()),
            skip: (word >> 32) as usize,
        }
    }

    fn set_root(&self, root: Root) {
        let word = root.blocks as u64 | (root.skip as u64) << 32;
        self.root.store(word, Ordering::Release);
    }

    /// Returns the number of the block at a position of the root.
    #[inline(always)]
    fn block(&self, position: usize) -> usize {
        let block = self.order[position].load(Ordering::Acquire) as usize;
        block.min(self.lens.len() - 1)
    }

    /// Returns the number of leaves of a block.
    #[inline(always)]
    fn len(&self, block: usize) -> usize {
        (self.lens[block].load(Ordering::Acquire) as usize).min(BLOCK_LEAVES)
    }

    fn set_len(&self, block: usize, len: usize) {
        self.lens[block].store(len as u32, Ordering::Release);
    }

    fn set_word(&self, at: At, word: u64) {
        self.words[at.slot()].store(word, Ordering::Relaxed);
        if at.index == 0 {
            self.tops[at.position].store(word, Ordering::Relaxed);
        }
    }

    /// Returns the leaf that a handle refers to.
    #[inline(always)]
    fn leaf(&self, id: usize) -> Option<&Leaf> {
        self.chunks
            .get(id / CHUNK_LEAVES)?
            .get()?
            .get(id % CHUNK_LEAVES)
    }

    /// Returns a leaf for the caller to fill, or `None` if the maximum is reached.
    fn new_leaf(&self, id: usize) -> Option<&Leaf> {
        if id >= self.leaves_max {
            return None;
        }
        let chunk = self.chunks.get(id / CHUNK_LEAVES)?;
        let empty = || Leaf {
            words: [const { AtomicU64::new(0) }; LEAF_ENTRIES],
            places: [const { AtomicU32::new(0) }; LEAF_ENTRIES],
        };
        let chunk = chunk.get_or_init(|| (0..CHUNK_LEAVES).map(|_| empty()).collect());
        chunk.get(id % CHUNK_LEAVES)
    }

    /// Returns the first node of a leaf.
    fn first<'r>(&self, region: &'r Region, at: At) -> Result<Option<Node<'r>>, DecodeError> {
        match self.leaf(self.handle(at).leaf) {
            Some(leaf) => Node::read(region, self.off(leaf, 0)).map(Some),
            None => Ok(None),
        }
    }

    fn handle(&self, at: At) -> Handle {
        let mut handle = Handle::unpack(self.handles[at.slot()].load(Ordering::Acquire));
        handle.len = handle.len.min(LEAF_ENTRIES);
        handle
    }

    fn set_handle(&self, at: At, handle: Handle) {
        self.handles[at.slot()].store(handle.pack(), Ordering::Release);
    }

    /// Returns the offset of an entry's node.
    #[inline(always)]
    fn off(&self, leaf: &Leaf, at: usize) -> u64 {
        self.off_of(place(leaf, at))
    }

    #[inline(always)]
    fn off_of(&self, place: u32) -> u64 {
        self.origin + 8 * u64::from(place & !ON_LEVEL1)
    }

    /// Returns the last of the first `len` entries of a leaf that is on level 1.
    #[inline]
    fn on_level1(&self, leaf: &Leaf, len: usize) -> u64 {
        // Each place is loaded once: a writer may shift them meanwhile.
        let mut places = (0..len).rev().map(|at| place(leaf, at));
        let marked = places.find(|place| place & ON_LEVEL1 != 0);
        marked.map_or(0, |place| self.off_of(place))
    }

    /// Returns the last known node before `target`. Only H1 is guaranteed of the result.
    #[inline]
    pub(crate) fn before(
        &self,
        region: &Region,
        target: &Target<'_>,
    ) -> Result<Option<Hint>, DecodeError> {
        let Some(at) = self.leaf_of(region, target)? else {
            return Ok(None);
        };
        let handle = self.handle(at);
        let Some(leaf) = self.leaf(handle.leaf) else {
            return Ok(None);
        };
        // All at once: a binary search would miss them one after another.
        let words = leaf.words.iter().step_by(LINE_WORDS);
        words.for_each(prefetch_value);
        let places = leaf.places.iter().step_by(2 * LINE_WORDS);
        places.for_each(prefetch_value);
        let at = self.entry_of(region, leaf, handle, target)?;
        if at == 0 {
            return Ok(None);
        }
        Ok(Some(Hint {
            last: self.off(leaf, at - 1),
            on_level1: self.on_level1(leaf, at),
        }))
    }

    /// Returns the last leaf that begins before `target`.
    #[inline]
    fn leaf_of(&self, region: &Region, target: &Target<'_>) -> Result<Option<At>, DecodeError> {
        let root = self.root();
        let word = word_of(target.keyspace, target.key, root.skip);
        let begins_before = |at: At| -> Result<bool, DecodeError> {
            let first = self.first(region, at)?;
            Ok(first.is_some_and(|first| first.compare(target) == Order::Less))
        };
        let tops = &self.tops[..root.blocks];
        let after = behind_ties(tops, words_below(tops, word), word, |position| {
            let block = self.block(position);
            begins_before(At {
                position,
                block,
                index: 0,
            })
        })?;
        let Some(position) = after.checked_sub(1) else {
            return Ok(None);
        };
        let block = self.block(position);
        let words = &self.words[block * BLOCK_LEAVES..][..self.len(block)];
        let after = behind_ties(words, words_below(words, word), word, |index| {
            begins_before(At {
                position,
                block,
                index,
            })
        })?;
        Ok(after.checked_sub(1).map(|index| At {
            position,
            block,
            index,
        }))
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
            Ok(Node::read(region, self.off(leaf, at))?.compare(target) == Order::Less)
        })
    }

    /// Adds the node at `off`, which must be linked on its levels, unless another thread is adding
    /// one or there is no space.
    pub(crate) fn add(
        &self,
        region: &Region,
        off: u64,
        height: u8,
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        let Some(_writer) = self.writer.try_lock() else {
            return Ok(());
        };
        let place = u32::try_from((off - self.origin) / 8);
        let Some(place) = place.ok().filter(|place| place & ON_LEVEL1 == 0) else {
            return Ok(());
        };
        let place = place | if height > 1 { ON_LEVEL1 } else { 0 };
        let start = At {
            position: 0,
            block: self.block(0),
            index: 0,
        };
        if self.root().blocks == 0 {
            self.order[0].store(0, Ordering::Relaxed);
            self.set_len(0, 0);
            let skip = 4 + target.key.len();
            self.set_root(Root { blocks: 1, skip });
            self.begin_leaf(At { block: 0, ..start }, place, target);
            return Ok(());
        }
        self.widen_root(region, target)?;
        let root = self.root();
        let at = self.leaf_of(region, target)?.unwrap_or(start);
        let mut handle = self.handle(at);
        let Some(leaf) = self.leaf(handle.leaf) else {
            return Ok(());
        };
        let mut entry = self.entry_of(region, leaf, handle, target)?;
        // All keys of the leaf share the prefix, so any of them tells whether the new one does. The
        // search for its place has just read the one before it.
        let near = Node::read(region, self.off(leaf, entry.saturating_sub(1)))?;
        let common = common_bytes(&near.target(), target);
        if common < handle.skip {
            handle.skip = common;
            self.cut_words(region, leaf, handle)?;
            self.set_handle(at, handle);
            entry = self.entry_of(region, leaf, handle, target)?;
        }
        if handle.len == LEAF_ENTRIES {
            let last_leaf = at.position + 1 == root.blocks && at.index + 1 == self.len(at.block);
            if last_leaf && entry == LEAF_ENTRIES {
                // Keys inserted in ascending order fill every leaf.
                self.begin_leaf(at.next(), place, target);
                return Ok(());
            }
            self.split(region, at, handle)?;
            // The node itself is left out, but its neighbours are included.
            return Ok(());
        }
        // From the end, so that a reader may see an entry twice but never misses one.
        for to in (entry + 1..=handle.len).rev() {
            let word = leaf.words[to - 1].load(Ordering::Relaxed);
            leaf.words[to].store(word, Ordering::Relaxed);
            let place = leaf.places[to - 1].load(Ordering::Relaxed);
            leaf.places[to].store(place, Ordering::Release);
        }
        let word = word_of(target.keyspace, target.key, handle.skip);
        leaf.words[entry].store(word, Ordering::Relaxed);
        // Release: a reader that finds the place sees the node and its links (H1).
        leaf.places[entry].store(place, Ordering::Release);
        handle.len += 1;
        self.set_handle(at, handle);
        if entry == 0 {
            self.set_word(at, word_of(target.keyspace, target.key, root.skip));
        }
        Ok(())
    }

    /// Creates a leaf of one node.
    fn begin_leaf(&self, at: At, place: u32, target: &Target<'_>) {
        let id = self.leaves.load(Ordering::Relaxed) as usize;
        let Some(leaf) = self.new_leaf(id) else {
            return;
        };
        leaf.words[0].store(0, Ordering::Relaxed);
        leaf.places[0].store(place, Ordering::Release);
        let handle = Handle {
            leaf: id,
            len: 1,
            skip: 4 + target.key.len(),
        };
        let word = word_of(target.keyspace, target.key, self.root().skip);
        self.insert_leaf(at, handle, word);
    }

    /// Moves the upper half of a full leaf into a new one.
    fn split(&self, region: &Region, at: At, mut handle: Handle) -> Result<(), DecodeError> {
        let id = self.leaves.load(Ordering::Relaxed) as usize;
        let (Some(lower), Some(upper)) = (self.leaf(handle.leaf), self.new_leaf(id)) else {
            return Ok(());
        };
        let half = LEAF_ENTRIES / 2;
        for i in 0..half {
            let word = lower.words[half + i].load(Ordering::Relaxed);
            upper.words[i].store(word, Ordering::Relaxed);
            let place = lower.places[half + i].load(Ordering::Relaxed);
            upper.places[i].store(place, Ordering::Release);
        }
        handle.len = half;
        let mut moved = Handle { leaf: id, ..handle };
        self.sharpen(region, upper, &mut moved)?;
        let first = Node::read(region, self.off(upper, 0))?;
        let word = word_of(first.header.keyspace, first.key, self.root().skip);
        // Before the other leaf is inserted, which may move this one.
        self.sharpen(region, lower, &mut handle)?;
        self.set_handle(at, handle);
        self.insert_leaf(at.next(), moved, word);
        Ok(())
    }

    /// Inserts a leaf at a place in a block, which may be its end.
    fn insert_leaf(&self, mut at: At, handle: Handle, word: u64) {
        if self.len(at.block) == BLOCK_LEAVES {
            let Some(free) = self.divide(at) else {
                return;
            };
            at = free;
        }
        let len = self.len(at.block);
        for to in (at.index + 1..=len).rev() {
            let (from, to) = (
                At {
                    index: to - 1,
                    ..at
                },
                At { index: to, ..at },
            );
            let word = self.words[from.slot()].load(Ordering::Relaxed);
            self.words[to.slot()].store(word, Ordering::Relaxed);
            let handle = self.handles[from.slot()].load(Ordering::Relaxed);
            self.handles[to.slot()].store(handle, Ordering::Release);
        }
        self.set_handle(at, handle);
        self.set_word(at, word);
        self.set_len(at.block, len + 1);
        self.leaves.fetch_add(1, Ordering::Relaxed);
    }

    /// Divides a full block, or begins another one after the last. Returns the place that takes the
    /// place of `at`; `None` if there is no other block.
    fn divide(&self, at: At) -> Option<At> {
        let root = self.root();
        let new = root.blocks;
        if new == self.lens.len() {
            return None;
        }
        // Leaves that are added in ascending order fill every block.
        let is_last = at.position + 1 == root.blocks && at.index == BLOCK_LEAVES;
        let kept = if is_last {
            BLOCK_LEAVES
        } else {
            BLOCK_LEAVES / 2
        };
        let slots = kept..BLOCK_LEAVES;
        self.set_len(new, slots.len());
        for (to, from) in slots.enumerate() {
            let from = At { index: from, ..at }.slot();
            let to = new * BLOCK_LEAVES + to;
            let word = self.words[from].load(Ordering::Relaxed);
            self.words[to].store(word, Ordering::Relaxed);
            let handle = self.handles[from].load(Ordering::Relaxed);
            self.handles[to].store(handle, Ordering::Release);
        }
        let position = at.position + 1;
        for to in (position + 1..=root.blocks).rev() {
            let top = self.tops[to - 1].load(Ordering::Relaxed);
            self.tops[to].store(top, Ordering::Relaxed);
            let block = self.order[to - 1].load(Ordering::Relaxed);
            self.order[to].store(block, Ordering::Release);
        }
        let top = self.words[new * BLOCK_LEAVES].load(Ordering::Relaxed);
        self.tops[position].store(top, Ordering::Relaxed);
        self.order[position].store(new as u32, Ordering::Release);
        self.set_root(Root {
            blocks: root.blocks + 1,
            ..root
        });
        self.set_len(at.block, kept);
        Some(match at.index.checked_sub(kept) {
            Some(index) if is_last || index > 0 => At {
                position,
                block: new,
                index,
            },
            _ => at,
        })
    }

    /// Shortens the root's common prefix to what `target` shares with all keys so far.
    fn widen_root(&self, region: &Region, target: &Target<'_>) -> Result<(), DecodeError> {
        let root = self.root();
        let at = |position: usize, index: usize| At {
            position,
            block: self.block(position),
            index,
        };
        let Some(first) = self.first(region, at(0, 0))? else {
            return Ok(());
        };
        let common = common_bytes(&first.target(), target);
        if common >= root.skip {
            return Ok(());
        }
        // BOUND: the common prefix gets shorter each time.
        for position in 0..root.blocks {
            for index in 0..self.len(self.block(position)) {
                let at = at(position, index);
                if let Some(first) = self.first(region, at)? {
                    let word = word_of(first.header.keyspace, first.key, common);
                    self.set_word(at, word);
                }
            }
        }
        self.set_root(Root {
            skip: common,
            ..root
        });
        Ok(())
    }

    /// Leaves out more of each key if the words repeat too much of the common prefix.
    fn sharpen(
        &self,
        region: &Region,
        leaf: &Leaf,
        handle: &mut Handle,
    ) -> Result<(), DecodeError> {
        let first = Node::read(region, self.off(leaf, 0))?;
        let last = Node::read(region, self.off(leaf, handle.len - 1))?;
        let common = common_bytes(&first.target(), &last.target());
        if common >= handle.skip + REPEATED_MAX {
            handle.skip = common;
            self.cut_words(region, leaf, *handle)?;
        }
        Ok(())
    }

    fn cut_words(&self, region: &Region, leaf: &Leaf, handle: Handle) -> Result<(), DecodeError> {
        for at in 0..handle.len {
            let node = Node::read(region, self.off(leaf, at))?;
            let word = word_of(node.header.keyspace, node.key, handle.skip);
            leaf.words[at].store(word, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Returns a place in a leaf.
#[inline(always)]
fn place(leaf: &Leaf, at: usize) -> u32 {
    // Acquire: pairs with the Release in `add`, which follows the linking of the node (H1).
    leaf.places[at].load(Ordering::Acquire)
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
