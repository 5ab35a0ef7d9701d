//! `terrace compact`: moves the data between two keys as deep as it can go.

use std::time::Instant;

use serde_json::json;
use terrace::{Db, Metrics};
use terrace_bench::units;

use super::get_put::bounds_of;
use crate::args::{CompactArgs, StoreArgs};
use crate::error::CliError;
use crate::output::Output;
use crate::store::{Access, Store};

pub(super) fn compact(args: &CompactArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let bounds = bounds_of(&args.from, &args.to, &args.text)?;
    let store = Store::open(&args.db, store, Access::Change)?;
    let keyspaces = store.chosen()?;
    let before = Kept::of(&store.db);
    let started = Instant::now();
    let compacted = keyspaces
        .iter()
        .try_for_each(|keyspace| keyspace.compact_range(bounds.clone()))
        // The ranges have left garbage, in value files too.
        .and_then(|()| store.db.wait_idle());
    let elapsed = started.elapsed();
    let after = Kept::of(&store.db);
    let closed = store.close();
    compacted?;
    closed?;
    let written = after.written - before.written;
    let mut out = Output::new();
    if json {
        out.line(json!({
            "file_bytes_before": before.files,
            "file_bytes_after": after.files,
            "repository_bytes_before": before.repository,
            "repository_bytes_after": after.repository,
            "table_file_bytes_written": written,
            "seconds": elapsed.as_secs_f64(),
        }))?;
        return out.finish();
    }
    let seconds = units::time(elapsed);
    out.line(format_args!("compacted in {seconds}"))?;
    for (what, before, after) in [
        ("table files", before.files, after.files),
        ("value files", before.values, after.values),
        ("repository", before.repository, after.repository),
    ] {
        if before > 0 || after > 0 {
            let (before, after) = (units::bytes(before), units::bytes(after));
            out.line(format_args!("{what}: {before} before, {after} after"))?;
        }
    }
    if written > 0 {
        let written = units::bytes(written);
        out.line(format_args!("written: {written} of table and value files"))?;
    }
    out.finish()
}

/// The bytes that the bottom keeps.
struct Kept {
    files: u64,
    values: u64,
    /// Bytes of the repository, without dead ones that will be swept.
    repository: u64,
    /// Bytes written to table files since the database was opened.
    written: u64,
}

impl Kept {
    fn of(db: &Db) -> Kept {
        let metrics: Metrics = db.metrics();
        let bottom = &metrics.bottom;
        Kept {
            files: metrics.files.iter().map(|level| level.bytes).sum(),
            values: metrics.values.bytes,
            repository: bottom.used_bytes.saturating_sub(bottom.dead_bytes),
            written: metrics.table_file_bytes,
        }
    }
}
