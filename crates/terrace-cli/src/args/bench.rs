//! This file is the grammar of `terrace bench` and its commands, and their help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use terrace_bench::{Step, StoreKind, units};

use super::parse::parse_seconds;

const BENCH_HELP: &str = "\
Without arguments a database is made in a temporary folder, in memory (/dev/shm) where that has \
room, filled, read and removed again.

Benchmarks, with db_bench's names and meanings (each thread does the whole number of operations):
  fillseq           num keys in order, into a fresh database
  fillrandom        num random keys, into a fresh database
  overwrite         num random keys, into the database that is there
  readrandom        reads random keys
  readmissing       reads keys that nobody wrote
  readseq           reads entries in order
  readreverse       reads entries in reverse order
  seekrandom        makes an iterator at a random key and reads seek-nexts entries
  deleterandom      deletes num random keys
  readwhilewriting  readrandom, while one more thread overwrites
  killreopen        another process fills a fresh database and is killed with SIGKILL; what it left
                    is opened, timed, and every key read and compared
  drain flush wait  let background work settle: everything to the bottom; memtables to the
                    buffer; until it rests by itself

The limit beside each result is what the medium alone allows on as many threads, in the same run, \
pre-faulted: for writes the log's records appended with the same persist instructions and nothing \
else; for reads values copied out of the pool from random places (scans and seeks: in order; \
missing keys: one random cache line).

Latencies are from the end of one operation to the end of the next, in microseconds; readseq and \
readreverse are timed 64 entries at a time. Opening, pool creation and pre-faulting are in no \
figure but their own. Values that this run wrote are checked when they are read, and of one key in \
16 it is known whether it must be there; a wrong value or a lost key ends the run with the evidence.

With --json each phase is a line as soon as it has ended, and the run's end is one more; \
docs/benchmarking.md has the fields.

terrace bench compare runs a matrix of stores, workloads and sizes from a file and makes a report; \
terrace bench report makes one of results that are there.

Examples:
  terrace bench
  terrace bench --benchmarks fillrandom,drain,readrandom --num 1000000 --value-size 4096
  terrace bench --db /mnt/pmem/bench --pool-size 16GiB --medium dax --threads 2
  terrace bench --benchmarks readrandom --use-existing-db --db /mnt/pmem/bench --num 1000000
  terrace bench --benchmarks killreopen --store rocksdb
  terrace bench compare papers/miodb-fig6.toml";

const COMPARE_HELP: &str = "\
The file says what to compare; docs/benchmarking.md has every field:

  title = \"Leveled and MioDB\"
  repeats = 3                        runs of each, interleaved: A B A B A B
  spread_max = 0.10                  above it a line says so instead of giving a verdict
  baseline = \"leveled\"               what ratios are to
  value_sizes = [\"100\", \"1KiB\"]
  data_sizes = [\"256MiB\"]            keys and values; or num in settings
  [settings]                         options of terrace bench, for every store
  memtable-size = \"8MiB\"
  [[store]]
  name = \"leveled\"
  settings = { design = \"leveled\", pool = \"none\" }
  [[store]]
  name = \"rocksdb\"
  store = \"rocksdb\"                  a peer; this build must have it
  [[workload]]
  name = \"random\"
  prepare = []                       phases that are not compared: loads, warm-up
  measure = [\"fillrandom\", \"drain\", \"readrandom\"]

Every run is a process of its own (terrace bench --json), all on the same mount, one after the other. \
A store that fails, loses a key or gives a wrong value is reported with the evidence, and the others \
go on.

Beside FILE.toml come to be: FILE.jsonl, every result as it comes, and the folder FILE-report with \
index.html, which needs no network, and each picture as an SVG. A comparison that was interrupted \
(Ctrl-C, a crash) leaves a report of what was done and goes on where it was when it is started \
again: results of the same program and the same settings are kept.

Examples:
  terrace bench compare stores.toml --dry-run     what would run, and with which arguments
  terrace bench compare stores.toml --mount /mnt/huge
  terrace bench compare stores.toml               go on, or only make the report again";

/// Commands of `terrace bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Run a matrix of stores, workloads and sizes, and make a report of it.
    Compare(CompareArgs),
    /// Make a report of results that are there.
    Report(ReportArgs),
}

/// `terrace bench compare`
#[derive(Debug, Args)]
#[command(after_help = COMPARE_HELP)]
pub(crate) struct CompareArgs {
    /// What to compare.
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: PathBuf,
    /// The folder, which must exist, in which the databases of all runs are made and removed again
    /// [default: mount of the file, or a temporary folder, in memory where that has room].
    #[arg(long, value_name = "PATH")]
    pub(crate) mount: Option<PathBuf>,
    /// Where results are added, and looked for [default: FILE.jsonl].
    #[arg(long, value_name = "PATH")]
    pub(crate) results: Option<PathBuf>,
    /// The folder of the report [default: FILE-report].
    #[arg(long, value_name = "PATH")]
    pub(crate) report: Option<PathBuf>,
    /// Say what would run and stop.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `terrace bench report`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  terrace bench report stores.toml                      of stores.jsonl
  terrace bench report stores.toml --results old.jsonl --report old-report")]
pub(crate) struct ReportArgs {
    /// What was compared.
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: PathBuf,
    /// The results [default: FILE.jsonl].
    #[arg(long, value_name = "PATH")]
    pub(crate) results: Option<PathBuf>,
    /// The folder of the report [default: FILE-report].
    #[arg(long, value_name = "PATH")]
    pub(crate) report: Option<PathBuf>,
}

/// `terrace bench`
#[derive(Debug, Args)]
#[command(after_help = BENCH_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// What to do, in order [default: fillseq,fillrandom,readrandom,drain,readrandom,readseq,
    /// readreverse,seekrandom,overwrite,readmissing,deleterandom].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) benchmarks: Vec<Step>,
    /// The store to measure: "terrace", "empty", which does nothing and shows what the harness costs,
    /// or a peer, "rocksdb" or "redb", in a build with the feature of that name [default: terrace].
    #[arg(long, value_name = "NAME")]
    pub(crate) store: Option<StoreKind>,
    /// Keys, and writes of each writing thread [default: 300000].
    #[arg(long, value_name = "COUNT")]
    pub(crate) num: Option<u64>,
    /// Operations of each reading thread [default: num].
    #[arg(long, value_name = "COUNT")]
    pub(crate) reads: Option<u64>,
    /// Bytes of a key [default: 16].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) key_size: Option<u64>,
    /// Bytes of a value [default: 1024].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) value_size: Option<u64>,
    /// Client threads [default: 1].
    #[arg(long, value_name = "COUNT")]
    pub(crate) threads: Option<usize>,
    /// Entries of one write [default: 1].
    #[arg(long, value_name = "COUNT")]
    pub(crate) batch_size: Option<usize>,
    /// Entries read after each seek [default: 10].
    #[arg(long, value_name = "COUNT")]
    pub(crate) seek_nexts: Option<u64>,
    /// Sync every write; the same as --durability sync.
    #[arg(long, conflicts_with = "durability")]
    pub(crate) sync: bool,
    /// The database's folder; it is kept [default: a temporary one].
    #[arg(long, value_name = "PATH")]
    pub(crate) db: Option<PathBuf>,
    /// Use the database that is there; fills that want a fresh one are skipped.
    #[arg(long, requires = "db")]
    pub(crate) use_existing_db: bool,
    /// Remove the database that is there.
    #[arg(long, requires = "db", conflicts_with = "use_existing_db")]
    pub(crate) replace_db: bool,
    /// Where keys and values come from [default: 301].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// Print the distribution of the latencies.
    #[arg(long)]
    pub(crate) histogram: bool,
    /// Print a line every so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) report_interval: Option<Duration>,
    /// Be the process that killreopen kills.
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) victim: Option<PathBuf>,
}
