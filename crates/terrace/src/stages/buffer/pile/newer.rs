//! The heaps that are newer than a drain: versions there hide what it carries.
//!
//! What is hidden is not drained, and its log is not needed any more. So if the pool is memory, the
//! entries that hide it must be in logs that were synced when the heap was made.

use std::sync::Arc;

use super::Heaps;
use super::heap::{Heap, HeapSource};
use crate::error::Result;
use crate::parts::key::Target;
use crate::stages::{NewerVersions, Source, Survival};
use crate::types::{SEQ_MAX, SeqNo};

/// BOUND: the number of heaps that are searched until the disk is full.
pub(super) const ASKED_MAX: usize = 32;

/// The heaps next newer than those that drain, and these; newest first.
pub(super) struct Newer {
    all: Arc<Heaps>,
    survival: Survival,
    heaps: Vec<Arc<Heap>>,
    drained: Vec<Arc<Heap>>,
}

impl Newer {
    /// `heaps` are all that are newer than `drained`.
    pub(super) fn new(
        all: &Arc<Heaps>,
        survival: Survival,
        heaps: &[Arc<Heap>],
        drained: Vec<Arc<Heap>>,
    ) -> Newer {
        Newer {
            all: Arc::clone(all),
            survival,
            heaps: hiding(survival, heaps, ASKED_MAX).to_vec(),
            drained,
        }
    }
}

/// Returns the `asked_max` oldest of those heaps that hide versions.
fn hiding(survival: Survival, heaps: &[Arc<Heap>], asked_max: usize) -> &[Arc<Heap>] {
    let forgets = |heap: &Arc<Heap>| survival.frees_logs() && heap.state.lock().unsynced;
    let from = heaps.iter().rposition(forgets).map_or(0, |at| at + 1);
    &heaps[from.max(heaps.len().saturating_sub(asked_max))..]
}

fn newest_in(heaps: &[Arc<Heap>], target: &Target<'_>) -> Result<Option<SeqNo>> {
    for heap in heaps {
        if let Some(seq) = heap.newest_version(target)? {
            return Ok(Some(seq));
        }
    }
    Ok(None)
}

impl NewerVersions for Newer {
    fn newest(&self, keyspace: u32, key: &[u8], _hash: u64) -> Result<Option<SeqNo>> {
        newest_in(
            &self.heaps,
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
        let heaps = self.heaps.iter().chain(&self.drained);
        let count = |heap: &Arc<Heap>| HeapSource(Arc::clone(heap)).approximate(from, to);
        heaps.map(|heap| Ok(count(heap)?.0)).sum()
    }

    fn seq_max(&self) -> SeqNo {
        self.heaps.first().map_or(0, |heap| heap.meta.seqs.1)
    }

    fn look_again(&mut self) -> bool {
        let last = self.drained.first().map_or(0, |heap| heap.meta.seqs.1);
        let all = self.all.0.lock();
        let newer = &all[..all.partition_point(|heap| heap.meta.seqs.1 > last)];
        let heaps = hiding(self.survival, newer, usize::MAX).to_vec();
        let is_new = heaps.first().map(|h| h.meta.id) != self.heaps.first().map(|h| h.meta.id);
        self.heaps = heaps;
        is_new
    }
}
