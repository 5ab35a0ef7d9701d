//! The lock of a file that is open: one open file description has it, or nobody.
//!
//! The operating system gives it back when its owner does, or when the last descriptor of that
//! description is closed. A process that starts another one has a copy of all its descriptors in the child until the child
//! runs its own program, which closes them; so a lock that its owner has let go of may be held on
//! for as long as a child takes to start. Whoever wants the lock therefore asks again for a short
//! while before the answer is that somebody has it.

use crate::process::process_id;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::time::Duration;

/// The pauses between tries, together about 200 ms.
const PAUSES_MS: [u64; 8] = [1, 2, 5, 10, 20, 40, 60, 60];

/// An open file whose lock this process has taken.
pub(crate) struct Locked {
    file: File,
    /// A forked child has a copy of this value, and the lock is not the child's to give back.
    owner: u32,
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Locked {
    /// Gives the lock back; a second time nothing happens.
    pub(crate) fn unlock(&self) {
        if self.owner == process_id() {
            // Closing the descriptor would leave the lock with a child that was forked meanwhile.
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

/// Takes the lock of `file`; `WouldBlock` if somebody else has it and keeps it.
pub(crate) fn exclusive(file: File) -> io::Result<Locked> {
    locked(file, FlockOperation::NonBlockingLockExclusive)
}

/// Takes the lock of `file` beside others who do the same; `WouldBlock` if somebody has it for himself.
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
