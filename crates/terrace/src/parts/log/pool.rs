//! Log in the pool: an append is one streaming copy and one fence. On `Dax` small records that may
//! be lost are gathered instead (gather.rs).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_media::{Extent, Medium, Purpose};

use crate::canary::{self, Canary, failpoint};
use crate::parts::log::gather::{BLOCK_BYTES, Gathering};
use crate::parts::log::layout::{
    LOG_BYTES_MAX, LOG_HEADER_BYTES, PAYLOAD_BYTES_MAX, RECORD_ALIGN, encode_log_header,
};
use crate::parts::log::record::{Payload, record_bytes};
use crate::parts::log::settle::Settle;
use crate::parts::log::sync::Rounds;
use crate::parts::log::{Log, Placed, Settling, Slot};
use crate::types::DbId;

/// A log in an extent of the pool.
pub(crate) struct PoolLog {
    extent: Arc<Extent>,
    id: u64,
    medium: Medium,
    purpose: Purpose,
    moving: Moving,
    /// The position before which everything has been synced; unused on `Dax`.
    synced: AtomicU64,
    rounds: Rounds,
}

/// The fields that every append changes, on cache lines of their own.
#[repr(align(128))]
struct Moving {
    /// The offset of the next record.
    tail: AtomicU64,
    settle: Settle,
    gathering: Gathering,
}

impl PoolLog {
    /// Creates an empty log of the database `db` in the extent, durable on return. `medium` is the
    /// pool's.
    pub(crate) fn create(
        extent: Arc<Extent>,
        (db, id): (DbId, u64),
        medium: Medium,
    ) -> io::Result<PoolLog> {
        let start = LOG_HEADER_BYTES as u64;
        let Some(mut claim) = extent.claim(0, LOG_HEADER_BYTES) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("an extent of {} bytes is too small for a log", extent.len()),
            ));
        };
        claim.write_streaming(0, &encode_log_header(db, id), Purpose::Log);
        // PERSIST: the header before the manifest names the log. Reversed, recovery would find a
        // named log without a header and report it as damaged.
        extent.region().fence(Purpose::Log);
        extent.region().sync(extent.off(), LOG_HEADER_BYTES)?;
        Ok(PoolLog {
            extent,
            id,
            medium,
            purpose: Purpose::Log,
            moving: Moving {
                tail: AtomicU64::new(start),
                settle: Settle::new(start),
                gathering: Gathering::new(start),
            },
            synced: AtomicU64::new(start),
            rounds: Rounds::default(),
        })
    }

    /// Counts records as bytes of another purpose.
    pub(crate) fn counted_as(self, purpose: Purpose) -> PoolLog {
        PoolLog { purpose, ..self }
    }

    /// Returns whether a fence makes an append durable that is not gathered.
    fn fence_is_enough(&self) -> bool {
        match self.medium {
            Medium::Dax | Medium::Dram => true,
            Medium::Mapped => false,
        }
    }

    #[inline]
    fn take(&self, payload_bytes: usize, may_gather: bool) -> Option<Slot> {
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return None;
        }
        let bytes = record_bytes(payload_bytes);
        let at = self.moving.tail.load(Ordering::Relaxed);
        let room = self.extent.len().min(LOG_BYTES_MAX) - at;
        if bytes > room {
            return None;
        }
        self.moving.tail.store(at + bytes, Ordering::Relaxed);
        let (ticket, written) = self.moving.settle.reserve();
        let gathering = &self.moving.gathering;
        let settled = match self.fence_is_enough() {
            true => gathering.settled(written),
            false => self.synced.load(Ordering::Acquire),
        };
        // The flushed position would stay behind a record that is not tracked.
        let gathers = may_gather && bytes < BLOCK_BYTES && self.moving.settle.tracks_all();
        let settling = if gathers {
            gathering.gather(at, at + bytes);
            Settling::Gathered
        } else if gathering.require(at + bytes) {
            Settling::AfterGathered
        } else {
            Settling::Alone
        };
        let unsettled = ((at - settled) / RECORD_ALIGN as u64) as u32;
        Some(Slot {
            at,
            bytes,
            unsettled,
            ticket,
            settling,
        })
    }

    /// Flushes what is gathered before `to`. The caller fences, and passes the result to
    /// `Gathering::advance` then.
    fn flush_gathered(&self, to: u64) -> u64 {
        // Only these are finished; the writers of others may flush them later (G1).
        let written = self.moving.settle.written();
        let from = self.moving.gathering.flushed();
        if let Some(len) = to.checked_sub(from).filter(|len| *len > 0) {
            let region = self.extent.region();
            region.flush(self.extent.off() + from, len as usize, Purpose::Log);
        }
        written.min(to)
    }

    /// Makes durable what is gathered before `to`.
    fn persist_gathered(&self, to: u64) {
        let upto = self.flush_gathered(to);
        // PERSIST: the gathered records before they count as flushed. Reversed, a later record
        // would call them settled, and replay would report their loss as damage.
        // CRASH: until the fence returns, any of them may be missing, and replay ends before it.
        self.extent.region().fence(Purpose::Log);
        self.moving.gathering.advance(upto);
    }

    /// Finishes a gathered record. It is flushed if a durable record follows it, or if it completes
    /// a block.
    fn settle_gathered(&self, placed: &Placed) {
        let Placed {
            ticket, at, end, ..
        } = *placed;
        self.moving.settle.finish(ticket, end);
        if self.moving.gathering.is_required(end) {
            // PERSIST: this record before it is published: the writer of the durable record waits
            // only for that (G2). Reversed, a power loss could take an acknowledged write, which
            // follows this one.
            let len = (end - at) as usize;
            let region = self.extent.region();
            region.persist(self.extent.off() + at, len, Purpose::Log);
            return;
        }
        let written = self.moving.settle.written();
        let flushed = self.moving.gathering.flushed();
        if written.saturating_sub(flushed) >= BLOCK_BYTES {
            self.persist_gathered(written);
        }
    }
}

impl Log for PoolLog {
    #[inline]
    fn reserve(&self, payload_bytes: usize) -> Option<Slot> {
        self.take(payload_bytes, false)
    }

    #[inline]
    fn reserve_gathered(&self, payload_bytes: usize) -> Option<Slot> {
        // Elsewhere a flush has no effect, and a process crash leaves everything that is stored.
        self.take(payload_bytes, self.medium == Medium::Dax)
    }

    fn place(&self, slot: Slot, first_seq: u64, payload: &mut Payload) -> io::Result<Placed> {
        let Slot {
            at,
            bytes,
            unsettled,
            ticket,
            settling,
        } = slot;
        assert_eq!(
            record_bytes(payload.len_bytes()),
            bytes,
            "a record fills its place (L1)"
        );
        let Some(mut claim) = self.extent.lend(at, bytes as usize) else {
            return Err(io::Error::other(format!(
                "no place at {at} in the extent of log {}",
                self.id
            )));
        };
        payload.with_record(self.id, at, first_seq, unsettled, |record| match settling {
            Settling::Gathered => claim.write(0, record),
            Settling::Alone | Settling::AfterGathered => {
                claim.write_streaming(0, record, self.purpose);
            }
        });
        Ok(Placed {
            ticket,
            at,
            end: at + bytes,
            settling,
        })
    }

    fn settle(&self, placed: Placed) {
        let gathering = &self.moving.gathering;
        let upto = match placed.settling {
            Settling::Gathered => return self.settle_gathered(&placed),
            Settling::Alone => None,
            Settling::AfterGathered if canary::breaks(Canary::GatheredUnflushed) => None,
            Settling::AfterGathered => {
                gathering.begin_flush();
                Some(self.flush_gathered(placed.at))
            }
        };
        // PERSIST: the whole record before its writer is acknowledged and before a later record
        // calls it settled, with what is gathered before it. Reversed, replay would report a torn
        // record as damage, or end before an acknowledged one.
        // CRASH: until the fence returns, any part of the record may be missing. Its checksums
        // detect this, and replay ends before it.
        failpoint!(LogFence skips self.extent.region().fence(self.purpose));
        self.moving.settle.finish(placed.ticket, placed.end);
        if let Some(upto) = upto {
            gathering.advance(upto);
        }
    }

    fn end_gathering(&self) {
        if self.moving.gathering.require(u64::MAX) {
            self.moving.gathering.begin_flush();
            self.persist_gathered(self.bytes());
        }
    }

    fn sync(&self) -> io::Result<()> {
        if self.fence_is_enough() {
            if self.moving.gathering.is_pending() {
                self.persist_gathered(self.bytes());
            }
            return Ok(());
        }
        if self.is_synced() {
            return self.rounds.check();
        }
        self.rounds.run(|| {
            let written = self.moving.settle.written();
            let from = self.synced.load(Ordering::Acquire);
            // Records that are written after a gap are synced as well.
            let to = self.moving.tail.load(Ordering::Relaxed);
            self.extent
                .region()
                .sync(self.extent.off() + from, (to - from) as usize)?;
            self.synced.fetch_max(written, Ordering::Release);
            Ok(())
        })
    }

    fn is_synced(&self) -> bool {
        match self.fence_is_enough() {
            true => !self.moving.gathering.is_pending(),
            false => self.synced.load(Ordering::Acquire) == self.bytes(),
        }
    }

    fn durable_end(&self) -> Option<u64> {
        let durable = match self.fence_is_enough() {
            true => {
                let written = self.moving.settle.written();
                self.moving.gathering.settled(written)
            }
            false => self.synced.load(Ordering::Acquire),
        };
        (durable == self.moving.tail.load(Ordering::Relaxed)).then_some(durable)
    }

    fn bytes(&self) -> u64 {
        self.moving.tail.load(Ordering::Relaxed)
    }

    fn seal(&self, next_seq: u64) -> io::Result<()> {
        // PERSIST: every record before the seal. Reversed, replay would report records that a crash
        // took as damage.
        let Some(at) = self
            .durable_end()
            .filter(|at| *at > LOG_HEADER_BYTES as u64)
        else {
            return Ok(());
        };
        let mut payload = Payload::new();
        let bytes = record_bytes(payload.len_bytes());
        if bytes > self.extent.len().min(LOG_BYTES_MAX) - at {
            return Ok(());
        }
        let Some(mut claim) = self.extent.lend(at, bytes as usize) else {
            return Ok(());
        };
        payload.with_record(self.id, at, next_seq, 0, |record| {
            claim.write_streaming(0, record, self.purpose);
        });
        Ok(())
    }
}
