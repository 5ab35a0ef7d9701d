//! The specification of a comparison as plain data.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use toml::{Spanned, Value};

use super::paper::Paper;
use super::scale::Scale;
use super::size::Size;
use crate::store::StoreKind;

/// Options of `terrace bench` by name, without the leading dashes.
pub(super) type Settings = BTreeMap<String, Spanned<Value>>;

/// The runs that a comparison makes, and their order.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The heading of its report.
    pub title: String,
    /// A note for the reader.
    #[serde(default)]
    pub note: String,
    /// Runs of each store with each workload and size.
    #[serde(default = "three")]
    pub repeats: Spanned<u32>,
    /// The spread of the repeats, as a fraction of the median, above which there is no verdict.
    #[serde(default = "a_tenth")]
    pub spread_max: Spanned<f64>,
    /// The store that ratios refer to; by default the first one.
    #[serde(default)]
    pub baseline: Option<Spanned<String>>,
    /// The directory in which databases are made.
    #[serde(default)]
    pub mount: Option<PathBuf>,
    /// Bytes of memory kept ready for each phase, touched before the run.
    #[serde(default = "no_bytes")]
    pub warm_memory: Size,
    /// The timeout of a run in seconds.
    #[serde(default = "an_hour")]
    pub timeout_s: u64,
    /// The sizes of values in bytes.
    #[serde(default = "one_kib")]
    pub value_sizes: Spanned<Vec<Size>>,
    /// Bytes of keys and values to write; empty if `num` is a setting.
    #[serde(default)]
    pub data_sizes: Vec<Size>,
    /// Options for every run.
    #[serde(default)]
    pub settings: Settings,
    /// Options for every run of Terrace, but not of peers.
    #[serde(default)]
    pub terrace: Settings,
    /// The stores to compare.
    pub store: Vec<Spanned<StoreSpec>>,
    /// The workloads to run.
    pub workload: Vec<Spanned<WorkloadSpec>>,
    /// The figures of a paper, shown next to the results.
    #[serde(default)]
    pub paper: Option<Paper>,
    /// The fraction to which data and operations were scaled down.
    #[serde(skip)]
    pub scaled: Option<Scale>,
}

fn three() -> Spanned<u32> {
    Spanned::new(0..0, 3)
}
fn a_tenth() -> Spanned<f64> {
    Spanned::new(0..0, 0.1)
}
fn no_bytes() -> Size {
    Size(0)
}
fn an_hour() -> u64 {
    3600
}
fn one_kib() -> Spanned<Vec<Size>> {
    Spanned::new(0..0, vec![Size(1024)])
}

/// One store of a comparison.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSpec {
    /// Its name in the report.
    pub name: String,
    /// Its kind: `terrace` or a peer.
    #[serde(default)]
    pub store: Option<Spanned<String>>,
    /// Options for its runs; they go before all others.
    #[serde(default)]
    pub settings: Settings,
}

impl StoreSpec {
    /// Returns the kind.
    pub fn kind(&self) -> Result<StoreKind, String> {
        let name = self.store.as_ref().map_or("terrace", |s| s.get_ref());
        name.parse()
    }
}

/// One workload of a comparison.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// Its name in the report.
    pub name: String,
    /// Phases that run first and are not compared.
    #[serde(default)]
    pub prepare: Vec<Spanned<String>>,
    /// Phases that are compared.
    pub measure: Vec<Spanned<String>>,
    /// Options for its runs.
    #[serde(default)]
    pub settings: Settings,
}

impl WorkloadSpec {
    /// Returns the names of all phases, in order.
    pub fn phases(&self) -> impl Iterator<Item = &Spanned<String>> {
        self.prepare.iter().chain(&self.measure)
    }
}

impl Comparison {
    /// Returns the store that ratios refer to.
    pub fn baseline(&self) -> &str {
        let first = self.store.first().map_or("", |store| &store.get_ref().name);
        self.baseline.as_ref().map_or(first, |name| name.get_ref())
    }
}
