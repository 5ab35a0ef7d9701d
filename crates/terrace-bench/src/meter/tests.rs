//! Tests of counting and timing; none depends on speed.

use super::*;
use crate::schedule::{Arrivals, Schedule};

/// Returns all intervals of a meter, which must be complete.
fn intervals(meter: &Meter) -> Vec<Interval> {
    std::iter::from_fn(|| meter.take_interval()).collect()
}

/// Every operation is counted once, in the total and in its interval.
#[test]
fn operations_are_counted_once() {
    let meter = Meter::new(2, 0, Some(Duration::from_millis(1)));
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|thread| {
                let meter = &meter;
                scope.spawn(move || {
                    let mut pace = Pace::new(meter, thread);
                    for _ in 0..100_000 {
                        pace.finished(3, 10);
                    }
                    pace.end()
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"))
            .collect()
    });
    assert!(meter.wait(Duration::ZERO));
    assert_eq!(meter.done(), 600_000);
    for tally in &tallies {
        assert_eq!((tally.ops, tally.bytes), (300_000, 1_000_000));
        assert_eq!(tally.latency.count(), 100_000);
        assert_eq!(tally.behind, None, "it has no turns");
    }
    // The sum of the intervals equals that of the workers, latency by latency.
    let (mut ops, mut in_intervals) = (0, Latency::default());
    for interval in intervals(&meter) {
        ops += interval.ops;
        if let Some(latency) = &interval.latency {
            in_intervals.merge(latency);
        }
    }
    assert_eq!(ops, 600_000);
    let mut whole = Latency::default();
    tallies.iter().for_each(|tally| whole.merge(&tally.latency));
    assert!(
        in_intervals == whole,
        "the intervals have what the workers have"
    );
}

/// Operations of several kinds are counted in their kind and once in the total, with and without
/// intervals.
#[test]
fn kinds_add_up() {
    for interval in [None, Some(Duration::from_nanos(100))] {
        let meter = Meter::new(1, 0, interval);
        let mut pace = Pace::new(&meter, 0);
        pace.kinds(&["read", "write"]);
        for i in 0..30 {
            pace.finished_as(usize::from(i % 3 == 0), 1, 5);
        }
        let tally = pace.end();
        assert_eq!(
            (tally.ops, tally.bytes, tally.latency.count()),
            (30, 150, 30)
        );
        let mut whole = Latency::default();
        let kinds = tally.kinds.iter().map(|kind| {
            assert_eq!(kind.latency.count(), kind.ops);
            whole.merge(&kind.latency);
            (kind.name, kind.ops, kind.bytes)
        });
        assert_eq!(
            kinds.collect::<Vec<_>>(),
            [("read", 20, 100), ("write", 10, 50)]
        );
        assert!(whole == tally.latency, "the kinds have what the whole has");
        let ops: u64 = intervals(&meter).iter().map(|interval| interval.ops).sum();
        assert_eq!(ops, interval.map_or(0, |_| 30));
    }
}

/// An interval is not shown before every worker has left it, even if one is in the store for long:
/// its operations belong to that interval.
#[test]
fn an_interval_waits_for_all_its_operations() {
    let span = Duration::from_millis(2);
    let meter = Meter::new(2, 0, Some(span));
    let (mut stuck, mut other) = (Pace::new(&meter, 0), Pace::new(&meter, 1));
    // `stuck` has not left the interval of these operations yet.
    stuck.finished(7, 0);
    let mut rounds = 0;
    // BOUND: time passes.
    while rounds < 2 {
        std::thread::sleep(span);
        other.finished(1, 0);
        rounds += 1;
    }
    let before: u64 = std::iter::from_fn(|| meter.take_interval())
        .map(|interval| interval.ops)
        .sum();
    assert_eq!(before, 0, "one of the workers is still in the phase");
    stuck.finished(1, 0);
    let after: u64 = std::iter::from_fn(|| meter.take_interval())
        .map(|interval| interval.ops)
        .sum();
    assert!(after >= 7, "{after}");
    drop((stuck.end(), other.end()));
    let rest: u64 = intervals(&meter).iter().map(|interval| interval.ops).sum();
    assert_eq!(after + rest, 7 + 1 + 2);
}

/// Intervals in which no operation ends take no memory, even if one operation spans many.
#[test]
fn a_stall_takes_no_memory() {
    let meter = Meter::new(1, 0, Some(Duration::from_nanos(1)));
    let mut pace = Pace::new(&meter, 0);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1));
        pace.finished(1, 0);
    }
    drop(pace.end());
    let intervals = meter.intervals();
    assert!(intervals.left.len() <= 4, "{}", intervals.left.len());
    let last = intervals.left.keys().last().expect("there are some");
    assert!(*last >= 2_000_000, "{last}");
}

/// In an open loop, the latency of a late operation includes its waiting time, and that of a
/// punctual one does not.
#[test]
fn latencies_count_from_the_turn() {
    let meter = Meter::new(1, 0, None);
    let mut pace = Pace::new(&meter, 0);
    pace.follow(Schedule::new(1000.0, Arrivals::Constant, 0, 1, 1));
    for i in 0..100 {
        pace.begin(1);
        if i == 0 {
            // The store stalls for the turns of fifty operations.
            std::thread::sleep(Duration::from_millis(50));
        }
        pace.finished(1, 0);
    }
    let tally = pace.end();
    // Operation i had its turn after i ms and could not end before 50: on a machine of any speed,
    // at least 26 of them took 25 ms or more. A closed loop would have seen one.
    assert!(
        tally.latency.percentile_us(75.5) >= 24_900.0,
        "{:?}",
        tally.latency.chart()
    );
    assert!(tally.latency.max_us() >= 49_900.0);
    assert!(
        tally.elapsed >= Duration::from_millis(98),
        "{:?}",
        tally.elapsed
    );
}

/// A store that cannot keep up is behind at the end by the excess of its operations over their
/// turns.
#[test]
fn who_cannot_keep_up_is_behind() {
    let meter = Meter::new(1, 0, None);
    let mut pace = Pace::new(&meter, 0);
    pace.follow(Schedule::new(1e6, Arrivals::Constant, 0, 1, 1));
    for _ in 0..10 {
        pace.begin(1);
        std::thread::sleep(Duration::from_millis(1));
        pace.finished(1, 0);
    }
    let behind = pace.end().behind.expect("it has turns");
    assert!(behind >= Duration::from_micros(9900), "{behind:?}");
}

/// A worker that ends without a result does not block the watcher.
#[test]
fn a_lost_worker_ends_the_wait() {
    let meter = Meter::new(0, 1, None);
    drop(Pace::new(&meter, 0));
    assert!(meter.wait(Duration::ZERO));
    assert!(meter.take_interval().is_none());
}
