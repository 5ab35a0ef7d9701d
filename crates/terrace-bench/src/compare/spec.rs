//! The specification of a comparison: a TOML file, parsed and checked.
//!
//! Settings are options of `terrace bench` by name, so a comparison supports every option of the
//! command line. They are not interpreted here: the caller passes a function that checks them with
//! the parser of the command line, and an error names the line of the setting.

use std::fmt;
use std::fs;
use std::path::Path;

use super::model::{Comparison, Settings};
use super::paper::PaperValue;
use super::plan::{VALUE_SIZE, argument};
use crate::error::BenchError;
use crate::step::Step;
use crate::store::StoreKind;

/// Options that may not be settings, since the comparison sets them, and what to do instead.
const RESERVED: [(&str, &str); 12] = [
    ("benchmarks", "write prepare and measure of the workload"),
    ("store", "write store = \"...\" in [[store]]"),
    ("value-size", "write value_sizes = [...] at the top"),
    ("db", "write mount = \"...\" at the top"),
    ("report-interval", "it is always 1 s"),
    ("json", "omit it"),
    ("histogram", "omit it: all distributions are in the results"),
    ("use-existing-db", "omit it: every run creates its database"),
    ("replace-db", "omit it: every run creates its database"),
    ("victim", "omit it"),
    ("keyspace", "omit it"),
    ("read-only", "omit it"),
];

/// A check of arguments by the parser of the command line. Returns the bytes that a run may need on
/// its mount, or an error.
pub type Check<'a> = &'a dyn Fn(&[String], Checked) -> Result<u64, String>;

/// The arguments that are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// Those of one setting, whose meaning may depend on others.
    Setting,
    /// All of a run.
    Run,
}

/// A file with its text, so that errors can name a line.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// Returns an error about the byte offset `at`, or about the whole file.
    fn error(&self, at: Option<usize>, what: impl fmt::Display) -> BenchError {
        let path = self.path.display();
        BenchError::Invalid(match at {
            Some(at) => {
                let before = self.text.get(..at).unwrap_or(self.text);
                let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
                format!("{path}:{line}: {what}")
            }
            None => format!("{path}: {what}"),
        })
    }
}

impl Comparison {
    /// Reads the file at `path` and checks it; errors give file, line and a correction.
    pub fn read(path: &Path, check: Check<'_>) -> Result<Comparison, BenchError> {
        let text = fs::read_to_string(path).map_err(|e| BenchError::io("read", path, e))?;
        Comparison::parse(path, &text, check)
    }

    /// Parses and checks `text` as [`Comparison::read`] does; `path` is used only in errors.
    pub fn parse(path: &Path, text: &str, check: Check<'_>) -> Result<Comparison, BenchError> {
        let source = Source { path, text };
        let comparison: Comparison = toml::from_str(text).map_err(|e| {
            let at = e.span().map(|span| span.start);
            let hint =
                "see docs/benchmarking.md for all fields, and \"terrace bench compare --help\" for \
                 an example";
            source.error(at, format_args!("{}; {hint}", e.message().trim_end()))
        })?;
        comparison.check_fields(&source)?;
        comparison.check_paper(&source)?;
        let shared = [&comparison.settings, &comparison.terrace];
        let stores = comparison.store.iter().map(|s| &s.get_ref().settings);
        let workloads = comparison.workload.iter().map(|w| &w.get_ref().settings);
        for settings in shared.into_iter().chain(stores).chain(workloads) {
            check_settings(&source, settings, check)?;
        }
        comparison.check_runs(&source, check)?;
        Ok(comparison)
    }

    /// Checks all fields except settings.
    fn check_fields(&self, source: &Source<'_>) -> Result<(), BenchError> {
        let (repeats, spread) = (&self.repeats, &self.spread_max);
        if !(1..=100).contains(repeats.get_ref()) {
            let what = format!("repeats is {}: write 1 to 100", repeats.get_ref());
            return Err(source.error(Some(repeats.span().start), what));
        }
        if !(*spread.get_ref() > 0.0 && spread.get_ref().is_finite()) {
            let what = "spread_max must be above 0: write 0.1 for a tenth of the median";
            return Err(source.error(Some(spread.span().start), what));
        }
        if self.value_sizes.get_ref().is_empty() {
            let what = "value_sizes is empty: write at least one, as [\"1KiB\"]";
            return Err(source.error(Some(self.value_sizes.span().start), what));
        }
        let mut names: Vec<&str> = Vec::new();
        for store in &self.store {
            let (at, store) = (Some(store.span().start), store.get_ref());
            check_name(source, at, "store", &store.name, &mut names)?;
            let at = store.store.as_ref().map_or(at, |s| Some(s.span().start));
            store.kind().map_err(|what| source.error(at, what))?;
        }
        if let Some(baseline) = &self.baseline
            && !names.contains(&baseline.get_ref().as_str())
        {
            let what = format!(
                "there is no store {:?} for the baseline: use one of {}",
                baseline.get_ref(),
                names.join(", ")
            );
            return Err(source.error(Some(baseline.span().start), what));
        }
        let mut names: Vec<&str> = Vec::new();
        for workload in &self.workload {
            let (at, workload) = (Some(workload.span().start), workload.get_ref());
            check_name(source, at, "workload", &workload.name, &mut names)?;
            if workload.measure.is_empty() {
                let what = format!(
                    "workload {:?} measures nothing: write measure = [\"fillrandom\"]",
                    workload.name
                );
                return Err(source.error(at, what));
            }
            for phase in workload.phases() {
                let parsed = phase.get_ref().parse::<Step>();
                parsed.map_err(|what| source.error(Some(phase.span().start), what))?;
            }
        }
        match (self.store.is_empty(), self.workload.is_empty()) {
            (true, _) => Err(source.error(None, "there is no store: write a [[store]]")),
            (_, true) => Err(source.error(None, "there is no workload: write a [[workload]]")),
            _ => Ok(()),
        }
    }

    /// Checks that each figure of a paper can be found among the runs.
    fn check_paper(&self, source: &Source<'_>) -> Result<(), BenchError> {
        let values = self.paper.iter().flat_map(|paper| &paper.value);
        for value in values {
            let at = Some(value.span().start);
            let value = value.get_ref();
            value
                .check_form()
                .and_then(|()| self.check_places(value))
                .map_err(|what| source.error(at, format_args!("{:?}: {what}", value.what)))?;
        }
        Ok(())
    }

    /// Checks that the comparison has the stores, workloads, phases and sizes that `value` names.
    fn check_places(&self, value: &PaperValue) -> Result<(), String> {
        let one_of = |what: &str, name: &str, names: &[&str]| match names.contains(&name) {
            true => Ok(()),
            false => Err(format!(
                "there is no {what} {name:?}: use one of {}",
                names.join(", ")
            )),
        };
        let stores: Vec<&str> = self
            .store
            .iter()
            .map(|s| s.get_ref().name.as_str())
            .collect();
        let here = value.here.iter();
        for name in here.flat_map(|here| std::iter::once(&here.store).chain(&here.baseline)) {
            one_of("store", name, &stores)?;
        }
        let than = value.than.clone().unwrap_or_default();
        let workloads = self.workload.iter().map(|workload| workload.get_ref());
        let names: Vec<&str> = workloads.clone().map(|w| w.name.as_str()).collect();
        for name in value.workload.iter().chain(&than.workload) {
            one_of("workload", name, &names)?;
        }
        let phases = workloads.flat_map(|workload| workload.phases());
        let mut names: Vec<&str> = phases.map(|phase| phase.get_ref().as_str()).collect();
        names.dedup();
        for phase in value.phase.iter().chain(&than.phase) {
            // A part of a phase, as "readwhilewriting (writer)".
            let whole = phase
                .split_once(" (")
                .map_or(phase.as_str(), |(whole, _)| whole);
            one_of("phase", whole, &names)?;
        }
        for (what, all, sizes) in [
            (
                "value_sizes",
                self.value_sizes.get_ref(),
                [value.value_size, than.value_size],
            ),
            (
                "data_sizes",
                &self.data_sizes,
                [value.data_size, than.data_size],
            ),
        ] {
            if let Some(size) = sizes.iter().flatten().find(|size| !all.contains(size)) {
                let size = crate::units::short_bytes(size.0);
                return Err(format!("{size} is not among {what}"));
            }
        }
        Ok(())
    }

    /// Checks the arguments of each run, where settings may conflict. The error names the line of
    /// the run's store.
    fn check_runs(&self, source: &Source<'_>, check: Check<'_>) -> Result<(), BenchError> {
        for run in super::plan::runs(self, "") {
            let store = &self.store[run.store];
            // Stores that this build does not contain are not run.
            if store.get_ref().kind().is_ok_and(StoreKind::is_built) {
                check(&run.args, Checked::Run).map_err(|what| {
                    let (name, workload) = (&run.planned.store, &run.planned.workload);
                    let at = Some(store.span().start);
                    source.error(at, format_args!("{name} with {workload}: {what}"))
                })?;
            }
        }
        Ok(())
    }
}

fn check_name<'a>(
    source: &Source<'_>,
    at: Option<usize>,
    what: &str,
    name: &'a str,
    names: &mut Vec<&'a str>,
) -> Result<(), BenchError> {
    if names.contains(&name) || name.trim().is_empty() {
        let what = format!("the name {name:?} is empty or used by another {what}: choose another");
        return Err(source.error(at, what));
    }
    names.push(name);
    Ok(())
}

fn check_settings(
    source: &Source<'_>,
    settings: &Settings,
    check: Check<'_>,
) -> Result<(), BenchError> {
    for (name, value) in settings {
        let at = Some(value.span().start);
        if let Some((_, instead)) = RESERVED.iter().find(|(reserved, _)| reserved == name) {
            let what = format!("{name} is set by the comparison: {instead}");
            return Err(source.error(at, what));
        }
        let Some(arguments) = argument(name, value.get_ref()) else {
            let what = format!("{name} must be text, a number, true, false, or a list of those");
            return Err(source.error(at, what));
        };
        // Any size shows whether the setting parses.
        let arguments = arguments.iter().map(|text| text.replace(VALUE_SIZE, "1"));
        let arguments: Vec<String> = arguments.collect();
        check(&arguments, Checked::Setting).map_err(|what| source.error(at, what))?;
    }
    Ok(())
}
