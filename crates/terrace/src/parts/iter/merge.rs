//! This file merges the cursors of several sources into one order.
//!
//! Cursors are kept sorted by their entry. Neighbouring keys mostly come from one source, so after a
//! step the first cursor is usually still the first and one comparison shows it.

use std::cmp::Ordering as Order;

use super::{Cursor, EntryView};
use crate::error::Result;
use crate::parts::skiplist::Target;
use crate::parts::skiplist::node::compare_keys;

/// The union of several sources. An entry that two sources have at one moment, because it is being
/// copied from one to the other, comes once from each; readers fold versions of a key anyway.
pub(crate) struct MergeCursor {
    /// Newest source first: the order in which gates are taken.
    cursors: Vec<Box<dyn Cursor>>,
    /// Indexes of the cursors that have an entry, ascending by it.
    order: Vec<usize>,
}

fn compare(a: &EntryView<'_>, b: &EntryView<'_>) -> Order {
    a.keyspace
        .cmp(&b.keyspace)
        .then_with(|| compare_keys(a.key, b.key))
        .then_with(|| b.seq.cmp(&a.seq))
}

impl MergeCursor {
    /// A cursor over `cursors`, newest source first, off all of them.
    pub(crate) fn new(cursors: Vec<Box<dyn Cursor>>) -> MergeCursor {
        let order = Vec::with_capacity(cursors.len());
        MergeCursor { cursors, order }
    }

    /// Holds every source; false when any position is lost.
    pub(crate) fn hold(&mut self) -> bool {
        let mut same = true;
        for cursor in &mut self.cursors {
            same &= cursor.hold();
        }
        same
    }

    /// Releases every source.
    pub(crate) fn release(&mut self) {
        for cursor in &mut self.cursors {
            cursor.release();
        }
    }

    /// Goes to the first entry not before `target`.
    pub(crate) fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        self.order.clear();
        for index in 0..self.cursors.len() {
            self.cursors[index].seek(target)?;
            self.place(index, 0)?;
        }
        Ok(())
    }

    /// Of the places before `target` that `Cursor::seek_before` gives in each source, the last: its
    /// keyspace and key. `None` when no source has so many entries there.
    pub(crate) fn place_before(
        &mut self,
        target: &Target<'_>,
        breadth: usize,
    ) -> Result<Option<(u32, Vec<u8>)>> {
        let mut last: Option<(u32, Vec<u8>)> = None;
        for cursor in &mut self.cursors {
            cursor.seek_before(target, breadth)?;
            let Some(entry) = cursor.entry()? else {
                continue;
            };
            let place = (entry.keyspace, entry.key);
            if last
                .as_ref()
                .is_none_or(|(keyspace, key)| place > (*keyspace, key.as_slice()))
            {
                last = Some((entry.keyspace, entry.key.to_vec()));
            }
        }
        Ok(last)
    }

    /// Puts cursor `index` into the order, looking from `from` on.
    fn place(&mut self, index: usize, from: usize) -> Result<()> {
        let Some(entry) = self.cursors[index].entry()? else {
            return Ok(());
        };
        let mut at = from;
        while at < self.order.len() {
            let other = self.cursors[self.order[at]].entry()?;
            if other.is_none_or(|other| compare(&entry, &other) == Order::Less) {
                break;
            }
            at += 1;
        }
        self.order.insert(at, index);
        Ok(())
    }

    /// Goes to the next entry.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<()> {
        let Some(&first) = self.order.first() else {
            return Ok(());
        };
        self.cursors[first].advance()?;
        if self.order.len() == 1 {
            if self.cursors[first].entry()?.is_none() {
                self.order.clear();
            }
            return Ok(());
        }
        self.order.remove(0);
        self.place(first, 0)
    }

    /// The entry under the cursor, `None` at the end.
    #[inline]
    pub(crate) fn entry(&self) -> Result<Option<EntryView<'_>>> {
        match self.order.first() {
            Some(&first) => self.cursors[first].entry(),
            None => Ok(None),
        }
    }

    /// The value of the entry under the cursor.
    #[inline]
    pub(crate) fn value(&self) -> Result<&[u8]> {
        match self.order.first() {
            Some(&first) => self.cursors[first].value(),
            None => Ok(&[]),
        }
    }
}
