//! This file is what every stage stands on: the pool, the manifest, numbers, time, counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use terrace_media::{Clock, Medium, Pool};

use crate::error::Result;
use crate::metrics::{Counters, LifeMetrics, OpCounter};
use crate::options::Options;
use crate::parts::expiry::{Millis, Time};
use crate::parts::manifest::{Change, Edit, Manifest, Totals};
use crate::parts::memory::Memory;
use crate::parts::pace::Pace;
use crate::parts::ranges::layout::SHADOW;
use crate::parts::ranges::{LiveRanges, Readable};
use crate::parts::redo::RedoArea;
use crate::parts::sequence::Sequencer;
use crate::parts::snapshots::SnapshotList;

use super::Credits;

/// What every stage stands on.
pub(crate) struct Ground {
    pub(crate) pool: Pool,
    pub(crate) manifest: Manifest,
    pub(crate) redo: Arc<RedoArea>,
    pub(crate) sequencer: Sequencer,
    pub(crate) snapshots: SnapshotList,
    pub(crate) dropped: DroppedKeyspaces,
    pub(crate) ranges: LiveRanges,
    pub(crate) time: Time,
    pub(crate) counters: Counters,
    /// What was written before the database was opened.
    pub(crate) totals_before: Totals,
    /// How fast background work may write table files.
    pub(crate) pace: Pace,
    /// What drains in progress will give back to the pool.
    pub(crate) credits: Credits,
    /// What flushes in progress have written of memtables, where these become table files.
    pub(crate) flush_credits: Credits,
    /// What holds the parts of the database within its budget.
    pub(crate) memory: Arc<Memory>,
    pub(crate) options: Options,
    ids: AtomicU64,
}

impl Ground {
    /// The ground of a database whose manifest is open.
    pub(crate) fn new(
        pool: Pool,
        manifest: Manifest,
        redo: Arc<RedoArea>,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Ground {
        let (ids, last_seq) = manifest.with_state(|state| (state.next_id.max(1), state.last_seq));
        let (totals_before, time) = manifest.with_state(|state| (state.totals, state.time));
        let sequencer = Sequencer::default();
        sequencer.start_after(last_seq);
        Ground {
            pool,
            manifest,
            redo,
            sequencer,
            snapshots: SnapshotList::default(),
            dropped: DroppedKeyspaces::default(),
            ranges: LiveRanges::default(),
            time: Time::new(clock, time),
            counters: Counters::default(),
            totals_before,
            pace: Pace::new(options.bottom.leveled.write_rate_max),
            credits: Credits::default(),
            flush_credits: Credits::default(),
            memory: Memory::of(&options),
            options,
            ids: AtomicU64::new(ids),
        }
    }

    /// What may be read from now on.
    pub(crate) fn readable(&self) -> Readable {
        Readable::of(&self.snapshots, &self.sequencer)
    }

    /// What was written in the database's life.
    pub(crate) fn totals(&self) -> Totals {
        self.totals_before.plus(Totals {
            user: self.counters.sum(OpCounter::UserBytes),
            pool: self.pool.counts().total().bytes,
            log_files: self.counters.sum(OpCounter::LogFileBytes),
            table_files: self.counters.sum(OpCounter::TableFileBytes),
        })
    }

    /// Writes down what was written, and the time that was told, if either is more than is written down.
    pub(crate) fn note_totals(&self) -> Result<()> {
        let totals = self.totals();
        let known = self
            .manifest
            .with_state(|state| (state.totals.user, state.time));
        if known == (totals.user, self.time.told()) {
            return Ok(());
        }
        let mut changes = vec![Change::Totals(totals)];
        changes.extend(self.time_told());
        Ok(self.manifest.commit(Edit { changes })?)
    }

    /// Whatever expires up to this time is absent for every reader there is or will be.
    pub(crate) fn horizon(&self) -> Millis {
        self.snapshots.horizon(&self.time)
    }

    /// The change that keeps the time, if there is any.
    pub(crate) fn time_told(&self) -> Option<Change> {
        let time = self.time.told();
        (time > 0).then_some(Change::Time { time })
    }

    /// An id for a log and the table that it becomes; never given out twice.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether what is in the pool outlives the process. Else it is memory, and what must survive is in
    /// files.
    pub(crate) fn pool_outlives(&self) -> bool {
        self.pool.medium() != Medium::Dram
    }

    /// Gives out no id below `least` any more.
    pub(crate) fn skip_ids(&self, least: u64) {
        self.ids.fetch_max(least, Ordering::Relaxed);
    }
}

impl From<Totals> for LifeMetrics {
    fn from(totals: Totals) -> LifeMetrics {
        LifeMetrics {
            user_written_bytes: totals.user,
            pool_bytes: totals.pool,
            log_file_bytes: totals.log_files,
            table_file_bytes: totals.table_files,
        }
    }
}

/// Keyspaces that were dropped and whose entries nobody may read again.
#[derive(Default)]
pub(crate) struct DroppedKeyspaces(ArcSwap<Vec<u32>>);

impl DroppedKeyspaces {
    /// Whether `keyspace` was dropped.
    #[inline]
    pub(crate) fn contains(&self, keyspace: u32) -> bool {
        self.0.load().binary_search(&keyspace).is_ok()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Arc<Vec<u32>> {
        self.0.load_full()
    }

    /// Adds one, and with it its range deletes.
    pub(crate) fn insert(&self, keyspace: u32) {
        self.0.rcu(|ids| {
            let mut ids = Vec::clone(ids);
            for id in [keyspace, keyspace | SHADOW] {
                if let Err(at) = ids.binary_search(&id) {
                    ids.insert(at, id);
                }
            }
            ids
        });
    }
}
