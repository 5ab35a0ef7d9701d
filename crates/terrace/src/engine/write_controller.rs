//! The write controller: limits the rate of writers while the store cannot move data down as fast.
//!
//! Pressure is how near the store is to the point at which writers would have to stop: 0 is no
//! need, 1 is that point. At zero pressure nothing is limited and nothing is counted. Above it the
//! controller looks for the rate at which pressure stays at one half: the rate at which background
//! work keeps up, whatever limits that: a slow disk, a compaction of many levels, other processes.
//! Background work comes and goes in pieces as large as a memtable or a table, so pressure jumps;
//! the rate must not. A proportional part reacts to each jump by a small factor, and an integral
//! part finds the rate over a second or so.
//!
//! Every write of every thread is charged for its bytes. A write sleeps when the waits of those
//! before it, its own included, have come to as long as a sleep takes: short sleeps, 50 ms at most,
//! instead of a long stop now and then. If one slept too long, as sleepers do, the excess is
//! credited to the next ones. No writer spins until its time has come: where background work has
//! few cores, that would slow the very work that it waits for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::metrics::{Counters, OpCounter};
use crate::stages::Pressure;

/// The pressure that the controller aims at: as far from stopping writers as from leaving
/// background work idle.
const AIM: f64 = 0.5;
/// The seconds in which the rate changes by a factor of e for each unit by which pressure is off
/// the aim. Shorter: jumps of pressure reach the rate. Longer: the reserve is used up before a
/// slower disk is noticed.
const INTEGRAL_SECONDS_MIN: f64 = 1.0;
/// The same while background work is idle: its limit no longer holds, and writers must not wait for
/// nothing.
const IDLE_SECONDS: f64 = 0.1;
/// The factor by which a unit of pressure changes the rate at once.
const PROPORTIONAL: f64 = 4.0;
/// The pressure for each unit by which writers are ahead of a drain. Less: they reach the stop long
/// before it ends. More: they follow its pieces.
const BESIDE_DRAIN: f64 = 4.0;
/// Above this pressure, writers are slowed more and more, so that they reach the stop, if ever, at
/// a crawl.
const NEAR_STOP: f64 = 0.75;
/// The part of the rate that is left at the stop.
const CRAWL: f64 = 1.0 / 16.0;
/// The lowest rate in bytes per second. Stopping writers is left to others.
const RATE_MIN: f64 = 1024.0 * 1024.0;
/// Written bytes are measured over at least this time.
const WINDOW: f64 = 0.02;
/// A longer window without a look does not show how fast writers are while they write.
const WINDOW_MAX: f64 = 0.1;
/// The time constant of the average, in seconds.
const AVERAGE: f64 = 0.3;
/// The interval of looks by slowed writers, in nanoseconds.
const LOOK_NANOS: u64 = 2_000_000;
/// The charge for an entry in addition to its key and value: its place in log and memtable.
const ENTRY_BYTES: u64 = 32;
/// The idle time that writers may make up for at full speed, in nanoseconds.
const CREDIT_NANOS: u64 = 1_000_000;
/// BOUND: no write waits longer; the rest is left to the next ones.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// The shortest wait that is worth a sleep, which overshoots by about this much. A shorter one is
/// left to the next writes.
const SLEEP_MIN: Duration = Duration::from_micros(60);

/// The limit on the rate of writers. Any number of threads may use it.
pub(crate) struct WriteController {
    started: Instant,
    /// Nanoseconds per mebibyte; 0 is no limit.
    cost: AtomicU64,
    /// When the next write is due, in nanoseconds since the start.
    next: AtomicU64,
    /// When the next look is due, in nanoseconds since the start.
    look: AtomicU64,
    /// LOCK: held for a few floating-point operations.
    control: Mutex<Control>,
}

impl WriteController {
    pub(crate) fn new() -> WriteController {
        WriteController {
            started: Instant::now(),
            cost: AtomicU64::new(0),
            next: AtomicU64::new(0),
            look: AtomicU64::new(0),
            control: Mutex::new(Control::default()),
        }
    }

    /// Returns whether writers are slowed.
    #[inline]
    pub(crate) fn slows(&self) -> bool {
        self.cost.load(Ordering::Relaxed) != 0
    }

    /// Returns whether it is time to report the pressure again; true for one of the callers.
    pub(crate) fn look_is_due(&self) -> bool {
        let now = self.started.elapsed().as_nanos() as u64;
        let due = self.look.load(Ordering::Relaxed);
        now >= due
            && self
                .look
                .compare_exchange(due, now + LOOK_NANOS, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Sets the rate for this pressure. `busy`: background work has something to do.
    pub(crate) fn steer(&self, pressure: Pressure, counters: &Counters, busy: bool) {
        let now = self.started.elapsed().as_secs_f64();
        let bytes = counters.sum(OpCounter::UserBytes);
        let entries = counters.sum(OpCounter::Puts);
        let written = bytes + entries * ENTRY_BYTES;
        let rate = self.control.lock().step(now, written, pressure, busy);
        let cost = rate.map_or(0, |rate| ((1u64 << 20) as f64 * 1e9 / rate) as u64);
        self.cost.store(cost, Ordering::Relaxed);
    }

    /// Charges a write of `entries` with `bytes` in total. Returns how long it has to wait.
    pub(crate) fn charge(&self, bytes: u64, entries: u64) -> Duration {
        let bytes = bytes.saturating_add(entries.saturating_mul(ENTRY_BYTES));
        let now = self.started.elapsed().as_nanos() as u64;
        let wait = charge(&self.next, now, bytes, self.cost.load(Ordering::Relaxed));
        match wait < SLEEP_MIN {
            true => Duration::ZERO,
            false => wait,
        }
    }
}

/// Takes the next place of `next` at a `cost` per mebibyte. Returns the time until then.
fn charge(next: &AtomicU64, now: u64, bytes: u64, cost: u64) -> Duration {
    let nanos = (u128::from(bytes) * u128::from(cost)) >> 20;
    let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
    let from = |next: u64| next.max(now.saturating_sub(CREDIT_NANOS));
    let before = next
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            // The debt never grows beyond the wait of one write, because rates change.
            let most = now + WAIT_MAX.as_nanos() as u64;
            Some(from(next).saturating_add(nanos).min(most))
        })
        .unwrap_or(now);
    let due = from(before).saturating_add(nanos);
    Duration::from_nanos(due.saturating_sub(now)).min(WAIT_MAX)
}

/// Returns the pressure beside a drain that frees everything only when it ends. `filled`: the part
/// of what writers may take until then that they have taken; `done`: the part of the drain that is
/// done. Pressure is at the aim as long as both are equal, so writers spread over the time of the
/// drain.
pub(super) fn beside_drain(filled: f64, done: f64) -> f64 {
    match filled > 0.0 {
        true => (AIM + BESIDE_DRAIN * (filled - done)).clamp(0.0, 1.0),
        false => 0.0,
    }
}

/// Finds the rate. Pure: time and all other inputs are arguments.
#[derive(Default)]
struct Control {
    /// The rate at which background work is thought to keep up, in bytes per second; `None` while
    /// nothing is limited.
    rate: Option<f64>,
    /// The time of the last step, in seconds.
    at: f64,
    /// The start of the measurement, and the bytes written by then.
    window: (f64, u64),
    /// The bytes written per second.
    demand: f64,
    /// The same in the last window alone, or, if that was too long, the highest rate of writers so
    /// far.
    fresh: f64,
    /// The highest rate over windows that were short enough.
    most: f64,
}

impl Control {
    /// Returns the rate to allow from `now` on, a time in seconds, given the bytes written since
    /// the start. `None`: unlimited.
    fn step(&mut self, now: f64, written: u64, pressure: Pressure, busy: bool) -> Option<f64> {
        // Threads may arrive out of order.
        let elapsed = (now - self.at).max(0.0);
        self.at = self.at.max(now);
        self.measure(now, written);
        let range = pressure.range as f64;
        // NaN and negative numbers count as zero pressure.
        let pressure = if pressure.part > 0.0 {
            pressure.part.min(1.0)
        } else {
            0.0
        };
        let rate = match self.rate {
            // Pressure that is left when writers have stopped teaches nothing: a limit set then
            // would not reflect background work, and would hold back the next writer.
            None if pressure == 0.0 || self.fresh == 0.0 => return None,
            // At first as fast as before up to the aim, and slower only beyond it: pressure alone
            // does not show yet that background work cannot keep up.
            None => self.demand.max(self.fresh),
            Some(rate) => {
                // If nothing is left to do, writers would wait for nothing.
                let off = if busy { AIM - pressure } else { AIM };
                // If writers do not come near their limit, pressure says nothing about it.
                let used = self.demand > rate * factor(pressure) / 2.0;
                // The more bytes a unit of pressure stands for, the longer it takes to follow the
                // rate.
                let time = match busy {
                    true => (2.0 * range / rate).max(INTEGRAL_SECONDS_MIN),
                    false => IDLE_SECONDS,
                };
                match used || off > 0.0 {
                    true => rate * (off * elapsed / time).min(1.0).exp(),
                    false => rate,
                }
            }
        };
        let rate = rate.max(RATE_MIN);
        let allowed = rate * factor(pressure);
        if pressure == 0.0 && self.demand < allowed * 0.7 {
            self.rate = None;
            return None;
        }
        self.rate = Some(rate);
        Some(allowed.max(RATE_MIN))
    }

    fn measure(&mut self, now: f64, written: u64) {
        let (since, before) = self.window;
        let time = now - since;
        if time < WINDOW {
            return;
        }
        let fresh = written.saturating_sub(before) as f64 / time;
        let weight = 1.0 - (-time / AVERAGE).exp();
        self.demand += (fresh - self.demand) * weight;
        self.fresh = fresh;
        if time <= WINDOW_MAX {
            self.most = self.most.max(fresh);
        } else if fresh > 0.0 {
            self.fresh = fresh.max(self.most);
        }
        self.window = (now, written);
    }
}

/// Returns the factor by which pressure changes the rate at once.
fn factor(pressure: f64) -> f64 {
    let near = ((pressure - NEAR_STOP) / (1.0 - NEAR_STOP)).clamp(0.0, 1.0);
    PROPORTIONAL.powf(AIM - pressure) * CRAWL.powf(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    /// A store whose background work moves `supply` bytes per second, in tables of `table` bytes,
    /// of memtables of `memtable` bytes; pressure goes from 0 to 1 over `range` bytes.
    struct Plant {
        supply: f64,
        memtable: f64,
        table: f64,
        range: f64,
        /// Bytes in memory when pressure begins.
        easy: f64,
        /// Whether nothing is moved before there is pressure.
        lazy: bool,
    }

    /// Measurements of a run after its first part.
    struct Seen {
        /// The utilization of background work.
        busy: f64,
        /// The lowest and highest rate of writers, as parts of the supply.
        rates: (f64, f64),
        /// The part of the time for which writers were stopped.
        stopped: f64,
    }

    impl Plant {
        /// Runs writers that could write `demand` bytes per second.
        fn run(&self, demand: f64, seconds: f64, settled: f64) -> Seen {
            let mut control = Control::default();
            let (mut written, mut moved, mut now) = (0.0, 0.0, 0.0);
            let (mut seconds_stopped, mut moved_before) = (0.0, None);
            let mut rates = (f64::MAX, 0.0f64);
            let tick = 0.002;
            while now < seconds {
                // Memtables are taken whole, and tables freed whole.
                let taken = (written / self.memtable).ceil() * self.memtable;
                let freed = (moved / self.table).floor() * self.table;
                let part = ((taken - freed - self.easy) / self.range).clamp(0.0, 1.0);
                let pressure = Pressure {
                    part,
                    range: self.range as u64,
                };
                let allowed = control.step(now, written as u64, pressure, moved < written);
                let rate = allowed.unwrap_or(demand).min(demand);
                // At the stop, nothing is written.
                let stopped = part >= 1.0;
                written += if stopped { 0.0 } else { rate * tick };
                if !self.lazy || part > 0.0 {
                    moved = (moved + self.supply * tick).min(written);
                }
                now += tick;
                if now >= settled {
                    moved_before.get_or_insert(moved);
                    seconds_stopped += if stopped { tick } else { 0.0 };
                    rates = (rates.0.min(rate), rates.1.max(rate));
                }
            }
            let time = seconds - settled;
            Seen {
                busy: (moved - moved_before.unwrap_or(0.0)) / (time * self.supply),
                rates: (rates.0 / self.supply, rates.1 / self.supply),
                stopped: seconds_stopped / time,
            }
        }
    }

    /// Returns stores with slow and fast disks, small and large memory.
    fn plants(lazy: bool) -> impl Iterator<Item = Plant> {
        let sizes = [
            (64.0, 1.0, 256.0),
            (64.0, 64.0, 1000.0),
            (4.0, 16.0, 40.0),
            (64.0, 256.0, 8000.0),
        ];
        let supplies = [20.0, 200.0, 900.0];
        supplies.into_iter().flat_map(move |supply| {
            sizes
                .into_iter()
                .map(move |(memtable, table, range)| Plant {
                    supply: supply * MB,
                    memtable: memtable * MB,
                    table: table * MB,
                    range: range * MB,
                    easy: 600.0 * MB,
                    lazy,
                })
        })
    }

    /// Writers faster than background work come to its rate: they are never stopped, background
    /// work is never idle, and the allowed rate does not jump.
    #[test]
    fn writers_come_to_the_pace_of_background_work() {
        for plant in plants(false) {
            let what = format!(
                "{}, pieces {} {}, range {}",
                plant.supply, plant.memtable, plant.table, plant.range
            );
            let seen = plant.run(1500.0 * MB, 120.0, 60.0);
            assert!(
                seen.busy > 0.99,
                "{what}: {} of what was possible",
                seen.busy
            );
            assert!(seen.stopped == 0.0, "{what}: stopped for {}", seen.stopped);
            assert!(
                seen.rates.0 > 0.3 && seen.rates.1 < 3.0,
                "{what}: {:?}",
                seen.rates
            );
        }
    }

    /// Writers slower than background work are never slowed, whether background work begins at once
    /// or only under pressure.
    #[test]
    fn slow_writers_are_left_alone() {
        for plant in plants(false).chain(plants(true)) {
            for part in [0.3, 0.8] {
                let demand = plant.supply * part;
                let seen = plant.run(demand, 120.0, 0.0);
                let what = format!(
                    "{}, pieces {} {}, lazy {}",
                    plant.supply, plant.memtable, plant.table, plant.lazy
                );
                assert!(
                    (seen.rates.0 - part).abs() < 1e-9,
                    "{what}: {:?} of {part}",
                    seen.rates
                );
            }
        }
    }

    /// Writes as fast as `demand` beside drains of four tables, which begin when there are four and
    /// free them at the end; writers stop at six. Returns the rate of writers, and the longest stop
    /// in parts of a drain.
    fn run_beside_drains(demand: f64, supply: f64, table: f64, slowed: bool) -> (f64, f64) {
        let mut control = Control::default();
        let (mut written, mut bytes, mut done, mut now) = (0.0, 0.0, 0.0, 0.0);
        let (mut stop, mut longest) = (0.0, 0.0f64);
        let (all, tick, seconds) = (4.0 * table, 0.002, 120.0);
        while now < seconds {
            let drains = bytes >= all;
            let pressure = Pressure {
                part: beside_drain((bytes - all) / (2.0 * table), done / all),
                range: (2.0 * table) as u64,
            };
            let allowed = control.step(now, written as u64, pressure, drains);
            let allowed = allowed.filter(|_| slowed).unwrap_or(demand).min(demand);
            let stopped = bytes >= 6.0 * table;
            if stopped {
                stop += tick;
                longest = longest.max(stop);
            } else {
                stop = 0.0;
                written += allowed * tick;
                bytes += allowed * tick;
            }
            if drains {
                done += supply * tick;
            }
            if done >= all {
                (bytes, done) = (bytes - all, 0.0);
            }
            now += tick;
        }
        (written / seconds, longest * supply / all)
    }

    /// Writers spread over the time of a drain that frees everything at its end, instead of
    /// stopping for most of it, and write as much as without that.
    #[test]
    fn writers_spread_over_drains() {
        for table in [16.0, 64.0, 256.0] {
            for supply in [50.0, 200.0, 600.0] {
                let what = format!("tables of {table} MB, drains of {supply} MB/s");
                let run = |slowed| run_beside_drains(1e9, supply * MB, table * MB, slowed);
                let ((rate, longest), (most, longest_most)) = (run(true), run(false));
                assert!(longest_most > 0.6, "{what}: {longest_most}");
                println!("{what}: {rate:.0} of {most:.0}, {longest:.2} of {longest_most:.2}");
                assert!(rate > most * 0.9, "{what}: {rate} of {most}");
                assert!(longest < 0.2, "{what}: stopped for {longest} of a drain");
            }
        }
        // Writers that drains keep up with are not slowed.
        let slow = |slowed| run_beside_drains(100.0 * MB, 250.0 * MB, 64.0 * MB, slowed);
        assert_eq!(slow(true), slow(false));
    }

    /// If nothing is left to do and pressure stays, as in a pool full of live data, writers are not
    /// held back increasingly.
    #[test]
    fn no_writer_waits_for_idle_work() {
        let mut control = Control::default();
        let pressure = Pressure {
            part: 0.6,
            range: 1 << 30,
        };
        let mut written = 0.0;
        let mut rate = 0.0;
        for tick in 0..60_000 {
            let allowed = control.step(f64::from(tick) * 0.002, written as u64, pressure, false);
            rate = allowed.unwrap_or(f64::MAX).min(400.0 * MB);
            written += rate * 0.002;
        }
        assert!(rate > 300.0 * MB, "{rate}");
    }

    /// Pressure left while nothing is written sets no limit for the next writer, and a limit that
    /// was set before is lifted soon if nothing is left to do.
    #[test]
    fn a_writer_after_a_rest_is_not_held_back() {
        let at = |part| Pressure {
            part,
            range: 256 << 20,
        };
        let mut control = Control::default();
        let (mut now, mut written) = (0.0, 0.0);
        let mut run = |seconds: f64, demand: f64, part: f64, busy: bool| {
            let (end, mut slowest) = (now + seconds, f64::MAX);
            let mut rate = f64::MAX;
            while now < end {
                let allowed = control.step(now, written as u64, at(part), busy);
                rate = allowed.unwrap_or(f64::MAX);
                slowest = rate.min(slowest);
                written += rate.min(demand) * 0.002;
                now += 0.002;
            }
            (slowest, rate)
        };
        run(1.0, 800.0 * MB, 0.0, true);
        // Writers have stopped, and background work continues.
        run(3.0, 0.0, 0.4, true);
        let (slowest, _) = run(1.0, 800.0 * MB, 0.4, true);
        assert!(slowest > 500.0 * MB, "{slowest}");
        run(1.0, 0.0, 0.0, true);
        let (_, slow) = run(4.0, 800.0 * MB, 0.95, true);
        assert!(slow < 100.0 * MB, "{slow}");
        let (_, fast) = run(1.0, 800.0 * MB, 0.3, false);
        assert!(fast > 400.0 * MB, "{fast}");
    }

    /// After a long time without a look, the few bytes written meanwhile do not count as the rate
    /// of writers.
    #[test]
    fn a_late_look_sets_no_crawl() {
        let half = Pressure {
            part: AIM,
            range: 256 << 20,
        };
        let mut control = Control::default();
        let at = |tick: u64| (tick as f64 * 0.002, tick * 1_600_000);
        for (now, written) in (0..500).map(at) {
            let none = Pressure { part: 0.0, ..half };
            assert_eq!(control.step(now, written, none, true), None);
        }
        let (_, before) = at(499);
        // Ten seconds later, ten milliseconds after the first writes.
        let rate = control.step(11.0, before + 8_000_000, half, true);
        assert!(rate.is_some_and(|rate| rate > 500.0 * MB), "{rate:?}");
    }

    /// Without pressure there is no limit, and NaN and other invalid numbers change nothing.
    #[test]
    fn without_need_there_is_no_limit() {
        let mut control = Control::default();
        for part in [0.0, -1.0, f64::NAN] {
            let pressure = Pressure { part, range: 0 };
            assert_eq!(control.step(1.0, 1 << 40, pressure, true), None);
        }
        let pressure = Pressure {
            part: 7.0,
            range: 0,
        };
        let crawl = control.step(2.0, 2 << 40, pressure, true);
        assert!(crawl.is_some_and(|rate| rate < (1u64 << 40) as f64 * CRAWL));
    }

    /// Writes wait for the sum of all their costs, less the excess waits of some.
    #[test]
    fn every_write_is_charged() {
        // A mebibyte per millisecond.
        let cost = 1_000_000;
        let next = AtomicU64::new(0);
        let start = 1_000_000_000;
        let kib = |now| charge(&next, now, 1 << 10, cost).as_nanos() as u64;
        // After a rest a millisecond's worth is free.
        for _ in 0..1024 {
            assert_eq!(kib(start), 0);
        }
        assert!(kib(start) < 1000);
        assert!((1000..2000).contains(&kib(start)));
        assert_eq!(charge(&next, start, u64::MAX, u64::MAX), WAIT_MAX);
        assert_eq!(
            kib(start),
            WAIT_MAX.as_nanos() as u64,
            "the debt is at most what one write waits for"
        );
        assert_eq!(kib(start + (1 << 30)), 0, "nor is the wait longer");
        let later = start + (1 << 31);
        assert_eq!(charge(&next, later, 1 << 20, 0), Duration::ZERO, "no limit");
    }
}
