//! The results of a run as aligned lines, for people.

use std::fmt;
use std::time::Duration;

use terrace::Purpose;

use super::{Conditions, IntervalReport, Report, StepReport, Written};
use crate::files;
use crate::table::Table;
use crate::units;

impl IntervalReport {
    /// Formats the line for people.
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

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.machine;
        let governor = m.governor.as_deref().unwrap_or("unknown");
        writeln!(
            f,
            "machine     {}, {} cores (governor {governor}), {} memory, Linux {}",
            m.cpu,
            m.cores,
            units::bytes(m.memory_bytes),
            m.kernel
        )?;
        write!(f, "store       {}", self.about.name)?;
        match (self.pool_bytes, &self.prefault) {
            (Some(bytes), Some(prefault)) => writeln!(
                f,
                ", memtable {}, pool cap {}, prefault {prefault}",
                units::bytes(self.memtable_bytes),
                units::bytes(bytes),
            )?,
            _ => writeln!(f, "; {}", self.about.settings)?,
        }
        if let Some(buffer) = &self.buffer {
            writeln!(f, "engine      {buffer}")?;
        }
        if let Some(settings) = &self.table_files {
            writeln!(f, "files       {settings}")?;
        }
        writeln!(
            f,
            "medium      {} on {}",
            self.about.medium, self.file_system
        )?;
        if let Some(emulation) = &self.emulation {
            writeln!(f, "emulated    {emulation}")?;
        }
        writeln!(f, "durability  {}", self.about.durability)?;
        write!(f, "build       {}", self.build)?;
        match &self.commit {
            Some(commit) => writeln!(f, ", commit {commit}")?,
            None => writeln!(f)?,
        }
        writeln!(
            f,
            "workload    {} keys of {} B, values of {}{} B, {} reads, {} thread{}, batches of {}, \
             seed {}",
            units::count(self.num),
            self.key_bytes,
            match self.value_bytes_min < self.value_bytes {
                true => format!("{} to ", self.value_bytes_min),
                false => String::new(),
            },
            self.value_bytes,
            units::count(self.reads),
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.batch_count,
            self.seed
        )?;
        for workload in &self.workloads {
            writeln!(f, "            {}: {}", workload.step, workload.what)?;
        }
        let mut ignored: Vec<&str> = Vec::new();
        for name in self.workloads.iter().flat_map(|workload| &workload.ignored) {
            // The standard workloads set these themselves, so they are not worth a line.
            if !ignored.contains(&name.as_str())
                && !["workload", "readallfields"].contains(&name.as_str())
            {
                ignored.push(name);
            }
        }
        if !ignored.is_empty() {
            let names = ignored.join(", ");
            writeln!(f, "            ignored, no meaning here: {names}")?;
        }
        if let (Some(rate), Some(arrivals)) = (self.rate, &self.arrivals) {
            writeln!(
                f,
                "open loop   {rate} operations per second, {arrivals} arrivals; latencies count \
                 from the intended start"
            )?;
        }
        if let Some(rate) = self.writer_rate {
            writeln!(f, "writer      {rate} writes per second during reads")?;
        }
        write!(
            f,
            "prepared    store opened, pool created and pre-faulted, in {:.2} s, that of the limit \
             in {:.2} s (not in the figures below)",
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
        if let Some(recovery) = &self.recovery {
            return write!(
                f,
                "{:<17} reopened in {:.3} s after SIGKILL; {} acknowledged writes read in {:.2} s, \
                 all correct",
                self.name,
                recovery.open_s,
                units::count(recovery.verified),
                recovery.verify_s
            );
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
        if let Some(target) = self.target.filter(|target| !target.reached) {
            write!(
                f,
                "   NOT REACHED: {} op/s were requested, the last one ended {:.2} s late",
                units::count(target.ops_per_s.round() as u64),
                target.behind_s
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_stalls(f)?;
        self.write_flushes(f)?;
        self.write_written(f)?;
        self.write_blocks(f)?;
        self.write_usage(f)?;
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
            "checked     {} values byte for byte, all others read by their tag",
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

    fn write_flushes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["flushed memtables", "count", "mean", "total"]);
        for step in &self.steps {
            if let Some(flushes) = &step.flushes {
                let total = Duration::from_secs_f64(flushes.seconds.max(0.0));
                table.row([
                    step.name.clone(),
                    units::count(flushes.count),
                    flushes
                        .mean_ms()
                        .map_or("-".to_string(), |ms| format!("{ms:.2} ms")),
                    units::time(total),
                ]);
            }
        }
        if table.is_empty() {
            Ok(())
        } else {
            write!(f, "\n{table}")
        }
    }

    /// Writes one row for each step that wrote, and one for all since the last fresh database.
    fn write_written(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<(&str, Written)> = Vec::new();
        let mut sum = Written::default();
        let mut summed = 0;
        for step in &self.steps {
            if step.open_s.is_some() {
                sum = Written::default();
                summed = 0;
            }
            if !step.written.is_nothing() {
                rows.push((&step.name, step.written.clone()));
                sum.add(&step.written);
                summed += 1;
            }
        }
        if summed > 1 {
            rows.push(("last database", sum));
        }
        if rows.is_empty() {
            Ok(())
        } else {
            let by = &self.conditions.about.counted_by;
            write!(f, "\n{}  counted by {by}\n", written_table(&rows))
        }
    }

    /// Writes the block cache's hits and misses for each step that reads table files.
    fn write_blocks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[
            "blocks of point reads",
            "in the cache",
            "from files",
            "hits",
        ]);
        for step in &self.steps {
            if let Some(cells) = step.blocks.cells() {
                table.row(std::iter::once(step.name.clone()).chain(cells));
            }
        }
        if table.is_empty() {
            Ok(())
        } else {
            write!(f, "\n{table}")
        }
    }

    /// Writes the cost of each step for the process, and the space of the database after it.
    fn write_usage(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[
            "cost of each step",
            "CPU user",
            "CPU system",
            "CPU of others",
            "peak memory",
            "of it private",
            "pool at most",
            "space used",
            "live data",
            "amplification",
        ]);
        let steps = self.steps.iter().filter(|step| step.usage.peak_bytes > 0);
        for step in steps {
            let (usage, space) = (&step.usage, &step.space);
            let since = if usage.peak_is_of_phase { "" } else { " (run)" };
            let none = || "-".to_string();
            table.row([
                step.name.clone(),
                format!("{:.2} s", usage.cpu_user_s),
                format!("{:.2} s", usage.cpu_system_s),
                format!("{:.2} s", usage.cpu_others_s),
                format!("{}{since}", units::bytes(usage.peak_bytes)),
                units::bytes(usage.peak_private_bytes),
                space.pool_peak_bytes.map_or_else(none, units::bytes),
                units::bytes(space.used_bytes),
                space.live_bytes.map_or_else(none, units::bytes),
                space
                    .amplification
                    .map_or_else(none, |amp| format!("{amp:.2}")),
            ]);
        }
        write!(f, "\n{table}")?;
        for step in self.steps.iter().filter(|step| step.usage.is_disturbed()) {
            writeln!(
                f,
                "DISTURBED: during {}, other programs or kernel threads took {:.0} % of the \
                 machine's processor time",
                step.name,
                step.usage.others_share * 100.0
            )?;
        }
        Ok(())
    }

    fn write_space(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = &self.space;
        let mut table = Table::new(&["space at the end", "tables", "bytes", "amplification"]);
        let mut row = |name: &str, tables: String, bytes: u64, amp: Option<f64>| {
            let amp = amp.map_or(String::new(), |amp| format!("{amp:.2}"));
            table.row([name.to_string(), tables, units::bytes(bytes), amp]);
        };
        let none = String::new;
        let tiers = self.conditions.design.is_some();
        if tiers {
            row("memtables", none(), space.memtable_bytes, None);
            row("logs", none(), space.log_bytes, None);
        }
        for (at, (level, tables, bytes)) in space.levels.iter().enumerate() {
            let name = space.level_names.get(at).cloned();
            let name = name.unwrap_or_else(|| format!("buffer level {level}"));
            row(&name, units::count(*tables), *bytes, None);
        }
        if space.bottom_bytes > 0 {
            let amp = space.space_amp_repository;
            row("repository", none(), space.bottom_bytes, amp);
            row("  of it dead", none(), space.bottom_dead_bytes, None);
        }
        if tiers {
            let live = space.pool_allocated_bytes;
            row("pool, live extents", none(), live, None);
            row("pool, file", none(), space.pool_committed_bytes, None);
        }
        if !space.files.is_empty() {
            let files = space.files.iter().map(|level| level.files).sum();
            let bytes = space.files.iter().map(|level| level.bytes).sum();
            row(
                "table files",
                units::count(files),
                bytes,
                space.space_amp_files,
            );
        }
        let (files, bytes) = space.value_files;
        if files > 0 {
            row("value files", units::count(files), bytes, None);
        }
        row("directory, all files", none(), space.folder_bytes, None);
        write!(f, "\n{table}")?;
        let levels = files::table_of(&space.files);
        if !levels.is_empty() {
            write!(f, "\n{levels}")?;
        }
        if space.cache.capacity_bytes > 0 {
            write!(f, "\ncache       {}\n", files::used_of(&space.cache))?;
        }
        Ok(())
    }
}

/// Formats written bytes in columns, without purposes and files that have none.
fn written_table(rows: &[(&str, Written)]) -> Table {
    type Cell<'a> = Box<dyn Fn(&Written) -> u64 + 'a>;
    let purposes = Purpose::ALL.into_iter().enumerate().map(|(at, purpose)| {
        let cell: Cell = Box::new(move |w| w.purposes.get(at).map_or(0, |p| p.bytes));
        (purpose.name(), cell)
    });
    let mut columns: Vec<(&str, Cell)> = vec![("by user", Box::new(|w| w.user_bytes))];
    columns.extend(purposes);
    columns.push(("pool", Box::new(|w| w.pool_bytes)));
    let mut causes: Vec<&str> = Vec::new();
    for file in rows.iter().flat_map(|(_, written)| &written.files) {
        if !causes.contains(&&*file.cause) {
            causes.push(&file.cause);
        }
    }
    columns.extend(causes.into_iter().map(|cause| {
        let cell: Cell = Box::new(move |w| {
            let files = w.files.iter().filter(|file| file.cause == cause);
            files.map(|file| file.bytes).sum()
        });
        (cause, cell)
    }));
    let has_files = rows.iter().any(|(_, written)| written.file_bytes > 0);
    columns.retain(|(name, cell)| *name == "by user" || rows.iter().any(|(_, w)| cell(w) > 0));
    let mut heading = vec!["written, MB"];
    heading.extend(columns.iter().map(|(name, _)| *name));
    let has_pool = rows.iter().any(|(_, written)| written.pool_bytes > 0);
    if has_pool || !has_files {
        heading.push("pool amplification");
    }
    if has_files {
        heading.push("file amplification");
    }
    let mut table = Table::new(&heading);
    for (name, written) in rows {
        let mut row = vec![name.to_string()];
        let cells = columns.iter().map(|(_, cell)| cell(written));
        row.extend(cells.map(|bytes| format!("{:.1}", bytes as f64 / 1e6)));
        let amp = |amp: Option<f64>| amp.map_or("-".to_string(), |amp| format!("{amp:.2}"));
        if has_pool || !has_files {
            row.push(amp(written.write_amp_pool));
        }
        if has_files {
            row.push(amp(written.write_amp_files));
        }
        table.row(row);
    }
    table
}

/// Formats a number of microseconds, short enough for a column.
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
    use crate::latency::LatencyReport;
    use crate::report::{CauseReport, PurposeReport, TargetReport};

    /// The line of a step aligns with its heading for all figures.
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
                ..LatencyReport::default()
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
        step.target = Some(TargetReport::of(20_000.0, 0.09, 10.0));
        assert_eq!(step.to_string().len(), HEADING.len(), "it kept up");
        step.target = Some(TargetReport::of(20_000.0, 3.214, 10.0));
        let line = step.to_string();
        assert!(line.contains("NOT REACHED: 20,000 op/s"), "{line}");
        assert!(line.ends_with("3.21 s late"), "{line}");
        step.skipped = Some("it was not requested".to_string());
        assert!(step.to_string().ends_with("skipped: it was not requested"));
    }

    fn wrote(user_bytes: u64, pool_bytes: u64, table_file_bytes: u64) -> Written {
        let mut written = Written::default();
        written.add(&Written {
            user_bytes,
            purposes: vec![PurposeReport {
                purpose: "log".into(),
                bytes: pool_bytes,
                lines: 1,
                flushes: 1,
                fences: 1,
            }],
            pool_bytes,
            files: vec![
                CauseReport {
                    cause: "log files".into(),
                    bytes: 1,
                },
                CauseReport {
                    cause: "table files".into(),
                    bytes: table_file_bytes,
                },
            ],
            file_bytes: 1 + table_file_bytes,
            ..Written::default()
        });
        written
    }

    /// Bytes written by several steps add up by purpose and by tier.
    #[test]
    fn written_bytes_add_up() {
        let one = wrote(10, 64, 9);
        let mut sum = Written::default();
        assert!(sum.is_nothing());
        sum.add(&one);
        sum.add(&one);
        assert_eq!(
            (
                sum.user_bytes,
                sum.pool_bytes,
                sum.files[0].bytes,
                sum.files[1].bytes
            ),
            (20, 128, 2, 18)
        );
        assert_eq!((sum.purposes[0].bytes, sum.purposes[0].fences), (128, 2));
        assert_eq!(
            (sum.write_amp_pool, sum.write_amp_files),
            (Some(6.4), Some(1.0))
        );
        assert_eq!(Written::default().write_amp_pool, None);
    }

    /// A tier without written bytes has no column, and users' bytes always have one.
    #[test]
    fn columns_without_bytes_are_left_out() {
        let mut pool_only = wrote(0, 2_000_000, 0);
        pool_only.files.clear();
        pool_only.file_bytes = 0;
        pool_only.purposes.clear();
        let text = written_table(&[("drain", pool_only.clone())]).to_string();
        let expected = "  written, MB  by user  pool  pool amplification\n  \
                          drain            0.0   2.0                   -\n";
        assert_eq!(text, expected);
        let both = [
            ("drain", pool_only),
            ("fill", wrote(1_000_000, 0, 2_500_000)),
        ];
        let text = written_table(&both).to_string();
        assert!(
            text.contains("table files") && text.contains("file amplification"),
            "{text}"
        );
        assert!(text.trim_end().ends_with("2.50"), "{text}");
    }
}
