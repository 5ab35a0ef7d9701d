//! The options of the levels of table files.

use std::path::PathBuf;

use super::MIB;
use crate::types::Compression;

/// Options of the levels of table files.
#[derive(Debug, Clone)]
pub struct LeveledOptions {
    /// The size of a table file, in bytes.
    /// Larger: fewer files. Smaller: smaller steps of compaction.
    /// Default: 64 MiB. Range: 4 KiB to 4 GiB. Changes: on reopen.
    pub table_bytes: u64,
    /// The largest size of the first level below level 0, in bytes.
    /// Larger: fewer levels, each compaction of level 0 longer.
    /// Default: 256 MiB, which in `FlatLsm` stands for 40/12 of all its tables. Range: at least
    /// `table_bytes`. Changes: on reopen.
    pub level1_bytes: u64,
    /// The ratio of the sizes of a level and the one above it.
    /// Larger: fewer levels, more rewriting. Smaller: more levels, slower reads.
    /// Default: 10. Range: 2 to 100. Changes: on reopen.
    pub growth: u64,
    /// The number of levels below level 0.
    /// Default: 6. Range: 1 to 16. Changes: may be raised on reopen.
    pub levels: u32,
    /// Whether sizes follow from the last level's, so that at most a ninth of the data is above it;
    /// else level 1 has `level1_bytes` and each level below `growth` times more.
    /// Default: true. Changes: on reopen.
    pub dynamic_sizes: bool,
    /// The maximum number of key ranges that a compaction is split into, or a drain of a whole
    /// buffer that is merged with level 1; each has about `table_bytes` at least, and free threads
    /// compact them in parallel.
    /// Larger: large compactions end sooner. Smaller: fewer files that are not full.
    /// Default: 4. Range: 1 (never split) to 64. Changes: on reopen.
    pub subcompactions_max: usize,
    /// The number of runs at which level 0 is compacted.
    /// Larger: less rewriting, slower reads. Default: 4. Range: 1 to 64. Changes: on reopen.
    pub runs_compact: usize,
    /// The number of runs of level 0 at which writers are slowed.
    /// Default: 12. Range: at least `runs_compact`. Changes: on reopen.
    pub runs_slow: usize,
    /// The number of runs of level 0 at which the levels take no more data.
    /// Default: 36. Range: above `runs_slow`. Changes: on reopen.
    pub runs_stop: usize,
    /// The bytes above the levels' targets at which the levels take no more data; writers are
    /// slowed from half of it. Default: 64 GiB. Range: at least `level1_bytes`. Changes: on reopen.
    pub debt_stop_bytes: u64,
    /// The percentage of garbage, relative to the live data, at which it is compacted away: entries
    /// that newer ones supersede, estimated with filters. At rest it is a third of it; writers are
    /// slowed from one and a half times as much.
    /// Larger: less rewriting. Smaller: less space. Default: 30. Range: 2 to 1000. Changes: on
    /// reopen.
    pub garbage_percent: u32,
    /// The values from this many bytes on are stored apart from their keys, in value files, `None`
    /// for no value. Compactions then move keys and pointers; a value is written once, and again
    /// only if half of its file is garbage, or if `garbage_percent` of all value files is and its
    /// file has the largest share, or if its file is small and there are many. A read of such a
    /// value reads two files.
    /// Larger: faster scans. Smaller: less rewriting. Default: `None`, in `FlatLsm` 257. Range: at
    /// least 32. Changes: on reopen, for values that are written or moved from then on; a
    /// compaction of a range moves only what has garbage or overlaps.
    pub values_apart_from: Option<u64>,
    /// The maximum bytes per second that compactions and drains write to table files, `None` for no
    /// limit. Flushes count and never wait. The rate rises as writers come near to being slowed by
    /// the compaction backlog, and then there is no limit: it never slows a writer, nor a close.
    /// Smaller: reads during compactions are faster, and more data is uncompacted.
    /// Default: `None`. Range: at least 64 KiB. Changes: on reopen. Not with `Workers::Manual`,
    /// which has no clock.
    pub write_rate_max: Option<u64>,
    /// Bytes of a data block before compression.
    /// Larger: denser. Smaller: less read for one key. Default: 4 KiB. Range: 256 B to 1 MiB.
    /// Changes: on reopen, for new tables.
    pub block_bytes: usize,
    /// Filter bits for each key. Default: 10. Range: 0 (no filter) to 64. Changes: on reopen, for
    /// new tables.
    pub filter_bits_per_key: u32,
    /// The compression of blocks on levels 0 and 1. Default: `None`. Changes: on reopen, for new
    /// tables.
    pub compression_upper: Compression,
    /// The compression of blocks on the levels below, and of values apart. Default: `Lz4`. Changes:
    /// on reopen, for new tables and values.
    pub compression: Compression,
    /// The budget of cached blocks, including the indexes and filters of open tables, in bytes.
    /// Default: 256 MiB. Changes: on reopen.
    pub cache_bytes: u64,
    /// The maximum number of open table files, and of open value files. Default: 1000. Range: at
    /// least 4. Changes: on reopen.
    pub open_files_max: usize,
    /// The directory of the tables of level 0, for measurements: the baselines of papers keep these
    /// on faster media. It must exist, and must be the same at each opening. Repairs find no tables
    /// there. Default: `None`, the database's directory.
    #[doc(hidden)]
    pub level0_dir: Option<PathBuf>,
    /// Whether reads of tables bypass the operating system's cache. Default: false. Changes: on
    /// reopen.
    pub direct_reads: bool,
    /// Whether writes of tables bypass the operating system's cache, if the file system can. True:
    /// compactions neither evict readers' pages from that cache, nor wait for it. False: recently
    /// written data is read from there. Default: false. Changes: on reopen.
    pub direct_writes: bool,
}

impl Default for LeveledOptions {
    fn default() -> LeveledOptions {
        LeveledOptions {
            table_bytes: 64 * MIB,
            level1_bytes: 256 * MIB,
            growth: 10,
            levels: 6,
            dynamic_sizes: true,
            subcompactions_max: 4,
            runs_compact: 4,
            runs_slow: 12,
            runs_stop: 36,
            debt_stop_bytes: 64 << 30,
            garbage_percent: 30,
            values_apart_from: None,
            write_rate_max: None,
            block_bytes: 4096,
            filter_bits_per_key: 10,
            compression_upper: Compression::None,
            compression: Compression::Lz4,
            cache_bytes: 256 * MIB,
            open_files_max: 1000,
            level0_dir: None,
            direct_reads: false,
            direct_writes: false,
        }
    }
}

impl LeveledOptions {
    /// Returns the problems of these options.
    pub(super) fn problems(&self) -> Vec<String> {
        let checks = [
            (
                (4096..=4 << 30).contains(&self.table_bytes),
                "table_bytes must be 4 KiB to 4 GiB",
            ),
            (
                self.level1_bytes >= self.table_bytes,
                "level1_bytes must be at least table_bytes",
            ),
            ((2..=100).contains(&self.growth), "growth must be 2 to 100"),
            ((1..=16).contains(&self.levels), "levels must be 1 to 16"),
            (
                (1..=64).contains(&self.subcompactions_max),
                "subcompactions_max must be 1 to 64",
            ),
            (
                (1..=64).contains(&self.runs_compact),
                "runs_compact must be 1 to 64",
            ),
            (
                self.runs_slow >= self.runs_compact && self.runs_stop > self.runs_slow,
                "runs_compact, runs_slow and runs_stop must ascend",
            ),
            (
                self.debt_stop_bytes >= self.level1_bytes,
                "debt_stop_bytes must be at least level1_bytes",
            ),
            (
                (2..=1000).contains(&self.garbage_percent),
                "garbage_percent must be 2 to 1000",
            ),
            (
                self.values_apart_from.is_none_or(|from| from >= 32),
                "values_apart_from must be at least 32 bytes, or None for no value",
            ),
            (
                self.write_rate_max.is_none_or(|rate| rate >= 64 << 10),
                "write_rate_max must be at least 64 KiB a second, or None for no limit",
            ),
            (
                (256..=1 << 20).contains(&self.block_bytes),
                "block_bytes must be 256 B to 1 MiB",
            ),
            (
                self.filter_bits_per_key <= 64,
                "filter_bits_per_key must be at most 64",
            ),
            (
                self.open_files_max >= 4,
                "open_files_max must be at least 4",
            ),
            (
                self.compression.is_built() && self.compression_upper.is_built(),
                "compression is Zstd, but this build lacks the feature `zstd`",
            ),
        ];
        let wrong = checks.into_iter().filter(|(ok, _)| !ok);
        wrong
            .map(|(_, problem)| format!("bottom.leveled.{problem}"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Design;
    use crate::options::Options;

    /// The configurations of the papers are valid.
    #[test]
    fn configurations_of_the_papers_are_valid() {
        // MioDB's baselines and LevelDB: 64 MiB tables, fixed sizes from 256 MiB, a factor of 10.
        let leveldb = LeveledOptions {
            table_bytes: 64 * MIB,
            level1_bytes: 256 * MIB,
            growth: 10,
            levels: 6,
            dynamic_sizes: false,
            ..LeveledOptions::default()
        };
        // MatrixKV: a level 1 of 8 GiB under a level 0 in persistent memory, which is the buffer of
        // the design: data that leaves it moves on to level 1 at once.
        let matrixkv = LeveledOptions {
            level1_bytes: 8 << 30,
            runs_compact: 1,
            levels: 3,
            ..leveldb.clone()
        };
        // NoveLSM and RocksDB: level 0 on the disk, deep trees, sizes from the last level.
        let rocksdb = LeveledOptions {
            dynamic_sizes: true,
            runs_compact: 4,
            runs_slow: 20,
            runs_stop: 36,
            levels: 7,
            ..leveldb.clone()
        };
        for leveled in [leveldb, matrixkv, rocksdb] {
            assert_eq!(leveled.problems(), Vec::<String>::new());
            for design in Design::ALL.into_iter().filter(|d| d.keeps_table_files()) {
                let mut options = Options {
                    design: Some(design),
                    ..Options::default()
                };
                options.bottom.leveled = leveled.clone();
                options.validate().unwrap();
            }
        }
    }

    /// All invalid numbers are reported at once.
    #[test]
    fn all_problems_are_named_at_once() {
        let bad = LeveledOptions {
            table_bytes: 1,
            level1_bytes: 0,
            growth: 1,
            levels: 0,
            subcompactions_max: 0,
            runs_compact: 0,
            runs_slow: 5,
            runs_stop: 5,
            debt_stop_bytes: 0,
            garbage_percent: 0,
            values_apart_from: Some(1),
            write_rate_max: Some(1),
            block_bytes: 1,
            filter_bits_per_key: 65,
            open_files_max: 1,
            ..LeveledOptions::default()
        };
        let problems = bad.problems().join("\n");
        for name in [
            "table_bytes",
            "level1_bytes",
            "growth",
            "levels",
            "subcompactions_max",
            "runs_compact",
            "runs_stop",
            "garbage_percent",
            "values_apart_from",
            "write_rate_max",
            "block_bytes",
            "filter_bits_per_key",
            "open_files_max",
        ] {
            let named = format!("bottom.leveled.{name} ");
            assert!(
                problems.contains(&named) || problems.contains(&format!(" {name} ")),
                "{name}: {problems}"
            );
        }
    }
}
