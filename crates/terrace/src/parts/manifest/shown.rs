//! Formats an edit for people: what a job has changed, as the end of a sentence about the job.
//!
//! Only events use it. Bookkeeping changes (numbers, time, totals) are left out.

use std::fmt;

use crate::events::Count;
use crate::metrics::human_bytes;

use super::{Change, Edit};

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut owners: Vec<_> = self.changes.iter().filter_map(Change::owner).collect();
        owners.sort_by_key(|owner| owner.tag);
        owners.dedup();
        let count = |wanted: &dyn Fn(&Change) -> bool| {
            let found = self.changes.iter().filter(|change| wanted(change));
            found.count() as u64
        };
        let mut counts = Vec::new();
        for owner in owners {
            let of = |change: &Change| change.owner() == Some(owner);
            let added = count(&|c| matches!(c, Change::Added(_)) && of(c));
            let changed = count(&|c| matches!(c, Change::Changed(_)) && of(c));
            let removed = count(&|c| matches!(c, Change::Removed { .. }) && of(c));
            counts.push((Count(added, owner.name), "added"));
            counts.push((Count(changed, owner.name), "changed"));
            counts.push((Count(removed, owner.name), "removed"));
        }
        let retired = count(&|c| matches!(c, Change::LogRetired { .. }));
        counts.push((Count(retired, "log"), "retired"));
        let mut separator = ": ";
        for (count, what) in counts.iter().filter(|(count, _)| count.0 > 0) {
            write!(f, "{separator}{count} {what}")?;
            separator = ", ";
        }
        let bytes = self.changes.iter().map(|change| match change {
            Change::Added(item) | Change::Changed(item) => item.bytes(),
            _ => 0,
        });
        match bytes.sum() {
            0 => Ok(()),
            bytes => write!(f, ", {} in the result", human_bytes(bytes)),
        }
    }
}
