//! Tests that run the `terrace` command as a user does: processes, files, exit codes.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use compare::report;
use tempfile::TempDir;

mod compare;
mod expiry;
mod options;
mod tools;
mod workloads;

/// A directory for one test, with a database small enough to be created instantly.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        Place {
            folder: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn db(&self) -> PathBuf {
        self.path("db")
    }

    /// Returns a `terrace COMMAND... DB ARGUMENTS...` with a small memtable and pool.
    fn terrace(&self, command: &str, arguments: &[&dyn AsRef<OsStr>]) -> Command {
        let mut run = terrace();
        run.args(["--memtable-size", "256KiB", "--pool-size", "128MiB"]);
        run.args(command.split(' '))
            .arg(self.db())
            .args(arguments.iter().map(|a| a.as_ref()));
        run
    }

    fn run(&self, command: &str, arguments: &[&dyn AsRef<OsStr>]) -> Output {
        self.terrace(command, arguments)
            .output()
            .expect("the command runs")
    }

    /// Runs a command that must succeed; returns its standard output.
    fn stdout(&self, command: &str, arguments: &[&dyn AsRef<OsStr>]) -> Vec<u8> {
        let output = self.run(command, arguments);
        assert!(
            output.status.success(),
            "{command}: {}",
            text(&output.stderr)
        );
        output.stdout
    }

    fn json(&self, command: &str, arguments: &[&dyn AsRef<OsStr>]) -> serde_json::Value {
        let out = self.stdout(&format!("{command} --json"), arguments);
        serde_json::from_slice(&out).unwrap_or_else(|e| panic!("{command}: {e}: {}", text(&out)))
    }

    /// Runs a command with `input` on its standard input.
    fn feed(&self, command: &str, arguments: &[&dyn AsRef<OsStr>], input: &[u8]) -> Output {
        let mut run = self.terrace(command, arguments);
        run.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = run.spawn().expect("the command starts");
        let mut stdin = child.stdin.take().expect("its input is a pipe");
        let input = input.to_vec();
        // The command may end before it has read everything.
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().expect("the command ends");
        feeder.join().expect("feeding does not panic");
        output
    }
}

fn terrace() -> Command {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn assert_fails(output: &Output, code: i32, part: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(part), "{part:?} in {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// After a put the value is found, in other processes too; after a delete it is not.
#[test]
fn put_get_delete() {
    let place = Place::new();
    place.stdout("put", &[&"hello", &"world"]);
    place.stdout("put", &[&"other", &"x"]);
    assert_eq!(place.stdout("get", &[&"hello"]), b"world\n");
    assert_eq!(place.stdout("get --raw", &[&"hello"]), b"world");
    let json = place.json("get", &[&"hello"]);
    assert_eq!(
        (&json["value"], &json["found"]),
        (&"world".into(), &true.into())
    );

    place.stdout("delete", &[&"hello", &"never-there"]);
    assert_fails(&place.run("get", &[&"hello"]), 1, "there is no key hello");
    let absent = place.run("get --json", &[&"hello"]);
    assert_eq!(absent.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&absent.stdout).expect("JSON");
    assert_eq!(json["found"], false);
    assert_eq!(place.stdout("get", &[&"other"]), b"x\n");
}

/// Any bytes can be a key and a value: as arguments, as escapes, as a file.
#[test]
fn any_bytes_can_be_put() {
    let place = Place::new();
    let key = OsStr::from_bytes(b"\xff\xfe\\t");
    place.stdout("put", &[&key, &OsStr::from_bytes(b"\x80")]);
    assert_eq!(place.stdout("get", &[&key]), b"\\x80\n");
    assert_eq!(place.stdout("get --raw -e", &[&"\\xff\\xfe\\\\t"]), b"\x80");

    let value: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let file = place.path("value");
    fs::write(&file, &value).expect("a file");
    place.stdout("put", &[&"from-file", &"--file", &file]);
    assert!(place.stdout("get --raw", &[&"from-file"]) == value);
    let fed = place.feed("put", &[&"from-stdin", &"--file", &"-"], &value);
    assert!(fed.status.success(), "{}", text(&fed.stderr));
    assert!(place.stdout("get --raw", &[&"from-stdin"]) == value);
    place.stdout("put -e", &[&"zero\\x00", &"a\\nb"]);
    assert_eq!(
        place.stdout("scan", &[&"--prefix", &"zero"]),
        b"zero\\x00\ta\\nb\n"
    );
}

/// A scan respects its bounds and its order.
#[test]
fn scan_keeps_its_bounds() {
    let place = Place::new();
    let lines: String = (0..100).map(|i| format!("k{i:02}\tv{i}\n")).collect();
    assert!(place.feed("load", &[], lines.as_bytes()).status.success());
    let keys = |arguments: &[&dyn AsRef<OsStr>]| text(&place.stdout("scan --keys-only", arguments));
    assert_eq!(keys(&[&"--prefix", &"k4", &"--limit", &"2"]), "k40\nk41\n");
    assert_eq!(keys(&[&"--from", &"k97"]), "k97\nk98\nk99\n");
    assert_eq!(keys(&[&"--to", &"k02"]), "k00\nk01\n");
    assert_eq!(
        keys(&[&"--from", &"k10", &"--to", &"k12", &"--reverse"]),
        "k11\nk10\n"
    );
    assert_eq!(keys(&[&"--reverse", &"--limit", &"1"]), "k99\n");
    assert_eq!(keys(&[&"--prefix", &"x"]), "");
    assert_eq!(
        place.stdout("scan --values-only", &[&"--limit", &"1"]),
        b"v0\n"
    );
    assert_eq!(place.stdout("scan", &[&"--limit", &"1"]), b"k00\tv0\n");
    let lines = text(&place.stdout("scan --json", &[&"--limit", &"2"]));
    let second: serde_json::Value =
        serde_json::from_str(lines.lines().nth(1).expect("two lines")).expect("JSON");
    assert_eq!(
        (&second["key"], &second["value"]),
        (&"k01".into(), &"v1".into())
    );
    assert_fails(
        &place.run("scan", &[&"--from", &"b", &"--to", &"a"]),
        2,
        "sorts after",
    );
}

/// Entries of any bytes are unchanged after a dump and a load elsewhere.
#[test]
fn dump_and_load_keep_every_byte() {
    let place = Place::new();
    let mut rng = fastrand::Rng::with_seed(5);
    let mut input = String::new();
    for i in 0..3000 {
        let hex = |rng: &mut fastrand::Rng, most| -> String {
            (0..rng.usize(0..most))
                .map(|_| format!("\\x{:02x}", rng.u8(..)))
                .collect()
        };
        input.push_str(&format!(
            "{i:04}{}\t{}\n",
            hex(&mut rng, 9),
            hex(&mut rng, 99)
        ));
    }
    let loaded = place.feed("load --json --batch-size 64", &[], input.as_bytes());
    let report: serde_json::Value = serde_json::from_slice(&loaded.stdout).expect("JSON");
    assert_eq!(
        (&report["loaded"], &report["failed"]),
        (&3000.into(), &0.into())
    );

    let first = place.path("first.tsv");
    place.stdout("dump", &[&first]);
    let first = fs::read(&first).expect("the dump");
    assert_eq!(first.iter().filter(|byte| **byte == b'\n').count(), 3000);
    for name in ["copy.jsonl", "copy.tsv"] {
        let other = Place::new();
        let file = other.path(name);
        place.stdout("dump", &[&file]);
        other.stdout("load", &[&file]);
        assert!(other.stdout("dump", &[]) == first, "{name}");
    }
}

/// A text file is restored byte for byte, with and without an end of its last line.
#[test]
fn text_files_come_back() {
    for content in [
        &b"one\n\ntwo\r\n\tthree\\n\xff\nno end"[..],
        b"ends\n",
        b"\n",
        b"",
    ] {
        let place = Place::new();
        let file = place.path("file.txt");
        fs::write(&file, content).expect("a file");
        place.stdout("load --format raw-lines", &[&file]);
        assert_eq!(place.stdout("dump --format lines", &[]), content);
        if content.len() > 10 {
            assert_eq!(place.stdout("get --raw", &[&"000000000003"]), b"two\r\n");
        }
    }
}

/// A bad line is named by its number; the load ends there, or goes on if requested.
#[test]
fn bad_lines_are_named() {
    let place = Place::new();
    let file = place.path("bad.tsv");
    fs::write(&file, "a\t1\nb\t2\nnonsense\nc\t3\nd\t\\q\ne\t5\n").expect("a file");
    let stopped = place.run("load", &[&file]);
    assert_fails(&stopped, 1, "bad.tsv: line 3: it has no tab");
    assert_eq!(place.stdout("scan --keys-only", &[]), b"a\nb\n");

    let went_on = place.run("load --on-error continue --json", &[&file]);
    assert_fails(&went_on, 1, "2 lines were not loaded");
    assert!(
        text(&went_on.stderr).contains("line 3:"),
        "{}",
        text(&went_on.stderr)
    );
    assert!(
        text(&went_on.stderr).contains("line 5:"),
        "{}",
        text(&went_on.stderr)
    );
    let report: serde_json::Value = serde_json::from_slice(&went_on.stdout).expect("JSON");
    assert_eq!(
        (&report["loaded"], &report["failed"]),
        (&4.into(), &2.into())
    );
    assert_eq!(place.stdout("scan --keys-only", &[]), b"a\nb\nc\ne\n");

    // A key that is too long fails only its own line, not the lines around it.
    let long = format!("f\t6\n{}\t7\ng\t8\n", "k".repeat(65 * 1024));
    let output = place.feed("load --on-error continue", &[], long.as_bytes());
    assert_fails(
        &output,
        1,
        "standard input: line 2: its key has 66560 bytes",
    );
    assert_eq!(
        place.stdout("scan --keys-only", &[&"--from", &"f"]),
        b"f\ng\n"
    );
}

/// Commands that read create no database, and report the missing one.
#[test]
fn a_missing_database_is_not_made() {
    let place = Place::new();
    for (command, arguments) in [
        ("get", &[&"key" as &dyn AsRef<OsStr>][..]),
        ("delete", &[&"key"]),
        ("scan", &[]),
        ("dump", &[]),
        ("stat", &[]),
        ("verify", &[]),
        ("keyspaces list", &[]),
        ("keyspaces drop", &[&"name"]),
    ] {
        let output = place.run(command, arguments);
        assert_fails(&output, 1, &place.db().display().to_string());
        assert!(
            text(&output.stderr).starts_with("terrace: "),
            "{}",
            text(&output.stderr)
        );
        assert!(!place.db().exists(), "{command} made a database");
    }
    let output = place.run("load", &[&place.path("no-such-file")]);
    assert_fails(&output, 1, "no-such-file");
    assert!(!place.db().exists(), "a load of nothing made a database");
}

/// Invalid command lines exit with 2 and name the error.
#[test]
fn wrong_command_lines_exit_with_2() {
    let place = Place::new();
    assert_fails(&place.run("put", &[&"key"]), 2, "VALUE");
    assert_fails(&place.run("get --pool-size 4X", &[&"key"]), 2, "4GiB");
    assert_fails(&place.run("get --design nodb", &[&"key"]), 2, "miodb");
    assert_fails(&place.run("get -e", &[&"\\q"]), 2, "\\q");
    assert_fails(&terrace().output().expect("it runs"), 2, "Usage");
    let tip = format!("try 'terrace keyspaces list {}'", place.db().display());
    assert_fails(&place.run("keyspaces", &[]), 2, &tip);
    assert_fails(&place.run("keyspaces lst", &[]), 2, "'list'");
    assert!(!text(&place.run("lst", &[]).stderr).contains("keyspaces list"));
    let bench = terrace()
        .args(["bench", "--benchmarks", "fillfast"])
        .output();
    assert_fails(&bench.expect("it runs"), 2, "fillrandom");
    let bench = terrace().args(["bench", "--threads", "0"]).output();
    assert_fails(&bench.expect("it runs"), 2, "threads");
}

/// Keyspaces are separate, and can be listed, created and dropped.
#[test]
fn keyspaces_are_apart() {
    let place = Place::new();
    place.stdout("put", &[&"key", &"in default"]);
    place.stdout("put --keyspace other", &[&"key", &"in other"]);
    place.stdout("keyspaces create", &[&"empty"]);
    assert_eq!(place.stdout("get", &[&"key"]), b"in default\n");
    assert_eq!(
        place.stdout("get --keyspace other", &[&"key"]),
        b"in other\n"
    );
    let list = text(&place.stdout("keyspaces list", &[]));
    for name in ["default", "other", "empty"] {
        assert!(list.contains(name), "{name} in {list}");
    }
    place.stdout("keyspaces drop", &[&"other"]);
    let output = place.run("get --keyspace other", &[&"key"]);
    assert_fails(&output, 1, "there is no keyspace \"other\"");
    assert_fails(&place.run("keyspaces drop", &[&"other"]), 1, "no keyspace");
    assert_eq!(place.stdout("get", &[&"key"]), b"in default\n");
}

/// Stat and verify report to people and to programs.
#[test]
fn stat_and_verify_report() {
    let place = Place::new();
    place.stdout("put", &[&"key", &"value"]);
    let stat = text(&place.stdout("stat", &[]));
    for part in ["design", "miodb", "pool", "keyspace", "default"] {
        assert!(stat.contains(part), "{part} in {stat}");
    }
    let stat = place.json("stat", &[]);
    assert_eq!(stat["design"], "miodb");
    assert!(stat["pool"]["cap_bytes"].as_u64() > Some(0));
    assert!(text(&place.stdout("verify", &[])).contains("the database is intact"));
    assert_eq!(place.json("verify", &[])["sound"], true);
}

/// A lack of file descriptors is a failure of verify and no problem of the database.
#[test]
fn too_many_open_files_are_no_damage() {
    let place = Place::new();
    let input: String = (0..4000)
        .map(|n| format!("key{n:05}\t{}\n", "value ".repeat(10)))
        .collect();
    let load = "load --pool none --design leveled --table-size 8KiB --level1-size 16KiB";
    let loaded = place.feed(load, &[], input.as_bytes());
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    place.stdout("compact --table-size 8KiB --level1-size 16KiB", &[]);
    let verify = |limit: u32| {
        let mut run = Command::new("sh");
        run.arg("-c").arg(format!("ulimit -n {limit}; exec \"$@\""));
        run.args(["sh", env!("CARGO_BIN_EXE_terrace"), "verify"]);
        run.arg(place.db()).output().expect("it runs")
    };
    assert!(text(&verify(500).stdout).contains("intact"));
    let few = verify(16);
    assert_fails(&few, 1, "raise the limit on open files (ulimit -n)");
    assert!(
        !text(&few.stdout).contains("problem"),
        "{}",
        text(&few.stdout)
    );
}

/// stat shows the reserve on the disk, and calls values that are not apart "none".
#[test]
fn the_reserve_and_values_in_tables_are_shown() {
    let place = Place::new();
    let command = "put --design flatlsm --values-apart-from none";
    place.stdout(command, &[&"key", &"value"]);
    let stat = place.json("stat", &[]);
    let name = "bottom.leveled.values_apart_from";
    assert_eq!(stat["options"][name], "none");
    let stat = text(&place.stdout("stat", &[]));
    assert!(!stat.contains(&u64::MAX.to_string()), "{stat}");
    let place = Place::new();
    let command = "put --design leveled --pool none";
    place.stdout(command, &[&"key", &"value"]);
    let stat = place.json("stat", &[]);
    assert!(stat["reserve_bytes"].as_u64() > Some(0), "{stat}");
    let stat = text(&place.stdout("stat", &[]));
    assert!(stat.contains("reserve, file"), "{stat}");
}

/// A batch that is too large for the store is loaded line by line, and a value that is too large is
/// not to be split as a batch.
#[test]
fn large_batches_are_split_and_large_values_refused() {
    let place = Place::new();
    let load = |lines: usize, bytes: usize| {
        let input: String = (0..lines)
            .map(|n| format!("key{n}\t{}\n", "x".repeat(bytes)))
            .collect();
        let tsv = place.path("input.tsv");
        fs::write(&tsv, input).expect("a file");
        let mut run = terrace();
        run.arg("load").arg(place.db()).arg(tsv);
        run.args(["--pool-size", "16MiB"])
            .output()
            .expect("it runs")
    };
    let loaded = load(30, 100_000);
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    let refused = load(1, 3_000_000);
    assert_fails(&refused, 1, "store the value in parts");
    assert!(!text(&refused.stderr).contains("split it"));
}

/// Designs with table files report them, for people and for programs, and omit stages that they do
/// not have; a design without table files reports none.
#[test]
fn table_files_are_reported() {
    for (design, has_files) in terrace::Design::ALL.map(|d| (d.name(), d.keeps_table_files())) {
        let place = Place::new();
        let run = |steps: &str, more: &[&str]| {
            let mut run = terrace();
            run.args(["bench", "--design", design, "--benchmarks", steps, "--db"]);
            run.arg(place.db()).args(more);
            run.args([
                "--num",
                "3000",
                "--value-size",
                "400",
                "--memtable-size",
                "256KiB",
            ]);
            run.args(["--table-size", "64KiB", "--level1-size", "128KiB"]);
            run.args(["--values-apart-from", "300", "--pool-size", "128MiB"]);
            run.args(["--cache-size", "1MiB", "--compression", "none"]);
            let output = run.output().expect("the benchmark runs");
            assert!(output.status.success(), "{}", text(&output.stderr));
            output.stdout
        };
        let people = text(&run("fillrandom,drain,readrandom", &[]));
        let has_values = people.contains("\n  value files ");
        assert_eq!(has_values, has_files, "{people}");
        let people = people + &text(&place.stdout("stat", &[]));
        let more = ["--use-existing-db", "--json"];
        let report = report(&run("overwrite,readrandom", &more));
        let stat = place.json("stat", &[]);
        for part in [
            "table files",
            "\n  level ",
            "file amplification",
            "tombstones",
            "cache",
        ] {
            assert_eq!(
                people.contains(part),
                has_files,
                "{design}: {part} in {people}"
            );
        }
        assert_eq!(people.contains("repository"), !has_files, "{people}");
        let levels = stat["table_files"].as_array().expect("a list");
        assert_eq!(levels.is_empty(), !has_files, "{stat}");
        assert!(has_files || stat["space_amp_files"].is_null(), "{stat}");
        assert_eq!(
            report["space"]["files"].as_array().map(Vec::len) > Some(0),
            has_files
        );
        let settings = &report["conditions"]["table_files"];
        assert_eq!(settings["cache_bytes"] == 1 << 20, has_files, "{report}");
        assert_eq!(settings["compression"] == "none", has_files, "{report}");
        let blocks = &report["steps"][1]["blocks"];
        assert_eq!(blocks["misses"].as_u64() > Some(0), has_files, "{report}");
        assert!(report["steps"][0]["written"]["write_amp_files"].is_number());
    }
}

/// Compression that this build cannot write is refused before anything is created.
#[test]
#[cfg(not(feature = "zstd"))]
fn compression_that_is_not_built_is_refused() {
    let place = Place::new();
    let output = place.run("put --design leveled --compression zstd", &[&"k", &"v"]);
    assert_fails(&output, 1, "feature `zstd`");
    assert!(!place.db().exists());
    assert_fails(&place.run("get --compression gzip", &[&"k"]), 2, "lz4");
}

/// The options of a database are kept and need not be given again.
#[test]
fn options_are_remembered() {
    let place = Place::new();
    let pool = place.path("elsewhere");
    place.stdout("put", &[&"key", &"value", &"--pool", &pool]);
    assert!(pool.exists());
    let output = terrace()
        .arg("get")
        .arg(place.db())
        .arg("key")
        .output()
        .expect("it runs");
    assert_eq!(text(&output.stdout), "value\n", "{}", text(&output.stderr));
    assert!(!place.db().join("pool").exists());
}

/// A closed output is no failure.
#[test]
fn a_closed_output_is_no_failure() {
    let place = Place::new();
    let lines: String = (0..50_000).map(|i| format!("key{i:08}\tvalue\n")).collect();
    assert!(place.feed("load", &[], lines.as_bytes()).status.success());
    for command in ["scan", "dump"] {
        let mut run = place.terrace(command, &[]);
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = run.spawn().expect("the command starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("the command ends");
        assert!(output.status.success(), "{command}");
        assert_eq!(text(&output.stderr), "", "{command}");
    }
}

/// A tiny benchmark runs every workload and reports each, for people and for programs.
#[test]
fn a_tiny_benchmark_reports() {
    let small = [
        "--memtable-size",
        "256KiB",
        "--num",
        "500",
        "--value-size",
        "100",
    ];
    let steps = "fillseq,fillrandom,overwrite,readrandom,readmissing,readseq,readreverse,\
                 seekrandom,deleterandom,readwhilewriting,killreopen,drain,flush,wait";
    let run = |arguments: &[&str]| {
        let mut run = terrace();
        run.args(["bench", "--benchmarks", steps])
            .args(small)
            .args(arguments);
        let output = run.output().expect("the benchmark runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        output.stdout
    };
    let people = text(&run(&["--threads", "2", "--histogram"]));
    let report = report(&run(&["--json", "--sync", "--batch-size", "7"]));
    let reported = report["steps"].as_array().expect("a list");
    for step in steps.split(',') {
        assert!(people.contains(step), "{step} in {people}");
        assert!(
            reported.iter().any(|report| report["name"] == step),
            "{step} in {report}"
        );
    }
    for part in [
        "machine",
        "pool",
        "limit op/s",
        "amplification",
        "repository",
        "VmHWM",
    ] {
        assert!(people.contains(part), "{part} in {people}");
    }
    assert_eq!(report["conditions"]["durability"], "sync");
    assert_eq!(reported[0]["ops"], 500);
    assert_eq!(reported[0]["kinds"][0]["kind"], "write");
    assert!(reported[0]["usage"]["peak_private_bytes"].as_u64() > Some(1 << 20));
    assert!(
        reported[0]["space"]["used_bytes"].as_u64() > Some(50_000),
        "{report}"
    );
    let killed = reported.iter().find(|phase| phase["name"] == "killreopen");
    let killed = killed.expect("it was done");
    assert_eq!(killed["recovery"]["verified"], 500, "{killed}");
    assert!(
        killed["recovery"]["open_s"].as_f64() > Some(0.0),
        "{killed}"
    );
    assert!(
        people.contains("after SIGKILL; 500 acknowledged writes"),
        "{people}"
    );
    assert!(reported[0]["limit_ops_per_s"].as_f64() > Some(0.0));
}

/// The store that does nothing is measured like any other, options that a store would not follow
/// are refused, and a store that is not in this build is refused with a hint.
#[test]
fn other_stores_are_measured() {
    let run = |arguments: &[&str]| {
        let mut run = terrace();
        run.args(["bench", "--num", "500"]).args(arguments);
        run.output().expect("it runs")
    };
    let output = run(&["--store", "empty", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = report(&output.stdout);
    assert_eq!(report["conditions"]["store"], "empty");
    assert_eq!(report["steps"][0]["ops"], 500);
    let people = text(&run(&["--store", "empty"]).stdout);
    for part in ["\nmedium  ", "\ndurability  ", "does nothing"] {
        assert!(people.contains(part), "{part} in {people}");
    }
    assert_fails(
        &run(&["--store", "empty", "--design", "miodb"]),
        2,
        "--design",
    );
    assert_fails(&run(&["--store", "nodb"]), 2, "rocksdb");
    if !cfg!(feature = "rocksdb") {
        assert_fails(&run(&["--store", "rocksdb"]), 2, "--features rocksdb");
    }
}

/// A benchmark keeps the database that it was given, and can use it again.
#[test]
fn a_benchmark_keeps_its_database() {
    let place = Place::new();
    let run = |steps: &str, more: &[&str]| {
        let mut run = terrace();
        run.args(["bench", "--json", "--num", "300", "--value-size", "50"]);
        run.args(["--memtable-size", "256KiB", "--pool-size", "128MiB"]);
        run.args(["--benchmarks", steps, "--db"]);
        run.arg(place.db())
            .args(more)
            .output()
            .expect("the benchmark runs")
    };
    let first = run("fillseq", &[]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert_eq!(
        place.stdout("scan --keys-only --limit 1", &[]),
        b"0000000000000000\n"
    );
    assert_fails(&run("fillseq", &[]), 2, "--replace-db");
    let again = run("readrandom", &["--use-existing-db"]);
    let report = report(&again.stdout);
    assert_eq!(report["steps"][0]["found"], 300);
    assert!(run("fillseq", &["--replace-db"]).status.success());
    assert!(Path::new(&place.db()).exists());
}
