//! The cost of a phase for the process: processor time and memory, as Linux accounts them.
//!
//! Processor time is that of all threads, including background work and the harness, in the ticks
//! of /proc/self/stat (10 ms). The time of other processes, and the time that a hypervisor took,
//! come from /proc/stat: a phase disturbed by other work is marked, since its figures include that.
//! The peak of resident memory is the kernel's high water mark (VmHWM), which is reset at the start
//! of each phase; if that is not permitted, the peak is that since the process began, and is marked
//! so. It includes a mapped pool. The kernel keeps no peak of private memory, which holds memtables
//! and caches without a mapped pool, so it is sampled.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::machine::Memory;

/// The interval of samples of private memory. A sample takes tens of microseconds.
const SAMPLE: Duration = Duration::from_millis(50);

/// Ticks in a second, as Linux shows them to programs on x86-64 and aarch64 for any rate of the
/// kernel. The query goes through the auxiliary vector, which programs under Valgrind cannot read.
const TICKS_PER_S: f64 = 100.0;

/// A shorter phase has too few ticks for a share of the rest of the machine.
const SHARE_ELAPSED_S_MIN: f64 = 0.2;

/// The cost of one phase for the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageReport {
    /// Seconds of processor time in user mode, all threads together.
    pub cpu_user_s: f64,
    /// Seconds of processor time in the kernel.
    pub cpu_system_s: f64,
    /// Seconds of processor time that everything else on the machine took, including other guests
    /// of a hypervisor if reported.
    #[serde(default)]
    pub cpu_others_s: f64,
    /// That as a fraction of all time of all cores; zero if the phase was too short for the ticks.
    #[serde(default)]
    pub others_share: f64,
    /// The peak of resident memory, including a mapped pool.
    pub peak_bytes: u64,
    /// Whether `peak_bytes` covers only this phase; otherwise it is since the process began.
    pub peak_is_of_phase: bool,
    /// The peak of private memory in samples 50 ms apart, without a mapped pool.
    pub peak_private_bytes: u64,
}

/// The measurement of a phase. It ends with [`Usage::end`] or when it is dropped.
#[derive(Debug)]
pub(crate) struct Usage {
    begun: Instant,
    cpu: (f64, f64),
    machine: MachineTime,
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
            // BOUND: ends with the phase, which sets the flag on every path.
            while !*done {
                let waited = wake.wait_timeout(done, SAMPLE);
                done = waited.unwrap_or_else(PoisonError::into_inner).0;
                seen.fetch_max(Memory::read().private_bytes, Ordering::Relaxed);
            }
        };
        let name = "bench-memory".to_string();
        Usage {
            begun: Instant::now(),
            cpu: cpu_seconds(),
            machine: MachineTime::read(),
            // "5" resets the high water mark; proc(5).
            peak_is_of_phase: fs::write("/proc/self/clear_refs", "5").is_ok(),
            sampled,
            stop,
            // Without the thread, only the two ends of the phase are sampled.
            sampler: std::thread::Builder::new().name(name).spawn(sample).ok(),
        }
    }

    /// Ends the phase.
    pub(crate) fn end(mut self) -> UsageReport {
        let memory = Memory::read();
        let (user, system) = cpu_seconds();
        let (cpu_user_s, cpu_system_s) = (user - self.cpu.0, system - self.cpu.1);
        let machine = MachineTime::read();
        let elapsed_s = self.begun.elapsed().as_secs_f64();
        let all = machine.busy_s - self.machine.busy_s;
        let cpu_others_s = (all - cpu_user_s - cpu_system_s).max(0.0);
        self.join();
        UsageReport {
            cpu_user_s,
            cpu_system_s,
            cpu_others_s,
            others_share: match elapsed_s >= SHARE_ELAPSED_S_MIN {
                true => cpu_others_s / (elapsed_s * machine.cores.max(1) as f64),
                false => 0.0,
            },
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
            // If the sampler panicked, only its samples are lost.
            let _ = sampler.join();
        }
    }
}

/// The fraction of all processor time above which the time of others is reported.
const OTHERS_SHARE_MAX: f64 = 0.05;

impl UsageReport {
    /// Returns whether other work was large enough to affect the figures of the phase.
    pub fn is_disturbed(&self) -> bool {
        self.others_share > OTHERS_SHARE_MAX
    }
}

/// Processor time of the whole machine.
#[derive(Debug, Clone, Copy)]
struct MachineTime {
    /// Seconds since boot in which cores were busy, all together.
    busy_s: f64,
    cores: usize,
}

impl MachineTime {
    /// Reads the figures; unavailable ones are zero.
    fn read() -> MachineTime {
        MachineTime::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> MachineTime {
        let cores = stat.lines().filter(|line| line.starts_with("cpu")).count();
        let all = stat.lines().find_map(|line| line.strip_prefix("cpu "));
        let fields = all.unwrap_or("").split_whitespace();
        // user, nice, system, idle, iowait, irq, softirq, steal; time of guests is in user.
        let busy = fields
            .take(8)
            .enumerate()
            .filter(|(at, _)| ![3, 4].contains(at));
        let ticks: u64 = busy
            .filter_map(|(_, field)| field.parse::<u64>().ok())
            .sum();
        MachineTime {
            busy_s: ticks as f64 / TICKS_PER_S,
            // The first of these lines is the sum.
            cores: cores.saturating_sub(1),
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
    // The second field is the program's name in parentheses, which may contain any character.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_whitespace().skip(11);
    let mut next = || {
        let field = fields.next().and_then(|field| field.parse::<u64>().ok());
        field.unwrap_or(0) as f64 / TICKS_PER_S
    };
    (next(), next())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// The machine's busy time covers all cores, without idle and waiting time, and counts guests
    /// once.
    #[test]
    fn the_machine_is_understood() {
        let stat =
            "cpu  100 20 30 4000 500 6 7 80 90 9\ncpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n";
        let machine = MachineTime::parse(stat);
        assert_eq!((machine.busy_s, machine.cores), (2.43, 2));
        assert_eq!(MachineTime::parse("").cores, 0);
        let here = MachineTime::read();
        assert!(here.busy_s > 0.0 && here.cores > 0, "{here:?}");
    }

    /// Work of others counts as theirs, and as a disturbance.
    #[test]
    fn others_are_seen() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a shell");
        let usage = Usage::begin();
        std::thread::sleep(Duration::from_millis(600));
        let report = usage.end();
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        // The child may get little time on a busy machine; then others get the rest.
        assert!(report.cpu_others_s > 0.1, "{report:?}");
        assert!(report.others_share > 0.0, "{report:?}");
        let quiet = UsageReport::default();
        assert!(!quiet.is_disturbed());
    }

    /// Work counts as processor time, and memory used in between as a peak.
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
