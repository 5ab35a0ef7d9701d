//! Workloads on faulty stores: each fault is detected, and no fault is reported of a correct store.

use std::sync::{Arc, Barrier, Mutex};

use terrace::Design;

use super::*;
use crate::records::RecordKeys;
use crate::schedule::Arrivals;
use crate::store::liar::{Liar, Lie, STALL};
use crate::trace::Trace;
use crate::ycsb::Properties;

const NUM: u64 = 64;

/// Enough reads that the one in 16 compared byte for byte covers every key.
const READS: u64 = 500 * NUM;

fn config() -> BenchConfig {
    BenchConfig {
        num: NUM,
        reads: Some(READS),
        value_bytes: 100,
        queue_depth: 10,
        ..BenchConfig::default()
    }
}

fn work<'a>(
    config: &'a BenchConfig,
    store: &'a Liar,
    meter: &'a Meter,
    values: &'a Values,
    known: &'a Known,
) -> Work<'a> {
    Work {
        config,
        store,
        meter,
        values,
        known,
        checks: true,
        ycsb: None,
        replay: None,
    }
}

/// Runs `roles` over a store with a fault on the key of number 48; returns the last one's result.
fn caught(lie: Lie, config: &BenchConfig, roles: &[Role]) -> Result<Tally, BenchError> {
    let store = Liar {
        lie,
        key: KeyMaker::new(config.key_bytes).key(48).to_vec(),
        entries: Mutex::default(),
    };
    let known = Known::none_of(NUM);
    let values = Values::mixed(config.value_bytes_min(), config.value_bytes, 1);
    let mut last = Ok(Tally::default());
    for role in roles {
        let meter = Meter::new(1, 0, None);
        let work = work(config, &store, &meter, &values, &known);
        let done = run(&work, *role, 0, 7, &Barrier::new(1));
        last = last.and(done);
    }
    last
}

/// Runs the load phase and then the operations of the workload in `text`, over a store with a fault
/// on the record `number`.
fn caught_in_records(lie: Lie, text: &str, number: u64) -> Result<Tally, BenchError> {
    let properties = Properties::parse(text, "test").expect("it is well formed");
    let workload = Workload::of(&properties, NUM, READS).expect("it is valid");
    let mut keys = RecordKeys::new(workload.ordered, workload.padding);
    let name = keys.name(number);
    let store = Liar {
        lie,
        key: keys.key(name).to_vec(),
        entries: Mutex::default(),
    };
    let mut records = Records::none_from(0);
    records.prepare(NUM + READS);
    let requests = Requests::new(workload.requests, 0, NUM, workload.inserts_to_come());
    let (config, known) = (config(), Known::none_of(0));
    let values = Values::new(workload.record_bytes_max(), 1);
    let mut last = Ok(Tally::default());
    for role in [Role::Load, Role::Transact] {
        let meter = Meter::new(1, 0, None);
        let ycsb = Ycsb {
            workload: &workload,
            records: &records,
            requests: &requests,
        };
        let work = Work {
            ycsb: Some(ycsb),
            ..work(&config, &store, &meter, &values, &known)
        };
        last = last.and(run(&work, role, 0, 7, &Barrier::new(1)));
        records.settle();
    }
    last
}

fn problem_of(done: Result<Tally, BenchError>) -> String {
    done.map(drop).expect_err("the store lied").to_string()
}

/// A lost key, a changed byte and an invented value end the run, with key, expected and found
/// value; a correct store passes.
#[test]
fn lies_are_found_out() {
    for (batch_count, value_bytes_min) in [(1, None), (7, None), (1, Some(10))] {
        let config = BenchConfig {
            batch_count,
            value_bytes_min,
            ..config()
        };
        for (lie, role, said) in [
            (Lie::Lose, Role::ReadRandom, "lost an acknowledged write"),
            (Lie::Lose, Role::ReadMany, "lost an acknowledged write"),
            (Lie::Change, Role::ReadMany, "wrong value"),
            (Lie::Lose, Role::Update, "lost an acknowledged write"),
            (Lie::Lose, Role::Mix, "lost an acknowledged write"),
            (Lie::Change, Role::ReadRandom, "wrong value"),
            (Lie::Change, Role::Seek, "wrong value"),
            (Lie::Invent, Role::ReadMissing, "never written"),
        ] {
            let problem = problem_of(caught(lie, &config, &[Role::WriteInOrder, role]));
            for part in [said, "key \"", "expected ", "found "] {
                assert!(problem.contains(part), "{part} in {problem}");
            }
            if lie != Lie::Invent {
                assert!(problem.contains("key \"0000000000000048\""), "{problem}");
                let whole = problem.contains("(100 B, hash ");
                assert_eq!(whole, value_bytes_min.is_none(), "{problem}");
            }
            let honest = caught(Lie::None, &config, &[Role::WriteInOrder, role]);
            assert_eq!(honest.expect("an honest store").ops, READS);
        }
    }
}

/// A deleted key does not count as lost.
#[test]
fn deleted_keys_are_not_missed() {
    for batch_count in [1, 7] {
        let config = BenchConfig {
            batch_count,
            ..config()
        };
        let roles = [Role::WriteShuffled, Role::DeleteRandom, Role::ReadRandom];
        let honest = caught(Lie::None, &config, &roles).expect("an honest store");
        assert_eq!(honest.ops, READS);
        assert!((1..READS).contains(&honest.found), "{}", honest.found);
        let roles = [Role::WriteBatches, Role::DeleteInOrder, Role::ReadRandom];
        let honest = caught(Lie::None, &config, &roles).expect("an honest store");
        assert_eq!((honest.ops, honest.found), (READS, 0));
    }
}

/// A shuffled fill writes every key, and the hot keys are the first hundredth, at least one.
#[test]
fn every_key_is_written_and_the_hot_ones_are_read() {
    let roles = [Role::WriteShuffled, Role::ReadRandom];
    let all = caught(Lie::None, &config(), &roles).expect("an honest store");
    assert_eq!(all.found, READS);
    // Only number 0 of 64 is hot: the lost number 48 is not read.
    let roles = [Role::WriteInOrder, Role::ReadHot];
    let hot = caught(Lie::Lose, &config(), &roles).expect("no hot key is lost");
    assert_eq!(hot.found, READS);
}

/// A mix has the requested share of reads and writes.
#[test]
fn a_mix_has_its_share() {
    let config = BenchConfig {
        read_percent: 70,
        ..config()
    };
    let mixed = caught(Lie::None, &config, &[Role::WriteInOrder, Role::Mix]).expect("honest");
    let share = mixed.kinds[0].ops as f64 / READS as f64;
    assert!((share - 0.7).abs() < 0.015, "{share}");
    assert_eq!(mixed.kinds[0].ops + mixed.kinds[1].ops, READS);
}

/// A queue of a store that loses a key, changes one, or returns a deleted one ends the run; a
/// correct store completes every operation.
#[test]
fn queues_are_checked() {
    for (lie, said) in [
        (Lie::Lose, "lost an acknowledged write"),
        (Lie::Change, "wrong value"),
        (Lie::Keep, "was deleted"),
    ] {
        let problem = problem_of(caught(lie, &config(), &[Role::Queue]));
        for part in [said, "key \"0000000000000048\"", "found "] {
            assert!(problem.contains(part), "{part} in {problem}");
        }
    }
    let tally = caught(Lie::None, &config(), &[Role::Queue]).expect("an honest store");
    assert_eq!(tally.ops, 3 * NUM);
    let kinds = tally.kinds.iter().map(|kind| (kind.name, kind.ops));
    let expected = [("put", NUM), ("seek", NUM), ("delete", NUM)];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

/// Records that are lost, changed or out of date end the run, with the evidence; on a correct store
/// every operation completes, in its proportion.
#[test]
fn lies_about_records_are_found_out() {
    let key = {
        let mut keys = RecordKeys::new(false, 1);
        let name = keys.name(48);
        String::from_utf8(keys.key(name).to_vec()).expect("digits")
    };
    let updates = "readproportion=0.5\nupdateproportion=0.5\n";
    let modifies = "readproportion=0\nupdateproportion=0\nreadmodifywriteproportion=1\n";
    let scans = "readproportion=0\nupdateproportion=0\nscanproportion=1\nmaxscanlength=20\n";
    let sizes = "fieldlengthdistribution=uniform\nminfieldlength=2\nfieldlength=40\n";
    for (lie, text, said) in [
        (Lie::Lose, updates, "lost an acknowledged write"),
        (Lie::Change, updates, "wrong value"),
        (Lie::Stale, updates, "old value"),
        (Lie::Stale, modifies, "old value"),
        (Lie::Lose, scans, "lost an acknowledged write"),
        (Lie::Change, scans, "wrong value"),
    ] {
        for more in ["", sizes, "requestdistribution=zipfian"] {
            let text = format!("{text}{more}");
            let problem = problem_of(caught_in_records(lie, &text, 48));
            for part in [said, &format!("key \"{key}\""), "expected ", "found "] {
                assert!(problem.contains(part), "{part} in {problem}");
            }
            let honest = caught_in_records(Lie::None, &text, 48).expect("an honest store");
            assert_eq!(honest.ops, READS);
        }
    }
}

/// Inserted records are found by later reads, also by those that request the latest.
#[test]
fn inserts_are_found() {
    for requests in ["latest", "zipfian", "exponential"] {
        let text = format!(
            "readproportion=0.7\nupdateproportion=0\ninsertproportion=0.2\nscanproportion=0.1\n\
             maxscanlength=5\nrequestdistribution={requests}"
        );
        let honest = caught_in_records(Lie::None, &text, 48).expect("an honest store");
        let counts: Vec<u64> = honest.kinds.iter().map(|kind| kind.ops).collect();
        assert_eq!(counts.iter().sum::<u64>(), READS);
        for (count, share) in counts.iter().zip([0.7, 0.0, 0.2, 0.1, 0.0]) {
            let drawn = *count as f64 / READS as f64;
            assert!((drawn - share).abs() < 0.012, "{drawn} for {share}");
        }
        assert_eq!(honest.found, counts[0], "every read finds its record");
        // The loss of a record inserted during the workload is detected like that of a loaded one.
        let problem = problem_of(caught_in_records(Lie::Lose, &text, NUM + 16));
        assert!(problem.contains("lost an acknowledged write"), "{problem}");
    }
}

/// A store that stalls now and then has a few long latencies in a closed loop; in an open one, all
/// operations that arrive during a stall have them.
#[test]
fn a_stall_shows_in_an_open_loop() {
    let read = |rate, arrivals| {
        let config = BenchConfig {
            reads: Some(400),
            rate,
            arrivals,
            ..config()
        };
        let roles = [Role::WriteInOrder, Role::ReadRandom];
        caught(Lie::Stall, &config, &roles).expect("it does not lie")
    };
    let closed = read(None, Arrivals::Constant);
    // One key of 64 stalls, so only some of the 400 reads do.
    let stall_us = STALL.as_micros() as f64;
    assert!(closed.latency.max_us() >= stall_us);
    assert!(closed.latency.percentile_us(50.0) < stall_us / 2.0);
    for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
        // All 400 arrive in 100 ms, and the stalls together take longer: on a machine of any speed,
        // most reads wait for at least half a stall.
        let open = read(Some(4000.0), arrivals);
        assert_eq!(open.ops, 400);
        let median = open.latency.percentile_us(50.0);
        assert!(
            median >= stall_us / 2.0,
            "{median}\n{}",
            open.latency.chart()
        );
    }
}

/// A trace is replayed call by call, and each fault of the store is detected.
#[test]
fn replays_are_checked() {
    let mut text = "terrace-trace\t1\n1\t1\tget\tkey48\n".to_string();
    for round in 0..40 {
        for key in 0..NUM {
            let len = 20 + (round * 7 + key) % 60;
            match (round + key) % 5 {
                0 => text += &format!("1\t1\tdelete\tkey{key:02}\n"),
                1 => {
                    text += &format!(
                        "1\t0\tbatch\t\t2\n1\t1\tput\tkey{key:02}\t{len}\n1\t2\tput\tx\t5\n"
                    )
                }
                _ => text += &format!("1\t1\tput\tkey{key:02}\t{len}\n"),
            }
            text += &format!("1\t1\tget\tkey{key:02}\n1\t1\tscan\tkey{key:02}\t3\n");
            text += &format!("1\t1\tscan-back\tkey{key:02}\t3\n1\t1\tget\tkey48\n");
        }
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("trace");
    std::fs::write(&path, &text).expect("a file");
    let trace = Arc::new(Trace::load(&path).expect("it is well formed"));
    let run_on = |lie, threads: usize| {
        let store = Liar {
            lie,
            key: b"key48".to_vec(),
            entries: Mutex::default(),
        };
        let config = BenchConfig {
            threads,
            ..config()
        };
        let (meter, known) = (Meter::new(threads, 0, None), Known::none_of(0));
        let values = Values::mixed(0, trace.value_bytes_max, 1);
        let replay = Replay::of(Arc::clone(&trace));
        let work = Work {
            replay: Some(&replay),
            ..work(&config, &store, &meter, &values, &known)
        };
        let start = Barrier::new(threads);
        std::thread::scope(|scope| {
            let (work, start) = (&work, &start);
            let worker = |thread| move || run(work, Role::Replay, thread, 7, start);
            let workers: Vec<_> = (0..threads).map(|t| scope.spawn(worker(t))).collect();
            let tallies = workers
                .into_iter()
                .map(|worker| worker.join().expect("no panic"));
            tallies.collect::<Result<Vec<Tally>, BenchError>>()
        })
    };
    // It is the first key of the trace, so it is tracked.
    assert_eq!(trace.find(b"key48").map(|number| number % 16), Some(0));
    for (lie, said) in [
        (Lie::Lose, "lost an acknowledged write"),
        (Lie::Change, "wrong value"),
        (Lie::Stale, "old value"),
        (Lie::Keep, "old value"),
    ] {
        let problem = run_on(lie, 1)
            .map(drop)
            .expect_err("the store lied")
            .to_string();
        for part in [said, "key \"key48\"", "found "] {
            assert!(problem.contains(part), "{part} in {problem}");
        }
    }
    for threads in [1, 4] {
        let tallies = run_on(Lie::None, threads).expect("an honest store");
        let ops: u64 = tallies.iter().map(|tally| tally.ops).sum();
        assert_eq!(ops, trace.calls());
        assert!(tallies.iter().any(|tally| tally.checked > 0));
    }
}

/// A database of another run is read without checks.
#[test]
fn what_is_not_known_is_not_judged() {
    let roles = [Role::ReadRandom, Role::Queue];
    let config = config();
    let store = Liar {
        lie: Lie::None,
        key: Vec::new(),
        entries: Mutex::default(),
    };
    let values = Values::new(100, 1);
    let known = Known::none_of(NUM);
    for role in roles {
        let meter = Meter::new(1, 0, None);
        let work = Work {
            checks: false,
            ..work(&config, &store, &meter, &values, &known)
        };
        run(&work, role, 0, 7, &Barrier::new(1)).expect("nothing is known");
    }
}

/// YCSB's workloads run one after the other on every design, with several threads, between waits
/// for background work and with values of all sizes; written values are checked, and kinds of
/// operations are counted separately.
#[test]
fn ycsb_runs_on_every_design() {
    let steps = "ycsb-load,ycsb-a,ycsb-b,flush,ycsb-c,ycsb-f,drain,ycsb-d,ycsb-e,churn,ycsb-a,wait,\
                 ycsb-d,ycsb-run,ycsb-e";
    let steps: Vec<Step> = steps.split(',').map(|s| s.parse().expect(s)).collect();
    let text = "readproportion=1\nupdateproportion=1\ninsertproportion=1\nscanproportion=1\n\
                readmodifywriteproportion=1\nrequestdistribution=hotspot\nmaxscanlength=30";
    let ycsb = Properties::parse(text, "test").expect("it is well formed");
    for (design, pool) in [
        (Design::Leveled, false),
        (Design::MioDbSsd, false),
        (Design::MioDb, true),
    ] {
        let mut config = BenchConfig {
            steps: steps.clone(),
            num: 3000,
            reads: Some(2000),
            threads: 3,
            ycsb: Some(ycsb.clone()),
            value_bytes: 100,
            ..BenchConfig::default()
        };
        config.options.bottom.extent_bytes = 1 << 20;
        config.options.design = Some(design);
        config.options.pool.path = pool.then(|| "pool".into());
        config.options.front.memtable_bytes = 256 << 10;
        let report = crate::run(&config, None).expect("the run");
        let whole: Vec<_> = report
            .steps
            .iter()
            .filter(|s| !s.name.starts_with(' '))
            .collect();
        assert_eq!(whole.len(), steps.len());
        for (step, done) in steps.iter().zip(&whole) {
            assert_eq!(done.name, step.name());
            let ops = match step {
                Step::YcsbLoad => 3000,
                step if step.settles() => 0,
                _ => 2000,
            };
            assert_eq!(done.ops, ops, "{step} of {design}");
            let checks = !step.settles() && *step != Step::YcsbLoad;
            assert_eq!(done.checked > 0, checks, "{step} of {design}");
        }
        let kinds = report.steps.iter().filter(|s| s.name.starts_with("  ("));
        let in_kinds: u64 = kinds.map(|s| s.ops).sum();
        let mixed = whole.iter().filter(|s| s.latency.is_some());
        let mixed = mixed.filter(|s| !["ycsb-load", "ycsb-c"].contains(&s.name.as_str()));
        assert_eq!(in_kinds, mixed.map(|s| s.ops).sum::<u64>(), "{design}");
    }
}
