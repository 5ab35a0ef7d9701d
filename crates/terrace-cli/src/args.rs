//! The grammar of the command line and its help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand, ValueEnum};
use terrace::{Compression, Design, Durability, Emulation, MediumChoice, Prefault};
use terrace_bench::units;

mod bench;
mod compare;
mod parse;
mod tools;

use parse::{ApartFrom, compressions, designs, parse_apart, parse_design, parse_emulation};

pub(crate) use bench::BenchArgs;
pub(crate) use compare::{BenchCommand, CompareArgs, PapersArgs, ReportArgs};
pub(crate) use tools::{
    CheckpointArgs, CompactArgs, DumpArgs, EntryArgs, IngestArgs, LoadArgs, LogDumpArgs,
    ManifestDumpArgs, RepairArgs, SstDumpArgs, ValueDumpArgs,
};

const EXAMPLES: &str = "\
Examples:
  terrace put /data/words hello world       write a key (creates the database)
  terrace get /data/words hello             read it
  terrace scan /data/words --prefix he      list keys and values in order
  terrace load /data/words words.tsv        load key<TAB>value lines
  terrace dump /data/words - | gzip > w.gz  write all pairs to a file
  terrace stat /data/words                  where the data is
  terrace bench                             measure this machine

The first argument of every command but bench is the database's directory. Options that shape the \
data are stored with the database and stay in effect until a command that writes is given others; \
stat shows them. \
Options of a single run are not stored: medium, prefault, durability, emulate, memory, cache-size, \
direct-io, read-only.";

const KEYSPACES: &str = "\
Examples:
  terrace keyspaces list /data/words
  terrace keyspaces create /data/words english
  terrace keyspaces drop /data/words english";

/// Terrace, an ordered key-value store for tiered memory.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, about, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print results as JSON, for programs.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Returns the parsed command line; on an error, prints it and ends the process.
    pub(crate) fn read() -> Cli {
        Cli::try_parse().unwrap_or_else(|e| with_tip(e).exit())
    }
}

/// Adds a tip if a database is given in place of a subcommand of keyspaces.
fn with_tip(mut e: clap::Error) -> clap::Error {
    let usage = e.get(ContextKind::Usage).map(ToString::to_string);
    let is_of_keyspaces = usage.is_some_and(|usage| usage.contains(" keyspaces "));
    // clap gives a tip itself for a name close to that of a command.
    let is_misspelt = e.get(ContextKind::SuggestedSubcommand).is_some();
    if let Some(ContextValue::String(given)) = e.get(ContextKind::InvalidSubcommand)
        && is_of_keyspaces
        && !is_misspelt
    {
        let tip =
            format!("try 'terrace keyspaces list {given}' to list the keyspaces of a database");
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        e.insert(ContextKind::Suggested, tips);
    }
    e
}

/// Options of the store, which every command takes before or after its name.
#[derive(Debug, Default, Clone, Args)]
#[command(next_help_heading = "Options of the store")]
pub(crate) struct StoreArgs {
    /// The design of a new database [default: miodb with a pool, miodb-ssd without].
    #[arg(long, global = true, value_name = "NAME", value_parser = parse_design, help = designs())]
    pub(crate) design: Option<Design>,

    /// The pool's file or DAX device; "none" uses only the directory: a buffer in memory, and logs,
    /// manifest and tables in files. Relative paths start at the database's directory [default: the
    /// file "pool" there].
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) pool: Option<PathBuf>,

    /// The maximum size of the pool, like 4GiB or 512M; for an existing pool it can only be raised
    /// [default: 8GiB; of bench: as much as the run
    /// needs, which with leveled is little].
    #[arg(long, global = true, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) pool_size: Option<u64>,

    /// How to treat the pool: "auto" detects it, "dax" forces persistent memory's flush
    /// instructions, "mapped" forces ordinary file mappings.
    #[arg(long, global = true, value_name = "MEDIUM", value_enum)]
    pub(crate) medium: Option<MediumArg>,

    /// A limit for all memory of the open database, like 512MiB or 4GiB, at least 16MiB: memtables,
    /// cache with indexes and filters, jobs, iterators, and the pool if that is "none".
    /// --pool-size, --memtable-size, --table-size, --level1-size and --cache-size are derived from
    /// it unless they are given; stat shows the use of each part, and sizes that cannot fit are
    /// refused. Keys with their values are then at most a 512th of it, or 64KiB [default: no
    /// limit].
    #[arg(long, global = true, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) memory: Option<u64>,

    /// The size of a memtable, of its log and of the table that a flush makes of it; in flatlsm, of
    /// a log that is a table [default: 64MiB, but at most a 32nd of --pool-size when a database is
    /// created; in flatlsm a tenth of the pool, at most 2GiB].
    #[arg(long, global = true, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) memtable_size: Option<u64>,

    /// The size of the memtable in the pool, in novelsm and its modes: 4KiB to a quarter of
    /// --pool-size [default: 8 times --memtable-size, but at most a 16th of --pool-size, which for
    /// a short bench is less than --memtable-size].
    #[arg(long, global = true, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) pm_memtable_size: Option<u64>,

    /// When the pool's pages are faulted in: "ahead" of need, "all" at once, or "none"
    /// [default: ahead; of bench: all].
    #[arg(long, global = true, value_name = "WHEN", value_enum)]
    pub(crate) prefault: Option<PrefaultArg>,

    /// What a write waits for [default: buffered].
    #[arg(long, global = true, value_name = "MODE", value_enum)]
    pub(crate) durability: Option<DurabilityArg>,

    /// Slow the pool's writes down to a device with this bandwidth in GB/s and write latency in ns,
    /// or to a named one: "none", "optane" (2.3:90), "cxl" (20:250); for measurement only.
    #[arg(long, global = true, value_name = "DEVICE|GB/S[:NS]", value_parser = parse_emulation)]
    pub(crate) emulate: Option<Emulation>,

    /// The size of a table file. For designs with table files, like the options up to
    /// --values-apart-from [default: 64MiB].
    #[arg(long, global = true, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) table_size: Option<u64>,

    /// The maximum size of the first level of table files below level 0; at least one table file
    /// [default: 256MiB; in flatlsm, where 256MiB is not a size of its own, 40/12 of all tables].
    #[arg(long, global = true, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) level1_size: Option<u64>,

    /// The budget of cached blocks of table files, including indexes and filters [default: 256MiB].
    #[arg(long, global = true, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) cache_size: Option<u64>,

    /// How new table files below level 1 are compressed; those above are not. "lz4" is fast and
    /// about half the size for text; "zstd" is smaller and slower to write, and needs a build with
    /// the feature "zstd" [default: lz4].
    #[arg(long, global = true, value_name = "HOW", value_parser = compressions())]
    pub(crate) compression: Option<Compression>,

    /// The size from which values are stored apart from their keys, in value files that compactions
    /// seldom rewrite, or "none": for large values and many writes [default: none; in flatlsm 257].
    #[arg(long, global = true, value_name = "SIZE|none", value_parser = parse_apart)]
    pub(crate) values_apart_from: Option<ApartFrom>,

    /// Whether reads or writes of table files bypass the operating system's cache, if the file
    /// system supports it [default: none].
    #[arg(long, global = true, value_name = "WHAT", value_enum)]
    pub(crate) direct_io: Option<DirectIoArg>,

    /// Open the database without changing a byte of it: several commands that read may do so at the
    /// same time, and those that write are refused.
    #[arg(long, global = true)]
    pub(crate) read_only: bool,

    /// Record the calls to the database in this file, for "terrace bench --trace".
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) record_trace: Option<PathBuf>,

    /// The keyspace to work in; put, load and ingest create it if it does not exist [default:
    /// default].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the value of a key; exit with 1 if the key does not exist.
    Get(GetArgs),
    /// Write a key and its value.
    Put(PutArgs),
    /// Delete keys; absent ones are no error.
    Delete(DeleteArgs),
    /// List keys and values in order.
    Scan(ScanArgs),
    /// Load a file of keys and values.
    Load(LoadArgs),
    /// Load a sorted file in bulk: past log and memtables, all of it at once or nothing.
    Ingest(IngestArgs),
    /// Write all keys and values of a keyspace to a file.
    Dump(DumpArgs),
    /// Show the contents of the database by tier.
    Stat(DbArg),
    /// Read everything and check it.
    Verify(DbArg),
    /// Copy the current state of the database into a new, independent one.
    Checkpoint(CheckpointArgs),
    /// Make a new database of the readable data of a damaged one, and report what is lost.
    Repair(RepairArgs),
    /// Move data as deep as it can go, without entries that can no longer be read.
    Compact(CompactArgs),
    /// List, create or drop keyspaces.
    #[command(subcommand, after_help = KEYSPACES)]
    Keyspaces(KeyspacesCommand),
    /// Show a table file: its properties, its blocks, its entries.
    SstDump(SstDumpArgs),
    /// Show a value file: the values that are stored apart from their keys.
    ValueDump(ValueDumpArgs),
    /// Show the logs of a database, their records and entries.
    LogDump(LogDumpArgs),
    /// Show the manifest: what is live, and the edits that led to it.
    ManifestDump(ManifestDumpArgs),
    /// Measure throughput and latency, next to the limit of the medium alone.
    Bench(Box<BenchArgs>),
}

/// The arguments of a command that needs only a database.
#[derive(Debug, Args)]
pub(crate) struct DbArg {
    /// The database's directory.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
}

/// `terrace get`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  terrace get /data/words hello
  terrace get /data/words picture --raw > picture.png")]
pub(crate) struct GetArgs {
    /// The database's directory.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// The key.
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// Write the value's exact bytes and nothing else, instead of escaping bytes that are not text.
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

/// How keys and values on the command line are read.
#[derive(Debug, Args)]
pub(crate) struct TextArgs {
    /// Read \t, \n, \r, \\ and \xNN in the arguments as the bytes they stand for.
    #[arg(long, short = 'e')]
    pub(crate) escaped: bool,
}

/// `terrace put`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  terrace put /data/words hello world
  terrace put /data/words picture --file picture.png
  terrace put /data/words session 7f3a --ttl 3600
  terrace put /data/words -e 'a\\x00key' 'two\\nlines'
  terrace put /mnt/pmem/db k v --pool /mnt/pmem/pool --pool-size 16GiB")]
pub(crate) struct PutArgs {
    /// The database's directory; it is created if it does not exist.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// The key.
    pub(crate) key: OsString,
    /// The value.
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub(crate) value: Option<OsString>,
    /// Take the value from this file, or from standard input ("-").
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Seconds after which the key is absent, like 0.5 for half a second.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) ttl: Option<f64>,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

/// `terrace delete`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  terrace delete /data/words hello goodbye
  terrace delete /data/words --from a --to b
  terrace delete /data/words --from zebra")]
pub(crate) struct DeleteArgs {
    /// The database's directory.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// The keys; all of them are deleted, or none is.
    #[arg(required_unless_present_any = ["from", "to"])]
    pub(crate) keys: Vec<OsString>,
    /// Delete all keys from this one on, itself included: one entry, however many keys there are.
    #[arg(long, value_name = "KEY", conflicts_with = "keys")]
    pub(crate) from: Option<OsString>,
    /// Delete all keys before this one.
    #[arg(long, value_name = "KEY", conflicts_with = "keys")]
    pub(crate) to: Option<OsString>,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

/// `terrace scan`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  terrace scan /data/words --prefix he
  terrace scan /data/words --from a --to b --limit 10
  terrace scan /data/words --reverse --limit 1 --keys-only    the last key")]
pub(crate) struct ScanArgs {
    /// The database's directory.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// Only keys with this prefix.
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<OsString>,
    /// Begin at this key, itself included.
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// End before this key.
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// From the last key to the first.
    #[arg(long)]
    pub(crate) reverse: bool,
    /// At most this many entries.
    #[arg(long, value_name = "COUNT")]
    pub(crate) limit: Option<u64>,
    /// Only the keys.
    #[arg(long, conflicts_with = "values_only")]
    pub(crate) keys_only: bool,
    /// Only the values.
    #[arg(long)]
    pub(crate) values_only: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// Write exact bytes, instead of escaping bytes that are not text.
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

/// `terrace keyspaces`
#[derive(Debug, Subcommand)]
pub(crate) enum KeyspacesCommand {
    /// List the keyspaces and the size of each.
    List(DbArg),
    /// Create a keyspace, unless it exists.
    Create(KeyspaceArgs),
    /// Drop a keyspace and everything in it.
    Drop(KeyspaceArgs),
}

/// A keyspace of a database.
#[derive(Debug, Args)]
pub(crate) struct KeyspaceArgs {
    /// The database's directory.
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
    /// The keyspace's name.
    pub(crate) name: String,
}

/// `--medium`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MediumArg {
    Auto,
    Dax,
    Mapped,
}

impl From<MediumArg> for MediumChoice {
    fn from(arg: MediumArg) -> MediumChoice {
        match arg {
            MediumArg::Auto => MediumChoice::Auto,
            MediumArg::Dax => MediumChoice::ForceDax,
            MediumArg::Mapped => MediumChoice::Mapped,
        }
    }
}

/// `--prefault`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrefaultArg {
    Ahead,
    All,
    None,
}

impl From<PrefaultArg> for Prefault {
    fn from(arg: PrefaultArg) -> Prefault {
        match arg {
            PrefaultArg::Ahead => Prefault::Ahead,
            PrefaultArg::All => Prefault::All,
            PrefaultArg::None => Prefault::None,
        }
    }
}

/// `--durability`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Not logged: durable after the next flush to a pool or to table files, or when the command
    /// has ended. FlatLsm logs it in a pool, and on "dax" flushes small writes 256 bytes together.
    /// A memtable of NoveLsm in the pool is its own log.
    Volatile,
    /// Logged: survives a crash of the process, on persistent memory also power loss.
    Buffered,
    /// Logged and synced: survives power loss on every medium.
    Sync,
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Durability {
        match arg {
            DurabilityArg::Volatile => Durability::Volatile,
            DurabilityArg::Buffered => Durability::Buffered,
            DurabilityArg::Sync => Durability::Sync,
        }
    }
}

/// `--direct-io`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DirectIoArg {
    /// Neither: recently written or read data stays in the operating system's cache, whose memory
    /// others can use.
    None,
    /// Reads: blocks are cached by the store and not twice.
    Reads,
    /// Writes: compactions evict nothing from the operating system's cache, and do not wait for it.
    Writes,
    /// Both.
    All,
}

impl DirectIoArg {
    /// Returns whether reads of tables are direct, and whether writes are.
    pub(crate) fn reads_and_writes(self) -> (bool, bool) {
        match self {
            DirectIoArg::None => (false, false),
            DirectIoArg::Reads => (true, false),
            DirectIoArg::Writes => (false, true),
            DirectIoArg::All => (true, true),
        }
    }
}

/// `--format`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    Tsv,
    Jsonl,
    #[value(alias = "raw-lines")]
    Lines,
}

/// `--on-error`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    Stop,
    Continue,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::parse::parse_seconds;
    use super::*;
    use clap::CommandFactory;

    /// The grammar has no contradictions.
    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    /// Options of the store are parsed before and after the command.
    #[test]
    fn options_go_anywhere() {
        for line in [
            "terrace --pool-size 2GiB --json get db key --medium dax",
            "terrace get --pool-size 2048M db key --json --medium dax",
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            assert_eq!(cli.store.pool_size, Some(2 << 30));
            assert_eq!(cli.store.medium, Some(MediumArg::Dax));
            assert!(cli.json);
        }
    }

    /// Numbers with units are parsed, or refused by name.
    #[test]
    fn units_are_understood() {
        assert_eq!(
            parse_emulation("2.5:300"),
            Ok(Emulation {
                write_gbps: 2.5,
                write_latency_ns: 300
            })
        );
        assert_eq!(
            parse_emulation("2"),
            Ok(Emulation {
                write_gbps: 2.0,
                write_latency_ns: 0
            })
        );
        assert!(parse_emulation("fast").is_err_and(|e| e.contains("optane, cxl")));
        assert_eq!(parse_emulation("optane"), parse_emulation("2.3:90"));
        assert_eq!(parse_emulation("cxl"), parse_emulation("20:250"));
        assert_eq!(parse_emulation("none"), parse_emulation("0"));
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(parse_seconds("-1").is_err());
        assert!(parse_design("nodb").is_err_and(|e| e.contains("miodb")));
    }
}
