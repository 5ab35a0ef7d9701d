//! `terrace checkpoint`: copies a database into an independent one.

use serde_json::json;
use terrace::{Db, Options};
use terrace_bench::units;

use crate::args::{CheckpointArgs, StoreArgs};
use crate::error::CliError;
use crate::output::Output;
use crate::store::{Access, bar, open, show};

pub(super) fn checkpoint(
    args: &CheckpointArgs,
    store: &StoreArgs,
    json: bool,
) -> Result<(), CliError> {
    let db = open(&args.db, store, Access::Read)?;
    let bar = bar("copying");
    let shown = bar.clone();
    let mut options = Options::default();
    options.pool.path.clone_from(&args.to_pool);
    let made = Db::builder(&args.target)
        .options(options)
        .progress(move |progress| show(&shown, progress))
        .checkpoint_of(&db);
    bar.finish_and_clear();
    let closed = db.close();
    let report = made?;
    closed?;
    let mut out = Output::new();
    if json {
        out.line(json!({
            "target": args.target.display().to_string(),
            "files_linked": report.files_linked,
            "files_copied": report.files_copied,
            "file_bytes": report.file_bytes,
            "entries": report.entries,
            "seconds": report.elapsed.as_secs_f64(),
        }))?;
        return out.finish();
    }
    out.line(format_args!(
        "copied {} entries from memory and pool into {}",
        units::count(report.entries),
        args.target.display()
    ))?;
    let (linked, copied) = (report.files_linked, report.files_copied);
    if linked + copied > 0 {
        out.line(format_args!(
            "table files: {} linked, {} copied ({})",
            units::count(linked),
            units::count(copied),
            units::bytes(report.file_bytes)
        ))?;
    }
    out.finish()
}
