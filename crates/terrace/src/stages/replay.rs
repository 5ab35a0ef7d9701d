//! Replay contract: the logs of an earlier opening become sealed memtables.
//!
//! Only a front whose logs become memtables offers it; a front that recovers in place has nothing
//! to replay. Logs are read on several threads, and sealed in the order of their age.

use crate::error::Result;

/// The logs that recovery has found.
pub(crate) trait Replay {
    /// Returns the number of logs that are not replayed yet, and their bytes.
    fn logs_left(&self) -> (usize, u64);
    /// Allocates memory for the replay of the oldest log that is left. The task may run on any
    /// thread and concurrently with others.
    fn begin(&self, size: ReplaySize) -> Result<ReplayStart>;
}

/// A log that was replayed into a memtable.
pub(crate) trait ReplayedLog: Send {
    /// Seals the memtable; the oldest one first.
    fn seal(self: Box<Self>) -> Result<ReplaySealed>;
    /// Undoes the part that is not sealed: the log is the oldest that is left again, and gets a
    /// memtable that is large enough.
    fn undo(self: Box<Self>) -> Result<()>;
}

/// The number of records, entries and bytes in a replayed log.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Replayed {
    pub(crate) records: u64,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// The number of whole records after a broken one, which are not replayed.
    pub(crate) stranded: u64,
}

/// The outcome of beginning the replay of a log.
pub(crate) enum ReplayStart {
    Task(ReplayTask),
    /// There is no space for its memtable now; the error has the details.
    Full(crate::error::Error),
    /// There is no log left.
    Done,
}

/// Replays one log, and calls its argument with the number of bytes of each record that it reads.
pub(crate) type ReplayTask = Box<dyn FnOnce(&dyn Fn(u64)) -> Result<Box<dyn ReplayedLog>> + Send>;

/// The outcome of sealing a replayed log.
pub(crate) enum ReplaySealed {
    All(Replayed),
    /// The memtable was too small for all of the log: the rest is to be undone.
    Unfinished(Box<dyn ReplayedLog>),
}

/// The size of the memtable of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplaySize {
    /// As large as memtables are, for speed: the log is read once.
    Usual,
    /// As large as the log's entries, which are measured first.
    Exact,
    /// If memtables are not copied, a part of that: the rest goes to another one.
    Part,
}
