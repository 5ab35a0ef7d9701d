//! `terrace log-dump`: prints one log, or lists the logs of a database or a pool if none is chosen.

use serde_json::json;
use terrace::inspect::{self, LogPiece, LogPlace, LogSummary};
use terrace_bench::{Table, units};

use super::{EntryPrinter, fact, print_problem, verdict};
use crate::args::LogDumpArgs;
use crate::error::CliError;
use crate::output::Output;

pub(in crate::commands) fn dump(args: &LogDumpArgs, json: bool) -> Result<(), CliError> {
    if args.id.is_none() && (args.path.is_dir() || !is_log_file(args)) {
        return list(args, json);
    }
    let mut out = Output::new();
    let mut printer = EntryPrinter::new(&args.show, json)?;
    if args.records && !json {
        out.line("      offset       bytes     entries     first seq")?;
    }
    let mut visit = |piece: LogPiece<'_>| match piece {
        LogPiece::Record {
            offset,
            bytes,
            entries,
            stranded,
            ..
        } => {
            if args.records {
                let seq = entries.first().map(|entry| entry.seq);
                let record = (offset, bytes, entries.len(), seq, stranded);
                print_record(record, &mut out, json)?;
            }
            entries
                .iter()
                .try_for_each(|entry| printer.print(entry, &mut out))
        }
        LogPiece::Problem(finding) => print_problem(&finding, &mut out, json),
        _ => Ok(()),
    };
    let found = match args.id {
        Some(id) => inspect::pool_log(&args.path, id, &mut visit)?,
        None => inspect::file_log(&args.path, &mut visit)?,
    };
    summary(&found, &mut out, json)?;
    verdict("the log", found.problems, out)
}

/// Returns whether the path is, by its name, a log file and not a pool.
fn is_log_file(args: &LogDumpArgs) -> bool {
    let name = args.path.file_name().unwrap_or_default();
    name.to_string_lossy().ends_with(".log")
}

fn list(args: &LogDumpArgs, json: bool) -> Result<(), CliError> {
    let mut out = Output::new();
    let mut table = Table::new(&["log", "place", "offset", "bytes"]);
    for place in inspect::logs(&args.path)? {
        let (id, path, at) = match &place {
            LogPlace::File { id, path, .. } => (id, path, None),
            LogPlace::Pool {
                id,
                path,
                offset,
                bytes,
                ..
            }
            | LogPlace::List {
                id,
                path,
                offset,
                bytes,
                ..
            } => (id, path, Some((offset, bytes))),
            _ => continue,
        };
        let path = path.display().to_string();
        if json {
            out.line(json!({
                "type": "log",
                "id": id,
                "path": path,
                "offset": at.map(|(offset, _)| offset),
                "bytes": at.map(|(_, bytes)| bytes),
            }))?;
            continue;
        }
        let text = |number: Option<&u64>| number.map(u64::to_string).unwrap_or_default();
        let (offset, bytes) = (at.map(|(offset, _)| offset), at.map(|(_, bytes)| bytes));
        table.row([id.to_string(), path, text(offset), text(bytes)]);
    }
    if !json {
        match table.is_empty() {
            true => out.line("there is no log")?,
            false => out.bytes(table.to_string().as_bytes())?,
        }
    }
    out.finish()
}

fn print_record(
    (offset, bytes, entries, seq, stranded): (u64, u64, usize, Option<u64>, bool),
    out: &mut Output,
    json: bool,
) -> Result<(), CliError> {
    if json {
        return out.line(json!({
            "type": "record",
            "offset": offset,
            "bytes": bytes,
            "entries": entries,
            "first_seq": seq,
            "stranded": stranded,
        }));
    }
    let seq = seq.unwrap_or_default();
    let note = if stranded { "  not replayed" } else { "" };
    out.line(format_args!(
        "{offset:>12}  {bytes:>10}  {entries:>10}  {seq:>12}{note}"
    ))
}

fn summary(found: &LogSummary, out: &mut Output, json: bool) -> Result<(), CliError> {
    if json {
        return out.line(json!({
            "type": "summary",
            "log": found.id,
            "offset": found.offset,
            "bytes": found.bytes,
            "records": found.records,
            "stranded": found.stranded,
            "torn": found.torn,
            "problems": found.problems,
        }));
    }
    let id = found.id.map_or("unknown".into(), |id| id.to_string());
    fact(out, "log", id)?;
    fact(out, "records", found.records)?;
    fact(out, "bytes used", units::bytes(found.bytes))?;
    if found.torn {
        fact(out, "end", "an incomplete record")?;
    }
    if found.stranded > 0 {
        let text = "records beyond the end of a replay";
        fact(
            out,
            "not replayed",
            format_args!("{} {text}", found.stranded),
        )?;
    }
    if found.problems == 0 {
        out.line("the log is intact")?;
    }
    Ok(())
}
