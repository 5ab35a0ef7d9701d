//! The rules of STYLE.md as checks over the text of the tree.
//!
//! `Tree::read` walks the folder once; `check` runs every rule over it and returns the violations
//! in order of path and line. A tree can also be made of strings, which is how each rule's test
//! proves that the rule fires.
//!
//! One file a subject: `text` (width, first line, ASCII, unfinished marks), `modules` (names,
//! reachability), `imports` (direction), `circles` (of imports), `lines` (a count), `media`
//! (layouts, unsafe code, persist comments), `links` (documents), `source` (the scanner that all of
//! them read from).

mod circles;
mod imports;
mod lines;
mod links;
mod media;
mod modules;
pub(crate) mod source;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;

use source::Source;

/// Folders that hold no sources: build output and the history.
const SKIPPED_FOLDERS: &[&str] = &["target", ".git"];

/// File endings whose content is checked; of every other file only the existence counts.
const READ_ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".sh", ".ci/run"];

/// One place where a rule is broken, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    advice: String,
}

impl Violation {
    fn new(path: &str, line: usize, rule: &'static str, advice: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            rule,
            advice: advice.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {}: {}",
            self.path, self.line, self.rule, self.advice
        )
    }
}

/// Every file of the workspace by its path from the root, with `/` between the parts.
#[derive(Default)]
pub(crate) struct Tree {
    /// The content of the files that a rule reads.
    contents: BTreeMap<String, Vec<u8>>,
    /// All files and folders, for links.
    paths: BTreeSet<String>,
}

impl Tree {
    /// Reads the folder `root`, without the folders that hold no sources.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    /// The number of files whose content was checked.
    pub(crate) fn file_count(&self) -> usize {
        self.contents.len()
    }

    /// The Rust sources, by path.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&str, String)> {
        let sources = self
            .contents
            .iter()
            .filter(|(path, _)| path.ends_with(".rs"));
        sources
            .map(|(path, content)| (path.as_str(), String::from_utf8_lossy(content).into_owned()))
    }

    /// Adds one file and the folders above it.
    fn add(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        for (at, _) in path.match_indices('/') {
            self.paths.insert(path[..at].to_owned());
        }
        self.paths.insert(path.to_owned());
        self.contents.insert(path.to_owned(), content.into());
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && SKIPPED_FOLDERS.contains(&name.as_ref()) {
                continue;
            }
            if kind.is_dir() {
                self.read_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && READ_ENDINGS.iter().any(|ending| path.ends_with(ending)) {
                self.add(&path, std::fs::read(entry.path())?);
            }
            self.paths.insert(path);
        }
        Ok(())
    }
}

/// Returns a table of the lines of code of each crate and folder, without comments and tests.
pub(crate) fn lines(tree: &Tree) -> String {
    let sources: Vec<Source> = tree
        .sources()
        .map(|(path, text)| Source::parse(path, &text))
        .collect();
    lines::table(&sources)
}

/// Runs every rule over the tree.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut sources = Vec::new();
    for (path, content) in &tree.contents {
        text::check(path, content, &mut violations);
        let text = String::from_utf8_lossy(content);
        if path.ends_with(".rs") {
            sources.push(Source::parse(path, &text));
        } else if path.ends_with(".md") {
            links::check(path, &text, &tree.paths, &mut violations);
        }
    }
    let places = modules::check(&sources, &mut violations);
    for source in &sources {
        let place = places.get(source.path.as_str());
        media::check(
            source,
            place.is_some_and(|place| place.test),
            &mut violations,
        );
    }
    imports::check(&sources, &places, &mut violations);
    circles::check(&sources, &places, &mut violations);
    violations.sort();
    violations
}
