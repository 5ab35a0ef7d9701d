//! Ranges of user keys, as callers give them and as places between entries.

use std::ops::{Bound, RangeBounds};

use crate::parts::key::Target;
use crate::types::KEY_BYTES_MAX;

/// A range of user keys.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
}

impl Bounds {
    pub(super) fn all() -> Bounds {
        Bounds {
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
        }
    }

    pub(super) fn of<K: AsRef<[u8]>>(bounds: &impl RangeBounds<K>) -> Bounds {
        let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Bounds {
            lower: owned(bounds.start_bound()),
            upper: owned(bounds.end_bound()),
        }
    }

    pub(super) fn prefix(prefix: &[u8]) -> Bounds {
        let upper = after_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        Bounds {
            lower: Bound::Included(prefix.to_vec()),
            upper,
        }
    }

    /// Returns the length of the longer of the two keys.
    pub(super) fn longest_key(&self) -> usize {
        let len = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.len(),
            Bound::Unbounded => 0,
        };
        len(&self.lower).max(len(&self.upper))
    }

    /// Returns the same keys as a range from one key, inclusive, to another, exclusive; an empty
    /// end is that of the keyspace. `None`: no key can be in it.
    pub(super) fn half_open(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let begin = match &self.lower {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => successor(key)?,
        };
        let end = match &self.upper {
            Bound::Unbounded => Vec::new(),
            Bound::Excluded(key) if key.is_empty() => return None,
            Bound::Excluded(key) => key.clone(),
            // A key without a successor is the last possible key.
            Bound::Included(key) => successor(key).unwrap_or_default(),
        };
        (end.is_empty() || begin < end).then_some((begin, end))
    }

    /// Returns the places at which the range begins and ends, as owned targets.
    pub(super) fn places(&self, keyspace: u32) -> (Place, Place) {
        let lower = match &self.lower {
            Bound::Unbounded => Place::before(keyspace, &[]),
            Bound::Included(key) => Place::before(keyspace, key),
            Bound::Excluded(key) => Place::after(keyspace, key),
        };
        let upper = match &self.upper {
            Bound::Unbounded => Place::before(keyspace + 1, &[]),
            Bound::Included(key) => Place::after(keyspace, key),
            Bound::Excluded(key) => Place::before(keyspace, key),
        };
        (lower, upper)
    }
}

/// Returns the first key after all that begin with `prefix`: its last byte that is not 0xff,
/// incremented.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut end = prefix[..=kept].to_vec();
    end[kept] += 1;
    Some(end)
}

/// Returns the next possible key, if any.
fn successor(key: &[u8]) -> Option<Vec<u8>> {
    if key.len() >= KEY_BYTES_MAX {
        return after_prefix(key);
    }
    let mut next = key.to_vec();
    next.push(0);
    Some(next)
}

/// A place between two user keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    keyspace: u32,
    key: Vec<u8>,
    after: bool,
}

impl Place {
    /// Returns the keyspace and the key next to the place.
    pub(super) fn key(&self) -> (u32, Vec<u8>) {
        (self.keyspace, self.key.clone())
    }

    pub(super) fn before(keyspace: u32, key: &[u8]) -> Place {
        Place {
            keyspace,
            key: key.to_vec(),
            after: false,
        }
    }

    pub(super) fn after(keyspace: u32, key: &[u8]) -> Place {
        Place {
            keyspace,
            key: key.to_vec(),
            after: true,
        }
    }

    /// Returns the place in the order of entries: before every version of the key, or after them
    /// all.
    pub(super) fn target(&self) -> Target<'_> {
        if self.after {
            return Target {
                keyspace: self.keyspace,
                key: &self.key,
                seq: 0,
            };
        }
        Target::first_of(self.keyspace, &self.key)
    }

    /// Returns the exclusive end of the keys of `keyspace` before the place; empty for all, `None`
    /// if there are none.
    pub(super) fn end_in(&self, keyspace: u32) -> Option<Vec<u8>> {
        if self.keyspace > keyspace {
            return Some(Vec::new());
        }
        let mut end = self.key.clone();
        if self.after {
            end.push(0);
        }
        (!end.is_empty()).then_some(end)
    }

    /// Returns whether an entry of this key is before the place.
    pub(super) fn is_after(&self, keyspace: u32, key: &[u8]) -> bool {
        match (keyspace, key).cmp(&(self.keyspace, self.key.as_slice())) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.after,
            std::cmp::Ordering::Greater => false,
        }
    }

    pub(super) fn key_order(&self) -> (u32, &[u8], bool) {
        (self.keyspace, &self.key, self.after)
    }
}
