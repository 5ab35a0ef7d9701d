//! The options that a database keeps, in addition to those fixed at creation.
//!
//! Options that shape the data on the media are kept: sizes and numbers of memtables, tables,
//! levels, blocks and filters, compression, and the thresholds that decide when data moves. An open
//! without them continues with the kept ones, so a `compact` from a shell does not rewrite the
//! levels into other sizes. They are those of the last open that changed the database, by any
//! program, except opens without keeping ([`DbBuilder`](crate::DbBuilder::without_keeping)).
//!
//! Options of the process or of the machine are not kept: the memory budget, the cache, open files,
//! threads, ranges of a compaction, the rate limit, direct reads, pre-faulting, medium and
//! emulation. A database that is opened on another machine should not be slow or refused because of
//! options that were right on the first; sizes that followed from a budget are kept if they shape
//! data. Also not kept are `durability`, which is a choice of each write, so that a bulk load with
//! `Volatile` does not weaken later writes, and `read_only`, `error_if_exists` and
//! `error_if_missing`, which apply to one open.
//!
//! K1  The name of a line is never reused; a value that was written stays readable in all versions.
//! K2  A missing line was written by a version that did not keep it: the option has its default.
//! K3  A line unknown to this version is kept as it is.

use std::collections::BTreeMap;

use super::Options;
use crate::types::Compression;

/// The text form of one type of option.
trait Value: Sized {
    fn print(&self) -> String;
    fn parse(text: &str) -> Option<Self>;
}

macro_rules! plain_values {
    ($($type:ty),*) => {
        $(impl Value for $type {
            fn print(&self) -> String {
                self.to_string()
            }
            fn parse(text: &str) -> Option<$type> {
                text.parse().ok()
            }
        })*
    };
}
plain_values!(u32, u64, usize, bool, Compression);

impl Value for Option<u64> {
    fn print(&self) -> String {
        self.map_or("none".to_owned(), |value| value.to_string())
    }
    fn parse(text: &str) -> Option<Option<u64>> {
        match text {
            "none" => Some(None),
            number => number.parse().ok().map(Some),
        }
    }
}

/// One kept option.
struct Line {
    name: &'static str,
    print: fn(&Options) -> String,
    /// Sets the option; `None` if the text is no value of it.
    set: fn(&mut Options, &str) -> Option<()>,
}

macro_rules! lines {
    ($($name:literal = $first:ident $(. $rest:ident)*,)*) => {
        &[$(Line {
            name: $name,
            print: |options| Value::print(&options.$first$(.$rest)*),
            set: |options, text| {
                options.$first$(.$rest)* = Value::parse(text)?;
                Some(())
            },
        }),*]
    };
}

/// Every kept option. The first three have the names that they had before there were others.
const LINES: &[Line] = lines! {
    "memtable_bytes" = front.memtable_bytes,
    "levels" = buffer.levels,
    "extent_bytes" = bottom.extent_bytes,
    "front.sealed_count_max" = front.sealed_count_max,
    "front.log_bytes_max" = front.log_bytes_max,
    "front.pm_memtable_bytes" = front.pm_memtable_bytes,
    "buffer.filter_bits_per_key" = buffer.filter_bits_per_key,
    "buffer.table_bytes_max" = buffer.table_bytes_max,
    "buffer.matrix.columns" = buffer.matrix.columns,
    "buffer.matrix.flattened" = buffer.matrix.flattened,
    "buffer.tables.table_bytes" = buffer.tables.table_bytes,
    "buffer.tables.flush_count" = buffer.tables.flush_count,
    "buffer.tables.count_max" = buffer.tables.count_max,
    "bottom.garbage_percent" = bottom.garbage_percent,
    "bottom.leveled.table_bytes" = bottom.leveled.table_bytes,
    "bottom.leveled.level1_bytes" = bottom.leveled.level1_bytes,
    "bottom.leveled.growth" = bottom.leveled.growth,
    "bottom.leveled.levels" = bottom.leveled.levels,
    "bottom.leveled.dynamic_sizes" = bottom.leveled.dynamic_sizes,
    "bottom.leveled.runs_compact" = bottom.leveled.runs_compact,
    "bottom.leveled.runs_slow" = bottom.leveled.runs_slow,
    "bottom.leveled.runs_stop" = bottom.leveled.runs_stop,
    "bottom.leveled.debt_stop_bytes" = bottom.leveled.debt_stop_bytes,
    "bottom.leveled.garbage_percent" = bottom.leveled.garbage_percent,
    "bottom.leveled.values_apart_from" = bottom.leveled.values_apart_from,
    "bottom.leveled.block_bytes" = bottom.leveled.block_bytes,
    "bottom.leveled.filter_bits_per_key" = bottom.leveled.filter_bits_per_key,
    "bottom.leveled.compression_upper" = bottom.leveled.compression_upper,
    "bottom.leveled.compression" = bottom.leveled.compression,
};

/// The kept options of a database, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kept(BTreeMap<String, String>);

impl Kept {
    /// Returns the kept part of `options`.
    pub(crate) fn of(options: &Options) -> Kept {
        let lines = options.kept().into_iter();
        Kept(
            lines
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }

    /// Creates it from the lines of a file that belong to it.
    pub(super) fn from_lines(lines: BTreeMap<String, String>) -> Kept {
        Kept(lines)
    }

    /// Takes over the lines of `older` that are unknown to this version.
    pub(crate) fn carry(&mut self, older: &Kept) {
        for (name, value) in &older.0 {
            self.0.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }

    /// Sets every option that is kept here. The error names the line that cannot be read.
    pub(crate) fn apply(&self, options: &mut Options) -> Result<(), String> {
        for line in LINES {
            if let Some(text) = self.0.get(line.name) {
                (line.set)(options, text)
                    .ok_or_else(|| format!("{} is {text:?}, which is not a value", line.name))?;
            }
        }
        Ok(())
    }

    /// Returns the lines, each with its line break.
    pub(super) fn print(&self) -> String {
        let lines = self.0.iter();
        lines
            .map(|(name, value)| format!("{name} = {value}\n"))
            .collect()
    }
}

impl Options {
    /// Returns the options that a database keeps, with their names and values as in its OPTIONS
    /// file: those that shape the data on the media. The next open with [`Options::load`] uses them
    /// again.
    pub fn kept(&self) -> Vec<(&'static str, String)> {
        let lines = LINES.iter();
        lines.map(|line| (line.name, (line.print)(self))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::TablesOptions;
    use crate::options::{BackgroundOptions, LeveledOptions};
    use crate::options::{BottomOptions, BufferOptions, FrontOptions, MatrixOptions};

    /// Returns options whose kept ones all differ from their defaults.
    fn unusual() -> Options {
        let mut options = Options {
            front: FrontOptions {
                memtable_bytes: 1 << 20,
                sealed_count_max: 5,
                log_bytes_max: 1 << 40,
                pm_memtable_bytes: Some(79 << 20),
            },
            buffer: BufferOptions {
                levels: 3,
                filter_bits_per_key: 0,
                table_bytes_max: Some(77 << 20),
                matrix: MatrixOptions {
                    columns: false,
                    flattened: false,
                    ..MatrixOptions::default()
                },
                tables: TablesOptions {
                    table_bytes: Some(78 << 20),
                    flush_count: 5,
                    count_max: 9,
                },
            },
            bottom: BottomOptions {
                extent_bytes: 1 << 20,
                garbage_percent: 11,
                leveled: LeveledOptions {
                    table_bytes: 8 << 20,
                    level1_bytes: 9 << 20,
                    growth: 7,
                    levels: 5,
                    dynamic_sizes: false,
                    runs_compact: 1,
                    runs_slow: 2,
                    runs_stop: 3,
                    debt_stop_bytes: u64::MAX,
                    garbage_percent: 33,
                    values_apart_from: Some(77),
                    block_bytes: 512,
                    filter_bits_per_key: 13,
                    compression_upper: Compression::Zstd,
                    compression: Compression::None,
                    ..LeveledOptions::default()
                },
            },
            ..Options::default()
        };
        options.pool.path = Some("pool".into());
        options
    }

    /// Every kept option comes back with its value, and has a unique name.
    #[test]
    fn every_kept_option_comes_back() {
        let (given, mut found) = (unusual(), Options::default());
        let defaults = found.kept();
        for ((name, value), (_, default)) in given.kept().iter().zip(&defaults) {
            assert_ne!(value, default, "the test does not see {name}");
        }
        let kept = Kept::of(&given);
        assert_eq!(kept.0.len(), LINES.len(), "two lines have one name");
        kept.apply(&mut found).unwrap();
        assert_eq!(found.kept(), given.kept());
        for (name, _) in defaults {
            let mut bad = kept.clone();
            bad.0.insert(name.to_owned(), "-1".to_owned());
            let problem = bad.apply(&mut Options::default()).unwrap_err();
            assert!(problem.starts_with(name), "{problem}");
        }
    }

    /// A new option does not compile here until it is listed as kept or not kept.
    #[test]
    fn every_option_is_kept_or_not_on_purpose() {
        let Options {
            design: _,
            pool: _,
            durability: _,
            error_if_exists: _,
            error_if_missing: _,
            read_only: _,
            memory_bytes: _,
            front,
            buffer,
            bottom,
            background:
                BackgroundOptions {
                    workers: _,
                    merge_threads: _,
                    read_workers: _,
                },
        } = unusual();
        let FrontOptions {
            memtable_bytes,
            sealed_count_max,
            log_bytes_max,
            pm_memtable_bytes,
        } = front;
        let BufferOptions {
            levels: buffer_levels,
            filter_bits_per_key: buffer_bits,
            table_bytes_max,
            matrix:
                MatrixOptions {
                    hints: _,
                    columns,
                    flattened,
                },
            tables:
                TablesOptions {
                    table_bytes: log_table_bytes,
                    flush_count,
                    count_max,
                },
        } = buffer;
        let BottomOptions {
            extent_bytes,
            garbage_percent,
            leveled,
        } = bottom;
        let LeveledOptions {
            table_bytes,
            level1_bytes,
            growth,
            levels,
            dynamic_sizes,
            subcompactions_max: _,
            runs_compact,
            runs_slow,
            runs_stop,
            debt_stop_bytes,
            garbage_percent: table_garbage,
            values_apart_from,
            write_rate_max: _,
            block_bytes,
            filter_bits_per_key,
            compression_upper,
            compression,
            cache_bytes: _,
            open_files_max: _,
            level0_dir: _,
            direct_reads: _,
            direct_writes: _,
        } = leveled;
        let all = [
            memtable_bytes.print(),
            buffer_levels.print(),
            extent_bytes.print(),
            sealed_count_max.print(),
            log_bytes_max.print(),
            pm_memtable_bytes.print(),
            buffer_bits.print(),
            table_bytes_max.print(),
            columns.print(),
            flattened.print(),
            log_table_bytes.print(),
            flush_count.print(),
            count_max.print(),
            garbage_percent.print(),
            table_bytes.print(),
            level1_bytes.print(),
            growth.print(),
            levels.print(),
            dynamic_sizes.print(),
            runs_compact.print(),
            runs_slow.print(),
            runs_stop.print(),
            debt_stop_bytes.print(),
            table_garbage.print(),
            values_apart_from.print(),
            block_bytes.print(),
            filter_bits_per_key.print(),
            compression_upper.print(),
            compression.print(),
        ];
        let kept: Vec<String> = unusual().kept().into_iter().map(|(_, text)| text).collect();
        assert_eq!(kept, all);
    }

    /// A missing line leaves the default, and a line of a later version is preserved.
    #[test]
    fn other_versions_lose_nothing() {
        let lines = [("levels", "3"), ("front.shards", "many")];
        let lines = lines.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let older = Kept::from_lines(lines.into());
        let mut options = Options::default();
        older.apply(&mut options).unwrap();
        assert_eq!(options.buffer.levels, 3);
        assert_eq!(options.front.sealed_count_max, 2);
        options.buffer.levels = 4;
        let mut newer = Kept::of(&options);
        newer.carry(&older);
        assert!(newer.print().contains("front.shards = many\n"));
        assert!(newer.print().contains("\nlevels = 4\n"));
    }
}
