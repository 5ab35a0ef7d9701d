//! The cells of a comparison: one for each store, workload, size and phase, with all repeats, their
//! median and their spread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::report::{Conditions, StallReport, StepReport, Written};
use crate::results::{Failure, Phase, Planned, Record, RunId};
use crate::units;

/// A measure that can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Measure {
    /// Operations a second.
    #[serde(rename = "throughput")]
    Throughput,
    /// The mean latency in microseconds.
    #[serde(rename = "mean")]
    Mean,
    /// A percentile of the latency in microseconds.
    #[serde(rename = "p50")]
    P50,
    /// See `P50`.
    #[serde(rename = "p90")]
    P90,
    /// See `P50`.
    #[serde(rename = "p99")]
    P99,
    /// See `P50`.
    #[serde(rename = "p99.9")]
    P999,
    /// Bytes written per byte that users wrote, since the last fresh database.
    #[serde(rename = "write_amp")]
    WriteAmp,
    /// Bytes written to files per byte that users wrote, since the last fresh database.
    #[serde(rename = "write_amp_files")]
    WriteAmpFiles,
    /// Seconds in which writers were stalled, for all reasons.
    #[serde(rename = "stalls")]
    Stalls,
    /// Bytes that the database takes.
    #[serde(rename = "space")]
    Space,
    /// The most bytes that the live extents of the pool took.
    #[serde(rename = "pool_peak")]
    PoolPeak,
    /// The mean time of one flush in milliseconds.
    #[serde(rename = "flush_mean")]
    FlushMean,
    /// Seconds of all flushes.
    #[serde(rename = "flush_total")]
    FlushTotal,
    /// Seconds of processor time.
    #[serde(rename = "cpu")]
    Cpu,
    /// Seconds until a killed store was open again.
    #[serde(rename = "recovery")]
    Recovery,
    /// Seconds that the phase took.
    #[serde(rename = "seconds")]
    Seconds,
}

/// The kind of a measure, which decides its units.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Operations a second.
    Rate,
    /// A time in a unit of this many seconds.
    Time(f64),
    /// A number of bytes.
    Bytes,
    /// A number without a unit, written as "x".
    Times,
}

impl Kind {
    /// Returns the units in which a paper may state it, each with its number in the first one.
    fn units(self) -> &'static [(&'static str, f64)] {
        match self {
            Kind::Rate => &[("op/s", 1.0), ("kop/s", 1e-3), ("Mop/s", 1e-6)],
            Kind::Time(_) => &[("s", 1.0), ("ms", 1e3), ("us", 1e6)],
            Kind::Bytes => &[
                ("B", 1.0),
                ("KB", 1e-3),
                ("MB", 1e-6),
                ("GB", 1e-9),
                ("KiB", 1.0 / 1024.0),
                ("MiB", 1.0 / 1_048_576.0),
                ("GiB", 1.0 / 1_073_741_824.0),
            ],
            Kind::Times => &[("x", 1.0)],
        }
    }
}

impl Measure {
    fn kind(self) -> Kind {
        match self {
            Measure::Throughput => Kind::Rate,
            Measure::Mean | Measure::P50 | Measure::P90 | Measure::P99 | Measure::P999 => {
                Kind::Time(1e-6)
            }
            Measure::FlushMean => Kind::Time(1e-3),
            Measure::Stalls | Measure::FlushTotal | Measure::Cpu => Kind::Time(1.0),
            Measure::Recovery | Measure::Seconds => Kind::Time(1.0),
            Measure::WriteAmp | Measure::WriteAmpFiles => Kind::Times,
            Measure::Space | Measure::PoolPeak => Kind::Bytes,
        }
    }

    /// Converts a value of this measure to `unit`. If the measure has no such unit, the error lists
    /// those that it has.
    pub fn in_unit(self, value: f64, unit: &str) -> Result<f64, String> {
        let units = self.kind().units();
        let Some((_, count)) = units.iter().find(|(name, _)| *name == unit) else {
            let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            return Err(format!("the measure has no unit {unit:?}: use {names}"));
        };
        Ok(match self.kind() {
            Kind::Time(seconds) => value * seconds * count,
            _ => value * count,
        })
    }

    /// Formats a value of this measure with its unit.
    pub fn show(self, value: f64) -> String {
        match self.kind() {
            Kind::Rate => format!("{} op/s", units::count(value.round() as u64)),
            Kind::Time(seconds) => units::time(Duration::from_secs_f64((value * seconds).max(0.0))),
            Kind::Bytes => units::bytes(value.round() as u64),
            Kind::Times => format!("{} x", units::three_digits(value)),
        }
    }
}

/// The key of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// The workload.
    pub workload: String,
    /// The size of a value in bytes.
    pub value_bytes: u64,
    /// Bytes of data, if the comparison states them.
    pub data_bytes: Option<u64>,
    /// The phase's name; for a part, that of the whole phase before its own.
    pub phase: String,
    /// The index among the phases.
    pub index: usize,
    /// The store.
    pub store: String,
}

/// The result of one phase in one repeat.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The phase.
    pub phase: StepReport,
    /// Bytes written since the last fresh database, including this phase.
    pub written: Written,
}

/// One measure over all repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Repeats {
    /// The median.
    pub median: f64,
    /// The lowest repeat.
    pub lowest: f64,
    /// The highest repeat.
    pub highest: f64,
    /// The number of repeats.
    #[serde(rename = "repeats")]
    pub count: usize,
}

impl Repeats {
    /// Returns the spread as a fraction of the median; `None` for fewer than two repeats.
    pub fn spread(&self) -> Option<f64> {
        let is_defined = self.count > 1 && self.median > 0.0;
        is_defined.then(|| (self.highest - self.lowest) / self.median)
    }
}

/// All repeats of one phase of one store.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The key.
    pub key: Key,
    /// Whether the phase only prepares those that are compared.
    pub prepares: bool,
    /// Whether it is a part of the phase before it: the thread that writes while others read.
    pub is_part: bool,
    /// The repeats measured so far.
    pub samples: Vec<Sample>,
    /// The conditions of the first repeat.
    pub conditions: Conditions,
}

impl Cell {
    /// Returns the measure of every repeat that has it, in ascending order.
    pub fn values(&self, measure: Measure) -> Vec<f64> {
        let mut values: Vec<f64> = self
            .samples
            .iter()
            .filter_map(|sample| sample.value(measure))
            .collect();
        values.sort_by(f64::total_cmp);
        values
    }

    /// Returns the measure over all repeats; `None` if no repeat has it.
    pub fn repeats(&self, measure: Measure) -> Option<Repeats> {
        let values = self.values(measure);
        let (lowest, highest) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len().is_multiple_of(2) {
            true => (values[middle - 1] + values[middle]) / 2.0,
            false => values[middle],
        };
        Some(Repeats {
            median,
            lowest,
            highest,
            count: values.len(),
        })
    }

    /// Returns the median of the repeats: for an even number, the mean of the two in the middle.
    pub fn median(&self, measure: Measure) -> Option<f64> {
        self.repeats(measure).map(|repeats| repeats.median)
    }

    /// Returns the spread of the repeats as a fraction of the median; `None` for fewer than two.
    pub fn spread(&self, measure: Measure) -> Option<f64> {
        self.repeats(measure)?.spread()
    }

    /// Returns the repeat with the median throughput, for pictures of a single run.
    pub fn typical(&self) -> Option<&Sample> {
        let mut samples: Vec<&Sample> = self.samples.iter().collect();
        samples.sort_by(|a, b| a.phase.ops_per_s.total_cmp(&b.phase.ops_per_s));
        samples.get(samples.len().saturating_sub(1) / 2).copied()
    }
}

impl Sample {
    fn value(&self, measure: Measure) -> Option<f64> {
        let (phase, latency) = (&self.phase, self.phase.latency.as_ref());
        // Stalls and writes are counted for a whole phase, so a part has none.
        let is_part = phase.name.starts_with(' ');
        match measure {
            Measure::WriteAmp | Measure::WriteAmpFiles | Measure::Stalls if is_part => None,
            Measure::PoolPeak => phase.space.pool_peak_bytes.map(|bytes| bytes as f64),
            Measure::FlushMean => phase.flushes.and_then(|flushes| flushes.mean_ms()),
            Measure::FlushTotal => phase.flushes.map(|flushes| flushes.seconds),
            Measure::Throughput => latency.map(|_| phase.ops_per_s),
            Measure::Mean => latency.map(|latency| latency.mean_us),
            Measure::P50 => latency.map(|latency| latency.p50_us),
            Measure::P90 => latency.map(|latency| latency.p90_us),
            Measure::P99 => latency.map(|latency| latency.p99_us),
            Measure::P999 => latency.map(|latency| latency.p99_9_us),
            Measure::WriteAmp => {
                let written = &self.written;
                let bytes = written.pool_bytes + written.file_bytes;
                (written.user_bytes > 0).then(|| bytes as f64 / written.user_bytes as f64)
            }
            Measure::WriteAmpFiles => self.written.write_amp_files,
            Measure::Stalls => {
                let seconds = |sum, stall: &StallReport| sum + stall.seconds;
                latency.map(|_| phase.stalls.iter().fold(0.0, seconds))
            }
            Measure::Space => Some(phase.space.used_bytes as f64),
            Measure::Cpu => Some(phase.usage.cpu_user_s + phase.usage.cpu_system_s),
            Measure::Recovery => phase.recovery.map(|recovery| recovery.open_s),
            Measure::Seconds => Some(phase.elapsed_s),
        }
    }
}

/// All results of a comparison.
#[derive(Debug, Clone, Default)]
pub struct Cells {
    cells: Vec<Cell>,
    failures: Vec<Failure>,
    runs: Vec<RunId>,
}

impl Cells {
    /// Sorts `records` into cells. If a run was repeated, the last one counts. Phases of failed
    /// runs and records of no comparison do not count.
    pub fn of<'a>(records: impl Iterator<Item = &'a Record> + Clone) -> Cells {
        let mut last: BTreeMap<String, (u64, &str)> = BTreeMap::new();
        let mut failed: BTreeSet<&str> = BTreeSet::new();
        let ended = |record: &&Record| !matches!(record, Record::Phase(_));
        for record in records.clone().filter(ended) {
            let run = record.run();
            if matches!(record, Record::Failed(_)) {
                failed.insert(&run.id);
            }
            if let Some(planned) = &run.planned {
                let at = last.entry(place_of(planned)).or_default();
                *at = (*at).max((run.began_ms, &run.id));
            }
        }
        let counts = |record: &&Record| {
            let run = record.run();
            let planned = run.planned.as_ref();
            planned.is_some_and(|p| last.get(&place_of(p)).is_some_and(|(_, id)| *id == run.id))
        };
        let mut cells = Cells::default();
        // For each run, the bytes written since its last fresh database, and its last whole phase.
        let mut runs: BTreeMap<&str, (Written, String)> = BTreeMap::new();
        for record in records.filter(counts) {
            match record {
                Record::Phase(phase) if failed.contains(phase.run.id.as_str()) => {}
                Record::Phase(phase) => {
                    let (written, whole) = runs.entry(&phase.run.id).or_default();
                    if phase.phase.open_s.is_some() || phase.phase.recovery.is_some() {
                        *written = Written::default();
                    }
                    written.add(&phase.phase.written);
                    // A part of a phase follows it, and has a name that begins with blanks.
                    let name = &phase.phase.name;
                    if name.starts_with(' ') {
                        cells.add(phase, &format!("{whole} {}", name.trim()), written);
                    } else {
                        whole.clone_from(name);
                        cells.add(phase, name, written);
                    }
                }
                Record::Failed(failure) => cells.failures.push(Failure::clone(failure)),
                Record::End(end) => cells.runs.push(end.run.clone()),
            }
        }
        cells.sort();
        cells
    }

    /// Orders cells by workload, phase, size and store, so that those to compare are adjacent.
    /// Workloads and stores keep the order of first appearance.
    fn sort(&mut self) {
        let mut names: Vec<String> = Vec::new();
        for cell in &self.cells {
            for name in [&cell.key.workload, &cell.key.store] {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
        let place = |name: &String| names.iter().position(|there| there == name);
        self.cells.sort_by_key(|cell| {
            let key = &cell.key;
            let (workload, store) = (place(&key.workload), place(&key.store));
            (
                workload,
                key.index,
                key.phase.clone(),
                key.value_bytes,
                key.data_bytes,
                store,
            )
        });
    }

    fn add(&mut self, phase: &Phase, name: &str, written: &Written) {
        let Some(planned) = &phase.run.planned else {
            return;
        };
        let key = Key {
            workload: planned.workload.clone(),
            value_bytes: planned.value_bytes,
            data_bytes: planned.data_bytes,
            phase: name.to_string(),
            index: phase.phase.index,
            store: planned.store.clone(),
        };
        let sample = Sample {
            phase: phase.phase.clone(),
            written: written.clone(),
        };
        match self.cells.iter_mut().find(|cell| cell.key == key) {
            Some(cell) => cell.samples.push(sample),
            None => self.cells.push(Cell {
                prepares: phase.phase.index < planned.prepare_count,
                is_part: phase.phase.name.starts_with(' '),
                key,
                samples: vec![sample],
                conditions: phase.conditions.clone(),
            }),
        }
    }

    /// Returns all cells, by workload, phase, size and store.
    pub fn all(&self) -> &[Cell] {
        &self.cells
    }

    /// Returns the runs that failed.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Returns the runs that ended normally.
    pub fn runs(&self) -> &[RunId] {
        &self.runs
    }

    /// Returns the same cell of another store.
    pub fn beside(&self, key: &Key, store: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| {
            let other = &cell.key;
            other.store == store
                && other.workload == key.workload
                && other.value_bytes == key.value_bytes
                && other.data_bytes == key.data_bytes
                && other.index == key.index
                && other.phase == key.phase
        })
    }
}

/// Returns the place of a run in a comparison, independent of the program that ran it.
fn place_of(planned: &Planned) -> String {
    format!(
        "{}\n{}\n{}\n{:?}\n{}",
        planned.store, planned.workload, planned.value_bytes, planned.data_bytes, planned.repeat
    )
}

/// The result of comparing a store with the baseline.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The ratio to the baseline's figure.
    Ratio(f64),
    /// A ratio of little meaning: the ranges of the repeats overlap, or one cell has a single run.
    Unclear(f64),
    /// The repeats of the named store spread too widely, by this fraction of their median.
    TooWide(String, f64),
    /// One cell has no result.
    Nothing,
}

/// Compares the medians of two cells if their repeats allow it.
pub fn verdict(cell: &Cell, baseline: &Cell, measure: Measure, spread_max: f64) -> Verdict {
    let of = |cell: &Cell| cell.repeats(measure);
    let names = [cell, baseline].map(|cell| cell.key.store.as_str());
    match (of(cell), of(baseline)) {
        (Some(a), Some(b)) => judge(names, [a, b], spread_max),
        (a, b) => {
            let each = names.into_iter().zip([a, b]);
            let mut there = each.filter_map(|(name, repeats)| Some((name, repeats?)));
            let wide = there.find_map(|(name, repeats)| too_wide(name, &repeats, spread_max));
            wide.unwrap_or(Verdict::Nothing)
        }
    }
}

/// Compares the medians of two stores if their repeats allow it.
pub fn judge(names: [&str; 2], [a, b]: [Repeats; 2], spread_max: f64) -> Verdict {
    for (name, repeats) in names.into_iter().zip([a, b]) {
        if let Some(wide) = too_wide(name, &repeats, spread_max) {
            return wide;
        }
    }
    if b.median <= 0.0 {
        return Verdict::Nothing;
    }
    let apart = a.highest < b.lowest || b.highest < a.lowest;
    if apart && a.count > 1 && b.count > 1 {
        Verdict::Ratio(a.median / b.median)
    } else {
        Verdict::Unclear(a.median / b.median)
    }
}

fn too_wide(name: &str, repeats: &Repeats, spread_max: f64) -> Option<Verdict> {
    let spread = repeats.spread().filter(|spread| *spread > spread_max)?;
    Some(Verdict::TooWide(name.to_string(), spread))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::latency::LatencyReport;
    use crate::machine::Memory;
    use crate::results::{End, VERSION};
    use crate::space::Space;

    /// Returns the records of one run with a single phase of this throughput.
    pub(crate) fn run(id: u64, store: &str, repeat: u32, ops_per_s: f64) -> Vec<Record> {
        let run = RunId {
            id: id.to_string(),
            began_ms: id,
            planned: Some(Planned {
                store: store.to_string(),
                workload: "w".to_string(),
                value_bytes: 1024,
                repeat,
                ..Planned::default()
            }),
        };
        let phase = StepReport {
            name: "fillrandom".to_string(),
            ops_per_s,
            latency: Some(LatencyReport::default()),
            ..StepReport::default()
        };
        vec![
            Record::Phase(Box::new(Phase {
                terrace_bench: VERSION,
                run: run.clone(),
                conditions: Conditions::default(),
                phase,
            })),
            Record::End(Box::new(End {
                terrace_bench: VERSION,
                run,
                space: Space::default(),
                memory: Memory::default(),
            })),
        ]
    }

    fn cells(runs: &[(&str, u32, f64)]) -> Cells {
        let records: Vec<Record> = runs
            .iter()
            .enumerate()
            .flat_map(|(id, (store, repeat, ops))| run(id as u64, store, *repeat, *ops))
            .collect();
        Cells::of(records.iter())
    }

    fn said(runs: &[(&str, u32, f64)]) -> Verdict {
        let cells = cells(runs);
        let cell = |store| cells.all().iter().find(|cell| cell.key.store == store);
        let (a, b) = (cell("a").expect("a cell"), cell("b").expect("a cell"));
        verdict(a, b, Measure::Throughput, 0.1)
    }

    /// The median is the middle of the repeats, the spread their range.
    #[test]
    fn repeats_have_a_middle_and_a_spread() {
        let cells = cells(&[("a", 0, 100.0), ("a", 1, 130.0), ("a", 2, 110.0)]);
        let cell = &cells.all()[0];
        assert_eq!(cell.median(Measure::Throughput), Some(110.0));
        let spread = cell.spread(Measure::Throughput).expect("three repeats");
        assert!((spread - 30.0 / 110.0).abs() < 1e-9);
        assert_eq!(cell.typical().expect("a run").phase.ops_per_s, 110.0);
        assert_eq!(cell.median(Measure::Recovery), None);
    }

    /// A ratio is clear only if each store's repeats are close together and the stores' ranges are
    /// apart.
    #[test]
    fn verdicts_are_earned() {
        let apart = [
            ("a", 0, 200.0),
            ("b", 0, 100.0),
            ("a", 1, 204.0),
            ("b", 1, 98.0),
        ];
        assert_eq!(said(&apart), Verdict::Ratio(202.0 / 99.0));
        let wide = [
            ("a", 0, 200.0),
            ("b", 0, 100.0),
            ("a", 1, 260.0),
            ("b", 1, 98.0),
        ];
        assert!(matches!(said(&wide), Verdict::TooWide(store, _) if store == "a"));
        let mixed = [
            ("a", 0, 100.0),
            ("b", 0, 101.0),
            ("a", 1, 103.0),
            ("b", 1, 98.0),
        ];
        assert!(matches!(said(&mixed), Verdict::Unclear(_)));
        let single = [("a", 0, 200.0), ("b", 0, 100.0)];
        assert_eq!(said(&single), Verdict::Unclear(2.0));
    }

    /// Flushes and the peak of the pool are measures of the phases that have them.
    #[test]
    fn flushes_and_the_pool_are_measures() {
        let mut records = run(1, "a", 0, 100.0);
        records.extend(run(2, "b", 0, 100.0));
        if let Record::Phase(phase) = &mut records[0] {
            phase.phase.flushes = Some(crate::report::FlushReport {
                count: 4,
                entries: 400,
                seconds: 0.5,
            });
            phase.phase.space.pool_peak_bytes = Some(1 << 20);
        }
        let cells = Cells::of(records.iter());
        let [with, without] = cells.all() else {
            panic!("{cells:?}");
        };
        for (measure, value) in [
            (Measure::FlushMean, 125.0),
            (Measure::FlushTotal, 0.5),
            (Measure::PoolPeak, 1_048_576.0),
        ] {
            assert_eq!(with.median(measure), Some(value), "{measure:?}");
            assert_eq!(without.median(measure), None, "{measure:?}");
        }
    }

    /// Values convert to the units of papers; a wrong unit is refused with those that exist.
    #[test]
    fn measures_have_units() {
        for (measure, value, unit, converted) in [
            (Measure::WriteAmp, 2.9, "x", 2.9),
            (Measure::P99, 1500.0, "ms", 1.5),
            (Measure::FlushMean, 11.0, "ms", 11.0),
            (Measure::FlushMean, 11.0, "us", 11_000.0),
            (Measure::Stalls, 0.25, "ms", 250.0),
            (Measure::PoolPeak, 39.1e9, "GB", 39.1),
            (Measure::Space, 1_073_741_824.0, "MiB", 1024.0),
            (Measure::Throughput, 12_300.0, "kop/s", 12.3),
        ] {
            let found = measure.in_unit(value, unit).expect(unit);
            assert!((found - converted).abs() < 1e-6, "{found} {unit}");
        }
        let problem = Measure::FlushMean.in_unit(1.0, "x");
        assert!(problem.is_err_and(|problem| problem.ends_with("use s, ms, us")));
        for (measure, value, text) in [
            (Measure::Throughput, 12_345.4, "12,345 op/s"),
            (Measure::P99, 15.7, "15.7 us"),
            (Measure::FlushMean, 11.0, "11.0 ms"),
            (Measure::Stalls, 28.1, "28.1 s"),
            (Measure::PoolPeak, 1_572_864.0, "1.50 MiB"),
            (Measure::WriteAmp, 2.756, "2.76 x"),
        ] {
            assert_eq!(measure.show(value), text);
        }
    }

    /// A part of a phase is a separate cell, and does not count for the phase before it.
    #[test]
    fn parts_stand_by_themselves() {
        let mut records = run(1, "a", 0, 100.0);
        let mut part = records[0].clone();
        if let Record::Phase(part) = &mut part {
            part.phase.name = "  (writer)".to_string();
            part.phase.ops_per_s = 7.0;
        }
        records.insert(1, part);
        let cells = Cells::of(records.iter());
        let found: Vec<(&str, bool, f64)> = cells
            .all()
            .iter()
            .map(|cell| {
                let ops = cell.median(Measure::Throughput).expect("it has one");
                (cell.key.phase.as_str(), cell.is_part, ops)
            })
            .collect();
        let expected = [
            ("fillrandom", false, 100.0),
            ("fillrandom (writer)", true, 7.0),
        ];
        assert_eq!(found, expected);
    }

    /// Phases of a failed run do not count, and a later run with the same key replaces it.
    #[test]
    fn failed_runs_do_not_count() {
        let mut records = run(1, "a", 0, 100.0);
        let failed = Failure {
            run: records[0].run().clone(),
            ..Failure::default()
        };
        records[1] = Record::Failed(Box::new(failed));
        let cells = Cells::of(records.iter());
        assert!(cells.all().is_empty());
        assert_eq!(cells.failures().len(), 1);
        records.extend(run(2, "a", 0, 120.0));
        let cells = Cells::of(records.iter());
        assert_eq!(cells.all()[0].values(Measure::Throughput), [120.0]);
        assert!(cells.failures().is_empty());
    }
}
