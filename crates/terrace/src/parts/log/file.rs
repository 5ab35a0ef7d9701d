//! Log in a file: an append is one write, and concurrent callers share a sync.
//!
//! Space is allocated when the file is created, so that no record waits for space on the disk and
//! no sync has to make a new length durable. The file of an obsolete log is recycled for a new one:
//! its old records carry the id of a log that no longer exists (L2).

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
use crate::parts::log::{Log, Placed, Settling, Slot};
use crate::types::{DbId, draft_of};

/// A log in its own file.
pub(crate) struct FileLog {
    file: Box<dyn File>,
    id: u64,
    capacity: u64,
    /// Whether the file was created for this log, so that none of it is in the page cache. Most of
    /// a recycled file is cached, and the rest would have to be read.
    is_new: bool,
    /// The offset of the next record.
    tail: AtomicU64,
    settle: Settle,
    /// The position before which everything has been synced.
    synced: AtomicU64,
    rounds: Rounds,
}

impl FileLog {
    /// Creates the file with an empty log of the database `db` and space for `capacity` bytes;
    /// contents and name are durable on return. With `old`, that log of the same database is
    /// renamed and recycled. An existing file is never replaced, and after an error no file of the
    /// log remains.
    ///
    /// Nothing may name the log before the call has returned.
    pub(crate) fn create(
        fs: &Arc<dyn FileSystem>,
        path: &Path,
        (db, id): (DbId, u64),
        capacity: u64,
        old: Option<&Path>,
    ) -> io::Result<FileLog> {
        let start = LOG_HEADER_BYTES as u64;
        let capacity = capacity.min(LOG_BYTES_MAX);
        let header = encode_log_header(db, id);
        let file = match old {
            Some(old) => reuse(fs, old, path, capacity, &header)?,
            None => make(fs, &draft_of(path, db), path, capacity, &header)?,
        };
        if let Err(e) = fs.sync_dir(path.parent().unwrap_or(Path::new("."))) {
            let _ = fs.remove(path);
            // The error is never "no space", whatever the system reports: the caller would then try
            // another file, and the unsynced names may be those of other files in the directory.
            return Err(io::Error::other(format!("cannot sync its directory: {e}")));
        }
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

    /// Opens a log of an earlier process to be replayed, which finds its end, and then synced. It
    /// takes no more records.
    ///
    /// The handle is open from before the replay until the sync: a write-back error in between is
    /// reported to the handles open at that time, and a later handle may miss it.
    pub(crate) fn found(fs: &Arc<dyn FileSystem>, path: &Path, id: u64) -> io::Result<FileLog> {
        let file = fs.open(path, OpenMode::Write)?;
        let end = file.len()?;
        Ok(FileLog {
            file,
            id,
            capacity: 0,
            is_new: false,
            tail: AtomicU64::new(end),
            settle: Settle::new(end.next_multiple_of(RECORD_ALIGN as u64)),
            synced: AtomicU64::new(0),
            rounds: Rounds::default(),
        })
    }

    /// Sets the end of the last record, as found by a replay.
    pub(crate) fn ends_at(&self, end: u64) {
        self.tail.store(end, Ordering::Relaxed);
    }
}

/// Creates the file of a new log, under a draft name until its header is durable.
fn make(
    fs: &Arc<dyn FileSystem>,
    draft: &Path,
    path: &Path,
    capacity: u64,
    header: &[u8],
) -> io::Result<Box<dyn File>> {
    let written = || {
        let file = fs.open(draft, OpenMode::Truncate)?;
        // If the file system cannot allocate space in advance, this only sets the length, and a
        // full disk shows up at an append.
        file.allocate(capacity)?;
        file.write_at(0, header)?;
        // PERSIST: the header before the name of a log. Reversed, a crash could leave a file with
        // that name and no header, which no database may remove.
        // CRASH: until the rename there is a draft, which the next open removes; after it, a log
        // with a header, which is removed if nothing names it.
        file.sync_data()?;
        fs.rename_new(draft, path)?;
        Ok(file)
    };
    written().inspect_err(|_| {
        let _ = fs.remove(draft);
    })
}

/// Turns the file `old` of an obsolete log into that of a new one.
fn reuse(
    fs: &Arc<dyn FileSystem>,
    old: &Path,
    path: &Path,
    capacity: u64,
    header: &[u8],
) -> io::Result<Box<dyn File>> {
    if let Err(e) = fs.rename_new(old, path) {
        let _ = fs.remove(old);
        return Err(e);
    }
    let written = || {
        let file = fs.open(path, OpenMode::Write)?;
        file.allocate(capacity)?;
        // PERSIST: the header before the manifest names the log. Reversed, recovery would find a
        // named log with the header of the old one and report it as damaged. Only the header is
        // synced: the old records may leave megabytes of dirty pages, which are not worth writing.
        // CRASH: until then the header is that of the old log, of the new one, or a mix of both;
        // each names the database. Nothing names the log, so the next open removes the file.
        file.write_durable_at(0, header)?;
        Ok(file)
    };
    written().inspect_err(|_| {
        let _ = fs.remove(path);
    })
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
            settling: Settling::Alone,
        })
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
        self.rounds.check()?;
        // CRASH: until a sync any part of the record may be missing. Its checksums detect this, and
        // replay ends before it.
        payload
            .with_record(self.id, at, first_seq, unsettled, |record| {
                self.file.write_at(at, record)
            })
            .map_err(|e| self.rounds.fail(e))?;
        Ok(Placed {
            ticket,
            at,
            end: at + bytes,
            settling,
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
        self.durable_end().is_some()
    }

    fn durable_end(&self) -> Option<u64> {
        let tail = self.tail.load(Ordering::Relaxed);
        (self.synced.load(Ordering::Acquire) >= tail).then_some(tail)
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
        // PERSIST: every record before the seal. Reversed, replay would report records that a crash
        // took as damage.
        let Some(at) = self
            .durable_end()
            .filter(|at| *at > LOG_HEADER_BYTES as u64)
        else {
            return Ok(());
        };
        // A full file grows by a line.
        Payload::new().with_record(self.id, at, next_seq, 0, |record| {
            self.file.write_at(at, record)
        })
    }
}
