//! Space reclamation: jobs that empty extents with many dead bytes and purge dropped keyspaces.
//!
//! The live nodes of an extent are copied to the extent that drains append to, and the copies
//! replace them in the list. Then one edit removes the extent, and it returns to the pool when the
//! last view that could lead into it is gone (P4).
//!
//! CRASH: between a copy and the edit a node may exist twice. On `Dax` the list has exactly one of
//! them. A rebuild from nodes finds both and keeps one, since key and sequence number are equal.

use std::cmp::Ordering as Order;
use std::sync::Arc;

use terrace_media::{Extent, Purpose};

use super::drain_job::end_of_keyspace;
use super::layout::EXTENT;
use super::layout::HEADER_BYTES;
use super::space::ExtentUsage;
use super::{Inner, Relinker};
use crate::error::Result;
use crate::parts::expiry::Millis;
use crate::parts::key::Target;
use crate::parts::manifest::{Change, Edit};
use crate::parts::retain::{Kept, Retention};
use crate::parts::skiplist::NewNode;
use crate::parts::skiplist::fingers::{Fingers, Plan};
use crate::parts::skiplist::node::{Node, link_at};
use crate::parts::skiplist::walk::{Walk, is_dead};
use crate::stages::{Completion, Garbage, Job, JobKind, Step, Urgency};
use crate::types::EntryKind;

/// Nodes visited in one step.
const STEP_NODES: u32 = 32;
/// The percentage of dead bytes from which an extent is emptied when space is needed.
const URGENT_PERCENT: u64 = 10;

/// Returns the next job: the purge of a dropped keyspace, else the reclaim that was interrupted
/// before the database was opened, else that of the extent with the most garbage, if it is worth
/// the copying.
pub(super) fn next(inner: &Arc<Inner>, urgency: Urgency) -> Result<Option<Box<dyn Job>>> {
    // A step may hold the lock during a sync, and the scheduler must not wait for that.
    let Some(mut relinker) = inner.relinker.try_lock() else {
        return Ok(None);
    };
    if relinker.reclaiming.is_some() {
        return Ok(None);
    }
    // Tries all dropped keyspaces: a caller that gets no job asks again only after a change.
    while let Some(keyspace) = inner.shared.dropped.next(&mut relinker.purged) {
        let first = inner.list.seek(&Target::first_of(keyspace, &[]))?.node;
        if first != 0 && inner.list.node(first)?.header.keyspace == keyspace {
            // Not an extent, but it keeps other jobs from starting.
            relinker.reclaiming = Some(0);
            return Ok(Some(Box::new(Purge {
                inner: Arc::clone(inner),
                keyspace,
                entries: 0,
            })));
        }
    }
    let percent_min = match urgency {
        Urgency::Rest | Urgency::None | Urgency::Everything => {
            u64::from(inner.shared.options.bottom.garbage_percent)
        }
        Urgency::Space => {
            u64::from(inner.shared.options.bottom.garbage_percent).min(URGENT_PERCENT)
        }
    };
    let resume = relinker.resume.take();
    let resume = resume.and_then(|off| relinker.space.extents.get(&off));
    let emptiest = || {
        let worth = worth_emptying(inner, &relinker, percent_min);
        worth
            .max_by_key(|(percent, _)| *percent)
            .map(|(_, usage)| usage)
    };
    let Some(usage) = resume.or_else(emptiest) else {
        return Ok(None);
    };
    let (extent, used) = (Arc::clone(&usage.extent), usage.used);
    Ok(Some(empty(inner, &mut relinker, extent, used)))
}

/// Returns the extents with at least `percent_min` percent of garbage, each with its percentage.
fn worth_emptying<'r>(
    inner: &Inner,
    relinker: &'r Relinker,
    percent_min: u64,
) -> impl Iterator<Item = (u64, &'r ExtentUsage)> {
    // Nodes retained for snapshots count as dead, but while snapshots are held a reclaim would only
    // copy them.
    let held = inner.shared.snapshots.count() > 0;
    let horizon = inner.shared.horizon();
    let pool = inner.shared.pool.usage();
    let extents = relinker.space.extents.values();
    extents
        .filter(move |usage| usage.has_garbage(horizon) && usage.may_move(pool))
        .map(move |usage| (usage.dead_percent(held, horizon), usage))
        .filter(move |(percent, _)| *percent >= percent_min)
}

/// Returns the number of extents removed since the database was opened, and the number that are due
/// when space is not short.
pub(super) fn due(inner: &Inner) -> (u64, u64) {
    let relinker = inner.relinker.lock();
    let percent_min = u64::from(inner.shared.options.bottom.garbage_percent);
    let due = worth_emptying(inner, &relinker, percent_min).count();
    (relinker.space.removed, due as u64)
}

/// Returns a job that joins free space: it moves the last extent whose nodes fit into free space
/// nearer to the start of the pool. Free space is in pieces between extents; moving extents towards
/// the start joins the pieces behind them, until one is long enough for a memtable.
///
/// Each such job moves data towards the start, so they terminate.
pub(super) fn next_to_join(inner: &Arc<Inner>) -> Result<Option<Box<dyn Job>>> {
    let Some(mut relinker) = inner.relinker.try_lock() else {
        return Ok(None);
    };
    if relinker.reclaiming.is_some() || relinker.resume.is_some() {
        return Ok(None);
    }
    let extents = relinker.space.extents.iter().rev();
    let extents: Vec<_> = extents
        .map(|(&off, usage)| (off, Arc::clone(&usage.extent), usage.used))
        .collect();
    for (off, extent, used) in extents {
        if relinker
            .space
            .extend_below(&inner.shared, used - HEADER_BYTES as u64, off)?
        {
            return Ok(Some(empty(inner, &mut relinker, extent, used)));
        }
    }
    Ok(None)
}

/// Returns the job that empties an extent with `used` bytes in use.
fn empty(
    inner: &Arc<Inner>,
    relinker: &mut Relinker,
    extent: Arc<Extent>,
    used: u64,
) -> Box<dyn Job> {
    let off = extent.off();
    relinker.space.leave(off);
    relinker.reclaiming = Some(off);
    Box::new(Reclaim {
        retention: Retention {
            dropped: inner.shared.dropped.all(),
            ..Retention::default()
        },
        inner: Arc::clone(inner),
        at: off + HEADER_BYTES as u64,
        end: off + used,
        extent,
        entries: 0,
    })
}

/// The job that empties one extent.
struct Reclaim {
    inner: Arc<Inner>,
    retention: Retention,
    extent: Arc<Extent>,
    /// The offset of the next node.
    at: u64,
    /// The end of the extent's nodes.
    end: u64,
    /// The number of copied nodes.
    entries: u64,
}

/// The verdict on a linked node.
enum Verdict {
    /// It is copied: a reader may see it.
    Live,
    /// It is unlinked: a newer version or the drop of its keyspace hides it from every reader.
    Hidden,
    /// It is unlinked after the versions that it hides: a tombstone, or a value that has expired,
    /// older than every snapshot.
    Vanishing,
}

impl Reclaim {
    /// Copies or drops one node. Returns false if the pool is full.
    fn move_node(
        &mut self,
        inner: &Inner,
        relinker: &mut Relinker,
        node: &Node<'_>,
    ) -> Result<bool> {
        if is_dead(inner.list.region(), node.off)? {
            return Ok(true);
        }
        let target = node.target();
        let mut fingers = Fingers::at(&inner.list, &target)?;
        let following = fingers.following();
        if following != node.off {
            // Another copy of the node is in the list, or the node was never linked.
            return Ok(true);
        }
        match self.judge(inner, &fingers, node)? {
            Verdict::Live => {}
            Verdict::Hidden => {
                relinker.unlink_dead(&inner.list, &mut fingers)?;
                relinker.flush_fingers(&mut fingers);
                return Ok(true);
            }
            Verdict::Vanishing => {
                self.bury_hidden(inner, relinker, node)?;
                let mut fingers = Fingers::at(&inner.list, &target)?;
                relinker.unlink_dead(&inner.list, &mut fingers)?;
                relinker.flush_fingers(&mut fingers);
                return Ok(true);
            }
        }
        let (value, value_crc) = node.checked_value()?;
        let copy = NewNode {
            keyspace: node.header.keyspace,
            seq: node.header.seq,
            kind: node.header.kind,
            hash: node.header.hash,
            height: node.header.height,
            key: node.key,
            value,
            value_crc,
            more: false,
        };
        let height = usize::from(copy.height);
        let mut links = Vec::with_capacity(height);
        for level in 0..height {
            links.push(inner.list.next(node.off, level)?);
        }
        let Some(off) = relinker.append(inner, &copy, &links, Purpose::Reclaim)? else {
            return Ok(false);
        };
        relinker.moved.insert(off, node.off);
        for level in 0..height {
            relinker
                .slot
                .store(link_at(fingers.before(level), level), off);
        }
        let expiry = expiry_of(node)?;
        if expiry != 0 {
            relinker.space.expires(off, copy.bytes() as u64, expiry);
        }
        if relinker.space.is_retained(node.off) {
            relinker.space.retain(off, copy.bytes() as u64);
        }
        self.entries += 1;
        Ok(true)
    }

    /// Ends the job and leaves the extent to a later one, since the pool has no space for the next
    /// node. If the job waited instead, no other extent could be moved meanwhile, which may be what
    /// frees a long enough piece.
    fn give_up(&mut self, inner: &Inner, relinker: &mut Relinker) -> Result<Step> {
        relinker.commit(inner, Purpose::Reclaim)?;
        // PERSIST: the copies before the flags of their originals. Reversed, a power loss on
        // `Mapped` could lose both.
        inner.sync(relinker)?;
        // The extent stays, so its moved nodes become dead bytes of it.
        let mut originals = std::mem::take(&mut relinker.moved_dead);
        originals.extend(relinker.moved.drain().map(|(_, original)| original));
        originals.sort_unstable();
        for original in originals {
            if !relinker.has_room() {
                relinker.commit(inner, Purpose::Reclaim)?;
            }
            relinker.bury(&inner.list, original)?;
        }
        relinker.reclaiming = None;
        relinker.commit(inner, Purpose::Reclaim)?;
        let usage = inner.shared.pool.usage();
        relinker.space.refuse(self.extent.off(), usage);
        Ok(Step::Done(nothing_changed(self.entries)))
    }

    /// Returns the verdict on `node`, which follows `fingers`. Nodes that only a snapshot could see
    /// are no longer needed once it is gone.
    fn judge(&self, inner: &Inner, fingers: &Fingers, node: &Node<'_>) -> Result<Verdict> {
        let (keyspace, seq) = (node.header.keyspace, node.header.seq);
        let before = fingers.before(0);
        let newer = match before == inner.list.head() {
            true => None,
            false => Some(inner.list.node(before)?),
        };
        let newer = newer.filter(|newer| newer.same_key(keyspace, node.key));
        let newer = newer.map(|newer| newer.header.seq);
        if self.retention.is_hidden((keyspace, node.key), seq, newer) {
            return Ok(Verdict::Hidden);
        }
        let expiry = expiry_of(node)?;
        Ok(
            match self.retention.keep(node.header.kind, expiry, seq, || false) {
                // An expired value is copied too: a rebuild that finds the node and its copy may
                // keep either, so they must be equal.
                Kept::Whole | Kept::Tombstone => Verdict::Live,
                Kept::Nothing => Verdict::Vanishing,
            },
        )
    }

    /// Unlinks the versions that a tombstone hides, and makes that durable, before the tombstone
    /// itself may go: on `Mapped` a power loss could otherwise bring them back.
    fn bury_hidden(&self, inner: &Inner, relinker: &mut Relinker, node: &Node<'_>) -> Result<()> {
        let (keyspace, seq) = (node.header.keyspace, node.header.seq);
        let behind = Target {
            keyspace,
            key: node.key,
            seq: seq - 1,
        };
        let mut fingers = Fingers::at(&inner.list, &behind)?;
        // BOUND: one iteration for each version of one key.
        loop {
            let off = fingers.following();
            if off == 0 || !inner.list.node(off)?.same_key(keyspace, node.key) {
                break;
            }
            if !relinker.has_room() {
                relinker.flush_fingers(&mut fingers);
                relinker.commit(inner, Purpose::Reclaim)?;
            }
            relinker.unlink_dead(&inner.list, &mut fingers)?;
        }
        relinker.flush_fingers(&mut fingers);
        relinker.commit(inner, Purpose::Reclaim)?;
        inner.sync(relinker)
    }
}

impl Job for Reclaim {
    fn kind(&self) -> JobKind {
        JobKind::Reclaim
    }

    fn step(&mut self) -> Result<Step> {
        let inner = Arc::clone(&self.inner);
        let mut relinker = inner.relinker.lock();
        // Taken in every step: drains run between steps, and a snapshot younger than this job may
        // read the entries that they add.
        self.retention.stripes = inner.shared.snapshots.stripes();
        self.retention.horizon = inner.shared.horizon();
        for _ in 0..STEP_NODES {
            let mut walk = Walk::new(inner.list.region(), self.at, self.end);
            let Some(node) = walk.next_node()? else {
                // PERSIST: the copies before the edit that removes the extent they came from.
                inner.sync(&relinker)?;
                // PERSIST: the empty slot before the extent can be reused. Reversed, recovery would
                // repeat the last batch over its new contents.
                relinker.slot.clear()?;
                let off = self.extent.off();
                drop(relinker);
                let owner = Arc::clone(&inner);
                return Ok(Step::Done(Completion {
                    edit: Edit::of(Change::Removed {
                        owner: &EXTENT,
                        id: off,
                    }),
                    apply: Box::new(move || {
                        let mut relinker = owner.relinker.lock();
                        relinker.reclaiming = None;
                        relinker.moved.clear();
                        relinker.moved_dead.clear();
                        relinker.space.remove(off);
                    }),
                    garbage: vec![Arc::clone(&self.extent) as Garbage],
                    entries: self.entries,
                }));
            };
            if !self.move_node(&inner, &mut relinker, &node)? {
                return self.give_up(&inner, &mut relinker);
            }
            // The search for the next node starts at the head of the list, so the changes to its
            // neighbours must be in the list by then.
            relinker.commit(&inner, Purpose::Reclaim)?;
            self.at = walk.position();
        }
        Ok(Step::More)
    }
}

/// Returns the completion of a job with an empty edit.
fn nothing_changed(entries: u64) -> Completion {
    Completion {
        edit: Edit {
            changes: Vec::new(),
        },
        apply: Box::new(|| {}),
        garbage: Vec::new(),
        entries,
    }
}

/// Returns the expiry of a node, or 0 if it never expires.
pub(super) fn expiry_of(node: &Node<'_>) -> Result<Millis> {
    match node.header.kind == EntryKind::PutExpiring as u8 {
        true => Ok(node.checked_entry()?.expiry),
        false => Ok(0),
    }
}

/// The job that removes every node of a dropped keyspace from the list.
struct Purge {
    inner: Arc<Inner>,
    keyspace: u32,
    entries: u64,
}

impl Job for Purge {
    fn kind(&self) -> JobKind {
        JobKind::Reclaim
    }

    fn step(&mut self) -> Result<Step> {
        let inner = Arc::clone(&self.inner);
        let mut relinker = inner.relinker.lock();
        let mut fingers = Fingers::at(&inner.list, &Target::first_of(self.keyspace, &[]))?;
        let end = end_of_keyspace(self.keyspace);
        while relinker.has_room() {
            let off = fingers.following();
            if off == 0 || inner.list.node(off)?.compare(&end) != Order::Less {
                relinker.flush_fingers(&mut fingers);
                relinker.commit(&inner, Purpose::Reclaim)?;
                relinker.reclaiming = None;
                return Ok(Step::Done(nothing_changed(self.entries)));
            }
            relinker.unlink_dead(&inner.list, &mut fingers)?;
            self.entries += 1;
        }
        relinker.flush_fingers(&mut fingers);
        relinker.commit(&inner, Purpose::Reclaim)?;
        Ok(Step::More)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::shared;
    use super::super::{Repository, recover};
    use super::*;
    use crate::parts::codec;
    use crate::parts::skiplist::node::height_for;
    use crate::types::key_hash;

    const LEN: usize = 3000;

    fn target(key: &[u8]) -> Target<'_> {
        Target::first_of(0, key)
    }

    fn insert(inner: &Inner, key: &[u8]) {
        let mut relinker = inner.relinker.lock();
        let mut fingers = Fingers::at(&inner.list, &target(key)).unwrap();
        let value = vec![key[0]; LEN];
        let (hash, seq) = (key_hash(0, key), u64::from(key[0]));
        let node = NewNode {
            keyspace: 0,
            seq,
            kind: EntryKind::Put as u8,
            hash,
            height: height_for(hash, seq),
            key,
            value: &value,
            value_crc: codec::checksum(&value),
            more: false,
        };
        let links = fingers.links(node.height);
        let off = relinker
            .append(inner, &node, links, Purpose::Drain)
            .unwrap();
        fingers.insert_linked(off.unwrap(), node.height, &mut relinker.plan());
        relinker.entries += 1;
        relinker.flush_fingers(&mut fingers);
        relinker.commit(inner, Purpose::Drain).unwrap();
    }

    fn remove(inner: &Inner, key: &[u8]) {
        let mut relinker = inner.relinker.lock();
        let mut fingers = Fingers::at(&inner.list, &target(key)).unwrap();
        relinker.unlink_dead(&inner.list, &mut fingers).unwrap();
        relinker.flush_fingers(&mut fingers);
        relinker.commit(inner, Purpose::Drain).unwrap();
    }

    fn keys(inner: &Inner) -> Vec<u8> {
        let mut keys = Vec::new();
        let mut off = inner.list.next(inner.list.head(), 0).unwrap();
        while off != 0 {
            let node = inner.list.node(off).unwrap();
            assert_eq!(node.checked_value().unwrap().0, [node.key[0]; LEN]);
            keys.push(node.key[0]);
            off = inner.list.next(off, 0).unwrap();
        }
        keys
    }

    fn run(mut job: Box<dyn Job>) -> Completion {
        loop {
            match job.step().unwrap() {
                Step::More => {}
                Step::Done(done) => return done,
                _ => panic!("the job waits"),
            }
        }
    }

    /// A reclaim that finds no space for a node ends. The originals of the nodes that it has moved
    /// are marked dead, so that no rebuild brings them back after their copies have died.
    #[test]
    fn a_reclaim_without_a_place_gives_up() {
        let shared = shared();
        let Repository { inner } = recover::recover(&shared, false, &mut |_, _| {}).unwrap();
        for key in 1..=5 {
            insert(&inner, &[key]);
        }
        remove(&inner, &[1]);
        assert_eq!(inner.relinker.lock().space.extents.len(), 1);
        let first = *inner.relinker.lock().space.extents.keys().next().unwrap();

        // Space for two of the four nodes.
        let piece = 2 * (LEN as u64 + 200) + HEADER_BYTES as u64;
        let kept = shared.pool.alloc(piece).unwrap();
        let mut blockers = Vec::new();
        while let Ok(blocker) = shared.pool.alloc(4096) {
            blockers.push(blocker);
        }
        drop(kept);
        let job = next(&inner, Urgency::Space).unwrap().unwrap();
        assert!(
            next(&inner, Urgency::Space).unwrap().is_none(),
            "one at a time"
        );
        let done = run(job);
        assert!(done.edit.changes.is_empty());
        assert_eq!(keys(&inner), [2, 3, 4, 5]);
        let dead = inner.relinker.lock().space.extents[&first].dead;
        assert!(
            (3 * LEN as u64..4 * LEN as u64).contains(&dead),
            "{dead} bytes are dead"
        );
        let job = next(&inner, Urgency::Space).unwrap();
        assert!(job.is_none(), "the pool has no longer free span");

        // A rebuild takes every node that is not marked.
        let region = inner.list.region();
        let end = first + inner.relinker.lock().space.extents[&first].used;
        let mut walk = Walk::new(region, first + HEADER_BYTES as u64, end);
        let mut unmarked = Vec::new();
        while let Some(node) = walk.next_node().unwrap() {
            if !is_dead(region, node.off).unwrap() {
                unmarked.push(node.key[0]);
            }
        }
        assert_eq!(unmarked, [4, 5]);

        drop(blockers);
        let done = run(next(&inner, Urgency::Space).unwrap().unwrap());
        assert_eq!(done.entries, 2);
        (done.apply)();
        assert!(!inner.relinker.lock().space.extents.contains_key(&first));
        assert_eq!(keys(&inner), [2, 3, 4, 5]);
    }
}
