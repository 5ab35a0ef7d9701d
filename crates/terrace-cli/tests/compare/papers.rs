//! Tests that read every file of papers/, and run one.

use std::fs;
use std::path::Path;

use super::super::{Place, assert_fails, terrace, text};

/// Every file of a paper can be run and reports the paper's figures.
#[test]
fn papers_can_be_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../papers");
    let mut files = 0;
    for entry in fs::read_dir(folder).expect("the directory").flatten() {
        let file = entry.path();
        let source = fs::read_to_string(&file).expect("a file");
        let mut run = terrace();
        run.args(["bench", "compare", "--dry-run"]).arg(&file);
        let output = run.output().expect("it runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = text(&output.stdout);
        assert!(
            lines.contains("--memtable-size"),
            "{}: {lines}",
            file.display()
        );
        for part in ["[paper]", "scale = 64", "[[paper.value]]", "source = "] {
            assert!(source.contains(part), "{part} in {}", file.display());
        }
        files += 1;
    }
    assert!(files >= 9, "{files}");
}

/// The comparison of a paper runs to its end at a small scale: figures measured here are next to
/// the paper's, and the report states that it is of a trial. Its results do not mix with those of
/// the full one.
#[test]
fn a_paper_is_tried_at_a_small_scale() {
    let place = Place::new();
    let paper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../papers/miodb-table1.toml");
    let file = place.path("table1.toml");
    fs::copy(paper, &file).expect("a copy");
    let mut run = terrace();
    run.args(["bench", "compare", "--scale", "1/2048"])
        .arg(&file);
    let output = run.output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for part in [
        "6 of 6 runs",
        "1/2048 of the sizes in the file",
        "table 1: costs",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let amplification = said
        .lines()
        .find(|line| line.contains("write amplification"));
    let ratios = amplification.expect("a row").matches(" x ").count();
    assert_eq!(ratios, 2, "the paper's and ours: {said}");
    let page = place.path("table1-scale-1-2048-report/index.html");
    let page = fs::read_to_string(page).expect("a report");
    assert!(page.contains("1/2048 of the sizes in the file"));
    assert!(place.path("table1-scale-1-2048.jsonl").exists());
    assert!(!place.path("table1.jsonl").exists());
    let mut bad = terrace();
    bad.args(["bench", "compare", "--scale", "3"]).arg(&file);
    assert_fails(&bad.output().expect("it runs"), 2, "write one as 1/64");
}
