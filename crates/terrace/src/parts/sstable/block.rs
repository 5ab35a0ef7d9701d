//! One block in memory, and how it is searched.
//!
//! A search builds no key: it compares what entries do not share with the bytes of the sought key
//! that are still undecided. Where it begins the restarts tell, or the heads of an index and of a block
//! that is searched again.
//!
//! Invariants
//!   K1  The first entry of a block and every entry at a restart share nothing.
//!   K2  Entries ascend strictly by stored key and descending sequence number.
//!
//! Blocks come from media. Whoever made them keeps K1 and K2; readers count on neither for safety,
//! only for the right answer, and return an error where an entry leads outside the block.

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

/// Short sought keys need no allocation.
const INLINE_BYTES: usize = 96;

/// A place in the order, as blocks store it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sought<'a> {
    /// The stored key.
    pub(crate) stored: &'a [u8],
    pub(crate) seq: SeqNo,
}

impl Sought<'_> {
    /// Calls `then` with `target` as blocks store it.
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

    /// How an entry compares with the sought place.
    #[inline(always)]
    fn order_of(&self, stored: &[u8], tag: Tag) -> Order {
        match compare_keys(stored, self.stored) {
            Order::Equal => self.seq.cmp(&tag.seq()),
            order => order,
        }
    }
}

/// The first entry not before a sought place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) at: usize,
    pub(crate) head: EntryHead,
    /// Whether it is a version of the sought key.
    pub(crate) same_key: bool,
}

/// The content of a block of entries, its checksum found right.
#[derive(Debug)]
pub(crate) struct Block {
    entries: Entries,
    /// The offset of the block in its file.
    offset: u64,
    /// Made by the first search of a block with many restarts, and by the second of others; `None` where
    /// they do not suit.
    heads: OnceLock<Option<Heads>>,
    searched: AtomicBool,
}

/// What a search between two heads looks at.
const SEARCHED_BYTES: usize = 2 * super::heads::STRIDE_BYTES;

/// With so many restarts heads are worth making for one search.
const RESTARTS_MANY: usize = 16;

/// With fewer a block has so few entries that heads save nothing.
const RESTARTS_MIN: usize = 2;

impl Block {
    /// The block at `offset` with this content; looks at its end only.
    pub(crate) fn new(content: Vec<u8>, offset: u64) -> Result<Block, DecodeError> {
        Ok(Block {
            entries: Entries::new(content, offset)?,
            offset,
            heads: OnceLock::new(),
            searched: AtomicBool::new(false),
        })
    }

    /// The memory of its content, for another one.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        self.entries.into_memory()
    }

    /// Where the block is in its file.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of memory, with those of heads that may be made.
    pub(crate) fn weight(&self) -> usize {
        let heads = if self.entries.restart_count() >= RESTARTS_MIN {
            Heads::weight_max(self.entries.end(), self.entries.restart_count())
        } else {
            0
        };
        self.entries.capacity() + heads + size_of::<Block>()
    }

    /// The bytes from `from` to `to`.
    #[inline(always)]
    pub(crate) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        self.entries.bytes(from, to)
    }

    /// The error of an entry that is not one.
    #[cold]
    pub(crate) fn damaged(&self, malformed: Malformed) -> DecodeError {
        DecodeError::new(
            "SSTable entry",
            self.offset,
            malformed.expected,
            format!("something else at byte {} of the block", malformed.at),
        )
    }

    /// Its entries, in the order of their bytes.
    #[inline(always)]
    pub(super) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// The heads, if they were made or are worth it now.
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

    /// Bytes of the content.
    #[cfg(test)]
    pub(super) fn content_bytes(&self) -> usize {
        self.entries.capacity()
    }

    /// Bytes that heads take, if they were made.
    #[cfg(test)]
    pub(super) fn heads_bytes(&self) -> Option<usize> {
        self.heads.get()?.as_ref().map(Heads::weight)
    }

    #[cold]
    fn make_heads(&self) -> Result<Option<&Heads>, Malformed> {
        // ORDERING: a hint; whoever misses it makes no heads or makes them once more.
        let again = self.searched.swap(true, Ordering::Relaxed);
        if !again && self.entries.restart_count() < RESTARTS_MANY {
            return Ok(None);
        }
        let heads = Heads::of(&self.entries)?;
        Ok(self.heads.get_or_init(|| heads).as_ref())
    }

    /// The number of restarts whose entries are before `sought`: all before `low` are, and none from `high`.
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

    /// Visits every entry, in order, and compares what a search relies on: K1, K2, and that entries
    /// share as much as they can.
    pub(crate) fn check(&self, visit: &mut EntryVisitor<'_>) -> Result<(), DecodeError> {
        self.check_entries(visit).map_err(|e| self.damaged(e))
    }

    fn check_entries(&self, visit: &mut EntryVisitor<'_>) -> Result<(), Malformed> {
        let (mut at, mut restart) = (0, 0);
        let (mut key, mut last) = (Vec::new(), Vec::new());
        let mut last_tag = None;
        // BOUND: every turn passes an entry of the block.
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
                return Err(Malformed::new(at, "an entry that shares what it can (K1)"));
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
            return Err(Malformed::new(at, "as many restarts as are counted"));
        }
        Ok(())
    }

    /// The first entry not before `sought`, `None` when all are.
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

    /// Searches from `at` on. The entry before is before `sought` and has `common` bytes in common with it.
    #[inline(always)]
    fn search_from(
        &self,
        mut at: usize,
        mut common: usize,
        sought: &Sought<'_>,
    ) -> Result<Option<Spot>, Malformed> {
        // Entries that lie apart would be waited for one by one.
        prefetch(self.bytes(at, self.entries.end().min(at + SEARCHED_BYTES)));
        // BOUND: every turn passes an entry of the block.
        while at < self.entries.end() {
            let head = self.entries.head(at)?;
            // Sharing more than `common`, the entry differs from the sought key where the one
            // before it does, so it is before it too and nothing need be compared.
            if head.shared <= common {
                let spot = |same_key| Ok(Some(Spot { at, head, same_key }));
                // Sharing less, it exceeds the entry before it at a byte that is the sought key's too;
                // but at a restart it may share more than it says.
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

/// Sees the stored key, the fixed part and the value of an entry.
pub(crate) type EntryVisitor<'a> = dyn FnMut(&[u8], &EntryHead, &[u8]) + 'a;
