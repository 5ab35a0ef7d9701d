//! The emulator: adds the cost of persistent memory to DRAM writes by busy waiting.
//!
//! All threads share one device. Each durable write occupies it for the time of its 256-byte
//! internal lines at the set bandwidth. A fence waits until the device has accepted the thread's
//! own writes, and then for the write latency. Reads are not slowed down.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The parameters of an emulated device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Emulation {
    /// Write bandwidth in gigabytes (10^9 bytes) per second, shared by all threads. Unlimited if
    /// zero or negative.
    pub write_gbps: f64,
    /// Nanoseconds that a fence waits after the last write was accepted, if there was one.
    pub write_latency_ns: u64,
}

/// The unit of writes to the device's media.
const DEVICE_LINE: u64 = 256;

/// One emulated device.
pub(crate) struct Emulator {
    epoch: Instant,
    /// Picoseconds for which one byte occupies the device.
    byte_ps: u64,
    latency_ns: u64,
    /// The time at which the device is free again, in nanoseconds since `epoch`.
    free_at: AtomicU64,
}

thread_local! {
    /// The time at which the device has accepted the last write of this thread; zero if there was
    /// no write since the last fence.
    static TAKEN_AT: Cell<u64> = const { Cell::new(0) };
}

impl Emulator {
    pub(crate) fn new(emulation: Emulation) -> Emulator {
        let byte_ps = if emulation.write_gbps > 0.0 {
            (1000.0 / emulation.write_gbps) as u64
        } else {
            0
        };
        Emulator {
            epoch: Instant::now(),
            byte_ps,
            latency_ns: emulation.write_latency_ns,
            free_at: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Returns the nanoseconds for which a write of `len` bytes at `at` occupies the device.
    pub(crate) fn cost_ns(&self, at: u64, len: u64) -> u64 {
        let first = at & !(DEVICE_LINE - 1);
        let bytes = (at + len).next_multiple_of(DEVICE_LINE) - first;
        bytes * self.byte_ps / 1000
    }

    /// Returns the time at which the device is free again.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.free_at.load(Ordering::Relaxed)
    }

    /// Occupies the device for a write.
    pub(crate) fn wrote(&self, at: u64, len: u64) {
        let now = self.now();
        let cost = self.cost_ns(at, len);
        let mut free = self.free_at.load(Ordering::Relaxed);
        // BOUND: a retry follows a write by another thread or a spurious failure.
        let taken = loop {
            let taken = free.max(now) + cost;
            match self.free_at.compare_exchange_weak(
                free,
                taken,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => break taken,
                Err(other) => free = other,
            }
        };
        TAKEN_AT.set(taken.max(1));
    }

    /// Waits until the device has accepted this thread's writes, and for the latency.
    pub(crate) fn fence(&self) {
        let taken = TAKEN_AT.replace(0);
        if taken == 0 {
            return;
        }
        let until = taken.max(self.now()) + self.latency_ns;
        // BOUND: the clock advances.
        while self.now() < until {
            std::hint::spin_loop();
        }
    }
}
