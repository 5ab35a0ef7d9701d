//! The figures of a paper, as a comparison states them, next to those measured here.
//!
//! Most figures are ratios of a store to a baseline, each measured on its own machine; others are
//! values of one store. They come only from a paper's text and tables; a figure that is only in a
//! picture has no number, and its note says so.

use std::fmt;

use serde::Deserialize;
use toml::Spanned;

use super::cells::{Cells, Measure, Verdict, judge};
use super::figure::Figure;
use super::size::Size;
use crate::table::Table;

/// The figures of a paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// The paper, as "MioDB (ASPLOS 2023)": comparisons with one paper have one name. Empty if the
    /// title of the comparison begins with it.
    #[serde(default)]
    pub name: String,
    /// The paper's figure or table.
    pub title: String,
    /// The factor by which this comparison is smaller: data, memtables, caches and buffers alike.
    pub scale: f64,
    /// The differences, and the results that the paper shows only in pictures.
    pub says: String,
    /// The figures.
    #[serde(default)]
    pub value: Vec<Spanned<PaperValue>>,
}

/// A store and its baseline, or one store.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct Names {
    /// The store.
    pub store: String,
    /// The baseline, if the figure is a ratio.
    pub baseline: Option<String>,
}

impl TryFrom<Vec<String>> for Names {
    type Error = String;

    fn try_from(names: Vec<String>) -> Result<Names, String> {
        let mut names = names.into_iter();
        match (names.next(), names.next(), names.next()) {
            (Some(store), baseline, None) => Ok(Names { store, baseline }),
            _ => Err("write a store and its baseline, or one store for a value".to_string()),
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.baseline {
            Some(baseline) => write!(f, "{} / {baseline}", self.store),
            None => f.write_str(&self.store),
        }
    }
}

/// The place of a baseline's figure, where it differs from that of the store's.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Than {
    /// The workload.
    #[serde(default)]
    pub workload: Option<String>,
    /// The phase.
    #[serde(default)]
    pub phase: Option<String>,
    /// The size of values.
    #[serde(default)]
    pub value_size: Option<Size>,
    /// The size of the data.
    #[serde(default)]
    pub data_size: Option<Size>,
}

/// One figure of a paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperValue {
    /// A description of the figure.
    pub what: String,
    /// Its place in the paper.
    pub source: String,
    /// The paper's store and its baseline, or the one store that has `value`.
    pub paper: Names,
    /// The ratio, if the paper states one.
    #[serde(default)]
    pub ratio: Option<f64>,
    /// The values of both, if the paper states them.
    #[serde(default)]
    pub values: Option<[f64; 2]>,
    /// The value of one store, if the figure is not a ratio.
    #[serde(default)]
    pub value: Option<f64>,
    /// The unit of `value`, or of `values`.
    #[serde(default)]
    pub unit: Option<String>,
    /// The store and the baseline here, or one store; `None` if nothing here is comparable.
    #[serde(default)]
    pub here: Option<Names>,
    /// The measure here.
    #[serde(default)]
    pub measure: Option<Measure>,
    /// The phase here.
    #[serde(default)]
    pub phase: Option<String>,
    /// The workload here; any if omitted.
    #[serde(default)]
    pub workload: Option<String>,
    /// The size of values here; if omitted, the mean over all sizes is used.
    #[serde(default)]
    pub value_size: Option<Size>,
    /// The size of the data here; as `value_size`.
    #[serde(default)]
    pub data_size: Option<Size>,
    /// The place of the baseline's figure here; by default that of the store's.
    #[serde(default)]
    pub than: Option<Than>,
    /// The conclusion for readers: a sentence written after a look at the result.
    #[serde(default)]
    pub reading: String,
    /// A note for the reader, such as the reason that nothing here is comparable.
    #[serde(default)]
    pub note: String,
}

/// A figure of the store here, and that of the baseline if the figure is a ratio.
pub type Pair<'a> = (&'a Figure, Option<&'a Figure>);

impl PaperValue {
    /// Returns the paper's ratio.
    pub fn paper_ratio(&self) -> Option<f64> {
        let of_values = self.values.filter(|[_, b]| *b > 0.0).map(|[a, b]| a / b);
        self.ratio.or(of_values)
    }

    /// Checks that the fields fit together; the error says what to write.
    pub(super) fn check_form(&self) -> Result<(), String> {
        let is_ratio = self.paper.baseline.is_some();
        if is_ratio && self.value.is_some() {
            return Err("value is of one store: write paper = [\"STORE\"], or values".to_string());
        }
        if !is_ratio && (self.ratio.is_some() || self.values.is_some() || self.than.is_some()) {
            let what = "ratio, values and than are of two stores: write both in paper, or value";
            return Err(what.to_string());
        }
        if (self.value.is_some() || !is_ratio && self.here.is_some()) && self.unit.is_none() {
            return Err("write the unit of the value, as unit = \"ms\"".to_string());
        }
        let below_zero = |value: &&f64| !(**value > 0.0 && value.is_finite());
        let stated = self.ratio.iter().chain(self.values.iter().flatten());
        if let Some(value) = stated.chain(&self.value).find(below_zero) {
            return Err(format!("the paper's {value} is not above 0"));
        }
        if self.ratio.is_some() && self.values.is_some() {
            return Err("write ratio or values: the ratio follows from values".to_string());
        }
        let Some(here) = &self.here else {
            return Ok(());
        };
        if self.phase.is_none() {
            return Err("write the phase of here, as phase = \"fillrandom\"".to_string());
        }
        let Some(measure) = self.measure else {
            return Err("write the measure of here, as measure = \"throughput\"".to_string());
        };
        if here.baseline.is_some() != is_ratio {
            return Err("paper and here must have one name each, or two".to_string());
        }
        if here.baseline.as_ref() == Some(&here.store) && self.than.is_none() {
            let what = "here compares a store with itself: write than = { data_size = \"...\" }";
            return Err(what.to_string());
        }
        match &self.unit {
            Some(unit) if !is_ratio => measure.in_unit(0.0, unit).map(drop),
            _ => Ok(()),
        }
    }

    /// Returns the figures that it covers, one pair for each size, in the order of `figures`. A
    /// figure whose baseline was not measured is left out.
    pub fn pairs<'a>(&self, figures: &'a [Figure]) -> Vec<Pair<'a>> {
        let (Some(here), Some(measure)) = (&self.here, self.measure) else {
            return Vec::new();
        };
        let is = |wanted: &Option<String>, name: &String| wanted.as_ref().is_none_or(|w| w == name);
        let firsts = figures.iter().filter(|figure| {
            figure.store == here.store
                && figure.measure == measure
                && is(&self.phase, &figure.phase)
                && is(&self.workload, &figure.workload)
                && self.value_size.is_none_or(|s| s.0 == figure.value_bytes)
                && self
                    .data_size
                    .is_none_or(|s| Some(s.0) == figure.data_bytes)
        });
        let pairs = firsts.filter_map(|figure| match &here.baseline {
            Some(baseline) => Some((figure, Some(self.baseline_of(figure, baseline, figures)?))),
            None => Some((figure, None)),
        });
        pairs.collect()
    }

    fn baseline_of<'a>(
        &self,
        first: &Figure,
        baseline: &str,
        figures: &'a [Figure],
    ) -> Option<&'a Figure> {
        let than = self.than.clone().unwrap_or_default();
        // Another phase has another index; the same phase of the same workload may occur twice.
        let index = (than.phase.is_none() && than.workload.is_none()).then_some(first.index);
        let phase = than.phase.as_ref().unwrap_or(&first.phase);
        let workload = than.workload.as_ref().unwrap_or(&first.workload);
        let value_bytes = than.value_size.map_or(first.value_bytes, |size| size.0);
        let data_bytes = than.data_size.map_or(first.data_bytes, |s| Some(s.0));
        figures.iter().find(|figure| {
            figure.store == baseline
                && figure.measure == first.measure
                && figure.phase == *phase
                && figure.workload == *workload
                && index.is_none_or(|index| index == figure.index)
                && (figure.value_bytes, figure.data_bytes) == (value_bytes, data_bytes)
        })
    }

    /// Returns the ratio here: the mean over all sizes, like the paper's averages. For a figure
    /// that is not a ratio, returns the value here, in the paper's unit. Also returns whether the
    /// repeats allow a verdict, with a spread of at most `spread_max`.
    pub fn here_is(&self, figures: &[Figure], spread_max: f64) -> Option<(f64, bool)> {
        let each = self
            .pairs(figures)
            .into_iter()
            .filter_map(|pair| match pair {
                (a, Some(b)) => {
                    let said = judge([&a.store, &b.store], [a.repeats, b.repeats], spread_max);
                    let (of_a, of_b) = (a.repeats.median, b.repeats.median);
                    let is_clear = matches!(said, Verdict::Ratio(_));
                    (of_b > 0.0).then(|| (of_a / of_b, is_clear))
                }
                (a, None) => {
                    let value = a
                        .measure
                        .in_unit(a.repeats.median, self.unit.as_ref()?)
                        .ok()?;
                    let is_clear = a.repeats.count > 1
                        && a.repeats.spread().is_none_or(|spread| spread <= spread_max);
                    Some((value, is_clear))
                }
            });
        let each: Vec<(f64, bool)> = each.collect();
        let sum: f64 = each.iter().map(|(value, _)| value).sum();
        let is_clear = each.iter().all(|(_, is_clear)| *is_clear);
        (!each.is_empty()).then(|| (sum / each.len() as f64, is_clear))
    }

    /// Formats the paper's figure.
    pub(crate) fn paper_says(&self) -> String {
        let none = || "none stated".to_string();
        match (&self.paper.baseline, self.value, &self.unit) {
            (None, Some(value), Some(unit)) => format!("{value} {unit} in the paper"),
            (None, ..) => none(),
            (Some(_), ..) => self.paper_ratio().map_or_else(none, ratio),
        }
    }

    /// Formats a figure here, as returned by [`PaperValue::here_is`].
    pub(crate) fn here_says(&self, (value, is_clear): (f64, bool)) -> String {
        let unclear = if is_clear { "" } else { " (unclear)" };
        match (&self.paper.baseline, &self.unit) {
            (None, Some(unit)) => {
                format!("{} {unit} here{unclear}", crate::units::three_digits(value))
            }
            _ => format!("{}{unclear}", ratio(value)),
        }
    }
}

/// Formats a ratio for people: three digits, and more if it is small.
pub(crate) fn ratio(value: f64) -> String {
    match value {
        v if v >= 0.1 => format!("{} x", crate::units::three_digits(v)),
        v => format!("{v:.4} x"),
    }
}

impl Paper {
    /// Returns the figures.
    pub fn values(&self) -> impl Iterator<Item = &PaperValue> {
        self.value.iter().map(|value| value.get_ref())
    }

    /// Returns the figures measured for this paper's: those that any of them covers.
    pub fn figures(&self, cells: &Cells) -> Vec<Figure> {
        let mut measures: Vec<Measure> = Vec::new();
        for measure in self.values().filter_map(|value| value.measure) {
            if !measures.contains(&measure) {
                measures.push(measure);
            }
        }
        let all = Figure::all(cells, &measures);
        let pairs = self.values().flat_map(|value| value.pairs(&all));
        let covered: Vec<&Figure> = pairs.flat_map(|(a, b)| [Some(a), b]).flatten().collect();
        let is_covered = |figure: &&Figure| covered.iter().any(|it| std::ptr::eq(*it, *figure));
        all.iter().filter(is_covered).cloned().collect()
    }

    /// Returns the heading and the rows of the table: the paper's figures next to those here.
    pub(crate) fn rows(
        &self,
        cells: &Cells,
        spread_max: f64,
    ) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let heading = vec![
            "figure",
            "in",
            "paper",
            "paper's ratio",
            "here",
            "ratio here",
            "note",
        ];
        let figures = self.figures(cells);
        let rows = self.values().map(|value| {
            let here = value.here_is(&figures, spread_max);
            vec![
                value.what.clone(),
                value.source.clone(),
                value.paper.to_string(),
                value.paper_says(),
                value
                    .here
                    .as_ref()
                    .map_or("-".to_string(), Names::to_string),
                match (here, &value.here) {
                    (Some(here), _) => value.here_says(here),
                    // Nothing was measured yet, or the baseline's value is zero.
                    (None, Some(_)) => "no ratio".to_string(),
                    (None, None) => "-".to_string(),
                },
                value.note.clone(),
            ]
        });
        (heading, rows.collect())
    }

    /// Writes the table as lines for people.
    pub(crate) fn write(
        &self,
        f: &mut dyn fmt::Write,
        cells: &Cells,
        spread_max: f64,
    ) -> fmt::Result {
        writeln!(f, "\n{}, at 1/{} of its size", self.title, self.scale)?;
        let (heading, rows) = self.rows(cells, spread_max);
        let mut table = Table::new(&heading);
        for row in rows {
            table.row(row);
        }
        write!(f, "{table}")?;
        writeln!(f, "{}", self.says.trim())
    }
}
