//! The time of a run: a clock that jumps forward, at instants known to histories.
//!
//! A writer of an entry that expires soon holds the clock, so it is known whether the write or the
//! jump came first. Reads hold nothing, so the clock jumps between any two of their steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use terrace_media::Clock;

use crate::history::{Event, History};

/// The initial time in milliseconds.
const START: u64 = 1_000_000;

/// See the module documentation.
pub(super) struct Jumping {
    millis: AtomicU64,
    held: RwLock<()>,
    jumps: Mutex<Vec<Jump>>,
    looks: AtomicU64,
}

/// A jump of the clock.
#[derive(Clone, Copy)]
pub(super) struct Jump {
    called: u64,
    returned: u64,
    to: u64,
}

/// A write, by its index in the history, whose entry is absent from a time on.
#[derive(Clone, Copy)]
pub(super) struct Expiry {
    pub(super) write: usize,
    pub(super) at: u64,
}

impl Jumping {
    pub(super) fn new() -> Jumping {
        Jumping {
            millis: AtomicU64::new(START),
            held: RwLock::new(()),
            jumps: Mutex::new(Vec::new()),
            looks: AtomicU64::new(0),
        }
    }

    /// Holds the clock until the guard is dropped. Returns the guard and the time.
    pub(super) fn hold(&self) -> (RwLockReadGuard<'_, ()>, u64) {
        let guard = self.held.read().unwrap_or_else(PoisonError::into_inner);
        (guard, self.millis.load(Ordering::SeqCst))
    }

    /// Moves the clock. `tick` returns instants.
    pub(super) fn jump(&self, millis: u64, tick: impl Fn() -> u64) {
        let _alone = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let called = tick();
        let to = self.millis.fetch_add(millis, Ordering::SeqCst) + millis;
        let returned = tick();
        let mut jumps = self.jumps.lock().unwrap_or_else(PoisonError::into_inner);
        jumps.push(Jump {
            called,
            returned,
            to,
        });
    }

    /// Returns all jumps, in order.
    pub(super) fn jumps(&self) -> Vec<Jump> {
        let jumps = self.jumps.lock().unwrap_or_else(PoisonError::into_inner);
        jumps.clone()
    }
}

impl Clock for Jumping {
    fn now(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::SeqCst))
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn unix_millis(&self) -> u64 {
        let now = self.millis.load(Ordering::SeqCst);
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        if looks.is_multiple_of(16) {
            // Lets other threads run between reading the clock and the next step.
            std::thread::yield_now();
        }
        now
    }
}

/// Adds the expiries to a history of one writer: each is a write of nothing, made by the jump that
/// reached its time, unless the writer wrote again before it.
pub(super) fn expire(history: &mut History, expiries: &[Expiry], jumps: &[Jump]) {
    for expiry in expiries.iter().rev() {
        let Some(jump) = jumps.get(jumps.partition_point(|jump| jump.to < expiry.at)) else {
            continue;
        };
        let next = history.writes.get(expiry.write + 1);
        if next.is_none_or(|next| next.called > jump.returned) {
            let gone = Event {
                called: jump.called,
                returned: jump.returned,
                value: None,
                how: "expiry",
            };
            history.writes.insert(expiry.write + 1, gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(called: u64, returned: u64, value: Option<u64>) -> Event {
        Event {
            called,
            returned,
            value,
            how: "",
        }
    }

    /// An entry shows until its time has come, and not afterwards. One that was replaced before
    /// does not expire.
    #[test]
    fn entries_expire_once_their_time_has_come() {
        let jump = |called, to| Jump {
            called,
            returned: called + 1,
            to,
        };
        let jumps = [jump(10, 105), jump(20, 110), jump(40, 200)];
        let written = History {
            writes: vec![event(1, 2, Some(1)), event(30, 31, Some(2))],
            reads: Vec::new(),
        };
        let expiries = [Expiry { write: 0, at: 110 }, Expiry { write: 1, at: 201 }];
        let check = |called, value| {
            let mut history = written.clone();
            history.reads = vec![event(called, called + 1, value)];
            expire(&mut history, &expiries, &jumps);
            history.check_one_writer()
        };
        assert_eq!(check(12, Some(1)), Ok(()));
        assert!(check(12, None).is_err());
        assert_eq!(check(20, Some(1)), Ok(()));
        assert_eq!(check(20, None), Ok(()));
        assert!(check(22, Some(1)).is_err());
        assert_eq!(check(22, None), Ok(()));
        assert_eq!(check(50, Some(2)), Ok(()));
        assert!(check(50, None).is_err());
        let replaced = [Expiry { write: 0, at: 200 }];
        let mut history = written.clone();
        expire(&mut history, &replaced, &jumps);
        assert_eq!(history.writes, written.writes);
    }
}
