//! Persist counters: bytes, lines, flushes and fences of one pool, by purpose.
//!
//! Each live thread owns one shard of every pool's counters, so that counting is a plain load, add
//! and store on a cache line that no other thread writes. Threads beyond the number of shards share
//! the last one with atomic additions.
//!
//! Invariants
//!   C1  A shard below `SHARDS` has at most one live owner. The hand-over from an ended thread goes
//!       through a mutex, so no addition is lost.

use parking_lot::Mutex;
use std::cell::Cell;
use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

/// The reason why bytes are made durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// Records of the write-ahead log.
    Log,
    /// Copying a sealed memtable into the buffer.
    Flush,
    /// Relinking nodes inside the buffer, or rewriting its logs.
    Merge,
    /// Moving data from the buffer to the bottom.
    Drain,
    /// Invalidating superseded data and freeing its space.
    Reclaim,
    /// Edits of the manifest.
    Manifest,
    /// The pool's superblock.
    Superblock,
}

impl Purpose {
    /// All purposes, in numerical order.
    pub const ALL: [Purpose; 7] = [
        Purpose::Log,
        Purpose::Flush,
        Purpose::Merge,
        Purpose::Drain,
        Purpose::Reclaim,
        Purpose::Manifest,
        Purpose::Superblock,
    ];

    /// Returns the name used in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Log => "log",
            Purpose::Flush => "flush",
            Purpose::Merge => "merge",
            Purpose::Drain => "drain",
            Purpose::Reclaim => "reclaim",
            Purpose::Manifest => "manifest",
            Purpose::Superblock => "superblock",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The cost of one purpose.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PersistCounts {
    /// Bytes made durable, in whole cache lines.
    pub bytes: u64,
    /// Cache lines made durable.
    pub lines: u64,
    /// Calls that flushed or streamed at least one line.
    pub flushes: u64,
    /// The number of fences.
    pub fences: u64,
}

impl Add for PersistCounts {
    type Output = PersistCounts;
    fn add(self, o: PersistCounts) -> PersistCounts {
        PersistCounts {
            bytes: self.bytes + o.bytes,
            lines: self.lines + o.lines,
            flushes: self.flushes + o.flushes,
            fences: self.fences + o.fences,
        }
    }
}

impl Sub for PersistCounts {
    type Output = PersistCounts;
    fn sub(self, o: PersistCounts) -> PersistCounts {
        PersistCounts {
            bytes: self.bytes.saturating_sub(o.bytes),
            lines: self.lines.saturating_sub(o.lines),
            flushes: self.flushes.saturating_sub(o.flushes),
            fences: self.fences.saturating_sub(o.fences),
        }
    }
}

/// A snapshot of the counters of one pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts([PersistCounts; Purpose::ALL.len()]);

impl Counts {
    /// Returns the cost of `purpose`.
    pub fn get(&self, purpose: Purpose) -> PersistCounts {
        self.0[purpose as usize]
    }

    /// Returns the total cost of all purposes.
    pub fn total(&self) -> PersistCounts {
        self.0
            .iter()
            .fold(PersistCounts::default(), |sum, c| sum + *c)
    }
}

impl Sub for Counts {
    type Output = Counts;
    fn sub(mut self, earlier: Counts) -> Counts {
        for (now, then) in self.0.iter_mut().zip(earlier.0) {
            *now = *now - then;
        }
        self
    }
}

/// The number of shards with one owner each; shard number `SHARDS` is shared by all other threads.
const SHARDS: usize = 32;

#[derive(Default)]
struct Cells {
    bytes: AtomicU64,
    flushes: AtomicU64,
    fences: AtomicU64,
}

#[derive(Default)]
#[repr(align(128))]
struct Shard([Cells; Purpose::ALL.len()]);

/// The live counters of one pool.
pub(crate) struct Counters {
    shards: Box<[Shard]>,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            shards: (0..=SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    /// Counts one call that made `lines` lines durable.
    #[inline]
    pub(crate) fn wrote(&self, purpose: Purpose, lines: u64) {
        let index = shard_index();
        let cells = &self.shards[index].0[purpose as usize];
        bump(&cells.bytes, lines * 64, index);
        bump(&cells.flushes, 1, index);
    }

    /// Counts one fence.
    #[inline]
    pub(crate) fn fenced(&self, purpose: Purpose) {
        let index = shard_index();
        bump(&self.shards[index].0[purpose as usize].fences, 1, index);
    }

    pub(crate) fn read(&self) -> Counts {
        let mut counts = Counts::default();
        for shard in &self.shards {
            for (sum, cells) in counts.0.iter_mut().zip(&shard.0) {
                let bytes = cells.bytes.load(Ordering::Relaxed);
                *sum = *sum
                    + PersistCounts {
                        bytes,
                        lines: bytes / 64,
                        flushes: cells.flushes.load(Ordering::Relaxed),
                        fences: cells.fences.load(Ordering::Relaxed),
                    };
            }
        }
        counts
    }
}

#[inline]
fn bump(cell: &AtomicU64, by: u64, index: usize) {
    if index < SHARDS {
        // One owner (C1): no locked instruction is needed.
        cell.store(cell.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    } else {
        cell.fetch_add(by, Ordering::Relaxed);
    }
}

const UNSET: usize = usize::MAX;

/// The shards of ended threads, and the lowest shard never assigned.
static FREE_SHARDS: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

/// Releases the shard when its thread ends.
struct Owner(usize);

impl Drop for Owner {
    fn drop(&mut self) {
        SHARD.set(SHARDS);
        FREE_SHARDS.lock().0.push(self.0);
    }
}

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(UNSET) };
    static OWNER: Cell<Option<Owner>> = const { Cell::new(None) };
}

#[inline]
fn shard_index() -> usize {
    let index = SHARD.get();
    if index == UNSET { take_shard() } else { index }
}

#[cold]
fn take_shard() -> usize {
    let index = {
        let mut free = FREE_SHARDS.lock();
        match free.0.pop() {
            Some(index) => index,
            None if free.1 < SHARDS => {
                free.1 += 1;
                free.1 - 1
            }
            None => SHARDS,
        }
    };
    SHARD.set(index);
    if index < SHARDS && OWNER.try_with(|cell| cell.set(Some(Owner(index)))).is_err() {
        // The thread is ending and nothing would release the shard, so it is not kept.
        SHARD.set(SHARDS);
        FREE_SHARDS.lock().0.push(index);
        return SHARDS;
    }
    index
}
