//! Rules about modules: names that say something, and no file that the compiler never sees.
//!
//! Following `mod` declarations from the crate roots also yields where each file sits in its
//! crate's module tree and whether only tests compile it; the other rules use that.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::source::Source;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &[
    "util", "utils", "common", "helper", "helpers", "misc", "manager",
];

/// Where a file sits in the module tree of its crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Module path below the crate root; empty for the root.
    pub(crate) module: Vec<String>,
    /// Only tests compile the file.
    pub(crate) test: bool,
}

/// Places by path. A file outside `src/` has none.
pub(crate) type Places<'a> = BTreeMap<&'a str, Place>;

/// Checks names and reachability, and returns the places of the files that were reached.
pub(crate) fn check<'a>(sources: &'a [Source], violations: &mut Vec<Violation>) -> Places<'a> {
    let by_path: BTreeMap<&str, &Source> = sources
        .iter()
        .map(|source| (source.path.as_str(), source))
        .collect();
    let mut places = Places::new();
    let mut queue: Vec<(&Source, Place)> = Vec::new();
    for source in sources {
        check_names(source, violations);
        if is_root(&source.path) {
            queue.push((
                source,
                Place {
                    module: Vec::new(),
                    test: false,
                },
            ));
        }
    }
    while let Some((source, place)) = queue.pop() {
        for declared in declarations(source) {
            let paths = candidate_paths(&source.path, &declared.names);
            let Some(child) = paths.iter().find_map(|path| by_path.get(path.as_str())) else {
                continue;
            };
            let mut module = place.module.clone();
            module.extend(declared.names);
            let test = place.test || declared.test;
            // A file declared twice (by a test build and by a normal one) is normal code.
            let seen = places
                .get(child.path.as_str())
                .is_some_and(|seen| !seen.test || test);
            if !seen {
                queue.push((child, Place { module, test }));
            }
        }
        places.insert(source.path.as_str(), place);
    }
    for source in sources {
        if source.path.contains("/src/") && !places.contains_key(source.path.as_str()) {
            let advice = "no `mod` declaration reaches this file; declare it or delete it";
            violations.push(Violation::new(&source.path, 1, "unreachable", advice));
        }
    }
    places
}

/// The module paths of one crate, for telling a module from an item in an import.
pub(crate) fn module_paths<'a>(places: &'a Places<'_>, crate_src: &str) -> BTreeSet<&'a [String]> {
    let inside = places
        .iter()
        .filter(|(path, _)| path.starts_with(crate_src));
    inside.map(|(_, place)| place.module.as_slice()).collect()
}

struct Declared {
    /// The inline modules around the declaration, then its own name.
    names: Vec<String>,
    test: bool,
}

fn declarations(source: &Source) -> Vec<Declared> {
    let mut found = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        if token.text == "mod" && source.word(at + 2) == ";" {
            let mut names = source.scope(at).to_vec();
            names.push(source.word(at + 1).to_owned());
            found.push(Declared {
                names,
                test: token.test,
            });
        }
    }
    found
}

fn check_names(source: &Source, violations: &mut Vec<Violation>) {
    let mut report = |line: usize, name: &str| {
        if EMPTY_NAMES.contains(&name) {
            let advice = format!("`{name}` says nothing; name the module after its purpose");
            violations.push(Violation::new(&source.path, line, "module-name", advice));
        }
    };
    for (at, token) in source.tokens.iter().enumerate() {
        let inline = source.word(at + 2) == "{";
        if token.text == "mod" && inline {
            report(token.line, source.word(at + 1));
        }
    }
    let stem = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
    report(1, stem.rsplit('/').next().unwrap_or(stem));
}

/// Whether Cargo compiles the file as the root of a crate.
fn is_root(path: &str) -> bool {
    let Some((_, inside)) = path.rsplit_once("/src/") else {
        return false;
    };
    let bin = inside.strip_prefix("bin/");
    matches!(inside, "lib.rs" | "main.rs")
        || bin.is_some_and(|bin| !bin.contains('/') || bin.ends_with("/main.rs"))
}

/// Where the file of a module may lie, seen from the file that declares it.
fn candidate_paths(parent: &str, names: &[String]) -> [String; 2] {
    let (folder, file) = parent.rsplit_once('/').unwrap_or(("", parent));
    let base = if file == "mod.rs" || is_root(parent) {
        folder.to_owned()
    } else {
        format!("{folder}/{}", file.trim_end_matches(".rs"))
    };
    let below = names.join("/");
    [
        format!("{base}/{below}.rs"),
        format!("{base}/{below}/mod.rs"),
    ]
}
