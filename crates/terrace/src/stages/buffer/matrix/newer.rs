//! The rows that are newer than a drain: versions there hide what it carries.
//!
//! What is hidden is not drained, and its log is not needed any more. So if the pool is memory, the
//! entries that hide it must be in logs that were synced when the row was made.

use std::sync::Arc;

use super::Rows;
use super::row::Row;
use crate::error::Result;
use crate::parts::key::Target;
use crate::stages::{NewerVersions, Survival};
use crate::types::{SEQ_MAX, SeqNo};

/// BOUND: the number of rows that are searched until the disk is full.
pub(super) const ASKED_MAX: usize = 32;

/// The rows next newer than those that drain, and these; newest first.
pub(super) struct Newer {
    all: Arc<Rows>,
    survival: Survival,
    rows: Vec<Arc<Row>>,
    drained: Vec<Arc<Row>>,
}

impl Newer {
    /// `rows` are all that are newer than `drained`.
    pub(super) fn new(
        all: &Arc<Rows>,
        survival: Survival,
        rows: &[Arc<Row>],
        drained: Vec<Arc<Row>>,
    ) -> Newer {
        Newer {
            all: Arc::clone(all),
            survival,
            rows: hiding(survival, rows, ASKED_MAX).to_vec(),
            drained,
        }
    }
}

/// Returns the `asked_max` oldest of those rows that hide versions.
fn hiding(survival: Survival, rows: &[Arc<Row>], asked_max: usize) -> &[Arc<Row>] {
    let forgets = |row: &Arc<Row>| survival.frees_logs() && row.state.lock().unsynced;
    let from = rows.iter().rposition(forgets).map_or(0, |at| at + 1);
    &rows[from.max(rows.len().saturating_sub(asked_max))..]
}

fn newest_in(rows: &[Arc<Row>], target: &Target<'_>) -> Result<Option<SeqNo>> {
    for row in rows {
        if let Some(seq) = row.newest_version(target)? {
            return Ok(Some(seq));
        }
    }
    Ok(None)
}

impl NewerVersions for Newer {
    fn newest(&self, keyspace: u32, key: &[u8], _hash: u64) -> Result<Option<SeqNo>> {
        newest_in(
            &self.rows,
            &Target {
                keyspace,
                key,
                seq: SEQ_MAX,
            },
        )
    }

    fn newest_of_all(&self, keyspace: u32, key: &[u8], hash: u64) -> Result<Option<SeqNo>> {
        match self.newest(keyspace, key, hash)? {
            Some(seq) => Ok(Some(seq)),
            None => newest_in(
                &self.drained,
                &Target {
                    keyspace,
                    key,
                    seq: SEQ_MAX,
                },
            ),
        }
    }

    fn count_between(&self, from: &Target<'_>, to: &Target<'_>) -> Result<u64> {
        let rows = self.rows.iter().chain(&self.drained);
        let count = |row: &Arc<Row>| row.approximate(from, to);
        rows.map(|row| Ok(count(row)?.0)).sum()
    }

    fn seq_max(&self) -> SeqNo {
        self.rows.first().map_or(0, |row| row.meta.seqs.1)
    }

    fn look_again(&mut self) -> bool {
        let last = self.drained.first().map_or(0, |row| row.meta.seqs.1);
        let all = self.all.0.lock();
        let newer = &all[..all.partition_point(|row| row.meta.seqs.1 > last)];
        let rows = hiding(self.survival, newer, usize::MAX).to_vec();
        let is_new = rows.first().map(|h| h.meta.id) != self.rows.first().map(|h| h.meta.id);
        self.rows = rows;
        is_new
    }
}
