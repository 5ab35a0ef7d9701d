//! The open loop: operations start on a schedule, even if the store cannot keep up.
//!
//! In a closed loop, a thread starts an operation when its last one has ended, so a stalled store
//! receives no operations, and the stall shows as one long latency. Real users do not wait like
//! that. In an open loop, operations arrive at a fixed rate, and a latency counts from the
//! scheduled start, so it includes the time an operation queues behind a stall.

use std::str::FromStr;
use std::time::Duration;

use terrace_media::Stopwatch;

/// The distribution of arrivals in an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Constant,
    /// At random and independent, like those of many users: exponential distances.
    Poisson,
}

impl Arrivals {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Arrivals::Constant => "constant",
            Arrivals::Poisson => "poisson",
        }
    }
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Arrivals, String> {
        match text {
            "constant" => Ok(Arrivals::Constant),
            "poisson" => Ok(Arrivals::Poisson),
            _ => Err(format!("{text:?} is unknown; use constant or poisson")),
        }
    }
}

/// A thread sleeps until this long before its turn and then polls the clock, since the operating
/// system wakes it late.
const WATCH: Duration = Duration::from_micros(100);

/// The interval at which a waiting thread checks whether it must stop.
const LOOK: Duration = Duration::from_millis(20);

/// The scheduled starts of one thread's operations.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    /// The scheduled start of the last operation, in nanoseconds since the start, and that of the
    /// next one.
    last_ns: u64,
    next_ns: f64,
    gap_ns: f64,
    arrivals: Arrivals,
    rng: fastrand::Rng,
}

impl Schedule {
    /// Returns the schedule of worker number `thread` of `threads` that share `rate` operations a
    /// second.
    pub(crate) fn new(
        rate: f64,
        arrivals: Arrivals,
        thread: usize,
        threads: usize,
        seed: u64,
    ) -> Schedule {
        let every_ns = 1e9 / rate;
        Schedule {
            last_ns: 0,
            // Threads take turns, so that all of them together keep equal distances.
            next_ns: every_ns * thread as f64,
            gap_ns: every_ns * threads as f64,
            arrivals,
            rng: fastrand::Rng::with_seed(seed ^ 0xA5A5),
        }
    }

    /// Returns the scheduled start of the last operation.
    pub(crate) fn last(&self) -> u64 {
        self.last_ns
    }

    /// Returns the scheduled start of the next operation, in nanoseconds since the start; it stands
    /// for `ops` arrivals.
    pub(crate) fn next(&mut self, ops: u64) -> u64 {
        self.last_ns = self.next_ns as u64;
        self.next_ns += match self.arrivals {
            Arrivals::Constant => self.gap_ns * ops as f64,
            Arrivals::Poisson => (0..ops)
                .map(|_| -(1.0 - self.rng.f64()).ln() * self.gap_ns)
                .sum(),
        };
        self.last_ns
    }
}

/// Waits until `watch` shows `at`, or until `is_stopped` returns true.
pub(crate) fn wait_until(at: u64, watch: &Stopwatch, is_stopped: impl Fn() -> bool) {
    // BOUND: time passes, and the end of the workload stops every thread.
    loop {
        let left = Duration::from_nanos(at.saturating_sub(watch.now()));
        if left.is_zero() || is_stopped() {
            return;
        }
        if left > WATCH {
            std::thread::sleep((left - WATCH).min(LOOK));
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(arrivals: Arrivals, thread: usize, threads: usize, count: usize) -> Vec<f64> {
        let mut schedule = Schedule::new(1000.0, arrivals, thread, threads, 7);
        let at = (0..count).map(|_| schedule.next(1));
        at.map(|ns| ns as f64 / 1e6).collect()
    }

    /// Threads together keep equal distances: their turns, sorted, are one a millisecond.
    #[test]
    fn constant_arrivals_are_even() {
        let mut all: Vec<f64> = (0..4)
            .flat_map(|thread| turns(Arrivals::Constant, thread, 4, 25))
            .collect();
        all.sort_by(f64::total_cmp);
        for (i, at) in all.iter().enumerate() {
            assert!((at - i as f64).abs() < 1e-3, "{i} at {at}");
        }
    }

    /// Poisson arrivals have the rate and the spread of an exponential distribution.
    #[test]
    fn poisson_arrivals_are_exponential() {
        let all = turns(Arrivals::Poisson, 0, 1, 50_001);
        let gaps: Vec<f64> = all.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>();
        let deviation = (variance / gaps.len() as f64).sqrt();
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
        assert!((deviation - 1.0).abs() < 0.05, "{deviation}");
    }

    /// A batch takes as many arrivals as it has entries.
    #[test]
    fn batches_take_their_turns_together() {
        let mut schedule = Schedule::new(1000.0, Arrivals::Constant, 0, 1, 7);
        let first = schedule.next(10);
        assert_eq!(schedule.next(1) - first, 10_000_000);
        assert_eq!(schedule.last(), 10_000_000);
    }

    /// A wait ends when it is stopped, even if its time has not come.
    #[test]
    fn a_wait_can_be_stopped() {
        let watch = Stopwatch::start();
        wait_until(u64::MAX, &watch, || true);
        wait_until(watch.now(), &watch, || false);
    }
}
