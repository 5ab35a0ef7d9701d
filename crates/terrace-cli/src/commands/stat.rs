//! This file is `terrace stat`: what a database holds, and in which tier.

use std::path::Path;

use serde_json::json;
use terrace::{Db, Metrics};
use terrace_bench::{Table, units};

use super::keyspaces::sizes;
use crate::args::StoreArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::store::{Missing, open};

pub(super) fn stat(path: &Path, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let db = open(path, store, Missing::Fail)?;
    let metrics = db.metrics();
    let entries = db.approximate_len()?;
    let keyspaces = sizes(&db)?;
    let mut out = Output::new();
    if json {
        out.line(as_json(&db, &metrics, entries, &keyspaces))?;
    } else {
        let options = db.options();
        let (design, durability) = (options.design, options.durability);
        let recovery = db.recovery();
        out.line(format_args!("database    {}", db.path().display()))?;
        out.line(format_args!(
            "design      {design}, durability {durability}"
        ))?;
        out.line(format_args!("pool        {}", metrics.pool.description))?;
        out.line(format_args!("recovery    {recovery}"))?;
        out.line(format_args!("entries     about {}", units::count(entries)))?;
        out.line("")?;
        out.bytes(space(&metrics).to_string().as_bytes())?;
        out.line("")?;
        let mut table = Table::new(&["keyspace", "size, about"]);
        for (name, bytes) in &keyspaces {
            table.row([name.clone(), units::bytes(*bytes)]);
        }
        out.bytes(table.to_string().as_bytes())?;
    }
    out.finish()?;
    Ok(db.close()?)
}

fn space(metrics: &Metrics) -> Table {
    let mut table = Table::new(&["tier", "tables", "nodes", "bytes"]);
    let mut row = |name: String, tables: String, nodes: String, bytes: u64| {
        table.row([name, tables, nodes, units::bytes(bytes)]);
    };
    let none = String::new;
    row("memtables".into(), none(), none(), metrics.memtable_bytes);
    row("logs".into(), none(), none(), metrics.log_bytes);
    for level in &metrics.levels {
        let (tables, nodes) = (
            units::count(level.table_count),
            units::count(level.entry_count),
        );
        row(
            format!("buffer level {}", level.level),
            tables,
            nodes,
            level.bytes,
        );
    }
    let bottom = &metrics.bottom;
    row("repository".into(), none(), none(), bottom.bytes);
    row("  of it written".into(), none(), none(), bottom.used_bytes);
    row("  of it dead".into(), none(), none(), bottom.dead_bytes);
    let pool = &metrics.pool;
    row(
        "pool, live extents".into(),
        none(),
        none(),
        pool.allocated_bytes,
    );
    row("pool, file".into(), none(), none(), pool.committed_bytes);
    row("pool, cap".into(), none(), none(), pool.cap_bytes);
    table
}

fn as_json(
    db: &Db,
    metrics: &Metrics,
    entries: u64,
    keyspaces: &[(String, u64)],
) -> serde_json::Value {
    let (options, recovery) = (db.options(), db.recovery());
    let levels: Vec<_> = metrics
        .levels
        .iter()
        .map(|level| {
            json!({
                "level": level.level,
                "tables": level.table_count,
                "merging": level.merging_count,
                "nodes": level.entry_count,
                "bytes": level.bytes,
            })
        })
        .collect();
    let keyspaces: Vec<_> = keyspaces
        .iter()
        .map(|(name, bytes)| json!({ "name": name, "bytes": bytes }))
        .collect();
    json!({
        "database": db.path().display().to_string(),
        "design": options.design.to_string(),
        "durability": options.durability.name(),
        "entries": entries,
        "keyspaces": keyspaces,
        "memtable_bytes": metrics.memtable_bytes,
        "log_bytes": metrics.log_bytes,
        "levels": levels,
        "repository": {
            "extents": metrics.bottom.extent_count,
            "bytes": metrics.bottom.bytes,
            "used_bytes": metrics.bottom.used_bytes,
            "dead_bytes": metrics.bottom.dead_bytes,
        },
        "pool": {
            "description": metrics.pool.description,
            "cap_bytes": metrics.pool.cap_bytes,
            "committed_bytes": metrics.pool.committed_bytes,
            "allocated_bytes": metrics.pool.allocated_bytes,
        },
        "recovery": {
            "clean": recovery.clean,
            "logs_replayed": recovery.logs_replayed,
            "records_replayed": recovery.records_replayed,
            "entries_replayed": recovery.entries_replayed,
            "redo_slots_applied": recovery.redo_slots_applied,
            "merges_resumed": recovery.merges_resumed,
            "tables_rebuilt": recovery.tables_rebuilt,
            "seconds": recovery.elapsed.as_secs_f64(),
        },
    })
}
