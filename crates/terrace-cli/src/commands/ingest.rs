//! `terrace ingest`: builds tables from sorted lines, atomically.

use serde_json::json;
use terrace::{ErrorKind, Ingest};
use terrace_bench::units;

use super::load::{check_key, input_bar, name_of, open_input};
use crate::args::{IngestArgs, StoreArgs};
use crate::error::CliError;
use crate::format;
use crate::output::Output;
use crate::store::{Access, Store};

pub(super) fn ingest(args: &IngestArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let format = args.format.unwrap_or_else(|| format::of_name(&args.file));
    // Opens the input first: a misspelled name should not leave an empty database.
    let (mut input, total) = open_input(&args.file)?;
    let store = Store::open(&args.db, store, Access::Create)?;
    let name = name_of(&args.file);
    let bar = input_bar(total);
    let mut lines = Lines {
        name: &name,
        ingest: store.keyspace.ingest()?,
    };
    let mut line = Vec::new();
    let mut number = 0;
    let ended = loop {
        number += 1;
        match format::read_line(&mut input, &mut line) {
            Ok(false) => break Ok(()),
            Ok(true) => {}
            Err(source) => {
                break Err(CliError::Io {
                    what: format!("read {name} at line {number}"),
                    source,
                });
            }
        }
        bar.inc(line.len() as u64);
        let parsed = format::parse(format, number, &line).and_then(check_key);
        if let Err(e) = lines.add(number, parsed) {
            break Err(e);
        }
    };
    bar.finish_and_clear();
    let finished = match ended {
        Ok(()) => lines.ingest.finish().map_err(CliError::from),
        Err(e) => {
            drop(lines);
            Err(e)
        }
    };
    let closed = store.close();
    let report = finished?;
    closed?;
    let mut out = Output::new();
    if json {
        out.line(json!({ "ingested": report.entries, "bytes": report.bytes }))?;
    } else {
        let (entries, size) = (units::count(report.entries), units::bytes(report.bytes));
        out.line(format_args!(
            "ingested {entries} lines ({size} of keys and values)"
        ))?;
    }
    out.finish()
}

struct Lines<'a> {
    name: &'a str,
    ingest: Ingest,
}

impl Lines<'_> {
    fn add(
        &mut self,
        number: u64,
        parsed: Result<Option<format::Entry>, String>,
    ) -> Result<(), CliError> {
        let refuse = |problem: &str| {
            let name = self.name;
            CliError::Failed(format!(
                "{name}: line {number}: {problem}; nothing was ingested"
            ))
        };
        let Some(entry) = parsed.map_err(|problem| refuse(&problem))? else {
            return Ok(());
        };
        let added = match entry.expiry {
            Some(expiry) => self
                .ingest
                .add_with_expiry(&entry.key, &entry.value, expiry),
            None => self.ingest.add(&entry.key, &entry.value),
        };
        match added {
            Err(e) if e.kind() == ErrorKind::Invalid => Err(refuse(&e.to_string())),
            added => Ok(added?),
        }
    }
}
