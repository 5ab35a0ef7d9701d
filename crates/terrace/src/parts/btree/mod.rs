//! B+-tree: the index of a memtable whose values are in its log.
//!
//! The entries are nodes as in a skip list, with one link, which is unused. They are written into
//! the arena of the memtable and never move. The tree sorts their offsets: a leaf page has the
//! offsets of up to 32 entries, an inner page those of up to 32 pages, and both have eight bytes of
//! each key beside them. So a search reads few cache lines, and entries only where keys are equal
//! in these bytes, or at the edges of the tree.
//!
//! Pages are in the arena too, so that the capacity of the arena bounds the index. The caller
//! provides them with [`Tree::grow`] before the entries that may need them.
//!
//! Searches take no lock. A page has a version, which is odd while a writer changes the page; a
//! search that reads a page under two different versions starts again (optimistic lock coupling: V.
//! Leis et al., *The ART of practical synchronization*, DaMoN '16, section 3). An insertion locks
//! one leaf. Splits are made one at a time, and lock the page that is split and its parent.
//!
//! Invariants
//!   T1  The entries of a page are at or after its `low`, and before its `high`. Neither `low` nor
//!       the level of a page changes; `high` only descends.
//!   T2  Leaves are chained in key order. A page that is split keeps the first half, and the new
//!       page follows it in the chain. So a walk along the chain meets every entry that was in the
//!       tree when it began.
//!   T3  An entry's offset in a page is stored with Release after the entry is written, and read
//!       with Acquire.
//!   T4  The entries of a leaf, and those at which the pages below an inner page begin but the
//!       first, share their first `skip` bytes, which the fronts leave out. If `prefix` is 0, T1
//!       proves that a target has them too; else they are those of the entry `prefix`, and a search
//!       compares them.
//!   T5  Once a page can be found, only the holder of its odd version changes it, and only the
//!       holder of `splitting` changes inner pages and the root.
//!
//! LOCK: `splitting`, then a page, then a page below it. Nothing else is taken under them except
//! `free`. Callers: writers and readers on any thread.

mod check;
mod insert;
mod page;
mod search;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_media::{Bump, Region};

use crate::error::{Error, Result};

pub(crate) use insert::Approach;
pub(crate) use search::Stretch;

use page::{FANOUT, PAGE_BYTES, Page};

/// The number of nodes of a page that is not the last of its level, at least.
const FILL_MIN: u64 = FANOUT as u64 / 2;

/// A tree over entries in a region.
#[derive(Clone)]
pub(crate) struct Tree {
    region: Region,
    common: Arc<Common>,
}

struct Common {
    /// The offset of the root page.
    root: AtomicU64,
    /// The number of pages that `grow` has provided.
    provided: AtomicU64,
    /// Pages that are not used yet.
    free: Mutex<Vec<u64>>,
    splitting: Mutex<()>,
}

/// Returns the largest number of pages that `entries` may need.
fn pages_for(entries: u64) -> u64 {
    let (mut pages, mut nodes) = (0, entries);
    // BOUND: each level has a sixteenth of the nodes of the one below.
    loop {
        // A root is split when it is full, even if its next page need not be.
        if nodes < FANOUT as u64 {
            return pages + 1;
        }
        // All pages but the last are at least half full.
        nodes = nodes / FILL_MIN + 1;
        pages += nodes;
    }
}

impl Tree {
    /// Creates an empty tree with its first page in `bump`. Returns `None` if that is full.
    pub(crate) fn new(bump: &Bump) -> Result<Option<Tree>> {
        let tree = Tree {
            region: bump.region().clone(),
            common: Arc::new(Common {
                root: AtomicU64::new(0),
                provided: AtomicU64::new(0),
                free: Mutex::default(),
                splitting: Mutex::default(),
            }),
        };
        if !tree.grow(bump, 0) {
            return Ok(None);
        }
        let root = tree.free_page()?;
        tree.common.root.store(root.off(), Ordering::Release);
        Ok(Some(tree))
    }

    /// Returns the bytes of an arena that the pages of `entries` may take.
    pub(crate) fn bytes_for(entries: u64) -> u64 {
        // And an alignment each.
        pages_for(entries) * (PAGE_BYTES as u64 + 56)
    }

    /// Returns the bytes that [`grow`](Tree::grow) takes for `entries`.
    #[inline]
    pub(crate) fn lacks(&self, entries: u64) -> u64 {
        let provided = self.common.provided.load(Ordering::Relaxed);
        let lacking = pages_for(entries).saturating_sub(provided);
        lacking * (PAGE_BYTES as u64 + 56)
    }

    /// Provides the pages for a tree of `entries`. Returns false if the arena is full. Calls must
    /// not overlap.
    #[inline]
    pub(crate) fn grow(&self, bump: &Bump, entries: u64) -> bool {
        let provided = &self.common.provided;
        // BOUND: each iteration provides a page.
        while provided.load(Ordering::Relaxed) < pages_for(entries) {
            let Some(mut page) = bump.lend(PAGE_BYTES, 64) else {
                return false;
            };
            page.fill_zero(0, PAGE_BYTES);
            self.common.free.lock().push(page.off());
            provided.store(provided.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        true
    }

    /// Takes a page that is not used yet.
    fn free_page(&self) -> Result<Page<'_>> {
        let off = self.common.free.lock().pop();
        let off = off.ok_or_else(|| Error::corruption("an index has fewer pages than it needs"))?;
        Ok(self.page(off)?)
    }

    /// Returns the memory that contains the entries and the pages.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}
