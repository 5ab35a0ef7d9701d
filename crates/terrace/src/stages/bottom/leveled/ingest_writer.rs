//! IngestWriter of sorted entries that bypass the stages above: they become a run of level 0.
//!
//! If such a run is alone on level 0 and overlaps nothing, compaction moves its tables down by
//! edits alone.
//!
//! CRASH: tables that no edit names are removed when the database is opened.

use std::sync::Arc;

use super::Inner;
use super::output::Output;
use crate::error::Result;
use crate::parts::expiry::{Millis, Value};
use crate::parts::iter::{EntryView, Stored};
use crate::stages::{Completion, IngestWriter};
use crate::types::{EntryKind, SeqNo};

/// A run that is being written.
pub(super) struct Run {
    inner: Arc<Inner>,
    seq: SeqNo,
    output: Output,
}

impl Run {
    pub(super) fn begin(inner: &Arc<Inner>, seq: SeqNo) -> Run {
        // The number of the run is drawn when it is complete, and above all others.
        let mut output = Output::new(inner, (0, u64::MAX), Vec::new(), Vec::new());
        output.end_loan();
        // The entries that it hides may come down from above before it is complete.
        output.keep_expired();
        Run {
            output,
            inner: Arc::clone(inner),
            seq,
        }
    }
}

impl IngestWriter for Run {
    fn add(&mut self, keyspace: u32, key: &[u8], value: &[u8], expiry: Millis) -> Result<()> {
        if self.output.is_full() {
            self.output.close_table(Some((keyspace, key)))?;
        }
        let entry = EntryView {
            keyspace,
            key,
            seq: self.seq,
            kind: EntryKind::Put as u8,
        };
        let value = Value {
            bytes: value,
            expiry,
        };
        let value = Stored::Inline(value);
        self.output.offer(&entry, value).map(|_| ())
    }

    fn close(&mut self) -> Result<()> {
        self.output.close_table(None)
    }

    fn leave(&mut self) {
        self.output.leave();
    }

    fn complete(mut self: Box<Self>) -> Completion {
        // Above every existing run: everything that already has a number is older.
        self.output.rename_run(self.inner.shared.next_id());
        let entries = self.output.entries();
        let written = self.output.finish();
        let inner = Arc::clone(&self.inner);
        Completion {
            edit: crate::parts::manifest::Edit {
                changes: written.changes,
            },
            apply: Box::new(move || inner.install(&[], &written.tables, &written.values)),
            garbage: Vec::new(),
            entries,
        }
    }
}
