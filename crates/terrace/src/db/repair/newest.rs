//! This file picks from all versions that were found what the new database gets: of each key the
//! newest, if that is a value which is not expired, not covered by a newer range delete, and not of a
//! keyspace that was dropped. Nothing hides anything in a new database, so no tombstone is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::db::keyspace::Record;
use crate::error::Result;
use crate::parts::expiry::{Millis, is_past};
use crate::parts::iter::{Cursor, EntryView, MergeCursor};
use crate::parts::key::Target;
use crate::parts::ranges::{Newer, RangeSet};
use crate::types::{EntryKind, SEQ_MAX, SYSTEM_KEYSPACE, SeqNo};

/// What came by.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Pairs by keyspace.
    pub(super) pairs: BTreeMap<u32, u64>,
    /// Names of keyspaces by their numbers.
    pub(super) names: BTreeMap<u32, String>,
    /// The number that the catalog has for the next keyspace.
    pub(super) next: u32,
    dropped: BTreeSet<u32>,
    pub(super) bytes: u64,
}

/// A cursor over the newest versions that are values.
pub(super) struct Newest {
    merged: MergeCursor,
    ranges: RangeSet,
    now: Millis,
    last: Option<(u32, Vec<u8>)>,
    seen: Arc<Mutex<Seen>>,
}

impl Newest {
    pub(super) fn new(merged: MergeCursor, ranges: RangeSet, now: Millis) -> Newest {
        Newest {
            merged,
            ranges,
            now,
            last: None,
            seen: Arc::default(),
        }
    }

    /// What has come by since the last seek to the start.
    pub(super) fn seen(&self) -> Arc<Mutex<Seen>> {
        Arc::clone(&self.seen)
    }

    /// Goes on to the next version that is wanted, from the one under the cursor on.
    fn settle(&mut self) -> Result<()> {
        while let Some(entry) = self.merged.entry()? {
            let place = (entry.keyspace, entry.key);
            let is_newest = self
                .last
                .as_ref()
                .is_none_or(|(keyspace, key)| (*keyspace, key.as_slice()) != place);
            if is_newest {
                let last = (entry.keyspace, entry.key.to_vec());
                let wanted = self.wants(&entry)?;
                self.last = Some(last);
                if wanted {
                    return Ok(());
                }
            }
            self.merged.advance()?;
        }
        Ok(())
    }

    fn wants(&self, entry: &EntryView<'_>) -> Result<bool> {
        let (keyspace, key) = (entry.keyspace, entry.key);
        let covered = self.ranges.newest(keyspace, key, SEQ_MAX) > Some(entry.seq);
        if entry.kind != EntryKind::Put as u8 || covered || is_past(self.merged.expiry()?, self.now)
        {
            return Ok(false);
        }
        let mut seen = self.seen.lock();
        if keyspace == SYSTEM_KEYSPACE {
            // The catalog comes first, since its keyspace does.
            match Record::of(key, self.merged.value()?) {
                Some(Record::Name(id, name)) => {
                    seen.names.insert(id, name);
                }
                Some(Record::Next(id)) => seen.next = id,
                Some(Record::Dropped(id)) => {
                    // Nothing of it comes along, so nothing has to remember it.
                    seen.dropped.insert(id);
                    return Ok(false);
                }
                None => return Ok(false),
            }
        } else if seen.dropped.contains(&keyspace) {
            return Ok(false);
        } else {
            *seen.pairs.entry(keyspace).or_default() += 1;
        }
        seen.bytes += (key.len() + self.merged.value()?.len()) as u64;
        Ok(true)
    }
}

impl Cursor for Newest {
    fn hold(&mut self) -> bool {
        true
    }

    fn release(&mut self) {}

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        let mut seen = self.seen.lock();
        seen.pairs.clear();
        seen.bytes = 0;
        drop(seen);
        self.last = None;
        self.merged.seek(target)?;
        self.settle()
    }

    fn seek_before(&mut self, target: &Target<'_>, _breadth: usize) -> Result<()> {
        self.seek(target)
    }

    fn newer(&self, _: &Target<'_>, _: &Target<'_>, _: SeqNo, _: bool) -> Newer {
        Newer::Unknown
    }

    fn advance(&mut self) -> Result<()> {
        self.merged.advance()?;
        self.settle()
    }

    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        let expires = self.merged.expiry()? != 0;
        Ok(self.merged.entry()?.map(|entry| match expires {
            // Runs have the expiry beside the entry; who asks for it looks at the kind.
            true => EntryView {
                kind: EntryKind::PutExpiring as u8,
                ..entry
            },
            false => entry,
        }))
    }

    fn value(&self) -> Result<&[u8]> {
        self.merged.value()
    }

    fn expiry(&self) -> Result<Millis> {
        self.merged.expiry()
    }
}
