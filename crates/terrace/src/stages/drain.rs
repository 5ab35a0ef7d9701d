//! Drain hand-over: entries on their way from the buffer to the bottom, and the pending free for
//! the space that the drain will free.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::parts::iter::{EntryView, MergeCursor};
use crate::parts::key::{KeyRange, Place, Target};
use crate::parts::manifest::Edit;
use crate::parts::ranges::RangeDelete;
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::types::SeqNo;

/// Entries on their way to the bottom, in order: whole tables, or a range of the keys of tables
/// whose other keys come down in other drains.
pub(crate) struct Drain {
    /// Runs before the first entry is read; may wait and sync.
    pub(crate) prepare: Option<Box<dyn FnOnce() -> Result<bool> + Send>>,
    /// A cursor over all entries of the tables.
    pub(crate) cursor: MergeCursor,
    /// The keys that come down. Of the range deletes, only the parts in the range do.
    pub(crate) keys: KeyRange,
    /// Whether everything up to `seq_last` is in the bottom once it ends. False for a range of keys
    /// unless it is the last one of its tables: range deletes stay above until then, and so do
    /// logs.
    pub(crate) settles: bool,
    /// Versions in newer tables of the buffer. `None` only for a source that is no buffer: without
    /// it, deletes in the buffer free nothing on a full disk below.
    pub(crate) newer: Option<Box<dyn NewerVersions>>,
    /// The newest number in the tables. Of the drained keys, everything that stays above is newer.
    pub(crate) seq_last: SeqNo,
    /// Range deletes up to this number are durable: they may hide drained entries.
    pub(crate) durable: SeqNo,
    /// Removes the drained tables, or records which of their keys are drained, once the entries are
    /// durable in the bottom.
    pub(crate) edit: Edit,
    /// The logs that have its entries, needed until the entries outlive the process without them.
    pub(crate) logs: Vec<u64>,
    /// The space that it will free, counted as it progresses.
    pub(crate) pending_free: PendingFree,
    /// The number of entries of these keys in the tables, and of all range deletes there, since
    /// each drain reads those. Exact: another number counts as corruption.
    pub(crate) count: EntryCount,
    /// Lets the buffer forget the drained tables, once the bottom shows their entries.
    pub(crate) forget: Box<dyn FnOnce() + Send>,
    /// Puts the tables back instead, to be drained with others or in smaller parts. `None` if that
    /// is impossible.
    pub(crate) put_back: Option<Box<dyn FnOnce() + Send>>,
    /// The means to drain ranges of the keys at the same time. `None`: the drain runs on one
    /// thread.
    pub(crate) parts: Option<DrainParts>,
}

/// The means by which a drain becomes parts: ranges of its keys that several threads move. All
/// parts end in the one edit of the drain, and it is put back as a whole.
pub(crate) struct DrainParts {
    /// About how many bytes the entries have.
    pub(crate) bytes: u64,
    /// Returns ascending keys of the drain, fewer than the number asked for, with about as many
    /// entries between any two.
    pub(crate) cuts: Box<dyn Fn(usize) -> Result<Vec<Place>> + Send + Sync>,
    /// Returns another cursor over all entries of the tables, for a drain that has started.
    pub(crate) open: Box<dyn Fn() -> MergeCursor + Send + Sync>,
    /// Returns the versions in newer tables, for one more thread. Not older than those that the
    /// drain has.
    pub(crate) newer: Box<dyn Fn() -> Box<dyn NewerVersions> + Send + Sync>,
}

impl Drain {
    /// Settles the source and goes to its first entry; called again when the drain restarts.
    pub(crate) fn start(&mut self) -> Result<()> {
        if let Some(prepare) = self.prepare.take() {
            prepare()?;
        }
        self.count.passed = 0;
        self.cursor.hold();
        self.cursor.seek(&self.keys.start())?;
        // The drained tables belong to one job: nothing relinks them.
        self.cursor.release();
        Ok(())
    }

    /// Returns the entry that it is at, or `None` after the last one. Range deletes are not
    /// returned.
    pub(crate) fn entry(&self) -> Result<Option<EntryView<'_>>> {
        let entry = self.cursor.entry()?;
        Ok(entry.filter(|entry| {
            entry.keyspace < RANGE_DELETE_BIT && !self.keys.ends_before(entry.keyspace, entry.key)
        }))
    }

    /// Returns the range deletes of the drain, which follow all other entries of the tables; then
    /// goes to the first entry. For a drain that has started.
    pub(crate) fn range_deletes(&mut self) -> Result<Vec<RangeDelete>> {
        let mut ranges = Vec::new();
        self.cursor.seek(&Target::first_of(RANGE_DELETE_BIT, &[]))?;
        while let Some(entry) = self.cursor.entry()? {
            let range = RangeDelete::from_entry(entry.keyspace, entry.key, entry.seq, 0)?;
            ranges.extend(range.within(&self.keys));
            self.cursor.advance()?;
        }
        self.cursor.seek(&self.keys.start())?;
        Ok(ranges)
    }

    /// Goes to the next entry.
    pub(crate) fn advance(&mut self) -> Result<()> {
        self.count.passed += 1;
        self.cursor.advance()
    }

    /// Passes the remaining entries, and checks the count: lost links look like the end of a list,
    /// and drained tables are forgotten.
    pub(crate) fn finish(&mut self) -> Result<()> {
        while self.entry()?.is_some() {
            self.advance()?;
        }
        if self.keys.to.is_some() {
            self.cursor.seek(&Target::first_of(RANGE_DELETE_BIT, &[]))?;
        }
        self.finish_ranges()
    }

    /// Does the same for a drain whose parts have passed all of its entries, `passed` together.
    pub(crate) fn finish_parts(&mut self, passed: u64) -> Result<()> {
        self.count.passed = passed;
        self.cursor.seek(&Target::first_of(RANGE_DELETE_BIT, &[]))?;
        self.finish_ranges()
    }

    /// Passes the range deletes, and checks the count.
    fn finish_ranges(&mut self) -> Result<()> {
        while self.cursor.entry()?.is_some() {
            self.advance()?;
        }
        self.count.check()
    }

    /// Returns the number of the newest version of a key in the buffer's newer tables.
    pub(crate) fn newest(&self, keyspace: u32, key: &[u8], hash: u64) -> Result<Option<SeqNo>> {
        match &self.newer {
            Some(newer) => newer.newest(keyspace, key, hash),
            None => Ok(None),
        }
    }

    /// Returns the number of the newest version of a key in the buffer.
    pub(crate) fn newest_of_all(
        &self,
        keyspace: u32,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<SeqNo>> {
        match &self.newer {
            Some(newer) => newer.newest_of_all(keyspace, key, hash),
            None => Ok(None),
        }
    }

    /// Returns about how many entries the buffer has between two places.
    pub(crate) fn count_between(&self, from: &Target<'_>, to: &Target<'_>) -> Result<u64> {
        match &self.newer {
            Some(newer) => newer.count_between(from, to),
            None => Ok(0),
        }
    }
}

/// Entries that are newer than all of a drain, and that every reader searches first. If the pool
/// ends with the process, only entries in synced logs count: a drain leaves out what newer entries
/// hide, and its logs are retired.
pub(crate) trait NewerVersions: Send {
    /// Returns the number of the newest version of a key, among those that existed when the drain
    /// began. May miss one that a merge is replacing.
    fn newest(&self, keyspace: u32, key: &[u8], hash: u64) -> Result<Option<SeqNo>>;
    /// Does the same for all tables of the buffer, including those that drain.
    fn newest_of_all(&self, keyspace: u32, key: &[u8], hash: u64) -> Result<Option<SeqNo>>;
    /// Returns about how many entries all these tables have between two places.
    fn count_between(&self, from: &Target<'_>, to: &Target<'_>) -> Result<u64>;
    /// Returns the newest number that it finds.
    fn seq_max(&self) -> SeqNo;
    /// Searches the present tables from now on. Returns whether they differ from the previous ones.
    /// Bottoms call it when a drain has found no space, since newer deletes may make some.
    fn look_again(&mut self) -> bool;
}

/// The number of entries in the source of a move, if known, and the number that came.
#[derive(Debug, Default)]
pub(crate) struct EntryCount {
    expected: Option<u64>,
    pub(crate) passed: u64,
}

impl EntryCount {
    /// Requires exactly `entries`.
    pub(crate) fn of(entries: u64) -> EntryCount {
        EntryCount {
            expected: Some(entries),
            passed: 0,
        }
    }

    /// Returns an error if another number came.
    pub(crate) fn check(&self) -> Result<()> {
        match self.expected {
            Some(expected) if expected != self.passed => Err(Error::corruption(format!(
                "{} entries were found in tables of the pool, but {expected} were expected: links \
                 between them are damaged; run \"terrace verify\", and restore the database from a \
                 copy or recover the readable data with \"terrace repair\"",
                self.passed
            ))),
            _ => Ok(()),
        }
    }
}

/// Bytes of the pool that drains in progress will free, in proportion to their progress. Drains
/// free all at once, when they end; the pending free smooths the effect on slowed writers.
#[derive(Clone, Default)]
pub(crate) struct PendingFrees(Arc<AtomicU64>);

impl PendingFrees {
    /// Opens the pending free of a drain that has `entries` and will free `bytes`.
    pub(crate) fn open(&self, bytes: u64, entries: u64) -> PendingFree {
        PendingFree {
            pending_frees: self.clone(),
            bytes,
            entries,
            passed: 0,
            given: 0,
        }
    }

    /// Returns the sum of all pending frees.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The part of `PendingFrees` that belongs to one drain. Dropped with it.
#[derive(Default)]
pub(crate) struct PendingFree {
    pending_frees: PendingFrees,
    bytes: u64,
    entries: u64,
    passed: u64,
    given: u64,
}

impl PendingFree {
    /// Counts `entries` more that have arrived in the bottom.
    pub(crate) fn pass(&mut self, entries: u64) {
        self.passed = self.passed.saturating_add(entries);
        self.give();
    }

    /// Resets the pending free when the drain restarts.
    pub(crate) fn restart(&mut self) {
        self.passed = 0;
        self.give();
    }

    fn give(&mut self) {
        let part = u128::from(self.passed.min(self.entries)) * u128::from(self.bytes);
        let now = (part / u128::from(self.entries.max(1))) as u64;
        // Wraps if it falls, and so does the sum: each takes back only what it gave.
        let change = now.wrapping_sub(self.given);
        self.pending_frees.0.fetch_add(change, Ordering::Relaxed);
        self.given = now;
    }
}

impl Drop for PendingFree {
    fn drop(&mut self) {
        self.restart();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PendingFree grows with the entries that have passed, up to the bytes that will be freed, and
    /// goes with its drain.
    #[test]
    fn credit_follows_the_drain() {
        let pending_frees = PendingFrees::default();
        let mut one = pending_frees.open(1000, 10);
        let mut other = pending_frees.open(500, 0);
        one.pass(3);
        assert_eq!(pending_frees.bytes(), 300);
        other.pass(1);
        one.pass(70);
        assert_eq!(pending_frees.bytes(), 1000, "no more than there are");
        one.restart();
        assert_eq!(pending_frees.bytes(), 0);
        one.pass(5);
        drop(other);
        assert_eq!(pending_frees.bytes(), 500);
        drop(one);
        assert_eq!(pending_frees.bytes(), 0);
    }
}
