//! The merge of the cursors of several sources into one order.
//!
//! Cursors are kept sorted by their entries. Neighbouring keys mostly come from one source, so
//! after an advance the first cursor usually stays first, and one comparison confirms it. The key
//! prefixes that decide most comparisons are cached here, because the entries are scattered in
//! memory and may have left the processor's caches.

use std::cmp::Ordering as Order;

use super::{Cursor, EntryView, Stored};
use crate::error::Result;
use crate::parts::expiry::Value;
use crate::parts::key::{Target, compare_keys, key_front};
use crate::parts::ranges::Newer;
use crate::types::SeqNo;

/// Up to this many sources are searched one after the other, because a single search prefetches
/// further ahead.
const ALONE_MAX: usize = 2;

/// The union of several sources. An entry that is being copied between two sources may be returned
/// once from each. Readers fold the versions of a key anyway.
pub(crate) struct MergeCursor<C: Cursor + ?Sized = dyn Cursor> {
    /// The cursors, newest source first, which is the order in which latches are taken.
    cursors: Vec<Box<C>>,
    /// The prefix of each cursor's entry.
    heads: Vec<Head>,
    /// The indexes of the cursors that have an entry, in ascending order of the entries.
    order: Vec<usize>,
}

/// The prefix of an entry's sort key.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    keyspace: u32,
    /// The first bytes of the key, then zeros.
    key: u128,
}

impl Head {
    #[inline]
    fn of(entry: &EntryView<'_>) -> Head {
        let (front, rest) = entry.key.split_at(entry.key.len().min(8));
        let key = u128::from(key_front(front)) << 64 | u128::from(key_front(rest));
        Head {
            keyspace: entry.keyspace,
            key,
        }
    }
}

fn compare(a: &EntryView<'_>, b: &EntryView<'_>) -> Order {
    a.keyspace
        .cmp(&b.keyspace)
        .then_with(|| compare_keys(a.key, b.key))
        .then_with(|| b.seq.cmp(&a.seq))
}

impl<C: Cursor + ?Sized> MergeCursor<C> {
    /// Creates an unpositioned cursor over `cursors`, newest source first.
    pub(crate) fn new(cursors: Vec<Box<C>>) -> MergeCursor<C> {
        MergeCursor {
            heads: vec![Head::default(); cursors.len()],
            order: Vec::with_capacity(cursors.len()),
            cursors,
        }
    }

    /// Holds every source. Returns false if a position is lost.
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

    /// Moves to the first entry at or after `target`.
    pub(crate) fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        self.order.clear();
        match self.cursors.len() > ALONE_MAX {
            true => self.seek_by_turns(target)?,
            false => {
                for cursor in &mut self.cursors {
                    cursor.seek(target)?;
                }
            }
        }
        for index in 0..self.cursors.len() {
            self.place(index)?;
        }
        Ok(())
    }

    /// Moves each cursor by `place`, which gets its number, instead of a search.
    pub(crate) fn place_each(&mut self, place: impl Fn(usize, &mut C)) -> Result<()> {
        self.order.clear();
        for index in 0..self.cursors.len() {
            place(index, &mut self.cursors[index]);
            self.place(index)?;
        }
        Ok(())
    }

    /// Returns the first key, or the last if `last`, between two places of one keyspace that may
    /// have a version newer than `than` in any source.
    pub(crate) fn newer(
        &self,
        from: &Target<'_>,
        to: &Target<'_>,
        than: SeqNo,
        last: bool,
    ) -> Newer {
        let mut all = Newer::No;
        for cursor in &self.cursors {
            all = match (all, cursor.newer(from, to, than, last)) {
                (Newer::Unknown, _) | (_, Newer::Unknown) => return Newer::Unknown,
                (Newer::No, other) | (other, Newer::No) => other,
                (Newer::Key(one), Newer::Key(other)) if last => Newer::Key(one.max(other)),
                (Newer::Key(one), Newer::Key(other)) => Newer::Key(one.min(other)),
            };
        }
        all
    }

    /// Interleaves the searches of all sources, so that the cache misses of one overlap with the
    /// comparisons of others.
    fn seek_by_turns(&mut self, target: &Target<'_>) -> Result<()> {
        // Reuses the memory of `order`, which is rebuilt after the search.
        let mut on_their_way = std::mem::take(&mut self.order);
        for (index, cursor) in self.cursors.iter_mut().enumerate() {
            if !cursor.begin_seek(target)? {
                on_their_way.push(index);
            }
        }
        // BOUND: every search ends after a bounded number of steps or returns an error.
        while !on_their_way.is_empty() {
            let mut failed = Ok(());
            on_their_way.retain(|&index| match self.cursors[index].step_seek(target) {
                Ok(there) => !there,
                Err(e) => {
                    failed = Err(e);
                    false
                }
            });
            failed?;
        }
        self.order = on_their_way;
        Ok(())
    }

    /// Skips entries before `end` that are not newer than `than`, the number of a range delete that
    /// covers them. A source that knows that it contains nothing newer skips all of them at once,
    /// others only some. Skips at least the current entry. Returns the number of steps.
    pub(crate) fn pass(&mut self, end: &Target<'_>, than: SeqNo) -> Result<usize> {
        let mut steps = 0;
        self.order.clear();
        for index in 0..self.cursors.len() {
            steps += pass_in(&mut *self.cursors[index], end, than)?;
            self.place(index)?;
        }
        Ok(steps)
    }

    /// Returns the keyspace and key of the last of the places before `target` that
    /// `Cursor::seek_before` finds in the sources, or `None` if no source has enough entries there.
    /// `cover` is the start of a stretch up to the target that a range delete covers, and its
    /// number.
    pub(crate) fn place_before(
        &mut self,
        target: &Target<'_>,
        breadth: usize,
        cover: Option<(&Target<'_>, SeqNo)>,
    ) -> Result<Option<(u32, Vec<u8>)>> {
        let mut last: Option<(u32, Vec<u8>)> = None;
        for cursor in &mut self.cursors {
            // Places covered by the range delete are not worth finding.
            let newer = cover.map(|(from, than)| (from, cursor.newer(from, target, than, true)));
            match &newer {
                Some((from, Newer::No)) => cursor.seek_before(from, breadth)?,
                Some((from, Newer::Key(key))) => {
                    // After all versions of that key.
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

    /// Inserts cursor `index`, which must not be in the order, into the order.
    fn place(&mut self, index: usize) -> Result<()> {
        let Some(entry) = self.cursors[index].entry()? else {
            return Ok(());
        };
        let head = Head::of(&entry);
        self.heads[index] = head;
        let precedes = |at: usize| -> Result<bool> {
            let other = self.order[at];
            match head.cmp(&self.heads[other]) {
                Order::Less => Ok(true),
                Order::Greater => Ok(false),
                Order::Equal => {
                    let other = self.cursors[other].entry()?;
                    Ok(other.is_none_or(|other| compare(&entry, &other) == Order::Less))
                }
            }
        };
        // The cursor usually stays first.
        let (mut low, mut high) = match self.order.is_empty() || precedes(0)? {
            true => (0, 0),
            false => (1, self.order.len()),
        };
        // BOUND: the range halves.
        while low < high {
            let middle = low + (high - low) / 2;
            match precedes(middle)? {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        self.order.insert(low, index);
        Ok(())
    }

    /// Moves to the next entry.
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
        self.place(first)
    }

    /// Returns the current entry, or `None` at the end.
    #[inline]
    pub(crate) fn entry(&self) -> Result<Option<EntryView<'_>>> {
        match self.order.first() {
            Some(&first) => self.cursors[first].entry(),
            None => Ok(None),
        }
    }

    /// Returns the value of the current entry and its expiry.
    #[inline]
    pub(crate) fn value(&self) -> Result<Value<'_>> {
        match self.order.first() {
            Some(&first) => self.cursors[first].value(),
            None => Ok(Value::default()),
        }
    }

    /// Returns the same for a job that can move an entry without its value.
    #[inline]
    pub(crate) fn stored(&self) -> Result<Stored<'_>> {
        match self.order.first() {
            Some(&first) => self.cursors[first].stored(),
            None => Ok(Stored::Inline(Value::default())),
        }
    }
}

/// The maximum number of entries to skip at once in a source that does not know its ages.
const STEPS: usize = 16;

/// Skips covered entries in one cursor and returns the number of steps.
fn pass_in<C: Cursor + ?Sized>(cursor: &mut C, end: &Target<'_>, than: SeqNo) -> Result<usize> {
    for step in 0..STEPS {
        let Some(entry) = cursor.entry()? else {
            return Ok(step);
        };
        let place = (end.keyspace, end.key);
        let inside = match (entry.keyspace, entry.key).cmp(&place) {
            Order::Less => true,
            // The end may be after some versions of its key.
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
            // The current entry is an older version of that key.
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
