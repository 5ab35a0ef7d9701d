//! `terrace manifest-dump`.

use serde_json::{Map, Value, json};
use terrace::inspect::{self, Change, Field, ManifestPiece, ManifestSummary};

use super::{fact, key_json, key_text, print_problem, verdict};
use crate::args::ManifestDumpArgs;
use crate::error::CliError;
use crate::output::Output;

pub(in crate::commands) fn dump(args: &ManifestDumpArgs, json: bool) -> Result<(), CliError> {
    let mut out = Output::new();
    let found = inspect::manifest(&args.path, &mut |piece| match piece {
        ManifestPiece::Edit {
            number,
            offset,
            changes,
            ..
        } if args.edits => print_edit(number, offset, changes, &mut out, json),
        ManifestPiece::Problem(finding) => print_problem(&finding, &mut out, json),
        _ => Ok(()),
    })?;
    summary(&found, &mut out, json)?;
    verdict("the manifest", found.problems, out)
}

fn print_edit(
    number: u64,
    offset: u64,
    changes: &[Change],
    out: &mut Output,
    json: bool,
) -> Result<(), CliError> {
    if json {
        let changes: Vec<_> = changes.iter().map(as_json).collect();
        return out.line(json!({
            "type": "edit",
            "number": number,
            "offset": offset,
            "changes": changes,
        }));
    }
    out.line(format_args!("edit {number} at offset {offset}"))?;
    changes.iter().try_for_each(|change| print(change, out))
}

fn print(change: &Change, out: &mut Output) -> Result<(), CliError> {
    let mut line = format!("  {:<24}", change.name);
    for (name, field) in &change.fields {
        let value = match field {
            Field::Number(number) => number.to_string(),
            Field::Span { offset, bytes } => format!("{offset:#x}+{bytes}"),
            Field::Key(keyspace, key) => key_text(&(*keyspace, key.clone())),
            Field::Part { id, bytes } => format!("{id} ({bytes} bytes of it)"),
            _ => continue,
        };
        line.push_str(&format!("  {name} {value}"));
    }
    out.line(line)
}

fn as_json(change: &Change) -> Value {
    let mut object = Map::new();
    object.insert("change".into(), change.name.clone().into());
    for (name, field) in &change.fields {
        let value = match field {
            Field::Number(number) => Value::from(*number),
            Field::Span { offset, bytes } => json!({ "offset": offset, "bytes": bytes }),
            Field::Key(keyspace, key) => key_json(&(*keyspace, key.clone())),
            Field::Part { id, bytes } => json!({ "number": id, "bytes": bytes }),
            _ => continue,
        };
        // A table has one or more extents, or value files: programs always get a list.
        let list = match *name {
            "extent" => "extents",
            "value_file" => "value_files",
            name => {
                object.insert(name.into(), value);
                continue;
            }
        };
        match object.get_mut(list) {
            Some(Value::Array(all)) => all.push(value),
            _ => drop(object.insert(list.into(), json!([value]))),
        }
    }
    Value::Object(object)
}

fn summary(found: &ManifestSummary, out: &mut Output, json: bool) -> Result<(), CliError> {
    if json {
        let state: Vec<_> = found.state.iter().map(as_json).collect();
        return out.line(json!({
            "type": "summary",
            "path": found.path.display().to_string(),
            "offset": found.offset,
            "generation": found.generation,
            "edits": found.edits,
            "torn": found.torn,
            "problems": found.problems,
            "state": state,
        }));
    }
    let (path, offset) = (found.path.display(), found.offset);
    fact(out, "manifest", format_args!("{path}, offset {offset:#x}"))?;
    fact(out, "generation", found.generation)?;
    fact(out, "edits", found.edits)?;
    if found.torn {
        fact(out, "end", "an incomplete edit")?;
    }
    out.line("state")?;
    found
        .state
        .iter()
        .try_for_each(|change| print(change, out))?;
    if found.problems == 0 {
        out.line("the manifest is intact")?;
    }
    Ok(())
}
