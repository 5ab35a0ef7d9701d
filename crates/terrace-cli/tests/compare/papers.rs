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
        if file.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
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
        for part in ["[paper]", "[[paper.value]]", "source = "] {
            assert!(source.contains(part), "{part} in {}", file.display());
        }
        let scale = source
            .lines()
            .find_map(|line| line.strip_prefix("scale = "));
        let scale = scale.unwrap_or_else(|| panic!("no scale in {}", file.display()));
        let is_titled = source.lines().any(|line| {
            line.starts_with("title = ") && line.ends_with(&format!(" at 1/{scale}\""))
        });
        assert!(is_titled, "no title with 1/{scale} in {}", file.display());
        files += 1;
    }
    assert!(files >= 7, "{files}");
}

/// The comparison of a paper runs to its end at a small scale: figures measured here are next to
/// the paper's, and the report states that it is of a trial. Its results do not mix with those of
/// the full one.
#[test]
fn a_paper_is_tried_at_a_small_scale() {
    let place = Place::new();
    let paper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../papers/miodb-fig10.toml");
    let paper = fs::read_to_string(paper).expect("the file of the paper");
    // Pools are not scaled.
    let small = paper
        .replace("pool-size = \"512MiB\"", "pool-size = \"128MiB\"")
        .replace("pool-size = \"1GiB\"", "pool-size = \"128MiB\"")
        .replace(
            "pm-memtable-size = \"256MiB\"",
            "pm-memtable-size = \"32MiB\"",
        )
        .replace("pool-size = \"16GiB\"", "pool-size = \"128MiB\"");
    let file = place.path("fig10.toml");
    fs::write(&file, small).expect("a copy");
    let mut run = terrace();
    run.args(["bench", "compare", "--scale", "1/2048", "--repeats", "1"])
        .arg(&file);
    let output = run.output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for part in [
        "9 of 9 runs",
        "1/2048 of the sizes in the file",
        "figures 10 and 11, table 1",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let amplification = said
        .lines()
        .find(|line| line.contains("write amplification"));
    let ratios = amplification.expect("a row").matches(" x ").count();
    assert_eq!(ratios, 2, "the paper's and ours: {said}");
    let page = place.path("fig10-scale-1-2048-report/index.html");
    let page = fs::read_to_string(page).expect("a report");
    assert!(page.contains("1/2048 of the sizes in the file"));
    assert!(place.path("fig10-scale-1-2048.jsonl").exists());
    assert!(!place.path("fig10.jsonl").exists());
    let mut bad = terrace();
    bad.args(["bench", "compare", "--scale", "3"]).arg(&file);
    assert_fails(&bad.output().expect("it runs"), 2, "write one as 1/64");
}

/// The page of papers is made from results, and again, byte for byte, from the summary alone; a
/// paper without either is not run.
#[test]
fn the_page_of_papers_needs_no_results() {
    let place = Place::new();
    let tiny = |title: &str| {
        super::TINY.to_string()
            + &format!(
                "[paper]\nname = \"Some (CONF 2023)\"\ntitle = \"{title}\"\nscale = 16\nsays = \
                 \"Tiny.\"\n[[paper.value]]\nwhat = \"overwrite\"\nsource = \"section 1\"\npaper = \
                 [\"A\", \"B\"]\nratio = 2.5\nhere = [\"miodb\", \"leveled\"]\nmeasure = \
                 \"throughput\"\nphase = \"overwrite\"\nvalue_size = \"100\"\n"
            )
    };
    let folder = place.path("papers");
    fs::create_dir(&folder).expect("a directory");
    fs::write(folder.join("six.toml"), tiny("figure 6")).expect("a file");
    fs::write(folder.join("seven.toml"), tiny("figure 7")).expect("a file");
    fs::write(folder.join("plain.toml"), super::TINY).expect("a file");
    let bench = |arguments: &[&str]| {
        let mut run = terrace();
        run.arg("bench").args(arguments);
        run.current_dir(place.path("")).output().expect("it runs")
    };
    let page = || fs::read_to_string(place.path("docs/results/papers.md")).expect("a page");
    let measured = bench(&["compare", "papers/six.toml"]);
    assert!(measured.status.success(), "{}", text(&measured.stderr));
    let output = bench(&["papers"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(
        said.contains("six.toml: refreshed from papers/six.jsonl"),
        "{said}"
    );
    assert!(said.contains("seven.toml: not run"), "{said}");
    assert!(!said.contains("plain.toml"), "it has no paper: {said}");
    let first = page();
    let rows = |part| first.lines().filter(|line| line.contains(part)).count();
    assert_eq!(
        (rows("| figure 6, section 1 | "), rows("| figure 7, ")),
        (1, 1),
        "{first}"
    );
    assert_eq!((rows("| not run |"), rows(" op/s / ")), (1, 1), "{first}");

    fs::remove_file(folder.join("six.jsonl")).expect("results");
    let output = bench(&["papers"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("six.toml: as in docs/results/papers/six.json"));
    assert_eq!(page(), first, "the summary is enough");

    let one = bench(&["papers", "papers/seven.toml", "--out", "seven.md"]);
    assert!(one.status.success(), "{}", text(&one.stderr));
    let seven = fs::read_to_string(place.path("seven.md")).expect("a page");
    assert!(
        seven.contains("figure 7") && !seven.contains("figure 6"),
        "{seven}"
    );
    for (arguments, said) in [
        (&["papers/plain.toml"][..], "no [paper]"),
        (&["--results", "six.jsonl"], "give one FILE.toml"),
        (
            &["papers/six.toml", "papers/../papers/six.toml"],
            "the same summary",
        ),
    ] {
        assert_fails(&bench(&[&["papers"], arguments].concat()), 2, said);
    }
    let absent = bench(&["papers", "papers/six.toml", "--results", "none.jsonl"]);
    assert_fails(&absent, 1, "no such file");
    fs::write(place.path("docs/results/papers/six.json"), "{").expect("a file");
    assert_fails(&bench(&["papers"]), 1, "six.json: this is not a summary");
    fs::remove_dir_all(&folder).expect("a directory");
    assert_fails(&bench(&["papers"]), 2, "root of the repository");
}
