//! Pile: a test of the contracts. Each flushed memtable becomes one immutable, sorted heap in the
//! pool. Nothing merges; the oldest heaps drain to the bottom, by ranges of keys.
//!
//! The heaps that drain together are a round. Each of its drains takes about a quarter of the keys,
//! and the last one removes the heaps. The manifest records how far the round has come.
//!
//! Invariants
//!   H1  Heaps are ordered by age: every sequence number in a newer one is above every one in an
//!       older one.
//!   H2  A heap belongs to at most one drain.
//!   H3  If the pool is memory, a log is needed until the heap that has its entries is drained. A
//!       round is one drain then: after a crash between two of them the replayed entries would be
//!       above what is drained, and those of unsynced logs would be missing.
//!   H4  The heaps of a round are the oldest ones, and equally far drained.
//!
//! CRASH: between two drains of a round, its heaps have all entries, and the bottom has some of
//! them twice for readers, who find those of the heaps first.

mod flush;
mod heap;
mod layout;
mod newer;
mod salvage;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::Result;
use crate::metrics::{LevelMetrics, Metrics};
use crate::parts::batch::Batch;
use crate::parts::iter::{Cursor, MergeCursor};
use crate::parts::key::{KeyRange, Place, Target};
use crate::parts::manifest::{Change, Edit};
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::ranges::{RangeDelete, Readable};
use crate::stages::{
    Buffer, Drain, EntryCount, Job, NewerVersions as _, Sealed, Shared, Source, Sources, Urgency,
};
use crate::types::SeqNo;

use flush::Flush;
use heap::{Heap, HeapSource};
use layout::HeapMeta;
use newer::Newer;

pub(crate) use layout::HEAP;
pub(crate) use salvage::SALVAGE;

/// The number of heaps that stay while there is space: reads search each.
const KEPT: usize = 4;
/// BOUND: the number of heaps that drain together.
const DRAINED_MAX: usize = 16;

/// All heaps, newest first.
#[derive(Default)]
struct Heaps(Mutex<Vec<Arc<Heap>>>);

impl Heaps {
    fn insert(&self, heap: Arc<Heap>) {
        let mut heaps = self.0.lock();
        let at = heaps.partition_point(|other| other.meta.seqs.1 > heap.meta.seqs.1);
        heaps.insert(at, heap);
    }
}

/// The buffer of one database.
pub(crate) struct Pile {
    shared: Arc<Shared>,
    heaps: Arc<Heaps>,
}

/// Heaps that drain together, newest first.
struct Round {
    heaps: Vec<Arc<Heap>>,
    /// The place up to which they are drained.
    drained: Option<Place>,
}

impl Round {
    /// Returns the round that has begun, or else a new one of the oldest heaps.
    fn oldest(heaps: &[Arc<Heap>], urgency: Urgency, bytes_max: u64) -> Option<Round> {
        let drained = heaps.last()?.state.lock().drained.clone();
        let due = match urgency > Urgency::None {
            true => heaps.len(),
            false => heaps.len().saturating_sub(KEPT),
        };
        let (mut bytes, mut taken) = (0, Vec::new());
        for heap in heaps.iter().rev() {
            let state = heap.state.lock();
            let belongs = match &drained {
                Some(_) => state.drained == drained,
                None => taken.len() < due.min(DRAINED_MAX),
            };
            let fits =
                drained.is_some() || taken.is_empty() || bytes + heap.meta.bytes <= bytes_max;
            if state.busy || !belongs || !fits {
                break;
            }
            bytes += heap.meta.bytes;
            taken.insert(0, Arc::clone(heap));
        }
        (!taken.is_empty()).then_some(Round {
            heaps: taken,
            drained,
        })
    }
}

impl Pile {
    /// Returns the keys of the next drain of a round.
    fn keys_of(&self, round: &Round) -> Result<KeyRange> {
        let rest = KeyRange {
            from: round.drained.clone(),
            to: None,
        };
        let largest = round.heaps.iter().max_by_key(|heap| heap.meta.entries);
        let Some(largest) = largest.filter(|_| self.shared.pool_outlives()) else {
            return Ok(rest);
        };
        let to = largest.quarter_after(&rest)?;
        Ok(KeyRange { to, ..rest })
    }
}

/// Opens every heap that the manifest names. A crash leaves nothing else.
pub(crate) fn recover(shared: &Arc<Shared>) -> Result<Pile> {
    let items = |state: &crate::parts::manifest::State| state.items().cloned().collect();
    let metas: Vec<HeapMeta> = shared.manifest.with_state(items);
    let heaps = Heaps::default();
    let mut ranges = Vec::new();
    for meta in &metas {
        let heap = Arc::new(Heap::open(meta, shared.pool.adopt(meta.span)?)?);
        ranges.extend(range_deletes(&mut *HeapSource(Arc::clone(&heap)).cursor())?);
        heaps.insert(heap);
    }
    shared.ranges.add(ranges, &Readable::later(), true);
    let (shared, heaps) = (Arc::clone(shared), Arc::new(heaps));
    Ok(Pile { shared, heaps })
}

/// Returns the range deletes of a source, which follow all other entries.
fn range_deletes(cursor: &mut dyn Cursor) -> Result<Vec<RangeDelete>> {
    let mut ranges = Vec::new();
    cursor.seek(&Target::first_of(RANGE_DELETE_BIT, &[]))?;
    while let Some(entry) = cursor.entry()? {
        ranges.push(RangeDelete::from_entry(
            entry.keyspace,
            entry.key,
            entry.seq,
            0,
        )?);
        cursor.advance()?;
    }
    Ok(ranges)
}

impl Buffer for Pile {
    fn flush_job(&self, sealed: Sealed) -> Result<Box<dyn Job>> {
        let (shared, heaps) = (Arc::clone(&self.shared), Arc::clone(&self.heaps));
        Ok(Box::new(Flush::begin(shared, heaps, sealed)))
    }

    fn drains_ranges(&self) -> bool {
        true
    }

    fn build(&self, batch: &Batch, seq: SeqNo) -> Result<Box<dyn Job>> {
        flush::build(&self.shared, &self.heaps, batch, seq)
    }

    fn next_job(&self) -> Result<Option<Box<dyn Job>>> {
        Ok(None)
    }

    fn next_drain(&self, urgency: Urgency, bytes_max: u64) -> Result<Option<Drain>> {
        let heaps = self.heaps.0.lock();
        let Some(round) = Round::oldest(&heaps, urgency, bytes_max) else {
            return Ok(None);
        };
        let keys = self.keys_of(&round)?;
        let is_last = keys.to.is_none();
        let seq_last = round.heaps[0].meta.seqs.1;
        let above = &heaps[..heaps.len() - round.heaps.len()];
        let newer = Newer::new(
            &self.heaps,
            self.shared.survival(),
            above,
            round.heaps.clone(),
        );
        let mut changes: Vec<Change> = round.heaps.iter().map(|heap| heap.drained(&keys)).collect();
        if !self.shared.pool_outlives() {
            changes.push(Change::LastSeq { seq: seq_last });
        }
        let mut entries = 0;
        for heap in &round.heaps {
            entries += heap.count(&keys)? + heap.range_deletes()?;
        }
        // All space comes back with the last drain.
        let held = round.heaps.iter().map(|heap| heap.extent.len()).sum();
        let held = if is_last { held } else { 0 };
        let cursors = round
            .heaps
            .iter()
            .map(|heap| HeapSource(Arc::clone(heap)).cursor());
        let cursor = MergeCursor::new(cursors.collect());
        // Only this drain has them now.
        let logs = round
            .heaps
            .iter()
            .map(|heap| std::mem::take(&mut heap.state.lock().logs));
        let logs: Vec<Vec<u64>> = logs.collect();
        round
            .heaps
            .iter()
            .for_each(|heap| heap.state.lock().busy = true);
        let all = Arc::clone(&self.heaps);
        let (ending, putting_back) = (round.heaps.clone(), round.heaps);
        let upto = keys.to.clone();
        Ok(Some(Drain {
            prepare: None,
            cursor,
            keys,
            settles: is_last,
            durable: newer.seq_max().max(seq_last),
            newer: Some(Box::new(newer)),
            seq_last,
            edit: Edit { changes },
            logs: logs.concat(),
            pending_free: self.shared.pending_frees.open(held, entries),
            count: EntryCount::of(entries),
            forget: Box::new(move || {
                if is_last {
                    let ended =
                        |heap: &Arc<Heap>| ending.iter().any(|it| it.meta.id == heap.meta.id);
                    return all.0.lock().retain(|heap| !ended(heap));
                }
                for heap in ending {
                    let mut state = heap.state.lock();
                    (state.busy, state.drained) = (false, upto.clone());
                }
            }),
            put_back: Some(Box::new(move || {
                for (heap, logs) in putting_back.iter().zip(logs) {
                    let mut state = heap.state.lock();
                    (state.busy, state.logs) = (false, logs);
                }
            })),
        }))
    }

    fn sources(&self) -> Sources {
        let heaps = self.heaps.0.lock();
        let sources = heaps.iter().map(|heap| HeapSource(Arc::clone(heap)));
        sources
            .map(|source| Arc::new(source) as Arc<dyn Source>)
            .collect()
    }

    fn newest(&self) -> SeqNo {
        self.heaps
            .0
            .lock()
            .first()
            .map_or(0, |heap| heap.meta.seqs.1)
    }

    fn table_count(&self) -> usize {
        self.heaps.0.lock().len()
    }

    fn table_bytes(&self) -> u64 {
        self.heaps.0.lock().iter().map(|heap| heap.meta.bytes).sum()
    }

    fn measure(&self, metrics: &mut Metrics) {
        let heaps = self.heaps.0.lock();
        if heaps.is_empty() {
            return;
        }
        metrics.levels.push(LevelMetrics {
            table_count: heaps.len() as u64,
            entry_count: heaps.iter().map(|heap| heap.meta.entries).sum(),
            bytes: heaps.iter().map(|heap| heap.extent.len()).sum(),
            ..Default::default()
        });
    }
}
