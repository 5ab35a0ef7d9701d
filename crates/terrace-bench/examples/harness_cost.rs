//! The cost of the benchmark's harness: its workloads against hand-written loops, in one run.
//!
//! ```sh
//! cargo run --release -p terrace-bench --example harness_cost            # both parts
//! cargo run --release -p terrace-bench --example harness_cost -- empty   # no store
//! cargo run --release -p terrace-bench --example harness_cost -- store   # a database in memory
//! ```
//!
//! A loop draws the same numbers, formats keys of the same form, takes values of the same length
//! from a buffer of the same size, and calls the store through a pointer, as the harness calls an
//! adapter. It reads the clock before the first operation and after the last one, and does nothing
//! else; a second loop also takes the latency of each operation, as db_bench does with
//! `--histogram`.
//!
//! Loops and runs alternate, many short ones of each. Other work of the machine can only make one
//! longer, so the fastest of each are compared; the median of the ratios of neighbours is printed
//! next to it. On a store that does nothing the difference is the harness: clock, histogram,
//! counters, tags of values, and its record of keys. On a real one the ratio is the effect of the
//! harness on a result.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use terrace::{Db, Options, Prefault};
use terrace_bench::{BenchConfig, Latency, Step, StoreKind};

/// Operations of each measurement of the store that does nothing, and the number of pairs.
const EMPTY_OPS: u64 = 100_000;
const EMPTY_PAIRS: usize = 101;

/// The operations on a database.
const STORE_OPS: u64 = 40_000;
/// More reads: before them the harness has measured the space on the medium, so its first reads
/// find less in the caches than those of a loop.
const STORE_READS: u64 = 8 * STORE_OPS;
const STORE_PAIRS: usize = 15;

const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 1024;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let part = std::env::args().nth(1).unwrap_or_default();
    if !["", "empty", "store"].contains(&part.as_str()) {
        return Err(format!("unknown part {part:?}; use empty or store").into());
    }
    println!("clock: {}", terrace_media::Stopwatch::start().source());
    if part != "store" {
        empty()?;
    }
    if part != "empty" {
        store()?;
    }
    Ok(())
}

/// The target of a hand-written loop, called like an adapter of the harness.
trait Target {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure>;
    fn get(&mut self, key: &[u8]) -> Result<bool, Failure>;
}

struct Nothing;

impl Target for Nothing {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        black_box((key, value));
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> Result<bool, Failure> {
        black_box(key);
        Ok(false)
    }
}

impl Target for Db {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        Ok(Db::put(self, key, value)?)
    }

    fn get(&mut self, key: &[u8]) -> Result<bool, Failure> {
        // Every reader looks at the value, so fetching its first line counts for both.
        let value = Db::get(self, key)?;
        black_box(value.as_ref().map(|value| value.first_chunk::<8>()));
        Ok(value.is_some())
    }
}

/// Formats sixteen digits of `number`, two at a time.
fn key_of(key: &mut [u8; KEY_BYTES], number: u64) {
    let mut rest = number;
    for pair in key.rchunks_exact_mut(2) {
        let two = (rest % 100) as u8;
        rest /= 100;
        pair[0] = b'0' + two / 10;
        pair[1] = b'0' + two % 10;
    }
}

/// The work on a database.
const WORK: [Work; 2] = [Work::FillRandom, Work::ReadRandom];

#[derive(Clone, Copy, PartialEq)]
enum Work {
    FillSeq,
    FillRandom,
    ReadRandom,
}

impl Work {
    fn step(self) -> Step {
        match self {
            Work::FillSeq => Step::FillSeq,
            Work::FillRandom => Step::FillRandom,
            Work::ReadRandom => Step::ReadRandom,
        }
    }
}

/// Runs the hand-written loop; returns nanoseconds of an operation. With `latencies` it records
/// each one, as db_bench does with a histogram.
fn by_hand(
    work: Work,
    ops: u64,
    keys: u64,
    values: &[u8],
    target: &mut dyn Target,
    mut latencies: Option<&mut Latency>,
) -> Result<f64, Failure> {
    // Another seed for reads: in the order of the writes, each node would be next to the previous
    // one.
    let mut rng = fastrand::Rng::with_seed(301 + work as u64);
    let (mut key, mut at, mut found) = ([0; KEY_BYTES], 0, 0u64);
    let begun = Instant::now();
    let mut last = begun;
    for i in 0..ops {
        let number = if work == Work::FillSeq {
            i
        } else {
            rng.u64(0..keys)
        };
        key_of(&mut key, number);
        if work == Work::ReadRandom {
            found += u64::from(target.get(&key)?);
        } else {
            if at + VALUE_BYTES > values.len() {
                at = 0;
            }
            target.put(&key, &values[at..at + VALUE_BYTES])?;
            at += VALUE_BYTES;
        }
        if let Some(latencies) = &mut latencies {
            let now = Instant::now();
            latencies.record(now.duration_since(last).as_nanos() as u64);
            last = now;
        }
    }
    let elapsed = begun.elapsed();
    black_box(found);
    Ok(elapsed.as_nanos() as f64 / ops as f64)
}

/// Runs the same in the harness; returns nanoseconds of an operation for each step.
fn by_harness(config: &BenchConfig) -> Result<Vec<f64>, Failure> {
    let report = terrace_bench::run(config, None)?;
    let steps = report.steps.iter();
    Ok(steps
        .map(|step| step.elapsed_s * 1e9 / step.ops as f64)
        .collect())
}

fn config(ops: u64) -> BenchConfig {
    BenchConfig {
        num: ops,
        key_bytes: KEY_BYTES,
        value_bytes: VALUE_BYTES,
        ..BenchConfig::default()
    }
}

/// Returns a mebibyte to cut values from, like the harness's.
fn prepared_values() -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    (0..1 << 20).map(|_| rng.u8(b' '..=b'~')).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn lowest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Measures a store that does nothing.
fn empty() -> Result<(), Failure> {
    println!(
        "\na store that does nothing, ns an operation: the lowest of {EMPTY_PAIRS}, medians in brackets"
    );
    println!("  workload    intervals        by hand      in harness   harness alone  of 1 us");
    let values = prepared_values();
    for work in [Work::FillSeq, Work::FillRandom, Work::ReadRandom] {
        for interval in [None, Some(Duration::from_secs(1))] {
            let config = BenchConfig {
                store: StoreKind::Empty,
                steps: vec![work.step()],
                report_interval: interval,
                ..config(EMPTY_OPS)
            };
            let (mut hand, mut harness, mut alone) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..EMPTY_PAIRS {
                let by_hand = by_hand(work, EMPTY_OPS, EMPTY_OPS, &values, &mut Nothing, None)?;
                let in_harness = by_harness(&config)?[0];
                hand.push(by_hand);
                harness.push(in_harness);
                alone.push(in_harness - by_hand);
            }
            let (by_hand, in_harness) = (lowest(&hand), lowest(&harness));
            println!(
                "  {:<11} {:<9} {by_hand:>6.1} ({:>5.1}) {in_harness:>7.1} ({:>5.1}) {:>7.1} ({:>5.1}) {:>7.1}%",
                work.step().name(),
                interval.map_or("none", |_| "1 s"),
                median(hand),
                median(harness),
                in_harness - by_hand,
                median(alone),
                (in_harness - by_hand) / 10.0
            );
        }
    }
    Ok(())
}

/// Measures a database whose pool is a file in memory: a fill and reads of its keys.
fn store() -> Result<(), Failure> {
    let folder = match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm")?,
        false => tempfile::tempdir()?,
    };
    let mut config = BenchConfig {
        steps: vec![Step::FillRandom, Step::ReadRandom],
        db: Some(folder.path().join("db")),
        replace_db: true,
        reads: Some(STORE_READS),
        ..config(STORE_OPS)
    };
    // All entries stay in the memtable, so no background work can disturb one of the two.
    config.options.front.memtable_bytes = 64 << 20;
    config.options.front.sealed_count_max = 1;
    config.options.pool.path = Some("pool".into());
    config.options.pool.prefault = Prefault::All;
    let options: Options = config.store_options();
    let values = prepared_values();
    let [mut hand, mut timed, mut harness] = [(); 3].map(|()| [Vec::new(), Vec::new()]);
    for _ in 0..STORE_PAIRS {
        for (with_latencies, found) in [(false, &mut hand), (true, &mut timed)] {
            let mut latencies = with_latencies.then(Latency::default);
            let place = folder.path().join("by-hand");
            let mut db = Db::open(&place, options.clone())?;
            for (at, work) in WORK.into_iter().enumerate() {
                let ops = match work {
                    Work::ReadRandom => STORE_READS,
                    Work::FillSeq | Work::FillRandom => STORE_OPS,
                };
                let timed = latencies.as_mut();
                let took = by_hand(work, ops, STORE_OPS, &values, &mut db, timed)?;
                found[at].push(took);
            }
            db.close()?;
            std::fs::remove_dir_all(&place)?;
        }
        for (at, ns) in by_harness(&config)?.into_iter().enumerate() {
            harness[at].push(ns);
        }
    }
    println!(
        "\na MioDb database in memory, {STORE_OPS} entries of {VALUE_BYTES} B: ns an operation, the lowest of \
         {STORE_PAIRS}; in brackets the medians of the ratios of neighbours"
    );
    println!(
        "  workload    by hand  with latencies  in harness  to by hand       to that with latencies"
    );
    for (at, work) in WORK.into_iter().enumerate() {
        let ratio = |to: &[f64]| {
            let each = harness[at].iter().zip(to).map(|(a, b)| a / b);
            (lowest(&harness[at]) / lowest(to), median(each.collect()))
        };
        let (to_hand, to_timed) = (ratio(&hand[at]), ratio(&timed[at]));
        println!(
            "  {:<11} {:>7.0} {:>15.0} {:>11.0} {:>7.3} ({:.3}) {:>9.3} ({:.3})",
            work.step().name(),
            lowest(&hand[at]),
            lowest(&timed[at]),
            lowest(&harness[at]),
            to_hand.0,
            to_hand.1,
            to_timed.0,
            to_timed.1,
        );
    }
    Ok(())
}
