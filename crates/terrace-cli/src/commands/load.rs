//! `terrace load`: reads lines and writes batches.
//!
//! Lines are written in batches; if the store refuses a batch, it is written again line by line to
//! find the bad line. A failure that no line causes (a full pool, a failed disk) always ends the
//! load.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use terrace::{ErrorKind, KEY_BYTES_MAX, WriteBatch};
use terrace_bench::units;

use crate::args::{FormatArg, LoadArgs, OnError, StoreArgs};
use crate::error::CliError;
use crate::format::{self, Entry};
use crate::output::Output;
use crate::store::{Access, Store};

/// The size at which a batch is written, even with few entries.
const BATCH_BYTES: usize = 4 << 20;

/// The size of one read.
const READ_BYTES: usize = 1 << 18;

pub(super) fn load(args: &LoadArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let format = args.format.unwrap_or_else(|| format::of_name(&args.file));
    // Opens the input first: a misspelled name should not leave an empty database.
    let (mut input, total) = open_input(&args.file)?;
    let store = Store::open(&args.db, store, Access::Create)?;
    let mut loader = Loader {
        store: &store,
        name: name_of(&args.file),
        on_error: args.on_error,
        batch_lines: args.batch_size as usize,
        pending: Vec::new(),
        pending_bytes: 0,
        loaded: 0,
        failed: 0,
        bytes: 0,
        bar: input_bar(total),
    };
    let ended = loader.run(&mut input, format);
    // Lines before the one that ended the load are kept, as the message says.
    let ended = loader.write_pending().and(ended);
    loader.bar.finish_and_clear();
    let (loaded, failed, bytes) = (loader.loaded, loader.failed, loader.bytes);
    let closed = store.close();
    report(json, loaded, failed, bytes)?;
    ended.and(closed)?;
    match failed {
        0 => Ok(()),
        1 => Err(CliError::Failed("1 line was not loaded".to_string())),
        _ => Err(CliError::Failed(format!("{failed} lines were not loaded"))),
    }
}

fn report(json: bool, loaded: u64, failed: u64, bytes: u64) -> Result<(), CliError> {
    let mut out = Output::new();
    if json {
        out.line(json!({ "loaded": loaded, "failed": failed, "bytes": bytes }))?;
    } else {
        let (lines, size) = (units::count(loaded), units::bytes(bytes));
        out.line(format_args!(
            "loaded {lines} lines ({size} of keys and values), {} failed",
            units::count(failed)
        ))?;
    }
    out.finish()
}

struct Loader<'a> {
    store: &'a Store,
    name: String,
    on_error: OnError,
    batch_lines: usize,
    pending: Vec<(u64, Entry)>,
    pending_bytes: usize,
    loaded: u64,
    failed: u64,
    bytes: u64,
    bar: ProgressBar,
}

impl Loader<'_> {
    fn run(&mut self, input: &mut dyn BufRead, format: FormatArg) -> Result<(), CliError> {
        let mut input = input;
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            number += 1;
            let more = format::read_line(&mut input, &mut line).map_err(|source| CliError::Io {
                what: format!("read {} at line {number}", self.name),
                source,
            })?;
            if !more {
                return Ok(());
            }
            self.bar.inc(line.len() as u64);
            match format::parse(format, number, &line).and_then(check_key) {
                Ok(Some(entry)) => self.push(number, entry)?,
                Ok(None) => {}
                Err(problem) => self.refuse(number, &problem)?,
            }
        }
    }

    fn push(&mut self, number: u64, entry: Entry) -> Result<(), CliError> {
        self.pending_bytes += entry.key.len() + entry.value.len();
        self.pending.push((number, entry));
        if self.pending.len() >= self.batch_lines || self.pending_bytes >= BATCH_BYTES {
            self.write_pending()?;
        }
        Ok(())
    }

    fn write_pending(&mut self) -> Result<(), CliError> {
        let pending = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        if pending.is_empty() {
            return Ok(());
        }
        match self.write(&pending) {
            Err(e) if e.kind() == ErrorKind::Invalid => {
                for entry in &pending {
                    match self.write(std::slice::from_ref(entry)) {
                        Err(e) if e.kind() == ErrorKind::Invalid => {
                            self.refuse(entry.0, &e.to_string())?;
                        }
                        written => written?,
                    }
                }
                Ok(())
            }
            written => Ok(written?),
        }
    }

    fn write(&mut self, entries: &[(u64, Entry)]) -> Result<(), terrace::Error> {
        let mut batch = WriteBatch::new();
        let space = &self.store.keyspace;
        for (_, Entry { key, value, expiry }) in entries {
            match expiry {
                Some(expiry) => batch.put_with_expiry_in(space, key, value, *expiry),
                None => batch.put_in(space, key, value),
            };
        }
        self.store
            .db
            .write(batch, self.store.db.options().durability)?;
        self.loaded += entries.len() as u64;
        self.bytes += entries
            .iter()
            .map(|(_, entry)| (entry.key.len() + entry.value.len()) as u64)
            .sum::<u64>();
        Ok(())
    }

    /// Reports a line that cannot be loaded, and ends the load if the user requested that.
    fn refuse(&mut self, number: u64, problem: &str) -> Result<(), CliError> {
        let message = format!("{}: line {number}: {problem}", self.name);
        if self.on_error == OnError::Stop {
            return Err(CliError::Failed(format!(
                "{message}; the lines before it were loaded (skip bad lines with --on-error \
                 continue)"
            )));
        }
        self.failed += 1;
        // A failure to write the message must not end a load that should go on.
        self.bar.suspend(|| {
            let _ = writeln!(io::stderr().lock(), "terrace: {message}");
        });
        Ok(())
    }
}

pub(super) fn check_key(entry: Option<Entry>) -> Result<Option<Entry>, String> {
    match &entry {
        Some(entry) if entry.key.len() > KEY_BYTES_MAX => Err(format!(
            "its key has {} bytes, more than {KEY_BYTES_MAX}",
            entry.key.len()
        )),
        _ => Ok(entry),
    }
}

/// Opens the input; returns it with its size, if known.
pub(super) fn open_input(path: &Path) -> Result<(Box<dyn BufRead>, Option<u64>), CliError> {
    if path == Path::new("-") {
        let input: Box<dyn Read> = Box::new(io::stdin());
        return Ok((Box::new(BufReader::with_capacity(READ_BYTES, input)), None));
    }
    let file = File::open(path).map_err(|e| CliError::io("read", path, e))?;
    let metadata = file.metadata().map_err(|e| CliError::io("read", path, e))?;
    if metadata.is_dir() {
        return Err(CliError::Usage(format!(
            "{} is a directory, not a file",
            path.display()
        )));
    }
    let total = metadata.is_file().then_some(metadata.len());
    Ok((Box::new(BufReader::with_capacity(READ_BYTES, file)), total))
}

pub(super) fn name_of(path: &Path) -> String {
    if path == Path::new("-") {
        "standard input".into()
    } else {
        path.display().to_string()
    }
}

pub(super) fn input_bar(total: Option<u64>) -> ProgressBar {
    let template = match total {
        Some(_) => "loading [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        None => "loading {spinner} {bytes} {bytes_per_sec}",
    };
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    bar.set_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()));
    bar
}
