//! `terrace verify`: reads and checks everything.

use std::path::Path;

use serde_json::json;
use terrace_bench::units;

use crate::args::StoreArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::store::{Missing, bar, open, show};

pub(super) fn verify(path: &Path, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let db = open(path, store, Missing::Fail)?;
    let bar = bar("verifying");
    let verified = db.verify(&mut |progress| show(&bar, &progress));
    bar.finish_and_clear();
    let report = verified?;
    let mut out = Output::new();
    if json {
        out.line(json!({
            "sound": report.problems.is_empty(),
            "entries": report.entries,
            "live_entries": report.live_entries,
            "tombstones": report.tombstones,
            "tables": report.tables,
            "bytes": report.bytes,
            "problems": report.problems,
        }))?;
    } else {
        out.line(format_args!(
            "read {} entries ({} live, {} tombstones) in {} tables, {}",
            units::count(report.entries),
            units::count(report.live_entries),
            units::count(report.tombstones),
            units::count(report.tables),
            units::bytes(report.bytes),
        ))?;
        for problem in &report.problems {
            out.line(format_args!("problem: {problem}"))?;
        }
        if report.problems.is_empty() {
            out.line("the database is intact")?;
        }
    }
    out.finish()?;
    // A database with problems stays unchanged: closing it would write to it.
    match report.problems.len() {
        0 => Ok(db.close()?),
        1 => Err(CliError::Failed("the database has 1 problem".to_string())),
        n => Err(CliError::Failed(format!("the database has {n} problems"))),
    }
}
