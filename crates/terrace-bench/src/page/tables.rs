//! The tables of a report, as HTML.

use std::fmt::Write as _;

use super::date::day;
use crate::compare::{Cell, Comparison, Measure, Outcome, Paper, with_spread, words};
use crate::plot::escape;
use crate::units;

/// Formats a table: the first `texts` columns are text, the others numbers.
fn table(heading: &[&str], texts: usize, rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut html = String::from("<div class=\"wide\"><table><thead><tr>");
    let class = |at: usize| if at < texts { " class=\"t\"" } else { "" };
    for (at, cell) in heading.iter().enumerate() {
        let _ = write!(html, "<th{}>{}</th>", class(at), escape(cell));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let long = if cell.len() > 34 {
                " class=\"t long\""
            } else {
                class(at)
            };
            let _ = write!(html, "<td{long}>{}</td>", escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

/// Returns the key of a cell as the first cells of a row.
fn place(cell: &Cell) -> [String; 4] {
    let key = &cell.key;
    [
        format!("{} {}", key.workload, key.phase),
        units::short_bytes(key.value_bytes),
        key.data_bytes.map_or("-".to_string(), units::short_bytes),
        key.store.clone(),
    ]
}

/// Formats whether all runs were done, and whether the figures are meaningful.
pub(super) fn progress(comparison: &Comparison, outcome: &Outcome) -> String {
    let mut html = String::new();
    let (done, planned) = (outcome.done, outcome.planned);
    if done < planned {
        let why = outcome
            .ended_early
            .as_deref()
            .unwrap_or("some failed or were not started");
        let _ = writeln!(
            html,
            "<p class=\"bad\">{done} of {planned} runs have a result: {}.</p>",
            escape(why)
        );
    }
    let mut cells = outcome.cells.all().iter();
    if cells.any(|cell| cell.conditions.build.starts_with("debug")) {
        html.push_str("<p class=\"bad\">This was a debug build: its figures mean nothing.</p>\n");
    }
    for warning in outcome.warnings(comparison) {
        let _ = writeln!(html, "<p class=\"bad\">{}</p>", escape(&warning));
    }
    for (store, brings) in &outcome.absent {
        let (store, brings) = (escape(store), escape(brings));
        let _ = writeln!(
            html,
            "<p class=\"bad\">Not measured: {store}: {brings}.</p>"
        );
    }
    html
}

/// Formats the machine, and each store with its medium and its durability.
pub(super) fn conditions(comparison: &Comparison, outcome: &Outcome) -> String {
    let Some(first) = outcome.cells.all().first() else {
        return "<p class=\"bad\">There are no results.</p>\n".to_string();
    };
    let (c, m) = (&first.conditions, &first.conditions.machine);
    let mut html = format!(
        "<p class=\"note\">{}, {} cores, governor {}, {} of memory, Linux {}. Build: {}{}. {} \
         repeats, interleaved; each run is a separate process on the same mount. Requested \
         durability: {}. Pools are created and faulted in before measuring.</p>\n",
        escape(&m.cpu),
        m.cores,
        escape(m.governor.as_deref().unwrap_or("unknown")),
        units::bytes(m.memory_bytes),
        escape(&m.kernel),
        escape(&c.build),
        c.commit.as_ref().map_or(String::new(), |commit| format!(
            ", commit {}",
            escape(commit)
        )),
        comparison.repeats.get_ref(),
        escape(&c.durability),
    );
    let mut rows: Vec<Vec<String>> = Vec::new();
    for store in &comparison.store {
        let name = &store.get_ref().name;
        let Some(cell) = outcome
            .cells
            .all()
            .iter()
            .find(|cell| cell.key.store == *name)
        else {
            continue;
        };
        let (c, about) = (&cell.conditions, &cell.conditions.about);
        let emulated = c.emulation.clone().unwrap_or_else(|| "none".to_string());
        rows.push(vec![
            name.clone(),
            about.name.clone(),
            format!("{} on {}", about.medium, c.file_system),
            about.durability.clone(),
            emulated,
            about.settings.clone(),
            about.counted_by.clone(),
            format!("{:.2} s", c.open_s),
        ]);
    }
    let heading = [
        "store",
        "description",
        "medium",
        "durability",
        "emulation",
        "settings",
        "written bytes counted by",
        "creation and faults",
    ];
    html.push_str(&table(&heading, 7, &rows));
    html
}

pub(super) fn throughput(comparison: &Comparison, outcome: &Outcome) -> String {
    let to = format!("to {}", comparison.baseline());
    let heading = [
        "phase",
        "values",
        "data",
        "store",
        "op/s",
        &to,
        "MB/s",
        "limit of the medium",
        "stalled",
        "runs",
    ];
    let rows: Vec<Vec<String>> = outcome
        .compared()
        .filter(|cell| cell.median(Measure::Throughput).is_some())
        .map(|cell| {
            let mut row = place(cell).to_vec();
            let phase = cell.typical().map(|sample| &sample.phase);
            let limit = phase.and_then(|phase| phase.limit_fraction);
            row.push(with_spread(cell, Measure::Throughput, |v| {
                units::count(v.round() as u64)
            }));
            row.push(words(&outcome.verdict(
                comparison,
                cell,
                Measure::Throughput,
            )));
            row.push(phase.map_or(String::new(), |phase| format!("{:.1}", phase.mb_per_s)));
            row.push(limit.map_or("-".to_string(), |part| format!("{:.0} %", part * 100.0)));
            row.push(stalled(cell));
            row.push(cell.samples.len().to_string());
            row
        })
        .collect();
    table(&heading, 5, &rows)
}

/// Formats how long writers were stalled, by reason.
fn stalled(cell: &Cell) -> String {
    let stalls = cell
        .typical()
        .map_or(&[][..], |sample| &sample.phase.stalls);
    let each = stalls
        .iter()
        .filter(|stall| stall.count > 0 || stall.seconds > 0.0);
    let each: Vec<String> = each
        .map(|stall| format!("{} {:.2} s", stall.reason, stall.seconds))
        .collect();
    match each.is_empty() {
        true => "-".to_string(),
        false => each.join(", "),
    }
}

pub(super) fn latency(outcome: &Outcome) -> String {
    let heading = [
        "phase", "values", "data", "store", "kind", "mean us", "p50", "p90", "p99", "p99.9",
        "p99.99", "max",
    ];
    let mut rows = Vec::new();
    for cell in outcome.compared() {
        let Some(sample) = cell.typical() else {
            continue;
        };
        let kinds = sample.phase.kinds.iter();
        let mut kinds: Vec<_> = kinds.map(|kind| (&*kind.kind, kind.latency)).collect();
        if kinds.is_empty() {
            kinds.extend(sample.phase.latency.map(|latency| ("all", latency)));
        }
        for (kind, l) in kinds {
            let figures = [
                l.mean_us,
                l.p50_us,
                l.p90_us,
                l.p99_us,
                l.p99_9_us,
                l.p99_99_us,
                l.max_us,
            ];
            let mut row = place(cell).to_vec();
            row.push(kind.to_string());
            row.extend(figures.map(|us| match us {
                us if us < 9999.5 => units::three_digits(us),
                us => units::count(us.round() as u64),
            }));
            rows.push(row);
        }
    }
    table(&heading, 5, &rows)
}

pub(super) fn costs(outcome: &Outcome) -> String {
    let heading = [
        "phase",
        "values",
        "data",
        "store",
        "CPU user",
        "CPU system",
        "CPU us/op",
        "peak private",
        "peak with pool",
        "space used",
        "live data",
        "used / live",
    ];
    let rows: Vec<Vec<String>> = outcome
        .compared()
        .filter(|cell| !cell.is_part)
        .filter_map(|cell| {
            let phase = &cell.typical()?.phase;
            let (usage, space) = (&phase.usage, &phase.space);
            let none = || "-".to_string();
            let cpu = (usage.cpu_user_s + usage.cpu_system_s) * 1e6 / phase.ops.max(1) as f64;
            let since = if usage.peak_is_of_phase { "" } else { " (run)" };
            let mut row = place(cell).to_vec();
            row.extend([
                format!("{:.2} s", usage.cpu_user_s),
                format!("{:.2} s", usage.cpu_system_s),
                if phase.ops > 0 {
                    units::three_digits(cpu)
                } else {
                    none()
                },
                units::bytes(usage.peak_private_bytes),
                format!("{}{since}", units::bytes(usage.peak_bytes)),
                units::bytes(space.used_bytes),
                space.live_bytes.map_or_else(none, units::bytes),
                space
                    .amplification
                    .map_or_else(none, |amp| format!("{amp:.2}")),
            ]);
            Some(row)
        })
        .collect();
    table(&heading, 4, &rows)
}

pub(super) fn paper(paper: &Paper, comparison: &Comparison, outcome: &Outcome) -> String {
    let (heading, rows) = paper.rows(&outcome.cells, *comparison.spread_max.get_ref());
    table(&heading, 3, &rows)
}

pub(super) fn failures(outcome: &Outcome) -> String {
    let mut html = String::new();
    for failure in outcome.cells.failures() {
        let planned = failure.run.planned.clone().unwrap_or_default();
        let _ = write!(
            html,
            "<p class=\"bad\">{} with {}, values of {}, repeat {}: {}, after {} phases</p>\n\
             <pre>{}</pre>\n<pre>{}</pre>\n",
            escape(&planned.store),
            escape(&planned.workload),
            units::short_bytes(planned.value_bytes),
            planned.repeat + 1,
            escape(&failure.how),
            failure.phases_done,
            escape(&failure.evidence),
            escape(&planned.command)
        );
    }
    html
}

/// Formats the command of each configuration, and the days of the runs.
pub(super) fn runs(outcome: &Outcome) -> String {
    let mut commands: Vec<&str> = Vec::new();
    for run in outcome.cells.runs() {
        if let Some(planned) = run
            .planned
            .as_ref()
            .filter(|p| !commands.contains(&&*p.command))
        {
            commands.push(&planned.command);
        }
    }
    let days = outcome
        .cells
        .runs()
        .iter()
        .map(|run| run.began_ms)
        .filter(|ms| *ms > 0);
    let (Some(first), Some(last)) = (days.clone().min(), days.max()) else {
        return String::new();
    };
    let (first, last) = (day(first), day(last));
    let when = if first == last {
        first
    } else {
        format!("{first} to {last}")
    };
    format!(
        "<details><summary>The command of each configuration, measured {when} (UTC)</summary>\n\
         <pre>{}</pre></details>\n",
        escape(&commands.join("\n"))
    )
}
