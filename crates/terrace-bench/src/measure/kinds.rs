//! The kinds of operations: every report has separate latencies for each.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::latency::{Latency, LatencyReport};
use crate::meter::Tally;
use crate::step::Step;

/// The kind of an operation as its user sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// A get of one key.
    Read,
    /// A put of one key, or a batch of them.
    Write,
    /// A get and a put of the same key.
    Update,
    /// A delete of one key, or a batch of them.
    Delete,
    /// A seek and the entries after it, or a group of entries of a long scan.
    Scan,
}

impl OpKind {
    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Update => "update",
            OpKind::Delete => "delete",
            OpKind::Scan => "scan",
        }
    }

    /// Returns the kind of the client threads' operations in `step`; `None` if there are several
    /// kinds, or none is timed.
    pub(crate) fn of(step: Step) -> Option<OpKind> {
        match step {
            Step::FillSeq
            | Step::FillBatch
            | Step::FillRandom
            | Step::FillUniqueRandom
            | Step::Overwrite
            | Step::YcsbLoad => Some(OpKind::Write),
            Step::ReadRandom
            | Step::ReadHot
            | Step::MultiReadRandom
            | Step::ReadMissing
            | Step::ReadWhileWriting => Some(OpKind::Read),
            Step::ReadSeq | Step::ReadReverse | Step::SeekRandom | Step::SeekRandomWhileWriting => {
                Some(OpKind::Scan)
            }
            Step::UpdateRandom => Some(OpKind::Update),
            Step::DeleteSeq | Step::DeleteRandom => Some(OpKind::Delete),
            // These distinguish the kinds themselves.
            _ => None,
        }
    }
}

/// The latencies of one kind of operation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KindReport {
    /// The kind: "read", "write", "delete", "scan", or one of a later version.
    pub kind: Cow<'static, str>,
    /// The number of latencies; a batch has one.
    pub count: u64,
    /// Percentiles.
    pub latency: LatencyReport,
    /// Pairs of a limit in microseconds and the number of operations up to it and above the
    /// previous limit: twenty pairs for each power of ten, without empty ones.
    pub histogram: Vec<(f64, u64)>,
}

impl KindReport {
    /// Returns the kinds of operations in `tallies`, or the single `kind` with all of `latency`.
    pub(crate) fn of_all(
        kind: Option<OpKind>,
        tallies: &[Tally],
        latency: &Latency,
    ) -> Vec<KindReport> {
        let mut kinds: Vec<(&'static str, Latency)> = Vec::new();
        for more in tallies.iter().flat_map(|tally| &tally.kinds) {
            match kinds.iter_mut().find(|(name, _)| *name == more.name) {
                Some((_, sum)) => sum.merge(&more.latency),
                None => kinds.push((more.name, more.latency.clone())),
            }
        }
        if kinds.is_empty() {
            let name = kind.map_or("operation", OpKind::name);
            kinds.push((name, latency.clone()));
        }
        let reports = kinds.into_iter();
        reports
            .filter_map(|(name, latency)| KindReport::of(name, &latency))
            .collect()
    }

    /// Returns the latencies of the kind `name`; `None` if it has none.
    pub(crate) fn of(name: &'static str, latency: &Latency) -> Option<KindReport> {
        Some(KindReport {
            kind: name.into(),
            count: latency.count(),
            latency: LatencyReport::of(latency)?,
            histogram: latency.histogram(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind has all its latencies, in its percentiles and in its histogram.
    #[test]
    fn a_kind_has_all_its_latencies() {
        let mut latency = Latency::default();
        assert_eq!(KindReport::of(OpKind::Read.name(), &latency), None);
        for us in 1..=1000 {
            latency.record(us * 1000);
        }
        let report = KindReport::of(OpKind::Read.name(), &latency).expect("it has latencies");
        assert_eq!((&*report.kind, report.count), ("read", 1000));
        let counted: u64 = report.histogram.iter().map(|(_, count)| count).sum();
        assert_eq!(counted, 1000);
        assert!(report.histogram.is_sorted_by(|a, b| a.0 < b.0));
        let up_to_100: u64 = report
            .histogram
            .iter()
            .filter(|(us, _)| *us <= 100.5)
            .map(|(_, count)| count)
            .sum();
        assert!((98..=101).contains(&up_to_100), "{up_to_100}");
    }
}
