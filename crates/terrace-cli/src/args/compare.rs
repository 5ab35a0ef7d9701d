//! The grammar of `terrace bench compare`, `report` and `papers`, and their help.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use terrace_bench::compare::Scale;

const COMPARE_HELP: &str = "\
The file defines the comparison; docs/benchmarking.md has every field:

  title = \"Leveled and MioDB\"
  repeats = 3                        runs of each, interleaved: A B A B A B
  spread_max = 0.10                  a larger spread gets no verdict
  baseline = \"leveled\"               the base of all ratios
  value_sizes = [\"100\", \"1KiB\"]
  data_sizes = [\"256MiB\"]            keys and values; or num in settings
  [settings]                         options of terrace bench, for every store
  memtable-size = \"8MiB\"
  [[store]]
  name = \"leveled\"
  settings = { design = \"leveled\", pool = \"none\" }
  [[store]]
  name = \"rocksdb\"
  store = \"rocksdb\"                  a peer, which this build must support
  [[workload]]
  name = \"random\"
  prepare = []                       phases that are not compared: loads, warm-up
  measure = [\"fillrandom\", \"drain\", \"readrandom\"]

Every run is a separate process (terrace bench --json); all use the same mount, one after the \
other. A store that fails, loses a key or returns a wrong value is reported with the evidence, and \
the others continue.

The results are written next to FILE.toml: each result to FILE.jsonl as it arrives, and the report \
to the directory FILE-report, with index.html, which needs no network, and each picture as an SVG. \
An interrupted comparison (Ctrl-C, a crash) leaves a report of the finished runs, and continues \
when it is started again: results of the same program and settings are kept.

Examples:
  terrace bench compare stores.toml --dry-run     what would run, and with which arguments
  terrace bench compare stores.toml --scale 1/64  a trial run, in minutes
  terrace bench compare stores.toml --mount /mnt/huge
  terrace bench compare stores.toml               continue, or only rebuild the report";

/// Commands of `terrace bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Run a matrix of stores, workloads and sizes, and make a report of it.
    Compare(CompareArgs),
    /// Make a report of existing results.
    Report(ReportArgs),
    /// Make the page that shows papers' figures next to those measured here.
    Papers(PapersArgs),
}

/// `terrace bench compare`
#[derive(Debug, Args)]
#[command(after_help = COMPARE_HELP)]
pub(crate) struct CompareArgs {
    /// The file of the comparison.
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: PathBuf,
    /// The existing directory in which the databases of all runs are made and removed again
    /// [default: mount of the file, or a temporary directory, in memory if that has enough space].
    #[arg(long, value_name = "PATH")]
    pub(crate) mount: Option<PathBuf>,
    /// The existing directory in which the pools of Terrace are made instead: memory, or persistent
    /// memory, while the mount is a disk [default: with their databases].
    #[arg(long, value_name = "PATH")]
    pub(crate) pool_mount: Option<PathBuf>,
    /// Run each store this many times, instead of the file's repeats. With a larger number later,
    /// only the missing runs are made.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeats: Option<u32>,
    /// The file to which results are appended, and from which earlier ones are read [default:
    /// FILE.jsonl].
    #[arg(long, value_name = "PATH")]
    pub(crate) results: Option<PathBuf>,
    /// The directory of the report [default: FILE-report].
    #[arg(long, value_name = "PATH")]
    pub(crate) report: Option<PathBuf>,
    /// Run only this part of the data and the operations, to see that all of it runs: 1/64, 0.1.
    /// Results and report have separate names, and state that they are of a trial.
    #[arg(long, value_name = "PART")]
    pub(crate) scale: Option<Scale>,
    /// Print the runs and stop.
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
    /// The file of the comparison.
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: PathBuf,
    /// The results [default: FILE.jsonl].
    #[arg(long, value_name = "PATH")]
    pub(crate) results: Option<PathBuf>,
    /// The directory of the report [default: FILE-report].
    #[arg(long, value_name = "PATH")]
    pub(crate) report: Option<PathBuf>,
}

const PAPERS_HELP: &str = "\
A comparison with a [paper] section repeats figures of a paper. This command puts all of them into \
one page, with a table for each paper, and measures nothing:

  1. Where FILE.jsonl is next to FILE.toml (terrace bench compare wrote it), its medians, their \
range and their conditions are written to a summary, PAGE/FILE.json: docs/results/papers/FILE.json \
for docs/results/papers.md. Results of other settings than those in FILE.toml are left out.
  2. Where it is not, an existing summary is used; commit summaries with the page, since raw \
results are too large. Without either, the table says \"not run\".
  3. The page is written. The same files and summaries give the same bytes.

What a result means is a sentence of yours in FILE.toml:

  [paper]
  name = \"MioDB (ASPLOS 2023)\"                files with one name share a table
  title = \"figure 6\"
  scale = 16                                   at 1/16 of the paper's size
  says = \"...\"                               the differences, below the table
  [[paper.value]]
  what = \"random write\"
  source = \"section 5.1\"
  paper = [\"MioDB\", \"MatrixKV\"]
  ratio = 2.5
  here = [\"miodb\", \"leveled\"]              omit it if nothing is comparable, and say so in note
  measure = \"throughput\"
  phase = \"fillrandom\"
  reading = \"As in the paper.\"

Examples:
  terrace bench compare papers/miodb-fig6.toml --mount /mnt/huge   measure, for hours
  terrace bench papers                                             then refresh the page
  terrace bench papers papers/miodb-*.toml --out miodb.md          a page of one paper
  terrace bench papers papers/miodb-fig6.toml --results old.jsonl --out fig6.md";

/// `terrace bench papers`
#[derive(Debug, Args)]
#[command(after_help = PAPERS_HELP)]
pub(crate) struct PapersArgs {
    /// The files of the comparisons [default: papers/*.toml; those without a paper are left out].
    #[arg(value_name = "FILE.toml")]
    pub(crate) files: Vec<PathBuf>,
    /// The results of the only FILE [default: FILE.jsonl, if it exists].
    #[arg(long, value_name = "PATH")]
    pub(crate) results: Option<PathBuf>,
    /// The page; its summaries are in a directory of its name, without the extension.
    #[arg(long, value_name = "PATH", default_value = "docs/results/papers.md")]
    pub(crate) out: PathBuf,
}
