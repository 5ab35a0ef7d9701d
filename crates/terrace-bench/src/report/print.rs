//! This file is the results of a run as aligned lines, for people.

use std::fmt;
use std::time::Duration;

use terrace::Purpose;

use super::{Conditions, IntervalReport, Report, StepReport, Written};
use crate::table::Table;
use crate::units;

impl IntervalReport {
    /// The line for people.
    pub fn line(&self, name: &str) -> String {
        let rate = self.ops as f64 / self.seconds.max(1e-9);
        format!(
            "  {name:<17} to {:>7.1} s {:>12} op/s   p99 {:>9} us   max {:>9} us",
            self.end_s,
            units::count(rate as u64),
            figure(self.p99_us),
            figure(self.max_us),
        )
    }
}

impl Written {
    fn amplification(&self) -> String {
        match self.user_bytes {
            0 => "-".to_string(),
            user => format!(
                "{:.2}",
                (self.pool_bytes + self.log_file_bytes) as f64 / user as f64
            ),
        }
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.machine;
        writeln!(
            f,
            "machine     {}, {} cores, {} memory, Linux {}",
            m.cpu,
            m.cores,
            units::bytes(m.memory_bytes),
            m.kernel
        )?;
        let on = self
            .file_system
            .as_ref()
            .map_or(String::new(), |name| format!(" on {name}"));
        writeln!(f, "pool        {}{on}", self.pool)?;
        if let Some(emulation) = &self.emulation {
            writeln!(f, "emulated    {emulation}")?;
        }
        writeln!(
            f,
            "store       {}, durability {}, memtable {}, pool cap {}, prefault {}",
            self.design,
            self.durability,
            units::bytes(self.memtable_bytes),
            units::bytes(self.pool_bytes),
            self.prefault
        )?;
        writeln!(
            f,
            "workload    {} keys of {} B, values of {} B, {} reads, {} thread{}, batches of {}, \
             seed {}",
            units::count(self.num),
            self.key_bytes,
            self.value_bytes,
            units::count(self.reads),
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.batch_count,
            self.seed
        )?;
        write!(
            f,
            "prepared    pool created and pre-faulted in {:.2} s, that of the limit in {:.2} s \
             (in no figure below)",
            self.open_s, self.limit_prepared_s
        )
    }
}

/// The heading above the lines of the steps.
pub const HEADING: &str = "\
workload                  op/s     MB/s    p50 us    p99 us  p99.9 us p99.99 us    max us  stalls   limit op/s  reached";

impl fmt::Display for StepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.skipped {
            return write!(f, "{:<17} skipped: {why}", self.name);
        }
        let Some(l) = &self.latency else {
            return write!(f, "{:<17} {:>12.2} s", self.name, self.elapsed_s);
        };
        write!(
            f,
            "{:<17} {:>12} {:>8.1}",
            self.name,
            rate(self.ops_per_s),
            self.mb_per_s
        )?;
        for us in [l.p50_us, l.p99_us, l.p99_9_us, l.p99_99_us, l.max_us] {
            write!(f, " {:>9}", figure(us))?;
        }
        let stalls: u64 = self.stalls.iter().map(|stall| stall.count).sum();
        write!(f, " {stalls:>7}")?;
        match (self.limit_ops_per_s, self.limit_fraction) {
            (Some(limit), Some(fraction)) => {
                write!(f, " {:>12} {:>7.1}%", rate(limit), fraction * 100.0)?;
            }
            _ => write!(f, " {:>12} {:>8}", "-", "-")?,
        }
        if let Some(found) = self.found {
            write!(
                f,
                "   {} of {} found",
                units::count(found),
                units::count(self.ops)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_stalls(f)?;
        self.write_written(f)?;
        self.write_space(f)?;
        let m = &self.memory;
        let checked: u64 = self.steps.iter().map(|step| step.checked).sum();
        writeln!(
            f,
            "\nmemory      peak {} (VmHWM)",
            units::bytes(m.peak_bytes)
        )?;
        writeln!(
            f,
            "            at the end {} private and {} mapped",
            units::bytes(m.private_bytes),
            units::bytes(m.mapped_bytes)
        )?;
        writeln!(
            f,
            "checked     {} values byte for byte, every other one read by its tag",
            units::count(checked)
        )
    }
}

impl Report {
    fn write_stalls(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["stalled writers", "reason", "count", "total"]);
        for step in &self.steps {
            for stall in step.stalls.iter().filter(|stall| stall.count > 0) {
                table.row([
                    step.name.clone(),
                    stall.reason.to_string(),
                    units::count(stall.count),
                    units::time(Duration::from_secs_f64(stall.seconds.max(0.0))),
                ]);
            }
        }
        if table.is_empty() {
            Ok(())
        } else {
            write!(f, "\n{table}")
        }
    }

    fn write_written(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut heading = vec!["written, MB", "by user"];
        heading.extend(Purpose::ALL.map(Purpose::name));
        heading.extend(["pool", "log file", "amplification"]);
        let mut table = Table::new(&heading);
        let mut cells = |name: &str, written: &Written| {
            let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
            let mut row = vec![name.to_string(), mb(written.user_bytes)];
            row.extend(written.purposes.iter().map(|purpose| mb(purpose.bytes)));
            row.extend([mb(written.pool_bytes), mb(written.log_file_bytes)]);
            row.push(written.amplification());
            table.row(row);
        };
        let mut sum = Written::default();
        let mut summed = 0;
        for step in &self.steps {
            if step.open_s.is_some() {
                sum = Written::default();
                summed = 0;
            }
            if !step.written.is_nothing() {
                cells(&step.name, &step.written);
                sum.add(&step.written);
                summed += 1;
            }
        }
        if summed > 1 {
            cells("last database", &sum);
        }
        if table.is_empty() {
            Ok(())
        } else {
            write!(f, "\n{table}")
        }
    }

    fn write_space(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = &self.space;
        let mut table = Table::new(&["space at the end", "tables", "bytes"]);
        let mut row = |name: String, tables: String, bytes: u64| {
            table.row([name, tables, units::bytes(bytes)]);
        };
        row("memtables".to_string(), String::new(), space.memtable_bytes);
        row("logs".to_string(), String::new(), space.log_bytes);
        for (level, tables, bytes) in &space.levels {
            row(
                format!("buffer level {level}"),
                units::count(*tables),
                *bytes,
            );
        }
        row("repository".to_string(), String::new(), space.bottom_bytes);
        row(
            "  of it dead".to_string(),
            String::new(),
            space.bottom_dead_bytes,
        );
        row(
            "pool, live extents".to_string(),
            String::new(),
            space.pool_allocated_bytes,
        );
        row(
            "pool, file".to_string(),
            String::new(),
            space.pool_committed_bytes,
        );
        write!(f, "\n{table}")
    }
}

/// A number of microseconds, short enough for a column.
fn figure(us: f64) -> String {
    if us < 9999.5 {
        format!("{us:.2}")
    } else {
        units::count(us.round() as u64)
    }
}

fn rate(ops_per_s: f64) -> String {
    units::count(ops_per_s.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{LatencyReport, PurposeReport};

    /// The line of a step stands under its heading, whatever the figures are.
    #[test]
    fn lines_stand_under_the_heading() {
        let mut step = StepReport {
            name: "readwhilewriting".to_string(),
            ops_per_s: 12_345_678.4,
            mb_per_s: 1234.5,
            latency: Some(LatencyReport {
                p50_us: 0.07,
                p99_us: 9999.4,
                p99_9_us: 123_456.7,
                p99_99_us: 1_234_567.0,
                max_us: 1_234_567.0,
            }),
            limit_ops_per_s: Some(23_456_789.0),
            limit_fraction: Some(0.5263),
            ..StepReport::default()
        };
        let line = step.to_string();
        assert_eq!(line.len(), HEADING.len(), "\n{HEADING}\n{line}");
        assert!(line.ends_with("52.6%"), "{line}");
        step.limit_ops_per_s = None;
        assert_eq!(step.to_string().len(), HEADING.len());
        step.skipped = Some("it was not wanted".to_string());
        assert!(step.to_string().ends_with("skipped: it was not wanted"));
    }

    /// What several steps wrote adds up by purpose.
    #[test]
    fn written_bytes_add_up() {
        let one = Written {
            user_bytes: 10,
            purposes: vec![PurposeReport {
                purpose: "log",
                bytes: 64,
                lines: 1,
                flushes: 1,
                fences: 1,
            }],
            pool_bytes: 64,
            log_file_bytes: 1,
        };
        let mut sum = Written::default();
        assert!(sum.is_nothing());
        sum.add(&one);
        sum.add(&one);
        assert_eq!(
            (sum.user_bytes, sum.pool_bytes, sum.log_file_bytes),
            (20, 128, 2)
        );
        assert_eq!((sum.purposes[0].bytes, sum.purposes[0].fences), (128, 2));
        assert_eq!(sum.amplification(), "6.50");
        assert_eq!(Written::default().amplification(), "-");
    }
}
