//! Retention: which versions of a key a job keeps.
//!
//! Jobs that move entries (merges, drains, compactions, reclaims, repair) leave out those that no
//! reader can see. All of them use this module, so the rule exists once. A job walks a sorted
//! source, in which the versions of a key are adjacent and the newest comes first, and judges each
//! version in two steps.
//!
//! **1. Is it hidden?** ([`Retention::is_hidden`]) A version is hidden if
//!
//! - its keyspace was dropped, or
//! - a newer version of its key is kept, and no snapshot is old enough to read this one and not the
//!   newer one, or
//! - a range delete covers it, and no snapshot is old enough to read it in spite of that.
//!
//! Snapshots cut the sequence numbers into *stripes*. Within one stripe, readers can see only the
//! newest version. For example, with snapshots at 5 and 10, a range delete at 9 and these versions
//! of a key:
//!
//! ```text
//!   number    12    |    10     8     7    |     4     2
//!   kind      put   |   put   put   put    |   put   put
//!   verdict   keep  |  keep  hidden hidden |  keep hidden
//!                snapshot 10            snapshot 5
//! ```
//!
//! 12 is the newest version. The snapshot at 10 reads 10, which hides 8 and 7; the range delete at
//! 9 covers them too. It also covers 4, but the snapshot at 5 does not see the range delete and
//! reads 4. No reader sees 2.
//!
//! **2. Which part is kept?** ([`Retention::keep`]) A version that is not hidden is kept as it is,
//! unless it is a tombstone. A tombstone is needed as long as it has something to hide: an older
//! version that a snapshot keeps next to it, or one in an older source. If there is neither, the
//! tombstone is dropped as well. A value that has expired is a tombstone up to the *horizon*, the
//! time of the oldest snapshot: a snapshot that saw the value continues to see it.
//!
//! A dropped tombstone still counts as the newer version for those that come after it: they are
//! hidden as if it were kept. Otherwise they would come back.
//!
//! Invariants
//!   R1  A job takes its snapshots after the last entry that it moves became visible. A snapshot
//!       that is registered later is newer than all of them and reads the same as a current reader.
//!   R2  Range deletes are among those of a job only if they are at least as durable as the job's
//!       output (D2 of parts/ranges).
//!   R3  The horizon never falls, and the manifest records the time before versions that expired up
//!       to it are gone.
//!
//! The jobs differ in their older sources. There is nothing below the repository, and a compaction
//! has the older levels below it. A merge in the buffer always has something below it, so it keeps
//! every tombstone and skips the second step. A reclaim uses no range deletes, since the
//! repository's sweep applies them beforehand.

use std::sync::Arc;

use super::expiry::{Millis, is_past};
use super::ranges::Applicable;
use super::snapshots::Stripes;
use crate::types::{EntryKind, SeqNo};

/// The readers and deletes that decide which versions a job keeps.
#[derive(Default)]
pub(crate) struct Retention {
    /// The stripes between snapshots.
    pub(crate) stripes: Stripes,
    /// The dropped keyspaces, ascending.
    pub(crate) dropped: Arc<Vec<u32>>,
    /// The range deletes that apply.
    pub(crate) ranges: Vec<Applicable>,
    /// The time up to which an expiry makes a value a tombstone; 0 if the job treats nothing as
    /// expired.
    pub(crate) horizon: Millis,
}

/// The part of a version that is kept, if it is not hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The version as it is.
    Whole,
    /// A tombstone in place of the value, which has expired.
    Tombstone,
    /// Nothing. Older versions of the key in the same stripe are hidden all the same.
    Nothing,
}

impl Retention {
    /// Returns whether no reader can see a version. `newer` is the number of the next newer version
    /// of the same key that was not hidden.
    #[inline]
    pub(crate) fn is_hidden(&self, key: (u32, &[u8]), seq: SeqNo, newer: Option<SeqNo>) -> bool {
        let covered = |ranges: &Applicable| ranges.hides(key, seq, &self.stripes);
        self.is_dropped(key.0) || self.is_superseded(newer, seq) || self.ranges.iter().any(covered)
    }

    /// Returns whether no reader can tell a `newer` version and this one apart from the newer one
    /// alone.
    #[inline]
    pub(crate) fn is_superseded(&self, newer: Option<SeqNo>, seq: SeqNo) -> bool {
        newer.is_some_and(|newer| self.stripes.same(newer, seq))
    }

    /// Returns whether a keyspace was dropped, so that none of its versions is read.
    #[inline]
    pub(crate) fn is_dropped(&self, keyspace: u32) -> bool {
        self.dropped.binary_search(&keyspace).is_ok()
    }

    /// Returns the part to keep of a version that is not hidden. `is_below` returns whether an
    /// older source may have an older version of the key; it is called only for tombstones.
    #[inline]
    pub(crate) fn keep(
        &self,
        kind: u8,
        expiry: Millis,
        seq: SeqNo,
        is_below: impl FnOnce() -> bool,
    ) -> Kept {
        let is_delete = kind == EntryKind::Delete as u8;
        if !is_delete && !is_past(expiry, self.horizon) {
            return Kept::Whole;
        }
        match (self.hides_below(seq, is_below), is_delete) {
            (false, _) => Kept::Nothing,
            (true, false) => Kept::Tombstone,
            (true, true) => Kept::Whole,
        }
    }

    /// Returns whether a tombstone or a range delete with this number may have something to hide.
    #[inline]
    pub(crate) fn hides_below(&self, seq: SeqNo, is_below: impl FnOnce() -> bool) -> bool {
        self.stripes.any_before(seq) || is_below()
    }
}

#[cfg(test)]
mod tests;
