//! This file is the log in a file: an append is one write, and a sync is shared by its callers.
//!
//! The file's space is taken when it is made, so no record waits for room on the disk, and a sync need
//! not make a new length durable. The file of a log that nobody needs any more becomes the file of
//! another: its old records name a log that is no more (L2).

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

/// A log in a file of its own.
pub(crate) struct FileLog {
    file: Box<dyn File>,
    id: u64,
    capacity: u64,
    /// The file was made for this log, so nothing of it is in the system's cache. Of one that had another
    /// log most is, and the rest would have to be read.
    is_new: bool,
    /// Where the next record goes.
    tail: AtomicU64,
    settle: Settle,
    /// Everything before this position has been synced.
    synced: AtomicU64,
    rounds: Rounds,
}

impl FileLog {
    /// Creates the file with an empty log in it, durable on return together with its name, and with
    /// room for `capacity` bytes. With `old` that file is renamed and used again, whatever is in it.
    ///
    /// Nothing may name the log before this has returned.
    pub(crate) fn create(
        fs: &Arc<dyn FileSystem>,
        path: &Path,
        id: u64,
        capacity: u64,
        old: Option<&Path>,
    ) -> io::Result<FileLog> {
        let start = LOG_HEADER_BYTES as u64;
        let capacity = capacity.min(LOG_BYTES_MAX);
        let file = match old {
            Some(old) => {
                fs.rename(old, path)?;
                fs.open(path, OpenMode::Write)?
            }
            None => fs.open(path, OpenMode::CreateNew)?,
        };
        // Where the file system cannot take space ahead, the length stands for it, and a full disk
        // shows itself at a record.
        file.allocate(capacity)?;
        // PERSIST: the header before the manifest names the log. Reversed, recovery would find a named
        // log without a header, or with that of its former life, and call it damaged.
        // CRASH: until then the file has the header of this log, of a former one, or none; nothing
        // names it, so it is removed.
        match old {
            // Of a former life's records none is worth a write, and there may be megabytes of them
            // that have not reached the disk.
            Some(_) => file.write_durable_at(0, &encode_log_header(id))?,
            None => {
                file.write_at(0, &encode_log_header(id))?;
                file.sync_data()?;
            }
        }
        fs.sync_dir(path.parent().unwrap_or(Path::new(".")))?;
        Ok(FileLog {
            file,
            id,
            capacity,
            is_new: old.is_none(),
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
        if self.is_synced() {
            return self.rounds.check();
        }
        self.rounds.run(|| {
            let written = self.settle.written();
            self.file.sync_data()?;
            self.synced.fetch_max(written, Ordering::Release);
            Ok(())
        })
    }

    fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire) == self.tail.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    fn is_cold(&self) -> bool {
        self.is_new
    }

    fn prefault(&self, at: u64, len: u64) {
        let len = len.min(self.capacity.saturating_sub(at));
        if len > 0 {
            let _ = self.file.prefault(at, len);
        }
    }

    fn seal(&self, next_seq: u64) -> io::Result<()> {
        let at = self.tail.load(Ordering::Relaxed);
        // PERSIST: every record before the word that they are. Reversed, replay would report what a
        // crash took as damage.
        if at == LOG_HEADER_BYTES as u64 || self.synced.load(Ordering::Acquire) != at {
            return Ok(());
        }
        seal_file(&*self.file, self.id, at, next_seq)
    }
}

/// Seals the log `id` in a file, whose records end at `at` and are durable; see [`Log::seal`].
pub(crate) fn seal_file(file: &dyn File, id: u64, at: u64, next_seq: u64) -> io::Result<()> {
    // A full file grows by a line.
    Payload::new().with_record(id, at, next_seq, 0, |record| file.write_at(at, record))
}
