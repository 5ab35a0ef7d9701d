//! Application of range deletes to the repository.
//!
//! A drain brings a range delete like any other entry. When no snapshot is older than it, every
//! view includes it and all entries above the repository are newer, a sweep unlinks the nodes that
//! it covers, in bounded steps, and then the range delete itself.
//!
//! CRASH: an interrupted sweep restarts: the range delete is still in the list, and nodes that were
//! unlinked are marked dead (P3).

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::Purpose;

use super::Inner;
use crate::canary::failpoint;
use crate::error::Result;
use crate::parts::key::Target;
use crate::parts::manifest::Edit;
use crate::parts::ranges::layout::{self, RANGE_DELETE_BIT};
use crate::parts::ranges::{Fragments, Keep, RangeDelete, Readable};
use crate::parts::skiplist::fingers::Fingers;
use crate::stages::{Completion, Job, JobKind, Step};
use crate::types::SeqNo;

/// Nodes visited in one step.
const STEP_NODES: u32 = 128;

/// The range deletes in the repository.
#[derive(Default)]
pub(super) struct Swept(Mutex<Held>);

#[derive(Default)]
struct Held {
    ranges: Vec<RangeDelete>,
    /// The same range deletes, as readers query them.
    fragments: Option<Arc<Fragments>>,
    /// Everything up to this number is in the repository and nowhere above it.
    drained: SeqNo,
    sweeping: bool,
}

impl Held {
    fn changed(&mut self, readable: &Readable) {
        let ranges = (!self.ranges.is_empty()).then(|| self.ranges.clone());
        let keep = Keep::Readable(readable);
        self.fragments = ranges.map(|ranges| Arc::new(Fragments::new(ranges, keep)));
    }
}

impl Swept {
    /// Creates the set from the range deletes found when the repository was opened.
    pub(super) fn over(ranges: Vec<RangeDelete>, drained: SeqNo) -> Swept {
        let mut held = Held {
            ranges,
            drained,
            ..Held::default()
        };
        held.changed(&Readable::later());
        Swept(Mutex::new(held))
    }

    /// Returns the range deletes as readers query them.
    pub(super) fn fragments(&self) -> Option<Arc<Fragments>> {
        self.0.lock().fragments.clone()
    }

    /// Adds the range deletes of a drain; once, though a restarted drain brings them again.
    pub(super) fn add(&self, brought: Vec<RangeDelete>, readable: &Readable) {
        if brought.is_empty() {
            return;
        }
        let mut held = self.0.lock();
        held.ranges.extend(brought);
        held.ranges.sort_by_key(|range| range.seq);
        held.ranges.dedup_by_key(|range| range.seq);
        held.changed(readable);
    }

    /// Notes that a drain of everything up to a number has ended.
    pub(super) fn drained(&self, upto: SeqNo) {
        let mut held = self.0.lock();
        held.drained = held.drained.max(upto);
    }
}

/// Returns the range deletes that can be applied now.
fn ready(inner: &Inner, held: &Held) -> Vec<RangeDelete> {
    let stripes = inner.shared.snapshots.stripes();
    let upto = held.drained.min(inner.shared.ranges.seen_by_all_upto());
    let ready = |range: &&RangeDelete| range.seq <= upto && !stripes.any_before(range.seq);
    held.ranges.iter().filter(ready).cloned().collect()
}

/// Returns whether a sweep of range deletes up to `seq` runs or is due.
pub(super) fn is_due(inner: &Inner, seq: SeqNo) -> bool {
    let held = inner.ranges.0.lock();
    let is_older = |range: &RangeDelete| range.seq <= seq;
    held.ranges.iter().any(is_older) && (held.sweeping || ready(inner, &held).iter().any(is_older))
}

/// Returns the sweep of all range deletes that can be applied now.
pub(super) fn next(inner: &Arc<Inner>) -> Result<Option<Box<dyn Job>>> {
    let mut held = inner.ranges.0.lock();
    if held.ranges.is_empty() || held.sweeping {
        return Ok(None);
    }
    // A step that holds it may be syncing, and the scheduler must not wait for that.
    let Some(mut relinker) = inner.relinker.try_lock() else {
        return Ok(None);
    };
    // A reclaim that a crash has interrupted goes first.
    if relinker.reclaiming.is_some() || relinker.resume.is_some() {
        return Ok(None);
    }
    let ranges = ready(inner, &held);
    if ranges.is_empty() {
        return Ok(None);
    }
    held.sweeping = true;
    // Nothing else may move nodes meanwhile.
    relinker.reclaiming = Some(0);
    Ok(Some(Box::new(Sweep {
        inner: Arc::clone(inner),
        at: ranges[0].begin.clone(),
        ranges,
        current: 0,
        entries: 0,
        done: false,
    })))
}

/// The job that applies some range deletes, one after the other.
struct Sweep {
    inner: Arc<Inner>,
    ranges: Vec<RangeDelete>,
    /// The current range delete, and the key from which it is still to be applied.
    current: usize,
    at: Vec<u8>,
    entries: u64,
    done: bool,
}

impl Sweep {
    /// Unlinks the next nodes that the current range delete covers. Returns true if they were the
    /// last.
    fn apply_some(&mut self, inner: &Inner, relinker: &mut super::Relinker) -> Result<bool> {
        let range = &self.ranges[self.current];
        failpoint!(SweepSkipped => return Ok(true));
        let from = Target::first_of(range.keyspace, &self.at);
        let mut fingers = Fingers::at(&inner.list, &from)?;
        let mut finished = false;
        let mut looked_at = 0;
        // BOUND: the rest of a key, and STEP_NODES.
        loop {
            if !relinker.has_room() {
                relinker.flush_fingers(&mut fingers);
                relinker.commit(inner, Purpose::Reclaim)?;
            }
            let off = fingers.following();
            if off == 0 {
                finished = true;
                break;
            }
            let node = inner.list.node(off)?;
            if !range.has(node.header.keyspace, node.key) {
                finished = true;
                break;
            }
            looked_at += 1;
            if self.at != node.key {
                self.at.clear();
                self.at.extend_from_slice(node.key);
                if looked_at > STEP_NODES {
                    break;
                }
            }
            if node.header.seq < range.seq {
                relinker.unlink_dead(&inner.list, &mut fingers)?;
                self.entries += 1;
            } else {
                fingers.pass(&inner.list, &mut relinker.plan())?;
            }
        }
        relinker.flush_fingers(&mut fingers);
        relinker.commit(inner, Purpose::Reclaim)?;
        Ok(finished)
    }

    /// Removes the range delete itself, when all that it covers is dead.
    fn finish(&mut self, inner: &Inner, relinker: &mut super::Relinker) -> Result<()> {
        let range = &self.ranges[self.current];
        let key = layout::encode(&range.begin, &range.end);
        let place = Target {
            keyspace: range.keyspace | RANGE_DELETE_BIT,
            key: &key,
            seq: range.seq,
        };
        // PERSIST: the dead flags before the range delete goes. Reversed, a power loss on `Mapped`
        // could bring back the keys that it deleted.
        inner.sync(relinker)?;
        let mut fingers = Fingers::at(&inner.list, &place)?;
        let off = fingers.following();
        if off != 0 && inner.list.node(off)?.compare(&place).is_eq() {
            relinker.unlink_dead(&inner.list, &mut fingers)?;
            relinker.flush_fingers(&mut fingers);
            relinker.commit(inner, Purpose::Reclaim)?;
        }
        Ok(())
    }

    /// Forgets the applied range deletes, as part of a completion or of the drop of the job.
    fn end(inner: &Inner, applied: &[RangeDelete]) {
        let readable = inner.shared.readable();
        let gone: HashSet<SeqNo> = applied.iter().map(|range| range.seq).collect();
        let mut held = inner.ranges.0.lock();
        held.ranges.retain(|range| !gone.contains(&range.seq));
        held.changed(&readable);
        held.sweeping = false;
    }
}

impl Job for Sweep {
    fn kind(&self) -> JobKind {
        JobKind::Reclaim
    }

    fn step(&mut self) -> Result<Step> {
        let inner = Arc::clone(&self.inner);
        let mut relinker = inner.relinker.lock();
        if !self.apply_some(&inner, &mut relinker)? {
            return Ok(Step::More);
        }
        self.finish(&inner, &mut relinker)?;
        self.current += 1;
        if let Some(next) = self.ranges.get(self.current) {
            self.at.clone_from(&next.begin);
            return Ok(Step::More);
        }
        relinker.reclaiming = None;
        self.done = true;
        drop(relinker);
        let ranges = std::mem::take(&mut self.ranges);
        Ok(Step::Done(Completion {
            edit: Edit::default(),
            apply: Box::new(move || Sweep::end(&inner, &ranges)),
            garbage: Vec::new(),
            entries: self.entries,
        }))
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        if !self.done {
            // Cancelled: the other range deletes wait for another sweep.
            self.inner.relinker.lock().reclaiming = None;
            Sweep::end(&self.inner, &self.ranges[..self.current]);
        }
    }
}
