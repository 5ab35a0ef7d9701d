//! `terrace sst-dump`.

use serde_json::{Map, Value, json};
use terrace::inspect::{self, TableBlock, TablePiece, TableSummary};
use terrace_bench::units;

use super::{EntryPrinter, fact, key_json, key_text, print_problem, verdict};
use crate::args::SstDumpArgs;
use crate::error::CliError;
use crate::output::Output;

pub(in crate::commands) fn dump(args: &SstDumpArgs, json: bool) -> Result<(), CliError> {
    let mut out = Output::new();
    let mut entries = EntryPrinter::new(&args.show, json)?;
    if args.blocks && !json {
        out.line("      offset  block            stored     content     entries")?;
    }
    let found = inspect::table(&args.file, &mut |piece| match piece {
        TablePiece::Entry(entry) => entries.print(&entry, &mut out),
        TablePiece::Block(block) if args.blocks => print_block(&block, &mut out, json),
        TablePiece::Problem(finding) => print_problem(&finding, &mut out, json),
        TablePiece::RangeDelete {
            keyspace,
            begin,
            end,
            seq,
        } => entries.range((keyspace, begin, end), seq, &mut out),
        _ => Ok(()),
    })?;
    summary(&found, &mut out, json)?;
    verdict(&args.file.display().to_string(), found.problems, out)
}

fn print_block(block: &TableBlock, out: &mut Output, json: bool) -> Result<(), CliError> {
    let TableBlock {
        kind,
        offset,
        stored_bytes,
        content_bytes,
        entries,
        ..
    } = block;
    if json {
        return out.line(json!({
            "type": "block",
            "kind": kind,
            "offset": offset,
            "stored_bytes": stored_bytes,
            "content_bytes": content_bytes,
            "entries": entries,
        }));
    }
    out.line(format_args!(
        "{offset:>12}  {kind:<13}{stored_bytes:>10}  {content_bytes:>10}  {entries:>10}"
    ))
}

fn summary(found: &TableSummary, out: &mut Output, json: bool) -> Result<(), CliError> {
    let properties = found.properties.iter();
    if json {
        let properties: Map<_, _> = properties
            .map(|(name, value)| ((*name).to_string(), Value::from(*value)))
            .collect();
        let keys = found.keys.as_ref();
        return out.line(json!({
            "type": "summary",
            "table": found.number,
            "file_bytes": found.file_bytes,
            "first": keys.map(|keys| key_json(&keys[0])),
            "last": keys.map(|keys| key_json(&keys[1])),
            "properties": properties,
            "blocks_read": found.blocks,
            "entries_read": found.entries,
            "problems": found.problems,
        }));
    }
    let number = found.number.map_or("unknown".into(), |n| n.to_string());
    fact(out, "table", number)?;
    fact(out, "file", units::bytes(found.file_bytes))?;
    if let Some([first, last]) = &found.keys {
        fact(out, "first key", key_text(first))?;
        fact(out, "last key", key_text(last))?;
    }
    for (name, value) in properties {
        fact(out, &name.replace('_', " "), value)?;
    }
    fact(out, "blocks read", found.blocks)?;
    fact(out, "entries read", found.entries)?;
    if found.problems == 0 {
        out.line("the table is intact")?;
    }
    Ok(())
}
