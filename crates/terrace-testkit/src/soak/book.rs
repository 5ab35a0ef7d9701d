//! The books of one client: what its keys must show, now and in its snapshots.
//!
//! A client writes only keys of its own, one call after the other, so its books are exact
//! regardless of other clients. Only the expiry of a value is not known to the millisecond.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use terrace::{ErrorKind, KeyValue};

use crate::oracle::Outcome;
use crate::value::{Value, shown};

/// The keyspaces that a client writes: the default one, a shared one, and its own.
pub(super) const SPACES: usize = 3;

/// Returns the wall-clock time in milliseconds since 1970.
pub(super) fn calendar() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// The wall-clock times before and after a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    from: u64,
    to: u64,
}

impl Moment {
    /// Runs `call` and returns its times.
    pub(super) fn of<R>(call: impl FnOnce() -> R) -> (R, Moment) {
        let from = calendar();
        let answer = call();
        // The store rounds up, the wall clock down.
        let to = calendar() + 1;
        (answer, Moment { from, to })
    }
}

/// The last write of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) value: Value,
    /// The first and the last millisecond in which it may expire.
    pub(super) expiry: Option<(u64, u64)>,
}

impl Known {
    fn may_show(&self, moment: Moment) -> bool {
        self.expiry.is_none_or(|(_, last)| last > moment.from)
    }

    fn may_be_absent(&self, moment: Moment) -> bool {
        self.expiry.is_some_and(|(first, _)| first <= moment.to)
    }
}

/// The books. They are cloned for a snapshot.
#[derive(Clone, Default)]
pub(super) struct Book {
    spaces: [BTreeMap<Vec<u8>, Known>; SPACES],
}

impl Book {
    pub(super) fn set(&mut self, space: usize, key: &[u8], known: Option<Known>) {
        match known {
            Some(known) => drop(self.spaces[space].insert(key.to_vec(), known)),
            None => drop(self.spaces[space].remove(key)),
        }
    }

    pub(super) fn delete_range(&mut self, space: usize, from: &[u8], to: &[u8]) {
        self.spaces[space].retain(|key, _| key.as_slice() < from || key.as_slice() >= to);
    }

    pub(super) fn clear(&mut self, space: usize) {
        self.spaces[space].clear();
    }

    /// Returns the keys of a keyspace, in order.
    pub(super) fn pairs(
        &self,
        space: usize,
    ) -> impl DoubleEndedIterator<Item = (&[u8], Known)> + Clone {
        self.spaces[space].iter().map(|(k, v)| (k.as_slice(), *v))
    }

    /// Returns the bytes of keys and values that a scan would return, including expired ones.
    pub(super) fn live_bytes(&self) -> u64 {
        let pair = |(key, known): (&Vec<u8>, &Known)| key.len() as u64 + u64::from(known.value.len);
        let sum = |space: &BTreeMap<Vec<u8>, Known>| space.iter().map(pair).sum::<u64>();
        self.spaces.iter().map(sum).sum()
    }

    pub(super) fn check_get(
        &self,
        (space, key): (usize, &[u8]),
        found: Option<&[u8]>,
        moment: Moment,
    ) -> Outcome {
        let known = self.spaces[space].get(key);
        let right = match (known, found) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(known), None) => known.may_be_absent(moment),
            (Some(known), Some(bytes)) => known.may_show(moment) && known.value.is(bytes),
        };
        if right {
            return Ok(());
        }
        Err(format!(
            "keyspace {space}, {}: expected {known:?} at {moment:?}, found {}",
            key.escape_ascii(),
            shown(found)
        ))
    }
}

/// Compares the pairs of a scan with the books, both in the order of the scan. `mine` selects the
/// keys of the books. Returns false if the store had no memory for the scan.
pub(super) fn compare<'a>(
    mut expected: impl Iterator<Item = (&'a [u8], Known)>,
    found: impl Iterator<Item = terrace::Result<KeyValue>>,
    moment: Moment,
    mine: &dyn Fn(&[u8]) -> bool,
) -> Outcome<bool> {
    for pair in found {
        let pair = match pair {
            Ok(pair) => pair,
            Err(e) if e.kind() == ErrorKind::Full => return Ok(false),
            Err(e) => return Err(format!("a scan fails: {e:?}")),
        };
        if mine(pair.key()) {
            step(&mut expected, Some(&pair), moment)?;
        }
    }
    step(&mut expected, None, moment).map(|()| true)
}

/// Compares the next pair of a scan, or its end, with the next entry of the books.
pub(super) fn step<'a>(
    expected: &mut impl Iterator<Item = (&'a [u8], Known)>,
    found: Option<&KeyValue>,
    moment: Moment,
) -> Outcome {
    for (key, known) in expected {
        if let Some(pair) = found
            && pair.key() == key
        {
            if known.may_show(moment) && known.value.is(pair.value()) {
                return Ok(());
            }
            let value = shown(Some(pair.value()));
            let key = key.escape_ascii();
            return Err(format!(
                "a scan gives {key} {value}, expected {known:?} at {moment:?}"
            ));
        }
        if !known.may_be_absent(moment) {
            let next = found.map(|pair| pair.key().escape_ascii().to_string());
            return Err(format!(
                "a scan leaves out {} {known:?} at {moment:?}, it gives {next:?}",
                key.escape_ascii()
            ));
        }
    }
    match found {
        None => Ok(()),
        Some(pair) => Err(format!(
            "a scan gives {} {}, which must not be there at {moment:?}",
            pair.key().escape_ascii(),
            shown(Some(pair.value()))
        )),
    }
}
