//! A fast clock for timing single operations: the processor's time stamp counter, if it is
//! reliable.
//!
//! Reading the system clock takes 25 to 30 ns even if it uses the same counter, since it waits for
//! all earlier instructions and scales the result twice. That is 3 % of an operation of 1 us.
//! Reading the counter takes 10 ns.
//!
//! The counter is used if it is the clock source of Linux (`tsc`): then the kernel has verified
//! that it never stops, has a constant rate and is synchronized across cores. Otherwise the
//! stopwatch reads the system clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A clock of nanoseconds since its start. Copies share one start.
///
/// The counter is read without a serializing instruction, so the last loads of the preceding
/// operation may still be in progress. Their time, tens of nanoseconds, counts for the next
/// operation; the sum stays correct.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    /// The counter's value at the start, and the nanoseconds per tick in units of 2^-32.
    Counter {
        first: u64,
        scale: u64,
    },
    System(Instant),
}

impl Stopwatch {
    /// Starts a stopwatch. The first call of a process takes 20 ms if it has to calibrate the
    /// counter.
    pub fn start() -> Stopwatch {
        static SCALE: OnceLock<Option<u64>> = OnceLock::new();
        Stopwatch(match *SCALE.get_or_init(counter::scale) {
            Some(scale) => Source::Counter {
                first: counter::read(),
                scale,
            },
            None => Source::System(Instant::now()),
        })
    }

    /// Starts a stopwatch that reads the system clock, even if the counter is reliable.
    pub fn of_system() -> Stopwatch {
        Stopwatch(Source::System(Instant::now()))
    }

    /// Returns the nanoseconds since the start. May be slightly lower on another core, so use
    /// saturating differences.
    #[inline]
    pub fn now(&self) -> u64 {
        match self.0 {
            Source::Counter { first, scale } => {
                let ticks = counter::read().saturating_sub(first);
                ((u128::from(ticks) * u128::from(scale)) >> 32) as u64
            }
            Source::System(start) => start.elapsed().as_nanos() as u64,
        }
    }

    /// Returns the name of the time source, for reports.
    pub fn source(&self) -> &'static str {
        match self.0 {
            Source::Counter { .. } => "the processor's time stamp counter",
            Source::System(_) => "the system's clock",
        }
    }
}

/// The time over which the counter is calibrated. Both ends are read within some 50 ns of the
/// system clock, so the error is a few millionths.
const WATCHED: Duration = Duration::from_millis(20);

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod counter {
    use super::{Instant, WATCHED};

    /// Returns the nanoseconds per tick in units of 2^-32; `None` if the counter is not reliable.
    pub(super) fn scale() -> Option<u64> {
        const CLOCK_SOURCE: &str =
            "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let source = std::fs::read_to_string(CLOCK_SOURCE).unwrap_or_default();
        if source.trim() != "tsc" {
            return None;
        }
        let (ticks, time) = both();
        std::thread::sleep(WATCHED);
        let (ticks_after, time_after) = both();
        let ns = time_after.saturating_duration_since(time).as_nanos() as f64;
        let ns_of_tick = ns / ticks_after.checked_sub(ticks)? as f64;
        // 50 MHz to 20 GHz; a value outside is not plausible.
        (0.05..=20.0)
            .contains(&ns_of_tick)
            .then_some((ns_of_tick * 4_294_967_296.0) as u64)
    }

    /// Reads the counter and the system clock at the same time: the closest pair of several
    /// attempts.
    fn both() -> (u64, Instant) {
        let tries = (0..32).map(|_| {
            let before = read();
            let time = Instant::now();
            let apart = read().saturating_sub(before);
            (apart, before + apart / 2, time)
        });
        let closest = tries.min_by_key(|(apart, ..)| *apart);
        closest.map_or((0, Instant::now()), |(_, ticks, time)| (ticks, time))
    }

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has this instruction. An operating system may forbid it in
        // user mode; Linux does not if its own clock uses it there, which `scale` has checked.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod counter {
    /// No counter is known to be reliable here.
    pub(super) fn scale() -> Option<u64> {
        let _ = super::WATCHED;
        None
    }

    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sources run at the rate of the system clock and do not go backwards on one core.
    #[test]
    fn it_keeps_time() {
        for watch in [Stopwatch::start(), Stopwatch::of_system()] {
            // The thread may be preempted between the two clocks, so one good attempt of 100 is
            // enough.
            let is_right = (0..100).any(|_| {
                let (begun, first) = (Instant::now(), watch.now());
                std::thread::sleep(Duration::from_millis(30));
                let (ns, counted) = (begun.elapsed().as_nanos() as f64, watch.now() - first);
                (counted as f64 / ns - 1.0).abs() < 1e-3
            });
            assert!(is_right, "{}", watch.source());
            let mut last = watch.now();
            for _ in 0..100_000 {
                let now = watch.now();
                // Counters of two cores differ by less than the time of moving a thread between
                // them.
                assert!(now + 1000 > last, "{now} after {last}");
                last = now;
            }
        }
    }
}
