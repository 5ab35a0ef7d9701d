//! Address space: one reservation, and the file or anonymous memory mapped into it.
//!
//! A reservation is made once for the whole cap at a base aligned to `HUGE`, so that the kernel
//! can use huge pages wherever the memory behind it offers them, and never moves. A file is mapped
//! over all of it at once: addresses beyond the end of the file are not accessed, because every
//! access is checked against the committed length first.

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MsyncFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alignment of every base: the size of a huge page.
pub(crate) const HUGE: usize = 2 << 20;

/// The unit in which the kernel populates and syncs memory.
pub(crate) const PAGE: usize = 4096;

/// A range of address space that is unmapped when it is dropped.
pub(crate) struct Memory {
    base: *mut u8,
    len: usize,
    /// Bytes that may not be zero, if the memory is kept for the next simulated machine.
    recycle: Option<AtomicU64>,
    /// Whether the range is memory of this process, and not a file's.
    anonymous: bool,
}

/// Bytes of all ranges that are memory of this process.
static ANONYMOUS: AtomicU64 = AtomicU64::new(0);

/// Bytes of memory that arenas and pools without a file have mapped in this process now, touched or
/// not; with those of pool files that are mapped copy-on-write. For tests and reports of memory in use.
pub fn anonymous_bytes() -> u64 {
    ANONYMOUS.load(Ordering::Relaxed)
}

// SAFETY: the range is plain memory; who may write which byte of it is decided by `Region` and
// `Claim`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Anonymous memory that is committed as it is touched.
    pub(crate) fn anonymous(len: usize, huge: bool) -> io::Result<Memory> {
        let mut memory = Memory::reserve(len)?;
        memory.anonymous = true;
        ANONYMOUS.fetch_add(memory.len as u64, Ordering::Relaxed);
        // SAFETY: the pages are our own reservation, and giving access to them changes no byte.
        unsafe {
            rustix::mm::mprotect(
                memory.base.cast(),
                memory.len,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )?;
        }
        if huge {
            // SAFETY: advice about our own range. A kernel without huge pages refuses it, which
            // changes nothing but speed.
            let _ = unsafe {
                rustix::mm::madvise(memory.base.cast(), memory.len, Advice::LinuxHugepage)
            };
        }
        Ok(memory)
    }

    /// The first `len` bytes of `file`, shared; with `synchronous`, only if the file system
    /// guarantees that its own metadata is durable before a store to a new page can be.
    pub(crate) fn file(len: usize, file: &File, synchronous: bool) -> io::Result<Memory> {
        let kind = if synchronous {
            MapFlags::SHARED_VALIDATE | MapFlags::SYNC
        } else {
            MapFlags::SHARED
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // A refused mapping over a reservation may leave a hole in it, which another thread may
        // fill before it could be unmapped. So the kernel is asked about one page elsewhere first.
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped at once.
        unsafe {
            let probe = rustix::mm::mmap(ptr::null_mut(), PAGE, access, kind, file.as_fd(), 0)?;
            rustix::mm::munmap(probe, PAGE)?;
        }
        let memory = Memory::reserve(len)?;
        // SAFETY: the range is our own reservation and nothing refers to it yet.
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
            // The range is not ours to unmap any more, if the kernel left a hole.
            std::mem::forget(memory);
            return Err(e.into());
        }
        Ok(memory)
    }

    /// The first `file_bytes` of `file`, copy-on-write, and plain memory behind them up to `len`: no
    /// store reaches the file. `file_bytes` are whole pages.
    pub(crate) fn private(len: usize, file: &File, file_bytes: usize) -> io::Result<Memory> {
        let memory = Memory::anonymous(len, false)?;
        let mapped = file_bytes.min(memory.len);
        if mapped == 0 {
            return Ok(memory);
        }
        // SAFETY: the range is inside our own reservation and nothing refers to it yet.
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
            // The range is not ours to unmap any more, if the kernel left a hole.
            std::mem::forget(memory);
            return Err(e.into());
        }
        Ok(memory)
    }

    /// Whether `file`, open for reading, could be mapped synchronously: it is on persistent memory.
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

    /// Anonymous memory for a simulated machine, with the number of its bytes that may not be
    /// zero: tests make machines by the thousand, and faulting pages in anew would be most of it.
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

    /// Says that the first `len` bytes of recycled memory may not be zero.
    pub(crate) fn touched(&self, len: u64) {
        if let Some(dirty) = &self.recycle {
            dirty.fetch_max(len, Ordering::Relaxed);
        }
    }

    /// Takes `len` bytes of address space, aligned to `HUGE`, with no access.
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
        // SAFETY: head and tail are parts of the mapping just made, outside of what is kept.
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

    /// Makes the pages of a range present and writable, so that no later store faults.
    pub(crate) fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        let (start, len) = self.pages(at, len);
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the pages are inside this mapping; populating changes no byte.
        let result = unsafe {
            rustix::mm::madvise(self.base.add(start).cast(), len, Advice::LinuxPopulateWrite)
        };
        match result {
            // A kernel before 5.14: the pages are faulted in by their first stores instead.
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

    /// The whole pages that hold a range, inside the mapping: start and length.
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

/// Memory of machines that are gone.
static SPARE: Mutex<Vec<Memory>> = Mutex::new(Vec::new());

/// How many memories are kept.
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
        // SAFETY: nothing refers to the range: regions hold the mapping that holds this value.
        let result = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
        debug_assert!(result.is_ok(), "unmapping our own range cannot fail");
    }
}
