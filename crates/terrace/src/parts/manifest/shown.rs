//! Formats an edit for people: what a job has changed, as the end of a sentence about the job.
//!
//! Only events use it. Bookkeeping changes (numbers, time, totals) are left out.

use std::fmt;

use crate::events::Count;
use crate::metrics::human_bytes;

use super::{Change, Edit};

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |wanted: fn(&Change) -> bool, what: &'static str| {
            let found = self.changes.iter().filter(|change| wanted(change));
            Count(found.count() as u64, what)
        };
        let bytes = self.changes.iter().map(|change| match change {
            Change::TableAdded(table) => table.bytes,
            Change::FileAdded(file) => file.bytes,
            Change::MergeEnded { bytes, .. } => *bytes,
            _ => 0,
        });
        let bytes: u64 = bytes.sum();
        let written = |c: &Change| matches!(c, Change::TableAdded(_) | Change::FileAdded(_));
        let merged = |c: &Change| matches!(c, Change::MergeEnded { .. });
        let shifted =
            |c: &Change| matches!(c, Change::TableMoved { .. } | Change::FileMoved { .. });
        let removed =
            |c: &Change| matches!(c, Change::TableRemoved { .. } | Change::FileRemoved { .. });
        let freed = |c: &Change| matches!(c, Change::RepositoryExtentRemoved { .. });
        let retired = |c: &Change| matches!(c, Change::LogRetired { .. });
        let counts = [
            (count(written, "table"), "written"),
            (count(merged, "table"), "merged into an older one"),
            (count(shifted, "table"), "moved to another level"),
            (count(removed, "table"), "removed"),
            (count(freed, "extent"), "freed"),
            (count(retired, "log"), "retired"),
        ];
        let mut separator = ": ";
        for (count, what) in counts.iter().filter(|(count, _)| count.0 > 0) {
            write!(f, "{separator}{count} {what}")?;
            separator = ", ";
        }
        if bytes > 0 {
            write!(f, ", {} in the result", human_bytes(bytes))?;
        }
        Ok(())
    }
}
