//! Batch: the entries of one atomic write, encoded once, as its log record will hold them.

use crate::parts::log::Payload;
use crate::types::{EntryKind, key_hash};

/// Entries that become visible and durable together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) payload: Payload,
    /// The hash of each entry's key, in order.
    hashes: Vec<u64>,
    /// Key and value bytes.
    user_bytes: u64,
    deletes: u64,
    longest_key: usize,
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
    }

    /// Forgets all entries and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.payload.clear();
        self.hashes.clear();
        self.user_bytes = 0;
        self.deletes = 0;
        self.longest_key = 0;
    }

    /// Two batches with the entries of this one, for the canary `BatchSplit`.
    pub(crate) fn split(&self) -> (Batch, Batch) {
        let mut halves = [Batch::default(), Batch::default()];
        for (at, entry) in self.payload.iter().enumerate() {
            if let Some(kind) = EntryKind::from_raw(entry.kind) {
                halves[at * 2 / self.len()].push(kind, entry.keyspace, entry.key, entry.value);
            }
        }
        let [first, rest] = halves;
        (first, rest)
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// The key hashes in order.
    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Key and value bytes of all entries.
    pub(crate) fn user_bytes(&self) -> u64 {
        self.user_bytes
    }

    /// How many entries are tombstones.
    pub(crate) fn deletes(&self) -> u64 {
        self.deletes
    }

    /// The longest key in bytes.
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
        copy.longest_key = self.longest_key;
        copy
    }
}
