//! The pictures of a report.

use std::collections::BTreeMap;

use super::Picture;
use crate::IntervalReport;
use crate::compare::{Cell, Comparison, Key, Measure, Outcome};
use crate::plot::{Band, Bar, Bars, Line, Lines, Part, Scale};
use crate::units;

/// Makes the pictures of one comparison.
pub(super) struct Pictures<'a> {
    outcome: &'a Outcome,
    stores: Vec<&'a str>,
    note: String,
}

/// The cells of one picture: those of all stores for one phase.
type Group<'a> = Vec<&'a Cell>;

impl<'a> Pictures<'a> {
    pub(super) fn new(comparison: &'a Comparison, outcome: &'a Outcome) -> Pictures<'a> {
        let stores = comparison
            .store
            .iter()
            .map(|store| store.get_ref().name.as_str());
        Pictures {
            outcome,
            stores: stores.collect(),
            note: note(outcome),
        }
    }

    /// Returns the series of a store, which sets its colour and its place in every picture.
    fn series(&self, store: &str) -> usize {
        self.stores
            .iter()
            .position(|name| *name == store)
            .unwrap_or(0)
    }

    /// Returns the names of the stores that have a cell in `cells`, each at its place.
    fn legend(&self, cells: &[&Cell]) -> Vec<String> {
        let is_there = |name: &str| cells.iter().any(|cell| cell.key.store == name);
        let name = |name: &&str| {
            if is_there(name) {
                name.to_string()
            } else {
                String::new()
            }
        };
        self.stores.iter().map(name).collect()
    }

    /// Groups the compared cells by `key`, in the order of first appearance.
    fn groups<K: PartialEq>(&self, key: impl Fn(&Key) -> K) -> Vec<(K, Group<'a>)> {
        let mut groups: Vec<(K, Group<'a>)> = Vec::new();
        for cell in self.outcome.compared() {
            let of = key(&cell.key);
            match groups.iter_mut().find(|(there, _)| *there == of) {
                Some((_, group)) => group.push(cell),
                None => groups.push((of, vec![cell])),
            }
        }
        for (_, group) in &mut groups {
            group.sort_by_key(|cell| self.series(&cell.key.store));
        }
        groups
    }

    /// Draws bars of `measure` by value size, a picture for each phase and size of data.
    fn bars(
        &self,
        name: &str,
        title: &str,
        unit: &str,
        bar: impl Fn(&Cell) -> Option<Bar>,
        only_last: bool,
    ) -> Vec<Picture> {
        let mut pictures = Vec::new();
        let by_phase = |key: &Key| {
            (
                key.workload.clone(),
                key.index,
                key.data_bytes,
                key.phase.clone(),
            )
        };
        let groups = self.groups(by_phase);
        for ((workload, index, data, phase), cells) in &groups {
            let later = |other: &(String, usize, Option<u64>, String)| {
                other.0 == *workload && other.2 == *data && other.1 > *index
            };
            if only_last && groups.iter().any(|(other, _)| later(other)) {
                continue;
            }
            let mut by_value: BTreeMap<u64, Vec<Bar>> = BTreeMap::new();
            for cell in cells {
                by_value
                    .entry(cell.key.value_bytes)
                    .or_default()
                    .extend(bar(cell));
            }
            by_value.retain(|_, bars| !bars.is_empty());
            if by_value.is_empty() {
                continue;
            }
            let phase = if only_last { "" } else { phase.as_str() };
            let bars = Bars {
                title: heading(title, workload, phase, None, *data),
                note: self.note.clone(),
                unit: unit.to_string(),
                legend: self.legend(cells),
                groups: by_value
                    .into_iter()
                    .map(|(value, bars)| (format!("values of {}", units::short_bytes(value)), bars))
                    .collect(),
            };
            let file = file_name(&[name, workload, phase], None, *data, *index);
            pictures.push(Picture {
                name: file,
                svg: bars.draw(),
            });
        }
        pictures
    }

    fn bar_of(&self, cell: &Cell, measure: Measure, show: fn(f64) -> String) -> Option<Bar> {
        let median = cell.median(measure)?;
        let values = cell.values(measure);
        Some(Bar {
            parts: vec![Part {
                series: self.series(&cell.key.store),
                value: median,
                tip: format!(
                    "{}: {} ({} runs)",
                    cell.key.store,
                    show(median),
                    values.len()
                ),
            }],
            range: values.first().copied().zip(values.last().copied()),
            label: show(median),
            ..Bar::default()
        })
    }

    pub(super) fn throughput(&self) -> Vec<Picture> {
        let show = |v: f64| short(v);
        let bar = |cell: &Cell| self.bar_of(cell, Measure::Throughput, show);
        self.bars("throughput", "Operations a second", "op/s", bar, false)
    }

    pub(super) fn recovery(&self) -> Vec<Picture> {
        let show = |v: f64| format!("{v:.3} s");
        let bar = |cell: &Cell| self.bar_of(cell, Measure::Recovery, show);
        self.bars(
            "recovery",
            "Open again after SIGKILL",
            "seconds",
            bar,
            false,
        )
    }

    pub(super) fn space(&self) -> Vec<Picture> {
        let bar = |cell: &Cell| {
            let sample = cell.typical()?;
            let (space, store) = (sample.phase.space, &cell.key.store);
            let amplification = space.amplification?;
            Some(Bar {
                parts: vec![Part {
                    series: self.series(store),
                    value: amplification,
                    tip: format!("{store}: {} used", units::short_bytes(space.used_bytes)),
                }],
                label: format!("{amplification:.2}"),
                ..Bar::default()
            })
        };
        self.bars(
            "space",
            "Space for each live byte",
            "used / live",
            bar,
            true,
        )
    }

    pub(super) fn write_amplification(&self) -> Vec<Picture> {
        let mut pictures = Vec::new();
        let groups = self.groups(|key| (key.workload.clone(), key.data_bytes));
        for ((workload, data), mut cells) in groups {
            cells.retain(|cell| !cell.is_part);
            let mut causes: Vec<String> = Vec::new();
            let mut by_value: BTreeMap<u64, Vec<Bar>> = BTreeMap::new();
            for cell in &cells {
                let later = |other: &&&Cell| {
                    let (a, b) = (&other.key, &cell.key);
                    a.store == b.store && a.value_bytes == b.value_bytes && a.index > b.index
                };
                if cells.iter().any(|other| later(&other)) {
                    continue;
                }
                by_value
                    .entry(cell.key.value_bytes)
                    .or_default()
                    .extend(amplified(cell, &mut causes));
            }
            if by_value.values().all(Vec::is_empty) {
                continue;
            }
            let bars = Bars {
                title: heading(
                    "Written for each byte of the user",
                    &workload,
                    "",
                    None,
                    data,
                ),
                note: self.note.clone(),
                unit: "written / user".to_string(),
                legend: causes,
                groups: by_value
                    .into_iter()
                    .map(|(value, bars)| (format!("values of {}", units::short_bytes(value)), bars))
                    .collect(),
            };
            pictures.push(Picture {
                name: file_name(&["written", &workload], None, data, 0),
                svg: bars.draw(),
            });
        }
        pictures
    }

    pub(super) fn latency(&self) -> Vec<Picture> {
        let mut pictures = Vec::new();
        let by = |key: &Key| {
            (
                key.workload.clone(),
                (key.index, key.phase.clone()),
                key.value_bytes,
                key.data_bytes,
            )
        };
        for ((workload, (index, phase), value, data), cells) in self.groups(by) {
            let mut kinds: Vec<&str> = Vec::new();
            let of_cells = cells.iter().flat_map(|cell| &cell.samples);
            for kind in of_cells.flat_map(|sample| &sample.phase.kinds) {
                if !kinds.contains(&&*kind.kind) {
                    kinds.push(&kind.kind);
                }
            }
            for kind in kinds {
                let lines = cells.iter().filter_map(|cell| {
                    let points = slower(cell, kind);
                    (!points.is_empty()).then(|| Line {
                        name: cell.key.store.clone(),
                        series: self.series(&cell.key.store),
                        points,
                    })
                });
                let title = heading(
                    &format!("Latency of {kind}s"),
                    &workload,
                    &phase,
                    Some(value),
                    data,
                );
                let picture = Lines {
                    title,
                    note: self.note.clone(),
                    x: ("microseconds".to_string(), Scale::Log),
                    y: ("% of operations slower".to_string(), Scale::Log),
                    x_end: None,
                    height: 320.0,
                    y_max: Some(100.0),
                    lines: lines.collect(),
                    bands: Vec::new(),
                };
                pictures.push(Picture {
                    name: file_name(
                        &["latency", &workload, &phase, kind],
                        Some(value),
                        data,
                        index,
                    ),
                    svg: picture.draw(),
                });
            }
        }
        pictures
    }

    pub(super) fn traces(&self) -> Vec<Picture> {
        let mut pictures = Vec::new();
        let by = |key: &Key| {
            (
                key.workload.clone(),
                (key.index, key.phase.clone()),
                key.value_bytes,
                key.data_bytes,
            )
        };
        for ((workload, (index, phase), value, data), cells) in self.groups(by) {
            let rate = |ops: u64, seconds: f64| ops as f64 / seconds.max(1e-9);
            let intervals = |cell: &'a Cell| {
                let all = cell
                    .typical()
                    .map_or(&[][..], |sample| &sample.phase.intervals);
                // A short last interval gives no meaningful rate.
                all.iter().filter(|interval| interval.seconds > 0.2)
            };
            let all = || cells.iter().flat_map(|cell| intervals(cell));
            let x_end = all().map(|i| i.end_s).fold(0.0, f64::max);
            let y_max = all().map(|i| rate(i.ops, i.seconds)).fold(0.0, f64::max);
            let mut tails = [Vec::new(), Vec::new()];
            for cell in &cells {
                let key = &cell.key;
                if intervals(cell).count() < 3 {
                    continue;
                }
                let middle = |end: f64, seconds: f64| end - seconds / 2.0;
                let points =
                    intervals(cell).map(|i| (middle(i.end_s, i.seconds), rate(i.ops, i.seconds)));
                let stalled = intervals(cell).filter(|i| i.stalls.iter().any(|s| s.seconds > 0.0));
                let picture = Lines {
                    title: heading(&key.store, &workload, &key.phase, Some(value), data),
                    note: format!("{}; marked: stalled writers", self.note),
                    x: ("seconds".to_string(), Scale::Linear),
                    y: ("op/s".to_string(), Scale::Linear),
                    x_end: Some(x_end),
                    height: 220.0,
                    y_max: Some(y_max),
                    lines: vec![Line {
                        name: String::new(),
                        series: self.series(&key.store),
                        points: points.collect(),
                    }],
                    bands: stalled
                        .map(|interval| Band {
                            from: interval.end_s - interval.seconds,
                            to: interval.end_s,
                            tip: stalls(&interval.stalls),
                        })
                        .collect(),
                };
                let names = ["trace", &workload, &key.phase, &key.store];
                pictures.push(Picture {
                    name: file_name(&names, Some(value), data, index),
                    svg: picture.draw(),
                });
                let figures: [fn(&IntervalReport) -> f64; 2] = [|i| i.p99_us, |i| i.max_us];
                for (lines, figure) in tails.iter_mut().zip(figures) {
                    let points = intervals(cell).filter(|i| figure(i) > 0.0);
                    lines.push(Line {
                        name: key.store.clone(),
                        series: self.series(&key.store),
                        points: points
                            .map(|i| (middle(i.end_s, i.seconds), figure(i)))
                            .collect(),
                    });
                }
            }
            for (kind, tails) in ["p99", "max"].into_iter().zip(tails) {
                if tails.is_empty() {
                    continue;
                }
                let what = format!("{kind} of each second");
                let picture = Lines {
                    title: heading(&what, &workload, &phase, Some(value), data),
                    note: self.note.clone(),
                    x: ("seconds".to_string(), Scale::Linear),
                    y: ("microseconds".to_string(), Scale::Log),
                    x_end: Some(x_end),
                    height: 260.0,
                    y_max: None,
                    lines: tails,
                    bands: Vec::new(),
                };
                pictures.push(Picture {
                    name: file_name(&[kind, &workload, &phase], Some(value), data, index),
                    svg: picture.draw(),
                });
            }
        }
        pictures
    }

    pub(super) fn scaling(&self) -> Vec<Picture> {
        let mut pictures = Vec::new();
        let by = |key: &Key| {
            let phase = (key.index, key.phase.clone());
            (key.workload.clone(), phase, key.value_bytes)
        };
        for ((workload, (index, phase), value), cells) in self.groups(by) {
            let mut by_store: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
            for cell in &cells {
                let data = cell
                    .key
                    .data_bytes
                    .map(|bytes| bytes as f64 / f64::from(1 << 20));
                let points = by_store.entry(self.series(&cell.key.store)).or_default();
                points.extend(data.zip(cell.median(Measure::Throughput)));
            }
            if by_store.values().all(|points| points.len() < 2) {
                continue;
            }
            let picture = Lines {
                title: heading("Operations a second", &workload, &phase, Some(value), None),
                note: self.note.clone(),
                x: ("MiB of keys and values".to_string(), Scale::Log),
                y: ("op/s".to_string(), Scale::Linear),
                x_end: None,
                height: 300.0,
                y_max: None,
                lines: by_store
                    .into_iter()
                    .map(|(series, mut points)| {
                        points.sort_by(|a, b| a.0.total_cmp(&b.0));
                        Line {
                            name: self.stores[series].to_string(),
                            series,
                            points,
                        }
                    })
                    .collect(),
                bands: Vec::new(),
            };
            pictures.push(Picture {
                name: file_name(&["scaling", &workload, &phase], Some(value), None, index),
                svg: picture.draw(),
            });
        }
        pictures
    }
}

/// Returns the conditions under which everything in a picture was measured.
fn note(outcome: &Outcome) -> String {
    let Some(cell) = outcome.cells.all().first() else {
        return String::new();
    };
    let c = &cell.conditions;
    let mount = c.file_system.split(' ').next().unwrap_or_default();
    let thread = if c.threads == 1 { "thread" } else { "threads" };
    let mut note = format!(
        "durability {}, on {mount}, {} {thread}, {} build",
        c.durability,
        c.threads,
        c.build.split(':').next().unwrap_or_default()
    );
    let mut emulated = outcome
        .cells
        .all()
        .iter()
        .filter_map(|c| c.conditions.emulation.as_ref());
    if let Some(emulation) = emulated.next() {
        note.push_str(&format!("; pools emulated as {emulation}"));
    }
    note
}

fn heading(
    what: &str,
    workload: &str,
    phase: &str,
    value: Option<u64>,
    data: Option<u64>,
) -> String {
    let phase = if phase == workload { "" } else { phase };
    let mut parts = vec![what.to_string(), workload.to_string(), phase.to_string()];
    parts.extend(value.map(|bytes| format!("values of {}", units::short_bytes(bytes))));
    parts.extend(data.map(|bytes| format!("{} of data", units::short_bytes(bytes))));
    parts.retain(|part| !part.is_empty());
    parts.join(", ")
}

/// Returns a name that every file system accepts.
fn file_name(parts: &[&str], value: Option<u64>, data: Option<u64>, index: usize) -> String {
    let mut name = parts
        .iter()
        .filter(|part| !part.is_empty())
        .copied()
        .collect::<Vec<_>>()
        .join("-");
    if index > 0 {
        name.push_str(&format!("-{index}"));
    }
    if let Some(bytes) = value {
        name.push_str(&format!("-v{bytes}"));
    }
    if let Some(bytes) = data {
        name.push_str(&format!("-d{bytes}"));
    }
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    name.chars().map(plain).collect()
}

/// Returns the bytes written per byte of the user, by cause; `None` if the user wrote nothing.
fn amplified(cell: &Cell, causes: &mut Vec<String>) -> Option<Bar> {
    let written = &cell.typical()?.written;
    let user = written.user_bytes as f64;
    if user <= 0.0 {
        return None;
    }
    let purposes = written
        .purposes
        .iter()
        .map(|p| (format!("pool: {}", p.purpose), p.bytes));
    let files = written.files.iter().map(|f| (f.cause.to_string(), f.bytes));
    let mut bar = Bar {
        name: cell.key.store.clone(),
        ..Bar::default()
    };
    for (cause, bytes) in purposes.chain(files).filter(|(_, bytes)| *bytes > 0) {
        let series = causes
            .iter()
            .position(|there| *there == cause)
            .unwrap_or_else(|| {
                causes.push(cause.clone());
                causes.len() - 1
            });
        let value = bytes as f64 / user;
        bar.parts.push(Part {
            series,
            value,
            tip: format!("{}, {cause}: {value:.2}", cell.key.store),
        });
    }
    let sum: f64 = bar.parts.iter().map(|part| part.value).sum();
    bar.label = format!("{sum:.2}");
    Some(bar)
}

/// Returns, for each recorded latency except the longest, the percentage of operations of `kind`
/// that took longer.
fn slower(cell: &Cell, kind: &str) -> Vec<(f64, f64)> {
    let mut merged: BTreeMap<u64, (f64, u64)> = BTreeMap::new();
    for sample in &cell.samples {
        for kind in sample.phase.kinds.iter().filter(|k| k.kind == kind) {
            for (us, count) in &kind.histogram {
                merged.entry((us * 1e4) as u64).or_insert((*us, 0)).1 += count;
            }
        }
    }
    let total: u64 = merged.values().map(|(_, count)| count).sum();
    let mut left = total;
    let mut points = Vec::new();
    for (us, count) in merged.into_values() {
        left -= count;
        if left == 0 {
            break;
        }
        points.push((us, left as f64 * 100.0 / total as f64));
    }
    points
}

fn stalls(stalls: &[crate::report::StallReport]) -> String {
    let each = stalls.iter().filter(|stall| stall.seconds > 0.0);
    let each = each.map(|stall| format!("{} {:.3} s", stall.reason, stall.seconds));
    each.collect::<Vec<_>>().join(", ")
}

/// Formats a number with as few digits as fit on a bar.
fn short(value: f64) -> String {
    match value {
        v if v >= 999_950.0 => format!("{:.2}M", v / 1e6),
        v if v >= 99_950.0 => format!("{:.0}k", v / 1e3),
        v if v >= 999.5 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}
