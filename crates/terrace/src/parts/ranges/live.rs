//! The range deletes of a database that have not reached its bottom.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::fragment::{Keep, RangeDelete, Readable};
use super::set::{Fragments, Key, Last, RangeSet};
use crate::canary::failpoint;
use crate::parts::snapshots::Stripes;
use crate::types::SeqNo;

/// Fragments of decreasing size, each more than twice the next: adding a range costs the logarithm
/// of their number on average, and a read costs as many binary searches.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<Arc<Fragments>>);

impl Runs {
    pub(super) fn add(&mut self, ranges: Vec<RangeDelete>, keep: Keep<'_>) {
        self.0.push(Arc::new(Fragments::new(ranges, keep)));
        // BOUND: each iteration leaves one run less.
        while let [.., older, newer] = self.0.as_slice() {
            if older.len() > 2 * newer.len() {
                break;
            }
            let both = Fragments::new(older.ranges().chain(newer.ranges()).collect(), keep);
            self.0.truncate(self.0.len() - 2);
            self.0.push(Arc::new(both));
        }
    }

    fn retain(&mut self, wanted: impl Fn(&RangeDelete) -> bool, keep: Keep<'_>) {
        let all = self.0.iter().flat_map(|run| run.ranges());
        let kept: Vec<RangeDelete> = all.filter(wanted).collect();
        self.0.clear();
        if !kept.is_empty() {
            self.0.push(Arc::new(Fragments::new(kept, keep)));
        }
    }

    pub(super) fn set(&self) -> RangeSet {
        RangeSet::of(self.0.clone())
    }
}

/// The range deletes of memtables and of the buffer.
#[derive(Default)]
pub(crate) struct LiveRanges(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    runs: Runs,
    /// The tokens for the views that precede these range deletes.
    tokens: Vec<Arc<()>>,
    /// Range deletes that a view may lack as long as the token, which such views hold, is alive.
    unseen: Vec<(SeqNo, Weak<()>)>,
    /// The newest range delete so far.
    newest: SeqNo,
    /// The value of `newest` when the logs were last checked for range deletes.
    looked: SeqNo,
    /// Range deletes up to this one are durable, at least in synced logs.
    synced: SeqNo,
    /// The oldest range delete that is in no log.
    unlogged: Option<SeqNo>,
}

impl LiveRanges {
    /// Adds range deletes, which no reader may see before a view with them is installed.
    pub(crate) fn add(&self, ranges: Vec<RangeDelete>, readable: &Readable, logged: bool) {
        let Some(least) = ranges.iter().map(|range| range.seq).min() else {
            return;
        };
        let newest = ranges.iter().map(|range| range.seq).max();
        let mut inner = self.0.lock();
        inner.newest = inner.newest.max(newest.unwrap_or(least));
        if !logged {
            inner.unlogged = Some(inner.unlogged.map_or(least, |seq| seq.min(least)));
        }
        inner.runs.add(ranges, Keep::Readable(readable));
        let token = Arc::new(());
        inner.unseen.retain(|(_, token)| token.strong_count() > 0);
        inner.unseen.push((least, Arc::downgrade(&token)));
        inner.tokens.push(token);
    }

    /// Takes the tokens that a view being installed must hand to the view before it. They are
    /// dropped with that view and all earlier ones. Must be called before `set`.
    pub(crate) fn take_tokens(&self) -> Vec<Arc<()>> {
        std::mem::take(&mut self.0.lock().tokens)
    }

    /// Returns the memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.lock().runs.0.iter().map(|run| run.bytes()).sum()
    }

    /// Returns the range deletes for a view, or `None` if there are none. The bottom is asked last,
    /// so that a range delete that a drain moves is in at least one of the two.
    pub(crate) fn set_above(
        &self,
        bottom: impl FnOnce() -> Option<Arc<Fragments>>,
    ) -> Option<Arc<RangeSet>> {
        let mut runs = self.0.lock().runs.0.clone();
        runs.extend(bottom());
        (!runs.is_empty()).then(|| Arc::new(RangeSet::of(runs)))
    }

    /// Returns whether range deletes were added since the last call, so that the logs must be
    /// checked.
    pub(crate) fn look(&self) -> bool {
        let mut inner = self.0.lock();
        let due = !inner.runs.0.is_empty() && inner.newest > inner.looked;
        inner.looked = inner.newest;
        due
    }

    /// Requests another check of the logs for all range deletes that are not durable.
    pub(crate) fn look_again(&self) {
        let mut inner = self.0.lock();
        if inner.synced < inner.newest {
            inner.looked = inner.looked.min(inner.synced);
        }
    }

    /// Notes that all logs up to a number are synced. Those of range deletes that were not visible
    /// yet are to be checked again.
    pub(crate) fn mark_synced(&self, upto: SeqNo) {
        let mut inner = self.0.lock();
        inner.synced = inner.synced.max(upto);
        inner.looked = inner.looked.min(inner.synced);
    }

    /// Returns the number up to which every range delete is in a synced log, so that a job may act
    /// on it before it is in a table.
    pub(crate) fn durable(&self) -> SeqNo {
        let inner = self.0.lock();
        let unlogged = inner
            .unlogged
            .map_or(SeqNo::MAX, |seq| seq.saturating_sub(1));
        inner.synced.min(unlogged)
    }

    /// Removes the range deletes up to a number: they are in the bottom, and nothing above it is as
    /// old.
    pub(crate) fn trim(&self, upto: SeqNo, readable: &Readable) {
        let mut inner = self.0.lock();
        if !inner.runs.0.is_empty() {
            let keep = Keep::Readable(readable);
            inner.runs.retain(|range| range.seq > upto, keep);
        }
        if inner.unlogged.is_some_and(|seq| seq <= upto) {
            // It is in a table now. A later one without a log may remain, so the next number counts
            // as unlogged.
            inner.unlogged = (inner.newest > upto).then_some(upto + 1);
        }
    }

    /// Returns the range deletes up to `upto`, which must be durable, for a job that writes to
    /// another place.
    pub(crate) fn applicable(
        &self,
        upto: SeqNo,
        bottom: Option<Arc<Fragments>>,
    ) -> Option<Applicable> {
        let set = self.set_above(|| bottom)?;
        Some(Applicable { set, upto })
    }

    /// Returns the range deletes up to `upto` that every view has (D2), for a job that changes
    /// entries in place where readers of any view may pass.
    pub(crate) fn applicable_in_place(
        &self,
        upto: SeqNo,
        bottom: Option<Arc<Fragments>>,
    ) -> Option<Applicable> {
        let mut applicable = self.applicable(upto, bottom)?;
        applicable.upto = upto.min(self.seen_by_all_upto());
        Some(applicable)
    }

    /// Returns the number up to which every view has all range deletes.
    pub(crate) fn seen_by_all_upto(&self) -> SeqNo {
        failpoint!(RangeUnsettled => return SeqNo::MAX);
        let mut inner = self.0.lock();
        inner.unseen.retain(|(_, token)| token.strong_count() > 0);
        let least = inner.unseen.iter().map(|(seq, _)| *seq).min();
        least.map_or(SeqNo::MAX, |seq| seq.saturating_sub(1))
    }
}

/// Range deletes that a job may act on.
pub(crate) struct Applicable {
    set: Arc<RangeSet>,
    upto: SeqNo,
}

impl Applicable {
    /// Returns durable range deletes, all of which apply.
    pub(crate) fn lasting(all: Arc<Fragments>) -> Applicable {
        Applicable::all(RangeSet::of(vec![all]))
    }

    /// Returns all range deletes of a set.
    pub(crate) fn all(set: RangeSet) -> Applicable {
        Applicable {
            set: Arc::new(set),
            upto: SeqNo::MAX,
        }
    }

    /// Returns whether no read can see any version, from the oldest to the newest of `seqs`, of the
    /// keys from `first` to `last`.
    pub(crate) fn hides_all(
        &self,
        first: Key<'_>,
        last: Last<'_>,
        seqs: (SeqNo, SeqNo),
        stripes: &Stripes,
    ) -> bool {
        self.set.hides_all(first, last, seqs, self.upto, stripes)
    }

    /// Returns whether no read can see a version because of one of these range deletes.
    #[inline]
    pub(crate) fn hides(&self, key: (u32, &[u8]), seq: SeqNo, stripes: &Stripes) -> bool {
        self.set.hides(key, seq, self.upto, stripes)
    }
}
