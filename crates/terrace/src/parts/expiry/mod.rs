//! Expiry: entries that are absent from some time on, and the time of a database.
//!
//! The time of a database never goes back, whatever the clock does: it is the maximum of the clock
//! and the largest time returned before, which the manifest stores with each edit. A database
//! without expiring entries has no time and reads no clock.
//!
//! An expired entry acts as a tombstone in every way: the versions below it stay hidden. Jobs treat
//! it as one up to the *horizon*, the time of the oldest snapshot, so that a snapshot never
//! changes.

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

/// A value with its expiry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Value<'a> {
    pub(crate) bytes: &'a [u8],
    /// The expiry; 0: never.
    pub(crate) expiry: Millis,
}

/// The time of one database.
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    /// The largest time returned; 0: nothing expires.
    handed_out: AtomicU64,
}

impl Time {
    /// Creates the time of a database whose largest time so far is `handed_out`.
    pub(crate) fn new(clock: Arc<dyn Clock>, handed_out: Millis) -> Time {
        Time {
            clock,
            handed_out: AtomicU64::new(handed_out),
        }
    }

    /// Returns the largest time returned so far; 0: nothing expires.
    #[inline]
    pub(crate) fn handed_out(&self) -> Millis {
        // Acquire: a read takes the time before its number. A reader that sees an expiring entry
        // sees a time at least as late as any returned before the entry became visible, and one
        // that sees the effects of a job sees a time not before the job's horizon: following the
        // links to them orders both.
        self.handed_out.load(Ordering::Acquire)
    }

    /// Returns the current time; 0 while nothing expires.
    #[inline]
    pub(crate) fn now(&self) -> Millis {
        if self.handed_out() == 0 {
            0
        } else {
            self.begin()
        }
    }

    /// Returns the current time, and starts the time of a database without expiring entries.
    pub(crate) fn begin(&self) -> Millis {
        let clock = self.clock.unix_millis().max(1);
        self.handed_out
            .fetch_max(clock, Ordering::Relaxed)
            .max(clock)
    }
}

/// Converts `time` to an expiry, rounded up so that nothing expires early. A time before 1970
/// becomes 1, which is long past but still an expiry.
pub(crate) fn millis_of(time: SystemTime) -> Millis {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = since.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).max(1)
}

/// Converts a nonzero expiry to a time, or to an earlier one if the system cannot represent it.
pub(crate) fn time_of(expiry: Millis) -> SystemTime {
    let mut since = Duration::from_millis(expiry);
    // BOUND: after 64 halvings the duration is zero.
    loop {
        match UNIX_EPOCH.checked_add(since) {
            Some(time) => return time,
            None => since /= 2,
        }
    }
}

/// Returns whether an entry with this expiry, 0 for none, is absent at `now`.
#[inline]
pub(crate) fn is_past(expiry: Millis, now: Millis) -> bool {
    expiry != 0 && expiry <= now
}
