//! A workload of YCSB's core package: its properties, checked and with defaults.
//!
//! A record is one value of `fieldcount` times `fieldlength` bytes: a key-value store reads and
//! writes it whole, so the properties of single fields (`readallfields` and the like) have no
//! effect here. They are ignored by name, as are those of YCSB's own client and of other stores. An
//! unknown name is an error: a misspelled property would measure another workload than intended.

pub(crate) mod distribution;
mod properties;
mod standard;

use std::path::Path;

use crate::units;
use distribution::{Distribution, THETA, Zipfian};
pub use properties::Properties;

/// Properties without effect here, listed to distinguish them from misspelled ones.
const IGNORED: [&str; 20] = [
    "core_workload_insertion_retry_interval",
    "core_workload_insertion_retry_limit",
    "dataintegrity",
    "db",
    "dotransactions",
    "exporter",
    "exportfile",
    "fieldnameprefix",
    "label",
    "latencytrackederrors",
    "maxexecutiontime",
    "measurementtype",
    "operationretrylimit",
    "readallfields",
    "readallfieldsbyname",
    "reportlatencyforeacherror",
    "silent",
    "table",
    "workload",
    "writeallfields",
];

/// Properties with an effect, for messages and for suggestions.
const KNOWN: [&str; 25] = [
    "recordcount",
    "operationcount",
    "insertstart",
    "insertcount",
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
    "requestdistribution",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "exponential.percentile",
    "exponential.frac",
    "fieldcount",
    "fieldlength",
    "minfieldlength",
    "fieldlengthdistribution",
    "insertorder",
    "zeropadding",
    "minscanlength",
    "maxscanlength",
    "scanlengthdistribution",
    "threadcount",
    "target",
];

/// The maximum size of a record: that of a value of the benchmark.
const RECORD_BYTES_MAX: u64 = 1 << 30;

/// The operation on a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
}

impl Operation {
    pub(crate) const ALL: [Operation; 5] = [
        Operation::Read,
        Operation::Update,
        Operation::Insert,
        Operation::Scan,
        Operation::ReadModifyWrite,
    ];

    /// Returns the name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Update => "update",
            Operation::Insert => "insert",
            Operation::Scan => "scan",
            Operation::ReadModifyWrite => "read-modify-write",
        }
    }
}

/// Lengths from a range, both ends included.
#[derive(Debug, Clone)]
pub(crate) enum Lengths {
    Constant(u64),
    Uniform(u64, u64),
    /// The shortest is the most frequent.
    Zipfian(u64, Zipfian),
}

impl Lengths {
    fn new(name: &str, shape: &str, min: u64, max: u64) -> Result<Lengths, String> {
        match shape {
            "constant" => Ok(Lengths::Constant(max)),
            "uniform" => Ok(Lengths::Uniform(min.min(max), max)),
            "zipfian" => {
                let min = min.min(max);
                Ok(Lengths::Zipfian(min, Zipfian::new(max - min + 1, THETA)))
            }
            _ => Err(format!(
                "{name} is {shape:?}, but must be constant, uniform or zipfian"
            )),
        }
    }

    #[inline]
    pub(crate) fn next(&self, rng: &mut fastrand::Rng) -> u64 {
        match self {
            Lengths::Constant(length) => *length,
            Lengths::Uniform(min, max) => rng.u64(*min..=*max),
            Lengths::Zipfian(min, zipfian) => min + zipfian.next(rng),
        }
    }
}

/// A workload as its properties describe it.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// `operationcount`: operations of all threads together.
    pub(crate) ops: u64,
    /// `insertstart` and `insertcount`: the records to load.
    pub(crate) first: u64,
    pub(crate) loaded: u64,
    /// The cumulative weights of [`Operation::ALL`].
    weights: [f64; 5],
    pub(crate) requests: Distribution,
    fields: u64,
    field_bytes: Lengths,
    field_bytes_max: u64,
    /// `insertorder`: whether records are in the order of their numbers, or of a hash of them.
    pub(crate) ordered: bool,
    /// `zeropadding`: the minimum number of digits of a key.
    pub(crate) padding: usize,
    pub(crate) scan_entries: Lengths,
    scan_entries_max: u64,
    /// Properties that were given and have no effect here.
    pub(crate) ignored: Vec<String>,
}

impl Workload {
    /// Returns the properties of the standard workload `name`, `a` to `f`.
    pub(crate) fn standard(name: &str) -> Result<Properties, String> {
        let text = standard::text_of(name).ok_or_else(|| {
            let names: Vec<&str> = standard::STANDARD.iter().map(|(name, _)| *name).collect();
            format!(
                "unknown standard workload {name:?}; use one of {}",
                names.join(", ")
            )
        })?;
        Properties::parse(text, &format!("the standard workload {name}"))
    }

    /// Returns the workload of `properties`, with `records` and `ops` as default counts. An error
    /// names all problems.
    pub(crate) fn of(properties: &Properties, records: u64, ops: u64) -> Result<Workload, String> {
        let mut read = Read {
            properties,
            problems: Vec::new(),
        };
        let ignored = read.names();
        let records = read.number("recordcount", records, 1, u64::MAX / 4);
        let first = read.number("insertstart", 0, 0, u64::MAX / 4);
        let rest = records.saturating_sub(first);
        let loaded = read.number("insertcount", rest, 0, u64::MAX / 4);
        if loaded == 0 || first + loaded > records {
            read.problems.push(format!(
                "insertstart {first} and insertcount {loaded} exceed recordcount {records}"
            ));
        }
        let fields = read.number("fieldcount", 10, 1, 1 << 20);
        let field_bytes_max = read.number("fieldlength", 100, 0, RECORD_BYTES_MAX);
        let field_bytes_min = read.number("minfieldlength", 1, 0, RECORD_BYTES_MAX);
        if fields.saturating_mul(field_bytes_max) > RECORD_BYTES_MAX {
            read.problems.push(format!(
                "{fields} fields of {field_bytes_max} B exceed the maximum of a record, 1 GiB"
            ));
        }
        let scan_min = read.number("minscanlength", 1, 1, 1 << 32);
        let scan_max = read.number("maxscanlength", 1000, 1, 1 << 32);
        let field_bytes = read.lengths(
            "fieldlengthdistribution",
            "constant",
            field_bytes_min,
            // A length above the maximum is a problem already, and needs no table.
            field_bytes_max.min(RECORD_BYTES_MAX / fields),
        );
        let scan_entries = read.lengths("scanlengthdistribution", "uniform", scan_min, scan_max);
        // Threads and rate belong to the run; the caller takes them from the properties.
        read.positive("threadcount");
        read.positive("target");
        let workload = Workload {
            ops: read.number("operationcount", ops, 1, u64::MAX / 4),
            first,
            loaded,
            weights: read.weights(),
            requests: read.requests(),
            fields,
            field_bytes,
            field_bytes_max,
            ordered: read.ordered(),
            padding: read.number("zeropadding", 1, 0, 200) as usize,
            scan_entries,
            scan_entries_max: scan_max,
            ignored,
        };
        if read.problems.is_empty() {
            return Ok(workload);
        }
        Err(read.problems.join("; "))
    }

    /// Draws the next operation.
    #[inline]
    pub(crate) fn choose(&self, rng: &mut fastrand::Rng) -> Operation {
        let point = rng.f64() * self.weights[4];
        let at = self.weights.iter().position(|upto| point < *upto);
        Operation::ALL[at.unwrap_or(0)]
    }

    /// Returns the share of `operation`.
    pub(crate) fn share(&self, operation: Operation) -> f64 {
        let at = operation as usize;
        let below = at.checked_sub(1).map_or(0.0, |below| self.weights[below]);
        (self.weights[at] - below) / self.weights[4]
    }

    /// Draws the size of the next record to write.
    #[inline]
    pub(crate) fn record_bytes(&self, rng: &mut fastrand::Rng) -> usize {
        match self.field_bytes {
            Lengths::Constant(bytes) => (self.fields * bytes) as usize,
            _ => (0..self.fields)
                .map(|_| self.field_bytes.next(rng) as usize)
                .sum(),
        }
    }

    /// Returns the maximum size of a record.
    pub(crate) fn record_bytes_max(&self) -> usize {
        (self.fields * self.field_bytes_max) as usize
    }

    /// Estimates the inserts of the workload: YCSB counts with twice their share.
    pub(crate) fn inserts_to_come(&self) -> u64 {
        (self.ops as f64 * self.share(Operation::Insert) * 2.0) as u64
    }
}

impl Workload {
    /// Describes the workload for people; with `only_load`, only the load phase.
    pub(crate) fn describe(&self, only_load: bool) -> String {
        let at_most = match self.field_bytes {
            Lengths::Constant(_) => "",
            _ => "up to ",
        };
        let records = format!(
            "{} records of {at_most}{} B, {}",
            units::count(self.loaded),
            self.record_bytes_max(),
            if self.ordered { "ordered" } else { "hashed" }
        );
        if only_load {
            return records;
        }
        let shares: Vec<String> = Operation::ALL
            .into_iter()
            .filter(|operation| self.share(*operation) > 0.0)
            .map(|operation| {
                let percent = format!("{:.1}", self.share(operation) * 100.0);
                let percent = percent.trim_end_matches(".0");
                format!("{percent} % {}", operation.name())
            })
            .collect();
        let requests = match self.requests {
            Distribution::Uniform => "uniform",
            Distribution::Zipfian => "zipfian",
            Distribution::Latest => "latest",
            Distribution::Sequential => "sequential",
            Distribution::Hotspot { .. } => "hotspot",
            Distribution::Exponential { .. } => "exponential",
        };
        let scans = match self.share(Operation::Scan) > 0.0 {
            true => format!(", scans of up to {} entries", self.scan_entries_max),
            false => String::new(),
        };
        format!(
            "{records}; {} operations: {}; {requests}{scans}",
            units::count(self.ops),
            shares.join(", ")
        )
    }
}

/// Returns the properties of `name`: a standard workload's, or those of a file.
pub fn properties_of(name: &str) -> Result<Properties, String> {
    match standard::text_of(name) {
        Some(_) => Workload::standard(name),
        None if Path::new(name).exists() || name.contains(['/', '.']) => {
            Properties::load(Path::new(name))
        }
        None => {
            Workload::standard(name).map_err(|e| format!("{e}, or the path of a property file"))
        }
    }
}

/// Reads properties and collects the problems.
struct Read<'a> {
    properties: &'a Properties,
    problems: Vec<String>,
}

impl Read<'_> {
    /// Returns the names without effect here; adds a problem for each unknown one.
    fn names(&mut self) -> Vec<String> {
        let mut ignored = Vec::new();
        for name in self.properties.names() {
            if KNOWN.contains(&name) {
                continue;
            }
            // A name with a dot belongs to another store's adapter or to a measurement.
            if IGNORED.contains(&name) || name.contains('.') {
                ignored.push(name.to_string());
                continue;
            }
            let meant = KNOWN.iter().find(|known| is_near(known, name));
            let place = self.properties.place(name);
            let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
            self.problems
                .push(format!("{name} is not a property of YCSB ({place}){meant}"));
        }
        ignored
    }

    fn take<T: std::str::FromStr>(&mut self, name: &str, default: T, what: &str) -> Option<T> {
        match self.properties.value(name, default, what) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    fn number(&mut self, name: &str, default: u64, min: u64, max: u64) -> u64 {
        let Some(value) = self.take(name, default, "a whole number") else {
            return default;
        };
        if !(min..=max).contains(&value) {
            let what = format!("{name} is {value}, but must be {min} to {max}");
            self.problems.push(what);
            return default;
        }
        value
    }

    fn fraction(&mut self, name: &str, default: f64, max: f64) -> f64 {
        let value = self.take(name, default, "a number").unwrap_or(default);
        if !(0.0..=max).contains(&value) {
            let what = format!("{name} is {value}, but must be 0 to {max}");
            self.problems.push(what);
            return default;
        }
        value
    }

    /// Checks that `name`, if set, is a number of at least 1.
    fn positive(&mut self, name: &str) {
        let value: f64 = self.take(name, 1.0, "a number").unwrap_or(1.0);
        if !value.is_finite() || value < 1.0 {
            let what = format!("{name} is {value}, but must be at least 1");
            self.problems.push(what);
        }
    }

    fn weights(&mut self) -> [f64; 5] {
        let mut sum = 0.0;
        let weights = [
            ("readproportion", 0.95),
            ("updateproportion", 0.05),
            ("insertproportion", 0.0),
            ("scanproportion", 0.0),
            ("readmodifywriteproportion", 0.0),
        ]
        .map(|(name, default)| {
            sum += self.fraction(name, default, 1e9);
            sum
        });
        if sum == 0.0 {
            let what = "all proportions are 0, so there is nothing to do";
            self.problems.push(what.to_string());
        }
        weights
    }

    fn requests(&mut self) -> Distribution {
        let name = self.properties.get("requestdistribution");
        match name.unwrap_or("uniform").trim() {
            "uniform" => Distribution::Uniform,
            "zipfian" => Distribution::Zipfian,
            "latest" => Distribution::Latest,
            "sequential" => Distribution::Sequential,
            "hotspot" => Distribution::Hotspot {
                records: self.fraction("hotspotdatafraction", 0.2, 1.0),
                requests: self.fraction("hotspotopnfraction", 0.8, 1.0),
            },
            "exponential" => Distribution::Exponential {
                percentile: self
                    .fraction("exponential.percentile", 95.0, 99.999)
                    .max(0.001),
                records: self.fraction("exponential.frac", 0.857_142_857_1, 1.0),
            },
            other => {
                self.problems.push(format!(
                    "requestdistribution is {other:?}, but must be uniform, zipfian, latest, \
                     hotspot, exponential or sequential"
                ));
                Distribution::Uniform
            }
        }
    }

    fn ordered(&mut self) -> bool {
        match self
            .properties
            .get("insertorder")
            .unwrap_or("hashed")
            .trim()
        {
            "hashed" => false,
            "ordered" => true,
            other => {
                self.problems.push(format!(
                    "insertorder is {other:?}, but must be hashed or ordered"
                ));
                false
            }
        }
    }

    fn lengths(&mut self, name: &str, default: &str, min: u64, max: u64) -> Lengths {
        let shape = self.properties.get(name).unwrap_or(default).trim();
        Lengths::new(name, shape, min, max).unwrap_or_else(|problem| {
            self.problems.push(problem);
            Lengths::Constant(max)
        })
    }
}

/// Returns whether two names differ by one inserted, deleted or replaced letter, or by two swapped
/// ones.
fn is_near(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let same = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[same..], &b[same..]);
    let tail = |skip_a: usize, skip_b: usize| {
        a.len() >= skip_a && b.len() >= skip_b && a[skip_a..] == b[skip_b..]
    };
    let swapped = a.len() > 1 && b.len() > 1 && a[0] == b[1] && a[1] == b[0];
    tail(1, 0) || tail(0, 1) || tail(1, 1) || (swapped && tail(2, 2))
}

#[cfg(test)]
mod tests;
