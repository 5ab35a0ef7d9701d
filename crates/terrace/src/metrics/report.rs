//! Printing metrics for people: aligned tables, without rows for absent parts.

use std::fmt;

use super::{Metrics, Purpose};

/// Formats a byte count with a unit, for people.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pool       {}", self.pool.description)?;
        writeln!(
            f,
            "           {} allocated, {} committed, cap {}",
            human_bytes(self.pool.allocated_bytes),
            human_bytes(self.pool.committed_bytes),
            human_bytes(self.pool.cap_bytes)
        )?;
        writeln!(
            f,
            "users      {} entries written ({} deletes), {}; {} gets, {} found",
            self.put_count,
            self.delete_count,
            human_bytes(self.user_written_bytes),
            self.get_count,
            self.get_hit_count
        )?;
        writeln!(
            f,
            "front      {} in memtables, {} sealed; log {}",
            human_bytes(self.memtable_bytes),
            self.sealed_count,
            human_bytes(self.log_bytes)
        )?;
        for level in &self.levels {
            let (tables, entries) = (level.table_count, level.entry_count);
            let bytes = human_bytes(level.bytes);
            if level.has_rows() {
                let name = level.name;
                writeln!(
                    f,
                    "{name:<10} {tables:>3} rows, {entries:>28} entries, {bytes:>8}"
                )?;
                continue;
            }
            if level.is_of_logs() {
                let name = level.name;
                writeln!(
                    f,
                    "{name:<10} {tables:>3} tables, {entries:>26} entries, {bytes:>8}"
                )?;
                continue;
            }
            writeln!(
                f,
                "buffer L{} {tables:>4} tables, {:>4} merging, {entries:>12} nodes, {bytes:>10}",
                level.level, level.merging_count,
            )?;
        }
        self.print_bottom(f)?;
        self.print_written(f)?;
        for stall in self.stalls.iter().filter(|stall| stall.count > 0) {
            writeln!(
                f,
                "stall      {:<18} {:>8} times, {:>10.1?} in all, {:>10.1?} longest",
                stall.reason.name(),
                stall.count,
                stall.time,
                stall.longest
            )?;
        }
        for job in self.jobs.iter().filter(|job| job.count > 0) {
            writeln!(
                f,
                "job        {:<18} {:>8} ended, {:>12} entries, {:>10.1?}",
                job.kind, job.count, job.entry_count, job.time
            )?;
        }
        if let Some(last) = &self.retries.last {
            writeln!(
                f,
                "retry      {:>8} refusals of background jobs, {} wait; the last: {last}",
                self.retries.count, self.retries.waiting_count
            )?;
        }
        Ok(())
    }
}

impl Metrics {
    /// Prints the repository, or the levels of table files and their cache, if they exist.
    fn print_bottom(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amp = |amp: Option<f64>| match amp {
            Some(amp) => format!("; space amplification {amp:.2}"),
            None => String::new(),
        };
        if self.bottom.bytes > 0 {
            writeln!(
                f,
                "bottom     {} extents, {} used, {} dead{}",
                self.bottom.extent_count,
                human_bytes(self.bottom.used_bytes),
                human_bytes(self.bottom.dead_bytes),
                amp(self.space_amp_pm())
            )?;
        }
        for level in &self.files {
            let target = level.target_bytes.map(human_bytes);
            writeln!(
                f,
                "files L{:<2} {:>4} runs, {:>6} files, {:>12} entries, {:>10} tombstones, {:>10} \
                 of {:>10}",
                level.level,
                level.run_count,
                level.file_count,
                level.entry_count,
                level.tombstone_count,
                human_bytes(level.bytes),
                target.as_deref().unwrap_or("any")
            )?;
        }
        if self.values.file_count > 0 {
            writeln!(
                f,
                "values     {} files, {}, {} live",
                self.values.file_count,
                human_bytes(self.values.bytes),
                human_bytes(self.values.live_bytes)
            )?;
        }
        if !self.files.is_empty() {
            let tables: u64 = self.files.iter().map(|level| level.bytes).sum();
            let bytes = tables + self.values.bytes;
            let amp = amp(self.space_amp_files());
            writeln!(f, "           {} in all{amp}", human_bytes(bytes))?;
        }
        if self.cache.is_used() {
            write!(
                f,
                "cache      {} of {}, {} open files",
                human_bytes(self.cache.used_bytes),
                human_bytes(self.cache.capacity_bytes),
                self.cache.open_file_count
            )?;
            match self.cache.hit_ratio() {
                Some(ratio) => writeln!(
                    f,
                    "; {} hits, {} misses, {:.1} % hit",
                    self.cache.hit_count,
                    self.cache.miss_count,
                    ratio * 100.0
                )?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }

    /// Prints the bytes written by tier.
    fn print_written(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user_written_bytes.max(1) as f64;
        writeln!(
            f,
            "written, by tier and purpose (x: times what users wrote)"
        )?;
        let rows = Purpose::ALL.map(|p| (p.name(), self.pm.get(p)));
        for (name, counts) in rows.into_iter().chain([("pool", self.pm.total())]) {
            if counts.bytes == 0 && counts.fences == 0 {
                continue;
            }
            writeln!(
                f,
                "           {name:<12} {:>12} {:>7.3} x {:>12} lines {:>12} fences",
                human_bytes(counts.bytes),
                counts.bytes as f64 / user,
                counts.lines,
                counts.fences
            )?;
        }
        let (logs, tables) = (self.log_file_bytes, self.table_file_bytes);
        let rows = [("log files", logs), ("table files", tables)];
        for (name, bytes) in rows.into_iter().filter(|(_, bytes)| *bytes > 0) {
            writeln!(
                f,
                "           {name:<12} {:>12} {:>7.3} x",
                human_bytes(bytes),
                bytes as f64 / user
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::{
        BottomMetrics, CacheMetrics, FileLevelMetrics, JobMetrics, LevelMetrics, PoolMetrics,
        StallMetrics, StallReason,
    };

    fn metrics() -> Metrics {
        Metrics {
            put_count: 3,
            delete_count: 1,
            user_written_bytes: 1000,
            get_count: 2,
            get_hit_count: 1,
            memtable_bytes: 2048,
            log_bytes: 512,
            pool: PoolMetrics {
                description: "a pool".into(),
                ..PoolMetrics::default()
            },
            ..Metrics::default()
        }
    }

    fn level(level: u32, target_bytes: Option<u64>) -> FileLevelMetrics {
        FileLevelMetrics {
            level,
            run_count: if level == 0 { 3 } else { 1 },
            file_count: 4,
            entry_count: 500,
            tombstone_count: 6,
            bytes: 4096 << level,
            superseded_bytes: 1024,
            target_bytes,
            written_bytes: 0,
        }
    }

    /// Parts that a design does not have are not printed.
    #[test]
    fn rows_without_a_subject_are_left_out() {
        let text = metrics().to_string();
        for absent in ["bottom", "buffer", "files", "cache", "stall", "job"] {
            assert!(!text.contains(absent), "{absent} in\n{text}");
        }
    }

    /// All parts are printed in one aligned table; its lines change only on purpose.
    #[test]
    fn the_lines_are_pinned() {
        let mut metrics = metrics();
        let buffer = LevelMetrics {
            name: "level",
            level: 1,
            table_count: 2,
            merging_count: 1,
            entry_count: 300,
            bytes: 1 << 20,
        };
        let compactor = LevelMetrics {
            name: "compactor",
            ..buffer
        };
        metrics.levels = vec![buffer, compactor];
        metrics.files = vec![level(0, None), level(6, Some(1 << 28))];
        metrics.cache = CacheMetrics {
            capacity_bytes: 1 << 28,
            used_bytes: 1 << 20,
            open_file_count: 5,
            hit_count: 3,
            miss_count: 1,
        };
        metrics.table_file_bytes = 2500;
        metrics.stalls = vec![StallMetrics {
            reason: StallReason::CompactionBehind,
            count: 2,
            time: Duration::from_millis(3),
            longest: Duration::from_millis(2),
        }];
        metrics.jobs = vec![JobMetrics {
            kind: "compact",
            count: 1,
            entry_count: 500,
            time: Duration::from_millis(7),
        }];
        let expected = "\
pool       a pool
           0 B allocated, 0 B committed, cap 0 B
users      3 entries written (1 deletes), 1000 B; 2 gets, 1 found
front      2.0 KiB in memtables, 0 sealed; log 512 B
buffer L1    2 tables,    1 merging,          300 nodes,    1.0 MiB
compactor    2 rows,                          300 entries,  1.0 MiB
files L0     3 runs,      4 files,          500 entries,          6 tombstones,    4.0 KiB of        any
files L6     1 runs,      4 files,          500 entries,          6 tombstones,  256.0 KiB of  256.0 MiB
           260.0 KiB in all; space amplification 1.02
cache      1.0 MiB of 256.0 MiB, 5 open files; 3 hits, 1 misses, 75.0 % hit
written, by tier and purpose (x: times what users wrote)
           table files       2.4 KiB   2.500 x
stall      compaction-behind         2 times,      3.0ms in all,      2.0ms longest
job        compact                   1 ended,          500 entries,      7.0ms
";
        assert_eq!(metrics.to_string(), expected);
        assert!((metrics.write_amp_files() - 2.5).abs() < 1e-9);
    }

    /// Space amplification is the size of all levels relative to the deepest; it is unknown if
    /// there is only level 0.
    #[test]
    fn space_amplification_is_by_tier() {
        let mut metrics = metrics();
        assert_eq!(
            (metrics.space_amp_pm(), metrics.space_amp_files()),
            (None, None)
        );
        metrics.files = vec![level(0, None)];
        assert_eq!(metrics.space_amp_files(), None);
        metrics.files.push(level(1, Some(1)));
        assert_eq!(metrics.space_amp_files(), Some(1.5));
        // A level that is empty by now counts for nothing, and a deepest level that is small is not
        // the live data.
        let mut others = metrics.files.clone();
        others.push(level(2, Some(1)));
        (others[2].bytes, others[2].superseded_bytes) = (0, 0);
        others[1].bytes = 1024;
        metrics.files = std::mem::replace(&mut others, metrics.files);
        assert_eq!(metrics.space_amp_files(), Some(5120.0 / 3072.0));
        metrics.files = others;
        metrics.bottom = BottomMetrics {
            extent_count: 1,
            bytes: 300,
            used_bytes: 250,
            dead_bytes: 100,
        };
        assert_eq!(metrics.space_amp_pm(), Some(2.0));
    }
}
