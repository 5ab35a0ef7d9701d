//! Links in documents: a relative link points at a file or folder of the tree.

use std::collections::BTreeSet;

use super::Violation;

/// Checks one document against the paths that exist.
pub(crate) fn check(
    path: &str,
    text: &str,
    paths: &BTreeSet<String>,
    violations: &mut Vec<Violation>,
) {
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        for target in targets(&without_code(line)) {
            if let Some(advice) = judge(path, &target, paths) {
                violations.push(Violation::new(path, index + 1, "link", advice));
            }
        }
    }
}

/// What is wrong with a link, if anything.
fn judge(document: &str, target: &str, paths: &BTreeSet<String>) -> Option<String> {
    let file = target.split('#').next().unwrap_or(target);
    if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
        return None;
    }
    if file.starts_with('/') {
        return Some(format!(
            "`{target}` is absolute; write it relative to this document"
        ));
    }
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Some(format!("`{target}` leaves the workspace"));
                }
            }
            name => parts.push(name),
        }
    }
    let resolved = parts.join("/");
    let exists = resolved.is_empty() || paths.contains(&resolved);
    (!exists).then(|| format!("`{target}` does not exist; fix the link or add the file"))
}

/// The line with its code spans blanked; what stands in them is no link.
fn without_code(line: &str) -> String {
    let spans = line.split('`').enumerate();
    spans
        .map(|(index, span)| if index % 2 == 0 { span } else { "code" })
        .collect()
}

/// The targets of `[text](target)` and of a definition `[name]: target`.
fn targets(line: &str) -> Vec<String> {
    let first = |text: &str| text.split_whitespace().next().unwrap_or("").to_owned();
    let mut found = Vec::new();
    for (at, mark) in line.match_indices("](") {
        let rest = &line[at + mark.len()..];
        found.push(first(rest.split(')').next().unwrap_or("")));
    }
    if let Some((name, target)) = line.split_once("]: ")
        && name.starts_with('[')
        && !name.contains(']')
    {
        found.push(first(target));
    }
    found
}
