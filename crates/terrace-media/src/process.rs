//! The id of the current process, without a system call.
//!
//! A forked child has copies of all values of its parent, but none of its threads. A value that
//! stores the id of the process that created it can detect its use in another process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The id of this process, in a page that the kernel clears in a forked child. `None` if the kernel
/// does not support that (Linux before 4.14); then each call asks for the id.
static KNOWN: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();

/// Returns the id of the calling process, as [`std::process::id`] does.
#[inline]
pub fn process_id() -> u32 {
    let Some(known) = KNOWN.get_or_init(imp::page) else {
        return std::process::id();
    };
    // Relaxed: a process has one id, so all threads that find zero store the same value.
    match known.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            known.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

#[cfg(not(miri))]
mod imp {
    use super::AtomicU32;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    /// Maps a page that is zero in forked children. It is never unmapped.
    pub(super) fn page() -> Option<&'static AtomicU32> {
        let len = rustix::param::page_size();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else refers to it.
        let page =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }.ok()?;
        // SAFETY: `page` is the mapping above, of `len` bytes, and nothing else uses it.
        if unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
            // SAFETY: as above.
            let _ = unsafe { munmap(page, len) };
            return None;
        }
        // SAFETY: the mapping is page-aligned, zeroed, at least four bytes long, accessed only
        // through this reference, and never unmapped.
        Some(unsafe { &*page.cast::<AtomicU32>() })
    }
}

#[cfg(miri)]
mod imp {
    use super::AtomicU32;

    pub(super) fn page() -> Option<&'static AtomicU32> {
        None
    }
}

/// A forked child, for tests.
#[doc(hidden)]
#[derive(Debug)]
pub struct ForkedChild(libc::pid_t);

/// Runs `f` in a forked child.
///
/// The child is a copy of the calling thread only, so `f` must not wait for another thread, and
/// locks held by other threads stay locked.
///
/// # Errors
/// The system's error.
#[doc(hidden)]
pub fn fork_to(f: impl FnOnce() -> u8) -> std::io::Result<ForkedChild> {
    // SAFETY: the caller of this function has met the conditions above on `f`, and the child exits
    // without returning.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            // SAFETY: exits the child without running exit handlers of the parent.
            unsafe { libc::_exit(answer.map_or(255, i32::from)) }
        }
        child => Ok(ForkedChild(child)),
    }
}

impl ForkedChild {
    /// Waits for the child and returns the result of its function; 255 if it panicked.
    ///
    /// # Errors
    /// The system's error, or an error if a signal terminated the child.
    pub fn wait(self) -> std::io::Result<u8> {
        let mut status = 0;
        // SAFETY: `status` is valid for writes.
        if unsafe { libc::waitpid(self.0, &raw mut status, 0) } == -1 {
            return Err(std::io::Error::last_os_error());
        }
        match libc::WIFEXITED(status) {
            true => Ok(libc::WEXITSTATUS(status) as u8),
            false => Err(std::io::Error::other("the child was ended by a signal")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process sees its own id, and a forked child sees a different one.
    #[test]
    fn a_child_is_another_process() {
        let parent = process_id();
        assert_eq!(parent, std::process::id());
        let child = fork_to(|| {
            u8::from(process_id() == std::process::id()) + 2 * u8::from(process_id() == parent)
        });
        assert_eq!(child.unwrap().wait().unwrap(), 1);
        assert_eq!(process_id(), parent);
    }
}
