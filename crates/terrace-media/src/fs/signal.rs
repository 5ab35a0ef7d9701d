//! System calls that a signal may interrupt.
//!
//! Allocating file space is one: a profiler that sends a signal every few milliseconds interrupts
//! it each time. The space allocated by then is kept, so each retry has less to do.

use rustix::io::{Errno, Result};

/// The maximum number of attempts.
const TRIES_MAX: u32 = 10_000;

/// Retries a call while signals interrupt it.
pub(crate) fn uninterrupted(mut call: impl FnMut() -> Result<()>) -> Result<()> {
    // BOUND: with endless signals, the last attempt returns the error.
    for _ in 1..TRIES_MAX {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interrupted call is retried; other errors are returned, and so is `EINTR` if signals
    /// never stop.
    #[test]
    fn interruptions_are_retried() {
        for last in [Ok(()), Err(Errno::NOSPC)] {
            let mut tries = 0;
            let said = uninterrupted(|| {
                tries += 1;
                if tries < 5 { Err(Errno::INTR) } else { last }
            });
            assert_eq!((said, tries), (last, 5));
        }
        assert_eq!(uninterrupted(|| Err(Errno::INTR)), Err(Errno::INTR));
    }
}
