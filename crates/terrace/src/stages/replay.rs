//! Replay contract: how the logs of an earlier opening become sealed memtables.

use std::any::Any;

use crate::error::Result;

/// What the replay of one log found.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Replayed {
    pub(crate) records: u64,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// How the replay of a log may begin.
pub(crate) enum ReplayStart {
    /// It is to be called with what is to be told of bytes that were read.
    Task(ReplayTask),
    /// There is no room for its memtable now, as the error says.
    Full(crate::error::Error),
    /// There is no log left.
    Done,
}

/// Replays one log.
pub(crate) type ReplayTask = Box<dyn FnOnce(&dyn Fn(u64)) -> Result<ReplayEnded> + Send>;

/// What the replay of one log has made, for the front that began it.
pub(crate) struct ReplayEnded(pub(crate) Box<dyn Any + Send>);

/// What became of a replay that has ended.
pub(crate) enum ReplayTaken {
    Sealed(Replayed),
    /// Its memtable was too small for all of it: what is left is to be undone.
    Unfinished(ReplayEnded),
}

/// How large the memtable of a replay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplaySize {
    /// As large as memtables are, for speed: the log is read once.
    Usual,
    /// As large as the log's entries are, which are measured first.
    Exact,
    /// Where memtables are not copied, a part of that: the rest comes in another one.
    Part,
}
