//! The benchmark of the Terrace store: db_bench's workloads, for each result the limit of the
//! medium alone, and the same workloads on the stores that users would pick instead.
//!
//! [`run`] takes a [`BenchConfig`] and returns a [`Report`]. Workloads have the names and meanings
//! of LevelDB's and RocksDB's `db_bench` ([`Step`]); [`Limits`]' module defines the limit line. A
//! run creates its database in a temporary directory unless it is given one, and removes it at the
//! end.
//!
//! - Throughput is operations over the time from the start of the first operation to the end of the
//!   last one, harness included. Opening, pool creation and pre-faulting are timed separately.
//! - A latency is the time from the end of one operation to the end of the next one on the same
//!   thread; in an open loop, it starts when the operation should have begun. A batch has one
//!   latency; scans are timed 64 entries at a time.
//! - Values carry a tag derived from key and seed. The tag of every value read that this run wrote
//!   is checked, and a sample of values byte for byte. A sample of the keys is tracked, so that a
//!   lost key is noticed. A wrong value or a lost key ends the run with the evidence.
//! - Peers ([`StoreKind`]) are behind cargo features of their names and never in a default build.
//! - Written bytes are those made durable while a step ran, including background work.
//!
//! ```no_run
//! let mut config = terrace_bench::BenchConfig::default();
//! config.options.pool.path = Some("pool".into());
//! let report = terrace_bench::run(&config, Some(&mut std::io::stdout()))?;
//! println!("{} op/s", report.steps[0].ops_per_s);
//! # Ok::<(), terrace_bench::BenchError>(())
//! ```

pub mod compare;
mod config;
mod error;
mod files;
mod fnv;
mod keys;
mod known;
mod latency;
mod limit;
mod machine;
mod measure;
mod meter;
mod out;
pub mod page;
pub mod papers;
mod place;
mod plot;
pub mod profile;
mod records;
mod report;
pub mod results;
mod run;
mod schedule;
mod shuffle;
mod space;
mod step;
mod store;
mod table;
mod trace;
pub mod units;
mod values;
mod versions;
mod workload;
mod ycsb;

pub use config::BenchConfig;
pub use error::BenchError;
pub use files::{BlockReads, CacheReport, FileLevelReport, FileSettings, cache_line, file_levels};
pub use latency::{Latency, LatencyReport};
pub use limit::Limits;
pub use machine::{Machine, Memory};
pub use measure::{KindReport, OpKind, RecoveryReport, SpaceReport, UsageReport, victim};
pub use report::{
    CauseReport, Conditions, FlushReport, HEADING, IntervalReport, PurposeReport, Report,
    StallReport, StepReport, StoreFacts, TargetReport, Written,
};
pub use run::{run, run_and_show};
pub use schedule::Arrivals;
pub use space::Space;
pub use step::{DEFAULT_STEPS, Step};
pub use store::{About, StoreKind};
pub use table::Table;
pub use trace::Trace;
pub use ycsb::{Properties, properties_of};
