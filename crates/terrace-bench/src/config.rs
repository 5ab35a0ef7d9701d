//! The configuration of a benchmark run, with the names and meanings of db_bench's flags.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use terrace::{KEY_BYTES_MAX, Options, Workers};

use crate::error::BenchError;
use crate::records::RecordKeys;
use crate::schedule::Arrivals;
use crate::step::{Contents, DEFAULT_STEPS, Step, check_order};
use crate::store::StoreKind;
use crate::trace::Trace;
use crate::units;
use crate::ycsb::{Properties, Workload};

/// The directory of level 0, in the one that was given.
const LEVEL0_FOLDER: &str = "bench-level0";

/// Everything that a run depends on. Names in capitals are flags of db_bench.
#[derive(Debug, Clone)]
pub struct BenchConfig {
    /// `--benchmarks`: the steps, in order.
    pub steps: Vec<Step>,
    /// `--num`: the number of keys, and of writes of each writing thread.
    pub num: u64,
    /// `--reads`: operations of each reading thread; `None` means `num`.
    pub reads: Option<u64>,
    /// `--key_size`: bytes of a key.
    pub key_bytes: usize,
    /// `--value_size`: bytes of a value, or of the longest one if sizes are mixed. YCSB's records
    /// have the sizes of their properties.
    pub value_bytes: usize,
    /// `--value_size_min`: value sizes are uniform from this one to `value_bytes` and fixed for
    /// each key; `None` gives all values the same size.
    pub value_bytes_min: Option<usize>,
    /// `--threads`: client threads of a workload.
    pub threads: usize,
    /// `--batch_size`: entries of one write, and keys of one read of `MultiReadRandom`.
    pub batch_count: usize,
    /// `--seek_nexts`: entries read after each seek.
    pub seek_nexts: u64,
    /// `--readwritepercent`: reads in a hundred operations of `ReadRandomWriteRandom`.
    pub read_percent: u32,
    /// Keys in each queue of `Queue`.
    pub queue_depth: u64,
    /// Operations a second that arrive at all client threads together, even if the store cannot
    /// keep up; latencies count from the scheduled start. With `None`, a thread starts an operation
    /// when its previous one has ended.
    pub rate: Option<f64>,
    /// The distances between arrivals.
    pub arrivals: Arrivals,
    /// `--benchmark_write_rate_limit`, in operations: writes a second of the one thread that writes
    /// while others read. `None` sets no limit.
    pub writer_rate: Option<f64>,
    /// The workload of [`Step::YcsbRun`], whose records [`Step::YcsbLoad`] loads.
    pub ycsb: Option<Properties>,
    /// Properties of YCSB that override those of every workload.
    pub ycsb_over: Properties,
    /// The trace that [`Step::Replay`] replays.
    pub trace: Option<Arc<Trace>>,
    /// `--use_existing_db`: keep the existing database; fills that want a fresh one are skipped.
    pub use_existing_db: bool,
    /// Whether a database found at `db` may be removed to make a fresh one.
    pub replace_db: bool,
    /// `--seed`: the seed of keys and values.
    pub seed: u64,
    /// `--histogram`: print the distribution of each workload.
    pub histogram: bool,
    /// `--report_interval_seconds`: print one line for each such interval of a workload.
    pub report_interval: Option<Duration>,
    /// The measured store.
    pub store: StoreKind,
    /// `--db`: the directory; `None` makes a temporary one and removes it at the end.
    pub db: Option<PathBuf>,
    /// Options of Terrace. `durability` applies to every write; peers get the same memory and
    /// compression if they have such settings.
    pub options: Options,
    /// The pool's cap; `None` derives it from `num` and the sizes, or keeps the cap of a database
    /// that is used as it is.
    pub pool_bytes: Option<u64>,
    /// A separate directory for level 0, absolute or relative to the database's. RocksDB keeps its
    /// log there too. `None`: level 0 is among the other files.
    pub level0: Option<PathBuf>,
    /// The size of level 0, in bytes: it is compacted from half of it on, and writers wait at the
    /// whole of it. `None`: as usual.
    pub level0_bytes: Option<u64>,
    /// The arguments with which killreopen starts this program, so that it reaches
    /// [`crate::victim`] with the same configuration once `--victim FOLDER` is added; `None` if it
    /// cannot be started so.
    pub victim_args: Option<Vec<OsString>>,
}

impl Default for BenchConfig {
    fn default() -> BenchConfig {
        BenchConfig {
            steps: DEFAULT_STEPS.to_vec(),
            num: 300_000,
            reads: None,
            key_bytes: 16,
            value_bytes: 1024,
            value_bytes_min: None,
            threads: 1,
            batch_count: 1,
            seek_nexts: 10,
            read_percent: 90,
            queue_depth: 1000,
            rate: None,
            arrivals: Arrivals::Constant,
            writer_rate: None,
            ycsb: None,
            ycsb_over: Properties::default(),
            trace: None,
            use_existing_db: false,
            replace_db: false,
            seed: 301,
            histogram: false,
            report_interval: None,
            store: StoreKind::Terrace,
            db: None,
            options: Options::default(),
            pool_bytes: None,
            level0: None,
            level0_bytes: None,
            victim_args: None,
        }
    }
}

impl BenchConfig {
    /// Returns the operations of each reading thread.
    pub fn reads(&self) -> u64 {
        self.reads.unwrap_or(self.num)
    }

    /// Returns the length of the shortest value.
    pub(crate) fn value_bytes_min(&self) -> usize {
        self.value_bytes_min.unwrap_or(self.value_bytes)
    }

    /// Returns the YCSB workload that `step` runs, or `None` if it runs none. The load phase uses
    /// that of the property file, or YCSB's defaults, which all standard workloads share.
    pub(crate) fn workload_of(&self, step: Step) -> Result<Option<Workload>, String> {
        if step.contents() != Some(Contents::Records) {
            return Ok(None);
        }
        let properties = match (step.standard_workload(), &self.ycsb) {
            (Some(name), _) => Workload::standard(name)?,
            (None, Some(properties)) => properties.clone(),
            (None, None) if step == Step::YcsbLoad => Properties::default(),
            (None, None) => {
                return Err(format!("{step} runs a property file: give one with --ycsb"));
            }
        };
        let properties = properties.with(&self.ycsb_over);
        let workload = Workload::of(&properties, self.num, self.reads());
        workload.map(Some).map_err(|e| format!("{step}: {e}"))
    }

    /// Returns the options of the store, including the size of the pool.
    pub fn store_options(&self) -> Options {
        let mut options = self.options.clone();
        if self.store != StoreKind::Terrace {
            options.pool.path = None;
        }
        if let Some(bytes) = self.level0_bytes {
            let runs = (bytes / options.front.memtable_bytes.max(1)) as usize;
            let leveled = &mut options.bottom.leveled;
            leveled.runs_compact = (runs / 2).clamp(1, 64);
            leveled.runs_slow = (runs / 4 * 3).max(leveled.runs_compact);
            leveled.runs_stop = runs.max(leveled.runs_slow + 1);
        }
        // A pool in limited memory gets its size from that limit.
        let has_size = options.memory_bytes.is_some() && options.pool.path.is_none();
        if let Some(bytes) = self.pool_bytes {
            options.pool.size_bytes = bytes;
        } else if !self.use_existing_db && !has_size {
            options.pool.size_bytes = self.derived_pool_bytes();
        }
        options
    }

    /// Returns the directory of level 0, if there is one: it is made in the directory that was
    /// given, which may have files of others. `folder` is that of the store.
    pub(crate) fn level0_in(&self, folder: &Path) -> Option<PathBuf> {
        let given = self.level0.as_ref();
        given.map(|path| folder.join(path).join(LEVEL0_FOLDER))
    }

    /// Returns `options` for a store in `folder`, and makes the directory of its level 0 if there
    /// is one.
    pub(crate) fn options_in(
        &self,
        folder: &Path,
        options: &Options,
    ) -> Result<Options, BenchError> {
        let mut options = options.clone();
        if let Some(level0) = self.level0_in(folder) {
            fs::create_dir_all(&level0).map_err(|e| BenchError::io("create", &level0, e))?;
            options.bottom.leveled.level0_dir = Some(level0);
        }
        Ok(options)
    }

    /// Returns the size of a pool with enough space for the run: logs and tables of all memtables,
    /// and what several threads write in addition. If data stays in the pool, this includes three
    /// copies of it (tables, repository and its garbage); otherwise, the free space below which the
    /// store slows writers.
    fn derived_pool_bytes(&self) -> u64 {
        let front = &self.options.front;
        let (copies, free) = match self.options.design_of_new().keeps_data_in_pool() {
            true => (2 + self.threads as u64, 0),
            false => (0, 3),
        };
        let memtables =
            (front.sealed_count_max as u64 + 3 + free) * 2 * (front.memtable_bytes + (1 << 20));
        let data = self.data_bytes();
        let bytes = data
            .saturating_mul(copies)
            .saturating_add(memtables)
            .saturating_add(8 * self.options.bottom.extent_bytes);
        bytes.saturating_add((16 << 20) - 1) & !((16 << 20) - 1)
    }

    /// Estimates the bytes that the run may take on the file system of its database.
    pub fn needed_bytes(&self) -> u64 {
        self.place_bytes(&self.store_options())
    }

    /// Returns the bytes that the database may take on its file system: the pool, and table files
    /// including those that a compaction has not removed yet.
    pub(crate) fn place_bytes(&self, options: &Options) -> u64 {
        match self.store {
            StoreKind::Terrace => {}
            StoreKind::Empty => return 0,
            // Logs and data, and both again during a compaction or a copy on write.
            _ => return self.data_bytes().saturating_mul(3 + self.threads as u64),
        }
        let copies = match options.design_of_new().keeps_table_files() {
            true => 1 + self.threads as u64,
            false => 0,
        };
        let files = self.data_bytes().saturating_mul(copies);
        options.pool.size_bytes.saturating_add(files)
    }

    /// Estimates the bytes of the entries of the largest step as the store keeps them.
    pub(crate) fn data_bytes(&self) -> u64 {
        let entries = |count: u64, key: usize, value: usize| {
            count.saturating_mul((key as u64 + value as u64 + 64).next_multiple_of(64))
        };
        let of = |step: &Step| match self.workload_of(*step) {
            _ if *step == Step::Replay => self.trace.as_ref().map_or(0, |trace| {
                let entries = trace.calls().saturating_mul(64);
                trace.written_bytes.saturating_add(entries)
            }),
            Ok(Some(workload)) => {
                let records = workload.loaded.saturating_add(workload.inserts_to_come());
                let key_bytes = RecordKeys::bytes_max(workload.padding);
                entries(records, key_bytes, workload.record_bytes_max())
            }
            _ => entries(self.num, self.key_bytes, self.value_bytes),
        };
        let all = self.steps.iter().filter(|step| !step.settles()).map(of);
        all.max().unwrap_or(0)
    }

    /// Returns the length of the longest value of any step.
    pub(crate) fn value_bytes_max(&self) -> usize {
        let records = self
            .steps
            .iter()
            .filter_map(|step| self.workload_of(*step).ok()?);
        let longest = records.map(|workload| workload.record_bytes_max()).max();
        let traced = self.trace.as_ref().map_or(0, |trace| trace.value_bytes_max);
        longest.unwrap_or(0).max(self.value_bytes).max(traced)
    }

    /// Checks the settings; the error names every invalid one.
    pub fn validate(&self) -> Result<(), String> {
        let mut problems = Vec::new();
        let mut check = |ok: bool, problem: String| {
            if !ok {
                problems.push(problem);
            }
        };
        check(!self.steps.is_empty(), "no benchmark was given".to_string());
        check(self.num >= 1, "num must be at least 1".to_string());
        check(
            (1..KEY_BYTES_MAX).contains(&self.key_bytes),
            format!(
                "key-size is {}, but must be 1 to {}",
                self.key_bytes,
                KEY_BYTES_MAX - 1
            ),
        );
        let keys = 10u64
            .checked_pow(self.key_bytes.min(20) as u32)
            .unwrap_or(u64::MAX);
        let numbers = match self.steps.contains(&Step::Queue) {
            true => self.num.saturating_mul(self.threads as u64),
            false => self.num,
        };
        check(
            numbers <= keys,
            format!(
                "keys of {} digits cannot represent {numbers} distinct numbers",
                self.key_bytes
            ),
        );
        check(
            self.value_bytes_min() <= self.value_bytes,
            format!(
                "value-size-min is {}, but must be at most value-size, {}",
                self.value_bytes_min(),
                self.value_bytes
            ),
        );
        check(
            self.read_percent <= 100,
            format!(
                "read-percent is {}, but must be 0 to 100",
                self.read_percent
            ),
        );
        check(
            self.queue_depth >= 1,
            "queue-depth must be at least 1".to_string(),
        );
        for (name, rate) in [("rate", self.rate), ("writer-rate", self.writer_rate)] {
            check(
                rate.is_none_or(|rate| (0.001..=1e9).contains(&rate)),
                format!(
                    "{name} is {}, but must be 0.001 to 1000000000",
                    rate.unwrap_or(0.0)
                ),
            );
        }
        check(
            self.trace.is_some() || !self.steps.contains(&Step::Replay),
            "replay needs a trace: give one with --trace".to_string(),
        );
        for step in &self.steps {
            let workload = self.workload_of(*step);
            check(workload.is_ok(), workload.err().unwrap_or_default());
        }
        if !self.use_existing_db {
            let order = check_order(&self.steps);
            check(order.is_ok(), order.err().unwrap_or_default());
        }
        check(
            self.value_bytes <= 1 << 30,
            format!(
                "value-size is {}, but must be at most 1 GiB",
                self.value_bytes
            ),
        );
        check(
            (1..=1024).contains(&self.threads),
            format!("threads are {}, but must be 1 to 1024", self.threads),
        );
        check(
            (1..=1_000_000).contains(&self.batch_count),
            format!(
                "batch-size is {}, but must be 1 to 1000000",
                self.batch_count
            ),
        );
        check(
            self.store.is_built(),
            format!(
                "this build has no {0}: build it with --features {0}",
                self.store
            ),
        );
        check(
            !self.steps.contains(&Step::KillReopen) || self.options.logs_of_new(),
            "killreopen loses unlogged writes: use --durability buffered or sync".to_string(),
        );
        check(
            self.report_interval != Some(Duration::ZERO),
            "report-interval must be greater than 0".to_string(),
        );
        check(
            self.level0_bytes
                .is_none_or(|bytes| bytes / 2 >= self.options.front.memtable_bytes),
            "level0-size must be at least two memtables".to_string(),
        );
        check(
            !self.use_existing_db || self.db.is_some(),
            "use-existing-db needs a database: give its directory with --db".to_string(),
        );
        check(
            !(self.use_existing_db && self.replace_db),
            "--use-existing-db and --replace-db exclude each other".to_string(),
        );
        if problems.is_empty() {
            return Ok(());
        }
        Err(format!("cannot run the benchmark: {}", problems.join("; ")))
    }
}

/// Returns the settings of the buffer and of background threads that differ from the defaults.
pub(crate) fn engine_settings(options: &Options) -> Option<String> {
    let plural = |count: u64, one: &str| match count {
        1 => format!("1 {one}"),
        n => format!("{n} {one}s"),
    };
    let mut parts = Vec::new();
    match options.design_of_new().buffer() {
        Some("matrix") => {
            let matrix = &options.buffer.matrix;
            let switches = [
                ("hints", matrix.hints),
                ("columns", matrix.columns),
                ("flattened", matrix.flattened),
            ];
            let off = switches.iter().filter(|(_, on)| !on);
            parts.extend(off.map(|(name, _)| format!("no {name}")));
        }
        Some("elastic") => {
            let levels = options.buffer.levels;
            // At most one for each level that merges.
            let merging = (levels as usize).saturating_sub(1);
            let threads = options.background.merge_threads.min(merging);
            if levels != Options::default().buffer.levels || threads > 0 {
                parts.push(plural(u64::from(levels), "level"));
                parts.push(plural(threads as u64, "merge thread"));
            }
            let has_one = options.design_of_new().has_pm_memtable() && options.pool.path.is_some();
            if let Some(bytes) = options.front.pm_memtable_bytes.filter(|_| has_one) {
                parts.push(format!("memtable in the pool {}", units::bytes(bytes)));
            }
        }
        Some("tables") => {
            let (tables, usual) = (&options.buffer.tables, Options::default().buffer.tables);
            let counts = (tables.flush_count, tables.count_max);
            if counts != (usual.flush_count, usual.count_max) {
                parts.push(format!("{} of {} tables drain", counts.0, counts.1));
            }
        }
        _ => {}
    }
    if let Workers::Threads(count) = options.background.workers {
        parts.push(plural(count as u64, "worker"));
    }
    if options.background.read_workers > 0 {
        let count = options.background.read_workers;
        parts.push(plural(count as u64, "read worker"));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace::Design;

    /// The defaults are valid, and the error names all invalid settings.
    #[test]
    fn bad_settings_are_named_together() {
        assert_eq!(BenchConfig::default().validate(), Ok(()));
        let config = BenchConfig {
            num: 1000,
            key_bytes: 2,
            threads: 0,
            batch_count: 0,
            use_existing_db: true,
            value_bytes_min: Some(5000),
            rate: Some(0.0),
            read_percent: 101,
            queue_depth: 0,
            steps: vec![Step::FillSeq, Step::YcsbRun, Step::Replay],
            ..BenchConfig::default()
        };
        let problems = config.validate().expect_err("ten settings are bad");
        for name in [
            "2 digits",
            "threads",
            "batch-size",
            "use-existing-db",
            "value-size-min",
            "rate is 0",
            "read-percent",
            "queue-depth",
            "--ycsb",
            "--trace",
        ] {
            assert!(problems.contains(name), "{name} in {problems}");
        }
    }

    /// Records have the counts of the command line unless their properties set others, and
    /// insertions are included.
    #[test]
    fn workloads_have_their_counts() {
        let mut config = BenchConfig {
            num: 500,
            reads: Some(700),
            steps: vec![Step::YcsbLoad, Step::YcsbD],
            ..BenchConfig::default()
        };
        let workload = |config: &BenchConfig, step: Step| {
            let workload = config.workload_of(step).expect("it is valid");
            workload.expect("it is one of YCSB")
        };
        let d = workload(&config, Step::YcsbD);
        assert_eq!((d.loaded, d.ops, d.inserts_to_come()), (500, 700, 70));
        assert!(config.data_bytes() >= 570 * 1000, "{}", config.data_bytes());
        let over = |config: &mut BenchConfig, pair: &str| {
            config.ycsb_over.set_pair(pair).expect("a pair");
        };
        over(&mut config, "recordcount=900");
        over(&mut config, "fieldlength=2000");
        assert_eq!(workload(&config, Step::YcsbLoad).loaded, 900);
        assert_eq!(config.value_bytes_max(), 20_000);
        assert!(
            config
                .workload_of(Step::FillSeq)
                .expect("it is valid")
                .is_none()
        );
        assert_eq!(config.validate(), Ok(()));
        over(&mut config, "recordcuont=900");
        let problem = config.validate().expect_err("it is misspelled");
        assert!(problem.contains("did you mean recordcount?"), "{problem}");
    }

    /// A pool that holds no data does not grow with it, but the space for table files does.
    #[test]
    fn table_files_need_no_pool() {
        let sizes = |design: Design, num: u64| {
            let mut config = BenchConfig {
                num,
                ..BenchConfig::default()
            };
            config.options.design = Some(design);
            let options = config.store_options();
            options.validate().expect("the pool is large enough");
            (options.pool.size_bytes, config.place_bytes(&options))
        };
        let (few, many) = (
            sizes(Design::Leveled, 1),
            sizes(Design::Leveled, 10_000_000),
        );
        assert_eq!(few.0, many.0);
        assert!(few.0 < 2 << 30, "{}", few.0);
        assert!(many.1 > 2 * 10_000_000 * 1040, "{}", many.1);
        let [buffered, whole] = [Design::MioDbSsd, Design::MioDb].map(|d| sizes(d, 1_000_000));
        assert_eq!(buffered.0, whole.0);
        assert!(buffered.1 > whole.1);
    }

    /// The store accepts a derived pool, and the pool grows with the data.
    #[test]
    fn the_derived_pool_fits() {
        let small = BenchConfig {
            num: 1,
            ..BenchConfig::default()
        };
        small
            .store_options()
            .validate()
            .expect("the smallest pool is large enough");
        let large = BenchConfig {
            num: 10_000_000,
            ..BenchConfig::default()
        };
        let bytes = large.store_options().pool.size_bytes;
        assert!(bytes > 3 * 10_000_000 * 1040, "{bytes}");
    }
}
