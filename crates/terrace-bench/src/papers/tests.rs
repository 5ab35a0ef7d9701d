//! Tests of summaries and of the page, on fixed results.

use std::path::Path;

use super::page::by_number;
use super::*;
use crate::compare::{Comparison, outcome_of_any, runs};
use crate::latency::LatencyReport;
use crate::machine::Memory;
use crate::measure::UsageReport;
use crate::report::{Conditions, StepReport, StoreFacts};
use crate::results::{End, Phase, Record, RunId, VERSION};
use crate::space::Space;

const FILE: &str = r#"
title = "Some, figure 6"
repeats = 2
value_sizes = ["1KiB"]
data_sizes = ["40MiB", "200MiB"]
[[store]]
name = "ours"
[[store]]
name = "base"
[[workload]]
name = "w"
measure = ["fillrandom", "readrandom"]
[paper]
name = "Some (CONF 2023)"
title = "figure 6"
scale = 16
says = """
The machine
differs."""
[[paper.value]]
what = "random write"
source = "section 5.1"
paper = ["Theirs", "Other"]
ratio = 2.5
here = ["ours", "base"]
measure = "throughput"
phase = "fillrandom"
reading = "As in the paper."
[[paper.value]]
what = "random read, 200 GB to 40 GB"
source = "figure 6(b)"
paper = ["Theirs, 200 GB", "Theirs, 40 GB"]
ratio = 0.665
here = ["ours", "ours"]
measure = "throughput"
phase = "readrandom"
data_size = "200MiB"
than = { data_size = "40MiB" }
note = "the reads are a quarter"
[[paper.value]]
what = "p99 of reads, 40 GB"
source = "section 5.1"
paper = ["Theirs"]
value = 28.4
unit = "us"
here = ["ours"]
measure = "p99"
phase = "readrandom"
data_size = "40MiB"
[[paper.value]]
what = "scans | all"
source = "section 5.2"
paper = ["Theirs", "Matrix"]
values = [14.7, 99.5]
unit = "us"
note = "waits for Matrix"
"#;

fn comparison(text: &str) -> Comparison {
    Comparison::parse(Path::new("f.toml"), text, &|_, _| Ok(0)).expect("a comparison")
}

/// Returns results of all runs of `comparison`: in each repeat the store is twice as fast as the
/// baseline at 40 MiB and four times as fast at 200 MiB, and repeats differ by 2 %.
fn records(comparison: &Comparison) -> Vec<Record> {
    let mut records = Vec::new();
    for (at, planned) in runs(comparison, "x")
        .into_iter()
        .map(|r| r.planned)
        .enumerate()
    {
        let run = RunId {
            id: at.to_string(),
            began_ms: 1_764_000_000_000 + at as u64,
            planned: Some(planned.clone()),
        };
        let is_large = planned.data_bytes == Some(200 << 20);
        let factor = match (planned.store.as_str(), is_large) {
            ("ours", false) => 2.0,
            ("ours", true) => 4.0,
            _ => 1.0,
        };
        let ops_per_s = 1000.0 * factor * (1.0 + 0.02 * f64::from(planned.repeat));
        for (index, name) in ["fillrandom", "readrandom"].iter().enumerate() {
            let mut phase = StepReport {
                name: name.to_string(),
                index,
                // Reads are faster by two, and fall with the data.
                ops_per_s: match (index, is_large) {
                    (1, true) => ops_per_s / 4.0,
                    (1, false) => ops_per_s * 2.0,
                    _ => ops_per_s,
                },
                latency: Some(LatencyReport {
                    p99_us: 30.0 + f64::from(planned.repeat),
                    ..LatencyReport::default()
                }),
                ..StepReport::default()
            };
            if at == 0 && index == 0 {
                phase.usage = UsageReport {
                    others_share: 0.5,
                    ..UsageReport::default()
                };
            }
            let conditions = Conditions {
                about: StoreFacts {
                    name: planned.store.clone(),
                    medium: format!("file, msync, /tmp/{at}/pool"),
                    durability: "buffered".to_string(),
                    ..StoreFacts::default()
                },
                file_system: "tmpfs".to_string(),
                build: "release".into(),
                ..Conditions::default()
            };
            records.push(Record::Phase(Box::new(Phase {
                terrace_bench: VERSION,
                run: run.clone(),
                conditions,
                phase,
            })));
        }
        records.push(Record::End(Box::new(End {
            terrace_bench: VERSION,
            run,
            space: Space::default(),
            memory: Memory::default(),
        })));
    }
    records
}

fn entry(text: &str, file: &str, summary: Option<Summary>) -> Entry {
    Entry {
        file: file.to_string(),
        comparison: comparison(text),
        summary,
    }
}

fn summary() -> Summary {
    let comparison = comparison(FILE);
    let (summary, left_out) = Summary::of(&comparison, &records(&comparison));
    assert_eq!(left_out, 0);
    summary.expect("figures")
}

/// A summary has each covered figure once, without those of other phases and stores, and the
/// conditions; it is the same after a round trip through its file.
#[test]
fn a_summary_has_the_figures_of_the_paper() {
    let summary = summary();
    let figures: Vec<_> = summary
        .figures
        .iter()
        .map(|f| {
            let measure = f.measure.show(f.repeats.median);
            let data = f.data_bytes.expect("a size") >> 20;
            format!("{} {} {data}: {measure}", f.store, f.phase)
        })
        .collect();
    let expected = [
        "ours fillrandom 40: 2,020 op/s",
        "base fillrandom 40: 1,010 op/s",
        "ours fillrandom 200: 4,040 op/s",
        "base fillrandom 200: 1,010 op/s",
        "ours readrandom 40: 4,040 op/s",
        "ours readrandom 40: 30.5 us",
        "ours readrandom 200: 1,010 op/s",
    ];
    assert_eq!(figures, expected);
    let first = summary.figures[0].repeats;
    assert_eq!(
        (first.lowest, first.highest, first.count),
        (2000.0, 2040.0, 2)
    );
    assert_eq!((summary.runs_done, summary.runs_planned), (8, 8));
    assert_eq!((summary.phases_disturbed, summary.phases), (1, 16));
    assert_eq!(summary.days, ["2025-11-24", "2025-11-24"]);
    // Paths of pools differ between runs, and are not conditions.
    let media: Vec<&str> = summary.stores.iter().map(|s| s.medium.as_str()).collect();
    assert_eq!(media, ["file, msync", "file, msync"]);
    let text = summary.to_text().expect("text");
    assert_eq!(Summary::parse(&text), Ok(summary.clone()));
    assert!(text.ends_with("}\n"));
    let lines = text.lines().filter(|line| line.contains("\"store\":"));
    assert_eq!(
        lines.count(),
        summary.figures.len(),
        "one line each: {text}"
    );
    let problem = Summary::parse("{}").expect_err("no summary");
    assert!(problem.contains("remake it"), "{problem}");
}

/// Results of other settings are left out, and a summary knows the stores whose settings have
/// changed since; more repeats are no other settings.
#[test]
fn other_settings_are_other_results() {
    let was = comparison(FILE);
    let now = FILE.replace(
        "name = \"base\"",
        "name = \"base\"\nsettings = { threads = 2 }",
    );
    let now = comparison(&now);
    let (found, left_out) = Summary::of(&now, &records(&was));
    assert_eq!(left_out, 8);
    let found = found.expect("the other store has figures");
    assert!(found.figures.iter().all(|figure| figure.store == "ours"));
    assert_eq!(summary().changed(&now), ["base"]);
    let repeats = comparison(&FILE.replace("repeats = 2", "repeats = 3"));
    assert!(summary().changed(&repeats).is_empty());
    let (none, _) = Summary::of(&was, &[]);
    assert_eq!(none, None);
}

/// Ratios, ratios within a store and plain values are shown with their medians, next to the paper's
/// figures; what cannot be compared is a gap.
#[test]
fn the_page_shows_each_kind_of_figure() {
    let text = page(&[entry(FILE, "some-fig6.toml", Some(summary()))]);
    for row in [
        "| figure 6, section 5.1 | random write | Theirs / Other | 2.50 x | ours / base | 3.00 x, \
         mean of 2 (data of 40 MiB: 2,020 op/s / 1,010 op/s; data of 200 MiB: 4,040 op/s / 1,010 \
         op/s) | As in the paper. |",
        "| figure 6(b) | random read, 200 GB to 40 GB | Theirs, 200 GB / Theirs, 40 GB | 0.67 x | \
         ours / ours | 0.25 x (1,010 op/s / 4,040 op/s) | the reads are a quarter |",
        "| figure 6, section 5.1 | p99 of reads, 40 GB | Theirs | 28.4 us in the paper | ours | \
         30.5 us here | - |",
        "| figure 6, section 5.2 | scans \\| all | Theirs / Matrix | 0.15 x (14.7 us / 99.5 us) | \
         - | gap | waits for Matrix |",
        "- figure 6 (`some-fig6.toml`), at 1/16 of its size: The machine differs. Run on \
         2025-11-24; others\n  disturbed 1 of 16 phases.",
        "- ours: file, msync on tmpfs; buffered (all)",
    ] {
        assert!(text.contains(row), "{row}\n{text}");
    }
    assert!(text.contains("\n## Some (CONF 2023)\n"), "{text}");
    assert!(text.ends_with(")\n") && !text.ends_with("\n\n"));
    for line in text.lines().filter(|line| !line.starts_with('|')) {
        assert!(line.len() <= 100, "{line}");
    }
}

/// A comparison without results is not run; one whose figure is missing was not measured.
#[test]
fn missing_results_are_named() {
    let text = page(&[entry(FILE, "f.toml", None)]);
    assert_eq!(text.matches("| not run |").count(), 3, "{text}");
    assert_eq!(text.matches("| gap |").count(), 1, "{text}");
    assert!(text.contains("The machine differs. Not run."), "{text}");
    assert!(!text.contains("Measured on"), "{text}");
    let mut partly = summary();
    partly.figures.retain(|figure| figure.store == "base");
    partly.runs_done = 4;
    let changed = FILE.replace(
        "name = \"base\"",
        "name = \"base\"\nsettings = { threads = 2 }",
    );
    let text = page(&[entry(&changed, "f.toml", Some(partly))]);
    assert_eq!(text.matches("| not measured |").count(), 3, "{text}");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("; only 4 of 8 runs have a result"), "{text}");
    assert!(text.contains("the settings of base have changed"), "{text}");
}

/// Repeats that overlap or spread give an unclear figure.
#[test]
fn unclear_figures_are_marked() {
    let mut summary = summary();
    for figure in &mut summary.figures {
        (figure.repeats.lowest, figure.repeats.highest) = (1.0, 9000.0);
    }
    let text = page(&[entry(FILE, "f.toml", Some(summary))]);
    for part in [
        "3.00 x (unclear), mean",
        "0.25 x (unclear) (1,010",
        "30.5 us here (unclear)",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

/// One paper has one table, in the order of the numbers of its figures, whatever the order of the
/// files; a paper without a name has that of the comparison's title.
#[test]
fn papers_are_grouped_and_ordered() {
    let ten = FILE.replace("\"figure 6\"", "\"figure 10\"");
    let unnamed = FILE.replace("name = \"Some (CONF 2023)\"\n", "");
    let entries = || {
        [
            entry(&ten, "some-fig10.toml", None),
            entry(&unnamed, "unnamed.toml", None),
            entry(FILE, "some-fig6.toml", Some(summary())),
        ]
    };
    let text = page(&entries());
    let headings: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("## "))
        .collect();
    assert_eq!(headings, ["## Some (CONF 2023)", "## Some"]);
    let place = |part: &str| text.find(part).expect(part);
    assert!(place("| figure 6, section 5.1") < place("| figure 10, section 5.1"));
    assert_eq!(
        text.matches("\n|---|").count(),
        2,
        "one table for each paper: {text}"
    );
    let mut turned = entries();
    turned.reverse();
    assert_eq!(page(&turned), text, "the order of files does not matter");
    assert!(by_number("fig6.toml") < by_number("fig10.toml"));
    assert!(by_number("a-fig10.toml") < by_number("a-table1.toml"));
}

/// A source that names the figure is not repeated after its title; that of another figure is.
#[test]
fn sources_are_not_repeated() {
    for (title, source, said) in [
        (
            "figure 6: many keys",
            "section 5.1",
            "| figure 6, section 5.1 |",
        ),
        ("figure 6: many keys", "figure 6(a)", "| figure 6(a) |"),
        ("figure 6", "figure 61", "| figure 61 |"),
        ("table 1", "table 1", "| table 1 |"),
    ] {
        let text = FILE.replace("\"figure 6\"", &format!("\"{title}\""));
        let text = text.replacen("\"section 5.1\"", &format!("\"{source}\""), 1);
        let text = page(&[entry(&text, "f.toml", None)]);
        assert!(text.contains(said), "{said}\n{text}");
    }
}

/// Each wrong combination of fields is refused, with its line and a correction.
#[test]
fn wrong_figures_are_explained() {
    for (from, to, said) in [
        ("than = { data_size = \"40MiB\" }\n", "", "with itself"),
        (
            "than = { data_size = \"40MiB\" }",
            "than = { data_size = \"41MiB\" }",
            "41 MiB",
        ),
        (
            "than = { data_size = \"40MiB\" }",
            "than = { phase = \"none\" }",
            "fillrandom",
        ),
        (
            "than = { data_size = \"40MiB\" }",
            "than = { size = 1 }",
            "unknown field",
        ),
        ("unit = \"us\"\nhere", "here", "unit"),
        ("unit = \"us\"\nhere", "unit = \"x\"\nhere", "use s, ms, us"),
        (
            "here = [\"ours\"]",
            "here = [\"ours\", \"base\"]",
            "one name each",
        ),
        (
            "here = [\"ours\"]",
            "here = [\"theirs\"]",
            "use one of ours, base",
        ),
        ("here = [\"ours\"]", "here = []", "a store and its baseline"),
        ("measure = \"p99\"\n", "", "measure"),
        ("value = 28.4", "ratio = 28.4", "two stores"),
        ("ratio = 2.5", "value = 2.5", "one store"),
    ] {
        assert!(FILE.contains(from), "{from}");
        let text = FILE.replacen(from, to, 1);
        let found = Comparison::parse(Path::new("f.toml"), &text, &|_, _| Ok(0));
        let problem = found.expect_err(to).to_string();
        assert!(problem.contains(said), "{said}: {problem}");
        assert!(problem.contains("f.toml:"), "{problem}");
    }
}

/// The report of a comparison has the same figures as the page.
#[test]
fn the_report_has_the_same_figures() {
    let comparison = comparison(FILE);
    let outcome = outcome_of_any(&comparison, &records(&comparison));
    let mut said = String::new();
    outcome.write(&mut said, &comparison).expect("text");
    for parts in [
        ["2.50 x", "3.00 x"],
        ["0.67 x", "0.25 x"],
        ["28.4 us in the paper", "30.5 us here"],
    ] {
        let is_row = |line: &&str| parts.iter().all(|part| line.contains(part));
        assert!(said.lines().any(|line| is_row(&line)), "{parts:?}\n{said}");
    }
}
