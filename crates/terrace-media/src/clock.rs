//! Time behind a trait, so that tests control it. No other library code reads the clock, except the
//! emulator and the stopwatch, which measure nanoseconds.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that never goes backwards.
pub trait Clock: Send + Sync {
    /// Returns the time since a fixed moment.
    fn now(&self) -> Duration;
    /// Sleeps for this time.
    fn sleep(&self, time: Duration);
    /// Returns the calendar time in milliseconds since 1970. May go backwards.
    fn unix_millis(&self) -> u64;
}

/// The system clock.
#[derive(Clone, Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn unix_millis(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
    }
}

/// A clock that moves only by `advance` and `sleep`. Clones share one clock. Its calendar starts
/// one second after the beginning of 1970.
#[derive(Clone, Default, Debug)]
pub struct ManualClock(Arc<Mutex<Moment>>);

#[derive(Default, Debug)]
struct Moment {
    now: Duration,
    /// The time by which the calendar was set back.
    behind: Duration,
}

impl ManualClock {
    /// Returns a clock at zero.
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Moves the clock forward.
    pub fn advance(&self, time: Duration) {
        self.0.lock().now += time;
    }

    /// Sets the calendar back, as an administrator may.
    pub fn set_back(&self, time: Duration) {
        self.0.lock().behind += time;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.0.lock().now
    }

    fn sleep(&self, time: Duration) {
        self.advance(time);
    }

    fn unix_millis(&self) -> u64 {
        let moment = self.0.lock();
        let now = Duration::from_secs(1) + moment.now;
        now.saturating_sub(moment.behind).as_millis() as u64
    }
}
