//! The log files of a database without a pool: preallocated, named, reused once their contents are
//! not needed any more, and counted.
//!
//! A log is needed while a memtable, or a table of a buffer in memory, has its entries. The edit
//! that puts those into named files retires it; then its file may become the file of another log.
//!
//! CRASH: a log file of this database that the manifest does not name had just been made, or was
//! not needed any more; opening the database removes it. A file without a log's header stays
//! (`stages/file_names.rs`).

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::{FileSystem, OpenMode};

use crate::canary::failpoint;
use crate::error::{Error, Result};
use crate::metrics::human_bytes;
use crate::parts::log::{FileLog, Log, LogOf, replay_file};
use crate::parts::reserve::{Reserve, Row, is_full};
use crate::stages::file_names::{is_log_of, log_file_id, log_file_name};
use crate::stages::{Folder, Shared};
use crate::types::{DbId, SeqNo};

/// Files that are kept for future logs: at least the first number, and as many as one drain retires
/// together, which take a quarter of the bytes for logs.
///
/// A new file costs a writer more than an old one. The system has to allocate blocks and clean
/// pages for it, and pages of the old one that had not reached the disk were written for nothing.
/// BOUND: never more than the second number, nor, beyond the first, than logs may take together.
const IDLE: (u64, u64) = (2, 16);

/// BOUND: if more logs than this are unsynced, the oldest is synced when another one comes: each
/// keeps its file open.
const UNSYNCED: usize = 64;

/// The log files of one database.
pub(super) struct LogFiles {
    shared: Arc<Shared>,
    db: DbId,
    folder: Folder,
    /// A larger file is not kept for another log.
    kept_bytes_max: u64,
    /// The maximum number of kept files.
    idle_max: usize,
    /// The maximum bytes of all logs together.
    bytes_max: u64,
    reserve: Arc<Reserve>,
    files: Mutex<Files>,
}

/// A log that is no longer written and is to be synced.
#[derive(Clone)]
struct Unsynced {
    /// The log itself, not its name: a file that was opened later may not report earlier write
    /// errors, and a log whose sync has failed goes on failing (L4).
    log: Arc<dyn Log>,
    /// The number after its last, if it is to be sealed.
    next_seq: Option<SeqNo>,
}

#[derive(Default)]
struct Files {
    /// Logs that are needed, and the bytes that each takes on the disk.
    live: BTreeMap<u64, u64>,
    /// Files of logs that are not needed any more.
    idle: Vec<PathBuf>,
    /// Logs that are needed, of memtables that have become tables, and not known to be synced.
    unsynced: BTreeMap<u64, Unsynced>,
    /// Whether no more logs will come.
    closed: bool,
}

impl LogFiles {
    /// Manages the log files in `folder`; those of logs that take at most `kept_bytes_max` are
    /// reused. All logs together may take `bytes_max`.
    pub(super) fn new(
        shared: &Arc<Shared>,
        folder: Folder,
        kept_bytes_max: u64,
        bytes_max: u64,
    ) -> LogFiles {
        let drained = bytes_max / 4 / kept_bytes_max.max(1);
        LogFiles {
            shared: Arc::clone(shared),
            db: shared.manifest.db(),
            folder,
            kept_bytes_max,
            idle_max: drained.clamp(IDLE.0, IDLE.1) as usize,
            bytes_max,
            reserve: Arc::clone(&shared.reserve),
            files: Mutex::default(),
        }
    }

    pub(super) fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.folder.fs
    }

    pub(super) fn path(&self, id: u64) -> PathBuf {
        self.folder.dir.join(log_file_name(id))
    }

    /// Creates the file of log `id`, preallocated: an allocation refused here for lack of space
    /// would be a half-written record later.
    pub(super) fn create(&self, id: u64, bytes: u64) -> io::Result<FileLog> {
        if self.reserve.is_short() {
            // Files that are kept for other logs may take the missing space.
            self.remove_idle();
            if !self.reserve.refill() {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    "the remaining disk space is reserved for deletes",
                ));
            }
        }
        let path = self.path(id);
        let old = match bytes <= self.kept_bytes_max {
            true => self.files.lock().idle.pop(),
            false => None,
        };
        // A reused file has its space.
        let room = old
            .as_ref()
            .map_or_else(|| self.check_room(bytes), |_| Ok(()));
        let create =
            || FileLog::create(&self.folder.fs, &path, (self.db, id), bytes, old.as_deref());
        let log = room.and_then(|()| create());
        match &log {
            Ok(_) => {
                self.files.lock().live.insert(id, bytes);
                self.reserve.note(false);
            }
            Err(e) if is_full(e) => self.reserve.note(true),
            Err(_) => {}
        }
        log
    }

    /// Returns an error if the disk reports fewer than `bytes` free. A file system may fill the
    /// disk before it refuses an allocation that does not fit, and concurrent jobs would find no
    /// space meanwhile.
    fn check_room(&self, bytes: u64) -> io::Result<()> {
        let Folder { fs, dir } = &self.folder;
        match fs.free_bytes(dir) {
            Ok(Some(free)) if free < bytes => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "no storage space: the log needs {}, but the disk has {} left",
                    human_bytes(bytes),
                    human_bytes(free)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Does the same as `create`, on a row of the reserve if the disk has no space.
    pub(super) fn create_on_reserve(&self, id: u64, bytes: u64, row: Row) -> io::Result<FileLog> {
        // Returned space goes to the rows before this one first: without them, no log is retired.
        self.reserve.refill();
        let lender: Arc<dyn FileSystem> = Arc::new(self.reserve.lender(self.fs(), row));
        let log = FileLog::create(&lender, &self.path(id), (self.db, id), bytes, None)?;
        self.files.lock().live.insert(id, bytes);
        Ok(log)
    }

    /// Finds the files of the logs that the manifest names, and removes those of other logs of the
    /// database. Their ids, and those in the names of foreign files, are not reused.
    pub(super) fn find(&self, named: &[u64], shared: &Shared) -> Result<()> {
        let Folder { fs, dir } = &self.folder;
        let names = fs.list(dir).map_err(|e| Error::io("list", dir, e))?;
        // Before anything is removed: an outdated manifest names too few logs, and the right one
        // may come back.
        let is_there = |id: &u64| names.iter().any(|name| log_file_id(name) == Some(*id));
        if let Some(&lost) = named.iter().find(|id| !is_there(id)) {
            return Err(Error::corruption(format!(
                "{} is missing, but the manifest names it: restore the directory from a copy, or \
                 recover the readable data with \"terrace repair\"",
                self.path(lost).display()
            )));
        }
        let next_id = shared.manifest.with_state(|state| state.next_id);
        let ids = || names.iter().filter_map(|name| log_file_id(name));
        if let Some(newer) = ids().find(|&id| id >= next_id && self.has_records(id)) {
            return Err(Error::corruption(format!(
                "{} has writes, but the manifest does not know this log, so the manifest is an \
                 older copy: restore the directory from one copy, or recover the readable data \
                 with \"terrace repair\"",
                self.path(newer).display()
            )));
        }
        for id in ids() {
            let path = self.path(id);
            if named.contains(&id) {
                shared.skip_ids(id + 1);
                let len = fs.open(&path, OpenMode::Read).and_then(|file| file.len());
                let len = len.map_err(|e| Error::io("read the log", &path, e))?;
                self.files.lock().live.insert(id, len);
            } else if !is_log_of(&**fs, &path, self.db) {
                shared.pass_over(id);
            } else {
                shared.skip_ids(id.saturating_add(1));
                fs.remove(&path)
                    .map_err(|e| Error::io("remove the unneeded log", &path, e))?;
            }
        }
        Ok(())
    }

    /// Returns whether the file of log `id` is this database's and begins with a whole record of
    /// that log.
    fn has_records(&self, id: u64) -> bool {
        let path = self.path(id);
        if !is_log_of(&**self.fs(), &path, self.db) {
            return false;
        }
        let log = LogOf {
            db: self.db,
            id,
            end: None,
            from: None,
        };
        let fault = |e| Error::io("read the log", &path, e);
        let mut any = false;
        // The first record is enough. A log that cannot be read hides no writes.
        let _ = replay_file(self.fs(), &path, log, &fault, &mut |_| {
            any = true;
            Err(Error::closed())
        });
        any
    }

    /// Returns the bytes of the file of log `id`.
    pub(super) fn bytes(&self, id: u64) -> u64 {
        self.files.lock().live.get(&id).copied().unwrap_or(0)
    }

    /// Leaves log `id` to be synced by the next caller that requests a sync, and then sealed if
    /// `next_seq` is known, which follows its last number. It takes no more records.
    pub(super) fn leave_unsynced(
        &self,
        id: u64,
        log: Arc<dyn Log>,
        next_seq: Option<SeqNo>,
    ) -> io::Result<()> {
        let oldest = {
            let mut files = self.files.lock();
            files.unsynced.insert(id, Unsynced { log, next_seq });
            let oldest = files.unsynced.first_key_value();
            oldest
                .filter(|_| files.unsynced.len() > UNSYNCED)
                .map(|(id, left)| (*id, left.clone()))
        };
        oldest.map_or(Ok(()), |(id, left)| self.sync_one(id, &left))
    }

    /// Syncs the logs that were left unsynced before the call, oldest first.
    pub(super) fn sync_left(&self) -> io::Result<()> {
        failpoint!(LeftUnsynced => return Ok(()));
        let left = self.files.lock().unsynced.clone();
        for (id, left) in left {
            self.sync_one(id, &left)?;
        }
        Ok(())
    }

    fn sync_one(&self, id: u64, left: &Unsynced) -> io::Result<()> {
        let synced = left.log.sync();
        let mut files = self.files.lock();
        // A log that was retired meanwhile may be gone, and is not needed.
        if files.unsynced.contains_key(&id) {
            synced?;
            files.unsynced.remove(&id);
            end_log(&self.shared, id, &*left.log, left.next_seq);
        }
        Ok(())
    }

    /// Frees the unused part of a log that takes no more records, if that is much.
    pub(super) fn trim(&self, id: u64, used: u64) {
        let bytes = self.bytes(id);
        if used > bytes / 2 {
            return;
        }
        // For space only: a failure leaves the file unchanged.
        let cut = self.folder.fs.open(&self.path(id), OpenMode::Write);
        if cut.and_then(|file| file.set_len(used)).is_ok() {
            self.files.lock().live.insert(id, used);
        }
    }

    /// Retires log `id`, which is not needed any more and which no edit names.
    pub(super) fn retire(&self, id: u64) {
        let path = self.path(id);
        let mut files = self.files.lock();
        files.unsynced.remove(&id);
        let Some(bytes) = files.live.remove(&id) else {
            return;
        };
        // A small one may not grow again on a full disk.
        let usual = bytes <= self.kept_bytes_max && bytes > self.kept_bytes_max / 2;
        if !files.closed && usual && self.may_keep(&files) && !self.reserve.is_short() {
            files.idle.push(path);
            return;
        }
        drop(files);
        // A file that cannot be removed now is removed when the database is opened.
        let _ = self.folder.fs.remove(&path);
    }

    /// Returns whether there is space to keep one more file for future logs.
    fn may_keep(&self, files: &Files) -> bool {
        let idle = files.idle.len();
        let live: u64 = files.live.values().sum();
        let all = live.saturating_add((idle as u64 + 1).saturating_mul(self.kept_bytes_max));
        idle < IDLE.0 as usize || idle < self.idle_max && all <= self.bytes_max
    }

    /// Returns the bytes of the files of all logs that are needed.
    pub(super) fn live_bytes(&self) -> u64 {
        self.files.lock().live.values().sum()
    }

    /// Notes that no more logs will come.
    pub(super) fn close(&self) {
        self.files.lock().closed = true;
        self.remove_idle();
    }

    /// Removes the files that are kept for future logs.
    pub(super) fn remove_idle(&self) {
        let idle = std::mem::take(&mut self.files.lock().idle);
        for path in idle {
            let _ = self.folder.fs.remove(&path);
        }
    }
}

/// Records the end of a log that takes no more records, once it is synced: in the log itself, if
/// the number after its last is known, and in the manifest. If that fails, the log remains valid
/// without it.
pub(super) fn end_log(shared: &Shared, id: u64, log: &dyn Log, next_seq: Option<SeqNo>) {
    if let Some(next_seq) = next_seq {
        let _ = log.seal(next_seq);
    }
    // PERSIST: the records before the edit that names their end. Reversed, a power loss would make
    // a sound database look damaged.
    if let Some(end) = log.durable_end() {
        shared.manifest.note_log_end(id, end);
    }
}
