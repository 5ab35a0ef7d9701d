//! A block in memory, and the search in it.
//!
//! A search builds no key: it compares the unshared bytes of an entry with the bytes of the sought
//! key that are still undecided. The starting point comes from the restarts or, in an index and in
//! a block that is searched again, from the heads.
//!
//! Invariants
//!   K1  The first entry of a block and every entry at a restart share nothing.
//!   K2  Entries ascend strictly by stored key and descending sequence number.
//!
//! Blocks come from media. Writers keep K1 and K2. Readers rely on them for correct results but not
//! for safety, and return an error if an entry leads outside the block.

use std::cmp::Ordering as Order;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_media::prefetch;

use super::entries::{Entries, common_prefix};
use super::heads::{Begin, Heads};
use super::layout::{EntryHead, KEYSPACE_BYTES, Malformed, Tag, keyspace_bytes};
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;
use crate::parts::key::compare_keys;
use crate::types::SeqNo;

/// The longest sought key, in bytes, that needs no allocation.
const INLINE_BYTES: usize = 96;

/// A place in the order, in the encoding of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sought<'a> {
    /// The stored key.
    pub(crate) stored: &'a [u8],
    pub(crate) seq: SeqNo,
}

impl Sought<'_> {
    /// Calls `then` with `target` in the encoding of blocks.
    #[inline]
    pub(crate) fn with<R>(target: &Target<'_>, then: impl FnOnce(Sought<'_>) -> R) -> R {
        let len = KEYSPACE_BYTES + target.key.len();
        let mut inline = [0u8; INLINE_BYTES];
        let mut heap;
        let stored = if len <= INLINE_BYTES {
            &mut inline[..len]
        } else {
            heap = vec![0; len];
            &mut heap[..]
        };
        stored[..KEYSPACE_BYTES].copy_from_slice(&keyspace_bytes(target.keyspace));
        stored[KEYSPACE_BYTES..].copy_from_slice(target.key);
        then(Sought {
            stored,
            seq: target.seq,
        })
    }

    /// Compares an entry with the sought place.
    #[inline(always)]
    fn order_of(&self, stored: &[u8], tag: Tag) -> Order {
        match compare_keys(stored, self.stored) {
            Order::Equal => self.seq.cmp(&tag.seq()),
            order => order,
        }
    }
}

/// The first entry at or after a sought place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) at: usize,
    pub(crate) head: EntryHead,
    /// Whether the entry is a version of the sought key.
    pub(crate) same_key: bool,
}

/// The content of a block of entries, with a verified checksum.
#[derive(Debug)]
pub(crate) struct Block {
    entries: Entries,
    /// The offset of the block in its file.
    offset: u64,
    /// Made by the first search of a block with many restarts and by the second search of others.
    /// `None` if heads do not suit the block.
    heads: OnceLock<Option<Heads>>,
    searched: AtomicBool,
}

/// The number of bytes that a search between two heads visits.
const SEARCHED_BYTES: usize = 2 * super::heads::STRIDE_BYTES;

/// The number of restarts from which heads pay off in the first search.
const RESTARTS_MANY: usize = 16;

/// The number of restarts below which a block has too few entries for heads to pay off.
const RESTARTS_MIN: usize = 2;

impl Block {
    /// Creates the block at `offset` with this content, of which only the end is checked.
    pub(crate) fn new(content: Vec<u8>, offset: u64) -> Result<Block, DecodeError> {
        Ok(Block {
            entries: Entries::new(content, offset)?,
            offset,
            heads: OnceLock::new(),
            searched: AtomicBool::new(false),
        })
    }

    /// Returns the memory of the content, for reuse.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        self.entries.into_memory()
    }

    /// Returns the offset of the block in its file.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the size in bytes of the block in memory, including heads that may be made later.
    pub(crate) fn weight(&self) -> usize {
        let heads = if self.entries.restart_count() >= RESTARTS_MIN {
            Heads::weight_max(self.entries.end(), self.entries.restart_count())
        } else {
            0
        };
        self.entries.capacity() + heads + size_of::<Block>()
    }

    /// Returns the bytes from `from` to `to`.
    #[inline(always)]
    pub(crate) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        self.entries.bytes(from, to)
    }

    /// Returns the error for a malformed entry.
    #[cold]
    pub(crate) fn damaged(&self, malformed: Malformed) -> DecodeError {
        DecodeError::new(
            "SSTable entry",
            self.offset,
            malformed.expected,
            format!("something else at byte {} of the block", malformed.at),
        )
    }

    /// Returns the entries of the block.
    #[inline(always)]
    pub(super) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Returns the heads, if they exist or are worth making now.
    #[inline]
    fn heads(&self) -> Result<Option<&Heads>, Malformed> {
        if self.entries.restart_count() < RESTARTS_MIN {
            return Ok(None);
        }
        match self.heads.get() {
            Some(heads) => Ok(heads.as_ref()),
            None => self.make_heads(),
        }
    }

    /// Returns the size of the content in bytes.
    #[cfg(test)]
    pub(super) fn content_bytes(&self) -> usize {
        self.entries.capacity()
    }

    /// Returns the size of the heads in bytes, if they were made.
    #[cfg(test)]
    pub(super) fn heads_bytes(&self) -> Option<usize> {
        self.heads.get()?.as_ref().map(Heads::weight)
    }

    #[cold]
    fn make_heads(&self) -> Result<Option<&Heads>, Malformed> {
        // ORDERING: relaxed, as this is a hint. A thread that misses it makes no heads or makes
        // them again.
        let again = self.searched.swap(true, Ordering::Relaxed);
        if !again && self.entries.restart_count() < RESTARTS_MANY {
            return Ok(None);
        }
        let heads = Heads::of(&self.entries)?;
        Ok(self.heads.get_or_init(|| heads).as_ref())
    }

    /// Returns the number of restarts whose entries are before `sought`. All restarts before `low`
    /// are, and none from `high` on.
    #[inline]
    fn restarts_before(
        &self,
        sought: &Sought<'_>,
        mut low: usize,
        mut high: usize,
    ) -> Result<usize, Malformed> {
        // BOUND: the range halves.
        while low < high {
            let middle = low + (high - low) / 2;
            let (_, head, key) = self.entries.restart_entry(middle)?;
            match sought.order_of(key, head.tag) {
                Order::Less => low = middle + 1,
                Order::Equal | Order::Greater => high = middle,
            }
        }
        Ok(low)
    }

    /// Visits every entry in order and checks the properties that a search relies on: K1, K2, and
    /// that entries share as many bytes as they can.
    pub(crate) fn check(&self, visit: &mut EntryVisitor<'_>) -> Result<(), DecodeError> {
        self.check_entries(visit).map_err(|e| self.damaged(e))
    }

    fn check_entries(&self, visit: &mut EntryVisitor<'_>) -> Result<(), Malformed> {
        let (mut at, mut restart) = (0, 0);
        let (mut key, mut last) = (Vec::new(), Vec::new());
        let mut last_tag = None;
        // BOUND: every iteration passes an entry of the block.
        while at < self.entries.end() {
            let head = self.entries.step(at, &mut key)?;
            let restarts =
                restart < self.entries.restart_count() && self.entries.restart(restart)? == at;
            restart += usize::from(restarts);
            let shared = if restarts {
                0
            } else {
                common_prefix(&last, &key)
            };
            if head.shared != shared || at == 0 && !restarts {
                return Err(Malformed::new(
                    at,
                    "an entry that shares its longest prefix (K1)",
                ));
            }
            let sought = Sought {
                stored: &key,
                seq: head.tag.seq(),
            };
            if last_tag.is_some_and(|tag| sought.order_of(&last, tag) != Order::Less) {
                return Err(Malformed::new(at, "a later entry (K2)"));
            }
            visit(&key, &head, self.bytes(head.value_at, head.end));
            last.clone_from(&key);
            last_tag = Some(head.tag);
            at = head.end;
        }
        if self.entries.end() > 0 && restart != self.entries.restart_count() {
            return Err(Malformed::new(at, "the counted number of restarts"));
        }
        Ok(())
    }

    /// Returns the first entry at or after `sought`, or `None` if all entries precede it.
    #[inline]
    pub(crate) fn find(&self, sought: &Sought<'_>) -> Result<Option<Spot>, DecodeError> {
        self.search(sought).map_err(|e| self.damaged(e))
    }

    #[inline]
    fn search(&self, sought: &Sought<'_>) -> Result<Option<Spot>, Malformed> {
        if self.entries.end() == 0 {
            return Ok(None);
        }
        let heads = self.heads()?;
        let begin = heads.map_or(Begin::Restarts(0, usize::MAX), |heads| {
            heads.find(sought.stored)
        });
        let dense = heads.is_some_and(|heads| heads.dense);
        let (at, common) = match begin {
            Begin::Nowhere => return Ok(None),
            Begin::Here(at) => return Ok(Some(self.spot(at, false)?)),
            Begin::After { at, common } => (at, common),
            Begin::Restarts(low, high) => {
                let high = high.min(self.entries.restart_count());
                let before = self.restarts_before(sought, low, high)?;
                match before.checked_sub(1) {
                    Some(_) if dense && before == self.entries.restart_count() => return Ok(None),
                    Some(index) if !dense => {
                        let (_, head, key) = self.entries.restart_entry(index)?;
                        (head.end, common_prefix(key, sought.stored))
                    }
                    _ => {
                        let (at, _, key) = self.entries.restart_entry(before)?;
                        return Ok(Some(self.spot(at, key == sought.stored)?));
                    }
                }
            }
        };
        self.search_from(at, common, sought)
    }

    #[inline(always)]
    fn spot(&self, at: usize, same_key: bool) -> Result<Spot, Malformed> {
        let head = self.entries.head(at)?;
        Ok(Spot { at, head, same_key })
    }

    /// Searches from `at` on. The entry before `at` precedes `sought` and shares `common` bytes
    /// with it.
    #[inline(always)]
    fn search_from(
        &self,
        mut at: usize,
        mut common: usize,
        sought: &Sought<'_>,
    ) -> Result<Option<Spot>, Malformed> {
        // Without this, a search waits for the cache lines one by one.
        prefetch(self.bytes(at, self.entries.end().min(at + SEARCHED_BYTES)));
        // BOUND: every iteration passes an entry of the block.
        while at < self.entries.end() {
            let head = self.entries.head(at)?;
            // An entry that shares more than `common` differs from the sought key at the same byte
            // as the one before it, so it precedes the key too and need not be compared.
            if head.shared <= common {
                let spot = |same_key| Ok(Some(Spot { at, head, same_key }));
                // An entry that shares less exceeds the one before it, and so the sought key, in a
                // byte that those two share. An entry at a restart is compared, since it may share
                // more than it states.
                if head.shared < common && head.shared > 0 {
                    return spot(false);
                }
                let key = self.bytes(head.key_at, head.value_at);
                let rest = sought.stored.get(head.shared..).unwrap_or(&[]);
                let more = common_prefix(key, rest);
                match (key.get(more), rest.get(more)) {
                    (Some(a), Some(b)) if a > b => return spot(false),
                    (Some(_), None) => return spot(false),
                    (None, None) if head.tag.seq() <= sought.seq => return spot(true),
                    _ => common = head.shared + more,
                }
            }
            at = head.end;
        }
        Ok(None)
    }
}

/// A visitor of entries, called with the stored key, the fixed part and the value.
pub(crate) type EntryVisitor<'a> = dyn FnMut(&[u8], &EntryHead, &[u8]) + 'a;
