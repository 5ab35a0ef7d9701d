//! Tests of the rule against a model: every reader reads the same before and after a job.

use super::*;
use crate::parts::ranges::{Fragments, Keep, RangeDelete};

/// A version of the only key. `expiry` is that of a value, 0 for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    seq: SeqNo,
    kind: EntryKind,
    expiry: Millis,
}

const KEY: (u32, &[u8]) = (1, b"key");

/// Returns the number of the value that a reader finds.
fn read(versions: &[Version], ranges: &[SeqNo], at: SeqNo, time: Millis) -> Option<SeqNo> {
    let newest = versions
        .iter()
        .filter(|v| v.seq <= at)
        .max_by_key(|v| v.seq)?;
    let deleted = ranges
        .iter()
        .any(|&range| range <= at && range > newest.seq);
    let is_value = newest.kind == EntryKind::Put && !is_past(newest.expiry, time);
    (is_value && !deleted).then_some(newest.seq)
}

fn retention(snapshots: Vec<SeqNo>, ranges: &[SeqNo], horizon: Millis) -> Retention {
    let range = |&seq: &SeqNo| RangeDelete {
        keyspace: KEY.0,
        begin: b"k".to_vec(),
        end: b"l".to_vec(),
        seq,
    };
    let spans = Fragments::new(ranges.iter().map(range).collect(), Keep::All);
    Retention {
        stripes: Stripes::of(snapshots),
        dropped: Arc::new(vec![7]),
        ranges: vec![Applicable::lasting(Arc::new(spans))],
        horizon,
    }
}

/// Returns the versions that a job leaves, newest first.
fn retained(retention: &Retention, versions: &[Version], is_below: bool) -> Vec<Version> {
    let mut newer = None;
    let mut kept = Vec::new();
    for version in versions {
        if retention.is_hidden(KEY, version.seq, newer) {
            continue;
        }
        newer = Some(version.seq);
        match retention.keep(version.kind as u8, version.expiry, version.seq, || is_below) {
            Kept::Whole => kept.push(*version),
            Kept::Tombstone => kept.push(Version {
                kind: EntryKind::Delete,
                expiry: 0,
                ..*version
            }),
            Kept::Nothing => {}
        }
    }
    kept
}

/// The example in the module's documentation.
#[test]
fn the_essay_is_right() {
    let put = |seq| Version {
        seq,
        kind: EntryKind::Put,
        expiry: 0,
    };
    let versions: Vec<Version> = [12, 10, 8, 7, 4, 2].into_iter().map(put).collect();
    let kept = retained(&retention(vec![5, 10], &[9], 0), &versions, false);
    assert_eq!(kept, [12, 10, 4].map(put));
}

/// A job moves any stretch of a key's versions, with others above and below it. Every snapshot and
/// every later reader reads the same afterwards, and no unneeded version is left.
#[test]
fn no_reader_notices_a_job() {
    let mut rng = fastrand::Rng::with_seed(22);
    for case in 0..60_000 {
        let count = rng.u64(1..10);
        let (mut versions, mut ranges) = (Vec::new(), Vec::new());
        for seq in 1..=count {
            let (kind, expiry) = match rng.u8(..8) {
                0 => {
                    ranges.push(seq);
                    continue;
                }
                1 | 2 => (EntryKind::Delete, 0),
                3 | 4 => (EntryKind::Put, rng.u64(1..20)),
                _ => (EntryKind::Put, 0),
            };
            versions.push(Version { seq, kind, expiry });
        }
        versions.reverse();
        // Snapshots have ascending times, as their numbers ascend.
        let (mut snapshots, mut time) = (Vec::new(), 0);
        for seq in 0..=count {
            time += rng.u64(..4);
            if rng.u8(..4) == 0 {
                snapshots.push((seq, time));
            }
        }
        let now = time + rng.u64(..4);
        let horizon = snapshots.first().map_or(now, |(_, time)| *time);
        let (low, high) = (rng.u64(..=count), rng.u64(..=count));
        let (low, high) = (low.min(high), low.max(high));
        let (above, rest): (Vec<Version>, _) = versions.iter().partition(|v| v.seq > high);
        let (own, below): (Vec<Version>, Vec<Version>) =
            rest.into_iter().partition(|v| v.seq > low);

        let seqs = snapshots.iter().map(|(seq, _)| *seq).collect();
        // A job may know fewer range deletes than readers do.
        let durable: Vec<SeqNo> = ranges.iter().copied().filter(|_| rng.u8(..4) > 0).collect();
        let retention = retention(seqs, &durable, horizon);
        let kept = retained(&retention, &own, !below.is_empty());

        let after: Vec<Version> = [above, kept.clone(), below.clone()].concat();
        let later = [now, now + 5, now + 50].map(|time| (SeqNo::MAX, time));
        for (at, time) in snapshots.iter().copied().chain(later) {
            assert_eq!(
                read(&after, &ranges, at, time),
                read(&versions, &ranges, at, time),
                "case {case}: a reader at {at}, {time}, of {versions:?}, {ranges:?}; \
                 the job had {own:?}, knew {durable:?} and left {kept:?}"
            );
        }
        for pair in kept.windows(2) {
            let (newer, older) = (pair[0].seq, pair[1].seq);
            assert!(
                !retention.stripes.same(newer, older),
                "case {case}: {kept:?}"
            );
        }
        if below.is_empty() && snapshots.is_empty() {
            let is_live = |v: &Version| v.kind == EntryKind::Put && !is_past(v.expiry, horizon);
            assert!(kept.iter().all(is_live), "case {case}: {kept:?}");
        }
    }
}

/// No version of a dropped keyspace is kept.
#[test]
fn dropped_keyspaces_are_hidden() {
    let retention = retention(vec![5], &[], 0);
    assert!(retention.is_hidden((7, b"key"), 9, None));
    assert!(!retention.is_hidden((6, b"key"), 9, None));
}
