//! The filter of a memtable: keys are added while readers ask.
//!
//! It is in memory only, of a fixed size, and sets the bits that layout.rs defines. Bits are never
//! cleared. They are set and read with Relaxed: a writer sets those of its keys before its batch
//! becomes visible, by a Release store of the number that a reader loads with Acquire before it
//! asks. So a reader that may see an entry sees its bits.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::BLOCK_WORDS;
use super::{block_count, block_of, probe, spread};

/// One key in a hundred that was not added passes.
const BITS_PER_KEY: u32 = 10;
const PROBES: u32 = 6;
/// The bytes of a memtable for each key that the filter has space for. Smaller entries make it
/// less selective.
const BYTES_PER_KEY: u64 = 128;

/// The words of a block, in one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Block([AtomicU64; BLOCK_WORDS]);

/// A filter that takes keys from many threads.
#[derive(Debug)]
pub(crate) struct GrowingFilter(Box<[Block]>);

impl GrowingFilter {
    /// Creates an empty filter for a memtable of `bytes`, a hundredth of which it takes.
    pub(crate) fn new(bytes: u64) -> GrowingFilter {
        let count = block_count(bytes / BYTES_PER_KEY, BITS_PER_KEY);
        GrowingFilter((0..count).map(|_| Block::default()).collect())
    }

    #[inline(always)]
    fn block(&self, hash: u64) -> &Block {
        &self.0[block_of(hash, self.0.len() as u32) as usize]
    }

    /// Adds a key by its hash.
    #[inline]
    pub(crate) fn insert(&self, hash: u64) {
        let Block(words) = self.block(hash);
        let bits = spread(hash);
        for i in 0..PROBES {
            let (word, bit) = probe(bits, i);
            words[word as usize].fetch_or(1 << bit, Ordering::Relaxed);
        }
    }

    /// Returns whether a key with this hash may have been added; `false` is certain.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        let Block(words) = self.block(hash);
        let bits = spread(hash);
        (0..PROBES).all(|i| {
            let (word, bit) = probe(bits, i);
            words[word as usize].load(Ordering::Relaxed) >> bit & 1 == 1
        })
    }
}
