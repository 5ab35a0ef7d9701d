//! This file prints metrics for people: aligned tables, only what has something to say.

use std::fmt;

use super::{Metrics, Purpose};

/// A byte count with a unit, as people read it.
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
            writeln!(
                f,
                "buffer L{} {:>4} tables, {:>4} merging, {:>12} nodes, {:>10}",
                level.level,
                level.table_count,
                level.merging_count,
                level.entry_count,
                human_bytes(level.bytes)
            )?;
        }
        writeln!(
            f,
            "bottom     {} extents, {} used, {} dead",
            self.bottom.extent_count,
            human_bytes(self.bottom.used_bytes),
            human_bytes(self.bottom.dead_bytes)
        )?;
        self.print_purposes(f)?;
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
        Ok(())
    }
}

impl Metrics {
    fn print_purposes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user_written_bytes.max(1) as f64;
        writeln!(
            f,
            "written to the pool, by purpose (x: times what users wrote)"
        )?;
        let rows = Purpose::ALL.map(|p| (p.name(), self.pm.get(p)));
        for (name, counts) in rows.into_iter().chain([("total", self.pm.total())]) {
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
        Ok(())
    }
}
