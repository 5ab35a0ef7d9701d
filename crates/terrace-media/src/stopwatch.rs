//! A clock for whoever reads it once for each operation: the processor's counter, where that keeps time.
//!
//! Asking the system for the time takes 25 to 30 ns where it answers from the same counter, since it
//! waits until everything before the question is done, and scales the answer twice. Of an operation that
//! takes 1 us that is 3 %. Reading the counter takes 10 ns.
//!
//! The counter is used where Linux itself keeps time by it (clock source `tsc`): there the kernel has
//! made sure that it never stops, never changes its speed and is the same on all cores. Everywhere else
//! it is the system's clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds since it was started. Copies are one clock.
///
/// The counter is not waited for: it may be read while the last loads of the operation before it are still
/// under way. What they take, tens of nanoseconds, then counts to the next operation; nothing is lost of
/// the sum.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    /// The counter's state at the start, and nanoseconds of a tick in units of 2^-32.
    Counter {
        first: u64,
        scale: u64,
    },
    System(Instant),
}

impl Stopwatch {
    /// Starts one. The first call of a process takes 20 ms where the counter's speed must be found out.
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

    /// One that asks the system's clock, whatever the processor has.
    pub fn of_system() -> Stopwatch {
        Stopwatch(Source::System(Instant::now()))
    }

    /// Nanoseconds since the start. On another core than before it may be some behind, so take
    /// differences that stop at zero.
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

    /// What it reads, for people.
    pub fn source(&self) -> &'static str {
        match self.0 {
            Source::Counter { .. } => "the processor's time stamp counter",
            Source::System(_) => "the system's clock",
        }
    }
}

/// How long the counter is watched to find out its speed. Both ends are read within some 50 ns of the
/// system's clock, so it is known to a few millionths.
const WATCHED: Duration = Duration::from_millis(20);

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod counter {
    use super::{Instant, WATCHED};

    /// Nanoseconds of a tick in units of 2^-32; `None` where the counter does not keep time.
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
        // 50 MHz to 20 GHz; what is outside is no such counter.
        (0.05..=20.0)
            .contains(&ns_of_tick)
            .then_some((ns_of_tick * 4_294_967_296.0) as u64)
    }

    /// The counter and the system's clock at one moment: the closest of some tries.
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
        // SAFETY: an instruction of every x86-64 processor. A system may forbid it to programs; Linux
        // does not where its own clock reads it in the program, which `scale` has made sure of.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod counter {
    /// No counter is known to keep time here.
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

    /// It goes as fast as the system's clock, whatever it reads, and does not go back on one core.
    #[test]
    fn it_keeps_time() {
        for watch in [Stopwatch::start(), Stopwatch::of_system()] {
            // A thread may be put aside between the two clocks, so one try in a hundred is enough.
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
                // Cores may differ by less than what moving a thread between them takes.
                assert!(now + 1000 > last, "{now} after {last}");
                last = now;
            }
        }
    }
}
