//! `terrace dump`: writes every entry of a keyspace as a line.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use terrace_bench::units;

use crate::args::{DumpArgs, StoreArgs};
use crate::error::CliError;
use crate::format;
use crate::output::Output;
use crate::store::{Access, Store};

/// Entries between two updates of the progress bar.
const STEP: u64 = 1000;

pub(super) fn dump(args: &DumpArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let format = args.format.unwrap_or_else(|| format::of_name(&args.file));
    let to_stdout = args.file == Path::new("-");
    // Opens the database first: if it does not exist, the file stays unchanged.
    let store = Store::open(&args.db, store, Access::Read)?;
    let failed = |e: io::Error| {
        if to_stdout {
            CliError::output(e)
        } else {
            CliError::io("write", &args.file, e)
        }
    };
    let inner: Box<dyn Write> = if to_stdout {
        Box::new(io::stdout().lock())
    } else {
        Box::new(File::create(&args.file).map_err(failed)?)
    };
    let mut out = BufWriter::with_capacity(1 << 18, inner);
    let bar = entry_bar();
    let (mut entries, mut bytes) = (0, 0);
    let mut line = Vec::new();
    for entry in store.keyspace.iter()? {
        let entry = entry?;
        line.clear();
        format::write(
            format,
            entry.key(),
            entry.value(),
            entry.expiry(),
            &mut line,
        );
        out.write_all(&line).map_err(failed)?;
        entries += 1;
        bytes += line.len() as u64;
        if entries % STEP == 0 {
            bar.set_position(entries);
        }
    }
    out.flush().map_err(failed)?;
    drop(out);
    bar.finish_and_clear();
    let others = store.db.list_keyspaces()?.len() - 1;
    if !store.is_named && others > 0 {
        eprintln!(
            "note: this dump has only the keyspace \"default\"; there are {others} more: dump each \
             with --keyspace"
        );
    }
    store.close()?;
    if to_stdout {
        // The output is the data itself.
        return Ok(());
    }
    let mut out = Output::new();
    if json {
        out.line(json!({ "dumped": entries, "bytes": bytes }))?;
    } else {
        out.line(format_args!(
            "dumped {} entries ({})",
            units::count(entries),
            units::bytes(bytes)
        ))?;
    }
    out.finish()
}

fn entry_bar() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let template = "dumping {spinner} {human_pos} entries {per_sec}";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()));
    bar
}
