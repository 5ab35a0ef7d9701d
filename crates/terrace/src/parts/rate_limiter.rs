//! The rate limiter of background writes to files.
//!
//! Writers charge the bytes that they write. The thread that runs jobs asks how long a job should
//! wait before its next step, and runs another job meanwhile. The closer the store is to throttling
//! writers because of pending work, the higher the rate: at a haste of 1 there is no limit, so the
//! limit never slows or stalls a writer. Work that must not wait is charged too, so that the rest
//! leaves bandwidth for it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::metrics::RateLimiterMetrics;

/// The burst after an idle time, as a fraction of the bytes per second.
const BURST: f64 = 0.1;
/// BOUND: no wait is longer; the caller asks again afterwards.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The debt may be too small for a measurable wait; a minimum keeps the caller from asking forever.
const WAIT_MIN: Duration = Duration::from_micros(1);

/// A rate limit, shared by any number of threads.
#[derive(Default)]
pub(crate) struct RateLimiter {
    /// The limit in bytes per second; `None`: no limit.
    rate: Option<u64>,
    /// Bytes written since the account was last updated.
    fresh: AtomicU64,
    /// LOCK: held for an addition.
    account: Mutex<Account>,
    waits: AtomicU64,
    wait_nanos: AtomicU64,
    /// The number of callers for which it is lifted.
    lifted: AtomicUsize,
}

/// Lifts a limit until it is dropped.
pub(crate) struct Lifted<'a>(&'a RateLimiter);

impl Drop for Lifted<'_> {
    fn drop(&mut self) {
        self.0.lifted.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Account {
    /// Bytes written beyond the allowance up to `at`; if negative, the available burst.
    owed: f64,
    at: Option<Instant>,
}

impl RateLimiter {
    /// Creates a limit in bytes per second.
    pub(crate) fn new(rate: Option<u64>) -> RateLimiter {
        RateLimiter {
            rate,
            ..RateLimiter::default()
        }
    }

    /// Lifts the limit while the result lives: a caller waits for all work.
    pub(crate) fn lift(&self) -> Lifted<'_> {
        self.lifted.fetch_add(1, Ordering::Relaxed);
        Lifted(self)
    }

    /// Charges bytes written.
    #[inline]
    pub(crate) fn charge(&self, bytes: u64) {
        if self.rate.is_some() {
            self.fresh.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the time to wait at `now` before the next write, given the current `haste`.
    pub(crate) fn wait(&self, now: Instant, haste: f64) -> Option<Duration> {
        let rate = self.rate? as f64;
        let mut account = self.account.lock();
        let since = account
            .at
            .replace(now)
            .map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        let fresh = self.fresh.swap(0, Ordering::Relaxed) as f64;
        if haste >= 1.0 || self.lifted.load(Ordering::Relaxed) > 0 {
            account.owed = 0.0;
            return None;
        }
        let rate = rate / (1.0 - haste.max(0.0));
        account.owed = (account.owed + fresh - since * rate).max(-rate * BURST);
        if account.owed <= 0.0 {
            return None;
        }
        let wait = Duration::from_secs_f64(account.owed / rate).clamp(WAIT_MIN, WAIT_MAX);
        drop(account);
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.wait_nanos
            .fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
        Some(wait)
    }

    /// Returns the limit and the waits so far.
    pub(crate) fn metrics(&self) -> RateLimiterMetrics {
        RateLimiterMetrics {
            rate_max: self.rate,
            wait_count: self.waits.load(Ordering::Relaxed),
            wait_time: Duration::from_nanos(self.wait_nanos.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a mebibyte per step and waits as requested; returns the bytes and the time taken.
    fn written(rate_limiter: &RateLimiter, haste: f64, steps: usize) -> (u64, Duration) {
        let mut now = Instant::now();
        let start = now;
        let mut bytes = 0;
        for _ in 0..steps {
            rate_limiter.charge(1 << 20);
            bytes += 1 << 20;
            // BOUND: each wait pays for a tenth of a second of the rate.
            while let Some(wait) = rate_limiter.wait(now, haste) {
                now += wait;
            }
        }
        (bytes, now - start)
    }

    /// The rate is kept over any time, up to one burst.
    #[test]
    fn the_rate_is_kept() {
        let rate_limiter = RateLimiter::new(Some(8 << 20));
        let (bytes, time) = written(&rate_limiter, 0.0, 80);
        let rate = bytes as f64 / time.as_secs_f64();
        assert!((rate / f64::from(8 << 20) - 1.0).abs() < 0.05, "{rate}");
        assert!(rate_limiter.metrics().wait_count > 0);
    }

    /// A long idle time allows one burst and no more.
    #[test]
    fn a_rest_allows_one_burst() {
        let rate_limiter = RateLimiter::new(Some(10 << 20));
        let start = Instant::now();
        assert_eq!(rate_limiter.wait(start, 0.0), None);
        let later = start + Duration::from_secs(3600);
        assert_eq!(rate_limiter.wait(later, 0.0), None);
        rate_limiter.charge(1 << 20);
        assert_eq!(
            rate_limiter.wait(later, 0.0),
            None,
            "as much as for a tenth of a second"
        );
        rate_limiter.charge(1 << 20);
        assert!(rate_limiter.wait(later, 0.0).is_some());
    }

    /// Haste raises the rate steadily, up to no limit at all.
    #[test]
    fn haste_raises_the_rate() {
        let mut last = Duration::MAX;
        for haste in [0.0, 0.25, 0.5, 0.9, 0.99] {
            let (_, time) = written(&RateLimiter::new(Some(1 << 20)), haste, 50);
            assert!(time < last, "{haste}: {time:?}");
            last = time;
        }
        let (_, time) = written(&RateLimiter::new(Some(1)), 1.0, 50);
        assert_eq!(time, Duration::ZERO);
    }

    /// While any caller has it lifted there is no limit.
    #[test]
    fn a_lifted_limit_makes_nothing_wait() {
        let rate_limiter = RateLimiter::new(Some(1 << 20));
        let (one, other) = (rate_limiter.lift(), rate_limiter.lift());
        drop(one);
        assert_eq!(written(&rate_limiter, 0.0, 20).1, Duration::ZERO);
        drop(other);
        assert!(written(&rate_limiter, 0.0, 20).1 > Duration::from_secs(10));
    }

    /// Bytes written in haste are forgiven: no caller pays for them afterwards.
    #[test]
    fn haste_leaves_no_debt() {
        let rate_limiter = RateLimiter::new(Some(1 << 20));
        let start = Instant::now();
        assert_eq!(rate_limiter.wait(start, 0.0), None);
        rate_limiter.charge(1 << 30);
        assert_eq!(rate_limiter.wait(start, 0.0), Some(WAIT_MAX));
        assert_eq!(rate_limiter.wait(start, 1.0), None);
        assert_eq!(rate_limiter.wait(start, 0.0), None);
        assert_eq!(rate_limiter.metrics().wait_count, 1);
    }

    /// Work that never waits is charged: work that does leaves bandwidth for it, and the sum keeps
    /// the rate.
    #[test]
    fn others_count() {
        let rate_limiter = RateLimiter::new(Some(8 << 20));
        let mut now = Instant::now();
        let (start, mut bytes) = (now, 0u64);
        for _ in 0..40 {
            // A flush and a compaction write a mebibyte each.
            rate_limiter.charge(1 << 20);
            rate_limiter.charge(1 << 20);
            bytes += 2 << 20;
            while let Some(wait) = rate_limiter.wait(now, 0.0) {
                assert!((WAIT_MIN..=WAIT_MAX).contains(&wait));
                now += wait;
            }
        }
        let rate = bytes as f64 / (now - start).as_secs_f64();
        assert!((rate / f64::from(8 << 20) - 1.0).abs() < 0.05, "{rate}");
    }

    /// A time before the last one, as concurrent callers may pass, allows nothing more.
    #[test]
    fn time_that_goes_back_allows_nothing() {
        let rate_limiter = RateLimiter::new(Some(1 << 20));
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        assert_eq!(rate_limiter.wait(later, 0.0), None);
        rate_limiter.charge(1 << 20);
        let owed = rate_limiter.wait(later, 0.0);
        assert_eq!(owed, Some(WAIT_MAX));
        assert_eq!(rate_limiter.wait(start, 0.0), owed);
    }

    /// Without a limit nothing waits and nothing is counted.
    #[test]
    fn no_limit_is_no_wait() {
        let rate_limiter = RateLimiter::new(None);
        assert_eq!(written(&rate_limiter, 0.0, 50).1, Duration::ZERO);
        assert_eq!(rate_limiter.metrics(), RateLimiterMetrics::default());
    }
}
