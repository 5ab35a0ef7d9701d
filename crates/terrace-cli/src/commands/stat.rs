//! `terrace stat`: shows the contents of a database by tier.

use std::path::Path;

use serde_json::{Value, json};
use terrace::{Db, Metrics, Options};
use terrace_bench::{Table, cache_line, file_levels, units};

use super::keyspaces::sizes;
use crate::args::StoreArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::store::{self, Access, open};

pub(super) fn stat(path: &Path, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let db = open(path, store, Access::Read)?;
    let metrics = db.metrics();
    let entries = entries(&db)?;
    let keyspaces = sizes(&db)?;
    let mut out = Output::new();
    if json {
        out.line(as_json(&db, &metrics, entries, &keyspaces))?;
    } else {
        print(&mut out, &db, &metrics, entries, &keyspaces)?;
    }
    out.finish()?;
    Ok(db.close()?)
}

/// Estimates the number of entries of all keyspaces.
fn entries(db: &Db) -> Result<u64, CliError> {
    let mut entries = 0;
    for keyspace in store::keyspaces(db)? {
        entries += keyspace.approximate_len()?;
    }
    Ok(entries)
}

fn print(
    out: &mut Output,
    db: &Db,
    metrics: &Metrics,
    entries: u64,
    keyspaces: &[(String, u64)],
) -> Result<(), CliError> {
    let options = db.options();
    let (design, durability) = (options.design_of_new(), options.durability);
    let recovery = db.recovery();
    out.line(format_args!("database    {}", db.path().display()))?;
    out.line(format_args!(
        "design      {design}, durability {durability}"
    ))?;
    out.line(format_args!("pool        {}", metrics.pool.description))?;
    out.line(format_args!("recovery    {recovery}"))?;
    out.line(format_args!("entries     about {}", units::count(entries)))?;
    if let Some(cache) = cache_line(&metrics.cache) {
        out.line(format_args!("cache       {cache}"))?;
    }
    let mut names = Table::new(&["keyspace", "approx. size"]);
    for (name, bytes) in keyspaces {
        names.row([name.clone(), units::bytes(*bytes)]);
    }
    let levels = file_levels(&metrics.files);
    for table in [
        pool(metrics),
        memory(db, metrics),
        levels,
        values(metrics),
        tiers(metrics),
        stalls(metrics),
        names,
        kept(db),
    ] {
        if !table.is_empty() {
            out.line("")?;
            out.bytes(table.to_string().as_bytes())?;
        }
    }
    Ok(())
}

/// Returns the options that the database keeps for the next open, and the values in force if the
/// disk is too small for them.
fn kept(db: &Db) -> Table {
    let mut table = Table::new(&["stored option", "value", "in use"]);
    let in_force = db.options().kept();
    let in_force = shown(in_force);
    for ((name, value), (_, now)) in shown(db.options_stated().kept()).zip(in_force) {
        let now = if now == value { String::new() } else { now };
        table.row([name.to_string(), value, now]);
    }
    table
}

/// Returns options as users state them: the size that turns values apart off is "none".
fn shown(kept: Vec<(&'static str, String)>) -> impl Iterator<Item = (&'static str, String)> {
    let off = u64::MAX.to_string();
    kept.into_iter().map(move |(name, value)| {
        match name == "bottom.leveled.values_apart_from" && value == off {
            true => (name, "none".to_owned()),
            false => (name, value),
        }
    })
}

/// Returns options as an object: numbers and booleans as such, all else as strings.
fn options_as_json(options: &Options) -> Value {
    let lines = shown(options.kept()).map(|(name, value)| {
        let value = serde_json::from_str(&value).unwrap_or(Value::from(value));
        (name.to_string(), value)
    });
    Value::Object(lines.collect())
}

/// Returns the contents of memory and pool, and the reserve on the disk.
fn pool(metrics: &Metrics) -> Table {
    let mut table = Table::new(&["memory and pool", "tables or rows", "entries", "bytes"]);
    let mut row = |name: String, tables: String, nodes: String, bytes: u64| {
        table.row([name, tables, nodes, units::bytes(bytes)]);
    };
    let none = String::new;
    row("memtables".into(), none(), none(), metrics.memtable_bytes);
    if metrics.pm_memtable_bytes > 0 {
        let bytes = metrics.pm_memtable_bytes;
        row("  of it in the pool".into(), none(), none(), bytes);
    }
    row("logs".into(), none(), none(), metrics.log_bytes);
    for level in &metrics.levels {
        let (tables, nodes) = (
            units::count(level.table_count),
            units::count(level.entry_count),
        );
        row(level.title(), tables, nodes, level.bytes);
    }
    let bottom = &metrics.bottom;
    if bottom.bytes > 0 {
        row("repository".into(), none(), none(), bottom.bytes);
        row("  of it written".into(), none(), none(), bottom.used_bytes);
        row("  of it dead".into(), none(), none(), bottom.dead_bytes);
    }
    let pool = &metrics.pool;
    let (live, file, cap) = (pool.allocated_bytes, pool.committed_bytes, pool.cap_bytes);
    row("pool, live extents".into(), none(), none(), live);
    row("pool, file".into(), none(), none(), file);
    row("pool, cap".into(), none(), none(), cap);
    if metrics.reserve_bytes > 0 {
        let bytes = metrics.reserve_bytes;
        row("reserve, file".into(), none(), none(), bytes);
    }
    table
}

/// Returns the value files, if there are any.
fn values(metrics: &Metrics) -> Table {
    let mut table = Table::new(&["values apart", "files", "bytes", "live"]);
    let values = &metrics.values;
    if values.file_count > 0 {
        let (bytes, live) = (units::bytes(values.bytes), units::bytes(values.live_bytes));
        let count = units::count(values.file_count);
        table.row(["value files".to_string(), count, bytes, live]);
    }
    table
}

/// Returns the use of memory by part, and the limit of each.
fn memory(db: &Db, metrics: &Metrics) -> Table {
    let mut table = Table::new(&["memory for", "in use", "at most", "set by"]);
    let plan = db.options().memory_plan();
    let most = |bytes: Option<u64>| bytes.map_or("-".to_string(), units::bytes);
    for part in &metrics.memory.parts {
        let planned = plan.iter().find(|planned| planned.name == part.name);
        table.row([
            part.name.to_string(),
            units::bytes(part.used_bytes),
            most(part.limit_bytes),
            planned.map_or("-", |planned| planned.follows).to_string(),
        ]);
    }
    // The other parts are of constant size, so their use is not counted.
    let counted = |name| metrics.memory.parts.iter().any(|part| part.name == name);
    for part in plan.iter().filter(|part| !counted(part.name)) {
        let most = units::bytes(part.bytes);
        table.row([part.name.into(), "-".into(), most, part.follows.into()]);
    }
    table.row([
        "all".to_string(),
        units::bytes(metrics.memory.used_bytes()),
        most(metrics.memory.budget_bytes),
        "-".to_string(),
    ]);
    table
}

fn memory_as_json(metrics: &Metrics) -> Value {
    let memory = &metrics.memory;
    let parts = memory.parts.iter().map(|part| {
        json!({
            "name": part.name,
            "used_bytes": part.used_bytes,
            "limit_bytes": part.limit_bytes,
        })
    });
    json!({
        "budget_bytes": memory.budget_bytes,
        "used_bytes": memory.used_bytes(),
        "parts": parts.collect::<Vec<_>>(),
    })
}

/// Returns space and write amplification of each tier.
fn tiers(metrics: &Metrics) -> Table {
    let mut table = Table::new(&[
        "tier",
        "bytes",
        "space amplification",
        "written since opening",
        "write amplification",
        "written in total",
        "write amplification",
    ]);
    let user = metrics.user_written_bytes;
    let life = &metrics.life;
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_string(), |ratio| format!("{ratio:.2}"));
    let mut row = |name: &str, bytes, space, written, amp, ever, amp_ever| {
        table.row([
            name.to_string(),
            units::bytes(bytes),
            ratio(space),
            units::bytes(written),
            ratio((user > 0).then_some(amp)),
            units::bytes(ever),
            ratio(amp_ever),
        ]);
    };
    row(
        "pool",
        metrics.pool.allocated_bytes,
        metrics.space_amp_pm(),
        metrics.pm.total().bytes,
        metrics.write_amp_pm(),
        life.pool_bytes,
        life.write_amp_pm(),
    );
    let files = metrics.log_file_bytes + metrics.table_file_bytes;
    let tables: u64 = metrics.files.iter().map(|level| level.bytes).sum();
    let bytes = tables + metrics.values.bytes;
    let ever = life.log_file_bytes + life.table_file_bytes;
    if bytes > 0 || ever > 0 {
        let (space, written) = (metrics.space_amp_files(), metrics.write_amp_files());
        let amp_ever = life.write_amp_files();
        row("files", bytes, space, files, written, ever, amp_ever);
    }
    table
}

/// Returns the reasons for which writers waited since the database was opened.
fn stalls(metrics: &Metrics) -> Table {
    let mut table = Table::new(&["stalled writers", "count", "total", "longest"]);
    for stall in metrics.stalls.iter().filter(|stall| stall.count > 0) {
        table.row([
            stall.reason.name().to_string(),
            units::count(stall.count),
            units::time(stall.time),
            units::time(stall.longest),
        ]);
    }
    table
}

fn as_json(db: &Db, metrics: &Metrics, entries: u64, keyspaces: &[(String, u64)]) -> Value {
    let (options, recovery) = (db.options(), db.recovery());
    let levels: Vec<_> = metrics
        .levels
        .iter()
        .map(|level| {
            json!({
                "name": level.name,
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
    let mut report = json!({
        "options": options_as_json(db.options_stated()),
        "options_in_force": options_as_json(options),
        "database": db.path().display().to_string(),
        "design": options.design_of_new().to_string(),
        "durability": options.durability.name(),
        "entries": entries,
        "keyspaces": keyspaces,
        "memtable_bytes": metrics.memtable_bytes,
        "pm_memtable_bytes": metrics.pm_memtable_bytes,
        "log_bytes": metrics.log_bytes,
        "levels": levels,
        "repository": {
            "extents": metrics.bottom.extent_count,
            "bytes": metrics.bottom.bytes,
            "used_bytes": metrics.bottom.used_bytes,
            "dead_bytes": metrics.bottom.dead_bytes,
        },
        "reserve_bytes": metrics.reserve_bytes,
        "range_deletes": metrics.range_delete_count,
        "table_files": files_as_json(metrics),
        "value_files": {
            "files": metrics.values.file_count,
            "bytes": metrics.values.bytes,
            "live_bytes": metrics.values.live_bytes,
        },
        "cache": cache_as_json(metrics),
        "written": {
            "user_bytes": metrics.user_written_bytes,
            "pool_bytes": metrics.pm.total().bytes,
            "log_file_bytes": metrics.log_file_bytes,
            "table_file_bytes": metrics.table_file_bytes,
            "write_amp_pool": metrics.write_amp_pm(),
            "write_amp_files": metrics.write_amp_files(),
        },
        "written_ever": {
            "user_bytes": metrics.life.user_written_bytes,
            "pool_bytes": metrics.life.pool_bytes,
            "log_file_bytes": metrics.life.log_file_bytes,
            "table_file_bytes": metrics.life.table_file_bytes,
            "write_amp_pool": metrics.life.write_amp_pm(),
            "write_amp_files": metrics.life.write_amp_files(),
        },
        "space_amp_repository": metrics.space_amp_pm(),
        "space_amp_files": metrics.space_amp_files(),
        "stalls": stalls_as_json(metrics),
        "retries": {
            "count": metrics.retries.count,
            "waiting": metrics.retries.waiting_count,
            "last": metrics.retries.last,
        },
        "pace": {
            "rate_max": metrics.rate_limiter.rate_max,
            "waits": metrics.rate_limiter.wait_count,
            "seconds": metrics.rate_limiter.wait_time.as_secs_f64(),
        },
        "pool": {
            "description": metrics.pool.description,
            "cap_bytes": metrics.pool.cap_bytes,
            "committed_bytes": metrics.pool.committed_bytes,
            "allocated_bytes": metrics.pool.allocated_bytes,
        },
        "memory": memory_as_json(metrics),
        "recovery": {
            "clean": recovery.clean,
            "logs_replayed": recovery.logs_replayed,
            "records_replayed": recovery.records_replayed,
            "entries_replayed": recovery.entries_replayed,
            "records_stranded": recovery.records_stranded,
            "redo_slots_applied": recovery.redo_slots_applied,
            "merges_resumed": recovery.merges_resumed,
            "tables_rebuilt": recovery.tables_rebuilt,
            "seconds": recovery.elapsed.as_secs_f64(),
        },
    });
    for (name, count) in metrics.listed() {
        report[name] = count.into();
    }
    report
}

fn files_as_json(metrics: &Metrics) -> Vec<Value> {
    let levels = metrics.files.iter().map(|level| {
        json!({
            "level": level.level,
            "runs": level.run_count,
            "files": level.file_count,
            "entries": level.entry_count,
            "tombstones": level.tombstone_count,
            "bytes": level.bytes,
            "target_bytes": level.target_bytes,
            "written_bytes": level.written_bytes,
        })
    });
    levels.collect()
}

fn cache_as_json(metrics: &Metrics) -> Value {
    let cache = &metrics.cache;
    json!({
        "capacity_bytes": cache.capacity_bytes,
        "used_bytes": cache.used_bytes,
        "open_files": cache.open_file_count,
        "hits": cache.hit_count,
        "misses": cache.miss_count,
        "hit_ratio": cache.hit_ratio(),
    })
}

fn stalls_as_json(metrics: &Metrics) -> Vec<Value> {
    let stalls = metrics.stalls.iter().map(|stall| {
        json!({
            "reason": stall.reason.name(),
            "count": stall.count,
            "seconds": stall.time.as_secs_f64(),
            "longest_seconds": stall.longest.as_secs_f64(),
        })
    });
    stalls.collect()
}
