//! Searches, which take no lock.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

use super::Tree;
use super::page::{FANOUT, Full, Page, State};
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;
use crate::parts::skiplist::Node;

/// The side of a target on which a search ends, if the target is where two pages meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// In the page that begins there.
    After,
    /// In the page that ends there.
    Before,
}

/// Consecutive entries of one leaf, as they were at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    entries: [u64; FANOUT],
    from: usize,
    to: usize,
    /// The leaf after them.
    next: u64,
}

impl Default for Stretch {
    fn default() -> Stretch {
        Stretch {
            entries: [0; FANOUT],
            from: 0,
            to: 0,
            next: 0,
        }
    }
}

impl Stretch {
    /// Returns the entry `ahead` entries after the first, if the leaf has it.
    #[inline]
    pub(crate) fn get(&self, ahead: usize) -> Option<u64> {
        self.entries[..self.to].get(self.from + ahead).copied()
    }

    /// Leaves out the first entry.
    #[inline]
    pub(crate) fn pop(&mut self) {
        self.from = (self.from + 1).min(self.to);
    }
}

/// A page and the version under which it was found to have a place.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    pub(super) page: Page<'a>,
    pub(super) version: u64,
}

impl Tree {
    /// Compares the target with what all keys of a page begin with.
    #[inline]
    pub(super) fn compare_prefix(
        &self,
        page: Page<'_>,
        skip: usize,
        target: &Target<'_>,
    ) -> Result<Order, DecodeError> {
        match page.prefix() {
            _ if skip == 0 => Ok(Order::Equal),
            0 => Ok(Order::Equal),
            prefix => Ok(Full::of(target).compare_first(self.key_of(prefix)?, skip)),
        }
    }

    /// Returns the number of nodes of a page that are before the target, or also at it if `side` is
    /// `After`. The nodes of an inner page are compared by the entries at which they begin, and the
    /// first one is before every target.
    #[inline]
    pub(super) fn count_before(
        &self,
        page: Page<'_>,
        state: State,
        target: &Target<'_>,
        side: Side,
    ) -> Result<usize, DecodeError> {
        let State { len, level, skip } = state;
        let first = usize::from(level > 0);
        match self.compare_prefix(page, skip, target)? {
            Order::Less => return Ok(first.min(len)),
            Order::Greater => return Ok(len),
            Order::Equal => {}
        }
        let (mut from, mut to) = page.equal(first, len, Full::of(target).front(skip));
        // BOUND: each iteration halves what is left.
        while from < to {
            let middle = (from + to) / 2;
            let entry = match level {
                0 => page.node(middle),
                _ => self.page(page.node(middle))?.low(),
            };
            let order = Node::read(self.region(), entry)?.compare(target);
            match order == Order::Less || order == Order::Equal && side == Side::After {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        Ok(from)
    }

    /// Finds the leaf of a target.
    #[inline]
    pub(super) fn descend(&self, target: &Target<'_>, side: Side) -> Result<Leaf<'_>, DecodeError> {
        // BOUND: each iteration follows a change of a page on the way by a writer.
        'again: loop {
            let root = self.common.root.load(Ordering::Acquire);
            let mut page = self.page(root)?;
            let mut version = page.version();
            // A root that was split is not the root any more, and has the first half only.
            if self.common.root.load(Ordering::Acquire) != root {
                continue;
            }
            // BOUND: each iteration descends a level.
            loop {
                let state = page.state();
                if state.level == 0 {
                    return Ok(Leaf { page, version });
                }
                let count = self.count_before(page, state, target, side);
                if !page.is_still(version) {
                    continue 'again;
                }
                let at = count?.saturating_sub(1);
                let below = page.node(at);
                Page::prefetch(self.region(), below);
                if state.level == 1 {
                    Page::prefetch_offs(self.region(), below);
                }
                if !page.is_still(version) {
                    continue 'again;
                }
                let below = self.page(below)?;
                let version_below = below.version();
                if !page.is_still(version) {
                    continue 'again;
                }
                (page, version) = (below, version_below);
            }
        }
    }

    /// Returns the position of a target in its leaf, and the leaf, read under one version.
    fn find<T>(
        &self,
        target: &Target<'_>,
        side: Side,
        read: &mut dyn FnMut(Page<'_>, State, usize) -> T,
    ) -> Result<T, DecodeError> {
        // BOUND: each iteration follows a change of the leaf by a writer.
        loop {
            let Leaf { page, version } = self.descend(target, side)?;
            let state = page.state();
            // Entries at the target are not before it.
            let at = self.count_before(page, state, target, Side::Before);
            if page.is_still(version) {
                let found = read(page, state, at?);
                if page.is_still(version) {
                    return Ok(found);
                }
            }
        }
    }

    /// Returns the first entry at or after a target, or 0 if there is none.
    #[inline]
    pub(crate) fn seek(&self, target: &Target<'_>) -> Result<u64, DecodeError> {
        let (entry, next) = self.find(target, Side::After, &mut |page, state, at| match at
            < state.len
        {
            true => (page.node(at), 0),
            false => (0, page.next()),
        })?;
        if entry != 0 || next == 0 {
            return Ok(entry);
        }
        Ok(self.stretch_of(next)?.get(0).unwrap_or(0))
    }

    /// Returns the entries from a target on that its leaf has, or else those of the next leaf.
    /// Empty at the end.
    #[inline]
    pub(crate) fn stretch(&self, target: &Target<'_>) -> Result<Stretch, DecodeError> {
        let found = self.find(target, Side::After, &mut |page, state, at| {
            read_stretch(page, state, at)
        })?;
        match found.get(0) {
            Some(_) => Ok(found),
            None => self.stretch_after(&found),
        }
    }

    /// Returns the entries of the leaf after a stretch.
    pub(crate) fn stretch_after(&self, stretch: &Stretch) -> Result<Stretch, DecodeError> {
        match stretch.next {
            0 => Ok(Stretch::default()),
            next => self.stretch_of(next),
        }
    }

    /// Returns the entries of a leaf. Only an empty tree has a leaf without any.
    fn stretch_of(&self, leaf: u64) -> Result<Stretch, DecodeError> {
        let page = self.page(leaf)?;
        // BOUND: each iteration follows a change of the leaf by a writer.
        loop {
            let version = page.version();
            let found = read_stretch(page, page.state(), 0);
            if page.is_still(version) {
                return Ok(found);
            }
        }
    }

    /// Prefetches the leaf after a stretch.
    #[inline]
    pub(crate) fn prefetch_after(&self, stretch: &Stretch) {
        if stretch.next != 0 {
            self.region().prefetch(stretch.next);
            Page::prefetch_offs(self.region(), stretch.next);
        }
    }

    /// Returns the entry `back` entries before a target, or 0 if there are not so many. Costs a
    /// search for each leaf that is passed.
    pub(crate) fn seek_before(&self, target: &Target<'_>, back: u64) -> Result<u64, DecodeError> {
        let mut back = back.max(1);
        let mut passed = 0;
        // BOUND: each iteration passes a leaf, or follows a change of one by a writer.
        loop {
            let target = match passed {
                0 => *target,
                entry => Node::read(self.region(), entry)?.target(),
            };
            let Leaf { page, version } = self.descend(&target, Side::Before)?;
            let count = self.count_before(page, page.state(), &target, Side::Before);
            let found = match &count {
                Ok(count) if (*count as u64) >= back => page.node(count - back as usize),
                _ => 0,
            };
            let low = page.low();
            if !page.is_still(version) {
                continue;
            }
            let count = count? as u64;
            if count >= back || low == 0 {
                return Ok(found);
            }
            back -= count;
            passed = low;
        }
    }

    /// Estimates the share of all entries that is before a target, from 0 to 1.
    pub(super) fn share_before(&self, target: &Target<'_>) -> Result<f64, DecodeError> {
        let _inner_pages_stay = self.common.splitting.lock();
        let mut page = self.page(self.common.root.load(Ordering::Acquire))?;
        let (mut part, mut width) = (0.0, 1.0);
        // BOUND: each iteration descends a level.
        loop {
            let state = page.state();
            let count = self.count_before(page, state, target, Side::Before)?;
            if state.level == 0 {
                part += width * count as f64 / state.len.max(1) as f64;
                return Ok(f64::min(part, 1.0));
            }
            let at = count.saturating_sub(1);
            let lens = (0..state.len).map(|at| Ok(self.page(page.node(at))?.state().len));
            let lens = lens.collect::<Result<Vec<usize>, DecodeError>>()?;
            let all = lens.iter().sum::<usize>().max(1) as f64;
            part += width * lens[..at].iter().sum::<usize>() as f64 / all;
            width *= lens[at] as f64 / all;
            page = self.page(page.node(at))?;
        }
    }

    /// Returns entries with about as many others between any two: those at which pages begin, on
    /// the highest level with `count` pages, or of all leaves.
    pub(crate) fn spread(&self, count: usize) -> Result<Vec<u64>, DecodeError> {
        let _inner_pages_stay = self.common.splitting.lock();
        let mut pages = vec![self.page(self.common.root.load(Ordering::Acquire))?];
        // BOUND: each iteration descends a level.
        while pages.len() < count && pages.iter().all(|page| page.state().level > 0) {
            let below = pages.iter().flat_map(|page| {
                let nodes = 0..page.state().len;
                nodes.map(|at| self.page(page.node(at)))
            });
            pages = below.collect::<Result<_, _>>()?;
        }
        let lows = pages.iter().map(|page| page.low());
        Ok(lows.filter(|low| *low != 0).collect())
    }
}

#[inline]
fn read_stretch(page: Page<'_>, state: State, from: usize) -> Stretch {
    let mut found = Stretch {
        from,
        to: state.len,
        next: page.next(),
        ..Stretch::default()
    };
    for at in from..state.len {
        found.entries[at] = page.node(at);
    }
    found
}
