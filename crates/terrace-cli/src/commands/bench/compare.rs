//! `terrace bench compare` and `terrace bench report`: they find files, handle Ctrl-C, and pass the
//! grammar of the command line to comparisons.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};

use terrace_bench::compare::{
    Checked, Comparison, Outcome, Scale, Task, absent, compare as carry_out,
};
use terrace_bench::compare::{outcome_of_any, program_id, runs};
use terrace_bench::{page, results};

use crate::args::{Cli, Command, CompareArgs, ReportArgs};
use crate::error::CliError;
use crate::output::Output;

/// Runs the comparison of the file, and writes a report of it.
pub(super) fn compare(args: &CompareArgs) -> Result<(), CliError> {
    let mut comparison = Comparison::read(&args.file, &check)?;
    if let Some(scale) = &args.scale {
        let shrunk = comparison.shrink(scale);
        shrunk.map_err(|e| CliError::Usage(format!("{}: {e}", args.file.display())))?;
    }
    if let Some(repeats) = args.repeats {
        *comparison.repeats.get_mut() = repeats;
    }
    let file = named_by(&args.file, args.scale.as_ref());
    if args.dry_run {
        return show_runs(&comparison);
    }
    let failed = |what: &str, source| CliError::Io {
        what: what.to_string(),
        source,
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|e| failed("listen for Ctrl-C", e))?;
    }
    // Results with pools elsewhere are of other runs.
    let pools = match &args.pool_mount {
        Some(_) => " with pools apart",
        None => "",
    };
    let found = carry_out(&Task {
        comparison: &comparison,
        results: beside(&file, &args.results, "jsonl"),
        mount: args.mount.clone(),
        pool_mount: args.pool_mount.clone(),
        program: std::env::current_exe().map_err(|e| failed("find this program", e))?,
        program_id: program_id().map_err(|e| failed("read this program", e))? + pools,
        check: &check,
        stop: &stop,
    })?;
    let report = report_folder(&file, &args.report);
    present(&comparison, &found, &report)?;
    if let Some(why) = &found.ended_early {
        return Err(CliError::Failed(format!(
            "{why} after {} of {} runs; run the same command again to continue",
            found.done, found.planned
        )));
    }
    match found.cells.failures().len() {
        0 => Ok(()),
        runs => Err(CliError::Failed(format!(
            "{runs} of {} runs failed; see the report, and run the same command again to retry \
             them",
            found.planned
        ))),
    }
}

/// Writes a report of existing results.
pub(super) fn report(args: &ReportArgs) -> Result<(), CliError> {
    let comparison = Comparison::read(&args.file, &check)?;
    let path = beside(&args.file, &args.results, "jsonl");
    let found = results::read(&path).map_err(|e| CliError::Failed(e.to_string()))?;
    if found.records.is_empty() {
        return Err(CliError::Failed(format!(
            "{} has no results: run \"terrace bench compare {}\" first",
            path.display(),
            args.file.display()
        )));
    }
    let outcome = outcome_of_any(&comparison, &found.records);
    present(
        &comparison,
        &outcome,
        &report_folder(&args.file, &args.report),
    )
}

/// Writes the report and prints its summary.
fn present(comparison: &Comparison, found: &Outcome, folder: &Path) -> Result<(), CliError> {
    page::write(comparison, found, folder)?;
    let mut text = String::new();
    found
        .write(&mut text, comparison)
        .map_err(|e| CliError::Failed(format!("cannot write the summary: {e}")))?;
    let mut out = Output::new();
    out.line(text.trim_end())?;
    out.line(format_args!(
        "report      {}",
        folder.join("index.html").display()
    ))?;
    out.finish()
}

fn show_runs(comparison: &Comparison) -> Result<(), CliError> {
    let mut out = Output::new();
    let absent = absent(comparison);
    for (store, brings) in &absent {
        out.line(format_args!("# {store}: {brings}"))?;
    }
    for run in runs(comparison, "") {
        if !absent.iter().any(|(store, _)| *store == run.planned.store) {
            out.line(&run.planned.command)?;
        }
    }
    out.finish()
}

/// Returns the base name of results and report: the file, and for a trial also its scale, so that
/// trials never mix with full runs.
fn named_by(file: &Path, scale: Option<&Scale>) -> PathBuf {
    let Some(scale) = scale else {
        return file.to_path_buf();
    };
    let mut name = file.file_stem().unwrap_or_default().to_os_string();
    name.push(format!(
        "-scale-{}.toml",
        scale.to_string().replace('/', "-")
    ));
    file.with_file_name(name)
}

pub(super) fn beside(file: &Path, given: &Option<PathBuf>, extension: &str) -> PathBuf {
    given
        .clone()
        .unwrap_or_else(|| file.with_extension(extension))
}

fn report_folder(file: &Path, given: &Option<PathBuf>) -> PathBuf {
    let mut name = file.file_stem().unwrap_or_default().to_os_string();
    name.push("-report");
    given.clone().unwrap_or_else(|| file.with_file_name(name))
}

/// Checks arguments against the command line; returns the bytes that a run may need, or an error.
pub(super) fn check(arguments: &[String], checked: Checked) -> Result<u64, String> {
    let start = ["terrace", "bench"].map(String::from);
    let cli = Cli::try_parse_from(start.iter().chain(arguments)).map_err(|e| {
        // The first paragraph is the error; the usage after it is of the command line.
        let text = e.to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        let first = first.trim().trim_start_matches("error: ");
        first.split_whitespace().collect::<Vec<_>>().join(" ")
    })?;
    let Command::Bench(args) = &cli.command else {
        return Err("only options of terrace bench can be settings".to_string());
    };
    if args.command.is_some() {
        return Err("only options of terrace bench can be settings".to_string());
    }
    if checked == Checked::Setting {
        return Ok(0);
    }
    let config = super::config(args, &cli.store).map_err(|e| e.to_string())?;
    if config.store.is_built() {
        config.validate()?;
    }
    Ok(config.needed_bytes())
}
