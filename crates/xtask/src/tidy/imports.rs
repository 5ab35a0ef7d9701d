//! Import direction inside the store: db, designs, engine, stages, parts, each below the last.
//!
//! A path is any `crate::`, `super::` or `self::` path in normal code, in a `use` or elsewhere, and
//! any `use` or `pub use` of a child module. A name that the crate root re-exports counts as the
//! module it comes from, so the root is no way around the rule.
//!
//! Rules
//!   import-up      no path to a higher layer; a leaf reaches leaves and its list
//!   import-stage   a concrete stage is named by `designs/` and by itself; not by the engine, not
//!                  by a sibling stage, not by a re-export in the contracts
//!   import-root    no glob of the crate root, no top-level module outside the lists below

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::modules::{self, Places};
use super::source::Source;

/// The sources that the rules apply to.
const STORE_SRC: &str = "crates/terrace/src/";

/// The layers, highest first. Each may import those after it.
const LAYERS: &[&str] = &["db", "designs", "engine", "stages", "parts"];

/// Modules that anyone may import. They import one another, and what `LEAF_REACH` grants.
const LEAVES: &[&str] = &[
    "canary", "error", "events", "named", "options", "metrics", "types", "testing",
];

/// What a leaf may reach beyond the leaves, and why.
const LEAF_REACH: &[(&str, &[&str], &str)] = &[(
    "testing",
    &["designs", "decoders"],
    "it hands the decoders to tests",
)];

/// The layer whose modules two levels down are concrete stages.
const STAGES: &str = "stages";

/// The one layer that may name concrete stages.
const DESIGNS: &str = "designs";

/// One path in the code, resolved to the crate root.
pub(super) struct Reference {
    pub(super) path: Vec<String>,
    /// The name it is known by afterwards, where `as` gives it another.
    alias: Option<String>,
    pub(super) line: usize,
    is_macro: bool,
}

/// Checks every source of the store.
pub(crate) fn check(sources: &[Source], places: &Places<'_>, violations: &mut Vec<Violation>) {
    let modules = modules::module_paths(places, STORE_SRC);
    let root_names = root_names(sources, &format!("{STORE_SRC}lib.rs"), &modules);
    for source in sources {
        let Some(place) = places.get(source.path.as_str()) else {
            continue;
        };
        let Some(top) = place.module.first() else {
            continue;
        };
        if place.test || !source.path.starts_with(STORE_SRC) {
            continue;
        }
        if !LAYERS.contains(&top.as_str()) && !LEAVES.contains(&top.as_str()) {
            let advice = format!("`{top}` is neither a layer nor a leaf; move it into one");
            violations.push(Violation::new(&source.path, 1, "import-root", advice));
            continue;
        }
        for mut reference in references(source, &place.module, &modules) {
            if let Some(origin) = reference.path.first().and_then(|name| root_names.get(name)) {
                reference.path.splice(..1, origin.iter().cloned());
            }
            if let Some((rule, advice)) = judge(&place.module, &reference, &modules) {
                violations.push(Violation::new(&source.path, reference.line, rule, advice));
            }
        }
    }
}

/// What the crate root re-exports: name, and path below the root.
pub(super) fn root_names(
    sources: &[Source],
    root: &str,
    modules: &BTreeSet<&[String]>,
) -> BTreeMap<String, Vec<String>> {
    let root = sources.iter().find(|source| source.path == root);
    let mut names = BTreeMap::new();
    for reference in root
        .map(|root| references(root, &[], modules))
        .unwrap_or_default()
    {
        let last = reference.path.last().cloned();
        if let (Some(name), true) = (reference.alias.or(last), reference.path.len() > 1) {
            names.insert(name, reference.path);
        }
    }
    names
}

/// The rule that a reference breaks, if any, and what to do about it.
fn judge(
    from: &[String],
    reference: &Reference,
    modules: &BTreeSet<&[String]>,
) -> Option<(&'static str, String)> {
    let path = &reference.path;
    let shown = format!("crate::{}", path.join("::"));
    let Some(top) = path.first().filter(|top| *top != "*") else {
        return Some((
            "import-root",
            "import the module that owns the name, not the root".into(),
        ));
    };
    if LEAVES.contains(&top.as_str()) || top == &from[0] && top != STAGES {
        return None;
    }
    let layer = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let Some(target) = layer(top) else {
        let known = reference.is_macro;
        let advice = format!("`{shown}` is in no layer; import it from the module that owns it");
        return (!known).then_some(("import-root", advice));
    };
    let Some(here) = layer(&from[0]) else {
        let reach = LEAF_REACH.iter().find(|(leaf, _, _)| *leaf == from[0]);
        if reach.is_some_and(|(_, allowed, _)| path.iter().take(allowed.len()).eq(*allowed)) {
            return None;
        }
        let advice = format!("`{}` is a leaf; it must not import `{shown}`", from[0]);
        return Some(("import-up", advice));
    };
    if target < here {
        let advice = format!(
            "`{}` lies below `{top}`; it must not import `{shown}`",
            from[0]
        );
        return Some(("import-up", advice));
    }
    let concrete = path
        .get(..3)
        .filter(|stage| top == STAGES && modules.contains(*stage))?;
    if from[0] == DESIGNS || from.starts_with(concrete) {
        return None;
    }
    let advice = match from[0].as_str() {
        STAGES if from.len() >= 3 => {
            format!(
                "a stage must not import its sibling `{shown}`; move the shared part to \
                     `parts`"
            )
        }
        STAGES => format!("the contracts must not name `{shown}`; designs/ imports it by its path"),
        _ => format!("only designs/ names a concrete stage; use the contracts, not `{shown}`"),
    };
    Some(("import-stage", advice))
}

/// Every path of `source` in normal code, resolved from the module it sits in.
pub(super) fn references(
    source: &Source,
    module: &[String],
    modules: &BTreeSet<&[String]>,
) -> Vec<Reference> {
    let mut found = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        if token.test || source.word(at + 1) != "::" && token.text != "use" {
            continue;
        }
        let mut here = module.to_vec();
        here.extend_from_slice(source.scope(at));
        match token.text.as_str() {
            "crate" | "self" | "super"
                if !matches!(source.word_before(at), "in" | "super" | "::") =>
            {
                if token.text == "crate" {
                    here.clear();
                }
                let mut next = at;
                while source.word(next) == "super" {
                    here.pop();
                    next += 2;
                }
                let next = if next == at { at + 2 } else { next };
                tree(source, next, here, &mut found);
            }
            "use" => {
                here.push(source.word(at + 1).to_owned());
                if source.word(at + 2) == "::" && modules.contains(here.as_slice()) {
                    tree(source, at + 3, here, &mut found);
                }
            }
            _ => {}
        }
    }
    found
}

/// Reads one branch of a path from token `at`, below `path`; returns the token after it.
fn tree(
    source: &Source,
    mut at: usize,
    mut path: Vec<String>,
    found: &mut Vec<Reference>,
) -> usize {
    let line = source.tokens.get(at).map_or(1, |token| token.line);
    loop {
        match source.word(at) {
            "{" => {
                at += 1;
                while !matches!(source.word(at), "}" | "") {
                    at = tree(source, at, path.clone(), found).max(at + 1);
                    at += usize::from(source.word(at) == ",");
                }
                return at + 1;
            }
            "self" => {}
            word if word == "*" || word.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                path.push(word.to_owned());
            }
            _ => break,
        }
        at += 1;
        if source.word(at) != "::" {
            break;
        }
        at += 1;
    }
    let is_macro = source.word(at) == "!";
    let alias = (source.word(at) == "as").then(|| source.word(at + 1).to_owned());
    at += if alias.is_some() { 2 } else { 0 };
    found.push(Reference {
        path,
        alias,
        line,
        is_macro,
    });
    at
}
