//! Repository: one huge skip list in the pool, the last place of every key (MioDB, 4.4).
//!
//! A drain copies entries in key order to the end of the repository's extents and links them. A new
//! version replaces the old one, and a tombstone vanishes with the entries that it deletes, unless
//! a snapshot still reads the old version. Space is reclaimed by extents: when half of one is dead,
//! its live nodes are copied and the extent returns to the pool, so the repository stays within
//! about twice its live data for values of any size.
//!
//! Invariants
//!   P1  Links, flags and header words change only through the one redo slot, under `relinker`.
//!   P2  A node is copied and durable before a link leads to it.
//!   P3  A superseded node is marked dead in the same batch that unlinks it, so that no rebuild
//!       brings it back after the tombstone that deleted it is gone.
//!   P4  An extent is freed only when no view that could lead into it is left.
//!
//! Bytes: layout.rs. After a crash: recover.rs.

#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod drain_job;
#[cfg(test)]
mod fixture;
mod fresh;
mod hidden;
mod layout;
mod reclaim;
pub(crate) mod recover;
mod salvage;
mod space;
mod sweep;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_media::{Extent, Medium, Purpose};

use crate::canary::failpoint;
use crate::error::{Error, Result};
use crate::metrics::{BottomMetrics, Metrics};
use crate::parts::codec::DecodeError;
use crate::parts::iter::{Cursor, ListCursor};
use crate::parts::key::Target;
use crate::parts::latch::Latch;
use crate::parts::ranges::{Fragments, SeqBound};
use crate::parts::redo::RedoSlot;
use crate::parts::skiplist::fingers::{Fingers, Plan};
use crate::parts::skiplist::layout::{HEIGHT_MAX, LINK_DEAD};
use crate::parts::skiplist::node::{link_at, link_word};
use crate::parts::skiplist::{NewNode, SkipList};
use crate::stages::{
    Bottom, Census, Drain, IngestWriter, Job, ListReads, Lookup, Need, Probe, RangeRequest, Read,
    ReadStats, Shared, Source, Sources, Takes, Urgency,
};
use crate::types::{EntryKind, SeqNo};

use fresh::{Fresh, FreshPlan};
pub(crate) use layout::EXTENT;
pub(crate) use salvage::SALVAGE;

use layout::{ENTRIES_AT, RECLAIMING_AT, SYNCED_AT};
use space::Space;
use sweep::Swept;

/// The maximum stores of one change: links that the fingers leave on the way and links of a tower,
/// flags, header words; and the stores that the fingers still owe when the batch ends.
const CHANGE_STORES: usize = 3 * HEIGHT_MAX + 4;

/// The bottom of one database.
pub(crate) struct Repository {
    inner: Arc<Inner>,
}

/// The state that jobs and views share.
pub(super) struct Inner {
    shared: Arc<Shared>,
    list: SkipList,
    latch: Latch,
    seq_bound: Arc<SeqBound>,
    ranges: Swept,
    /// The requested compactions, each with the count of removed extents at which it ends, or
    /// `None` until range deletes have been applied.
    requests: Mutex<Vec<(Weak<RangeRequest>, Option<u64>)>>,
    /// The bytes of the extent that a drain waits for, if the pool has no space for it.
    awaited: AtomicU64,
    /// LOCK: taken before the latch; held for one step of a job.
    relinker: Mutex<Relinker>,
    /// The head extent, whose header counts the entries.
    head: Arc<Extent>,
}

/// The right to change the repository, held for one step of a job.
pub(super) struct Relinker {
    slot: RedoSlot,
    space: Space,
    entries: u64,
    /// Nodes that the batch will link, not yet written.
    fresh: Fresh,
    /// The number of batches that have changed the list: fingers of an earlier batch are stale.
    batches: u64,
    /// The extent that a reclaim job is emptying, until its removal is durable.
    reclaiming: Option<u64>,
    /// The last value of the head's word for it.
    reclaiming_word: u64,
    /// An extent that was being emptied when the database stopped.
    resume: Option<u64>,
    /// Copies of the nodes of that extent, and the offsets of their originals. The originals are
    /// not marked dead, since the copies may not be durable yet; so killing a copy before the
    /// extent is removed must kill its original too (P3).
    moved: HashMap<u64, u64>,
    /// Originals of copies that are dead already.
    moved_dead: Vec<u64>,
    /// The number of dropped keyspaces that were searched for since the last drain that may have
    /// brought nodes of them.
    purged: usize,
}

impl Relinker {
    /// Makes the planned changes under the latch.
    fn commit(&mut self, inner: &Inner, purpose: Purpose) -> Result<()> {
        if self.slot.is_empty() && self.space.words_changed() == 0 {
            return Ok(());
        }
        let copied = self.fresh.write(&self.space, purpose)?;
        self.space.plan_words(&mut self.slot);
        self.slot.store(inner.head.off() + ENTRIES_AT, self.entries);
        let reclaiming = self.reclaiming.unwrap_or(0);
        if reclaiming != self.reclaiming_word {
            self.slot
                .store(inner.head.off() + RECLAIMING_AT, reclaiming);
            self.reclaiming_word = reclaiming;
        }
        self.slot.charge(purpose);
        self.batches += 1;
        if copied {
            // PERSIST: the nodes before the batch that links them (P2). With one fence for both, a
            // crash before it could keep the batch and lose a node.
            inner.list.region().fence(purpose);
        }
        let _relinking = inner.latch.relink();
        self.slot.commit()
    }

    /// Returns the number of entries in the list, and of the last batch; `None` while changes are
    /// planned.
    fn at_rest(&self) -> Option<(u64, u64)> {
        let rests = self.slot.is_empty() && self.space.words_changed() == 0;
        rests.then_some((self.entries, self.batches))
    }

    /// Returns whether another change fits in the batch.
    fn has_room(&self) -> bool {
        self.slot
            .has_room(CHANGE_STORES + self.space.words_changed() + 2)
    }

    /// Allocates space for `node` and plans its bytes, with `links`. Returns its offset, or `None`
    /// if the pool is full.
    fn append(
        &mut self,
        inner: &Inner,
        node: &NewNode<'_>,
        links: &[u64],
        purpose: Purpose,
    ) -> Result<Option<u64>> {
        let off = self.space.claim(&inner.shared, node.bytes(), purpose)?;
        if let Some(off) = off {
            self.fresh.push(off, node, links);
        }
        Ok(off)
    }

    /// Plans all stores that `fingers` owe.
    fn flush_fingers(&mut self, fingers: &mut Fingers) {
        fingers.flush(&mut self.plan());
    }

    /// Returns the plan for fingers: links of nodes that are not yet written change in their bytes.
    fn plan(&mut self) -> FreshPlan<'_> {
        FreshPlan {
            fresh: &mut self.fresh,
            slot: &mut self.slot,
        }
    }

    /// Marks the node at `off` dead, after it was copied.
    fn bury(&mut self, list: &SkipList, off: u64) -> Result<(), DecodeError> {
        let bytes = list.node(off)?.header.node_bytes() as u64;
        let link = link_word(list.region(), off, 0)?.load(Ordering::Acquire);
        self.slot.store(link_at(off, 0), link | LINK_DEAD);
        self.space.bury(off, bytes);
        Ok(())
    }

    /// Unlinks the node at the current place of `fingers`, and marks it dead (P3).
    fn unlink_dead(&mut self, list: &SkipList, fingers: &mut Fingers) -> Result<(), DecodeError> {
        let off = fingers.following();
        let bytes = list.node(off)?.header.node_bytes() as u64;
        let link = link_word(list.region(), off, 0)?.load(Ordering::Acquire);
        fingers.unlink(list)?;
        failpoint!(DeadFlag skips self.slot.store(link_at(off, 0), link | LINK_DEAD));
        if let Some(original) = self.moved.remove(&off) {
            let link = link_word(list.region(), original, 0)?.load(Ordering::Acquire);
            self.slot.store(link_at(original, 0), link | LINK_DEAD);
            self.moved_dead.push(original);
        }
        self.space.bury(off, bytes);
        self.entries = self.entries.saturating_sub(1);
        Ok(())
    }
}

impl Inner {
    /// Makes the nodes and flags of every extent durable against power loss on `Mapped`; other
    /// media do not need it.
    fn sync(&self, relinker: &Relinker) -> Result<()> {
        if self.shared.pool.medium() != Medium::Mapped {
            return Ok(());
        }
        let failed = |e: std::io::Error| {
            Error::new(
                crate::error::ErrorKind::Io,
                format!("cannot sync the repository: {e}"),
            )
            .because(e)
        };
        let region = self.list.region();
        for usage in relinker.space.extents.values() {
            region
                .sync(usage.extent.off(), usage.used as usize)
                .map_err(failed)?;
        }
        for (off, usage) in &relinker.space.extents {
            let Some(word) = region.word(off + SYNCED_AT) else {
                continue;
            };
            if word.swap(usage.used, Ordering::Release) != usage.used {
                // PERSIST: the nodes before the word that vouches for them. Reversed, a rebuild
                // would take pages that were never written for damage.
                region.sync(*off, layout::HEADER_BYTES).map_err(failed)?;
            }
        }
        region
            .sync(self.head.off(), self.head.len() as usize)
            .map_err(failed)
    }
}

impl ListReads for Inner {
    fn list(&self) -> &SkipList {
        &self.list
    }

    #[inline]
    fn begin<'a>(&self, probe: &Probe<'a>, stats: &mut ReadStats) -> Option<Target<'a>> {
        stats.sources += 1;
        // No frontier is needed here. An unlinked node keeps its links (S3), and they lead to nodes
        // that were in the list when it was unlinked; a key linked after it since then came from a
        // table of the reader's view, which still has it, or was written after the read began.
        Some(probe.target_below_front())
    }
}

impl Source for Inner {
    fn get(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>> {
        self.read_one(probe, stats)
    }

    fn multi_get(&self, reads: &mut [Read<'_>], stats: &mut ReadStats) -> Result<()> {
        self.read_groups(reads, stats)
    }

    fn cursor(&self) -> Box<dyn Cursor> {
        let cursor = ListCursor::new(self.list.clone(), Some(self.latch.clone()));
        Box::new(cursor.with_ages(&self.seq_bound))
    }

    fn approximate(&self, from: &Target<'_>, to: &Target<'_>) -> Result<(u64, u64)> {
        let relinker = self.relinker.lock();
        let entries = self.list.count_between(from, to)?;
        let live: u64 = relinker
            .space
            .extents
            .values()
            .map(|r| r.used.saturating_sub(r.dead))
            .sum();
        let mean = live.checked_div(relinker.entries).unwrap_or(0);
        Ok((
            entries.min(relinker.entries),
            entries.min(relinker.entries) * mean,
        ))
    }

    fn verify(&self, census: &mut Census, visited: &mut dyn FnMut(u64)) {
        let before = self.relinker.lock().at_rest();
        let problems = &mut census.problems;
        let (mut entries, mut tombstones, mut bytes) = (0, 0, 0);
        let pending = Cell::new(0);
        let walked = self.list.check(
            &self.latch,
            &mut |node, value| {
                entries += 1;
                bytes += node.header.node_bytes() as u64;
                pending.set(pending.get() + node.header.node_bytes() as u64);
                tombstones +=
                    u64::from(EntryKind::from_raw(node.header.kind) == Some(EntryKind::Delete));
                if let Err(problem) = value {
                    problems.push(format!("repository: {problem}"));
                }
            },
            &mut || visited(pending.take()),
        );
        if let Err(problem) = walked {
            problems.push(format!("repository: {problem}"));
        } else if let Some((expected, _)) = before
            && before == self.relinker.lock().at_rest()
            && entries != expected
        {
            // A lost link looks like the end of the list.
            problems.push(format!(
                "repository: {entries} of its {expected} entries are linked"
            ));
        }
        census.entries += entries;
        census.tombstones += tombstones;
        census.bytes += bytes;
    }

    fn verify_bytes(&self) -> u64 {
        let relinker = self.relinker.lock();
        relinker
            .space
            .extents
            .values()
            .map(|r| r.used.saturating_sub(r.dead))
            .sum()
    }
}

impl Bottom for Repository {
    fn drain_bytes_max(&self) -> u64 {
        // Drained data is in the pool twice until the drain ends.
        self.inner.shared.options.table_bytes_max()
    }

    fn takes(&self) -> Takes {
        Takes::Tables
    }

    fn drain_job(&self, drain: Drain) -> Result<Box<dyn Job>> {
        Ok(Box::new(drain_job::DrainJob::begin(
            Arc::clone(&self.inner),
            drain,
        )))
    }

    fn ingest_writer(&self, _seq: SeqNo) -> Option<Box<dyn IngestWriter>> {
        // Entries are linked one by one, and plain reads see each immediately.
        None
    }

    fn next_job(&self, urgency: Urgency) -> Result<Option<Box<dyn Job>>> {
        failpoint!(ReclaimSkipped => return Ok(None));
        match sweep::next(&self.inner)? {
            Some(job) => Ok(Some(job)),
            None => reclaim::next(&self.inner, urgency),
        }
    }

    fn awaits_piece(&self) -> bool {
        let awaited = self.inner.awaited.load(Ordering::Relaxed);
        let usage = self.inner.shared.pool.usage();
        (usage.largest_free + 1..=usage.free).contains(&awaited)
    }

    fn join_space(&self) -> Result<Option<Box<dyn Job>>> {
        failpoint!(ReclaimSkipped => return Ok(None));
        reclaim::next_to_join(&self.inner)
    }

    fn compact_range(&self, request: &Arc<RangeRequest>) {
        let mut requests = self.inner.requests.lock();
        requests.retain(|(asked, _)| asked.strong_count() > 0);
        requests.push((Arc::downgrade(request), None));
    }

    fn is_compacted(&self, request: &RangeRequest) -> bool {
        // One list has no depth, but versions that a drain has replaced or deleted are still in it.
        if sweep::is_due(&self.inner, request.seq) {
            return false;
        }
        let (removed, due) = reclaim::due(&self.inner);
        let mut requests = self.inner.requests.lock();
        let asked = requests
            .iter_mut()
            .find(|(asked, _)| std::ptr::eq(asked.as_ptr(), request));
        // BOUND: under writes there is always another extent to be emptied, so the request waits
        // for as many as there were when all entries deleted before had been removed.
        let until = asked.map(|(_, until)| *until.get_or_insert(removed + due));
        due == 0 || until.is_none_or(|until| removed >= until)
    }

    fn is_drained(&self) -> bool {
        // A drain puts every node in its final place.
        true
    }

    fn is_outside_pool(&self) -> bool {
        false
    }

    fn need(&self) -> Need {
        // The free space of the pool slows writers already, and accounts for this work.
        Need::default()
    }

    fn ranges(&self) -> Option<Arc<Fragments>> {
        self.inner.ranges.fragments()
    }

    fn sources(&self) -> Sources {
        vec![Arc::clone(&self.inner) as Arc<dyn Source>]
    }

    fn measure(&self, metrics: &mut Metrics) {
        let relinker = self.inner.relinker.lock();
        let mut bottom = BottomMetrics::default();
        for usage in relinker.space.extents.values() {
            bottom.extent_count += 1;
            bottom.bytes += usage.extent.len();
            bottom.used_bytes += usage.used;
            bottom.dead_bytes += usage.dead;
        }
        metrics.bottom = bottom;
    }
}
