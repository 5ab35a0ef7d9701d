//! The medium: what kind of memory a pool is on, found by asking the kernel and never assumed.

use crate::pm::arch::Flush;
use crate::pm::map::Memory;
use crate::pm::medium::Medium;
use std::fs::File;
use std::io;
use std::path::Path;

/// How the medium of a pool is decided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MediumChoice {
    /// What the kernel says.
    #[default]
    Auto,
    /// `Dax` instructions on any mapping, for tests and measurements. On a file that is not on
    /// persistent memory this survives a process crash and not a power loss, and reports say so.
    ForceDax,
    /// `Mapped` even where `Dax` would be possible.
    Mapped,
}

/// When the pages of a pool are faulted in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Prefault {
    /// Each extent as it is allocated.
    #[default]
    Ahead,
    /// The whole cap when the pool is made or opened.
    All,
    /// Never: each page by the first store to it.
    None,
}

/// A file mapped as the best medium that was asked for.
pub(crate) struct MappedFile {
    pub(crate) memory: Memory,
    pub(crate) medium: Medium,
    pub(crate) forced: bool,
    pub(crate) flush: Flush,
}

/// Maps `cap` bytes of a file; `device` says that it is a DAX character device.
pub(crate) fn map_file(
    file: &File,
    cap: usize,
    choice: MediumChoice,
    device: bool,
) -> io::Result<MappedFile> {
    let dax = |memory, forced: bool| {
        // Caches inside of the persistence domain count for real media only: a forced mapping
        // executes the instructions that it was forced for.
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
    // Without a flush instruction nothing on this processor can be `Dax`.
    let possible = Flush::best() != Flush::Nothing;
    if !possible && (device || choice == MediumChoice::ForceDax) {
        let text = "this processor has no known instruction that makes a line durable";
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

/// Maps a file so that stores stay in this process; the medium is that of the file, which says in what
/// order it was written.
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

/// Whether every persistent-memory region of this machine has the caches in its persistence
/// domain, so that a store is durable once it is visible.
fn caches_are_durable() -> bool {
    caches_are_durable_in(Path::new("/sys/bus/nd/devices"))
}

/// As `caches_are_durable`, reading the device tree at `devices`.
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

/// Whether any page of the mapping at `base` is a huge page, as the kernel tells.
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
