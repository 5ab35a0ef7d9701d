//! The rows that are newer than a drain: versions there hide what it carries.
//!
//! What is hidden is not drained, and its log is not needed any more. So if the pool is memory, the
//! entries that hide it must be in logs that were synced when the row was made.

use std::cell::Cell;
use std::sync::Arc;

use super::Rows;
use super::row::Row;
use crate::error::Result;
use crate::parts::key::Target;
use crate::stages::{NewerVersions, Shared, Survival};
use crate::types::{SEQ_MAX, SeqNo};

/// BOUND: the number of rows that are searched until the disk is full.
pub(super) const ASKED_MAX: usize = 32;

/// The rows next newer than those that drain, and these; newest first.
pub(super) struct Newer {
    all: Arc<Rows>,
    shared: Arc<Shared>,
    rows: Vec<Near>,
    drained: Vec<Near>,
}

/// A row, and the index at which the last search in it ended: keys come in order, so that the next
/// one ends close to it.
struct Near(Arc<Row>, Cell<u64>);

impl Near {
    fn all(rows: &[Arc<Row>]) -> Vec<Near> {
        let near = |row: &Arc<Row>| Near(Arc::clone(row), Cell::new(row.bounds().0));
        rows.iter().map(near).collect()
    }
}

impl Newer {
    /// `rows` are all that are newer than `drained`.
    pub(super) fn new(
        all: &Arc<Rows>,
        shared: &Arc<Shared>,
        rows: &[Arc<Row>],
        drained: &[Arc<Row>],
    ) -> Newer {
        Newer {
            all: Arc::clone(all),
            shared: Arc::clone(shared),
            rows: Near::all(hiding(shared.survival(), rows, ASKED_MAX)),
            drained: Near::all(drained),
        }
    }
}

/// Returns the `asked_max` oldest of those rows that hide versions.
fn hiding(survival: Survival, rows: &[Arc<Row>], asked_max: usize) -> &[Arc<Row>] {
    let forgets = |row: &Arc<Row>| survival.frees_logs() && row.state.lock().unsynced;
    let from = rows.iter().rposition(forgets).map_or(0, |at| at + 1);
    &rows[from.max(rows.len().saturating_sub(asked_max))..]
}

fn newest_in(rows: &[Near], target: &Target<'_>) -> Result<Option<SeqNo>> {
    for Near(row, near) in rows {
        let at = row.position_near(target, near.get())?;
        near.set(at);
        if let Some(entry) = row.entry_with_key(at, target.keyspace, target.key)? {
            return Ok(Some(entry.view.seq));
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
        let count = |Near(row, _): &Near| row.approximate(from, to);
        rows.map(|row| Ok(count(row)?.0)).sum()
    }

    fn seq_max(&self) -> SeqNo {
        self.rows.first().map_or(0, |Near(row, _)| row.meta.seqs.1)
    }

    fn look_again(&mut self) -> bool {
        let last = (self.drained.first()).map_or(0, |Near(row, _)| row.meta.seqs.1);
        let all = self.all.0.lock();
        let newer = &all[..all.partition_point(|row| row.meta.seqs.1 > last)];
        // A row that is being ingested hides nothing before it is visible.
        let visible = self.shared.sequencer.visible();
        let newer = &newer[newer.partition_point(|row| row.meta.seqs.1 > visible)..];
        let rows = Near::all(hiding(self.shared.survival(), newer, usize::MAX));
        let newest = |rows: &[Near]| rows.first().map(|Near(row, _)| row.meta.id);
        let is_new = newest(&rows) != newest(&self.rows);
        self.rows = rows;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Matrix, ROW, recover};
    use super::*;
    use crate::parts::batch::Batch;
    use crate::parts::manifest::item::Owners;
    use crate::stages::{Buffer as _, Step, fixture};
    use crate::types::EntryKind;

    const OWNERS: Owners = &[&ROW];

    /// Adds a row with one entry.
    fn add_row(matrix: &Matrix, seq: SeqNo) {
        let mut batch = Batch::default();
        batch.push(EntryKind::Put, 0, b"key", b"value");
        let mut job = matrix.build(&batch, seq).unwrap();
        // BOUND: the job writes one entry.
        loop {
            match job.step().unwrap() {
                Step::More => {}
                Step::Done(completion) => return (completion.apply)(),
                _ => panic!("the pool is nearly empty"),
            }
        }
    }

    /// A row that is being ingested hides nothing before it is visible: readers would see neither
    /// version.
    #[test]
    fn an_invisible_row_hides_nothing() {
        let shared = fixture::shared(OWNERS);
        let matrix = recover(&shared).unwrap();
        add_row(&matrix, 1);
        shared.sequencer.start_after(1);
        let drained = matrix.rows.0.lock().clone();
        let mut newer = Newer::new(&matrix.rows, &shared, &[], &drained);
        add_row(&matrix, 5);
        assert!(!newer.look_again());
        assert_eq!(newer.newest(0, b"key", 0).unwrap(), None);
        assert_eq!(newer.newest_of_all(0, b"key", 0).unwrap(), Some(1));
        shared.sequencer.start_after(5);
        assert!(newer.look_again());
        assert_eq!(newer.newest(0, b"key", 0).unwrap(), Some(5));
    }
}
