//! Tests that render a fixed file of results and compare page and pictures with golden files.
//!
//! `TERRACE_BLESS=1 cargo test -p terrace-bench page` rewrites the golden files, after a review:
//! tools/report-screenshot shows the page as a browser does.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::compare::outcome_of_any;
use crate::results::{Record, read};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn fixed() -> (Comparison, Outcome) {
    let path = folder().join("stores.toml");
    let comparison = Comparison::read(&path, &|_, _| Ok(0)).expect("the comparison");
    let results = read(&folder().join("stores.jsonl")).expect("the results");
    let found = outcome_of_any(&comparison, &results.records);
    (comparison, found)
}

/// The page, its pictures and the summary match the reviewed golden files.
#[test]
fn the_report_is_as_it_was() {
    let (comparison, found) = fixed();
    let made = tempfile::tempdir().expect("a temporary directory");
    write(&comparison, &found, made.path()).expect("a report");
    let mut summary = String::new();
    found.write(&mut summary, &comparison).expect("a summary");
    fs::write(made.path().join("summary.txt"), &summary).expect("a file");
    let golden = folder().join("report");
    if std::env::var_os("TERRACE_BLESS").is_some() {
        let _ = fs::remove_dir_all(&golden);
        fs::create_dir_all(&golden).expect("a directory");
        for entry in fs::read_dir(made.path()).expect("a directory").flatten() {
            fs::copy(entry.path(), golden.join(entry.file_name())).expect("a copy");
        }
        return;
    }
    let names = |folder: &Path| -> BTreeSet<String> {
        let entries = fs::read_dir(folder).expect("a directory").flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    };
    assert_eq!(names(made.path()), names(&golden));
    for name in names(&golden) {
        let text = |folder: &Path| fs::read_to_string(folder.join(&name)).expect("a file");
        let (is, was) = (text(made.path()), text(&golden));
        for (number, (is, was)) in is.lines().zip(was.lines()).enumerate() {
            assert_eq!(
                is,
                was,
                "{name}:{}; TERRACE_BLESS=1 takes it over",
                number + 1
            );
        }
        assert_eq!(is.lines().count(), was.lines().count(), "{name}");
    }
}

/// The page needs no other file, and all markup in it is well formed.
#[test]
fn the_page_stands_alone() {
    let (comparison, found) = fixed();
    let page = render(&comparison, &found);
    for outside in [
        "http:", "https:", "src=", "href=", "@import", "<script", "url(",
    ] {
        let spaces = page.html.matches("http://www.w3.org/2000/svg").count();
        let there = page.html.matches(outside).count();
        let allowed = if outside == "http:" { spaces } else { 0 };
        assert_eq!(there, allowed, "{outside}");
    }
    for text in page
        .pictures
        .iter()
        .map(|p| file(&p.svg))
        .chain([page.html.clone()])
    {
        well_formed(&text);
        assert!(!text.contains("NaN") && !text.contains("inf\""), "{text}");
    }
    let names: BTreeSet<&str> = page.pictures.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names.len(), page.pictures.len(), "each has a separate file");
    for name in [
        "throughput",
        "latency",
        "trace",
        "p99",
        "written",
        "space",
        "recovery",
        "scaling",
    ] {
        assert!(
            names.iter().any(|n| n.starts_with(name)),
            "{name} in {names:?}"
        );
    }
}

/// Checks that every opened tag is closed, in order.
fn well_formed(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let end = rest[at..].find('>').expect("every tag ends") + at;
        let tag = &rest[at + 1..end];
        let name = tag
            .split([' ', '\n', '/'])
            .find(|part| !part.is_empty())
            .unwrap_or("");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "in {tag}");
        } else if !tag.ends_with('/') && !tag.starts_with(['!', '?']) && name != "meta" {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
}

/// A comparison that has no result yet, or whose stores all failed, has a page that says so.
#[test]
fn a_page_without_results_says_so() {
    let (comparison, _) = fixed();
    let nothing = outcome_of_any(&comparison, &[]);
    let page = render(&comparison, &nothing);
    assert!(page.html.contains("There are no results"), "{}", page.html);
    assert!(page.html.contains("0 of "), "{}", page.html);
    well_formed(&page.html);
    assert!(page.pictures.is_empty());
}

/// A report of results from a build with all peers does not list a measured store as not measured.
#[test]
#[cfg(not(feature = "rocksdb"))]
fn stores_with_results_are_not_absent() {
    let text = fs::read_to_string(folder().join("stores.toml")).expect("the comparison");
    let miodb = "name = \"miodb\"\nsettings = { design = \"miodb\" }";
    assert!(text.contains(miodb), "{text}");
    // Pretends that RocksDB was measured under that name.
    let text = text.replace(miodb, "name = \"miodb\"\nstore = \"rocksdb\"");
    let made = tempfile::tempdir().expect("a temporary directory");
    let path = made.path().join("stores.toml");
    fs::write(&path, text).expect("a file");
    let comparison = Comparison::read(&path, &|_, _| Ok(0)).expect("the comparison");
    let results = read(&folder().join("stores.jsonl")).expect("the results");
    let absent = |records: &[Record]| {
        let found = outcome_of_any(&comparison, records);
        let stores = found.absent.into_iter();
        stores.map(|(store, _)| store).collect::<Vec<_>>()
    };
    assert_eq!(absent(&[]), ["miodb", "rocksdb"]);
    assert_eq!(absent(&results.records), ["rocksdb"]);
}

/// Disturbed phases are named one by one if they are few, and summed up in one sentence otherwise.
#[test]
fn disturbed_phases_are_reported_briefly() {
    let (comparison, _) = fixed();
    let results = read(&folder().join("stores.jsonl")).expect("the results");
    let warnings = |disturbed: usize| {
        let mut records = results.records.clone();
        let phases = records.iter_mut().filter_map(|record| match record {
            Record::Phase(record) => Some(&mut record.phase),
            _ => None,
        });
        for (n, phase) in phases.enumerate() {
            phase.usage.others_share = match n < disturbed {
                true => 0.1 + n as f64 / 1000.0,
                false => 0.01,
            };
        }
        let found = outcome_of_any(&comparison, &records);
        let mut warnings = found.warnings(&comparison);
        warnings.retain(|warning| warning.starts_with("Disturbed"));
        warnings
    };
    assert_eq!(warnings(0), [""; 0]);
    // The first phases only prepare.
    let few = (1..).map(warnings).find(|warnings| !warnings.is_empty());
    let one = few.expect("a disturbed phase");
    assert_eq!(one.len(), 1);
    assert!(one[0].contains("in 1 of "), "{one:?}");
    assert!(one[0].contains("up to 1"), "{one:?}");
    let all = warnings(usize::MAX);
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].contains(" phases other programs"), "{all:?}");
    assert!(all[0].contains("; most in "), "{all:?}");
}
