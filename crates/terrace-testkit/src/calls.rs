//! Calls the operations of scripts on a store and compares the results.

use std::collections::VecDeque;
use std::time::Duration;

use terrace::{Db, Iter, Keyspace, VerifyReport};

use crate::oracle::Outcome;
use crate::script::{Entry, Key, Range};
use crate::value::{Value, shown};
use crate::watchdog::watched;

/// Compacts a range of a keyspace.
pub(crate) fn compact(space: &Keyspace, range: &Range) -> terrace::Result<()> {
    match range {
        Range::Prefix(prefix) => space.compact_range(prefix.clone()..),
        Range::All | Range::Between(..) => space.compact_range(bounds(range)),
    }
}

pub(crate) fn bounds(range: &Range) -> (std::ops::Bound<Key>, std::ops::Bound<Key>) {
    match range {
        Range::Between(low, high) => (low.clone(), high.clone()),
        Range::All | Range::Prefix(_) => (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded),
    }
}

pub(crate) fn ttl(entry: &Entry) -> Duration {
    Duration::from_millis(u64::from(entry.ttl.unwrap_or_default()))
}

pub(crate) fn half_open(from: &Key, end: &Key) -> (std::ops::Bound<Key>, std::ops::Bound<Key>) {
    let high = match end.0.is_empty() {
        true => std::ops::Bound::Unbounded,
        false => std::ops::Bound::Excluded(end.clone()),
    };
    (std::ops::Bound::Included(from.clone()), high)
}

pub(crate) fn agree(key: &Key, expected: Option<Value>, found: Option<&[u8]>) -> Outcome {
    let same = match (expected, found) {
        (Some(value), Some(found)) => value.is(found),
        (None, None) => true,
        _ => false,
    };
    if same {
        return Ok(());
    }
    Err(format!(
        "{key:?}: expected {expected:?}, found {}",
        shown(found)
    ))
}

pub(crate) fn expected(
    live: std::collections::BTreeMap<Key, Value>,
    range: &Range,
) -> VecDeque<(Key, Value)> {
    live.into_iter()
        .filter(|(key, _)| range.contains(key))
        .collect()
}

/// Takes one pair from the front or the back of an iterator and compares it.
pub(crate) fn take(iter: &mut Iter, left: &mut VecDeque<(Key, Value)>, back: bool) -> Outcome {
    let (found, expected) = if back {
        (iter.next_back(), left.pop_back())
    } else {
        (iter.next(), left.pop_front())
    };
    let found = found
        .transpose()
        .map_err(|e| format!("an iterator: {e:?}"))?;
    let side = if back { "back" } else { "front" };
    match (&found, &expected) {
        (None, None) => Ok(()),
        (Some(pair), Some((key, value))) if pair.key() == key.0 && value.is(pair.value()) => Ok(()),
        _ => Err(format!(
            "an iterator's {side} gives {:?}, expected {expected:?}",
            found.map(|pair| (Key(pair.key().to_vec()), shown(Some(pair.value()))))
        )),
    }
}

/// Takes all pairs. The bits of `moves` choose the end for each.
pub(crate) fn take_all(iter: &mut Iter, left: &mut VecDeque<(Key, Value)>, moves: u64) -> Outcome {
    for turn in 0..left.len() as u32 + 1 {
        take(iter, left, moves.rotate_right(turn) & 1 == 1)?;
    }
    take(iter, left, moves & 1 == 1)
}

/// Fails if verify found a problem.
pub(crate) fn check_report(report: &VerifyReport) -> Outcome {
    match report.problems.as_slice() {
        [] => Ok(()),
        problems => Err(format!("verify finds: {}", problems.join("; "))),
    }
}

/// Counts the pairs in scans of all keyspaces.
pub fn count_pairs(db: &Db) -> Outcome<u64> {
    let failed = |e: terrace::Error| format!("counting: {e:?}");
    let mut count = 0;
    for name in db.list_keyspaces().map_err(failed)? {
        if let Some(space) = db.keyspace(&name).map_err(failed)? {
            for pair in space.iter().map_err(failed)? {
                pair.map_err(failed)?;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// Verifies a store and reports all problems in one sentence.
pub fn verify(db: &Db, live: Option<u64>) -> Outcome {
    let report =
        watched("verify", || db.verify(&mut |_| {})).map_err(|e| format!("verify: {e:?}"))?;
    check_report(&report)?;
    let counted = report.live_entries;
    match live.filter(|live| *live != counted) {
        Some(live) => Err(format!("verify counts {counted} live entries of {live}")),
        None => Ok(()),
    }
}
