//! The summary of a comparison with a paper: JSON with one figure in each line, for short diffs.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::compare::{Comparison, Figure, Repeats, outcome_of_any, runs};
use crate::fnv::fnv1a;
use crate::machine::Machine;
use crate::page::date::day;
use crate::report::Conditions;
use crate::results::Record;

/// The figures measured for a paper's, and their conditions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The days on which the first and the last run began, as `YYYY-MM-DD`, in UTC.
    pub days: [String; 2],
    /// Runs with a result.
    pub runs_done: usize,
    /// Planned runs.
    pub runs_planned: usize,
    /// Repeats of the phases that are compared.
    pub phases: usize,
    /// Those of them during which others took much of the processor time.
    pub phases_disturbed: usize,
    /// The machines; more than one if runs were done on several.
    pub machines: Vec<Machine>,
    /// The builds of the program.
    pub builds: Vec<Build>,
    /// The stores; a store whose conditions vary has more than one entry.
    pub stores: Vec<StoreSummary>,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// A build of the program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Build {
    /// "release", or a warning that figures of a debug build mean nothing.
    pub build: String,
    /// The commit of its sources; `None` if they were built outside a repository.
    pub commit: Option<String>,
}

/// The conditions of a store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreSummary {
    /// Its name in the comparison.
    pub name: String,
    /// Its own name and version, or its design.
    pub description: String,
    /// The location of its bytes: the pool's medium without its path, or files.
    pub medium: String,
    /// The mount's type and options.
    pub file_system: String,
    /// The emulated device, if any.
    pub emulation: Option<String>,
    /// The durability of a write.
    pub durability: String,
    /// A hash of the commands of all its runs: another one is of other settings.
    pub commands: String,
}

impl Summary {
    /// Summarizes the results in `records` of the settings that `comparison` has now. Also returns
    /// the number of phases of other settings, which are left out. Returns `None` if no figure of
    /// the paper was measured.
    pub fn of(comparison: &Comparison, records: &[Record]) -> (Option<Summary>, usize) {
        let planned = runs(comparison, "");
        let is_of_now = |record: &&Record| {
            let of = record.run().planned.as_ref();
            of.is_some_and(|of| {
                let now = planned.iter().find(|run| of.is_of(&run.planned));
                now.is_some_and(|now| now.planned.command == of.command)
            })
        };
        let is_phase = |record: &&Record| matches!(record, Record::Phase(_));
        let now: Vec<Record> = records.iter().filter(is_of_now).cloned().collect();
        let phases = |records: &[Record]| records.iter().filter(is_phase).count();
        let others = phases(records) - phases(&now);
        let outcome = outcome_of_any(comparison, &now);
        let figures = comparison
            .paper
            .iter()
            .flat_map(|p| p.figures(&outcome.cells));
        let mut summary = Summary {
            runs_done: outcome.done,
            runs_planned: outcome.planned,
            figures: figures.map(rounded).collect(),
            ..Summary::default()
        };
        let began = outcome.cells.runs().iter().map(|run| run.began_ms);
        if let (Some(first), Some(last)) = (began.clone().min(), began.max()) {
            summary.days = [day(first), day(last)];
        }
        for cell in outcome.compared().filter(|cell| !cell.is_part) {
            let usages = cell.samples.iter().map(|sample| &sample.phase.usage);
            summary.phases += cell.samples.len();
            summary.phases_disturbed += usages.filter(|usage| usage.is_disturbed()).count();
        }
        for cell in outcome.cells.all() {
            let c = &cell.conditions;
            add(&mut summary.machines, c.machine.clone());
            add(&mut summary.builds, Build::of(c));
            let commands = commands_of(comparison, &cell.key.store);
            add(
                &mut summary.stores,
                StoreSummary::of(&cell.key.store, c, commands),
            );
        }
        // Cells come by workload; readers look for the order of the file.
        let place = |name: &str| {
            let mut stores = comparison.store.iter();
            stores.position(|store| store.get_ref().name == name)
        };
        summary.stores.sort_by_key(|store| place(&store.name));
        ((!summary.figures.is_empty()).then_some(summary), others)
    }

    /// Returns the stores that have other settings in `comparison` than those measured.
    pub fn changed(&self, comparison: &Comparison) -> Vec<&str> {
        let mut changed: Vec<&str> = Vec::new();
        for store in &self.stores {
            let is_changed = store.commands != commands_of(comparison, &store.name);
            if is_changed && !changed.contains(&store.name.as_str()) {
                changed.push(&store.name);
            }
        }
        changed
    }

    /// Formats the summary for a file.
    pub fn to_text(&self) -> Result<String, String> {
        let why = |e: serde_json::Error| format!("cannot format a summary: {e}");
        let mut text = String::from("{\n");
        let days = serde_json::to_string(&self.days).map_err(why)?;
        let _ = writeln!(text, "  \"days\": {days},");
        for (name, count) in [
            ("runs_done", self.runs_done),
            ("runs_planned", self.runs_planned),
            ("phases", self.phases),
            ("phases_disturbed", self.phases_disturbed),
        ] {
            let _ = writeln!(text, "  \"{name}\": {count},");
        }
        let lists = [
            ("machines", lines(&self.machines)),
            ("builds", lines(&self.builds)),
            ("stores", lines(&self.stores)),
            ("figures", lines(&self.figures)),
        ];
        let mut each = Vec::new();
        for (name, lines) in lists {
            let lines = lines.map_err(why)?.join(",\n    ");
            each.push(format!("  \"{name}\": [\n    {lines}\n  ]"));
        }
        let _ = write!(text, "{}\n}}\n", each.join(",\n"));
        Ok(text)
    }

    /// Reads a summary from the text of a file.
    pub fn parse(text: &str) -> Result<Summary, String> {
        serde_json::from_str(text).map_err(|e| {
            format!(
                "this is not a summary of terrace bench papers ({e}): remake it from the results"
            )
        })
    }
}

/// Formats each of `values` as a line.
fn lines<T: Serialize>(values: &[T]) -> serde_json::Result<Vec<String>> {
    values.iter().map(serde_json::to_string).collect()
}

fn add<T: PartialEq>(list: &mut Vec<T>, new: T) {
    if !list.contains(&new) {
        list.push(new);
    }
}

impl Build {
    fn of(c: &Conditions) -> Build {
        Build {
            build: c.build.to_string(),
            commit: c.commit.as_ref().map(ToString::to_string),
        }
    }
}

impl StoreSummary {
    fn of(name: &str, c: &Conditions, commands: String) -> StoreSummary {
        // The path of a pool is that of a temporary directory, another one in each run.
        let medium = c.about.medium.split(", /").next().unwrap_or_default();
        StoreSummary {
            name: name.to_string(),
            description: c.about.name.clone(),
            medium: medium.to_string(),
            file_system: c.file_system.clone(),
            emulation: c.emulation.clone(),
            durability: c.about.durability.clone(),
            commands,
        }
    }
}

/// Returns a hash of the commands of all runs of a store. It is kept in files, so it may not depend
/// on the version of the standard library.
fn commands_of(comparison: &Comparison, store: &str) -> String {
    let runs = runs(comparison, "");
    let of_store = runs.iter().filter(|run| run.planned.store == store);
    let mut commands: Vec<&str> = of_store.map(|run| run.planned.command.as_str()).collect();
    commands.sort_unstable();
    // Repeats have the same command: more of them are no other settings.
    commands.dedup();
    let bytes = commands.iter().flat_map(|text| text.bytes().chain([b'\n']));
    format!("{:016x}", fnv1a(bytes))
}

/// Returns the figure with six digits, which readers of differences can follow.
fn rounded(figure: Figure) -> Figure {
    let round = |value: f64| format!("{value:.5e}").parse().unwrap_or(value);
    let Repeats {
        median,
        lowest,
        highest,
        count,
    } = figure.repeats;
    Figure {
        repeats: Repeats {
            median: round(median),
            lowest: round(lowest),
            highest: round(highest),
            count,
        },
        ..figure
    }
}
