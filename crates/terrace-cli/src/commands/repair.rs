//! `terrace repair`: makes a new database of the readable data of a damaged one.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use terrace::{
    Db, Design, Loss, Options, RepairOutcome, RepairPart, RepairReport, RepairSource,
    RepairedKeyspace,
};
use terrace_bench::{Table, units};

use super::inspect::{key_json, key_text};
use crate::args::{RepairArgs, StoreArgs};
use crate::error::CliError;
use crate::output::Output;
use crate::store::{POOL_FILE, apply, bar, pool_path, show};

pub(super) fn repair(args: &RepairArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let mut source = RepairSource::new(&args.source);
    if let Some(pool) = store.pool.as_ref().and_then(pool_path) {
        source = source.pool(args.source.join(pool));
    }
    let bar = bar("reading");
    let shown = bar.clone();
    let made = Db::builder(&args.target)
        .options(options(args, store))
        .progress(move |progress| show(&shown, progress))
        .repair_of(&source);
    bar.finish_and_clear();
    let report = made?;
    let mut out = Output::new();
    match json {
        true => print_json(&report, &args.target, &mut out)?,
        false => {
            print(&report, &args.target, &mut out)?;
            let unknown = store.design.is_none() && design_of(&args.source).is_none();
            if let Some(design) = design_of(&args.target).filter(|_| unknown) {
                out.line(format_args!(
                    "the design of the damaged database is unknown without its OPTIONS: the new \
                     one has the design {design}; --design chooses another"
                ))?;
            }
        }
    }
    out.finish()?;
    let lost = report.losses.iter().filter(|loss| loss.certain).count();
    let (from, to) = (args.source.display(), args.target.display());
    match report.outcome {
        RepairOutcome::Whole | RepairOutcome::Uncertain => Ok(()),
        RepairOutcome::Nothing => Err(CliError::NothingFound(format!(
            "nothing in {from} is readable, so no database was created"
        ))),
        _ if lost == 0 => Err(CliError::Partly(format!(
            "{to} has all data found in {from}, but other data may be missing: see the report"
        ))),
        _ => Err(CliError::Partly(format!(
            "{to} has the readable data of {from}, but some data is lost: see the report"
        ))),
    }
}

/// Returns the design of a database, if its options can be read.
fn design_of(path: &Path) -> Option<Design> {
    Options::load(path).ok().flatten()?.design
}

/// Returns the options of the new database: those of the user override those of the damaged one, if
/// these can be read.
fn options(args: &RepairArgs, store: &StoreArgs) -> Options {
    // If the options are damaged, the report says so.
    let stored = Options::load(&args.source).ok().flatten();
    let mut options = stored.unwrap_or_else(|| {
        let mut options = Options::default();
        let has_pool = store.pool.as_ref().and_then(pool_path).is_some();
        if has_pool || args.source.join(POOL_FILE).exists() {
            options.pool.path = Some(POOL_FILE.into());
        }
        options
    });
    // A new pool must not replace that of the damaged database, which --pool names.
    let elsewhere = |pool: &PathBuf| pool.is_absolute();
    if options.pool.path.as_ref().is_some_and(elsewhere) {
        options.pool.path = Some(POOL_FILE.into());
    }
    let mut given = store.clone();
    given.pool.clone_from(&args.to_pool);
    apply(&given, &mut options);
    options
}

fn print(report: &RepairReport, target: &Path, out: &mut Output) -> Result<(), CliError> {
    out.line("part              number  state       entries  file")?;
    for part in &report.parts {
        print_part(part, out)?;
    }
    for loss in &report.losses {
        print_loss(loss, out)?;
    }
    if report.outcome == RepairOutcome::Nothing {
        return Ok(());
    }
    out.line("")?;
    let mut table = Table::new(&["keyspace", "number", "pairs"]);
    for keyspace in &report.keyspaces {
        let name = match keyspace.renamed {
            true => format!("{} (original name lost)", keyspace.name),
            false => keyspace.name.clone(),
        };
        let (id, pairs) = (keyspace.id.to_string(), units::count(keyspace.pairs));
        table.row([name, id, pairs]);
    }
    out.bytes(table.to_string().as_bytes())?;
    out.line(match report.outcome {
        RepairOutcome::Nothing => "nothing: no entry is readable",
        RepairOutcome::Partly => "partly: some data is lost or may be lost",
        RepairOutcome::Uncertain => {
            "uncertain: no known loss, but the logs may have had more records"
        }
        RepairOutcome::Whole => "whole: no loss",
        _ => report.outcome.name(),
    })?;
    out.line(format_args!(
        "read {} entries in {}; the new database is {}",
        units::count(report.entries),
        units::time(report.elapsed),
        target.display()
    ))
}

fn print_part(part: &RepairPart, out: &mut Output) -> Result<(), CliError> {
    let number = match part.number {
        0 => String::new(),
        number => number.to_string(),
    };
    let offset = part.offset.filter(|offset| *offset != 0);
    let offset = offset.map_or(String::new(), |offset| format!(" at offset {offset}"));
    out.line(format_args!(
        "{:<12}{number:>12}  {:<8}{:>11}  {}{offset}",
        part.kind,
        part.state.name(),
        part.entries,
        part.path.display()
    ))?;
    match part.note.as_str() {
        "" => Ok(()),
        note => out.line(format_args!("  {note}")),
    }
}

fn print_loss(loss: &Loss, out: &mut Output) -> Result<(), CliError> {
    let how = match loss.certain {
        true => "lost",
        false => "possibly lost",
    };
    out.line(format_args!(
        "{how}: {} at offset {}: {}",
        loss.path.display(),
        loss.offset,
        loss.problem
    ))?;
    let keys = match (&loss.keys.after, &loss.keys.up_to) {
        (None, None) => "any key".to_owned(),
        (after, up_to) if after == up_to => after
            .as_ref()
            .map_or(String::new(), |key| format!("the key {}", key_text(key))),
        (after, up_to) => {
            let end = |key: &Option<_>, none: &str| key.as_ref().map_or(none.into(), key_text);
            format!(
                "keys from {} to {}",
                end(after, "the first"),
                end(up_to, "the last")
            )
        }
    };
    out.line(format_args!(
        "  {keys} may be missing, have an older value, or exist although deleted"
    ))
}

fn print_json(report: &RepairReport, target: &Path, out: &mut Output) -> Result<(), CliError> {
    for part in &report.parts {
        out.line(json!({
            "type": "part",
            "kind": part.kind,
            "file": part.path.display().to_string(),
            "offset": part.offset,
            "number": part.number,
            "state": part.state.name(),
            "entries": part.entries,
            "note": part.note,
        }))?;
    }
    for loss in &report.losses {
        out.line(json!({
            "type": "loss",
            "kind": loss.kind,
            "file": loss.path.display().to_string(),
            "offset": loss.offset,
            "problem": loss.problem,
            "certain": loss.certain,
            "after": loss.keys.after.as_ref().map(key_json),
            "up_to": loss.keys.up_to.as_ref().map(key_json),
        }))?;
    }
    for keyspace in &report.keyspaces {
        out.line(Value::Object(keyspace_json(keyspace)))?;
    }
    out.line(json!({
        "type": "summary",
        "outcome": report.outcome.name(),
        "target": target.display().to_string(),
        "entries": report.entries,
        "seconds": report.elapsed.as_secs_f64(),
    }))
}

fn keyspace_json(keyspace: &RepairedKeyspace) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("type".into(), "keyspace".into());
    object.insert("name".into(), keyspace.name.clone().into());
    object.insert("number".into(), keyspace.id.into());
    object.insert("pairs".into(), keyspace.pairs.into());
    object.insert("renamed".into(), keyspace.renamed.into());
    object
}
