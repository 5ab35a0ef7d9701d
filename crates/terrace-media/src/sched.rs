//! Scheduling requests of a thread.

use std::time::Duration;

/// Requests time slices of about `slice`, 0.1 ms to 100 ms, for the calling thread. Returns false
/// if the system does not support that, which affects only latency.
///
/// A thread that wakes may wait for the end of the time slice of the thread that runs on its core,
/// even if that one is less important. Linux uses slices of 1 to 4 ms. A background thread that
/// requests short slices gets the same share of CPU time in smaller pieces, so no other thread
/// waits for it for milliseconds. Requires Linux 6.12; earlier versions ignore the request.
pub fn ask_for_slices(slice: Duration) -> bool {
    imp::ask_for_slices(u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(target_os = "linux")]
mod imp {
    use libc::sched_attr;

    /// The calling thread.
    const SELF: libc::c_int = 0;
    const NO_FLAGS: libc::c_uint = 0;
    const SIZE: u32 = size_of::<sched_attr>() as u32;

    fn attributes() -> Option<sched_attr> {
        // SAFETY: all fields are integers, for which zero is a valid value.
        let mut found: sched_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes at most SIZE bytes, the size of `found`.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sched_getattr,
                SELF,
                &raw mut found,
                SIZE,
                NO_FLAGS,
            )
        };
        (result == 0).then_some(found)
    }

    pub(super) fn ask_for_slices(nanos: u64) -> bool {
        let Some(mut wanted) = attributes() else {
            return false;
        };
        // The process was given another scheduling policy, where `sched_runtime` has another
        // meaning.
        if wanted.sched_policy != libc::SCHED_OTHER as u32 {
            return false;
        }
        wanted.size = SIZE;
        wanted.sched_runtime = nanos;
        // SAFETY: the kernel reads `size` bytes, the size of `wanted`.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_setattr, SELF, &raw const wanted, NO_FLAGS) };
        // Earlier versions accept the call and ignore the slice.
        result == 0 && attributes().is_some_and(|now| now.sched_runtime == nanos)
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    pub(super) fn ask_for_slices(_: u64) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request is harmless on every system and returns the same result twice.
    #[test]
    fn slices_are_had_or_not() {
        let ask = || ask_for_slices(Duration::from_micros(500));
        let (had, again) = std::thread::spawn(move || (ask(), ask())).join().unwrap();
        assert_eq!(had, again);
    }
}
