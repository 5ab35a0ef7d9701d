//! Segments: places of records, in files or in the pool, that others point into.
//!
//! ```text
//! filled by one writer --> sealed, named by an edit --> read by address --> collected --> freed
//! ```
//!
//! Each format fills, seals and reads its own segments: `parts/values` files of values, `parts/log`
//! logs whose values stay in them. This part counts the live records of a segment, chooses segments
//! to collect, and frees their space.
//!
//! Tables and indexes that point into segments record the number of each and the bytes of records
//! they point to. So the live bytes of a segment follow from them alone, whether one table owns it
//! or many share it. Live bytes only choose what is collected: a read trusts an address in a live
//! table or index.
//!
//! Invariants
//!   S1  The space of a segment is free once the manifest has forgotten it and no version, table
//!       or index holds it. A reader by address holds the segment.
//!   S2  A segment is forgotten only if no live table or index points into it.
//!
//! CRASH: opening the database frees space that no edit names, and forgets segments again into
//! which nothing points.

mod held;
#[cfg(test)]
mod tests;

pub(crate) use held::{Held, Space};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::canary::{self, Canary};

/// Sealed space with records.
pub(crate) trait Segment: Space {
    /// Returns the number that the manifest and addresses have for it. None is used again.
    fn number(&self) -> u64;

    /// Returns the bytes of the space.
    fn bytes(&self) -> u64;

    /// Returns the bytes of all records.
    fn record_bytes(&self) -> u64;
}

/// Numbers of segments, and the bytes of the records in each to which a table or an index points.
pub(crate) type Pointed = [(u64, u64)];

/// BOUND: the segments beyond four times as many as their bytes need, before small ones are joined.
/// One is small below this part of the full size.
const SPARE: u64 = 64;
const SMALL_PART: u64 = 4;

/// A segment and how much of it is live.
struct Counted<S: Segment> {
    held: Arc<Held<S>>,
    /// The bytes of the records that are pointed to.
    live: u64,
}

impl<S: Segment> Clone for Counted<S> {
    fn clone(&self) -> Self {
        Counted {
            held: Arc::clone(&self.held),
            live: self.live,
        }
    }
}

impl<S: Segment> Counted<S> {
    /// Returns the bytes of all records.
    fn all(&self) -> u64 {
        self.held.record_bytes().max(self.live)
    }

    fn garbage(&self) -> u64 {
        self.all() - self.live
    }

    /// Returns the share of garbage.
    fn share(&self) -> f64 {
        self.garbage() as f64 / self.all().max(1) as f64
    }
}

/// The segments of one version, by number. It never changes.
pub(crate) struct Segments<S: Segment> {
    all: BTreeMap<u64, Counted<S>>,
    /// The bytes of all segments, and of the records that are pointed to: each query of the
    /// pressure reads them.
    bytes: u64,
    live: u64,
    /// The bytes of records in segments that are not wholly garbage.
    kept: u64,
}

impl<S: Segment> Default for Segments<S> {
    fn default() -> Self {
        Segments::of(BTreeMap::new())
    }
}

impl<S: Segment> Segments<S> {
    fn of(all: BTreeMap<u64, Counted<S>>) -> Segments<S> {
        let kept = all.values().filter(|segment| segment.live > 0);
        Segments {
            bytes: all.values().map(|segment| segment.held.bytes()).sum(),
            live: all.values().map(|segment| segment.live).sum(),
            kept: kept.map(Counted::all).sum(),
            all,
        }
    }

    /// Returns the segments with new ones, and with other tables or indexes that point into them.
    pub(crate) fn edited<'a>(
        self: &Arc<Self>,
        removed: impl Iterator<Item = &'a Pointed>,
        added: impl Iterator<Item = &'a Pointed>,
        new: &[Arc<Held<S>>],
    ) -> Arc<Segments<S>> {
        if self.all.is_empty() && new.is_empty() {
            return Arc::clone(self);
        }
        let mut all = self.all.clone();
        for held in new {
            let held = Arc::clone(held);
            all.insert(held.number(), Counted { held, live: 0 });
        }
        for (number, bytes) in added.flatten() {
            if let Some(segment) = all.get_mut(number) {
                segment.live += bytes;
            }
        }
        for (number, bytes) in removed.flatten() {
            if let Some(segment) = all.get_mut(number) {
                segment.live = segment.live.saturating_sub(*bytes);
            }
        }
        Arc::new(Segments::of(all))
    }

    /// Returns the segments without some.
    pub(crate) fn without(&self, numbers: &[u64]) -> Arc<Segments<S>> {
        let all = self.all.iter();
        let kept = all.filter(|(number, _)| !numbers.contains(number));
        let kept = kept.map(|(number, segment)| (*number, segment.clone()));
        Arc::new(Segments::of(kept.collect()))
    }

    /// Returns the segment with this number.
    pub(crate) fn get(&self, number: u64) -> Option<&Arc<Held<S>>> {
        self.all.get(&number).map(|segment| &segment.held)
    }

    /// Returns the number of segments, the bytes of all, and those that are live.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        (self.all.len() as u64, self.bytes, self.live)
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the garbage in segments that are not wholly garbage, and the live bytes.
    pub(crate) fn garbage(&self) -> (u64, u64) {
        (self.kept - self.live, self.live)
    }

    /// Returns the segments to collect: those of which at least half is garbage, and if garbage is
    /// due the one with the largest share.
    pub(crate) fn to_collect(&self, is_due: bool) -> BTreeSet<u64> {
        let half = self.all.iter().filter(|(_, it)| it.share() >= 0.5);
        let mut chosen: BTreeSet<u64> = half.map(|(number, _)| *number).collect();
        if is_due {
            let with = self.all.iter();
            let with = with.filter(|(_, it)| it.live > 0 && it.garbage() > 0);
            let most = with.max_by(|a, b| a.1.share().total_cmp(&b.1.share()));
            chosen.extend(most.map(|(number, _)| *number));
        }
        chosen
    }

    /// Returns the one of these segments that has most garbage, of those whose live bytes fit.
    pub(crate) fn one_of(
        &self,
        numbers: &BTreeSet<u64>,
        fits: impl Fn(u64, u64) -> bool,
    ) -> Option<u64> {
        let fitting = self.all.iter().filter(|(number, segment)| {
            numbers.contains(number) && segment.live > 0 && fits(**number, segment.live)
        });
        let most = fitting.max_by_key(|(_, segment)| segment.garbage());
        most.map(|(number, _)| *number)
    }

    /// Returns the segments that are small, and the bytes of each, if there are many more than
    /// their bytes need.
    pub(crate) fn small(&self, full_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let needed = self.bytes / full_bytes.max(1);
        let too_many = self.all.len() as u64 > SPARE + 4 * needed;
        let all = self
            .all
            .iter()
            .map(|(number, it)| (*number, it.held.bytes()));
        all.filter(move |(_, bytes)| too_many && *bytes < full_bytes / SMALL_PART)
    }

    /// Returns the segments into which nothing points.
    pub(crate) fn dead(&self) -> Vec<u64> {
        let early = canary::breaks(Canary::ValuesForgotten);
        let is_dead = |it: &Counted<S>| it.live == 0 || early && it.live < it.all() / 2;
        let dead = self.all.iter().filter(|(_, segment)| is_dead(segment));
        dead.map(|(number, _)| *number).collect()
    }
}
