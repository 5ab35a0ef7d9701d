//! The heads of a block: prefixes of some of its keys in contiguous memory, so that a search reads
//! few cache lines of the block itself.
//!
//! A head is a number: the first seven bytes of a key after the common prefix of all keys of the
//! block, and in the low byte how many of the seven belong to the key. So heads compare as their
//! keys do, and equal heads belong to equal keys unless the keys are longer. An index has a head
//! for every entry, since each is a restart; other blocks have at most one every [`STRIDE_BYTES`].

use super::entries::{Entries, common_prefix};
use super::layout::Malformed;
use crate::parts::key::key_front;

/// The number of bytes of entries between two heads, in a block in which not all entries are
/// restarts.
pub(super) const STRIDE_BYTES: usize = 256;

/// The size of a head: its number, and the offset of the entry after its own.
const HEAD_BYTES: usize = 8 + 4;

/// The number of bytes of a key in a head.
const FRONT_BYTES: usize = 7;

/// The low byte of a head whose key is longer than the head.
const LONGER: u64 = FRONT_BYTES as u64 + 1;

/// The heads of a block.
#[derive(Debug)]
pub(super) struct Heads {
    /// The heads, then the end offsets of their entries, then the common prefix of all keys.
    bytes: Box<[u8]>,
    count: usize,
    /// Whether every entry of the block is a restart and has a head.
    pub(super) dense: bool,
}

/// Where a search continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// All entries precede the sought key.
    Nowhere,
    /// The block contains no version of the sought key, and the entry here is the first one after
    /// it.
    Here(usize),
    /// The entry before this one precedes the sought key and shares `common` bytes with it.
    After { at: usize, common: usize },
    /// The search must continue among the restarts in this range.
    Restarts(usize, usize),
}

/// Returns the head of a key with these bytes after the common prefix.
#[inline(always)]
fn head_of(rest: &[u8]) -> u64 {
    key_front(rest) & !0xff | (rest.len() as u64).min(LONGER)
}

/// Returns how many bytes after the common prefix the keys of two different heads share.
#[inline(always)]
fn common_of(a: u64, b: u64) -> usize {
    let same = (a ^ b).leading_zeros() as usize / 8;
    same.min((a & 0xff) as usize)
        .min((b & 0xff) as usize)
        .min(FRONT_BYTES)
}

impl Heads {
    /// Returns the maximum size of the heads of a block.
    pub(super) fn weight_max(entries_bytes: usize, restarts: usize) -> usize {
        let count = restarts.max(entries_bytes / STRIDE_BYTES + 1);
        count * HEAD_BYTES + Self::common_max(entries_bytes)
    }

    /// Returns the size of the heads in bytes.
    #[cfg(test)]
    pub(super) fn weight(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the maximum length of the common prefix. Blocks with longer prefixes are searched by
    /// restarts alone.
    fn common_max(entries_bytes: usize) -> usize {
        entries_bytes / 32
    }

    /// Builds the heads of the block with these entries. Returns `None` if heads do not suit the
    /// block.
    pub(super) fn of(entries: &Entries) -> Result<Option<Heads>, Malformed> {
        let (end, restarts) = (entries.end(), entries.restart_count());
        let (_, _, first) = entries.restart_entry(0)?;
        // Keys between two keys with a common prefix have that prefix too (K2).
        let last = last_key(entries)?;
        let skip = common_prefix(first, &last);
        if skip > Self::common_max(end) {
            return Ok(None);
        }
        let (mut fronts, mut ends) = (Vec::new(), Vec::new());
        let dense = restarts > 1 && entries.restart(1)? == entries.head(0)?.end;
        let (mut at, mut next, mut passed) = (0, 0, 0);
        let mut key = Vec::new();
        // BOUND: every iteration passes an entry of the block.
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

    /// Returns the end of the entry of head `index`.
    #[inline(always)]
    fn end(&self, index: usize) -> usize {
        let at = 8 * self.count + 4 * index;
        let bytes = self.bytes.get(at..at + 4);
        let bytes = bytes.and_then(|bytes| bytes.first_chunk::<4>());
        bytes.map_or(usize::MAX, |bytes| u32::from_le_bytes(*bytes) as usize)
    }

    /// Returns where the search for a stored key continues.
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
        // If the heads do not distinguish the keys, all of them may be equal.
        let tied = match low < self.count && self.head(low) == sought {
            true => self.first(low, |head| head <= sought) - low,
            false => 0,
        };
        match (self.dense, tied) {
            (true, 0) if low == self.count => Begin::Nowhere,
            (true, 0) => Begin::Here(self.before(low)),
            (true, tied) => Begin::Restarts(low, low + tied),
            (false, 0) if low == 0 => Begin::Here(0),
            // For keys with very many versions, or that differ only beyond their heads, restarts
            // distinguish more.
            (false, tied) if low == 0 || tied > 1 => Begin::Restarts(0, usize::MAX),
            (false, _) => Begin::After {
                at: self.before(low),
                common: common.len() + common_of(self.head(low - 1), sought),
            },
        }
    }

    /// Returns the first head from `low` on for which `before` is false. Heads ascend.
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

    /// Returns the start of the entry after that of the head before `index`.
    fn before(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.end(before))
    }
}

/// Returns the key of the last entry.
fn last_key(entries: &Entries) -> Result<Vec<u8>, Malformed> {
    let mut at = entries.restart(entries.restart_count() - 1)?;
    let mut key = Vec::new();
    // BOUND: every iteration passes an entry of the block.
    while at < entries.end() {
        at = entries.step(at, &mut key)?.end;
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Different heads compare as their keys do, and `common_of` returns the length of the keys'
    /// common prefix.
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
