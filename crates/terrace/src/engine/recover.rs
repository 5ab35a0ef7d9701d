//! Recovery: replays logs into the front and, where nothing else keeps them, flushes as it goes.

use std::sync::Arc;
use std::time::Duration;

use terrace_media::Medium;

use crate::error::Result;
use crate::stages::Replayed;

use super::Engine;

/// What opening a database found and did.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The database did not exist and was created.
    pub created: bool,
    /// It had been closed in order.
    pub clean: bool,
    /// Logs that were replayed.
    pub logs_replayed: u64,
    /// Records in them.
    pub records_replayed: u64,
    /// Entries in those.
    pub entries_replayed: u64,
    /// Batches of link changes that were finished.
    pub redo_slots_applied: u64,
    /// Merges that go on where they were interrupted.
    pub merges_resumed: u64,
    /// Tables whose links were built anew from their nodes.
    pub tables_rebuilt: u64,
    /// How long opening took.
    pub elapsed: Duration,
}

impl std::fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.created {
            return write!(f, "created in {:.1?}", self.elapsed);
        }
        let how = if self.clean {
            "a clean close"
        } else {
            "a crash"
        };
        write!(f, "opened after {how} in {:.1?}", self.elapsed)?;
        let counts = [
            (self.logs_replayed, "logs replayed"),
            (self.entries_replayed, "entries recovered"),
            (self.redo_slots_applied, "batches of links finished"),
            (self.merges_resumed, "merges resumed"),
            (self.tables_rebuilt, "tables rebuilt"),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {what}")?;
        }
        Ok(())
    }
}

impl Engine {
    /// Replays every log that the front has found. `progress` gets bytes replayed.
    pub(crate) fn replay_logs(
        self: &Arc<Self>,
        report: &mut RecoveryReport,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        let mut bytes = 0;
        while let Some(Replayed {
            records,
            entries,
            bytes: more,
        }) = self.pipeline.front.replay_next()?
        {
            if records > 0 {
                report.logs_replayed += 1;
            }
            report.records_replayed += records;
            report.entries_replayed += entries;
            bytes += more;
            progress(bytes);
            if self.ground.pool.medium() == Medium::Dram {
                // All logs of the database's life come back here: they must not pile up in DRAM.
                self.flush_replayed()?;
            }
        }
        self.install_view();
        Ok(())
    }

    /// Flushes the memtables replayed so far, and does the work that follows from it, before any
    /// worker runs.
    fn flush_replayed(self: &Arc<Self>) -> Result<()> {
        while let Some(sealed) = self.pipeline.front.next_sealed()? {
            let job = self.pipeline.admit(sealed)?;
            self.run_inline(job)?;
        }
        while let Some(job) = self.take_inline()? {
            self.run_inline(job)?;
        }
        Ok(())
    }
}
