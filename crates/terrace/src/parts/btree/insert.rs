//! Insertion of entries, and building of a tree from sorted ones.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

use super::Tree;
use super::page::{FANOUT, Full, Page, State};
use super::search::{Leaf, Side};
use crate::error::Result;
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;
use crate::parts::skiplist::Node;

/// The fronts of a page are made again if all share at least this many first bytes.
const SHARED_MIN: u32 = 4;

/// A leaf that an entry may be inserted into.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Approach {
    leaf: u64,
    version: u64,
}

/// The new page of a split.
struct Right {
    off: u64,
    low: u64,
}

impl Tree {
    /// Finds the leaf of an entry to be inserted, and prefetches it. This is a hint; the insertion
    /// reports errors.
    #[inline]
    pub(crate) fn approach(&self, target: &Target<'_>) -> Option<Approach> {
        let Leaf { page, version } = self.descend(target, Side::After).ok()?;
        let leaf = page.off();
        Some(Approach { leaf, version })
    }

    /// Inserts the entry at `off`, already written, at the place of `target`.
    #[inline]
    pub(crate) fn insert(
        &self,
        approach: Option<Approach>,
        off: u64,
        target: &Target<'_>,
    ) -> Result<()> {
        let mut leaf = match approach {
            Some(Approach { leaf, version }) => Leaf {
                page: self.page(leaf)?,
                version,
            },
            None => self.descend(target, Side::After)?,
        };
        // BOUND: each iteration follows a change of the leaf by another writer, or a split.
        loop {
            let Leaf { page, version } = leaf;
            let is_full = page.state().len == FANOUT;
            // Under the version, the leaf is still that of the target (T1), and as full.
            if !is_full && page.try_lock(version) {
                let done = self.insert_held(page, target, off, off);
                page.unlock();
                return Ok(done?);
            }
            if is_full && page.is_still(version) && self.split(target, off)? {
                return Ok(());
            }
            leaf = self.descend(target, Side::After)?;
        }
    }

    /// Inserts a node into a page that is locked and not full. `entry`: the one at which it begins,
    /// which is at `target`.
    #[inline]
    fn insert_held(
        &self,
        page: Page<'_>,
        target: &Target<'_>,
        entry: u64,
        node: u64,
    ) -> Result<(), DecodeError> {
        let mut state = page.state();
        if self.compare_prefix(page, state.skip, target)? != Order::Equal {
            let shared = Full::of(target).shared(self.key_of(page.prefix())?);
            state = self.set_skip(page, shared)?;
        }
        let at = self.count_before(page, state, target, Side::Before)?;
        page.shift(at, state.len);
        page.put(at, Full::of(target).front(state.skip), node);
        let len = state.len + 1;
        page.set_state(State { len, ..state });
        let proven = page.low() != 0 && page.high() != 0;
        if page.prefix() == 0 && !proven {
            page.set_prefix(entry);
        }
        // Leaves get theirs when they are split, except those that begin with few entries.
        if state.level > 0 || len == FANOUT / 4 {
            self.skip_more(page)?;
        }
        Ok(())
    }

    /// Returns the entry at which a node of a page begins.
    fn begin(&self, page: Page<'_>, level: u8, at: usize) -> Result<u64, DecodeError> {
        match level {
            0 => Ok(page.node(at)),
            _ => Ok(self.page(page.node(at))?.low()),
        }
    }

    /// Makes the fronts of a page again, without the first `skip` bytes of keys, which all share.
    fn set_skip(&self, page: Page<'_>, skip: usize) -> Result<State, DecodeError> {
        let state = State {
            skip,
            ..page.state()
        };
        for at in usize::from(state.level > 0)..state.len {
            let key = self.key_of(self.begin(page, state.level, at)?)?;
            page.set_front(at, key.front(skip));
        }
        page.set_state(state);
        Ok(state)
    }

    /// Makes the fronts of a page again if they have many equal bytes, and keys have more to leave
    /// out.
    fn skip_more(&self, page: Page<'_>) -> Result<(), DecodeError> {
        let state = page.state();
        let first = usize::from(state.level > 0);
        if state.len < first + 2 {
            return Ok(());
        }
        let same = (page.front(first) ^ page.front(state.len - 1)).leading_zeros() / 8;
        if same < SHARED_MIN {
            return Ok(());
        }
        let (shared, prefix) = self.shared(page, state)?;
        if shared > state.skip {
            self.set_skip(page, shared)?;
            page.set_prefix(prefix);
        }
        Ok(())
    }

    /// Returns how many first bytes the keys of a page share, and the prefix that says so (T4).
    fn shared(&self, page: Page<'_>, state: State) -> Result<(usize, u64), DecodeError> {
        let State { len, level, .. } = state;
        let (low, high) = (page.low(), page.high());
        let (first, last, prefix) = if low != 0 && high != 0 {
            (low, high, 0)
        } else {
            let first = self.begin(page, level, usize::from(level > 0))?;
            (first, self.begin(page, level, len - 1)?, first)
        };
        Ok((self.key_of(first)?.shared(self.key_of(last)?), prefix))
    }

    /// Splits the leaf of `target` if it is full, and before it the full pages above it. Returns
    /// whether the entry at `off`, which is at `target`, was inserted at once.
    #[cold]
    fn split(&self, target: &Target<'_>, off: u64) -> Result<bool> {
        let _one = self.common.splitting.lock();
        let mut page = self.page(self.common.root.load(Ordering::Acquire))?;
        if page.state().len == FANOUT {
            let root = self.free_page()?;
            let level = page.state().level + 1;
            root.put(0, 0, page.off());
            let (len, skip) = (1, 0);
            root.set_state(State { len, level, skip });
            // Before the old root is split: from then on, it has not all entries.
            self.common.root.store(root.off(), Ordering::Release);
            page = root;
        }
        // BOUND: each iteration descends a level.
        loop {
            let state = page.state();
            if state.level == 0 {
                // It was split meanwhile.
                return Ok(false);
            }
            // Inner pages change only under the lock.
            let at = self.count_before(page, state, target, Side::After)? - 1;
            let below = self.page(page.node(at))?;
            if below.state().len < FANOUT {
                page = below;
                continue;
            }
            page.lock();
            below.lock();
            let done = self.split_held(page, below, target, off);
            below.unlock();
            page.unlock();
            match done? {
                None => return Ok(true),
                Some(right) => {
                    let low = Node::read(self.region(), right.low)?;
                    page = match low.compare(target) {
                        Order::Greater => below,
                        Order::Less | Order::Equal => self.page(right.off)?,
                    };
                }
            }
        }
    }

    /// Splits a full page below another; both are locked. Returns the new page, or `None` if that
    /// has the entry at `off`.
    fn split_held(
        &self,
        above: Page<'_>,
        page: Page<'_>,
        target: &Target<'_>,
        off: u64,
    ) -> Result<Option<Right>> {
        let state = page.state();
        let right = self.free_page()?;
        // Ascending keys fill pages.
        let last = self.begin(page, state.level, FANOUT - 1)?;
        let is_end =
            page.high() == 0 && Node::read(self.region(), last)?.compare(target) == Order::Less;
        let keep = match (is_end, state.level) {
            (false, _) => FANOUT / 2,
            (true, 0) => FANOUT,
            (true, _) => FANOUT - 1,
        };
        let (low, inserted) = match keep == FANOUT {
            true => (off, true),
            false => (self.begin(page, state.level, keep)?, false),
        };
        right.set_low(low);
        right.set_high(page.high());
        right.set_next(page.next());
        right.set_prefix(page.prefix());
        let mut len = 0;
        if inserted {
            // Its leaf may have another prefix.
            right.put(0, Full::of(target).front(0), off);
            right.set_prefix(off);
            len = 1;
        }
        for at in keep..FANOUT {
            right.put(len, page.front(at), page.node(at));
            len += 1;
        }
        let skip = if inserted { 0 } else { state.skip };
        right.set_state(State { len, skip, ..state });
        self.prove(right)?;
        self.skip_more(right)?;
        // Both pages are locked, so no search follows them before the split is complete.
        let begin = Node::read(self.region(), low)?.target();
        self.insert_held(above, &begin, low, right.off())?;
        page.set_next(right.off());
        page.set_high(low);
        page.set_state(State { len: keep, ..state });
        self.prove(page)?;
        self.skip_more(page)?;
        let right = Right {
            off: right.off(),
            low,
        };
        Ok((!inserted).then_some(right))
    }

    /// Spares searches the comparison with the prefix of a page, if T1 makes it needless.
    fn prove(&self, page: Page<'_>) -> Result<(), DecodeError> {
        let (low, high) = (page.low(), page.high());
        if page.prefix() != 0 && low != 0 && high != 0 {
            let shared = self.key_of(low)?.shared(self.key_of(high)?);
            if page.state().skip <= shared {
                page.set_prefix(0);
            }
        }
        Ok(())
    }

    /// Returns entries in key order.
    fn sorted(&self, entries: Vec<u64>) -> Result<Vec<u64>, DecodeError> {
        let Some(first) = entries.first() else {
            return Ok(Vec::new());
        };
        // The bytes after those that all share tell most entries apart, and those that they do not
        // are read out of order.
        let first = self.key_of(*first)?;
        let mut skip = usize::MAX;
        for entry in &entries {
            skip = skip.min(self.key_of(*entry)?.shared(first));
        }
        let mut heads: Vec<(u128, u64)> = Vec::with_capacity(entries.len());
        for entry in &entries {
            let key = self.key_of(*entry)?;
            let (head, rest) = (key.front(skip), key.front(skip + 8));
            heads.push((u128::from(head) << 64 | u128::from(rest), *entry));
        }
        drop(entries);
        let mut failed = None;
        heads.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| {
                let nodes = [a.1, b.1].map(|off| Node::read(self.region(), off));
                match nodes {
                    [Ok(a), Ok(b)] => a.compare(&b.target()),
                    [Err(e), _] | [_, Err(e)] => {
                        failed = Some(e);
                        Order::Equal
                    }
                }
            })
        });
        match failed {
            Some(e) => Err(e),
            None => Ok(heads.into_iter().map(|(_, entry)| entry).collect()),
        }
    }

    /// Fills an empty tree that no other thread uses yet. Sorting the entries costs a fraction of
    /// inserting them one by one, which would miss the caches several times for each.
    pub(crate) fn build(&self, entries: Vec<u64>) -> Result<()> {
        let mut lows: Vec<u64> = Vec::new();
        let mut nodes = self.sorted(entries)?;
        let mut level = 0;
        // BOUND: each level has a fraction of the nodes of the one below.
        loop {
            let (mut pages, mut page_lows): (Vec<u64>, Vec<u64>) = Default::default();
            let groups = nodes.len().div_ceil(FANOUT).max(1);
            for group in 0..groups {
                let from = group * nodes.len() / groups;
                let to = (group + 1) * nodes.len() / groups;
                // The page that the tree began with becomes the first leaf.
                let page = match (level, group) {
                    (0, 0) => self.page(self.common.root.load(Ordering::Relaxed))?,
                    _ => self.free_page()?,
                };
                let begin = |at: usize| match level {
                    0 => nodes.get(at).copied().unwrap_or(0),
                    _ => lows.get(at).copied().unwrap_or(0),
                };
                page.set_low(if group == 0 { 0 } else { begin(from) });
                page.set_high(begin(to));
                for (at, node) in nodes[from..to].iter().enumerate() {
                    page.put(at, 0, *node);
                }
                let len = to - from;
                page.set_state(State {
                    len,
                    level,
                    skip: 0,
                });
                if let (0, Some(before)) = (level, pages.last()) {
                    self.page(*before)?.set_next(page.off());
                }
                pages.push(page.off());
                page_lows.push(page.low());
                for ahead in to..nodes.len().min(to + FANOUT) {
                    self.region().prefetch(begin(ahead));
                }
                self.finish(page)?;
            }
            if let [root] = pages[..] {
                self.common.root.store(root, Ordering::Release);
                return Ok(());
            }
            (nodes, lows) = (pages, page_lows);
            level += 1;
        }
    }

    /// Finds what the keys of a page of a new tree share, and makes its fronts.
    fn finish(&self, page: Page<'_>) -> Result<(), DecodeError> {
        let state = page.state();
        if state.len <= usize::from(state.level > 0) {
            return Ok(());
        }
        let (shared, prefix) = self.shared(page, state)?;
        page.set_prefix(prefix);
        self.set_skip(page, shared)?;
        Ok(())
    }
}
