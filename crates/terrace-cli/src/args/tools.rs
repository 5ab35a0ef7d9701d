//! The grammar of the commands that inspect files, and of those that load and copy whole databases.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{FormatArg, OnError, TextArgs};

const FORMATS: &str = "\
Formats:
  tsv    key<TAB>value lines; \\t \\n \\r \\\\ and \\xNN stand for bytes, so that any can be written;
         a line of what expires goes on with <TAB>expiry_ms=, milliseconds since 1970
  jsonl  one object a line: {\"key\": \"...\", \"value\": \"...\"}; key_b64 and value_b64 hold base64
         of what is not UTF-8; expiry_ms, where it is given, is a number
  lines  any text file: each line, its end included, is a value under its number of 12 digits;
         a dump keeps neither keys nor moments of expiry";

/// `terrace load`
#[derive(Debug, Args)]
#[command(after_help = FORMATS)]
pub(crate) struct LoadArgs {
    /// The database's folder; it is created if it does not exist.
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
    /// Lines that are written together.
    #[arg(long, default_value_t = 1000, value_name = "LINES",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) batch_size: u64,
}

/// `terrace dump`
#[derive(Debug, Args)]
#[command(after_help = FORMATS)]
pub(crate) struct DumpArgs {
    /// The database's folder.
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
Lines must be sorted by the bytes of their keys, each key once: so writes \"terrace dump\", and so \
sorts \"LC_ALL=C sort -u -t $'\\t' -k1,1\" a file of tsv lines without escapes. Nothing is seen \
before all of it is, and nothing stays of an ingest that fails. Pairs take the place of those with \
the same keys. Formats are those of load.

Examples:
  terrace dump /data/old - | terrace ingest /data/new -
  terrace ingest /data/words words.tsv --design leveled
  terrace ingest /data/words words.jsonl --keyspace english")]
pub(crate) struct IngestArgs {
    /// The database's folder; it is created if it does not exist.
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
Table files are linked where the file system can do that, so that both databases share them; what \
is in the pool is copied. The copy is whole when the command has ended; one that failed or was \
interrupted is no database. A database that another process has open is copied by that process, \
with Db::checkpoint.

Examples:
  terrace checkpoint /data/words /data/words-monday
  terrace checkpoint /data/words /backup/words --to-pool /backup/words/pool")]
pub(crate) struct CheckpointArgs {
    /// The database's folder.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// The folder of the copy, which must be empty or not exist.
    #[arg(value_name = "TARGET")]
    pub(crate) target: PathBuf,
    /// The pool's file of the copy [default: as that of the database if it is in its folder, else
    /// the file "pool" in the folder of the copy].
    #[arg(long, value_name = "PATH")]
    pub(crate) to_pool: Option<PathBuf>,
}

/// `terrace repair`
#[derive(Debug, Args)]
#[command(after_help = "\
The damaged database is only read; close it first. Of each key the new one has the newest entry that \
verifies: deletes that can be read hide what is older. Where the manifest is damaged, files that it \
does not name are used too; without it all that verify are, and what had been deleted may be there \
again if what deleted it is gone. The report lists every part, and which keys may be missing or old. \
Takes twice the space of the data while it runs. A repair that was interrupted leaves a folder that \
is not opened.

The new database is made like the damaged one, if its OPTIONS can be read, and with the options \
given; --pool names the pool of the damaged one, if it is not where OPTIONS says.

Exit codes: 0 everything is there, 3 something is lost or may be, 4 nothing can be read, 1 it failed.

Examples:
  terrace repair /data/words --into /data/words-new
  terrace repair /data/words --into /backup/words --design leveled --to-pool none
  terrace repair /data/words --pool /mnt/pmem/words --into /data/new --to-pool /mnt/pmem/new
  terrace repair /data/words --into /data/words-new --json | jq 'select(.type == \"loss\")'")]
pub(crate) struct RepairArgs {
    /// The damaged database's folder.
    #[arg(value_name = "DB")]
    pub(crate) source: PathBuf,
    /// The folder of the new database, which must be empty or not exist.
    #[arg(long = "into", value_name = "TARGET")]
    pub(crate) target: PathBuf,
    /// The pool's file of the new database, or "none" [default: as that of the damaged one if it is
    /// in its folder, else the file "pool" in the folder of the new one].
    #[arg(long, value_name = "PATH")]
    pub(crate) to_pool: Option<PathBuf>,
}

/// `terrace compact`
#[derive(Debug, Args)]
#[command(after_help = "\
Superseded values, deleted and expired ones and what deleted them are left out of what is written, so \
the space of deletes comes back at once. Takes time and writes in proportion to the data between \
the keys. Without it the same happens in the background as data comes in. Where all data is in the \
pool, this is a drain of the buffer. Without --keyspace all keyspaces are compacted. Options like \
--table-size that are given here are kept.

Examples:
  terrace compact /data/words
  terrace compact /data/words --from a --to b
  terrace compact /data/words --keyspace english --json")]
pub(crate) struct CompactArgs {
    /// The database's folder.
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
The file is only read: a process that has the database open may go on, and a damaged file shows \
what is left of it. The exit code is 1 if anything is not sound. A file that is no table is refused.

Keyspaces are shown by the numbers that files have for them: 0 is the catalog, 1 the default keyspace, \
and an entry name/NAME of the catalog holds the number of the keyspace NAME, its lowest byte first.

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

/// `terrace log-dump`
#[derive(Debug, Args)]
#[command(after_help = "\
Logs are files of the database's folder (wal-N.log), or are in the pool, where they have an id. \
They are only read: a process that has the database open may go on. Records behind damage are \
shown if they verify. The exit code is 1 if anything is not sound; a record that a crash left \
unfinished at the end is no damage.

Keyspaces are shown by the numbers that files have for them: 0 is the catalog, 1 the default keyspace, \
and an entry name/NAME of the catalog holds the number of the keyspace NAME, its lowest byte first.

Examples:
  terrace log-dump /data/words                       list the logs
  terrace log-dump /data/words --id 12               a log in the pool or in a file
  terrace log-dump /data/words/wal-0000000000000012.log --entries")]
pub(crate) struct LogDumpArgs {
    /// A log file; or, with --id or to list the logs, the database's folder or its pool.
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
The manifest names everything that is live. It is only read: a process that has the database open \
may go on. The exit code is 1 if anything is not sound.

Keyspaces are shown by the numbers that files have for them: 0 is the catalog, 1 the default keyspace.

Examples:
  terrace manifest-dump /data/words            what is live
  terrace manifest-dump /data/words --edits    how it came to that
  terrace manifest-dump /mnt/pmem/pool         of a pool alone
  terrace manifest-dump /data/words/MANIFEST   of a database without a pool")]
pub(crate) struct ManifestDumpArgs {
    /// The database's folder, its pool, or its file MANIFEST.
    #[arg(value_name = "DB|FILE")]
    pub(crate) path: PathBuf,
    /// Print every edit, with its number and offset.
    #[arg(long)]
    pub(crate) edits: bool,
}
