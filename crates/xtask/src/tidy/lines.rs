//! Lines of code: those with a token that is neither comment nor literal, outside of tests. What a
//! redesign saves is counted by them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::modules;
use super::source::Source;

/// A crate, and a folder of its `src` or nothing for all of it.
type Part = (String, Option<String>);

/// A table of the lines of each crate, and of each folder in its `src`.
pub(super) fn table(sources: &[Source]) -> String {
    let places = modules::check(sources, &mut Vec::new());
    let mut counts: BTreeMap<Part, usize> = BTreeMap::new();
    for source in sources {
        let place = places.get(source.path.as_str());
        if place.is_some_and(|place| place.test) || !source.path.contains("/src/") {
            continue;
        }
        let tokens = source.tokens.iter().filter(|token| !token.test);
        let lines = tokens.map(|token| token.line).collect::<BTreeSet<_>>();
        for part in parts(&source.path) {
            *counts.entry(part).or_default() += lines.len();
        }
    }
    let crates = counts.iter().filter(|((_, folder), _)| folder.is_none());
    let all: usize = crates.map(|(_, lines)| lines).sum();
    let mut text = String::new();
    for ((name, folder), lines) in &counts {
        let name = folder
            .as_ref()
            .map_or(name.clone(), |folder| format!("  {folder}"));
        let _ = writeln!(text, "{name:<24}{lines:>8}");
    }
    let _ = writeln!(text, "{:<24}{all:>8}", "all");
    text
}

/// The crate of a source, and its folder.
fn parts(path: &str) -> Vec<Part> {
    let names: Vec<&str> = path.split('/').collect();
    let ["crates", name, "src", inside @ ..] = names.as_slice() else {
        return Vec::new();
    };
    let mut parts = vec![((*name).to_owned(), None)];
    if let [folder, _, ..] = inside {
        parts.push(((*name).to_owned(), Some((*folder).to_owned())));
    }
    parts
}
