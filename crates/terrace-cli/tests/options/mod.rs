//! Tests of the options that a database keeps for later commands.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use super::{Place, assert_fails, terrace, text};

/// Returns the properties of every table file of the database.
fn tables(db: &Path) -> Vec<serde_json::Value> {
    let entries = fs::read_dir(db).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let files = paths.filter(|path| path.extension() == Some(OsStr::new("sst")));
    let shown = files.map(|file| {
        let run = terrace().args(["sst-dump", "--json"]).arg(&file).output();
        let out = run.expect("it runs").stdout;
        let last = text(&out).lines().last().expect("a summary").to_string();
        serde_json::from_str(&last).expect("JSON")
    });
    shown.collect()
}

/// Runs a command without options.
fn plain(place: &Place, command: &str) -> std::process::Output {
    let mut run = terrace();
    let run = run.args(command.split(' ')).arg(place.db()).output();
    run.expect("it runs")
}

/// A command without options uses those that the database keeps: `compact` writes tables of the
/// size and the compression given to `load`. Options of a later command replace them.
#[test]
fn commands_go_on_with_the_options_that_are_kept() {
    let place = Place::new();
    let input: String = (0..4000)
        .map(|n| format!("key{n:05}\t{}\n", "value ".repeat(10)))
        .collect();
    let stated = "--design leveled --table-size 32KiB --level1-size 64KiB --compression none";
    let loaded = place.feed(&format!("{stated} load"), &[], input.as_bytes());
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    let compacted = plain(&place, "compact");
    assert!(compacted.status.success(), "{}", text(&compacted.stderr));
    let found = tables(&place.db());
    assert!(found.len() >= 8, "{} tables", found.len());
    for table in &found {
        let bytes = table["file_bytes"].as_u64().expect("a size");
        assert!(bytes < 64 << 10, "{table}");
    }
    let all: u64 = found.iter().filter_map(|t| t["file_bytes"].as_u64()).sum();
    assert!(all > input.len() as u64, "{all} bytes are compressed");

    let stat = |command: &str| -> serde_json::Value {
        let out = plain(&place, command).stdout;
        serde_json::from_slice(&out).unwrap_or_else(|e| panic!("{e}: {}", text(&out)))
    };
    let options = stat("stat --json")["options"].clone();
    assert_eq!(options["memtable_bytes"], 256 << 10);
    assert_eq!(options["bottom.leveled.table_bytes"], 32 << 10);
    assert_eq!(options["bottom.leveled.compression"], "none");
    assert_eq!(options["bottom.leveled.dynamic_sizes"], true);
    assert_eq!(options["buffer.table_bytes_max"], "none");
    let shown = text(&plain(&place, "stat").stdout);
    assert!(shown.contains("bottom.leveled.table_bytes"), "{shown}");

    for reader in ["stat --json", "stat --json --read-only"] {
        stat(&format!("{reader} --table-size 1MiB --level1-size 1MiB"));
        let still = &stat("stat --json")["options"];
        assert_eq!(still, &options, "a reader keeps nothing");
    }
    let changed = "compact --table-size 1MiB --level1-size 1MiB --cache-size 1MiB";
    assert!(plain(&place, changed).status.success());
    let later = &stat("stat --json");
    assert_eq!(later["options"]["bottom.leveled.table_bytes"], 1 << 20);
    assert_eq!(later["options"]["bottom.leveled.compression"], "none");
    assert_eq!(
        later["cache"]["capacity_bytes"],
        256 << 20,
        "of the process"
    );
}

/// An edited OPTIONS file is refused with a hint.
#[test]
fn edited_options_are_refused() {
    let place = Place::new();
    place.stdout("put", &[&"key", &"value"]);
    let file = place.db().join("OPTIONS");
    let edited = fs::read_to_string(&file).expect("OPTIONS");
    let edited = edited.replace(
        "buffer.filter_bits_per_key = 16",
        "buffer.filter_bits_per_key = 10",
    );
    fs::write(&file, edited).expect("OPTIONS");
    let refused = place.run("get", &[&"key"]);
    assert_fails(&refused, 1, "OPTIONS is damaged (its checksum is wrong)");
    assert_fails(&refused, 1, "restore it from a copy of the database");
}

/// A pool size alone is enough: memtables and extents follow it. A database that has a pool is not
/// opened as one without.
#[test]
fn sizes_follow_that_of_the_pool() {
    let place = Place::new();
    let run = |arguments: &str| {
        let mut command = terrace();
        command.arg("put").arg(place.db()).args(["key", "value"]);
        command
            .args(arguments.split(' '))
            .output()
            .expect("it runs")
    };
    let made = run("--pool-size 8MiB");
    assert!(made.status.success(), "{}", text(&made.stderr));
    let shown = plain(&place, "stat --json").stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).expect("JSON");
    assert_eq!(shown["options"]["memtable_bytes"], 256 << 10);
    assert_eq!(shown["options"]["extent_bytes"], 256 << 10);
    assert_fails(&run("--pool none"), 2, "has the pool");
}

/// Without a pool, a database consists of its directory alone, and every command works on it
/// without naming that again, including checkpoint, compaction and read-only commands.
#[test]
fn a_database_needs_no_pool() {
    for design in terrace::Design::ALL {
        let place = Place::new();
        let input: String = (0..500)
            .map(|n| format!("key{n:03}\tvalue {n}\n"))
            .collect();
        let load = format!("--pool none --design {design} load");
        let loaded = place.feed(&load, &[], input.as_bytes());
        assert!(loaded.status.success(), "{}", text(&loaded.stderr));
        assert!(!place.db().join("pool").exists());
        place.stdout("delete", &[&"--to", &"key010"]);
        place.stdout("put --ttl 1000 --keyspace other", &[&"k", &"v"]);
        let rest: String = input
            .lines()
            .skip(10)
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(text(&plain(&place, "dump").stdout), rest, "{design}");
        for command in [
            "verify",
            "compact",
            "stat",
            "scan --read-only",
            "log-dump",
            "manifest-dump",
        ] {
            let run = plain(&place, command);
            assert!(run.status.success(), "{command}: {}", text(&run.stderr));
        }
        assert_eq!(place.stdout("get --keyspace other", &[&"k"]), b"v\n");
        let copy = place.path("copy");
        place.stdout("checkpoint", &[&copy]);
        assert!(!copy.join("pool").exists());
        let mut run = terrace();
        let dumped = run.arg("dump").arg(&copy).output().expect("it runs");
        assert_eq!(text(&dumped.stdout), rest, "{design}");
        // A pool cannot be given later.
        let refused = place.run("get --pool pool", &[&"key010"]);
        assert_fails(&refused, 1, "was created without a pool");
    }
}

/// One option limits memory: sizes are derived from it, `stat` shows the use and the limit of each
/// part, and sizes that cannot fit are refused with a correction. It is not kept; the sizes that
/// shape data are.
#[test]
fn memory_is_one_option() {
    let place = Place::new();
    let input: String = (0..2000)
        .map(|n| format!("key{n:05}\t{}\n", "value ".repeat(20)))
        .collect();
    let tsv = place.path("input.tsv");
    fs::write(&tsv, input).expect("a file");
    let run = |command: &str| {
        let mut run = terrace();
        let mut words = command.split(' ');
        run.arg(words.next().expect("a command")).arg(place.db());
        run.args(words.map(|word| match word {
            "INPUT" => tsv.as_os_str().to_owned(),
            word => word.into(),
        }));
        run.output().expect("it runs")
    };
    let refused = run("load INPUT --pool none --memory 4MiB");
    assert_fails(&refused, 1, "must be at least 16777216");
    let refused = run("load INPUT --pool none --memory 32MiB --cache-size 1GiB");
    assert_fails(&refused, 1, "lower bottom.leveled.cache_bytes");
    assert_fails(&refused, 1, "raise memory_bytes");
    let loaded = run("load INPUT --pool none --memory 32MiB");
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));

    let out = run("stat --json --memory 24MiB --cache-size 2MiB").stdout;
    let shown: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    let memory = &shown["memory"];
    assert_eq!(memory["budget_bytes"], 24 << 20);
    assert_eq!(shown["cache"]["capacity_bytes"], 2 << 20);
    let parts = memory["parts"].as_array().expect("parts");
    let limits: u64 = parts.iter().filter_map(|p| p["limit_bytes"].as_u64()).sum();
    assert!(limits > 12 << 20 && limits <= 24 << 20, "{limits}");
    for part in parts {
        assert!(
            part["used_bytes"].as_u64() <= part["limit_bytes"].as_u64(),
            "{part}"
        );
    }
    let shown = text(&run("stat --memory 24MiB").stdout);
    for row in [
        "memory for",
        "the pool",
        "the block cache",
        "bottom.leveled.cache_bytes",
        "iterators",
    ] {
        assert!(shown.contains(row), "{row} in {shown}");
    }
    let out = run("stat --json").stdout;
    let shown: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    assert!(shown["memory"]["budget_bytes"].is_null());
    // An entry that does not fit into 16 MiB fits into a larger limit.
    let large = place.path("large");
    fs::write(&large, vec![b'x'; 100_000]).expect("a file");
    let put = |memory: &str| {
        let mut run = terrace();
        run.arg("put")
            .arg(place.db())
            .args(["large", "--memory", memory, "--file"]);
        run.arg(&large).output().expect("it runs")
    };
    assert_fails(&put("16MiB"), 1, "larger memory_bytes");
    assert!(put("64MiB").status.success());
}

/// Commands that read use the sizes that follow from a memory limit, and keep none of them.
#[test]
fn readers_keep_no_sizes() {
    for pool in ["none", "pool"] {
        let place = Place::new();
        place.stdout(&format!("put --pool {pool}"), &[&"key", &"value"]);
        let kept = || fs::read(place.db().join("OPTIONS")).expect("OPTIONS");
        let before = kept();
        for command in [
            "get key",
            "scan",
            "dump",
            "stat",
            "verify",
            "keyspaces list",
        ] {
            let mut run = terrace();
            let mut words = command.split(' ');
            run.arg(words.next().expect("a command"));
            match command {
                "keyspaces list" => run.arg("list").arg(place.db()),
                _ => run.arg(place.db()).args(words),
            };
            let out = run.args(["--memory", "16MiB"]).output().expect("it runs");
            assert!(out.status.success(), "{command}: {}", text(&out.stderr));
            assert!(kept() == before, "{command} with the pool {pool}");
        }
        let mut put = terrace();
        put.arg("put").arg(place.db()).args(["k", "v"]);
        let put = put.args(["--memory", "16MiB"]).output().expect("it runs");
        assert!(put.status.success(), "{}", text(&put.stderr));
        assert!(kept() != before);
    }
}

/// The size of a pool's file is raised by a larger one, and a smaller one is refused.
#[test]
fn a_pool_does_not_shrink() {
    let place = Place::new();
    place.stdout("put", &[&"key", &"value"]);
    let get = |bytes: &str| {
        let mut run = terrace();
        run.arg("get")
            .arg(place.db())
            .args(["key", "--pool-size", bytes]);
        run.output().expect("it runs")
    };
    assert_fails(&get("100MiB"), 2, "may grow to 128 MiB");
    assert_eq!(text(&get("128MiB").stdout), "value\n");
    assert_eq!(text(&get("200MiB").stdout), "value\n");
    assert_fails(&get("128MiB"), 2, "omit it");
    // Memory is not a file.
    let place = Place::new();
    place.stdout("put --pool none", &[&"key", &"value"]);
    let mut run = terrace();
    run.arg("get")
        .arg(place.db())
        .args(["key", "--pool-size", "100MiB"]);
    assert!(run.output().expect("it runs").status.success());
}
