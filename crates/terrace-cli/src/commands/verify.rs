//! `terrace verify`: reads and checks everything.

use std::path::Path;

use serde_json::json;
use terrace_bench::{Table, units};

use crate::args::StoreArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::store::{Access, bar, open, show};

pub(super) fn verify(path: &Path, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let db = open(path, store, Access::Read)?;
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
            "filters": report.filters.iter().map(|filters| json!({
                "level": filters.level,
                "tables": filters.table_count,
                "asked": filters.asked_count,
                "passed": filters.passed_count,
            })).collect::<Vec<_>>(),
            "problems": report.problems,
            "records_stranded": db.recovery().records_stranded,
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
        if !report.filters.is_empty() {
            let mut table = Table::new(&["filters", "tables", "false positives"]);
            for filters in &report.filters {
                table.row([
                    format!("level {}", filters.level),
                    units::count(filters.table_count),
                    format!("{:.3} %", 100.0 * filters.false_positives()),
                ]);
            }
            out.line(table)?;
        }
        for problem in &report.problems {
            out.line(format_args!("problem: {problem}"))?;
        }
        let stranded = db.recovery().records_stranded;
        if stranded > 0 {
            out.line(format_args!(
                "log records behind one that is not whole, which opening left out: {}. They were \
                 being written at a crash, or what is before them is damaged",
                units::count(stranded)
            ))?;
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
