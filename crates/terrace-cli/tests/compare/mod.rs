//! Tests that run `terrace bench compare` at a size that takes no time.

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

mod papers;

use super::{Place, assert_fails, terrace, text};

const TINY: &str = r#"
title = "A tiny comparison"
repeats = 2
baseline = "leveled"
value_sizes = ["100", "400"]
data_sizes = ["64KiB"]

[settings]
memtable-size = "256KiB"

[[store]]
name = "leveled"
settings = { design = "leveled", pool = "none" }

[[store]]
name = "miodb"

[[workload]]
name = "random"
prepare = ["fillseq"]
measure = ["overwrite", "readrandom"]

[[workload]]
name = "recovery"
measure = ["killreopen"]
"#;

/// Returns the output of `terrace bench --json` as one object: its phases are "steps".
pub(crate) fn report(out: &[u8]) -> serde_json::Value {
    let mut steps = Vec::new();
    let (mut conditions, mut space) = (serde_json::Value::Null, serde_json::Value::Null);
    for line in text(out).lines() {
        let mut record: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(record["terrace_bench"], 1, "{record}");
        match record["record"].as_str() {
            Some("phase") => {
                conditions = record["conditions"].take();
                steps.push(record["phase"].take());
            }
            Some("end") => space = record["space"].take(),
            _ => panic!("{record}"),
        }
    }
    assert!(space.is_object(), "the run has an end");
    serde_json::json!({ "conditions": conditions, "steps": steps, "space": space })
}

struct Comparison {
    place: Place,
}

impl Comparison {
    fn new(text: &str) -> Comparison {
        let place = Place::new();
        fs::write(place.path("tiny.toml"), text).expect("a file");
        Comparison { place }
    }

    fn run(&self, command: &str, more: &[&str]) -> Output {
        let mut run = terrace();
        run.args(["bench", command]).arg(self.file()).args(more);
        run.output().expect("it runs")
    }

    fn file(&self) -> PathBuf {
        self.place.path("tiny.toml")
    }

    fn results(&self) -> String {
        fs::read_to_string(self.place.path("tiny.jsonl")).unwrap_or_default()
    }

    fn page(&self) -> String {
        fs::read_to_string(self.place.path("tiny-report/index.html")).expect("a report")
    }
}

/// A matrix is measured in separate processes, interleaved, and reported; a second run has nothing
/// left to do.
#[test]
fn a_matrix_is_compared() {
    let compared = Comparison::new(TINY);
    let mount = compared.place.path("mount");
    fs::create_dir(&mount).expect("a directory");
    let mount = mount.to_str().expect("a path");
    let output = compared.run("compare", &["--mount", mount]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for part in [
        "random overwrite",
        "random readrandom",
        "to leveled",
        "after SIGKILL",
        "16 of 16 runs",
        "durability",
        "debug",
    ] {
        let part = if part == "durability" { "logged" } else { part };
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!said.contains("random fillseq"), "it only prepares: {said}");
    let results = compared.results();
    let ends: Vec<serde_json::Value> = results
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .filter(|record| record["record"] == "end")
        .collect();
    let order: Vec<String> = ends
        .iter()
        .take(4)
        .map(|end| {
            let planned = &end["run"]["planned"];
            format!(
                "{} {}",
                planned["store"].as_str().unwrap_or(""),
                planned["repeat"]
            )
        })
        .collect();
    assert_eq!(order, ["leveled 0", "miodb 0", "leveled 1", "miodb 1"]);
    let processes: std::collections::BTreeSet<&str> = ends
        .iter()
        .filter_map(|end| end["run"]["id"].as_str())
        .collect();
    assert_eq!(processes.len(), 16);
    assert!(compared.page().contains("A tiny comparison"));
    let left: Vec<_> = fs::read_dir(mount).expect("a directory").collect();
    assert!(left.is_empty(), "databases are removed: {left:?}");

    let again = compared.run("compare", &["--mount", mount]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert_eq!(compared.results(), results, "nothing was measured again");
    let report = compared.run("report", &["--report", &format!("{mount}/report")]);
    assert!(report.status.success(), "{}", text(&report.stderr));
    assert!(text(&report.stdout).contains("16 of 16 runs"));
}

/// A comparison whose results are torn at any place resumes with the missing runs.
#[test]
fn an_interrupted_comparison_goes_on() {
    let compared = Comparison::new(&TINY.replace("[\"100\", \"400\"]", "[\"100\"]"));
    let run = || {
        let output = compared.run("compare", &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("8 of 8 runs"));
    };
    run();
    let results = compared.results();
    let half: String = results.chars().take(results.len() / 2).collect();
    let whole = half.rfind('\n').expect("lines") + 1;
    let path = compared.place.path("tiny.jsonl");
    fs::write(&path, &half).expect("a file");
    run();
    assert!(
        compared.results().starts_with(&half[..whole]),
        "what was there is kept"
    );
    fs::write(&path, "{\"steps\":1}\n").expect("a file");
    let output = compared.run("compare", &[]);
    assert_fails(&output, 2, "tiny.jsonl:1: ");
}

/// Ctrl-C ends it soon, with a report of the finished runs.
#[test]
fn ctrl_c_leaves_a_report() {
    let long = TINY.replace("repeats = 2", "repeats = 90");
    let compared = Comparison::new(&long);
    let mut run = terrace();
    run.args(["bench", "compare"]).arg(compared.file());
    run.stdout(std::process::Stdio::piped());
    run.stderr(std::process::Stdio::piped());
    let child = run.spawn().expect("it starts");
    let until = Instant::now() + Duration::from_secs(120);
    while !compared.results().contains("\"record\":\"end\"") {
        assert!(Instant::now() < until, "a run ends");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    assert_fails(&output, 1, "run the same command again");
    assert!(text(&output.stdout).contains("runs have a result"));
    assert!(compared.page().contains("A tiny comparison"));
}

/// A failed store is reported with the evidence, and the others go on; one that is not in this
/// build is named with the feature to build with.
#[test]
fn failures_are_reported() {
    let broken = TINY
        .replace("repeats = 2", "repeats = 1")
        .replace("[\"100\", \"400\"]", "[\"100\"]")
        .replace(
            "name = \"miodb\"",
            "name = \"full\"\nsettings = { pool-size = \"24MiB\", num = 300000, extent = 1 }",
        );
    let compared = Comparison::new(&broken);
    assert_fails(&compared.run("compare", &[]), 2, "tiny.toml:17: ");
    fs::write(compared.file(), broken.replace(", extent = 1", "")).expect("a file");
    let output = compared.run("compare", &[]);
    assert_fails(&output, 1, "runs failed");
    let said = text(&output.stdout);
    assert!(said.contains("FAILED full with random"), "{said}");
    assert!(said.contains("leveled"), "{said}");
    assert!(compared.page().contains("exit code 1"));
    if !cfg!(feature = "rocksdb") {
        let absent = format!("{TINY}\n[[store]]\nname = \"rocks\"\nstore = \"rocksdb\"\n");
        let compared = Comparison::new(&absent);
        let output = compared.run("compare", &["--dry-run"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = text(&output.stdout);
        assert!(said.contains("--features rocksdb"), "{said}");
        assert!(said.contains("terrace bench --store terrace"), "{said}");
    }
}

/// Errors in a file give the line and a correction.
#[test]
fn bad_files_are_explained() {
    for (from, to, line, said) in [
        ("repeats = 2", "repeat = 2", 3, "repeats"),
        ("repeats = 2", "repeats = 0", 3, "1 to 100"),
        (
            "\"leveled\"\nvalue",
            "\"level\"\nvalue",
            4,
            "leveled, miodb",
        ),
        ("\"64KiB\"", "\"64 apples\"", 6, "4GiB"),
        ("\"256KiB\"", "\"many\"", 9, "not a size"),
        ("memtable-size", "memtable-bytes", 9, "--memtable-bytes"),
        ("memtable-size = \"256KiB\"", "db = \"x\"", 9, "mount"),
        ("\"overwrite\"", "\"overwritten\"", 21, "fillrandom"),
        ("design = \"leveled\"", "design = \"flat\"", 13, "miodb"),
        (
            "[[store]]\nname = \"miodb\"",
            "[[store]]\nname = \"leveled\"",
            15,
            "another store",
        ),
        ("title = ", "title == ", 2, "docs/benchmarking.md"),
    ] {
        assert!(TINY.contains(from), "{from}");
        let compared = Comparison::new(&TINY.replacen(from, to, 1));
        let output = compared.run("compare", &["--dry-run"]);
        assert_fails(&output, 2, said);
        assert_fails(&output, 2, &format!("tiny.toml:{line}: "));
    }
}
