//! The lock of an open file, which belongs to its open file description.
//!
//! The operating system releases it when its owner does, or when the last descriptor of that
//! description is closed. A child process holds copies of its parent's descriptors from `fork`
//! until `exec` closes them, so a lock that its owner has released may stay held while a child
//! starts. Acquiring the lock therefore retries for a short time before it fails.

use crate::process::process_id;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::time::Duration;

/// The pauses between attempts, about 200 ms in total.
const PAUSES_MS: [u64; 8] = [1, 2, 5, 10, 20, 40, 60, 60];

/// An open file that this process has locked.
pub(crate) struct Locked {
    file: File,
    /// The process that took the lock. A forked child has a copy of this value and must not unlock.
    owner: u32,
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Locked {
    /// Releases the lock. Calling it again has no effect.
    pub(crate) fn unlock(&self) {
        if self.owner == process_id() {
            // Unlock explicitly: closing the descriptor would leave the lock to a child forked
            // since.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.unlock();
    }
}

fn locked(file: File, operation: FlockOperation) -> io::Result<Locked> {
    keep_asking(&file, operation)?;
    let owner = process_id();
    Ok(Locked { file, owner })
}

/// Takes an exclusive lock on `file`; `WouldBlock` if it stays locked.
pub(crate) fn exclusive(file: File) -> io::Result<Locked> {
    locked(file, FlockOperation::NonBlockingLockExclusive)
}

/// Takes a shared lock on `file`; `WouldBlock` if it stays locked exclusively.
pub(crate) fn shared(file: File) -> io::Result<Locked> {
    locked(file, FlockOperation::NonBlockingLockShared)
}

fn keep_asking(file: &File, operation: FlockOperation) -> io::Result<()> {
    let take = || rustix::fs::flock(file, operation);
    for pause in PAUSES_MS {
        match take() {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                std::thread::sleep(Duration::from_millis(pause));
            }
            answer => return Ok(answer?),
        }
    }
    Ok(take()?)
}
