//! The medium: the kind of memory that holds a pool, detected by asking the kernel, never assumed.

use crate::pm::arch::Flush;
use crate::pm::map::Memory;
use crate::pm::medium::Medium;
use std::fs::File;
use std::io;
use std::path::Path;

/// How the medium of a pool is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MediumChoice {
    /// Detects the medium.
    #[default]
    Auto,
    /// Executes `Dax` instructions on any mapping, for tests and measurements. On a file that is
    /// not on persistent memory this survives a process crash but not a power loss, and reports
    /// show it.
    ForceDax,
    /// Uses `Mapped` even if `Dax` is possible.
    Mapped,
}

/// The time at which the pages of a pool are faulted in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Prefault {
    /// Faults each extent in when it is allocated.
    #[default]
    Ahead,
    /// Faults the whole cap in when the pool is created or opened.
    All,
    /// Leaves each page to the first store to it.
    None,
}

/// A file mapped on the best medium allowed.
pub(crate) struct MappedFile {
    pub(crate) memory: Memory,
    pub(crate) medium: Medium,
    pub(crate) forced: bool,
    pub(crate) flush: Flush,
}

/// Maps `cap` bytes of a file; `device` is set for a DAX character device.
pub(crate) fn map_file(
    file: &File,
    cap: usize,
    choice: MediumChoice,
    device: bool,
) -> io::Result<MappedFile> {
    let dax = |memory, forced: bool| {
        // Caches in the persistence domain matter only for real media: a forced mapping executes
        // the flush instructions for which it was forced.
        let flush = if !forced && caches_are_durable() {
            Flush::FenceOnly
        } else {
            Flush::best()
        };
        MappedFile {
            memory,
            medium: Medium::Dax,
            forced,
            flush,
        }
    };
    // Without a flush instruction, `Dax` is impossible.
    let possible = Flush::best() != Flush::Nothing;
    if !possible && (device || choice == MediumChoice::ForceDax) {
        let text = "this processor has no known instruction to make a line durable";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    if device {
        return Ok(dax(Memory::file(cap, file, false)?, false));
    }
    if possible
        && choice != MediumChoice::Mapped
        && let Ok(memory) = Memory::file(cap, file, true)
    {
        return Ok(dax(memory, false));
    }
    let memory = Memory::file(cap, file, false)?;
    Ok(match choice {
        MediumChoice::ForceDax => dax(memory, true),
        MediumChoice::Auto | MediumChoice::Mapped => MappedFile {
            memory,
            medium: Medium::Mapped,
            forced: false,
            flush: Flush::Nothing,
        },
    })
}

/// Maps a file copy-on-write, so that stores stay private to this process. The medium is that of
/// the file, as it determines the order in which the file was written.
pub(crate) fn map_private(
    file: &File,
    cap: usize,
    file_bytes: usize,
    choice: MediumChoice,
) -> io::Result<MappedFile> {
    let memory = Memory::private(cap, file, file_bytes)?;
    let dax = match choice {
        MediumChoice::ForceDax => true,
        MediumChoice::Mapped => false,
        MediumChoice::Auto => Memory::may_be_synchronous(file),
    };
    Ok(MappedFile {
        memory,
        medium: if dax { Medium::Dax } else { Medium::Mapped },
        forced: choice == MediumChoice::ForceDax,
        flush: Flush::Nothing,
    })
}

/// Returns whether all persistent-memory regions of this machine have the caches in their
/// persistence domain, so that a store is durable once it is visible.
fn caches_are_durable() -> bool {
    caches_are_durable_in(Path::new("/sys/bus/nd/devices"))
}

/// As `caches_are_durable`, for the device tree at `devices`.
pub(crate) fn caches_are_durable_in(devices: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(devices) else {
        return false;
    };
    let mut regions = 0;
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("region") {
            continue;
        }
        match std::fs::read_to_string(entry.path().join("persistence_domain")) {
            Ok(domain) if domain.trim() == "cpu_cache" => regions += 1,
            _ => return false,
        }
    }
    regions > 0
}

/// Returns whether the kernel reports any huge page in the mapping at `base`.
pub(crate) fn has_huge_pages(base: usize) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else {
        return false;
    };
    let start = format!("{base:x}-");
    let mut ours = false;
    for line in maps.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        if matches!(key, "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped") {
            if ours && !value.trim_start().starts_with("0 ") {
                return true;
            }
        } else if line.contains('-') && line.as_bytes()[0].is_ascii_hexdigit() && key.contains(' ')
        {
            ours = line.starts_with(&start);
        }
    }
    false
}
