//! The outcome of a comparison as aligned lines, for people.

use std::fmt;

use super::Outcome;
use super::cells::{Cell, Measure, Verdict, verdict};
use super::model::Comparison;
use super::paper::ratio;
use crate::table::Table;
use crate::units;

/// Formats a verdict in a few words.
pub(crate) fn words(said: &Verdict) -> String {
    match said {
        Verdict::Ratio(value) => ratio(*value),
        Verdict::Unclear(value) => format!("{} (unclear)", ratio(*value)),
        Verdict::TooWide(store, spread) => {
            format!("no verdict: {store} spreads {:.0} %", spread * 100.0)
        }
        Verdict::Nothing => "-".to_string(),
    }
}

/// Formats a median with the spread of its repeats.
pub(crate) fn with_spread(cell: &Cell, measure: Measure, show: impl Fn(f64) -> String) -> String {
    match (cell.median(measure), cell.spread(measure)) {
        (None, _) => "-".to_string(),
        (Some(median), None) => show(median),
        (Some(median), Some(spread)) => {
            format!("{} \u{b1}{:.0}%", show(median), spread * 50.0)
        }
    }
}

/// The maximum number of cells with disturbed phases that are named one by one; readers skip longer
/// lists.
const DISTURBED_NAMED_MAX: usize = 4;

impl Outcome {
    /// Returns the cells that are compared, the baseline's first in each group.
    pub(crate) fn compared(&self) -> impl Iterator<Item = &Cell> {
        self.cells.all().iter().filter(|cell| !cell.prepares)
    }

    /// Returns the verdict on `cell` against the baseline of `comparison`.
    pub(crate) fn verdict(&self, comparison: &Comparison, cell: &Cell, of: Measure) -> Verdict {
        let baseline = comparison.baseline();
        match self.cells.beside(&cell.key, baseline) {
            Some(base) if cell.key.store != baseline => {
                verdict(cell, base, of, *comparison.spread_max.get_ref())
            }
            _ => Verdict::Nothing,
        }
    }

    /// Returns the warnings to read before any figure: that they are of a trial, of a machine busy
    /// with other work, or of a rate that no store kept.
    pub(crate) fn warnings(&self, comparison: &Comparison) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(scale) = &comparison.scaled {
            warnings.push(format!(
                "A trial: data and operations are {scale} of the sizes in the file, but memtables \
                 and caches are not scaled. It shows that the comparison runs; no figure here is \
                 representative."
            ));
        }
        let of = |cell: &Cell| {
            let key = &cell.key;
            let value = units::short_bytes(key.value_bytes);
            let data = key.data_bytes.map(units::short_bytes);
            let data = data.map_or(String::new(), |data| format!(" and {data} of data"));
            format!(
                "{} {} of {} with values of {value}{data}",
                key.workload, key.phase, key.store
            )
        };
        warnings.extend(self.disturbed(&of));
        for cell in self.compared() {
            let targets = cell.samples.iter().filter_map(|sample| sample.phase.target);
            let missed: Vec<f64> = targets
                .filter(|target| !target.reached)
                .map(|target| target.ops_per_s)
                .collect();
            if let Some(asked) = missed.first() {
                warnings.push(format!(
                    "Not reached: {} of {} repeats of {} did not keep up with the requested {} \
                     operations per second; their latencies grew until the end.",
                    missed.len(),
                    cell.samples.len(),
                    of(cell),
                    units::count(asked.round() as u64)
                ));
            }
        }
        warnings
    }

    /// Returns the warnings about phases during which the machine did much other work. `of` names a
    /// cell.
    fn disturbed(&self, of: &dyn Fn(&Cell) -> String) -> Vec<String> {
        let share = |cell: &Cell| {
            let usages = cell.samples.iter().map(|sample| &sample.phase.usage);
            let disturbed = usages.filter(|usage| usage.is_disturbed());
            let shares: Vec<f64> = disturbed.map(|usage| usage.others_share).collect();
            let most = shares.iter().copied().fold(0.0, f64::max);
            (shares.len(), most)
        };
        let mut cells: Vec<_> = self.compared().map(|cell| (cell, share(cell))).collect();
        let repeats: usize = cells.iter().map(|(cell, _)| cell.samples.len()).sum();
        cells.retain(|(_, (disturbed, _))| *disturbed > 0);
        let took = |most: f64| {
            format!(
                "other programs or kernel threads took up to {:.0} % of the machine's processor \
                 time",
                most * 100.0
            )
        };
        if cells.len() <= DISTURBED_NAMED_MAX {
            let said = |(cell, (disturbed, most)): &(&Cell, (usize, f64))| {
                let (repeats, took) = (cell.samples.len(), took(*most));
                format!(
                    "Disturbed: in {disturbed} of {repeats} repeats of {} {took}.",
                    of(cell)
                )
            };
            return cells.iter().map(said).collect();
        }
        let disturbed: usize = cells.iter().map(|(_, (disturbed, _))| disturbed).sum();
        let by_share =
            |a: &&(&Cell, (usize, f64)), b: &&(&Cell, (usize, f64))| a.1.1.total_cmp(&b.1.1);
        let worst = cells.iter().max_by(by_share);
        let said = |(cell, (_, most)): &(&Cell, (usize, f64))| {
            format!(
                "Disturbed: in {disturbed} of {repeats} phases {}; most in {}. See the records for \
                 all of them.",
                took(*most),
                of(cell)
            )
        };
        worst.map(said).into_iter().collect()
    }

    /// Writes everything that a terminal should show.
    pub fn write(&self, f: &mut dyn fmt::Write, comparison: &Comparison) -> fmt::Result {
        writeln!(f, "{}", comparison.title)?;
        if let Some(cell) = self.cells.all().first() {
            let c = &cell.conditions;
            let (m, build) = (&c.machine, &c.build);
            writeln!(
                f,
                "{}, {} cores, Linux {}; build: {build}",
                m.cpu, m.cores, m.kernel
            )?;
        }
        let mut seen: Vec<&str> = Vec::new();
        for cell in self.cells.all() {
            if !seen.contains(&cell.key.store.as_str()) {
                seen.push(&cell.key.store);
                let (c, about) = (&cell.conditions, &cell.conditions.about);
                let emulated = c.emulation.as_ref();
                let emulated = emulated.map_or(String::new(), |e| format!("; emulated {e}"));
                writeln!(
                    f,
                    "  {}: {} on {}, {}{emulated}",
                    cell.key.store, about.medium, c.file_system, about.durability
                )?;
            }
        }
        for warning in self.warnings(comparison) {
            writeln!(f, "{warning}")?;
        }
        let baseline = format!("to {}", comparison.baseline());
        let mut table = Table::new(&[
            "phase",
            "values",
            "data",
            "store",
            "op/s",
            &baseline,
            "p50 us",
            "p99 us",
            "p99.9 us",
            "stalled",
            "written/user",
        ]);
        let is_timed = |cell: &&Cell| cell.median(Measure::Recovery).is_none();
        for cell in self.compared().filter(is_timed) {
            let key = &cell.key;
            let data = key.data_bytes.map_or("-".to_string(), units::short_bytes);
            let of = |measure, show: fn(f64) -> String| {
                cell.median(measure).map_or("-".to_string(), show)
            };
            table.row([
                format!("{} {}", key.workload, key.phase),
                units::short_bytes(key.value_bytes),
                data,
                key.store.clone(),
                with_spread(
                    cell,
                    Measure::Throughput,
                    |v| units::count(v.round() as u64),
                ),
                words(&self.verdict(comparison, cell, Measure::Throughput)),
                of(Measure::P50, units::three_digits),
                of(Measure::P99, units::three_digits),
                of(Measure::P999, units::three_digits),
                of(Measure::Stalls, |v| format!("{v:.2} s")),
                of(Measure::WriteAmp, |v| format!("{v:.2}")),
            ]);
        }
        if !table.is_empty() {
            write!(f, "\n{table}")?;
            writeln!(
                f,
                "  medians of repeats, \u{b1} half of their spread; unclear: the repeats of both overlap, or are too few"
            )?;
        }
        for cell in self.compared() {
            if let Some(seconds) = cell.median(Measure::Recovery) {
                let (store, value) = (&cell.key.store, units::short_bytes(cell.key.value_bytes));
                writeln!(
                    f,
                    "  {store}, values of {value}: open again {seconds:.3} s after SIGKILL"
                )?;
            }
        }
        if let Some(paper) = &comparison.paper {
            paper.write(f, &self.cells, *comparison.spread_max.get_ref())?;
        }
        for failure in self.cells.failures() {
            let planned = failure.run.planned.clone().unwrap_or_default();
            let (store, workload) = (&planned.store, &planned.workload);
            let (how, evidence) = (&failure.how, &failure.evidence);
            writeln!(f, "\nFAILED {store} with {workload}: {how}: {evidence}")?;
        }
        for (store, brings) in &self.absent {
            writeln!(f, "\nnot measured: {store}: {brings}")?;
        }
        writeln!(f, "\n{} of {} runs have a result", self.done, self.planned)
    }
}
