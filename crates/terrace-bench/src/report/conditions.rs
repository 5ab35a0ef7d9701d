//! The conditions of a run: machine, program, medium, store, settings.

use std::borrow::Cow;
use std::path::Path;

use serde::{Deserialize, Serialize};
use terrace::{MediumChoice, Options, Prefault};

use super::WorkloadReport;
use crate::config::{BenchConfig, engine_settings};
use crate::files::FileSettings;
use crate::limit::Limits;
use crate::machine::{Machine, file_system_of};
use crate::place::Place;
use crate::profile;
use crate::store::{About, Store, StoreKind};

/// The conditions of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// The machine.
    pub machine: Machine,
    /// The store: its name on the command line.
    pub store: String,
    /// The facts about the store.
    pub about: StoreFacts,
    /// The design of the store; `None` for a peer.
    pub design: Option<String>,
    /// Whether the instructions of persistent memory were forced onto another medium.
    pub forced_dax: bool,
    /// The emulated device and its parameters, if any. It slows only the pool.
    pub emulation: Option<String>,
    /// The database's directory.
    pub db: String,
    /// The mount that holds the pool, or the files if there is no pool: type and options; and that
    /// of the table files, if that differs.
    pub file_system: String,
    /// The build of this program.
    pub build: Cow<'static, str>,
    /// The commit of its sources; `None` if they were built outside a repository.
    pub commit: Option<Cow<'static, str>>,
    /// The requested durability; `about` has the store's actual one.
    pub durability: String,
    /// Keys, and writes of each thread.
    pub num: u64,
    /// Operations of each reading thread.
    pub reads: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a value, or of the longest one if sizes are mixed.
    pub value_bytes: usize,
    /// Bytes of the shortest value.
    #[serde(default)]
    pub value_bytes_min: usize,
    /// The steps of YCSB.
    #[serde(default)]
    pub workloads: Vec<WorkloadReport>,
    /// Operations a second that arrive at all client threads together; `None` in a closed loop.
    pub rate: Option<f64>,
    /// The distribution of arrivals: "constant" or "poisson"; `None` in a closed loop.
    pub arrivals: Option<Cow<'static, str>>,
    /// Writes a second of the thread that writes while others read; `None` if unlimited.
    pub writer_rate: Option<f64>,
    /// Client threads.
    pub threads: usize,
    /// Entries of a write.
    pub batch_count: usize,
    /// The seed of keys and values.
    pub seed: u64,
    /// The size of a memtable or write buffer in bytes.
    pub memtable_bytes: u64,
    /// The pool's cap in bytes; `None` without a pool.
    pub pool_bytes: Option<u64>,
    /// The settings of table files, if the design has them.
    pub table_files: Option<FileSettings>,
    /// The settings of Terrace's buffer and background threads that are not the defaults.
    #[serde(default)]
    pub buffer: Option<String>,
    /// When the pool's pages are faulted in; `None` without a pool.
    pub prefault: Option<Cow<'static, str>>,
    /// Seconds that opening the first database took: its pool's creation and pre-faulting. No
    /// workload's figures include it.
    pub open_s: f64,
    /// The pool of the limit line; `None` if no limit was measured.
    pub limit_pool: Option<String>,
    /// Seconds that the creation and pre-faulting of that pool took.
    pub limit_prepared_s: f64,
}

/// The facts about a store; see `About`, which the adapters return.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreFacts {
    /// Its name and version, or its design.
    pub name: String,
    /// The location of its bytes: the pool's medium, or files.
    pub medium: String,
    /// The durability of a write in words: the step it waits for and the failures it survives.
    pub durability: String,
    /// The settings that matter for the figures.
    pub settings: String,
    /// The source of the counts of written bytes.
    pub counted_by: String,
}

impl From<About> for StoreFacts {
    fn from(about: About) -> StoreFacts {
        StoreFacts {
            name: about.name,
            medium: about.medium,
            durability: about.durability,
            settings: about.settings,
            counted_by: about.counted_by.to_string(),
        }
    }
}

/// The build of this program.
const BUILD: &str = if cfg!(debug_assertions) {
    "debug: its figures mean nothing"
} else {
    "release"
};

/// Returns the mounts of a database in `db`, whose pool may be elsewhere.
fn file_systems(pool: Option<&Path>, db: &Path, has_files: bool) -> String {
    let first = file_system_of(pool.unwrap_or(db));
    let of_files = file_system_of(db);
    match has_files && of_files != first {
        true => format!("{first}; table files on {of_files}"),
        false => first,
    }
}

impl Conditions {
    /// Returns the conditions of the run of `config` in which `store` was opened.
    pub(crate) fn of(
        config: &BenchConfig,
        options: &Options,
        place: &Place,
        store: &dyn Store,
        limits: &Limits,
        open_s: f64,
    ) -> Conditions {
        let is_terrace = config.store == StoreKind::Terrace;
        let pool = options.pool.path.as_ref().map(|path| place.db().join(path));
        let temporary = if place.is_temporary() {
            " (temporary)"
        } else {
            ""
        };
        let options = store.options().unwrap_or(options);
        let files = FileSettings::of(options).filter(|_| is_terrace);
        Conditions {
            machine: Machine::read(),
            store: config.store.name().to_string(),
            about: store.about().into(),
            design: is_terrace.then(|| options.design_of_new().to_string()),
            forced_dax: options.pool.medium == MediumChoice::ForceDax,
            emulation: options.pool.emulation.map(profile::describe),
            db: format!("{}{temporary}", place.db().display()),
            file_system: file_systems(pool.as_deref(), place.db(), files.is_some()),
            build: BUILD.into(),
            commit: option_env!("TERRACE_BENCH_COMMIT").map(Cow::from),
            durability: options.durability.to_string(),
            num: config.num,
            reads: config.reads(),
            key_bytes: config.key_bytes,
            value_bytes: config.value_bytes,
            value_bytes_min: config.value_bytes_min(),
            workloads: WorkloadReport::of(config),
            rate: config.rate,
            arrivals: config.rate.map(|_| config.arrivals.name().into()),
            writer_rate: config.writer_rate,
            threads: config.threads,
            batch_count: config.batch_count,
            seed: config.seed,
            memtable_bytes: options.front.memtable_bytes,
            pool_bytes: is_terrace.then_some(options.pool.size_bytes),
            table_files: files,
            buffer: engine_settings(options).filter(|_| is_terrace),
            prefault: is_terrace.then_some(match options.pool.prefault {
                Prefault::Ahead => "ahead of need".into(),
                Prefault::All => "all at creation".into(),
                Prefault::None => "none".into(),
            }),
            open_s,
            limit_pool: limits.pool.clone(),
            limit_prepared_s: limits.prepared.as_secs_f64(),
        }
    }
}
