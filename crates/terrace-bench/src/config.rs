//! This file is what a run of the benchmark is asked to do, with db_bench's names and meanings.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use terrace::{Durability, KEY_BYTES_MAX, Options};

use crate::store::StoreKind;

/// One step of a run: a workload that is measured, or a wait for background work.
///
/// Every workload runs on `threads` threads, and each of them does the whole number of operations,
/// as in db_bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A fresh database; `num` keys in ascending order.
    FillSeq,
    /// A fresh database; `num` keys drawn from the range 0 to `num`, with repetition.
    FillRandom,
    /// As `FillRandom`, into the database that is there.
    Overwrite,
    /// `reads` gets of keys drawn from the range 0 to `num`; absent ones count as not found.
    ReadRandom,
    /// `reads` gets of keys that nobody wrote.
    ReadMissing,
    /// One scan of up to `reads` entries from the first key upward.
    ReadSeq,
    /// One scan of up to `reads` entries from the last key downward.
    ReadReverse,
    /// `reads` times: an iterator from a random key, and `seek_nexts` entries read from it.
    SeekRandom,
    /// `num` deletes of keys drawn from the range 0 to `num`.
    DeleteRandom,
    /// As `ReadRandom` on `threads` threads, while one more thread overwrites until they end.
    ReadWhileWriting,
    /// A fresh database that another process fills with `num` keys; it is killed with SIGKILL, and
    /// what it left is opened, timed and verified.
    KillReopen,
    /// Everything into the bottom, merges and reclaim settled.
    Drain,
    /// Every memtable into the buffer.
    Flush,
    /// Until background work has come to rest by itself.
    Wait,
}

impl Step {
    /// All steps, in the order in which the help lists them.
    pub const ALL: [Step; 14] = [
        Step::FillSeq,
        Step::FillRandom,
        Step::Overwrite,
        Step::ReadRandom,
        Step::ReadMissing,
        Step::ReadSeq,
        Step::ReadReverse,
        Step::SeekRandom,
        Step::DeleteRandom,
        Step::ReadWhileWriting,
        Step::KillReopen,
        Step::Drain,
        Step::Flush,
        Step::Wait,
    ];

    /// The name in db_bench.
    pub fn name(self) -> &'static str {
        match self {
            Step::FillSeq => "fillseq",
            Step::FillRandom => "fillrandom",
            Step::Overwrite => "overwrite",
            Step::ReadRandom => "readrandom",
            Step::ReadMissing => "readmissing",
            Step::ReadSeq => "readseq",
            Step::ReadReverse => "readreverse",
            Step::SeekRandom => "seekrandom",
            Step::DeleteRandom => "deleterandom",
            Step::ReadWhileWriting => "readwhilewriting",
            Step::KillReopen => "killreopen",
            Step::Drain => "drain",
            Step::Flush => "flush",
            Step::Wait => "wait",
        }
    }

    /// Whether the step begins with an empty database.
    pub fn is_fresh(self) -> bool {
        matches!(self, Step::FillSeq | Step::FillRandom | Step::KillReopen)
    }

    /// Whether the step puts values.
    pub fn puts(self) -> bool {
        self.is_fresh() || matches!(self, Step::Overwrite | Step::ReadWhileWriting)
    }

    /// Whether the step waits for background work instead of measuring operations.
    pub fn settles(self) -> bool {
        matches!(self, Step::Drain | Step::Flush | Step::Wait)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Step, String> {
        Step::ALL
            .into_iter()
            .find(|step| step.name() == text.trim())
            .ok_or_else(|| {
                let names: Vec<&str> = Step::ALL.iter().map(|step| step.name()).collect();
                format!("{text:?} is no benchmark; there are {}", names.join(", "))
            })
    }
}

/// The steps of a run that was asked for nothing else.
pub const DEFAULT_STEPS: [Step; 11] = [
    Step::FillSeq,
    Step::FillRandom,
    Step::ReadRandom,
    Step::Drain,
    Step::ReadRandom,
    Step::ReadSeq,
    Step::ReadReverse,
    Step::SeekRandom,
    Step::Overwrite,
    Step::ReadMissing,
    Step::DeleteRandom,
];

/// Everything that a run depends on. Names in capitals are db_bench's flags.
#[derive(Debug, Clone)]
pub struct BenchConfig {
    /// `--benchmarks`: what to do, in order.
    pub steps: Vec<Step>,
    /// `--num`: the number of keys, and of the writes of each writing thread.
    pub num: u64,
    /// `--reads`: operations of each reading thread; `None` is `num`.
    pub reads: Option<u64>,
    /// `--key_size`: bytes of a key.
    pub key_bytes: usize,
    /// `--value_size`: bytes of a value.
    pub value_bytes: usize,
    /// `--threads`: client threads of a workload.
    pub threads: usize,
    /// `--batch_size`: entries of one write.
    pub batch_count: usize,
    /// `--seek_nexts`: entries read after each seek.
    pub seek_nexts: u64,
    /// `--use_existing_db`: keep the database that is there; fills that want a fresh one are
    /// skipped.
    pub use_existing_db: bool,
    /// Whether a database found at `db` may be removed to make a fresh one.
    pub replace_db: bool,
    /// `--seed`: where keys and values come from.
    pub seed: u64,
    /// `--histogram`: print the distribution of each workload.
    pub histogram: bool,
    /// `--report_interval_seconds`: print one line for each such span of a workload.
    pub report_interval: Option<Duration>,
    /// What is measured.
    pub store: StoreKind,
    /// `--db`: the folder; `None` makes a temporary one and removes it at the end.
    pub db: Option<PathBuf>,
    /// Options of Terrace. `durability` is that of every write; peers get the same memory and
    /// compression where they have such settings.
    pub options: Options,
    /// The pool's cap; `None` derives it from `num` and the sizes, and for a database that is used
    /// as it is, keeps its own.
    pub pool_bytes: Option<u64>,
    /// What this program is started with for killreopen, so that it comes to [`crate::victim`] with this
    /// same configuration once `--victim FOLDER` is added; `None` where it cannot be started so.
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
            threads: 1,
            batch_count: 1,
            seek_nexts: 10,
            use_existing_db: false,
            replace_db: false,
            seed: 301,
            histogram: false,
            report_interval: None,
            store: StoreKind::Terrace,
            db: None,
            options: Options::default(),
            pool_bytes: None,
            victim_args: None,
        }
    }
}

impl BenchConfig {
    /// Operations of each reading thread.
    pub fn reads(&self) -> u64 {
        self.reads.unwrap_or(self.num)
    }

    /// The options of the store, the size of the pool included.
    pub fn store_options(&self) -> Options {
        let mut options = self.options.clone();
        if self.store != StoreKind::Terrace {
            options.pool.path = None;
        }
        if let Some(bytes) = self.pool_bytes {
            options.pool.size_bytes = bytes;
        } else if !self.use_existing_db {
            options.pool.size_bytes = self.derived_pool_bytes();
        }
        options
    }

    /// A pool in which the run has room: logs and tables of all memtables; where data stays in the
    /// pool, also three copies of it (tables, repository and its garbage), and what several threads
    /// write beyond it; elsewhere as much as the store wants to see free before it slows writers.
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

    /// Bytes that the run may take on the file system of its database, about.
    pub fn needed_bytes(&self) -> u64 {
        self.place_bytes(&self.store_options())
    }

    /// Bytes that the database may take on its file system: the pool, and table files with what a
    /// compaction has not removed yet.
    pub(crate) fn place_bytes(&self, options: &Options) -> u64 {
        match self.store {
            StoreKind::Terrace => {}
            StoreKind::Empty => return 0,
            // Logs and data, and both again while a compaction or a copy on write goes on.
            _ => return self.data_bytes().saturating_mul(3 + self.threads as u64),
        }
        let copies = match options.design_of_new().keeps_table_files() {
            true => 1 + self.threads as u64,
            false => 0,
        };
        let files = self.data_bytes().saturating_mul(copies);
        options.pool.size_bytes.saturating_add(files)
    }

    /// Bytes of `num` entries as the store keeps them, about.
    pub(crate) fn data_bytes(&self) -> u64 {
        let entry = (self.key_bytes as u64 + self.value_bytes as u64 + 64).next_multiple_of(64);
        self.num.saturating_mul(entry)
    }

    /// Names every setting that cannot work.
    pub fn validate(&self) -> Result<(), String> {
        let mut problems = Vec::new();
        let mut check = |ok: bool, problem: String| {
            if !ok {
                problems.push(problem);
            }
        };
        check(
            !self.steps.is_empty(),
            "there is no benchmark to run".to_string(),
        );
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
        check(
            self.num <= keys,
            format!(
                "keys of {} digits cannot tell {} numbers apart",
                self.key_bytes, self.num
            ),
        );
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
            !(self.steps.contains(&Step::KillReopen)
                && self.options.durability == Durability::Volatile),
            "killreopen loses what is not logged: take durability buffered or sync".to_string(),
        );
        check(
            self.report_interval != Some(Duration::ZERO),
            "report-interval must be longer than nothing".to_string(),
        );
        check(
            !self.use_existing_db || self.db.is_some(),
            "use-existing-db needs a database: name its folder".to_string(),
        );
        check(
            !(self.use_existing_db && self.replace_db),
            "a database cannot be both used as it is and replaced".to_string(),
        );
        if problems.is_empty() {
            return Ok(());
        }
        Err(format!("the benchmark cannot run: {}", problems.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace::Design;

    /// Every step's name is understood as that step, and nothing else is.
    #[test]
    fn names_are_understood() {
        for step in Step::ALL {
            assert_eq!(step.name().parse(), Ok(step));
        }
        assert!(
            "fillsync"
                .parse::<Step>()
                .is_err_and(|e| e.contains("fillrandom"))
        );
    }

    /// The defaults can run, and every bad setting is named at once.
    #[test]
    fn bad_settings_are_named_together() {
        assert_eq!(BenchConfig::default().validate(), Ok(()));
        let config = BenchConfig {
            num: 1000,
            key_bytes: 2,
            threads: 0,
            batch_count: 0,
            use_existing_db: true,
            ..BenchConfig::default()
        };
        let problems = config.validate().expect_err("four settings are bad");
        for name in ["2 digits", "threads", "batch-size", "use-existing-db"] {
            assert!(problems.contains(name), "{name} in {problems}");
        }
    }

    /// A pool that holds no data does not grow with it, but the place for table files does.
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

    /// A derived pool is one that the store accepts, and grows with the data.
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
