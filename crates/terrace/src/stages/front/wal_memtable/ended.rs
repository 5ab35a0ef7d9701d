//! The end of a log that takes no more records, because its memtable is flushed or the database
//! closed.
//!
//! The end of the records is recorded twice, each time once they are durable: by a seal in the log
//! itself, which is there at once, and by the next edit of the manifest, which a truncated log
//! cannot contradict.

use std::sync::Arc;

use super::files::{LogFiles, end_log};
use super::memtable::{self, Memtable};
use super::{FlushTo, append_failed, not_published};
use crate::error::Result;
use crate::stages::Shared;

/// Waits until all writers of a sealed memtable are done. Returns whether each of its entries is
/// durable without it, in a log that is synced.
pub(super) fn finish(
    shared: &Shared,
    log_files: &LogFiles,
    memtable: &Memtable,
    flush_to: FlushTo,
) -> Result<bool> {
    // BOUND: writers that hold numbers of this memtable only have to finish copying.
    if !shared.sequencer.wait_visible(memtable.seqs().1) {
        return Err(not_published());
    }
    let stays = flush_to == FlushTo::Tables || !shared.pool_outlives();
    if flush_to == FlushTo::Bottom || !stays {
        // The flush makes its entries durable, and retires the log.
        return Ok(false);
    }
    // The entries still depend on the log. A file is not synced here, which would make every
    // buffered byte wait for the disk: the next requested sync has to find it. A log in a pool is
    // the table that the flush makes, so it is synced.
    // LOCK: before the memtable is forgotten; a sync takes the memtables first, and looks here
    // then.
    let Some(log) = &memtable.log else {
        // Replayed: recovery has synced a log in the pool, and left one in a file to be synced.
        return Ok(memtable.kept.is_some());
    };
    let now = shared.pool_outlives() || shared.reserve.is_tight();
    // PERSIST: the log before its memtable counts as flushed. Reversed, a power loss could take
    // entries that a flush has promised to keep.
    let synced = memtable::is_synced(&**log, now).map_err(|e| append_failed(shared, e))?;
    log_files.trim(memtable.id, log.bytes());
    match synced {
        true => end_log(shared, memtable.id, &**log, Some(memtable.seqs().1 + 1)),
        false => log_files
            .leave_unsynced(memtable.id, Arc::clone(log), Some(memtable.seqs().1 + 1))
            .map_err(|e| append_failed(shared, e))?,
    }
    Ok(synced && !memtable.has_unlogged())
}
