//! Counts lines of comments and docs that match patterns of English to avoid.
//!
//! A pattern is a list of phrases, and a phrase a list of words: `a|b` matches either word, `^` the
//! start of a sentence. Case, punctuation and code between backticks are ignored. Phrases that span
//! two lines are missed, and some matches are good English; the counts show a trend.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::tidy::source::comments;

/// A number, a description and phrases.
struct Pattern(&'static str, &'static [&'static str]);

const PATTERNS: [Pattern; 15] = [
    Pattern("\"what\" in place of a noun", &["what"]),
    Pattern(
        "\"of which\", \"of it\", \"Of the ...\" in front",
        &["of which", "of it", "^ of"],
    ),
    Pattern(
        "nobody, somebody, whoever and the like",
        &["nobody|somebody|anybody|everybody|whoever|whom"],
    ),
    Pattern(
        "\"Where ...\" in place of \"if\"",
        &["^ where", "where there", "where no|none"],
    ),
    Pattern(
        "\"has them\" in place of \"contains\", \"holds\"",
        &["has|have|had it|them|none|any|one|some|entries|those"],
    ),
    Pattern("\"This file is ...\"", &["this file is"]),
    Pattern(
        "\"as far as\", \"whatever\"",
        &["as far as", "whatever|whichever"],
    ),
    Pattern(
        "say, tell in all forms",
        &["say|says|said|tell|tells|told|telling"],
    ),
    Pattern("\"beside\"", &["beside"]),
    Pattern(
        "\"by itself\", \"of its own\"",
        &["by itself|themselves", "of its|their|our own"],
    ),
    Pattern("\"so many\", \"so much\"", &["so many|much"]),
    Pattern("\"none\"", &["none"]),
    Pattern("\"lie\" in place of \"is stored\"", &["lie|lies|lay|lying"]),
    Pattern(
        "\"anew\", \"begins again\", \"once more\"",
        &["anew", "begin|begins|began again", "once more"],
    ),
    Pattern(
        "\"off the source\", \"for good\", \"for the sake of\"",
        &["off the source|end", "for good", "for the sake"],
    ),
];

/// Lines of a crate that match each pattern, that match any, and all.
#[derive(Default)]
struct Counts {
    each: [usize; PATTERNS.len()],
    any: usize,
    all: usize,
}

/// Returns a table of the counts of each crate, for sources below one of `paths`, or all if empty.
pub(crate) fn table<'a>(
    sources: impl Iterator<Item = (&'a str, String)>,
    paths: &[String],
) -> String {
    let is_below = |path: &str, folder: &String| {
        let folder = folder.trim_start_matches("./").trim_end_matches('/');
        let rest = path.strip_prefix(folder);
        rest.is_some_and(|rest| folder.is_empty() || rest.is_empty() || rest.starts_with('/'))
    };
    let mut crates: BTreeMap<String, Counts> = BTreeMap::new();
    for (path, text) in sources {
        if paths.is_empty() || paths.iter().any(|folder| is_below(path, folder)) {
            let name = path.trim_start_matches("crates/").split('/').next();
            let counts = crates
                .entry(name.unwrap_or_default().to_owned())
                .or_default();
            count(&text, counts);
        }
    }
    format(&crates)
}

fn format(crates: &BTreeMap<String, Counts>) -> String {
    let mut text = String::from("     ");
    let widths: Vec<usize> = crates.keys().map(|name| name.len().max(6) + 2).collect();
    for (name, width) in crates.keys().zip(&widths) {
        let _ = write!(text, "{name:>width$}");
    }
    let mut row = |label: &str, count: &dyn Fn(&Counts) -> usize, description: &str| {
        let _ = write!(text, "\n{label:>5}");
        for (counts, width) in crates.values().zip(&widths) {
            let _ = write!(text, "{:>width$}", count(counts));
        }
        let _ = write!(text, "  {description}");
    };
    for (index, Pattern(description, _)) in PATTERNS.iter().enumerate() {
        let number = (index + 1).to_string();
        row(&number, &|counts| counts.each[index], description);
    }
    row("any", &|counts| counts.any, "lines that match any of them");
    row("lines", &|counts| counts.all, "lines of comments and docs");
    text + "\n"
}

fn count(text: &str, counts: &mut Counts) {
    let mut after = 0;
    let mut starts = true;
    for (line, comment) in comments(text) {
        // A comment after code or a blank line starts a sentence.
        starts |= line != after + 1;
        after = line;
        let words = words(&comment, &mut starts);
        let mut any = false;
        for (Pattern(_, phrases), count) in PATTERNS.iter().zip(&mut counts.each) {
            let matches = phrases.iter().any(|phrase| has_phrase(&words, phrase));
            *count += usize::from(matches);
            any |= matches;
        }
        counts.any += usize::from(any);
        counts.all += 1;
    }
}

/// The words of a line in lower case, with `^` before each start of a sentence. `starts` says
/// whether the line starts one, and then whether the next line does.
fn words(comment: &str, starts: &mut bool) -> Vec<String> {
    let prose: String = comment
        .split('`')
        .step_by(2)
        .collect::<Vec<_>>()
        .join(" x ");
    let mut words = Vec::new();
    let mut is_empty = true;
    for word in prose.split_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        if !bare.is_empty() {
            if std::mem::take(starts) {
                words.push("^".to_owned());
            }
            words.push(bare.to_ascii_lowercase());
            is_empty = false;
        }
        *starts |= word.ends_with(['.', ':', '*', '#', '|', '-']);
    }
    *starts |= is_empty;
    words
}

fn has_phrase(words: &[String], phrase: &str) -> bool {
    let phrase: Vec<Vec<&str>> = phrase
        .split(' ')
        .map(|word| word.split('|').collect())
        .collect();
    let matches = |(word, choices): (&String, &Vec<&str>)| choices.contains(&word.as_str());
    words
        .windows(phrase.len())
        .any(|window| window.iter().zip(&phrase).all(matches))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_match_are_counted_by_crate() {
        let a = "//! What is free. This file is\n//! where `none` is, or None.\nlet x = \"what\"; // Of it.";
        let b = "/// Where it is. It has them.";
        let sources = [("crates/a/src/lib.rs", a), ("crates/b/src/lib.rs", b)];
        let sources = || {
            sources
                .iter()
                .map(|(path, text)| (*path, (*text).to_owned()))
        };
        let column = |table: &str, at: usize| -> Vec<String> {
            let cell = |line: &str| line.split_whitespace().nth(at).map(str::to_owned);
            table.lines().skip(1).filter_map(cell).collect()
        };
        let all = table(sources(), &[]);
        assert_eq!(
            column(&all, 1).join(" "),
            "1 1 0 0 0 1 0 0 0 0 0 1 0 0 0 3 3"
        );
        assert_eq!(
            column(&all, 2).join(" "),
            "0 0 0 1 1 0 0 0 0 0 0 0 0 0 0 1 1"
        );
        let one = table(sources(), &["./crates/b/".to_owned()]);
        assert_eq!(column(&one, 1), column(&all, 2));
    }
}
