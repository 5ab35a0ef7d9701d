//! Tests of the rules by which callers wait and give up.

use super::patience::*;
use super::*;
use crate::types::EntryKind;

/// Returns the verdicts of a caller over these looks: stuck or not, how much is left, the turnover.
fn verdicts(looks: impl IntoIterator<Item = (bool, u64, u64)>) -> Vec<Verdict> {
    let mut wait = Wait::of_put();
    let looks = looks.into_iter();
    looks
        .map(|(stuck, left, turnover)| wait.judge(stuck, (left, turnover), LOOKS, TURNOVER_MAX))
        .collect()
}

/// A caller waits alongside other writers while free space grows, however slowly, and gives up when
/// it does not.
#[test]
fn a_wait_ends_where_others_take_what_is_freed() {
    let slowly = (0..20_000u64).map(|n| (false, 1_000_000 - n / TURNOVER_MAX, n));
    assert!(verdicts(slowly).iter().all(|v| *v == Verdict::Work));
    let vain = (0..20_000u64).map(|n| (false, 1_000_000 + n % 7, n));
    let vain = verdicts(vain);
    let ended = vain.iter().position(|v| *v == Verdict::Starved);
    assert_eq!(ended, Some(TURNOVER_MAX as usize + 1));
}

/// A caller waits for work that frees nothing yet: a merge, a long flush.
#[test]
fn a_wait_does_not_end_while_one_job_works() {
    let works = (0..10_000).map(|_| (false, 5, 3));
    assert!(verdicts(works).iter().all(|v| *v == Verdict::Work));
}

/// If nothing can free space the looks are counted, and any work restarts the count.
#[test]
fn a_wait_ends_where_nothing_can_free_space() {
    let mut stuck = vec![(true, 5, 0); LOOKS as usize];
    assert!(verdicts(stuck.clone()).iter().all(|v| *v == Verdict::Look));
    stuck.push((false, 5, 0));
    stuck.extend(vec![(true, 5, 0); LOOKS as usize + 1]);
    let heard = verdicts(stuck);
    let full = heard.iter().position(|v| *v == Verdict::Stuck);
    assert_eq!(full, Some(heard.len() - 1));
}

/// A put on a full disk waits while data moves down or free space grows, and gives up when many
/// refusals and compactions have changed neither. Deletes wait longer.
#[test]
fn a_put_ends_where_jobs_try_in_vain() {
    let ended = |mut wait: Wait, drains: fn(u64) -> u64, room: fn(u64) -> u64| {
        (0..1000u64).find(|&tries| {
            let (drains, room) = (drains(tries), room(tries));
            wait.is_in_vain(Efforts {
                tries,
                drains,
                room,
            })
        })
    };
    assert_eq!(ended(Wait::of_put(), |_| 7, |_| 1000), Some(TRIES_MAX + 1));
    assert_eq!(ended(Wait::of_put(), |n| n / TRIES_MAX, |_| 1000), None);
    assert_eq!(ended(Wait::of_put(), |_| 7, |n| 1000 << (n / 20)), None);
    // Too little growth to count.
    let slowly = ended(Wait::of_put(), |_| 7, |n| 100_000 + n);
    assert_eq!(slowly, Some(TRIES_MAX + 1));
    assert_eq!(ended(Wait::for_work(0), |_| 7, |_| 1000), None);
}

/// Each state of the front leads to one action that changes it: a memtable is made unless the
/// maximum number is sealed, or the caller has to leave a scarce resource to others.
#[test]
fn every_state_has_a_next_step() {
    let (pool, logs) = (Some(Lack::Pool), Some(Lack::Logs));
    let mut delete = Batch::default();
    delete.push(EntryKind::Delete, 0, b"key", b"");
    let mut put = Batch::default();
    put.push(EntryKind::Put, 0, b"key", b"value");
    let rights = |need, is_full| Rights::of(&need, is_full);
    let all = [
        rights(Need::Memtable(&put), false),
        rights(Need::Memtable(&put), true),
        rights(Need::Memtable(&delete), false),
        rights(Need::Flush, false),
        rights(Need::Numbers, false),
    ];
    for who in all {
        for lack in [None, pool, logs] {
            assert_eq!(next(2, 2, lack, who), Next::AwaitFlush, "{who:?}");
            assert_eq!(next(3, 2, lack, who), Next::AwaitFlush, "{who:?}");
        }
        for sealed in [0, 1] {
            assert_eq!(next(sealed, 2, None, who), Next::MakeSpare, "{who:?}");
        }
    }
    for puts in &all[..2] {
        assert!(!puts.disk, "puts leave the reserve for deletes");
        assert_eq!(next(0, 2, pool, *puts), Next::AwaitSpace);
        assert_eq!(next(1, 2, logs, *puts), Next::AwaitLogs);
    }
    let deletes = all[2];
    assert_eq!(next(0, 2, pool, deletes), Next::MakeSpare);
    assert_eq!(next(1, 2, logs, deletes), Next::AwaitLogs);
    // On a full disk deletes free space.
    let deletes = rights(Need::Memtable(&delete), true);
    assert_eq!(next(2, 2, logs, deletes), Next::MakeSpare);
    assert_eq!(next(3, 2, None, deletes), Next::AwaitFlush);
    for who in &all[3..] {
        assert_eq!(next(0, 2, pool, *who), Next::MakeSpare);
        assert_eq!(next(1, 2, logs, *who), Next::MakeSpare);
    }
}
