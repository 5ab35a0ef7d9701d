//! The commands that inspect files, and their shared code: printing entries, problems and the final
//! verdict.
//!
//! People get aligned columns with escaped bytes; with `--json`, programs get an object a line,
//! whose `type` gives its kind. The last line is the summary.

pub(super) mod log;
pub(super) mod manifest;
pub(super) mod table;
pub(super) mod values;

use serde_json::{Map, Value, json};
use terrace::inspect::{Entry, Finding, Kind};

use super::get_put::bytes_of;
use crate::args::EntryArgs;
use crate::error::CliError;
use crate::format::escape::escaped;
use crate::output::{Output, insert_bytes};

/// Prints the entries that the user selected.
struct EntryPrinter {
    wanted: bool,
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
    left: u64,
    keys_only: bool,
    json: bool,
}

impl EntryPrinter {
    fn new(args: &EntryArgs, json: bool) -> Result<EntryPrinter, CliError> {
        let key = |key: &Option<std::ffi::OsString>| {
            let key = key.as_deref();
            key.map(|key| bytes_of(key, &args.text)).transpose()
        };
        let (from, to) = (key(&args.from)?, key(&args.to)?);
        Ok(EntryPrinter {
            wanted: args.entries || from.is_some() || to.is_some() || args.limit.is_some(),
            from,
            to,
            left: args.limit.unwrap_or(u64::MAX),
            keys_only: args.keys_only,
            json,
        })
    }

    fn print(&mut self, entry: &Entry<'_>, out: &mut Output) -> Result<(), CliError> {
        if entry.kind == Kind::RangeDelete {
            return self.range((entry.keyspace, entry.key, entry.value), entry.seq, out);
        }
        let inside = self
            .from
            .as_ref()
            .is_none_or(|from| entry.key >= from.as_slice())
            && self.to.as_ref().is_none_or(|to| entry.key < to.as_slice());
        if !self.wanted || !inside || self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        let kind = match entry.kind {
            Kind::Other(raw) => format!("kind-{raw}"),
            kind => kind.name().to_string(),
        };
        if self.json {
            let mut object = Map::new();
            object.insert("type".into(), "entry".into());
            object.insert("seq".into(), entry.seq.into());
            object.insert("kind".into(), kind.into());
            object.insert("keyspace".into(), entry.keyspace.into());
            insert_bytes(&mut object, "key", entry.key);
            if let Some(place) = entry.place {
                object.insert("value_file".into(), place.file.into());
                object.insert("value_offset".into(), place.offset.into());
                object.insert("value_bytes".into(), place.bytes.into());
            } else if !self.keys_only && entry.kind != Kind::Delete {
                insert_bytes(&mut object, "value", entry.value);
            }
            if let Some(expiry) = entry.expiry {
                object.insert("expiry_ms".into(), expiry.into());
            }
            return out.line(Value::Object(object));
        }
        let mut line = format!(
            "{:>12}  {kind:<6}  {:>3}  {}",
            entry.seq,
            entry.keyspace,
            escaped(entry.key)
        );
        if let Some(place) = entry.place {
            line.push_str(&format!(
                "\t({} bytes in value file {} at {})",
                place.bytes, place.file, place.offset
            ));
        } else if !self.keys_only && entry.kind != Kind::Delete {
            line.push('\t');
            line.push_str(&escaped(entry.value));
        }
        if let Some(expiry) = entry.expiry {
            line.push_str(&format!("\t(expires at {expiry} ms)"));
        }
        out.line(line)
    }

    /// Prints a range delete, from one key up to another, or to the last one if that is empty.
    fn range(
        &mut self,
        (keyspace, begin, end): (u32, &[u8], &[u8]),
        seq: u64,
        out: &mut Output,
    ) -> Result<(), CliError> {
        let from = self.from.as_deref().unwrap_or_default();
        let overlaps = (end.is_empty() || end > from)
            && self.to.as_ref().is_none_or(|to| begin < to.as_slice());
        if !self.wanted || !overlaps || self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        if self.json {
            let mut object = Map::new();
            object.insert("type".into(), "range-delete".into());
            object.insert("seq".into(), seq.into());
            object.insert("keyspace".into(), keyspace.into());
            insert_bytes(&mut object, "begin", begin);
            insert_bytes(&mut object, "end", end);
            return out.line(Value::Object(object));
        }
        let begin = escaped(begin);
        let end = match end {
            [] => "the end".into(),
            end => escaped(end),
        };
        out.line(format_args!(
            "{seq:>12}  range   {keyspace:>3}  {begin}\tup to {end}"
        ))
    }
}

fn print_problem(finding: &Finding, out: &mut Output, json: bool) -> Result<(), CliError> {
    let Finding {
        offset,
        problem,
        lost,
    } = finding;
    if json {
        let lost = lost.as_ref().map(|keys| {
            json!({
                "after": keys.after.as_ref().map(key_json),
                "up_to": keys.up_to.as_ref().map(key_json),
            })
        });
        return out.line(json!({
            "type": "problem", "offset": offset, "problem": problem, "lost_keys": lost,
        }));
    }
    out.line(format_args!("problem at offset {offset}: {problem}"))?;
    let Some(keys) = lost else {
        return Ok(());
    };
    let end = |key: &Option<_>, none: &str| key.as_ref().map_or(none.to_string(), key_text);
    let (after, up_to) = (end(&keys.after, "the first"), end(&keys.up_to, "the last"));
    out.line(format_args!("  lost with it: keys from {after} to {up_to}"))
}

/// Prints a line of a summary for people.
fn fact(out: &mut Output, name: &str, value: impl std::fmt::Display) -> Result<(), CliError> {
    out.line(format_args!("{name:<18}{value}"))
}

/// Formats a key with its keyspace for people. Files alone only give the names of the keyspaces
/// that every database has.
pub(super) fn key_text((keyspace, key): &(u32, Vec<u8>)) -> String {
    let name = match keyspace {
        0 => ", the catalog",
        1 => ", default",
        _ => "",
    };
    format!("{} (keyspace {keyspace}{name})", escaped(key))
}

/// Formats a key with its keyspace for programs.
pub(super) fn key_json((keyspace, key): &(u32, Vec<u8>)) -> Value {
    let mut object = Map::new();
    object.insert("keyspace".into(), (*keyspace).into());
    insert_bytes(&mut object, "key", key);
    Value::Object(object)
}

/// Ends a dump: flushes the output, and turns problems into the exit code.
fn verdict(what: &str, problems: u64, out: Output) -> Result<(), CliError> {
    out.finish()?;
    match problems {
        0 => Ok(()),
        1 => Err(CliError::Failed(format!("{what} has 1 problem"))),
        n => Err(CliError::Failed(format!("{what} has {n} problems"))),
    }
}
