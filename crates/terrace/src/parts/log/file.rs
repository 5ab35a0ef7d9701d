//! This file is the log in a file: an append is one write, and a sync is shared by its callers.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_media::{File, FileSystem, OpenMode};

use crate::parts::log::layout::{
    LOG_BYTES_MAX, LOG_HEADER_BYTES, PAYLOAD_BYTES_MAX, RECORD_ALIGN, encode_log_header,
};
use crate::parts::log::record::{Payload, record_bytes};
use crate::parts::log::settle::Settle;
use crate::parts::log::sync::Rounds;
use crate::parts::log::{Log, Placed, Slot};

/// A log in a file of its own, which grows up to a capacity.
pub(crate) struct FileLog {
    file: Box<dyn File>,
    id: u64,
    capacity: u64,
    /// Where the next record goes.
    tail: AtomicU64,
    settle: Settle,
    /// Everything before this position has been synced.
    synced: AtomicU64,
    rounds: Rounds,
}

impl FileLog {
    /// Creates the file with an empty log in it, durable on return together with its name.
    pub(crate) fn create(
        fs: &Arc<dyn FileSystem>,
        path: &Path,
        id: u64,
        capacity: u64,
    ) -> io::Result<FileLog> {
        let start = LOG_HEADER_BYTES as u64;
        let file = fs.open(path, OpenMode::CreateNew)?;
        file.write_at(0, &encode_log_header(id))?;
        file.sync_data()?;
        fs.sync_dir(path.parent().unwrap_or(Path::new(".")))?;
        Ok(FileLog {
            file,
            id,
            capacity: capacity.min(LOG_BYTES_MAX),
            tail: AtomicU64::new(start),
            settle: Settle::new(start),
            synced: AtomicU64::new(start),
            rounds: Rounds::default(),
        })
    }
}

impl Log for FileLog {
    fn reserve(&self, payload_bytes: usize) -> Option<Slot> {
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return None;
        }
        let bytes = record_bytes(payload_bytes);
        let at = self.tail.load(Ordering::Relaxed);
        if bytes > self.capacity.saturating_sub(at) {
            return None;
        }
        self.tail.store(at + bytes, Ordering::Relaxed);
        let (ticket, _) = self.settle.reserve();
        let settled = self.synced.load(Ordering::Acquire);
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
        self.rounds.check()?;
        // CRASH: until a sync any part of the record may be missing. Its checksums say so, and
        // replay ends before it.
        payload
            .with_record(self.id, at, first_seq, unsettled, |record| {
                self.file.write_at(at, record)
            })
            .map_err(|e| self.rounds.fail(e))?;
        Ok(Placed {
            ticket,
            end: at + bytes,
        })
    }

    fn settle(&self, placed: Placed) {
        self.settle.finish(placed.ticket, placed.end);
    }

    fn sync(&self) -> io::Result<()> {
        if self.synced.load(Ordering::Acquire) == self.tail.load(Ordering::Relaxed) {
            return self.rounds.check();
        }
        self.rounds.run(|| {
            let written = self.settle.written();
            self.file.sync_data()?;
            self.synced.fetch_max(written, Ordering::Release);
            Ok(())
        })
    }

    fn bytes(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }
}
