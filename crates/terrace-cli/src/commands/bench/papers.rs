//! `terrace bench papers`: it finds comparisons and their results, and writes summaries and a page.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use terrace_bench::compare::Comparison;
use terrace_bench::papers::{Entry, Summary, page};
use terrace_bench::results;

use super::compare::{beside, check};
use crate::args::PapersArgs;
use crate::error::CliError;
use crate::output::Output;

/// The directory of comparisons with papers, in the root of the repository.
const FOLDER: &str = "papers";

/// Writes the summaries that have new results, and the page of all.
pub(super) fn papers(args: &PapersArgs) -> Result<(), CliError> {
    let files = match args.files.is_empty() {
        true => files_in(Path::new(FOLDER))?,
        false => args.files.clone(),
    };
    if args.results.is_some() && args.files.len() != 1 {
        return Err(CliError::Usage(
            "--results is of one comparison: give one FILE.toml".to_string(),
        ));
    }
    let mut out = Output::new();
    let mut entries = Vec::new();
    let mut seen: BTreeMap<PathBuf, &Path> = BTreeMap::new();
    let summaries = args.out.with_extension("");
    for file in &files {
        let comparison = Comparison::read(file, &check)?;
        if comparison.paper.is_none() {
            if args.files.is_empty() {
                continue;
            }
            return Err(CliError::Usage(format!(
                "{}: there is no [paper]: docs/benchmarking.md has its fields",
                file.display()
            )));
        }
        let name = file.file_name().unwrap_or_default();
        let path = summaries.join(name).with_extension("json");
        if let Some(other) = seen.insert(path.clone(), file) {
            return Err(CliError::Usage(format!(
                "{} and {} would have the same summary, {}: rename one",
                other.display(),
                file.display(),
                path.display()
            )));
        }
        let (summary, from) = summary(file, &comparison, args.results.as_deref(), &path)?;
        out.line(format_args!("{}: {from}", file.display()))?;
        entries.push(Entry {
            file: name.to_string_lossy().into_owned(),
            comparison,
            summary,
        });
    }
    if let Some(folder) = args.out.parent().filter(|f| !f.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|e| CliError::io("create", folder, e))?;
    }
    write(&args.out, &page(&entries))?;
    out.line(format_args!("page        {}", args.out.display()))?;
    out.finish()
}

/// Returns the comparisons in `folder`.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let none = || {
        let folder = folder.display();
        CliError::Usage(format!(
            "there is no {folder}/*.toml here: change to the root of the repository, or give files"
        ))
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(|_| none())? {
        let path = entry.map_err(|e| CliError::io("read", folder, e))?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            files.push(path);
        }
    }
    // The order of a directory is arbitrary, and errors should not depend on it.
    files.sort();
    match files.is_empty() {
        true => Err(none()),
        false => Ok(files),
    }
}

/// Returns the summary of a comparison, and where it comes from. If there are results, makes the
/// summary from them and writes it to `path`; otherwise reads that.
fn summary(
    file: &Path,
    comparison: &Comparison,
    given: Option<&Path>,
    path: &Path,
) -> Result<(Option<Summary>, String), CliError> {
    let failed =
        |path: &Path, what: String| CliError::Failed(format!("{}: {what}", path.display()));
    let results = beside(file, &given.map(Path::to_path_buf), "jsonl");
    if given.is_some() && !results.exists() {
        return Err(failed(&results, "there is no such file".to_string()));
    }
    let read = results::read(&results).map_err(|e| CliError::Failed(e.to_string()))?;
    let (made, left_out) = Summary::of(comparison, &read.records);
    let left_out = match left_out {
        0 => String::new(),
        phases => format!("; {phases} phases of other settings are left out"),
    };
    if let Some(made) = made {
        let text = made.to_text().map_err(|what| failed(path, what))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|e| CliError::io("create", folder, e))?;
        write(path, &text)?;
        let from = format!("refreshed from {}{left_out}", results.display());
        // The page is made from what is in the file, as it will be without the results.
        let kept = Summary::parse(&text).map_err(|what| failed(path, what))?;
        return Ok((Some(kept), from));
    }
    if !path.exists() {
        return Ok((None, format!("not run{left_out}")));
    }
    let text = fs::read_to_string(path).map_err(|e| CliError::io("read", path, e))?;
    let kept = Summary::parse(&text).map_err(|what| failed(path, what))?;
    Ok((Some(kept), format!("as in {}{left_out}", path.display())))
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    fs::write(path, text).map_err(|e| CliError::io("write", path, e))
}
