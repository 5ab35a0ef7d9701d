//! Chores of the Terrace workspace, run as `cargo xtask <command>`.
//!
//! `tidy` checks the rules that keep the tree readable: import direction, byte layouts, file
//! length, reachable modules, links. STYLE.md says why each rule exists. `prose` and `same-code`
//! support changes of comments. All commands read sources as text and need no other crate, so they
//! build quickly.

mod prose;
mod same_code;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command>

commands:
  tidy [DIR]      check the rules of STYLE.md; DIR is the workspace by default
  lines [DIR]     count the lines of code, without comments and tests, of each crate and directory
  prose [PATH..]  count the lines of comments that match patterns of style to avoid, by crate
  same-code REV   fail if a source differs from git revision REV in more than comments and strings
  help            print this text
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|command| command == "prose").is_some() {
        return prose(&workspace(), &args.collect::<Vec<_>>());
    }
    match (args.next().as_deref(), args.next(), args.next()) {
        (Some("tidy"), folder, None) => tidy(folder.map_or_else(workspace, PathBuf::from)),
        (Some("lines"), folder, None) => lines(&folder.map_or_else(workspace, PathBuf::from)),
        (Some("same-code"), Some(revision), None) => same_code(&workspace(), &revision),
        (Some("help" | "--help" | "-h"), None, None) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The workspace that Cargo runs this binary for, two folders above the crate; without Cargo, the
/// current folder. Asked at run time, since clones that share a target folder share the binary.
fn workspace() -> PathBuf {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let workspace = folder
        .as_deref()
        .and_then(|folder| folder.ancestors().nth(2));
    workspace.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

fn lines(root: &Path) -> ExitCode {
    match tidy::Tree::read(root) {
        Ok(tree) => {
            print!("{}", tidy::lines(&tree));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("lines: cannot read {}: {error}", root.display());
            ExitCode::from(2)
        }
    }
}

fn prose(root: &Path, paths: &[String]) -> ExitCode {
    match tidy::Tree::read(root) {
        Ok(tree) => {
            print!("{}", prose::table(tree.sources(), paths));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("prose: cannot read {}: {error}", root.display());
            ExitCode::from(2)
        }
    }
}

fn same_code(root: &Path, revision: &str) -> ExitCode {
    match same_code::compare(root, revision) {
        Ok(report) => {
            print!("{}", report.text);
            ExitCode::from(u8::from(report.differs))
        }
        Err(error) => {
            eprintln!("same-code: {error}");
            ExitCode::from(2)
        }
    }
}

fn tidy(root: PathBuf) -> ExitCode {
    let tree = match tidy::Tree::read(&root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: cannot read {}: {error}", root.display());
            return ExitCode::from(2);
        }
    };
    let violations = tidy::check(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    if violations.is_empty() {
        println!("tidy: {} files, nothing to do", tree.file_count());
        return ExitCode::SUCCESS;
    }
    eprintln!("tidy: {} to fix", violations.len());
    ExitCode::FAILURE
}
