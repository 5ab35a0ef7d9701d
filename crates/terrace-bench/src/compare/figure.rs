//! The figures measured for a paper's: one measure of one cell, without the repeats themselves.
//!
//! They are small enough to be committed, so a paper's figures can be compared long after the raw
//! results are gone. Comparisons and summaries use the same type, and so give the same ratios.

use serde::{Deserialize, Serialize};

use super::cells::{Cells, Measure, Repeats};

/// One measure of one phase of one store, over all repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The store's name in the comparison.
    pub store: String,
    /// The workload's name in the comparison.
    pub workload: String,
    /// The phase's name; for a part, that of the whole phase before its own.
    pub phase: String,
    /// The index of the phase in the run.
    pub index: usize,
    /// The size of a value in bytes.
    pub value_bytes: u64,
    /// Bytes of data, if the comparison states them.
    #[serde(default)]
    pub data_bytes: Option<u64>,
    /// The measure.
    pub measure: Measure,
    /// The median, the range and the number of repeats.
    #[serde(flatten)]
    pub repeats: Repeats,
}

impl Figure {
    /// Returns those of `measures` that the cells have, in the order of the cells.
    pub fn all(cells: &Cells, measures: &[Measure]) -> Vec<Figure> {
        let mut figures = Vec::new();
        for cell in cells.all() {
            let found = measures.iter().filter_map(|measure| {
                Some(Figure {
                    store: cell.key.store.clone(),
                    workload: cell.key.workload.clone(),
                    phase: cell.key.phase.clone(),
                    index: cell.key.index,
                    value_bytes: cell.key.value_bytes,
                    data_bytes: cell.key.data_bytes,
                    measure: *measure,
                    repeats: cell.repeats(*measure)?,
                })
            });
            figures.extend(found);
        }
        figures
    }
}
