//! The drain: entries of a table are copied into the repository, in key order, and the entries that
//! they supersede are unlinked (MioDB, 4.4: lazy-copy compaction, which updates them in place).
//!
//! CRASH: an interrupted drain restarts. Entries that it had copied are found by key and sequence
//! number and not copied twice; the table is removed from the manifest only at the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_media::Purpose;

use super::Inner;
use super::hidden::Hidden;
use super::layout::HEADER_BYTES;
use crate::canary::failpoint;
use crate::error::Result;
use crate::parts::codec;
use crate::parts::expiry::{Value, layout};
use crate::parts::key::Target;
use crate::parts::ranges::RangeDelete;
use crate::parts::retain::{Kept, Retention};
use crate::parts::skiplist::NewNode;
use crate::parts::skiplist::fingers::Fingers;
use crate::parts::skiplist::node::height_for;
use crate::stages::{Completion, Drain, Job, JobKind, Step};
use crate::types::{EntryKind, SeqNo, key_hash};

/// The entries and bytes of one step.
const STEP_ENTRIES: u32 = 64;
const STEP_BYTES: usize = 256 * 1024;

/// One drain.
pub(super) struct DrainJob {
    inner: Arc<Inner>,
    drain: Option<Drain>,
    retention: Retention,
    /// The minimum number of dropped keyspaces that `retention` knows.
    dropped_before: usize,
    /// Range deletes that are in the list now.
    brought: Vec<RangeDelete>,
    fingers: Option<(Fingers, u64)>,
    /// The key being drained, and the sequence number of the last version of it that was kept.
    key: Vec<u8>,
    keyspace: u32,
    kept: Option<SeqNo>,
    started: bool,
    /// Whether the last step found no space.
    refused: bool,
    /// The number up to which range deletes were durable at the last look.
    looked_at: Option<SeqNo>,
    /// The walk that removes from the list the entries that newer tables hide, if it is running.
    hidden: Option<Hidden>,
    entries: u64,
}

/// The outcome of placing one entry.
enum Placed {
    Yes(usize),
    /// The pool has no space for a node of this many bytes.
    PoolFull(usize),
}

impl DrainJob {
    pub(super) fn begin(inner: Arc<Inner>, drain: Drain) -> DrainJob {
        // Before its first entry comes in.
        inner.seq_bound.raise(drain.seq_last);
        DrainJob {
            // Before the list of dropped keyspaces, which has these and maybe more.
            dropped_before: inner.shared.dropped.count(),
            retention: Retention {
                stripes: inner.shared.snapshots.stripes(),
                dropped: inner.shared.dropped.all(),
                ranges: Vec::from_iter(inner.shared.ranges.applicable(drain.durable, None)),
                horizon: inner.shared.horizon(),
            },
            brought: Vec::new(),
            inner,
            drain: Some(drain),
            fingers: None,
            key: Vec::new(),
            keyspace: 0,
            kept: None,
            started: false,
            refused: false,
            looked_at: None,
            hidden: None,
            entries: 0,
        }
    }

    /// Checks again which entries need not be copied: deletes that have come since may be all that
    /// frees space in a full pool.
    fn look_again(&mut self, drain: &mut Drain) {
        let shared = &self.inner.shared;
        let has_more = drain.newer.as_mut().is_some_and(|it| it.look_again());
        if has_more || self.looked_at.is_none() {
            self.hidden = Some(Hidden::begin());
        }
        // PERSIST: of the range deletes above the table only those in synced logs. A crash could
        // lose any other one without restoring the entries that it had hidden.
        let looked_at = shared.ranges.durable();
        self.looked_at = Some(looked_at);
        let durable = drain.durable.max(looked_at);
        // After that: a later snapshot includes each of these range deletes. It includes all of the
        // table's, as does every snapshot since the drain began.
        self.retention.stripes = shared.snapshots.stripes();
        self.retention.ranges = Vec::from_iter(shared.ranges.applicable(durable, None));
    }

    /// Drains for one step. Returns true when the source is empty, and `None` while it waits for
    /// space.
    fn drain_some(&mut self, drain: &mut Drain) -> Result<Option<bool>> {
        if std::mem::take(&mut self.refused) {
            self.look_again(drain);
        }
        let inner = Arc::clone(&self.inner);
        let mut relinker = inner.relinker.lock();
        if let Some(hidden) = &mut self.hidden {
            if hidden.step(&inner, &mut relinker, drain, &self.retention)? {
                self.hidden = None;
            }
            return Ok(Some(false));
        }
        // Another job may have changed the list since the last step.
        if self
            .fingers
            .as_ref()
            .is_some_and(|(_, batch)| *batch != relinker.batches)
        {
            self.fingers = None;
        }
        let mut bytes = 0;
        let mut awaited = 0;
        let mut finished = false;
        let mut count = 0;
        loop {
            if !relinker.has_room() {
                self.commit(&inner, &mut relinker)?;
            }
            let Some(entry) = drain.cursor.entry()? else {
                self.finish_key(&inner, &mut relinker)?;
                finished = true;
                break;
            };
            let next_key = self.kept.is_none()
                || entry.keyspace != self.keyspace
                || entry.key != self.key.as_slice();
            if next_key {
                self.finish_key(&inner, &mut relinker)?;
                if count >= STEP_ENTRIES || bytes >= STEP_BYTES {
                    break;
                }
            }
            match self.place(&inner, &mut relinker, drain)? {
                Placed::Yes(size) => bytes += size,
                Placed::PoolFull(size) => {
                    awaited = size as u64 + HEADER_BYTES as u64;
                    break;
                }
            }
            count += 1;
            drain.advance()?;
        }
        self.commit(&inner, &mut relinker)?;
        if let Some((_, batch)) = &mut self.fingers {
            *batch = relinker.batches;
        }
        self.entries += u64::from(count);
        inner.awaited.store(awaited, Ordering::Relaxed);
        self.refused = awaited > 0;
        // The engine runs a waiting job when more range deletes become durable. Those that became
        // durable since the last look would be missed, so the next step checks them first.
        let waits = self.refused && Some(inner.shared.ranges.durable()) <= self.looked_at;
        Ok(if waits { None } else { Some(finished) })
    }

    /// Puts the entry under the cursor into the list, unless no reader can see it.
    fn place(
        &mut self,
        inner: &Inner,
        relinker: &mut super::Relinker,
        drain: &Drain,
    ) -> Result<Placed> {
        let Some(entry) = drain.cursor.entry()? else {
            return Ok(Placed::Yes(0));
        };
        let key = (entry.keyspace, entry.key);
        // `finish_key` has cleared `kept` unless the entry is another version of the same key.
        if self.retention.is_hidden(key, entry.seq, self.kept) {
            return Ok(Placed::Yes(0));
        }
        let hash = key_hash(entry.keyspace, entry.key);
        // A version that a newer table hides would be copied only to be superseded. The entries
        // that it supersedes here stay until the newer version comes, which hides those as well.
        let newer = drain.newest(entry.keyspace, entry.key, hash)?;
        if self.retention.is_superseded(newer, entry.seq) {
            return Ok(Placed::Yes(0));
        }
        let Value {
            bytes: value,
            expiry,
        } = drain.cursor.value()?;
        // Nothing is below the repository.
        let kept = self.retention.keep(entry.kind, expiry, entry.seq, || false);
        let is_delete = entry.kind == EntryKind::Delete as u8;
        let expired = kept != Kept::Whole && !is_delete;
        failpoint!(ExpiredDropped if expired => return Ok(Placed::Yes(0)));
        failpoint!(DrainTombstone if expired || is_delete => return Ok(Placed::Yes(0)));
        if entry.kind == EntryKind::RangeDelete as u8 {
            failpoint!(RangeDropped => return Ok(Placed::Yes(0)));
            let off = inner.list.head();
            self.brought
                .push(RangeDelete::from_entry(key.0, key.1, entry.seq, off)?);
        }
        let mut size = 0;
        if !relinker.has_room() {
            self.commit(inner, relinker)?;
        }
        if kept != Kept::Nothing {
            let target = entry.target();
            let fingers = fingers_at(&mut self.fingers, relinker, inner, &target)?;
            let following = fingers.following();
            let present = following != 0
                && inner.list.node(following)?.compare(&target) == std::cmp::Ordering::Equal;
            if present {
                fingers.pass(&inner.list, &mut relinker.plan())?;
            } else {
                let with_expiry;
                let (kind, value) = match (expired, expiry) {
                    (true, _) => (EntryKind::Delete as u8, [].as_slice()),
                    (false, 0) => (entry.kind, value),
                    (false, _) => {
                        with_expiry = layout::encode(expiry, value);
                        (EntryKind::PutExpiring as u8, with_expiry.as_slice())
                    }
                };
                let node = NewNode {
                    keyspace: entry.keyspace,
                    seq: entry.seq,
                    kind,
                    hash,
                    height: height_for(hash, entry.seq),
                    key: entry.key,
                    value,
                    value_crc: codec::checksum(value),
                    more: false,
                };
                size = node.bytes();
                let links = fingers.links(node.height);
                let Some(off) = relinker.append(inner, &node, links, Purpose::Drain)? else {
                    return Ok(Placed::PoolFull(size));
                };
                fingers.insert_linked(off, node.height, &mut relinker.plan());
                relinker.entries += 1;
                if expiry != 0 && !expired {
                    relinker.space.expires(off, size as u64, expiry);
                }
                if expired || is_delete {
                    // Kept for a snapshot only: counts as garbage from the start.
                    relinker.space.retain(off, size as u64);
                }
            }
        }
        if self.kept.is_none() {
            self.keyspace = entry.keyspace;
            self.key.clear();
            self.key.extend_from_slice(entry.key);
        }
        self.kept = Some(entry.seq);
        Ok(Placed::Yes(size))
    }

    /// Removes the older versions of the drained key from the list.
    fn finish_key(&mut self, inner: &Inner, relinker: &mut super::Relinker) -> Result<()> {
        let Some(mut newer) = self.kept.take() else {
            return Ok(());
        };
        // From directly after the last version drained.
        let after = Target {
            keyspace: self.keyspace,
            key: &self.key,
            seq: newer - 1,
        };
        let fingers = fingers_at(&mut self.fingers, relinker, inner, &after)?;
        // BOUND: one iteration for each version of one key.
        loop {
            let off = fingers.following();
            if off == 0 {
                return Ok(());
            }
            let node = inner.list.node(off)?;
            if !node.same_key(self.keyspace, &self.key) {
                return Ok(());
            }
            if self.retention.is_superseded(Some(newer), node.header.seq) {
                if !relinker.has_room() {
                    relinker.flush_fingers(fingers);
                    relinker.commit(inner, Purpose::Drain)?;
                }
                relinker.unlink_dead(&inner.list, fingers)?;
            } else {
                // A snapshot reads it. It is garbage once that snapshot is gone, and a reclaim will
                // then drop it.
                newer = node.header.seq;
                relinker.space.retain(off, node.header.node_bytes() as u64);
                if !relinker.has_room() {
                    relinker.flush_fingers(fingers);
                    relinker.commit(inner, Purpose::Drain)?;
                }
                fingers.pass(&inner.list, &mut relinker.plan())?;
            }
        }
    }

    /// Makes the planned changes.
    fn commit(&mut self, inner: &Inner, relinker: &mut super::Relinker) -> Result<()> {
        if let Some((fingers, _)) = &mut self.fingers {
            relinker.flush_fingers(fingers);
        }
        relinker.commit(inner, Purpose::Drain)
    }
}

/// Returns the job's fingers, moved to `target`; they are searched again if another job has changed
/// the list.
fn fingers_at<'f>(
    fingers: &'f mut Option<(Fingers, u64)>,
    relinker: &mut super::Relinker,
    inner: &Inner,
    target: &Target<'_>,
) -> Result<&'f mut Fingers> {
    let (fingers, _) = match fingers {
        Some(fingers) => {
            fingers
                .0
                .advance(&inner.list, target, &mut relinker.plan())?;
            fingers
        }
        None => fingers.insert((Fingers::at(&inner.list, target)?, relinker.batches)),
    };
    Ok(fingers)
}

impl Job for DrainJob {
    fn kind(&self) -> JobKind {
        JobKind::Drain
    }

    fn step(&mut self) -> Result<Step> {
        let Some(mut drain) = self.drain.take() else {
            return Ok(Step::More);
        };
        if !self.started {
            drain.start()?;
            self.started = true;
        }
        match self.drain_some(&mut drain)? {
            None => {
                self.drain = Some(drain);
                return Ok(Step::Wait);
            }
            Some(false) => {
                self.drain = Some(drain);
                return Ok(Step::More);
            }
            Some(true) => drain.finish()?,
        }
        let inner = Arc::clone(&self.inner);
        {
            let mut relinker = inner.relinker.lock();
            // PERSIST: the copies and the dead flags before the edit that removes the table.
            // Reversed, a power loss on `Mapped` could lose entries, or bring deleted keys back.
            inner.sync(&relinker)?;
            // The drain has left out the keyspaces that it knew of.
            relinker.purged = relinker.purged.min(self.dropped_before);
        }
        let (forget, seq_last) = (drain.forget, drain.seq_last);
        let brought = std::mem::take(&mut self.brought);
        Ok(Step::Done(Completion {
            edit: drain.edit,
            apply: Box::new(move || {
                // Added here before they are trimmed above, and not trimmed before the entries that
                // they cover are forgotten there (D1).
                let readable = inner.shared.readable();
                inner.ranges.add(brought, &readable);
                forget();
                inner.ranges.drained(seq_last);
                inner.shared.ranges.trim(seq_last, &readable);
            }),
            garbage: Vec::new(),
            entries: self.entries,
        }))
    }
}

/// Returns the end of a keyspace in the sort order.
pub(super) fn end_of_keyspace(keyspace: u32) -> Target<'static> {
    Target::first_of(keyspace + 1, &[])
}
