//! Tests of range deletes against a plain list of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::layout::{RANGE_DELETE_BIT, decode, encode};
use super::*;
use crate::parts::expiry::Time;
use crate::parts::key::Target;
use crate::parts::sequence::Sequencer;
use crate::parts::snapshots::{SnapshotList, Stripes};
use crate::types::{SEQ_MAX, SeqNo};

fn key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = rng.usize(0..4);
    (0..len).map(|_| b"ab\xff"[rng.usize(..3)]).collect()
}

fn ranges(rng: &mut fastrand::Rng, count: usize) -> Vec<RangeDelete> {
    let mut made = Vec::new();
    // BOUND: half of the drawn ranges contain keys.
    while made.len() < count {
        let range = RangeDelete {
            keyspace: rng.u32(1..3),
            begin: key(rng),
            end: key(rng),
            seq: made.len() as SeqNo * 2 + 1,
        };
        if range.is_some() {
            made.push(range);
        }
    }
    made
}

fn every_key() -> Vec<Vec<u8>> {
    let mut keys = BTreeSet::from([Vec::new()]);
    for _ in 0..4 {
        let longer: Vec<Vec<u8>> = keys
            .iter()
            .flat_map(|k: &Vec<u8>| b"ab\xff".map(|c| [k.as_slice(), &[c]].concat()))
            .collect();
        keys.extend(longer);
    }
    keys.into_iter().collect()
}

fn stripes(at: &[SeqNo]) -> Stripes {
    let list = SnapshotList::default();
    for &seq in at {
        let sequencer = Sequencer::default();
        sequencer.start_after(seq);
        let clock = Arc::new(terrace_media::ManualClock::new());
        list.register_number(&sequencer, &Time::new(clock, 0));
    }
    list.stripes()
}

/// An encoded range delete decodes to its ends, and invalid bytes are refused.
#[test]
fn entries_round_trip() {
    for (begin, end) in [("", ""), ("a", ""), ("", "b"), ("a", "ab"), ("a\0", "b")] {
        let bytes = encode(begin.as_bytes(), end.as_bytes());
        assert_eq!(decode(&bytes, 0), Ok((begin.as_bytes(), end.as_bytes())));
        let range = RangeDelete::from_entry(7 | RANGE_DELETE_BIT, &bytes, 5, 0).unwrap();
        assert_eq!((range.keyspace, range.seq), (7, 5));
    }
    for bad in [
        vec![],
        vec![1, 0, 0],
        vec![2, 0, 0, 0, b'a'],
        encode(b"b", b"a"),
        encode(b"a", b"a"),
        vec![0xff; 8],
    ] {
        assert!(decode(&bad, 0).is_err(), "{bad:?}");
    }
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..20_000 {
        let len = rng.usize(0..12);
        let bytes: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
        if let Ok((begin, end)) = decode(&bytes, 0) {
            assert_eq!(encode(begin, end), bytes);
        }
    }
}

/// Logs are checked once for each range delete, and again for those that a sync missed.
#[test]
fn range_deletes_are_looked_at_until_they_are_durable() {
    let live = LiveRanges::default();
    assert!(!live.look());
    let range = |seq| RangeDelete {
        seq,
        ..ranges(&mut fastrand::Rng::with_seed(1), 1)[0].clone()
    };
    live.add(vec![range(5)], &Readable::default(), true);
    assert!(live.look() && !live.look());
    // It was not visible when the sync began.
    live.mark_synced(4);
    assert!(live.look() && !live.look());
    live.look_again();
    assert!(live.look() && !live.look());
    live.mark_synced(5);
    assert_eq!(live.durable(), 5);
    live.look_again();
    assert!(!live.look(), "it is durable");
    live.add(vec![range(7)], &Readable::default(), true);
    live.mark_synced(8);
    assert!(live.look() && !live.look(), "it may cover something");
}

/// A set built piece by piece agrees with the plain list for every key at every moment; stretches
/// have no gap and do not extend too far.
#[test]
fn sets_agree_with_a_plain_list() {
    let keys = every_key();
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let all = ranges(&mut rng, 1 + seed as usize / 3);
        let live = LiveRanges::default();
        for range in &all {
            live.add(vec![range.clone()], &Readable::default(), true);
        }
        let set = live.set_above(|| None).unwrap();
        let upto = rng.u64(..all.len() as u64 * 2 + 2);
        let stripes = stripes(&[rng.u64(..upto + 1), rng.u64(..upto + 1)]);
        let naive = |keyspace, key: &[u8], at| {
            let over = all.iter().filter(|r| r.seq <= at && r.has(keyspace, key));
            over.map(|r| r.seq).max()
        };
        for (i, key) in keys.iter().enumerate() {
            for keyspace in 1..3 {
                for at in [0, upto, SEQ_MAX] {
                    let newest = naive(keyspace, key, at);
                    assert_eq!(set.newest(keyspace, key, at), newest, "seed {seed}");
                    let cover = set.cover(keyspace, key, at);
                    assert_eq!(cover.as_ref().map(|c| c.seq), newest);
                    let Some(cover) = cover else { continue };
                    let inside = keys[i..]
                        .iter()
                        .take_while(|k| cover.end.is_empty() || **k < cover.end);
                    for k in inside {
                        assert!(
                            naive(keyspace, k, at) >= newest,
                            "seed {seed}, {key:?} {k:?}"
                        );
                    }
                    if let Some(before) = set.cover_before(keyspace, &cover.end, at) {
                        let inside = keys.iter().filter(|k| {
                            **k >= before.begin && (before.end.is_empty() || **k < before.end)
                        });
                        for k in inside {
                            assert!(naive(keyspace, k, at) >= Some(before.seq), "seed {seed}");
                        }
                    }
                }
                let seq = rng.u64(..upto + 1);
                let hidden = all.iter().any(|r| {
                    r.has(keyspace, key) && r.seq > seq && r.seq <= upto && stripes.same(r.seq, seq)
                });
                let hides = set.hides((keyspace, key), seq, upto, &stripes);
                assert_eq!(hides, hidden, "seed {seed}, key {key:?}, version {seq}");
            }
        }
        for _ in 0..50 {
            let (a, b) = (
                &keys[rng.usize(..keys.len())],
                &keys[rng.usize(..keys.len())],
            );
            let (low, high) = (a.min(b), a.max(b));
            let seqs = (rng.u64(..upto + 1), upto);
            let all_hidden = all.iter().any(|r| {
                r.has(1, low) && r.has(1, high) && r.seq > seqs.1 && stripes.same(r.seq, seqs.0)
            });
            let each_hidden = keys.iter().filter(|k| *k >= low && *k <= high).all(|k| {
                let suits = |r: &&RangeDelete| r.seq > seqs.1 && stripes.same(r.seq, seqs.0);
                all.iter().filter(suits).any(|r| r.has(1, k))
            });
            let found = set.hides_all((1, low), Last::Key((1, high)), seqs, SEQ_MAX, &stripes);
            assert!(found >= all_hidden && found <= each_hidden, "seed {seed}");
        }
        live.trim(upto, &Readable::default());
        let left = live.set_above(|| None);
        for key in &keys {
            let newest = naive(1, key, SEQ_MAX).filter(|seq| *seq > upto);
            let found = left.as_ref().and_then(|set| set.newest(1, key, SEQ_MAX));
            assert_eq!(found, newest, "seed {seed}: trimmed at {upto}");
        }
    }
}

/// Only range deletes that no read can see are left out: every snapshot and every later reader sees
/// for each key the same as with the plain list, and jobs may drop the same versions.
#[test]
fn sets_have_what_some_read_needs() {
    let keys = every_key();
    let (mut few, mut many) = (0, 0);
    for seed in 0..120 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let all = ranges(&mut rng, 2 + seed as usize / 3);
        let live = LiveRanges::default();
        let snapshots = SnapshotList::default();
        let sequencer = Sequencer::default();
        let time = Time::new(Arc::new(terrace_media::ManualClock::new()), 0);
        let mut points = Vec::new();
        let mut visible = 0;
        for range in &all {
            live.add(
                vec![range.clone()],
                &Readable::of(&snapshots, &sequencer),
                true,
            );
            // Some range deletes become visible late, and some snapshots are released.
            if rng.bool() {
                visible = range.seq;
                sequencer.start_after(visible);
            }
            if rng.u8(..4) == 0 {
                points.push(snapshots.register_number(&sequencer, &time));
            }
            if rng.u8(..8) == 0 && !points.is_empty() {
                let gone = points.swap_remove(rng.usize(..points.len()));
                snapshots.release(gone);
            }
        }
        let set = live.set_above(|| None).unwrap();
        let plain = LiveRanges::default();
        for range in &all {
            plain.add(vec![range.clone()], &Readable::default(), true);
        }
        few += set.len();
        many += plain.set_above(|| None).unwrap().len();
        let stripes = snapshots.stripes();
        let reads = points.iter().copied().chain(visible..visible + 3);
        for at in reads.chain([SEQ_MAX]) {
            for key in &keys {
                let over = all.iter().filter(|r| r.seq <= at && r.has(1, key));
                let newest = over.map(|r| r.seq).max();
                assert_eq!(
                    set.newest(1, key, at),
                    newest,
                    "seed {seed}, {key:?} at {at}"
                );
                let seq = rng.u64(..visible + 1);
                let over = all.iter().filter(|r| r.seq > seq && r.has(1, key));
                let hidden = over.into_iter().any(|r| stripes.same(r.seq, seq));
                assert_eq!(
                    set.hides((1, key), seq, SEQ_MAX, &stripes),
                    hidden,
                    "seed {seed}"
                );
            }
        }
    }
    assert!(few < many / 2, "{few} of {many}");
}

/// A queue that deletes consumed entries, and nested ranges, take memory only for the keys that
/// remain.
#[test]
fn ranges_over_one_another_take_little() {
    let place = |n: u32| n.to_be_bytes().to_vec();
    for around in [false, true] {
        let live = LiveRanges::default();
        let late = LateKeys::default();
        let mut pieces = 0;
        for n in 1..20_000u32 {
            let (begin, end) = match around {
                true => (place(20_000 - n), place(20_000 + n)),
                false => (Vec::new(), place(n)),
            };
            let range = RangeDelete {
                keyspace: 1,
                begin,
                end,
                seq: SeqNo::from(n),
            };
            late.add(std::slice::from_ref(&range));
            live.add(vec![range], &Readable::later(), true);
            pieces = pieces.max(live.set_above(|| None).unwrap().len());
        }
        assert!(pieces < 64, "{pieces}");
        late.note(1, &place(5), 9);
        late.note(1, &place(20_001), 9);
        let target = |n| Target::first_of(1, n);
        let (low, high) = (place(0), place(u32::MAX));
        let newer = late.newer(&target(&low), &target(&high), 1, false);
        let noted = if around { 20_001 } else { 5 };
        assert_eq!(newer, Newer::Key(place(noted)));
    }
}

/// The parts that a range is cut into contain each of its keys once.
#[test]
fn parts_of_a_range_have_its_keys_once() {
    let keys = every_key();
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let range = ranges(&mut rng, 1).remove(0);
        let mut cuts: Vec<(u32, Vec<u8>)> = (0..rng.usize(0..4))
            .map(|_| (rng.u32(1..3), key(&mut rng)))
            .collect();
        cuts.sort();
        let bounds = cuts
            .iter()
            .map(|(keyspace, key)| Some((*keyspace, key.as_slice())));
        let bounds: Vec<_> = [None].into_iter().chain(bounds).chain([None]).collect();
        let parts: Vec<RangeDelete> = bounds
            .windows(2)
            .filter_map(|w| range.cut(w[0], w[1]))
            .collect();
        for keyspace in 1..3 {
            for key in &keys {
                let having = parts.iter().filter(|part| part.has(keyspace, key)).count();
                assert_eq!(
                    having,
                    usize::from(range.has(keyspace, key)),
                    "seed {seed}: {parts:?}"
                );
            }
        }
    }
}

/// Range deletes that a job may apply in place end before one that some view may lack.
#[test]
fn jobs_apply_only_what_every_view_has() {
    let live = LiveRanges::default();
    let range = |seq| RangeDelete {
        keyspace: 1,
        begin: b"a".to_vec(),
        end: b"b".to_vec(),
        seq,
    };
    live.add(vec![range(10)], &Readable::default(), true);
    assert_eq!(live.seen_by_all_upto(), 9, "no view has it yet");
    let older_views = live.take_tokens();
    live.add(vec![range(20)], &Readable::default(), true);
    let hides = |seq| {
        let settled = live.applicable_in_place(100, None).unwrap();
        settled.hides((1, b"a"), seq, &Stripes::default())
    };
    assert!(!hides(5), "a view without it remains");
    drop(older_views);
    assert_eq!(live.seen_by_all_upto(), 19);
    assert!(hides(5) && !hides(10), "only the first is in every view");
    drop(live.take_tokens());
    assert!(hides(15));
    let limited = live.applicable_in_place(12, None).unwrap();
    assert!(
        !limited.hides((1, b"a"), 11, &Stripes::default()),
        "not durable yet"
    );
}

/// Keys written into a range after it was deleted are found in both directions; without any, a
/// stretch contains nothing newer; for ranges deleted elsewhere the answer is unknown.
#[test]
fn late_keys_are_found() {
    let late = Arc::new(LateKeys::default());
    let range = RangeDelete {
        keyspace: 1,
        begin: b"c".to_vec(),
        end: b"x".to_vec(),
        seq: 10,
    };
    let at = |key| Target::first_of(1, key);
    assert_eq!(late.newer(&at(b"a"), &at(b"z"), 10, false), Newer::Unknown);
    late.add(std::slice::from_ref(&range));
    assert_eq!(late.newer(&at(b"a"), &at(b"z"), 10, false), Newer::No);
    assert_eq!(late.newer(&at(b"a"), &at(b"z"), 9, false), Newer::Unknown);
    for (key, seq) in [(b"b", 11), (b"g", 12), (b"m", 13), (b"x", 14)] {
        late.note(1, key, seq);
    }
    let found = |from, to: &Target<'_>, last| late.newer(&at(from), to, 10, last);
    assert_eq!(found(b"a", &at(b"z"), false), Newer::Key(b"g".to_vec()));
    assert_eq!(found(b"a", &at(b"z"), true), Newer::Key(b"m".to_vec()));
    assert_eq!(found(b"h", &at(b"m"), true), Newer::No);
    let behind = Target { seq: 0, ..at(b"m") };
    assert_eq!(found(b"h", &behind, true), Newer::Key(b"m".to_vec()));
    let seq_bound = SeqBound::new(20, Some(Arc::clone(&late)));
    assert_eq!(seq_bound.newer(&at(b"n"), &at(b"z"), 10, false), Newer::No);
    assert_eq!(
        seq_bound.newer(&at(b"a"), &at(b"z"), 20, false),
        Newer::No,
        "all is older"
    );
    seq_bound.raise(30);
    assert_eq!(
        seq_bound.newer(&at(b"n"), &at(b"z"), 20, false),
        Newer::Unknown
    );
}

/// A memtable notes keys up to a limit: until then it knows which are newer than a range delete,
/// and afterwards it answers "unknown", never that there is none.
#[test]
fn noted_keys_have_a_limit() {
    let late = LateKeys::within(10_000);
    late.add(&[RangeDelete {
        keyspace: 1,
        begin: b"a".to_vec(),
        end: b"b".to_vec(),
        seq: 5,
    }]);
    let (from, to) = (Target::first_of(1, b"a"), Target::first_of(1, b"b"));
    let asked = || late.newer(&from, &to, 5, false);
    assert_eq!(asked(), Newer::No);
    let noted = (0..1000u32).take_while(|number| {
        late.note(
            1,
            format!("a{number:04}").as_bytes(),
            6 + u64::from(*number),
        );
        let first = asked();
        assert_ne!(first, Newer::No);
        first == Newer::Key(b"a0000".to_vec())
    });
    assert!((50..200).contains(&noted.count()));
    late.note(1, b"a", 3000);
    assert_eq!(asked(), Newer::Unknown);
}
