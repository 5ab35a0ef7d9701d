//! Time, behind a trait, so that tests decide how it passes. No other library code reads the clock,
//! but for the emulator, which measures nanoseconds.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A clock that only moves forward.
pub trait Clock: Send + Sync {
    /// The time since some fixed moment.
    fn now(&self) -> Duration;
    /// Lets time pass.
    fn sleep(&self, time: Duration);
}

/// The machine's clock.
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
}

/// A clock that moves only when it is told to, or when somebody sleeps. Clones are one clock.
#[derive(Clone, Default, Debug)]
pub struct ManualClock(Arc<Mutex<Duration>>);

impl ManualClock {
    /// A clock at zero.
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Moves the clock forward.
    pub fn advance(&self, time: Duration) {
        *self.0.lock() += time;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.0.lock()
    }

    fn sleep(&self, time: Duration) {
        self.advance(time);
    }
}
