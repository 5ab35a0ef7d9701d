//! The properties of the machine and of this process, read from Linux's /proc.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The machine that a run was measured on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The frequency governor of the cores, such as "performance"; `None` if Linux does not report
    /// one.
    pub governor: Option<String>,
    /// The release of the kernel.
    pub kernel: String,
    /// Installed memory in bytes.
    pub memory_bytes: u64,
}

impl Machine {
    /// Reads the properties; unavailable ones are "unknown" or zero.
    pub fn read() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = ["model name", "Model", "CPU implementer"]
            .iter()
            .find_map(|name| {
                let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
                Some(line.split_once(':')?.1.trim().to_string())
            });
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine {
            cpu: cpu.unwrap_or_else(|| "unknown".to_string()),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            governor: fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .ok()
                .map(|governor| governor.trim().to_string()),
            kernel: if kernel.is_empty() {
                "unknown".into()
            } else {
                kernel.trim().into()
            },
            memory_bytes: field_bytes(&meminfo, "MemTotal").unwrap_or(0),
        }
    }
}

/// Returns the memory still available to programs, as Linux estimates it; 0 if unavailable.
pub(crate) fn available_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field_bytes(&meminfo, "MemAvailable").unwrap_or(0)
}

/// The memory of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The peak of resident memory, including the mapped pool (VmHWM).
    pub peak_bytes: u64,
    /// Resident and private memory: memtables, filters, caches, the program.
    pub private_bytes: u64,
    /// Resident memory that is shared or belongs to files: the mapped pool.
    pub mapped_bytes: u64,
}

impl Memory {
    /// Reads the figures; unavailable ones are zero.
    pub fn read() -> Memory {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name| field_bytes(&status, name).unwrap_or(0);
        Memory {
            peak_bytes: field("VmHWM"),
            private_bytes: field("RssAnon"),
            mapped_bytes: field("RssFile") + field("RssShmem"),
        }
    }
}

/// The bytes written by this process, as the kernel accounts them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ProcessIo {
    /// Bytes passed to write calls.
    pub(crate) write_bytes: u64,
    /// Bytes that went, or will go, to block devices.
    pub(crate) device_bytes: u64,
}

impl ProcessIo {
    /// Reads the figures; unavailable ones are zero.
    pub(crate) fn read() -> ProcessIo {
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        let field = |name: &str| {
            let line = io.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|number| number.trim().parse().ok())
                .unwrap_or(0)
        };
        ProcessIo {
            write_bytes: field("wchar:"),
            device_bytes: field("write_bytes:"),
        }
    }
}

/// Returns the bytes that the files under `path` take on their file system.
pub(crate) fn bytes_under(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(path) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_under(&entry.path()),
        Ok(data) => data.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

/// Returns the mount that holds `path`: type and options, such as "tmpfs (rw,huge=always)".
pub(crate) fn file_system_of(path: &Path) -> String {
    let absolute = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mut best = (0, "unknown", "");
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let [Some(_), Some(mount), Some(kind), Some(options)] = [(); 4].map(|()| fields.next())
        else {
            continue;
        };
        // A later mount at the same path hides the earlier one.
        if absolute.starts_with(mount) && mount.len() >= best.0 {
            best = (mount.len(), kind, options);
        }
    }
    match best.2 {
        "" => best.1.to_string(),
        options => format!("{} ({options})", best.1),
    }
}

/// Returns the field `name` of a file whose lines are `name: number kB`.
fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let number = line.split_whitespace().nth(1)?;
    number.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields are found by their whole name, and kilobytes become bytes.
    #[test]
    fn fields_are_found() {
        let text = "VmHWMx:\t  5 kB\nVmHWM:\t  120 kB\nbad\n";
        assert_eq!(field_bytes(text, "VmHWM"), Some(120 * 1024));
        assert_eq!(field_bytes(text, "VmRSS"), None);
    }

    /// A running process has a memory peak, and its machine at least one core.
    #[test]
    fn the_process_is_seen() {
        assert!(Machine::read().cores >= 1);
        assert!(Memory::read().peak_bytes > 0);
        let of_proc = file_system_of(Path::new("/proc/self"));
        assert!(of_proc.starts_with("proc (rw"), "{of_proc}");
    }

    /// Written bytes are counted, and the size of files includes those in subdirectories.
    #[test]
    fn written_bytes_are_seen() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let before = ProcessIo::read();
        fs::create_dir(folder.path().join("below")).expect("a directory");
        fs::write(folder.path().join("below/file"), vec![1; 100_000]).expect("a file");
        assert!(ProcessIo::read().write_bytes - before.write_bytes >= 100_000);
        assert!((100_000..300_000).contains(&bytes_under(folder.path())));
    }
}
