//! Rules about a file as text: first line, ASCII, width of comments, unfinished marks, markers of a
//! merge.

use super::Violation;

/// The longest line of a comment; tables may be wider.
const COLUMNS_MAX: usize = 100;

/// Words that mark unfinished work; an issue says it better. Split so that this file passes.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("#[ig", "nore"),
];

/// The starts of the lines that an unfinished merge leaves. Split so that this file passes.
const MERGE_MARKERS: [&[u8]; 2] = [b"<<<<<<\x3c ", b">>>>>>\x3e "];

/// Checks one file. Documents are exempt from all rules but the first: they may name the marks.
pub(crate) fn check(path: &str, content: &[u8], violations: &mut Vec<Violation>) {
    for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
        if MERGE_MARKERS.iter().any(|marker| line.starts_with(marker)) {
            let advice = "resolve the merge and remove its markers";
            violations.push(Violation::new(path, index + 1, "merge", advice));
        }
    }
    if path.ends_with(".md") {
        return;
    }
    for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
        if let Some(at) = line.iter().position(|byte| !byte.is_ascii()) {
            let advice = format!("write the character at byte {at} in ASCII or as an escape");
            violations.push(Violation::new(path, index + 1, "ascii", advice));
        }
    }
    if !path.ends_with(".rs") {
        return;
    }
    let text = String::from_utf8_lossy(content);
    if !text.starts_with("//!") {
        let advice = "start the file with a `//!` line that describes its contents";
        violations.push(Violation::new(path, 1, "header", advice));
    }
    for (index, line) in text.lines().enumerate() {
        let is_comment = line.trim_start().starts_with("//");
        if is_comment && line.len() > COLUMNS_MAX && !line.contains('|') {
            let advice = format!("wrap the comment at {COLUMNS_MAX} columns");
            violations.push(Violation::new(path, index + 1, "width", advice));
        }
        for mark in UNFINISHED {
            if has_word(line, mark) {
                let advice = format!("finish the work or open an issue; remove `{mark}`");
                violations.push(Violation::new(path, index + 1, "unfinished", advice));
            }
        }
    }
}

/// Whether `mark` stands in `line` and is not a part of a longer word.
fn has_word(line: &str, mark: &str) -> bool {
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    line.match_indices(mark).any(|(at, _)| {
        let before = mark.starts_with(|c: char| c.is_ascii_alphanumeric())
            && joins(line[..at].chars().next_back());
        !before && !joins(line[at + mark.len()..].chars().next())
    })
}
