//! Expiry: entries that are absent from a moment on, and the time of a database.
//!
//! The time of a database never goes back, whatever the clock does: it is the clock's, or the largest
//! that was ever told, which the manifest keeps with each edit. A database without expiring entries has no
//! time, and asks no clock.
//!
//! An expired entry is a tombstone in all that it does: what it hides stays hidden. Jobs take it for one up
//! to the *horizon*, the time of the oldest snapshot, so that a snapshot goes on seeing what it saw.

#[cfg(feature = "decoders")]
pub(crate) mod decoders;
pub(crate) mod layout;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use terrace_media::Clock;

/// Milliseconds since 1970.
pub(crate) type Millis = u64;

/// A value and when it expires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Value<'a> {
    pub(crate) bytes: &'a [u8],
    /// 0: never.
    pub(crate) expiry: Millis,
}

/// The time of one database.
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    /// The largest time told; 0: nothing expires.
    told: AtomicU64,
}

impl Time {
    /// The time of a database that was told `told` before.
    pub(crate) fn new(clock: Arc<dyn Clock>, told: Millis) -> Time {
        Time {
            clock,
            told: AtomicU64::new(told),
        }
    }

    /// What has been told; 0: nothing expires.
    #[inline]
    pub(crate) fn told(&self) -> Millis {
        // Acquire: a read takes the time before its number. Whoever sees an expiring entry sees a time that
        // was told before the entry became visible, and whoever sees what a job has dropped sees the
        // job's horizon: both orders come with the links that lead there.
        self.told.load(Ordering::Acquire)
    }

    /// The time now; 0 while nothing expires.
    #[inline]
    pub(crate) fn now(&self) -> Millis {
        if self.told() == 0 { 0 } else { self.begin() }
    }

    /// The time now, also of a database that has had nothing that expires.
    pub(crate) fn begin(&self) -> Millis {
        let clock = self.clock.unix_millis().max(1);
        self.told.fetch_max(clock, Ordering::Relaxed).max(clock)
    }
}

/// The moment `time`, rounded up, so that nothing expires before it. What is before 1970 is the first
/// millisecond of it: long past, and an expiry all the same.
pub(crate) fn millis_of(time: SystemTime) -> Millis {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = since.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).max(1)
}

/// The moment of an expiry that is not 0; the last one that the system can express, if it is later.
pub(crate) fn time_of(expiry: Millis) -> SystemTime {
    let mut since = Duration::from_millis(expiry);
    // BOUND: 64 halves are nothing.
    loop {
        match UNIX_EPOCH.checked_add(since) {
            Some(time) => return time,
            None => since /= 2,
        }
    }
}

/// Whether an entry with this expiry, 0 for none, is absent at a time.
#[inline]
pub(crate) fn is_past(expiry: Millis, now: Millis) -> bool {
    expiry != 0 && expiry <= now
}
