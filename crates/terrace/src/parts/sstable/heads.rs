//! This file is the heads of a block: the fronts of some of its keys, in one piece of memory, so that a
//! search reads few cache lines of the block itself.
//!
//! A head is a number: the first seven bytes of a key after what all keys of the block have in common, and
//! in the last place how many of the seven are the key's. So heads compare as their keys do, and two that
//! are equal are of equal keys unless there are more bytes. An index has a head for every entry, since each
//! restarts; other blocks have one at most every [`STRIDE_BYTES`].

use super::entries::{Entries, common_prefix};
use super::layout::Malformed;
use crate::parts::key::key_front;

/// Bytes of entries between two heads of a block whose entries do not all restart.
pub(super) const STRIDE_BYTES: usize = 256;

/// Bytes of a head: its number, and where the entry after its own begins.
const HEAD_BYTES: usize = 8 + 4;

/// Bytes of a key in a head.
const FRONT_BYTES: usize = 7;

/// In the last place of a head whose key has more bytes than it.
const LONGER: u64 = FRONT_BYTES as u64 + 1;

/// The heads of a block.
#[derive(Debug)]
pub(super) struct Heads {
    /// The heads, then where their entries end, then what all keys have in common.
    bytes: Box<[u8]>,
    count: usize,
    /// Whether every entry of the block restarts, and has its head.
    pub(super) dense: bool,
}

/// Where a search goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// All entries are before the sought key.
    Nowhere,
    /// The entry here is the first that is not before the sought key, and is none of it.
    Here(usize),
    /// The entry before this one is before the sought key and has so many bytes in common with it.
    After { at: usize, common: usize },
    /// The restarts between these two tell more.
    Restarts(usize, usize),
}

/// The head of a key that has these bytes after what is in common.
#[inline(always)]
fn head_of(rest: &[u8]) -> u64 {
    key_front(rest) & !0xff | (rest.len() as u64).min(LONGER)
}

/// How many bytes after what all have in common two different heads' keys have in common.
#[inline(always)]
fn common_of(a: u64, b: u64) -> usize {
    let same = (a ^ b).leading_zeros() as usize / 8;
    same.min((a & 0xff) as usize)
        .min((b & 0xff) as usize)
        .min(FRONT_BYTES)
}

impl Heads {
    /// What the heads of a block take at most.
    pub(super) fn weight_max(entries_bytes: usize, restarts: usize) -> usize {
        let count = restarts.max(entries_bytes / STRIDE_BYTES + 1);
        count * HEAD_BYTES + Self::common_max(entries_bytes)
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub(super) fn weight(&self) -> usize {
        self.bytes.len()
    }

    /// Keys that have more in common are found by restarts alone.
    fn common_max(entries_bytes: usize) -> usize {
        entries_bytes / 32
    }

    /// The heads of the block with these entries; `None` for one that they do not suit.
    pub(super) fn of(entries: &Entries) -> Result<Option<Heads>, Malformed> {
        let (end, restarts) = (entries.end(), entries.restart_count());
        let (_, _, first) = entries.restart_entry(0)?;
        // Keys between two that have a front in common have it too (K2).
        let last = last_key(entries)?;
        let skip = common_prefix(first, &last);
        if skip > Self::common_max(end) {
            return Ok(None);
        }
        let (mut fronts, mut ends) = (Vec::new(), Vec::new());
        let dense = restarts > 1 && entries.restart(1)? == entries.head(0)?.end;
        let (mut at, mut next, mut passed) = (0, 0, 0);
        let mut key = Vec::new();
        // BOUND: every turn passes an entry of the block.
        while at < end {
            let head = entries.step(at, &mut key)?;
            if !key.starts_with(&first[..skip]) {
                return Err(Malformed::new(at, "a key between its neighbours (K2)"));
            }
            if dense && (passed >= restarts || entries.restart(passed)? != at) {
                return Ok(None);
            }
            if dense || at >= next {
                fronts.extend_from_slice(&head_of(&key[skip..]).to_le_bytes());
                ends.extend_from_slice(&(head.end as u32).to_le_bytes());
                next = at + STRIDE_BYTES;
            }
            passed += 1;
            at = head.end;
        }
        if dense && passed != restarts {
            return Ok(None);
        }
        let count = ends.len() / 4;
        fronts.append(&mut ends);
        fronts.extend_from_slice(&first[..skip]);
        Ok(Some(Heads {
            bytes: fronts.into_boxed_slice(),
            count,
            dense,
        }))
    }

    #[inline(always)]
    fn head(&self, index: usize) -> u64 {
        let bytes = self.bytes.get(8 * index..8 * index + 8);
        let bytes = bytes.and_then(|bytes| bytes.first_chunk::<8>());
        bytes.map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Where the entries up to the one of head number `index` end.
    #[inline(always)]
    fn end(&self, index: usize) -> usize {
        let at = 8 * self.count + 4 * index;
        let bytes = self.bytes.get(at..at + 4);
        let bytes = bytes.and_then(|bytes| bytes.first_chunk::<4>());
        bytes.map_or(usize::MAX, |bytes| u32::from_le_bytes(*bytes) as usize)
    }

    /// Where the search for a stored key goes on.
    #[inline]
    pub(super) fn find(&self, stored: &[u8]) -> Begin {
        let common = &self.bytes[HEAD_BYTES * self.count..];
        let (front, rest) = stored.split_at(common.len().min(stored.len()));
        if front != common {
            return match front > common {
                true => Begin::Nowhere,
                false => Begin::Here(0),
            };
        }
        let sought = head_of(rest);
        let low = self.first(0, |head| head < sought);
        // Where the heads tell nothing, all of them may be tied.
        let tied = match low < self.count && self.head(low) == sought {
            true => self.first(low, |head| head <= sought) - low,
            false => 0,
        };
        match (self.dense, tied) {
            (true, 0) if low == self.count => Begin::Nowhere,
            (true, 0) => Begin::Here(self.before(low)),
            (true, tied) => Begin::Restarts(low, low + tied),
            (false, 0) if low == 0 => Begin::Here(0),
            // Of very many versions, or keys that differ behind their heads, restarts tell more.
            (false, tied) if low == 0 || tied > 1 => Begin::Restarts(0, usize::MAX),
            (false, _) => Begin::After {
                at: self.before(low),
                common: common.len() + common_of(self.head(low - 1), sought),
            },
        }
    }

    /// The first head from number `low` on that is not `before`; they ascend.
    #[inline(always)]
    fn first(&self, mut low: usize, before: impl Fn(u64) -> bool) -> usize {
        let mut left = self.count - low;
        // BOUND: the range halves.
        while left > 0 {
            let half = left / 2;
            let passes = before(self.head(low + half));
            low = if passes { low + half + 1 } else { low };
            left = if passes { left - half - 1 } else { half };
        }
        low
    }

    /// Where the entry behind that of the head before number `index` begins.
    fn before(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.end(before))
    }
}

/// The key of the last entry.
fn last_key(entries: &Entries) -> Result<Vec<u8>, Malformed> {
    let mut at = entries.restart(entries.restart_count() - 1)?;
    let mut key = Vec::new();
    // BOUND: every turn passes an entry of the block.
    while at < entries.end() {
        at = entries.step(at, &mut key)?.end;
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Heads compare as keys do, as far as they differ; what they say is in common is.
    #[test]
    fn heads_compare_as_keys() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..200_000 {
            let mut key = || -> Vec<u8> { (0..rng.usize(..10)).map(|_| rng.u8(..2)).collect() };
            let (a, b) = (key(), key());
            let (x, y) = (head_of(&a), head_of(&b));
            if x == y {
                let whole = x & 0xff != LONGER;
                assert_eq!(a.get(..7), b.get(..7));
                assert!(!whole || a == b, "{a:?} {b:?}");
                continue;
            }
            assert_eq!(x.cmp(&y), a.cmp(&b), "{a:?} {b:?}");
            let same = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
            assert_eq!(common_of(x, y), same, "{a:?} {b:?}");
        }
    }
}
