//! Pages: leaves and inner pages alike, as words in an arena. They never leave memory.

use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_media::Region;

use super::Tree;
use crate::parts::codec::DecodeError;
use crate::parts::key::{Target, key_front};
use crate::parts::skiplist::Node;

/// The largest number of entries of a leaf, and of pages below an inner page.
pub(super) const FANOUT: usize = 32;

const WORDS: usize = 8 + 2 * FANOUT;
/// The size of a page.
pub(super) const PAGE_BYTES: usize = 8 * WORDS;

/// Odd while a writer changes the page.
const VERSION: usize = 0;
/// See [`State`].
const STATE: usize = 1;
/// The next leaf, or 0.
const NEXT: usize = 2;
/// The entry at which the page begins, or 0 if it is the first.
const LOW: usize = 3;
/// The entry before which it ends, or 0 if it is the last.
const HIGH: usize = 4;
/// See T4.
const PREFIX: usize = 5;
/// Eight bytes of each key, after those that are skipped. An inner page has none for the first
/// page below it.
const FRONTS: usize = 8;
/// The offset of each entry, or of each page below.
const OFFS: usize = FRONTS + FANOUT;

/// The spins after which a search that waits for a writer lets other threads run: the writer may
/// have been interrupted.
const SPINS: u32 = 100;

/// The parts of a page that one word has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub(super) len: usize,
    /// 0 for a leaf.
    pub(super) level: u8,
    /// The number of bytes that all keys share and fronts leave out, those of the keyspace
    /// included.
    pub(super) skip: usize,
}

impl State {
    fn pack(self) -> u64 {
        self.len as u64 | u64::from(self.level) << 8 | (self.skip as u64) << 16
    }

    fn unpack(word: u64) -> State {
        State {
            len: ((word & 0xff) as usize).min(FANOUT),
            level: (word >> 8) as u8,
            skip: (word >> 16) as usize,
        }
    }
}

/// A keyspace and a key, as one string of bytes of which the first four are the keyspace.
#[derive(Clone, Copy)]
pub(super) struct Full<'a> {
    keyspace: u32,
    key: &'a [u8],
}

/// The bytes of a keyspace.
const KEYSPACE_BYTES: usize = 4;

impl<'a> Full<'a> {
    pub(super) fn of(target: &Target<'a>) -> Full<'a> {
        Full {
            keyspace: target.keyspace,
            key: target.key,
        }
    }

    /// Returns the eight bytes after the first `skip` as a number, padded with zeros.
    #[inline]
    pub(super) fn front(self, skip: usize) -> u64 {
        if let Some(skip) = skip.checked_sub(KEYSPACE_BYTES) {
            return key_front(self.key.get(skip..).unwrap_or(&[]));
        }
        let (first, rest) = self.key.split_at(self.key.len().min(8));
        let key = u128::from(key_front(first)) << 32 | u128::from(key_front(rest) >> 32);
        let all = u128::from(self.keyspace) << 96 | key;
        ((all << (8 * skip)) >> 64) as u64
    }

    /// Returns the number of first bytes that two keys share.
    pub(super) fn shared(self, other: Full<'_>) -> usize {
        let keyspaces = self.keyspace ^ other.keyspace;
        if keyspaces != 0 {
            return keyspaces.leading_zeros() as usize / 8;
        }
        let same = self.key.iter().zip(other.key).take_while(|(a, b)| a == b);
        KEYSPACE_BYTES + same.count()
    }

    /// Compares the first `len` bytes of two keys, of which `other` has so many.
    #[inline]
    pub(super) fn compare_first(self, other: Full<'_>, len: usize) -> Order {
        let keyspaces = |len: usize| match len {
            KEYSPACE_BYTES.. => 0,
            _ => 32 - 8 * len as u32,
        };
        let cut = keyspaces(len);
        // Of no bytes nothing is left.
        let (a, b) = (
            u64::from(self.keyspace) >> cut,
            u64::from(other.keyspace) >> cut,
        );
        a.cmp(&b).then_with(|| {
            let len = len.saturating_sub(KEYSPACE_BYTES);
            let first = |key: &'_ [u8]| key.len().min(len);
            self.key[..first(self.key)].cmp(&other.key[..first(other.key)])
        })
    }
}

/// One page. Each method reads or changes one word or one stretch of words. Words belong together
/// if they were read under one version.
#[derive(Clone, Copy)]
pub(super) struct Page<'a> {
    off: u64,
    words: &'a [AtomicU64; WORDS],
}

#[cold]
fn outside(off: u64) -> DecodeError {
    DecodeError {
        what: "page of an index",
        offset: off,
        expected: "an offset inside its arena".into(),
        found: format!("{off:#x}"),
    }
}

impl Tree {
    /// Returns the page at an offset.
    #[inline]
    pub(super) fn page(&self, off: u64) -> Result<Page<'_>, DecodeError> {
        let words = self.region().words(off).ok_or_else(|| outside(off))?;
        Ok(Page { off, words })
    }

    /// Returns the key of an entry.
    #[inline]
    pub(super) fn key_of(&self, entry: u64) -> Result<Full<'_>, DecodeError> {
        let target = Node::read(self.region(), entry)?.target();
        Ok(Full::of(&target))
    }
}

impl<'a> Page<'a> {
    #[inline]
    pub(super) fn off(self) -> u64 {
        self.off
    }

    #[inline]
    fn get(self, word: usize) -> u64 {
        // Acquire: a search that reads what a writer stores then sees another version (T3, T5).
        self.words[word].load(Ordering::Acquire)
    }

    #[inline]
    fn set(self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Release);
    }

    /// Waits until no writer changes the page and returns its version.
    #[inline]
    pub(super) fn version(self) -> u64 {
        let mut spins = 0;
        // BOUND: the writer that holds the page is in `insert` or `split`, which wait only for a
        // page below it, and for `free`.
        loop {
            let version = self.get(VERSION);
            if version & 1 == 0 {
                return version;
            }
            spins += 1;
            match spins {
                ..SPINS => std::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Returns whether the page still has a version, so that all that was read since belongs
    /// together.
    #[inline]
    pub(super) fn is_still(self, version: u64) -> bool {
        self.words[VERSION].load(Ordering::Relaxed) == version
    }

    /// Locks the page if it still has a version.
    #[inline]
    pub(super) fn try_lock(self, version: u64) -> bool {
        let exchange = self.words[VERSION].compare_exchange(
            version,
            version + 1,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        exchange.is_ok()
    }

    /// Locks the page.
    pub(super) fn lock(self) {
        // BOUND: as in `version`.
        while !self.try_lock(self.version()) {}
    }

    /// Unlocks the page, which then has the next version.
    #[inline]
    pub(super) fn unlock(self) {
        let version = self.words[VERSION].load(Ordering::Relaxed);
        self.set(VERSION, version + 1);
    }

    #[inline]
    pub(super) fn state(self) -> State {
        State::unpack(self.get(STATE))
    }

    #[inline]
    pub(super) fn set_state(self, state: State) {
        self.set(STATE, state.pack());
    }

    pub(super) fn next(self) -> u64 {
        self.get(NEXT)
    }

    pub(super) fn low(self) -> u64 {
        self.get(LOW)
    }

    pub(super) fn high(self) -> u64 {
        self.get(HIGH)
    }

    #[inline]
    pub(super) fn prefix(self) -> u64 {
        self.get(PREFIX)
    }

    pub(super) fn set_next(self, next: u64) {
        self.set(NEXT, next);
    }

    pub(super) fn set_low(self, low: u64) {
        self.set(LOW, low);
    }

    pub(super) fn set_high(self, high: u64) {
        self.set(HIGH, high);
    }

    pub(super) fn set_prefix(self, prefix: u64) {
        self.set(PREFIX, prefix);
    }

    #[inline]
    pub(super) fn front(self, at: usize) -> u64 {
        self.get(FRONTS + at)
    }

    #[inline]
    pub(super) fn node(self, at: usize) -> u64 {
        self.get(OFFS + at)
    }

    pub(super) fn put(self, at: usize, front: u64, node: u64) {
        self.set(FRONTS + at, front);
        self.set(OFFS + at, node);
    }

    pub(super) fn set_front(self, at: usize, front: u64) {
        self.set(FRONTS + at, front);
    }

    /// Moves the nodes from `at` on by one.
    #[inline]
    pub(super) fn shift(self, at: usize, len: usize) {
        for words in [FRONTS, OFFS] {
            let words = &self.words[words + at..=words + len];
            for pair in words.windows(2).rev() {
                let [from, to] = pair else { continue };
                to.store(from.load(Ordering::Relaxed), Ordering::Release);
            }
        }
    }

    /// Returns the range of nodes from `first` on whose fronts are equal to `front`: the earlier
    /// ones are before it, the later ones after it.
    #[inline]
    pub(super) fn equal(self, first: usize, len: usize, front: u64) -> (usize, usize) {
        let fronts = &self.words[FRONTS..FRONTS + len];
        let mut from = first;
        let mut left = len.saturating_sub(first);
        // BOUND: each iteration halves what is left. Without branches that a processor could only
        // guess.
        while left > 1 {
            let half = left / 2;
            let below = fronts[from + half - 1].load(Ordering::Acquire) < front;
            from += if below { half } else { 0 };
            left -= half;
        }
        if left == 1 && fronts[from].load(Ordering::Acquire) < front {
            from += 1;
        }
        let is_equal = |at: usize| fronts[at].load(Ordering::Acquire) == front;
        let mut to = from;
        while to < len && is_equal(to) {
            to += 1;
        }
        (from, to)
    }

    /// Prefetches the lines that a search in the page reads.
    #[inline]
    pub(super) fn prefetch(region: &Region, off: u64) {
        for line in 0..1 + FANOUT as u64 / 8 {
            region.prefetch(off.wrapping_add(64 * line));
        }
    }

    /// Prefetches the other lines.
    #[inline]
    pub(super) fn prefetch_offs(region: &Region, off: u64) {
        for line in 0..FANOUT as u64 / 8 {
            region.prefetch(off.wrapping_add((8 * OFFS) as u64 + 64 * line));
        }
    }
}
