//! Which process this is, asked without a system call.
//!
//! A forked child has copies of all values of its parent, and none of its threads. Whoever keeps the id of the
//! process that made a value can tell that it is used in another one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The id of this process, in a page that the system clears in a forked child. `None`: the system does not do
/// that (Linux before 4.14), so it is asked each time.
static KNOWN: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();

/// The id of the calling process, as [`std::process::id`] gives it.
#[inline]
pub fn process_id() -> u32 {
    let Some(known) = KNOWN.get_or_init(imp::page) else {
        return std::process::id();
    };
    // Relaxed: a process has one id, and each thread that finds none stores the same.
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

    /// A page that forked children find full of zeros. Never unmapped.
    pub(super) fn page() -> Option<&'static AtomicU32> {
        let len = rustix::param::page_size();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the system's choice; nothing else refers to it.
        let page =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }.ok()?;
        // SAFETY: `page` is the mapping above, of `len` bytes, and nobody else has it.
        if unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
            // SAFETY: as above; it is used by nobody.
            let _ = unsafe { munmap(page, len) };
            return None;
        }
        // SAFETY: the mapping is aligned to a page, full of zeros, at least four bytes long, is accessed
        // through this reference only, and stays for the life of the process.
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

/// Begins to run `f` in a forked child.
///
/// The child is a copy of the calling thread alone, so `f` must not wait for another thread, and locks that others
/// held stay locked.
///
/// # Errors
/// Those of the system.
#[doc(hidden)]
pub fn fork_to(f: impl FnOnce() -> u8) -> std::io::Result<ForkedChild> {
    // SAFETY: the child runs `f`, whose caller has read the above, and ends without returning.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            // SAFETY: ends the child without running what its parent has registered for its own end.
            unsafe { libc::_exit(answer.map_or(255, i32::from)) }
        }
        child => Ok(ForkedChild(child)),
    }
}

impl ForkedChild {
    /// Waits for the answer of the child's function; 255 if it panicked.
    ///
    /// # Errors
    /// Those of the system; a child that was ended by a signal.
    pub fn wait(self) -> std::io::Result<u8> {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer.
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

    /// A process has its own id, and a forked child has another one.
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
