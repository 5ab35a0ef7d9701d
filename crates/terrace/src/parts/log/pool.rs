//! Log in the pool: an append is one streaming copy and one fence.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_media::{Extent, Medium, Purpose};

use crate::canary::failpoint;
use crate::parts::log::layout::{
    LOG_BYTES_MAX, LOG_HEADER_BYTES, PAYLOAD_BYTES_MAX, RECORD_ALIGN, encode_log_header,
};
use crate::parts::log::record::{Payload, record_bytes};
use crate::parts::log::settle::Settle;
use crate::parts::log::sync::Rounds;
use crate::parts::log::{Log, Placed, Slot};
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
            },
            synced: AtomicU64::new(start),
            rounds: Rounds::default(),
        })
    }

    /// Counts records as bytes of another purpose.
    pub(crate) fn counted_as(self, purpose: Purpose) -> PoolLog {
        PoolLog { purpose, ..self }
    }

    /// Returns whether a fence makes an append durable.
    fn fence_is_enough(&self) -> bool {
        match self.medium {
            Medium::Dax | Medium::Dram => true,
            Medium::Mapped => false,
        }
    }
}

impl Log for PoolLog {
    #[inline]
    fn reserve(&self, payload_bytes: usize) -> Option<Slot> {
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
        let settled = match self.fence_is_enough() {
            true => written,
            false => self.synced.load(Ordering::Acquire),
        };
        let unsettled = ((at - settled) / RECORD_ALIGN as u64) as u32;
        Some(Slot {
            at,
            bytes,
            unsettled,
            ticket,
        })
    }

    fn place(&self, slot: Slot, first_seq: u64, payload: &mut Payload) -> io::Result<Placed> {
        let Slot {
            at,
            bytes,
            unsettled,
            ticket,
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
        payload.with_record(self.id, at, first_seq, unsettled, |record| {
            claim.write_streaming(0, record, self.purpose);
        });
        Ok(Placed {
            ticket,
            end: at + bytes,
        })
    }

    fn settle(&self, placed: Placed) {
        // PERSIST: the whole record before its writer is acknowledged and before a later record
        // calls it settled. Reversed, replay would report a torn record as damage.
        // CRASH: until the fence returns, any part of the record may be missing. Its checksums
        // detect this, and replay ends before it.
        failpoint!(LogFence skips self.extent.region().fence(self.purpose));
        self.moving.settle.finish(placed.ticket, placed.end);
    }

    fn sync(&self) -> io::Result<()> {
        if self.fence_is_enough() {
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
        self.fence_is_enough()
            || self.synced.load(Ordering::Acquire) == self.moving.tail.load(Ordering::Relaxed)
    }

    fn durable_end(&self) -> Option<u64> {
        let durable = match self.fence_is_enough() {
            true => self.moving.settle.written(),
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
