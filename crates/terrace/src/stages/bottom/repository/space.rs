//! The repository's space: extents that nodes are appended to, and the dead bytes of each.
//!
//! `used` and `dead` of an extent are stored in its header and change in the same batches as the
//! links that make them true, so neither disagrees with the list after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use terrace_media::{AllocError, Extent, Medium, PoolUsage, Purpose};

use super::layout::{self, DEAD_AT, EXPIRING_AT, ExtentMeta, HEADER_BYTES, USED_AT};
use crate::error::{Error, Result};
use crate::parts::expiry::Millis;
use crate::parts::manifest::{Change, Edit};
use crate::parts::skiplist::fingers::Plan;
use crate::stages::Shared;

/// One extent of the repository.
pub(super) struct ExtentUsage {
    pub(super) extent: Arc<Extent>,
    pub(super) used: u64,
    pub(super) dead: u64,
    /// Bytes of `dead` that are still linked because a snapshot reads them.
    retained: u64,
    /// The bytes of nodes that expire, dead ones included, and the last expiry.
    expiring: u64,
    expiry_last: Millis,
    /// The free bytes of the pool, and the longest free piece, when it had no place for a node of
    /// this extent.
    refused: Option<(u64, u64)>,
    /// Whether header words differ from the last planned ones.
    used_changed: bool,
    dead_changed: bool,
    expiring_changed: bool,
}

/// All extents by offset, and the one that nodes are appended to.
#[derive(Default)]
pub(super) struct Space {
    pub(super) extents: BTreeMap<u64, ExtentUsage>,
    current: Option<u64>,
    /// The number of extents removed since the database was opened.
    pub(super) removed: u64,
    /// Extents whose header words are not yet planned.
    changed: Vec<u64>,
    /// Linked nodes that are counted as dead, because they are kept for a snapshot only. Unknown
    /// after a restart: then their extent is emptied a little early.
    retained: BTreeSet<u64>,
}

impl Space {
    /// Takes an extent found at recovery, with the words from its header.
    pub(super) fn adopt(&mut self, extent: Arc<Extent>, used: u64, dead: u64, expiring: u64) {
        let off = extent.off();
        let (expiring, expiry_last) = layout::decode_expiring(expiring);
        let usage = ExtentUsage {
            extent,
            used,
            dead,
            retained: 0,
            expiring,
            expiry_last,
            refused: None,
            used_changed: false,
            dead_changed: false,
            expiring_changed: false,
        };
        let emptier = match self.current.and_then(|at| self.extents.get(&at)) {
            Some(current) => usage.free() > current.free(),
            None => true,
        };
        self.extents.insert(off, usage);
        if emptier {
            self.current = Some(off);
        }
    }

    /// Returns whether nodes are being appended to the extent at `off`.
    pub(super) fn is_current(&self, off: u64) -> bool {
        self.current == Some(off)
    }

    /// Stops appending to the current extent if it is the one at `off`.
    pub(super) fn leave(&mut self, off: u64) {
        if self.is_current(off) {
            self.current = None;
        }
    }

    /// Allocates `bytes` for a node and returns their offset, or `None` if the pool is full. A new
    /// extent is durable and in the manifest when this returns.
    pub(super) fn claim(
        &mut self,
        shared: &Shared,
        bytes: usize,
        purpose: Purpose,
    ) -> Result<Option<u64>> {
        let bytes = bytes as u64;
        let fits = |usage: &ExtentUsage| usage.free() >= bytes;
        let large = bytes > shared.options.bottom.extent_bytes / 4;
        let at = match self.current {
            Some(at) if self.extents.get(&at).is_some_and(fits) => at,
            // A large node gets its own extent and the current one stays open for others.
            _ => match self.extend(shared, bytes, large, purpose)? {
                Some(at) => at,
                None => return Ok(None),
            },
        };
        let Some(usage) = self.extents.get_mut(&at) else {
            return Ok(None);
        };
        let off = at + usage.used;
        usage.used += bytes;
        if !usage.used_changed {
            usage.used_changed = true;
            self.changed.push(at);
        }
        Ok(Some(off))
    }

    /// Writes `bytes` to `off`, where they were claimed, to be fenced by the caller.
    pub(super) fn stream(&self, off: u64, bytes: &[u8], purpose: Purpose) -> Result<()> {
        let usage = self.extents.range(..=off).next_back();
        let claim = usage.and_then(|(at, usage)| usage.extent.claim(off - at, bytes.len()));
        let Some(mut claim) = claim else {
            return Err(Error::corruption(format!(
                "the repository extent at pool offset {off:#x} is shorter than its header claims; \
                 restore the database from a copy, or recover the readable data with \"terrace \
                 repair\""
            )));
        };
        claim.write_streaming(0, bytes, purpose);
        Ok(())
    }

    /// Allocates an extent from the pool and names it in the manifest.
    fn extend(
        &mut self,
        shared: &Shared,
        node_bytes: u64,
        large: bool,
        purpose: Purpose,
    ) -> Result<Option<u64>> {
        let alone = node_bytes + HEADER_BYTES as u64;
        let mut wanted = if large {
            alone
        } else {
            shared.options.bottom.extent_bytes.max(alone)
        };
        // Free space may be in smaller pieces, between tables and logs that go only when this drain
        // goes on.
        // BOUND: halved until only the node itself fits.
        let extent = loop {
            match shared.alloc_to_move(wanted, None) {
                Ok(extent) => break extent,
                Err(AllocError::Full { .. }) if wanted > alone => wanted = (wanted / 2).max(alone),
                Err(AllocError::Full { .. }) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        };
        self.add(shared, extent, purpose).map(|off| {
            if !large {
                self.current = Some(off);
            }
            Some(off)
        })
    }

    /// Ensures that nodes of `bytes` can be appended before the offset `limit`. Returns false if
    /// there is no free place for them.
    pub(super) fn extend_below(&mut self, shared: &Shared, bytes: u64, limit: u64) -> Result<bool> {
        let has_room = |usage: &ExtentUsage| usage.free() >= bytes;
        let current = self.current.filter(|&at| at < limit);
        if current.is_some_and(|at| self.extents.get(&at).is_some_and(has_room)) {
            return Ok(true);
        }
        let alone = bytes + HEADER_BYTES as u64;
        for wanted in [shared.options.bottom.extent_bytes.max(alone), alone] {
            match shared.alloc_to_move(wanted, Some(limit)) {
                Ok(extent) => {
                    self.current = Some(self.add(shared, extent, Purpose::Reclaim)?);
                    return Ok(true);
                }
                Err(AllocError::Full { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(false)
    }

    /// Adds an empty extent to the repository: it is durable and in the manifest when its offset is
    /// returned.
    fn add(&mut self, shared: &Shared, extent: Arc<Extent>, purpose: Purpose) -> Result<u64> {
        shared.pool.prefault(&extent);
        let synced = shared.pool.medium() == Medium::Mapped;
        let header = layout::encode_extent(extent.off(), extent.len(), synced);
        if let Some(mut claim) = extent.claim(0, header.len()) {
            claim.write_streaming(0, &header, purpose);
        }
        let region = extent.region();
        // PERSIST: the header before the edit that names the extent. Reversed, recovery could find
        // an extent without a header.
        region.fence(purpose);
        region.sync(extent.off(), HEADER_BYTES).map_err(|e| {
            Error::new(
                crate::error::ErrorKind::Io,
                format!("cannot sync a new extent: {e}"),
            )
            .because(e)
        })?;
        let added = Change::added(ExtentMeta::Nodes(extent.span()));
        shared.manifest.commit(Edit::of(added))?;
        let off = extent.off();
        let used = HEADER_BYTES as u64;
        let usage = ExtentUsage {
            extent,
            used,
            dead: 0,
            retained: 0,
            expiring: 0,
            expiry_last: 0,
            refused: None,
            used_changed: false,
            dead_changed: false,
            expiring_changed: false,
        };
        self.extents.insert(off, usage);
        Ok(off)
    }

    /// Records the expiry of a node of `bytes` at `off` that was just placed.
    pub(super) fn expires(&mut self, off: u64, bytes: u64, expiry: Millis) {
        let Some((_, usage)) = self.room_of(off) else {
            return;
        };
        usage.count_expiring(bytes, expiry);
        // Its `used` has changed, so its words are planned anyway.
        usage.expiring_changed = true;
    }

    /// Counts a node of `bytes` at `off`, just unlinked, as dead.
    pub(super) fn bury(&mut self, off: u64, bytes: u64) {
        let counted = self.retained.remove(&off);
        let Some((at, usage)) = self.room_of(off) else {
            return;
        };
        if counted {
            usage.retained = usage.retained.saturating_sub(bytes);
            return;
        }
        usage.dead += bytes;
        if !std::mem::replace(&mut usage.dead_changed, true) {
            self.changed.push(at);
        }
    }

    /// Counts a node as dead that stays linked while a snapshot reads it.
    pub(super) fn retain(&mut self, off: u64, bytes: u64) {
        if !self.retained.insert(off) {
            return;
        }
        let Some((at, usage)) = self.room_of(off) else {
            return;
        };
        usage.dead += bytes;
        usage.retained += bytes;
        if !std::mem::replace(&mut usage.dead_changed, true) {
            self.changed.push(at);
        }
    }

    /// Notes that the pool had no place for a node of the extent at `off`.
    pub(super) fn refuse(&mut self, off: u64, pool: PoolUsage) {
        if let Some(usage) = self.extents.get_mut(&off) {
            usage.refused = Some((pool.free, pool.largest_free));
        }
    }

    /// Returns whether the node at `off` is kept for a snapshot only.
    pub(super) fn is_retained(&self, off: u64) -> bool {
        self.retained.contains(&off)
    }

    fn room_of(&mut self, off: u64) -> Option<(u64, &mut ExtentUsage)> {
        self.extents
            .range_mut(..=off)
            .next_back()
            .map(|(&at, usage)| (at, usage))
    }

    /// Forgets the extent at `off`, whose nodes have all been moved or unlinked.
    pub(super) fn remove(&mut self, off: u64) {
        self.removed += 1;
        if let Some(usage) = self.extents.remove(&off) {
            let inside: Vec<u64> = self
                .retained
                .range(off..off + usage.extent.len())
                .copied()
                .collect();
            for node in inside {
                self.retained.remove(&node);
            }
        }
        self.changed.retain(|&at| at != off);
    }

    /// Returns the number of stores that `plan_words` will plan.
    pub(super) fn words_changed(&self) -> usize {
        3 * self.changed.len()
    }

    /// Plans the header words that have changed.
    pub(super) fn plan_words(&mut self, plan: &mut impl Plan) {
        for at in self.changed.drain(..) {
            let Some(usage) = self.extents.get_mut(&at) else {
                continue;
            };
            if std::mem::take(&mut usage.used_changed) {
                plan.store(at + USED_AT, usage.used);
            }
            if std::mem::take(&mut usage.dead_changed) {
                plan.store(at + DEAD_AT, usage.dead);
            }
            if std::mem::take(&mut usage.expiring_changed) {
                let word = layout::encode_expiring(usage.expiring, usage.expiry_last);
                plan.store(at + EXPIRING_AT, word);
            }
        }
    }
}

impl ExtentUsage {
    fn free(&self) -> u64 {
        self.extent.len() - self.used
    }

    /// Returns whether there may be a place for each of its nodes.
    pub(super) fn may_move(&self, usage: PoolUsage) -> bool {
        self.refused
            .is_none_or(|(free, longest)| usage.free > free || usage.largest_free > longest)
    }

    /// Resets the count of nodes that expire.
    pub(super) fn forget_expiring(&mut self) {
        (self.expiring, self.expiry_last) = (0, 0);
    }

    /// Counts a node that expires; returns the word for it.
    pub(super) fn count_expiring(&mut self, bytes: u64, expiry: Millis) -> u64 {
        self.expiring += bytes;
        self.expiry_last = self.expiry_last.max(expiry);
        layout::encode_expiring(self.expiring, self.expiry_last)
    }

    /// Returns whether a reclaim would free anything.
    pub(super) fn has_garbage(&self, horizon: Millis) -> bool {
        self.dead > 0 || self.has_expired(horizon)
    }

    /// Returns whether all nodes that expire have expired.
    fn has_expired(&self, horizon: Millis) -> bool {
        self.expiring > 0 && self.expiry_last <= horizon
    }

    /// Returns the percentage of node bytes that a reclaim would free; nodes that snapshots retain
    /// stay if any is `held`. Nodes that expire count once the last of them has.
    pub(super) fn dead_percent(&self, held: bool, horizon: Millis) -> u64 {
        let nodes = self.used - HEADER_BYTES as u64;
        let dead = if held {
            self.dead.saturating_sub(self.retained)
        } else {
            self.dead
        };
        let dead = match self.has_expired(horizon) {
            true => (dead + self.expiring).min(nodes),
            false => dead,
        };
        (dead * 100).checked_div(nodes).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::shared;
    use super::super::recover;
    use super::*;

    /// If no extent of the usual size fits any more, smaller ones are taken, down to the node.
    #[test]
    fn free_space_in_small_pieces_is_used() {
        const PIECE: u64 = 12 << 10;
        let shared = shared();
        assert!(shared.options.bottom.extent_bytes > 2 * PIECE);
        // Holds the head's extent, which would be free otherwise.
        let _repository = recover::recover(&shared, false, &mut |_, _| {}).unwrap();
        let pool = &shared.pool;
        let mut pieces = Vec::new();
        while let Ok(piece) = pool.alloc(PIECE) {
            pieces.push(piece);
        }
        while pool.alloc(4096).map(|e| pieces.push(e)).is_ok() {}
        let mut space = Space::default();
        let mut claim = |bytes| space.claim(&shared, bytes, Purpose::Drain).unwrap();
        assert_eq!(claim(500), None, "the pool is full");
        let mut n = 0;
        pieces.retain(|_| {
            n += 1;
            n > 20 || n % 2 == 0
        });
        assert!(pool.alloc(2 * PIECE).is_err(), "no piece is larger");
        assert_eq!(
            claim(PIECE as usize),
            None,
            "a node with its header is larger"
        );
        let claimed = (0..1000).take_while(|_| claim(500).is_some()).count();
        assert!(claimed > 200, "{claimed} nodes fit ten pieces");
        assert_eq!(claim(500), None, "the pool is full again");
    }
}
