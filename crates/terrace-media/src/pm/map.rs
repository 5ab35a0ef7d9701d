//! Address space: one reservation, and the file or anonymous memory mapped into it.
//!
//! The whole cap is reserved once, at a base that is aligned to `HUGE`, so that the kernel can use
//! huge pages, and that never moves. A file is mapped over the whole reservation at once: addresses
//! beyond the end of the file are never accessed, because every access is first checked against the
//! committed length.

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MsyncFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The alignment of every base: the size of a huge page.
pub(crate) const HUGE: usize = 2 << 20;

/// The unit in which the kernel populates and syncs memory.
pub(crate) const PAGE: usize = 4096;

/// A range of address space that is unmapped when it is dropped.
pub(crate) struct Memory {
    base: *mut u8,
    len: usize,
    /// The number of bytes that may not be zero, if the memory is recycled for simulated machines.
    recycle: Option<AtomicU64>,
    /// Whether the range is anonymous memory and not a shared file mapping.
    anonymous: bool,
}

/// The total length of all anonymous ranges.
static ANONYMOUS: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes of anonymous memory mapped in this process, touched or not: arenas, pools
/// without a file, and copy-on-write mappings of pool files. For tests and memory reports.
pub fn anonymous_bytes() -> u64 {
    ANONYMOUS.load(Ordering::Relaxed)
}

// SAFETY: the range is plain memory; `Region` and `Claim` decide who may write which byte.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps anonymous memory, which is committed on first access.
    pub(crate) fn anonymous(len: usize, huge: bool) -> io::Result<Memory> {
        let mut memory = Memory::reserve(len)?;
        memory.anonymous = true;
        ANONYMOUS.fetch_add(memory.len as u64, Ordering::Relaxed);
        // SAFETY: the pages are our own reservation, and changing their protection changes no byte.
        unsafe {
            rustix::mm::mprotect(
                memory.base.cast(),
                memory.len,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )?;
        }
        if huge {
            // SAFETY: advice about our own range. A kernel without huge pages refuses it, which
            // affects only speed.
            let _ = unsafe {
                rustix::mm::madvise(memory.base.cast(), memory.len, Advice::LinuxHugepage)
            };
        }
        Ok(memory)
    }

    /// Maps the first `len` bytes of `file`, shared. With `synchronous`, fails unless the file
    /// system guarantees that its metadata is durable before a store to a new page can be.
    pub(crate) fn file(len: usize, file: &File, synchronous: bool) -> io::Result<Memory> {
        let kind = if synchronous {
            MapFlags::SHARED_VALIDATE | MapFlags::SYNC
        } else {
            MapFlags::SHARED
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // A refused mapping over a reservation may leave a hole, which another thread may fill
        // before it can be unmapped. So the kernel is first asked about one page elsewhere.
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped at once.
        unsafe {
            let probe = rustix::mm::mmap(ptr::null_mut(), PAGE, access, kind, file.as_fd(), 0)?;
            rustix::mm::munmap(probe, PAGE)?;
        }
        let memory = Memory::reserve(len)?;
        // SAFETY: the range is our own reservation, and nothing refers to it yet.
        let mapped = unsafe {
            rustix::mm::mmap(
                memory.base.cast(),
                memory.len,
                access,
                kind | MapFlags::NORESERVE | MapFlags::FIXED,
                file.as_fd(),
                0,
            )
        };
        if let Err(e) = mapped {
            // If the kernel left a hole, the range is no longer ours to unmap.
            std::mem::forget(memory);
            return Err(e.into());
        }
        Ok(memory)
    }

    /// Maps the first `file_bytes` of `file` copy-on-write, followed by anonymous memory up to
    /// `len`. No store reaches the file. `file_bytes` is a multiple of the page size.
    pub(crate) fn private(len: usize, file: &File, file_bytes: usize) -> io::Result<Memory> {
        let memory = Memory::anonymous(len, false)?;
        let mapped = file_bytes.min(memory.len);
        if mapped == 0 {
            return Ok(memory);
        }
        // SAFETY: the range is inside our own reservation, and nothing refers to it yet.
        let result = unsafe {
            rustix::mm::mmap(
                memory.base.cast(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
                file.as_fd(),
                0,
            )
        };
        if let Err(e) = result {
            // If the kernel left a hole, the range is no longer ours to unmap.
            std::mem::forget(memory);
            return Err(e.into());
        }
        Ok(memory)
    }

    /// Returns whether `file`, open for reading, can be mapped synchronously, which means that it
    /// is on persistent memory.
    pub(crate) fn may_be_synchronous(file: &File) -> bool {
        let kind = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped at once.
        unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                PAGE,
                ProtFlags::READ,
                kind,
                file.as_fd(),
                0,
            )
            .and_then(|probe| rustix::mm::munmap(probe, PAGE))
            .is_ok()
        }
    }

    /// Returns anonymous memory for a simulated machine, and the number of its bytes that may not
    /// be zero. Tests create thousands of machines, most of whose cost would be page faults of new
    /// memory.
    pub(crate) fn recycled(len: usize) -> io::Result<(Memory, u64)> {
        let len = len.next_multiple_of(PAGE);
        let kept = {
            let mut spare = SPARE.lock();
            let found = spare.iter().position(|memory| memory.len == len);
            found.map(|i| spare.swap_remove(i))
        };
        match kept {
            Some(memory) => {
                let dirty = memory
                    .recycle
                    .as_ref()
                    .map_or(0, |dirty| dirty.load(Ordering::Relaxed));
                Ok((memory, dirty))
            }
            None => {
                let mut memory = Memory::anonymous(len, false)?;
                memory.recycle = Some(AtomicU64::new(0));
                Ok((memory, 0))
            }
        }
    }

    /// Notes that the first `len` bytes of recycled memory may not be zero.
    pub(crate) fn touched(&self, len: u64) {
        if let Some(dirty) = &self.recycle {
            dirty.fetch_max(len, Ordering::Relaxed);
        }
    }

    /// Reserves `len` bytes of inaccessible address space, aligned to `HUGE`.
    fn reserve(len: usize) -> io::Result<Memory> {
        let len = len
            .checked_next_multiple_of(PAGE)
            .filter(|len| *len > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let padded = len.checked_add(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                padded,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        }
        .cast::<u8>();
        let head = start.align_offset(HUGE);
        // SAFETY: head and tail are the parts of the new mapping outside the range that is kept.
        unsafe {
            if head > 0 {
                rustix::mm::munmap(start.cast(), head)?;
            }
            let base = start.add(head);
            rustix::mm::munmap(base.add(len).cast(), padded - head - len)?;
            Ok(Memory {
                base,
                len,
                recycle: None,
                anonymous: false,
            })
        }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes the pages of a range present and writable, so that later stores do not fault.
    pub(crate) fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        let (start, len) = self.pages(at, len);
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the pages are inside this mapping, and populating changes no byte.
        let result = unsafe {
            rustix::mm::madvise(self.base.add(start).cast(), len, Advice::LinuxPopulateWrite)
        };
        match result {
            // The kernel is older than 5.14: the first stores fault the pages in.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Writes the pages of a range back to the file and waits.
    pub(crate) fn msync(&self, at: usize, len: usize) -> io::Result<()> {
        let (start, len) = self.pages(at, len);
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the pages are inside this mapping.
        unsafe { rustix::mm::msync(self.base.add(start).cast(), len, MsyncFlags::SYNC)? };
        Ok(())
    }

    /// Returns the start and length of the whole pages that cover a range, clipped to the mapping.
    fn pages(&self, at: usize, len: usize) -> (usize, usize) {
        let end = at.saturating_add(len).min(self.len);
        let start = at.min(end) & !(PAGE - 1);
        let end = end.next_multiple_of(PAGE).min(self.len);
        if len == 0 {
            (start, 0)
        } else {
            (start, end - start)
        }
    }
}

/// Memory of dropped machines, for reuse.
static SPARE: Mutex<Vec<Memory>> = Mutex::new(Vec::new());

/// The maximum length of `SPARE`.
const SPARE_MAX: usize = 8;

impl Drop for Memory {
    fn drop(&mut self) {
        if self.recycle.is_some() {
            let mut spare = SPARE.lock();
            if spare.len() < SPARE_MAX {
                let recycle = self.recycle.take();
                spare.push(Memory {
                    base: self.base,
                    len: self.len,
                    recycle,
                    anonymous: self.anonymous,
                });
                return;
            }
        }
        if self.anonymous {
            ANONYMOUS.fetch_sub(self.len as u64, Ordering::Relaxed);
        }
        // SAFETY: nothing refers to the range: regions own the mapping that owns this value.
        let result = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
        debug_assert!(result.is_ok(), "unmapping our own range cannot fail");
    }
}
