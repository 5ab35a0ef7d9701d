//! Terrace: an embeddable, ordered key-value store for machines with tiered memory.
//!
//! ```text
//!        put / delete / write(batch)                    get / scan / snapshot
//!                   |                                             |
//!   +------- FRONT -v---------------+      a view: newest-first   |
//!   | where a write becomes durable | <--  list of sources,  -----+
//!   +---------------+---------------+      pinned for the read    |
//!          flush    | seal -> flush job, one manifest edit         |
//!   +------- BUFFER v---------------+                             |
//!   | sorted tables in PM  (merge)  | <---------------------------+
//!   +---------------+---------------+                             |
//!          drain    | drain job, one manifest edit                |
//!   +------- BOTTOM v---------------+                             |
//!   | home of cold data             | <---------------------------+
//!   +-------------------------------+
//! ```
//!
//! ```
//! use terrace::{Db, Options};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let mut options = Options::default();
//! options.pool.path = Some("pool".into());
//! # options.pool.size_bytes = 16 << 20;
//! # options.front.memtable_bytes = 256 << 10;
//! # options.bottom.extent_bytes = 256 << 10;
//! let db = Db::open(folder.path(), options)?;
//! db.put("apple", "red")?;
//! db.put("banana", "yellow")?;
//! assert_eq!(db.get("apple")?, Some(b"red".to_vec()));
//! for pair in db.prefix("b")? {
//!     println!("{:?}", pair?);
//! }
//! db.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! The location of the data, and what survives which failure, follow from the medium of the pool:
//! see [`Durability`] and `docs/durability.md`. The code map is in `ARCHITECTURE.md`.
//!
//! Cargo features, off by default: `log` logs the actions of the store (`docs/operations.md`,
//! "Events"), `zstd` adds Zstandard for table files. All others are for tests.

mod canary;
mod db;
mod designs;
mod engine;
mod error;
mod events;
mod metrics;
#[cfg(test)]
mod models;
mod named;
mod options;
mod parts;
mod stages;
pub mod testing;
mod types;

pub use db::inspect;
pub use db::{
    CheckpointReport, Db, DbBuilder, ExpiringValue, Ingest, IngestReport, Iter, KeyValue, Keyspace,
    Loss, PairRef, PartState, Progress, RecoveryReport, RepairOutcome, RepairPart, RepairReport,
    RepairSource, RepairedKeyspace, Snapshot, VerifyReport, WriteBatch,
};
pub use error::{Error, ErrorKind, Result};
pub use metrics::{
    BottomMetrics, CacheMetrics, Counts, FileLevelMetrics, FilterLevel, JobMetrics, LevelMetrics,
    LifeMetrics, MemoryMetrics, MemoryUse, Metrics, PoolMetrics, Purpose, RateLimiterMetrics,
    RetryMetrics, StallMetrics, StallReason, ValueFileMetrics, human_bytes,
};
pub use options::{
    BackgroundOptions, BottomOptions, BufferOptions, Design, Emulation, FrontOptions,
    LeveledOptions, MIB, MatrixOptions, MediumChoice, MemoryPart, Options, PoolOptions, Prefault,
    Sizes, TablesOptions, Workers,
};
pub use types::{Compression, Durability, KEY_BYTES_MAX};
