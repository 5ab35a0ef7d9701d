//! System calls that a signal may interrupt.
//!
//! Taking space for a file is one: a profiler that sends a signal every few milliseconds ends it each time.
//! What was taken by then stays taken, so the next try has less to do.

use rustix::io::{Errno, Result};

/// How often a call is begun again.
const TRIES_MAX: u32 = 10_000;

/// Runs a call again for as long as signals interrupt it.
pub(crate) fn uninterrupted(mut call: impl FnMut() -> Result<()>) -> Result<()> {
    // BOUND: whoever is sent signals without end gets the error in the end.
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

    /// A call that is interrupted some times ends as it would have; other errors are not tried again, and
    /// signals without end are an error.
    #[test]
    fn interruptions_are_nobodys_business() {
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
