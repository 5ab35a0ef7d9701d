//! SearchHints: places in a memtable from which a search can start close to its target.
//!
//! A skip-list search misses the cache at almost every step. A memtable therefore keeps the nodes
//! of level 1 also in a two-level B-tree in DRAM: leaves hold eight bytes of each key, many to a
//! cache line, and a root is an index of the leaves. A lookup returns the last of these nodes
//! before a key, and a few steps along level 0 do the rest.
//!
//! The result is only a hint, and the list never depends on it: the caller compares the node with
//! the key, and searches from the head if the hint is wrong or too far away. So readers take no
//! lock and check nothing. A writer that finds another writer active leaves its node out. A reader
//! that sees words half changed loses time and nothing else.
//!
//! Invariants
//!   H1  Every offset in a leaf is that of a node linked on level 1 of the list. The Acquire load
//!       of the offset makes the node's bytes and links visible. An offset is never a mix of two.
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
/// The bytes of a memtable per leaf, which is enough for nodes of 70 bytes or more. With smaller
/// nodes the leaves run out, and full leaves are no longer split.
const BYTES_PER_LEAF: u64 = 8192;
/// The number of leaves allocated at a time.
const CHUNK_LEAVES: usize = 64;
/// One in this many words of the root is copied to an array that stays in the L1 cache.
const ROOT_STRIDE: usize = 32;
/// The number of bytes of a leaf's common prefix that its words may repeat before they are rebuilt.
const REPEATED_MAX: usize = 4;

/// Sorted entries with a common prefix.
#[derive(Debug)]
struct Leaf {
    /// Eight bytes of each key, after the common prefix.
    words: [AtomicU64; LEAF_ENTRIES],
    /// The offset of each node, in units of eight bytes from the origin.
    places: [AtomicU32; LEAF_ENTRIES],
}

/// The root's information about a leaf, packed in one word.
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

/// The search hints of one list.
#[derive(Debug)]
pub(crate) struct SearchHints {
    /// The number of leaves, and the number of bytes that all their first keys share.
    root: AtomicU64,
    /// Eight bytes of each leaf's first key.
    words: Box<[AtomicU64]>,
    /// Every `ROOT_STRIDE`th of the words.
    strides: Box<[AtomicU64]>,
    handles: Box<[AtomicU64]>,
    chunks: Box<[OnceLock<Box<[Leaf]>>]>,
    origin: u64,
    /// The lease of memory from the budget.
    _lease: Option<Lease>,
    /// Guards every change. LOCK: innermost, taken with `try_lock` only.
    writer: Mutex<()>,
}

/// Returns the maximum number of leaves for a memtable of `bytes`.
fn leaf_count(bytes: u64) -> usize {
    (bytes / BYTES_PER_LEAF).clamp(2, 1 << 22) as usize
}

impl SearchHints {
    /// Creates search hints for a memtable of `bytes`. Leaves are allocated on demand.
    pub(crate) fn new(bytes: u64) -> SearchHints {
        let count = leaf_count(bytes);
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let chunks = count.div_ceil(CHUNK_LEAVES);
        SearchHints {
            root: AtomicU64::new(0),
            words: zeros(count),
            strides: zeros(count.div_ceil(ROOT_STRIDE)),
            handles: zeros(count),
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
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
        let words = 2 * count + count.div_ceil(ROOT_STRIDE);
        (chunks * chunk + words * size_of::<u64>()) as u64
    }

    /// Clears the search hints for use with a list whose nodes are behind `origin`.
    pub(crate) fn reset(&mut self, origin: u64) {
        *self.root.get_mut() = 0;
        self.origin = origin;
    }

    fn root(&self) -> Handle {
        let word = self.root.load(Ordering::Relaxed);
        Handle {
            leaf: 0,
            len: ((word & 0xffff_ffff) as usize).min(self.words.len()),
            skip: (word >> 32) as usize,
        }
    }

    fn set_root(&self, len: usize, skip: usize) {
        let word = len as u64 | (skip as u64) << 32;
        self.root.store(word, Ordering::Relaxed);
    }

    fn set_word(&self, at: usize, word: u64) {
        self.words[at].store(word, Ordering::Relaxed);
        if at.is_multiple_of(ROOT_STRIDE) {
            self.strides[at / ROOT_STRIDE].store(word, Ordering::Relaxed);
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
        if id >= self.words.len() {
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

    /// Returns the first node of the leaf at position `at` of the root.
    fn first<'r>(&self, region: &'r Region, at: usize) -> Result<Option<Node<'r>>, DecodeError> {
        match self.leaf(self.handle(at).leaf) {
            Some(leaf) => Node::read(region, self.off(leaf, 0)).map(Some),
            None => Ok(None),
        }
    }

    fn handle(&self, at: usize) -> Handle {
        let mut handle = Handle::unpack(self.handles[at].load(Ordering::Relaxed));
        handle.len = handle.len.min(LEAF_ENTRIES);
        handle
    }

    fn set_handle(&self, at: usize, handle: Handle) {
        self.handles[at].store(handle.pack(), Ordering::Relaxed);
    }

    /// Returns the offset of an entry's node.
    #[inline(always)]
    fn off(&self, leaf: &Leaf, at: usize) -> u64 {
        // Acquire: pairs with the Release in `add`, which follows the linking of the node (H1).
        self.origin + 8 * u64::from(leaf.places[at].load(Ordering::Acquire))
    }

    /// Returns the last known node before `target`. Only H1 is guaranteed of the result.
    #[inline]
    pub(crate) fn before(
        &self,
        region: &Region,
        target: &Target<'_>,
    ) -> Result<Option<u64>, DecodeError> {
        let at = self.leaf_of(region, target)?;
        if at == 0 {
            return Ok(None);
        }
        let handle = self.handle(at - 1);
        let Some(leaf) = self.leaf(handle.leaf) else {
            return Ok(None);
        };
        let at = self.entry_of(region, leaf, handle, target)?;
        if at == 0 {
            return Ok(None);
        }
        Ok(Some(self.off(leaf, at - 1)))
    }

    /// Returns the number of leaves that begin before `target`.
    #[inline]
    fn leaf_of(&self, region: &Region, target: &Target<'_>) -> Result<usize, DecodeError> {
        let root = self.root();
        let words = &self.words[..root.len];
        let word = word_of(target.keyspace, target.key, root.skip);
        let strides = &self.strides[..root.len.div_ceil(ROOT_STRIDE)];
        let from = words_below(strides, word).saturating_sub(1) * ROOT_STRIDE;
        let to = (from + ROOT_STRIDE).min(root.len);
        let at = from + words_below(&words[from..to], word);
        behind_ties(words, at, word, |at| {
            let first = self.first(region, at)?;
            Ok(first.is_some_and(|first| first.compare(target) == Order::Less))
        })
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

    /// Adds the node at `off`, which must be linked on level 1, unless another thread is adding one
    /// or there is no space.
    pub(crate) fn add(
        &self,
        region: &Region,
        off: u64,
        target: &Target<'_>,
    ) -> Result<(), DecodeError> {
        let Some(_writer) = self.writer.try_lock() else {
            return Ok(());
        };
        let Ok(place) = u32::try_from((off - self.origin) / 8) else {
            return Ok(());
        };
        if self.root().len == 0 {
            self.set_root(0, 4 + target.key.len());
            self.begin_leaf(0, place, target);
            return Ok(());
        }
        self.widen_root(region, target)?;
        let root = self.root();
        let at = self.leaf_of(region, target)?.saturating_sub(1);
        let mut handle = self.handle(at);
        let Some(leaf) = self.leaf(handle.leaf) else {
            return Ok(());
        };
        let first = Node::read(region, self.off(leaf, 0))?;
        let common = common_bytes(&first.target(), target);
        if common < handle.skip {
            handle.skip = common;
            self.cut_words(region, leaf, handle)?;
            self.set_handle(at, handle);
        }
        let entry = self.entry_of(region, leaf, handle, target)?;
        if handle.len == LEAF_ENTRIES {
            let last_leaf = at + 1 == root.len;
            if last_leaf && entry == LEAF_ENTRIES {
                // Keys inserted in ascending order fill every leaf.
                self.begin_leaf(at + 1, place, target);
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

    /// Creates a leaf of one node at position `at` of the root.
    fn begin_leaf(&self, at: usize, place: u32, target: &Target<'_>) {
        let root = self.root();
        let Some(leaf) = self.new_leaf(root.len) else {
            return;
        };
        leaf.words[0].store(0, Ordering::Relaxed);
        leaf.places[0].store(place, Ordering::Release);
        let handle = Handle {
            leaf: root.len,
            len: 1,
            skip: 4 + target.key.len(),
        };
        self.open_root(at, handle, word_of(target.keyspace, target.key, root.skip));
    }

    /// Moves the upper half of a full leaf into a new one.
    fn split(&self, region: &Region, at: usize, mut handle: Handle) -> Result<(), DecodeError> {
        let root = self.root();
        let id = root.len;
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
        let word = word_of(first.header.keyspace, first.key, root.skip);
        self.open_root(at + 1, moved, word);
        self.sharpen(region, lower, &mut handle)?;
        self.set_handle(at, handle);
        Ok(())
    }

    /// Inserts a leaf at position `at` of the root.
    fn open_root(&self, at: usize, handle: Handle, word: u64) {
        let root = self.root();
        for to in (at + 1..=root.len).rev() {
            let word = self.words[to - 1].load(Ordering::Relaxed);
            self.set_word(to, word);
            let handle = self.handles[to - 1].load(Ordering::Relaxed);
            self.handles[to].store(handle, Ordering::Relaxed);
        }
        self.set_handle(at, handle);
        self.set_word(at, word);
        self.set_root(root.len + 1, root.skip);
    }

    /// Shortens the root's common prefix to what `target` shares with all keys so far.
    fn widen_root(&self, region: &Region, target: &Target<'_>) -> Result<(), DecodeError> {
        let root = self.root();
        let Some(first) = self.first(region, 0)? else {
            return Ok(());
        };
        let common = common_bytes(&first.target(), target);
        if common >= root.skip {
            return Ok(());
        }
        // BOUND: the common prefix gets shorter each time.
        for at in 0..root.len {
            if let Some(first) = self.first(region, at)? {
                let word = word_of(first.header.keyspace, first.key, common);
                self.set_word(at, word);
            }
        }
        self.set_root(root.len, common);
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
