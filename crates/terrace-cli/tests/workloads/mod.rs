//! Tests of the workloads of `terrace bench`: YCSB's, the open loop, and refused ones.

use crate::{Place, assert_fails, terrace, text};

fn report(arguments: &[&str]) -> serde_json::Value {
    let mut run = terrace();
    run.args(["bench", "--json", "--memtable-size", "256KiB"]);
    let output = run.args(arguments).output().expect("the benchmark runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    crate::compare::report(&output.stdout)
}

/// A property file of YCSB is read, the command line overrides it, and the report lists what was
/// done and what was ignored.
#[test]
fn a_property_file_is_run() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("workloadx");
    let properties = "# a comment\nrecordcount=400\noperationcount=300\nworkload=x\n\
                      readproportion: 0.5\nupdateproportion 0.5\nthreadcount = 3\ntarget=200000\n\
                      jdbc.url=y\nrequestdistribution=zipfian";
    std::fs::write(&file, properties).expect("a file");
    let file = file.to_str().expect("text");
    let done = report(&["--ycsb", file]);
    let (steps, conditions) = (&done["steps"], &done["conditions"]);
    assert_eq!(steps[0]["name"], "ycsb-load");
    assert_eq!(steps[0]["ops"], 400);
    assert_eq!(steps[1]["name"], "ycsb-run");
    assert_eq!(steps[1]["ops"], 300);
    assert_eq!(steps[2]["name"], "  (read)");
    assert!(
        steps[3]["latency"]["p99_99_us"].as_f64() > Some(0.0),
        "{steps}"
    );
    assert_eq!(conditions["threads"], 3);
    assert_eq!(conditions["rate"], 200_000.0);
    assert_eq!(
        conditions["workloads"][1]["ignored"],
        serde_json::json!(["workload", "jdbc.url"])
    );
    let over = [
        "-p",
        "operationcount=50",
        "--num",
        "100",
        "--threads",
        "1",
        "--value-size",
        "30",
    ];
    let done = report(&[&["--ycsb", file], &over[..]].concat());
    assert_eq!(
        (&done["steps"][0]["ops"], &done["steps"][1]["ops"]),
        (&100.into(), &50.into())
    );
    let what = done["conditions"]["workloads"][1]["what"].to_string();
    assert!(
        what.contains("100 records of 30 B") && what.contains("zipfian"),
        "{what}"
    );
}

/// Standard workloads run by name, also in an open loop, and with output for people.
#[test]
fn standard_workloads_run_by_name() {
    let mut run = terrace();
    run.args(["bench", "--ycsb", "d", "--num", "300", "--reads", "200"]);
    run.args([
        "--rate",
        "100000",
        "--arrivals",
        "poisson",
        "--memtable-size",
        "256KiB",
    ]);
    let output = run.output().expect("the benchmark runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let people = text(&output.stdout);
    for part in [
        "ycsb-run: 300 records of 1000 B, hashed; 200 operations: 95 % read, 5 % insert; latest",
        "open loop   100000 operations per second, poisson arrivals",
        "  (insert)",
    ] {
        assert!(people.contains(part), "{part} in {people}");
    }
}

/// The rarely used workloads of db_bench run, with values of mixed sizes, and a queue.
#[test]
fn the_other_workloads_run() {
    let steps = "filluniquerandom,readhot,updaterandom,readrandomwriterandom,seekrandomwhilewriting,\
                 deleteseq,queue";
    let sizes = [
        "--num",
        "500",
        "--value-size",
        "300",
        "--value-size-min",
        "20",
    ];
    let more = [
        "--read-percent",
        "50",
        "--queue-depth",
        "7",
        "--writer-rate",
        "1000",
        "--pool",
        "none",
    ];
    let done = report(&[&["--benchmarks", steps], &sizes[..], &more].concat());
    let reported = done["steps"].as_array().expect("a list");
    for step in steps.split(',') {
        assert!(
            reported.iter().any(|report| report["name"] == step),
            "{step} in {done}"
        );
    }
    assert_eq!(reported[1]["found"], 500, "every key is there");
    assert_eq!(done["conditions"]["value_bytes_min"], 20);
    let queue = reported.iter().find(|report| report["name"] == "queue");
    assert_eq!(queue.expect("it ran")["ops"], 1500);
}

/// Calls of commands are recorded, and replayed on other stores.
#[test]
fn a_recorded_trace_is_replayed() {
    let place = Place::new();
    let trace = place.path("trace");
    let input: String = (0..300)
        .map(|n| format!("key{n:04}\tvalue {n}\n"))
        .collect();
    let record = format!("--record-trace {} load", trace.display());
    let loaded = place.feed(&record, &[], input.as_bytes());
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    let recorded = std::fs::read_to_string(&trace).expect("a trace");
    assert!(recorded.starts_with("terrace-trace\t1\n"), "{recorded}");
    assert_eq!(recorded.matches("\tput\tkey").count(), 300);
    let scans = place.path("scans");
    place.stdout(
        &format!("--record-trace {} scan --limit 5", scans.display()),
        &[],
    );
    let recorded = std::fs::read_to_string(&scans).expect("a trace");
    assert!(recorded.ends_with("\tscan\t\t5\n"), "{recorded}");
    let trace = trace.to_str().expect("text");
    let done = report(&["--benchmarks", "replay", "--trace", trace, "--threads", "3"]);
    assert_eq!(done["steps"][0]["ops"], 300);
    let what = done["conditions"]["workloads"][0]["what"].to_string();
    assert!(
        what.contains("300 calls on 300 keys of up to 7 B, values of up to 9 B"),
        "{what}"
    );
}

/// Invalid workloads are refused with a hint.
#[test]
fn bad_workloads_are_refused() {
    let run = |arguments: &[&str]| {
        let mut run = terrace();
        run.arg("bench").args(arguments);
        run.output().expect("it runs")
    };
    for (arguments, said) in [
        (&["--benchmarks", "ycsb-a"][..], "put a step before it"),
        (&["--benchmarks", "ycsb-load,readseq"], "readseq needs"),
        (&["--benchmarks", "ycsb-load,ycsb-run"], "--ycsb"),
        (&["--ycsb", "z"], "use one of a, b, c, d, e, f"),
        (&["--ycsb", "./nothing-here"], "cannot read"),
        (
            &["--ycsb", "a", "-p", "readpropotion=1"],
            "did you mean readproportion?",
        ),
        (&["--ycsb", "a", "-p", "readproportion"], "NAME=VALUE"),
        (
            &["--ycsb", "a", "-p", "threadcount=many"],
            "threadcount is \"many\"",
        ),
        (&["--rate", "0"], "rate is 0"),
        (&["--arrivals", "poisson"], "--rate"),
        (
            &["--rate", "5", "--arrivals", "bursts"],
            "constant or poisson",
        ),
        (&["--value-size-min", "2000"], "value-size-min"),
        (&["--read-percent", "120"], "read-percent"),
        (&["--benchmarks", "replay"], "--trace"),
        (
            &["--benchmarks", "replay", "--trace", "/nowhere/t"],
            "cannot read",
        ),
        (&["--record-trace", "x"], "does not record traces"),
    ] {
        assert_fails(&run(arguments), 2, said);
    }
}

/// A benchmark does not replace a database that is open, here or in another process, and removes
/// nothing from it.
#[test]
fn a_database_that_is_open_is_not_replaced() {
    for pool in ["none", "pool"] {
        let place = Place::new();
        let run = |more: &[&str]| {
            let mut run = terrace();
            run.args([
                "bench",
                "--num",
                "100",
                "--value-size",
                "50",
                "--benchmarks",
                "fillseq",
            ]);
            run.args([
                "--memtable-size",
                "256KiB",
                "--pool-size",
                "128MiB",
                "--pool",
                pool,
                "--db",
            ]);
            run.arg(place.db()).args(more);
            run.output().expect("the benchmark runs")
        };
        let made = run(&[]);
        assert!(made.status.success(), "{pool}: {}", text(&made.stderr));
        let options = terrace::Options::load(place.db()).expect("its options can be read");
        let options = options.expect("the benchmark made a database");
        let db = terrace::Db::open(place.db(), options).expect("no other process has it open");
        db.put("mine", "value").expect("it is open");
        let refused = run(&["--replace-db"]);
        assert!(!refused.status.success(), "{pool}");
        let told = text(&refused.stderr);
        assert!(
            told.contains("is open in another process"),
            "{pool}: {told}"
        );
        db.put("mine too", "value")
            .expect("nothing was taken from it");
        db.close().expect("nothing was taken from it");
        assert_eq!(place.stdout("get", &[&"mine"]), b"value\n");
        assert!(run(&["--replace-db"]).status.success(), "{pool}");
    }
}
