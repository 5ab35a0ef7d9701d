//! Circles: files of one crate that import one another.
//!
//! A part that imports itself through others cannot be read, tested or replaced alone. Counted is
//! every path of normal code that names another file of the crate. Not counted are `mod` lines, the
//! crate root, and a file's paths to the modules around it: those are the contract that it is a
//! part of.
//!
//! Rule
//!   import-circle  the files of a crate have an order in which each imports only those before it

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::imports;
use super::modules::{self, Places};
use super::source::Source;

/// Files, and those that each imports with the line where it does so first.
type Graph<'a> = BTreeMap<&'a str, BTreeMap<&'a str, usize>>;

/// Checks every crate.
pub(crate) fn check(sources: &[Source], places: &Places<'_>, violations: &mut Vec<Violation>) {
    let crates: BTreeSet<String> = sources.iter().filter_map(crate_src).collect();
    for src in crates {
        let graph = graph(sources, places, &src);
        for circle in circles(&graph) {
            let (first, line) = first_import(&graph, &circle);
            let names: Vec<&str> = circle.iter().map(|path| &path[src.len()..]).collect();
            let advice = format!(
                "{} files import one another: {}; move the shared part below them",
                names.len(),
                names.join(", ")
            );
            violations.push(Violation::new(first, line, "import-circle", advice));
        }
    }
}

/// The folder of the sources of the crate that a file is in.
fn crate_src(source: &Source) -> Option<String> {
    let (folder, _) = source.path.split_once("/src/")?;
    Some(format!("{folder}/src/"))
}

fn graph<'a>(sources: &'a [Source], places: &'a Places<'_>, src: &str) -> Graph<'a> {
    let modules = modules::module_paths(places, src);
    let inside = places.iter().filter(|(path, _)| path.starts_with(src));
    let files: BTreeMap<&[String], &str> = inside
        .map(|(path, place)| (place.module.as_slice(), *path))
        .collect();
    let root_names = imports::root_names(sources, &format!("{src}lib.rs"), &modules);
    let mut graph = Graph::new();
    for source in sources.iter().filter(|s| s.path.starts_with(src)) {
        let Some(place) = places.get(source.path.as_str()).filter(|p| !p.test) else {
            continue;
        };
        let imported = graph.entry(source.path.as_str()).or_default();
        for mut reference in imports::references(source, &place.module, &modules) {
            if let Some(origin) = reference.path.first().and_then(|name| root_names.get(name)) {
                reference.path.splice(..1, origin.iter().cloned());
            }
            let path = &reference.path;
            let of_file = (1..=path.len()).rev().map(|len| &path[..len]);
            let Some(module) = of_file.into_iter().find(|path| files.contains_key(path)) else {
                continue;
            };
            if !place.module.starts_with(module) {
                imported.entry(files[module]).or_insert(reference.line);
            }
        }
    }
    graph
}

/// The groups of files of which each imports every other one, over others or not.
fn circles<'a>(graph: &Graph<'a>) -> Vec<Vec<&'a str>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|file| (*file, reached(graph, file)))
        .collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for (file, reached) in &reach {
        if !reached.contains(file) || seen.contains(file) {
            continue;
        }
        let back = |other: &&&str| reach.get(**other).is_some_and(|from| from.contains(file));
        let circle: Vec<&str> = reached.iter().filter(back).copied().collect();
        seen.extend(circle.iter().copied());
        circles.push(circle);
    }
    circles
}

/// The files that a file imports, over others or not.
fn reached<'a>(graph: &Graph<'a>, file: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut queue: Vec<&str> = graph[file].keys().copied().collect();
    while let Some(next) = queue.pop() {
        if reached.insert(next) {
            queue.extend(graph.get(next).into_iter().flat_map(BTreeMap::keys));
        }
    }
    reached
}

/// The first file of a circle, and the line where it imports another one of it.
fn first_import<'a>(graph: &Graph<'a>, circle: &[&'a str]) -> (&'a str, usize) {
    let first = circle[0];
    let lines = graph[first]
        .iter()
        .filter(|(file, _)| circle.contains(file));
    (first, lines.map(|(_, line)| *line).min().unwrap_or(1))
}
