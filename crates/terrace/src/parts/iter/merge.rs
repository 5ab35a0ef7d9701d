//! This file merges the cursors of several sources into one order.
//!
//! Cursors are kept sorted by their entry. Neighbouring keys mostly come from one source, so after a
//! step the first cursor is usually still the first and one comparison shows it.

use std::cmp::Ordering as Order;

use super::{Cursor, EntryView};
use crate::error::Result;
use crate::parts::expiry::Millis;
use crate::parts::ranges::Newer;
use crate::parts::skiplist::Target;
use crate::parts::skiplist::node::compare_keys;
use crate::types::SeqNo;

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

    /// Goes past entries before `end` that are not newer than `than`, which a range delete with that
    /// number covers: at once past all of them where a source knows that it has nothing newer, else past some.
    /// At least the entry under the cursor is passed. Returns how many steps that took.
    pub(crate) fn pass(&mut self, end: &Target<'_>, than: SeqNo) -> Result<usize> {
        let mut steps = 0;
        self.order.clear();
        for index in 0..self.cursors.len() {
            steps += pass_in(&mut *self.cursors[index], end, than)?;
            self.place(index, 0)?;
        }
        Ok(steps)
    }

    /// Of the places before `target` that `Cursor::seek_before` gives in each source, the last: its
    /// keyspace and key. `None` when no source has so many entries there. `cover`: where a stretch
    /// up to the target begins that a range delete covers, and its number.
    pub(crate) fn place_before(
        &mut self,
        target: &Target<'_>,
        breadth: usize,
        cover: Option<(&Target<'_>, SeqNo)>,
    ) -> Result<Option<(u32, Vec<u8>)>> {
        let mut last: Option<(u32, Vec<u8>)> = None;
        for cursor in &mut self.cursors {
            // What a range delete covers up to the target is no place worth finding.
            let newer = cover.map(|(from, than)| (from, cursor.newer(from, target, than, true)));
            match &newer {
                Some((from, Newer::No)) => cursor.seek_before(from, breadth)?,
                Some((from, Newer::Key(key))) => {
                    // Behind all versions of that key.
                    let behind = Target {
                        keyspace: from.keyspace,
                        key,
                        seq: 0,
                    };
                    cursor.seek_before(&behind, breadth)?;
                }
                Some((_, Newer::Unknown)) | None => cursor.seek_before(target, breadth)?,
            }
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

    /// When an expiring entry under the cursor expires.
    pub(crate) fn expiry(&self) -> Result<Millis> {
        match self.order.first() {
            Some(&first) => self.cursors[first].expiry(),
            None => Ok(0),
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

/// Entries that a source which does not know its ages is moved on by at once.
const STEPS: usize = 16;

/// Moves one cursor on; returns its steps.
fn pass_in(cursor: &mut dyn Cursor, end: &Target<'_>, than: SeqNo) -> Result<usize> {
    for step in 0..STEPS {
        let Some(entry) = cursor.entry()? else {
            return Ok(step);
        };
        let place = (end.keyspace, end.key);
        let inside = match (entry.keyspace, entry.key).cmp(&place) {
            Order::Less => true,
            // The end may lie behind some versions of its key.
            Order::Equal => entry.seq > end.seq,
            Order::Greater => false,
        };
        if !inside || entry.seq > than {
            return Ok(step);
        }
        match cursor.newer(&entry.target(), end, than, false) {
            Newer::No => {
                cursor.seek(end)?;
                return Ok(step + 1);
            }
            // The version under the cursor is an older one of that very key.
            Newer::Key(key) if key == entry.key => cursor.advance()?,
            Newer::Key(key) => {
                let keyspace = entry.keyspace;
                cursor.seek(&Target::first_of(keyspace, &key))?;
                return Ok(step + 1);
            }
            Newer::Unknown => cursor.advance()?,
        }
    }
    Ok(STEPS)
}
