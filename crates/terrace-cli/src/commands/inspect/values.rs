//! `terrace value-dump`.

use serde_json::json;
use terrace::inspect::{self, ValuePiece};
use terrace_bench::units;

use super::{EntryPrinter, fact, print_problem, verdict};
use crate::args::ValueDumpArgs;
use crate::error::CliError;
use crate::output::Output;

pub(in crate::commands) fn dump(args: &ValueDumpArgs, json: bool) -> Result<(), CliError> {
    let mut out = Output::new();
    let mut entries = EntryPrinter::new(&args.show, json)?;
    let found = inspect::value_file(&args.file, &mut |piece| match piece {
        ValuePiece::Value(_, entry) => entries.print(&entry, &mut out),
        ValuePiece::Problem(finding) => print_problem(&finding, &mut out, json),
        _ => Ok(()),
    })?;
    match json {
        true => out.line(json!({
            "type": "summary",
            "number": found.number,
            "file_bytes": found.file_bytes,
            "values": found.values,
            "problems": found.problems,
        }))?,
        false => {
            fact(&mut out, "number", found.number)?;
            fact(&mut out, "file", units::bytes(found.file_bytes))?;
            fact(&mut out, "values", units::count(found.values))?;
            fact(&mut out, "problems", found.problems)?;
        }
    }
    verdict(&args.file.display().to_string(), found.problems, out)
}
