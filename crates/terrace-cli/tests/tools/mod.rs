//! Tests of commands that inspect files, and of those that copy, load and repair whole databases.

use std::ffi::OsStr;
use std::fs;

use super::{Place, assert_fails, terrace, text};

/// Parses an output of one JSON object a line.
fn lines_of_json(out: &[u8]) -> Vec<serde_json::Value> {
    let lines = text(out);
    let parse = |line: &str| serde_json::from_str(line).expect(line);
    lines.lines().map(parse).collect()
}

/// Files are shown without opening the database, with exact bytes, and damage is reported with its
/// offset and an exit code.
#[test]
fn files_are_dumped() {
    let place = Place::new();
    let input: String = (0..3000)
        .map(|n| format!("key{n:04}\tvalue {n}\n"))
        .collect();
    let design = "--design leveled --table-size 64KiB --level1-size 256KiB";
    let loaded = place.feed(&format!("{design} load"), &[], input.as_bytes());
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    place.stdout("put -e", &[&"a\\x00\\xff", &"tab\\t"]);

    let run = |arguments: &[&dyn AsRef<OsStr>]| {
        let mut run = terrace();
        run.args(arguments.iter().map(|a| a.as_ref()));
        run.output().expect("the command runs")
    };
    let mut files: Vec<_> = fs::read_dir(place.db())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension() == Some(OsStr::new("sst")))
        .collect();
    files.sort();
    let shown = run(&[
        &"sst-dump",
        &files[0],
        &"--from",
        &"key0007",
        &"--limit",
        &"2",
    ]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("put       1  key0007\tvalue 7\n"), "{shown}");
    assert!(
        shown.contains("key0008") && !shown.contains("key0009"),
        "{shown}"
    );
    assert!(shown.ends_with("the table is intact\n"), "{shown}");
    assert!(shown.contains("key0000 (keyspace 1, default)\n"), "{shown}");
    let json = lines_of_json(&run(&[&"sst-dump", &"--json", &"--blocks", &files[0]]).stdout);
    let (summary, blocks) = json.split_last().expect("a summary");
    assert_eq!(summary["blocks_read"], blocks.len() as u64);
    assert_eq!(summary["first"]["key"], "key0000");

    let logs = lines_of_json(&run(&[&"log-dump", &"--json", &place.db()]).stdout);
    let id = logs.last().expect("a log")["id"].to_string();
    let log = run(&[&"log-dump", &place.db(), &"--id", &id, &"--entries"]);
    let log = text(&log.stdout);
    assert!(log.contains("a\\x00\\xff\ttab\\t\n"), "{log}");
    assert_fails(
        &run(&[&"log-dump", &place.db(), &"--id", &"999"]),
        1,
        &format!("there is no log 999 in {}", place.db().display()),
    );

    let manifest = lines_of_json(&run(&[&"manifest-dump", &"--json", &place.db()]).stdout);
    let state = manifest[0]["state"].as_array().expect("a state").clone();
    let named = state.iter().filter(|c| c["change"] == "file-added");
    assert_eq!(named.count(), files.len());
    assert!(text(&run(&[&"manifest-dump", &place.db()]).stdout).contains("file-added"));

    for stranger in ["OPTIONS", "LOCK", "pool"] {
        let stranger = place.db().join(stranger);
        let refused = run(&[&"sst-dump", &stranger]);
        let what = format!("{} is not a table of Terrace", stranger.display());
        assert_fails(&refused, 1, &what);
        assert_eq!(text(&refused.stdout), "");
    }

    let mut bytes = fs::read(&files[0]).expect("a table");
    bytes[100] ^= 1;
    fs::write(&files[0], bytes).expect("a table");
    let damaged = run(&[&"sst-dump", &files[0]]);
    assert!(text(&damaged.stdout).contains("problem at offset 0: "));
    assert_fails(&damaged, 1, "has 1 problem");
    // In another block, which opening the database does not read.
    let mut bytes = fs::read(&files[0]).expect("a table");
    bytes[100] ^= 1;
    bytes[30_000] ^= 1;
    fs::write(&files[0], bytes).expect("a table");
    let verified = place.run("verify", &[]);
    assert_eq!(verified.status.code(), Some(1));
    let (verified, path) = (text(&verified.stdout), files[0].display().to_string());
    let problem = verified.lines().find(|line| line.contains(&path));
    let problem = problem.unwrap_or_else(|| panic!("{path} in {verified}"));
    assert!(
        problem.starts_with(&format!("problem: {path}: ")),
        "{problem}"
    );
    assert_eq!(problem.matches(&path).count(), 1, "{problem}");
}

/// Values apart are shown where they are: tables name their places, and value files have them.
#[test]
fn values_apart_are_dumped() {
    let place = Place::new();
    let long = "long ".repeat(60);
    let input: String = (0..300)
        .map(|n| match n % 2 {
            0 => format!("key{n:04}\tshort\n"),
            _ => format!("key{n:04}\t{n} {long}\n"),
        })
        .collect();
    let options = "--design leveled --compression none --values-apart-from 100";
    let loaded = place.feed(&format!("{options} load"), &[], input.as_bytes());
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    place.stdout("compact", &[]);
    let run = |arguments: &[&dyn AsRef<OsStr>]| {
        let mut run = terrace();
        run.args(arguments.iter().map(|a| a.as_ref()));
        run.output().expect("the command runs")
    };
    let of_kind = |ending: &str| {
        let files = fs::read_dir(place.db()).expect("a directory");
        let paths = files.map(|entry| entry.expect("an entry").path());
        let mut paths = paths.filter(|path| path.extension() == Some(OsStr::new(ending)));
        paths.next().expect("a file")
    };
    let (table, values) = (of_kind("sst"), of_kind("val"));
    let shown = run(&[&"sst-dump", &table, &"--from", &"key0006", &"--limit", &"2"]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("key0006\tshort\n"), "{shown}");
    assert!(
        shown.contains("key0007\t(302 bytes in value file "),
        "{shown}"
    );
    let shown = run(&[
        &"value-dump",
        &values,
        &"--from",
        &"key0006",
        &"--limit",
        &"1",
    ]);
    let shown = text(&shown.stdout);
    assert!(shown.contains(&format!("key0007\t7 {long}\n")), "{shown}");
    let json = lines_of_json(&run(&[&"value-dump", &"--json", &values]).stdout);
    assert_eq!(json.last().expect("a summary")["values"], 150);
    let manifest = run(&[&"manifest-dump", &place.db()]);
    assert!(text(&manifest.stdout).contains("value-file-added"));
    let stat = place.stdout("stat --json", &[]);
    let stat: serde_json::Value = serde_json::from_slice(&stat).expect("JSON");
    assert_eq!(stat["value_files"]["files"], 1, "{stat}");
    assert_fails(
        &run(&[&"value-dump", &table]),
        1,
        "is not named like a value file",
    );
    let mut bytes = fs::read(&values).expect("a value file");
    bytes[5000] ^= 1;
    fs::write(&values, bytes).expect("a value file");
    let damaged = run(&[&"value-dump", &values]);
    assert!(text(&damaged.stdout).contains("problem at offset "));
    assert_fails(&damaged, 1, "problem");
    let verified = place.run("verify", &[]);
    assert_eq!(verified.status.code(), Some(1));
    let name = values.display().to_string();
    assert!(text(&verified.stdout).contains(&name), "{name}");
}

/// Sorted lines are ingested atomically; a line out of order is named, and no entry of the file is
/// added.
#[test]
fn sorted_lines_are_ingested() {
    for design in terrace::Design::ALL {
        let place = Place::new();
        let command = format!("--design {design} ingest");
        let input = b"a\t1\nb\\x00\t2\nc\t3\n";
        let out = place.feed(&command, &[], input);
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert!(text(&out.stdout).starts_with("ingested 3 lines"));
        let bad = place.feed("ingest", &[], b"c\tx\nd\tx\nd\ty\n");
        assert_fails(
            &bad,
            1,
            "standard input: line 3: the key \"d\" is not greater",
        );
        assert_fails(&bad, 1, "nothing was ingested");
        assert_eq!(text(&place.stdout("dump", &[])), text(input));
        let again = place.feed(
            "ingest --json --format jsonl",
            &[],
            br#"{"key":"b","value":"9"}"#,
        );
        assert_eq!(text(&again.stdout), "{\"bytes\":2,\"ingested\":1}\n");
        assert_eq!(place.stdout("get --raw", &[&"b"]), b"9");
    }
}

/// A copy is an independent database, and never replaces existing files.
#[test]
fn a_database_is_copied() {
    for design in ["miodb", "leveled"] {
        let place = Place::new();
        let input: String = (0..4000).map(|n| format!("key{n:04}\tvalue\n")).collect();
        let load = format!("--design {design} load");
        assert!(place.feed(&load, &[], input.as_bytes()).status.success());
        let target = place.path("copy");
        let report = place.json("checkpoint", &[&target]);
        assert_eq!(report["files_linked"] != 0, design == "leveled", "{report}");
        let dump = terrace()
            .arg("dump")
            .arg(&target)
            .output()
            .expect("it runs");
        assert!(dump.stdout == input.as_bytes(), "{}", text(&dump.stderr));
        assert_fails(&place.run("checkpoint", &[&target]), 1, "is not empty");
        assert_eq!(place.stdout("get", &[&"key0001"]), b"value\n");
    }
}

/// Compaction removes deleted values from files, and no others.
#[test]
fn a_range_is_compacted() {
    let place = Place::new();
    // Moved tables keep their compression, so it is off: sizes can be compared. The bytes of values
    // do not repeat, so that their space shows in files.
    let mut state = 1u64;
    let mut value = || {
        (0..40).for_each(|_| state = state.wrapping_mul(6364136223846793005).wrapping_add(1));
        format!("{state:016x}{:016x}", state.rotate_left(17)).repeat(8)
    };
    let input: String = (0..4000)
        .map(|n| format!("key{n:04}\t{}\n", value()))
        .collect();
    for keyspace in ["default", "other"] {
        let load = format!(
            "--design leveled --compression none --table-size 64KiB --keyspace {keyspace} load"
        );
        let loaded = place.feed(&load, &[], input.as_bytes());
        assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    }
    place.stdout("compact --compression none --table-size 64KiB", &[]);
    let settled = place.json(
        "compact --compression none --table-size 64KiB --keyspace other",
        &[],
    );
    let start = settled["file_bytes_after"].as_u64().expect("a number");
    place.stdout("delete", &[&"--from", &"key1000", &"--to", &"key3000"]);
    let bytes = |report: &serde_json::Value, when: &str| {
        let name = format!("file_bytes_{when}");
        report[&name].as_u64().unwrap_or_else(|| panic!("{report}"))
    };
    // In another keyspace, where nothing is dropped.
    let elsewhere = place.json(
        "compact --compression none --table-size 64KiB --keyspace other",
        &[],
    );
    assert!(bytes(&elsewhere, "after") > start / 2, "{elsewhere}");
    let half = place.json(
        "compact --compression none --table-size 64KiB",
        &[&"--from", &"key1000", &"--to", &"key2000"],
    );
    // Background work also drops tables that a range delete covers entirely, before this or after
    // it.
    assert!(bytes(&half, "after") < start * 19 / 20, "{half}");
    let shown =
        text(&place.stdout("compact --compression none --table-size 64KiB", &[])).to_string();
    assert!(shown.starts_with("compacted in "), "{shown}");
    assert!(shown.contains("table files: "), "{shown}");
    let whole = place.json("compact --compression none --table-size 64KiB", &[]);
    assert!(bytes(&whole, "after") < start * 4 / 5, "{whole}");
    assert_eq!(text(&place.stdout("scan", &[])).lines().count(), 2000);
    let other = place.stdout("scan --keyspace other", &[]);
    assert_eq!(text(&other).lines().count(), 4000);
    let missing = place.run(
        "compact --compression none --table-size 64KiB --keyspace none",
        &[],
    );
    assert_fails(&missing, 1, "there is no keyspace \"none\"");
    let refused = place.run(
        "compact --compression none --table-size 64KiB --read-only",
        &[],
    );
    assert_fails(&refused, 1, "open read-only");
    let sound = place.json("verify", &[]);
    assert_eq!(sound["live_entries"], 6000, "of all keyspaces: {sound}");
    place.stdout(
        "delete --keyspace other",
        &[&"--from", &"key", &"--to", &"kez"],
    );
    let all = place.json("compact --compression none --table-size 64KiB", &[]);
    assert!(bytes(&all, "after") < start * 2 / 5, "all keyspaces: {all}");
}

/// Reading commands work on a read-only database, and writing ones are refused with the reason.
#[test]
fn reading_commands_change_nothing() {
    let place = Place::new();
    place.stdout("put", &[&"hello", &"world"]);
    let pool = place.db().join("pool");
    let before = (
        fs::read(&pool).expect("a pool"),
        fs::read_dir(place.db()).expect("it").count(),
    );
    for command in ["get", "scan", "dump", "stat", "verify"] {
        let key: &[&dyn AsRef<OsStr>] = if command == "get" { &[&"hello"] } else { &[] };
        let out = place.stdout(&format!("{command} --read-only"), key);
        assert!(!out.is_empty(), "{command}");
    }
    let refused = place.run("put --read-only", &[&"hello", &"other"]);
    assert_fails(&refused, 1, "open read-only");
    let after = (
        fs::read(&pool).expect("a pool"),
        fs::read_dir(place.db()).expect("it").count(),
    );
    assert!(before == after);
}

/// The readable data of a damaged database is recovered; the exit code gives the degree, and the
/// report names the affected keys, for people and for programs.
#[test]
fn a_damaged_database_is_repaired() {
    let place = Place::new();
    let input: String = (0..3000)
        .map(|n| format!("key{n:04}\tvalue {n}\n"))
        .collect();
    let design = "--design leveled --table-size 64KiB --level1-size 256KiB --pool none";
    let loaded = place.feed(&format!("{design} load"), &[], input.as_bytes());
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    let target = place.folder.path().join("repaired");
    let again = || {
        let _ = fs::remove_dir_all(&target);
    };
    let whole = text(&place.stdout("repair", &[&"--into", &target])).to_string();
    assert!(whole.contains("3,000"), "{whole}");
    assert!(whole.contains("whole: no loss"), "{whole}");
    let dump = terrace()
        .arg("dump")
        .arg(&target)
        .output()
        .expect("it runs");
    assert!(dump.stdout == input.as_bytes(), "{}", text(&dump.stderr));
    assert_fails(
        &place.run("repair", &[&"--into", &target]),
        1,
        "is not empty",
    );

    again();
    let manifest = place.db().join("MANIFEST");
    fs::rename(&manifest, place.folder.path().join("moved")).expect("a manifest");
    let refused = place.run("get", &[&"key0001"]);
    assert_fails(&refused, 1, "terrace repair");
    let partly = place.run("repair", &[&"--into", &target]);
    assert_fails(&partly, 3, "but other data may be missing");
    let dump = terrace()
        .arg("dump")
        .arg(&target)
        .output()
        .expect("it runs");
    assert!(dump.stdout == input.as_bytes(), "{}", text(&dump.stderr));
    fs::rename(place.folder.path().join("moved"), &manifest).expect("a manifest");

    again();
    let tables: Vec<_> = fs::read_dir(place.db())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension() == Some(OsStr::new("sst")))
        .collect();
    fs::remove_file(&tables[0]).expect("a table");
    let partly = place.run("repair --json", &[&"--into", &target]);
    assert_eq!(partly.status.code(), Some(3), "{}", text(&partly.stderr));
    let lines = lines_of_json(&partly.stdout);
    let of_table = |line: &&serde_json::Value| line["type"] == "loss" && line["kind"] == "table";
    assert_eq!(lines.iter().filter(of_table).count(), 1);
    let (summary, _) = lines.split_last().expect("a summary");
    assert_eq!(summary["outcome"], "partly");

    again();
    let empty = place.folder.path().join("empty");
    fs::create_dir(&empty).expect("a directory");
    fs::copy(place.db().join("OPTIONS"), empty.join("OPTIONS")).expect("OPTIONS");
    let mut run = terrace();
    run.arg("repair").arg(&empty).arg("--into").arg(&target);
    let nothing = run.output().expect("it runs");
    assert_fails(&nothing, 4, "so no database was created");
    assert!(!target.join("OPTIONS").exists());
}

/// A database without OPTIONS, MANIFEST and logs may have had a pool elsewhere: the repair names
/// the option for it. With the pool, or with a MANIFEST, it does not.
#[test]
fn a_repair_asks_for_a_pool_elsewhere() {
    let place = Place::new();
    let input: String = (0..3000)
        .map(|n| format!("key{n:04}\tvalue {n}\n"))
        .collect();
    let pool = place.path("elsewhere");
    let pool = pool.to_string_lossy();
    for (pool, asks) in [(&*pool, true), ("none", false)] {
        let _ = fs::remove_dir_all(place.db());
        let load = format!("load --design leveled --pool {pool}");
        let loaded = place.feed(&load, &[], input.as_bytes());
        assert!(loaded.status.success(), "{}", text(&loaded.stderr));
        place.stdout("compact", &[]);
        fs::remove_file(place.db().join("OPTIONS")).expect("OPTIONS");
        let repair = |more: &[&str]| {
            let target = place.path("repaired");
            let _ = fs::remove_dir_all(&target);
            let mut run = terrace();
            run.arg("repair").arg(place.db()).arg("--into").arg(target);
            text(&run.args(more).output().expect("it runs").stdout)
        };
        let without = repair(&[]);
        assert_eq!(without.contains("name it with --pool"), asks, "{without}");
        assert!(without.contains("--design chooses another"), "{without}");
        let named = repair(&["--design", "leveled"]);
        assert!(!named.contains("--design chooses"), "{named}");
        if asks {
            let with = repair(&["--pool", pool]);
            assert!(!with.contains("name it with --pool"), "{with}");
        }
    }
}

/// `verify` says how many log records an opening left out, since a crash looks like that too.
#[test]
fn records_left_out_are_counted() {
    let place = Place::new();
    let options = terrace::Options {
        design: Some(terrace::Design::Leveled),
        ..terrace::Options::default()
    };
    let db = terrace::Db::open(place.path("open"), options).expect("a database");
    for key in ["one", "two", "three"] {
        db.put(key, format!("the value of {key}")).expect("a put");
    }
    // As a killed process would leave it.
    fs::create_dir(place.db()).expect("a directory");
    let mut damaged = 0;
    for entry in fs::read_dir(place.path("open")).expect("a directory") {
        let entry = entry.expect("an entry");
        let mut bytes = fs::read(entry.path()).expect("a file");
        let value = b"the value of two";
        let at = bytes.windows(value.len()).position(|bytes| bytes == value);
        if let Some(at) = at {
            bytes[at] ^= 1;
            damaged += 1;
        }
        if entry.file_name() != "LOCK" {
            fs::write(place.db().join(entry.file_name()), bytes).expect("a copy");
        }
    }
    assert_eq!(damaged, 1, "the log has the value");
    let verified = |options: &str| {
        let mut run = terrace();
        run.args(["verify", "--read-only"])
            .args(options.split_terminator(' '))
            .arg(place.db());
        let output = run.output().expect("it runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).to_string()
    };
    let said = verified("");
    assert!(said.contains("which opening left out: 1."), "{said}");
    let json: serde_json::Value = serde_json::from_str(&verified("--json")).expect("JSON");
    assert_eq!(json["records_stranded"], 1);
}
