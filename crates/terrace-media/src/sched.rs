//! What a thread asks of the scheduler.

use std::time::Duration;

/// Asks for time slices of about `slice` for the calling thread, 0.1 ms to 100 ms. False where the
/// system knows no such thing, which changes nothing but latency.
///
/// A thread that wakes may have to wait for the end of the slice of the one that runs on its core,
/// even when that one is less important. Linux gives slices of 1 to 4 ms. A thread that works in the
/// background and asks for short ones gets the same share of the time in smaller pieces, and nobody
/// waits for it for milliseconds. Since Linux 6.12; earlier versions ignore it.
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
        // SAFETY: integers, for which zero is a value.
        let mut found: sched_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the system writes at most SIZE bytes to `found`, which has them.
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
        // Somebody has given this process another policy, where a runtime means something else.
        if wanted.sched_policy != libc::SCHED_OTHER as u32 {
            return false;
        }
        wanted.size = SIZE;
        wanted.sched_runtime = nanos;
        // SAFETY: the system reads `size` bytes of `wanted`, which has them.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_setattr, SELF, &raw const wanted, NO_FLAGS) };
        // An earlier version takes the call and ignores the slice.
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

    /// Asking is harmless wherever it is done, and says the same twice.
    #[test]
    fn slices_are_had_or_not() {
        let ask = || ask_for_slices(Duration::from_micros(500));
        let (had, again) = std::thread::spawn(move || (ask(), ask())).join().unwrap();
        assert_eq!(had, again);
    }
}
