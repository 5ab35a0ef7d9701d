//! The emulator: makes DRAM's writes cost what persistent memory's do, by busy waiting.
//!
//! All threads share one device. Each durable write occupies it for its 256-byte internal lines
//! divided by the bandwidth; a fence waits until the thread's own writes have been taken and then
//! for the write latency. Reads are not slowed down.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The limits of an emulated device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Emulation {
    /// Write bandwidth in gigabytes (10^9 bytes) per second, shared by all threads. Zero or less
    /// means no limit.
    pub write_gbps: f64,
    /// Nanoseconds that a fence waits after the last write was taken, if there was one.
    pub write_latency_ns: u64,
}

/// The unit in which the device's media are written.
const DEVICE_LINE: u64 = 256;

/// One emulated device.
pub(crate) struct Emulator {
    epoch: Instant,
    /// Picoseconds that one byte occupies the device.
    byte_ps: u64,
    latency_ns: u64,
    /// When the device is free again, in nanoseconds since `epoch`.
    free_at: AtomicU64,
}

thread_local! {
    /// When the device has taken the last write of this thread; zero: nothing since the fence.
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

    /// Nanoseconds that a write of `len` bytes at `at` occupies the device.
    pub(crate) fn cost_ns(&self, at: u64, len: u64) -> u64 {
        let first = at & !(DEVICE_LINE - 1);
        let bytes = (at + len).next_multiple_of(DEVICE_LINE) - first;
        bytes * self.byte_ps / 1000
    }

    /// When the device is free again.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.free_at.load(Ordering::Relaxed)
    }

    /// Takes the device for a write.
    pub(crate) fn wrote(&self, at: u64, len: u64) {
        let now = self.now();
        let cost = self.cost_ns(at, len);
        let mut free = self.free_at.load(Ordering::Relaxed);
        // BOUND: each retry means that another thread's write was taken.
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

    /// Waits as long as the device would make this thread wait.
    pub(crate) fn fence(&self) {
        let taken = TAKEN_AT.replace(0);
        if taken == 0 {
            return;
        }
        let until = taken.max(self.now()) + self.latency_ns;
        // BOUND: the clock moves on.
        while self.now() < until {
            std::hint::spin_loop();
        }
    }
}
