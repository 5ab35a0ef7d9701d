//! The figures of a paper, as a comparison states them, next to those measured here.
//!
//! Figures are ratios of a store to a baseline, each measured on its own machine. They come only
//! from a paper's text and tables; a figure that is only in a picture has no ratio, and its note
//! says so.

use std::fmt;

use serde::Deserialize;

use super::cells::{Cells, Measure, Verdict, verdict};
use super::size::Size;
use crate::table::Table;

/// The figures of a paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// The paper and its figure or table.
    pub title: String,
    /// The factor by which this comparison is smaller: data, memtables, caches and buffers alike.
    pub scale: f64,
    /// The differences, and the results that the paper shows only in pictures.
    pub says: String,
    /// The figures.
    #[serde(default)]
    pub value: Vec<PaperValue>,
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
    /// A note for the reader, such as the reason that nothing here is comparable.
    #[serde(default)]
    pub note: String,
}

impl PaperValue {
    /// Returns the paper's ratio.
    pub fn paper_ratio(&self) -> Option<f64> {
        let of_values = self.values.filter(|[_, b]| *b > 0.0).map(|[a, b]| a / b);
        self.ratio.or(of_values)
    }

    /// Returns the ratio here: the mean over all sizes, like the paper's averages. Also returns
    /// whether the repeats allow a verdict, with a spread of at most `spread_max`.
    pub fn ratio_here(&self, cells: &Cells, spread_max: f64) -> Option<(f64, bool)> {
        let ([store, baseline], measure) = (self.here.as_ref()?, self.measure?);
        let ratios: Vec<(f64, bool)> = cells
            .all()
            .iter()
            .filter(|cell| cell.key.store == *store)
            .filter(|cell| {
                self.phase
                    .as_ref()
                    .is_none_or(|name| *name == cell.key.phase)
            })
            .filter(|cell| {
                self.workload
                    .as_ref()
                    .is_none_or(|name| *name == cell.key.workload)
            })
            .filter(|cell| {
                self.value_size
                    .is_none_or(|size| size.0 == cell.key.value_bytes)
            })
            .filter(|cell| {
                self.data_size
                    .is_none_or(|size| Some(size.0) == cell.key.data_bytes)
            })
            .filter_map(|cell| {
                let other = cells.beside(&cell.key, baseline)?;
                let (a, b) = (cell.median(measure)?, other.median(measure)?);
                let said = verdict(cell, other, measure, spread_max);
                let is_clear = matches!(said, Verdict::Ratio(_));
                (b > 0.0).then(|| (a / b, is_clear))
            })
            .collect();
        let sum: f64 = ratios.iter().map(|(ratio, _)| ratio).sum();
        let is_clear = ratios.iter().all(|(_, is_clear)| *is_clear);
        (!ratios.is_empty()).then(|| (sum / ratios.len() as f64, is_clear))
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
        let rows = self.value.iter().map(|value| {
            let of = |names: &[String; 2]| format!("{} / {}", names[0], names[1]);
            let here = value.ratio_here(cells, spread_max);
            vec![
                value.what.clone(),
                value.source.clone(),
                of(&value.paper),
                value.paper_ratio().map_or("none stated".to_string(), ratio),
                value.here.as_ref().map_or("-".to_string(), of),
                match (here, &value.here) {
                    (Some((here, true)), _) => ratio(here),
                    (Some((here, false)), _) => format!("{} (unclear)", ratio(here)),
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
