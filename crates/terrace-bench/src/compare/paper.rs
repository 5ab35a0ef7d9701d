//! The figures of a paper, as a comparison states them, next to those measured here.
//!
//! Figures are ratios of a store to a baseline, each measured on its own machine. They come only
//! from a paper's text and tables; a figure that is only in a picture has no ratio, and its note
//! says so.

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
    /// The paper's store and its baseline.
    pub paper: [String; 2],
    /// The ratio, if the paper states one.
    #[serde(default)]
    pub ratio: Option<f64>,
    /// The values of both, if the paper states them.
    #[serde(default)]
    pub values: Option<[f64; 2]>,
    /// The unit of `values`.
    #[serde(default)]
    pub unit: Option<String>,
    /// The store and the baseline here; `None` if nothing here is comparable.
    #[serde(default)]
    pub here: Option<[String; 2]>,
    /// The measure here.
    #[serde(default)]
    pub measure: Option<Measure>,
    /// The phase here.
    #[serde(default)]
    pub phase: Option<String>,
    /// The workload here; any if omitted.
    #[serde(default)]
    pub workload: Option<String>,
    /// The size of values here; if omitted, the mean of all ratios is used.
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

/// A figure of the store here, and that of the baseline.
pub type Pair<'a> = (&'a Figure, &'a Figure);

impl PaperValue {
    /// Returns the paper's ratio.
    pub fn paper_ratio(&self) -> Option<f64> {
        let of_values = self.values.filter(|[_, b]| *b > 0.0).map(|[a, b]| a / b);
        self.ratio.or(of_values)
    }

    /// Checks that the fields fit together; the error says what to write.
    pub(super) fn check_form(&self) -> Result<(), String> {
        let Some([store, baseline]) = &self.here else {
            return Ok(());
        };
        if self.measure.is_none() {
            return Err("write the measure of here, as measure = \"throughput\"".to_string());
        }
        if store == baseline && self.than.is_none() {
            let what = "here compares a store with itself: write than = { data_size = \"...\" }";
            return Err(what.to_string());
        }
        Ok(())
    }

    /// Returns the figures that it covers, one pair for each size, in the order of `figures`. A
    /// figure whose baseline was not measured is left out.
    pub fn pairs<'a>(&self, figures: &'a [Figure]) -> Vec<Pair<'a>> {
        let (Some([store, baseline]), Some(measure)) = (&self.here, self.measure) else {
            return Vec::new();
        };
        let is = |wanted: &Option<String>, name: &String| wanted.as_ref().is_none_or(|w| w == name);
        let firsts = figures.iter().filter(|figure| {
            figure.store == *store
                && figure.measure == measure
                && is(&self.phase, &figure.phase)
                && is(&self.workload, &figure.workload)
                && self.value_size.is_none_or(|s| s.0 == figure.value_bytes)
                && self
                    .data_size
                    .is_none_or(|s| Some(s.0) == figure.data_bytes)
        });
        let pairs = firsts
            .filter_map(|figure| Some((figure, self.baseline_of(figure, baseline, figures)?)));
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

    /// Returns the ratio here: the mean over all sizes, like the paper's averages. Also returns
    /// whether the repeats allow a verdict, with a spread of at most `spread_max`.
    pub fn here_is(&self, figures: &[Figure], spread_max: f64) -> Option<(f64, bool)> {
        let each = self.pairs(figures).into_iter().filter_map(|(a, b)| {
            let said = judge([&a.store, &b.store], [a.repeats, b.repeats], spread_max);
            let (of_a, of_b) = (a.repeats.median, b.repeats.median);
            let is_clear = matches!(said, Verdict::Ratio(_));
            (of_b > 0.0).then(|| (of_a / of_b, is_clear))
        });
        let each: Vec<(f64, bool)> = each.collect();
        let sum: f64 = each.iter().map(|(value, _)| value).sum();
        let is_clear = each.iter().all(|(_, is_clear)| *is_clear);
        (!each.is_empty()).then(|| (sum / each.len() as f64, is_clear))
    }

    /// Formats the paper's figure.
    pub(crate) fn paper_says(&self) -> String {
        let none = || "none stated".to_string();
        self.paper_ratio().map_or_else(none, ratio)
    }

    /// Formats a figure here, as returned by [`PaperValue::here_is`].
    pub(crate) fn here_says(&self, (value, is_clear): (f64, bool)) -> String {
        let unclear = if is_clear { "" } else { " (unclear)" };
        format!("{}{unclear}", ratio(value))
    }
}

/// Formats the names of two stores.
pub(crate) fn both([store, baseline]: &[String; 2]) -> String {
    format!("{store} / {baseline}")
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
        let covered: Vec<&Figure> = pairs.flat_map(|(a, b)| [a, b]).collect();
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
                both(&value.paper),
                value.paper_says(),
                value.here.as_ref().map_or("-".to_string(), both),
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
