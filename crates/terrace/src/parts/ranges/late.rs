//! Tracks whether a list contains entries newer than a range delete, so that a scan can skip a
//! deleted stretch in one step.
//!
//! A memtable notes the keys that are written into a range after it was deleted in the same
//! memtable. There are none if deleted ranges are not reused, and the check is skipped if no range
//! was deleted.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::fragment::{Keep, RangeDelete};
use super::live::Runs;
use crate::parts::key::Target;
use crate::types::{SEQ_MAX, SeqNo};

/// The keys of a source between two places that are newer than some number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Newer {
    /// There is no such key.
    No,
    /// The first, or the last, key that may be newer.
    Key(Vec<u8>),
    /// It is unknown whether there are any.
    Unknown,
}

/// The approximate memory for a key in addition to its bytes: its slot in a half-empty tree node,
/// and its allocation.
const KEY_BYTES: u64 = 96;

/// Keys written into ranges that were deleted before in the same memtable.
pub(crate) struct LateKeys {
    any: AtomicBool,
    /// The memory limit. Beyond it, all keys are dropped.
    bytes_max: u64,
    /// LOCK: held for a lookup or an insertion; takes no other lock.
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    runs: Runs,
    /// The number of the oldest range delete.
    first: SeqNo,
    keys: BTreeSet<(u32, Vec<u8>)>,
    /// The approximate memory of the keys.
    bytes: u64,
    /// Whether the limit was exceeded, so that no keys are kept.
    overflown: bool,
}

impl Default for LateKeys {
    fn default() -> LateKeys {
        LateKeys::within(u64::MAX)
    }
}

impl LateKeys {
    /// Creates an empty set that may use `bytes_max` of memory.
    pub(crate) fn within(bytes_max: u64) -> LateKeys {
        LateKeys {
            any: AtomicBool::new(false),
            bytes_max,
            inner: Mutex::default(),
        }
    }

    /// Returns whether a range was deleted in the memtable.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        // Relaxed: a writer with a later number took it under the commit lock, after this was set
        // under the same lock.
        self.any.load(Ordering::Relaxed)
    }

    /// Adds deleted ranges. The caller holds the commit lock, so no entry with a later number has
    /// been noted.
    pub(crate) fn add(&self, ranges: &[RangeDelete]) {
        let Some(first) = ranges.iter().map(|range| range.seq).min() else {
            return;
        };
        let mut inner = self.inner.lock();
        if !self.any() || first < inner.first {
            inner.first = first;
        }
        // Queries only ask whether any range delete precedes an entry.
        inner.runs.add(ranges.to_vec(), Keep::Oldest);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Notes an entry that is about to become visible, if it is in a deleted range.
    pub(crate) fn note(&self, keyspace: u32, key: &[u8], seq: SeqNo) {
        let mut inner = self.inner.lock();
        if inner.overflown || inner.runs.set().newest(keyspace, key, seq).is_none() {
            return;
        }
        if inner.keys.insert((keyspace, key.to_vec())) {
            inner.bytes += key.len() as u64 + KEY_BYTES;
        }
        if inner.bytes > self.bytes_max {
            inner.overflown = true;
            inner.keys = BTreeSet::new();
        }
    }

    /// Returns the first or the last key between two places of one keyspace that has a version
    /// newer than the range delete `than`, which covers the stretch.
    pub(crate) fn newer(
        &self,
        from: &Target<'_>,
        to: &Target<'_>,
        than: SeqNo,
        last: bool,
    ) -> Newer {
        if !self.any() {
            return Newer::Unknown;
        }
        let inner = self.inner.lock();
        if than < inner.first || inner.overflown {
            return Newer::Unknown;
        }
        let low = Bound::Included((from.keyspace, from.key.to_vec()));
        let high = (to.keyspace, to.key.to_vec());
        // The end is inclusive if it is after the first version of its key.
        let high = match to.seq < SEQ_MAX {
            true => Bound::Included(high),
            false => Bound::Excluded(high),
        };
        let places = (from.keyspace, from.key).cmp(&(to.keyspace, to.key));
        if places.is_gt() || places.is_eq() && to.seq == SEQ_MAX {
            return Newer::No;
        }
        let mut between = inner.keys.range((low, high));
        let found = if last {
            between.next_back()
        } else {
            between.next()
        };
        found.map_or(Newer::No, |(_, key)| Newer::Key(key.clone()))
    }
}

/// The age of a table's entries, while merges add newer ones to it.
pub(crate) struct SeqBound {
    newest: AtomicU64,
    late: ArcSwapOption<LateKeys>,
}

impl SeqBound {
    /// Creates the bound of a table whose newest entry has this number.
    pub(crate) fn new(newest: SeqNo, late: Option<std::sync::Arc<LateKeys>>) -> SeqBound {
        SeqBound {
            newest: AtomicU64::new(newest),
            late: ArcSwapOption::new(late),
        }
    }

    /// Announces entries up to a number. Called under the latch, or before the first of them is
    /// added.
    pub(crate) fn raise(&self, newest: SeqNo) {
        self.late.store(None);
        self.newest.fetch_max(newest, Ordering::Release);
    }

    /// Returns an upper bound of the sequence numbers.
    pub(crate) fn newest(&self) -> SeqNo {
        self.newest.load(Ordering::Acquire)
    }

    /// As [`LateKeys::newer`].
    pub(crate) fn newer(
        &self,
        from: &Target<'_>,
        to: &Target<'_>,
        than: SeqNo,
        last: bool,
    ) -> Newer {
        if self.newest() <= than {
            return Newer::No;
        }
        match &*self.late.load() {
            Some(late) => late.newer(from, to, than, last),
            None => Newer::Unknown,
        }
    }
}

impl Default for SeqBound {
    fn default() -> SeqBound {
        SeqBound::new(SEQ_MAX, None)
    }
}
