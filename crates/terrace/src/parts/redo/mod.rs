//! Redo area: the only way to change words of the pool that are already reachable.
//!
//! Relinking one node takes several 8-byte stores, and a crash between two of them would lose the
//! rest of a list. So stores are collected in batches. A batch is written to a slot and made
//! durable, then it is applied, then the changed lines are made durable, and only then may the next
//! batch replace it. Recovery applies the batches in the slots, repeatedly if it is interrupted: a
//! batch contains final values, so applying it twice has the same effect as once. (MioDB's
//! insertion mark, section 4.7, records one node; a batch records some hundred, with two fences in
//! all.)
//!
//! Invariants
//!   R1  A word belongs to one slot at a time: a job owns the lists that it changes, and its slot
//!       is cleared before any other job may change them.
//!   R2  No store of a batch is made before the whole batch is durable.
//!   R3  A batch is overwritten only after all its stores are durable.
//!
//! Bytes: layout.rs. After a crash: `recover`.

#[cfg(feature = "decoders")]
pub(crate) mod decoders;
pub(crate) mod layout;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use terrace_media::{Extent, Medium, Pool, Purpose};

use crate::canary::{self, Canary, failpoint};
use crate::error::{Error, Result};
use crate::parts::skiplist::fingers::Plan;

use layout::{SLOT_BYTES, SLOT_COUNT, STORES_MAX};

/// The unit of flushing in bytes.
const LINE: u64 = 64;

/// All redo slots of a pool.
pub(crate) struct RedoArea {
    extent: Arc<Extent>,
    volatile: bool,
    free: Mutex<Vec<usize>>,
}

/// The slot of one job; returns to the area when dropped.
pub(crate) struct RedoSlot {
    area: Arc<RedoArea>,
    index: usize,
    generation: u64,
    /// Stores to nodes that readers reach through `stores`; made first.
    prepared: Vec<(u64, u64)>,
    stores: Vec<(u64, u64)>,
    /// A word of each line that a batch changes.
    lines: Vec<u64>,
    bytes: Vec<u8>,
    purpose: Purpose,
}

impl RedoArea {
    /// The size of the area in the pool.
    pub(crate) const BYTES: u64 = (SLOT_BYTES * SLOT_COUNT) as u64;

    /// Creates an empty area in `extent`, durable on return.
    pub(crate) fn create(pool: &Pool, extent: Arc<Extent>) -> Result<Arc<RedoArea>> {
        let area = RedoArea::over(pool, extent);
        area.clear_all()?;
        Ok(area)
    }

    /// Opens the area and completes the batches that a crash has left in it. Returns their number.
    ///
    /// CRASH: a slot contains (a) no batch or part of one: none of its stores was made (R2); (b) a
    /// complete batch: any subset of its stores was made, and all are made here; (c) a batch that
    /// had been applied: making its stores again changes nothing (R1, R3).
    pub(crate) fn recover(pool: &Pool, extent: Arc<Extent>) -> Result<(Arc<RedoArea>, u64)> {
        let area = RedoArea::over(pool, extent);
        let region = area.extent.region().clone();
        // PERSIST: the contents of the slots before any store is repeated. A process crash leaves a
        // batch in the caches; if power fails while it is applied, the medium must have all of it.
        region.flush(area.extent.off(), SLOT_BYTES * SLOT_COUNT, Purpose::Merge);
        region.fence(Purpose::Merge);
        let mut applied = 0;
        for index in 0..SLOT_COUNT {
            let off = area.slot_off(index);
            let Some(bytes) = region.bytes(off, SLOT_BYTES) else {
                return Err(Error::corruption(format!(
                    "the redo area at pool offset {off:#x} is outside the pool; restore the \
                     database from a copy, or recover the readable data with \"terrace repair\""
                )));
            };
            let Some((_, stores)) = layout::decode(bytes) else {
                continue;
            };
            if stores.is_empty() {
                continue;
            }
            for (at, value) in &stores {
                let Some(word) = region.word(*at) else {
                    return Err(Error::corruption(format!(
                        "redo slot {index} names the word at {at:#x}, which is outside the pool; \
                         restore the database from a copy, or recover the readable data with \
                         \"terrace repair\""
                    )));
                };
                word.store(*value, Ordering::Release);
                region.flush(*at, 8, Purpose::Merge);
            }
            applied += 1;
        }
        // PERSIST: the stores before the slots are cleared. Reversed, a crash between the two would
        // leave half a batch and nothing to complete it from.
        region.fence(Purpose::Merge);
        area.clear_all()?;
        Ok((area, applied))
    }

    fn over(pool: &Pool, extent: Arc<Extent>) -> Arc<RedoArea> {
        Arc::new(RedoArea {
            extent,
            volatile: pool.medium() == Medium::Dram,
            free: Mutex::new((0..SLOT_COUNT).rev().collect()),
        })
    }

    fn slot_off(&self, index: usize) -> u64 {
        self.extent.off() + (index * SLOT_BYTES) as u64
    }

    /// Clears all slots, durably even in a power loss.
    pub(crate) fn clear_all(&self) -> Result<()> {
        let region = self.extent.region();
        let mut empty = Vec::new();
        layout::encode(&[], 0, &mut empty);
        for index in 0..SLOT_COUNT {
            self.write_slot(index, &empty, Purpose::Merge);
        }
        // PERSIST: empty slots before any list may change without them. Reversed, a crash could
        // repeat an old batch over newer links.
        region.fence(Purpose::Merge);
        region
            .sync(self.extent.off(), RedoArea::BYTES as usize)
            .map_err(|e| {
                Error::new(
                    crate::error::ErrorKind::Io,
                    format!("cannot sync the redo area: {e}"),
                )
                .because(e)
            })
    }

    fn write_slot(&self, index: usize, bytes: &[u8], purpose: Purpose) {
        let at = (index * SLOT_BYTES) as u64;
        if let Some(mut claim) = self.extent.claim(at, bytes.len()) {
            claim.write_streaming(0, bytes, purpose);
        }
    }

    /// Takes a slot for a job of `purpose`; returns `None` if all are taken.
    pub(crate) fn slot(self: &Arc<Self>, purpose: Purpose) -> Option<RedoSlot> {
        let index = self.free.lock().pop()?;
        Some(RedoSlot {
            area: Arc::clone(self),
            index,
            generation: 0,
            prepared: Vec::with_capacity(STORES_MAX),
            stores: Vec::with_capacity(STORES_MAX),
            lines: Vec::with_capacity(STORES_MAX),
            bytes: Vec::with_capacity(SLOT_BYTES),
            purpose,
        })
    }
}

/// A savepoint of a planned batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    prepared: usize,
    stores: usize,
}

impl Plan for RedoSlot {
    fn prepare(&mut self, off: u64, value: u64) {
        self.prepared.push((off, value));
    }

    fn store(&mut self, off: u64, value: u64) {
        self.stores.push((off, value));
    }
}

impl RedoSlot {
    /// Returns whether `more` stores still fit in the batch.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.prepared.len() + self.stores.len() + more <= STORES_MAX
    }

    /// Returns a savepoint of the current plan.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            prepared: self.prepared.len(),
            stores: self.stores.len(),
        }
    }

    /// Drops the stores planned after `mark`.
    pub(crate) fn truncate(&mut self, mark: Mark) {
        self.prepared.truncate(mark.prepared);
        self.stores.truncate(mark.stores);
    }

    /// Moves the stores planned after `mark` before all others, for the canary `UnlinkFirst`.
    pub(crate) fn last_first(&mut self, mark: Mark) {
        let last = self.stores.split_off(mark.stores);
        self.prepared.splice(0..0, last);
    }

    /// Returns whether no store is planned.
    pub(crate) fn is_empty(&self) -> bool {
        self.prepared.is_empty() && self.stores.is_empty()
    }

    /// Charges later batches to `purpose`.
    pub(crate) fn charge(&mut self, purpose: Purpose) {
        self.purpose = purpose;
    }

    /// Makes the planned stores, those of `prepare` first. They become durable atomically, and
    /// visible to readers in order.
    ///
    /// Everything streamed or flushed before this call is durable before the first store is made.
    pub(crate) fn commit(&mut self) -> Result<()> {
        self.prepared.append(&mut self.stores);
        let stores = &self.prepared;
        if stores.is_empty() {
            return Ok(());
        }
        let region = self.area.extent.region().clone();
        if !self.area.volatile {
            self.generation += 1;
            layout::encode(stores, self.generation, &mut self.bytes);
            self.area.write_slot(self.index, &self.bytes, self.purpose);
            // PERSIST: the batch (and the nodes it links) before its first store (R2). Reversed, a
            // crash could keep some of the stores and no batch to complete them from.
            failpoint!(RedoFence skips region.fence(self.purpose));
        }
        for (off, value) in stores {
            let Some(word) = region.word(*off) else {
                return Err(Error::corruption(format!(
                    "a link at {off:#x} is outside the pool: run verify, and restore the database \
                     from a copy, or recover the readable data with \"terrace repair\""
                )));
            };
            word.store(*value, Ordering::Release);
            failpoint!(UnlinkFirst => std::thread::yield_now());
        }
        // CRASH: from here to the fence any subset of the stores survives; recovery makes them all.
        // The stores of one node are rarely adjacent, so the lines are sorted to flush each once.
        self.lines.clear();
        self.lines.extend(stores.iter().map(|(off, _)| *off));
        self.lines.sort_unstable();
        self.lines.dedup_by_key(|off| *off / LINE);
        for off in &self.lines {
            region.flush(*off, 8, self.purpose);
        }
        // PERSIST: the stores before the next batch may replace this one (R3).
        region.fence(self.purpose);
        self.prepared.clear();
        Ok(())
    }

    /// Clears the last batch, durably: other jobs may then change its words (R1).
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.prepared.clear();
        self.stores.clear();
        if self.area.volatile || canary::breaks(Canary::RedoClear) {
            return Ok(());
        }
        layout::encode(&[], 0, &mut self.bytes);
        self.area
            .write_slot(self.index, &self.bytes[..64], self.purpose);
        // PERSIST: the empty slot before any other job's batch. Reversed, a crash could replay this
        // slot over newer stores.
        self.area.extent.region().fence(self.purpose);
        Ok(())
    }
}

impl Drop for RedoSlot {
    fn drop(&mut self) {
        self.area.free.lock().push(self.index);
    }
}
