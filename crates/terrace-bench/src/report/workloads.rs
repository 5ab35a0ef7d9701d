//! The parts of a report about workloads with operations of several kinds, and about YCSB.

use super::{StepReport, WorkloadReport};
use crate::config::BenchConfig;
use crate::latency::{Latency, LatencyReport};
use crate::meter::Tally;
use crate::step::Step;

impl StepReport {
    /// Returns one report for each kind of operation if there were several; their times are parts
    /// of that of the whole.
    pub(crate) fn of_kinds(tallies: &[Tally]) -> Vec<StepReport> {
        let elapsed = tallies.iter().map(|tally| tally.elapsed).max();
        let elapsed_s = elapsed.unwrap_or_default().as_secs_f64().max(1e-9);
        let names = tallies.first().into_iter().flat_map(|tally| &tally.kinds);
        let mut reports: Vec<StepReport> = Vec::new();
        for (at, name) in names.map(|kind| kind.name).enumerate() {
            let mut latency = Latency::default();
            let (mut ops, mut bytes) = (0, 0);
            for kind in tallies.iter().filter_map(|tally| tally.kinds.get(at)) {
                latency.merge(&kind.latency);
                ops += kind.ops;
                bytes += kind.bytes;
            }
            if let Some(latency) = LatencyReport::of(&latency) {
                reports.push(StepReport {
                    name: format!("  ({name})"),
                    ops,
                    elapsed_s,
                    ops_per_s: ops as f64 / elapsed_s,
                    mb_per_s: bytes as f64 / 1e6 / elapsed_s,
                    latency: Some(latency),
                    ..StepReport::default()
                });
            }
        }
        // A single kind equals the whole.
        if reports.len() < 2 {
            reports.clear();
        }
        reports
    }
}

impl WorkloadReport {
    /// Returns the steps of YCSB, each once.
    pub(crate) fn of(config: &BenchConfig) -> Vec<WorkloadReport> {
        let mut steps: Vec<Step> = Vec::new();
        for step in &config.steps {
            if !steps.contains(step) {
                steps.push(*step);
            }
        }
        let of = |step: &Step| {
            if let (Step::Replay, Some(trace)) = (*step, &config.trace) {
                return Some(WorkloadReport {
                    step: step.name().into(),
                    what: trace.describe(),
                    ignored: Vec::new(),
                });
            }
            let workload = config.workload_of(*step).ok()??;
            Some(WorkloadReport {
                step: step.name().into(),
                what: workload.describe(*step == Step::YcsbLoad),
                ignored: workload.ignored,
            })
        };
        steps.iter().filter_map(of).collect()
    }
}
