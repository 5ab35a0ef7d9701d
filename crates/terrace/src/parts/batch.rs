//! Batch: the entries of one atomic write, encoded once in the format of the log record.

use crate::error::Result;
use crate::parts::codec::DecodeError;
use crate::parts::expiry::{Millis, layout as expiring};
use crate::parts::log::Payload;
use crate::parts::ranges::RangeDelete;
use crate::parts::ranges::layout::{self, RANGE_DELETE_BIT};
use crate::types::{DEFAULT_KEYSPACE, EntryKind, SeqNo, key_hash};

/// Entries that become visible and durable together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) payload: Payload,
    /// The hash of each entry's key, in order.
    hashes: Vec<u64>,
    /// The sum of key and value bytes.
    user_bytes: u64,
    deletes: u64,
    ranges: u64,
    expiring: u64,
    /// The positions of entries with a time to live, ascending. Their expiry field contains the
    /// time to live until the batch is written.
    ttls: Vec<usize>,
    longest_key: usize,
    largest_entry: usize,
    /// Whether an entry is in a keyspace that can be dropped.
    is_named: bool,
    /// Whether the batch drops a keyspace, which frees more space than its puts take.
    frees: bool,
}

impl Batch {
    /// Adds an entry.
    #[inline]
    pub(crate) fn push(&mut self, kind: EntryKind, keyspace: u32, key: &[u8], value: &[u8]) {
        self.payload.push(kind as u8, keyspace, key, value);
        self.hashes.push(key_hash(keyspace, key));
        self.user_bytes += (key.len() + value.len()) as u64;
        self.deletes += u64::from(kind == EntryKind::Delete);
        self.longest_key = self.longest_key.max(key.len());
        self.largest_entry = self.largest_entry.max(key.len() + value.len());
        self.is_named |= keyspace > DEFAULT_KEYSPACE;
    }

    /// Adds a put that expires.
    pub(crate) fn push_expiring(
        &mut self,
        keyspace: u32,
        key: &[u8],
        value: &[u8],
        expiry: Millis,
    ) {
        let encoded = expiring::encode(expiry, value);
        self.push(EntryKind::PutExpiring, keyspace, key, &encoded);
        // The expiry is not what the user wrote.
        self.user_bytes -= (encoded.len() - value.len()) as u64;
        self.expiring += 1;
    }

    /// Adds a put that expires `ttl` after the batch is written.
    pub(crate) fn push_with_ttl(&mut self, keyspace: u32, key: &[u8], value: &[u8], ttl: Millis) {
        self.ttls.push(self.len());
        self.push_expiring(keyspace, key, value, ttl);
    }

    /// Returns the number of entries that expire.
    #[inline]
    pub(crate) fn expiring(&self) -> u64 {
        self.expiring
    }

    /// Returns the same entries as written at `now`, with times to live converted to expiries.
    pub(crate) fn expiring_from(&self, now: Millis) -> Result<Batch, DecodeError> {
        let mut batch = self.clone();
        batch.payload.clear();
        batch.ttls.clear();
        let mut ttls = self.ttls.iter().peekable();
        for (at, entry) in self.payload.iter().enumerate() {
            if ttls.next_if_eq(&&at).is_some() {
                let (ttl, value) = expiring::decode(entry.value, 0)?;
                let value = expiring::encode(now.saturating_add(ttl), value);
                batch
                    .payload
                    .push(entry.kind, entry.keyspace, entry.key, &value);
            } else {
                batch
                    .payload
                    .push(entry.kind, entry.keyspace, entry.key, entry.value);
            }
        }
        Ok(batch)
    }

    /// Adds a range delete of the keys from `begin` up to but not including `end`; an empty `end`
    /// is the end of the keyspace. Does nothing if the range is empty.
    pub(crate) fn push_range(&mut self, keyspace: u32, begin: &[u8], end: &[u8]) {
        if !end.is_empty() && begin >= end {
            return;
        }
        let key = layout::encode(begin, end);
        let keyspace = keyspace | RANGE_DELETE_BIT;
        self.payload
            .push(EntryKind::RangeDelete as u8, keyspace, &key, &[]);
        self.hashes.push(key_hash(keyspace, &key));
        self.is_named |= keyspace & !RANGE_DELETE_BIT > DEFAULT_KEYSPACE;
        self.user_bytes += (begin.len() + end.len()) as u64;
        self.deletes += 1;
        self.ranges += 1;
        self.longest_key = self.longest_key.max(begin.len()).max(end.len());
        self.largest_entry = self.largest_entry.max(key.len());
    }

    /// Returns the range deletes if the first entry has the number `first`.
    pub(crate) fn range_deletes(&self, first: SeqNo) -> Vec<RangeDelete> {
        let entries = (first..).zip(self.payload.iter());
        entries
            .filter(|(_, entry)| entry.kind == EntryKind::RangeDelete as u8)
            .filter_map(|(seq, e)| RangeDelete::from_entry(e.keyspace, e.key, seq, 0).ok())
            .collect()
    }

    /// Returns the number of range deletes.
    #[inline]
    pub(crate) fn ranges(&self) -> u64 {
        self.ranges
    }

    /// Removes all entries and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.payload.clear();
        self.hashes.clear();
        self.user_bytes = 0;
        self.deletes = 0;
        self.ranges = 0;
        self.expiring = 0;
        self.ttls.clear();
        self.longest_key = 0;
        self.largest_entry = 0;
        self.is_named = false;
        self.frees = false;
    }

    /// Writes two batches with the entries of this one, for the canary `BatchSplit`.
    pub(crate) fn in_two(&self, write: impl FnMut(&mut Batch) -> Result<()>) -> Result<()> {
        let mut halves = [Batch::default(), Batch::default()];
        for (at, entry) in self.payload.iter().enumerate() {
            let half = &mut halves[at * 2 / self.len()];
            match (
                EntryKind::from_raw(entry.kind),
                layout::decode(entry.key, 0),
            ) {
                (Some(EntryKind::RangeDelete), Ok((begin, end))) => {
                    half.push_range(entry.keyspace, begin, end);
                }
                (Some(kind), _) => half.push(kind, entry.keyspace, entry.key, entry.value),
                (None, _) => {}
            }
        }
        halves.iter_mut().try_for_each(write)
    }

    /// Returns the keyspaces of the entries if any of them can be dropped, which is rare.
    pub(crate) fn named_keyspaces(&self) -> impl Iterator<Item = u32> {
        let entries = self.is_named.then(|| self.payload.iter());
        let keyspaces = entries.into_iter().flatten();
        keyspaces.map(|entry| entry.keyspace & !RANGE_DELETE_BIT)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Returns the key hashes in order.
    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Returns the sum of key and value bytes.
    pub(crate) fn user_bytes(&self) -> u64 {
        self.user_bytes
    }

    /// Returns the number of tombstones, including range deletes.
    pub(crate) fn deletes(&self) -> u64 {
        self.deletes
    }

    /// Marks a batch that drops a keyspace: it is admitted like deletes, whatever it puts.
    pub(crate) fn mark_freeing(&mut self) {
        self.frees = true;
    }

    /// Returns whether the batch contains only tombstones and range deletes, or drops a keyspace.
    pub(crate) fn only_deletes(&self) -> bool {
        self.frees || self.deletes == self.len() as u64
    }

    /// Returns whether the batch deletes more than single keys.
    pub(crate) fn deletes_many(&self) -> bool {
        self.frees || self.ranges > 0
    }

    /// Returns the key and value bytes of the largest entry.
    pub(crate) fn largest_entry(&self) -> usize {
        self.largest_entry
    }

    /// Returns the length of the longest key.
    pub(crate) fn longest_key(&self) -> usize {
        self.longest_key
    }
}

impl Clone for Batch {
    fn clone(&self) -> Batch {
        let mut copy = Batch::default();
        for (entry, hash) in self.payload.iter().zip(&self.hashes) {
            copy.payload
                .push(entry.kind, entry.keyspace, entry.key, entry.value);
            copy.hashes.push(*hash);
        }
        copy.user_bytes = self.user_bytes;
        copy.deletes = self.deletes;
        copy.ranges = self.ranges;
        copy.expiring = self.expiring;
        copy.ttls.clone_from(&self.ttls);
        copy.longest_key = self.longest_key;
        copy.largest_entry = self.largest_entry;
        copy.is_named = self.is_named;
        copy
    }
}
