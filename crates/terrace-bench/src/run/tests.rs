//! Tests that run every workload on a small database and check its report.

use super::*;

fn small() -> BenchConfig {
    let mut options = Options::default();
    options.pool.path = Some("pool".into());
    options.front.memtable_bytes = 1 << 20;
    options.bottom.extent_bytes = 1 << 20;
    BenchConfig {
        steps: Step::ALL.to_vec(),
        ycsb: Some(crate::ycsb::properties_of("f").expect("a standard workload")),
        trace: Some(crate::trace::tests::small()),
        num: 2000,
        reads: Some(500),
        value_bytes: 100,
        options,
        ..BenchConfig::default()
    }
}

/// Every workload runs, does the requested operations, and reads back the written values.
#[test]
fn every_workload_runs() {
    let mut out = Vec::new();
    let config = BenchConfig {
        threads: 2,
        histogram: true,
        ..small()
    };
    let report = run(&config, Some(&mut out)).expect("the run");
    let text = String::from_utf8(out).expect("text");
    for step in Step::ALL {
        let done = report
            .steps
            .iter()
            .find(|s| s.name == step.name())
            .expect("a report for every step");
        assert!(text.contains(step.name()), "{text}");
        let ops = match step {
            step if step.settles() => 0,
            // The test binary cannot be started as a victim.
            Step::KillReopen => 0,
            step if step.standard_workload().is_some() => 500,
            Step::FillSeq
            | Step::FillBatch
            | Step::FillRandom
            | Step::FillUniqueRandom
            | Step::Overwrite
            | Step::DeleteSeq
            | Step::DeleteRandom => 4000,
            Step::Queue => 3 * 4000,
            Step::YcsbLoad => 2000,
            Step::YcsbRun => 500,
            Step::Replay => 4,
            _ => 1000,
        };
        assert_eq!(done.ops, ops, "{step}");
        let is_timed = !step.settles() && step != Step::KillReopen;
        assert_eq!(done.latency.is_some(), is_timed, "{step}");
        assert_eq!(!done.kinds.is_empty(), is_timed, "{step}");
        assert_eq!(done.skipped.is_some(), step == Step::KillReopen, "{step}");
        assert_eq!(
            done.space.used_bytes > 0,
            step != Step::KillReopen,
            "{step}"
        );
    }
    let flushes: Vec<_> = report.steps.iter().filter_map(|s| s.flushes).collect();
    assert!(!flushes.is_empty(), "some steps write more than a memtable");
    for flushes in flushes {
        assert!(flushes.count > 0 && flushes.seconds > 0.0, "{flushes:?}");
    }
    assert!(text.contains("flushed memtables"), "{text}");
    for step in report.steps.iter().filter(|step| step.recovery.is_none()) {
        let is_known = step.space.pool_peak_bytes.is_some_and(|bytes| bytes > 0);
        let is_part = step.name.starts_with(' ');
        assert_eq!(
            is_known,
            !is_part && step.skipped.is_none(),
            "{}",
            step.name
        );
    }
    let checked: u64 = report.steps.iter().map(|step| step.checked).sum();
    assert!(checked > 0, "values are compared");
    let missing = report.steps.iter().find(|step| step.name == "readmissing");
    assert_eq!(missing.and_then(|step| step.found), Some(0));
}

/// Batches count their entries, and intervals count every one of them.
#[test]
fn batches_and_intervals_count_entries() {
    let config = BenchConfig {
        steps: vec![Step::FillSeq, Step::ReadSeq],
        batch_count: 64,
        report_interval: Some(Duration::from_millis(1)),
        reads: None,
        ..small()
    };
    let report = run(&config, None).expect("the run");
    for step in &report.steps {
        assert_eq!(step.ops, 2000, "{}", step.name);
        let in_intervals: u64 = step.intervals.iter().map(|interval| interval.ops).sum();
        assert_eq!(in_intervals, 2000, "{}", step.name);
    }
}

/// Random reads of a database filled by an earlier run draw other keys than the fill did.
#[test]
fn reads_do_not_follow_the_fill_of_an_earlier_run() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let fill = BenchConfig {
        steps: vec![Step::FillRandom],
        db: Some(folder.path().join("db")),
        ..small()
    };
    run(&fill, None).expect("the fill");
    let reads = BenchConfig {
        steps: vec![Step::ReadRandom],
        use_existing_db: true,
        ..fill
    };
    let report = run(&reads, None).expect("the reads");
    // A fill draws some keys more than once and so omits more than a third of them.
    let found = report.steps[0].found.expect("a count");
    assert!((250..400).contains(&found), "{found} of 500");
}

/// A database is kept, reused, refused or replaced, as requested.
#[test]
fn a_named_database_is_kept() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let fill = BenchConfig {
        steps: vec![Step::FillSeq],
        db: Some(folder.path().join("db")),
        ..small()
    };
    run(&fill, None).expect("the first run");
    let problem = run(&fill, None).expect_err("there is a database");
    assert!(problem.to_string().contains("--replace-db"), "{problem}");
    let again = BenchConfig {
        steps: vec![Step::FillSeq, Step::ReadRandom],
        use_existing_db: true,
        ..fill.clone()
    };
    let report = run(&again, None).expect("the second run");
    assert!(report.steps[0].skipped.is_some());
    assert_eq!(report.steps[1].found, Some(500));
    assert_eq!(
        report.steps[1].checked, 0,
        "values of another run are not known"
    );
    run(
        &BenchConfig {
            replace_db: true,
            ..fill
        },
        None,
    )
    .expect("the third run");
}
