//! The open database that handles share, and its close.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::{FileLock, FileSystem};

use super::Progress;
use super::open::ProgressHook;
use super::trace::Trace;
use crate::engine::Engine;
use crate::engine::recover::RecoveryReport;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Since, event};

/// The shared state of all handles of one opening. It closes with the last of them.
pub(super) struct Handle {
    pub(super) engine: Arc<Engine>,
    pub(super) path: PathBuf,
    /// The file system that contains the directory.
    pub(super) fs: Arc<dyn FileSystem>,
    /// The directory as this database sees it: if it is only read, its changes are in memory.
    pub(super) files: Arc<dyn FileSystem>,
    pub(super) recovery: RecoveryReport,
    /// Guards the catalog of keyspaces while one is created or dropped.
    pub(super) catalog: Mutex<()>,
    /// Receives the progress of a close.
    pub(super) progress: Option<ProgressHook>,
    /// Records the calls of users, if they are traced.
    pub(super) trace: Option<Arc<Trace>>,
    /// Keeps other processes out until the database is closed.
    pub(super) lock: Mutex<Option<Box<dyn FileLock>>>,
}

impl Handle {
    /// Releases the locks, so that others can open the database although handles remain.
    fn unlock(&self) {
        self.engine.shared.pool.unlock();
        *self.lock.lock() = None;
    }

    /// Closes the database; with `gives_up` even if that loses `Volatile` entries.
    pub(super) fn close(&self, gives_up: bool) -> Result<()> {
        let begun = Since::now();
        let db = self.engine.shared.db;
        let result = self.close_once(gives_up);
        match &result {
            Ok(()) => event!(info, "terrace::open", db, "closed in {begun}"),
            // It was closed before.
            Err(e) if e.kind() == ErrorKind::Closed => {}
            Err(e) => event!(warn, "terrace::open", db, "close failed after {begun}: {e}"),
        }
        result
    }

    fn close_once(&self, gives_up: bool) -> Result<()> {
        let engine = &self.engine;
        engine.check_open()?;
        if engine.shared.options.read_only {
            if !engine.mark_closed() {
                return Err(Error::closed());
            }
            self.unlock();
            return self.trace.as_ref().map_or(Ok(()), |trace| trace.finish());
        }
        // The caller waits for all that jobs write until they are stopped.
        let _lifted = engine.shared.rate_limiter.lift();
        // The flush below misses entries that are written after it, so all of them are logged.
        engine.stages.front.log_all();
        // A full pool or disk must not prevent a close: the log has what is not written out.
        let written_out = engine.write_out(&|done, total| {
            if let Some(progress) = &self.progress {
                progress(&Progress {
                    what: "writing out the buffer",
                    done,
                    total,
                    unit: "bytes",
                });
            }
        });
        let written_out = match written_out {
            Err(e) if e.kind() == ErrorKind::Full => {
                if !gives_up && engine.close_would_lose() {
                    return Err(stays_open(&e));
                }
                Ok(())
            }
            other => other,
        };
        if !engine.mark_closed() {
            return Err(Error::closed());
        }
        engine.stop();
        // A job may have failed since the last call, and only the caller of this one can learn of
        // it.
        let sealed_off = engine.check_not_failed().and_then(|()| engine.seal_off());
        let result = written_out.and(sealed_off);
        if result.is_ok() {
            engine.shared.pool.mark_clean()?;
        }
        self.unlock();
        let traced = self.trace.as_ref().map_or(Ok(()), |trace| trace.finish());
        result.and(traced)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.engine.is_foreign() {
            // Its parts would remove files that they believe replaced, and wait for locks and
            // threads that this process does not have.
            std::mem::forget(Arc::clone(&self.engine));
            return;
        }
        let _ = self.close(true);
    }
}

fn stays_open(e: &Error) -> Error {
    Error::new(
        ErrorKind::Full,
        format!(
            "the database stays open, because closing it would lose volatile writes: {e}; free \
             space and close again, or drop the last handle to discard these writes"
        ),
    )
    .because(e.clone())
}
