//! This file is what a phase costs the process: processor time and memory, as Linux accounts them.
//!
//! Processor time is that of all threads, background work and the harness's own included, in the
//! ticks of /proc/self/stat (10 ms on most machines). The peak of resident memory is the kernel's high
//! water mark (VmHWM), which is set back to what is resident now at the start of each phase; where
//! that is not allowed it is the peak since the process began, and says so. A mapped pool counts in
//! it. What is private to the process, memtables and caches without a mapped pool, has no mark of the
//! kernel's, so it is sampled.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::Memory;

/// How often private memory is sampled. A sample takes tens of microseconds.
const SAMPLE: Duration = Duration::from_millis(50);

/// What one phase cost the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageReport {
    /// Seconds of processor time in user mode, all threads together.
    pub cpu_user_s: f64,
    /// Seconds of processor time in the kernel.
    pub cpu_system_s: f64,
    /// The most that was resident at once, a mapped pool included.
    pub peak_bytes: u64,
    /// Whether `peak_bytes` is of this phase alone; otherwise it is since the process began.
    pub peak_is_of_phase: bool,
    /// The most private memory that a sample, one in 50 ms, has seen: no mapped pool in it.
    pub peak_private_bytes: u64,
}

/// A phase that is being measured. It ends with [`Usage::end`] or when it is dropped.
#[derive(Debug)]
pub(crate) struct Usage {
    cpu: (f64, f64),
    peak_is_of_phase: bool,
    sampled: Arc<AtomicU64>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    sampler: Option<JoinHandle<()>>,
}

impl Usage {
    /// Begins a phase.
    pub(crate) fn begin() -> Usage {
        let sampled = Arc::new(AtomicU64::new(Memory::read().private_bytes));
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (seen, stopped) = (sampled.clone(), stop.clone());
        let sample = move || {
            let (lock, wake) = &*stopped;
            let mut done = lock.lock().unwrap_or_else(PoisonError::into_inner);
            // BOUND: ends when the phase does, which sets the flag however it ends.
            while !*done {
                let waited = wake.wait_timeout(done, SAMPLE);
                done = waited.unwrap_or_else(PoisonError::into_inner).0;
                seen.fetch_max(Memory::read().private_bytes, Ordering::Relaxed);
            }
        };
        let name = "bench-memory".to_string();
        Usage {
            cpu: cpu_seconds(),
            // "5" sets the high water mark back; proc(5).
            peak_is_of_phase: fs::write("/proc/self/clear_refs", "5").is_ok(),
            sampled,
            stop,
            // Without the thread the peak is that of the phase's two ends.
            sampler: std::thread::Builder::new().name(name).spawn(sample).ok(),
        }
    }

    /// Ends the phase.
    pub(crate) fn end(mut self) -> UsageReport {
        let memory = Memory::read();
        let (user, system) = cpu_seconds();
        self.join();
        UsageReport {
            cpu_user_s: user - self.cpu.0,
            cpu_system_s: system - self.cpu.1,
            peak_bytes: memory.peak_bytes,
            peak_is_of_phase: self.peak_is_of_phase,
            peak_private_bytes: self
                .sampled
                .load(Ordering::Relaxed)
                .max(memory.private_bytes),
        }
    }

    fn join(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(sampler) = self.sampler.take() {
            // A sampler that died has said less than it could; nothing else is lost.
            let _ = sampler.join();
        }
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        self.join();
    }
}

/// Seconds in user mode and in the kernel since the process began; zeros where Linux does not say.
fn cpu_seconds() -> (f64, f64) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name in parentheses, which may hold anything.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_whitespace().skip(11);
    let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
    let mut next = || {
        let field = fields.next().and_then(|field| field.parse::<u64>().ok());
        field.unwrap_or(0) as f64 / ticks
    };
    (next(), next())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    /// Work shows as processor time, and memory that was used in between as a peak.
    #[test]
    fn work_and_memory_are_seen() {
        let usage = Usage::begin();
        let before = Memory::read().private_bytes;
        let block = black_box(vec![1u8; 64 << 20]);
        let begun = Instant::now();
        let mut sum = 0u64;
        while begun.elapsed() < Duration::from_millis(150) {
            sum += block.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        }
        black_box(sum);
        drop(block);
        let report = usage.end();
        assert!(report.cpu_user_s > 0.01, "{report:?}");
        let at_least = before.saturating_sub(16 << 20) + (64 << 20);
        assert!(report.peak_private_bytes >= at_least, "{report:?}");
        assert!(report.peak_bytes >= 64 << 20, "{report:?}");
    }
}
