//! Compares sources with a git revision, token by token, without comments and docs.
//!
//! It proves that a change of comments changes no code. String literals may differ and are then
//! listed, so that a message can be reworded too; byte strings and characters may not.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::tidy::source::tokens_with_literals;

/// The files that differ, one a line, and whether one differs in code.
pub(crate) struct Report {
    pub(crate) text: String,
    pub(crate) differs: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Difference {
    Nothing,
    Strings,
    /// The first tokens that differ, before and after.
    Code(String, String),
}

/// Compares the `.rs` files of the working tree `root` with those of `revision`.
pub(crate) fn compare(root: &Path, revision: &str) -> io::Result<Report> {
    let changed = &[
        "diff",
        "--name-only",
        "--no-renames",
        revision,
        "--",
        "*.rs",
    ];
    let untracked = &["ls-files", "--others", "--exclude-standard", "--", "*.rs"];
    let paths = git(root, changed)? + &git(root, untracked)?;
    let (mut text, mut differs, mut count) = (String::new(), false, 0);
    for path in paths.lines() {
        // A file that one side does not have is empty there.
        let before = git(root, &["show", &format!("{revision}:./{path}")]).unwrap_or_default();
        let after = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        count += 1;
        match difference(&before, &after) {
            Difference::Nothing => {}
            Difference::Strings => {
                let _ = writeln!(text, "{path}: strings differ");
            }
            Difference::Code(before, after) => {
                differs = true;
                let _ = writeln!(text, "{path}: code differs: `{before}` is now `{after}`");
            }
        }
    }
    let result = if differs { "code differs" } else { "same code" };
    let _ = writeln!(text, "same-code: {count} files changed, {result}");
    Ok(Report { text, differs })
}

fn difference(before: &str, after: &str) -> Difference {
    let (before, after) = (tokens_with_literals(before), tokens_with_literals(after));
    let is_string = |token: &str| token.starts_with('"') || is_raw(token);
    let mut strings = false;
    for at in 0..before.len().max(after.len()) {
        let token = |tokens: &[String]| tokens.get(at).cloned().unwrap_or_default();
        let (old, new) = (token(&before), token(&after));
        if old != new {
            if !is_string(&old) || !is_string(&new) {
                return Difference::Code(old, new);
            }
            strings = true;
        }
    }
    if strings {
        Difference::Strings
    } else {
        Difference::Nothing
    }
}

/// Whether a token is a raw string, and no identifier that begins with its letter.
fn is_raw(token: &str) -> bool {
    let rest = token.strip_prefix('r').unwrap_or_default();
    rest.trim_start_matches('#').starts_with('"')
}

fn git(root: &Path, args: &[&str]) -> io::Result<String> {
    let output = Command::new("git").current_dir(root).args(args).output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(message.trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_may_differ_and_code_may_not() {
        let before = "/// Adds.\nfn f<'a>() { g(\"a // b\", 'c', b\"d\") /* so */ }";
        let code = |old: &str, new: &str| Difference::Code(old.to_owned(), new.to_owned());
        let now = |from: &str, to: &str| difference(before, &before.replace(from, to));
        assert_eq!(now("Adds", "Adds it"), Difference::Nothing);
        assert_eq!(now("/* so */", "// so\n"), Difference::Nothing);
        assert_eq!(now("a // b", "a // c"), Difference::Strings);
        assert_eq!(now("\"a // b\"", "r#\"a\"#"), Difference::Strings);
        assert_eq!(now("'c'", "'d'"), code("'c'", "'d'"));
        assert_eq!(now("b\"d\"", "b\"e\""), code("b\"d\"", "b\"e\""));
        assert_eq!(now("g(", "g(1, "), code("\"a // b\"", "1"));
        assert_eq!(difference(before, ""), code("fn", ""));
    }
}
