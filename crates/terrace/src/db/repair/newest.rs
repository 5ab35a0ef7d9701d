//! Choosing the entries of the new database from all recovered versions: for each key the newest,
//! if that is a value that is not expired, not covered by a newer range delete, and not in a
//! dropped keyspace. Nothing is hidden in a new database, so it needs no tombstones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::db::keyspace::Record;
use crate::error::Result;
use crate::parts::expiry::{Millis, Value};
use crate::parts::iter::{Cursor, EntryView, MergeCursor};
use crate::parts::key::Target;
use crate::parts::ranges::{Applicable, Newer, RangeSet};
use crate::parts::retain::{Kept, Retention};
use crate::types::{EntryKind, SYSTEM_KEYSPACE, SeqNo};

/// The entries that the cursor has passed.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Pairs by keyspace.
    pub(super) pairs: BTreeMap<u32, u64>,
    /// Names of keyspaces by their numbers.
    pub(super) names: BTreeMap<u32, String>,
    /// The number of the next keyspace, according to the catalog.
    pub(super) next: u32,
    dropped: BTreeSet<u32>,
    pub(super) bytes: u64,
}

/// A cursor over the newest versions that are values.
pub(super) struct Newest {
    merged: MergeCursor,
    retention: Retention,
    last: Option<(u32, Vec<u8>)>,
    seen: Arc<Mutex<Seen>>,
}

impl Newest {
    pub(super) fn new(merged: MergeCursor, ranges: RangeSet, now: Millis) -> Newest {
        Newest {
            merged,
            // Without snapshots: a new database has none.
            retention: Retention {
                ranges: vec![Applicable::all(ranges)],
                horizon: now,
                ..Retention::default()
            },
            last: None,
            seen: Arc::default(),
        }
    }

    /// Returns the entries passed since the last seek to the start.
    pub(super) fn seen(&self) -> Arc<Mutex<Seen>> {
        Arc::clone(&self.seen)
    }

    /// Moves to the next wanted version, beginning with the one under the cursor.
    fn finish_key(&mut self) -> Result<()> {
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
        let value = self.merged.value()?;
        // Nothing is below a new database. Older versions are not looked up.
        let kept = self
            .retention
            .keep(entry.kind, value.expiry, entry.seq, || false);
        let is_value = entry.kind == EntryKind::Put as u8 && kept == Kept::Whole;
        if !is_value || self.retention.is_hidden((keyspace, key), entry.seq, None) {
            return Ok(false);
        }
        let mut seen = self.seen.lock();
        if keyspace == SYSTEM_KEYSPACE {
            // The catalog comes first, since its keyspace does.
            match Record::of(key, value.bytes) {
                Some(Record::Name(id, name)) => {
                    seen.names.insert(id, name);
                }
                Some(Record::Next(id)) => seen.next = id,
                Some(Record::Dropped(id)) => {
                    // None of its entries is copied, so the drop need not be remembered.
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
        seen.bytes += (key.len() + value.bytes.len()) as u64;
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
        self.finish_key()
    }

    fn seek_before(&mut self, target: &Target<'_>, _breadth: usize) -> Result<()> {
        self.seek(target)
    }

    fn newer(&self, _: &Target<'_>, _: &Target<'_>, _: SeqNo, _: bool) -> Newer {
        Newer::Unknown
    }

    fn advance(&mut self) -> Result<()> {
        self.merged.advance()?;
        self.finish_key()
    }

    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        self.merged.entry()
    }

    fn value(&self) -> Result<Value<'_>> {
        self.merged.value()
    }
}
