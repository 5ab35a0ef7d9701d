//! The events that the store logs: openings, ends of jobs, stalls, refusals, failures.
//!
//! The feature `log` compiles them in: `event!` passes a sentence to the crate `log`, if the logger
//! of the process wants its level and target, and does not evaluate its arguments otherwise.
//! Without the feature `event!` is a branch that is false at compile time, and the types here are
//! empty, so other builds contain no trace of them.
//!
//! | target | error | warn | info | debug |
//! |---|---|---|---|---|
//! | `terrace::open` | | a close that fails | an opening, a long step of one, a close | |
//! | `terrace::job` | | a job that a disk refuses, a disk that is full | a disk that has room again | the end of a job, a sync for range deletes |
//! | `terrace::stall` | | a long wait of a writer | | |
//! | `terrace::failure` | the stop of the store | damage found by a read or by verify | | |
//!
//! A message begins with the first eight digits of the database's id; the message of the opening
//! contains all of it. Before the database is open, messages begin with its path.
//!
//! Invariants
//!   E1  A message contains no byte of a key or of a value.
//!   E2  Frequent events are logged rarely: stalls from `STALL_MIN` on, refusals of a job at powers
//!       of two, steps of an opening every `STEP`, damage found by reads once.
//!   E3  A logger may be slow, so no lock of the scheduler or of views is held, with one exception:
//!       a full disk is detected and logged in the middle of a step, which may hold the lock of the
//!       manifest or of the front.
//!
//! Any thread may log. A logger must not call the database that it logs.

use std::fmt;
#[cfg(feature = "log")]
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "log")]
use crate::types::DbId;

/// Shorter waits of writers are counted and not logged.
pub(crate) const STALL_MIN: Duration = Duration::from_millis(100);

/// A longer step of an opening is logged once in this time.
pub(crate) const STEP: Duration = Duration::from_secs(2);

/// Logs an event: `event!(debug, "terrace::job", db, "a sentence with {arguments}")`, where `db` is
/// the `DbId` of the database, or its path before it has been opened.
#[cfg(feature = "log")]
macro_rules! event {
    ($level:ident, $target:literal, $db:expr, $($sentence:tt)+) => {
        ::log::$level!(
            target: $target,
            "{}: {}",
            $crate::events::Tag($db),
            format_args!($($sentence)+)
        )
    };
}

/// Does nothing, and evaluates none of its arguments.
#[cfg(not(feature = "log"))]
macro_rules! event {
    ($level:ident, $target:literal, $db:expr, $($sentence:tt)+) => {
        if false {
            let _ = ($db, format_args!($($sentence)+));
        }
    };
}

pub(crate) use event;

/// The prefix of a message, which identifies its database.
#[cfg(feature = "log")]
pub(crate) struct Tag<T>(pub(crate) T);

#[cfg(feature = "log")]
impl fmt::Display for Tag<DbId> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DbId([a, b, c, d, ..]) = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}")
    }
}

#[cfg(feature = "log")]
impl fmt::Display for Tag<&Path> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// A count with its unit: "1 table", "2 tables", "3 entries".
pub(crate) struct Count(pub(crate) u64, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Count(count, what) = *self;
        match (count, what.strip_suffix('y')) {
            (1, _) => write!(f, "1 {what}"),
            (_, Some(front)) => write!(f, "{count} {front}ies"),
            (_, None) => write!(f, "{count} {what}s"),
        }
    }
}

/// The time at which something began; shown as the time elapsed since.
#[derive(Clone, Copy)]
pub(crate) struct Since(#[cfg(feature = "log")] std::time::Instant);

impl Since {
    /// Returns the current time.
    #[inline]
    pub(crate) fn now() -> Since {
        Since(
            #[cfg(feature = "log")]
            std::time::Instant::now(),
        )
    }
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "log")]
        return write!(f, "{:.1?}", self.0.elapsed());
        #[cfg(not(feature = "log"))]
        f.write_str("an unknown time")
    }
}

/// Limits the rate of a frequent message.
pub(crate) struct Every(#[cfg(feature = "log")] parking_lot::Mutex<std::time::Instant>);

impl Every {
    /// Returns a limit that is due for the first time after a wait.
    pub(crate) fn from_now() -> Every {
        Every(
            #[cfg(feature = "log")]
            parking_lot::Mutex::new(std::time::Instant::now()),
        )
    }

    /// Returns whether at least `wait` has passed since it was last due, or since the beginning.
    #[cfg(feature = "log")]
    pub(crate) fn is_due(&self, wait: Duration) -> bool {
        let mut last = self.0.lock();
        let due = last.elapsed() >= wait;
        if due {
            *last = std::time::Instant::now();
        }
        due
    }

    /// Returns false.
    #[cfg(not(feature = "log"))]
    #[inline(always)]
    pub(crate) const fn is_due(&self, _wait: Duration) -> bool {
        false
    }
}

/// Limits a repeated message to the first time.
#[derive(Default)]
pub(crate) struct Once(#[cfg(feature = "log")] std::sync::atomic::AtomicBool);

impl Once {
    /// Returns whether this is the first call.
    #[cfg(feature = "log")]
    pub(crate) fn is_first(&self) -> bool {
        !self.0.swap(true, std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns false.
    #[cfg(not(feature = "log"))]
    #[inline(always)]
    pub(crate) const fn is_first(&self) -> bool {
        false
    }
}

// Without the feature nothing is stored for events.
#[cfg(not(feature = "log"))]
const _: () = assert!(size_of::<(Since, Every, Once)>() == 0);

#[cfg(test)]
mod tests {
    use super::*;

    /// A count has the right plural.
    #[test]
    fn counts_have_their_plural() {
        let shown = [
            (0, "log"),
            (1, "log"),
            (2, "log"),
            (1, "entry"),
            (7, "entry"),
        ];
        let shown = shown.map(|(count, what)| Count(count, what).to_string());
        assert_eq!(shown, ["0 logs", "1 log", "2 logs", "1 entry", "7 entries"]);
    }

    /// A frequent event is logged after each wait, and immediately only without a wait.
    #[cfg(feature = "log")]
    #[test]
    fn frequent_events_are_logged_rarely() {
        let every = Every::from_now();
        assert!(!every.is_due(Duration::from_secs(3600)));
        assert!(every.is_due(Duration::ZERO));
        let once = Once::default();
        assert!(once.is_first());
        assert!(!once.is_first());
    }
}
