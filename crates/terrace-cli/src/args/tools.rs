//! The grammar of the commands that inspect files, and of those that load and copy whole databases.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{FormatArg, OnError, TextArgs};

const FORMATS: &str = "\
Formats:
  tsv    key<TAB>value lines; \\t \\n \\r \\\\ and \\xNN are escapes, for any bytes;
         an expiring pair has a third field, expiry_ms= and milliseconds since 1970
  jsonl  one object per line: {\"key\": \"...\", \"value\": \"...\"}; key_b64 and value_b64 hold base64
         of bytes that are not UTF-8; expiry_ms, optional, is a number
  lines  any text file: each line, including its end, is a value; its key is the line number
         in 12 digits; a dump has neither keys nor times of expiry";

/// `terrace load`
#[derive(Debug, Args)]
#[command(after_help = FORMATS)]
pub(crate) struct LoadArgs {
    /// The database's directory; it is created if it does not exist.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// The file, or standard input ("-").
    #[arg(default_value = "-")]
    pub(crate) file: PathBuf,
    /// The file's format [default: by its name, else tsv].
    #[arg(long, value_enum)]
    pub(crate) format: Option<FormatArg>,
    /// Stop at a line that cannot be loaded, or report it and continue.
    #[arg(long, value_enum, default_value = "stop", value_name = "WHAT")]
    pub(crate) on_error: OnError,
    /// Lines that are written together, or fewer if they have 4 MiB. A batch that the store
    /// refuses, for example if it has more than an eighth of the pool, is written line by line.
    #[arg(long, default_value_t = 1000, value_name = "LINES",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) batch_size: u64,
}

/// `terrace dump`
#[derive(Debug, Args)]
#[command(after_help = FORMATS)]
pub(crate) struct DumpArgs {
    /// The database's directory.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// The file, or standard output ("-").
    #[arg(default_value = "-")]
    pub(crate) file: PathBuf,
    /// The file's format [default: by its name, else tsv].
    #[arg(long, value_enum)]
    pub(crate) format: Option<FormatArg>,
}

/// `terrace ingest`
#[derive(Debug, Args)]
#[command(after_help = "\
Lines must be sorted by the bytes of their keys, without duplicates, as \"terrace dump\" writes \
them; \"LC_ALL=C sort -u -t $'\\t' -k1,1\" sorts a file of tsv lines without escapes. All pairs \
become visible at once, and a failed ingest leaves none. Pairs replace those with the same keys. \
Formats are those of load.

Examples:
  terrace dump /data/old - | terrace ingest /data/new -
  terrace ingest /data/words words.tsv --design leveled
  terrace ingest /data/words words.jsonl --keyspace english")]
pub(crate) struct IngestArgs {
    /// The database's directory; it is created if it does not exist.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// The file, or standard input ("-").
    #[arg(default_value = "-")]
    pub(crate) file: PathBuf,
    /// The file's format [default: by its name, else tsv].
    #[arg(long, value_enum)]
    pub(crate) format: Option<FormatArg>,
}

/// `terrace checkpoint`
#[derive(Debug, Args)]
#[command(after_help = "\
Table files are hard-linked if the file system can, so that both databases share them; data in the \
pool is copied. The copy is complete when the command succeeds; a failed or interrupted one cannot \
be opened. If another process has the database open, that process must make the checkpoint, with \
Db::checkpoint.

Examples:
  terrace checkpoint /data/words /data/words-monday
  terrace checkpoint /data/words /backup/words --to-pool /backup/words/pool")]
pub(crate) struct CheckpointArgs {
    /// The database's directory.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// The directory of the copy, which must be empty or not exist.
    #[arg(value_name = "TARGET")]
    pub(crate) target: PathBuf,
    /// The pool's file of the copy [default: as that of the database if it is in its directory,
    /// else the file "pool" in the directory of the copy].
    #[arg(long, value_name = "PATH")]
    pub(crate) to_pool: Option<PathBuf>,
}

/// `terrace repair`
#[derive(Debug, Args)]
#[command(after_help = "\
The damaged database is only read; close it first. The new one has the newest entry of each key \
that verifies, and readable deletes hide older entries. If the manifest is damaged, files that it \
does not name are used too; if it is missing, all files that verify are used, and deleted data may \
reappear if its delete is lost. The report lists every part, and the keys that may be missing or \
old. The repair takes twice the space of the data while it runs. An interrupted repair leaves a \
directory that cannot be opened.

The new database has the options of the damaged one, if its OPTIONS file is readable, overridden \
by the given ones; --pool names the damaged pool if it is not where OPTIONS says.

Exit codes: 0 no certain loss, 3 data is lost or metadata was damaged, 4 nothing is readable, 1 the repair failed.

Examples:
  terrace repair /data/words --into /data/words-new
  terrace repair /data/words --into /backup/words --design leveled --to-pool none
  terrace repair /data/words --pool /mnt/pmem/words --into /data/new --to-pool /mnt/pmem/new
  terrace repair /data/words --into /data/words-new --json | jq 'select(.type == \"loss\")'")]
pub(crate) struct RepairArgs {
    /// The damaged database's directory.
    #[arg(value_name = "DB")]
    pub(crate) source: PathBuf,
    /// The directory of the new database, which must be empty or not exist.
    #[arg(long = "into", value_name = "TARGET")]
    pub(crate) target: PathBuf,
    /// The pool's file of the new database, or "none" [default: as that of the damaged one if it is
    /// in its directory, else the file "pool" in the directory of the new one].
    #[arg(long, value_name = "PATH")]
    pub(crate) to_pool: Option<PathBuf>,
}

/// `terrace compact`
#[derive(Debug, Args)]
#[command(after_help = "\
Rewrites the data between the keys without superseded, deleted and expired values and without \
tombstones, so the space of deleted data is free at once. Time and writes are proportional to that \
data. Background work does the same gradually as data comes in. If all data is in the pool, this \
is a drain of the buffer. Without --keyspace all keyspaces are compacted. Given options like \
--table-size are stored.

Examples:
  terrace compact /data/words
  terrace compact /data/words --from a --to b
  terrace compact /data/words --keyspace english --json")]
pub(crate) struct CompactArgs {
    /// The database's directory.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// Begin at this key, itself included.
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// End before this key.
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

/// The selection of entries that a dump prints.
#[derive(Debug, Args)]
pub(crate) struct EntryArgs {
    /// Print entries too: sequence number, kind, keyspace number, key and value.
    #[arg(long)]
    pub(crate) entries: bool,
    /// Only entries with this key and larger ones; implies --entries.
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// Only entries before this key; implies --entries.
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// At most this many entries; implies --entries. The whole file is checked all the same.
    #[arg(long, value_name = "COUNT")]
    pub(crate) limit: Option<u64>,
    /// Omit the values.
    #[arg(long)]
    pub(crate) keys_only: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

/// `terrace sst-dump`
#[derive(Debug, Args)]
#[command(after_help = "\
The file is only read, even while another process has the database open, and the readable part of \
a damaged file is shown. The exit code is 1 if there is damage. A file that is not a table is \
refused.

Keyspaces are shown by number: 0 is the catalog, 1 the default keyspace, and the entry name/NAME \
of the catalog has the number of the keyspace NAME, in little-endian order.

Examples:
  terrace sst-dump /data/words/0000000000000007.sst
  terrace sst-dump /data/words/0000000000000007.sst --from he --to hf
  terrace sst-dump /data/words/0000000000000007.sst --entries --json | jq .key")]
pub(crate) struct SstDumpArgs {
    /// The table file.
    pub(crate) file: PathBuf,
    /// List the blocks: the offset and the contents of each.
    #[arg(long)]
    pub(crate) blocks: bool,
    #[command(flatten)]
    pub(crate) show: EntryArgs,
}

/// `terrace value-dump`
#[derive(Debug, Args)]
#[command(after_help = "\
The values are in the order in which they were written. Only tables tell which of them are still \
needed: sst-dump shows where an entry has its value. The file is only read, even while another \
process has the database open. The exit code is 1 if there is damage.

Example:
  terrace value-dump /data/words/0000000000000009.val --entries --keys-only")]
pub(crate) struct ValueDumpArgs {
    /// The value file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) show: EntryArgs,
}

/// `terrace log-dump`
#[derive(Debug, Args)]
#[command(after_help = "\
Logs are files in the database's directory (wal-N.log), or are in the pool, where they have an id. \
They are only read, even while another process has the database open. Records behind damage are \
shown if they verify. The exit code is 1 if there is damage; an incomplete record at the end, left \
by a crash, is not damage.

Keyspaces are shown by number: 0 is the catalog, 1 the default keyspace, and the entry name/NAME \
of the catalog has the number of the keyspace NAME, in little-endian order.

Examples:
  terrace log-dump /data/words                       list the logs
  terrace log-dump /data/words --id 12               a log in the pool or in a file
  terrace log-dump /data/words/wal-0000000000000012.log --entries")]
pub(crate) struct LogDumpArgs {
    /// A log file; or, with --id or to list the logs, the database's directory or its pool.
    #[arg(value_name = "FILE|DB")]
    pub(crate) path: PathBuf,
    /// The id of the log.
    #[arg(long)]
    pub(crate) id: Option<u64>,
    /// List the records: the offset and the contents of each.
    #[arg(long)]
    pub(crate) records: bool,
    #[command(flatten)]
    pub(crate) show: EntryArgs,
}

/// `terrace manifest-dump`
#[derive(Debug, Args)]
#[command(after_help = "\
The manifest names all live tables and logs. It is only read, even while another process has the \
database open. The exit code is 1 if there is damage.

Keyspaces are shown by number: 0 is the catalog, 1 the default keyspace.

Examples:
  terrace manifest-dump /data/words            the live items
  terrace manifest-dump /data/words --edits    all edits
  terrace manifest-dump /mnt/pmem/pool         of a pool alone
  terrace manifest-dump /data/words/MANIFEST   of a database without a pool")]
pub(crate) struct ManifestDumpArgs {
    /// The database's directory, its pool, or its file MANIFEST.
    #[arg(value_name = "DB|FILE")]
    pub(crate) path: PathBuf,
    /// Print every edit, with its number and offset.
    #[arg(long)]
    pub(crate) edits: bool,
}
