//! The arguments of `terrace bench` and their help.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use terrace_bench::{Arrivals, Step, StoreKind, units};

use super::compare::BenchCommand;
use super::parse::parse_seconds;

const BENCH_HELP: &str = "\
Without arguments a database is created in a temporary directory, in memory (/dev/shm) if that has \
enough space, then filled, read and removed.

Benchmarks, with db_bench's names and meanings (each thread does the whole number of operations):
  fillseq fillbatch       num keys in order, into a fresh database; in batches of 1000
  fillrandom              num random keys, into a fresh database
  filluniquerandom        num keys in random order, each once, into a fresh database
  overwrite               num random keys, into the existing database
  readrandom readhot      reads random keys; random keys of the first hundredth
  multireadrandom         readrandom, batch-size keys in one call
  readmissing             reads absent keys
  readseq readreverse     reads entries in order; in reverse order
  seekrandom              seeks to a random key and reads seek-nexts entries
  updaterandom            reads a random key and writes it
  readrandomwriterandom   reads and writes random keys, read-percent of them reads
  deleteseq deleterandom  deletes num keys in order; random keys
  readwhilewriting        readrandom, while one more thread overwrites
  seekrandomwhilewriting  seekrandom, while one more thread overwrites
  queue                   puts num keys at the end of a queue, and takes each from its head: seeks it
                          from the start of the queue, past all deleted keys, and deletes it
  killreopen              another process fills a fresh database and is killed with SIGKILL; the
                          database is opened, timed, and every key read and compared
  drain flush wait        background work: move all data to the bottom; memtables to the
                          buffer; wait until it is idle

Benchmarks of YCSB, on num records of 1000 B, with --reads operations, shared by the threads:
  ycsb-load               loads the records, into a fresh database
  ycsb-a ... ycsb-f       the standard workloads: a updates half, b reads mostly, c reads only, d reads
                          the latest, e scans, f reads, modifies and writes
  ycsb-run                the workload of the property file that --ycsb names
  churn                   skewed overwrites, each of another size: makes garbage

  replay                  the calls of the trace that --trace names, into a fresh database; threads
                          take them in turn

With --rate the loop is open: operations begin when they arrive, not when the last one has ended, \
and latencies count from the intended start, so a stall shows in all operations that it delayed.

The limit next to each result is the rate of the medium alone with as many threads, in the same \
run, pre-faulted: for writes, appending the log's records with the same persist instructions; for \
reads, copying values out of the pool at random offsets (scans and seeks: in order; missing keys: \
one random cache line).

Latencies are from the end of one operation to the end of the next, in microseconds; readseq and \
readreverse are timed 64 entries at a time. Opening, pool creation and pre-faulting are reported \
separately. Values written by this run are checked when they are read, and one key in 16 is \
tracked, so that its loss is detected; a wrong value or a lost key ends the run with the evidence.

With --json each phase prints a line when it ends, and the end of the run another; \
docs/benchmarking.md has the fields.

terrace bench compare runs a matrix of stores, workloads and sizes from a file and makes a report; \
terrace bench report makes a report of existing results. terrace bench papers makes a page of all \
comparisons with papers.

Examples:
  terrace bench
  terrace bench --benchmarks fillrandom,drain,readrandom --num 1000000 --value-size 4096
  terrace bench --db /mnt/pmem/bench --pool-size 16GiB --medium dax --threads 2
  terrace bench --benchmarks readrandom --use-existing-db --db /mnt/pmem/bench --num 1000000
  terrace bench --benchmarks ycsb-load,ycsb-a,ycsb-c --num 1000000 --threads 4
  terrace bench --ycsb workloads/workloadb -p recordcount=1000000 --rate 50000 --threads 4
  terrace bench --benchmarks ycsb-load,churn,wait --value-size 64KiB --num 20000
  terrace bench --benchmarks queue --num 1000000 --value-size 100
  terrace load /tmp/words words.tsv --record-trace words.trace
  terrace bench --benchmarks replay --trace words.trace --store redb

  terrace bench --benchmarks killreopen --store rocksdb
  terrace bench compare papers/miodb-fig6.toml";

/// `terrace bench`
#[derive(Debug, Args)]
#[command(after_help = BENCH_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// The steps, in order [default: fillseq,fillrandom,readrandom,drain,readrandom,readseq,
    /// readreverse,seekrandom,overwrite,readmissing,deleterandom; with --ycsb: ycsb-load,ycsb-run].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) benchmarks: Vec<Step>,
    /// The store to measure: "terrace", "empty", which does nothing and shows the cost of the
    /// harness, or a peer, "rocksdb", "leveldb", "lmdb", "redb", "fjall" or "sled", in a build with
    /// the feature of that name [default: terrace].
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
    /// Bytes of a value [default: 1024; of a record of YCSB: fieldcount * fieldlength, 1000].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) value_size: Option<u64>,
    /// Values of all sizes from this one to value-size, the same for the same key; records of YCSB:
    /// a new size with every write.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) value_size_min: Option<u64>,
    /// Client threads [default: 1].
    #[arg(long, value_name = "COUNT")]
    pub(crate) threads: Option<usize>,
    /// Entries of one write, and keys of one read of multireadrandom [default: 1].
    #[arg(long, value_name = "COUNT")]
    pub(crate) batch_size: Option<usize>,
    /// Entries read after each seek [default: 10].
    #[arg(long, value_name = "COUNT")]
    pub(crate) seek_nexts: Option<u64>,
    /// Reads in a hundred operations of readrandomwriterandom [default: 90].
    #[arg(long, value_name = "PERCENT")]
    pub(crate) read_percent: Option<u32>,
    /// Keys in each queue of the step queue [default: 1000].
    #[arg(long, value_name = "COUNT")]
    pub(crate) queue_depth: Option<u64>,
    /// Operations a second that arrive at all client threads together, even if the store cannot
    /// keep up [default: each begins when the thread's last one has ended].
    #[arg(long, value_name = "COUNT")]
    pub(crate) rate: Option<f64>,
    /// The distances of arrivals: "constant", all equal, or "poisson", random [default: constant].
    #[arg(long, value_name = "NAME", requires = "rate")]
    pub(crate) arrivals: Option<Arrivals>,
    /// Writes a second of the thread that writes while others read [default: unlimited].
    #[arg(long, value_name = "COUNT")]
    pub(crate) writer_rate: Option<f64>,
    /// A workload of YCSB: a property file of its core package, or the name of a standard one, a to
    /// f. ycsb-run runs it, ycsb-load loads its records.
    #[arg(long, value_name = "FILE")]
    pub(crate) ycsb: Option<String>,
    /// A property of YCSB that overrides that of any workload; may be given more than once.
    #[arg(short = 'p', long = "ycsb-property", value_name = "NAME=VALUE")]
    pub(crate) ycsb_property: Vec<String>,
    /// The trace that replay replays: a recording of another command (--record-trace) or of a
    /// program (DbBuilder::trace).
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Sync every write; the same as --durability sync.
    #[arg(long, conflicts_with = "durability")]
    pub(crate) sync: bool,
    /// Levels of the elastic buffer, 1 to 32, in designs that have one [default: 8].
    #[arg(long, value_name = "COUNT")]
    pub(crate) levels: Option<u32>,
    /// Threads for background work other than flushes, 1 to 12 [default: one for each two cores,
    /// and one more if a buffer drains to files].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=12))]
    pub(crate) workers: Option<u8>,
    /// Threads that only merge tables of the elastic buffer, 0 to 11; at most one is used for each
    /// level but the last. 0: merges share the other threads [default: 0].
    #[arg(long, value_name = "COUNT")]
    pub(crate) merge_threads: Option<usize>,
    /// Threads that take part in point reads whose key is not in a memtable, 0 to 64 [default: 0].
    #[arg(long, value_name = "COUNT")]
    pub(crate) read_workers: Option<usize>,
    /// Whether rows are searched by forward pointers, "true" or "false", in matrixkv [default:
    /// true].
    #[arg(long, value_name = "BOOL")]
    pub(crate) hints: Option<bool>,
    /// Whether rows leave in columns, "true" or "false", in matrixkv; else all at once [default:
    /// true].
    #[arg(long, value_name = "BOOL")]
    pub(crate) columns: Option<bool>,
    /// Whether level 1 is as large as the pool, "true" or "false", in matrixkv [default: true].
    #[arg(long, value_name = "BOOL")]
    pub(crate) flattened: Option<bool>,
    /// The number of sealed tables from which on they drain, 1 to 64, in flatlsm [default: 4].
    #[arg(long, value_name = "COUNT")]
    pub(crate) flush_count: Option<usize>,
    /// The maximum number of tables, with the one that is written, in flatlsm [default: 6].
    #[arg(long, value_name = "COUNT")]
    pub(crate) tables_max: Option<usize>,
    /// A separate directory for level 0, in leveled and rocksdb, absolute or relative to the
    /// database's directory. RocksDB keeps its log there too.
    #[arg(long, value_name = "PATH")]
    pub(crate) level0: Option<PathBuf>,
    /// The size at which level 0 stops writers, in leveled and rocksdb; it is compacted from half
    /// of it on [default: 36 memtables, compacted from 4 on].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub(crate) level0_size: Option<u64>,
    /// The database's directory; it is kept [default: a temporary one].
    #[arg(long, value_name = "PATH")]
    pub(crate) db: Option<PathBuf>,
    /// Use the existing database; fills that want a fresh one are skipped.
    #[arg(long, requires = "db")]
    pub(crate) use_existing_db: bool,
    /// Remove the existing database.
    #[arg(long, requires = "db", conflicts_with = "use_existing_db")]
    pub(crate) replace_db: bool,
    /// The seed of keys and values [default: 301].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// Print the distribution of the latencies.
    #[arg(long)]
    pub(crate) histogram: bool,
    /// Print a line each time this many seconds have passed.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) report_interval: Option<Duration>,
    /// Be the process that killreopen kills.
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) victim: Option<PathBuf>,
}
