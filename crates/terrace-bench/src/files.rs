//! The table files in reports: their levels and the cache of their blocks.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use terrace::{CacheMetrics, FileLevelMetrics, LeveledOptions, Options};

use crate::table::Table;
use crate::units;

/// The settings of table files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileSettings {
    /// The size of a table file.
    pub table_bytes: u64,
    /// The largest size of the first level below level 0.
    pub level1_bytes: u64,
    /// The compression of levels below level 1.
    pub compression: Cow<'static, str>,
    /// The compression of levels 0 and 1.
    pub compression_upper: Cow<'static, str>,
    /// The budget of cached blocks.
    pub cache_bytes: u64,
}

impl FileSettings {
    /// Returns the settings of a design with table files, from the options in force; `None` for
    /// others.
    pub(crate) fn of(options: &Options) -> Option<FileSettings> {
        let leveled = &options.bottom.leveled;
        let design = options.design_of_new();
        design.keeps_table_files().then(|| FileSettings {
            table_bytes: leveled.table_bytes,
            level1_bytes: leveled.level1_bytes,
            compression: leveled.compression.name().into(),
            compression_upper: leveled.compression_upper.name().into(),
            cache_bytes: leveled.cache_bytes,
        })
    }
}

impl fmt::Display for FileSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tables of {}, level 1 up to {}, compression {} (levels 0 and 1: {}), cache {}",
            units::bytes(self.table_bytes),
            units::bytes(self.level1_bytes),
            self.compression,
            self.compression_upper,
            units::bytes(self.cache_bytes)
        )
    }
}

/// Returns the settings of level 0 and of values apart for a line, if they differ from the usual
/// ones.
pub(crate) fn special_settings(leveled: &LeveledOptions) -> String {
    let usual = LeveledOptions::default();
    let mut line = String::new();
    if leveled.level0_dir.is_some() {
        line.push_str(", level 0 in its own directory");
    }
    if (leveled.runs_compact, leveled.runs_stop) != (usual.runs_compact, usual.runs_stop) {
        let (from, to) = (leveled.runs_compact, leveled.runs_stop);
        line.push_str(&format!(", level 0 of {from} to {to} memtables"));
    }
    if let Some(from) = leveled.values_apart_from {
        line.push_str(&format!(", values from {} apart", units::bytes(from)));
    }
    line
}

/// One level of table files.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FileLevelReport {
    /// The number of the level; 0 receives drains.
    pub level: u32,
    /// Sets of disjoint tables; one except on level 0.
    pub runs: u64,
    /// Tables.
    pub files: u64,
    /// Entries, including superseded ones.
    pub entries: u64,
    /// Tombstones among the entries.
    pub tombstones: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// The size at which the level is compacted; `None` for level 0.
    pub target_bytes: Option<u64>,
    /// Bytes of tables written for the level.
    pub written_bytes: u64,
}

impl FileLevelReport {
    /// Returns the level from `metrics`.
    pub(super) fn of(metrics: &FileLevelMetrics) -> FileLevelReport {
        FileLevelReport {
            level: metrics.level,
            runs: metrics.run_count,
            files: metrics.file_count,
            entries: metrics.entry_count,
            tombstones: metrics.tombstone_count,
            bytes: metrics.bytes,
            target_bytes: metrics.target_bytes,
            written_bytes: metrics.written_bytes,
        }
    }
}

/// The cache of blocks of table files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheReport {
    /// The budget in bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Open table files.
    pub open_files: u64,
}

impl CacheReport {
    /// Returns the cache from `metrics`.
    pub(super) fn of(metrics: &CacheMetrics) -> CacheReport {
        CacheReport {
            capacity_bytes: metrics.capacity_bytes,
            used_bytes: metrics.used_bytes,
            open_files: metrics.open_file_count,
        }
    }
}

/// Blocks requested by point reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockReads {
    /// Blocks found in the cache.
    pub hits: u64,
    /// Blocks read from files.
    pub misses: u64,
}

impl BlockReads {
    /// Returns the requests between two points in time of one store.
    pub(crate) fn between(before: BlockReads, after: BlockReads) -> BlockReads {
        BlockReads {
            hits: after.hits.saturating_sub(before.hits),
            misses: after.misses.saturating_sub(before.misses),
        }
    }

    /// Returns the cells that follow a step's name: hits, misses, ratio. `None` if no block was
    /// requested.
    pub(super) fn cells(self) -> Option<[String; 3]> {
        let asked = self.hits + self.misses;
        (asked > 0).then(|| {
            let percent = self.hits as f64 * 100.0 / asked as f64;
            [
                units::count(self.hits),
                units::count(self.misses),
                format!("{percent:.1}%"),
            ]
        })
    }
}

/// Returns the levels of table files, with their sum if there is more than one.
pub fn file_levels(levels: &[FileLevelMetrics]) -> Table {
    let levels: Vec<FileLevelReport> = levels.iter().map(FileLevelReport::of).collect();
    table_of(&levels)
}

pub(super) fn table_of(levels: &[FileLevelReport]) -> Table {
    let mut table = Table::new(&[
        "table files",
        "runs",
        "files",
        "entries",
        "tombstones",
        "bytes",
        "target",
        "written",
    ]);
    let mut row = |name: String, numbers: [u64; 4], bytes: [u64; 2], target: String| {
        let cells = numbers.map(units::count);
        let last = [units::bytes(bytes[0]), target, units::bytes(bytes[1])];
        table.row(std::iter::once(name).chain(cells).chain(last));
    };
    let mut sum = ([0; 4], [0; 2]);
    for level in levels {
        let numbers = [level.runs, level.files, level.entries, level.tombstones];
        let target = level.target_bytes.map_or("-".to_string(), units::bytes);
        row(
            format!("level {}", level.level),
            numbers,
            [level.bytes, level.written_bytes],
            target,
        );
        for (sum, number) in sum.0.iter_mut().zip(numbers) {
            *sum += number;
        }
        sum.1[0] += level.bytes;
        sum.1[1] += level.written_bytes;
    }
    if levels.len() > 1 {
        row("all levels".to_string(), sum.0, sum.1, String::new());
    }
    table
}

/// Returns the cache as a line for people; `None` if the store uses no cache.
pub fn cache_line(cache: &CacheMetrics) -> Option<String> {
    if !cache.is_used() {
        return None;
    }
    let mut line = used_of(&CacheReport::of(cache));
    if let Some(ratio) = cache.hit_ratio() {
        line.push_str(&format!(
            "; {} of {} blocks found in it ({:.1}%)",
            units::count(cache.hit_count),
            units::count(cache.hit_count + cache.miss_count),
            ratio * 100.0
        ));
    }
    Some(line)
}

pub(super) fn used_of(cache: &CacheReport) -> String {
    format!(
        "{} of {} used, {} table file{} open",
        units::bytes(cache.used_bytes),
        units::bytes(cache.capacity_bytes),
        units::count(cache.open_files),
        if cache.open_files == 1 { "" } else { "s" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(level: u32, target_bytes: Option<u64>) -> FileLevelMetrics {
        FileLevelMetrics {
            level,
            run_count: 1,
            file_count: 2,
            entry_count: 1234,
            tombstone_count: 5,
            bytes: 3 << 20,
            superseded_bytes: 0,
            target_bytes,
            written_bytes: 1 << 20,
        }
    }

    /// Levels line up under their heading with their sum; a single level has no sum, and no levels
    /// give no table.
    #[test]
    fn levels_line_up_and_add_up() {
        let text = file_levels(&[level(0, None), level(6, Some(256 << 20))]).to_string();
        let expected = "\
  table files  runs  files  entries  tombstones     bytes   target   written
  level 0         1      2    1,234           5  3.00 MiB        -  1.00 MiB
  level 6         1      2    1,234           5  3.00 MiB  256 MiB  1.00 MiB
  all levels      2      4    2,468          10  6.00 MiB           2.00 MiB
";
        assert_eq!(text.trim_start(), expected);
        assert!(
            !file_levels(&[level(6, None)])
                .to_string()
                .contains("all levels")
        );
        assert!(file_levels(&[]).is_empty());
    }

    /// A cache in use is described, with its hits if it has any.
    #[test]
    fn the_cache_is_described() {
        let mut cache = CacheMetrics::default();
        assert_eq!(cache_line(&cache), None);
        cache.capacity_bytes = 256 << 20;
        cache.open_file_count = 1;
        let line = cache_line(&cache).expect("there is a cache");
        assert_eq!(line, "0 B of 256 MiB used, 1 table file open");
        (cache.hit_count, cache.miss_count) = (2999, 1);
        let line = cache_line(&cache).expect("there is a cache");
        assert!(
            line.ends_with("2,999 of 3,000 blocks found in it (100.0%)"),
            "{line}"
        );
        assert_eq!(BlockReads::default().cells(), None);
    }
}
