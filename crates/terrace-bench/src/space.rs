//! The bytes of a database by tier.

use serde::{Deserialize, Serialize};
use terrace::{LevelMetrics, Metrics};

use crate::files::{CacheReport, FileLevelReport};

/// Bytes of a database by tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Space {
    /// Memtables, active and sealed.
    pub memtable_bytes: u64,
    /// Logs that recovery would replay.
    pub log_bytes: u64,
    /// Extents of the buffer's tables, by level: level, tables, bytes.
    pub levels: Vec<(u32, u64, u64)>,
    /// Their names; earlier results have none.
    #[serde(default)]
    pub level_names: Vec<String>,
    /// Extents of the repository.
    pub bottom_bytes: u64,
    /// Superseded or deleted bytes in the repository's extents.
    pub bottom_dead_bytes: u64,
    /// All extents of the pool.
    pub pool_allocated_bytes: u64,
    /// The pool's file.
    pub pool_committed_bytes: u64,
    /// The pool's cap.
    pub pool_cap_bytes: u64,
    /// The bytes of the repository's extents for each live byte; `None` without a repository.
    pub space_amp_repository: Option<f64>,
    /// The levels of table files.
    pub files: Vec<FileLevelReport>,
    /// The bytes of all table files for each byte on the deepest level; `None` without table files.
    pub space_amp_files: Option<f64>,
    /// The number of value files, and their bytes; earlier results have none.
    #[serde(default)]
    pub value_files: (u64, u64),
    /// The cache of their blocks.
    pub cache: CacheReport,
    /// The bytes that files in the database's directory take on their file system, including the
    /// pool's file.
    pub folder_bytes: u64,
}

impl Space {
    /// Returns the tiers from `metrics`.
    pub fn of(metrics: &Metrics) -> Space {
        Space {
            memtable_bytes: metrics.memtable_bytes,
            log_bytes: metrics.log_bytes,
            levels: metrics
                .levels
                .iter()
                .map(|l| (l.level, l.table_count, l.bytes))
                .collect(),
            level_names: metrics.levels.iter().map(LevelMetrics::title).collect(),
            bottom_bytes: metrics.bottom.bytes,
            bottom_dead_bytes: metrics.bottom.dead_bytes,
            pool_allocated_bytes: metrics.pool.allocated_bytes,
            pool_committed_bytes: metrics.pool.committed_bytes,
            pool_cap_bytes: metrics.pool.cap_bytes,
            space_amp_repository: metrics.space_amp_pm(),
            files: metrics.files.iter().map(FileLevelReport::of).collect(),
            space_amp_files: metrics.space_amp_files(),
            value_files: (metrics.values.file_count, metrics.values.bytes),
            cache: CacheReport::of(&metrics.cache),
            folder_bytes: 0,
        }
    }
}
