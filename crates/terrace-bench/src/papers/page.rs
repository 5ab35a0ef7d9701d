//! The page of all papers, in Markdown: one section and one table for each paper.
//!
//! Invariants
//!   P1  The page depends only on comparisons and summaries: the same ones give the same bytes.

use std::fmt::Write as _;

use super::summary::Summary;
use crate::compare::{Comparison, Figure, Names, Pair, Paper, PaperValue};
use crate::units;

/// The width of a line of prose in columns.
const WIDTH: usize = 100;

/// A comparison with a paper.
#[derive(Debug)]
pub struct Entry {
    /// The name of its file, without directories.
    pub file: String,
    /// The comparison; one without a paper is left out.
    pub comparison: Comparison,
    /// The results; `None` if it was not run.
    pub summary: Option<Summary>,
}

impl Entry {
    /// Returns the name of the paper.
    fn paper_name<'a>(&'a self, paper: &'a Paper) -> &'a str {
        let title = self.comparison.title.split(',').next().unwrap_or_default();
        match paper.name.trim() {
            "" => title.trim(),
            name => name,
        }
    }
}

/// The head of the page.
const HEAD: &str = "\
Figures of papers, each next to the same measurement here. A ratio is of the first store to the \
second, each pair on one machine: the paper's on its machine, ours on the machine below. A paper's \
store that does not exist here has a design of ours in its place, which the column \"here\" names.";

/// The explanation of the cells of the tables.
const LEGEND: &str = "\
Figures here are medians of interleaved repeats; behind a ratio are the medians of both stores. For \
several sizes a ratio is the mean of the ratios, like the papers' averages. *Unclear*: repeats of \
one store spread too widely, those of both overlap, or there is only one. *Gap*: nothing here can \
be compared.";

/// The explanation of the origin of the page.
const MADE: &str = "\
This page is made by `terrace bench papers` from the comparisons in `papers/` of the repository and \
the summaries next to this page, which it refreshes where there are new results; do not edit it.";

/// Formats the page of `entries`, in the order of their file names.
pub fn page(entries: &[Entry]) -> String {
    let mut entries: Vec<(&Entry, &Paper)> = entries
        .iter()
        .filter_map(|entry| Some((entry, entry.comparison.paper.as_ref()?)))
        .collect();
    entries.sort_by_key(|(entry, _)| by_number(&entry.file));
    let mut names: Vec<&str> = Vec::new();
    for (entry, paper) in &entries {
        let name = entry.paper_name(paper);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut text = String::from("# Figures of papers\n");
    for paragraph in [HEAD, LEGEND, MADE] {
        let _ = write!(text, "\n{}", wrap(paragraph, ""));
    }
    for name in names {
        let is_of = |(entry, paper): &&(&Entry, &Paper)| entry.paper_name(paper) == name;
        let of: Vec<(&Entry, &Paper)> = entries.iter().filter(is_of).copied().collect();
        section(&mut text, name, &of);
    }
    text
}

/// Returns a key that orders names by their numbers: fig6 before fig10.
pub(super) fn by_number(name: &str) -> (Vec<(String, u64)>, String) {
    let mut parts = Vec::new();
    let mut rest = name;
    // BOUND: each iteration takes at least one character of a rest that is not empty.
    while !rest.is_empty() {
        let start = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (text, after) = rest.split_at(start);
        let end = after
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(after.len());
        let (digits, after) = after.split_at(end);
        parts.push((text.to_string(), digits.parse().unwrap_or(u64::MAX)));
        rest = after;
    }
    (parts, name.to_string())
}

fn section(text: &mut String, name: &str, entries: &[(&Entry, &Paper)]) {
    let _ = writeln!(text, "\n## {name}\n");
    let heading = [
        "in the paper",
        "figure",
        "stores of the paper",
        "paper's ratio",
        "stores here",
        "ratio here",
        "reading",
    ];
    let _ = writeln!(text, "| {} |", heading.join(" | "));
    let _ = writeln!(text, "|{}", "---|".repeat(heading.len()));
    for (entry, paper) in entries {
        for value in paper.values() {
            let cells = row(entry, paper, value).map(|cell| escaped(&cell));
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    text.push('\n');
    for (entry, paper) in entries {
        text.push_str(&wrap(&about(entry, paper), "- "));
    }
    let conditions = conditions(entries);
    if !conditions.is_empty() {
        text.push_str("\nMeasured on:\n\n");
        for line in conditions {
            text.push_str(&wrap(&line, "- "));
        }
    }
}

/// Returns the cells of a row.
fn row(entry: &Entry, paper: &Paper, value: &PaperValue) -> [String; 7] {
    // A section alone does not say which figure it describes. A title may: "table 1: costs".
    let title = paper.title.split(':').next().unwrap_or_default().trim();
    let names_one = ["figure ", "table "].map(|kind| value.source.starts_with(kind));
    let source = match names_one.contains(&true) {
        true => value.source.clone(),
        false => format!("{title}, {}", value.source),
    };
    let reading = match (value.reading.trim(), value.note.trim()) {
        (reading, "") => reading.to_string(),
        ("", note) => note.to_string(),
        (reading, note) => format!("{reading} ({note})"),
    };
    [
        source,
        value.what.clone(),
        value.paper.to_string(),
        paper_says(value),
        value
            .here
            .as_ref()
            .map_or("-".to_string(), Names::to_string),
        here_says(entry, value),
        reading,
    ]
}

/// Formats the paper's figure, with the values that a ratio is of.
fn paper_says(value: &PaperValue) -> String {
    let says = value.paper_says();
    match (value.values, &value.unit) {
        (Some([a, b]), None) => format!("{says} ({a} / {b})"),
        (Some([a, b]), Some(unit)) => format!("{says} ({a} {unit} / {b} {unit})"),
        _ => says,
    }
}

/// Formats the figure here, with the medians that a ratio is of.
fn here_says(entry: &Entry, value: &PaperValue) -> String {
    if value.here.is_none() {
        return "gap".to_string();
    }
    let Some(summary) = &entry.summary else {
        return "not run".to_string();
    };
    let pairs = value.pairs(&summary.figures);
    if pairs.is_empty() {
        return "not measured".to_string();
    }
    let spread_max = *entry.comparison.spread_max.get_ref();
    let here = value.here_is(&summary.figures, spread_max);
    let says = here.map_or("no ratio".to_string(), |here| value.here_says(here));
    let medians: Vec<String> = pairs.iter().map(|pair| medians(pair, &pairs)).collect();
    match medians.as_slice() {
        // The value is the median.
        [_] if value.paper.baseline.is_none() => says,
        [one] => format!("{says} ({one})"),
        many => format!("{says}, mean of {} ({})", many.len(), many.join("; ")),
    }
}

/// Formats the medians of a pair, after the sizes that tell it from the other ones of `all`.
fn medians((a, b): &Pair<'_>, all: &[Pair<'_>]) -> String {
    let differ = |differs: &dyn Fn(&Figure) -> bool| all.iter().any(|(other, _)| differs(other));
    let mut place = Vec::new();
    if differ(&|other| other.workload != a.workload) {
        place.push(a.workload.clone());
    }
    if differ(&|other| other.phase != a.phase) {
        place.push(a.phase.clone());
    }
    if differ(&|other| other.value_bytes != a.value_bytes) {
        place.push(format!("values of {}", units::short_bytes(a.value_bytes)));
    }
    if differ(&|other| other.data_bytes != a.data_bytes) {
        let data = a.data_bytes.map_or("-".to_string(), units::short_bytes);
        place.push(format!("data of {data}"));
    }
    let mut text = place.join(", ");
    if !text.is_empty() {
        text.push_str(": ");
    }
    text.push_str(&a.measure.show(a.repeats.median));
    if let Some(b) = b {
        let _ = write!(text, " / {}", b.measure.show(b.repeats.median));
    }
    text
}

/// Describes a comparison: its file, its scale, the differences, and the state of its results.
fn about(entry: &Entry, paper: &Paper) -> String {
    let says = paper.says.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = format!(
        "{} (`{}`), at 1/{} of its size: {says}",
        paper.title.trim(),
        entry.file,
        paper.scale
    );
    let Some(summary) = &entry.summary else {
        text.push_str(" Not run.");
        return text;
    };
    let [first, last] = &summary.days;
    let _ = match first == last {
        true => write!(text, " Run on {first}"),
        false => write!(text, " Run from {first} to {last}"),
    };
    if summary.phases_disturbed > 0 {
        let (disturbed, phases) = (summary.phases_disturbed, summary.phases);
        let _ = write!(text, "; others disturbed {disturbed} of {phases} phases");
    }
    if summary.runs_done < summary.runs_planned {
        let (done, planned) = (summary.runs_done, summary.runs_planned);
        let _ = write!(text, "; only {done} of {planned} runs have a result");
    }
    let changed = summary.changed(&entry.comparison);
    if !changed.is_empty() {
        let changed = changed.join(", ");
        let _ = write!(text, "; since then the settings of {changed} have changed");
    }
    text.push('.');
    text
}

/// Returns the conditions of all results, each with the figures that it holds for.
fn conditions(entries: &[(&Entry, &Paper)]) -> Vec<String> {
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    let mut measured = 0;
    let mut add = |line: String, title| match lines.iter_mut().find(|(there, _)| *there == line) {
        Some((_, titles)) => titles.push(title),
        None => lines.push((line, vec![title])),
    };
    for (entry, paper) in entries {
        let Some(summary) = &entry.summary else {
            continue;
        };
        measured += 1;
        for m in &summary.machines {
            let memory = units::bytes(m.memory_bytes);
            let (cpu, cores, kernel) = (&m.cpu, m.cores, &m.kernel);
            add(
                format!("{cpu}, {cores} cores, {memory} of memory, Linux {kernel}"),
                paper.title.trim(),
            );
        }
        for build in &summary.builds {
            let commit = build.commit.as_deref().unwrap_or("unknown");
            add(
                format!("build: {}, commit {commit}", build.build),
                paper.title.trim(),
            );
        }
        for store in &summary.stores {
            let emulated = store.emulation.as_ref();
            let emulated = emulated.map_or(String::new(), |e| format!(", emulated {e}"));
            let (name, is, medium) = (&store.name, &store.description, &store.medium);
            let is = if is == name {
                String::new()
            } else {
                format!("{is}, ")
            };
            let (file_system, durability) = (&store.file_system, &store.durability);
            add(
                format!("{name}: {is}{medium} on {file_system}{emulated}; {durability}"),
                paper.title.trim(),
            );
        }
    }
    let all = |titles: &[&str]| match titles.len() == measured {
        true => "all".to_string(),
        false => titles.join(", "),
    };
    let each = lines
        .iter()
        .map(|(line, titles)| format!("{line} ({})", all(titles)));
    each.collect()
}

/// Returns `text` as the contents of a cell of a table, which is one line.
fn escaped(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.join(" ") {
        line if line.is_empty() => "-".to_string(),
        line => line.replace('|', "\\|").replace('<', "&lt;"),
    }
}

/// Breaks prose into lines, the first one after `bullet`, the others below its text. A line never
/// begins with a word that would make it a list or a heading.
fn wrap(text: &str, bullet: &str) -> String {
    let is_mark = |word: &str| {
        let number = word.trim_end_matches(['.', ')']);
        let is_number = number.len() < word.len() && number.bytes().all(|b| b.is_ascii_digit());
        ["-", "+", "*", ">", "="].contains(&word) || word.starts_with('#') || is_number
    };
    let text = text.replace('<', "&lt;");
    let (mut done, mut line) = (String::new(), bullet.to_string());
    let mut is_first = true;
    for word in text.split_whitespace() {
        let columns = line.chars().count() + 1 + word.chars().count();
        if !is_first && columns > WIDTH && !is_mark(word) {
            let _ = writeln!(done, "{line}");
            line = " ".repeat(bullet.len());
        } else if !is_first {
            line.push(' ');
        }
        line.push_str(word);
        is_first = false;
    }
    let _ = writeln!(done, "{line}");
    done
}
