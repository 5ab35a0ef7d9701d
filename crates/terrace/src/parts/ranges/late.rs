//! This file is what lets a scan pass a deleted stretch in one step: whether a list has anything in
//! it that is newer than the range delete.
//!
//! A memtable notes the keys that are written into a range after it was deleted in the same memtable.
//! There are none where deleted ranges are not used again, and nobody looks where no range was
//! deleted.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::fragment::{Keep, RangeDelete};
use super::live::Runs;
use crate::parts::key::Target;
use crate::types::{SEQ_MAX, SeqNo};

/// Keys of a source between two places, newer than some number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Newer {
    /// There is none.
    No,
    /// The first, or the last, of those there may be.
    Key(Vec<u8>),
    /// Nobody knows.
    Unknown,
}

/// What a key takes in memory beside its bytes, about: its place in the tree, half empty, and its
/// allocation.
const KEY_BYTES: u64 = 96;

/// Keys written into ranges that were deleted before in the same memtable.
pub(crate) struct LateKeys {
    any: AtomicBool,
    /// With more, it is as if nobody had noted any.
    bytes_max: u64,
    /// LOCK: held for a look or an insertion; takes nothing else.
    body: Mutex<Body>,
}

#[derive(Default)]
struct Body {
    runs: Runs,
    /// The number of the oldest range delete.
    first: SeqNo,
    keys: BTreeSet<(u32, Vec<u8>)>,
    /// Of memory, about.
    bytes: u64,
    /// There were more keys than may be noted, and none is.
    overflown: bool,
}

impl Default for LateKeys {
    fn default() -> LateKeys {
        LateKeys::within(u64::MAX)
    }
}

impl LateKeys {
    /// No keys yet; they may take `bytes_max` of memory.
    pub(crate) fn within(bytes_max: u64) -> LateKeys {
        LateKeys {
            any: AtomicBool::new(false),
            bytes_max,
            body: Mutex::default(),
        }
    }

    /// Whether a range was deleted in the memtable.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        // Relaxed: whoever writes behind a range delete took its number, under the commit lock,
        // after this was set under it.
        self.any.load(Ordering::Relaxed)
    }

    /// Ranges are deleted from now on. The caller holds the commit lock, so no entry with a later number is
    /// noted before.
    pub(crate) fn add(&self, ranges: &[RangeDelete]) {
        let Some(first) = ranges.iter().map(|range| range.seq).min() else {
            return;
        };
        let mut body = self.body.lock();
        if !self.any() || first < body.first {
            body.first = first;
        }
        // Whether there is any before an entry is all that is asked.
        body.runs.add(ranges.to_vec(), Keep::Oldest);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Notes an entry that is about to become visible.
    pub(crate) fn note(&self, keyspace: u32, key: &[u8], seq: SeqNo) {
        let mut body = self.body.lock();
        if body.overflown || body.runs.set().newest(keyspace, key, seq).is_none() {
            return;
        }
        if body.keys.insert((keyspace, key.to_vec())) {
            body.bytes += key.len() as u64 + KEY_BYTES;
        }
        if body.bytes > self.bytes_max {
            body.overflown = true;
            body.keys = BTreeSet::new();
        }
    }

    /// The first or the last key between two places of one keyspace that has a version newer than the
    /// range delete `than`, which covers the stretch.
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
        let body = self.body.lock();
        if than < body.first || body.overflown {
            return Newer::Unknown;
        }
        let low = Bound::Included((from.keyspace, from.key.to_vec()));
        let high = (to.keyspace, to.key.to_vec());
        // A place behind the first version of a key has that key before it.
        let high = match to.seq < SEQ_MAX {
            true => Bound::Included(high),
            false => Bound::Excluded(high),
        };
        let places = (from.keyspace, from.key).cmp(&(to.keyspace, to.key));
        if places.is_gt() || places.is_eq() && to.seq == SEQ_MAX {
            return Newer::No;
        }
        let mut between = body.keys.range((low, high));
        let found = if last {
            between.next_back()
        } else {
            between.next()
        };
        found.map_or(Newer::No, |(_, key)| Newer::Key(key.clone()))
    }
}

/// How new the entries of a table are, while merges put newer ones into it.
pub(crate) struct Ages {
    newest: AtomicU64,
    late: ArcSwapOption<LateKeys>,
}

impl Ages {
    /// Of a table whose newest entry has this number.
    pub(crate) fn new(newest: SeqNo, late: Option<std::sync::Arc<LateKeys>>) -> Ages {
        Ages {
            newest: AtomicU64::new(newest),
            late: ArcSwapOption::new(late),
        }
    }

    /// Entries up to a number are about to come in. Under the gate, or before the first of them.
    pub(crate) fn raise(&self, newest: SeqNo) {
        self.late.store(None);
        self.newest.fetch_max(newest, Ordering::Release);
    }

    /// The largest number there may be.
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

impl Default for Ages {
    fn default() -> Ages {
        Ages::new(SEQ_MAX, None)
    }
}
