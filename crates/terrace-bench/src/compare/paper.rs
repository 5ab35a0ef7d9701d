//! This file is what a paper says, as a comparison states it, and what was measured here beside it.
//!
//! Figures are ratios: a store's to that of a baseline, on each side its own machine. Only what a
//! paper states in its text and tables is in such a file; what is only in a picture has no ratio, and its note says so.

use std::fmt;

use serde::Deserialize;

use super::cells::{Cells, Measure, Verdict, verdict};
use super::size::Size;
use crate::table::Table;

/// What a paper says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Which paper, which figure or table.
    pub title: String,
    /// How much smaller this comparison is: data, memtables, caches and buffers alike.
    pub scale: f64,
    /// What differs, and what the paper shows in pictures alone.
    pub says: String,
    /// Its figures.
    #[serde(default)]
    pub value: Vec<PaperValue>,
}

/// One figure of a paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperValue {
    /// What it is.
    pub what: String,
    /// Where in the paper.
    pub source: String,
    /// The paper's store and its baseline.
    pub paper: [String; 2],
    /// The ratio, where the paper states one.
    #[serde(default)]
    pub ratio: Option<f64>,
    /// Their values, where it states those.
    #[serde(default)]
    pub values: Option<[f64; 2]>,
    /// The store and the baseline here; none where nothing here can stand beside it.
    #[serde(default)]
    pub here: Option<[String; 2]>,
    /// What is measured here.
    #[serde(default)]
    pub measure: Option<Measure>,
    /// In which phase.
    #[serde(default)]
    pub phase: Option<String>,
    /// In which workload; any where it is left out.
    #[serde(default)]
    pub workload: Option<String>,
    /// With values of which size; the mean of all ratios where it is left out.
    #[serde(default)]
    pub value_size: Option<Size>,
    /// With how much data; as `value_size`.
    #[serde(default)]
    pub data_size: Option<Size>,
    /// What a reader must know, as why nothing here stands beside it.
    #[serde(default)]
    pub note: String,
}

impl PaperValue {
    /// The paper's ratio.
    pub fn paper_ratio(&self) -> Option<f64> {
        let of_values = self.values.filter(|[_, b]| *b > 0.0).map(|[a, b]| a / b);
        self.ratio.or(of_values)
    }

    /// The ratio here: the mean of those of all sizes, as the paper's averages are. And whether the repeats
    /// of each allow a verdict, where none may spread by more than `spread_max`.
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

/// A ratio as people read it: three digits, and more where it is small.
pub(crate) fn ratio(value: f64) -> String {
    match value {
        v if v >= 0.1 => format!("{} x", crate::units::three_digits(v)),
        v => format!("{v:.4} x"),
    }
}

impl Paper {
    /// The heading and the rows of its table: the paper's figures beside those here.
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
                    // Nothing was measured yet, or the baseline has none of it to be compared with.
                    (None, Some(_)) => "no ratio".to_string(),
                    (None, None) => "-".to_string(),
                },
                value.note.clone(),
            ]
        });
        (heading, rows.collect())
    }

    /// The table as lines for people.
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
